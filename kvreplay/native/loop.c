// The life of an operation, the same for every engine. A loop calls loop_take_step, carries the
// step out (uring.c, threads.c), and calls loop_complete_step with the result.
//
//   ready     order.c pushed the row on the heap of its queue: nothing that it waits for is left
//   due       loop_take_step sees that the row's due time has come and that a slot is free
//   start     start_operation turns the row into an Operation and reserves or finds its extent
//   submit    the loop submits the step; operation_mark_submitted records the time
//   complete  loop_complete_step records the result and returns the slot
//   finish    finish_operation writes the outcome, and order.c opens the groups that waited
//
// An operation of one I/O is one step (WHOLE, MOVE or ERASE). A longer one on a file opens (OPEN),
// transfers I/O by I/O (MOVE), and closes after its last I/O has completed (CLOSE).
#include "plan.h"
#include "replay.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

// Operations that end as they start, at most, before loop_take_step returns to its loop.
enum { MOST_BEGUN = 1024 };

int64_t engine_now_ns(const Engine *engine) {
    return engine->job->virtual_end_ns ? engine->virtual_ns
                                       : monotonic_ns() - engine->job->start_ns;
}
void engine_lock(Engine *engine) {
    pthread_mutex_lock(&engine->order.lock);
}
void engine_unlock(Engine *engine) {
    pthread_mutex_unlock(&engine->order.lock);
}
uint8_t *engine_slot_buffer(const Engine *engine, int32_t slot) {
    return engine->job->buffers + slot * engine->job->io_bytes;
}

bool engine_is_over(const Engine *engine) {
    return atomic_load_explicit(&engine->job->is_stopped, memory_order_relaxed) ||
           atomic_load_explicit(&engine->job->completed, memory_order_relaxed) ==
               engine->order.rows->total;
}

// --- queues

static Drive *tier_drive_of_object(const Tier *tier, int64_t object) {
    return &tier->drive[tier->drive_of ? tier->drive_of[object] : 0];
}

Queue *queue_of_row(Engine *engine, const Row *row) {
    Tier *tier = &engine->job->tier[row->tier];
    int queue = tier->queue[row->op];
    if (queue == RINGS_QUEUE) {
        Drive *drive = tier_drive_of_object(tier, row->object_id);
        queue = drive->first_loop + drive->loop_step * (row->object_id % drive->loops);
    }
    return &engine->queue[queue];
}

void queue_wake(Queue *queue) {
    if (queue->event_fd != NONE) {
        if (atomic_exchange(&queue->is_asleep, 0)) {
            eventfd_write(queue->event_fd, 1);
        }
    } else if (queue->sleepers) {
        pthread_cond_signal(&queue->woken);
    }
}

void engine_wake_queues(Engine *engine) {
    for (int i = 0; i < engine->queues; i++) {
        queue_wake(&engine->queue[i]);
        if (engine->queue[i].event_fd == NONE) {
            pthread_cond_broadcast(&engine->queue[i].woken);
        }
    }
}

// Attributes the time since the last call to the state that held from then on. Every change of the
// number of slots in use calls it first.
static void account_slot_time(Engine *engine, int64_t now) {
    Job *job = engine->job;
    int64_t passed = now - engine->counted_ns;
    int64_t used = engine->slots.all - engine->slots.count;
    int64_t idle = engine->slots.all - used;
    if (passed > 0) {
        job->in_use_ns += used * passed;
        if (engine->waiting == DEPTH_LIMITED) {
            job->depth_limited_ns += passed;
        } else if (now > engine->full_due_ns) {
            job->depth_limited_ns +=
                now - (engine->full_due_ns > engine->counted_ns ? engine->full_due_ns
                                                                : engine->counted_ns);
        }
        if (engine->waiting == GROWING) {
            job->growing_ns += passed;
        }
        if (engine->waiting == BLOCKED) {
            job->blocked_ns += idle * passed;
        }
        if (engine->waiting == UNREAD) {
            job->unread_ns += idle * passed;
        }
        engine->counted_ns = now;
    }
}

