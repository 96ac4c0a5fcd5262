// SAE, session-aware eviction: vLLM's pull request 50422 (v1/kv_offload/cpu/policies/sae.py).
// What one offer stores belongs to one session, and the session with the lowest score is evicted
// from, its object that was stored last first.
//
//     score of a session:  last use + 1500 * hits + 30000 / (1 + depth / 8)
//     on a lookup:         each session with a hit: hits += 1, last use = now (counted in requests)
//     an offer:            continues the session of the request's last hit, or begins a new one; it
//                          is refused if the tier is full and the new session would score lowest
//     victim:              the last object of the session with the lowest score
//     every 500 uses:      hits and popularities decay by 0.9
//
// A new session begins with the popularity of its objects as hits. `depth` is how many objects of
// its first offer the tier had before.
#include "../sim.h"

#include <math.h>
#include <stdlib.h>

// The defaults of the policy's options in the pull request.
static const double USE_WEIGHT = 1500;
static const double DEPTH_WEIGHT = 30000;
static const double HALF_DEPTH = 8;
static const double HIT_POPULARITY = 12;
static const double MISS_POPULARITY = 1;
static const double POPULARITY_PER_HIT = 12;
static const double DECAY = 0.9;
static const double LEAST_POPULARITY = 0.01;
enum { DECAY_INTERVAL = 500 };

// A session. Its objects are neighbours in the tier's list; the first one stored is the most
// recent.
typedef struct {
    double hits;
    double score;
    int64_t number;   // Tells it from other sessions at the same index.
    int64_t last_use; // In requests.
    int64_t depth;
    int64_t members; // Its objects.
    int64_t first;   // The first of them; of an unused session, the next unused one.
    int64_t last;    // The last of them.
} SaeSession;

// The popularity of an object, in the tier or not.
typedef struct {
    double score;
    int64_t is_live;
} SaePopularity;

// What the policy remembers for a tier at a place. Session 0 is none.
typedef struct {
    SaeSession *sessions;
    SaeSession **ranked;         // Scratch: sessions by score.
    SaePopularity *popularities; // [objects]: by the number of the object.
    int64_t room;                // How many sessions there is memory for.
    int64_t used;                // Sessions that were ever used.
    int64_t unused;              // The first of those that are not any more; 0 if none.
    int64_t objects;
    int64_t uses;          // Requests so far.
    int64_t numbers;       // Sessions that ever began.
    int64_t open;          // The session of what is stored now; 0 if one is to begin.
    int64_t offered_depth; // The depth of the session that would begin.
    bool is_new;           // The open session began with this offer.
    bool is_ranked;        // The tier's list is in the order of scores.
} SaeMemory;

static SaeMemory *sae_memory_of(World *world, int64_t level) {
    if (!world->sae_memories) {
        world->sae_memories = memory_zeros(1 + 2 * world->fleet.count, sizeof(SaeMemory));
    }
    return (SaeMemory *)world->sae_memories + tier_place(world, level);
}

static SaePopularity *sae_popularity_of(SaeMemory *memory, int64_t object) {
    if (object >= memory->objects) {
        int64_t objects = 2 * object + 1024;
        memory->popularities = memory_grow(memory->popularities, objects, sizeof(SaePopularity));
        while (memory->objects < objects) {
            memory->popularities[memory->objects++] = (SaePopularity){0, 0};
        }
    }
    return &memory->popularities[object];
}

static double sae_depth_score(int64_t depth) {
    return DEPTH_WEIGHT / (1 + (double)depth / HALF_DEPTH);
}

// The session that the request at hand continues, or 0. The request may have moved to another node
// since its hit.
static int64_t sae_continued_session(World *world, const SaeMemory *memory) {
    const Actor *actor = &world->actors[world->control.actor_id];
    int64_t session = actor->sae_session;
    if (session == 0 || session > memory->used) {
        return 0;
    }
    return memory->sessions[session].number == actor->sae_session_number ? session : 0;
}

// --- lookups

static void sae_decay(SaeMemory *memory) {
    for (int64_t i = 1; i <= memory->used; i++) {
        memory->sessions[i].hits *= DECAY;
    }
    for (int64_t i = 0; i < memory->objects; i++) {
        SaePopularity *popularity = &memory->popularities[i];
        popularity->score *= DECAY;
        if (!popularity->is_live && popularity->score < LEAST_POPULARITY) {
            popularity->score = 0;
        }
    }
}

