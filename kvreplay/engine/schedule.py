"""Which piece of which operation may be submitted next: a state machine without clock, threads or I/O.

Rows go in trace order as far as their barriers allow. A write is offered only when its data lies in a buffer
(what `ahead` buffers hold, if it is longer), so that generation is not in an operation's latency. Every buffer that
holds data belongs to a row whose barriers are met, and one is always left for a write that has started: so
there is always something that can go on. The machine itself is compiled, in `order`; this is its form for Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from kvreplay.data.buffers import fills_ahead, pieces_a_fill
from kvreplay.engine import order
from kvtrace.core.compiled import compile_announced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvreplay.engine.job import Job
    from kvreplay.plan.plan import Plan

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


@dataclass(slots=True, eq=False)
class Flight:
    """One operation between becoming ready and completing, where Python has to do with it."""

    number: int
    """Its own while it is under way."""
    row: int
    op: int
    start: int
    """First byte, aligned."""
    end: int
    """Byte after the last, aligned."""
    needed_end: int
    """Byte after the last that the trace asks for."""
    pieces: int
    has_io: bool
    """Whether bytes move; a delete, an empty range and a simulated tier have one piece without any."""
    needs_data: bool
    """Whether it writes generated data."""
    is_failed: bool = False
    handle: Any = None
    fd: int = -1
    """The open file that the object is an extent of; -1 if it has a file of its own, or none."""
    base: int = 0
    """Where in that file the object begins."""


class Submission:
    """A piece to be submitted now."""

    # Not a dataclass, and never changed but for `buffer`: one is made for each I/O, in the submitting thread.
    __slots__ = ("at", "buffer", "flight", "is_first", "length", "piece", "slot", "start")

    def __init__(
        self, flight: Flight, piece: int, slot: int | None, is_first: bool, start: int, length: int, at: int = 0
    ) -> None:  # fmt: skip
        """Name the piece `piece` of `flight`: `length` bytes from `start`; `slot` is its data's buffer, or None."""
        self.flight, self.piece, self.slot, self.is_first = flight, piece, slot, is_first
        self.start, self.length = start, length
        self.at = at
        """Where in `slot` its data begins."""
        self.buffer = -1
        """Where a read goes; the engine's own."""


