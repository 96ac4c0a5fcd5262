// ARC: those used once and those used more often share the tier as the misses of either suggest.
#include "../sim.h"

// Its lists. What is about to be inserted, and was a ghost, is in none of them.
enum { T1, T2, B1, B2, WAS_B1, WAS_B2 };

static double ratio(int64_t of, int64_t to) { // at least 1
    double share = (double)of / (double)to;
    return share > 1.0 ? share : 1.0;
}

// Make `slot`, which is about to be inserted, no ghost any more, but remember that it was; once.
static void recall(World *w, int64_t t, int64_t slot) {
    Note *note = note_of(w, t, slot);
    Tier *tier = &w->tiers[t];
    int32_t place = note->place;
    if (place != B1 && place != B2) {
        return;
    }
    int64_t recent = queue_of(w, t, B1)->bytes, frequent = queue_of(w, t, B2)->bytes;
    double size = (double)w->slots[slot].size, limit = (double)tier->limit, target;
    if (place == B1) {
        target = tier->target + size * ratio(frequent, recent);
        tier->target = limit < target ? limit : target;
    } else {
        target = tier->target - size * ratio(recent, frequent);
        tier->target = target < 0.0 ? 0.0 : target;
    }
    leave(w, t, slot);
    note->place = place == B1 ? WAS_B1 : WAS_B2;
}

// It is one of those used more often.
EXPORT void arc_on_hit(World *w, int64_t t, int64_t slot, UNUSED int64_t with) {
    leave(w, t, slot);
    enter(w, t, slot, T2);
}

// Used once; more often as a ghost.
EXPORT void arc_on_insert(World *w, int64_t t, int64_t slot, UNUSED int64_t with) {
    recall(w, t, slot);
    Note *note = note_of(w, t, slot);
    note->count = 0;
    enter(w, t, slot, note->place == NONE ? T1 : T2);
}

// ARC's victim; its count says that it is not to become a ghost (case IV A, T1 alone fills the
// tier).
EXPORT int64_t arc_choose(World *w, int64_t t, int64_t incoming, UNUSED int64_t with) {
    recall(w, t, incoming);
    const Tier *tier = &w->tiers[t];
    const Queue *t1 = queue_of(w, t, T1), *t2 = queue_of(w, t, T2), *b1 = queue_of(w, t, B1),
                *b2 = queue_of(w, t, B2);
    int32_t origin = note_of(w, t, incoming)->place;
    int64_t size = w->slots[incoming].size, recent = t1->bytes, frequent = t2->bytes;
    if (origin != WAS_B1 && origin != WAS_B2) {
        if (recent + b1->bytes + size > tier->limit) {
            if (b1->bytes > 0) {
                leave(w, t, b1->tail);
            } else if (recent > 0) {
                note_of(w, t, t1->tail)->count = 1;
                return t1->tail;
            }
        } else if (recent + b1->bytes + frequent + b2->bytes - tier->limit >= tier->limit &&
                   b2->bytes > 0) {
            leave(w, t, b2->tail);
        }
    }
    double bytes = (double)recent;
    bool is_recent =
        recent > 0 && (bytes > tier->target || (bytes == tier->target && origin == WAS_B2));
    return frequent == 0 || is_recent ? t1->tail : t2->tail;
}

// What is evicted becomes a ghost, unless arc_choose said otherwise.
EXPORT void arc_on_remove(World *w, int64_t t, int64_t slot, int64_t is_evicted) {
    const Note *note = note_of(w, t, slot);
    int32_t place = note->place;
    leave(w, t, slot);
    if (is_evicted && !note->count) {
        enter(w, t, slot, place == T1 ? B1 : B2);
    }
}

EXPORT void arc_forget(World *w, int64_t t, int64_t slot, UNUSED int64_t with) {
    int32_t place = note_of(w, t, slot)->place;
    if (place == B1 || place == B2) {
        leave(w, t, slot);
    }
}
