// The decode: an entry is read again as tokens are generated, and the request ends.
#include "sim.h"

// How long it takes until the request has generated so many `tokens`, or WAITS.
static int64_t until(World *w, int64_t actor, int64_t tokens) {
    if (w->knobs.is_batched) return after_steps(w, actor, tokens);
    return max_of(0, w->actors[actor].decode_start + tokens * w->knobs.decode_ns_per_token - w->control.now);
}

// How often the request's entry is read while it is decoded.
static int64_t reads_of(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    Knobs *k = &w->knobs;
    bool is_long = 0 < k->prefill_only_from_tokens && k->prefill_only_from_tokens <= me->new_tokens;
    if (!k->decode_read_tokens || k->mode == PREFILL_ONLY || is_long) return 0;
    int64_t runs = up_by(me->output, k->decode_read_tokens);
    return k->mode == DECODE_ONLY ? runs : 1 + runs;
}

// Read the turn's own entry again as tokens are generated; the time to the next such step.
int64_t decode(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    Knobs *k = &w->knobs;
    int64_t now = w->control.now;
    if (now < me->served_ns) return me->served_ns - now;
    int64_t done = me->decoded, reads = reads_of(w, actor);
    bool is_read = done < reads && me->entry != NONE;
    if (!(is_read && k->reads_at_once) && (done == 0 || k->reads_at_once)) {
        me->decode_start = now;
        if (k->is_batched) join(w, actor);
    }
    if (!is_read) {
        me->step = STEP_END;
        if (k->stores_generated && k->chunk_tokens && k->source == USERS) {
            int64_t tokens = me->input - me->retrieved_tokens + me->output;
            me->new = tokens / k->chunk_tokens - me->shared - me->length;
        }
        return until(w, actor, me->output);
    }
    see(w, me->entry);
    int64_t t = fastest(w, me->entry);
    me->served_ns = now;
    if (t == NONE) w->total.decode_misses++;
    else {
        touch(w, t, me->entry);
        me->served_ns = read_slot(w, t, me->entry, now, PHASE_DECODE, me->request, me->stage);
        me->stage++;
    }
    me->decoded = done + 1;
    if (done + 1 == reads || k->reads_at_once) return me->served_ns - now;
    // The first read fetches the entry; read k >= 1 begins the k-th run of decode_read_tokens tokens. (On its own,
    // decoding has loaded the entry already, and begins with such a run.)
    int64_t run = k->mode == DECODE_ONLY ? done + 1 : done;
    return until(w, actor, run * k->decode_read_tokens);
}

// Whether those of `chain[:n]` that tier `t` has are its most recent ones already, in that order.
static bool are_first(World *w, int64_t t, int64_t n) {
    int64_t slot = queue_of(w, t, 0)->head;
    for (int64_t i = 0; i < n; i++) {
        if (!(live_in(w, w->chain[i]) & (1 << t))) continue;
        if (member_of(w, t, w->chain[i]) != slot) return false;
        slot = link_of(w, t, slot)->older;
    }
    return true;
}

// Make the request's first objects the most recent ones of each tier that evicts by LRU and does so.
static void use_backwards(World *w, int64_t actor) {
    int64_t n = gather(w, actor);
    for (int64_t t = 0; t < w->tiers_count; t++) {
        Tier *tier = &w->tiers[t];
        bool is_kept = tier->is_tail_first_at_end && !tier->on_hit && !is_endless(w, t);
        if (!is_kept || w->control.gone & (1 << t) || are_first(w, t, n)) continue;
        for (int64_t i = n - 1; i >= 0; i--)
            if (live_in(w, w->chain[i]) & (1 << t)) on_hit(w, t, member_of(w, t, w->chain[i]));
    }
}

// End a request: a user thinks, for the time returned; a file's actor is idle again.
int64_t end_request(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    w->total.decoded_tokens += me->output;
    w->total.decoding_ns += w->control.now - me->decode_start;
    depart(w, actor);
    Node *node = &w->fleet.nodes[me->node];
    node->outstanding--;
    node->active_tokens -= me->input;
    if (me->new) make_objects(w, actor);
    if (me->new + me->refused) store_rest(w, actor);
    if (w->knobs.is_tail_first_at_end) use_backwards(w, actor);
    if (w->knobs.source != USERS) {
        if (w->knobs.follows) call_followers(w, w->following.came[me->request].actor, 0);
        leave_request(w, actor);
        me->step = STEP_ASK;    // as one that is idle
        w->idle[w->control.idle++] = actor;
        return NONE;
    }
    me->history = me->input - me->retrieved_tokens + me->output;
    me->turn++;
    me->step = STEP_ASK;
    return max_of(1, think_ns(&w->users[actor], w->knobs.seed, actor));
}
