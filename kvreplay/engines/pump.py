"""The compiled part of the submitting loop: the pieces of open files, of which a long operation has thousands.

Python opens a file, moves its first piece and closes it; all pieces between, their submission, the wait and the
reaping are done here. What else completes is handed back, and so is everything as soon as Python has a choice to make.
"""

from __future__ import annotations

import mmap
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

import numba
import numpy as np
from numba.core import types

from kvreplay.engines import ring as r
from kvtrace.core.compiled import allocating, compile_announced, intrinsic

if TYPE_CHECKING:
    from kvreplay.schedule import Fill, Flight

MOVED_BY_PUMP = 7
"""What a completion tells, beside the submitter's own kinds: a piece of a lane has come."""
KIND_BITS = 3
_MOST_WAITS = 64
"""System calls before Python is asked again, for its signals and its progress."""

(TAIL, SUBMITTED, HEAD, OUT, AVAILABLE, IS_STOPPED, LANES, OTHERS, OVER, FREED, BAD, IS_ERROR, FREE_READS, FREE_TOKENS,
 DEPTH, IO_BYTES, FD, SQ_MASK, CQ_MASK, SQ_TAIL_AT, CQ_HEAD_AT, CQ_TAIL_AT, ARGUMENT, READ_OP, WRITE_OP, MOST_FREED,
 _WORDS) = range(27)  # fmt: skip
"""Places of `state`: counters of this moment, then what stays as it is."""
(START, END, NEEDED_END, NEXT, PIECES, LANE_OUT, IS_WRITE, IS_FAILED, FIRST_FILL, LAST_FILL, FILE, BASE,
 _LANE_WORDS) = range(13)  # fmt: skip
"""Columns of `lanes`, by a file's place in the ring: one operation's pieces that are not Python's."""
(NEXT_FILL, FILL_PIECE, FILL_END, FILL_AT, _FILL_WORDS) = range(5)
"""Columns of `fills`, by buffer: the data a lane has been given; `FILL_AT` is where its next piece begins."""
(LANE, PIECE_START, LENGTH, READ_BUFFER, WRITE_SLOT, _TOKEN_WORDS) = range(6)
"""Columns of `tokens`: the pieces in flight."""
_ENTER = 426
_GETEVENTS, _EXT_ARG = 1 << 0, 1 << 3
_FIXED_FILE = 1 << 0

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
def _put_read(m: Memory, lane: int) -> None:
    start, end = _bounds(m, lane, m.lanes[lane, NEXT])
    m.lanes[lane, NEXT] += 1
    if m.lanes[lane, IS_FAILED]:
        return
    m.state[FREE_READS] -= 1
    buffer = m.read_buffers[m.state[FREE_READS]]
    token = _token(m, lane, start, end - start, buffer, -1)
    offset = m.lanes[lane, BASE] + start
    _put(m, m.state[READ_OP], m.lanes[lane, FILE], offset, m.places[buffer], end - start, token, buffer)


@allocating
def _put_write(m: Memory, lane: int) -> None:
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
        return
    index = m.state[DEPTH] + slot
    token = _token(m, lane, start, end - start, -1, slot)
    offset = m.lanes[lane, BASE] + start
    _put(m, m.state[WRITE_OP], m.lanes[lane, FILE], offset, m.places[index] + at, end - start, token, index)


@allocating
def _token(m: Memory, lane: int, start: int, length: int, buffer: int, slot: int) -> int:
    """Note a piece in flight; return the user data of its request."""
    m.state[FREE_TOKENS] -= 1
    token = m.free_tokens[m.state[FREE_TOKENS]]
    m.tokens[token, LANE], m.tokens[token, PIECE_START], m.tokens[token, LENGTH] = lane, start, length
    m.tokens[token, READ_BUFFER], m.tokens[token, WRITE_SLOT] = buffer, slot
    m.lanes[lane, LANE_OUT] += 1
    m.state[OUT] += 1
    return token << KIND_BITS | MOVED_BY_PUMP


@allocating
def _put_pieces(m: Memory) -> None:
    """Put pieces of the lanes, the oldest lane first, as far as the depth and the ring reach."""
    state = m.state
    for i in range(state[LANES]):
        lane = m.order[i]
        while state[OUT] < state[DEPTH] and state[TAIL] - state[SUBMITTED] <= state[SQ_MASK] and _has_piece(m, lane):
            state[AVAILABLE] -= 1
            if m.lanes[lane, IS_WRITE]:
                _put_write(m, lane)
            else:
                _put_read(m, lane)


