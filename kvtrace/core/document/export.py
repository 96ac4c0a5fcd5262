"""Documents as Markdown, as CSV and as a workbook, for scripts and for other programs."""

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
    """Return the documents as Markdown, with values rounded for people."""
    blocks = []
    for document in documents:
        blocks += [f"# {_plain(document.name)}", _plain(document.headline)]
        if document.warnings:
            blocks.append(f"**{_plain('. '.join(document.warnings))}**")
        highlights = []
        for highlight in document.highlights:
            detail = f" ({highlight.detail})" if highlight.detail else ""
            highlights.append(f"{highlight.label}: {show(highlight.value, highlight.unit)}{detail}")
        for lines in (document.subject, highlights, document.notes):
            if lines:
                blocks.append("\n".join(f"- {_plain(line)}" for line in lines))
        for chapter in document.chapters:
            if chapter.tables:
                blocks.append(f"## {_plain(chapter.title)}")
            for table in chapter.tables:
                blocks.append(f"### {_plain(table.title)}")
                if table.note:
                    blocks.append(_plain(table.note))
                blocks.append(_markdown_table(table))
            blocks += [_plain(note) for note in chapter.notes]
    return "\n\n".join(blocks) + "\n"


def _markdown_table(table: ReportTable) -> str:
    """Return the rows of a table; numbers are aligned to the right."""
    if not table.rows:
        return "None."
    headings = [_plain(column.heading) for column in table.columns]
    alignments = ["---" if column.unit is Unit.TEXT else "---:" for column in table.columns]
    lines = [f"| {' | '.join(headings)} |", f"|{'|'.join(alignments)}|"]
    for row in table.rows:
        cells = [
            _plain(show(*raw_cell(value, column)))
            for value, column in zip(row, table.columns, strict=True)
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


_MARKDOWN_CHARACTERS = frozenset("\\`*_[]<>|#")


def _plain(text: str) -> str:
    """Return `text` on one line, escaped so that Markdown shows it literally."""
    text = printable(" ".join(text.split()))
    return "".join(
        f"\\{character}" if character in _MARKDOWN_CHARACTERS else character for character in text
    )


def csv_lines(documents: list[Document]) -> str:
    """Return every figure as a raw value with its unit, one a line.

    An empty value was not measured. The column `row` joins the values that identify a row of its
    table, such as `nvme read` or the start of a time window.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for document in documents:
        for table in document.tables:
            for row in table.rows:
                row_name = " ".join(str(value) for value in row[: table.keys])
                figures = zip(row[table.keys :], table.columns[table.keys :], strict=True)
                for value, column in figures:
                    raw, unit = raw_cell(value, column)
                    cells = [
                        document.name,
                        table.sheet.value,
                        table.title,
                        row_name,
                        column.name,
                        unit.value,
                        raw,
                    ]
                    writer.writerow(
                        [_literal(cell) if isinstance(cell, str) else cell for cell in cells]
                    )
    return out.getvalue()


def _literal(text: str) -> str:
    """Return `text`, with an apostrophe before it if a spreadsheet would evaluate it."""
    text = printable(text)
    return f"'{text}" if text.lstrip().startswith(_FORMULAS) else text


_NUMBER_FORMATS = {
    **dict.fromkeys(
        (Unit.COUNT, Unit.BYTES, Unit.IO_BYTES, Unit.NS, Unit.BYTES_PER_S, Unit.BYTES_PER_DAY),
        "#,##0",
    ),
    Unit.PER_S: "#,##0.00",
    Unit.SHARE: "0.00%",
    Unit.RATIO: "0.000",
    Unit.YEARS: "0.0",
}
"""Number formats of a workbook by unit; its cells hold raw values. Other units have no format."""
_MIN_COLUMN_WIDTH, _MAX_COLUMN_WIDTH = 8, 48
"""Limits of the width of a column, in characters."""


@dataclass(frozen=True, slots=True)
class PlainSheet:
    """A sheet of one table that begins in its first cell."""

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
    """Number of rows of data below, if this line is the header of a table."""


def write_workbook(documents: list[Document], path: Path, plain: Sequence[PlainSheet] = ()) -> None:
    """Write the sheets `plain`, then the tables of the documents on their sheets, to `path`.

    The file appears only when it is complete. Columns fit their content, headers stay visible, and
    each table can be filtered. ProbeUnavailable if the library that writes workbooks is missing,
    DeviceError if the file cannot be written.
    """
    try:
        from openpyxl import Workbook
    except ImportError:
        raise ProbeUnavailable(f"a workbook needs openpyxl: {how_to_add('xlsx')}") from None
    book = Workbook()
    book.remove(book.active)
    for table in plain:
        header = _Line(table.header, is_bold=True, data_rows=len(table.rows))
        _add_sheet(book, table.name, [header, *(_Line(row) for row in table.rows)])
    for sheet in Sheet:
        lines = [line for document in documents for line in _sheet_lines(document, sheet)]
        _add_sheet(book, sheet.value, lines)
    with aside(path) as temporary, temporary.open("wb") as out:
        book.save(out)


def _sheet_lines(document: Document, sheet: Sheet) -> Iterator[_Line]:
    """Yield the lines of one sheet: the document's name and its tables on that sheet.

    The first sheet also has the headline, warnings and notes.
    """
    yield _Line([document.name], is_bold=True)
    if sheet is Sheet.SUMMARY:
        if document.warnings:
            yield _Line([". ".join(document.warnings)], is_bold=True)
        yield _Line([document.headline])
        notes = list(document.notes)
        for chapter in document.chapters:
            notes += chapter.notes
        for note in notes:
            yield _Line(["note", note])
    for table in document.tables:
        if table.sheet is sheet:
            yield _Line([])
            yield from _table_lines(table)
    yield _Line([])


def _table_lines(table: ReportTable) -> Iterator[_Line]:
    """Yield the title, note, units, header and rows of a table.

    If any row has a unit that differs from its columns', a further column holds the units of rows.
    """
    yield _Line([table.title], is_bold=True)
    if table.note:
        yield _Line([table.note])
    column_units = [column.unit.value for column in table.columns]
    row_units = [
        next((value.unit.value for value in row if isinstance(value, Cell)), "")
        for row in table.rows
    ]
    has_row_units = any(row_units)
    header = [column.name for column in table.columns]
    if has_row_units:
        header.append("unit")
    if any(column_units):
        yield _Line(column_units)
    yield _Line(header, is_bold=True, data_rows=len(table.rows))
    for row, row_unit in zip(table.rows, row_units, strict=True):
        cells = [raw_cell(value, column) for value, column in zip(row, table.columns, strict=True)]
        values = [raw for raw, _ in cells]
        if has_row_units:
            values.append(row_unit)
        yield _Line(values, [_NUMBER_FORMATS.get(unit) for _, unit in cells])
    if not table.rows:
        yield _Line(["none"])


def _add_sheet(book: Any, name: str, lines: Sequence[_Line]) -> None:
    """Add the sheet `name` to openpyxl's workbook `book`."""
    from openpyxl.styles import Font
    from openpyxl.utils import get_column_letter
    from openpyxl.worksheet.table import Table, TableStyleInfo

    sheet = book.create_sheet(name)
    sheet.freeze_panes = "B2"
    widths: dict[int, int] = {}
    for row, line in enumerate(lines, 1):
        for column, (value, number_format) in enumerate(zip_longest(line.values, line.formats), 1):
            cell = sheet.cell(row, column)
            if isinstance(value, str):
                cell.value = "".join(
                    character
                    for character in value
                    if character.isprintable() or character in "\n\t"
                )
                # Text is never a formula, even if the name of a file begins with "=".
                cell.data_type = "s"
            else:
                cell.value = value
            cell.number_format = number_format or "General"
            cell.font = Font(bold=line.is_bold)
            # The text of a single cell extends over the empty cells to its right.
            if value is not None and len(line.values) > 1:
                is_number = number_format and isinstance(value, int | float)
                width = len(f"{value:,.0f}" if is_number else str(value))
                width = max(width, widths.get(column, _MIN_COLUMN_WIDTH))
                widths[column] = min(width, _MAX_COLUMN_WIDTH)
        # The names of the columns of a workbook's table must differ.
        headings = {str(value).lower() for value in line.values}
        if line.data_rows and len(headings) == len(line.values):
            last_cell = f"{get_column_letter(len(headings))}{row + line.data_rows}"
            sheet.add_table(
                Table(
                    displayName=f"{name.replace(' ', '_')}_{row}",
                    ref=f"A{row}:{last_cell}",
                    tableStyleInfo=TableStyleInfo(name="TableStyleLight1", showRowStripes=True),
                )
            )
    for column, width in widths.items():
        sheet.column_dimensions[get_column_letter(column)].width = width + 2
