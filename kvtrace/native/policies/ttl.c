// TTL: what is written expires a fixed time later, read or not, and the rest is as FIFO.
#include "../sim.h"

Operation fifo_on_hit, fifo_choose, fifo_on_remove;

EXPORT int64_t ttl_on_hit(World *w, int64_t t, int64_t slot, int64_t with) { return fifo_on_hit(w, t, slot, with); }

EXPORT int64_t ttl_on_insert(World *w, int64_t t, int64_t slot, int64_t now) {
    note_of(w, t, slot)->count = now + w->tiers[t].ttl_ns;  // when it expires
    enter(w, t, slot, 0);
    return 0;
}

EXPORT int64_t ttl_choose(World *w, int64_t t, int64_t slot, int64_t with) { return fifo_choose(w, t, slot, with); }

EXPORT int64_t ttl_on_remove(World *w, int64_t t, int64_t slot, int64_t with) {
    return fifo_on_remove(w, t, slot, with);
}
