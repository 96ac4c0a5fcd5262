// The data structures of the replay engine and the functions that its C files share. Python lays
// out a Job and its Rows (kvreplay/engine/job.py), starts the threads, and reads the results.
//
// Call path: plan.c lays rows into the ring -> order.c admits them and decides which are ready ->
// loop.c starts operations and hands out their steps -> uring.c or threads.c transfers the bytes ->
// loop.c completes the steps and finishes the row.
//
// Three kinds of position have three names. A row number counts the rows of the plan; a ring index
// is where that row lies in the ring of rows; a slot is one unit of the queue depth, with its
// buffer.
//
// Units are in the names. Times in _ns count from the start of the run unless a comment says
// otherwise. NONE is -1.
#ifndef KVREPLAY_REPLAY_H
#define KVREPLAY_REPLAY_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "operation.h"

enum { BLOCK_BYTES = 4096, SECTOR_BYTES = 512, MOST_TIERS = 127, CHAINS = 2 };
enum { SPIN_NS = 50000, LONGEST_SLEEP_NS = 100000000, NAME_BYTES = 256 };

// Values of Row.version beside the version numbers of writes.
enum { VERSION_BEFORE = 0, VERSION_MIXED = -2, VERSION_NEVER = -3 };

// --- rows

// One operation of the trace. The first fields are those of an OperationRow.
typedef struct {
    int64_t trace_row;     // number of the row in the trace
    int64_t due_ns;        // time at which it is due; NONE in a closed loop
    int64_t offset_bytes;  // offset in the object
    int64_t length_bytes;  // length in bytes
    int64_t request;       // request of the trace; NONE
    int64_t ready_ns;      // time at which the last operation that it waited for ended
    int64_t submitted_ns;  // time of its first submission; NONE
    int64_t completed_ns;  // time of its last completion; NONE
    int8_t op;             // READ, WRITE or DELETE
    int8_t tier;           // index into the tiers of the job
    int8_t phase;          // phase of the trace
    int8_t outcome;        // written after all times, so that a reader of OK sees the times
    bool is_bulk;          // belongs to the save or restore of a checkpoint
    bool is_journaled;     // is in the journal
    bool is_ended;         // has ended, whatever the outcome
    uint8_t unmet;         // groups that the row still waits for (order.c)
    int32_t object_id;     // object that it reads, writes or deletes
    int32_t version;       // written version; with --verify, the version that a read must return
    int32_t stage;         // stage of its request; NONE
    int32_t stream;        // write stream; NONE
    int32_t group[2];      // its groups, by chain (order.c)
    int32_t waits_with[2]; // by chain, ring index of the next row that waits for the same group
    int16_t retries;       // requests that an object store refused and that were sent again
} Row;

// A ring of rows. The loader advances `laid`, the engine `ended`, and the reader of results
// `given`.
typedef struct {
    Row *row;              // row number n lies at row[n & mask]
    int64_t mask;          // number of ring entries, minus one
    int64_t total;         // number of rows of the whole plan
    _Atomic int64_t laid;  // rows before this number have been loaded
    _Atomic int64_t ended; // rows before this number have ended
    _Atomic int64_t given; // rows before this number were handed on; their entries are free
} Rows;

static inline Row *rows_at(Rows *rows, int64_t number) {
    return &rows->row[number & rows->mask];
}

// Returns the first byte of a row's I/Os: its offset, rounded down to the padding of its tier.
static inline int64_t row_first_byte(const Row *row, int64_t padding_bytes) {
    return row->offset_bytes / padding_bytes * padding_bytes;
}

// Returns the byte behind the last of a row's I/Os, rounded up likewise.
static inline int64_t row_end_byte(const Row *row, int64_t padding_bytes) {
    int64_t end = row->offset_bytes + row->length_bytes;
    return (end + padding_bytes - 1) / padding_bytes * padding_bytes;
}

// --- time

// Returns the time of the monotonic clock.
static inline int64_t monotonic_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

// --- the data of writes (data.c)

