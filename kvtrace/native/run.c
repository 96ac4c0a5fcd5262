// The simulation: requests arrive, load what is cached, store what is not, and decode.
//
// One loop serves both a file of requests (arrivals at their times, or after those that they follow) and synthetic
// users (the next turn waits for the last). Who acts next is in a heap by time and then by actor.
#include "sim.h"

#include <setjmp.h>

enum { HAPPENS = NONE - 1 };    // instead of an actor

// What Python could not do ends the simulation, wherever it is: memory is out, the disk is full, or Ctrl-C was pressed.
void have(World *w, int64_t what, int64_t need) {
    if (!w->ask(what, need)) longjmp(*(jmp_buf *)w->stop, 1);
}

// Have room for the objects of the actor's request in its next step, and in its conversation if it makes some.
static void have_room(World *w, int64_t actor) {
    Actor *me = &w->actors[actor];
    int64_t n = me->retrieved_objects + me->shared + me->length + me->new;
    bool makes = me->step == STEP_LOAD || me->step == STEP_END;
    if (n > w->chain_count) have(w, LONGER_CHAIN, n);
    if (makes && w->knobs.source != CHAINS && me->length + me->new > w->knobs.context_width)
        have(w, WIDER_CONTEXTS, me->length + me->new);
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
    if (c->idle == 0) have(w, MORE_ACTORS, 1);
    if (k->source == CONVERSATIONS && c->idle_contexts == 0) have(w, MORE_CONTEXTS, 1);
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
        if (n > w->chain_count) have(w, LONGER_CHAIN, n);
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
            have_room(w, actor);
            delay = act(w, actor);
            pack(w);
        }
        if (delay > 0 && c->now + delay < k->until_ns) push(w->heap, c->heap_size++, c->now + delay, actor);
    }
}
