"""What a newcomer waits for: processor seconds of each command's first use, on an empty cache, and of its second.

Beside it, `kvtrace sim` on a real trace against PyPI's kvcache-simulator, where both are there. Processor time is of
all threads, user and system, and suffers less than wall time from others on the machine.
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

RUNS = 5
CONVERSATION = Path(__file__).resolve().parents[2] / "shared" / "traces" / "mooncake_conversation.jsonl"
REQUESTS = "".join(
    f'{{"timestamp": {n}, "input_length": 1024, "output_length": 64, "hash_ids": [{n % 3}, {3 + n % 2}]}}\n'
    for n in range(20)
)
SIM_SECONDS = 0.7
"""That `kvtrace sim` may take on the conversation trace."""


class Command(NamedTuple):
    """A command line, and the processor seconds that its first use may take."""

    text: str
    most_s: float


COMMANDS = (
    Command("kvtrace gen --users 32 --duration 60s -o first.parquet", 20),
    Command("kvtrace sim requests.jsonl --source mooncake --policy lru --capacity-blocks 2", 20),
    Command("kvtrace sim requests.jsonl --source mooncake --policy s3fifo --capacity-blocks 2", 20),
    Command("kvtrace mrc requests.jsonl --source mooncake", 20),
    Command("kvtrace validate t.parquet", 20),
    Command("kvreplay run t.parquet --as-fast-as-possible --tier gpu=null --tier cpu=null --tier nvme=null -o run", 8),
    Command("kvdistill profile t.parquet --tier nvme -o profile.json", 5),
    Command("kvdistill fio t.parquet --tier nvme -o fio", 5),
    Command("kvdistill warp t.parquet --tier nvme -o warp", 5),
    Command("kvdistill sai3 t.parquet --tier nvme -o sai3", 5),
    Command("kvdistill report t.parquet", 5),
    Command("kvdistill compare t.parquet t.parquet", 5),
)


def seconds(text: str, folder: Path, cache: Path) -> tuple[float, float]:
    """Run a command line in `folder`; return its processor and its wall seconds."""
    program, *arguments = text.split()
    for made in ("run", "fio", "warp", "sai3"):
        shutil.rmtree(folder / made, ignore_errors=True)
    return timed(
        [sys.executable, "-m", f"{program}.cli", *arguments], folder, os.environ | {"XDG_CACHE_HOME": str(cache)}
    )


def timed(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[float, float]:
    """Run `command` in `folder`; return its processor and its wall seconds."""
    start = time.perf_counter()
    child = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _pid, status, usage = os.wait4(child.pid, 0)
    assert status == 0, command
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - start


def bench_first_use(folder: Path) -> None:
    for n, command in enumerate(COMMANDS):
        cache = folder / f"cache{n}"
        first, again = (seconds(command.text, folder, cache)[0] for _ in range(2))
        print(
            f"{command.text}: first {first:.1f} s of processor time, then {again:.2f} s; "
            f"{command.most_s / first:.1f}x the target of {command.most_s:g} s",
            flush=True,
        )


def bench_sim(folder: Path) -> None:
    if not CONVERSATION.is_file():
        print(f"kvtrace sim: skipped, there is no {CONVERSATION.name}")
        return
    ours = f"kvtrace sim {CONVERSATION} --source mooncake --policy lru --capacity-blocks 50000"
    peer = shutil.which("kvcache-simulator", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    runs, peers = [], []
    for _ in range(RUNS + 1):
        runs.append(seconds(ours, folder, folder / "cache"))
        if peer is not None:
            said = f"run --trace {CONVERSATION} --model deepseek-v3 --block-size 512 --policies lru --budgets-gib 1000"
            peers.append(timed([peer, *said.split(), "--no-progress", "-o", os.devnull], folder, dict(os.environ)))
    # The first of each fills caches: theirs compiles a C++ program.
    used, wall = (statistics.median(run[which] for run in runs[1:]) for which in (0, 1))
    print(
        f"kvtrace sim, {CONVERSATION.name}, lru: {wall:.2f} s wall, {used:.2f} s of processor time; "
        f"{SIM_SECONDS / wall:.2f}x the target of {SIM_SECONDS} s"
    )
    if not peers:
        print("kvcache-simulator: skipped, it is not installed (pip install kvcache-simulator)")
        return
    used, its_wall = (statistics.median(run[which] for run in peers[1:]) for which in (0, 1))
    print(
        f"kvcache-simulator, in turn: {its_wall:.2f} s wall, {used:.2f} s; ours takes {wall / its_wall:.2f}x"
    )


def main() -> None:
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "requests.jsonl").write_text(REQUESTS, encoding="utf-8")
        made = "kvtrace gen --users 8 --duration 20s --model tiny-1b --set tiers.gpu.capacity=256MiB "
        seconds(f"{made} --set tiers.cpu.capacity=512MiB -o t.parquet", folder, folder / "cache")
        bench_first_use(folder)
        bench_sim(folder)


if __name__ == "__main__":
    main()
