"""Where objects lie in one file or device: first fit over free extents, which coalesce when freed.

Free extents are a treap ordered by address and augmented with the longest extent below each node, so that
first fit, allocation and release are logarithmic however fragmented the space gets; compiled by numba.
"""

from __future__ import annotations

import numpy as np

from kvtrace.core.compiled import inner, njit
from kvtrace.core.structures import Structure, record, table

GRANULE_BYTES = 4096
"""Addresses and reserved lengths are multiples of this: a page, and the largest common sector."""

SPACE_BYTES = 1 << 62
"""The space starts as one free extent of this length, so that growing is allocating like any other."""

_DEEPEST = 512
"""Of a treap of 2^32 nodes no path is nearly as long."""
_NONE = -1

_NODE = np.dtype([(name, "i8") for name in ("left", "right", "start", "length", "longest", "priority")])
_STATE = np.dtype([(name, "i8") for name in ("root", "spare", "used", "span", "low", "high")])


class FreeSpace(Structure):
    """The free extents of one file or device; see new_space."""

    state = record(_STATE)
    """The root, the first spare node (the next are on its left), nodes ever used, the end of the highest byte that was
    ever allocated; and the two trees of a split."""
    nodes = table(_NODE)
    path = table("i4")
    """Scratch."""

    @property
    def span_bytes(self) -> int:
        """The end of the highest byte that was ever allocated."""
        return int(self.state["span"])

    @property
    def room(self) -> int:
        """How many extents may be free at once, and one more."""
        return len(self.nodes)

    def grow(self) -> None:
        """Make room for twice as many free extents."""
        self.nodes = np.concatenate([self.nodes, np.zeros_like(self.nodes)])


def new_space(max_free_extents: int) -> FreeSpace:
    """Return an empty space with room for `max_free_extents` free extents at once.

    One more extent than objects live at once can ever be free.
    """
    if max_free_extents < 1:
        raise ValueError(f"max_free_extents(={max_free_extents}) must be > 0.")
    # Freeing inserts before it coalesces with the extent above: one spare.
    space = FreeSpace(nodes=np.zeros(max_free_extents + 1, _NODE), path=np.zeros(_DEEPEST, np.int32))
    space.state["root"] = space.state["spare"] = _NONE
    _begin(space)
    return space


@njit
def allocate(space: FreeSpace, length: int) -> int:
    """Return the lowest address at which `length` bytes (a positive multiple of the granule) are free."""
    return take(space, length)


@njit
def release(space: FreeSpace, start: int, length: int) -> None:
    """Free `length` bytes at `start`, which must be allocated; join them with the free extents beside them."""
    give(space, start, length)


@njit
def _begin(space: FreeSpace) -> None:
    _add(space, 0, SPACE_BYTES)


@inner
def take(space: FreeSpace, length: int) -> int:
    """Do what `allocate` does, for compiled code."""
    nodes, state = space.nodes, space.state
    at = state.root
    while True:
        left = nodes[at].left
        if left != _NONE and nodes[left].longest >= length:
            at = left
        elif nodes[at].length >= length:
            break
        else:
            at = nodes[at].right
    node = nodes[at]
    start = node.start
    if node.length == length:
        _remove(space, start)
    else:
        node.start += length
        node.length -= length
        _refresh(space, start + length)
    state.span = max(state.span, start + length)
    return start


@inner
def give(space: FreeSpace, start: int, length: int) -> None:
    """Do what `release` does, for compiled code."""
    nodes = space.nodes
    below, above, at = _NONE, _NONE, space.state.root
    while at != _NONE:
        if nodes[at].start < start:
            below, at = at, nodes[at].right
        else:
            above, at = at, nodes[at].left
    joins_below = below != _NONE and nodes[below].start + nodes[below].length == start
    if above != _NONE and nodes[above].start == start + length:
        length += nodes[above].length
        _remove(space, nodes[above].start)
    if joins_below:
        nodes[below].length += length
        _refresh(space, nodes[below].start)
    else:
        _add(space, start, length)


@inner
def _pull(space: FreeSpace, depth: int) -> None:
    """Recompute the longest extents below each of the first `depth` nodes of the path, from its end."""
    nodes = space.nodes
    for i in range(depth - 1, -1, -1):
        node = nodes[space.path[i]]
        longest = node.length
        if node.left != _NONE:
            longest = max(longest, nodes[node.left].longest)
        if node.right != _NONE:
            longest = max(longest, nodes[node.right].longest)
        node.longest = longest


@inner
def _refresh(space: FreeSpace, start: int) -> None:
    """Recompute the longest extents on the way from the root to the extent at `start`."""
    nodes, depth, at = space.nodes, 0, space.state.root
    while True:
        space.path[depth] = at
        depth += 1
        if nodes[at].start == start:
            break
        at = nodes[at].left if start < nodes[at].start else nodes[at].right
    _pull(space, depth)


@inner
def _priority(number: int) -> int:
    # SplitMix64's mixing: the same tree on every run, yet balanced whatever the order of addresses.
    z = np.uint64(number) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((z ^ (z >> np.uint64(31))) >> np.uint64(1))


@inner
def _merge(space: FreeSpace, low: int, high: int) -> int:
    """Return the root of the tree of `low` and `high`, where every address of `low` lies before `high`."""
    nodes, depth = space.nodes, 0
    root, parent, is_left = _NONE, _NONE, False
    while low != _NONE or high != _NONE:
        takes_low = high == _NONE or (low != _NONE and nodes[low].priority > nodes[high].priority)
        top = low if takes_low else high
        if parent == _NONE:
            root = top
        elif is_left:
            nodes[parent].left = top
        else:
            nodes[parent].right = top
        if _NONE in (low, high):
            break
        space.path[depth] = top
        depth += 1
        parent, is_left = top, not takes_low
        if takes_low:
            low = nodes[top].right
        else:
            high = nodes[top].left
    _pull(space, depth)
    return root


@inner
def _split(space: FreeSpace, at: int, start: int) -> None:
    """Put the roots of the trees below and from `start` on into state.low and state.high."""
    nodes, state, depth = space.nodes, space.state, 0
    state.low, state.high = _NONE, _NONE
    low_end, high_end = _NONE, _NONE
    while at != _NONE:
        space.path[depth] = at
        depth += 1
        node = nodes[at]
        if node.start < start:
            if low_end == _NONE:
                state.low = at
            else:
                nodes[low_end].right = at
            low_end, at = at, node.right
        else:
            if high_end == _NONE:
                state.high = at
            else:
                nodes[high_end].left = at
            high_end, at = at, node.left
    if low_end != _NONE:
        nodes[low_end].right = _NONE
    if high_end != _NONE:
        nodes[high_end].left = _NONE
    _pull(space, depth)


@inner
def _add(space: FreeSpace, start: int, length: int) -> None:
    """Add the free extent; it touches no other."""
    nodes, state = space.nodes, space.state
    at = state.spare
    if at == _NONE:
        at = state.used
        state.used += 1
    else:
        state.spare = nodes[at].left
    node = nodes[at]
    node.left = node.right = _NONE
    node.start, node.length, node.longest, node.priority = start, length, length, _priority(at)
    _split(space, state.root, start)
    high = state.high
    state.root = _merge(space, _merge(space, state.low, at), high)


@inner
def _remove(space: FreeSpace, start: int) -> None:
    """Remove the free extent at `start`."""
    nodes, state = space.nodes, space.state
    _split(space, state.root, start)
    low = state.low
    _split(space, state.high, start + 1)
    gone, high = state.low, state.high
    nodes[gone].left = state.spare
    state.spare = gone
    state.root = _merge(space, low, high)
