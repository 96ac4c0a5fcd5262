"""A report as tables with units, and charts of them.

Every output is first built as a Document. The terminal, HTML, Markdown, CSV and workbook forms are
all written from it::

    columns = [ReportColumn("tier"), ReportColumn("read_bytes", "read", Unit.BYTES)]
    table = table_of("Operations", Sheet.PERFORMANCE, columns, [["nvme", 4096]])
    chapter = Chapter("Throughput", [table])
    show_documents([Document(name="run", headline="kept pace", chapters=[chapter])])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from kvtrace.core import units
from kvtrace.core.document.explorer import Explorer
from kvtrace.core.json_types import JsonObject


class Unit(StrEnum):
    """The unit of a number."""

    TEXT = ""
    COUNT = "count"
    BYTES = "bytes"
    IO_BYTES = "bytes of an I/O"
    """Shown in KiB and MiB, as fio's bs= is."""
    NS = "ns"
    BYTES_PER_S = "bytes/s"
    BYTES_PER_DAY = "bytes/day"
    PER_S = "1/s"
    SHARE = "share of 1"
    NUMBER = "number"
    RATIO = "ratio"
    YEARS = "years"
    EXACT = "exact number"
    """Printed with all digits, such as the answer to a query."""


class Sheet(StrEnum):
    """The sheets of our workbook; their names follow MLPerf's."""

    SUMMARY = "Report"
    PARAMETERS = "Parameters"
    PERFORMANCE = "Performance"
    QOS = "QoS"
    DEVICE = "Device"
    HISTOGRAMS = "Histograms"


@dataclass(frozen=True, slots=True)
class Cell:
    """A value with a unit of its own, which replaces that of its column."""

    value: object
    unit: Unit


@dataclass(frozen=True, slots=True, init=False)
class ReportColumn:
    """One column: its name in JSON and CSV, its heading for people, its unit.

    The unit decides how a value is printed. Text is aligned to the left, numbers to the right.

    >>> ReportColumn("read_bytes", "read", Unit.BYTES).heading
    'read'
    >>> ReportColumn("tier").heading
    'tier'
    """

    name: str
    heading: str
    unit: Unit

    def __init__(self, name: str, heading: str | None = None, unit: Unit = Unit.TEXT) -> None:
        """Describe the column `name`; its heading is its name unless `heading` says otherwise."""
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "heading", name if heading is None else heading)
        object.__setattr__(self, "unit", unit)


@dataclass(frozen=True, slots=True)
class Series:
    """One line, set of bars, or set of cells of a chart."""

    label: str
    x: list[float]
    y: list[float]
    weight: list[float] | None = None
    """Darkness of each cell, 0 … 1; for ranges, the end of each one."""
    colour: int | None = None
    """Index of the colour; series that belong together share one. Null: by the order of series."""
    texts: list[str] | None = None
    """A description of each point, or the text in each cell of a map."""
    is_joined: bool = True
    """Whether a line connects the points."""
    legend: str = ""
    """Its name in the legend, which series that belong together share; empty: the label."""


class ChartShape(StrEnum):
    """The form of a chart: lines, bars, or a heat map."""

    STEPS = "steps"
    """Horizontal lines, each `x_step` long."""
    CURVE = "curve"
    """Shares of 1 against sizes."""
    QUANTILES = "quantiles"
    """Times by share of operations, on an axis that gives each further nine the same room."""
    BARS = "bars"
    """A histogram; each bar extends from x to 2 x."""
    CELLS = "cells"
    """A heat map; each cell is `x_step` wide and extends from y to 2 y."""
    GRID = "grid"
    """A heat map; each cell is `x_step` wide and `y_step` high."""
    LOLLIPOPS = "lollipops"
    LOAD = "load"
    """Lines with a point for each load tried."""
    POINTS = "points"
    """Points, and lines through some of them."""
    MAP = "map"
    """A heat map over two lists of names, with the value in each cell; darker is larger."""
    RANGES = "ranges"
    """Horizontal bars, one for each of a list of names.

    X is the start of a bar, weight its end, y the index of its name.
    """


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of the table below it, in raw units."""

    title: str
    shape: ChartShape
    x_unit: Unit
    y_unit: Unit
    series: list[Series]
    x_step: float = 0.0
    """Width of a step or cell."""
    y_step: float = 0.0
    """Height of a cell of a grid."""
    x_end: float = 0.0
    """End of the x axis, equal in charts that are compared.

    0: the axis ends with the last cell or step.
    """
    marks: tuple[tuple[float, str], ...] = ()
    """Vertical lines: position on x, and label."""
    x_title: str = ""
    y_title: str = ""
    """Titles of the axes without units; empty: the quantity that the unit measures."""
    y_end: float = 0.0
    """End of the y axis, as `x_end`."""
    x_names: tuple[str, ...] = ()
    y_names: tuple[str, ...] = ()
    """Names at 0, 1, … of an axis of names."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Rows of raw values; null is a value that was not measured."""

    title: str
    sheet: Sheet
    columns: list[ReportColumn]
    rows: Sequence[Sequence[object]]
    charts: tuple[Chart, ...] = ()
    note: str = ""
    keys: int = 1
    """Number of columns, from the first on, that identify a row."""
    bars: str = ""
    """Name of a column of counts that a terminal also shows as bars, such as of a histogram."""
    is_answer: bool = False
    """Whether this is the main result, which is shown in full even if it is long and has charts."""


