"""The compiled tiers: what is live where, recency order, placement and eviction, and the rows they cause.

Objects live in dense slots; each tier keeps its slots in an intrusive doubly linked list, most recent first.
Everything is int64 or int32 arrays: no clock, no globals, no hashing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from kvtrace.core.schema import TRACE, Op, Phase, enum_code

UNBOUNDED = 2**62
NONE = -1

READ, WRITE, DELETE = (enum_code(TRACE, "op", op) for op in (Op.READ, Op.WRITE, Op.DELETE))
LOAD, PROMOTE, PREFILL, STORE, DECODE, DEMOTE, EVICT = (
    enum_code(TRACE, "phase", phase)
    for phase in (
        Phase.LOAD,
        Phase.PROMOTE,
        Phase.PREFILL,
        Phase.STORE,
        Phase.DECODE,
        Phase.DEMOTE,
        Phase.EVICT,
    )
)

# Columns of Tiers.count: what happened in each tier.
HITS, HIT_BYTES, WRITTEN_BYTES, DELETED_BYTES, READ_BYTES, COUNTERS = range(6)


class Tiers(NamedTuple):
    """The state of each tier; T tiers, S slots."""

    limit: Any
    """int64[T]: bytes it may hold."""
    max_object: Any
    """int64[T]: the largest object it takes, bytes."""
    used: Any
    """int64[T]: bytes it holds."""
    head: Any
    """int32[T]: the most recent slot, or NONE."""
    tail: Any
    """int32[T]: the least recent slot, or NONE."""
    before: Any
    """int32[T, S]: the next more recent slot."""
    after: Any
    """int32[T, S]: the next less recent slot."""
    count: Any
    """int64[T, COUNTERS]."""


class Slots(NamedTuple):
    """The state of each object slot."""

    object_id: Any
    """int64[S]: which object it holds."""
    size: Any
    """int64[S]: its bytes, all ranks together."""
    live: Any
    """int32[S]: bit t is set while it is live in tier t."""
    held: Any
    """int8[S]: 1 while a conversation may still ask for it, so that the slot is not reused."""
    following: Any
    """int32[S]: the next slot of the same conversation, or NONE."""
    free: Any
    """int32[S]: a stack of unused slots; free_count[0] of them."""
    free_count: Any
    """int64[1]."""


class Rows(NamedTuple):
    """Trace rows being written: columns as in the trace table, and how many are filled."""

    ts_ns: Any
    op: Any
    tier: Any
    phase: Any
    object_id: Any
    length_bytes: Any
    request_id: Any
    stage: Any
    rank: Any
    count: Any
    """int64[1]."""
    ranks: Any
    """int64[1]: objects of one slot, one a rank."""


def new_tiers(limits: list[int], max_objects: list[int], slots: int) -> Tiers:
    """Return empty tiers that hold `limits` bytes, for `slots` slots."""
    n = len(limits)
    return Tiers(
        np.array(limits, dtype=np.int64), np.array(max_objects, dtype=np.int64), np.zeros(n, dtype=np.int64),
        np.full(n, NONE, dtype=np.int32), np.full(n, NONE, dtype=np.int32),
        np.full((n, slots), NONE, dtype=np.int32), np.full((n, slots), NONE, dtype=np.int32),
        np.zeros((n, COUNTERS), dtype=np.int64),
    )  # fmt: skip


def new_slots(object_ids: Any, sizes: Any, *, are_held: bool) -> Slots:
    """Return slots for the objects of a file, all in use, or (`are_held` false) all free for a generator."""
    n = len(sizes)
    free = np.arange(n - 1, -1, -1, dtype=np.int32)
    return Slots(
        np.asarray(object_ids, dtype=np.int64), np.asarray(sizes, dtype=np.int64), np.zeros(n, dtype=np.int32),
        np.full(n, int(are_held), dtype=np.int8), np.full(n, NONE, dtype=np.int32), free,
        np.array([0 if are_held else n], dtype=np.int64),
    )  # fmt: skip


def new_rows(capacity: int, ranks: int) -> Rows:
    """Return room for `capacity` rows of a model stored on `ranks` ranks."""
    types = (np.int64, np.int8, np.int8, np.int8, np.int64, np.int64, np.int64, np.int32, np.int16)
    columns: list[Any] = [np.empty(capacity, dtype=t) for t in types]
    return Rows._make([*columns, np.zeros(1, dtype=np.int64), np.array([ranks], dtype=np.int64)])


@njit(cache=True, nogil=True)
def unlink(tiers: Tiers, t: int, slot: int) -> None:
    """Take `slot` out of the recency list of tier `t`."""
    before, after = tiers.before[t, slot], tiers.after[t, slot]
    if before == NONE:
        tiers.head[t] = after
    else:
        tiers.after[t, before] = after
    if after == NONE:
        tiers.tail[t] = before
    else:
        tiers.before[t, after] = before


@njit(cache=True, nogil=True)
def link_first(tiers: Tiers, t: int, slot: int) -> None:
    """Put `slot` first in the recency list of tier `t`."""
    head = tiers.head[t]
    tiers.before[t, slot] = NONE
    tiers.after[t, slot] = head
    if head == NONE:
        tiers.tail[t] = slot
    else:
        tiers.before[t, head] = slot
    tiers.head[t] = slot


@njit(cache=True, nogil=True)
def touch(tiers: Tiers, t: int, slot: int) -> None:
    """Make `slot` the most recent of tier `t`."""
    if tiers.head[t] != slot:
        unlink(tiers, t, slot)
        link_first(tiers, t, slot)


@njit(cache=True, nogil=True)
def emit(
    rows: Rows, now: int, op: int, t: int, phase: int, object_id: int, size: int, request: int, stage: int
) -> None:
    """Append one row a rank; `size` is of all ranks together; request NONE is background work."""
    ranks = rows.ranks[0]
    for rank in range(ranks):
        i = rows.count[0]
        rows.ts_ns[i] = now
        rows.op[i] = op
        rows.tier[i] = t
        rows.phase[i] = phase
        rows.object_id[i] = object_id * ranks + rank
        rows.length_bytes[i] = size // ranks
        rows.request_id[i] = request
        rows.stage[i] = stage
        rows.rank[i] = rank
        rows.count[0] = i + 1


@njit(cache=True, nogil=True)
def read(
    tiers: Tiers, slots: Slots, rows: Rows, t: int, slot: int, now: int, phase: int, request: int, stage: int
) -> None:
    """Read the whole of `slot` in tier `t` and make it the most recent there."""
    touch(tiers, t, slot)
    tiers.count[t, READ_BYTES] += slots.size[slot]
    emit(rows, now, READ, t, phase, slots.object_id[slot], slots.size[slot], request, stage)


@njit(cache=True, nogil=True)
def write(
    tiers: Tiers, slots: Slots, rows: Rows, t: int, slot: int, now: int, phase: int, request: int, stage: int
) -> None:
    """Write `slot` into tier `t`, which has room, as its most recent."""
    link_first(tiers, t, slot)
    slots.live[slot] |= 1 << t
    tiers.used[t] += slots.size[slot]
    tiers.count[t, WRITTEN_BYTES] += slots.size[slot]
    emit(rows, now, WRITE, t, phase, slots.object_id[slot], slots.size[slot], request, stage)


@njit(cache=True, nogil=True)
def drop(tiers: Tiers, slots: Slots, rows: Rows, t: int, slot: int, now: int, phase: int) -> None:
    """Delete `slot` from tier `t`; a slot that lives nowhere and that nobody can ask for becomes free."""
    unlink(tiers, t, slot)
    slots.live[slot] &= ~(1 << t)
    tiers.used[t] -= slots.size[slot]
    tiers.count[t, DELETED_BYTES] += slots.size[slot]
    emit(rows, now, DELETE, t, phase, slots.object_id[slot], slots.size[slot], NONE, NONE)
    release(slots, slot)


@njit(cache=True, nogil=True)
def release(slots: Slots, slot: int) -> None:
    """Give `slot` back if it lives nowhere and nobody holds it."""
    if slots.live[slot] == 0 and slots.held[slot] == 0:
        slots.free[slots.free_count[0]] = slot
        slots.free_count[0] += 1


@njit(cache=True, nogil=True)
def fastest(tiers: Tiers, slots: Slots, slot: int) -> int:
    """Return the fastest tier in which `slot` is live, or NONE."""
    live = slots.live[slot]
    for t in range(len(tiers.limit)):
        if live & (1 << t):
            return t
    return NONE


@njit(cache=True, nogil=True)
def has_room(tiers: Tiers, t: int, size: int) -> bool:
    """Return whether `size` more bytes fit tier `t`; an object it takes may fill an empty tier past its limit."""
    return tiers.used[t] == 0 or tiers.used[t] + size <= tiers.limit[t]


@njit(cache=True, nogil=True)
def make_room(tiers: Tiers, slots: Slots, rows: Rows, t: int, size: int, now: int) -> bool:
    """Delete the least recent of tier `t` until `size` more bytes fit; False if it takes no such object."""
    if size > tiers.max_object[t]:
        return False
    while not has_room(tiers, t, size):
        drop(tiers, slots, rows, t, tiers.tail[t], now, EVICT)
    return True


@njit(cache=True, nogil=True)
def lower_tier(tiers: Tiers, t: int, size: int) -> int:
    """Return the fastest tier from `t` down that takes objects of `size` bytes, or NONE."""
    for lower in range(t, len(tiers.limit)):
        if size <= tiers.max_object[lower]:
            return lower
    return NONE


@njit(cache=True, nogil=True)
def make_room_by_demotion(tiers: Tiers, slots: Slots, rows: Rows, t: int, size: int, now: int) -> None:
    """Move the least recent of tier `t` down until `size` more bytes fit; what fits nowhere lower is deleted.

    A tier below may have to make room first, and so on: `want[d]` bytes are wanted in tier `where[d]`.
    """
    where = np.empty(len(tiers.limit) + 1, dtype=np.int64)
    want = np.empty(len(tiers.limit) + 1, dtype=np.int64)
    depth = 0
    where[0], want[0] = t, size
    while depth >= 0:
        upper = where[depth]
        if has_room(tiers, upper, want[depth]):
            depth -= 1
            continue
        victim = tiers.tail[upper]
        bytes_ = slots.size[victim]
        lower = lower_tier(tiers, upper + 1, bytes_)
        if lower == NONE:
            drop(tiers, slots, rows, upper, victim, now, EVICT)
        elif has_room(tiers, lower, bytes_):
            emit(rows, now, READ, upper, DEMOTE, slots.object_id[victim], bytes_, NONE, NONE)
            tiers.count[upper, READ_BYTES] += bytes_
            write(tiers, slots, rows, lower, victim, now, DEMOTE, NONE, NONE)
            drop(tiers, slots, rows, upper, victim, now, DEMOTE)
        else:
            depth += 1
            where[depth], want[depth] = lower, bytes_
