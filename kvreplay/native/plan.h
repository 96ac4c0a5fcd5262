// The plan: which rows of a trace are replayed, what lies in the tiers before them, and the rows
// laid into their ring.
//
// A trace is read twice, in batches. The first pass counts its rows and follows the objects of each
// tier (Survey), the second lays rows ahead of the run (Plan). Memory follows what the tiers hold,
// however long the trace.
#ifndef KVREPLAY_PLAN_H
#define KVREPLAY_PLAN_H

#include "replay.h"

// A range of an object's bytes that one version wrote.
typedef struct {
    int64_t from_bytes; // first byte
    int64_t to_bytes;   // byte behind the last
    int32_t version;    // version that wrote it
} Span;

// The spans of an object, in rising order and disjoint; adjacent spans have different versions.
typedef struct {
    Span one;      // the first, if there is no more than one
    Span *many;    // all of them
    int32_t count; // number of spans
    int32_t room;  // spans that `many` has room for; 0: `one` is used
} Spans;

// Items of one size by key. Each begins with its key (int64); that of a free item is negative.
typedef struct {
    Table index;        // index of the item by key
    char *item;         // the items
    int64_t used;       // items that were ever used
    int64_t room;       // items that there is memory for
    int64_t first_free; // index of the first free item, plus one; 0: none
} Book;

// Some rows of a trace, column by column. Nulls are NONE.
typedef struct {
    const int64_t *ts_ns;        // time in the trace
    const int64_t *object_id;    // object
    const int64_t *offset_bytes; // offset in the object
    const int64_t *length_bytes; // length
    const int64_t *request_id;   // request
    const int64_t *due_ns;       // due time; NULL in a closed loop, and in the first pass
    const int32_t *stage;        // stage of the request
    const int32_t *node;         // node; NULL if all nodes are replayed
    const int16_t *stream;       // write stream; NULL if there are none
    const int8_t *op;            // READ, WRITE or DELETE
    const int8_t *tier;          // index of the tier
    const int8_t *phase;         // phase
    int64_t rows;                // number of rows
    int64_t at;                  // next row to take
} Batch;

// Intake.fault: why row `at` of the batch cannot be replayed.
enum { NO_FAULT, EARLIER, LARGE_ID, UNNAMED, STAGE_FALLS };

// Which rows of the trace are replayed, and how far the trace was read.
typedef struct {
    int64_t most_rows;            // limit of rows
    int64_t most_ns;              // limit of time in the trace
    int64_t most_bytes;           // limit of bytes
    int64_t node;                 // node that is replayed
    uint64_t copies;              // one bit a phase: its writes copy what another tier holds
    uint64_t bulk;                // one bit a phase: it saves or restores a checkpoint
    const uint8_t *has_target;    // by tier: rows of the tier are replayed
    const int64_t *padding_bytes; // by tier: I/O offsets and ends are multiples of it
    int64_t *skipped;             // by tier without a target: its rows
    const uint8_t *left_out;      // by row of a repeated trace: it is left out; NULL if none is
    int64_t repeated_rows;        // rows of the trace that is repeated
    int64_t rows;                 // rows read so far
    int64_t last_ns;              // time of the last row
    int64_t moved_bytes;          // bytes of these rows
    int32_t fault;                // why the next row cannot be replayed
    int32_t is_full;              // a limit was reached
    int32_t is_later;             // rows begin after the trace's first: objects may exist before
    int32_t is_done;              // rows record a real run: a delete of an absent object stays
} Intake;

// An object of a tier in the first pass.
typedef struct {
    int64_t key;           // tier and object
    Spans written;         // bytes that rows have written
    int64_t held_bytes;    // length now
    int64_t needed_bytes;  // length that it needs before the first row
    int64_t longest_bytes; // greatest length, if it grows; else 0
    int64_t last_row;      // last row that touched it; NONE
    uint8_t is_entered;    // the fields above are valid
    uint8_t is_reborn;     // it was deleted before
    uint8_t is_own;        // a row wrote it
    uint8_t is_gone;       // its last row was a delete
} Resident;

// The rows of one operation on one tier.
typedef struct {
    int64_t rows;      // number of rows
    int64_t bytes;     // sum of their lengths
    int64_t end_bytes; // greatest end of a row in its object
} Kind;

enum { FIRST, AGAIN, GROWN }; // passes of a survey: see survey_begin_again

// The first pass. A place is a tier or, behind all tiers, one drive of a tier.
typedef struct {
    int64_t tiers;               // number of tiers
    int64_t places;              // number of tiers and drives
    int64_t *base_bytes;         // by place: bytes needed before the first row
    int64_t *now_bytes;          // by place: bytes beside base_bytes, now
    int64_t *most_bytes;         // by place: greatest value of now_bytes
    const int64_t *first_drive;  // by tier: place of its first drive
    const int64_t *named;        // by tier on several drives: objects with a known drive; else 0
    const int16_t *const *drive; // by tier: the drive of each of them
    Kind *kind;                  // by tier and operation
    uint8_t *is_placed;          // by tier: a write belongs to a stream
    int64_t planned;             // rows that are replayed
    int64_t last_row;            // last of them
    int64_t last_ns;             // its time
    int64_t absent;              // deletes of absent objects, which are not replayed
    int64_t objects;             // greatest object number, plus one
    int64_t lost_row;            // first read of a deleted object; NONE
    int64_t lost_tier;           // its tier
    int64_t lost_object;         // its object
    int32_t is_bulk;             // a row saves or restores a checkpoint
    int32_t is_late;             // a need was found after the object was written: a second look
    int32_t has_grown;           // an object grew
    Book residents;              // objects by tier and object
    Book stages;                 // last stages of requests
    Table deleted;               // by tier and 64 objects: one bit each
} Survey;

typedef struct {   // an object of a trace that ranks share (partition.c); ranks are stored with 1
                   // added, 0: none
    int16_t first; // touched it first
    int16_t owner; // wrote it last
    int8_t is_shared; // several touch it
} Own;

typedef struct { // a batch of rows, column by column; nulls are NONE
    int64_t rows, first_row;
    const int64_t *op, *tier, *object_id, *offset_bytes, *length_bytes;
    const int64_t *request; // NONE where a row waits for no other one
} PartitionRows;

typedef struct {           // an object of several ranks, in a tier: for one of these ranks
    int64_t deleted_row;   // NONE
    int64_t written_bytes; // since then, from the start on
    int64_t is_elsewhere;  // another rank wrote it since
} Shared;

typedef struct Plan Plan;

// What the read must find: the first `most` spans that end beyond `from`; returns how many they
// are.
int plan_spans(Plan *plan, int64_t row_number, int64_t from, Span *spans, int most);
void plan_forget(Plan *plan, int64_t below); // nobody asks for the rows below any more
#endif
