// What happens in a tier: an object is read, written, used, or deleted; the rows that it causes, and how long the tier
// is busy with it.
#include "sim.h"

// --- rows -----------------------------------------------------------------------------------------------------------

void begin_stage(World *w) {    // one that has no operations yet
    w->control.is_staged = 0;
    for (int64_t t = 0; t < w->tiers_count; t++) w->tiers[t].staged = 0;
}

// The stage of one more operation in tier `t`: the next if it runs only `limit` (0: all) of them at once.
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

// A row for each rank's object of one group of layers of `entry`; `size` is of all its objects.
void emit_layer(World *w, int64_t now, int64_t op, int64_t t, int64_t phase, int64_t entry, int64_t size,
    int64_t request, int64_t stage, int64_t layer) {
    if (w->control.rows + w->knobs.ranks > w->rows.ts_ns_count) have(w, FLUSH, w->knobs.ranks);
    const RowColumns rows = w->rows;    // a copy: rows of single bytes could be anything of the world, to the compiler
    const int64_t ranks = w->knobs.ranks, layers = w->knobs.layers;
    const int64_t first = w->control.rows, end = first + ranks, length = size / (ranks * layers);
    int64_t number = number_of(w, entry);
    if (op == OP_READ && w->knobs.bucketed & (1 << t)) {
        const Member *member = &w->members[w->slots[entry].place > 0 ? entry : member_of(w, t, entry)];
        number = w->slots[member->bucket].object;
        for (int64_t i = first; i < end; i++) w->row_offsets[i] = member->offset;
    }
    w->control.rows = end;
    if (w->fleet.count > 1)
        for (int64_t i = first; i < end; i++) w->fleet.row_nodes[i] = (int32_t)w->control.node;
    for (int64_t rank = 0; rank < ranks; rank++) {
        int64_t i = first + rank;
        rows.ts_ns[i] = now;
        rows.op[i] = (int8_t)op;
        rows.tier[i] = (int8_t)t;
        rows.phase[i] = (int8_t)phase;
        rows.object_id[i] = (number * ranks + rank) * layers + layer;
        rows.length_bytes[i] = length;
        rows.request_id[i] = request;
        rows.stage[i] = (int32_t)stage;
        rows.rank[i] = (int16_t)rank;
    }
}

// A row for each object of an entry or a slot; request NONE is background work.
void emit(World *w, int64_t now, int64_t op, int64_t t, int64_t phase, int64_t entry, int64_t size, int64_t request,
    int64_t stage) {
    for (int64_t layer = 0, layers = w->knobs.layers; layer < layers; layer++)
        emit_layer(w, now, op, t, phase, entry, size, request, stage, layer);
}

// --- the service model ----------------------------------------------------------------------------------------------
//
// Each direction is one first-come server. An operation occupies it for its bytes over the rate, or for its share of
// the latency if at most so many run at once; it is done a latency later. Without a rate, no time.

static int64_t occupy(const Tier *tier, int64_t rate, int64_t busy_ns, int64_t size, int64_t now) { // until when
    int64_t transfer = size * 1000 / rate;
    if (tier->concurrency > 0) transfer = max_of(transfer, tier->latency_ns / tier->concurrency);
    return max_of(busy_ns, now) + transfer;
}

int64_t serve_read(World *w, int64_t t, int64_t size, int64_t now) {    // when it is done
    Tier *tier = &w->tiers[t];
    if (tier->read_rate <= 0) return now;
    tier->read_busy_ns = occupy(tier, tier->read_rate, tier->read_busy_ns, size, now);
    return tier->read_busy_ns + tier->latency_ns;
}

void begin_reads(World *w, int64_t now) {   // of a request
    for (int64_t t = 0; t < w->tiers_count; t++) {
        Tier *tier = &w->tiers[t];
        tier->reading = 0, tier->reads_began_ns = now, tier->reads_end_ns = now;
    }
}

// As serve_read, but after those reads of the request that must end first, if only so many run at once.
int64_t serve_in_turn(World *w, int64_t t, int64_t size, int64_t now) {
    Tier *tier = &w->tiers[t];
    int64_t done = serve_read(w, t, size, now);
    if (tier->request_reads <= 0 || tier->read_rate <= 0) return done;
    if (tier->reading == tier->request_reads) tier->reading = 0, tier->reads_began_ns = tier->reads_end_ns;
    tier->reading++;
    done = max_of(done, tier->reads_began_ns + size * 1000 / tier->read_rate + tier->latency_ns);
    tier->reads_end_ns = max_of(tier->reads_end_ns, done);
    return done;
}

int64_t serve_write(World *w, int64_t t, int64_t size, int64_t now) {   // when it is done
    Tier *tier = &w->tiers[t];
    if (tier->write_rate <= 0) return now;
    tier->write_busy_ns = occupy(tier, tier->write_rate, tier->write_busy_ns, size, now);
    return tier->write_busy_ns + tier->latency_ns;
}

