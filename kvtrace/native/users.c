// What synthetic users ask: chatbot, coding and document users who take turns in conversations, in a closed loop (the
// simulation's own), in an open loop, at times that wait for nobody, or on without waiting for answers, served by
// class.
//
// The templates are those of the MLPerf Storage KV-cache benchmark. Every number is drawn from (seed, user, how many
// were drawn before), so one user's turns never depend on another's.
#include "sim.h"

// Of the first rank of a Zipf distribution with exponent 1; that of rank r is this over r.
#define ZIPF_WEIGHT ((int64_t)1 << 32)

// Who draws: users 0, 1, ...; the lot of an open loop, which says what conversation goes on; then come the lengths of
// documents (synthetic.py), and from EXTRA down each user's extra draws.
enum { LOT = -1, EXTRA = -3 };

// --- draws ----------------------------------------------------------------------------------------------------------

// The `number`-th draw of `user`: an integer from `low` to `high`, both included (splitmix64).
int64_t draw(int64_t seed, int64_t user, int64_t number, int64_t low, int64_t high) {
    uint64_t x = (uint64_t)seed * 0x9E3779B97F4A7C15 + (uint64_t)user * 0xD1B54A32D192ED03
        + (uint64_t)number * 0x8CB92BA72F3D8DD7 + 0x2545F4914F6CDD1D;
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
EXPORT void draw_all(int64_t *found, int64_t count, int64_t seed, int64_t user, int64_t low, int64_t high) {
    for (int64_t number = 0; number < count; number++) found[number] = draw(seed, user, number, low, high);
}

static int64_t next_draw(User *me, int64_t seed, int64_t user, int64_t low, int64_t high) {
    return draw(seed, user, me->draws++, low, high);
}

int64_t next_extra(User *me, int64_t seed, int64_t user, int64_t low, int64_t high) {
    return draw(seed, EXTRA - user, me->extra_draws++, low, high);
}

// An index drawn by `user` with the chances whose whole weights `cumulated` sums up.
EXPORT int64_t pick(const int64_t *cumulated, int64_t count, User *me, int64_t seed, int64_t user) {
    int64_t lot = next_extra(me, seed, user, 0, cumulated[count - 1] - 1), low = 0, high = count - 1;
    while (low < high) {
        int64_t middle = (low + high) >> 1;
        if (cumulated[middle] > lot) high = middle;
        else low = middle + 1;
    }
    return low;
}

static int64_t weight_of(int64_t rank, int64_t is_zipf) { return is_zipf ? ZIPF_WEIGHT / (rank + 1) : 1; }

// Fill `chosen` from `first` on with at most `most` distinct indices below `count`; return how many they are. They are
// drawn with the weights of Zipf's distribution, or with the same chance each.
EXPORT int64_t pick_distinct(
    int64_t *chosen, int64_t first, int64_t most, int64_t count, int64_t is_zipf, User *me, int64_t seed,
    int64_t user) {
    int64_t wanted = min_of(most, count), total = 0;
    for (int64_t i = 0; i < count; i++) total += weight_of(i, is_zipf);
    for (int64_t k = 0; k < wanted; k++) {
        int64_t lot = next_extra(me, seed, user, 0, total - 1), i = -1, weight = 0;
        while (lot >= 0) {
            i++;
            bool is_taken = false;
            for (int64_t before = 0; before < k; before++) is_taken = is_taken || chosen[first + before] == i;
            if (is_taken) continue;
            weight = weight_of(i, is_zipf);
            lot -= weight;
        }
        chosen[first + k] = i;
        total -= weight;
    }
    return wanted;
}

// --- users and their turns ------------------------------------------------------------------------------------------

// Make users, and when each first asks, ns. Of `templates`, each of the same chance: context tokens from, to; output
// tokens from, to; think time from, to; kind. Of `qos`: class, and up to which of 1000 lots.
EXPORT void make_users(User *users, int64_t *starts, int64_t count, const int64_t (*templates)[7],
    int64_t templates_count, const int64_t (*qos)[2], int64_t seed) {
    for (int64_t user = 0; user < count; user++) {
        User *me = &users[user];
        const int64_t *template = templates[next_draw(me, seed, user, 0, templates_count - 1)];
        int64_t share = next_draw(me, seed, user, 0, 999), chosen = 0;
        while (share >= qos[chosen][1]) chosen++;
        me->kind = template[6], me->qos = qos[chosen][0];
        me->context = next_draw(me, seed, user, template[0], template[1]);
        me->output = next_draw(me, seed, user, template[2], template[3]);
        me->think_ns = next_draw(me, seed, user, template[4], template[5]);
        starts[user] = next_draw(me, seed, user, 0, me->think_ns);
    }
}

// What `user` asks after `turn` turns and `history_tokens` of its conversation. Sizes are uniform from a quarter of the
// user's own value up to it. A conversation ends by chance, after MAX_TURNS, or when the next turn would not fit the
// context.
bool next_turn(User *me, int64_t seed, int64_t user, int64_t turn, int64_t history_tokens, int64_t max_context_tokens,
    int64_t *new_tokens, int64_t *output_tokens) {
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

// --- an open loop: each request is the next turn of one of the conversations that go on -----------------------------

// Make turns from `progress` (rows, users) on; return whether all are made, or `users` may not suffice.
EXPORT bool take_turns(Turn *turns, int64_t count, Place *places, int64_t places_count, int64_t *progress, User *users,
    int64_t users_count, int64_t seed, int64_t max_context_tokens) {
    int64_t row = progress[0], next_user = progress[1];
    while (row < count && next_user < users_count) {
        Place *place = &places[draw(seed, LOT, row, 0, places_count - 1)];
        int64_t new_tokens = 0, output_tokens = 0, user = place->user;
        bool is_new = user == NONE;
        if (!is_new) {
            is_new = next_turn(&users[user], seed, user, place->done, place->history, max_context_tokens, &new_tokens,
                &output_tokens);
        }
        if (is_new) {
            *place = (Place){.user = next_user};
            next_turn(&users[next_user], seed, next_user, 0, 0, max_context_tokens, &new_tokens, &output_tokens);
            next_user++;
        }
        User *me = &users[place->user];
        turns[row] = (Turn){place->user, place->done, place->history + new_tokens, output_tokens, me->qos, me->kind};
        place->done++;
        place->history += new_tokens + output_tokens;
        row++;
    }
    progress[0] = row, progress[1] = next_user;
    return row == count;
}

// --- users who ask on without waiting for answers -------------------------------------------------------------------

// Fill `asked` with what each user asks before `until_ns`; return how many rows that takes, or one too many.
EXPORT int64_t ask_overlapping(Question *asked, int64_t room, User *users, const int64_t *starts, int64_t users_count,
    int64_t seed, int64_t until_ns, int64_t max_context_tokens) {
    int64_t row = 0;
    for (int64_t user = 0; user < users_count; user++) {
        User *me = &users[user];
        int64_t time_ns = starts[user], conversation = -1, turn = 0, history = 0, new_tokens, output;
        while (time_ns < until_ns) {
            if (row == room) return row + 1;
            if (next_turn(me, seed, user, turn, history, max_context_tokens, &new_tokens, &output))
                conversation++, turn = 0, history = 0;
            Question *line = &asked[row++];
            line->time_ns = time_ns, line->user = user, line->conversation = conversation, line->turn = turn;
            line->input = history + new_tokens, line->output = output;
            turn++;
            history += new_tokens + output;
            time_ns += max_of(1, think_ns(me, seed, user));
        }
    }
    return row;
}

// Let each of `servers`, which says when it is free, take what has waited longest of the first class that waits.
//
// `queues[heads[rank]:ends[rank]]` are the rows of `asked` of one class. Return how many were begun.
EXPORT int64_t serve_by_class(int64_t *begun, int64_t *times, const Question *asked, int64_t asked_count,
    const int64_t *queues, int64_t *heads, const int64_t *ends, int64_t classes, int64_t *servers,
    int64_t servers_count, int64_t until_ns, int64_t decode_ns_per_token) {
    for (int64_t served = 0; served < asked_count; served++) {
        int64_t server = 0, chosen = NONE;
        for (int64_t other = 1; other < servers_count; other++)
            if (servers[other] < servers[server]) server = other;
        int64_t now = servers[server];
        for (int64_t rank = 0; rank < classes; rank++) {
            if (heads[rank] == ends[rank]) continue;
            int64_t first_ns = chosen == NONE ? 0 : asked[queues[heads[chosen]]].time_ns;
            bool is_first = chosen == NONE || asked[queues[heads[rank]]].time_ns < first_ns;
            bool is_waiting = chosen != NONE && first_ns <= now;
            if (is_first && !is_waiting) chosen = rank;
        }
        int64_t row = queues[heads[chosen]++];
        begun[served] = row, times[served] = max_of(now, asked[row].time_ns);
        if (times[served] >= until_ns) return served;
        servers[server] = times[served] + asked[row].output * decode_ns_per_token;
    }
    return asked_count;
}
