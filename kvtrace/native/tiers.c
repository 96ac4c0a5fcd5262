// What a tier does: the lists and the policy by which it gives objects up, the slots that stand for
// objects, the rows that reads, writes and deletes cause and how long the tier is busy with them,
// and what it takes and makes room for.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

// === lists and policies
// ==============================================================================================
// What policies are made of: the lists that a tier keeps its slots in, most recent first, and the
// calls of a policy. LRU is here: a tier without a policy's operations is LRU, and keeps one list.

// Put `slot` into list `number`, between `newer` and `older`, which are neighbours there; NONE is
// beyond an end.
void link_between(World *w, int64_t t, int64_t slot, int64_t newer, int64_t older, int64_t number) {
    Queue *queue = queue_of(w, t, number);
    *link_of(w, t, slot) = (Link){.newer = (int32_t)newer, .older = (int32_t)older};
    if (newer == NONE) {
        queue->head = slot;
    } else {
        link_of(w, t, newer)->older = (int32_t)slot;
    }
    if (older == NONE) {
        queue->tail = slot;
    } else {
        link_of(w, t, older)->newer = (int32_t)slot;
    }
}

void link_first(World *w, int64_t t, int64_t slot, int64_t number) {
    link_between(w, t, slot, NONE, queue_of(w, t, number)->head, number);
}

void unlink_from(World *w, int64_t t, int64_t slot, int64_t number) {
    Queue *queue = queue_of(w, t, number);
    int32_t newer = link_of(w, t, slot)->newer, older = link_of(w, t, slot)->older;
    if (newer == NONE) {
        queue->head = older;
    } else {
        link_of(w, t, newer)->older = older;
    }
    if (older == NONE) {
        queue->tail = newer;
    } else {
        link_of(w, t, older)->newer = newer;
    }
}

// When `slot` was last used: at its own node in a node's tier, at any in a tier that nodes share.
static int64_t age(World *w, int64_t t, int64_t slot) {
    return w->ages[w->fleet.racked & (1 << t) ? w->slots[slot].home : slot];
}

// Move `slot`, first in the list of tier `t`, behind those that were used after it, if the tier is
// LRU.
static void settle(World *w, int64_t t, int64_t slot) {
    int64_t older = link_of(w, t, slot)->older, newer = older;
    if (w->tiers[t].on_insert || older == NONE || age(w, t, older) < age(w, t, slot)) {
        return;
    }
    unlink_from(w, t, slot, 0);
    while (older != NONE && age(w, t, older) > age(w, t, slot)) {
        newer = older, older = link_of(w, t, older)->older;
    }
    link_between(w, t, slot, newer, older, 0);
}

void enter(World *w, int64_t t, int64_t slot,
           int64_t number) { // first in list `number`, its bytes counted there
    link_first(w, t, slot, number);
    note_of(w, t, slot)->place = (int32_t)number;
    queue_of(w, t, number)->bytes += w->slots[slot].size;
}

void leave(World *w, int64_t t, int64_t slot) { // the list it is in
    Note *note = note_of(w, t, slot);
    unlink_from(w, t, slot, note->place);
    queue_of(w, t, note->place)->bytes -= w->slots[slot].size;
    note->place = NONE;
}

// Put `slot`, which was used, into the list of an LRU tier: right behind the slot that this says,
// or first.
static void link_used(World *w, int64_t t, int64_t slot) {
    int64_t *behind = &w->tiers[t].behind, newer = *behind - 1;
    link_between(w, t, slot, newer,
                 newer == NONE ? queue_of(w, t, 0)->head : link_of(w, t, newer)->older, 0);
    *behind = 0;
}

void on_hit(World *w, int64_t t, int64_t slot) { // `slot`, which is live in tier `t`, was used
    Tier *tier = &w->tiers[t];
    if (tier->on_hit) {
        tier->on_hit(w, t, slot, 0);
    } else if (tier->behind || queue_of(w, t, 0)->head != slot) {
        unlink_from(w, t, slot, 0);
        link_used(w, t, slot);
    }
}

void on_insert(World *w, int64_t t, int64_t slot, int64_t now) { // `slot` is now live in tier `t`
    Tier *tier = &w->tiers[t];
    if (tier->on_insert) {
        tier->on_insert(w, t, slot, now);
    } else {
        link_used(w, t, slot);
    }
}

// Which slot of tier `t`, which is not empty, makes room for `incoming`; the caller then removes
// it. This may reorder the tier, so ask once for each that is removed.
int64_t victim(World *w, int64_t t, int64_t incoming) {
    const Tier *tier = &w->tiers[t];
    if (tier->choose) {
        return tier->choose(w, t, incoming, 0);
    }
    const int64_t *tail = &queue_of(w, t, 0)->tail;
    // In the GPU's memory those go last that requests run with.
    for (int64_t first = NONE; t == 0 && *tail != first && w->slots[*tail].runners;) {
        int64_t slot = *tail;
        if (first == NONE) {
            first = slot;
        }
        unlink_from(w, t, slot, 0);
        link_first(w, t, slot, 0);
    }
    return *tail;
}

void on_remove(World *w, int64_t t, int64_t slot,
               int64_t is_evicted) { // is_evicted: `victim` chose it
    const Tier *tier = &w->tiers[t];
    if (tier->on_remove) {
        tier->on_remove(w, t, slot, is_evicted);
    } else {
        unlink_from(w, t, slot, 0);
        int64_t next = queue_of(w, t, 0)->tail; // what goes next lies anywhere: fetch it meanwhile
        if (next == NONE) {
            return;
        }
        __builtin_prefetch(&w->slots[next], 1);
        int64_t newer = link_of(w, t, next)->newer;
        if (newer != NONE) {
            __builtin_prefetch(link_of(w, t, newer), 1);
        }
    }
}