// Counts that the request at hand names `chain[:n]`. What this offer, or the one before it, stored
// is no hit.
static void sae_count_use(World *world, int64_t level, int64_t n, int64_t offer,
                          int64_t previous_offer) {
    SaeMemory *memory = sae_memory_of(world, level);
    memory->uses++;
    memory->is_ranked = false;
    for (int64_t i = 0; i < n; i++) {
        int64_t entry = world->chain[i];
        bool is_live = object_is_in(world, entry, level);
        int64_t slot = is_live ? slot_in_tier(world, level, entry) : NONE;
        int32_t new_in_offer = slot == NONE ? 0 : world->pins[slot].new_in_offer;
        bool is_settled = !new_in_offer || (new_in_offer != (int32_t)offer &&
                                            new_in_offer != (int32_t)previous_offer);
        bool is_hit = slot != NONE && is_settled;
        double weight = 1 / log2((double)i + 2);
        SaePopularity *popularity = sae_popularity_of(memory, object_number(world, entry));
        popularity->score += weight * (is_hit ? HIT_POPULARITY : MISS_POPULARITY);
        if (slot == NONE) {
            continue;
        }
        SaeSession *session = &memory->sessions[policy_note_of(world, level, slot)->list];
        if (session->last_use != memory->uses) {
            session->hits += 1;
            session->last_use = memory->uses;
        }
    }
    if (memory->uses % DECAY_INTERVAL == 0) {
        sae_decay(memory);
    }
}

// A request names `chain[:named]`, and its lookup found `chain[:hit_end]`.
EXPORT void sae_on_lookup(World *world, int64_t level, int64_t named, int64_t hit_end) {
    SaeMemory *memory = sae_memory_of(world, level);
    Actor *actor = &world->actors[world->control.actor_id];
    actor->sae_session = 0;
    memory->open = 0;
    int64_t i = 0;
    while (level > 0 && i < hit_end && world->hit_level[i] == 0) {
        i++; // What the fastest tier has is not looked up here.
    }
    for (; i < hit_end; i++) {
        if (object_is_in(world, world->chain[i], level)) {
            int64_t slot = slot_in_tier(world, level, world->chain[i]);
            actor->sae_session = policy_note_of(world, level, slot)->list;
        }
    }
    if (actor->sae_session) {
        actor->sae_session_number = memory->sessions[actor->sae_session].number;
    }
    sae_count_use(world, level, named, 0, 0);
}

// An offer of the request, which names `chain[:named]`, was stored.
EXPORT void sae_on_stored(World *world, int64_t level, int64_t named, int64_t previous_offer) {
    if (sae_memory_of(world, level)->open) {
        sae_count_use(world, level, named, world->control.offers, previous_offer);
    }
}

// --- eviction and admission

static int sae_compare_scores(const void *a, const void *b) {
    const SaeSession *x = *(SaeSession *const *)a;
    const SaeSession *y = *(SaeSession *const *)b;
    if (x->score != y->score) {
        return x->score < y->score ? -1 : 1;
    }
    return (x->number > y->number) - (x->number < y->number);
}

// Links the sessions of the tier's list in the order of memory->ranked, the lowest score last.
static void sae_link_ranked(World *world, int64_t level, const SaeMemory *memory, int64_t count) {
    RecencyList *list = list_of(world, level, 0);
    int64_t older = NONE;
    for (int64_t i = 0; i < count; i++) {
        const SaeSession *session = memory->ranked[i];
        list_link_of(world, level, session->last)->older = (int32_t)older;
        if (older != NONE) {
            list_link_of(world, level, older)->newer = (int32_t)session->last;
        }
        older = session->first;
    }
    list_link_of(world, level, older)->newer = NONE;
    list->head = older;
    list->tail = memory->ranked[0]->last;
}

EXPORT int64_t sae_choose_victim(World *world, int64_t level, UNUSED int64_t incoming) {
    SaeMemory *memory = sae_memory_of(world, level);
    RecencyList *list = list_of(world, level, 0);
    if (memory->is_ranked || list->tail == NONE) {
        return list->tail;
    }
    int64_t count = 0;
    for (int64_t i = 1; i <= memory->used; i++) {
        SaeSession *session = &memory->sessions[i];
        session->score = (double)session->last_use + session->hits * USE_WEIGHT +
                         sae_depth_score(session->depth);
        if (session->members) {
            memory->ranked[count++] = session;
        }
    }
    qsort(memory->ranked, (size_t)count, sizeof(SaeSession *), sae_compare_scores);
    sae_link_ranked(world, level, memory, count);
    memory->is_ranked = true;
    return list->tail;
}

