"""Distributions of times: exact while there are few, a histogram with a known error beyond.

Up to a limit every time is kept. Beyond it, times are counted in slots that are at most 1/1024 of
their values wide, so a percentile that is read from the middle of its slot is at most 0.05 % off.
Counts, sums and greatest values are exact either way, also of several distributions together.
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
"""How far off a percentile from a histogram may be, as a share of its value."""
SLOTS = (64 - SUB_BITS) << SUB_BITS
EXACT_VALUES = 1 << 18
"""Times that all distributions of a live run keep together, 8 bytes each, in equal shares."""
EXACT_OPERATIONS = 10_000_000
"""Operations of which a distribution keeps every time, where no run waits for it."""
EMPTY = Distribution(0, None, None, None, None, None, None, None)
"""The distribution of no value."""


class TimeDistributions:
    """Several distributions of times in ns, by index; recorder.c adds to their `records`."""

    def __init__(self, number: int = 1, limit: Array | int = EXACT_VALUES) -> None:
        """Make `number` distributions that keep up to `limit` values each, a number or an array."""
        self.records: Array = np.zeros(number, RECORDER.dtype("TimeDistribution"))
        self.records["limit"] = limit
        ends = np.cumsum(self.records["limit"])
        # Pages that nothing is written to take no memory.
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
        """Return how many values the distributions at `indices` have together."""
        return int(self.records["count"][list(indices)].sum())

    def total(self, *indices: int) -> int:
        """Return the sum of their values."""
        records = self.records[list(indices)]
        return (int(records["sum_high"].sum()) << 32) + int(records["sum_low"].sum())

    def distribution(self, *indices: int) -> Distribution:
        """Merge the distributions at `indices`, of which the first is the default.

        Percentiles are by nearest rank, and null where there are too few values.
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

    def quantiles(self, parts: Sequence[int], *indices: int) -> list[int | None]:
        """Return the values at `parts` (ten-thousandths) of the distributions `indices` together.

        Null where there are too few values; 10,000 is the longest.
        """
        count = self.count(*indices)
        ranks = [nearest_rank(count, part) for part in parts]
        wanted = sorted({rank - 1 for rank in ranks if rank is not None})
        longest = self.longest(*indices)
        exact = self._exact(indices)
        if exact is None:
            found = [min(longest, value) for value in self._values_of_ranks(indices, wanted)]
        else:
            exact.partition(wanted or [0])
            found = [int(exact[rank]) for rank in wanted]
        by_rank = dict(zip(wanted, found, strict=True))
        return [
            (longest if part == _WHOLE and count else None) if rank is None else by_rank[rank - 1]
            for part, rank in zip(parts, ranks, strict=True)
        ]

    def longest(self, *indices: int) -> int:
        """Return the greatest value of the distributions at `indices`; 0 if none is positive."""
        return int(self.records["longest"][list(indices)].max())

    def least(self, *indices: int) -> int:
        """Return the least value of the distributions at `indices`, which have at least one."""
        exact = self._exact(indices)
        return self._values_of_ranks(indices, [0])[0] if exact is None else int(exact.min())

    def is_exact(self, *indices: int) -> bool:
        """Return whether all values of the distributions at `indices` are kept."""
        records = self.records[list(indices)]
        return not bool((records["count"] > records["limit"]).any())

    def _exact(self, indices: Sequence[int]) -> Array | None:
        """Return a copy of all values of the distributions; None if one has too many."""
        if not self.is_exact(*indices):
            return None
        return np.concatenate([self._values[index][: self.count(index)] for index in indices])

    def _values_of_ranks(self, indices: Sequence[int], ranks: Sequence[int]) -> list[int]:
        """Return the middles of the slots that hold the values of `ranks`, from 0 and rising."""
        slots = self._slots[list(indices)].sum(axis=0)
        for index in indices:
            if self.is_exact(index):
                call("distribution_fill_slots", slots, self._values[index], self.count(index))
        holders = np.searchsorted(np.cumsum(slots), np.asarray(ranks) + 1).tolist()
        edges = [bounds(slot, SUB_BITS) for slot in holders]
        return [low + (below - low >> 1) for low, below in edges]


_WHOLE = 10_000


def distribution_of(values: Array) -> Distribution:
    """Return the distribution of int64 `values` (ns): its percentiles are exact, or null."""
    times = TimeDistributions(limit=len(values))
    times.add(values)
    return times.distribution()