// Drop what any tier remembers of `slot`, which is live in none, so that another object may have
// it.
static void forget(World *w, int64_t slot) {
    for (int64_t t = 0; t < w->tiers_count; t++) {
        if (w->tiers[t].forget) {
            w->tiers[t].forget(w, t, slot, 0);
        }
        if (w->notes_count) {
            note_of(w, t, slot)->place = NONE;
        }
    }
}

int64_t
expiry_ns(World *w,
          int64_t t) { // of what tier `t` has had longest; UNBOUNDED: never, or there is none
    int64_t tail = queue_of(w, t, 0)->tail;
    return w->tiers[t].ttl_ns && tail != NONE ? note_of(w, t, tail)->count : UNBOUNDED;
}

// === slots
// ===========================================================================================================
// The slots of objects: taken when an object is named, given back when nobody can ask for it any
// more.
//
// In a fleet an object's slot is of what all nodes share; what a node or a rack has is a copy with
// a slot of its own. The object's slot then says where the object is live as the node at hand sees
// it, once that has looked (`see`).

// --- copies, by the place that has them
// -----------------------------------------------------------------------------
//
// Objects are numbered as they are named, so that those of one prompt follow each other. Those
// copies of LINE that do, at one place, stand in a line together: one miss of the processor's cache
// finds all.

static int64_t line_key(int64_t number, int64_t place) {
    return place << 40 | number / LINE;
}

static int64_t find_copy(World *w, int64_t number, int64_t place) { // its slot, or NONE
    const int64_t *at = table_find(&w->fleet.line_at, line_key(number, place));
    return at ? w->fleet.lines[*at].slot[number % LINE] : NONE;
}

static void put_copy(World *w, int64_t slot) {
    Fleet *fleet = &w->fleet;
    int64_t number = w->slots[slot].object, known = fleet->line_at.count,
            spare = fleet->spare_line - 1;
    // Where no line is spare all that ever were taken have copies.
    int64_t at = *table_put(&fleet->line_at, line_key(number, w->slots[slot].place),
                            spare == NONE ? known : spare);
    if (fleet->line_at.count > known) {
        if (spare != NONE) {
            fleet->spare_line = fleet->lines[at].slot[0];
        } else if (at == fleet->lines_room) {
            fleet->lines_room = max_of(2 * at, LINE);
            fleet->lines = grown(fleet->lines, fleet->lines_room, sizeof(Line));
        }
        memset(&fleet->lines[at], NONE, sizeof(Line));
    }
    fleet->lines[at].slot[number % LINE] = (int32_t)slot;
}

static void take_copy(World *w, int64_t slot) { // its line is spare if it was the last one there
    Fleet *fleet = &w->fleet;
    int64_t number = w->slots[slot].object, key = line_key(number, w->slots[slot].place);
    int64_t at = *table_find(&fleet->line_at, key);
    int32_t *line = fleet->lines[at].slot;
    line[number % LINE] = NONE;
    for (int64_t i = 0; i < LINE; i++) {
        if (line[i] != NONE) {
            return;
        }
    }
    table_drop(&fleet->line_at, key);
    line[0] = (int32_t)fleet->spare_line, fleet->spare_line = at + 1;
}

static void add_copy(World *w, int64_t slot) { // of the object whose own slot is its home
    Copy *copies = w->fleet.copies, *mine = &copies[slot], *home = &copies[w->slots[slot].home];
    mine->newer = NONE, mine->older = home->first;
    if (home->first != NONE) {
        copies[home->first].newer = (int32_t)slot;
    }
    home->first = (int32_t)slot;
    put_copy(w, slot);
}

static void remove_copy(World *w, int64_t slot) {
    Copy *copies = w->fleet.copies, *home = &copies[w->slots[slot].home];
    int32_t newer = copies[slot].newer, older = copies[slot].older;
    if (newer == NONE) {
        home->first = older;
    } else {
        copies[newer].older = older;
    }
    if (older != NONE) {
        copies[older].newer = newer;
    }
    if (home->node_copy == slot) {
        home->node_copy = NONE;
    }
    if (home->rack_copy == slot) {
        home->rack_copy = NONE;
    }
    take_copy(w, slot);
}

static int64_t
place_of(World *w, int64_t t) { // whose tier `t` is at hand: 1 + a node, or racks after all nodes
    const Fleet *fleet = &w->fleet;
    int64_t node = w->control.node;
    return 1 + (fleet->racked & (1 << t) ? fleet->count + node / fleet->rack_nodes : node);
}

// --- slots
// ----------------------------------------------------------------------------------------------------------

static void give_back(World *w, int64_t slot) {
    w->free[w->control.free++] = (int32_t)slot;
}

// Take a slot for object `number` of so many bytes that is named at `home`; or for a copy at
// `place`, which nobody holds.
int64_t take_slot(World *w, int64_t number, int64_t size, int64_t home, int64_t place) {
    if (!w->control.free) {
        ensure(w, MORE_SLOTS, 1);
    }
    int64_t slot = w->free[--w->control.free];
    Slot *what = &w->slots[slot];
    what->object = number, what->size = size, what->home = home, what->place = (int16_t)place;
    what->held = place == 0, what->live = 0, what->seen = 0;
    // Nothing is in flight, or copied, of the object that it held before.
    if (w->pins_count) {
        w->pins[slot] = (Pin){0, 0, 0};
    }
    if (w->fleet.scoped) {
        w->fleet.copies[slot] = (Copy){NONE, NONE, NONE, NONE, NONE};
    }
    return slot;
}

