// Prefix score: the node with the highest score, a weighted sum of what it has of the prompt and of
// its load.
//
// llm-d's inference scheduler adds up weighted scores of 0 to 1 and picks the highest
// (max-score-picker). Its sample configurations (deploy/config/pd-epp-config.yaml) have
// prefix-cache-scorer, the share of the prompt's blocks that the node has, with weight 2, and one
// of load with weight 1: load-aware-scorer (in later ones queue-scorer), which is 0.5 * (1 -
// min(waiting, threshold) / threshold), with a threshold of 128 by default
// (llm-d-inference-scheduler, pkg/plugins/scorer/load_aware.go at 4610449). `fleet.prefix_weight`,
// `load_weight` and `load_threshold` are these. There the waiting are those of the engine's queue;
// here all whose prompt is not computed yet, the one in turn included. Of several it picks any;
// here the one that has served the fewest requests.
#include "../sim.h"

static int64_t score_below(World *w, int64_t actor, int64_t node) { // 0, in millionths
    const Fleet *fleet = &w->fleet;
    int64_t tokens = max_of(1, w->actors[actor].input), threshold = fleet->load_threshold;
    int64_t free = threshold - min_of(fleet->nodes[node].waiting, threshold);
    int64_t score = fleet->prefix_ppm * found_tokens(w, actor, node) / tokens;
    return -(score + fleet->load_ppm * free / (2 * threshold));
}

EXPORT int64_t prefix_score_choose(World *w, int64_t actor, int64_t n, UNUSED int64_t with) {
    measure(w, actor, n);
    return cheapest(w, actor, 0, w->fleet.entrances, score_below);
}
