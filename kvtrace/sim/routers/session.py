"""Session affinity: a conversation stays on its node, by rendezvous hashing.

As with a ring of consistent hashing, which vLLM's production stack routes sessions by, a node that is lost moves only
its own conversations, and one that joins takes an equal share of each other's.
"""

from __future__ import annotations

from kvtrace.sim.policies.queues import operation
from kvtrace.sim.records import NONE, World
from kvtrace.sim.routers.candidates import is_open
from kvtrace.users.synthetic import draw

DRAWER = -(2**41)
"""No user draws by this number, nor by those below: one a node."""
MOST = 2**62


@operation
def choose(world: World, actor: int, _n: int, _: int) -> int:
    """Take the node whose draw by the number of the conversation is largest."""
    found, largest = NONE, NONE
    for node in range(world.fleet.entrances):
        if is_open(world, node):
            lot = draw(world.knobs.seed, DRAWER - node, world.actors[actor].session, 0, MOST)
            if lot > largest:
                found, largest = node, lot
    return found
