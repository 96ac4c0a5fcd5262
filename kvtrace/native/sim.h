// The functions that the files of the simulation call of each other, by file.
// The main loop (schedule.c) takes the actor that acts next and does the next step of its request
// (request.c).
//
//     schedule.c   who acts next: arrivals, the heap of actors, the main loop
//     users.c      what synthetic users ask
//     fleet.c      which node serves a request; nodes that are lost or join
//     prompt.c     the objects of a request
//     request.c    the steps of a request: queue, lookup and load, prefill, decode, end
//     groups.c     the lookup where a chunk is several objects, one for each group of layers
//     store.c      the step that stores what was computed; the staging tier
//     compute.c    how long prefill and decode steps take
//     batch.c      the requests that a node decodes together, and its GPU memory
//     answers.c    the objects in GPU memory that generated tokens fill
//     tiers.c      hits, reads, writes, deletes, evictions and demotions, and the rows they emit
//     lists.c      the recency lists and LRU; policies/ has the other eviction policies
//     admission.c  admission filters
//     slots.c      slots of objects, and the copies of nodes and racks
//     buckets.c    many objects in one file
//     background.c what tiers do at times: expiry, eviction rounds, store queues
//     leases.c     tiers that do not evict what was read of late, or waits for the tier below
//
// These names mean the same everywhere:
//
//     level      the index of a tier in World.tiers; 0 is the fastest
//     slot       an object's own slot
//     tier_slot  the slot in a tier's lists: the object's own, or that of the place's copy
//     entry      an object in World.contexts: a slot (>= 0), or a packed object without a slot
//     chain[:n]  the entries of the objects of the request at hand, in the order of its prompt
//
// Tables may move when Python enlarges them: no pointer to a slot, or to what stands beside slots,
// may be kept across a call that may take a slot (slot_take, slot_unpack, slot_for_insert,
// tier_write).
#ifndef KVTRACE_SIM_H
#define KVTRACE_SIM_H

#include "world.h"

// Marks a parameter that an operation is given and does not use.
#define UNUSED __attribute__((unused))
// A few lines in a hot loop, which must not cost a call.
#define INLINE static inline __attribute__((always_inline))

#define NS_PER_S ((int64_t)1000000000)
enum { MILLION = 1000000 };

// Returned instead of a delay: the actor waits until the clock of the batch, or a queue, calls it.
enum { WAITS = -2 };

// Slot.held_by: a request may still name the object.
enum { HELD_BY_REQUESTS = 1 };

// Slot.held_by: the object waits for this tier, or the request at hand reads it there.
INLINE int64_t held_by_tier(int64_t level) {
    return 2 << level;
}

// Whether a set of tiers, one bit each, has the tier at `level`.
INLINE bool tiers_include(int64_t tiers, int64_t level) {
    return tiers & (1 << level);
}

// How many objects the whole chunks of so many tokens are.
INLINE int64_t objects_of_tokens(World *world, int64_t tokens) {
    return tokens / world->knobs.chunk_tokens * world->knobs.chunk_objects;
}

// Bytes of the i-th object of a prompt, which begins with a whole chunk.
INLINE int64_t chunk_object_bytes(World *world, int64_t i) {
    return world->groups_count ? world->groups[i % world->groups_count].bytes
                               : world->knobs.chunk_bytes;
}

// The slowest tier from which the chunk that begins at `chain[i]` is read; NONE if it is no hit. Of
// a prefix that is used, a chunk of which no group needs anything is a hit of the fastest tier.
INLINE int64_t chunk_hit_level(World *world, int64_t i, bool is_of_prefix) {
    int64_t level = world->groups_count && is_of_prefix ? 0 : NONE;
    for (int64_t k = i; k < i + world->knobs.chunk_objects; k++) {
        level = max_of(level, world->hit_level[k]);
    }
    return level;
}

// The quotient rounded up, of numbers that are not negative.
INLINE int64_t round_up_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// --- slots.c: objects, their entries and their slots

// The entry at `home`, which is a row and a place of World.contexts.
INLINE int64_t *entry_at(World *world, int64_t home) {
    return &world->contexts[home >> 32].entries[(uint32_t)home];
}

// Converts the bits of a packed object to its entry, and back.
INLINE int64_t entry_pack(int64_t bits) {
    return -2 - bits;
}