// --- operations: start, submission and finish

// Stores the outcome after all times, so that a reader of the outcome also sees the times.
static void set_outcome(Row *row, int8_t outcome) {
    __atomic_store_n(&row->outcome, outcome, __ATOMIC_RELEASE);
}

static void finish_row(Engine *engine, int64_t number, int64_t now) {
    if (now > engine->latest_ns) {
        engine->latest_ns = now;
    }
    order_finish_row(engine, number, now);
    for (Queue *queue = engine->queue; queue < engine->queue + engine->queues; queue++) {
        if (queue->is_full) {
            queue->is_full = false;
            queue_wake(queue);
        }
    }
    int64_t done = atomic_fetch_add_explicit(&engine->job->completed, 1, memory_order_relaxed) + 1;
    if (done == engine->order.rows->total) {
        engine_wake_queues(engine);
    }
}

// Marks an operation as failed; the first failure of a job is kept for its report.
static void fail_operation(Engine *engine, Operation *operation, int8_t outcome, int64_t error,
                           const Step *step) {
    Job *job = engine->job;
    if (operation->is_failed) {
        return;
    }
    operation->is_failed = true;
    set_outcome(operation->row, outcome);
    int64_t none = NONE;
    if (atomic_compare_exchange_strong(&job->failed_row, &none, operation->number)) {
        job->failed_trace_row = operation->row->trace_row;
        job->failed_op = operation->row->op;
        job->failed_object = operation->row->object_id;
        job->failed_tier = operation->row->tier;
        job->failed_errno = error;
        job->failed_outcome = outcome;
        job->failed_from_bytes = step ? step->from_bytes : 0;
        job->failed_bytes = step ? step->bytes : 0;
        job->failed_moved = step ? step->result : 0;
    }
    if (job->stops_on_error) {
        job->is_stopped = true;
        engine_wake_queues(engine);
    }
}

static void unlist_operation(Queue *queue, Operation *operation) {
    if (!operation->is_listed) {
        return;
    }
    Operation **first = operation->is_bulk ? &queue->bulk : &queue->first;
    Operation *before = NULL;
    for (Operation *at = *first; at != operation; at = at->next) {
        before = at;
    }
    if (before) {
        before->next = operation->next;
    } else {
        *first = operation->next;
    }
    if (!operation->is_bulk && queue->last == operation) {
        queue->last = before;
    }
    operation->is_listed = false;
}

// Adds an operation to the list of those with I/Os to start.
static void list_operation(Engine *engine, Operation *operation) {
    Queue *queue = &engine->queue[operation->queue];
    operation->is_listed = true;
    operation->next = NULL;
    if (operation->is_bulk) {
        operation->next = queue->bulk;
        queue->bulk = operation;
    } else if (queue->first) {
        queue->last = queue->last->next = operation;
    } else {
        queue->first = queue->last = operation;
    }
    queue_wake(queue);
}

// Returns an operation to the free ones.
static void release_operation(Engine *engine, Operation *operation) {
    Queue *queue = &engine->queue[operation->queue];
    queue->promised[operation->is_bulk] -= operation->promised;
    queue->slots->operations--;
    operation->next = queue->slots->spare;
    operation->row = NULL;
    queue->slots->spare = operation;
}

// Ends an operation: writes its outcome and opens the groups that waited for its row.
static void finish_operation(Engine *engine, Operation *operation) {
    Row *row = operation->row;
    if (!operation->is_failed && row->outcome != CORRUPT) {
        row->completed_ns = operation->last_ns;
        set_outcome(row, OK);
    }
    release_operation(engine, operation);
    finish_row(engine, operation->number, operation->last_ns);
}

static bool needs_close(const Operation *operation) {
    switch (operation->tier->kind) {
    case EXTENTS:
        return operation->tier->is_synced && operation->row->op == WRITE && !operation->is_failed;
    case FILES:
    case PYTHON:
        return operation->ios > 1;
    default:
        return false;
    }
}

