"""A report as one HTML file that needs no network: tables, charts above them, light, dark and on paper."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape as escaped
from importlib import resources
from itertools import count
from typing import Any

from kvtrace.core.document.charts import draw
from kvtrace.core.document.document import PARAMETERS, Chapter, Document, ReportTable, Unit, raw_cell, show
from kvtrace.core.units import printable

LONG_ROWS = 10
"""Tables with more rows are folded until asked for, and unfolded on paper."""
_VERDICTS = {"pass": "pass", "fail": "fail", "FAIL": "fail"}
_UNFOLD = "addEventListener('beforeprint',()=>document.querySelectorAll('details').forEach(d=>d.open=true))"


def html_page(documents: list[Document], made_by: str) -> str:
    """Return the page; `made_by` says which program wrote it.

    Raises:
        ProbeUnavailable: the library that draws charts is missing.

    """
    style = resources.files("kvtrace.core.document").joinpath("report.css").read_text(encoding="utf-8")
    numbers = count(1)
    body = "\n".join(_document(document, f"d{at}", numbers) for at, document in enumerate(documents))
    title = _plain(", ".join(document.name for document in documents))
    contents = _links([(f"d{at}", document.name) for at, document in enumerate(documents)])
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{contents}{body}\n"
        f"<footer>{_plain(made_by)}. A dash is what was not measured.</footer>\n<script>{_UNFOLD}</script>\n"
        "</body>\n</html>\n"
    )


def _plain(text: str) -> str:
    """Return `text` so that it is shown as it stands."""
    return escaped(printable(text))


def _document(document: Document, anchor: str, numbers: Iterator[int]) -> str:
    notes = "".join(f"<li>{_plain(note)}</li>" for note in document.notes)
    listed = f'<ul class="notes">{notes}</ul>' if notes else ""
    warned = _plain(". ".join(document.warnings))
    warning = f'<p class="warning" role="alert">{warned}</p>\n' if warned else ""
    chapters = [(f"{anchor}c{at}", chapter) for at, chapter in enumerate(document.chapters) if chapter.tables]
    body = "\n".join(_chapter(chapter, name, numbers) for name, chapter in chapters)
    return (
        f'<article id="{anchor}">\n<h1>{_plain(document.name)}</h1>\n{warning}'
        f'<p class="headline">{_plain(document.headline)}</p>\n{_highlights(document)}{listed}\n'
        f"{_links([(name, chapter.title) for name, chapter in chapters])}{body}\n</article>"
    )


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


def _chapter(chapter: Chapter, anchor: str, numbers: Iterator[int]) -> str:
    tables = "\n".join(_section(table, numbers) for table in chapter.tables)
    notes = "".join(f'\n<p class="note">{_plain(note)}</p>' for note in chapter.notes)
    return f'<div class="chapter" id="{anchor}"><h2>{_plain(chapter.title)}</h2>\n{tables}{notes}\n</div>'


def _section(table: ReportTable, numbers: Iterator[int]) -> str:
    charts = "".join(
        f"<figure>{draw(chart, next(numbers), has_title=len(table.charts) > 1)}</figure>" for chart in table.charts
    )
    drawn = f'<div class="charts">{charts}</div>' if charts else ""
    note = f'<p class="note">{_plain(table.note)}</p>' if table.note else ""
    numbered = _table(table) if table.rows else '<p class="note">None.</p>'
    if len(table.rows) > LONG_ROWS and table.charts:
        numbered = f"<details><summary>Numbers: {len(table.rows)} rows</summary>{numbered}</details>"
    kind = ' class="half"' if len(table.charts) == 1 else ""
    return f"<section{kind}><h3>{_plain(table.title)}</h3>\n{drawn}{note}{numbered}</section>"


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