// The parameters from which the bytes of an object's version are generated and verified.
typedef struct {
    const uint8_t *arena;          // whole sectors that dgen-py filled from the run's seed
    int64_t arena_sectors;         // length of the arena in sectors
    uint64_t seed;                 // seed of the run
    uint64_t copies_below;         // a block whose hash is lower is a copy from the pool; 0: none
    int64_t head_bytes;            // bytes of each sector with data; the others are zero
    uint64_t tag;                  // identifies the run in the stamp of each block
    int64_t is_stamped;            // blocks carry stamps, for --verify
    _Atomic int64_t made_blocks;   // blocks generated while copies_below is set
    _Atomic int64_t single_blocks; // of made_blocks, those that are not copies
    _Atomic uint64_t pool_used[4]; // one bit for each block of the pool that was used
} Data;

enum { GOOD_BLOCK, DAMAGED, FOREIGN, STALE, MISPLACED };

// A block that a read returned and that is not the one that was written there.
typedef struct {
    int64_t row;                // row of the trace that read it
    int64_t offset_bytes;       // offset in the object
    int64_t found_offset_bytes; // offset that the stamp of the block says
    int64_t found_object;       // object that the stamp says
    int32_t object;             // object that was read
    int32_t tier;               // tier that was read
    int32_t expected;           // version that should be there
    int32_t found_version;      // version that the stamp says
    int32_t fault;              // DAMAGED, FOREIGN, STALE or MISPLACED
    int32_t unused;             // padding
} BadBlock;

void data_generate(Data *data, void *to, int64_t bytes, int64_t offset, int64_t object,
                   int64_t version);
int data_verify(const Data *data, const void *block, int64_t offset, int64_t object,
                int64_t version, BadBlock *bad);

// --- tiers

typedef enum { NOTHING, EXTENTS, FILES, MEMORY, MODELLED, PYTHON } TierKind;

// One directory, file or device of a tier, or its memory.
typedef struct {
    Space *space;          // allocated extents of a file, a device or memory
    int64_t base;          // address of the memory
    int64_t touched_bytes; // bytes of the memory, from its start, that have pages already
    int32_t fd;            // file or device; for FILES, the directory that names are relative to
    int32_t first_loop;    // first ring that serves its objects
    int32_t loops;         // number of rings that serve its objects, in turn
    int32_t loop_step;     // distance from one of these rings to the next
} Drive;

// A hexadecimal digit of an object's file name.
typedef struct {
    int32_t at;      // position in the name
    int32_t shift;   // bits by which the number is shifted
    int32_t of_hash; // digit of the hash, not of the object number
    int32_t unused;  // padding
} Digit;

// Measurements of a drive (drive.json): a grid of cells over three axes.
typedef struct {
    const double *share; // axis: share of the bytes that are read
    const double *size;  // axis: logarithm of the bytes of an I/O
    const double *depth; // axis: logarithm of the I/Os in flight
    const double *part;  // quantiles of a cell, from 0 to 1
    const double *cell;  // [op][share][size][depth][slot]: logarithm of ns at each quantile, then
                         // HELD and WORK
    int64_t shares;      // points of the share axis
    int64_t sizes;       // points of the size axis
    int64_t depths;      // points of the depth axis
    int64_t parts;       // number of quantiles
} Matrix;

// Values behind the quantiles of a cell. HELD: time that a slot is taken, as a share of the
// latency. WORK: the least time in ns that an I/O occupies the drive.
enum { HELD, WORK, BESIDE_PARTS };

enum { TO_GPU, FROM_GPU, WITHIN_GPU, COPY_KINDS };

// The stream, events and staging memory of one concurrent copy on a GPU.
typedef struct {
    void *stream;                 // the driver's stream
    void *begins;                 // event before the copy
    void *ends;                   // event behind the copy
    void *staging;                // pinned memory of io_bytes
    int64_t copies[COPY_KINDS];   // number of copies
    int64_t bytes[COPY_KINDS];    // bytes copied
    int64_t event_ns[COPY_KINDS]; // time between the two events
} GpuCopier;

// A GPU, by the addresses of its driver's functions (gpu.py).
typedef struct {
    void *use;             // makes the context current
    void *record;          // records an event
    void *copy;            // starts a copy
    void *wait;            // waits for an event
    void *elapsed;         // returns the time between two events
    void *context;         // context of the device
    GpuCopier *copier;     // by slot of the copiers' queue
    int64_t is_within;     // source and sink of the copies both lie on the GPU
    _Atomic int64_t error; // last error of the driver
} Gpu;

