"""Prefix score: the node with the highest score, a weighted sum of what it has of the prompt and of its load.

llm-d's inference scheduler adds up weighted scores of 0 to 1 and picks the highest (max-score-picker). Its sample
configurations (deploy/config/pd-epp-config.yaml) have prefix-cache-scorer, the share of the prompt's blocks that the
node has, with weight 2, and one of load with weight 1: load-aware-scorer (in later ones queue-scorer), which is
0.5 * (1 - min(waiting, threshold) / threshold), with a threshold of 128 by default (llm-d-inference-scheduler,
pkg/plugins/scorer/load_aware.go at 4610449). `fleet.prefix_weight`, `load_weight` and `load_threshold` are these. There
the waiting are those of the engine's queue; here all whose prompt is not computed yet, the one in turn included. Of
several it picks any; here the one that has served the fewest requests.
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
