// Session affinity: a conversation stays on its node, by rendezvous hashing.
//
//     node = argmax over nodes of hash(node, conversation)
//
// Thaler and Ravishankar, IEEE/ACM Transactions on Networking, 1998. As with a ring of consistent
// hashing, by which vLLM's production stack routes sessions, a node that is lost moves only its own
// conversations, and one that joins takes an equal share of each other node's.
#include "../sim.h"

// No user draws by this number, nor by those below it, one for each node.
#define DRAWER (-((int64_t)1 << 41))

static int64_t session_cost(World *world, int64_t actor_id, int64_t node) {
    int64_t session = world->actors[actor_id].session;
    return -user_draw(world->knobs.seed, DRAWER - node, session, 0, UNBOUNDED);
}

EXPORT int64_t session_choose(World *world, int64_t actor_id, UNUSED int64_t n) {
    return fleet_cheapest_node(world, actor_id, 0, world->fleet.entry_nodes, session_cost);
}
