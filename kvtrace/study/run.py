"""Simulations one after another in this process, or on many cores, here or on a cluster, by Dask.

What fails comes back as its error, so that the rest goes on; a worker that dies is started again, and what it did is
given to another, a few times.
"""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtrace.core.errors import ConfigError, DeviceError, KvError, ProbeUnavailable, how_to_add
from kvtrace.curves.points import Simulated
from kvtrace.study.study import program_sha256

if TYPE_CHECKING:
    from distributed import Client

MOST_DEATHS = 3
"""Of workers at one configuration: more are its own doing, such as memory that it takes."""
_CONNECT_S = 10
INSTALL = how_to_add("dask")


@dataclass(frozen=True, slots=True)
class Task:
    """One simulation to run."""

    key: str
    argv: tuple[str, ...]
    folder: str
    """From where its files are named."""
    file_sha256: str | None = None
    """Of its file of requests, which a worker elsewhere must have too."""
    trace: str | None = None
    """Where its trace is written too."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A simulation that failed, and why."""

    error: str


Result = Simulated | Failed
Simulate = Callable[[Task], Simulated]


def has_dask() -> bool:
    """Return whether several processes can be had."""
    return find_spec("distributed") is not None


def in_turn(tasks: Sequence[Task], simulate: Simulate) -> Iterator[tuple[Task, Result]]:
    """Yield each task with its result, one after another in this process."""
    for task in tasks:
        yield task, attempt(simulate, task)


def attempt(simulate: Simulate, task: Task) -> Result:
    """Return what `simulate` makes of `task`, or how it failed."""
    try:
        return simulate(task)
    except KvError as error:
        return Failed(" ".join(str(error).split()))
    except MemoryError:
        return Failed("out of memory")
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this configuration's; the others go on
        at = traceback.extract_tb(error.__traceback__)[-1]
        return Failed(f"{type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno})")


def by_dask(
    tasks: Sequence[Task], simulate: Simulate, workers: int, scheduler: str | None
) -> Iterator[tuple[Task, Result]]:
    """Yield each task with its result, as they are ready: of `workers` processes here, or of the cluster `scheduler`.

    Raises:
        ProbeUnavailable: Dask is missing.
        ConfigError: there is no such scheduler, or its workers have another version of this program.

    """
    if not has_dask():
        raise ProbeUnavailable(f"--scheduler needs Dask: {INSTALL}")
    from distributed import as_completed

    with _client(workers, scheduler) as client:
        # Keys of their own: what another run of the same study left on a scheduler is not asked for.
        started = {
            client.submit(attempt, simulate, task, key=f"{task.key}-{os.getpid()}", pure=False): task for task in tasks
        }
        for future in as_completed(list(started)):
            yield started[future], _result(future)
            future.release()


def _result(future: Any) -> Result:
    try:
        # A result that was lost with its worker before we had it is made again.
        found: Result = future.result()
    except Exception as error:  # noqa: BLE001 - what Dask says of this one; the others go on
        if type(error).__name__ == "KilledWorker":
            return Failed(f"the worker that simulated it died {MOST_DEATHS} times; did it run out of memory?")
        return Failed(f"{type(error).__name__}: {error}")
    return found


@contextmanager
def _client(workers: int, scheduler: str | None) -> Iterator[Client]:
    import dask
    from distributed import Client

    settings = {
        "distributed.scheduler.allowed-failures": MOST_DEATHS - 1,
        # A simulation holds on to no lock of the interpreter, but for long calls that Dask would warn of.
        "distributed.admin.tick.limit": "1h",
        # As of any process: Dask would pause a worker for ever that keeps memory for its next simulation.
        "distributed.worker.memory.terminate": False,
        "distributed.worker.memory.pause": False,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.target": False,
    }
    with dask.config.set(settings):
        if scheduler is not None:
            try:
                client = Client(scheduler, timeout=_CONNECT_S)
            except (OSError, ValueError) as error:
                raise ConfigError(f"--scheduler {scheduler}: {error or 'nothing answers there'}") from None
            with client:
                _check_versions(client, scheduler)
                yield client
            return
        try:
            cluster = local_cluster(workers)
        except (OSError, RuntimeError) as error:
            raise DeviceError(f"no workers could be started: {error}; --workers 1 needs none") from None
        with cluster, Client(cluster) as client:
            yield client


def local_cluster(workers: int, **options: Any) -> Any:
    """Start a cluster of so many processes on this machine, which nobody elsewhere can reach; a context manager."""
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=workers, threads_per_worker=1, memory_limit=0, silence_logs=logging.CRITICAL, host="127.0.0.1",
        # No dashboard, and where one would be any port that is free.
        dashboard_address="127.0.0.1:0", scheduler_kwargs={"dashboard": False}, **options,
    )  # fmt: skip


def _check_versions(client: Client, scheduler: str) -> None:
    """Raise ConfigError unless the workers are there, and have this program as it is here."""
    try:
        found = client.run(program_sha256)
    except ModuleNotFoundError as error:
        raise ConfigError(f"--scheduler {scheduler}: its workers lack {error.name}; install the same there") from None
    if not found:
        raise ConfigError(f"--scheduler {scheduler}: it has no workers; start some with `dask worker {scheduler}`")
    if other := [worker for worker, digest in found.items() if digest != program_sha256()]:
        raise ConfigError(f"--scheduler {scheduler}: {other[0]} has another kvtrace than this one; install the same")
