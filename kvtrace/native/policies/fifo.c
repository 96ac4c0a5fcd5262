// FIFO: the object that was written first is evicted first; and TTL, which is FIFO with an age.
// A policy without an operation of its own has the one of this file.
//
//     on hit:     nothing
//     on insert:  put s at the head of the list
//     victim:     the tail of the list
//
// TTL: besides, an object expires `ttl` after it was written, read or not (policy_expiry_ns).
#include "../sim.h"

EXPORT void fifo_on_hit(UNUSED World *world, UNUSED int64_t level, UNUSED int64_t slot) {
}

EXPORT void fifo_on_insert(World *world, int64_t level, int64_t slot, UNUSED int64_t now) {
    policy_note_of(world, level, slot)->count = 0; // CLOCK and SIEVE: not used yet
    list_enter(world, level, slot, 0);
}

EXPORT int64_t fifo_choose_victim(World *world, int64_t level, UNUSED int64_t incoming) {
    return list_of(world, level, 0)->tail;
}

EXPORT void fifo_on_remove(World *world, int64_t level, int64_t slot, UNUSED int64_t is_evicted) {
    list_leave(world, level, slot);
}

EXPORT void ttl_on_insert(World *world, int64_t level, int64_t slot, int64_t now) {
    policy_note_of(world, level, slot)->count = now + world->tiers[level].ttl_ns;
    list_enter(world, level, slot, 0);
}
