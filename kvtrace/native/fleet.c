// The fleet around the tiers: whose tiers are at hand, which node serves a request, and what
// happens to nodes.
//
//     fleet_move_to      the tiers of a node, and of its rack, become World.tiers
//     fleet_route        the router (routers/) chooses the node of a request
//     fleet_count_lookup what the request found there
//     fleet_hand_over    a computed prompt goes over the link to a node that decodes
//     fleet_apply_event  a node is lost or joins, a tier is emptied, the store is out of reach
//
// What is lost leaves its tier by rows of phase `lose`, because nothing can read it any more: so a
// trace can still be validated and replayed. Requests of a lost node begin again at once.
#include "sim.h"

#include <string.h>

// --- the tiers at hand

// Moves a tier and its lists between World.tiers and Fleet.tiers.
static void fleet_swap_tier(World *world, int64_t level, int64_t old_place, int64_t new_place) {
    Fleet *fleet = &world->fleet;
    int64_t old = old_place * world->tiers_count + level;
    int64_t new = new_place * world->tiers_count + level;
    Tier *tier = &world->tiers[level];
    RecencyList *lists = list_of(world, level, 0);
    fleet->tiers[old] = *tier;
    memcpy(&fleet->lists[old * LISTS], lists, LISTS * sizeof(RecencyList));
    *tier = fleet->tiers[new];
    memcpy(lists, &fleet->lists[new * LISTS], LISTS * sizeof(RecencyList));
}

// Makes `node` the one at hand: puts the tiers of the node before, and of its rack, away.
void fleet_move_to(World *world, int64_t node) {
    Fleet *fleet = &world->fleet;
    int64_t here = world->control.node;
    if (here == node) {
        return;
    }
    idle_settle_released(world);
    int64_t rack = fleet->count + here / fleet->rack_nodes;
    int64_t next_rack = fleet->count + node / fleet->rack_nodes;
    if (fleet->due_ns_count) {
        background_note_due(world, here, fleet->place_tiers & ~fleet->rack_tiers);
        fleet->due_ns[node] = UNBOUNDED;
        if (rack != next_rack) {
            background_note_due(world, rack, fleet->rack_tiers);
            fleet->due_ns[next_rack] = UNBOUNDED;
        }
    }
    for (int64_t level = 0; level < world->tiers_count; level++) {
        if (!tiers_include(fleet->place_tiers, level)) {
            continue;
        }
        if (!tiers_include(fleet->rack_tiers, level)) {
            fleet_swap_tier(world, level, here, node);
        } else if (rack != next_rack) {
            fleet_swap_tier(world, level, rack, next_rack);
        }
    }
    world->control.node = node;
}

// --- which node serves a request

// Lets `node` serve the actor's request.
static void fleet_assign_request(World *world, int64_t actor_id, int64_t node_id) {
    Actor *actor = &world->actors[actor_id];
    Node *node = &world->fleet.nodes[node_id];
    actor->node = node_id;
    node->outstanding++;
    node->active_tokens += actor->input_tokens;
    node->requests++;
    node->turns++;
}

// The actor's request ends, or leaves its node.
void fleet_release_request(World *world, int64_t actor_id) {
    const Actor *actor = &world->actors[actor_id];
    Node *node = &world->fleet.nodes[actor->node];
    node->outstanding--;
    node->active_tokens -= actor->input_tokens;
}

// Sends the actor's request, whose `n` objects are in `chain`, to the node that the router chooses.
void fleet_route(World *world, int64_t actor_id, int64_t n) {
    int64_t node_id = world->fleet.router(world, actor_id, n);
    fleet_assign_request(world, actor_id, node_id);
    Node *node = &world->fleet.nodes[node_id];
    Actor *actor = &world->actors[actor_id];
    // As far as the router knows; request_load corrects it.
    actor->missed_tokens = actor->input_tokens - fleet_cached_tokens(world, actor_id, node_id);
    node->waiting++;
    node->input_tokens += actor->input_tokens;
    node->prefilling_tokens += actor->missed_tokens;
    fleet_move_to(world, node_id);
    slot_refresh_chain(world, n);
}

