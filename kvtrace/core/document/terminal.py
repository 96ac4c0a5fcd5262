"""Documents on a terminal; all three programs print their tables through this module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal, cast

from kvtrace.core.app import emit_json
from kvtrace.core.document.document import Chapter, Document, ReportTable, Unit, raw_cell, show
from kvtrace.core.units import printable

if TYPE_CHECKING:
    # An import at run time would slow down the start of every command.
    from rich.console import Console


LONG_ROWS = 12
"""Rows up to which a table with charts is printed; a longer one is shown on a page."""
BAR_WIDTH = 40
_UNLIMITED_WIDTH = 10_000
_MAX_UNBROKEN_LETTERS = 16
"""Letters of a word up to which a narrow terminal does not break it."""


def show_documents(documents: Sequence[Document], *, hint: str = "") -> None:
    """Print documents: name, headline, warnings and notes, then the tables of each chapter.

    Cells that were not measured are a dash. A table with charts and more than LONG_ROWS rows is
    omitted; then `hint`, which says where to see it, is printed last. A terminal repeats the
    headlines at the end, because tables push them off the screen.
    """
    console = _console()
    for document in documents:
        _show_document(document, console)
    if console.is_terminal:
        for document in documents:
            if document.headline and document.chapters:
                console.print(printable(document.headline), style="bold")
    if hint and any(_is_long(table) for document in documents for table in document.tables):
        console.print(printable(hint), style="dim")


def answer(result: object, build_document: Callable[[], Document], *, as_json: bool) -> None:
    """Print the `result` of a command as JSON, or as the document that `build_document` returns."""
    if as_json:
        emit_json(result)
    else:
        show_documents([build_document()])


def show_tables(tables: Iterable[ReportTable]) -> None:
    """Print tables without a document around them."""
    console = _console()
    for table in tables:
        _show_table(table, console)


def bar(count: int, full_count: int) -> str:
    """Return `count` as a bar of stars; `full_count` fills it, and any count above 0 has a star."""
    full_count = max(full_count, 1)
    # Rounded up in whole numbers.
    stars = (count * BAR_WIDTH + full_count - 1) // full_count
    return f"|{('*' * stars).ljust(BAR_WIDTH)}|"


def _console() -> Console:
    """Return the console of stdout; into a file or a pipe it does not break lines."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if console.is_terminal:
        return console
    return Console(highlight=False, markup=False, emoji=False, width=_UNLIMITED_WIDTH)


def _show_document(document: Document, console: Console) -> None:
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
    """Return whether a terminal omits the table, because a page shows it as charts."""
    return bool(table.charts) and len(table.rows) > LONG_ROWS and not table.is_answer


def _show_table(table: ReportTable, console: Console) -> None:
    from rich.table import Table as Grid
    from rich.text import Text

    if table.title:
        console.print(f"\n{printable(table.title)}", style="bold")
    if not table.rows:
        console.print("none")
        return
    texts = [
        [show(*raw_cell(value, column)) for value, column in zip(row, table.columns, strict=True)]
        for row in table.rows
    ]
    grid = Grid(box=None, pad_edge=False, header_style="dim")
    for column, column_texts in zip(table.columns, zip(*texts, strict=True), strict=True):
        is_text = column.unit is Unit.TEXT
        justify: Literal["left", "right"] = "left" if is_text else "right"
        # On a narrow terminal, headings and texts are broken, then whole lines. A number with its
        # unit counts as one word, so that it is never cut.
        words = list(column_texts)
        if is_text:
            words = [word[:_MAX_UNBROKEN_LETTERS] for text in column_texts for word in text.split()]
        words += column.heading.split()
        min_width = max((len(word) for word in words), default=0)
        grid.add_column(Text(column.heading), justify=justify, overflow="fold", min_width=min_width)
    is_number = [column.unit is not Unit.TEXT for column in table.columns]
    rows = [
        [Text(text, no_wrap=no_wrap) for text, no_wrap in zip(row, is_number, strict=True)]
        for row in texts
    ]
    if table.bars:
        bars_index = [column.name for column in table.columns].index(table.bars)
        counts = [cast("int", row[bars_index]) for row in table.rows]
        full_count = max(counts)
        grid.add_column("", no_wrap=True)
        for cells, count in zip(rows, counts, strict=True):
            cells.append(Text(bar(count, full_count)))
    for cells in rows:
        grid.add_row(*cells)
    console.print(grid, crop=False)
