// Threads that carry out one step at a time by plain system calls: `--engine threads`, copies to
// and from memory, simulated tiers, and tiers whose client is in Python. Also opens and closes the
// engine.
//
// Call path: thread_run -> loop_take_step -> thread_perform_step (transfer_all for files and
// extents, start_modelled_step for simulated tiers), perform_copy, or fill_python_task, which
// returns to Python -> loop_complete_step. thread_run_virtual does the same in simulated time.
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

// --- how a thread spends its time

// Reads how long this thread has waited for a processor; NONE if the kernel does not say.
static int64_t read_cpu_wait_ns(void) {
    char name[64];
    char text[96] = "";
    long long run;
    long long waited;
    snprintf(name, sizeof name, "/proc/self/task/%ld/schedstat", syscall(SYS_gettid));
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return NONE;
    }
    ssize_t came = read(fd, text, sizeof text - 1);
    close(fd);
    return came > 0 && sscanf(text, "%lld %lld", &run, &waited) == 2 ? waited : NONE;
}

static void add_thread_usage(Use *use, int sign) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    use->user_ns += sign * (usage.ru_utime.tv_sec * 1000000000 + usage.ru_utime.tv_usec * 1000);
    use->system_ns += sign * (usage.ru_stime.tv_sec * 1000000000 + usage.ru_stime.tv_usec * 1000);
    use->minor_faults += sign * usage.ru_minflt;
}

// Waits asleep for the start of the job: hundreds of threads that poll the clock would leave no
// processor to the thread that starts them.
EXPORT void thread_begin(Engine *engine, Use *use) {
    prctl(PR_SET_TIMERSLACK, 1);
    use->waited_ns = read_cpu_wait_ns();
    use->doing = WAITING;
    engine_lock(engine);
    while (!engine->job->start_ns && !engine->job->is_stopped) {
        pthread_cond_wait(&engine->queue[engine->workers_queue].woken, &engine->order.lock);
    }
    engine_unlock(engine);
    add_thread_usage(use, -1);
}

EXPORT void thread_end(Engine *engine, Use *use) {
    use->ended_ns = engine_now_ns(engine);
    int64_t waited = read_cpu_wait_ns();
    use->waited_ns = waited == NONE || use->waited_ns == NONE ? NONE : waited - use->waited_ns;
    add_thread_usage(use, 1);
    use->cpu = sched_getcpu();
    use->doing = ENDED;
}

// --- steps by plain calls

// Reads or writes `bytes` at offset `at`; NONE: at the position of the file. Returns the bytes
// transferred, or a negative errno.
static int64_t transfer_all(int fd, uint8_t *data, int64_t bytes, int64_t at, bool is_write) {
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
        // A read that ends within a sector has reached the end of the file.
        if (moved == 0 || (!is_write && done % SECTOR_BYTES)) {
            break;
        }
    }
    return done;
}

static int64_t open_named(const Step *step, int directory, const char *name, int how) {
    const Tier *tier = step->operation->tier;
    const Row *row = step->operation->row;
    int fd;
    do {
        fd = openat(directory, name,
                    how | (row->op == WRITE ? tier->write_flags : tier->read_flags) | O_CLOEXEC,
                    MODE);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        return -errno;
    }
    if (tier->opened_advice != NONE) {
        posix_fadvise(fd, 0, 0, tier->opened_advice);
    }
    // Map the stream to a lifetime hint; the first is RWH_WRITE_LIFE_SHORT.
    uint64_t hint = tier->hints && row->stream >= 0 ? 2 + (uint64_t)(row->stream % tier->hints) : 0;
    if (row->op != WRITE || !hint || fcntl(fd, F_SET_RW_HINT, &hint) >= 0) {
        return fd;
    }
    int64_t error = -errno;
    close(fd);
    return error;
}

static int64_t open_file(const Step *step) {
    char name[NAME_BYTES];
    int directory =
        operation_write_path(step->operation->tier, step->operation->row->object_id, name);
    return open_named(step, directory, name, 0);
}

static int64_t close_file(const Step *step, int fd, int64_t result) {
    const Tier *tier = step->operation->tier;
    if (tier->is_synced && step->operation->row->op == WRITE && result >= 0 && fdatasync(fd) < 0) {
        result = -errno;
    }
    if (tier->closing_advice != NONE) {
        posix_fadvise(fd, 0, 0, tier->closing_advice);
    }
    if (close(fd) < 0 && result >= 0) {
        result = -errno;
    }
    return result;
}

