// CLOCK: as FIFO, but a slot that was used is spared once for it, and becomes the newest.
#include "../sim.h"

EXPORT void clock_on_hit(World *w, int64_t t, int64_t slot, UNUSED int64_t with) {
    note_of(w, t, slot)->count = 1;
}

// The oldest slot that was not used since it last became the newest, or the first.
EXPORT int64_t clock_choose(World *w, int64_t t, int64_t slot, UNUSED int64_t with) {
    while (note_of(w, t, slot = queue_of(w, t, 0)->tail)->count) {
        note_of(w, t, slot)->count = 0;
        unlink_from(w, t, slot, 0);
        link_first(w, t, slot, 0);
    }
    return slot;
}
