// The replay engine's contract: what Python lays out and reads, and what the C files ask of each
// other.
//
// A row of a trace becomes a Row in a ring of rows, waits in its chains (order.c), becomes an
// Operation when it starts (loop.c), moves in I/Os of at most io_bytes, and ends with its times in
// the Row. Whoever moves bytes is a loop: one thread with an io_uring (uring.c), or one of many
// that do one I/O at a time (threads.c). All take from one Order.
//
// Units are in the names: _ns counts from the run's start unless it says otherwise, _bytes are
// bytes. NONE is -1.
#ifndef KVREPLAY_REPLAY_H
#define KVREPLAY_REPLAY_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "operation.h"

enum { BLOCK_BYTES = 4096, SECTOR_BYTES = 512, MOST_TIERS = 127, CHAINS = 2 };
enum {
    VERSION_BEFORE = 0,
    VERSION_MIXED = -2,
    VERSION_NEVER = -3
}; // Row.version beside the numbers of writes

// --- rows
// ---------------------------------------------------------------------------------------------------------

typedef struct { // one operation of the trace; its first fields are those of an OperationRow
    int64_t trace_row;
    int64_t due_ns;
    int64_t offset_bytes;
    int64_t length_bytes;
    int64_t request;
    int64_t ready_ns;
    int64_t submitted_ns;
    int64_t completed_ns;
    int8_t op;
    int8_t tier;
    int8_t phase;
    int8_t outcome; // where all went well written last
    bool is_bulk;
    bool is_journaled;
    bool is_ended;
    uint8_t unmet; // order.c: groups that it still waits for
    int32_t object_id;
    int32_t version;  // of a write: what it brings; of a read, with --verify: what it must find
    int32_t stage;    // of its request; NONE
    int32_t stream;   // the write stream it belongs to; NONE
    int32_t group[2]; // order.c: its groups, by chain
    int32_t waits_with[2]; // order.c: the next row (its place in the ring) that waits for the same
                           // group
    int16_t retries;       // requests that an object store refused and that were sent again
} Row;

typedef struct { // a ring of rows: `laid` runs ahead, `given` follows; row n lies at row[n & mask]
    Row *row;
    int64_t mask;
    int64_t total;         // rows of the whole plan
    _Atomic int64_t laid;  // rows that are there
    _Atomic int64_t ended; // all rows before it have ended
    _Atomic int64_t given; // all rows before it were handed on: their places are free
} Rows;

static inline Row *row_at(Rows *rows, int64_t number) {
    return &rows->row[number & rows->mask];
}

// --- time
// --------------------------------------------------------------------------------------------------------------

