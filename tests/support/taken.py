"""A run's results of what tests say was measured, taken in one part or in several."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kvreplay.plan.row_ring import NONE, RowRing
from kvreplay.result.recording import RunPart, RunRecorder
from kvreplay.result.summarize import RunResults

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kvreplay.engine.setting import Setting
    from kvtrace.core.metrics.warmup import Warmup

MEASURED = ("submitted_ns", "completed_ns", "outcome", "ready_ns", "retries")


def rows_of(count: int, **columns: Any) -> Any:
    """Return ROW of so many reads of 1000 bytes each on one tier, or of what `columns` say, done or
    not.
    """
    known = {
        "op": np.zeros(count, np.int8),
        "object_id": np.arange(count, dtype=np.int32),
        "length_bytes": np.full(count, 1000, np.int64),
        **{
            name: values
            for name, values in columns.items()
            if name not in MEASURED and values is not None
        },
    }
    rows = RowRing.of(known, is_open_loop="due_ns" in known).all
    for name in MEASURED:
        if name in columns:
            rows[name] = columns[name]
    return rows


def planned(made: Setting, **measured: Any) -> Any:
    """Return ROW of the rows that `made` replays, with what was measured of them."""
    loader = made.window.loader
    rows = loader.begin(made.pacer).all
    loader.load()
    for name, values in measured.items():
        rows[name] = NONE if values is None else values
    return rows


def parts(whole: RunPart, cuts: Iterable[int] = ()) -> list[RunPart]:
    """Return `whole` cut before the rows `cuts`."""
    edges = [0, *sorted(cuts), len(whole)]
    return [whole.within(first, last) for first, last in pairwise(edges)]


def take(made: Setting, rows: Any, output: Path, cuts: Iterable[int] = ()) -> RunResults:
    """Return the results of a run that came to `rows`, whose tables are in `output`."""
    output.mkdir(exist_ok=True)
    with RunResults(made, output) as found:
        for part in parts(RunPart(0, rows), cuts):
            found.take(part)
        found.end()
    return found


def counted(
    rows: Any, tiers: Sequence[Any], warmup: Warmup | None = None, cuts: Iterable[int] = ()
) -> RunRecorder:
    """Return what is counted of operations: of an open loop if they are due."""
    is_open = bool((rows["due_ns"] != NONE).any())
    found = RunRecorder(tiers, is_open_loop=is_open, io_bytes=4096)
    for part in parts(RunPart(0, rows), cuts):
        counts = np.ones(len(part), bool) if warmup is None else warmup.is_measured(part.rows)
        found.take(part, counts)
    found.end()
    return found
