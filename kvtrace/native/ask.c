// Prompts: which request comes next, and of which objects it consists.
//
// A user plans its next turn, or the next request of a file arrives. Its objects are made when first asked for.
#include "sim.h"

enum { MILLION = 1000000 };

// --- objects --------------------------------------------------------------------------------------------------------

// Bytes of each object that the actor's request makes.
static int64_t new_size(World *w, int64_t actor) {
    Knobs *k = &w->knobs;
    return k->chunk_tokens ? k->chunk_bytes : w->actors[actor].new_tokens * k->bytes_per_token;
}

static void note_size(World *w, int64_t actor) {
    int64_t size = new_size(w, actor);
    w->control.min_size = min_of(w->control.min_size, size);
    w->control.max_size = max_of(w->control.max_size, size);
}

// Name a new object of `size` bytes at `home` of World.contexts.
static void make(World *w, int64_t size, int64_t home) {
    Control *c = &w->control;
    if (c->made == w->made_size_count) have(w, FLUSH, 1);
    int64_t number = c->next_object++;
    w->made_size[c->made++] = size;
    if (w->knobs.is_packed) {
        w->contexts[home] = packed(number << PACKED_BITS);
        return;
    }
    int64_t slot = take_slot(w);
    Slot *what = &w->slots[slot];
    what->object = number, what->size = size, what->home = home;
    what->live = 0, what->held = 1, what->seen = 0;
    renew(w, slot);
    w->contexts[home] = slot;
}

// Make the new objects of the actor's request and append them to its conversation.
void make_objects(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    int64_t size = new_size(w, actor), end = me->context * w->knobs.context_width + me->length;
    for (int64_t i = end; i < end + me->new; i++) make(w, size, i);
    me->length += me->new;
    if (w->knobs.source == CONVERSATIONS && me->new) w->conversations[me->session].length = me->length;
}

// Make those objects of the actor's chain that nobody has asked for before.
void find_objects(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    for (int64_t i = me->first; i < me->first + me->length; i++) {
        int64_t number = w->chains[i];
        if (w->contexts[number] == NONE) make(w, w->knobs.chunk_bytes, number);
    }
}

// Copy the objects of the actor's request, in order, to `chain`; how many.
int64_t collect(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    int64_t *chain = w->chain, n = 0, at = actor * w->knobs.top_chunks;
    for (int64_t i = at; i < at + me->retrieved; i++) {
        Item *item = &w->items[w->retrieved[i]];
        for (int64_t j = 0; j < item->objects; j++) chain[n++] = item->first + j;
    }
    if (me->shared) {
        int64_t first = w->items[me->prompt].first;
        for (int64_t j = 0; j < me->shared; j++) chain[n++] = first + j;
    }
    if (w->knobs.source == CHAINS) {
        for (int64_t i = me->first; i < me->first + me->length; i++) chain[n++] = w->contexts[w->chains[i]];
        return n;
    }
    int64_t first = me->context * w->knobs.context_width;
    for (int64_t i = first; i < first + me->length; i++) chain[n++] = w->contexts[i];
    return n;
}

// The same, seen from where it is served.
int64_t gather(World *w, int64_t actor) {
    int64_t n = collect(w, actor);
    see_all(w, n);
    return n;
}

// Where `chain[i]`, one of the actor's own objects, is named in World.contexts.
int64_t home_of(World *w, int64_t actor, int64_t i) {
    Actor *me = &w->actors[actor];
    if (w->knobs.source == CHAINS) return w->chains[me->first + i];
    return me->context * w->knobs.context_width + i - me->retrieved_objects - me->shared;
}

// Note the entry that decoding reads: the last of the `n` objects of the request, if it has any of its own.
void set_entry(World *w, int64_t actor, int64_t n) {
    Actor *me = &w->actors[actor];
    bool is_any = me->length > 0 || (w->knobs.mode == DECODE_ONLY && n > 0);
    me->entry = is_any ? w->chain[n - 1] : NONE;
}

// Nobody can ask any more for what is named at `home`.
static void forget_home(World *w, int64_t home) {
    int64_t slot = w->contexts[home];
    w->contexts[home] = NONE;
    if (slot < 0) return;
    w->slots[slot].held &= ~1;
    w->slots[slot].home = NONE;
    release(w, slot);
}

static void forget_all(World *w, int64_t context, int64_t length) {
    int64_t first = context * w->knobs.context_width;
    for (int64_t i = first; i < first + length; i++) forget_home(w, i);
}

// --- users ----------------------------------------------------------------------------------------------------------

// Draw whether the user's new conversation begins with a system prompt, and with which.
static void choose_prompt(World *w, int64_t user) {
    Actor *me = &w->actors[user];
    Knobs *k = &w->knobs;
    User *who = &w->users[user];
    me->prompt = NONE, me->shared = 0;
    if (!k->prompt_ppm || next_extra(who, k->seed, user, 0, MILLION - 1) >= k->prompt_ppm) return;
    me->prompt = next_extra(who, k->seed, user, 0, k->prompts - 1);
    me->shared = w->items[me->prompt].objects;
    me->history = w->items[me->prompt].tokens;
}

