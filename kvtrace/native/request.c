// A request from its arrival to its end.
// Each step does its reads and writes, and returns how long the actor waits until the next step.
//
//     request_enqueue   makes the request's objects, chooses its node, queues it for prefill
//     request_load      looks its objects up and reads the hits
//     request_prefill   promotes what was loaded, and computes the rest of the prompt
//     store_computed    writes what was computed (store.c); the first token is there
//     request_decode    generates the answer; some presets read the entry again meanwhile
//     request_end       frees what it holds
//
// Time to first token (TTFT), from the arrival to the end of the prefill:
//
//     TTFT = queueing                                     request_load: until its turn and memory
//          + load of the hits                             request_load: tier_serve_load
//          + wait until the node has computed the others  request_prefill
//          + prefill of the missed tokens                 request_prefill: compute_first_token_ns
#include "sim.h"

// --- queue

// Appends the actor to the prefill queue of the node at hand; returns whether it is the first.
static bool request_join_queue(World *world, int64_t actor_id) {
    Node *node = &world->fleet.nodes[world->control.node];
    bool is_first = node->first_queued == 0;
    if (is_first) {
        node->first_queued = 1 + actor_id;
    } else {
        world->actors[node->last_queued - 1].next_queued = 1 + actor_id;
    }
    node->last_queued = 1 + actor_id;
    world->actors[actor_id].next_queued = 0;
    return is_first;
}

// Makes the objects of a request that arrives, sends it to a node, and queues it there if the node
// computes one prompt at a time.
int64_t request_enqueue(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    Total *total = &world->total;
    if (world->control.open_nodes == 0) {
        return fleet_until_open(world);
    }
    if (world->knobs.source == CHAINS) {
        prompt_make_chunks(world, actor_id);
    } else {
        if (!actor->restarts) {
            actor->made_objects = actor->new_objects;
        }
        prompt_make_objects(world, actor_id);
    }
    if (world->fleet.count > 1) {
        fleet_route(world, actor_id, prompt_collect(world, actor_id));
    }
    if (actor->restarts == 0) {
        total->requests++;
        total->input_tokens += actor->input_tokens;
        total->output_tokens += actor->output_tokens;
    }
    actor->step = STEP_LOAD;
    actor->ready_ns = world->control.now;
    if (!world->knobs.prefill_in_turn) {
        return 0;
    }
    return request_join_queue(world, actor_id) ? 0 : WAITS;
}

// Removes the first actor from the prefill queue, and lets the next one look up.
static void request_leave_queue(World *world, const Actor *actor) {
    Control *control = &world->control;
    world->fleet.nodes[control->node].first_queued = actor->next_queued;
    if (actor->next_queued) {
        int64_t next = actor->next_queued - 1;
        event_push(world->heap, control->heap_size++, control->now, next);
    }
}

// --- lookup

// How many of `known` objects of its context a request may load: with recomputes_last all but the
// one that has the prompt's last token.
static int64_t request_loadable(World *world, const Actor *actor, int64_t known) {
    const Knobs *knobs = &world->knobs;
    if (!knobs->recomputes_last || !actor->input_tokens) {
        return known;
    }
    int64_t whole_objects = objects_of_tokens(world, actor->input_tokens - 1);
    return min_of(known, actor->retrieved_objects + whole_objects);
}

// Whether a prompt is too short to be looked up below the fastest tier: its whole chunks count.
static bool request_is_declined(World *world, const Actor *actor) {
    const Knobs *knobs = &world->knobs;
    int64_t looked_up_tokens = 0;
    if (knobs->min_lookup_tokens) {
        looked_up_tokens = actor->input_tokens / knobs->chunk_tokens * knobs->chunk_tokens;
    }
    return looked_up_tokens < knobs->min_lookup_tokens;
}

// Finds the fastest tier of each of `chain[:known]`, into `hit_level`; returns the end of those
// that may be loaded.
//
//     retrieved objects (the first `retrieved`): each by itself
//     others: to the first miss, with is_prefix; else all
//     with is_by_tier no object is taken from a faster tier than the one before it
//     a run below the fastest tier that is shorter than `min_load_tokens` is not loaded
static int64_t request_lookup(World *world, int64_t retrieved, int64_t known,
                              int64_t min_load_tokens) {
    const Knobs *knobs = &world->knobs;
    if (world->groups_count && knobs->is_prefix) {
        return group_lookup(world, retrieved, known, min_load_tokens);
    }
    for (int64_t i = 0; i < retrieved; i++) {
        world->hit_level[i] = (int8_t)object_fastest_level(world, world->chain[i], 0);
    }
    int64_t end = retrieved;
    int64_t first_below = NONE;
    int64_t from_level = 0;
    for (; end < known; end++) {
        int64_t level = object_fastest_level(world, world->chain[end], from_level);
        world->hit_level[end] = (int8_t)level;
        if (knobs->is_by_tier) {
            from_level = max_of(from_level, level);
        }
        if (level == NONE && knobs->is_prefix) {
            break;
        }
        if (level != 0 && first_below < 0) {
            first_below = end;
        }
    }
    // A short run from below is not worth its load: the engine computes these tokens again.
    if (first_below >= 0 && (end - first_below) * knobs->chunk_tokens < min_load_tokens) {
        end = first_below;
    }
    return knobs->staging ? staging_cut_reads(world, retrieved, end) : end;
}

