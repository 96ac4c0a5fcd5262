/* What both sides keep and count with: block.bpf.h (requests) and app.bpf.h (the application's calls).
 *
 * `config` is written by Python before the programs are loaded, `SHARED` is read while they run. libbpf.py reads their
 * structures here.
 */
#define SUB_BITS 6
/* (41 - SUB_BITS) << SUB_BITS: up to 2^40, what is above is in the last one */
#define SLOTS 2240
#define DEPTHS 1024
#define SHARDS 16
#define SWEPT 8192

enum direction { READ_, WRITE_, DISCARD_, FLUSH_, OTHER_, DIRECTIONS };
enum count {
    QUEUED, ISSUED, ISSUED_BYTES, COMPLETED, COMPLETED_BYTES, ERRORS, REQUEUES, REQUESTS_MERGED,
    BIOS, BIO_BYTES, BIOS_MERGED, SPLITS, D2C_SUM, Q2D_SUM, REQUEUED_SUM, LOST_EVENTS, LOST_REQUESTS,
    ENDS_NOT_SEEN, LOST_ZONES, COUNTS
};
enum kind {
    APP_READ, APP_WRITE, READ_WITHOUT_IO, WRITE_WITHOUT_IO, FSYNC, FDATASYNC, WRITE_TO_FSYNC, FADVISE_TO_READ, KINDS,
    FADVISE
};
enum call {
    READ_CALL, PREAD64, READV, PREADV, PREADV2, WRITE_CALL, PWRITE64, WRITEV, PWRITEV, PWRITEV2,
    FSYNC_CALL, FDATASYNC_CALL, IO_SUBMIT, IO_URING, CALLS
};
enum call_count { APP_COUNT, APP_BYTES, APP_ERRORS, APP_DIRECT, APP_WITHOUT_IO, APP_WITHOUT_IO_BYTES, CALL_COUNTS };

struct config {
    u64 wanted_cgroup;
    /* A process's name as two numbers, and which of their bytes matter. */
    u64 comm_low, comm_high, comm_mask_low, comm_mask_high;
    u32 own_pid, wanted_pid, cgroup_level, is_comm_wanted;
    /* Whether `devices` and `file_devices` say which count; whether requests go to `events`. */
    u32 is_device_wanted, has_events;
    u32 zone_shift;
    /* Of the running machine: a file's flag, and where the tracepoints of io_uring have their fields. */
    u32 o_direct, uring_submitted_at, uring_req_at, uring_result_at, unused;
};

struct swept {
    u64 rq, queue_ns;
};

struct counts {
    u64 block[DIRECTIONS][COUNTS], app[KINDS][CALLS][CALL_COUNTS], unused;
} __attribute__((aligned(64)));

struct shared {
    /* By processor, so that processors do not wait for each other's counts. */
    struct counts counts[SHARDS];
    /* When Python said that the measurement starts; nothing counts before. */
    u64 origin_ns;
    u64 app_not_followed;
    u64 swept_head, swept_tail;
    u64 app_sums[KINDS];
    u64 d2c[DIRECTIONS][SLOTS], q2d[DIRECTIONS][SLOTS], requeued[DIRECTIONS][SLOTS], app_times[KINDS][SLOTS];
    u64 depths[DIRECTIONS][DEPTHS];
    struct swept swept[SWEPT];
};

GLOBALS

struct call_state {
    u64 start_ns, inode;
    u32 kind, call, bios, is_direct;
};

HASH(calls, BPF_MAP_TYPE_HASH, u64, struct call_state, 65536);

static __always_inline int is_on(void)
{
    return SHARED.origin_ns != 0;
}

/* `++` on a shared counter loses updates across processors, and within one when an interrupt comes between. */
static __always_inline void add(u64 *cell, u64 amount)
{
    __sync_fetch_and_add(cell, amount);
}

static __always_inline struct counts *here(void)
{
    return &SHARED.counts[bpf_get_smp_processor_id() & (SHARDS - 1)];
}

/* Or the compiler makes one bound of two, or compares a copy, which the kernel's verifier cannot follow. What has 64 bits
 * needs no copy, where registers have no 32.
 */
#define KEEP_BOUND(number) asm volatile("" : "+r"(number))

static __always_inline void count(u64 direction, int what, u64 amount)
{
    KEEP_BOUND(direction);
    if (direction < DIRECTIONS)
        add(&here()->block[direction][what], amount);
}

static __always_inline int highest_bit(u64 v)
{
    int bit = 0;
    if (v >> 32) { bit += 32; v >>= 32; }
    if (v >> 16) { bit += 16; v >>= 16; }
    if (v >> 8) { bit += 8; v >>= 8; }
    if (v >> 4) { bit += 4; v >>= 4; }
    if (v >> 2) { bit += 2; v >>= 2; }
    return bit + (v >> 1 ? 1 : 0);
}

/* 64 slots a power of two: exact below 128, at most 1/64 wide above. histogram.py reads it back. */
static __always_inline u32 slot_of(u64 v)
{
    if (v < 1 << SUB_BITS)
        return v;
    if (v >> 40)
        return SLOTS - 1;
    int shift = highest_bit(v) - SUB_BITS;
    return (shift << SUB_BITS) + (v >> shift);
}

static __always_inline void time_at(u64 (*slots)[SLOTS], u64 row, u64 rows, u64 ns)
{
    u64 slot = slot_of(ns);
    KEEP_BOUND(row);
    KEEP_BOUND(slot);
    if (row < rows && slot < SLOTS)
        add(&slots[row][slot], 1);
}