// Closes or finishes an operation if all of its I/Os have completed and none will follow.
static void close_or_finish_operation(Engine *engine, Operation *operation) {
    Queue *queue = &engine->queue[operation->queue];
    if (operation->out || (operation->next_io < operation->ios && !operation->is_failed)) {
        return;
    }
    if (!needs_close(operation)) {
        finish_operation(engine, operation);
        return;
    }
    operation->next = queue->closing;
    queue->closing = operation;
    queue_wake(queue);
}

// A filesystem that does not preallocate is no failure: its files grow as they are written.
bool operation_cannot_preallocate(int error) {
    return error == EOPNOTSUPP || error == EINVAL || error == ENOSYS || error == ENODEV;
}

void operation_mark_submitted(Step *step, int64_t now) {
    if (__atomic_exchange_n(&step->operation->is_stamped, true, __ATOMIC_RELAXED)) {
        return; // Several threads submit I/Os of one operation; the first sets the time.
    }
    step->operation->row->submitted_ns = now;
}

// Reserves the extent of a write, or finds that of a read. Returns 0 or an errno.
static int64_t find_extent(Engine *engine, Operation *operation) {
    Row *row = operation->row;
    int64_t started = monotonic_ns();
    int64_t to = operation->to_bytes > 0 ? operation->to_bytes : 1;
    int64_t start = row->op == WRITE ? space_reserve(operation->drive->space, row->object_id, to)
                                     : space_find(operation->drive->space, row->object_id, NULL);
    engine->job->reserve_ns += row->op == WRITE ? monotonic_ns() - started : 0;
    if (start < 0) {
        return -start;
    }
    operation->base = operation->drive->base + start;
    operation->fd = operation->drive->fd;
    return 0;
}

// Starts the operation of a row. Returns whether it fills `step`; if not, the row has ended, or
// its I/Os are in the list from which loop_take_step takes them.
static bool start_operation(Engine *engine, int queue_index, int64_t number, int64_t now,
                            Step *step) {
    Job *job = engine->job;
    Row *row = rows_at(engine->order.rows, number);
    Tier *tier = &job->tier[row->tier];
    if (now < engine->latest_ns) {
        now = engine->latest_ns;
    }
    if (tier->kind == NOTHING || (tier->kind == MODELLED && row->op == DELETE)) {
        row->submitted_ns = row->completed_ns = now;
        set_outcome(row, OK);
        finish_row(engine, number, now);
        return false;
    }
    Queue *queue = &engine->queue[queue_index];
    Operation *operation = queue->slots->spare;
    queue->slots->spare = operation->next;
    queue->slots->operations++;
    int64_t end = row->offset_bytes + row->length_bytes;
    int64_t from = row_first_byte(row, tier->padding_bytes);
    int64_t to = row_end_byte(row, tier->padding_bytes);
    bool has_bytes =
        row->op != DELETE && row->length_bytes > 0 && (tier->kind != MODELLED || tier->matrix);
    int32_t ios = has_bytes ? (int32_t)((to - from + job->io_bytes - 1) / job->io_bytes) : 1;
    int32_t id = operation->id;
    *operation =
        (Operation){.number = number,
                    .row = row,
                    .tier = tier,
                    .drive = tier->drives ? tier_drive_of_object(tier, row->object_id) : NULL,
                    .from_bytes = from,
                    .to_bytes = to,
                    .needed_to_bytes = end,
                    .ios = ios,
                    .fd = NONE,
                    .id = id,
                    .queue = queue_index,
                    .is_bulk = row->is_bulk && ios > 1};
    int64_t error = 0;
    bool is_open = false;
    if (ios > 1) {
        operation->promised =
            operation->is_bulk && job->bulk_depth < ios ? (int32_t)job->bulk_depth : ios;
    }
    queue->promised[operation->is_bulk] += operation->promised;
    if (tier->kind == EXTENTS || tier->kind == MEMORY) {
        if (row->op == DELETE && !tier->is_discarding) {
            row->submitted_ns = now;
            error = -space_release(operation->drive->space, row->object_id);
        } else if (row->op != DELETE) {
            error = find_extent(engine, operation);
        }
        if (error == ENOSPC &&
            atomic_load_explicit(&engine->order.rows->ended, memory_order_relaxed) < number) {
            // An earlier delete of the trace may still free space: the write is tried again when
            // another row has ended.
            release_operation(engine, operation);
            queue->is_full = true;
            heap_push(&queue->ready, number);
            engine->order.ready++;
            return false;
        }
        if (error || (row->op == DELETE && !tier->is_discarding) ||
            (!has_bytes && row->op != DELETE)) {
            if (row->submitted_ns == NONE) {
                row->submitted_ns = now;
            }
            operation->last_ns = engine_now_ns(engine);
            if (error) {
                fail_operation(engine, operation, FAILED, error, NULL);
            }
            finish_operation(engine, operation);
            return false;
        }
        is_open = true;
        if (row->op != DELETE && ios > 1) {
            if (row->op == WRITE) {
                job->long_writes++;
            }
            list_operation(engine, operation);
            return false;
        }
    }
    if (ios > 1 && tier->kind == MODELLED) {
        list_operation(engine, operation);
        return false;
    }
    if (ios > 1 && row->op == WRITE) {
        job->long_writes++;
    }
    int32_t act = row->op == DELETE ? ERASE : is_open ? MOVE : ios == 1 ? WHOLE : OPEN;
    if (act == MOVE || act == WHOLE) {
        operation->next_io = 1;
    }
    operation->out = 1;
    *step = (Step){.operation = operation,
                   .act = act,
                   .from_bytes = from,
                   .bytes = has_bytes && act != OPEN ? to - from : 0};
    return true;
}

