"""Where objects lie in one file or device: first fit over free extents, which coalesce when freed.

Free extents are a treap ordered by address and augmented with the longest extent below each node, so that
first fit, allocation and release are logarithmic however fragmented the space gets; compiled by numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.core.compiled import allocating

if TYPE_CHECKING:
    from numpy.typing import NDArray

GRANULE_BYTES = 4096
"""Addresses and reserved lengths are multiples of this: a page, and the largest common sector."""

SPACE_BYTES = 1 << 62
"""The space starts as one free extent of this length, so that growing is allocating like any other."""

# Columns of the node table, and of the row of scalars.
_LEFT, _RIGHT, _START, _LENGTH, _LONGEST, _PRIORITY, _COLUMNS = 0, 1, 2, 3, 4, 5, 6
_ROOT, _SPARE, _USED, SPAN = 0, 1, 2, 3
_NONE = -1


def new_space(max_free_extents: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return an empty space (nodes, scalars) with room for `max_free_extents` free extents at once.

    One more extent than objects live at once can ever be free. `scalars[SPAN]` is the end of the highest
    byte ever allocated.
    """
    if max_free_extents < 1:
        raise ValueError(f"max_free_extents(={max_free_extents}) must be > 0.")
    # Freeing inserts before it coalesces with the extent above: one spare.
    nodes = np.zeros((max_free_extents + 1, _COLUMNS), dtype=np.int64)
    scalars = np.array([_NONE, _NONE, 0, 0], dtype=np.int64)
    _add(nodes, scalars, 0, SPACE_BYTES)
    return nodes, scalars


@allocating
def allocate(nodes: Any, scalars: Any, length: int) -> int:
    """Return the lowest address at which `length` bytes (a positive multiple of the granule) are free."""
    node = scalars[_ROOT]
    while True:
        left = nodes[node, _LEFT]
        if left != _NONE and nodes[left, _LONGEST] >= length:
            node = left
        elif nodes[node, _LENGTH] >= length:
            break
        else:
            node = nodes[node, _RIGHT]
    start = nodes[node, _START]
    if nodes[node, _LENGTH] == length:
        _remove(nodes, scalars, start)
    else:
        nodes[node, _START] += length
        nodes[node, _LENGTH] -= length
        _refresh(nodes, scalars[_ROOT], start + length)
    scalars[SPAN] = max(scalars[SPAN], start + length)
    return start


@allocating
def release(nodes: Any, scalars: Any, start: int, length: int) -> None:
    """Free `length` bytes at `start`, which must be allocated; join them with the free extents beside them."""
    below, above = _NONE, _NONE
    node = scalars[_ROOT]
    while node != _NONE:
        if nodes[node, _START] < start:
            below, node = node, nodes[node, _RIGHT]
        else:
            above, node = node, nodes[node, _LEFT]
    joins_below = below != _NONE and nodes[below, _START] + nodes[below, _LENGTH] == start
    if above != _NONE and nodes[above, _START] == start + length:
        length += nodes[above, _LENGTH]
        _remove(nodes, scalars, nodes[above, _START])
    if joins_below:
        nodes[below, _LENGTH] += length
        _refresh(nodes, scalars[_ROOT], nodes[below, _START])
    else:
        _add(nodes, scalars, start, length)


@allocating
def _pull(nodes: Any, node: int) -> None:
    longest = nodes[node, _LENGTH]
    for side in (nodes[node, _LEFT], nodes[node, _RIGHT]):
        if side != _NONE:
            longest = max(longest, nodes[side, _LONGEST])
    nodes[node, _LONGEST] = longest


@allocating
def _refresh(nodes: Any, root: int, start: int) -> None:
    """Recompute the longest extents on the way from `root` to the extent at `start`."""
    path = np.empty(256, dtype=np.int64)
    depth, node = 0, root
    while True:
        path[depth] = node
        depth += 1
        if nodes[node, _START] == start:
            break
        node = nodes[node, _LEFT] if start < nodes[node, _START] else nodes[node, _RIGHT]
    for i in range(depth - 1, -1, -1):
        _pull(nodes, path[i])


@allocating
def _priority(number: int) -> int:
    # SplitMix64's mixing: the same tree on every run, yet balanced whatever the order of addresses.
    z = np.uint64(number) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return int((z ^ (z >> np.uint64(31))) >> np.uint64(1))


@allocating
def _merge(nodes: Any, low: int, high: int) -> int:
    """Return the root of the tree of `low` and `high`, where every address of `low` lies before `high`."""
    path = np.empty(512, dtype=np.int64)
    depth = 0
    root, parent, side = _NONE, _NONE, _LEFT
    while low != _NONE or high != _NONE:
        takes_low = high == _NONE or (low != _NONE and nodes[low, _PRIORITY] > nodes[high, _PRIORITY])
        top = low if takes_low else high
        if parent == _NONE:
            root = top
        else:
            nodes[parent, side] = top
        if _NONE in (low, high):
            break
        path[depth] = top
        depth += 1
        parent = top
        if takes_low:
            side, low = _RIGHT, nodes[top, _RIGHT]
        else:
            side, high = _LEFT, nodes[top, _LEFT]
    for i in range(depth - 1, -1, -1):
        _pull(nodes, path[i])
    return root


@allocating
def _split(nodes: Any, node: int, start: int) -> tuple[int, int]:
    """Return the roots of the trees below and from `start` on."""
    path = np.empty(256, dtype=np.int64)
    depth = 0
    low, high, low_end, high_end = _NONE, _NONE, _NONE, _NONE
    while node != _NONE:
        path[depth] = node
        depth += 1
        if nodes[node, _START] < start:
            if low_end == _NONE:
                low = node
            else:
                nodes[low_end, _RIGHT] = node
            low_end, node = node, nodes[node, _RIGHT]
        else:
            if high_end == _NONE:
                high = node
            else:
                nodes[high_end, _LEFT] = node
            high_end, node = node, nodes[node, _LEFT]
    if low_end != _NONE:
        nodes[low_end, _RIGHT] = _NONE
    if high_end != _NONE:
        nodes[high_end, _LEFT] = _NONE
    for i in range(depth - 1, -1, -1):
        _pull(nodes, path[i])
    return low, high


@allocating
def _add(nodes: Any, scalars: Any, start: int, length: int) -> None:
    """Add the free extent; it touches no other."""
    node = scalars[_SPARE]
    if node == _NONE:
        node = scalars[_USED]
        scalars[_USED] += 1
    else:
        scalars[_SPARE] = nodes[node, _LEFT]
    nodes[node, _LEFT] = nodes[node, _RIGHT] = _NONE
    nodes[node, _START], nodes[node, _LENGTH], nodes[node, _LONGEST] = start, length, length
    nodes[node, _PRIORITY] = _priority(node)
    low, high = _split(nodes, scalars[_ROOT], start)
    scalars[_ROOT] = _merge(nodes, _merge(nodes, low, node), high)


@allocating
def _remove(nodes: Any, scalars: Any, start: int) -> None:
    """Remove the free extent at `start`."""
    low, rest = _split(nodes, scalars[_ROOT], start)
    gone, high = _split(nodes, rest, start + 1)
    nodes[gone, _LEFT] = scalars[_SPARE]
    scalars[_SPARE] = gone
    scalars[_ROOT] = _merge(nodes, low, high)
