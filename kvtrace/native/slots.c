// The slots of objects: taken when an object is named, given back when nobody can ask for it any more.
//
// In a fleet an object's slot is of what all nodes share; what a node or a rack has is a copy with a slot of its own.
// The object's slot then says where the object is live as the node at hand sees it, once that has looked (`see`).
#include "sim.h"

#include <string.h>

// --- copies, by the place that has them -----------------------------------------------------------------------------
//
// A hash table, and a list of each object's copies. The table has one entry a copy, and stays half empty. Objects are
// numbered as they are named, so that those of one prompt follow each other: sixteen that do share a line of the table,
// and one miss of the processor's cache finds all. Each of the sixteen columns is a table of its own in which what
// finds its line taken goes to the next.

static int64_t lines_of(const World *w) { return w->fleet.places_count / COPY_COLUMNS; }     // a power of two

// In which of so many lines object `number` at `place` is looked for first. Shifts are of signed numbers.
static int64_t line_of(int64_t lines, int64_t number, int64_t place) {
    int64_t x = (int64_t)((uint64_t)(number >> 4) * 0x1E3779B97F4A7C15u + (uint64_t)place * 0x51B54A32D192ED03u);
    x ^= x >> 29;
    x = (int64_t)((uint64_t)x * 0x3F58476D1CE4E5B9u);
    x ^= x >> 32;
    return x & (lines - 1);
}

static int64_t find_copy(World *w, int64_t number, int64_t place) {    // its slot, or NONE
    const int32_t *column = w->fleet.places + (number & 15);
    int64_t lines = lines_of(w), line = line_of(lines, number, place), slot;
    for (; (slot = column[line * COPY_COLUMNS]) != NONE; line = (line + 1) & (lines - 1))
        if (w->slots[slot].object == number && w->slots[slot].place == place) return slot;
    return NONE;
}

// A column stays half empty, however unevenly objects are numbered: a full one would be gone through for ever.
static void put_copy(World *w, int64_t slot) {
    const Slot *what = &w->slots[slot];
    int64_t *copies = &w->fleet.column_copies[what->object & 15];
    if (2 * (*copies + 1) > lines_of(w)) {
        ensure(w, MORE_PLACES, 1);
        if (find_copy(w, what->object, what->place) == slot) return;    // all were entered again, this one, too
    }
    ++*copies;
    int32_t *column = w->fleet.places + (what->object & 15);
    int64_t lines = lines_of(w), line = line_of(lines, what->object, what->place);
    while (column[line * COPY_COLUMNS] != NONE) line = (line + 1) & (lines - 1);
    column[line * COPY_COLUMNS] = (int32_t)slot;
}

// Take a copy's slot out of the table; those behind it that it kept from their line move up.
static void take_copy(World *w, int64_t slot) {
    const Slot *what = &w->slots[slot];
    int32_t *column = w->fleet.places + (what->object & 15);
    int64_t lines = lines_of(w), line = line_of(lines, what->object, what->place), other;
    while (column[line * COPY_COLUMNS] != slot) line = (line + 1) & (lines - 1);
    w->fleet.column_copies[what->object & 15]--;
    int64_t empty = line;
    while (line = (line + 1) & (lines - 1), (other = column[line * COPY_COLUMNS]) != NONE) {
        int64_t first = line_of(lines, w->slots[other].object, w->slots[other].place);
        if (((line - first) & (lines - 1)) < ((line - empty) & (lines - 1))) continue;
        column[empty * COPY_COLUMNS] = (int32_t)other;
        empty = line;
    }
    column[empty * COPY_COLUMNS] = NONE;
}

static void add_copy(World *w, int64_t slot) {     // of the object whose own slot is its home
    Copy *copies = w->fleet.copies, *mine = &copies[slot], *home = &copies[w->slots[slot].home];
    mine->newer = NONE, mine->older = home->first;
    if (home->first != NONE) copies[home->first].newer = (int32_t)slot;
    home->first = (int32_t)slot;
    put_copy(w, slot);
}

static void remove_copy(World *w, int64_t slot) {
    Copy *copies = w->fleet.copies, *home = &copies[w->slots[slot].home];
    int32_t newer = copies[slot].newer, older = copies[slot].older;
    if (newer == NONE) home->first = older;
    else copies[newer].older = older;
    if (older != NONE) copies[older].newer = newer;
    if (home->node_copy == slot) home->node_copy = NONE;
    if (home->rack_copy == slot) home->rack_copy = NONE;
    take_copy(w, slot);
}

EXPORT void enter_all(World *w) {   // put all copies into an empty table, which is larger than the one before
    memset(w->fleet.column_copies, 0, sizeof w->fleet.column_copies);
    for (int64_t slot = 0; slot < w->slots_count; slot++)
        if (w->slots[slot].place > 0) put_copy(w, slot);
}