// Fills `step` with the next I/O of an operation.
static void take_next_io(Engine *engine, Queue *queue, Operation *operation, Step *step) {
    int64_t io = engine->job->io_bytes;
    int64_t start = operation->from_bytes + operation->next_io++ * io;
    int64_t end = min_of(start + io, operation->to_bytes);
    operation->out++;
    if (operation->promised > operation->ios - operation->next_io) {
        operation->promised--;
        queue->promised[operation->is_bulk]--;
    }
    if (operation->next_io == operation->ios) {
        unlist_operation(queue, operation);
    }
    *step = (Step){.operation = operation, .act = MOVE, .from_bytes = start, .bytes = end - start};
}

// Returns the checkpoint operation with the fewest I/Os in flight that may start another one.
static Operation *find_bulk_operation(Engine *engine, Queue *queue) {
    Operation *found = NULL;
    for (Operation *operation = queue->bulk; operation; operation = operation->next) {
        if (operation->out < engine->job->bulk_depth && (!found || operation->out < found->out)) {
            found = operation;
        }
    }
    return found;
}

// Explains why slots are free and no row may start.
static Waiting explain_idle_slots(const Engine *engine, const Queue *queue) {
    const Order *order = &engine->order;
    int64_t laid = atomic_load_explicit(&order->rows->laid, memory_order_relaxed);
    if (order->cursor == order->rows->total && !order->chained && !queue->ready.count) {
        return FREE_TO_GO; // All rows have started.
    }
    bool is_unread = order->cursor == laid && laid < order->rows->total &&
                     laid - atomic_load(&order->rows->given) <= order->rows->mask;
    return is_unread ? UNREAD : BLOCKED;
}

// Returns whether the operations in progress fill the queue without this row. Opening its file now
// would reserve space too early: 200 slots that each open an object of 340 MB reserve 70 GB of a
// drive of which the trace uses 4 GB.
static bool would_open_too_soon(const Engine *engine, const Queue *queue, const Row *row) {
    return row->op != DELETE && row->length_bytes > engine->job->io_bytes &&
           queue->promised[row->is_bulk] >= queue->slots->all;
}

