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
    if (w->control.rows + w->knobs.ranks > w->rows.ts_ns_count) ensure(w, FLUSH, w->knobs.ranks);
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
        rows.stage[i] = (int32_t)(request == NONE ? NONE : stage);
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
        Tier *tier = &w->tiers[t];
        bool is_at_end = tier->is_at_end && !tier->on_hit;
        if (!is_at_end) on_hit(w, t, slot);     // else as the request ends, in use_backwards
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
    tier->live_bytes += what->size;
    tier->written_bytes += what->size;
    if (tier->evict_every_ns > 0 && tier->poll_ns == 0 && tier->live_bytes >= tier->trigger)
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
    if (tier->is_whole) w->pins[member].offer = 0;     // what writes it again is another offer, or none
    what->live &= ~(1 << t);
    tier->live_bytes -= what->size;
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

// === admission and eviction ==========================================================================================
// What a tier takes, and how it makes room for it: by deleting what its policy gives up, or by moving it down; when it
// must, or at times.

enum { MOST = 1 << 30, MILLION = 1000000 };     // no count goes higher; evict_ppm is in millionths

// --- admission: filters that spare a drive the writes of what nobody reads again -------------------------------------
//
// What is stored, and what a faster tier gives up, is offered to a tier; it takes it or not, by how often it has been
// offered or used. What a promotion copies up was asked for, and passes; so does what is there before the start.

// Where `key` stands in `counted`, whose length is a power of two, or the free place where it would. The shift is of a
// signed number.
static int64_t find_key(const int64_t *counted, int64_t count, int64_t key) {
    int64_t mask = count - 1, at = (int64_t)((uint64_t)key * 0x1E3779B97F4A7C15u);
    at = (at ^ (at >> 32)) & mask;
    while (counted[at] && counted[at] != key) at = (at + 1) & mask;
    return at;
}

// How often object `number` was offered to tier `t`, or used there. Where nodes or racks count for themselves, a place
// has a count only of what came to it.
static Seen *count_of(World *w, int64_t t, int64_t number) {
    Fleet *fleet = &w->fleet;
    int64_t tiers = w->tiers_count;
    if (!fleet->counted_count) {
        if ((number + 1) * tiers > w->frequencies_count) ensure(w, MORE_COUNTS, (number + 1) * tiers);
        return &w->frequencies[number * tiers + t];
    }
    int64_t place = fleet->scoped & (1 << t) ? place_of(w, t) : 0;
    int64_t key = ((number + 1) * (2 * fleet->count + 1) + place) * tiers + t;
    int64_t at = find_key(fleet->counted, fleet->counted_count, key);
    if (!fleet->counted[at]) {
        w->control.counts++;
        if (2 * w->control.counts > fleet->counted_count) {     // it stays half empty
            ensure(w, MORE_COUNTS, 2 * w->control.counts);
            at = find_key(fleet->counted, fleet->counted_count, key);
        }
        fleet->counted[at] = key;
    }
    return &w->frequencies[at];
}

static int64_t decayed(const Tier *tier, const Seen *seen) {    // a count, halved as often as all were since
    return (int64_t)seen->count >> min_of(31, tier->halvings - seen->since);
}

static bool has_room(World *w, int64_t t, int64_t size) {  // an object it takes may fill an empty tier past its limit
    const Tier *tier = &w->tiers[t];
    return tier->live_bytes == 0 || tier->live_bytes + size <= tier->limit;
}

// Count an offer of `slot`; return what that makes. For nth-offer it is one more. For frequency it is twice as much,
// and each `decay_ns` takes one off; what has come down to nothing begins at 1.
static int64_t offered(World *w, int64_t t, int64_t slot, int64_t now) {
    const Tier *tier = &w->tiers[t];
    Seen *seen = count_of(w, t, w->slots[slot].object);
    int64_t count = seen->count;
    if (tier->admission == NTH_OFFER) count++;
    else if (tier->admission == FREQUENCY) {
        int64_t since = tier->decay_ns ? now / tier->decay_ns : 0;
        count = max_of(0, count - (since - seen->since));
        count = count ? 2 * count : 1;
        seen->since = (int32_t)since;
    }
    seen->count = (int32_t)min_of(count, MOST);
    return count;
}

static bool passes(World *w, int64_t t, int64_t slot, int64_t now) {
    Tier *tier = &w->tiers[t];
    int64_t size = w->slots[slot].size;
    bool is_taken;
    if (tier->admission == TINYLFU) {
        int64_t count = refer(w, t, slot);
        is_taken = has_room(w, t, size)
            || count > decayed(tier, count_of(w, t, w->slots[victim(w, t, slot)].object));
    } else is_taken = offered(w, t, slot, now) >= tier->admission_count;
    if (is_taken) return true;
    tier->refused_objects++;
    tier->refused_bytes += size;
    loosen(w, slot);
    return false;
}

