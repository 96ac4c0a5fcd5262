"""Which data of writes is made next, and what follows when it is; compiled.

First what is due, then what is next in a chain (`ahead`), then what will be due. All functions take the address of a
`tables.JOB`.
"""

from __future__ import annotations

from kvreplay.engine.filling.ahead import preparing_due
from kvreplay.engine.ready import (
    advance,
    bounds,
    due_of,
    entry_of,
    is_over,
    next_to_prepare,
    note_making,
    number_of,
    offer_filled,
    resume,
)
from kvreplay.engine.tables import (
    NONE,
    asked_at,
    count_of,
    fills_at,
    flights_at,
    heap_least,
    heap_pop,
    heap_push,
    job_at,
    stack_put,
    stack_take,
)
from kvtrace.core.compiled import inner, int8s, int64s

NO_ROOM, WITH_ROOM, ONLY_ROOM = range(3)
"""What `Fill.room` says."""


@inner
def fill_due(address: int, now: int) -> int:
    """Return when the next buffer may be filled, noting in `source` of which heap; NONE: what is in flight decides."""
    job = job_at(address)
    if is_over(address):
        return NONE
    if count_of(job.hungry):
        job.source = job.hungry
        return now if count_of(job.free_slots) else NONE
    advance(address)
    if count_of(job.to_room):
        job.source = job.to_room
        return now
    return _next_due(address, now)


@inner
def _next_due(address: int, now: int) -> int:
    """Do what `fill_due` does where no started operation lacks data.

    What is due comes first, the data of a bulk write last: it leaves a quarter of the buffers to others.
    """
    job = job_at(address)
    due, prepared = _ready_due(address, now), preparing_due(address, now)
    is_first = due == now and due_of(address, heap_least(job.to_fill), now) <= now
    job.source = job.to_fill
    if prepared == now and not is_first:
        job.source = job.to_prepare
    elif due != now and count_of(job.bulk_hungry) and count_of(job.free_slots) > job.slots // 4:
        job.source, due = job.bulk_hungry, now
    if NONE in (due, prepared):
        return max(due, prepared)
    return min(due, prepared)


@inner
def _ready_due(address: int, now: int) -> int:
    """Return when the data of a row that is ready may be made next; NONE if that depends on what is in flight."""
    job = job_at(address)
    if not count_of(job.to_fill):
        return NONE
    if job.slots - count_of(job.free_slots) - job.prepared_slots <= job.early and count_of(job.free_slots):
        return now
    if count_of(job.free_slots) > 1:
        # The other buffers are for rows that are due: none may wait for a future one.
        return max(now, due_of(address, heap_least(job.to_fill), now))
    return NONE


@inner
def may_fill(address: int, now: int) -> bool:
    """Return whether a buffer may be filled now, and one is free for it."""
    due = fill_due(address, now)
    return due != NONE and due <= now


@inner
def next_to_fill(address: int) -> int:
    """Return the operation whose data is made next, where one `may_fill`."""
    job = job_at(address)
    return next_to_prepare(address) if job.source == job.to_prepare else number_of(heap_least(job.source))


@inner
def _take_room(address: int, answer: int) -> None:
    """Ask for the room of an operation whose data was made before it was ready."""
    job = job_at(address)
    number = number_of(heap_pop(job.to_room))
    flight, asked = flights_at(job.flights)[number], asked_at(answer)
    asked.flight, asked.row, asked.piece, asked.slot = number, flight.row, 0, job.slots + flight.first_slot
    asked.start = asked.end = flight.first
    asked.object_end, asked.room = flight.end, ONLY_ROOM


