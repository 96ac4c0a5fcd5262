"""How a tier makes room: by deleting what its policy gives up, or by moving it down; when it must, or at times."""

from __future__ import annotations

from kvtrace.core.compiled import forced, inner
from kvtrace.sim.policies.queues import settle, victim
from kvtrace.sim.records import NONE, UNBOUNDED, World
from kvtrace.sim.tiers.admission import admits, has_room
from kvtrace.sim.tiers.garbage import evict
from kvtrace.sim.tiers.offers import frees
from kvtrace.sim.tiers.rows import DEMOTE, EVICT, member_of
from kvtrace.sim.tiers.slots import incoming_of, object_of
from kvtrace.sim.tiers.tiers import drop, read, write

MILLION = 1_000_000


@inner
def make_room(world: World, t: int, slot: int, now: int) -> bool:
    """Delete from tier `t` what its policy says, down to its low mark, if `slot` does not fit.

    Return False if it takes no such object, or is full and makes room only at times.
    """
    tier, size = world.tiers[t], world.slots[slot].size
    takes_it = size <= tier.largest
    if takes_it and tier.is_whole:
        takes_it = frees(world, t, size, UNBOUNDED, 0, now)
    elif takes_it and not has_room(world, t, size):
        if tier.evict_every_ns > 0:
            return False
        incoming = incoming_of(world, t, slot)
        while tier.used > 0 and tier.used + size > tier.low:
            evict(world, t, victim(world, t, incoming), now)
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
            wanted.leaving = object_of(world, upper, victim(world, upper, incoming_of(world, upper, wanted.slot)))
            wanted.lower = _demoted_to(world, upper, wanted.leaving, now)
        leaving, lower = wanted.leaving, wanted.lower
        if lower == NONE:
            drop(world, upper, leaving, now, EVICT)
            wanted.leaving = NONE
        elif has_room(world, lower, world.slots[leaving].size):
            read(world, upper, leaving, now, DEMOTE, NONE, NONE)
            write(world, lower, leaving, now, DEMOTE, NONE, NONE)
            if world.knobs.keeps_age:
                settle(world, lower, member_of(world, lower, leaving))
            drop(world, upper, leaving, now, DEMOTE)
            wanted.leaving = NONE
        else:
            depth += 1
            below = world.wanted[depth]
            below.tier, below.slot, below.leaving = lower, leaving, NONE


@inner
def poll(world: World, t: int) -> None:
    """Let tier `t`, which makes room only at times, give one object up, now that it is such a time, or end.

    These times are the multiples of its interval; it makes room if it is filled to its trigger then.
    """
    tier = world.tiers[t]
    if tier.goal == NONE:
        tier.goal = tier.low
        if not _is_filled(world, t):
            tier.goal = tier.used
        elif tier.evict_ppm > 0:
            tier.goal = tier.used - max(tier.used * tier.evict_ppm // MILLION, world.slots[victim(world, t, NONE)].size)
    if tier.used > tier.goal and (tier.evict_ppm == 0 or _leaves(world, t) >= tier.goal):
        evict(world, t, victim(world, t, NONE), tier.poll_ns)
        return
    tier.goal = NONE
    tier.poll_ns = tier.poll_ns + tier.evict_every_ns if _is_filled(world, t) else 0


@inner
def _is_filled(world: World, t: int) -> bool:
    """Return whether tier `t` holds so much that it makes room when it is time."""
    tier = world.tiers[t]
    is_filled: bool = tier.used > 0 and tier.used >= tier.trigger
    return is_filled


@inner
def _leaves(world: World, t: int) -> int:
    """Return the bytes that tier `t` holds without what it gives up next."""
    return world.tiers[t].used - world.slots[victim(world, t, NONE)].size
