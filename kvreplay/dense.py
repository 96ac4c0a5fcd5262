"""Numbers that name things, made dense, so that what is known of each thing lies in an array."""

from __future__ import annotations

from typing import Any

from kvtrace.core.compiled import njit

_SPARE = 1 << 20
"""Places that may stay empty in any case."""


def dense(numbers: Any) -> tuple[Any, int]:
    """Return `numbers` and one more than the highest; in place of sparse ones, their rank. Negative ones stay."""
    import numpy as np

    count = int(numbers.max()) + 1 if len(numbers) else 0
    if count <= 2 * len(numbers) + _SPARE:
        return numbers, max(0, count)
    named = np.unique(numbers)
    named = named[np.searchsorted(named, 0) :]
    ranks = np.searchsorted(named, numbers)
    return np.where(numbers < 0, -1, ranks), len(named)


def counted(keys: Any, count: int) -> Any:
    """Return int64 for each of `count` dense keys, and one more: how many rows have a lower key; none if negative."""
    import numpy as np

    starts = np.zeros(count + 1, np.int64)
    _count(keys, starts)
    return np.cumsum(starts, out=starts)


@njit
def _count(keys: Any, counts: Any) -> None:
    for row in range(len(keys)):
        if keys[row] >= 0:
            counts[keys[row] + 1] += 1