// Makes the directories above a file, below `directory`.
static void make_parent_directories(int directory, char *name) {
    char *end = strrchr(name, '/');
    if (!end) {
        return;
    }
    *end = 0;
    if (mkdirat(directory, name, 0777) < 0 && errno == ENOENT) {
        make_parent_directories(directory, name);
        mkdirat(directory, name, 0777);
    }
    *end = '/';
}

// Writes as vLLM's file tier does: to a new file that is renamed when it is complete. A file that
// is longer than the write is overwritten instead, so that its other bytes stay.
static int64_t write_renamed(const Step *step, uint8_t *data) {
    char name[NAME_BYTES];
    char other[NAME_BYTES + 32];
    int directory =
        operation_write_path(step->operation->tier, step->operation->row->object_id, name);
    struct stat there = {0};
    bool is_new = !step->from_bytes;
    if (is_new && !faccessat(directory, name, F_OK, 0) && !fstatat(directory, name, &there, 0)) {
        is_new = there.st_size <= step->bytes;
    }
    make_parent_directories(directory, name);
    snprintf(other, sizeof other, "%s_%ld.tmp", name, syscall(SYS_gettid));
    int64_t fd = open_named(step, directory, is_new ? other : name, is_new ? O_EXCL | O_TRUNC : 0);
    if (fd < 0) {
        return fd;
    }
    int64_t result = close_file(
        step, (int)fd,
        transfer_all((int)fd, data, step->bytes, is_new ? NONE : step->from_bytes, true));
    if (!is_new) {
        return result;
    }
    if (result == step->bytes && renameat(directory, other, directory, name) < 0) {
        result = -errno;
    }
    if (result != step->bytes) {
        unlinkat(directory, other, 0);
    }
    return result;
}

static int64_t discard_extent(const Step *step) {
    Operation *operation = step->operation;
    int64_t bytes;
    int64_t start = space_find(operation->drive->space, operation->row->object_id, &bytes);
    if (start < 0) {
        return start;
    }
    uint64_t range[2] = {(uint64_t)start, (uint64_t)bytes};
    if (ioctl(operation->drive->fd, BLKDISCARD, range) < 0) {
        return -errno;
    }
    return space_release(
        operation->drive->space,
        operation->row->object_id); // Not before: another write could reserve the extent.
}

static int64_t perform_file_step(Engine *engine, const Step *step) {
    Operation *operation = step->operation;
    uint8_t *data = engine_slot_buffer(engine, step->slot);
    bool is_write = operation->row->op == WRITE;
    int64_t result;
    switch (step->act) {
    case ERASE: {
        char name[NAME_BYTES];
        int directory = operation_write_path(operation->tier, operation->row->object_id, name);
        return unlinkat(directory, name, 0) < 0 ? -errno : 0;
    }
    case OPEN:
        if ((result = open_file(step)) < 0) {
            return result;
        }
        operation->fd = (int32_t)result;
        if (is_write &&
            fallocate(operation->fd, 0, operation->from_bytes,
                      operation->to_bytes - operation->from_bytes) < 0 &&
            !operation_cannot_preallocate(errno)) {
            return close_file(step, operation->fd, -errno);
        }
        return 0;
    case WHOLE:
        if (is_write && operation->tier->is_renamed) {
            return write_renamed(step, data);
        }
        if ((result = open_file(step)) < 0) {
            return result;
        }
        return close_file(step, (int)result,
                          transfer_all((int)result, data, step->bytes,
                                       step->from_bytes ? step->from_bytes : NONE, is_write));
    case CLOSE:
        result = close_file(step, operation->fd, operation->is_failed ? -EIO : 0);
        operation->fd = NONE;
        return operation->is_failed ? 0 : result; // The earlier failure is recorded already.
    default:
        return transfer_all(operation->fd, data, step->bytes, step->from_bytes, is_write);
    }
}

