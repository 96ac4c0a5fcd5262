// The objects in GPU memory that generated tokens fill.
// They displace cached objects as those of prompts do, and stay until they are evicted in turn.
//
// As vLLM does it (v1/core/block_pool.py and single_type_kv_cache_manager.py of 0.33.0):
//
//     prefill is done       a block for the end of the prompt that fills none
//     each step of decode   a new block once the one before it is full
//     the request ends      the unfilled block is free at once; of the others, the last becomes the
//                           least recent, and all are less recent than the prompt's
//
// The last token of an answer is never an input, so nothing is computed of it.
//
// A block of a conversation's answer is one of its objects: its next turn finds it in GPU memory,
// and stores it in the tiers below. A file of requests that name their blocks does not name those
// of answers: they only take room (prompt_make_unnamed).
//
//     answer_start           decoding begins
//     answer_catch_up        others are about to look at GPU memory: what was generated until now
//     answer_finish          the request ends
//     answer_free_unfilled   and has released its memory
//     answer_use             its objects become recent as the preset says
//
// Running requests keep their memory (GPU memory in batch.c), so it does not matter when between
// two looks of others their answers took it: no event is needed for single blocks. An answer that
// finds nothing but the memory of running requests takes none. A real engine would preempt one.
#include "sim.h"

#define DRAWER (-((int64_t)1 << 42)) // Nobody else draws by this number.

enum {
    BLOCK_TOKENS = 16, // An unfilled object takes GPU blocks of so many tokens.
    GROWTH = 1 << 6,   // Arrays of C's own grow by so many items.
};

static bool answer_is_live(World *world, const AnswerObject *answer) {
    if (answer->slot == NONE || world->slots[answer->slot].object != answer->object) {
        return false;
    }
    slot_refresh(world, answer->slot);
    return object_is_in(world, answer->slot, 0);
}

static AnswerObject answer_object(World *world, int64_t slot) {
    return (AnswerObject){slot, slot == NONE ? NONE : world->slots[slot].object};
}

// The most objects that the answer of the actor's request fills.
int64_t answer_most_objects(World *world, const Actor *actor) {
    if (!world->knobs.holds_answers) {
        return 0;
    }
    return objects_of_tokens(world, actor->output_tokens) + world->knobs.chunk_objects;
}

// --- the recency list

// The least recent of the prompt's objects in GPU memory, as its tier orders them; NONE without.
static int64_t answer_prompt_end(World *world, const Actor *actor) {
    int64_t n = actor->shared_objects + actor->own_objects;
    bool is_head_first = world->tiers[0].recency == HEAD_FIRST;
    for (int64_t i = 0; i < n; i++) {
        int64_t entry = prompt_entry(world, actor, is_head_first ? i : n - 1 - i);
        if (entry >= 0) {
            slot_refresh(world, entry);
            if (object_is_in(world, entry, 0)) {
                return entry;
            }
        }
    }
    return NONE;
}

// --- adding objects

// Makes room in GPU memory for `slot`; returns false if running requests take all of it.
static bool answer_make_room(World *world, int64_t slot) {
    const Tier *tier = &world->tiers[0];
    int64_t size = world->slots[slot].size;
    int64_t held_bytes = world->fleet.nodes[world->control.node].held_bytes;
    if (size > tier->largest_object_bytes) {
        return false;
    }
    if (!tier_has_room(world, 0, size) && world->knobs.is_bounded &&
        held_bytes + size > tier->limit_bytes) {
        return false;
    }
    if (world->knobs.is_write_back) {
        tier_make_room_by_demotion(world, 0, slot, world->control.now);
    }
    return tier_make_room(world, 0, slot, world->control.now);
}

// Bytes of an object of `tokens` tokens of an answer, of a group of layers.
static int64_t answer_object_bytes(World *world, int64_t tokens, int64_t group) {
    const Knobs *knobs = &world->knobs;
    int64_t parts = knobs->ranks * knobs->layers;
    int64_t block_tokens = round_up_div(tokens, BLOCK_TOKENS) * BLOCK_TOKENS;
    int64_t whole_bytes = chunk_object_bytes(world, group);
    if (block_tokens >= knobs->chunk_tokens) {
        return whole_bytes;
    }
    return parts * round_up_div(whole_bytes / parts * block_tokens, knobs->chunk_tokens);
}

// Notes an object that no request can name.
static void answer_note(World *world, Actor *actor, int64_t slot) {
    if (actor->answers_count % GROWTH == 0) {
        actor->answers =
            memory_grow(actor->answers, actor->answers_count + GROWTH, sizeof(AnswerObject));
    }
    actor->answers[actor->answers_count++] = answer_object(world, slot);
}

// Whether the object that begins at `first` belongs to the sample of objects that is simulated.
static bool answer_is_sampled(World *world, const Actor *actor, int64_t first) {
    const Knobs *knobs = &world->knobs;
    int64_t number = actor->request << 32 | first;
    return knobs->answer_ppm == MILLION ||
           user_draw(knobs->seed, DRAWER, number, 0, MILLION - 1) < knobs->answer_ppm;
}

