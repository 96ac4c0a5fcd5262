// Prefix score: the node with the highest score, a weighted sum of what it has of the prompt and of
// its load, as llm-d's inference scheduler does it (max-score-picker).
//
//     score = prefix_weight * tokens of the prompt that the node has / tokens of the prompt
//           + load_weight * 0.5 * (1 - min(waiting, threshold) / threshold)
//     node  = argmax over nodes of score
//
// llm-d's sample configurations (deploy/config/pd-epp-config.yaml) have prefix-cache-scorer with
// weight 2 and load-aware-scorer (in later ones queue-scorer) with weight 1; the threshold is 128
// by default (llm-d-inference-scheduler, pkg/plugins/scorer/load_aware.go at 4610449). Here they
// are `fleet.prefix_weight`, `load_weight` and `load_threshold`. There the waiting requests are
// those of the engine's queue; here all whose prompt is not computed yet, the one in turn included.
// Of several nodes llm-d picks any; here it is the one that has served the fewest requests.
#include "../sim.h"

// The negative score, in millionths.
static int64_t prefix_score_cost(World *world, int64_t actor_id, int64_t node) {
    const Fleet *fleet = &world->fleet;
    int64_t input_tokens = max_of(1, world->actors[actor_id].input_tokens);
    int64_t threshold = fleet->load_threshold;
    int64_t free = threshold - min_of(fleet->nodes[node].waiting, threshold);
    int64_t cached_tokens = fleet_cached_tokens(world, actor_id, node);
    int64_t prefix_score = fleet->prefix_ppm * cached_tokens / input_tokens;
    int64_t load_score = fleet->load_ppm * free / (2 * threshold);
    return -(prefix_score + load_score);
}

EXPORT int64_t prefix_score_choose(World *world, int64_t actor_id, int64_t n) {
    fleet_measure_prefixes(world, actor_id, n);
    return fleet_cheapest_node(world, actor_id, 0, world->fleet.entry_nodes, prefix_score_cost);
}