// A copy of `slot` at `place`, which has none.
static int64_t make_copy(World *w, int64_t slot, int64_t place) {
    int64_t copy = take_slot(w, w->slots[slot].object, w->slots[slot].size, slot, place);
    if (w->knobs.keeps_age) {
        w->ages[copy] = w->ages[slot];
    }
    add_copy(w, copy);
    return copy;
}

static void see_slot(World *w, int64_t slot) {
    const Fleet *fleet = &w->fleet;
    Slot *what = &w->slots[slot];
    Copy *copy = &fleet->copies[slot];
    int64_t live = what->live & ~fleet->scoped, node = 1 + w->control.node, first = copy->first;
    copy->node_copy = copy->rack_copy = NONE;
    if (first != NONE) { // most have one copy: no need to look that up
        copy->node_copy =
            (int32_t)(w->slots[first].place == node ? first : find_copy(w, what->object, node));
        if (copy->node_copy != NONE) {
            live |= w->slots[copy->node_copy].live;
        }
        if (fleet->racked) {
            int64_t rack = fleet->count + w->control.node / fleet->rack_nodes;
            copy->rack_copy = (int32_t)find_copy(w, what->object, 1 + rack);
            if (copy->rack_copy != NONE) {
                live |= w->slots[copy->rack_copy].live;
            }
        }
    }
    what->live = (int16_t)live;
}

int64_t give_slot(World *w,
                  int64_t home) { // of the object that is named at `home`; taken if it has none
    int64_t entry = *entry_at(w, home);
    if (entry >= 0) {
        return entry;
    }
    int64_t known = packed(entry), live = known & ((1 << LIVE_BITS) - 1);
    int64_t slot = take_slot(w, known >> PACKED_BITS, w->knobs.chunk_bytes, home, 0);
    w->slots[slot].live = (int16_t)(live & ~w->fleet.scoped),
    w->slots[slot].seen = known >> LIVE_BITS & 1;
    *entry_at(w, home) = slot;
    if (place_in(entry)) {
        int64_t copy = make_copy(w, slot, place_in(entry)); // tables may move
        w->slots[copy].live = (int16_t)(live & w->fleet.scoped);
        see_slot(w, slot);
    }
    return slot;
}

void see(World *w,
         int64_t entry) { // let the slot of its object say where it is live for the node at hand
    if (w->fleet.scoped && entry >= 0) {
        see_slot(w, entry);
    }
}

void see_all(World *w, int64_t n) {
    if (!w->fleet.scoped) {
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        if (w->chain[i] >= 0) {
            see_slot(w, w->chain[i]);
        }
    }
}

int64_t object_of(World *w, int64_t t,
                  int64_t member) { // the object's own slot of what tier `t` lists
    if (!(w->fleet.scoped & (1 << t))) {
        return member;
    }
    int64_t slot = w->slots[member].home;
    see_slot(w, slot);
    return slot;
}

// The copy of `slot` at the place of tier `t`, made if there is none; if it stays unused it goes
// again.
static int64_t own(World *w, int64_t t, int64_t slot) {
    int64_t copy = member_of(w, t, slot);
    if (copy != NONE) {
        return copy;
    }
    copy = make_copy(w, slot, place_of(w, t));
    if (w->fleet.racked & (1 << t)) {
        w->fleet.copies[slot].rack_copy = (int32_t)copy;
    } else {
        w->fleet.copies[slot].node_copy = (int32_t)copy;
    }
    loosen(w, copy);
    return copy;
}

int64_t incoming_of(World *w, int64_t t,
                    int64_t slot) { // what will stand for it in tier `t`, to which it comes
    return w->fleet.scoped & (1 << t) ? own(w, t, slot) : slot;
}

static bool
is_needed(World *w, int64_t slot) { // a tier that may give it up has its object, or there is a copy
    int64_t live = w->slots[slot].live & ~w->knobs.endless & ~w->fleet.scoped;
    return live || (w->fleet.scoped && w->fleet.copies[slot].first != NONE);
}

// The only copy of `slot`, if nothing has its object but tiers of that place that delete nothing;
// else NONE.
static int64_t lone_copy(World *w, int64_t slot) {
    if (!w->fleet.scoped || w->slots[slot].live & ~w->knobs.endless & ~w->fleet.scoped) {
        return NONE;
    }
    int64_t copy = w->fleet.copies[slot].first;
    if (copy == NONE || w->fleet.copies[copy].older != NONE) {
        return NONE;
    }
    const Slot *what = &w->slots[copy];
    return what->live && !(what->live & ~w->knobs.endless) && !what->held && !what->is_loose ? copy
                                                                                             : NONE;
}

// Whether the object of `slot` needs none: its entry in World.contexts can hold all that is known
// of it.
static bool is_packable(World *w, int64_t slot) {
    return w->knobs.is_packed && (!is_needed(w, slot) || lone_copy(w, slot) != NONE);
}

