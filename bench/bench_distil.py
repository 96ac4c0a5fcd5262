"""How long 100 million rows take to distil and to report, and in how much memory.

A minute and 2 GB at most, each.

The trace is simulated first (not timed). Processor time is of all threads, and suffers less than
wall time from others on the machine. Takes three minutes and 0.2 GB on the disk.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROWS = 100_000_000
SECONDS_OF_TRACE = 1080
"""Of the load below: what makes so many rows."""
TARGET_S, TARGET_BYTES = 60.0, 2e9
_GEN = [
    "--preset",
    "lmcache-disk",
    "--users",
    "100",
    "--model",
    "llama3.1-8b",
    "--gpu",
    "instant",
    "--seed",
    "42",
]


def measured(command: list[str]) -> tuple[float, float, int]:
    """Return the wall time, the processor time and the most memory of `command`, run in a process
    of its own.
    """
    start = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = process.stderr.read()
        _pid, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(said)
    return time.perf_counter() - start, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024


def main() -> None:
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        trace = Path(name) / "trace.parquet"
        program = [sys.executable, "-m"]
        measured(
            [
                *program,
                "kvtrace.cli",
                "gen",
                *_GEN,
                "--duration",
                f"{SECONDS_OF_TRACE}s",
                "-o",
                str(trace),
            ]
        )
        rows = pq.read_metadata(trace).num_rows
        print(
            f"{rows / 1e6:.1f} M rows; load average {os.getloadavg()[0]:.1f} on {os.cpu_count()}"
            " CPUs"
        )
        commands = {
            "distil": [
                "kvdistill.cli",
                "fio",
                str(trace),
                "--tier",
                "nvme",
                "--mode",
                "stat",
                "-o",
                f"{name}/jobs",
            ],
            "report": ["kvdistill.cli", "report", str(trace), "-o", f"{name}/report.md"],
        }
        for what, command in commands.items():
            wall, cpu, memory = measured([*program, *command])
            per_100m = wall * ROWS / rows
            print(
                f"  {what}: {wall:.1f} s wall, {cpu:.1f} s of processor time, {memory / 1e9:.2f} GB"
            )
            print(f"    for 100 M rows {per_100m:.1f} s: {per_100m / TARGET_S:.2f} of the target")
            print(f"    memory: {memory / TARGET_BYTES:.2f} of the target", flush=True)


if __name__ == "__main__":
    main()