typedef struct {
    int32_t kind;              // a TierKind
    int32_t queue[OPS];        // queue by operation; RINGS_QUEUE: the ring of the object's drive
    int64_t padding_bytes;     // I/O offsets and ends are multiples of it
    int64_t drives;            // number of drives
    Drive *drive;              // its drives
    const uint8_t *drive_of;   // drive by object; NULL if there is one drive
    const char *name;          // FILES: path with zeros where its digits go
    const Digit *digit;        // FILES: digits of the path
    int64_t name_bytes;        // FILES: bytes of the path, with its final zero
    int64_t digits;            // FILES: number of digits
    uint64_t spread;           // FILES: multiplier of the hash
    int32_t read_flags;        // FILES: open flags of reads
    int32_t write_flags;       // FILES: open flags of writes
    int32_t opened_advice;     // FILES: posix_fadvise after the open; NONE
    int32_t closing_advice;    // FILES: posix_fadvise before the close; NONE
    int32_t is_synced;         // a write ends with fdatasync
    int32_t is_discarding;     // a delete discards its extent of the device
    int32_t write_streams;     // write streams that a submission may name; 0: none
    int32_t hints;             // FILES: number of lifetime hints that streams map to; 0: none
    int32_t is_renamed;        // FILES: a write goes to a new file, which is renamed when complete
    int32_t unused;            // padding
    void *sink;                // MEMORY: ring of memory that reads are copied to
    int64_t sink_bytes;        // MEMORY: size of the sink
    Gpu *gpu;                  // MEMORY: GPU that owns the memory; NULL: the host
    int64_t read_bytes_per_s;  // MODELLED: bandwidth of reads
    int64_t write_bytes_per_s; // MODELLED: bandwidth of writes
    int64_t latency_ns;        // MODELLED: latency of an operation
    int64_t occupied_ns;       // MODELLED: least time that an operation occupies the tier
    const Matrix *matrix;      // MODELLED: measurements that replace these four; NULL
} Tier;

enum { RINGS_QUEUE = -2 };

// --- operations in progress (order.c, loop.c)

// What a step does. WHOLE is the open, transfer and close of an operation of one I/O.
typedef enum { OPEN, MOVE, CLOSE, ERASE, WHOLE } Act;

// A row between its start and its end.
typedef struct Operation {
    int64_t number;          // row number
    Row *row;                // its row
    Tier *tier;              // its tier
    Drive *drive;            // drive of its object; NULL if the tier has none
    int64_t from_bytes;      // first byte of the object, rounded down to the padding
    int64_t to_bytes;        // byte behind the last, rounded up to the padding
    int64_t needed_to_bytes; // byte behind the last that the trace asks for
    int64_t base;            // where the object begins in its file, device or memory
    int64_t last_ns;         // latest completion of its I/Os
    int32_t ios;             // number of I/Os
    int32_t next_io;         // I/Os started
    int32_t out;             // steps in flight
    int32_t promised;        // I/Os still to start, at most as many as may be in flight
    int32_t fd;              // open file or device
    int32_t id;              // index in Slots.operation; in a ring, also the index of its open file
    int32_t queue;           // index of its queue
    bool is_failed;          // one of its steps has failed
    bool is_listed;          // is in its queue's list of operations with I/Os to start
    bool is_bulk;            // is a checkpoint operation of several I/Os
    bool is_stamped;         // submitted_ns of its row is known
    struct Operation *next;  // next of its queue's list, or of the free operations
} Operation;

// One thing to do for an operation, and its result.
typedef struct {
    Operation *operation; // the operation
    int64_t from_bytes;   // offset in the object
    int64_t bytes;        // bytes to transfer
    int64_t result;       // bytes transferred, or a negative errno
    int64_t ended_ns;     // time of its completion
    int64_t work_ns;      // time that it occupies a measured drive
    int32_t act;          // an Act
    int32_t slot;         // slot that it holds, and with it the buffer
    bool is_prepared;     // its data is in the buffer already (prepare.c)
} Step;

// A free slot whose buffer holds the data of a write that is due later.
typedef struct {
    int64_t number;     // row of the write
    int64_t from_bytes; // first byte in the object
    int32_t slot;       // the slot
    int32_t unused;     // padding
} PreparedIo;

