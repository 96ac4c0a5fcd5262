"""Columns of whole numbers, as NumPy arrays, and what sources do with them."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from kvtrace.core import pa

Ints = NDArray[np.int64]

NONE = -1
"""Null in `session_id`, `turn` and `qos`."""


def column(values: array[int]) -> Ints:
    """Return the array.array("q") `values` as int64, without a copy."""
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, dtype=np.int64)


def dense(values: Ints) -> tuple[Ints, int]:
    """Return `values` renumbered from 0 by first appearance, and the number of distinct ones."""
    encoded = pa.array(values).dictionary_encode()
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def runs_of(values: Ints, starts: Ints, lengths: Ints) -> tuple[Ints, Ints]:
    """Return the offsets and values of runs of `values`, with these `starts` and `lengths`."""
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    return offsets, values[np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], lengths)]


def shifted(times: Ints, shifts_ns: Ints) -> Ints:
    """Return one shifted copy of `times` for each of `shifts_ns`, one after the other."""
    return (times[None, :] + shifts_ns[:, None]).reshape(-1)
