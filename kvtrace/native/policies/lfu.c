// LFU: one list by count, the least used last, and of those used as often the one that has been so for longest.
//
// Those of one count are a group, which knows its most recent slot, so that a slot can go past all of its group.
#include "../sim.h"

// Put `slot` next to `below`, on the more used side; NONE is below all.
static void link_above(World *w, int64_t t, int64_t slot, int64_t below) {
    link_between(w, t, slot, below == NONE ? queue_of(w, t, 0)->tail : link_of(w, t, below)->newer, below, 0);
}

static int64_t new_group(World *w, int64_t t) {
    Tier *tier = &w->tiers[t];
    int64_t group = tier->free_group;
    if (group == NONE) group = tier->groups++;
    else tier->free_group = note_of(w, t, group)->top;
    note_of(w, t, group)->members = 0;
    return group;
}

static void join_group(World *w, int64_t t, int64_t slot, int64_t group) {
    note_of(w, t, slot)->place = (int32_t)group;
    note_of(w, t, group)->top = (int32_t)slot;
    note_of(w, t, group)->members++;
}

static void leave_group(World *w, int64_t t, int64_t slot) {
    Tier *tier = &w->tiers[t];
    int32_t number = note_of(w, t, slot)->place;
    Note *group = note_of(w, t, number);
    if (--group->members == 0) {
        group->top = (int32_t)tier->free_group;
        tier->free_group = number;
    } else if (group->top == slot) group->top = link_of(w, t, slot)->older;
}

// It is used for the first time.
EXPORT void lfu_on_insert(World *w, int64_t t, int64_t slot, UNUSED int64_t with) {
    note_of(w, t, slot)->count = 1;
    int64_t last = queue_of(w, t, 0)->tail, group;
    if (last != NONE && note_of(w, t, last)->count == 1) {
        group = note_of(w, t, last)->place;
        link_above(w, t, slot, note_of(w, t, group)->top);
    } else {
        group = new_group(w, t);
        link_above(w, t, slot, NONE);
    }
    join_group(w, t, slot, group);
}

EXPORT void lfu_on_hit(World *w, int64_t t, int64_t slot, UNUSED int64_t with) {    // it is used once more
    Note *note = note_of(w, t, slot);
    int64_t place = note_of(w, t, note->place)->top, above = link_of(w, t, place)->newer;
    note->count++;
    bool is_group = above != NONE && note_of(w, t, above)->count == note->count;
    if (is_group) place = note_of(w, t, note_of(w, t, above)->place)->top;
    leave_group(w, t, slot);
    if (place != slot) {
        unlink_from(w, t, slot, 0);
        link_above(w, t, slot, place);
    }
    join_group(w, t, slot, is_group ? note_of(w, t, above)->place : new_group(w, t));
}

// From its group and the list.
EXPORT void lfu_on_remove(World *w, int64_t t, int64_t slot, UNUSED int64_t with) {
    leave_group(w, t, slot);
    unlink_from(w, t, slot, 0);
    note_of(w, t, slot)->place = NONE;
}
