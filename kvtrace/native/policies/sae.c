// SAE, session-aware eviction: vLLM's pull request 50422 (v1/kv_offload/cpu/policies/sae.py). What
// one offer stores is a session, or goes on with that of the request's last hit. Of the session
// with the lowest score the object stored last goes first; an offer that would begin one with a
// lower score than all there are finds no room.
#include "../sim.h"

#include <math.h>
#include <stdlib.h>

// Its constants, and its options' defaults.
static const double USE = 1500, DEPTH = 30000, HALF_DEPTH = 8, HIT = 12, MISS = 1, NORM = 12,
                    DECAY = 0.9, LEAST = 0.01;
enum { DECAYS_EVERY = 500 };

// Its objects are neighbours in the tier's list, the first one stored the most recent; `depth` is
// how many others of its first offer were there. Without members, `first` is the next session that
// has none.
typedef struct {
    double hits, score;
    int64_t number, last_use, depth, members, first, last;
} Session;

typedef struct {
    double score;
    int64_t is_here;
} Popularity; // of an object, there or not

// Of a tier at a place. Session 0 is none; `open` takes what is stored now (0: one of this `depth`
// is to begin).
typedef struct {
    Session *sessions, **ranked; // the latter: scratch
    Popularity *popular;         // [objects]: by an object's number
    int64_t room, used, unused, objects, uses, numbers, open, depth;
    bool is_new, is_ranked; // the open session began with this offer; the list is in order
} Memory;

static Memory *memory_of(World *w, int64_t t) {
    if (!w->memories) {
        w->memories = zeros(1 + 2 * w->fleet.count, sizeof(Memory));
    }
    return (Memory *)w->memories + counter_of(w, t);
}

static Popularity *popularity_of(Memory *m, int64_t object) {
    if (object >= m->objects) {
        int64_t more = 2 * object + 1024;
        m->popular = grown(m->popular, more, sizeof(Popularity));
        while (m->objects < more) {
            m->popular[m->objects++] = (Popularity){0, 0};
        }
    }
    return &m->popular[object];
}

static double bonus(int64_t depth) {
    return DEPTH / (1 + (double)depth / HALF_DEPTH);
}

// The session that the request at hand goes on with, or 0.
static int64_t continued(World *w, const Memory *m) {
    const Actor *me = &w->actors[w->control.actor];
    int64_t at =
        me->session_at <= m->used ? me->session_at : 0; // it may have gone on to another node
    return at && m->sessions[at].number == me->session_number ? at : 0;
}

static void decay(Memory *m) {
    for (int64_t i = 1; i <= m->used; i++) {
        m->sessions[i].hits *= DECAY;
    }
    for (int64_t i = 0; i < m->objects; i++) {
        Popularity *popular = &m->popular[i];
        popular->score *= DECAY;
        if (!popular->is_here && popular->score < LEAST) {
            popular->score = 0;
        }
    }
}

// Count that the request at hand names `chain[:n]`: what this offer stores, or the one `before`, is
// not there yet.
static void count_use(World *w, int64_t t, int64_t n, int64_t offer, int64_t before) {
    Memory *m = memory_of(w, t);
    m->uses++;
    m->is_ranked = false;
    for (int64_t i = 0; i < n; i++) {
        int64_t entry = w->chain[i],
                slot = live_in(w, entry) & (1 << t) ? member_of(w, t, entry) : NONE;
        int64_t of = slot == NONE ? 0 : w->pins[slot].offer;
        bool is_hit = slot != NONE && (!of || (of != offer && of != before));
        popularity_of(m, number_of(w, entry))->score +=
            1 / log2((double)i + 2) * (is_hit ? HIT : MISS);
        if (slot == NONE) {
            continue;
        }
        Session *s = &m->sessions[note_of(w, t, slot)->place];
        if (s->last_use != m->uses) {
            s->hits += 1, s->last_use = m->uses;
        }
    }
    if (m->uses % DECAYS_EVERY == 0) {
        decay(m);
    }
}

EXPORT void sae_on_look_up(World *w, int64_t t, int64_t n, int64_t end) {
    Memory *m = memory_of(w, t);
    Actor *me = &w->actors[w->control.actor];
    int64_t i = 0;
    me->session_at = m->open = 0;
    while (t > 0 && i < end && w->where[i] == 0) {
        i++; // what the fastest tier has is not looked up here
    }
    for (; i < end; i++) {
        if (live_in(w, w->chain[i]) & (1 << t)) {
            me->session_at = note_of(w, t, member_of(w, t, w->chain[i]))->place;
        }
    }
    if (me->session_at) {
        me->session_number = m->sessions[me->session_at].number;
    }
    count_use(w, t, n, 0, 0);
}

