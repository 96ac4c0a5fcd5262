// The simulation: what is asked and when, and who acts next: requests arrive, load what is cached,
// store what is not, and decode (request.c).
//
// One loop serves both a file of requests (arrivals at their times, or after those that they
// follow) and synthetic users (the next turn waits for the last). Who acts next is in a heap by
// time and then by actor.
#include "sim.h"

#include <stdlib.h>

// === users
// ===========================================================================================================
// What synthetic users ask: in a closed loop (the simulation's own), in an open loop, at times that
// wait for nobody, or on without waiting for answers, served by class (see requests/users.py).

// Of the first rank of a Zipf distribution with exponent 1; that of rank r is this over r.
#define ZIPF_WEIGHT ((int64_t)1 << 32)

// Who draws: users 0, 1, ...; the lot of an open loop, which says what conversation goes on; then
// come the lengths of documents (requests/users.py), and from EXTRA down each user's extra draws.
enum { LOT = -1, EXTRA = -3 };

// --- draws
// ----------------------------------------------------------------------------------------------------------

// The `number`-th draw of `user`: an integer from `low` to `high`, both included (splitmix64).
int64_t draw(int64_t seed, int64_t user, int64_t number, int64_t low, int64_t high) {
    uint64_t x = (uint64_t)seed * 0x9E3779B97F4A7C15 + (uint64_t)user * 0xD1B54A32D192ED03 +
                 (uint64_t)number * 0x8CB92BA72F3D8DD7 + 0x2545F4914F6CDD1D;
    for (int round = 0; round < 2; round++) {
        x ^= x >> 30;
        x *= 0xBF58476D1CE4E5B9;
        x ^= x >> 27;
        x *= 0x94D049BB133111EB;
        x ^= x >> 31;
    }
    return low + (int64_t)(x % (uint64_t)(high - low + 1));
}

// Fill `found` with the first draws of `user`.
EXPORT void draw_all(int64_t *found, int64_t count, int64_t seed, int64_t user, int64_t low,
                     int64_t high) {
    for (int64_t number = 0; number < count; number++) {
        found[number] = draw(seed, user, number, low, high);
    }
}

static int64_t next_draw(User *me, int64_t seed, int64_t user, int64_t low, int64_t high) {
    return draw(seed, user, me->draws++, low, high);
}

static int64_t next_extra(User *me, int64_t seed, int64_t user, int64_t low, int64_t high) {
    return draw(seed, EXTRA - user, me->extra_draws++, low, high);
}

