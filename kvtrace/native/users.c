// What synthetic users ask: how long their prompts and answers are, what they share, and when.
// Every number is drawn from (seed, user, count of draws), so the turns of one user never depend on
// another user, nor on the order in which they act.
//
//     user_make_all         the users, from their templates
//     user_ask              closed loop: the next turn waits for the answer and a think time
//     user_take_turns       open loop: each request is the next turn of one of the conversations
//     user_ask_overlapping  users that go on asking without waiting for answers
#include "sim.h"

// The weight of the first rank of a Zipf distribution with exponent 1; that of rank r is this / r.
#define ZIPF_WEIGHT ((int64_t)1 << 32)

// Those who draw: users 0, 1, ...; DRAWER_OPEN_LOOP, which chooses the conversation that goes on;
// -2 draws the lengths of documents (requests/users.py); from DRAWER_EXTRA down, each user's draws
// for what it shares, so that its turns are the same with and without.
enum { DRAWER_OPEN_LOOP = -1, DRAWER_EXTRA = -3 };

// --- draws

// The `number`-th draw of `user`: an integer from `low` to `high`, both included.
//
//     x = hash of (seed, user, number), by two rounds of SplitMix64's output function
//     draw = low + x mod (high - low + 1)
int64_t user_draw(int64_t seed, int64_t user, int64_t number, int64_t low, int64_t high) {
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

// Fills `drawn` with the first `count` draws of `user`.
EXPORT void user_draw_all(int64_t *drawn, int64_t count, int64_t seed, int64_t user, int64_t low,
                          int64_t high) {
    for (int64_t number = 0; number < count; number++) {
        drawn[number] = user_draw(seed, user, number, low, high);
    }
}

static int64_t user_next_draw(User *user, int64_t seed, int64_t user_id, int64_t low,
                              int64_t high) {
    return user_draw(seed, user_id, user->draws++, low, high);
}

static int64_t user_next_extra_draw(User *user, int64_t seed, int64_t user_id, int64_t low,
                                    int64_t high) {
    return user_draw(seed, DRAWER_EXTRA - user_id, user->extra_draws++, low, high);
}

// Whether something happens that does so `ppm` times in a million.
static bool user_draw_chance(User *user, int64_t seed, int64_t user_id, int64_t ppm) {
    return ppm && user_next_extra_draw(user, seed, user_id, 0, MILLION - 1) < ppm;
}

// Draws an index whose chance is its weight; `cumulated` has the sums of the weights.
EXPORT int64_t user_pick(const int64_t *cumulated, int64_t count, User *user, int64_t seed,
                         int64_t user_id) {
    int64_t drawn = user_next_extra_draw(user, seed, user_id, 0, cumulated[count - 1] - 1);
    int64_t low = 0;
    int64_t high = count - 1;
    while (low < high) {
        int64_t middle = (low + high) >> 1;
        if (cumulated[middle] > drawn) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static int64_t user_rank_weight(int64_t rank, int64_t is_zipf) {
    return is_zipf ? ZIPF_WEIGHT / (rank + 1) : 1;
}

static bool user_is_chosen(const int64_t *chosen, int64_t count, int64_t index) {
    for (int64_t i = 0; i < count; i++) {
        if (chosen[i] == index) {
            return true;
        }
    }
    return false;
}

// Fills `chosen`, from place `first` on, with at most `most` distinct indices below `count`, drawn
// with the weights of a Zipf distribution or with equal weights. Returns how many they are.
EXPORT int64_t user_pick_distinct(int64_t *chosen, int64_t first, int64_t most, int64_t count,
                                  int64_t is_zipf, User *user, int64_t seed, int64_t user_id) {
    int64_t wanted = min_of(most, count);
    int64_t total_weight = 0;
    for (int64_t i = 0; i < count; i++) {
        total_weight += user_rank_weight(i, is_zipf);
    }
    for (int64_t k = 0; k < wanted; k++) {
        int64_t drawn = user_next_extra_draw(user, seed, user_id, 0, total_weight - 1);
        int64_t index = -1;
        int64_t weight = 0;
        while (drawn >= 0) {
            index++;
            if (user_is_chosen(&chosen[first], k, index)) {
                continue;
            }
            weight = user_rank_weight(index, is_zipf);
            drawn -= weight;
        }
        chosen[first + k] = index;
        total_weight -= weight;
    }
    return wanted;
}

// --- users and their turns

// The columns of a user template.
enum {
    MIN_CONTEXT,
    MAX_CONTEXT,
    MIN_OUTPUT,
    MAX_OUTPUT,
    MIN_THINK_NS,
    MAX_THINK_NS,
    TEMPLATE_KIND,
    TEMPLATE_COLUMNS
};

// Fills `users`, and `starts` with when each first asks, in ns. Each user is of one of `templates`,
// with the same chance. `qos` has the classes of service and their cumulated shares in a thousand.
EXPORT void user_make_all(User *users, int64_t *starts, int64_t count,
                          const int64_t (*templates)[TEMPLATE_COLUMNS], int64_t templates_count,
                          const int64_t (*qos)[2], int64_t seed) {
    for (int64_t user_id = 0; user_id < count; user_id++) {
        User *user = &users[user_id];
        int64_t template_id = user_next_draw(user, seed, user_id, 0, templates_count - 1);
        const int64_t *template = templates[template_id];
        int64_t share = user_next_draw(user, seed, user_id, 0, 999);
        int64_t class = 0;
        while (share >= qos[class][1]) {
            class++;
        }
        user->kind = template[TEMPLATE_KIND];
        user->qos = qos[class][0];
        user->context =
            user_next_draw(user, seed, user_id, template[MIN_CONTEXT], template[MAX_CONTEXT]);
        user->output =
            user_next_draw(user, seed, user_id, template[MIN_OUTPUT], template[MAX_OUTPUT]);
        user->think_ns =
            user_next_draw(user, seed, user_id, template[MIN_THINK_NS], template[MAX_THINK_NS]);
        starts[user_id] = user_next_draw(user, seed, user_id, 0, user->think_ns);
    }
}

// The sizes of a turn.
typedef struct {
    int64_t new_tokens;
    int64_t output_tokens;
} TurnSizes;

// Draws the next turn of a user after `turn` turns and `history_tokens` of its conversation. Sizes
// are uniform from a quarter of the user's own value up to it. Returns whether the turn begins a
// new conversation: by chance, after MAX_TURNS, or if it does not fit the context.
static bool user_draw_turn(User *user, int64_t seed, int64_t user_id, int64_t turn,
                           int64_t history_tokens, int64_t max_context_tokens, TurnSizes *sizes) {
    int64_t least_context = max_of(1, user->context / 4);
    int64_t least_output = max_of(1, user->output / 4);
    sizes->new_tokens = user_next_draw(user, seed, user_id, least_context, user->context);
    sizes->output_tokens = user_next_draw(user, seed, user_id, least_output, user->output);
    bool goes_on = user_next_draw(user, seed, user_id, 0, 999) < CONTINUE_PER_MILLE;
    int64_t context_tokens = history_tokens + sizes->new_tokens + sizes->output_tokens;
    bool fits = context_tokens <= max_context_tokens;
    return turn == 0 || !goes_on || turn >= MAX_TURNS || !fits;
}

// Draws how long a user thinks this time: its own value, 20 % less to 20 % more.
int64_t user_think_ns(User *user, int64_t seed, int64_t user_id) {
    return user_next_draw(user, seed, user_id, user->think_ns * 8 / 10, user->think_ns * 12 / 10);
}

// --- open loop: each request is the next turn of one of the conversations that go on

// Makes `turns` from progress[0] on, with new users from progress[1] on. Returns whether all are
// made; otherwise `users` were too few.
EXPORT bool user_take_turns(Turn *turns, int64_t count, LiveConversation *conversations,
                            int64_t conversations_count, int64_t *progress, User *users,
                            int64_t users_count, int64_t seed, int64_t max_context_tokens) {
    int64_t row = progress[0];
    int64_t next_user = progress[1];
    while (row < count && next_user < users_count) {
        int64_t drawn = user_draw(seed, DRAWER_OPEN_LOOP, row, 0, conversations_count - 1);
        LiveConversation *conversation = &conversations[drawn];
        int64_t user_id = conversation->user;
        TurnSizes sizes = {0, 0};
        bool is_over = user_id == NONE ||
                       user_draw_turn(&users[user_id], seed, user_id, conversation->turns,
                                      conversation->history_tokens, max_context_tokens, &sizes);
        if (is_over) {
            *conversation = (LiveConversation){.user = next_user};
            user_draw_turn(&users[next_user], seed, next_user, 0, 0, max_context_tokens, &sizes);
            next_user++;
        }
        const User *user = &users[conversation->user];
        turns[row] = (Turn){.session = conversation->user,
                            .turn = conversation->turns,
                            .input = conversation->history_tokens + sizes.new_tokens,
                            .output = sizes.output_tokens,
                            .qos = user->qos,
                            .kind = user->kind};
        conversation->turns++;
        conversation->history_tokens += sizes.new_tokens + sizes.output_tokens;
        row++;
    }
    progress[0] = row;
    progress[1] = next_user;
    return row == count;
}

// --- users that go on asking without waiting for answers

// Fills `requests`, which have memory for `room`, with what all users ask before `until_ns`.
// Returns how many they are; room + 1 if they do not fit.
EXPORT int64_t user_ask_overlapping(OverlappingRequest *requests, int64_t room, User *users,
                                    const int64_t *starts, int64_t users_count, int64_t seed,
                                    int64_t until_ns, int64_t max_context_tokens) {
    int64_t row = 0;
    for (int64_t user_id = 0; user_id < users_count; user_id++) {
        User *user = &users[user_id];
        int64_t time_ns = starts[user_id];
        int64_t conversation = -1;
        int64_t turn = 0;
        int64_t history_tokens = 0;
        while (time_ns < until_ns) {
            if (row == room) {
                return row + 1;
            }
            TurnSizes sizes;
            if (user_draw_turn(user, seed, user_id, turn, history_tokens, max_context_tokens,
                               &sizes)) {
                conversation++;
                turn = 0;
                history_tokens = 0;
            }
            OverlappingRequest *request = &requests[row++];
            request->time_ns = time_ns;
            request->user = user_id;
            request->conversation = conversation;
            request->turn = turn;
            request->input = history_tokens + sizes.new_tokens;
            request->output = sizes.output_tokens;
            turn++;
            history_tokens += sizes.new_tokens + sizes.output_tokens;
            time_ns += max_of(1, user_think_ns(user, seed, user_id));
        }
    }
    return row;
}

// --- closed loop: the next request of a user

// Draws whether the user's request retrieves chunks of a document, and which. It retrieves none if
// they do not fit its context.
static void user_retrieve(World *world, int64_t user_id) {
    Actor *actor = &world->actors[user_id];
    const Knobs *knobs = &world->knobs;
    User *user = &world->users[user_id];
    int64_t seed = knobs->seed;
    actor->retrieved_items = 0;
    actor->retrieved_objects = 0;
    actor->retrieved_tokens = 0;
    if (!user_draw_chance(user, seed, user_id, knobs->retrieve_ppm)) {
        return;
    }
    int64_t document =
        user_pick(world->document_weight, world->document_weight_count, user, seed, user_id);
    int64_t first_item = world->documents[document];
    int64_t chunks = world->documents[document + 1] - first_item;
    int64_t *retrieved = world->retrieved;
    int64_t first = user_id * knobs->top_chunks;
    int64_t count = user_pick_distinct(retrieved, first, knobs->top_chunks, chunks,
                                       knobs->is_zipf_chunk, user, seed, user_id);
    int64_t tokens = 0;
    for (int64_t i = first; i < first + count; i++) {
        retrieved[i] += first_item;
        tokens += world->items[retrieved[i]].tokens;
    }
    if (actor->input_tokens + tokens + actor->output_tokens > knobs->max_context_tokens) {
        return;
    }
    actor->retrieved_items = count;
    actor->retrieved_tokens = tokens;
    for (int64_t i = first; i < first + count; i++) {
        actor->retrieved_objects += world->items[retrieved[i]].objects;
    }
    actor->input_tokens += tokens;
}

// Begins a new conversation, which may begin with a system prompt.
static void user_begin_conversation(World *world, int64_t user_id) {
    Actor *actor = &world->actors[user_id];
    const Knobs *knobs = &world->knobs;
    User *user = &world->users[user_id];
    prompt_forget_context(world, actor->context, actor->own_objects);
    actor->own_objects = 0;
    actor->generated_first = 0;
    actor->generated_end = 0;
    actor->turn = 0;
    actor->history_tokens = 0;
    actor->session = world->control.next_session++;
    actor->prompt_item = NONE;
    actor->shared_objects = 0;
    if (user_draw_chance(user, knobs->seed, user_id, knobs->prompt_ppm)) {
        int64_t item = user_next_extra_draw(user, knobs->seed, user_id, 0, knobs->prompts - 1);
        actor->prompt_item = item;
        actor->shared_objects = world->items[item].objects;
        actor->history_tokens = world->items[item].tokens;
    }
}

// Draws the next turn of the user, and what it retrieves.
static void user_plan_turn(World *world, int64_t user_id) {
    Actor *actor = &world->actors[user_id];
    const Knobs *knobs = &world->knobs;
    TurnSizes sizes;
    bool is_new = user_draw_turn(&world->users[user_id], knobs->seed, user_id, actor->turn,
                                 actor->history_tokens, knobs->max_context_tokens, &sizes);
    actor->new_tokens = sizes.new_tokens;
    actor->output_tokens = sizes.output_tokens;
    if (is_new) {
        user_begin_conversation(world, user_id);
    }
    actor->input_tokens = actor->history_tokens + actor->new_tokens;
    actor->new_objects = 1;
    if (knobs->chunk_tokens) {
        int64_t objects = objects_of_tokens(world, actor->input_tokens);
        actor->new_objects = objects - actor->shared_objects - actor->own_objects;
    }
    user_retrieve(world, user_id);
}

// Draws which of its entries the user decodes. An entry is a conversation that only ever decodes.
static void user_choose_entry(World *world, int64_t user_id) {
    Actor *actor = &world->actors[user_id];
    const Knobs *knobs = &world->knobs;
    User *user = &world->users[user_id];
    TurnSizes sizes;
    user_draw_turn(user, knobs->seed, user_id, 0, 0, knobs->max_context_tokens, &sizes);
    int64_t drawn = user_next_extra_draw(user, knobs->seed, user_id, 0, knobs->entries - 1);
    actor->session = user_id * knobs->entries + drawn;
    actor->prompt_item = knobs->first_entry + actor->session;
    Item *item = &world->items[actor->prompt_item];
    actor->turn = item->uses++;
    actor->shared_objects = item->objects;
    actor->input_tokens = item->tokens;
    actor->output_tokens = sizes.output_tokens;
    actor->new_tokens = 0;
    actor->new_objects = 0;
}

// The step STEP_ASK: plans and logs the next request of a user. Returns NONE if there may be no
// more.
int64_t user_ask(World *world, int64_t user_id) {
    Actor *actor = &world->actors[user_id];
    Control *control = &world->control;
    if (control->next_request >= world->knobs.max_requests) {
        return NONE;
    }
    if (world->knobs.mode == DECODE_ONLY) {
        user_choose_entry(world, user_id);
    } else {
        user_plan_turn(world, user_id);
    }
    if (control->logged == world->log_count) {
        schedule_ask_python(world, FLUSH, 1);
    }
    actor->request = control->next_request++;
    world->log[control->logged++] = (LoggedRequest){
        .arrival_ns = control->now,
        .request_id = actor->request,
        .session_id = actor->session,
        .turn = actor->turn,
        .input_tokens = actor->input_tokens,
        .output_tokens = actor->output_tokens,
        .qos = world->users[user_id].qos,
        .kind = world->users[user_id].kind,
    };
    actor->stage = 0;
    actor->arrival_ns = control->now;
    actor->step = STEP_ENQUEUE;
    actor->restarts = 0;
    actor->has_first_token = 0;
    return 0;
}
