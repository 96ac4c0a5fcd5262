"""A chart with its numbers in the units that its axes name: what a page's script and its paper form both draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvtrace.core.document.document import Chart, ChartShape, Series, Unit

COLOURS: Final = ("read", "write", "delete", "fourth", "fifth", "sixth")
_KINDS = {"read": "read", "write": "write", "delete": "delete", "discard": "delete"}
"""Which colour a series has by its label; the others take their turn of all."""
_SCALES: Final[dict[Unit, tuple[tuple[float, str], ...]]] = {
    Unit.NS: ((1, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")),
    Unit.BYTES: ((1, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"), (1e15, "PB")),
    Unit.IO_BYTES: ((1, "B"), (1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB")),
    Unit.BYTES_PER_S: ((1, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s")),
    Unit.SHARE: ((0.01, "%"),),
    Unit.PER_S: ((1, "1/s"),),
}
_TITLES = {
    Unit.NS: "time",
    Unit.BYTES: "size",
    Unit.IO_BYTES: "size",
    Unit.BYTES_PER_S: "bandwidth",
    Unit.PER_S: "rate",
}
_TAILS: Final = ((1, "0"), (2, "50"), (10, "90"), (100, "99"), (1000, "99.9"), (10_000, "99.99"))
"""1 / (1 - q), and the percentile that stands there."""
_WIDE, _WIDE_LOADS = 20, 4
"""Times, and loads, that differ by more are drawn on a logarithmic axis."""
_MOST_TICKS = 9
"""Of loads."""
_DIGITS = 6
"""Of a coordinate: more are not seen, and take room in the page."""


@dataclass(frozen=True, slots=True)
class PlotAxis:
    """One axis of a picture; its unit stands in the title, so that its numbers are bare."""

    title: str
    unit: str
    is_log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    """None: those that the drawing program chooses."""
    low: float | None = None
    high: float | None = None
    is_percentiles: bool = False
    """Whether x stands for the share 1 - 1 / x."""

    @property
    def heading(self) -> str:
        """Return the title with the unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclass(frozen=True, slots=True)
class PlotLine:
    """One line."""

    label: str
    colour: str
    x: list[float]
    y: list[float]
    texts: list[str] | None = None
    """What each point is."""
    is_joined: bool = True


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
    texts: list[str] | None = None
    """What stands in each."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What is drawn."""

    title: str
    x: PlotAxis
    y: PlotAxis
    lines: list[PlotLine] = field(default_factory=list)
    boxes: list[PlotBoxes] = field(default_factory=list)
    marks: tuple[tuple[float, str], ...] = ()
    has_points: bool = False

    def coordinates(self, *, is_x: bool) -> list[float]:
        """Return all places on one axis."""
        lines = [line.x if is_x else line.y for line in self.lines]
        sides = [(boxes.left, boxes.right) if is_x else (boxes.bottom, boxes.top) for boxes in self.boxes]
        return [value for part in [*lines, *(side for pair in sides for side in pair)] for value in part]


def picture_of(chart: Chart) -> Picture:
    """Return `chart` as lines and boxes in the units of its axes."""
    if chart.shape is ChartShape.BARS:
        return _bars(chart)
    if chart.shape in (ChartShape.CELLS, ChartShape.GRID):
        return _cells(chart)
    if chart.shape is ChartShape.MAP:
        return _map(chart)
    if chart.shape is ChartShape.RANGES:
        return _ranges(chart)
    return _lines(chart)