// 1 + the place whose own tiers have the packed object; 0 if none have.
INLINE int64_t entry_place(int64_t entry) {
    return entry_pack(entry) >> PLACE_SHIFT & ((1 << PLACE_BITS) - 1);
}

INLINE int64_t object_size(World *world, int64_t entry) {
    return entry >= 0 ? world->slots[entry].size : world->knobs.chunk_bytes;
}

INLINE int64_t object_number(World *world, int64_t entry) {
    return entry >= 0 ? world->slots[entry].object : entry_pack(entry) >> PACKED_BITS;
}

// The tiers that have the object, as the node at hand and its rack see them.
INLINE int64_t object_live_tiers(World *world, int64_t entry) {
    if (entry >= 0) {
        return world->slots[entry].live;
    }
    const Fleet *fleet = &world->fleet;
    int64_t live = entry_pack(entry) & ((1 << LIVE_BITS) - 1);
    int64_t place = entry_place(entry);
    int64_t node = world->control.node;
    bool is_here = !place || place == 1 + node ||
                   (fleet->rack_tiers && place == 1 + fleet->count + node / fleet->rack_nodes);
    return is_here ? live : live & ~fleet->place_tiers;
}

INLINE bool object_is_in(World *world, int64_t entry, int64_t level) {
    return tiers_include(object_live_tiers(world, entry), level);
}

// The tiers that have the object and are not out of reach.
INLINE int64_t object_reachable_tiers(World *world, int64_t entry) {
    return object_live_tiers(world, entry) & ~world->control.unreachable_tiers;
}

// The fastest tier from `level` down in which the object can be read; NONE if there is none.
INLINE int64_t object_fastest_level(World *world, int64_t entry, int64_t level) {
    int64_t live = object_reachable_tiers(world, entry) >> level;
    return live ? level + __builtin_ctzll((uint64_t)live) : NONE;
}

// The slot that stands for the object in the lists of a tier; NONE if the tier's place has no copy.
INLINE int64_t slot_in_tier(World *world, int64_t level, int64_t slot) {
    const Fleet *fleet = &world->fleet;
    if (!tiers_include(fleet->place_tiers, level)) {
        return slot;
    }
    const Copies *copy = &fleet->copies[slot];
    return tiers_include(fleet->rack_tiers, level) ? copy->rack_copy : copy->node_copy;
}

// The tiers of its place that have a copy, which may be in its object's own slot.
INLINE int16_t *copy_live_tiers(World *world, int64_t copy) {
    Slot *slot = &world->slots[copy];
    return slot->place > 0 ? &slot->live : &world->fleet.copies[copy].own_live;
}

// Whether a tier at hand has what its lists hold as `tier_slot`.
INLINE bool slot_is_live_in(World *world, int64_t level, int64_t tier_slot) {
    bool is_copy = tiers_include(world->fleet.place_tiers, level);
    int64_t live = is_copy ? *copy_live_tiers(world, tier_slot) : world->slots[tier_slot].live;
    return tiers_include(live, level);
}

int64_t slot_take(World *world, int64_t number, int64_t size, int64_t home, int64_t place);
int64_t slot_unpack(World *world, int64_t home);
void slot_refresh(World *world, int64_t entry);
void slot_refresh_chain(World *world, int64_t n);
int64_t slot_of_object(World *world, int64_t level, int64_t tier_slot);
int64_t slot_copy_for_insert(World *world, int64_t level, int64_t slot);
void slot_release(World *world, int64_t slot);
void slot_note_release(World *world, int64_t slot);
void copy_release_later(World *world, int64_t copy);
void slot_release_pending(World *world);
void slot_release_evicted(World *world, int64_t tier_slot);

// The slot that will stand for the object in a tier to which it is about to come.
INLINE int64_t slot_for_insert(World *world, int64_t level, int64_t slot) {
    bool has_copies = tiers_include(world->fleet.place_tiers, level);
    return has_copies ? slot_copy_for_insert(world, level, slot) : slot;
}

// Notes that `slot` may not be needed any more. It stays until the end of the step, because others
// may still look at it.
INLINE void slot_release_later(World *world, int64_t slot) {
    bool may_have_copies = world->fleet.place_tiers;
    if (may_have_copies || !(world->slots[slot].live & ~world->knobs.endless_tiers)) {
        slot_note_release(world, slot);
    }
}

