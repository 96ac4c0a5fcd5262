"""What an object store would ask for a trace's requests, and for what they leave there, each month."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvtrace.core.schema import TRACE, Op, enum_code
from kvtrace.core.tables import open_table
from kvtrace.core.units import NS_PER_S
from kvtrace.sim.presets.tier import TierSetting

MONTH_S = 365 * 86400 // 12
_GB = 10**9
_OPS = len(Op)


def monthly_costs(
    trace: Path, tiers: Sequence[TierSetting], stats: dict[str, Any], span_ns: int | None
) -> list[dict[str, Any]]:
    """Return what each tier with a price costs a month at the rate of `trace`; nothing of a trace without a span.

    A row is a request. What is stored is what lies there when the trace ends.
    """
    priced = [t for t, tier in enumerate(tiers) if tier.has_price]
    if not priced or not span_ns:
        return []
    counts, months = _counts(trace, len(tiers)), MONTH_S * NS_PER_S / span_ns
    found = []
    for t in priced:
        tier, (reads, writes) = tiers[t], counts[t]
        live_bytes = stats["tiers"][t]["live_bytes"]
        requests = reads * tier.get_price_per_1000 + writes * tier.put_price_per_1000
        found.append(
            {
                "name": tier.name,
                "puts_per_month": round(writes * months),
                "gets_per_month": round(reads * months),
                "requests_cost_per_month": requests / 1000 * months,
                "stored_bytes": live_bytes,
                "storage_cost_per_month": live_bytes / _GB * tier.price_per_gb_month,
            }
        )
    return found


def _counts(trace: Path, tiers: int) -> list[tuple[int, int]]:
    """Return by tier how many reads and writes `trace` has, those before its start aside."""
    import numpy as np

    total = np.zeros(tiers * _OPS, np.int64)
    populate = enum_code(TRACE, "phase", "populate")
    for batch in open_table(trace, TRACE).batches(("op", "tier", "phase")):
        op, phase = (batch.column(name).indices.to_numpy() for name in ("op", "phase"))
        key = batch.column("tier").to_numpy().astype(np.int64) * _OPS + op
        total += np.bincount(key[phase != populate], minlength=len(total))
    read, write = (enum_code(TRACE, "op", op.value) for op in (Op.READ, Op.WRITE))
    return [(int(of[read]), int(of[write])) for of in total.reshape(tiers, _OPS)]
