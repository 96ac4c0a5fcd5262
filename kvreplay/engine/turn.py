"""What is next for who is free, compiled: a piece to do, or how long to sleep.

A thread that submits for all others uses it by way of `loop`. Threads that each take their own pieces call it here,
one at a time (`next_piece`, `fall_asleep`); only `doze` runs beside them. All functions take the address of a
`tables.JOB`.
"""

from __future__ import annotations

from typing import Any

from numba.core import types

from kvreplay.data import calls, copies
from kvreplay.engine import mailbox, order
from kvreplay.engine.filling.fills import fill_due, free_data, use_fill
from kvreplay.engine.job import OK
from kvreplay.engine.mailbox import AWAKE, HUNGRY
from kvreplay.engine.order import make_lane, next_due, next_flight, start_next
from kvreplay.engine.ready import UNREAD_NS, bounds, count_waits, done, has_piece, is_starved, is_unread, number_of
from kvreplay.engine.tables import NONE, count_of, fills_at, flights_at, heap_least, job_at, lanes_at, mail_at, rings_at
from kvreplay.plan.plan import DELETE
from kvreplay.tiers.tier import FD_SHIFT
from kvtrace.core.compiled import holding, inner, int8s, int32s, int64s, njit

SPIN_NS = 50_000
"""The last part of the way to a deadline is not slept through: waking up takes about so long."""
_MOST_BEGUN = 1024
"""Operations without I/O before we look at anything else."""
FILES_BYTES = calls.FILES.itemsize
BY_RING, BY_EXTENT, BY_THREAD, BY_NOBODY, BY_PYTHON, BY_COPY, BY_FILE = range(7)
"""How the operations of a tier are done: `BY_PYTHON` is an extent whose operations need more than I/O, `BY_FILE` one
of files in which whole operations of one I/O need no Python."""
NS_PER_S = 10**9
_OFFSET_MASK = (1 << FD_SHIFT) - 1
_CLOCK_MONOTONIC = 1

eventfd_read: Any = types.ExternalFunction("eventfd_read", types.int32(types.int32, types.int64))
ppoll: Any = types.ExternalFunction("ppoll", types.int32(*[types.int64] * 4))
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))


@inner
def clock(address: int) -> int:
    """Return the time since the run's start, by the monotonic clock."""
    lanes = lanes_at(job_at(address).lanes)
    _clock_gettime(_CLOCK_MONOTONIC, lanes.clock)
    clock = int64s(lanes.clock)
    return clock[0] * NS_PER_S + clock[1] - lanes.start_ns


@njit
def take(address: int) -> bool:
    """Start the operations that come next, up to one that needs Python; put its next piece into `answer`, if any."""
    return begin(address) and order.take(address, clock(address))


@inner
def begin(address: int) -> bool:
    """Start the operations that come next, up to one that needs Python; return whether there is one and room for it."""
    job = job_at(address)
    lanes = lanes_at(job.lanes)
    for _ in range(_MOST_BEGUN):
        is_full = lanes.out + job.available >= job.depth
        if is_full and not lanes.copies:
            return False
        if job.running:
            return not is_full
        now = clock(address)
        number = next_flight(address, now)
        if number == NONE:
            return False
        flight = flights_at(job.flights)[number]
        row = flight.row
        tier = int8s(job.tier)[row]
        way = int64s(lanes.ways)[tier]
        if way == BY_COPY and _begin_copied(address, number, tier):
            continue
        if is_full:
            return False
        if way == BY_NOBODY:
            start_next(address)
            int64s(lanes.submitted_ns)[row] = int64s(lanes.completed_ns)[row] = now
            int8s(lanes.outcome)[row] = OK
            done(address, number, now)
            continue
        if not _begin_lane(address, number, tier):
            return True
    return False


@inner
def _begin_lane(address: int, number: int, tier: int) -> bool:
    """Start the operation that comes next, which the ring does alone; return False if it needs Python."""
    job = job_at(address)
    lanes, flight = lanes_at(job.lanes), flights_at(job.flights)[number]
    way, place = int64s(lanes.ways)[tier], 0
    if flight.is_failed:
        return False
    if way == BY_FILE:
        if flight.pieces > 1 or not (flight.has_io or flight.op == DELETE):
            return False
    elif way != BY_EXTENT or flight.op == DELETE or not flight.has_io:
        return False
    else:
        place = int64s(int64s(lanes.places)[tier])[int32s(job.object_id)[flight.row]]
    if place < 0:
        return False
    start_next(address)
    make_lane(address, number, place >> FD_SHIFT << 32, place & _OFFSET_MASK)
    flight.is_file = way == BY_FILE
    int64s(lanes.sequence)[lanes.count] = number
    lanes.count += 1
    return True


