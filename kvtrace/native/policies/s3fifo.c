// S3-FIFO: new objects pass through a small FIFO queue; those used there twice, or asked for again
// soon after they were evicted, go to the main one.
//
//     on hit:     s.count += 1
//     on insert:  if s is a ghost: into MAIN, else into SMALL (10 % of the tier)
//     victim:     if MAIN is at most 90 % of the tier: the tail of SMALL, or move it to MAIN if its
//                 count >= 2 and try again; an object evicted from SMALL becomes a ghost
//                 else the tail of MAIN, or move it to the head and lower its count if that is > 0
//
// Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023.
#include "../sim.h"

// The lists. An object that was a ghost and is about to be inserted is in none: WAS_GHOST.
enum { SMALL, MAIN, GHOST, WAS_GHOST };
// Uses that move an object from SMALL to MAIN, and the most that count in MAIN.
enum { MOVES_AT = 2, COUNTS_TO = 3 };

// Removes `slot`, which is about to be inserted, from the ghosts if it is one, and notes that it
// was.
static void s3fifo_recall_ghost(World *world, int64_t level, int64_t slot) {
    Note *note = policy_note_of(world, level, slot);
    if (note->list != GHOST) {
        return;
    }
    list_leave(world, level, slot);
    note->list = WAS_GHOST;
}

// Makes `slot` the newest ghost, unless it is larger than all ghosts together may be (90 % of the
// tier).
static void s3fifo_add_ghost(World *world, int64_t level, int64_t slot) {
    const RecencyList *ghosts = list_of(world, level, GHOST);
    int64_t limit_bytes = world->tiers[level].limit_bytes;
    int64_t ghost_limit_bytes = limit_bytes - (limit_bytes + 9) / 10;
    int64_t size = world->slots[slot].size;
    if (size > ghost_limit_bytes) {
        return;
    }
    while (ghosts->bytes + size > ghost_limit_bytes) {
        list_leave(world, level, ghosts->tail);
    }
    list_enter(world, level, slot, GHOST);
}

EXPORT void s3fifo_on_hit(World *world, int64_t level, int64_t slot) {
    policy_note_of(world, level, slot)->count++;
}

// Until the tier has evicted anything, objects that no longer fit SMALL go to MAIN, too.
EXPORT void s3fifo_on_insert(World *world, int64_t level, int64_t slot, UNUSED int64_t now) {
    s3fifo_recall_ghost(world, level, slot);
    Note *note = policy_note_of(world, level, slot);
    const Tier *tier = &world->tiers[level];
    note->count = 0;
    bool is_small_full = list_of(world, level, SMALL)->bytes >= tier->limit_bytes / 10;
    bool is_main = note->list == WAS_GHOST || (is_small_full && !tier->has_evicted);
    list_enter(world, level, slot, is_main ? MAIN : SMALL);
}

// The oldest object of SMALL that was not used enough to move to MAIN; NONE if all were.
static int64_t s3fifo_victim_of_small(World *world, int64_t level) {
    const RecencyList *small = list_of(world, level, SMALL);
    while (small->tail != NONE) {
        int64_t slot = small->tail;
        Note *note = policy_note_of(world, level, slot);
        if (note->count < MOVES_AT) {
            return slot;
        }
        list_leave(world, level, slot);
        list_enter(world, level, slot, MAIN);
        note->count = 0;
    }
    return NONE;
}

static int64_t s3fifo_victim_of_main(World *world, int64_t level) {
    for (;;) {
        int64_t slot = list_of(world, level, MAIN)->tail;
        Note *note = policy_note_of(world, level, slot);
        if (!note->count) {
            return slot;
        }
        note->count = min_of(note->count, COUNTS_TO) - 1;
        list_unlink(world, level, slot, MAIN);
        list_link_first(world, level, slot, MAIN);
    }
}

EXPORT int64_t s3fifo_choose_victim(World *world, int64_t level, int64_t incoming) {
    s3fifo_recall_ghost(world, level, incoming);
    Tier *tier = &world->tiers[level];
    tier->has_evicted = 1;
    int64_t main_limit_bytes = tier->limit_bytes - tier->limit_bytes / 10;
    if (list_of(world, level, MAIN)->bytes <= main_limit_bytes) {
        int64_t slot = s3fifo_victim_of_small(world, level);
        if (slot != NONE) {
            return slot;
        }
    }
    return s3fifo_victim_of_main(world, level);
}

EXPORT void s3fifo_on_remove(World *world, int64_t level, int64_t slot, int64_t is_evicted) {
    int32_t list = policy_note_of(world, level, slot)->list;
    list_leave(world, level, slot);
    if (list == SMALL && is_evicted) {
        s3fifo_add_ghost(world, level, slot);
    }
}

EXPORT void s3fifo_forget(World *world, int64_t level, int64_t slot) {
    if (policy_note_of(world, level, slot)->list == GHOST) {
        list_leave(world, level, slot);
    }
}
