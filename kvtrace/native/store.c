// The store: what was computed is written to the tiers that the placement says.
#include "sim.h"

// The fastest tier from `t` on that admits `slot`, or `held_in` if that is faster, or NONE.
static int64_t admitting(World *w, int64_t t, int64_t slot, int64_t held_in, int64_t now, int64_t phase) {
    while (t != NONE && t != held_in && phase != PHASE_POPULATE && !admits(w, t, slot, now))
        t = lower_tier(w, t + 1, w->slots[slot].size);
    return t;
}

// Write each new object to the fastest tier that takes it, which moves others down; the stages used.
static int64_t store_down(World *w, int64_t first, int64_t n, int64_t stage, int64_t request, int64_t phase) {
    int64_t now = w->control.now, at = stage;
    begin_stage(w);
    for (int64_t i = first; i < n; i++) {
        int64_t slot = w->chain[i], t = lower_tier(w, 0, w->slots[slot].size), held_in = fastest(w, slot);
        if (t == NONE) {
            w->total.unplaced++;
            continue;
        }
        if (held_in == t || (held_in != NONE && w->knobs.is_exclusive)) {
            // Computed again though it is still there: an engine does not store it twice.
            follow(w, held_in, i);
            touch(w, held_in, slot);
            continue;
        }
        t = admitting(w, t, slot, held_in, now, phase);
        if (t != NONE && t == held_in) {
            follow(w, t, i);
            touch(w, t, slot);
        } else if (t != NONE) {
            make_room_by_demotion(w, t, slot, now);
            follow(w, t, i);
            at = in_stage(w, at, t, w->tiers[t].request_writes);
            write_slot(w, t, slot, now, phase, request, at);
        }
    }
    return at - stage + w->control.is_staged;
}

// Let the tier that takes offers whole make room for `chain[first:n]`; the tier from which on all refuse.
static int64_t take_whole(World *w, int64_t first, int64_t n) {
    Control *c = &w->control;
    int64_t previous = c->offer, t = 0;
    c->offer = 0, c->is_refused = 0;
    while (t < w->tiers_count && !w->tiers[t].is_whole) t++;
    if (t == w->tiers_count) return t;
    w->total.offers++;
    if (takes_offer(w, t, first, n, previous, c->now)) {
        c->offer = c->offers;
        return w->tiers_count;
    }
    c->is_refused = 1;
    w->total.refused_offers++;
    w->total.refused_objects += n - first;
    return t;
}

// Write each new object to the first tier that takes it, and a stage later to all below; the stages used.
static int64_t store_through(
    World *w, int64_t first, int64_t n, int64_t stage, int64_t request, int64_t first_phase, int64_t rest_phase) {
    Control *c = &w->control;
    int64_t now = c->now, open_tiers = take_whole(w, first, n), at = stage;
    begin_stage(w);
    for (int64_t i = first; i < n; i++) {
        int64_t slot = w->chain[i], t = lower_tier(w, 0, w->slots[slot].size);
        if (t == NONE) w->total.unplaced++;
        else if (w->slots[slot].live & (1 << t)) {
            if (i >= c->known) {
                follow(w, t, i);
                touch(w, t, slot);
            }
        } else if (t < open_tiers && takes(w, t, slot, now, first_phase)) {
            follow(w, t, i);
            at = in_stage(w, at, t, w->tiers[t].request_writes);
            write_slot(w, t, slot, now, first_phase, request, at);
        }
    }
    at += c->is_staged;
    begin_stage(w);
    for (int64_t i = first; i < n; i++) {
        int64_t slot = w->chain[i];
        for (int64_t t = lower_tier(w, 0, w->slots[slot].size) + 1; 0 < t && t < open_tiers; t++) {
            if (w->slots[slot].live & (1 << t) || !takes(w, t, slot, now, first_phase)) continue;
            follow(w, t, i);
            at = in_stage(w, at, t, w->tiers[t].request_writes);
            write_slot(w, t, slot, now, rest_phase, request, at);
        }
    }
    return at - stage + c->is_staged;
}

// Write `chain[first:n]`; the stages used.
static int64_t place(
    World *w, int64_t first, int64_t n, int64_t stage, int64_t request, int64_t first_phase, int64_t rest_phase) {
    if (w->knobs.is_write_back) return store_down(w, first, n, stage, request, first_phase);
    if (w->knobs.staging) return store_staged(w, first, n, stage, request, first_phase, rest_phase);
    return store_through(w, first, n, stage, request, first_phase, rest_phase);
}

// Write the next item that is there before the start; after a node's last, no tier is busy with any of it.
void populate(World *w) {
    Control *c = &w->control;
    Item *item = &w->items[c->populated];
    for (int64_t i = 0; i < item->objects; i++) w->chain[i] = item->first + i;
    c->offer = 0;
    see_all(w, item->objects);
    place(w, 0, item->objects, 0, NONE, PHASE_POPULATE, PHASE_POPULATE);
    if (++c->populated < w->items_count) return;
    for (int64_t t = 0; t < w->tiers_count; t++) {
        Tier *tier = &w->tiers[t];
        tier->read_busy_ns = 0, tier->write_busy_ns = 0;
        tier->populated_bytes = tier->written_bytes;
    }
    do c->populating++;
    while (c->populating < w->fleet.count && !w->fleet.nodes[c->populating].is_up);
    if (c->populating < w->fleet.count) c->populated = w->knobs.prompts;
}

