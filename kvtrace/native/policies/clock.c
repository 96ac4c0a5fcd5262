// CLOCK: FIFO, but an object that was used gets a second chance.
//
//     on hit:  s.used = 1
//     victim:  while the tail of the list was used: clear its bit and move it to the head
//              the tail
//
// F. J. Corbato, A paging experiment with the Multics system, 1968.
#include "../sim.h"

EXPORT void clock_on_hit(World *world, int64_t level, int64_t slot) {
    policy_note_of(world, level, slot)->count = 1;
}

EXPORT int64_t clock_choose_victim(World *world, int64_t level, UNUSED int64_t incoming) {
    for (;;) {
        int64_t slot = list_of(world, level, 0)->tail;
        Note *note = policy_note_of(world, level, slot);
        if (!note->count) {
            return slot;
        }
        note->count = 0;
        list_unlink(world, level, slot, 0);
        list_link_first(world, level, slot, 0);
    }
}
