// A request, from its arrival to its end: of which objects it consists, the look-up and its reads,
// the store of what was computed, and the decode.
#include "sim.h"

#include <stdlib.h>

// === prompts
// =========================================================================================================
// Prompts: of which objects a request consists. They are made when first asked for.

enum { FS_PER_NS = 1000000 };

// --- objects
// --------------------------------------------------------------------------------------------------------

INLINE int64_t home_at(int64_t context, int64_t place) {
    return context << 32 | place;
}

// Name a new object of `size` bytes at `home` of World.contexts.
static void make(World *w, int64_t size, int64_t home) {
    Control *c = &w->control;
    if (c->made == w->made_size_count) {
        ensure(w, FLUSH, 1);
    }
    int64_t number = c->next_object++;
    w->made_size[c->made++] = size;
    if (w->knobs.is_packed) {
        *entry_at(w, home) = packed(number << PACKED_BITS);
        return;
    }
    *entry_at(w, home) = take_slot(w, number, size, home, 0);
}

// Make the new objects of the actor's request and append them to its conversation.
static void make_objects(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    Knobs *k = &w->knobs;
    int64_t size = k->chunk_tokens ? k->chunk_bytes : me->new_tokens * k->bytes_per_token;
    Context *mine = &w->contexts[me->context];
    int64_t end = me->length + me->new;
    if (end > mine->room) {
        mine->room = max_of(end, 2 * mine->room);
        mine->entry = grown(mine->entry, mine->room, sizeof(int64_t));
    }
    for (; me->length < end; me->length++) {
        make(w, size, home_at(me->context, me->length));
    }
    if (w->knobs.source == CONVERSATIONS && me->new) {
        w->conversations[me->session].length = me->length;
    }
}

// Copy the objects of the actor's request, in order, to `chain`; how many.
static int64_t collect(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    int64_t *chain = w->chain, n = 0, at = actor * w->knobs.top_chunks;
    for (int64_t i = at; i < at + me->retrieved; i++) {
        Item *item = &w->items[w->retrieved[i]];
        for (int64_t j = 0; j < item->objects; j++) {
            chain[n++] = item->first + j;
        }
    }
    if (me->shared) {
        int64_t first = w->items[me->prompt].first;
        for (int64_t j = 0; j < me->shared; j++) {
            chain[n++] = first + j;
        }
    }
    const int64_t *own = w->contexts[me->context].entry;
    const int32_t *places = w->knobs.source == CHAINS ? &w->chains[me->first] : NULL;
    for (int64_t i = 0; i < me->length; i++) {
        chain[n++] = own[places ? places[i] : i];
    }
    return n;
}

// The same, seen from where it is served.
int64_t gather(World *w, int64_t actor) {
    w->control.named = collect(w, actor);
    see_all(w, w->control.named);
    return w->control.named;
}

// Where `chain[i]`, one of the actor's own objects, is named in World.contexts.
static int64_t home_of(World *w, int64_t actor, int64_t i) {
    Actor *me = &w->actors[actor];
    if (w->knobs.source == CHAINS) {
        return home_at(0, w->chains[me->first + i]);
    }
    return home_at(me->context, i - me->retrieved_objects - me->shared);
}

// Nobody can ask any more for what is named at `home`.
static void forget_home(World *w, int64_t home) {
    int64_t slot = *entry_at(w, home);
    *entry_at(w, home) = NONE;
    if (slot < 0) {
        return;
    }
    w->slots[slot].held &= ~1;
    w->slots[slot].home = NONE;
    release(w, slot);
}

void forget_all(World *w, int64_t context, int64_t length) {
    for (int64_t i = 0; i < length; i++) {
        forget_home(w, home_at(context, i));
    }
    free(w->contexts[context].entry);
    w->contexts[context] = (Context){NULL, 0};
}

// End the request of a file: what no request is to ask for any more is forgotten where nothing else
// needs it.
static void leave_request(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    if (w->knobs.keeps_ghosts) {
        return;
    }
    if (w->knobs.source == CONVERSATIONS) {
        Conversation *mine = &w->conversations[me->session];
        if (--mine->remaining) {
            return;
        }
        forget_all(w, me->context, mine->length);
        mine->length = 0;
        return;
    }
    for (int64_t i = me->first; i < me->first + me->length; i++) {
        int64_t number = w->chains[i];
        if (--w->object_uses[number] == 0) {
            forget_home(w, home_at(0, number));
        }
    }
}

// === staging buffers
// =================================================================================================
// The staging tier: what a request stores and what it reads from below takes a buffer there before
// any of it is in.

// Make room in tier `t`, whose policy keeps one list, for a buffer for `slot`, beside `taken_bytes`
// of others, but not of what the request at hand reads there; return whether there is.
static bool take(World *w, int64_t t, int64_t slot, int64_t taken_bytes, int64_t now) {
    const Tier *tier = &w->tiers[t];
    int64_t size = size_of(w, slot);
    if (size > tier->largest) {
        return false;
    }
    bool is_full = tier->live_bytes + taken_bytes + size > tier->limit;
    for (int64_t member = queue_of(w, t, 0)->tail, newer; is_full && member != NONE;
         member = newer) {
        newer = link_of(w, t, member)->newer;
        if (!(w->slots[member].held & (2 << t))) {
            drop(w, t, object_of(w, t, member), now, PHASE_EVICT);
        }
        is_full = tier->live_bytes + taken_bytes + size > tier->low;
    }
    // As has_room: an object that it takes may fill an empty tier past its limit.
    return tier->live_bytes + taken_bytes + size <= tier->limit ||
           tier->live_bytes + taken_bytes == 0;
}

enum {
    HELD = 2
}; // in `where`, of an object to store: some tier has it, and it is not stored again

