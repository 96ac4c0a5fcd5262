// The loop of one io_uring, by its three system calls and the memory that the kernel shares,
// without liburing. One thread owns the ring and carries out all steps of its queue.
//
// Call path: ring_run repeats three calls until the job is over:
//   fill_submission_queue  loop_take_step, operation_generate_data for a write, add_step: one
//                          submission entry (add_transfer), or a linked chain of open, transfer
//                          and close for a whole operation on a file
//   submit_and_wait        io_uring_enter: submits the entries and waits for a completion
//   reap_completions       handle_completion for each completion, then loop_complete_step
#include "replay.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <string.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    MOST_ENTRIES = 4096,
    LONGEST_CHAIN = 6,
    TOGETHER = 16,
    MADE_BYTES = 64 << 10,
    KIND_BITS = 4,
    MODE = 0600
};
// What a completion reports, in the low bits of its user data.
enum {
    MOVED,  // a transfer, flush or unlink: its step has ended
    OPENED, // the file of a longer operation is open
    GROWN,  // its space is preallocated: the step OPEN has ended
    TOLD,   // the transfer of a chain failed or was short
    ASIDE,  // advice or flush of a chain
    OVER,   // the last entry of a chain
    WOKEN   // another thread wrote to the event descriptor
};
// Offset of write_stream in a submission entry, since Linux 6.16.
enum { WRITE_STREAM_AT = 44 };
enum { SLOW_NS = 50000, SPLIT_EACH = 32, SPLIT_NEXT = 256 };

typedef struct {
    int fd;                   // the ring
    int event_fd;             // other threads wake the ring's thread by it
    struct io_uring_sqe *sqe; // submission entries
    struct io_uring_cqe *cqe; // completion entries
    unsigned *sq_head;        // first entry that the kernel has not taken
    unsigned *sq_tail;        // entry behind the last that the kernel may take
    unsigned *cq_head;        // first completion that was not handled
    unsigned *cq_tail;        // completion behind the last
    unsigned sq_mask;         // number of submission entries, minus one
    unsigned cq_mask;         // number of completion entries, minus one
    unsigned tail;            // entry behind the last that was filled
    unsigned submitted;       // entries that the kernel has taken
    char *names;              // a path for each submission entry
    void *rings;              // mapping of both rings
    void *requests;           // mapping of the submission entries
    size_t rings_bytes;       // size of `rings`
    size_t requests_bytes;    // size of `requests`
    bool is_deferred;         // the kernel allowed DEFER_TASKRUN
} Ring;

typedef struct {
    Engine *engine;          // the engine
    Ring ring;               // its ring
    Use *use;                // how the thread spends its time
    Step *step;              // by slot: steps in flight
    int queue;               // index of its queue
    int out;                 // number of steps in flight
    int64_t pinned_bytes;    // registered bytes of the buffers, from the first
    int32_t fresh[TOGETHER]; // slots of the steps that were filled since the last submission
    int32_t fresh_count;     // number of them
    int64_t enters;          // submissions so far
    int64_t splits_left;     // next submissions that are made without a wait
} Loop;

static long call_io_uring_enter(int fd, unsigned count, unsigned wait, unsigned flags,
                                const void *argument, size_t bytes) {
    return syscall(__NR_io_uring_enter, fd, count, wait, flags, argument, bytes);
}

static int register_with_ring(const Ring *ring, unsigned what, const void *argument,
                              unsigned count) {
    return syscall(__NR_io_uring_register, ring->fd, what, argument, count) < 0 ? errno : 0;
}

// Closes a ring, and its registered files first: the kernel frees a ring later, and an open file
// would keep its filesystem from being unmounted.
static void close_ring(Ring *ring) {
    if (ring->rings) {
        munmap(ring->rings, ring->rings_bytes);
    }
    if (ring->requests) {
        munmap(ring->requests, ring->requests_bytes);
    }
    free(ring->names);
    if (ring->fd >= 0) {
        register_with_ring(ring, IORING_UNREGISTER_FILES, NULL, 0);
        close(ring->fd);
    }
    ring->fd = -1;
}

enum { TOO_OLD = -1, NO_FILES = -2 };

