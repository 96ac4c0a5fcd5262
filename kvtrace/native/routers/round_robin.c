// Round-robin: one node after the other; those that are not up are left out.
//
//     node = the next node that is up
#include "../sim.h"

EXPORT int64_t round_robin_choose(World *world, UNUSED int64_t actor_id, UNUSED int64_t n) {
    int64_t nodes = world->fleet.entry_nodes;
    int64_t node = world->control.next_node % nodes;
    while (!fleet_is_up(world, node)) {
        node = (node + 1) % nodes;
    }
    world->control.next_node = node + 1;
    return node;
}
