// The order in which rows may run. A row belongs to a group in up to two chains, the stages of its
// request and the operations on its object, and becomes ready when the groups before its own have
// ended.
//
// Call path: loop_take_step -> order_admit_rows -> admit_row -> join_group, and make_row_ready if
// the row waits for nothing. loop_complete_step -> order_finish_row -> open_group for the group
// behind one whose last row has ended -> make_row_ready for the rows that waited.
//
// Rows of one group may run together: those of one stage of a request, or consecutive reads of an
// object. A write or delete is a group of its own, so that it waits for the reads before it.
//
// Rows are admitted in the order of the trace, a bounded number ahead. A group is freed when no row
// can join or follow it any more, or half a window of rows after it ended: a later row would not
// have to wait for it in any case.
#include "replay.h"

#include <stdlib.h>

// Indices of Order.chain.
enum { REQUEST, OBJECT };
enum { READS = 1, AHEAD_ROWS = 4096, LOOK_ROWS = 1024, MOST_WINDOWS = 4 };

// --- groups

static int32_t new_group(Order *order, int chain, int64_t key, int32_t label) {
    int32_t group_index = order->free_group;
    if (group_index != NONE) {
        order->free_group = order->group[group_index].next;
    } else {
        if ((order->groups & (order->groups - 1)) ==
            0) { // The memory is full at each power of two.
            order->group =
                memory_grow(order->group, order->groups ? 2 * order->groups : 1, sizeof(Group));
        }
        group_index = order->groups++;
    }
    order->group[group_index] = (Group){.key = key,
                                        .first = NONE,
                                        .next = NONE,
                                        .label = label,
                                        .chain = (int8_t)chain,
                                        .is_open = true};
    return group_index;
}

static void free_group(Order *order, int32_t group_index) {
    order->group[group_index].next = order->free_group;
    order->free_group = group_index;
}

// Returns the group that a row joins: the last of its chain, or a new one behind it.
static int32_t join_group(Order *order, int chain, int64_t key, int32_t label) {
    int64_t *last = table_put(&order->chain[chain], key, NONE);
    int32_t before = (int32_t)*last;
    if (before == NONE) {
        return (int32_t)(*last = new_group(order, chain, key, label));
    }
    Group *group = &order->group[before];
    if (group->label == label && label >= 0) {
        return before;
    }
    if (!group->left) { // All of its rows have ended, so the new group takes over its entry.
        group->opened_ns = group->done_ns;
        group->label = label;
        return before;
    }
    int32_t group_index = new_group(order, chain, key, label);
    order->group[group_index].is_open = false;
    order->group[before].next = group_index;
    *table_find(&order->chain[chain], key) = group_index;
    return group_index;
}

// Frees groups that ended half a window ago and that nothing followed. In an open loop a group is
// kept until the rows being admitted are due after its end, because the ready time of a late row is
// the end of the group that it waited for; MOST_WINDOWS bounds how many are kept.
static void retire_groups(Engine *engine) {
    Order *order = &engine->order;
    int64_t due_ns = engine->job->is_open_loop && order->cursor
                         ? rows_at(order->rows, order->cursor - 1)->due_ns
                         : INT64_MAX;
    while (order->retiring_count) {
        Retiring *retiring = &order->retiring[order->retiring_first & (order->retiring_room - 1)];
        Group *group = &order->group[retiring->group];
        if (retiring->cursor + order->rows->mask / 2 > order->cursor) {
            break;
        }
        if (group->done_ns > due_ns && order->retiring_count < MOST_WINDOWS * order->rows->mask) {
            break;
        }
        group->is_retiring = false;
        if (!group->left) {
            int64_t *last = table_find(&order->chain[group->chain], group->key);
            if (last && *last == retiring->group) {
                table_drop(&order->chain[group->chain], group->key);
            }
            free_group(order, retiring->group);
        }
        order->retiring_first++;
        order->retiring_count--;
    }
}

// Remembers a group that has ended and that nothing follows, for retire_groups.
static void queue_for_retirement(Order *order, int32_t group_index) {
    if (order->group[group_index].is_retiring) {
        return;
    }
    if (order->retiring_count == order->retiring_room) {
        int64_t room = order->retiring_room ? 2 * order->retiring_room : 1024;
        Retiring *more = memory_grow(NULL, room, sizeof(Retiring));
        for (int64_t i = 0; i < order->retiring_count; i++) {
            more[i] = order->retiring[(order->retiring_first + i) & (order->retiring_room - 1)];
        }
        free(order->retiring);
        order->retiring = more;
        order->retiring_first = 0;
        order->retiring_room = room;
    }
    order->group[group_index].is_retiring = true;
    order
        ->retiring[(order->retiring_first + order->retiring_count++) & (order->retiring_room - 1)] =
        (Retiring){order->cursor, group_index, 0};
}

