"""Which piece of which operation goes next: a state machine without clock, threads or I/O, compiled.

`schedule` is its form for Python and says what it promises. All functions take `p`, the places of its arrays.
"""

from __future__ import annotations

from typing import Any

from kvreplay.plan.plan import DELETE, WRITE
from kvtrace.core.compiled import holding, int8s, int32s, int64s, table

NONE = -1

(COUNTERS, OP, TIER, OFFSET, LENGTH, DUE, READY_NS, UNMET, MOVES, PADDINGS, FLIGHTS, FREE_FLIGHT, FREE_SLOT, HELD,
 FILLS, READY_HEAP, FILL_HEAP, START_HEAP, HUNGRY_HEAP, RUNNING_QUEUE, ANSWER, BARRIERS) = range(22)  # fmt: skip
"""The arrays: of the plan (`DUE` and `READY_NS` may be empty), by tier, then those of the machine itself."""
GROUP, MEMBERS, STARTS, REMAINING, CONTINUES, BARRIER_ARRAYS = range(6)
"""Those of each kind of barrier, from `BARRIERS` on."""
BARRIER_KINDS = 2

(ROWS, DEPTH, AHEAD, IO_BYTES, A_FILL, SLOTS, CURSOR, COMPLETED, IN_FLIGHT, IS_STOPPED, SHORT_STARTS, FREE_SLOTS,
 FREE_FLIGHTS, READY, TO_FILL, TO_START, HUNGRY, RUNNING, RUNNING_AT, AVAILABLE, COUNTER_WORDS) = range(21)  # fmt: skip
"""Places of `COUNTERS`; `AVAILABLE`: pieces of lanes that may go."""
(ROW, IS_OP, FIRST, END, NEEDED_END, PIECES, HAS_IO, NEEDS_DATA, FILLED_PIECES, NEXT_FILL, NEXT_PIECE, OUTSTANDING,
 IS_OFFERED, IS_STARTED, IS_BEGUN, IS_RUNNING, IS_RESERVED, IS_FAILED, FIRST_FILL, LAST_FILL, IS_LANE, IS_OWN, FILE,
 BASE, LANE_OUT, FLIGHT_WORDS) = range(26)  # fmt: skip
"""Columns of `FLIGHTS`: the operations between becoming ready and completing.

A lane is one whose pieces `engines.lanes` submits; it is `OWN` if that finishes with it, too.
"""
FILL_FLIGHT, FILL_PIECE, FILL_END, FILL_AT, FILL_NEXT, FILL_WORDS = range(6)
"""Columns of `FILLS`, by buffer: the data it holds or gets; `FILL_AT` is where its next piece begins."""
(A_FLIGHT, A_PIECE, A_SLOT, A_IS_FIRST, A_START, A_LENGTH, A_AT, ANSWER_WORDS) = range(8)
"""What `take` answers."""
(ASKED_FLIGHT, ASKED_ROW, ASKED_PIECE, ASKED_SLOT, ASKED_START, ASKED_END, ASKED_OBJECT_END, ASKED_WORDS) = range(8)
"""What `take_fill` answers: the fields of `schedule.Fill`."""
_FLIGHT_BITS = 22
_FLIGHT_MASK = (1 << _FLIGHT_BITS) - 1
MOST_FLIGHTS = 1 << _FLIGHT_BITS
"""In heaps, an operation is its row, then its place among the flights."""


@holding
def _push(heap: Any, count: int, entry: int) -> None:
    at = count
    while at and heap[(at - 1) >> 1] > entry:
        heap[at] = heap[(at - 1) >> 1]
        at = (at - 1) >> 1
    heap[at] = entry


@holding
def _sift(heap: Any, count: int, at: int, entry: int) -> None:
    """Put `entry` at `at` of a heap of `count` or below it."""
    while True:
        child = 2 * at + 1
        if child >= count:
            break
        if child + 1 < count and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= entry:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = entry


@holding
def _pop(heap: Any, count: int) -> int:
    """Take the least of `count` entries out."""
    least = heap[0]
    _sift(heap, count - 1, 0, heap[count - 1])
    return int(least)


