"""Which piece of which operation may be submitted next: a state machine without clock, threads or I/O.

Rows go in trace order as far as their chains allow. A write is offered only when its data lies in a buffer
(what `ahead` buffers hold, if it is longer), so that generation is not in an operation's latency. Some buffers may
hold data of rows that are next in a chain, all others belong to rows that wait for no other, and one is always left
for a write that has started: so there is always something that can go on. The machine itself is compiled, in `order`;
this is its form for Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from kvreplay.data.buffers import early_fills, fills_ahead, pieces_a_fill
from kvreplay.engine import order, ready
from kvreplay.engine.job import Flight, Job
from kvreplay.engine.sliding.slider import Slider
from kvreplay.engine.tables import ANSWER, CHAIN, FILL, FLIGHT, GROUP, MOST_FLIGHTS, NONE, Tables
from kvreplay.plan.held.column import column
from kvreplay.plan.plan import Plan
from kvreplay.tiers.placement.hints import placing
from kvreplay.tiers.tier import on_ring

_SEEN = ["row", "op", "first", "end", "needed_end", "pieces", "has_io", "needs_data"]
"""What Python sees of an operation under way, in the order of `Flight`."""
_PREPARED_PART = 3
"""Of the buffers for rows that are not due, this part is kept for those next in a chain, if there are any."""
_READY_FLIGHTS = 1 << 16
"""Rows that waited and wait no more, taken up together; others stay where they were until there is room."""


class Fill(NamedTuple):
    """A buffer to be filled with the data of consecutive pieces."""

    flight: int
    """The operation's number while it is under way."""
    row: int
    piece: int
    slot: int
    start: int
    """The object's first byte in the buffer, and the one after the last."""
    end: int
    object_end: int
    """The one after the last that the operation writes, aligned."""
    room: int
    """`fills.NO_ROOM`, or that room for the object is made as well (`WITH_ROOM`), or only that (`ONLY_ROOM`)."""


class Submission:
    """A piece to be submitted now."""

    # Not a dataclass, and never changed but for `buffer`: one is made for each I/O, in the submitting thread.
    __slots__ = ("at", "buffer", "flight", "is_first", "length", "piece", "slot", "start")

    def __init__(
        self, flight: Flight, piece: int, slot: int | None, is_first: bool, start: int, length: int, at: int = 0
    ) -> None:
        """Name the piece `piece` of `flight`: `length` bytes from `start`; `slot` is its data's buffer, or None."""
        self.flight, self.piece, self.slot, self.is_first = flight, piece, slot, is_first
        self.start, self.length = start, length
        self.at = at
        """Where in `slot` its data begins."""
        self.buffer = -1
        """Where a read goes; the engine's own."""


