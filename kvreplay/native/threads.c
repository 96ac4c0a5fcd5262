// Loops that do one step at a time by plain calls: those of `--engine threads`, copies to and from
// memory, tiers that are models, and tiers that are Python's, whose steps go out as tasks. And the
// engine's beginning and end.
#include "replay.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
enum { MODE = 0600, TOUCHED_AT_ONCE = 2 << 20 };

// --- what a thread uses
// ---------------------------------------------------------------------------------------------

static int64_t waited_ns(void) { // for a processor, since the thread began
    char name[64], text[96] = "";
    long long run, waited;
    snprintf(name, sizeof name, "/proc/self/task/%ld/schedstat", syscall(SYS_gettid));
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return NONE;
    }
    ssize_t came = read(fd, text, sizeof text - 1);
    close(fd);
    return came > 0 && sscanf(text, "%lld %lld", &run, &waited) == 2 ? waited : NONE;
}

static void note_usage(Use *use, int sign) {
    struct rusage r;
    getrusage(RUSAGE_THREAD, &r);
    use->user_ns += sign * (r.ru_utime.tv_sec * 1000000000 + r.ru_utime.tv_usec * 1000);
    use->system_ns += sign * (r.ru_stime.tv_sec * 1000000000 + r.ru_stime.tv_usec * 1000);
    use->minor_faults += sign * r.ru_minflt;
}

// Wait until the job starts, asleep: hundreds of threads that look at the clock would leave no
// processor to the one that starts them.
EXPORT void use_begin(Engine *e, Use *use) {
    prctl(PR_SET_TIMERSLACK, 1);
    use->waited_ns = waited_ns();
    use->doing = WAITING;
    lock(e);
    while (!e->job->start_ns && !e->job->is_stopped) {
        pthread_cond_wait(&e->queue[e->workers_queue].woken, &e->order.lock);
    }
    unlock(e);
    note_usage(use, -1);
}

EXPORT void use_end(Engine *e, Use *use) {
    use->ended_ns = run_ns(e);
    int64_t waited = waited_ns();
    use->waited_ns = waited == NONE || use->waited_ns == NONE ? NONE : waited - use->waited_ns;
    note_usage(use, 1);
    use->cpu = sched_getcpu();
    use->doing = ENDED;
}

// --- steps by plain calls
// -------------------------------------------------------------------------------------------

static int64_t move_all(int fd, uint8_t *data, int64_t bytes, int64_t at,
                        bool is_write) { // `at` NONE: from where it is
    int64_t done = 0;
    while (done < bytes) {
        size_t rest = (size_t)(bytes - done);
        ssize_t moved =
            at == NONE ? (is_write ? write(fd, data + done, rest) : read(fd, data + done, rest))
            : is_write ? pwrite(fd, data + done, rest, at + done)
                       : pread(fd, data + done, rest, at + done);
        if (moved < 0 && errno == EINTR) {
            continue;
        }
        if (moved < 0) {
            return -errno;
        }
        done += moved;
        // What ends within a block has come to the end of the file.
        if (moved == 0 || (!is_write && done % SECTOR_BYTES)) {
            break;
        }
    }
    return done;
}

static int64_t open_named(const Step *s, int directory, const char *name, int how) {
    const Tier *t = s->operation->tier;
    const Row *r = s->operation->row;
    int fd;
    do {
        fd = openat(directory, name,
                    how | (r->op == WRITE ? t->write_flags : t->read_flags) | O_CLOEXEC, MODE);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        return -errno;
    }
    if (t->opened_advice != NONE) {
        posix_fadvise(fd, 0, 0, t->opened_advice);
    }
    // The lifetime that stands for its stream; the first is RWH_WRITE_LIFE_SHORT.
    uint64_t hint = t->hints && r->stream >= 0 ? 2 + (uint64_t)(r->stream % t->hints) : 0;
    if (r->op != WRITE || !hint || fcntl(fd, F_SET_RW_HINT, &hint) >= 0) {
        return fd;
    }
    int64_t error = -errno;
    close(fd);
    return error;
}

