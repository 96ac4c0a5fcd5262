"""The commands of kvdistill that answer questions: report, sql and compare."""

from __future__ import annotations

import sys
import textwrap
from csv import writer
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

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


# Long: a command is as long as its options.
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
        "Rated endurance of the drive: writes per day and years of life (1DWPD,5y, the default), or"
        " all bytes that it may be written (14PB, its TBW)."
    ),
    json: Json = False,
) -> None:
    """Say what traces hold, or what runs measured.

    On the terminal, or as a page, a workbook or text.

    A run's report has what its probes (probe.json) and checked jobs (closeness.json) left in its
    folder; folders of these alone have reports too. An HTML report is one file that needs no
    network; a workbook begins with the sheets of the MLPerf benchmark's, under its own names.
    Several runs, or several traces, are compared first; a trace next to its run is only shown.
    --json gives a list if there are several.

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

    Which is faster, by how much, and how sure that is by their trials.

    The verdict first, then caveats: runs that fell behind, failed, were verified or whose trials
    disagree. Every figure of the report is compared: rates, percentiles, hit ratios, sizes; those
    of simulated tiers are a model's and left out, unless all sides are simulated. Scorecards are
    compared stack by stack, in their users, rates, read p99 and writes, if they are of one test:
    the same stacks, sizes and window.

    \b
    kvdistill compare before after
    kvdistill compare before after -o compare.html
    kvdistill compare lru.parquet s3fifo.parquet --json
    kvdistill compare card-a/scorecard.json card-b/scorecard.json
    """
    import kvdistill
    from kvdistill.reports.output import check_names, write_report

    outputs = output or []
    check_names(outputs)
    compared = kvdistill.compare(*paths)
    document = compared.document()
    for path in outputs:
        write_report([document], path, argv=command_line())
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
        "Run a query of the library, by name.", None, "--query -q", show_default=False
    ),
    list_: bool = option("List the library: what each query answers.", False, "--list"),
    json: Json = False,
    csv: bool = option("Print the result as CSV.", False, "--csv"),
    max_rows: int = option("Maximum rows that the table shows.", 100, min=1),
) -> None:
    """Answer SQL over files.

    Views trace, objects, requests, ops, served, series, blocks, runs, tiers and probes.

    `measured` is `ops`, and `measured_requests` `served`, without what was of a run's warm-up
    (--warmup). Each row's `origin` is the run's folder or the file that it came from. Queries can
    only read; rows have no order unless one says ORDER BY; `percentile(x, 0.99)` is by nearest
    rank. Without a query, a shell takes them.

    \b
    kvdistill sql conv.parquet "SELECT tier, op, count(*) FROM trace GROUP BY ALL ORDER BY ALL"
    kvdistill sql --list
    kvdistill sql run --query slowest_operations
    kvdistill sql 'runs/*' --query runs_at_a_glance --csv
    """
    from kvdistill.commands.shell import open_shell
    from kvdistill.queries.sql import answer, named_queries, named_query, split_query

    if json and csv:
        raise ConfigError("choose one of --json and --csv")
    if list_:
        library = named_queries()
        if json:
            emit_json(library)
        else:
            for each in library:
                typer.echo(f"{each.name} ({', '.join(each.needs)})")
                typer.echo(
                    textwrap.fill(
                        each.answers, _LIBRARY_WIDTH, initial_indent="  ", subsequent_indent="  "
                    )
                )
        return
    files, statement = split_query(arguments or [])
    if not files:
        raise ConfigError(
            'name at least one file, then the query: kvdistill sql conv.parquet "SELECT ..."'
        )
    if query is not None and statement is not None:
        raise ConfigError("give either --query or SQL of your own, not both")
    named = named_query(query) if query is not None else None
    show = _emit_rows if json else _write_csv if csv else partial(_show_answer, max_rows=max_rows)
    if named is None and statement is None:
        open_shell(files, show)
        return
    with answer(
        files, named.sql if named else statement or "", named.needs if named else ()
    ) as batches:
        show(batches)


def _emit_rows(batches: pa.RecordBatchReader) -> None:
    # Sums of integers are decimals to DuckDB.
    rows = (row.items() for batch in batches for row in batch.to_pylist())
    emit_json(
        [
            {name: int(v) if isinstance(v, Decimal) and v == int(v) else v for name, v in row}
            for row in rows
        ]
    )


def _write_csv(batches: pa.RecordBatchReader) -> None:
    out = writer(sys.stdout, lineterminator="\n")
    out.writerow(batches.schema.names)
    for batch in batches:
        out.writerows(zip(*(c.to_pylist() for c in batch.columns), strict=True))


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
        log(f"only the first {counted(max_rows, 'row')}; --csv gives all")
