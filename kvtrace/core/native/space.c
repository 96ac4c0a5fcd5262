// Where objects lie in one file, device or memory: each gets the lowest free extent that is long
// enough.
//
//     space_reserve  -> space_allocate  the lowest free extent, shortened
//     space_release  -> space_free      the extent, joined with its free neighbours
//
// Free extents are a treap (Seidel and Aragon, Randomized search trees, Algorithmica, 1996) in the
// order of their starts. Each node knows the longest extent below it, so finding, allocating and
// freeing take logarithmic time however scattered the free space is:
//
//     lowest extent of n bytes below a node:
//         if the left subtree has one:  the lowest there
//         else if the node's is one:    that
//         else:                         the lowest in the right subtree
#include "core.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

// A free extent, as a node of the treap.
typedef struct {
    int64_t start;
    int64_t bytes;
    int64_t longest;   // Bytes of the longest extent of the subtree.
    uint64_t priority; // Not below that of any node of the subtree.
    int32_t left;      // Of a node that is not used: the next such node.
    int32_t right;
} FreeExtent;

// The extent of an object; of one that is not used, `start` is the index of the next such extent.
typedef struct {
    int64_t start;
    int64_t bytes;
} Extent;

struct Space {
    pthread_mutex_t lock;
    int64_t size_bytes;
    int64_t unit_bytes; // Extents are multiples of this.

    FreeExtent *node;
    int32_t nodes;
    int32_t node_room;  // How many nodes there is memory for.
    int32_t spare_node; // The first node that is not used.
    int32_t root;

    Table extent_of;      // By object: the index of its extent.
    Table expected_bytes; // By object: the bytes it will have at its largest.
    Extent *extent;
    int64_t extents;
    int64_t extent_room;  // How many extents there is memory for.
    int64_t spare_extent; // The first extent that is not used.

    int64_t live_bytes;    // Bytes of the extents of all objects.
    int64_t highest_bytes; // The end of the highest byte that was ever reserved.
};

// --- the treap of free extents

static int64_t treap_longest(const Space *space, int32_t at) {
    return at == NONE ? 0 : space->node[at].longest;
}

static void treap_update_longest(Space *space, int32_t at) {
    FreeExtent *node = &space->node[at];
    int64_t left = treap_longest(space, node->left);
    int64_t right = treap_longest(space, node->right);
    node->longest = max_of(node->bytes, max_of(left, right));
}

// Joins two treaps, of which all extents of `low` are below those of `high`.
static int32_t treap_merge(Space *space, int32_t low, int32_t high) {
    if (low == NONE) {
        return high;
    }
    if (high == NONE) {
        return low;
    }
    if (space->node[low].priority > space->node[high].priority) {
        space->node[low].right = treap_merge(space, space->node[low].right, high);
        treap_update_longest(space, low);
        return low;
    }
    space->node[high].left = treap_merge(space, low, space->node[high].left);
    treap_update_longest(space, high);
    return high;
}

// Splits a treap into the extents that begin below `start`, and those from it on.
static void treap_split(Space *space, int32_t at, int64_t start, int32_t *low, int32_t *high) {
    if (at == NONE) {
        *low = NONE;
        *high = NONE;
        return;
    }
    FreeExtent *node = &space->node[at];
    if (node->start < start) {
        treap_split(space, node->right, start, &node->right, high);
        *low = at;
    } else {
        treap_split(space, node->left, start, low, &node->left);
        *high = at;
    }
    treap_update_longest(space, at);
}

// Adds an extent that touches no other.
static void treap_add(Space *space, int64_t start, int64_t bytes) {
    int32_t at = space->spare_node;
    if (at != NONE) {
        space->spare_node = space->node[at].left;
    } else {
        if (space->nodes == space->node_room) {
            space->node_room = 2 * space->node_room + 64;
            space->node = memory_grow(space->node, space->node_room, sizeof(FreeExtent));
        }
        at = space->nodes++;
    }
    space->node[at] = (FreeExtent){.start = start,
                                   .bytes = bytes,
                                   .longest = bytes,
                                   .priority = mixed((uint64_t)at + 1),
                                   .left = NONE,
                                   .right = NONE};
    int32_t low;
    int32_t high;
    treap_split(space, space->root, start, &low, &high);
    space->root = treap_merge(space, treap_merge(space, low, at), high);
}

static void treap_remove(Space *space, int64_t start) {
    int32_t low;
    int32_t middle;
    int32_t high;
    treap_split(space, space->root, start, &low, &high);
    treap_split(space, high, start + 1, &middle, &high);
    space->node[middle].left = space->spare_node;
    space->spare_node = middle;
    space->root = treap_merge(space, low, high);
}

// Shortens the lowest extent of at least `bytes` of a subtree, which has one; returns where it
// began.
static int64_t treap_take_lowest(Space *space, int32_t at, int64_t bytes, bool *is_used_up) {
    FreeExtent *node = &space->node[at];
    int64_t start;
    if (treap_longest(space, node->left) >= bytes) {
        start = treap_take_lowest(space, node->left, bytes, is_used_up);
    } else if (node->bytes >= bytes) {
        start = node->start;
        node->start += bytes;
        node->bytes -= bytes;
        *is_used_up = node->bytes == 0;
    } else {
        start = treap_take_lowest(space, node->right, bytes, is_used_up);
    }
    treap_update_longest(space, at);
    return start;
}

// --- extents

