"""A report as tables with units and charts of them: what every form (HTML, Markdown, CSV, workbook) is written from."""

from __future__ import annotations

from dataclasses import dataclass
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
    """How a chart is drawn."""

    STEPS = "steps"
    CURVE = "curve"
    BARS = "bars"
    CELLS = "cells"


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
class Document:
    """The report of one trace or run."""

    name: str
    headline: str
    tables: list[Table]
    notes: list[str]


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
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"  # noqa: PLR2004 - four digits either way


_SHOWN: Final[dict[Unit, Callable[[Any], str]]] = {
    Unit.TEXT: str,
    Unit.COUNT: format_count,
    Unit.BYTES: format_bytes,
    Unit.BYTES_PER_DAY: lambda value: f"{format_bytes(value)}/day",
    Unit.NS: format_duration,
    Unit.BYTES_PER_S: format_rate,
    Unit.SHARE: lambda value: f"{value * 100:.4g} %",
    Unit.PER_S: _number,
    Unit.NUMBER: _number,
}


def select(rows: list[dict[str, Any]], columns: list[Column]) -> list[list[Any]]:
    """Return the cells of `rows` that `columns` name."""
    return [[row[column.name] for column in columns] for row in rows]
