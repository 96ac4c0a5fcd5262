// The main loop: who acts next, and when.
// One loop serves a file of requests (which arrive at their times, or after those that they follow)
// and synthetic users (whose next turn waits for the last).
//
//     simulation_run
//     -> schedule_populate     what is there before the start (store.c)
//     -> schedule_next_actor   the earliest of: an actor of the heap, a request of a batch that has
//                              generated enough tokens, an arrival, an event of the fleet
//     -> schedule_take_steps   its next steps, as many as take no time
//        -> background_catch_up   what tiers do until now (background.c)
//        -> schedule_act          one step (users.c, request.c, store.c)
//     simulation_finish        the requests that still run end; memory is freed
//
// Of several that act at the same time, the one with the lowest number acts first.
#include "sim.h"

#include <stdlib.h>

// --- heaps, by time and then by actor

static bool event_is_before(const Event *event, int64_t when, int64_t actor) {
    return event->when < when || (event->when == when && event->actor < actor);
}

// Adds an event to a heap of `count` events.
void event_push(Event *heap, int64_t count, int64_t when, int64_t actor) {
    int64_t i = count;
    while (i > 0) {
        int64_t parent = (i - 1) >> 1;
        if (event_is_before(&heap[parent], when, actor)) {
            break;
        }
        heap[i] = heap[parent];
        i = parent;
    }
    heap[i] = (Event){when, actor};
}

// Removes the first event of a heap of `count` events; returns its actor.
int64_t event_pop(Event *heap, int64_t count) {
    int64_t n = count - 1;
    int64_t first = heap[0].actor;
    Event last = heap[n];
    int64_t i = 0;
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= n) {
            break;
        }
        if (child + 1 < n &&
            event_is_before(&heap[child + 1], heap[child].when, heap[child].actor)) {
            child++;
        }
        if (!event_is_before(&heap[child], last.when, last.actor)) {
            break;
        }
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = last;
    return first;
}

// --- asking Python

// Has Python take the rows made so far, or enlarge a table for `need` items. If it cannot (memory
// is out, the disk is full, or Ctrl-C was pressed), the simulation ends at once, by a long jump.
// Meanwhile out_of_memory is NULL: a jump out of C that Python calls would skip Python's own
// frames.
void schedule_ask_python(World *world, int64_t what, int64_t need) {
    jmp_buf *stop = out_of_memory;
    out_of_memory = NULL;
    bool is_done = world->ask(what, need);
    out_of_memory = stop;
    if (!is_done) {
        longjmp(*stop, 1);
    }
}

// --- arrivals of a file

// Sets the prompt of a request that continues its conversation in objects of its own.
static void schedule_continue_conversation(World *world, Actor *actor, int64_t row) {
    const Knobs *knobs = &world->knobs;
    Conversation *conversation = &world->conversations[row];
    actor->session = row;
    actor->context = row;
    actor->own_objects = conversation->objects;
    if (knobs->chunk_tokens) {
        int64_t objects = objects_of_tokens(world, actor->input_tokens);
        actor->new_objects = max_of(0, objects - actor->own_objects);
        actor->own_objects = min_of(objects, actor->own_objects);
        return;
    }
    int64_t new_tokens = max_of(0, actor->input_tokens - conversation->tokens);
    conversation->tokens = actor->input_tokens + actor->output_tokens;
    actor->new_objects = new_tokens > 0;
    if (new_tokens) {
        actor->new_tokens = new_tokens;
    }
}

// Makes `actor_id` the request in `row` of the file. Requests are numbered as they arrive.
static void schedule_arrive(World *world, int64_t actor_id, int64_t row) {
    Actor *actor = &world->actors[actor_id];
    actor->step = STEP_ENQUEUE;
    actor->request = world->control.arrived - 1;
    actor->stage = 0;
    actor->arrival_ns = world->control.now;
    actor->input_tokens = world->input_tokens[row];
    actor->output_tokens = world->output_tokens[row];
    actor->new_tokens = actor->input_tokens;
    actor->restarts = 0;
    actor->has_first_token = 0;
    actor->named_answers = 0;
    actor->prompt_item = NONE;
    if (world->knobs.source != CHAINS) {
        schedule_continue_conversation(world, actor, world->conversation[row]);
        return;
    }
    if (world->conversation_count) {
        actor->session = world->conversation[row];
    }
    actor->context = 0;
    actor->chain_first = world->offsets[row];
    actor->own_objects = world->offsets[row + 1] - actor->chain_first;
    actor->new_objects = 0;
}

// Tells the followers of a request of the file that it starts, or that it has ended. Those that
// wait for nothing else arrive after their delay.
void schedule_call_followers(World *world, int64_t request, int64_t is_of_start) {
    Control *control = &world->control;
    Following *following = &world->following;
    for (int64_t i = following->first[request]; i < following->first[request + 1]; i++) {
        const Follower *follower = &following->followers[i];
        if (follower->is_of_start != is_of_start) {
            continue;
        }
        Predecessors *predecessors = &following->predecessors[follower->request];
        int64_t ready_ns = control->now + follower->delay_ns;
        predecessors->ready_ns = max_of(predecessors->ready_ns, ready_ns);
        predecessors->left--;
        if (predecessors->left == 0) {
            event_push(following->coming, control->coming++, predecessors->ready_ns,
                       follower->request);
        }
    }
}