// --- rows

// Pushes a row on the heap of its queue and wakes a thread of it.
static void make_row_ready(Engine *engine, int64_t number) {
    Queue *queue = queue_of_row(engine, rows_at(engine->order.rows, number));
    heap_push(&queue->ready, number);
    engine->order.ready++;
    queue_wake(queue);
}

// Puts a row into its group of each chain; a row whose groups are all open is ready.
static void admit_row(Engine *engine, int64_t number) {
    Order *order = &engine->order;
    Row *row = rows_at(order->rows, number);
    int64_t since = 0;
    row->unmet = 0;
    for (int chain = 0; chain < CHAINS; chain++) {
        row->group[chain] = NONE;
        if (chain == REQUEST && (row->stage < 0 || row->request < 0)) {
            continue;
        }
        int32_t label = chain == REQUEST ? row->stage : row->op == READ ? READS : NONE;
        int32_t group_index =
            join_group(order, chain, chain == REQUEST ? row->request : row->object_id, label);
        Group *group = &order->group[group_index];
        row->group[chain] = group_index;
        group->left++;
        if (group->is_open) {
            if (group->opened_ns > since) {
                since = group->opened_ns;
            }
            continue;
        }
        row->unmet++;
        row->waits_with[chain] = group->first;
        group->first = (int32_t)(number & order->rows->mask);
    }
    order->chained += row->unmet > 0;
    if (row->unmet) {
        return;
    }
    row->ready_ns = since;
    make_row_ready(engine, number);
}

bool order_admit_rows(Engine *engine, Queue *queue) {
    Order *order = &engine->order;
    int64_t laid = atomic_load_explicit(&order->rows->laid, memory_order_acquire);
    int64_t looked = 0;
    while (order->cursor < laid && (!queue->ready.count || order->ready < AHEAD_ROWS)) {
        if (looked++ == LOOK_ROWS) {
            return true;
        }
        if (order->cursor + 8 < laid) {
            table_prefetch(&order->chain[OBJECT],
                           rows_at(order->rows, order->cursor + 8)->object_id);
        }
        admit_row(engine, order->cursor++);
    }
    retire_groups(engine);
    return false;
}

// Lets the rows of a group run, now that the group before it has ended.
static void open_group(Engine *engine, int32_t group_index, int64_t now) {
    Order *order = &engine->order;
    Group *group = &order->group[group_index];
    int chain = group->chain;
    int64_t base = atomic_load_explicit(&order->rows->ended, memory_order_relaxed);
    group->is_open = true;
    group->opened_ns = now;
    for (int32_t ring_index = group->first; ring_index != NONE;
         ring_index = order->rows->row[ring_index].waits_with[chain]) {
        Row *row = &order->rows->row[ring_index];
        if (--row->unmet) {
            continue;
        }
        order->chained--;
        row->ready_ns = now;
        make_row_ready(
            engine,
            base + ((ring_index - base) &
                    order->rows->mask)); // its number: within a window from the first under way
    }
    group->first = NONE;
}

// Takes the row out of its chains, and lets those go that waited for it. A row that failed lets
// them go, too.
void order_finish_row(Engine *engine, int64_t number, int64_t now) {
    Order *order = &engine->order;
    Row *row = rows_at(order->rows, number);
    for (int chain = 0; chain < CHAINS; chain++) {
        int32_t group_index = row->group[chain];
        if (group_index == NONE) {
            continue;
        }
        Group *group = &order->group[group_index];
        if (--group->left) {
            continue;
        }
        group->done_ns = now;
        if (group->next == NONE) {
            queue_for_retirement(order, group_index);
        } else {
            int32_t next = group->next;
            open_group(engine, next, now);
            if (!order->group[group_index].is_retiring) {
                free_group(order, group_index);
            } else {
                order->group[group_index].next = NONE; // retire_groups frees it.
            }
        }
    }
    row->is_ended = true;
    int64_t ended = atomic_load_explicit(&order->rows->ended, memory_order_relaxed);
    while (ended < order->cursor && rows_at(order->rows, ended)->is_ended) {
        ended++;
    }
    atomic_store_explicit(&order->rows->ended, ended, memory_order_release);
}
