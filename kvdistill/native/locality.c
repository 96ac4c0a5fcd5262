// Of a trace's locality (kvdistill/profile/locality.py): reuse distances, and live bytes by tier.
#include "core.h"
#include "fenwick.h"

#include <stdlib.h>

// Puts into `distance`, for each access, the summed weight of the distinct others since the last
// one to its thing; -1 for a first. `weight` is what each access makes its thing weigh.
EXPORT void reuse_distances(int64_t accesses, const int64_t *thing, const int64_t *weight,
                            int64_t things, int64_t *distance) {
    int64_t *tree = memory_zeros(
        accesses + 1, sizeof *tree); // by access: what its thing weighs, if it is the thing's last
    int64_t *last =
        memory_zeros(things, sizeof *last); // by thing: its last access, from 1; 0: none
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

enum { READ, WRITE, DELETE };   // as the trace's closed set
#define MOST ((int64_t)1 << 62) // what can be reckoned with

typedef struct {
    int64_t live_bytes, peak_bytes, is_used;
} Tier;

// Enters rows into the live bytes of a trace by tier; returns whether the sums still fit. An object
// is as long as rows `reach` in its life: `size` is that by object and tier, NONE if deleted. What
// is read first lay there from the start on.
EXPORT bool locality_enter(int64_t rows, const int8_t *op, const int8_t *tier,
                           const int64_t *object, const int64_t *reach, int64_t tiers, Tier *of,
                           int64_t *size) {
    for (int64_t i = 0; i < rows; i++) {
        Tier *t = &of[tier[i]];
        int64_t *bytes = &size[object[i] * tiers + tier[i]], before = *bytes == NONE ? 0 : *bytes;
        int64_t more = max_of(0, reach[i] - before),
                prior = op[i] == READ && *bytes != NONE ? more : 0;
        *bytes = op[i] == DELETE ? NONE : before + more;
        t->is_used |= op[i] != DELETE;
        t->live_bytes += op[i] == DELETE ? -before : more;
        t->peak_bytes = max_of(t->peak_bytes + prior, t->live_bytes);
        if (t->peak_bytes > MOST) {
            return false;
        }
    }
    return true;
}

// What the rows of a trace did, by cell: (tier * ops + op) * phases + phase.
typedef struct {
    int64_t operations;
    int64_t bytes;
} CellCount;

// Adds rows to the counts of their cells. `objects` has the distinct objects of each cell; bit
// `cell` of the `words` words of an object in `seen` tells that the cell counted it already.
EXPORT void locality_count(int64_t rows, const int8_t *op, const int8_t *tier, const int8_t *phase,
                           const int64_t *object, const int64_t *length_bytes, int64_t ops,
                           int64_t phases, int64_t words, CellCount *counts, int64_t *objects,
                           uint64_t *seen) {
    for (int64_t i = 0; i < rows; i++) {
        int64_t cell = (tier[i] * ops + op[i]) * phases + phase[i];
        counts[cell].operations++;
        counts[cell].bytes += length_bytes[i];
        uint64_t *word = &seen[object[i] * words + cell / 64];
        uint64_t bit = (uint64_t)1 << (cell % 64);
        objects[cell] += !(*word & bit);
        *word |= bit;
    }
}