// An index drawn by `user` with the chances whose whole weights `cumulated` sums up.
EXPORT int64_t pick(const int64_t *cumulated, int64_t count, User *me, int64_t seed, int64_t user) {
    int64_t lot = next_extra(me, seed, user, 0, cumulated[count - 1] - 1), low = 0,
            high = count - 1;
    while (low < high) {
        int64_t middle = (low + high) >> 1;
        if (cumulated[middle] > lot) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static int64_t weight_of(int64_t rank, int64_t is_zipf) {
    return is_zipf ? ZIPF_WEIGHT / (rank + 1) : 1;
}

// Fill `chosen` from `first` on with at most `most` distinct indices below `count`; return how many
// they are. They are drawn with the weights of Zipf's distribution, or with the same chance each.
EXPORT int64_t pick_distinct(int64_t *chosen, int64_t first, int64_t most, int64_t count,
                             int64_t is_zipf, User *me, int64_t seed, int64_t user) {
    int64_t wanted = min_of(most, count), total = 0;
    for (int64_t i = 0; i < count; i++) {
        total += weight_of(i, is_zipf);
    }
    for (int64_t k = 0; k < wanted; k++) {
        int64_t lot = next_extra(me, seed, user, 0, total - 1), i = -1, weight = 0;
        while (lot >= 0) {
            i++;
            bool is_taken = false;
            for (int64_t before = 0; before < k; before++) {
                is_taken = is_taken || chosen[first + before] == i;
            }
            if (is_taken) {
                continue;
            }
            weight = weight_of(i, is_zipf);
            lot -= weight;
        }
        chosen[first + k] = i;
        total -= weight;
    }
    return wanted;
}

// --- users and their turns
// ------------------------------------------------------------------------------------------

// Make users, and when each first asks, ns. Of `templates`, each of the same chance: context tokens
// from, to; output tokens from, to; think time from, to; kind. Of `qos`: class, and up to which of
// 1000 lots.
EXPORT void make_users(User *users, int64_t *starts, int64_t count, const int64_t (*templates)[7],
                       int64_t templates_count, const int64_t (*qos)[2], int64_t seed) {
    for (int64_t user = 0; user < count; user++) {
        User *me = &users[user];
        const int64_t *template = templates[next_draw(me, seed, user, 0, templates_count - 1)];
        int64_t share = next_draw(me, seed, user, 0, 999), chosen = 0;
        while (share >= qos[chosen][1]) {
            chosen++;
        }
        me->kind = template[6], me->qos = qos[chosen][0];
        me->context = next_draw(me, seed, user, template[0], template[1]);
        me->output = next_draw(me, seed, user, template[2], template[3]);
        me->think_ns = next_draw(me, seed, user, template[4], template[5]);
        starts[user] = next_draw(me, seed, user, 0, me->think_ns);
    }
}

// What `user` asks after `turn` turns and `history_tokens` of its conversation. Sizes are uniform
// from a quarter of the user's own value up to it. A conversation ends by chance, after MAX_TURNS,
// or when the next turn would not fit the context.
static bool next_turn(User *me, int64_t seed, int64_t user, int64_t turn, int64_t history_tokens,
                      int64_t max_context_tokens, int64_t *new_tokens, int64_t *output_tokens) {
    *new_tokens = next_draw(me, seed, user, max_of(1, me->context / 4), me->context);
    *output_tokens = next_draw(me, seed, user, max_of(1, me->output / 4), me->output);
    bool goes_on = next_draw(me, seed, user, 0, 999) < CONTINUE_PER_MILLE;
    bool fits = history_tokens + *new_tokens + *output_tokens <= max_context_tokens;
    return turn == 0 || !goes_on || turn >= MAX_TURNS || !fits;
}

// How long `user` thinks this time: the user's own value, 20 % less to 20 % more.
int64_t think_ns(User *me, int64_t seed, int64_t user) {
    return next_draw(me, seed, user, me->think_ns * 8 / 10, me->think_ns * 12 / 10);
}

// --- an open loop: each request is the next turn of one of the conversations that go on
// -----------------------------

// Make turns from `progress` (rows, users) on; return whether all are made, or `users` may not
// suffice.
EXPORT bool take_turns(Turn *turns, int64_t count, Place *places, int64_t places_count,
                       int64_t *progress, User *users, int64_t users_count, int64_t seed,
                       int64_t max_context_tokens) {
    int64_t row = progress[0], next_user = progress[1];
    while (row < count && next_user < users_count) {
        Place *place = &places[draw(seed, LOT, row, 0, places_count - 1)];
        int64_t new_tokens = 0, output_tokens = 0, user = place->user;
        if (user == NONE || next_turn(&users[user], seed, user, place->done, place->history,
                                      max_context_tokens, &new_tokens, &output_tokens)) {
            *place = (Place){.user = next_user};
            next_turn(&users[next_user], seed, next_user, 0, 0, max_context_tokens, &new_tokens,
                      &output_tokens);
            next_user++;
        }
        User *me = &users[place->user];
        turns[row] = (Turn){place->user,   place->done, place->history + new_tokens,
                            output_tokens, me->qos,     me->kind};
        place->done++;
        place->history += new_tokens + output_tokens;
        row++;
    }
    progress[0] = row, progress[1] = next_user;
    return row == count;
}

// --- users who ask on without waiting for answers
// -------------------------------------------------------------------

// Fill `asked` with what each user asks before `until_ns`; return how many rows that takes, or one
// too many.
EXPORT int64_t ask_overlapping(Question *asked, int64_t room, User *users, const int64_t *starts,
                               int64_t users_count, int64_t seed, int64_t until_ns,
                               int64_t max_context_tokens) {
    int64_t row = 0;
    for (int64_t user = 0; user < users_count; user++) {
        User *me = &users[user];
        int64_t time_ns = starts[user], conversation = -1, turn = 0, history = 0, new_tokens,
                output;
        while (time_ns < until_ns) {
            if (row == room) {
                return row + 1;
            }
            if (next_turn(me, seed, user, turn, history, max_context_tokens, &new_tokens,
                          &output)) {
                conversation++, turn = 0, history = 0;
            }
            Question *line = &asked[row++];
            line->time_ns = time_ns, line->user = user, line->conversation = conversation,
            line->turn = turn;
            line->input = history + new_tokens, line->output = output;
            turn++;
            history += new_tokens + output;
            time_ns += max_of(1, think_ns(me, seed, user));
        }
    }
    return row;
}

// === requests
// ========================================================================================================
// A user plans its next turn, or the next request of a file arrives.

// --- a user's next request
// -------------------------------------------------------------------------------------------

// Draw whether the user's request retrieves chunks of a document, and which; none that its context
// cannot hold.
static void retrieve(World *w, int64_t user) {
    Actor *me = &w->actors[user];
    Knobs *k = &w->knobs;
    User *who = &w->users[user];
    me->retrieved = 0, me->retrieved_objects = 0, me->retrieved_tokens = 0;
    if (!k->retrieve_ppm || next_extra(who, k->seed, user, 0, MILLION - 1) >= k->retrieve_ppm) {
        return;
    }
    int64_t document = pick(w->document_weight, w->document_weight_count, who, k->seed, user);
    int64_t first = w->documents[document], end = w->documents[document + 1];
    int64_t *chosen = w->retrieved, at = user * k->top_chunks, tokens = 0;
    int64_t count =
        pick_distinct(chosen, at, k->top_chunks, end - first, k->is_zipf_chunk, who, k->seed, user);
    for (int64_t i = at; i < at + count; i++) {
        chosen[i] += first;
        tokens += w->items[chosen[i]].tokens;
    }
    if (me->input + tokens + me->output > k->max_context_tokens) {
        return;
    }
    me->retrieved = count, me->retrieved_tokens = tokens;
    for (int64_t i = at; i < at + count; i++) {
        me->retrieved_objects += w->items[chosen[i]].objects;
    }
    me->input += tokens;
}

// Draw the user's next turn, its conversation, which may begin with a system prompt, and what it
// retrieves.
static void plan_turn(World *w, int64_t user) {
    Actor *me = &w->actors[user];
    Knobs *k = &w->knobs;
    User *who = &w->users[user];
    int64_t new_tokens, output;
    bool is_new = next_turn(who, k->seed, user, me->turn, me->history, k->max_context_tokens,
                            &new_tokens, &output);
    me->new_tokens = new_tokens, me->output = output;
    if (is_new) {
        forget_all(w, me->context, me->length);
        me->length = 0, me->turn = 0, me->history = 0;
        me->session = w->control.next_session++;
        me->prompt = NONE, me->shared = 0;
        if (k->prompt_ppm && next_extra(who, k->seed, user, 0, MILLION - 1) < k->prompt_ppm) {
            me->prompt = next_extra(who, k->seed, user, 0, k->prompts - 1);
            me->shared = w->items[me->prompt].objects;
            me->history = w->items[me->prompt].tokens;
        }
    }
    me->input = me->history + me->new_tokens;
    me->new = k->chunk_tokens ? me->input / k->chunk_tokens - me->shared - me->length : 1;
    retrieve(w, user);
}

// Draw which of its entries the user decodes on; the entry is a conversation that only ever
// decodes.
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
static int64_t ask(World *w, int64_t user) {
    Actor *me = &w->actors[user];
    Control *c = &w->control;
    if (c->next_request >= w->knobs.max_requests) {
        return NONE;
    }
    if (w->knobs.mode == DECODE_ONLY) {
        choose_entry(w, user);
    } else {
        plan_turn(w, user);
    }
    if (c->logged == w->log_count) {
        ensure(w, FLUSH, 1);
    }
    me->request = c->next_request++;
    w->log[c->logged++] = (Asked){
        .arrival_ns = c->now,
        .request_id = me->request,
        .session_id = me->session,
        .turn = me->turn,
        .input_tokens = me->input,
        .output_tokens = me->output,
        .qos = w->users[user].qos,
        .kind = w->users[user].kind,
    };
    me->stage = 0, me->asked_ns = c->now, me->step = STEP_QUEUE;
    me->restarts = 0, me->answered = 0;
    return 0;
}

// --- the next request of a file
// --------------------------------------------------------------------------------------

// Make `actor` the request in row `request` of the file; requests are numbered as they arrive.
static void arrive(World *w, int64_t actor, int64_t request) {
    Actor *me = &w->actors[actor];
    Knobs *k = &w->knobs;
    me->step = STEP_QUEUE, me->request = w->control.arrived - 1, me->stage = 0,
    me->asked_ns = w->control.now;
    me->input = w->input_tokens[request], me->output = w->output_tokens[request];
    me->new_tokens = me->input;
    me->restarts = 0, me->answered = 0;
    me->prompt = NONE;
    if (k->source == CHAINS) {
        if (w->conversation_count) {
            me->session = w->conversation[request];
        }
        me->first = w->offsets[request], me->new = 0, me->context = 0;
        me->length = w->offsets[request + 1] - me->first;
        return;
    }
    int64_t row = w->conversation[request];
    Conversation *mine = &w->conversations[row];
    me->session = me->context = row, me->length = mine->length;
    if (k->chunk_tokens) {
        int64_t chunks = me->input / k->chunk_tokens;
        me->new = max_of(0, chunks - me->length);
        me->length = min_of(chunks, me->length);
    } else {
        int64_t new_tokens = max_of(0, me->input - mine->tokens);
        mine->tokens = me->input + me->output;
        me->new = new_tokens > 0;
        if (new_tokens) {
            me->new_tokens = new_tokens;
        }
    }
}

// === schedule
// ========================================================================================================
// The schedule: who acts when, by time; and those who decode, by the steps of the batch that they
// are in.
//
// Each step of the batch makes one token for each request in it, and takes as long as all of them
// need together, which changes only when one joins or leaves. So a clock of steps runs beside the
// time, and a request is done once that clock has gone on by as many steps as it generates tokens,
// however long each of them took.

static Batch *batch_of(World *w) {
    return &w->fleet.batches[w->control.node];
}

enum {
    PARTS = 1 << 10,
    MORE = 1 << 8
}; // of a step: what the clock counts; by how many lists of C's own grow

static bool is_before(const Event *event, int64_t when, int64_t actor) {
    return event->when < when || (event->when == when && event->actor < actor);
}

// Schedule `actor` in a heap of `count`; ties go by actor number.
void push(Event *heap, int64_t count, int64_t when, int64_t actor) {
    int64_t i = count;
    for (int64_t up; i > 0 && !is_before(&heap[up = (i - 1) >> 1], when, actor); i = up) {
        heap[i] = heap[up];
    }
    heap[i] = (Event){when, actor};
}

// Take the first of the `count` of a heap; its actor.
int64_t pop(Event *heap, int64_t count) {
    int64_t n = count - 1, first = heap[0].actor, i = 0;
    Event last = heap[n];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_before(&heap[child + 1], heap[child].when, heap[child].actor)) {
            child++;
        }
        if (!is_before(&heap[child], last.when, last.actor)) {
            break;
        }
        heap[i] = heap[child];
    }
    heap[i] = last;
    return first;
}

