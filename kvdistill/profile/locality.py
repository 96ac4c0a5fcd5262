"""Locality: live bytes by tier, reuse distances and hot blocks, of a trace, a run or placed operations.

One pass; memory is bounded by the number of objects and by how many accesses are looked at.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvdistill.profile.profile import Locality, Reuse
from kvdistill.queries.window import DELETE, OK, READ
from kvtrace.core.errors import TraceError
from kvtrace.core.native.library import I1, I8, function
from kvtrace.core.statistics import SLOTS, count, nearest_rank, to_slots
from kvtrace.core.tables import Reader

MAX_ACCESSES = 4_000_000
"""Reads and writes of a tier whose reuse is looked at; a longer trace is cut here, which bounds time and memory."""
_COLUMNS = ("op", "tier", "object_id", "offset_bytes", "length_bytes")
_TIER = np.dtype([(name, I8) for name in ("live", "peak", "is_written")])
_enter = function("locality_enter", int, I1, I1, I8, I8, int, _TIER, I8, returns=bool)


class LiveBytes(msgspec.Struct, frozen=True, kw_only=True):
    """The bytes of what was written to a tier and not deleted; an object is as long as the writes of its life reach."""

    peak: int
    end: int


class ObjectReuse(msgspec.Struct, frozen=True, kw_only=True):
    """How far apart accesses to an object are in one tier: distinct bytes of others read or written in between.

    A read at a distance below a cache's size is a hit there, if that evicts the least recently used.
    """

    reads: int
    """Reads looked at."""
    first_reads: int
    """Those of objects that the tier did not read or write before: no distance is known."""
    is_whole: bool
    """False if the trace has more accesses than are looked at."""
    p50_bytes: int | None
    p95_bytes: int | None
    max_bytes: int | None
    bins: list[tuple[int, int]]
    """Reads by distance: from these bytes to below twice that; 0 for none in between."""


class TraceLocality(msgspec.Struct, frozen=True, kw_only=True):
    """Live bytes and reuse of each tier, by index; null where the tier has no such rows."""

    live: list[LiveBytes | None]
    reuse: list[ObjectReuse | None]


def trace_locality(reader: Reader, tiers: int, path: Path) -> TraceLocality:
    """Return the locality of the trace that `reader` reads, which has `tiers` tiers.

    Raises:
        TraceError: more lies in a tier than can be reckoned with.

    """
    found, sizes, accesses = np.zeros(tiers, _TIER), np.zeros(tiers << 10, dtype=np.int64), _Accesses(tiers)
    for batch in reader.batches(_COLUMNS):
        rows = [batch.column(name) for name in _COLUMNS]
        op, tier = rows[0].indices.to_numpy(), rows[1].to_numpy()
        objects, reach, length = rows[2].to_numpy(), rows[3].to_numpy() + rows[4].to_numpy(), rows[4].to_numpy()
        if not len(op):
            continue
        if (missing := (int(objects.max()) + 1) * tiers - len(sizes)) > 0:
            sizes = np.concatenate([sizes, np.zeros(max(missing, len(sizes)), dtype=np.int64)])
        if not _enter(len(op), op, tier, objects, reach, tiers, found, sizes):
            raise TraceError("what lies in a tier is more than can be reckoned with", path=path, column="offset_bytes")
        accesses.take(op, tier, objects, length, op != DELETE)
    return TraceLocality(
        live=[LiveBytes(peak=peak, end=live) if is_written else None for live, peak, is_written in found.tolist()],
        reuse=accesses.reuse(),
    )


def run_reuse(reader: Reader, tiers: int) -> list[ObjectReuse | None]:
    """Return the reuse of the operations of a run that completed, by tier and in trace order."""
    columns = ("op", "tier", "object_id", "bytes", "outcome")
    accesses = _Accesses(tiers)
    for batch in reader.batches(columns):
        op, tier, objects, length, outcome = (batch.column(name) for name in columns)
        op, outcome = op.indices.to_numpy(), outcome.indices.to_numpy()
        is_access = (op != DELETE) & (outcome == OK)
        length = length.fill_null(0).to_numpy(zero_copy_only=False)
        accesses.take(op, tier.to_numpy(), objects.to_numpy(), length, is_access)
    return accesses.reuse()


class _Accesses:
    """The first reads and writes of each tier, until there are enough, and how many there are in all."""

    def __init__(self, tiers: int) -> None:
        self._kept: list[list[tuple[Any, Any, Any]]] = [[] for _ in range(tiers)]
        self._counts = [0] * tiers

    def take(self, op: Any, tier: Any, objects: Any, length: Any, is_access: Any) -> None:
        for index, kept in enumerate(self._kept):
            picked = np.flatnonzero((tier == index) & is_access)
            first = picked[: max(0, MAX_ACCESSES - self._counts[index])]
            self._counts[index] += len(picked)
            if len(first):
                kept.append((op[first] == READ, objects[first], length[first]))

    def reuse(self) -> list[ObjectReuse | None]:
        return [_object_reuse(kept, count) for kept, count in zip(self._kept, self._counts, strict=True)]


def _object_reuse(parts: list[tuple[Any, Any, Any]], accesses: int) -> ObjectReuse | None:
    if not parts:
        return None
    is_read, objects, length = (np.concatenate(column) for column in zip(*parts, strict=True))
    if not is_read.any():
        return None
    things = np.unique(objects, return_inverse=True)[1].astype(np.int64)
    distances = reuse_distances(things, length.astype(np.int64), int(things.max()) + 1)[is_read]
    known = np.sort(distances[distances >= 0])
    exponents, ops = np.unique(
        np.where(known > 0, np.log2(np.maximum(known, 1)).astype(np.int64), -1), return_counts=True
    )
    return ObjectReuse(
        reads=len(distances),
        first_reads=len(distances) - len(known),
        is_whole=accesses <= MAX_ACCESSES,
        p50_bytes=_percentile(known, 5000),
        p95_bytes=_percentile(known, 9500),
        max_bytes=int(known[-1]) if len(known) else None,
        bins=[(0 if e < 0 else 1 << int(e), int(n)) for e, n in zip(exponents, ops, strict=True)],
    )


def reuse_rows(names: list[str], found: list[ObjectReuse | None]) -> list[dict[str, Any]]:
    """Return `found` as rows, by the tiers' `names`; tiers without reads have none."""
    return [
        {"tier": name, **msgspec.structs.asdict(reuse)}
        | {"bins": [{"low_bytes": low, "reads": reads} for low, reads in reuse.bins]}
        for name, reuse in zip(names, found, strict=True)
        if reuse is not None
    ]


