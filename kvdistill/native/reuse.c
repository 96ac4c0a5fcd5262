// Reuse distances (kvdistill/profile/locality.py): what else was used since a thing was used before.
#include "core.h"
#include "fenwick.h"

#include <stdlib.h>

// Puts into `distance`, for each access, the summed weight of the distinct others since the last one to its thing; -1
// for a first. `weight` is what each access makes its thing weigh.
EXPORT void reuse_distances(int64_t accesses, const int64_t *thing, const int64_t *weight, int64_t things,
                            int64_t *distance) {
    int64_t *tree = zeros(accesses + 1, sizeof *tree);  // by access: what its thing weighs, if it is the thing's last
    int64_t *last = zeros(things, sizeof *last);        // by thing: its last access, from 1; 0: none
    int64_t live = 0;
    for (int64_t i = 0; i < accesses; i++) {
        int64_t before = last[thing[i]];
        distance[i] = NONE;
        if (before) {
            // Things whose last access is after `before`: all that are live, less those up to it.
            distance[i] = live - fenwick_sum(tree, before);
            fenwick_add(tree, accesses, before, -weight[before - 1]);
            live -= weight[before - 1];
        }
        last[thing[i]] = i + 1;
        live += weight[i];
        fenwick_add(tree, accesses, i + 1, weight[i]);
    }
    free(tree), free(last);
}
