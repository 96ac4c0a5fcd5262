"""A document as one HTML page.

Its tables, and its charts for a screen (Bokeh) and for paper (matplotlib, inline SVG).

The page needs no network. A chart's numbers are in the units that its axes name, for both forms;
the screen's has zoom, values under the pointer and series that a click on the legend hides.
"""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape as escaped
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from kvtrace import __version__
from kvtrace.core import bokeh
from kvtrace.core.document import document as doc
from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable, how_to_add
from kvtrace.core.files import aside, write_text
from kvtrace.core.json_types import JsonObject
from kvtrace.core.units import counted, printable

COLOURS: Final = ("read", "write", "delete", "fourth", "fifth", "sixth")
_KINDS = {"read": "read", "write": "write", "delete": "delete", "discard": "delete"}
"""Which colour a series has by its label; the others take their turn of all."""
_SCALES: Final[dict[doc.Unit, tuple[tuple[float, str], ...]]] = {
    doc.Unit.NS: ((1, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")),
    doc.Unit.BYTES: ((1, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"), (1e15, "PB")),
    doc.Unit.IO_BYTES: ((1, "B"), (1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB")),
    doc.Unit.BYTES_PER_S: ((1, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s")),
    doc.Unit.SHARE: ((0.01, "%"),),
    doc.Unit.PER_S: ((1, "1/s"),),
}
_TITLES = {
    doc.Unit.NS: "time",
    doc.Unit.BYTES: "size",
    doc.Unit.IO_BYTES: "size",
    doc.Unit.BYTES_PER_S: "bandwidth",
    doc.Unit.PER_S: "rate",
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
        sides = [
            (boxes.left, boxes.right) if is_x else (boxes.bottom, boxes.top) for boxes in self.boxes
        ]
        return [
            value for part in [*lines, *(side for pair in sides for side in pair)] for value in part
        ]


def picture_of(chart: doc.Chart) -> Picture:
    """Return `chart` as lines and boxes in the units of its axes."""
    shapes = {
        doc.ChartShape.BARS: _bars,
        doc.ChartShape.MAP: _on_names,
        doc.ChartShape.RANGES: _on_names,
    }
    shapes |= dict.fromkeys((doc.ChartShape.CELLS, doc.ChartShape.GRID), _cells)
    return shapes.get(chart.shape, _picture_lines)(chart)


def _picture_lines(chart: doc.Chart) -> Picture:
    xs = [x for series in chart.series for x in series.x]
    ys = [y for series in chart.series for y in series.y]
    is_tail, is_steps = chart.shape is doc.ChartShape.QUANTILES, chart.shape is doc.ChartShape.STEPS
    is_curve = chart.shape is doc.ChartShape.CURVE
    has_log_y = (is_tail or chart.shape is doc.ChartShape.LOAD) and _is_wide(ys, _WIDE)
    y_scale, y_unit = _scale(chart.y_unit, [*ys, chart.y_end], is_log=has_log_y)
    y = PlotAxis(
        chart.y_title or _TITLES.get(chart.y_unit, ""),
        y_unit,
        is_log=has_log_y,
        low=None if has_log_y or chart.shape is doc.ChartShape.POINTS else 0,
        high=(
            chart.y_end / y_scale
            if chart.y_end
            else 100.0
            if is_curve and chart.y_unit is doc.Unit.SHARE
            else None
        ),
    )
    if is_tail:
        # Each further nine takes the same room: a linear axis hides the tail.
        end, x_scale = 1 / (1 - max(xs, default=0.0)), 1.0
        nines = tuple((at, name) for at, name in _TAILS if at <= end * 1.001)
        # 1 / (1 - 0.999) is a little under 1000, and an axis draws no tick beyond its end.
        x = PlotAxis(
            "percentile",
            "",
            True,
            nines,
            low=1,
            high=max(end, nines[-1][0], 2),
            is_percentiles=True,
        )
    else:
        has_log_x = (is_curve and min(xs, default=0) > 0) or (
            chart.shape in (doc.ChartShape.LOAD, doc.ChartShape.POINTS)
            and _is_wide(xs, _WIDE_LOADS)
        )
        x_scale, unit = _scale(chart.x_unit, [*xs, chart.x_end], is_log=has_log_x)
        ends = (0.0, chart.x_end / x_scale) if chart.x_end else (None, None)
        ticks = _doubling_ticks(xs, is_log=has_log_x) if chart.shape is doc.ChartShape.LOAD else ()
        x = PlotAxis(chart.x_title or _TITLES.get(chart.x_unit, ""), unit, has_log_x, ticks, *ends)
    lines = []
    for series, colour in _coloured(chart):
        at, heights = [1 / (1 - q) for q in series.x] if is_tail else series.x, series.y
        if is_steps:
            at = [edge for start in at for edge in (start, start + chart.x_step)]
            heights = [height for height in heights for _ in range(2)]
        lines.append(
            PlotLine(
                *(
                    series.label,
                    colour,
                    _round(v / x_scale for v in at),
                    _round(v / y_scale for v in heights),
                ),
                *(series.texts, series.is_joined),
            )
        )
    marks = tuple((at / x_scale, label) for at, label in chart.marks)
    return Picture(chart.title, x, y, lines, marks=marks, has_points=not is_steps)


def _doubling_ticks(loads: Sequence[float], *, is_log: bool) -> tuple[tuple[float, str], ...]:
    """Return ticks of what is doubled, loads or sizes of I/Os.

    Powers of two, or of a narrow range whole numbers.

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


def _bars(chart: doc.Chart) -> Picture:
    edges = [edge for series in chart.series for x in series.x for edge in (x, 2 * x)]
    scale, unit = _scale(chart.x_unit, edges, is_log=True)
    count = len(chart.series)
    boxes = []
    for at, (series, colour) in enumerate(_coloured(chart)):
        # Side by side within their power of two.
        left = [x / scale * 2 ** (0.05 + 0.9 * at / count) for x in series.x]
        right = [x / scale * 2 ** (0.05 + 0.9 * (at + 1) / count) for x in series.x]
        zero, solid = [0.0] * len(left), [1.0] * len(left)
        boxes.append(
            PlotBoxes(
                series.label, colour, _round(left), _round(right), zero, list(series.y), solid
            )
        )
    title = chart.x_title or _TITLES.get(chart.x_unit, "")
    ticks = (
        _doubling_ticks([edge / scale for edge in edges], is_log=True)
        if chart.x_unit is doc.Unit.IO_BYTES
        else ()
    )
    x = PlotAxis(
        title, unit, is_log=True, ticks=ticks, low=min(edges) / scale, high=max(edges) / scale
    )
    return Picture(chart.title, x, PlotAxis(chart.y_title or "operations", "", low=0), boxes=boxes)


def _cells(chart: doc.Chart) -> Picture:
    ((series, colour),) = _coloured(chart)
    is_grid = chart.shape is doc.ChartShape.GRID
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
    low = min(series.y) / y_scale
    high = (chart.y_end or max(tops)) / y_scale
    x = PlotAxis(
        chart.x_title or "time",
        x_unit,
        low=0.0 if chart.x_end else min(boxes.left),
        high=x_end / x_scale,
    )
    y = PlotAxis(chart.y_title or _TITLES.get(chart.y_unit, ""), y_unit, not is_grid, (), low, high)
    return Picture(chart.title, x, y, boxes=[boxes])


def _on_names(chart: doc.Chart) -> Picture:
    """Return a map, whose axes are both closed sets, or ranges, one for each of a closed set."""
    ((series, colour),) = _coloured(chart)
    is_map, weight = chart.shape is doc.ChartShape.MAP, series.weight or []
    ends, inset = ([x + 1 for x in series.x], 0.0) if is_map else (weight, 0.2)
    scale, unit = (1.0, "") if is_map else _scale(chart.x_unit, [*series.x, *ends], is_log=False)
    boxes = PlotBoxes(
        *(
            series.label,
            colour,
            _round(x / scale for x in series.x),
            _round(x / scale for x in ends),
        ),
        bottom=[y + inset for y in series.y],
        top=[y + 1 - inset for y in series.y],
        alpha=[round(0.05 + 0.5 * dark, 3) for dark in weight] if is_map else [0.8] * len(series.x),
        texts=series.texts,
    )
    x = _named_axis(chart.x_title, chart.x_names) if is_map else PlotAxis(chart.x_title, unit)
    return Picture(chart.title, x, _named_axis(chart.y_title, chart.y_names), boxes=[boxes])


def _named_axis(title: str, names: Sequence[str]) -> PlotAxis:
    """Return the axis of a closed set, the first of which lies from 0 to 1."""
    ticks = tuple((at + 0.5, name) for at, name in enumerate(names))
    return PlotAxis(title, "", ticks=ticks, low=0.0, high=float(len(names)))


def _scale(unit: doc.Unit, values: Sequence[float], *, is_log: bool) -> tuple[float, str]:
    """Return by how much an axis of `values` is divided, and its unit.

    Of the middle of a logarithmic one.
    """
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


def _coloured(chart: doc.Chart) -> list[tuple[doc.Series, str]]:
    """Return each series with the name of its colour: its kind's, or one of its own."""
    if all(series.label in _KINDS for series in chart.series):
        return [(series, _KINDS[series.label]) for series in chart.series]
    places = [
        at if series.colour is None else series.colour for at, series in enumerate(chart.series)
    ]
    return [
        (series, COLOURS[place % len(COLOURS)])
        for series, place in zip(chart.series, places, strict=True)
    ]


LONG_ROWS, _HALF = 10, 5
"""Tables with more rows are folded until asked for.

Those with more columns take more than half of a page.
"""
_VERDICTS = {"pass": "pass", "fail": "fail", "FAIL": "fail"}
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""A page that a colleague opens asks nothing of a network, whatever is in it.

The browser holds it to that.
"""
_UNITS = "Units are decimal: 1 GB is 10⁹ bytes, as in GB/s. A dash is what was not measured."


class _Charts:
    """The page's charts: each gets a number, its SVG, and its live form."""

    def __init__(self) -> None:
        self._live: dict[str, str] = {}

    def add(self, chart: doc.Chart, *, has_title: bool) -> str:
        """Return the figure of `chart`."""
        name, picture = f"f{len(self._live) + 1}", picture_of(chart)
        try:
            self._live[name], still = live_figure(picture), draw(picture, len(self._live) + 1)
        except ImportError as error:
            library = (error.name or "").partition(".")[0]
            raise ProbeUnavailable(
                f"an HTML report needs {library}: {how_to_add('plot')}"
            ) from None
        title = f"<figcaption>{_plain(chart.title)}</figcaption>" if has_title else ""
        return (
            f'<figure>{title}<div class="live" id="{name}"></div><div'
            f' class="still">{still}</div></figure>'
        )

    def scripts(self) -> str:
        """Return what draws the live forms, Bokeh's own script and ours, without a network.

        Nothing without charts.
        """
        if not self._live:
            return ""
        from bokeh.resources import Resources

        found = ",\n".join(f'"{name}":{live}' for name, live in self._live.items())
        own = (
            resources.files("kvtrace.core.document")
            .joinpath("report.js")
            .read_text(encoding="utf-8")
        )
        carried = "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw[:1])
        charts = f'<script type="application/json" id="charts">{{{found}}}</script>'
        return f"{charts}\n<script>{carried}</script>\n<script>{own}</script>\n"


def html_page(documents: list[doc.Document], made_by: str) -> str:
    """Return the page; `made_by` says which program wrote it.

    ProbeUnavailable if a library that draws charts is missing.
    """
    style = (
        resources.files("kvtrace.core.document").joinpath("report.css").read_text(encoding="utf-8")
    )
    charts = _Charts()
    body = "\n".join(_document(document, f"d{at}", charts) for at, document in enumerate(documents))
    first = documents[0]
    title = _plain(": ".join(part for part in (first.about or first.name, first.headline) if part))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}\n"
        f"<footer>{_plain(made_by)}. {_UNITS}</footer>\n{charts.scripts()}</body>\n</html>\n"
    )


def _plain(text: str) -> str:
    return escaped(printable(text))


def _document(document: doc.Document, anchor: str, charts: _Charts) -> str:
    """Return an article.

    What was found, on what, the figures that matter, what to doubt; then the chapters.

    Those behind the first are folded: they are its context.
    """
    drawn = "".join(charts.add(chart, has_title=True) for chart in document.pictures)
    chapters = [
        (f"{anchor}c{at}", chapter)
        for at, chapter in enumerate(document.chapters)
        if chapter.tables
    ]
    body = "\n".join(_chapter(chapter, name, charts) for name, chapter in chapters)
    subject = "".join(f"<li>{_plain(line)}</li>" for line in document.subject)
    on_what = f'<ul class="subject">{subject}</ul>\n' if subject else ""
    name = f'<p class="name">{_plain(document.name)}</p> ' if document.about else ""
    title = f"{name}<h1>{_plain(document.about or document.name)}</h1>\n"
    title += f'<p class="headline">{_plain(document.headline)}</p>\n'
    shown = [(at, of.title) for at, of in chapters if of.title and not of.is_folded]
    links = "".join(f'<li><a href="#{at}">{_plain(title)}</a></li>' for at, title in shown)
    nav = f"<nav><ul>{links}</ul></nav>\n" if len(shown) > 1 else ""
    rest = (
        f"{on_what}{_highlights(document)}{_doubts(document)}{f'<div class=charts>{drawn}</div>' if drawn else ''}"
        f"{nav}{body}\n"
    )
    if anchor != "d0":
        rest = f'<details class="folded"><summary>{title}</summary>\n{rest}</details>'
        title = ""
    return f'<article id="{anchor}">\n{title}{rest}</article>'


def _doubts(document: doc.Document) -> str:
    warned = "".join(f"<li>{_plain(warning)}</li>" for warning in document.warnings)
    warning = f'<ul class="warning" role="alert">{warned}</ul>\n' if warned else ""
    notes = "".join(f"<li>{_plain(note)}</li>" for note in document.notes)
    if not notes:
        return warning
    summary = (
        f"<summary>{counted(len(document.notes), 'note')} on how this was made and"
        " measured</summary>"
    )
    return f'{warning}<details>{summary}<ul class="notes">{notes}</ul></details>\n'


def _highlights(document: doc.Document) -> str:
    tiles = "".join(
        f"<div><dt>{_plain(h.label)}</dt><dd{_exact(h.value, h.unit)}>{_plain(doc.show(h.value, h.unit))}</dd>"
        f"{f'<dd class=detail>{_plain(h.detail)}</dd>' if h.detail else ''}</div>"
        for h in document.highlights
    )
    return f'<dl class="highlights">{tiles}</dl>\n' if tiles else ""


def _chapter(chapter: doc.Chapter, anchor: str, charts: _Charts) -> str:
    tables = "\n".join(_section(table, charts) for table in chapter.tables)
    notes = "".join(f'\n<p class="note">{_plain(note)}</p>' for note in chapter.notes)
    title = f"<h2>{_plain(chapter.title)}</h2>" if chapter.title else ""
    if chapter.is_folded:
        return (
            f'<details class="folded" id="{anchor}"><summary>{title}</summary>\n'
            f'<div class="chapter">{tables}{notes}\n</div></details>'
        )
    return f'<div class="chapter" id="{anchor}">{title}\n{tables}{notes}\n</div>'


def _section(table: doc.ReportTable, charts: _Charts) -> str:
    figures = "".join(charts.add(chart, has_title=len(table.charts) > 1) for chart in table.charts)
    drawn = f'<div class="charts">{figures}</div>' if figures else ""
    note = f'<p class="note">{_plain(table.note)}</p>' if table.note else ""
    numbered = _table(table) if table.rows else '<p class="note">None.</p>'
    is_folded = len(table.rows) > LONG_ROWS and bool(table.charts) and not table.is_answer
    if is_folded:
        numbered = (
            "<details><summary>Numbers:"
            f" {counted(len(table.rows), 'row')}</summary>{numbered}</details>"
        )
    kind = (
        ' class="half"'
        if len(table.charts) == 1 and (is_folded or len(table.columns) <= _HALF)
        else ""
    )
    title = f"<h3>{_plain(table.title)}</h3>\n" if table.title else ""
    return f"<section{kind}>{title}{drawn}{note}{numbered}</section>"


def _exact(raw: object, unit: doc.Unit) -> str:
    return f' title="{raw} {unit}"' if unit and isinstance(raw, int | float) else ""


def _table(table: doc.ReportTable) -> str:
    head = "".join(
        f'<th scope="col"{_side(c.unit)}>{_plain(c.heading)}</th>' for c in table.columns
    )
    rows = []
    for row in table.rows:
        cells = []
        for value, column in zip(row, table.columns, strict=True):
            raw, unit = doc.raw_cell(value, column)
            kind = (
                f' class="verdict {_VERDICTS.get(str(raw), "")}"'
                if column.name == "verdict"
                else _side(column.unit)
            )
            cells.append(f"<td{kind}{_exact(raw, unit)}>{_plain(doc.show(raw, unit))}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    kind = ' class="facts"' if table.columns == doc.PARAMETERS else ""
    return (
        "<div"
        f' class="wide"><table{kind}><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _side(unit: doc.Unit) -> str:
    return "" if unit is doc.Unit.TEXT else ' class="n"'


SIZE_INCHES = (5.0, 2.7)
"""Small, so that its 9-point text stays readable across a phone."""
_INKS = {name: f"#01010{at}" for at, name in enumerate((*COLOURS, "ink", "faint"), 1)}
"""Stand-ins that no figure uses otherwise; the page's CSS variables take their place."""
_PAPER_DASHES = dict(zip(COLOURS, ("-", "--", ":", "-.", (0, (5, 1)), (0, (1, 1))), strict=True))
_PROLOGUE = re.compile(r"^.*?(?=<svg)", re.DOTALL)
_REMOVED = re.compile(
    r"<metadata>.*?</metadata>|<style .*?</style>| xmlns(:xlink)?=\"[^\"]*\"", re.DOTALL
)
_GROUP = re.compile(r'<g id="[a-zA-Z0-9_.]+">')
_SIZE = re.compile(r' (?:width|height)="[0-9.]+pt"')
_MAX_TICKS, _NARROW, _MANY_DECADES = 7, 100, 3


def draw(picture: Picture, number: int) -> str:
    """Return `picture` as an SVG element.

    `number` keeps its ids apart from those of the page's other charts.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"chart{number}", "font.size": 9}):
        figure = Figure(figsize=SIZE_INCHES)
        _draw(figure.add_axes(_place(picture)), picture, _INKS)
        target = io.StringIO()
        empty = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(target, format="svg", metadata=empty, transparent=True)
    svg = _GROUP.sub(
        "<g>", _SIZE.sub("", _REMOVED.sub("", _PROLOGUE.sub("", target.getvalue())), count=2)
    )
    for name, stand_in in _INKS.items():
        svg = svg.replace(stand_in, f"var(--{name})")
    label = picture.title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1).strip()


def _place(picture: Picture) -> tuple[float, float, float, float]:
    """Return left, bottom, width and height of the plot as shares of its figure, by how long its
    labels are, in points.

    matplotlib's own layouts draw each chart twice, and a page has dozens.
    """
    left = 26 + 5 * max([6, *(len(label) for _, label in picture.y.ticks)])
    # The legend of marks stands above, two names a row.
    rows = (
        -(-(len(picture.lines) + len(picture.boxes) + len(picture.marks)) // 2)
        if picture.marks
        else 0
    )
    width, height = (72 * inches for inches in SIZE_INCHES)
    return (
        left / width,
        34 / height,
        (width - left - 14) / width,
        (height - 42 - 14 * rows) / height,
    )


def _fill(axes: Any, picture: Picture, inks: Mapping[str, str]) -> None:
    from matplotlib.collections import PolyCollection

    for line in picture.lines:
        marker = {"marker": ".", "markersize": 3} if picture.has_points else {}
        dash = _PAPER_DASHES[line.colour] if line.is_joined else "none"
        style = {"color": inks[line.colour], "linestyle": dash, "linewidth": 1.4}
        axes.plot(line.x, line.y, label=line.label, **style, **marker)
    for boxes in picture.boxes:
        corners = zip(boxes.left, boxes.right, boxes.bottom, boxes.top, strict=True)
        drawn = [
            [(left, low), (right, low), (right, high), (left, high)]
            for left, right, low, high in corners
        ]
        colours = [(inks[boxes.colour], alpha) for alpha in boxes.alpha]
        axes.add_collection(
            PolyCollection(drawn, facecolors=colours, edgecolors="none", label=boxes.label)
        )
        for ((left, low), _, (right, high), _), text in zip(drawn, boxes.texts or [], strict=False):
            style = {"color": inks["ink"], "fontsize": 7, "ha": "center", "va": "center"}
            axes.text((left + right) / 2, (low + high) / 2, text, **style)
    axes.autoscale_view()
    for x, label in picture.marks:
        axes.axvline(x, color=inks["ink"], linewidth=1, linestyle="--", label=label)


def _draw(axes: Any, picture: Picture, inks: Mapping[str, str]) -> None:
    _fill(axes, picture, inks)
    ink = inks["ink"]
    axes.tick_params(colors=ink, which="both", labelcolor=ink)
    axes.grid(visible=True, color=inks["faint"], linewidth=0.6)
    axes.set_axisbelow(True)
    for name, spine in axes.spines.items():
        spine.set_color(ink)
        spine.set_visible(name in ("left", "bottom"))
    for axis, spec in ((axes.xaxis, picture.x), (axes.yaxis, picture.y)):
        axis.set_label_text(spec.heading, color=ink)
        (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)(
            "log" if spec.is_log else "linear"
        )
        limit = axes.set_xlim if axis is axes.xaxis else axes.set_ylim
        limit(spec.low, spec.high)
        _tick(axis, spec)
    if len(picture.lines) + len(picture.boxes) > 1 or picture.marks:
        # Lines of marks go through the whole plot, so that no corner of it is free: the legend
        # stands above.
        above: JsonObject = (
            {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 2} if picture.marks else {}
        )
        axes.legend(frameon=False, labelcolor=ink, fontsize=8, **above)


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
        axis.set_major_locator(
            LogLocator(subs=(1, 2, 5) if high < _NARROW * low else (1,), numticks=_MAX_TICKS)
        )
        axis.set_minor_locator(NullLocator())
    else:
        axis.set_major_locator(MaxNLocator(_MAX_TICKS - 1))
    axis.set_major_formatter(FuncFormatter(lambda value, _at: bare(value)))


def bare(value: float) -> str:
    """Return a number of an axis: thousands separated, no zeros that say nothing."""
    return f"{value:,.0f}" if abs(value) >= _NARROW else f"{value:g}"


HEIGHT_PIXELS = 300
# Of middle brightness, for what a canvas draws is read on white and on black.
_SCREEN_COLOURS = {
    "read": "#2f80d0",
    "write": "#d9661f",
    "delete": "#7f8a96",
    "fourth": "#3f9a4a",
    "fifth": "#9a62d0",
    "sixth": "#d0437a",
}
_SCREEN_DASHES = dict(
    zip(_SCREEN_COLOURS, ("solid", "dashed", "dotted", "dotdash", [9, 3], [2, 2]), strict=True)
)
_MARK_PIXELS, _MARK_ROWS = 16, 6
"""Of labels of marks: how high a row is, and after how many the lowest is taken again."""
_ID = re.compile(r'"(p\d+)"')
_LEGEND_PIXELS, _SAMPLE_PIXELS, _LETTER_PIXELS, _ROW_PIXELS = 330, 40, 7, 20
"""Of a legend: its width, so that a phone shows it whole, and what its parts take."""


def live_figure(picture: Picture) -> str:
    """Return `picture` as the JSON of a Bokeh document of one figure, the same text each time."""
    from bokeh.document import Document
    from bokeh.plotting import figure

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
    # Bokeh counts its ids from the start of the process, so that the second page of one would be
    # another.
    named = _ID.sub(lambda match: f'"{ids.setdefault(match[1], f"p{1000 + len(ids)}")}"', found)
    return named.replace("</", "<\\/")


def _set_axis(axis: Any, extent: Any, spec: PlotAxis, drawn: list[float]) -> None:
    axis.axis_label = spec.heading
    axis.axis_label_text_font_style = "normal"
    if spec.low is not None:
        extent.start = spec.low
    if spec.high is not None:
        extent.end = spec.high
    if spec.ticks:
        axis.ticker = bokeh.FixedTicker(ticks=[at for at, _ in spec.ticks])
        axis.major_label_overrides = dict(spec.ticks)
    elif spec.is_log:
        # Bokeh's own leave most of an axis of one to two decades without a number.
        axis.ticker = bokeh.FixedTicker(ticks=log_ticks([value for value in drawn if value > 0]))
        axis.formatter = bokeh.PrintfTickFormatter(format="%g")
    else:
        axis.formatter = bokeh.NumeralTickFormatter(format="0,0.[000]")


def log_ticks(values: list[float]) -> list[float]:
    """Return ticks for a logarithmic axis of `values`.

    1, 2 and 5 of each decade, of many decades the powers alone.
    """
    if not values:
        return []
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    steps = (1, 2, 5) if last - first <= _MANY_DECADES else (1,)
    return [step * 10.0**power for power in range(first, last + 1) for step in steps]


def _lines(plot: Any, picture: Picture) -> list[tuple[str, list[Any]]]:
    found = []
    for line in picture.lines:
        columns: dict[str, list[Any]] = {"x": line.x, "y": line.y}
        if picture.x.is_percentiles:
            columns["q"] = [f"{100 * (1 - 1 / at):.6g}" for at in line.x]
        if line.texts is not None:
            columns["text"] = line.texts
        source = bokeh.ColumnDataSource(data=columns)
        style = {
            "line_color": _SCREEN_COLOURS[line.colour],
            "line_dash": _SCREEN_DASHES[line.colour],
            "line_width": 2,
        }
        parts = (
            [plot.line("x", "y", source=source, name=line.label, **style)] if line.is_joined else []
        )
        if picture.has_points:
            size = 4 if line.is_joined else 7
            parts.append(
                plot.scatter(
                    "x",
                    "y",
                    source=source,
                    size=size,
                    color=_SCREEN_COLOURS[line.colour],
                    name=line.label,
                )
            )
        x = "@q" if picture.x.is_percentiles else "@x{%.5g}"
        told = [] if line.texts is None else [("", "@text")]
        _hover(plot, parts[0], [(picture.x, x), (picture.y, "@y{%.5g}")], ("@x", "@y"), told)
        found.append((line.label, parts))
    return found


def _boxes(plot: Any, picture: Picture) -> list[tuple[str, list[Any]]]:
    centred: JsonObject = {
        "text_align": "center",
        "text_baseline": "middle",
        "text_font_size": "11px",
    }
    found = []
    for boxes in picture.boxes:
        sides = {name: getattr(boxes, name) for name in ("left", "right", "bottom", "top")}
        columns: dict[str, list[Any]] = {**sides, "alpha": boxes.alpha}
        source = bokeh.ColumnDataSource(
            data=columns if boxes.texts is None else columns | {"text": boxes.texts}
        )
        part = plot.quad(
            **{name: name for name in sides}, source=source, fill_alpha="alpha", line_color=None,
            fill_color=_SCREEN_COLOURS[boxes.colour], name=boxes.label,
        )  # fmt: skip
        y = "@top{%.5g}" if not any(boxes.bottom) else "@bottom{%.5g} … @top{%.5g}"
        shown = [(picture.x, "@left{%.5g} … @right{%.5g}")] + (
            [] if picture.y.ticks else [(picture.y, y)]
        )
        axes, told = (shown, []) if boxes.texts is None else ([], [("", "@text")])
        _hover(plot, part, axes, ("@left", "@right", "@bottom", "@top"), told)
        # Labels take their colour from the page.
        corners = zip(
            boxes.left, boxes.right, boxes.bottom, boxes.top, boxes.texts or [], strict=False
        )
        for left, right, bottom, top, text in corners:
            plot.add_layout(
                bokeh.Label(x=(left + right) / 2, y=(bottom + top) / 2, text=text, **centred)
            )
        found.append((boxes.label, [part]))
    return found


def _hover(
    plot: Any,
    part: Any,
    axes: list[tuple[PlotAxis, str]],
    numbers: tuple[str, ...],
    texts: list[tuple[str, str]],
) -> None:
    told = [
        ("", "$name"),
        *texts,
        *((axis.title, f"{value} {axis.unit}".rstrip()) for axis, value in axes),
    ]
    kinds: Any = dict.fromkeys(numbers, "printf")
    plot.add_tools(
        bokeh.HoverTool(renderers=[part], tooltips=told, formatters=kinds, visible=False)
    )


def _mark(plot: Any, picture: Picture) -> None:
    drawn = picture.coordinates(is_x=True)
    first, last = (min(drawn), max(drawn)) if drawn else (0.0, 0.0)
    middle = math.sqrt(first * last) if picture.x.is_log else (first + last) / 2
    for row, (at, label) in enumerate(picture.marks):
        plot.add_layout(
            bokeh.Span(
                location=at,
                dimension="height",
                line_color="#808890",
                line_dash="dashed",
                line_width=1.5,
            )
        )
        # Towards the middle, so that the plot's edge cuts no label; on rows, so that marks close by
        # do not overlap.
        side: JsonObject = (
            {"x_offset": -5, "text_align": "right"} if at > middle else {"x_offset": 5}
        )
        y = 8 + _MARK_PIXELS * (row % _MARK_ROWS)
        plot.add_layout(
            bokeh.Label(x=at, y=y, y_units="screen", text=label, text_font_size="12px", **side)
        )


def _name(plot: Any, drawn: list[tuple[str, list[Any]]]) -> None:
    if len(drawn) < 2:  # noqa: PLR2004 - one needs no name
        return
    widest = max(len(label) for label, _ in drawn)
    columns = max(1, _LEGEND_PIXELS // (_SAMPLE_PIXELS + widest * _LETTER_PIXELS))
    # Else what the legend takes would be the plot's.
    plot.height = HEIGHT_PIXELS + _ROW_PIXELS * (-(-len(drawn) // columns) - 1)
    style: JsonObject = {
        "label_text_font_size": "12px",
        "margin": 0,
        "padding": 2,
        "spacing": 4,
        "ncols": columns,
    }
    style |= {
        "border_line_color": None,
        "background_fill_color": None,
        "label_text_color": "#75808c",
    }
    items = [bokeh.LegendItem(label=label, renderers=parts) for label, parts in drawn]
    legend = bokeh.Legend(items=items, click_policy="hide", orientation="horizontal", **style)
    plot.add_layout(legend, "above")


SUFFIXES = (".html", ".svg", ".png", ".pdf")
_PRINTED = _SCREEN_COLOURS | {"ink": "black", "faint": "#d8d8d8"}
_DATES = {".svg": "Date", ".pdf": "CreationDate"}


def check_drawing(path: Path, flag: str = "--plot") -> None:
    """Raise unless something can be drawn to `path`, which `flag` names, before the work that it is
    to show.

    ConfigError for an unknown suffix, ProbeUnavailable if a library is missing that draws it,
    DeviceError without the folder.
    """
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{flag} {path}: name it *{', *'.join(SUFFIXES[:-1])} or *{SUFFIXES[-1]}")
    for library in ("matplotlib", "bokeh") if path.suffix == ".html" else ("matplotlib",):
        if find_spec(library) is None:
            raise ProbeUnavailable(f"{flag} needs {library}: {how_to_add('plot')}")
    if not path.parent.is_dir():
        raise DeviceError(f"{path.parent}: no such directory; create it first")


def write_drawing(path: Path, shown: doc.Document, argv: Sequence[str]) -> None:
    """Write `shown`, which `argv` made, to `path` as a page, or if that is no HTML its charts,
    below each other.
    """
    if path.suffix == ".html":
        write_text(path, html_page([shown], f"Made by {argv[0]} {__version__}: {' '.join(argv)}"))
        return
    import matplotlib as mpl
    from matplotlib.figure import Figure

    pictures = [
        picture_of(chart)
        for chapter in shown.chapters
        for table in chapter.tables
        for chart in table.charts
    ]
    # Ids and dates would differ from one drawing to the next.
    with mpl.rc_context({"svg.hashsalt": "kvtrace"}):
        figure = Figure(figsize=(8, 3.5 * max(1, len(pictures))), layout="constrained")
        figure.suptitle(shown.name)
        for number, picture in enumerate(pictures, 1):
            _draw(figure.add_subplot(len(pictures), 1, number), picture, _PRINTED)
        date = _DATES.get(path.suffix)
        with aside(path) as temporary:
            figure.savefig(
                temporary, format=path.suffix[1:], metadata={date: None} if date else None
            )
