"""A run's results of what tests say was measured, taken in one part or in several."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from kvreplay.plan.plan import Plan
from kvreplay.result.counted.operations import CountedOperations
from kvreplay.result.part import RunPart
from kvreplay.result.results import RunResults

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kvreplay.config.setting import Setting
    from kvreplay.config.warmup import Warmup
    from kvreplay.engine.job import Record


def parts(whole: RunPart, cuts: Iterable[int] = ()) -> list[RunPart]:
    """Return `whole` cut before the rows `cuts`."""
    edges = [0, *sorted(cuts), len(whole)]
    return [whole.within(first, last) for first, last in pairwise(edges)]


def take(made: Setting, record: Record, due_ns: Any, output: Path, cuts: Iterable[int] = ()) -> RunResults:
    """Return the results of a run, whose tables are in `output`."""
    output.mkdir(exist_ok=True)
    with RunResults(made, output) as found:
        for part in parts(RunPart(0, made.window.plan, record, due_ns), cuts):
            found.take(part)
        found.end()
    return found


def plan_of(count: int, **columns: Any) -> Plan:
    """Return a plan of so many reads of 1000 bytes each on one tier, or of what `columns` say."""
    known = {
        "row": np.arange(count),
        "ts_ns": np.zeros(count, np.int64),
        "op": np.zeros(count, np.int8),
        "tier": np.zeros(count, np.int8),
        "object_id": np.arange(count, dtype=np.int32),
        "offset": np.zeros(count, np.int64),
        "length": np.full(count, 1000, np.int64),
        **{name: np.zeros(count, np.int32) for name in ("version", "stage_links", "object_links")},
    }
    return Plan(**(known | columns), alignments=np.ones(1, np.int64))


def counted(
    plan: Plan,
    record: Record,
    due_ns: Any,
    tiers: Sequence[Any],
    warmup: Warmup | None = None,
    cuts: Iterable[int] = (),
) -> CountedOperations:
    """Return what is counted of operations."""
    found = CountedOperations(tiers, is_open_loop=due_ns is not None, io_bytes=4096)
    for part in parts(RunPart(0, plan, record, due_ns), cuts):
        counts = np.ones(len(part), bool)
        if warmup is not None:
            counts = warmup.is_measured(part.plan, part.record, part.due_ns)
        found.take(part, counts)
    found.end()
    return found
