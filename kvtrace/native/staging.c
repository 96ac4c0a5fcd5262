// What a tier does besides serving a request's reads and writes: what is due at a time (expiry,
// eviction rounds, the store queue), and the buckets that objects are written in together.
#include "sim.h"

// === buckets
// =========================================================================================================
// Buckets: objects that a tier writes together as one file, reads by offset, and deletes together.
// And what leaves a tier: an object, a bucket with all that is in it, or what is dead of a bucket,
// by collecting the rest.
//
// A bucket has a slot of its own, which stands for it in the lists of its tier's policy; its
// members are live in the tier but in none of its lists, unless buckets are collected: then it is
// they that are in the lists. Beside it is a small file that says what it holds. Each rank, and
// each group of layers (together: parts), has a bucket of its own: they differ in nothing but their
// numbers.
//
// A bucket that is collected keeps its slot and gets a number of its own: what lives in it is read,
// the bucket deleted, and what was read written again, in the order in which it lay.

// --- rows and numbers
// -----------------------------------------------------------------------------------------------

static int64_t bytes_in_bucket(World *w, int64_t t,
                               int64_t slot) { // its own and what stands before it; all parts
    return w->slots[slot].size + w->knobs.ranks * w->knobs.layers * w->tiers[t].bucket_key_bytes;
}

// What an object adds to a bucket and to its file beside, of all parts, but for its own bytes.
static int64_t bytes_beside(World *w, int64_t t) {
    const Tier *tier = &w->tiers[t];
    return w->knobs.ranks * w->knobs.layers * (tier->bucket_key_bytes + tier->bucket_meta_bytes);
}

static void name(World *w,
                 int64_t size) { // gives the next number to a bucket, or the file beside one
    Control *control = &w->control;
    if (control->made == w->made_size_count) {
        ensure(w, FLUSH, 1);
    }
    w->made_size[control->made] = size, w->made_kind[control->made] = 1;
    control->made++;
    control->next_object++;
}

// Rows for a bucket, and for the file beside it if it has one.
static void emit_both(World *w, int64_t now, int64_t op, int64_t t, int64_t phase, int64_t slot) {
    int64_t size = w->members[slot].offset, meta = w->slots[slot].size - size;
    emit(w, now, op, t, phase, slot, size, NONE, NONE);
    if (meta) {
        emit(w, now, op, t, phase, packed((w->slots[slot].object + 1) << PACKED_BITS), meta, NONE,
             NONE);
    }
}

static void delete_bucket(World *w, int64_t t, int64_t slot, int64_t now,
                          int64_t phase) { // its slot stays
    w->tiers[t].live_bytes -= w->slots[slot].size;
    w->tiers[t].deleted_bytes += w->slots[slot].size;
    emit_both(w, now, OP_DELETE, t, phase, slot);
}

static void free_bucket(World *w, int64_t slot) {
    w->slots[slot].held = w->slots[slot].live = 0;
    release(w, slot);
}

// --- writing
// --------------------------------------------------------------------------------------------------------

// Write `count` objects from `chain[first]` on as the bucket `slot`, which gets the next number.
static void fill(World *w, int64_t t, int64_t slot, int64_t first, int64_t count, int64_t now,
                 int64_t phase) {
    Tier *tier = &w->tiers[t];
    Slot *what = &w->slots[slot];
    Member *members = w->members;
    int64_t parts = w->knobs.ranks * w->knobs.layers, offset = 0, whole = 0;
    members[slot].older = NONE;
    for (int64_t i = first; i < first + count; i++) {
        int64_t member = w->chain[i], last = members[slot].older;
        offset += tier->bucket_key_bytes;
        members[member] = (Member){.bucket = slot, .offset = offset, .older = last, .newer = NONE};
        if (last != NONE) {
            members[last].newer = member;
        }
        members[slot].older = member;
        w->slots[member].live |= 1 << t;
        offset += w->slots[member].size / parts;
        whole += bytes_in_bucket(w, t, member);
    }
    int64_t meta = parts * count * tier->bucket_meta_bytes;
    members[slot].bucket = members[slot].offset = whole;
    what->object = w->control.next_object, what->size = whole + meta,
    what->live = (int16_t)(1 << t);
    name(w, whole);
    if (meta) {
        name(w, meta);
    }
    tier->live_bytes += what->size;
    tier->written_bytes += what->size;
    serve(w, t, OP_WRITE, what->size, now);
    emit_both(w, now, OP_WRITE, t, phase, slot);
}