// Serves an operation of a simulated tier: one server in each direction, first come, first served,
// and then the latency. Returns the time of the completion.
static int64_t serve_modelled(Engine *engine, const Step *step, int64_t now) {
    const Tier *tier = step->operation->tier;
    Row *row = step->operation->row;
    int64_t rate = row->op == WRITE ? tier->write_bytes_per_s : tier->read_bytes_per_s;
    int64_t *busy = &engine->model_busy_ns[row->tier][row->op == WRITE];
    *busy =
        min_of(max_of(*busy, now) + max_of(transfer_ns(row->length_bytes, rate), tier->occupied_ns),
               INT64_MAX >> 1);
    return *busy + tier->latency_ns;
}

// Finds `x` on an axis: the point before it, and its fraction of the way to the next.
static int64_t find_on_axis(const double *axis, int64_t count, double x, double *part) {
    int64_t at = 0;
    while (at < count - 2 && axis[at + 1] <= x) {
        at++;
    }
    *part = count < 2 ? 0 : fmin(1, fmax(0, (x - axis[at]) / (axis[at + 1] - axis[at])));
    return at;
}

// Interpolates the values of an I/O between the cells around it. Beyond the largest size or depth
// the bandwidth stays the same, so latencies grow.
EXPORT void thread_interpolate_matrix(const Matrix *matrix, int64_t op, double share, double bytes,
                                      double in_flight, double *slot) {
    const double *axis[] = {matrix->share, matrix->size, matrix->depth};
    const double at[] = {share, log(fmax(bytes, 1)), log(in_flight)};
    const int64_t count[] = {matrix->shares, matrix->sizes, matrix->depths};
    const int64_t slots = matrix->parts + BESIDE_PARTS;
    double part[3];
    int64_t before[3];
    for (int i = 0; i < 3; i++) {
        before[i] = find_on_axis(axis[i], count[i], at[i], &part[i]);
    }
    double longer = fmax(0, at[1] - matrix->size[matrix->sizes - 1]);
    double deeper = fmax(0, at[2] - matrix->depth[matrix->depths - 1]);
    for (int64_t s = 0; s < slots; s++) {
        slot[s] = s == matrix->parts + HELD   ? 0
                  : s == matrix->parts + WORK ? longer
                                              : longer + deeper;
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
                slot[s] += weight * matrix->cell[cell * slots + s];
            }
        }
    }
}

// Serves an I/O of a measured drive: draws its latency from the measurements at its size, the
// recent mix of reads and writes, and the work in flight, counted in I/Os like this one. Returns
// the time at which its slot is free.
static int64_t serve_measured(Engine *engine, Step *step, int64_t now) {
    enum { RECENT = 128, MOST_SLOTS = 32 };
    const Matrix *matrix = step->operation->tier->matrix;
    const Row *row = step->operation->row;
    Load *load = &engine->load[row->tier];
    double slot[MOST_SLOTS];
    double bytes = (double)max_of(step->bytes, 1);
    double part;
    load->bytes += (bytes - load->bytes) / RECENT;
    load->read_bytes += ((row->op == READ ? bytes : 0) - load->read_bytes) / RECENT;
    thread_interpolate_matrix(matrix, row->op, load->read_bytes / load->bytes, bytes, 1, slot);
    step->work_ns = max_of((int64_t)exp(slot[matrix->parts + WORK]), 1);
    load->work_ns += step->work_ns;
    thread_interpolate_matrix(matrix, row->op, load->read_bytes / load->bytes, bytes,
                              (double)load->work_ns / (double)step->work_ns, slot);
    double drawn =
        (double)(mixed(engine->job->data->seed + ++load->ios * 0x9E3779B97F4A7C15ULL) >> 11) *
        0x1p-53;
    int64_t at = find_on_axis(matrix->part, matrix->parts, drawn, &part);
    double took_ns = exp(slot[at] + part * (slot[at + 1] - slot[at]));
    step->result = step->bytes;
    step->ended_ns = now + max_of((int64_t)took_ns, 1);
    return now + max_of((int64_t)(took_ns * exp(slot[matrix->parts + HELD])), 1);
}

// Starts a step of a simulated tier. Returns the time at which its slot is free.
static int64_t start_modelled_step(Engine *engine, Step *step, int64_t now) {
    operation_mark_submitted(step, now);
    if (step->operation->tier->matrix) {
        return serve_measured(engine, step, now);
    }
    step->result = 0;
    return step->ended_ns = serve_modelled(engine, step, now);
}

static void complete_modelled_step(Engine *engine, Step *step) {
    engine->load[step->operation->row->tier].work_ns -= step->work_ns;
    loop_complete_step(engine, step);
}

