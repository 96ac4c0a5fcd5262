"""Which piece of which operation goes next: without clock, threads or I/O, compiled.

`schedule` is its form for Python and says what it promises. All functions take the address of a `tables.JOB`;
operations under way are numbers of its flights.
"""

from __future__ import annotations

from kvreplay.engine.filling.fills import free_data, use_fill, want_data
from kvreplay.engine.ready import advance, bounds, due_of, is_over, may_run, number_of, offer, resume
from kvreplay.engine.tables import (
    NONE,
    answer_at,
    bad_at,
    by_rings_at,
    count_of,
    fills_at,
    flights_at,
    heap_item,
    heap_least,
    heap_pop,
    heap_push,
    heap_remove,
    job_at,
    lanes_at,
    stack_put,
    tokens_at,
)
from kvreplay.plan.plan import DELETE
from kvtrace.core.compiled import holding, inner, int8s, int32s, int64s, uint8s


@inner
def start_partly_filled(address: int, now: int) -> None:
    """Offer writes whose data is not whole, if no buffer is left for it and none will come in time."""
    job = job_at(address)
    if job.in_flight or not count_of(job.to_fill) or count_of(job.free_slots) > 1:
        return
    if count_of(job.to_start):
        offered, waiting = heap_least(job.to_start), heap_least(job.to_fill)
        if due_of(address, offered, now) <= due_of(address, waiting, now):
            return
    for i in range(count_of(job.to_fill)):
        number = number_of(heap_item(job.to_fill, i))
        if flights_at(job.flights)[number].is_reserved:
            offer(address, number)


@holding
def next_due(address: int, now: int) -> int:
    """Return when the next piece may be submitted; NONE if that depends on what is in flight."""
    job = job_at(address)
    if is_over(address):
        return NONE
    if job.running:
        return now
    advance(address)
    start_partly_filled(address, now)
    if not count_of(job.to_start) or job.in_flight >= job.depth:
        return NONE
    return due_of(address, heap_least(job.to_start), now)


@inner
def next_flight(address: int, now: int) -> int:
    """Return the operation that may start now and comes next; NONE if none may, or a running one comes first."""
    job = job_at(address)
    if job.running:
        return NONE
    due = next_due(address, now)
    if due == NONE or due > now:
        return NONE
    return number_of(heap_least(job.to_start))


@inner
def start_next(address: int) -> int:
    """Note that the operation that comes next is started; return it."""
    job = job_at(address)
    entry = heap_pop(job.to_start)
    number = number_of(entry)
    flight = flights_at(job.flights)[number]
    flight.is_started = True
    job.in_flight += 1
    if flight.needs_data:
        if flight.filled_pieces < flight.pieces and not flight.is_bulk:
            job.short_starts += 1
        if flight.is_bulk:
            want_data(address, number)
        elif flight.next_fill < flight.pieces:
            heap_remove(job.to_fill, entry)
            heap_push(job.hungry, entry)
    return number


@inner
def take(address: int, now: int) -> bool:
    """Put a piece to submit now into `answer`, of a running operation first, else of the lowest row; False if none."""
    job = job_at(address)
    is_first = not job.running or job.is_stopped
    if not is_first:
        number = int64s(job.running_ring)[job.running_first]
    elif next_flight(address, now) == NONE:
        return False
    else:
        number = start_next(address)
    flight, answer = flights_at(job.flights)[number], answer_at(job.answer)
    flight.outstanding += 1
    piece, slot, at = flight.next_piece, NONE, 0
    if flight.needs_data:
        slot = flight.first_fill
        fill = fills_at(job.fills)[slot]
        piece, at = fill.piece, fill.at
    flight.next_piece += 1
    start, end = flight.first, flight.end
    if flight.pieces > 1:
        start, end = bounds(address, number, piece)
    if slot != NONE:
        use_fill(address, number, end - start)
    answer.flight, answer.piece, answer.slot, answer.is_first = number, piece, slot, is_first
    answer.start, answer.length, answer.at = start, end - start, at
    if not is_first and not may_run(address, number):
        flight.is_running = False
        job.running -= 1
        job.running_first = (job.running_first + 1) % job.flights_size
    return True


@holding
def begun(address: int, number: int) -> None:
    """Note that the operation is open, so that its other pieces may go."""
    flights_at(job_at(address).flights)[number].is_begun = True
    resume(address, number)


@holding
def make_lane(address: int, number: int, file: int, base: int) -> None:
    """Let `loop` submit what is left of an operation, whose object begins at `base` of an open file.

    To the schedule all its pieces are one. `file` are the flags and the file of its requests.
    """
    job = job_at(address)
    flight = flights_at(job.flights)[number]
    # One of which nothing was submitted is not known to Python, either.
    flight.is_lane, flight.is_own = True, flight.next_piece == 0
    flight.file, flight.base, flight.lane_out = file, base, 0
    flight.ring = _ring_of(address, flight.row)
    flight.outstanding += 1
    if flight.is_bulk:
        return
    if not flight.needs_data:
        job.available += flight.pieces - flight.next_piece
        return
    fills, slot = fills_at(job.fills), flight.first_fill
    while slot != NONE:
        job.available += fills[slot].end - fills[slot].piece
        slot = fills[slot].next


@inner
def _ring_of(address: int, row: int) -> int:
    """Return which ring the I/O of a row goes by."""
    job = job_at(address)
    lanes = lanes_at(job.lanes)
    if lanes.ring_count == 1:
        return 0
    by, object_id = by_rings_at(lanes.by_rings)[int8s(job.tier)[row]], int32s(job.object_id)[row]
    drive = int(uint8s(by.drive_of)[object_id]) if by.drive_of else 0
    return int64s(by.first)[drive] + by.step * (object_id % int64s(by.counts)[drive])


@holding
def piece_done(address: int, number: int, slot: int) -> bool:
    """Give back the piece's buffer, if any; return whether the operation has no other piece out or to come."""
    if slot != NONE:
        free_data(address, slot)
    job = job_at(address)
    flight = flights_at(job.flights)[number]
    flight.outstanding -= 1
    if flight.is_bulk:
        resume(address, number)
    return flight.outstanding == 0 and (flight.next_piece >= flight.pieces or job.is_stopped)


@inner
def check_piece(address: int, place: int, result: int) -> None:
    """Note it if a piece of a lane, whose token is at `place`, did not go well."""
    job = job_at(address)
    lanes = lanes_at(job.lanes)
    token = tokens_at(lanes.tokens)[place]
    flight, least = flights_at(job.flights)[token.flight], token.length
    if token.slot < 0:
        # Where padding ends beyond the file, a read may end there.
        least = min(least, flight.needed_end - token.start)
    if result >= least or flight.is_failed:
        # What goes wrong after the first is not told of.
        return
    flight.is_failed = True
    bad = bad_at(lanes.bad)[lanes.bad_count]
    bad.flight, bad.start, bad.length, bad.result = token.flight, token.start, token.length, result
    lanes.bad_count += 1


@inner
def end_piece(address: int, place: int) -> None:
    """Note that a piece of a lane is over: what its token, at `place`, holds is free."""
    job = job_at(address)
    lanes = lanes_at(job.lanes)
    token = tokens_at(lanes.tokens)[place]
    flight = flights_at(job.flights)[token.flight]
    if token.slot >= 0:
        free_data(address, token.slot)
    else:
        stack_put(lanes.free_reads, token.buffer)
    if flight.is_file and flight.op != DELETE and job.depth > 1:
        stack_put(lanes.free_files, flight.file)
    stack_put(lanes.free_tokens, place)
    flight.lane_out -= 1
    lanes.out -= 1
