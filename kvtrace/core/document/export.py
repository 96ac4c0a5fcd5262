"""A document as plain text.

Markdown, CSV tables and a workbook, for scripts and for other programs.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from kvtrace.core.document.document import Cell, Document, ReportTable, Sheet, Unit, raw_cell, show
from kvtrace.core.errors import ProbeUnavailable, how_to_add
from kvtrace.core.files import aside
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
        parts += (
            ["\n".join(f"- {_plain(line)}" for line in document.subject)]
            if document.subject
            else []
        )
        found = [
            (f"{h.label}: {show(h.value, h.unit)}", f" ({h.detail})" if h.detail else "")
            for h in document.highlights
        ]
        parts += (
            ["\n".join(f"- {_plain(figure + detail)}" for figure, detail in found)] if found else []
        )
        parts += (
            ["\n".join(f"- {_plain(note)}" for note in document.notes)] if document.notes else []
        )
        for chapter in document.chapters:
            parts += [f"## {_plain(chapter.title)}"] if chapter.tables else []
            for table in chapter.tables:
                parts += [
                    f"### {_plain(table.title)}",
                    *([_plain(table.note)] if table.note else []),
                    _rows(table),
                ]
            parts += [_plain(note) for note in chapter.notes]
    return "\n\n".join(parts) + "\n"


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
    """Return every figure on a line of its own, raw, with its unit.

    An empty value was not measured.

    `row` joins what names a row of the table, such as `nvme read` or the start of a stretch of
    time.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for document in documents:
        for table in document.tables:
            for row in table.rows:
                name = " ".join(str(value) for value in row[: table.keys])
                for value, column in zip(
                    row[table.keys :], table.columns[table.keys :], strict=True
                ):
                    raw, unit = raw_cell(value, column)
                    cells = [
                        document.name,
                        table.sheet.value,
                        table.title,
                        name,
                        column.name,
                        unit.value,
                        raw,
                    ]
                    writer.writerow(
                        [_literal(cell) if isinstance(cell, str) else cell for cell in cells]
                    )
    return out.getvalue()


def _literal(text: str) -> str:
    """Return `text` so that no spreadsheet takes it for a formula.

    One that would be has an apostrophe before it.
    """
    text = printable(text)
    return f"'{text}" if text.lstrip().startswith(_FORMULAS) else text


_FORMATS = {
    **dict.fromkeys(
        (Unit.COUNT, Unit.BYTES, Unit.IO_BYTES, Unit.NS, Unit.BYTES_PER_S, Unit.BYTES_PER_DAY),
        "#,##0",
    ),
    Unit.PER_S: "#,##0.00",
    Unit.SHARE: "0.00%",
    Unit.RATIO: "0.000",
    Unit.YEARS: "0.0",
}
"""Of numbers in a workbook, which are raw; others as its program shows them."""
_NARROWEST, _WIDEST = 8, 48
"""Columns, in letters."""


@dataclass(frozen=True, slots=True)
class PlainSheet:
    """A sheet that is one table from its first cell on."""

    name: str
    header: list[str]
    rows: Sequence[Sequence[object]]


@dataclass(slots=True)
class _Line:
    """A row of a sheet."""

    values: Sequence[object]
    formats: list[str | None] = field(default_factory=list)
    is_bold: bool = False
    data_rows: int | None = None
    """Of a table's head: how many rows of data are below it."""


def write_workbook(documents: list[Document], path: Path, plain: Sequence[PlainSheet] = ()) -> None:
    """Write the sheets `plain`, then the documents, each table on its sheet, to `path`, aside and
    renamed.

    Columns are as wide as what stands in them, heads stay in sight, and each table can be filtered.

    ProbeUnavailable if the library that writes workbooks is missing. DeviceError if the disk
    refuses.
    """
    try:
        from openpyxl import Workbook
    except ImportError:
        raise ProbeUnavailable(f"a workbook needs openpyxl: {how_to_add('xlsx')}") from None
    book = Workbook()
    book.remove(book.active)
    for table in plain:
        head = _Line(table.header, is_bold=True, data_rows=len(table.rows))
        _add_sheet(book, table.name, [head, *(_Line(row) for row in table.rows)])
    for name in Sheet:
        _add_sheet(
            book, name.value, [line for document in documents for line in _lines_of(document, name)]
        )
    with aside(path) as temporary, temporary.open("wb") as out:
        book.save(out)


def _lines_of(document: Document, name: Sheet) -> Iterator[_Line]:
    """Yield the rows of one sheet.

    What the document is called, on the first sheet what it says, and its tables.
    """
    yield _Line([document.name], is_bold=True)
    if name is Sheet.SUMMARY:
        if document.warnings:
            yield _Line([". ".join(document.warnings)], is_bold=True)
        yield _Line([document.headline])
        for note in [
            *document.notes,
            *(note for chapter in document.chapters for note in chapter.notes),
        ]:
            yield _Line(["note", note])
    for table in (table for table in document.tables if table.sheet is name):
        yield _Line([])
        yield _Line([table.title], is_bold=True)
        if table.note:
            yield _Line([table.note])
        rows = [
            [raw_cell(v, c) for v, c in zip(row, table.columns, strict=True)] for row in table.rows
        ]
        own = [
            next((value.unit.value for value in row if isinstance(value, Cell)), "")
            for row in table.rows
        ]
        units, names = [c.unit.value for c in table.columns], [c.name for c in table.columns]
        if any(units):
            yield _Line(units)
        yield _Line(names + (["unit"] if any(own) else []), is_bold=True, data_rows=len(rows))
        for cells, unit in zip(rows, own, strict=True):
            yield _Line(
                [raw for raw, _ in cells] + ([unit] if any(own) else []),
                [_FORMATS.get(of) for _, of in cells],
            )
        if not rows:
            yield _Line(["none"])
    yield _Line([])


def _add_sheet(book: Any, name: str, lines: Sequence[_Line]) -> None:
    from openpyxl.styles import Font
    from openpyxl.utils import get_column_letter
    from openpyxl.worksheet.table import Table, TableStyleInfo

    sheet, widths = book.create_sheet(name), dict[int, int]()
    sheet.freeze_panes = "B2"
    for row, line in enumerate(lines, 1):
        for column, (value, form) in enumerate(zip_longest(line.values, line.formats), 1):
            cell = sheet.cell(row, column)
            if isinstance(value, str):
                # Never a formula, whatever a file's name begins with.
                cell.value = "".join(c for c in value if c.isprintable() or c in "\n\t")
                cell.data_type = "s"
            else:
                cell.value = value
            cell.number_format = form or "General"
            cell.font = Font(bold=line.is_bold)
            # A line of one cell runs on over the empty ones behind it.
            if value is not None and len(line.values) > 1:
                letters = len(
                    f"{value:,.0f}" if form and isinstance(value, int | float) else str(value)
                )
                widths[column] = min(max(widths.get(column, _NARROWEST), letters), _WIDEST)
        heads = {str(value).lower() for value in line.values}
        if line.data_rows and len(heads) == len(line.values):
            ref = f"A{row}:{get_column_letter(len(heads))}{row + line.data_rows}"
            style = TableStyleInfo(name="TableStyleLight1", showRowStripes=True)
            sheet.add_table(
                Table(displayName=f"{name.replace(' ', '_')}_{row}", ref=ref, tableStyleInfo=style)
            )
    for column, letters in widths.items():
        sheet.column_dimensions[get_column_letter(column)].width = letters + 2
