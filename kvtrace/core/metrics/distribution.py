"""Distributions of times: exact while they have few values, a histogram with a known error beyond.

Up to a limit every time is stored. Beyond it, times are counted in slots that are at most 1/1024 of
their values wide. A percentile is read from the middle of its slot, so it is at most 0.05 % off.
Counts, sums and maxima are exact in both cases, also for several distributions together.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from kvtrace.core import np
from kvtrace.core.arrays import Array
from kvtrace.core.json_types import JsonObject
from kvtrace.core.metrics.native import RECORDER
from kvtrace.core.native.library import call
from kvtrace.core.native.structs import address
from kvtrace.core.run.figures import Distribution
from kvtrace.core.statistics import QUANTILES, bounds, nearest_rank

SUB_BITS = 10
ERROR = 0.5 / (1 << SUB_BITS)
"""Largest error of a percentile from a histogram, as a share of its value."""
SLOTS = (64 - SUB_BITS) << SUB_BITS
EXACT_VALUES = 1 << 18
"""Times that all distributions of a live run store together, 8 bytes each, in equal shares."""
EXACT_OPERATIONS = 10_000_000
"""Operations up to which a distribution stores every time, when it is computed after a run."""
EMPTY = Distribution(0, None, None, None, None, None, None, None)
"""The distribution of no values."""


class TimeDistributions:
    """Several distributions of times in ns, by index; recorder.c adds to their `records`."""

    def __init__(self, number: int = 1, limit: Array | int = EXACT_VALUES) -> None:
        """Make `number` distributions that store up to `limit` values each; an array has one limit
        for each.
        """
        self.records: Array = np.zeros(number, RECORDER.dtype("TimeDistribution"))
        self.records["limit"] = limit
        ends = np.cumsum(self.records["limit"])
        # Pages that are never written use no memory.
        values: Array = np.empty(int(self.records["limit"].sum()), np.int64)
        self._values = np.split(values, ends[:-1])
        self._slots: Array = np.zeros((number, SLOTS), np.int64)
        self.records["value"] = address(values) + (ends - self.records["limit"]) * values.itemsize
        self.records["slot"] = address(self._slots) + np.arange(number) * self._slots.strides[0]

    def __len__(self) -> int:
        return len(self.records)

    def add(self, values: Array, index: int = 0) -> None:
        """Add int64 `values` to the distribution at `index`."""
        values = np.ascontiguousarray(values, np.int64)
        call("distribution_add", self.records[index:], values, len(values))

    def count(self, *indices: int) -> int:
        """Return the number of values of the distributions at `indices` together."""
        return int(self.records["count"][list(indices)].sum())

    def total(self, *indices: int) -> int:
        """Return the sum of the values of the distributions at `indices`."""
        records = self.records[list(indices)]
        return (int(records["sum_high"].sum()) << 32) + int(records["sum_low"].sum())

    def distribution(self, *indices: int) -> Distribution:
        """Return the distribution of the values at `indices` together; by default those at 0.

        Percentiles are by nearest rank, and null if there are too few values.
        """
        indices = indices or (0,)
        count = self.count(*indices)
        if not count:
            return EMPTY
        values = self.quantiles(list(QUANTILES.values()), *indices)
        percentiles: JsonObject = {
            f"{name}_ns": value for name, value in zip(QUANTILES, values, strict=True)
        }
        return Distribution(
            count=count,
            mean_ns=self.total(*indices) / count,
            max_ns=self.longest(*indices),
            percentiles_within=UNSET if self.is_exact(*indices) else ERROR,
            **percentiles,
        )

    def quantiles(self, quantiles: Sequence[int], *indices: int) -> list[int | None]:
        """Return the values at `quantiles` of the distributions at `indices` together.

        Quantiles are in ten-thousandths; 10,000 is the maximum. A value is null if there are too
        few values for its quantile.
        """
        count = self.count(*indices)
        ranks = [nearest_rank(count, quantile) for quantile in quantiles]
        positions = sorted({rank - 1 for rank in ranks if rank is not None})
        longest = self.longest(*indices)
        exact = self._exact(indices)
        if exact is None:
            values = [min(longest, value) for value in self._values_of_ranks(indices, positions)]
        else:
            exact.partition(positions or [0])
            values = [int(exact[position]) for position in positions]
        value_at = dict(zip(positions, values, strict=True))
        results: list[int | None] = []
        for quantile, rank in zip(quantiles, ranks, strict=True):
            if rank is not None:
                results.append(value_at[rank - 1])
            else:
                results.append(longest if quantile == _WHOLE and count else None)
        return results

    def longest(self, *indices: int) -> int:
        """Return the maximum of the distributions at `indices`; 0 if no value is positive."""
        return int(self.records["longest"][list(indices)].max())

    def shortest(self, *indices: int) -> int:
        """Return the minimum of the distributions at `indices`, which have at least one value."""
        exact = self._exact(indices)
        return self._values_of_ranks(indices, [0])[0] if exact is None else int(exact.min())

    def is_exact(self, *indices: int) -> bool:
        """Return whether all values of the distributions at `indices` are stored."""
        records = self.records[list(indices)]
        return not bool((records["count"] > records["limit"]).any())

    def _exact(self, indices: Sequence[int]) -> Array | None:
        """Return a copy of all values of the distributions; None if some were not stored."""
        if not self.is_exact(*indices):
            return None
        return np.concatenate([self._values[index][: self.count(index)] for index in indices])

    def _values_of_ranks(self, indices: Sequence[int], ranks: Sequence[int]) -> list[int]:
        """Return the middles of the slots that contain the values at `ranks`, which rise from 0."""
        slots = self._slots[list(indices)].sum(axis=0)
        for index in indices:
            if self.is_exact(index):
                call("distribution_fill_slots", slots, self._values[index], self.count(index))
        holders = np.searchsorted(np.cumsum(slots), np.asarray(ranks) + 1).tolist()
        edges = [bounds(slot, SUB_BITS) for slot in holders]
        return [low + (below - low >> 1) for low, below in edges]


_WHOLE = 10_000


def distribution_of(values: Array) -> Distribution:
    """Return the distribution of int64 `values` in ns. Its percentiles are exact, or null."""
    times = TimeDistributions(limit=len(values))
    times.add(values)
    return times.distribution()
