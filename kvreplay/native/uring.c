// A loop that moves bytes by an io_uring: three system calls and the rings that the kernel shares;
// no liburing.
//
// One thread makes the ring, and does nothing else: it takes steps, makes the data of writes, puts
// requests, enters the kernel, and reaps. A whole operation on a file of its own is one chain of
// requests: open, move, close.
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
enum {
    MOVED,
    OPENED,
    GROWN,
    TOLD,
    ASIDE,
    OVER,
    WOKEN
}; // what a completion tells: the low bits of its user data
enum { WRITE_STREAM_AT = 44 }; // in a request, since Linux 6.16
enum { SLOW_NS = 50000, SPLIT_EACH = 32, SPLIT_NEXT = 256 };

typedef struct {
    int fd, event_fd;
    struct io_uring_sqe *sqe;
    struct io_uring_cqe *cqe;
    unsigned *sq_head, *sq_tail, *cq_head, *cq_tail;
    unsigned sq_mask, cq_mask, tail, submitted;
    char *names; // room for a path a request
    void *rings, *requests;
    size_t rings_bytes, requests_bytes;
    bool is_deferred;
} Ring;

typedef struct {
    Engine *e;
    Ring ring;
    Use *use;
    Step *step; // by place: what is in flight
    int queue, out;
    int64_t pinned_bytes; // of the buffers, from the first on
    int32_t fresh[TOGETHER], fresh_count;
    int64_t enters, splits_left;
} Loop;

static long enter_ring(int fd, unsigned count, unsigned wait, unsigned flags, const void *argument,
                       size_t bytes) {
    return syscall(__NR_io_uring_enter, fd, count, wait, flags, argument, bytes);
}

static int register_with(const Ring *r, unsigned what, const void *argument, unsigned count) {
    return syscall(__NR_io_uring_register, r->fd, what, argument, count) < 0 ? errno : 0;
}

static void
close_ring(Ring *r) { // its files now: the kernel frees a ring later, and umount would be refused
    if (r->rings) {
        munmap(r->rings, r->rings_bytes);
    }
    if (r->requests) {
        munmap(r->requests, r->requests_bytes);
    }
    free(r->names);
    if (r->fd >= 0) {
        register_with(r, IORING_UNREGISTER_FILES, NULL, 0), close(r->fd);
    }
    r->fd = -1;
}

enum { TOO_OLD = -1, NO_FILES = -2 };

// Make a ring with places for `files` open files; 0, an errno, or why the kernel cannot do it.
static int open_ring(Ring *r, unsigned entries, unsigned files) {
    static const unsigned wanted[] = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                      IORING_SETUP_COOP_TASKRUN, 0};
    struct io_uring_params p;
    *r = (Ring){.fd = -1};
    for (unsigned i = 0; i < 3 && r->fd < 0; i++) {
        p = (struct io_uring_params){.flags = wanted[i] | IORING_SETUP_CLAMP};
        r->fd = (int)syscall(__NR_io_uring_setup, entries, &p);
        if (r->fd < 0 && errno != EINVAL) {
            return errno;
        }
        r->is_deferred = i == 0;
    }
    if (r->fd < 0) {
        return errno;
    }
    fcntl(r->fd, F_SETFD, FD_CLOEXEC);
    unsigned needed = IORING_FEAT_SINGLE_MMAP | IORING_FEAT_EXT_ARG | IORING_FEAT_CQE_SKIP;
    if ((p.features & needed) != needed) {
        return close_ring(r), TOO_OLD;
    }
    size_t sq = p.sq_off.array + p.sq_entries * sizeof(unsigned),
           cq = p.cq_off.cqes + p.cq_entries * sizeof(*r->cqe);
    r->rings_bytes = sq > cq ? sq : cq, r->requests_bytes = p.sq_entries * sizeof(*r->sqe);
    int how = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    char *rings = r->rings = mmap(NULL, r->rings_bytes, how, flags, r->fd, IORING_OFF_SQ_RING);
    r->requests = mmap(NULL, r->requests_bytes, how, flags, r->fd, IORING_OFF_SQES);
    if (r->rings == MAP_FAILED || r->requests == MAP_FAILED) {
        int code = errno;
        r->rings = r->rings == MAP_FAILED ? NULL : r->rings;
        r->requests = r->requests == MAP_FAILED ? NULL : r->requests;
        return close_ring(r), code;
    }
    r->sqe = r->requests, r->cqe = (struct io_uring_cqe *)(rings + p.cq_off.cqes);
    r->sq_head = (unsigned *)(rings + p.sq_off.head),
    r->sq_tail = (unsigned *)(rings + p.sq_off.tail);
    r->cq_head = (unsigned *)(rings + p.cq_off.head),
    r->cq_tail = (unsigned *)(rings + p.cq_off.tail);
    r->sq_mask = p.sq_entries - 1, r->cq_mask = p.cq_entries - 1;
    for (unsigned i = 0; i < p.sq_entries; i++) {
        ((unsigned *)(rings + p.sq_off.array))[i] = i;
    }
    r->names = grown(NULL, p.sq_entries, NAME_BYTES);
    struct io_uring_rsrc_register table = {.nr = files, .flags = IORING_RSRC_REGISTER_SPARSE};
    int code = register_with(r, IORING_REGISTER_FILES2, &table, sizeof table);
    if (code) {
        return close_ring(r), code == EMFILE ? code : NO_FILES;
    }
    return 0;
}