// Note that `slot` may be needed no more, if so: others may still look at it in this step.
void loosen(World *w, int64_t slot) {
    Slot *what = &w->slots[slot];
    if (what->is_loose || (what->place <= 0 && !is_packable(w, slot))) {
        return;
    }
    what->is_loose = 1;
    w->loose[w->control.loose++] = (int32_t)slot;
    if (what->place <= 0 && what->home != NONE) {
        __builtin_prefetch(entry_at(w, what->home), 1); // for `pack`
    }
}

static void discard(World *w, int64_t slot) { // give back the slot of a copy
    const Fleet *fleet = &w->fleet;
    remove_copy(w, slot);
    if (w->notes_count) { // what a policy remembers is in the lists of the copy's own place
        int64_t here = w->control.node, place = w->slots[slot].place - 1;
        move(w, place < fleet->count ? place : (place - fleet->count) * fleet->rack_nodes);
        forget(w, slot);
        move(w, here);
    }
    w->slots[slot].live = w->slots[slot].place = 0;
    give_back(w, slot);
}

// Take the slots of those objects that need none: what an entry can hold is all that is known of
// them.
void pack(World *w) {
    while (w->control.loose > 0) {
        int64_t slot = w->loose[--w->control.loose];
        Slot *what = &w->slots[slot];
        what->is_loose = 0;
        if (what->place > 0) {
            int64_t home = what->home;
            bool is_used = what->live || what->held;
            if (w->knobs.keeps_ghosts && (is_used || w->slots[home].held)) {
                continue; // a policy may remember it
            }
            if (!is_used) {
                discard(w, slot);
            }
            if (w->slots[home].held) {
                loosen(w, home);
            } else {
                release(w, home);
            }
        } else if (what->held && what->home != NONE && is_packable(w, slot)) {
            int64_t copy = lone_copy(w, slot), live = what->live & ~w->fleet.scoped, place = 0;
            if (copy != NONE) {
                live |= w->slots[copy].live, place = w->slots[copy].place;
                discard(w, copy);
            }
            int64_t known = what->object << PACKED_BITS | place << PLACE_SHIFT |
                            (int64_t)what->seen << LIVE_BITS | live;
            *entry_at(w, what->home) = packed(known);
            what->held = what->live = 0;
            give_back(w, slot);
        }
    }
}

// Give back, if it may be, what a tier listed and gives up together with others: an object's slot
// or a copy.
void let_go(World *w, int64_t member) {
    if (w->slots[member].place > 0) {
        loosen(w, member);
    } else {
        release(w, member);
    }
}

// Give `slot` back if nobody holds it and no tier will ever need it again; no tier then remembers
// it.
//
// A tier that never gives anything up does not need what nobody can ask for: so memory does not
// grow with it.
void release(World *w, int64_t slot) {
    Slot *what = &w->slots[slot];
    if (what->held) {
        return;
    }
    if (w->fleet.scoped) {
        // What one place may still give up may go to another that never does: until then, that is
        // known to have it.
        const Copy *copies = w->fleet.copies;
        int64_t copy = copies[slot].first;
        while (copy != NONE && !(w->slots[copy].live & ~w->knobs.endless) && !w->slots[copy].held) {
            copy = copies[copy].older;
        }
        copy = copy == NONE ? copies[slot].first : NONE;
        while (copy != NONE) {
            int64_t older = copies[copy].older;
            if (!w->slots[copy].is_loose) {
                discard(w, copy);
            }
            copy = older;
        }
    }
    if (is_needed(w, slot)) {
        return;
    }
    what->live = 0;
    if (w->notes_count) {
        forget(w, slot);
    }
    give_back(w, slot);
}

// === admission
// =======================================================================================================
// Filters that spare a drive the writes of what nobody reads again.
//
// What is stored, and what a faster tier gives up, is offered to a tier; it takes it or not, by how
// often it has been offered or used. What a promotion copies up was asked for, and passes; so does
// what is there before the start.

enum { MOST = 1 << 30, RUN = 64, ROOM = 16 }; // no count goes higher

// A count, and how often counts had decayed when it was, as World.counts has them.
static int64_t seen_as(int64_t count, int64_t since) {
    return min_of(count, MOST) << 32 | (uint32_t)since;
}

// Of whom tier `t`, which is at hand, counts: where nodes or racks do for themselves, of what came
// to them alone.
int64_t counter_of(World *w, int64_t t) {
    return w->fleet.scoped & (1 << t) ? place_of(w, t) : 0;
}

int64_t number_of(World *w, int64_t entry) { // of its object
    return entry >= 0 ? w->slots[entry].object : packed(entry) >> PACKED_BITS;
}

// How often object `number` was offered to tier `t`, or used there. Counts lie in runs: objects of
// one prompt follow each other.
static int64_t *count_of(World *w, int64_t t, int64_t number) {
    int64_t counters = 2 * w->fleet.count + 1,
            key = (number / RUN * counters + counter_of(w, t)) * w->tiers_count + t;
    int64_t known = w->counts.count, run = *table_put(&w->counts, key, known);
    if (run == w->runs_room) {
        w->runs_room = max_of(ROOM, 2 * w->runs_room);
        w->runs = grown(w->runs, w->runs_room, RUN * sizeof(int64_t));
    }
    if (run == known) {
        memset(&w->runs[run * RUN], 0, RUN * sizeof(int64_t));
    }
    return &w->runs[run * RUN + number % RUN];
}

static int64_t decayed(const Tier *tier,
                       int64_t seen) { // a count, halved as often as all were since
    return (seen >> 32) >> min_of(31, tier->halvings - (int32_t)seen);
}

