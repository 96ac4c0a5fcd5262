// Records operations that have ended: distributions of times, counts by kind and second, requests,
// and how many operations were in flight at once. Every figure of a run comes from here.
//
// Call path: recorder_add -> count_completed -> time_order_flush -> account_in_time_order, and
// requests_take -> count_request_row. A live run adds the rows of its ring; the merge of several
// ranks and an import add the rows of their tables ops.
#include "recorder.h"

#include <stdlib.h>
#include <string.h>

static const int64_t NS_PER_S = 1000000000, MIB = 1 << 20, LATE_NS = 1000000;

// A division is slow, and nearly all units are powers of two.
static inline int64_t round_down(int64_t bytes, int64_t unit) {
    return unit & (unit - 1) ? bytes / unit * unit : bytes & -unit;
}

// --- distributions

static inline int64_t histogram_slot(int64_t value, int sub_bits) {
    if (value < 1 << sub_bits) {
        return max_of(value, 0);
    }
    // The exponent of a double and the first bits of its fraction are adjacent, so that together
    // they number the slots.
    union {
        double number;
        int64_t bits;
    } as = {.number = (double)value};
    return (as.bits >> (52 - sub_bits)) - ((int64_t)(1023 + sub_bits - 1) << sub_bits);
}

static inline void distribution_put(TimeDistribution *times, int64_t value) {
    if (times->count < times->limit) {
        times->value[times->count] = value;
    } else {
        if (times->count == times->limit) {
            for (int64_t i = 0; i < times->count; i++) {
                times->slot[histogram_slot(times->value[i], SUB_BITS)]++;
            }
        }
        times->slot[histogram_slot(value, SUB_BITS)]++;
    }
    times->count++;
    times->sum_high += value >> 32;
    times->sum_low += value & 0xFFFFFFFF;
    times->longest = max_of(times->longest, value);
}

EXPORT void distribution_add(TimeDistribution *times, const int64_t *value, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        distribution_put(times, value[i]);
    }
}

// Counts values in the slots of one distribution, or of the sum of several.
EXPORT void distribution_fill_slots(int64_t *slot, const int64_t *value, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        slot[histogram_slot(value[i], SUB_BITS)]++;
    }
}

// --- in the order of time

// Sorts by submission, stably: insertion sort in short runs, and then a merge. Operations are
// nearly in order, so that most merges only find that one run follows the other.
static void sort_by_submission(DoneOperation *done, DoneOperation *spare, int64_t count) {
    enum { RUN = 16 };
    for (int64_t i = 1; i < count; i++) {
        const DoneOperation own = done[i];
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
            memcpy(spare, done + left, (size_t)lefts * sizeof(DoneOperation));
            int64_t to = left, i = 0, j = middle;
            while (i < lefts) {
                if (j < right && done[j].submitted_ns < spare[i].submitted_ns) {
                    done[to++] = done[j++];
                } else {
                    done[to++] = spare[i++];
                }
            }
        }
    }
}

// An operation that ends at the instant at which another starts does not overlap it.
static void start_in_flight(InFlight *in_flight, int64_t start_ns, int64_t end_ns) {
    while (in_flight->ends.count && in_flight->ends.number[0] <= start_ns) {
        heap_pop(&in_flight->ends);
    }
    if (end_ns > start_ns) {
        heap_push(&in_flight->ends, end_ns);
    }
    in_flight->most = max_of(in_flight->most, in_flight->ends.count);
}