@allocating
def _enter(m: Memory, wait: int, is_timed: bool) -> None:
    """Submit what was put and wait for `wait` completions; note an error."""
    state = m.state
    m.words[state[SQ_TAIL_AT]] = state[TAIL] & 0xFFFFFFFF
    queued = state[TAIL] - state[SUBMITTED]
    if is_timed:
        done = _syscall(_ENTER, state[FD], queued, wait, _GETEVENTS | _EXT_ARG, state[ARGUMENT], 24)
    else:
        done = _syscall(_ENTER, state[FD], queued, wait, _GETEVENTS, 0, 0)
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
        if data & ((1 << KIND_BITS) - 1) == MOVED_BY_PUMP:
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
def _run(places: Any, wait: int, is_timed: bool) -> None:
    """Put, submit, wait and reap, as long as that leaves no choice: the depth is full with pieces of lanes."""
    m = _memory(places)
    state = m.state
    for turn in range(_MOST_WAITS):
        if not state[IS_STOPPED]:
            _put_pieces(m)
        is_full = state[OUT] >= state[DEPTH]
        if turn:
            # With room left, what goes next and until when to sleep is Python's choice.
            wait = 1 if is_full else 0
        if state[TAIL] != state[SUBMITTED] or state[HEAD] == np.int64(m.words[state[CQ_TAIL_AT]]):
            _enter(m, wait, is_timed and turn == 0)
        pieces = _reap(m)
        _retire(m)
        if state[IS_ERROR] or state[OTHERS] or state[OVER] or state[BAD]:
            return
        if not pieces or not is_full or state[FREED] >= state[MOST_FREED]:
            return


def warm(ring: r.Ring) -> None:
    """Compile before anything is measured, or load what an earlier run has compiled."""
    with compile_announced():
        Pump(ring, 1, mmap.PAGESIZE, [0, 0], array("q", [0]), is_registered=False).run(0, 0, None)


