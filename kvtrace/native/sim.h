// What the files of the simulation call of each other. The main flow: schedule.c takes who acts
// next and does the next step of its request (request.c); tiers are below that (tiers.c,
// staging.c), the fleet around it (fleet.c).
//
// `t` is a tier; `slot` an object's own slot; `member` the slot that a tier lists (a copy, where
// places have theirs); `entry` what stands in World.contexts: a slot, or an object that needs none;
// `n` objects of a request are in `chain`.
#ifndef KVTRACE_SIM_H
#define KVTRACE_SIM_H

#include "world.h"

#define UNUSED __attribute__((unused)) // what an operation is given and this one has no use for
#define INLINE                                                                                     \
    static inline                                                                                  \
        __attribute__((always_inline)) // few lines in a hot loop, which must not cost a call

#define NS_PER_S ((int64_t)1000000000)
enum { MILLION = 1000000 };

INLINE int64_t up_by(int64_t a, int64_t b) {
    return (a + b - 1) / b;
} // of what is not negative

// schedule.c: ask Python to take the rows made since the last flush, or to enlarge a table. Tables
// may move: keep no pointer into slots and what stands beside them across a call that may take a
// slot (take_slot, give_slot, own, write_slot).
void ensure(World *w, int64_t what, int64_t need);

// schedule.c: who acts when
enum {
    WAITS = -2
}; // instead of how long an actor waits: until the batch's clock gets where its heap says
void push(Event *heap, int64_t count, int64_t when, int64_t actor);
int64_t pop(Event *heap, int64_t count);
void call_followers(World *w, int64_t request, int64_t is_of_start);
void change(World *w, int64_t requests, int64_t bytes);
void join(World *w, int64_t actor);
void depart(World *w, int64_t actor);
int64_t after_steps(World *w, int64_t actor, int64_t steps);
void disband(World *w);
void hold(World *w, int64_t actor, int64_t member);
bool take_memory(World *w, int64_t actor, int64_t end);
void give_memory(World *w, int64_t actor);
int64_t draw(int64_t seed, int64_t user, int64_t number, int64_t low, int64_t high);
int64_t think_ns(User *me, int64_t seed, int64_t user);

// request.c: of which objects a request consists, and what it does
void forget_all(World *w, int64_t context, int64_t length);
int64_t gather(World *w, int64_t actor);
void give_slots(World *w, int64_t actor, int64_t first, int64_t n);
int64_t step_bytes(World *w, int64_t tokens);
int64_t reading_ns(World *w, int64_t tokens, int64_t bytes);
int64_t enqueue(World *w, int64_t actor);
int64_t load(World *w, int64_t actor);
int64_t promote(World *w, int64_t actor);
void populate(World *w);
int64_t store(World *w, int64_t actor);
int64_t decode(World *w, int64_t actor);
int64_t end_request(World *w, int64_t actor);

// tiers.c: what entries and slots stand for; they are taken when an object is named, given back
// when nobody can ask for it any more; copies at nodes and racks
INLINE int64_t *entry_at(World *w, int64_t home) {
    return &w->contexts[home >> 32].entry[(uint32_t)home];
}
INLINE int64_t is_endless(World *w, int64_t t) {
    return w->knobs.endless & (1 << t);
}
INLINE int64_t packed(int64_t what) {
    return -2 - what;
} // what an entry stands for, or such an entry
INLINE int64_t place_in(int64_t entry) {
    return packed(entry) >> PLACE_SHIFT & ((1 << PLACE_BITS) - 1);
}
INLINE int64_t
live_in(World *w, int64_t entry) { // a bit for each tier, as the node at hand or its rack sees it
    if (entry >= 0) {
        return w->slots[entry].live;
    }
    int64_t live = packed(entry) & ((1 << LIVE_BITS) - 1), place = place_in(entry),
            node = w->control.node;
    bool is_here = !place || place == 1 + node ||
                   (w->fleet.racked && place == 1 + w->fleet.count + node / w->fleet.rack_nodes);
    return is_here ? live : live & ~w->fleet.scoped;
}
INLINE int64_t found_in(World *w, int64_t entry) {
    return live_in(w, entry) & ~w->control.gone;
} // and in reach
INLINE int64_t member_of(World *w, int64_t t,
                         int64_t slot) { // NONE if the tier's place has no copy of it
    if (!(w->fleet.scoped & (1 << t))) {
        return slot;
    }
    return w->fleet.racked & (1 << t) ? w->fleet.copies[slot].rack_copy
                                      : w->fleet.copies[slot].node_copy;
}
INLINE int64_t size_of(World *w, int64_t entry) {
    return entry >= 0 ? w->slots[entry].size : w->knobs.chunk_bytes;
}
int64_t take_slot(World *w, int64_t number, int64_t size, int64_t home, int64_t place);
int64_t give_slot(World *w, int64_t home);
void see(World *w, int64_t entry);
void see_all(World *w, int64_t n);
int64_t object_of(World *w, int64_t t, int64_t member);
int64_t incoming_of(World *w, int64_t t, int64_t slot);
void loosen(World *w, int64_t slot);
void pack(World *w);
void let_go(World *w, int64_t member);
void release(World *w, int64_t slot);

