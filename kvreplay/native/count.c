// What is counted of rows that have ended: distributions, kinds, seconds, requests, what was in
// flight at once; and the journal's batches.
#include "count.h"

#include <stdlib.h>
#include <string.h>

static const int64_t NS_PER_S = 1000000000, MIB = 1 << 20, LATE_NS = 1000000;

static inline int64_t floor_to(int64_t n,
                               int64_t unit) { // units are powers of two, but for some I/O sizes
    return unit & (unit - 1) ? n / unit * unit : n & -unit;
}

// --- distributions
// --------------------------------------------------------------------------------------------------

static inline int64_t slot_by(int64_t value, int sub_bits) {
    if (value < 1 << sub_bits) {
        return max_of(value, 0);
    }
    // A double's exponent and the first bits of its fraction stand beside each other.
    union {
        double number;
        int64_t bits;
    } as = {.number = (double)value};
    return (as.bits >> (52 - sub_bits)) - ((int64_t)(1023 + sub_bits - 1) << sub_bits);
}

static inline int64_t slot_of(int64_t value) {
    return slot_by(value, SUB_BITS);
}

static inline void put(Times *t, int64_t value) {
    if (t->count < t->limit) {
        t->value[t->count] = value;
    } else {
        if (t->count == t->limit) {
            for (int64_t i = 0; i < t->count; i++) {
                t->slot[slot_of(t->value[i])]++;
            }
        }
        t->slot[slot_of(value)]++;
    }
    t->count++;
    t->sum_high += value >> 32;
    t->sum_low += value & 0xFFFFFFFF;
    t->most = max_of(t->most, value);
}

EXPORT void times_put(Times *t, const int64_t *value, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        put(t, value[i]);
    }
}

EXPORT void times_fill(int64_t *slot, const int64_t *value, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        slot[slot_of(value[i])]++;
    }
}

// --- in the order of time
// -------------------------------------------------------------------------------------------

// Stable, by submission. Operations are hardly in disorder: mostly it is seen that two runs follow
// each other.
static void sort(Done *done, Done *spare, int64_t count) {
    enum { RUN = 16 };
    for (int64_t i = 1; i < count; i++) {
        const Done own = done[i];
        int64_t at = i;
        for (; at & (RUN - 1) && done[at - 1].submitted_ns > own.submitted_ns; at--) {
            done[at] = done[at - 1];
        }
        if (at < i) {
            done[at] = own;
        }
    }
    for (int64_t width = RUN; width < count; width *= 2) {
        for (int64_t middle = width; middle < count; middle += 2 * width) {
            const int64_t low = middle - width, high = min_of(middle + width, count);
            int64_t left = middle, right = middle;
            while (left > low && done[left - 1].submitted_ns > done[middle].submitted_ns) {
                left--;
            }
            while (right < high && done[right].submitted_ns < done[middle - 1].submitted_ns) {
                right++;
            }
            const int64_t lefts = middle - left;
            memcpy(spare, done + left, (size_t)lefts * sizeof(Done));
            int64_t to = left, i = 0, j = middle;
            while (i < lefts) {
                done[to++] = j < right && done[j].submitted_ns < spare[i].submitted_ns ? done[j++]
                                                                                       : spare[i++];
            }
        }
    }
}

// One that ends as another starts does not overlap it.
static void begin_operation(InFlight *f, int64_t start_ns, int64_t end_ns) {
    while (f->ends.count && f->ends.number[0] <= start_ns) {
        heap_pop(&f->ends);
    }
    if (end_ns > start_ns) {
        heap_push(&f->ends, end_ns);
    }
    f->most = max_of(f->most, f->ends.count);
}

// Spans come by their ends. Those further back than all that there is room for are not joined any
// more.
static void add_wait(InOrder *o, int64_t from_ns, int64_t to_ns) {
    from_ns = max_of(from_ns, o->wait_floor_ns);
    if (to_ns <= from_ns) {
        return;
    }
    while (o->waits && o->wait[o->waits - 1].to_ns >= from_ns) {
        const Wait *last = &o->wait[--o->waits];
        o->waited_ns -= last->to_ns - last->from_ns;
        from_ns = min_of(from_ns, last->from_ns);
    }
    if (o->waits == o->wait_room) {
        const int64_t half = o->waits / 2;
        o->wait_floor_ns = o->wait[half - 1].to_ns;
        o->waits -= half;
        memmove(o->wait, o->wait + half, (size_t)o->waits * sizeof(Wait));
    }
    o->wait[o->waits++] = (Wait){from_ns, to_ns};
    o->waited_ns += to_ns - from_ns;
}

