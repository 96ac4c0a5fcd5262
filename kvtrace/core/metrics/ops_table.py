"""Reads `ops` tables for a recorder: the table of one run or import, or those of ranks merged by
time.

`record_ops` returns the recorder of one table. `read_in_time` yields the rows of several tables in
the order of their common clock, so that one recorder gets the operations of all ranks as if one
process had performed them:

    find the earliest time up to which every table has a batch in memory
    sort the rows up to that time, and yield them
    read the next batch of each table whose batch is used up
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
"""Stands for a run without an end.

`rows_of` has already given rows that never came due the time NEVER_NS, so that every row with an
earlier due time counts as offered.
"""


@dataclass(frozen=True, slots=True)
class OpsFile:
    """The `ops` table of a run, and the facts that its rows do not contain."""

    path: Path
    warmup: Warmup | None = None
    late_ns: int = 0
    """Start of the clock of its times minus the start of the common clock."""
    ended_ns: int | None = None
    """End of the run by the clock of its times. Operations that were due by then count as offered.
    """


class OpsRows(NamedTuple):
    """Rows of `ops` tables."""

    rows: Array
    """OPERATION_ROW. Bytes are those transferred, and rows without a due time have NEVER_NS."""
    asked_bytes: Array
    """int64: the bytes that each row requested from its tier, or -1."""
    is_counted: Array
    """True for rows that figures count; false in the warm-up."""
    engine: Array
    """int8: the code of each row's engine."""

    def where(self, selection: Array | slice) -> OpsRows:
        """Return the rows of a `selection`, which is a slice, an index array or a mask."""
        return OpsRows(*(column[selection] for column in self))


def rows_of(batch: pa.RecordBatch, file: OpsFile, first_position: int) -> OpsRows:
    """Return the rows of a batch of the table `file`, with times by the common clock.

    `first_position` is the number of rows of the table before the batch.
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
    # What was not submitted, and was due after the end, was not missed: it counts as never due.
    is_not_due = submitted_ns == NOT_DONE
    if file.ended_ns is not None:
        is_not_due &= due_ns > file.ended_ns
    rows["due_ns"][(due_ns == NONE) | is_not_due] = NEVER_NS
    is_counted = np.ones(len(rows), bool)
    if file.warmup is not None:
        begun_ns = np.where(due_ns == NONE, submitted_ns, due_ns)
        positions = np.arange(first_position, first_position + batch.num_rows)
        is_counted = file.warmup.counts(positions, begun_ns)
    return OpsRows(rows, columns["io_bytes"], is_counted, columns["engine"])


class OpsRecording(NamedTuple):
    """The recorder of one `ops` table, and the engines of its kinds."""

    recorder: OperationRecorder[TableTier]
    engines: dict[int, str]
    """By kind: the name of its engine; `none` if every row of the kind was skipped."""


def record_ops(path: Path, warmup: Warmup | None = None) -> OpsRecording:
    """Record every row of the `ops` table at `path`, except the `warmup`.

    Percentiles are exact up to EXACT_OPERATIONS operations. TraceError if the table is damaged.
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
        ops_rows = rows_of(batch, file, position)
        position += batch.num_rows
        recorder.add(ops_rows.rows, ops_rows.is_counted, asked_bytes=ops_rows.asked_bytes)
    recorder.end()
    return OpsRecording(
        recorder, {kind: ENGINES[code] for kind, code in enumerate(engine_of.tolist())}
    )


def exact_limits(counts: Array) -> Array:
    """Return by kind how many times each of its distributions stores; `counts` are its operations.

    It stores all of them, or none if all kinds together have more than EXACT_OPERATIONS.
    """
    return counts if counts.sum() <= EXACT_OPERATIONS else np.zeros_like(counts)


def table_recorder(
    tiers: Sequence[TableTier | None], counts: Array, *, is_open_loop: bool
) -> OperationRecorder[TableTier]:
    """Return a recorder for rows of `ops` tables, which have `counts` rows by kind."""
    recorder = OperationRecorder(
        tiers, is_open_loop=is_open_loop, limits=exact_limits(counts), has_freed_bytes=False
    )
    recorder.run["until_ns"] = _UNTIL_NS
    return recorder


