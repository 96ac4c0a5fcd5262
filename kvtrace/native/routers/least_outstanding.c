// Least outstanding: the node with the fewest requests that have not ended.
//
//     node = argmin over nodes of outstanding requests
#include "../sim.h"

EXPORT int64_t least_outstanding_choose(World *world, int64_t actor_id, UNUSED int64_t n) {
    return fleet_cheapest_node(world, actor_id, 0, world->fleet.entry_nodes, fleet_outstanding);
}
