// What policies are made of: the lists that a tier keeps its slots in, most recent first, and the calls of a policy.
//
// LRU is here: a tier without a policy's operations is LRU, and keeps one list.
#include "../sim.h"

// --- lists ----------------------------------------------------------------------------------------------------------

void unlink_from(World *w, int64_t t, int64_t slot, int64_t number) {
    Queue *queue = queue_of(w, t, number);
    int32_t newer = link_of(w, t, slot)->newer, older = link_of(w, t, slot)->older;
    if (newer == NONE) queue->head = older;
    else link_of(w, t, newer)->older = older;
    if (older == NONE) queue->tail = newer;
    else link_of(w, t, older)->newer = newer;
}

void link_first(World *w, int64_t t, int64_t slot, int64_t number) {
    Queue *queue = queue_of(w, t, number);
    int64_t head = queue->head;
    *link_of(w, t, slot) = (Link){.newer = NONE, .older = (int32_t)head};
    if (head == NONE) queue->tail = slot;
    else link_of(w, t, head)->newer = (int32_t)slot;
    queue->head = slot;
}

// Put `slot` right behind `newer`, as the next older one.
static void link_behind(World *w, int64_t t, int64_t slot, int64_t newer) {
    Link *mine = link_of(w, t, slot), *front = link_of(w, t, newer);
    mine->newer = (int32_t)newer, mine->older = front->older;
    if (front->older == NONE) queue_of(w, t, 0)->tail = slot;
    else link_of(w, t, front->older)->newer = (int32_t)slot;
    front->older = (int32_t)slot;
}

// When `slot` was last used: at its own node in a node's tier, at any in a tier that nodes share.
static int64_t age(World *w, int64_t t, int64_t slot) {
    return w->ages[w->fleet.racked & (1 << t) ? w->slots[slot].home : slot];
}

// Move `slot`, first in the list of tier `t`, behind those that were used after it, if the tier is LRU.
void settle(World *w, int64_t t, int64_t slot) {
    int64_t older = link_of(w, t, slot)->older, newer = older;
    if (w->tiers[t].on_insert || older == NONE || age(w, t, older) < age(w, t, slot)) return;
    unlink_from(w, t, slot, 0);
    while (older != NONE && age(w, t, older) > age(w, t, slot)) newer = older, older = link_of(w, t, older)->older;
    *link_of(w, t, slot) = (Link){.newer = (int32_t)newer, .older = (int32_t)older};
    link_of(w, t, newer)->older = (int32_t)slot;
    if (older == NONE) queue_of(w, t, 0)->tail = slot;
    else link_of(w, t, older)->newer = (int32_t)slot;
}

void enter(World *w, int64_t t, int64_t slot, int64_t number) {     // first in list `number`, its bytes counted there
    link_first(w, t, slot, number);
    note_of(w, t, slot)->place = (int32_t)number;
    queue_of(w, t, number)->bytes += w->slots[slot].size;
}

void leave(World *w, int64_t t, int64_t slot) {     // the list it is in
    Note *note = note_of(w, t, slot);
    unlink_from(w, t, slot, note->place);
    queue_of(w, t, note->place)->bytes -= w->slots[slot].size;
    note->place = NONE;
}

// --- calls of a policy ----------------------------------------------------------------------------------------------

void on_hit(World *w, int64_t t, int64_t slot) {    // `slot`, which is live in tier `t`, was used
    Tier *tier = &w->tiers[t];
    if (tier->on_hit) tier->on_hit(w, t, slot, 0);
    else if (tier->behind) {
        unlink_from(w, t, slot, 0);
        link_behind(w, t, slot, tier->behind - 1);
        tier->behind = 0;
    } else if (queue_of(w, t, 0)->head != slot) {
        unlink_from(w, t, slot, 0);
        link_first(w, t, slot, 0);
    }
}

void on_insert(World *w, int64_t t, int64_t slot, int64_t now) {    // `slot` is now live in tier `t`
    Tier *tier = &w->tiers[t];
    if (tier->on_insert) tier->on_insert(w, t, slot, now);
    else if (tier->behind) {
        link_behind(w, t, slot, tier->behind - 1);
        tier->behind = 0;
    } else link_first(w, t, slot, 0);
}

// Which slot of tier `t`, which is not empty, makes room for `incoming`; the caller then removes it. This may reorder
// the tier, so ask once for each that is removed.
int64_t victim(World *w, int64_t t, int64_t incoming) {
    const Tier *tier = &w->tiers[t];
    return tier->choose ? tier->choose(w, t, incoming, 0) : queue_of(w, t, 0)->tail;
}

void on_remove(World *w, int64_t t, int64_t slot, int64_t is_evicted) {     // is_evicted: `victim` chose it
    const Tier *tier = &w->tiers[t];
    if (tier->on_remove) tier->on_remove(w, t, slot, is_evicted);
    else unlink_from(w, t, slot, 0);
}

// Drop what any tier remembers of `slot`, which is live in none, so that another object may have it.
void forget(World *w, int64_t slot) {
    for (int64_t t = 0; t < w->tiers_count; t++) {
        if (w->tiers[t].forget) w->tiers[t].forget(w, t, slot, 0);
        if (w->notes_count) note_of(w, t, slot)->place = NONE;
    }
}

int64_t expiry_ns(World *w, int64_t t) {    // of what tier `t` has had longest; UNBOUNDED: never, or there is none
    int64_t tail = queue_of(w, t, 0)->tail;
    return w->tiers[t].ttl_ns && tail != NONE ? note_of(w, t, tail)->count : UNBOUNDED;
}
