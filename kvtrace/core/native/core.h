// What the C files of all three programs share: memory, a hash table of numbers (table.c), a heap
// of numbers (heap.c), and the space of a file, a device or memory (space.c).
#ifndef KVTRACE_CORE_H
#define KVTRACE_CORE_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

// An index, a number or a time that does not exist.
enum { NONE = -1 };

static inline int64_t min_of(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t max_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// How long `bytes` take at a bandwidth, rounded down; at most 2^60 ns.
static inline int64_t transfer_ns(int64_t bytes, int64_t bytes_per_s) {
    const __int128 longest_ns = (__int128)1 << 60;
    const __int128 ns = (__int128)bytes * 1000000000 / bytes_per_s;
    return (int64_t)(ns < longest_ns ? ns : longest_ns);
}

// SplitMix64's output function (Steele, Lea and Flood, OOPSLA 2014): a hash of a number.
static inline uint64_t mixed(uint64_t n) {
    n = (n ^ n >> 30) * 0xBF58476D1CE4E5B9ULL;
    n = (n ^ n >> 27) * 0x94D049BB133111EBULL;
    return n ^ n >> 31;
}

// --- memory
//
// If memory is out, the thread jumps to `out_of_memory`; if that is NULL, the process ends.

// With the GNU C library, storage of this kind is reserved as the library is loaded. It would be
// allocated by the first use in a thread otherwise, and the loader ends a process without memory.
#ifdef __GLIBC__
#define THREAD_LOCAL __attribute__((tls_model("initial-exec"))) _Thread_local
#else
#define THREAD_LOCAL _Thread_local
#endif
extern THREAD_LOCAL jmp_buf *out_of_memory;

// Memory for `count` items of `size` bytes: `memory` enlarged as by realloc, or new zeros.
void *memory_grow(void *memory, int64_t count, size_t size);
void *memory_zeros(int64_t count, size_t size);

// --- a hash table of numbers

typedef struct {
    int64_t key;
    int64_t value;
} Entry;

// All zeros is an empty table. A key may be any number but INT64_MIN.
typedef struct {
    Entry *entry;  // [size]
    int64_t size;  // A power of two; 0 if there is no memory yet.
    int64_t count; // Keys in the table.
} Table;

void table_free(Table *table);
// The value of `key`; NULL if the table does not have it.
int64_t *table_find(Table *table, int64_t key);
// The value of `key`, which is added with the value `fresh` if the table does not have it.
int64_t *table_put(Table *table, int64_t key, int64_t fresh);
void table_drop(Table *table, int64_t key);
void table_prefetch(Table *table, int64_t key);

// --- a heap of numbers

// All zeros is an empty heap. The owner frees `number`.
typedef struct {
    int64_t *number; // [room]
    int64_t count;   // Numbers in the heap.
    int64_t room;
} Heap;

void heap_push(Heap *heap, int64_t number);
// Takes the lowest number, of at least one.
int64_t heap_pop(Heap *heap);

// --- the space of a file, a device or memory

// Which extents are free, and which object has which.
typedef struct Space Space;

Space *space_open(int64_t size_bytes, int64_t unit_bytes, int64_t reserved_bytes);
void space_close(Space *space);
// Where the object begins: reserved if it has no extent yet. -ENOSPC if there is no room, -EFBIG if
// its extent is smaller than `bytes`.
int64_t space_reserve(Space *space, int64_t object, int64_t bytes);
// Where the object begins, and the bytes of its extent (`bytes` may be NULL); -ENOENT.
int64_t space_find(Space *space, int64_t object, int64_t *bytes);
// Frees the object's extent; 0, or -ENOENT.
int64_t space_release(Space *space, int64_t object);
// The same without objects, for a caller that keeps account of its extents itself, on one thread:
// where the extent begins; -ENOSPC.
int64_t space_allocate(Space *space, int64_t bytes);
void space_free(Space *space, int64_t start, int64_t bytes);
// The end of the highest byte that was ever reserved.
int64_t space_highest_bytes(const Space *space);

#endif