static int64_t open_file(const Step *s) {
    char name[NAME_BYTES];
    int directory = write_name(s->operation->tier, s->operation->row->object_id, name);
    return open_named(s, directory, name, 0);
}

static int64_t close_file(const Step *s, int fd, int64_t result) {
    const Tier *t = s->operation->tier;
    if (t->is_synced && s->operation->row->op == WRITE && result >= 0 && fdatasync(fd) < 0) {
        result = -errno;
    }
    if (t->closing_advice != NONE) {
        posix_fadvise(fd, 0, 0, t->closing_advice);
    }
    if (close(fd) < 0 && result >= 0) {
        result = -errno;
    }
    return result;
}

static void make_parents(int directory, char *name) { // of a file below `directory`
    char *end = strrchr(name, '/');
    if (!end) {
        return;
    }
    *end = 0;
    if (mkdirat(directory, name, 0777) < 0 && errno == ENOENT) {
        make_parents(directory, name);
        mkdirat(directory, name, 0777);
    }
    *end = '/';
}

// As vLLM's file tier writes: to a new file, which takes its name when all is written. One that
// holds more than that is written in place: vLLM would leave it as it is.
static int64_t write_renamed(const Step *s, uint8_t *data) {
    char name[NAME_BYTES], other[NAME_BYTES + 32];
    int directory = write_name(s->operation->tier, s->operation->row->object_id, name);
    struct stat there = {0};
    bool is_new = !s->from_bytes;
    if (is_new && !faccessat(directory, name, F_OK, 0) && !fstatat(directory, name, &there, 0)) {
        is_new = there.st_size <= s->bytes;
    }
    make_parents(directory, name);
    snprintf(other, sizeof other, "%s_%ld.tmp", name, syscall(SYS_gettid));
    int64_t fd = open_named(s, directory, is_new ? other : name, is_new ? O_EXCL | O_TRUNC : 0);
    if (fd < 0) {
        return fd;
    }
    int64_t result = close_file(
        s, (int)fd, move_all((int)fd, data, s->bytes, is_new ? NONE : s->from_bytes, true));
    if (!is_new) {
        return result;
    }
    if (result == s->bytes && renameat(directory, other, directory, name) < 0) {
        result = -errno;
    }
    if (result != s->bytes) {
        unlinkat(directory, other, 0);
    }
    return result;
}

static int64_t discard(const Step *s) {
    Operation *f = s->operation;
    int64_t bytes, start = space_find(f->drive->space, f->row->object_id, &bytes);
    if (start < 0) {
        return start;
    }
    uint64_t range[2] = {(uint64_t)start, (uint64_t)bytes};
    if (ioctl(f->drive->fd, BLKDISCARD, range) < 0) {
        return -errno;
    }
    return space_release(f->drive->space, f->row->object_id); // only now may it be handed out again
}

static int64_t do_file(Engine *e, const Step *s) {
    Operation *f = s->operation;
    uint8_t *data = buffer_of(e, s->place);
    bool is_write = f->row->op == WRITE;
    int64_t result;
    switch (s->act) {
    case ERASE: {
        char name[NAME_BYTES];
        int directory = write_name(f->tier, f->row->object_id, name);
        return unlinkat(directory, name, 0) < 0 ? -errno : 0;
    }
    case OPEN:
        if ((result = open_file(s)) < 0) {
            return result;
        }
        f->fd = (int32_t)result;
        if (is_write && fallocate(f->fd, 0, f->from_bytes, f->to_bytes - f->from_bytes) < 0 &&
            !can_not_grow(errno)) {
            return close_file(s, f->fd, -errno);
        }
        return 0;
    case WHOLE:
        if (is_write && f->tier->is_renamed) {
            return write_renamed(s, data);
        }
        if ((result = open_file(s)) < 0) {
            return result;
        }
        return close_file(
            s, (int)result,
            move_all((int)result, data, s->bytes, s->from_bytes ? s->from_bytes : NONE, is_write));
    case CLOSE:
        result = close_file(s, f->fd, f->is_failed ? -EIO : 0);
        f->fd = NONE;
        return f->is_failed ? 0 : result; // what failed before has been told
    default:
        return move_all(f->fd, data, s->bytes, s->from_bytes, is_write);
    }
}

