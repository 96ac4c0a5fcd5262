// Both passes over a trace: see plan.h.
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

static int64_t padded(int64_t bytes, int64_t by) {
    return by == 1 ? bytes : (bytes + by - 1) / by * by;
}
static int64_t key_of(int64_t tier, int64_t object) {
    return tier << 32 | object;
}

// --- books
// ----------------------------------------------------------------------------------------------------------

static void *book_find(Book *b, int64_t key, size_t bytes) {
    int64_t *at = table_find(&b->place, key);
    return at ? b->item + (size_t)*at * bytes : NULL;
}

static void *book_enter(Book *b, int64_t key, size_t bytes) { // zeros but for its key, if it is new
    int64_t *at = table_put(&b->place, key, NONE);
    if (*at != NONE) {
        return b->item + (size_t)*at * bytes;
    }
    if (b->first_free) {
        *at = b->first_free - 1;
        b->first_free = ~*(int64_t *)(void *)(b->item + (size_t)*at * bytes);
    } else {
        if (b->used == b->room) {
            b->item = grown(b->item, b->room = b->room ? 2 * b->room : FIRST_ROOM, bytes);
        }
        *at = b->used++;
    }
    void *item = memset(b->item + (size_t)*at * bytes, 0, bytes);
    *(int64_t *)item = key;
    return item;
}

static void book_drop(Book *b, int64_t key, size_t bytes) {
    int64_t at = *table_find(&b->place, key);
    *(int64_t *)(void *)(b->item + (size_t)at * bytes) = ~b->first_free;
    b->first_free = at + 1;
    table_drop(&b->place, key);
}

static int64_t book_bytes(const Book *b, size_t bytes) {
    return b->place.size * (int64_t)sizeof(Entry) + b->used * (int64_t)bytes;
}

static int64_t key_at(const Batch *b, int64_t at, bool has_tiers) {
    return key_of(has_tiers ? b->tier[at] : 0, b->object_id[at]);
}

// Memory takes longer to come than a row takes: the entry of a later row is asked for, then its
// item.
static void ask_ahead(Book *b, const Batch *rows, size_t bytes, bool has_tiers) {
    if (rows->at + FAR >= rows->rows) {
        return;
    }
    table_prefetch(&b->place, key_at(rows, rows->at + FAR, has_tiers));
    char *item = book_find(b, key_at(rows, rows->at + NEAR, has_tiers), bytes);
    if (!item) {
        return;
    }
    __builtin_prefetch(item);
    __builtin_prefetch(item + bytes - 1);
}

// --- spans
// ----------------------------------------------------------------------------------------------------------

static Span *spans_of(Spans *s) {
    return s->room ? s->many : &s->one;
}

