"""Columns of whole numbers, as NumPy arrays, and what sources do with them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kvtrace.core import pa

Ints = NDArray[np.int64]

NONE = -1
"""Null in `session_id`, `turn` and `qos`."""
BATCH_ITEMS = 1 << 18
"""About how many items of runs are computed at a time, which bounds the memory of temporary arrays."""


def column(values: array[int]) -> Ints:
    """Return the array.array("q") `values` as int64, without a copy."""
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, dtype=np.int64)


def dense(values: Ints) -> tuple[Ints, int]:
    """Return `values` renumbered from 0 by first appearance, and the number of distinct ones."""
    encoded = pa.array(values).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def offsets_of(lengths: Ints) -> Ints:
    """Return where each of consecutive runs begins, and behind the last one where all end."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])


def run_positions(starts: Ints, lengths: Ints) -> Ints:
    """Return the positions of runs, one run after the other: `lengths` from each of `starts` on."""
    offsets = offsets_of(lengths)
    return np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)


def batches_of_runs(offsets: Ints) -> Iterator[tuple[int, int]]:
    """Yield the first and the end of batches of runs, which have about BATCH_ITEMS items each.

    Run n has `offsets[n + 1] - offsets[n]` items.
    """
    starts = np.searchsorted(offsets, np.arange(0, offsets[-1], BATCH_ITEMS), side="left")
    return pairwise(np.unique(np.append(starts, (0, len(offsets) - 1))).tolist())


def runs_of(values: Ints, starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Return the offsets and values of runs of `values`, with these `starts` and `lengths`."""
    offsets = offsets_of(lengths)
    taken = np.empty(offsets[-1], dtype=values.dtype)
    for first, end in batches_of_runs(offsets):
        positions = run_positions(starts[first:end], lengths[first:end])
        taken[offsets[first] : offsets[end]] = values[positions]
    return offsets, taken


def shifted(times: Ints, shifts_ns: Ints) -> Ints:
    """Return one shifted copy of `times` for each of `shifts_ns`, one after the other."""
    return (times[None, :] + shifts_ns[:, None]).reshape(-1)
