"""Rows of the table `ops`: the trace's, with what was measured of them, as Arrow batches; compiled.

Their columns lie in buffers that are used again once a row group is encoded: to touch new memory takes longer than all
that is written there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvreplay.config.setting import Setting
from kvreplay.engine.job import NOT_DONE, OK, SKIPPED
from kvreplay.plan.loader import BATCH_ROWS
from kvreplay.plan.plan import DELETE
from kvreplay.result.part import RunPart
from kvtrace.core.compiled import inner, njit
from kvtrace.core.schema import OPS, arrow_schema, enum_array, enum_code
from kvtrace.core.structures import Structure, record, table
from kvtrace.core.tables import ROW_GROUP_ROWS

if TYPE_CHECKING:
    import pyarrow as pa

RETRIES = "retries"
_ROOM = ROW_GROUP_ROWS + 2 * BATCH_ROWS
"""Rows that are not encoded yet are a batch more than a row group at most, and they do not begin at the start."""
_MEASURED = ("scheduled_ns", "submitted_ns", "completed_ns", "bytes", "io_bytes")
_CODES = ("outcome", "engine")
_NO_ENGINE = enum_code(OPS, "engine", "none")
_NULLS = np.dtype([(name, "i8") for name in _MEASURED])


class _Columns(Structure):
    """What is known of planned rows, and where the columns of all rows go; tiers by number."""

    planned, tier, op, length = table("i8"), table("i1"), table("i1"), table("i8")
    due_ns, submitted, completed, asked, result = table("i8"), table("i8"), table("i8"), table("i8"), table("i1")
    """By planned row; no `due_ns` in a closed loop."""
    is_simulated, engines = table("?"), table("i1")
    row, scheduled_ns, submitted_ns, completed_ns = table("i8"), table("i8"), table("i8"), table("i8")
    bytes, io_bytes, outcome, engine = table("i8"), table("i8"), table("i1"), table("i1")
    has_scheduled_ns, has_submitted_ns, has_completed_ns = table("u1"), table("u1"), table("u1")
    has_bytes, has_io_bytes = table("u1"), table("u1")
    """A bit a row: whether it has a value."""
    nulls = record(_NULLS)


class OpsRows:
    """Makes batches of `ops`, one after the other."""

    def __init__(self, setting: Setting, extras: tuple[str, ...]) -> None:
        """Make those of the run that `setting` describes, with the extra columns `extras`."""
        tiers, self._extras, self._room, self._at = setting.tiers, extras, 0, 0
        engines = [enum_code(OPS, "engine", "none" if t is None else t.engine) for t in tiers]
        self._columns = _Columns(is_simulated=[t is not None and t.is_simulated for t in tiers], engines=engines)

    def _place(self, count: int) -> int:
        """Return where so many rows have room."""
        if not self._room:
            self._room = _ROOM
            for name in ("row", *_MEASURED, *_CODES):
                setattr(self._columns, name, np.empty(_ROOM, np.int8 if name in _CODES else np.int64))
            for name in _MEASURED:
                setattr(self._columns, f"has_{name}", np.empty(_ROOM >> 3, np.uint8))
        at = self._at if self._at + count <= self._room else 0
        # Bits begin at a whole byte.
        self._at = at + count + 7 & ~7
        return at

    def batch(self, batch: pa.RecordBatch, first_row: int, part: RunPart, asked: Any) -> pa.RecordBatch:
        """Return the trace's rows of `batch`, from `first_row` on, with what was measured; null where nothing was.

        `part` has those of them that were planned, alone; `asked` the bytes that each of these asked of its tier. What
        is returned holds until a row group more was written.
        """
        import pyarrow as pa

        of, plan, record, count = self._columns, part.plan, part.record, batch.num_rows
        at = self._place(count)
        of.planned, of.tier, of.op, of.length = plan.row, plan.tier, plan.op, plan.length
        of.submitted, of.completed, of.result, of.asked = (
            record.submitted_ns,
            record.completed_ns,
            record.outcome,
            asked,
        )
        of.due_ns = np.zeros(0, np.int64) if part.due_ns is None else part.due_ns
        _spread(of, first_row, at, count)
        columns: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
        columns["row"] = pa.array(of.row[at : at + count])
        for name in _MEASURED:
            bits = pa.py_buffer(getattr(of, f"has_{name}")[at >> 3 :])
            values = pa.py_buffer(getattr(of, name)[at : at + count])
            columns[name] = pa.Array.from_buffers(pa.int64(), count, [bits, values], int(of.nulls[name]))
        columns |= {name: enum_array(OPS, name, getattr(of, name)[at : at + count]) for name in _CODES}
        if RETRIES in self._extras:
            sent_again = np.zeros(count, np.int32)
            for row, number in record.retries.items():
                sent_again[plan.row[row] - first_row] = number
            columns[RETRIES] = pa.array(sent_again)
        names = (*OPS.names, *self._extras)
        return pa.RecordBatch.from_arrays([columns[n] for n in names], schema=arrow_schema(OPS, self._extras))


@inner
def _put(values: Any, bits: Any, at: int, value: int) -> int:
    """Put a value, NOT_DONE where there is none; return whether that is so."""
    values[at] = value
    if at & 7 == 0:
        bits[at >> 3] = 0
    if value == NOT_DONE:
        return 1
    bits[at >> 3] |= 1 << (at & 7)
    return 0


@njit
def _spread(of: _Columns, first_row: int, begin: int, count: int) -> None:
    """Write the columns of `count` rows from `begin` on; the first of them is `first_row` of the trace."""
    nulls, p = of.nulls, 0
    nulls.scheduled_ns = nulls.submitted_ns = nulls.completed_ns = nulls.bytes = nulls.io_bytes = 0
    for i in range(count):
        at = begin + i
        of.row[at] = first_row + i
        scheduled_ns, submitted_ns, completed_ns, moved, asked = NOT_DONE, NOT_DONE, NOT_DONE, NOT_DONE, NOT_DONE
        of.outcome[at], of.engine[at] = SKIPPED, _NO_ENGINE
        if p < len(of.planned) and of.planned[p] == first_row + i:
            tier = of.tier[p]
            of.outcome[at], of.engine[at] = of.result[p], of.engines[tier]
            submitted_ns, completed_ns = of.submitted[p], of.completed[p]
            if len(of.due_ns):
                scheduled_ns = of.due_ns[p]
            if of.result[p] == OK and not of.is_simulated[tier]:
                # A delete moves no bytes: 0 is what was measured.
                moved, asked = 0 if of.op[p] == DELETE else of.length[p], of.asked[p]
            p += 1
        nulls.scheduled_ns += _put(of.scheduled_ns, of.has_scheduled_ns, at, scheduled_ns)
        nulls.submitted_ns += _put(of.submitted_ns, of.has_submitted_ns, at, submitted_ns)
        nulls.completed_ns += _put(of.completed_ns, of.has_completed_ns, at, completed_ns)
        nulls.bytes += _put(of.bytes, of.has_bytes, at, moved)
        nulls.io_bytes += _put(of.io_bytes, of.has_io_bytes, at, asked)
