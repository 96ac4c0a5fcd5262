// A hash table of numbers by number. Its memory follows what is in it.
// Open addressing, probed in equal steps, without tombstones:
//
//     find:  i = home(key);  while entry i has another key: i += STEP;  entry i, or an empty one
//     put:   enlarge the table if it is two thirds full;  the entry that find gives
//     drop:  empty the entry, and move entries behind it up that stand there because of it
//            (Knuth, The Art of Computer Programming, volume 3, algorithm 6.4 R)
#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    FIRST_SIZE = 1024,
    LINE = 16, // Keys whose homes are fetched from memory together.
    STEP = LINE + 1,
    OUT_OF_MEMORY_EXIT = 7, // The exit code of OutOfMemory in core/errors.py.
};

#define EMPTY INT64_MIN
// STEP times this is 1, modulo 2^64.
#define INVERSE_STEP 0xF0F0F0F0F0F0F0F1ULL

// --- memory

THREAD_LOCAL jmp_buf *out_of_memory;

static void *memory_or_exit(void *memory) {
    if (memory) {
        return memory;
    }
    if (out_of_memory) {
        longjmp(*out_of_memory, 1);
    }
    fputs("error: out of memory: the machine, or a limit on this process (ulimit -v), has too "
          "little\n",
          stderr);
    _exit(OUT_OF_MEMORY_EXIT);
}

void *memory_grow(void *memory, int64_t count, size_t size) {
    return memory_or_exit(realloc(memory, (size_t)count * size));
}

void *memory_zeros(int64_t count, size_t size) {
    return memory_or_exit(calloc((size_t)count, size));
}

// --- places in the table

// The place at which the search for `key` begins. Consecutive keys, as the objects of a prompt have
// them, have their homes in one line, so that LINE of them are fetched from memory together. A
// search that finds its home taken goes on by an odd STEP: to the next line and place. Keys that
// are multiples of LINE are spread over all places.
static int64_t table_home(const Table *table, int64_t key) {
    uint64_t line = mixed((uint64_t)key / LINE + 0x9E3779B97F4A7C15ULL);
    uint64_t place = ((uint64_t)key ^ line >> 32) % LINE;
    return (int64_t)((line * LINE + place) & (uint64_t)(table->size - 1));
}

// The place of `key`, or the empty place where it would be.
static int64_t table_place(const Table *table, int64_t key) {
    int64_t place = table_home(table, key);
    while (table->entry[place].key != EMPTY && table->entry[place].key != key) {
        place = (place + STEP) & (table->size - 1);
    }
    return place;
}

// How many steps a search makes from one place to another.
static int64_t table_steps(const Table *table, int64_t from, int64_t to) {
    return (int64_t)((uint64_t)(to - from) * INVERSE_STEP) & (table->size - 1);
}

static void table_resize(Table *table, int64_t size) {
    Table resized = {memory_grow(NULL, size, sizeof(Entry)), size, table->count};
    for (int64_t i = 0; i < size; i++) {
        resized.entry[i].key = EMPTY;
    }
    for (int64_t i = 0; i < table->size; i++) {
        if (table->entry[i].key != EMPTY) {
            resized.entry[table_place(&resized, table->entry[i].key)] = table->entry[i];
        }
    }
    free(table->entry);
    *table = resized;
}

// --- operations

EXPORT void table_free(Table *table) {
    free(table->entry);
    *table = (Table){0};
}

int64_t *table_find(Table *table, int64_t key) {
    if (!table->count) {
        return NULL;
    }
    Entry *entry = &table->entry[table_place(table, key)];
    return entry->key == EMPTY ? NULL : &entry->value;
}

int64_t *table_put(Table *table, int64_t key, int64_t fresh) {
    if (table->count * 3 >= table->size * 2) {
        table_resize(table, table->size ? 2 * table->size : FIRST_SIZE);
    }
    Entry *entry = &table->entry[table_place(table, key)];
    if (entry->key == EMPTY) {
        *entry = (Entry){key, fresh};
        table->count++;
    }
    return &entry->value;
}

void table_drop(Table *table, int64_t key) {
    if (!table->count) {
        return;
    }
    int64_t gap = table_place(table, key);
    if (table->entry[gap].key == EMPTY) {
        return;
    }
    table->count--;
    // Of the entries behind it, those move up whose search comes past the gap.
    int64_t place = (gap + STEP) & (table->size - 1);
    while (table->entry[place].key != EMPTY) {
        int64_t home = table_home(table, table->entry[place].key);
        if (table_steps(table, home, place) >= table_steps(table, gap, place)) {
            table->entry[gap] = table->entry[place];
            gap = place;
        }
        place = (place + STEP) & (table->size - 1);
    }
    table->entry[gap].key = EMPTY;
    if (table->size > FIRST_SIZE && table->count * 8 < table->size) {
        table_resize(table, table->size / 2);
    }
}

void table_prefetch(Table *table, int64_t key) {
    if (table->size) {
        __builtin_prefetch(&table->entry[table_home(table, key)]);
    }
}

// Fills `numbers` with those of the next `count` names: names are numbered from 0 on in the order
// in which they first appear. Returns how many numbers there are.
EXPORT int64_t table_number_names(Table *table, const int64_t *names, int64_t count,
                                  int32_t *numbers) {
    for (int64_t i = 0; i < count; i++) {
        numbers[i] = (int32_t)*table_put(table, names[i], table->count);
    }
    return table->count;
}
