// What happens in a tier: hits, reads, writes, deletes, evictions and demotions.
// Each emits the rows of the trace that it causes, and keeps the tier busy for as long as it takes.
//
// A lookup (request.c, store.c) calls
//
//     object_fastest_level      which tier has the object, if any
//     -> hit:  tier_hit         tell the policy and the admission filter
//              row_emit         the row of the read
//              tier_serve_load  when the read is done
//     -> miss: the object is computed, and stored when that is done
//
// A store calls
//
//     store_queue_or_make_room        is the object admitted? (admission.c, background.c)
//     -> tier_make_room         does it fit? else evict until it does:
//        -> policy_choose_victim   which slot leaves (lists.c: LRU; policies/: all others)
//        -> tier_evict             an object, or a bucket of objects (buckets.c)
//           -> tier_delete            out of the lists and the counters
//              -> row_emit               the row of the delete
//     -> tier_write             into the lists and the counters
//        -> row_emit               the row of the write
//
// Others evict by the same tier_evict or tier_delete:
//
//     tier_evict_in_round         tiers that evict at times only
//     tier_make_room_for_offer    tiers that store offers whole
//     tier_make_room_by_demotion  moves the victim to a slower tier if one takes it
//     request_evict_own           a request whose loads would evict each other (request.c)
//     staging_make_buffer_room    buffers of the staging tier (store.c)
//     bucket_make_room            tiers that keep many objects in a file (buckets.c)
//     background_do               objects whose TTL is over (background.c)
#include "sim.h"

// --- making room

static bool tier_make_room_whole(World *world, int64_t level, int64_t slot, int64_t now);

// Deletes from a tier what its policy chose: an object, or a bucket with all objects in it.
void tier_evict(World *world, int64_t level, int64_t tier_slot, int64_t now) {
    if (!tiers_include(world->knobs.bucketed_tiers, level)) {
        int64_t slot = slot_of_object(world, level, tier_slot);
        tier_delete(world, level, slot, now, PHASE_EVICT);
    } else if (world->tiers[level].collect_share > 0) {
        bucket_evict_object(world, level, tier_slot, now);
    } else {
        bucket_delete(world, level, tier_slot, now, PHASE_EVICT);
    }
}

// Makes room for `slot`: if it does not fit, evicts until the tier is down to its low mark.
//
//     object is larger than the tier takes         -> false
//     it fits                                      -> true
//     the tier evicts at times only                -> false
//     else evict victims, one by one, until it fits below the low mark -> true
//
// A tier with fits_at_once evicts just enough here, and goes down to its low mark in its rounds.
bool tier_make_room(World *world, int64_t level, int64_t slot, int64_t now) {
    const Tier *tier = &world->tiers[level];
    int64_t size = world->slots[slot].size;
    if (size > tier->largest_object_bytes) {
        return false;
    }
    if (tier->takes_whole_offers) {
        return tier_make_room_whole(world, level, slot, now);
    }
    if (tier->lease_ns) {
        return lease_make_room(world, level, slot, now);
    }
    if (tier_has_room(world, level, size)) {
        return true;
    }
    if (tier->evict_every_ns > 0 && !tier->fits_at_once) {
        return false;
    }
    int64_t incoming = slot_for_insert(world, level, slot);
    int64_t goal_bytes = tier->fits_at_once ? tier->limit_bytes : tier->low_bytes;
    while (tier->live_bytes > 0 && tier->live_bytes + size > goal_bytes) {
        int64_t victim = policy_choose_victim(world, level, incoming);
        tier_evict(world, level, victim, now);
    }
    return true;
}

// --- counting rows

enum { COUNTED_ALONE = 1 << 21 }; // Operations without rows between two questions to Python.

// Bytes that a tier stores of `bytes` of an object.
INLINE int64_t tier_stored_bytes(const Tier *tier, int64_t bytes) {
    if (tier->stored_part_bytes == tier->full_part_bytes) {
        return bytes;
    }
    return (int64_t)((__int128)bytes * tier->stored_part_bytes / tier->full_part_bytes);
}