static bool has_room(World *w, int64_t t,
                     int64_t size) { // an object it takes may fill an empty tier past its limit
    const Tier *tier = &w->tiers[t];
    return tier->live_bytes == 0 || tier->live_bytes + size <= tier->limit;
}

// Count an offer of `slot`; return what that makes. For nth-offer it is one more. For frequency it
// is twice as much, and each `decay_ns` takes one off; what has come down to nothing begins at 1.
static int64_t offered(World *w, int64_t t, int64_t slot, int64_t now) {
    const Tier *tier = &w->tiers[t];
    int64_t *seen = count_of(w, t, w->slots[slot].object), count = *seen >> 32,
            since = (int32_t)*seen;
    if (tier->admission == NTH_OFFER) {
        count++;
    } else if (tier->admission == FREQUENCY) {
        int64_t decays = tier->decay_ns ? now / tier->decay_ns : 0;
        count = max_of(0, count - (decays - since));
        count = count ? 2 * count : 1, since = decays;
    }
    *seen = seen_as(count, since);
    return count;
}

// Count a use or an offer of the object of `entry` if the tier goes by TinyLFU; return how often it
// had any. All counts are halved as often as a window of bytes was referred to.
static int64_t refer(World *w, int64_t t, int64_t entry) {
    Tier *tier = &w->tiers[t];
    if (tier->admission != TINYLFU) {
        return 0;
    }
    int64_t *seen = count_of(w, t, number_of(w, entry)), count = decayed(tier, *seen) + 1;
    *seen = seen_as(count, tier->halvings);
    tier->referred += size_of(w, entry);
    if (tier->referred >= tier->window) {
        tier->referred /= 2;
        tier->halvings++;
        count >>= 1;
    }
    return count;
}

bool admits(World *w, int64_t t, int64_t slot, int64_t now) { // ask once, for an offer is counted
    if (!(w->knobs.filtered & (1 << t))) {
        return true;
    }
    Tier *tier = &w->tiers[t];
    int64_t size = w->slots[slot].size;
    bool is_taken;
    if (tier->admission == TINYLFU) {
        int64_t count = refer(w, t, slot);
        is_taken = has_room(w, t, size) ||
                   count > decayed(tier, *count_of(w, t, w->slots[victim(w, t, slot)].object));
    } else {
        is_taken = offered(w, t, slot, now) >= tier->admission_count;
    }
    if (is_taken) {
        return true;
    }
    tier->refused_objects++;
    tier->refused_bytes += size;
    loosen(w, slot);
    return false;
}

void forget_counts(World *w, int64_t t) { // of tier `t`, which is at hand
    int64_t tiers = w->tiers_count, counters = 2 * w->fleet.count + 1;
    w->tiers[t].referred = 0;
    for (int64_t i = 0; i < w->counts.size; i++) {
        Entry *count = &w->counts.entry[i];
        bool is_its = count->key % tiers == t && count->key / tiers % counters == counter_of(w, t);
        for (int64_t k = 0; count->key >= 0 && is_its && k < RUN; k++) {
            int64_t *seen = &w->runs[count->value * RUN + k];
            *seen = seen_as(0, *seen);
        }
    }
}

// === operations
// ======================================================================================================
// An object is read, written, used, or deleted; the rows that it causes, and how long the tier is
// busy with it.

// --- rows
// -----------------------------------------------------------------------------------------------------------

void begin_stage(World *w) { // one that has no operations yet
    w->control.is_staged = 0;
    for (int64_t t = 0; t < w->tiers_count; t++) {
        w->tiers[t].staged = 0;
    }
}

// The stage of one more operation in tier `t`: the next if it runs only `limit` (0: all) of them at
// once.
int64_t in_stage(World *w, int64_t stage, int64_t t, int64_t limit) {
    if (limit > 0) {
        if (w->tiers[t].staged == limit) {
            stage++;
            begin_stage(w);
        }
        w->tiers[t].staged++;
    }
    w->control.is_staged = 1;
    return stage;
}