// Makes a ring with a table of `files` open files. Returns 0, an errno, TOO_OLD or NO_FILES.
static int open_ring(Ring *ring, unsigned entries, unsigned files) {
    static const unsigned wanted[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                      IORING_SETUP_COOP_TASKRUN, 0};
    struct io_uring_params params;
    *ring = (Ring){.fd = -1};
    for (unsigned i = 0; i < 3 && ring->fd < 0; i++) {
        params = (struct io_uring_params){.flags = wanted[i] | IORING_SETUP_CLAMP};
        ring->fd = (int)syscall(__NR_io_uring_setup, entries, &params);
        if (ring->fd < 0 && errno != EINVAL) {
            return errno;
        }
        ring->is_deferred = i == 0;
    }
    if (ring->fd < 0) {
        return errno;
    }
    fcntl(ring->fd, F_SETFD, FD_CLOEXEC);
    unsigned needed = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_EXT_ARG | IORING_FEAT_CQE_SKIP;
    if ((params.features & needed) != needed) {
        close_ring(ring);
        return TOO_OLD;
    }
    size_t sq = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    size_t cq = params.cq_off.cqes + params.cq_entries * sizeof(*ring->cqe);
    ring->rings_bytes = sq > cq ? sq : cq;
    ring->requests_bytes = params.sq_entries * sizeof(*ring->sqe);
    int how = PROT_READ | PROT_WRITE;
    int flags = MAP_SHARED | MAP_POPULATE;
    char *rings = ring->rings =
        mmap(NULL, ring->rings_bytes, how, flags, ring->fd, IORING_OFF_SQ_RING);
    ring->requests = mmap(NULL, ring->requests_bytes, how, flags, ring->fd, IORING_OFF_SQES);
    if (ring->rings == MAP_FAILED || ring->requests == MAP_FAILED) {
        int code = errno;
        ring->rings = ring->rings == MAP_FAILED ? NULL : ring->rings;
        ring->requests = ring->requests == MAP_FAILED ? NULL : ring->requests;
        close_ring(ring);
        return code;
    }
    ring->sqe = ring->requests;
    ring->cqe = (struct io_uring_cqe *)(rings + params.cq_off.cqes);
    ring->sq_head = (unsigned *)(rings + params.sq_off.head);
    ring->sq_tail = (unsigned *)(rings + params.sq_off.tail);
    ring->cq_head = (unsigned *)(rings + params.cq_off.head);
    ring->cq_tail = (unsigned *)(rings + params.cq_off.tail);
    ring->sq_mask = params.sq_entries - 1;
    ring->cq_mask = params.cq_entries - 1;
    for (unsigned i = 0; i < params.sq_entries; i++) {
        ((unsigned *)(rings + params.sq_off.array))[i] = i;
    }
    ring->names = memory_grow(NULL, params.sq_entries, NAME_BYTES);
    struct io_uring_rsrc_register table = {.nr = files, .flags = IORING_RSRC_REGISTER_SPARSE};
    int code = register_with_ring(ring, IORING_REGISTER_FILES2, &table, sizeof table);
    if (code) {
        close_ring(ring);
        return code == EMFILE ? code : NO_FILES;
    }
    return 0;
}

// Returns whether this process can make a ring: 0, or as open_ring.
EXPORT int ring_probe(void) {
    Ring ring;
    int code = open_ring(&ring, 8, 1);
    if (!code) {
        close_ring(&ring);
    }
    return code;
}

// Returns 0, or the errno with which the kernel refuses to register so many bytes.
EXPORT int ring_probe_pinning(void *buffers, int64_t bytes) {
    Ring ring;
    int code = open_ring(&ring, 8, 1);
    if (code) {
        return 0;
    }
    struct iovec memory = {buffers, (size_t)bytes};
    code = register_with_ring(&ring, IORING_REGISTER_BUFFERS, &memory, 1);
    close_ring(&ring);
    return code;
}

// --- submission entries

// Returns how many submission entries can still be filled.
static unsigned free_entries(const Ring *ring) {
    return ring->sq_mask + 1 - (ring->tail - ring->submitted);
}

// Fills a submission entry whose completion will name `slot` and `kind`.
static struct io_uring_sqe *add_entry(Ring *ring, int opcode, unsigned flags, int fd, int32_t slot,
                                      int kind) {
    struct io_uring_sqe *request = &ring->sqe[ring->tail++ & ring->sq_mask];
    memset(request, 0, sizeof *request);
    request->opcode = (uint8_t)opcode;
    request->flags = (uint8_t)flags;
    request->fd = fd;
    request->user_data = (uint64_t)slot << KIND_BITS | (unsigned)kind;
    return request;
}

