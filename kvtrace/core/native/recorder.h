// What a recorder counts of operations that have ended.
//
// Python owns the memory of all structures here, but for the heaps of InFlight, and sees them as
// records by the same names. A place is a tier, or one drive of a tier on several; a kind is one
// operation (read, write, delete) at one place: place * OPS + op.
#ifndef KVTRACE_RECORDER_H
#define KVTRACE_RECORDER_H

#include "operation.h"

enum { SUB_BITS = 10 };     // a slot of a histogram is at most 1/1024 of its values wide
enum { SIZE_CLASSES = 18 }; // of lengths: up to 4 KiB, 8 KiB, ... 256 MiB, and what is longer
enum {
    COARSE_BITS = 8,
    COARSE_SLOTS = (64 - COARSE_BITS) << COARSE_BITS
}; // of the histograms by class of length

enum {
    SERVICE,
    PER_MIB,
    RESPONSE,
    LATENESS,
    OPEN_TIMES,
    CLOSED_TIMES = 2
}; // the distributions of a kind; a closed loop has the first two

typedef struct { // a distribution of times
    int64_t count;
    int64_t sum_high; // the sum is sum_high * 2^32 + sum_low
    int64_t sum_low;
    int64_t longest; // 0 if none is positive
    int64_t limit;   // so many are kept one by one; when one more comes, all are counted by slots
    int64_t *value;  // the first `limit` times
    int64_t *slot;   // how many times lie in each slot
} TimeDistribution;

typedef struct {             // the operations of one kind that figures count
    int64_t planned;         // whatever became of them
    int64_t good;            // completed well
    int64_t errors;          // failed, came up short, or brought corrupt blocks
    int64_t corrupt;         // of the errors
    int64_t bytes;           // of objects, by good ones
    int64_t io_bytes;        // asked of the tier by good ones
    int64_t io_known;        // good ones whose io_bytes are known
    int64_t service_ns;      // of good ones, added up
    int64_t moved_bytes;     // of objects, by good reads and writes
    int64_t single_bytes;    // of moved_bytes, by operations of one I/O
    int64_t first_ns;        // the first submission of a good one
    int64_t last_ns;         // the last completion of a good one
    int64_t due;             // due by the run's end, sent or not
    int64_t due_bytes;       // of objects, by reads and writes due by then
    int64_t last_due_ns;     // of those due by then
    int64_t first_missed_ns; // the first due time of those that were due and not sent
    int64_t last_service_ns; // of the first row with the last completion
    int64_t last_bytes;      // of the same row
    int64_t asked_bytes;     // asked of the tier by rows that moved them, the warm-up's included
    int64_t depended_ns;     // before submission, waiting for earlier operations, by good ones
    int64_t waited_ns;       // before submission, waiting for anything else, by good ones
} KindCounts;

typedef struct {               // a run as a whole
    int64_t rows;              // all that were recorded
    int64_t sent;              // submitted, and not cut off in flight by the run's end
    int64_t failed;            // with the warm-up's
    int64_t counted_sent;      // submitted, of those that figures count
    int64_t late;              // of counted_sent: more than LATE_NS after they were due
    int64_t late_by_itself;    // of counted_sent: more than LATE_NS after they could have gone
    int64_t left_out;          // completed well, and not counted by figures
    int64_t first_row;         // the first row submitted that figures count
    int64_t from_ns;           // the first submission that figures count
    int64_t last_completed_ns; // of all
    int64_t last_ns;           // the last time of all
    int64_t until_ns;          // the run's end, known before rows come that were not sent
    int64_t first_due_ns;      // of those due by then
    int64_t last_due_ns;
    double square_gaps; // from one due time to the next, squared and added up
} RunCounts;

typedef struct { // one kind in one second
    int64_t operations;
    int64_t errors;
    int64_t bytes;
    int64_t latency_ns; // service times added up
    int64_t most_ns;    // the longest service time
    int64_t p99_ns;     // NONE until the second is over, and of too few operations
} SecondCounts;

typedef struct { // a service time, for the p99 of its second
    int64_t key; // second * kinds + kind
    int64_t latency_ns;
} EndedInSecond;

typedef struct { // an operation, for how service times depend on what is in flight
    int64_t submitted_ns;
    int64_t completed_ns;
    int64_t length_op; // length_bytes * 2 + op
} Level;

typedef struct {
    int64_t from_ns;
    int64_t to_ns;
} WaitSpan;

