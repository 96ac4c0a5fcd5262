"""A chart in the units that its axes name: the lines, boxes and ticks that are to be drawn.

A `Chart` holds raw values (nanoseconds, bytes, shares of 1). A `Picture` is computed from it once,
so that the drawing on a screen (live_figure.py) and on paper (svg_figure.py) show equal numbers::

    chart -> choose the scale of both axes -> lines or boxes divided by it -> Picture
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvtrace.core.document.document import Chart, ChartShape, Series, Unit

COLOURS: Final = ("read", "write", "delete", "fourth", "fifth", "sixth")
"""Names of the colours; each way of drawing has its own shades of them."""
_OPERATION_COLOURS: Final = {
    "read": "read",
    "write": "write",
    "delete": "delete",
    "discard": "delete",
}
"""Colour by label, used if all series of a chart are labelled with an operation."""
_SCALES: Final[dict[Unit, tuple[tuple[float, str], ...]]] = {
    Unit.NS: ((1, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")),
    Unit.BYTES: ((1, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"), (1e15, "PB")),
    Unit.IO_BYTES: ((1, "B"), (1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB")),
    Unit.BYTES_PER_S: ((1, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s")),
    Unit.SHARE: ((0.01, "%"),),
    Unit.PER_S: ((1, "1/s"),),
}
"""Divisors of raw values, smallest first, and the unit of the quotient."""
_TITLES: Final = {
    Unit.NS: "time",
    Unit.BYTES: "size",
    Unit.IO_BYTES: "size",
    Unit.BYTES_PER_S: "bandwidth",
    Unit.PER_S: "rate",
}
"""Default title of an axis by its unit."""
_PERCENTILE_TICKS: Final = (
    (1, "0"),
    (2, "50"),
    (10, "90"),
    (100, "99"),
    (1000, "99.9"),
    (10_000, "99.99"),
)
"""Positions 1 / (1 - q) on an axis of percentiles, and the percentile 100 q to print there."""
_LOG_RATIO_OF_TIMES = 20
"""Times whose maximum is more than this many times their minimum get a logarithmic axis."""
_LOG_RATIO_OF_LOADS = 4
"""The same for loads."""
_MAX_LOAD_TICKS = 9
_COORDINATE_DIGITS = 6
"""Significant digits of a coordinate: more are invisible, and take room in the page."""


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """One axis of a picture; its title holds the unit, so its numbers are bare."""

    title: str
    unit: str
    is_log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    """Positions and labels; empty: the drawing library chooses."""
    low: float | None = None
    high: float | None = None
    is_percentiles: bool = False
    """Whether a position x stands for the share 1 - 1 / x of all operations."""

    @property
    def heading(self) -> str:
        """Return the title with the unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One line, or one set of points."""

    label: str
    colour: str
    x: list[float]
    y: list[float]
    texts: list[str] | None = None
    """A description of each point, shown under the pointer."""
    is_joined: bool = True
    """Whether a line connects the points."""
    legend: str = ""
    """Its name in the legend, which lines may share; empty: the label."""


@dataclass(frozen=True, slots=True)
class PlotBoxes:
    """Rectangles of one colour."""

    label: str
    colour: str
    left: list[float]
    right: list[float]
    bottom: list[float]
    top: list[float]
    alpha: list[float]
    """Opacity of each rectangle, 0 … 1."""
    texts: list[str] | None = None
    """The text inside each rectangle."""


@dataclass(frozen=True, slots=True)
class Picture:
    """The content of a chart in the units of its axes."""

    title: str
    x: PlotAxis
    y: PlotAxis
    lines: list[PlotLine] = field(default_factory=list)
    boxes: list[PlotBoxes] = field(default_factory=list)
    marks: tuple[tuple[float, str], ...] = ()
    """Vertical lines: position on x, and label."""
    has_points: bool = False
    """Whether the points of lines have a marker."""

    def coordinates(self, *, is_x: bool) -> list[float]:
        """Return the coordinates of all lines and boxes on one axis."""
        values: list[float] = []
        for line in self.lines:
            values += line.x if is_x else line.y
        for boxes in self.boxes:
            values += boxes.left if is_x else boxes.bottom
            values += boxes.right if is_x else boxes.top
        return values


def build_picture(chart: Chart) -> Picture:
    """Return `chart` as lines and boxes in the units of its axes."""
    match chart.shape:
        case ChartShape.BARS:
            return _build_bars(chart)
        case ChartShape.CELLS | ChartShape.GRID:
            return _build_cells(chart)
        case ChartShape.MAP:
            return _build_map(chart)
        case ChartShape.RANGES:
            return _build_ranges(chart)
        case _:
            return _build_lines(chart)


def _build_lines(chart: Chart) -> Picture:
    """Return a chart of lines: steps, curves, percentiles, loads or points."""
    has_percentiles = chart.shape is ChartShape.QUANTILES
    has_steps = chart.shape is ChartShape.STEPS
    y, y_scale = _value_axis(chart)
    if has_percentiles:
        x, x_scale = _percentile_axis(chart), 1.0
    else:
        x, x_scale = _linear_or_log_axis(chart)
    lines = []
    for series, colour in _coloured_series(chart):
        positions, heights = series.x, series.y
        if has_percentiles:
            positions = [1 / (1 - share) for share in series.x]
        if has_steps:
            positions = [edge for start in series.x for edge in (start, start + chart.x_step)]
            heights = [height for height in series.y for _ in range(2)]
        lines.append(
            PlotLine(
                series.label,
                colour,
                _round(position / x_scale for position in positions),
                _round(height / y_scale for height in heights),
                texts=series.texts,
                is_joined=series.is_joined,
                legend=series.legend,
            )
        )
    marks = tuple((position / x_scale, label) for position, label in chart.marks)
    return Picture(chart.title, x, y, lines, marks=marks, has_points=not has_steps)


def _value_axis(chart: Chart) -> tuple[PlotAxis, float]:
    """Return the y axis of a chart of lines, and the divisor of its values."""
    values = [y for series in chart.series for y in series.y]
    is_log = chart.shape in (ChartShape.QUANTILES, ChartShape.LOAD) and _is_wide(
        values, _LOG_RATIO_OF_TIMES
    )
    scale, unit = _choose_scale(chart.y_unit, [*values, chart.y_end], is_log=is_log)
    high = None
    if chart.y_end:
        high = chart.y_end / scale
    elif chart.shape is ChartShape.CURVE and chart.y_unit is Unit.SHARE:
        high = 100.0
    starts_at_zero = not is_log and chart.shape is not ChartShape.POINTS
    axis = PlotAxis(
        chart.y_title or _TITLES.get(chart.y_unit, ""),
        unit,
        is_log=is_log,
        low=0 if starts_at_zero else None,
        high=high,
    )
    return axis, scale


def _percentile_axis(chart: Chart) -> PlotAxis:
    """Return an x axis on which a share q stands at 1 / (1 - q).

    Each further nine takes the same room there. A linear axis would hide the tail.
    """
    largest_share = max((share for series in chart.series for share in series.x), default=0.0)
    end = 1 / (1 - largest_share)
    # 1 / (1 - 0.999) is slightly less than 1000, and an axis draws no tick beyond its end.
    ticks = tuple(tick for tick in _PERCENTILE_TICKS if tick[0] <= end * 1.001)
    return PlotAxis(
        "percentile",
        "",
        is_log=True,
        ticks=ticks,
        low=1,
        high=max(end, ticks[-1][0], 2),
        is_percentiles=True,
    )


def _linear_or_log_axis(chart: Chart) -> tuple[PlotAxis, float]:
    """Return the x axis of a chart of lines without percentiles, and the divisor of its values."""
    values = [x for series in chart.series for x in series.x]
    if chart.shape is ChartShape.CURVE:
        is_log = min(values, default=0) > 0
    elif chart.shape in (ChartShape.LOAD, ChartShape.POINTS):
        is_log = _is_wide(values, _LOG_RATIO_OF_LOADS)
    else:
        is_log = False
    scale, unit = _choose_scale(chart.x_unit, [*values, chart.x_end], is_log=is_log)
    axis = PlotAxis(
        chart.x_title or _TITLES.get(chart.x_unit, ""),
        unit,
        is_log=is_log,
        ticks=_doubling_ticks(values, is_log=is_log) if chart.shape is ChartShape.LOAD else (),
        low=0.0 if chart.x_end else None,
        high=chart.x_end / scale if chart.x_end else None,
    )
    return axis, scale


def _doubling_ticks(values: Sequence[float], *, is_log: bool) -> tuple[tuple[float, str], ...]:
    """Return ticks for values that are usually doubled, such as loads and I/O sizes.

    Ticks are powers of two on a logarithmic axis, whole numbers on a linear one. If fewer than two
    of them lie in the range, there are none, and the drawing library chooses.
    """
    smallest, largest = min(values, default=0.0), max(values, default=0.0)
    if is_log:
        first, last = math.ceil(math.log2(smallest)), math.floor(math.log2(largest))
        step = 1 + (last - first) // _MAX_LOAD_TICKS
        ticks = [2.0**power for power in range(first, last + 1, step)]
    else:
        first, last = math.ceil(smallest), math.floor(largest)
        step = 1 + int((largest - smallest) // _MAX_LOAD_TICKS)
        ticks = [float(value) for value in range(first, last + 1, step)]
    if len(ticks) < 2:  # noqa: PLR2004 - one tick does not show a scale
        return ()
    return tuple((tick, f"{tick:g}") for tick in ticks)


def _build_bars(chart: Chart) -> Picture:
    """Return a histogram: bars from x to 2 x, those of several series side by side."""
    edges = [edge for series in chart.series for x in series.x for edge in (x, 2 * x)]
    scale, unit = _choose_scale(chart.x_unit, edges, is_log=True)
    count = len(chart.series)
    boxes = []
    for index, (series, colour) in enumerate(_coloured_series(chart)):
        # On a logarithmic axis a bucket is one unit of the exponent wide. Each series gets an equal
        # part of the 90 % in its middle.
        left = [x / scale * 2 ** (0.05 + 0.9 * index / count) for x in series.x]
        right = [x / scale * 2 ** (0.05 + 0.9 * (index + 1) / count) for x in series.x]
        boxes.append(
            PlotBoxes(
                series.label,
                colour,
                left=_round(left),
                right=_round(right),
                bottom=[0.0] * len(left),
                top=list(series.y),
                alpha=[1.0] * len(left),
            )
        )
    ticks: tuple[tuple[float, str], ...] = ()
    if chart.x_unit is Unit.IO_BYTES:
        ticks = _doubling_ticks([edge / scale for edge in edges], is_log=True)
    x = PlotAxis(
        chart.x_title or _TITLES.get(chart.x_unit, ""),
        unit,
        is_log=True,
        ticks=ticks,
        low=min(edges) / scale,
        high=max(edges) / scale,
    )
    y = PlotAxis(chart.y_title or "operations", "", low=0)
    return Picture(chart.title, x, y, boxes=boxes)


def _build_cells(chart: Chart) -> Picture:
    """Return a heat map over time: a cell is darker the more operations it counts."""
    ((series, colour),) = _coloured_series(chart)
    is_grid = chart.shape is ChartShape.GRID
    tops = [y + chart.y_step if is_grid else 2 * y for y in series.y]
    x_end = chart.x_end or max(series.x) + chart.x_step
    x_scale, x_unit = _choose_scale(chart.x_unit, [x_end], is_log=False)
    y_scale, y_unit = _choose_scale(chart.y_unit, [*series.y, *tops], is_log=not is_grid)
    boxes = PlotBoxes(
        series.label,
        colour,
        left=_round(x / x_scale for x in series.x),
        right=_round((x + chart.x_step) / x_scale for x in series.x),
        bottom=_round(y / y_scale for y in series.y),
        top=_round(y / y_scale for y in tops),
        # The palest cell is still visible: few operations must not vanish beside many.
        alpha=[round(0.12 + 0.88 * weight, 3) for weight in series.weight or []],
    )
    x = PlotAxis(
        chart.x_title or "time",
        x_unit,
        low=0.0 if chart.x_end else min(boxes.left),
        high=x_end / x_scale,
    )
    y = PlotAxis(
        chart.y_title or _TITLES.get(chart.y_unit, ""),
        y_unit,
        is_log=not is_grid,
        low=min(series.y) / y_scale,
        high=(chart.y_end or max(tops)) / y_scale,
    )
    return Picture(chart.title, x, y, boxes=[boxes])


def _build_map(chart: Chart) -> Picture:
    """Return a heat map over two lists of names, one on each axis."""
    ((series, colour),) = _coloured_series(chart)
    boxes = PlotBoxes(
        series.label,
        colour,
        left=_round(series.x),
        right=_round(x + 1 for x in series.x),
        bottom=list(series.y),
        top=[y + 1 for y in series.y],
        alpha=[round(0.05 + 0.5 * weight, 3) for weight in series.weight or []],
        texts=series.texts,
    )
    x = _named_axis(chart.x_title, chart.x_names)
    y = _named_axis(chart.y_title, chart.y_names)
    return Picture(chart.title, x, y, boxes=[boxes])


def _build_ranges(chart: Chart) -> Picture:
    """Return horizontal bars, each from x to its weight, one for each name of the y axis."""
    ((series, colour),) = _coloured_series(chart)
    ends = series.weight or []
    scale, unit = _choose_scale(chart.x_unit, [*series.x, *ends], is_log=False)
    boxes = PlotBoxes(
        series.label,
        colour,
        left=_round(x / scale for x in series.x),
        right=_round(x / scale for x in ends),
        bottom=[y + 0.2 for y in series.y],
        top=[y + 1 - 0.2 for y in series.y],
        alpha=[0.8] * len(series.x),
        texts=series.texts,
    )
    x = PlotAxis(chart.x_title, unit)
    return Picture(chart.title, x, _named_axis(chart.y_title, chart.y_names), boxes=[boxes])


def _named_axis(title: str, names: Sequence[str]) -> PlotAxis:
    """Return an axis of names; name i extends from i to i + 1."""
    ticks = tuple((index + 0.5, name) for index, name in enumerate(names))
    return PlotAxis(title, "", ticks=ticks, low=0.0, high=float(len(names)))


def _choose_scale(unit: Unit, values: Sequence[float], *, is_log: bool) -> tuple[float, str]:
    """Return the divisor for an axis of `values`, and the unit of the quotient.

    The divisor suits the largest value, on a logarithmic axis the value in its middle.
    """
    scales = _SCALES.get(unit, ((1, ""),))
    magnitudes = [abs(value) for value in values if value]
    if not magnitudes:
        return scales[0]
    typical = max(magnitudes)
    if is_log:
        typical = math.sqrt(min(magnitudes) * max(magnitudes))
    for divisor, name in reversed(scales):
        if typical >= divisor:
            return divisor, name
    return scales[0]


def _is_wide(values: Sequence[float], ratio: float) -> bool:
    """Return whether the values are positive and differ by more than `ratio` times."""
    return bool(values) and min(values) > 0 and max(values) > ratio * min(values)


def _round(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.{_COORDINATE_DIGITS}g}") for value in values]


def _coloured_series(chart: Chart) -> list[tuple[Series, str]]:
    """Return each series with the name of its colour.

    The label decides if all labels are operations; otherwise `Series.colour` or the order does.
    """
    if all(series.label in _OPERATION_COLOURS for series in chart.series):
        return [(series, _OPERATION_COLOURS[series.label]) for series in chart.series]
    coloured = []
    for index, series in enumerate(chart.series):
        number = index if series.colour is None else series.colour
        coloured.append((series, COLOURS[number % len(COLOURS)]))
    return coloured
