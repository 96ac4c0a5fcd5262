// The slots of objects: taken when an object is first named, released when no request can name it
// and no tier can evict it any more.
// In a fleet, the copy that a node or rack has of an object is a slot of its own. With
// Knobs.shares_slots, one copy of each object is in the object's own slot instead.
//
//     slot_take             an object is named, or a place gets a copy
//     slot_refresh          before an object is looked at: which tiers have it, seen from this node
//     slot_release_later    an object may not need its slot any more
//     slot_release_pending  after each step: release, or pack, those that indeed do not
//
// An object that no tier may evict needs no slot: its packed entry in World.contexts holds all that
// is known of it, so memory grows by 8 bytes for each such object.
#include "sim.h"

#include <string.h>

// --- the index of copies by place
//
// Objects are numbered as they are named, so the objects of one prompt have consecutive numbers.
// The copies of LINE consecutive objects at one place share a line, so that one miss of the
// processor's cache finds all of them.

static int64_t copy_line_key(int64_t number, int64_t place) {
    return place << 40 | number / LINE;
}

// The slot of the copy of object `number` at `place`, or NONE.
static int64_t copy_find(World *world, int64_t number, int64_t place) {
    const int64_t *line = table_find(&world->fleet.line_at, copy_line_key(number, place));
    return line ? world->fleet.lines[*line].slot[number % LINE] : NONE;
}

// Adds the copy `slot` to the index.
static void copy_index(World *world, int64_t slot) {
    Fleet *fleet = &world->fleet;
    int64_t number = world->slots[slot].object;
    int64_t key = copy_line_key(number, world->slots[slot].place);
    int64_t lines = fleet->line_at.count;
    int64_t spare = fleet->spare_line - 1;
    // Without a spare line, all lines that were ever made are in use: the next one is new.
    int64_t line = *table_put(&fleet->line_at, key, spare == NONE ? lines : spare);
    bool is_new = fleet->line_at.count > lines;
    if (is_new) {
        if (spare != NONE) {
            fleet->spare_line = fleet->lines[line].slot[0];
        } else if (line == fleet->lines_room) {
            fleet->lines_room = max_of(2 * line, LINE);
            fleet->lines = memory_grow(fleet->lines, fleet->lines_room, sizeof(CopyLine));
        }
        memset(&fleet->lines[line], NONE, sizeof(CopyLine));
    }
    fleet->lines[line].slot[number % LINE] = (int32_t)slot;
}

// Removes the copy `slot` from the index. Its line becomes spare if it was the last one there.
static void copy_unindex(World *world, int64_t slot) {
    Fleet *fleet = &world->fleet;
    int64_t number = world->slots[slot].object;
    int64_t key = copy_line_key(number, world->slots[slot].place);
    int64_t line = *table_find(&fleet->line_at, key);
    int32_t *slots = fleet->lines[line].slot;
    slots[number % LINE] = NONE;
    for (int64_t i = 0; i < LINE; i++) {
        if (slots[i] != NONE) {
            return;
        }
    }
    table_drop(&fleet->line_at, key);
    slots[0] = (int32_t)fleet->spare_line;
    fleet->spare_line = line + 1;
}

// Adds the copy `slot` to the list of the copies of its object, and to the index.
static void copy_add(World *world, int64_t slot) {
    Link *links = world->fleet.copy_links;
    Copies *home = &world->fleet.copies[world->slots[slot].home];
    links[slot] = (Link){.newer = NONE, .older = home->first_copy};
    if (home->first_copy != NONE) {
        links[home->first_copy].newer = (int32_t)slot;
    }
    home->first_copy = (int32_t)slot;
    copy_index(world, slot);
}

// Removes the copy that the own slot of the object `slot` holds.
static void copy_remove_own(World *world, int64_t slot) {
    Copies *copies = &world->fleet.copies[slot];
    copies->own_place = 0;
    copies->own_live = 0;
    if (copies->node_copy == slot) {
        copies->node_copy = NONE;
    }
    if (copies->rack_copy == slot) {
        copies->rack_copy = NONE;
    }
}

