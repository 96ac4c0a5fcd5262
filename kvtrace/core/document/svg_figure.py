"""A picture as an inline SVG element, drawn by matplotlib: for paper, and without JavaScript."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any, Final

from kvtrace.core.document.picture import COLOURS, Picture, PlotAxis
from kvtrace.core.json_types import JsonObject

SIZE_INCHES = (5.0, 2.7)
"""Small, so that its 9-point text stays readable across a phone."""
_POINTS_PER_INCH = 72
_INKS = {name: f"#01010{number}" for number, name in enumerate((*COLOURS, "ink", "faint"), 1)}
"""Stand-ins for the page's CSS variables, which replace them; no figure uses these colours."""
_DASHES = dict(zip(COLOURS, ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1))), strict=True))
_PROLOGUE = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_REMOVED = re.compile(
    r"<metadata>.*?</metadata>|<style .*?</style>| xmlns(:xlink)?=\"[^\"]*\"", re.DOTALL
)
_GROUP = re.compile(r'<g id="[a-zA-Z0-9_.]+">')
_SIZE = re.compile(r' (?:width|height)="[0-9.]+pt"')
_MAX_TICKS: Final = 7
_TWO_DECADES: Final = 100


def draw_svg(picture: Picture, number: int) -> str:
    """Return `picture` as an SVG element.

    `number` keeps its ids apart from those of the page's other charts.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"chart{number}", "font.size": 9}):
        figure = Figure(figsize=SIZE_INCHES)
        draw_axes(figure.add_axes(_plot_area(picture)), picture, _INKS)
        output = io.StringIO()
        empty = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(output, format="svg", metadata=empty, transparent=True)
    svg = _PROLOGUE.sub("", output.getvalue())
    svg = _REMOVED.sub("", svg)
    svg = _SIZE.sub("", svg, count=2)
    svg = _GROUP.sub("<g>", svg)
    for name, stand_in in _INKS.items():
        svg = svg.replace(stand_in, f"var(--{name})")
    label = picture.title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1).strip()


def _plot_area(picture: Picture) -> tuple[float, float, float, float]:
    """Return left, bottom, width and height of the plot as shares of its figure.

    The margins follow from the lengths of the labels. matplotlib's own layouts draw each chart
    twice, and a page has dozens of charts.
    """
    longest_label = max([6, *(len(label) for _, label in picture.y.ticks)])
    left_points = 26 + 5 * longest_label
    legend_rows = 0
    if picture.marks:
        # The legend stands above the plot, two names in a row.
        lines = {line.legend or line.label for line in picture.lines}
        names = len(lines) + len(picture.boxes) + len(picture.marks)
        legend_rows = (names + 1) // 2
    width, height = (_POINTS_PER_INCH * inches for inches in SIZE_INCHES)
    return (
        left_points / width,
        34 / height,
        (width - left_points - 14) / width,
        (height - 42 - 14 * legend_rows) / height,
    )


def draw_axes(axes: Any, picture: Picture, inks: Mapping[str, str]) -> None:
    """Draw `picture` on matplotlib's `axes`.

    `inks` gives an HTML colour for each name in COLOURS, for `ink` (text and frame) and for
    `faint` (the grid).
    """
    _draw_content(axes, picture, inks)
    ink = inks["ink"]
    axes.tick_params(colors=ink, which="both", labelcolor=ink)
    axes.grid(visible=True, color=inks["faint"], linewidth=0.6)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_color(ink)
        spine.set_visible(side in ("left", "bottom"))
    axes.xaxis.set_label_text(picture.x.heading, color=ink)
    axes.set_xscale("log" if picture.x.is_log else "linear")
    axes.set_xlim(picture.x.low, picture.x.high)
    _set_ticks(axes.xaxis, picture.x)
    axes.yaxis.set_label_text(picture.y.heading, color=ink)
    axes.set_yscale("log" if picture.y.is_log else "linear")
    axes.set_ylim(picture.y.low, picture.y.high)
    _set_ticks(axes.yaxis, picture.y)
    if len(picture.lines) + len(picture.boxes) > 1 or picture.marks:
        position: JsonObject = {}
        if picture.marks:
            # Marks cross the whole plot and leave no corner free: the legend stands above.
            position = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 2}
        # Lines that share a name have one entry.
        handles, labels = axes.get_legend_handles_labels()
        entries = dict(zip(labels, handles, strict=True))
        axes.legend(
            entries.values(), entries.keys(), frameon=False, labelcolor=ink, fontsize=8, **position
        )


def _draw_content(axes: Any, picture: Picture, inks: Mapping[str, str]) -> None:
    """Draw the lines, boxes and marks of `picture`."""
    from matplotlib.collections import PolyCollection

    marker = {"marker": ".", "markersize": 3} if picture.has_points else {}
    for line in picture.lines:
        style = {
            "color": inks[line.colour],
            "linestyle": _DASHES[line.colour] if line.is_joined else "none",
            "linewidth": 1.4,
        }
        axes.plot(line.x, line.y, label=line.legend or line.label, **style, **marker)
    for boxes in picture.boxes:
        sides = list(zip(boxes.left, boxes.right, boxes.bottom, boxes.top, strict=True))
        corners = [
            [(left, bottom), (right, bottom), (right, top), (left, top)]
            for left, right, bottom, top in sides
        ]
        colours = [(inks[boxes.colour], alpha) for alpha in boxes.alpha]
        axes.add_collection(
            PolyCollection(corners, facecolors=colours, edgecolors="none", label=boxes.label)
        )
        text_style = {"color": inks["ink"], "fontsize": 7, "ha": "center", "va": "center"}
        for (left, right, bottom, top), text in zip(sides, boxes.texts or [], strict=False):
            axes.text((left + right) / 2, (bottom + top) / 2, text, **text_style)
    axes.autoscale_view()
    for x, label in picture.marks:
        axes.axvline(x, color=inks["ink"], linewidth=1, linestyle="--", label=label)


def _set_ticks(axis: Any, spec: PlotAxis) -> None:
    """Set the positions and labels of the ticks of matplotlib's `axis`."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

    if spec.ticks:
        labels = dict(spec.ticks)
        axis.set_major_locator(FixedLocator(list(labels)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _index: labels.get(value, "")))
        return
    if spec.is_log:
        low, high = axis.get_view_interval()
        # Within two decades, powers of ten alone leave an axis almost without numbers.
        steps = (1, 2, 5) if high < _TWO_DECADES * low else (1,)
        axis.set_major_locator(LogLocator(subs=steps, numticks=_MAX_TICKS))
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(_MAX_TICKS - 1))
    axis.set_major_formatter(FuncFormatter(lambda value, _index: _format_tick(value)))


_WHOLE_NUMBERS_FROM = 100


def _format_tick(value: float) -> str:
    """Return the number at a tick: thousands separated, without trailing zeros."""
    return f"{value:,.0f}" if abs(value) >= _WHOLE_NUMBERS_FROM else f"{value:g}"