// How many rows an operation on one group of layers is: one for each rank that stores the object,
// or reads it. A fleet's link, whose level is behind all tiers, is read once.
INLINE int64_t row_ranks(World *world, int64_t op, int64_t level, int64_t phase) {
    const int64_t ranks = world->knobs.ranks;
    const bool has_readers = op == OP_READ && phase != PHASE_COLLECT && level < world->tiers_count;
    return has_readers ? ranks * world->tiers[level].readers : ranks;
}

// Bytes of one row of an object of `size` bytes.
INLINE int64_t row_bytes(World *world, int64_t level, int64_t size) {
    const int64_t parts = world->knobs.ranks * world->knobs.layers;
    const int64_t full_bytes = parts == 1 ? size : size / parts;
    const bool is_tier = level < world->tiers_count;
    return is_tier ? tier_stored_bytes(&world->tiers[level], full_bytes) : full_bytes;
}

// Whether objects are populated: then all rows but deletes are of that phase, those of the
// demotions that populating causes, too.
INLINE bool row_is_populating(World *world) {
    return world->control.populated < world->items_count;
}

// Counts the rows of some groups of layers, in the total and by the second. What is populated, what
// is deleted and what passes a fleet's link is no demand on a tier.
INLINE void row_count(World *world, int64_t op, int64_t level, int64_t size, const Cause *cause,
                      int64_t layers) {
    world->total.last_io_ns = cause->now;
    bool is_demand = op != OP_DELETE && level < world->tiers_count;
    is_demand = is_demand && cause->phase != PHASE_POPULATE && !row_is_populating(world);
    if (!is_demand || !world->by_second_count) {
        return;
    }
    const int64_t rows = row_ranks(world, op, level, cause->phase) * layers;
    const int64_t second = cause->now / NS_PER_S;
    const int64_t i = ((second * world->tiers_count + level) * 2 + (op == OP_WRITE)) * 2;
    if (i >= world->by_second_count) {
        schedule_ask_python(world, MORE_SECONDS, second + 1);
    }
    world->by_second[i] += row_bytes(world, level, size) * rows;
    world->by_second[i + 1] += rows;
}

// Counts an operation whose rows nobody takes. Python is asked now and then all the same: it may
// want to end the simulation.
INLINE void row_count_alone(World *world, int64_t op, int64_t level, int64_t size,
                            const Cause *cause, int64_t layers) {
    if (world->control.rows >= COUNTED_ALONE) {
        schedule_ask_python(world, FLUSH, 1);
    }
    world->control.rows++;
    row_count(world, op, level, size, cause, layers);
}

// Emits the rows of an operation on `slot`, or counts them.
INLINE void tier_emit(World *world, int64_t op, int64_t level, int64_t slot, int64_t size,
                      const Cause *cause) {
    if (world->knobs.is_counted_alone) {
        row_count_alone(world, op, level, size, cause, world->knobs.layers);
        return;
    }
    row_emit(world, &(RowSpec){.now = cause->now,
                               .op = op,
                               .level = level,
                               .phase = cause->phase,
                               .entry = slot,
                               .size = size,
                               .request = cause->request,
                               .stage = cause->stage});
}

// --- deleting, writing and reading an object

// In GPU memory, an object that running requests share was evicted: from now on each of them has
// a copy of its own there.
static void tier_split_shared_memory(World *world, int64_t tier_slot) {
    GpuUse *use = &world->gpu_uses[tier_slot];
    int64_t size = world->slots[tier_slot].size;
    Node *node = &world->fleet.nodes[world->control.node];
    node->gpu_bytes += (use->running_requests - 1) * size;
    node->held_bytes -= size;
    use->running_requests = 0;
    use->generation++;
}