// Sleeps until a time of the run; false if the job was stopped before.
static bool sleep_until(const Engine *engine, int64_t until_ns) {
    for (int64_t now = engine_now_ns(engine); now < until_ns; now = engine_now_ns(engine)) {
        int64_t at = (until_ns - now < LONGEST_SLEEP_NS ? until_ns : now + LONGEST_SLEEP_NS) +
                     engine->job->start_ns;
        struct timespec t = {at / 1000000000, at % 1000000000};
        if (engine->job->is_stopped) {
            return false;
        }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
    }
    return true;
}

// Carries out a step of an extent, a file or a simulated tier in this thread.
void thread_perform_step(Engine *engine, Use *use, Step *step) {
    Operation *operation = step->operation;
    int64_t started = engine_now_ns(engine);
    use->doing = MOVING;
    if (operation->tier->kind == MODELLED) {
        engine_lock(engine);
        int64_t free_ns = start_modelled_step(engine, step, started);
        engine_unlock(engine);
        use->doing = WAITING;
        if (!sleep_until(engine, free_ns)) {
            step->operation = NULL; // The job was stopped before the step completed.
        }
        use->asleep_ns += engine_now_ns(engine) - started;
        return;
    }
    operation_mark_submitted(step, started);
    if (operation->tier->kind == FILES) {
        step->result = perform_file_step(engine, step);
    } else if (step->act == ERASE) {
        step->result = discard_extent(step);
    } else if (step->act == CLOSE) {
        step->result = fdatasync(operation->fd) < 0 ? -errno : 0;
    } else {
        step->result =
            transfer_all(operation->fd, engine_slot_buffer(engine, step->slot), step->bytes,
                         operation->base + step->from_bytes, operation->row->op == WRITE);
    }
    step->ended_ns = engine_now_ns(engine);
    use->enter_ns += step->ended_ns - started;
    if (engine->job->is_checking && step->result > 0 && operation->row->op == READ) {
        operation_verify_data(engine, use, step, engine_slot_buffer(engine, step->slot),
                              step->result);
    }
}

// --- copies to and from memory

// Populates the pages of an operation that the tier's memory does not have yet: none in most runs.
static void populate_memory(Engine *engine, const Operation *operation) {
    Drive *drive = operation->drive;
    int64_t to = operation->base + operation->to_bytes - drive->base;
    engine_lock(engine);
    int64_t from =
        drive->touched_bytes / TOUCHED_AT_ONCE * TOUCHED_AT_ONCE; // A multiple of every page size.
    if (to > drive->touched_bytes) {
        drive->touched_bytes = to = (to + TOUCHED_AT_ONCE - 1) / TOUCHED_AT_ONCE * TOUCHED_AT_ONCE;
    } else {
        from = to;
    }
    engine_unlock(engine);
    if (to > from) {
        madvise((void *)(drive->base + from), (size_t)(to - from), MADV_POPULATE_WRITE);
    }
}

// Copies on the copier's own stream, between two events. Returns 0 or the driver's error.
static int copy_on_gpu(const Gpu *gpu, GpuCopier *copier, const uint8_t *to, const uint8_t *from,
                       int64_t bytes, int kind) {
    typedef int Of(void *), On(void *, void *), Copy(uint64_t, uint64_t, size_t, void *),
        Took(float *, void *, void *);
    float ms = 0;
    int error = ((Of *)gpu->use)(gpu->context);
    if (!error) {
        error = ((On *)gpu->record)(copier->begins, copier->stream);
    }
    if (!error) {
        error = ((Copy *)gpu->copy)((uintptr_t)to, (uintptr_t)from, (size_t)bytes, copier->stream);
    }
    if (!error) {
        error = ((On *)gpu->record)(copier->ends, copier->stream);
    }
    if (!error) {
        error = ((Of *)gpu->wait)(copier->ends);
    }
    if (!error) {
        error = ((Took *)gpu->elapsed)(&ms, copier->begins, copier->ends);
    }
    if (error) {
        return error;
    }
    copier->copies[kind]++;
    copier->bytes[kind] += bytes;
    copier->event_ns[kind] += (int64_t)(ms * 1e6);
    return 0;
}