@holding
def _remove(heap: Any, count: int, entry: int) -> None:
    """Take `entry` out of `count`."""
    kept = 0
    for i in range(count):
        if heap[i] != entry:
            heap[kept] = heap[i]
            kept += 1
    for at in range(kept // 2 - 1, -1, -1):
        _sift(heap, kept, at, heap[at])


@holding
def bounds(flights: Any, flight: int, piece: int, io_bytes: int) -> tuple[int, int]:
    """Return a piece's first byte and the one after its last; pieces end at multiples of the I/O size."""
    first = (flights[flight, FIRST] // io_bytes + piece) * io_bytes
    return max(flights[flight, FIRST], first), min(flights[flight, END], first + io_bytes)


@holding
def is_over(c: Any) -> bool:
    """Return whether no piece will be offered any more."""
    return c[IS_STOPPED] != 0 or c[COMPLETED] == c[ROWS]


@holding
def _due_of(p: Any, entry: int, now: int) -> int:
    due = int64s(p, DUE)
    return due[entry >> _FLIGHT_BITS] if len(due) else now


@holding
def _offer(p: Any, flight: int) -> None:
    c, flights = int64s(p, COUNTERS), table(p, FLIGHTS)
    if not flights[flight, IS_OFFERED]:
        flights[flight, IS_OFFERED] = 1
        _push(int64s(p, START_HEAP), c[TO_START], flights[flight, ROW] << _FLIGHT_BITS | flight)
        c[TO_START] += 1


@holding
def _admit(p: Any, row: int) -> None:
    """Make a ready row a flight, which waits for data or for submission."""
    c, flights, tier = int64s(p, COUNTERS), table(p, FLIGHTS), int8s(p, TIER)[row]
    op, offset, padding = int8s(p, OP)[row], int64s(p, OFFSET)[row], int64s(p, PADDINGS)[tier]
    start = offset // padding * padding
    needed_end = offset + int64s(p, LENGTH)[row]
    end = -(-needed_end // padding) * padding
    pieces = 0
    if int64s(p, MOVES)[tier] and op != DELETE and end > start and needed_end > offset:
        pieces = (end - 1) // c[IO_BYTES] - start // c[IO_BYTES] + 1
    c[FREE_FLIGHTS] -= 1
    flight = int64s(p, FREE_FLIGHT)[c[FREE_FLIGHTS]]
    f = flights[flight]
    f[:] = 0
    f[ROW], f[IS_OP], f[FIRST], f[END], f[NEEDED_END] = row, op, start, end, needed_end
    f[PIECES], f[HAS_IO], f[NEEDS_DATA] = max(1, pieces), pieces > 0, pieces > 0 and op == WRITE
    f[FIRST_FILL] = f[LAST_FILL] = NONE
    if f[NEEDS_DATA]:
        _push(int64s(p, FILL_HEAP), c[TO_FILL], row << _FLIGHT_BITS | flight)
        c[TO_FILL] += 1
    else:
        _offer(p, flight)


@holding
def _advance(p: Any) -> None:
    """Move ready rows to where they wait for data or for submission, a bounded number ahead."""
    c = int64s(p, COUNTERS)
    ready = int64s(p, READY_HEAP)
    while c[READY] and c[FREE_FLIGHTS]:
        row = _pop(ready, c[READY])
        c[READY] -= 1
        _admit(p, row)
    unmet, ahead = int8s(p, UNMET), 2 * c[SLOTS]
    while c[CURSOR] < c[ROWS] and c[TO_START] + c[TO_FILL] < ahead and c[FREE_FLIGHTS]:
        if unmet[c[CURSOR]] == 0:
            _admit(p, c[CURSOR])
        c[CURSOR] += 1


@holding
def _start_partly_filled(p: Any) -> None:
    """Offer writes whose data is not whole, if no buffer is left for it and none will come in time."""
    c = int64s(p, COUNTERS)
    if c[IN_FLIGHT] or not c[TO_FILL] or c[FREE_SLOTS] > 1:
        return
    heap, flights = int64s(p, FILL_HEAP), table(p, FLIGHTS)
    if c[TO_START] and _due_of(p, int64s(p, START_HEAP)[0], 0) <= _due_of(p, heap[0], 0):
        return
    for i in range(c[TO_FILL]):
        flight = heap[i] & _FLIGHT_MASK
        if flights[flight, IS_RESERVED]:
            _offer(p, flight)


@holding
def next_due(p: Any, now: int) -> int:
    """Return when the next piece may be submitted; NONE if that depends on what is in flight."""
    c = int64s(p, COUNTERS)
    if is_over(c):
        return NONE
    if c[RUNNING]:
        return now
    _advance(p)
    _start_partly_filled(p)
    if not c[TO_START] or c[IN_FLIGHT] >= c[DEPTH]:
        return NONE
    return _due_of(p, int64s(p, START_HEAP)[0], now)


@holding
def next_flight(p: Any, now: int) -> int:
    """Return the operation that may start now and comes next; NONE if none may, or a running one comes first."""
    c = int64s(p, COUNTERS)
    if c[RUNNING]:
        return NONE
    due = next_due(p, now)
    if due == NONE or due > now:
        return NONE
    return int64s(p, START_HEAP)[0] & _FLIGHT_MASK


@holding
def start_next(p: Any) -> int:
    """Note that the operation that comes next is started; return it."""
    c, flights = int64s(p, COUNTERS), table(p, FLIGHTS)
    entry = _pop(int64s(p, START_HEAP), c[TO_START])
    c[TO_START] -= 1
    flight = entry & _FLIGHT_MASK
    flights[flight, IS_STARTED] = 1
    c[IN_FLIGHT] += 1
    if flights[flight, NEEDS_DATA]:
        if flights[flight, FILLED_PIECES] < flights[flight, PIECES]:
            c[SHORT_STARTS] += 1
        if flights[flight, NEXT_FILL] < flights[flight, PIECES]:
            _remove(int64s(p, FILL_HEAP), c[TO_FILL], entry)
            c[TO_FILL] -= 1
            _push(int64s(p, HUNGRY_HEAP), c[HUNGRY], entry)
            c[HUNGRY] += 1
    return flight


@holding
def take(p: Any, now: int) -> bool:
    """Put a piece to submit now into `ANSWER`, of a running operation first, else of the lowest row; False if none."""
    c = int64s(p, COUNTERS)
    if c[RUNNING] and not c[IS_STOPPED]:
        _answer(p, int64s(p, RUNNING_QUEUE)[c[RUNNING_AT]], False)
        return True
    if next_flight(p, now) == NONE:
        return False
    _answer(p, start_next(p), True)
    return True


@holding
def _answer(p: Any, flight: int, is_first: bool) -> None:
    c, flights, answer = int64s(p, COUNTERS), table(p, FLIGHTS), int64s(p, ANSWER)
    f = flights[flight]
    f[OUTSTANDING] += 1
    piece, slot, at = f[NEXT_PIECE], NONE, 0
    if f[NEEDS_DATA]:
        slot = f[FIRST_FILL]
        fills = table(p, FILLS)
        piece, at = fills[slot, FILL_PIECE], fills[slot, FILL_AT]
    f[NEXT_PIECE] += 1
    start, end = f[FIRST], f[END]
    if f[PIECES] > 1:
        start, end = bounds(flights, flight, piece, c[IO_BYTES])
    if slot != NONE:
        use_fill(p, flight, end - start)
    answer[A_FLIGHT], answer[A_PIECE], answer[A_SLOT], answer[A_IS_FIRST] = flight, piece, slot, is_first
    answer[A_START], answer[A_LENGTH], answer[A_AT] = start, end - start, at
    if not is_first and not has_piece(flights, flight):
        f[IS_RUNNING] = 0
        c[RUNNING] -= 1
        c[RUNNING_AT] = (c[RUNNING_AT] + 1) % len(int64s(p, RUNNING_QUEUE))


@holding
def use_fill(p: Any, flight: int, length: int) -> None:
    """Note that the next piece of an operation's data, `length` bytes, goes."""
    flights, fills = table(p, FLIGHTS), table(p, FILLS)
    slot = flights[flight, FIRST_FILL]
    fills[slot, FILL_PIECE] += 1
    fills[slot, FILL_AT] += length
    if fills[slot, FILL_PIECE] == fills[slot, FILL_END]:
        flights[flight, FIRST_FILL] = fills[slot, FILL_NEXT]


@holding
def has_piece(flights: Any, flight: int) -> bool:
    """Return whether a piece of a started operation may go."""
    if flights[flight, NEEDS_DATA]:
        return flights[flight, FIRST_FILL] != NONE
    return flights[flight, NEXT_PIECE] < flights[flight, PIECES]


@holding
def begun(p: Any, flight: int) -> None:
    """Note that the operation is open, so that its other pieces may go."""
    table(p, FLIGHTS)[flight, IS_BEGUN] = 1
    _run(p, flight)


@holding
def _run(p: Any, flight: int) -> None:
    c, flights = int64s(p, COUNTERS), table(p, FLIGHTS)
    if flights[flight, IS_BEGUN] and not flights[flight, IS_RUNNING] and has_piece(flights, flight):
        flights[flight, IS_RUNNING] = 1
        queue = int64s(p, RUNNING_QUEUE)
        queue[(c[RUNNING_AT] + c[RUNNING]) % len(queue)] = flight
        c[RUNNING] += 1


@holding
def make_lane(p: Any, flight: int, file: int, base: int, is_own: bool) -> None:
    """Let `engines.lanes` submit what is left of an operation, whose object begins at `base` of an open file.

    To the schedule all its pieces are one.
    """
    c, f = int64s(p, COUNTERS), table(p, FLIGHTS)[flight]
    f[IS_LANE], f[IS_OWN], f[FILE], f[BASE], f[LANE_OUT] = 1, is_own, file, base, 0
    f[OUTSTANDING] += 1
    if not f[NEEDS_DATA]:
        c[AVAILABLE] += f[PIECES] - f[NEXT_PIECE]
        return
    fills, slot = table(p, FILLS), f[FIRST_FILL]
    while slot != NONE:
        c[AVAILABLE] += fills[slot, FILL_END] - fills[slot, FILL_PIECE]
        slot = fills[slot, FILL_NEXT]


@holding
def fill_due(p: Any, now: int) -> int:
    """Return when the next buffer may be filled; NONE if that depends on what is in flight."""
    c = int64s(p, COUNTERS)
    if is_over(c):
        return NONE
    if c[HUNGRY]:
        return now if c[FREE_SLOTS] else NONE
    _advance(p)
    if not c[TO_FILL]:
        return NONE
    if c[FREE_SLOTS] > c[AHEAD] + 1:
        return now
    if c[FREE_SLOTS] > 1:
        # The other half of the buffers is for rows that are due: none may wait for a future one.
        return max(now, _due_of(p, int64s(p, FILL_HEAP)[0], now))
    return NONE


@holding
def take_fill(p: Any, now: int, fill: Any) -> bool:
    """Take the next buffer to fill, if one is free for it; `fill` gets the answer."""
    due = fill_due(p, now)
    if due == NONE or due > now:
        return False
    c, flights = int64s(p, COUNTERS), table(p, FLIGHTS)
    count_at = HUNGRY if c[HUNGRY] else TO_FILL
    heap = int64s(p, HUNGRY_HEAP) if c[HUNGRY] else int64s(p, FILL_HEAP)
    flight = heap[0] & _FLIGHT_MASK
    f = flights[flight]
    piece = f[NEXT_FILL]
    count = min(c[A_FILL], f[PIECES] - piece)
    f[NEXT_FILL] += count
    if f[NEXT_FILL] == f[PIECES]:
        _pop(heap, c[count_at])
        c[count_at] -= 1
    c[FREE_SLOTS] -= 1
    slot = int64s(p, FREE_SLOT)[c[FREE_SLOTS]]
    int64s(p, HELD)[slot] = count
    held = table(p, FILLS)[slot]
    held[FILL_FLIGHT], held[FILL_PIECE], held[FILL_END] = flight, piece, piece + count
    held[FILL_AT], held[FILL_NEXT] = 0, NONE
    start, end = f[FIRST], f[END]
    if f[PIECES] > 1:
        start = bounds(flights, flight, piece, c[IO_BYTES])[0]
        end = bounds(flights, flight, piece + count - 1, c[IO_BYTES])[1]
    fill[ASKED_FLIGHT], fill[ASKED_ROW], fill[ASKED_PIECE], fill[ASKED_SLOT] = flight, f[ROW], piece, slot
    fill[ASKED_START], fill[ASKED_END], fill[ASKED_OBJECT_END] = start, end, f[END]
    return True


@holding
def filled(p: Any, slot: int) -> None:
    """Note that a buffer holds its data."""
    c, fills = int64s(p, COUNTERS), table(p, FILLS)
    flight = fills[slot, FILL_FLIGHT]
    f = table(p, FLIGHTS)[flight]
    if f[FIRST_FILL] == NONE:
        f[FIRST_FILL] = slot
    else:
        fills[f[LAST_FILL], FILL_NEXT] = slot
    f[LAST_FILL] = slot
    count = fills[slot, FILL_END] - fills[slot, FILL_PIECE]
    f[FILLED_PIECES] += count
    if fills[slot, FILL_PIECE] == 0:
        f[IS_RESERVED] = 1
    if f[IS_LANE]:
        c[AVAILABLE] += count
    elif f[IS_STARTED]:
        _run(p, flight)
    elif f[FILLED_PIECES] >= min(f[PIECES], c[AHEAD] * c[A_FILL]):
        _offer(p, flight)


@holding
def is_starved(p: Any, now: int) -> bool:
    """Return whether an operation that is due could go on if only its data were there."""
    c = int64s(p, COUNTERS)
    if c[HUNGRY]:
        return True
    if c[IN_FLIGHT] >= c[DEPTH] or not c[TO_FILL]:
        return False
    return _due_of(p, int64s(p, FILL_HEAP)[0], now) <= now


@holding
def free_data(p: Any, slot: int) -> None:
    """Note that a piece's data is needed no more."""
    c, held = int64s(p, COUNTERS), int64s(p, HELD)
    held[slot] -= 1
    if not held[slot]:
        int64s(p, FREE_SLOT)[c[FREE_SLOTS]] = slot
        c[FREE_SLOTS] += 1


@holding
def piece_done(p: Any, flight: int, slot: int) -> bool:
    """Give back the piece's buffer, if any; return whether the operation has no other piece out or to come."""
    if slot != NONE:
        free_data(p, slot)
    f = table(p, FLIGHTS)[flight]
    f[OUTSTANDING] -= 1
    return f[OUTSTANDING] == 0 and (f[NEXT_PIECE] >= f[PIECES] or int64s(p, COUNTERS)[IS_STOPPED] != 0)


@holding
def done(p: Any, flight: int, now: int) -> None:
    """Note that an operation has completed, well or not, and release what waited for it."""
    c = int64s(p, COUNTERS)
    row = table(p, FLIGHTS)[flight, ROW]
    c[IN_FLIGHT] -= 1
    c[COMPLETED] += 1
    int64s(p, FREE_FLIGHT)[c[FREE_FLIGHTS]] = flight
    c[FREE_FLIGHTS] += 1
    for kind in range(BARRIER_KINDS):
        at = BARRIERS + kind * BARRIER_ARRAYS
        group = int32s(p, at + GROUP)[row]
        if group < 0:
            continue
        remaining = int32s(p, at + REMAINING)
        remaining[group] -= 1
        if remaining[group] == 0 and int8s(p, at + CONTINUES)[group]:
            starts, members = int32s(p, at + STARTS), int32s(p, at + MEMBERS)
            for i in range(starts[group + 1], starts[group + 2]):
                _release(p, int(members[i]), now)


@holding
def _release(p: Any, row: int, now: int) -> None:
    unmet = int8s(p, UNMET)
    unmet[row] -= 1
    if unmet[row] == 0:
        ready_ns = int64s(p, READY_NS)
        if len(ready_ns):
            ready_ns[row] = now
        c = int64s(p, COUNTERS)
        # Rows that the cursor has not reached are found when it gets there.
        if row < c[CURSOR]:
            _push(int64s(p, READY_HEAP), c[READY], row)
            c[READY] += 1