// Counts what the actor's request found: `chain[:end]`, of so many `lookups`.
void fleet_count_lookup(World *world, int64_t actor_id, int64_t end, int64_t lookups) {
    const Actor *actor = &world->actors[actor_id];
    Control *control = &world->control;
    Node *node = &world->fleet.nodes[actor->node];
    lookups /= world->knobs.chunk_objects;
    LookupOutcome outcome = {.ts_ns = control->now,
                             .lookups = lookups,
                             .computed_tokens = actor->missed_tokens,
                             .restarted = actor->restarts > 0};
    for (int64_t i = 0; i < end; i += world->knobs.chunk_objects) {
        bool is_of_prefix = i >= actor->retrieved_objects && world->knobs.is_prefix;
        int64_t level = chunk_hit_level(world, i, is_of_prefix);
        if (level == NONE) {
            continue;
        }
        if (tiers_include(world->fleet.node_tiers, level)) {
            outcome.local_hits++;
        } else {
            outcome.shared_hits++;
        }
    }
    if (world->fleet.count > 1) {
        node->lookups += lookups;
        node->local_hits += outcome.local_hits;
        node->shared_hits += outcome.shared_hits;
        node->prefilling_tokens += actor->missed_tokens;
        node->computed_tokens += actor->missed_tokens;
    }
    if (!world->lookup_outcomes_count) {
        return;
    }
    if (control->lookups == world->lookup_outcomes_count) {
        schedule_ask_python(world, FLUSH, 1);
    }
    world->lookup_outcomes[control->lookups++] = outcome;
}

// The time until a node joins to which requests may be sent; NONE if none ever does.
int64_t fleet_until_open(World *world) {
    for (int64_t i = world->control.events_done; i < world->fleet_events_count; i++) {
        const FleetEvent *event = &world->fleet_events[i];
        if (event->kind == JOINED && event->place < world->fleet.entry_nodes) {
            return event->when - world->control.now;
        }
    }
    return NONE;
}

// --- what routers share

// Of the nodes from `first` on, below `end`, the one that is up and has the lowest cost for the
// request; of several, the one that has served the fewest requests, and of those the first.
int64_t fleet_cheapest_node(World *world, int64_t actor_id, int64_t first, int64_t end,
                            RouteCost *cost) {
    int64_t cheapest = NONE;
    int64_t least_cost = 0;
    for (int64_t node = first; node < end; node++) {
        if (!fleet_is_up(world, node)) {
            continue;
        }
        int64_t node_cost = cost(world, actor_id, node);
        bool is_cheaper = cheapest == NONE || node_cost < least_cost;
        if (!is_cheaper && node_cost == least_cost) {
            const Node *nodes = world->fleet.nodes;
            is_cheaper = nodes[node].turns < nodes[cheapest].turns;
        }
        if (is_cheaper) {
            cheapest = node;
            least_cost = node_cost;
        }
    }
    return cheapest;
}

int64_t fleet_outstanding(World *world, UNUSED int64_t actor_id, int64_t node) {
    return world->fleet.nodes[node].outstanding;
}

// Adds an object to the run of a node if the run has all `run` objects before it. Racks, whose
// places come after all nodes, have no runs.
static bool fleet_extend_run(World *world, int64_t place, int64_t run, int64_t size) {
    Fleet *fleet = &world->fleet;
    if (place >= fleet->count || fleet->prefix_runs[place] != run) {
        return false;
    }
    fleet->prefix_runs[place]++;
    fleet->prefix_runs[fleet->count + place] += size;
    return true;
}

// Finds, for each node, how many of the request's first objects its own tiers have.
//
//     for each object of the prompt, until no node has all up to here:
//         for each copy of it: run[node of the copy] += 1 if the run reaches the object
void fleet_measure_prefixes(World *world, int64_t actor_id, int64_t n) {
    Fleet *fleet = &world->fleet;
    int64_t first = world->actors[actor_id].retrieved_objects;
    for (int64_t i = 0; i < 2 * fleet->count; i++) {
        fleet->prefix_runs[i] = 0;
    }
    bool has_run = fleet->place_tiers != 0;
    for (int64_t i = first; has_run && i < n; i++) {
        int64_t entry = world->chain[i];
        has_run = false;
        if (entry < 0) {
            int64_t place = entry_place(entry);
            if (place) {
                has_run = fleet_extend_run(world, place - 1, i - first, world->knobs.chunk_bytes);
            }
            continue;
        }
        const Copies *copies = &fleet->copies[entry];
        if (copies->own_live) {
            int64_t size = world->slots[entry].size;
            has_run = fleet_extend_run(world, copies->own_place - 1, i - first, size);
        }
        int64_t copy = copies->first_copy;
        for (; copy != NONE; copy = fleet->copy_links[copy].older) {
            const Slot *slot = &world->slots[copy];
            if (slot->live != 0) {
                has_run |= fleet_extend_run(world, slot->place - 1, i - first, slot->size);
            }
        }
    }
}

