// The state of the validation of a trace. Python reads this header, too.
#ifndef KVTRACE_VALIDATE_H
#define KVTRACE_VALIDATE_H

#include "world.h"

// Why a row is not possible, or ROW_CAN_BE.
enum {
    ROW_CAN_BE,
    TIME_BACKWARDS,
    OVERFLOW,
    REQUEST_NOT_DENSE,
    READ_ABSENT,
    READ_PAST_END,
    WRITE_GAP,
    OVER_CAPACITY,
    DELETE_ABSENT,
    DELETE_SIZE,
    STAGE_MISSING,
    STAGE_ALONE,
    STAGE_FIRST,
    STAGE_BACK,
    STAGE_GAP
};

// A tier of the trace.
typedef struct {
    int64_t capacity_bytes;
    int64_t live_bytes;
    int64_t peak_bytes; // The most bytes that were live at once.
} ValidatedTier;

typedef struct {
    bool is_strict;    // Impossible rows are reported; otherwise bytes are only counted.
    bool has_nodes;    // Nodes have instances of a tier of their own.
    int64_t last_ns;   // The time of the last row.
    int64_t fault_row; // The index, in its batch, of the row that is not possible.
    int64_t before;    // The value that contradicts this row.
    TABLE(ValidatedTier, tiers);
    TABLE(int64_t, sizes);     // Live bytes of each object in each tier or instance of a tier.
    TABLE(int64_t, instances); // Live bytes of each instance of a tier.
    TABLE(int64_t, extents);   // The largest size of each object; NONE if no row names it.
    TABLE(int32_t, stages);    // The stage that each request has reached; NONE before its first.
} Validation;

#endif
