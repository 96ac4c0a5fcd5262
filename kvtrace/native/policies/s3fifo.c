// S3-FIFO: new slots pass through a tenth of the tier, and stay if used twice there, or asked for
// again soon after.
#include "../sim.h"

// Its lists. What is about to be inserted, and was a ghost, is in none of them.
enum { SMALL, MAIN, GHOST, WAS_GHOST };
enum { MOVES_AT = 2, COUNTS_TO = 3 };

// Make `slot`, which is about to be inserted, no ghost any more, but remember that it was; once.
static void recall(World *w, int64_t t, int64_t slot) {
    Note *note = note_of(w, t, slot);
    if (note->place != GHOST) {
        return;
    }
    leave(w, t, slot);
    note->place = WAS_GHOST;
}

// Make `slot` the newest ghost, unless it is larger than all ghosts may be.
static void remember(World *w, int64_t t, int64_t slot) {
    const Queue *ghosts = queue_of(w, t, GHOST);
    int64_t limit = w->tiers[t].limit, size = w->slots[slot].size, room = limit - (limit + 9) / 10;
    if (size > room) {
        return;
    }
    while (ghosts->bytes + size > room) {
        leave(w, t, ghosts->tail);
    }
    enter(w, t, slot, GHOST);
}

EXPORT void s3fifo_on_hit(World *w, int64_t t, int64_t slot, UNUSED int64_t with) {
    note_of(w, t, slot)->count++;
}

// Into the small queue; into the main one if it was a ghost, or before anything ever had to leave.
EXPORT void s3fifo_on_insert(World *w, int64_t t, int64_t slot, UNUSED int64_t with) {
    recall(w, t, slot);
    Note *note = note_of(w, t, slot);
    const Tier *tier = &w->tiers[t];
    note->count = 0;
    bool is_small_full = queue_of(w, t, SMALL)->bytes >= tier->limit / 10;
    bool is_main = note->place == WAS_GHOST || (is_small_full && !tier->has_evicted);
    enter(w, t, slot, is_main ? MAIN : SMALL);
}

// What makes room for `incoming`; those used in the small queue move to the main one.
EXPORT int64_t s3fifo_choose(World *w, int64_t t, int64_t incoming, UNUSED int64_t with) {
    recall(w, t, incoming);
    Tier *tier = &w->tiers[t];
    const Queue *small = queue_of(w, t, SMALL), *large = queue_of(w, t, MAIN);
    int64_t slot;
    tier->has_evicted = 1;
    if (large->bytes <= tier->limit - tier->limit / 10) {
        while ((slot = small->tail) != NONE && note_of(w, t, slot)->count >= MOVES_AT) {
            leave(w, t, slot);
            enter(w, t, slot, MAIN);
            note_of(w, t, slot)->count = 0;
        }
        if (slot != NONE) {
            return slot;
        }
    }
    Note *note;
    while ((note = note_of(w, t, slot = large->tail))->count) {
        note->count = min_of(note->count, COUNTS_TO) - 1;
        unlink_from(w, t, slot, MAIN);
        link_first(w, t, slot, MAIN);
    }
    return slot;
}

EXPORT void s3fifo_on_remove(World *w, int64_t t, int64_t slot, int64_t is_evicted) {
    int32_t place = note_of(w, t, slot)->place;
    leave(w, t, slot);
    if (place == SMALL && is_evicted) {
        remember(w, t, slot);
    }
}

EXPORT void s3fifo_forget(World *w, int64_t t, int64_t slot, UNUSED int64_t with) {
    if (note_of(w, t, slot)->place == GHOST) {
        leave(w, t, slot);
    }
}