// A model's server in each direction: what comes later waits; then the latency.
static int64_t serve_model(Engine *e, const Step *s, int64_t now) {
    const Tier *t = s->operation->tier;
    Row *r = s->operation->row;
    int64_t rate = r->op == WRITE ? t->write_bytes_per_s : t->read_bytes_per_s;
    int64_t *busy = &e->model_busy_ns[r->tier][r->op == WRITE];
    *busy = min_of(max_of(*busy, now) + max_of(transfer_ns(r->length_bytes, rate), t->occupied_ns),
                   INT64_MAX >> 1);
    return *busy + t->latency_ns;
}

// Where `x` lies on an axis: the point before it, and what part of the way to the next.
static int64_t place_on(const double *axis, int64_t count, double x, double *part) {
    int64_t at = 0;
    while (at < count - 2 && axis[at + 1] <= x) {
        at++;
    }
    *part = count < 2 ? 0 : fmin(1, fmax(0, (x - axis[at]) / (axis[at + 1] - axis[at])));
    return at;
}

// Find the slots of an I/O between the cells around it. Beyond the largest it keeps their
// bandwidth: latencies grow.
EXPORT void matrix_at(const Matrix *m, int64_t op, double share, double bytes, double in_flight,
                      double *slot) {
    const double *axis[] = {m->share, m->size, m->depth},
                 at[] = {share, log(fmax(bytes, 1)), log(in_flight)};
    const int64_t count[] = {m->shares, m->sizes, m->depths}, slots = m->parts + BESIDE_PARTS;
    double part[3];
    int64_t before[3];
    for (int i = 0; i < 3; i++) {
        before[i] = place_on(axis[i], count[i], at[i], &part[i]);
    }
    double longer = fmax(0, at[1] - m->size[m->sizes - 1]),
           deeper = fmax(0, at[2] - m->depth[m->depths - 1]);
    for (int64_t s = 0; s < slots; s++) {
        slot[s] = s == m->parts + HELD ? 0 : s == m->parts + WORK ? longer : longer + deeper;
    }
    for (int corner = 0; corner < 8; corner++) {
        double weight = 1;
        int64_t cell = op;
        for (int i = 0; i < 3; i++) {
            int is_next = corner >> i & 1;
            weight *= is_next ? part[i] : 1 - part[i];
            cell = cell * count[i] + before[i] + is_next;
        }
        if (weight > 0) {
            for (int64_t s = 0; s < slots; s++) {
                slot[s] += weight * m->cell[cell * slots + s];
            }
        }
    }
}

// A measured drive: an I/O takes one of the times of the cell that it finds itself in. What is in
// flight counts by the work that it is, in I/Os like this one; the mix is that of the last I/Os.
// Returns when its place of the queue is free.
static int64_t serve_measured(Engine *e, Step *s, int64_t now) {
    enum { RECENT = 128, MOST_SLOTS = 32 };
    const Matrix *m = s->operation->tier->matrix;
    const Row *r = s->operation->row;
    Load *l = &e->load[r->tier];
    double slot[MOST_SLOTS], bytes = (double)max_of(s->bytes, 1), part;
    l->bytes += (bytes - l->bytes) / RECENT;
    l->read_bytes += ((r->op == READ ? bytes : 0) - l->read_bytes) / RECENT;
    matrix_at(m, r->op, l->read_bytes / l->bytes, bytes, 1, slot);
    s->work_ns = max_of((int64_t)exp(slot[m->parts + WORK]), 1);
    l->work_ns += s->work_ns;
    matrix_at(m, r->op, l->read_bytes / l->bytes, bytes, (double)l->work_ns / (double)s->work_ns,
              slot);
    double drawn =
        (double)(mixed(e->job->data->seed + ++l->ios * 0x9E3779B97F4A7C15ULL) >> 11) * 0x1p-53;
    int64_t at = place_on(m->part, m->parts, drawn, &part);
    double took_ns = exp(slot[at] + part * (slot[at + 1] - slot[at]));
    s->result = s->bytes;
    s->ended_ns = now + max_of((int64_t)took_ns, 1);
    return now + max_of((int64_t)(took_ns * exp(slot[m->parts + HELD])), 1);
}

