"""A report as tables with units and charts of them, from which every form is written.

The forms are a terminal, HTML, Markdown, CSV and a workbook. What is shown to people is built as a
Document once::

    columns = [ReportColumn("tier"), ReportColumn("read_bytes", "read", Unit.BYTES)]
    table = table_of("Operations", Sheet.PERFORMANCE, columns, [["nvme", 4096]])
    show_documents([Document(name="run", headline="kept pace", chapters=[Chapter("Throughput", [table])])])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from kvtrace.core import units
from kvtrace.core.json_types import JsonObject


class Unit(StrEnum):
    """What a number counts."""

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
    """Printed with all its digits, such as an answer to a query."""


class Sheet(StrEnum):
    """The sheets of our workbook, which follow MLPerf's."""

    SUMMARY = "Report"
    PARAMETERS = "Parameters"
    PERFORMANCE = "Performance"
    QOS = "QoS"
    DEVICE = "Device"
    HISTOGRAMS = "Histograms"


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell whose unit is its own, not its column's."""

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
    """Of cells: 0 … 1, how dark."""
    colour: int | None = None
    """Its place among the colours.

    Series that belong together share one; null: each has its own.
    """
    texts: list[str] | None = None
    """What each point is, or what stands in each cell of a map."""
    is_joined: bool = True
    """Whether a line goes through its points."""


class ChartShape(StrEnum):
    """How a chart is drawn.

    `bars` and `cells` are powers of two wide (`bars`) or high (`cells`).
    """

    STEPS = "steps"
    CURVE = "curve"
    """Shares of 1 against sizes."""
    QUANTILES = "quantiles"
    """Times by share of operations, on an axis that gives each further nine the same room."""
    BARS = "bars"
    CELLS = "cells"
    GRID = "grid"
    LOLLIPOPS = "lollipops"
    LOAD = "load"
    """Lines with a point for each load that was tried."""
    POINTS = "points"
    """Points, and lines through some of them."""
    MAP = "map"
    """Cells one wide and one high over two closed sets, each with its value.

    The darker, the larger.
    """
    RANGES = "ranges"
    """For each of a closed set, from where to where a figure goes.

    X is the start, weight the end, y the place.
    """


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of the table below it."""

    title: str
    shape: ChartShape
    x_unit: Unit
    y_unit: Unit
    series: list[Series]
    x_step: float = 0.0
    """How wide a step or cell is; bars and the height of cells go to twice their start."""
    y_step: float = 0.0
    """How high a cell of a grid is."""
    x_end: float = 0.0
    """Where the axis of time ends, for charts that are to be compared.

    0: where the last cell or step does.
    """
    marks: tuple[tuple[float, str], ...] = ()
    """Upright lines at an x, with a label."""
    x_title: str = ""
    y_title: str = ""
    """What an axis shows, without its unit; else what its unit measures."""
    y_end: float = 0.0
    """Where the other axis ends, for the same reason."""
    x_names: tuple[str, ...] = ()
    y_names: tuple[str, ...] = ()
    """What stands at 0, 1, … of an axis that is a closed set."""


@dataclass(frozen=True, slots=True)
class ReportTable:
    """Rows of raw values; null is what was not measured."""

    title: str
    sheet: Sheet
    columns: list[ReportColumn]
    rows: Sequence[Sequence[object]]
    charts: tuple[Chart, ...] = ()
    note: str = ""
    keys: int = 1
    """How many of the first columns name a row."""
    bars: str = ""
    """Column of counts that a terminal also shows as bars, the longest full.

    The buckets of a histogram.
    """
    is_answer: bool = False
    """Shown whole, beside its charts too, however long it is: it is what was asked for."""


@dataclass(frozen=True, slots=True)
class Highlight:
    """One figure that a reader looks for first."""

    label: str
    value: object
    unit: Unit
    detail: str = ""
    """What it is of, in a few words."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """Tables that answer one question; without a title, those that need none."""

    title: str
    tables: list[ReportTable]
    notes: list[str] = field(default_factory=list)
    """Lines that are read after the tables."""
    is_folded: bool = False
    """Details, which a page shows when asked for."""
    in_short: str = ""
    """What a terminal says in the place of the tables."""


@dataclass(frozen=True, slots=True)
class Document:
    """The report of one trace, run, probe or set of jobs, or of several beside each other."""

    name: str
    """What it is of, such as a file; empty where the reader has just named it."""
    headline: str
    chapters: list[Chapter]
    notes: list[str] = field(default_factory=list)
    highlights: list[Highlight] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """What a reader must know before any figure, such as that the run is partial."""
    subject: list[str] = field(default_factory=list)
    """On what: a line for each target, such as its drive."""
    about: str = ""
    """What a page is called by: the drive, the model and the workload; without it, `name`."""
    pictures: tuple[Chart, ...] = ()
    """Those of its charts that a page shows first."""

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
    return (value.value, value.unit) if isinstance(value, Cell) else (value, column.unit)


def show(value: object, unit: Unit) -> str:
    """Return a value as people read it, bytes by powers of 1000 as rates are; null as a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _SHOWN[unit](value)


_FOUR_DIGITS = 1000


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= _FOUR_DIGITS else f"{value:.4g}"


_SHOWN: Final[dict[Unit, Callable[[Any], str]]] = {
    Unit.TEXT: lambda value: units.printable(str(value)),
    Unit.EXACT: lambda value: units.printable(str(value)),
    Unit.COUNT: lambda value: (
        units.format_count(value) if float(value).is_integer() else f"{value:,.1f}"
    ),
    Unit.BYTES: units.format_bytes,
    Unit.IO_BYTES: units.format_io_size,
    Unit.BYTES_PER_DAY: lambda value: f"{units.format_bytes(value)}/day",
    Unit.NS: units.format_duration,
    Unit.BYTES_PER_S: units.format_rate,
    Unit.SHARE: lambda value: f"{value * 100:.4g} %",
    Unit.PER_S: _number,
    Unit.NUMBER: _number,
    Unit.YEARS: units.format_years,
    Unit.RATIO: lambda value: f"{value:.3f}" if value < _FOUR_DIGITS / 100 else _number(value),
}
