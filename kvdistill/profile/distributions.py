"""Distributions: zones of equal mass and size splits as fio takes them, summaries of sizes for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvdistill.profile.profile import AddressZone, DirectionProfile, SizeCount
from kvtrace.core.statistics import nearest_rank

PERCENT = 100


def equal_mass_zones(
    starts: NDArray[np.int64], moved_bytes: NDArray[np.int64], granule_bytes: int
) -> list[AddressZone]:
    """Cut the address space from 0 on into zones of about 1 % of the bytes each, whole percents that sum to 100.

    `starts` are ascending granule-aligned addresses, `moved_bytes` what is moved by operations that start in
    each. A granule that alone holds 2 % or more gets a zone of its own, so that a hot object stays as hot as it is.
    """
    if not len(starts):
        return []
    done = np.cumsum(moved_bytes)
    marks = np.searchsorted(done * PERCENT, np.arange(1, PERCENT + 1) * done[-1])
    hits = np.bincount(marks, minlength=len(starts))
    zones: list[AddressZone] = []
    end, counted = 0, 0
    for i in np.flatnonzero(hits):
        start, percent = int(starts[i]), int(hits[i])
        if percent > 1 and start > end:
            before = int(done[i - 1]) - counted if i else 0
            cold = min(round(before * PERCENT / int(done[-1])), percent - 1)
            zones.append(AddressZone(cold, start - end))
            end, percent = start, percent - cold
        zones.append(AddressZone(percent, start + granule_bytes - end))
        end, counted = start + granule_bytes, int(done[i])
    return zones


def percentages(weights: Any, whole: int = PERCENT) -> list[int]:
    """Return whole shares of `weights` that sum to exactly `whole`, by largest remainder.

    Ties are spread over the weights, so that equal ones do not all gain at one end. Weights must be
    non-negative and not all 0.
    """
    weights = [int(w) for w in weights]
    total = sum(weights)
    if total <= 0 or min(weights) < 0:
        raise ValueError(f"weights(={weights[:8]}…) must be >= 0 and not all 0.")
    shares = [w * whole // total for w in weights]
    # Equal ones by halving, so that they are spread: 0, 512, 256, 768, … of 1024.
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(weights[i] * whole % total), int(f"{i:010b}"[::-1], 2)))
    for i in by_remainder[: whole - sum(shares)]:
        shares[i] += 1
    return shares


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


def split_sizes(direction: DirectionProfile) -> Split:
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
        need, moved = total, 0
        while need:
            taken = min(need, left)
            moved += taken * sizes[index].io_bytes
            need, left = need - taken, left - taken
            if not left and index + 1 < len(sizes):
                index += 1
                left = sizes[index].ops * count
        size = max(_SECTOR_BYTES, round(moved / total / _SECTOR_BYTES) * _SECTOR_BYTES)
        entries[size] = entries.get(size, 0) + PERCENT // count
    return tuple(sorted(entries.items()))


def cut_long(direction: DirectionProfile, max_io_bytes: int) -> DirectionProfile:
    """Return `direction` with operations longer than `max_io_bytes` as several, as a replay splits them."""
    counts: dict[int, int] = {}
    for size in direction.sizes:
        whole, rest = divmod(size.io_bytes, max_io_bytes)
        for length, parts in ((max_io_bytes, whole), (rest, 1)):
            if length and parts:
                counts[length] = counts.get(length, 0) + parts * size.ops
    sizes = [SizeCount(length, ops) for length, ops in sorted(counts.items())]
    return msgspec.structs.replace(direction, sizes=sizes, ops=sum(s.ops for s in sizes))


def total_variation(a: Sequence[SizeCount], b: Sequence[SizeCount]) -> float:
    """Return the share of operations of `a` that would have to change their size to be distributed as `b`."""
    share = [{s.io_bytes: s.ops / sum(t.ops for t in side) for s in side} for side in (a, b)]
    return sum(abs(share[0].get(size, 0) - share[1].get(size, 0)) for size in {*share[0], *share[1]}) / 2


TOP_SIZES = 5
_SIZE_QUANTILES = {"p50_bytes": 5000, "p99_bytes": 9900}


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Summarise exact distributions: the most common sizes, and percentiles where there are enough operations.

    `rows` have tier, op, length_bytes (ascending within these) and ops.
    """
    result = []
    for (tier, op), group in groupby(rows, key=lambda row: (row["tier"], row["op"])):
        sizes = [(row["length_bytes"], row["ops"]) for row in group]
        total = sum(ops for _size, ops in sizes)
        top = sorted(sizes, key=lambda pair: (-pair[1], pair[0]))[:TOP_SIZES]
        result.append(
            {"tier": tier, "op": op, "ops": total, "distinct": len(sizes), "min_bytes": sizes[0][0]}
            | {name: at_rank(sizes, nearest_rank(total, part)) for name, part in _SIZE_QUANTILES.items()}
            | {
                "max_bytes": sizes[-1][0],
                "mean_bytes": sum(size * ops for size, ops in sizes) / total,
                "top": [{"length_bytes": size, "ops": ops, "share": ops / total} for size, ops in top],
            }
        )
    return result


def bins(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return operations and bytes by tier, op and power of two: `low_bytes` <= length < 2 * `low_bytes`; 0 for none."""
    found: dict[tuple[str, str, int], list[int]] = {}
    for row in rows:
        size, ops = row["length_bytes"], row["ops"]
        count = found.setdefault((row["tier"], row["op"], 1 << (size.bit_length() - 1) if size else 0), [0, 0])
        count[0] += ops
        count[1] += ops * size
    return [
        {"tier": tier, "op": op, "low_bytes": low, "ops": ops, "bytes": total}
        for (tier, op, low), (ops, total) in found.items()
    ]


def at_rank(counted: Sequence[tuple[Any, int]], rank: int | None) -> Any:
    """Return the value of ascending (value, count) pairs at `rank`, from 1; null if the rank is null."""
    done = 0
    for value, count in counted:
        done += count
        if rank is not None and done >= rank:
            return value
    return None


def mean_bytes(sizes: Sequence[SizeCount]) -> float:
    """Return the mean of `sizes`, which must have operations."""
    return sum(s.io_bytes * s.ops for s in sizes) / sum(s.ops for s in sizes)
