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
from kvreplay.result.checkpoints import COLUMNS, TimesBeside, checkpoint, figures_of, spans_of
from kvtrace.core.run.figures import Beside, Checkpoint, CheckpointFigures


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
    found, is_open = TimesBeside(spans, tiers, EXACT_OPERATIONS if is_exact else 0), False
    for part in parts:
        late_ns = late_of(part, parts)
        is_timed = np.array([[(tier, op) in part.timed for op in NAMES] for tier in tiers])
        for rows in rows_of(part, COLUMNS):
            is_open |= bool((rows["scheduled_ns"] >= 0).any())
            counts = is_timed[rows["tier"], rows["op"]] & is_measured(part, rows)
            found.add(rows, counts & (rows["completed_ns"] >= 0), is_open=is_open, late_ns=late_ns)
    return found.found(is_open=is_open)