// For each tier that looks up past a miss, counts the objects from the first that tier 0 lacks on,
// without those that a tier between the two has.
static void request_count_past_miss(World *world, const Actor *actor) {
    int64_t n = actor->retrieved_objects + actor->shared_objects + actor->own_objects;
    int64_t first = 0;
    while (first < n && object_is_in(world, world->chain[first], 0)) {
        first++;
    }
    for (int64_t level = 0; level < world->tiers_count; level++) {
        Tier *tier = &world->tiers[level];
        bool is_unreachable = tiers_include(world->control.unreachable_tiers, level);
        if (!tier->looks_past_miss || is_unreachable) {
            continue;
        }
        int64_t between_tiers = ((1 << level) - 1) & ~1;
        for (int64_t i = first; i < n; i++) {
            tier->file_lookups += !(object_live_tiers(world, world->chain[i]) & between_tiers);
        }
    }
}

// Adds the lookup of a request to the counters.
static void request_count_lookups(World *world, const Actor *actor, int64_t lookups) {
    Total *total = &world->total;
    total->lookups += lookups / world->knobs.chunk_objects;
    if (world->knobs.looks_past_miss) {
        request_count_past_miss(world, actor);
    }
    for (int64_t i = 0; i < lookups; i++) {
        total->lookup_bytes += object_size(world, world->chain[i]);
    }
    int64_t documents = actor->retrieved_objects;
    int64_t prompt = world->knobs.mode != DECODE_ONLY ? actor->shared_objects : 0;
    total->document_lookups += documents / world->knobs.chunk_objects;
    total->prompt_lookups += prompt / world->knobs.chunk_objects;
    int64_t end = min_of(actor->hit_end, documents + prompt);
    for (int64_t i = 0; i < end; i += world->knobs.chunk_objects) {
        bool is_own = i >= documents;
        if (chunk_hit_level(world, i, is_own && world->knobs.is_prefix) == NONE) {
            continue;
        }
        if (is_own) {
            total->prompt_hits++;
        } else {
            total->document_hits++;
        }
    }
}

// --- load

// The outcome of reading the hits of a request.
typedef struct {
    int64_t done_ns;    // When the last read is done.
    int64_t hit_tokens; // Prompt tokens that need not be computed.
} LoadOutcome;

// The row of a read of `chain[i]` that a request loads.
static RowSpec request_load_row(World *world, const Actor *actor, int64_t i) {
    int64_t entry = world->chain[i];
    int64_t retrieved = actor->retrieved_objects;
    return (RowSpec){.now = world->control.now,
                     .op = OP_READ,
                     .level = world->hit_level[i],
                     .phase = i < retrieved ? PHASE_RETRIEVE : PHASE_LOAD,
                     .entry = entry,
                     .size = object_size(world, entry),
                     .request = actor->request};
}

// In tiers that count loads backwards, or both ways, the last loaded object counts as used first.
static void request_use_backwards(World *world, int64_t end) {
    for (int64_t i = end - 1; i >= 0; i--) {
        int64_t level = world->hit_level[i];
        if (level == NONE) {
            continue;
        }
        if (world->tiers[level].loads_backwards || world->tiers[level].loads_twice) {
            tier_hit(world, level, world->chain[i]);
        }
    }
}

// Counts the hits of `chain[:end]` by tier, where chunks are several objects; returns how many
// there are. A chunk is a hit of the slowest tier that it is read from. The first `retrieved` are
// hits by themselves.
static int64_t request_count_tier_hits(World *world, int64_t retrieved, int64_t end) {
    int64_t hits = 0;
    for (int64_t i = 0; i < end; i += world->knobs.chunk_objects) {
        bool is_of_prefix = i >= retrieved && world->knobs.is_prefix;
        int64_t level = chunk_hit_level(world, i, is_of_prefix);
        if (level != NONE) {
            world->tiers[level].hits++;
            hits++;
        }
    }
    return hits;
}

