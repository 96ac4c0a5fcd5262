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

# Fields of a tier: bytes it may hold, bytes it goes down to when it must make room, largest object it takes, bytes
# it holds, most and least recent slot, and counters of what happened in it. Then the service model: bytes a
# microsecond (0: takes no time), latency, operations at once, and until when it is busy with what it was given.
(
    LIMIT, LOW, LARGEST, USED, HEAD, TAIL, HITS, HIT_BYTES, WRITTEN_BYTES, DELETED_BYTES, READ_BYTES,
    READ_RATE, WRITE_RATE, LATENCY_NS, CONCURRENCY, READ_BUSY_NS, WRITE_BUSY_NS, TIER_FIELDS,
) = range(18)  # fmt: skip

# Fields of a slot: the object it holds, its bytes (all ranks together), a bit for each tier it is live in, whether
# a conversation may still ask for it (so that it is not reused), the next slot of that conversation, whether it was
# loaded once and not promoted yet, and from LINKS on, for each tier, the next more recent and less recent slot.
OBJECT, SIZE, LIVE, HELD, FOLLOWING, SEEN, LINKS = range(7)

# Columns of rows.
TS_NS, OP, TIER, PHASE, OBJECT_ID, LENGTH_BYTES, REQUEST_ID, STAGE, RANK, ROW_FIELDS = range(10)

# Fields of control that this module uses: rows filled, free slots, and of how many objects a slot consists: one for
# each rank and group of layers.
ROW_COUNT, FREE_COUNT, RANKS, LAYERS, STORE_CONTROLS = range(5)


def new_tiers(limits: list[int], largest: list[int]) -> Any:
    """Return empty tiers that hold `limits` bytes and take objects of up to `largest`; service takes no time."""
    tiers = np.zeros((len(limits), TIER_FIELDS), dtype=np.int64)
    tiers[:, LIMIT], tiers[:, LOW], tiers[:, LARGEST] = limits, limits, largest
    tiers[:, HEAD] = tiers[:, TAIL] = NONE
    return tiers


def new_slots(sizes: Any, tier_count: int, *, are_held: bool) -> Any:
    """Return one slot an object of `sizes` bytes, live nowhere; `are_held` if their requests are still to come."""
    slots = np.full((len(sizes), LINKS + 2 * tier_count), NONE, dtype=np.int64)
    slots[:, OBJECT], slots[:, SIZE] = np.arange(len(sizes)), sizes
    slots[:, LIVE], slots[:, HELD], slots[:, SEEN] = 0, int(are_held), 0
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
def emit_layer(
    rows: Any, control: Any, now: int, op: int, t: int, phase: int, object_: int, size: int, request: int, stage: int,
    layer: int,
) -> None:  # fmt: skip
    """Append a row for each rank's object of one group of layers; `size` is of the whole slot."""
    ranks, layers = control[RANKS], control[LAYERS]
    first = control[ROW_COUNT]
    control[ROW_COUNT] = first + ranks
    for rank in range(ranks):
        i = first + rank
        rows[TS_NS, i] = now
        rows[OP, i] = op
        rows[TIER, i] = t
        rows[PHASE, i] = phase
        rows[OBJECT_ID, i] = (object_ * ranks + rank) * layers + layer
        rows[LENGTH_BYTES, i] = size // (ranks * layers)
        rows[REQUEST_ID, i] = request
        rows[STAGE, i] = stage
        rows[RANK, i] = rank


@inlined
def emit(
    rows: Any, control: Any, now: int, op: int, t: int, phase: int, object_: int, size: int, request: int, stage: int
) -> None:
    """Append one row for each object of a slot; request NONE is background work."""
    for layer in range(control[LAYERS]):
        emit_layer(rows, control, now, op, t, phase, object_, size, request, stage, layer)


@inlined
def serve(tiers: Any, t: int, is_write: int, size: int, now: int) -> int:
    """Give tier `t` an operation of `size` bytes; return when it is done, by the service model.

    Each direction is one first-come server. An operation occupies it for its bytes over the rate, or for its
    share of the latency if at most so many run at once; it is done a latency later. Without a rate, no time.
    """
    rate = tiers[t, WRITE_RATE] if is_write else tiers[t, READ_RATE]
    done = now
    if rate > 0:
        busy = WRITE_BUSY_NS if is_write else READ_BUSY_NS
        transfer = size * 1000 // rate
        if tiers[t, CONCURRENCY] > 0:
            transfer = max(transfer, tiers[t, LATENCY_NS] // tiers[t, CONCURRENCY])
        tiers[t, busy] = max(tiers[t, busy], now) + transfer
        done = tiers[t, busy] + tiers[t, LATENCY_NS]
    return done


@inlined
def read(
    tiers: Any, slots: Any, rows: Any, control: Any, t: int, slot: int, now: int, phase: int, request: int, stage: int
) -> int:
    """Read the whole of `slot` in tier `t`; return when it is done. Whether that makes it recent is the caller's."""
    size = slots[slot, SIZE]
    tiers[t, READ_BYTES] += size
    emit(rows, control, now, READ, t, phase, slots[slot, OBJECT], size, request, stage)
    return serve(tiers, t, 0, size, now)


@inlined
def write(
    tiers: Any, slots: Any, rows: Any, control: Any, t: int, slot: int, now: int, phase: int, request: int, stage: int
) -> None:
    """Write `slot` into tier `t`, which has room, as its most recent."""
    link_first(tiers, slots, t, slot)
    slots[slot, LIVE] |= 1 << t
    tiers[t, USED] += slots[slot, SIZE]
    tiers[t, WRITTEN_BYTES] += slots[slot, SIZE]
    serve(tiers, t, 1, slots[slot, SIZE], now)
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
    """Delete the least recent of tier `t`, down to its low mark, if `size` more bytes do not fit.

    Return False if it takes no such object.
    """
    takes_it = size <= tiers[t, LARGEST]
    if takes_it and not has_room(tiers, t, size):
        while tiers[t, USED] > 0 and tiers[t, USED] + size > tiers[t, LOW]:
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
    """Move the least recent of tier `t` down until `size` more bytes fit, or delete it.

    What fits nowhere lower, or is live in the tier below already, is deleted.
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
        if lower == NONE or slots[victim, LIVE] & (1 << lower):
            drop(tiers, slots, free, rows, control, upper, victim, now, EVICT)
        elif has_room(tiers, lower, bytes_):
            read(tiers, slots, rows, control, upper, victim, now, DEMOTE, NONE, NONE)
            write(tiers, slots, rows, control, lower, victim, now, DEMOTE, NONE, NONE)
            drop(tiers, slots, free, rows, control, upper, victim, now, DEMOTE)
        else:
            depth += 1
            wanted[0, depth], wanted[1, depth] = lower, bytes_