// tiers.c: what happens in a tier, and the rows that it causes
void begin_stage(World *w);
int64_t in_stage(World *w, int64_t stage, int64_t t, int64_t limit);
void emit_layer(World *w, int64_t now, int64_t op, int64_t t, int64_t phase, int64_t entry,
                int64_t size, int64_t request, int64_t stage, int64_t layer);
void emit(World *w, int64_t now, int64_t op, int64_t t, int64_t phase, int64_t entry, int64_t size,
          int64_t request, int64_t stage);
int64_t serve(World *w, int64_t t, int64_t op, int64_t size, int64_t now);
int64_t serve_in_turn(World *w, int64_t t, int64_t size, int64_t now);
void pin(World *w, int64_t entry, int64_t until_ns);
void follow(World *w, int64_t t, int64_t i);
void trail(World *w, int64_t t, int64_t i, int64_t first, int64_t mark);
void touch(World *w, int64_t t, int64_t entry);
int64_t read_slot(World *w, int64_t t, int64_t slot, int64_t now, int64_t phase, int64_t request,
                  int64_t stage);
void write_slot(World *w, int64_t t, int64_t slot, int64_t now, int64_t phase, int64_t request,
                int64_t stage);
void drop(World *w, int64_t t, int64_t slot, int64_t now, int64_t phase);
int64_t fastest_from(World *w, int64_t entry, int64_t t);

// tiers.c: what a tier takes, and what makes room for it
int64_t counter_of(World *w, int64_t t), number_of(World *w, int64_t entry);
bool admits(World *w, int64_t t, int64_t slot, int64_t now);
void forget_counts(World *w, int64_t t);
bool takes_offer(World *w, int64_t t, int64_t first, int64_t n, int64_t previous, int64_t now);
bool make_room(World *w, int64_t t, int64_t slot, int64_t now);
int64_t lower_tier(World *w, int64_t t, int64_t size);
void make_room_by_demotion(World *w, int64_t t, int64_t slot, int64_t now);
void poll_tier(World *w, int64_t t);

// staging.c: what waits to be stored, and what tiers do by themselves
bool takes(World *w, int64_t t, int64_t slot, int64_t now, int64_t phase);
void catch_up(World *w, int64_t now);
int64_t take_first(World *w, int64_t t);
void note_due(World *w, int64_t place, int64_t tiers);

// staging.c: many objects stored as one, and collected
void evict(World *w, int64_t t, int64_t slot, int64_t now);
void lose(World *w, int64_t t, int64_t slot, int64_t now);

// tiers.c: the lists that policies keep, and the operations of a tier's policy
INLINE Link *link_of(World *w, int64_t t, int64_t slot) {
    return &w->links[slot * w->tiers_count + t];
}
INLINE Note *note_of(World *w, int64_t t, int64_t slot) {
    return &w->notes[slot * w->tiers_count + t];
}
INLINE Queue *queue_of(World *w, int64_t t, int64_t number) {
    return &w->queues[t * QUEUES + number];
}
void unlink_from(World *w, int64_t t, int64_t slot, int64_t number);
void link_between(World *w, int64_t t, int64_t slot, int64_t newer, int64_t older, int64_t number);
void link_first(World *w, int64_t t, int64_t slot, int64_t number);
void enter(World *w, int64_t t, int64_t slot, int64_t number);
void leave(World *w, int64_t t, int64_t slot);
void on_hit(World *w, int64_t t, int64_t slot);
void on_insert(World *w, int64_t t, int64_t slot, int64_t now);
int64_t victim(World *w, int64_t t, int64_t incoming);
void on_remove(World *w, int64_t t, int64_t slot, int64_t is_evicted);
int64_t expiry_ns(World *w, int64_t t);

// fleet.c: whose tiers are at hand, who serves a request, what moves, and what happens to nodes
void move(World *w, int64_t node);
void take_from(World *w, int64_t actor);
void route(World *w, int64_t actor, int64_t n);
void account(World *w, int64_t actor, int64_t end, int64_t looked_up);
int64_t until_open(World *w);
int64_t hand_over(World *w, int64_t actor);
void happen(World *w);

// fleet.c: what routers share
INLINE int64_t is_open(World *w, int64_t node) {
    return w->fleet.nodes[node].is_up;
}
typedef int64_t Cost(World *w, int64_t actor, int64_t node);
int64_t cheapest(World *w, int64_t actor, int64_t first, int64_t end, Cost *cost);
int64_t outstanding_of(World *w, int64_t actor, int64_t node);
void measure(World *w, int64_t actor, int64_t n);
int64_t found_tokens(World *w, int64_t actor, int64_t node);

#endif