int64_t space_allocate(Space *space, int64_t bytes) {
    if (treap_longest(space, space->root) < bytes) {
        return -ENOSPC;
    }
    bool is_used_up = false;
    int64_t start = treap_take_lowest(space, space->root, bytes, &is_used_up);
    if (is_used_up) {
        treap_remove(space, start + bytes); // An extent of no bytes is left, which begins there.
    }
    space->highest_bytes = max_of(space->highest_bytes, start + bytes);
    return start;
}

void space_free(Space *space, int64_t start, int64_t bytes) {
    int32_t below = NONE;
    int32_t above = NONE;
    for (int32_t at = space->root; at != NONE;) {
        const FreeExtent *node = &space->node[at];
        if (node->start < start) {
            below = at;
            at = node->right;
        } else {
            above = at;
            at = node->left;
        }
    }
    if (above != NONE && space->node[above].start == start + bytes) {
        bytes += space->node[above].bytes;
        treap_remove(space, space->node[above].start);
    }
    if (below != NONE && space->node[below].start + space->node[below].bytes == start) {
        start = space->node[below].start;
        bytes += space->node[below].bytes;
        treap_remove(space, start);
    }
    treap_add(space, start, bytes);
}

// --- objects

// Takes an unused extent, whose memory may move.
static int64_t extent_take(Space *space) {
    int64_t at = space->spare_extent;
    if (at != NONE) {
        space->spare_extent = space->extent[at].start;
        return at;
    }
    if (space->extents == space->extent_room) {
        space->extent_room = 2 * space->extent_room + 64;
        space->extent = memory_grow(space->extent, space->extent_room, sizeof(Extent));
    }
    return space->extents++;
}

static int64_t space_reserve_locked(Space *space, int64_t object, int64_t bytes) {
    const int64_t *known = table_find(&space->extent_of, object);
    const int64_t *expected_bytes = table_find(&space->expected_bytes, object);
    if (expected_bytes) {
        bytes = max_of(bytes, *expected_bytes);
    }
    bytes = (bytes + space->unit_bytes - 1) / space->unit_bytes * space->unit_bytes;
    if (known) {
        const Extent *extent = &space->extent[*known];
        return extent->bytes < bytes ? -EFBIG : extent->start;
    }
    int64_t start = bytes ? space_allocate(space, bytes) : 0;
    if (start < 0) {
        return start;
    }
    int64_t at = extent_take(space);
    space->extent[at] = (Extent){start, bytes};
    *table_put(&space->extent_of, object, 0) = at;
    space->live_bytes += bytes;
    return start;
}

EXPORT Space *space_open(int64_t size_bytes, int64_t unit_bytes, int64_t reserved_bytes) {
    Space *space = memory_zeros(1, sizeof(Space));
    pthread_mutex_init(&space->lock, NULL);
    space->size_bytes = size_bytes;
    space->unit_bytes = unit_bytes;
    space->spare_node = NONE;
    space->root = NONE;
    space->spare_extent = NONE;
    if (size_bytes > reserved_bytes) {
        treap_add(space, reserved_bytes, size_bytes - reserved_bytes);
    }
    return space;
}

EXPORT void space_close(Space *space) {
    table_free(&space->extent_of);
    table_free(&space->expected_bytes);
    pthread_mutex_destroy(&space->lock);
    free(space->node);
    free(space->extent);
    free(space);
}

// Lets the object's extent have at least `bytes` once it is reserved.
EXPORT void space_expect(Space *space, int64_t object, int64_t bytes) {
    *table_put(&space->expected_bytes, object, 0) = bytes;
}

EXPORT int64_t space_reserve(Space *space, int64_t object, int64_t bytes) {
    pthread_mutex_lock(&space->lock);
    int64_t start = space_reserve_locked(space, object, bytes);
    pthread_mutex_unlock(&space->lock);
    return start;
}

EXPORT void space_reserve_all(Space *space, const int64_t *object, const int64_t *bytes,
                              int64_t *start, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        start[i] = space_reserve(space, object[i], bytes[i]);
    }
}

EXPORT int64_t space_find(Space *space, int64_t object, int64_t *bytes) {
    pthread_mutex_lock(&space->lock);
    const int64_t *at = table_find(&space->extent_of, object);
    int64_t start = -ENOENT;
    if (at) {
        start = space->extent[*at].start;
        if (bytes) {
            *bytes = space->extent[*at].bytes;
        }
    }
    pthread_mutex_unlock(&space->lock);
    return start;
}

EXPORT int64_t space_release(Space *space, int64_t object) {
    pthread_mutex_lock(&space->lock);
    const int64_t *known = table_find(&space->extent_of, object);
    bool is_known = known != NULL;
    if (is_known) {
        int64_t at = *known;
        Extent *extent = &space->extent[at];
        if (extent->bytes) {
            space_free(space, extent->start, extent->bytes);
        }
        space->live_bytes -= extent->bytes;
        extent->start = space->spare_extent;
        space->spare_extent = at;
        table_drop(&space->extent_of, object);
    }
    pthread_mutex_unlock(&space->lock);
    return is_known ? 0 : -ENOENT;
}

int64_t space_highest_bytes(const Space *space) {
    return space->highest_bytes;
}

// How many objects have an extent, and the bytes of these and of the whole.
EXPORT void space_facts(Space *space, int64_t *objects, int64_t *live_bytes,
                        int64_t *highest_bytes) {
    *objects = space->extent_of.count;
    *live_bytes = space->live_bytes;
    *highest_bytes = space->highest_bytes;
}