typedef struct { // an operation that completed well, for what depends on the order in time
    int64_t submitted_ns;
    int64_t completed_ns;
    int64_t free_ns;   // when it could have gone
    int64_t length_op; // as of Level; NONE where nothing moved
    int64_t kind;
} DoneOperation;

typedef struct { // how many operations are in flight at once
    Heap ends;   // of those in flight
    int64_t most;
} InFlight;

typedef struct {        // one tier in time
    int64_t covered_ns; // time in which at least one of its operations was in flight
    int64_t until_ns;   // up to when that is known
    Level *level;       // of the operations submitted first
    int64_t levels;     // how many there are
    int64_t level_room; // 0: none is kept
} TierTime;

typedef struct {          // operations in the order of their submission
    DoneOperation *done;  // those that wait until hardly one can follow that was submitted earlier
    DoneOperation *spare; // as much memory, for sorting
    int64_t dones;
    int64_t done_room;
    const int64_t *tier;  // by kind
    const int64_t *group; // by kind: the InFlight that its tier's drives share; NONE
    InFlight *in_flight;  // by kind, then of groups
    TierTime *tier_time;  // by tier
    WaitSpan *wait; // spans in which one that could have gone was not submitted, apart, in order
    int64_t waits;
    int64_t wait_room;
    int64_t wait_floor_ns; // spans before it are not joined any more
    int64_t waited_ns;     // all spans added up
    int64_t reached_ns;    // the last submission that was looked at
    int64_t late;          // how many came after later ones
    int64_t is_open_loop;
} TimeOrder;

typedef struct {                  // a recorder
    const int64_t *padding_bytes; // by tier: offsets and ends of I/Os are multiples of it
    const int64_t *first_place;   // by tier
    const uint8_t *moves;         // by tier: whether data moves
    const uint8_t *is_timed;      // by tier: whether times and the order in time are recorded
    KindCounts *kind;
    RunCounts *run;
    TimeDistribution *times; // by kind, then one of what was submitted and did not complete well
    SecondCounts *second;    // by second, from first_second on, and kind; NULL: none are counted
    EndedInSecond *ended;    // room for each row that is added
    int64_t endeds;
    TimeOrder *order;
    int64_t *sized; // by kind, class of lengths, and service or response: counts by coarse slots;
                    // NULL in a closed loop
    int64_t first_second;
    int64_t kinds;
    int64_t times_a_kind; // OPEN_TIMES or CLOSED_TIMES
    int64_t io_bytes;     // the longest I/O
    int64_t is_open_loop;
    int64_t row_bytes; // from one row to the next: a Row of the engine is longer
    int64_t is_asked;  // whether the caller says what each row asked of its tier
} Recorder;

typedef struct { // a request
    int64_t id;
    int64_t in_window;      // its rows
    int64_t planned;        // of these, where data moves
    int64_t operations;     // of these, completed well
    int64_t loads;          // rows that read cached KV for it
    int64_t load_bytes;     // of loads
    int64_t loads_done;     // of loads: completed well, on any tier
    int64_t loads_from_ns;  // their first submission
    int64_t loads_until_ns; // their last completion
    int64_t hits;           // loads that completed well where data moves
    int64_t hit_bytes;
    int64_t read_bytes;
    int64_t written_bytes;
    int64_t scheduled_ns;      // the first due time where data moves
    int64_t submitted_ns;      // the first submission where data moves
    int64_t completed_ns;      // the last completion where data moves
    int64_t storage_ns;        // time in which at least one operation was in flight
    int64_t response_ns;       // time in which at least one was due and not completed
    int64_t response_until_ns; // up to when that is known
    int64_t is_left_out;       // of figures
    int64_t span;              // the last of its spans in flight; NONE
} RequestRecord;

typedef struct { // time in which a request had operations in flight
    int64_t from_ns;
    int64_t to_ns;
    int64_t before; // the span of its request before it; NONE
} RequestSpan;

typedef struct {          // requests of which rows have come and may still come
    const uint8_t *moves; // by tier
    const uint8_t *loads; // by phase: whether reads load cached KV
    RequestRecord *request;
    RequestSpan *span;
    Table place; // by id: the request's index
    int64_t room;
    int64_t requests;
    int64_t span_room;
    int64_t spans;
    int64_t free_span; // the first of those that are free again; NONE
    int64_t planned;   // rows of the part that were seen
    int64_t row_bytes;
    int64_t is_open_loop;
} OpenRequests;

#endif
