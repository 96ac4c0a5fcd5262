// The slots of a queue depth: each step in flight holds one, and with it a buffer.
//
// A free slot is blank, or its buffer holds the data of a write that is due later (prepare.c), or a
// thread is generating such data into it. A step takes the slot with its own data, else a blank
// one, else one with the data of another write, which is lost.
//
// Call path: loop_take_step -> slots_take; loop_complete_step -> slots_return.
#include "replay.h"

#include <string.h>

int32_t slots_count_blank(const Engine *engine, Slots *slots) {
    if (slots == &engine->slots) {
        slots->allowed =
            (int32_t)atomic_load_explicit(&engine->job->allowed_slots, memory_order_relaxed);
    }
    int32_t drawn = slots->all - slots->blank; // in use, prepared or being prepared
    int32_t allowed = slots->allowed - drawn;
    return slots->blank < allowed ? slots->blank : allowed;
}

bool slots_has_free(const Engine *engine, Slots *slots) {
    return slots_count_blank(engine, slots) > 0 || slots->prepared_ios > 0;
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
    } else if (slots_count_blank(engine, slots) > 0) {
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

void slots_return(Engine *engine, Slots *slots, int32_t slot) {
    bool was_full = !slots_has_free(engine, slots);
    slots->free[slots->blank++] = slot;
    slots->count++;
    atomic_store_explicit(slots == &engine->slots ? &engine->job->in_flight : &engine->job->copying,
                          slots->all - slots->count, memory_order_relaxed);
    if (!was_full) {
        return;
    }
    for (Queue *queue = engine->queue; queue < engine->queue + engine->queues; queue++) {
        if (queue->slots == slots &&
            (queue->ready.count || queue->first || queue->bulk || queue->closing)) {
            queue_wake(queue);
        }
    }
}
