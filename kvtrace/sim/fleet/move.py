"""The compiled change from one node to another: its tiers, and those of its rack, become World.tiers."""

from __future__ import annotations

from typing import Any

from kvtrace.core.compiled import forced, inner
from kvtrace.sim.records import QUEUE, QUEUES, TIER, UNBOUNDED, World
from kvtrace.sim.tiers.due import note_due

TIER_WORDS = TIER.itemsize // 8
QUEUE_WORDS = QUEUES * QUEUE.itemsize // 8


@forced
def move(world: World, node: int) -> None:
    """Have the tiers of `node` at hand."""
    if world.control.node != node:
        _move(world, node)


@inner
def _move(world: World, node: int) -> None:
    fleet, here = world.fleet, world.control.node
    rack, next_rack = fleet.count + here // fleet.rack_nodes, fleet.count + node // fleet.rack_nodes
    if len(fleet.due):
        note_due(world, here, fleet.scoped & ~fleet.racked)
        fleet.due[node] = UNBOUNDED
        if rack != next_rack:
            note_due(world, rack, fleet.racked)
            fleet.due[next_rack] = UNBOUNDED
    for t in range(len(world.tiers)):
        old, new = here, node
        if fleet.racked & (1 << t):
            old, new = rack, next_rack
        if fleet.scoped & (1 << t) and old != new:
            _change(world, t, old * len(world.tiers) + t, new * len(world.tiers) + t)
    world.control.node = node


@inner
def _change(world: World, t: int, old: int, new: int) -> None:
    """Put tier `t` away where `old` is kept, and take the one that is kept at `new`."""
    fleet, tier = world.fleet, world.tiers[t]
    # LFU's groups are numbered alike in all places: their notes are in one table.
    groups, free_group = tier.groups, tier.free_group
    _copy(fleet.tiers_here, t * TIER_WORDS, fleet.tiers, old * TIER_WORDS, TIER_WORDS)
    _copy(fleet.queues_here, t * QUEUE_WORDS, fleet.queues, old * QUEUE_WORDS, QUEUE_WORDS)
    _copy(fleet.tiers, new * TIER_WORDS, fleet.tiers_here, t * TIER_WORDS, TIER_WORDS)
    _copy(fleet.queues, new * QUEUE_WORDS, fleet.queues_here, t * QUEUE_WORDS, QUEUE_WORDS)
    tier.groups, tier.free_group = groups, free_group


@forced
def _copy(source: Any, first: int, target: Any, at: int, words: int) -> None:
    for i in range(words):
        target[at + i] = source[first + i]