static void look(InOrder *o, const Done *d) {
    const bool is_late = d->submitted_ns < o->reached_ns;
    o->late += is_late;
    o->reached_ns = max_of(o->reached_ns, d->submitted_ns);
    begin_operation(&o->in_flight[d->kind], d->submitted_ns, d->completed_ns);
    if (o->group[d->kind] != NONE) {
        begin_operation(&o->in_flight[o->group[d->kind]], d->submitted_ns, d->completed_ns);
    }
    Covered *tier = &o->covered[o->tier[d->kind]];
    if (d->completed_ns > tier->until_ns) {
        tier->covered_ns += d->completed_ns - max_of(d->submitted_ns, tier->until_ns);
        tier->until_ns = d->completed_ns;
    }
    if (d->length_op != NONE && tier->levels < tier->level_room) {
        tier->level[tier->levels++] = (Level){d->submitted_ns, d->completed_ns, d->length_op};
    }
    if (o->is_open_loop && !is_late) {
        add_wait(o, d->free_ns, d->submitted_ns);
    }
}

// Looks at the half that was submitted first, at all of them if no more follow.
EXPORT void order_flush(InOrder *o, int64_t is_last) {
    const int64_t taken = is_last ? o->dones : o->dones / 2;
    sort(o->done, o->spare, o->dones);
    for (int64_t i = 0; i < taken; i++) {
        look(o, &o->done[i]);
    }
    o->dones -= taken;
    memmove(o->done, o->done + taken, (size_t)o->dones * sizeof(Done));
}

EXPORT void order_free(InFlight *f, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        free(f[i].ends.number);
    }
}

// --- a row at a time, whatever their order
// --------------------------------------------------------------------------

static inline int64_t asked_of(const Counting *c, const Row *r) {
    if (!c->moves[r->tier] || r->op == DELETE) {
        return NONE;
    }
    const int64_t unit = c->padding_bytes[r->tier], end_bytes = r->offset_bytes + r->length_bytes;
    return r->length_bytes ? floor_to(end_bytes + unit - 1, unit) - floor_to(r->offset_bytes, unit)
                           : 0;
}

static inline void count_second(Counting *c, const Row *r, int64_t at) {
    // What failed has no completion: it counts where it was submitted.
    const int64_t when_ns = r->completed_ns == NONE ? r->submitted_ns : r->completed_ns;
    const int64_t of = max_of(when_ns / NS_PER_S, c->first_second), key = of * c->kinds + at;
    const int64_t latency_ns = r->completed_ns - r->submitted_ns;
    Second *second = &c->second[key - c->first_second * c->kinds];
    if (r->outcome != OK) {
        second->errors++;
        return;
    }
    second->operations++;
    second->bytes += r->op == DELETE ? 0 : r->length_bytes;
    second->latency_ns += latency_ns;
    second->most_ns = max_of(second->most_ns, latency_ns);
    c->ended[c->endeds++] = (Ended){key, latency_ns};
}

static inline int64_t size_of(const Row *r) { // the class of its length
    int64_t size = 0;
    if (r->op != DELETE) {
        while (size < SIZES - 1 && r->length_bytes > (int64_t)4096 << size) {
            size++;
        }
    }
    return size;
}

