"""What is next for who is free, compiled: a piece to do, or how long to sleep.

A thread that submits for all others uses it by way of `loop`. Threads that each take their own pieces call it here,
one at a time (`next_piece`, `fall_asleep`); only `doze` runs beside them. Where files are concerned: how they are named
(`name_file`), and an operation done at once (`do_file`). All functions take the address of a `tables.JOB`.
"""

from __future__ import annotations

import errno
from typing import Any

from numba.core import types

from kvreplay.engine import mailbox, order
from kvreplay.engine.job import OK
from kvreplay.engine.mailbox import AWAKE, HUNGRY
from kvreplay.engine.order import count_waits, fill_due, is_starved, make_lane, next_due, next_flight, start_next
from kvreplay.engine.ready import done
from kvreplay.engine.tables import NONE, digits_at, files_at, flights_at, job_at, lanes_at, mail_at, tokens_at
from kvreplay.plan.plan import DELETE, WRITE
from kvreplay.tiers.layout import SPREAD
from kvreplay.tiers.tier import FD_SHIFT
from kvtrace.core.compiled import holding, inner, int8s, int32s, int64s, njit, uint8s

SPIN_NS = 50_000
"""The last part of the way to a deadline is not slept through: waking up takes about so long."""
_MOST_BEGUN = 1024
"""Operations without I/O before we look at anything else."""
BY_RING, BY_EXTENT, BY_THREAD, BY_NOBODY, BY_PYTHON, BY_FILE = range(6)
"""How the operations of a tier are done: `BY_PYTHON` is an extent whose operations need more than I/O, `BY_FILE` one
of files in which whole operations of one I/O need no Python."""
NS_PER_S = 10**9
_OFFSET_MASK = (1 << FD_SHIFT) - 1
_CLOCK_MONOTONIC = 1
MODE = 0o600
"""Of new files."""
_SPREAD, _LOW_BITS = SPREAD - (1 << 64), (1 << 32) - 1
_TEN, _ZERO, _LETTERS = 10, ord("0"), ord("a") - 10

eventfd_read: Any = types.ExternalFunction("eventfd_read", types.int32(types.int32, types.int64))
_ppoll: Any = types.ExternalFunction("ppoll", types.int32(*[types.int64] * 4))
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))

_openat: Any = types.ExternalFunction("openat", types.int32(types.int32, types.int64, types.int32, types.int32))
_unlinkat: Any = types.ExternalFunction("unlinkat", types.int32(types.int32, types.int64, types.int32))
_pread: Any = types.ExternalFunction("pread", types.int64(types.int32, types.int64, types.int64, types.int64))
_pwrite: Any = types.ExternalFunction("pwrite", types.int64(types.int32, types.int64, types.int64, types.int64))
_fdatasync: Any = types.ExternalFunction("fdatasync", types.int32(types.int32))
_close: Any = types.ExternalFunction("close", types.int32(types.int32))
_errno_at: Any = types.ExternalFunction("__errno_location", types.int64())


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
        if lanes.out + job.available >= job.depth:
            return False
        if job.running:
            return True
        now = clock(address)
        number = next_flight(address, now)
        if number == NONE:
            return False
        flight = flights_at(job.flights)[number]
        row = flight.row
        tier = int8s(job.tier)[row]
        way = int64s(lanes.ways)[tier]
        if way == BY_NOBODY:
            start_next(address)
            int64s(lanes.submitted_ns)[row] = int64s(lanes.completed_ns)[row] = now
            int8s(lanes.outcome)[row] = OK
            done(address, number, now)
            continue
        if way == BY_FILE and flight.pieces == 1 and (flight.has_io or flight.op == DELETE) and not flight.is_failed:
            start_next(address)
            make_lane(address, number, 0, 0)
            flight.is_file = True
            int64s(lanes.sequence)[lanes.count] = number
            lanes.count += 1
            continue
        if way != BY_EXTENT or flight.op == DELETE or not flight.has_io or flight.is_failed:
            return True
        place = int64s(int64s(lanes.places)[tier])[int32s(job.object_id)[row]]
        if place < 0:
            return True
        start_next(address)
        make_lane(address, number, place >> FD_SHIFT << 32, place & _OFFSET_MASK)
        int64s(lanes.sequence)[lanes.count] = number
        lanes.count += 1
    return False


