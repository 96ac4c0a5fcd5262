"""Prefix score: the node with the highest score, a weighted sum of what it has of the prompt and of its load.

llm-d's inference scheduler adds up weighted scores of 0 to 1 and picks the highest. Its sample configuration for prefix
caches has prefix-cache-scorer, the share of the prompt's blocks that the node has, with weight 2, and
load-aware-scorer with weight 1: half of 1 - waiting / threshold, where at most `threshold` (128) requests wait, else 0.
`fleet.prefix_weight`, `load_weight` and `load_threshold` are these. Of several it picks any; here the one that has
served the fewest requests.
"""

from __future__ import annotations

from kvtrace.sim.policies.queues import operation
from kvtrace.sim.records import NONE, World
from kvtrace.sim.routers.candidates import found_tokens, is_fresher, is_open, measure


@operation
def choose(world: World, actor: int, n: int, _: int) -> int:
    """Compare the score of all, in millionths."""
    measure(world, actor, n)
    fleet, tokens, found, most = world.fleet, max(1, world.actors[actor].input), NONE, 0
    for k in range(fleet.entrances):
        if is_open(world, k):
            free = fleet.load_threshold - min(fleet.nodes[k].waiting, fleet.load_threshold)
            score = fleet.prefix_ppm * found_tokens(world, actor, k) // tokens
            score += fleet.load_ppm * free // (2 * fleet.load_threshold)
            if found == NONE or score > most or (score == most and is_fresher(world, k, found)):
                found, most = k, score
    return found