static struct io_uring_sqe *add_path_entry(Ring *ring, int opcode, unsigned flags, const Step *step,
                                           int kind) {
    char *name = ring->names + (size_t)(ring->tail & ring->sq_mask) * NAME_BYTES;
    int32_t directory =
        operation_write_path(step->operation->tier, step->operation->row->object_id, name);
    struct io_uring_sqe *request = add_entry(ring, opcode, flags, directory, step->slot, kind);
    request->addr = (uintptr_t)name;
    return request;
}

static void add_open(Ring *ring, const Step *step, unsigned flags, int kind) {
    const Tier *tier = step->operation->tier;
    struct io_uring_sqe *request = add_path_entry(ring, IORING_OP_OPENAT, flags, step, kind);
    request->len = MODE;
    request->open_flags =
        (uint32_t)(step->operation->row->op == WRITE ? tier->write_flags : tier->read_flags) &
        ~(uint32_t)O_CLOEXEC;
    request->file_index = (uint32_t)step->operation->id + 1;
}

static void add_advice(Ring *ring, const Step *step, int advice) {
    if (advice == NONE) {
        return;
    }
    unsigned flags = IOSQE_FIXED_FILE | IOSQE_IO_HARDLINK | IOSQE_CQE_SKIP_SUCCESS;
    add_entry(ring, IORING_OP_FADVISE, flags, step->operation->id, step->slot, ASIDE)
        ->fadvise_advice = (uint32_t)advice;
}

// Fills the entry that reads or writes the buffer of the step's slot.
static void add_transfer(Loop *loop, const Step *step, unsigned flags, int kind) {
    Operation *operation = step->operation;
    const Job *job = loop->engine->job;
    bool is_write = operation->row->op == WRITE;
    bool is_file = operation->tier->kind == FILES;
    bool is_pinned = (step->slot + 1) * job->io_bytes <= loop->pinned_bytes;
    int opcode = is_write ? IORING_OP_WRITE : IORING_OP_READ;
    if (is_pinned) {
        opcode = is_write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED;
    }
    if (is_file) {
        flags |= IOSQE_FIXED_FILE;
    }
    struct io_uring_sqe *request = add_entry(
        &loop->ring, opcode, flags, is_file ? operation->id : operation->fd, step->slot, kind);
    request->off = (uint64_t)(operation->base + step->from_bytes);
    request->addr = (uintptr_t)engine_slot_buffer(loop->engine, step->slot);
    request->len = (uint32_t)step->bytes;
    if (is_write && operation->tier->write_streams && operation->row->stream >= 0) {
        ((uint8_t *)request)[WRITE_STREAM_AT] =
            (uint8_t)(1 + operation->row->stream % operation->tier->write_streams);
    }
}

// Fills the entries that end a file: fdatasync of a synced write, advice, and the close.
static void add_close(Ring *ring, const Step *step) {
    const Tier *tier = step->operation->tier;
    if (tier->is_synced && step->operation->row->op == WRITE && !step->operation->is_failed) {
        // With CQE_SKIP_SUCCESS the kernel would post no completion of a failed flush either.
        unsigned flags = IOSQE_FIXED_FILE | IOSQE_IO_HARDLINK;
        add_entry(ring, IORING_OP_FSYNC, flags, step->operation->id, step->slot, ASIDE)
            ->fsync_flags = IORING_FSYNC_DATASYNC;
    }
    add_advice(ring, step, tier->closing_advice);
    add_entry(ring, IORING_OP_CLOSE, 0, 0, step->slot, OVER)->file_index =
        (uint32_t)step->operation->id + 1;
}

// Fills the submission entries of a step: one, or a linked chain.
static void add_step(Loop *loop, const Step *step) {
    Ring *ring = &loop->ring;
    Operation *operation = step->operation;
    // A hard link runs the following entries even if this one fails, so that the file is closed.
    unsigned go_on = IOSQE_IO_HARDLINK | IOSQE_CQE_SKIP_SUCCESS;
    switch (step->act) {
    case ERASE:
        add_path_entry(ring, IORING_OP_UNLINKAT, 0, step, MOVED);
        break;
    case MOVE:
        add_transfer(loop, step, 0, MOVED);
        break;
    case OPEN:
        add_open(ring, step, 0, OPENED);
        break;
    case CLOSE:
        if (operation->tier->kind == FILES) {
            add_close(ring, step);
        } else {
            add_entry(ring, IORING_OP_FSYNC, 0, operation->fd, step->slot, MOVED)->fsync_flags =
                IORING_FSYNC_DATASYNC;
        }
        break;
    case WHOLE:
        add_open(ring, step, IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS, OVER);
        add_advice(ring, step, operation->tier->opened_advice);
        if (step->bytes) {
            add_transfer(loop, step, go_on, TOLD);
        }
        add_close(ring, step);
    }
}

