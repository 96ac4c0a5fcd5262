// The life of an operation, once for all ways in which bytes move: ready, due, started, put,
// reaped, finished.
//
// A loop takes a step (take_step), does it in its own way (uring.c, threads.c), and says what came
// of it (end_step). An operation of one I/O is one step; a longer one opens, moves I/O by I/O, and
// closes when its last I/O has come.
#include "plan.h"
#include "replay.h"

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

enum {
    MOST_BEGUN = 1024
}; // operations that end as they begin, before a loop looks at anything else

int64_t run_ns(const Engine *e) {
    return e->job->virtual_end_ns ? e->virtual_ns : now_ns() - e->job->start_ns;
}
void lock(Engine *e) {
    pthread_mutex_lock(&e->order.lock);
}
void unlock(Engine *e) {
    pthread_mutex_unlock(&e->order.lock);
}
uint8_t *buffer_of(const Engine *e, int32_t place) {
    return e->job->buffers + place * e->job->io_bytes;
}

bool is_over(const Engine *e) {
    return atomic_load_explicit(&e->job->is_stopped, memory_order_relaxed) ||
           atomic_load_explicit(&e->job->completed, memory_order_relaxed) == e->order.rows->total;
}

// --- queues and places
// -----------------------------------------------------------------------------------------------

static Drive *drive_of(const Tier *t, int64_t object) {
    return &t->drive[t->drive_of ? t->drive_of[object] : 0];
}