// Deletes `slot` from a tier that has it. The slot is released if nothing needs it any more.
void tier_delete(World *world, int64_t level, int64_t slot, int64_t now, int64_t phase) {
    Tier *tier = &world->tiers[level];
    Slot *object = &world->slots[slot];
    int64_t tier_slot = slot_in_tier(world, level, slot);
    if (!tier_is_endless(world, level)) {
        bool is_evicted = phase != PHASE_PROMOTE && phase != PHASE_LOSE;
        policy_remove(world, level, tier_slot, is_evicted);
    }
    bool is_in_gpu = level == 0 && world->gpu_uses_count;
    if (is_in_gpu && world->gpu_uses[tier_slot].running_requests) {
        tier_split_shared_memory(world, tier_slot);
    }
    if (tiers_include(world->fleet.place_tiers, level)) {
        *copy_live_tiers(world, tier_slot) &= ~(1 << level);
        copy_release_later(world, tier_slot);
    }
    if (tier->takes_whole_offers) {
        world->pins[tier_slot].new_in_offer = 0; // another offer writes it again, or none
    }
    object->live &= ~(1 << level);
    tier->live_bytes -= object->size;
    tier->deleted_bytes += object->size;
    const Cause deletion = {now, phase, NONE, NONE};
    tier_emit(world, OP_DELETE, level, slot, object->size, &deletion);
    if (object->held_by) {
        slot_release_later(world, slot);
    } else {
        slot_release(world, slot);
    }
}

// Notes that the object, and its copy at the node at hand, were used now.
static void tier_note_age(World *world, int64_t slot) {
    if (!world->knobs.keeps_age) {
        return;
    }
    world->ages[slot] = ++world->control.uses;
    if (!world->fleet.place_tiers) {
        return;
    }
    int64_t copy = world->fleet.copies[slot].node_copy;
    if (copy != NONE) {
        world->ages[copy] = world->control.uses;
    }
}

// Writes `slot` to a tier that does not have it and has room for it.
void tier_write(World *world, int64_t level, int64_t slot, const Cause *cause) {
    Tier *tier = &world->tiers[level];
    int64_t tier_slot = slot_for_insert(world, level, slot);
    if (level == 0 && world->actors[world->control.actor_id].gpu_bytes) {
        gpu_hold_slot(world, world->control.actor_id, tier_slot);
    }
    if (tiers_include(world->fleet.place_tiers, level)) {
        *copy_live_tiers(world, tier_slot) |= 1 << level;
    }
    Slot *object = &world->slots[slot];
    if (!tier_is_endless(world, level)) {
        policy_insert(world, level, tier_slot, cause->now);
    }
    if (cause->phase != PHASE_DEMOTE) {
        tier_note_age(world, slot);
    }
    object->live |= 1 << level;
    tier->live_bytes += object->size;
    tier->written_bytes += object->size;
    bool has_rounds = tier->evict_every_ns > 0;
    if (has_rounds && tier->next_round_ns == 0 && tier->live_bytes >= tier->trigger_bytes) {
        tier->next_round_ns = (cause->now / tier->evict_every_ns + 1) * tier->evict_every_ns;
    }
    tier_pin(world, slot, tier_serve(world, level, OP_WRITE, object->size, cause->now));
    tier_emit(world, OP_WRITE, level, slot, object->size, cause);
    slot_release_later(world, slot);
}

// Reads the whole of `slot`; returns when that is done. The caller says whether it is a hit.
int64_t tier_read(World *world, int64_t level, int64_t slot, const Cause *cause) {
    int64_t size = world->slots[slot].size;
    int64_t read_bytes = size * world->tiers[level].readers;
    world->tiers[level].read_bytes += read_bytes;
    tier_emit(world, OP_READ, level, slot, size, cause);
    int64_t done_ns = tier_serve(world, level, OP_READ, read_bytes, cause->now);
    tier_pin(world, slot, done_ns);
    return done_ns;
}

// Deletes what the lists of a tier hold as `tier_slot` because it is lost: an object, or the whole
// bucket that it is in.
void tier_lose(World *world, int64_t level, int64_t tier_slot, int64_t now) {
    if (!tiers_include(world->knobs.bucketed_tiers, level)) {
        int64_t slot = slot_of_object(world, level, tier_slot);
        tier_delete(world, level, slot, now, PHASE_LOSE);
        return;
    }
    bool is_by_object = world->tiers[level].collect_share > 0;
    int64_t bucket = is_by_object ? world->members[tier_slot].bucket : tier_slot;
    bucket_delete(world, level, bucket, now, PHASE_LOSE);
}