// Reads each of `chain[:end]` from the tier that has it.
//
// Retrieved objects are a stage of their own. Then each group of layers is a stage: the first
// layers can be used while the next are read.
static LoadOutcome request_read_hits(World *world, Actor *actor, int64_t end) {
    const Knobs *knobs = &world->knobs;
    int64_t now = world->control.now;
    int64_t retrieved = actor->retrieved_objects;
    int64_t done_ns = now;
    int64_t hits = 0;
    int64_t hit_bytes = 0;
    int64_t own_hits = 0;
    for (int64_t level = 0; level < world->tiers_count; level++) {
        Tier *tier = &world->tiers[level];
        tier->parallel_reads = 0;
        tier->reads_began_ns = now;
        tier->reads_end_ns = now;
    }
    stage_begin(world);
    if (knobs->loads_backwards) {
        request_use_backwards(world, end);
    }
    for (int64_t i = 0; i < end; i++) {
        int64_t level = world->hit_level[i];
        if (level == NONE) {
            continue;
        }
        Tier *tier = &world->tiers[level];
        RowSpec row = request_load_row(world, actor, i);
        if (!tier->loads_backwards) {
            tier_use_in_order(world, level, i);
            tier_hit(world, level, row.entry);
        }
        tier->read_bytes += row.size * tier->readers;
        tier->hit_bytes += row.size;
        hit_bytes += row.size;
        if (knobs->chunk_objects == 1) {
            tier->hits++;
            hits++;
        }
        int64_t read_done_ns = tier_serve_load(world, level, row.size, now);
        tier_pin(world, row.entry, read_done_ns);
        done_ns = max_of(done_ns, read_done_ns);
        own_hits += i >= retrieved;
        if (i < retrieved) {
            actor->stage = stage_next(world, actor->stage, level, tier->request_reads);
            row.stage = actor->stage;
            row_emit(world, &row);
        }
    }
    actor->stage += world->control.is_stage_used;
    int64_t layers = own_hits ? knobs->layers : 0;
    for (int64_t layer = 0; layer < layers; layer++) {
        stage_begin(world);
        for (int64_t i = retrieved; i < end; i++) {
            int64_t level = world->hit_level[i];
            if (level == NONE) {
                continue;
            }
            RowSpec row = request_load_row(world, actor, i);
            int64_t limit = world->tiers[level].request_reads;
            actor->stage = stage_next(world, actor->stage, level, limit);
            row.stage = actor->stage;
            row_emit_layer(world, &row, layer);
        }
        actor->stage += world->control.is_stage_used;
    }
    if (knobs->chunk_objects > 1) {
        hits = request_count_tier_hits(world, retrieved, end);
    }
    LoadOutcome outcome = {.done_ns = done_ns, .hit_tokens = hits * knobs->chunk_tokens};
    if (!knobs->chunk_tokens) {
        outcome.hit_tokens = hit_bytes / knobs->bytes_per_token;
    }
    return outcome;
}

// Evicts those of `chain[:end]` from a tier that promoting the rest of the prompt would evict from
// it anyway: they come back from below, too. Such an engine brings all of a prompt up before it
// loads any of it, and marks it as used only then.
static void request_evict_own(World *world, int64_t level, int64_t end) {
    Tier *tier = &world->tiers[level];
    int64_t needed_bytes = 0;
    int64_t below_bytes = 0;
    // Slot.was_loaded marks the objects of the prompt here. ALWAYS_PROMOTE, the only promotion with
    // which this is called, has no other use for it.
    for (int64_t i = 0; i < end; i++) {
        int64_t entry = world->chain[i];
        bool is_repeated = entry >= 0 && world->slots[entry].was_loaded;
        if (world->hit_level[i] < level || is_repeated) {
            continue;
        }
        if (entry >= 0) {
            world->slots[entry].was_loaded = 1;
        }
        needed_bytes += object_size(world, entry);
        if (world->hit_level[i] > level) {
            below_bytes += object_size(world, entry);
        }
    }
    int64_t missing_bytes = tier->live_bytes - tier->limit_bytes + below_bytes;
    bool can_fit = below_bytes && needed_bytes <= tier->limit_bytes;
    int64_t tier_slot = can_fit ? list_of(world, level, 0)->tail : NONE;
    while (missing_bytes > 0 && tier_slot != NONE) {
        int64_t newer = list_link_of(world, level, tier_slot)->newer;
        int64_t slot = slot_of_object(world, level, tier_slot);
        if (!world->slots[slot].was_loaded) {
            missing_bytes -= world->slots[tier_slot].size;
        } else if (object_fastest_level(world, slot, level + 1) == NONE) {
            break;
        } else {
            tier_delete(world, level, slot, world->control.now, PHASE_EVICT);
        }
        tier_slot = newer;
    }
    for (int64_t i = 0; i < end; i++) {
        int64_t entry = world->chain[i];
        if (world->hit_level[i] < level || entry < 0) {
            continue;
        }
        world->slots[entry].was_loaded = 0;
        if (world->hit_level[i] == level && !object_is_in(world, entry, level)) {
            world->hit_level[i] = (int8_t)object_fastest_level(world, entry, level + 1);
        }
    }
}

