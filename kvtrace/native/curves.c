// Hits and inserts against capacity: of one cache with any policy at a given capacity, of LRU at
// every capacity in one pass, and of Belady's optimum (curves/stack.py describes all of them).
//
//     curve_use_tier                            one policy, one capacity
//     curve_stack_distances                     LRU, all capacities
//     curve_next_references, curve_use_optimal  the optimum, one capacity
//     curve_sample_chains                       a sample of the objects, for estimates
//
// Requests are in order: request n touches the objects chain[offsets[n]:offsets[n + 1]]. Those that
// are found before its first miss count as hits. `uses` gets the hits and the inserts.
#include "sim.h"

// --- one policy at one capacity

static void curve_remove_slot(World *world, int64_t slot, int64_t is_evicted) {
    policy_remove(world, 0, slot, is_evicted);
    world->slots[slot].live = 0;
    world->tiers[0].live_bytes -= world->slots[slot].size;
}

// Sends all requests through the only tier, in order.
EXPORT void curve_use_tier(World *world, int64_t *uses) {
    Tier *tier = &world->tiers[0];
    int64_t hits = 0;
    int64_t inserts = 0;
    for (int64_t request = 0; request < world->offsets_count - 1; request++) {
        int64_t now = world->arrival_ns[request];
        bool is_leading = true;
        while (policy_expiry_ns(world, 0) <= now) {
            curve_remove_slot(world, list_of(world, 0, 0)->tail, 0);
        }
        for (int64_t i = world->offsets[request]; i < world->offsets[request + 1]; i++) {
            int64_t slot = world->chains[i];
            Slot *object = &world->slots[slot];
            if (object->live) {
                policy_hit(world, 0, slot);
                hits += is_leading;
                continue;
            }
            is_leading = false;
            if (object->size > tier->limit_bytes) {
                continue;
            }
            while (tier->live_bytes + object->size > tier->limit_bytes) {
                curve_remove_slot(world, policy_choose_victim(world, 0, slot), 1);
            }
            policy_insert(world, 0, slot, now);
            object->live = 1;
            tier->live_bytes += object->size;
            inserts++;
        }
    }
    table_free(&world->lfu_tops);
    uses[0] = hits;
    uses[1] = inserts;
}

// --- LRU at every capacity: stack distances
//
// The stack distance of a reference is the number of distinct objects since the last reference to
// the same object, itself included. An LRU cache of c objects hits if the distance is at most c.
//
//     for reference i to object o:
//         distance = number of positions since last[o] that are their object's last reference
//         mark position i, unmark position last[o]
//
// Mattson, Gecsei, Slutz and Traiger, IBM Systems Journal, 1970; counted with a Fenwick tree over
// positions, as Olken (1981) did with a balanced tree.

// A Fenwick tree over `size` positions, from 1 on.
typedef struct {
    int32_t *node;
    int64_t size;
} PositionTree;

static void positions_add(PositionTree tree, int64_t position, int32_t count) {
    for (int64_t i = position; i <= tree.size; i += i & -i) {
        tree.node[i] += count;
    }
}

static int64_t positions_count_up_to(PositionTree tree, int64_t position) {
    int64_t count = 0;
    for (int64_t i = position; i > 0; i -= i & -i) {
        count += tree.node[i];
    }
    return count;
}

// Counts how many references have each stack distance: by themselves (`own`), and as the largest
// distance so far of their request (`leading`), which says whether they are before its first miss.
// Both have objects + 2 zeros to begin with; index objects + 1 is a first reference. `tree` has
// references + 1 zeros; `last` is NONE for each object.
EXPORT void curve_stack_distances(const int64_t *offsets, int64_t requests, const int32_t *chain,
                                  int64_t references, int64_t objects, int32_t *tree, int64_t *last,
                                  int64_t *leading, int64_t *own) {
    PositionTree positions = {tree, references};
    int64_t seen_objects = 0;
    for (int64_t request = 0; request < requests; request++) {
        int64_t largest = 0;
        for (int64_t i = offsets[request]; i < offsets[request + 1]; i++) {
            int64_t before = last[chain[i]];
            int64_t distance = objects + 1;
            if (before < 0) {
                seen_objects++;
            } else {
                int64_t older = positions_count_up_to(positions, before + 1);
                distance = seen_objects - older + 1;
                positions_add(positions, before + 1, -1);
            }
            positions_add(positions, i + 1, 1);
            last[chain[i]] = i;
            largest = max_of(largest, distance);
            own[distance]++;
            leading[largest]++;
        }
    }
}

