"""Offers: what is stored together finds room together in a tier, or is refused together, as some engines do it.

What is in flight makes no room: what the offer before stored, and what is still being read or written.
"""

from __future__ import annotations

from kvtrace.core.compiled import forced, inner
from kvtrace.sim.policies.queues import link_of, queue_of
from kvtrace.sim.records import NONE, World
from kvtrace.sim.tiers.rows import EVICT
from kvtrace.sim.tiers.slots import incoming_of, object_of
from kvtrace.sim.tiers.tiers import drop


@inner
def takes_offer(world: World, t: int, first: int, n: int, previous: int, now: int) -> bool:
    """Make room in tier `t` for all of `chain[first:n]` that is not in it; return False, and change nothing, if not.

    `previous` is the number of the offer whose objects are still in flight, or 0.
    """
    world.control.offers += 1
    mine, need = world.control.offers, 0
    for i in range(first, n):
        slot = world.chain[i]
        pin, what = world.pins[incoming_of(world, t, slot)], world.slots[slot]
        if pin.seen == mine:  # twice in the prompt
            continue
        # What is there already keeps its place, but only this time: it is not in flight with the next offer.
        pin.seen = mine
        if not what.live & (1 << t) and what.size <= world.tiers[t].largest:
            pin.offer = mine
            need += what.size
    return frees(world, t, need, mine, previous, now)


@inner
def frees(world: World, t: int, need: int, mine: int, previous: int, now: int) -> bool:
    """Delete what tier `t` used least recently, down to its low mark, if `need` bytes do not fit; False if it cannot.

    It evicts by LRU.
    """
    tier = world.tiers[t]
    missing = tier.used + need - tier.limit
    if missing <= 0:
        return True
    slot: int = queue_of(world, t, 0).tail
    while slot != NONE and missing > 0:
        if not _is_held(world, slot, mine, previous, now):
            missing -= world.slots[slot].size
        slot = link_of(world, t, slot).newer
    if missing > 0:
        return False
    slot = queue_of(world, t, 0).tail
    while slot != NONE and tier.used + need > tier.low:
        newer = link_of(world, t, slot).newer
        if not _is_held(world, slot, mine, previous, now):
            drop(world, t, object_of(world, t, slot), now, EVICT)
        slot = newer
    return True


@forced
def _is_held(world: World, slot: int, mine: int, previous: int, now: int) -> bool:
    pin = world.pins[slot]
    is_offered = pin.seen == mine or (previous != 0 and pin.offer == previous)
    return is_offered or pin.until_ns > now
