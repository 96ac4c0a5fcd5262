"""The compiled tiers: what is live where, placement and eviction, and the rows they cause.

Objects live in dense slots; state.py says what the matrices hold, policies which object a tier gives up.
"""

from __future__ import annotations

from typing import Any

from kvtrace.core.compiled import inlined, njit
from kvtrace.core.schema import TRACE, Op, Phase, enum_code
from kvtrace.sim.policies.policies import first_expiry, forget, has_policies, on_hit, on_insert, on_remove, victim
from kvtrace.sim.records import (
    CONCURRENCY,
    DELETED_BYTES,
    ENDLESS,
    FREE_COUNT,
    HELD,
    LARGEST,
    LATENCY_NS,
    LAYERS,
    LENGTH_BYTES,
    LIMIT,
    LIVE,
    LOW,
    NONE,
    OBJECT,
    OBJECT_ID,
    OP,
    PHASE,
    RANK,
    RANKS,
    READ_BUSY_NS,
    READ_BYTES,
    READ_RATE,
    REQUEST_ID,
    ROW_COUNT,
    SIZE,
    STAGE,
    TAIL,
    TIER,
    TS_NS,
    USED,
    WRITE_BUSY_NS,
    WRITE_RATE,
    WRITTEN_BYTES,
)

READ, WRITE, DELETE = (enum_code(TRACE, "op", op) for op in (Op.READ, Op.WRITE, Op.DELETE))
LOAD, PROMOTE, PREFILL, STORE, DECODE, DEMOTE, EVICT, POPULATE, RETRIEVE = (
    enum_code(TRACE, "phase", phase)
    for phase in (
        Phase.LOAD, Phase.PROMOTE, Phase.PREFILL, Phase.STORE, Phase.DECODE, Phase.DEMOTE, Phase.EVICT,
        Phase.POPULATE, Phase.RETRIEVE,
    )
)  # fmt: skip


@inlined
def touch(tiers: Any, slots: Any, t: int, slot: int) -> None:
    """Note a use of `slot` in tier `t`."""
    on_hit(tiers, slots, t, slot)


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
    """Write `slot` into tier `t`, which has room."""
    on_insert(tiers, slots, t, slot, now)
    slots[slot, LIVE] |= 1 << t
    tiers[t, USED] += slots[slot, SIZE]
    tiers[t, WRITTEN_BYTES] += slots[slot, SIZE]
    serve(tiers, t, 1, slots[slot, SIZE], now)
    emit(rows, control, now, WRITE, t, phase, slots[slot, OBJECT], slots[slot, SIZE], request, stage)


@inlined
def release(tiers: Any, slots: Any, free: Any, control: Any, slot: int) -> None:
    """Give `slot` back if nobody holds it and no tier will ever need it again; no tier then remembers it.

    A tier that never gives anything up does not need what nobody can ask for: so memory does not grow with it.
    """
    live = slots[slot, LIVE]
    if slots[slot, HELD] == 0 and live & ~control[ENDLESS] == 0:
        for t in range(len(tiers)):
            if live & (1 << t):
                on_remove(tiers, slots, t, slot, 0)
        slots[slot, LIVE] = 0
        if has_policies(tiers):
            forget(tiers, slots, slot)
        free[control[FREE_COUNT]] = slot
        control[FREE_COUNT] += 1


@inlined
def drop(tiers: Any, slots: Any, free: Any, rows: Any, control: Any, t: int, slot: int, now: int, phase: int) -> None:
    """Delete `slot` from tier `t`; a slot that lives nowhere and that nobody can ask for becomes free."""
    on_remove(tiers, slots, t, slot, phase != PROMOTE)
    slots[slot, LIVE] &= ~(1 << t)
    tiers[t, USED] -= slots[slot, SIZE]
    tiers[t, DELETED_BYTES] += slots[slot, SIZE]
    emit(rows, control, now, DELETE, t, phase, slots[slot, OBJECT], slots[slot, SIZE], NONE, NONE)
    release(tiers, slots, free, control, slot)


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
def make_room(tiers: Any, slots: Any, free: Any, rows: Any, control: Any, t: int, slot: int, now: int) -> bool:
    """Delete from tier `t` what its policy says, down to its low mark, if `slot` does not fit.

    Return False if it takes no such object.
    """
    size = slots[slot, SIZE]
    takes_it = size <= tiers[t, LARGEST]
    if takes_it and not has_room(tiers, t, size):
        while tiers[t, USED] > 0 and tiers[t, USED] + size > tiers[t, LOW]:
            leaving = victim(tiers, slots, t, slot)
            drop(tiers, slots, free, rows, control, t, leaving, now, EVICT)
    return takes_it


@inlined
def lower_tier(tiers: Any, t: int, size: int) -> int:
    """Return the fastest tier from `t` down that takes objects of `size` bytes, or NONE."""
    while t < len(tiers) and size > tiers[t, LARGEST]:
        t += 1
    return t if t < len(tiers) else NONE


@njit
def make_room_by_demotion(
    tiers: Any, slots: Any, free: Any, rows: Any, control: Any, wanted: Any, t: int, slot: int, now: int
) -> None:
    """Move what the policy of tier `t` gives up down until `slot` fits, or delete it.

    What fits nowhere lower, or is live in the tier below already, is deleted.
    A tier below may have to make room first, and so on: `wanted[0, d]` is the tier at depth d of that,
    `wanted[1, d]` the slot it makes room for, and `wanted[2, d]` the one it gives up, NONE if that is not yet
    chosen (scratch, int64[3, tiers + 1]).
    """
    depth = 0
    wanted[0, 0], wanted[1, 0], wanted[2, 0] = t, slot, NONE
    while depth >= 0:
        upper, incoming = wanted[0, depth], wanted[1, depth]
        if has_room(tiers, upper, slots[incoming, SIZE]):
            depth -= 1
            continue
        if wanted[2, depth] == NONE:
            wanted[2, depth] = victim(tiers, slots, upper, incoming)
        leaving = wanted[2, depth]
        bytes_ = slots[leaving, SIZE]
        lower = lower_tier(tiers, upper + 1, bytes_)
        if lower == NONE or slots[leaving, LIVE] & (1 << lower):
            drop(tiers, slots, free, rows, control, upper, leaving, now, EVICT)
            wanted[2, depth] = NONE
        elif has_room(tiers, lower, bytes_):
            read(tiers, slots, rows, control, upper, leaving, now, DEMOTE, NONE, NONE)
            write(tiers, slots, rows, control, lower, leaving, now, DEMOTE, NONE, NONE)
            drop(tiers, slots, free, rows, control, upper, leaving, now, DEMOTE)
            wanted[2, depth] = NONE
        else:
            depth += 1
            wanted[0, depth], wanted[1, depth], wanted[2, depth] = lower, leaving, NONE


@njit
def expire(tiers: Any, slots: Any, free: Any, rows: Any, control: Any, now: int) -> bool:
    """Delete what expires until `now`, each at its time, as far as the rows have room; return whether that is all."""
    t, when = first_expiry(tiers, slots)
    while t != NONE and when <= now:
        if control[ROW_COUNT] + control[RANKS] * control[LAYERS] > rows.shape[1]:
            return False
        drop(tiers, slots, free, rows, control, t, tiers[t, TAIL], when, EVICT)
        t, when = first_expiry(tiers, slots)
    return True
