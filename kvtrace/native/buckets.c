// Buckets: objects that a tier writes together as one file, reads by offset, and deletes together.
// A small metadata file beside each bucket says what the bucket holds.
//
//     bucket_write         objects of the store queue -> one bucket
//     bucket_delete        the policy chose a bucket  -> it goes with all objects in it
//     bucket_evict_object  the policy chose an object -> it is dead in its bucket
//     -> bucket_collect    too few of its bytes live  -> the live ones are written as a new bucket
//
// A bucket has a slot of its own, which stands for it in the lists of its tier's policy; its
// objects are live in the tier but in none of its lists. Where buckets are collected, the objects
// are in the lists instead. Each rank, and each group of layers, has a bucket of its own (a part):
// parts differ only in their numbers, so one slot stands for all of them.
//
// A bucket that is collected keeps its slot and gets a new number.
#include "sim.h"

// --- sizes, numbers and rows

static int64_t bucket_parts(World *world) {
    return world->knobs.ranks * world->knobs.layers;
}

// What an object takes in a bucket: its own bytes and its key's, in all parts.
static int64_t bucket_object_bytes(World *world, int64_t level, int64_t slot) {
    return world->slots[slot].size + bucket_parts(world) * world->tiers[level].bucket_key_bytes;
}

// What an object adds to a bucket and its metadata file beside its own bytes, in all parts.
int64_t bucket_overhead_bytes(World *world, int64_t level) {
    const Tier *tier = &world->tiers[level];
    return bucket_parts(world) * (tier->bucket_key_bytes + tier->bucket_meta_bytes);
}

// Gives the next object number to a bucket, or to the metadata file of one.
static void bucket_number_file(World *world, int64_t size) {
    Control *control = &world->control;
    if (control->made == world->made_size_count) {
        schedule_ask_python(world, FLUSH, 1);
    }
    world->made_size[control->made] = size;
    world->made_kind[control->made] = 1;
    control->made++;
    control->next_object++;
}

// Emits rows for a bucket, and for its metadata file if it has one.
static void bucket_emit(World *world, int64_t level, int64_t bucket, int64_t op, Cause cause) {
    int64_t size = world->members[bucket].offset;
    int64_t meta_bytes = world->slots[bucket].size - size;
    RowSpec row = {.now = cause.now,
                   .op = op,
                   .level = level,
                   .phase = cause.phase,
                   .entry = bucket,
                   .size = size,
                   .request = NONE,
                   .stage = NONE};
    row_emit(world, &row);
    if (meta_bytes) {
        // The metadata file has the number behind the bucket's.
        row.entry = entry_pack((world->slots[bucket].object + 1) << PACKED_BITS);
        row.size = meta_bytes;
        row_emit(world, &row);
    }
}

// Deletes the files of a bucket, whose slot stays.
static void bucket_delete_files(World *world, int64_t level, int64_t bucket, Cause cause) {
    world->tiers[level].live_bytes -= world->slots[bucket].size;
    world->tiers[level].deleted_bytes += world->slots[bucket].size;
    bucket_emit(world, level, bucket, OP_DELETE, cause);
}

static void bucket_free_slot(World *world, int64_t bucket) {
    world->slots[bucket].held_by = 0;
    world->slots[bucket].live = 0;
    slot_release(world, bucket);
}

// --- writing

// Adds the object `slot` to the end of a bucket, behind `offset` bytes of one part.
static void bucket_append(World *world, int64_t bucket, int64_t slot, int64_t offset) {
    Member *members = world->members;
    int64_t last = members[bucket].older;
    members[slot] = (Member){.bucket = bucket, .offset = offset, .older = last, .newer = NONE};
    if (last != NONE) {
        members[last].newer = slot;
    }
    members[bucket].older = slot;
}

// Writes the `count` objects from `chain[first]` on as a bucket, which gets the next number.
static void bucket_fill(World *world, int64_t level, int64_t bucket, int64_t first, int64_t count,
                        Cause cause) {
    Tier *tier = &world->tiers[level];
    Slot *file = &world->slots[bucket];
    Member *members = world->members;
    int64_t parts = bucket_parts(world);
    int64_t offset = 0;
    int64_t bucket_bytes = 0;
    members[bucket].older = NONE;
    for (int64_t i = first; i < first + count; i++) {
        int64_t slot = world->chain[i];
        offset += tier->bucket_key_bytes;
        bucket_append(world, bucket, slot, offset);
        world->slots[slot].live |= 1 << level;
        offset += world->slots[slot].size / parts;
        bucket_bytes += bucket_object_bytes(world, level, slot);
    }
    int64_t meta_bytes = parts * count * tier->bucket_meta_bytes;
    members[bucket].bucket = bucket_bytes; // all of them live
    members[bucket].offset = bucket_bytes;
    file->object = world->control.next_object;
    file->size = bucket_bytes + meta_bytes;
    file->live = (int16_t)(1 << level);
    bucket_number_file(world, bucket_bytes);
    if (meta_bytes) {
        bucket_number_file(world, meta_bytes);
    }
    tier->live_bytes += file->size;
    tier->written_bytes += file->size;
    tier_serve(world, level, OP_WRITE, file->size, cause.now);
    bucket_emit(world, level, bucket, OP_WRITE, cause);
}

