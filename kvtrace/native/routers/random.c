// Random: any node that is up, with the same chance, drawn by the number of the request.
//
//     node = the k-th node that is up, k uniform
#include "../sim.h"

#define DRAWER (-((int64_t)1 << 40)) // No user draws by this number.

EXPORT int64_t random_choose(World *world, int64_t actor_id, UNUSED int64_t n) {
    int64_t request = world->actors[actor_id].request;
    int64_t last = world->control.open_nodes - 1;
    int64_t skipped = user_draw(world->knobs.seed, DRAWER, request, 0, last);
    int64_t node = 0;
    while (!fleet_is_up(world, node) || skipped > 0) {
        skipped -= fleet_is_up(world, node);
        node++;
    }
    return node;
}
