"""Simulations as a study's workers find them, which also go wrong.

Importable by processes of Dask's.
"""

from __future__ import annotations

import logging
import os
import signal
from pathlib import Path
from typing import Any

from kvtrace.curves.points import Simulated
from kvtrace.studies.run import Task
from kvtrace.studies.worker import simulate

BEGIN = """
[base]
preset = "lmcache-disk"
model = "tiny-1b"
users = 2
duration = "3s"
tiers.gpu.capacity = "64MiB"
tiers.cpu.capacity = "64MiB"
"""
SMALL = f"""{BEGIN}
[grid]
seed = [1, 2]
tiers.nvme.policy = ["lru", "fifo"]
tiers.nvme.capacity = ["64MiB", "256MiB", "1GiB"]

[price]
nvme = "1/GiB"
"""
"""A study of twelve."""


def study_file(folder: Path, text: str = SMALL) -> Path:
    """Write a study below `folder`; return its path."""
    path = folder / "study.toml"
    path.write_text(text)
    return path


def cluster_of(workers: int, **options: Any) -> Any:
    """Start a Dask cluster of so many workers, as a user has one, that gives up early.

    A context manager.
    """
    import dask
    from distributed import LocalCluster

    dask.config.set({"distributed.scheduler.allowed-failures": 1})
    return LocalCluster(
        n_workers=workers, threads_per_worker=1, memory_limit=0, host="127.0.0.1", silence_logs=logging.CRITICAL,
        dashboard_address="127.0.0.1:0", scheduler_kwargs={"dashboard": False}, **options,
    )  # fmt: skip


def dies_once(task: Task) -> Simulated:
    """Simulate.

    But the worker that has the middle of the first axis first is killed, as by want of memory.
    """
    marker = Path(os.environ["KVTRACE_TEST_MARKER"])
    if "seed 2" in " ".join(task.argv).replace("--", "") and not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return simulate(task)


def dies(task: Task) -> Simulated:
    """Simulate; but with fifo the worker dies, each time."""
    if "tiers.nvme.policy=fifo" in task.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return simulate(task)