EXPORT int ring_refusal(void) { // 0: the kernel gives rings to this process; else as open_ring
    Ring r;
    int code = open_ring(&r, 8, 1);
    if (!code) {
        close_ring(&r);
    }
    return code;
}

EXPORT int ring_pins(void *buffers,
                     int64_t bytes) { // 0, or why the kernel pins no so many bytes: an errno
    Ring r;
    int code = open_ring(&r, 8, 1);
    if (code) {
        return 0;
    }
    struct iovec place = {buffers, (size_t)bytes};
    code = register_with(&r, IORING_REGISTER_BUFFERS, &place, 1);
    close_ring(&r);
    return code;
}

// --- requests
// -------------------------------------------------------------------------------------------------------

static unsigned room_of(const Ring *r) {
    return r->sq_mask + 1 - (r->tail - r->submitted);
}

static struct io_uring_sqe *put(Ring *r, int opcode, unsigned flags, int fd, int32_t place,
                                int kind) {
    struct io_uring_sqe *q = &r->sqe[r->tail++ & r->sq_mask];
    memset(q, 0, sizeof *q);
    q->opcode = (uint8_t)opcode;
    q->flags = (uint8_t)flags;
    q->fd = fd;
    q->user_data = (uint64_t)place << KIND_BITS | (unsigned)kind;
    return q;
}

static struct io_uring_sqe *put_name(Ring *r, int opcode, unsigned flags, const Step *s, int kind) {
    char *name = r->names + (size_t)(r->tail & r->sq_mask) * NAME_BYTES;
    int32_t directory = write_name(s->operation->tier, s->operation->row->object_id, name);
    struct io_uring_sqe *q = put(r, opcode, flags, directory, s->place, kind);
    q->addr = (uintptr_t)name;
    return q;
}

static void put_open(Ring *r, const Step *s, unsigned flags, int kind) {
    const Tier *t = s->operation->tier;
    struct io_uring_sqe *q = put_name(r, IORING_OP_OPENAT, flags, s, kind);
    q->len = MODE;
    q->open_flags = (uint32_t)(s->operation->row->op == WRITE ? t->write_flags : t->read_flags) &
                    ~(uint32_t)O_CLOEXEC;
    q->file_index = (uint32_t)s->operation->id + 1;
}

static void put_advice(Ring *r, const Step *s, int advice) {
    if (advice == NONE) {
        return;
    }
    unsigned flags = IOSQE_FIXED_FILE | IOSQE_IO_HARDLINK | IOSQE_CQE_SKIP_SUCCESS;
    put(r, IORING_OP_FADVISE, flags, s->operation->id, s->place, ASIDE)->fadvise_advice =
        (uint32_t)advice;
}

static void put_move(Loop *l, const Step *s, unsigned flags, int kind) {
    Operation *f = s->operation;
    const Job *j = l->e->job;
    bool is_write = f->row->op == WRITE, is_file = f->tier->kind == FILES;
    bool is_pinned = (s->place + 1) * j->io_bytes <= l->pinned_bytes;
    int opcode = is_write ? IORING_OP_WRITE : IORING_OP_READ;
    if (is_pinned) {
        opcode = is_write ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED;
    }
    if (is_file) {
        flags |= IOSQE_FIXED_FILE;
    }
    struct io_uring_sqe *q = put(&l->ring, opcode, flags, is_file ? f->id : f->fd, s->place, kind);
    q->off = (uint64_t)(f->base + s->from_bytes);
    q->addr = (uintptr_t)buffer_of(l->e, s->place);
    q->len = (uint32_t)s->bytes;
    if (is_write && f->tier->write_streams && f->row->stream >= 0) {
        ((uint8_t *)q)[WRITE_STREAM_AT] = (uint8_t)(1 + f->row->stream % f->tier->write_streams);
    }
}

