// The recency lists that a tier keeps its slots in, and the operations of its eviction policy.
// LRU is here: a tier whose policy has no operations of its own is LRU, and keeps list 0 alone.
//
//     policy_hit            a slot was used              -> it becomes the most recent
//     policy_insert         a slot was written           -> it becomes the most recent
//     policy_choose_victim  room is needed               -> the least recent slot
//     policy_remove         a slot leaves the tier       -> it leaves the list
//
// LRU (Mattson et al., IBM Systems Journal, 1970; the default of vLLM, LMCache and SGLang):
//
//     on hit or insert of s:  move s to the head of the list
//     victim:                 the tail of the list
//
// Two refinements. With `recency` a request's objects become recent in another order than that in
// which they are used (`behind_slot`). In GPU memory, slots that running requests use go last:
//
//     victim:  while a running request uses the tail of the list:  move it to the head
//              the tail
//
// Running requests may use nearly all of GPU memory, so that this would move thousands of slots for
// each victim. The slots that none of them uses are therefore in a second list, IDLE, in the same
// order. Its tail is the victim, and all that lies behind it moves to the head at once.
#include "sim.h"

enum { RECENT, IDLE }; // The lists of GPU memory with LRU; all others have the first alone.

// --- recency lists

// Puts `slot` into a list, between `newer` and `older`, which are neighbours in it. NONE is beyond
// an end of the list. Its links are every `stride`-th of `links`.
static void links_insert(RecencyList *list, Link *links, int64_t stride, int64_t slot,
                         int64_t newer, int64_t older) {
    links[slot * stride] = (Link){.newer = (int32_t)newer, .older = (int32_t)older};
    if (newer == NONE) {
        list->head = slot;
    } else {
        links[newer * stride].older = (int32_t)slot;
    }
    if (older == NONE) {
        list->tail = slot;
    } else {
        links[older * stride].newer = (int32_t)slot;
    }
}

// Removes `slot` from a list.
static void links_remove(RecencyList *list, Link *links, int64_t stride, int64_t slot) {
    int32_t newer = links[slot * stride].newer;
    int32_t older = links[slot * stride].older;
    if (newer == NONE) {
        list->head = older;
    } else {
        links[newer * stride].older = older;
    }
    if (older == NONE) {
        list->tail = newer;
    } else {
        links[older * stride].newer = newer;
    }
}

// Puts `slot` into list `number` of a tier, between `newer` and `older`.
void list_link_between(World *world, int64_t level, int64_t slot, int64_t newer, int64_t older,
                       int64_t number) {
    RecencyList *list = list_of(world, level, number);
    Link *links = world->links + world->tiers[level].link;
    links_insert(list, links, world->knobs.linked_tiers, slot, newer, older);
}

// Makes `slot` the most recent of list `number`.
void list_link_first(World *world, int64_t level, int64_t slot, int64_t number) {
    list_link_between(world, level, slot, NONE, list_of(world, level, number)->head, number);
}

// Removes `slot` from list `number`.
void list_unlink(World *world, int64_t level, int64_t slot, int64_t number) {
    RecencyList *list = list_of(world, level, number);
    Link *links = world->links + world->tiers[level].link;
    links_remove(list, links, world->knobs.linked_tiers, slot);
}

// Makes `slot` the most recent of list `number`, and counts its bytes there.
void list_enter(World *world, int64_t level, int64_t slot, int64_t number) {
    list_link_first(world, level, slot, number);
    policy_note_of(world, level, slot)->list = (int32_t)number;
    list_of(world, level, number)->bytes += world->slots[slot].size;
}

// Removes `slot` from the list that list_enter put it into.
void list_leave(World *world, int64_t level, int64_t slot) {
    Note *note = policy_note_of(world, level, slot);
    list_unlink(world, level, slot, note->list);
    list_of(world, level, note->list)->bytes -= world->slots[slot].size;
    note->list = NONE;
}

// When `slot` was last used: at its own node in a tier of nodes, at any node in a shared tier.
static int64_t list_age(World *world, int64_t level, int64_t slot) {
    bool is_rack = tiers_include(world->fleet.rack_tiers, level);
    return world->ages[is_rack ? world->slots[slot].home : slot];
}

