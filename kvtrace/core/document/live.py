"""Charts for a screen, by Bokeh: zoom, values under the pointer, series that a click on the legend hides.

Bokeh, because the script that a page must then carry is 1.3 MB; Plotly's package has one of 4.8 MB and no smaller
(Bokeh 3.9, Plotly 7.1), and its charts ask no less of us. Bokeh takes its colours from CSS, so light and dark need no
script of ours.
"""

from __future__ import annotations

import json
import math
import re
from importlib import resources
from typing import Any

from kvtrace.core.document.picture import Picture, PlotAxis, PlotBoxes
from kvtrace.core.errors import ProbeUnavailable

HEIGHT_PIXELS = 300
# Of middle brightness, for what a canvas draws is read on white and on black.
_COLOURS = {
    "read": "#2f80d0",
    "write": "#d9661f",
    "delete": "#7f8a96",
    "fourth": "#3f9a4a",
    "fifth": "#9a62d0",
    "sixth": "#d0437a",
}
_DASHES = dict(zip(_COLOURS, ("solid", "dashed", "dotted", "dotdash", [9, 3], [2, 2]), strict=True))
_MANY_DECADES = 3
_MARK_PIXELS, _MARK_ROWS = 16, 6
"""Of labels of marks: how high a row is, and after how many the lowest is taken again."""
_ID = re.compile(r'"(p\d+)"')
_LEGEND_PIXELS, _SAMPLE_PIXELS, _LETTER_PIXELS, _ROW_PIXELS = 330, 40, 7, 20
"""Of a legend: its width, so that a phone shows it whole, and what its parts take."""


def live_script() -> str:
    """Return Bokeh's own script and ours, as elements that need no network."""
    from bokeh.resources import Resources

    own = resources.files("kvtrace.core.document").joinpath("report.js").read_text(encoding="utf-8")
    carried = "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw[:1])
    return f"<script>{carried}</script>\n<script>{own}</script>"


def live_figure(picture: Picture) -> str:
    """Return `picture` as the JSON of a Bokeh document of one figure, the same text each time.

    Raises:
        ProbeUnavailable: Bokeh is missing.

    """
    try:
        from bokeh.document import Document
        from bokeh.plotting import figure
    except ImportError:
        raise ProbeUnavailable("an HTML report needs bokeh: pip install 'kvtrace[plot]'") from None
    plot = figure(
        height=HEIGHT_PIXELS,
        sizing_mode="stretch_width",
        tools="pan,box_zoom,wheel_zoom,reset",
        toolbar_location="above",
        # Which drag does what is chosen in the page: on a phone it must scroll.
        active_drag=None,
        x_axis_type="log" if picture.x.is_log else "linear",
        y_axis_type="log" if picture.y.is_log else "linear",
        background_fill_color=None,
        border_fill_color=None,
        outline_line_color=None,
    )
    plot.toolbar.logo = None
    _set_axis(plot.xaxis, plot.x_range, picture.x, picture.coordinates(is_x=True))
    _set_axis(plot.yaxis, plot.y_range, picture.y, picture.coordinates(is_x=False))
    drawn = [*_lines(plot, picture), *_boxes(plot, picture)]
    _mark(plot, picture)
    _name(plot, drawn)
    document = Document()
    document.add_root(plot)
    found = json.dumps(document.to_json(deferred=False), separators=(",", ":"), ensure_ascii=False)
    ids: dict[str, str] = {}
    # Bokeh counts its ids from the start of the process, so that the second page of one would be another.
    named = _ID.sub(lambda match: f'"{ids.setdefault(match[1], f"p{1000 + len(ids)}")}"', found)
    return named.replace("</", "<\\/")


def _set_axis(axis: Any, extent: Any, spec: PlotAxis, drawn: list[float]) -> None:
    from bokeh.models import FixedTicker, NumeralTickFormatter, PrintfTickFormatter

    axis.axis_label = spec.heading
    axis.axis_label_text_font_style = "normal"
    if spec.low is not None:
        extent.start = spec.low
    if spec.high is not None:
        extent.end = spec.high
    if spec.ticks:
        axis.ticker = FixedTicker(ticks=[at for at, _ in spec.ticks])
        axis.major_label_overrides = dict(spec.ticks)
    elif spec.is_log:
        # Bokeh's own leave most of an axis of one to two decades without a number.
        axis.ticker = FixedTicker(ticks=log_ticks([value for value in drawn if value > 0]))
        axis.formatter = PrintfTickFormatter(format="%g")
    else:
        axis.formatter = NumeralTickFormatter(format="0,0.[000]")


def log_ticks(values: list[float]) -> list[float]:
    """Return ticks for a logarithmic axis of `values`: 1, 2 and 5 of each decade, of many decades the powers alone."""
    if not values:
        return []
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    steps = (1, 2, 5) if last - first <= _MANY_DECADES else (1,)
    return [step * 10.0**power for power in range(first, last + 1) for step in steps]