// --- lists.c: the recency lists, and the operations of a tier's policy

INLINE Link *list_link_of(World *world, int64_t level, int64_t slot) {
    return &world->links[slot * world->knobs.linked_tiers + world->tiers[level].link];
}
INLINE Note *policy_note_of(World *world, int64_t level, int64_t slot) {
    return &world->notes[slot * world->tiers_count + level];
}
INLINE RecencyList *list_of(World *world, int64_t level, int64_t number) {
    return &world->lists[level * LISTS + number];
}
void list_link_between(World *world, int64_t level, int64_t slot, int64_t newer, int64_t older,
                       int64_t number);
void list_link_first(World *world, int64_t level, int64_t slot, int64_t number);
void list_unlink(World *world, int64_t level, int64_t slot, int64_t number);
void list_enter(World *world, int64_t level, int64_t slot, int64_t number);
void list_leave(World *world, int64_t level, int64_t slot);
void list_settle_by_age(World *world, int64_t level, int64_t slot);
void idle_leave(World *world, int64_t slot);
void idle_release(World *world, int64_t slot);
void idle_settle_released(World *world);
void policy_hit(World *world, int64_t level, int64_t slot);
void policy_insert(World *world, int64_t level, int64_t slot, int64_t now);
int64_t policy_choose_victim(World *world, int64_t level, int64_t incoming);
void policy_remove(World *world, int64_t level, int64_t slot, int64_t is_evicted);
void policy_forget(World *world, int64_t slot);
int64_t policy_expiry_ns(World *world, int64_t level);

// --- admission.c

bool admission_admits(World *world, int64_t level, int64_t slot, int64_t now);
int64_t admission_count_use(World *world, int64_t level, int64_t entry);
void admission_forget_counts(World *world, int64_t level);

// --- tiers.c

// A row of the trace, but for its rank and layer.
typedef struct {
    int64_t now;
    int64_t op;
    int64_t level;
    int64_t phase;
    int64_t entry;   // The object.
    int64_t size;    // Bytes of all ranks and layers together.
    int64_t request; // NONE for background work.
    int64_t stage;   // NONE for background work.
} RowSpec;

// When and why a tier reads or writes an object.
typedef struct {
    int64_t now;
    int64_t phase;
    int64_t request; // NONE for background work.
    int64_t stage;   // NONE for background work.
} Cause;

INLINE bool tier_is_endless(World *world, int64_t level) {
    return tiers_include(world->knobs.endless_tiers, level);
}

// Whether an object of `size` bytes fits. One that is larger than the limit fits an empty tier.
INLINE bool tier_has_room(World *world, int64_t level, int64_t size) {
    const Tier *tier = &world->tiers[level];
    return tier->live_bytes == 0 || tier->live_bytes + size <= tier->limit_bytes;
}

// 1 + the place at hand whose tier this is; 0 if all nodes share the tier.
INLINE int64_t tier_place(World *world, int64_t level) {
    const Fleet *fleet = &world->fleet;
    if (!tiers_include(fleet->place_tiers, level)) {
        return 0;
    }
    int64_t node = world->control.node;
    bool is_rack = tiers_include(fleet->rack_tiers, level);
    return 1 + (is_rack ? fleet->count + node / fleet->rack_nodes : node);
}

void stage_begin(World *world);
int64_t stage_next(World *world, int64_t stage, int64_t level, int64_t limit);
void row_emit(World *world, const RowSpec *row);
void row_emit_layer(World *world, const RowSpec *row, int64_t layer);
int64_t tier_transfer(World *world, int64_t level, int64_t op, int64_t size, int64_t now);
int64_t tier_serve_load(World *world, int64_t level, int64_t size, int64_t now);
void tier_note_in_flight(World *world, int64_t entry, int64_t until_ns);
void tier_use_behind(World *world, int64_t level, int64_t i, int64_t first, int64_t mark);
void tier_hit(World *world, int64_t level, int64_t entry);
int64_t tier_read(World *world, int64_t level, int64_t slot, const Cause *cause);
void tier_write(World *world, int64_t level, int64_t slot, const Cause *cause);
void tier_delete(World *world, int64_t level, int64_t slot, int64_t now, int64_t phase);
bool tier_make_room(World *world, int64_t level, int64_t slot, int64_t now);
bool tier_make_room_for_offer(World *world, int64_t level, int64_t first, int64_t n,
                              int64_t previous_offer, int64_t now);
