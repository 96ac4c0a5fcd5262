"""The compiled part of the submitting loop: what needs no Python between being due and being done.

That is the other pieces of long operations whose file Python has opened, and whole operations on extents of open
files. They are put, submitted, waited for and reaped here, in lanes; data for writes is asked for and taken. What
else completes is handed back, as soon as Python has something to do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types

from kvreplay.engine import mailbox
from kvreplay.engine import order as o
from kvreplay.engine import ring as r
from kvreplay.engine.job import OK
from kvreplay.engine.mailbox import ASLEEP, AWAKE, FLAGS, FULL, HUNGRY
from kvreplay.plan.plan import DELETE
from kvreplay.tiers.tier import FD_SHIFT
from kvtrace.core.compiled import allocating, int8s, int32s, int64s, table, uint32s

WOKEN, MOVED_IN_LANE = 6, 7
"""What a completion tells, beside the submitter's own kinds: a thread woke us, a piece of a lane has come."""
KIND_BITS = 3
SPIN_NS = 50_000
"""The last part of the way to a deadline is not slept through: waking up takes about so long."""
_MOST_BEGUN = 1024
"""Operations without I/O before we look at anything else."""
BY_RING, BY_EXTENT, BY_THREAD, BY_NOBODY, BY_PYTHON = range(5)
"""How the operations of a tier are done: `BY_PYTHON` is an extent whose operations need more than I/O."""
_OFFSET_MASK = (1 << FD_SHIFT) - 1

(STATE, TOKENS, BUFFERS, READ_BUFFERS, FREE_TOKEN, LANE_ORDER, REQUESTS, WORDS, COMPLETIONS, OTHER, OVER_LANES,
 BAD_PIECES, FRESH_ROWS, WAYS, OBJECT, SUBMITTED_NS, COMPLETED_NS, OUTCOME, CLOCK, TIMEOUT,
 PLACES) = range(21)  # fmt: skip
"""The arrays, int64 but for `WORDS` (uint32: heads and tails of the ring's queues), `OBJECT` and `OUTCOME`.

`BUFFERS` has the address of each buffer, those for reads, then those for writes; `READ_BUFFERS` and `FREE_TOKEN` are
stacks of free ones; `LANE_ORDER` has the lanes, the oldest first; `OTHER` (user data, result) of completions that are
not of lanes; `OVER_LANES` those whose pieces have all come; `BAD_PIECES` (flight, start, length, result) of pieces that
went wrong; `FRESH_ROWS` what was put since the last stamp; from `PLACES` on, by tier, where its objects lie.
"""
(TAIL, SUBMITTED, HEAD, OUT, LANES, OTHERS, OVER, BAD, IS_ERROR, FREE_READS, FREE_TOKENS, FRESH, STARVED_NS,
 START_NS, DEPTH, IO_BYTES, FD, MAIL_FD, SQ_MASK, CQ_MASK, SQ_TAIL_AT, CQ_HEAD_AT, CQ_TAIL_AT, ARGUMENT, READ_OP,
 WRITE_OP, STATE_WORDS) = range(27)  # fmt: skip
"""Places of `STATE`: counters of this moment, then what stays as it is."""
(FLIGHT, PIECE_START, LENGTH, READ_BUFFER, WRITE_SLOT, TOKEN_WORDS) = range(6)
"""Columns of `TOKENS`: the pieces in flight."""
_CLOCK_MONOTONIC = 1
_NS_PER_S = 10**9

_syscall: Any = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))
_eventfd_read: Any = types.ExternalFunction("eventfd_read", types.int32(types.int32, types.int64))
_clock_gettime: Any = types.ExternalFunction("clock_gettime", types.int32(types.int32, types.int64))


@allocating
def _now(m: Any) -> int:
    """Return the time since the run's start, by the monotonic clock."""
    _clock_gettime(_CLOCK_MONOTONIC, m[CLOCK, 0])
    at = int64s(m, CLOCK)
    return at[0] * _NS_PER_S + at[1] - int64s(m, STATE)[START_NS]


