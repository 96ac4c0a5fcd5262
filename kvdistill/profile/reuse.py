"""Locality of a stream of operations: hot blocks and reuse distances, over 128 KiB blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtrace.core.native.library import I8, function

BLOCK_BYTES = 128 * 1024
MAX_ACCESSES = 8_000_000
"""Block accesses looked at; a longer stream is cut here, which bounds memory."""
_distances = function("reuse_distances", int, I8, I8, int, I8)


def block_accesses(offsets: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the blocks that each operation touches, one after another, renumbered densely from 0."""
    first = offsets // BLOCK_BYTES
    count = (offsets + lengths - 1) // BLOCK_BYTES - first + 1
    kept = int(np.searchsorted(np.cumsum(count), MAX_ACCESSES, "right"))
    first, count = first[:kept], count[:kept]
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    blocks = np.repeat(first, count) + within
    return np.unique(blocks, return_inverse=True)[1].astype(np.int64)


def hot_share(blocks: NDArray[np.int64], part: float = 0.1) -> float | None:
    """Return the share of accesses that go to the hottest `part` of the touched blocks; null if none."""
    if not len(blocks):
        return None
    counts = np.sort(np.bincount(blocks))[::-1]
    hottest = max(1, round(len(counts) * part))
    return float(counts[:hottest].sum() / len(blocks))


def median_reuse(blocks: NDArray[np.int64]) -> float | None:
    """Return the median number of distinct other blocks between accesses to one block; null if none recurs."""
    if not len(blocks):
        return None
    distances = reuse_distances(blocks, np.ones_like(blocks), int(blocks.max()) + 1)
    recurring = distances[distances >= 0]
    return float(np.median(recurring)) if len(recurring) else None


def reuse_distances(things: Any, weights: Any, count: int) -> NDArray[np.int64]:
    """Return for each access the summed weight of the distinct others since the last one to its thing; -1 for a first.

    `things` are numbers below `count`; `weights` are what each access makes its thing weigh.
    """
    distances = np.empty(len(things), dtype=np.int64)
    _distances(len(things), np.ascontiguousarray(things, I8), np.ascontiguousarray(weights, I8), int(count), distances)
    return distances
