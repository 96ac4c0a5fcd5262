"""The locality of placed operations: hot blocks, and how soon places are used again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvdistill.profile import reuse
from kvdistill.profile.operations import DELETE, READ
from kvdistill.profile.profile import Locality, Reuse
from kvtrace.core.statistics import SLOTS, count, to_slots

if TYPE_CHECKING:
    from pathlib import Path

MAX_OPS = 4_000_000
"""Operations looked at, which bounds time and memory."""


def locality(ios: Path) -> Locality | None:
    """Return the locality of the operations at `ios`; null if there are none."""
    op, address, length, is_whole = _head(ios)
    if not len(op):
        return None
    blocks = reuse.block_accesses(address, length)
    hot = reuse.hot_share(blocks)
    if hot is None:
        return None
    places, place = np.unique(address, return_inverse=True)
    distances = reuse.reuse_distances(place.astype(np.int64), length, len(places))
    is_read = op == READ
    return Locality(
        ops=len(op), is_whole=is_whole, hot10_share=hot, reuse_p50_blocks=reuse.median_reuse(blocks),
        read=_curve(distances[is_read]), write=_curve(distances[~is_read]),
    )  # fmt: skip


def _head(ios: Path) -> tuple[Any, Any, Any, bool]:
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


def _curve(distances: Any) -> Reuse:
    known = distances[distances >= 0]
    return Reuse(
        first_ops=len(distances) - len(known),
        distances=to_slots(count(known) if len(known) else np.zeros(SLOTS, dtype=np.int64)),
    )