// Removes the copy `slot`, which is a slot of its own, from both.
static void copy_remove(World *world, int64_t slot) {
    Link *links = world->fleet.copy_links;
    Copies *home = &world->fleet.copies[world->slots[slot].home];
    int32_t newer = links[slot].newer;
    int32_t older = links[slot].older;
    if (newer == NONE) {
        home->first_copy = older;
    } else {
        links[newer].older = older;
    }
    if (older != NONE) {
        links[older].newer = newer;
    }
    if (home->node_copy == slot) {
        home->node_copy = NONE;
    }
    if (home->rack_copy == slot) {
        home->rack_copy = NONE;
    }
    copy_unindex(world, slot);
}

// --- taking slots

static void slot_push_free(World *world, int64_t slot, bool is_copy) {
    SlotPool *pool = &world->slot_pools[is_copy];
    world->slots[slot].home = pool->first_free;
    pool->first_free = 1 + slot;
}

// Takes the slot of the kind that was released last, or else one that was never taken.
static int64_t slot_pop_free(World *world, bool is_copy) {
    SlotPool *pool = &world->slot_pools[is_copy];
    if (pool->first_free) {
        int64_t slot = pool->first_free - 1;
        pool->first_free = world->slots[slot].home;
        return slot;
    }
    if (pool->unused == pool->unused_end) {
        schedule_ask_python(world, is_copy ? MORE_COPIES : MORE_SLOTS, 1);
    }
    return pool->unused++;
}

// Clears what was noted of `slot` in tiers of places (`is_copy`), or in those that all nodes share,
// when it held another object or copy. Tables of slots that such a tier will not hold stay as they
// are.
static void slot_clear_tables(World *world, int64_t slot, bool is_copy) {
    int64_t place_tiers = world->fleet.place_tiers;
    bool is_in_whole_tier = tiers_include(place_tiers, world->knobs.whole_tier) == is_copy;
    if (world->pins_count && is_in_whole_tier) {
        world->pins[slot] = (Pin){0, 0};
    }
    if (world->pinned_until_ns_count && is_in_whole_tier) {
        world->pinned_until_ns[slot] = 0;
    }
    if (world->idle_links_count && tiers_include(place_tiers, 0) == is_copy) {
        world->idle_links[slot].newer = NOT_IDLE;
    }
}

// Takes a free slot for object `number` of `size` bytes, which `home` of World.contexts names; with
// a `place`, for the copy of the object whose own slot is `home`. Requests hold the slot of an
// object, but not that of a copy.
int64_t slot_take(World *world, int64_t number, int64_t size, int64_t home, int64_t place) {
    int64_t slot = slot_pop_free(world, place > 0);
    Slot *object = &world->slots[slot];
    object->object = number;
    object->size = size;
    object->home = home;
    object->place = (int16_t)place;
    object->held_by = place == 0 ? HELD_BY_REQUESTS : 0;
    object->live = 0;
    object->was_loaded = 0;
    slot_clear_tables(world, slot, place > 0);
    if (world->fleet.place_tiers && place == 0) {
        world->fleet.copies[slot] = (Copies){NONE, NONE, NONE, 0, 0};
    }
    return slot;
}

// Makes a copy of `slot` at `place`, which has none.
static int64_t copy_make(World *world, int64_t slot, int64_t place) {
    Copies *copies = &world->fleet.copies[slot];
    if (world->knobs.shares_slots && !copies->own_place) {
        copies->own_place = (int16_t)place;
        slot_clear_tables(world, slot, true);
        return slot;
    }
    int64_t number = world->slots[slot].object;
    int64_t copy = slot_take(world, number, world->slots[slot].size, slot, place);
    if (world->knobs.keeps_age) {
        world->ages[copy] = world->ages[slot];
    }
    copy_add(world, copy);
    return copy;
}