// Writes `slot`, an object of the actor's answer, to GPU memory, unless it is there. Returns
// whether there is room for it.
static bool answer_write(World *world, Actor *actor, int64_t slot) {
    if (object_is_in(world, slot, 0) || !answer_make_room(world, slot)) {
        return false;
    }
    if (answer_is_live(world, &actor->behind) && !tier_is_endless(world, 0)) {
        world->tiers[0].behind_slot = 1 + slot_in_tier(world, 0, actor->behind.slot);
    }
    Cause decode = {world->control.now, PHASE_DECODE, actor->request, actor->stage};
    tier_write(world, 0, slot, &decode);
    actor->behind = answer_object(world, slot);
    return true;
}

// Adds the object of a group of layers of the next chunk of the actor's answer, of the tokens from
// `first` up to `end`, to GPU memory. Returns whether there is room for it.
static bool answer_add_object(World *world, int64_t actor_id, int64_t first, int64_t end,
                              int64_t group) {
    Actor *actor = &world->actors[actor_id];
    const Knobs *knobs = &world->knobs;
    bool is_chunk = end - first == knobs->chunk_tokens;
    if (is_chunk && knobs->is_prefix && knobs->source != CHAINS) {
        int64_t place = objects_of_tokens(world, first) + group - actor->shared_objects;
        int64_t named = prompt_name_answer(world, actor_id, place);
        slot_refresh(world, named);
        bool is_written = answer_write(world, actor, named);
        slot_release_later(world, named);
        return is_written;
    }
    if (world->tiers[0].limit_bytes == UNBOUNDED) {
        return false; // Nothing is displaced, and nobody will find it.
    }
    int64_t slot = prompt_make_unnamed(world, answer_object_bytes(world, end - first, group));
    if (!answer_write(world, actor, slot)) {
        slot_release(world, slot);
        return false;
    }
    answer_note(world, actor, slot);
    actor->unfilled_answers += end % knobs->chunk_tokens > 0;
    return true;
}

// Adds the objects of the next chunk of the actor's answer; returns whether there is room for any.
static bool answer_add_chunk(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    const Knobs *knobs = &world->knobs;
    int64_t first = actor->answer_next;
    actor->answer_next = (first / knobs->chunk_tokens + 1) * knobs->chunk_tokens;
    int64_t end = min_of(actor->answer_next, actor->answer_end);
    bool is_any_written = false;
    if (!answer_is_sampled(world, actor, first)) {
        return false;
    }
    for (int64_t group = 0; group < knobs->chunk_objects; group++) {
        is_any_written |= answer_add_object(world, actor_id, first, end, group);
    }
    return is_any_written;
}

// Adds what the actor's answer takes once `tokens` of it are generated. The step under way computes
// one more.
static void answer_grow(World *world, int64_t actor_id, int64_t tokens) {
    Actor *actor = &world->actors[actor_id];
    Control *control = &world->control;
    int64_t end = min_of(actor->answer_end, actor->answer_begin + tokens + 1);
    if (actor->answer_next >= end) {
        return;
    }
    int64_t acting = control->actor_id;
    bool is_any_written = false;
    control->actor_id = actor_id; // tier_write lets it hold what is written.
    while (actor->answer_next < end) {
        is_any_written |= answer_add_chunk(world, actor_id);
    }
    actor->stage += is_any_written;
    control->actor_id = acting;
}

// --- the requests that decode at a node

static void answer_link(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    Node *node = &world->fleet.nodes[world->control.node];
    actor->previous_decoding = node->last_decoding;
    actor->next_decoding = 0;
    if (node->last_decoding) {
        world->actors[node->last_decoding - 1].next_decoding = 1 + actor_id;
    } else {
        node->first_decoding = 1 + actor_id;
    }
    node->last_decoding = 1 + actor_id;
}

static void answer_unlink(World *world, int64_t actor_id) {
    const Actor *actor = &world->actors[actor_id];
    Node *node = &world->fleet.nodes[world->control.node];
    int64_t previous = actor->previous_decoding;
    int64_t next = actor->next_decoding;
    if (previous) {
        world->actors[previous - 1].next_decoding = next;
    } else {
        node->first_decoding = next;
    }
    if (next) {
        world->actors[next - 1].previous_decoding = previous;
    } else {
        node->last_decoding = previous;
    }
}

// How many decode steps the actor's request has done, each of which generated a token.
static int64_t answer_steps(World *world, const Actor *actor) {
    const Knobs *knobs = &world->knobs;
    if (knobs->is_batched) {
        return batch_steps_since(world, actor->join_step);
    }
    if (knobs->decode_ns_per_token == 0) {
        return actor->output_tokens;
    }
    return (world->control.now - actor->decode_start_ns) / knobs->decode_ns_per_token;
}