// Adds a span of waiting, joined with those that it overlaps. Spans come in the order of their
// ends; when the memory is full, the older half is no longer joined.
static void add_wait_span(TimeOrder *order, int64_t from_ns, int64_t to_ns) {
    from_ns = max_of(from_ns, order->wait_floor_ns);
    if (to_ns <= from_ns) {
        return;
    }
    while (order->waits && order->wait[order->waits - 1].to_ns >= from_ns) {
        const WaitSpan *last = &order->wait[--order->waits];
        order->waited_ns -= last->to_ns - last->from_ns;
        from_ns = min_of(from_ns, last->from_ns);
    }
    if (order->waits == order->wait_room) {
        const int64_t half = order->waits / 2;
        order->wait_floor_ns = order->wait[half - 1].to_ns;
        order->waits -= half;
        memmove(order->wait, order->wait + half, (size_t)order->waits * sizeof(WaitSpan));
    }
    order->wait[order->waits++] = (WaitSpan){from_ns, to_ns};
    order->waited_ns += to_ns - from_ns;
}

static void account_in_time_order(TimeOrder *order, const DoneOperation *done) {
    const bool is_late = done->submitted_ns < order->reached_ns;
    const int64_t group = order->group[done->kind];
    order->late += is_late;
    order->reached_ns = max_of(order->reached_ns, done->submitted_ns);
    start_in_flight(&order->in_flight[done->kind], done->submitted_ns, done->completed_ns);
    if (group != NONE) {
        start_in_flight(&order->in_flight[group], done->submitted_ns, done->completed_ns);
    }
    TierTime *tier = &order->tier_time[order->tier[done->kind]];
    if (done->completed_ns > tier->until_ns) {
        tier->covered_ns += done->completed_ns - max_of(done->submitted_ns, tier->until_ns);
        tier->until_ns = done->completed_ns;
    }
    if (done->length_op != NONE && tier->levels < tier->level_room) {
        tier->level[tier->levels++] =
            (Level){done->submitted_ns, done->completed_ns, done->length_op};
    }
    if (order->is_open_loop && !is_late) {
        add_wait_span(order, done->free_ns, done->submitted_ns);
    }
}

// Accounts the half that was submitted first, or all operations if no more follow.
EXPORT void time_order_flush(TimeOrder *order, int64_t is_last) {
    const int64_t taken = is_last ? order->dones : order->dones / 2;
    sort_by_submission(order->done, order->spare, order->dones);
    for (int64_t i = 0; i < taken; i++) {
        account_in_time_order(order, &order->done[i]);
    }
    order->dones -= taken;
    memmove(order->done, order->done + taken, (size_t)order->dones * sizeof(DoneOperation));
}

EXPORT void time_order_free(InFlight *in_flight, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        free(in_flight[i].ends.number);
    }
}

// --- a row at a time, whatever their order

static inline int64_t padded_bytes_of_row(const Recorder *recorder, const OperationRow *row) {
    if (!recorder->moves[row->tier] || row->op == DELETE) {
        return NONE;
    }
    const int64_t unit = recorder->padding_bytes[row->tier];
    const int64_t end_bytes = row->offset_bytes + row->length_bytes;
    return row->length_bytes
               ? round_down(end_bytes + unit - 1, unit) - round_down(row->offset_bytes, unit)
               : 0;
}

static inline void count_in_second(Recorder *recorder, const OperationRow *row, int64_t kind) {
    // A failed operation has no completion, so it counts in the second of its submission.
    const int64_t when_ns = row->completed_ns == NONE ? row->submitted_ns : row->completed_ns;
    const int64_t number = max_of(when_ns / NS_PER_S, recorder->first_second);
    const int64_t key = number * recorder->kinds + kind;
    const int64_t latency_ns = row->completed_ns - row->submitted_ns;
    SecondCounts *second = &recorder->second[key - recorder->first_second * recorder->kinds];
    if (row->outcome != OK) {
        second->errors++;
        return;
    }
    second->operations++;
    second->bytes += row->op == DELETE ? 0 : row->length_bytes;
    second->latency_ns += latency_ns;
    second->most_ns = max_of(second->most_ns, latency_ns);
    recorder->ended[recorder->endeds++] = (EndedInSecond){key, latency_ns};
}