// Prepares the tiers for the load of `chain[:end]` of `n` objects.
static void request_prepare_tiers(World *world, int64_t n, int64_t end) {
    const Knobs *knobs = &world->knobs;
    bool promotes_all = knobs->promotion == ALWAYS_PROMOTE && !knobs->staging;
    for (int64_t level = 0; level < world->tiers_count; level++) {
        const Tier *tier = &world->tiers[level];
        if (tier->on_lookup) {
            tier->on_lookup(world, level, n, end);
        }
        if (tier->lease_ns) {
            lease_grant_looked_up(world, end, n);
        }
        bool is_plain_lru = !tier->on_hit && !tiers_include(knobs->bucketed_tiers, level) &&
                            !tier_is_endless(world, level);
        if (tier->loads_whole && promotes_all && is_plain_lru) {
            request_evict_own(world, level, end);
        }
    }
}

// Counts that the request has waited for the GPU until now. From `next_ready_ns` on it could be
// computed.
static void request_count_wait(World *world, Actor *actor, int64_t next_ready_ns) {
    world->total.waiting_ns += world->control.now - actor->ready_ns;
    actor->ready_ns = next_ready_ns;
}

// Whether a request of the objects `chain[:n]` may begin to load. As LMCache's prefetch controller
// has it, requests are admitted in order of arrival, and any one if no other loads:
//
//     fewer than loads_at_once requests load
//     their buffers are less than loads_limit_bytes
//     and all that the fastest tier lacks of the prompt has room beside them
static bool request_may_load(World *world, int64_t n) {
    const Knobs *knobs = &world->knobs;
    const Node *node = &world->fleet.nodes[world->control.node];
    if (node->loading_requests == 0) {
        return true;
    }
    if (knobs->loads_at_once && node->loading_requests >= knobs->loads_at_once) {
        return false;
    }
    if (!knobs->loads_limit_bytes) {
        return true;
    }
    const Tier *tier = &world->tiers[knobs->staging - 1];
    int64_t first = 0;
    int64_t needed_bytes = 0;
    while (first < n && object_is_in(world, world->chain[first], 0)) {
        first++;
    }
    for (int64_t i = first; i < n; i++) {
        needed_bytes += object_size(world, world->chain[i]);
    }
    int64_t free_bytes = tier->full_bytes - tier->live_bytes - node->loading_bytes;
    return node->loading_bytes < knobs->loads_limit_bytes && needed_bytes <= free_bytes;
}

// Notes that an actor's loads of `chain[:end]` are in flight, if any comes from below the staging
// tier.
static void request_begin_load(World *world, Actor *actor, int64_t end) {
    int64_t staging_level = world->knobs.staging - 1;
    Node *node = &world->fleet.nodes[world->control.node];
    for (int64_t i = 0; i < end; i++) {
        if (world->hit_level[i] > staging_level) {
            actor->loading_bytes += object_size(world, world->chain[i]);
        }
    }
    node->loading_requests += actor->loading_bytes > 0;
    node->loading_bytes += actor->loading_bytes;
}

// The loads of an actor are done. The first of the node's queue, if it waits for that, tries again.
static void request_end_load(World *world, Actor *actor) {
    if (!actor->loading_bytes) {
        return;
    }
    Control *control = &world->control;
    Node *node = &world->fleet.nodes[control->node];
    node->loading_requests--;
    node->loading_bytes -= actor->loading_bytes;
    actor->loading_bytes = 0;
    if (node->is_load_full) {
        event_push(world->heap, control->heap_size++, control->now, node->first_queued - 1);
    }
    node->is_load_full = 0;
}