static void perform_copy(Engine *engine, Use *use, Step *step, uint8_t *scratch, int64_t *sink_at) {
    Operation *operation = step->operation;
    Tier *tier = operation->tier;
    Row *row = operation->row;
    Gpu *gpu = tier->gpu;
    GpuCopier *copier = gpu ? &gpu->copier[step->slot] : NULL;
    uint8_t *object_bytes = (uint8_t *)(operation->base + step->from_bytes);
    uint8_t *staging = copier ? copier->staging : scratch;
    bool is_write = row->op == WRITE;
    bool is_within = gpu && gpu->is_within;
    if (is_write && !is_within) {
        int64_t before = monotonic_ns();
        populate_memory(engine, operation);
        int64_t started = monotonic_ns();
        use->touching_ns += started - before;
        use->doing = MAKING_DATA;
        data_generate(engine->job->data, staging, step->bytes, step->from_bytes, row->object_id,
                      row->version);
        use->making_ns += monotonic_ns() - started;
    } else if (is_within || (!gpu && !engine->job->is_checking)) {
        if (*sink_at + step->bytes > tier->sink_bytes) {
            *sink_at = 0;
        }
        staging = (uint8_t *)tier->sink + *sink_at;
        *sink_at += step->bytes;
    }
    int64_t started = engine_now_ns(engine);
    operation_mark_submitted(step, started);
    use->doing = MOVING;
    uint8_t *to = is_write ? object_bytes : staging;
    uint8_t *from = is_write ? staging : object_bytes;
    step->result = step->bytes;
    if (!gpu) {
        memcpy(to, from, (size_t)step->bytes);
    } else {
        int kind = is_within ? WITHIN_GPU : is_write ? TO_GPU : FROM_GPU;
        int error = copy_on_gpu(gpu, copier, to, from, step->bytes, kind);
        if (error) {
            gpu->error = error;
            step->result = -EIO;
        }
    }
    step->ended_ns = engine_now_ns(engine);
    use->copying_ns += step->ended_ns - started;
    if (!is_write && engine->job->is_checking && step->result > 0) {
        operation_verify_data(engine, use, step, staging, step->bytes);
    }
}

// --- a loop of one step at a time

// Waits until the queue may have a step. The thread that knows the earliest due time sleeps until
// then, and the others until they are woken. The caller holds the lock.
static void wait_for_work(Engine *engine, Queue *queue, Use *use, int64_t now, int64_t next_ns) {
    bool leads = next_ns < queue->watched_ns;
    int64_t until = now + LONGEST_SLEEP_NS;
    int64_t started = monotonic_ns();
    if (leads && next_ns - SPIN_NS < until) {
        until = next_ns - SPIN_NS;
    }
    if (until > now) {
        int64_t at = until + engine->job->start_ns;
        struct timespec t = {at / 1000000000, at % 1000000000};
        use->doing = WAITING;
        if (leads) {
            queue->watched_ns = next_ns;
        }
        queue->sleepers++;
        pthread_cond_timedwait(&queue->woken, &engine->order.lock, &t);
        queue->sleepers--;
        if (leads && queue->watched_ns == next_ns) {
            queue->watched_ns = INT64_MAX;
        }
    } else { // the last part of the way to a due time is not slept through: waking up takes about
             // as long
        engine_unlock(engine);
        sched_yield();
        engine_lock(engine);
    }
    use->asleep_ns +=
        max_of(0, monotonic_ns() -
                      max_of(started, engine->job->start_ns)); // ranks wait for their common start
}

static void fill_python_task(Engine *engine, Task *task, const Step *step) {
    const Operation *operation = step->operation;
    const Row *row = operation->row;
    *task = (Task){.act = step->act,
                   .operation = operation->id,
                   .row = row->trace_row,
                   .op = row->op,
                   .tier = row->tier,
                   .object = row->object_id,
                   .from_bytes = step->from_bytes,
                   .bytes = step->bytes,
                   .whole_from_bytes = operation->from_bytes,
                   .whole_to_bytes = operation->to_bytes,
                   .ios = operation->ios,
                   .is_failed = operation->is_failed,
                   .buffer = engine_slot_buffer(engine, step->slot),
                   .submitted_ns = NONE,
                   .step = *step};
}