// Whether an offer, of which the tier has `live_objects` already, is stored.
EXPORT int64_t sae_admits_offer(World *world, int64_t level, int64_t live_objects,
                                int64_t is_full) {
    SaeMemory *memory = sae_memory_of(world, level);
    memory->open = 0;
    memory->offered_depth = live_objects;
    if (!is_full || sae_continued_session(world, memory)) {
        return true;
    }
    int64_t victim = sae_choose_victim(world, level, NONE);
    if (victim == NONE) {
        return true;
    }
    double score = (double)memory->uses + sae_depth_score(live_objects);
    return score >= memory->sessions[policy_note_of(world, level, victim)->list].score;
}

// --- inserts and removals

// Opens the session of what is stored now: the one that the request continues, or a new one.
static void sae_open_session(World *world, SaeMemory *memory) {
    memory->open = sae_continued_session(world, memory);
    memory->is_new = !memory->open;
    if (memory->is_new) {
        if (memory->unused) {
            memory->open = memory->unused;
            memory->unused = memory->sessions[memory->open].first;
        } else {
            memory->open = ++memory->used;
        }
        if (memory->open >= memory->room) {
            memory->room = 2 * memory->open;
            memory->sessions = memory_grow(memory->sessions, memory->room, sizeof(SaeSession));
            memory->ranked = memory_grow(memory->ranked, memory->room, sizeof(SaeSession *));
        }
        memory->sessions[memory->open] =
            (SaeSession){.number = ++memory->numbers, .depth = memory->offered_depth};
    }
    memory->sessions[memory->open].last_use = memory->uses;
    world->actors[world->control.actor_id].sae_session = 0;
}

EXPORT void sae_on_insert(World *world, int64_t level, int64_t slot, UNUSED int64_t now) {
    SaeMemory *memory = sae_memory_of(world, level);
    SaePopularity *popularity = sae_popularity_of(memory, world->slots[slot].object);
    popularity->is_live = 1;
    if (!memory->open) {
        sae_open_session(world, memory);
    }
    SaeSession *session = &memory->sessions[memory->open];
    if (memory->is_new) {
        session->hits += popularity->score / POPULARITY_PER_HIT;
    }
    policy_note_of(world, level, slot)->list = (int32_t)memory->open;
    if (session->members) {
        int64_t older = list_link_of(world, level, session->last)->older;
        list_link_between(world, level, slot, session->last, older, 0);
    } else {
        session->first = slot;
        list_link_first(world, level, slot, 0);
    }
    session->members++;
    session->last = slot;
    memory->is_ranked = false;
}

EXPORT void sae_on_remove(World *world, int64_t level, int64_t slot, UNUSED int64_t is_evicted) {
    SaeMemory *memory = sae_memory_of(world, level);
    int64_t index = policy_note_of(world, level, slot)->list;
    SaeSession *session = &memory->sessions[index];
    sae_popularity_of(memory, world->slots[slot].object)->is_live = 0;
    if (session->first == slot) {
        session->first = list_link_of(world, level, slot)->older;
    }
    if (session->last == slot) {
        session->last = list_link_of(world, level, slot)->newer;
    }
    list_unlink(world, level, slot, 0);
    policy_note_of(world, level, slot)->list = NONE;
    session->members--;
    if (session->members > 0) {
        return;
    }
    session->number = 0;
    session->first = memory->unused;
    memory->unused = index;
    if (memory->open == index) {
        memory->open = 0;
    }
}

static void sae_free_memory(SaeMemory *memory) {
    free(memory->sessions);
    free(memory->ranked);
    free(memory->popularities);
    *memory = (SaeMemory){0};
}

// Forgets all of the tier at hand; at the end of the simulation, all of every place's.
EXPORT void sae_on_empty(World *world, int64_t level, int64_t is_end) {
    SaeMemory *at_hand = sae_memory_of(world, level);
    if (!is_end) {
        sae_free_memory(at_hand);
        return;
    }
    SaeMemory *memories = world->sae_memories;
    for (int64_t place = 0; place <= 2 * world->fleet.count; place++) {
        sae_free_memory(&memories[place]);
    }
    free(memories);
    world->sae_memories = NULL;
}
