// The look-up: what of a request's objects is cached, its reads, and what they copy to faster tiers.
#include "sim.h"

// Find where each of `chain[:known]` is live, into `where`; how many of them may be used. The first `first` are
// documents, each by itself; from there on it is as the preset says.
static int64_t look_up(World *w, int64_t first, int64_t known) {
    Knobs *k = &w->knobs;
    for (int64_t i = 0; i < first; i++) w->where[i] = (int8_t)fastest(w, w->chain[i]);
    int64_t end = first, in_fastest = NONE, of = 0;
    for (; end < known; end++) {
        int64_t found = fastest_from(w, w->chain[end], of);
        w->where[end] = (int8_t)found;
        if (k->is_by_tier) of = max_of(of, found);
        if (found == NONE && k->is_prefix) break;
        if (found != 0 && in_fastest < 0) in_fastest = end;
    }
    // Not worth a load from below: the engine computes these again.
    if (in_fastest >= 0 && (end - in_fastest) * k->chunk_tokens < k->min_load_tokens) end = in_fastest;
    return k->staging ? cut_reads(w, first, end) : end;
}

// How much of chunk `i` of a prefix of `end` chunks is read: windowed layers need only the last ones.
static int64_t read_size(World *w, int64_t stored, int64_t i, int64_t end) {
    int64_t chunk_tokens = w->knobs.chunk_tokens, size = 0;
    if (w->pieces_count == 1 || chunk_tokens == 0 || i < 0) return stored;
    for (int64_t p = 0; p < w->pieces_count; p++) {
        Piece *piece = &w->pieces[p];
        int64_t needed = end;
        if (piece->kind == SLIDING) needed = up_by(piece->window, chunk_tokens);
        else if (piece->kind == CHUNKED)
            needed = end - end * chunk_tokens / piece->window * piece->window / chunk_tokens;
        else if (piece->kind == STATE) needed = 1;
        if (i >= end - needed) size += piece->bytes;
    }
    return size;
}

// Note that those of `chain[:end]` were used that are in tiers where the last of them counts as used first.
static void touch_backwards(World *w, int64_t end) {
    for (int64_t i = end - 1; i >= 0; i--) {
        int64_t t = w->where[i];
        if (t != NONE && w->tiers[t].loads_backwards) touch(w, t, w->chain[i]);
    }
}

// Read each of `chain[:end]` where it is; when the last is read, and the tokens that saves.
//
// Documents come first, in a stage of their own. Then objects of one group of layers are a stage: the first layers can
// be used while the next are read.
static int64_t read_hits(World *w, int64_t actor, int64_t end, int64_t *hit_tokens) {
    Actor *me = &w->actors[actor];
    Knobs *k = &w->knobs;
    int64_t now = w->control.now, documents = me->retrieved_objects, request = me->request, stage = me->stage;
    int64_t done = now, hits = 0, hit_bytes = 0, document_hits = 0;
    begin_reads(w, now);
    begin_stage(w);
    for (int64_t i = 0; i < end; i++) {
        int64_t t = w->where[i], entry = w->chain[i];
        if (t == NONE) continue;
        Tier *tier = &w->tiers[t];
        int64_t size = read_size(w, size_of(w, entry), i - documents, end - documents);
        if (!tier->loads_backwards) {
            follow(w, t, i);
            touch(w, t, entry);
        }
        tier->read_bytes += size, tier->hits++, tier->hit_bytes += size;
        hits++, hit_bytes += size;
        int64_t read_by = serve_in_turn(w, t, size, now);
        pin(w, entry, read_by);
        done = max_of(done, read_by);
        if (i < documents) {
            document_hits++;
            stage = in_stage(w, stage, t, tier->request_reads);
            emit(w, now, OP_READ, t, PHASE_RETRIEVE, entry, size, request, stage);
        }
    }
    if (k->loads_backwards) touch_backwards(w, end);
    stage += w->control.is_staged;
    int64_t layers = hits > document_hits ? k->layers : 0;
    for (int64_t layer = 0; layer < layers; layer++) {
        begin_stage(w);
        for (int64_t i = documents; i < end; i++) {
            int64_t t = w->where[i], entry = w->chain[i];
            if (t == NONE) continue;
            int64_t size = read_size(w, size_of(w, entry), i - documents, end - documents);
            stage = in_stage(w, stage, t, w->tiers[t].request_reads);
            emit_layer(w, now, OP_READ, t, PHASE_LOAD, entry, size, request, stage, layer);
        }
        stage += w->control.is_staged;
    }
    me->stage = stage;
    *hit_tokens = k->chunk_tokens ? hits * k->chunk_tokens : hit_bytes / k->bytes_per_token;
    return done;
}