static void complete_python_task(Engine *engine, Use *use, Task *task) {
    Step *step = &task->step;
    Operation *operation = step->operation;
    step->result = task->error ? -task->error : task->moved;
    step->ended_ns = task->completed_ns;
    if (engine->job->is_checking && step->result > 0 && operation->row->op == READ &&
        (step->act == MOVE || step->act == WHOLE)) {
        operation_verify_data(engine, use, step, engine_slot_buffer(engine, step->slot),
                              step->result);
    }
    engine_lock(engine); // Other threads complete I/Os of the same operation.
    if (task->submitted_ns != NONE) {
        operation->row->submitted_ns = task->submitted_ns;
    }
    operation->row->retries = (int16_t)(operation->row->retries + task->retries);
    loop_complete_step(engine, step);
    engine_unlock(engine);
    task->is_answer = 0;
}

// Carries out steps of a queue. Returns 0 when the job is over, and 1 when `task` holds a step for
// Python, which calls again with the result in `task`.
EXPORT int thread_run(Engine *engine, int queue_index, Use *use, Task *task) {
    Queue *queue = &engine->queue[queue_index];
    uint8_t *scratch = NULL;
    int64_t sink_at = 0;
    if (task->is_answer) {
        complete_python_task(engine, use, task);
    }
    if (queue_index == engine->copies_queue) {
        scratch = memory_grow(NULL, engine->job->io_bytes, 1);
        memset(scratch, 1,
               (size_t)engine->job->io_bytes); // Populate its pages before the first copy.
        sink_at = (use - engine->job->use) * engine->job->io_bytes;
    }
    engine_lock(engine);
    while (!engine_is_over(engine) || queue->closing) {
        Step step;
        int64_t next_ns;
        int64_t now = engine_now_ns(engine);
        if (!loop_take_step(engine, queue_index, now, &step, &next_ns)) {
            if (!engine_is_over(engine)) {
                wait_for_work(engine, queue, use, now, next_ns);
            }
            continue;
        }
        if (queue->sleepers) {
            pthread_cond_signal(
                &queue->woken); // Another thread looks for more steps and watches the clock.
        }
        engine_unlock(engine);
        step.result = 0;
        if (queue_index == engine->copies_queue) {
            perform_copy(engine, use, &step, scratch, &sink_at);
        } else {
            if (step.operation->row->op == WRITE && step.bytes && !step.operation->tier->matrix) {
                operation_generate_data(engine, use, &step);
            }
            if (step.operation->tier->kind == PYTHON) {
                fill_python_task(engine, task, &step);
                use->doing = IN_PYTHON;
                return 1;
            }
            thread_perform_step(engine, use, &step);
        }
        engine_lock(engine);
        if (step.operation) {
            step.operation->tier->kind == MODELLED ? complete_modelled_step(engine, &step)
                                                   : loop_complete_step(engine, &step);
        }
    }
    engine_unlock(engine);
    free(scratch);
    return 0;
}

// Returns whether the loader will lay the next row before anything more has to end.
static bool is_next_row_coming(const Engine *engine) {
    const Rows *rows = engine->order.rows;
    int64_t laid = rows->laid;
    int64_t given = rows->given;
    return engine->order.cursor == laid && laid < rows->total &&
           (laid - given <= rows->mask || rows->ended - given > rows->mask / 2);
}

// Carries out all steps of a job whose tiers are all simulated, in one thread and in simulated
// time: the clock advances to the next completion or due time, once all rows that could start
// sooner are loaded. Only waits for the loader are real.
EXPORT void thread_run_virtual(Engine *engine, Use *use) {
    enum { MAX_SLOTS = 1024, WAIT_NS = 100000 }; // MAX_SLOTS: largest --queue-depth.
    Step *under_way = memory_zeros(MAX_SLOTS, sizeof(Step));
    Heap ends = {0}; // Time at which a slot is free, times MAX_SLOTS, plus the slot.
    struct timespec a_while = {0, WAIT_NS};
    use->doing = WAITING;
    while (!engine->job->start_ns && !engine->job->is_stopped) {
        nanosleep(&a_while, NULL);
    }
    while (!engine_is_over(engine) || ends.count) {
        Step step;
        int64_t next_ns;
        int64_t now = engine->virtual_ns;
        if (loop_take_step(engine, engine->workers_queue, now, &step, &next_ns)) {
            heap_push(&ends,
                      min_of(start_modelled_step(engine, &step, now), INT64_MAX / MAX_SLOTS - 1) *
                              MAX_SLOTS +
                          step.slot);
            under_way[step.slot] = step;
            continue;
        }
        if (next_ns <= now) {
            continue;
        }
        if (!engine_is_over(engine) &&
            (is_next_row_coming(engine) || (!ends.count && next_ns == INT64_MAX))) {
            nanosleep(&a_while, NULL);
            continue;
        }
        int64_t end_ns = ends.count ? ends.number[0] / MAX_SLOTS : INT64_MAX;
        int64_t to = min_of(end_ns, next_ns);
        if (!engine_is_over(engine) && to > engine->job->virtual_end_ns) {
            engine->virtual_ns = engine->job->virtual_end_ns;
            engine->job->is_stopped = true;
        } else if (to < INT64_MAX) {
            engine->virtual_ns = to;
            if (end_ns == to) {
                complete_modelled_step(engine, &under_way[heap_pop(&ends) % MAX_SLOTS]);
            }
        }
    }
    *use = (Use){
        .ended_ns = engine->virtual_ns, .waited_ns = NONE, .cpu = sched_getcpu(), .doing = ENDED};
    free(ends.number);
    free(under_way);
}

