// The simulation: requests arrive, load what is cached, store what is not, and decode.
//
// One loop serves both a file of requests (arrivals at their times, or after those that they follow) and synthetic
// users (the next turn waits for the last). Who acts next is in a heap by time and then by actor.
#include "sim.h"

#include <setjmp.h>

// === schedule ========================================================================================================
// The schedule: who acts when, by time; and those who decode, by the steps of the batch that they are in.
//
// Each step of the batch makes one token for each request in it, and takes as long as all of them need together, which
// changes only when one joins or leaves. So a clock of steps runs beside the time, and a request is done once that
// clock has gone on by as many steps as it generates tokens, however long each of them took.

enum { PARTS = 1 << 10 };   // of a step: what the clock counts

static bool is_before(const Event *event, int64_t when, int64_t actor) {
    return event->when < when || (event->when == when && event->actor < actor);
}

// Schedule `actor` in a heap of `count`; ties go by actor number.
void push(Event *heap, int64_t count, int64_t when, int64_t actor) {
    int64_t i = count;
    for (int64_t up; i > 0 && !is_before(&heap[up = (i - 1) >> 1], when, actor); i = up) heap[i] = heap[up];
    heap[i] = (Event){when, actor};
}

// Take the first of the `count` of a heap; its actor.
int64_t pop(Event *heap, int64_t count) {
    int64_t n = count - 1, first = heap[0].actor, i = 0;
    Event last = heap[n];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_before(&heap[child + 1], heap[child].when, heap[child].actor)) child++;
        if (!is_before(&heap[child], last.when, last.actor)) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return first;
}

// --- requests of a file ---------------------------------------------------------------------------------------------

// When the next one arrives, as far as is known; UNBOUNDED if none is left.
static int64_t next_arrival_ns(World *w) {
    Control *c = &w->control;
    if (c->arrived >= w->knobs.max_requests) return UNBOUNDED;
    if (w->knobs.follows) return c->coming > 0 ? w->following.coming[0].when : UNBOUNDED;
    return c->arrived < w->arrival_ns_count ? w->arrival_ns[c->arrived] : UNBOUNDED;
}

// Let the next one arrive, now; which of the file it is.
static int64_t take_arrival(World *w) {
    Control *c = &w->control;
    int64_t request = c->arrived;
    if (w->knobs.follows) {
        request = pop(w->following.coming, c->coming--);
        w->following.came[c->arrived] = (Event){c->now, request};
    }
    c->arrived++;
    return request;
}

// Let those come that follow the file's `request` once it starts, or has ended, and that wait for nothing else.
void call_followers(World *w, int64_t request, int64_t is_of_start) {
    Control *c = &w->control;
    Following *f = &w->following;
    for (int64_t i = f->first[request]; i < f->first[request + 1]; i++) {
        Follower *follower = &f->followers[i];
        if (follower->is_of_start != is_of_start) continue;
        Waiting *waiting = &f->waiting[follower->request];
        waiting->ready_ns = max_of(waiting->ready_ns, c->now + follower->delay_ns);
        if (--waiting->left == 0) push(f->coming, c->coming++, waiting->ready_ns, follower->request);
    }
}

// --- those who decode -----------------------------------------------------------------------------------------------

// Whether somebody in the batch of node `one` is due before anybody in that of `other`.
static bool is_earlier(World *w, int64_t one, int64_t other) {
    Batch *mine = &w->fleet.batches[one], *yours = &w->fleet.batches[other];
    return mine->due_ns < yours->due_ns || (mine->due_ns == yours->due_ns && mine->first < yours->first);
}

// Let the batch at hand, whose first has changed, play the tournament again.
static void play(World *w) {
    int32_t *winners = w->fleet.winners;
    for (int64_t i = (w->fleet.winners_count / 2 + w->control.node) >> 1; i > 0; i >>= 1) {
        int32_t one = winners[2 * i], other = winners[2 * i + 1];
        winners[i] = other != NONE && is_earlier(w, other, one) ? other : one;
    }
}

static int64_t first_due(World *w) { return w->fleet.count > 1 ? w->fleet.winners[1] : 0; }

