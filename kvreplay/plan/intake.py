"""The rows of a trace taken in batches: checked, cut at the limit, and those that are to be replayed kept as columns.

Compiled: a row takes 10 ns, where the same in NumPy took 300, most of them for columns that live for a batch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kvtrace.core.compiled import njit
from kvtrace.core.errors import TraceError
from kvtrace.core.limit import Limit
from kvtrace.core.schema import TRACE, Op, enum_code
from kvtrace.core.structures import Structure, number, record, table
from kvtrace.core.tables import Reader

COLUMNS = ("ts_ns", "op", "tier", "phase", "object_id", "offset_bytes", "length_bytes", "request_id", "stage")
MAX_OBJECT_ID = 2**31 - 2
_DELETE = enum_code(TRACE, "op", Op.DELETE)
_TYPES = {"op": "i1", "tier": "i1", "phase": "i1", "stage": "i4", "stream": "i2"}
"""Of a batch's columns, as the contract has them; others have 64 bits."""
_KEPT = _TYPES | {"object_id": "i4", "stream": "i4"}
"""Of what is kept of them."""
_UNBOUND = np.iinfo(np.int64).max
_GOOD, _LATE, _LARGE = range(3)
_COUNTS = np.dtype([(name, "i8") for name in ("rows", "taken", "last_ns", "moved_bytes", "is_full", "fault")])


class _Batch(Structure):
    """The columns of some rows, nulls as -1; no streams where the trace has none."""

    ts_ns, op, tier, phase = table("i8"), table("i1"), table("i1"), table("i1")
    object_id, offset_bytes, length_bytes = table("i8"), table("i8"), table("i8")
    request_id, stage, stream = table("i8"), table("i4"), table("i2")


class _Columns(Structure):
    """What is kept of them."""

    row, ts_ns, op, tier, phase = table("i8"), table("i8"), table("i1"), table("i1"), table("i1")
    object_id, offset_bytes, length_bytes = table("i4"), table("i8"), table("i8")
    request_id, stage, stream = table("i8"), table("i4"), table("i4")


class _State(Structure):
    """How far the trace was taken, and what bounds it."""

    counts = record(_COUNTS)
    has_target = table("i1")
    """By tier."""
    skipped = table("i8")
    """By tier without a target: its rows."""
    most_rows, most_ns, most_bytes = number(), number(), number()


class Intake:
    """Takes batches of a trace, and keeps the rows that are to be replayed."""

    def __init__(self, reader: Reader, path: Path, alignments: dict[int, int], limit: Limit, rows: int) -> None:
        """Take rows of tiers with `alignments`; make room for `rows` of them, for more as they come."""
        tiers, self.names = len(reader.meta.tiers), COLUMNS + ("stream",) * ("stream" in reader.extras)
        self._path, self._batch, self._columns = path, _Batch(), _Columns()
        self._state = _State(
            has_target=[i in alignments for i in range(tiers)],
            skipped=np.zeros(tiers),
            most_rows=_UNBOUND,
            most_ns=_UNBOUND,
            most_bytes=_UNBOUND,
        )
        if limit.rows is not None:
            self._state.most_rows = limit.rows
        elif limit.span_ns is not None:
            self._state.most_ns = limit.span_ns
        elif limit.moved_bytes is not None:
            self._state.most_bytes = limit.moved_bytes
        # As long as they are thought to get: memory that is not touched is not taken.
        for name in ("row", *self.names):
            setattr(self._columns, name, np.empty(rows, _KEPT.get(name, "i8")))

    def _count(self, name: str) -> int:
        return int(self._state.counts[name])

    @property
    def rows(self) -> int:
        """How many rows of the trace were taken or passed over."""
        return self._count("rows")

    @property
    def taken(self) -> int:
        """How many are to be replayed."""
        return self._count("taken")

    @property
    def last_ns(self) -> int:
        """The time of the last row."""
        return self._count("last_ns")

    @property
    def is_full(self) -> bool:
        """Whether the limit was reached."""
        return bool(self._count("is_full"))

    @property
    def skipped(self) -> dict[int, int]:
        """By tier without a target: its rows."""
        return {tier: int(rows) for tier, rows in enumerate(self._state.skipped) if rows}

    def columns(self) -> dict[str, Any]:
        """Return the rows that were taken, as columns with nulls as -1."""
        return {name: getattr(self._columns, name)[: self.taken] for name in ("row", *self.names)}

    def take(self, batch: Any) -> None:
        """Take the rows of `batch`.

        Raises:
            TraceError: a row that cannot be replayed.

        """
        for name in self.names:
            setattr(self._batch, name, _numbers(batch.column(name), _TYPES.get(name, "i8")))
        need = self.taken + batch.num_rows
        for name in ("row", *self.names):
            column = getattr(self._columns, name)
            if need > len(column):
                more = np.empty(max(batch.num_rows, len(column)), column.dtype)
                setattr(self._columns, name, np.concatenate([column, more]))
        at, fault = int(_take(self._batch, self._columns, self._state)), self._count("fault")
        if fault == _LATE:
            message = f"{self._batch.ts_ns[at]}: earlier than the row before it; run kvtrace validate on this trace"
            raise TraceError(message, path=self._path, row=self.rows, column="ts_ns")
        if fault == _LARGE:
            message = f"{self._batch.object_id[at]}: an object id is at most {MAX_OBJECT_ID}"
            raise TraceError(message, path=self._path, row=self.rows, column="object_id")


def _numbers(array: Any, kind: str) -> Any:
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        array = array.indices
    if array.null_count:
        array = array.fill_null(-1)
    return array.to_numpy(zero_copy_only=False).astype(kind, copy=False)


@njit
def _take(batch: Any, columns: Any, state: Any) -> int:
    """Take the rows of `batch` up to the limit, or one that is at fault; return how many."""
    counts = state.counts
    for at in range(len(batch.ts_ns)):
        ts, op, tier, length = batch.ts_ns[at], batch.op[at], batch.tier[at], batch.length_bytes[at]
        is_wanted = state.has_target[tier]
        moved = counts.moved_bytes + (length if is_wanted and op != _DELETE else 0)
        if counts.rows >= state.most_rows or ts >= state.most_ns or moved > state.most_bytes:
            counts.is_full = 1
            return at
        if ts < counts.last_ns or batch.object_id[at] > MAX_OBJECT_ID:
            counts.fault = _LATE if ts < counts.last_ns else _LARGE
            return at
        counts.moved_bytes, counts.last_ns = moved, ts
        if is_wanted:
            to = counts.taken
            columns.row[to], columns.ts_ns[to], columns.op[to], columns.tier[to] = counts.rows, ts, op, tier
            columns.phase[to], columns.object_id[to] = batch.phase[at], batch.object_id[at]
            columns.offset_bytes[to], columns.length_bytes[to] = batch.offset_bytes[at], length
            columns.request_id[to], columns.stage[to] = batch.request_id[at], batch.stage[at]
            if len(columns.stream):
                columns.stream[to] = batch.stream[at]
            counts.taken += 1
        else:
            state.skipped[tier] += 1
        counts.rows += 1
    return len(batch.ts_ns)


def keep(rows: dict[str, Any], kept: Any) -> dict[str, Any]:
    """Return the rows (columns of one length) that are `kept` (bool a row), in the memory of them all."""
    return {name: column[: _keep(column, kept)] for name, column in rows.items()}


@njit
def _keep(column: Any, kept: Any) -> int:
    count = 0
    for row in range(len(column)):
        if kept[row]:
            column[count] = column[row]
            count += 1
    return count