static inline int64_t length_class(const OperationRow *row) {
    int64_t size = 0;
    if (row->op != DELETE) {
        while (size < SIZE_CLASSES - 1 && row->length_bytes > (int64_t)4096 << size) {
            size++;
        }
    }
    return size;
}

static inline void count_completed(Recorder *recorder, const OperationRow *row, int64_t at,
                                   int64_t asked_bytes) {
    KindCounts *kind = &recorder->kind[at];
    TimeDistribution *times = &recorder->times[at * recorder->times_a_kind];
    const int64_t start_ns = row->submitted_ns, end_ns = row->completed_ns;
    const int64_t service_ns = end_ns - start_ns;
    const bool is_timed = recorder->is_timed[row->tier];
    int64_t free_ns = start_ns, length_op = NONE;
    kind->good++;
    kind->bytes += row->length_bytes;
    kind->io_bytes += max_of(asked_bytes, 0);
    kind->io_known += asked_bytes != NONE;
    kind->service_ns += service_ns;
    kind->first_ns = min_of(kind->first_ns, start_ns);
    if (end_ns > kind->last_ns) {
        kind->last_ns = end_ns;
        kind->last_service_ns = service_ns;
        kind->last_bytes = row->length_bytes;
    }
    if (is_timed) {
        distribution_put(&times[SERVICE], service_ns);
    }
    if (recorder->is_open_loop) {
        distribution_put(&times[RESPONSE], end_ns - row->due_ns);
        free_ns = min_of(max_of(row->due_ns, row->ready_ns), start_ns);
        kind->depended_ns += free_ns - row->due_ns;
        kind->waited_ns += start_ns - free_ns;
        int64_t *sized =
            recorder->sized + (at * SIZE_CLASSES + length_class(row)) * 2 * COARSE_SLOTS;
        sized[histogram_slot(service_ns, COARSE_BITS)]++;
        // An operation that waited for an earlier one was due when that ended: only what follows
        // from the trace's clock can be late.
        sized[COARSE_SLOTS + histogram_slot(end_ns - free_ns, COARSE_BITS)]++;
    }
    if (row->op != DELETE && row->length_bytes > 0) {
        const int64_t last_byte = row->offset_bytes + row->length_bytes - 1;
        const int64_t first_byte =
            round_down(row->offset_bytes, recorder->padding_bytes[row->tier]);
        if (is_timed) {
            distribution_put(&times[PER_MIB], (int64_t)((double)service_ns *
                                                        ((double)MIB / (double)row->length_bytes)));
        }
        length_op = row->length_bytes * 2 + row->op;
        kind->moved_bytes += row->length_bytes;
        const bool is_single = last_byte - first_byte < recorder->io_bytes;
        kind->single_bytes += is_single ? row->length_bytes : 0;
    }
    if (!is_timed) {
        return;
    }
    TimeOrder *order = recorder->order;
    if (order->dones == order->done_room) {
        time_order_flush(order, false);
    }
    order->done[order->dones++] = (DoneOperation){start_ns, end_ns, free_ns, length_op, at};
}

