// The lookup where a chunk is several objects, one for each group of layers.
// Engines that manage the KV cache of hybrid models by groups store each group's part of a chunk by
// itself, and load only what the rest of the prompt attends to: of layers with a sliding window, of
// local attention or with a recurrent state, the last chunks alone. As vLLM does it (0.33.0,
// v1/offloading/scheduler.py, _lookup_complete_chunks):
//
//     end = the first chunk that lacks the object of a group that needs all chunks
//     while a group lacks one of the last chunks before `end` that it needs:  end -= 1
//     of each group, the objects of the chunks that it needs are hits
//
// The objects of a chunk stand one behind the other in World.chain, in the order of World.groups.
#include "sim.h"

// How many of the last chunks of a prefix of `end` chunks a group needs.
static int64_t group_needed_chunks(World *world, int64_t g, int64_t end) {
    const Group *group = &world->groups[g];
    int64_t chunk_tokens = world->knobs.chunk_tokens;
    switch (group->kind) {
    case SLIDING:
        return min_of(end, round_up_div(group->window, chunk_tokens));
    case CHUNKED: {
        int64_t windows = end * chunk_tokens / group->window;
        return end - windows * group->window / chunk_tokens;
    }
    case STATE:
        return min_of(end, 1);
    default:
        return end;
    }
}

// Whether each group has the chunks before the `end`-th that it needs, by World.group_runs.
static bool group_prefix_is_complete(World *world, int64_t end) {
    for (int64_t g = 0; g < world->groups_count; g++) {
        if (world->group_runs[g] < group_needed_chunks(world, g, end)) {
            return false;
        }
    }
    return true;
}

// With is_by_tier, the tier from which the next chunk is looked up, once that of group `g` was
// found at `level`.
static int64_t group_next_level(World *world, int64_t g, int64_t next_level, int64_t level) {
    bool is_ruling = world->knobs.is_by_tier && world->groups[g].kind == GROWING;
    return is_ruling ? max_of(next_level, level) : next_level;
}

// The end of the longest prefix of the chunks from `first` on, below `known`, that can be loaded.
static int64_t group_prefix_end(World *world, int64_t first, int64_t known) {
    int64_t count = world->groups_count;
    int64_t best = 0;
    int64_t from_level = 0;
    for (int64_t g = 0; g < count; g++) {
        world->group_runs[g] = 0;
    }
    for (int64_t chunk = 0; first + (chunk + 1) * count <= known; chunk++) {
        int64_t next_level = from_level;
        for (int64_t g = 0; g < count; g++) {
            int64_t entry = world->chain[first + chunk * count + g];
            int64_t level = object_fastest_level(world, entry, from_level);
            if (level == NONE && world->groups[g].kind == GROWING) {
                return first + best * count;
            }
            world->group_runs[g] = level == NONE ? 0 : world->group_runs[g] + 1;
            next_level = group_next_level(world, g, next_level, level);
        }
        from_level = next_level;
        if (group_prefix_is_complete(world, chunk + 1)) {
            best = chunk + 1;
        }
    }
    return first + best * count;
}

// Sets the hit_level of the objects of `chain[first:end]`, a prefix that can be loaded; returns the
// first that is not in the fastest tier, or `end`.
static int64_t group_set_levels(World *world, int64_t first, int64_t end) {
    int64_t count = world->groups_count;
    int64_t chunks = (end - first) / count;
    int64_t first_below = end;
    int64_t from_level = 0;
    int64_t next_level = 0;
    for (int64_t i = first; i < end; i++) {
        int64_t chunk = (i - first) / count;
        int64_t g = (i - first) % count;
        bool is_needed = chunk >= chunks - group_needed_chunks(world, g, chunks);
        int64_t level = NONE;
        if (is_needed) {
            level = object_fastest_level(world, world->chain[i], from_level);
        }
        world->hit_level[i] = (int8_t)level;
        if (level > 0) {
            first_below = min_of(first_below, first + chunk * count);
        }
        next_level = group_next_level(world, g, next_level, level);
        if (g == count - 1) {
            from_level = next_level;
        }
    }
    return first_below;
}

// Sets the hit_level of retrieved chunks, `chain[:end]`: all objects of one, or none, are hits.
static void group_set_retrieved_levels(World *world, int64_t end) {
    int64_t count = world->groups_count;
    for (int64_t i = 0; i < end; i += count) {
        bool is_hit = true;
        for (int64_t k = i; k < i + count; k++) {
            world->hit_level[k] = (int8_t)object_fastest_level(world, world->chain[k], 0);
            is_hit &= world->hit_level[k] != NONE;
        }
        for (int64_t k = i; !is_hit && k < i + count; k++) {
            world->hit_level[k] = NONE;
        }
    }
}

// As request_lookup.
int64_t group_lookup(World *world, int64_t retrieved, int64_t known, int64_t min_load_tokens) {
    const Knobs *knobs = &world->knobs;
    group_set_retrieved_levels(world, retrieved);
    int64_t end = group_prefix_end(world, retrieved, known);
    int64_t first_below = group_set_levels(world, retrieved, end);
    int64_t tokens_below = (end - first_below) / knobs->chunk_objects * knobs->chunk_tokens;
    if (first_below < end && tokens_below < min_load_tokens) {
        // The shorter prefix may need other chunks of some groups, which the fastest tier may lack.
        end = group_prefix_end(world, retrieved, first_below);
        if (group_set_levels(world, retrieved, end) < end) {
            end = retrieved;
        }
    }
    return end;
}

// As request_lookup_again, of those that were read.
void group_lookup_again(World *world, int64_t actor_id, int64_t retrieved, int64_t end) {
    int64_t count = world->groups_count;
    int64_t from_level = 0;
    int64_t next_level = 0;
    for (int64_t i = 0; i < end; i++) {
        bool is_own = i >= retrieved;
        int64_t g = i % count; // retrieved documents are whole chunks
        if (world->hit_level[i] != NONE) {
            int64_t level = object_fastest_level(world, world->chain[i], is_own ? from_level : 0);
            world->hit_level[i] = (int8_t)level;
            next_level = is_own ? group_next_level(world, g, next_level, level) : 0;
            if (world->knobs.promotion && level > 0) {
                prompt_unpack(world, actor_id, i, i + 1);
            }
        }
        if (g == count - 1) {
            from_level = next_level;
        }
    }
}
