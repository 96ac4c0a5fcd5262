"""A distribution of sizes as fio's `bssplit` can say it: at most 64 sizes in whole percent that sum to 100."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvdistill.zones import percentages

if TYPE_CHECKING:
    from kvdistill.profile import Direction, SizeCount

MAX_ENTRIES = 64
"""fio cuts what is beyond silently."""
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
    chosen = sizes if len(sizes) <= MAX_ENTRIES else _grouped(sizes)
    shares = percentages([ops for _size, ops in _pairs(chosen)])
    entries = tuple((s, p) for (s, _ops), p in zip(_pairs(chosen), shares, strict=True) if p)
    exact = {s.io_bytes: s.ops / direction.ops for s in sizes}
    said = {size: percent / 100 for size, percent in entries}
    moved = sum(abs(exact.get(s, 0) - said.get(s, 0)) for s in exact.keys() | said.keys()) / 2
    mean = sum(size * percent for size, percent in entries) / 100
    return Split(entries, len(sizes), moved, mean, direction.io_bytes / direction.ops)


def _pairs(sizes: list[SizeCount]) -> list[tuple[int, int]]:
    return [(s.io_bytes, s.ops) for s in sizes]


def _grouped(sizes: list[SizeCount]) -> list[SizeCount]:
    """Gather neighbouring sizes into at most 64 groups of about equal mass, each of its mean size."""
    total = sum(s.ops for s in sizes)
    groups: dict[int, list[SizeCount]] = {}
    done = 0
    for size in sizes:
        # By the middle of its own mass, so that a common size keeps a group to itself.
        groups.setdefault((2 * done + size.ops) * MAX_ENTRIES // (2 * total), []).append(size)
        done += size.ops
    means: dict[int, int] = {}
    for group in groups.values():
        ops = sum(s.ops for s in group)
        mean = sum(s.io_bytes * s.ops for s in group) / ops
        key = max(_SECTOR_BYTES, round(mean / _SECTOR_BYTES) * _SECTOR_BYTES)
        means[key] = means.get(key, 0) + ops
    kind = type(sizes[0])
    return [kind(size, ops) for size, ops in sorted(means.items())]