@allocating
def begin(m: Any, p: Any) -> bool:
    """Start the operations that come next, up to one that needs Python; return whether there is one and room for it."""
    state, c, flights = int64s(m, STATE), int64s(p, o.COUNTERS), table(p, o.FLIGHTS)
    ways, tier_of, objects = int64s(m, WAYS), int8s(p, o.TIER), int32s(m, OBJECT)
    for _ in range(_MOST_BEGUN):
        if state[OUT] + c[o.AVAILABLE] >= state[DEPTH]:
            return False
        if c[o.RUNNING]:
            return True
        now = _now(m)
        flight = o.next_flight(p, now)
        if flight == o.NONE:
            return False
        f = flights[flight]
        row = f[o.ROW]
        tier = tier_of[row]
        if ways[tier] == BY_NOBODY:
            o.start_next(p)
            int64s(m, SUBMITTED_NS)[row] = int64s(m, COMPLETED_NS)[row] = now
            int8s(m, OUTCOME)[row] = OK
            o.done(p, flight, now)
            continue
        if ways[tier] != BY_EXTENT or f[o.IS_OP] == DELETE or not f[o.HAS_IO] or f[o.IS_FAILED]:
            return True
        place = int64s(m, PLACES + tier)[objects[row]]
        if place < 0:
            return True
        o.start_next(p)
        o.make_lane(p, flight, place >> FD_SHIFT << 32, place & _OFFSET_MASK, True)
        int64s(m, LANE_ORDER)[state[LANES]] = flight
        state[LANES] += 1
    return False


@allocating
def _put(m: Any, opcode: int, file: int, offset: int, address: int, length: int, data: int, buffer: int) -> None:
    state, requests = int64s(m, STATE), int64s(m, REQUESTS)
    at = (state[TAIL] & state[SQ_MASK]) * 8
    requests[at] = opcode | file
    requests[at + 1] = offset
    requests[at + 2] = address
    requests[at + 3] = length
    requests[at + 4] = data
    requests[at + 5] = buffer
    requests[at + 6] = 0
    requests[at + 7] = 0
    state[TAIL] += 1


@allocating
def _put_read(m: Any, p: Any, flight: int) -> bool:
    """Put the operation's next read; return False if it was passed over."""
    state, flights = int64s(m, STATE), table(p, o.FLIGHTS)
    start, end = o.bounds(flights, flight, flights[flight, o.NEXT_PIECE], state[IO_BYTES])
    _stamp_first(m, flights, flight)
    flights[flight, o.NEXT_PIECE] += 1
    if flights[flight, o.IS_FAILED]:
        return False
    state[FREE_READS] -= 1
    buffer = int64s(m, READ_BUFFERS)[state[FREE_READS]]
    token = _token(m, p, flight, start, end - start, buffer, o.NONE)
    offset = flights[flight, o.BASE] + start
    _put(m, state[READ_OP], flights[flight, o.FILE], offset, int64s(m, BUFFERS)[buffer], end - start, token, buffer)
    return True


@allocating
def _put_write(m: Any, p: Any, flight: int) -> bool:
    """Put the operation's next write; return False if it was passed over."""
    state, flights, fills = int64s(m, STATE), table(p, o.FLIGHTS), table(p, o.FILLS)
    slot = flights[flight, o.FIRST_FILL]
    start, end = o.bounds(flights, flight, fills[slot, o.FILL_PIECE], state[IO_BYTES])
    at = fills[slot, o.FILL_AT]
    _stamp_first(m, flights, flight)
    o.use_fill(p, flight, end - start)
    flights[flight, o.NEXT_PIECE] += 1
    if flights[flight, o.IS_FAILED]:
        o.free_data(p, slot)
        return False
    index = state[DEPTH] + slot
    token = _token(m, p, flight, start, end - start, o.NONE, slot)
    offset = flights[flight, o.BASE] + start
    _put(m, state[WRITE_OP], flights[flight, o.FILE], offset, int64s(m, BUFFERS)[index] + at, end - start, token, index)
    return True


@allocating
def _stamp_first(m: Any, flights: Any, flight: int) -> None:
    """Have the operation's submission stamped, if its first piece is being put."""
    if flights[flight, o.NEXT_PIECE] == 0:
        state = int64s(m, STATE)
        int64s(m, FRESH_ROWS)[state[FRESH]] = flights[flight, o.ROW]
        state[FRESH] += 1


@allocating
def _token(m: Any, p: Any, flight: int, start: int, length: int, buffer: int, slot: int) -> int:
    """Note a piece in flight; return the user data of its request."""
    state, tokens = int64s(m, STATE), table(m, TOKENS)
    state[FREE_TOKENS] -= 1
    token = int64s(m, FREE_TOKEN)[state[FREE_TOKENS]]
    tokens[token, FLIGHT], tokens[token, PIECE_START], tokens[token, LENGTH] = flight, start, length
    tokens[token, READ_BUFFER], tokens[token, WRITE_SLOT] = buffer, slot
    table(p, o.FLIGHTS)[flight, o.LANE_OUT] += 1
    state[OUT] += 1
    return token << KIND_BITS | MOVED_IN_LANE


