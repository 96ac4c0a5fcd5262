// The step of a request that stores what was computed, and the staging tier.
// What a request stores is offered to the tiers that the placement says, in one or more offers.
//
//     store_computed    the prompt, or a part of it, is computed
//     store_at_end      the request ends: what was generated, and what was refused before
//     store_populate    before the start: system prompts, documents, entries
//     -> place_offer
//        -> place_write_back     to the fastest tier that admits it, which demotes others
//        -> place_write_through  to every tier that admits it
//           -> store_queue_or_make_room    (background.c)
//           -> tier_write            (tiers.c)
//
// The staging tier (LMCache's local CPU backend) gives a buffer to everything that is stored, and
// to everything that is read from below it: nothing gets further than there are buffers.
#include "sim.h"

// World.chain_mark while objects are stored.
enum {
    MARK_NONE,
    MARK_STAGED, // It was written to the staging tier by this offer.
    MARK_CACHED, // It is not stored: some tier has it, or it was not computed.
};

// --- buffers of the staging tier

// Makes room in the staging tier for a buffer for `slot`, beside `taken_bytes` of other buffers.
// Evicts the least recent objects, but none that the request at hand reads there. Returns whether
// there is room.
static bool staging_make_buffer_room(World *world, int64_t level, int64_t slot, int64_t taken_bytes,
                                     int64_t now) {
    const Tier *tier = &world->tiers[level];
    int64_t size = object_size(world, slot);
    if (size > tier->largest_object_bytes) {
        return false;
    }
    bool is_full = tier->live_bytes + taken_bytes + size > tier->limit_bytes;
    int64_t tier_slot = list_of(world, level, 0)->tail;
    while (is_full && tier_slot != NONE) {
        int64_t newer = list_link_of(world, level, tier_slot)->newer;
        if (!(world->slots[tier_slot].held_by & held_by_tier(level))) {
            tier_delete(world, level, slot_of_object(world, level, tier_slot), now, PHASE_EVICT);
        }
        is_full = tier->live_bytes + taken_bytes + size > tier->low_bytes;
        tier_slot = newer;
    }
    // As in tier_has_room, one object may fill an empty tier past its limit.
    int64_t used_bytes = tier->live_bytes + taken_bytes;
    return used_bytes + size <= tier->limit_bytes || used_bytes == 0;
}

// Bytes in the staging tier, and of buffers there for loads that are in flight. These are known
// only where loads are limited.
static int64_t staging_used_bytes(World *world, int64_t level) {
    const Node *node = &world->fleet.nodes[world->control.node];
    return world->tiers[level].live_bytes + node->loading_bytes;
}

// Takes buffers for `chain[first:n]` without what is MARK_CACHED. Returns the end of those that get
// one. A staging tier with eviction rounds gives buffers to all of them or to none.
static int64_t staging_take_write_buffers(World *world, int64_t level, int64_t first, int64_t n,
                                          int64_t now) {
    const Tier *tier = &world->tiers[level];
    int64_t taken_bytes = 0;
    if (tier->evict_every_ns > 0) {
        for (int64_t i = first; i < n; i++) {
            int64_t slot = world->chain[i];
            int64_t size = object_size(world, slot);
            if (world->chain_mark[i] == MARK_CACHED) {
                continue;
            }
            if (size > tier->largest_object_bytes) {
                return first;
            }
            if (!tiers_include(world->slots[slot].live, level)) {
                taken_bytes += size;
            }
        }
        return staging_used_bytes(world, level) + taken_bytes <= tier->limit_bytes ? n : first;
    }
    for (int64_t i = first; i < n; i++) {
        if (world->chain_mark[i] == MARK_CACHED) {
            continue;
        }
        if (!staging_make_buffer_room(world, level, world->chain[i], taken_bytes, now)) {
            return i;
        }
        taken_bytes += object_size(world, world->chain[i]);
    }
    return n;
}

