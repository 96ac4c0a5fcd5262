"""Requests that the compiled loop puts on the ring: pieces of lanes, and chains on an object's own file.

All functions take the address of a `tables.JOB`.
"""

from __future__ import annotations

import numpy as np

from kvreplay.data import calls
from kvreplay.engine import order, turn
from kvreplay.engine import ring as r
from kvreplay.engine.filling.fills import free_data, use_fill
from kvreplay.engine.ready import bounds, has_piece
from kvreplay.engine.tables import NONE, fills_at, flights_at, job_at, lanes_at, rings_at, stack_take, tokens_at
from kvreplay.plan.plan import DELETE, WRITE
from kvtrace.core.compiled import inner, int8s, int32s, int64s, uint32s

WOKEN, MOVED_IN_LANE, FILE_TOLD, FILE_SYNCED, FILE_OVER = r.WOKEN, 7, 8, 9, 10
"""What a completion tells, beside the submitter's own kinds: a thread woke us, a piece of a lane has come; of an
object's own file, that less was moved than should be, whether it was synchronized, that its last request is done."""
KIND_BITS = 4
_LONGEST_CHAIN = 4
_DATASYNC = 1
_COUNTED = (1 << 32) - 1
_STREAM_SHIFT = 32
"""Where in the word with a request's buffer its write stream lies, of Linux 6.16 and later."""
_OPEN = r.OPENAT | (r.LINK | r.SKIP_SUCCESS) << 8
_GO_ON = (r.FIXED_FILE | r.HARDLINK | r.SKIP_SUCCESS) << 8
"""Of a request on the open file: what follows is done in any case, so that the file is closed."""


@inner
def put(
    address: int, number: int, opcode: int, file: int, offset: int, target: int, length: int, data: int, buffer: int
) -> None:
    """Put a request on the ring `number`; fields as in struct io_uring_sqe."""
    ring = rings_at(lanes_at(job_at(address).lanes).rings)[number]
    requests, at = int64s(ring.requests), (ring.tail & ring.sq_mask) * 8
    requests[at] = opcode | file
    requests[at + 1] = offset
    requests[at + 2] = target
    requests[at + 3] = length
    requests[at + 4] = data
    requests[at + 5] = buffer
    requests[at + 6] = 0
    requests[at + 7] = 0
    ring.tail += 1


@inner
def _put_next(address: int, number: int) -> bool:
    """Put the next piece of a lane; return False if no completion will come: its operation failed, or is done now."""
    job = job_at(address)
    lanes, flight = lanes_at(job.lanes), flights_at(job.flights)[number]
    piece, slot, at = flight.next_piece, flight.first_fill, flight.next_piece
    if flight.needs_data:
        fill = fills_at(job.fills)[slot]
        piece, at = fill.piece, fill.at
    start, end = bounds(address, number, piece)
    is_now = flight.is_file and job.depth == 1
    if flight.next_piece == 0 and not is_now:
        int64s(lanes.fresh)[lanes.fresh_count] = flight.row
        lanes.fresh_count += 1
    flight.next_piece += 1
    if flight.needs_data:
        use_fill(address, number, end - start)
    if flight.is_failed:
        if flight.needs_data:
            free_data(address, slot)
        return False
    place = stack_take(lanes.free_tokens)
    token = tokens_at(lanes.tokens)[place]
    token.flight, token.start, token.length = number, start, end - start
    buffers, data = int64s(lanes.buffers), place << KIND_BITS | MOVED_IN_LANE
    if flight.needs_data:
        token.buffer, token.slot = NONE, slot
        buffer, target = lanes.fixed_reads + slot, buffers[lanes.first_slot + slot] + at
        opcode = r.WRITE_FIXED if slot < lanes.fixed_slots else r.WRITE
    else:
        buffer = stack_take(lanes.free_reads)
        token.buffer, token.slot = buffer, NONE
        target, opcode = buffers[buffer], r.READ_FIXED if buffer < lanes.fixed_reads else r.READ
    flight.lane_out += 1
    lanes.out += 1
    if is_now:
        order.check_piece(address, place, turn.do_file(address, number, target, start, end - start))
        order.end_piece(address, place)
        return False
    if flight.is_file:
        _put_file(address, place, opcode, target, buffer)
    else:
        buffer |= _write_stream(address, flight.row) << _STREAM_SHIFT if flight.needs_data else 0
        put(address, flight.ring, opcode, flight.file, flight.base + start, target, end - start, data, buffer)
    return True