static int64_t begin_modelled(Engine *e, Step *s, int64_t now) { // when its place is free again
    stamp(s, now);
    if (s->operation->tier->matrix) {
        return serve_measured(e, s, now);
    }
    s->result = 0;
    return s->ended_ns = serve_model(e, s, now);
}

static void end_modelled(Engine *e, Step *s) {
    e->load[s->operation->row->tier].work_ns -= s->work_ns;
    end_step(e, s);
}

static bool sleep_until(const Engine *e, int64_t until_ns) { // false: the job was stopped before
    for (int64_t now = run_ns(e); now < until_ns; now = run_ns(e)) {
        int64_t at = (until_ns - now < LONGEST_SLEEP_NS ? until_ns : now + LONGEST_SLEEP_NS) +
                     e->job->start_ns;
        struct timespec t = {at / 1000000000, at % 1000000000};
        if (e->job->is_stopped) {
            return false;
        }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
    }
    return true;
}

// Do a step of an extent, a file or a model in this thread.
void perform(Engine *e, Use *use, Step *s) {
    Operation *f = s->operation;
    int64_t started = run_ns(e);
    use->doing = MOVING;
    if (f->tier->kind == MODELLED) {
        lock(e);
        int64_t free_ns = begin_modelled(e, s, started);
        unlock(e);
        use->doing = WAITING;
        if (!sleep_until(e, free_ns)) {
            s->operation = NULL; // it did not complete
        }
        use->asleep_ns += run_ns(e) - started;
        return;
    }
    stamp(s, started);
    if (f->tier->kind == FILES) {
        s->result = do_file(e, s);
    } else if (s->act == ERASE) {
        s->result = discard(s);
    } else if (s->act == CLOSE) {
        s->result = fdatasync(f->fd) < 0 ? -errno : 0;
    } else {
        s->result = move_all(f->fd, buffer_of(e, s->place), s->bytes, f->base + s->from_bytes,
                             f->row->op == WRITE);
    }
    s->ended_ns = run_ns(e);
    use->enter_ns += s->ended_ns - started;
    if (e->job->is_checking && s->result > 0 && f->row->op == READ) {
        check_data(e, use, s, buffer_of(e, s->place), s->result);
    }
}

// --- copies to and from memory
// --------------------------------------------------------------------------------------

// Pages that the tier's memory did not have when the run began: none in most runs.
static void touch(Engine *e, const Operation *f) {
    Drive *d = f->drive;
    int64_t to = f->base + f->to_bytes - d->base;
    lock(e);
    int64_t from =
        d->touched_bytes / TOUCHED_AT_ONCE * TOUCHED_AT_ONCE; // where any kernel's page begins
    if (to > d->touched_bytes) {
        d->touched_bytes = to = (to + TOUCHED_AT_ONCE - 1) / TOUCHED_AT_ONCE * TOUCHED_AT_ONCE;
    } else {
        from = to;
    }
    unlock(e);
    if (to > from) {
        madvise((void *)(d->base + from), (size_t)(to - from), MADV_POPULATE_WRITE);
    }
}