static void put_close(Ring *r, const Step *s) {
    const Tier *t = s->operation->tier;
    if (t->is_synced && s->operation->row->op == WRITE && !s->operation->is_failed) {
        // Of one that fails the kernel posts no completion if it is to skip that of success.
        unsigned flags = IOSQE_FIXED_FILE | IOSQE_IO_HARDLINK;
        put(r, IORING_OP_FSYNC, flags, s->operation->id, s->place, ASIDE)->fsync_flags =
            IORING_FSYNC_DATASYNC;
    }
    put_advice(r, s, t->closing_advice);
    put(r, IORING_OP_CLOSE, 0, 0, s->place, OVER)->file_index = (uint32_t)s->operation->id + 1;
}

static void put_step(Loop *l, const Step *s) {
    Ring *r = &l->ring;
    Operation *f = s->operation;
    unsigned go_on = IOSQE_IO_HARDLINK | IOSQE_CQE_SKIP_SUCCESS; // what follows is done in any case
    switch (s->act) {
    case ERASE:
        put_name(r, IORING_OP_UNLINKAT, 0, s, MOVED);
        break;
    case MOVE:
        put_move(l, s, 0, MOVED);
        break;
    case OPEN:
        put_open(r, s, 0, OPENED);
        break;
    case CLOSE:
        if (f->tier->kind == FILES) {
            put_close(r, s);
        } else {
            put(r, IORING_OP_FSYNC, 0, f->fd, s->place, MOVED)->fsync_flags = IORING_FSYNC_DATASYNC;
        }
        break;
    case WHOLE:
        put_open(r, s, IOSQE_IO_LINK | IOSQE_CQE_SKIP_SUCCESS, OVER);
        put_advice(r, s, f->tier->opened_advice);
        if (s->bytes) {
            put_move(l, s, go_on, TOLD);
        }
        put_close(r, s);
    }
}

// --- completions
// ----------------------------------------------------------------------------------------------------

// Take one completion; whether its step has ended.
static bool complete(Loop *l, const struct io_uring_cqe *c) {
    int kind = (int)(c->user_data & ((1 << KIND_BITS) - 1));
    if (kind == WOKEN) {
        eventfd_t count;
        eventfd_read(l->ring.event_fd, &count);
        put(&l->ring, IORING_OP_POLL_ADD, 0, l->ring.event_fd, 0, WOKEN)->poll32_events = POLLIN;
        return false;
    }
    Step *s = &l->step[c->user_data >> KIND_BITS];
    Operation *f = s->operation;
    switch (kind) {
    case OPENED:
        s->result = c->res < 0 ? c->res : 0;
        if (c->res < 0) {
            return true;
        }
        put_advice(&l->ring, s, f->tier->opened_advice);
        if (f->row->op != WRITE) {
            if (f->tier->opened_advice == NONE) {
                return true;
            }
            put(&l->ring, IORING_OP_NOP, 0, -1, s->place, GROWN);
            return false;
        }
        // Writes beyond a file's end go one by one; within what is allocated they run together.
        struct io_uring_sqe *q =
            put(&l->ring, IORING_OP_FALLOCATE, IOSQE_FIXED_FILE, f->id, s->place, GROWN);
        q->off = (uint64_t)f->from_bytes;
        q->addr = (uint64_t)(f->to_bytes - f->from_bytes);
        return false;
    case GROWN:
        s->result = c->res < 0 && !can_not_grow(-c->res) ? c->res : 0;
        return true;
    case TOLD: // of a chain's move, that it failed or was short
        s->result = c->res;
        return false;
    case ASIDE:
        if (c->res < 0 && s->result >= 0) {
            s->result = c->res;
        }
        return false;
    case OVER:
        if (c->res < 0 && s->result >= 0) {
            s->result = c->res;
        }
        return true;
    default:
        s->result = c->res;
        return true;
    }
}

