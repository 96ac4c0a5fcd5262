"""How a tier makes room: by deleting what its policy gives up, or by moving it down; and what expires."""

from __future__ import annotations

from kvtrace.core.compiled import forced, inner
from kvtrace.sim.policies.queues import first_expiry, queue_of, settle, victim
from kvtrace.sim.records import NONE, World
from kvtrace.sim.tiers.admission import admits, has_room
from kvtrace.sim.tiers.rows import DEMOTE, EVICT
from kvtrace.sim.tiers.tiers import drop, evict, read, write


@inner
def make_room(world: World, t: int, slot: int, now: int) -> bool:
    """Delete from tier `t` what its policy says, down to its low mark, if `slot` does not fit.

    Return False if it takes no such object.
    """
    tier, size = world.tiers[t], world.slots[slot].size
    takes_it = size <= tier.largest
    if takes_it and not has_room(world, t, size):
        while tier.used > 0 and tier.used + size > tier.low:
            evict(world, t, victim(world, t, slot), now)
    return takes_it


@forced
def lower_tier(world: World, t: int, size: int) -> int:
    """Return the fastest tier from `t` down that takes objects of `size` bytes, or NONE."""
    while t < len(world.tiers) and size > world.tiers[t].largest:
        t += 1
    return t if t < len(world.tiers) else NONE


@inner
def _demoted_to(world: World, upper: int, slot: int, now: int) -> int:
    """Return the tier that takes `slot` as tier `upper` gives it up, or NONE."""
    what = world.slots[slot]
    lower = lower_tier(world, upper + 1, what.size)
    if lower != NONE and (what.live & (1 << lower) or not admits(world, lower, slot, now)):
        lower = NONE
    return lower


@inner
def make_room_by_demotion(world: World, t: int, slot: int, now: int) -> None:
    """Move what the policy of tier `t` gives up down until `slot` fits, or delete it.

    What fits nowhere lower, is live in the tier below already, or is not admitted there, is deleted. A tier below may
    have to make room first, and so on: `wanted[d]` is what is wanted at depth d of that.
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
            wanted.lower = _demoted_to(world, upper, wanted.leaving, now)
        leaving, lower = wanted.leaving, wanted.lower
        if lower == NONE:
            drop(world, upper, leaving, now, EVICT)
            wanted.leaving = NONE
        elif has_room(world, lower, world.slots[leaving].size):
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
        evict(world, t, queue_of(world, t, 0).tail, when)
        t, when = first_expiry(world)
    return True