static inline int64_t now_ns(void) { // monotonic clock
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// --- the data of writes (data.c)
// ------------------------------------------------------------------------------------

typedef struct {          // what makes the bytes of (object, version, place), and checks them
    const uint8_t *arena; // filled by dgen-py with the run's seed; whole sectors
    int64_t arena_sectors;
    uint64_t seed;
    uint64_t copies_below; // a block whose hash is below it is one of the pool's, so that it occurs
                           // again; 0: none is
    int64_t
        head_bytes; // of each sector: the rest is zeros, so that it compresses; SECTOR_BYTES: none
    uint64_t tag;   // of the run, in each block's stamp
    int64_t is_stamped;                         // with --verify
    _Atomic int64_t made_blocks, single_blocks; // of those made while copies_below is set
    _Atomic uint64_t pool_used[4];              // a bit for each block of the pool
} Data;

enum { GOOD_BLOCK, DAMAGED, FOREIGN, STALE, MISPLACED };
typedef struct { // a block that was not what was written there
    int64_t row, offset_bytes, found_offset_bytes, found_object;
    int32_t object, tier, expected, found_version, fault, unused;
} BadBlock;

void data_make(Data *d, void *to, int64_t bytes, int64_t offset, int64_t object, int64_t version);
int data_check(const Data *d, const void *block, int64_t offset, int64_t object, int64_t version,
               BadBlock *bad);

// --- tiers
// ----------------------------------------------------------------------------------------------------------

typedef enum { NOTHING, EXTENTS, FILES, MEMORY, MODELLED, PYTHON } TierKind;

typedef struct {           // one directory, file or device of a tier; or its memory
    Space *space;          // of extents and memory
    int64_t base;          // of memory: its address
    int64_t touched_bytes; // of memory: up to where the kernel has given it pages
    int32_t fd;            // of the file or device; of the directory that names are relative to
    int32_t first_loop, loops, loop_step; // whose rings its objects go by, in turn
} Drive;

typedef struct {
    int32_t at, shift, of_hash, unused;
} Digit; // a hexadecimal digit of an object's name

typedef struct {         // what a drive was measured to do (drive.json): axes, and at each of their
                         // crossings a cell
    const double *share; // of the bytes that are read
    const double *size, *depth; // logarithms: of the bytes of an I/O, and of how many are in flight
    const double *part;         // of the I/Os of a cell: from 0 to 1
    const double *cell; // [op][share][size][depth][slot], logarithms: ns at each part, HELD, WORK
    int64_t shares, sizes, depths, parts;
} Matrix;
enum {
    HELD,
    WORK,
    BESIDE_PARTS
}; // slots: how long a place of the queue is taken / the latency; ns that it takes at least

enum { TO_GPU, FROM_GPU, WITHIN_GPU, COPY_KINDS };
typedef struct {                  // what one copy at a time has on a GPU
    void *stream, *begins, *ends; // and two events
    void *staging;                // pinned: io_bytes
    int64_t copies[COPY_KINDS], bytes[COPY_KINDS], event_ns[COPY_KINDS];
} GpuCopier;

typedef struct { // a GPU by its driver's functions (gpu.py)
    void *use, *record, *copy, *wait, *elapsed;
    void *context;
    GpuCopier *copier;     // by place of the copies' queue
    int64_t is_within;     // data comes from the sink and goes there, which lies on the GPU, too
    _Atomic int64_t error; // the driver's last
} Gpu;

typedef struct {
    int32_t kind;          // TierKind
    int32_t queue[OPS];    // whose loops do it; RINGS_QUEUE: the ring of the object's drive
    int64_t padding_bytes; // offsets and ends are padded to it
    int64_t drives;
    Drive *drive;
    const uint8_t *drive_of; // by object; NULL where there is one drive
    const char *name;        // FILES: a path with zeros for its digits
    const Digit *digit;
    int64_t name_bytes, digits;
    uint64_t spread;                                                // the multiplier of the hash
    int32_t read_flags, write_flags, opened_advice, closing_advice; // advice: NONE for none
    int32_t is_synced;     // fdatasync before a write counts as done
    int32_t is_discarding; // a delete discards its extent of the device
    int32_t write_streams; // that a request may name; 0: none
    int32_t hints; // FILES: of how many lifetimes a written file gets that of its stream; 0: none
    int32_t
        is_renamed; // FILES: a write goes to a new file, which takes its name when all is written
    int32_t unused;
    void *sink; // MEMORY: where reads are copied to, in turn
    int64_t sink_bytes;
    Gpu *gpu; // MEMORY: whose it is; NULL: the host's
    int64_t read_bytes_per_s, write_bytes_per_s, latency_ns,
        occupied_ns;      // MODELLED; occupied_ns: at least, an operation
    const Matrix *matrix; // MODELLED: in place of these; NULL
} Tier;

enum { RINGS_QUEUE = -2 };

// --- operations under way (order.c, loop.c)
// -------------------------------------------------------------------------

typedef enum {
    OPEN,
    MOVE,
    CLOSE,
    ERASE,
    WHOLE
} Act; // WHOLE: open, move and close of an operation of one I/O

typedef struct Operation { // an operation between its start and its end
    int64_t number;        // of its row
    Row *row;
    Tier *tier;
    Drive *drive;
    int64_t from_bytes, to_bytes; // padded
    int64_t needed_to_bytes;      // the byte after the last that the trace asks for
    int64_t base;                 // where the object begins in its file, or in memory
    int64_t last_ns;              // the latest end of an I/O
    int32_t ios, next_io, out;
    int32_t promised; // I/Os that are still to go, at most as many as may be in flight
    int32_t fd;       // an extent's or an open file's; of a ring: its place among the ring's files
    int32_t id, queue;
    bool is_failed, is_listed, is_bulk, is_stamped;
    struct Operation *next; // in a queue's list, or among the free ones
} Operation;

typedef struct { // one thing to do for an operation, and what came of it
    Operation *operation;
    int64_t from_bytes, bytes; // of the object
    int64_t result;            // bytes moved, or minus an errno
    int64_t ended_ns;
    int64_t work_ns; // of a measured drive that is modelled
    int32_t act, place;
} Step;

typedef struct { // places of the queue: each step holds one, and with it a buffer
    int32_t *free, count, all;
    int32_t allowed, operations;  // in use at once at most, by now; operations under way
    Operation *operation, *spare; // all that may be, and the first that is not under way
} Places;

typedef struct { // ready rows for the loops of one kind, and what of them is under way
    Heap ready;
    Places *places;
    Operation *first, *last; // operations with I/Os that may go, the oldest first
    Operation *bulk;     // those of checkpoints: after all others, the one with the fewest I/Os in
                         // flight first
    Operation *closing;  // whose last I/O has come
    int64_t promised[2]; // by is_bulk, of all its operations: enough of them, and no other file is
                         // opened
    bool is_full;        // its first ready write finds no room before something more has ended
    pthread_cond_t woken;
    int64_t watched_ns; // when something is due for which a sleeper watches the clock; INT64_MAX:
                        // none does
    int32_t sleepers;
    int32_t event_fd; // wakes a ring's loop; NONE
    _Atomic int32_t is_asleep;
} Queue;

typedef struct { // rows of a chain that may run together
    int64_t key, opened_ns, done_ns;
    int32_t left, first, next, label;
    bool is_open, is_retiring;
    int8_t chain;
} Group;

typedef struct {
    int64_t cursor;
    int32_t group, unused;
} Retiring;
typedef enum {
    FREE_TO_GO,
    GROWING,
    DEPTH_LIMITED,
    BLOCKED,
    UNREAD
} Waiting; // why nothing more is in flight

typedef struct { // what of the trace may go, in its order
    pthread_mutex_t lock;
    Rows *rows;
    int64_t cursor;         // rows that were looked at
    int64_t ready, chained; // rows in all heaps; rows that wait for others
    Table chain[CHAINS];    // the last group of a request, and of an object
    Group *group;
    int32_t groups, free_group;
    Retiring *retiring; // groups that nothing follows, in the order of their ends: a ring
    int64_t retiring_first, retiring_count, retiring_room;
} Order;

// --- a job
// ------------------------------------------------------------------------------------------------------------

typedef enum {
    STARTING,
    MAKING_DATA,
    IN_ENTER,
    WAITING,
    MOVING,
    IN_PYTHON,
    CHECKING,
    ENDED,
    DOINGS
} Doing;

typedef struct {         // what one thread did with its time
    int64_t enter_ns;    // in io_uring_enter, or in calls that move data
    int64_t blocked_ns;  // of it: asleep with submissions in hand, the block layer's queue full or
                         // throttled
    int64_t making_ns;   // data of writes
    int64_t copying_ns;  // from memory to memory
    int64_t touching_ns; // pages that the memory of a tier did not have yet
    int64_t checking_ns; // what reads brought
    int64_t asleep_ns;   // with nothing to do: until something completes or is due
    int64_t waited_ns;   // of all: for a processor (schedstat); NONE where the kernel does not tell
    int64_t user_ns, system_ns;
    int64_t minor_faults;
    int64_t ended_ns; // of the run
    int32_t cpu;
    _Atomic int32_t doing;
} Use;

typedef struct { // Python lays it out; counters below are the engine's, and may be read at any time
    Rows *rows;
    Tier *tier;
    Data *data;
    uint8_t *buffers; // `depth` of io_bytes
    int64_t io_bytes;
    int64_t depth, bulk_depth;
    int64_t rings, copiers;   // queues: rings, then that of the workers, then that of the copiers
    int64_t registered_bytes; // of the buffers, from the first on
    int64_t is_open_loop, stops_on_error, is_checking;
    int64_t virtual_end_ns;   // 0, or the clock is work_virtually's alone, which goes no further
    _Atomic int64_t start_ns; // on the monotonic clock: what times count from; 0: not yet
    void *plan;               // for plan_spans; NULL
    Use *use;                 // by loop: rings, workers, copiers
    BadBlock *bad;
    int64_t bad_room;
    _Atomic int64_t is_stopped;
    _Atomic int64_t completed, moved_steps, in_flight, copying;
    _Atomic int64_t failed_row, failed_errno, failed_outcome, failed_from_bytes, failed_bytes,
        failed_moved;
    int64_t failed_trace_row, failed_op, failed_object,
        failed_tier; // of the first that failed; failed_row: NONE before
    _Atomic int64_t bad_blocks, checked_blocks, unwritten_blocks;
    _Atomic int64_t faults[5];
    _Atomic int64_t allowed_places; // how many buffers are touched
    int64_t most_places;
    int64_t in_use_ns, depth_limited_ns, blocked_ns, unread_ns, reserve_ns;
    int64_t growing_ns;  // something due waited for memory of buffers that was still being touched
    int64_t long_writes; // submitted before all their data was made
    int64_t is_deferred; // the kernel allowed DEFER_TASKRUN
} Job;

typedef struct {
    double read_bytes, bytes;
    int64_t work_ns;
    uint64_t ios;
} Load; // of a measured drive: means, in flight

typedef struct Engine {
    Job *job;
    Order order;
    Queue *queue;
    int32_t queues, workers_queue, copies_queue;
    Places places, copy_places;
    int64_t counted_ns;
    int64_t full_due_ns; // all places were taken at the last look, and more is due from then on;
                         // INT64_MAX
    int64_t latest_ns; // of all ends: what is told of without looking at the clock begins no sooner
    Waiting waiting;
    int64_t model_busy_ns[MOST_TIERS][2];
    Load load[MOST_TIERS];
    int64_t virtual_ns;
} Engine;

typedef struct { // a step for a tier that is Python's
    int64_t act, operation, row, op, tier, object;
    int64_t from_bytes, bytes, whole_from_bytes, whole_to_bytes, ios;
    int64_t is_failed;
    void *buffer;
    // What Python answers.
    int64_t is_answer, moved, error, submitted_ns, completed_ns, retries;
    Step step;
} Task;

// order.c
bool order_look(Engine *e, Queue *queue); // whether it stopped though more could be looked at
void order_leave(Engine *e, int64_t number, int64_t now);

// loop.c
int64_t run_ns(const Engine *e); // since the run's start
void lock(Engine *e);
void unlock(Engine *e);
bool take_step(Engine *e, int queue, int64_t now, Step *step, int64_t *next_ns);
void end_step(Engine *e, Step *step);
bool can_not_grow(int error);
void stamp(Step *step, int64_t now);
void make_data(Engine *e, Use *use, const Step *step);
void check_data(Engine *e, Use *use, const Step *step, const void *data, int64_t bytes);
bool is_over(const Engine *e);
uint8_t *buffer_of(const Engine *e, int32_t place);
Queue *queue_of(Engine *e, const Row *row);
void queue_wake(Queue *queue);
void wake_all(Engine *e);
int32_t write_name(const Tier *t, int64_t object,
                   char *name); // the path; returns the directory's descriptor

// threads.c
void use_begin(Engine *e, Use *use); // and wait for the start
void use_end(Engine *e, Use *use);
void perform(Engine *e, Use *use, Step *step); // a step by plain calls

enum { SPIN_NS = 50000, LONGEST_SLEEP_NS = 100000000, NAME_BYTES = 256 };

#endif
