// Where objects lie in one file, device or memory: the lowest free extent that is long enough, and
// which object has which.
//
// Free extents are a treap in the order of their starts, each node with the longest extent below
// it, so that to find, take and give back are logarithmic however scattered the free space is.
#include "core.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

typedef struct {
    int64_t start, bytes, longest;
    uint64_t priority;
    int32_t left, right;
} Node;
typedef struct {
    int64_t start, bytes;
} Extent;

struct Space {
    pthread_mutex_t lock;
    int64_t size_bytes, unit_bytes;
    Node *node;
    int32_t nodes, node_room, spare, root;
    Table objects, grown; // an object's extent; how long it gets at most
    Extent *extent;
    int64_t extents, extent_room, spare_extent;
    int64_t live_bytes, highest_bytes;
};

static int64_t longest(const Space *s, int32_t at) {
    return at == NONE ? 0 : s->node[at].longest;
}

static void refresh(Space *s, int32_t at) {
    Node *n = &s->node[at];
    int64_t below =
        longest(s, n->left) > longest(s, n->right) ? longest(s, n->left) : longest(s, n->right);
    n->longest = n->bytes > below ? n->bytes : below;
}

static int32_t merge(Space *s, int32_t low, int32_t high) {
    if (low == NONE || high == NONE) {
        return low == NONE ? high : low;
    }
    if (s->node[low].priority > s->node[high].priority) {
        s->node[low].right = merge(s, s->node[low].right, high);
        refresh(s, low);
        return low;
    }
    s->node[high].left = merge(s, low, s->node[high].left);
    refresh(s, high);
    return high;
}

static void split(Space *s, int32_t at, int64_t start, int32_t *low,
                  int32_t *high) { // below `start`, and from it on
    if (at == NONE) {
        *low = *high = NONE;
        return;
    }
    Node *n = &s->node[at];
    if (n->start < start) {
        split(s, n->right, start, &n->right, high), *low = at;
    } else {
        split(s, n->left, start, low, &n->left), *high = at;
    }
    refresh(s, at);
}

static void add_free(Space *s, int64_t start, int64_t bytes) { // an extent that touches no other
    int32_t at = s->spare, low, high;
    if (at != NONE) {
        s->spare = s->node[at].left;
    } else {
        if (s->nodes == s->node_room) {
            s->node_room = 2 * s->node_room + 64;
            s->node = grown(s->node, s->node_room, sizeof(Node));
        }
        at = s->nodes++;
    }
    s->node[at] = (Node){start, bytes, bytes, mixed((uint64_t)at + 1), NONE, NONE};
    split(s, s->root, start, &low, &high);
    s->root = merge(s, merge(s, low, at), high);
}

static void remove_free(Space *s, int64_t start) {
    int32_t low, middle, high;
    split(s, s->root, start, &low, &high);
    split(s, high, start + 1, &middle, &high);
    s->node[middle].left = s->spare;
    s->spare = middle;
    s->root = merge(s, low, high);
}

// The lowest free extent of so many bytes, at or below `at`: shorten it, and return where it began.
static int64_t take_lowest(Space *s, int32_t at, int64_t bytes, bool *is_used_up) {
    Node *n = &s->node[at];
    int64_t start;
    if (longest(s, n->left) >= bytes) {
        start = take_lowest(s, n->left, bytes, is_used_up);
    } else if (n->bytes >= bytes) {
        start = n->start, n->start += bytes, n->bytes -= bytes, *is_used_up = !n->bytes;
    } else {
        start = take_lowest(s, n->right, bytes, is_used_up);
    }
    refresh(s, at);
    return start;
}

int64_t space_take(Space *s, int64_t bytes) {
    if (longest(s, s->root) < bytes) {
        return -ENOSPC;
    }
    bool is_used_up;
    int64_t start = take_lowest(s, s->root, bytes, &is_used_up);
    if (is_used_up) {
        remove_free(s, start + bytes); // it begins where the next would
    }
    if (start + bytes > s->highest_bytes) {
        s->highest_bytes = start + bytes;
    }
    return start;
}

