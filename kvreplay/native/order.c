// In which order rows may go: a row waits for the group before its own in two chains, the stages of
// its request and the operations on its object. Rows of a group may run together: those of one
// stage, or reads that follow each other.
//
// Rows are looked at in the order of the trace, a bounded number ahead. A group is forgotten when
// no row can join or follow it any more, or half a window of rows after it ended; a row that comes
// later waits for nothing in any case.
#include "replay.h"

#include <stdlib.h>

enum { REQUEST, OBJECT }; // of Order.chain
enum { READS = 1, AHEAD_ROWS = 4096, LOOK_ROWS = 1024, MOST_WINDOWS = 4 };

// --- groups
// ---------------------------------------------------------------------------------------------------------

static int32_t new_group(Order *o, int chain, int64_t key, int32_t label) {
    int32_t at = o->free_group;
    if (at != NONE) {
        o->free_group = o->group[at].next;
    } else {
        if ((o->groups & (o->groups - 1)) == 0) { // a power of two: it is full
            o->group = grown(o->group, o->groups ? 2 * o->groups : 1, sizeof(Group));
        }
        at = o->groups++;
    }
    o->group[at] = (Group){.key = key,
                           .first = NONE,
                           .next = NONE,
                           .label = label,
                           .chain = (int8_t)chain,
                           .is_open = true};
    return at;
}

static void free_group(Order *o, int32_t at) {
    o->group[at].next = o->free_group;
    o->free_group = at;
}

// The group that a row joins: the last of its chain, or a new one behind it.
static int32_t group_of(Order *o, int chain, int64_t key, int32_t label) {
    int64_t *last = table_put(&o->chain[chain], key, NONE);
    int32_t before = (int32_t)*last;
    if (before == NONE) {
        return (int32_t)(*last = new_group(o, chain, key, label));
    }
    Group *g = &o->group[before];
    if (g->label == label && label >= 0) {
        return before;
    }
    if (!g->left) { // it is over: its place is the next one's
        g->opened_ns = g->done_ns;
        g->label = label;
        return before;
    }
    int32_t at = new_group(o, chain, key, label);
    o->group[at].is_open = false;
    o->group[before].next = at;
    *table_find(&o->chain[chain], key) = at;
    return at;
}

// Forget groups that ended half a window ago and that nothing followed; in an open loop those alone
// that ended before what comes now is due, as long as they are not too many: a row that is late
// counts from what it waited for.
static void retire(Engine *e) {
    Order *o = &e->order;
    int64_t due_ns =
        e->job->is_open_loop && o->cursor ? row_at(o->rows, o->cursor - 1)->due_ns : INT64_MAX;
    while (o->retiring_count) {
        Retiring *r = &o->retiring[o->retiring_first & (o->retiring_room - 1)];
        Group *g = &o->group[r->group];
        if (r->cursor + o->rows->mask / 2 > o->cursor) {
            break;
        }
        if (g->done_ns > due_ns && o->retiring_count < MOST_WINDOWS * o->rows->mask) {
            break;
        }
        g->is_retiring = false;
        if (!g->left) {
            int64_t *last = table_find(&o->chain[g->chain], g->key);
            if (last && *last == r->group) {
                table_drop(&o->chain[g->chain], g->key);
            }
            free_group(o, r->group);
        }
        o->retiring_first++, o->retiring_count--;
    }
}

static void note_over(Order *o, int32_t at) {
    if (o->group[at].is_retiring) {
        return;
    }
    if (o->retiring_count == o->retiring_room) {
        int64_t room = o->retiring_room ? 2 * o->retiring_room : 1024;
        Retiring *more = grown(NULL, room, sizeof(Retiring));
        for (int64_t i = 0; i < o->retiring_count; i++) {
            more[i] = o->retiring[(o->retiring_first + i) & (o->retiring_room - 1)];
        }
        free(o->retiring);
        o->retiring = more, o->retiring_first = 0, o->retiring_room = room;
    }
    o->group[at].is_retiring = true;
    o->retiring[(o->retiring_first + o->retiring_count++) & (o->retiring_room - 1)] =
        (Retiring){o->cursor, at, 0};
}