// How many tokens of the request's prompt `node` has, as fleet_measure_prefixes found.
int64_t fleet_cached_tokens(World *world, int64_t actor_id, int64_t node) {
    const Fleet *fleet = &world->fleet;
    int64_t chunk_tokens = world->knobs.chunk_tokens;
    int64_t tokens = fleet->prefix_runs[node] / world->knobs.chunk_objects * chunk_tokens;
    if (!chunk_tokens) {
        tokens = fleet->prefix_runs[fleet->count + node] / world->knobs.bytes_per_token;
    }
    return min_of(tokens, world->actors[actor_id].input_tokens);
}

// --- handing a computed prompt over
//
//     the node that prefilled writes what the other lacks to the link     store
//     the node that decodes reads it from the link                        load
//     and puts it into its fastest tier                                   promote
//
// The sending node is a server, first come, first served.

// Emits rows of the link, whose level is behind all tiers, for what is sent of `chain[:n]`.
static void fleet_emit_sent(World *world, int64_t n, RowSpec row) {
    row.now = world->control.now;
    row.level = world->tiers_count;
    for (int64_t i = 0; i < n; i++) {
        if (world->chain_mark[i]) {
            row.entry = world->chain[i];
            row.size = object_size(world, row.entry);
            row_emit(world, &row);
        }
    }
}

// Puts what was sent into the fastest tier of the node at hand; returns whether any of it fits.
static bool fleet_keep_sent(World *world, int64_t n, int64_t request, int64_t stage) {
    Cause promotion = {world->control.now, PHASE_PROMOTE, request, stage};
    bool is_any = false;
    for (int64_t i = 0; i < n; i++) {
        int64_t slot = world->chain[i];
        bool fits = world->slots[slot].size <= world->tiers[0].largest_object_bytes;
        if (!world->chain_mark[i] || !fits) {
            continue;
        }
        if (world->knobs.is_write_back) {
            tier_make_room_by_demotion(world, 0, slot, promotion.now);
        }
        bool is_there = tiers_include(world->slots[slot].live, 0);
        if (!is_there && tier_make_room(world, 0, slot, promotion.now)) {
            tier_use_in_order(world, 0, i);
            tier_write(world, 0, slot, &promotion);
            is_any = true;
        }
    }
    return is_any;
}

static bool fleet_is_repeated(World *world, int64_t i) {
    for (int64_t before = 0; before < i; before++) {
        if (world->chain[before] == world->chain[i]) {
            return true;
        }
    }
    return false;
}

// Marks those of `chain[:n]` that the fastest tier of the node at hand lacks; returns their bytes.
// What stands twice in a prompt, as retrieved documents may, is sent once.
static int64_t fleet_mark_missing(World *world, int64_t n, bool may_repeat) {
    int64_t missing_bytes = 0;
    for (int64_t i = 0; i < n; i++) {
        bool is_there = object_is_in(world, world->chain[i], 0);
        bool is_sent = !is_there && !(may_repeat && fleet_is_repeated(world, i));
        world->hit_level[i] = is_there ? 0 : NONE;
        world->chain_mark[i] = is_sent;
        if (is_sent) {
            missing_bytes += object_size(world, world->chain[i]);
        }
    }
    return missing_bytes;
}

