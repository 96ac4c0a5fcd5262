// Admission filters: they spare a drive the writes of objects that no request reads again.
// What is stored, and what a faster tier demotes, is offered to a tier, which admits it by how
// often it has been offered or used. Promotions, and writes before the start, are not filtered.
//
// NTH_OFFER admits an object from its n-th offer on:
//
//     count += 1;  admit if count >= n
//
// FREQUENCY counts offers that follow each other closely (the frequency filter of NVIDIA Dynamo
// KVBM):
//
//     count -= 1 for each decay_ns that has passed
//     count = 2 * count, or 1 if it was 0;  admit if count >= n
//
// TINYLFU (Einziger, Friedman and Manes, ACM Transactions on Storage, 2017; exact counts here):
//
//     count += 1 on each offer or use; halve all counts each time a window of bytes was referenced
//     admit if there is room, or if the count exceeds that of the victim
#include "sim.h"

#include <string.h>

enum {
    MAX_COUNT = 1 << 30, // Counts do not go higher.
    COUNTS_IN_RUN = 64,  // Objects of one prompt have consecutive numbers: their counts too.
    FIRST_ROOM = 16,     // Runs of counts to begin with.
    MAX_HALVINGS = 31,   // So many leave nothing of any count.
};

// Packs a count with the number of decays that it has seen.
static int64_t count_pack(int64_t count, int64_t decays) {
    return min_of(count, MAX_COUNT) << 32 | (uint32_t)decays;
}

// The packed count of object `number` at a tier; nodes and racks count for their own tiers only.
static int64_t *admission_count_of(World *world, int64_t level, int64_t number) {
    int64_t places = 2 * world->fleet.count + 1;
    int64_t run_number = number / COUNTS_IN_RUN;
    int64_t key = (run_number * places + tier_place(world, level)) * world->tiers_count + level;
    int64_t runs = world->count_runs.count;
    int64_t run = *table_put(&world->count_runs, key, runs);
    if (run == world->counts_room) {
        world->counts_room = max_of(FIRST_ROOM, 2 * world->counts_room);
        world->counts =
            memory_grow(world->counts, world->counts_room, COUNTS_IN_RUN * sizeof(int64_t));
    }
    if (run == runs) {
        memset(&world->counts[run * COUNTS_IN_RUN], 0, COUNTS_IN_RUN * sizeof(int64_t));
    }
    return &world->counts[run * COUNTS_IN_RUN + number % COUNTS_IN_RUN];
}

// A TinyLFU count, halved as often as all counts were since it was packed.
static int64_t tinylfu_count(const Tier *tier, int64_t packed) {
    return (packed >> 32) >> min_of(MAX_HALVINGS, tier->halvings - (int32_t)packed);
}

// Counts an offer of `slot` by NTH_OFFER or FREQUENCY; returns the new count.
static int64_t admission_count_offer(World *world, int64_t level, int64_t slot, int64_t now) {
    const Tier *tier = &world->tiers[level];
    int64_t *packed = admission_count_of(world, level, world->slots[slot].object);
    int64_t count = *packed >> 32;
    int64_t decays = (int32_t)*packed;
    if (tier->admission == NTH_OFFER) {
        count++;
    } else if (tier->admission == FREQUENCY) {
        int64_t decays_now = tier->admission_decay_ns ? now / tier->admission_decay_ns : 0;
        count = max_of(0, count - (decays_now - decays));
        count = count ? 2 * count : 1;
        decays = decays_now;
    }
    *packed = count_pack(count, decays);
    return count;
}

// Counts a use or an offer of an object if the tier's filter is TinyLFU; returns the new count.
int64_t admission_count_use(World *world, int64_t level, int64_t entry) {
    Tier *tier = &world->tiers[level];
    if (tier->admission != TINYLFU) {
        return 0;
    }
    int64_t *packed = admission_count_of(world, level, object_number(world, entry));
    int64_t count = tinylfu_count(tier, *packed) + 1;
    *packed = count_pack(count, tier->halvings);
    tier->window_bytes += object_size(world, entry);
    if (tier->window_bytes >= tier->admission_window_bytes) {
        tier->window_bytes /= 2;
        tier->halvings++;
        count >>= 1;
    }
    return count;
}

// TinyLFU: whether the object is used more often than the one that it would replace.
static bool tinylfu_admits(World *world, int64_t level, int64_t slot) {
    int64_t count = admission_count_use(world, level, slot);
    if (tier_has_room(world, level, world->slots[slot].size)) {
        return true;
    }
    int64_t victim = policy_choose_victim(world, level, slot);
    int64_t packed = *admission_count_of(world, level, world->slots[victim].object);
    return count > tinylfu_count(&world->tiers[level], packed);
}

// Whether the tier's filter admits `slot`. To be called once for each offer, which it counts.
bool admission_admits(World *world, int64_t level, int64_t slot, int64_t now) {
    if (!tiers_include(world->knobs.filtered_tiers, level)) {
        return true;
    }
    Tier *tier = &world->tiers[level];
    bool is_admitted = false;
    if (tier->admission == TINYLFU) {
        is_admitted = tinylfu_admits(world, level, slot);
    } else {
        is_admitted = admission_count_offer(world, level, slot, now) >= tier->admission_count;
    }
    if (is_admitted) {
        return true;
    }
    tier->refused_objects++;
    tier->refused_bytes += world->slots[slot].size;
    slot_release_later(world, slot);
    return false;
}

// Sets all counts of a tier, which is at hand, to 0.
void admission_forget_counts(World *world, int64_t level) {
    int64_t tiers = world->tiers_count;
    int64_t places = 2 * world->fleet.count + 1;
    int64_t place = tier_place(world, level);
    world->tiers[level].window_bytes = 0;
    for (int64_t i = 0; i < world->count_runs.size; i++) {
        const Entry *run = &world->count_runs.entry[i];
        bool is_used = run->key >= 0;
        if (!is_used || run->key % tiers != level || run->key / tiers % places != place) {
            continue;
        }
        for (int64_t k = 0; k < COUNTS_IN_RUN; k++) {
            int64_t *packed = &world->counts[run->value * COUNTS_IN_RUN + k];
            *packed = count_pack(0, *packed);
        }
    }
}