def _lines(chart: Chart) -> Picture:
    xs = [x for series in chart.series for x in series.x]
    ys = [y for series in chart.series for y in series.y]
    is_tail, is_steps = chart.shape is ChartShape.QUANTILES, chart.shape is ChartShape.STEPS
    has_log_y = (is_tail or chart.shape is ChartShape.LOAD) and _is_wide(ys, _WIDE)
    y_scale, y_unit = _scale(chart.y_unit, [*ys, chart.y_end], is_log=has_log_y)
    y = PlotAxis(
        chart.y_title or _TITLES.get(chart.y_unit, ""),
        y_unit,
        is_log=has_log_y,
        low=None if has_log_y or chart.shape is ChartShape.POINTS else 0,
        high=chart.y_end / y_scale if chart.y_end else 100.0 if chart.shape is ChartShape.CURVE else None,
    )
    if is_tail:
        x, x_scale = _tail_axis(xs), 1.0
    else:
        has_log_x = (chart.shape is ChartShape.CURVE and min(xs, default=0) > 0) or (
            chart.shape in (ChartShape.LOAD, ChartShape.POINTS) and _is_wide(xs, _WIDE_LOADS)
        )
        x_scale, unit = _scale(chart.x_unit, [*xs, chart.x_end], is_log=has_log_x)
        ends = (0.0, chart.x_end / x_scale) if chart.x_end else (None, None)
        ticks = _doubling_ticks(xs, is_log=has_log_x) if chart.shape is ChartShape.LOAD else ()
        x = PlotAxis(chart.x_title or _TITLES.get(chart.x_unit, ""), unit, has_log_x, ticks, *ends)
    lines = []
    for series, colour in _coloured(chart):
        at, heights = [1 / (1 - q) for q in series.x] if is_tail else series.x, series.y
        if is_steps:
            at, heights = _stairs(at, heights, chart.x_step)
        lines.append(
            PlotLine(
                *(series.label, colour, _round(v / x_scale for v in at), _round(v / y_scale for v in heights)),
                *(series.texts, series.is_joined),
            )
        )
    marks = tuple((at / x_scale, label) for at, label in chart.marks)
    return Picture(chart.title, x, y, lines, marks=marks, has_points=not is_steps)


def _stairs(starts: Sequence[float], heights: Sequence[float], step: float) -> tuple[list[float], list[float]]:
    """Return the corners of steps that begin at `starts` and are `step` wide."""
    x = [edge for start in starts for edge in (start, start + step)]
    return x, [height for height in heights for _ in range(2)]


def _tail_axis(shares: Sequence[float]) -> PlotAxis:
    """Return the axis of percentiles on which each further nine takes the same room: a linear one hides the tail."""
    end = 1 / (1 - max(shares, default=0.0))
    ticks = tuple((at, name) for at, name in _TAILS if at <= end * 1.001)
    return PlotAxis("percentile", "", is_log=True, ticks=ticks, low=1, high=max(end, 2), is_percentiles=True)