// Counts rows. `place` (NULL: the place of its tier) and `is_counted`, whether figures count it,
// are by row. `asked_bytes` has the bytes that each row asks of its tier, NONE if it transfers
// none: the caller sets them if the recorder `is_asked`, else this function does.
EXPORT void recorder_add(Recorder *recorder, const char *row_at, int64_t rows, const int64_t *place,
                         const uint8_t *is_counted, int64_t *asked_bytes) {
    RunCounts *run = recorder->run;
    for (int64_t i = 0; i < rows; i++) {
        const OperationRow *row = (const OperationRow *)(row_at + i * recorder->row_bytes);
        const int64_t own_place = place ? place[i] : recorder->first_place[row->tier];
        const int64_t at = own_place * OPS + row->op, start_ns = row->submitted_ns;
        const bool is_failed =
            row->outcome == FAILED || row->outcome == SHORT || row->outcome == CORRUPT;
        const bool is_sent = start_ns != NONE;
        const bool is_good = row->outcome == OK && is_sent && row->completed_ns != NONE;
        KindCounts *kind = &recorder->kind[at];
        if (!recorder->is_asked) {
            asked_bytes[i] = padded_bytes_of_row(recorder, row);
        }
        if (asked_bytes[i] != NONE && (row->outcome == OK || row->outcome == CORRUPT)) {
            kind->asked_bytes += asked_bytes[i];
        }
        run->rows++;
        run->failed += is_failed;
        run->last_completed_ns = max_of(run->last_completed_ns, row->completed_ns);
        run->last_ns = max_of(run->last_ns, max_of(start_ns, row->completed_ns));
        if (is_sent) {
            run->sent += row->outcome != SKIPPED; // The end of the run cut SKIPPED off.
            if (recorder->second && recorder->moves[row->tier] && row->outcome != SKIPPED) {
                count_in_second(recorder, row, at);
            }
        }
        if (!is_counted[i]) {
            run->left_out += row->outcome == OK;
            continue;
        }
        kind->planned++;
        kind->errors += is_failed;
        kind->corrupt += row->outcome == CORRUPT;
        if (recorder->is_open_loop && (is_sent || row->due_ns <= run->until_ns)) {
            kind->due++;
            kind->due_bytes += row->op == DELETE ? 0 : row->length_bytes;
            kind->last_due_ns = max_of(kind->last_due_ns, row->due_ns);
            const double gap_ns =
                run->last_due_ns == NONE ? 0 : (double)(row->due_ns - run->last_due_ns);
            run->square_gaps += gap_ns * gap_ns;
            run->first_due_ns = min_of(run->first_due_ns, row->due_ns);
            run->last_due_ns = max_of(run->last_due_ns, row->due_ns);
            if (!is_sent) {
                kind->first_missed_ns = min_of(kind->first_missed_ns, row->due_ns);
            }
        }
        if (is_sent) {
            run->counted_sent++;
            run->first_row = min_of(run->first_row, row->trace_row);
            run->from_ns = min_of(run->from_ns, start_ns);
            if (recorder->is_open_loop) {
                const int64_t late_ns = start_ns - row->due_ns;
                const int64_t of_kind = at * recorder->times_a_kind + LATENESS;
                const int64_t of_failed = recorder->kinds * recorder->times_a_kind;
                run->late += late_ns > LATE_NS;
                run->late_by_itself += start_ns - max_of(row->due_ns, row->ready_ns) > LATE_NS;
                distribution_put(&recorder->times[is_good ? of_kind : of_failed], late_ns);
            }
        }
        if (is_good) {
            count_completed(recorder, row, at, asked_bytes[i]);
        }
    }
}

// --- requests

static void release_request_span(OpenRequests *open, int64_t at) {
    open->span[at].before = open->free_span;
    open->free_span = at;
}

// Moves the requests whose id is below `below` to `over`, in the order in which they came. Returns
// how many there are.
EXPORT int64_t requests_pop(OpenRequests *open, int64_t below, RequestRecord *over) {
    int64_t kept = 0, popped = 0;
    for (int64_t i = 0; i < open->requests; i++) {
        const RequestRecord request = open->request[i];
        if (request.id >= below) {
            *table_find(&open->place, request.id) = kept;
            open->request[kept++] = request;
            continue;
        }
        table_drop(&open->place, request.id);
        over[popped++] = request;
        for (int64_t at = request.span, before; at != NONE; at = before) {
            before = open->span[at].before;
            release_request_span(open, at);
        }
    }
    open->requests = kept;
    return popped;
}

