"""Figures as rows of tables: of a run's operations, by the recorder that makes its run.json, and of
any other times, by the same distributions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvdistill.queries.database import BATCH_ROWS
from kvtrace.core import duckdb, np
from kvtrace.core.metrics.distribution import TimeDistributions
from kvtrace.core.metrics.ops_table import OpsRecording, exact_limits
from kvtrace.core.metrics.recorder import LATENESS, OPS, RESPONSE, SERVICE
from kvtrace.core.run.figures import Distribution
from kvtrace.core.statistics import QUANTILES

MEASURES = ("latency", "response", "lateness")
"""The times of an operation, as run.json calls them."""
TIME_FIELDS = ("mean_ns", *(f"{name}_ns" for name in QUANTILES), "max_ns")
_WHOLE = 10_000


class TimeKey(NamedTuple):
    """Of which operations a time is, and which time."""

    measure: str
    tier: str
    op: str


class TimeRows(NamedTuple):
    """Distributions as rows."""

    points: list[dict[str, Any]]
    """The time at each share of the operations, where there are enough of them."""
    summaries: dict[str, list[dict[str, Any]]]
    """By measure: count, mean, percentiles and longest time, by tier and operation."""


def figure_rows(recording: OpsRecording) -> list[dict[str, Any]]:
    """Return counts, bytes and rates by tier and operation.

    Null is what was not measured: deletes move nothing, and a simulated tier has no times.
    """
    recorder, rows = recording.recorder, []
    of_kind = {(figures.tier, figures.op): figures for figures in recorder.figures()}
    for index, tier in enumerate(recorder.tiers):
        for code in sorted(range(len(OPS)), key=lambda code: OPS[code]):
            (kind,) = recorder.kinds_of(index, code)
            figures = None if tier is None else of_kind.get((tier.name, OPS[code]))
            if figures is None:
                continue
            planned, done, errors = (
                figures.planned or 0,
                figures.operations or 0,
                figures.errors or 0,
            )
            has_bytes = done > 0 and figures.op != "delete"
            rows.append(
                {
                    "tier": figures.tier,
                    "op": figures.op,
                    "engine": recording.engines[kind],
                    "rows": planned,
                    "operations": done,
                    "errors": errors,
                    "corrupt": figures.corrupt,
                    "skipped": planned - done - errors,
                    "bytes": figures.bytes if has_bytes else None,
                    "io_bytes": figures.io_bytes if done else None,
                    "span_ns": figures.span_ns,
                    "bandwidth_bytes_per_s": figures.bandwidth_bytes_per_s,
                    "operations_per_s": figures.operations_per_s,
                }
            )
    return rows


def operation_times(recording: OpsRecording, parts: Sequence[int]) -> TimeRows:
    """Return latency, response time and lateness of operations that completed well.

    `parts` are shares in ten-thousandths. Simulated tiers have no such times, and a closed loop has
    latencies alone.
    """
    recorder = recording.recorder
    measures = {"latency": SERVICE}
    if recorder.is_open_loop:
        measures |= {"response": RESPONSE, "lateness": LATENESS}
    slots = {
        TimeKey(measure, tier.name, op): recorder.slots(number, recorder.kinds_of(index, code))
        for measure, number in sorted(measures.items())
        for index, tier in enumerate(recorder.tiers)
        if tier is not None and tier.has_times
        for op, code in sorted((op, code) for code, op in enumerate(OPS))
    }
    return time_rows(recorder.times, slots, parts, MEASURES)


def viewed_times(db: duckdb.DuckDBPyConnection) -> TimeRows:
    """Return the summaries of the view `times`, which has columns measure, tier, op and time_ns."""
    counted = db.execute(
        "SELECT measure, tier, op, count(*) FROM times GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    counts: Any = np.array([count for *_, count in counted], np.int64)
    times = TimeDistributions(len(counted), exact_limits(counts))
    slots = {TimeKey(*key): [index] for index, (*key, _) in enumerate(counted)}
    for key, (index,) in slots.items():
        query = "SELECT time_ns FROM times WHERE measure = ? AND tier = ? AND op = ?"
        chosen = db.sql(query, params=list(key))
        for batch in chosen.to_arrow_reader(BATCH_ROWS):
            times.add(batch.column("time_ns").to_numpy(), index)
    return time_rows(times, slots, (), sorted({key.measure for key in slots}))


def time_rows(
    times: TimeDistributions,
    slots: Mapping[TimeKey, Sequence[int]],
    parts: Sequence[int],
    measures: Sequence[str],
) -> TimeRows:
    """Return the rows of `times`, of which `slots` names those of each key.

    `parts` are shares in ten-thousandths; every one of `measures` has summaries, if only none.
    """
    points: list[dict[str, Any]] = []
    summaries: dict[str, list[dict[str, Any]]] = {name: [] for name in measures}
    for key, indices in slots.items():
        if not times.count(*indices):
            continue
        found: Distribution = times.distribution(*indices)
        # As few operations tell no high percentile, they tell no low one.
        told = [part for part in parts if found.count * part >= _WHOLE]
        points += [
            key._asdict() | {"share": part / _WHOLE, "time_ns": value}
            for part, value in zip(told, times.quantiles(told, *indices), strict=True)
            if value is not None
        ]
        row: dict[str, Any] = {"tier": key.tier, "op": key.op, "count": found.count}
        row |= {name: getattr(found, name) for name in TIME_FIELDS}
        summaries[key.measure].append(row)
    return TimeRows(points, summaries)
