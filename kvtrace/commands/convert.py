"""Convert tables: any source to a requests table, Parquet to CSV and back, MLPerf traces both ways."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from kvtrace.commands.options import AsJson, MaxRequests, Seed, SourceArguments
from kvtrace.core.app import emit_json, log, progress, takes_groups
from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import OBJECTS, TRACE
from kvtrace.core.tables import create, objects_path, open_table
from kvtrace.core.units import printable


@takes_groups
def import_(
    file: Annotated[Path, typer.Argument(help="A file of real requests; for some sources a directory or a glob.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The requests table: *.parquet or *.csv.zst.")],
    max_requests: MaxRequests = None,
    seed: Seed = 42,
    as_json: AsJson = False,
    *,
    source: SourceArguments,
) -> None:
    """Write a file of real requests as a requests table, and say what it holds: figures, gaps, oddities, nulls.

    `kvtrace gen requests.parquet` then makes the same trace as from the file itself.

    \b
    kvtrace import azure_2023_code.csv -o azure.parquet
    kvtrace import BurstGPT_1.csv --source burstgpt --time-scale 0.1 -o burst.csv.zst --json
    """
    from kvtrace.requests import account

    requests = source.read(file, seed, max_requests)
    with progress("writing", len(requests)) as tick:
        figures = account.write(output, requests, ["kvtrace", *sys.argv[1:]], seed, tick)
    if as_json:
        emit_json({"file": str(output), "source": requests.origin, "notes": requests.notes, **figures})
        return
    for note in requests.notes:
        log(f"note: {note}")
    typer.echo(printable(f"{output}: requests of {file}\n"))
    for what, how_much in account.lines(figures):
        typer.echo(printable(f"{what:<25}  {how_much}"))


def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="*.parquet, *.csv.zst, or an MLPerf trace CSV.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="*.parquet or *.csv.zst; with --to mlperf also *.csv.")],
    to: Annotated[str, typer.Option(help="Format of OUT: native, or mlperf.")] = "native",
) -> None:
    """Convert a table between Parquet and zstd CSV, or a trace from or to the MLPerf trace CSV.

    The objects table beside a trace goes along.

    \b
    kvtrace convert t.parquet t.csv.zst
    kvtrace convert mlperf_trace.csv t.parquet
    kvtrace convert t.parquet mlperf_trace.csv.zst --to mlperf
    """
    from kvtrace.trace import mlperf_csv

    if to not in ("native", "mlperf"):
        raise ConfigError(f"--to {to}: unknown format; use native or mlperf")
    if source.exists() and target.exists() and source.samefile(target):
        raise ConfigError(f"{target} is the input; name another output")
    with progress("converting") as tick:
        if to == "mlperf":
            if not target.name.endswith((".csv", ".csv.zst")):
                raise ConfigError(f"{target}: name an MLPerf trace *.csv or *.csv.zst")
            log(mlperf_csv.describe_losses(mlperf_csv.write_from(source, target, tick)))
        elif mlperf_csv.is_mlperf(source):
            found = mlperf_csv.read_into(source, target, ["kvtrace", *sys.argv[1:]], tick)
            for note in found.notes():
                log(f"note: {note}")
        else:
            _convert_native(source, target, tick)


def _convert_native(source: Path, target: Path, tick: Callable[[float], None]) -> None:
    reader = open_table(source)
    with ExitStack() as stack:
        if reader.table == TRACE and objects_path(source).exists():
            side = open_table(objects_path(source), OBJECTS)
            out = stack.enter_context(create(objects_path(target), OBJECTS, side.meta))
            for batch in side.batches():
                out.write(batch)
        out = stack.enter_context(create(target, reader.table, reader.meta, reader.extras))
        for batch in reader.batches():
            out.write(batch)
            tick(float(out.rows))