// Adds time in which an operation was in flight. The caller makes sure of room for one more span.
static void add_request_span(OpenRequests *open, RequestRecord *request, int64_t from_ns,
                             int64_t to_ns) {
    RequestSpan *span = open->span;
    int64_t after = NONE, at = request->span;
    while (at != NONE && span[at].from_ns > to_ns) {
        after = at;
        at = span[at].before;
    }
    while (at != NONE && span[at].to_ns >= from_ns) {
        const int64_t before = span[at].before;
        from_ns = min_of(from_ns, span[at].from_ns);
        to_ns = max_of(to_ns, span[at].to_ns);
        request->storage_ns -= span[at].to_ns - span[at].from_ns;
        release_request_span(open, at);
        at = before;
    }
    int64_t new = open->free_span;
    if (new == NONE) {
        new = open->spans++;
    } else {
        open->free_span = span[new].before;
    }
    span[new] = (RequestSpan){from_ns, to_ns, at};
    request->storage_ns += to_ns - from_ns;
    *(after == NONE ? &request->span : &span[after].before) = new;
}

static void count_request_row(OpenRequests *open, RequestRecord *request, const OperationRow *row,
                              bool is_load) {
    const bool is_done = row->outcome == OK;
    if (is_load && is_done) {
        request->loads_done++;
        request->loads_from_ns = min_of(request->loads_from_ns, row->submitted_ns);
        request->loads_until_ns = max_of(request->loads_until_ns, row->completed_ns);
    }
    if (!open->moves[row->tier]) {
        return;
    }
    request->planned++;
    if (open->is_open_loop) {
        request->scheduled_ns = min_of(request->scheduled_ns, row->due_ns);
    }
    if (row->submitted_ns != NONE) {
        request->submitted_ns = min_of(request->submitted_ns, row->submitted_ns);
    }
    if (!is_done) {
        return;
    }
    request->operations++;
    request->completed_ns = max_of(request->completed_ns, row->completed_ns);
    request->hits += is_load;
    request->hit_bytes += is_load ? row->length_bytes : 0;
    if (row->op == READ) {
        request->read_bytes += row->length_bytes;
    } else if (row->op == WRITE) {
        request->written_bytes += row->length_bytes;
    }
    add_request_span(open, request, row->submitted_ns, row->completed_ns);
    if (open->is_open_loop) {
        // Rows come in the order of their due times.
        const int64_t from_ns = max_of(row->due_ns, request->response_until_ns);
        request->response_ns += max_of(0, row->completed_ns - from_ns);
        request->response_until_ns = max_of(request->response_until_ns, row->completed_ns);
    }
}

// Takes rows `begin` to `end` of a part of the trace that starts at row `first_row`, together with
// the `rows` rows of the part that were replayed. Returns the first row that was not taken because
// there is no room for its request.
EXPORT int64_t requests_take(OpenRequests *open, int64_t begin, int64_t end, int64_t first_row,
                             const int64_t *id, const int64_t *length_bytes, const int8_t *phase,
                             const int8_t *op, const char *row_at, int64_t rows,
                             const uint8_t *is_counted) {
    RequestRecord *request = NULL;
    for (int64_t i = begin; i < end; i++) {
        const OperationRow *row = (const OperationRow *)(row_at + open->planned * open->row_bytes);
        const bool is_planned = open->planned < rows && row->trace_row == first_row + i;
        if (id[i] < 0) {
            open->planned += is_planned;
            continue;
        }
        if (open->requests == open->room ||
            (open->free_span == NONE && open->spans == open->span_room)) {
            return i;
        }
        if (!request || request->id != id[i]) {
            int64_t *place = table_put(&open->place, id[i], NONE);
            if (*place == NONE) {
                *place = open->requests++;
                open->request[*place] = (RequestRecord){
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
            request = &open->request[*place];
        }
        const bool is_load = op[i] == READ && open->loads[phase[i]];
        request->in_window++;
        request->loads += is_load;
        request->load_bytes += is_load ? length_bytes[i] : 0;
        if (!is_planned) {
            continue;
        }
        request->is_left_out |= !is_counted[open->planned] || row->is_bulk;
        open->planned++;
        count_request_row(open, request, row, is_load);
    }
    return end;
}
