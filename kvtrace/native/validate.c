// The validation of a trace: its rows against what must be live, up to the first row that is not
// possible (kvtrace/trace/inventory.py calls it, batch by batch).
//
//     validate_rows        for each row:
//     -> validate_operation    is the object there, as long as the row says?
//     -> validate_stage        do the stages of a request follow each other?
//     -> validate_apply        what is live after it; does it fit the tier?
//     validate_count       the operations and bytes of rows, by tier, operation and phase
#include "validate.h"

// Why the stage of a row is not possible, or ROW_CAN_BE.
static int64_t validate_stage(Validation *validation, int64_t request, int64_t stage) {
    if (request < 0) {
        return stage == NONE ? ROW_CAN_BE : STAGE_ALONE;
    }
    if (stage == NONE) {
        return STAGE_MISSING;
    }
    int64_t reached = validation->stages[request];
    validation->before = reached;
    if (reached < 0 && stage != 0) {
        return STAGE_FIRST;
    }
    if (stage < reached) {
        return STAGE_BACK;
    }
    if (stage > reached + 1) {
        return STAGE_GAP;
    }
    validation->stages[request] = (int32_t)stage;
    return ROW_CAN_BE;
}

// Why an operation on an object of `live_bytes` is not possible, or ROW_CAN_BE.
static int64_t validate_operation(int64_t op, int64_t live_bytes, int64_t offset, int64_t length) {
    if (op == OP_WRITE) {
        return offset > live_bytes ? WRITE_GAP : ROW_CAN_BE;
    }
    if (op == OP_READ) {
        if (live_bytes == 0) {
            return READ_ABSENT;
        }
        return offset + length > live_bytes ? READ_PAST_END : ROW_CAN_BE;
    }
    if (live_bytes == 0) {
        return DELETE_ABSENT;
    }
    return length != live_bytes ? DELETE_SIZE : ROW_CAN_BE;
}

// The columns of a batch of rows. Nulls are NONE.
typedef struct {
    const int64_t *ts_ns;
    const int8_t *op;
    const int8_t *tier;
    const int64_t *object;
    const int64_t *offset_bytes;
    const int64_t *length_bytes;
    const int64_t *request;
    const int32_t *stage;
    const int64_t *cell;     // Where Validation.sizes has the row's object in its tier,
    const int64_t *instance; // and Validation.instances its instance, if there are nodes.
} ValidatedRows;

// Where Validation.sizes has the object of row `i` in its tier.
static int64_t *validate_size(Validation *validation, const ValidatedRows *rows, int64_t i) {
    int64_t cell = validation->has_nodes
                       ? rows->cell[i]
                       : rows->object[i] * validation->tiers_count + rows->tier[i];
    return &validation->sizes[cell];
}

// Applies row `i`; returns why the tier cannot hold the outcome, or ROW_CAN_BE.
static int64_t validate_apply(Validation *validation, const ValidatedRows *rows, int64_t i) {
    ValidatedTier *tier = &validation->tiers[rows->tier[i]];
    int64_t *size = validate_size(validation, rows, i);
    int64_t *extent = &validation->extents[rows->object[i]];
    int64_t instance = validation->has_nodes ? rows->instance[i] : rows->tier[i];
    int64_t *instance_bytes = &validation->instances[instance];
    int64_t op = rows->op[i];
    int64_t live_bytes = max_of(0, *size);
    int64_t end = rows->offset_bytes[i] + rows->length_bytes[i];
    int64_t after = op == OP_DELETE ? 0 : max_of(end, live_bytes);
    *extent = max_of(0, *extent);
    // What is read and was never written lay there from the start on, unless it was deleted before.
    if (op == OP_READ && *size != NONE) {
        tier->peak_bytes += max_of(0, end - live_bytes);
    }
    *size = op == OP_DELETE ? NONE : after;
    tier->live_bytes += after - live_bytes;
    *instance_bytes += after - live_bytes;
    tier->peak_bytes = max_of(tier->live_bytes, tier->peak_bytes);
    if (tier->peak_bytes > UNBOUNDED) {
        validation->before = tier->peak_bytes;
        return OVERFLOW;
    }
    if (op == OP_WRITE) {
        *extent = max_of(after, *extent);
    }
    if (validation->is_strict && *instance_bytes > tier->capacity_bytes) {
        validation->before = *instance_bytes;
        return OVER_CAPACITY;
    }
    return ROW_CAN_BE;
}

// Why row `i` is not possible after the rows before it, or ROW_CAN_BE.
static int64_t validate_row(Validation *validation, const ValidatedRows *rows, int64_t i) {
    if (rows->ts_ns[i] < validation->last_ns) {
        validation->before = validation->last_ns;
        return TIME_BACKWARDS;
    }
    int64_t live_bytes = max_of(0, *validate_size(validation, rows, i));
    validation->before = live_bytes;
    int64_t fault =
        validate_operation(rows->op[i], live_bytes, rows->offset_bytes[i], rows->length_bytes[i]);
    if (fault) {
        return fault;
    }
    return validate_stage(validation, rows->request[i], rows->stage[i]);
}

// Validates and applies a batch of rows. Returns why the row `fault_row` is not possible, or
// ROW_CAN_BE. If the validation is not strict, rows are only counted.
EXPORT int64_t validate_rows(Validation *validation, int64_t count, const int64_t *ts_ns,
                             const int8_t *op, const int8_t *tier, const int64_t *object,
                             const int64_t *offset_bytes, const int64_t *length_bytes,
                             const int64_t *request, const int32_t *stage, const int64_t *cell,
                             const int64_t *instance) {
    const ValidatedRows rows = {ts_ns,        op,      tier,  object, offset_bytes,
                                length_bytes, request, stage, cell,   instance};
    for (int64_t i = 0; i < count; i++) {
        validation->fault_row = i;
        if (request[i] < NONE || request[i] >= validation->stages_count) {
            return REQUEST_NOT_DENSE;
        }
        int64_t fault = ROW_CAN_BE;
        if (validation->is_strict) {
            fault = validate_row(validation, &rows, i);
        } else if (request[i] != NONE) {
            validation->stages[request[i]] = 0;
        }
        if (fault) {
            return fault;
        }
        validation->last_ns = ts_ns[i];
        fault = validate_apply(validation, &rows, i);
        if (fault) {
            return fault;
        }
    }
    return ROW_CAN_BE;
}

// Adds the rows to the operations and bytes of each tier, operation and phase: arrays of
// [tiers][ops][phases].
EXPORT void validate_count(int64_t count, const int8_t *tier, const int8_t *op, const int8_t *phase,
                           const int64_t *length_bytes, int64_t ops, int64_t phases,
                           int64_t *operations, int64_t *bytes) {
    for (int64_t i = 0; i < count; i++) {
        int64_t cell = (tier[i] * ops + op[i]) * phases + phase[i];
        operations[cell]++;
        bytes[cell] += length_bytes[i];
    }
}