def _lines(plot: Any, picture: Picture) -> list[tuple[str, list[Any]]]:
    from bokeh.models import ColumnDataSource

    found = []
    for line in picture.lines:
        columns: dict[str, list[Any]] = {"x": line.x, "y": line.y}
        if picture.x.is_percentiles:
            columns["q"] = [f"{100 * (1 - 1 / at):.6g}" for at in line.x]
        if line.texts is not None:
            columns["text"] = line.texts
        source = ColumnDataSource(data=columns)
        style = {"line_color": _COLOURS[line.colour], "line_dash": _DASHES[line.colour], "line_width": 2}
        parts = [plot.line("x", "y", source=source, name=line.label, **style)] if line.is_joined else []
        if picture.has_points:
            size = 4 if line.is_joined else 7
            parts.append(plot.scatter("x", "y", source=source, size=size, color=_COLOURS[line.colour], name=line.label))
        x = "@q" if picture.x.is_percentiles else "@x{%.5g}"
        told = [] if line.texts is None else [("", "@text")]
        _hover(plot, parts[0], [(picture.x, x), (picture.y, "@y{%.5g}")], ("@x", "@y"), told)
        found.append((line.label, parts))
    return found


def _boxes(plot: Any, picture: Picture) -> list[tuple[str, list[Any]]]:
    from bokeh.models import ColumnDataSource

    found = []
    for boxes in picture.boxes:
        sides = {name: getattr(boxes, name) for name in ("left", "right", "bottom", "top")}
        columns: dict[str, list[Any]] = {**sides, "alpha": boxes.alpha}
        source = ColumnDataSource(data=columns if boxes.texts is None else columns | {"text": boxes.texts})
        part = plot.quad(
            **{name: name for name in sides}, source=source, fill_alpha="alpha", line_color=None,
            fill_color=_COLOURS[boxes.colour], name=boxes.label,
        )  # fmt: skip
        y = "@top{%.5g}" if not any(boxes.bottom) else "@bottom{%.5g} … @top{%.5g}"
        shown = [(picture.x, "@left{%.5g} … @right{%.5g}")] + ([] if picture.y.ticks else [(picture.y, y)])
        _hover(plot, part, shown if boxes.texts is None else [], ("@left", "@right", "@bottom", "@top"), _told(boxes))
        _write_in(plot, boxes)
        found.append((boxes.label, [part]))
    return found


def _told(boxes: PlotBoxes) -> list[tuple[str, str]]:
    return [] if boxes.texts is None else [("", "@text")]


def _write_in(plot: Any, boxes: PlotBoxes) -> None:
    """Write into each box what stands there, as labels, which take their colour from the page."""
    from bokeh.models.annotations import Label

    centred: dict[str, Any] = {"text_align": "center", "text_baseline": "middle", "text_font_size": "11px"}
    corners = zip(boxes.left, boxes.right, boxes.bottom, boxes.top, boxes.texts or [], strict=False)
    for left, right, bottom, top, text in corners:
        plot.add_layout(Label(x=(left + right) / 2, y=(bottom + top) / 2, text=text, **centred))


def _hover(
    plot: Any,
    part: Any,
    shown: list[tuple[PlotAxis, str]],
    numbers: tuple[str, ...],
    more: list[tuple[str, str]] | None = None,
) -> None:
    from bokeh.models import HoverTool

    told = [*(more or []), *((axis.title, f"{value} {axis.unit}".rstrip()) for axis, value in shown)]
    kinds: Any = dict.fromkeys(numbers, "printf")
    tool = HoverTool(renderers=[part], tooltips=[("", "$name"), *told], formatters=kinds, visible=False)
    plot.add_tools(tool)


def _mark(plot: Any, picture: Picture) -> None:
    from bokeh.models.annotations import Label, Span

    drawn = picture.coordinates(is_x=True)
    first, last = (min(drawn), max(drawn)) if drawn else (0.0, 0.0)
    middle = math.sqrt(first * last) if picture.x.is_log else (first + last) / 2
    for row, (at, label) in enumerate(picture.marks):
        plot.add_layout(Span(location=at, dimension="height", line_color="#808890", line_dash="dashed", line_width=1.5))
        # Towards the middle, so that the plot's edge cuts no label; on rows, so that marks close by do not overlap.
        side: dict[str, Any] = {"x_offset": -5, "text_align": "right"} if at > middle else {"x_offset": 5}
        y = 8 + _MARK_PIXELS * (row % _MARK_ROWS)
        plot.add_layout(Label(x=at, y=y, y_units="screen", text=label, text_font_size="12px", **side))


def _name(plot: Any, drawn: list[tuple[str, list[Any]]]) -> None:
    from bokeh.models.annotations import Legend, LegendItem

    if len(drawn) < 2:  # noqa: PLR2004 - one needs no name
        return
    widest = max(len(label) for label, _ in drawn)
    columns = max(1, _LEGEND_PIXELS // (_SAMPLE_PIXELS + widest * _LETTER_PIXELS))
    # Else what the legend takes would be the plot's.
    plot.height = HEIGHT_PIXELS + _ROW_PIXELS * (-(-len(drawn) // columns) - 1)
    style: dict[str, Any] = {"label_text_font_size": "12px", "margin": 0, "padding": 2, "spacing": 4, "ncols": columns}
    style |= {"border_line_color": None, "background_fill_color": None, "label_text_color": "#75808c"}
    items = [LegendItem(label=label, renderers=parts) for label, parts in drawn]
    legend = Legend(items=items, click_policy="hide", orientation="horizontal", **style)
    plot.add_layout(legend, "above")
