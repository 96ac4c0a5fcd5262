"""Round-robin: the nodes one after the other."""

from __future__ import annotations

from kvtrace.sim.policies.queues import operation
from kvtrace.sim.records import World
from kvtrace.sim.routers.candidates import is_open


@operation
def choose(world: World, _actor: int, _n: int, _: int) -> int:
    """Take the next that is up."""
    node: int = world.control.next_node % world.fleet.entrances
    while not is_open(world, node):
        node = (node + 1) % world.fleet.entrances
    world.control.next_node = node + 1
    return node
