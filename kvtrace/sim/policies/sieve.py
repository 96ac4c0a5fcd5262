"""SIEVE: a hand goes from old to new, over and over, past those used since it last came by."""

from __future__ import annotations

from kvtrace.sim.policies.clock import on_hit
from kvtrace.sim.policies.fifo import on_insert
from kvtrace.sim.policies.queues import leave, link_of, note_of, operation, queue_of
from kvtrace.sim.records import NONE, World

__all__ = ["choose", "on_hit", "on_insert", "on_remove"]


@operation
def choose(world: World, t: int, _incoming: int, _: int) -> int:
    """Return the slot where the hand stops, the first that was not used since it last came by."""
    slot = world.tiers[t].hand
    if slot == NONE:
        slot = queue_of(world, t, 0).tail
    while note_of(world, t, slot).count:
        note_of(world, t, slot).count = 0
        slot = link_of(world, t, slot).newer
        if slot == NONE:
            slot = queue_of(world, t, 0).tail
    world.tiers[t].hand = slot
    return slot


@operation
def on_remove(world: World, t: int, slot: int, _is_evicted: int) -> int:
    """Take it out; the hand moves on if it is there."""
    if world.tiers[t].hand == slot:
        world.tiers[t].hand = link_of(world, t, slot).newer
    leave(world, t, slot)
    return 0
