// The staging tier: what a request stores and what it reads from below takes a buffer there before any of it is in.
#include "sim.h"

// Make room in tier `t` for a buffer for `slot`, beside `taken_bytes` of others; return whether there is. What is given
// up is what was there, but for `kept_bytes`, those used last.
static bool take(World *w, int64_t t, int64_t slot, int64_t kept_bytes, int64_t taken_bytes, int64_t now) {
    const Tier *tier = &w->tiers[t];
    int64_t size = size_of(w, slot);
    if (size > tier->largest) return false;
    if (tier->used + taken_bytes + size > tier->limit)
        while (tier->used > kept_bytes && tier->used + taken_bytes + size > tier->low)
            drop(w, t, object_of(w, t, victim(w, t, slot)), now, PHASE_EVICT);
    // As has_room: an object that it takes may fill an empty tier past its limit.
    return tier->used + taken_bytes + size <= tier->limit || tier->used + taken_bytes == 0;
}

// Take buffers of tier `t` for `chain[first:n]`; return the end of those that have one.
static int64_t stage_writes(World *w, int64_t t, int64_t first, int64_t n, int64_t now) {
    const Tier *tier = &w->tiers[t];
    int64_t taken = 0;
    if (tier->evict_every_ns > 0) {
        for (int64_t i = first; i < n; i++) {
            int64_t size = size_of(w, w->chain[i]);
            if (size > tier->largest) return first;
            if (!(w->slots[w->chain[i]].live & (1 << t))) taken += size;
        }
        return tier->used + taken <= tier->limit ? n : first;
    }
    for (int64_t i = first; i < n; i++) {
        if (!take(w, t, w->chain[i], 0, taken, now)) return i;
        taken += size_of(w, w->chain[i]);
    }
    return n;
}

// The end of those of `chain[:end]` that are read, all of them or none from below the staging tier. The first `first`
// ones are read each by itself: then those of them are not found.
int64_t cut_reads(World *w, int64_t first, int64_t end) {
    int64_t t = w->knobs.staging - 1, needed = 0, cut = end;
    const Tier *tier = &w->tiers[t];
    if (tier->evict_every_ns == 0) return end;
    for (int64_t i = 0; i < end; i++) {
        if (w->where[i] <= t) continue;
        needed += size_of(w, w->chain[i]);
        if (i >= first) cut = min_of(cut, i);
    }
    if (tier->used + needed <= tier->limit) return end;
    for (int64_t i = 0; i < first; i++)
        if (w->where[i] > t) w->where[i] = NONE;
    return cut;
}

// Take buffers for those of `chain[:end]` that were read below the staging tier; return the end of those with one. What
// the request read in the staging tier itself makes no room.
int64_t stage_reads(World *w, int64_t end, int64_t now) {
    int64_t t = w->knobs.staging - 1, kept = 0, taken = 0;
    if (w->tiers[t].evict_every_ns > 0) return end;
    for (int64_t i = 0; i < end; i++)
        if (w->where[i] == t) kept += size_of(w, w->chain[i]);
    for (int64_t i = 0; i < end; i++) {
        if (w->where[i] <= t) continue;
        if (!take(w, t, w->chain[i], kept, taken, now)) return i;
        taken += size_of(w, w->chain[i]);
    }
    return end;
}

// Keep of `chain[first:n]` what no tier holds, moved to the front; return the end of it.
int64_t drop_held(World *w, int64_t first, int64_t n) {
    int64_t end = first;
    for (int64_t i = first; i < n; i++)
        if (found_in(w, w->chain[i]) == 0) w->chain[end++] = w->chain[i];
    return end;
}

// Write `chain[i]`, stored from `first` on, into tier `t` unless it is there; return the stage reached.
static int64_t put(World *w, int64_t t, int64_t first, int64_t i, int64_t now, int64_t phase, int64_t request,
    int64_t stage) {
    int64_t slot = w->chain[i], staging = w->knobs.staging - 1;
    if (w->slots[slot].live & (1 << t)) {
        // The staging tier frees the buffer and leaves what it has as it was; the others count it as used.
        if (t != staging && !(w->control.gone & (1 << t))) {
            follow(w, t, i);
            touch(w, t, slot);
        }
        return stage;
    }
    if (t != staging && !takes(w, t, slot, now, phase)) return stage;
    if (t == staging && w->tiers[t].stores_backwards) {
        trail(w, t, i, first, 1);
        w->where[i] = 1;
    } else follow(w, t, i);
    stage = in_stage(w, stage, t, w->tiers[t].request_writes);
    write_slot(w, t, slot, now, phase, request, stage);
    return stage;
}

// Write each new object to the first tier that takes it, and a stage later to all below; return the stages used. From
// the first on for which the staging tier has no buffer, only tiers above it are written.
int64_t store_staged(World *w, int64_t first, int64_t n, int64_t stage, int64_t request, int64_t first_phase,
    int64_t rest_phase) {
    int64_t now = w->control.now, staging = w->knobs.staging - 1, at = stage;
    if (w->knobs.skips_held) n = drop_held(w, first, n);
    int64_t end = stage_writes(w, staging, first, n, now);
    begin_stage(w);
    for (int64_t i = first; i < n; i++) w->where[i] = 0;
    for (int64_t i = first; i < n; i++) {
        int64_t t = lower_tier(w, 0, w->slots[w->chain[i]].size);
        if (t == NONE || (t >= staging && i >= end)) w->total.unplaced++;
        else at = put(w, t, first, i, now, first_phase, request, at);
    }
    at += w->control.is_staged;
    begin_stage(w);
    for (int64_t i = first; i < n; i++) {
        int64_t t = lower_tier(w, 0, w->slots[w->chain[i]].size) + 1;   // 0: none takes it
        for (; 0 < t && t < w->tiers_count && (t < staging || i < end); t++)
            at = put(w, t, first, i, now, rest_phase, request, at);
    }
    return at - stage + w->control.is_staged;
}