// Moves `slot`, the most recent of an LRU tier, behind all slots that were used after it.
void list_settle_by_age(World *world, int64_t level, int64_t slot) {
    int64_t older = list_link_of(world, level, slot)->older;
    int64_t newer = older;
    if (world->tiers[level].on_insert || older == NONE ||
        list_age(world, level, older) < list_age(world, level, slot)) {
        return;
    }
    list_unlink(world, level, slot, 0);
    while (older != NONE && list_age(world, level, older) > list_age(world, level, slot)) {
        newer = older;
        older = list_link_of(world, level, older)->older;
    }
    list_link_between(world, level, slot, newer, older, 0);
}

// --- the slots of GPU memory that no running request uses
//
// Where a slot belongs in list IDLE is found by a walk over those that running requests use, which
// may be most. The slots of a request that ends are used once more right then, and come to the
// head. So they are only noted as released, and those that were not used are looked up before the
// next victim is chosen.

static bool idle_includes(World *world, int64_t slot) {
    return world->idle_links[slot].newer != NOT_IDLE;
}

// Puts `slot`, which is in the recency list of GPU memory, into list IDLE at the same place. Its
// neighbours there are looked for on both sides at once.
static void idle_insert(World *world, int64_t slot) {
    RecencyList *idle = list_of(world, 0, IDLE);
    int64_t newer = list_link_of(world, 0, slot)->newer;
    int64_t older = list_link_of(world, 0, slot)->older;
    while (newer != NONE && older != NONE && !idle_includes(world, newer) &&
           !idle_includes(world, older)) {
        newer = list_link_of(world, 0, newer)->newer;
        older = list_link_of(world, 0, older)->older;
    }
    if (newer == NONE || idle_includes(world, newer)) {
        older = newer == NONE ? idle->head : world->idle_links[newer].older;
    } else {
        newer = older == NONE ? idle->tail : world->idle_links[older].newer;
    }
    links_insert(idle, world->idle_links, 1, slot, newer, older);
}

// Removes `slot` from list IDLE, if it is there: a running request uses it, or it leaves GPU
// memory.
void idle_leave(World *world, int64_t slot) {
    if (world->idle_links_count && idle_includes(world, slot)) {
        links_remove(list_of(world, 0, IDLE), world->idle_links, 1, slot);
        world->idle_links[slot].newer = NOT_IDLE;
    }
}

// Puts all released slots into list IDLE which are still in GPU memory, and not in that list yet.
void idle_settle_released(World *world) {
    while (world->control.released > 0) {
        GpuHold released = world->released[--world->control.released];
        const GpuUse *use = &world->gpu_uses[released.slot];
        bool is_there = use->generation == released.generation;
        if (is_there && !use->running_requests && !idle_includes(world, released.slot)) {
            idle_insert(world, released.slot);
        }
    }
}

// Notes that no running request uses `slot` of GPU memory any more.
void idle_release(World *world, int64_t slot) {
    if (!world->idle_links_count) {
        return;
    }
    if (world->control.released == world->released_count) {
        idle_settle_released(world);
    }
    int32_t generation = world->gpu_uses[slot].generation;
    world->released[world->control.released++] = (GpuHold){(int32_t)slot, generation};
}

// The least recent slot of GPU memory that no running request uses. What lies behind it moves to
// the head of the recency list, in its order. The least recent slot if running requests use all.
static int64_t idle_choose_victim(World *world) {
    RecencyList *recent = list_of(world, 0, RECENT);
    idle_settle_released(world);
    int64_t victim = list_of(world, 0, IDLE)->tail;
    if (victim == NONE || victim == recent->tail) {
        return recent->tail;
    }
    Link *link = list_link_of(world, 0, victim);
    int64_t first = link->older;
    list_link_of(world, 0, first)->newer = NONE;
    list_link_of(world, 0, recent->tail)->older = (int32_t)recent->head;
    list_link_of(world, 0, recent->head)->newer = (int32_t)recent->tail;
    link->older = NONE;
    recent->head = first;
    recent->tail = victim;
    return victim;
}