// The copy of the object `slot` at `place`; NONE without one.
static int64_t copy_at(World *world, int64_t slot, int64_t place) {
    const Copies *copies = &world->fleet.copies[slot];
    int64_t first = copies->first_copy;
    if (copies->own_place == place) {
        return slot;
    }
    // Most objects have a single copy, which needs no look at the index.
    if (first == NONE || world->slots[first].place == place) {
        return first;
    }
    return copy_find(world, world->slots[slot].object, place);
}

// Lets `slot` say in which tiers its object is live as the node at hand sees it.
static void slot_see_from_node(World *world, int64_t slot) {
    const Fleet *fleet = &world->fleet;
    Slot *object = &world->slots[slot];
    Copies *copies = &fleet->copies[slot];
    int64_t live = object->live & ~fleet->place_tiers;
    int64_t node = world->control.node;
    copies->node_copy = (int32_t)copy_at(world, slot, 1 + node);
    copies->rack_copy = NONE;
    if (copies->node_copy != NONE) {
        live |= *copy_live_tiers(world, copies->node_copy);
    }
    if (fleet->rack_tiers) {
        int64_t rack = fleet->count + node / fleet->rack_nodes;
        copies->rack_copy = (int32_t)copy_at(world, slot, 1 + rack);
        if (copies->rack_copy != NONE) {
            live |= *copy_live_tiers(world, copies->rack_copy);
        }
    }
    object->live = (int16_t)live;
}

// The slot of the object that `home` names; takes one if the object is packed.
int64_t slot_unpack(World *world, int64_t home) {
    int64_t entry = *entry_at(world, home);
    if (entry >= 0) {
        return entry;
    }
    int64_t bits = entry_pack(entry);
    int64_t live = bits & ((1 << LIVE_BITS) - 1);
    int64_t slot = slot_take(world, bits >> PACKED_BITS, world->knobs.chunk_bytes, home, 0);
    world->slots[slot].live = (int16_t)(live & ~world->fleet.place_tiers);
    world->slots[slot].was_loaded = bits >> LIVE_BITS & 1;
    *entry_at(world, home) = slot;
    if (entry_place(entry)) {
        int64_t copy = copy_make(world, slot, entry_place(entry));
        *copy_live_tiers(world, copy) = (int16_t)(live & world->fleet.place_tiers);
        slot_see_from_node(world, slot);
    }
    return slot;
}

// Brings the slot of `entry`, if it has one, up to date for the node at hand.
void slot_refresh(World *world, int64_t entry) {
    if (world->fleet.place_tiers && entry >= 0) {
        slot_see_from_node(world, entry);
    }
}

// Does so for all of `chain[:n]`.
void slot_refresh_chain(World *world, int64_t n) {
    if (!world->fleet.place_tiers) {
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (world->chain[i] >= 0) {
            slot_see_from_node(world, world->chain[i]);
        }
    }
}

// The object's own slot of what the lists of a tier hold.
int64_t slot_of_object(World *world, int64_t level, int64_t tier_slot) {
    if (!tiers_include(world->fleet.place_tiers, level)) {
        return tier_slot;
    }
    bool is_own_slot = world->slots[tier_slot].place == 0;
    int64_t slot = is_own_slot ? tier_slot : world->slots[tier_slot].home;
    slot_see_from_node(world, slot);
    return slot;
}

// The copy that will stand for the object in a tier of a place, for slot_for_insert. It is made if
// the place has none, and released again if it stays unused.
int64_t slot_copy_for_insert(World *world, int64_t level, int64_t slot) {
    int64_t copy = slot_in_tier(world, level, slot);
    if (copy != NONE) {
        return copy;
    }
    copy = copy_make(world, slot, tier_place(world, level));
    if (tiers_include(world->fleet.rack_tiers, level)) {
        world->fleet.copies[slot].rack_copy = (int32_t)copy;
    } else {
        world->fleet.copies[slot].node_copy = (int32_t)copy;
    }
    copy_release_later(world, copy);
    return copy;
}

