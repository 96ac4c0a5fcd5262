// The requests that a node decodes together (its batch), and the GPU memory that running requests
// take.
//
// Continuous batching (Yu et al., Orca, OSDI 2022), as vLLM and SGLang do it:
//
//     each step makes one token for every request of the batch
//     step time = max(time to read weights and caches, time to compute)
//     a request that joins or leaves changes the step time of all
//     a request is done after as many steps as it generates tokens
//
// The step time changes only when a request joins or leaves. So a clock of steps runs beside the
// time, and a request waits until that clock has advanced by its number of tokens: no event is
// needed for single steps.
#include "sim.h"

enum {
    STEP_PARTS = 1 << 10, // The clock counts in parts of a step.
    GROWTH = 1 << 8,      // Arrays of C's own grow by so many items.
};

static Batch *batch_at_hand(World *world) {
    return &world->fleet.batches[world->control.node];
}

// --- the clock of steps

// Notes when the first request that waits for the clock is due, if the batch stays as it is.
void batch_set_due(World *world) {
    Batch *batch = batch_at_hand(world);
    batch->due_ns = UNBOUNDED;
    if (batch->waiting == 0) {
        return;
    }
    batch->first_actor = batch->heap[0].actor;
    int64_t parts = max_of(0, batch->heap[0].when - batch->steps);
    int64_t most_steps = (UNBOUNDED - batch->since_ns) / batch->step_ns;
    if (parts / STEP_PARTS < most_steps) {
        int64_t whole_ns = parts / STEP_PARTS * batch->step_ns;
        int64_t rest_ns = round_up_div(parts % STEP_PARTS * batch->step_ns, STEP_PARTS);
        batch->due_ns = batch->since_ns + whole_ns + rest_ns;
    }
}

// Brings the clock of steps up to now.
static void batch_advance_clock(World *world) {
    Batch *batch = batch_at_hand(world);
    int64_t passed_ns = world->control.now - batch->since_ns;
    if (batch->size > 0) {
        int64_t whole = passed_ns / batch->step_ns * STEP_PARTS;
        batch->steps += whole + passed_ns % batch->step_ns * STEP_PARTS / batch->step_ns;
    }
    batch->since_ns = world->control.now;
}

// Adds `requests` to the batch, whose caches take `bytes` of each step, and sets the new step time.
// While a prompt is being computed, a step is at least as long as one of the prompt's.
void batch_change(World *world, int64_t requests, int64_t bytes) {
    Batch *batch = batch_at_hand(world);
    const Node *node = &world->fleet.nodes[world->control.node];
    batch_advance_clock(world);
    batch->size += requests;
    batch->bytes += bytes;
    int64_t compute_ns = batch->size * world->knobs.decode_compute_ns;
    int64_t read_ns = compute_step_read_ns(world, batch->size, batch->bytes);
    bool is_computing = node->prefill_busy_until_ns > world->control.now;
    int64_t least_ns = is_computing ? max_of(1, batch->prompt_step_ns) : 1;
    batch->step_ns = max_of(least_ns, max_of(read_ns, compute_ns));
    batch_set_due(world);
}

// Bytes of a request's cache as its decode steps count them: with half of its answer, throughout.
static int64_t batch_request_bytes(World *world, const Actor *actor) {
    return compute_step_bytes(world, actor->input_tokens + actor->output_tokens / 2);
}

// Lets the actor's request join the batch.
void batch_join(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    batch_change(world, 1, batch_request_bytes(world, actor));
    actor->join_step = batch_at_hand(world)->steps;
    actor->decode_start_ns = world->control.now;
}

// Lets the actor's request leave the batch, if it is in it.
void batch_depart(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    if (actor->join_step == NONE) {
        return;
    }
    batch_change(world, -1, -batch_request_bytes(world, actor));
    actor->join_step = NONE;
}

// Lets the actor act when the batch has done `steps` since it joined. Returns WAITS, or 0 if these
// are done already.
int64_t batch_wait_steps(World *world, int64_t actor_id, int64_t steps) {
    Batch *batch = batch_at_hand(world);
    batch_advance_clock(world);
    int64_t when = world->actors[actor_id].join_step + steps * STEP_PARTS;
    if (when <= batch->steps) {
        return 0;
    }
    if (batch->waiting % GROWTH == 0) {
        batch->heap = memory_grow(batch->heap, batch->waiting + GROWTH, sizeof(Event));
    }
    event_push(batch->heap, batch->waiting++, when, actor_id);
    batch_set_due(world);
    return WAITS;
}

