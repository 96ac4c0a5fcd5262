// Generates the data of writes before they are due, while a ring has nothing else to do.
//
// Generating data takes as long as a fast drive takes to write it. A burst of writes that are due
// together would otherwise reach the drive one by one, as the data becomes ready, whereas an engine
// that offloads a KV cache has the data at once.
//
// The data is put into buffers of free slots, which stay free (io_slots.c): where a step has to
// take one for something else, its data is lost, and generated again when it is due.
//
// Call path: ring_run -> prepare_next_io -> find_later_write.
#include "replay.h"

// A write of an I/O is prepared if there is at least this time for each of its bytes.
static const double GENERATION_NS_PER_BYTE = 1.0;
// Rows that one call looks at, at most: others wait for the lock meanwhile.
enum { LOOK_ROWS = 1024 };

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
    // Reads need slots, too: an eighth of them stays without data.
    bool has_room = slots_count_blank(engine, slots) > 0 &&
                    slots->prepared_ios + slots->preparing < slots->allowed * 7 / 8;
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
