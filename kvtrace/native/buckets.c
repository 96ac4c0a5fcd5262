// Buckets: objects that a tier writes together as one file, reads by offset, and deletes together. And what leaves a
// tier: an object, a bucket with all that is in it, or what is dead of a bucket, by collecting the rest.
//
// A bucket has a slot of its own, which stands for it in the lists of its tier's policy; its members are live in the
// tier but in none of its lists, unless buckets are collected: then it is they that are in the lists. Beside it is a
// small file that says what it holds. Each rank, and each group of layers (together: parts), has a bucket of its own:
// they differ in nothing but their numbers.
//
// A bucket that is collected keeps its slot and gets a number of its own: what lives in it is read, the bucket deleted,
// and what was read written again, in the order in which it lay.
#include "sim.h"

// --- rows and numbers -----------------------------------------------------------------------------------------------

static int64_t bytes_in_bucket(World *w, int64_t t, int64_t slot) {     // its own and what stands before it; all parts
    return w->slots[slot].size + w->knobs.ranks * w->knobs.layers * w->tiers[t].bucket_key_bytes;
}

// What an object adds to a bucket and to its file beside, of all parts, but for its own bytes.
int64_t bytes_beside(World *w, int64_t t) {
    const Tier *tier = &w->tiers[t];
    return w->knobs.ranks * w->knobs.layers * (tier->bucket_key_bytes + tier->bucket_meta_bytes);
}

static void name(World *w, int64_t size) {  // gives the next number to a bucket, or the file beside one
    Control *control = &w->control;
    if (control->made == w->made_size_count) have(w, FLUSH, 1);
    w->made_size[control->made] = size, w->made_kind[control->made] = 1;
    control->made++;
    control->next_object++;
}

// Rows for a bucket, and for the file beside it if it has one.
static void emit_both(World *w, int64_t now, int64_t op, int64_t t, int64_t phase, int64_t slot) {
    int64_t size = w->members[slot].offset, meta = w->slots[slot].size - size;
    emit(w, now, op, t, phase, slot, size, NONE, NONE);
    if (meta) emit(w, now, op, t, phase, packed((w->slots[slot].object + 1) << PACKED_BITS), meta, NONE, NONE);
}

static void delete_bucket(World *w, int64_t t, int64_t slot, int64_t now, int64_t phase) {  // its slot stays
    w->tiers[t].used -= w->slots[slot].size;
    w->tiers[t].deleted_bytes += w->slots[slot].size;
    emit_both(w, now, OP_DELETE, t, phase, slot);
}

static void free_bucket(World *w, int64_t t, int64_t slot) {
    w->tiers[t].buckets--;
    w->slots[slot].held = w->slots[slot].live = 0;
    release(w, slot);
}

// --- writing --------------------------------------------------------------------------------------------------------

// Write `count` objects from `chain[first]` on as the bucket `slot`, which gets the next number.
void fill(World *w, int64_t t, int64_t slot, int64_t first, int64_t count, int64_t now, int64_t phase) {
    Tier *tier = &w->tiers[t];
    Slot *what = &w->slots[slot];
    Member *members = w->members;
    int64_t parts = w->knobs.ranks * w->knobs.layers, offset = 0, whole = 0;
    members[slot].older = NONE;
    for (int64_t i = first; i < first + count; i++) {
        int64_t member = w->chain[i], last = members[slot].older;
        offset += tier->bucket_key_bytes;
        members[member] = (Member){.bucket = slot, .offset = offset, .older = last, .newer = NONE};
        if (last != NONE) members[last].newer = member;
        members[slot].older = member;
        w->slots[member].live |= 1 << t;
        offset += w->slots[member].size / parts;
        whole += bytes_in_bucket(w, t, member);
    }
    int64_t meta = parts * count * tier->bucket_meta_bytes;
    members[slot].bucket = members[slot].offset = whole;
    what->object = w->control.next_object, what->size = whole + meta, what->live = (int16_t)(1 << t);
    name(w, whole);
    if (meta) name(w, meta);
    tier->used += what->size;
    tier->written_bytes += what->size;
    serve_write(w, t, what->size, now);
    emit_both(w, now, OP_WRITE, t, phase, slot);
}

