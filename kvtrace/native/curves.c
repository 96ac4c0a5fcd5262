// Hits and inserts against capacity: of one cache at a given capacity, and of LRU at every capacity
// in one pass.
//
// Requests are in order: number n touches the objects chain[offsets[n]:offsets[n + 1]], of which
// those count as hits that are found before the first that is not. `uses` are the hits and the
// inserts.
#include "sim.h"

static void take_out(World *w, int64_t slot, int64_t is_evicted) {
    on_remove(w, 0, slot, is_evicted);
    w->slots[slot].live = 0;
    w->tiers[0].live_bytes -= w->slots[slot].size;
}

// Of the one tier, with its policy, which all requests go through in order.
EXPORT void use_tier(World *w, int64_t *uses) {
    Tier *tier = &w->tiers[0];
    int64_t hits = 0, inserts = 0;
    for (int64_t request = 0; request < w->offsets_count - 1; request++) {
        int64_t now = w->arrival_ns[request];
        bool is_leading = true;
        while (expiry_ns(w, 0) <= now) {
            take_out(w, queue_of(w, 0, 0)->tail, 0);
        }
        for (int64_t i = w->offsets[request]; i < w->offsets[request + 1]; i++) {
            int64_t slot = w->chains[i];
            Slot *what = &w->slots[slot];
            if (what->live) {
                on_hit(w, 0, slot);
                hits += is_leading;
                continue;
            }
            is_leading = false;
            if (what->size > tier->limit) {
                continue;
            }
            while (tier->live_bytes + what->size > tier->limit) {
                take_out(w, victim(w, 0, slot), 1);
            }
            on_insert(w, 0, slot, now);
            what->live = 1;
            tier->live_bytes += what->size;
            inserts++;
        }
    }
    table_free(&w->tops);
    uses[0] = hits, uses[1] = inserts;
}

// Count how many references have each stack distance, as the largest so far in their request
// (`leading`) and by itself
// (`own`), both of objects + 2 zeros: index objects + 1 is a first reference.
//
// `tree`, a Fenwick tree over positions, of references + 1 zeros, counts the objects used since;
// `last` is NONE for each object.
EXPORT void find_distances(const int64_t *offsets, int64_t requests, const int32_t *chain,
                           int64_t references, int64_t objects, int32_t *tree, int64_t *last,
                           int64_t *leading, int64_t *own) {
    int64_t live = 0;
    for (int64_t request = 0; request < requests; request++) {
        int64_t largest = 0;
        for (int64_t i = offsets[request]; i < offsets[request + 1]; i++) {
            int64_t at = last[chain[i]], distance = objects + 1;
            if (at < 0) {
                live++;
            } else {
                int64_t before = 0;
                for (int64_t j = at + 1; j > 0; j -= j & -j) {
                    before += tree[j];
                }
                distance = live - before + 1;
                for (int64_t j = at + 1; j <= references; j += j & -j) {
                    tree[j]--;
                }
            }
            for (int64_t j = i + 1; j <= references; j += j & -j) {
                tree[j]++;
            }
            last[chain[i]] = i;
            largest = max_of(largest, distance);
            own[distance]++;
            leading[largest]++;
        }
    }
}

// === Belady's optimum
// ================================================================================================
// What no eviction or admission policy can exceed (see curves/stack.py).

// Enter for each reference the index of the next one to the same object, or NONE; `last` is NONE
// for each object.
EXPORT void find_following(const int32_t *chain, int64_t references, int64_t *last,
                           int64_t *following) {
    for (int64_t i = references - 1; i >= 0; i--) {
        following[i] = last[chain[i]];
        last[chain[i]] = i;
    }
}

// Find hits and inserts, `uses`.
//
// `heap` holds the next references of the objects that are there, the latest first, for each is at
// less than 0 by as much. Those that came meanwhile stay in it, below all others, and no object
// that is not there has one above them: the first is always an object's that is.
EXPORT void use_optimally(const int64_t *offsets, int64_t requests, const int32_t *chain,
                          const int64_t *following, int8_t *live, Event *heap, int64_t limit,
                          int64_t *uses) {
    int64_t hits = 0, inserts = 0, used = 0, waiting = 0;
    for (int64_t request = 0; request < requests; request++) {
        bool is_leading = true;
        for (int64_t i = offsets[request]; i < offsets[request + 1]; i++) {
            int64_t slot = chain[i], later = following[i];
            if (live[slot]) {
                hits += is_leading;
                if (later == NONE) {
                    live[slot] = 0, used--;
                } else {
                    push(heap, waiting++, -later, later);
                }
                continue;
            }
            is_leading = false;
            if (later == NONE) {
                continue;
            }
            if (used == limit) {
                if (limit == 0 || heap[0].actor <= later) {
                    continue; // without room nothing is in the heap
                }
                live[chain[pop(heap, waiting--)]] = 0;
                used--;
            }
            live[slot] = 1;
            used++;
            inserts++;
            push(heap, waiting++, -later, later);
        }
    }
    uses[0] = hits, uses[1] = inserts;
}

// Keep of `chain` the references to those objects whose hash, another one for each `seed`, is one
// of the first `below` of so many `values`: `kept` has them by new numbers, in the order of the old
// ones, those of request n from kept_offsets[n] on. `number` says the new ones; NONE: not kept.
EXPORT void sample_chains(const int64_t *offsets, int64_t requests, const int32_t *chain,
                          int64_t objects, int64_t seed, int64_t below, int64_t values,
                          int32_t *number, int64_t *kept_offsets, int32_t *kept) {
    int32_t count = 0;
    for (int64_t i = 0; i < objects; i++) {
        uint64_t hash = mixed((uint64_t)i + (uint64_t)seed * 0x9E3779B97F4A7C15u + 1);
        number[i] = (int64_t)(hash % (uint64_t)values) < below ? count++ : NONE;
    }
    int64_t n = kept_offsets[0] = 0;
    for (int64_t request = 0; request < requests; kept_offsets[++request] = n) {
        for (int64_t i = offsets[request]; i < offsets[request + 1]; i++) {
            if (number[chain[i]] != NONE) {
                kept[n++] = number[chain[i]];
            }
        }
    }
}