// --- releasing slots

// Whether a tier that may evict the object has it, or a place has a copy.
static bool slot_is_evictable(World *world, int64_t slot) {
    const Fleet *fleet = &world->fleet;
    int64_t shared_tiers = ~world->knobs.endless_tiers & ~fleet->place_tiers;
    if (world->slots[slot].live & shared_tiers) {
        return true;
    }
    if (!fleet->place_tiers) {
        return false;
    }
    const Copies *copies = &fleet->copies[slot];
    return copies->own_place || copies->first_copy != NONE;
}

// The only copy of `slot`, if nothing has its object but tiers of that one place which never evict;
// else NONE.
static int64_t slot_lone_copy(World *world, int64_t slot) {
    const Fleet *fleet = &world->fleet;
    int64_t endless_tiers = world->knobs.endless_tiers;
    if (!fleet->place_tiers || world->slots[slot].live & ~endless_tiers & ~fleet->place_tiers) {
        return NONE;
    }
    const Copies *copies = &fleet->copies[slot];
    int64_t copy = copies->first_copy;
    if (copies->own_place) {
        bool is_endless = copies->own_live && !(copies->own_live & ~endless_tiers);
        return is_endless && copy == NONE ? slot : NONE;
    }
    if (copy == NONE || fleet->copy_links[copy].older != NONE) {
        return NONE;
    }
    const Slot *only = &world->slots[copy];
    bool is_endless = only->live && !(only->live & ~endless_tiers);
    return is_endless && !only->held_by && !only->is_pending ? copy : NONE;
}

// Whether a packed entry can hold all that is known of the object.
static bool slot_is_packable(World *world, int64_t slot) {
    if (!world->knobs.is_packed) {
        return false;
    }
    return !slot_is_evictable(world, slot) || slot_lone_copy(world, slot) != NONE;
}

// Notes that the copy may not be needed any more. It stays until the end of the step, because
// others may still look at it.
void copy_release_later(World *world, int64_t copy) {
    Slot *slot = &world->slots[copy];
    if (!slot->is_pending) {
        slot->is_pending = 1;
        world->pending_release[world->control.pending_release++] = (int32_t)copy;
    }
}

// Does so for an object, or for a copy with a slot of its own: for slot_release_later, which leaves
// out most of those that a tier may evict.
void slot_note_release(World *world, int64_t slot) {
    const Slot *object = &world->slots[slot];
    bool is_copy = object->place > 0;
    if (object->is_pending || (!is_copy && !slot_is_packable(world, slot))) {
        return;
    }
    copy_release_later(world, slot);
    if (!is_copy && object->home != NONE) {
        __builtin_prefetch(entry_at(world, object->home), 1); // for slot_release_pending
    }
}

// Frees the slot of a copy.
static void slot_discard_copy(World *world, int64_t slot) {
    const Fleet *fleet = &world->fleet;
    copy_remove(world, slot);
    if (world->notes_count) {
        // What a policy remembers of it is in the lists of the copy's own place.
        int64_t here = world->control.node;
        int64_t place = world->slots[slot].place - 1;
        bool is_node = place < fleet->count;
        fleet_move_to(world, is_node ? place : (place - fleet->count) * fleet->rack_nodes);
        policy_forget(world, slot);
        fleet_move_to(world, here);
    }
    world->slots[slot].live = 0;
    world->slots[slot].place = 0;
    slot_push_free(world, slot, true);
}

// Releases a copy that no tier has, then its object.
static void slot_release_copy(World *world, int64_t slot) {
    const Slot *copy = &world->slots[slot];
    int64_t home = copy->home;
    bool is_used = copy->live || copy->held_by;
    if (world->knobs.keeps_ghosts && (is_used || world->slots[home].held_by)) {
        return; // A policy may remember it.
    }
    if (!is_used) {
        slot_discard_copy(world, slot);
    }
    if (world->slots[home].held_by) {
        slot_release_later(world, home);
    } else {
        slot_release(world, home);
    }
}

