"""What a trace holds: counted in one pass over its rows, never from its own claims, but for hit ratios."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.core.errors import TraceError
from kvtrace.core.schema import OBJECTS, TRACE
from kvtrace.core.tables import objects_path, open_table
from kvtrace.trace.ledger import Ledger
from kvtrace.trace.object_check import check_objects, retrieved

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvtrace.core.tables import Reader


def take(reader: Reader, progress: Callable[[float], None]) -> dict[str, Any]:
    """Return the inventory of a trace: rows, span, objects, operations and bytes, peak live bytes, hit ratios."""
    meta = reader.meta
    ledger = Ledger(meta.tiers, meta.rows or 0, is_strict=False)
    ops, phases = TRACE.column("op").values, TRACE.column("phase").values
    shape = (max(1, len(meta.tiers)), len(ops), len(phases))
    counts, sizes = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    first_ns, last_ns = None, None
    for batch in reader.batches():
        fault = ledger.apply(batch)
        if fault is not None:
            raise TraceError(fault.message, path=reader.path, row=fault.row, column=fault.column)
        if batch.num_rows:
            times = batch.column("ts_ns").to_numpy()
            first_ns = int(times.min()) if first_ns is None else min(first_ns, int(times.min()))
            last_ns = int(times.max()) if last_ns is None else max(last_ns, int(times.max()))
            _count(batch, counts, sizes)
        progress(float(ledger.rows))
    cells = [
        {
            "tier": tier.name, "op": ops[o], "phase": phases[p],
            "operations": int(counts[t, o, p]), "bytes": int(sizes[t, o, p]),
        }
        for t, tier in enumerate(meta.tiers) for o in range(len(ops)) for p in range(len(phases)) if counts[t, o, p]
    ]  # fmt: skip
    return {
        "rows": ledger.rows,
        "span_ns": last_ns - first_ns if first_ns is not None and last_ns is not None else None,
        "objects": ledger.objects,
        "requests": ledger.requests or None,
        "operations": cells,
        "tiers": [_tier(ledger, counts, t, meta.stats) for t in range(len(meta.tiers))],
    }


def _count(batch: Any, counts: Any, sizes: Any) -> None:
    tier = batch.column("tier").to_numpy().astype(np.int64)
    op, phase = (batch.column(n).indices.to_numpy() for n in ("op", "phase"))
    cell = (tier * counts.shape[1] + op) * counts.shape[2] + phase
    n = counts.size
    counts += np.bincount(cell, minlength=n).reshape(counts.shape)
    # bincount's weights are doubles, which lose bytes over 2^53: add whole numbers per cell instead.
    order = np.argsort(cell, kind="stable")
    length = batch.column("length_bytes").to_numpy()[order]
    cells, starts = np.unique(cell[order], return_index=True)
    sizes.reshape(-1)[cells] += np.add.reduceat(length, starts)


def _tier(ledger: Ledger, counts: Any, t: int, stats: dict[str, Any] | None) -> dict[str, Any]:
    tier = ledger.tiers[t]
    counted = (stats or {}).get("tiers") or []
    has_deletes = bool(counts[:, TRACE.column("op").values.index("delete")].sum())
    return {
        "name": tier.name,
        "capacity_bytes": tier.capacity_bytes,
        "peak_live_bytes": int(ledger.peak_bytes[t]),
        "live_bytes_at_end": int(ledger.live_bytes[t]),
        "is_upper_bound": not has_deletes,
        "hit_ratio": counted[t].get("hit_ratio") if t < len(counted) else None,
    }


def check(reader: Reader, progress: Callable[[float], None]) -> tuple[Ledger, bool]:
    """Re-simulate the rows of a trace, and compare the objects table beside it.

    Returns the final books and whether there was such a table; TraceError at the first that cannot be.
    """
    meta = reader.meta
    ledger = Ledger(meta.tiers, meta.rows or 0)
    documents: set[int] = set()
    for batch in reader.batches():
        fault = ledger.apply(batch)
        if fault is not None:
            raise TraceError(fault.message, path=reader.path, row=fault.row, column=fault.column)
        documents |= retrieved(batch)
        progress(float(ledger.rows))
    counted = (meta.stats or {}).get("tiers") or []
    for t, tier in enumerate(counted):
        live = int(ledger.live_bytes[t])
        if tier.get("live_bytes") not in (None, live):
            raise TraceError(
                f"tier {tier['name']} ends with {live} bytes live, but the simulation counted {tier['live_bytes']}: "
                "rows are missing", path=reader.path,
            )  # fmt: skip
    beside = objects_path(reader.path)
    if beside.exists():
        check_objects(open_table(beside, OBJECTS), ledger.extents[: ledger.objects], documents)
    return ledger, beside.exists()