void tier_make_room_by_demotion(World *world, int64_t level, int64_t slot, int64_t now);
void tier_evict(World *world, int64_t level, int64_t tier_slot, int64_t now);
void tier_lose(World *world, int64_t level, int64_t tier_slot, int64_t now);
void tier_evict_in_round(World *world, int64_t level);
int64_t tier_first_accepting(World *world, int64_t level, int64_t size);

// Submits an operation (OP_READ or OP_WRITE) now; returns when it is done.
INLINE int64_t tier_serve(World *world, int64_t level, int64_t op, int64_t size, int64_t now) {
    bool takes_time = world->tiers[level].bytes_per_s[op] > 0;
    return takes_time ? tier_transfer(world, level, op, size, now) : now;
}

// Notes that the object is in flight until then, if a tier stores offers whole: it is not evicted
// for an offer before.
INLINE void tier_pin(World *world, int64_t entry, int64_t until_ns) {
    if (world->pinned_until_ns_count && entry >= 0) {
        tier_note_in_flight(world, entry, until_ns);
    }
}

// Lets `chain[i]`, when it is used next in a tier, become less recent than the objects before it if
// the tier's recency says so.
INLINE void tier_use_in_order(World *world, int64_t level, int64_t i) {
    Tier *tier = &world->tiers[level];
    if (tier->recency != TAIL_FIRST) {
        return;
    }
    // Nearly always the tier has the object right before it.
    const int64_t *chain = world->chain;
    bool is_next = i > 0 && chain[i - 1] != chain[i] && !tier_is_endless(world, level) &&
                   object_is_in(world, chain[i - 1], level);
    if (is_next) {
        tier->behind_slot = 1 + slot_in_tier(world, level, chain[i - 1]);
    } else {
        tier_use_behind(world, level, i, 0, 0);
    }
}

// --- buckets.c

int64_t bucket_overhead_bytes(World *world, int64_t level);
bool bucket_write(World *world, int64_t level, int64_t first, int64_t count, int64_t now);
void bucket_evict_object(World *world, int64_t level, int64_t slot, int64_t now);
void bucket_delete(World *world, int64_t level, int64_t bucket, int64_t now, int64_t phase);
void bucket_make_room(World *world, int64_t level, int64_t size, int64_t now);

// --- background.c

bool store_queue_or_make_room(World *world, int64_t level, int64_t slot, int64_t now,
                              int64_t phase);
int64_t store_queue_pop(World *world, int64_t level);
void background_note_due(World *world, int64_t place, int64_t tiers);
void background_catch_up(World *world, int64_t now);

// --- leases.c

void lease_end_pins(World *world, int64_t level, int64_t now);
// Whether the tier above queues for this one, as it is written: what it has already is not queued
// again.
INLINE bool lease_queues_for(World *world, int64_t level) {
    bool is_queued = tiers_include(world->knobs.queued_tiers, level);
    return is_queued && level > 0 && world->tiers[level - 1].lease_ns;
}
void lease_queue_below(World *world, int64_t level, int64_t slot, const Cause *cause);
bool lease_make_room(World *world, int64_t level, int64_t slot, int64_t now);
void lease_grant_looked_up(World *world, int64_t first, int64_t n);
bool lease_wait(World *world, int64_t level, int64_t slot);
void lease_store_waiting(World *world, int64_t now);
void lease_grant_written(World *world, int64_t level, int64_t slot, int64_t now);
int64_t lease_due_ns(World *world, int64_t level);
void lease_free(World *world);

// --- prompt.c

void prompt_make_chunks(World *world, int64_t actor_id);
void prompt_make_objects(World *world, int64_t actor_id);
int64_t prompt_collect(World *world, int64_t actor_id);
int64_t prompt_gather(World *world, int64_t actor_id);
int64_t prompt_entry(World *world, const Actor *actor, int64_t i);
int64_t prompt_make_unnamed(World *world, int64_t size);
int64_t prompt_name_answer(World *world, int64_t actor_id, int64_t place);
void prompt_unpack(World *world, int64_t actor_id, int64_t first, int64_t n);
void prompt_forget_context(World *world, int64_t context, int64_t length);
void prompt_forget_request(World *world, int64_t actor_id);

