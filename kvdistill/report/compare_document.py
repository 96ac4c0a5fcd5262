"""A comparison as a document: settings that differ, every figure, distributions in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvdistill.report.compare import ComparedLine, ComparedSide, Comparison, ReportedTrials
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
    if compared.settings:
        columns = [ReportColumn("setting", "setting"), *(ReportColumn(f"side{i}", n) for i, n in enumerate(numbers))]
        differing = [[name, *map(_said, values)] for name, values in compared.settings.items()]
        tables.append(ReportTable("Settings that differ", Sheet.PARAMETERS, columns, differing))
    return Document(
        name="Comparison",
        headline=f"{', '.join(compared.names[1:])} against {compared.names[0]}",
        notes=compared.warnings,
        highlights=_highlights(compared),
        chapters=[
            Chapter("Sides", tables),
            Chapter("Figures", _figures(compared, numbers)),
            Chapter("Distributions beside each other", _distributions(sides)),
        ],
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


def _distributions(sides: Sequence[ReportedTrials]) -> list[ReportTable]:
    """Return the latencies of all runs in one picture a tier and operation, if more than one has them."""
    points = [
        row | {"side": f"[{number}] {side.name}", "place": f"{row['tier']} {row['op']}"}
        for number, side in enumerate(sides)
        if isinstance(side.reports[0], RunReport)
        for row in side.reports[0].distributions
        if row["measure"] == "latency"
    ]
    tables = []
    for place, rows in by(points, "place"):
        groups = by(rows, "side")
        if len(groups) < 2:  # noqa: PLR2004 - nothing beside it
            continue
        names = [name for name, _rows in groups]
        columns = [ReportColumn("share", "share", Unit.SHARE), *(ReportColumn(n, n, Unit.NS) for n in names)]
        found = {(row["side"], row["share"]): row["time_ns"] for row in rows}
        shares = sorted({row["share"] for row in rows})
        series = [
            Series(n, [r["share"] for r in of if r["share"] < 1], [float(r["time_ns"]) for r in of if r["share"] < 1])
            for n, of in groups
        ]
        chart = Chart(f"Latency: {place}", ChartShape.QUANTILES, Unit.NUMBER, Unit.NS, series, y_title="latency")
        tables.append(
            ReportTable(
                f"Latency: {place}",
                Sheet.HISTOGRAMS,
                columns,
                [[share, *(found.get((name, share)) for name in names)] for share in shares],
                (chart,),
                "Latency that the given share of operations did not exceed; of each side's first trial.",
            )
        )
    return tables