bool admits(World *w, int64_t t, int64_t slot, int64_t now) {   // ask once, for an offer is counted
    return !(w->knobs.filtered & (1 << t)) || passes(w, t, slot, now);
}

// Count a use or an offer of the object of `entry` if the tier goes by TinyLFU; return how often it had any. All counts
// are halved as often as a window of bytes was referred to.
int64_t refer(World *w, int64_t t, int64_t entry) {
    Tier *tier = &w->tiers[t];
    if (tier->admission != TINYLFU) return 0;
    Seen *seen = count_of(w, t, number_of(w, entry));
    int64_t count = decayed(tier, seen) + 1;
    seen->count = (int32_t)min_of(count, MOST), seen->since = (int32_t)tier->halvings;
    tier->referred += size_of(w, entry);
    if (tier->referred >= tier->window) {
        tier->referred /= 2;
        tier->halvings++;
        count >>= 1;
    }
    return count;
}

void forget_counts(World *w, int64_t t) {   // of tier `t`, which is at hand
    const Fleet *fleet = &w->fleet;
    int64_t tiers = w->tiers_count, places = 2 * fleet->count + 1;
    w->tiers[t].referred = 0;
    if (!fleet->counted_count) {
        for (int64_t i = t; i < w->frequencies_count; i += tiers) w->frequencies[i].count = 0;
        return;
    }
    for (int64_t i = 0; i < fleet->counted_count; i++) {
        int64_t key = fleet->counted[i];
        if (key % tiers == t && key / tiers % places == place_of(w, t)) w->frequencies[i].count = 0;
    }
}

// Put all counts into larger tables, which are empty.
EXPORT void count_again(int64_t *counted, int64_t counted_count, Seen *frequencies, const int64_t *old_counted,
    int64_t old_count, const Seen *old_frequencies) {
    for (int64_t i = 0; i < old_count; i++) {
        if (!old_counted[i]) continue;
        int64_t at = find_key(counted, counted_count, old_counted[i]);
        counted[at] = old_counted[i];
        frequencies[at] = old_frequencies[i];
    }
}

// --- offers: what is stored together finds room together, or is refused together, as some engines do it --------------
//
// What is in flight makes no room: what the offer before stored, and what is still being read or written.

// Make room in tier `t` for all of `chain[first:n]` that is not in it; return false, and change nothing, if not.
// `previous` is the number of the offer whose objects are still in flight, or 0.
bool takes_offer(World *w, int64_t t, int64_t first, int64_t n, int64_t previous, int64_t now) {
    int64_t mine = ++w->control.offers, need = 0;
    for (int64_t i = first; i < n; i++) {
        int64_t slot = w->chain[i];
        int64_t incoming = incoming_of(w, t, slot);
        Pin *its = &w->pins[incoming];
        const Slot *what = &w->slots[slot];
        if (its->seen == mine) continue;    // twice in the prompt
        // What is there already keeps its place, but only this time: it is not in flight with the next offer.
        its->seen = mine;
        if (!(what->live & (1 << t)) && what->size <= w->tiers[t].largest) {
            its->offer = mine;
            need += what->size;
        }
    }
    return frees(w, t, need, mine, previous, now);
}

static bool is_held(World *w, int64_t slot, int64_t mine, int64_t previous, int64_t now) {
    const Pin *its = &w->pins[slot];
    return its->seen == mine || (previous != 0 && its->offer == previous) || its->until_ns > now;
}

// Delete what tier `t`, which evicts by LRU, used least recently, down to its low mark, if `need` bytes do not fit;
// false if it cannot.
bool frees(World *w, int64_t t, int64_t need, int64_t mine, int64_t previous, int64_t now) {
    const Tier *tier = &w->tiers[t];
    int64_t missing = tier->live_bytes + need - tier->limit;
    if (missing <= 0) return true;
    int64_t slot = queue_of(w, t, 0)->tail;
    for (; slot != NONE && missing > 0; slot = link_of(w, t, slot)->newer)
        if (!is_held(w, slot, mine, previous, now)) missing -= w->slots[slot].size;
    if (missing > 0) return false;
    slot = queue_of(w, t, 0)->tail;
    while (slot != NONE && tier->live_bytes + need > tier->low) {
        int64_t newer = link_of(w, t, slot)->newer;
        if (!is_held(w, slot, mine, previous, now)) drop(w, t, object_of(w, t, slot), now, PHASE_EVICT);
        slot = newer;
    }
    return true;
}