// When the next request of the file arrives; UNBOUNDED if none does.
static int64_t schedule_next_arrival_ns(World *world) {
    const Control *control = &world->control;
    const Knobs *knobs = &world->knobs;
    if (control->arrived >= knobs->max_requests) {
        return UNBOUNDED;
    }
    if (knobs->follows) {
        return control->coming > 0 ? world->following.coming[0].when : UNBOUNDED;
    }
    bool has_more = control->arrived < world->arrival_ns_count;
    return has_more ? world->arrival_ns[control->arrived] : UNBOUNDED;
}

// Lets the next request of the file arrive; returns the actor that it becomes.
static int64_t schedule_take_arrival(World *world) {
    Control *control = &world->control;
    Following *following = &world->following;
    if (control->idle == 0) {
        schedule_ask_python(world, MORE_ACTORS, 1);
    }
    int64_t actor_id = world->idle[--control->idle];
    int64_t row = control->arrived++;
    if (world->knobs.follows) {
        row = event_pop(following->coming, control->coming--);
        following->came[control->arrived - 1] = (Event){control->now, row};
    }
    schedule_arrive(world, actor_id, row);
    if (world->knobs.follows) {
        schedule_call_followers(world, row, 1);
    }
    return actor_id;
}

// --- the loop

// The batch in which a request is due first; of several, that of the request of the lowest actor.
static Batch *schedule_first_batch(World *world) {
    Batch *first = world->fleet.batches;
    for (int64_t node = 1; node < world->fleet.count; node++) {
        Batch *batch = &world->fleet.batches[node];
        bool is_tie = batch->due_ns == first->due_ns;
        if (batch->due_ns < first->due_ns || (is_tie && batch->first_actor < first->first_actor)) {
            first = batch;
        }
    }
    return first;
}

// Sets the time to that of the next actor, and returns it; NONE at the end. Applies the events of
// the fleet that are due before.
static int64_t schedule_next_actor(World *world) {
    Control *control = &world->control;
    const Knobs *knobs = &world->knobs;
    for (;;) {
        int64_t arrival_ns = schedule_next_arrival_ns(world);
        int64_t due_ns = control->heap_size > 0 ? world->heap[0].when : UNBOUNDED;
        Batch *batch = schedule_first_batch(world);
        bool is_tie = batch->due_ns == due_ns && due_ns < UNBOUNDED;
        bool is_decoding =
            batch->due_ns < due_ns || (is_tie && batch->first_actor < world->heap[0].actor);
        if (is_decoding) {
            due_ns = batch->due_ns;
        }
        // If the simulation has no end, events after the last request are not applied.
        int64_t next_ns = min_of(min_of(due_ns, arrival_ns), knobs->until_ns);
        int64_t event_ns = control->next_event_ns;
        if (event_ns <= next_ns && next_ns < UNBOUNDED && event_ns < knobs->until_ns) {
            control->now = event_ns;
            fleet_apply_event(world);
            continue;
        }
        if (min_of(due_ns, arrival_ns) >= knobs->until_ns) {
            return NONE;
        }
        if (due_ns > arrival_ns) {
            control->now = arrival_ns;
            return schedule_take_arrival(world);
        }
        control->now = due_ns;
        if (!is_decoding) {
            return event_pop(world->heap, control->heap_size--);
        }
        fleet_move_to(world, batch - world->fleet.batches);
        int64_t actor_id = event_pop(batch->heap, batch->waiting--);
        batch_set_due(world);
        return actor_id;
    }
}

// Does the actor's next step. Returns how long it waits then; WAITS; or NONE if it is done for
// good.
static int64_t schedule_act(World *world, int64_t actor_id) {
    int64_t step = world->actors[actor_id].step;
    world->control.actor_id = actor_id;
    if (step > STEP_ENQUEUE) {
        fleet_move_to(world, world->actors[actor_id].node);
    }
    switch (step) {
    case STEP_ASK:
        return user_ask(world, actor_id);
    case STEP_ENQUEUE:
        return request_enqueue(world, actor_id);
    case STEP_LOAD:
        return request_load(world, actor_id);
    case STEP_PREFILL:
        return request_prefill(world, actor_id);
    case STEP_STORE:
        return store_computed(world, actor_id);
    case STEP_DECODE:
        return request_decode(world, actor_id);
    default:
        return request_end(world, actor_id);
    }
}

// Makes World.chain long enough for `n` objects.
static void schedule_ensure_chain(World *world, int64_t n) {
    if (n > world->chain_count) {
        schedule_ask_python(world, LONGER_CHAIN, n);
    }
}

