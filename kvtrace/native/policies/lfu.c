// LFU: one list by count, the least used last, and of those used as often the one that has been so
// for longest.
//
// World.tops has the most recent slot of each count, so that a slot can go past all that were used
// as often.
#include "../sim.h"

static int64_t key_of(World *w, int64_t t, int64_t count) { // in World.tops
    return (count * (2 * w->fleet.count + 1) + counter_of(w, t)) * w->tiers_count + t;
}

static int64_t top_of(World *w, int64_t t, int64_t count) { // NONE if none was used so often
    const int64_t *top = table_find(&w->tops, key_of(w, t, count));
    return top ? *top : NONE;
}

// Put `slot` above all that were used as often, or if none was above `below`; NONE is below all.
static void link_by_count(World *w, int64_t t, int64_t slot, int64_t below) {
    int64_t count = note_of(w, t, slot)->count, top = top_of(w, t, count);
    if (top != NONE) {
        below = top;
    }
    link_between(w, t, slot, below == NONE ? queue_of(w, t, 0)->tail : link_of(w, t, below)->newer,
                 below, 0);
    *table_put(&w->tops, key_of(w, t, count), NONE) = slot;
}

// It is used for the first time.
EXPORT void lfu_on_insert(World *w, int64_t t, int64_t slot, UNUSED int64_t with) {
    note_of(w, t, slot)->count = 1;
    link_by_count(w, t, slot, NONE);
}

EXPORT void lfu_on_remove(World *w, int64_t t, int64_t slot, UNUSED int64_t with) {
    int64_t count = note_of(w, t, slot)->count, older = link_of(w, t, slot)->older;
    if (top_of(w, t, count) == slot) {
        if (older != NONE && note_of(w, t, older)->count == count) {
            *table_put(&w->tops, key_of(w, t, count), NONE) = older;
        } else {
            table_drop(&w->tops, key_of(w, t, count));
        }
    }
    unlink_from(w, t, slot, 0);
}

EXPORT void lfu_on_hit(World *w, int64_t t, int64_t slot,
                       UNUSED int64_t with) { // it is used once more
    int64_t top = top_of(w, t, note_of(w, t, slot)->count),
            below = top == slot ? link_of(w, t, slot)->older : top;
    lfu_on_remove(w, t, slot, 0);
    note_of(w, t, slot)->count++;
    link_by_count(w, t, slot, below);
}
