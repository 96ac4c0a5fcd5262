// Rows that have ended, as the journal keeps them and as a live view counts them.
#include "journal.h"

#include <stddef.h>

// A recorder reads a Row by the fields that it shares with an OperationRow.
#define SAME_PLACE(field)                                                                          \
    _Static_assert(offsetof(Row, field) == offsetof(OperationRow, field), #field)
SAME_PLACE(trace_row);
SAME_PLACE(due_ns);
SAME_PLACE(offset_bytes);
SAME_PLACE(length_bytes);
SAME_PLACE(request);
SAME_PLACE(ready_ns);
SAME_PLACE(submitted_ns);
SAME_PLACE(completed_ns);
SAME_PLACE(op);
SAME_PLACE(tier);
SAME_PLACE(phase);
SAME_PLACE(outcome);
SAME_PLACE(is_bulk);

static void watch_row(Watched *w, const Row *r) {
    const int64_t kind = r->tier * OPS + r->op;
    int64_t *total = w->totals + 4 * kind, at = 0;
    if (r->outcome != OK) {
        total[1]++;
        return;
    }
    const int64_t since = w->is_open_loop ? r->due_ns : r->submitted_ns;
    const int64_t took = r->completed_ns - since;
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
