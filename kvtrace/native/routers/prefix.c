// Prefix: the node with the least work, that for what it has of the prompt already not counted, as
// Dynamo has it.
//
// Dynamo's KV router sends a request to the worker of the least cost (lib/kv-router; docs, "Routing
// Concepts", 1.5):
//
//     cost = prefill_load_scale * (prompt tokens assigned to it and not computed yet + this
//     request's uncached ones)
//            + tokens of the sequences that are active on it
//
// in blocks there, in tokens here. `fleet.prefill_weight` is its prefill_load_scale, 1 by default
// in both. It takes the first of the least at its default temperature of 0; here the node that has
// served the fewest. What a node has is what is in any tier of its own, each with a credit of 1;
// Dynamo gives host memory 0.75 by default.
#include "../sim.h"

static int64_t work_of(World *w, int64_t actor, int64_t node) {
    const Node *its = &w->fleet.nodes[node];
    int64_t new = w->actors[actor].input - found_tokens(w, actor, node);
    return w->fleet.prefill_ppm * (its->prefilling_tokens + new) + MILLION * its->active_tokens;
}

EXPORT int64_t prefix_choose(World *w, int64_t actor, int64_t n, UNUSED int64_t with) {
    measure(w, actor, n);
    return cheapest(w, actor, 0, w->fleet.entrances, work_of);
}
