// The fleet around the tiers: whose are at hand, which node serves a request and what it found
// there, the hand-over of a computed prompt from a node that prefills, over the link, to one that
// decodes, and what happens to nodes: they go and come, drives and the store lose what they hold or
// reach.
//
// What is lost leaves its tier by rows of phase `lose`, for nobody can read it any more: so a trace
// stays one that can be checked and replayed. What is under way at a node that is lost begins
// again, at once, as a request that comes then.
#include "sim.h"

#include <string.h>

// --- the change from one node to another: its tiers, and those of its rack, become World.tiers
// ----------------------

void move(World *w, int64_t node) {
    Fleet *fleet = &w->fleet;
    int64_t here = w->control.node;
    if (here == node) {
        return;
    }
    int64_t rack = fleet->count + here / fleet->rack_nodes,
            next_rack = fleet->count + node / fleet->rack_nodes;
    if (fleet->due_count) {
        note_due(w, here, fleet->scoped & ~fleet->racked);
        fleet->due[node] = UNBOUNDED;
        if (rack != next_rack) {
            note_due(w, rack, fleet->racked);
            fleet->due[next_rack] = UNBOUNDED;
        }
    }
    for (int64_t t = 0; t < w->tiers_count; t++) {
        bool is_racked = fleet->racked & (1 << t);
        int64_t old = (is_racked ? rack : here) * w->tiers_count + t;
        int64_t new = (is_racked ? next_rack : node) * w->tiers_count + t;
        if (!(fleet->scoped & (1 << t)) || old == new) {
            continue;
        }
        Tier *tier = &w->tiers[t];
        Queue *queues = queue_of(w, t, 0);
        fleet->tiers[old] = *tier;
        memcpy(&fleet->queues[old * QUEUES], queues, QUEUES * sizeof(Queue));
        *tier = fleet->tiers[new];
        memcpy(queues, &fleet->queues[new * QUEUES], QUEUES * sizeof(Queue));
    }
    w->control.node = node;
}

// --- which node serves the next request, and what that does to it
// ---------------------------------------------------

// Let the actor's request be served by `node`.
static void give_to(World *w, int64_t actor, int64_t node) {
    Actor *me = &w->actors[actor];
    Node *its = &w->fleet.nodes[me->node = node];
    its->outstanding++;
    its->active_tokens += me->input;
    its->requests++;
    its->turns++;
}

// Let it no longer be served where it is.
void take_from(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    w->fleet.nodes[me->node].outstanding--;
    w->fleet.nodes[me->node].active_tokens -= me->input;
}

// Send the actor's request, whose `n` objects are in `chain`, to the node that the router says.
void route(World *w, int64_t actor, int64_t n) {
    int64_t node = w->fleet.router(w, actor, n, 0);
    give_to(w, actor, node);
    Node *its = &w->fleet.nodes[node];
    Actor *me = &w->actors[actor];
    me->missed_tokens = me->input - found_tokens(w, actor, node); // as far as its router knows
    its->waiting++, its->input_tokens += me->input, its->prefilling_tokens += me->missed_tokens;
    move(w, node);
    see_all(w, n);
}

// Count and note what the actor's request found: `chain[:end]`, of so many objects `looked_up`.
void account(World *w, int64_t actor, int64_t end, int64_t looked_up) {
    Actor *me = &w->actors[actor];
    Node *node = &w->fleet.nodes[me->node];
    Found found = {.ts_ns = w->control.now,
                   .lookups = looked_up,
                   .computed_tokens = me->missed_tokens,
                   .restarted = me->restarts > 0};
    for (int64_t i = 0; i < end; i++) {
        int64_t t = w->where[i];
        if (t == NONE) {
            continue;
        }
        if (w->fleet.own & (1 << t)) {
            found.local_hits++;
        } else {
            found.shared_hits++;
        }
    }
    if (w->fleet.count > 1) {
        node->lookups += looked_up, node->local_hits += found.local_hits,
            node->shared_hits += found.shared_hits;
        node->prefilling_tokens += me->missed_tokens, node->computed_tokens += me->missed_tokens;
    }
    if (!w->found_count) {
        return;
    }
    if (w->control.found == w->found_count) {
        ensure(w, FLUSH, 1);
    }
    w->found[w->control.found++] = found;
}