Queue *queue_of(Engine *e, const Row *row) {
    Tier *t = &e->job->tier[row->tier];
    int queue = t->queue[row->op];
    if (queue == RINGS_QUEUE) {
        Drive *d = drive_of(t, row->object_id);
        queue = d->first_loop + d->loop_step * (row->object_id % d->loops);
    }
    return &e->queue[queue];
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

void wake_all(Engine *e) {
    for (int i = 0; i < e->queues; i++) {
        queue_wake(&e->queue[i]);
        if (e->queue[i].event_fd == NONE) {
            pthread_cond_broadcast(&e->queue[i].woken);
        }
    }
}

static bool has_place(Engine *e, Places *p) {
    if (p == &e->places) {
        p->allowed = (int32_t)atomic_load_explicit(&e->job->allowed_places, memory_order_relaxed);
    }
    return p->count && p->all - p->count < p->allowed;
}

static int32_t take_place(Engine *e, Places *p) {
    int32_t place = p->free[--p->count], used = p->all - p->count;
    if (p == &e->places) {
        e->job->most_places = max_of(e->job->most_places, used);
    }
    atomic_store_explicit(p == &e->places ? &e->job->in_flight : &e->job->copying, used,
                          memory_order_relaxed);
    return place;
}

static void give_place(Engine *e, Places *p, int32_t place) {
    bool was_full = !has_place(e, p);
    p->free[p->count++] = place;
    atomic_store_explicit(p == &e->places ? &e->job->in_flight : &e->job->copying,
                          p->all - p->count, memory_order_relaxed);
    if (!was_full) {
        return;
    }
    for (Queue *l = e->queue; l < e->queue + e->queues; l++) {
        if (l->places == p && (l->ready.count || l->first || l->bulk || l->closing)) {
            queue_wake(l);
        }
    }
}

// What the time since the last look was, by how things stood from then on: before a place is taken
// or given.
static void account(Engine *e, int64_t now) {
    Job *j = e->job;
    int64_t passed = now - e->counted_ns, used = e->places.all - e->places.count,
            idle = e->places.all - used;
    if (passed > 0) {
        j->in_use_ns += used * passed;
        if (e->waiting == DEPTH_LIMITED) {
            j->depth_limited_ns += passed;
        } else if (now > e->full_due_ns) { // nobody looked meanwhile: all that could were at work
            j->depth_limited_ns +=
                now - (e->full_due_ns > e->counted_ns ? e->full_due_ns : e->counted_ns);
        }
        if (e->waiting == GROWING) {
            j->growing_ns += passed;
        }
        if (e->waiting == BLOCKED) {
            j->blocked_ns += idle * passed;
        }
        if (e->waiting == UNREAD) {
            j->unread_ns += idle * passed;
        }
        e->counted_ns = now;
    }
}

// --- an operation begins and ends
// -----------------------------------------------------------------------------------

static void set_outcome(Row *r, int8_t outcome) { // last: whoever sees it sees the times
    __atomic_store_n(&r->outcome, outcome, __ATOMIC_RELEASE);
}

static void leave(Engine *e, int64_t number, int64_t now) {
    if (now > e->latest_ns) {
        e->latest_ns = now;
    }
    order_leave(e, number, now);
    for (Queue *l = e->queue; l < e->queue + e->queues; l++) {
        if (l->is_full) {
            l->is_full = false;
            queue_wake(l);
        }
    }
    int64_t done = atomic_fetch_add_explicit(&e->job->completed, 1, memory_order_relaxed) + 1;
    if (done == e->order.rows->total) {
        wake_all(e);
    }
}

static void fail(Engine *e, Operation *f, int8_t outcome, int64_t error, const Step *s) {
    Job *j = e->job;
    if (f->is_failed) {
        return;
    }
    f->is_failed = true;
    set_outcome(f->row, outcome);
    int64_t none = NONE;
    if (atomic_compare_exchange_strong(&j->failed_row, &none, f->number)) {
        j->failed_trace_row = f->row->trace_row, j->failed_op = f->row->op;
        j->failed_object = f->row->object_id, j->failed_tier = f->row->tier;
        j->failed_errno = error;
        j->failed_outcome = outcome;
        j->failed_from_bytes = s ? s->from_bytes : 0;
        j->failed_bytes = s ? s->bytes : 0;
        j->failed_moved = s ? s->result : 0;
    }
    if (j->stops_on_error) {
        j->is_stopped = true;
        wake_all(e);
    }
}

static void unlist(Queue *l, Operation *f) {
    if (!f->is_listed) {
        return;
    }
    Operation **first = f->is_bulk ? &l->bulk : &l->first, *before = NULL;
    for (Operation *at = *first; at != f; at = at->next) {
        before = at;
    }
    if (before) {
        before->next = f->next;
    } else {
        *first = f->next;
    }
    if (!f->is_bulk && l->last == f) {
        l->last = before;
    }
    f->is_listed = false;
}

static void list(Engine *e, Operation *f) { // its I/Os may go
    Queue *l = &e->queue[f->queue];
    f->is_listed = true;
    f->next = NULL;
    if (f->is_bulk) {
        f->next = l->bulk, l->bulk = f;
    } else if (l->first) {
        l->last = l->last->next = f;
    } else {
        l->first = l->last = f;
    }
    queue_wake(l);
}

static void release(Engine *e, Operation *f) { // its place among those under way
    Queue *l = &e->queue[f->queue];
    l->promised[f->is_bulk] -= f->promised;
    l->places->operations--;
    f->next = l->places->spare;
    f->row = NULL;
    l->places->spare = f;
}

static void finish(Engine *e, Operation *f) {
    Row *r = f->row;
    if (!f->is_failed && r->outcome != CORRUPT) {
        r->completed_ns = f->last_ns;
        set_outcome(r, OK);
    }
    release(e, f);
    leave(e, f->number, f->last_ns);
}

static bool needs_close(const Operation *f) {
    switch (f->tier->kind) {
    case EXTENTS:
        return f->tier->is_synced && f->row->op == WRITE && !f->is_failed;
    case FILES:
    case PYTHON:
        return f->ios > 1;
    default:
        return false;
    }
}

static void end_ios(Engine *e, Operation *f) { // if all have come and none will follow
    Queue *l = &e->queue[f->queue];
    if (f->out || (f->next_io < f->ios && !f->is_failed)) {
        return;
    }
    if (!needs_close(f)) {
        finish(e, f);
        return;
    }
    f->next = l->closing;
    l->closing = f;
    queue_wake(l);
}

// Of a filesystem's errors: it does not preallocate, so files grow as they are written.
bool can_not_grow(int error) {
    return error == EOPNOTSUPP || error == EINVAL || error == ENOSYS || error == ENODEV;
}

void stamp(Step *s, int64_t now) {
    if (__atomic_exchange_n(&s->operation->is_stamped, true, __ATOMIC_RELAXED)) {
        return; // several move its I/Os
    }
    s->operation->row->submitted_ns = now;
}

// Find or make room for the object; 0, or an errno.
static int64_t find_room(Engine *e, Operation *f) {
    Row *r = f->row;
    int64_t started = now_ns(), to = f->to_bytes > 0 ? f->to_bytes : 1;
    int64_t start = r->op == WRITE ? space_reserve(f->drive->space, r->object_id, to)
                                   : space_find(f->drive->space, r->object_id, NULL);
    e->job->reserve_ns += r->op == WRITE ? now_ns() - started : 0;
    if (start < 0) {
        return -start;
    }
    f->base = f->drive->base + start;
    f->fd = f->drive->fd;
    return 0;
}

// Begin a row; whether it is a step now. Else it has ended, or its I/Os are listed.
static bool begin(Engine *e, int queue, int64_t number, int64_t now, Step *s) {
    Job *j = e->job;
    Row *r = row_at(e->order.rows, number);
    Tier *t = &j->tier[r->tier];
    if (now < e->latest_ns) {
        now = e->latest_ns;
    }
    if (t->kind == NOTHING || (t->kind == MODELLED && r->op == DELETE)) {
        r->submitted_ns = r->completed_ns = now;
        set_outcome(r, OK);
        leave(e, number, now);
        return false;
    }
    Queue *l = &e->queue[queue];
    Operation *f = l->places->spare;
    l->places->spare = f->next;
    l->places->operations++;
    int64_t end = r->offset_bytes + r->length_bytes, pad = t->padding_bytes;
    int64_t from = r->offset_bytes / pad * pad, to = (end + pad - 1) / pad * pad;
    bool has_bytes = r->op != DELETE && r->length_bytes > 0 && (t->kind != MODELLED || t->matrix);
    int32_t ios = has_bytes ? (int32_t)((to - from + j->io_bytes - 1) / j->io_bytes) : 1,
            id = f->id;
    *f = (Operation){.number = number,
                     .row = r,
                     .tier = t,
                     .drive = t->drives ? drive_of(t, r->object_id) : NULL,
                     .from_bytes = from,
                     .to_bytes = to,
                     .needed_to_bytes = end,
                     .ios = ios,
                     .fd = NONE,
                     .id = id,
                     .queue = queue,
                     .is_bulk = r->is_bulk && ios > 1};
    int64_t error = 0;
    bool is_open = false;
    if (ios > 1) {
        f->promised = f->is_bulk && j->bulk_depth < ios ? (int32_t)j->bulk_depth : ios;
    }
    l->promised[f->is_bulk] += f->promised;
    if (t->kind == EXTENTS || t->kind == MEMORY) {
        if (r->op == DELETE && !t->is_discarding) {
            r->submitted_ns = now;
            error = -space_release(f->drive->space, r->object_id);
        } else if (r->op != DELETE) {
            error = find_room(e, f);
        }
        if (error == ENOSPC &&
            atomic_load_explicit(&e->order.rows->ended, memory_order_relaxed) < number) {
            // A delete that the trace has before it may still wait: again when something more has
            // ended.
            release(e, f);
            l->is_full = true;
            heap_push(&l->ready, number);
            e->order.ready++;
            return false;
        }
        if (error || (r->op == DELETE && !t->is_discarding) || (!has_bytes && r->op != DELETE)) {
            if (r->submitted_ns == NONE) {
                r->submitted_ns = now;
            }
            f->last_ns = run_ns(e);
            if (error) {
                fail(e, f, FAILED, error, NULL);
            }
            finish(e, f);
            return false;
        }
        is_open = true;
        if (r->op != DELETE && ios > 1) {
            if (r->op == WRITE) {
                j->long_writes++;
            }
            list(e, f);
            return false;
        }
    }
    if (ios > 1 && t->kind == MODELLED) {
        list(e, f);
        return false;
    }
    if (ios > 1 && r->op == WRITE) {
        j->long_writes++;
    }
    int32_t act = r->op == DELETE ? ERASE : is_open ? MOVE : ios == 1 ? WHOLE : OPEN;
    if (act == MOVE || act == WHOLE) {
        f->next_io = 1;
    }
    f->out = 1;
    *s = (Step){.operation = f,
                .act = act,
                .from_bytes = from,
                .bytes = has_bytes && act != OPEN ? to - from : 0};
    return true;
}

static void next_io(Engine *e, Queue *l, Operation *f, Step *s) {
    int64_t io = e->job->io_bytes, start = f->from_bytes + f->next_io++ * io,
            end = min_of(start + io, f->to_bytes);
    f->out++;
    if (f->promised > f->ios - f->next_io) {
        f->promised--;
        l->promised[f->is_bulk]--;
    }
    if (f->next_io == f->ios) {
        unlist(l, f);
    }
    *s = (Step){.operation = f, .act = MOVE, .from_bytes = start, .bytes = end - start};
}

static Operation *next_bulk(Engine *e, Queue *l) { // that of which the fewest I/Os are in flight
    Operation *found = NULL;
    for (Operation *f = l->bulk; f; f = f->next) {
        if (f->out < e->job->bulk_depth && (!found || f->out < found->out)) {
            found = f;
        }
    }
    return found;
}

static Waiting why_idle(const Engine *e,
                        const Queue *l) { // has room in the queue, and nothing that may go
    const Order *o = &e->order;
    int64_t laid = atomic_load_explicit(&o->rows->laid, memory_order_relaxed);
    if (o->cursor == o->rows->total && !o->chained && !l->ready.count) {
        return FREE_TO_GO; // all rows went
    }
    bool is_unread = o->cursor == laid && laid < o->rows->total &&
                     laid - atomic_load(&o->rows->given) <= o->rows->mask;
    return is_unread ? UNREAD : BLOCKED;
}

// Whether the operations under way fill the queue without this one. To open its file now would
// reserve its space too soon: a queue of 200 places, each opening an object of 340 MB, takes 70 GB
// of a drive that the trace fills with 4.
static bool is_too_soon(const Engine *e, const Queue *l, const Row *r) {
    return r->op != DELETE && r->length_bytes > e->job->io_bytes &&
           l->promised[r->is_bulk] >= l->places->all;
}

// Take what this queue's loop is to do now. If there is nothing, `next_ns` is when something is
// due, or INT64_MAX.
bool take_step(Engine *e, int queue, int64_t now, Step *s, int64_t *next_ns) {
    Queue *l = &e->queue[queue];
    Places *p = l->places;
    Waiting waiting = FREE_TO_GO;
    bool is_found = false;
    *next_ns = INT64_MAX;
    for (int begun = 0; !is_found && begun < MOST_BEGUN; begun++) {
        bool may = has_place(e, p);
        if (may && l->closing) {
            Operation *f = l->closing;
            l->closing = f->next;
            f->out = 1;
            *s = (Step){.operation = f, .act = CLOSE};
            is_found = true;
            break;
        }
        if (e->job->is_stopped) {
            break;
        }
        if (l->first) {
            if (may) {
                next_io(e, l, l->first, s), is_found = true;
            } else {
                waiting = p->count ? GROWING : DEPTH_LIMITED;
            }
            break;
        }
        if (order_look(e, l)) {
            *next_ns = now;
        }
        if (l->ready.count && !l->is_full) {
            Row *r = row_at(e->order.rows, l->ready.number[0]);
            bool is_depth_limited = !p->count || p->operations >= p->all || is_too_soon(e, l, r);
            if (r->due_ns > now) {
                *next_ns = r->due_ns;
            } else if (e->job->tier[r->tier].kind == NOTHING || (may && !is_depth_limited)) {
                e->order.ready--;
                is_found = begin(e, queue, heap_pop(&l->ready), now, s);
                if (begun == MOST_BEGUN - 1) {
                    *next_ns = now;
                }
                continue;
            } else {
                waiting = is_depth_limited ? DEPTH_LIMITED : GROWING;
            }
        } else if (l->is_full || (*next_ns > now && !l->bulk)) {
            waiting = why_idle(e, l);
        }
        Operation *bulk = may ? next_bulk(e, l) : NULL;
        if (bulk) {
            next_io(e, l, bulk, s), is_found = true;
        }
        break;
    }
    if (p == &e->places) {
        account(e, now);
    }
    if (is_found) {
        s->place = take_place(e, p);
    }
    if (p != &e->places) {
        return is_found;
    }
    e->waiting = waiting;
    e->full_due_ns = INT64_MAX;
    if (is_found && !p->count) {
        if (l->first) {
            e->full_due_ns = now;
        } else if (l->ready.count) {
            e->full_due_ns = row_at(e->order.rows, l->ready.number[0])->due_ns;
        }
    }
    return is_found;
}

// Say what came of a step; the caller holds the lock.
void end_step(Engine *e, Step *s) {
    Operation *f = s->operation;
    Queue *l = &e->queue[f->queue];
    bool is_read = f->row->op == READ;
    int64_t least = s->bytes;
    if (is_read && f->needed_to_bytes - s->from_bytes < least) {
        least = f->needed_to_bytes - s->from_bytes;
    }
    f->out--;
    if (s->ended_ns > f->last_ns) {
        f->last_ns = s->ended_ns;
    }
    atomic_fetch_add_explicit(&e->job->moved_steps, 1, memory_order_relaxed);
    if (l->places == &e->places) {
        account(e, s->ended_ns);
    }
    give_place(e, l->places, s->place);
    if (s->result < 0) {
        fail(e, f, FAILED, -s->result, s);
    } else if ((s->act == MOVE || s->act == WHOLE) && s->result < least) {
        fail(e, f, is_read ? SHORT : FAILED, 0, s);
    }
    if (f->is_failed) {
        unlist(l, f);
    }
    if (s->act == OPEN && !f->is_failed) {
        list(e, f);
    } else if (s->act == MOVE) {
        end_ios(e, f);
    } else {
        finish(e, f);
    }
}

// --- data
// -----------------------------------------------------------------------------------------------------------

void make_data(Engine *e, Use *use, const Step *s) {
    Row *r = s->operation->row;
    int64_t started = now_ns();
    use->doing = MAKING_DATA;
    data_make(e->job->data, buffer_of(e, s->place), s->bytes, s->from_bytes, r->object_id,
              r->version);
    use->making_ns += now_ns() - started;
}

static void check_blocks(Engine *e, const Step *s, const uint8_t *data, int64_t from, int64_t to,
                         int64_t version) {
    Job *j = e->job;
    Row *r = s->operation->row;
    for (int64_t at = from; at + BLOCK_BYTES <= to; at += BLOCK_BYTES) {
        BadBlock bad;
        if (data_check(j->data, data + (at - s->from_bytes), at, r->object_id, version, &bad) ==
            GOOD_BLOCK) {
            continue;
        }
        bad.row = r->trace_row, bad.tier = r->tier;
        atomic_fetch_add(&j->faults[bad.fault], 1);
        int64_t number = atomic_fetch_add(&j->bad_blocks, 1);
        if (number < j->bad_room) {
            j->bad[number] = bad;
        }
        set_outcome(r, CORRUPT);
    }
}

void check_data(Engine *e, Use *use, const Step *s, const void *data, int64_t bytes) {
    enum { AT_ONCE = 256 };
    Row *r = s->operation->row;
    int64_t started = now_ns(), from = s->from_bytes, to = from + bytes / BLOCK_BYTES * BLOCK_BYTES,
            seen = 0;
    use->doing = CHECKING;
    if (r->version != VERSION_MIXED) {
        check_blocks(e, s, data, from, to, r->version);
        seen = to - from;
    } else {
        Span some[AT_ONCE], *last = &some[AT_ONCE - 1];
        for (int64_t at = from, count = AT_ONCE; count == AT_ONCE && at < to; at = last->to_bytes) {
            count = plan_spans(e->job->plan, s->operation->number, at, some, AT_ONCE);
            for (Span *span = some; span < some + count; span++) {
                int64_t a = span->from_bytes > from ? span->from_bytes : from,
                        b = span->to_bytes < to ? span->to_bytes : to;
                if (a >= b) {
                    continue;
                }
                check_blocks(e, s, data, a, b, span->version);
                seen += b - a;
            }
        }
    }
    atomic_fetch_add(&e->job->checked_blocks, seen / BLOCK_BYTES);
    atomic_fetch_add(&e->job->unwritten_blocks, (to - from - seen) / BLOCK_BYTES);
    use->checking_ns += now_ns() - started;
}

// The path of an object's file, relative to the directory whose descriptor is returned.
int32_t write_name(const Tier *t, int64_t object, char *name) {
    uint64_t product = (uint64_t)(object + 1) * t->spread, hash = product ^ product >> 32;
    memcpy(name, t->name, (size_t)t->name_bytes);
    for (int64_t i = 0; i < t->digits; i++) {
        name[t->digit[i].at] = "0123456789abcdef"[(t->digit[i].of_hash ? hash : (uint64_t)object) >>
                                                      t->digit[i].shift &
                                                  15];
    }
    return drive_of(t, object)->fd;
}
