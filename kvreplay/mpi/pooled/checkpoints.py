"""Checkpoints of all ranks: a save has ended when its last rank has, and its bytes are those of all ranks.

So MLPerf Storage counts a checkpoint, too: by the slowest rank's time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from kvreplay.mpi.pooled.operations import EXACT_OPERATIONS, NAMES, is_measured, late_of, rows_of
from kvreplay.mpi.pooled.part import PartRun
from kvreplay.result.checkpoints import checkpoint, figures_of, is_beside, spans_of
from kvreplay.result.counted.times import Times
from kvtrace.core.run.checkpoints import Beside, Checkpoint, CheckpointFigures
from kvtrace.core.schema import OPS, Outcome, Phase, enum_code

_COLUMNS = ("row", "op", "tier", "phase", "scheduled_ns", "submitted_ns", "completed_ns", "outcome")
_OK = enum_code(OPS, "outcome", Outcome.OK)
_BULK = [enum_code(OPS, "phase", phase) for phase in (Phase.SAVE, Phase.RESTORE)]


def pooled_checkpoints(
    parts: Sequence[PartRun], tiers: Sequence[str], wall_ns: int | None, *, is_exact: bool
) -> CheckpointFigures | None:
    """Return the checkpoints of all ranks; None if no rank saved or restored one. `tiers` are the trace's names."""
    each: dict[tuple[Any, ...], list[Checkpoint]] = {}
    last = 0
    for part in parts:
        late_ns, run = late_of(part, parts), part.run
        last = max(last, late_ns + (0 if run is None else run.summary.wall_ns or 0))
        for found in [] if run is None or run.checkpoints is None else run.checkpoints.each:
            # Without a request, rows of one moment are one.
            of = (found.request_id,) if found.request_id is not None else ("at", found.ts_ns)
            each.setdefault((found.kind, *of), []).append(_moved(found, late_ns))
    if not each:
        return None
    whole = [_together(found) for found in each.values()]
    whole.sort(key=lambda c: (_least([c.scheduled_ns, c.submitted_ns]) or 0, c.ts_ns or 0))
    spans = spans_of(whole, last)
    return figures_of(whole, spans, wall_ns, _beside(parts, tiers, spans, is_exact=is_exact))


def _moved(found: Checkpoint, by_ns: int) -> Checkpoint:
    """Return a rank's part of a checkpoint with times that count from the start of the first rank."""
    times = {name: getattr(found, name) for name in ("scheduled_ns", "submitted_ns", "completed_ns")}
    return msgspec.structs.replace(found, **{n: None if at is None else at + by_ns for n, at in times.items()})


def _together(parts: Sequence[Checkpoint]) -> Checkpoint:
    """Return one checkpoint of its parts on several ranks."""
    ended = [part.completed_ns for part in parts]
    return checkpoint(
        parts[0].kind,
        parts[0].request_id,
        _least([part.ts_ns for part in parts]),
        _least([part.scheduled_ns for part in parts]),
        _least([part.submitted_ns for part in parts]),
        None if None in ended else max(at for at in ended if at is not None),
        sum(part.bytes for part in parts),
        sum(part.operations for part in parts),
        sum(part.unfinished for part in parts),
    )


def _least(values: Sequence[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def _beside(parts: Sequence[PartRun], tiers: Sequence[str], spans: Any, *, is_exact: bool) -> list[Beside]:
    """Return how long others' operations took while a checkpoint of any rank was under way, and otherwise."""
    found: dict[tuple[int, int], tuple[Times, Times]] = {}
    is_open, limit = False, EXACT_OPERATIONS if is_exact else 0
    for part in parts:
        late_ns = late_of(part, parts)
        for rows in rows_of(part, _COLUMNS):
            is_open |= bool((rows["scheduled_ns"] >= 0).any())
            others = ~np.isin(rows["phase"], _BULK) & (rows["outcome"] == _OK) & (rows["completed_ns"] >= 0)
            others &= is_measured(part, rows)
            for code in np.unique(rows["tier"][others] * len(NAMES) + rows["op"][others]).tolist():
                tier, op = divmod(code, len(NAMES))
                if NAMES[op] == "delete" or (tiers[tier], NAMES[op]) not in part.timed:
                    continue
                here = others & (rows["tier"] == tier) & (rows["op"] == op)
                start = rows["scheduled_ns" if is_open else "submitted_ns"][here] + late_ns
                end = rows["completed_ns"][here] + late_ns
                is_during = is_beside(spans, start, end)
                during, without = found.setdefault((tier, op), (Times(limit=limit), Times(limit=limit)))
                during.add((end - start)[is_during])
                without.add((end - start)[~is_during])
    return [
        Beside(
            tier=tiers[tier],
            op=NAMES[op],
            measure="response" if is_open else "latency",
            during=during.distribution(),
            without=without.distribution(),
        )
        for (tier, op), (during, without) in sorted(found.items())
    ]