static void reap(Loop *l) {
    enum { AT_ONCE = 64 };
    Ring *r = &l->ring;
    Step *ended[AT_ONCE];
    unsigned head = *r->cq_head, tail = __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE);
    while (head != tail) {
        int count = 0;
        int64_t now = run_ns(l->e);
        for (; head != tail && count < AT_ONCE && room_of(r) >= LONGEST_CHAIN; head++) {
            struct io_uring_cqe c = r->cqe[head & r->cq_mask];
            if (complete(l, &c)) {
                ended[count++] = &l->step[c.user_data >> KIND_BITS];
            }
        }
        __atomic_store_n(r->cq_head, head, __ATOMIC_RELEASE);
        for (int i = 0; i < count; i++) {
            Step *s = ended[i];
            s->ended_ns = now;
            if (l->e->job->is_checking && s->result > 0 && s->operation->row->op == READ) {
                check_data(l->e, l->use, s, buffer_of(l->e, s->place), s->result);
            }
        }
        lock(l->e);
        for (int i = 0; i < count; i++) {
            end_step(l->e, ended[i]);
        }
        unlock(l->e);
        l->out -= count;
        if (room_of(r) < LONGEST_CHAIN) {
            break;
        }
    }
}

// --- the loop
// -------------------------------------------------------------------------------------------------------

static int64_t switches(void) {
    struct rusage used;
    getrusage(RUSAGE_THREAD, &used);
    return used.ru_nvcsw;
}

// Submit what was put, and wait for a completion for so long, if at all; 0, or an errno.
static int enter(Loop *l, int64_t wait_ns) {
    Ring *r = &l->ring;
    unsigned count = r->tail - r->submitted;
    int64_t started = now_ns(), now;
    for (int i = 0; i < l->fresh_count; i++) {
        stamp(&l->step[l->fresh[i]], started - l->e->job->start_ns);
    }
    l->fresh_count = 0;
    __atomic_store_n(r->sq_tail, r->tail, __ATOMIC_RELEASE);
    l->use->doing = wait_ns ? WAITING : IN_ENTER;
    // Now and then, and often where it was slow, submission goes by itself: so it is known whether
    // that blocks.
    bool is_split = count && (!wait_ns || l->splits_left || l->enters++ % SPLIT_EACH == 0);
    if (is_split) {
        int64_t before = switches();
        long done = enter_ring(r->fd, count, 0, IORING_ENTER_GETEVENTS, NULL, 0);
        if (done >= 0) {
            r->submitted += (unsigned)done;
        } else if (errno != EAGAIN && errno != EBUSY && errno != EINTR) {
            return errno;
        }
        now = now_ns();
        l->use->enter_ns += now - started;
        if (l->splits_left) {
            l->splits_left--;
        }
        // Not by who took the processor: it slept.
        if (now - started > SLOW_NS && switches() != before) {
            l->use->blocked_ns += now - started;
            l->splits_left = SPLIT_NEXT;
        }
        started = now;
        count = r->tail - r->submitted;
    }
    if (!wait_ns) { // completions come to a ring only while its thread is in the kernel
        if (!is_split && l->out) {
            enter_ring(r->fd, 0, 0, IORING_ENTER_GETEVENTS, NULL, 0);
        }
        // Until what is due in a moment; before the run's start nothing is.
        if (!is_split) {
            l->use->asleep_ns += max_of(0, now_ns() - max_of(started, l->e->job->start_ns));
        }
        return 0;
    }
    if (is_split && *r->cq_head != __atomic_load_n(r->cq_tail, __ATOMIC_ACQUIRE)) {
        return 0;
    }
    struct __kernel_timespec limit = {wait_ns / 1000000000, wait_ns % 1000000000};
    struct io_uring_getevents_arg argument = {.sigmask_sz = 8, .ts = (uintptr_t)&limit};
    long done = wait_ns == INT64_MAX
                    ? enter_ring(r->fd, count, 1, IORING_ENTER_GETEVENTS, NULL, 0)
                    : enter_ring(r->fd, count, 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG,
                                 &argument, sizeof argument);
    if (done >= 0) {
        r->submitted += (unsigned)done;
    } else if (errno != ETIME && errno != EINTR && errno != EAGAIN && errno != EBUSY) {
        return errno;
    }
    // With an error of the wait the kernel may have taken requests: it says so by the head.
    else {
        r->submitted = __atomic_load_n(r->sq_head, __ATOMIC_ACQUIRE);
    }
    l->use->asleep_ns += max_of(0, now_ns() - max_of(started, l->e->job->start_ns));
    return 0;
}