static inline void count_good(Counting *c, const Row *r, int64_t at, int64_t asked_bytes) {
    Kind *kind = &c->kind[at];
    Times *times = &c->times[at * c->each];
    const int64_t start_ns = r->submitted_ns, end_ns = r->completed_ns,
                  service_ns = end_ns - start_ns;
    const bool is_timed = c->is_timed[r->tier];
    int64_t free_ns = start_ns, length_op = NONE;
    kind->good++;
    kind->bytes += r->length_bytes;
    kind->io_bytes += asked_bytes;
    kind->service_ns += service_ns;
    kind->first_ns = min_of(kind->first_ns, start_ns);
    if (end_ns > kind->last_ns) {
        kind->last_ns = end_ns;
        kind->last_service_ns = service_ns;
        kind->last_bytes = r->length_bytes;
    }
    if (is_timed) {
        put(&times[SERVICE], service_ns);
    }
    if (c->is_open_loop) {
        put(&times[RESPONSE], end_ns - r->due_ns);
        free_ns = min_of(max_of(r->due_ns, r->ready_ns), start_ns);
        kind->depended_ns += free_ns - r->due_ns;
        kind->waited_ns += start_ns - free_ns;
        int64_t *sized = c->sized + (at * SIZES + size_of(r)) * 2 * COARSE_SLOTS;
        sized[slot_by(service_ns, COARSE_BITS)]++;
        sized[COARSE_SLOTS + slot_by(end_ns - r->due_ns, COARSE_BITS)]++;
    }
    if (r->op != DELETE && r->length_bytes > 0) {
        const int64_t last_byte = r->offset_bytes + r->length_bytes - 1;
        const int64_t first_byte = floor_to(r->offset_bytes, c->padding_bytes[r->tier]);
        if (is_timed) {
            put(&times[PER_MIB],
                (int64_t)((double)service_ns * ((double)MIB / (double)r->length_bytes)));
        }
        length_op = r->length_bytes * 2 + r->op;
        kind->moved_bytes += r->length_bytes;
        const bool is_single = last_byte - first_byte < c->io_bytes;
        kind->single_bytes += is_single ? r->length_bytes : 0;
    }
    if (!is_timed) {
        return;
    }
    InOrder *o = c->order;
    if (o->dones == o->done_room) {
        order_flush(o, false);
    }
    o->done[o->dones++] = (Done){start_ns, end_ns, free_ns, length_op, at};
}

// Counts rows; `place` (NULL: each tier is one) and `counts`, whether figures count it, are by row.
// `asked_bytes` takes what each asks of its tier, NONE where nothing is.
EXPORT void count_rows(Counting *c, const Row *row, int64_t rows, const int64_t *place,
                       const uint8_t *counts, int64_t *asked_bytes) {
    Run *run = c->run;
    for (int64_t i = 0; i < rows; i++) {
        const Row *r = &row[i];
        const int64_t at = (place ? place[i] : c->first_place[r->tier]) * OPS + r->op,
                      start_ns = r->submitted_ns;
        const bool is_failed = r->outcome == FAILED || r->outcome == SHORT || r->outcome == CORRUPT;
        const bool is_sent = start_ns != NONE,
                   is_good = r->outcome == OK && is_sent && r->completed_ns != NONE;
        Kind *kind = &c->kind[at];
        asked_bytes[i] = asked_of(c, r);
        if (asked_bytes[i] != NONE && (r->outcome == OK || r->outcome == CORRUPT)) {
            kind->asked_bytes += asked_bytes[i];
        }
        run->rows++;
        run->failed += is_failed;
        run->last_completed_ns = max_of(run->last_completed_ns, r->completed_ns);
        run->last_ns = max_of(run->last_ns, max_of(start_ns, r->completed_ns));
        if (is_sent) {
            run->sent += r->outcome != SKIPPED; // not of those that the end cut off in flight
            if (c->moves[r->tier] && r->outcome != SKIPPED) {
                count_second(c, r, at);
            }
        }
        if (!counts[i]) {
            run->left_out += r->outcome == OK;
            continue;
        }
        kind->planned++;
        kind->errors += is_failed;
        kind->corrupt += r->outcome == CORRUPT;
        if (c->is_open_loop && (is_sent || r->due_ns <= run->until_ns)) {
            kind->due++;
            kind->due_bytes += r->op == DELETE ? 0 : r->length_bytes;
            kind->last_due_ns = max_of(kind->last_due_ns, r->due_ns);
            const double gap_ns =
                run->last_due_ns == NONE ? 0 : (double)(r->due_ns - run->last_due_ns);
            run->square_gaps += gap_ns * gap_ns;
            run->first_due_ns = min_of(run->first_due_ns, r->due_ns);
            run->last_due_ns = max_of(run->last_due_ns, r->due_ns);
            if (!is_sent) {
                kind->first_missed_ns = min_of(kind->first_missed_ns, r->due_ns);
            }
        }
        if (is_sent) {
            run->counted_sent++;
            run->first_row = min_of(run->first_row, r->trace_row);
            run->from_ns = min_of(run->from_ns, start_ns);
            if (c->is_open_loop) {
                const int64_t late_ns = start_ns - r->due_ns;
                run->late += late_ns > LATE_NS;
                run->late_by_itself += start_ns - max_of(r->due_ns, r->ready_ns) > LATE_NS;
                put(&c->times[is_good ? at * c->each + LATENESS : c->kinds * c->each], late_ns);
            }
        }
        if (is_good) {
            count_good(c, r, at, asked_bytes[i]);
        }
    }
}