// Write the `count` objects from `chain[first]` on as a bucket of tier `t`; false if it takes none so large.
bool write_bucket(World *w, int64_t t, int64_t first, int64_t count, int64_t now) {
    Control *control = &w->control;
    Tier *tier = &w->tiers[t];
    int64_t size = 0, slot = take_slot(w);
    for (int64_t i = first; i < first + count; i++) size += w->slots[w->chain[i]].size + bytes_beside(w, t);
    Slot *what = &w->slots[slot];
    what->object = control->next_object, what->size = size, what->home = NONE;
    what->held = 1, what->live = 0, what->seen = 0;
    renew(w, slot);
    if (!make_room(w, t, slot, now)) {
        w->slots[slot].held = 0;
        w->free[control->free++] = (int32_t)slot;
        return false;
    }
    tier->buckets++;
    fill(w, t, slot, first, count, now, PHASE_STORE);
    if (is_endless(w, t)) return true;
    if (tier->collect_share > 0)
        for (int64_t i = first; i < first + count; i++) on_insert(w, t, w->chain[i], now);
    else on_insert(w, t, slot, now);
    return true;
}

// --- collecting -----------------------------------------------------------------------------------------------------

// Write what lives of a bucket as one of its own, in its slot, or free the slot if nothing does.
static void collect_bucket(World *w, int64_t t, int64_t bucket, int64_t now) {
    // The end of `chain` is free: what is to be stored lies at its start.
    int64_t end = w->chain_count, first = end;
    for (int64_t member = w->members[bucket].older; member != NONE; member = w->members[member].older)
        w->chain[--first] = member;
    for (int64_t i = first; i < end; i++) {
        int64_t size = w->slots[w->chain[i]].size;
        w->tiers[t].read_bytes += size;
        emit(w, now, OP_READ, t, PHASE_COLLECT, w->chain[i], size, NONE, NONE);
        serve_read(w, t, size, now);
    }
    delete_bucket(w, t, bucket, now, PHASE_EVICT);
    if (first == end) {
        free_bucket(w, t, bucket);
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
    if (older != NONE) members[older].newer = newer;
    members[bucket].bucket -= bytes_in_bucket(w, t, slot);
    w->slots[slot].live &= ~(1 << t);
    let_go(w, slot);
    if ((double)members[bucket].bucket < w->tiers[t].collect_share * (double)members[bucket].offset)
        collect_bucket(w, t, bucket, now);
}

// Make room in tier `t` for a bucket of `size` bytes by collecting others.
void collect_for(World *w, int64_t t, int64_t size, int64_t now) {
    Tier *tier = &w->tiers[t];
    if (size > tier->largest) return;
    if (tier->goal == NONE && tier->used > 0 && tier->used + size > tier->limit) tier->goal = tier->low;
    while (tier->goal != NONE && tier->used > 0 && tier->used + size > tier->goal) evict(w, t, victim(w, t, NONE), now);
    tier->goal = NONE;
}

// --- leaving --------------------------------------------------------------------------------------------------------

// Delete from tier `t` what its policy gave up: an object, or a bucket with all that is in it.
void evict(World *w, int64_t t, int64_t slot, int64_t now) {
    if (!(w->knobs.bucketed & (1 << t))) {
        drop(w, t, object_of(w, t, slot), now, PHASE_EVICT);
        return;
    }
    on_remove(w, t, slot, 1);
    if (w->tiers[t].collect_share > 0) {
        give_up(w, t, slot, now);
        return;
    }
    for (int64_t member = w->members[slot].older, older; member != NONE; member = older) {
        older = w->members[member].older;
        w->slots[member].live &= ~(1 << t);
        let_go(w, member);
    }
    delete_bucket(w, t, slot, now, PHASE_EVICT);
    free_bucket(w, t, slot);
}

// Delete from tier `t` what it lists as `slot`, as lost: an object, or the whole bucket that it is or is in.
void lose(World *w, int64_t t, int64_t slot, int64_t now) {
    if (!(w->knobs.bucketed & (1 << t))) {
        drop(w, t, object_of(w, t, slot), now, PHASE_LOSE);
        return;
    }
    bool is_by_object = w->tiers[t].collect_share > 0;
    int64_t bucket = is_by_object ? w->members[slot].bucket : slot;
    if (!is_by_object) on_remove(w, t, bucket, 0);
    for (int64_t member = w->members[bucket].older, older; member != NONE; member = older) {
        older = w->members[member].older;
        if (is_by_object) on_remove(w, t, member, 0);
        w->slots[member].live &= ~(1 << t);
        let_go(w, member);
    }
    delete_bucket(w, t, bucket, now, PHASE_LOSE);
    free_bucket(w, t, bucket);
}
