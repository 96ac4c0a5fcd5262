// What tiers do at times rather than for a request: objects expire, eviction rounds make room, and
// queued objects are stored.
//
//     store_queue_or_make_room       a store offers an object: stored at once, queued or refused
//     background_catch_up            before each step of a request: does all that is due by then
//     -> tier_evict                  an object's TTL is over
//     -> tier_evict_in_round         an eviction round is due
//     -> store_queue_write_oldest,   the slowest tier takes what is queued: at each heartbeat,
//        store_queue_write_bucket    or whenever it is free
//
// In a fleet, the tiers of other places are put away until one of them is due (Fleet.due_ns).
#include "sim.h"

// --- when work is due

// When the oldest object of a tier's store queue is stored; UNBOUNDED if none is.
static int64_t store_queue_due_ns(World *world, int64_t level) {
    const Tier *tier = &world->tiers[level];
    if (tiers_include(world->control.unreachable_tiers, level)) {
        return UNBOUNDED;
    }
    if (tier->heartbeat_ns) {
        return tier->next_heartbeat_ns ? tier->next_heartbeat_ns : UNBOUNDED;
    }
    if (!tier->waiting_objects) {
        return UNBOUNDED;
    }
    const QueuedStore *oldest = &world->store_queues[tier->queue_first + tier->queue_head];
    return max_of(tier->busy_until_ns[OP_WRITE], oldest->since_ns);
}

// When a tier at hand has timed work next; UNBOUNDED if it has none.
static int64_t background_due_ns(World *world, int64_t level) {
    const Tier *tier = &world->tiers[level];
    int64_t due_ns = min_of(policy_expiry_ns(world, level), store_queue_due_ns(world, level));
    if (tier->lease_ns) {
        due_ns = min_of(due_ns, lease_due_ns(world, level));
    }
    return tier->next_round_ns ? min_of(due_ns, tier->next_round_ns) : due_ns;
}

// Notes when `tiers`, which are at hand and about to be put away at `place`, have timed work next.
void background_note_due(World *world, int64_t place, int64_t tiers) {
    int64_t due_ns = UNBOUNDED;
    for (int64_t level = 0; level < world->tiers_count; level++) {
        if (tiers_include(tiers, level)) {
            due_ns = min_of(due_ns, background_due_ns(world, level));
        }
    }
    world->fleet.due_ns[place] = due_ns;
}

// --- the store queue of a tier

// The n-th object of the queue, from the oldest; behind the last, the place of the next one.
static QueuedStore *store_queue_at(World *world, const Tier *tier, int64_t n) {
    return &world->store_queues[tier->queue_first + (tier->queue_head + n) % tier->queue_limit];
}

// Bytes of the object of one rank and one group of layers.
static int64_t store_queue_part_bytes(World *world, int64_t slot) {
    return world->slots[slot].size / (world->knobs.ranks * world->knobs.layers);
}

// Appends `slot` to the queue, or drops it if the queue is full.
static void store_queue_push(World *world, int64_t level, int64_t slot, int64_t now) {
    Tier *tier = &world->tiers[level];
    bool is_too_large =
        tier->bucket_objects && store_queue_part_bytes(world, slot) > tier->bucket_bytes;
    if (is_too_large || tier->waiting_objects == tier->queue_limit) {
        tier->dropped_objects++;
        tier->dropped_bytes += world->slots[slot].size;
        return;
    }
    *store_queue_at(world, tier, tier->waiting_objects) =
        (QueuedStore){slot, now, world->control.node};
    int64_t incoming = slot_for_insert(world, level, slot);
    world->slots[incoming].held_by |= (int16_t)held_by_tier(level);
    tier->waiting_objects++;
    if (tier->heartbeat_ns && !tier->next_heartbeat_ns) {
        tier->next_heartbeat_ns = (now / tier->heartbeat_ns + 1) * tier->heartbeat_ns;
    }
}

// Offers `slot` to a tier. Returns true if the tier admits it and has room: the caller writes it
// then. An object that is queued is written later, by store_queue_write_oldest or
// store_queue_write_bucket.
bool store_queue_or_make_room(World *world, int64_t level, int64_t slot, int64_t now,
                              int64_t phase) {
    bool has_queue = tiers_include(world->knobs.queued_tiers, level);
    int64_t tier_slot = has_queue ? slot_in_tier(world, level, slot) : NONE;
    bool is_queued = tier_slot != NONE && world->slots[tier_slot].held_by & held_by_tier(level);
    const Tier *tier = &world->tiers[level];
    if (world->slots[slot].size > tier->largest_object_bytes || is_queued) {
        return false;
    }
    if (tier->pins_queued && !tiers_include(world->slots[slot].live, level - 1)) {
        return false; // It waits for room in the tier above.
    }
    if (phase != PHASE_POPULATE && !admission_admits(world, level, slot, now)) {
        return false;
    }
    if (has_queue) {
        store_queue_push(world, level, slot, now);
        return false;
    }
    return tier_make_room(world, level, slot, now);
}