// On the copier's own stream, between two events; returns 0 or the driver's error.
static int copy_on_gpu(const Gpu *g, GpuCopier *c, const uint8_t *to, const uint8_t *from,
                       int64_t bytes, int kind) {
    typedef int Of(void *), On(void *, void *), Copy(uint64_t, uint64_t, size_t, void *),
        Took(float *, void *, void *);
    float ms = 0;
    int error = ((Of *)g->use)(g->context);
    if (!error) {
        error = ((On *)g->record)(c->begins, c->stream);
    }
    if (!error) {
        error = ((Copy *)g->copy)((uintptr_t)to, (uintptr_t)from, (size_t)bytes, c->stream);
    }
    if (!error) {
        error = ((On *)g->record)(c->ends, c->stream);
    }
    if (!error) {
        error = ((Of *)g->wait)(c->ends);
    }
    if (!error) {
        error = ((Took *)g->elapsed)(&ms, c->begins, c->ends);
    }
    if (error) {
        return error;
    }
    c->copies[kind]++;
    c->bytes[kind] += bytes;
    c->event_ns[kind] += (int64_t)(ms * 1e6);
    return 0;
}

static void copy(Engine *e, Use *use, Step *s, uint8_t *scratch, int64_t *sink_at) {
    Operation *f = s->operation;
    Tier *t = f->tier;
    Row *r = f->row;
    Gpu *g = t->gpu;
    GpuCopier *c = g ? &g->copier[s->place] : NULL;
    uint8_t *place = (uint8_t *)(f->base + s->from_bytes), *other = c ? c->staging : scratch;
    bool is_write = r->op == WRITE, is_within = g && g->is_within;
    if (is_write && !is_within) {
        int64_t before = now_ns();
        touch(e, f);
        int64_t started = now_ns();
        use->touching_ns += started - before;
        use->doing = MAKING_DATA;
        data_make(e->job->data, other, s->bytes, s->from_bytes, r->object_id, r->version);
        use->making_ns += now_ns() - started;
    } else if (is_within || (!g && !e->job->is_checking)) {
        if (*sink_at + s->bytes > t->sink_bytes) {
            *sink_at = 0;
        }
        other = (uint8_t *)t->sink + *sink_at;
        *sink_at += s->bytes;
    }
    int64_t started = run_ns(e);
    stamp(s, started);
    use->doing = MOVING;
    uint8_t *to = is_write ? place : other, *from = is_write ? other : place;
    s->result = s->bytes;
    if (!g) {
        memcpy(to, from, (size_t)s->bytes);
    } else {
        int kind = is_within ? WITHIN_GPU : is_write ? TO_GPU : FROM_GPU;
        int error = copy_on_gpu(g, c, to, from, s->bytes, kind);
        if (error) {
            g->error = error;
            s->result = -EIO;
        }
    }
    s->ended_ns = run_ns(e);
    use->copying_ns += s->ended_ns - started;
    if (!is_write && e->job->is_checking && s->result > 0) {
        check_data(e, use, s, other, s->bytes);
    }
}

// --- a loop of one step at a time
// -----------------------------------------------------------------------------------

// Wait, with the lock held, until something may be there for this queue. Who knows of the earliest
// due time watches the clock for all.
static void rest(Engine *e, Queue *l, Use *use, int64_t now, int64_t next_ns) {
    bool leads = next_ns < l->watched_ns;
    int64_t until = now + LONGEST_SLEEP_NS, started = now_ns();
    if (leads && next_ns - SPIN_NS < until) {
        until = next_ns - SPIN_NS;
    }
    if (until > now) {
        int64_t at = until + e->job->start_ns;
        struct timespec t = {at / 1000000000, at % 1000000000};
        use->doing = WAITING;
        if (leads) {
            l->watched_ns = next_ns;
        }
        l->sleepers++;
        pthread_cond_timedwait(&l->woken, &e->order.lock, &t);
        l->sleepers--;
        if (leads && l->watched_ns == next_ns) {
            l->watched_ns = INT64_MAX;
        }
    } else { // the last part of the way to a due time is not slept through: waking up takes about
             // as long
        unlock(e);
        sched_yield();
        lock(e);
    }
    use->asleep_ns += max_of(
        0, now_ns() - max_of(started, e->job->start_ns)); // ranks wait for their common start
}