// Count what tiers look up that do not stop at a miss: all that the first tier lacks, but for faster ones' own.
static void count_past_miss(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    int64_t n = me->retrieved_objects + me->shared + me->length, first = 0;
    while (first < n && live_in(w, w->chain[first]) & 1) first++;
    for (int64_t t = 0; t < w->tiers_count; t++) {
        if (!w->tiers[t].looks_past_miss || w->control.gone & (1 << t)) continue;
        int64_t faster = ((1 << t) - 1) & ~1;
        for (int64_t i = first; i < n; i++) w->tiers[t].looked_up += !(live_in(w, w->chain[i]) & faster);
    }
}

static void count_lookups(World *w, int64_t actor, int64_t looked_up) {
    Actor *me = &w->actors[actor];
    Total *total = &w->total;
    total->lookups += looked_up;
    if (w->knobs.looks_past_miss) count_past_miss(w, actor);
    for (int64_t i = 0; i < looked_up; i++) total->lookup_bytes += size_of(w, w->chain[i]);
    int64_t documents = me->retrieved_objects, shared = w->knobs.mode != DECODE_ONLY ? me->shared : 0;
    total->document_lookups += documents;
    total->prompt_lookups += shared;
    for (int64_t i = 0; i < min_of(me->reached, documents + shared); i++) {
        if (w->where[i] == NONE) continue;
        if (i < documents) total->document_hits++;
        else total->prompt_hits++;
    }
}

// Read what is cached of the request; the time until all of it is there.
int64_t load(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    Knobs *k = &w->knobs;
    Total *total = &w->total;
    if (w->control.open == 0) return until_open(w);
    // Begun again where a node was lost: what it made as it was served first counts as new once more.
    int64_t own_objects = me->length - (me->restarts && !k->is_prefix ? me->made : 0);
    if (k->source == CHAINS) find_objects(w, actor);
    else {
        if (!me->restarts) me->made = me->new;
        make_objects(w, actor);
    }
    int64_t n = collect(w, actor);
    if (w->fleet.count > 1) route(w, actor, n);
    me->queued_ns = max_of(0, w->fleet.nodes[me->node].prefill_busy_ns - w->control.now);
    set_entry(w, actor, n);
    if (me->restarts == 0) total->requests++, total->input_tokens += me->input, total->output_tokens += me->output;
    int64_t known = me->retrieved_objects + me->shared + own_objects;
    int64_t end = 0, done = w->control.now, hit_tokens = 0, looked_up = 0;
    me->reached = 0, me->computed = 0, me->refused = 0, me->offer = 0;
    if (k->mode != PREFILL_ONLY) {
        end = look_up(w, me->retrieved_objects, known);
        me->reached = end;
        done = read_hits(w, actor, end, &hit_tokens);
        looked_up = k->is_prefix ? n : known;
        count_lookups(w, actor, looked_up);
    }
    // What a prefix match leaves, or a turn adds, is what is computed and stored.
    me->new = n - (k->is_prefix ? end : known), me->missed_tokens = max_of(0, me->input - hit_tokens);
    if (k->mode == DECODE_ONLY) me->new = 0, me->missed_tokens = 0;
    if (w->fleet.count > 1) account(w, actor, end, looked_up);
    if (w->found_count) note_found(w, actor, end, looked_up);
    me->step = STEP_PROMOTE;
    return done - w->control.now;
}

// --- copies to faster tiers -----------------------------------------------------------------------------------------

