"""Times of many operations: all of them while they are few, beyond that a histogram.

A histogram's slots are 1/1024 of their value wide, so a percentile read from its middles is at most 0.05 % off. Counts,
sums and greatest values are exact either way, and so is what several have together.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import UNSET

from kvreplay.native.rows import COUNTED
from kvtrace.core.native.library import library
from kvtrace.core.native.structs import address
from kvtrace.core.run.figures import Distribution
from kvtrace.core.statistics import QUANTILES, nearest_rank

SUB_BITS = 10
ERROR = 0.5 / (1 << SUB_BITS)
"""Of a value: how far off a percentile may be that a histogram tells."""
SLOTS = (64 - SUB_BITS) << SUB_BITS
EXACT_VALUES = 1 << 18
"""Kept of all the distributions of a run together, 8 bytes each; each has the same share."""
TIMES = COUNTED.dtype("Times")
NOTHING = Distribution(0, None, None, None, None, None, None, None)
"""That of no value."""


def call(name: str, *arguments: Any) -> int:
    """Call a function of count.c, which takes addresses of arrays and int64, and return its answer."""
    function = library()[name]
    function.restype = ctypes.c_int64
    numbers = (int(a) if isinstance(a, int | np.integer) else address(a) for a in arguments)
    return int(function(*map(ctypes.c_int64, numbers)))


class Times:
    """Several distributions of times in ns; count.c puts into their `records`."""

    def __init__(self, number: int = 1, limit: int = EXACT_VALUES) -> None:
        """Make `number` of them that keep up to `limit` values each."""
        # Pages that nothing is written to take no memory.
        self._values, self._slots = np.empty((number, limit), np.int64), np.zeros((number, SLOTS), np.int64)
        self.records = np.zeros(number, TIMES)
        self.records["limit"] = limit
        for name, table in (("value", self._values), ("slot", self._slots)):
            self.records[name] = address(table) + np.arange(number) * table.strides[0]

    def add(self, values: Any, at: int = 0) -> None:
        """Take int64 `values` into the distribution `at`."""
        values = np.ascontiguousarray(values, np.int64)
        call("times_put", self.records[at:], values, len(values))

    def count(self, *at: int) -> int:
        """Return how many values the distributions `at` have together."""
        return int(self.records["count"][list(at)].sum())

    def total(self, *at: int) -> int:
        """Return the sum of their values."""
        found = self.records[list(at)]
        return (int(found["sum_high"].sum()) << 32) + int(found["sum_low"].sum())

    def distribution(self, *at: int) -> Distribution:
        """Return what the distributions `at` are together: nearest-rank percentiles, null where too few tell."""
        at = at or (0,)
        count = self.count(*at)
        if not count:
            return NOTHING
        known = [rank - 1 for part in QUANTILES.values() if (rank := nearest_rank(count, part)) is not None]
        most = int(self.records["most"][list(at)].max())
        values = self._exact(at)
        if values is None:
            found = [min(most, value) for value in self._of_ranks(at, known)]
        else:
            values.partition(known or [0])
            found = [int(values[rank]) for rank in known]
        names = [f"{name}_ns" for name in QUANTILES]
        known_ns: dict[str, Any] = dict.fromkeys(names) | dict(zip(names, found, strict=False))
        within = UNSET if values is not None else ERROR
        mean = self.total(*at) / count
        return Distribution(count=count, mean_ns=mean, max_ns=most, percentiles_within=within, **known_ns)

    def quick(self, percent: int, *at: int) -> float:
        """Return the percentile `percent` of the distributions `at` together, between the values beside it."""
        values = self._exact(at)
        if values is not None:
            return float(np.percentile(values, percent))
        return float(self._of_ranks(at, [(self.count(*at) - 1) * percent // 100])[0])

    def _exact(self, at: Sequence[int]) -> Any:
        """Return all values of the distributions `at`; None if one of them has too many."""
        found = self.records[list(at)]
        if (found["count"] > found["limit"]).any():
            return None
        return np.concatenate([self._values[i][: self.count(i)] for i in at])

    def _of_ranks(self, at: Sequence[int], ranks: Sequence[int]) -> list[int]:
        """Return the middles of the slots that hold the values of `ranks`, from 0 and rising."""
        slots = self._slots[list(at)].sum(axis=0)
        for i in at:
            if self.count(i) <= self.records["limit"][i]:
                call("times_fill", slots, self._values[i], self.count(i))
        return [_middle(int(slot)) for slot in np.searchsorted(np.cumsum(slots), np.asarray(ranks) + 1)]


def _middle(slot: int) -> int:
    if slot < 2 << SUB_BITS:
        return slot
    shift = (slot >> SUB_BITS) - 1
    return ((slot - (shift << SUB_BITS)) << shift) + (1 << shift >> 1)
