"""Print reports and query results for people; the numbers are those of the JSON."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING, Any

import typer

from kvtrace.core.app import emit_json, emit_table, log
from kvtrace.core.document.document import Unit, cell, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from rich.console import Console

    from kvdistill.report.library import NamedQuery
    from kvtrace.core.document.document import Document, Table

_LIBRARY_WIDTH = 110
_UNLIMITED = 10_000
LONG_ROWS = 12
"""Rows behind a chart that the terminal still shows."""


def show_documents(documents: Sequence[Document]) -> None:
    """Print reports; what stands beneath charts only where it is short."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=_UNLIMITED)
    for document in documents:
        _show(document, console)
    if any(_is_long(table) for document in documents for table in document.tables):
        console.print("Distributions and maps are in a page: -o report.html", style="dim")


def _show(document: Document, console: Console) -> None:
    console.print(document.name, style="bold")
    if document.warning:
        console.print(document.warning, style="bold red")
    console.print(document.headline)
    for note in document.notes:
        console.print(f"note: {note}")
    for chapter in document.chapters:
        tables = [table for table in chapter.tables if not _is_long(table)]
        if tables:
            console.print(f"\n{chapter.title}", style="bold underline")
        for table in tables:
            _show_table(table, console)
    console.print()


def _is_long(table: Table) -> bool:
    return bool(table.charts) and len(table.rows) > LONG_ROWS


def _show_table(table: Table, console: Console) -> None:
    from rich.table import Table as Grid
    from rich.text import Text

    console.print(f"\n{table.title}", style="bold")
    if not table.rows:
        console.print("none")
        return
    grid = Grid(box=None, pad_edge=False, header_style="dim")
    for column in table.columns:
        is_text = column.unit is Unit.TEXT
        grid.add_column(Text(column.heading), justify="left" if is_text else "right", overflow="fold",
                        no_wrap=not is_text)  # fmt: skip
    for row in table.rows:
        grid.add_row(*(Text(show(*cell(v, c))) for v, c in zip(row, table.columns, strict=True)))
    console.print(grid)


def show_answer(batches: pa.RecordBatchReader, form: str, max_rows: int) -> None:
    """Print a query's result as `json`, `csv`, or a `table` of at most `max_rows` rows."""
    if form == "json":
        emit_json([row for batch in batches for row in batch.to_pylist()])
    elif form == "csv":
        _write_csv(batches)
    else:
        rows: list[dict[str, Any]] = []
        for batch in batches:
            rows += batch.to_pylist()
            if len(rows) > max_rows:
                break
        emit_table("", batches.schema.names, [list(row.values()) for row in rows[:max_rows]])
        if len(rows) > max_rows:
            log(f"only the first {max_rows} rows; --csv gives all")


def show_library(queries: Sequence[NamedQuery]) -> None:
    """Print what each query of the library answers, and which views it reads."""
    for query in queries:
        typer.echo(f"{query.name} ({', '.join(query.needs)})")
        typer.echo(textwrap.fill(query.answers, _LIBRARY_WIDTH, initial_indent="  ", subsequent_indent="  "))


def _write_csv(batches: pa.RecordBatchReader) -> None:
    import csv

    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(batches.schema.names)
    for batch in batches:
        out.writerows(zip(*(c.to_pylist() for c in batch.columns), strict=True))
