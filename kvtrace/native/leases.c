// Tiers that do not evict what was read of late, nor what waits for the tier below.
//
// Mooncake's master (mooncake-store/src/master_service.cpp) gives each object a lease:
//
//     put                      the lease is over at once
//     looked up or read        it lasts lease_ns from then on
//     queued for the SSD       pinned until the heartbeat that takes it (OffloadObjectHeartbeat)
//     written to the SSD       looked up for that, and so leased (BatchQuerySegmentSlices)
//     the tier is too full     of those that are neither leased nor pinned, those whose leases were
//                              over first are evicted (BatchEvict)
//     none of these is left    puts use the room above the limit; without any they are refused, and
//                              tried again
//
// Here what is refused waits, and is stored in the order of its node once the end of a lease, a
// heartbeat or a later store finds room for it. List 0 has objects that were only put, list 1 those
// that were read; both are in the order in which their leases end, which a slot's note counts.
#include "sim.h"

#include <stdlib.h>

enum { PUT, READ };
enum { GROWTH = 1 << 8 }; // Arrays of C's own grow by so many items.

// --- the operations of the tier's policy

EXPORT void lease_on_insert(World *world, int64_t level, int64_t slot, int64_t now) {
    policy_note_of(world, level, slot)->count = now;
    list_enter(world, level, slot, PUT);
}

static void lease_grant(World *world, int64_t level, int64_t slot, int64_t now) {
    // What an endless tier holds is in no list, and has no links there.
    if (tier_is_endless(world, level)) {
        return;
    }
    list_leave(world, level, slot);
    policy_note_of(world, level, slot)->count = now + world->tiers[level].lease_ns;
    list_enter(world, level, slot, READ);
}

EXPORT void lease_on_hit(World *world, int64_t level, int64_t slot) {
    lease_grant(world, level, slot, world->control.now);
}

EXPORT void lease_on_remove(World *world, int64_t level, int64_t slot, UNUSED int64_t is_evicted) {
    list_leave(world, level, slot);
}

// Whether the tier below has yet to take the object.
static bool lease_is_pinned(World *world, int64_t level, int64_t tier_slot) {
    const Slot *object = &world->slots[tier_slot];
    int64_t held_by = object->held_by;
    if (object->place > 0) {
        held_by |= world->slots[object->home].held_by;
    }
    return held_by & held_by_tier(level + 1);
}

// The slot of a list whose lease ends first, but for pinned ones; NONE without any.
static int64_t lease_first(World *world, int64_t level, int64_t number) {
    int64_t slot = list_of(world, level, number)->tail;
    while (slot != NONE && lease_is_pinned(world, level, slot)) {
        slot = list_link_of(world, level, slot)->newer;
    }
    return slot;
}

// That slot if its lease is over.
static int64_t lease_first_over(World *world, int64_t level, int64_t number, int64_t now) {
    int64_t slot = lease_first(world, level, number);
    bool is_over = slot != NONE && policy_note_of(world, level, slot)->count <= now;
    return is_over ? slot : NONE;
}

// The slot that is evicted next; NONE if all are leased or pinned.
static int64_t lease_victim(World *world, int64_t level, int64_t now) {
    int64_t put = lease_first_over(world, level, PUT, now);
    int64_t read = lease_first_over(world, level, READ, now);
    if (put == NONE || read == NONE) {
        return put == NONE ? read : put;
    }
    bool is_put_first =
        policy_note_of(world, level, put)->count <= policy_note_of(world, level, read)->count;
    return is_put_first ? put : read;
}

EXPORT int64_t lease_choose_victim(World *world, int64_t level, UNUSED int64_t incoming) {
    return lease_victim(world, level, world->control.now);
}

// --- room and leases

// If the tier has no room for `size` bytes, evicts down to its low mark, or all that can be.
static void lease_evict(World *world, int64_t level, int64_t size, int64_t now) {
    const Tier *tier = &world->tiers[level];
    if (tier_has_room(world, level, size)) {
        return;
    }
    while (tier->live_bytes > 0 && tier->live_bytes + size > tier->low_bytes) {
        int64_t victim = lease_victim(world, level, now);
        if (victim == NONE) {
            return;
        }
        tier_evict(world, level, victim, now);
    }
}

// As tier_make_room.
bool lease_make_room(World *world, int64_t level, int64_t slot, int64_t now) {
    const Tier *tier = &world->tiers[level];
    int64_t size = world->slots[slot].size;
    lease_evict(world, level, size, now);
    return tier->live_bytes + size <= max_of(tier->full_bytes, tier->limit_bytes);
}

// The tier below `level` writes `slot`, which was queued.
void lease_grant_written(World *world, int64_t level, int64_t slot, int64_t now) {
    if (world->tiers[level].lease_ns) {
        lease_grant(world, level, slot_in_tier(world, level, slot), now);
    }
}

// A heartbeat has taken what was queued for `level`: the tier above may evict it.
void lease_end_pins(World *world, int64_t level, int64_t now) {
    if (level > 0 && world->tiers[level - 1].lease_ns) {
        lease_evict(world, level - 1, 0, now);
    }
}