// --- completions

// Handles one completion. Returns whether its step has ended.
static bool handle_completion(Loop *loop, const struct io_uring_cqe *completion) {
    int kind = (int)(completion->user_data & ((1 << KIND_BITS) - 1));
    if (kind == WOKEN) {
        eventfd_t count;
        eventfd_read(loop->ring.event_fd, &count);
        add_entry(&loop->ring, IORING_OP_POLL_ADD, 0, loop->ring.event_fd, 0, WOKEN)
            ->poll32_events = POLLIN;
        return false;
    }
    Step *step = &loop->step[completion->user_data >> KIND_BITS];
    Operation *operation = step->operation;
    switch (kind) {
    case OPENED:
        step->result = completion->res < 0 ? completion->res : 0;
        if (completion->res < 0) {
            return true;
        }
        add_advice(&loop->ring, step, operation->tier->opened_advice);
        if (operation->row->op != WRITE) {
            if (operation->tier->opened_advice == NONE) {
                return true;
            }
            add_entry(&loop->ring, IORING_OP_NOP, 0, -1, step->slot, GROWN);
            return false;
        }
        // Preallocate: the kernel runs writes beyond the end of a file one at a time.
        struct io_uring_sqe *request = add_entry(&loop->ring, IORING_OP_FALLOCATE, IOSQE_FIXED_FILE,
                                                 operation->id, step->slot, GROWN);
        request->off = (uint64_t)operation->from_bytes;
        request->addr = (uint64_t)(operation->to_bytes - operation->from_bytes);
        return false;
    case GROWN:
        step->result = completion->res < 0 && !operation_cannot_preallocate(-completion->res)
                           ? completion->res
                           : 0;
        return true;
    case TOLD: // The kernel posts it only if the transfer failed or was short.
        step->result = completion->res;
        return false;
    case ASIDE:
        if (completion->res < 0 && step->result >= 0) {
            step->result = completion->res;
        }
        return false;
    case OVER:
        if (completion->res < 0 && step->result >= 0) {
            step->result = completion->res;
        }
        return true;
    default:
        step->result = completion->res;
        return true;
    }
}

// Handles all completions that the kernel has posted, and completes the steps that have ended.
static void reap_completions(Loop *loop) {
    enum { AT_ONCE = 64 };
    Ring *ring = &loop->ring;
    Step *ended[AT_ONCE];
    unsigned head = *ring->cq_head;
    unsigned tail = __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE);
    while (head != tail) {
        int count = 0;
        int64_t now = engine_now_ns(loop->engine);
        for (; head != tail && count < AT_ONCE && free_entries(ring) >= LONGEST_CHAIN; head++) {
            struct io_uring_cqe completion = ring->cqe[head & ring->cq_mask];
            if (handle_completion(loop, &completion)) {
                ended[count++] = &loop->step[completion.user_data >> KIND_BITS];
            }
        }
        __atomic_store_n(ring->cq_head, head, __ATOMIC_RELEASE);
        for (int i = 0; i < count; i++) {
            Step *step = ended[i];
            step->ended_ns = now;
            if (loop->engine->job->is_checking && step->result > 0 &&
                step->operation->row->op == READ) {
                operation_verify_data(loop->engine, loop->use, step,
                                      engine_slot_buffer(loop->engine, step->slot), step->result);
            }
        }
        engine_lock(loop->engine);
        for (int i = 0; i < count; i++) {
            loop_complete_step(loop->engine, ended[i]);
        }
        engine_unlock(loop->engine);
        loop->out -= count;
        if (free_entries(ring) < LONGEST_CHAIN) {
            break;
        }
    }
}

// --- the loop

static int64_t count_voluntary_switches(void) {
    struct rusage used;
    getrusage(RUSAGE_THREAD, &used);
    return used.ru_nvcsw;
}

