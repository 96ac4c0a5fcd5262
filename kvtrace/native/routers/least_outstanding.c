// Least outstanding: the node with the fewest requests that have not ended.
#include "../sim.h"

EXPORT int64_t least_outstanding_choose(World *w, int64_t actor, UNUSED int64_t n, UNUSED int64_t with) {
    return cheapest(w, actor, 0, w->fleet.entrances, outstanding_of);
}