// The tier that `slot`, which was found in tier `found`, is copied up from; 0 or less if it is not.
static int64_t source_of(World *w, int64_t slot, int64_t found) {
    if (found <= 0) return found;
    Slot *what = &w->slots[slot];
    if (w->knobs.promotion == SECOND_TOUCH && (what->seen ^= 1)) return 0;
    // A promotion before it demoted or evicted it: it is not in its tier to be moved from there.
    if (w->knobs.is_exclusive && !(what->live & (1 << found))) return 0;
    return found;
}

// Copy each of `chain[:end]` from the tier in `where` to faster ones; the stages used. The first `staged` ones have
// buffers in the staging tier, if there is one; the others do not come to it.
static int64_t copy_up(World *w, int64_t end, int64_t staged, int64_t stage, int64_t request) {
    Knobs *k = &w->knobs;
    int64_t now = w->control.now, staging = k->staging - 1, at = stage;
    begin_stage(w);
    for (int64_t i = 0; i < end; i++) {
        int64_t slot = w->chain[i], source = source_of(w, slot, w->where[i]);
        if (source <= 0) continue;
        int64_t size = w->slots[slot].size, t = k->promotion == TEMPORARY ? 0 : source - 1;
        while (k->is_exclusive && t > 0 && size > w->tiers[t].largest) t--;
        if (k->is_exclusive && t >= 0 && size <= w->tiers[t].largest) drop(w, source, slot, now, PHASE_PROMOTE);
        for (; t >= 0; t = k->is_exclusive ? NONE : t - 1) {
            if (k->is_write_back && size <= w->tiers[t].largest) make_room_by_demotion(w, t, slot, now);
            bool has_place = !(w->slots[slot].live & (1 << t));
            if (t == staging && source > t) has_place = has_place && i < staged;
            else if (has_place) has_place = make_room(w, t, slot, now);
            if (!has_place) continue;
            follow(w, t, i);
            at = in_stage(w, at, t, w->tiers[t].request_writes);
            write_slot(w, t, slot, now, PHASE_PROMOTE, request, at);
        }
    }
    return at - stage + w->control.is_staged;
}

// How long it is until a prompt that takes so long is computed; in turn, the others come before it.
static int64_t compute(World *w, int64_t took_ns) {
    Node *node = &w->fleet.nodes[w->control.node];
    node->computing_ns += took_ns;
    if (took_ns == 0 || !w->knobs.prefill_in_turn) return took_ns;
    int64_t start = max_of(node->prefill_busy_ns, w->control.now);
    w->total.prefills++;
    w->total.waiting_ns += start - w->control.now;
    node->prefill_busy_ns = start + took_ns;
    return node->prefill_busy_ns - w->control.now;
}

// Whether the actor's request stores as it computes: not with documents, which are not in prompt order.
bool is_stepwise(World *w, int64_t actor) {
    return w->knobs.offer_tokens > 0 && w->actors[actor].retrieved_objects == 0;
}

// Copy what was loaded to faster tiers, as the promotion says; the time the rest takes to compute.
int64_t promote(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    Knobs *k = &w->knobs;
    if ((k->promotion || k->staging) && me->reached) {
        gather(w, actor);
        int64_t of = 0;
        for (int64_t i = 0; i < me->reached; i++) {
            w->where[i] = (int8_t)fastest_from(w, w->chain[i], of);
            if (k->is_by_tier && i >= me->retrieved_objects) of = max_of(of, w->where[i]);
            if (k->promotion && w->where[i] > 0 && w->chain[i] < 0) w->chain[i] = give_slot(w, home_of(w, actor, i));
        }
        int64_t staged = me->reached;
        if (k->staging) {
            staged = cut_reads(w, me->retrieved_objects, me->reached);
            staged = stage_reads(w, staged, w->control.now);
        }
        if (k->promotion) me->stage += copy_up(w, me->reached, staged, me->stage, me->request);
    }
    me->step = STEP_STORE;
    int64_t took_ns = compute(w, me->missed_tokens * k->prefill_ns_per_token);
    if (is_stepwise(w, actor)) took_ns -= max_of(0, me->missed_tokens - k->offer_tokens) * k->prefill_ns_per_token;
    return took_ns;
}
