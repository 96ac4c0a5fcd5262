"""The command line of kvdistill: thin; the work is in the library."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations when it runs
from typing import Annotated

import typer

from kvdistill import cli_import, cli_jobs, cli_reports
from kvtrace.core.app import emit_json, make_app, run
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


for command in (cli_jobs.warp, cli_jobs.sai3, cli_jobs.elbencho, cli_jobs.vdbench):
    app.command()(command)


app.command("import")(cli_import.import_)
app.command()(cli_reports.report)
app.command()(cli_reports.sql)
app.command()(cli_reports.compare)


def _positive(value: int, option: str) -> int:
    if value <= 0:
        raise ConfigError(f"{option}: it must be more than 0")
    return value


def main() -> None:
    """Run kvdistill."""
    run(app, "kvdistill")


if __name__ == "__main__":
    main()