// --- hits

// Tells the policy and the admission filter that an object, which is live in the tier, was used.
void tier_hit(World *world, int64_t level, int64_t entry) {
    const Tier *tier = &world->tiers[level];
    if (!tier_is_endless(world, level)) {
        int64_t tier_slot = slot_in_tier(world, level, entry);
        if (tiers_include(world->knobs.bucketed_tiers, level) && tier->collect_share == 0) {
            tier_slot = world->members[tier_slot].bucket;
        }
        // With recency=at-end LRU learns of it as the request ends, all objects together.
        if (tier->recency != AT_END || tier->on_hit) {
            policy_hit(world, level, tier_slot);
        }
        if (tiers_include(world->knobs.filtered_tiers, level)) {
            admission_count_use(world, level, entry);
        }
    }
    if (entry >= 0) {
        tier_note_age(world, entry);
    }
}

// Lets `chain[i]`, when it is used next in a tier, become less recent than the last object before
// it, from `first` on, that the tier has; with a `mark` only those count whose chain_mark it is.
// It becomes the most recent if there is none.
void tier_use_behind(World *world, int64_t level, int64_t i, int64_t first, int64_t mark) {
    if (tier_is_endless(world, level)) {
        return;
    }
    const int64_t *chain = world->chain;
    int64_t before = i - 1;
    for (; before >= first; before--) {
        bool is_marked = !mark || world->chain_mark[before] == mark;
        bool is_other = chain[before] != chain[i];
        if (is_marked && is_other && object_is_in(world, chain[before], level)) {
            break;
        }
    }
    int64_t slot = before < first ? NONE : slot_in_tier(world, level, chain[before]);
    world->tiers[level].behind_slot = 1 + slot;
}

// --- the service model
//
// Each direction of a tier is a server, first come, first served:
//
//     transfer = max(bytes / bandwidth, latency / concurrency)
//     busy_until = max(busy_until, now) + transfer
//     an operation is done at busy_until + latency
//
// Without a bandwidth, operations take no time.

// Submits an operation in a tier that has a bandwidth, for tier_serve.
int64_t tier_transfer(World *world, int64_t level, int64_t op, int64_t size, int64_t now) {
    Tier *tier = &world->tiers[level];
    int64_t busy_ns = transfer_ns(size, tier->bytes_per_s[op]);
    if (tier->concurrency > 0) {
        busy_ns = max_of(busy_ns, tier->latency_ns / tier->concurrency);
    }
    tier->busy_until_ns[op] = max_of(tier->busy_until_ns[op], now) + busy_ns;
    return tier->busy_until_ns[op] + tier->latency_ns;
}

// Submits a read of a request's load; returns when it is done. If only request_reads of them may be
// in flight, the reads go in batches of so many, one batch after the other.
int64_t tier_serve_load(World *world, int64_t level, int64_t size, int64_t now) {
    Tier *tier = &world->tiers[level];
    int64_t read_bytes = size * tier->readers;
    int64_t done_ns = tier_serve(world, level, OP_READ, read_bytes, now);
    if (tier->request_reads <= 0 || tier->bytes_per_s[OP_READ] <= 0) {
        return done_ns;
    }
    if (tier->parallel_reads == tier->request_reads) {
        tier->parallel_reads = 0;
        tier->reads_began_ns = tier->reads_end_ns;
    }
    tier->parallel_reads++;
    int64_t read_ns = transfer_ns(read_bytes, tier->bytes_per_s[OP_READ]) + tier->latency_ns;
    done_ns = max_of(done_ns, tier->reads_began_ns + read_ns);
    tier->reads_end_ns = max_of(tier->reads_end_ns, done_ns);
    return done_ns;
}

// Notes until when an object is in flight, for tier_pin.
void tier_note_in_flight(World *world, int64_t entry, int64_t until_ns) {
    int64_t tier_slot = slot_in_tier(world, world->knobs.whole_tier, entry);
    if (tier_slot != NONE) {
        int64_t *pinned_until_ns = &world->pinned_until_ns[tier_slot];
        *pinned_until_ns = max_of(*pinned_until_ns, until_ns);
    }
}

