"""Least outstanding: the node with the fewest requests that have not ended."""

from __future__ import annotations

from kvtrace.sim.policies.queues import operation
from kvtrace.sim.records import NONE, World
from kvtrace.sim.routers.candidates import is_fresher, is_open


@operation
def choose(world: World, _actor: int, _n: int, _: int) -> int:
    """Compare all; of several, it is the one that has served the fewest, and of those the first."""
    found, least = NONE, 0
    for node in range(world.fleet.entrances):
        if is_open(world, node):
            outstanding = world.fleet.nodes[node].outstanding
            if found == NONE or outstanding < least or (outstanding == least and is_fresher(world, node, found)):
                found, least = node, outstanding
    return found
