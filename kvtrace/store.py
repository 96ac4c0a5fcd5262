"""The compiled tiers: what is live where, recency order, placement and eviction, and the rows they cause.

Objects live in dense slots; each tier keeps its slots in an intrusive doubly linked list, most recent first.
State is a few int64 matrices and no objects, because counting references costs more than the work itself:
`slots[slot, field]`, `tiers[tier, field]`, `rows[column, row]`, `control[field]`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvtrace.compiled import inlined, njit
from kvtrace.core.schema import TRACE, Op, Phase, enum_code

UNBOUNDED = 2**62
NONE = -1

READ, WRITE, DELETE = (enum_code(TRACE, "op", op) for op in (Op.READ, Op.WRITE, Op.DELETE))
LOAD, PROMOTE, PREFILL, STORE, DECODE, DEMOTE, EVICT = (
    enum_code(TRACE, "phase", phase)
    for phase in (Phase.LOAD, Phase.PROMOTE, Phase.PREFILL, Phase.STORE, Phase.DECODE, Phase.DEMOTE, Phase.EVICT)
)

# Fields of a tier: bytes it may hold, largest object it takes, bytes it holds, most and least recent slot, and
# counters of what happened in it.
LIMIT, LARGEST, USED, HEAD, TAIL, HITS, HIT_BYTES, WRITTEN_BYTES, DELETED_BYTES, READ_BYTES, TIER_FIELDS = range(11)

# Fields of a slot: the object it holds, its bytes (all ranks together), a bit for each tier it is live in, whether
# a conversation may still ask for it (so that it is not reused), the next slot of that conversation, and from
# LINKS on, for each tier, the next more recent and the next less recent slot.
OBJECT, SIZE, LIVE, HELD, FOLLOWING, LINKS = range(6)

# Columns of rows.
TS_NS, OP, TIER, PHASE, OBJECT_ID, LENGTH_BYTES, REQUEST_ID, STAGE, RANK, ROW_FIELDS = range(10)

# Fields of control that this module uses: rows filled, objects of one slot (one a rank), free slots.
ROW_COUNT, RANKS, FREE_COUNT, STORE_CONTROLS = range(4)


def new_tiers(limits: list[int], largest: list[int]) -> Any:
    """Return empty tiers that hold `limits` bytes and take objects of up to `largest`."""
    tiers = np.zeros((len(limits), TIER_FIELDS), dtype=np.int64)
    tiers[:, LIMIT], tiers[:, LARGEST] = limits, largest
    tiers[:, HEAD] = tiers[:, TAIL] = NONE
    return tiers


def new_slots(sizes: Any, tier_count: int, *, are_held: bool) -> Any:
    """Return one slot an object of `sizes` bytes, live nowhere; `are_held` if their requests are still to come."""
    slots = np.full((len(sizes), LINKS + 2 * tier_count), NONE, dtype=np.int64)
    slots[:, OBJECT], slots[:, SIZE] = np.arange(len(sizes)), sizes
    slots[:, LIVE], slots[:, HELD] = 0, int(are_held)
    return slots


def new_rows(capacity: int) -> Any:
    """Return room for `capacity` rows."""
    return np.empty((ROW_FIELDS, capacity), dtype=np.int64)


@inlined
def unlink(tiers: Any, slots: Any, t: int, slot: int) -> None:
    """Take `slot` out of the recency list of tier `t`."""
    before, after = slots[slot, LINKS + 2 * t], slots[slot, LINKS + 2 * t + 1]
    if before == NONE:
        tiers[t, HEAD] = after
    else:
        slots[before, LINKS + 2 * t + 1] = after
    if after == NONE:
        tiers[t, TAIL] = before
    else:
        slots[after, LINKS + 2 * t] = before


@inlined
def link_first(tiers: Any, slots: Any, t: int, slot: int) -> None:
    """Put `slot` first in the recency list of tier `t`."""
    head = tiers[t, HEAD]
    slots[slot, LINKS + 2 * t] = NONE
    slots[slot, LINKS + 2 * t + 1] = head
    if head == NONE:
        tiers[t, TAIL] = slot
    else:
        slots[head, LINKS + 2 * t] = slot
    tiers[t, HEAD] = slot


@inlined
def touch(tiers: Any, slots: Any, t: int, slot: int) -> None:
    """Make `slot` the most recent of tier `t`."""
    if tiers[t, HEAD] != slot:
        unlink(tiers, slots, t, slot)
        link_first(tiers, slots, t, slot)


@inlined
def emit(
    rows: Any, control: Any, now: int, op: int, t: int, phase: int, object_: int, size: int, request: int, stage: int
) -> None:
    """Append one row a rank; `size` is of all ranks together; request NONE is background work."""
    ranks = control[RANKS]
    first = control[ROW_COUNT]
    control[ROW_COUNT] = first + ranks
    for rank in range(ranks):
        i = first + rank
        rows[TS_NS, i] = now
        rows[OP, i] = op
        rows[TIER, i] = t
        rows[PHASE, i] = phase
        rows[OBJECT_ID, i] = object_ * ranks + rank
        rows[LENGTH_BYTES, i] = size // ranks
        rows[REQUEST_ID, i] = request
        rows[STAGE, i] = stage
        rows[RANK, i] = rank


@inlined
def read(
    tiers: Any, slots: Any, rows: Any, control: Any, t: int, slot: int, now: int, phase: int, request: int, stage: int
) -> None:
    """Read the whole of `slot` in tier `t` and make it the most recent there."""
    touch(tiers, slots, t, slot)
    tiers[t, READ_BYTES] += slots[slot, SIZE]
    emit(rows, control, now, READ, t, phase, slots[slot, OBJECT], slots[slot, SIZE], request, stage)


@inlined
def write(
    tiers: Any, slots: Any, rows: Any, control: Any, t: int, slot: int, now: int, phase: int, request: int, stage: int
) -> None:
    """Write `slot` into tier `t`, which has room, as its most recent."""
    link_first(tiers, slots, t, slot)
    slots[slot, LIVE] |= 1 << t
    tiers[t, USED] += slots[slot, SIZE]
    tiers[t, WRITTEN_BYTES] += slots[slot, SIZE]
    emit(rows, control, now, WRITE, t, phase, slots[slot, OBJECT], slots[slot, SIZE], request, stage)


@inlined
def release(slots: Any, free: Any, control: Any, slot: int) -> None:
    """Give `slot` back if it lives nowhere and nobody holds it."""
    if slots[slot, LIVE] == 0 and slots[slot, HELD] == 0:
        free[control[FREE_COUNT]] = slot
        control[FREE_COUNT] += 1


@inlined
def drop(tiers: Any, slots: Any, free: Any, rows: Any, control: Any, t: int, slot: int, now: int, phase: int) -> None:
    """Delete `slot` from tier `t`; a slot that lives nowhere and that nobody can ask for becomes free."""
    unlink(tiers, slots, t, slot)
    slots[slot, LIVE] &= ~(1 << t)
    tiers[t, USED] -= slots[slot, SIZE]
    tiers[t, DELETED_BYTES] += slots[slot, SIZE]
    emit(rows, control, now, DELETE, t, phase, slots[slot, OBJECT], slots[slot, SIZE], NONE, NONE)
    release(slots, free, control, slot)


@inlined
def fastest(tiers: Any, slots: Any, slot: int) -> int:
    """Return the fastest tier in which `slot` is live, or NONE."""
    live = slots[slot, LIVE]
    t = 0
    while t < len(tiers) and not live & (1 << t):
        t += 1
    return t if t < len(tiers) else NONE


@inlined
def has_room(tiers: Any, t: int, size: int) -> bool:
    """Return whether `size` more bytes fit tier `t`; an object it takes may fill an empty tier past its limit."""
    return tiers[t, USED] == 0 or tiers[t, USED] + size <= tiers[t, LIMIT]


@inlined
def make_room(tiers: Any, slots: Any, free: Any, rows: Any, control: Any, t: int, size: int, now: int) -> bool:
    """Delete the least recent of tier `t` until `size` more bytes fit; False if it takes no such object."""
    takes_it = size <= tiers[t, LARGEST]
    while takes_it and not has_room(tiers, t, size):
        victim = tiers[t, TAIL]
        drop(tiers, slots, free, rows, control, t, victim, now, EVICT)
    return takes_it


@inlined
def lower_tier(tiers: Any, t: int, size: int) -> int:
    """Return the fastest tier from `t` down that takes objects of `size` bytes, or NONE."""
    while t < len(tiers) and size > tiers[t, LARGEST]:
        t += 1
    return t if t < len(tiers) else NONE


@njit
def make_room_by_demotion(
    tiers: Any, slots: Any, free: Any, rows: Any, control: Any, wanted: Any, t: int, size: int, now: int
) -> None:
    """Move the least recent of tier `t` down until `size` more bytes fit; what fits nowhere lower is deleted.

    A tier below may have to make room first, and so on: `wanted[0, d]` is the tier at depth d of that, and
    `wanted[1, d]` the bytes it must make room for (scratch, int64[2, tiers + 1]).
    """
    depth = 0
    wanted[0, 0], wanted[1, 0] = t, size
    while depth >= 0:
        upper = wanted[0, depth]
        if has_room(tiers, upper, wanted[1, depth]):
            depth -= 1
            continue
        victim = tiers[upper, TAIL]
        bytes_ = slots[victim, SIZE]
        lower = lower_tier(tiers, upper + 1, bytes_)
        if lower == NONE:
            drop(tiers, slots, free, rows, control, upper, victim, now, EVICT)
        elif has_room(tiers, lower, bytes_):
            emit(rows, control, now, READ, upper, DEMOTE, slots[victim, OBJECT], bytes_, NONE, NONE)
            tiers[upper, READ_BYTES] += bytes_
            write(tiers, slots, rows, control, lower, victim, now, DEMOTE, NONE, NONE)
            drop(tiers, slots, free, rows, control, upper, victim, now, DEMOTE)
        else:
            depth += 1
            wanted[0, depth], wanted[1, depth] = lower, bytes_
