// A hash table of int64 by int64: open addressing, probed in equal steps, no tombstones. Memory
// follows what is in it.
#include "core.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { FIRST_SIZE = 1024, LINE = 16, STEP = LINE + 1 };

#define EMPTY INT64_MIN
#define INVERSE 0xF0F0F0F0F0F0F0F1ULL // times STEP it is 1

_Thread_local jmp_buf *out_of_memory;

static void *got(void *memory) {
    if (memory) {
        return memory;
    }
    if (out_of_memory) {
        longjmp(*out_of_memory, 1);
    }
    fputs("error: out of memory: the machine, or a limit on this process (ulimit -v), has too "
          "little\n",
          stderr);
    _exit(7); // as OutOfMemory of core/errors.py
}

void *grown(void *memory, int64_t count, size_t size) {
    return got(realloc(memory, (size_t)count * size));
}

void *zeros(int64_t count, size_t size) {
    return got(calloc((size_t)count, size));
}

// Keys that follow each other, as the objects of a prompt do, have their homes in one line: LINE of
// them are fetched together. What finds its home taken goes on by an odd STEP, to the next line and
// place. Multiples of LINE are spread over all places.
static int64_t home(const Table *t, int64_t key) {
    uint64_t line = mixed((uint64_t)key / LINE + 0x9E3779B97F4A7C15ULL),
             place = ((uint64_t)key ^ line >> 32) % LINE;
    return (int64_t)((line * LINE + place) & (uint64_t)(t->size - 1));
}

static int64_t place(const Table *t, int64_t key) { // where it is, or would be
    int64_t at = home(t, key);
    while (t->entry[at].key != EMPTY && t->entry[at].key != key) {
        at = (at + STEP) & (t->size - 1);
    }
    return at;
}

// How many steps it is from one place to another.
static int64_t steps(const Table *t, int64_t from, int64_t to) {
    return (int64_t)((uint64_t)(to - from) * INVERSE) & (t->size - 1);
}

static void resize(Table *t, int64_t size) {
    Table new = {grown(NULL, size, sizeof(Entry)), size, t->count};
    for (int64_t i = 0; i < size; i++) {
        new.entry[i].key = EMPTY;
    }
    for (int64_t i = 0; i < t->size; i++) {
        if (t->entry[i].key != EMPTY) {
            new.entry[place(&new, t->entry[i].key)] = t->entry[i];
        }
    }
    free(t->entry);
    *t = new;
}

EXPORT void table_free(Table *t) {
    free(t->entry);
    *t = (Table){0};
}

int64_t *table_find(Table *t, int64_t key) {
    if (!t->count) {
        return NULL;
    }
    Entry *e = &t->entry[place(t, key)];
    return e->key == EMPTY ? NULL : &e->value;
}

int64_t *table_put(Table *t, int64_t key, int64_t fresh) {
    if (t->count * 3 >= t->size * 2) {
        resize(t, t->size ? 2 * t->size : FIRST_SIZE);
    }
    Entry *e = &t->entry[place(t, key)];
    if (e->key == EMPTY) {
        *e = (Entry){key, fresh}, t->count++;
    }
    return &e->value;
}

void table_drop(Table *t, int64_t key) {
    if (!t->count) {
        return;
    }
    int64_t at = place(t, key);
    if (t->entry[at].key == EMPTY) {
        return;
    }
    t->count--;
    // Those behind it that stand there because it was in their way move up.
    for (int64_t here = at; here = (here + STEP) & (t->size - 1), t->entry[here].key != EMPTY;) {
        if (steps(t, home(t, t->entry[here].key), here) >= steps(t, at, here)) {
            t->entry[at] = t->entry[here], at = here;
        }
    }
    t->entry[at].key = EMPTY;
    if (t->size > FIRST_SIZE && t->count * 8 < t->size) {
        resize(t, t->size / 2);
    }
}

void table_prefetch(Table *t, int64_t key) {
    if (t->size) {
        __builtin_prefetch(&t->entry[home(t, key)]);
    }
}