@inner
def rest_of(address: int, now: int, until: int) -> int:
    """Return how long nothing has to be submitted; short of a deadline by what waking up takes."""
    job = job_at(address)
    lanes, rest = lanes_at(job.lanes), until - now
    if lanes.out < job.depth:
        if job.available:
            return 0
        due = next_due(address, now)
        if due != NONE:
            rest = min(rest, due - SPIN_NS - now)
        due = fill_due(address, now)
        if due != NONE:
            rest = min(rest, due - now)
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
    is_found = begin(address) and order.take(address, now)
    if is_found:
        lanes.out += 1
    mailbox.ask(address, now, lanes.out < job.depth)
    count_waits(address, now)
    lanes.seen_ns, lanes.starved = now, 0
    if is_starved(address, now):
        lanes.starved = job.depth - lanes.out
    return is_found


@holding
def next_turn(address: int, until: int) -> int:
    """Return when there is something to do, if nothing completes and no data is made before; `until` at the latest."""
    job, now = job_at(address), clock(address)
    if lanes_at(job.lanes).out < job.depth:
        for due in (next_due(address, now), fill_due(address, now)):
            if due != NONE:
                until = min(until, due)
    return until


@holding
def fall_asleep(address: int, until: int) -> int:
    """Return until when the caller, who then calls `doze`, may sleep; whoever has something for it wakes it."""
    return next_turn(address, until) if mailbox.fall_asleep(address, HUNGRY) else 0


@njit
def doze(address: int, until: int) -> None:
    """Sleep until woken or `until`, the last part of the way awake."""
    job = job_at(address)
    lanes, mail = lanes_at(job.lanes), mail_at(job.mail)
    # Others may look at the clock meanwhile: this place is ours.
    time = int64s(lanes.timeout)
    while mail.asleep != AWAKE:
        _clock_gettime(_CLOCK_MONOTONIC, lanes.timeout)
        rest = until - (time[0] * NS_PER_S + time[1] - lanes.start_ns)
        if rest <= 0:
            break
        if rest > SPIN_NS:
            rest -= SPIN_NS
            time[0], time[1] = rest // NS_PER_S, rest % NS_PER_S
            if _ppoll(lanes.poll, 1, lanes.timeout, 0):
                break
    mail.asleep = AWAKE
    eventfd_read(lanes.mail_fd, lanes.timeout)


@inner
def name_file(address: int, row: int, name: int) -> int:
    """Write the path of a row's object to `name`; return the descriptor of the directory that it is relative to."""
    job = job_at(address)
    files = files_at(lanes_at(job.lanes).files)[int8s(job.tier)[row]]
    template, text, object_id = uint8s(files.name), uint8s(name), int(int32s(job.object_id)[row])
    for i in range(files.name_bytes):
        text[i] = template[i]
    # As `layout.mixed`.
    product = (object_id + 1) * _SPREAD
    hashed = product ^ (product >> 32 & _LOW_BITS)
    digits = digits_at(files.digits)
    for i in range(files.digit_count):
        number = object_id
        if digits[i].of_hash:
            number = hashed
        digit = number >> digits[i].shift & 15
        text[digits[i].at] = digit + (_ZERO if digit < _TEN else _LETTERS)
    drive = int(uint8s(files.drive_of)[object_id]) if files.drive_of else 0
    return int64s(files.directories)[drive]


@inner
def do_file(address: int, place: int, target: int) -> int:
    """Do all of an operation on an object's own file by plain calls; return as a request of a ring does.

    With one in flight there is nothing to do beside it, and a kernel's thread that creates it is two switches more.
    """
    job = job_at(address)
    lanes, token, now = lanes_at(job.lanes), tokens_at(lanes_at(job.lanes).tokens)[place], clock(address)
    flight, name = flights_at(job.flights)[token.flight], lanes.paths
    files = files_at(lanes.files)[int8s(job.tier)[flight.row]]
    int64s(lanes.submitted_ns)[flight.row] = now
    order.count_waits(address, now)
    directory, result = name_file(address, flight.row, name), token.length
    if flight.op == DELETE:
        if _unlinkat(directory, name, 0) < 0:
            result = -_errno()
    else:
        is_write = flight.op == WRITE
        fd = _opened(directory, name, files.write_flags if is_write else files.read_flags)
        if fd < 0:
            result = fd
        else:
            if is_write:
                result = _pwrite(fd, target, token.length, token.start)
            else:
                result = _pread(fd, target, token.length, token.start)
            if result < 0 or (is_write and files.is_synced and _fdatasync(fd) < 0):
                result = -_errno()
            if _close(fd) < 0 and result >= 0:
                result = -_errno()
    return result


@inner
def _opened(directory: int, name: int, how: int) -> int:
    """Return a descriptor, or an error as a negative number; a signal is not one."""
    while True:
        fd = int(_openat(directory, name, how, MODE))
        if fd >= 0:
            return fd
        if _errno() != errno.EINTR:
            return -_errno()


@inner
def _errno() -> int:
    """Return why the last call failed."""
    return int(int32s(_errno_at())[0])