// Take steps and put them; how long nothing more will be due: 0 if something may be there now,
// INT64_MAX for no limit.
static int64_t take(Loop *l) {
    Engine *e = l->e;
    Step some[TOGETHER];
    int count = 0;
    int64_t next_ns = INT64_MAX, made = 0;
    bool has_more = true, has_rest = false;
    lock(e);
    int64_t now = run_ns(e);
    // Parts of one operation lie side by side: submitted together, the block layer would merge
    // them.
    while (count < TOGETHER && made < MADE_BYTES && !has_rest &&
           room_of(&l->ring) >= (unsigned)(LONGEST_CHAIN * (count + 1))) {
        if (!take_step(e, l->queue, now, &some[count], &next_ns)) {
            has_more = false;
            break;
        }
        const Operation *f = some[count].operation;
        has_rest = some[count].act == MOVE && f->next_io < f->ios;
        made += f->row->op == WRITE ? some[count].bytes : 0;
        count++;
    }
    // Before the lock is free: whoever brings something from now on wakes us.
    if (!has_more && next_ns > now + SPIN_NS) {
        atomic_store(&e->queue[l->queue].is_asleep, 1);
    }
    unlock(e);
    for (int i = 0; i < count; i++) {
        Step *s = &l->step[some[i].place];
        *s = some[i];
        s->result = s->bytes;
        if (s->operation->row->op == WRITE && s->bytes) {
            make_data(e, l->use, s);
        }
        if (e->job->depth == 1 && s->operation->tier->kind == FILES) {
            // With one in flight there is nothing to do beside it, and a kernel's thread that opens
            // it is two switches more.
            perform(e, l->use, s);
            lock(e);
            end_step(e, s);
            unlock(e);
            return 0;
        }
        put_step(l, s);
        l->fresh[l->fresh_count++] = s->place;
        l->out++;
    }
    if (has_more) {
        return 0;
    }
    // A completion will come: no limit, for to set the clock's next interrupt takes a virtual
    // machine microseconds.
    if (next_ns == INT64_MAX && l->out) {
        return INT64_MAX;
    }
    int64_t rest = next_ns == INT64_MAX ? LONGEST_SLEEP_NS : next_ns - SPIN_NS - now;
    return rest < 0 ? 0 : rest < LONGEST_SLEEP_NS ? rest : LONGEST_SLEEP_NS;
}

// Do all steps of a queue until the job is over; 0, or why the ring failed: an errno, or as
// open_ring.
EXPORT int ring_run(Engine *e, int queue) {
    Job *j = e->job;
    Loop loop = {.e = e, .queue = queue, .use = &j->use[queue]}, *l = &loop;
    unsigned entries = 64;
    while (entries < 4 * j->depth) {
        entries *= 2;
    }
    int code =
        open_ring(&l->ring, entries < MOST_ENTRIES ? entries : MOST_ENTRIES, (unsigned)j->depth);
    if (code) {
        return code;
    }
    l->ring.event_fd = e->queue[queue].event_fd;
    l->step = zeros(j->depth, sizeof(Step));
    struct iovec place = {j->buffers, (size_t)j->registered_bytes};
    if (j->registered_bytes && !register_with(&l->ring, IORING_REGISTER_BUFFERS, &place, 1)) {
        l->pinned_bytes = j->registered_bytes;
    }
    unsigned workers[2] = {(unsigned)(j->depth > 4 ? j->depth : 4),
                           (unsigned)(j->depth > 4 ? j->depth : 4)};
    register_with(&l->ring, IORING_REGISTER_IOWQ_MAX_WORKERS, workers, 2);
    if (!queue) {
        j->is_deferred = l->ring.is_deferred;
    }
    put(&l->ring, IORING_OP_POLL_ADD, 0, l->ring.event_fd, 0, WOKEN)->poll32_events = POLLIN;
    use_begin(e, l->use);
    while (!is_over(e) || l->out || e->queue[queue].closing) {
        int64_t rest = take(l);
        if (is_over(e) && !l->out) {
            break;
        }
        if ((code = enter(l, rest))) {
            break;
        }
        atomic_store_explicit(&e->queue[queue].is_asleep, 0, memory_order_relaxed);
        reap(l);
    }
    use_end(e, l->use);
    close_ring(&l->ring);
    free(l->step);
    return code;
}