static void ask_python(Engine *e, Task *t, const Step *s) {
    const Operation *f = s->operation;
    const Row *r = f->row;
    *t = (Task){.act = s->act,
                .operation = f->id,
                .row = r->trace_row,
                .op = r->op,
                .tier = r->tier,
                .object = r->object_id,
                .from_bytes = s->from_bytes,
                .bytes = s->bytes,
                .whole_from_bytes = f->from_bytes,
                .whole_to_bytes = f->to_bytes,
                .ios = f->ios,
                .is_failed = f->is_failed,
                .buffer = buffer_of(e, s->place),
                .submitted_ns = NONE,
                .step = *s};
}

static void take_answer(Engine *e, Use *use, Task *t) {
    Step *s = &t->step;
    Operation *f = s->operation;
    s->result = t->error ? -t->error : t->moved;
    s->ended_ns = t->completed_ns;
    if (e->job->is_checking && s->result > 0 && f->row->op == READ &&
        (s->act == MOVE || s->act == WHOLE)) {
        check_data(e, use, s, buffer_of(e, s->place), s->result);
    }
    lock(e); // others may answer for I/Os of the same operation
    if (t->submitted_ns != NONE) {
        f->row->submitted_ns = t->submitted_ns;
    }
    f->row->retries = (int16_t)(f->row->retries + t->retries);
    end_step(e, s);
    unlock(e);
    t->is_answer = 0;
}

// Do steps of a queue until the job is over (0) or one is Python's (1), which comes back as the
// answer in `task`.
EXPORT int work(Engine *e, int queue, Use *use, Task *task) {
    Queue *l = &e->queue[queue];
    uint8_t *scratch = NULL;
    int64_t sink_at = 0;
    if (task->is_answer) {
        take_answer(e, use, task);
    }
    if (queue == e->copies_queue) {
        scratch = grown(NULL, e->job->io_bytes, 1);
        memset(scratch, 1,
               (size_t)e->job->io_bytes); // so that no copy waits for the kernel's pages
        sink_at = (use - e->job->use) * e->job->io_bytes;
    }
    lock(e);
    while (!is_over(e) || l->closing) {
        Step s;
        int64_t next_ns, now = run_ns(e);
        if (!take_step(e, queue, now, &s, &next_ns)) {
            if (!is_over(e)) {
                rest(e, l, use, now, next_ns);
            }
            continue;
        }
        if (l->sleepers) {
            pthread_cond_signal(&l->woken); // there may be more, and somebody must watch the clock
        }
        unlock(e);
        s.result = 0;
        if (queue == e->copies_queue) {
            copy(e, use, &s, scratch, &sink_at);
        } else {
            if (s.operation->row->op == WRITE && s.bytes && !s.operation->tier->matrix) {
                make_data(e, use, &s);
            }
            if (s.operation->tier->kind == PYTHON) {
                ask_python(e, task, &s);
                use->doing = IN_PYTHON;
                return 1;
            }
            perform(e, use, &s);
        }
        lock(e);
        if (s.operation) {
            s.operation->tier->kind == MODELLED ? end_modelled(e, &s) : end_step(e, &s);
        }
    }
    unlock(e);
    free(scratch);
    return 0;
}

static bool will_be_laid(const Engine *e) { // the next row, before anything more must end
    const Rows *r = e->order.rows;
    int64_t laid = r->laid, given = r->given;
    return e->order.cursor == laid && laid < r->total &&
           (laid - given <= r->mask || r->ended - given > r->mask / 2);
}