// The slots of a queue depth: each step in flight holds one.
typedef struct {
    int32_t *free;        // stack of free slots, without the prepared ones
    int32_t blank;        // slots in `free`
    PreparedIo *prepared; // free slots with the data of later writes
    int32_t prepared_ios; // how many of them
    int32_t preparing;    // free slots into which a thread is generating data
    int32_t count;        // free slots of all three kinds
    int32_t all;          // all slots: the queue depth
    int32_t allowed;      // slots whose buffers have memory; no more are taken
    int32_t operations;   // operations in progress
    Operation *operation; // memory of as many operations as there are slots
    Operation *spare;     // first free operation
} Slots;

// Ready rows for the loops of one kind, and the operations of these loops.
typedef struct {
    Heap ready;                // row numbers that are ready, the lowest first
    Slots *slots;              // slots that its steps take
    Operation *first;          // oldest operation with I/Os to start
    Operation *last;           // youngest operation with I/Os to start
    Operation *bulk;           // checkpoint operations with I/Os to start, after all others
    Operation *closing;        // operations whose last I/O has completed and that must close
    int64_t promised[2];       // sum of Operation.promised, by is_bulk
    int64_t prepare_row;       // writes before this row are not prepared any more (prepare.c)
    int64_t prepare_io;        // nor are the I/Os of this row before this one
    bool is_full;              // the first ready write has no space until something more ends
    pthread_cond_t woken;      // worker threads and copiers sleep on it
    int64_t watched_ns;        // due time that a sleeper waits for; INT64_MAX: none does
    int32_t sleepers;          // threads that sleep
    int32_t event_fd;          // wakes the thread of a ring; NONE
    _Atomic int32_t is_asleep; // the thread of the ring sleeps in the kernel
} Queue;

// Rows of a chain that may run together.
typedef struct {
    int64_t key;       // request or object
    int64_t opened_ns; // time from which its rows may start
    int64_t done_ns;   // time at which the last of its rows ended
    int32_t left;      // rows that have not ended
    int32_t first;     // ring index of the first row that waits for it; NONE
    int32_t next;      // following group of the chain, or of the free groups; NONE
    int32_t label;     // rows with the same label (stage, or READS) join it
    bool is_open;      // its rows may run
    bool is_retiring;  // is in Order.retiring
    int8_t chain;      // REQUEST or OBJECT
} Group;

// A group that ended and that nothing follows yet.
typedef struct {
    int64_t cursor; // Order.cursor when it ended
    int32_t group;  // its index
    int32_t unused; // padding
} Retiring;

// Why no further step is in flight.
typedef enum { FREE_TO_GO, GROWING, DEPTH_LIMITED, BLOCKED, UNREAD } Waiting;

// The order in which rows may run.
typedef struct {
    pthread_mutex_t lock;   // guards Order and all queues
    Rows *rows;             // the ring of rows
    int64_t cursor;         // rows before this number were admitted
    int64_t ready;          // rows in the heaps of all queues
    int64_t chained;        // admitted rows that wait for others
    Table chain[CHAINS];    // last group by request, and by object
    Group *group;           // all groups
    int32_t groups;         // number of groups
    int32_t free_group;     // first free group; NONE
    Retiring *retiring;     // ring of ended groups, in the order of their ends
    int64_t retiring_first; // number of the oldest of them
    int64_t retiring_count; // how many there are
    int64_t retiring_room;  // entries of the ring, a power of two
} Order;

// --- a job

// What a thread is doing.
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

// How one thread spent its time.
typedef struct {
    int64_t enter_ns;      // in io_uring_enter, or in calls that transfer data
    int64_t blocked_ns;    // of enter_ns: asleep with submissions in hand, because the block
                           // layer's queue was full or throttled
    int64_t making_ns;     // generating the data of writes that were due
    int64_t preparing_ns;  // generating the data of writes that were not due yet
    int64_t copying_ns;    // copying from memory to memory
    int64_t touching_ns;   // populating pages of a memory tier
    int64_t checking_ns;   // verifying the data of reads
    int64_t asleep_ns;     // idle until something completes or is due
    int64_t waited_ns;     // of all: waiting for a processor (schedstat); NONE if unknown
    int64_t user_ns;       // processor time in user mode
    int64_t system_ns;     // processor time in the kernel
    int64_t minor_faults;  // minor page faults
    int64_t ended_ns;      // time at which the thread ended
    int32_t cpu;           // processor on which it ended
    _Atomic int32_t doing; // a Doing
} Use;

