"""How much faster two workers simulate a study than one, with the ratio to its target.

Each side is a cluster of processes that is there already, and takes turns with the other in one run; figures are
medians. All share one cache of compiled code, and have compiled or loaded it before. What one command takes besides, to
start, to start workers and to draw the page, is printed by itself.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 3
TARGET = 1.8
CAPACITIES = ("250GiB", "500GiB", "1TiB", "2TiB")
SEEDS = 12


def tasks(seeds: int) -> list:
    """Return the simulations of a grid of capacities and seeds."""
    from kvtrace.study.run import Task

    given = ("--preset", "lmcache-disk", "--gpu", "instant", "--users", "64", "--duration", "100s")
    return [
        Task(f"{seed}-{of}", (*given, "--seed", str(seed), "--set", f"tiers.nvme.capacity={of}"), str(Path.cwd()))
        for seed in range(seeds)
        for of in CAPACITIES
    ]


def simulated_s(scheduler: str, seeds: int) -> float:
    """Simulate a grid; return its seconds."""
    from kvtrace.commands.study import simulate
    from kvtrace.curves.points import Simulated
    from kvtrace.study.run import by_dask

    asked = tasks(seeds)
    start = time.perf_counter()
    found = [result for _, result in by_dask(asked, simulate, 0, scheduler)]
    took = time.perf_counter() - start
    assert len(found) == len(asked)
    assert all(isinstance(one, Simulated) for one in found), found
    return took


def small_command_s(*options: str) -> float:
    """Run a study of four tiny simulations; return its seconds."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "study.toml"
        path.write_text(
            '[base]\npreset = "lmcache-disk"\nmodel = "tiny-1b"\nduration = "10s"\n[grid]\nseed = [1, 2, 3, 4]\n'
        )
        argv = [sys.executable, "-m", "kvtrace.cli", "study", str(path), "-o", f"{name}/out", *options]
        start = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - start


def main() -> None:
    from kvtrace.study.run import has_dask, local_cluster

    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    if not has_dask():
        print("study: skipped, Dask is not installed (pip install -e '.[dask]')")
        return
    times: list[list[float]] = [[], []]
    with local_cluster(1) as one, local_cluster(2) as two:
        for cluster in (one, two):
            simulated_s(cluster.scheduler_address, 1)
        for _ in range(RUNS):
            for side, cluster in zip(times, (one, two), strict=True):
                side.append(simulated_s(cluster.scheduler_address, SEEDS))
    medians = [statistics.median(side) for side in times]
    gain = medians[0] / medians[1]
    print(
        f"study of {SEEDS * len(CAPACITIES)} configurations, simulating: {medians[0]:.1f} s on one worker, "
        f"{medians[1]:.1f} s on two; speed-up {gain:.2f}, {gain / TARGET:.2f}x the target of {TARGET:g}"
    )
    small_command_s("--workers", "1")
    beside = [statistics.median(small_command_s("--workers", n) for _ in range(RUNS)) for n in ("1", "2")]
    print(f"study, all else of a command: {beside[0]:.1f} s with one process, {beside[1]:.1f} s with two workers")


if __name__ == "__main__":
    main()
