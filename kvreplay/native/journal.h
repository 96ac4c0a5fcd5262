// What the journal and a live view take of rows that have ended.
//
// Python owns the memory of both structures, and sees them as records by the same names.
#ifndef KVREPLAY_JOURNAL_H
#define KVREPLAY_JOURNAL_H

#include "replay.h"

typedef struct {          // what a live view is told of rows as they end
    int64_t *totals;      // by tier and operation: operations, errors, bytes, response_ns
    int64_t *buckets;     // by tier and operation: response times, by bound and beyond all
    const int64_t *bound; // of response times, rising
    int64_t *response_ns; // of every `step`th row
    int64_t *late_ns;     // of the same rows
    int64_t bounds;
    int64_t room;
    int64_t sampled;
    int64_t seen;
    int64_t step;
    int64_t is_open_loop;
} Watched;

typedef struct { // a batch of the journal
    int64_t *place_step;
    int64_t *submitted_step_ns;
    int64_t *service_ns;
    int64_t *ready_ns;
    int8_t *outcome;
    int32_t *retries;
    Watched *watched; // NULL: there is no live view
    int64_t room;
    int64_t at;   // the row to look at next
    int64_t left; // the first that was not taken; NONE
} JournalBatch;

#endif
