"""Live bytes by tier, reuse distances and hot blocks of a trace, a run or placed operations.

Each takes one pass. Memory is bounded by the number of objects and by the accesses considered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvdistill.profile.profile import Locality, Reuse
from kvdistill.queries.database import Row, query, query_table
from kvdistill.queries.window import READ
from kvtrace.core import duckdb, pa
from kvtrace.core.errors import TraceError
from kvtrace.core.native.library import I1, I8, function
from kvtrace.core.statistics import count, nearest_rank, slot_of, to_slots

MAX_ACCESSES = 4_000_000
"""Reads and writes of a tier whose reuse is measured, the first ones; bounds time and memory."""
_COLUMNS = ("op", "tier", "object_id", "offset_bytes", "length_bytes")
_TIER = np.dtype([(name, I8) for name in ("live", "peak", "is_used")])
_enter = function("locality_enter", int, I1, I1, I8, I8, int, _TIER, I8, returns=bool)


class LiveBytes:
    """The live bytes of each tier of a trace.

    Live objects were written, or existed before, and are not deleted. An object is as long as the
    farthest byte that its rows touch.
    """

    def __init__(self, tiers: int, path: Path) -> None:
        """Start with empty tiers; errors name `path`."""
        self._path = path
        self._totals = np.zeros(tiers, _TIER)
        self._sizes = np.zeros(tiers << 10, dtype=np.int64)

    def apply(self, batch: pa.RecordBatch) -> None:
        """Apply the rows of `batch`, at least one.

        TraceError if a tier holds more than 2^62 bytes.
        """
        tiers = len(self._totals)
        rows = [batch.column(name) for name in _COLUMNS]
        op, tier = rows[0].indices.to_numpy(), rows[1].to_numpy()
        objects, reach = rows[2].to_numpy(), rows[3].to_numpy() + rows[4].to_numpy()
        if (missing := (int(objects.max()) + 1) * tiers - len(self._sizes)) > 0:
            more = np.zeros(max(missing, len(self._sizes)), dtype=np.int64)
            self._sizes = np.concatenate([self._sizes, more])
        if not _enter(len(op), op, tier, objects, reach, tiers, self._totals, self._sizes):
            raise TraceError(
                "the objects in a tier add up to more than 2^62 bytes",
                path=self._path,
                column="offset_bytes",
            )

    def by_tier(self) -> list[tuple[int, int] | None]:
        """Return the peak and the final live bytes of each tier; None without reads and writes."""
        return [(peak, end) if is_used else None for end, peak, is_used in self._totals.tolist()]


def tier_reuse(
    db: duckdb.DuckDBPyConnection, tiers: Sequence[str], accesses: Mapping[str, int] | None = None
) -> list[Row]:
    """Return the reuse distances of reads, one row for each of `tiers` with reads in the view `ops`.

    `accesses` is the number of reads and writes of each tier; without it, a query counts them.

    A reuse distance is the distinct bytes of other objects accessed since the last access to the
    object. A read hits in an LRU cache that is larger than its distance. `first_reads` have no
    distance: the tier did not access their objects before. `bins` counts reads by distance, from
    `low_bytes` to below twice that.
    """
    rows = []
    if accesses is None:
        accesses = {row["tier"]: row["accesses"] for row in query(db, "reuse_tiers")}
    for tier, access_count in accesses.items():
        if tier not in tiers:
            continue
        first = query_table(db, "reuse_accesses", tier=tier, most=MAX_ACCESSES)
        is_read, objects, length = (column.to_numpy() for column in first.columns)
        if not is_read.any():
            continue
        numbers = objects
        if objects.max() > len(objects) + _TABLE_SLACK:
            numbers = dense_numbers(objects)
        distances = reuse_distances(numbers, length, int(numbers.max()) + 1)[is_read]
        recurring = np.sort(distances[distances >= 0])
        exponents = np.where(recurring > 0, np.log2(np.maximum(recurring, 1)).astype(np.int64), -1)
        counts = np.bincount(exponents + 1)
        row = {
            "tier": tier,
            "reads": len(distances),
            "first_reads": len(distances) - len(recurring),
        }
        row["is_whole"] = access_count <= MAX_ACCESSES
        for column, ten_thousandths in (("p50_bytes", 5000), ("p95_bytes", 9500)):
            rank = nearest_rank(len(recurring), ten_thousandths)
            row[column] = None if rank is None else int(recurring[rank - 1])
        row["max_bytes"] = int(recurring[-1]) if len(recurring) else None
        rows.append(
            row
            | {
                "bins": [
                    {"low_bytes": 0 if exponent < 0 else 1 << exponent, "reads": reads}
                    for exponent, reads in enumerate(counts.tolist(), -1)
                    if reads
                ]
            }
        )
    return rows


MAX_OPS = 4_000_000
"""Operations whose locality is measured, the first ones; bounds time and memory."""


def place_locality(
    op: NDArray[np.int8],
    address: NDArray[np.int64],
    length: NDArray[np.int64],
    *,
    is_whole: bool,
) -> Locality | None:
    """Return the locality of reads and writes, in order; null if there are none."""
    blocks = block_locality(address, length)
    if blocks is None:
        return None
    places = dense_numbers(address // SECTOR_BYTES)
    distances = reuse_distances(places, length, int(places.max()) + 1)
    is_read, looked_at = op == READ, len(_touched(address, length)[0])
    return Locality(
        ops=looked_at,
        is_whole=is_whole and looked_at == len(op),
        hot10_share=blocks.hot10_share,
        reuse_p50_blocks=blocks.reuse_p50_blocks,
        read=_reuse_figures(distances[is_read]),
        write=_reuse_figures(distances[~is_read]),
    )


def _reuse_figures(distances: NDArray[np.int64]) -> Reuse:
    recurring = distances[distances >= 0]
    return Reuse(first_ops=len(distances) - len(recurring), distances=to_slots(count(recurring)))


SECTOR_BYTES = 512
"""Addresses are multiples of this."""
BLOCK_BYTES = 128 * 1024
MAX_BLOCK_ACCESSES = 8_000_000
"""Block accesses that are measured, the first ones; bounds memory."""
_reuse_distances = function("reuse_distances", int, I8, I8, int, I8)


def _touched(
    offsets: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first block, and the number of blocks, of each operation that is measured."""
    first = offsets // BLOCK_BYTES
    count = (offsets + lengths - 1) // BLOCK_BYTES - first + 1
    accesses = int(np.searchsorted(np.cumsum(count), MAX_BLOCK_ACCESSES, "right"))
    return first[:accesses], count[:accesses]


