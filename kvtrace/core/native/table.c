// A hash table of int64 by int64: open addressing, linear probing, no tombstones. Memory follows what is in it.
#include "core.h"

#include <stdlib.h>

enum { FIRST_SIZE = 1024, EMPTY = -1 };

void *grown(void *memory, int64_t count, size_t size) {
    void *more = realloc(memory, (size_t)count * size);
    if (!more) abort();
    return more;
}

void *zeros(int64_t count, size_t size) {
    void *made = calloc((size_t)count, size);
    if (!made) abort();
    return made;
}

static int64_t home(const Table *t, int64_t key) { return (int64_t)(mixed((uint64_t)key + 0x9E3779B97F4A7C15ULL) & (uint64_t)(t->size - 1)); }

static int64_t place(const Table *t, int64_t key) {   // where it is, or would be
    int64_t at = home(t, key);
    while (t->entry[at].key != EMPTY && t->entry[at].key != key) at = (at + 1) & (t->size - 1);
    return at;
}

static void resize(Table *t, int64_t size) {
    Table new = {grown(NULL, size, sizeof(Entry)), size, t->count};
    for (int64_t i = 0; i < size; i++) new.entry[i].key = EMPTY;
    for (int64_t i = 0; i < t->size; i++)
        if (t->entry[i].key != EMPTY) new.entry[place(&new, t->entry[i].key)] = t->entry[i];
    free(t->entry);
    *t = new;
}

void table_free(Table *t) {
    free(t->entry);
    *t = (Table){0};
}

int64_t *table_find(Table *t, int64_t key) {
    if (!t->count) return NULL;
    Entry *e = &t->entry[place(t, key)];
    return e->key == EMPTY ? NULL : &e->value;
}

int64_t *table_put(Table *t, int64_t key, int64_t fresh) {
    if (t->count * 3 >= t->size * 2) resize(t, t->size ? 2 * t->size : FIRST_SIZE);
    Entry *e = &t->entry[place(t, key)];
    if (e->key == EMPTY) *e = (Entry){key, fresh}, t->count++;
    return &e->value;
}

void table_drop(Table *t, int64_t key) {
    if (!t->count) return;
    int64_t at = place(t, key), mask = t->size - 1;
    if (t->entry[at].key == EMPTY) return;
    t->count--;
    // Those behind it that stand there because it was in their way move up.
    for (int64_t here = (at + 1) & mask; t->entry[here].key != EMPTY; here = (here + 1) & mask)
        if (((here - home(t, t->entry[here].key)) & mask) >= ((here - at) & mask)) t->entry[at] = t->entry[here], at = here;
    t->entry[at].key = EMPTY;
    if (t->size > FIRST_SIZE && t->count * 8 < t->size) resize(t, t->size / 2);
}

void table_prefetch(Table *t, int64_t key) {
    if (t->size) __builtin_prefetch(&t->entry[home(t, key)]);
}
