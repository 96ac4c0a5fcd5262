"""Documents as one HTML page: their tables, and their charts for the screen and for paper.

The page needs no network. Each chart has two forms with equal numbers: a Bokeh figure for the
screen (live_figure.py), and an SVG (svg_figure.py) for paper and until the script has run.
"""

from __future__ import annotations

from html import escape
from importlib import resources

from kvtrace.core.document import document as doc
from kvtrace.core.document.explorer import explorer_html
from kvtrace.core.document.live_figure import build_live_figure
from kvtrace.core.document.picture import build_picture
from kvtrace.core.document.svg_figure import draw_svg
from kvtrace.core.errors import ProbeUnavailable, how_to_add
from kvtrace.core.units import counted, printable

LONG_ROWS = 10
"""Tables with charts and with more rows than this are folded."""
_MAX_HALF_COLUMNS = 5
"""Tables with more columns than this take the whole width of a page."""
_VERDICTS = {"pass": "pass", "fail": "fail", "FAIL": "fail"}
"""CSS class by verdict."""
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
)
"""Content security policy: the browser lets the page load nothing from a network."""
_UNITS = "Units are decimal: 1 GB is 10⁹ bytes, as in GB/s. A dash is what was not measured."


def html_page(documents: list[doc.Document], made_by: str) -> str:
    """Return the page; `made_by` says which program wrote it.

    ProbeUnavailable if a library that draws charts is missing.
    """
    charts = _Charts()
    articles = [_article(document, f"d{index}", charts) for index, document in enumerate(documents)]
    body = "\n".join(articles)
    if any(document.explorer is not None for document in documents):
        body += f"\n<script>{_resource('explorer.js')}</script>"
    first = documents[0]
    headings = [first.about or first.name, first.headline]
    title = _plain(": ".join(heading for heading in headings if heading))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>\n{_resource('report.css')}</style>\n"
        f"</head>\n<body>\n{body}\n"
        f"<footer>{_plain(made_by)}. {_UNITS}</footer>\n{charts.scripts()}</body>\n</html>\n"
    )


def _resource(name: str) -> str:
    """Return the text of a file that lies beside this module."""
    return resources.files("kvtrace.core.document").joinpath(name).read_text(encoding="utf-8")


def _plain(text: str) -> str:
    """Return `text` so that a browser shows it literally."""
    return escape(printable(text))


class _Charts:
    """The page's charts, numbered in the order in which they are added."""

    def __init__(self) -> None:
        self._live_figures: dict[str, str] = {}
        """The JSON of each Bokeh figure, by the id of its element."""

    def add(self, chart: doc.Chart, *, has_title: bool) -> str:
        """Add `chart` to the page and return its HTML figure."""
        number = len(self._live_figures) + 1
        picture = build_picture(chart)
        try:
            live_figure = build_live_figure(picture)
            svg = draw_svg(picture, number)
        except ImportError as error:
            library = (error.name or "").partition(".")[0]
            raise ProbeUnavailable(
                f"an HTML report needs {library}: {how_to_add('plot')}"
            ) from None
        self._live_figures[f"f{number}"] = live_figure
        title = f"<figcaption>{_plain(chart.title)}</figcaption>" if has_title else ""
        return (
            f'<figure>{title}<div class="live" id="f{number}"></div>'
            f'<div class="still">{svg}</div></figure>'
        )

    def scripts(self) -> str:
        """Return the scripts that draw the Bokeh figures; empty without charts.

        Bokeh's own library is included, so that the page needs no network.
        """
        if not self._live_figures:
            return ""
        from bokeh.resources import Resources

        figures = ",\n".join(f'"{name}":{json}' for name, json in self._live_figures.items())
        library = "\n".join(Resources(mode="inline", components=["bokeh"]).js_raw[:1])
        return (
            f'<script type="application/json" id="charts">{{{figures}}}</script>\n'
            f"<script>{library}</script>\n<script>{_resource('report.js')}</script>\n"
        )


def _article(document: doc.Document, anchor: str, charts: _Charts) -> str:
    """Return a document as an article with the id `anchor`.

    Headline, subject, highlights, warnings and the first pictures come first, then the chapters.
    Documents after the first are folded: they are its context.
    """
    pictures = "".join(charts.add(chart, has_title=True) for chart in document.pictures)
    chapters = [
        (f"{anchor}c{index}", chapter)
        for index, chapter in enumerate(document.chapters)
        if chapter.tables
    ]
    content = ""
    if document.subject:
        items = "".join(f"<li>{_plain(line)}</li>" for line in document.subject)
        content += f'<ul class="subject">{items}</ul>\n'
    content += _highlights(document) + _warnings_and_notes(document)
    if document.explorer is not None:
        content += explorer_html(document.explorer)
    if pictures:
        content += f"<div class=charts>{pictures}</div>"
    content += _navigation(chapters)
    content += "\n".join(_chapter(chapter, name, charts) for name, chapter in chapters) + "\n"
    title = f"<h1>{_plain(document.about or document.name)}</h1>\n"
    if document.about:
        title = f'<p class="name">{_plain(document.name)}</p> {title}'
    title += f'<p class="headline">{_plain(document.headline)}</p>\n'
    if anchor == "d0":
        return f'<article id="{anchor}">\n{title}{content}</article>'
    return (
        f'<article id="{anchor}">\n<details class="folded"><summary>{title}</summary>\n'
        f"{content}</details></article>"
    )


