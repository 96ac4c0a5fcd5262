"""Locality of a stream of operations: hot blocks and reuse distances, over 128 KiB blocks; compiled by numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvtrace.core.compiled import allocating

BLOCK_BYTES = 128 * 1024
MAX_ACCESSES = 8_000_000
"""Block accesses looked at; a longer stream is cut here, which bounds memory."""


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


@allocating
def reuse_distances(things: Any, weights: Any, count: int) -> Any:
    """Return for each access the summed weight of the distinct others since the last one to its thing; -1 for a first.

    `things` are numbers below `count`; `weights` are what each access makes its thing weigh. By a Fenwick tree over
    the last accesses.
    """
    n = len(things)
    tree = np.zeros(n + 1, dtype=np.int64)
    last = np.full(count, -1, dtype=np.int64)
    distances = np.full(n, -1, dtype=np.int64)
    live = 0
    for i in range(n):
        before = last[things[i]]
        if before >= 0:
            # Things whose last access is after `before`: all that are live, less those up to it.
            upto, k = 0, before + 1
            while k > 0:
                upto += tree[k]
                k -= k & -k
            distances[i] = live - upto
            k = before + 1
            while k <= n:
                tree[k] -= weights[before]
                k += k & -k
            live -= weights[before]
        last[things[i]] = i
        live += weights[i]
        k = i + 1
        while k <= n:
            tree[k] += weights[i]
            k += k & -k
    return distances
