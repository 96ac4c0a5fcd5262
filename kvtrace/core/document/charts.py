"""Charts for paper and for readers without scripts: inline SVG by matplotlib, coloured by the CSS of the page."""

from __future__ import annotations

import io
import re
from typing import Any

from kvtrace.core.document.picture import COLOURS, Picture, PlotAxis
from kvtrace.core.errors import ProbeUnavailable

SIZE_INCHES = (5.0, 2.7)
"""Small, so that its 9-point text stays readable across a phone."""
INK, FAINT = "#010203", "#030201"
_INKS = {name: f"#01010{at}" for at, name in enumerate(COLOURS, 1)}
"""Stand-ins that no figure uses otherwise; CSS variables take their place."""
_VARIABLES = {INK: "var(--ink)", FAINT: "var(--faint)"} | {c: f"var(--{n})" for n, c in _INKS.items()}
_DASHES = dict(zip(COLOURS, ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1))), strict=True))
_PROLOGUE = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_REMOVED = re.compile(r"<metadata>.*?</metadata>|<style .*?</style>| xmlns(:xlink)?=\"[^\"]*\"", re.DOTALL)
_GROUP = re.compile(r'<g id="[a-zA-Z0-9_.]+">')
_SIZE = re.compile(r' (?:width|height)="[0-9.]+pt"')
_MAX_TICKS = 7
_NARROW = 100


def draw(picture: Picture, number: int, *, has_title: bool) -> str:
    """Return `picture` as an SVG element; `number` keeps its ids apart from those of the page's other charts.

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
        _fill(axes, picture)
        _dress(axes, picture)
        if has_title:
            axes.set_title(picture.title, color=INK, fontsize=10, loc="left")
        target = io.StringIO()
        empty = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(target, format="svg", metadata=empty, transparent=True)
    return _embed(target.getvalue(), picture.title)


def _embed(svg: str, title: str) -> str:
    svg = _SIZE.sub("", _REMOVED.sub("", _PROLOGUE.sub("", svg)), count=2)
    svg = _GROUP.sub("<g>", svg)
    for stand_in, variable in _VARIABLES.items():
        svg = svg.replace(stand_in, variable)
    label = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1).strip()


def _fill(axes: Any, picture: Picture) -> None:
    from matplotlib.collections import PolyCollection

    for line in picture.lines:
        marker = {"marker": ".", "markersize": 3} if picture.has_points else {}
        style = {"color": _INKS[line.colour], "linestyle": _DASHES[line.colour], "linewidth": 1.4}
        if not line.is_joined:
            style["linestyle"] = "none"
        axes.plot(line.x, line.y, label=line.label, **style, **marker)
    for boxes in picture.boxes:
        corners = zip(boxes.left, boxes.right, boxes.bottom, boxes.top, strict=True)
        drawn = [[(left, low), (right, low), (right, high), (left, high)] for left, right, low, high in corners]
        colours = [(_INKS[boxes.colour], alpha) for alpha in boxes.alpha]
        axes.add_collection(PolyCollection(drawn, facecolors=colours, edgecolors="none", label=boxes.label))
        for ((left, low), _, (right, high), _), text in zip(drawn, boxes.texts or [], strict=False):
            axes.text((left + right) / 2, (low + high) / 2, text, color=INK, fontsize=7, ha="center", va="center")
    axes.autoscale_view()
    for x, label in picture.marks:
        axes.axvline(x, color=INK, linewidth=1, linestyle="--", label=label)


def _dress(axes: Any, picture: Picture) -> None:
    axes.tick_params(colors=INK, which="both", labelcolor=INK)
    axes.grid(visible=True, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_color(INK)
        spine.set_visible(name in ("left", "bottom"))
    for axis, spec in ((axes.xaxis, picture.x), (axes.yaxis, picture.y)):
        axis.set_label_text(spec.heading, color=INK)
        (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log" if spec.is_log else "linear")
        limit = axes.set_xlim if axis is axes.xaxis else axes.set_ylim
        limit(spec.low, spec.high)
        _tick(axis, spec)
    if len(picture.lines) + len(picture.boxes) > 1 or picture.marks:
        # Lines of marks go through the whole plot, so that no corner of it is free: the legend stands above.
        above: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 2} if picture.marks else {}
        axes.legend(frameon=False, labelcolor=INK, fontsize=8, **above)


def _tick(axis: Any, spec: PlotAxis) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if spec.ticks:
        axis.set_major_locator(FixedLocator([at for at, _ in spec.ticks]))
        axis.set_minor_locator(NullLocator())
        named = dict(spec.ticks)
        axis.set_major_formatter(FuncFormatter(lambda value, _at: named.get(value, "")))
        return
    if spec.is_log:
        low, high = axis.get_view_interval()
        # Within two decades, powers of ten alone leave an axis almost without numbers.
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < _NARROW * low else (1,), numticks=_MAX_TICKS))
        axis.set_minor_formatter("")
    else:
        axis.set_major_locator(MaxNLocator(_MAX_TICKS - 1))
    axis.set_major_formatter(FuncFormatter(lambda value, _at: bare(value)))


def bare(value: float) -> str:
    """Return a number of an axis: thousands separated, no zeros that say nothing."""
    return f"{value:,.0f}" if abs(value) >= _NARROW else f"{value:g}"
