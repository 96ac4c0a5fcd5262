"""Prefix: the node with the least work, that for what it has of the prompt already not counted, as Dynamo has it.

Dynamo's KV router sends a request to the worker of the least cost (lib/kv-router; docs, "Routing Concepts", 1.5):

    cost = prefill_load_scale * (prompt tokens assigned to it and not computed yet + this request's uncached ones)
           + tokens of the sequences that are active on it

in blocks there, in tokens here. `fleet.prefill_weight` is its prefill_load_scale, 1 by default in both. It takes the
first of the least at its default temperature of 0; here the node that has served the fewest. What a node has is what
is in any tier of its own, each with a credit of 1; Dynamo gives host memory 0.75 by default.
"""

from __future__ import annotations

from kvtrace.sim.policies.queues import operation
from kvtrace.sim.records import NONE, World
from kvtrace.sim.routers.candidates import found_tokens, is_fresher, is_open, measure

MILLION = 1_000_000


@operation
def choose(world: World, actor: int, n: int, _: int) -> int:
    """Compare the cost of all."""
    measure(world, actor, n)
    found, least = NONE, 0
    for k in range(world.fleet.entrances):
        if is_open(world, k):
            node = world.fleet.nodes[k]
            new = world.actors[actor].input - found_tokens(world, actor, k)
            cost = world.fleet.prefill_ppm * (node.prefilling_tokens + new) + MILLION * node.active_tokens
            if found == NONE or cost < least or (cost == least and is_fresher(world, k, found)):
                found, least = k, cost
    return found