// A row for each rank's object of one group of layers of `entry`, or each rank that reads it;
// `size` is of all objects.
void emit_layer(World *w, int64_t now, int64_t op, int64_t t, int64_t phase, int64_t entry,
                int64_t size, int64_t request, int64_t stage, int64_t layer) {
    const int64_t ranks = w->knobs.ranks, layers = w->knobs.layers,
                  length = size / (ranks * layers);
    const bool is_shared = op == OP_READ && phase != PHASE_COLLECT && t < w->tiers_count;
    const int64_t added = is_shared ? ranks * w->tiers[t].readers : ranks;
    if (op != OP_DELETE && w->control.populated < w->items_count) {
        phase = PHASE_POPULATE; // what is moved down for it, too
    }
    if (w->control.rows + added > w->rows.ts_ns_count) {
        ensure(w, FLUSH, added);
    }
    // A fleet's link, a tier after all others, is not counted.
    if (w->by_second_count && op != OP_DELETE && phase != PHASE_POPULATE && t < w->tiers_count) {
        int64_t second = now / NS_PER_S,
                at = ((second * w->tiers_count + t) * 2 + (op == OP_WRITE)) * 2;
        if (at >= w->by_second_count) {
            ensure(w, MORE_SECONDS, second + 1);
        }
        w->by_second[at] += length * added;
        w->by_second[at + 1] += added;
    }
    const int64_t first = w->control.rows, end = first + added;
    w->total.last_io_ns = now;
    if (w->knobs.is_counted_alone) {
        w->control.rows = end;
        return;
    }
    const RowColumns rows =
        w->rows; // a copy: rows of single bytes could be anything of the world, to the compiler
    int64_t number = number_of(w, entry);
    if (op == OP_READ && w->knobs.bucketed & (1 << t)) {
        const Member *member =
            &w->members[w->slots[entry].place > 0 ? entry : member_of(w, t, entry)];
        number = w->slots[member->bucket].object;
        for (int64_t i = first; i < end; i++) {
            w->row_offsets[i] = member->offset;
        }
    }
    w->control.rows = end;
    if (w->fleet.count > 1) {
        for (int64_t i = first; i < end; i++) {
            w->fleet.row_nodes[i] = (int32_t)w->control.node;
        }
    }
    for (int64_t rank = 0; rank < added; rank++) {
        int64_t i = first + rank;
        rows.ts_ns[i] = now;
        rows.op[i] = (int8_t)op;
        rows.tier[i] = (int8_t)t;
        rows.phase[i] = (int8_t)phase;
        rows.object_id[i] = (number * ranks + (rank < ranks ? rank : 0)) * layers + layer;
        rows.length_bytes[i] = length;
        rows.request_id[i] = request;
        rows.stage[i] = (int32_t)(request == NONE ? NONE : stage);
        rows.rank[i] = (int16_t)rank;
    }
}

// A row for each object of an entry or a slot; request NONE is background work.
void emit(World *w, int64_t now, int64_t op, int64_t t, int64_t phase, int64_t entry, int64_t size,
          int64_t request, int64_t stage) {
    for (int64_t layer = 0, layers = w->knobs.layers; layer < layers; layer++) {
        emit_layer(w, now, op, t, phase, entry, size, request, stage, layer);
    }
}

// --- the service model
// ----------------------------------------------------------------------------------------------
//
// Each direction is one first-come server. An operation occupies it for its bytes over the rate, or
// for its share of the latency if at most so many run at once; it is done a latency later. Without
// a rate, no time.

// When an operation that is due now is done; `op` is OP_READ or OP_WRITE.
int64_t serve(World *w, int64_t t, int64_t op, int64_t size, int64_t now) {
    Tier *tier = &w->tiers[t];
    if (tier->rate[op] <= 0) {
        return now;
    }
    int64_t transfer = transfer_ns(size, tier->rate[op]);
    if (tier->concurrency > 0) {
        transfer = max_of(transfer, tier->latency_ns / tier->concurrency);
    }
    tier->busy_ns[op] = max_of(tier->busy_ns[op], now) + transfer;
    return tier->busy_ns[op] + tier->latency_ns;
}

// As serve of a read, but after those reads of the request that must end first, if only so many run
// at once.
int64_t serve_in_turn(World *w, int64_t t, int64_t size, int64_t now) {
    Tier *tier = &w->tiers[t];
    size *= tier->readers;
    int64_t done = serve(w, t, OP_READ, size, now);
    if (tier->request_reads <= 0 || tier->rate[OP_READ] <= 0) {
        return done;
    }
    if (tier->reading == tier->request_reads) {
        tier->reading = 0, tier->reads_began_ns = tier->reads_end_ns;
    }
    tier->reading++;
    done = max_of(done,
                  tier->reads_began_ns + transfer_ns(size, tier->rate[OP_READ]) + tier->latency_ns);
    tier->reads_end_ns = max_of(tier->reads_end_ns, done);
    return done;
}

// --- uses
// -----------------------------------------------------------------------------------------------------------

void pin(World *w, int64_t entry,
         int64_t until_ns) { // its object is in flight until then, if any tier asks
    if (!w->pins_count || entry < 0) {
        return;
    }
    int64_t slot = member_of(w, w->knobs.whole, entry);
    if (slot != NONE) {
        w->pins[slot].until_ns = max_of(w->pins[slot].until_ns, until_ns);
    }
}

static void stamp(World *w, int64_t slot) {
    if (!w->knobs.keeps_age) {
        return;
    }
    w->ages[slot] = ++w->control.uses;
    if (!w->fleet.scoped) {
        return;
    }
    int64_t copy = w->fleet.copies[slot].node_copy;
    if (copy != NONE) {
        w->ages[copy] = w->control.uses;
    }
}

// Let the object `chain[i]`, once it is used in tier `t`, be less recent than those before it, if
// that is so.
void follow(World *w, int64_t t, int64_t i) {
    if (w->tiers[t].recency == TAIL_FIRST) {
        trail(w, t, i, 0, 0);
    }
}

// Let `chain[i]`, once it is used in tier `t`, be less recent than the last one before it from
// `first` on; of those, with a `mark`, that have it in `where`. If there is none it will be the
// most recent.
void trail(World *w, int64_t t, int64_t i, int64_t first, int64_t mark) {
    if (is_endless(w, t)) {
        return;
    }
    int64_t k = i - 1;
    while (k >= first && ((mark && w->where[k] != mark) || w->chain[k] == w->chain[i] ||
                          !(live_in(w, w->chain[k]) & (1 << t)))) {
        k--;
    }
    w->tiers[t].behind = k < first ? 0 : 1 + member_of(w, t, w->chain[k]);
}

