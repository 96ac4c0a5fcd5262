// Places for operations that are drawn with reuse distances (kvdistill/jobs/fio_replay.py): an LRU
// stack model.
//
// Places lie in a stack by their last use. An operation takes the place of its class whose depth in
// the stack, in bytes, is nearest to its distance; one without a distance, or whose distance the
// stack does not reach yet, takes a new place.
#include "core.h"
#include "fenwick.h"

#include <stdlib.h>

typedef struct {               // operations that may share places
    int64_t uses, used, alive; // how many there will be and were, and how many places those have
    int64_t reserved_bytes;    // of each place
    int64_t *last; // a Fenwick tree: 1 for a use that is the last one of its place; uses are from 1
    int64_t *step; // by use: at what step it was
} Class;

// The use of `c`, the last one of its place, whose step is nearest to `target_step`; of two as near
// the earlier one.
static int64_t nearest(const Class *c, int64_t target_step) {
    int64_t low = 0, high = c->used; // uses up to step `target_step`
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (c->step[middle + 1] <= target_step) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    int64_t rank = fenwick_sum(c->last, low);
    if (!rank) {
        return fenwick_find(c->last, c->uses, 1);
    }
    int64_t use = fenwick_find(c->last, c->uses, rank);
    if (rank == c->alive) {
        return use;
    }
    int64_t above = fenwick_find(c->last, c->uses, rank + 1);
    return c->step[above] - target_step < target_step - c->step[use] ? above : use;
}

// Puts an address for each operation into `address`; returns the end of the highest. `kind` is an
// operation's class, `distance` NONE where it has none; of each of `kinds` classes, `reserved` are
// a place's bytes and `uses` the operations.
EXPORT int64_t reuse_model_place(int64_t operations, const int64_t *kind, const int64_t *distance,
                                 int64_t kinds, const int64_t *reserved, const int64_t *uses,
                                 int64_t *address) {
    Class *class = memory_zeros(kinds, sizeof *class);
    int64_t *last = memory_zeros(operations + kinds, sizeof *last),
            *step = memory_zeros(operations + kinds, sizeof *step);
    for (int64_t k = 0, base = 0; k < kinds; base += uses[k++] + 1) {
        class[k] = (Class){.uses = uses[k],
                           .reserved_bytes = reserved[k],
                           .last = last + base,
                           .step = step + base};
    }
    int64_t *stack =
        memory_zeros(operations + 1,
                     sizeof *stack); // a Fenwick tree: a step's bytes, if a place's last use
    // Distances that were beyond the stack when their turn came; a later operation without a
    // distance takes them.
    int64_t *owed = memory_zeros(operations, sizeof *owed), debts = 0;
    int64_t total = 0, end = 0;
    for (int64_t i = 0; i < operations; i++) {
        Class *c = &class[kind[i]];
        int64_t away = distance[i];
        if (away > total) {
            owed[debts++] = away, away = NONE;
        } else if (away < 0 && debts && owed[debts - 1] <= total) {
            away = owed[--debts];
        }
        if (away < 0 || !c->alive) {
            address[i] = end;
            end += c->reserved_bytes;
        } else {
            int64_t use =
                nearest(c, fenwick_find(stack, operations, total - away > 1 ? total - away : 1));
            address[i] = address[c->step[use] - 1];
            fenwick_add(c->last, c->uses, use, -1);
            fenwick_add(stack, operations, c->step[use], -c->reserved_bytes);
            c->alive--;
            total -= c->reserved_bytes;
        }
        c->alive++;
        total += c->reserved_bytes;
        c->step[++c->used] = i + 1;
        fenwick_add(c->last, c->uses, c->used, 1);
        fenwick_add(stack, operations, i + 1, c->reserved_bytes);
    }
    free(class), free(last), free(step), free(stack), free(owed);
    return end;
}