@inner
def _begin_copied(address: int, number: int, tier: int) -> bool:
    """Start the operation that comes next, whose pieces are copies; return False if it needs Python."""
    job = job_at(address)
    lanes, flight = lanes_at(job.lanes), flights_at(job.flights)[number]
    if flight.op == DELETE or not flight.has_io or flight.is_failed:
        return False
    place = int64s(int64s(lanes.places)[tier])[int32s(job.object_id)[flight.row]]
    if place < 0:
        return False
    start_next(address)
    flight.is_lane = flight.is_copied = flight.is_own = True
    flight.base, flight.lane_out, flight.copied_ns = place, 0, 0
    flight.outstanding += 1
    int64s(lanes.copied)[lanes.copied_count] = number
    lanes.copied_count += 1
    if job.due:
        # It has come, and waits for memory; in a closed loop it comes when its first piece's turn has.
        int64s(lanes.submitted_ns)[flight.row] = clock(address)
    return True


@inner
def _copy_piece(address: int, number: int) -> None:
    """Give the next piece of an operation to the threads that copy."""
    job = job_at(address)
    lanes, flight = lanes_at(job.lanes), flights_at(job.flights)[number]
    piece, slot, at = flight.next_piece, NONE, 0
    if flight.needs_data:
        slot = flight.first_fill
        fill = fills_at(job.fills)[slot]
        piece, at = fill.piece, fill.at
    start, end = bounds(address, number, piece)
    began_at = lanes.submitted_ns + 8 * flight.row if flight.next_piece == 0 and not job.due else 0
    flight.next_piece += 1
    flight.lane_out += 1
    place = flight.base + start
    if flight.needs_data:
        use_fill(address, number, end - start)
        to, source = place, int64s(lanes.buffers)[lanes.first_slot + slot] + at
    else:
        to, source = copies.to_sink(lanes.copies, end - start), place
    is_last = flight.next_piece == flight.pieces
    copies.put(lanes.copies, to, source, end - start, began_at, number, slot, is_last)


@inner
def put_copies(address: int) -> None:
    """Give pieces to the threads that copy, the oldest operation first, as far as there is room."""
    job = job_at(address)
    lanes = lanes_at(job.lanes)
    room, sequence, has_more = copies.room(lanes.copies), int64s(lanes.copied), False
    for i in range(lanes.copied_count):
        while has_piece(address, sequence[i]):
            if not room:
                has_more = True
                break
            _copy_piece(address, sequence[i])
            room -= 1
    # In a closed loop who has nothing else to do copies as well, in the place of a thread that sleeps.
    spared = 1 if may_copy(address) else 0
    copies.wake(lanes.copies, has_more, spared)


@inner
def may_copy(address: int) -> bool:
    """Return whether this thread may do a copy: nothing else is under way or due meanwhile, and a thread sleeps."""
    job = job_at(address)
    lanes = lanes_at(job.lanes)
    return lanes.copied_count > 0 and not lanes.out and not job.due and copies.sleepers(lanes.copies) > 0


@inner
def take_copies(address: int) -> None:
    """Take what was copied, and finish with operations that are whole."""
    job = job_at(address)
    lanes = lanes_at(job.lanes)
    while copies.is_next_done(lanes.copies):
        entry = copies.next_of(lanes.copies)
        number, flight = entry.flight, flights_at(job.flights)[entry.flight]
        if entry.slot >= 0:
            free_data(address, entry.slot)
        flight.copied_ns = max(flight.copied_ns, entry.done_ns)
        flight.lane_out -= 1
        copies.take(lanes.copies)
    sequence, kept = int64s(lanes.copied), 0
    for i in range(lanes.copied_count):
        number = sequence[i]
        flight = flights_at(job.flights)[number]
        is_put = flight.next_piece == flight.pieces
        if flight.lane_out or not (is_put or job.is_stopped):
            sequence[kept] = number
            kept += 1
        elif is_put:
            int64s(lanes.completed_ns)[flight.row] = flight.copied_ns
            int8s(lanes.outcome)[flight.row] = OK
            flight.outstanding -= 1
            done(address, number, flight.copied_ns)
    lanes.copied_count = kept


@inner
def _is_next_copied(address: int) -> bool:
    """Return whether the operation that comes next takes no place of the queue."""
    job = job_at(address)
    lanes = lanes_at(job.lanes)
    if not lanes.copies or job.running or not count_of(job.to_start):
        return False
    row = flights_at(job.flights)[number_of(heap_least(job.to_start))].row
    return int64s(lanes.ways)[int8s(job.tier)[row]] == BY_COPY and int8s(job.op)[row] != DELETE


