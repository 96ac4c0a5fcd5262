"""Charts as inline SVG by matplotlib, coloured by the CSS of the page so that they follow light and dark."""

from __future__ import annotations

import io
import math
import re
from typing import Any

from kvtrace.core.document.document import Chart, ChartShape, Series, Unit, show
from kvtrace.core.errors import ProbeUnavailable

SIZE_INCHES = (5.0, 2.7)
"""Small, so that its 9-point text stays readable across a phone."""
INK, FAINT = "#010203", "#030201"
_KINDS = {"read": "read", "write": "write", "delete": "delete", "discard": "delete"}
"""Which colour a series has by its label; the others take their turn of the rest."""
_REST = ("read", "write", "delete", "fourth", "fifth", "sixth")
COLOURS = {name: f"#01010{at}" for at, name in enumerate(_REST, 1)}
"""Stand-ins that no figure uses otherwise; CSS variables take their place."""
_VARIABLES = {INK: "var(--ink)", FAINT: "var(--faint)"} | {c: f"var(--{n})" for n, c in COLOURS.items()}
_DASHES = dict(zip(_REST, ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1))), strict=True))
_PROLOGUE = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_REMOVED = re.compile(r"<metadata>.*?</metadata>|<style .*?</style>| xmlns(:xlink)?=\"[^\"]*\"", re.DOTALL)
_GROUP = re.compile(r'<g id="[a-zA-Z0-9_.]+">')
_SIZE = re.compile(r' (?:width|height)="[0-9.]+pt"')
_MAX_TICKS = 7
_NARROW = 100
_WIDE, _WIDE_LOADS = 20, 4
"""Times, and loads, that differ by more are drawn on a logarithmic axis."""


def draw(chart: Chart, number: int, *, has_title: bool) -> str:
    """Return `chart` as an SVG element; `number` keeps its ids apart from those of the page's other charts.

    Raises:
        ProbeUnavailable: matplotlib is missing.

    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise ProbeUnavailable("an HTML report needs matplotlib: pip install 'kvtrace[plot]'") from None
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"chart{number}", "font.size": 9}):
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.subplots()
        _DRAW[chart.shape](axes, chart)
        _dress(axes, chart)
        if has_title:
            axes.set_title(chart.title, color=INK, fontsize=10, loc="left")
        target = io.StringIO()
        empty = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(target, format="svg", metadata=empty, transparent=True)
    return _embed(target.getvalue(), chart.title)


def _embed(svg: str, title: str) -> str:
    svg = _SIZE.sub("", _REMOVED.sub("", _PROLOGUE.sub("", svg)), count=2)
    svg = _GROUP.sub("<g>", svg)
    for stand_in, variable in _VARIABLES.items():
        svg = svg.replace(stand_in, variable)
    label = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1).strip()


def _steps(axes: Any, chart: Chart) -> None:
    for series, colour in _coloured(chart):
        edges = [*series.x, series.x[-1] + chart.x_step]
        axes.stairs(series.y, edges, baseline=None, label=series.label, **_line(colour))
    axes.set_ylim(bottom=0)


def _curve(axes: Any, chart: Chart) -> None:
    for series, colour in _coloured(chart):
        axes.plot(series.x, series.y, label=series.label, marker=".", markersize=3, **_line(colour))
    if all(x > 0 for series in chart.series for x in series.x):
        axes.set_xscale("log")
    axes.set_ylim(0, 1)


def _bars(axes: Any, chart: Chart) -> None:
    count = len(chart.series)
    axes.margins(x=0)
    for at, (series, colour) in enumerate(_coloured(chart)):
        # Side by side within their power of two.
        left = [math.log2(x) + (0.1 + 0.8 * at / count) for x in series.x]
        axes.bar(left, series.y, width=0.8 / count, align="edge", label=series.label, color=COLOURS[colour])


def _lollipops(axes: Any, chart: Chart) -> None:
    for series, colour in _coloured(chart):
        axes.plot(series.x, series.y, label=series.label, marker="o", markersize=3, **_line(colour))
    axes.set_ylim(bottom=0)


def _load(axes: Any, chart: Chart) -> None:
    for series, colour in _coloured(chart):
        axes.plot(series.x, series.y, label=series.label, marker="o", markersize=4, **_line(colour))
    loads = sorted({x for series in chart.series for x in series.x})
    heights = [y for series in chart.series for y in series.y if y > 0]
    if loads[0] > 0 and loads[-1] > _WIDE_LOADS * loads[0]:
        axes.set_xscale("log")
    if heights and max(heights) > _WIDE * min(heights):
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    for x, label in chart.marks:
        axes.axvline(x, color=INK, linewidth=1, linestyle="--", label=label)


def _cells(axes: Any, chart: Chart) -> None:
    (series,) = chart.series
    _boxes(axes, chart, [(y, 2 * y) for y in series.y])
    axes.set_yscale("log")
    axes.set_ylim(min(series.y) / 1.2, 2.4 * max(series.y))


def _grid(axes: Any, chart: Chart) -> None:
    (series,) = chart.series
    _boxes(axes, chart, [(y, y + chart.y_step) for y in series.y])
    axes.set_ylim(min(series.y), max(series.y) + chart.y_step)


def _boxes(axes: Any, chart: Chart, heights: list[tuple[float, float]]) -> None:
    from matplotlib.collections import PolyCollection

    ((series, name),) = _coloured(chart)
    boxes = [
        [(x, low), (x + chart.x_step, low), (x + chart.x_step, high), (x, high)]
        for x, (low, high) in zip(series.x, heights, strict=True)
    ]
    # Few operations must not vanish beside many.
    alphas = [0.12 + 0.88 * weight for weight in series.weight or []]
    axes.add_collection(PolyCollection(boxes, facecolors=[(COLOURS[name], a) for a in alphas], edgecolors="none"))
    axes.set_xlim(0 if chart.x_end else min(series.x), chart.x_end or max(series.x) + chart.x_step)


def _coloured(chart: Chart) -> list[tuple[Series, str]]:
    """Return each series with the name of its colour: its kind's, or one of its own."""
    if all(series.label in _KINDS for series in chart.series):
        return [(series, _KINDS[series.label]) for series in chart.series]
    return [(series, _REST[at % len(_REST)]) for at, series in enumerate(chart.series)]