// Takes the oldest object from the queue; returns its slot, or NONE if the tier above has evicted
// it meanwhile. That is the tier of the node that queued it, which is at hand from then on.
int64_t store_queue_pop(World *world, int64_t level) {
    Tier *tier = &world->tiers[level];
    const QueuedStore *oldest = store_queue_at(world, tier, 0);
    int64_t slot = oldest->slot;
    tier->queue_head = (tier->queue_head + 1) % tier->queue_limit;
    tier->waiting_objects--;
    fleet_move_to(world, oldest->node);
    slot_refresh(world, slot);
    const Slot *object = &world->slots[slot];
    int64_t tier_slot = slot_in_tier(world, level, slot);
    world->slots[tier_slot].held_by &= (int16_t)~held_by_tier(level);
    if (tier_slot != slot) {
        slot_release_later(world, tier_slot);
    }
    if (tiers_include(object->live, level - 1)) {
        return slot;
    }
    tier->lost_objects++;
    tier->lost_bytes += object->size;
    if (object->held_by == 0) {
        slot_release(world, slot);
    }
    return NONE;
}

// Stores the oldest object of the queue.
static void store_queue_write_oldest(World *world, int64_t level, int64_t now) {
    int64_t slot = store_queue_pop(world, level);
    if (slot != NONE && tier_make_room(world, level, slot, now)) {
        tier_write(world, level, slot, &(Cause){now, PHASE_STORE, NONE, NONE});
    }
}

// How many objects of the queue make a bucket, the oldest first; 0 if they do not fill one.
static int64_t store_queue_bucket_objects(World *world, int64_t level) {
    const Tier *tier = &world->tiers[level];
    int64_t size = tier->carried_bytes;
    for (int64_t n = 0; n < tier->waiting_objects; n++) {
        size += store_queue_part_bytes(world, store_queue_at(world, tier, n)->slot);
        if (size > tier->bucket_bytes) {
            return n;
        }
        int64_t objects = tier->carried_objects + n + 1;
        if (objects == tier->bucket_objects || size == tier->bucket_bytes) {
            return n + 1;
        }
    }
    return 0;
}

// Lets go of all that is queued, which fills no bucket. It counts toward the next one, and is not
// in it: of Mooncake's client only what the last heartbeat brought is written.
static void store_queue_carry_over(World *world, int64_t level) {
    Tier *tier = &world->tiers[level];
    while (tier->waiting_objects > 0) {
        int64_t part_bytes = store_queue_part_bytes(world, store_queue_at(world, tier, 0)->slot);
        int64_t slot = store_queue_pop(world, level);
        if (slot == NONE) {
            continue;
        }
        tier->carried_objects++;
        tier->carried_bytes += part_bytes;
        tier->lost_objects++;
        tier->lost_bytes += world->slots[slot].size;
    }
}

// Bytes of the bucket that is stored next, with its metadata file; 0 if there is none yet.
static int64_t store_queue_next_bucket_bytes(World *world, int64_t level) {
    const Tier *tier = &world->tiers[level];
    int64_t size = 0;
    int64_t count = store_queue_bucket_objects(world, level);
    for (int64_t n = 0; n < count; n++) {
        int64_t slot = store_queue_at(world, tier, n)->slot;
        slot_refresh(world, slot);
        if (tiers_include(world->slots[slot].live, level - 1)) {
            size += world->slots[slot].size + bucket_overhead_bytes(world, level);
        }
    }
    return size;
}

// Stores the oldest objects of the queue as a bucket, without those that are evicted already. If
// they do not fill one, they wait for more.
static void store_queue_write_bucket(World *world, int64_t level, int64_t now) {
    Tier *tier = &world->tiers[level];
    int64_t queued = store_queue_bucket_objects(world, level);
    int64_t node = world->control.node;
    if (queued == 0) {
        tier->next_heartbeat_ns = 0;
        if (tier->pins_queued) {
            store_queue_carry_over(world, level);
            fleet_move_to(world, node);
        }
        return;
    }
    tier->carried_objects = 0;
    tier->carried_bytes = 0;
    int64_t count = 0;
    for (; queued > 0; queued--) {
        int64_t slot = store_queue_pop(world, level);
        if (slot == NONE) {
            continue;
        }
        if (tier->pins_queued) {
            lease_grant_written(world, level - 1, slot, now);
        }
        world->chain[count++] = slot_for_insert(world, level, slot);
    }
    fleet_move_to(world, node);
    if (!count || bucket_write(world, level, 0, count, now)) {
        return;
    }
    tier->dropped_objects += count;
    for (int64_t i = 0; i < count; i++) {
        tier->dropped_bytes += world->slots[world->chain[i]].size;
    }
}

