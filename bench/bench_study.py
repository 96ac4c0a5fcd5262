"""How much faster two simulations at a time finish a study than one, with the ratio to its target.

The sides take turns in one run; figures are medians. What one command takes besides, to start and
to draw the page, is printed by itself.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import figures

from kvtrace.studies.run import Task

RUNS = 3
DURATION = f"{figures.sized(100, 2)}s"
TARGET = 1.8
CAPACITIES = ("250GiB", "500GiB", "1TiB", "2TiB")
SEEDS = figures.sized(12, 1)


def tasks(seeds: int) -> list[Task]:
    """Return the simulations of a grid of capacities and seeds."""
    given = (
        "--preset",
        "lmcache-disk",
        "--gpu",
        "instant",
        "--users",
        "64",
        "--duration",
        DURATION,
    )
    return [
        Task(
            f"{seed}-{of}",
            (*given, "--seed", str(seed), "--set", f"tiers.nvme.capacity={of}"),
            str(Path.cwd()),
        )
        for seed in range(seeds)
        for of in CAPACITIES
    ]


def simulated_s(workers: int, seeds: int) -> float:
    """Simulate a grid; return its seconds."""
    from kvtrace.curves.points import Simulated
    from kvtrace.studies.run import run_locally
    from kvtrace.studies.worker import simulate

    asked = tasks(seeds)
    start = time.perf_counter()
    found = [result for _, result in run_locally(asked, simulate, workers)]
    took = time.perf_counter() - start
    assert len(found) == len(asked)
    assert all(isinstance(one, Simulated) for one in found), found
    return took


def small_command_s() -> float:
    """Run a study of four tiny simulations; return its seconds."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "study.toml"
        path.write_text(
            '[base]\npreset = "lmcache-disk"\nmodel = "tiny-1b"\nduration = "10s"\n[grid]\nseed ='
            " [1, 2, 3, 4]\n"
        )
        argv = [sys.executable, "-m", "kvtrace.cli", "study", str(path), "-o", f"{name}/out"]
        start = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - start


def main() -> None:
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    times: list[list[float]] = [[], []]
    simulated_s(1, 1)
    for _ in range(RUNS):
        for side, workers in zip(times, (1, 2), strict=True):
            side.append(simulated_s(workers, SEEDS))
    one, two = times
    figures.record_comparison(
        f"study of {SEEDS * len(CAPACITIES)} simulations, two at a time",
        "studies/s",
        "the same study, one at a time",
        [(1 / b, 1 / a) for a, b in zip(one, two, strict=True)],
    )
    medians = [statistics.median(side) for side in times]
    gain = medians[0] / medians[1]
    print(
        f"study of {SEEDS * len(CAPACITIES)} configurations, simulating: {medians[0]:.1f} s one at"
        f" a time, {medians[1]:.1f} s two at a time; speed-up {gain:.2f}, {gain / TARGET:.2f}x the"
        f" target of {TARGET:g}"
    )
    small_command_s()
    beside = statistics.median(small_command_s() for _ in range(RUNS))
    print(f"study, all else of a command: {beside:.1f} s")


if __name__ == "__main__":
    main()