// How long it is until a node joins that may be sent requests; NONE if none ever does.
int64_t until_open(World *w) {
    for (int64_t i = w->control.happened; i < w->happenings_count; i++) {
        Happening *step = &w->happenings[i];
        if (step->kind == JOINED && step->place < w->fleet.entrances) {
            return step->when - w->control.now;
        }
    }
    return NONE;
}

// --- what routers share: which nodes they may choose, the cheapest of them, and what of a prompt
// each has ------------

// Of the nodes from `first` on, below `end`, the one that is up and costs least for the actor's
// request; of several, the one that has served the fewest, and of those the first.
int64_t cheapest(World *w, int64_t actor, int64_t first, int64_t end, Cost *cost) {
    int64_t found = NONE, least = 0;
    for (int64_t node = first; node < end; node++) {
        if (!w->fleet.nodes[node].is_up) {
            continue;
        }
        int64_t its = cost(w, actor, node), turns = w->fleet.nodes[node].turns;
        if (found == NONE || its < least || (its == least && turns < w->fleet.nodes[found].turns)) {
            found = node, least = its;
        }
    }
    return found;
}

int64_t outstanding_of(World *w, UNUSED int64_t actor, int64_t node) {
    return w->fleet.nodes[node].outstanding;
}

// Whether the object after the first `run` ones is one more of those that `node` has (racks come
// after all nodes).
static bool add_run(World *w, int64_t node, int64_t run, int64_t size) {
    Fleet *fleet = &w->fleet;
    if (node >= fleet->count || fleet->runs[node] != run) {
        return false;
    }
    fleet->runs[node]++;
    fleet->runs[fleet->count + node] += size;
    return true;
}

// Find, for each node, of how many of the request's first objects it has a copy in tiers of its
// own, in `runs`.
void measure(World *w, int64_t actor, int64_t n) {
    Fleet *fleet = &w->fleet;
    int64_t first = w->actors[actor].retrieved_objects;
    for (int64_t node = 0; node < 2 * fleet->count; node++) {
        fleet->runs[node] = 0;
    }
    bool is_any = fleet->scoped != 0;
    for (int64_t i = first; is_any && i < n; i++) {
        int64_t entry = w->chain[i];
        is_any = false;
        if (entry < 0) {
            if (place_in(entry)) {
                is_any = add_run(w, place_in(entry) - 1, i - first, w->knobs.chunk_bytes);
            }
            continue;
        }
        for (int64_t copy = fleet->copies[entry].first; copy != NONE;
             copy = fleet->copies[copy].older) {
            const Slot *what = &w->slots[copy];
            if (what->live != 0) {
                is_any |= add_run(w, what->place - 1, i - first, what->size);
            }
        }
    }
}

// How many tokens of the request's prompt `node` has, as `measure` found.
int64_t found_tokens(World *w, int64_t actor, int64_t node) {
    Fleet *fleet = &w->fleet;
    int64_t chunk = w->knobs.chunk_tokens;
    int64_t tokens = chunk ? fleet->runs[node] * chunk
                           : fleet->runs[fleet->count + node] / w->knobs.bytes_per_token;
    return min_of(tokens, w->actors[actor].input);
}

// --- the hand-over of a computed prompt
// -----------------------------------------------------------------------------

// Append rows of the link, which is the tier after all others, for what of `chain[:n]` is sent.
static void emit_sent(World *w, int64_t n, int64_t op, int64_t phase, int64_t request,
                      int64_t stage) {
    for (int64_t i = 0; i < n; i++) {
        if (!w->where[i]) {
            continue;
        }
        int64_t slot = w->chain[i];
        emit(w, w->control.now, op, w->tiers_count, phase, slot, size_of(w, slot), request, stage);
    }
}

