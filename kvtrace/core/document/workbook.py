"""A report as a workbook: sheets with one plain table each, for scripts, then each kind of our tables on its sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvtrace.core.document.document import Cell, Document, ReportTable, Sheet, raw_cell
from kvtrace.core.errors import ProbeUnavailable
from kvtrace.core.files import aside

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
        raise ProbeUnavailable("a workbook needs openpyxl: pip install 'kvtrace[xlsx]'") from None
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
            found.value, found.data_type = _printable(value), "s"
        else:
            found.value = value
        if is_bold:
            found.font = Font(bold=True)
        cells.append(found)
    sheet.append(cells)


def _printable(text: str) -> str:
    return "".join(c for c in text if c.isprintable() or c in "\n\t")