// --- room -----------------------------------------------------------------------------------------------------------

// Delete from tier `t` what its policy says, down to its low mark, if `slot` does not fit. False if it takes no such
// object, or is full and makes room only at times.
bool make_room(World *w, int64_t t, int64_t slot, int64_t now) {
    const Tier *tier = &w->tiers[t];
    int64_t size = w->slots[slot].size;
    if (size > tier->largest) return false;
    if (tier->is_whole) return frees(w, t, size, UNBOUNDED, 0, now);
    if (has_room(w, t, size)) return true;
    if (tier->evict_every_ns > 0) return false;
    int64_t incoming = incoming_of(w, t, slot);
    while (tier->live_bytes > 0 && tier->live_bytes + size > tier->low) evict(w, t, victim(w, t, incoming), now);
    return true;
}

int64_t lower_tier(World *w, int64_t t, int64_t size) {     // the fastest from `t` down that takes it, or NONE
    while (t < w->tiers_count && size > w->tiers[t].largest) t++;
    return t < w->tiers_count ? t : NONE;
}

static int64_t demoted_to(World *w, int64_t upper, int64_t slot, int64_t now) {     // a tier, or NONE
    const Slot *what = &w->slots[slot];
    int64_t lower = lower_tier(w, upper + 1, what->size);
    if (lower != NONE && (what->live & (1 << lower) || !admits(w, lower, slot, now))) return NONE;
    return lower;
}

// Move what the policy of tier `t` gives up down until `slot` fits, or delete it.
//
// What fits nowhere lower, is live in the tier below already, or is not admitted there, is deleted. A tier below may
// have to make room first, and so on: `wanted[d]` is what is wanted at depth d of that.
void make_room_by_demotion(World *w, int64_t t, int64_t slot, int64_t now) {
    int64_t depth = 0;
    w->wanted[0].tier = t, w->wanted[0].slot = slot, w->wanted[0].leaving = NONE;
    while (depth >= 0) {
        Wanted *wanted = &w->wanted[depth];
        int64_t upper = wanted->tier;
        if (has_room(w, upper, w->slots[wanted->slot].size)) {
            depth--;
            continue;
        }
        if (wanted->leaving == NONE) {
            wanted->leaving = object_of(w, upper, victim(w, upper, incoming_of(w, upper, wanted->slot)));
            wanted->lower = demoted_to(w, upper, wanted->leaving, now);
        }
        int64_t leaving = wanted->leaving, lower = wanted->lower;
        if (lower == NONE) {
            drop(w, upper, leaving, now, PHASE_EVICT);
            wanted->leaving = NONE;
        } else if (has_room(w, lower, w->slots[leaving].size)) {
            read_slot(w, upper, leaving, now, PHASE_DEMOTE, NONE, NONE);
            write_slot(w, lower, leaving, now, PHASE_DEMOTE, NONE, NONE);
            if (w->knobs.keeps_age) settle(w, lower, member_of(w, lower, leaving));
            drop(w, upper, leaving, now, PHASE_DEMOTE);
            wanted->leaving = NONE;
        } else {
            Wanted *below = &w->wanted[++depth];
            below->tier = lower, below->slot = leaving, below->leaving = NONE;
        }
    }
}

// Whether it holds so much that it makes room when it is time, and the bytes of what it gives up next.
static bool is_filled(const Tier *tier) { return tier->live_bytes > 0 && tier->live_bytes >= tier->trigger; }

static int64_t next_bytes(World *w, int64_t t) { return w->slots[victim(w, t, NONE)].size; }

// Let tier `t`, which makes room only at times, give one object up, now that it is such a time, or end. These times are
// the multiples of its interval; it makes room if it is filled to its trigger then.
void poll_tier(World *w, int64_t t) {
    Tier *tier = &w->tiers[t];
    if (tier->goal == NONE) {
        tier->goal = tier->low;
        if (!is_filled(tier)) tier->goal = tier->live_bytes;
        else if (tier->evict_ppm > 0)
            tier->goal = tier->live_bytes - max_of(tier->live_bytes * tier->evict_ppm / MILLION, next_bytes(w, t));
    }
    if (tier->live_bytes > tier->goal && (tier->evict_ppm == 0 || tier->live_bytes - next_bytes(w, t) >= tier->goal)) {
        evict(w, t, victim(w, t, NONE), tier->poll_ns);
        return;
    }
    tier->goal = NONE;
    tier->poll_ns = is_filled(tier) ? tier->poll_ns + tier->evict_every_ns : 0;
}