EXPORT void sae_on_stored(World *w, int64_t t, int64_t n, int64_t before) {
    if (memory_of(w, t)->open) {
        count_use(w, t, n, w->control.offers, before);
    }
}

static int by_score(const void *a, const void *b) {
    const Session *x = *(Session *const *)a, *y = *(Session *const *)b;
    return x->score == y->score  ? (x->number > y->number) - (x->number < y->number)
           : x->score < y->score ? -1
                                 : 1;
}

// The least recent is now of the session with the lowest score, of several the oldest; and so on.
EXPORT int64_t sae_choose(World *w, int64_t t, UNUSED int64_t incoming, UNUSED int64_t with) {
    Memory *m = memory_of(w, t);
    Queue *queue = queue_of(w, t, 0);
    if (m->is_ranked || queue->tail == NONE) {
        return queue->tail;
    }
    int64_t count = 0, older = NONE;
    for (Session *s = &m->sessions[1]; s <= &m->sessions[m->used]; s++) {
        s->score = (double)s->last_use + s->hits * USE + bonus(s->depth);
        if (s->members) {
            m->ranked[count++] = s;
        }
    }
    qsort(m->ranked, (size_t)count, sizeof(Session *), by_score);
    for (int64_t i = 0; i < count; older = m->ranked[i++]->first) {
        link_of(w, t, m->ranked[i]->last)->older = (int32_t)older;
        if (older != NONE) {
            link_of(w, t, older)->newer = (int32_t)m->ranked[i]->last;
        }
    }
    link_of(w, t, older)->newer = NONE;
    queue->head = older, m->is_ranked = true;
    return queue->tail = m->ranked[0]->last;
}

EXPORT int64_t sae_takes(World *w, int64_t t, int64_t depth, int64_t is_full) {
    Memory *m = memory_of(w, t);
    m->open = 0, m->depth = depth;
    int64_t least = is_full && !continued(w, m) ? sae_choose(w, t, NONE, 0) : NONE;
    return least == NONE ||
           (double)m->uses + bonus(depth) >= m->sessions[note_of(w, t, least)->place].score;
}

static void open_session(World *w, Memory *m) {
    m->open = continued(w, m), m->is_new = !m->open;
    if (m->is_new) {
        m->open = m->unused ? m->unused : ++m->used;
        if (m->unused) {
            m->unused = m->sessions[m->open].first;
        }
        if (m->open >= m->room) {
            m->room = 2 * m->open;
            m->sessions = grown(m->sessions, m->room, sizeof(Session));
            m->ranked = grown(m->ranked, m->room, sizeof(Session *));
        }
        m->sessions[m->open] = (Session){.number = ++m->numbers, .depth = m->depth};
    }
    m->sessions[m->open].last_use = m->uses;
    w->actors[w->control.actor].session_at = 0;
}

EXPORT void sae_on_insert(World *w, int64_t t, int64_t slot, UNUSED int64_t now) {
    Memory *m = memory_of(w, t);
    Popularity *popular = popularity_of(m, w->slots[slot].object);
    popular->is_here = 1;
    if (!m->open) {
        open_session(w, m);
    }
    Session *s = &m->sessions[m->open];
    if (m->is_new) {
        s->hits += popular->score / NORM;
    }
    note_of(w, t, slot)->place = (int32_t)m->open;
    if (s->members++) {
        link_between(w, t, slot, s->last, link_of(w, t, s->last)->older, 0);
    } else {
        link_first(w, t, s->first = slot, 0);
    }
    s->last = slot;
    m->is_ranked = false;
}

EXPORT void sae_on_remove(World *w, int64_t t, int64_t slot, UNUSED int64_t is_evicted) {
    Memory *m = memory_of(w, t);
    int64_t at = note_of(w, t, slot)->place;
    Session *s = &m->sessions[at];
    popularity_of(m, w->slots[slot].object)->is_here = 0;
    if (s->first == slot) {
        s->first = link_of(w, t, slot)->older;
    }
    if (s->last == slot) {
        s->last = link_of(w, t, slot)->newer;
    }
    unlink_from(w, t, slot, 0);
    note_of(w, t, slot)->place = NONE;
    if (--s->members) {
        return;
    }
    s->number = 0, s->first = m->unused, m->unused = at;
    if (m->open == at) {
        m->open = 0;
    }
}

// Forget all of the tier, or at the end of every place's.
EXPORT void sae_on_empty(World *w, int64_t t, UNUSED int64_t slot, int64_t is_end) {
    Memory *first = memory_of(w, t), *last = first;
    if (is_end) {
        first = w->memories, last = first + 2 * w->fleet.count;
    }
    for (Memory *m = first; m <= last; m++) {
        free(m->sessions), free(m->ranked), free(m->popular);
        *m = (Memory){0};
    }
    if (is_end) {
        free(w->memories), w->memories = NULL;
    }
}