// How many steps the batch has done since its clock stood at `join_step`, until now.
int64_t batch_steps_since(World *world, int64_t join_step) {
    const Batch *batch = batch_at_hand(world);
    int64_t steps = batch->steps - join_step;
    if (batch->size > 0) {
        int64_t passed_ns = world->control.now - batch->since_ns;
        steps += passed_ns / batch->step_ns * STEP_PARTS;
        steps += passed_ns % batch->step_ns * STEP_PARTS / batch->step_ns;
    }
    return steps / STEP_PARTS;
}

// Removes all requests from the batch of the node at hand, which is lost.
void batch_clear(World *world) {
    Batch *batch = batch_at_hand(world);
    batch->size = 0;
    batch->bytes = 0;
    batch->waiting = 0;
    batch->since_ns = world->control.now;
    batch_set_due(world);
}

// --- GPU memory
//
// A running request takes memory for its prompt and for half of its answer. Cached objects that
// several running requests use are in memory once.

// Lets the actor's request use `tier_slot`, which is in GPU memory.
void gpu_hold_slot(World *world, int64_t actor_id, int64_t tier_slot) {
    Actor *actor = &world->actors[actor_id];
    GpuUse *use = &world->gpu_uses[tier_slot];
    int64_t size = world->slots[tier_slot].size;
    if (actor->holds_count % GROWTH == 0) {
        actor->holds = memory_grow(actor->holds, actor->holds_count + GROWTH, sizeof(GpuHold));
    }
    actor->holds[actor->holds_count++] = (GpuHold){(int32_t)tier_slot, use->generation};
    Node *node = &world->fleet.nodes[world->control.node];
    bool is_shared = use->running_requests > 0;
    if (!is_shared) {
        idle_leave(world, tier_slot);
    }
    use->running_requests++;
    if (is_shared) {
        node->gpu_bytes -= size;
    } else {
        node->held_bytes += size;
    }
}

// Reserves memory for the actor's request, which uses those of `chain[:end]` that are in GPU
// memory. Returns whether there is room beside the others that run. A request that runs alone
// always has room, and a node that only decodes takes what it is sent.
bool gpu_reserve(World *world, int64_t actor_id, int64_t end) {
    if (!world->knobs.is_bounded) {
        return true;
    }
    Actor *actor = &world->actors[actor_id];
    Node *node = &world->fleet.nodes[world->control.node];
    bool is_alone = node->gpu_bytes == 0;
    int64_t tokens = actor->input_tokens + actor->output_tokens / 2;
    actor->gpu_bytes = tokens * world->knobs.bytes_per_token;
    node->gpu_bytes += actor->gpu_bytes;
    for (int64_t i = 0; i < end; i++) {
        if (world->hit_level[i] == 0 && object_is_in(world, world->chain[i], 0)) {
            gpu_hold_slot(world, actor_id, slot_in_tier(world, 0, world->chain[i]));
        }
    }
    bool is_decoder = world->control.node >= world->fleet.entry_nodes;
    if (is_alone || is_decoder || node->gpu_bytes <= world->tiers[0].limit_bytes) {
        return true;
    }
    gpu_release(world, actor_id);
    node->is_gpu_full = 1;
    return false;
}

// Releases the memory of the actor's request, but for what others use. The first of the node's
// queue, if it waits for memory, tries again.
void gpu_release(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    Node *node = &world->fleet.nodes[actor->node];
    node->gpu_bytes -= actor->gpu_bytes;
    actor->gpu_bytes = 0;
    int64_t here = world->control.node;
    fleet_move_to(world, actor->node); // whose list the slots are in
    while (actor->holds_count > 0) {
        const GpuHold *hold = &actor->holds[--actor->holds_count];
        GpuUse *use = &world->gpu_uses[hold->slot];
        int64_t size = world->slots[hold->slot].size;
        if (use->generation != hold->generation) {
            continue; // It was evicted meanwhile.
        }
        use->running_requests--;
        if (use->running_requests > 0) {
            node->gpu_bytes += size;
        } else {
            node->held_bytes -= size;
            idle_release(world, hold->slot);
        }
    }
    fleet_move_to(world, here);
    if (node->is_gpu_full) {
        Control *control = &world->control;
        event_push(world->heap, control->heap_size++, control->now, node->first_queued - 1);
    }
    node->is_gpu_full = 0;
}