// Take buffers of tier `t` for `chain[first:n]` but what is HELD; return the end of those that have
// one.
static int64_t stage_writes(World *w, int64_t t, int64_t first, int64_t n, int64_t now) {
    const Tier *tier = &w->tiers[t];
    int64_t taken = 0;
    if (tier->evict_every_ns > 0) {
        for (int64_t i = first; i < n; i++) {
            int64_t size = size_of(w, w->chain[i]);
            if (w->where[i] == HELD) {
                continue;
            }
            if (size > tier->largest) {
                return first;
            }
            if (!(w->slots[w->chain[i]].live & (1 << t))) {
                taken += size;
            }
        }
        return tier->live_bytes + taken <= tier->limit ? n : first;
    }
    for (int64_t i = first; i < n; i++) {
        if (w->where[i] == HELD) {
            continue;
        }
        if (!take(w, t, w->chain[i], taken, now)) {
            return i;
        }
        taken += size_of(w, w->chain[i]);
    }
    return n;
}

// The end of those of `chain[:end]` that are read, all of them or none from below the staging tier.
// The first `first` ones are read each by itself: then those of them are not found.
static int64_t cut_reads(World *w, int64_t first, int64_t end) {
    int64_t t = w->knobs.staging - 1, needed = 0, cut = end;
    const Tier *tier = &w->tiers[t];
    if (tier->evict_every_ns == 0) {
        return end;
    }
    for (int64_t i = 0; i < end; i++) {
        if (w->where[i] <= t) {
            continue;
        }
        needed += size_of(w, w->chain[i]);
        if (i >= first) {
            cut = min_of(cut, i);
        }
    }
    if (tier->live_bytes + needed <= tier->limit) {
        return end;
    }
    for (int64_t i = 0; i < first; i++) {
        if (w->where[i] > t) {
            w->where[i] = NONE;
        }
    }
    return cut;
}

// Let those of `chain[:end]` that were read in tier `t` be held there, or no more.
static void hold_read(World *w, int64_t t, int64_t end, bool is_held) {
    for (int64_t i = 0; i < end; i++) {
        if (w->where[i] != t || w->chain[i] < 0) {
            continue; // without a slot it is in no list
        }
        Slot *what = &w->slots[member_of(w, t, w->chain[i])];
        what->held = (int16_t)(is_held ? what->held | 2 << t : what->held & ~(2 << t));
    }
}

// Take buffers for those of `chain[:end]` that were read below the staging tier; return the end of
// those with one. What the request read in the staging tier itself makes no room.
static int64_t stage_reads(World *w, int64_t end, int64_t now) {
    int64_t t = w->knobs.staging - 1, taken = 0, i;
    if (w->tiers[t].evict_every_ns > 0) {
        return end;
    }
    hold_read(w, t, end, true);
    for (i = 0; i < end; i++) {
        if (w->where[i] <= t) {
            continue;
        }
        if (!take(w, t, w->chain[i], taken, now)) {
            break;
        }
        taken += size_of(w, w->chain[i]);
    }
    hold_read(w, t, end, false);
    return i;
}

// === look-up and load
// ================================================================================================
// The look-up: what of a request's objects is cached, its reads, and what they copy to faster
// tiers.

// Find where each of `chain[:known]` is live, into `where`; return how many of them may be used.
// The first `first` are documents, each by itself; from there on it is as the preset says.
static int64_t look_up(World *w, int64_t first, int64_t known) {
    Knobs *k = &w->knobs;
    for (int64_t i = 0; i < first; i++) {
        w->where[i] = (int8_t)fastest_from(w, w->chain[i], 0);
    }
    int64_t end = first, first_below = NONE, of = 0;
    for (; end < known; end++) {
        int64_t found = fastest_from(w, w->chain[end], of);
        w->where[end] = (int8_t)found;
        if (k->is_by_tier) {
            of = max_of(of, found);
        }
        if (found == NONE && k->is_prefix) {
            break;
        }
        if (found != 0 && first_below < 0) {
            first_below = end;
        }
    }
    // Not worth a load from below: the engine computes these again.
    if (first_below >= 0 && (end - first_below) * k->chunk_tokens < k->min_load_tokens) {
        end = first_below;
    }
    return k->staging ? cut_reads(w, first, end) : end;
}

// How much of chunk `i` of a prefix of `end` chunks is read: windowed layers need only the last
// ones.
static int64_t read_size(World *w, int64_t stored, int64_t i, int64_t end) {
    int64_t chunk_tokens = w->knobs.chunk_tokens, size = 0;
    if (w->pieces_count == 1 || chunk_tokens == 0 || i < 0) {
        return stored;
    }
    for (int64_t p = 0; p < w->pieces_count; p++) {
        Piece *piece = &w->pieces[p];
        int64_t needed = end;
        if (piece->kind == SLIDING) {
            needed = up_by(piece->window, chunk_tokens);
        } else if (piece->kind == CHUNKED) {
            needed = end - end * chunk_tokens / piece->window * piece->window / chunk_tokens;
        } else if (piece->kind == STATE) {
            needed = 1;
        }
        if (i >= end - needed) {
            size += piece->bytes;
        }
    }
    return size;
}

