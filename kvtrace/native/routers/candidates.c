// What routers share: which nodes they may choose, and which of two if all else is equal; what of a prompt each has.
#include "../sim.h"

int64_t count_open(World *w) {
    int64_t count = 0;
    for (int64_t node = 0; node < w->fleet.entrances; node++) count += is_open(w, node);
    return count;
}

// Whether node `one` has served fewer requests than `other`; NONE has served more than any.
bool is_fresher(World *w, int64_t one, int64_t other) {
    return other == NONE || w->fleet.nodes[one].turns < w->fleet.nodes[other].turns;
}

// Whether the object after the first `run` ones is one more of those that `node` has (racks come after all nodes).
static bool add_run(World *w, int64_t node, int64_t run, int64_t size) {
    Fleet *fleet = &w->fleet;
    if (node >= fleet->count || fleet->runs[node] != run) return false;
    fleet->runs[node]++;
    fleet->runs[fleet->count + node] += size;
    return true;
}

// Find, for each node, of how many of the request's first objects it has a copy in tiers of its own, in `runs`.
void measure(World *w, int64_t actor, int64_t n) {
    Fleet *fleet = &w->fleet;
    int64_t first = w->actors[actor].retrieved_objects;
    for (int64_t node = 0; node < 2 * fleet->count; node++) fleet->runs[node] = 0;
    bool is_any = fleet->scoped != 0;
    for (int64_t i = first; is_any && i < n; i++) {
        int64_t entry = w->chain[i];
        is_any = false;
        if (entry < 0) {
            if (place_in(entry)) is_any = add_run(w, place_in(entry) - 1, i - first, w->knobs.chunk_bytes);
            continue;
        }
        for (int64_t copy = fleet->copies[entry].first; copy != NONE; copy = fleet->copies[copy].older) {
            const Slot *what = &w->slots[copy];
            if (what->live != 0) is_any |= add_run(w, what->place - 1, i - first, what->size);
        }
    }
}

// How many tokens of the request's prompt `node` has, as `measure` found.
int64_t found_tokens(World *w, int64_t actor, int64_t node) {
    Fleet *fleet = &w->fleet;
    int64_t chunk = w->knobs.chunk_tokens;
    int64_t tokens = chunk ? fleet->runs[node] * chunk : fleet->runs[fleet->count + node] / w->knobs.bytes_per_token;
    return min_of(tokens, w->actors[actor].input);
}
