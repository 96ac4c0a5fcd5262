"""The submitting loop's lanes, as Python sees them; what lies between its calls is compiled, in `loop`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import types

from kvreplay.data.calls import DIGIT, FILES
from kvreplay.data.copies import Copiers, serve
from kvreplay.data.words import fill
from kvreplay.engine import loop, mailbox, order, ready, turn
from kvreplay.engine import ring as r
from kvreplay.engine.filling import here
from kvreplay.engine.job import Flight, Job
from kvreplay.engine.mailbox import Mail
from kvreplay.engine.rings.rings import Rings
from kvreplay.engine.rings.serve import hand_on_to
from kvreplay.engine.rings.serve import serve as serve_ring
from kvreplay.engine.schedule import Schedule, Submission
from kvreplay.engine.tables import BAD, BY_RINGS, LANES, OTHER, RING, TOKEN, Tables
from kvreplay.plan.plan import READ, WRITE
from kvreplay.tiers.layout import SPREAD, name_template
from kvreplay.tiers.tier import CopiedTier, RingExtents, RingTier, Tier
from kvtrace.core.compiled import compile_announced
from kvtrace.core.structures import fields_of

_COMPILED = {
    1: (turn.take, turn.next_piece, mailbox.may_sleep),
    2: (
        loop.run,
        turn.next_turn,
        turn.fall_asleep,
        turn.doze,
        order.begun,
        mailbox.must_wake,
        serve,
        serve_ring,
        hand_on_to,
    ),
    3: (order.piece_done, ready.done, mailbox.made, mailbox.make_asked),
    4: (mailbox.next_asked, here.objects_wanting_room, order.make_lane),
    6: (fill,),
}
"""What Python calls while it drives a job, by how many integers it takes."""


def compile_engine() -> None:
    """Compile what a job will call, before anything is measured, or load what an earlier run has compiled."""
    with compile_announced():
        for integers, functions in _COMPILED.items():
            for function in functions:
                function.compile((types.int64,) * integers)


def _files(tables: Tables, tiers: Sequence[Tier | None], ways: Sequence[int]) -> Any:
    """Return by tier how its files are named and opened (FILES); zeros for those of which Python does that."""
    found: Any = np.zeros(len(tiers), FILES)
    for row, tier, way in zip(found, tiers, ways, strict=True):
        if way != turn.BY_FILE:
            continue
        assert isinstance(tier, RingTier), "only its files are opened so"
        files = tier.ring_files()
        name, digits = name_template(files.layout)
        row["name"], row["name_bytes"] = tables.at(np.frombuffer(name + b"\0", np.uint8)), len(name) + 1
        row["digits"], row["digit_count"] = tables.at(np.array(digits, DIGIT)), len(digits)
        row["directories"] = tables.at(np.array(files.directories, np.int64))
        row["drive_of"] = 0 if files.drive_of is None else tables.at(files.drive_of)
        row["spread"] = np.uint64(SPREAD).astype(np.int64)
        row["read_flags"], row["write_flags"] = tier.ring_flags(READ), tier.ring_flags(WRITE)
        row["is_synced"] = tier.is_synced
    return found


class Pump:
    """The lanes of one ring, and what Python and compiled code say to each other."""

    def __init__(
        self,
        rings: Rings,
        schedule: Schedule,
        job: Job,
        ways: Sequence[int],
        mail: Mail,
        buffers: list[int],
        *,
        extents: Sequence[RingExtents | None],
        copied: Sequence[CopiedTier | None],
        registered: tuple[int, int],
    ) -> None:
        """Serve `rings`: `buffers` are the addresses of those for reads, one an I/O in flight, then of those for data.

        `ways` say by tier how its operations are done, `extents` are those whose objects the ring reads in place,
        `copied` those whose objects threads of compiled code copy; so many of the first buffers of each kind are
        `registered` with the rings.
        """
        tables, depth = schedule.tables, schedule.depth
        record, objects = job.record, job.plan.objects
        none = np.zeros(0, np.int64)
        places: list[Any] = [none if t is None else t.ring_places(objects) for t in extents]
        for index, tier in enumerate(copied):
            if tier is not None:
                places[index] = tier.copy_places(objects)
        self.places = [memoryview(of_tier) for of_tier in places]
        """By tier of `extents` and `copied`: where each object lies; NOWHERE if it does not."""
        self.lanes = lanes = tables.record(LANES)
        """The counters named in `tables`."""
        tables.job.lanes, self._address = ctypes.addressof(lanes), tables.address
        lanes.places = tables.at(np.array([tables.at(of_tier) for of_tier in places], np.int64))
        lanes.ways, lanes.buffers = tables.at(np.array(ways, np.int64)), tables.at(np.array(buffers, np.int64))
        lanes.tokens = tables.at(np.zeros(depth, TOKEN))
        self._others, self._bad = np.zeros(max(1, rings.completions), OTHER), np.zeros(depth, BAD)
        lanes.others, lanes.bad = tables.at(self._others), tables.at(self._bad)
        sequence: Any
        fresh, sequence, self._over = np.zeros((3, depth), np.int64)
        lanes.fresh, lanes.sequence, lanes.over = tables.at(fresh), tables.at(sequence), tables.at(self._over)
        lanes.copied = tables.at(np.zeros(depth, np.int64))
        lanes.clock = tables.at(np.zeros(2, np.int64))
        for name in ("submitted_ns", "completed_ns", "outcome"):
            setattr(lanes, name, tables.at(getattr(record, name)))
        self._put_rings(tables, rings)
        lanes.mail_fd = mail.fd
        lanes.first_slot = depth
        lanes.fixed_reads, lanes.fixed_slots = registered
        # The first are taken first, and again as soon as they are free: the others may never be touched.
        reads: Any = np.arange(depth)[::-1].copy()
        self._free_reads = tables.stack(reads)
        lanes.free_reads = ctypes.addressof(self._free_reads)
        lanes.free_tokens = tables.numbers(np.arange(depth), depth)
        files: Any = np.arange(depth)
        self._free_files, self._file_places = tables.stack(files), memoryview(files)
        lanes.free_files = ctypes.addressof(self._free_files)
        lanes.files = tables.at(_files(tables, job.tiers, ways))
        self._read_buffers, self._sequence = memoryview(reads), memoryview(sequence)
        self._schedule, self._job = schedule, tables.job
        self._copiers: Copiers | None = None

    def _put_rings(self, tables: Tables, rings: Rings) -> None:
        """Let compiled code see the rings, what it waits on, and by which of them each tier's I/O goes."""
        lanes, table = self.lanes, np.zeros(len(rings.all), RING)
        self._all_rings = rings
        self._rings = [(ring, fields_of(table[at : at + 1])) for at, ring in enumerate(rings.all)]
        """Each as Python has it, and as compiled code does."""
        lanes.rings, lanes.ring_count, lanes.is_served = tables.at(table), len(rings.all), rings.is_served
        for name, place in rings.places().items():
            setattr(lanes, name, place)
        for ring, seen in self._rings:
            for name, place in ring.places().items():
                setattr(seen, name, place)
        by_rings: Any = np.zeros(len(rings.of_tiers), BY_RINGS)
        for row, of_tier in zip(by_rings, rings.of_tiers, strict=True):
            row["drive_of"] = 0 if of_tier.drive_of is None else tables.at(of_tier.drive_of)
            row["first"], row["step"] = tables.at(np.array(of_tier.first, np.int64)), of_tier.step
            row["counts"] = tables.at(np.array(of_tier.counts, np.int64))
        lanes.by_rings = tables.at(by_rings)

    def share_copies(self, copiers: Copiers | None) -> None:
        """Give what is to be copied to `copiers`."""
        self._copiers = copiers
        self.lanes.copies = 0 if copiers is None else copiers.address

    @property
    def depth(self) -> int:
        """How much may be in flight now: the schedule's depth, where not fewer buffers of reads are touched yet."""
        return int(self._job.depth)

    def let_use(self, reads: int) -> None:
        """Let as much be in flight as the buffers `reads` that are touched; called from any thread, rising."""
        self._job.depth = min(reads, self._schedule.depth)

    @property
    def used(self) -> tuple[int, int]:
        """How many buffers of reads and of data were in use at once, at most."""
        return self._schedule.depth - int(self._free_reads.least), self._schedule.used_slots

    @property
    def copying(self) -> int:
        """How many operations are copied now."""
        return int(self.lanes.copied_count)

    @property
    def available(self) -> int:
        """How many pieces of lanes may go."""
        return int(self._job.available)

    def start_clock(self, start_ns: int) -> None:
        """Let times count from `start_ns` of the monotonic clock."""
        self.lanes.start_ns = start_ns
        if self._copiers is not None:
            self._copiers.copies.start_ns = start_ns

    def take_read_buffer(self) -> int:
        """Return a free buffer for a read of Python's."""
        free = self._free_reads
        free.count -= 1
        free.least = min(free.least, free.count)
        buffer: int = self._read_buffers[free.count]
        return buffer

    def give_read_buffer(self, buffer: int) -> None:
        """Take a buffer back."""
        free = self._free_reads
        self._read_buffers[free.count] = buffer
        free.count += 1

    def take_file(self) -> int:
        """Return a free place for an open file of the ring."""
        free = self._free_files
        free.count -= 1
        place: int = self._file_places[free.count]
        return place

    def give_file(self, place: int) -> None:
        """Take a place back."""
        free = self._free_files
        self._file_places[free.count] = place
        free.count += 1

    def take(self, out: int) -> Submission | None:
        """Start what needs no Python and comes next; return a piece of what does, if there is one, and room for it.

        `out` requests are in flight.
        """
        self.lanes.out = out
        return self._schedule.taken() if turn.take(self._address) else None

    def next_piece(self, out: int) -> Submission | None:
        """Return a piece for a thread to do now, if there is one and room for it; `out` others are in flight."""
        self.lanes.out = out
        return self._schedule.taken() if turn.next_piece(self._address) else None

    def next_turn(self, until_ns: int) -> int:
        """Return when there is something to do, if nothing completes before; `until_ns` at the latest."""
        found: int = turn.next_turn(self._address, until_ns)
        return found

    def fall_asleep(self, until_ns: int) -> int:
        """Return until when the calling thread, which then calls `doze`, may sleep; mail and data will wake it."""
        found: int = turn.fall_asleep(self._address, until_ns)
        return found

    def doze(self, until_ns: int) -> None:
        """Sleep until woken or `until_ns` of the run."""
        turn.doze(self._address, until_ns)

    def adopt(self, flight: Flight) -> None:
        """Submit the pieces of `flight` that are left; its own file lies open at its handle's place in the ring."""
        # The flags and the file of a request, in its first word.
        file = r.FIXED_FILE << 8 | flight.handle << 32 if flight.fd < 0 else flight.fd << 32
        self._schedule.make_lane(flight, file)
        self._sequence[self.lanes.count] = flight.number
        self.lanes.count += 1

    def note_held(self, since_ns: int, now_ns: int) -> None:
        """Count the time since `since_ns`, in which Python itself moved data, in the only place there is."""
        lanes = self.lanes
        before = since_ns - lanes.counted_ns
        lanes.in_use_ns += lanes.counted_in_use * before + now_ns - since_ns
        lanes.blocked_ns += lanes.counted_blocked * before
        lanes.idle_ns += now_ns - since_ns
        lanes.counted_ns, lanes.counted_in_use, lanes.counted_blocked = now_ns, 0, 0
        if self._job.due and (due := self._schedule.next_due(now_ns)) is not None and due <= now_ns:
            lanes.held_ns += now_ns - max(since_ns, due)

    @property
    def starved_ns(self) -> int:
        """Places of the queue times time that stood idle because data was not there."""
        return int(self.lanes.starved_ns)

    def run(self, out: int, until_ns: int) -> int:
        """Submit, wait and reap until Python has something to do, or until `until_ns` of the run.

        `out` requests are in flight; returns how many are then. What came is in `others`, `over` and `bad`.
        """
        lanes, lanes.out = self.lanes, out
        for ring, seen in self._rings:
            seen.tail, seen.submitted, seen.head = ring.tail, ring.submitted, ring.head
        lanes.other_count = lanes.over_count = lanes.bad_count = 0
        lanes.is_error = False
        loop.run(self._address, until_ns)
        for ring, seen in self._rings:
            ring.tail, ring.submitted, ring.head = seen.tail, seen.submitted, seen.head
        if lanes.is_error:
            # The same call once more, where its reason can be read.
            self._all_rings.submit()
        return int(lanes.out)

    def others(self) -> list[tuple[int, int]]:
        """Return (user data, result) of completions that are not of lanes."""
        found: list[tuple[int, int]] = self._others[: self.lanes.other_count].tolist()
        return found

    def bad(self) -> list[tuple[Flight, int, int, int]]:
        """Return operation, start, length and result of pieces that went wrong."""
        found = self._bad[: self.lanes.bad_count].tolist()
        return [(self._schedule.flight(number), start, length, result) for number, start, length, result in found]

    def over(self) -> list[Flight]:
        """Return the operations whose pieces have all come and Python is to finish with; they are lanes no more."""
        return [self._schedule.flight(n) for n in self._over[: self.lanes.over_count].tolist()]
