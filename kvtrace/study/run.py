"""Simulations on all cores of this machine, or on a cluster by Dask; what fails is its error, and the rest goes on."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from kvtrace.core.errors import ConfigError, KvError, ProbeUnavailable, how_to_add
from kvtrace.curves.points import Simulated
from kvtrace.study.study import program_sha256

if TYPE_CHECKING:
    from distributed import Client

_CONNECT_S = 10


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


def here(tasks: Sequence[Task], simulate: Simulate, workers: int) -> Iterator[tuple[Task, Result]]:
    """Yield each task with its result, as they are ready, of so many threads: compiled code needs no interpreter."""
    left: SimpleQueue[Task] = SimpleQueue()
    made: SimpleQueue[tuple[Task, Result]] = SimpleQueue()
    for task in tasks:
        left.put(task)

    def work() -> None:
        while True:
            try:
                task = left.get_nowait()
            except Empty:
                return
            made.put((task, attempt(simulate, task)))

    for _ in range(min(workers, len(tasks))):
        # Daemons: Ctrl-C waits for no simulation.
        Thread(target=work, daemon=True).start()
    for _ in tasks:
        yield made.get()


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


def by_dask(tasks: Sequence[Task], simulate: Simulate, scheduler: str) -> Iterator[tuple[Task, Result]]:
    """Yield each task with its result, as they are ready, of the cluster `scheduler`.

    Raises:
        ProbeUnavailable: Dask is missing.
        ConfigError: there is no such scheduler, or its workers have another version of this program.

    """
    if find_spec("distributed") is None:
        raise ProbeUnavailable(f"--scheduler needs Dask: {how_to_add('dask')}")
    from distributed import as_completed

    with _client(scheduler) as client:
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
            return Failed("each worker that simulated it died; did they run out of memory?")
        return Failed(f"{type(error).__name__}: {error}")
    return found


@contextmanager
def _client(scheduler: str) -> Iterator[Client]:
    from distributed import Client

    try:
        client = Client(scheduler, timeout=_CONNECT_S)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--scheduler {scheduler}: {error or 'nothing answers there'}") from None
    with client:
        _check_versions(client, scheduler)
        yield client


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
