"""A document as plain text: Markdown, CSV tables and a workbook, for scripts and for other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
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
        parts += ["\n".join(f"- {_plain(line)}" for line in document.subject)] if document.subject else []
        found = [
            (f"{h.label}: {show(h.value, h.unit)}", f" ({h.detail})" if h.detail else "") for h in document.highlights
        ]
        parts += ["\n".join(f"- {_plain(figure + detail)}" for figure, detail in found)] if found else []
        parts += ["\n".join(f"- {_plain(note)}" for note in document.notes)] if document.notes else []
        for chapter in document.chapters:
            parts += [f"## {_plain(chapter.title)}"] if chapter.tables else []
            for table in chapter.tables:
                parts += [f"### {_plain(table.title)}", *([_plain(table.note)] if table.note else []), _rows(table)]
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


_WIDTH = 22


@dataclass(frozen=True, slots=True)
class PlainSheet:
    """A sheet that is one table from its first cell on."""

    name: str
    header: list[str]
    rows: list[list[Any]]


def write_workbook(documents: list[Document], path: Path, plain: Sequence[PlainSheet] = ()) -> None:
    """Write the sheets `plain`, then the documents, each table on its sheet, to `path`, aside and renamed.

    Raises:
        ProbeUnavailable: the library that writes workbooks is missing.
        DeviceError: the disk refuses.

    """
    try:
        from openpyxl import Workbook
    except ImportError:
        raise ProbeUnavailable(f"a workbook needs openpyxl: {how_to_add('xlsx')}") from None
    book = Workbook(write_only=True)
    for table in plain:
        sheet = book.create_sheet(table.name)
        _line(sheet, table.header, is_bold=True)
        for row in table.rows:
            _line(sheet, row)
    for name in Sheet:
        _tables_of(documents, name, book.create_sheet(name.value))
    with aside(path) as temporary, temporary.open("wb") as out:
        book.save(out)


def _tables_of(documents: list[Document], name: Sheet, sheet: Any) -> None:
    for letter in "ABCDEFGHIJKLM":
        sheet.column_dimensions[letter].width = _WIDTH
    for document in documents:
        _line(sheet, [document.name], is_bold=True)
        if name is Sheet.SUMMARY:
            if document.warnings:
                _line(sheet, [". ".join(document.warnings)], is_bold=True)
            _line(sheet, [document.headline])
            for note in [*document.notes, *(note for chapter in document.chapters for note in chapter.notes)]:
                _line(sheet, ["note", note])
        for table in document.tables:
            if table.sheet is name:
                _add(sheet, table)
        sheet.append([])


def _add(sheet: Any, table: ReportTable) -> None:
    sheet.append([])
    _line(sheet, [table.title], is_bold=True)
    if table.note:
        _line(sheet, [table.note])
    own_units = any(_own_unit(row) for row in table.rows)
    units = [c.unit.value for c in table.columns]
    _line(sheet, [c.name for c in table.columns] + (["unit"] if own_units else []), is_bold=True)
    if any(units):
        _line(sheet, units)
    for row in table.rows:
        cells = [raw_cell(v, c) for v, c in zip(row, table.columns, strict=True)]
        _line(sheet, [raw for raw, _unit in cells] + ([_own_unit(row)] if own_units else []))
    if not table.rows:
        _line(sheet, ["none"])


def _own_unit(row: list[Any]) -> str:
    return next((value.unit.value for value in row if isinstance(value, Cell)), "")


def _line(sheet: Any, values: list[Any], *, is_bold: bool = False) -> None:
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.styles import Font

    cells = []
    for value in values:
        found = WriteOnlyCell(sheet)
        if isinstance(value, str):
            # Never a formula, whatever a file's name begins with.
            found.value, found.data_type = "".join(c for c in value if c.isprintable() or c in "\n\t"), "s"
        else:
            found.value = value
        if is_bold:
            found.font = Font(bold=True)
        cells.append(found)
    sheet.append(cells)
