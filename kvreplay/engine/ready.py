"""Which rows are ready: they wait for no other, and become operations under way ("flights"); compiled.

And what those wait for that do not go.
"""

from __future__ import annotations

from kvreplay.engine.tables import (
    FLIGHT_BITS,
    MOST_FLIGHTS,
    NONE,
    count_of,
    flights_at,
    heap_item,
    heap_least,
    heap_pop,
    heap_push,
    job_at,
    lanes_at,
    stack_put,
    stack_take,
)
from kvreplay.engine.waiting.groups import enter, leave
from kvreplay.plan.plan import DELETE, WRITE
from kvtrace.core.compiled import holding, inner, int8s, int32s, int64s

UNREAD_NS = 200_000
"""So long nothing is done if the next rows are not there yet."""
_LOOK_ROWS = 256
"""Rows that are looked at before anything else is: some microseconds, by which a time stamp may come late."""


@inner
def is_over(address: int) -> bool:
    """Return whether no piece will be offered any more."""
    job = job_at(address)
    return job.is_stopped or job.completed == job.rows


@inner
def entry_of(row: int, number: int) -> int:
    """Return what stands for an operation in heaps, the lowest row first."""
    return row << FLIGHT_BITS | number


@inner
def number_of(entry: int) -> int:
    """Return the operation's number."""
    return entry & (MOST_FLIGHTS - 1)


@inner
def due_of(address: int, entry: int, now: int) -> int:
    """Return when the operation is due; `now` in a closed loop."""
    due = job_at(address).due
    return int64s(due)[entry >> FLIGHT_BITS] if due else now


@inner
def offer(address: int, number: int) -> None:
    """Let an operation start when its turn comes."""
    job = job_at(address)
    flight = flights_at(job.flights)[number]
    if not flight.is_offered:
        flight.is_offered = True
        heap_push(job.to_start, entry_of(flight.row, number))


@inner
def has_piece(address: int, number: int) -> bool:
    """Return whether a piece of a started operation may go."""
    flight = flights_at(job_at(address).flights)[number]
    if flight.needs_data:
        return flight.first_fill != NONE
    return flight.next_piece < flight.pieces


@inner
def may_run(address: int, number: int) -> bool:
    """Return whether a started operation's next piece may go now: there is one, and a bulk operation's depth allows."""
    job = job_at(address)
    flight = flights_at(job.flights)[number]
    return has_piece(address, number) and (not flight.is_bulk or flight.outstanding < job.bulk_depth)


@inner
def resume(address: int, number: int) -> None:
    """Let an open operation's pieces go, if there are any."""
    job = job_at(address)
    flight = flights_at(job.flights)[number]
    if flight.is_begun and not flight.is_running and may_run(address, number):
        flight.is_running = True
        int64s(job.running_ring)[(job.running_first + job.running) % job.flights_size] = number
        job.running += 1


