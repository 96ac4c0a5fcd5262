"""Documents on a terminal: the one way in which the three programs print tables for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, cast

from kvtrace.core.app import emit_json
from kvtrace.core.document.document import Chapter, Document, ReportTable, Unit, raw_cell, show
from kvtrace.core.units import printable

if TYPE_CHECKING:
    # Heavy.
    from rich.console import Console


LONG_ROWS = 12
"""Rows of a table with charts that are still printed; longer ones are for a page."""
BAR_WIDTH = 40
_UNLIMITED, _WORD = 10_000, 16


def show_documents(documents: Sequence[Document], *, hint: str = "") -> None:
    """Print documents.

    Name, headline, warnings, notes, then the tables of each chapter and its notes.

    Cells that were not measured are a dash. A table of more than LONG_ROWS rows that has charts is
    left out; `hint` is then printed last and says where it is to be seen. On a terminal, where
    tables push the headlines off the screen, these come again at the end.
    """
    console = _console()
    for document in documents:
        _show(document, console)
    if console.is_terminal:
        for document in documents:
            if document.headline and document.chapters:
                console.print(printable(document.headline), style="bold")
    if hint and any(_is_long(table) for document in documents for table in document.tables):
        console.print(printable(hint), style="dim")


def answer(found: object, document: Callable[[], Document], *, as_json: bool) -> None:
    """Print what a command `found` as JSON, or as the document that is made of it."""
    if as_json:
        emit_json(found)
    else:
        show_documents([document()])


def show_tables(tables: Iterable[ReportTable]) -> None:
    """Print tables alone."""
    console = _console()
    for table in tables:
        _show_table(table, console)


def bar(count: int, most: int) -> str:
    """Return `count` as a bar, of which `most` is the full one; anything above 0 is seen."""
    return f"|{('*' * -(-count * BAR_WIDTH // max(most, 1))).ljust(BAR_WIDTH)}|"


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    # A file or a pipe takes lines as long as they are.
    return (
        console
        if console.is_terminal
        else Console(highlight=False, markup=False, emoji=False, width=_UNLIMITED)
    )


def _show(document: Document, console: Console) -> None:
    if document.name:
        console.print(printable(document.name), style="bold")
    if document.headline:
        console.print(printable(document.headline))
    for warning in document.warnings:
        console.print(printable(warning), style="bold red")
    for line in document.subject:
        console.print(printable(line), style="dim")
    for note in document.notes:
        console.print(f"note: {printable(note)}")
    for chapter in document.chapters:
        _show_chapter(chapter, console)
    console.print()


def _show_chapter(chapter: Chapter, console: Console) -> None:
    if chapter.in_short:
        console.print(f"\n{printable(chapter.in_short)}")
        return
    tables = [table for table in chapter.tables if not _is_long(table)]
    if chapter.title and (tables or chapter.notes):
        console.print(f"\n{printable(chapter.title)}", style="bold underline")
    for table in tables:
        _show_table(table, console)
    if chapter.notes:
        console.print("\n" + printable("\n".join(chapter.notes)))


def _is_long(table: ReportTable) -> bool:
    return bool(table.charts) and len(table.rows) > LONG_ROWS and not table.is_answer


def _show_table(table: ReportTable, console: Console) -> None:
    from rich.table import Table as Grid
    from rich.text import Text

    if table.title:
        console.print(f"\n{printable(table.title)}", style="bold")
    if not table.rows:
        console.print("none")
        return
    grid = Grid(box=None, pad_edge=False, header_style="dim")
    shown = [
        [show(*raw_cell(v, c)) for v, c in zip(row, table.columns, strict=True)]
        for row in table.rows
    ]
    for column, texts in zip(table.columns, zip(*shown, strict=True), strict=True):
        is_text = column.unit is Unit.TEXT
        justify: Literal["left", "right"] = "left" if is_text else "right"
        # No digit or unit is cut where the terminal is narrow: headings and texts are broken, then
        # whole lines.
        words = (
            [word[:_WORD] for text in texts for word in text.split()] if is_text else list(texts)
        )
        least = max(map(len, [*words, *column.heading.split()]), default=0)
        grid.add_column(Text(column.heading), justify=justify, overflow="fold", min_width=least)
    kept = [column.unit is not Unit.TEXT for column in table.columns]
    rows = [
        [Text(text, no_wrap=is_kept) for text, is_kept in zip(row, kept, strict=True)]
        for row in shown
    ]
    if table.bars:
        at = [column.name for column in table.columns].index(table.bars)
        counts = [cast("int", row[at]) for row in table.rows]
        most = max(counts)
        grid.add_column("", no_wrap=True)
        rows = [[*cells, Text(bar(count, most))] for cells, count in zip(rows, counts, strict=True)]
    for cells in rows:
        grid.add_row(*cells)
    console.print(grid, crop=False)
