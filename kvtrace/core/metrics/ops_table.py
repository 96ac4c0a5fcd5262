"""Tables `ops` as a recorder takes them: of one run or import, or of ranks merged in time.

`record_ops` gives the recorder of one table. `read_in_time` yields the rows of several tables in
the order of their common clock, so that one recorder takes the operations of all ranks as if one
process had done them:

    take the earliest time up to which every table has a batch in memory
    sort the rows up to there by time, and yield them
    read the next batch of each table that is used up
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kvtrace.core import np, pa
from kvtrace.core.arrays import Array
from kvtrace.core.metrics.distribution import EXACT_OPERATIONS
from kvtrace.core.metrics.native import (
    NEVER_NS,
    NONE,
    NOT_DONE,
    OPERATION_ROW,
    OPS_A_PLACE,
)
from kvtrace.core.metrics.recorder import OperationRecorder, TableTier
from kvtrace.core.metrics.warmup import Warmup
from kvtrace.core.schema import OPS, Phase, enum_code, numbers
from kvtrace.core.tables import open_table

NO_ENGINE, SIMULATED_ENGINE = (enum_code(OPS, "engine", name) for name in ("none", "sim"))
ENGINES = OPS.column("engine").values
_TIMES = ("scheduled_ns", "submitted_ns", "completed_ns")
_SMALL = ("op", "tier", "phase", "outcome", "engine")
_COLUMNS = ("row", "request_id", "bytes", "io_bytes", *_TIMES, *_SMALL)
_BULK = np.array([phase in (Phase.SAVE, Phase.RESTORE) for phase in Phase])
_UNTIL_NS = NEVER_NS - 1
"""The end of a run, for a recorder whose rows say by themselves whether they were due."""


@dataclass(frozen=True, slots=True)
class OpsFile:
    """The table `ops` of a run, and what its rows do not tell."""

    path: Path
    warmup: Warmup | None = None
    late_ns: int = 0
    """How much later than the common clock the clock of its times began."""
    ended_ns: int | None = None
    """When the run ended, by the clock of its times: what was due by then was offered."""


class OpsRows(NamedTuple):
    """Rows of tables `ops`."""

    rows: Array
    """OPERATION_ROW; bytes are those that were moved, and rows without a due time are never due."""
    asked_bytes: Array
    """int64: the bytes that each asked of its tier, or -1."""
    is_counted: Array
    """Whether figures count it: whether it is not of the warm-up."""
    engine: Array
    """int8: the code of its engine."""

    def where(self, which: Array | slice) -> OpsRows:
        """Return the rows that `which`, an index or a mask, names."""
        return OpsRows(*(column[which] for column in self))


def rows_of(batch: pa.RecordBatch, file: OpsFile, first_position: int) -> OpsRows:
    """Return the rows of a batch of the table `file`, their times by the common clock.

    So many rows of the table come before the batch.
    """
    columns = {
        name: numbers(batch.column(name), "i1" if name in _SMALL else "i8") for name in _COLUMNS
    }
    due_ns, submitted_ns = columns["scheduled_ns"], columns["submitted_ns"]
    rows = np.zeros(batch.num_rows, OPERATION_ROW)
    for name in ("op", "tier", "phase", "outcome"):
        rows[name] = columns[name]
    for name, times in zip(("due_ns", "submitted_ns", "completed_ns"), _TIMES, strict=True):
        is_known = columns[times] != NONE
        rows[name] = np.where(is_known, columns[times] + file.late_ns, NOT_DONE)
    rows["trace_row"], rows["request"] = columns["row"], columns["request_id"]
    rows["length_bytes"] = np.maximum(columns["bytes"], 0)
    rows["is_bulk"] = _BULK[columns["phase"]]
    is_missed = submitted_ns == NOT_DONE
    if file.ended_ns is not None:
        is_missed &= due_ns > file.ended_ns
    rows["due_ns"][(due_ns == NONE) | is_missed] = NEVER_NS
    is_counted = np.ones(len(rows), bool)
    if file.warmup is not None:
        begun_ns = np.where(due_ns == NONE, submitted_ns, due_ns)
        positions = np.arange(first_position, first_position + batch.num_rows)
        is_counted = file.warmup.counts(positions, begun_ns)
    return OpsRows(rows, columns["io_bytes"], is_counted, columns["engine"])


class OpsRecording(NamedTuple):
    """The recorder of one table `ops`, and what it says of its tiers."""

    recorder: OperationRecorder[TableTier]
    engines: dict[int, str]
    """By kind: the name of its engine; `none` if every row of it was left out."""


def record_ops(path: Path, warmup: Warmup | None = None) -> OpsRecording:
    """Record every row of the table `ops` at `path`, but for the `warmup`.

    Percentiles are exact up to EXACT_OPERATIONS in all. TraceError if the table is damaged.
    """
    reader = open_table(path, OPS)
    names = [tier.name for tier in reader.meta.tiers]
    engine_of: Array = np.full(len(names) * OPS_A_PLACE, NO_ENGINE, np.int8)
    counts: Array = np.zeros(len(engine_of), np.int64)
    is_open_loop = False
    for batch in reader.batches(("scheduled_ns", "op", "tier", "engine")):
        tier, op, engine = (numbers(batch.column(name), "i1") for name in ("tier", "op", "engine"))
        is_open_loop |= batch.column("scheduled_ns").null_count < batch.num_rows
        kind = tier.astype(np.int64) * OPS_A_PLACE + op
        has_engine = engine != NO_ENGINE
        for number, first in zip(*np.unique(kind[has_engine], return_index=True), strict=True):
            if engine_of[number] == NO_ENGINE:
                engine_of[number] = engine[has_engine][first]
        counts += np.bincount(kind, minlength=len(counts))
    tiers = []
    for index, name in enumerate(names):
        used = set(engine_of[index * OPS_A_PLACE : (index + 1) * OPS_A_PLACE].tolist())
        code = max(used - {NO_ENGINE}, default=NO_ENGINE)
        is_simulated = code == SIMULATED_ENGINE
        tiers.append(
            TableTier(
                name,
                ENGINES[code],
                is_simulated=is_simulated,
                has_times=not is_simulated and code != NO_ENGINE,
            )
        )
    recorder = table_recorder(tiers, counts, is_open_loop=is_open_loop)
    file = OpsFile(path, warmup)
    position = 0
    for batch in reader.batches(_COLUMNS):
        part = rows_of(batch, file, position)
        position += batch.num_rows
        recorder.add(part.rows, part.is_counted, asked_bytes=part.asked_bytes)
    recorder.end()
    return OpsRecording(
        recorder, {kind: ENGINES[code] for kind, code in enumerate(engine_of.tolist())}
    )


def exact_limits(counts: Array) -> Array:
    """Return how many times each distribution keeps of kinds with so many operations, by kind.

    All of them, or none if they are more than EXACT_OPERATIONS in all.
    """
    return counts if counts.sum() <= EXACT_OPERATIONS else np.zeros_like(counts)


def table_recorder(
    tiers: Sequence[TableTier | None], counts: Array, *, is_open_loop: bool
) -> OperationRecorder[TableTier]:
    """Return a recorder for rows of tables `ops`, of which there are `counts` by kind."""
    recorder = OperationRecorder(
        tiers, is_open_loop=is_open_loop, limits=exact_limits(counts), has_freed_bytes=False
    )
    recorder.run["until_ns"] = _UNTIL_NS
    return recorder


class TimedRows(NamedTuple):
    """Rows of several tables in the order of time."""

    part: OpsRows
    file: Array
    """int64 a row: the index of its table."""
    least_later: int
    """The least request id that may still come: all requests below it are complete."""


@dataclass(slots=True)
class _Stream:
    """One table that is read forward: the rows in memory that were not yielded yet."""

    batches: Iterator[pa.RecordBatch]
    file: OpsFile
    is_open_loop: bool
    least_later: list[int]
    """By batch: the least request id of it and all that follow it."""
    part: OpsRows | None = None
    keys: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """The time of each row, which never decreases."""
    batch_number: int = -1
    rows_read: int = 0
    last_key: int = 0

    def advance(self) -> bool:
        """Read the next batch once all rows were taken; return whether there are any."""
        while not len(self.keys):
            batch = next(self.batches, None)
            if batch is None:
                return False
            self.batch_number += 1
            self.part = rows_of(batch, self.file, self.rows_read)
            self.rows_read += batch.num_rows
            times = self.part.rows["due_ns" if self.is_open_loop else "submitted_ns"]
            known = np.where(times == NEVER_NS, NOT_DONE, times)
            keys = np.maximum.accumulate(np.append(self.last_key, known))[1:]
            self.keys = keys
            self.last_key = int(keys[-1]) if len(keys) else self.last_key
        return True

    def take(self, until: int) -> OpsRows:
        """Return the rows up to the time `until`, and forget them."""
        assert self.part is not None, "it has rows"
        count = int(np.searchsorted(self.keys, until, side="right"))
        taken, self.part = self.part.where(slice(0, count)), self.part.where(slice(count, None))
        self.keys = self.keys[count:]
        return taken


def read_in_time(files: Sequence[OpsFile], *, is_open_loop: bool) -> Iterator[TimedRows]:
    """Yield the rows of all `files` in the order of time, numbered anew in `trace_row`.

    The time of a row is when it was due, in a closed loop when it was submitted. Rows of one table
    keep their order. TraceError if a table is damaged.
    """
    streams = []
    for file in files:
        reader = open_table(file.path, OPS)
        least = [
            int(ids.min(where=ids >= 0, initial=NEVER_NS))
            for batch in reader.batches(("request_id",))
            for ids in [numbers(batch.column("request_id"))]
        ]
        later = np.minimum.accumulate(np.array(least[::-1], np.int64))[::-1].tolist()
        streams.append(_Stream(iter(reader.batches(_COLUMNS)), file, is_open_loop, later))
    open_streams = [(index, s) for index, s in enumerate(streams) if s.advance()]
    first_row = 0
    while open_streams:
        until = min(int(stream.keys[-1]) for _, stream in open_streams)
        parts, keys, indices = [], [], []
        for index, stream in open_streams:
            times = stream.keys
            part = stream.take(until)
            parts.append(part)
            keys.append(times[: len(part.rows)])
            indices.append(np.full(len(part.rows), index))
        order = np.argsort(np.concatenate(keys), kind="stable")
        merged = OpsRows(*(np.concatenate(columns)[order] for columns in zip(*parts, strict=True)))
        merged.rows["trace_row"] = np.arange(first_row, first_row + len(order))
        first_row += len(order)
        open_streams = [(index, stream) for index, stream in open_streams if stream.advance()]
        least_later = min(
            (stream.least_later[stream.batch_number] for _, stream in open_streams),
            default=NEVER_NS,
        )
        yield TimedRows(merged, np.concatenate(indices)[order], least_later)
