"""Long traces: how fast one is simulated and written, and what its replay takes before its first I/O, and of memory.

Each step is a process of its own, timed from start to end, with its greatest resident size; a step before has compiled.
A replay on null tiers shows the cost of rows alone; one on a file, twice, what writing its space costs once. So many
million rows as the argument says (10), so much space as the second says (2 GiB) below the working directory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROWS_PER_S = 11_000
"""Of trace time, that the simulated load makes."""
PRESET = ("--preset", "vllm-offload-cpu", "--users", "64", "--model", "llama3.1-8b")
SMALL = ("--preset", "vllm-offload-cpu", "--users", "64", "--model", "tiny-1b")
MEBI = 1 << 20


class Took(NamedTuple):
    """What a process took."""

    wall_s: float
    cpu_s: float
    most_bytes: int


def took(program: str, *arguments: object, folder: Path) -> Took:
    """Run one of our programs in `folder`."""
    start = time.perf_counter()
    command = [sys.executable, "-m", f"{program}.cli", *map(str, arguments)]
    child = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    assert status == 0, command
    return Took(time.perf_counter() - start, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10)


def rows_of(path: Path) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def show(name: str, found: Took, rows: int, more: str = "") -> None:
    print(
        f"{name}: {rows:,} rows in {found.wall_s:.1f} s ({rows / found.wall_s / 1e6:.2f} M rows/s; {found.cpu_s:.1f} s "
        f"of processor time), {found.most_bytes / MEBI:,.0f} MiB at most{more}",
        flush=True,
    )


def replay(name: str, trace: Path, *arguments: str) -> None:
    """Replay `trace`, and print what came before its first I/O."""
    folder, output = trace.parent, trace.parent / "run"
    found = took("kvreplay", "run", trace, "--as-fast-as-possible", "--force", "-o", output, *arguments, folder=folder)
    run = json.loads((output / "run.json").read_text(encoding="utf-8"))
    first, laid_out = (run["prepared"][key] / 1e9 for key in ("total_ns", "lay_out_ns"))
    rate = run["summary"]["operations"] / run["summary"]["wall_ns"] * 1e3
    said = f"; first I/O after {first:.2f} s, {laid_out:.2f} s of them writing space; {rate:.2f} M op/s"
    show(name, found, run["window"]["planned_rows"], said)


def main() -> None:
    rows = int(float(sys.argv[1]) * 1e6) if len(sys.argv) > 1 else 10_000_000
    space = sys.argv[2] if len(sys.argv) > 2 else "2GiB"
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-") as name:
        folder = Path(name)
        trace, small = folder / "long.parquet", folder / "small.parquet"
        # What is compiled once a version is not what is measured.
        took("kvtrace", "gen", *PRESET, "--duration", "10s", "-o", trace, folder=folder)
        replay("compiled", trace, "--tier", "gpu=null", "--tier", "cpu=null")
        found = took("kvtrace", "gen", *PRESET, "--duration", f"{rows // ROWS_PER_S + 1}s", "-o", trace, folder=folder)
        show("simulated and written", found, rows_of(trace))
        replay("replayed on null tiers", trace, "--tier", "gpu=null", "--tier", "cpu=null")
        capacity = ("--set", f"tiers.cpu.capacity={space}")
        duration = f"{rows // ROWS_PER_S + 1}s"
        took("kvtrace", "gen", *SMALL, *capacity, "--duration", duration, "-o", small, folder=folder)
        target = ("--tier", f"cpu={folder / 'space.dat'}", "--queue-depth", "32", "--keep", "--runtime", "5s")
        replay("5 s on a file", small, *target)
        replay("again, its space written", small, *target)


if __name__ == "__main__":
    main()
