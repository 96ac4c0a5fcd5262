"""A comparison as a document: settings that differ, every figure, distributions in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvdistill.report.compare import ReportedTrials
from kvdistill.report.comparison.lines import ComparedLine, ComparedSide, Comparison
from kvdistill.report.comparison.settings import Settings, split
from kvdistill.report.comparison.verdict import disagreeing
from kvdistill.report.report import RunReport
from kvdistill.report.tables import by
from kvtrace.core.document.document import (
    Cell,
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
from kvtrace.core.units import NS_PER_S, format_duration

_AIR = 1.05
"""Above the highest step."""
_MARKS = {True: "yes", False: "no", None: "-"}
_HIGHLIGHTED = (
    "bandwidth_bytes_per_s",
    "latency_p50_ns",
    "latency_p99_ns",
    "response_p99_ns",
    "hit_ratio",
    "capacity_writes_per_day",
)
_MOST_HIGHLIGHTS = 6
_SIDES_HIGHLIGHTED = 2


def comparison_document(compared: Comparison, sides: Sequence[ReportedTrials]) -> Document:
    """Return the document of `compared`, made of `sides`."""
    numbers = [f"[{number}]" for number in range(len(compared.names))]
    rows = [list(row) for row in zip(numbers, compared.names, compared.trials, strict=True)]
    columns = columns_of("text: side, name; count: trials")
    tables = [ReportTable("What is compared", Sheet.SUMMARY, columns, rows)]
    differing, one_sided = split(compared.settings)
    if differing:
        tables.append(_settings("Settings that differ", differing, numbers))
    return Document(
        name="Comparison",
        headline=compared.verdict,
        subject=[f"{number} {_side(side)}" for number, side in zip(numbers, sides, strict=True)],
        warnings=compared.warnings,
        highlights=_highlights(compared),
        chapters=[
            Chapter("Distributions beside each other", _distributions(sides)),
            Chapter("Over time beside each other", _over_time(sides)),
            Chapter("Trials that disagree", _disagreeing(compared)),
            Chapter("Sides", tables),
            Chapter("Figures", _figures(compared, numbers)),
            *([_one_sided(one_sided, numbers)] if one_sided else []),
        ],
    )


def _settings(title: str, settings: Settings, numbers: list[str]) -> ReportTable:
    columns = [ReportColumn("setting", "setting"), *(ReportColumn(f"side{i}", n) for i, n in enumerate(numbers))]
    return ReportTable(
        title, Sheet.PARAMETERS, columns, [[name, *map(_said, values)] for name, values in settings.items()]
    )


def _one_sided(settings: Settings, numbers: list[str]) -> Chapter:
    """Return what only some sides have: a page shows it when asked for, a terminal says how many they are."""
    many = f"{len(settings)} setting{'' if len(settings) == 1 else 's'} that only some sides have"
    title = "Settings that only some sides have"
    return Chapter(
        title, [_settings("", settings, numbers)], is_folded=True, in_short=f"{many} are in a page, and in --json"
    )


def _said(value: Any) -> str | None:
    return None if value is None else str(value)


def _highlights(compared: Comparison) -> list[Highlight]:
    """Return the ratios of the last tier's figures, if there are two sides."""
    if len(compared.names) != _SIDES_HIGHLIGHTED:
        return []
    found = [line for line in compared.lines if line.name in _HIGHLIGHTED and line.sides[1].ratio.value is not None]
    last = [line for line in found if line.tier == found[-1].tier]
    return [
        Highlight(
            f"{line.op} {_short(line.name)}, {line.tier}".strip(),
            line.sides[1].ratio.value,
            Unit.RATIO,
            _detail(line.sides[1]),
        )
        for line in last[:_MOST_HIGHLIGHTS]
    ]


def _short(name: str) -> str:
    return name.removesuffix("_ns").removesuffix("_bytes_per_s").replace("_", " ")