// Does the actor's next steps, as many as take no time.
static void schedule_take_steps(World *world, int64_t actor_id) {
    Control *control = &world->control;
    int64_t delay_ns = 0;
    while (delay_ns == 0) {
        if (world->knobs.has_timed_work) {
            background_catch_up(world, control->now);
        }
        const Actor *actor = &world->actors[actor_id];
        schedule_ensure_chain(world, actor->retrieved_objects + actor->shared_objects +
                                         actor->own_objects + actor->new_objects +
                                         answer_most_objects(world, actor));
        delay_ns = schedule_act(world, actor_id);
        slot_release_pending(world);
    }
    if (delay_ns > 0) {
        event_push(world->heap, control->heap_size++, control->now + delay_ns, actor_id);
    }
}

// Writes the items that are there before the start.
static void schedule_populate(World *world) {
    Control *control = &world->control;
    while (control->populated < world->items_count) {
        fleet_move_to(world, control->populating_node);
        schedule_ensure_chain(world, world->items[control->populated].objects);
        store_populate(world);
        slot_release_pending(world);
    }
}

static void schedule_run(World *world) {
    if (world->knobs.source == CHAINS) {
        int64_t objects = world->object_uses_count;
        world->contexts[0].entries = memory_grow(NULL, objects, sizeof(int64_t));
        for (int64_t i = 0; i < objects; i++) {
            world->contexts[0].entries[i] = NONE;
        }
    }
    schedule_populate(world);
    for (;;) {
        int64_t actor_id = schedule_next_actor(world);
        if (actor_id == NONE) {
            return;
        }
        schedule_take_steps(world, actor_id);
    }
}

// --- the end

// Counts what the requests that run as the simulation ends have done until now. Returns how many
// they are.
static int64_t schedule_count_running(World *world) {
    Total *total = &world->total;
    int64_t running = 0;
    for (int64_t i = 0; i < world->actors_count; i++) {
        const Actor *actor = &world->actors[i];
        running += actor->step >= STEP_LOAD;
        if (actor->step == STEP_LOAD) {
            total->missed_tokens += actor->input_tokens; // not looked up yet
        } else if (actor->step >= STEP_DECODE) {
            fleet_move_to(world, actor->node);
            total->generated_tokens += answer_generated_tokens(world, actor);
        }
    }
    return running;
}

// Goes on until each request that runs as the simulation ends has ended, without new requests.
// Otherwise a system that falls behind would look as fast as it began. Only the times of these
// requests are recorded: nothing else is counted, and no row is made.
static void schedule_end_running(World *world) {
    Control *control = &world->control;
    int64_t left = schedule_count_running(world);
    if (!left || !world->first_tokens_count) {
        return;
    }
    Control saved_control = *control;
    Total saved_total = world->total;
    int64_t by_second_count = world->by_second_count;
    control->next_event_ns = UNBOUNDED;
    world->lookup_outcomes_count = 0;
    world->by_second_count = 0;
    world->knobs.is_counted_alone = 1;
    world->knobs.until_ns = UNBOUNDED;
    world->knobs.max_requests = max_of(control->arrived, control->next_request);
    while (left > 0) {
        int64_t actor_id = schedule_next_actor(world);
        if (actor_id == NONE) {
            break;
        }
        bool was_running = world->actors[actor_id].step >= STEP_LOAD;
        schedule_take_steps(world, actor_id);
        left -= was_running && world->actors[actor_id].step == STEP_ASK;
    }
    schedule_ask_python(world, FLUSH, 1);
    *control = saved_control;
    world->total = saved_total;
    world->by_second_count = by_second_count;
}

// Runs `part` to its end, or until memory is out or Python cannot do what it is asked. Returns
// whether it came to its end.
static bool simulation_try(World *world, void (*part)(World *world)) {
    jmp_buf stop;
    out_of_memory = &stop;
    bool is_stopped = setjmp(stop);
    if (!is_stopped) {
        part(world);
    }
    out_of_memory = NULL;
    return !is_stopped;
}

// Simulates; returns whether it came to the end. simulation_finish must follow.
EXPORT int64_t simulation_run(World *world) {
    return simulation_try(world, schedule_run);
}

// If the simulation came to its end, lets the requests that run end, too. Frees what C
// allocated. Returns whether all of it was done.
EXPORT int64_t simulation_finish(World *world, int64_t is_ended) {
    is_ended = is_ended && simulation_try(world, schedule_end_running);
    table_free(&world->count_runs);
    table_free(&world->lfu_tops);
    table_free(&world->fleet.line_at);
    for (int64_t level = 0; level < world->tiers_count; level++) {
        if (world->tiers[level].on_empty) {
            world->tiers[level].on_empty(world, level, 1);
        }
    }
    lease_free(world);
    free(world->counts);
    free(world->fleet.lines);
    for (int64_t i = 0; i < world->actors_count; i++) {
        free(world->actors[i].holds);
        free(world->actors[i].answers);
    }
    for (int64_t i = 0; i < world->contexts_count; i++) {
        free(world->contexts[i].entries);
    }
    for (int64_t i = 0; i < world->fleet.count; i++) {
        free(world->fleet.batches[i].heap);
    }
    return is_ended;
}