def block_accesses(offsets: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the blocks that each operation touches, one after another, renumbered densely from 0."""
    first, count = _touched(offsets, lengths)
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    blocks = np.repeat(first, count) + within
    return dense_numbers(blocks)


_TABLE_SLACK = 1 << 16
"""A table by value may have so many entries more than there are values: 0.6 MB."""


def dense_numbers(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rank of each of `values` among the distinct ones; `values` are not negative."""
    if not len(values):
        return values
    largest = int(values.max())
    if largest > _TABLE_SLACK + 4 * len(values):
        return np.unique(values, return_inverse=True)[1].astype(np.int64)
    # A table by value takes a tenth of the time of sorting.
    is_there = np.zeros(largest + 1, np.bool_)
    is_there[values] = True
    return (np.cumsum(is_there) - 1)[values]


@dataclass(frozen=True, slots=True)
class BlockLocality:
    """Hot blocks and reuse distances of accesses to blocks."""

    hot10_share: float
    """Share of accesses to the hottest tenth of the touched blocks."""
    reuse_p50_blocks: float | None
    """Median number of distinct other blocks between two accesses to one; null if none recurs."""
    hit_ratios: NDArray[np.float64]
    """Hit ratios of LRU caches, one for each histogram slot of sizes, up to all touched blocks."""


def block_locality(offsets: NDArray[np.int64], lengths: NDArray[np.int64]) -> BlockLocality | None:
    """Return the locality of operations by block, in order; null without any."""
    blocks = block_accesses(offsets, lengths)
    if not len(blocks):
        return None
    uses = np.sort(np.bincount(blocks))[::-1]
    distances = reuse_distances(blocks, np.ones_like(blocks), len(uses))
    recurring = distances[distances >= 0]
    # An access at `distance` hits in an LRU cache of at least `distance` + 1 blocks.
    farthest = int(slot_of(np.array([len(uses) - 1]))[0])
    hits = np.bincount(slot_of(recurring), minlength=farthest + 1).cumsum()
    return BlockLocality(
        hot10_share=float(uses[: max(1, round(len(uses) * 0.1))].sum() / len(blocks)),
        reuse_p50_blocks=float(np.median(recurring)) if len(recurring) else None,
        hit_ratios=hits / len(blocks),
    )


def reuse_distances(
    things: NDArray[np.int64], weights: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Return the reuse distance of each access; -1 for a first one.

    It is the total weight of the distinct other things accessed since the last access to the same
    thing. `things` are numbers below `count`; `weights` is the weight that each access gives to its
    thing.

        for each access at time t to a thing last accessed at time s:
            distance = sum of weights in a Fenwick tree over times s + 1 to t - 1
            remove the weight at s; add the new weight at t

    Source: Bennett and Kruskal, LRU stack processing, IBM Journal of R&D 19 (1975).
    """
    distances = np.empty(len(things), dtype=np.int64)
    _reuse_distances(
        len(things),
        np.ascontiguousarray(things, I8),
        np.ascontiguousarray(weights, I8),
        int(count),
        distances,
    )
    return distances
