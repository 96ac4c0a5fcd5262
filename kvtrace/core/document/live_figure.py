"""A picture as a Bokeh figure for the screen.

It zooms, shows values under the pointer, and hides a series when its name in the legend is clicked.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Final

from kvtrace.core import bokeh
from kvtrace.core.document.picture import Picture, PlotAxis, PlotBoxes, PlotLine
from kvtrace.core.json_types import JsonObject

HEIGHT_PIXELS = 300
SCREEN_COLOURS: Final = {
    "read": "#2f80d0",
    "write": "#d9661f",
    "delete": "#7f8a96",
    "fourth": "#3f9a4a",
    "fifth": "#9a62d0",
    "sixth": "#d0437a",
}
"""Colours of middle brightness: the canvas is read on a white and on a black page."""
_DASHES = dict(
    zip(SCREEN_COLOURS, ("solid", "dashed", "dotted", "dotdash", [9, 3], [2, 2]), strict=True)
)
_MARK_ROW_PIXELS = 16
"""Height of a row of labels of marks."""
_MARK_ROWS = 6
"""Number of rows of labels; the next label goes into the lowest row again."""
_BOKEH_ID = re.compile(r'"(p\d+)"')
_LEGEND_PIXELS = 330
"""Width of a legend, so that a phone shows all of it."""
_LEGEND_SAMPLE_PIXELS, _LEGEND_LETTER_PIXELS, _LEGEND_ROW_PIXELS = 40, 7, 20
_MANY_DECADES: Final = 3

Renderers = list[tuple[str, list[Any]]]
"""The name of each series in the legend, and the Bokeh renderers that draw it."""


def build_live_figure(picture: Picture) -> str:
    """Return `picture` as the JSON of a Bokeh document, equal for equal pictures."""
    from bokeh.document import Document
    from bokeh.plotting import figure

    plot = figure(
        height=HEIGHT_PIXELS,
        sizing_mode="stretch_width",
        tools="pan,box_zoom,wheel_zoom,reset",
        toolbar_location="above",
        # report.js chooses the tool that a drag starts: on a phone a drag must scroll the page.
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
    renderers: Renderers = []
    for line in picture.lines:
        renderers.append((line.legend or line.label, _draw_line(plot, picture, line)))
    for boxes in picture.boxes:
        renderers.append((boxes.label, [_draw_boxes(plot, picture, boxes)]))
    _draw_marks(plot, picture)
    _add_legend(plot, renderers)
    document = Document()
    document.add_root(plot)
    encoded = json.dumps(
        document.to_json(deferred=False), separators=(",", ":"), ensure_ascii=False
    )
    return _renumber_ids(encoded).replace("</", "<\\/")


def _renumber_ids(encoded: str) -> str:
    """Return a Bokeh document with its ids renumbered from p1000.

    Bokeh counts ids from the start of the process, so that the second page that a process writes
    would differ from the first.
    """
    ids: dict[str, str] = {}
    for bokeh_id in _BOKEH_ID.findall(encoded):
        ids.setdefault(bokeh_id, f"p{1000 + len(ids)}")
    return _BOKEH_ID.sub(lambda match: f'"{ids[match[1]]}"', encoded)


def _set_axis(axis: Any, extent: Any, spec: PlotAxis, coordinates: list[float]) -> None:
    """Set heading, range and ticks of an axis, on which `coordinates` are drawn."""
    axis.axis_label = spec.heading
    axis.axis_label_text_font_style = "normal"
    if spec.low is not None:
        extent.start = spec.low
    if spec.high is not None:
        extent.end = spec.high
    if spec.ticks:
        axis.ticker = bokeh.FixedTicker(ticks=[position for position, _ in spec.ticks])
        axis.major_label_overrides = dict(spec.ticks)
    elif spec.is_log:
        # Bokeh's own ticks leave most of an axis of one to two decades without a number.
        positive = [value for value in coordinates if value > 0]
        axis.ticker = bokeh.FixedTicker(ticks=log_ticks(positive))
        axis.formatter = bokeh.PrintfTickFormatter(format="%g")
    else:
        axis.formatter = bokeh.NumeralTickFormatter(format="0,0.[000]")


def log_ticks(values: list[float]) -> list[float]:
    """Return ticks for a logarithmic axis of `values`.

    They are 1, 2 and 5 of each decade, or the powers of ten alone if there are many decades.
    """
    if not values:
        return []
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    steps = (1, 2, 5) if last - first <= _MANY_DECADES else (1,)
    return [step * 10.0**power for power in range(first, last + 1) for step in steps]


def _draw_line(plot: Any, picture: Picture, line: PlotLine) -> list[Any]:
    """Draw one line, its points, or both; return their renderers."""
    columns: dict[str, list[Any]] = {"x": line.x, "y": line.y}
    if picture.x.is_percentiles:
        columns["q"] = [f"{100 * (1 - 1 / x):.6g}" for x in line.x]
    if line.texts is not None:
        columns["text"] = line.texts
    source = bokeh.ColumnDataSource(data=columns)
    colour = SCREEN_COLOURS[line.colour]
    renderers = []
    if line.is_joined:
        style = {"line_color": colour, "line_dash": _DASHES[line.colour], "line_width": 2}
        renderers.append(plot.line("x", "y", source=source, name=line.label, **style))
    if picture.has_points:
        size = 4 if line.is_joined else 7
        renderers.append(
            plot.scatter("x", "y", source=source, size=size, color=colour, name=line.label)
        )
    x_format = "@q" if picture.x.is_percentiles else "@x{%.5g}"
    values = [(picture.x, x_format), (picture.y, "@y{%.5g}")]
    texts = [] if line.texts is None else [("", "@text")]
    _add_hover(plot, renderers[0], values, ("@x", "@y"), texts)
    return renderers


def _draw_boxes(plot: Any, picture: Picture, boxes: PlotBoxes) -> Any:
    """Draw rectangles and the texts in them; return the renderer of the rectangles."""
    columns: dict[str, list[Any]] = {
        "left": boxes.left,
        "right": boxes.right,
        "bottom": boxes.bottom,
        "top": boxes.top,
        "alpha": boxes.alpha,
    }
    if boxes.texts is not None:
        columns["text"] = boxes.texts
    renderer = plot.quad(
        left="left",
        right="right",
        bottom="bottom",
        top="top",
        source=bokeh.ColumnDataSource(data=columns),
        fill_alpha="alpha",
        line_color=None,
        fill_color=SCREEN_COLOURS[boxes.colour],
        name=boxes.label,
    )
    values: list[tuple[PlotAxis, str]] = []
    texts: list[tuple[str, str]] = []
    if boxes.texts is not None:
        texts = [("", "@text")]
    else:
        values.append((picture.x, "@left{%.5g} … @right{%.5g}"))
        if not picture.y.ticks:
            starts_above_zero = any(boxes.bottom)
            y_format = "@bottom{%.5g} … @top{%.5g}" if starts_above_zero else "@top{%.5g}"
            values.append((picture.y, y_format))
    _add_hover(plot, renderer, values, ("@left", "@right", "@bottom", "@top"), texts)
    # The page's style sheet gives labels their colour.
    style: JsonObject = {
        "text_align": "center",
        "text_baseline": "middle",
        "text_font_size": "11px",
    }
    sides = zip(boxes.left, boxes.right, boxes.bottom, boxes.top, boxes.texts or [], strict=False)
    for left, right, bottom, top, text in sides:
        plot.add_layout(bokeh.Label(x=(left + right) / 2, y=(bottom + top) / 2, text=text, **style))
    return renderer


def _add_hover(
    plot: Any,
    renderer: Any,
    values: list[tuple[PlotAxis, str]],
    numbers: tuple[str, ...],
    texts: list[tuple[str, str]],
) -> None:
    """Show a series' label, `texts` and `values` when the pointer is on `renderer`.

    `values` are format strings of the columns `numbers`, each with the axis that gives its unit.
    """
    tooltips = [
        ("", "$name"),
        *texts,
        *((axis.title, f"{value} {axis.unit}".rstrip()) for axis, value in values),
    ]
    formatters: Any = dict.fromkeys(numbers, "printf")
    plot.add_tools(
        bokeh.HoverTool(
            renderers=[renderer], tooltips=tooltips, formatters=formatters, visible=False
        )
    )


def _draw_marks(plot: Any, picture: Picture) -> None:
    """Draw the vertical lines of `picture` with their labels."""
    coordinates = picture.coordinates(is_x=True)
    first, last = (min(coordinates), max(coordinates)) if coordinates else (0.0, 0.0)
    middle = math.sqrt(first * last) if picture.x.is_log else (first + last) / 2
    for number, (x, label) in enumerate(picture.marks):
        plot.add_layout(
            bokeh.Span(
                location=x,
                dimension="height",
                line_color="#808890",
                line_dash="dashed",
                line_width=1.5,
            )
        )
        # A label extends towards the middle, so that the edge of the plot does not cut it. Rows
        # keep the labels of close marks apart.
        side: JsonObject = (
            {"x_offset": -5, "text_align": "right"} if x > middle else {"x_offset": 5}
        )
        y = 8 + _MARK_ROW_PIXELS * (number % _MARK_ROWS)
        plot.add_layout(
            bokeh.Label(x=x, y=y, y_units="screen", text=label, text_font_size="12px", **side)
        )


def _add_legend(plot: Any, renderers: Renderers) -> None:
    """Add the labels of the series above the plot, unless there is only one."""
    entries = {
        label: [part for name, series in renderers if name == label for part in series]
        for label, _ in renderers
    }
    if len(entries) < 2:  # noqa: PLR2004 - the title names a single series
        return
    longest_label = max(map(len, entries))
    label_pixels = _LEGEND_SAMPLE_PIXELS + longest_label * _LEGEND_LETTER_PIXELS
    columns = max(1, _LEGEND_PIXELS // label_pixels)
    rows = math.ceil(len(entries) / columns)
    # Without this, each further row of the legend would make the plot smaller.
    plot.height = HEIGHT_PIXELS + _LEGEND_ROW_PIXELS * (rows - 1)
    style: JsonObject = {
        "label_text_font_size": "12px",
        "margin": 0,
        "padding": 2,
        "spacing": 4,
        "ncols": columns,
        "border_line_color": None,
        "background_fill_color": None,
        "label_text_color": "#75808c",
    }
    items = [bokeh.LegendItem(label=label, renderers=series) for label, series in entries.items()]
    legend = bokeh.Legend(items=items, click_policy="hide", orientation="horizontal", **style)
    plot.add_layout(legend, "above")
