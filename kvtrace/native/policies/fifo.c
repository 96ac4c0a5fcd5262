// FIFO: the one written first leaves first. Policies of one list share what it does.
#include "../sim.h"

EXPORT int64_t fifo_on_hit(World *w, int64_t t, int64_t slot, int64_t with) {   // a use does not count
    (void)w, (void)t, (void)slot, (void)with;
    return 0;
}

EXPORT int64_t fifo_on_insert(World *w, int64_t t, int64_t slot, int64_t with) {
    (void)with;
    note_of(w, t, slot)->count = 0;     // it was not used
    enter(w, t, slot, 0);
    return 0;
}

EXPORT int64_t fifo_choose(World *w, int64_t t, int64_t slot, int64_t with) {
    (void)slot, (void)with;
    return queue_of(w, t, 0)->tail;
}

EXPORT int64_t fifo_on_remove(World *w, int64_t t, int64_t slot, int64_t with) {
    (void)with;
    leave(w, t, slot);
    return 0;
}
