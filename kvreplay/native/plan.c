// Reads a trace in two passes (plan.h). Survey counts the rows and the bytes that the tiers need;
// Plan lays rows into the ring of the engine, each with the version that it writes or must read.
//
// Call path: survey_take for each batch of the first pass; plan_load -> intake_admit_row -> lay_row
// for each batch of the second.
#include "plan.h"

#include <stdlib.h>
#include <string.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

enum {
    MAX_OBJECT = INT32_MAX - 1,
    TOGETHER = 16,
    FAR = 16,
    NEAR = 8,
    FIRST_ROOM = 1024,
    PUBLISHED = 64
};
#define MOST ((int64_t)1 << 61) // a sum of bytes that comes to it is that: no tier holds so much

static int64_t round_up(int64_t bytes, int64_t by) {
    return by == 1 ? bytes : (bytes + by - 1) / by * by;
}
static int64_t object_key(int64_t tier, int64_t object) {
    return tier << 32 | object;
}

// --- books

static void *book_find(Book *book, int64_t key, size_t bytes) {
    int64_t *at = table_find(&book->index, key);
    return at ? book->item + (size_t)*at * bytes : NULL;
}

// Returns the item of a key. A new one is zero but for its key.
static void *book_put(Book *book, int64_t key, size_t bytes) {
    int64_t *at = table_put(&book->index, key, NONE);
    if (*at != NONE) {
        return book->item + (size_t)*at * bytes;
    }
    if (book->first_free) {
        *at = book->first_free - 1;
        book->first_free = ~*(int64_t *)(void *)(book->item + (size_t)*at * bytes);
    } else {
        if (book->used == book->room) {
            book->item = memory_grow(book->item,
                                     book->room = book->room ? 2 * book->room : FIRST_ROOM, bytes);
        }
        *at = book->used++;
    }
    void *item = memset(book->item + (size_t)*at * bytes, 0, bytes);
    *(int64_t *)item = key;
    return item;
}

static void book_drop(Book *book, int64_t key, size_t bytes) {
    int64_t at = *table_find(&book->index, key);
    *(int64_t *)(void *)(book->item + (size_t)at * bytes) = ~book->first_free;
    book->first_free = at + 1;
    table_drop(&book->index, key);
}

static int64_t book_bytes(const Book *book, size_t bytes) {
    return book->index.size * (int64_t)sizeof(Entry) + book->used * (int64_t)bytes;
}

static int64_t batch_object_key(const Batch *batch, int64_t at, bool has_tiers) {
    return object_key(has_tiers ? batch->tier[at] : 0, batch->object_id[at]);
}

// Prefetches the entry of a later row, and then its item: a row takes less time than a cache miss.
static void prefetch_objects(Book *book, const Batch *rows, size_t bytes, bool has_tiers) {
    if (rows->at + FAR >= rows->rows) {
        return;
    }
    table_prefetch(&book->index, batch_object_key(rows, rows->at + FAR, has_tiers));
    char *item = book_find(book, batch_object_key(rows, rows->at + NEAR, has_tiers), bytes);
    if (!item) {
        return;
    }
    __builtin_prefetch(item);
    __builtin_prefetch(item + bytes - 1);
}

// --- spans

static Span *spans_array(Spans *spans) {
    return spans->room ? spans->many : &spans->one;
}

