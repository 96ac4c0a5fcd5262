"""Which rows must wait for which: chains of rows, each of which tells how far back the one before it stands.

Stages of a request and conflicting operations on an object have the same form, so one structure serves both. Rows of a
chain that may run together share a group; a group is opened when all of the one before it have completed. What a row
waits for is found when its turn comes, so that nothing is known of rows that are far ahead: 4 bytes a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvtrace.core.compiled import njit

NO_CHAIN = -(2**31)
ALONE = -1
"""The label of a row that shares its group with no other."""


def chain(key: Any, label: Any, *, count: int) -> Any:
    """Return the links (int32) of the chains of each `key` (int32 from 0 up to `count`; negative: no chain).

    How many rows before it the last one of its chain stands: positive if the row follows that one's group, negative if
    it shares the group, 0 for the first of a chain, NO_CHAIN for a row of none. Neighbours in a chain share a group if
    they have the same `label` (integers), unless that is ALONE.
    """
    import numpy as np

    links, last = np.empty(len(key), np.int32), np.full(count, -1, np.int32)
    _chain(key, label.astype(np.int32, copy=False), last, links)
    return links


@njit
def _chain(key: Any, label: Any, last: Any, links: Any) -> None:
    for row in range(len(key)):
        of = key[row]
        if of < 0:
            links[row] = NO_CHAIN
            continue
        before = last[of]
        last[of] = row
        if before < 0:
            links[row] = 0
        elif label[row] != ALONE and label[row] == label[before]:
            links[row] = before - row
        else:
            links[row] = row - before


def first_fall(links: Any, label: Any) -> int | None:
    """Return the first row whose label is less than that of the row before it in its chain; None if there is none."""
    found = int(_first_fall(links, label))
    return None if found < 0 else found


@njit
def _first_fall(links: Any, label: Any) -> int:
    for row in range(len(links)):
        if links[row] > 0 and label[row] < label[row - links[row]]:
            return row
    return -1


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
