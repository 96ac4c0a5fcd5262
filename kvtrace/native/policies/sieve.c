// SIEVE: a hand goes over the list from the oldest to the newest object, again and again, and
// evicts the first one that was not used since it came by last. Objects do not move.
//
//     on hit:     s.used = 1
//     on insert:  put s at the head of the list
//     victim:     while the object at the hand was used: clear its bit and go on to the next newer
//                 (from the head to the tail); the object at the hand
//
// Zhang et al., SIEVE is simpler than LRU, NSDI 2024.
#include "../sim.h"

HitHook clock_on_hit;

EXPORT void sieve_on_hit(World *world, int64_t level, int64_t slot) {
    clock_on_hit(world, level, slot);
}

EXPORT int64_t sieve_choose_victim(World *world, int64_t level, UNUSED int64_t incoming) {
    int64_t slot = world->tiers[level].hand_slot;
    if (slot == NONE) {
        slot = list_of(world, level, 0)->tail;
    }
    while (policy_note_of(world, level, slot)->count) {
        policy_note_of(world, level, slot)->count = 0;
        slot = list_link_of(world, level, slot)->newer;
        if (slot == NONE) {
            slot = list_of(world, level, 0)->tail;
        }
    }
    world->tiers[level].hand_slot = slot;
    return slot;
}

EXPORT void sieve_on_remove(World *world, int64_t level, int64_t slot, UNUSED int64_t is_evicted) {
    Tier *tier = &world->tiers[level];
    if (tier->hand_slot == slot) {
        tier->hand_slot = list_link_of(world, level, slot)->newer;
    }
    list_leave(world, level, slot);
}