// --- arrivals
// -------------------------------------------------------------------------------------------------------

// Let those come that follow the file's `request` once it starts, or has ended, and that wait for
// nothing else.
void call_followers(World *w, int64_t request, int64_t is_of_start) {
    Control *c = &w->control;
    Following *f = &w->following;
    for (int64_t i = f->first[request]; i < f->first[request + 1]; i++) {
        Follower *follower = &f->followers[i];
        if (follower->is_of_start != is_of_start) {
            continue;
        }
        Waiting *waiting = &f->waiting[follower->request];
        waiting->ready_ns = max_of(waiting->ready_ns, c->now + follower->delay_ns);
        if (--waiting->left == 0) {
            push(f->coming, c->coming++, waiting->ready_ns, follower->request);
        }
    }
}

// --- those who decode
// -----------------------------------------------------------------------------------------------

// Note when the first that waits for the clock is due if the batch stays as it is.
static void set_due(World *w) {
    Batch *batch = batch_of(w);
    batch->due_ns = UNBOUNDED;
    if (batch->waiting == 0) {
        return;
    }
    batch->first = batch->heap[0].actor;
    int64_t left = max_of(0, batch->heap[0].when - batch->steps);
    if (left / PARTS < (UNBOUNDED - batch->since_ns) / batch->step_ns) {
        batch->due_ns = batch->since_ns + left / PARTS * batch->step_ns +
                        up_by(left % PARTS * batch->step_ns, PARTS);
    }
}