// Returns the index of the first span that ends at `byte` or behind it.
static int spans_find_end(Spans *spans, int64_t byte) {
    Span *at = spans_array(spans);
    int low = 0;
    int high = spans->count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (at[middle].to_bytes < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// Writes a span of a version over the spans that are there.
static void spans_write(Spans *spans, int64_t from, int64_t to, int32_t version) {
    Span *at = spans_array(spans);
    Span new[3];
    int first = spans_find_end(spans, from);
    int last = first;
    int count = 0;
    while (last < spans->count && at[last].from_bytes <= to) {
        last++;
    }
    Span left = {from, from, version};
    Span right = {to, to, version};
    if (last > first) {
        left = at[first];
        right = at[last - 1];
    }
    if (left.version == version) {
        from = min_of(from, left.from_bytes);
    } else if (left.from_bytes < from) {
        new[count++] = (Span){left.from_bytes, from, left.version};
    }
    if (right.version == version) {
        to = max_of(to, right.to_bytes);
    }
    new[count++] = (Span){from, to, version};
    if (right.version != version && right.to_bytes > to) {
        new[count++] = (Span){to, right.to_bytes, right.version};
    }
    int total = spans->count - (last - first) + count;
    if (total > max_of(spans->room, 1)) {
        Span *many = memory_grow(spans->many, 2 * total, sizeof(Span));
        if (!spans->room) {
            many[0] = spans->one;
        }
        spans->many = at = many;
        spans->room = 2 * total;
    }
    memmove(at + first + count, at + last, (size_t)(spans->count - last) * sizeof(Span));
    memcpy(at + first, new, (size_t)count * sizeof(Span));
    spans->count = total;
}

// Returns whether one span covers all of the bytes.
static bool spans_cover(Spans *spans, int64_t from, int64_t to) {
    int at = spans_find_end(spans, to);
    return at < spans->count && spans_array(spans)[at].from_bytes <= from;
}

static void spans_clear(Spans *spans) {
    free(spans->many);
    *spans = (Spans){0};
}

typedef struct {
    int64_t key;
    Spans spans;
} Written; // Resident begins so, too

static void book_drop_written(Book *book, int64_t key) {
    Written *written = book_find(book, key, sizeof *written);
    if (!written) {
        return;
    }
    spans_clear(&written->spans);
    book_drop(book, key, sizeof *written);
}

static void book_free(Book *book, size_t bytes, bool has_spans) {
    for (int64_t i = 0; has_spans && i < book->used; i++) {
        Written *written = (Written *)(void *)(book->item + (size_t)i * bytes);
        if (written->key >= 0) {
            spans_clear(&written->spans);
        }
    }
    table_free(&book->index);
    free(book->item);
}

// --- rows of a trace

// Returns whether row `at` of the batch is replayed; NONE if neither it nor any later row is.
static int intake_admit_row(Intake *intake, const Batch *batch) {
    int64_t at = batch->at;
    int64_t ts_ns = batch->ts_ns[at];
    int64_t tier = batch->tier[at];
    bool is_own = !batch->node || batch->node[at] == intake->node;
    bool is_wanted = is_own && intake->has_target[tier];
    int64_t moved =
        intake->moved_bytes + (is_wanted && batch->op[at] != DELETE ? batch->length_bytes[at] : 0);
    if (intake->rows >= intake->most_rows || ts_ns >= intake->most_ns ||
        moved > intake->most_bytes) {
        intake->is_full = 1;
        return NONE;
    }
    if (ts_ns < intake->last_ns) {
        intake->fault = EARLIER;
        return NONE;
    }
    if (batch->object_id[at] > MAX_OBJECT) {
        intake->fault = LARGE_ID;
        return NONE;
    }
    intake->moved_bytes = moved;
    intake->last_ns = ts_ns;
    if (is_wanted && intake->left_out) {
        return !intake->left_out[intake->rows % intake->repeated_rows];
    }
    if (is_own && !is_wanted) {
        intake->skipped[tier]++;
    }
    return is_wanted;
}

// --- the first pass

static Resident *survey_put_object(Survey *survey, int64_t tier, int64_t object) {
    Resident *resident = book_put(&survey->residents, object_key(tier, object), sizeof *resident);
    if (resident->is_entered) {
        return resident;
    }
    int64_t *bits = table_find(&survey->deleted, object_key(tier, object >> 6));
    resident->is_entered = 1;
    resident->last_row = NONE;
    resident->is_reborn = bits && (uint64_t)*bits >> (object & 63) & 1;
    return resident;
}

// Forgets an object, except that it was deleted.
static void survey_forget_object(Survey *survey, Resident *resident, int64_t tier, int64_t object) {
    int64_t *bits = table_put(&survey->deleted, object_key(tier, object >> 6), 0);
    *bits = (int64_t)((uint64_t)*bits | 1ULL << (object & 63));
    book_drop(&survey->residents, resident->key, sizeof *resident);
}

static int64_t survey_drive_of_object(const Survey *survey, int64_t tier, int64_t object) {
    return survey->first_drive[tier] + (survey->named[tier] ? survey->drive[tier][object] : 0);
}

static void survey_add_held_bytes(Survey *survey, int64_t place, int64_t more_bytes) {
    survey->now_bytes[place] += more_bytes;
    survey->most_bytes[place] =
        min_of(max_of(survey->most_bytes[place], survey->now_bytes[place]), MOST);
}

static void survey_add_needed_bytes(Survey *survey, int64_t place, int64_t bytes) {
    survey->base_bytes[place] = min_of(survey->base_bytes[place] + bytes, MOST);
}

static void survey_require_bytes(Survey *survey, const Intake *intake, Resident *resident,
                                 int64_t tier, int64_t object, int64_t reach) {
    if (resident->is_reborn) {
        if (survey->lost_row == NONE) {
            survey->lost_row = intake->rows;
            survey->lost_tier = tier;
            survey->lost_object = object;
        }
        return;
    }
    if (reach <= resident->needed_bytes) {
        return;
    }
    resident->needed_bytes = reach;
    if (resident->is_own) {
        survey->is_late = 1;
        return;
    }
    int64_t padding = intake->padding_bytes[tier];
    int64_t more = round_up(reach, padding) - round_up(resident->held_bytes, padding);
    survey_add_needed_bytes(survey, tier, more);
    survey_add_needed_bytes(survey, survey_drive_of_object(survey, tier, object), more);
    resident->held_bytes = reach;
}

// Returns the length of an object after a write up to `reach`.
static int64_t survey_length_after_write(Survey *survey, Resident *resident, int64_t reach) {
    int64_t after = max_of(resident->held_bytes, reach);
    if (resident->held_bytes && resident->held_bytes < after) {
        resident->longest_bytes = max_of(resident->longest_bytes, after);
        survey->has_grown = 1;
    }
    return after;
}

// Applies row `at` of the batch to its object. Returns false for a delete of an absent object.
static bool survey_follow_object(Survey *survey, const Intake *intake, const Batch *batch) {
    int64_t at = batch->at;
    int64_t tier = batch->tier[at];
    int64_t object = batch->object_id[at];
    int64_t padding = intake->padding_bytes[tier];
    int64_t start = batch->offset_bytes[at];
    int64_t end = start + batch->length_bytes[at];
    int64_t reach = max_of(end, 1);
    Resident *resident = survey_put_object(survey, tier, object);
    int64_t before = resident->held_bytes;
    int64_t after = before;
    if (batch->op[at] == WRITE) {
        after = survey_length_after_write(survey, resident, reach);
        if (end > start || start == 0) {
            spans_write(&resident->written, start, reach, 0);
        }
        resident->is_own = 1;
    } else if (batch->op[at] == DELETE) {
        if (intake->is_later && !before && !resident->is_reborn) {
            survey_require_bytes(survey, intake, resident, tier, object,
                                 max_of(batch->length_bytes[at], 1));
        }
        before = resident->held_bytes;
        after = 0;
        resident->is_reborn = 1;
        spans_clear(&resident->written);
    } else if (!spans_cover(&resident->written, end == start && start > 0 ? reach - 1 : start,
                            reach)) {
        survey_require_bytes(survey, intake, resident, tier, object,
                             reach); // An empty read needs the bytes before it.
        before = after = resident->held_bytes;
    }
    resident->held_bytes = after;
    resident->last_row = intake->rows;
    resident->is_gone = batch->op[at] == DELETE;
    if (after != before) {
        int64_t more = round_up(after, padding) - round_up(before, padding);
        survey_add_held_bytes(survey, tier, more);
        survey_add_held_bytes(survey, survey_drive_of_object(survey, tier, object), more);
    }
    if (resident->is_gone && !resident->needed_bytes && !resident->longest_bytes) {
        survey_forget_object(survey, resident, tier, object);
    }
    return batch->op[at] != DELETE || before;
}

typedef struct {
    int64_t key;
    uint32_t stage[TOGETHER];
} Stages; // of requests side by side: their last, and 1

// Counts a row. Returns false if its stage is earlier than that of a row before it.
static bool survey_count_row(Survey *survey, Intake *intake, const Batch *batch) {
    int64_t at = batch->at;
    int64_t tier = batch->tier[at];
    int64_t request = batch->request_id[at];
    if (batch->stage[at] >= 0 && request >= 0) {
        Stages *together = book_put(&survey->stages, request / TOGETHER, sizeof *together);
        uint32_t *last = &together->stage[request % TOGETHER];
        uint32_t stage = (uint32_t)batch->stage[at] + 1;
        if (*last > stage) {
            return false;
        }
        *last = stage;
    }
    Kind *kind = &survey->kind[tier * OPS + batch->op[at]];
    kind->rows++;
    kind->bytes += batch->length_bytes[at];
    kind->end_bytes = max_of(kind->end_bytes, batch->offset_bytes[at] + batch->length_bytes[at]);
    if (batch->stream && batch->stream[at] >= 0) {
        survey->is_placed[tier] = 1;
    }
    if (intake->bulk >> batch->phase[at] & 1) {
        survey->is_bulk = 1;
    }
    survey->planned++;
    survey->last_row = intake->rows;
    survey->last_ns = batch->ts_ns[at];
    return true;
}

static void survey_take_row(Survey *survey, Intake *intake, const Batch *batch) {
    int64_t named = survey->named[batch->tier[batch->at]];
    int64_t object = batch->object_id[batch->at];
    survey->objects = max_of(survey->objects, object + 1);
    if (named && object >= named) {
        intake->fault = UNNAMED;
    } else if (!survey_follow_object(survey, intake, batch) && !intake->is_done) {
        survey->absent++;
    } else if (!survey_count_row(survey, intake, batch)) {
        intake->fault = STAGE_FALLS;
    }
}

// Now that it is known what is needed, let the tiers hold that and nothing else; where it
// `is_grown`, what grows is known as well, and an object that does has all of its length from the
// first on.
EXPORT void survey_begin_again(Survey *survey, const Intake *intake, bool is_grown) {
    for (int64_t place = is_grown ? survey->tiers : 0; place < survey->places; place++) {
        survey->base_bytes[place] = survey->now_bytes[place] = survey->most_bytes[place] = 0;
    }
    survey->has_grown = is_grown;
    for (int64_t i = 0; i < survey->residents.used; i++) {
        Resident *resident = (Resident *)(void *)survey->residents.item + i;
        if (resident->key < 0) {
            continue;
        }
        resident->held_bytes = resident->needed_bytes;
        if (!is_grown) {
            resident->longest_bytes = 0;
        }
        if (!resident->needed_bytes) {
            continue;
        }
        int64_t tier = resident->key >> 32;
        int64_t length = max_of(resident->needed_bytes, is_grown ? resident->longest_bytes : 0);
        length = round_up(length, intake->padding_bytes[tier]);
        if (!is_grown) {
            survey_add_needed_bytes(survey, tier, length);
        }
        survey_add_needed_bytes(
            survey, survey_drive_of_object(survey, tier, resident->key & UINT32_MAX), length);
    }
}

static void survey_take_row_again(Survey *survey, const Intake *intake, const Batch *batch,
                                  bool is_grown) {
    int64_t at = batch->at;
    int64_t tier = batch->tier[at];
    int64_t object = batch->object_id[at];
    int64_t padding = intake->padding_bytes[tier];
    Resident *resident = survey_put_object(survey, tier, object);
    int64_t before = resident->held_bytes;
    int64_t after = before;
    if (batch->op[at] == WRITE) {
        after = survey_length_after_write(
            survey, resident, max_of(batch->offset_bytes[at] + batch->length_bytes[at], 1));
    } else if (batch->op[at] == DELETE) {
        after = 0;
    }
    resident->held_bytes = after;
    if (!is_grown) {
        survey_add_held_bytes(survey, tier, round_up(after, padding) - round_up(before, padding));
    } else if (resident->longest_bytes) {
        before = before ? resident->longest_bytes : 0;
        after = after ? resident->longest_bytes : 0;
    }
    survey_add_held_bytes(survey, survey_drive_of_object(survey, tier, object),
                          round_up(after, padding) - round_up(before, padding));
    if (batch->op[at] == DELETE && !resident->needed_bytes && !resident->longest_bytes) {
        survey_forget_object(survey, resident, tier, object);
    }
}

EXPORT void survey_take(Survey *survey, Intake *intake, Batch *batch, int64_t pass) {
    for (; batch->at < batch->rows; batch->at++, intake->rows++) {
        prefetch_objects(&survey->residents, batch, sizeof(Resident), true);
        int is_wanted = intake_admit_row(intake, batch);
        if (is_wanted == NONE) {
            return;
        }
        if (is_wanted && pass == FIRST) {
            survey_take_row(survey, intake, batch);
        } else if (is_wanted) {
            survey_take_row_again(survey, intake, batch, pass == GROWN);
        }
        if (intake->fault) {
            return;
        }
    }
}

EXPORT void survey_free(Survey *survey) {
    book_free(&survey->residents, sizeof(Resident), true);
    book_free(&survey->stages, sizeof(Stages), false);
    table_free(&survey->deleted);
}

// --- the second pass

typedef struct { // an object, as long as a tier holds it
    int64_t key;
    uint64_t holds[2]; // one bit a tier
    int32_t newest;
    int32_t touched; // the tier that touched it last
} Known;

struct Plan {
    Book known;           // by object: Known
    Book written;         // by tier and object: Written, if reads are verified
    bool is_verified;     // reads are verified
    bool is_later;        // rows begin later than the trace's first
    pthread_mutex_t lock; // guards the fields below: the engine reads them while rows are laid
    Book mixed;           // by row: Written, for a read of several versions
    int64_t forgotten;    // rows before this number were forgotten
};

EXPORT Plan *plan_new(bool is_verified, bool is_later) {
    Plan *plan = memory_zeros(1, sizeof *plan);
    pthread_mutex_init(&plan->lock, NULL);
    plan->is_verified = is_verified;
    plan->is_later = is_later;
    return plan;
}

EXPORT void plan_populate(Plan *plan, int64_t count, const int8_t *tier, const int64_t *object,
                          const int64_t *bytes, const int64_t *padding_bytes) {
    for (int64_t i = 0; i < count; i++) {
        if (plan->is_later) { // The first row of an object may be its delete.
            Known *object_state = book_put(&plan->known, object[i], sizeof *object_state);
            object_state->holds[tier[i] >> 6] |= 1ULL << (tier[i] & 63);
            object_state->touched = tier[i];
        }
        if (!plan->is_verified) {
            continue;
        }
        Written *written =
            book_put(&plan->written, object_key(tier[i], object[i]), sizeof *written);
        spans_write(&written->spans, 0, round_up(bytes[i], padding_bytes[tier[i]]), VERSION_BEFORE);
    }
}

static int32_t find_expected_version(Plan *plan, int64_t row_number, int64_t key, int64_t from,
                                     int64_t to) {
    if (from == to) {
        return VERSION_BEFORE; // An empty read has nothing to verify.
    }
    Written *written = book_find(&plan->written, key, sizeof *written);
    Span *at =
        written ? spans_array(&written->spans) + spans_find_end(&written->spans, from + 1) : NULL;
    Span *end = written ? spans_array(&written->spans) + written->spans.count : NULL;
    if (at < end && at->from_bytes <= from && at->to_bytes >= to) {
        return at->version;
    }
    pthread_mutex_lock(&plan->lock);
    Written *seen = book_put(&plan->mixed, row_number, sizeof *seen);
    for (; at < end && at->from_bytes < to; at++) {
        spans_write(&seen->spans, max_of(from, at->from_bytes), min_of(to, at->to_bytes),
                    at->version);
    }
    pthread_mutex_unlock(&plan->lock);
    return VERSION_MIXED;
}

// The version of what a write brings: a new one, unless it copies what another tier holds that
// touched it last.
static int32_t find_written_version(const Intake *intake, const Batch *batch, Known *object_state,
                                    bool is_new, int64_t row_number) {
    bool is_copy = intake->copies >> batch->phase[batch->at] & 1 && !is_new &&
                   object_state->touched != batch->tier[batch->at];
    if (!is_copy) {
        object_state->newest = (int32_t)(row_number + 1);
    }
    return object_state->newest;
}

// Lays one row into the ring. Returns false if it is not replayed.
static bool lay_row(Plan *plan, const Intake *intake, const Batch *batch, int64_t row_number,
                    Row *row) {
    int64_t at = batch->at;
    int64_t tier = batch->tier[at];
    int64_t object = batch->object_id[at];
    int64_t key = object_key(tier, object);
    int64_t padding = intake->padding_bytes[tier];
    int64_t from = batch->offset_bytes[at];
    int64_t to = from + batch->length_bytes[at];
    uint64_t bit = 1ULL << (tier & 63);
    Known *object_state = book_find(&plan->known, object, sizeof *object_state);
    int32_t version = VERSION_BEFORE;
    from = from / padding * padding;
    to = round_up(to, padding);
    if (batch->op[at] == DELETE) {
        bool is_there = object_state && object_state->holds[tier >> 6] & bit;
        if (!is_there && !intake->is_done) {
            return false;
        }
        if (is_there) {
            object_state->holds[tier >> 6] &= ~bit;
        }
        if (is_there && !(object_state->holds[0] | object_state->holds[1])) {
            book_drop(&plan->known, object, sizeof *object_state);
        }
        book_drop_written(&plan->written, key);
    } else {
        bool is_new = !object_state;
        if (is_new) {
            object_state = book_put(&plan->known, object, sizeof *object_state);
        }
        if (batch->op[at] == WRITE) {
            version = find_written_version(intake, batch, object_state, is_new, row_number);
        }
        object_state->holds[tier >> 6] |= bit;
        object_state->touched = (int32_t)tier;
        if (plan->is_verified && batch->op[at] == READ) {
            version = find_expected_version(plan, row_number, key, from, to);
        }
        if (plan->is_verified && batch->op[at] == WRITE && to > from) {
            Written *written = book_put(&plan->written, key, sizeof *written);
            spans_write(&written->spans, from, to, version);
        }
    }
    *row = (Row){
        .trace_row = intake->rows,
        .due_ns = batch->due_ns ? batch->due_ns[at] : NONE,
        .offset_bytes = batch->offset_bytes[at],
        .length_bytes = batch->length_bytes[at],
        .request = batch->request_id[at],
        .submitted_ns = NONE,
        .completed_ns = NONE,
        .object_id = (int32_t)object,
        .version = version,
        .stage = batch->request_id[at] < 0 ? NONE : batch->stage[at],
        .stream = batch->stream ? batch->stream[at] : NONE,
        .group = {NONE, NONE},
        .waits_with = {NONE, NONE},
        .op = batch->op[at],
        .tier = (int8_t)tier,
        .phase = batch->phase[at],
        .outcome = SKIPPED,
        .is_bulk = intake->bulk >> batch->phase[at] & 1,
    };
    return true;
}

// Lays rows of the batch until `until` rows are laid, the ring is full, or the batch ends. Returns
// the number of rows laid so far.
EXPORT int64_t plan_load(Plan *plan, Intake *intake, Batch *batch, Rows *rows, int64_t until) {
    int64_t laid = rows->laid;
    int64_t most = 0;
    for (until = min_of(until, rows->total); batch->at < batch->rows && laid < until;
         batch->at++, intake->rows++) {
        if (laid >= most && laid >= (most = atomic_load(&rows->given) + rows->mask + 1)) {
            break;
        }
        prefetch_objects(&plan->known, batch, sizeof(Known), false);
        if (plan->is_verified) {
            prefetch_objects(&plan->written, batch, sizeof(Written), true);
        }
        int is_wanted = intake_admit_row(intake, batch);
        if (is_wanted == NONE) {
            break;
        }
        if (is_wanted && lay_row(plan, intake, batch, laid, rows_at(rows, laid)) &&
            ++laid % PUBLISHED == 0) {
            atomic_store(&rows->laid, laid);
        }
    }
    atomic_store(&rows->laid, laid);
    return laid;
}

EXPORT int plan_spans(Plan *plan, int64_t row_number, int64_t from, Span *spans, int most) {
    pthread_mutex_lock(&plan->lock);
    Written *seen = book_find(&plan->mixed, row_number, sizeof *seen);
    int count = 0;
    for (int i = 0; seen && i < seen->spans.count && count < most; i++) {
        if (spans_array(&seen->spans)[i].to_bytes > from) {
            spans[count++] = spans_array(&seen->spans)[i];
        }
    }
    pthread_mutex_unlock(&plan->lock);
    return count;
}

EXPORT void plan_forget(Plan *plan, int64_t below) {
    pthread_mutex_lock(&plan->lock);
    for (; plan->forgotten < below && plan->mixed.index.count; plan->forgotten++) {
        book_drop_written(&plan->mixed, plan->forgotten);
    }
    plan->forgotten = max_of(plan->forgotten, below);
    pthread_mutex_unlock(&plan->lock);
}

// Returns the memory that the plan holds. Only the loading thread calls it.
EXPORT int64_t plan_held_bytes(Plan *plan) {
    pthread_mutex_lock(&plan->lock);
    int64_t found = book_bytes(&plan->mixed, sizeof(Written));
    pthread_mutex_unlock(&plan->lock);
    return found + book_bytes(&plan->known, sizeof(Known)) +
           book_bytes(&plan->written, sizeof(Written));
}

EXPORT void plan_free(Plan *plan) {
    book_free(&plan->known, sizeof(Known), false);
    book_free(&plan->written, sizeof(Written), true);
    book_free(&plan->mixed, sizeof(Written), true);
    pthread_mutex_destroy(&plan->lock);
    free(plan);
}

// What is freed goes back to the kernel at once: batches of rows, which live for a moment, do not
// add up. The columns of a part of 32,768 rows are mappings of their own, also those of a byte a
// row: in a heap, the footers of row groups would come to lie between them, and keep it from being
// used again. Other C libraries than glibc are left as they are.
EXPORT void plan_return_freed_memory(void) {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 32 << 10);
    mallopt(M_TRIM_THRESHOLD, 4 << 20);
    mallopt(M_ARENA_MAX, 2);
#endif
}