// Write the `count` objects from `chain[first]` on as a bucket of tier `t`; false if it takes none
// so large.
static bool write_bucket(World *w, int64_t t, int64_t first, int64_t count, int64_t now) {
    int64_t size = 0;
    for (int64_t i = first; i < first + count; i++) {
        size += w->slots[w->chain[i]].size + bytes_beside(w, t);
    }
    int64_t slot = take_slot(w, w->control.next_object, size, NONE, 0);
    if (!make_room(w, t, slot, now)) {
        free_bucket(w, slot);
        return false;
    }
    fill(w, t, slot, first, count, now, PHASE_STORE);
    if (is_endless(w, t)) {
        return true;
    }
    if (w->tiers[t].collect_share > 0) {
        for (int64_t i = first; i < first + count; i++) {
            on_insert(w, t, w->chain[i], now);
        }
    } else {
        on_insert(w, t, slot, now);
    }
    return true;
}

// --- collecting
// -----------------------------------------------------------------------------------------------------

// Write what lives of a bucket as one of its own, in its slot, or free the slot if nothing does.
static void collect_bucket(World *w, int64_t t, int64_t bucket, int64_t now) {
    // The end of `chain` is free: what is to be stored lies at its start.
    int64_t end = w->chain_count, first = end;
    for (int64_t member = w->members[bucket].older; member != NONE;
         member = w->members[member].older) {
        w->chain[--first] = member;
    }
    for (int64_t i = first; i < end; i++) {
        int64_t size = w->slots[w->chain[i]].size;
        w->tiers[t].read_bytes += size;
        emit(w, now, OP_READ, t, PHASE_COLLECT, w->chain[i], size, NONE, NONE);
        serve(w, t, OP_READ, size, now);
    }
    delete_bucket(w, t, bucket, now, PHASE_EVICT);
    if (first == end) {
        free_bucket(w, bucket);
        return;
    }
    fill(w, t, bucket, first, end - first, now, PHASE_COLLECT);
    w->tiers[t].collected_bytes += w->slots[bucket].size;
}

// Let the object `slot` be dead in its bucket, which is collected if too little of it still lives.
static void give_up(World *w, int64_t t, int64_t slot, int64_t now) {
    Member *members = w->members;
    int64_t bucket = members[slot].bucket, older = members[slot].older, newer = members[slot].newer;
    members[newer == NONE ? bucket : newer].older = older;
    if (older != NONE) {
        members[older].newer = newer;
    }
    members[bucket].bucket -= bytes_in_bucket(w, t, slot);
    w->slots[slot].live &= ~(1 << t);
    let_go(w, slot);
    if ((double)members[bucket].bucket <
        w->tiers[t].collect_share * (double)members[bucket].offset) {
        collect_bucket(w, t, bucket, now);
    }
}

// Make room in tier `t` for a bucket of `size` bytes by collecting others.
static void collect_for(World *w, int64_t t, int64_t size, int64_t now) {
    Tier *tier = &w->tiers[t];
    if (size > tier->largest) {
        return;
    }
    if (tier->goal == NONE && tier->live_bytes > 0 && tier->live_bytes + size > tier->limit) {
        tier->goal = tier->low;
    }
    while (tier->goal != NONE && tier->live_bytes > 0 && tier->live_bytes + size > tier->goal) {
        evict(w, t, victim(w, t, NONE), now);
    }
    tier->goal = NONE;
}

