"""The documents of a load sweep and of a scorecard, as kvreplay and kvdistill show them."""

from __future__ import annotations

import shlex
from typing import Final

import msgspec

from kvtrace.core.document.document import (
    Chapter,
    Chart,
    ChartShape,
    Document,
    Highlight,
    ReportColumn,
    Series,
    Sheet,
    Unit,
    show,
    table_of,
)
from kvtrace.core.json_types import JsonObject
from kvtrace.core.run.sweep_file import Axis, Card, LoadSweep, SweepPoint
from kvtrace.core.units import counted, percent

_LOAD_NAMES: Final = {
    Axis.QUEUE_DEPTH: "queue depth",
    Axis.SPEED: "speed (1: the trace's own)",
    Axis.USERS: "users",
}
_READ_PERCENTILES: Final = {"p50": "read_p50_ns", "p99": "read_p99_ns", "p99.9": "read_p99_9_ns"}
_POINT_COLUMNS: Final = [
    ReportColumn("throughput_bytes_per_s", "throughput", Unit.BYTES_PER_S),
    ReportColumn("operations_per_s", "op/s", Unit.PER_S),
    ReportColumn("read_p50_ns", "read p50", Unit.NS),
    ReportColumn("read_p99_ns", "read p99", Unit.NS),
    ReportColumn("read_p99_9_ns", "read p99.9", Unit.NS),
    ReportColumn("write_p50_ns", "write p50", Unit.NS),
    ReportColumn("write_p99_ns", "write p99", Unit.NS),
    ReportColumn("write_p99_9_ns", "write p99.9", Unit.NS),
]
_OPEN_LOOP_COLUMNS: Final = [
    ReportColumn("late_p99_ns", "late p99", Unit.NS),
    ReportColumn("keeps_up", "delivered"),
    ReportColumn("trials", unit=Unit.COUNT),
    ReportColumn("held_trials", "sustained", Unit.COUNT),
]


def sweep_document(sweep: LoadSweep) -> Document:
    """Return a row for each point of a sweep, and its charts; the headline is its answer."""
    is_open_loop = sweep.axis is not Axis.QUEUE_DEPTH
    axis_name = sweep.axis.replace("_", " ")
    columns = [ReportColumn("value", axis_name, Unit.NUMBER)]
    if is_open_loop:
        columns.append(ReportColumn("asked_bytes_per_s", "offered", Unit.BYTES_PER_S))
    columns += _POINT_COLUMNS
    if is_open_loop:
        columns += _OPEN_LOOP_COLUMNS
    columns += [ReportColumn("limit", "limited by"), ReportColumn("knee", "")]
    time_kind = "response" if is_open_loop else "service"
    note = f"Of the slowest tier; times are {time_kind} times."
    if is_open_loop:
        note = "Of the slowest tier; times are response times, from when an operation was due."
    table = table_of(
        "Sweep",
        Sheet.PERFORMANCE,
        columns,
        [_point_row(point, sweep) for point in sweep.points],
        note,
        charts=_sweep_charts(sweep, time_kind),
        is_answer=True,
    )
    notes = [f"rule: {sweep.rule}"]
    notes += [
        f"tier {tier} is SIMULATED: no figure counts it unless all tiers are"
        for tier in sweep.simulated_tiers
    ]
    highlights = []
    knee_points = [point for point in sweep.points if point.value == sweep.knee]
    if knee_points:
        knee = knee_points[0]
        highlights = [
            Highlight(f"{axis_name} at the knee", knee.value, Unit.NUMBER),
            Highlight("throughput at the knee", knee.throughput_bytes_per_s, Unit.BYTES_PER_S),
        ]
        for percentile, field in _READ_PERCENTILES.items():
            time_ns = getattr(knee, field)
            if time_ns is not None:
                label = f"read {time_kind} {percentile} at the knee"
                highlights.append(Highlight(label, time_ns, Unit.NS))
    return Document("", sweep.answer, [Chapter("", [table])], notes, highlights)


def _point_row(point: SweepPoint, sweep: LoadSweep) -> JsonObject:
    """Return the row of one point: its fields, its limit, and whether it is the knee."""
    limit = None if point.judgement is None else point.judgement.cause
    if point.is_held and sweep.axis is not Axis.QUEUE_DEPTH:
        limit = None
    return msgspec.structs.asdict(point) | {
        "keeps_up": point.keeps_up,
        "knee": "knee" if point.value == sweep.knee else "",
        "limit": limit,
    }