int64_t place_of(World *w, int64_t t) {     // whose tier `t` is at hand: 1 + a node, or racks after all nodes
    const Fleet *fleet = &w->fleet;
    int64_t node = w->control.node;
    return 1 + (fleet->racked & (1 << t) ? fleet->count + node / fleet->rack_nodes : node);
}

// --- slots ----------------------------------------------------------------------------------------------------------

static void give_back(World *w, int64_t slot) { w->free[w->control.free++] = (int32_t)slot; }

void renew(World *w, int64_t slot) {    // forget what was in flight, and copied, of the object that it held before
    if (w->pins_count) w->pins[slot] = (Pin){0, 0, 0};
    if (!w->fleet.scoped) return;
    Copy *copy = &w->fleet.copies[slot];
    copy->node_copy = copy->rack_copy = copy->first = NONE;
}

int64_t take_slot(World *w) {
    if (!w->control.free) ensure(w, MORE_SLOTS, 1);
    return w->free[--w->control.free];
}

// A copy of `slot` at `place`, which has none.
static int64_t make_copy(World *w, int64_t slot, int64_t place) {
    int64_t copy = take_slot(w);
    Slot *what = &w->slots[copy];
    const Slot *of = &w->slots[slot];
    what->object = of->object, what->size = of->size, what->home = slot, what->place = (int16_t)place;
    what->held = what->live = 0, what->seen = 0;
    renew(w, copy);
    if (w->knobs.keeps_age) w->ages[copy] = w->ages[slot];
    add_copy(w, copy);
    return copy;
}

static void see_slot(World *w, int64_t slot) {
    const Fleet *fleet = &w->fleet;
    Slot *what = &w->slots[slot];
    Copy *copy = &fleet->copies[slot];
    int64_t live = what->live & ~fleet->scoped, node = 1 + w->control.node, first = copy->first;
    copy->node_copy = copy->rack_copy = NONE;
    if (first != NONE) {    // most have one copy: no need to look that up
        copy->node_copy = (int32_t)(w->slots[first].place == node ? first : find_copy(w, what->object, node));
        if (copy->node_copy != NONE) live |= w->slots[copy->node_copy].live;
        if (fleet->racked) {
            int64_t rack = fleet->count + w->control.node / fleet->rack_nodes;
            copy->rack_copy = (int32_t)find_copy(w, what->object, 1 + rack);
            if (copy->rack_copy != NONE) live |= w->slots[copy->rack_copy].live;
        }
    }
    what->live = (int16_t)live;
}

int64_t give_slot(World *w, int64_t home) {     // of the object that contexts[home] stands for; taken if it has none
    int64_t entry = w->contexts[home];
    if (entry >= 0) return entry;
    int64_t known = packed(entry), live = known & ((1 << LIVE_BITS) - 1), slot = take_slot(w);
    Slot *what = &w->slots[slot];
    what->object = known >> PACKED_BITS, what->size = w->knobs.chunk_bytes, what->home = home, what->held = 1;
    what->live = (int16_t)(live & ~w->fleet.scoped), what->seen = known >> LIVE_BITS & 1;
    renew(w, slot);
    w->contexts[home] = slot;
    if (place_in(entry)) {
        int64_t copy = make_copy(w, slot, place_in(entry));     // tables may move
        w->slots[copy].live = (int16_t)(live & w->fleet.scoped);
        see_slot(w, slot);
    }
    return slot;
}

void see(World *w, int64_t entry) {     // let the slot of its object say where it is live for the node at hand
    if (w->fleet.scoped && entry >= 0) see_slot(w, entry);
}

void see_all(World *w, int64_t n) {
    if (!w->fleet.scoped) return;
    for (int64_t i = 0; i < n; i++)
        if (w->chain[i] >= 0) see_slot(w, w->chain[i]);
}

int64_t object_of(World *w, int64_t t, int64_t member) {    // the object's own slot of what tier `t` lists
    if (!(w->fleet.scoped & (1 << t))) return member;
    int64_t slot = w->slots[member].home;
    see_slot(w, slot);
    return slot;
}

int64_t incoming_of(World *w, int64_t t, int64_t slot) {    // what will stand for it in tier `t`, to which it comes
    return w->fleet.scoped & (1 << t) ? own(w, t, slot) : slot;
}

// The copy of `slot` at the place of tier `t`, made if there is none; if it stays unused it goes again.
int64_t own(World *w, int64_t t, int64_t slot) {
    int64_t copy = member_of(w, t, slot);
    if (copy != NONE) return copy;
    copy = make_copy(w, slot, place_of(w, t));
    if (w->fleet.racked & (1 << t)) w->fleet.copies[slot].rack_copy = (int32_t)copy;
    else w->fleet.copies[slot].node_copy = (int32_t)copy;
    loosen(w, copy);
    return copy;
}

