// Assigns each row of a trace to a rank (kvreplay/ranks/partition.py), row by row: the choice
// depends on the rows before.
#include "plan.h"

// Gives each row a rank of `count`: the `wanted` one, its object's owner (-1), or one by the object
// (-2). `own` and `of_request` (its rank and 1; -1: several) go on from batch to batch; `crossing`
// counts the rows, and their bytes, that touch an object which another rank touched first.
EXPORT void partition_assign(const PartitionRows *d, const int16_t *wanted, int64_t count, Own *own,
                             int16_t *of_request, int64_t *crossing, int16_t *ranks) {
    for (int64_t i = 0; i < d->rows; i++) {
        Own *o = &own[d->object_id[i]];
        int16_t rank = wanted[i];
        if (rank == -1 && o->owner) {
            rank = (int16_t)(o->owner - 1);
        }
        // Consecutive objects of one request would meet the same rank by their numbers alone.
        else if (rank < 0) {
            rank = (int16_t)((d->object_id[i] * 0x9E3779B1LL >> 16) % count);
        }
        int16_t stored = (int16_t)(rank + 1),
                *asker = d->request[i] < 0 ? NULL : &of_request[d->request[i]];
        ranks[i] = rank;
        if (!o->first) {
            o->first = o->owner = stored;
        } else if (o->first != stored) {
            o->is_shared = 1;
            crossing[0]++;
            crossing[1] += d->op[i] == DELETE ? 0 : d->length_bytes[i];
        }
        if (d->op[i] == WRITE) {
            o->owner = stored;
        }
        if (asker) {
            *asker = *asker && *asker != stored ? -1 : stored;
        }
    }
}

// Puts into `found` the deletes of a rank, whose rows are `mine`, of objects that it reads later
// although only others wrote them since; returns how many. `place` is by object: where it stands
// among those that several touch, or NONE.
EXPORT int64_t partition_find_needless(const PartitionRows *d, const int8_t *mine, int64_t tiers,
                                       const int32_t *place, Shared *shared, int64_t *found) {
    int64_t count = 0;
    for (int64_t i = 0; i < d->rows; i++) {
        int64_t at = place[d->object_id[i]], end = d->offset_bytes[i] + d->length_bytes[i];
        if (at < 0) {
            continue;
        }
        Shared *s = &shared[at * tiers + d->tier[i]];
        if (!mine[i]) {
            if (d->op[i] == WRITE) {
                s->is_elsewhere = 1;
            }
        } else if (d->op[i] == DELETE) {
            *s = (Shared){d->first_row + i, 0, 0};
        } else if (s->deleted_row == NONE) {
            continue;
        } else if (d->op[i] == WRITE) {
            if (d->offset_bytes[i] <= s->written_bytes && end > s->written_bytes) {
                s->written_bytes = end;
            }
        } else if (s->is_elsewhere && end > s->written_bytes) {
            found[count++] = s->deleted_row;
            s->deleted_row = NONE;
        }
    }
    return count;
}