// --- requests
// -------------------------------------------------------------------------------------------------------

static void free_span(Requests *all, int64_t at) {
    all->span[at].before = all->free_span;
    all->free_span = at;
}

// Forgets the requests before `below`, which `over` takes in the order in which they came; returns
// how many they are.
EXPORT int64_t requests_pop(Requests *all, int64_t below, Request *over) {
    int64_t kept = 0, found = 0;
    for (int64_t i = 0; i < all->requests; i++) {
        const Request own = all->request[i];
        if (own.id >= below) {
            *table_find(&all->place, own.id) = kept;
            all->request[kept++] = own;
            continue;
        }
        table_drop(&all->place, own.id);
        over[found++] = own;
        for (int64_t at = own.span, before; at != NONE; at = before) {
            before = all->span[at].before, free_span(all, at);
        }
    }
    all->requests = kept;
    return found;
}

// Adds time in which an operation was in flight; there is room for one span more.
static void add_span(Requests *all, Request *of, int64_t from_ns, int64_t to_ns) {
    Span *span = all->span;
    int64_t after = NONE, at = of->span;
    while (at != NONE && span[at].from_ns > to_ns) {
        after = at, at = span[at].before;
    }
    while (at != NONE && span[at].to_ns >= from_ns) {
        const int64_t before = span[at].before;
        from_ns = min_of(from_ns, span[at].from_ns);
        to_ns = max_of(to_ns, span[at].to_ns);
        of->storage_ns -= span[at].to_ns - span[at].from_ns;
        free_span(all, at);
        at = before;
    }
    int64_t new = all->free_span;
    if (new == NONE) {
        new = all->spans++;
    } else {
        all->free_span = span[new].before;
    }
    span[new] = (Span){from_ns, to_ns, at};
    of->storage_ns += to_ns - from_ns;
    *(after == NONE ? &of->span : &span[after].before) = new;
}

static void count_replayed(Requests *all, Request *of, const Row *r, bool is_load) {
    const bool is_done = r->outcome == OK;
    if (is_load && is_done) {
        of->loads_done++;
        of->loads_from_ns = min_of(of->loads_from_ns, r->submitted_ns);
        of->loads_until_ns = max_of(of->loads_until_ns, r->completed_ns);
    }
    if (!all->moves[r->tier]) {
        return;
    }
    of->planned++;
    if (all->is_open_loop) {
        of->scheduled_ns = min_of(of->scheduled_ns, r->due_ns);
    }
    if (r->submitted_ns != NONE) {
        of->submitted_ns = min_of(of->submitted_ns, r->submitted_ns);
    }
    if (!is_done) {
        return;
    }
    of->operations++;
    of->completed_ns = max_of(of->completed_ns, r->completed_ns);
    of->hits += is_load;
    of->hit_bytes += is_load ? r->length_bytes : 0;
    if (r->op == READ) {
        of->read_bytes += r->length_bytes;
    } else if (r->op == WRITE) {
        of->written_bytes += r->length_bytes;
    }
    add_span(all, of, r->submitted_ns, r->completed_ns);
    if (all->is_open_loop) {
        // Rows are due in their order.
        of->response_ns += max_of(0, r->completed_ns - max_of(r->due_ns, of->response_until_ns));
        of->response_until_ns = max_of(of->response_until_ns, r->completed_ns);
    }
}