// Cuts `chain[:end]`, whose hit_level is known, to what may be read: with eviction rounds, all
// objects below the staging tier or none of them. The first `first` ones are read each by itself:
// those below become misses. Returns the new end.
int64_t staging_cut_reads(World *world, int64_t first, int64_t end) {
    int64_t level = world->knobs.staging - 1;
    const Tier *tier = &world->tiers[level];
    if (tier->evict_every_ns == 0) {
        return end;
    }
    int64_t needed_bytes = 0;
    int64_t cut = end;
    for (int64_t i = 0; i < end; i++) {
        if (world->hit_level[i] <= level) {
            continue;
        }
        needed_bytes += object_size(world, world->chain[i]);
        if (i >= first) {
            cut = min_of(cut, i);
        }
    }
    if (staging_used_bytes(world, level) + needed_bytes <= tier->limit_bytes) {
        return end;
    }
    for (int64_t i = 0; i < first; i++) {
        if (world->hit_level[i] > level) {
            world->hit_level[i] = NONE;
        }
    }
    return cut;
}

// Sets or clears the tier's hold of those of `chain[:end]` that were read in the staging tier.
static void staging_hold_reads(World *world, int64_t level, int64_t end, bool is_held) {
    int16_t hold = (int16_t)held_by_tier(level);
    for (int64_t i = 0; i < end; i++) {
        if (world->hit_level[i] != level || world->chain[i] < 0) {
            continue; // An object without a slot is in no list.
        }
        Slot *object = &world->slots[slot_in_tier(world, level, world->chain[i])];
        if (is_held) {
            object->held_by |= hold;
        } else {
            object->held_by &= (int16_t)~hold;
        }
    }
}

// Takes buffers for those of `chain[:end]` that were read below the staging tier. What the request
// read in the staging tier itself is not evicted for them. Returns the end of those with a buffer.
int64_t staging_take_read_buffers(World *world, int64_t end, int64_t now) {
    int64_t level = world->knobs.staging - 1;
    if (world->tiers[level].evict_every_ns > 0) {
        return end;
    }
    staging_hold_reads(world, level, end, true);
    int64_t taken_bytes = 0;
    int64_t i = 0;
    for (; i < end; i++) {
        if (world->hit_level[i] <= level) {
            continue;
        }
        if (!staging_make_buffer_room(world, level, world->chain[i], taken_bytes, now)) {
            break;
        }
        taken_bytes += object_size(world, world->chain[i]);
    }
    staging_hold_reads(world, level, end, false);
    return i;
}

// --- placing an offer

// Objects that are offered to the tiers together.
typedef struct {
    int64_t first; // The offer is chain[first:n].
    int64_t n;
    int64_t request;     // NONE before the start.
    int64_t stage;       // The stage of the next write.
    int64_t first_phase; // The phase of writes to the first tier that takes an object.
    int64_t other_phase; // The phase of writes to the tiers below that one.
} Offer;

static Cause offer_cause(World *world, const Offer *offer, int64_t phase) {
    return (Cause){world->control.now, phase, offer->request, offer->stage};
}

// Write-back: the fastest tier that admits `chain[i]`, or the one that has it if that is faster;
// NONE if none does.
static int64_t write_back_level(World *world, const Offer *offer, int64_t slot) {
    int64_t size = world->slots[slot].size;
    int64_t level = tier_first_accepting(world, 0, size);
    int64_t cached_level = object_fastest_level(world, slot, 0);
    if (level == NONE) {
        world->total.unplaced++;
    } else if (cached_level != NONE && world->knobs.is_exclusive) {
        level = cached_level;
    }
    while (level != NONE && level != cached_level && offer->first_phase != PHASE_POPULATE &&
           !admission_admits(world, level, slot, world->control.now)) {
        level = tier_first_accepting(world, level + 1, size);
    }
    return level;
}

