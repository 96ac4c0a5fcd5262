// Numbers of names by first appearance (kvtrace/trace/mlperf_csv.py): names' hashes in an open-addressing table.
//
// `table` has the number at each of its places, of which there are a power of two, or NONE; `hashes` are by number.
#include "core.h"

typedef struct { int64_t low, high; } Hash;     // of a name, 128 bits

// Where the number of `hash` stands, or the empty place where it would.
static int32_t *place(int32_t *table, int64_t places, const Hash *hashes, Hash hash) {
    int64_t at = hash.low & (places - 1);
    while (table[at] >= 0 && (hashes[table[at]].low != hash.low || hashes[table[at]].high != hash.high))
        at = (at + 1) & (places - 1);
    return &table[at];
}

// Numbers `names`, of which there were `count` before; returns how many there are then.
EXPORT int64_t keys_number(int32_t *table, int64_t places, Hash *hashes, int64_t count, int64_t names,
                           const int64_t *low, const int64_t *high, int64_t *ids) {
    for (int64_t i = 0; i < names; i++) {
        Hash hash = {low[i], high[i]};
        int32_t *number = place(table, places, hashes, hash);
        if (*number < 0) {
            hashes[count] = hash;
            *number = (int32_t)count++;
        }
        ids[i] = *number;
    }
    return count;
}

// Puts the numbers of all `count` hashes into an empty table.
EXPORT void keys_place_all(int32_t *table, int64_t places, const Hash *hashes, int64_t count) {
    for (int64_t number = 0; number < count; number++)
        *place(table, places, hashes, hashes[number]) = (int32_t)number;
}