// Looks the request's objects up and reads the hits; returns the time until the last read is done.
//
// Where a node computes one prompt at a time, prompts are looked up in turn, as schedulers do it:
// once those before are computed. It looks up 1 ns after the node is free, so that it finds what
// was stored at that instant. That nanosecond is not counted: `ready_ns` stays as it was, unless
// the request then waits for GPU memory.
int64_t request_load(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    const Knobs *knobs = &world->knobs;
    Node *node = &world->fleet.nodes[world->control.node];
    int64_t now = world->control.now;
    int64_t busy_until_ns = node->prefill_busy_until_ns;
    if (knobs->prefill_in_turn && busy_until_ns && busy_until_ns >= now) {
        return busy_until_ns + 1 - now;
    }

    // Lookup: of all objects but those that this request makes.
    answer_catch_up(world);
    int64_t n = prompt_gather(world, actor_id);
    int64_t old_objects = actor->own_objects - actor->new_objects;
    if (actor->restarts && !knobs->is_prefix) {
        old_objects -= actor->made_objects; // They were lost with the node that made them.
    }
    int64_t known = actor->retrieved_objects + actor->shared_objects + old_objects;
    int64_t end = 0;
    if (knobs->mode != PREFILL_ONLY) {
        int64_t loadable = request_loadable(world, actor, known);
        bool is_declined = request_is_declined(world, actor);
        int64_t min_load_tokens = is_declined ? INT64_MAX : knobs->min_load_tokens;
        end = request_lookup(world, actor->retrieved_objects, loadable, min_load_tokens);
        for (int64_t i = 0; is_declined && i < actor->retrieved_objects; i++) {
            world->hit_level[i] = world->hit_level[i] == 0 ? 0 : (int8_t)NONE;
        }
    }
    // Decoding reads the last object again, if it is the request's own.
    bool has_entry = actor->own_objects > 0 || (knobs->mode == DECODE_ONLY && n > 0);
    actor->decode_entry = has_entry ? world->chain[n - 1] : NONE;

    // Its turn has come, if the loads of others leave it room, and there is memory for it.
    bool limits_loads = knobs->loads_at_once || knobs->loads_limit_bytes;
    if (limits_loads && !request_may_load(world, n)) {
        node->is_load_full = 1;
        return WAITS;
    }
    if (!gpu_reserve(world, actor_id, end)) {
        return WAITS;
    }
    if (knobs->prefill_in_turn) {
        request_leave_queue(world, actor);
    }
    if (now > max_of(busy_until_ns, actor->ready_ns) + 1) {
        request_count_wait(world, actor, now);
    }
    actor->hit_end = end;
    actor->computed_tokens = 0;
    actor->refused_objects = 0;
    actor->offer = 0;
    node->prefilling_tokens -= actor->missed_tokens; // as its router expected

    // Load: the hits are read.
    LoadOutcome load = {.done_ns = now, .hit_tokens = 0};
    int64_t lookups = 0;
    if (knobs->mode != PREFILL_ONLY) {
        request_prepare_tiers(world, n, end);
        load = request_read_hits(world, actor, end);
        lookups = knobs->is_prefix ? n : known;
        request_count_lookups(world, actor, lookups);
    }

    // What a prefix match leaves, or a turn adds, is computed and stored. Of a prompt that is all
    // cached the last token is computed again, because it gives the first token of the answer.
    actor->new_objects = n - (knobs->is_prefix ? end : known);
    bool has_prompt = actor->input_tokens > 0;
    actor->missed_tokens = max_of(has_prompt, actor->input_tokens - load.hit_tokens);
    if (knobs->mode == DECODE_ONLY) {
        actor->new_objects = 0;
        actor->missed_tokens = 0;
    }
    world->total.missed_tokens += actor->missed_tokens;
    if (world->fleet.count > 1 || world->lookup_outcomes_count) {
        fleet_count_lookup(world, actor_id, end, lookups);
    }

    if (load.done_ns > now) {
        request_count_wait(world, actor, load.done_ns);
        if (limits_loads) {
            request_begin_load(world, actor, end);
        }
    }
    actor->step = STEP_PREFILL;
    return load.done_ns - now;
}

// --- promotion

// The tiers to which `chain[i]` is promoted from `source`: from this level up to the fastest.
static int64_t promotion_level(World *world, int64_t source, int64_t size) {
    const Knobs *knobs = &world->knobs;
    int64_t level = knobs->promotion == TEMPORARY ? 0 : source - 1;
    if (!knobs->is_exclusive) {
        return level;
    }
    while (level > 0 && size > world->tiers[level].largest_object_bytes) {
        level--;
    }
    return level;
}

// Copies each of `chain[:end]` from its hit_level to faster tiers. The first `staged` objects have
// buffers in the staging tier, if there is one; the others do not come to it.
static void request_copy_up(World *world, Actor *actor, int64_t end, int64_t staged) {
    const Knobs *knobs = &world->knobs;
    int64_t now = world->control.now;
    int64_t staging_level = knobs->staging - 1;
    stage_begin(world);
    for (int64_t i = 0; i < end; i++) {
        int64_t slot = world->chain[i];
        int64_t source = world->hit_level[i];
        if (source <= 0) {
            continue;
        }
        if (knobs->promotion == SECOND_TOUCH) {
            world->slots[slot].was_loaded ^= 1;
            if (world->slots[slot].was_loaded) {
                continue; // This was the first touch.
            }
        }
        // A promotion before this one may have demoted or evicted it.
        if (knobs->is_exclusive && !tiers_include(world->slots[slot].live, source)) {
            continue;
        }
        int64_t size = world->slots[slot].size;
        int64_t level = promotion_level(world, source, size);
        if (knobs->is_exclusive && level >= 0 && size <= world->tiers[level].largest_object_bytes) {
            tier_delete(world, source, slot, now, PHASE_PROMOTE);
        }
        for (; level >= 0; level = knobs->is_exclusive ? NONE : level - 1) {
            if (knobs->is_write_back && size <= world->tiers[level].largest_object_bytes) {
                tier_make_room_by_demotion(world, level, slot, now);
            }
            if (tiers_include(world->slots[slot].live, level)) {
                continue;
            }
            bool is_staging = level == staging_level && source > level;
            bool has_room = is_staging ? i < staged : tier_make_room(world, level, slot, now);
            if (!has_room) {
                continue;
            }
            tier_use_in_order(world, level, i);
            int64_t limit = world->tiers[level].request_writes;
            actor->stage = stage_next(world, actor->stage, level, limit);
            Cause promotion = {now, PHASE_PROMOTE, actor->request, actor->stage};
            tier_write(world, level, slot, &promotion);
        }
    }
    actor->stage += world->control.is_stage_used;
}

