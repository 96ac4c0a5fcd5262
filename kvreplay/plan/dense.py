"""Numbers that name things, made dense, so that what is known of each thing lies in an array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_SPARE = 1 << 20
"""Places that may stay empty in any case."""


@dataclass(frozen=True, slots=True)
class Dense:
    """Numbers from 0 up, negative ones for nothing."""

    numbers: Any
    """int32."""
    count: int
    """One more than the highest can be."""
    named: Any
    """int64 a number: what stood in its place; None if they are what they were."""

    def names(self, numbers: Any) -> Any:
        """Return int64: what stood in the place of `numbers`."""
        import numpy as np

        return np.asarray(numbers if self.named is None else self.named[numbers], np.int64)


def dense(numbers: Any) -> Dense:
    """Return `numbers`, or their ranks if they are sparse."""
    import numpy as np

    count = int(numbers.max()) + 1 if len(numbers) else 0
    if count <= 2 * len(numbers) + _SPARE:
        return Dense(numbers.astype(np.int32, copy=False), max(0, count), None)
    named = np.unique(numbers)
    named = named[np.searchsorted(named, 0) :]
    ranks = np.searchsorted(named, numbers).astype(np.int32)
    return Dense(np.where(numbers < 0, np.int32(-1), ranks), len(named), named)
