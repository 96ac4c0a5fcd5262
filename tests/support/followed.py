"""Rows told by NumPy columns instead of a file, as the first pass over a trace follows them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvreplay.plan.window import Batch, Intake, PlanSurvey, Residency
from kvtrace.core.limit import Limit

if TYPE_CHECKING:
    from collections.abc import Mapping

_KINDS = {"op": np.int8, "tier": np.int8, "phase": np.int8, "stage": np.int32}


def batch_of(columns: dict[str, Any], first: int = 0, last: int | None = None) -> Batch:
    """Return rows by the contract's names; what is not named is 0, or none."""
    count = len(columns["op"])
    none = {"request_id": np.full(count, -1), "stage": np.full(count, -1)}
    names = (
        "ts_ns",
        "op",
        "tier",
        "phase",
        "object_id",
        "offset_bytes",
        "length_bytes",
        "request_id",
        "stage",
    )
    every = {name: columns.get(name, none.get(name, np.zeros(count))) for name in names}
    return Batch(
        {
            n: np.ascontiguousarray(of[first:last], _KINDS.get(n, np.int64))
            for n, of in every.items()
        }
    )


def trace_residency(
    tier: Any,
    op: Any,
    object_id: Any,
    end: Any,
    alignments: list[int],
    shared: Mapping[int, tuple[Any, int]] | None = None,
    offset: Any = None,
    cuts: list[int] | None = None,
) -> Residency:
    """Return what follows of rows that touch objects from `offset` (0 without) to `end`, in batches
    up to `cuts`.
    """
    start = np.zeros(len(op), np.int64) if offset is None else offset
    columns = {
        "tier": tier,
        "op": op,
        "object_id": object_id,
        "offset_bytes": start,
        "length_bytes": end - start,
    }
    ends = [0, *(cuts or []), len(op)]

    reader: Any = SimpleNamespace(path=Path(), file_rows=lambda rows: rows)

    def intake() -> Intake:
        return Intake(alignments, dict.fromkeys(range(len(alignments)), 1), Limit(), is_done=False)

    def for_each_batch(intake: Intake, take: Any) -> None:
        for first, last in pairwise(ends):
            batch = batch_of(columns, first, last)
            take(batch)
            batch.check(intake, reader)

    survey, taken = PlanSurvey(len(alignments), shared or {}), intake()
    for_each_batch(taken, lambda batch: survey.take(batch, taken))
    source: Any = SimpleNamespace(intake=intake, for_each_batch=for_each_batch)
    found = survey.residency(source)
    survey.close()
    return found