def _navigation(chapters: list[tuple[str, doc.Chapter]]) -> str:
    """Return links to the chapters that have a title and are not folded, if there are several."""
    links = [
        f'<li><a href="#{anchor}">{_plain(chapter.title)}</a></li>'
        for anchor, chapter in chapters
        if chapter.title and not chapter.is_folded
    ]
    return f"<nav><ul>{''.join(links)}</ul></nav>\n" if len(links) > 1 else ""


def _warnings_and_notes(document: doc.Document) -> str:
    """Return the warnings, and the notes folded below them."""
    content = ""
    if document.warnings:
        warnings = "".join(f"<li>{_plain(warning)}</li>" for warning in document.warnings)
        content += f'<ul class="warning" role="alert">{warnings}</ul>\n'
    if document.notes:
        notes = "".join(f"<li>{_plain(note)}</li>" for note in document.notes)
        content += (
            f"<details><summary>{counted(len(document.notes), 'note')} on how this was made and"
            f' measured</summary><ul class="notes">{notes}</ul></details>\n'
        )
    return content


def _highlights(document: doc.Document) -> str:
    """Return the figures that a reader looks for first, as tiles."""
    tiles = []
    for highlight in document.highlights:
        value = _plain(doc.show(highlight.value, highlight.unit))
        tooltip = _raw_value_tooltip(highlight.value, highlight.unit)
        detail = f"<dd class=detail>{_plain(highlight.detail)}</dd>" if highlight.detail else ""
        tiles.append(
            f"<div><dt>{_plain(highlight.label)}</dt><dd{tooltip}>{value}</dd>{detail}</div>"
        )
    return f'<dl class="highlights">{"".join(tiles)}</dl>\n' if tiles else ""


def _chapter(chapter: doc.Chapter, anchor: str, charts: _Charts) -> str:
    """Return the tables and notes of a chapter below its title."""
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
    """Return a table with its title, charts and note."""
    title = f"<h3>{_plain(table.title)}</h3>\n" if table.title else ""
    figures = "".join(charts.add(chart, has_title=len(table.charts) > 1) for chart in table.charts)
    if figures:
        figures = f'<div class="charts">{figures}</div>'
    note = f'<p class="note">{_plain(table.note)}</p>' if table.note else ""
    rows = _table(table) if table.rows else '<p class="note">None.</p>'
    is_folded = len(table.rows) > LONG_ROWS and bool(table.charts) and not table.is_answer
    if is_folded:
        row_count = counted(len(table.rows), "row")
        rows = f"<details><summary>Numbers: {row_count}</summary>{rows}</details>"
    is_narrow = is_folded or len(table.columns) <= _MAX_HALF_COLUMNS
    css_class = ' class="half"' if len(table.charts) == 1 and is_narrow else ""
    return f"<section{css_class}>{title}{figures}{note}{rows}</section>"


def _raw_value_tooltip(raw: object, unit: doc.Unit) -> str:
    """Return the attribute that shows the exact number under the pointer; empty for text."""
    return f' title="{raw} {unit}"' if unit and isinstance(raw, int | float) else ""


def _table(table: doc.ReportTable) -> str:
    """Return the rows of a table as an HTML table."""
    heads = "".join(
        f'<th scope="col"{_alignment(column.unit)}>{_plain(column.heading)}</th>'
        for column in table.columns
    )
    rows = []
    for row in table.rows:
        cells = []
        for value, column in zip(row, table.columns, strict=True):
            raw, unit = doc.raw_cell(value, column)
            css_class = _alignment(column.unit)
            if column.name == "verdict":
                css_class = f' class="verdict {_VERDICTS.get(str(raw), "")}"'
            text = _plain(doc.show(raw, unit))
            cells.append(f"<td{css_class}{_raw_value_tooltip(raw, unit)}>{text}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    css_class = ' class="facts"' if table.columns == doc.PARAMETERS else ""
    return (
        f'<div class="wide"><table{css_class}><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _alignment(unit: doc.Unit) -> str:
    """Return the class that aligns numbers to the right; empty for text."""
    return "" if unit is doc.Unit.TEXT else ' class="n"'
