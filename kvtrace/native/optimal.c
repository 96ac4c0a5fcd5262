// What no eviction or admission policy can exceed: Belady's optimum, which knows all references beforehand.
//
// A full cache gives up what is used next the latest, the incoming object included, which is then not stored; what is
// not used again is not stored at all (L. A. Belady, IBM Systems Journal, 1966; R. L. Mattson et al., 1970). Objects
// are of one size. Prompts are prefixes, so that a later block of a prompt is never used before an earlier one: the
// optimum gives up the later ones first, and all that it finds is in the leading run of a request.
#include "sim.h"

// Put `value` into the heap of `waiting` values, the largest first, and return how many there are.
static int64_t put(int64_t *heap, int64_t waiting, int64_t value) {
    int64_t at = waiting;
    for (; at > 0 && heap[(at - 1) / 2] < value; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = value;
    return waiting + 1;
}

// Take the largest value out of the heap, and return how many are left.
static int64_t take(int64_t *heap, int64_t waiting) {
    int64_t value = heap[--waiting], at = 0;
    for (int64_t below = 1; below < waiting; below = 2 * below + 1) {
        if (below + 1 < waiting && heap[below + 1] > heap[below]) below++;
        if (heap[below] <= value) break;
        heap[at] = heap[below];
        at = below;
    }
    heap[at] = value;
    return waiting;
}

// Enter for each reference the index of the next one to the same object, or NONE; `last` is NONE for each object.
EXPORT void find_following(const int32_t *chain, int64_t references, int64_t *last, int64_t *following) {
    for (int64_t i = references - 1; i >= 0; i--) {
        following[i] = last[chain[i]];
        last[chain[i]] = i;
    }
}

// Find hits and inserts, `uses`.
//
// `heap` holds the next references of the objects that are there, the latest first. Those that came meanwhile stay in
// it, below all others, and no object that is not there has one above them: the first is always an object's that is.
EXPORT void use_optimally(const int64_t *offsets, int64_t requests, const int32_t *chain, const int64_t *following,
    int8_t *live, int64_t *heap, int64_t limit, int64_t *uses) {
    int64_t hits = 0, inserts = 0, used = 0, waiting = 0;
    for (int64_t request = 0; request < requests; request++) {
        bool is_leading = true;
        for (int64_t i = offsets[request]; i < offsets[request + 1]; i++) {
            int64_t slot = chain[i], later = following[i];
            if (live[slot]) {
                hits += is_leading;
                if (later == NONE) live[slot] = 0, used--;
                else waiting = put(heap, waiting, later);
                continue;
            }
            is_leading = false;
            if (later == NONE) continue;
            if (used == limit) {
                if (limit == 0 || heap[0] <= later) continue;   // without room nothing is in the heap
                live[chain[heap[0]]] = 0;
                waiting = take(heap, waiting);
                used--;
            }
            live[slot] = 1;
            used++;
            inserts++;
            waiting = put(heap, waiting, later);
        }
    }
    uses[0] = hits, uses[1] = inserts;
}
