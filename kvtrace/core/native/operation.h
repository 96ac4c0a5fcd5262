// One operation on an object, as a run and an import record it: what was asked, and how it ended.
//
// Times are nanoseconds since the start of the run. NONE is -1.
#ifndef KVTRACE_OPERATION_H
#define KVTRACE_OPERATION_H

#include "core.h"

enum { READ, WRITE, DELETE, OPS };            // OperationRow.op, as the table ops has them
enum { OK, FAILED, SHORT, SKIPPED, CORRUPT }; // OperationRow.outcome, as the table ops has them

typedef struct {          // the Row of replay.h begins with the same fields
    int64_t trace_row;    // its number in the trace
    int64_t due_ns;       // NONE in a closed loop
    int64_t offset_bytes; // in the object
    int64_t length_bytes;
    int64_t request;      // the trace's id; NONE
    int64_t ready_ns;     // when the last operation that it waited for ended; 0: it waited for none
    int64_t submitted_ns; // before the system call that carried its first I/O; NONE
    int64_t completed_ns; // NONE
    int8_t op;
    int8_t tier;    // index into the trace's tiers
    int8_t phase;   // as the table ops has it
    int8_t outcome; // SKIPPED until it is known
    bool is_bulk;   // it saves or restores a checkpoint
} OperationRow;

#endif
