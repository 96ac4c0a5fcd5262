// The plan: which rows of a trace are replayed, what lies in the tiers before them, and the rows
// laid into their ring.
//
// A trace is read twice, in batches. The first pass counts its rows and follows the objects of each
// tier (Survey), the second lays rows ahead of the run (Plan). Memory follows what the tiers hold,
// however long the trace.
#ifndef KVREPLAY_PLAN_H
#define KVREPLAY_PLAN_H

#include "replay.h"

typedef struct {
    int64_t from_bytes, to_bytes;
    int32_t version;
} Span; // to: the byte after the last

typedef struct {     // spans of an object, rising and apart; where two meet, their versions differ
    Span one, *many; // the first alone, or all of them
    int32_t count, room; // room of `many`; 0: it is not there
} Spans;

typedef struct { // items of one size by number; each begins with its key (int64), a free one with <
                 // 0
    Table index;
    char *item;
    int64_t used, room, first_free;
} Book;

typedef struct { // some rows of a trace, column by column; nulls are NONE
    const int64_t *ts_ns, *object_id, *offset_bytes, *length_bytes, *request_id;
    const int64_t *due_ns; // NULL in a closed loop, and in the first pass
    const int32_t *stage;
    const int32_t *node;   // NULL if all nodes are replayed
    const int16_t *stream; // NULL if there are none
    const int8_t *op, *tier, *phase;
    int64_t rows, at; // `at`: the next one to take
} Batch;

enum {
    NO_FAULT,
    EARLIER,
    LARGE_ID,
    UNNAMED,
    STAGE_FALLS
}; // Intake.fault: why row `at` cannot be replayed

typedef struct { // which rows of the trace are replayed, and how far it was taken
    int64_t most_rows, most_ns, most_bytes, node;
    uint64_t copies, bulk;     // bit a phase: its writes copy what another tier holds; it saves or
                               // restores a checkpoint
    const uint8_t *has_target; // by tier
    const int64_t *padding_bytes; // by tier
    int64_t *skipped;             // by tier without a target: its rows
    const uint8_t *left_out;      // by row of what is repeated; NULL if none is
    int64_t repeated_rows;
    int64_t rows, last_ns, moved_bytes; // of all rows that were taken or passed over
    int32_t fault, is_full;
    int32_t is_later; // rows begin later than the trace: what they delete first lay there
    int32_t is_done;  // the rows tell what was done: a delete of nothing stays among them
} Intake;

typedef struct { // an object of a tier in the first pass
    int64_t key;
    Spans written;
    int64_t held_bytes;    // now
    int64_t needed_bytes;  // before the first row
    int64_t longest_bytes; // at most, if it grows; else 0
    int64_t last_row;
    uint8_t is_entered, is_reborn, is_own, is_gone; // is_reborn: deleted before; is_own: written
} Resident;

typedef struct {
    int64_t rows, bytes, end_bytes;
} Kind;

enum { FIRST, AGAIN, GROWN }; // passes of a survey: see survey_begin_again

typedef struct { // the first pass; a place is a tier, or (behind all tiers) a drive of one
    int64_t tiers, places;
    int64_t *base_bytes, *now_bytes,
        *most_bytes;            // by place: needed first; what came beside that, and its most
    const int64_t *first_drive; // by tier: the place of its first drive
    const int64_t
        *named; // by tier on several drives: of how many objects the drive is known; else 0
    const int16_t *const *drive; // by tier: the drive of each of them
    Kind *kind;                  // by tier and op
    uint8_t *is_placed;          // by tier: some write belongs to a stream
    int64_t planned, last_row, last_ns, absent, objects;
    int64_t lost_row, lost_tier, lost_object; // the first read of what was deleted; NONE
    int32_t is_bulk, is_late, has_grown; // is_late: what is needed was found after it was written
    Book residents, stages;
    Table deleted; // by tier and 64 objects: bits
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
