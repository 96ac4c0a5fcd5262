// Prefix: the node with the least work, without what it has of the prompt already, as Dynamo's KV
// router does it (lib/kv-router; docs, "Routing Concepts", 1.5).
//
//     cost = prefill_load_scale * (prompt tokens assigned to the node and not computed yet
//                                  + this request's tokens that the node does not have)
//            + prompt tokens of the requests that are active on the node
//     node = argmin over nodes of cost
//
// There in blocks, here in tokens. `fleet.prefill_weight` is Dynamo's prefill_load_scale, 1 by
// default in both. Of several, Dynamo takes the first at its default temperature of 0; here it is
// the node that has served the fewest requests. A node has what is in any tier of its own, each
// with a credit of 1; Dynamo gives host memory 0.75 by default.
#include "../sim.h"

static int64_t prefix_cost(World *world, int64_t actor_id, int64_t node_id) {
    const Fleet *fleet = &world->fleet;
    const Node *node = &fleet->nodes[node_id];
    int64_t input_tokens = world->actors[actor_id].input_tokens;
    int64_t uncached = input_tokens - fleet_cached_tokens(world, actor_id, node_id);
    int64_t prefill = node->prefilling_tokens + uncached;
    return fleet->prefill_ppm * prefill + MILLION * node->active_tokens;
}

EXPORT int64_t prefix_choose(World *world, int64_t actor_id, int64_t n) {
    fleet_measure_prefixes(world, actor_id, n);
    return fleet_cheapest_node(world, actor_id, 0, world->fleet.entry_nodes, prefix_cost);
}
