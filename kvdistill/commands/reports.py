"""The commands `report`, `compare` and `sql`."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from csv import writer
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from kvdistill.commands import completion
from kvdistill.commands.options import Json, Outputs
from kvtrace.core import pa
from kvtrace.core.app import command_line, emit_json, log, option
from kvtrace.core.document.document import ReportColumn, ReportTable, Sheet, Unit
from kvtrace.core.document.export import csv_lines
from kvtrace.core.document.export import markdown as as_markdown
from kvtrace.core.document.terminal import show_documents, show_tables
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import counted

_LIBRARY_WIDTH = 110


# Long, because it lists all options.
def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE|RUN...",
            help="Traces, or folders of runs, trials, sweeps, scorecards, probes or jobs.",
            show_default=False,
        ),
    ],
    output: Outputs = None,
    markdown: bool = option("Print the report as Markdown.", False, "--markdown"),
    csv: bool = option("Print every figure on a CSV line of its own.", False, "--csv"),
    buckets: int = option("Number of time buckets.", 48, min=1, max=500),
    endurance: str | None = option(
        "Rated endurance of the drive: DWPD and years (1DWPD,5y, the default), or total bytes written"
        " (14PB, its TBW)."
    ),
    json: Json = False,
) -> None:
    """Report the figures of traces or runs.

    On the terminal, or as a page, a workbook or text.

    A run's report includes the probes (probe.json) and checked jobs (closeness.json) in its folder;
    folders that hold only these have reports too. An HTML report is one file that needs no network.
    A workbook begins with the sheets of the MLPerf benchmark. Several runs, or several traces, are
    compared first; a trace next to its run is only shown. --json prints a list if there are
    several.

    \b
    kvdistill report conv.parquet
    kvdistill report run -o report.html -o report.xlsx
    kvdistill report before after -o report.html
    kvdistill report run --json
    """
    import kvdistill
    from kvdistill.reports.output import check_names

    if json + markdown + csv > 1:
        raise ConfigError("choose one of --json, --markdown and --csv")
    outputs = output or []
    check_names(outputs)
    reports = kvdistill.report(paths, buckets=buckets, endurance=endurance)
    for path in outputs:
        reports.write(path, command_line())
        log(f"wrote {path}")
    if json:
        emit_json(reports.results[0] if len(reports.results) == 1 else reports.results)
    elif markdown or csv:
        form = as_markdown if markdown else csv_lines
        typer.echo(form(reports.documents), nl=False)
    elif not outputs:
        hint = "For distributions and maps, write a page: -o report.html"
        show_documents(reports.documents, hint=hint)


def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="A B...",
            help="Traces, folders of runs, trials or probes, or scorecards; the first is the base.",
        ),
    ],
    output: Outputs = None,
    json: Json = False,
) -> None:
    """Compare runs, traces, probes or scorecards.

    Which is faster, by how much, and with what confidence.

    The verdict comes first, then caveats: runs that fell behind, failed or were verified, and
    trials that vary. Every figure of the report is compared: rates, percentiles, hit rates, sizes.
    Modelled figures of simulated tiers are omitted, unless all sides are simulated. Scorecards of
    one test (the same stacks, sizes and window) are compared stack by stack: users, rates, read p99
    and writes.

    \b
    kvdistill compare before after
    kvdistill compare before after -o compare.html
    kvdistill compare lru.parquet s3fifo.parquet --json
    kvdistill compare card-a/scorecard.json card-b/scorecard.json
    """
    import kvdistill
    from kvdistill.reports.output import check_names

    outputs = output or []
    check_names(outputs)
    compared = kvdistill.compare(*paths)
    document = compared.document()
    for path in outputs:
        compared.write(path, command_line())
        log(f"wrote {path}")
    if json:
        emit_json(compared.comparison)
    elif outputs:
        typer.echo(document.headline)
    else:
        # The first line is the answer.
        show_documents(
            [replace(document, name="")], hint="For distributions, write a page: -o compare.html"
        )


def sql(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE... [SQL]",
            help="Table files, glob patterns or folders (recursive); the last may be SQL.",
            show_default=False,
        ),
    ] = None,
    query: str | None = option(
        "Run a query of the library, by name.",
        None,
        "--query -q",
        show_default=False,
        autocompletion=completion.queries,
    ),
    list_: bool = option("List the queries of the library.", False, "--list"),
    json: Json = False,
    csv: bool = option("Print the result as CSV.", False, "--csv"),
    max_rows: int = option("Maximum rows that the table shows.", 100, min=1),
) -> None:
    """Query files with SQL.

    Views trace, objects, requests, ops, served, series, blocks, runs, tiers and probes.

    `measured` is `ops`, and `measured_requests` is `served`, without the warm-up of a run
    (--warmup). The `origin` of a row is its run's folder or its file. Queries can only read. Rows
    are unordered without ORDER BY. `percentile(x, 0.99)` is by nearest rank. Without a query, an
    SQL shell starts.

    \b
    kvdistill sql conv.parquet "SELECT tier, op, count(*) FROM trace GROUP BY ALL ORDER BY ALL"
    kvdistill sql --list
    kvdistill sql run --query slowest_operations
    kvdistill sql 'runs/*' --query runs_at_a_glance --csv
    """
    import kvdistill
    from kvdistill.commands.shell import open_shell

    if json and csv:
        raise ConfigError("choose one of --json and --csv")
    if list_:
        library = kvdistill.named_queries()
        if json:
            emit_json(library)
        else:
            for entry in library:
                typer.echo(f"{entry.name} ({', '.join(entry.needs)})")
                typer.echo(
                    textwrap.fill(
                        entry.answers, _LIBRARY_WIDTH, initial_indent="  ", subsequent_indent="  "
                    )
                )
        return
    files, statement = split_query(arguments or [])
    if not files:
        raise ConfigError(
            'name at least one file, then the query: kvdistill sql conv.parquet "SELECT ..."'
        )
    if query is not None and statement is not None:
        raise ConfigError("give either --query or an SQL statement, not both")
    show = _emit_rows if json else _write_csv if csv else partial(_show_answer, max_rows=max_rows)
    if query is None and statement is None:
        open_shell(files, show)
        return
    with kvdistill.run_query(*files, sql=statement, name=query) as batches:
        show(batches)


def split_query(arguments: Sequence[str]) -> tuple[list[Path], str | None]:
    """Return the files of a command line, and the SQL that may be its last argument.

    The last argument is SQL if it is empty, or contains a space and is not a file.
    """
    if not arguments:
        return [], None
    last = arguments[-1]
    has_space = not last or any(character.isspace() for character in last)
    is_sql = has_space and not Path(last or "/").is_file()
    names = arguments[:-1] if is_sql else arguments
    return [Path(name) for name in names], last if is_sql else None


def _emit_rows(batches: pa.RecordBatchReader) -> None:
    # DuckDB returns sums of integers as decimals.
    rows = (row.items() for batch in batches for row in batch.to_pylist())
    emit_json(
        [
            {
                name: int(value) if isinstance(value, Decimal) and value == int(value) else value
                for name, value in row
            }
            for row in rows
        ]
    )


def _write_csv(batches: pa.RecordBatchReader) -> None:
    out = writer(sys.stdout, lineterminator="\n")
    out.writerow(batches.schema.names)
    for batch in batches:
        out.writerows(zip(*(column.to_pylist() for column in batch.columns), strict=True))


def _show_answer(batches: pa.RecordBatchReader, max_rows: int) -> None:
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    rows: list[list[object]] = []
    for batch in batches:
        rows += [list(row.values()) for row in batch.to_pylist()]
        if len(rows) > max_rows:
            break
    columns = [
        ReportColumn(
            field.name,
            field.name,
            Unit.EXACT if any(is_kind(field.type) for is_kind in numbers) else Unit.TEXT,
        )
        for field in batches.schema
    ]
    show_tables([ReportTable("", Sheet.SUMMARY, columns, rows[:max_rows])])
    if len(rows) > max_rows:
        log(f"only the first {counted(max_rows, 'row')} are shown; --csv prints all")