_DRAW = {
    ChartShape.STEPS: _steps,
    ChartShape.CURVE: _curve,
    ChartShape.BARS: _bars,
    ChartShape.CELLS: _cells,
    ChartShape.GRID: _grid,
    ChartShape.LOLLIPOPS: _lollipops,
    ChartShape.LOAD: _load,
}


def _line(colour: str) -> dict[str, Any]:
    return {"color": COLOURS[colour], "linestyle": _DASHES[colour], "linewidth": 1.4}


def _dress(axes: Any, chart: Chart) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, MultipleLocator

    axes.tick_params(colors=INK, which="both", labelcolor=INK)
    axes.grid(visible=True, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_color(INK)
        spine.set_visible(name in ("left", "bottom"))
    for axis, unit in ((axes.xaxis, chart.x_unit), (axes.yaxis, chart.y_unit)):
        if axis.get_scale() == "log":
            low, high = axis.get_view_interval()
            # Within two decades, powers of ten alone leave an axis almost without numbers.
            axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < _NARROW * low else (1,), numticks=_MAX_TICKS))
            axis.set_minor_formatter("")
        elif unit is Unit.BYTES and chart.shape is ChartShape.GRID:
            axis.set_major_locator(MultipleLocator(_power_of_two(axis.get_view_interval())))
        else:
            axis.set_major_locator(MaxNLocator(_MAX_TICKS - 1, integer=unit is Unit.COUNT))
        is_power = chart.shape is ChartShape.BARS and axis is axes.xaxis
        axis.set_major_formatter(FuncFormatter(_tick(unit, is_power=is_power)))
    if chart.shape is ChartShape.BARS:
        low, high = math.floor(axes.get_xlim()[0]), math.ceil(axes.get_xlim()[1])
        axes.set_xlim(low, high)
        axes.xaxis.set_major_locator(MultipleLocator(-(-(high - low) // _MAX_TICKS)))
    if len(chart.series) > 1 or chart.marks:
        axes.legend(frameon=False, labelcolor=INK, fontsize=9)


def _power_of_two(interval: tuple[float, float]) -> float:
    """Return the power of two that gives an axis of bytes not too many ticks: 37.3 GiB says little."""
    return float(2 ** math.ceil(math.log2(max(interval[1] - interval[0], 1) / _MAX_TICKS)))


def _tick(unit: Unit, *, is_power: bool) -> Any:
    def text(value: float, _position: int) -> str:
        shown = 2.0**value if is_power else value
        if unit is Unit.COUNT:
            return f"{shown:,.0f}"
        if unit is Unit.SHARE:
            return f"{shown * 100:.0f} %"
        # Trailing zeros say nothing on a tick: 20.0 ms is 20 ms.
        number, _, name = show(shown, unit).partition(" ")
        number = number.rstrip("0").rstrip(".") if "." in number else number
        return f"{number} {name}".strip()

    return text