// How many tokens the actor's request, which has its first token, has generated until now. Its node
// is at hand.
int64_t answer_generated_tokens(World *world, const Actor *actor) {
    const Knobs *knobs = &world->knobs;
    bool has_begun = actor->decode_start_ns >= actor->first_token_ns;
    if (knobs->is_batched) {
        has_begun = actor->join_step != NONE;
    }
    int64_t steps = has_begun ? answer_steps(world, actor) : 0;
    return min_of(actor->output_tokens, knobs->prefill_gives_token + steps);
}

// The actor's request begins to decode at the node at hand.
void answer_start(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    const Knobs *knobs = &world->knobs;
    if (!knobs->holds_answers) {
        return;
    }
    int64_t begin = actor->input_tokens - actor->retrieved_tokens;
    // The end of the prompt that fills no chunk may be an object of the prompt.
    int64_t partial_tokens = knobs->partial_unit ? 0 : begin % knobs->chunk_tokens;
    actor->answer_begin = begin;
    actor->answer_end = begin + max_of(0, actor->output_tokens - 1);
    actor->answer_next = begin - partial_tokens;
    actor->unfilled_answers = 0;
    actor->answers_count = 0;
    actor->behind = answer_object(world, answer_prompt_end(world, actor));
    answer_link(world, actor_id);
    answer_grow(world, actor_id, 0);
}

// Adds what the answers of all requests that decode at the node at hand take until now.
void answer_catch_up(World *world) {
    int64_t actor_id = world->fleet.nodes[world->control.node].first_decoding - 1;
    while (actor_id != NONE) {
        const Actor *actor = &world->actors[actor_id];
        if (actor->answer_next < actor->answer_end) {
            answer_grow(world, actor_id, answer_steps(world, actor));
        }
        actor_id = actor->next_decoding - 1;
    }
}

// --- the end of a request

// Notes which of the conversation's objects the answer has filled.
static void answer_note_generated(World *world, Actor *actor) {
    int64_t *first = &actor->generated_first;
    int64_t *end = &actor->generated_end;
    if (world->knobs.source == CONVERSATIONS) {
        first = &world->conversations[actor->session].generated_first;
        end = &world->conversations[actor->session].generated_end;
    }
    *first = actor->own_objects;
    *end = actor->own_objects + actor->named_answers;
}

// Adds the rest of the actor's answer, which is complete. Its named objects are the last of the
// request's own from now on.
void answer_finish(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    if (!world->knobs.holds_answers) {
        return;
    }
    answer_catch_up(world);
    answer_grow(world, actor_id, actor->output_tokens);
    answer_unlink(world, actor_id);
    if (world->knobs.source != CHAINS) {
        answer_note_generated(world, actor);
        actor->own_objects += actor->named_answers;
    }
}

// Frees the memory of the objects that the answer does not fill: nobody can find them.
void answer_free_unfilled(World *world, int64_t actor_id) {
    Actor *actor = &world->actors[actor_id];
    while (world->knobs.holds_answers && actor->unfilled_answers > 0) {
        const AnswerObject *unfilled = &actor->answers[--actor->answers_count];
        actor->unfilled_answers--;
        if (answer_is_live(world, unfilled)) {
            tier_delete(world, 0, unfilled->slot, world->control.now, PHASE_EVICT);
        }
    }
}

// Whether those of the answer's unnamed objects that are in GPU memory are the next ones in its
// recency list, in their order, from `tier_slot` on.
bool answer_is_most_recent(World *world, int64_t actor_id, int64_t tier_slot) {
    const Actor *actor = &world->actors[actor_id];
    for (int64_t i = 0; i < actor->answers_count; i++) {
        if (!answer_is_live(world, &actor->answers[i])) {
            continue;
        }
        if (slot_in_tier(world, 0, actor->answers[i].slot) != tier_slot) {
            return false;
        }
        tier_slot = list_link_of(world, 0, tier_slot)->older;
    }
    return true;
}

// Makes the first of the answer's unnamed objects the most recent of GPU memory, the second the
// next, and so on.
void answer_use(World *world, int64_t actor_id) {
    const Actor *actor = &world->actors[actor_id];
    for (int64_t i = actor->answers_count - 1; i >= 0; i--) {
        if (answer_is_live(world, &actor->answers[i])) {
            policy_hit(world, 0, slot_in_tier(world, 0, actor->answers[i].slot));
        }
    }
}

// --- the next turn

// How many of the last of `hit_objects` objects, which the lookup found, the turn before has
// generated. Only GPU memory may have them: they are stored with what is computed.
int64_t answer_generated_hits(World *world, const Actor *actor, int64_t hit_objects) {
    const Knobs *knobs = &world->knobs;
    if (!knobs->holds_answers || knobs->is_write_back || knobs->source == CHAINS) {
        return 0;
    }
    int64_t first = actor->generated_first;
    int64_t end = actor->generated_end;
    if (knobs->source == CONVERSATIONS) {
        first = world->conversations[actor->session].generated_first;
        end = world->conversations[actor->session].generated_end;
    }
    int64_t own_hits = hit_objects - actor->retrieved_objects - actor->shared_objects;
    return first < own_hits && own_hits <= end ? own_hits - first : 0;
}
