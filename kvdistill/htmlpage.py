"""A report as one HTML file that needs no network: tables, charts above them, light, dark and on paper."""

from __future__ import annotations

from html import escape
from importlib import resources
from itertools import count
from typing import TYPE_CHECKING

from kvdistill.charts import draw
from kvdistill.document import Unit, cell, show
from kvdistill.figures import PARAMETERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvdistill.document import Document, Table

LONG_ROWS = 10
"""Tables with more rows are folded until asked for, and unfolded on paper."""
_UNFOLD = "addEventListener('beforeprint',()=>document.querySelectorAll('details').forEach(d=>d.open=true))"


def html_page(documents: list[Document], made_by: str) -> str:
    """Return the page; `made_by` says which program wrote it.

    Raises:
        ProbeUnavailable: the library that draws charts is missing.

    """
    style = resources.files("kvdistill").joinpath("report.css").read_text(encoding="utf-8")
    numbers = count(1)
    body = "\n".join(_document(document, at, numbers) for at, document in enumerate(documents))
    title = escape(", ".join(document.name for document in documents))
    links = "".join(f'<li><a href="#d{at}">{escape(d.name)}</a></li>' for at, d in enumerate(documents))
    contents = f"<nav><ul>{links}</ul></nav>" if len(documents) > 1 else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<link rel="icon" href="data:,">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{contents}{body}\n"
        f"<footer>{escape(made_by)}. A dash is what was not measured.</footer>\n<script>{_UNFOLD}</script>\n"
        "</body>\n</html>\n"
    )


def _document(document: Document, at: int, numbers: Iterator[int]) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in document.notes)
    listed = f'<ul class="notes">{notes}</ul>' if notes else ""
    tables = "\n".join(_section(table, numbers) for table in document.tables)
    return (
        f'<article id="d{at}">\n<h1>{escape(document.name)}</h1>\n'
        f'<p class="headline">{escape(document.headline)}</p>\n{listed}\n{tables}\n</article>'
    )


def _section(table: Table, numbers: Iterator[int]) -> str:
    charts = "".join(f"<figure>{draw(chart, next(numbers))}</figure>" for chart in table.charts)
    drawn = f'<div class="charts">{charts}</div>' if charts else ""
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    numbered = _table(table) if table.rows else '<p class="note">None.</p>'
    if len(table.rows) > LONG_ROWS and table.charts:
        numbered = f"<details><summary>Numbers: {len(table.rows)} rows</summary>{numbered}</details>"
    kind = ' class="half"' if len(table.charts) == 1 else ""
    return f"<section{kind}><h2>{escape(table.title)}</h2>\n{drawn}{note}{numbered}</section>"


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col"{_side(c.unit)}>{escape(c.heading)}</th>' for c in table.columns)
    rows = []
    for row in table.rows:
        cells = []
        for value, column in zip(row, table.columns, strict=True):
            raw, unit = cell(value, column)
            exact = f' title="{raw} {unit}"' if unit and isinstance(raw, int | float) else ""
            cells.append(f"<td{_side(column.unit)}{exact}>{escape(show(raw, unit))}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    kind = ' class="facts"' if table.columns == PARAMETERS else ""
    return f'<div class="wide"><table{kind}><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _side(unit: Unit) -> str:
    return "" if unit is Unit.TEXT else ' class="n"'