// Put what was sent into the node's fastest tier; return whether any of it found room.
static bool keep_sent(World *w, int64_t n, int64_t request, int64_t stage) {
    int64_t now = w->control.now;
    bool is_any = false;
    for (int64_t i = 0; i < n; i++) {
        int64_t slot = w->chain[i];
        if (!w->where[i] || w->slots[slot].size > w->tiers[0].largest) {
            continue;
        }
        if (w->knobs.is_write_back) {
            make_room_by_demotion(w, 0, slot, now);
        }
        if (!(w->slots[slot].live & 1) && make_room(w, 0, slot, now)) {
            follow(w, 0, i);
            write_slot(w, 0, slot, now, PHASE_PROMOTE, request, stage);
            is_any = true;
        }
    }
    return is_any;
}

// Send what the decoding node lacks of the request's prompt to it; return the time that takes.
//
// It is written to the link, read from it, and put into the node's fastest tier. The node that
// sends is one server.
int64_t hand_over(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    int64_t now = w->control.now, sender = me->node, n = gather(w, actor), sent = 0;
    int64_t taker =
        cheapest(w, actor, w->fleet.entrances, w->fleet.count, outstanding_of); // which decodes
    give_slots(w, actor, 0, n);
    move(w, taker);
    see_all(w, n);
    for (int64_t i = 0; i < n; i++) {
        w->where[i] = 1 - (live_in(w, w->chain[i]) & 1);
        // What stands twice in a prompt goes once.
        int64_t before = w->where[i] && me->retrieved_objects ? i : 0;
        for (int64_t k = 0; k < before; k++) {
            if (w->chain[k] == w->chain[i]) {
                w->where[i] = 0;
            }
        }
        sent += w->where[i] * size_of(w, w->chain[i]);
    }
    give_memory(w, actor);
    take_from(w, actor);
    give_to(w, actor, taker);
    take_memory(w, actor, n);
    if (sent == 0) {
        return 0;
    }
    move(w, sender);
    emit_sent(w, n, OP_WRITE, PHASE_STORE, me->request, me->stage);
    move(w, taker);
    see_all(w, n);
    emit_sent(w, n, OP_READ, PHASE_LOAD, me->request, me->stage + 1);
    emit_sent(w, n, OP_DELETE, PHASE_EVICT, NONE, NONE);
    me->stage += 2;
    if (keep_sent(w, n, me->request, me->stage)) {
        me->stage++;
    }
    Node *node = &w->fleet.nodes[sender];
    node->sent_bytes += sent;
    if (w->fleet.link_bytes_per_s == 0) {
        return 0;
    }
    node->link_busy_ns =
        max_of(node->link_busy_ns, now) + transfer_ns(sent, w->fleet.link_bytes_per_s);
    return node->link_busy_ns - now;
}

// --- what happens to nodes, drives and the store
// --------------------------------------------------------------------

// Lose all that tier `t` of `node` holds, and what its policy remembers.
static void empty_tier(World *w, int64_t node, int64_t t) {
    move(w, node);
    Tier *tier = &w->tiers[t];
    for (int64_t number = 0; number < QUEUES; number++) {
        while (queue_of(w, t, number)->tail != NONE) {
            int64_t slot = queue_of(w, t, number)->tail;
            if (w->slots[slot].live & (1 << t)) {
                if (w->pins_count) {
                    w->pins[slot].until_ns = 0;
                }
                lose(w, t, slot, w->control.now);
            } else {
                tier->forget(w, t, slot, 0);
            }
        }
    }
    if (tier->on_empty) {
        tier->on_empty(w, t, 0, 0);
    }
    tier->target = 0.0, tier->has_evicted = 0, tier->hand = NONE, tier->goal = NONE,
    tier->behind = 0;
}

static bool is_on(World *w, int64_t actor, int64_t node) { // its request is being served there
    Actor *me = &w->actors[actor];
    return me->node == node && me->step > STEP_QUEUE;
}

