"""The submitting loop's lanes, as Python sees them; what lies between its calls is compiled, in `lanes`."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING, Any

import numpy as np

from kvreplay.engine import loop as at
from kvreplay.engine import order
from kvreplay.engine import ring as r
from kvreplay.engine import schedule as schedules
from kvreplay.engine.job import Job, Record
from kvreplay.engine.workers import Mail
from kvreplay.tiers.tier import RingExtents
from kvtrace.core.compiled import compile_announced, places_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvreplay.engine.schedule import Flight, Schedule


def warm(ring: r.Ring) -> None:
    """Compile before anything is measured, or load what an earlier run has compiled."""
    schedules.warm()
    with compile_announced():
        plan = schedules.two_writes()
        schedule = schedules.Schedule(plan, None, [False], [1], depth=1, ahead=1, io_bytes=mmap.PAGESIZE)
        job = Job(plan, None, [None], Record.empty(len(plan), is_open_loop=False), lambda *_: None)
        mail = Mail(schedule.slots)
        try:
            mail.warm()
            pump = Pump(ring, schedule, job, [at.BY_NOBODY], mail, 1, mmap.PAGESIZE, [0, 0], is_registered=False)
            pump.begin(0)
            pump.run(0, 0)
        finally:
            mail.close()


class Pump:
    """The lanes of one ring, and what Python and compiled code say to each other."""

    def __init__(
        self, ring: r.Ring, schedule: Schedule, job: Job, ways: Sequence[int], mail: Mail, depth: int, io_bytes: int,
        buffers: list[int], *, is_registered: bool,
    ) -> None:  # fmt: skip
        """Serve `ring`: `buffers` are the addresses of `depth` buffers for reads, then of those for writes.

        `ways` say by tier how its operations are done.
        """
        requests, words, completions, timeout = ring.arrays()
        record, plan = job.record, job.plan

        def whole(*shape: int) -> Any:
            return np.zeros(shape, np.int64)

        objects = int(plan.object_id.max()) + 1 if len(plan) else 0
        extents = [t.ring_places(objects) if isinstance(t, RingExtents) else whole(0) for t in job.tiers]
        self.extents = [memoryview(places) for places in extents]
        """By tier of extents: where each object lies; NOWHERE if it does not."""
        self._arrays = [
            whole(at.STATE_WORDS), whole(depth, at.TOKEN_WORDS), np.array(buffers, np.int64), np.arange(depth),
            np.arange(depth), whole(depth), requests, words, completions, whole(len(completions) // 2, 2),
            whole(depth), whole(depth, 4), whole(depth), np.array(ways, np.int64), plan.object_id, record.submitted_ns,
            record.completed_ns, record.outcome, whole(2), timeout, *extents,
        ]  # fmt: skip
        self._own = places_of(self._arrays)
        self._schedule, self._shared, self._queue, self._ring = schedule, schedule.places, mail.places, ring
        self._read_buffers, self._lanes = (
            memoryview(self._arrays[at.READ_BUFFERS]),
            memoryview(self._arrays[at.LANE_ORDER]),
        )
        self.state = memoryview(self._arrays[at.STATE])
        """The counters named in `lanes`."""
        for place, value in (
            (at.FREE_READS, depth), (at.FREE_TOKENS, depth), (at.DEPTH, depth), (at.IO_BYTES, io_bytes),
            (at.FD, ring.fd), (at.MAIL_FD, mail.fd), (at.SQ_MASK, ring.sq_mask), (at.CQ_MASK, ring.cq_mask),
            (at.SQ_TAIL_AT, ring.sq_tail_at), (at.CQ_HEAD_AT, ring.cq_head_at), (at.CQ_TAIL_AT, ring.cq_tail_at),
            (at.ARGUMENT, ring.argument_address), (at.READ_OP, r.READ_FIXED if is_registered else r.READ),
            (at.WRITE_OP, r.WRITE_FIXED if is_registered else r.WRITE),
        ):  # fmt: skip
            self.state[place] = value

    @property
    def available(self) -> int:
        """How many pieces of lanes may go."""
        return self._schedule.counters[order.AVAILABLE]

    def start_clock(self, start_ns: int) -> None:
        """Let times count from `start_ns` of the monotonic clock."""
        self.state[at.START_NS] = start_ns

    def take_read_buffer(self) -> int:
        """Return a free buffer for a read of Python's."""
        self.state[at.FREE_READS] -= 1
        return self._read_buffers[self.state[at.FREE_READS]]

    def give_read_buffer(self, buffer: int) -> None:
        """Take a buffer back."""
        self._read_buffers[self.state[at.FREE_READS]] = buffer
        self.state[at.FREE_READS] += 1

    def begin(self, out: int) -> bool:
        """Start the operations that come next, up to one that needs Python; return whether there is one, and room.

        `out` requests are in flight.
        """
        self.state[at.OUT] = out
        return bool(at.begin(self._own, self._shared))

    def adopt(self, flight: Flight) -> None:
        """Submit the pieces of `flight` that are left; its own file lies open at its handle's place in the ring."""
        # The flags and the file of a request, in its first word.
        file = r.FIXED_FILE << 8 | flight.handle << 32 if flight.fd < 0 else flight.fd << 32
        self._schedule.make_lane(flight, file)
        self._lanes[self.state[at.LANES]] = flight.number
        self.state[at.LANES] += 1

    @property
    def starved_ns(self) -> int:
        """Places of the queue times time that stood idle because data was not there."""
        return self.state[at.STARVED_NS]

    def run(self, out: int, until_ns: int) -> int:
        """Submit, wait and reap until Python has something to do, or until `until_ns` of the run.

        `out` requests are in flight; returns how many are then. What came is in `others`, `over` and `bad`.
        """
        state, ring = self.state, self._ring
        state[at.TAIL], state[at.SUBMITTED], state[at.HEAD], state[at.OUT] = ring.tail, ring.submitted, ring.head, out
        state[at.OTHERS] = state[at.OVER] = state[at.BAD] = state[at.IS_ERROR] = 0
        at.run(self._own, self._shared, self._queue, until_ns)
        ring.tail, ring.submitted, ring.head = state[at.TAIL], state[at.SUBMITTED], state[at.HEAD]
        if state[at.IS_ERROR]:
            # The same call once more, where its reason can be read.
            ring.enter(0)
        return state[at.OUT]

    def others(self) -> list[list[int]]:
        """Return (user data, result) of completions that are not of lanes."""
        found: list[list[int]] = self._arrays[at.OTHER][: self.state[at.OTHERS]].tolist()
        return found

    def bad(self) -> list[tuple[Flight, int, int, int]]:
        """Return operation, start, length and result of pieces that went wrong."""
        found = self._arrays[at.BAD_PIECES][: self.state[at.BAD]].tolist()
        return [(self._schedule.flight(number), start, length, result) for number, start, length, result in found]

    def over(self) -> list[Flight]:
        """Return the operations whose pieces have all come and Python is to finish with; they are lanes no more."""
        return [self._schedule.flight(n) for n in self._arrays[at.OVER_LANES][: self.state[at.OVER]].tolist()]