// Whether `chain[:end]` is larger than a tier through which all of it must go. The engine waits
// there for ever, for room that the request's own objects take; the simulation goes on and counts.
static bool request_is_stalled(World *world, int64_t end) {
    for (int64_t level = 0; level < world->tiers_count; level++) {
        const Tier *tier = &world->tiers[level];
        int64_t needed_bytes = 0;
        int64_t below = 0;
        for (int64_t i = 0; tier->loads_whole && i < end; i++) {
            if (world->hit_level[i] >= level) {
                needed_bytes += object_size(world, world->chain[i]);
                below += world->hit_level[i] > level;
            }
        }
        world->total.largest_load = max_of(world->total.largest_load, needed_bytes);
        if (below && needed_bytes > tier->limit_bytes) {
            return true;
        }
    }
    return false;
}

// Finds the fastest tier of each of `chain[:end]` again, the first `retrieved` each by itself.
// Those that will be promoted get slots.
static void request_lookup_again(World *world, int64_t actor_id, int64_t retrieved, int64_t end) {
    const Knobs *knobs = &world->knobs;
    int64_t from_level = 0;
    for (int64_t i = 0; i < end; i++) {
        int64_t level = object_fastest_level(world, world->chain[i], from_level);
        world->hit_level[i] = (int8_t)level;
        if (knobs->is_by_tier && i >= retrieved) {
            from_level = max_of(from_level, level);
        }
        if (knobs->promotion && level > 0) {
            prompt_unpack(world, actor_id, i, i + 1);
        }
    }
}

// Promotes what was loaded, as the preset says.
static void request_promote(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    const Knobs *knobs = &world->knobs;
    int64_t end = actor->hit_end;
    prompt_gather(world, actor_id);
    // Tiers may have changed while the hits were read: look up again.
    if (world->groups_count && knobs->is_prefix) {
        group_lookup_again(world, actor_id, actor->retrieved_objects, end);
    } else {
        request_lookup_again(world, actor_id, actor->retrieved_objects, end);
    }
    world->total.stalled += request_is_stalled(world, end);
    int64_t staged = end;
    if (knobs->staging) {
        staged = staging_cut_reads(world, actor->retrieved_objects, end);
        staged = staging_take_read_buffers(world, staged, world->control.now);
    }
    if (knobs->promotion) {
        request_copy_up(world, actor, end, staged);
    }
}

// --- prefill

// Whether the request stores what it computes in several steps. Retrieved documents are not in the
// order of the prompt, so with them it stores once, at the end.
bool request_is_stepwise(World *world, int64_t actor_id) {
    return world->knobs.offer_tokens > 0 && world->actors[actor_id].retrieved_objects == 0;
}

// How much longer a prompt takes of which `tokens` are computed because its steps also decode: each
// step reads the caches of the batch, and has room for fewer tokens of the prompt.
//
//     room = step_tokens - requests of the batch        prompt tokens of a step
//     steps = max(1, tokens / room), fractions count;  each reads the caches once
static int64_t prefill_sharing_ns(World *world, int64_t tokens) {
    const Batch *batch = &world->fleet.batches[world->control.node];
    int64_t room = max_of(1, world->knobs.step_tokens - batch->size);
    int64_t cache_ns =
        compute_step_read_ns(world, 1, batch->bytes) - compute_step_read_ns(world, 1, 0);
    return cache_ns * tokens / min_of(tokens, room);
}

// How long a step takes that computes a part of a prompt of `tokens` that takes `compute_ns`.
static int64_t prefill_step_ns(World *world, int64_t tokens, int64_t compute_ns) {
    const Batch *batch = &world->fleet.batches[world->control.node];
    int64_t room = min_of(tokens, max_of(1, world->knobs.step_tokens - batch->size));
    int64_t cache_ns =
        compute_step_read_ns(world, 1, batch->bytes) - compute_step_read_ns(world, 1, 0);
    return (int64_t)((__int128)compute_ns * room / tokens) + cache_ns;
}

