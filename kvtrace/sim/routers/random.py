"""Random: any node, with the same chance."""

from __future__ import annotations

from kvtrace.sim.policies.queues import operation
from kvtrace.sim.records import World
from kvtrace.sim.routers.candidates import count_open, is_open
from kvtrace.users.synthetic import draw

DRAWER = -(2**40)
"""No user draws by this number."""


@operation
def choose(world: World, actor: int, _n: int, _: int) -> int:
    """Draw by the number of the request."""
    left = draw(world.knobs.seed, DRAWER, world.actors[actor].request, 0, count_open(world) - 1)
    node = 0
    while not is_open(world, node) or left > 0:
        left -= is_open(world, node)
        node += 1
    return node