// Write-back: writes each object to the fastest tier that takes it, which demotes others for it.
// What a tier has already is used, and not written again.
static void place_write_back(World *world, Offer *offer) {
    stage_begin(world);
    for (int64_t i = offer->first; i < offer->n; i++) {
        int64_t slot = world->chain[i];
        int64_t cached_level = object_fastest_level(world, slot, 0);
        int64_t level = write_back_level(world, offer, slot);
        if (level == NONE) {
            continue;
        }
        if (level != cached_level) {
            tier_make_room_by_demotion(world, level, slot, world->control.now);
        }
        tier_use_in_order(world, level, i);
        if (level == cached_level) {
            tier_hit(world, level, slot);
            continue;
        }
        int64_t limit = world->tiers[level].request_writes;
        offer->stage = stage_next(world, offer->stage, level, limit);
        const Cause cause = offer_cause(world, offer, offer->first_phase);
        tier_write(world, level, slot, &cause);
    }
    offer->stage += world->control.is_stage_used;
}

// Makes room for the offer in the tier that stores offers whole, if there is one. Returns the level
// from which on no tier stores the offer: all levels do if it is taken.
static int64_t place_make_room_whole(World *world, const Offer *offer) {
    Control *control = &world->control;
    int64_t previous_offer = control->offer;
    int64_t level = 0;
    control->offer = 0;
    control->is_refused = 0;
    while (level < world->tiers_count && !world->tiers[level].takes_whole_offers) {
        level++;
    }
    if (level == world->tiers_count) {
        return level;
    }
    world->total.offers++;
    if (tier_make_room_for_offer(world, level, offer->first, offer->n, previous_offer,
                                 control->now)) {
        control->offer = control->offers;
        return world->tiers_count;
    }
    control->is_refused = 1;
    world->total.refused_offers++;
    world->total.refused_objects += offer->n - offer->first;
    return level;
}

// How one tier treats one object of an offer.
typedef struct {
    int64_t level;
    int64_t phase;
    bool is_open; // The object may be written here.
    bool is_use;  // If the tier has the object already, that counts as a use.
} Placement;

// Whether a tier takes `slot` now. Most tiers take all for which they can make room.
INLINE bool place_make_room(World *world, int64_t level, int64_t slot, int64_t now, int64_t phase) {
    const Knobs *knobs = &world->knobs;
    if (tiers_include(knobs->queued_tiers | knobs->filtered_tiers, level)) {
        return store_queue_or_make_room(world, level, slot, now, phase);
    }
    return tier_make_room(world, level, slot, now);
}

// Writes `chain[i]` to a tier, unless the tier has it or does not admit it. The staging tier takes
// all for which it has a buffer.
static void place_in_tier(World *world, Offer *offer, int64_t i, Placement placement) {
    int64_t level = placement.level;
    int64_t slot = world->chain[i];
    int64_t now = world->control.now;
    bool is_staging = level == world->knobs.staging - 1;
    if (tiers_include(world->slots[slot].live, level)) {
        if (placement.is_use) {
            tier_use_in_order(world, level, i);
            tier_hit(world, level, slot);
        }
        return;
    }
    if (!placement.is_open || lease_queues_for(world, level)) {
        return;
    }
    if (!is_staging && !place_make_room(world, level, slot, now, placement.phase)) {
        if (world->tiers[level].lease_ns) {
            lease_wait(world, level, slot);
        }
        return;
    }
    if (is_staging && world->tiers[level].stores_backwards) {
        tier_use_behind(world, level, i, offer->first, MARK_STAGED);
        world->chain_mark[i] = MARK_STAGED;
    } else {
        tier_use_in_order(world, level, i);
    }
    offer->stage = stage_next(world, offer->stage, level, world->tiers[level].request_writes);
    Cause cause = offer_cause(world, offer, placement.phase);
    tier_write(world, level, slot, &cause);
    if (world->tiers[level].lease_ns) {
        lease_queue_below(world, level, slot, &cause);
    }
}