// --- doing what is due
//
//     repeat
//         the next work is that of the earliest time; of one time, that of the first place, and of
//         one place that of the fastest tier
//     until it is later than now

// The tier at hand that has timed work first, and when; level 0 and UNBOUNDED if none has.
static int64_t background_first_level(World *world, int64_t *due_ns) {
    int64_t first = 0;
    *due_ns = UNBOUNDED;
    for (int64_t level = 0; level < world->tiers_count; level++) {
        int64_t level_due_ns = background_due_ns(world, level);
        if (level_due_ns < *due_ns) {
            first = level;
            *due_ns = level_due_ns;
        }
    }
    return first;
}

// The place not at hand that has timed work first.
static int64_t background_first_place(World *world) {
    const int64_t *due_ns = world->fleet.due_ns;
    int64_t first = 0;
    for (int64_t place = 0; place < world->fleet.due_ns_count; place++) {
        if (due_ns[place] < due_ns[first]) {
            first = place;
        }
    }
    return first;
}

// The place of a tier at hand: nodes, then racks, then what all nodes share.
static int64_t background_place_of(World *world, int64_t level) {
    int64_t place = tier_place(world, level);
    return place ? place - 1 : world->fleet.due_ns_count;
}

// The node whose rows the timed work of a tier is: of those that share it, the first that is up.
static int64_t background_node(World *world, int64_t level) {
    const Fleet *fleet = &world->fleet;
    int64_t here = world->control.node;
    int64_t first = 0;
    int64_t end = fleet->count;
    if (tiers_include(fleet->rack_tiers, level)) {
        first = here / fleet->rack_nodes * fleet->rack_nodes;
        end = min_of(end, first + fleet->rack_nodes);
    } else if (tiers_include(fleet->place_tiers, level)) {
        return here;
    }
    for (int64_t node = first; node < end; node++) {
        if (fleet->nodes[node].is_up) {
            return node;
        }
    }
    return first;
}

// Does the work of a tier that is due at `due_ns`, or a part of it.
static void background_do(World *world, int64_t level, int64_t due_ns) {
    Tier *tier = &world->tiers[level];
    fleet_move_to(world, background_node(world, level));
    if (policy_expiry_ns(world, level) == due_ns) {
        tier_evict(world, level, list_of(world, level, 0)->tail, due_ns);
        return;
    }
    if (tier->lease_ns && lease_due_ns(world, level) == due_ns) {
        lease_store_waiting(world, due_ns);
        return;
    }
    if (0 < tier->next_round_ns && tier->next_round_ns == due_ns) {
        tier_evict_in_round(world, level);
        return;
    }
    if (tier->collect_share > 0) {
        bucket_make_room(world, level, store_queue_next_bucket_bytes(world, level), due_ns);
    }
    if (tier->bucket_objects) {
        store_queue_write_bucket(world, level, due_ns);
    } else {
        store_queue_write_oldest(world, level, due_ns);
    }
    if (tier->waiting_objects == 0) {
        tier->next_heartbeat_ns = 0;
        lease_end_pins(world, level, due_ns);
        lease_store_waiting(world, due_ns);
    }
}

// Does all that is due until now, each at its time.
void background_catch_up(World *world, int64_t now) {
    const Fleet *fleet = &world->fleet;
    for (;;) {
        int64_t here_ns = UNBOUNDED;
        int64_t level = background_first_level(world, &here_ns);
        int64_t place = background_first_place(world);
        int64_t there_ns = fleet->due_ns_count ? fleet->due_ns[place] : UNBOUNDED;
        bool is_tie = there_ns == here_ns;
        bool is_there_first =
            there_ns < here_ns || (is_tie && place < background_place_of(world, level));
        if (there_ns <= now && is_there_first) {
            bool is_node = place < fleet->count;
            fleet_move_to(world, is_node ? place : (place - fleet->count) * fleet->rack_nodes);
            continue;
        }
        if (here_ns > now) {
            return;
        }
        background_do(world, level, here_ns);
    }
}
