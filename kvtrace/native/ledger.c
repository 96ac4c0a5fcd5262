// The books of a trace (kvtrace/trace/inventory.py): its rows against what must be live, up to the
// first that cannot be.
#include "world.h"

static int64_t check_stage(int64_t request, int64_t stage, Books *b) {
    if (request < 0) {
        return stage == NONE ? ROW_CAN_BE : STAGE_ALONE;
    }
    if (stage == NONE) {
        return STAGE_MISSING;
    }
    int64_t reached = b->before = b->stages[request];
    if (reached < 0 && stage != 0) {
        return STAGE_FIRST;
    }
    if (stage < reached) {
        return STAGE_BACK;
    }
    if (stage > reached + 1) {
        return STAGE_GAP;
    }
    b->stages[request] = (int32_t)stage;
    return ROW_CAN_BE;
}

static int64_t check(int64_t op, int64_t held, int64_t offset, int64_t length, Books *b) {
    b->before = held;
    if (op == OP_READ) {
        return held == 0 ? READ_ABSENT : offset + length > held ? READ_PAST_END : ROW_CAN_BE;
    }
    if (op == OP_WRITE) {
        return offset > held ? WRITE_GAP : ROW_CAN_BE;
    }
    return held == 0 ? DELETE_ABSENT : length != held ? DELETE_SIZE : ROW_CAN_BE;
}

// Enters a batch of rows; returns why one cannot be, or ROW_CAN_BE. Nulls are NONE. By row: `cell`
// is where its object stands in `sizes`, what lies of it in the row's tier; `instance` is the
// tier's in `instances`, what lies there of all.
EXPORT int64_t ledger_enter(Books *b, int64_t rows, const int64_t *ts_ns, const int8_t *op,
                            const int8_t *tier, const int64_t *object, const int64_t *offset_bytes,
                            const int64_t *length_bytes, const int64_t *request,
                            const int32_t *stage, const int64_t *cell, const int64_t *instance) {
    for (int64_t i = 0; i < rows; i++) {
        TierBooks *t = &b->tiers[tier[i]];
        int64_t *size = &b->sizes[cell[i]], *extent = &b->extents[object[i]],
                *lies = &b->instances[instance[i]];
        int64_t held = max_of(0, *size), code = ROW_CAN_BE;
        b->fault_row = i;
        if (request[i] < NONE || request[i] >= b->stages_count) {
            return REQUEST_NOT_DENSE;
        }
        if (b->is_strict) {
            if (ts_ns[i] < b->last_ns) {
                return b->before = b->last_ns, TIME_BACKWARDS;
            }
            if ((code = check(op[i], held, offset_bytes[i], length_bytes[i], b))) {
                return code;
            }
            if ((code = check_stage(request[i], stage[i], b))) {
                return code;
            }
        } else if (request[i] != NONE) {
            b->stages[request[i]] = 0;
        }
        *extent = max_of(0, *extent);
        b->last_ns = ts_ns[i];
        int64_t reach = offset_bytes[i] + length_bytes[i],
                after = op[i] == OP_DELETE ? 0 : max_of(reach, held);
        // What is read and was not written lay there from the start on, unless it was deleted
        // before.
        t->peak_bytes += op[i] == OP_READ && *size != NONE ? max_of(0, reach - held) : 0;
        *size = op[i] == OP_DELETE ? NONE : after;
        t->live_bytes += after - held;
        *lies += after - held;
        t->peak_bytes = max_of(t->live_bytes, t->peak_bytes);
        if (t->peak_bytes > UNBOUNDED) {
            return b->before = t->peak_bytes, OVERFLOW;
        }
        if (op[i] == OP_WRITE) {
            *extent = max_of(after, *extent);
        }
        if (b->is_strict && *lies > t->capacity_bytes) {
            return b->before = *lies, OVER_CAPACITY;
        }
    }
    return ROW_CAN_BE;
}

// === numbers of names
// ================================================================================================

// Give the next `count` names their numbers, from 0 by first appearance; how many numbers there
// are.
EXPORT int64_t number_names(Table *known, const int64_t *names, int64_t count, int32_t *found) {
    for (int64_t i = 0; i < count; i++) {
        found[i] = (int32_t)*table_put(known, names[i], known->count);
    }
    return known->count;
}
