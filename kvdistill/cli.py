"""The command line of kvdistill: thin; the work is in the library."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations when it runs
from typing import Annotated

import typer

from kvtrace.core.app import emit_json, log, make_app, run
from kvtrace.core.errors import ConfigError

app = make_app(
    "kvdistill",
    "Distil KV-cache traces and measurements into fio jobs and reports.",
    "A trace is a *.parquet or *.csv.zst file that `kvtrace gen` wrote; a run is a folder that `kvreplay run` wrote.",
)

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command()
def fio(
    trace: Annotated[Path, typer.Argument(help="The trace.", show_default=False)],
    tier: Annotated[str, typer.Option("--tier", help="The tier to take I/O from.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the jobs; made if missing.")],
    target: Annotated[
        str, typer.Option("--target", help="File or block device that the jobs overwrite.")
    ] = "kvdistill.scratch",
    fio_version: Annotated[
        str | None, typer.Option("--fio-version", help="Write for this fio [default: the installed one].")
    ] = None,
    io_bytes: Annotated[str, typer.Option("--io-bytes", help="Split longer operations of the replay.")] = "1MiB",
    limit: Annotated[
        str | None, typer.Option("--limit", help="Take only the tier's first rows (10000), time (60s) or bytes (8GiB).")
    ] = None,
    max_runtime: Annotated[str, typer.Option("--max-runtime", help="The longest the statistical job runs.")] = "300s",
    time_scale: Annotated[
        int, typer.Option("--time-scale", help="Speed of the replay in percent, as --check advises.")
    ] = 100,
    check: Annotated[bool, typer.Option("--check", help="Run both jobs briefly and compare.")] = False,
    check_seconds: Annotated[float, typer.Option("--check-seconds", help="How long each job runs.")] = 10.0,
    check_bytes: Annotated[
        str, typer.Option("--check-bytes", help="The most that --check replays, and its scratch file holds.")
    ] = "4GiB",
    json: Json = False,
) -> None:
    """Write fio jobs from one tier of a trace: an exact replay, and a statistical job.

    The folder gets replay.fio and replay.iolog, stat.fio and profile.json; each job's head says how to run it,
    what space it needs and what it lost. With --check, closeness.json says how close fio comes.

    \b
    kvdistill fio conv.parquet --tier nvme -o jobs
    kvdistill fio conv.parquet --tier nvme -o jobs --limit 60s --check
    cd jobs && fio replay.fio
    """
    from kvdistill.check import CheckOptions
    from kvdistill.fio import JobOptions
    from kvdistill.fioprogram import installed, parse_version
    from kvdistill.jobs import write_jobs
    from kvdistill.present import show_jobs
    from kvtrace.core.limit import parse_limit
    from kvtrace.core.units import parse_bytes, parse_duration_ns

    options = JobOptions(
        target=target, version=parse_version(fio_version) if fio_version else installed(),
        runtime_cap_ns=_positive(parse_duration_ns(max_runtime), f"--max-runtime {max_runtime}"),
        time_scale_percent=time_scale,
    )  # fmt: skip
    checks = CheckOptions(check_seconds, _positive(parse_bytes(check_bytes), f"--check-bytes {check_bytes}"))
    result = write_jobs(
        trace, tier, output, options, parse_bytes(io_bytes), parse_limit(limit), checks if check else None
    )
    if json:
        emit_json(result)
    else:
        show_jobs(result, output)


@app.command()
def report(
    paths: Annotated[
        list[Path], typer.Argument(metavar="TRACE|RUN...", help="Traces, or runs' folders.", show_default=False)
    ],
    output: Annotated[
        list[Path] | None,
        typer.Option("-o", "--output", help="Write to *.html, *.md, *.csv or *.xlsx; may be given again."),
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the report as Markdown.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print every figure on a CSV line of its own.")] = False,
    buckets: Annotated[int, typer.Option("--buckets", min=1, max=500, help="Stretches of equal time.")] = 24,
    json: Json = False,
) -> None:
    """Say what traces hold, or what runs measured: on the terminal, or as a page, a workbook or text.

    An HTML report is one file that needs no network; a workbook has the sheets of the MLPerf benchmark's.
    --json gives a list if there are several.

    \b
    kvdistill report conv.parquet
    kvdistill report run -o report.html -o report.xlsx
    kvdistill report run --json
    """
    from kvdistill.present_report import show_report
    from kvdistill.report import report as make
    from kvdistill.reportfile import check_names, documents_of, with_trials, write_report
    from kvdistill.textforms import csv_lines
    from kvdistill.textforms import markdown as as_markdown

    if json + markdown + csv > 1:
        raise ConfigError("choose one of --json, --markdown and --csv")
    outputs = output or []
    check_names(outputs)
    subjects = with_trials(paths)
    results = [make(path, buckets) for path, _name in subjects]
    documents = documents_of(results, [name for _path, name in subjects])
    for path in outputs:
        write_report(documents, path)
        log(f"wrote {path}")
    if json:
        emit_json(results[0] if len(results) == 1 else results)
    elif markdown or csv:
        typer.echo(as_markdown(documents) if markdown else csv_lines(documents), nl=False)
    elif not outputs:
        for result in results:
            show_report(result)


@app.command()
def sql(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Traces, tables or folders of them; the last argument is the SQL."),
    ],
    json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the result as CSV.")] = False,
    max_rows: Annotated[int, typer.Option("--max-rows", min=1, help="Rows that the table shows.")] = 100,
) -> None:
    """Answer an SQL query over files: views trace, objects, ops, requests, blocks.

    The query can only read. Rows have no order unless it says ORDER BY.

    \b
    kvdistill sql conv.parquet "SELECT tier, op, count(*) FROM trace GROUP BY ALL ORDER BY ALL"
    kvdistill sql run "SELECT max(completed_ns - submitted_ns) FROM ops" --csv
    """
    from kvdistill.present_report import show_answer
    from kvdistill.sqlshell import answer

    if len(files) < 2:  # noqa: PLR2004 - at least a file and a query
        raise ConfigError('name at least one file, then the query: kvdistill sql conv.parquet "SELECT ..."')
    if json and csv:
        raise ConfigError("choose one of --json and --csv")
    with answer(files[:-1], str(files[-1])) as batches:
        show_answer(batches, "json" if json else "csv" if csv else "table", max_rows)


def _positive(value: int, option: str) -> int:
    if value <= 0:
        raise ConfigError(f"{option}: it must be more than 0")
    return value


def main() -> None:
    """Run kvdistill."""
    run(app, "kvdistill")


if __name__ == "__main__":
    main()
