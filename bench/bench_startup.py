"""What each command takes on a small input.

Processor seconds and peak memory of the whole process, and its target.

Beside it, `kvtrace sim` on a real trace against PyPI's kvcache-simulator, where both are there.
Processor time is of all threads, user and system, and suffers less than wall time from others on
the machine.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import figures

RUNS = 5
CONVERSATION = (
    Path(__file__).resolve().parents[2] / "shared" / "traces" / "mooncake_conversation.jsonl"
)
REQUESTS = "".join(
    f'{{"timestamp": {n}, "input_length": 1024, "output_length": 64, "hash_ids": [{n % 3},'
    f" {3 + n % 2}]}}\n"
    for n in range(20)
)
SIM_SECONDS = 0.7
"""That `kvtrace sim` may take on the conversation trace."""


class Command(NamedTuple):
    """A command line, and what it may take."""

    text: str
    most_s: float | None = None
    most_bytes: int | None = None


_AS, _NULL = (
    "--source mooncake --preset vllm-fs --model tiny-1b",
    "--tier gpu=null --tier cpu=null --tier nvme=null",
)
COMMANDS = (
    Command("kvtrace --help", 0.15, 120_000_000),
    Command("kvtrace info small.parquet", 0.4, 120_000_000),
    Command(
        "kvtrace gen requests.jsonl --source mooncake --preset vllm-fs --model tiny-1b -o"
        " g.parquet",
        0.5,
        120_000_000,
    ),
    Command("kvtrace sim requests.jsonl --source mooncake --policy s3fifo --capacity-blocks 2"),
    Command("kvtrace mrc requests.jsonl --source mooncake"),
    Command("kvtrace validate small.parquet"),
    Command(
        "kvreplay run small.parquet --as-fast-as-possible --tier cpu=null --tier nvme=null -o run",
        0.6,
        130_000_000,
    ),
    Command("kvdistill profile small.parquet --tier nvme -o profile.json"),
    Command("kvdistill fio small.parquet --tier nvme -o fio", 0.7, 120_000_000),
    Command("kvdistill report small.parquet"),
)
"""small.parquet has some 1,000 rows."""


class Used(NamedTuple):
    """What a process took."""

    cpu_s: float
    wall_s: float
    peak_bytes: int


def used(text: str, folder: Path) -> Used:
    """Run a command line in `folder`; return what it took."""
    program, *arguments = text.split()
    for made in ("run", "fio"):
        shutil.rmtree(folder / made, ignore_errors=True)
    for made in ("g.parquet", "g.objects.parquet", "g.requests.parquet", "profile.json"):
        (folder / made).unlink(missing_ok=True)
    return timed([sys.executable, "-m", f"{program}.cli", *arguments], folder)


def timed(command: list[str], folder: Path) -> Used:
    """Run `command` in `folder`; return what it took."""
    start = time.perf_counter()
    child = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _pid, status, usage = os.wait4(child.pid, 0)
    assert status == 0, command
    return Used(
        usage.ru_utime + usage.ru_stime, time.perf_counter() - start, usage.ru_maxrss * 1024
    )


def bench_commands(folder: Path) -> None:
    """Measure each command on a small input."""
    rows = []
    for command in COMMANDS:
        runs = [used(command.text, folder) for _ in range(RUNS)]
        cpu_s, wall_s, peak_bytes = map(statistics.median, zip(*runs, strict=True))
        limits = (command.most_s, command.most_bytes)
        what = f"`{command.text}`"
        rows.append(
            figures.CommandCost(what, wall_s, cpu_s, peak_bytes, *limits, target_is_cpu_time=True)
        )
    figures.record_costs(rows, f"Whole processes, medians of {RUNS}, on inputs of some 1,000 rows.")


def bench_sim(folder: Path) -> None:
    if not CONVERSATION.is_file():
        print(f"kvtrace sim: skipped, there is no {CONVERSATION.name}")
        return
    ours = f"kvtrace sim {CONVERSATION} --source mooncake --policy lru --capacity-blocks 50000"
    peer = shutil.which(
        "kvcache-simulator", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    )
    runs, peers = [], []
    for _ in range(RUNS + 1):
        runs.append(used(ours, folder))
        if peer is not None:
            said = (
                f"run --trace {CONVERSATION} --model deepseek-v3 --block-size 512 --policies lru"
                " --budgets-gib 1000"
            )
            peers.append(timed([peer, *said.split(), "--no-progress", "-o", os.devnull], folder))
    # The first of each fills caches: theirs compiles a C++ program.
    cpu_s, wall = (statistics.median(run[which] for run in runs[1:]) for which in (0, 1))
    print(
        f"kvtrace sim, {CONVERSATION.name}, lru: {wall:.2f} s wall, {cpu_s:.2f} s of processor"
        f" time; {SIM_SECONDS / wall:.2f}x the target of {SIM_SECONDS} s"
    )
    if not peers:
        print("kvcache-simulator: skipped, it is not installed (pip install kvcache-simulator)")
        return
    pairs = list(zip(runs[1:], peers[1:], strict=True))
    figures.record_comparison(
        "`kvtrace sim` of Mooncake's conversations",
        "runs/s",
        "kvcache-simulator",
        [(1 / a.wall_s, 1 / b.wall_s) for a, b in pairs],
        [(a.cpu_s, b.cpu_s) for a, b in pairs],
    )
    cpu_s, its_wall = (statistics.median(run[which] for run in peers[1:]) for which in (0, 1))
    print(
        f"kvcache-simulator, in turn: {its_wall:.2f} s wall, {cpu_s:.2f} s; ours takes"
        f" {wall / its_wall:.2f}x"
    )


def main() -> None:
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "requests.jsonl").write_text(REQUESTS, encoding="utf-8")
        used(f"kvtrace gen requests.jsonl {_AS} -o small.parquet", folder)
        bench_commands(folder)
        bench_sim(folder)


if __name__ == "__main__":
    main()