def _sweep_charts(sweep: LoadSweep, time_kind: str) -> tuple[Chart, ...]:
    """Return the charts of read times and of throughput against the load."""
    marks = () if sweep.knee is None else ((sweep.knee, f"knee: {sweep.knee:g}"),)
    load_name = _LOAD_NAMES[sweep.axis]
    times = [
        _load_series(sweep, f"read {time_kind} {percentile}", field)
        for percentile, field in _READ_PERCENTILES.items()
    ]
    throughput = [_load_series(sweep, "throughput", "throughput_bytes_per_s")]
    charts = []
    for title, unit, candidates in (
        ("Read times", Unit.NS, times),
        ("Throughput", Unit.BYTES_PER_S, throughput),
    ):
        series = [candidate for candidate in candidates if candidate.x]
        if series:
            charts.append(
                Chart(
                    f"{title} against {load_name}",
                    ChartShape.LOAD,
                    Unit.NUMBER,
                    unit,
                    series,
                    marks=marks,
                    x_title=load_name,
                )
            )
    return tuple(charts)


def _load_series(sweep: LoadSweep, label: str, field: str) -> Series:
    """Return one field of the points that have measured it, by load."""
    points = [point for point in sweep.points if getattr(point, field) is not None]
    loads = [point.value for point in points]
    return Series(label, loads, [getattr(point, field) for point in points])


_CARD_COLUMNS: Final = [
    ReportColumn("preset"),
    ReportColumn("users", "users sustained", Unit.NUMBER),
    ReportColumn("at_users", "measured at", Unit.NUMBER),
    ReportColumn("read_bytes_per_s", "read", Unit.BYTES_PER_S),
    ReportColumn("written_bytes_per_s", "written", Unit.BYTES_PER_S),
    ReportColumn("read_p50_ns", "read p50", Unit.NS),
    ReportColumn("read_p99_ns", "p99", Unit.NS),
    ReportColumn("read_p99_9_ns", "p99.9", Unit.NS),
    ReportColumn("request_bytes", "request", Unit.BYTES),
    ReportColumn("in_flight", "in flight", Unit.NUMBER),
    ReportColumn("drive_writes_per_day", "DWPD", Unit.NUMBER),
    ReportColumn("life_years", "life", Unit.YEARS),
    ReportColumn("delivered_share", "delivered", Unit.SHARE),
    ReportColumn("spread", unit=Unit.SHARE),
    ReportColumn("limit", "limited by"),
]


def card_document(card: Card) -> Document:
    """Return the load that a drive sustains under several caching stacks, a row for each."""
    table = table_of(
        "at the most users that it sustains",
        Sheet.SUMMARY,
        _CARD_COLUMNS,
        card.scores,
        is_answer=True,
    )
    highlights = [
        Highlight(
            score.preset,
            score.users,
            Unit.NUMBER,
            f"users, {show(score.read_bytes_per_s, Unit.BYTES_PER_S)} read",
        )
        for score in card.scores
    ]
    return Document(
        card.device or "",
        card_answer(card),
        [Chapter("", [table], _card_notes(card))],
        highlights=highlights,
        warnings=_card_warnings(card),
    )


def _card_notes(card: Card) -> list[str]:
    """Return how the figures of a card were measured, and the answer for each stack."""
    gen_options = next((shlex.split(score.gen) for score in card.scores if score.gen), [])
    model = ""
    if "--model" in gen_options:
        model = f" with {gen_options[gen_options.index('--model') + 1]}"
    notes = [
        (
            f"users of synthetic conversations{model}; read times are response times, from when a"
            " read was due"
        ),
        (
            "rates and times: medians of the trials; spread: (greatest - least) / median of their"
            " throughput"
        ),
        (
            "delivered: of what the trace asked for; kvdistill compare says where two cards differ"
            " by more than trials do"
        ),
    ]
    if all(score.request_bytes is None for score in card.scores):
        notes.append(
            "request and in flight: block requests; not measured (root and libbpf are needed)"
        )
    notes += [f"{score.preset}: {score.answer}" for score in card.scores]
    return notes


def _card_warnings(card: Card) -> list[str]:
    """Return the reasons to doubt figures of a card."""
    warnings = []
    if card.status != "complete":
        warnings.append(f"PARTIAL: {card.status}")
    warnings += [
        f"{score.preset}: NOTHING WAS READ in its window: this tests writes only; use a larger"
        " --size, to keep what is read again"
        for score in card.scores
        if not score.read_bytes_per_s
    ]
    warnings += [
        f"{score.preset}: TOO FEW REQUESTS ({score.requests}) in its window: users vary by chance;"
        " use a longer --window"
        for score in card.scores
        if score.is_by_chance
    ]
    return warnings


def card_answer(card: Card) -> str:
    """Return the answer of a scorecard: users of each stack, and how well the result repeats."""
    loads = []
    for score in card.scores:
        bound = "less than " if score.users is None else ""
        suffix = "" if score.read_bytes_per_s else " (writes only)"
        loads.append(f"{score.preset} {bound}{counted(score.at_users, 'user')}{suffix}")
    spreads = [score.spread for score in card.scores if score.spread is not None]
    repeats = f"; repeats within {percent(max(spreads))}" if spreads else ""
    return f"sustains {', '.join(loads) or 'nothing that was measured'}{repeats}"