// Takes the next step of a queue, in this order: close an operation, continue the oldest operation
// in progress, start the first ready row that is due, continue a checkpoint operation. If there is
// none, `next_ns` is the next due time, or INT64_MAX. The caller holds the lock.
bool loop_take_step(Engine *engine, int queue_index, int64_t now, Step *step, int64_t *next_ns) {
    Queue *queue = &engine->queue[queue_index];
    Slots *slots = queue->slots;
    Waiting waiting = FREE_TO_GO;
    bool is_found = false;
    *next_ns = INT64_MAX;
    for (int begun = 0; !is_found && begun < MOST_BEGUN; begun++) {
        bool may = slots_has_free(engine, slots);
        if (may && queue->closing) {
            Operation *operation = queue->closing;
            queue->closing = operation->next;
            operation->out = 1;
            *step = (Step){.operation = operation, .act = CLOSE};
            is_found = true;
            break;
        }
        if (engine->job->is_stopped) {
            break;
        }
        if (queue->first) {
            if (may) {
                take_next_io(engine, queue, queue->first, step);
                is_found = true;
            } else {
                waiting = slots->count ? GROWING : DEPTH_LIMITED;
            }
            break;
        }
        if (order_admit_rows(engine, queue)) {
            *next_ns = now;
        }
        if (queue->ready.count && !queue->is_full) {
            Row *row = rows_at(engine->order.rows, queue->ready.number[0]);
            bool is_depth_limited = !slots->count || slots->operations >= slots->all ||
                                    would_open_too_soon(engine, queue, row);
            if (row->due_ns > now) {
                *next_ns = row->due_ns;
            } else if (engine->job->tier[row->tier].kind == NOTHING || (may && !is_depth_limited)) {
                engine->order.ready--;
                is_found = start_operation(engine, queue_index, heap_pop(&queue->ready), now, step);
                if (begun == MOST_BEGUN - 1) {
                    *next_ns = now;
                }
                continue;
            } else {
                waiting = is_depth_limited ? DEPTH_LIMITED : GROWING;
            }
        } else if (queue->is_full || (*next_ns > now && !queue->bulk)) {
            waiting = explain_idle_slots(engine, queue);
        }
        Operation *bulk = may ? find_bulk_operation(engine, queue) : NULL;
        if (bulk) {
            take_next_io(engine, queue, bulk, step);
            is_found = true;
        }
        break;
    }
    if (slots == &engine->slots) {
        account_slot_time(engine, now);
    }
    if (is_found) {
        slots_take(engine, slots, step);
    }
    if (slots != &engine->slots) {
        return is_found;
    }
    engine->waiting = waiting;
    engine->full_due_ns = INT64_MAX;
    if (is_found && !slots->count) {
        if (queue->first) {
            engine->full_due_ns = now;
        } else if (queue->ready.count) {
            engine->full_due_ns = rows_at(engine->order.rows, queue->ready.number[0])->due_ns;
        }
    }
    return is_found;
}

// Records the result of a step and lists, closes or finishes its operation. The caller holds the
// lock.
void loop_complete_step(Engine *engine, Step *step) {
    Operation *operation = step->operation;
    Queue *queue = &engine->queue[operation->queue];
    bool is_read = operation->row->op == READ;
    int64_t least = step->bytes;
    if (is_read && operation->needed_to_bytes - step->from_bytes < least) {
        least = operation->needed_to_bytes - step->from_bytes;
    }
    operation->out--;
    if (step->ended_ns > operation->last_ns) {
        operation->last_ns = step->ended_ns;
    }
    atomic_fetch_add_explicit(&engine->job->moved_steps, 1, memory_order_relaxed);
    if (queue->slots == &engine->slots) {
        account_slot_time(engine, step->ended_ns);
    }
    slots_return(engine, queue->slots, step->slot);
    if (step->result < 0) {
        fail_operation(engine, operation, FAILED, -step->result, step);
    } else if ((step->act == MOVE || step->act == WHOLE) && step->result < least) {
        fail_operation(engine, operation, is_read ? SHORT : FAILED, 0, step);
    }
    if (operation->is_failed) {
        unlist_operation(queue, operation);
    }
    if (step->act == OPEN && !operation->is_failed) {
        list_operation(engine, operation);
    } else if (step->act == MOVE) {
        close_or_finish_operation(engine, operation);
    } else {
        finish_operation(engine, operation);
    }
}

