"""Run simulations on all cores of this machine, or on a Dask cluster, and write their table.

A failed simulation becomes a row with its error, and the others continue. The Parquet table has
the same bytes for any number of workers.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from kvtrace.core import pa
from kvtrace.core.config import as_text
from kvtrace.core.errors import ConfigError, KvError, ProbeUnavailable, how_to_add
from kvtrace.core.metadata import TierFacts, describe
from kvtrace.core.parameters import named
from kvtrace.core.schema import Table, arrow_schema, study_table
from kvtrace.core.statistics import total
from kvtrace.core.tables import create
from kvtrace.curves.points import Simulated
from kvtrace.studies.study import Configuration, Study, Value, program_sha256

if TYPE_CHECKING:
    from distributed import Client


_CONNECT_S = 10


@dataclass(frozen=True, slots=True)
class Task:
    """One simulation to run."""

    key: str
    argv: tuple[str, ...]
    folder: str
    """Folder that relative paths of its files refer to."""
    file_sha256: str | None = None
    """Hash of its request file, which a remote worker must have too."""
    trace: str | None = None
    """Path of the trace to write; None for none."""
    is_compared: bool = False
    """Whether TTFT without offload, and the optimum of all policies, are simulated, too."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A simulation that failed, and why."""

    error: str


Result = Simulated | Failed
Simulate = Callable[[Task], Simulated]


def run_locally(
    tasks: Sequence[Task], simulate: Simulate, workers: int
) -> Iterator[tuple[Task, Result]]:
    """Yield each task with its result as it completes, on `workers` threads.

    Threads are enough, because the compiled simulation releases the GIL.
    """
    pending: SimpleQueue[Task] = SimpleQueue()
    completed: SimpleQueue[tuple[Task, Result]] = SimpleQueue()
    for task in tasks:
        pending.put(task)

    def work() -> None:
        while True:
            try:
                task = pending.get_nowait()
            except Empty:
                return
            completed.put((task, attempt(simulate, task)))

    for _ in range(min(workers, len(tasks))):
        # Daemon threads, so that Ctrl-C does not wait for simulations.
        Thread(
            target=copy_context().run, args=(work,), daemon=True
        ).start()  # the context keeps --quiet
    for _ in tasks:
        yield completed.get()


def attempt(simulate: Simulate, task: Task) -> Result:
    """Return the result of `task`, or the error that it failed with."""
    try:
        return simulate(task)
    except KvError as error:
        return Failed(" ".join(str(error).split()))
    except MemoryError:
        return Failed("out of memory")
    except Exception as error:  # noqa: BLE001 - any error concerns this task alone
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return Failed(
            f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"
        )


def run_on_dask(
    tasks: Sequence[Task], simulate: Simulate, scheduler: str
) -> Iterator[tuple[Task, Result]]:
    """Yield each task with its result as it completes, on the cluster of `scheduler`.

    ProbeUnavailable if Dask is missing; ConfigError if the scheduler does not answer, or its
    workers have another version of this program.
    """
    if find_spec("distributed") is None:
        raise ProbeUnavailable(f"{named('scheduler')} needs Dask: {how_to_add('dask')}")
    from distributed import as_completed

    with _client(scheduler) as client:
        # Unique keys exclude results of another run of the study on the scheduler.
        started = {
            client.submit(
                attempt, simulate, task, key=f"{task.key}-{os.getpid()}-{number}", pure=False
            ): task
            for number, task in enumerate(tasks)
        }
        for future in as_completed(list(started)):
            try:
                # Dask repeats a task if its worker was lost before the result arrived.
                result: Result = future.result()
            except Exception as error:  # noqa: BLE001 - an error of Dask concerns this task only
                is_killed = type(error).__name__ == "KilledWorker"
                reason = "each worker that simulated it died; check their memory"
                result = Failed(reason if is_killed else f"{type(error).__name__}: {error}")
            yield started[future], result
            future.release()


@contextmanager
def _client(scheduler: str) -> Iterator[Client]:
    from distributed import Client

    try:
        client = Client(scheduler, timeout=_CONNECT_S)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{named('scheduler', scheduler)}: {error or 'nothing answers there'}"
        ) from None
    with client:
        try:
            digests = client.run(program_sha256)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"{named('scheduler', scheduler)}: its workers lack {error.name}; install it there"
            ) from None
        if not digests:
            raise ConfigError(
                f"{named('scheduler', scheduler)}: it has no workers; start some with `dask worker"
                f" {scheduler}`"
            )
        if mismatched := [
            worker for worker, digest in digests.items() if digest != program_sha256()
        ]:
            raise ConfigError(
                f"{named('scheduler', scheduler)}: {mismatched[0]} has another kvtrace than this"
                " one; install the same"
            )
        yield client


