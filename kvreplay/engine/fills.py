"""Data ahead of the writes that it is for: which buffer is filled next, and with what. Compiled."""

from __future__ import annotations

from kvreplay.engine import heap
from kvreplay.engine.ready import advance, bounds, due_of, is_over, number_of, offer, resume
from kvreplay.engine.tables import NONE, asked_at, fills_at, flights_at, job_at
from kvtrace.core.compiled import inner, int64s


@inner
def fill_due(address: int, now: int) -> int:
    """Return when the next buffer may be filled; NONE if that depends on what is in flight."""
    job = job_at(address)
    if is_over(address):
        return NONE
    if heap.count(job.hungry):
        return now if heap.count(job.free_slots) else NONE
    advance(address)
    if not heap.count(job.to_fill):
        return NONE
    if heap.count(job.free_slots) > job.ahead + 1:
        return now
    if heap.count(job.free_slots) > 1:
        # The other half of the buffers is for rows that are due: none may wait for a future one.
        return max(now, due_of(address, heap.least(job.to_fill), now))
    return NONE


@inner
def take_fill(address: int, now: int, answer: int) -> bool:
    """Take the next buffer to fill, if one is free for it; the record ASKED at `answer` says with what."""
    due = fill_due(address, now)
    if due == NONE or due > now:
        return False
    job = job_at(address)
    waiting = job.hungry if heap.count(job.hungry) else job.to_fill
    number = number_of(heap.least(waiting))
    flight = flights_at(job.flights)[number]
    piece = flight.next_fill
    count = min(job.pieces_a_fill, flight.pieces - piece)
    flight.next_fill += count
    if flight.next_fill == flight.pieces:
        heap.pop(waiting)
    slot = heap.take(job.free_slots)
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
    return True


@inner
def filled(address: int, slot: int) -> None:
    """Note that a buffer holds its data."""
    job = job_at(address)
    fills = fills_at(job.fills)
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
        flight.is_reserved = True
    if flight.is_lane:
        job.available += count
    elif flight.is_started:
        resume(address, number)
    elif flight.filled_pieces >= min(flight.pieces, job.ahead * job.pieces_a_fill):
        offer(address, number)


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
        heap.put(job.free_slots, slot)


@inner
def is_starved(address: int, now: int) -> bool:
    """Return whether a started or due write lacks data."""
    job = job_at(address)
    if heap.count(job.hungry):
        return True
    if job.in_flight >= job.depth or not heap.count(job.to_fill):
        return False
    return due_of(address, heap.least(job.to_fill), now) <= now


@inner
def start_partly_filled(address: int, now: int) -> None:
    """Offer writes whose data is not whole, if no buffer is left for it and none will come in time."""
    job = job_at(address)
    if job.in_flight or not heap.count(job.to_fill) or heap.count(job.free_slots) > 1:
        return
    if heap.count(job.to_start):
        offered, waiting = heap.least(job.to_start), heap.least(job.to_fill)
        if due_of(address, offered, now) <= due_of(address, waiting, now):
            return
    for i in range(heap.count(job.to_fill)):
        number = number_of(heap.item(job.to_fill, i))
        if flights_at(job.flights)[number].is_reserved:
            offer(address, number)
