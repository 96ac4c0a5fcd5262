// Prefix: the node with the least work, that for what it has of the prompt already not counted, as Dynamo has it.
//
// Dynamo's KV router sends a request to the worker of the least cost (lib/kv-router; docs, "Routing Concepts", 1.5):
//
//     cost = prefill_load_scale * (prompt tokens assigned to it and not computed yet + this request's uncached ones)
//            + tokens of the sequences that are active on it
//
// in blocks there, in tokens here. `fleet.prefill_weight` is its prefill_load_scale, 1 by default in both. It takes the
// first of the least at its default temperature of 0; here the node that has served the fewest. What a node has is what
// is in any tier of its own, each with a credit of 1; Dynamo gives host memory 0.75 by default.
#include "../sim.h"

enum { MILLION = 1000000 };

EXPORT int64_t prefix_choose(World *w, int64_t actor, int64_t n, UNUSED int64_t with) {
    measure(w, actor, n);
    Fleet *fleet = &w->fleet;
    int64_t found = NONE, least = 0;
    for (int64_t k = 0; k < fleet->entrances; k++) {
        if (!is_open(w, k)) continue;
        Node *node = &fleet->nodes[k];
        int64_t new = w->actors[actor].input - found_tokens(w, actor, k);
        int64_t cost = fleet->prefill_ppm * (node->prefilling_tokens + new) + MILLION * node->active_tokens;
        if (found == NONE || cost < least || (cost == least && is_fresher(w, k, found))) found = k, least = cost;
    }
    return found;
}
