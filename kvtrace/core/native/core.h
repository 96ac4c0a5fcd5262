// What C files of all three programs use: memory, a table of numbers by number (table.c), a heap of
// numbers (heap.c), and the space of a file, a device or memory (space.c).
#ifndef KVTRACE_CORE_H
#define KVTRACE_CORE_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum { NONE = -1 };

static inline int64_t min_of(int64_t a, int64_t b) {
    return a < b ? a : b;
}
static inline int64_t max_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static inline int64_t transfer_ns(int64_t bytes,
                                  int64_t bytes_per_s) { // rounded down, and 2^60 at most
    const __int128 ns = (__int128)bytes * 1000000000 / bytes_per_s, most = (__int128)1 << 60;
    return (int64_t)(ns < most ? ns : most);
}

typedef struct {
    int64_t key, value;
} Entry;
typedef struct {
    Entry *entry;
    int64_t size, count;
} Table; // all zeros is an empty one; any key but INT64_MIN

extern _Thread_local jmp_buf *out_of_memory; // where this thread goes on; NULL: the process ends
void *grown(void *memory, int64_t count, size_t size); // realloc
void *zeros(int64_t count, size_t size);
void table_free(Table *t);
int64_t *table_find(Table *t, int64_t key);               // NULL if it is not there
int64_t *table_put(Table *t, int64_t key, int64_t fresh); // made with `fresh` if it is not there
void table_drop(Table *t, int64_t key);
void table_prefetch(Table *t, int64_t key);

typedef struct {
    int64_t *number;
    int64_t count;
    int64_t room;
} Heap; // all zeros is an empty one; the owner frees `number`
void heap_push(Heap *heap, int64_t number);
int64_t heap_pop(Heap *heap); // the lowest, of at least one

static inline uint64_t mixed(uint64_t n) { // SplitMix64's output function
    n = (n ^ n >> 30) * 0xBF58476D1CE4E5B9ULL;
    n = (n ^ n >> 27) * 0x94D049BB133111EBULL;
    return n ^ n >> 31;
}

typedef struct Space Space; // which extents are free, and which object has which
Space *space_open(int64_t size_bytes, int64_t unit_bytes, int64_t reserved_bytes);
void space_close(Space *s);
int64_t space_reserve(Space *s, int64_t object,
                      int64_t bytes); // where it begins; -ENOSPC, or -EFBIG if it has less
int64_t space_find(Space *s, int64_t object, int64_t *bytes); // where it begins; -ENOENT
int64_t space_release(Space *s, int64_t object);              // 0, or -ENOENT
int64_t space_take(Space *s, int64_t bytes); // for who keeps the objects, alone: begin; -ENOSPC
void space_give(Space *s, int64_t start, int64_t bytes); // what was taken
int64_t space_highest_bytes(const Space *s); // the end of the highest byte that was ever reserved

#endif
