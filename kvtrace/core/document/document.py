"""A report as tables with units and charts of them: what every form (HTML, Markdown, CSV, workbook) is written from."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from kvtrace.core.units import format_bytes, format_count, format_duration, format_rate

if TYPE_CHECKING:
    from collections.abc import Callable


class Unit(StrEnum):
    """What a number counts."""

    TEXT = ""
    COUNT = "count"
    BYTES = "bytes"
    NS = "ns"
    BYTES_PER_S = "bytes/s"
    BYTES_PER_DAY = "bytes/day"
    PER_S = "1/s"
    SHARE = "share of 1"
    NUMBER = "number"
    RATIO = "ratio"


class Sheet(StrEnum):
    """The sheets of the MLPerf workbook, in its order."""

    SUMMARY = "Summary"
    PARAMETERS = "Run Parameters"
    PERFORMANCE = "Performance Metrics"
    QOS = "QoS Metrics"
    DEVICE = "Device Tracing"
    HISTOGRAMS = "Trace Histograms"


@dataclass(frozen=True, slots=True)
class Quantity:
    """A cell whose unit is its own, not its column's."""

    value: Any
    unit: Unit


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name in JSON and CSV, its heading for people, its unit."""

    name: str
    heading: str
    unit: Unit = Unit.TEXT


@dataclass(frozen=True, slots=True)
class Series:
    """One line, set of bars, or set of cells of a chart."""

    label: str
    x: list[float]
    y: list[float]
    weight: list[float] | None = None
    """Of cells: 0 … 1, how dark."""


class Shape(StrEnum):
    """How a chart is drawn; `bars` and `cells` are powers of two wide (`bars`) or high (`cells`)."""

    STEPS = "steps"
    CURVE = "curve"
    BARS = "bars"
    CELLS = "cells"
    GRID = "grid"
    LOLLIPOPS = "lollipops"


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of the table above which it stands."""

    title: str
    shape: Shape
    x_unit: Unit
    y_unit: Unit
    series: list[Series]
    x_step: float = 0.0
    """How wide a step or cell is; bars and the height of cells go to twice their start."""
    y_step: float = 0.0
    """How high a cell of a grid is."""
    x_end: float = 0.0
    """Where the axis of time ends, for maps that are to be compared; 0: where the last cell does."""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of raw values; null is what was not measured."""

    title: str
    sheet: Sheet
    columns: list[Column]
    rows: list[list[Any]]
    charts: tuple[Chart, ...] = ()
    note: str = ""
    keys: int = 1
    """How many of the first columns name a row."""


@dataclass(frozen=True, slots=True)
class Highlight:
    """One figure that a reader looks for first."""

    label: str
    value: Any
    unit: Unit
    detail: str = ""
    """What it is of, in a few words."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """Tables that answer one question."""

    title: str
    tables: list[Table]


@dataclass(frozen=True, slots=True)
class Document:
    """The report of one trace, run, probe or set of jobs, or of several beside each other."""

    name: str
    headline: str
    chapters: list[Chapter]
    notes: list[str]
    highlights: list[Highlight] = field(default_factory=list)
    warning: str = ""
    """What a reader must know before any figure, such as that the run is partial."""

    @property
    def tables(self) -> list[Table]:
        """The tables of all chapters, in order."""
        return [table for chapter in self.chapters for table in chapter.tables]


def cell(value: Any, column: Column) -> tuple[Any, Unit]:
    """Return a cell's raw value and its unit."""
    return (value.value, value.unit) if isinstance(value, Quantity) else (value, column.unit)


def show(value: Any, unit: Unit) -> str:
    """Return a value as people read it; null as a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return _SHOWN[unit](value)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"  # noqa: PLR2004 - four digits either way


_SHOWN: Final[dict[Unit, Callable[[Any], str]]] = {
    Unit.TEXT: str,
    Unit.COUNT: lambda value: format_count(value) if float(value).is_integer() else f"{value:,.1f}",
    Unit.BYTES: format_bytes,
    Unit.BYTES_PER_DAY: lambda value: f"{format_bytes(value)}/day",
    Unit.NS: format_duration,
    Unit.BYTES_PER_S: format_rate,
    Unit.SHARE: lambda value: f"{value * 100:.4g} %",
    Unit.PER_S: _number,
    Unit.NUMBER: _number,
    Unit.RATIO: lambda value: f"{value:.3f}" if value < 10 else _number(value),  # noqa: PLR2004 - four digits
}


def select(rows: list[dict[str, Any]], columns: list[Column]) -> list[list[Any]]:
    """Return the cells of `rows` that `columns` name."""
    return [[row[column.name] for column in columns] for row in rows]
