"""Which rows must wait for which: chains of groups, each group opened when the one before it has completed.

Stages of a request and conflicting operations on an object have the same form, so one structure serves both,
at 8 to 17 bytes a row and with no edge list that grows with the product of two stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from kvtrace.core.compiled import njit

NO_GROUP = -1
ALONE = -1
"""The label of a row that shares its group with no other."""


@dataclass(frozen=True, slots=True)
class Barriers:
    """Groups of rows in chains; rows of group g + 1 wait for all rows of g where `continues[g]` holds."""

    group: Any
    """int32 a row: its group, or -1."""
    members: Any
    """int32: the rows, group by group."""
    starts: Any
    """int32 a group and one more: where its rows start in `members`."""
    continues: Any
    """uint8 a group: 1 if the next group belongs to the same chain."""

    @classmethod
    def build(cls, key: Any, label: Any) -> Self:
        """Chain the rows of each `key` (integers; negative: no chain) in row order.

        Neighbours in a chain share a group if they have the same `label` (integers), unless that is ALONE.
        """
        import numpy as np

        found = dense(key)
        keys, rows = found.numbers, int(np.count_nonzero(found.numbers >= 0))
        members, group = np.empty(rows, np.int32), np.full(len(keys), NO_GROUP, np.int32)
        starts, continues = np.empty(rows + 1, np.int32), np.zeros(rows, np.uint8)
        places = np.zeros(found.count + 1, np.int64)
        groups = _group(keys, label.astype(np.int32, copy=False), places, members, group, starts, continues)
        return cls(group, members, starts[: groups + 1].copy(), continues[:groups].copy())

    def waits(self) -> Any:
        """Return uint8 a row: 1 if it waits for a group before its own."""
        import numpy as np

        opened_by_another = np.append(np.zeros(1, np.uint8), self.continues)
        # A row without a group takes the last place, which the final, never continued group leaves 0.
        return opened_by_another[self.group] if len(self.continues) else np.zeros(len(self.group), np.uint8)


@njit
def _group(keys: Any, label: Any, places: Any, members: Any, group: Any, starts: Any, continues: Any) -> int:
    """Sort the rows of each key into `members` and give their groups numbers; return how many there are.

    `places` (zeros, one more than there are keys) takes where each key's rows end.
    """
    for row in range(len(keys)):
        if keys[row] >= 0:
            places[keys[row] + 1] += 1
    for key in range(1, len(places)):
        places[key] += places[key - 1]
    for row in range(len(keys)):
        key = keys[row]
        if key >= 0:
            members[places[key]] = row
            places[key] += 1
    groups, before = 0, -1
    for at in range(len(members)):
        row = members[at]
        is_chain = before >= 0 and keys[before] == keys[row]
        if not is_chain or label[row] == ALONE or label[row] != label[before]:
            if is_chain:
                continues[groups - 1] = 1
            starts[groups] = at
            groups += 1
        group[row] = groups - 1
        before = row
    starts[groups] = len(members)
    return groups


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
