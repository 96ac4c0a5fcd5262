// The books of a trace (kvtrace/trace/inventory.py): its rows against what must be live, up to the first that cannot be.
#include "world.h"

#define MOST ((int64_t)1 << 62)         // what can be reckoned with

static int64_t check_stage(int64_t request, int64_t stage, Books *b) {
    if (request < 0) return stage == NONE ? ROW_CAN_BE : STAGE_ALONE;
    if (stage == NONE) return STAGE_MISSING;
    int64_t reached = b->before = b->stages[request];
    if (reached < 0 && stage != 0) return STAGE_FIRST;
    if (stage < reached) return STAGE_BACK;
    if (stage > reached + 1) return STAGE_GAP;
    b->stages[request] = (int32_t)stage;
    return ROW_CAN_BE;
}

static int64_t check(int64_t op, int64_t held, int64_t offset, int64_t length, Books *b) {
    b->before = held;
    if (op == OP_READ) return held == 0 ? READ_ABSENT : offset + length > held ? READ_PAST_END : ROW_CAN_BE;
    if (op == OP_WRITE) return offset > held ? WRITE_GAP : ROW_CAN_BE;
    return held == 0 ? DELETE_ABSENT : length != held ? DELETE_SIZE : ROW_CAN_BE;
}

// Enters a batch of rows; returns why one cannot be, or ROW_CAN_BE. Nulls are NONE. By row: `cell` is where its object
// stands in `sizes`, what lies of it in the row's tier; `instance` is the tier's in `instances`, what lies there of all.
EXPORT int64_t ledger_enter(Books *b, int64_t rows, const int64_t *ts_ns, const int8_t *op, const int8_t *tier,
                            const int64_t *object, const int64_t *offset_bytes, const int64_t *length_bytes,
                            const int64_t *request, const int32_t *stage, const int64_t *cell, const int64_t *instance) {
    for (int64_t i = 0; i < rows; i++) {
        TierBooks *t = &b->tiers[tier[i]];
        int64_t *size = &b->sizes[cell[i]], *extent = &b->extents[object[i]], *lies = &b->instances[instance[i]];
        int64_t held = *size, code = ROW_CAN_BE;
        b->fault_row = i;
        if (request[i] < NONE || request[i] >= b->stages_count) return REQUEST_NOT_DENSE;
        if (b->is_strict) {
            if (ts_ns[i] < b->last_ns) return b->before = b->last_ns, TIME_BACKWARDS;
            if ((code = check(op[i], held, offset_bytes[i], length_bytes[i], b))) return code;
            if ((code = check_stage(request[i], stage[i], b))) return code;
        }
        b->last_ns = ts_ns[i];
        if (op[i] == OP_READ) continue;
        int64_t reach = offset_bytes[i] + length_bytes[i], after = op[i] == OP_DELETE ? 0 : max_of(reach, held);
        *size = after;
        t->live_bytes += after - held;
        *lies += after - held;
        if (op[i] == OP_DELETE) continue;
        *extent = max_of(after, *extent);
        if (t->live_bytes > MOST) return b->before = t->live_bytes, OVERFLOW;
        t->peak_bytes = max_of(t->live_bytes, t->peak_bytes);
        if (b->is_strict && *lies > t->capacity_bytes) return b->before = *lies, OVER_CAPACITY;
    }
    return ROW_CAN_BE;
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
