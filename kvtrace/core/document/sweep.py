"""A sweep as a document: the answer first, then response times and throughput against the load, and the knee."""

from __future__ import annotations

from kvtrace.core.document.document import (
    Chapter,
    Chart,
    ChartShape,
    Document,
    Highlight,
    ReportColumn,
    ReportTable,
    Series,
    Sheet,
    Unit,
    columns_of,
)
from kvtrace.core.run.sweep_file import Axis, LoadSweep

_NAMES = {Axis.QUEUE_DEPTH: "queue depth", Axis.SPEED: "speed (1: the trace's own)", Axis.USERS: "users"}
_QUANTILES = {"p50": "read_p50_ns", "p99": "read_p99_ns", "p99.9": "read_p99_9_ns"}
_TIMES = """
    ns: read_p50_ns = read p50, read_p99_ns = read p99, read_p99_9_ns = read p99.9
    ns: write_p50_ns = write p50, write_p99_ns = write p99, write_p99_9_ns = write p99.9
"""
_OPEN = """
    ns: late_p99_ns = late p99
    text: keeps_up = keeps up
    count: trials, held_trials = held
"""


def load_name(axis: Axis) -> str:
    """Return what rises, for the axis of a chart."""
    return _NAMES[axis]


def response_lines(found: LoadSweep) -> list[tuple[str, list[tuple[float, int]]]]:
    """Return for each percentile of reads its name and its points: load, nanoseconds."""
    what = "service" if found.axis is Axis.QUEUE_DEPTH else "response"
    return [
        (f"read {what} {name}", [(p.value, ns) for p in found.points if (ns := getattr(p, field)) is not None])
        for name, field in _QUANTILES.items()
    ]


def sweep_document(found: LoadSweep, name: str = "") -> Document:
    """Return the points of a sweep; the headline is its answer."""
    is_open = found.axis is not Axis.QUEUE_DEPTH
    columns = [
        ReportColumn("value", found.axis.replace("_", " "), Unit.NUMBER),
        *(columns_of("bytes_per_s: asked_bytes_per_s = asked") if is_open else []),
        *columns_of("bytes_per_s: throughput_bytes_per_s = throughput; per_s: operations_per_s = op/s"),
        *columns_of(_TIMES),
        *(columns_of(_OPEN) if is_open else []),
    ]
    end = [ReportColumn("limit", "limited by"), ReportColumn("knee", "")]
    rows = [
        [
            *(getattr(p, c.name) for c in columns),
            None if p.judgement is None or (is_open and p.is_held) else p.judgement.cause,
            "knee" if p.value == found.knee else "",
        ]
        for p in found.points
    ]
    what = "times are response times, from when an operation was due" if is_open else "times are service times"
    note = f"Of the slowest tier; {what}."
    table = ReportTable("Sweep", Sheet.PERFORMANCE, [*columns, *end], rows, _charts(found), note, is_answer=True)
    notes = [f"rule: {found.rule}"]
    notes += [f"tier {tier} is SIMULATED: no figure counts it" for tier in found.simulated_tiers]
    return Document(
        name=name,
        headline=found.answer,
        chapters=[Chapter("", [table])],
        notes=notes,
        highlights=_highlights(found),
    )


def _charts(found: LoadSweep) -> tuple[Chart, ...]:
    marks = () if found.knee is None else ((found.knee, f"knee: {found.knee:g}"),)
    lines = [Series(name, [x for x, _ in line], [float(ns) for _, ns in line]) for name, line in response_lines(found)]
    lines = [line for line in lines if line.x]
    rates = [(p.value, p.throughput_bytes_per_s) for p in found.points if p.throughput_bytes_per_s is not None]
    named = load_name(found.axis)
    charts = []
    if lines:
        title = f"Read times against {named}"
        charts.append(Chart(title, ChartShape.LOAD, Unit.NUMBER, Unit.NS, lines, marks=marks, x_title=named))
    if rates:
        line = Series("throughput", [x for x, _ in rates], [rate for _, rate in rates])
        title = f"Throughput against {named}"
        charts.append(Chart(title, ChartShape.LOAD, Unit.NUMBER, Unit.BYTES_PER_S, [line], marks=marks, x_title=named))
    return tuple(charts)


def _highlights(found: LoadSweep) -> list[Highlight]:
    at = next((p for p in found.points if p.value == found.knee), None)
    if at is None:
        return []
    return [
        Highlight(f"{found.axis.replace('_', ' ')} at the knee", at.value, Unit.NUMBER),
        Highlight("throughput at the knee", at.throughput_bytes_per_s, Unit.BYTES_PER_S),
        *(
            Highlight(f"{name} at the knee", line[at.value], Unit.NS)
            for name, line in ((name, dict(line)) for name, line in response_lines(found))
            if at.value in line
        ),
    ]