class Pump:
    """The lanes of one ring, and what Python and compiled code say to each other."""

    def __init__(self, ring: r.Ring, depth: int, io_bytes: int, places: list[int], held: array[int], *,
                 is_registered: bool) -> None:  # fmt: skip
        """Serve `ring`: `places` are the addresses of `depth` buffers for reads, then of those for writes.

        `held` counts by write buffer the pieces whose data it holds.
        """
        requests, words, completions = ring.arrays()
        slots = len(held)

        def whole(*shape: int) -> Any:
            return np.zeros(shape, np.int64)

        self._memory = Memory(
            state=whole(_WORDS), lanes=whole(depth, _LANE_WORDS), fills=whole(slots, _FILL_WORDS),
            tokens=whole(depth, _TOKEN_WORDS), held=np.frombuffer(held, np.int64), places=np.array(places, np.int64),
            read_buffers=np.arange(depth), free_tokens=np.arange(depth), order=whole(depth), requests=requests,
            words=words, completions=completions, others=whole(len(completions) // 2, 2), over=whole(depth),
            freed=whole(slots), bad=whole(depth, 4),
        )  # fmt: skip
        # One argument: to pass sixteen arrays takes longer than to submit an I/O.
        self._places = np.array([(a.ctypes.data, len(a), a.shape[-1]) for a in self._memory], np.int64)
        self._ring = ring
        self._flights: list[Flight | None] = [None] * depth
        self._read_buffers = memoryview(self._memory.read_buffers)
        self.state = memoryview(self._memory.state)
        """The counters named above."""
        for place, value in (
            (FREE_READS, depth), (FREE_TOKENS, depth), (DEPTH, depth), (IO_BYTES, io_bytes), (FD, ring.fd),
            (SQ_MASK, ring.sq_mask), (CQ_MASK, ring.cq_mask), (SQ_TAIL_AT, ring.sq_tail_at),
            (CQ_HEAD_AT, ring.cq_head_at), (CQ_TAIL_AT, ring.cq_tail_at), (ARGUMENT, ring.argument_address),
            (READ_OP, r.READ_FIXED if is_registered else r.READ),
            (WRITE_OP, r.WRITE_FIXED if is_registered else r.WRITE), (MOST_FREED, max(1, slots // 4)),
        ):  # fmt: skip
            self.state[place] = value

    def take_read_buffer(self) -> int:
        """Return a free buffer for a read of Python's."""
        self.state[FREE_READS] -= 1
        return self._read_buffers[self.state[FREE_READS]]

    def give_read_buffer(self, buffer: int) -> None:
        """Take a buffer back."""
        self._read_buffers[self.state[FREE_READS]] = buffer
        self.state[FREE_READS] += 1

    def adopt(self, flight: Flight) -> None:
        """Submit the pieces of `flight` that are left; its own file lies open at its handle's place in the ring."""
        lane, state = flight.handle, self.state
        # The flags and the file of a request, in its first word.
        file = _FIXED_FILE << 8 | lane << 32 if flight.fd < 0 else flight.fd << 32
        row = self._memory.lanes[lane]
        row[:] = (flight.start, flight.end, flight.needed_end, flight.next_submit, flight.pieces, 0, flight.needs_data,
                  flight.is_failed, -1, -1, file, flight.base)  # fmt: skip
        self._flights[lane] = flight
        flight.lane = lane
        # To the schedule all of them are one piece.
        flight.outstanding += 1
        flight.next_submit = flight.pieces
        self._memory.order[state[LANES]] = lane
        state[LANES] += 1
        if flight.needs_data:
            while flight.filled:
                self.give(flight.filled.popleft())
        else:
            state[AVAILABLE] += flight.pieces - int(row[NEXT])

    def give(self, fill: Fill) -> None:
        """Let the data of a lane's pieces be written."""
        row, slot = self._memory.lanes[fill.flight.lane], fill.slot
        self._memory.fills[slot] = (-1, fill.piece, fill.end, fill.at)
        if row[FIRST_FILL] < 0:
            row[FIRST_FILL] = slot
        else:
            self._memory.fills[row[LAST_FILL], NEXT_FILL] = slot
        row[LAST_FILL] = slot
        self.state[AVAILABLE] += fill.end - fill.piece

    def fail(self, flight: Flight) -> None:
        """Pass over the pieces of a lane that are left."""
        self._memory.lanes[flight.lane, IS_FAILED] = 1

    def run(self, out: int, wait: int, timeout_ns: int | None) -> int:
        """Submit, wait for `wait` completions or the time, and go on while only pieces of lanes come.

        `out` requests are in flight; returns how many are then. What came is in `others`, `over`, `bad` and `freed`.
        """
        state, ring = self.state, self._ring
        state[TAIL], state[SUBMITTED], state[HEAD], state[OUT] = ring.tail, ring.submitted, ring.head, out
        state[OTHERS] = state[OVER] = state[BAD] = state[FREED] = state[IS_ERROR] = 0
        if timeout_ns is not None:
            ring.set_timeout(timeout_ns)
        _run(self._places, wait, timeout_ns is not None)
        ring.tail, ring.submitted, ring.head = state[TAIL], state[SUBMITTED], state[HEAD]
        if state[IS_ERROR]:
            # The same call once more, where its reason can be read.
            ring.enter(0)
        return state[OUT]

    def others(self) -> list[list[int]]:
        """Return (user data, result) of completions that are not of lanes."""
        found: list[list[int]] = self._memory.others[: self.state[OTHERS]].tolist()
        return found

    def bad(self) -> list[tuple[Flight, int, int, int]]:
        """Return operation, start, length and result of pieces that went wrong."""
        found = []
        for lane, start, length, result in self._memory.bad[: self.state[BAD]].tolist():
            flight = self._flights[lane]
            assert flight is not None, "a lane with pieces has a flight"
            found.append((flight, start, length, result))
        return found

    def freed(self) -> list[int]:
        """Return buffers whose data has been written."""
        found: list[int] = self._memory.freed[: self.state[FREED]].tolist()
        return found

    def over(self) -> list[Flight]:
        """Return the operations whose pieces have all come; they are lanes no more."""
        found = []
        for lane in self._memory.over[: self.state[OVER]].tolist():
            flight = self._flights[lane]
            assert flight is not None, "a lane has a flight"
            flight.next_submit, flight.lane = int(self._memory.lanes[lane, NEXT]), -1
            self._flights[lane] = None
            found.append(flight)
        return found
