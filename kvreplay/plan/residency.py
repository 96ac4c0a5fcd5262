"""Which objects lie in each tier at each row: what must be written first, and the peak of live bytes.

A replay of a window reads objects written before it; they must be written first, or the tier reads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from kvreplay.plan.chains import dense
from kvtrace.core.compiled import compile_announced, njit
from kvtrace.core.schema import TRACE, enum_code

_WRITE, DELETE_CODE = (enum_code(TRACE, "op", name) for name in ("write", "delete"))


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
    """The first row that reads bytes that nothing has written since the object was deleted; null if there is none."""
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
    offset: Any = None,
) -> Residency:
    """Follow every (tier, object) through the rows.

    `op` holds the contract's codes; `end` the byte after the last one touched; `alignments` each tier's padding in
    bytes; `shared`, by tier on several drives, which of them an object id lies on and how many there are; `offset` the
    first byte touched, None where that is the object's first in every row.
    """
    with compile_announced():
        return _Objects(tier, op, object_id, end, alignments, shared or {}).follow(offset)


class _Objects:
    """What is known of each object of each tier, by tier times objects, plus object: int64 bytes, unless it says so."""

    def __init__(
        self, tier: Any, op: Any, object_id: Any, end: Any, alignments: list[int], shared: Mapping[int, tuple[Any, int]]
    ) -> None:
        self._objects = dense(object_id)
        self._count = self._objects.count
        self._rows = (tier, op, self._objects.numbers, end, self._count)
        self._padding, self._tiers, self._shared = np.array(alignments, np.int64), len(alignments), shared
        self._absent, self._longest = np.zeros(len(op), bool), self._bytes()

    def _bytes(self) -> Any:
        return np.zeros(self._tiers * self._count, np.int64)

    def _find_needed(self, offset: Any, needed: Any) -> int:
        """Fill `needed`; return the first row that reads bytes that nothing wrote since the object was deleted, or -1.

        Where no write begins within an object, what is written of it is known by its end alone.
        """
        op, is_reborn = self._rows[1], np.zeros(len(needed), bool)
        if offset is None or not ((offset > 0) & (op == _WRITE)).any():
            return int(_find_needed(*self._rows, self._bytes(), is_reborn, needed))
        heads = np.zeros(len(needed), np.int64)
        # As many as there can be; memory that is not touched is not taken.
        extents = np.zeros((int(np.count_nonzero(op == _WRITE)) + 2, 3), np.int64)
        return int(_find_needed_parts(*self._rows, offset, heads, extents, is_reborn, needed))

    def follow(self, offset: Any) -> Residency:
        """Walk the rows twice, and once more if tiers lie on several drives."""
        needed = self._bytes()
        lost = self._find_needed(offset, needed)
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
        first = np.flatnonzero(needed)
        padding = self._padding[first // max(1, self._count)]
        held = np.zeros(places, np.int64)
        np.add.at(held, place_of[first], -(-np.maximum(needed, whole)[first] // padding) * padding)
        peaks = np.stack([held, held])
        _find_peaks(*self._rows, self._padding, needed.copy(), place_of, whole, peaks, self._absent, self._longest)
        return [int(peak) for peak in peaks[1]]

    def _by_drive(self, needed: Any, tier_of: Any) -> list[list[int]]:
        """Return the most bytes on each drive of each tier, every object as long as it will get."""
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
        elif op[row] == DELETE_CODE:
            written[at], is_reborn[at] = 0, True
        elif reach > written[at]:
            if not is_reborn[at]:
                needed[at] = max(needed[at], reach)
            elif lost < 0:
                lost = row
    return lost


@njit
def _find_needed_parts(
    tier: Any,
    op: Any,
    object_id: Any,
    end: Any,
    objects: int,
    offset: Any,
    heads: Any,
    extents: Any,
    is_reborn: Any,
    needed: Any,
) -> int:
    """Do the same where objects are written in parts.

    `heads` names the first of each object's `extents` (start, end, next), in order of their starts and with gaps
    between them; 0 is none. Their row 0 holds how many rows were ever used, and the first free one.
    """
    extents[0, 0], lost = 1, -1
    for row in range(len(op)):
        at, start, reach = tier[row] * objects + object_id[row], offset[row], max(end[row], 1)
        is_empty = end[row] == start and start > 0
        if op[row] == DELETE_CODE:
            while heads[at] != 0:
                heads[at] = _free_extent(extents, heads[at])
            is_reborn[at] = True
        elif op[row] == _WRITE:
            if not is_empty:
                _enter_extent(extents, heads, at, start, reach)
        elif not _is_written(extents, heads[at], reach - 1 if is_empty else start, reach):
            # An empty read needs what lies before it.
            if not is_reborn[at]:
                needed[at] = max(needed[at], reach)
            elif lost < 0:
                lost = row
    return lost


@njit
def _free_extent(extents: Any, which: int) -> int:
    """Give an extent back; return the one after it."""
    after = extents[which, 2]
    extents[which, 2], extents[0, 2] = extents[0, 2], which
    return int(after)


@njit
def _enter_extent(extents: Any, heads: Any, at: int, start: int, end: int) -> None:
    """Note that an object was written from `start` to `end`."""
    before, here = 0, heads[at]
    while here != 0 and extents[here, 1] < start:
        before, here = here, extents[here, 2]
    while here != 0 and extents[here, 0] <= end:
        start, end = min(start, extents[here, 0]), max(end, extents[here, 1])
        here = _free_extent(extents, here)
    new = extents[0, 2]
    if new != 0:
        extents[0, 2] = extents[new, 2]
    else:
        new = extents[0, 0]
        extents[0, 0] += 1
    extents[new, 0], extents[new, 1], extents[new, 2] = start, end, here
    if before != 0:
        extents[before, 2] = new
    else:
        heads[at] = new


@njit
def _is_written(extents: Any, here: int, start: int, end: int) -> bool:
    """Return whether the list that begins with `here` has all from `start` to `end`."""
    while here != 0 and extents[here, 1] < end:
        here = extents[here, 2]
    return bool(here != 0 and extents[here, 0] <= start)


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
        elif op[row] == DELETE_CODE:
            absent[row], after = before == 0, 0
        held[at] = after
        if whole[at]:
            before, after = whole[at] if before else 0, whole[at] if after else 0
        place = place_of[at]
        live = peaks[0, place] + (-(-after // padding) + -before // padding) * padding
        peaks[0, place], peaks[1, place] = live, max(live, peaks[1, place])