def _detail(side: ComparedSide) -> str:
    found = side.ratio
    if found.low is None or found.high is None:
        return "[1]/[0]; one trial, no interval"
    return f"[1]/[0]; {found.low:.3f} to {found.high:.3f}"


def _figures(compared: Comparison, numbers: list[str]) -> list[ReportTable]:
    has_intervals = any(side.ratio.low is not None for line in compared.lines for side in line.sides[1:])
    columns = [
        *columns_of("text: op, figure"),
        *(ReportColumn(f"side{i}", n, Unit.NUMBER) for i, n in enumerate(numbers)),
    ]
    for i, number in list(enumerate(numbers))[1:]:
        columns.append(ReportColumn(f"ratio{i}", f"{number}/[0]", Unit.RATIO))
        if has_intervals:
            columns += [
                ReportColumn(f"low{i}", "from", Unit.RATIO),
                ReportColumn(f"high{i}", "to", Unit.RATIO),
                ReportColumn(f"differs{i}", "differs"),
            ]
    text = compared.definition if has_intervals else "ratio: of the medians; without trials there are no intervals"
    note = f"{text[:1].upper()}{text[1:]}. Values are medians of trials."
    groups: dict[str, list[list[Any]]] = {}
    for line in sorted(compared.lines, key=lambda line: line.op):
        groups.setdefault(line.tier, []).append(_row(line, has_intervals=has_intervals))
    order = dict.fromkeys(line.tier for line in compared.lines)
    return [
        ReportTable(
            f"Figures: {tier or 'as a whole'}", Sheet.PERFORMANCE, columns, groups[tier], (), "" if at else note, 2
        )
        for at, tier in enumerate(order)
    ]


def _row(line: ComparedLine, *, has_intervals: bool) -> list[Any]:
    cells: list[Any] = [line.op, line.name, *(Cell(side.median, unit_of(line.name)) for side in line.sides)]
    for side in line.sides[1:]:
        found = side.ratio
        cells += [found.value, *([found.low, found.high, _MARKS[found.differs]] if has_intervals else [])]
    return cells


def unit_of(name: str) -> Unit:
    """Return the unit that a figure's name ends in."""
    endings = {
        "bytes_per_s": Unit.BYTES_PER_S,
        "_per_s": Unit.PER_S,
        "_ns": Unit.NS,
        "bytes": Unit.BYTES,
        "_ratio": Unit.SHARE,
        "_per_day": Unit.NUMBER,
    }
    return next((unit for ending, unit in endings.items() if name.endswith(ending)), Unit.COUNT)


def _side(side: ReportedTrials) -> str:
    """Return what a side is, in a line: its name, its trials, and the drives of a run."""
    first = side.reports[0]
    drives = [] if not isinstance(first, RunReport) or first.run is None else list(first.run.drives())
    told = [f"{name} on {facts['target']}" for name, facts in drives if facts.get("target")]
    count = len(side.reports)
    return ", ".join([side.name, f"{count} trial{'s' if count > 1 else ''}", *told])


def _disagreeing(compared: Comparison) -> list[ReportTable]:
    """Return each trial's value of the figures that should repeat and do not."""
    lines = disagreeing(compared)
    if not lines:
        return []
    columns = columns_of("text: tier, op, figure, side")
    most = max(compared.trials)
    columns += [ReportColumn(f"trial{at}", f"trial {at}", Unit.NUMBER) for at in range(1, most + 1)]
    rows = []
    for line in lines:
        for name, side in zip(compared.names, line.sides, strict=True):
            values = [Cell(value, unit_of(line.name)) for value in side.trials]
            rows.append([line.tier, line.op, line.name, name, *values, *[None] * (most - len(values))])
    return [ReportTable("Each trial", Sheet.PERFORMANCE, columns, rows, (), "", 4)]