_COUNTERS = (
    *(
        "requests",
        "lookups",
        "hit_ratio",
        "input_tokens",
        "recomputed_tokens",
        "output_tokens",
        "span_ns",
    ),
    *("imbalance", "duplicate_bytes"),
)


@dataclass(frozen=True, slots=True)
class StudyRow:
    """One configuration and its result."""

    configuration: Configuration
    result: Result
    price: float | None = None
    """Price of its tiers, 0 if none of them has a price.

    Null without prices, or if a tier that has a price is unlimited.
    """
    parts: tuple[float, ...] = ()
    """Summands of the price, if it has several."""

    @property
    def figures(self) -> Simulated | None:
        """Return the simulated figures; null if the simulation failed."""
        return None if isinstance(self.result, Failed) else self.result

    @property
    def capacity_bytes(self) -> int | None:
        """Return the capacity of all tiers together; null if one is unlimited."""
        capacities = [tier.total_bytes for tier in self.figures.tiers] if self.figures else [None]
        return None if None in capacities else sum(size or 0 for size in capacities)

    def first_token_ns(self, name: str) -> float | None:
        """Return a percentile of the modelled TTFT in ns; null if unknown."""
        return self.figures.first_token_ns(name) if self.figures else None


def rows_of(study: Study, results: Mapping[int, Result]) -> list[StudyRow]:
    """Return the configurations that have a result, in the order of the grid."""
    rows = []
    for configuration in study.configurations:
        if (result := results.get(configuration.number)) is not None:
            tiers = (
                []
                if isinstance(result, Failed)
                else [tier for tier in result.tiers if tier.name in study.price]
            )
            costs = [
                None if tier.total_bytes is None else study.price[tier.name] * tier.total_bytes
                for tier in tiers
            ]
            is_known = costs or isinstance(result, Failed) or not study.price
            rows.append(StudyRow(configuration, result, total(costs) if is_known else 0.0))
    return rows


def rows_table(
    study: Study, rows: Sequence[StudyRow]
) -> tuple[Table, pa.RecordBatch, list[str], dict[str, str]]:
    """Return the table of `rows`, their batch, the names of the tiers, and the types of the knobs."""
    tiers = list(
        dict.fromkeys(tier.name for row in rows if row.figures for tier in row.figures.tiers)
    )
    kinds = {
        key: _kind(
            [
                configuration.knobs[key]
                for configuration in study.configurations
                if key in configuration.knobs
            ]
        )
        for key in study.keys
    }
    table = study_table({"knob": kinds, "tier": dict.fromkeys(tiers, "")})
    batch = pa.RecordBatch.from_pylist(
        [dict(_cells(row, kinds)) for row in rows], arrow_schema(table)
    )
    return table, batch, tiers, kinds


def write_rows(path: Path, study: Study, rows: Sequence[StudyRow], argv: list[str]) -> None:
    """Write `rows` to a temporary file and rename it to `path`."""
    table, batch, tiers, kinds = rows_table(study, rows)
    config = {"knobs": kinds, "price": study.price, "configurations": len(study.configurations)}
    meta = describe(
        table, "kvtrace", argv, config, tiers=[TierFacts(name) for name in tiers], is_simulated=True
    )
    with create(path, table, meta) as out:
        out.write(batch)


def _kind(values: Sequence[Value]) -> str:
    kinds = {type(value) for value in values}
    if kinds == {int} and all(
        -(1 << 62) <= value <= 1 << 62 for value in values if isinstance(value, int)
    ):
        return "int64"
    return "float64" if kinds <= {int, float} else "string"


def _cells(row: StudyRow, kinds: Mapping[str, str]) -> Iterator[tuple[str, object]]:
    """Yield the cells of `row` by column; unknown ones are left out."""
    yield "configuration", row.configuration.number
    yield "command", row.configuration.command
    for key, value in row.configuration.knobs.items():
        yield f"knob.{key}", as_text(value) if kinds[key] == "string" else value
    if isinstance(row.result, Failed):
        yield "error", row.result.error
        return
    figures = row.result
    for name in _COUNTERS:
        yield name, getattr(figures, name)
    for name in ("p50_ns", "p95_ns", "p99_ns"):
        yield f"first_token_{name}", row.first_token_ns(name)
    yield "capacity_bytes", row.capacity_bytes
    yield "price", row.price
    for tier in figures.tiers:
        yield from ((f"tier.{tier.name}.{name}", value) for name, value in tier.figures().items())