// --- stages and rows
//
// The operations of one request that may be in flight together are a stage; each stage begins when
// the one before it is done.

// Begins a stage, which has no operations yet.
void stage_begin(World *world) {
    world->control.is_stage_used = 0;
    for (int64_t level = 0; level < world->tiers_count; level++) {
        world->tiers[level].stage_operations = 0;
    }
}

// Adds an operation in a tier to `stage`; returns its stage, which is the next one if the tier has
// `limit` operations of this one in flight already (0: no limit).
int64_t stage_next(World *world, int64_t stage, int64_t level, int64_t limit) {
    if (limit > 0) {
        if (world->tiers[level].stage_operations == limit) {
            stage++;
            stage_begin(world);
        }
        world->tiers[level].stage_operations++;
    }
    world->control.is_stage_used = 1;
    return stage;
}

// Emits the rows of one group of layers: one for each rank that stores the object, or reads it.
void row_emit_layer(World *world, const RowSpec *row, int64_t layer) {
    const Cause cause = {row->now, row->phase, row->request, row->stage};
    const int64_t op = row->op;
    const int64_t level = row->level;
    if (world->knobs.is_counted_alone) {
        row_count_alone(world, op, level, row->size, &cause, 1);
        return;
    }
    const int64_t ranks = world->knobs.ranks;
    const int64_t layers = world->knobs.layers;
    const int64_t now = row->now;
    const int64_t length = row_bytes(world, level, row->size);
    const int64_t added = row_ranks(world, op, level, row->phase);
    const bool is_populated = op != OP_DELETE && row_is_populating(world);
    const int64_t phase = is_populated ? PHASE_POPULATE : row->phase;
    if (world->control.rows + added > world->rows.ts_ns_count) {
        schedule_ask_python(world, FLUSH, added);
    }
    row_count(world, op, level, row->size, &cause, 1);
    const int64_t first = world->control.rows;
    const int64_t end = first + added;
    // A copy: the compiler must assume that a row of single bytes may change any part of the world.
    const RowColumns rows = world->rows;
    int64_t number = object_number(world, row->entry);
    if (op == OP_READ && tiers_include(world->knobs.bucketed_tiers, level)) {
        bool is_copy = world->slots[row->entry].place > 0;
        int64_t tier_slot = is_copy ? row->entry : slot_in_tier(world, level, row->entry);
        const Member *member = &world->members[tier_slot];
        number = world->slots[member->bucket].object;
        for (int64_t i = first; i < end; i++) {
            world->row_offsets[i] = member->offset;
        }
    }
    world->control.rows = end;
    if (world->fleet.count > 1) {
        for (int64_t i = first; i < end; i++) {
            world->fleet.row_nodes[i] = (int32_t)world->control.node;
        }
    }
    for (int64_t rank = 0; rank < added; rank++) {
        int64_t i = first + rank;
        int64_t object_rank = rank < ranks ? rank : 0;
        rows.ts_ns[i] = now;
        rows.op[i] = (int8_t)op;
        rows.tier[i] = (int8_t)level;
        rows.phase[i] = (int8_t)phase;
        rows.object_id[i] = (number * ranks + object_rank) * layers + layer;
        rows.length_bytes[i] = length;
        rows.request_id[i] = row->request;
        rows.stage[i] = (int32_t)(row->request == NONE ? NONE : row->stage);
        rows.rank[i] = (int16_t)rank;
    }
}

// Emits the rows of all groups of layers.
void row_emit(World *world, const RowSpec *row) {
    int64_t layers = world->knobs.layers;
    for (int64_t layer = 0; layer < layers; layer++) {
        row_emit_layer(world, row, layer);
    }
}

// --- making room for whole offers
//
// Some engines (vLLM's CPU offloading) store the objects of an offer together or refuse all of
// them. LRU evicts for it, but never what is in flight: what this offer or the one before it
// stored, and what is still being read or written.