// Submits the filled entries and waits up to `wait_ns` for a completion. Returns 0 or an errno.
static int submit_and_wait(Loop *loop, int64_t wait_ns) {
    Ring *ring = &loop->ring;
    unsigned count = ring->tail - ring->submitted;
    int64_t started = monotonic_ns();
    int64_t now;
    for (int i = 0; i < loop->fresh_count; i++) {
        operation_mark_submitted(&loop->step[loop->fresh[i]],
                                 started - loop->engine->job->start_ns);
    }
    loop->fresh_count = 0;
    __atomic_store_n(ring->sq_tail, ring->tail, __ATOMIC_RELEASE);
    loop->use->doing = wait_ns ? WAITING : IN_ENTER;
    // Every so often, and more often after a slow one, submit without waiting, to measure whether
    // submission itself blocks.
    bool is_split = count && (!wait_ns || loop->splits_left || loop->enters++ % SPLIT_EACH == 0);
    if (is_split) {
        int64_t before = count_voluntary_switches();
        long done = call_io_uring_enter(ring->fd, count, 0, IORING_ENTER_GETEVENTS, NULL, 0);
        if (done >= 0) {
            ring->submitted += (unsigned)done;
        } else if (errno != EAGAIN && errno != EBUSY && errno != EINTR) {
            return errno;
        }
        now = monotonic_ns();
        loop->use->enter_ns += now - started;
        if (loop->splits_left) {
            loop->splits_left--;
        }
        // A voluntary switch says that the thread slept and was not only preempted.
        if (now - started > SLOW_NS && count_voluntary_switches() != before) {
            loop->use->blocked_ns += now - started;
            loop->splits_left = SPLIT_NEXT;
        }
        started = now;
        count = ring->tail - ring->submitted;
    }
    if (!wait_ns) {
        // With DEFER_TASKRUN completions arrive only while the thread is in the kernel.
        if (!is_split && loop->out) {
            call_io_uring_enter(ring->fd, 0, 0, IORING_ENTER_GETEVENTS, NULL, 0);
        }
        // Idle until the next due time; time before the start of the run does not count.
        if (!is_split) {
            loop->use->asleep_ns +=
                max_of(0, monotonic_ns() - max_of(started, loop->engine->job->start_ns));
        }
        return 0;
    }
    if (is_split && *ring->cq_head != __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE)) {
        return 0;
    }
    struct __kernel_timespec limit = {wait_ns / 1000000000, wait_ns % 1000000000};
    struct io_uring_getevents_arg argument = {.sigmask_sz = 8, .ts = (uintptr_t)&limit};
    long done =
        wait_ns == INT64_MAX
            ? call_io_uring_enter(ring->fd, count, 1, IORING_ENTER_GETEVENTS, NULL, 0)
            : call_io_uring_enter(ring->fd, count, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG,
                                  &argument, sizeof argument);
    if (done >= 0) {
        ring->submitted += (unsigned)done;
    } else if (errno != ETIME && errno != EINTR && errno != EAGAIN && errno != EBUSY) {
        return errno;
    }
    // The kernel may have taken entries although the wait failed: the head says how many.
    else {
        ring->submitted = __atomic_load_n(ring->sq_head, __ATOMIC_ACQUIRE);
    }
    loop->use->asleep_ns +=
        max_of(0, monotonic_ns() - max_of(started, loop->engine->job->start_ns));
    return 0;
}