// Looking up is a use, too: of objects behind the first miss.
void lease_grant_looked_up(World *world, int64_t first, int64_t n) {
    for (int64_t level = 0; level < world->tiers_count; level++) {
        for (int64_t i = first; world->tiers[level].lease_ns && i < n; i++) {
            if (object_is_in(world, world->chain[i], level)) {
                lease_on_hit(world, level, slot_in_tier(world, level, world->chain[i]));
            }
        }
    }
}

// Queues an object that was written for the tier below, if that has a queue: it is pinned at once.
void lease_queue_below(World *world, int64_t level, int64_t slot, const Cause *cause) {
    int64_t below = level + 1;
    if (lease_queues_for(world, below) && !tiers_include(world->slots[slot].live, below)) {
        store_queue_or_make_room(world, below, slot, cause->now, cause->phase);
    }
}

// --- what waits for room
//
// Each node has a queue of its own: in Mooncake the client of a node tries its puts again, and
// knows nothing of the others'.

// Appends an object that `level` has refused to the queue of the node at hand.
static void lease_queue_store(World *world, int64_t level, int64_t slot) {
    int64_t place = world->free_waiting_store;
    if (place) {
        world->free_waiting_store = world->waiting_stores[place - 1].next;
    } else {
        if (world->waiting_stores_end % GROWTH == 0) {
            int64_t room = world->waiting_stores_end + GROWTH;
            world->waiting_stores = memory_grow(world->waiting_stores, room, sizeof(WaitingStore));
        }
        place = ++world->waiting_stores_end;
    }
    world->waiting_stores[place - 1] = (WaitingStore){slot, level, 0};
    Node *node = &world->fleet.nodes[world->control.node];
    if (node->last_waiting_store) {
        world->waiting_stores[node->last_waiting_store - 1].next = place;
    } else {
        node->first_waiting_store = place;
    }
    node->last_waiting_store = place;
    world->waiting_stores_count++;
}

// Takes the first object of the queue of the node at hand out of it.
static WaitingStore lease_take_first(World *world) {
    Node *node = &world->fleet.nodes[world->control.node];
    int64_t place = node->first_waiting_store;
    WaitingStore waiting = world->waiting_stores[place - 1];
    node->first_waiting_store = waiting.next;
    if (waiting.next == 0) {
        node->last_waiting_store = 0;
    }
    world->waiting_stores[place - 1].next = world->free_waiting_store;
    world->free_waiting_store = place;
    world->waiting_stores_count--;
    return waiting;
}

// Lets `slot` wait for room in a tier, which has refused it.
bool lease_wait(World *world, int64_t level, int64_t slot) {
    Tier *tier = &world->tiers[level];
    Slot *object = &world->slots[slot];
    bool is_waiting = object->held_by & held_by_tier(level);
    if (is_waiting || object->size > tier->largest_object_bytes) {
        return false;
    }
    lease_queue_store(world, level, slot);
    object->held_by |= (int16_t)held_by_tier(level);
    tier->refused_objects++;
    tier->refused_bytes += object->size;
    return true;
}

// Stores an object that the node at hand let wait; returns false if there is still no room for it.
static bool lease_store(World *world, const WaitingStore *waiting, int64_t now) {
    int64_t level = waiting->level;
    int64_t slot = waiting->slot;
    if (!fleet_is_up(world, world->control.node)) {
        return true;
    }
    slot_refresh(world, slot);
    if (tiers_include(world->slots[slot].live, level)) {
        return true;
    }
    if (!lease_make_room(world, level, slot, now)) {
        return false;
    }
    Cause store = {now, PHASE_STORE, NONE, NONE};
    tier_write(world, level, slot, &store);
    lease_queue_below(world, level, slot, &store);
    return true;
}

// Stores those that the node at hand let wait, in their order, up to the first for which there is
// no room.
static void lease_store_waiting_of_node(World *world, int64_t now) {
    const Node *node = &world->fleet.nodes[world->control.node];
    while (node->first_waiting_store) {
        if (!lease_store(world, &world->waiting_stores[node->first_waiting_store - 1], now)) {
            return;
        }
        WaitingStore waiting = lease_take_first(world);
        Slot *object = &world->slots[waiting.slot];
        object->held_by &= (int16_t)~held_by_tier(waiting.level);
        if (!object->held_by) {
            slot_release(world, waiting.slot);
        }
    }
}

// Stores what waits: first that of the node at hand, then that of the nodes behind it.
void lease_store_waiting(World *world, int64_t now) {
    int64_t at_hand = world->control.node;
    int64_t nodes = world->fleet.count;
    for (int64_t i = 0; i < nodes && world->waiting_stores_count; i++) {
        int64_t node = (at_hand + i) % nodes;
        if (world->fleet.nodes[node].first_waiting_store) {
            fleet_move_to(world, node);
            lease_store_waiting_of_node(world, now);
        }
    }
    fleet_move_to(world, at_hand);
}

// When the end of a lease may make room for what waits for a tier; UNBOUNDED if nothing waits.
int64_t lease_due_ns(World *world, int64_t level) {
    int64_t place = world->fleet.nodes[world->control.node].first_waiting_store;
    if (place == 0 || world->waiting_stores[place - 1].level != level) {
        return UNBOUNDED;
    }
    int64_t slot = lease_first(world, level, READ);
    return slot == NONE ? UNBOUNDED : policy_note_of(world, level, slot)->count;
}

void lease_free(World *world) {
    free(world->waiting_stores);
}
