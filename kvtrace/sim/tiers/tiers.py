"""What happens in a tier: an object is read, written, used, or deleted; and how long the tier is busy with it."""

from __future__ import annotations

from kvtrace.core.compiled import forced, inner
from kvtrace.sim.policies.queues import on_hit, on_insert, on_remove
from kvtrace.sim.records import NONE, World
from kvtrace.sim.tiers.admission import refer
from kvtrace.sim.tiers.rows import (
    DELETE,
    DEMOTE,
    LOSE,
    PROMOTE,
    READ,
    WRITE,
    emit,
    found_in,
    is_endless,
    live_in,
    member_of,
)
from kvtrace.sim.tiers.slots import loosen, own, release


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
def begin_reads(world: World, now: int) -> None:
    """Begin the reads of a request."""
    for t in range(len(world.tiers)):
        tier = world.tiers[t]
        tier.reading, tier.reads_began_ns, tier.reads_end_ns = 0, now, now


@forced
def serve_in_turn(world: World, t: int, size: int, now: int) -> int:
    """As serve_read, but after those reads of the request that must end first, if only so many run at once."""
    tier, done = world.tiers[t], serve_read(world, t, size, now)
    if tier.request_reads > 0 and tier.read_rate > 0:
        if tier.reading == tier.request_reads:
            tier.reading, tier.reads_began_ns = 0, tier.reads_end_ns
        tier.reading += 1
        done = max(done, tier.reads_began_ns + size * 1000 // tier.read_rate + tier.latency_ns)
        tier.reads_end_ns = max(tier.reads_end_ns, done)
    return done


@forced
def serve_write(world: World, t: int, size: int, now: int) -> int:
    """Give tier `t` a write of `size` bytes; return when it is done."""
    tier, done = world.tiers[t], now
    if tier.write_rate > 0:
        tier.write_busy_ns = _occupy(world, t, tier.write_rate, tier.write_busy_ns, size, now)
        done = tier.write_busy_ns + tier.latency_ns
    return done


@forced
def pin(world: World, entry: int, until_ns: int) -> None:
    """Note that the object of `entry` is in flight until then, if any tier asks."""
    if len(world.pins) and entry >= 0:
        slot = member_of(world, world.knobs.whole, entry)
        if slot != NONE:
            world.pins[slot].until_ns = max(world.pins[slot].until_ns, until_ns)


@forced
def _stamp(world: World, slot: int) -> None:
    if world.knobs.keeps_age:
        world.control.uses += 1
        world.ages[slot] = world.control.uses
        if world.fleet.scoped:
            copy = world.fleet.copies[slot].node_copy
            if copy != NONE:
                world.ages[copy] = world.control.uses


@inner
def follow(world: World, t: int, i: int) -> None:
    """Let the object `chain[i]`, once it is used in tier `t`, be less recent than those before it, if that is so."""
    if world.tiers[t].is_tail_first:
        trail(world, t, i, 0, 0)


@inner
def trail(world: World, t: int, i: int, first: int, mark: int) -> None:
    """Let `chain[i]`, once it is used in tier `t`, be less recent than the last one before it from `first` on.

    Of those, with a `mark`, that have it in `where`; if there is none it will be the most recent.
    """
    if is_endless(world, t):
        return
    k = i - 1
    while k >= first and (
        (mark and world.where[k] != mark)
        or world.chain[k] == world.chain[i]
        or not live_in(world, world.chain[k]) & (1 << t)
    ):
        k -= 1
    world.tiers[t].behind = 0 if k < first else 1 + member_of(world, t, world.chain[k])


@forced
def touch(world: World, t: int, entry: int) -> None:
    """Note that the object of `entry`, which is live in tier `t`, was used."""
    if not is_endless(world, t):
        slot = member_of(world, t, entry)
        if world.knobs.bucketed & (1 << t) and world.tiers[t].collect_share == 0:
            slot = world.members[slot].bucket
        on_hit(world, t, slot)
        if world.knobs.filtered & (1 << t):
            refer(world, t, entry)
    if entry >= 0:
        _stamp(world, entry)


@inner
def read(world: World, t: int, slot: int, now: int, phase: int, request: int, stage: int) -> int:
    """Read the whole of `slot` in tier `t`; return when it is done. Whether that makes it recent is the caller's."""
    size = world.slots[slot].size
    world.tiers[t].read_bytes += size
    emit(world, now, READ, t, phase, slot, size, request, stage)
    done = serve_read(world, t, size, now)
    pin(world, slot, done)
    return done


@inner
def write(world: World, t: int, slot: int, now: int, phase: int, request: int, stage: int) -> None:
    """Write `slot` into tier `t`, which has room."""
    tier, what, member = world.tiers[t], world.slots[slot], slot
    if world.fleet.scoped & (1 << t):
        member = own(world, t, slot)
        world.slots[member].live |= 1 << t
    if not is_endless(world, t):
        on_insert(world, t, member, now)
    if phase != DEMOTE:
        _stamp(world, slot)
    what.live |= 1 << t
    tier.used += what.size
    tier.written_bytes += what.size
    if tier.evict_every_ns > 0 and tier.poll_ns == 0 and tier.used >= tier.trigger:
        tier.poll_ns = (now // tier.evict_every_ns + 1) * tier.evict_every_ns
    pin(world, slot, serve_write(world, t, what.size, now))
    emit(world, now, WRITE, t, phase, slot, what.size, request, stage)
    loosen(world, slot)


@inner
def drop(world: World, t: int, slot: int, now: int, phase: int) -> None:
    """Delete `slot` from tier `t`; a slot that lives nowhere and that nobody can ask for becomes free."""
    member = member_of(world, t, slot)
    if not is_endless(world, t):
        on_remove(world, t, member, phase not in (PROMOTE, LOSE))
    if member != slot:
        world.slots[member].live &= ~(1 << t)
        loosen(world, member)
    tier, what = world.tiers[t], world.slots[slot]
    what.live &= ~(1 << t)
    tier.used -= what.size
    tier.deleted_bytes += what.size
    emit(world, now, DELETE, t, phase, slot, what.size, NONE, NONE)
    if what.held:
        loosen(world, slot)
    else:
        release(world, slot)


@forced
def fastest(world: World, entry: int) -> int:
    """Return the fastest tier in which the object of `entry` is live, or NONE."""
    return fastest_from(world, entry, 0)


@forced
def fastest_from(world: World, entry: int, t: int) -> int:
    """Return the fastest tier from `t` on in which the object of `entry` is live, or NONE."""
    live = found_in(world, entry)
    while t < len(world.tiers) and not live & (1 << t):
        t += 1
    return t if t < len(world.tiers) else NONE