// An offer, and the time. Numbers of offers are counted in 32 bits here: only the last offers
// matter.
typedef struct {
    int32_t number;   // NONE of what is no offer.
    int32_t previous; // The number of the offer that is still in flight; 0 if none is.
    int64_t now;
} OfferAtHand;

static bool pin_is_in_flight(World *world, int64_t tier_slot, const OfferAtHand *offer) {
    const Pin *pin = &world->pins[tier_slot];
    bool is_named = pin->last_offer == offer->number;
    bool is_stored = offer->previous != 0 && pin->new_in_offer == offer->previous;
    if (is_named || is_stored) {
        return true;
    }
    return world->pinned_until_ns_count && world->pinned_until_ns[tier_slot] > offer->now;
}

// Evicts the least recent objects that are not in flight, down to the low mark, if `size` bytes do
// not fit. Returns false, and evicts nothing, if that would not be enough.
static bool tier_evict_not_in_flight(World *world, int64_t level, int64_t size,
                                     const OfferAtHand *offer) {
    const Tier *tier = &world->tiers[level];
    int64_t missing = tier->live_bytes + size - tier->limit_bytes;
    if (missing <= 0) {
        return true;
    }
    int64_t slot = policy_choose_victim(world, level, NONE);
    for (; slot != NONE && missing > 0; slot = list_link_of(world, level, slot)->newer) {
        if (!pin_is_in_flight(world, slot, offer)) {
            missing -= world->slots[slot].size;
        }
    }
    if (missing > 0) {
        return false;
    }
    slot = list_of(world, level, 0)->tail;
    while (slot != NONE && tier->live_bytes + size > tier->low_bytes) {
        int64_t newer = list_link_of(world, level, slot)->newer;
        if (!pin_is_in_flight(world, slot, offer)) {
            tier_delete(world, level, slot_of_object(world, level, slot), offer->now, PHASE_EVICT);
        }
        slot = newer;
    }
    return true;
}

// Makes room for all of `chain[first:n]` that the tier does not have yet. Returns false, and evicts
// nothing, if it cannot. `previous_offer` is the offer whose objects are still in flight, or 0.
bool tier_make_room_for_offer(World *world, int64_t level, int64_t first, int64_t n,
                              int64_t previous_offer, int64_t now) {
    const Tier *tier = &world->tiers[level];
    int64_t number = ++world->control.offers;
    OfferAtHand offer = {(int32_t)number, (int32_t)previous_offer, now};
    int64_t new_bytes = 0;
    int64_t live_objects = 0;
    for (int64_t i = first; i < n; i++) {
        int64_t slot = world->chain[i];
        int64_t incoming = slot_for_insert(world, level, slot);
        Pin *pin = &world->pins[incoming];
        const Slot *object = &world->slots[slot];
        if (pin->last_offer == offer.number) {
            continue; // The prompt has it twice.
        }
        // What the tier has already keeps its place, but only during this offer: it is not in
        // flight when the next one comes.
        pin->last_offer = offer.number;
        live_objects += object->live >> level & 1;
        if (!tiers_include(object->live, level) && object->size <= tier->largest_object_bytes) {
            pin->new_in_offer = offer.number;
            new_bytes += object->size;
        }
    }
    bool is_full = tier->live_bytes + new_bytes > tier->limit_bytes;
    if (tier->admits_offer && !tier->admits_offer(world, level, live_objects, is_full)) {
        return false;
    }
    return tier_evict_not_in_flight(world, level, new_bytes, &offer);
}

static bool tier_make_room_whole(World *world, int64_t level, int64_t slot, int64_t now) {
    const Tier *tier = &world->tiers[level];
    int64_t size = world->slots[slot].size;
    if (tier->admits_offer) {
        // A promotion from a slower tier is an offer by itself.
        int64_t incoming = slot_for_insert(world, level, slot);
        bool is_promotion = world->pins[incoming].new_in_offer != (int32_t)world->control.offers;
        bool is_full = !tier_has_room(world, level, size);
        if (is_promotion && !tier->admits_offer(world, level, 0, is_full)) {
            return false;
        }
    }
    OfferAtHand no_offer = {NONE, 0, now};
    return tier_evict_not_in_flight(world, level, size, &no_offer);
}

