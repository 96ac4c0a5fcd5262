"""How long 50 million rows take to query, count, check, distil and report, and in how much memory.

A query is measured in turns with DuckDB alone on the same file, which verifies no checksums and has
no names of tiers. The other commands have no peer: each is printed with its target.

The trace is simulated first (not timed). Processor time is of all threads, and suffers less than
wall time from others on the machine. Takes two minutes and 0.1 GB on the disk.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import figures

SECONDS_OF_TRACE = figures.sized(900, 2)
"""Of the load below: 53 million rows."""
ROUNDS = 3
_GEN = [
    *("--preset", "lmcache-disk", "--users", "64", "--model", "llama3.1-8b"),
    *("--gpu", "instant", "--seed", "42"),
]
QUERY = (
    "SELECT tier, op, count(*) AS operations, sum(length_bytes) AS bytes"
    " FROM {} GROUP BY ALL ORDER BY ALL"
)
GEN_ROWS_PER_S = 12e6
"""That `kvtrace gen` should simulate and write."""
_DUCKDB = "import duckdb, sys; print(duckdb.sql(sys.argv[1]))"


class Measured(NamedTuple):
    """What a process took."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


class Command(NamedTuple):
    """A command, and what it may take for 50 million rows."""

    arguments: list[str]
    most_s: float
    most_bytes: float | None = None


def measure(command: list[str]) -> Measured:
    """Return what `command` takes, run in a process of its own."""
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        errors = process.stderr.read()
        _pid, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(errors)
    return Measured(
        time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
    )


def bench_query(trace: Path) -> None:
    """Measure a query of kvdistill, and the same of DuckDB alone, in turns."""
    ours, theirs = [], []
    for _ in range(ROUNDS):
        query = QUERY.format("trace")
        ours.append(measure([sys.executable, "-m", "kvdistill.cli", "sql", str(trace), query]))
        query = QUERY.format(f"'{trace}'")
        theirs.append(measure([sys.executable, "-c", _DUCKDB, query]))
    pairs = list(zip(ours, theirs, strict=True))
    figures.record_comparison(
        "`kvdistill sql`: operations and bytes of 53 M rows by tier",
        "queries/s",
        "DuckDB on the file",
        [(1 / a.wall_s, 1 / b.wall_s) for a, b in pairs],
        [(a.cpu_s, b.cpu_s) for a, b in pairs],
    )
    ratio = statistics.median(a.wall_s / b.wall_s for a, b in pairs)
    print(f"  sql: {statistics.median(a.wall_s for a in ours):.2f} s, {ratio:.2f} x DuckDB alone")


def bench_commands(trace: Path, folder: Path, gen: figures.CommandCost) -> None:
    """Measure the commands that have no peer; `gen` is what making the trace took."""
    commands = {
        "info": Command(["kvtrace.cli", "info", str(trace)], 2),
        "validate": Command(["kvtrace.cli", "validate", str(trace)], 4),
        "report": Command(
            ["kvdistill.cli", "report", str(trace), "-o", f"{folder}/report.md", "--force"],
            8,
            600e6,
        ),
        "fio": Command(
            [
                *("kvdistill.cli", "fio", str(trace), "--tier", "nvme", "--mode", "stat"),
                *("-o", f"{folder}/jobs", "--force"),
            ],
            10,
        ),
    }
    rows = [gen]
    for name, command in commands.items():
        runs = [measure([sys.executable, "-m", *command.arguments]) for _ in range(ROUNDS)]
        wall_s, cpu_s, peak_bytes = map(statistics.median, zip(*runs, strict=True))
        what = f"`{command.arguments[0].partition('.')[0]} {name}`"
        limits = (command.most_s, command.most_bytes)
        rows.append(figures.CommandCost(what, wall_s, cpu_s, peak_bytes, *limits))
    figures.record_costs(
        rows,
        f"Whole processes, medians of {ROUNDS}; gen once. The trace is of lmcache-disk, 64 users of"
        f" llama3.1-8b: {gen.what.partition('(')[2].partition(')')[0]}.",
    )


def main() -> None:
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        trace = Path(name) / "trace.parquet"
        duration = ["--duration", f"{SECONDS_OF_TRACE}s"]
        gen = ["kvtrace.cli", "gen", *_GEN, *duration, "-o", str(trace)]
        made = measure([sys.executable, "-m", *gen])
        rows = pq.read_metadata(trace).num_rows
        load = os.getloadavg()[0]
        print(f"{rows / 1e6:.1f} M rows; load average {load:.1f} on {os.cpu_count()} CPUs")
        bench_query(trace)
        what = f"`kvtrace gen` ({rows / 1e6:.1f} M rows)"
        most_s = rows / GEN_ROWS_PER_S
        bench_commands(trace, Path(name), figures.CommandCost(what, *made, most_s))


if __name__ == "__main__":
    main()