// Draw whether the user's request retrieves chunks of a document, and which; none that its context cannot hold.
static void retrieve(World *w, int64_t user) {
    Actor *me = &w->actors[user];
    Knobs *k = &w->knobs;
    User *who = &w->users[user];
    me->retrieved = 0, me->retrieved_objects = 0, me->retrieved_tokens = 0;
    if (!k->retrieve_ppm || next_extra(who, k->seed, user, 0, MILLION - 1) >= k->retrieve_ppm) return;
    int64_t document = pick(w->document_weight, w->document_weight_count, who, k->seed, user);
    int64_t first = w->documents[document], end = w->documents[document + 1];
    int64_t *chosen = w->retrieved, at = user * k->top_chunks, tokens = 0;
    int64_t count = pick_distinct(chosen, at, k->top_chunks, end - first, k->is_zipf_chunk, who, k->seed, user);
    for (int64_t i = at; i < at + count; i++) {
        chosen[i] += first;
        tokens += w->items[chosen[i]].tokens;
    }
    if (me->input + tokens + me->output > k->max_context_tokens) return;
    me->retrieved = count, me->retrieved_tokens = tokens;
    for (int64_t i = at; i < at + count; i++) me->retrieved_objects += w->items[chosen[i]].objects;
    me->input += tokens;
}

// Draw the user's next turn, its conversation, and what it retrieves.
static void plan_turn(World *w, int64_t user) {
    Actor *me = &w->actors[user];
    Knobs *k = &w->knobs;
    int64_t new_tokens, output;
    bool is_new = next_turn(
        &w->users[user], k->seed, user, me->turn, me->history, k->max_context_tokens, &new_tokens, &output);
    me->new_tokens = new_tokens, me->output = output;
    if (is_new) {
        forget_all(w, me->context, me->length);
        me->length = 0, me->turn = 0, me->history = 0;
        me->session = w->control.next_session++;
        choose_prompt(w, user);
    }
    me->input = me->history + me->new_tokens;
    me->new = k->chunk_tokens ? me->input / k->chunk_tokens - me->shared - me->length : 1;
    note_size(w, user);
    retrieve(w, user);
}

// Draw which of its entries the user decodes on; the entry is a conversation that only ever decodes.
static void choose_entry(World *w, int64_t user) {
    Actor *me = &w->actors[user];
    Knobs *k = &w->knobs;
    User *who = &w->users[user];
    int64_t new_tokens;
    next_turn(who, k->seed, user, 0, 0, k->max_context_tokens, &new_tokens, &me->output);
    me->session = user * k->entries + next_extra(who, k->seed, user, 0, k->entries - 1);
    me->prompt = k->first_entry + me->session;
    Item *item = &w->items[me->prompt];
    me->turn = item->uses++;
    me->shared = item->objects, me->input = item->tokens, me->new_tokens = 0, me->new = 0;
}

// Plan the next request of a user; NONE if no more may ask.
int64_t ask(World *w, int64_t user) {
    Actor *me = &w->actors[user];
    Control *c = &w->control;
    if (c->next_request >= w->knobs.max_requests) return NONE;
    if (w->knobs.mode == DECODE_ONLY) choose_entry(w, user);
    else plan_turn(w, user);
    if (c->logged == w->log_count) have(w, FLUSH, 1);
    me->request = c->next_request++;
    w->log[c->logged++] = (Asked){
        .arrival_ns = c->now, .request_id = me->request, .session_id = me->session, .turn = me->turn,
        .input_tokens = me->input, .output_tokens = me->output, .qos = w->users[user].qos, .kind = w->users[user].kind,
    };
    me->stage = 0, me->asked_ns = c->now, me->step = STEP_LOAD;
    me->restarts = 0, me->answered = 0;
    return 0;
}

// --- requests of a file ---------------------------------------------------------------------------------------------

// Make `actor` the request in row `request` of the file; requests are numbered as they arrive.
void arrive(World *w, int64_t actor, int64_t request) {
    Actor *me = &w->actors[actor];
    Knobs *k = &w->knobs;
    me->step = STEP_LOAD, me->request = w->control.arrived - 1, me->stage = 0, me->asked_ns = w->control.now;
    me->input = w->input_tokens[request], me->output = w->output_tokens[request];
    me->new_tokens = me->input;
    me->restarts = 0, me->answered = 0;
    me->prompt = NONE;
    if (k->source == CHAINS) {
        if (w->conversation_count) me->session = w->conversation[request];
        me->first = w->offsets[request], me->new = 0;
        me->length = w->offsets[request + 1] - me->first;
        return;
    }
    int64_t row = w->conversation[request];
    Conversation *mine = &w->conversations[row];
    if (mine->context == NONE) mine->context = w->idle_contexts[--w->control.idle_contexts];
    me->session = row, me->context = mine->context, me->length = mine->length;
    if (k->chunk_tokens) {
        int64_t chunks = me->input / k->chunk_tokens;
        me->new = max_of(0, chunks - me->length);
        me->length = min_of(chunks, me->length);
    } else {
        int64_t new_tokens = max_of(0, me->input - mine->tokens);
        mine->tokens = me->input + me->output;
        me->new = new_tokens > 0;
        if (new_tokens) me->new_tokens = new_tokens;
    }
    if (me->new) note_size(w, actor);
}

// End the request of a file: what no request is to ask for any more is forgotten where nothing else needs it.
void leave_request(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    if (w->knobs.keeps_ghosts) return;
    if (w->knobs.source == CONVERSATIONS) {
        Conversation *mine = &w->conversations[me->session];
        if (--mine->remaining) return;
        forget_all(w, mine->context, mine->length);
        w->idle_contexts[w->control.idle_contexts++] = mine->context;
        mine->context = NONE, mine->length = 0;
        return;
    }
    for (int64_t i = me->first; i < me->first + me->length; i++) {
        int64_t number = w->chains[i];
        if (--w->object_uses[number] == 0) forget_home(w, number);
    }
}
