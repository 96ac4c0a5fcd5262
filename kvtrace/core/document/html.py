"""A report as one HTML file that needs no network: what was found first, charts above tables, light, dark, on paper."""

from __future__ import annotations

from html import escape as escaped
from importlib import resources
from typing import Any

from kvtrace.core.document.charts import draw
from kvtrace.core.document.document import (
    PARAMETERS,
    Chapter,
    Chart,
    Document,
    ReportTable,
    Unit,
    raw_cell,
    show,
)
from kvtrace.core.document.live import live_figure, live_script
from kvtrace.core.document.picture import picture_of
from kvtrace.core.units import printable

LONG_ROWS = 10
"""Tables with more rows are folded until asked for."""
_FEW_NOTES = 3
"""Notes that stand open; more are folded."""
_VERDICTS = {"pass": "pass", "fail": "fail", "FAIL": "fail"}
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""A page that a colleague opens asks nothing of a network, whatever is in it: the browser holds it to that."""
_UNITS = "Units are decimal: 1 GB is 10⁹ bytes, as in GB/s. A dash is what was not measured."


class _Charts:
    """The page's charts: each gets a number, its SVG, and its live form."""

    def __init__(self) -> None:
        self._live: dict[str, str] = {}

    def add(self, chart: Chart, *, has_title: bool) -> str:
        """Return the figure of `chart`."""
        name, picture = f"f{len(self._live) + 1}", picture_of(chart)
        self._live[name] = live_figure(picture)
        still = draw(picture, len(self._live), has_title=False)
        title = f"<figcaption>{_plain(chart.title)}</figcaption>" if has_title else ""
        return f'<figure>{title}<div class="live" id="{name}"></div><div class="still">{still}</div></figure>'

    def scripts(self) -> str:
        """Return what draws the live forms; nothing without charts."""
        if not self._live:
            return ""
        found = ",\n".join(f'"{name}":{live}' for name, live in self._live.items())
        return f'<script type="application/json" id="charts">{{{found}}}</script>\n{live_script()}\n'


def html_page(documents: list[Document], made_by: str) -> str:
    """Return the page; `made_by` says which program wrote it.

    Raises:
        ProbeUnavailable: a library that draws charts is missing.

    """
    style = resources.files("kvtrace.core.document").joinpath("report.css").read_text(encoding="utf-8")
    charts = _Charts()
    body = "\n".join(_document(document, f"d{at}", charts) for at, document in enumerate(documents))
    title = _plain(", ".join(document.name for document in documents))
    contents = _links([(f"d{at}", document.name) for at, document in enumerate(documents)])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{contents}{body}\n"
        f"<footer>{_plain(made_by)}. {_UNITS}</footer>\n{charts.scripts()}</body>\n</html>\n"
    )


def _plain(text: str) -> str:
    """Return `text` so that it is shown as it stands."""
    return escaped(printable(text))


def _document(document: Document, anchor: str, charts: _Charts) -> str:
    """Return an article: what was found, on what, the figures that matter, what to doubt; then the chapters."""
    chapters = [(f"{anchor}c{at}", chapter) for at, chapter in enumerate(document.chapters) if chapter.tables]
    body = "\n".join(_chapter(chapter, name, charts) for name, chapter in chapters)
    subject = "".join(f"<li>{_plain(line)}</li>" for line in document.subject)
    on_what = f'<ul class="subject">{subject}</ul>\n' if subject else ""
    return (
        f'<article id="{anchor}">\n<h1>{_plain(document.name)}</h1>\n'
        f'<p class="headline">{_plain(document.headline)}</p>\n{on_what}{_highlights(document)}{_doubts(document)}'
        f"{_links([(name, chapter.title) for name, chapter in chapters if chapter.title])}{body}\n</article>"
    )