@inner
def take_fill(address: int, answer: int) -> None:
    """Take the next buffer to fill, where one `may_fill`; the record ASKED at `answer` says with what."""
    job = job_at(address)
    if job.source == job.to_room:
        _take_room(address, answer)
        return
    number = next_to_fill(address)
    flight = flights_at(job.flights)[number]
    piece = flight.next_fill
    count = min(job.pieces_a_fill, flight.pieces - piece)
    flight.next_fill += count
    if flight.is_bulk or flight.next_fill == flight.pieces:
        heap_pop(job.source)
        if not flight.is_unready and not flight.is_offered:
            note_making(address, number)
    if flight.is_bulk:
        # Before it is started it has one buffer, so that it can; then as many as keep its part of the queue busy.
        flight.is_waiting = False
        flight.held_fills += 1
        want_data(address, number)
    if flight.is_unready:
        job.prepared_slots += 1
    slot = stack_take(job.free_slots)
    int64s(job.held)[slot] = count
    fill = fills_at(job.fills)[slot]
    fill.flight, fill.piece, fill.end, fill.at, fill.next = number, piece, piece + count, 0, NONE
    start, end = flight.first, flight.end
    if flight.pieces > 1:
        start = bounds(address, number, piece)[0]
        end = bounds(address, number, piece + count - 1)[1]
    asked = asked_at(answer)
    asked.flight, asked.row, asked.piece, asked.slot = number, flight.row, piece, slot
    asked.start, asked.end, asked.object_end = start, end, flight.end
    asked.room = NO_ROOM
    if piece == 0:
        flight.first_slot = slot
        flight.lacks_room = flight.is_unready and int64s(job.rooms)[int8s(job.tier)[flight.row]] != 0
        if not flight.is_unready:
            asked.room = WITH_ROOM


@inner
def filled(address: int, slot: int) -> None:
    """Note that a buffer holds its data; or, of a number beyond those of buffers, that its object has room."""
    job = job_at(address)
    fills = fills_at(job.fills)
    if slot >= job.slots:
        number = fills[slot - job.slots].flight
        flights_at(job.flights)[number].is_reserved = True
        offer_filled(address, number)
        return
    fill = fills[slot]
    number, count = fill.flight, fill.end - fill.piece
    flight = flights_at(job.flights)[number]
    if flight.first_fill == NONE:
        flight.first_fill = slot
    else:
        fills[flight.last_fill].next = slot
    flight.last_fill = slot
    flight.filled_pieces += count
    if fill.piece == 0:
        _note_first(address, number)
    if flight.is_copied:
        return
    if flight.is_lane:
        if not flight.is_bulk:
            job.available += count
    elif flight.is_started:
        resume(address, number)
    else:
        offer_filled(address, number)


@inner
def _note_first(address: int, number: int) -> None:
    """Note that the first piece's data is made; and with it room, unless the operation was not ready then."""
    job = job_at(address)
    flight = flights_at(job.flights)[number]
    flight.has_first = True
    if not flight.lacks_room:
        flight.is_reserved = True
    elif not flight.is_unready:
        heap_push(job.to_room, entry_of(flight.row, number))


@inner
def use_fill(address: int, number: int, length: int) -> None:
    """Note that the next piece of an operation's data, `length` bytes, goes."""
    job = job_at(address)
    flight = flights_at(job.flights)[number]
    fill = fills_at(job.fills)[flight.first_fill]
    fill.piece += 1
    fill.at += length
    if fill.piece == fill.end:
        flight.first_fill = fill.next


@inner
def free_data(address: int, slot: int) -> None:
    """Note that a piece's data is needed no more."""
    job = job_at(address)
    held = int64s(job.held)
    held[slot] -= 1
    if not held[slot]:
        stack_put(job.free_slots, slot)
        number = fills_at(job.fills)[slot].flight
        flight = flights_at(job.flights)[number]
        if flight.is_bulk:
            flight.held_fills -= 1
            want_data(address, number)


@inner
def want_data(address: int, number: int) -> None:
    """Let a started bulk write have a buffer of data, if it may hold another one and has more to write."""
    job = job_at(address)
    flight = flights_at(job.flights)[number]
    if (
        flight.is_started
        and not flight.is_waiting
        and flight.next_fill < flight.pieces
        and flight.held_fills < job.bulk_fills
    ):
        flight.is_waiting = True
        heap_push(job.bulk_hungry, entry_of(flight.next_fill, number))