// --- leaving
// --------------------------------------------------------------------------------------------------------

// Delete the bucket `slot` from tier `t` with all that is in it.
static void remove_bucket(World *w, int64_t t, int64_t slot, int64_t now, int64_t phase) {
    bool is_by_object = w->tiers[t].collect_share > 0;
    if (!is_by_object) {
        on_remove(w, t, slot, phase == PHASE_EVICT);
    }
    for (int64_t member = w->members[slot].older, older; member != NONE; member = older) {
        older = w->members[member].older;
        if (is_by_object) {
            on_remove(w, t, member, 0);
        }
        w->slots[member].live &= ~(1 << t);
        let_go(w, member);
    }
    delete_bucket(w, t, slot, now, phase);
    free_bucket(w, slot);
}

// Delete from tier `t` what its policy gave up: an object, or a bucket with all that is in it.
void evict(World *w, int64_t t, int64_t slot, int64_t now) {
    if (!(w->knobs.bucketed & (1 << t))) {
        drop(w, t, object_of(w, t, slot), now, PHASE_EVICT);
    } else if (w->tiers[t].collect_share > 0) {
        on_remove(w, t, slot, 1);
        give_up(w, t, slot, now);
    } else {
        remove_bucket(w, t, slot, now, PHASE_EVICT);
    }
}

// Delete from tier `t` what it lists as `slot`, as lost: an object, or the whole bucket that it is
// or is in.
void lose(World *w, int64_t t, int64_t slot, int64_t now) {
    if (!(w->knobs.bucketed & (1 << t))) {
        drop(w, t, object_of(w, t, slot), now, PHASE_LOSE);
    } else {
        remove_bucket(w, t, w->tiers[t].collect_share > 0 ? w->members[slot].bucket : slot, now,
                      PHASE_LOSE);
    }
}

// === what is due at a time
// =========================================================================================== What
// tiers do by themselves, each at its time: what expires goes, room is made at times, and what
// waits is stored.
//
// What waits is in a queue, from which the slowest tier takes at each heartbeat, or whenever it is
// free. In a fleet the tiers of other nodes and racks are put away until one of them is due
// (Fleet.due).

// --- when
// -----------------------------------------------------------------------------------------------------------

static int64_t
due_ns(World *w,
       int64_t t) { // when tier `t`, as it is at hand, next does something by itself, or UNBOUNDED
    const Tier *tier = &w->tiers[t];
    int64_t when = expiry_ns(w, t);
    if (tier->poll_ns) {
        when = min_of(when, tier->poll_ns);
    }
    // What it takes from its queue.
    if (w->control.gone & (1 << t)) {
        return when;
    }
    if (tier->heartbeat_ns) {
        return tier->beat_ns ? min_of(when, tier->beat_ns) : when;
    }
    if (!tier->waiting_objects) {
        return when;
    }
    return min_of(when, max_of(tier->busy_ns[OP_WRITE],
                               w->offers[tier->queue_first + tier->queue_head].since));
}

// Note when those of `tiers`, a bit each, that are at hand and put away at `place` next do
// something.
void note_due(World *w, int64_t place, int64_t tiers) {
    int64_t due = UNBOUNDED;
    for (int64_t t = 0; t < w->tiers_count; t++) {
        if (tiers & (1 << t)) {
            due = min_of(due, due_ns(w, t));
        }
    }
    w->fleet.due[place] = due;
}

// --- queues
// ---------------------------------------------------------------------------------------------------------

static Offer *offer_at(World *w, const Tier *tier,
                       int64_t n) { // the n-th of what waits; behind it, the next
    return &w->offers[tier->queue_first + (tier->queue_head + n) % tier->queue_limit];
}

static int64_t part_bytes(World *w, int64_t slot) { // of each object of `slot`
    return w->slots[slot].size / (w->knobs.ranks * w->knobs.layers);
}