// Write `chain[first:n]`, as many at a time as a step computes; what is refused is offered with the next ones.
static void offer(World *w, int64_t actor, int64_t first, int64_t n, int64_t first_phase, int64_t rest_phase) {
    Actor *me = &w->actors[actor];
    Control *c = &w->control;
    int64_t each = n - first, at = first, end = first;
    if (w->knobs.offer_tokens > 0 && me->retrieved_objects)
        each = max_of(1, w->knobs.offer_tokens / w->knobs.chunk_tokens);
    if (n == first) me->offer = 0;
    while (end < n) {
        end = min_of(n, end + each);
        c->offer = me->offer;
        me->stage += place(w, at, end, me->stage, me->request, first_phase, rest_phase);
        me->offer = c->offer;
        if (!c->is_refused) at = end;
    }
    me->refused = me->retrieved_objects ? min_of(n - at, me->new) : n - at;
}

// How many of the request's new objects are computed: none is, before the end, if they are turns.
static int64_t computed(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    return me->computed > 0 ? min_of(me->new, me->computed / w->knobs.chunk_tokens) : 0;
}

// Have slots in `chain[first:n]`, the last ones of the actor's request: what is in a tier needs one.
static void give_slots(World *w, int64_t actor, int64_t first, int64_t n) {
    for (int64_t i = first; i < n; i++)
        if (w->chain[i] < 0) w->chain[i] = give_slot(w, home_of(w, actor, i));
}

// Move the shared objects that must be stored to the front of `chain`; how many.
//
// They are documents that are in no tier, and without prefix match likewise a system prompt, or any such prompt if
// nothing was looked up. (A prefix match has put the prompt among the new objects.)
static int64_t keep_lost(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    int64_t lost = 0, shared = me->retrieved_objects + (w->knobs.is_prefix ? 0 : me->shared);
    for (int64_t i = 0; i < shared; i++)
        if (w->knobs.mode == PREFILL_ONLY || fastest(w, w->chain[i]) == NONE) w->chain[lost++] = w->chain[i];
    return lost;
}

// Write the objects that were computed; the time that the prompt's next step takes to compute.
int64_t store(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    Knobs *k = &w->knobs;
    Control *c = &w->control;
    int64_t n = gather(w, actor), found = n - me->new, first = found + computed(w, actor) - me->refused;
    if (k->offers_hits && me->computed == 0 && k->mode != DECODE_ONLY) first = 0;
    me->computed = min_of(me->missed_tokens, is_stepwise(w, actor) ? me->computed + k->offer_tokens : UNBOUNDED);
    bool is_last = me->computed == me->missed_tokens;
    int64_t end = is_last ? n : found + computed(w, actor);
    give_slots(w, actor, first, end);
    c->known = found;
    if (me->retrieved_objects + (k->is_prefix ? 0 : me->shared) && k->mode != DECODE_ONLY) {
        int64_t lost = keep_lost(w, actor);
        for (int64_t i = 0; i < me->new; i++) w->chain[lost + i] = w->chain[found + i];
        first = 0, end = lost + me->new, c->known = 0;
    }
    offer(w, actor, first, end, PHASE_PREFILL, PHASE_STORE);
    if (!is_last) return min_of(k->offer_tokens, me->missed_tokens - me->computed) * k->prefill_ns_per_token;
    if (w->first_token_count && !me->answered) {
        if (c->answered == w->first_token_count) have(w, FLUSH, 1);
        int64_t without_cache_ns = me->queued_ns + me->input * k->prefill_ns_per_token;
        w->first_token[c->answered++] = (FirstToken){c->now - me->asked_ns, without_cache_ns};
    }
    me->answered = 1;
    me->new = 0, me->decoded = 0, me->served_ns = 0, me->first_step = NONE;
    w->fleet.nodes[me->node].prefilling_tokens -= me->missed_tokens;
    w->fleet.nodes[me->node].waiting--;
    if (w->fleet.entrances < w->fleet.count) me->served_ns = c->now + hand_over(w, actor);
    me->step = STEP_DECODE;
    return 0;
}

// As a request ends, write what was refused of its prompt, and the objects that generated tokens have filled.
void store_rest(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    int64_t n = gather(w, actor), first = n - me->new - me->refused;
    give_slots(w, actor, first, n);
    w->control.known = 0;
    if (me->refused) offer(w, actor, first, n, PHASE_PREFILL, PHASE_STORE);
    else offer(w, actor, first, n, PHASE_DECODE, PHASE_DECODE);
    me->new = 0, me->refused = 0;
}
