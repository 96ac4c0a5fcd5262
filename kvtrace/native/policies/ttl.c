// TTL: what is written expires a fixed time later, read or not, and the rest is as FIFO.
#include "../sim.h"

EXPORT void ttl_on_insert(World *w, int64_t t, int64_t slot, int64_t now) {
    note_of(w, t, slot)->count = now + w->tiers[t].ttl_ns;  // when it expires
    enter(w, t, slot, 0);
}
