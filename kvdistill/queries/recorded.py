"""Figures of a run's operations, and distributions of other times, as rows of tables.

The recorder that computes run.json also computes these.
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
_TEN_THOUSAND = 10_000


FigureRow = dict[str, Any]
"""A row of a table of figures, by column; null is not measured."""


class TimeKey(NamedTuple):
    """The measure, tier and operation of a distribution of times."""

    measure: str
    tier: str
    op: str


class TimeFigureRows(NamedTuple):
    """Distributions as rows."""

    points: list[FigureRow]
    """The time at each share of the operations, if there are enough operations."""
    summaries: dict[str, list[FigureRow]]
    """Count, mean, percentiles and maximum by tier and operation, for each measure."""


def figure_rows(recording: OpsRecording) -> list[FigureRow]:
    """Return counts, bytes and rates by tier and operation.

    An unmeasured figure is null: deletes transfer nothing, and a simulated tier has no times.
    """
    recorder, rows = recording.recorder, []
    figures_by_kind = {(figures.tier, figures.op): figures for figures in recorder.figures()}
    for index, tier in enumerate(recorder.tiers):
        for code in sorted(range(len(OPS)), key=lambda code: OPS[code]):
            (kind,) = recorder.kinds_of(index, code)
            figures = None if tier is None else figures_by_kind.get((tier.name, OPS[code]))
            if figures is None:
                continue
            planned, completed, errors = (
                figures.planned or 0,
                figures.operations or 0,
                figures.errors or 0,
            )
            has_bytes = completed > 0 and figures.op != "delete"
            rows.append(
                {
                    "tier": figures.tier,
                    "op": figures.op,
                    "engine": recording.engines[kind],
                    "rows": planned,
                    "operations": completed,
                    "errors": errors,
                    "corrupt": figures.corrupt,
                    "skipped": planned - completed - errors,
                    "bytes": figures.bytes if has_bytes else None,
                    "io_bytes": figures.io_bytes if completed else None,
                    "span_ns": figures.span_ns,
                    "bandwidth_bytes_per_s": figures.bandwidth_bytes_per_s,
                    "operations_per_s": figures.operations_per_s,
                }
            )
    return rows


def operation_times(recording: OpsRecording, ten_thousandths: Sequence[int]) -> TimeFigureRows:
    """Return latency, response time and lateness of successful operations.

    `ten_thousandths` are the shares of `TimeFigureRows.points`. Simulated tiers have no times, and a
    closed loop has latencies only.
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
    return time_rows(recorder.times, slots, ten_thousandths, MEASURES)


def times_of_view(db: duckdb.DuckDBPyConnection) -> TimeFigureRows:
    """Return the summaries of the view `times`, which has columns measure, tier, op and time_ns."""
    count_rows = db.execute(
        "SELECT measure, tier, op, count(*) FROM times GROUP BY ALL ORDER BY ALL"
    ).fetchall()
    counts = np.array([count for *_, count in count_rows], np.int64)
    times = TimeDistributions(len(count_rows), exact_limits(counts))
    slots = {TimeKey(*key): [index] for index, (*key, _) in enumerate(count_rows)}
    for key, (index,) in slots.items():
        query = "SELECT time_ns FROM times WHERE measure = ? AND tier = ? AND op = ?"
        relation = db.sql(query, params=list(key))
        for batch in relation.to_arrow_reader(BATCH_ROWS):
            times.add(batch.column("time_ns").to_numpy(), index)
    return time_rows(times, slots, (), sorted({key.measure for key in slots}))


def time_rows(
    times: TimeDistributions,
    slots: Mapping[TimeKey, Sequence[int]],
    ten_thousandths: Sequence[int],
    measures: Sequence[str],
) -> TimeFigureRows:
    """Return the rows of `times`; `slots` holds the indices of each key's distributions.

    `ten_thousandths` are the shares of the points. Each of `measures` has a list of summaries, which
    may be empty.
    """
    points: list[FigureRow] = []
    summaries: dict[str, list[FigureRow]] = {name: [] for name in measures}
    for key, indices in slots.items():
        if not times.count(*indices):
            continue
        distribution: Distribution = times.distribution(*indices)
        # Too few operations for a high percentile are too few for a low one.
        reported_shares = [
            share for share in ten_thousandths if distribution.count * share >= _TEN_THOUSAND
        ]
        points += [
            key._asdict() | {"share": share / _TEN_THOUSAND, "time_ns": value}
            for share, value in zip(
                reported_shares, times.quantiles(reported_shares, *indices), strict=True
            )
            if value is not None
        ]
        row: FigureRow = {"tier": key.tier, "op": key.op, "count": distribution.count}
        row |= {name: getattr(distribution, name) for name in TIME_FIELDS}
        summaries[key.measure].append(row)
    return TimeFigureRows(points, summaries)