static void wait_for(World *w, int64_t t, int64_t slot,
                     int64_t now) { // drops it if the queue of tier `t` is full
    Tier *tier = &w->tiers[t];
    bool is_too_large = tier->bucket_objects && part_bytes(w, slot) > tier->bucket_bytes;
    if (is_too_large || tier->waiting_objects == tier->queue_limit) {
        tier->dropped_objects++;
        tier->dropped_bytes += w->slots[slot].size;
        return;
    }
    *offer_at(w, tier, tier->waiting_objects) = (Offer){slot, now, w->control.node};
    int64_t incoming = incoming_of(w, t, slot);
    w->slots[incoming].held |= 2 << t;
    tier->waiting_objects++;
    if (tier->heartbeat_ns && !tier->beat_ns) {
        tier->beat_ns = (now / tier->heartbeat_ns + 1) * tier->heartbeat_ns;
    }
}

// Whether tier `t` takes `slot` now, and then has room for it; what it takes later waits.
bool takes(World *w, int64_t t, int64_t slot, int64_t now, int64_t phase) {
    bool is_queued = w->knobs.queued & (1 << t);
    int64_t member = is_queued ? member_of(w, t, slot) : NONE;
    bool is_waiting = member != NONE && w->slots[member].held & (2 << t);
    if (w->slots[slot].size > w->tiers[t].largest || is_waiting) {
        return false;
    }
    if (phase != PHASE_POPULATE && !admits(w, t, slot, now)) {
        return false;
    }
    if (is_queued) {
        wait_for(w, t, slot, now);
        return false;
    }
    return make_room(w, t, slot, now);
}

// Take the oldest from the queue of tier `t`; return its slot if the tier above still has it, else
// NONE. That is the tier above of the node that offered it, which is then at hand.
int64_t take_first(World *w, int64_t t) {
    Tier *tier = &w->tiers[t];
    const Offer *offer = &w->offers[tier->queue_first + tier->queue_head];
    int64_t slot = offer->slot;
    tier->queue_head = (tier->queue_head + 1) % tier->queue_limit;
    tier->waiting_objects--;
    move(w, offer->node);
    see(w, slot);
    const Slot *what = &w->slots[slot];
    int64_t member = member_of(w, t, slot);
    w->slots[member].held &= ~(2 << t);
    if (member != slot) {
        loosen(w, member);
    }
    if (what->live & (1 << (t - 1))) {
        return slot;
    }
    tier->lost_objects++;
    tier->lost_bytes += what->size;
    if (what->held == 0) {
        release(w, slot);
    }
    return NONE;
}

// How many of what waits for tier `t` make a bucket, the oldest first; 0 if they do not fill one.
static int64_t bucketful(World *w, int64_t t) {
    const Tier *tier = &w->tiers[t];
    int64_t size = 0;
    for (int64_t n = 0; n < tier->waiting_objects; n++) {
        size += part_bytes(w, offer_at(w, tier, n)->slot);
        if (size > tier->bucket_bytes) {
            return n;
        }
        if (n + 1 == tier->bucket_objects || size == tier->bucket_bytes) {
            return n + 1;
        }
    }
    return 0;
}

// Bytes of the bucket that tier `t` stores next, with the file beside it; 0 if there is none yet.
static int64_t next_bucket(World *w, int64_t t) {
    const Tier *tier = &w->tiers[t];
    int64_t size = 0;
    for (int64_t n = 0, count = bucketful(w, t); n < count; n++) {
        int64_t slot = offer_at(w, tier, n)->slot;
        see(w, slot);
        if (w->slots[slot].live & (1 << (t - 1))) {
            size += w->slots[slot].size + bytes_beside(w, t);
        }
    }
    return size;
}

