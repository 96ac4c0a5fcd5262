"""The compiled tiers: what is live where, placement and eviction, and the rows they cause.

Objects live in dense slots; records.py says what is kept of them, policies which object a tier gives up.
"""

from __future__ import annotations

from kvtrace.core.compiled import forced, inner
from kvtrace.core.schema import TRACE, Op, Phase, enum_code
from kvtrace.sim.policies.queues import (
    first_expiry,
    forget,
    on_hit,
    on_insert,
    on_remove,
    queue_of,
    settle,
    victim,
)
from kvtrace.sim.records import NONE, PACKED_BITS, World

READ, WRITE, DELETE = (enum_code(TRACE, "op", op) for op in (Op.READ, Op.WRITE, Op.DELETE))
LOAD, PROMOTE, PREFILL, STORE, DECODE, DEMOTE, EVICT, POPULATE, RETRIEVE = (
    enum_code(TRACE, "phase", phase)
    for phase in (
        *(Phase.LOAD, Phase.PROMOTE, Phase.PREFILL, Phase.STORE, Phase.DECODE, Phase.DEMOTE, Phase.EVICT),
        *(Phase.POPULATE, Phase.RETRIEVE),
    )
)


@forced
def _is_endless(world: World, t: int) -> int:
    """Return whether tier `t` never gives anything up: which it would give up first is not kept."""
    return world.knobs.endless & (1 << t)


@forced
def packed(what: int) -> int:
    """Return what an entry that is no slot stands for, or such an entry."""
    return -2 - what


@forced
def live_in(world: World, entry: int) -> int:
    """Return a bit for each tier in which the object of an entry of World.contexts, or of a slot, is live."""
    return world.slots[entry].live if entry >= 0 else packed(entry) & ((1 << (PACKED_BITS - 1)) - 1)


@forced
def size_of(world: World, entry: int) -> int:
    """Return the bytes of the object of an entry, all ranks together."""
    return world.slots[entry].size if entry >= 0 else world.knobs.chunk_bytes


@inner
def give_slot(world: World, home: int) -> int:
    """Return the slot of the object that `contexts[home]` stands for; it takes one if it has none."""
    entry: int = world.contexts[home]
    if entry >= 0:
        return entry
    control, known = world.control, packed(entry)
    control.free -= 1
    slot: int = world.free[control.free]
    what = world.slots[slot]
    what.object, what.size, what.home, what.held = known >> PACKED_BITS, world.knobs.chunk_bytes, home, 1
    what.live, what.seen = live_in(world, entry), known >> (PACKED_BITS - 1) & 1
    world.contexts[home] = slot
    return slot


@inner
def _loosen(world: World, slot: int) -> None:
    """Note that no tier may give `slot` up any more, if so: others may still look at it in this step."""
    what, control = world.slots[slot], world.control
    if world.knobs.is_packed and not what.is_loose and what.live & ~world.knobs.endless == 0:
        what.is_loose = 1
        world.loose[control.loose] = slot
        control.loose += 1


@inner
def pack(world: World) -> None:
    """Take the slots of those objects that need none: what an entry can hold is all that is known of them."""
    control = world.control
    while control.loose > 0:
        control.loose -= 1
        slot = world.loose[control.loose]
        what = world.slots[slot]
        what.is_loose = 0
        if what.held and what.home != NONE and what.live & ~world.knobs.endless == 0:
            known = what.object << PACKED_BITS | what.seen << (PACKED_BITS - 1) | what.live
            world.contexts[what.home] = packed(known)
            what.held, what.live = 0, 0
            world.free[control.free] = slot
            control.free += 1


@inner
def emit_layer(
    world: World, now: int, op: int, t: int, phase: int, entry: int, size: int, request: int, stage: int, layer: int
) -> None:
    """Append a row for each rank's object of one group of layers of `entry`; `size` is of all its objects."""
    rows, ranks, layers = world.rows, world.knobs.ranks, world.knobs.layers
    first: int = world.control.rows
    number = world.slots[entry].object if entry >= 0 else packed(entry) >> PACKED_BITS
    world.control.rows = first + ranks
    for rank in range(ranks):
        i = first + rank
        rows.ts_ns[i] = now
        rows.op[i] = op
        rows.tier[i] = t
        rows.phase[i] = phase
        rows.object_id[i] = (number * ranks + rank) * layers + layer
        rows.length_bytes[i] = size // (ranks * layers)
        rows.request_id[i] = request
        rows.stage[i] = stage
        rows.rank[i] = rank


