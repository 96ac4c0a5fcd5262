"""What happened in each second of a run: the table `series`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvreplay.engine.job import NOT_DONE, OK, SKIPPED
from kvreplay.plan.plan import DELETE
from kvreplay.tiers.sharded import SeveralDrives
from kvtrace.core.schema import SERIES, arrow_schema, enum_array
from kvtrace.core.units import NS_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from kvreplay.engine.job import Record
    from kvreplay.plan.plan import Plan
    from kvreplay.tiers.tier import Tier

_P99_NEEDS = 100
_OPS = 3


def series_batch(plan: Plan, record: Record, tiers: Sequence[Tier | None]) -> pa.RecordBatch:
    """Return one row a second, tier, drive and op in which anything ended; tiers where nothing moves have none."""
    import numpy as np
    import pyarrow as pa

    moves = np.array([t is not None and not t.is_simulated for t in tiers])[plan.tier]
    rows = np.flatnonzero(moves & (record.outcome != SKIPPED) & (record.submitted_ns != NOT_DONE))
    # What failed has no completion: it counts where it was submitted.
    ended = np.where(record.completed_ns[rows] == NOT_DONE, record.submitted_ns[rows], record.completed_ns[rows])
    places = [tier.drives if isinstance(tier, SeveralDrives) else [tier] for tier in tiers]
    starts = np.cumsum([0, *(len(of_tier) for of_tier in places)])
    place = starts[plan.tier[rows]]
    for index, tier in enumerate(tiers):
        if isinstance(tier, SeveralDrives):
            here = plan.tier[rows] == index
            place[here] += tier.drive_of[plan.object_id[rows[here]]]
    count = int(starts[-1])
    key = (ended // NS_PER_S * count + place) * _OPS + plan.op[rows]
    order = np.argsort(key, kind="stable")
    rows, key = rows[order], key[order]
    keys, firsts = np.unique(key, return_index=True)
    groups = np.split(rows, firsts[1:]) if len(keys) else []
    found: list[tuple[Any, ...]] = [_figures(plan, record, group) for group in groups]
    columns = [list(c) for c in zip(*found, strict=True)] if found else [[] for _ in range(6)]
    at = keys // _OPS % count
    tier_of = np.searchsorted(starts, at, side="right") - 1
    is_alone = np.array([len(of_tier) == 1 for of_tier in places])[tier_of]
    arrays = [
        pa.array(keys // _OPS // count, pa.int64()), pa.array(tier_of, pa.int8()),
        pa.array(at - starts[tier_of], pa.int16(), mask=is_alone),
        enum_array(SERIES, "op", (keys % _OPS).astype(np.int8)), *(pa.array(c, pa.int64()) for c in columns),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(SERIES))


def _figures(plan: Plan, record: Record, rows: Any) -> tuple[int | None, ...]:
    import numpy as np

    good = rows[record.outcome[rows] == OK]
    latency = np.sort(record.completed_ns[good] - record.submitted_ns[good])
    count = len(good)
    moved = int(plan.length[good].sum()) if plan.op[rows[0]] != DELETE else 0
    return (
        count, len(rows) - count, moved, int(latency.mean()) if count else None,
        int(latency[-(-count * 99 // 100) - 1]) if count >= _P99_NEEDS else None, int(latency[-1]) if count else None,
    )  # fmt: skip
