"""Which objects lie in each tier at each row: what must be written first, and the peak of live bytes.

A replay of a window reads objects written before it; they must be written first, or the tier reads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kvreplay.plan.barriers import dense
from kvtrace.core.compiled import compile_announced, njit
from kvtrace.core.schema import TRACE, enum_code

_WRITE, _DELETE = (enum_code(TRACE, "op", name) for name in ("write", "delete"))


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
    tier: Any,
    op: Any,
    object_id: Any,
    end: Any,
    alignments: list[int],
    shared: Mapping[int, tuple[Any, int]] | None = None,
) -> Residency:
    """Follow every (tier, object) through the rows.

    `op` holds the contract's codes; `end` the byte after the last one touched; `alignments` each tier's padding in
    bytes; `shared`, by tier on several drives, which of them an object id lies on and how many there are.
    """
    with compile_announced():
        return _Objects(tier, op, object_id, end, alignments, shared or {}).follow()


class _Objects:
    """What is known of each object of each tier, by tier times objects, plus object: int64 bytes, unless it says so."""

    def __init__(
        self, tier: Any, op: Any, object_id: Any, end: Any, alignments: list[int], shared: Mapping[int, tuple[Any, int]]
    ) -> None:
        import numpy as np

        self._objects = dense(object_id)
        self._count = self._objects.count
        self._rows = (tier, op, self._objects.numbers, end, self._count)
        self._padding, self._tiers, self._shared = np.array(alignments, np.int64), len(alignments), shared
        self._absent, self._longest = np.zeros(len(op), bool), self._bytes()

    def _bytes(self) -> Any:
        import numpy as np

        return np.zeros(self._tiers * self._count, np.int64)

    def follow(self) -> Residency:
        """Walk the rows twice, and once more if tiers lie on several drives."""
        import numpy as np

        needed = self._bytes()
        lost = int(_find_needed(*self._rows, self._bytes(), np.zeros(len(needed), bool), needed))
        tier_of = np.repeat(np.arange(self._tiers, dtype=np.int32), self._count)
        peaks = self._peaks(needed, tier_of, self._tiers, self._bytes())
        drive_peaks = [[peak] for peak in peaks]
        grows = np.flatnonzero(self._longest)
        grown: list[dict[int, int]] = [{} for _ in range(self._tiers)]
        names = self._objects.names(grows % max(1, self._count)).tolist()
        for at, name in zip(grows.tolist(), names, strict=True):
            grown[at // self._count][name] = int(self._longest[at])
        if len(grows) or self._shared:
            drive_peaks = self._by_drive(needed, tier_of)
        first = np.flatnonzero(needed)
        return Residency(
            tier_of[first].astype(np.int8),
            self._objects.names(first % max(1, self._count)),
            needed[first],
            self._absent,
            None if lost < 0 else lost,
            peaks,
            drive_peaks,
            grown,
        )

    def _peaks(self, needed: Any, place_of: Any, places: int, whole: Any) -> list[int]:
        """Return the most bytes at once in each place, where what is `needed` lies at first."""
        import numpy as np

        first = np.flatnonzero(needed)
        padding = self._padding[first // max(1, self._count)]
        held = np.zeros(places, np.int64)
        np.add.at(held, place_of[first], -(-np.maximum(needed, whole)[first] // padding) * padding)
        peaks = np.stack([held, held])
        _find_peaks(*self._rows, self._padding, needed.copy(), place_of, whole, peaks, self._absent, self._longest)
        return [int(peak) for peak in peaks[1]]

    def _by_drive(self, needed: Any, tier_of: Any) -> list[list[int]]:
        """Return the most bytes on each drive of each tier, every object as long as it will get."""
        import numpy as np

        drives = [self._shared[t][1] if t in self._shared else 1 for t in range(self._tiers)]
        starts = np.cumsum([0, *drives]).tolist()
        place_of = np.array(starts, np.int32)[tier_of]
        every = self._objects.names(np.arange(self._count))
        for tier, (drive_of, _) in self._shared.items():
            # Ids that no row has may lie beyond the table.
            known = np.minimum(every, len(drive_of) - 1)
            place_of[tier * self._count : (tier + 1) * self._count] += drive_of[known]
        peaks = self._peaks(needed, place_of, starts[-1], self._longest.copy())
        return [peaks[a:b] for a, b in pairwise(starts)]


@njit
def _find_needed(
    tier: Any, op: Any, object_id: Any, end: Any, objects: int, written: Any, is_reborn: Any, needed: Any
) -> int:
    """Fill `needed` with how long each object must be first; return the first row that reads the deleted, or -1."""
    lost = -1
    for row in range(len(op)):
        at, reach = tier[row] * objects + object_id[row], max(end[row], 1)
        if op[row] == _WRITE:
            written[at] = max(written[at], reach)
        elif op[row] == _DELETE:
            written[at], is_reborn[at] = 0, True
        elif reach > written[at]:
            if not is_reborn[at]:
                needed[at] = max(needed[at], reach)
            elif lost < 0:
                lost = row
    return lost


@njit
def _find_peaks(
    tier: Any,
    op: Any,
    object_id: Any,
    end: Any,
    objects: int,
    paddings: Any,
    held: Any,
    place_of: Any,
    whole: Any,
    peaks: Any,
    absent: Any,
    longest: Any,
) -> None:
    """Follow the bytes that each place holds, of objects that are given a `whole` length all of it from the first on.

    Notes deletes of nothing, and how long objects get that grow.
    """
    for row in range(len(op)):
        at, padding = tier[row] * objects + object_id[row], paddings[tier[row]]
        before, after = held[at], held[at]
        if op[row] == _WRITE:
            after = max(before, end[row], 1)
            if 0 < before < after:
                longest[at] = max(longest[at], after)
        elif op[row] == _DELETE:
            absent[row], after = before == 0, 0
        held[at] = after
        if whole[at]:
            before, after = whole[at] if before else 0, whole[at] if after else 0
        place = place_of[at]
        live = peaks[0, place] + (-(-after // padding) + -before // padding) * padding
        peaks[0, place], peaks[1, place] = live, max(live, peaks[1, place])