// Takes rows of the trace, which begin with `first_row`, from `begin` on, with those of them that
// were planned: `rows` rows of a part. Returns the first that was not taken, for which there is no
// room.
EXPORT int64_t requests_take(Requests *all, int64_t begin, int64_t end, int64_t first_row,
                             const int64_t *id, const int64_t *length_bytes, const int8_t *phase,
                             const int8_t *op, const Row *row, int64_t rows,
                             const uint8_t *counts) {
    Request *of = NULL;
    for (int64_t i = begin; i < end; i++) {
        const bool is_planned = all->planned < rows && row[all->planned].trace_row == first_row + i;
        if (id[i] < 0) {
            all->planned += is_planned;
            continue;
        }
        if (all->requests == all->room ||
            (all->free_span == NONE && all->spans == all->span_room)) {
            return i;
        }
        if (!of || of->id != id[i]) {
            int64_t *place = table_put(&all->place, id[i], NONE);
            if (*place == NONE) {
                *place = all->requests++;
                all->request[*place] = (Request){
                    .id = id[i],
                    .loads_from_ns = INT64_MAX,
                    .scheduled_ns = INT64_MAX,
                    .submitted_ns = INT64_MAX,
                    .loads_until_ns = NONE,
                    .completed_ns = NONE,
                    .response_until_ns = NONE,
                    .span = NONE,
                };
            }
            of = &all->request[*place];
        }
        const bool is_load = op[i] == READ && all->loads[phase[i]];
        of->in_window++;
        of->loads += is_load;
        of->load_bytes += is_load ? length_bytes[i] : 0;
        if (!is_planned) {
            continue;
        }
        const int64_t at = all->planned++;
        of->is_left_out |= !counts[at] || row[at].is_bulk;
        count_replayed(all, of, &row[at], is_load);
    }
    return end;
}

// --- a live view, and the journal
// ---------------------------------------------------------------------------------------

static void watch_row(Watched *w, const Row *r) {
    int64_t kind = r->tier * OPS + r->op, *total = w->totals + 4 * kind, at = 0;
    if (r->outcome != OK) {
        total[1]++;
        return;
    }
    int64_t since = w->is_open_loop ? r->due_ns : r->submitted_ns, took = r->completed_ns - since;
    total[0]++;
    total[2] += r->op == DELETE ? 0 : r->length_bytes;
    total[3] += took;
    while (at < w->bounds && took > w->bound[at]) {
        at++;
    }
    w->buckets[kind * (w->bounds + 1) + at]++;
    if (w->seen++ % w->step) {
        return;
    }
    if (w->sampled == w->room) { // every other of them, from now on
        w->step *= 2;
        w->sampled /= 2;
        for (int64_t i = 0; i < w->sampled; i++) {
            w->response_ns[i] = w->response_ns[2 * i];
            w->late_ns[i] = w->late_ns[2 * i];
        }
        if ((w->seen - 1) % w->step) {
            return;
        }
    }
    w->response_ns[w->sampled] = took;
    w->late_ns[w->sampled++] = r->submitted_ns - since;
}

// Takes rows from `to->at` on that have ended and are not in the journal yet, up to `to->room`;
// returns how many.
EXPORT int64_t journal_take(Rows *rows, JournalBatch *to) {
    const int64_t laid = atomic_load_explicit(&rows->laid, memory_order_acquire);
    int64_t taken = 0, before = 0, before_ns = 0, at = to->at;
    to->left = NONE;
    for (; at < laid && taken < to->room; at++) {
        Row *r = row_at(rows, at);
        if (r->is_journaled) {
            continue;
        }
        // The engine writes the outcome last: what was measured is there before it.
        const int8_t outcome = __atomic_load_n(&r->outcome, __ATOMIC_ACQUIRE);
        if (outcome == SKIPPED || r->submitted_ns == NONE) {
            if (to->left == NONE) {
                to->left = at;
            }
            continue;
        }
        to->place_step[taken] = at - before;
        to->submitted_step_ns[taken] = r->submitted_ns - before_ns;
        to->service_ns[taken] = r->completed_ns - r->submitted_ns;
        to->ready_ns[taken] = r->ready_ns;
        to->outcome[taken] = outcome;
        to->retries[taken] = r->retries;
        if (to->watched) {
            watch_row(to->watched, r);
        }
        before = at;
        before_ns = r->submitted_ns;
        r->is_journaled = true;
        taken++;
    }
    to->at = at;
    return taken;
}