@inner
def bounds(address: int, number: int, piece: int) -> tuple[int, int]:
    """Return a piece's first byte and the one after its last; pieces end at multiples of the I/O size."""
    job = job_at(address)
    flight = flights_at(job.flights)[number]
    start = (flight.first // job.io_bytes + piece) * job.io_bytes
    return max(flight.first, start), min(flight.end, start + job.io_bytes)


@inner
def _take_up(address: int, row: int) -> int:
    """Make a row an operation under way; return its number."""
    job = job_at(address)
    tier, op, offset = int8s(job.tier)[row], int8s(job.op)[row], int64s(job.offset)[row]
    padding = int64s(job.paddings)[tier]
    start = offset // padding * padding
    needed_end = offset + int64s(job.length)[row]
    end = -(-needed_end // padding) * padding
    pieces = 0
    if int64s(job.moves)[tier] and op != DELETE and end > start and needed_end > offset:
        pieces = (end - 1) // job.io_bytes - start // job.io_bytes + 1
    number = stack_take(job.free_flights)
    flight = flights_at(job.flights)[number]
    flight.row, flight.op = row, op
    flight.first, flight.end, flight.needed_end = start, end, needed_end
    flight.pieces, flight.has_io = max(1, pieces), pieces > 0
    flight.needs_data = flight.has_io and op == WRITE
    flight.filled_pieces = flight.next_fill = flight.next_piece = flight.outstanding = 0
    flight.first_fill = flight.last_fill = flight.first_slot = NONE
    flight.is_offered = flight.is_started = flight.is_begun = flight.is_running = False
    flight.is_reserved = flight.is_failed = flight.is_lane = flight.is_copied = flight.is_own = flight.is_file = False
    flight.is_unready = flight.lacks_room = flight.has_first = False
    flight.is_bulk, flight.is_waiting, flight.held_fills = False, False, 0
    if job.bulk:
        flight.is_bulk = flight.pieces > 1 and int8s(job.bulk)[row] != 0
    return number


@inner
def _admit(address: int, row: int) -> None:
    """Let a ready row be an operation under way, which waits for data or for its turn."""
    job = job_at(address)
    number = int32s(job.prepared)[row] - 1
    if number >= 0:
        _end_unready(address, number)
    else:
        number = _take_up(address, row)
        if flights_at(job.flights)[number].needs_data:
            heap_push(job.to_fill, entry_of(row, number))
        else:
            offer(address, number)


@inner
def _end_unready(address: int, number: int) -> None:
    """Let an operation go on whose data was made while it still waited, or some of it."""
    job = job_at(address)
    flight = flights_at(job.flights)[number]
    flight.is_unready = False
    job.prepared_slots -= -(-flight.next_fill // job.pieces_a_fill)
    if flight.next_fill < flight.pieces:
        heap_push(job.to_fill, entry_of(flight.row, number))
    else:
        note_making(address, number)
    if flight.lacks_room and flight.has_first:
        heap_push(job.to_room, entry_of(flight.row, number))
    offer_filled(address, number)


@inner
def note_making(address: int, number: int) -> None:
    """Note that all data of an operation is asked for."""
    job = job_at(address)
    # What finds no place is not counted as waiting; those that were offered since leave when they come first.
    if count_of(job.making) < job.flights_size:
        heap_push(job.making, entry_of(flights_at(job.flights)[number].row, number))


@inner
def offer_filled(address: int, number: int) -> None:
    """Offer a write that has room and its data, or as much of it as is made before it starts."""
    job = job_at(address)
    flight = flights_at(job.flights)[number]
    is_filled = flight.is_bulk or flight.filled_pieces >= min(flight.pieces, job.early * job.pieces_a_fill)
    if is_filled and flight.is_reserved and not flight.is_unready:
        offer(address, number)


@inner
def next_to_prepare(address: int) -> int:
    """Return the operation of the row whose data is made next of those that are not ready."""
    job = job_at(address)
    row = heap_least(job.to_prepare)
    prepared = int32s(job.prepared)
    if not prepared[row]:
        number = _take_up(address, row)
        flights_at(job.flights)[number].is_unready = True
        prepared[row] = number + 1
    return prepared[row] - 1


@inner
def advance(address: int) -> None:
    """Make ready rows operations, a bounded number ahead."""
    job = job_at(address)
    while count_of(job.ready) and count_of(job.free_flights):
        _admit(address, heap_pop(job.ready))
    loaded = int64s(job.loaded)[0]
    ahead, last = 2 * job.slots, min(loaded, job.cursor + _LOOK_ROWS)
    while job.cursor < last and count_of(job.to_start) + count_of(job.to_fill) < ahead and count_of(job.free_flights):
        if enter(address, job.cursor):
            _admit(address, job.cursor)
        job.cursor += 1
    job.is_looking = job.cursor == last < loaded


@inner
def is_unread(address: int) -> bool:
    """Return whether the next row is not there yet."""
    job = job_at(address)
    return job.cursor < job.rows and job.cursor == int64s(job.loaded)[0]


@holding
def done(address: int, number: int, now: int) -> None:
    """Note that an operation has completed, well or not, and release what waited for it."""
    job = job_at(address)
    row = flights_at(job.flights)[number].row
    job.in_flight -= 1
    job.completed += 1
    stack_put(job.free_flights, number)
    leave(address, row, now)


@inner
def must_ask(address: int, now: int) -> bool:
    """Return whether a started or due write lacks data that is not asked for."""
    return _lacks_asking(address, now) or _is_bulk_starved(address)


@inner
def _lacks_asking(address: int, now: int) -> bool:
    """Return the same of writes that are not bulk."""
    job = job_at(address)
    if count_of(job.hungry):
        return True
    if job.in_flight >= job.depth or not count_of(job.to_fill):
        return False
    return due_of(address, heap_least(job.to_fill), now) <= now


@inner
def is_starved(address: int, now: int) -> bool:
    """Return whether a started or due write lacks data, asked for or not, or room."""
    return _lacks_data(address, now) or _is_bulk_starved(address)


@inner
def _lacks_data(address: int, now: int) -> bool:
    """Return the same of writes that are not bulk, which wait for no data of those."""
    job = job_at(address)
    if _lacks_asking(address, now):
        return True
    return job.in_flight < job.depth and _is_making(address) and due_of(address, heap_least(job.making), now) <= now


@inner
def _is_making(address: int) -> bool:
    """Return whether there is a write all of whose data is asked for, and not there."""
    job = job_at(address)
    while count_of(job.making):
        entry = heap_least(job.making)
        flight = flights_at(job.flights)[number_of(entry)]
        if flight.row == entry >> FLIGHT_BITS and not flight.is_offered:
            return True
        heap_pop(job.making)
    return False


@inner
def _is_bulk_starved(address: int) -> bool:
    """Return whether a started bulk write could have more in flight, but for its data."""
    job = job_at(address)
    for i in range(count_of(job.bulk_hungry)):
        flight = flights_at(job.flights)[number_of(heap_item(job.bulk_hungry, i))]
        out = flight.lane_out if flight.is_lane else flight.outstanding
        if flight.first_fill == NONE and out < job.bulk_depth:
            return True
    return False


@inner
def _is_held(address: int, now: int) -> bool:
    """Return whether something due could go if more might be in flight: a started operation's piece, or a whole one."""
    job = job_at(address)
    if job.available or job.running:
        return True
    advance(address)
    return count_of(job.to_start) > 0 and due_of(address, heap_least(job.to_start), now) <= now


@inner
def _is_blocked(address: int) -> bool:
    """Return whether all rows that are left, if any, wait for what is in flight, or are not there yet."""
    job = job_at(address)
    waiting = count_of(job.to_start) + count_of(job.to_fill) + count_of(job.hungry) + count_of(job.ready)
    waiting += count_of(job.bulk_hungry)
    if waiting + job.available + job.running or _is_making(address):
        return False
    return job.completed + job.in_flight < job.rows


@inner
def count_waits(address: int, now: int) -> None:
    """Count what the time since the last call was, by how things stood then: places of the queue in use or blocked.

    In an open loop also whether something due waited at the depth, or for its data.
    """
    job = job_at(address)
    lanes = lanes_at(job.lanes)
    if job.is_stopped:
        return
    passed = now - lanes.counted_ns
    lanes.in_use_ns += lanes.counted_in_use * passed
    lanes.blocked_ns += lanes.counted_blocked * passed
    lanes.unread_ns += lanes.counted_unread * passed
    lanes.counted_ns, lanes.counted_in_use, lanes.counted_blocked, lanes.counted_unread = now, lanes.out, 0, 0
    is_full = lanes.out >= job.depth or job.in_flight >= job.depth
    if not is_full and is_unread(address) and _is_blocked(address):
        lanes.counted_unread = job.depth - lanes.out
    elif not job.due and not is_full and _is_blocked(address):
        lanes.counted_blocked = job.depth - lanes.out
    if not job.due:
        return
    if lanes.is_held:
        lanes.held_ns += passed
    elif lanes.is_lacking:
        lanes.lacking_ns += passed
    # While it is less only because buffers are still being touched, it is no limit that anybody set.
    lanes.is_held = is_full and job.depth >= lanes.first_slot and _is_held(address, now)
    lanes.is_lacking = not lanes.is_held and _lacks_data(address, now)