// --- making room by demotion

// The fastest tier from `level` down that takes objects of this size; NONE if none does.
int64_t tier_first_accepting(World *world, int64_t level, int64_t size) {
    while (level < world->tiers_count && size > world->tiers[level].largest_object_bytes) {
        level++;
    }
    return level < world->tiers_count ? level : NONE;
}

// The slower tier to which a victim is demoted; NONE if it is deleted: it fits in none, is there
// already, or is not admitted.
static int64_t demotion_level(World *world, int64_t level, int64_t victim, int64_t now) {
    int64_t lower = tier_first_accepting(world, level + 1, world->slots[victim].size);
    if (lower == NONE || tiers_include(world->slots[victim].live, lower)) {
        return NONE;
    }
    return admission_admits(world, lower, victim, now) ? lower : NONE;
}

// Demotes what the policy chooses until `slot` fits. A slower tier may have to make room first.
void tier_make_room_by_demotion(World *world, int64_t level, int64_t slot, int64_t now) {
    while (!tier_has_room(world, level, world->slots[slot].size)) {
        int64_t incoming = slot_for_insert(world, level, slot);
        int64_t tier_slot = policy_choose_victim(world, level, incoming);
        int64_t victim = slot_of_object(world, level, tier_slot);
        int64_t lower = demotion_level(world, level, victim, now);
        if (lower == NONE) {
            tier_delete(world, level, victim, now, PHASE_EVICT);
            continue;
        }
        Cause demotion = {now, PHASE_DEMOTE, NONE, NONE};
        tier_make_room_by_demotion(world, lower, victim, now);
        tier_read(world, level, victim, &demotion);
        tier_write(world, lower, victim, &demotion);
        if (world->knobs.keeps_age && !tier_is_endless(world, lower)) {
            list_settle_by_age(world, lower, slot_in_tier(world, lower, victim));
        }
        tier_delete(world, level, victim, now, PHASE_DEMOTE);
    }
}

// --- eviction rounds, for tiers that evict at times only
//
//     every evict_every_ns, if live bytes >= trigger:
//         goal = low mark, or live bytes * (1 - evict_ppm / 10^6)
//         evict victims until live bytes <= goal
//
// A round evicts one object each time it is called, so that other work of the same time goes on in
// its order.

static bool tier_is_at_trigger(const Tier *tier) {
    return tier->live_bytes > 0 && tier->live_bytes >= tier->trigger_bytes;
}

static int64_t tier_victim_bytes(World *world, int64_t level) {
    return world->slots[policy_choose_victim(world, level, NONE)].size;
}

// The bytes down to which a round that begins now evicts.
static int64_t tier_round_goal(World *world, int64_t level) {
    const Tier *tier = &world->tiers[level];
    if (!tier_is_at_trigger(tier)) {
        return tier->live_bytes;
    }
    if (tier->evict_ppm == 0) {
        return tier->low_bytes;
    }
    __int128 share_bytes = (__int128)tier->live_bytes * tier->evict_ppm / MILLION;
    return tier->live_bytes - max_of((int64_t)share_bytes, tier_victim_bytes(world, level));
}

// Evicts one object of a round that is due, or ends the round.
void tier_evict_in_round(World *world, int64_t level) {
    Tier *tier = &world->tiers[level];
    if (tier->goal_bytes == NONE) {
        tier->goal_bytes = tier_round_goal(world, level);
    }
    bool is_above = tier->live_bytes > tier->goal_bytes;
    if (is_above && tier->evict_ppm > 0) {
        is_above = tier->live_bytes - tier_victim_bytes(world, level) >= tier->goal_bytes;
    }
    if (is_above) {
        int64_t victim = policy_choose_victim(world, level, NONE);
        tier_evict(world, level, victim, tier->next_round_ns);
        return;
    }
    tier->goal_bytes = NONE;
    tier->next_round_ns = tier_is_at_trigger(tier) ? tier->next_round_ns + tier->evict_every_ns : 0;
}
