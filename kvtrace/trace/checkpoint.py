"""The checkpoints of a training run, as a trace and its objects table.

`run_course` draws the times of saves, failures and restores; `shard_bytes` divides a checkpoint
among the ranks that write it.

A save or restore is a request. In its stages, the marker is read, all ranks transfer their shards,
the marker is written, and the expired checkpoint is deleted. So each save waits for the one before
it, in whatever order a replay submits the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from kvtrace.core.arrays import Array
from kvtrace.core.document.document import (
    Chapter,
    Document,
    ReportColumn,
    Sheet,
    Unit,
    table_of,
)
from kvtrace.core.errors import ConfigError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.metadata import Metadata, TierFacts, describe
from kvtrace.core.parameters import named
from kvtrace.core.schema import OBJECTS, TRACE, Op, Phase, enum_code, objects_batch
from kvtrace.core.tables import create, objects_path, staged
from kvtrace.core.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    parse_duration_ns,
)
from kvtrace.sim.output import trace_batch
from kvtrace.sim.presets.preset import DESCRIPTION, MOST_EVENTS, TRAINING, Training, WrittenBy

_READ, _WRITE, _DELETE = (enum_code(TRACE, "op", op) for op in (Op.READ, Op.WRITE, Op.DELETE))
_SAVE, _RESTORE, _EVICT = (
    enum_code(TRACE, "phase", p) for p in (Phase.SAVE, Phase.RESTORE, Phase.EVICT)
)
_MARKER = 0
"""The object that names the newest checkpoint, like the marker file of trainers."""
MARKER_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Event:
    """A save or a restore that becomes due."""

    is_save: bool
    at_ns: int
    checkpoint: int
    """The number of the checkpoint, from 0 in the order of saves."""


@dataclass(slots=True)
class Course:
    """The course of a training run: its saves, restores and failures."""

    events: list[Event]
    failures: int = 0
    lost_ns: int = 0
    """Training time lost by all failures: the time since the last save or restart before each."""


@dataclass(frozen=True, slots=True)
class Saving:
    """A training run, with the data that its trace needs."""

    training: Training
    course: Course
    shards: dict[str, list[int]]
    """Bytes by rank, of each component: weights and optimizer."""
    model: JsonObject
    """The model, as the metadata describes it."""
    until_ns: int
    seed: int

    @property
    def sizes(self) -> Array:
        """int64: the sizes of the objects of one checkpoint, component by component."""
        return np.concatenate([np.array(sizes, np.int64) for sizes in self.shards.values()])

    def stats(self) -> JsonObject:
        """Return the counters of the run: saves, restores, failures, lost time and bytes."""
        saves = sum(event.is_save for event in self.course.events)
        restores = len(self.course.events) - saves
        size = int(self.sizes.sum())
        return {
            "saves": saves,
            "restores": restores,
            "failures": self.course.failures,
            "lost_ns": self.course.lost_ns,
            "checkpoint_bytes": size,
            "checkpoint_objects": len(self.sizes),
            "written_bytes": saves * (size + MARKER_BYTES),
            "read_bytes": restores * size + (len(self.course.events) - 1) * MARKER_BYTES,
        }


def write(path: Path, job: Saving, argv: list[str], progress: Callable[[float], None]) -> Metadata:
    """Write the trace of `job` to `path`, and its objects table beside it.

    Return the trace's metadata.
    """
    is_several = job.training.ranks > job.training.ranks_per_node
    extras = ("node",) if is_several else ()
    config = {
        "preset": TRAINING,
        "model": job.model["name"],
        "seed": job.seed,
        "duration_ns": job.until_ns,
        "training": msgspec.to_builtins(job.training),
    }
    meta = describe(
        *(TRACE, "kvtrace", argv, config),
        seed=job.seed,
        preset=TRAINING,
        model=job.model,
        tiers=[TierFacts(job.training.tier)],
        source={"kind": TRAINING, "ranks": job.training.ranks},
        notes=list(notes(job)),
        is_simulated=True,
    )
    with ExitStack() as stack:
        # The trace is entered first and so renamed last: if it exists, the objects table does.
        target = stack.enter_context(staged(path))
        trace = stack.enter_context(create(target, TRACE, meta, extras))
        objects = stack.enter_context(create(objects_path(target), OBJECTS, meta))
        objects.write(objects_batch([_MARKER], ["checkpoint/latest"], "checkpoint", [MARKER_BYTES]))
        for index, rows in enumerate(_rows(job)):
            if is_several:
                rows["node"] = rows["rank"].astype(np.int32) // job.training.ranks_per_node
            trace.write(trace_batch(rows, extras))
            event = job.course.events[index]
            if event.is_save:
                first = 1 + event.checkpoint * len(job.sizes)
                ids = np.arange(first, first + len(job.sizes))
                keys = [
                    f"checkpoint/{event.checkpoint:06d}/{component}-{rank:05d}-of-{len(shard):05d}"
                    for component, shard in job.shards.items()
                    for rank in range(len(shard))
                ]
                objects.write(objects_batch(ids, keys, "checkpoint", job.sizes))
            progress(float(event.at_ns))
        for writer in (trace, objects):
            writer.update(stats={"checkpoint": job.stats()})
            writer.finish()
    return trace.meta


def notes(job: Saving) -> Iterator[str]:
    """Yield the assumptions of the trace."""
    training = job.training
    size, ranks = int(job.sizes.sum()), format_count(training.ranks)
    yield (
        f"{DESCRIPTION}; a checkpoint is {format_bytes(size)}:"
        f" {format_count(job.model['parameters'])} parameters of {training.weight_bytes:g} bytes,"
        f" and {training.optimizer_bytes:g} of the optimizer"
    )
    if training.placement is WrittenBy.RANK0:
        yield (
            f"rank 0 writes and reads everything for {ranks} ranks; its transfers to the others are not"
            " storage I/O"
        )
    else:
        yield f"{ranks} ranks write and read equal parts, all at once"
    yield (
        "simulated: all I/O of a save or restore is due at one time; a replay measures how long it"
        " takes, and so how long training waits"
    )
    yield (
        f"rank 0 reads a marker of {MARKER_BYTES} bytes before a save or restore, and writes it"
        " after a save: assumed"
    )


def _rows(job: Saving) -> Iterator[JsonObject]:
    sizes = job.sizes
    ranks = np.concatenate([np.arange(len(shard)) for shard in job.shards.values()])
    for number, event in enumerate(job.course.events):
        phase = _SAVE if event.is_save else _RESTORE
        steps: list[tuple[int, int, Array | list[int], Array | list[int], Array | list[int]]] = []
        """The stages: op, phase, objects, bytes and ranks of each."""
        if number:
            steps.append((_READ, phase, [_MARKER], [MARKER_BYTES], [0]))
        objects = 1 + event.checkpoint * len(sizes) + np.arange(len(sizes))
        steps.append((_WRITE if event.is_save else _READ, phase, objects, sizes, ranks))
        if event.is_save:
            steps.append((_WRITE, phase, [_MARKER], [MARKER_BYTES], [0]))
            if 0 < job.training.keep <= event.checkpoint:
                steps.append(
                    (_DELETE, _EVICT, objects - job.training.keep * len(sizes), sizes, ranks)
                )
        lengths = [len(step[2]) for step in steps]
        count = sum(lengths)
        yield {
            "ts_ns": np.full(count, event.at_ns),
            "op": np.repeat([step[0] for step in steps], lengths).astype(np.int8),
            "tier": np.zeros(count, np.int8),
            "phase": np.repeat([step[1] for step in steps], lengths).astype(np.int8),
            "object_id": np.concatenate([step[2] for step in steps]).astype(np.int64),
            "offset_bytes": np.zeros(count, np.int64),
            "length_bytes": np.concatenate([step[3] for step in steps]).astype(np.int64),
            "request_id": np.full(count, number),
            "stage": np.repeat(np.arange(len(steps), dtype=np.int32), lengths),
            "rank": np.concatenate([step[4] for step in steps]).astype(np.int16),
        }


def document(summary: JsonObject) -> Document:
    """Return the summary of `kvtrace gen --preset checkpoint` as a document."""
    stats, training = summary["stats"]["checkpoint"], summary["training"]
    headline = (
        f"{counted(stats['saves'], 'save')} of {format_bytes(stats['checkpoint_bytes'])} and"
        f" {counted(stats['restores'], 'restore')}: {counted(summary['rows'], 'row')}, model"
        f" {summary['model']}, {counted(training['ranks'], 'rank')} ({training['placement']}), seed"
        f" {summary['seed']}"
    )
    rows = [{"part": component} | sizes for component, sizes in summary["parts"].items()]
    columns = [
        ReportColumn("part"),
        ReportColumn("objects", "objects a checkpoint", Unit.COUNT),
        ReportColumn("bytes", "a checkpoint", Unit.BYTES),
        ReportColumn("largest_bytes", "largest", Unit.BYTES),
    ]
    notes = [
        ", ".join(
            f"{format_bytes(stats[f'{way}_bytes'])} {way} in all" for way in ("written", "read")
        )
    ]
    if stats["failures"]:
        notes.append(
            f"{counted(stats['failures'], 'failure')}, {format_duration(stats['lost_ns'])} of"
            " training lost to them"
        )
    return Document(
        summary["file"],
        headline,
        [Chapter("", [table_of("parts", Sheet.SUMMARY, columns, rows)], notes)],
    )


def shard_bytes(training: Training, parameters: int) -> dict[str, list[int]]:
    """Return the bytes of each rank's shard, by component: weights and optimizer state, if any.

    The shards of a component differ by at most a byte, and add up to its size.
    """
    writers = training.ranks if training.placement is WrittenBy.SHARDED else 1
    shards = {}
    for component, parameter_bytes in (
        ("weights", training.weight_bytes),
        ("optimizer", training.optimizer_bytes),
    ):
        total = round(parameters * parameter_bytes)
        if not total:
            continue
        if total < writers:
            raise ConfigError(
                f"{total} bytes of {component} are less than a byte for each of {writers} ranks; use"
                " fewer ranks"
            )
        shards[component] = [total // writers + (rank < total % writers) for rank in range(writers)]
    return shards


def run_course(training: Training, until_ns: int, seed: int) -> Course:
    """Return the saves, restores and failures up to `until_ns`; `seed` draws the failures.

    Raises ConfigError for more saves or failures than a trace can have.
    """
    if until_ns // training.every_ns > MOST_EVENTS:
        raise ConfigError(
            f"{named('every', training.every)} over that duration is more than {MOST_EVENTS:,} saves"
        )
    course = Course([])
    rng = np.random.default_rng(seed)

    def until_failure_ns() -> int | None:
        return (
            None
            if training.mtbf is None
            else 1 + int(rng.exponential(parse_duration_ns(training.mtbf)))
        )

    now_ns, saves, failure_ns = 0, 0, until_failure_ns()
    while True:
        save_ns = now_ns + training.every_ns
        if failure_ns is not None and now_ns + failure_ns <= save_ns:
            failed_ns = now_ns + failure_ns
            if failed_ns > until_ns:
                return course
            if course.failures == MOST_EVENTS:
                raise ConfigError(
                    f"{named('mtbf', training.mtbf)} over that duration is more than {MOST_EVENTS:,}"
                    " failures"
                )
            course.failures += 1
            course.lost_ns += failure_ns
            now_ns = failed_ns + parse_duration_ns(training.restart)
            failure_ns = until_failure_ns()
            if saves and now_ns <= until_ns:
                course.events.append(Event(False, now_ns, saves - 1))
            continue
        if save_ns > until_ns:
            return course
        course.events.append(Event(True, save_ns, saves))
        failure_ns = None if failure_ns is None else failure_ns - training.every_ns
        now_ns, saves = save_ns, saves + 1
