"""The compiled part of the submitting loop: what needs no Python between being due and being done.

That is the other pieces of long operations whose file Python has opened, whole operations on extents of open files,
and those of one I/O on an object's own file. They are put, submitted, waited for and reaped here, in lanes; data for
writes is asked for and taken. What else completes is handed back, as soon as Python has something to do. All functions
take the address of a `tables.JOB`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types

from kvreplay.data import copies
from kvreplay.data.copies import fence
from kvreplay.engine import mailbox, order, turn
from kvreplay.engine import ring as r
from kvreplay.engine.filling import here
from kvreplay.engine.job import OK
from kvreplay.engine.mailbox import AWAKE, FULL, HUNGRY
from kvreplay.engine.putting.lanes import (
    FILE_OVER,
    FILE_SYNCED,
    FILE_TOLD,
    KIND_BITS,
    MOVED_IN_LANE,
    WOKEN,
    put,
    put_pieces,
)
from kvreplay.engine.ready import count_waits, done, is_over, is_starved
from kvreplay.engine.rings.serve import hand_on
from kvreplay.engine.tables import (
    flights_at,
    job_at,
    lanes_at,
    mail_at,
    others_at,
    rings_at,
)
from kvtrace.core.compiled import inner, int8s, int64s, njit, uint32s

_ANSWER_SHIFT = 48
"""Where in a struct pollfd, taken as a number, stands what was found."""
_syscall: Any = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))


@inner
def _enter(address: int, wait: int, rest: int) -> None:
    """Submit what was put and wait for `wait` completions, for `rest` ns if it is not 0; note an error."""
    lanes, now = lanes_at(job_at(address).lanes), 0
    if lanes.fresh_count or rest:
        now = turn.clock(address)
    if lanes.fresh_count:
        rows, submitted = int64s(lanes.fresh), int64s(lanes.submitted_ns)
        for i in range(lanes.fresh_count):
            submitted[rows[i]] = now
        lanes.fresh_count = 0
    if rest:
        timeout = int64s(lanes.timeout)
        timeout[0], timeout[1] = rest // turn.NS_PER_S, rest % turn.NS_PER_S
    if lanes.is_served:
        _hand_on(address)
        if wait:
            _wait_for_any(address, rest)
        return
    ring = rings_at(lanes.rings)[0]
    uint32s(ring.sq_tail)[0] = ring.tail & 0xFFFFFFFF
    queued = ring.tail - ring.submitted
    flags, argument, size = r.GETEVENTS, 0, 0
    if rest:
        flags, argument, size = r.GETEVENTS | r.EXT_ARG, ring.timeout_argument, r.ARGUMENT_BYTES
    done = _syscall(r.ENTER, ring.fd, queued, wait, flags, argument, size)
    if done >= 0:
        ring.submitted += done
    elif not rest or turn.clock(address) < now + rest:
        # The time was not over.
        lanes.is_error = True


@inner
def _hand_on(address: int) -> None:
    """Let the threads that serve the rings submit what was put."""
    lanes = lanes_at(job_at(address).lanes)
    for i in range(lanes.ring_count):
        ring = rings_at(lanes.rings)[i]
        if ring.tail != ring.submitted:
            hand_on(ring.server, ring.tail)
            ring.submitted = ring.tail


@inner
def _wait_for_any(address: int, rest: int) -> None:
    """Wait for a completion on any ring, or for being woken, for `rest` ns if it is not 0; note an error."""
    lanes = lanes_at(job_at(address).lanes)
    if turn.ppoll(lanes.poll, 1 + lanes.ring_count, lanes.timeout if rest else 0, 0) < 0:
        lanes.is_error = True
    # The first is polled for what wakes us.
    elif int64s(lanes.poll)[0] >> _ANSWER_SHIFT:
        turn.eventfd_read(lanes.mail_fd, lanes.clock)


@inner
def _has_queued(address: int) -> bool:
    """Return whether something was put and not submitted."""
    lanes = lanes_at(job_at(address).lanes)
    for i in range(lanes.ring_count):
        ring = rings_at(lanes.rings)[i]
        if ring.tail != ring.submitted:
            return True
    return False


@inner
def _has_come(address: int) -> bool:
    """Return whether a completion can be taken."""
    lanes = lanes_at(job_at(address).lanes)
    for i in range(lanes.ring_count):
        ring = rings_at(lanes.rings)[i]
        if ring.head != np.int64(uint32s(ring.cq_tail)[0]):
            return True
    return False


@inner
def _moved(address: int) -> int:
    """Return a number that changes whenever something is put or taken."""
    lanes, moved = lanes_at(job_at(address).lanes), 0
    for i in range(lanes.ring_count):
        moved += rings_at(lanes.rings)[i].tail + rings_at(lanes.rings)[i].head
    return moved


@inner
def _sleep(address: int, rest: int) -> None:
    """Submit what was put; wait for a completion for `rest` ns, unless there is something to do."""
    job = job_at(address)
    lanes = lanes_at(job.lanes)
    # Copies take no place of the queue: there may be more to start, and to make data for.
    is_full = lanes.out >= job.depth and not lanes.copies
    is_asleep = rest != 0 and mailbox.fall_asleep(address, FULL if is_full else HUNGRY)
    if not is_asleep and not _has_queued(address) and _has_come(address):
        return
    if is_asleep and lanes.copies and copies.is_next_done(lanes.copies):
        mail_at(job.mail).asleep = AWAKE
        is_asleep = False
    # With a full queue a completion will come, whatever else happens.
    limit = 0 if is_full or not is_asleep else rest
    started = turn.clock(address) if is_asleep else 0
    lacks_data = limit != 0 and is_starved(address, started)
    _enter(address, 1 if is_asleep else 0, limit)
    if is_asleep:
        mail_at(job.mail).asleep = AWAKE
        slept = turn.clock(address) - started
        lanes.idle_ns += slept
        if lacks_data:
            lanes.starved_ns += slept * (job.depth - lanes.out)


@inner
def _make(address: int) -> None:
    """Make some data, after what was put is on its way; count what stands idle meanwhile."""
    job = job_at(address)
    lanes, mail = lanes_at(job.lanes), mail_at(job.mail)
    if _has_queued(address):
        _enter(address, 0, 0)
    started = turn.clock(address)
    lacks_data = is_starved(address, started)
    here.make(address)
    took = turn.clock(address) - started
    mail.here_ns += took
    if lacks_data:
        lanes.starved_ns += took * (job.depth - lanes.out)


@inner
def _reap(address: int) -> None:
    """Take what has completed: pieces of lanes here, the rest to `others`."""
    for i in range(lanes_at(job_at(address).lanes).ring_count):
        _reap_ring(address, i)


@inner
def _reap_ring(address: int, number: int) -> None:
    """Take what has completed on one ring."""
    lanes = lanes_at(job_at(address).lanes)
    ring = rings_at(lanes.rings)[number]
    completions, head, tail = int64s(ring.completions), ring.head, np.int64(uint32s(ring.cq_tail)[0])
    fence()
    while head != tail:
        at = 2 * (head & ring.cq_mask)
        # The result is the low half of the second word, with a sign.
        data, result = completions[at], (completions[at + 1] << 32) >> 32
        head = (head + 1) & 0xFFFFFFFF
        kind, place = data & ((1 << KIND_BITS) - 1), data >> KIND_BITS
        if kind == MOVED_IN_LANE:
            order.check_piece(address, place, result)
            order.end_piece(address, place)
        elif kind == FILE_TOLD:
            order.check_piece(address, place, result)
        elif kind in (FILE_SYNCED, FILE_OVER):
            if result < 0:
                order.check_piece(address, place, result)
            if kind == FILE_OVER:
                order.end_piece(address, place)
        elif data == WOKEN:
            _rearm(address)
        else:
            other = others_at(lanes.others)[lanes.other_count]
            other.data, other.result = data, result
            lanes.other_count += 1
    ring.head = head
    fence()
    uint32s(ring.cq_head)[0] = head


@inner
def _rearm(address: int) -> None:
    """Let the next thread that finds us asleep wake us, too."""
    lanes = lanes_at(job_at(address).lanes)
    turn.eventfd_read(lanes.mail_fd, lanes.clock)
    put(address, 0, r.POLL_ADD, lanes.mail_fd << 32, 0, 0, r.POLLIN << 32, WOKEN, 0)


@inner
def _retire(address: int) -> None:
    """Take lanes with nothing out and nothing to come out of the order; finish with our own that went well."""
    job = job_at(address)
    lanes = lanes_at(job.lanes)
    sequence, kept, now = int64s(lanes.sequence), 0, turn.clock(address)
    for i in range(lanes.count):
        number = sequence[i]
        flight = flights_at(job.flights)[number]
        is_put = flight.next_piece == flight.pieces
        if flight.lane_out or not (is_put or job.is_stopped):
            sequence[kept] = number
            kept += 1
            continue
        flight.is_lane = False
        if flight.is_own and is_put and not flight.is_failed:
            int64s(lanes.completed_ns)[flight.row] = now
            int8s(lanes.outcome)[flight.row] = OK
            flight.outstanding -= 1
            done(address, number, now)
        else:
            int64s(lanes.over)[lanes.over_count] = number
            lanes.over_count += 1
    lanes.count = kept


@njit
def run(address: int, until: int) -> None:
    """Put, submit, wait and reap until Python has something to do, or the time `until` has come."""
    job = job_at(address)
    lanes = lanes_at(job.lanes)
    looked_ns, came, idle_ns = np.int64(0), np.int64(-1), np.int64(0)
    while True:
        is_pythons, silent = not mailbox.take_made(address), 0
        if not job.is_stopped:
            is_pythons = turn.begin(address) or is_pythons
            silent = put_pieces(address)
            if lanes.copies:
                turn.put_copies(address)
        now = turn.clock(address)
        # A turn in which nothing was put, came or ended waited for a time to come, awake or not.
        moved = _moved(address) + job.completed
        if came == moved:
            lanes.idle_ns = idle_ns + now - looked_ns
        looked_ns, came, idle_ns = now, moved, lanes.idle_ns
        count_waits(address, now)
        mailbox.ask(address, now, lanes.out < job.depth or lanes.copies != 0)
        is_pythons = here.wants_room(address) or is_pythons
        is_making = here.may_make(address) and not job.is_stopped
        if is_making:
            _make(address)
        has_copied = turn.may_copy(address) and copies.copy_next(lanes.copies, lanes.clock)
        is_done = is_over(address) and not lanes.out and not lanes.copied_count
        is_busy = is_pythons or silent or is_making or has_copied or is_done
        _sleep(address, 0 if is_busy else turn.rest_of(address, now, until))
        _reap(address)
        _retire(address)
        if lanes.copies:
            turn.take_copies(address)
        is_told = lanes.is_error or lanes.other_count or lanes.over_count or lanes.bad_count
        is_idle = not lanes.out and not lanes.copied_count
        if is_pythons or now >= until or is_told or (is_over(address) and is_idle):
            return
