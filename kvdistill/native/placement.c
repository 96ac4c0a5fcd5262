// Objects in one address space by first fit, and each operation at its object's
// (kvdistill/profile/sources.py).
#include "core.h"

enum { READ, WRITE, DELETE }; // as the trace's closed set
// O_DIRECT takes multiples of a sector, as block traces have them; of bytes, kvreplay and engines
// move whole pages.
enum { SECTOR_BYTES = 512, PAGE_BYTES = 4096 };

typedef struct {
    int64_t live_bytes, peak_bytes, live_objects, peak_objects, span_bytes, stray_deletes;
} Totals;

// The first pass: notes in `end` how far each object is touched, in `is_known` that it is, and in
// `prior` those that are read before they are written, in order of their first read; returns how
// many these are.
EXPORT int64_t placement_survey(int64_t rows, const int8_t *op, const int64_t *object,
                                const int64_t *offset_bytes, const int64_t *length_bytes,
                                int64_t *end, int8_t *is_known, int64_t *prior) {
    int64_t count = 0;
    for (int64_t i = 0; i < rows; i++) {
        if (op[i] == DELETE) {
            continue;
        }
        int64_t o = object[i], reach = offset_bytes[i] + length_bytes[i];
        if (reach > end[o]) {
            end[o] = reach;
        }
        if (!is_known[o] && op[i] == READ) {
            prior[count++] = o;
        }
        is_known[o] = 1;
    }
    return count;
}

static bool reserve(Space *s, int64_t object, int64_t bytes, int64_t *base, Totals *totals) {
    base[object] = space_allocate(s, bytes);
    totals->live_bytes += bytes;
    if (totals->live_bytes > totals->peak_bytes) {
        totals->peak_bytes = totals->live_bytes;
    }
    if (++totals->live_objects > totals->peak_objects) {
        totals->peak_objects = totals->live_objects;
    }
    totals->span_bytes = space_highest_bytes(s);
    return base[object] >= 0;
}

// Puts objects there before the first row; `base` is where each object begins, NONE while it is not
// there, `reserved` its bytes. Returns whether all fitted.
EXPORT bool placement_prior(Space *s, int64_t count, const int64_t *prior, const int64_t *reserved,
                            int64_t *base, Totals *totals) {
    for (int64_t i = 0; i < count; i++) {
        if (reserved[prior[i]] > 0 && !reserve(s, prior[i], reserved[prior[i]], base, totals)) {
            return false;
        }
    }
    return true;
}

// The second pass: where each row goes (NONE for deletes), and its length widened to whole sectors
// or pages (0 for deletes). Returns whether all objects fitted.
EXPORT bool placement_rows(Space *s, int64_t rows, const int8_t *op, const int64_t *object,
                           const int64_t *offset_bytes, const int64_t *length_bytes,
                           const int64_t *reserved, int64_t objects, int64_t *base, Totals *totals,
                           int64_t *address, int64_t *io_bytes) {
    for (int64_t i = 0; i < rows; i++) {
        int64_t o = object[i];
        if (op[i] == DELETE) {
            address[i] = NONE, io_bytes[i] = 0;
            if (o < objects && base[o] >= 0) {
                space_free(s, base[o], reserved[o]);
                totals->live_bytes -= reserved[o], totals->live_objects--;
                base[o] = NONE;
            } else {
                totals->stray_deletes++;
            }
            continue;
        }
        if (base[o] < 0 && reserved[o] > 0 && !reserve(s, o, reserved[o], base, totals)) {
            return false;
        }
        int64_t end = offset_bytes[i] + length_bytes[i];
        int64_t unit = (offset_bytes[i] | end) % SECTOR_BYTES ? PAGE_BYTES : SECTOR_BYTES;
        int64_t low = offset_bytes[i] & -unit, high = (end + unit - 1) & -unit;
        address[i] = base[o] + low;
        io_bytes[i] = length_bytes[i] > 0 ? high - low : 0;
    }
    return true;
}