static int first_to(Spans *s, int64_t byte) { // the first span that ends at `byte` or after it
    Span *at = spans_of(s);
    int low = 0, high = s->count;
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

static void lay_span(Spans *s, int64_t from, int64_t to, int32_t version) { // over what lies there
    Span *at = spans_of(s), new[3];
    int first = first_to(s, from), last = first, count = 0;
    while (last < s->count && at[last].from_bytes <= to) {
        last++;
    }
    Span left = {from, from, version}, right = {to, to, version};
    if (last > first) {
        left = at[first], right = at[last - 1];
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
    int total = s->count - (last - first) + count;
    if (total > max_of(s->room, 1)) {
        Span *many = grown(s->many, 2 * total, sizeof(Span));
        if (!s->room) {
            many[0] = s->one;
        }
        s->many = at = many, s->room = 2 * total;
    }
    memmove(at + first + count, at + last, (size_t)(s->count - last) * sizeof(Span));
    memcpy(at + first, new, (size_t)count * sizeof(Span));
    s->count = total;
}

static bool is_covered(Spans *s, int64_t from, int64_t to) { // by one span
    int at = first_to(s, to);
    return at < s->count && spans_of(s)[at].from_bytes <= from;
}

static void drop_spans(Spans *s) {
    free(s->many);
    *s = (Spans){0};
}

typedef struct {
    int64_t key;
    Spans spans;
} Written; // Resident begins so, too

static void drop_written(Book *b, int64_t key) {
    Written *w = book_find(b, key, sizeof *w);
    if (!w) {
        return;
    }
    drop_spans(&w->spans);
    book_drop(b, key, sizeof *w);
}

static void book_free(Book *b, size_t bytes, bool has_spans) {
    for (int64_t i = 0; has_spans && i < b->used; i++) {
        Written *w = (Written *)(void *)(b->item + (size_t)i * bytes);
        if (w->key >= 0) {
            drop_spans(&w->spans);
        }
    }
    table_free(&b->place);
    free(b->item);
}

// --- rows of a trace
// ------------------------------------------------------------------------------------------------

static int admit(Intake *in,
                 const Batch *b) { // whether row `at` is replayed; NONE if no row is, from it on
    int64_t at = b->at, ts_ns = b->ts_ns[at], tier = b->tier[at];
    bool is_own = !b->node || b->node[at] == in->node, is_wanted = is_own && in->has_target[tier];
    int64_t moved = in->moved_bytes + (is_wanted && b->op[at] != DELETE ? b->length_bytes[at] : 0);
    if (in->rows >= in->most_rows || ts_ns >= in->most_ns || moved > in->most_bytes) {
        return in->is_full = 1, NONE;
    }
    if (ts_ns < in->last_ns) {
        return in->fault = EARLIER, NONE;
    }
    if (b->object_id[at] > MAX_OBJECT) {
        return in->fault = LARGE_ID, NONE;
    }
    in->moved_bytes = moved, in->last_ns = ts_ns;
    if (is_wanted && in->left_out) {
        return !in->left_out[in->rows % in->repeated_rows];
    }
    if (is_own && !is_wanted) {
        in->skipped[tier]++;
    }
    return is_wanted;
}

// --- the first pass
// -------------------------------------------------------------------------------------------------

static Resident *enter(Survey *s, int64_t tier, int64_t object) {
    Resident *h = book_enter(&s->residents, key_of(tier, object), sizeof *h);
    if (h->is_entered) {
        return h;
    }
    int64_t *bits = table_find(&s->deleted, key_of(tier, object >> 6));
    h->is_entered = 1, h->last_row = NONE;
    h->is_reborn = bits && (uint64_t)*bits >> (object & 63) & 1;
    return h;
}

static void forget(Survey *s, Resident *h, int64_t tier,
                   int64_t object) { // all of it but that it was deleted
    int64_t *bits = table_put(&s->deleted, key_of(tier, object >> 6), 0);
    *bits = (int64_t)((uint64_t)*bits | 1ULL << (object & 63));
    book_drop(&s->residents, h->key, sizeof *h);
}

static int64_t drive_of(const Survey *s, int64_t tier, int64_t object) {
    return s->first_drive[tier] + (s->named[tier] ? s->drive[tier][object] : 0);
}

static void note(Survey *s, int64_t place, int64_t more_bytes) {
    s->now_bytes[place] += more_bytes;
    s->most_bytes[place] = min_of(max_of(s->most_bytes[place], s->now_bytes[place]), MOST);
}

static void add_base(Survey *s, int64_t place, int64_t bytes) {
    s->base_bytes[place] = min_of(s->base_bytes[place] + bytes, MOST);
}

static void need(Survey *s, const Intake *in, Resident *h, int64_t tier, int64_t object,
                 int64_t reach) {
    if (h->is_reborn) {
        if (s->lost_row == NONE) {
            s->lost_row = in->rows, s->lost_tier = tier, s->lost_object = object;
        }
        return;
    }
    if (reach <= h->needed_bytes) {
        return;
    }
    h->needed_bytes = reach;
    if (h->is_own) {
        s->is_late = 1;
        return;
    }
    int64_t padding = in->padding_bytes[tier],
            more = padded(reach, padding) - padded(h->held_bytes, padding);
    add_base(s, tier, more);
    add_base(s, drive_of(s, tier, object), more);
    h->held_bytes = reach;
}

static int64_t written(Survey *s, Resident *h,
                       int64_t reach) { // how long the object is when it was written up to there
    int64_t after = max_of(h->held_bytes, reach);
    if (h->held_bytes && h->held_bytes < after) {
        h->longest_bytes = max_of(h->longest_bytes, after), s->has_grown = 1;
    }
    return after;
}

static bool follow(Survey *s, const Intake *in,
                   const Batch *b) { // what lies there; false for a delete of nothing
    int64_t at = b->at, tier = b->tier[at], object = b->object_id[at],
            padding = in->padding_bytes[tier];
    int64_t start = b->offset_bytes[at], end = start + b->length_bytes[at], reach = max_of(end, 1);
    Resident *h = enter(s, tier, object);
    int64_t before = h->held_bytes, after = before;
    if (b->op[at] == WRITE) {
        after = written(s, h, reach);
        if (end > start || start == 0) {
            lay_span(&h->written, start, reach, 0);
        }
        h->is_own = 1;
    } else if (b->op[at] == DELETE) {
        if (in->is_later && !before && !h->is_reborn) {
            need(s, in, h, tier, object, max_of(b->length_bytes[at], 1));
        }
        before = h->held_bytes, after = 0, h->is_reborn = 1;
        drop_spans(&h->written);
    } else if (!is_covered(&h->written, end == start && start > 0 ? reach - 1 : start, reach)) {
        need(s, in, h, tier, object, reach); // an empty read needs what lies before it
        before = after = h->held_bytes;
    }
    h->held_bytes = after, h->last_row = in->rows, h->is_gone = b->op[at] == DELETE;
    if (after != before) {
        int64_t more = padded(after, padding) - padded(before, padding);
        note(s, tier, more);
        note(s, drive_of(s, tier, object), more);
    }
    if (h->is_gone && !h->needed_bytes && !h->longest_bytes) {
        forget(s, h, tier, object);
    }
    return b->op[at] != DELETE || before;
}

typedef struct {
    int64_t key;
    uint32_t stage[TOGETHER];
} Stages; // of requests side by side: their last, and 1

static bool count_row(Survey *s, Intake *in,
                      const Batch *b) { // false if its stage is earlier than its request's
    int64_t at = b->at, tier = b->tier[at], request = b->request_id[at];
    if (b->stage[at] >= 0 && request >= 0) {
        Stages *together = book_enter(&s->stages, request / TOGETHER, sizeof *together);
        uint32_t *last = &together->stage[request % TOGETHER], stage = (uint32_t)b->stage[at] + 1;
        if (*last > stage) {
            return false;
        }
        *last = stage;
    }
    Kind *kind = &s->kind[tier * OPS + b->op[at]];
    kind->rows++, kind->bytes += b->length_bytes[at];
    kind->end_bytes = max_of(kind->end_bytes, b->offset_bytes[at] + b->length_bytes[at]);
    if (b->stream && b->stream[at] >= 0) {
        s->is_placed[tier] = 1;
    }
    if (in->bulk >> b->phase[at] & 1) {
        s->is_bulk = 1;
    }
    s->planned++, s->last_row = in->rows, s->last_ns = b->ts_ns[at];
    return true;
}

static void look(Survey *s, Intake *in, const Batch *b) {
    int64_t named = s->named[b->tier[b->at]], object = b->object_id[b->at];
    s->objects = max_of(s->objects, object + 1);
    if (named && object >= named) {
        in->fault = UNNAMED;
    } else if (!follow(s, in, b) && !in->is_done) {
        s->absent++;
    } else if (!count_row(s, in, b)) {
        in->fault = STAGE_FALLS;
    }
}

// Now that it is known what is needed, let the tiers hold that and nothing else; where it
// `is_grown`, what grows is known as well, and an object that does has all of its length from the
// first on.
EXPORT void survey_begin_again(Survey *s, const Intake *in, bool is_grown) {
    for (int64_t place = is_grown ? s->tiers : 0; place < s->places; place++) {
        s->base_bytes[place] = s->now_bytes[place] = s->most_bytes[place] = 0;
    }
    s->has_grown = is_grown;
    for (int64_t i = 0; i < s->residents.used; i++) {
        Resident *h = (Resident *)(void *)s->residents.item + i;
        if (h->key < 0) {
            continue;
        }
        h->held_bytes = h->needed_bytes;
        if (!is_grown) {
            h->longest_bytes = 0;
        }
        if (!h->needed_bytes) {
            continue;
        }
        int64_t tier = h->key >> 32,
                length = max_of(h->needed_bytes, is_grown ? h->longest_bytes : 0);
        length = padded(length, in->padding_bytes[tier]);
        if (!is_grown) {
            add_base(s, tier, length);
        }
        add_base(s, drive_of(s, tier, h->key & UINT32_MAX), length);
    }
}

static void look_again(Survey *s, const Intake *in, const Batch *b, bool is_grown) {
    int64_t at = b->at, tier = b->tier[at], object = b->object_id[at],
            padding = in->padding_bytes[tier];
    Resident *h = enter(s, tier, object);
    int64_t before = h->held_bytes, after = before;
    if (b->op[at] == WRITE) {
        after = written(s, h, max_of(b->offset_bytes[at] + b->length_bytes[at], 1));
    } else if (b->op[at] == DELETE) {
        after = 0;
    }
    h->held_bytes = after;
    if (!is_grown) {
        note(s, tier, padded(after, padding) - padded(before, padding));
    } else if (h->longest_bytes) {
        before = before ? h->longest_bytes : 0, after = after ? h->longest_bytes : 0;
    }
    note(s, drive_of(s, tier, object), padded(after, padding) - padded(before, padding));
    if (b->op[at] == DELETE && !h->needed_bytes && !h->longest_bytes) {
        forget(s, h, tier, object);
    }
}

EXPORT void survey_take(Survey *s, Intake *in, Batch *b, int64_t pass) {
    for (; b->at < b->rows; b->at++, in->rows++) {
        ask_ahead(&s->residents, b, sizeof(Resident), true);
        int is_wanted = admit(in, b);
        if (is_wanted == NONE) {
            return;
        }
        if (is_wanted && pass == FIRST) {
            look(s, in, b);
        } else if (is_wanted) {
            look_again(s, in, b, pass == GROWN);
        }
        if (in->fault) {
            return;
        }
    }
}

EXPORT void survey_free(Survey *s) {
    book_free(&s->residents, sizeof(Resident), true), book_free(&s->stages, sizeof(Stages), false);
    table_free(&s->deleted);
}

// --- the second pass
// ------------------------------------------------------------------------------------------------

typedef struct { // an object, as long as a tier holds it
    int64_t key;
    uint64_t holds[2]; // bit a tier
    int32_t newest;
    int32_t touched; // the tier that touched it last
} Known;

struct Plan {
    Book known, written; // by object; by tier and object, if reads are verified
    bool is_verified, is_later;
    pthread_mutex_t lock; // of what follows: engines ask while rows are laid
    Book mixed;           // by row: what a read must find that sees several versions
    int64_t forgotten;    // rows before it were
};

EXPORT Plan *plan_new(bool is_verified, bool is_later) {
    Plan *p = zeros(1, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    p->is_verified = is_verified, p->is_later = is_later;
    return p;
}

EXPORT void plan_populate(Plan *p, int64_t count, const int8_t *tier, const int64_t *object,
                          const int64_t *bytes, const int64_t *padding_bytes) {
    for (int64_t i = 0; i < count; i++) {
        if (p->is_later) { // rows may delete it as the first thing that they do to it
            Known *k = book_enter(&p->known, object[i], sizeof *k);
            k->holds[tier[i] >> 6] |= 1ULL << (tier[i] & 63), k->touched = tier[i];
        }
        if (!p->is_verified) {
            continue;
        }
        Written *w = book_enter(&p->written, key_of(tier[i], object[i]), sizeof *w);
        lay_span(&w->spans, 0, padded(bytes[i], padding_bytes[tier[i]]), VERSION_BEFORE);
    }
}

static int32_t expected(Plan *p, int64_t row_number, int64_t key, int64_t from, int64_t to) {
    if (from == to) {
        return VERSION_BEFORE; // there is nothing to look at
    }
    Written *w = book_find(&p->written, key, sizeof *w);
    Span *at = w ? spans_of(&w->spans) + first_to(&w->spans, from + 1) : NULL;
    Span *end = w ? spans_of(&w->spans) + w->spans.count : NULL;
    if (at < end && at->from_bytes <= from && at->to_bytes >= to) {
        return at->version;
    }
    pthread_mutex_lock(&p->lock);
    Written *seen = book_enter(&p->mixed, row_number, sizeof *seen);
    for (; at < end && at->from_bytes < to; at++) {
        lay_span(&seen->spans, max_of(from, at->from_bytes), min_of(to, at->to_bytes), at->version);
    }
    pthread_mutex_unlock(&p->lock);
    return VERSION_MIXED;
}

// The version of what a write brings: a new one, unless it copies what another tier holds that
// touched it last.
static int32_t version_of(const Intake *in, const Batch *b, Known *k, bool is_new,
                          int64_t row_number) {
    bool is_copy = in->copies >> b->phase[b->at] & 1 && !is_new && k->touched != b->tier[b->at];
    if (!is_copy) {
        k->newest = (int32_t)(row_number + 1);
    }
    return k->newest;
}

static bool lay_row(Plan *p, const Intake *in, const Batch *b, int64_t row_number,
                    Row *r) { // false: not replayed
    int64_t at = b->at, tier = b->tier[at], object = b->object_id[at], key = key_of(tier, object);
    int64_t padding = in->padding_bytes[tier], from = b->offset_bytes[at],
            to = from + b->length_bytes[at];
    uint64_t bit = 1ULL << (tier & 63);
    Known *k = book_find(&p->known, object, sizeof *k);
    int32_t version = VERSION_BEFORE;
    from = from / padding * padding, to = padded(to, padding);
    if (b->op[at] == DELETE) {
        bool is_there = k && k->holds[tier >> 6] & bit;
        if (!is_there && !in->is_done) {
            return false;
        }
        if (is_there) {
            k->holds[tier >> 6] &= ~bit;
        }
        if (is_there && !(k->holds[0] | k->holds[1])) {
            book_drop(&p->known, object, sizeof *k);
        }
        drop_written(&p->written, key);
    } else {
        bool is_new = !k;
        if (is_new) {
            k = book_enter(&p->known, object, sizeof *k);
        }
        if (b->op[at] == WRITE) {
            version = version_of(in, b, k, is_new, row_number);
        }
        k->holds[tier >> 6] |= bit, k->touched = (int32_t)tier;
        if (p->is_verified && b->op[at] == READ) {
            version = expected(p, row_number, key, from, to);
        }
        if (p->is_verified && b->op[at] == WRITE && to > from) {
            Written *w = book_enter(&p->written, key, sizeof *w);
            lay_span(&w->spans, from, to, version);
        }
    }
    *r = (Row){
        .trace_row = in->rows,
        .due_ns = b->due_ns ? b->due_ns[at] : NONE,
        .offset_bytes = b->offset_bytes[at],
        .length_bytes = b->length_bytes[at],
        .request = b->request_id[at],
        .submitted_ns = NONE,
        .completed_ns = NONE,
        .object_id = (int32_t)object,
        .version = version,
        .stage = b->request_id[at] < 0 ? NONE : b->stage[at],
        .stream = b->stream ? b->stream[at] : NONE,
        .group = {NONE, NONE},
        .waits_with = {NONE, NONE},
        .op = b->op[at],
        .tier = (int8_t)tier,
        .phase = b->phase[at],
        .outcome = SKIPPED,
        .is_bulk = in->bulk >> b->phase[at] & 1,
    };
    return true;
}

// Lays rows of the batch until there are `until`, there is no room, or it is used up; returns how
// many there are.
EXPORT int64_t plan_load(Plan *p, Intake *in, Batch *b, Rows *rows, int64_t until) {
    int64_t laid = rows->laid, most = 0;
    for (until = min_of(until, rows->total); b->at < b->rows && laid < until; b->at++, in->rows++) {
        if (laid >= most && laid >= (most = atomic_load(&rows->given) + rows->mask + 1)) {
            break;
        }
        ask_ahead(&p->known, b, sizeof(Known), false);
        if (p->is_verified) {
            ask_ahead(&p->written, b, sizeof(Written), true);
        }
        int is_wanted = admit(in, b);
        if (is_wanted == NONE) {
            break;
        }
        if (is_wanted && lay_row(p, in, b, laid, row_at(rows, laid)) && ++laid % PUBLISHED == 0) {
            atomic_store(&rows->laid, laid);
        }
    }
    atomic_store(&rows->laid, laid);
    return laid;
}

EXPORT int plan_spans(Plan *p, int64_t row_number, int64_t from, Span *spans, int most) {
    pthread_mutex_lock(&p->lock);
    Written *seen = book_find(&p->mixed, row_number, sizeof *seen);
    int count = 0;
    for (int i = 0; seen && i < seen->spans.count && count < most; i++) {
        if (spans_of(&seen->spans)[i].to_bytes > from) {
            spans[count++] = spans_of(&seen->spans)[i];
        }
    }
    pthread_mutex_unlock(&p->lock);
    return count;
}

EXPORT void plan_forget(Plan *p, int64_t below) {
    pthread_mutex_lock(&p->lock);
    for (; p->forgotten < below && p->mixed.place.count; p->forgotten++) {
        drop_written(&p->mixed, p->forgotten);
    }
    p->forgotten = max_of(p->forgotten, below);
    pthread_mutex_unlock(&p->lock);
}

EXPORT int64_t plan_held_bytes(Plan *p) { // asked by the thread that loads
    pthread_mutex_lock(&p->lock);
    int64_t found = book_bytes(&p->mixed, sizeof(Written));
    pthread_mutex_unlock(&p->lock);
    return found + book_bytes(&p->known, sizeof(Known)) + book_bytes(&p->written, sizeof(Written));
}

EXPORT void plan_free(Plan *p) {
    book_free(&p->known, sizeof(Known), false);
    book_free(&p->written, sizeof(Written), true), book_free(&p->mixed, sizeof(Written), true);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

// What is freed goes back to the kernel at once: batches of rows, which live for a moment, do not
// add up. The columns of a part of 32,768 rows are mappings of their own, also those of a byte a
// row: in a heap, the footers of row groups would come to lie between them, and keep it from being
// used again. Other C libraries than glibc are left as they are.
EXPORT void return_freed(void) {
#ifdef __GLIBC__
    mallopt(M_MMAP_THRESHOLD, 32 << 10);
    mallopt(M_TRIM_THRESHOLD, 4 << 20);
    mallopt(M_ARENA_MAX, 2);
#endif
}