// --- the engine

static void open_slots(Slots *slots, int32_t count) {
    *slots = (Slots){.free = memory_zeros(count + 1, sizeof(int32_t)),
                     .blank = count,
                     .prepared = memory_zeros(count + 1, sizeof(PreparedIo)),
                     .count = count,
                     .all = count,
                     .allowed = count};
    slots->operation = memory_zeros(count + 1, sizeof(Operation));
    for (int32_t i = count - 1; i >= 0; i--) {
        slots->free[count - 1 - i] = i; // The first slots are taken first, and again.
        slots->operation[i] = (Operation){.id = i, .next = slots->spare};
        slots->spare = &slots->operation[i];
    }
}

EXPORT Engine *engine_open(Job *job) {
    Engine *engine = memory_zeros(1, sizeof(Engine));
    engine->job = job;
    engine->order = (Order){.rows = job->rows, .free_group = NONE};
    pthread_mutex_init(&engine->order.lock, NULL);
    engine->workers_queue = (int32_t)job->rings;
    engine->full_due_ns = INT64_MAX;
    engine->copies_queue = engine->workers_queue + 1;
    engine->queues = engine->copies_queue + 1;
    engine->queue = memory_zeros(engine->queues, sizeof(Queue));
    open_slots(&engine->slots, (int32_t)job->depth);
    open_slots(&engine->copy_slots, (int32_t)job->copiers);
    pthread_condattr_t how;
    pthread_condattr_init(&how);
    pthread_condattr_setclock(&how, CLOCK_MONOTONIC);
    for (int i = 0; i < engine->queues; i++) {
        Queue *queue = &engine->queue[i];
        queue->slots = i == engine->copies_queue ? &engine->copy_slots : &engine->slots;
        queue->event_fd = i < job->rings ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : NONE;
        queue->watched_ns = INT64_MAX;
        pthread_cond_init(&queue->woken, &how);
    }
    return engine;
}

// Wakes all threads after rows were laid or the job was stopped.
EXPORT void engine_notify(Engine *engine) {
    engine_lock(engine);
    engine_wake_queues(engine);
    engine_unlock(engine);
}

// Frees the engine, when none of its threads runs any more.
EXPORT void engine_close(Engine *engine) {
    for (Operation *operation = engine->slots.operation;
         operation < engine->slots.operation + engine->slots.all; operation++) {
        if (operation->row && operation->tier->kind == FILES &&
            operation->queue == engine->workers_queue && operation->fd >= 0) {
            close(operation->fd);
        }
    }
    for (int i = 0; i < engine->queues; i++) {
        if (engine->queue[i].event_fd != NONE) {
            close(engine->queue[i].event_fd);
        }
        pthread_cond_destroy(&engine->queue[i].woken);
        free(engine->queue[i].ready.number);
    }
    for (int chain = 0; chain < CHAINS; chain++) {
        table_free(&engine->order.chain[chain]);
    }
    pthread_mutex_destroy(&engine->order.lock);
    free(engine->slots.free);
    free(engine->slots.prepared);
    free(engine->slots.operation);
    free(engine->copy_slots.free);
    free(engine->copy_slots.prepared);
    free(engine->copy_slots.operation);
    free(engine->order.group);
    free(engine->order.retiring);
    free(engine->queue);
    free(engine);
}
