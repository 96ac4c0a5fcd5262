"""The compiled part of the submitting loop: the pieces of open files, of which a long operation has thousands.

Each long operation is a lane. Its pieces are put, submitted, waited for and reaped here; what else completes is
handed back, and so is everything as soon as Python has a choice to make.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import types

from kvreplay.engines import ring as r
from kvtrace.core.compiled import allocating, intrinsic

MOVED_IN_LANE = 7
"""What a completion tells, beside the submitter's own kinds: a piece of a lane has come."""
KIND_BITS = 3
_MOST_WAITS = 64
"""System calls before Python is asked again, for its signals and its progress."""

(TAIL, SUBMITTED, HEAD, OUT, AVAILABLE, IS_STOPPED, LANES, OTHERS, OVER, FREED, BAD, IS_ERROR, FREE_READS, FREE_TOKENS,
 DEPTH, IO_BYTES, FD, SQ_MASK, CQ_MASK, SQ_TAIL_AT, CQ_HEAD_AT, CQ_TAIL_AT, ARGUMENT, READ_OP, WRITE_OP, MOST_FREED,
 WORDS) = range(27)  # fmt: skip
"""Places of `state`: counters of this moment, then what stays as it is."""
(START, END, NEEDED_END, NEXT, PIECES, LANE_OUT, IS_WRITE, IS_FAILED, FIRST_FILL, LAST_FILL, FILE, BASE,
 LANE_WORDS) = range(13)  # fmt: skip
"""Columns of `lanes`, by a file's place in the ring: one operation's pieces that are not Python's."""
(NEXT_FILL, FILL_PIECE, FILL_END, FILL_AT, FILL_WORDS) = range(5)
"""Columns of `fills`, by buffer: the data a lane has been given; `FILL_AT` is where its next piece begins."""
(LANE, PIECE_START, LENGTH, READ_BUFFER, WRITE_SLOT, TOKEN_WORDS) = range(6)
"""Columns of `tokens`: the pieces in flight."""

_syscall: Any = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))


class Memory(NamedTuple):
    """What compiled code works on: int64 arrays, but for `words`."""

    state: Any
    lanes: Any
    fills: Any
    tokens: Any
    held: Any
    """By write buffer: pieces whose data it holds."""
    places: Any
    """Address of each buffer: those for reads, then those for writes."""
    read_buffers: Any
    """A stack of free ones."""
    free_tokens: Any
    """The same."""
    order: Any
    """The lanes, the oldest first."""
    requests: Any
    words: Any
    """uint32: heads and tails of the ring's queues."""
    completions: Any
    others: Any
    """(user data, result) of completions that are not of lanes."""
    over: Any
    """Lanes whose pieces have all come."""
    freed: Any
    """Write buffers whose data has been written."""
    bad: Any
    """(lane, start, length, result) of pieces that went wrong."""


@allocating
def _put(m: Memory, opcode: int, file: int, offset: int, address: int, length: int, data: int, buffer: int) -> None:
    at = (m.state[TAIL] & m.state[SQ_MASK]) * 8
    m.requests[at] = opcode | file
    m.requests[at + 1] = offset
    m.requests[at + 2] = address
    m.requests[at + 3] = length
    m.requests[at + 4] = data
    m.requests[at + 5] = buffer
    m.requests[at + 6] = 0
    m.requests[at + 7] = 0
    m.state[TAIL] += 1


@allocating
def _free_data(m: Memory, slot: int) -> None:
    m.held[slot] -= 1
    if m.held[slot] == 0:
        m.freed[m.state[FREED]] = slot
        m.state[FREED] += 1


@allocating
def _has_piece(m: Memory, lane: int) -> bool:
    if m.lanes[lane, IS_WRITE]:
        return m.lanes[lane, FIRST_FILL] >= 0
    return m.lanes[lane, NEXT] < m.lanes[lane, PIECES]