def _distributions(sides: Sequence[ReportedTrials]) -> list[ReportTable]:
    """Return the times of each trial of all runs in one picture a tier and operation, if more than one has them."""
    runs = [(n, s) for n, s in enumerate(sides) if isinstance(s.reports[0], RunReport)]
    reports = [(n, s, at, r) for n, s in runs for at, r in enumerate(s.reports, 1) if isinstance(r, RunReport)]
    # An open loop is judged by the response time.
    measure = "response" if reports and all(r.response for *_, r in reports) else "latency"
    points = [
        row
        | {"side": f"[{n}] {s.name}{f' trial {at}' if len(s.reports) > 1 else ''}", "number": n}
        | {"place": f"{row['tier']} {row['op']}"}
        for n, s, at, report in reports
        for row in report.distributions
        if row["measure"] == measure and row["op"] != "delete"
    ]
    title = "Response time" if measure == "response" else "Latency"
    return [
        _distribution(f"{title}: {place}", rows, title.lower())
        for place, rows in by(points, "place")
        if len({row["number"] for row in rows}) > 1
    ]


def _distribution(title: str, rows: list[dict[str, Any]], measure: str) -> ReportTable:
    groups = by(rows, "side")
    names = [name for name, _rows in groups]
    columns = [ReportColumn("share", "share", Unit.SHARE), *(ReportColumn(n, n, Unit.NS) for n in names)]
    found = {(row["side"], row["share"]): row["time_ns"] for row in rows}
    cells = [[share, *(found.get((name, share)) for name in names)] for share in sorted({row["share"] for row in rows})]
    series = []
    for name, of in groups:
        drawn = [row for row in of if row["share"] < 1]
        times = [float(row["time_ns"]) for row in drawn]
        series.append(Series(name, [row["share"] for row in drawn], times, colour=of[0]["number"]))
    chart = Chart(title, ChartShape.QUANTILES, Unit.NUMBER, Unit.NS, series, y_title=measure)
    note = f"{measure.capitalize()} that the given share of operations did not exceed; a line a trial."
    return ReportTable(title, Sheet.HISTOGRAMS, columns, cells, (chart,), note)


def _over_time(sides: Sequence[ReportedTrials]) -> list[ReportTable]:
    """Return each run's bandwidth over time, of its first trial, on axes that end alike."""
    runs = [(n, s, s.reports[0]) for n, s in enumerate(sides)]
    seen = [(n, s, r) for n, s, r in runs if isinstance(r, RunReport) and r.over_time and r.bucket_ns]
    if len(seen) < 2:  # noqa: PLR2004 - nothing beside it
        return []
    tier = seen[0][2].over_time[-1]["tier"]
    lines = [(n, s, r.bucket_ns or 1, [row for row in r.over_time if row["tier"] == tier]) for n, s, r in seen]
    names = ("read_bytes", "written_bytes")
    most = max((row[name] * NS_PER_S / step for *_, step, rows in lines for row in rows for name in names), default=0.0)
    end = max(row["start_ns"] + step for *_, step, rows in lines for row in rows)
    columns = columns_of("ns: start_ns = from; bytes_per_s: read_bytes_per_s = read, written_bytes_per_s = written")
    tables = []
    for number, side, step, rows in lines:
        cells = [[row["start_ns"], *(row[name] * NS_PER_S / step for name in names)] for row in rows]
        start = [float(row[0]) for row in cells]
        series = [Series(label, start, [row[at] for row in cells]) for at, label in ((1, "read"), (2, "write"))]
        title = f"Bandwidth of {tier}: [{number}] {side.name}"
        chart = Chart(
            title, ChartShape.STEPS, Unit.NS, Unit.BYTES_PER_S, series, float(step), x_end=float(end), y_end=most * _AIR
        )
        note = f"Means over stretches of {format_duration(step)}, of the first trial."
        tables.append(ReportTable(title, Sheet.HISTOGRAMS, columns, cells, (chart,), note))
    return tables
