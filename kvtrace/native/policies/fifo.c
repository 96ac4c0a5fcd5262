// FIFO: the one written first leaves first. What a policy has no function of its own for, it does
// as this does.
#include "../sim.h"

// A use does not count.
EXPORT void fifo_on_hit(UNUSED World *w, UNUSED int64_t t, UNUSED int64_t slot,
                        UNUSED int64_t with) {
}

EXPORT void fifo_on_insert(World *w, int64_t t, int64_t slot, UNUSED int64_t with) {
    note_of(w, t, slot)->count = 0; // it was not used
    enter(w, t, slot, 0);
}

EXPORT int64_t fifo_choose(World *w, int64_t t, UNUSED int64_t slot, UNUSED int64_t with) {
    return queue_of(w, t, 0)->tail;
}

EXPORT void fifo_on_remove(World *w, int64_t t, int64_t slot, UNUSED int64_t with) {
    leave(w, t, slot);
}

// TTL: what is written expires a fixed time later, read or not, and the rest is as here.
EXPORT void ttl_on_insert(World *w, int64_t t, int64_t slot, int64_t now) {
    note_of(w, t, slot)->count = now + w->tiers[t].ttl_ns; // when it expires
    enter(w, t, slot, 0);
}