class Schedule:
    """The order in which the rows of a plan go to the tiers."""

    def __init__(
        self, plan: Plan, due_ns: Any, moves: Sequence[bool], paddings: Sequence[int], *, depth: int, ahead: int,
        io_bytes: int, pieces_a_fill: int = 1, ready_ns: Any = None,
    ) -> None:  # fmt: skip
        """Prepare to run `plan`: `due_ns` (int64) a row or None; by tier, whether data `moves` and its padding.

        Up to twice `ahead` buffers hold data before their operation is submitted, half of them for rows not yet
        due; a buffer holds up to `pieces_a_fill` pieces of one operation. `ready_ns` (int64 a row) takes when the
        last operation that a row had to wait for completed.
        """
        import numpy as np

        from kvtrace.core.compiled import places_of

        self.rows, self.slots = len(plan), 2 * ahead + 2
        flights = max(1, min(self.rows, 2 * self.slots + depth + _READY_FLIGHTS, order.MOST_FLIGHTS))
        none = np.zeros(0, np.int64)
        counters: Any = np.zeros(order.COUNTER_WORDS, np.int64)
        for place, value in (
            (order.ROWS, self.rows), (order.DEPTH, depth), (order.AHEAD, ahead), (order.IO_BYTES, io_bytes),
            (order.A_FILL, pieces_a_fill), (order.SLOTS, self.slots), (order.FREE_SLOTS, self.slots),
            (order.FREE_FLIGHTS, flights),
        ):  # fmt: skip
            counters[place] = value
        of_rows = [plan.op, plan.tier, plan.offset, plan.length]
        of_rows += [none if times is None else times for times in (due_ns, ready_ns)]
        # Memory that is not touched is not taken: of heaps and flights, few places are used at a time.
        arrays = [
            counters, *(np.ascontiguousarray(column) for column in of_rows), plan.unmet.astype(np.int8),
            np.array(moves, np.int64), np.array(paddings, np.int64), np.zeros((flights, order.FLIGHT_WORDS), np.int64),
            np.arange(flights, dtype=np.int64)[::-1].copy(), np.arange(self.slots, dtype=np.int64),
            np.zeros(self.slots, np.int64), np.zeros((self.slots, order.FILL_WORDS), np.int64),
            np.empty(self.rows, np.int64), *(np.empty(flights, np.int64) for _ in range(4)),
            np.zeros(order.ANSWER_WORDS, np.int64),
        ]  # fmt: skip
        for barriers in plan.barriers:
            remaining = np.diff(barriers.starts).astype(np.int32)
            arrays += [barriers.group, barriers.members, barriers.starts, remaining, barriers.continues]
        self._arrays = arrays
        self.places = places_of(arrays)
        """For compiled code."""
        self.counters = memoryview(counters)
        """By the names of `order`."""
        self._table, self._fill = arrays[order.FLIGHTS], np.zeros(order.ASKED_WORDS, np.int64)
        self._answer = memoryview(arrays[order.ANSWER])
        self._flights: dict[int, Flight] = {}

    @classmethod
    def of(cls, job: Job, depth: int, io_bytes: int) -> Self:
        """Return the order of `job` for an engine of `depth` and `io_bytes`."""
        return cls(
            job.plan, job.due_ns, [t is not None and not t.is_simulated for t in job.tiers],
            [1 if t is None else t.alignment for t in job.tiers], depth=depth, ahead=fills_ahead(depth, io_bytes),
            io_bytes=io_bytes, pieces_a_fill=pieces_a_fill(depth, io_bytes), ready_ns=job.record.ready_ns,
        )  # fmt: skip

    @property
    def completed(self) -> int:
        """How many rows have completed."""
        return self.counters[order.COMPLETED]

    @property
    def is_over(self) -> bool:
        """Whether no piece will be offered any more."""
        return self.counters[order.IS_STOPPED] != 0 or self.completed == self.rows

    @property
    def fills_in_flight(self) -> int:
        """Writes that were submitted before all their data was made."""
        return self.counters[order.SHORT_STARTS]

    def stop(self) -> None:
        """Offer nothing more; what is in flight may still complete."""
        self.counters[order.IS_STOPPED] = 1

    def flight(self, number: int) -> Flight:
        """Return the operation under way that has this number."""
        found = self._flights.get(number)
        if found is None:
            row, op, start, end, needed_end, pieces, has_io, needs_data = self._table[
                number, : order.FILLED_PIECES
            ].tolist()
            found = Flight(number, row, op, start, end, needed_end, pieces, has_io == 1, needs_data == 1)
            self._flights[number] = found
        return found

    def next_due(self, now_ns: int) -> int | None:
        """Return when the next piece may be submitted; None if that depends on what is in flight."""
        due: int = order.next_due(self.places, now_ns)
        return None if due == order.NONE else due

    def take(self, now_ns: int) -> Submission | None:
        """Return a piece to submit now, if any: of a running operation first, else of the lowest row."""
        if not order.take(self.places, now_ns):
            return None
        number, piece, slot, is_first, start, length, at = self._answer
        return Submission(self.flight(number), piece, None if slot < 0 else slot, is_first == 1, start, length, at)

    def begun(self, flight: Flight) -> None:
        """Note that the operation is open, so that its other pieces may go."""
        order.begun(self.places, flight.number)

    def make_lane(self, flight: Flight, file: int) -> None:
        """Let compiled code submit what is left of an operation; `file` are the flags and file of its requests."""
        order.make_lane(self.places, flight.number, file, flight.base, False)

    def fill_due(self, now_ns: int) -> int | None:
        """Return when the next buffer may be filled; None if that depends on what is in flight."""
        due: int = order.fill_due(self.places, now_ns)
        return None if due == order.NONE else due

    def take_fill(self, now_ns: int) -> Fill | None:
        """Return the next buffer to fill, if one is free for it."""
        return Fill._make(self._fill.tolist()) if order.take_fill(self.places, now_ns, self._fill) else None

    def filled(self, fill: Fill) -> None:
        """Note that a buffer holds its data."""
        order.filled(self.places, fill.slot)

    def fail(self, flight: Flight) -> None:
        """Note that an operation has failed: its other pieces are passed over."""
        flight.is_failed = True
        self._table[flight.number, order.IS_FAILED] = 1

    def is_starved(self, now_ns: int) -> bool:
        """Return whether an operation that is due could go on if only its data were there."""
        return bool(order.is_starved(self.places, now_ns))

    def piece_done(self, submission: Submission) -> bool:
        """Give back the piece's buffer; return whether the operation has no other piece out or to come."""
        slot = submission.slot
        return bool(order.piece_done(self.places, submission.flight.number, order.NONE if slot is None else slot))

    def is_cut_short(self, flight: Flight) -> bool:
        """Return whether the run was stopped between two of the operation's pieces."""
        return flight.pieces > 1 and bool(self._table[flight.number, order.NEXT_PIECE] < flight.pieces)

    def done(self, flight: Flight, now_ns: int) -> None:
        """Note that an operation has completed, well or not, and release what waited for it."""
        del self._flights[flight.number]
        order.done(self.places, flight.number, now_ns)


def warm() -> None:
    """Compile before anything is measured, or load what an earlier run has compiled."""
    with compile_announced():
        schedule = Schedule(two_writes(), None, [True], [1], depth=1, ahead=1, io_bytes=1)
        schedule.fill_due(0)
        while not schedule.is_over:
            schedule.is_starved(0)
            while (fill := schedule.take_fill(0)) is not None:
                schedule.filled(fill)
            schedule.next_due(0)
            submission = schedule.take(0)
            assert submission is not None, "nothing is in flight"
            if submission.is_first:
                schedule.begun(submission.flight)
            if schedule.piece_done(submission):
                schedule.done(submission.flight, 0)


def two_writes() -> Plan:
    """Return a plan to be compiled with: two writes of two bytes, one after the other."""
    from pathlib import Path

    import numpy as np

    from kvreplay.plan.plan import WRITE, build_plan

    zeros, none = np.zeros(2, np.int64), np.full(2, -1, np.int64)
    rows = {
        "row": np.arange(2), "ts_ns": zeros, "op": zeros + WRITE, "tier": zeros, "object_id": zeros,
        "offset_bytes": zeros, "length_bytes": zeros + 2, "request_id": none, "stage": none,
    }  # fmt: skip
    return build_plan(rows, [1], Path())