@allocating
def _put_pieces(m: Any, p: Any) -> int:
    """Put pieces of the lanes, the oldest lane first, as far as the depth and the ring reach.

    Returns how many were passed over, because their operation had failed.
    """
    state, c, flights, lanes = int64s(m, STATE), int64s(p, o.COUNTERS), table(p, o.FLIGHTS), int64s(m, LANE_ORDER)
    passed = 0
    for i in range(state[LANES]):
        flight = lanes[i]
        while (
            state[OUT] < state[DEPTH]
            and state[TAIL] - state[SUBMITTED] <= state[SQ_MASK]
            and o.has_piece(flights, flight)
        ):
            c[o.AVAILABLE] -= 1
            is_put = _put_write(m, p, flight) if flights[flight, o.NEEDS_DATA] else _put_read(m, p, flight)
            if not is_put:
                passed += 1
    return passed


@allocating
def _enter(m: Any, wait: int, rest: int) -> None:
    """Submit what was put and wait for `wait` completions, for `rest` ns if it is not 0; note an error."""
    state, now = int64s(m, STATE), 0
    if state[FRESH] or rest:
        now = _now(m)
    if state[FRESH]:
        rows, submitted = int64s(m, FRESH_ROWS), int64s(m, SUBMITTED_NS)
        for i in range(state[FRESH]):
            submitted[rows[i]] = now
        state[FRESH] = 0
    uint32s(m, WORDS)[state[SQ_TAIL_AT]] = state[TAIL] & 0xFFFFFFFF
    queued = state[TAIL] - state[SUBMITTED]
    flags, argument, size = r.GETEVENTS, 0, 0
    if rest:
        timeout = int64s(m, TIMEOUT)
        timeout[0], timeout[1] = rest // _NS_PER_S, rest % _NS_PER_S
        flags, argument, size = r.GETEVENTS | r.EXT_ARG, state[ARGUMENT], r.ARGUMENT_BYTES
    done = _syscall(r.ENTER, state[FD], queued, wait, flags, argument, size)
    if done >= 0:
        state[SUBMITTED] += done
    elif not rest or _now(m) < now + rest:
        # The time was not over.
        state[IS_ERROR] = 1


@allocating
def _sleep(m: Any, p: Any, q: Any, rest: int) -> None:
    """Submit what was put; wait for a completion for `rest` ns, unless there is something to do."""
    state = int64s(m, STATE)
    is_full = state[OUT] >= state[DEPTH]
    if not rest or not mailbox.fall_asleep(q, FULL if is_full else HUNGRY):
        is_none = state[HEAD] == np.int64(uint32s(m, WORDS)[state[CQ_TAIL_AT]])
        if is_none or state[TAIL] != state[SUBMITTED]:
            _enter(m, 0, 0)
        return
    if is_full:
        # A completion will come, whatever else happens.
        _enter(m, 1, 0)
    else:
        started = _now(m)
        is_starved = o.is_starved(p, started)
        _enter(m, 1, rest)
        if is_starved:
            state[STARVED_NS] += (_now(m) - started) * (state[DEPTH] - state[OUT])
    int64s(q, FLAGS)[ASLEEP] = AWAKE


@allocating
def _rest(m: Any, p: Any, now: int, until: int) -> int:
    """Return how long nothing has to be submitted; short of a deadline by what waking up takes."""
    state, rest = int64s(m, STATE), until - now
    if state[OUT] < state[DEPTH]:
        if int64s(p, o.COUNTERS)[o.AVAILABLE]:
            return 0
        due = o.next_due(p, now)
        if due != o.NONE:
            rest = min(rest, due - SPIN_NS - now)
        due = o.fill_due(p, now)
        if due != o.NONE:
            rest = min(rest, due - now)
    return max(0, rest)


