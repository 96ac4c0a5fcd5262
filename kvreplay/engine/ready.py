"""Which rows are ready: they wait for no other, and become operations under way ("flights"); compiled.

And what those wait for that do not go.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvreplay.engine.tables import (
    CHAIN_KINDS,
    FLIGHT_BITS,
    MOST_FLIGHTS,
    NONE,
    chains_at,
    count_of,
    flights_at,
    groups_at,
    heap_least,
    heap_pop,
    heap_push,
    job_at,
    lanes_at,
    stack_put,
    stack_take,
)
from kvreplay.plan.chains import NO_CHAIN
from kvreplay.plan.plan import DELETE, WRITE
from kvtrace.core.compiled import holding, inner, int8s, int32s, int64s

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
def resume(address: int, number: int) -> None:
    """Let an open operation's pieces go, if there are any."""
    job = job_at(address)
    flight = flights_at(job.flights)[number]
    if flight.is_begun and not flight.is_running and has_piece(address, number):
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
def admit(address: int, row: int) -> None:
    """Make a ready row an operation under way, which waits for data or for its turn."""
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
    flight.first_fill = flight.last_fill = NONE
    flight.is_offered = flight.is_started = flight.is_begun = flight.is_running = False
    flight.is_reserved = flight.is_failed = flight.is_lane = flight.is_copied = flight.is_own = flight.is_file = False
    if flight.needs_data:
        heap_push(job.to_fill, entry_of(row, number))
    else:
        offer(address, number)


@inner
def advance(address: int) -> None:
    """Make ready rows operations, a bounded number ahead."""
    job = job_at(address)
    while count_of(job.ready) and count_of(job.free_flights):
        admit(address, heap_pop(job.ready))
    ahead, last = 2 * job.slots, min(job.rows, job.cursor + _LOOK_ROWS)
    while job.cursor < last and count_of(job.to_start) + count_of(job.to_fill) < ahead and count_of(job.free_flights):
        if _enter(address, job.cursor):
            admit(address, job.cursor)
        job.cursor += 1
    job.is_looking = job.cursor == last < job.rows


@inner
def _enter(address: int, row: int) -> bool:
    """Let a row take its place in its chains; return whether it waits for nothing."""
    job = job_at(address)
    unmet, since = 0, 0
    for kind in range(CHAIN_KINDS):
        chain: Any = chains_at(job.chains)[kind]
        link, of_rows, number = np.int64(int32s(chain.links)[row]), int32s(chain.groups), np.int64(NONE)
        if link != NO_CHAIN:
            number = np.int64(of_rows[row - abs(link)]) if link < 0 else _new_group(address)
            group = groups_at(job.groups)[number]
            if link > 0:
                _follow(address, np.int64(of_rows[row - link]), number)
            group.left += 1
            if group.is_open:
                since = max(since, group.opened_ns)
            else:
                unmet += 1
                int32s(chain.waiting)[row], group.waiting = group.waiting, row
        of_rows[row] = number
    int8s(job.unmet)[row] = unmet
    if unmet == 0 and job.ready_ns:
        int64s(job.ready_ns)[row] = since
    return unmet == 0


@inner
def _new_group(address: int) -> int:
    """Return an open group that waits for none."""
    job, number = job_at(address), np.int64(0)
    if job.free_group == NONE:
        number = job.groups_used
        job.groups_used += 1
    else:
        number = job.free_group
        job.free_group = groups_at(job.groups)[number].follower
    group = groups_at(job.groups)[number]
    group.left, group.waiting, group.follower, group.is_open, group.opened_ns, group.done_ns = 0, NONE, NONE, 1, 0, 0
    return number


@inner
def _follow(address: int, before: int, number: int) -> None:
    """Let a new group come after the group `before`, which no row will join any more."""
    job = job_at(address)
    group, first = groups_at(job.groups)[number], groups_at(job.groups)[before]
    if first.left:
        group.is_open, first.follower = 0, number
    else:
        group.opened_ns = first.done_ns
        _free_group(address, before)


@inner
def _free_group(address: int, number: int) -> None:
    job = job_at(address)
    groups_at(job.groups)[number].follower = job.free_group
    job.free_group = number


@holding
def done(address: int, number: int, now: int) -> None:
    """Note that an operation has completed, well or not, and release what waited for it."""
    job = job_at(address)
    row = flights_at(job.flights)[number].row
    job.in_flight -= 1
    job.completed += 1
    stack_put(job.free_flights, number)
    for kind in range(CHAIN_KINDS):
        chain: Any = chains_at(job.chains)[kind]
        of = np.int64(int32s(chain.groups)[row])
        if of == NONE:
            continue
        group = groups_at(job.groups)[of]
        group.left -= 1
        if group.left:
            continue
        group.done_ns = now
        if group.follower != NONE:
            _open(address, kind, np.int64(group.follower), now)
            _free_group(address, of)


@inner
def _open(address: int, kind: int, number: int, now: int) -> None:
    """Open a group: the group before it has completed; note that its rows have to wait for one group less."""
    job = job_at(address)
    group, chain = groups_at(job.groups)[number], chains_at(job.chains)[kind]
    unmet, waiting, row = int8s(job.unmet), int32s(chain.waiting), np.int64(group.waiting)
    group.is_open, group.opened_ns, group.waiting = 1, now, NONE
    while row != NONE:
        unmet[row] -= 1
        if unmet[row] == 0:
            if job.ready_ns:
                int64s(job.ready_ns)[row] = now
            heap_push(job.ready, row)
        row = np.int64(waiting[row])


@inner
def is_starved(address: int, now: int) -> bool:
    """Return whether a started or due write lacks data."""
    job = job_at(address)
    if count_of(job.hungry):
        return True
    if job.in_flight >= job.depth or not count_of(job.to_fill):
        return False
    return due_of(address, heap_least(job.to_fill), now) <= now


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
    """Return whether all rows that are left, if any, wait for what is in flight."""
    job = job_at(address)
    waiting = count_of(job.to_start) + count_of(job.to_fill) + count_of(job.hungry) + count_of(job.ready)
    return waiting + job.available + job.running == 0 and job.completed + job.in_flight < job.rows


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
    lanes.counted_ns, lanes.counted_in_use, lanes.counted_blocked = now, lanes.out, 0
    is_full = lanes.out >= job.depth or job.in_flight >= job.depth
    if not job.due:
        if not is_full and _is_blocked(address):
            lanes.counted_blocked = job.depth - lanes.out
        return
    if lanes.is_held:
        lanes.held_ns += passed
    elif lanes.is_lacking:
        lanes.lacking_ns += passed
    # While it is less only because buffers are still being touched, it is no limit that anybody set.
    lanes.is_held = is_full and job.depth >= lanes.first_slot and _is_held(address, now)
    lanes.is_lacking = not lanes.is_held and is_starved(address, now)
