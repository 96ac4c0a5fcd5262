// Names, int64, into numbers from 0 by first appearance: a hash table of the numbers, beside their names.
#include "sim.h"

// Where the number of `name` stands in `table`, whose `room` is a power of two, or the empty place where it would.
static int64_t place(const int32_t *table, int64_t room, const int64_t *names, int64_t name) {
    int64_t mask = room - 1, at = (int64_t)((uint64_t)name * 0x9E3779B97F4A7C15 >> 20) & mask;
    while (table[at] >= 0 && names[table[at]] != name) at = (at + 1) & mask;
    return at;
}

// Put the numbers of `wanted` into `found`, as far as `names` has room for new ones, of which there are `count` so far;
// return how many were.
EXPORT int64_t number_names(const int64_t *wanted, int64_t wanted_count, int32_t *found, int32_t *table, int64_t room,
    int64_t *names, int64_t names_room, int64_t count) {
    for (int64_t i = 0; i < wanted_count; i++) {
        int64_t at = place(table, room, names, wanted[i]);
        if (table[at] < 0) {
            if (count == names_room) return i;
            names[count] = wanted[i];
            table[at] = (int32_t)count++;
        }
        found[i] = table[at];
    }
    return wanted_count;
}

EXPORT void place_names(int32_t *table, int64_t room, const int64_t *names, int64_t count) {
    for (int64_t number = 0; number < count; number++)
        table[place(table, room, names, names[number])] = (int32_t)number;
}
