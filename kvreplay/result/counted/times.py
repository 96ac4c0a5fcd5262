"""Times of many operations: all of them while they are few, beyond that a histogram.

A histogram's slots are 1/1024 of their value wide, so a percentile read from its middles is at most 0.05 % off. Counts,
sums and greatest values are exact either way, and so is what several have together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import UNSET

from kvtrace.core.compiled import inner, int64s, njit
from kvtrace.core.run.figures import Distribution
from kvtrace.core.statistics import QUANTILES, nearest_rank

SUB_BITS = 10
ERROR = 0.5 / (1 << SUB_BITS)
"""Of a value: how far off a percentile may be that a histogram tells."""
SLOTS = (64 - SUB_BITS) << SUB_BITS
EXACT_VALUES = 3_500_000
"""Kept of all the distributions of a run together, 8 bytes each; each has the same share."""
_OF_EXPONENT = 1023 + SUB_BITS - 1
_LOW = (1 << 32) - 1
TIMES = np.dtype(
    [(name, np.int64) for name in ("count", "sum_high", "sum_low", "most", "limit", "values", "counts")], align=True
)
"""One distribution: the sum as `sum_high` * 2**32 + `sum_low`; the addresses of the values, while there are no more
than `limit`, and of the slots' counts."""


NOTHING = Distribution(0, None, None, None, None, None, None, None)
"""That of no value."""


class Times:
    """Several distributions of times in ns; compiled code puts into them by `put`."""

    def __init__(self, number: int = 1, limit: int = EXACT_VALUES) -> None:
        """Make `number` of them that keep up to `limit` values each."""
        self._values: list[Any] = [np.empty(0, np.int64) for _ in range(number)]
        # Pages that nothing is written to take no memory.
        self._counts = np.zeros((number, SLOTS), np.int64)
        self.records = np.zeros(number, TIMES)
        self.records["limit"] = limit
        self.records["counts"] = self._counts.ctypes.data + np.arange(number) * self._counts.strides[0]

    def add(self, values: Any, at: int = 0) -> None:
        """Take int64 `values` into the distribution `at`."""
        self._reserve(at, len(values))
        _put_all(self.records, at, np.ascontiguousarray(values, np.int64))
        self.release()

    def reserve(self, count: int) -> None:
        """Make room for `count` more values in each distribution."""
        for at in range(len(self.records)):
            self._reserve(at, count)

    def _reserve(self, at: int, count: int) -> None:
        known, limit = self.count(at), int(self.records["limit"][at])
        wanted = min(limit, known + count)
        if known <= limit and wanted > len(self._values[at]):
            values = np.empty(min(limit, max(wanted, 2 * known)), np.int64)
            values[:known] = self._values[at][:known]
            self._values[at], self.records["values"][at] = values, values.ctypes.data

    def release(self) -> None:
        """Give up the memory of values that a histogram has taken over."""
        for at in np.flatnonzero(self.records["count"] > self.records["limit"]).tolist():
            self._values[at] = np.empty(0, np.int64)

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
        quantiles = dict(zip(QUANTILES, [*found, *[None] * (len(QUANTILES) - len(found))], strict=True))
        return Distribution(
            count=count,
            mean_ns=self.total(*at) / count,
            p50_ns=quantiles["p50"],
            p95_ns=quantiles["p95"],
            p99_ns=quantiles["p99"],
            p99_9_ns=quantiles["p99_9"],
            p99_99_ns=quantiles["p99_99"],
            max_ns=most,
            percentiles_within=UNSET if values is not None else ERROR,
        )

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
        counts = self._counts[list(at)].sum(axis=0)
        for i in at:
            if self.count(i) <= self.records["limit"][i]:
                _fill(counts, self._values[i][: self.count(i)])
        return [_middle(int(slot)) for slot in np.searchsorted(np.cumsum(counts), np.asarray(ranks) + 1)]


@inner
def _slot(value: int) -> Any:
    if value < 1 << SUB_BITS:
        return max(value, 0)
    # A float's exponent and the first bits of its fraction, which stand beside each other.
    return (np.float64(value).view(np.int64) >> (52 - SUB_BITS)) - (_OF_EXPONENT << SUB_BITS)


def _middle(slot: int) -> int:
    if slot < 2 << SUB_BITS:
        return slot
    shift = (slot >> SUB_BITS) - 1
    return ((slot - (shift << SUB_BITS)) << shift) + (1 << shift >> 1)


@inner
def put(times: Any, at: int, value: int) -> None:
    """Take `value` into the distribution `at` of `times`."""
    each = times[at]
    count = each.count
    if count < each.limit:
        int64s(each.values)[count] = value
    else:
        counts = int64s(each.counts)
        if count == each.limit:
            values = int64s(each.values)
            for i in range(count):
                counts[_slot(values[i])] += 1
        counts[_slot(value)] += 1
    each.count = count + 1
    each.sum_high += value >> 32
    each.sum_low += value & _LOW
    each.most = max(each.most, value)


@njit
def _put_all(times: Any, at: int, values: Any) -> None:
    for i in range(len(values)):
        put(times, at, values[i])


@njit
def _fill(counts: Any, values: Any) -> None:
    for i in range(len(values)):
        counts[_slot(values[i])] += 1
