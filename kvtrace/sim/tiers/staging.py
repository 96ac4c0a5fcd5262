"""The staging tier: what a request stores and what it reads from below takes a buffer there before any of it is in."""

from __future__ import annotations

from kvtrace.core.compiled import inner
from kvtrace.sim.policies.queues import victim
from kvtrace.sim.records import NONE, World
from kvtrace.sim.tiers.room import lower_tier
from kvtrace.sim.tiers.rows import EVICT, begin_stage, found_in, in_stage, size_of
from kvtrace.sim.tiers.slots import object_of
from kvtrace.sim.tiers.tiers import drop, follow, touch, trail, write
from kvtrace.sim.tiers.waiting import takes


@inner
def _take(world: World, t: int, slot: int, kept_bytes: int, taken_bytes: int, now: int) -> bool:
    """Make room in tier `t` for a buffer for `slot`, beside `taken_bytes` of others; return whether there is.

    What is given up is what was there, but for `kept_bytes`, those used last.
    """
    tier, size = world.tiers[t], size_of(world, slot)
    if size > tier.largest:
        return False
    if tier.used + taken_bytes + size > tier.limit:
        while tier.used > kept_bytes and tier.used + taken_bytes + size > tier.low:
            drop(world, t, object_of(world, t, victim(world, t, slot)), now, EVICT)
    # As has_room: an object that it takes may fill an empty tier past its limit.
    return tier.used + taken_bytes + size <= tier.limit or tier.used + taken_bytes == 0


@inner
def _stage_writes(world: World, t: int, first: int, n: int, now: int) -> int:
    """Take buffers of tier `t` for `chain[first:n]`; return the end of those that have one."""
    tier, taken = world.tiers[t], 0
    if tier.evict_every_ns > 0:
        for i in range(first, n):
            size = size_of(world, world.chain[i])
            if size > tier.largest:
                return first
            if not world.slots[world.chain[i]].live & (1 << t):
                taken += size
        return n if tier.used + taken <= tier.limit else first
    for i in range(first, n):
        if not _take(world, t, world.chain[i], 0, taken, now):
            return i
        taken += size_of(world, world.chain[i])
    return n


@inner
def cut_reads(world: World, first: int, end: int) -> int:
    """Return the end of those of `chain[:end]` that are read, all of them or none from below the staging tier.

    The first `first` ones are read each by itself: then those of them are not found.
    """
    t = world.knobs.staging - 1
    tier, needed, cut = world.tiers[t], 0, end
    if tier.evict_every_ns == 0:
        return end
    for i in range(end):
        if world.where[i] > t:
            needed += size_of(world, world.chain[i])
            if i >= first:
                cut = min(cut, i)
    if tier.used + needed <= tier.limit:
        return end
    for i in range(first):
        if world.where[i] > t:
            world.where[i] = NONE
    return cut


@inner
def stage_reads(world: World, end: int, now: int) -> int:
    """Take buffers for those of `chain[:end]` that were read below the staging tier; return the end of those with one.

    What the request read in the staging tier itself makes no room.
    """
    t = world.knobs.staging - 1
    tier, kept, taken = world.tiers[t], 0, 0
    if tier.evict_every_ns > 0:
        return end
    for i in range(end):
        if world.where[i] == t:
            kept += size_of(world, world.chain[i])
    for i in range(end):
        if world.where[i] > t:
            if not _take(world, t, world.chain[i], kept, taken, now):
                return i
            taken += size_of(world, world.chain[i])
    return end


@inner
def drop_held(world: World, first: int, n: int) -> int:
    """Keep of `chain[first:n]` what no tier holds, moved to the front; return the end of it."""
    end = first
    for i in range(first, n):
        if found_in(world, world.chain[i]) == 0:
            world.chain[end] = world.chain[i]
            end += 1
    return end


@inner
def store_staged(world: World, first: int, n: int, stage: int, request: int, first_phase: int, rest_phase: int) -> int:
    """Write each new object to the first tier that takes it, and a stage later to all below; return the stages used.

    From the first on for which the staging tier has no buffer, only tiers above it are written.
    """
    chain, now, staging = world.chain, world.control.now, world.knobs.staging - 1
    if world.knobs.skips_held:
        n = drop_held(world, first, n)
    end = _stage_writes(world, staging, first, n, now)
    begin_stage(world)
    at = stage
    for i in range(first, n):
        world.where[i] = 0
    for i in range(first, n):
        t = lower_tier(world, 0, world.slots[chain[i]].size)
        if t == NONE or (t >= staging and i >= end):
            world.total.unplaced += 1
        else:
            at = _put(world, t, first, i, now, first_phase, request, at)
    at += world.control.is_staged
    begin_stage(world)
    for i in range(first, n):
        t = lower_tier(world, 0, world.slots[chain[i]].size) + 1
        while 0 < t < len(world.tiers) and (t < staging or i < end):
            at = _put(world, t, first, i, now, rest_phase, request, at)
            t += 1
    return at - stage + world.control.is_staged


@inner
def _put(world: World, t: int, first: int, i: int, now: int, phase: int, request: int, stage: int) -> int:
    """Write `chain[i]`, stored from `first` on, into tier `t` unless it is there; return the stage reached."""
    slot, staging = world.chain[i], world.knobs.staging - 1
    if world.slots[slot].live & (1 << t):
        # The staging tier frees the buffer and leaves what it has as it was; the others count it as used.
        if t != staging and not world.control.gone & (1 << t):
            follow(world, t, i)
            touch(world, t, slot)
        return stage
    if t != staging and not takes(world, t, slot, now, phase):
        return stage
    if t == staging and world.tiers[t].stores_backwards:
        trail(world, t, i, first, 1)
        world.where[i] = 1
    else:
        follow(world, t, i)
    stage = in_stage(world, stage, t, world.tiers[t].request_writes)
    write(world, t, slot, now, phase, request, stage)
    return stage