// A job. Python lays it out; the counters are the engine's and may be read at any time.
typedef struct {
    Rows *rows;                        // the ring of rows
    Tier *tier;                        // its tiers
    Data *data;                        // data of writes
    uint8_t *buffers;                  // `depth` buffers of io_bytes
    int64_t io_bytes;                  // longest I/O
    int64_t depth;                     // queue depth
    int64_t bulk_depth;                // I/Os in flight of one checkpoint operation, at most
    int64_t rings;                     // queues of rings; the workers' and the copiers' follow
    int64_t copiers;                   // copies at a time
    int64_t registered_bytes;          // bytes of the buffers, from the first, that are registered
    int64_t is_open_loop;              // rows have due times
    int64_t stops_on_error;            // the first failed operation ends the job
    int64_t is_checking;               // reads are verified
    int64_t virtual_end_ns;            // end of simulated time; 0: the clock is real
    _Atomic int64_t start_ns;          // start on the monotonic clock; 0: not started
    void *plan;                        // argument of plan_spans; NULL
    Use *use;                          // by thread: rings, workers, copiers
    BadBlock *bad;                     // located bad blocks
    int64_t bad_room;                  // room of `bad`
    _Atomic int64_t is_stopped;        // the job is to end
    _Atomic int64_t completed;         // rows that have ended
    _Atomic int64_t moved_steps;       // steps that have completed
    _Atomic int64_t in_flight;         // slots in use
    _Atomic int64_t copying;           // slots of the copiers in use
    _Atomic int64_t failed_row;        // row number of the first failed operation; NONE
    _Atomic int64_t failed_errno;      // its errno
    _Atomic int64_t failed_outcome;    // its outcome
    _Atomic int64_t failed_from_bytes; // offset of the failed step
    _Atomic int64_t failed_bytes;      // length of the failed step
    _Atomic int64_t failed_moved;      // result of the failed step
    int64_t failed_trace_row;          // its row of the trace
    int64_t failed_op;                 // its operation
    int64_t failed_object;             // its object
    int64_t failed_tier;               // its tier
    _Atomic int64_t bad_blocks;        // corrupt blocks
    _Atomic int64_t checked_blocks;    // verified blocks
    _Atomic int64_t unwritten_blocks;  // read blocks that nothing had written
    _Atomic int64_t faults[5];         // corrupt blocks by fault
    _Atomic int64_t allowed_slots;     // slots whose buffers have memory
    int64_t max_slots;                 // most slots that were in use at once
    int64_t in_use_ns;                 // slots in use, times time
    int64_t depth_limited_ns;          // time in which something due waited for a slot
    int64_t blocked_ns;                // idle slots, times time, while all rows left were waiting
    int64_t unread_ns;                 // idle slots, times time, while the trace was being read
    int64_t reserve_ns;                // time spent reserving extents
    int64_t growing_ns;                // time in which something due waited for buffer memory
    int64_t long_writes;               // writes submitted before all their data was generated
    int64_t is_deferred;               // the kernel allowed DEFER_TASKRUN
} Job;

// Load of a measured drive.
typedef struct {
    double read_bytes; // running mean of the read bytes of an I/O
    double bytes;      // running mean of the bytes of an I/O
    int64_t work_ns;   // work in flight
    uint64_t ios;      // I/Os so far
} Load;

typedef struct Engine {
    Job *job;                             // the job
    Order order;                          // the order of its rows
    Queue *queue;                         // rings' queues, then the workers', then the copiers'
    int32_t queues;                       // number of queues
    int32_t workers_queue;                // index of the workers' queue
    int32_t copies_queue;                 // index of the copiers' queue
    Slots slots;                          // slots of rings and workers
    Slots copy_slots;                     // slots of copiers
    int64_t counted_ns;                   // time up to which slot time is accounted
    int64_t full_due_ns;                  // all slots were in use at the last look, and more is due
                                          // from then on; INT64_MAX
    int64_t latest_ns;                    // latest end; rows that end without a clock read start
                                          // no earlier
    Waiting waiting;                      // why no further step was in flight at the last look
    int64_t model_busy_ns[MOST_TIERS][2]; // by tier and is-a-write: when the model is idle again
    Load load[MOST_TIERS];                // by tier: load of a measured drive
    int64_t virtual_ns;                   // simulated time
} Engine;