// Note when the first that waits for the clock is due if the batch stays as it is: never if after the end.
static void set_due(World *w) {
    Batch *batch = batch_of(w);
    batch->due_ns = UNBOUNDED;
    if (batch->first != NONE) {
        int64_t left = max_of(0, w->decoding[batch->first].when - batch->steps);
        // Until the end there may be less than no time: it floors.
        int64_t until = w->knobs.until_ns - batch->since_ns;
        int64_t whole = until / batch->step_ns - (until % batch->step_ns < 0);
        if (left / PARTS < whole + 1) {
            int64_t due = batch->since_ns + left / PARTS * batch->step_ns + up_by(left % PARTS * batch->step_ns, PARTS);
            if (due < w->knobs.until_ns) batch->due_ns = due;
        }
    }
    if (w->fleet.count > 1) play(w);
}

// Bring the clock of steps up to now.
static void advance(World *w) {
    Batch *batch = batch_of(w);
    if (batch->size > 0) {
        int64_t passed = w->control.now - batch->since_ns;
        batch->steps += passed / batch->step_ns * PARTS + passed % batch->step_ns * PARTS / batch->step_ns;
    }
    batch->since_ns = w->control.now;
}

// What one decode step reads of the cache of a context of `tokens` on one rank; states are written too.
static int64_t step_bytes(World *w, int64_t tokens) {
    int64_t size = 0;
    for (int64_t p = 0; p < w->pieces_count; p++) {
        Piece *piece = &w->pieces[p];
        int64_t read = piece->kind == GROWING ? tokens
                     : piece->kind == SLIDING || piece->kind == CHUNKED ? min_of(tokens, piece->window) : 0;
        size += read * piece->token_bytes + 2 * piece->state_bytes;
    }
    return size;
}

// Add `requests` to the batch, which take `bytes` of each step.
static void change(World *w, int64_t requests, int64_t bytes) {
    Batch *batch = batch_of(w);
    Knobs *k = &w->knobs;
    advance(w);
    batch->size += requests, batch->bytes += bytes;
    int64_t weights = min_of(k->decode_ns_per_token, batch->size * k->decode_active_ns);
    if (k->decode_active_ns == 0) weights = k->decode_ns_per_token;
    if (k->decode_bytes_per_us > 0) weights += batch->bytes * 1000 / k->decode_bytes_per_us;
    batch->step_ns = max_of(1, max_of(weights, batch->size * k->decode_compute_ns));
    set_due(w);
}

// The first of two heaps of those that wait, made into one (a skew heap); NONE is an empty one.
static int64_t merge(World *w, int64_t one, int64_t other) {
    Wait *heap = w->decoding;
    int64_t root = NONE, last = NONE;
    while (one >= 0 && other >= 0) {
        if (heap[other].when < heap[one].when || (heap[other].when == heap[one].when && other < one)) {
            int64_t earlier = other;
            other = one, one = earlier;
        }
        if (last == NONE) root = one;
        else heap[last].left = one;
        // What is left to merge becomes its left heap.
        int64_t rest = heap[one].right;
        last = one;
        heap[one].right = heap[one].left;
        one = rest;
    }
    int64_t rest = one == NONE ? other : one;
    if (last == NONE) return rest;
    heap[last].left = rest;
    return root;
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
    if (me->first_step == NONE) return;
    change(w, -1, -step_bytes(w, me->input + me->output / 2));
    me->first_step = NONE;
}

// Let the actor act when so many `steps` are done since it joined; WAITS, or 0 if they are.
int64_t after_steps(World *w, int64_t actor, int64_t steps) {
    Batch *batch = batch_of(w);
    advance(w);
    int64_t when = w->actors[actor].first_step + steps * PARTS;
    if (when <= batch->steps) return 0;
    w->decoding[actor] = (Wait){when, NONE, NONE};
    batch->first = merge(w, batch->first, actor);
    set_due(w);
    return WAITS;
}

// Take the first that waits for the clock of the batch at hand; its actor.
static int64_t pop_decoding(World *w) {
    Batch *batch = batch_of(w);
    int64_t actor = batch->first;
    batch->first = merge(w, w->decoding[actor].left, w->decoding[actor].right);
    set_due(w);
    return actor;
}

// Let nobody decode any more at the node at hand.
void disband(World *w) {
    Batch *batch = batch_of(w);
    batch->size = 0, batch->bytes = 0, batch->first = NONE, batch->since_ns = w->control.now;
    set_due(w);
}