@dataclass(frozen=True, slots=True)
class Highlight:
    """One figure that a reader looks for first."""

    label: str
    value: object
    unit: Unit
    detail: str = ""
    """The operation, tier or condition of the figure, in a few words."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """Tables that answer one question; the title may be empty."""

    title: str
    tables: list[ReportTable]
    notes: list[str] = field(default_factory=list)
    """Lines below the tables."""
    is_folded: bool = False
    """Whether a page hides the chapter until its title is clicked."""
    in_short: str = ""
    """A line that a terminal prints instead of the tables."""


@dataclass(frozen=True, slots=True)
class Document:
    """The report of one trace, run, probe or set of jobs, or a comparison of several."""

    name: str
    """The file or other subject; empty if it is on the command line just above."""
    headline: str
    chapters: list[Chapter]
    notes: list[str] = field(default_factory=list)
    highlights: list[Highlight] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Lines that precede all figures, such as that the run is partial."""
    subject: list[str] = field(default_factory=list)
    """A line for each target, such as its drive."""
    about: str = ""
    """The title of a page: drive, model and workload; empty: `name`."""
    pictures: tuple[Chart, ...] = ()
    """Charts that a page shows first."""
    explorer: Explorer | None = None
    """Options that a reader of a page chooses among; only the first document of a page has any."""

    @property
    def tables(self) -> list[ReportTable]:
        """The tables of all chapters, in order."""
        return [table for chapter in self.chapters for table in chapter.tables]


PARAMETERS: Final = [ReportColumn("parameter"), ReportColumn("value")]


def table_of(
    title: str,
    sheet: Sheet,
    columns: Sequence[ReportColumn],
    rows: Sequence[msgspec.Struct | Mapping[str, object] | Sequence[object]],
    note: str = "",
    *,
    charts: tuple[Chart, ...] = (),
    keys: int = 1,
    bars: str = "",
    is_answer: bool = False,
) -> ReportTable:
    """Build a table of `rows`: structs or dicts by column name, or lists in the columns' order."""
    cells: list[Sequence[object]] = []
    for row in rows:
        values = msgspec.structs.asdict(row) if isinstance(row, msgspec.Struct) else row
        if isinstance(values, Mapping):
            cells.append([values[column.name] for column in columns])
        else:
            cells.append(values)
    return ReportTable(
        title,
        sheet,
        list(columns),
        cells,
        charts=charts,
        note=note,
        keys=keys,
        bars=bars,
        is_answer=is_answer,
    )


TIME_COLUMNS: Final = (
    ReportColumn("mean_ns", "mean", Unit.NS),
    ReportColumn("p50_ns", "p50", Unit.NS),
    ReportColumn("p95_ns", "p95", Unit.NS),
    ReportColumn("p99_ns", "p99", Unit.NS),
    ReportColumn("p99_9_ns", "p99.9", Unit.NS),
    ReportColumn("p99_99_ns", "p99.99", Unit.NS),
)
"""The mean and the percentiles of a distribution of times."""


def parameters(title: str, sheet: Sheet, facts: JsonObject, note: str = "") -> ReportTable:
    """Return a table of names and values; a `Cell` gives a value its unit."""
    return ReportTable(
        title, sheet, PARAMETERS, [[name, value] for name, value in facts.items()], note=note
    )


def raw_cell(value: object, column: ReportColumn) -> tuple[object, Unit]:
    """Return a cell's raw value and its unit."""
    if isinstance(value, Cell):
        return value.value, value.unit
    return value, column.unit


def show(value: object, unit: Unit) -> str:
    """Return a value with its unit as text; null is a dash.

    Bytes use powers of 1000, as rates do.
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _FORMATTERS[unit](value)


_FOUR_DIGITS = 1000
_MANY_TIMES = 10


def _format_number(value: float) -> str:
    """Return a number with four significant digits, or all digits before the point."""
    return f"{value:,.0f}" if abs(value) >= _FOUR_DIGITS else f"{value:.4g}"


def _format_count(value: float) -> str:
    """Return a count with thousands separated; a mean of counts keeps one decimal."""
    return units.format_count(value) if float(value).is_integer() else f"{value:,.1f}"


def _format_ratio(value: float) -> str:
    """Return a ratio with three decimals, from 10 on with four significant digits."""
    return f"{value:.3f}" if value < _MANY_TIMES else _format_number(value)


_FORMATTERS: Final[dict[Unit, Callable[[Any], str]]] = {
    Unit.TEXT: lambda value: units.printable(str(value)),
    Unit.EXACT: lambda value: units.printable(str(value)),
    Unit.COUNT: _format_count,
    Unit.BYTES: units.format_bytes,
    Unit.IO_BYTES: units.format_io_size,
    Unit.BYTES_PER_DAY: lambda value: f"{units.format_bytes(value)}/day",
    Unit.NS: units.format_duration,
    Unit.BYTES_PER_S: units.format_rate,
    Unit.SHARE: lambda value: f"{value * 100:.4g} %",
    Unit.PER_S: _format_number,
    Unit.NUMBER: _format_number,
    Unit.YEARS: units.format_years,
    Unit.RATIO: _format_ratio,
}