// Let the requests that are on `node` begin again, now.
static void fail_over(World *w, int64_t node) {
    Control *control = &w->control;
    int64_t count = 0;
    for (int64_t i = 0; i < control->heap_size; i++) {
        Event event = w->heap[i];
        if (!is_on(w, event.actor, node)) {
            push(w->heap, count++, event.when, event.actor);
        }
    }
    for (int64_t actor = 0; actor < w->actors_count; actor++) {
        if (!is_on(w, actor, node)) {
            continue;
        }
        Actor *me = &w->actors[actor];
        me->step = STEP_QUEUE, me->new = 0, me->first_step = NONE,
        me->held_bytes = me->holds_count = 0;
        me->restarts++;
        push(w->heap, count++, control->now, actor);
    }
    control->heap_size = count;
}

// Lose what the node's own tiers hold, but for those whose bit `kept` has, and let its requests
// begin again.
static void lose_node(World *w, int64_t node, int64_t kept) {
    Fleet *fleet = &w->fleet;
    Control *control = &w->control;
    Node *what = &fleet->nodes[node];
    if (!what->is_up) {
        return;
    }
    for (int64_t t = 0; t < w->tiers_count; t++) {
        if (!(fleet->own & (1 << t))) {
            continue;
        }
        move(w, node);
        if (!(kept & (1 << t))) {
            empty_tier(w, node, t);
        }
        Tier *tier = &w->tiers[t];
        tier->busy_ns[OP_READ] = tier->busy_ns[OP_WRITE] = control->now;
        while (tier->waiting_objects > 0) {
            take_first(w, t);
        }
        tier->beat_ns = 0;
        if (w->knobs.filtered & (1 << t)) {
            forget_counts(w, t);
        }
    }
    move(w, node);
    what->is_up = what->outstanding = what->waiting = 0;
    what->prefilling_tokens = what->active_tokens = what->prefill_busy_ns = what->first_queued = 0;
    what->held_bytes = what->is_full = 0;
    what->link_busy_ns = control->now;
    control->open -= node < fleet->entrances;
    disband(w);
    fail_over(w, node);
}

static int64_t turns_of(World *w, UNUSED int64_t actor, int64_t node) {
    return w->fleet.nodes[node].turns;
}

// Let `node` serve.
static void join_node(World *w, int64_t node) {
    Node *its = &w->fleet.nodes[node];
    if (its->is_up) {
        return;
    }
    int64_t least = cheapest(w, NONE, 0, w->fleet.count, turns_of);
    if (least != NONE) {
        its->turns = max_of(its->turns, turns_of(w, NONE, least));
    }
    its->is_up = 1;
    w->control.open += node < w->fleet.entrances;
}

// Put tier `t` out of reach, or back; without a queue, what is to be stored there is not.
static void set_reach(World *w, int64_t t, bool is_gone) {
    Control *control = &w->control;
    Tier *tier = &w->tiers[t];
    int64_t now = control->now;
    bool is_queued = w->knobs.queued & (1 << t);
    if (is_gone) {
        control->gone = 1 << t, control->gone_largest = tier->largest;
        if (!is_queued) {
            tier->largest = -1;
        }
        return;
    }
    control->gone = 0, tier->largest = control->gone_largest;
    if (is_queued) {
        tier->busy_ns[OP_WRITE] = max_of(tier->busy_ns[OP_WRITE], now);
        if (tier->beat_ns && tier->beat_ns < now) {
            tier->beat_ns = up_by(now, tier->heartbeat_ns) * tier->heartbeat_ns;
        }
    }
}

// Do the step that is due.
void happen(World *w) {
    Control *control = &w->control;
    Happening *step = &w->happenings[control->happened];
    catch_up(w, control->now);
    if (step->kind == EMPTIED) {
        empty_tier(w, step->place, step->tier);
    } else if (step->kind == LOST) {
        lose_node(w, step->place, step->tier);
    } else if (step->kind == JOINED) {
        join_node(w, step->place);
    } else {
        set_reach(w, step->tier, step->kind == GONE);
    }
    pack(w);
    control->happened++;
    control->happen_ns =
        control->happened < w->happenings_count ? w->happenings[control->happened].when : UNBOUNDED;
}