// Sends what the decoding node lacks of the request's prompt to it; returns the time that takes.
int64_t fleet_hand_over(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    Fleet *fleet = &world->fleet;
    int64_t now = world->control.now;
    int64_t sender = actor->node;
    int64_t n = prompt_gather(world, actor_id);
    int64_t receiver =
        fleet_cheapest_node(world, actor_id, fleet->entry_nodes, fleet->count, fleet_outstanding);
    prompt_unpack(world, actor_id, 0, n);
    fleet_move_to(world, receiver);
    answer_catch_up(world);
    slot_refresh_chain(world, n);
    int64_t sent_bytes = fleet_mark_missing(world, n, actor->retrieved_objects > 0);
    gpu_release(world, actor_id);
    fleet_release_request(world, actor_id);
    fleet_assign_request(world, actor_id, receiver);
    gpu_reserve(world, actor_id, n);
    if (sent_bytes == 0) {
        return 0;
    }
    int64_t request = actor->request;
    fleet_move_to(world, sender);
    fleet_emit_sent(
        world, n,
        (RowSpec){.op = OP_WRITE, .phase = PHASE_STORE, .request = request, .stage = actor->stage});
    fleet_move_to(world, receiver);
    slot_refresh_chain(world, n);
    fleet_emit_sent(
        world, n,
        (RowSpec){
            .op = OP_READ, .phase = PHASE_LOAD, .request = request, .stage = actor->stage + 1});
    fleet_emit_sent(
        world, n, (RowSpec){.op = OP_DELETE, .phase = PHASE_EVICT, .request = NONE, .stage = NONE});
    actor->stage += 2;
    if (fleet_keep_sent(world, n, request, actor->stage)) {
        actor->stage++;
    }
    Node *node = &fleet->nodes[sender];
    node->sent_bytes += sent_bytes;
    if (fleet->link_bytes_per_s == 0) {
        return 0;
    }
    int64_t sending_ns = transfer_ns(sent_bytes, fleet->link_bytes_per_s);
    node->link_busy_until_ns = max_of(node->link_busy_until_ns, now) + sending_ns;
    return node->link_busy_until_ns - now;
}

// --- events of nodes, drives and the store

// Loses all that a tier of a node holds, and what its policy remembers.
static void fleet_empty_tier(World *world, int64_t node, int64_t level) {
    fleet_move_to(world, node);
    Tier *tier = &world->tiers[level];
    for (int64_t number = 0; number < LISTS; number++) {
        while (list_of(world, level, number)->tail != NONE) {
            int64_t tier_slot = list_of(world, level, number)->tail;
            if (slot_is_live_in(world, level, tier_slot)) {
                if (world->pinned_until_ns_count) {
                    world->pinned_until_ns[tier_slot] = 0;
                }
                tier_lose(world, level, tier_slot, world->control.now);
            } else {
                tier->forget(world, level, tier_slot);
            }
        }
    }
    if (tier->on_empty) {
        tier->on_empty(world, level, 0);
    }
    tier->arc_target_bytes = 0.0;
    tier->has_evicted = 0;
    tier->hand_slot = NONE;
    tier->goal_bytes = NONE;
    tier->behind_slot = 0;
}

static bool fleet_is_served_by(World *world, int64_t actor_id, int64_t node) {
    const Actor *actor = &world->actors[actor_id];
    return actor->node == node && actor->step > STEP_ENQUEUE;
}

// Lets the requests of `node` begin again, now.
static void fleet_restart_requests(World *world, int64_t node) {
    Control *control = &world->control;
    int64_t count = 0;
    for (int64_t i = 0; i < control->heap_size; i++) {
        Event event = world->heap[i];
        if (!fleet_is_served_by(world, event.actor, node)) {
            event_push(world->heap, count++, event.when, event.actor);
        }
    }
    for (int64_t actor_id = 0; actor_id < world->actors_count; actor_id++) {
        if (!fleet_is_served_by(world, actor_id, node)) {
            continue;
        }
        Actor *actor = &world->actors[actor_id];
        actor->step = STEP_ENQUEUE;
        actor->new_objects = 0;
        actor->join_step = NONE;
        actor->gpu_bytes = 0;
        actor->loading_bytes = 0;
        actor->holds_count = 0;
        actor->answers_count = 0;
        actor->restarts++;
        event_push(world->heap, count++, control->now, actor_id);
    }
    control->heap_size = count;
}

// A tier of a lost node stops: what is in flight and queued there is gone.
static void fleet_stop_tier(World *world, int64_t level) {
    Tier *tier = &world->tiers[level];
    tier->busy_until_ns[OP_READ] = world->control.now;
    tier->busy_until_ns[OP_WRITE] = world->control.now;
    while (tier->waiting_objects > 0) {
        store_queue_pop(world, level);
    }
    tier->next_heartbeat_ns = 0;
    if (tiers_include(world->knobs.filtered_tiers, level)) {
        admission_forget_counts(world, level);
    }
}