def _percentile(ascending: NDArray[Any], part: int) -> int | None:
    rank = nearest_rank(len(ascending), part)
    return None if rank is None else int(ascending[rank - 1])


MAX_OPS = 4_000_000
"""Operations looked at, which bounds time and memory."""


def place_locality(ios: Path) -> Locality | None:
    """Return the locality of the operations at `ios`; null if there are none."""
    op, address, length, is_whole = _first_operations(ios)
    if not len(op):
        return None
    blocks = block_accesses(address, length)
    hot = hot_share(blocks)
    if hot is None:
        return None
    places, place = np.unique(address, return_inverse=True)
    distances = reuse_distances(place.astype(np.int64), length, len(places))
    is_read = op == READ
    return Locality(
        ops=len(op),
        is_whole=is_whole,
        hot10_share=hot,
        reuse_p50_blocks=median_reuse(blocks),
        read=_reuse_of(distances[is_read]),
        write=_reuse_of(distances[~is_read]),
    )


def _first_operations(ios: Path) -> tuple[Any, Any, Any, bool]:
    """Return op, address and length of the first operations that move bytes, and whether these are all."""
    import pyarrow.parquet as pq

    kept: list[tuple[Any, ...]] = []
    rows = 0
    for batch in pq.ParquetFile(ios).iter_batches(columns=["op", "address", "io_bytes"], use_threads=False):
        op, address, length = (column.to_numpy() for column in batch.columns)
        moving = (length > 0) & (op != DELETE)
        kept.append((op[moving], address[moving], length[moving]))
        rows += int(moving.sum())
        if rows > MAX_OPS:
            break
    op, address, length = (np.concatenate(column)[:MAX_OPS] for column in zip(*kept, strict=True))
    return op, address, length, rows <= MAX_OPS


def _reuse_of(distances: Any) -> Reuse:
    known = distances[distances >= 0]
    return Reuse(
        first_ops=len(distances) - len(known),
        distances=to_slots(count(known) if len(known) else np.zeros(SLOTS, dtype=np.int64)),
    )


BLOCK_BYTES = 128 * 1024
MAX_BLOCK_ACCESSES = 8_000_000
"""Block accesses looked at; a longer stream is cut here, which bounds memory."""
_reuse_distances = function("reuse_distances", int, I8, I8, int, I8)


def block_accesses(offsets: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the blocks that each operation touches, one after another, renumbered densely from 0."""
    first = offsets // BLOCK_BYTES
    count = (offsets + lengths - 1) // BLOCK_BYTES - first + 1
    kept = int(np.searchsorted(np.cumsum(count), MAX_BLOCK_ACCESSES, "right"))
    first, count = first[:kept], count[:kept]
    within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
    blocks = np.repeat(first, count) + within
    return np.unique(blocks, return_inverse=True)[1].astype(np.int64)


def hot_share(blocks: NDArray[np.int64], part: float = 0.1) -> float | None:
    """Return the share of accesses that go to the hottest `part` of the touched blocks; null if none."""
    if not len(blocks):
        return None
    counts = np.sort(np.bincount(blocks))[::-1]
    hottest = max(1, round(len(counts) * part))
    return float(counts[:hottest].sum() / len(blocks))


def median_reuse(blocks: NDArray[np.int64]) -> float | None:
    """Return the median number of distinct other blocks between accesses to one block; null if none recurs."""
    if not len(blocks):
        return None
    distances = reuse_distances(blocks, np.ones_like(blocks), int(blocks.max()) + 1)
    recurring = distances[distances >= 0]
    return float(np.median(recurring)) if len(recurring) else None


def reuse_distances(things: Any, weights: Any, count: int) -> NDArray[np.int64]:
    """Return for each access the summed weight of the distinct others since the last one to its thing; -1 for a first.

    `things` are numbers below `count`; `weights` are what each access makes its thing weigh.
    """
    distances = np.empty(len(things), dtype=np.int64)
    _reuse_distances(
        len(things), np.ascontiguousarray(things, I8), np.ascontiguousarray(weights, I8), int(count), distances
    )
    return distances
