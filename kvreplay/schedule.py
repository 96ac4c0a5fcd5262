"""Which piece of which operation may be submitted next: a state machine without clock, threads or I/O.

Rows go in trace order as far as their barriers allow. A write is offered only when its data lies in a buffer
(what `ahead` buffers hold, if it is longer), so that generation is not in an operation's latency. Every buffer that
holds data belongs to a row whose barriers are met, and one is always left for a write that has started: so
there is always something that can go on.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Self

from kvreplay.buffers import fills_ahead, pieces_a_fill
from kvreplay.plan import DELETE, WRITE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvreplay.engines import Job
    from kvreplay.plan import Plan


@dataclass(slots=True, eq=False)
class Fill:
    """A buffer to be filled with the data of consecutive pieces."""

    flight: Flight
    piece: int
    """The first that was not submitted."""
    end: int
    """The one after the last."""
    slot: int
    at: int
    """Where in the buffer the data of `piece` begins."""


_NONE: deque[Fill] = deque()
"""Shared by all that need no data."""


@dataclass(slots=True, eq=False)
class Flight:
    """One operation between becoming ready and completing."""

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
    filled: deque[Fill]
    """Buffers that hold its data."""
    filled_pieces: int = 0
    next_fill: int = 0
    next_submit: int = 0
    outstanding: int = 0
    is_offered: bool = False
    """Lies where rows wait for submission, or did."""
    is_started: bool = False
    is_begun: bool = False
    is_running: bool = False
    """Lies among the operations with more pieces to submit."""
    is_reserved: bool = False
    is_failed: bool = False
    lane: int = -1
    """Where its other pieces are submitted by compiled code; -1 if they are not."""
    handle: Any = None
    fd: int = -1
    """The open file that the object is an extent of; -1 if it has a file of its own, or none."""
    base: int = 0
    """Where in that file the object begins."""


class Submission:
    """A piece to be submitted now."""

    # Not a dataclass, and never changed but for `buffer`: one is made for each I/O, in the submitting thread.
    __slots__ = ("at", "buffer", "flight", "is_first", "length", "piece", "slot", "start")

    def __init__(self, flight: Flight, piece: int, slot: int | None, is_first: bool, start: int, length: int) -> None:
        """Name the piece `piece` of `flight`: `length` bytes from `start`; `slot` is its data's buffer, or None."""
        self.flight, self.piece, self.slot, self.is_first = flight, piece, slot, is_first
        self.start, self.length = start, length
        self.at = 0
        """Where in `slot` its data begins."""
        self.buffer = -1
        """Where a read goes; the engine's own."""