@forced
def emit(world: World, now: int, op: int, t: int, phase: int, entry: int, size: int, request: int, stage: int) -> None:
    """Append one row for each object of an entry or a slot; request NONE is background work."""
    for layer in range(world.knobs.layers):
        emit_layer(world, now, op, t, phase, entry, size, request, stage, layer)


@inner
def _occupy(world: World, t: int, rate: int, busy_ns: int, size: int, now: int) -> int:
    """Return until when a direction of tier `t`, busy until `busy_ns`, is busy with `size` bytes more."""
    tier = world.tiers[t]
    transfer = size * 1000 // rate
    if tier.concurrency > 0:
        transfer = max(transfer, tier.latency_ns // tier.concurrency)
    return max(busy_ns, now) + transfer


@forced
def serve_read(world: World, t: int, size: int, now: int) -> int:
    """Give tier `t` a read of `size` bytes; return when it is done, by the service model.

    Each direction is one first-come server. An operation occupies it for its bytes over the rate, or for its
    share of the latency if at most so many run at once; it is done a latency later. Without a rate, no time.
    """
    tier, done = world.tiers[t], now
    if tier.read_rate > 0:
        tier.read_busy_ns = _occupy(world, t, tier.read_rate, tier.read_busy_ns, size, now)
        done = tier.read_busy_ns + tier.latency_ns
    return done


@forced
def _serve_write(world: World, t: int, size: int, now: int) -> None:
    tier = world.tiers[t]
    if tier.write_rate > 0:
        tier.write_busy_ns = _occupy(world, t, tier.write_rate, tier.write_busy_ns, size, now)


@forced
def _stamp(world: World, slot: int) -> None:
    if world.knobs.keeps_age:
        world.control.uses += 1
        world.ages[slot] = world.control.uses


@inner
def follow(world: World, t: int, i: int) -> None:
    """Let the object `chain[i]`, once it is used in tier `t`, be less recent than those before it, if that is so."""
    if not world.knobs.is_tail_first or _is_endless(world, t):
        return
    k = i - 1
    while k >= 0 and (world.chain[k] == world.chain[i] or not live_in(world, world.chain[k]) & (1 << t)):
        k -= 1
    world.tiers[t].behind = 0 if k < 0 else 1 + world.chain[k]


@forced
def touch(world: World, t: int, entry: int) -> None:
    """Note that the object of `entry`, which is live in tier `t`, was used."""
    if not _is_endless(world, t):
        on_hit(world, t, entry)
    if entry >= 0:
        _stamp(world, entry)


@inner
def read(world: World, t: int, slot: int, now: int, phase: int, request: int, stage: int) -> int:
    """Read the whole of `slot` in tier `t`; return when it is done. Whether that makes it recent is the caller's."""
    size = world.slots[slot].size
    world.tiers[t].read_bytes += size
    emit(world, now, READ, t, phase, slot, size, request, stage)
    return serve_read(world, t, size, now)


@inner
def write(world: World, t: int, slot: int, now: int, phase: int, request: int, stage: int) -> None:
    """Write `slot` into tier `t`, which has room."""
    tier, what = world.tiers[t], world.slots[slot]
    if not _is_endless(world, t):
        on_insert(world, t, slot, now)
    if phase != DEMOTE:
        _stamp(world, slot)
    what.live |= 1 << t
    tier.used += what.size
    tier.written_bytes += what.size
    _serve_write(world, t, what.size, now)
    emit(world, now, WRITE, t, phase, slot, what.size, request, stage)
    _loosen(world, slot)


@inner
def release(world: World, slot: int) -> None:
    """Give `slot` back if nobody holds it and no tier will ever need it again; no tier then remembers it.

    A tier that never gives anything up does not need what nobody can ask for: so memory does not grow with it.
    """
    what, control = world.slots[slot], world.control
    if what.held == 0 and what.live & ~world.knobs.endless == 0:
        what.live = 0
        if len(world.notes):
            forget(world, slot)
        world.free[control.free] = slot
        control.free += 1


@inner
def drop(world: World, t: int, slot: int, now: int, phase: int) -> None:
    """Delete `slot` from tier `t`; a slot that lives nowhere and that nobody can ask for becomes free."""
    if not _is_endless(world, t):
        on_remove(world, t, slot, phase != PROMOTE)
    tier, what = world.tiers[t], world.slots[slot]
    what.live &= ~(1 << t)
    tier.used -= what.size
    tier.deleted_bytes += what.size
    emit(world, now, DELETE, t, phase, slot, what.size, NONE, NONE)
    if what.held:
        _loosen(world, slot)
    else:
        release(world, slot)


@forced
def fastest(world: World, entry: int) -> int:
    """Return the fastest tier in which the object of `entry` is live, or NONE."""
    live, t = live_in(world, entry), 0
    while t < len(world.tiers) and not live & (1 << t):
        t += 1
    return t if t < len(world.tiers) else NONE


@forced
def has_room(world: World, t: int, size: int) -> bool:
    """Return whether `size` more bytes fit tier `t`; an object it takes may fill an empty tier past its limit."""
    tier = world.tiers[t]
    return tier.used == 0 or tier.used + size <= tier.limit


@inner
def make_room(world: World, t: int, slot: int, now: int) -> bool:
    """Delete from tier `t` what its policy says, down to its low mark, if `slot` does not fit.

    Return False if it takes no such object.
    """
    tier, size = world.tiers[t], world.slots[slot].size
    takes_it = size <= tier.largest
    if takes_it and not has_room(world, t, size):
        while tier.used > 0 and tier.used + size > tier.low:
            drop(world, t, victim(world, t, slot), now, EVICT)
    return takes_it


@forced
def lower_tier(world: World, t: int, size: int) -> int:
    """Return the fastest tier from `t` down that takes objects of `size` bytes, or NONE."""
    while t < len(world.tiers) and size > world.tiers[t].largest:
        t += 1
    return t if t < len(world.tiers) else NONE


@inner
def make_room_by_demotion(world: World, t: int, slot: int, now: int) -> None:
    """Move what the policy of tier `t` gives up down until `slot` fits, or delete it.

    What fits nowhere lower, or is live in the tier below already, is deleted. A tier below may have to make room
    first, and so on: `wanted[d]` is what is wanted at depth d of that.
    """
    depth = 0
    first = world.wanted[0]
    first.tier, first.slot, first.leaving = t, slot, NONE
    while depth >= 0:
        wanted = world.wanted[depth]
        upper = wanted.tier
        if has_room(world, upper, world.slots[wanted.slot].size):
            depth -= 1
            continue
        if wanted.leaving == NONE:
            wanted.leaving = victim(world, upper, wanted.slot)
        leaving = wanted.leaving
        size = world.slots[leaving].size
        lower = lower_tier(world, upper + 1, size)
        if lower == NONE or world.slots[leaving].live & (1 << lower):
            drop(world, upper, leaving, now, EVICT)
            wanted.leaving = NONE
        elif has_room(world, lower, size):
            read(world, upper, leaving, now, DEMOTE, NONE, NONE)
            write(world, lower, leaving, now, DEMOTE, NONE, NONE)
            if world.knobs.keeps_age:
                settle(world, lower, leaving)
            drop(world, upper, leaving, now, DEMOTE)
            wanted.leaving = NONE
        else:
            depth += 1
            below = world.wanted[depth]
            below.tier, below.slot, below.leaving = lower, leaving, NONE


@inner
def expire(world: World, now: int) -> bool:
    """Delete what expires until `now`, each at its time, as far as the rows have room; return whether that is all."""
    t, when = first_expiry(world)
    while t != NONE and when <= now:
        if world.control.rows + world.knobs.ranks * world.knobs.layers > len(world.rows.ts_ns):
            return False
        drop(world, t, queue_of(world, t, 0).tail, when, EVICT)
        t, when = first_expiry(world)
    return True
