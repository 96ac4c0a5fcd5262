// What each tier must do for a load: bytes and operations by the second of virtual time.
#include "sim.h"

#define NS_PER_S ((int64_t)1000000000)

// Add each read and write to `counts`, [second, tier, direction, bytes and operations].
EXPORT void count_by_second(const int64_t *ts_ns, const int8_t *op, const int8_t *tier, const int8_t *phase,
    const int64_t *length, int64_t rows, int64_t *counts, int64_t tiers) {
    int64_t second = 0, begin_ns = 0, end_ns = NS_PER_S;
    for (int64_t i = 0; i < rows; i++) {
        if (phase[i] == PHASE_POPULATE || (op[i] != OP_READ && op[i] != OP_WRITE)) continue;
        if (ts_ns[i] < begin_ns || ts_ns[i] >= end_ns) {
            second = ts_ns[i] / NS_PER_S;
            begin_ns = second * NS_PER_S, end_ns = begin_ns + NS_PER_S;
        }
        int64_t *of = &counts[((second * tiers + tier[i]) * 2 + (op[i] == OP_WRITE)) * 2];
        of[0] += length[i];
        of[1]++;
    }
}