// Bring the clock of steps up to now.
static void advance(World *w) {
    Batch *batch = batch_of(w);
    int64_t passed = w->control.now - batch->since_ns;
    if (batch->size > 0) {
        batch->steps +=
            passed / batch->step_ns * PARTS + passed % batch->step_ns * PARTS / batch->step_ns;
    }
    batch->since_ns = w->control.now;
}

// Add `requests` to the batch, which take `bytes` of each step; it is at least as long as those of
// a prompt meanwhile.
void change(World *w, int64_t requests, int64_t bytes) {
    Batch *batch = batch_of(w);
    advance(w);
    batch->size += requests, batch->bytes += bytes;
    int64_t compute_ns = batch->size * w->knobs.decode_compute_ns;
    bool is_computing = w->fleet.nodes[w->control.node].prefill_busy_ns > w->control.now;
    int64_t least_ns = is_computing ? max_of(1, batch->prompt_step_ns) : 1;
    batch->step_ns = max_of(least_ns, max_of(reading_ns(w, batch->size, batch->bytes), compute_ns));
    set_due(w);
}

// Begin to decode the actor's request with those that do.
void join(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    change(w, 1, step_bytes(w, me->input + me->output / 2));
    me->first_step = batch_of(w)->steps, me->decode_start = w->control.now;
}