// Writes the `count` objects from `chain[first]` on as a bucket; false if there is no room for it.
bool bucket_write(World *world, int64_t level, int64_t first, int64_t count, int64_t now) {
    int64_t size = 0;
    for (int64_t i = first; i < first + count; i++) {
        size += world->slots[world->chain[i]].size + bucket_overhead_bytes(world, level);
    }
    int64_t bucket = slot_take(world, world->control.next_object, size, NONE, 0);
    if (!tier_make_room(world, level, bucket, now)) {
        bucket_free_slot(world, bucket);
        return false;
    }
    bucket_fill(world, level, bucket, first, count, (Cause){now, PHASE_STORE, NONE, NONE});
    if (tier_is_endless(world, level)) {
        return true;
    }
    if (world->tiers[level].collect_share > 0) {
        for (int64_t i = first; i < first + count; i++) {
            policy_insert(world, level, world->chain[i], now);
        }
    } else {
        policy_insert(world, level, bucket, now);
    }
    return true;
}

// --- deleting

// Deletes a bucket with all objects in it.
void bucket_delete(World *world, int64_t level, int64_t bucket, int64_t now, int64_t phase) {
    // What an endless tier holds is in no list, and has no links there.
    bool is_listed = !tier_is_endless(world, level);
    bool is_by_object = world->tiers[level].collect_share > 0;
    if (is_listed && !is_by_object) {
        policy_remove(world, level, bucket, phase == PHASE_EVICT);
    }
    for (int64_t slot = world->members[bucket].older; slot != NONE;) {
        int64_t older = world->members[slot].older;
        if (is_listed && is_by_object) {
            policy_remove(world, level, slot, 0);
        }
        world->slots[slot].live &= ~(1 << level);
        slot_release_evicted(world, slot);
        slot = older;
    }
    bucket_delete_files(world, level, bucket, (Cause){now, phase, NONE, NONE});
    bucket_free_slot(world, bucket);
}

// --- collecting
//
//     read the live objects, delete the bucket, write what was read as a new bucket, in its order
//
// as a log-structured store cleans its segments (Rosenblum and Ousterhout, ACM TOCS, 1992).

static void bucket_collect(World *world, int64_t level, int64_t bucket, int64_t now) {
    // The end of `chain` is free: what is to be stored lies at its start.
    int64_t end = world->chain_count;
    int64_t first = end;
    for (int64_t slot = world->members[bucket].older; slot != NONE;
         slot = world->members[slot].older) {
        world->chain[--first] = slot;
    }
    for (int64_t i = first; i < end; i++) {
        int64_t size = world->slots[world->chain[i]].size;
        world->tiers[level].read_bytes += size;
        row_emit(world, &(RowSpec){.now = now,
                                   .op = OP_READ,
                                   .level = level,
                                   .phase = PHASE_COLLECT,
                                   .entry = world->chain[i],
                                   .size = size,
                                   .request = NONE,
                                   .stage = NONE});
        tier_serve(world, level, OP_READ, size, now);
    }
    bucket_delete_files(world, level, bucket, (Cause){now, PHASE_EVICT, NONE, NONE});
    if (first == end) {
        bucket_free_slot(world, bucket);
        return;
    }
    Cause collection = {now, PHASE_COLLECT, NONE, NONE};
    bucket_fill(world, level, bucket, first, end - first, collection);
    world->tiers[level].collected_bytes += world->slots[bucket].size;
}

// Evicts the object `slot`: it is dead in its bucket, which is collected if too little of it lives.
void bucket_evict_object(World *world, int64_t level, int64_t slot, int64_t now) {
    Member *members = world->members;
    policy_remove(world, level, slot, 1);
    int64_t bucket = members[slot].bucket;
    int64_t older = members[slot].older;
    int64_t newer = members[slot].newer;
    members[newer == NONE ? bucket : newer].older = older;
    if (older != NONE) {
        members[older].newer = newer;
    }
    members[bucket].bucket -= bucket_object_bytes(world, level, slot);
    world->slots[slot].live &= ~(1 << level);
    slot_release_evicted(world, slot);
    double live_bytes = (double)members[bucket].bucket;
    double bucket_bytes = (double)members[bucket].offset;
    if (live_bytes < world->tiers[level].collect_share * bucket_bytes) {
        bucket_collect(world, level, bucket, now);
    }
}

// Makes room for a bucket of `size` bytes where buckets are collected: evicts objects, down to the
// low mark, so that their buckets shrink.
void bucket_make_room(World *world, int64_t level, int64_t size, int64_t now) {
    Tier *tier = &world->tiers[level];
    if (size > tier->largest_object_bytes) {
        return;
    }
    if (tier->goal_bytes == NONE && !tier_has_room(world, level, size)) {
        tier->goal_bytes = tier->low_bytes;
    }
    while (tier->goal_bytes != NONE && tier->live_bytes > 0 &&
           tier->live_bytes + size > tier->goal_bytes) {
        tier_evict(world, level, policy_choose_victim(world, level, NONE), now);
    }
    tier->goal_bytes = NONE;
}
