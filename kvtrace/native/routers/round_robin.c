// Round-robin: the nodes one after the other; the next that is up.
#include "../sim.h"

EXPORT int64_t round_robin_choose(World *w, UNUSED int64_t actor, UNUSED int64_t n,
                                  UNUSED int64_t with) {
    int64_t node = w->control.next_node % w->fleet.entrances;
    while (!is_open(w, node)) {
        node = (node + 1) % w->fleet.entrances;
    }
    w->control.next_node = node + 1;
    return node;
}