// Do all steps of a job whose tiers are all models, in one thread and in virtual time: the clock
// goes on to the next end or due time, once the rows that could go sooner are there. Waits alone
// are real.
EXPORT void work_virtually(Engine *e, Use *use) {
    enum { PLACES = 1024, WAIT_NS = 100000 }; // places: at most so many (--queue-depth)
    Step *under_way = zeros(PLACES, sizeof(Step));
    Heap ends = {0}; // when a place is free, times PLACES, and the place
    struct timespec a_while = {0, WAIT_NS};
    use->doing = WAITING;
    while (!e->job->start_ns && !e->job->is_stopped) {
        nanosleep(&a_while, NULL);
    }
    while (!is_over(e) || ends.count) {
        Step s;
        int64_t next_ns, now = e->virtual_ns;
        if (take_step(e, e->workers_queue, now, &s, &next_ns)) {
            heap_push(&ends, min_of(begin_modelled(e, &s, now), INT64_MAX / PLACES - 1) * PLACES +
                                 s.place);
            under_way[s.place] = s;
            continue;
        }
        if (next_ns <= now) {
            continue;
        }
        if (!is_over(e) && (will_be_laid(e) || (!ends.count && next_ns == INT64_MAX))) {
            nanosleep(&a_while, NULL);
            continue;
        }
        int64_t end_ns = ends.count ? ends.number[0] / PLACES : INT64_MAX,
                to = min_of(end_ns, next_ns);
        if (!is_over(e) &&
            to > e->job->virtual_end_ns) { // what is in flight completes, as on a drive
            e->virtual_ns = e->job->virtual_end_ns;
            e->job->is_stopped = true;
        } else if (to < INT64_MAX) {
            e->virtual_ns = to;
            if (end_ns == to) {
                end_modelled(e, &under_way[heap_pop(&ends) % PLACES]);
            }
        }
    }
    *use =
        (Use){.ended_ns = e->virtual_ns, .waited_ns = NONE, .cpu = sched_getcpu(), .doing = ENDED};
    free(ends.number), free(under_way);
}

// --- the engine
// -----------------------------------------------------------------------------------------------------

static void open_places(Places *p, int32_t count) {
    *p = (Places){
        .free = zeros(count + 1, sizeof(int32_t)), .count = count, .all = count, .allowed = count};
    p->operation = zeros(count + 1, sizeof(Operation));
    for (int32_t i = count - 1; i >= 0; i--) {
        p->free[count - 1 - i] = i; // the first are taken first, and again
        p->operation[i] = (Operation){.id = i, .next = p->spare};
        p->spare = &p->operation[i];
    }
}

EXPORT Engine *engine_open(Job *j) {
    Engine *e = zeros(1, sizeof(Engine));
    e->job = j;
    e->order = (Order){.rows = j->rows, .free_group = NONE};
    pthread_mutex_init(&e->order.lock, NULL);
    e->workers_queue = (int32_t)j->rings;
    e->full_due_ns = INT64_MAX;
    e->copies_queue = e->workers_queue + 1;
    e->queues = e->copies_queue + 1;
    e->queue = zeros(e->queues, sizeof(Queue));
    open_places(&e->places, (int32_t)j->depth);
    open_places(&e->copy_places, (int32_t)j->copiers);
    pthread_condattr_t how;
    pthread_condattr_init(&how);
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    for (int i = 0; i < e->queues; i++) {
        Queue *l = &e->queue[i];
        l->places = i == e->copies_queue ? &e->copy_places : &e->places;
        l->event_fd = i < j->rings ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : NONE;
        l->watched_ns = INT64_MAX;
        pthread_cond_init(&l->woken, &how);
    }
    return e;
}

EXPORT void engine_wake(Engine *e) { // rows were laid, or the job is to stop
    lock(e);
    wake_all(e);
    unlock(e);
}

EXPORT void engine_close(Engine *e) { // when no loop runs any more
    for (Operation *f = e->places.operation; f < e->places.operation + e->places.all; f++) {
        if (f->row && f->tier->kind == FILES && f->queue == e->workers_queue && f->fd >= 0) {
            close(f->fd);
        }
    }
    for (int i = 0; i < e->queues; i++) {
        if (e->queue[i].event_fd != NONE) {
            close(e->queue[i].event_fd);
        }
        pthread_cond_destroy(&e->queue[i].woken);
        free(e->queue[i].ready.number);
    }
    for (int chain = 0; chain < CHAINS; chain++) {
        table_free(&e->order.chain[chain]);
    }
    pthread_mutex_destroy(&e->order.lock);
    free(e->places.free), free(e->places.operation), free(e->copy_places.free),
        free(e->copy_places.operation);
    free(e->order.group), free(e->order.retiring), free(e->queue), free(e);
}