def _doubling_ticks(loads: Sequence[float], *, is_log: bool) -> tuple[tuple[float, str], ...]:
    """Return ticks of what is doubled, loads or sizes of I/Os: powers of two, or of a narrow range whole numbers.

    None, so that the drawing program chooses, where fewer than two of them lie in the range.
    """
    least, most = min(loads, default=0.0), max(loads, default=0.0)
    if is_log:
        first, last = math.ceil(math.log2(least)), math.floor(math.log2(most))
        ticks = [2.0**power for power in range(first, last + 1, 1 + (last - first) // _MOST_TICKS)]
    else:
        step = 1 + int((most - least) // _MOST_TICKS)
        ticks = [float(at) for at in range(math.ceil(least), math.floor(most) + 1, step)]
    return tuple((at, f"{at:g}") for at in ticks) if len(ticks) > 1 else ()


def _bars(chart: Chart) -> Picture:
    edges = [edge for series in chart.series for x in series.x for edge in (x, 2 * x)]
    scale, unit = _scale(chart.x_unit, edges, is_log=True)
    count = len(chart.series)
    boxes = []
    for at, (series, colour) in enumerate(_coloured(chart)):
        # Side by side within their power of two.
        left = [x / scale * 2 ** (0.05 + 0.9 * at / count) for x in series.x]
        right = [x / scale * 2 ** (0.05 + 0.9 * (at + 1) / count) for x in series.x]
        zero, solid = [0.0] * len(left), [1.0] * len(left)
        boxes.append(PlotBoxes(series.label, colour, _round(left), _round(right), zero, list(series.y), solid))
    title = chart.x_title or _TITLES.get(chart.x_unit, "")
    ticks = _doubling_ticks([edge / scale for edge in edges], is_log=True) if chart.x_unit is Unit.IO_BYTES else ()
    x = PlotAxis(title, unit, is_log=True, ticks=ticks, low=min(edges) / scale, high=max(edges) / scale)
    return Picture(chart.title, x, PlotAxis(chart.y_title or "operations", "", low=0), boxes=boxes)


def _cells(chart: Chart) -> Picture:
    ((series, colour),) = _coloured(chart)
    is_grid = chart.shape is ChartShape.GRID
    tops = [y + chart.y_step if is_grid else 2 * y for y in series.y]
    x_end = chart.x_end or max(series.x) + chart.x_step
    x_scale, x_unit = _scale(chart.x_unit, [x_end], is_log=False)
    y_scale, y_unit = _scale(chart.y_unit, [*series.y, *tops], is_log=not is_grid)
    # Few operations must not vanish beside many.
    boxes = PlotBoxes(
        series.label,
        colour,
        _round(x / x_scale for x in series.x),
        _round((x + chart.x_step) / x_scale for x in series.x),
        _round(y / y_scale for y in series.y),
        _round(y / y_scale for y in tops),
        [round(0.12 + 0.88 * weight, 3) for weight in series.weight or []],
    )
    low = (chart.y_start or min(series.y)) / y_scale
    high = (chart.y_end or max(tops)) / y_scale
    x = PlotAxis(chart.x_title or "time", x_unit, low=0.0 if chart.x_end else min(boxes.left), high=x_end / x_scale)
    y = PlotAxis(chart.y_title or _TITLES.get(chart.y_unit, ""), y_unit, not is_grid, (), low, high)
    return Picture(chart.title, x, y, boxes=[boxes])


def _map(chart: Chart) -> Picture:
    ((series, colour),) = _coloured(chart)
    boxes = PlotBoxes(
        *(series.label, colour),
        left=list(series.x),
        right=[x + 1 for x in series.x],
        bottom=list(series.y),
        top=[y + 1 for y in series.y],
        alpha=[round(0.05 + 0.5 * weight, 3) for weight in series.weight or []],
        texts=series.texts,
    )
    axes = (_named_axis(chart.x_title, chart.x_names), _named_axis(chart.y_title, chart.y_names))
    return Picture(chart.title, *axes, boxes=[boxes])


def _named_axis(title: str, names: Sequence[str]) -> PlotAxis:
    """Return the axis of a closed set, the first of which lies from 0 to 1."""
    ticks = tuple((at + 0.5, name) for at, name in enumerate(names))
    return PlotAxis(title, "", ticks=ticks, low=0.0, high=float(len(names)))


def _ranges(chart: Chart) -> Picture:
    ((series, colour),) = _coloured(chart)
    ends = series.weight or []
    scale, unit = _scale(chart.x_unit, [*series.x, *ends], is_log=False)
    boxes = PlotBoxes(
        *(series.label, colour, _round(x / scale for x in series.x), _round(x / scale for x in ends)),
        bottom=[y + 0.2 for y in series.y],
        top=[y + 0.8 for y in series.y],
        alpha=[0.8] * len(series.x),
    )
    x = PlotAxis(chart.x_title, unit)
    return Picture(chart.title, x, _named_axis(chart.y_title, chart.y_names), boxes=[boxes])


def _scale(unit: Unit, values: Sequence[float], *, is_log: bool) -> tuple[float, str]:
    """Return by how much an axis of `values` is divided, and its unit: of the middle of a logarithmic one."""
    scales = _SCALES.get(unit, ((1, ""),))
    above = [abs(value) for value in values if value]
    if not above:
        return scales[0]
    typical = math.sqrt(min(above) * max(above)) if is_log else max(above)
    return next((scale for scale in reversed(scales) if typical >= scale[0]), scales[0])


def _is_wide(values: Sequence[float], ratio: float) -> bool:
    return bool(values) and min(values) > 0 and max(values) > ratio * min(values)


def _round(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values]


def _coloured(chart: Chart) -> list[tuple[Series, str]]:
    """Return each series with the name of its colour: its kind's, or one of its own."""
    if all(series.label in _KINDS for series in chart.series):
        return [(series, _KINDS[series.label]) for series in chart.series]
    places = [at if series.colour is None else series.colour for at, series in enumerate(chart.series)]
    return [(series, COLOURS[place % len(COLOURS)]) for series, place in zip(chart.series, places, strict=True)]