void touch(World *w, int64_t t, int64_t entry) { // its object, which is live in tier `t`, was used
    if (!is_endless(w, t)) {
        int64_t slot = member_of(w, t, entry);
        if (w->knobs.bucketed & (1 << t) && w->tiers[t].collect_share == 0) {
            slot = w->members[slot].bucket;
        }
        if (w->tiers[t].recency != AT_END || w->tiers[t].on_hit) {
            on_hit(w, t, slot); // else in use_backwards
        }
        if (w->knobs.filtered & (1 << t)) {
            refer(w, t, entry);
        }
    }
    if (entry >= 0) {
        stamp(w, entry);
    }
}

// --- operations
// -----------------------------------------------------------------------------------------------------

// Read the whole of `slot`; return when it is done. Whether that makes it recent is the caller's.
int64_t read_slot(World *w, int64_t t, int64_t slot, int64_t now, int64_t phase, int64_t request,
                  int64_t stage) {
    int64_t size = w->slots[slot].size, read_bytes = size * w->tiers[t].readers;
    w->tiers[t].read_bytes += read_bytes;
    emit(w, now, OP_READ, t, phase, slot, size, request, stage);
    int64_t done = serve(w, t, OP_READ, read_bytes, now);
    pin(w, slot, done);
    return done;
}

void write_slot(World *w, int64_t t, int64_t slot, int64_t now, int64_t phase, int64_t request,
                int64_t stage) {
    Tier *tier = &w->tiers[t]; // which has room
    int64_t member = slot;
    if (w->fleet.scoped & (1 << t)) {
        member = own(w, t, slot);
        w->slots[member].live |= 1 << t;
    }
    Slot *what = &w->slots[slot];
    if (t == 0 && w->actors[w->control.actor].held_bytes) {
        hold(w, w->control.actor, member);
    }
    if (!is_endless(w, t)) {
        on_insert(w, t, member, now);
    }
    if (phase != PHASE_DEMOTE) {
        stamp(w, slot);
    }
    what->live |= 1 << t;
    tier->live_bytes += what->size;
    tier->written_bytes += what->size;
    if (tier->evict_every_ns > 0 && tier->poll_ns == 0 && tier->live_bytes >= tier->trigger) {
        tier->poll_ns = (now / tier->evict_every_ns + 1) * tier->evict_every_ns;
    }
    pin(w, slot, serve(w, t, OP_WRITE, what->size, now));
    emit(w, now, OP_WRITE, t, phase, slot, what->size, request, stage);
    loosen(w, slot);
}

// Delete `slot` from tier `t`; a slot that lives nowhere and that nobody can ask for becomes free.
void drop(World *w, int64_t t, int64_t slot, int64_t now, int64_t phase) {
    Tier *tier = &w->tiers[t];
    Slot *what = &w->slots[slot];
    int64_t member = member_of(w, t, slot);
    if (!is_endless(w, t)) {
        on_remove(w, t, member, phase != PHASE_PROMOTE && phase != PHASE_LOSE);
    }
    if (t == 0 &&
        w->slots[member].runners) { // it had to go all the same: from now on each has it by itself
        Slot *its = &w->slots[member];
        w->fleet.nodes[w->control.node].held_bytes += (its->runners - 1) * its->size;
        its->runners = 0, its->came++;
    }
    if (member != slot) {
        w->slots[member].live &= ~(1 << t);
        loosen(w, member);
    }
    if (tier->is_whole) {
        w->pins[member].offer = 0; // what writes it again is another offer, or none
    }
    what->live &= ~(1 << t);
    tier->live_bytes -= what->size;
    tier->deleted_bytes += what->size;
    emit(w, now, OP_DELETE, t, phase, slot, what->size, NONE, NONE);
    if (what->held) {
        loosen(w, slot);
    } else {
        release(w, slot);
    }
}

// The fastest tier, from `t` on, in which the object of `entry` is found, or NONE.
int64_t fastest_from(World *w, int64_t entry, int64_t t) {
    int64_t live = found_in(w, entry) >> t;
    return live ? t + __builtin_ctzll((uint64_t)live) : NONE;
}

// === eviction
// ========================================================================================================
// How a tier makes room for what it takes: by deleting what its policy gives up, or by moving it
// down; when it must, or at times.

// --- offers: what is stored together finds room together, or is refused together, as some engines
// do it --------------
//
// What is in flight makes no room: what the offer before stored, and what is still being read or
// written.

static bool is_held(World *w, int64_t slot, int64_t mine, int64_t previous, int64_t now) {
    const Pin *its = &w->pins[slot];
    return its->seen == mine || (previous != 0 && its->offer == previous) || its->until_ns > now;
}

// Delete what tier `t`, which evicts by LRU, used least recently, down to its low mark, if `need`
// bytes do not fit; false if it cannot.
static bool frees(World *w, int64_t t, int64_t need, int64_t mine, int64_t previous, int64_t now) {
    const Tier *tier = &w->tiers[t];
    int64_t missing = tier->live_bytes + need - tier->limit;
    if (missing <= 0) {
        return true;
    }
    int64_t slot = victim(w, t, NONE);
    for (; slot != NONE && missing > 0; slot = link_of(w, t, slot)->newer) {
        if (!is_held(w, slot, mine, previous, now)) {
            missing -= w->slots[slot].size;
        }
    }
    if (missing > 0) {
        return false;
    }
    slot = queue_of(w, t, 0)->tail;
    while (slot != NONE && tier->live_bytes + need > tier->low) {
        int64_t newer = link_of(w, t, slot)->newer;
        if (!is_held(w, slot, mine, previous, now)) {
            drop(w, t, object_of(w, t, slot), now, PHASE_EVICT);
        }
        slot = newer;
    }
    return true;
}

