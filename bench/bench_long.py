"""Long traces.

How fast one is simulated and written, and what its replay takes before its first I/O, and of
memory.

Each step is a process of its own, timed from start to end, with its greatest resident size. A
replay on null tiers shows the cost of rows alone, beside one of 1,000 rows, which is what the
programs' code takes; one on a file, twice, what writing its space costs once. So many million rows
as the arguments say (10; `10 100 1000` takes each in turn), so much space as --space says (2GiB; 0
leaves that out) below the working directory.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import figures

ROWS_PER_S = 11_000
"""Of trace time, that the simulated load makes."""
PRESET = ("--preset", "vllm-offload-cpu", "--users", "64", "--model", "llama3.1-8b")
SMALL = ("--preset", "vllm-offload-cpu", "--users", "64", "--model", "tiny-1b")
TARGET_ROW_S = 0.5e-6
"""Of a replay on null tiers, start included."""
MEBI = 1 << 20
RUNS = 3


class Took(NamedTuple):
    """What a process took."""

    wall_s: float
    cpu_s: float
    most_bytes: int


def took(program: str, *arguments: object, folder: Path) -> Took:
    """Run one of our programs in `folder`."""
    start = time.perf_counter()
    command = [sys.executable, "-m", f"{program}.cli", *map(str, arguments)]
    child = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0, command
    return Took(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10)


def rows_of(path: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def show(name: str, found: Took, rows: int, more: str = "") -> None:
    print(
        f"{name}: {rows:,} rows in {found.wall_s:.1f} s ({rows / found.wall_s / 1e6:.2f} M rows/s;"
        f" {found.cpu_s:.1f} s of processor time), {found.most_bytes / MEBI:,.0f} MiB at"
        f" most{more}",
        flush=True,
    )


def replay(name: str, trace: Path, *arguments: str) -> Took:
    """Replay `trace`, and print what came before its first I/O, and how much of its memory were
    buffers of I/Os.
    """
    folder, output = trace.parent, trace.parent / "run"
    found = took(
        "kvreplay",
        "run",
        trace,
        "--as-fast-as-possible",
        "--force",
        "-o",
        output,
        *arguments,
        folder=folder,
    )
    run = json.loads((output / "run.json").read_text(encoding="utf-8"))
    first, laid_out = (run["prepared"][key] / 1e9 for key in ("total_ns", "lay_out_ns"))
    rate = run["summary"]["operations"] / run["summary"]["wall_ns"] * 1e3
    buffers = run["engine"]["buffer_bytes"] / MEBI
    said = (
        f", {buffers:,.0f} of them buffers; first I/O after {first:.2f} s, {laid_out:.2f} s of them"
        " writing space; "
    )
    show(name, found, run["window"]["planned_rows"], f"{said}{rate:.2f} M op/s")
    return found


def keep_replay(rows: int, longs: list[Took], shorts: list[Took]) -> None:
    """Keep what replays of `rows` rows on null tiers took, beside the target and of 1,000 rows."""
    taken = []
    for count, runs in ((rows, longs), (1000, shorts)):
        wall_s, cpu_s, peak_bytes = map(statistics.median, zip(*runs, strict=True))
        most_s = None if runs is shorts else rows * TARGET_ROW_S
        what = f"`kvreplay run`, null tiers, {count:,} rows"
        taken.append(figures.CommandCost(what, wall_s, cpu_s, peak_bytes, most_s))
    said = f"Medians of {len(longs)}. Target: {TARGET_ROW_S * 1e6:g} µs a row."
    figures.record_costs(taken[::-1], said)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("millions", nargs="*", type=float, default=[10.0])
    parser.add_argument("--space", default="2GiB")
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    null = ("--tier", "gpu=null", "--tier", "cpu=null")
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-") as name:
        folder = Path(name)
        trace, small = folder / "long.parquet", folder / "small.parquet"
        for millions in options.millions:
            duration = f"{int(millions * 1e6) // ROWS_PER_S + 1}s"
            found = took(
                "kvtrace",
                "gen",
                *PRESET,
                "--duration",
                duration,
                "-o",
                trace,
                "--force",
                folder=folder,
            )
            show("simulated and written", found, rows_of(trace))
            pairs, longs, shorts = [], [], []
            for _ in range(RUNS):
                few = replay("1,000 rows on null tiers", trace, *null, "--limit", "1000")
                many = replay("replayed on null tiers", trace, *null)
                pairs.append((many.most_bytes / MEBI, few.most_bytes / MEBI))
                longs.append(many)
                shorts.append(few)
            what = f"most memory of a replay on null tiers, {rows_of(trace) / 1e6:.1f} M rows"
            figures.record_comparison(what, "MiB", "its first 1,000 rows", pairs)
            keep_replay(rows_of(trace), longs, shorts)
        if options.space != "0":
            capacity = ("--set", f"tiers.cpu.capacity={options.space}")
            duration = f"{int(options.millions[0] * 1e6) // ROWS_PER_S + 1}s"
            took(
                "kvtrace",
                "gen",
                *SMALL,
                *capacity,
                "--duration",
                duration,
                "-o",
                small,
                folder=folder,
            )
            target = (
                "--tier",
                f"cpu={folder / 'space.dat'}",
                "--queue-depth",
                "32",
                "--keep",
                "--duration",
                "5s",
            )
            replay("5 s on a file", small, *target)
            replay("again, its space written", small, *target)


if __name__ == "__main__":
    main()