// --- rows
// -----------------------------------------------------------------------------------------------------------

static void make_ready(Engine *e, int64_t number) {
    Queue *queue = queue_of(e, row_at(e->order.rows, number));
    heap_push(&queue->ready, number);
    e->order.ready++;
    queue_wake(queue);
}

static void enter(Engine *e, int64_t number) {
    Order *o = &e->order;
    Row *r = row_at(o->rows, number);
    int64_t since = 0;
    r->unmet = 0;
    for (int chain = 0; chain < CHAINS; chain++) {
        r->group[chain] = NONE;
        if (chain == REQUEST && (r->stage < 0 || r->request < 0)) {
            continue;
        }
        int32_t label = chain == REQUEST ? r->stage : r->op == READ ? READS : NONE;
        int32_t at = group_of(o, chain, chain == REQUEST ? r->request : r->object_id, label);
        Group *g = &o->group[at];
        r->group[chain] = at;
        g->left++;
        if (g->is_open) {
            if (g->opened_ns > since) {
                since = g->opened_ns;
            }
            continue;
        }
        r->unmet++;
        r->waits_with[chain] = g->first;
        g->first = (int32_t)(number & o->rows->mask);
    }
    o->chained += r->unmet > 0;
    if (r->unmet) {
        return;
    }
    r->ready_ns = since;
    make_ready(e, number);
}

bool order_look(Engine *e, Queue *queue) {
    Order *o = &e->order;
    int64_t laid = atomic_load_explicit(&o->rows->laid, memory_order_acquire), looked = 0;
    while (o->cursor < laid && (!queue->ready.count || o->ready < AHEAD_ROWS)) {
        if (looked++ == LOOK_ROWS) {
            return true;
        }
        if (o->cursor + 8 < laid) {
            table_prefetch(&o->chain[OBJECT], row_at(o->rows, o->cursor + 8)->object_id);
        }
        enter(e, o->cursor++);
    }
    retire(e);
    return false;
}

static void open_group(Engine *e, int32_t at, int64_t now) {
    Order *o = &e->order;
    Group *g = &o->group[at];
    int chain = g->chain;
    int64_t base = atomic_load_explicit(&o->rows->ended, memory_order_relaxed);
    g->is_open = true;
    g->opened_ns = now;
    for (int32_t place = g->first; place != NONE; place = o->rows->row[place].waits_with[chain]) {
        Row *r = &o->rows->row[place];
        if (--r->unmet) {
            continue;
        }
        o->chained--;
        r->ready_ns = now;
        make_ready(e,
                   base + ((place - base) &
                           o->rows->mask)); // its number: within a window from the first under way
    }
    g->first = NONE;
}

void order_leave(Engine *e, int64_t number, int64_t now) {
    Order *o = &e->order;
    Row *r = row_at(o->rows, number);
    for (int chain = 0; chain < CHAINS; chain++) {
        int32_t at = r->group[chain];
        if (at == NONE) {
            continue;
        }
        Group *g = &o->group[at];
        if (--g->left) {
            continue;
        }
        g->done_ns = now;
        if (g->next == NONE) {
            note_over(o, at);
        } else {
            int32_t next = g->next;
            open_group(e, next, now);
            if (!o->group[at].is_retiring) {
                free_group(o, at);
            } else {
                o->group[at].next = NONE; // it is freed when its turn comes
            }
        }
    }
    r->is_ended = true;
    int64_t ended = atomic_load_explicit(&o->rows->ended, memory_order_relaxed);
    while (ended < o->cursor && row_at(o->rows, ended)->is_ended) {
        ended++;
    }
    atomic_store_explicit(&o->rows->ended, ended, memory_order_release);
}