@allocating
def _bounds(m: Memory, lane: int, piece: int) -> tuple[int, int]:
    io_bytes, start = m.state[IO_BYTES], m.lanes[lane, START]
    first = (start // io_bytes + piece) * io_bytes
    return max(start, first), min(m.lanes[lane, END], first + io_bytes)


@allocating
def _put_read(m: Memory, lane: int) -> bool:
    """Put the lane's next read; return False if it was passed over."""
    start, end = _bounds(m, lane, m.lanes[lane, NEXT])
    m.lanes[lane, NEXT] += 1
    if m.lanes[lane, IS_FAILED]:
        return False
    m.state[FREE_READS] -= 1
    buffer = m.read_buffers[m.state[FREE_READS]]
    token = _token(m, lane, start, end - start, buffer, -1)
    offset = m.lanes[lane, BASE] + start
    _put(m, m.state[READ_OP], m.lanes[lane, FILE], offset, m.places[buffer], end - start, token, buffer)
    return True


@allocating
def _put_write(m: Memory, lane: int) -> bool:
    """Put the lane's next write; return False if it was passed over."""
    slot = m.lanes[lane, FIRST_FILL]
    start, end = _bounds(m, lane, m.fills[slot, FILL_PIECE])
    at = m.fills[slot, FILL_AT]
    m.fills[slot, FILL_PIECE] += 1
    m.fills[slot, FILL_AT] += end - start
    if m.fills[slot, FILL_PIECE] == m.fills[slot, FILL_END]:
        m.lanes[lane, FIRST_FILL] = m.fills[slot, NEXT_FILL]
    m.lanes[lane, NEXT] += 1
    if m.lanes[lane, IS_FAILED]:
        _free_data(m, slot)
        return False
    index = m.state[DEPTH] + slot
    token = _token(m, lane, start, end - start, -1, slot)
    offset = m.lanes[lane, BASE] + start
    _put(m, m.state[WRITE_OP], m.lanes[lane, FILE], offset, m.places[index] + at, end - start, token, index)
    return True


@allocating
def _token(m: Memory, lane: int, start: int, length: int, buffer: int, slot: int) -> int:
    """Note a piece in flight; return the user data of its request."""
    m.state[FREE_TOKENS] -= 1
    token = m.free_tokens[m.state[FREE_TOKENS]]
    m.tokens[token, LANE], m.tokens[token, PIECE_START], m.tokens[token, LENGTH] = lane, start, length
    m.tokens[token, READ_BUFFER], m.tokens[token, WRITE_SLOT] = buffer, slot
    m.lanes[lane, LANE_OUT] += 1
    m.state[OUT] += 1
    return token << KIND_BITS | MOVED_IN_LANE


@allocating
def _put_pieces(m: Memory) -> int:
    """Put pieces of the lanes, the oldest lane first, as far as the depth and the ring reach.

    Returns how many were passed over, because their operation had failed.
    """
    state, passed = m.state, 0
    for i in range(state[LANES]):
        lane = m.order[i]
        while state[OUT] < state[DEPTH] and state[TAIL] - state[SUBMITTED] <= state[SQ_MASK] and _has_piece(m, lane):
            state[AVAILABLE] -= 1
            is_put = _put_write(m, lane) if m.lanes[lane, IS_WRITE] else _put_read(m, lane)
            if not is_put:
                passed += 1
    return passed


@allocating
def _enter(m: Memory, wait: int, is_timed: bool) -> None:
    """Submit what was put and wait for `wait` completions; note an error."""
    state = m.state
    m.words[state[SQ_TAIL_AT]] = state[TAIL] & 0xFFFFFFFF
    queued = state[TAIL] - state[SUBMITTED]
    if is_timed:
        done = _syscall(r.ENTER, state[FD], queued, wait, r.GETEVENTS | r.EXT_ARG, state[ARGUMENT], r.ARGUMENT_BYTES)
    else:
        done = _syscall(r.ENTER, state[FD], queued, wait, r.GETEVENTS, 0, 0)
    if done < 0:
        state[IS_ERROR] = 1
    else:
        state[SUBMITTED] += done


@allocating
def _reap(m: Memory) -> int:
    """Take what has completed: pieces of lanes here, the rest to `others`; return how many were of lanes."""
    state = m.state
    head, tail, pieces = state[HEAD], np.int64(m.words[state[CQ_TAIL_AT]]), 0
    while head != tail:
        at = 2 * (head & state[CQ_MASK])
        # The result is the low half of the second word, with a sign.
        data, result = m.completions[at], (m.completions[at + 1] << 32) >> 32
        head = (head + 1) & 0xFFFFFFFF
        if data & ((1 << KIND_BITS) - 1) == MOVED_IN_LANE:
            _take_piece(m, data >> KIND_BITS, result)
            pieces += 1
        else:
            m.others[state[OTHERS], 0], m.others[state[OTHERS], 1] = data, result
            state[OTHERS] += 1
    state[HEAD] = head
    m.words[state[CQ_HEAD_AT]] = head
    return pieces


@allocating
def _take_piece(m: Memory, token: int, result: int) -> None:
    state = m.state
    lane, start, length = m.tokens[token, LANE], m.tokens[token, PIECE_START], m.tokens[token, LENGTH]
    least = length
    if m.tokens[token, WRITE_SLOT] >= 0:
        _free_data(m, m.tokens[token, WRITE_SLOT])
    else:
        # Where padding ends beyond the file, a read may end there.
        least = min(length, m.lanes[lane, NEEDED_END] - start)
        m.read_buffers[state[FREE_READS]] = m.tokens[token, READ_BUFFER]
        state[FREE_READS] += 1
    if result < least:
        m.lanes[lane, IS_FAILED] = 1
        bad = m.bad[state[BAD]]
        bad[0], bad[1], bad[2], bad[3] = lane, start, length, result
        state[BAD] += 1
    m.free_tokens[state[FREE_TOKENS]] = token
    state[FREE_TOKENS] += 1
    m.lanes[lane, LANE_OUT] -= 1
    state[OUT] -= 1


@allocating
def _retire(m: Memory) -> None:
    """Take lanes with nothing out and nothing to come out of the order."""
    state, kept = m.state, 0
    for i in range(state[LANES]):
        lane = m.order[i]
        is_put = m.lanes[lane, NEXT] == m.lanes[lane, PIECES] or state[IS_STOPPED]
        if is_put and m.lanes[lane, LANE_OUT] == 0:
            m.over[state[OVER]] = lane
            state[OVER] += 1
        else:
            m.order[kept] = lane
            kept += 1
    state[LANES] = kept


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:  # noqa: ARG001 - the form that numba asks for
    """Return an address as a pointer."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.voidptr(types.int64), code


@allocating
def _memory(places: Any) -> Memory:
    """Return the arrays that `places` tells of, a row each: address, rows, columns (1: a vector)."""
    return Memory(
        _vector(places, 0), _matrix(places, 1), _matrix(places, 2), _matrix(places, 3), _vector(places, 4),
        _vector(places, 5), _vector(places, 6), _vector(places, 7), _vector(places, 8), _vector(places, 9),
        numba.carray(_pointer(places[10, 0]), places[10, 1], dtype=np.uint32),
        _vector(places, 11), _matrix(places, 12), _vector(places, 13), _vector(places, 14), _matrix(places, 15),
    )  # fmt: skip


@allocating
def _vector(places: Any, at: int) -> Any:
    return numba.carray(_pointer(places[at, 0]), places[at, 1], dtype=np.int64)


@allocating
def _matrix(places: Any, at: int) -> Any:
    return numba.carray(_pointer(places[at, 0]), (places[at, 1], places[at, 2]), dtype=np.int64)


@allocating
def run(places: Any, wait: int, is_timed: bool) -> None:
    """Put, submit, wait and reap, as long as that leaves no choice: the depth is full with pieces of lanes."""
    m = _memory(places)
    state = m.state
    for turn in range(_MOST_WAITS):
        passed = 0
        if not state[IS_STOPPED]:
            passed = _put_pieces(m)
        is_full = state[OUT] >= state[DEPTH]
        if turn:
            # With room left, what goes next and until when to sleep is Python's choice.
            wait = 1 if is_full else 0
        if passed:
            # Nothing may be in flight that could end a wait.
            wait = 0
        if state[TAIL] != state[SUBMITTED] or state[HEAD] == np.int64(m.words[state[CQ_TAIL_AT]]):
            _enter(m, wait, is_timed and turn == 0)
        pieces = _reap(m)
        _retire(m)
        if state[IS_ERROR] or state[OTHERS] or state[OVER] or state[BAD]:
            return
        if not pieces or not is_full or state[FREED] >= state[MOST_FREED]:
            return
