"""Times of many operations pooled: all of them while they fit, else a histogram, which adds up as exactly.

A histogram's slots are 1/1024 of their value wide, so a percentile read from it is at most 0.05 % off.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvtrace.core.run.figures import Distribution
from kvtrace.core.statistics import QUANTILES, nearest_rank

SUB_BITS = 10
ERROR = 0.5 / (1 << SUB_BITS)
"""Of a value: how far off a percentile may be that a histogram tells."""
_SLOTS = (64 - SUB_BITS) << SUB_BITS


class Times:
    """Times in ns, as they come."""

    def __init__(self, *, is_exact: bool) -> None:
        """Keep all of them, or their histogram."""
        self._kept: list[Any] = []
        self._counts = None if is_exact else np.zeros(_SLOTS, np.int64)
        self._count, self._sum, self._most = 0, 0.0, 0

    def add(self, values: Any) -> None:
        """Take some more."""
        if not len(values):
            return
        self._count += len(values)
        self._sum += float(values.sum())
        self._most = max(self._most, int(values.max()))
        if self._counts is None:
            self._kept.append(values)
        else:
            self._counts += np.bincount(_slot(np.maximum(values, 0)), minlength=_SLOTS)

    def distribution(self) -> Distribution:
        """Return how they are distributed; null where too few tell."""
        if not self._count:
            return Distribution(0, *[None] * 7)
        ranks = {name: nearest_rank(self._count, part) for name, part in QUANTILES.items()}
        if self._counts is None:
            ordered = np.sort(np.concatenate(self._kept))
            found = {name: None if rank is None else int(ordered[rank - 1]) for name, rank in ranks.items()}
        else:
            up_to = np.cumsum(self._counts)
            found = {
                name: None if rank is None else min(self._most, _middle(int(np.searchsorted(up_to, rank))))
                for name, rank in ranks.items()
            }
        quantiles = {f"{name}_ns": value for name, value in found.items()}
        return Distribution(count=self._count, mean_ns=self._sum / self._count, max_ns=self._most, **quantiles)


def _slot(values: Any) -> Any:
    bits = np.frexp(values.astype(np.float64))[1].astype(np.int64)
    shift = np.maximum(bits - 1 - SUB_BITS, 0)
    return (shift << SUB_BITS) + (values >> shift)


def _middle(slot: int) -> int:
    if slot < 2 << SUB_BITS:
        return slot
    shift = (slot >> SUB_BITS) - 1
    return ((slot - (shift << SUB_BITS)) << shift) + (1 << shift >> 1)
