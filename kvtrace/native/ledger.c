// The books of a trace (kvtrace/trace/inventory.py): its rows against what must be live, up to the first that cannot be.
#include "core.h"

enum { READ, WRITE, DELETE };           // as the trace's closed set
enum {                                  // why a row cannot be, as ledger.py orders them
    OK, TIME_BACKWARDS, OVERFLOW, REQUEST_NOT_DENSE, READ_ABSENT, READ_PAST_END, WRITE_GAP, OVER_CAPACITY,
    DELETE_ABSENT, DELETE_SIZE, STAGE_MISSING, STAGE_ALONE, STAGE_FIRST, STAGE_BACK, STAGE_GAP
};
#define MOST ((int64_t)1 << 62)         // what can be reckoned with

typedef struct { int64_t capacity_bytes, live_bytes, peak_bytes; } Tier;
typedef struct {
    int64_t last_ns;
    int64_t fault_row, before;          // of the row that cannot be: its place in the batch, what was there before it
} State;

static int64_t check_stage(int64_t request, int64_t stage, int32_t *stages, State *s) {
    if (request < 0) return stage == NONE ? OK : STAGE_ALONE;
    if (stage == NONE) return STAGE_MISSING;
    int64_t reached = s->before = stages[request];
    if (reached < 0 && stage != 0) return STAGE_FIRST;
    if (stage < reached) return STAGE_BACK;
    if (stage > reached + 1) return STAGE_GAP;
    stages[request] = (int32_t)stage;
    return OK;
}

static int64_t check(int64_t op, int64_t held, int64_t offset, int64_t length, State *s) {
    s->before = held;
    if (op == READ) return held == 0 ? READ_ABSENT : offset + length > held ? READ_PAST_END : OK;
    if (op == WRITE) return offset > held ? WRITE_GAP : OK;
    return held == 0 ? DELETE_ABSENT : length != held ? DELETE_SIZE : OK;
}

// Enters a batch of rows; returns why one cannot be, or OK. Nulls are NONE. By row: `cell` is where
// its object stands in `sizes`, what lies of it in the row's tier; `instance` is the tier's in `instances`, what lies
// there of all. By object, `extents` is the most it had in any tier; by request, `stages` is the stage it has reached.
EXPORT int64_t ledger_enter(int64_t rows, const int64_t *ts_ns, const int8_t *op, const int8_t *tier,
                            const int64_t *object, const int64_t *offset_bytes, const int64_t *length_bytes,
                            const int64_t *request, const int32_t *stage, const int64_t *cell, const int64_t *instance,
                            Tier *tiers, int64_t *sizes, int64_t *instances, int64_t *extents, int64_t requests,
                            int32_t *stages, State *s, bool is_strict) {
    for (int64_t i = 0; i < rows; i++) {
        Tier *t = &tiers[tier[i]];
        int64_t *size = &sizes[cell[i]], *extent = &extents[object[i]], held = *size, code = OK;
        s->fault_row = i;
        if (request[i] < NONE || request[i] >= requests) return REQUEST_NOT_DENSE;
        if (is_strict) {
            if (ts_ns[i] < s->last_ns) return s->before = s->last_ns, TIME_BACKWARDS;
            if ((code = check(op[i], held, offset_bytes[i], length_bytes[i], s))) return code;
            if ((code = check_stage(request[i], stage[i], stages, s))) return code;
        }
        s->last_ns = ts_ns[i];
        if (op[i] == READ) continue;
        int64_t reach = offset_bytes[i] + length_bytes[i], after = op[i] == DELETE ? 0 : reach > held ? reach : held;
        *size = after;
        t->live_bytes += after - held;
        instances[instance[i]] += after - held;
        if (op[i] == DELETE) continue;
        if (after > *extent) *extent = after;
        if (t->live_bytes > MOST) return s->before = t->live_bytes, OVERFLOW;
        if (t->live_bytes > t->peak_bytes) t->peak_bytes = t->live_bytes;
        if (is_strict && instances[instance[i]] > t->capacity_bytes) {
            s->before = instances[instance[i]];
            return OVER_CAPACITY;
        }
    }
    return OK;
}

// === numbers of names ================================================================================================
// Names, int64, into numbers from 0 by first appearance: a hash table of the numbers, beside their names.

// Where the number of `name` stands in `table`, whose `room` is a power of two, or the empty place where it would.
static int64_t place_of_name(const int32_t *table, int64_t room, const int64_t *names, int64_t name) {
    int64_t mask = room - 1, at = (int64_t)((uint64_t)name * 0x9E3779B97F4A7C15 >> 20) & mask;
    while (table[at] >= 0 && names[table[at]] != name) at = (at + 1) & mask;
    return at;
}

// Put the numbers of `wanted` into `found`, as far as `names` has room for new ones, of which there are `count` so far;
// return how many were.
EXPORT int64_t number_names(const int64_t *wanted, int64_t wanted_count, int32_t *found, int32_t *table, int64_t room,
    int64_t *names, int64_t names_room, int64_t count) {
    for (int64_t i = 0; i < wanted_count; i++) {
        int64_t at = place_of_name(table, room, names, wanted[i]);
        if (table[at] < 0) {
            if (count == names_room) return i;
            names[count] = wanted[i];
            table[at] = (int32_t)count++;
        }
        found[i] = table[at];
    }
    return wanted_count;
}

EXPORT void place_names(int32_t *table, int64_t room, const int64_t *names, int64_t count) {
    for (int64_t number = 0; number < count; number++)
        table[place_of_name(table, room, names, names[number])] = (int32_t)number;
}