// --- Belady's optimum
//
//     on a miss:  if the cache is full, evict the object whose next reference is the latest, the
//                 incoming one included; an object without a next reference is not stored
//
// L. A. Belady, IBM Systems Journal, 1966. No eviction or admission policy hits more.

// Fills `following` with the index of the next reference to the same object, or NONE. `last` is
// NONE for each object.
EXPORT void curve_next_references(const int32_t *chain, int64_t references, int64_t *last,
                                  int64_t *following) {
    for (int64_t i = references - 1; i >= 0; i--) {
        following[i] = last[chain[i]];
        last[chain[i]] = i;
    }
}

// Simulates the optimum. `heap` has the next references of the cached objects, the latest first
// (its key is the negative index). References that have passed stay in it, below all others, so its
// first is always the next reference of a cached object.
EXPORT void curve_use_optimal(const int64_t *offsets, int64_t requests, const int32_t *chain,
                              const int64_t *following, int8_t *live, Event *heap, int64_t limit,
                              int64_t *uses) {
    int64_t hits = 0;
    int64_t inserts = 0;
    int64_t cached = 0;
    int64_t heap_size = 0;
    for (int64_t request = 0; request < requests; request++) {
        bool is_leading = true;
        for (int64_t i = offsets[request]; i < offsets[request + 1]; i++) {
            int64_t object = chain[i];
            int64_t next = following[i];
            if (live[object]) {
                hits += is_leading;
                if (next == NONE) {
                    live[object] = 0;
                    cached--;
                } else {
                    event_push(heap, heap_size++, -next, next);
                }
                continue;
            }
            is_leading = false;
            if (next == NONE) {
                continue;
            }
            if (cached == limit) {
                // The heap is empty if there is no room at all.
                if (limit == 0 || heap[0].actor <= next) {
                    continue;
                }
                int64_t latest = event_pop(heap, heap_size--);
                live[chain[latest]] = 0;
                cached--;
            }
            live[object] = 1;
            cached++;
            inserts++;
            event_push(heap, heap_size++, -next, next);
        }
    }
    uses[0] = hits;
    uses[1] = inserts;
}

// --- samples

// Keeps the references to a sample of the objects: those whose hash, which `seed` changes, is one
// of the first `below` of `values` (spatial sampling: Waldspurger et al., SHARDS, FAST 2015).
//
// `number` gets the new numbers of the objects, in the order of the old ones (NONE: not kept);
// `kept` the references by these, those of request n from kept_offsets[n] on.
EXPORT void curve_sample_chains(const int64_t *offsets, int64_t requests, const int32_t *chain,
                                int64_t objects, int64_t seed, int64_t below, int64_t values,
                                int32_t *number, int64_t *kept_offsets, int32_t *kept) {
    int32_t count = 0;
    for (int64_t i = 0; i < objects; i++) {
        uint64_t hash = mixed((uint64_t)i + (uint64_t)seed * 0x9E3779B97F4A7C15u + 1);
        bool is_kept = (int64_t)(hash % (uint64_t)values) < below;
        number[i] = is_kept ? count++ : NONE;
    }
    int64_t n = 0;
    kept_offsets[0] = 0;
    for (int64_t request = 0; request < requests; request++) {
        for (int64_t i = offsets[request]; i < offsets[request + 1]; i++) {
            if (number[chain[i]] != NONE) {
                kept[n++] = number[chain[i]];
            }
        }
        kept_offsets[request + 1] = n;
    }
}