// --- the eviction policy of a tier

// LRU: puts a used slot at the head of the list, or right behind Tier.behind_slot if that is set.
static void lru_link_used(World *world, int64_t level, int64_t slot) {
    int64_t *behind_slot = &world->tiers[level].behind_slot;
    int64_t newer = *behind_slot - 1;
    int64_t older = newer == NONE ? list_of(world, level, RECENT)->head
                                  : list_link_of(world, level, newer)->older;
    list_link_between(world, level, slot, newer, older, RECENT);
    *behind_slot = 0;
    bool is_idle = level == 0 && world->idle_links_count && !world->gpu_uses[slot].running_requests;
    if (is_idle) {
        idle_insert(world, slot);
    }
}

// LRU: takes a slot out of the list.
static void lru_unlink(World *world, int64_t level, int64_t slot) {
    list_unlink(world, level, slot, RECENT);
    if (level == 0) {
        idle_leave(world, slot);
    }
}

// Tells the policy that `slot`, which is live in the tier, was used.
void policy_hit(World *world, int64_t level, int64_t slot) {
    Tier *tier = &world->tiers[level];
    if (tier->on_hit) {
        tier->on_hit(world, level, slot);
    } else if (tier->behind_slot || list_of(world, level, RECENT)->head != slot) {
        lru_unlink(world, level, slot);
        lru_link_used(world, level, slot);
    }
}

// Tells the policy that `slot` was written to the tier.
void policy_insert(World *world, int64_t level, int64_t slot, int64_t now) {
    Tier *tier = &world->tiers[level];
    if (tier->on_insert) {
        tier->on_insert(world, level, slot, now);
    } else {
        lru_link_used(world, level, slot);
    }
}

// Chooses the slot that is evicted to make room for `incoming` (NONE if for nothing in particular).
// The tier must not be empty. A policy may reorder its lists to choose: LRU moves slots of running
// requests away from the tail.
int64_t policy_choose_victim(World *world, int64_t level, int64_t incoming) {
    const Tier *tier = &world->tiers[level];
    if (tier->choose_victim) {
        return tier->choose_victim(world, level, incoming);
    }
    if (level == 0 && world->idle_links_count) {
        return idle_choose_victim(world);
    }
    return list_of(world, level, RECENT)->tail;
}

// Tells the policy that `slot` leaves the tier; is_evicted unless it leaves by promotion or loss.
void policy_remove(World *world, int64_t level, int64_t slot, int64_t is_evicted) {
    const Tier *tier = &world->tiers[level];
    if (tier->on_remove) {
        tier->on_remove(world, level, slot, is_evicted);
        return;
    }
    lru_unlink(world, level, slot);
    if (level == 0 && world->gpu_uses_count) {
        world->gpu_uses[slot].generation++;
    }
    // The next victim may be anywhere in memory: prefetch it while this one is deleted.
    int64_t next = list_of(world, level, 0)->tail;
    if (next == NONE) {
        return;
    }
    __builtin_prefetch(&world->slots[next], 1);
    int64_t newer = list_link_of(world, level, next)->newer;
    if (newer != NONE) {
        __builtin_prefetch(list_link_of(world, level, newer), 1);
    }
}

// Deletes what the policies of all tiers remember of `slot`, which is live in none of them, so that
// another object may use it.
void policy_forget(World *world, int64_t slot) {
    for (int64_t level = 0; level < world->tiers_count; level++) {
        if (world->tiers[level].forget) {
            world->tiers[level].forget(world, level, slot);
        }
        if (world->notes_count) {
            policy_note_of(world, level, slot)->list = NONE;
        }
    }
}

// When the oldest slot of a TTL tier expires; UNBOUNDED if the tier is empty or has no TTL.
int64_t policy_expiry_ns(World *world, int64_t level) {
    int64_t tail = list_of(world, level, 0)->tail;
    if (!world->tiers[level].ttl_ns || tail == NONE) {
        return UNBOUNDED;
    }
    return policy_note_of(world, level, tail)->count;
}
