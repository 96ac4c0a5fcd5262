"""How much faster two workers make a study than one, with the ratio to its target, and what starting them costs.

Each side is a cluster of processes that is there already, and takes turns with the other in one run; figures are
medians. All share one cache of compiled code, which a study before has filled; nothing simulated is kept from one run
to the next.
"""

from __future__ import annotations

import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 3
TARGET = 1.8
STUDY = """
[base]
preset = "lmcache-disk"
gpu = "instant"
users = 64
duration = "100s"
[grid]
seed = {seeds}
tiers.nvme.capacity = ["250GiB", "500GiB", "1TiB", "2TiB"]
"""
WARM, SEEDS = [1], [1, 2, 3, 4, 5, 6]


def study(folder: Path, scheduler: str | None, seeds: list[int]) -> float:
    """Run a study from nothing; return its seconds."""
    path = folder / "study.toml"
    path.write_text(STUDY.format(seeds=seeds))
    with tempfile.TemporaryDirectory(dir=folder) as out:
        where = ["--workers", "1"] if scheduler is None else ["--scheduler", scheduler]
        argv = [sys.executable, "-m", "kvtrace.cli", "study", str(path), "-o", out, "--json", *where]
        start = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - start


def main() -> None:
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
    try:
        from distributed import LocalCluster
    except ImportError:
        print("study: skipped, Dask is not installed (pip install 'kvtrace[dask]')")
        return
    quiet = {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": logging.CRITICAL}
    with tempfile.TemporaryDirectory() as name:
        folder, starts, clusters = Path(name), [], []
        study(folder, None, WARM)
        for count in (1, 2):
            start = time.perf_counter()
            clusters.append(LocalCluster(n_workers=count, **quiet))
            starts.append(time.perf_counter() - start)
        for cluster in clusters:
            study(folder, cluster.scheduler_address, WARM)
        times: list[list[float]] = [[], []]
        for _ in range(RUNS):
            for side, cluster in zip(times, clusters, strict=True):
                side.append(study(folder, cluster.scheduler_address, SEEDS))
        for cluster in clusters:
            cluster.close()
    one, two = (statistics.median(side) for side in times)
    print(
        f"study of {4 * len(SEEDS)} configurations: {one:.1f} s on one worker, {two:.1f} s on two; speed-up "
        f"{one / two:.2f}, {one / two / TARGET:.2f}x the target of {TARGET:g}; to start two took {starts[1]:.1f} s"
    )


if __name__ == "__main__":
    main()