// Takes steps and fills submission entries for them. Returns for how long nothing more will be due:
// 0 if there may be more now, INT64_MAX if a completion comes first.
static int64_t fill_submission_queue(Loop *loop) {
    Engine *engine = loop->engine;
    Step some[TOGETHER];
    int count = 0;
    int64_t next_ns = INT64_MAX;
    int64_t made = 0;
    bool has_more = true;
    bool has_rest = false;
    engine_lock(engine);
    int64_t now = engine_now_ns(engine);
    // Only one I/O of an operation a round: the block layer would merge adjacent I/Os that are
    // submitted together.
    while (count < TOGETHER && made < MADE_BYTES && !has_rest &&
           free_entries(&loop->ring) >= (unsigned)(LONGEST_CHAIN * (count + 1))) {
        if (!loop_take_step(engine, loop->queue, now, &some[count], &next_ns)) {
            has_more = false;
            break;
        }
        const Operation *operation = some[count].operation;
        has_rest = some[count].act == MOVE && operation->next_io < operation->ios;
        bool is_made = operation->row->op == WRITE && !some[count].is_prepared;
        made += is_made ? some[count].bytes : 0;
        count++;
    }
    // Set before the lock is released, so that whoever makes a row ready from now on wakes the
    // ring.
    if (!has_more && next_ns > now + SPIN_NS) {
        atomic_store(&engine->queue[loop->queue].is_asleep, 1);
    }
    engine_unlock(engine);
    for (int i = 0; i < count; i++) {
        Step *step = &loop->step[some[i].slot];
        *step = some[i];
        // Transfers of a chain that succeed post no completion, so success is assumed; a completion
        // of one that failed overwrites it.
        step->result = step->bytes;
        if (step->operation->row->op == WRITE && step->bytes) {
            operation_generate_data(engine, loop->use, step);
        }
        if (engine->job->depth == 1 && step->operation->tier->kind == FILES) {
            // At a queue depth of 1 nothing else can overlap, and a kernel worker that opens the
            // file would cost two context switches.
            thread_perform_step(engine, loop->use, step);
            engine_lock(engine);
            loop_complete_step(engine, step);
            engine_unlock(engine);
            return 0;
        }
        add_step(loop, step);
        loop->fresh[loop->fresh_count++] = step->slot;
        loop->out++;
    }
    if (has_more) {
        return 0;
    }
    // A completion will come, so no timeout is needed: setting one costs microseconds in a virtual
    // machine.
    if (next_ns == INT64_MAX && loop->out) {
        return INT64_MAX;
    }
    int64_t rest = next_ns == INT64_MAX ? LONGEST_SLEEP_NS : next_ns - SPIN_NS - now;
    return rest < 0 ? 0 : rest < LONGEST_SLEEP_NS ? rest : LONGEST_SLEEP_NS;
}

// Returns whether the thread may generate data of later writes. While an I/O is in flight it must
// not: its completion would be seen late, and its latency would be overstated.
static bool may_prepare(const Loop *loop) {
    const Job *job = loop->engine->job;
    return job->is_open_loop && !loop->out && !job->data->copies_below;
}

// Carries out all steps of a queue until the job is over. Returns 0, an errno, or as open_ring.
EXPORT int ring_run(Engine *engine, int queue) {
    Job *job = engine->job;
    Loop own = {.engine = engine, .queue = queue, .use = &job->use[queue]};
    Loop *loop = &own;
    unsigned entries = 64;
    while (entries < 4 * job->depth) {
        entries *= 2;
    }
    int code = open_ring(&loop->ring, entries < MOST_ENTRIES ? entries : MOST_ENTRIES,
                         (unsigned)job->depth);
    if (code) {
        return code;
    }
    loop->ring.event_fd = engine->queue[queue].event_fd;
    loop->step = memory_zeros(job->depth, sizeof(Step));
    struct iovec memory = {job->buffers, (size_t)job->registered_bytes};
    if (job->registered_bytes &&
        !register_with_ring(&loop->ring, IORING_REGISTER_BUFFERS, &memory, 1)) {
        loop->pinned_bytes = job->registered_bytes;
    }
    unsigned workers[2] = {(unsigned)(job->depth > 4 ? job->depth : 4),
                           (unsigned)(job->depth > 4 ? job->depth : 4)};
    register_with_ring(&loop->ring, IORING_REGISTER_IOWQ_MAX_WORKERS, workers, 2);
    if (!queue) {
        job->is_deferred = loop->ring.is_deferred;
    }
    add_entry(&loop->ring, IORING_OP_POLL_ADD, 0, loop->ring.event_fd, 0, WOKEN)->poll32_events =
        POLLIN;
    thread_begin(engine, loop->use);
    while (!engine_is_over(engine) || loop->out || engine->queue[queue].closing) {
        int64_t rest = fill_submission_queue(loop);
        if (engine_is_over(engine) && !loop->out) {
            break;
        }
        if (rest && may_prepare(loop) &&
            prepare_next_io(engine, queue, loop->use, engine_now_ns(engine),
                            engine_now_ns(engine) + rest)) {
            atomic_store_explicit(&engine->queue[queue].is_asleep, 0, memory_order_relaxed);
            continue;
        }
        if ((code = submit_and_wait(loop, rest))) {
            break;
        }
        atomic_store_explicit(&engine->queue[queue].is_asleep, 0, memory_order_relaxed);
        reap_completions(loop);
    }
    thread_end(engine, loop->use);
    close_ring(&loop->ring);
    free(loop->step);
    return code;
}
