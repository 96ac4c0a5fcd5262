// Assigns each row of a trace to a rank (kvreplay/ranks/partition.py), row by row: the choice
// depends on the rows before.
#include "plan.h"

// Gives each row one of `count` ranks: the `wanted` one, the owner of its object (-1), or one by
// the number of the object (-2). `own` and `of_request` (rank plus one; -1: several ranks) persist
// from batch to batch. `crossing` counts the rows, and their bytes, that touch an object which
// another rank touched first.
EXPORT void partition_assign(const PartitionRows *rows, const int16_t *wanted, int64_t count,
                             Own *own, int16_t *of_request, int64_t *crossing, int16_t *ranks) {
    for (int64_t i = 0; i < rows->rows; i++) {
        Own *owner = &own[rows->object_id[i]];
        int16_t rank = wanted[i];
        if (rank == -1 && owner->owner) {
            rank = (int16_t)(owner->owner - 1);
        }
        // Hash the number: consecutive objects of one request would go to few ranks otherwise.
        else if (rank < 0) {
            rank = (int16_t)((rows->object_id[i] * 0x9E3779B1LL >> 16) % count);
        }
        int16_t stored = (int16_t)(rank + 1);
        int16_t *asker = rows->request[i] < 0 ? NULL : &of_request[rows->request[i]];
        ranks[i] = rank;
        if (!owner->first) {
            owner->first = owner->owner = stored;
        } else if (owner->first != stored) {
            owner->is_shared = 1;
            crossing[0]++;
            crossing[1] += rows->op[i] == DELETE ? 0 : rows->length_bytes[i];
        }
        if (rows->op[i] == WRITE) {
            owner->owner = stored;
        }
        if (asker) {
            *asker = *asker && *asker != stored ? -1 : stored;
        }
    }
}

// Finds the deletes of a rank that must be left out, because the rank reads the object later and
// only other ranks wrote it in between. `mine` marks the rows of the rank; `place` is, by object,
// its index among the shared objects, or NONE. Returns the number of deletes put into `found`.
EXPORT int64_t partition_find_needless(const PartitionRows *rows, const int8_t *mine, int64_t tiers,
                                       const int32_t *place, Shared *shared, int64_t *found) {
    int64_t count = 0;
    for (int64_t i = 0; i < rows->rows; i++) {
        int64_t at = place[rows->object_id[i]];
        int64_t end = rows->offset_bytes[i] + rows->length_bytes[i];
        if (at < 0) {
            continue;
        }
        Shared *state = &shared[at * tiers + rows->tier[i]];
        if (!mine[i]) {
            if (rows->op[i] == WRITE) {
                state->is_elsewhere = 1;
            }
        } else if (rows->op[i] == DELETE) {
            *state = (Shared){rows->first_row + i, 0, 0};
        } else if (state->deleted_row == NONE) {
            continue;
        } else if (rows->op[i] == WRITE) {
            if (rows->offset_bytes[i] <= state->written_bytes && end > state->written_bytes) {
                state->written_bytes = end;
            }
        } else if (state->is_elsewhere && end > state->written_bytes) {
            found[count++] = state->deleted_row;
            state->deleted_row = NONE;
        }
    }
    return count;
}