// Make room in tier `t` for all of `chain[first:n]` that is not in it; return false, and change
// nothing, if not. `previous` is the number of the offer whose objects are still in flight, or 0.
bool takes_offer(World *w, int64_t t, int64_t first, int64_t n, int64_t previous, int64_t now) {
    int64_t mine = ++w->control.offers, need = 0, known = 0;
    const Tier *tier = &w->tiers[t];
    for (int64_t i = first; i < n; i++) {
        int64_t slot = w->chain[i];
        int64_t incoming = incoming_of(w, t, slot);
        Pin *its = &w->pins[incoming];
        const Slot *what = &w->slots[slot];
        if (its->seen == mine) {
            continue; // twice in the prompt
        }
        // What is there already keeps its place, but only this time: it is not in flight with the
        // next offer.
        its->seen = mine;
        known += what->live >> t & 1;
        if (!(what->live & (1 << t)) && what->size <= tier->largest) {
            its->offer = mine;
            need += what->size;
        }
    }
    if (tier->takes && !tier->takes(w, t, known, tier->live_bytes + need > tier->limit)) {
        return false;
    }
    return frees(w, t, need, mine, previous, now);
}

// --- room
// -----------------------------------------------------------------------------------------------------------

// Delete from tier `t` what its policy says, down to its low mark, if `slot` does not fit. False if
// it takes no such object, or is full and makes room only at times. (What makes just enough at once
// goes down to the mark at these times.)
bool make_room(World *w, int64_t t, int64_t slot, int64_t now) {
    const Tier *tier = &w->tiers[t];
    int64_t size = w->slots[slot].size;
    if (size > tier->largest) {
        return false;
    }
    if (tier->is_whole) {
        bool is_up = tier->takes &&
                     w->pins[incoming_of(w, t, slot)].offer != w->control.offers; // from below
        return (!is_up || tier->takes(w, t, 0, !has_room(w, t, size))) &&
               frees(w, t, size, UNBOUNDED, 0, now);
    }
    if (has_room(w, t, size)) {
        return true;
    }
    if (tier->evict_every_ns > 0 && !tier->fits_at_once) {
        return false;
    }
    int64_t incoming = incoming_of(w, t, slot), most = tier->fits_at_once ? tier->limit : tier->low;
    while (tier->live_bytes > 0 && tier->live_bytes + size > most) {
        evict(w, t, victim(w, t, incoming), now);
    }
    return true;
}

int64_t lower_tier(World *w, int64_t t,
                   int64_t size) { // the fastest from `t` down that takes it, or NONE
    while (t < w->tiers_count && size > w->tiers[t].largest) {
        t++;
    }
    return t < w->tiers_count ? t : NONE;
}

// Move what the policy of tier `t` gives up down until `slot` fits, or delete it.
//
// What fits nowhere lower, is live in the tier below already, or is not admitted there, is deleted.
// A tier below may have to make room first.
void make_room_by_demotion(World *w, int64_t t, int64_t slot, int64_t now) {
    while (!has_room(w, t, w->slots[slot].size)) {
        int64_t leaving = object_of(w, t, victim(w, t, incoming_of(w, t, slot)));
        int64_t lower = lower_tier(w, t + 1, w->slots[leaving].size);
        bool is_there = lower != NONE && w->slots[leaving].live & (1 << lower);
        if (lower != NONE && (is_there || !admits(w, lower, leaving, now))) {
            lower = NONE;
        }
        if (lower != NONE) {
            make_room_by_demotion(w, lower, leaving, now);
            read_slot(w, t, leaving, now, PHASE_DEMOTE, NONE, NONE);
            write_slot(w, lower, leaving, now, PHASE_DEMOTE, NONE, NONE);
            if (w->knobs.keeps_age) {
                settle(w, lower, member_of(w, lower, leaving));
            }
        }
        drop(w, t, leaving, now, lower == NONE ? PHASE_EVICT : PHASE_DEMOTE);
    }
}

// Whether it holds so much that it makes room when it is time, and the bytes of what it gives up
// next.
static bool is_filled(const Tier *tier) {
    return tier->live_bytes > 0 && tier->live_bytes >= tier->trigger;
}

static int64_t next_bytes(World *w, int64_t t) {
    return w->slots[victim(w, t, NONE)].size;
}

// Let tier `t`, which makes room only at times, give one object up, now that it is such a time, or
// end. These times are the multiples of its interval; it makes room if it is filled to its trigger
// then.
void poll_tier(World *w, int64_t t) {
    Tier *tier = &w->tiers[t];
    if (tier->goal == NONE) {
        tier->goal = tier->low;
        if (!is_filled(tier)) {
            tier->goal = tier->live_bytes;
        } else if (tier->evict_ppm > 0) {
            tier->goal = tier->live_bytes -
                         max_of((int64_t)((__int128)tier->live_bytes * tier->evict_ppm / MILLION),
                                next_bytes(w, t));
        }
    }
    if (tier->live_bytes > tier->goal &&
        (tier->evict_ppm == 0 || tier->live_bytes - next_bytes(w, t) >= tier->goal)) {
        evict(w, t, victim(w, t, NONE), tier->poll_ns);
        return;
    }
    tier->goal = NONE;
    tier->poll_ns = is_filled(tier) ? tier->poll_ns + tier->evict_every_ns : 0;
}
