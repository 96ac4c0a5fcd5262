// Least outstanding: the node with the fewest requests that have not ended; of several, it is the one that has served
// the fewest, and of those the first.
#include "../sim.h"

EXPORT int64_t least_outstanding_choose(World *w, UNUSED int64_t actor, UNUSED int64_t n, UNUSED int64_t with) {
    int64_t found = NONE, least = 0;
    for (int64_t node = 0; node < w->fleet.entrances; node++) {
        if (!is_open(w, node)) continue;
        int64_t outstanding = w->fleet.nodes[node].outstanding;
        if (found == NONE || outstanding < least || (outstanding == least && is_fresher(w, node, found)))
            found = node, least = outstanding;
    }
    return found;
}