void space_give(Space *s, int64_t start, int64_t bytes) {
    int32_t below = NONE, above = NONE;
    for (int32_t at = s->root; at != NONE;) {
        if (s->node[at].start < start) {
            below = at, at = s->node[at].right;
        } else {
            above = at, at = s->node[at].left;
        }
    }
    if (above != NONE && s->node[above].start == start + bytes) {
        bytes += s->node[above].bytes;
        remove_free(s, s->node[above].start);
    }
    if (below != NONE && s->node[below].start + s->node[below].bytes == start) {
        start = s->node[below].start, bytes += s->node[below].bytes;
        remove_free(s, start);
    }
    add_free(s, start, bytes);
}

static int64_t reserve(Space *s, int64_t object, int64_t bytes) {
    int64_t *known = table_find(&s->objects, object), *most = table_find(&s->grown, object);
    if (most && *most > bytes) {
        bytes = *most;
    }
    bytes = (bytes + s->unit_bytes - 1) / s->unit_bytes * s->unit_bytes;
    if (known) {
        return s->extent[*known].bytes < bytes ? -EFBIG : s->extent[*known].start;
    }
    int64_t start = bytes ? space_take(s, bytes) : 0;
    if (start < 0) {
        return start;
    }
    int64_t at = s->spare_extent;
    if (at != NONE) {
        s->spare_extent = s->extent[at].start;
    } else {
        if (s->extents == s->extent_room) {
            s->extent_room = 2 * s->extent_room + 64;
            s->extent = grown(s->extent, s->extent_room, sizeof(Extent));
        }
        at = s->extents++;
    }
    s->extent[at] = (Extent){start, bytes};
    *table_put(&s->objects, object, 0) = at;
    s->live_bytes += bytes;
    return start;
}

EXPORT Space *space_open(int64_t size_bytes, int64_t unit_bytes, int64_t reserved_bytes) {
    Space *s = zeros(1, sizeof(Space));
    pthread_mutex_init(&s->lock, NULL);
    s->size_bytes = size_bytes, s->unit_bytes = unit_bytes;
    s->spare = s->root = NONE, s->spare_extent = NONE;
    if (size_bytes > reserved_bytes) {
        add_free(s, reserved_bytes, size_bytes - reserved_bytes);
    }
    return s;
}

EXPORT void space_close(Space *s) {
    table_free(&s->objects), table_free(&s->grown);
    pthread_mutex_destroy(&s->lock);
    free(s->node), free(s->extent), free(s);
}

EXPORT void space_expect(Space *s, int64_t object, int64_t bytes) {
    *table_put(&s->grown, object, 0) = bytes;
}

EXPORT int64_t space_reserve(Space *s, int64_t object, int64_t bytes) {
    pthread_mutex_lock(&s->lock);
    int64_t start = reserve(s, object, bytes);
    pthread_mutex_unlock(&s->lock);
    return start;
}

EXPORT void space_reserve_all(Space *s, const int64_t *object, const int64_t *bytes, int64_t *start,
                              int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        start[i] = space_reserve(s, object[i], bytes[i]);
    }
}

EXPORT int64_t space_find(Space *s, int64_t object, int64_t *bytes) {
    pthread_mutex_lock(&s->lock);
    int64_t *at = table_find(&s->objects, object), start = at ? s->extent[*at].start : -ENOENT;
    if (at && bytes) {
        *bytes = s->extent[*at].bytes;
    }
    pthread_mutex_unlock(&s->lock);
    return start;
}

EXPORT int64_t space_release(Space *s, int64_t object) {
    pthread_mutex_lock(&s->lock);
    int64_t *at = table_find(&s->objects, object), found = at ? *at : NONE;
    if (at) {
        Extent *of = &s->extent[found];
        if (of->bytes) {
            space_give(s, of->start, of->bytes);
        }
        s->live_bytes -= of->bytes;
        of->start = s->spare_extent, s->spare_extent = found;
        table_drop(&s->objects, object);
    }
    pthread_mutex_unlock(&s->lock);
    return at ? 0 : -ENOENT;
}

int64_t space_highest_bytes(const Space *s) {
    return s->highest_bytes;
}

EXPORT void space_facts(Space *s, int64_t *objects, int64_t *live_bytes, int64_t *highest_bytes) {
    *objects = s->objects.count, *live_bytes = s->live_bytes, *highest_bytes = s->highest_bytes;
}