// --- groups.c

int64_t group_lookup(World *world, int64_t retrieved, int64_t known, int64_t min_load_tokens);
void group_lookup_again(World *world, int64_t actor_id, int64_t retrieved, int64_t end);

// --- compute.c

int64_t compute_prefill_ns(World *world, int64_t from, int64_t to);
int64_t compute_first_token_ns(World *world, int64_t from, int64_t to);
int64_t compute_step_bytes(World *world, int64_t tokens);
int64_t compute_step_read_ns(World *world, int64_t tokens, int64_t bytes);

// --- batch.c

void batch_set_due(World *world);
void batch_change(World *world, int64_t requests, int64_t bytes);
void batch_join(World *world, int64_t actor_id);
void batch_depart(World *world, int64_t actor_id);
int64_t batch_wait_steps(World *world, int64_t actor_id, int64_t steps);
int64_t batch_steps_since(World *world, int64_t join_step);
void batch_clear(World *world);
void gpu_hold_slot(World *world, int64_t actor_id, int64_t tier_slot);
bool gpu_reserve(World *world, int64_t actor_id, int64_t end);
void gpu_release(World *world, int64_t actor_id);

// --- answers.c

int64_t answer_most_objects(World *world, const Actor *actor);
int64_t answer_generated_tokens(World *world, const Actor *actor);
void answer_start(World *world, int64_t actor_id);
void answer_catch_up(World *world);
void answer_finish(World *world, int64_t actor_id);
void answer_free_unfilled(World *world, int64_t actor_id);
bool answer_is_most_recent(World *world, int64_t actor_id, int64_t tier_slot);
void answer_use(World *world, int64_t actor_id);
int64_t answer_generated_hits(World *world, const Actor *actor, int64_t hit_objects);

// --- request.c: the steps of a request. Each returns how long the actor waits then, or WAITS.

int64_t request_enqueue(World *world, int64_t actor_id);
int64_t request_load(World *world, int64_t actor_id);
int64_t request_prefill(World *world, int64_t actor_id);
int64_t request_decode(World *world, int64_t actor_id);
int64_t request_end(World *world, int64_t actor_id);
bool request_is_stepwise(World *world, int64_t actor_id);

// --- store.c

int64_t store_computed(World *world, int64_t actor_id);
void store_at_end(World *world, int64_t actor_id);
void store_populate(World *world);
int64_t staging_cut_reads(World *world, int64_t first, int64_t end);
int64_t staging_take_read_buffers(World *world, int64_t end, int64_t now);

// --- users.c

int64_t user_draw(int64_t seed, int64_t user, int64_t number, int64_t low, int64_t high);
int64_t user_think_ns(User *user, int64_t seed, int64_t user_id);
int64_t user_ask(World *world, int64_t user_id);

// --- schedule.c

void schedule_ask_python(World *world, int64_t what, int64_t need);
void schedule_call_followers(World *world, int64_t request, int64_t is_of_start);
void event_push(Event *heap, int64_t count, int64_t when, int64_t actor);
int64_t event_pop(Event *heap, int64_t count);

// --- fleet.c

void fleet_move_to(World *world, int64_t node);
void fleet_route(World *world, int64_t actor_id, int64_t n);
void fleet_release_request(World *world, int64_t actor_id);
void fleet_count_lookup(World *world, int64_t actor_id, int64_t end, int64_t lookups);
int64_t fleet_until_open(World *world);
int64_t fleet_hand_over(World *world, int64_t actor_id);
void fleet_apply_event(World *world);

// --- fleet.c: what routers share

typedef int64_t RouteCost(World *world, int64_t actor_id, int64_t node);

INLINE int64_t fleet_is_up(World *world, int64_t node) {
    return world->fleet.nodes[node].is_up;
}
int64_t fleet_cheapest_node(World *world, int64_t actor_id, int64_t first, int64_t end,
                            RouteCost *cost);
int64_t fleet_outstanding(World *world, int64_t actor_id, int64_t node);
void fleet_measure_prefixes(World *world, int64_t actor_id, int64_t n);
int64_t fleet_cached_tokens(World *world, int64_t actor_id, int64_t node);

#endif
