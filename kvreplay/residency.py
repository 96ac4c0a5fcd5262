"""What lies in each tier as the replayed rows go by: what must be there first, and how much there is at most.

A replay of a window reads objects written before it; they must be written first, or the tier reads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kvreplay.dense import dense
from kvtrace.core.compiled import compile_announced, njit
from kvtrace.core.schema import TRACE, enum_code

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    tier: Any, op: Any, object_id: Any, end: Any, alignments: list[int],
    shared: Mapping[int, tuple[Any, int]] | None = None,
) -> Residency:  # fmt: skip
    """Follow every (tier, object) through the rows.

    `op` holds the contract's codes; `end` the byte after the last one touched; `alignments` each tier's padding in
    bytes; `shared`, by tier on several drives, which of them an object id lies on and how many there are.
    """
    with compile_announced():
        return _Objects(tier, op, object_id, end, alignments, shared or {}).follow()


class _Objects:
    """What is known of each object of each tier, by tier times objects, plus object: int64 bytes, unless it says so."""

    def __init__(
        self, tier: Any, op: Any, object_id: Any, end: Any, alignments: list[int],
        shared: Mapping[int, tuple[Any, int]],
    ) -> None:  # fmt: skip
        import numpy as np

        self._ids, self._count = dense(object_id)
        self._named = None if self._ids is object_id else np.unique(object_id)
        self._rows = (tier, op, self._ids, end, self._count)
        self._padding, self._tiers, self._shared = np.array(alignments, np.int64), len(alignments), shared
        self._absent = np.zeros(len(op), bool)

    def _bytes(self) -> Any:
        import numpy as np

        return np.zeros(self._tiers * self._count, np.int64)

    def follow(self) -> Residency:
        """Go through the rows: twice, and once more if drives have to be told apart."""
        import numpy as np

        needed, longest = self._bytes(), self._bytes()
        lost = int(_find_needed(*self._rows, self._bytes(), np.zeros(len(needed), bool), needed))
        tier_of = np.repeat(np.arange(self._tiers, dtype=np.int8), self._count)
        peaks = self._start(needed, tier_of, self._tiers)
        _find_peaks(*self._rows, self._padding, needed.copy(), peaks, self._absent, longest)
        drive_peaks = [[peak] for peak in peaks[1].tolist()]
        grown: list[dict[int, int]] = [{} for _ in range(self._tiers)]
        for at in np.flatnonzero(longest).tolist():
            grown[at // self._count][self._name(at % self._count)] = int(longest[at])
        if longest.any() or self._shared:
            drive_peaks = self._by_drive(needed, longest, tier_of)
        first = np.flatnonzero(needed)
        return Residency(
            tier_of[first], self._names(first % max(1, self._count)), needed[first], self._absent,
            None if lost < 0 else lost, peaks[1].tolist(), drive_peaks, grown,
        )  # fmt: skip

    def _name(self, number: int) -> int:
        return number if self._named is None else int(self._named[number])

    def _names(self, numbers: Any) -> Any:
        import numpy as np

        return np.asarray(numbers if self._named is None else self._named[numbers], np.int64)

    def _start(self, lengths: Any, place_of: Any, places: int) -> Any:
        """Return int64, by place, what lies there at first and the most so far, which is the same."""
        import numpy as np

        first = np.flatnonzero(lengths)
        padding = self._padding[first // max(1, self._count)]
        held = np.zeros(places, np.int64)
        np.add.at(held, place_of[first], -(-lengths[first] // padding) * padding)
        return np.stack([held, held])

    def _by_drive(self, needed: Any, longest: Any, tier_of: Any) -> list[list[int]]:
        """Return the most bytes on each drive of each tier, every object as long as it will get."""
        import numpy as np

        drives = [self._shared[t][1] if t in self._shared else 1 for t in range(self._tiers)]
        starts = np.cumsum([0, *drives])
        place_of = starts[tier_of].astype(np.int32)
        every = self._names(np.arange(self._count))
        for tier, (drive_of, _) in self._shared.items():
            # Ids that no row has may lie beyond the table.
            known = np.minimum(every, len(drive_of) - 1)
            place_of[tier * self._count : (tier + 1) * self._count] += drive_of[known]
        whole = np.where(needed > 0, np.maximum(needed, longest), 0)
        peaks = self._start(whole, place_of, int(starts[-1]))
        _find_drive_peaks(*self._rows, self._padding, needed.copy(), peaks, longest, place_of)
        return [peaks[1, a:b].tolist() for a, b in pairwise(starts.tolist())]


@njit
def _find_needed(
    tier: Any, op: Any, object_id: Any, end: Any, objects: int, written: Any, is_reborn: Any, needed: Any
) -> int:  # fmt: skip
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
    tier: Any, op: Any, object_id: Any, end: Any, objects: int, paddings: Any, held: Any, peaks: Any, absent: Any,
    longest: Any,
) -> None:  # fmt: skip
    """Follow the bytes that each tier holds; note deletes of nothing, and how long objects get that grow."""
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
        live = peaks[0, tier[row]] + (-(-after // padding) + -before // padding) * padding
        peaks[0, tier[row]], peaks[1, tier[row]] = live, max(live, peaks[1, tier[row]])


@njit
def _find_drive_peaks(
    tier: Any, op: Any, object_id: Any, end: Any, objects: int, paddings: Any, held: Any, peaks: Any, longest: Any,
    place_of: Any,
) -> None:  # fmt: skip
    """Follow the bytes that each drive holds: of objects that grow, their whole length from their first write on."""
    for row in range(len(op)):
        at, padding = tier[row] * objects + object_id[row], paddings[tier[row]]
        before, after = held[at], held[at]
        if op[row] == _WRITE:
            after = max(before, end[row], 1)
        elif op[row] == _DELETE:
            after = 0
        held[at] = after
        if longest[at]:
            before, after = longest[at] if before else 0, longest[at] if after else 0
        place = place_of[at]
        live = peaks[0, place] + (-(-after // padding) + -before // padding) * padding
        peaks[0, place], peaks[1, place] = live, max(live, peaks[1, place])