class Schedule:
    """The order in which the rows of a plan go to the tiers."""

    def __init__(
        self, plan: Plan, due_ns: Sequence[int] | None, moves: Sequence[bool], paddings: Sequence[int], *,
        depth: int, ahead: int, io_bytes: int, pieces_a_fill: int = 1,
    ) -> None:  # fmt: skip
        """Prepare to run `plan`: `due_ns` a row or None; by tier, whether data `moves` and its padding.

        Up to twice `ahead` buffers hold data before their operation is submitted, half of them for rows not yet
        due; a buffer holds up to `pieces_a_fill` pieces of one operation.
        """
        self.depth, self.rows, self.completed, self.in_flight = depth, len(plan), 0, 0
        self.slots = 2 * ahead + 2
        self._ahead = ahead
        self.fills_in_flight = 0
        """Writes that were submitted before all their data was made."""
        self.ready_ns: memoryview | None = None
        self._free = list(range(self.slots))
        self._pieces_a_fill = pieces_a_fill
        self.held = array("q", bytes(8 * self.slots))
        """By buffer: pieces whose data it holds."""
        self._io_bytes, self._due, self._moves, self._paddings = io_bytes, due_ns, moves, paddings
        self._op, self._tier, self._start = memoryview(plan.op), memoryview(plan.tier), memoryview(plan.start)
        self._offset, self._length = memoryview(plan.offset), memoryview(plan.length)
        self._unmet = memoryview(plan.unmet.copy())
        self._barriers = tuple(b.views() for b in plan.barriers)
        self._remaining = [memoryview(b.remaining.copy()) for b in plan.barriers]
        self._cursor, self.is_stopped = 0, False
        self._ready: list[int] = []
        self._to_fill: list[tuple[int, Flight]] = []
        self._to_start: list[tuple[int, Flight]] = []
        self._hungry: list[tuple[int, Flight]] = []
        self._running: deque[Flight] = deque()

    @classmethod
    def of(cls, job: Job, depth: int, io_bytes: int) -> Self:
        """Return the order of `job` for an engine of `depth` and `io_bytes`."""
        schedule = cls(
            job.plan, None if job.due_ns is None else memoryview(job.due_ns),
            [t is not None and not t.is_simulated for t in job.tiers],
            [1 if t is None else t.alignment for t in job.tiers],
            depth=depth, ahead=fills_ahead(depth, io_bytes), io_bytes=io_bytes,
            pieces_a_fill=pieces_a_fill(depth, io_bytes),
        )  # fmt: skip
        if job.record.ready_ns is not None:
            schedule.ready_ns = memoryview(job.record.ready_ns)
        return schedule

    @property
    def is_over(self) -> bool:
        """Whether no piece will be offered any more."""
        return self.is_stopped or self.completed == self.rows

    @property
    def free_slots(self) -> int:
        """How many data buffers are free."""
        return len(self._free)

    def stop(self) -> None:
        """Offer nothing more; what is in flight may still complete."""
        self.is_stopped = True

    def next_due(self, now_ns: int) -> int | None:
        """Return when the next piece may be submitted; None if that depends on what is in flight."""
        if self.is_over:
            return None
        if self._running:
            return now_ns
        self._advance()
        self._start_partly_filled()
        if not self._to_start or self.in_flight >= self.depth:
            return None
        return self._due_of(self._to_start, now_ns)

    def _due_of(self, heap: list[tuple[int, Flight]], now_ns: int) -> int:
        return now_ns if self._due is None else self._due[heap[0][0]]

    def take(self, now_ns: int) -> Submission | None:
        """Return a piece to submit now, if any: of a running operation first, else of the lowest row."""
        if self._running and not self.is_stopped:
            return self._piece(self._running[0], is_first=False)
        due = self.next_due(now_ns)
        if due is None or due > now_ns:
            return None
        flight = heappop(self._to_start)[1]
        flight.is_started = True
        self.in_flight += 1
        if flight.needs_data:
            if flight.filled_pieces < flight.pieces:
                self.fills_in_flight += 1
            if flight.next_fill < flight.pieces:
                self._to_fill = [entry for entry in self._to_fill if entry[1] is not flight]
                heapify(self._to_fill)
                heappush(self._hungry, (flight.row, flight))
        return self._piece(flight, is_first=True)

    def _piece(self, flight: Flight, *, is_first: bool) -> Submission:
        flight.outstanding += 1
        slot, at = None, 0
        piece = flight.next_submit
        if flight.needs_data:
            fill = flight.filled[0]
            piece, slot, at = fill.piece, fill.slot, fill.at
        flight.next_submit += 1
        start, end = flight.start, flight.end
        if flight.pieces > 1:
            first = (start // self._io_bytes + piece) * self._io_bytes
            start, end = max(start, first), min(end, first + self._io_bytes)
        submission = Submission(flight, piece, slot, is_first, start, end - start)
        if slot is not None:
            submission.at = at
            fill.piece, fill.at = piece + 1, at + end - start
            if fill.piece == fill.end:
                flight.filled.popleft()
        if not is_first and not self._has_piece(flight):
            self._running.popleft()
            flight.is_running = False
        return submission

    def _has_piece(self, flight: Flight) -> bool:
        return bool(flight.filled) if flight.needs_data else flight.next_submit < flight.pieces

    def begun(self, flight: Flight) -> None:
        """Note that the operation is open, so that its other pieces may go."""
        flight.is_begun = True
        self._run(flight)

    def _run(self, flight: Flight) -> None:
        if flight.is_begun and not flight.is_running and self._has_piece(flight):
            flight.is_running = True
            self._running.append(flight)

    def can_fill(self, now_ns: int) -> bool:
        """Return whether `take_fill` would return something now."""
        due = self.fill_due(now_ns)
        return due is not None and due <= now_ns

    def fill_due(self, now_ns: int) -> int | None:
        """Return when the next buffer may be filled; None if that depends on what is in flight."""
        if self.is_over:
            return None
        free = len(self._free)
        if self._hungry:
            return now_ns if free else None
        self._advance()
        if not self._to_fill:
            return None
        row = self._to_fill[0][0]
        if free > self._ahead + 1:
            return now_ns
        if free > 1:
            # The other half of the buffers is for rows that are due: none may wait for a future one.
            return now_ns if self._due is None else max(now_ns, self._due[row])
        return None

    def take_fill(self, now_ns: int) -> Fill | None:
        """Return the next buffer to fill, if one is free for it."""
        if not self.can_fill(now_ns):
            return None
        heap = self._hungry or self._to_fill
        flight = heap[0][1]
        piece = flight.next_fill
        count = min(self._pieces_a_fill, flight.pieces - piece)
        flight.next_fill += count
        if flight.next_fill == flight.pieces:
            heappop(heap)
        slot = self._free.pop()
        self.held[slot] = count
        return Fill(flight, piece, piece + count, slot, 0)

    def filled(self, fill: Fill) -> None:
        """Note that a buffer holds its data."""
        flight = fill.flight
        flight.filled.append(fill)
        flight.filled_pieces += fill.end - fill.piece
        if fill.piece == 0:
            flight.is_reserved = True
        if flight.is_started:
            self._run(flight)
        elif flight.filled_pieces >= min(flight.pieces, self._ahead * self._pieces_a_fill):
            self._offer(flight)

    def _offer(self, flight: Flight) -> None:
        if not flight.is_offered:
            flight.is_offered = True
            heappush(self._to_start, (flight.row, flight))

    def _start_partly_filled(self) -> None:
        """Offer writes whose data is not whole, if no buffer is left for it and none will come in time."""
        if self.in_flight or not self._to_fill or len(self._free) > 1:
            return
        if not self._to_start or self._due_of(self._to_start, 0) > self._due_of(self._to_fill, 0):
            for _, flight in self._to_fill:
                if flight.is_reserved:
                    self._offer(flight)

    def is_starved(self, now_ns: int) -> bool:
        """Return whether an operation that is due could go on if only its data were there."""
        if self.in_flight >= self.depth and not self._hungry:
            return False
        return bool(self._hungry) or (bool(self._to_fill) and self._due_of(self._to_fill, now_ns) <= now_ns)

    def give_slots(self, slots: list[int]) -> None:
        """Take back data buffers that compiled code has emptied."""
        self._free += slots

    def piece_done(self, submission: Submission) -> bool:
        """Give back the piece's buffer; return whether the operation has no other piece out or to come."""
        flight = submission.flight
        slot = submission.slot
        if slot is not None:
            self.held[slot] -= 1
            if not self.held[slot]:
                self._free.append(slot)
        flight.outstanding -= 1
        return flight.outstanding == 0 and (flight.next_submit >= flight.pieces or self.is_stopped)

    def done(self, flight: Flight, now_ns: int) -> None:
        """Note that an operation has completed, well or not, and release what waited for it."""
        self.in_flight -= 1
        self.completed += 1
        for barriers, remaining in zip(self._barriers, self._remaining, strict=True):
            group = barriers.group[flight.row]
            if group < 0:
                continue
            remaining[group] -= 1
            if remaining[group] == 0 and barriers.continues[group]:
                for at in range(barriers.starts[group + 1], barriers.starts[group + 2]):
                    self._release(barriers.members[at], now_ns)

    def _release(self, row: int, now_ns: int) -> None:
        self._unmet[row] -= 1
        if self._unmet[row] == 0:
            if self.ready_ns is not None:
                self.ready_ns[row] = now_ns
            # Rows that the cursor has not reached are found when it gets there.
            if row < self._cursor:
                heappush(self._ready, row)

    def _advance(self) -> None:
        """Move ready rows to where they wait for data or for submission, a bounded number ahead."""
        ahead = 2 * self.slots
        while self._ready:
            self._admit(heappop(self._ready))
        unmet, cursor, rows = self._unmet, self._cursor, self.rows
        while cursor < rows and len(self._to_start) + len(self._to_fill) < ahead:
            if unmet[cursor] == 0:
                self._admit(cursor)
            cursor += 1
        self._cursor = cursor

    def _admit(self, row: int) -> None:
        tier, op = self._tier[row], self._op[row]
        moves, padding = self._moves[tier], self._paddings[tier]
        start, needed_end = self._start[row], self._offset[row] + self._length[row]
        end = -(-needed_end // padding) * padding
        pieces = 0
        if moves and op != DELETE and end > start and needed_end > self._offset[row]:
            pieces = (end - 1) // self._io_bytes - start // self._io_bytes + 1
        flight = Flight(
            row,
            op,
            start,
            end,
            needed_end,
            max(1, pieces),
            pieces > 0,
            pieces > 0 and op == WRITE,
            deque() if pieces and op == WRITE else _NONE,
        )
        if flight.needs_data:
            heappush(self._to_fill, (row, flight))
        else:
            self._offer(flight)

    def bounds(self, flight: Flight, piece: int) -> tuple[int, int]:
        """Return a piece's first byte and the one after its last; pieces end at multiples of the I/O size."""
        first = flight.start // self._io_bytes + piece
        return max(flight.start, first * self._io_bytes), min(flight.end, (first + 1) * self._io_bytes)

    def fill_bounds(self, fill: Fill) -> tuple[int, int]:
        """Return the first byte that a fill makes and the one after its last."""
        return self.bounds(fill.flight, fill.piece)[0], self.bounds(fill.flight, fill.end - 1)[1]