// Replaces the entry of an object by a packed one, and frees its slot and that of its only copy.
static void slot_pack(World *world, int64_t slot) {
    Slot *object = &world->slots[slot];
    int64_t copy = slot_lone_copy(world, slot);
    int64_t live = object->live & ~world->fleet.place_tiers;
    int64_t place = 0;
    if (copy == slot) {
        live |= world->fleet.copies[slot].own_live;
        place = world->fleet.copies[slot].own_place;
        copy_remove_own(world, slot);
    } else if (copy != NONE) {
        live |= world->slots[copy].live;
        place = world->slots[copy].place;
        slot_discard_copy(world, copy);
    }
    int64_t bits = object->object << PACKED_BITS | place << PLACE_SHIFT |
                   (int64_t)object->was_loaded << LIVE_BITS | live;
    *entry_at(world, object->home) = entry_pack(bits);
    object->held_by = 0;
    object->live = 0;
    slot_push_free(world, slot, false);
}

// Releases the copy in the own slot of the object `slot`, if no tier has it; then the object, if
// nothing needs that.
static void slot_release_own_copy(World *world, int64_t slot) {
    if (!world->fleet.copies[slot].own_live) {
        copy_remove_own(world, slot);
    }
    slot_release(world, slot);
}

// Releases or packs the slots that slot_release_later noted.
void slot_release_pending(World *world) {
    while (world->control.pending_release > 0) {
        int64_t slot = world->pending_release[--world->control.pending_release];
        Slot *object = &world->slots[slot];
        object->is_pending = 0;
        if (object->place > 0) {
            slot_release_copy(world, slot);
            continue;
        }
        if (world->knobs.shares_slots && world->fleet.copies[slot].own_place) {
            slot_release_own_copy(world, slot);
        }
        if (object->held_by && object->home != NONE && slot_is_packable(world, slot)) {
            slot_pack(world, slot);
        }
    }
}

// Releases what was evicted with others, if nothing else needs it: an object's own slot or a copy.
void slot_release_evicted(World *world, int64_t tier_slot) {
    if (world->slots[tier_slot].place > 0) {
        slot_release_later(world, tier_slot);
    } else {
        slot_release(world, tier_slot);
    }
}

// Discards the copies of `slot`, which no request holds, if no place may evict its copy. What one
// place may evict may still be demoted to a tier that never does: until then the copies stay.
static void slot_discard_copies(World *world, int64_t slot) {
    const Link *links = world->fleet.copy_links;
    const Copies *copies = &world->fleet.copies[slot];
    int64_t first_copy = copies->first_copy;
    if (copies->own_live & ~world->knobs.endless_tiers) {
        return;
    }
    for (int64_t copy = first_copy; copy != NONE; copy = links[copy].older) {
        const Slot *other = &world->slots[copy];
        if (other->live & ~world->knobs.endless_tiers || other->held_by) {
            return;
        }
    }
    if (copies->own_place && !world->slots[slot].is_pending) {
        copy_remove_own(world, slot);
    }
    for (int64_t copy = first_copy; copy != NONE;) {
        int64_t older = links[copy].older;
        if (!world->slots[copy].is_pending) {
            slot_discard_copy(world, copy);
        }
        copy = older;
    }
}

// Frees `slot` if no request can name its object and no tier may evict it; policies forget it then.
// A tier that never evicts does not keep the slot: so memory does not grow with what it stores.
void slot_release(World *world, int64_t slot) {
    Slot *object = &world->slots[slot];
    if (object->held_by) {
        return;
    }
    if (world->fleet.place_tiers) {
        slot_discard_copies(world, slot);
    }
    if (slot_is_evictable(world, slot)) {
        return;
    }
    object->live = 0;
    if (world->notes_count) {
        policy_forget(world, slot);
    }
    slot_push_free(world, slot, false);
}
