// Live bytes of a trace by tier (kvdistill/profile/locality.py): what was written and not deleted.
#include "core.h"

enum { READ, WRITE, DELETE };           // as the trace's closed set
#define MOST ((int64_t)1 << 62)         // what can be reckoned with

typedef struct { int64_t live_bytes, peak_bytes, is_written; } Tier;

// Enters rows; returns whether the sums still fit. An object is as long as the writes of its life reach: `size` is that
// by object and tier, `reach` where each row ends.
EXPORT bool locality_enter(int64_t rows, const int8_t *op, const int8_t *tier, const int64_t *object,
                           const int64_t *reach, int64_t tiers, Tier *of, int64_t *size) {
    for (int64_t i = 0; i < rows; i++) {
        if (op[i] == READ) continue;
        Tier *t = &of[tier[i]];
        int64_t *bytes = &size[object[i] * tiers + tier[i]], before = *bytes;
        *bytes = op[i] == DELETE ? 0 : reach[i] > before ? reach[i] : before;
        t->is_written = 1;
        t->live_bytes += *bytes - before;
        if (t->live_bytes > MOST) return false;
        if (t->live_bytes > t->peak_bytes) t->peak_bytes = t->live_bytes;
    }
    return true;
}
