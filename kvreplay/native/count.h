// What is counted of rows that have ended, and what tables and the journal hold of them.
//
// Python owns the memory of all structures here, but for the heaps of InFlight, and sees them as
// records of int64 and addresses by the same names; a test compares the two. Kinds are operations
// of one kind in one place (a tier, or a drive of one): place * OPS + op.
#ifndef KVREPLAY_COUNT_H
#define KVREPLAY_COUNT_H

#include "replay.h"

enum { SUB_BITS = 10 }; // a slot of a histogram is 1/1024 of its value wide
enum { SIZES = 18 };    // classes of lengths: up to 4 KiB, 8 KiB, ... 256 MiB, and what is longer
enum {
    COARSE_BITS = 8,
    COARSE_SLOTS = (64 - COARSE_BITS) << COARSE_BITS
}; // of the histograms by such a class
enum {
    SERVICE,
    PER_MIB,
    RESPONSE,
    LATENESS,
    OPEN_TIMES,
    CLOSED_TIMES = 2
}; // the distributions of a kind

typedef struct { // a distribution of times
    int64_t count;
    int64_t sum_high, sum_low; // their sum: sum_high * 2^32 + sum_low
    int64_t most;              // 0 if none is positive
    int64_t limit; // so many are kept one by one; when one more comes, all are counted by slots
    int64_t *value;
    int64_t *slot; // counts
} Times;

typedef struct {                            // what is counted of the operations of one kind
    int64_t planned, good, errors, corrupt; // of the rows that figures count
    int64_t bytes, io_bytes,
        service_ns; // of those that completed well; bytes of objects, and asked of the tier
    int64_t moved_bytes, single_bytes; // of those that moved any, and of these of those of one I/O
    int64_t first_ns, last_ns;         // their first submission and last completion
    int64_t due, due_bytes; // of those due by the run's end, sent or not; bytes of what moves any
    int64_t last_due_ns, first_missed_ns; // of these, and the first that was not sent
    int64_t last_service_ns, last_bytes;  // of the first row with that last completion
    int64_t asked_bytes;                  // of the tier by rows that moved them, the warm-up's too
    int64_t depended_ns, waited_ns; // before submission, for earlier operations and for anything
                                    // else, of those that completed well
} Kind;

typedef struct { // what is counted of a run as a whole
    int64_t rows, sent, failed;
    int64_t counted_sent, late,
        late_by_itself; // of those that figures count: submitted, late, and not by waiting
    int64_t left_out, first_row,
        from_ns; // left out of figures and completed well; the first row that is not
    int64_t last_completed_ns, last_ns; // the last completion, and the last time of all
    int64_t until_ns;                   // its end, known before rows come that were not sent
    int64_t first_due_ns, last_due_ns;  // of those due by then
    double square_gaps;                 // from one of them to the next, squared and added up
} Run;

typedef struct {
    int64_t operations, errors, bytes, latency_ns, most_ns, p99_ns;
} Second; // by second and kind
typedef struct {
    int64_t key, latency_ns;
} Ended; // a service time, and the index of its second
typedef struct {
    int64_t submitted_ns, completed_ns, length_op;
} Level;
typedef struct {
    int64_t from_ns, to_ns;
} Wait;

typedef struct { // an operation that completed well, for what depends on the order in time
    int64_t submitted_ns, completed_ns;
    int64_t free_ns;   // when it could have gone
    int64_t length_op; // tells apart operations and lengths; NONE where nothing moved
    int64_t kind;
} Done;

typedef struct { // how many operations are in flight at once
    Heap ends;   // of those in flight, the first on top
    int64_t most;
} InFlight;

typedef struct { // what one tier's operations covered
    int64_t covered_ns, until_ns;
    Level *level; // of the operations submitted first; NULL: none is kept
    int64_t levels, level_room;
} Covered;

typedef struct { // operations in the order of their submission
    Done *done,
        *spare; // those that wait until hardly one can follow that was submitted before them
    int64_t dones, done_room;
    const int64_t *tier, *group; // by kind; the group's InFlight, or NONE
    InFlight *in_flight;         // by kind, then of groups
    Covered *covered;            // by tier
    Wait *wait; // spans in which one that could have gone was not submitted, apart and in order
    int64_t waits, wait_room, wait_floor_ns, waited_ns;
    int64_t reached_ns,
        late; // the last submission that was looked at; how many came after later ones
    int64_t is_open_loop;
} InOrder;

typedef struct {
    const int64_t *padding_bytes, *first_place; // by tier
    const uint8_t *moves,
        *is_timed; // by tier: whether data moves; whether times and order are asked
    Kind *kind;
    Run *run;
    Times *times;   // by kind, and one of what was submitted but did not complete well
    Second *second; // by second, from first_second on, and kind
    Ended *ended;   // room for each row that is counted
    InOrder *order;
    int64_t *sized; // by kind, class of lengths, and service or response: counts by coarse slots;
                    // NULL in a closed loop
    int64_t first_second, kinds, each, io_bytes, is_open_loop, endeds;
} Counting;

typedef struct { // what is known of a request
    int64_t id;
    int64_t in_window, planned,
        operations;            // rows: of the trace, where data moves, and of these completed well
    int64_t loads, load_bytes; // rows that read cached KV for it
    int64_t loads_done, loads_from_ns, loads_until_ns; // of these completed well, on any tier
    int64_t hits, hit_bytes, read_bytes, written_bytes;
    int64_t scheduled_ns, submitted_ns, completed_ns;
    int64_t storage_ns; // time in which at least one operation was in flight
    int64_t response_ns,
        response_until_ns; // the same of due and not completed, and up to when that is known
    int64_t is_left_out;   // of figures
    int64_t span;          // the last of its spans in flight; NONE
} Request;

typedef struct {
    int64_t from_ns, to_ns, before;
} Span; // `before`: the one before it of its request; NONE

typedef struct {                  // requests of which rows have come and may still come
    const uint8_t *moves, *loads; // by tier, by phase
    Request *request;
    Span *span;
    Table place; // by id: the request's index
    int64_t room, requests, span_room, spans, free_span;
    int64_t planned; // rows of the part that were seen
    int64_t is_open_loop;
} Requests;

typedef struct {      // what a live view is told of rows as they end
    int64_t *totals;  // by tier and operation: operations, errors, bytes, response_ns
    int64_t *buckets; // by tier and operation: response times, by bound and beyond all
    const int64_t *bound;
    int64_t *response_ns, *late_ns; // of every `step`th
    int64_t bounds, room, sampled, seen, step, is_open_loop;
} Watched;

typedef struct { // a batch of the journal
    int64_t *place_step, *submitted_step_ns, *service_ns, *ready_ns;
    int8_t *outcome;
    int32_t *retries;
    Watched *watched; // NULL: nobody asks
    int64_t room;
    int64_t at;   // the row to look at next
    int64_t left; // the first that was not taken; NONE
} JournalBatch;
#endif
