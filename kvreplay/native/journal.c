// Takes rows that have ended out of the ring for the journal, and counts them for a live view.
// Call path: journal_take -> journal_watch_row.
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

static void journal_watch_row(Watched *watched, const Row *row) {
    const int64_t kind = row->tier * OPS + row->op;
    int64_t *total = watched->totals + 4 * kind;
    int64_t at = 0;
    if (row->outcome != OK) {
        total[1]++;
        return;
    }
    const int64_t since = watched->is_open_loop ? row->due_ns : row->submitted_ns;
    const int64_t took = row->completed_ns - since;
    total[0]++;
    total[2] += row->op == DELETE ? 0 : row->length_bytes;
    total[3] += took;
    while (at < watched->bounds && took > watched->bound[at]) {
        at++;
    }
    watched->buckets[kind * (watched->bounds + 1) + at]++;
    if (watched->seen++ % watched->step) {
        return;
    }
    if (watched->sampled == watched->room) { // Keep every other sample from now on.
        watched->step *= 2;
        watched->sampled /= 2;
        for (int64_t i = 0; i < watched->sampled; i++) {
            watched->response_ns[i] = watched->response_ns[2 * i];
            watched->late_ns[i] = watched->late_ns[2 * i];
        }
        if ((watched->seen - 1) % watched->step) {
            return;
        }
    }
    watched->response_ns[watched->sampled] = took;
    watched->late_ns[watched->sampled++] = row->submitted_ns - since;
}

// Takes rows from `batch->at` on that have ended and are not in the journal yet, up to
// `batch->room`; returns how many.
EXPORT int64_t journal_take(Rows *rows, JournalBatch *batch) {
    const int64_t laid = atomic_load_explicit(&rows->laid, memory_order_acquire);
    int64_t taken = 0;
    int64_t before = 0;
    int64_t before_ns = 0;
    int64_t at = batch->at;
    batch->left = NONE;
    for (; at < laid && taken < batch->room; at++) {
        Row *row = rows_at(rows, at);
        if (row->is_journaled) {
            continue;
        }
        // The engine writes the outcome last, so all times of the row are valid.
        const int8_t outcome = __atomic_load_n(&row->outcome, __ATOMIC_ACQUIRE);
        if (outcome == SKIPPED || row->submitted_ns == NONE) {
            if (batch->left == NONE) {
                batch->left = at;
            }
            continue;
        }
        batch->place_step[taken] = at - before;
        batch->submitted_step_ns[taken] = row->submitted_ns - before_ns;
        batch->service_ns[taken] = row->completed_ns - row->submitted_ns;
        batch->ready_ns[taken] = row->ready_ns;
        batch->outcome[taken] = outcome;
        batch->retries[taken] = row->retries;
        if (batch->watched) {
            journal_watch_row(batch->watched, row);
        }
        before = at;
        before_ns = row->submitted_ns;
        row->is_journaled = true;
        taken++;
    }
    batch->at = at;
    return taken;
}