static bool is_needed(World *w, int64_t slot) {     // a tier that may give it up has its object, or there is a copy
    int64_t live = w->slots[slot].live & ~w->knobs.endless & ~w->fleet.scoped;
    return live || (w->fleet.scoped && w->fleet.copies[slot].first != NONE);
}

// The only copy of `slot`, if nothing has its object but tiers of that place that delete nothing; else NONE.
static int64_t lone_copy(World *w, int64_t slot) {
    if (!w->fleet.scoped || w->slots[slot].live & ~w->knobs.endless & ~w->fleet.scoped) return NONE;
    int64_t copy = w->fleet.copies[slot].first;
    if (copy == NONE || w->fleet.copies[copy].older != NONE) return NONE;
    const Slot *what = &w->slots[copy];
    return what->live && !(what->live & ~w->knobs.endless) && !what->held && !what->is_loose ? copy : NONE;
}

// Whether the object of `slot` needs none: its entry in World.contexts can hold all that is known of it.
static bool is_packable(World *w, int64_t slot) {
    return w->knobs.is_packed && (!is_needed(w, slot) || lone_copy(w, slot) != NONE);
}

// Note that `slot` may be needed no more, if so: others may still look at it in this step.
void loosen(World *w, int64_t slot) {
    Slot *what = &w->slots[slot];
    if (what->is_loose || (what->place <= 0 && !is_packable(w, slot))) return;
    what->is_loose = 1;
    w->loose[w->control.loose++] = (int32_t)slot;
}

static void discard(World *w, int64_t slot) {   // give back the slot of a copy
    const Fleet *fleet = &w->fleet;
    remove_copy(w, slot);
    if (w->notes_count) {   // what a policy remembers is in the lists of the copy's own place
        int64_t here = w->control.node, place = w->slots[slot].place - 1;
        move(w, place < fleet->count ? place : (place - fleet->count) * fleet->rack_nodes);
        forget(w, slot);
        move(w, here);
    }
    w->slots[slot].live = w->slots[slot].place = 0;
    give_back(w, slot);
}

// Take the slots of those objects that need none: what an entry can hold is all that is known of them.
void pack(World *w) {
    while (w->control.loose > 0) {
        int64_t slot = w->loose[--w->control.loose];
        Slot *what = &w->slots[slot];
        what->is_loose = 0;
        if (what->place > 0) {
            int64_t home = what->home;
            bool is_used = what->live || what->held;
            if (w->knobs.keeps_ghosts && (is_used || w->slots[home].held)) continue;    // a policy may remember it
            if (!is_used) discard(w, slot);
            if (w->slots[home].held) loosen(w, home);
            else release(w, home);
        } else if (what->held && what->home != NONE && is_packable(w, slot)) {
            int64_t copy = lone_copy(w, slot), live = what->live & ~w->fleet.scoped, place = 0;
            if (copy != NONE) {
                live |= w->slots[copy].live, place = w->slots[copy].place;
                discard(w, copy);
            }
            int64_t known = what->object << PACKED_BITS | place << PLACE_SHIFT | (int64_t)what->seen << LIVE_BITS | live;
            w->contexts[what->home] = packed(known);
            what->held = what->live = 0;
            give_back(w, slot);
        }
    }
}

// Give back, if it may be, what a tier listed and gives up together with others: an object's slot or a copy.
void let_go(World *w, int64_t member) {
    if (w->slots[member].place > 0) loosen(w, member);
    else release(w, member);
}

// Give `slot` back if nobody holds it and no tier will ever need it again; no tier then remembers it.
//
// A tier that never gives anything up does not need what nobody can ask for: so memory does not grow with it.
void release(World *w, int64_t slot) {
    Slot *what = &w->slots[slot];
    if (what->held) return;
    if (w->fleet.scoped) {
        // What one place may still give up may go to another that never does: until then, that is known to have it.
        const Copy *copies = w->fleet.copies;
        int64_t copy = copies[slot].first;
        while (copy != NONE && !(w->slots[copy].live & ~w->knobs.endless) && !w->slots[copy].held)
            copy = copies[copy].older;
        copy = copy == NONE ? copies[slot].first : NONE;
        while (copy != NONE) {
            int64_t older = copies[copy].older;
            if (!w->slots[copy].is_loose) discard(w, copy);
            copy = older;
        }
    }
    if (is_needed(w, slot)) return;
    what->live = 0;
    if (w->notes_count) forget(w, slot);
    give_back(w, slot);
}