class Schedule:
    """The order in which the rows of a plan go to the tiers."""

    # Long: it fills one table field by field.
    def __init__(
        self,
        plan: Plan,
        due_ns: Any,
        moves: Sequence[bool],
        paddings: Sequence[int],
        *,
        depth: int,
        ahead: int,
        io_bytes: int,
        pieces_a_fill: int = 1,
        early: int | None = None,
        ready_ns: Any = None,
        rooms: Sequence[bool] | None = None,
        write_streams: Sequence[int] = (),
        bulk_depth: int | None = None,
        slider: Slider | None = None,
    ) -> None:
        """Prepare to run `plan`: `due_ns` (int64) a row or None; by tier, whether data `moves` and its padding.

        Up to twice `ahead` buffers hold data before their operation is submitted, up to `early` of them (or half) for
        rows not due or not ready; a buffer holds up to `pieces_a_fill` pieces of one operation. `ready_ns` (int64 a
        row) takes when the last operation that a row had to wait for completed. `rooms` says by tier whether objects
        are given room before they are written: all, unless it is given. `write_streams` says by tier how many streams
        a request may name; `bulk_depth` pieces of a bulk row may be in flight; `slider` loads rows meanwhile.
        """
        self.rows, self.slots, self.depth = len(plan), 2 * ahead + 2, depth
        flights = max(1, min(self.rows, 2 * self.slots + depth + _READY_FLIGHTS, MOST_FLIGHTS))
        self.tables = tables = Tables()
        """For compiled code."""
        self._job = job = tables.job
        job.rows, job.depth, job.ahead, job.io_bytes = self.rows, depth, ahead, io_bytes
        both = ahead if early is None else min(early, ahead)
        links = [np.ascontiguousarray(of_kind) for of_kind in (plan.stage_links, plan.object_links)]
        job.prepared_most = both // _PREPARED_PART if plan.is_chained else 0
        job.early, job.early_or_prepared = both - job.prepared_most, both
        job.pieces_a_fill, job.slots, job.flights_size = pieces_a_fill, self.slots, flights
        self._streams: Any = plan.stream if any(write_streams) else None
        self._write_streams = write_streams
        self._take_rows(plan, links, due_ns, ready_ns, slider)
        job.moves, job.paddings = tables.at(np.array(moves, np.int64)), tables.at(np.array(paddings, np.int64))
        job.write_streams = 0 if self._streams is None else tables.at(np.array(write_streams, np.int64))
        job.rooms = tables.at(np.array([True] * len(moves) if rooms is None else rooms, np.int64))
        job.bulk_depth = min(depth, bulk_depth or depth)
        # Twice what is in flight: the next data is made meanwhile.
        job.bulk_fills = max(2, min(-(-2 * job.bulk_depth // pieces_a_fill), self.slots // 4))
        job.running_ring = tables.at(np.empty(flights, np.int64))
        job.free_flights = tables.numbers(np.arange(flights, dtype=np.int64)[::-1].copy(), flights)
        # The first are taken first, and again as soon as they are free: the others may never be touched.
        self._free_slots = tables.stack(np.arange(self.slots, dtype=np.int64)[::-1].copy())
        job.free_slots = ctypes.addressof(self._free_slots)
        job.held, job.fills = tables.at(np.zeros(self.slots, np.int64)), tables.at(np.zeros(self.slots, FILL))
        table: Any = column(flights, FLIGHT)
        job.flights, self._seen = tables.at(table), table[_SEEN]
        self._next_piece, self._is_failed = memoryview(table["next_piece"]), memoryview(table["is_failed"])
        answer: Any = np.zeros(1, ANSWER)
        job.answer = tables.at(answer)
        self._answer = memoryview(answer.view(np.int64))
        self._address = tables.address
        self._flights: dict[int, Flight] = {}

    def _take_rows(self, plan: Plan, links: Sequence[Any], due_ns: Any, ready_ns: Any, slider: Slider | None) -> None:
        """Let compiled code see the rows of `plan` and what they wait for, and have heaps for them."""
        tables, job = self.tables, self._job
        for name in ("op", "tier", "object_id", "offset", "length", "version"):
            setattr(job, name, tables.at(np.ascontiguousarray(getattr(plan, name))))
        for name, values in (
            ("due", due_ns),
            ("bulk", None if plan.bulk is None else plan.bulk.view(np.int8)),
            ("stream", self._streams),
        ):
            setattr(job, name, 0 if values is None else tables.at(np.ascontiguousarray(values)))
        job.ready_ns = 0 if ready_ns is None else tables.at(ready_ns)
        unmet, prepared = column(self.rows, np.int8), column(self.rows, np.int32)
        job.unmet, job.prepared = tables.at(unmet), tables.at(prepared)
        # Memory that is not touched is not taken: of heaps and flights, few places are used at a time.
        for name in ("ready", "to_prepare"):
            setattr(job, name, tables.numbers(column(self.rows, np.int64), 0))
        for name in ("to_fill", "to_start", "hungry", "making", "to_room", "bulk_hungry"):
            setattr(job, name, tables.numbers(np.empty(job.flights_size, np.int64), 0))
        groups, waiting = ([column(self.rows, np.int32) for _ in links] for _ in range(2))
        since: list[Any] = [None] * len(links)
        if slider is not None:
            since = slider.take(tables, [unmet, prepared, *groups, *waiting], due_ns)
        chains = [
            tuple(0 if array is None else tables.at(array) for array in of_kind)
            for of_kind in zip(links, groups, waiting, since, strict=True)
        ]
        job.chains = tables.at(np.array(chains, CHAIN))
        job.groups = tables.at(column(len(chains) * self.rows, GROUP))
        job.free_group = job.returned_group = NONE
        job.loaded = tables.at(np.array([self.rows]) if slider is None else slider.loaded)

    @classmethod
    def of(cls, job: Job, depth: int, io_bytes: int) -> Self:
        """Return the order of `job` for an engine of `depth` and `io_bytes`."""
        return cls(
            job.plan,
            job.due_ns,
            [tier is not None and not tier.is_simulated for tier in job.tiers],
            [1 if tier is None else tier.alignment for tier in job.tiers],
            depth=depth,
            ahead=fills_ahead(depth, io_bytes),
            io_bytes=io_bytes,
            pieces_a_fill=pieces_a_fill(depth, io_bytes),
            early=early_fills(depth, io_bytes),
            ready_ns=job.record.ready_ns,
            rooms=[on_ring(tier) is None for tier in job.tiers],
            write_streams=[0 if (of := placing(tier)) is None else of.write_streams for tier in job.tiers],
            bulk_depth=job.bulk_depth,
            slider=job.slider,
        )

    def stream_of(self, row: int, tier: int) -> int:
        """Return which stream of its drive a write's requests name, from 1 on; 0: none."""
        if self._streams is None or self._streams[row] < 0 or not self._write_streams[tier]:
            return 0
        return 1 + int(self._streams[row]) % self._write_streams[tier]

    @property
    def completed(self) -> int:
        """How many rows have completed."""
        return int(self._job.completed)

    @property
    def is_over(self) -> bool:
        """Whether no piece will be offered any more."""
        return bool(self._job.is_stopped or self._job.completed == self.rows)

    @property
    def fills_in_flight(self) -> int:
        """Writes that were submitted before all their data was made."""
        return int(self._job.short_starts)

    @property
    def used_slots(self) -> int:
        """How many buffers of data were in use at once, at most."""
        return self.slots - int(self._free_slots.least)

    def stop(self) -> None:
        """Offer nothing more; what is in flight may still complete."""
        self._job.is_stopped = True

    def flight(self, number: int) -> Flight:
        """Return the operation under way that has this number."""
        found = self._flights.get(number)
        if found is None:
            found = Flight(number, *self._seen.item(number))
            self._flights[number] = found
        return found

    def next_due(self, now_ns: int) -> int | None:
        """Return when the next piece may be submitted; None if that depends on what is in flight."""
        due: int = order.next_due(self._address, now_ns)
        return None if due == NONE else due

    def taken(self) -> Submission:
        """Return the piece that compiled code has just taken."""
        number, piece, slot, is_first, start, length, at = self._answer
        return Submission(self.flight(number), piece, None if slot < 0 else slot, is_first == 1, start, length, at)

    def begun(self, flight: Flight) -> None:
        """Note that the operation is open, so that its other pieces may go."""
        order.begun(self._address, flight.number)

    def make_lane(self, flight: Flight, file: int) -> None:
        """Let compiled code submit what is left of an operation; `file` are the flags and file of its requests."""
        order.make_lane(self._address, flight.number, file, flight.base)

    def fail(self, flight: Flight) -> None:
        """Note that an operation has failed: its other pieces are passed over."""
        flight.is_failed = True
        self._is_failed[flight.number] = True

    def piece_done(self, submission: Submission) -> bool:
        """Give back the piece's buffer; return whether the operation has no other piece out or to come."""
        slot = submission.slot
        return bool(order.piece_done(self._address, submission.flight.number, NONE if slot is None else slot))

    def is_cut_short(self, flight: Flight) -> bool:
        """Return whether the run was stopped before the operation's last piece."""
        return self._next_piece[flight.number] < flight.pieces

    def done(self, flight: Flight, now_ns: int) -> None:
        """Note that an operation has completed, well or not, and release what waited for it."""
        del self._flights[flight.number]
        ready.done(self._address, flight.number, now_ns)
