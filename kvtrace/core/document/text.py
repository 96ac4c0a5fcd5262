"""A report as Markdown, for a page or an issue, and as CSV, one figure a line, for a spreadsheet or a script."""

from __future__ import annotations

import csv
import io

from kvtrace.core.document.document import Document, ReportTable, Unit, raw_cell, show
from kvtrace.core.units import printable

_FORMULAS = ("=", "+", "-", "@")
CSV_COLUMNS = ("file", "sheet", "table", "row", "figure", "unit", "value")


def markdown(documents: list[Document]) -> str:
    """Return the documents as Markdown; values as people read them."""
    parts = []
    for document in documents:
        warned = _plain(". ".join(document.warnings))
        parts += [f"# {_plain(document.name)}", _plain(document.headline)]
        parts += [f"**{warned}**"] if warned else []
        parts += ["\n".join(f"- {_plain(line)}" for line in document.subject)] if document.subject else []
        parts += [_figures(document)] if document.highlights else []
        parts += ["\n".join(f"- {_plain(note)}" for note in document.notes)] if document.notes else []
        for chapter in document.chapters:
            parts += [f"## {_plain(chapter.title)}"] if chapter.tables else []
            for table in chapter.tables:
                parts += [f"### {_plain(table.title)}", *([_plain(table.note)] if table.note else []), _rows(table)]
            parts += [_plain(note) for note in chapter.notes]
    return "\n\n".join(parts) + "\n"


def _figures(document: Document) -> str:
    found = (f"{h.label}: {show(h.value, h.unit)}{f' ({h.detail})' if h.detail else ''}" for h in document.highlights)
    return "\n".join(f"- {_plain(line)}" for line in found)


def _rows(table: ReportTable) -> str:
    if not table.rows:
        return "None."
    lines = [
        "| " + " | ".join(_plain(c.heading) for c in table.columns) + " |",
        "|" + "|".join("---" if c.unit is Unit.TEXT else "---:" for c in table.columns) + "|",
    ]
    for row in table.rows:
        shown = (_plain(show(*raw_cell(v, c))) for v, c in zip(row, table.columns, strict=True))
        lines.append("| " + " | ".join(shown) + " |")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Return `text` so that Markdown takes it literally, on one line."""
    text = printable(" ".join(text.split()))
    return "".join(f"\\{c}" if c in "\\`*_[]<>|#" else c for c in text)


def csv_lines(documents: list[Document]) -> str:
    """Return every figure on a line of its own, raw, with its unit; an empty value was not measured.

    `row` joins what names a row of the table, such as `nvme read` or the start of a stretch of time.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for document in documents:
        for table in document.tables:
            for row in table.rows:
                name = " ".join(str(value) for value in row[: table.keys])
                for value, column in zip(row[table.keys :], table.columns[table.keys :], strict=True):
                    raw, unit = raw_cell(value, column)
                    cells = [document.name, table.sheet.value, table.title, name, column.name, unit.value, raw]
                    writer.writerow([_literal(cell) if isinstance(cell, str) else cell for cell in cells])
    return out.getvalue()


def _literal(text: str) -> str:
    """Return `text` so that no spreadsheet takes it for a formula: one that would be has an apostrophe before it."""
    text = printable(text)
    return f"'{text}" if text.lstrip().startswith(_FORMULAS) else text