// A step for a tier whose client is written in Python.
typedef struct {
    int64_t act;              // an Act
    int64_t operation;        // id of the operation
    int64_t row;              // row of the trace
    int64_t op;               // READ, WRITE or DELETE
    int64_t tier;             // index of the tier
    int64_t object;           // object
    int64_t from_bytes;       // offset of the step in the object
    int64_t bytes;            // length of the step
    int64_t whole_from_bytes; // offset of the operation
    int64_t whole_to_bytes;   // end of the operation
    int64_t ios;              // I/Os of the operation
    int64_t is_failed;        // an earlier step of the operation failed
    void *buffer;             // data of the step
    // Python fills the fields below.
    int64_t is_answer;    // the fields below hold the result
    int64_t moved;        // bytes transferred
    int64_t error;        // an errno; 0
    int64_t submitted_ns; // submission that the client measured; NONE
    int64_t completed_ns; // time of the completion
    int64_t retries;      // requests sent again
    Step step;            // the engine's own step
} Task;

// order.c

// Admits rows into their chains. Returns whether it stopped early and more rows can be admitted.
bool order_admit_rows(Engine *engine, Queue *queue);
// Records the end of a row and opens the groups that waited for it.
void order_finish_row(Engine *engine, int64_t number, int64_t now);

// loop.c

// Returns the time since the start of the run.
int64_t engine_now_ns(const Engine *engine);
void engine_lock(Engine *engine);
void engine_unlock(Engine *engine);
// Returns whether all rows have ended or the job was stopped.
bool engine_is_over(const Engine *engine);
// Wakes the threads of all queues.
void engine_wake_queues(Engine *engine);
// Returns the buffer of a slot.
uint8_t *engine_slot_buffer(const Engine *engine, int32_t slot);
// Takes the next step of a queue; false if there is none before `next_ns`.
bool loop_take_step(Engine *engine, int queue_index, int64_t now, Step *step, int64_t *next_ns);
// Records the result of a step, and finishes its operation if it was the last.
void loop_complete_step(Engine *engine, Step *step);
// Returns the queue whose loops carry out a row.
Queue *queue_of_row(Engine *engine, const Row *row);
// Wakes a thread of the queue if one sleeps.
void queue_wake(Queue *queue);
// Returns whether an errno says that the filesystem does not preallocate.
bool operation_cannot_preallocate(int error);
// Records the time of the first submission of the step's operation.
void operation_mark_submitted(Step *step, int64_t now);
// Generates the data of a write into the buffer of its step.
void operation_generate_data(Engine *engine, Use *use, const Step *step);
// Verifies the data that a read returned.
void operation_verify_data(Engine *engine, Use *use, const Step *step, const void *data,
                           int64_t bytes);
// Writes the path of an object's file to `name`; returns the directory that it is relative to.
int32_t operation_write_path(const Tier *tier, int64_t object, char *name);

// io_slots.c

// Returns how many slots have a buffer with memory, and neither data nor an I/O.
int32_t slots_count_blank(const Engine *engine, Slots *slots);
// Returns whether a step may take a slot.
bool slots_has_free(const Engine *engine, Slots *slots);
// Takes a free slot for `step`: the one with its data if there is one.
void slots_take(Engine *engine, Slots *slots, Step *step);
// Returns a slot, and wakes the queues that wait for one.
void slots_return(Engine *engine, Slots *slots, int32_t slot);

// prepare.c

// Generates the data of one I/O of a write that is due later than `now`, by the time `until_ns`.
// Returns whether to call it again.
bool prepare_next_io(Engine *engine, int queue_index, Use *use, int64_t now, int64_t until_ns);

// threads.c

// Waits for the start of the job, and begins to measure the calling thread.
void thread_begin(Engine *engine, Use *use);
// Ends the measurement of the calling thread.
void thread_end(Engine *engine, Use *use);
// Carries out a step by plain system calls.
void thread_perform_step(Engine *engine, Use *use, Step *step);

#endif