// Read each of `chain[:end]` where it is; when the last is read, and the tokens that saves.
//
// Documents come first, in a stage of their own. Then objects of one group of layers are a stage:
// the first layers can be used while the next are read.
static int64_t read_hits(World *w, int64_t actor, int64_t end, int64_t *hit_tokens) {
    Actor *me = &w->actors[actor];
    Knobs *k = &w->knobs;
    int64_t now = w->control.now, documents = me->retrieved_objects, request = me->request,
            stage = me->stage;
    int64_t done = now, hits = 0, hit_bytes = 0, document_hits = 0;
    for (int64_t t = 0; t < w->tiers_count; t++) {
        w->tiers[t].reading = 0, w->tiers[t].reads_began_ns = w->tiers[t].reads_end_ns = now;
    }
    begin_stage(w);
    // In some tiers the last of them counts as used first, once so.
    for (int64_t i = end - 1; k->loads_backwards && i >= 0; i--) {
        int64_t t = w->where[i];
        if (t != NONE && (w->tiers[t].loads_backwards || w->tiers[t].loads_twice)) {
            touch(w, t, w->chain[i]);
        }
    }
    for (int64_t i = 0; i < end; i++) {
        int64_t t = w->where[i], entry = w->chain[i];
        if (t == NONE) {
            continue;
        }
        Tier *tier = &w->tiers[t];
        int64_t size = read_size(w, size_of(w, entry), i - documents, end - documents);
        if (!tier->loads_backwards) {
            follow(w, t, i);
            touch(w, t, entry);
        }
        tier->read_bytes += size * tier->readers, tier->hits++, tier->hit_bytes += size;
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
    stage += w->control.is_staged;
    int64_t layers = hits > document_hits ? k->layers : 0;
    for (int64_t layer = 0; layer < layers; layer++) {
        begin_stage(w);
        for (int64_t i = documents; i < end; i++) {
            int64_t t = w->where[i], entry = w->chain[i];
            if (t == NONE) {
                continue;
            }
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

// For each tier that looks up past a miss, count the objects from the first one on that tier 0
// lacks, without those that a tier between them has.
static void count_past_miss(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    int64_t n = me->retrieved_objects + me->shared + me->length, first = 0;
    while (first < n && live_in(w, w->chain[first]) & 1) {
        first++;
    }
    for (int64_t t = 0; t < w->tiers_count; t++) {
        if (!w->tiers[t].looks_past_miss || w->control.gone & (1 << t)) {
            continue;
        }
        int64_t faster = ((1 << t) - 1) & ~1;
        for (int64_t i = first; i < n; i++) {
            w->tiers[t].file_lookups += !(live_in(w, w->chain[i]) & faster);
        }
    }
}

static void count_lookups(World *w, int64_t actor, int64_t looked_up) {
    Actor *me = &w->actors[actor];
    Total *total = &w->total;
    total->lookups += looked_up;
    if (w->knobs.looks_past_miss) {
        count_past_miss(w, actor);
    }
    for (int64_t i = 0; i < looked_up; i++) {
        total->lookup_bytes += size_of(w, w->chain[i]);
    }
    int64_t documents = me->retrieved_objects,
            shared = w->knobs.mode != DECODE_ONLY ? me->shared : 0;
    total->document_lookups += documents;
    total->prompt_lookups += shared;
    for (int64_t i = 0; i < min_of(me->reached, documents + shared); i++) {
        if (w->where[i] == NONE) {
            continue;
        }
        if (i < documents) {
            total->document_hits++;
        } else {
            total->prompt_hits++;
        }
    }
}

// Give up those of `chain[:end]` that tier `t` would give up for what of the prompt lies below it:
// they come back from there, too. All of a prompt is brought up before any of it is loaded, and is
// used only then.
static void give_up_own(World *w, int64_t t, int64_t end) {
    Tier *tier = &w->tiers[t];
    int64_t missing = tier->live_bytes - tier->limit, needed = 0, below = 0;
    for (int64_t i = 0; i < end; i++) {
        int64_t entry = w->chain[i];
        if (w->where[i] < t || (entry >= 0 && w->slots[entry].seen)) {
            continue;
        }
        if (entry >= 0) {
            w->slots[entry].seen = 1; // of the prompt; promotion=always has no other use for it
        }
        needed += size_of(w, entry);
        if (w->where[i] > t) {
            below += size_of(w, entry);
        }
    }
    missing += below;
    int64_t slot = below && needed <= tier->limit ? queue_of(w, t, 0)->tail : NONE;
    while (missing > 0 && slot != NONE) {
        int64_t newer = link_of(w, t, slot)->newer, own = object_of(w, t, slot);
        if (!w->slots[own].seen) {
            missing -= w->slots[slot].size;
        } else if (fastest_from(w, own, t + 1) == NONE) {
            break;
        } else {
            drop(w, t, own, w->control.now, PHASE_EVICT);
        }
        slot = newer;
    }
    for (int64_t i = 0; i < end; i++) {
        if (w->where[i] < t || w->chain[i] < 0) {
            continue;
        }
        w->slots[w->chain[i]].seen = 0;
        if (w->where[i] == t && !(live_in(w, w->chain[i]) & (1 << t))) {
            w->where[i] = (int8_t)fastest_from(w, w->chain[i], t + 1);
        }
    }
}

static __int128 triangle(__int128 n) {
    return n * (n + 1) / 2;
}

// How many keys the first `tokens` queries of a prompt attend to, all together: each to itself,
// too.
static __int128 pairs_of(const Attention *attention, int64_t tokens) {
    int64_t window = attention->window_tokens;
    if (window == 0 || tokens <= window) {
        return triangle(tokens);
    }
    if (attention->is_aligned) {
        return tokens / window * triangle(window) + triangle(tokens % window);
    }
    return triangle(window) + (__int128)(tokens - window) * window;
}

// How long the first `tokens` of a prompt take to compute. Any part takes the difference of two of
// these, so that parts add up to the whole.
static int64_t first_tokens_ns(const Attention *attention, int64_t count, int64_t ns_per_token,
                               int64_t tokens) {
    __int128 fs = 0;
    for (int64_t i = 0; i < count; i++) {
        fs += pairs_of(&attention[i], tokens) * attention[i].pair_fs;
    }
    __int128 ns = fs / FS_PER_NS + (__int128)tokens * ns_per_token;
    return ns < UNBOUNDED ? (int64_t)ns : UNBOUNDED;
}

// The same of each of `n` numbers of tokens: how replays and summaries know it.
EXPORT void prefill_times(const Attention *attention, int64_t count, int64_t ns_per_token,
                          const int64_t *tokens, int64_t n, int64_t *ns) {
    for (int64_t i = 0; i < n; i++) {
        ns[i] = first_tokens_ns(attention, count, ns_per_token, tokens[i]);
    }
}

// How long tokens from `from` on of a prompt take to compute, up to `to`.
static int64_t prefill_ns(World *w, int64_t from, int64_t to) {
    int64_t each_ns = w->knobs.prefill_ns_per_token;
    return first_tokens_ns(w->attention, w->attention_count, each_ns, to) -
           first_tokens_ns(w->attention, w->attention_count, each_ns, from);
}

// What one decode step reads of the cache of a context of `tokens` on one rank; states are written
// too.
int64_t step_bytes(World *w, int64_t tokens) {
    int64_t size = 0;
    for (int64_t p = 0; p < w->pieces_count; p++) {
        Piece *piece = &w->pieces[p];
        int64_t read = piece->kind == GROWING ? tokens
                       : piece->kind == SLIDING || piece->kind == CHUNKED
                           ? min_of(tokens, piece->window)
                           : 0;
        size += read * piece->token_bytes + 2 * piece->state_bytes;
    }
    return size;
}

// How long a step that computes `tokens` reads: the weights that these use, and `bytes` of the
// cache.
int64_t reading_ns(World *w, int64_t tokens, int64_t bytes) {
    Knobs *k = &w->knobs;
    int64_t weights = k->decode_active_ns ? tokens * k->decode_active_ns : UNBOUNDED;
    int64_t cache = k->decode_bytes_per_us > 0 ? bytes * 1000 / k->decode_bytes_per_us : 0;
    return min_of(k->decode_ns_per_token, weights) + cache;
}

// How long it takes until these have given the first token: as long as a step that reads what it
// computes with, at least.
static int64_t first_step_ns(World *w, int64_t from, int64_t to) {
    int64_t compute_ns = prefill_ns(w, from, to);
    if (compute_ns == 0 || !w->knobs.is_batched) {
        return compute_ns;
    }
    return max_of(compute_ns, reading_ns(w, to - from, step_bytes(w, to)));
}

// Name the objects of a request that comes, send it to a node, and queue it there if prompts are
// computed in turn.
int64_t enqueue(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    Knobs *k = &w->knobs;
    Total *total = &w->total;
    if (w->control.open == 0) {
        return until_open(w);
    }
    if (k->source == CHAINS) {
        // Those of its chain that nobody has asked for before; the last may be a chunk that the
        // prompt does not fill.
        for (int64_t i = 0; i < me->length; i++) {
            int64_t home = home_at(0, w->chains[me->first + i]),
                    tokens = me->input - i * k->chunk_tokens;
            if (*entry_at(w, home) != NONE) {
                continue;
            }
            bool is_full = tokens >= k->chunk_tokens || !k->partial_unit;
            make(w,
                 is_full ? k->chunk_bytes
                         : up_by(tokens * k->bytes_per_token, k->partial_unit) * k->partial_unit,
                 home);
        }
    } else {
        if (!me->restarts) {
            me->made = me->new;
        }
        make_objects(w, actor);
    }
    if (w->fleet.count > 1) {
        route(w, actor, collect(w, actor));
    }
    if (me->restarts == 0) {
        total->requests++, total->input_tokens += me->input, total->output_tokens += me->output;
    }
    me->step = STEP_LOAD, me->ready_ns = w->control.now;
    if (!k->prefill_in_turn) {
        return 0;
    }
    Node *node = &w->fleet.nodes[w->control.node];
    bool is_first = node->first_queued == 0;
    if (is_first) {
        node->first_queued = 1 + actor;
    } else {
        w->actors[node->last_queued - 1].next_queued = 1 + actor;
    }
    node->last_queued = 1 + actor, me->next_queued = 0;
    return is_first ? 0 : WAITS;
}

// Read what is cached of the request; return the time until all of it is there.
//
// Prompts that are computed in turn are looked up in turn, as schedulers do: once those before it
// are computed. It comes 1 ns later, for what is stored then, and is computed as if it had come at
// once; unless it waited for memory.
int64_t load(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    Knobs *k = &w->knobs;
    Total *total = &w->total;
    Node *node = &w->fleet.nodes[w->control.node];
    int64_t now = w->control.now, busy_ns = node->prefill_busy_ns;
    if (k->prefill_in_turn && busy_ns && busy_ns >= now) {
        return busy_ns + 1 - now;
    }
    // Restarted after its node was lost: what it made when it was served first is to be made again.
    int64_t own_objects = me->length - me->new - (me->restarts && !k->is_prefix ? me->made : 0),
            n = gather(w, actor);
    // Decoding reads its last object, if it has any of its own.
    me->entry = me->length > 0 || (k->mode == DECODE_ONLY && n > 0) ? w->chain[n - 1] : NONE;
    int64_t known = me->retrieved_objects + me->shared + own_objects;
    int64_t end = k->mode == PREFILL_ONLY ? 0 : look_up(w, me->retrieved_objects, known),
            done = now, hit_tokens = 0;
    if (!take_memory(w, actor, end)) {
        return WAITS;
    }
    if (k->prefill_in_turn) {
        node->first_queued = me->next_queued;
        if (me->next_queued) {
            push(w->heap, w->control.heap_size++, now, me->next_queued - 1);
        }
    }
    if (now > max_of(busy_ns, me->ready_ns) + 1) {
        total->waiting_ns += now - me->ready_ns, me->ready_ns = now;
    }
    int64_t looked_up = 0;
    me->reached = end, me->computed_tokens = 0, me->refused = 0, me->offer = 0;
    node->prefilling_tokens -= me->missed_tokens; // as its router expected
    if (k->mode != PREFILL_ONLY) {
        for (int64_t t = 0; t < w->tiers_count; t++) {
            if (w->tiers[t].on_look_up) {
                w->tiers[t].on_look_up(w, t, n, end);
            }
            bool is_plain = k->promotion == ALWAYS_PROMOTE && !k->staging && !w->tiers[t].on_hit &&
                            !(k->bucketed & (1 << t));
            if (w->tiers[t].loads_whole && is_plain && !is_endless(w, t)) {
                give_up_own(w, t, end);
            }
        }
        done = read_hits(w, actor, end, &hit_tokens);
        looked_up = k->is_prefix ? n : known;
        count_lookups(w, actor, looked_up);
    }
    // What a prefix match leaves, or a turn adds, is what is computed and stored.
    // Of a prompt that is all there its last token is computed again: it gives the first of the
    // answer.
    me->new = n - (k->is_prefix ? end : known),
    me->missed_tokens = max_of(me->input > 0, me->input - hit_tokens);
    if (k->mode == DECODE_ONLY) {
        me->new = 0, me->missed_tokens = 0;
    }
    total->missed_tokens += me->missed_tokens;
    if (w->fleet.count > 1 || w->found_count) {
        account(w, actor, end, looked_up);
    }
    me->with_cache_ns =
        done - me->asked_ns + first_step_ns(w, me->input - me->missed_tokens, me->input);
    me->without_cache_ns =
        max_of(busy_ns, me->ready_ns) - me->asked_ns + first_step_ns(w, 0, me->input);
    if (done > now) {
        total->waiting_ns += now - me->ready_ns, me->ready_ns = done;
    }
    me->step = STEP_PROMOTE;
    return done - now;
}

// --- copies to faster tiers
// -----------------------------------------------------------------------------------------

// Copy each of `chain[:end]` from the tier in `where` to faster ones; return the stages used. The
// first `staged` ones have buffers in the staging tier, if there is one; the others do not come to
// it.
static int64_t copy_up(World *w, int64_t end, int64_t staged, int64_t stage, int64_t request) {
    Knobs *k = &w->knobs;
    int64_t now = w->control.now, staging = k->staging - 1, at = stage;
    begin_stage(w);
    for (int64_t i = 0; i < end; i++) {
        int64_t slot = w->chain[i], source = w->where[i];
        if (source <= 0 || (k->promotion == SECOND_TOUCH && (w->slots[slot].seen ^= 1))) {
            continue;
        }
        // A promotion before it demoted or evicted it: it is not in its tier to be moved from
        // there.
        if (k->is_exclusive && !(w->slots[slot].live & (1 << source))) {
            continue;
        }
        int64_t size = w->slots[slot].size, t = k->promotion == TEMPORARY ? 0 : source - 1;
        while (k->is_exclusive && t > 0 && size > w->tiers[t].largest) {
            t--;
        }
        if (k->is_exclusive && t >= 0 && size <= w->tiers[t].largest) {
            drop(w, source, slot, now, PHASE_PROMOTE);
        }
        for (; t >= 0; t = k->is_exclusive ? NONE : t - 1) {
            if (k->is_write_back && size <= w->tiers[t].largest) {
                make_room_by_demotion(w, t, slot, now);
            }
            bool has_place = !(w->slots[slot].live & (1 << t));
            if (t == staging && source > t) {
                has_place = has_place && i < staged;
            } else if (has_place) {
                has_place = make_room(w, t, slot, now);
            }
            if (!has_place) {
                continue;
            }
            follow(w, t, i);
            at = in_stage(w, at, t, w->tiers[t].request_writes);
            write_slot(w, t, slot, now, PHASE_PROMOTE, request, at);
        }
    }
    return at - stage + w->control.is_staged;
}

// Whether the actor's request stores as it computes: not with documents, which are not in prompt
// order.
static bool is_stepwise(World *w, int64_t actor) {
    return w->knobs.offer_tokens > 0 && w->actors[actor].retrieved_objects == 0;
}

// Whether `chain[:end]`, found in the tiers in `where`, is more than a tier holds through which all
// of it goes: the engine waits there for ever, for room that its own objects take.
static bool is_stalled(World *w, int64_t end) {
    for (int64_t t = 0; t < w->tiers_count; t++) {
        int64_t needed = 0, below = 0;
        for (int64_t i = 0; w->tiers[t].loads_whole && i < end; i++) {
            if (w->where[i] >= t) {
                needed += size_of(w, w->chain[i]), below += w->where[i] > t;
            }
        }
        w->total.largest_load = max_of(w->total.largest_load, needed);
        if (below && needed > w->tiers[t].limit) {
            return true;
        }
    }
    return false;
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
            if (k->is_by_tier && i >= me->retrieved_objects) {
                of = max_of(of, w->where[i]);
            }
            if (k->promotion && w->where[i] > 0 && w->chain[i] < 0) {
                w->chain[i] = give_slot(w, home_of(w, actor, i));
            }
        }
        w->total.stalled += is_stalled(w, me->reached);
        int64_t staged = me->reached;
        if (k->staging) {
            staged = cut_reads(w, me->retrieved_objects, me->reached);
            staged = stage_reads(w, staged, w->control.now);
        }
        if (k->promotion) {
            me->stage += copy_up(w, me->reached, staged, me->stage, me->request);
        }
    }
    me->step = STEP_STORE;
    Node *node = &w->fleet.nodes[w->control.node];
    int64_t now = w->control.now, loaded = me->input - me->missed_tokens,
            compute_ns = prefill_ns(w, loaded, me->input);
    int64_t took_ns = first_step_ns(w, loaded, me->input);
    if (compute_ns > 0 && k->step_tokens) {
        // Each of its steps reads the caches of those who decode, too, and makes a token for each.
        Batch *batch = &w->fleet.batches[w->control.node];
        int64_t most = max_of(1, k->step_tokens - batch->size), missed = me->missed_tokens,
                room = min_of(missed, most);
        int64_t cache_ns = reading_ns(w, 1, batch->bytes) - reading_ns(w, 1, 0);
        batch->prompt_step_ns = (int64_t)((__int128)compute_ns * room / missed) + cache_ns;
        compute_ns += cache_ns * missed / room, took_ns += cache_ns * missed / room;
        me->without_cache_ns += cache_ns * me->input / min_of(me->input, most);
    }
    node->computing_ns += compute_ns;
    if (compute_ns > 0 && k->prefill_in_turn) { // the others come before it
        int64_t start = max_of(node->prefill_busy_ns, me->ready_ns);
        w->total.prefills++;
        w->total.waiting_ns += start - me->ready_ns;
        node->prefill_busy_ns = start + compute_ns;
        took_ns += start - now;
        if (k->step_tokens) {
            change(w, 0, 0);
        }
    }
    me->with_cache_ns = now + took_ns - me->asked_ns;
    // The rest of it is computed after the first store.
    if (is_stepwise(w, actor)) {
        took_ns -= prefill_ns(w, loaded + min_of(k->offer_tokens, me->missed_tokens), me->input);
    }
    return took_ns;
}

// === store
// ===========================================================================================================
// The store: what was computed is written to the tiers that the placement says.

// Write each new object to the fastest tier that takes it, which moves others down; the stages
// used.
static int64_t store_down(World *w, int64_t first, int64_t n, int64_t stage, int64_t request,
                          int64_t phase) {
    int64_t now = w->control.now, at = stage;
    begin_stage(w);
    for (int64_t i = first; i < n; i++) {
        int64_t slot = w->chain[i], t = lower_tier(w, 0, w->slots[slot].size),
                held_in = fastest_from(w, slot, 0);
        if (t == NONE) {
            w->total.unplaced++;
        } else if (held_in != NONE && w->knobs.is_exclusive) {
            t = held_in;
        }
        // The fastest that admits it, or that it is held in if that is faster.
        while (t != NONE && t != held_in && phase != PHASE_POPULATE && !admits(w, t, slot, now)) {
            t = lower_tier(w, t + 1, w->slots[slot].size);
        }
        if (t == NONE) {
            continue;
        }
        if (t != held_in) {
            make_room_by_demotion(w, t, slot, now);
        }
        follow(w, t, i);
        if (t ==
            held_in) { // computed again though it is still there: an engine does not store it twice
            touch(w, t, slot);
            continue;
        }
        at = in_stage(w, at, t, w->tiers[t].request_writes);
        write_slot(w, t, slot, now, phase, request, at);
    }
    return at - stage + w->control.is_staged;
}

// Let the tier that takes offers whole make room for `chain[first:n]`; the tier from which on all
// refuse.
static int64_t take_whole(World *w, int64_t first, int64_t n) {
    Control *c = &w->control;
    int64_t previous = c->offer, t = 0;
    c->offer = 0, c->is_refused = 0;
    while (t < w->tiers_count && !w->tiers[t].is_whole) {
        t++;
    }
    if (t == w->tiers_count) {
        return t;
    }
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

// Write `chain[i]`, stored from `first` on, into tier `t` unless it is there or not taken; the
// stage reached. What is there counts as used, if so said. The staging tier has a buffer for it,
// and takes all that it has one for.
static int64_t put(World *w, int64_t t, int64_t first, int64_t i, int64_t phase, int64_t request,
                   int64_t stage, bool is_open, bool is_use) {
    int64_t slot = w->chain[i], now = w->control.now;
    bool is_staging = t == w->knobs.staging - 1;
    if (w->slots[slot].live & (1 << t)) {
        if (is_use) {
            follow(w, t, i);
            touch(w, t, slot);
        }
        return stage;
    }
    if (!is_open || (!is_staging && !takes(w, t, slot, now, phase))) {
        return stage;
    }
    if (is_staging && w->tiers[t].stores_backwards) {
        trail(w, t, i, first, 1);
        w->where[i] = 1;
    } else {
        follow(w, t, i);
    }
    stage = in_stage(w, stage, t, w->tiers[t].request_writes);
    write_slot(w, t, slot, now, phase, request, stage);
    return stage;
}

// Write each new object to the first tier that takes it, and a stage later to all below; the stages
// used. From the first on for which the staging tier has no buffer, or all if an offer was refused,
// only tiers above that are written.
static int64_t store_through(World *w, int64_t first, int64_t n, int64_t stage, int64_t request,
                             int64_t first_phase, int64_t rest_phase) {
    Control *c = &w->control;
    int64_t staging = w->knobs.staging - 1, at = stage, tiers = w->tiers_count,
            whole = w->knobs.whole, before = c->offer;
    for (int64_t i = first; i < n; i++) {
        w->where[i] = w->knobs.skips_held && found_in(w, w->chain[i]) ? HELD : 0;
    }
    int64_t end = staging < 0 ? first : stage_writes(w, staging, first, n, c->now);
    int64_t closed = staging < 0 ? take_whole(w, first, n) : staging;
    begin_stage(w);
    for (int64_t i = first; i < n; i++) {
        if (w->where[i] == HELD) {
            continue;
        }
        int64_t t = lower_tier(w, 0, w->slots[w->chain[i]].size);
        bool is_open = i < end || t < closed;
        // The staging tier frees the buffer and leaves what it has as it was; the others count it
        // as used.
        bool is_use = staging < 0 ? i >= c->known : t >= 0 && t != staging && !(c->gone & (1 << t));
        if (t == NONE || (staging >= 0 && !is_open)) {
            w->total.unplaced++;
        } else {
            at = put(w, t, first, i, first_phase, request, at, is_open, is_use);
        }
    }
    at += c->is_staged;
    begin_stage(w);
    for (int64_t i = first; i < n; i++) {
        if (w->where[i] == HELD) {
            continue;
        }
        int64_t t = lower_tier(w, 0, w->slots[w->chain[i]].size) + 1; // 0: none takes it
        for (; 0 < t && t < (i < end ? tiers : closed); t++) {
            bool is_use = staging >= 0 && t != staging && !(c->gone & (1 << t));
            at = put(w, t, first, i, rest_phase, request, at, true, is_use);
        }
    }
    if (w->tiers[whole].on_stored) {
        w->tiers[whole].on_stored(w, whole, c->named, before);
    }
    return at - stage + c->is_staged;
}

// Write `chain[first:n]`; the stages used.
static int64_t place(World *w, int64_t first, int64_t n, int64_t stage, int64_t request,
                     int64_t first_phase, int64_t rest_phase) {
    if (w->knobs.is_write_back) {
        return store_down(w, first, n, stage, request, first_phase);
    }
    return store_through(w, first, n, stage, request, first_phase, rest_phase);
}

// Write the next item that is there before the start; after a node's last, no tier is busy with any
// of it.
void populate(World *w) {
    Control *c = &w->control;
    Item *item = &w->items[c->populated];
    for (int64_t i = 0; i < item->objects; i++) {
        w->chain[i] = item->first + i;
    }
    c->offer = 0;
    see_all(w, c->named = item->objects);
    place(w, 0, item->objects, 0, NONE, PHASE_POPULATE, PHASE_POPULATE);
    if (++c->populated < w->items_count) {
        return;
    }
    for (int64_t t = 0; t < w->tiers_count; t++) {
        Tier *tier = &w->tiers[t];
        tier->busy_ns[OP_READ] = tier->busy_ns[OP_WRITE] = 0;
        tier->populated_bytes = tier->written_bytes;
    }
    do {
        c->populating++;
    } while (c->populating < w->fleet.count && !w->fleet.nodes[c->populating].is_up);
    if (c->populating < w->fleet.count) {
        c->populated = w->knobs.prompts;
    }
}

// Write `chain[first:n]`; of a request with documents as many at a time as a step computes, until
// it ends. What is refused is offered with the next ones.
static void offer(World *w, int64_t actor, int64_t first, int64_t n, int64_t first_phase,
                  int64_t rest_phase) {
    Actor *me = &w->actors[actor];
    Control *c = &w->control;
    int64_t each = n - first, at = first, end = first;
    if (w->knobs.offer_tokens > 0 && me->retrieved_objects && me->step != STEP_END) {
        each = max_of(1, w->knobs.offer_tokens / w->knobs.chunk_tokens);
    }
    if (n == first) {
        me->offer = 0;
    }
    while (end < n) {
        end = min_of(n, end + each);
        c->offer = me->offer;
        me->stage += place(w, at, end, me->stage, me->request, first_phase, rest_phase);
        me->offer = c->offer;
        if (!c->is_refused) {
            at = end;
        }
    }
    me->refused = me->retrieved_objects ? min_of(n - at, me->new) : n - at;
}

// How many of the request's new objects are computed: none is, before the end, if they are turns.
static int64_t computed_objects(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    return me->computed_tokens > 0 ? min_of(me->new, me->computed_tokens / w->knobs.chunk_tokens)
                                   : 0;
}

// Have slots in `chain[first:n]`, the last ones of the actor's request: what is in a tier needs
// one.
void give_slots(World *w, int64_t actor, int64_t first, int64_t n) {
    for (int64_t i = first; i < n; i++) {
        if (w->chain[i] < 0) {
            w->chain[i] = give_slot(w, home_of(w, actor, i));
        }
    }
}

// Write the objects that were computed; return how long the prompt's next step computes.
int64_t store(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    Knobs *k = &w->knobs;
    Control *c = &w->control;
    int64_t n = gather(w, actor), found = n - me->new,
            first = found + computed_objects(w, actor) - me->refused;
    if (k->offers_hits && me->computed_tokens == 0 && k->mode != DECODE_ONLY) {
        first = 0;
    }
    me->computed_tokens =
        min_of(me->missed_tokens,
               is_stepwise(w, actor) ? me->computed_tokens + k->offer_tokens : UNBOUNDED);
    bool is_last = me->computed_tokens == me->missed_tokens;
    int64_t end = is_last ? n : found + computed_objects(w, actor);
    give_slots(w, actor, first, end);
    c->known = found;
    // Shared objects that must be stored come first: documents that are in no tier, and without
    // prefix match likewise a system prompt, or any such prompt if nothing was looked up. (A prefix
    // match has put it among the new objects.)
    int64_t lost = 0, shared = me->retrieved_objects + (k->is_prefix ? 0 : me->shared);
    if (shared && k->mode != DECODE_ONLY) {
        for (int64_t i = 0; i < shared; i++) {
            if (k->mode == PREFILL_ONLY || fastest_from(w, w->chain[i], 0) == NONE) {
                w->chain[lost++] = w->chain[i];
            }
        }
        for (int64_t i = 0; i < me->new; i++) {
            w->chain[lost + i] = w->chain[found + i];
        }
        first = 0, end = lost + me->new, c->known = 0;
    }
    offer(w, actor, first, end, PHASE_PREFILL, PHASE_STORE);
    int64_t done = me->input - me->missed_tokens + me->computed_tokens;
    if (!is_last) {
        return prefill_ns(w, done, min_of(me->input, done + k->offer_tokens));
    }
    if (w->first_token_count && !me->answered) {
        if (c->answered == w->first_token_count) {
            ensure(w, FLUSH, 1);
        }
        w->first_token[c->answered++] = (FirstToken){me->with_cache_ns, me->without_cache_ns};
    }
    me->answered = 1;
    if (k->step_tokens) {
        change(w, 0, 0);
    }
    me->new = 0, me->decoded = 0, me->served_ns = 0, me->first_step = NONE;
    w->fleet.nodes[me->node].prefilling_tokens -= me->missed_tokens;
    w->fleet.nodes[me->node].waiting--;
    if (w->fleet.entrances < w->fleet.count) {
        me->served_ns = c->now + hand_over(w, actor);
    }
    me->step = STEP_DECODE;
    return 0;
}

// === decode and end
// ==================================================================================================
// The decode: an entry is read again as tokens are generated, and the request ends.

// Return the time until the request has generated `tokens`, or WAITS.
static int64_t time_to_decode(World *w, int64_t actor, int64_t tokens) {
    if (w->knobs.is_batched) {
        return after_steps(w, actor, tokens);
    }
    return max_of(0, w->actors[actor].decode_start + tokens * w->knobs.decode_ns_per_token -
                         w->control.now);
}

// How often the request's entry is read while it is decoded.
static int64_t reads_of(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    Knobs *k = &w->knobs;
    bool is_long = 0 < k->prefill_only_from_tokens && k->prefill_only_from_tokens <= me->new_tokens;
    if (!k->decode_read_tokens || k->mode == PREFILL_ONLY || is_long) {
        return 0;
    }
    int64_t runs = up_by(me->output, k->decode_read_tokens);
    return k->mode == DECODE_ONLY ? runs : 1 + runs;
}

// Read the turn's own entry again as tokens are generated; return the time to the next such step.
int64_t decode(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    Knobs *k = &w->knobs;
    int64_t now = w->control.now;
    if (now < me->served_ns) {
        return me->served_ns - now;
    }
    int64_t done = me->decoded, reads = reads_of(w, actor);
    bool is_read = done < reads && me->entry != NONE;
    if (!(is_read && k->reads_at_once) && (done == 0 || k->reads_at_once)) {
        me->decode_start = now;
        if (k->is_batched) {
            join(w, actor);
        }
    }
    if (!is_read) {
        me->step = STEP_END;
        if (k->stores_generated && k->chunk_tokens && k->source == USERS) {
            int64_t tokens = me->input - me->retrieved_tokens + me->output;
            me->new = tokens / k->chunk_tokens - me->shared - me->length;
        }
        return time_to_decode(w, actor, me->output);
    }
    see(w, me->entry);
    int64_t t = fastest_from(w, me->entry, 0);
    me->served_ns = now;
    if (t == NONE) {
        w->total.decode_misses++;
    } else {
        touch(w, t, me->entry);
        me->served_ns = read_slot(w, t, me->entry, now, PHASE_DECODE, me->request, me->stage);
        me->stage++;
    }
    me->decoded = done + 1;
    if (done + 1 == reads || k->reads_at_once) {
        return me->served_ns - now;
    }
    // The first read fetches the entry; read k >= 1 begins the k-th run of decode_read_tokens
    // tokens. (On its own, decoding has loaded the entry already, and begins with such a run.)
    int64_t run = k->mode == DECODE_ONLY ? done + 1 : done;
    return time_to_decode(w, actor, run * k->decode_read_tokens);
}

// Whether those of `chain[:n]` that tier `t` has are its most recent ones already, in that order.
static bool are_first(World *w, int64_t t, int64_t n) {
    int64_t slot = queue_of(w, t, 0)->head;
    for (int64_t i = 0; i < n; i++) {
        if (!(live_in(w, w->chain[i]) & (1 << t))) {
            continue;
        }
        if (member_of(w, t, w->chain[i]) != slot) {
            return false;
        }
        slot = link_of(w, t, slot)->older;
    }
    return true;
}

// Make the request's first objects the most recent ones of each tier that evicts by LRU and does
// so.
static void use_backwards(World *w, int64_t actor) {
    int64_t n = gather(w, actor);
    for (int64_t t = 0; t < w->tiers_count; t++) {
        Tier *tier = &w->tiers[t];
        bool is_kept = tier->recency != HEAD_FIRST && !tier->on_hit && !is_endless(w, t);
        if (!is_kept || w->control.gone & (1 << t) || are_first(w, t, n)) {
            continue;
        }
        for (int64_t i = n - 1; i >= 0; i--) {
            if (live_in(w, w->chain[i]) & (1 << t)) {
                on_hit(w, t, member_of(w, t, w->chain[i]));
            }
        }
    }
}

// End a request: a user thinks, for the time returned; a file's actor is idle again.
int64_t end_request(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    w->total.decoded_tokens += me->output;
    w->total.decoding_ns += w->control.now - me->decode_start;
    depart(w, actor);
    give_memory(w, actor);
    take_from(w, actor);
    if (me->new) {
        make_objects(w, actor);
    }
    if (me->new + me->refused) { // objects that generated tokens have filled, and what was refused
                                 // of the prompt
        int64_t n = gather(w, actor), first = n - me->new - me->refused;
        give_slots(w, actor, first, n);
        w->control.known = 0;
        if (me->refused) {
            offer(w, actor, first, n, PHASE_PREFILL, PHASE_STORE);
        } else {
            offer(w, actor, first, n, PHASE_DECODE, PHASE_DECODE);
        }
        me->new = 0, me->refused = 0;
    }
    if (w->knobs.uses_backwards) {
        use_backwards(w, actor);
    }
    if (w->knobs.source != USERS) {
        if (w->knobs.follows) {
            call_followers(w, w->following.came[me->request].actor, 0);
        }
        leave_request(w, actor);
        me->step = STEP_ASK; // as one that is idle
        w->idle[w->control.idle++] = actor;
        return NONE;
    }
    me->history = me->input - me->retrieved_tokens + me->output;
    me->turn++;
    me->step = STEP_ASK;
    return max_of(1, think_ns(&w->users[actor], w->knobs.seed, actor));
}
