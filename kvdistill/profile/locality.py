"""Locality.

Live bytes by tier, reuse distances and hot blocks, of a trace, a run or placed operations.

One pass; memory is bounded by the number of objects and by how many accesses are looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvdistill.profile.profile import Locality, Reuse
from kvdistill.queries.database import Row, query, query_table
from kvdistill.queries.window import READ
from kvtrace.core import duckdb
from kvtrace.core.errors import TraceError
from kvtrace.core.native.library import I1, I8, function
from kvtrace.core.statistics import count, nearest_rank, slot_of, to_slots
from kvtrace.core.tables import Reader

MAX_ACCESSES = 4_000_000
"""Reads and writes of a tier whose reuse is looked at.

A longer trace is cut here, which bounds time and memory.
"""
_COLUMNS = ("op", "tier", "object_id", "offset_bytes", "length_bytes")
_TIER = np.dtype([(name, I8) for name in ("live", "peak", "is_used")])
_enter = function("locality_enter", int, I1, I1, I8, I8, int, _TIER, I8, returns=bool)


def live_bytes(reader: Reader, path: Path) -> list[tuple[int, int] | None]:
    """Return live bytes of each tier, at most and at the end; null of one without reads and writes.

    Live is what was written, or lay there before, and is not deleted; an object is as long as rows
    of its life reach.

    TraceError if more lies in a tier than can be reckoned with.
    """
    tiers = len(reader.meta.tiers)
    found, sizes = np.zeros(tiers, _TIER), np.zeros(tiers << 10, dtype=np.int64)
    for batch in reader.batches(_COLUMNS):
        rows = [batch.column(name) for name in _COLUMNS]
        op, tier = rows[0].indices.to_numpy(), rows[1].to_numpy()
        objects, reach = rows[2].to_numpy(), rows[3].to_numpy() + rows[4].to_numpy()
        if not len(op):
            continue
        if (missing := (int(objects.max()) + 1) * tiers - len(sizes)) > 0:
            sizes = np.concatenate([sizes, np.zeros(max(missing, len(sizes)), dtype=np.int64)])
        if not _enter(len(op), op, tier, objects, reach, tiers, found, sizes):
            raise TraceError(
                "the objects in a tier add up to more than 2^62 bytes",
                path=path,
                column="offset_bytes",
            )
    return [(peak, end) if is_used else None for end, peak, is_used in found.tolist()]


def tier_reuse(db: duckdb.DuckDBPyConnection, tiers: Sequence[str]) -> list[Row]:
    """Return how far apart accesses to an object are in those of `tiers` that the view `ops` has
    reads of.

    A distance is the distinct bytes of others that are read or written in between: a read at one
    below a cache's size is a hit there, if that evicts the least recently used. It is not known of
    `first_reads`, of objects that the tier did not read or write before. `bins` are reads by
    distance, from `low_bytes` to below twice that.
    """
    rows = []
    for tier in (of for of in query(db, "reuse_tiers") if of["tier"] in tiers):
        accesses = query_table(db, "reuse_accesses", tier=tier["tier"], most=MAX_ACCESSES)
        is_read, objects, length = (column.to_numpy() for column in accesses.columns)
        if not is_read.any():
            continue
        things = np.unique(objects, return_inverse=True)[1].astype(np.int64)
        distances = reuse_distances(things, length, int(things.max()) + 1)[is_read]
        known = np.sort(distances[distances >= 0])
        powers = np.where(known > 0, np.log2(np.maximum(known, 1)).astype(np.int64), -1)
        bins = zip(*(part.tolist() for part in np.unique(powers, return_counts=True)), strict=True)
        row = {
            "tier": tier["tier"],
            "reads": len(distances),
            "first_reads": len(distances) - len(known),
        }
        row["is_whole"] = tier["accesses"] <= MAX_ACCESSES
        for column, part in (("p50_bytes", 5000), ("p95_bytes", 9500)):
            rank = nearest_rank(len(known), part)
            row[column] = None if rank is None else int(known[rank - 1])
        row["max_bytes"] = int(known[-1]) if len(known) else None
        rows.append(
            row | {"bins": [{"low_bytes": 0 if e < 0 else 1 << e, "reads": n} for e, n in bins]}
        )
    return rows


MAX_OPS = 4_000_000
"""Operations looked at, which bounds time and memory."""


def place_locality(
    op: NDArray[np.int8],
    address: NDArray[np.int64],
    length: NDArray[np.int64],
    *,
    is_whole: bool,
) -> Locality | None:
    """Return the locality of operations that move bytes, in order; null if there are none."""
    blocks = block_locality(address, length)
    if blocks is None:
        return None
    places, place = np.unique(address, return_inverse=True)
    distances = reuse_distances(place.astype(np.int64), length, len(places))
    is_read, looked_at = op == READ, len(_touched(address, length)[0])
    return Locality(
        ops=looked_at,
        is_whole=is_whole and looked_at == len(op),
        hot10_share=blocks.hot10_share,
        reuse_p50_blocks=blocks.reuse_p50_blocks,
        read=_reuse_of(distances[is_read]),
        write=_reuse_of(distances[~is_read]),
    )


def _reuse_of(distances: NDArray[np.int64]) -> Reuse:
    known = distances[distances >= 0]
    return Reuse(first_ops=len(distances) - len(known), distances=to_slots(count(known)))


BLOCK_BYTES = 128 * 1024
MAX_BLOCK_ACCESSES = 8_000_000
"""Block accesses looked at; a longer stream is cut here, which bounds memory."""
_reuse_distances = function("reuse_distances", int, I8, I8, int, I8)


def _touched(
    offsets: NDArray[np.int64], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return of each operation that is looked at its first block, and how many it touches."""
    first = offsets // BLOCK_BYTES
    count = (offsets + lengths - 1) // BLOCK_BYTES - first + 1
    kept = int(np.searchsorted(np.cumsum(count), MAX_BLOCK_ACCESSES, "right"))
    return first[:kept], count[:kept]


def block_accesses(offsets: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the blocks that each operation touches, one after another, renumbered densely from 0."""
    first, count = _touched(offsets, lengths)
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    blocks = np.repeat(first, count) + within
    return np.unique(blocks, return_inverse=True)[1].astype(np.int64)


@dataclass(frozen=True, slots=True)
class BlockLocality:
    """How accesses to blocks come back."""

    hot10_share: float
    """Of the accesses, those to the hottest tenth of the touched blocks."""
    reuse_p50_blocks: float | None
    """Median number of distinct other blocks between two accesses to one; null if none recurs."""
    hit_ratios: NDArray[np.float64]
    """Of LRU caches as large as the ends of statistics' slots, up to the first that holds all.

    1 - miss ratios.
    """


def block_locality(offsets: NDArray[np.int64], lengths: NDArray[np.int64]) -> BlockLocality | None:
    """Return the locality of operations by block, in order; null without any."""
    blocks = block_accesses(offsets, lengths)
    if not len(blocks):
        return None
    uses = np.sort(np.bincount(blocks))[::-1]
    distances = reuse_distances(blocks, np.ones_like(blocks), len(uses))
    recurring = distances[distances >= 0]
    # What comes back after `distance` others hits in a cache of one more.
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
    """Return for each access the summed weight of the distinct others since the last one to its
    thing; -1 for a first.

    `things` are numbers below `count`; `weights` are what each access makes its thing weigh.
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