// Have decoded it.
void depart(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    if (me->first_step == NONE) {
        return;
    }
    change(w, -1, -step_bytes(w, me->input + me->output / 2));
    me->first_step = NONE;
}

// Let the actor act when so many `steps` are done since it joined; WAITS, or 0 if they are.
int64_t after_steps(World *w, int64_t actor, int64_t steps) {
    Batch *batch = batch_of(w);
    advance(w);
    int64_t when = w->actors[actor].first_step + steps * PARTS;
    if (when <= batch->steps) {
        return 0;
    }
    if (batch->waiting % MORE == 0) {
        batch->heap = grown(batch->heap, batch->waiting + MORE, sizeof(Event));
    }
    push(batch->heap, batch->waiting++, when, actor);
    set_due(w);
    return WAITS;
}

// Let nobody decode any more at the node at hand.
void disband(World *w) {
    Batch *batch = batch_of(w);
    batch->size = 0, batch->bytes = 0, batch->waiting = 0, batch->since_ns = w->control.now;
    set_due(w);
}

// --- those who run in a GPU's memory
// --------------------------------------------------------------------------------

// Let the actor's request run with `member`, which is in the GPU's memory: what others run with,
// too, is there once.
void hold(World *w, int64_t actor, int64_t member) {
    Actor *me = &w->actors[actor];
    Slot *what = &w->slots[member];
    if (me->holds_count % MORE == 0) {
        me->holds = grown(me->holds, me->holds_count + MORE, sizeof(Hold));
    }
    me->holds[me->holds_count++] = (Hold){(int32_t)member, what->came};
    if (what->runners++) {
        w->fleet.nodes[w->control.node].held_bytes -= what->size;
    }
}

// Take the GPU's memory for the actor's request, which uses those of `chain[:end]` that are there:
// for its prompt, and as a step counts it half of its answer. Return whether there is that much
// beside the others that run. A node that only decodes takes what it is sent.
bool take_memory(World *w, int64_t actor, int64_t end) {
    if (!w->knobs.is_bounded) {
        return true;
    }
    Actor *me = &w->actors[actor];
    Node *node = &w->fleet.nodes[w->control.node];
    bool is_alone = node->held_bytes == 0;
    me->held_bytes = (me->input + me->output / 2) * w->knobs.bytes_per_token,
    node->held_bytes += me->held_bytes;
    for (int64_t i = 0; i < end; i++) {
        if (w->where[i] == 0 && live_in(w, w->chain[i]) & 1) {
            hold(w, actor, member_of(w, 0, w->chain[i]));
        }
    }
    if (is_alone || w->control.node >= w->fleet.entrances ||
        node->held_bytes <= w->tiers[0].limit) {
        return true;
    }
    give_memory(w, actor);
    node->is_full = 1;
    return false;
}