// --- data

void operation_generate_data(Engine *engine, Use *use, const Step *step) {
    Row *row = step->operation->row;
    if (step->is_prepared) {
        return;
    }
    int64_t started = monotonic_ns();
    use->doing = MAKING_DATA;
    data_generate(engine->job->data, engine_slot_buffer(engine, step->slot), step->bytes,
                  step->from_bytes, row->object_id, row->version);
    use->making_ns += monotonic_ns() - started;
}

static void verify_blocks(Engine *engine, const Step *step, const uint8_t *data, int64_t from,
                          int64_t to, int64_t version) {
    Job *job = engine->job;
    Row *row = step->operation->row;
    for (int64_t at = from; at + BLOCK_BYTES <= to; at += BLOCK_BYTES) {
        BadBlock bad;
        if (data_verify(job->data, data + (at - step->from_bytes), at, row->object_id, version,
                        &bad) == GOOD_BLOCK) {
            continue;
        }
        bad.row = row->trace_row;
        bad.tier = row->tier;
        atomic_fetch_add(&job->faults[bad.fault], 1);
        int64_t number = atomic_fetch_add(&job->bad_blocks, 1);
        if (number < job->bad_room) {
            job->bad[number] = bad;
        }
        set_outcome(row, CORRUPT);
    }
}

void operation_verify_data(Engine *engine, Use *use, const Step *step, const void *data,
                           int64_t bytes) {
    enum { AT_ONCE = 256 };
    Row *row = step->operation->row;
    int64_t started = monotonic_ns();
    int64_t from = step->from_bytes;
    int64_t to = from + bytes / BLOCK_BYTES * BLOCK_BYTES;
    int64_t seen = 0;
    use->doing = CHECKING;
    if (row->version != VERSION_MIXED) {
        verify_blocks(engine, step, data, from, to, row->version);
        seen = to - from;
    } else {
        Span some[AT_ONCE];
        Span *last = &some[AT_ONCE - 1];
        for (int64_t at = from, count = AT_ONCE; count == AT_ONCE && at < to; at = last->to_bytes) {
            count = plan_spans(engine->job->plan, step->operation->number, at, some, AT_ONCE);
            for (Span *span = some; span < some + count; span++) {
                int64_t a = span->from_bytes > from ? span->from_bytes : from;
                int64_t b = span->to_bytes < to ? span->to_bytes : to;
                if (a >= b) {
                    continue;
                }
                verify_blocks(engine, step, data, a, b, span->version);
                seen += b - a;
            }
        }
    }
    atomic_fetch_add(&engine->job->checked_blocks, seen / BLOCK_BYTES);
    atomic_fetch_add(&engine->job->unwritten_blocks, (to - from - seen) / BLOCK_BYTES);
    use->checking_ns += monotonic_ns() - started;
}

// Writes the path of an object's file, relative to the directory whose descriptor is returned.
int32_t operation_write_path(const Tier *tier, int64_t object, char *name) {
    uint64_t product = (uint64_t)(object + 1) * tier->spread;
    uint64_t hash = product ^ product >> 32;
    memcpy(name, tier->name, (size_t)tier->name_bytes);
    for (int64_t i = 0; i < tier->digits; i++) {
        name[tier->digit[i].at] =
            "0123456789abcdef"[(tier->digit[i].of_hash ? hash : (uint64_t)object) >>
                                   tier->digit[i].shift &
                               15];
    }
    return tier_drive_of_object(tier, object)->fd;
}