// Whether finding an object in a tier counts as a use, where there is a staging tier: the staging
// tier frees the buffer and leaves the object as it was, the others count it.
static bool staging_is_use(World *world, int64_t level) {
    bool is_staging = level == world->knobs.staging - 1;
    return !is_staging && !tiers_include(world->control.unreachable_tiers, level);
}

// Write-through: writes each object to the fastest tier that takes it, and a stage later to all
// tiers below that one. Objects without a buffer of the staging tier, and offers that a tier
// refused, only come to the tiers above that tier.
static void place_write_through(World *world, Offer *offer) {
    Control *control = &world->control;
    int64_t staging_level = world->knobs.staging - 1;
    bool has_staging = staging_level >= 0;
    int64_t previous_offer = control->offer;
    for (int64_t i = offer->first; i < offer->n; i++) {
        // A hit is offered for the tiers below GPU memory. Of a hit chunk of several objects, one
        // that was not needed may be in no tier.
        bool is_hit = i < control->known_objects;
        int64_t tiers = object_reachable_tiers(world, world->chain[i]);
        bool is_cached = world->knobs.skips_held && tiers & (is_hit ? ~1 : ~0);
        bool is_absent = is_hit && world->groups_count && !tiers;
        world->chain_mark[i] = is_cached || is_absent ? MARK_CACHED : MARK_NONE;
    }
    int64_t buffered_end = offer->first;
    int64_t closed_level = staging_level;
    if (has_staging) {
        buffered_end =
            staging_take_write_buffers(world, staging_level, offer->first, offer->n, control->now);
    } else {
        closed_level = place_make_room_whole(world, offer);
    }

    stage_begin(world);
    for (int64_t i = offer->first; i < offer->n; i++) {
        if (world->chain_mark[i] == MARK_CACHED) {
            continue;
        }
        int64_t level = tier_first_accepting(world, 0, world->slots[world->chain[i]].size);
        bool is_open = i < buffered_end || level < closed_level;
        if (level == NONE || (has_staging && !is_open)) {
            world->total.unplaced++;
            continue;
        }
        bool is_new = i >= control->known_objects;
        Placement placement = {.level = level,
                               .phase = offer->first_phase,
                               .is_open = is_open,
                               .is_use = has_staging ? staging_is_use(world, level) : is_new};
        place_in_tier(world, offer, i, placement);
    }
    offer->stage += control->is_stage_used;

    stage_begin(world);
    for (int64_t i = offer->first; i < offer->n; i++) {
        if (world->chain_mark[i] == MARK_CACHED) {
            continue;
        }
        int64_t first_level = tier_first_accepting(world, 0, world->slots[world->chain[i]].size);
        if (first_level == NONE) {
            continue;
        }
        int64_t end_level = i < buffered_end ? world->tiers_count : closed_level;
        for (int64_t level = first_level + 1; level < end_level; level++) {
            Placement placement = {.level = level,
                                   .phase = offer->other_phase,
                                   .is_open = true,
                                   .is_use = has_staging && staging_is_use(world, level)};
            place_in_tier(world, offer, i, placement);
        }
    }
    offer->stage += control->is_stage_used;

    int64_t whole_tier = world->knobs.whole_tier;
    if (world->tiers[whole_tier].on_stored) {
        world->tiers[whole_tier].on_stored(world, whole_tier, control->chain_length,
                                           previous_offer);
    }
}

// Writes an offer to the tiers that the placement says.
static void place_offer(World *world, Offer *offer) {
    if (world->knobs.is_write_back) {
        place_write_back(world, offer);
    } else {
        place_write_through(world, offer);
    }
}

// --- before the start