// === the loop ========================================================================================================

enum { HAPPENS = NONE - 1 };    // instead of an actor

// What Python could not do ends the simulation, wherever it is: memory is out, the disk is full, or Ctrl-C was pressed.
void ensure(World *w, int64_t what, int64_t need) {
    if (!w->ask(what, need)) longjmp(*(jmp_buf *)w->stop, 1);
}

// Ensure that tables hold the objects of the actor's request in its next step, and of its conversation.
static void ensure_capacity(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    int64_t n = me->retrieved_objects + me->shared + me->length + me->new;
    bool makes = me->step == STEP_LOAD || me->step == STEP_END;
    if (n > w->chain_count) ensure(w, LONGER_CHAIN, n);
    if (makes && w->knobs.source != CHAINS && me->length + me->new > w->knobs.context_width)
        ensure(w, WIDER_CONTEXTS, me->length + me->new);
}

// The actor whose turn it is, or HAPPENS, and set the time; NONE at the end.
static int64_t next_actor(World *w) {
    Control *c = &w->control;
    Knobs *k = &w->knobs;
    int64_t arrival_ns = next_arrival_ns(w), due = c->heap_size > 0 ? w->heap[0].when : UNBOUNDED;
    int64_t node = first_due(w);
    Batch *batch = &w->fleet.batches[node];
    bool is_decoding = batch->due_ns < due
        || (batch->due_ns == due && due < UNBOUNDED && batch->first < w->heap[0].actor);
    if (is_decoding) due = batch->due_ns;
    // Without an end, what happens after the last request does not.
    int64_t next_ns = min_of(min_of(due, arrival_ns), k->until_ns);
    if (c->happen_ns <= next_ns && next_ns < UNBOUNDED && c->happen_ns < k->until_ns) {
        c->now = c->happen_ns;
        return HAPPENS;
    }
    if (due < UNBOUNDED && due <= arrival_ns) {
        c->now = due;
        if (is_decoding) {
            move(w, node);
            return pop_decoding(w);
        }
        return pop(w->heap, c->heap_size--);
    }
    if (arrival_ns >= k->until_ns) return NONE;
    if (c->idle == 0) ensure(w, MORE_ACTORS, 1);
    if (k->source == CONVERSATIONS && c->idle_contexts == 0) ensure(w, MORE_CONTEXTS, 1);
    int64_t actor = w->idle[--c->idle];
    c->now = arrival_ns;
    int64_t request = take_arrival(w);
    arrive(w, actor, request);
    if (k->follows) call_followers(w, request, 1);
    return actor;
}

// Do the actor's next step; how long it waits then, WAITS, or NONE if it is done for good.
static int64_t act(World *w, int64_t actor) {
    int64_t step = w->actors[actor].step;
    if (step > STEP_LOAD) move(w, w->actors[actor].node);
    switch (step) {
    case STEP_ASK: return ask(w, actor);
    case STEP_LOAD: return load(w, actor);
    case STEP_PROMOTE: return promote(w, actor);
    case STEP_STORE: return store(w, actor);
    case STEP_DECODE: return decode(w, actor);
    default: return end_request(w, actor);
    }
}

// Simulate until the end, or until Python cannot do what it is asked.
EXPORT void simulate(World *w) {
    Control *c = &w->control;
    Knobs *k = &w->knobs;
    jmp_buf stop;
    w->stop = &stop;
    if (setjmp(stop)) return;
    while (c->populated < w->items_count) {
        int64_t n = w->items[c->populated].objects;
        move(w, c->populating);
        if (n > w->chain_count) ensure(w, LONGER_CHAIN, n);
        populate(w);
        pack(w);
    }
    for (int64_t actor; (actor = next_actor(w)) != NONE;) {
        if (actor == HAPPENS) {
            happen(w);
            continue;
        }
        int64_t delay = 0;
        while (delay == 0) {    // steps that take no time
            if (k->expires || k->polls || k->queued) catch_up(w, c->now);
            ensure_capacity(w, actor);
            delay = act(w, actor);
            pack(w);
        }
        if (delay > 0 && c->now + delay < k->until_ns) push(w->heap, c->heap_size++, c->now + delay, actor);
    }
}
