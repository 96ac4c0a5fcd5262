// SIEVE: a hand goes from old to new, over and over, past those used since it last came by.
#include "../sim.h"

Change clock_on_hit;

EXPORT void sieve_on_hit(World *w, int64_t t, int64_t slot, int64_t with) {
    clock_on_hit(w, t, slot, with);
}

// Where the hand stops: at the first that was not used since it last came by.
EXPORT int64_t sieve_choose(World *w, int64_t t, int64_t slot, UNUSED int64_t with) {
    slot = w->tiers[t].hand;
    if (slot == NONE) {
        slot = queue_of(w, t, 0)->tail;
    }
    while (note_of(w, t, slot)->count) {
        note_of(w, t, slot)->count = 0;
        slot = link_of(w, t, slot)->newer;
        if (slot == NONE) {
            slot = queue_of(w, t, 0)->tail;
        }
    }
    return w->tiers[t].hand = slot;
}

// The hand moves on if it is there.
EXPORT void sieve_on_remove(World *w, int64_t t, int64_t slot, UNUSED int64_t with) {
    if (w->tiers[t].hand == slot) {
        w->tiers[t].hand = link_of(w, t, slot)->newer;
    }
    leave(w, t, slot);
}
