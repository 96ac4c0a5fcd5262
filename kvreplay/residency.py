"""What lies in each tier as the replayed rows go by: what must be there first, and how much there is at most.

A replay of a window reads objects written before it; they must be written first, or the tier reads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Residency:
    """The liveness of objects through the replayed rows, a tier and an object at a time."""

    populate_tier: Any
    """int8 an object to write first: its tier."""
    populate_object: Any
    """int64 an object to write first."""
    populate_bytes: Any
    """int64: how long it must be."""
    absent_delete: Any
    """bool a row: a delete of an object that is not in the tier."""
    lost_read: int | None
    """The first row that reads what was deleted before it; null if there is none."""
    peak_bytes: list[int]
    """The most live bytes of each tier, padded, the populated ones included."""
    drive_peak_bytes: list[list[int]]
    """For each drive of each tier, with every object as long as it will get: what must be free there."""
    grown: list[dict[int, int]]
    """By tier, for objects that are written on beyond their end: how long they get at most."""


def trace_residency(
    tier: Any, op: Any, object_id: Any, end: Any, alignments: list[int],
    shared: Mapping[int, tuple[Any, int]] | None = None,
) -> Residency:  # fmt: skip
    """Follow every (tier, object) through the rows.

    `op` holds 0 read, 1 write, 2 delete; `end` the byte after the last one touched; `alignments` each tier's
    padding in bytes; `shared`, by tier on several drives, which of them an object id lies on and how many there are.
    """
    import numpy as np

    if len(op) == 0:
        none = np.zeros(0, np.int64)
        drives = [(shared or {}).get(t, (None, 1))[1] for t in range(len(alignments))]
        return Residency(none.astype(np.int8), none, none, none.astype(bool), None, [0] * len(alignments),
                         [[0] * count for count in drives], [{}] * len(alignments))  # fmt: skip
    key = tier.astype(np.int64) * (int(object_id.max()) + 1) + object_id
    order = np.argsort(key, kind="stable")
    key, op_, tier_ = key[order], op[order], tier[order]
    end_ = np.maximum(end[order], 1)
    new_key = np.append(True, key[1:] != key[:-1])
    new_life = new_key.copy()
    new_life[1:] |= op_[:-1] == 2  # noqa: PLR2004 - after a delete the object begins anew
    life = np.cumsum(new_life) - 1
    first = np.flatnonzero(new_life)
    written = running_max(np.where(op_ == 1, end_, 0), life)
    missing = np.where((op_ == 0) & (end_ > written), end_, 0)
    needed = np.maximum.reduceat(missing, first)
    reborn = ~new_key[first]
    lost = order[(missing > 0) & reborn[life]]
    needed[reborn] = 0
    extent = np.maximum(written, needed[life])
    before = np.where(new_life, needed[life], np.append(0, extent[:-1]))
    align = np.array(alignments, dtype=np.int64)[tier_]
    held = -(-before // align) * align
    change = np.where(op_ == 1, -(-extent // align) * align - held, np.where(op_ == 2, -held, 0))  # noqa: PLR2004
    absent = np.zeros(len(op), dtype=bool)
    absent[order] = (op_ == 2) & (before == 0)  # noqa: PLR2004
    filled = needed > 0
    at = first[filled]
    changes = np.empty(len(op), dtype=np.int64)
    changes[order] = change
    padded = -(-needed[filled] // align[at]) * align[at]
    peaks = _peaks(tier, changes, tier_[at], padded, len(alignments))
    grown: list[dict[int, int]] = [{} for _ in alignments]
    grows = (op_ == 1) & (before > 0) & (extent > before)
    if grows.any():
        longest = _longest(key, grows, extent)
        for index, obj, length in np.unique(np.stack([tier_, object_id[order], longest])[:, grows], axis=1).T.tolist():
            grown[index][obj] = length
        # Space that is handed out once is as long as the object will get, from its first write to its delete.
        whole = -(-longest // align) * align
        begins, ends = (op_ == 1) & (before == 0), (op_ == 2) & (before > 0)  # noqa: PLR2004
        changes[order] = np.where(longest == 0, change, np.where(begins, whole, np.where(ends, -whole, 0)))
        padded = np.maximum(padded, whole[at])
    drive_peaks = [[peak] for peak in peaks]
    if grown != [{}] * len(alignments) or shared:
        places = _Places(tier, object_id, len(alignments), shared or {})
        drive_peaks = places.by_drive(_peaks(places.of, changes, places.of[order[at]], padded, places.count))
    return Residency(
        tier_[at], object_id[order[at]].astype(np.int64), needed[filled], absent,
        int(lost.min()) if len(lost) else None, peaks, drive_peaks, grown,
    )  # fmt: skip


def running_max(values: Any, segment: Any) -> Any:
    """Return the running maximum of `values`, starting anew in each `segment`."""
    import numpy as np

    # Ranks instead of values, so that adding the segment cannot overflow.
    ladder, rank = np.unique(values, return_inverse=True)
    step = len(ladder)
    return ladder[np.maximum.accumulate(rank + segment * step) - segment * step]


def _longest(key: Any, grows: Any, extent: Any) -> Any:
    """Return for each row how long its object gets at most; 0 for objects that never grow; `key` never falls."""
    import numpy as np

    keys, starts = np.unique(key[grows], return_index=True)
    lengths = np.maximum.reduceat(extent[grows], starts)
    at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
    return np.where(keys[at] == key, lengths[at], 0)


class _Places:
    """The drives of all tiers, numbered through."""

    def __init__(self, tier: Any, object_id: Any, tiers: int, shared: Mapping[int, tuple[Any, int]]) -> None:
        import numpy as np

        drives = [shared[t][1] if t in shared else 1 for t in range(tiers)]
        self._starts = np.cumsum([0, *drives])
        self.count = int(self._starts[-1])
        self.of = self._starts[tier]
        for index, (drive_of, _) in shared.items():
            rows = np.flatnonzero(tier == index)
            self.of[rows] += drive_of[object_id[rows]]

    def by_drive(self, values: list[int]) -> list[list[int]]:
        """Return `values`, one a place, as a list a tier."""
        starts = self._starts.tolist()
        return [values[a:b] for a, b in pairwise(starts)]


def _peaks(place: Any, changes: Any, filled_place: Any, filled_bytes: Any, places: int) -> list[int]:
    """Return the most bytes at once in each place: what fills it first, and `changes` a row."""
    import numpy as np

    peaks = []
    for index in range(places):
        start = int(filled_bytes[filled_place == index].sum())
        live = start + np.cumsum(changes[place == index])
        peaks.append(max(start, int(live.max())) if len(live) else start)
    return peaks
