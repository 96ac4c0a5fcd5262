// LFU: the object with the fewest uses since it was written is evicted; of several, the one that
// has had its count for longest.
//
//     on insert:  s.count = 1
//     on hit:     s.count += 1
//     victim:     the object with the lowest count
//
// One list has all objects in the order of their counts, the most used first. World.lfu_tops has
// the most recent object of each count, so that an object can move past all of the same count at
// once (Shah, Mitra and Matani, An O(1) algorithm for implementing the LFU cache eviction scheme,
// 2010).
#include "../sim.h"

static int64_t lfu_top_key(World *world, int64_t level, int64_t count) {
    int64_t places = 2 * world->fleet.count + 1;
    return (count * places + tier_place(world, level)) * world->tiers_count + level;
}

// The most recent object with this count; NONE if there is none.
static int64_t lfu_top_of(World *world, int64_t level, int64_t count) {
    const int64_t *top = table_find(&world->lfu_tops, lfu_top_key(world, level, count));
    return top ? *top : NONE;
}

// Puts `slot` above all objects of its count. If there are none, above `below`; NONE is the end.
static void lfu_link_by_count(World *world, int64_t level, int64_t slot, int64_t below) {
    int64_t count = policy_note_of(world, level, slot)->count;
    int64_t top = lfu_top_of(world, level, count);
    if (top != NONE) {
        below = top;
    }
    int64_t newer = list_of(world, level, 0)->tail;
    if (below != NONE) {
        newer = list_link_of(world, level, below)->newer;
    }
    list_link_between(world, level, slot, newer, below, 0);
    *table_put(&world->lfu_tops, lfu_top_key(world, level, count), NONE) = slot;
}

EXPORT void lfu_on_insert(World *world, int64_t level, int64_t slot, UNUSED int64_t now) {
    policy_note_of(world, level, slot)->count = 1;
    lfu_link_by_count(world, level, slot, NONE);
}

EXPORT void lfu_on_remove(World *world, int64_t level, int64_t slot, UNUSED int64_t is_evicted) {
    int64_t count = policy_note_of(world, level, slot)->count;
    int64_t older = list_link_of(world, level, slot)->older;
    if (lfu_top_of(world, level, count) == slot) {
        int64_t key = lfu_top_key(world, level, count);
        bool has_next = older != NONE && policy_note_of(world, level, older)->count == count;
        if (has_next) {
            *table_put(&world->lfu_tops, key, NONE) = older;
        } else {
            table_drop(&world->lfu_tops, key);
        }
    }
    list_unlink(world, level, slot, 0);
}

EXPORT void lfu_on_hit(World *world, int64_t level, int64_t slot) {
    int64_t top = lfu_top_of(world, level, policy_note_of(world, level, slot)->count);
    int64_t below = top == slot ? list_link_of(world, level, slot)->older : top;
    lfu_on_remove(world, level, slot, 0);
    policy_note_of(world, level, slot)->count++;
    lfu_link_by_count(world, level, slot, below);
}