// Store the oldest of what waits as a bucket, of what is still there; wait on if that is too little
// for one.
static void store_bucket(World *w, int64_t t, int64_t now) {
    Tier *tier = &w->tiers[t];
    int64_t taken = bucketful(w, t), node = w->control.node, count = 0;
    if (taken == 0) {
        tier->beat_ns = 0;
        return;
    }
    for (; taken; taken--) {
        int64_t slot = take_first(w, t);
        if (slot != NONE) {
            w->chain[count++] = incoming_of(w, t, slot);
        }
    }
    move(w, node);
    if (!count || write_bucket(w, t, 0, count, now)) {
        return;
    }
    tier->dropped_objects += count;
    for (int64_t i = 0; i < count; i++) {
        tier->dropped_bytes += w->slots[w->chain[i]].size;
    }
}

// --- what is due
// ----------------------------------------------------------------------------------------------------

// Which tier at hand does something next by itself, and when; 0 and UNBOUNDED if none does. Tiers
// are in the order of their places: a node's own, its rack's, what all share.
static int64_t first_here(World *w, int64_t *when) {
    int64_t first = 0;
    *when = UNBOUNDED;
    for (int64_t t = 0; t < w->tiers_count; t++) {
        int64_t due = due_ns(w, t);
        if (due < *when) {
            first = t, *when = due;
        }
    }
    return first;
}

static int64_t first_elsewhere(World *w) { // the place not at hand where something is due first
    const int64_t *due = w->fleet.due;
    int64_t first = 0;
    for (int64_t place = 0; place < w->fleet.due_count; place++) {
        if (due[place] < due[first]) {
            first = place;
        }
    }
    return first;
}

// The place of tier `t`, which is at hand, as Fleet.due counts them; what all share comes after
// them.
static int64_t due_place(World *w, int64_t t) {
    int64_t place = counter_of(w, t);
    return place ? place - 1 : w->fleet.due_count;
}

// The node that does what tier `t` does by itself: of those that share it, the first that is up.
static int64_t acting(World *w, int64_t t) {
    const Fleet *fleet = &w->fleet;
    int64_t here = w->control.node, first = 0, end = fleet->count;
    if (fleet->racked & (1 << t)) {
        first = here / fleet->rack_nodes * fleet->rack_nodes;
        end = min_of(end, first + fleet->rack_nodes);
    } else if (fleet->scoped & (1 << t)) {
        return here;
    }
    for (int64_t node = first; node < end; node++) {
        if (fleet->nodes[node].is_up) {
            return node;
        }
    }
    return first;
}

static void do_due(World *w, int64_t t, int64_t when) { // or a part of it
    Tier *tier = &w->tiers[t];
    move(w, acting(w, t));
    if (expiry_ns(w, t) == when) {
        evict(w, t, queue_of(w, t, 0)->tail, when);
        return;
    }
    if (0 < tier->poll_ns && tier->poll_ns == when) {
        poll_tier(w, t);
        return;
    }
    if (tier->collect_share > 0) {
        collect_for(w, t, next_bucket(w, t), when);
    }
    if (tier->bucket_objects) {
        store_bucket(w, t, when);
    } else { // the oldest of what waits, if it is still there
        int64_t slot = take_first(w, t);
        if (slot != NONE && make_room(w, t, slot, when)) {
            write_slot(w, t, slot, when, PHASE_STORE, NONE, NONE);
        }
    }
    if (tier->waiting_objects == 0) {
        tier->beat_ns = 0;
    }
}

// Do what is due until now, each at its time, and of one time place by place. Of places, nodes come
// first, then racks, then what all share; of a place, the faster tiers.
void catch_up(World *w, int64_t now) {
    const Fleet *fleet = &w->fleet;
    for (;;) {
        int64_t when, t = first_here(w, &when), place = first_elsewhere(w);
        int64_t due = fleet->due_count ? fleet->due[place] : UNBOUNDED;
        if (due <= now && (due < when || (due == when && place < due_place(w, t)))) {
            move(w, place < fleet->count ? place : (place - fleet->count) * fleet->rack_nodes);
            continue;
        }
        if (when > now) {
            return;
        }
        do_due(w, t, when);
    }
}