@inner
def rest_of(address: int, now: int, until: int) -> int:
    """Return how long nothing has to be submitted; short of a deadline by what waking up takes."""
    job = job_at(address)
    lanes, rest = lanes_at(job.lanes), until - now
    if lanes.out >= job.depth and _is_next_copied(address):
        due = next_due(address, now)
        if due != NONE:
            rest = min(rest, due - SPIN_NS - now)
    if lanes.out < job.depth:
        if job.available:
            return 0
        due = next_due(address, now)
        if due != NONE:
            rest = min(rest, due - SPIN_NS - now)
        due = fill_due(address, now)
        if due != NONE:
            rest = min(rest, due - now)
        if job.is_looking:
            return 0
        if is_unread(address):
            rest = min(rest, UNREAD_NS)
    return max(0, rest)


@holding
def next_piece(address: int) -> bool:
    """Put a piece to do now into `answer`, and count it as in flight; False if there is none.

    Data that was made is taken, more is asked for, and idle and waiting times are counted.
    """
    job = job_at(address)
    lanes, now = lanes_at(job.lanes), clock(address)
    lanes.starved_ns += lanes.starved * (now - lanes.seen_ns)
    mailbox.take_made(address)
    if lanes.copies:
        take_copies(address)
    is_found = begin(address) and order.take(address, now)
    if lanes.copies and not job.is_stopped:
        put_copies(address)
    if is_found:
        lanes.out += 1
    mailbox.ask(address, now, lanes.out < job.depth or lanes.copies != 0)
    count_waits(address, now)
    lanes.seen_ns, lanes.starved = now, 0
    if is_starved(address, now):
        lanes.starved = job.depth - lanes.out
    return is_found


@holding
def next_turn(address: int, until: int) -> int:
    """Return when there is something to do, if nothing completes and no data is made before; `until` at the latest."""
    job, now = job_at(address), clock(address)
    if lanes_at(job.lanes).out < job.depth or _is_next_copied(address):
        for due in (next_due(address, now), fill_due(address, now)):
            if due != NONE:
                until = min(until, due)
        if job.is_looking:
            return now
        if is_unread(address):
            until = min(until, now + UNREAD_NS)
    return until


@holding
def fall_asleep(address: int, until: int) -> int:
    """Return until when the caller, who then calls `doze`, may sleep; whoever has something for it wakes it."""
    if not mailbox.fall_asleep(address, HUNGRY):
        return 0
    job = job_at(address)
    lanes = lanes_at(job.lanes)
    if lanes.copies and copies.is_next_done(lanes.copies):
        mail_at(job.mail).asleep = AWAKE
        return 0
    return next_turn(address, until)


@njit
def doze(address: int, until: int) -> None:
    """Sleep until woken or `until`, the last part of the way awake; do copies first, if that is for us."""
    job = job_at(address)
    lanes, mail = lanes_at(job.lanes), mail_at(job.mail)
    # Others may look at the clock meanwhile: this place is ours.
    time = int64s(lanes.timeout)
    if may_copy(address) and mail.asleep != AWAKE:
        while copies.copy_next(lanes.copies, lanes.timeout):
            until = 0
    while mail.asleep != AWAKE:
        _clock_gettime(_CLOCK_MONOTONIC, lanes.timeout)
        rest = until - (time[0] * NS_PER_S + time[1] - lanes.start_ns)
        if rest <= 0:
            break
        if rest > SPIN_NS:
            rest -= SPIN_NS
            time[0], time[1] = rest // NS_PER_S, rest % NS_PER_S
            if ppoll(lanes.poll, 1, lanes.timeout, 0):
                break
    mail.asleep = AWAKE
    eventfd_read(lanes.mail_fd, lanes.timeout)


@inner
def do_file(address: int, number: int, target: int, start: int, length: int) -> int:
    """Do all of an operation on an object's own file now, by plain calls; return as a request of a ring does.

    With one in flight there is nothing to do beside it, and a kernel's thread that creates it is two switches more.
    """
    job = job_at(address)
    lanes, now = lanes_at(job.lanes), clock(address)
    flight = flights_at(job.flights)[number]
    int64s(lanes.submitted_ns)[flight.row] = now
    count_waits(address, now)
    files, object_id = lanes.files + int8s(job.tier)[flight.row] * FILES_BYTES, int32s(job.object_id)[flight.row]
    path = rings_at(lanes.rings)[0].paths
    result = calls.do_file(files, flight.op, object_id, path, target, start, length)
    # The thread waited for the drive, as it would asleep.
    lanes.idle_ns += clock(address) - now
    return result