// Writes the next item that is there before the start. After the last of a node, the tiers are not
// busy with any of it.
void store_populate(World *world) {
    Control *control = &world->control;
    const Item *item = &world->items[control->populated];
    for (int64_t i = 0; i < item->objects; i++) {
        world->chain[i] = item->first_slot + i;
    }
    control->offer = 0;
    control->chain_length = item->objects;
    slot_refresh_chain(world, item->objects);
    Offer offer = {.first = 0,
                   .n = item->objects,
                   .request = NONE,
                   .stage = 0,
                   .first_phase = PHASE_POPULATE,
                   .other_phase = PHASE_POPULATE};
    place_offer(world, &offer);
    control->populated++;
    if (control->populated < world->items_count) {
        return;
    }
    for (int64_t level = 0; level < world->tiers_count; level++) {
        Tier *tier = &world->tiers[level];
        tier->busy_until_ns[OP_READ] = 0;
        tier->busy_until_ns[OP_WRITE] = 0;
        tier->populated_bytes = tier->written_bytes;
    }
    do {
        control->populating_node++;
    } while (control->populating_node < world->fleet.count &&
             !fleet_is_up(world, control->populating_node));
    if (control->populating_node < world->fleet.count) {
        control->populated = world->knobs.prompts;
    }
}

// --- the offers of a request

// Offers `chain[first:n]`; of a request with retrieved documents as many at a time as a step
// computes, until it ends. What is refused is offered again with the next ones.
static void store_offer(World *world, int64_t actor_id, int64_t first, int64_t n,
                        int64_t first_phase, int64_t other_phase) {
    Actor *actor = &world->actors[actor_id];
    Control *control = &world->control;
    const Knobs *knobs = &world->knobs;
    int64_t objects = n - first;
    if (knobs->offer_tokens > 0 && actor->retrieved_objects && actor->step != STEP_END) {
        objects = max_of(knobs->chunk_objects, objects_of_tokens(world, knobs->offer_tokens));
    }
    if (n == first) {
        actor->offer = 0;
    }
    int64_t not_taken = first;
    int64_t end = first;
    if (world->waiting_stores_count > 0) {
        lease_store_waiting(world, control->now);
        slot_refresh_chain(world, control->chain_length);
    }
    while (end < n) {
        end = min_of(n, end + objects);
        control->offer = actor->offer;
        Offer offer = {.first = not_taken,
                       .n = end,
                       .request = actor->request,
                       .stage = actor->stage,
                       .first_phase = first_phase,
                       .other_phase = other_phase};
        place_offer(world, &offer);
        actor->stage = offer.stage;
        actor->offer = control->offer;
        if (!control->is_refused) {
            not_taken = end;
        }
    }
    actor->refused_objects = n - not_taken;
    if (actor->retrieved_objects) {
        actor->refused_objects = min_of(actor->refused_objects, actor->new_objects);
    }
}

// How many of the request's new objects are computed. Before the end, none is if objects are turns.
static int64_t store_computed_objects(World *world, const Actor *actor) {
    if (actor->computed_tokens <= 0) {
        return 0;
    }
    return min_of(actor->new_objects, objects_of_tokens(world, actor->computed_tokens));
}

// Moves the shared objects that must be stored, and behind them those from `first_own` on, to the
// start of `chain`. These are retrieved documents that no tier has, and without prefix match a
// system prompt likewise; with PREFILL_ONLY, which looks nothing up, all of them. (A prefix match
// counts missed shared objects as new ones already.) Returns the end.
static int64_t store_prepend_shared(World *world, int64_t shared, int64_t first_own) {
    int64_t end = world->control.chain_length;
    int64_t n = 0;
    for (int64_t i = 0; i < shared; i++) {
        int64_t entry = world->chain[i];
        bool is_stored = world->knobs.mode == PREFILL_ONLY;
        if (is_stored || object_fastest_level(world, entry, 0) == NONE) {
            world->chain[n++] = entry;
        }
    }
    for (int64_t i = first_own; i < end; i++) {
        world->chain[n++] = world->chain[i];
    }
    return n;
}