// Give the GPU's memory back that the actor's request had, but for what others run with; who waits
// for some looks whether it is enough.
void give_memory(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    Node *node = &w->fleet.nodes[me->node];
    node->held_bytes -= me->held_bytes, me->held_bytes = 0;
    while (me->holds_count > 0) {
        Hold *held = &me->holds[--me->holds_count];
        Slot *what = &w->slots[held->slot];
        if (what->came == held->came && --what->runners) {
            node->held_bytes += what->size;
        }
    }
    if (node->is_full) {
        push(w->heap, w->control.heap_size++, w->control.now, node->first_queued - 1);
    }
    node->is_full = 0;
}

// === the loop
// ========================================================================================================

// What Python could not do ends the simulation, wherever it is: memory is out, the disk is full, or
// Ctrl-C was pressed. C that Python calls meanwhile must not: it would leave Python's own calls
// behind.
void ensure(World *w, int64_t what, int64_t need) {
    jmp_buf *stop = out_of_memory;
    out_of_memory = NULL;
    bool is_done = w->ask(what, need);
    out_of_memory = stop;
    if (!is_done) {
        longjmp(*stop, 1);
    }
}

// The actor whose turn it is, and set the time; NONE at the end. What happens before that does.
static int64_t next_actor(World *w) {
    Control *c = &w->control;
    Knobs *k = &w->knobs;
    int64_t arrival_ns = UNBOUNDED, due = c->heap_size > 0 ? w->heap[0].when : UNBOUNDED;
    if (c->arrived < k->max_requests && k->follows && c->coming > 0) {
        arrival_ns = w->following.coming[0].when;
    }
    if (c->arrived < min_of(k->max_requests, w->arrival_ns_count) && !k->follows) {
        arrival_ns = w->arrival_ns[c->arrived];
    }
    Batch *batch = w->fleet.batches; // in which somebody is due first
    for (Batch *its = batch; its < w->fleet.batches + w->fleet.count; its++) {
        if (its->due_ns < batch->due_ns ||
            (its->due_ns == batch->due_ns && its->first < batch->first)) {
            batch = its;
        }
    }
    bool is_decoding = batch->due_ns < due ||
                       (batch->due_ns == due && due < UNBOUNDED && batch->first < w->heap[0].actor);
    if (is_decoding) {
        due = batch->due_ns;
    }
    // Without an end, what happens after the last request does not.
    int64_t next_ns = min_of(min_of(due, arrival_ns), k->until_ns);
    if (c->happen_ns <= next_ns && next_ns < UNBOUNDED && c->happen_ns < k->until_ns) {
        c->now = c->happen_ns;
        happen(w);
        return next_actor(w);
    }
    if (min_of(due, arrival_ns) >= k->until_ns) {
        return NONE;
    }
    if (due <= arrival_ns) {
        c->now = due;
        if (is_decoding) {
            move(w, batch - w->fleet.batches);
            int64_t first = pop(batch->heap, batch->waiting--); // of those that wait for its clock
            set_due(w);
            return first;
        }
        return pop(w->heap, c->heap_size--);
    }
    if (c->idle == 0) {
        ensure(w, MORE_ACTORS, 1);
    }
    int64_t actor = w->idle[--c->idle];
    c->now = arrival_ns;
    int64_t request = c->arrived++; // of the file
    if (k->follows) {
        request = pop(w->following.coming, c->coming--);
        w->following.came[c->arrived - 1] = (Event){c->now, request};
    }
    arrive(w, actor, request);
    if (k->follows) {
        call_followers(w, request, 1);
    }
    return actor;
}

// Do the actor's next step; how long it waits then, WAITS, or NONE if it is done for good.
static int64_t act(World *w, int64_t actor) {
    int64_t step = w->actors[actor].step;
    w->control.actor = actor;
    if (step > STEP_QUEUE) {
        move(w, w->actors[actor].node);
    }
    switch (step) {
    case STEP_ASK:
        return ask(w, actor);
    case STEP_QUEUE:
        return enqueue(w, actor);
    case STEP_LOAD:
        return load(w, actor);
    case STEP_PROMOTE:
        return promote(w, actor);
    case STEP_STORE:
        return store(w, actor);
    case STEP_DECODE:
        return decode(w, actor);
    default:
        return end_request(w, actor);
    }
}