@allocating
def _reap(m: Any, p: Any) -> None:
    """Take what has completed: pieces of lanes here, the rest to `OTHER`."""
    state, completions, others, words = int64s(m, STATE), int64s(m, COMPLETIONS), table(m, OTHER), uint32s(m, WORDS)
    head, tail = state[HEAD], np.int64(words[state[CQ_TAIL_AT]])
    mailbox.fence()
    while head != tail:
        at = 2 * (head & state[CQ_MASK])
        # The result is the low half of the second word, with a sign.
        data, result = completions[at], (completions[at + 1] << 32) >> 32
        head = (head + 1) & 0xFFFFFFFF
        if data & ((1 << KIND_BITS) - 1) == MOVED_IN_LANE:
            _take_piece(m, p, data >> KIND_BITS, result)
        elif data == WOKEN:
            _rearm(m)
        else:
            others[state[OTHERS], 0], others[state[OTHERS], 1] = data, result
            state[OTHERS] += 1
    state[HEAD] = head
    mailbox.fence()
    words[state[CQ_HEAD_AT]] = head


@allocating
def _rearm(m: Any) -> None:
    """Let the next thread that finds us asleep wake us, too."""
    state = int64s(m, STATE)
    _eventfd_read(state[MAIL_FD], m[CLOCK, 0])
    _put(m, r.POLL_ADD, state[MAIL_FD] << 32, 0, 0, r.POLLIN << 32, WOKEN, 0)


@allocating
def _take_piece(m: Any, p: Any, token: int, result: int) -> None:
    state, tokens, flights = int64s(m, STATE), table(m, TOKENS), table(p, o.FLIGHTS)
    flight, start, length = tokens[token, FLIGHT], tokens[token, PIECE_START], tokens[token, LENGTH]
    least = length
    if tokens[token, WRITE_SLOT] >= 0:
        o.free_data(p, tokens[token, WRITE_SLOT])
    else:
        # Where padding ends beyond the file, a read may end there.
        least = min(length, flights[flight, o.NEEDED_END] - start)
        int64s(m, READ_BUFFERS)[state[FREE_READS]] = tokens[token, READ_BUFFER]
        state[FREE_READS] += 1
    if result < least:
        flights[flight, o.IS_FAILED] = 1
        bad = table(m, BAD_PIECES)[state[BAD]]
        bad[0], bad[1], bad[2], bad[3] = flight, start, length, result
        state[BAD] += 1
    int64s(m, FREE_TOKEN)[state[FREE_TOKENS]] = token
    state[FREE_TOKENS] += 1
    flights[flight, o.LANE_OUT] -= 1
    state[OUT] -= 1


@allocating
def _retire(m: Any, p: Any) -> None:
    """Take lanes with nothing out and nothing to come out of the order; finish with our own that went well."""
    state, c, flights, lanes = int64s(m, STATE), int64s(p, o.COUNTERS), table(p, o.FLIGHTS), int64s(m, LANE_ORDER)
    kept, now = 0, _now(m)
    for i in range(state[LANES]):
        flight = lanes[i]
        f = flights[flight]
        is_put = f[o.NEXT_PIECE] == f[o.PIECES]
        if f[o.LANE_OUT] or not (is_put or c[o.IS_STOPPED]):
            lanes[kept] = flight
            kept += 1
            continue
        f[o.IS_LANE] = 0
        if f[o.IS_OWN] and is_put and not f[o.IS_FAILED]:
            int64s(m, COMPLETED_NS)[f[o.ROW]] = now
            int8s(m, OUTCOME)[f[o.ROW]] = OK
            f[o.OUTSTANDING] -= 1
            o.done(p, flight, now)
        else:
            int64s(m, OVER_LANES)[state[OVER]] = flight
            state[OVER] += 1
    state[LANES] = kept


@allocating
def run(m: Any, p: Any, q: Any, until: int) -> None:
    """Put, submit, wait and reap until Python has something to do, or the time `until` has come.

    `m` are the places of the arrays named above, `p` those of `order`, `q` those of `mailbox`.
    """
    state, c = int64s(m, STATE), int64s(p, o.COUNTERS)
    while True:
        is_pythons, passed = not mailbox.take_made(q, p), 0
        if not c[o.IS_STOPPED]:
            is_pythons = begin(m, p) or is_pythons
            # Of what is passed over no completion will come.
            passed = _put_pieces(m, p)
        now = _now(m)
        mailbox.ask(q, p, now, state[OUT] < state[DEPTH])
        _sleep(m, p, q, 0 if is_pythons or passed else _rest(m, p, now, until))
        _reap(m, p)
        _retire(m, p)
        if is_pythons or now >= until or state[IS_ERROR] or state[OTHERS] or state[OVER] or state[BAD]:
            return
        if o.is_over(c) and not state[OUT]:
            return