// Promotes what was loaded, then computes the rest of the prompt. Returns the time until the first
// token, or until the first store if there are several.
//
//     start     = when the node has computed the prompts before it, but not before the load is done
//     prefill   = compute_first_token_ns(missed tokens) + what sharing steps with the batch adds
//     TTFT      = start + prefill - arrival
int64_t request_prefill(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    const Knobs *knobs = &world->knobs;
    request_end_load(world, actor);
    if ((knobs->promotion || knobs->staging) && actor->hit_end) {
        answer_catch_up(world);
        request_promote(world, actor_id);
    }
    Node *node = &world->fleet.nodes[world->control.node];
    int64_t now = world->control.now;
    int64_t missed = actor->missed_tokens;
    int64_t loaded = actor->input_tokens - missed;
    int64_t busy_ns = compute_prefill_ns(world, loaded, actor->input_tokens);
    int64_t prefill_ns = compute_first_token_ns(world, loaded, actor->input_tokens);
    bool is_computed = busy_ns > 0;
    if (is_computed && knobs->step_tokens) {
        Batch *batch = &world->fleet.batches[world->control.node];
        int64_t sharing_ns = prefill_sharing_ns(world, missed);
        batch->prompt_step_ns = prefill_step_ns(world, missed, busy_ns);
        busy_ns += sharing_ns;
        prefill_ns += sharing_ns;
    }
    node->computing_ns += busy_ns;
    int64_t start_ns = now;
    if (is_computed && knobs->prefill_in_turn) {
        start_ns = max_of(node->prefill_busy_until_ns, actor->ready_ns);
        world->total.prefills++;
        world->total.waiting_ns += start_ns - actor->ready_ns;
        node->prefill_busy_until_ns = start_ns + busy_ns;
        if (knobs->step_tokens) {
            batch_change(world, 0, 0); // Decode steps take longer meanwhile.
        }
    }
    int64_t first_token_at_ns = start_ns + prefill_ns;
    actor->ttft_ns = first_token_at_ns - actor->arrival_ns;
    actor->step = STEP_STORE;
    if (!request_is_stepwise(world, actor_id)) {
        return first_token_at_ns - now;
    }
    // The rest is computed after the first store.
    int64_t first_part = loaded + min_of(knobs->offer_tokens, missed);
    return first_token_at_ns - now - compute_prefill_ns(world, first_part, actor->input_tokens);
}

// --- decode

// The time until the request has generated `tokens`, or WAITS.
static int64_t decode_wait(World *world, int64_t actor_id, int64_t tokens) {
    if (world->knobs.is_batched) {
        return batch_wait_steps(world, actor_id, tokens);
    }
    int64_t start_ns = world->actors[actor_id].decode_start_ns;
    int64_t done_ns = start_ns + tokens * world->knobs.decode_ns_per_token;
    return max_of(0, done_ns - world->control.now);
}

// The decode steps of a request. The prefill gives the first token of its answer, if it is
// modelled.
static int64_t decode_steps_of(World *world, const Actor *actor) {
    return max_of(0, actor->output_tokens - world->knobs.prefill_gives_token);
}

// How often the request's entry is read while it is decoded.
static int64_t decode_reads_of(World *world, const Actor *actor) {
    const Knobs *knobs = &world->knobs;
    int64_t long_tokens = knobs->prefill_only_from_tokens;
    bool is_long = 0 < long_tokens && long_tokens <= actor->new_tokens;
    if (!knobs->decode_read_tokens || knobs->mode == PREFILL_ONLY || is_long) {
        return 0;
    }
    int64_t runs = round_up_div(actor->output_tokens, knobs->decode_read_tokens);
    return knobs->mode == DECODE_ONLY ? runs : 1 + runs;
}

// Reads the request's entry, if some tier has it, and notes when that is done.
static void decode_read_entry(World *world, Actor *actor) {
    int64_t now = world->control.now;
    slot_refresh(world, actor->decode_entry);
    int64_t level = object_fastest_level(world, actor->decode_entry, 0);
    actor->reads_done_ns = now;
    if (level == NONE) {
        world->total.decode_misses++;
    } else {
        tier_hit(world, level, actor->decode_entry);
        Cause decode = {now, PHASE_DECODE, actor->request, actor->stage};
        actor->reads_done_ns = tier_read(world, level, actor->decode_entry, &decode);
        actor->stage++;
    }
    actor->decode_reads++;
}