class TimedRows(NamedTuple):
    """Rows of several tables in the order of time."""

    ops_rows: OpsRows
    file: Array
    """int64 per row: the index of its table."""
    min_later_request: int
    """The smallest request id that may still follow: all requests below it are complete."""


@dataclass(slots=True)
class _Stream:
    """One table that is read forward, and its rows in memory that were not yielded yet."""

    batches: Iterator[pa.RecordBatch]
    file: OpsFile
    is_open_loop: bool
    min_later_requests: list[int]
    """By batch: the smallest request id in it and in all later batches."""
    ops_rows: OpsRows | None = None
    keys: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """The time of each row in memory, which never decreases."""
    batch_number: int = -1
    rows_read: int = 0
    last_key: int = 0

    def advance(self) -> bool:
        """Read the next batch if all rows were taken; return whether there are rows in memory."""
        while not len(self.keys):
            batch = next(self.batches, None)
            if batch is None:
                return False
            self.batch_number += 1
            self.ops_rows = rows_of(batch, self.file, self.rows_read)
            self.rows_read += batch.num_rows
            times = self.ops_rows.rows["due_ns" if self.is_open_loop else "submitted_ns"]
            # A row without a time gets the time of the row before it.
            finite_times = np.where(times == NEVER_NS, NOT_DONE, times)
            keys = np.maximum.accumulate(np.append(self.last_key, finite_times))[1:]
            self.keys = keys
            self.last_key = int(keys[-1]) if len(keys) else self.last_key
        return True

    def take(self, until: int) -> OpsRows:
        """Remove the rows up to the time `until` from memory and return them."""
        assert self.ops_rows is not None, "it has rows"
        count = int(np.searchsorted(self.keys, until, side="right"))
        earlier_rows = self.ops_rows.where(slice(0, count))
        self.ops_rows = self.ops_rows.where(slice(count, None))
        self.keys = self.keys[count:]
        return earlier_rows


def read_in_time(files: Sequence[OpsFile], *, is_open_loop: bool) -> Iterator[TimedRows]:
    """Yield the rows of all `files` in the order of time, numbered anew in `trace_row`.

    The time of a row is its due time in an open loop, and its submission in a closed loop. Rows of
    one table keep their order. TraceError if a table is damaged.
    """
    streams = []
    for file in files:
        reader = open_table(file.path, OPS)
        min_requests = []
        for batch in reader.batches(("request_id",)):
            request_ids = numbers(batch.column("request_id"))
            min_requests.append(int(request_ids.min(where=request_ids >= 0, initial=NEVER_NS)))
        # The minimum of each batch and all later ones: accumulated from the end.
        backward = np.array(min_requests[::-1], np.int64)
        min_later = np.minimum.accumulate(backward)[::-1].tolist()
        streams.append(_Stream(iter(reader.batches(_COLUMNS)), file, is_open_loop, min_later))
    open_streams = [(index, stream) for index, stream in enumerate(streams) if stream.advance()]
    first_row = 0
    while open_streams:
        until = min(int(stream.keys[-1]) for _, stream in open_streams)
        pieces, keys, indices = [], [], []
        for index, stream in open_streams:
            times = stream.keys
            piece = stream.take(until)
            pieces.append(piece)
            keys.append(times[: len(piece.rows)])
            indices.append(np.full(len(piece.rows), index))
        order = np.argsort(np.concatenate(keys), kind="stable")
        merged = OpsRows(*(np.concatenate(columns)[order] for columns in zip(*pieces, strict=True)))
        merged.rows["trace_row"] = np.arange(first_row, first_row + len(order))
        first_row += len(order)
        open_streams = [(index, stream) for index, stream in open_streams if stream.advance()]
        min_later_request = min(
            (stream.min_later_requests[stream.batch_number] for _, stream in open_streams),
            default=NEVER_NS,
        )
        yield TimedRows(merged, np.concatenate(indices)[order], min_later_request)
