// Generates the data of writes before they are due, while a ring has nothing else to do.
//
// Generating data takes as long as a fast drive takes to write it. A burst of writes that are due
// together would otherwise reach the drive one by one, as the data becomes ready, whereas an engine
// that offloads a KV cache has the data at once.
//
// The data is put into buffers of free slots, which stay free: a step that needs a slot takes one
// without data if it can, and otherwise one of these, whose data is then lost and generated again
// when it is due.
//
// Call path: ring_run -> prepare_next_io; loop_take_step -> slots_take.
#include "replay.h"

#include <string.h>

// A write of an I/O is prepared if there is at least this time for each of its bytes.
static const double GENERATION_NS_PER_BYTE = 1.0;
// Rows that one call looks at, at most: others wait for the lock meanwhile.
enum { LOOK_ROWS = 1024 };

// Returns how many slots have a buffer with memory and neither data nor an I/O.
static int32_t count_blank(const Slots *slots) {
    int32_t drawn = slots->all - slots->blank; // in use, prepared or being prepared
    int32_t allowed = slots->allowed - drawn;
    return slots->blank < allowed ? slots->blank : allowed;
}

bool slots_has_free(Engine *engine, Slots *slots) {
    if (slots == &engine->slots) {
        slots->allowed =
            (int32_t)atomic_load_explicit(&engine->job->allowed_slots, memory_order_relaxed);
    }
    return count_blank(slots) > 0 || slots->prepared_ios > 0;
}

// Removes the prepared slot at `index` from the list, and returns it.
static int32_t remove_prepared(Slots *slots, int32_t index) {
    int32_t slot = slots->prepared[index].slot;
    slots->prepared_ios--;
    memmove(&slots->prepared[index], &slots->prepared[index + 1],
            (size_t)(slots->prepared_ios - index) * sizeof(PreparedIo));
    return slot;
}

// Returns the index of the slot with the data of `step`, or NONE.
static int32_t find_prepared(const Slots *slots, const Step *step) {
    if (step->operation->row->op != WRITE || !step->bytes) {
        return NONE;
    }
    for (int32_t i = 0; i < slots->prepared_ios; i++) {
        const PreparedIo *io = &slots->prepared[i];
        if (io->number == step->operation->number && io->from_bytes == step->from_bytes) {
            return i;
        }
    }
    return NONE;
}

void slots_take(Engine *engine, Slots *slots, Step *step) {
    int32_t index = find_prepared(slots, step);
    step->is_prepared = index != NONE;
    if (step->is_prepared) {
        step->slot = remove_prepared(slots, index);
    } else if (count_blank(slots) > 0) {
        step->slot = slots->free[--slots->blank];
    } else {
        // The data that is lost is that of the write that is due last.
        step->slot = remove_prepared(slots, slots->prepared_ios - 1);
    }
    slots->count--;
    int32_t used = slots->all - slots->count;
    if (slots == &engine->slots) {
        engine->job->max_slots = max_of(engine->job->max_slots, used);
    }
    atomic_store_explicit(slots == &engine->slots ? &engine->job->in_flight : &engine->job->copying,
                          used, memory_order_relaxed);
}

static int64_t laid_rows(const Engine *engine) {
    return atomic_load_explicit(&engine->order.rows->laid, memory_order_acquire);
}

// Finds the next I/O of a write of the queue that is due after `now`, and advances the queue past
// it. Returns its row, or NULL.
static Row *find_later_write(Engine *engine, Queue *queue, int64_t now, PreparedIo *io,
                             int64_t *bytes) {
    Rows *rows = engine->order.rows;
    int64_t laid = laid_rows(engine);
    int64_t ended = atomic_load_explicit(&rows->ended, memory_order_relaxed);
    if (queue->prepare_row < ended) {
        queue->prepare_row = ended;
        queue->prepare_io = 0;
    }
    for (int looked = 0; queue->prepare_row < laid && looked < LOOK_ROWS; looked++) {
        Row *row = rows_at(rows, queue->prepare_row);
        const Tier *tier = &engine->job->tier[row->tier];
        bool is_later = row->op == WRITE && row->length_bytes > 0 && row->due_ns > now;
        if (is_later && (tier->kind == EXTENTS || tier->kind == FILES) &&
            queue_of_row(engine, row) == queue) {
            int64_t from = row_first_byte(row, tier->padding_bytes) +
                           queue->prepare_io * engine->job->io_bytes;
            int64_t end = row_end_byte(row, tier->padding_bytes);
            if (from < end) {
                *io = (PreparedIo){.number = queue->prepare_row, .from_bytes = from};
                *bytes = min_of(engine->job->io_bytes, end - from);
                return row;
            }
        }
        queue->prepare_row++;
        queue->prepare_io = 0;
    }
    return NULL;
}

bool prepare_next_io(Engine *engine, int queue_index, Use *use, int64_t now, int64_t until_ns) {
    Queue *queue = &engine->queue[queue_index];
    Slots *slots = queue->slots;
    PreparedIo io;
    int64_t bytes = 0;
    engine_lock(engine);
    slots_has_free(engine, slots);
    // Reads need slots, too: an eighth of them stays without data.
    bool has_room =
        slots->prepared_ios + slots->preparing < slots->allowed * 7 / 8 && count_blank(slots) > 0;
    Row *row = has_room ? find_later_write(engine, queue, now, &io, &bytes) : NULL;
    if (!row || now + (int64_t)((double)bytes * GENERATION_NS_PER_BYTE) > until_ns) {
        bool may_find_more = has_room && !row && queue->prepare_row < laid_rows(engine);
        engine_unlock(engine);
        return may_find_more;
    }
    queue->prepare_io++;
    slots->preparing++;
    io.slot = slots->free[--slots->blank];
    int64_t object = row->object_id;
    int64_t version = row->version;
    engine_unlock(engine);

    int64_t started = monotonic_ns();
    use->doing = MAKING_DATA;
    data_generate(engine->job->data, engine_slot_buffer(engine, io.slot), bytes, io.from_bytes,
                  object, version);
    use->preparing_ns += monotonic_ns() - started;

    engine_lock(engine);
    bool was_empty = !slots_has_free(engine, slots);
    slots->preparing--;
    slots->prepared[slots->prepared_ios++] = io;
    if (was_empty) {
        engine_wake_queues(engine);
    }
    engine_unlock(engine);
    return true;
}
