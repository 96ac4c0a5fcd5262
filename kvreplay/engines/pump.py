"""The submitting loop's lanes, as Python sees them: it opens a file, moves its first piece, and closes it at the end.

What lies between is compiled, in `lanes`.
"""

from __future__ import annotations

import mmap
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from kvreplay.engines import lanes as at
from kvreplay.engines import ring as r
from kvtrace.core.compiled import compile_announced

if TYPE_CHECKING:
    from kvreplay.schedule import Fill, Flight


def warm(ring: r.Ring) -> None:
    """Compile before anything is measured, or load what an earlier run has compiled."""
    with compile_announced():
        Pump(ring, 1, mmap.PAGESIZE, [0, 0], array("q", [0]), is_registered=False).run(0, 0, None)


class Pump:
    """The lanes of one ring, and what Python and compiled code say to each other."""

    def __init__(self, ring: r.Ring, depth: int, io_bytes: int, places: list[int], held: array[int], *,
                 is_registered: bool) -> None:  # fmt: skip
        """Serve `ring`: `places` are the addresses of `depth` buffers for reads, then of those for writes.

        `held` counts by write buffer the pieces whose data it holds.
        """
        requests, words, completions = ring.arrays()
        slots = len(held)

        def whole(*shape: int) -> Any:
            return np.zeros(shape, np.int64)

        self._memory = at.Memory(
            state=whole(at.WORDS), lanes=whole(depth, at.LANE_WORDS), fills=whole(slots, at.FILL_WORDS),
            tokens=whole(depth, at.TOKEN_WORDS), held=np.frombuffer(held, np.int64), places=np.array(places, np.int64),
            read_buffers=np.arange(depth), free_tokens=np.arange(depth), order=whole(depth), requests=requests,
            words=words, completions=completions, others=whole(len(completions) // 2, 2), over=whole(depth),
            freed=whole(slots), bad=whole(depth, 4),
        )  # fmt: skip
        # One argument: to pass sixteen arrays takes longer than to submit an I/O.
        self._places = np.array([(a.ctypes.data, len(a), a.shape[-1]) for a in self._memory], np.int64)
        self._ring = ring
        self._flights: list[Flight | None] = [None] * depth
        self._read_buffers = memoryview(self._memory.read_buffers)
        self.state = memoryview(self._memory.state)
        """The counters named above."""
        for place, value in (
            (at.FREE_READS, depth), (at.FREE_TOKENS, depth), (at.DEPTH, depth), (at.IO_BYTES, io_bytes),
            (at.FD, ring.fd), (at.SQ_MASK, ring.sq_mask), (at.CQ_MASK, ring.cq_mask), (at.SQ_TAIL_AT, ring.sq_tail_at),
            (at.CQ_HEAD_AT, ring.cq_head_at), (at.CQ_TAIL_AT, ring.cq_tail_at), (at.ARGUMENT, ring.argument_address),
            (at.READ_OP, r.READ_FIXED if is_registered else r.READ),
            (at.WRITE_OP, r.WRITE_FIXED if is_registered else r.WRITE), (at.MOST_FREED, max(1, slots // 4)),
        ):  # fmt: skip
            self.state[place] = value

    def take_read_buffer(self) -> int:
        """Return a free buffer for a read of Python's."""
        self.state[at.FREE_READS] -= 1
        return self._read_buffers[self.state[at.FREE_READS]]

    def give_read_buffer(self, buffer: int) -> None:
        """Take a buffer back."""
        self._read_buffers[self.state[at.FREE_READS]] = buffer
        self.state[at.FREE_READS] += 1

    def adopt(self, flight: Flight) -> None:
        """Submit the pieces of `flight` that are left; its own file lies open at its handle's place in the ring."""
        lane, state = flight.handle, self.state
        # The flags and the file of a request, in its first word.
        file = r.FIXED_FILE << 8 | lane << 32 if flight.fd < 0 else flight.fd << 32
        row = self._memory.lanes[lane]
        row[:] = (flight.start, flight.end, flight.needed_end, flight.next_submit, flight.pieces, 0, flight.needs_data,
                  flight.is_failed, -1, -1, file, flight.base)  # fmt: skip
        self._flights[lane] = flight
        flight.lane = lane
        # To the schedule all of them are one piece.
        flight.outstanding += 1
        flight.next_submit = flight.pieces
        self._memory.order[state[at.LANES]] = lane
        state[at.LANES] += 1
        if flight.needs_data:
            while flight.filled:
                self.give(flight.filled.popleft())
        else:
            state[at.AVAILABLE] += flight.pieces - int(row[at.NEXT])

    def give(self, fill: Fill) -> None:
        """Let the data of a lane's pieces be written."""
        row, slot = self._memory.lanes[fill.flight.lane], fill.slot
        self._memory.fills[slot] = (-1, fill.piece, fill.end, fill.at)
        if row[at.FIRST_FILL] < 0:
            row[at.FIRST_FILL] = slot
        else:
            self._memory.fills[row[at.LAST_FILL], at.NEXT_FILL] = slot
        row[at.LAST_FILL] = slot
        self.state[at.AVAILABLE] += fill.end - fill.piece

    def fail(self, flight: Flight) -> None:
        """Pass over the pieces of a lane that are left."""
        self._memory.lanes[flight.lane, at.IS_FAILED] = 1

    def run(self, out: int, wait: int, timeout_ns: int | None) -> int:
        """Submit, wait for `wait` completions or the time, and go on while only pieces of lanes come.

        `out` requests are in flight; returns how many are then. What came is in `others`, `over`, `bad` and `freed`.
        """
        state, ring = self.state, self._ring
        state[at.TAIL], state[at.SUBMITTED], state[at.HEAD], state[at.OUT] = ring.tail, ring.submitted, ring.head, out
        state[at.OTHERS] = state[at.OVER] = state[at.BAD] = state[at.FREED] = state[at.IS_ERROR] = 0
        if timeout_ns is not None:
            ring.set_timeout(timeout_ns)
        at.run(self._places, wait, timeout_ns is not None)
        ring.tail, ring.submitted, ring.head = state[at.TAIL], state[at.SUBMITTED], state[at.HEAD]
        if state[at.IS_ERROR]:
            # The same call once more, where its reason can be read.
            ring.enter(0)
        return state[at.OUT]

    def others(self) -> list[list[int]]:
        """Return (user data, result) of completions that are not of lanes."""
        found: list[list[int]] = self._memory.others[: self.state[at.OTHERS]].tolist()
        return found

    def bad(self) -> list[tuple[Flight, int, int, int]]:
        """Return operation, start, length and result of pieces that went wrong."""
        found = []
        for lane, start, length, result in self._memory.bad[: self.state[at.BAD]].tolist():
            flight = self._flights[lane]
            assert flight is not None, "a lane with pieces has a flight"
            found.append((flight, start, length, result))
        return found

    def freed(self) -> list[int]:
        """Return buffers whose data has been written."""
        found: list[int] = self._memory.freed[: self.state[at.FREED]].tolist()
        return found

    def over(self) -> list[Flight]:
        """Return the operations whose pieces have all come; they are lanes no more."""
        found = []
        for lane in self._memory.over[: self.state[at.OVER]].tolist():
            flight = self._flights[lane]
            assert flight is not None, "a lane has a flight"
            flight.next_submit, flight.lane = int(self._memory.lanes[lane, at.NEXT]), -1
            self._flights[lane] = None
            found.append(flight)
        return found
