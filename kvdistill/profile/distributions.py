"""A distribution of sizes as fio's `bssplit` can say it: at most 63 sizes in whole percent that sum to 100."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from kvdistill.profile.profile import SizeCount
from kvdistill.profile.zones import PERCENT, percentages

if TYPE_CHECKING:
    from kvdistill.profile.profile import Direction

MAX_ENTRIES = 63
"""fio takes 64, but complains at the 64th; what is beyond it cuts silently."""
_SECTOR_BYTES = 512


@dataclass(frozen=True, slots=True)
class Split:
    """Sizes with their whole percentages, ascending, and what that lost against the exact distribution."""

    entries: tuple[tuple[int, int], ...]
    distinct_sizes: int
    moved_share: float
    """Total variation distance: the share of operations whose size is not the exact one."""
    mean_bytes: float
    exact_mean_bytes: float

    def __str__(self) -> str:
        """Return it as the value of `bssplit`."""
        return ":".join(f"{size}/{percent}" for size, percent in self.entries)


def split_sizes(direction: Direction) -> Split:
    """Return the closest split to the exact sizes of `direction`, which must have operations."""
    sizes = direction.sizes
    if len(sizes) <= MAX_ENTRIES:
        shares = percentages([s.ops for s in sizes])
        entries = tuple((s.io_bytes, share) for s, share in zip(sizes, shares, strict=True) if share)
    else:
        entries = _slices(sizes, PERCENT)
        if len(entries) > MAX_ENTRIES:
            entries = _slices(sizes, PERCENT // 2)
    exact = {s.io_bytes: s.ops / direction.ops for s in sizes}
    said = {size: percent / PERCENT for size, percent in entries}
    moved = sum(abs(exact.get(s, 0) - said.get(s, 0)) for s in sorted(exact.keys() | said.keys())) / 2
    mean = sum(size * percent for size, percent in entries) / PERCENT
    return Split(entries, len(sizes), moved, mean, direction.io_bytes / direction.ops)


def _slices(sizes: list[SizeCount], count: int) -> tuple[tuple[int, int], ...]:
    """Cut the operations, by size, into `count` equal slices, each of its mean size: this keeps the mean.

    A size common enough to fill slices keeps them to itself; equal slices are one entry.
    """
    total = sum(s.ops for s in sizes)
    entries: dict[int, int] = {}
    left, index = sizes[0].ops * count, 0
    for _ in range(count):
        # In units of 1 / count operations, so that every slice is whole.
        room, moved = total, 0
        while room:
            taken = min(room, left)
            moved += taken * sizes[index].io_bytes
            room, left = room - taken, left - taken
            if not left and index + 1 < len(sizes):
                index += 1
                left = sizes[index].ops * count
        size = max(_SECTOR_BYTES, round(moved / total / _SECTOR_BYTES) * _SECTOR_BYTES)
        entries[size] = entries.get(size, 0) + PERCENT // count
    return tuple(sorted(entries.items()))


def cut_long(direction: Direction, max_io_bytes: int) -> Direction:
    """Return `direction` with operations longer than `max_io_bytes` as several, as a replay splits them."""
    counts: dict[int, int] = {}
    for size in direction.sizes:
        whole, rest = divmod(size.io_bytes, max_io_bytes)
        for length, parts in ((max_io_bytes, whole), (rest, 1)):
            if length and parts:
                counts[length] = counts.get(length, 0) + parts * size.ops
    sizes = [SizeCount(length, ops) for length, ops in sorted(counts.items())]
    return msgspec.structs.replace(direction, sizes=sizes, ops=sum(s.ops for s in sizes))