// Generates the answer. If the preset says so, the entry is read each time so many tokens are
// generated; returns the time until the next read, or until the end.
int64_t request_decode(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    const Knobs *knobs = &world->knobs;
    int64_t now = world->control.now;
    if (now < actor->reads_done_ns) {
        return actor->reads_done_ns - now;
    }
    int64_t done = actor->decode_reads;
    int64_t reads = decode_reads_of(world, actor);
    bool is_read = done < reads && actor->decode_entry != NONE;
    // Decoding begins with the first read; with reads_at_once, behind the last.
    bool begins = knobs->reads_at_once ? !is_read : done == 0;
    if (begins) {
        actor->decode_start_ns = now;
        if (knobs->is_batched) {
            batch_join(world, actor_id);
        }
        answer_start(world, actor_id);
    }
    if (!is_read) {
        actor->step = STEP_END;
        if (knobs->stores_generated && knobs->chunk_tokens && knobs->source == USERS) {
            int64_t tokens = actor->input_tokens - actor->retrieved_tokens + actor->output_tokens;
            int64_t objects = objects_of_tokens(world, tokens);
            actor->new_objects = objects - actor->shared_objects - actor->own_objects;
        }
        return decode_wait(world, actor_id, decode_steps_of(world, actor));
    }
    decode_read_entry(world, actor);
    if (done + 1 == reads || knobs->reads_at_once) {
        return actor->reads_done_ns - now;
    }
    // The first read fetches the entry; read k >= 1 begins the k-th run of decode_read_tokens
    // tokens. A node that only decodes has the entry loaded already, and begins with such a run.
    int64_t run = knobs->mode == DECODE_ONLY ? done + 1 : done;
    return decode_wait(world, actor_id, run * knobs->decode_read_tokens);
}

// --- end

// Whether those of `chain[:n]` that the tier has are its most recent ones already, in this order.
static bool request_is_most_recent(World *world, int64_t actor_id, int64_t level, int64_t n) {
    int64_t tier_slot = list_of(world, level, 0)->head;
    for (int64_t i = 0; i < n; i++) {
        if (!object_is_in(world, world->chain[i], level)) {
            continue;
        }
        if (slot_in_tier(world, level, world->chain[i]) != tier_slot) {
            return false;
        }
        tier_slot = list_link_of(world, level, tier_slot)->older;
    }
    return level != 0 || answer_is_most_recent(world, actor_id, tier_slot);
}

// Makes the request's first object the most recent one of each LRU tier whose recency says so, the
// second object the next, and so on.
static void request_use_at_end(World *world, int64_t actor_id) {
    int64_t n = prompt_gather(world, actor_id);
    for (int64_t level = 0; level < world->tiers_count; level++) {
        const Tier *tier = &world->tiers[level];
        bool is_used = tier->recency != HEAD_FIRST && !tier->on_hit;
        bool is_unreachable = tiers_include(world->control.unreachable_tiers, level);
        if (!is_used || tier_is_endless(world, level) || is_unreachable ||
            request_is_most_recent(world, actor_id, level, n)) {
            continue;
        }
        if (level == 0) {
            answer_use(world, actor_id);
        }
        for (int64_t i = n - 1; i >= 0; i--) {
            if (object_is_in(world, world->chain[i], level)) {
                policy_hit(world, level, slot_in_tier(world, level, world->chain[i]));
            }
        }
    }
}

// Records how long the request took to generate its answer.
static void request_record_end(World *world, const Actor *actor) {
    Control *control = &world->control;
    Total *total = &world->total;
    int64_t steps = decode_steps_of(world, actor);
    total->decoded_tokens += actor->output_tokens;
    total->generated_tokens += actor->output_tokens;
    total->decode_steps += steps;
    total->decoding_ns += control->now - actor->decode_start_ns;
    if (world->ended_requests_count == 0) {
        return;
    }
    if (control->ended == world->ended_requests_count) {
        schedule_ask_python(world, FLUSH, 1);
    }
    int64_t answer_ns = control->now - actor->first_token_ns;
    world->ended_requests[control->ended++] = (EndedRequest){actor->request, answer_ns, steps};
}

// Ends a request. A user thinks then, for the time returned; the actor of a file is idle again.
int64_t request_end(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    const Knobs *knobs = &world->knobs;
    request_record_end(world, actor);
    answer_finish(world, actor_id);
    batch_depart(world, actor_id);
    gpu_release(world, actor_id);
    answer_free_unfilled(world, actor_id);
    fleet_release_request(world, actor_id);
    store_at_end(world, actor_id);
    if (knobs->uses_backwards) {
        request_use_at_end(world, actor_id);
    }
    actor->named_answers = 0;
    actor->answers_count = 0;
    actor->step = STEP_ASK;
    if (knobs->source != USERS) {
        if (knobs->follows) {
            schedule_call_followers(world, world->following.came[actor->request].actor, 0);
        }
        prompt_forget_request(world, actor_id);
        world->idle[world->control.idle++] = actor_id;
        return NONE;
    }
    actor->history_tokens = actor->input_tokens - actor->retrieved_tokens + actor->output_tokens;
    actor->turn++;
    return max_of(1, user_think_ns(&world->users[actor_id], knobs->seed, actor_id));
}