// The first token of a request: records its TTFT, and lets the request decode.
static void store_end_prefill(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    Control *control = &world->control;
    if (!actor->has_first_token) {
        actor->first_token_ns = actor->arrival_ns + actor->ttft_ns;
    }
    if (world->first_tokens_count && !actor->has_first_token) {
        if (control->answered == world->first_tokens_count) {
            schedule_ask_python(world, FLUSH, 1);
        }
        world->first_tokens[control->answered++] = (FirstToken){actor->request, actor->ttft_ns};
    }
    actor->has_first_token = 1;
    if (world->knobs.step_tokens) {
        batch_change(world, 0, 0); // Decode steps are shorter without the prompt.
    }
    actor->new_objects = 0;
    actor->decode_reads = 0;
    actor->reads_done_ns = 0;
    actor->join_step = NONE;
    Node *node = &world->fleet.nodes[actor->node];
    node->prefilling_tokens -= actor->missed_tokens;
    node->waiting--;
    if (world->fleet.entry_nodes < world->fleet.count) {
        actor->reads_done_ns = control->now + fleet_hand_over(world, actor_id);
    }
    actor->step = STEP_DECODE;
}

// Stores the objects that were computed. Returns how long the prompt's next part is computed, or 0
// after the last: the first token is there.
int64_t store_computed(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    const Knobs *knobs = &world->knobs;
    Control *control = &world->control;
    answer_catch_up(world);
    int64_t n = prompt_gather(world, actor_id);
    int64_t first_new = n - actor->new_objects;
    int64_t first = first_new + store_computed_objects(world, actor) - actor->refused_objects;
    int64_t generated = 0;
    if (actor->computed_tokens == 0) {
        generated = answer_generated_hits(world, actor, first_new);
        first -= generated;
    }
    if (knobs->offers_hits && actor->computed_tokens == 0 && knobs->mode != DECODE_ONLY) {
        first = 0;
    }
    if (request_is_stepwise(world, actor_id)) {
        int64_t computed = actor->computed_tokens + knobs->offer_tokens;
        actor->computed_tokens = min_of(actor->missed_tokens, computed);
    } else {
        actor->computed_tokens = actor->missed_tokens;
    }
    bool is_last = actor->computed_tokens == actor->missed_tokens;
    int64_t end = is_last ? n : first_new + store_computed_objects(world, actor);
    prompt_unpack(world, actor_id, first, end);
    control->known_objects = first_new;
    int64_t shared = actor->retrieved_objects + (knobs->is_prefix ? 0 : actor->shared_objects);
    if (shared && knobs->mode != DECODE_ONLY) {
        first = 0;
        end = store_prepend_shared(world, shared, first_new - generated);
        control->known_objects = 0;
    }
    store_offer(world, actor_id, first, end, PHASE_PREFILL, PHASE_STORE);
    if (!is_last) {
        int64_t done = actor->input_tokens - actor->missed_tokens + actor->computed_tokens;
        int64_t next = min_of(actor->input_tokens, done + knobs->offer_tokens);
        return compute_prefill_ns(world, done, next);
    }
    store_end_prefill(world, actor_id);
    return 0;
}

// Stores, as a request ends, the objects that generated tokens have filled, and those of the prompt
// that were refused.
void store_at_end(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    int64_t generated = actor->new_objects; // 0 if what was generated is not stored
    int64_t named = actor->named_answers;
    if (generated + actor->refused_objects == 0) {
        return;
    }
    if (generated > named) {
        actor->new_objects = generated - named;
        actor->named_answers = 0; // They are the request's own already.
        prompt_make_objects(world, actor_id);
    }
    int64_t n = prompt_gather(world, actor_id);
    int64_t first = n - max_of(generated, named) - actor->refused_objects;
    if (!generated) {
        n -= named;
    }
    prompt_unpack(world, actor_id, first, n);
    world->control.known_objects = 0;
    if (actor->refused_objects) {
        store_offer(world, actor_id, first, n, PHASE_PREFILL, PHASE_STORE);
    } else {
        store_offer(world, actor_id, first, n, PHASE_DECODE, PHASE_DECODE);
    }
    actor->new_objects = 0;
    actor->refused_objects = 0;
}