// Loses a node: what its own tiers hold, but for `kept_tiers`. Its requests begin again.
static void fleet_lose_node(World *world, int64_t node_id, int64_t kept_tiers) {
    Fleet *fleet = &world->fleet;
    Node *node = &fleet->nodes[node_id];
    if (!node->is_up) {
        return;
    }
    for (int64_t level = 0; level < world->tiers_count; level++) {
        if (!tiers_include(fleet->node_tiers, level)) {
            continue;
        }
        fleet_move_to(world, node_id);
        if (!tiers_include(kept_tiers, level)) {
            fleet_empty_tier(world, node_id, level);
        }
        fleet_stop_tier(world, level);
    }
    fleet_move_to(world, node_id);
    node->is_up = 0;
    node->outstanding = 0;
    node->waiting = 0;
    node->prefilling_tokens = 0;
    node->active_tokens = 0;
    node->prefill_busy_until_ns = 0;
    node->first_queued = 0;
    node->gpu_bytes = 0;
    node->held_bytes = 0;
    node->first_decoding = 0;
    node->last_decoding = 0;
    node->is_gpu_full = 0;
    node->loading_requests = 0;
    node->loading_bytes = 0;
    node->is_load_full = 0;
    node->link_busy_until_ns = world->control.now;
    world->control.open_nodes -= node_id < fleet->entry_nodes;
    batch_clear(world);
    fleet_restart_requests(world, node_id);
}

static int64_t fleet_turns(World *world, UNUSED int64_t actor_id, int64_t node) {
    return world->fleet.nodes[node].turns;
}

// Lets a node join. To routers that compare turns it has served as many as the node with the
// fewest.
static void fleet_join_node(World *world, int64_t node_id) {
    Fleet *fleet = &world->fleet;
    Node *node = &fleet->nodes[node_id];
    if (node->is_up) {
        return;
    }
    int64_t least = fleet_cheapest_node(world, NONE, 0, fleet->count, fleet_turns);
    if (least != NONE) {
        node->turns = max_of(node->turns, fleet->nodes[least].turns);
    }
    node->is_up = 1;
    world->control.open_nodes += node_id < fleet->entry_nodes;
}

// Puts a tier out of reach. With a store queue, stores wait until it is back; without one, they are
// refused.
static void fleet_cut_off_tier(World *world, int64_t level) {
    Control *control = &world->control;
    Tier *tier = &world->tiers[level];
    control->unreachable_tiers = 1 << level;
    control->reachable_object_bytes = tier->largest_object_bytes;
    if (!tiers_include(world->knobs.queued_tiers, level)) {
        tier->largest_object_bytes = -1;
    }
}

// Makes it reachable again.
static void fleet_reconnect_tier(World *world, int64_t level) {
    Control *control = &world->control;
    Tier *tier = &world->tiers[level];
    int64_t now = control->now;
    control->unreachable_tiers = 0;
    tier->largest_object_bytes = control->reachable_object_bytes;
    if (!tiers_include(world->knobs.queued_tiers, level)) {
        return;
    }
    tier->busy_until_ns[OP_WRITE] = max_of(tier->busy_until_ns[OP_WRITE], now);
    if (tier->next_heartbeat_ns && tier->next_heartbeat_ns < now) {
        tier->next_heartbeat_ns = round_up_div(now, tier->heartbeat_ns) * tier->heartbeat_ns;
    }
}

// Applies the event that is due.
void fleet_apply_event(World *world) {
    Control *control = &world->control;
    const FleetEvent *event = &world->fleet_events[control->events_done];
    background_catch_up(world, control->now);
    switch (event->kind) {
    case EMPTIED:
        fleet_empty_tier(world, event->place, event->tier);
        break;
    case LOST:
        fleet_lose_node(world, event->place, event->tier);
        break;
    case JOINED:
        fleet_join_node(world, event->place);
        break;
    case GONE:
        fleet_cut_off_tier(world, event->tier);
        break;
    default:
        fleet_reconnect_tier(world, event->tier);
    }
    slot_release_pending(world);
    control->events_done++;
    control->next_event_ns = UNBOUNDED;
    if (control->events_done < world->fleet_events_count) {
        control->next_event_ns = world->fleet_events[control->events_done].when;
    }
}
