"""Which rows must wait for which: chains of groups, each group opened when the one before it has completed.

Stages of a request and conflicting operations on an object have the same form, so one structure serves both,
at 16 bytes a row and with no edge list that grows with the product of two stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

NO_GROUP = -1


@dataclass(frozen=True, slots=True)
class Barriers:
    """Groups of rows in chains; rows of group g + 1 wait for all rows of g where `continues[g]` holds."""

    group: Any
    """int32 a row: its group, or -1."""
    members: Any
    """int32: the rows, group by group."""
    starts: Any
    """int32 a group and one more: where its rows start in `members`."""
    remaining: Any
    """int32 a group: its rows that have not completed; counted down by the schedule."""
    continues: Any
    """uint8 a group: 1 if the next group belongs to the same chain."""

    @classmethod
    def build(cls, key: Any, splits: Any) -> Self:
        """Chain the rows of each `key` (int64 a row; negative: no chain) in row order.

        `splits(before, after)` takes two arrays of rows, neighbours in a chain, and says where a group ends.
        """
        import numpy as np

        order = np.argsort(key, kind="stable").astype(np.int32)
        order = order[np.searchsorted(key[order], 0) :]
        group = np.full(len(key), NO_GROUP, dtype=np.int32)
        if len(order) == 0:
            empty = np.zeros(0, dtype=np.int32)
            return cls(group, empty, np.zeros(1, dtype=np.int32), empty, np.zeros(0, dtype=np.uint8))
        before, after = order[:-1], order[1:]
        new_chain = np.append(True, key[before] != key[after])
        new_group = new_chain.copy()
        new_group[1:] |= splits(before, after)
        group[order] = np.cumsum(new_group, dtype=np.int32) - 1
        first = np.flatnonzero(new_group)
        starts = np.append(first, len(order)).astype(np.int32)
        continues = np.append(~new_chain[first][1:], False).astype(np.uint8)
        return cls(group, order, starts, np.diff(starts).astype(np.int32), continues)

    def waits(self) -> Any:
        """Return uint8 a row: 1 if it waits for a group before its own."""
        import numpy as np

        opened_by_another = np.append(np.zeros(1, np.uint8), self.continues)
        # A row without a group takes the last place, which the final, never continued group leaves 0.
        return opened_by_another[self.group] if len(self.continues) else np.zeros(len(self.group), np.uint8)

    def views(self) -> Barriers:
        """Return the same barriers as memoryviews, whose items are read four times faster than an array's."""
        return Barriers(
            *(memoryview(a) for a in (self.group, self.members, self.starts, self.remaining, self.continues))
        )