@inner
def _write_stream(address: int, row: int) -> int:
    """Return which stream of its device a write's request names, from 1 on; 0: none."""
    job = job_at(address)
    if not job.stream or int32s(job.stream)[row] < 0:
        return 0
    count = int64s(job.write_streams)[int8s(job.tier)[row]]
    return 1 + int32s(job.stream)[row] % count if count else 0


@inner
def _put_file(address: int, place: int, opcode: int, target: int, buffer: int) -> None:
    """Put all of an operation on an object's own file: a chain of requests, whose last one tells when it is done.

    One that fails, or moves less than it should, tells of itself; if the file cannot be opened nothing else is done.
    """
    job = job_at(address)
    lanes, token = lanes_at(job.lanes), tokens_at(lanes_at(job.lanes).tokens)[place]
    flight = flights_at(job.flights)[token.flight]
    of_tier, on = lanes.files + int8s(job.tier)[flight.row] * turn.FILES_BYTES, flight.ring
    files, ring = calls.files_at(of_tier), rings_at(lanes.rings)[on]
    name = ring.paths + (ring.tail & ring.sq_mask) * r.PATH_BYTES
    directory = calls.write_name(of_tier, int32s(job.object_id)[flight.row], name) << 32
    told, over = place << KIND_BITS | FILE_TOLD, place << KIND_BITS | FILE_OVER
    if flight.op == DELETE:
        put(address, on, r.UNLINKAT, directory, 0, name, 0, over, 0)
        return
    flight.file = stack_take(lanes.free_files)
    file, index, how = flight.file << 32, flight.file + 1 << 32, files.read_flags
    if flight.op == WRITE:
        how = files.write_flags
    put(address, on, _OPEN, directory, 0, name, how << 32 | calls.MODE, over, index)
    put(address, on, opcode | _GO_ON, file, token.start, target, token.length, told, buffer)
    if flight.op == WRITE and files.is_synced:
        # Of one that fails the kernel posts no completion if it is to skip that of success.
        how = r.FSYNC | (r.FIXED_FILE | r.HARDLINK) << 8
        put(address, on, how, file, 0, 0, _DATASYNC << 32, place << KIND_BITS | FILE_SYNCED, 0)
    put(address, on, r.CLOSE, 0, 0, 0, 0, over, index)


@inner
def put_pieces(address: int) -> int:
    """Put pieces of the lanes, the oldest lane first, as far as the depth and their rings reach.

    Returns of how many no completion will come.
    """
    job = job_at(address)
    lanes, silent = lanes_at(job.lanes), 0
    sequence = int64s(lanes.sequence)
    for i in range(lanes.count):
        while (
            _has_room(address, sequence[i])
            and has_piece(address, sequence[i])
            and not flights_at(job.flights)[sequence[i]].is_bulk
        ):
            job.available -= 1
            if not _put_next(address, sequence[i]):
                silent += 1
    # What is left of the places is for bulk operations.
    number = _next_bulk(address)
    while number != NONE and _has_room(address, number):
        if not _put_next(address, number):
            silent += 1
        number = _next_bulk(address)
    return silent


@inner
def _has_room(address: int, number: int) -> bool:
    """Return whether the depth and its ring have room for a piece of an operation."""
    job = job_at(address)
    lanes = lanes_at(job.lanes)
    if lanes.out >= job.depth:
        return False
    ring = rings_at(lanes.rings)[flights_at(job.flights)[number].ring]
    # The kernel counts what it has taken to 2 ** 32.
    waiting = ring.tail - np.int64(uint32s(ring.sq_head)[0]) & _COUNTED
    return waiting + _LONGEST_CHAIN <= ring.sq_mask + 1


@inner
def _next_bulk(address: int) -> int:
    """Return the bulk lane whose next piece may go, and of which the fewest are in flight; NONE if there is none."""
    job = job_at(address)
    if not job.bulk:
        return NONE
    lanes = lanes_at(job.lanes)
    sequence, found, fewest = int64s(lanes.sequence), NONE, job.bulk_depth
    for i in range(lanes.count):
        flight = flights_at(job.flights)[sequence[i]]
        if flight.is_bulk and flight.lane_out < fewest and has_piece(address, sequence[i]):
            found, fewest = sequence[i], flight.lane_out
    return found