def _doubts(document: Document) -> str:
    """Return the warnings, and the notes, folded if they are many."""
    warned = "".join(f"<li>{_plain(warning)}</li>" for warning in document.warnings)
    warning = f'<ul class="warning" role="alert">{warned}</ul>\n' if warned else ""
    notes = "".join(f"<li>{_plain(note)}</li>" for note in document.notes)
    listed = f'<ul class="notes">{notes}</ul>\n' if notes else ""
    if len(document.notes) > _FEW_NOTES:
        summary = f"<summary>{len(document.notes)} notes on how this was made and measured</summary>"
        listed = f"<details>{summary}{listed}</details>\n"
    return warning + listed


def _links(targets: list[tuple[str, str]]) -> str:
    if len(targets) < 2:  # noqa: PLR2004 - one leads nowhere
        return ""
    links = "".join(f'<li><a href="#{anchor}">{_plain(title)}</a></li>' for anchor, title in targets)
    return f"<nav><ul>{links}</ul></nav>\n"


def _highlights(document: Document) -> str:
    tiles = "".join(
        f"<div><dt>{_plain(h.label)}</dt><dd{_exact(h.value, h.unit)}>{_plain(show(h.value, h.unit))}</dd>"
        f"{f'<dd class=detail>{_plain(h.detail)}</dd>' if h.detail else ''}</div>"
        for h in document.highlights
    )
    return f'<dl class="highlights">{tiles}</dl>\n' if tiles else ""


def _chapter(chapter: Chapter, anchor: str, charts: _Charts) -> str:
    tables = "\n".join(_section(table, charts) for table in chapter.tables)
    notes = "".join(f'\n<p class="note">{_plain(note)}</p>' for note in chapter.notes)
    title = f"<h2>{_plain(chapter.title)}</h2>" if chapter.title else ""
    if chapter.is_folded:
        return (
            f'<details class="folded" id="{anchor}"><summary>{title}</summary>\n'
            f'<div class="chapter">{tables}{notes}\n</div></details>'
        )
    return f'<div class="chapter" id="{anchor}">{title}\n{tables}{notes}\n</div>'


def _section(table: ReportTable, charts: _Charts) -> str:
    figures = "".join(charts.add(chart, has_title=len(table.charts) > 1) for chart in table.charts)
    drawn = f'<div class="charts">{figures}</div>' if figures else ""
    note = f'<p class="note">{_plain(table.note)}</p>' if table.note else ""
    numbered = _table(table) if table.rows else '<p class="note">None.</p>'
    is_folded = len(table.rows) > LONG_ROWS and bool(table.charts) and not table.is_answer
    if is_folded:
        numbered = f"<details><summary>Numbers: {len(table.rows)} rows</summary>{numbered}</details>"
    kind = ' class="half"' if len(table.charts) == 1 and (is_folded or not table.is_wide) else ""
    title = f"<h3>{_plain(table.title)}</h3>\n" if table.title else ""
    return f"<section{kind}>{title}{drawn}{note}{numbered}</section>"


def _exact(raw: Any, unit: Unit) -> str:
    """Return the attribute that says a figure exactly."""
    return f' title="{raw} {unit}"' if unit and isinstance(raw, int | float) else ""


def _table(table: ReportTable) -> str:
    head = "".join(f'<th scope="col"{_side(c.unit)}>{_plain(c.heading)}</th>' for c in table.columns)
    rows = []
    for row in table.rows:
        cells = []
        for value, column in zip(row, table.columns, strict=True):
            raw, unit = raw_cell(value, column)
            kind = f' class="verdict {_VERDICTS.get(raw, "")}"' if column.name == "verdict" else _side(column.unit)
            cells.append(f"<td{kind}{_exact(raw, unit)}>{_plain(show(raw, unit))}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    kind = ' class="facts"' if table.columns == PARAMETERS else ""
    return f'<div class="wide"><table{kind}><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _side(unit: Unit) -> str:
    return "" if unit is Unit.TEXT else ' class="n"'