// Let the actor do its next steps, as many as take no time.
static void take_steps(World *w, int64_t actor) {
    Control *c = &w->control;
    int64_t delay = 0;
    while (delay == 0) {
        if (w->knobs.acts_alone) {
            catch_up(w, c->now);
        }
        const Actor *me = &w->actors[actor];
        int64_t n = me->retrieved_objects + me->shared + me->length + me->new;
        if (n > w->chain_count) {
            ensure(w, LONGER_CHAIN, n);
        }
        delay = act(w, actor);
        pack(w);
    }
    if (delay > 0) {
        push(w->heap, c->heap_size++, c->now + delay, actor);
    }
}

static void run(World *w) {
    Control *c = &w->control;
    if (w->knobs.source == CHAINS) {
        w->contexts[0].entry = grown(NULL, w->object_uses_count, sizeof(int64_t));
        for (int64_t i = 0; i < w->object_uses_count; i++) {
            w->contexts[0].entry[i] = NONE;
        }
    }
    while (c->populated < w->items_count) {
        int64_t n = w->items[c->populated].objects;
        move(w, c->populating);
        if (n > w->chain_count) {
            ensure(w, LONGER_CHAIN, n);
        }
        populate(w);
        pack(w);
    }
    for (int64_t actor; (actor = next_actor(w)) != NONE;) {
        take_steps(w, actor);
    }
}

// Serve the prompts that wait as the simulation ends, until each has its first token, as if nobody
// asked any more: else a system that falls behind would look as fast as it began. Nothing else of
// it is counted, and no row is made.
static void answer_waiting(World *w) {
    Control *c = &w->control;
    int64_t left = 0, by_second_count = w->by_second_count;
    for (int64_t i = 0; i < w->actors_count; i++) {
        const Actor *me = &w->actors[i];
        left += STEP_LOAD <= me->step && me->step <= STEP_STORE && !me->answered;
        if (me->step == STEP_LOAD) {
            w->total.missed_tokens += me->input; // so far nothing of it was found
        }
    }
    if (!left || !w->first_token_count) {
        return;
    }
    Control control = *c;
    Total total = w->total;
    c->happen_ns = UNBOUNDED, w->found_count = 0, w->by_second_count = 0,
    w->knobs.is_counted_alone = 1;
    w->knobs.until_ns = UNBOUNDED, w->knobs.max_requests = max_of(c->arrived, c->next_request);
    for (int64_t actor; left > 0 && (actor = next_actor(w)) != NONE;) {
        int64_t was_answered = w->actors[actor].answered;
        take_steps(w, actor);
        left -= w->actors[actor].answered - was_answered;
    }
    ensure(w, FLUSH, 1);
    *c = control, w->total = total, w->by_second_count = by_second_count;
}

// Run `stage` to its end, or until there is no memory, or Python cannot do what it is asked;
// whether it came to its end.
static bool try(World *w, void (*stage)(World *w)) {
    jmp_buf stop;
    out_of_memory = &stop;
    bool is_stopped = setjmp(stop);
    if (!is_stopped) {
        stage(w);
    }
    out_of_memory = NULL;
    return !is_stopped;
}

// Simulate; whether to the end. `finish` comes after it.
EXPORT int64_t simulate(World *w) {
    return try(w, run);
}

// Answer who waits if the simulation came to its end, and give back what is C's own; whether all of
// it was done.
EXPORT int64_t finish(World *w, int64_t is_ended) {
    is_ended = is_ended && try(w, answer_waiting);
    table_free(&w->counts), table_free(&w->tops), table_free(&w->fleet.line_at);
    for (int64_t t = 0; t < w->tiers_count; t++) {
        if (w->tiers[t].on_empty) {
            w->tiers[t].on_empty(w, t, 0, 1);
        }
    }
    free(w->runs), free(w->fleet.lines);
    for (int64_t i = 0; i < w->actors_count; i++) {
        free(w->actors[i].holds);
    }
    for (int64_t i = 0; i < w->contexts_count; i++) {
        free(w->contexts[i].entry);
    }
    for (int64_t i = 0; i < w->fleet.count; i++) {
        free(w->fleet.batches[i].heap);
    }
    return is_ended;
}