// --- uses -----------------------------------------------------------------------------------------------------------

void pin(World *w, int64_t entry, int64_t until_ns) {   // its object is in flight until then, if any tier asks
    if (!w->pins_count || entry < 0) return;
    int64_t slot = member_of(w, w->knobs.whole, entry);
    if (slot != NONE) w->pins[slot].until_ns = max_of(w->pins[slot].until_ns, until_ns);
}

static void stamp(World *w, int64_t slot) {
    if (!w->knobs.keeps_age) return;
    w->ages[slot] = ++w->control.uses;
    if (!w->fleet.scoped) return;
    int64_t copy = w->fleet.copies[slot].node_copy;
    if (copy != NONE) w->ages[copy] = w->control.uses;
}

// Let the object `chain[i]`, once it is used in tier `t`, be less recent than those before it, if that is so.
void follow(World *w, int64_t t, int64_t i) {
    if (w->tiers[t].is_tail_first) trail(w, t, i, 0, 0);
}

// Let `chain[i]`, once it is used in tier `t`, be less recent than the last one before it from `first` on; of those,
// with a `mark`, that have it in `where`. If there is none it will be the most recent.
void trail(World *w, int64_t t, int64_t i, int64_t first, int64_t mark) {
    if (is_endless(w, t)) return;
    int64_t k = i - 1;
    while (k >= first && ((mark && w->where[k] != mark) || w->chain[k] == w->chain[i]
            || !(live_in(w, w->chain[k]) & (1 << t)))) k--;
    w->tiers[t].behind = k < first ? 0 : 1 + member_of(w, t, w->chain[k]);
}

void touch(World *w, int64_t t, int64_t entry) {    // its object, which is live in tier `t`, was used
    if (!is_endless(w, t)) {
        int64_t slot = member_of(w, t, entry);
        if (w->knobs.bucketed & (1 << t) && w->tiers[t].collect_share == 0) slot = w->members[slot].bucket;
        on_hit(w, t, slot);
        if (w->knobs.filtered & (1 << t)) refer(w, t, entry);
    }
    if (entry >= 0) stamp(w, entry);
}

// --- operations -----------------------------------------------------------------------------------------------------

// Read the whole of `slot`; return when it is done. Whether that makes it recent is the caller's.
int64_t read_slot(World *w, int64_t t, int64_t slot, int64_t now, int64_t phase, int64_t request, int64_t stage) {
    int64_t size = w->slots[slot].size;
    w->tiers[t].read_bytes += size;
    emit(w, now, OP_READ, t, phase, slot, size, request, stage);
    int64_t done = serve_read(w, t, size, now);
    pin(w, slot, done);
    return done;
}

void write_slot(World *w, int64_t t, int64_t slot, int64_t now, int64_t phase, int64_t request, int64_t stage) {
    Tier *tier = &w->tiers[t];  // which has room
    int64_t member = slot;
    if (w->fleet.scoped & (1 << t)) {
        member = own(w, t, slot);
        w->slots[member].live |= 1 << t;
    }
    Slot *what = &w->slots[slot];
    if (!is_endless(w, t)) on_insert(w, t, member, now);
    if (phase != PHASE_DEMOTE) stamp(w, slot);
    what->live |= 1 << t;
    tier->used += what->size;
    tier->written_bytes += what->size;
    if (tier->evict_every_ns > 0 && tier->poll_ns == 0 && tier->used >= tier->trigger)
        tier->poll_ns = (now / tier->evict_every_ns + 1) * tier->evict_every_ns;
    pin(w, slot, serve_write(w, t, what->size, now));
    emit(w, now, OP_WRITE, t, phase, slot, what->size, request, stage);
    loosen(w, slot);
}

// Delete `slot` from tier `t`; a slot that lives nowhere and that nobody can ask for becomes free.
void drop(World *w, int64_t t, int64_t slot, int64_t now, int64_t phase) {
    Tier *tier = &w->tiers[t];
    Slot *what = &w->slots[slot];
    int64_t member = member_of(w, t, slot);
    if (!is_endless(w, t)) on_remove(w, t, member, phase != PHASE_PROMOTE && phase != PHASE_LOSE);
    if (member != slot) {
        w->slots[member].live &= ~(1 << t);
        loosen(w, member);
    }
    what->live &= ~(1 << t);
    tier->used -= what->size;
    tier->deleted_bytes += what->size;
    emit(w, now, OP_DELETE, t, phase, slot, what->size, NONE, NONE);
    if (what->held) loosen(w, slot);
    else release(w, slot);
}

// The fastest tier, from `t` on, in which the object of `entry` is found, or NONE.
int64_t fastest(World *w, int64_t entry) { return fastest_from(w, entry, 0); }

int64_t fastest_from(World *w, int64_t entry, int64_t t) {
    int64_t live = found_in(w, entry);
    while (t < w->tiers_count && !(live & (1 << t))) t++;
    return t < w->tiers_count ? t : NONE;
}
