"""The rows of a trace once more, and rows of the table `ops` that are made of them and of what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kvreplay.config.setting import Setting
from kvreplay.native.rows import COUNTED
from kvreplay.plan.pacing import Repeated
from kvreplay.result.counted.times import call
from kvreplay.result.part import RunPart
from kvtrace.core.native.structs import Structure, address
from kvtrace.core.schema import OPS, arrow_schema, enum_array, enum_code, numbers
from kvtrace.core.tables import Reader

if TYPE_CHECKING:
    import pyarrow as pa

RETRIES = "retries"
BATCH_ROWS = 1 << 14
"""Rows of the trace that are looked at together, at most."""
ROW_GROUP_ROWS = 1 << 16
"""Of a run's tables: a row group lies in memory until it is encoded."""
_ROOM = ROW_GROUP_ROWS + 2 * BATCH_ROWS
"""Rows that are not encoded yet are a batch more than a row group at most, and they do not begin at the start."""
_MEASURED = ("scheduled_ns", "submitted_ns", "completed_ns", "bytes", "io_bytes")
_CODES = ("outcome", "engine")


class OpsRows:
    """Makes batches of `ops`, one after the other.

    Their columns lie in buffers that are used again once a row group is encoded: to touch new memory takes longer than
    all that is written there.
    """

    def __init__(self, setting: Setting, extras: tuple[str, ...]) -> None:
        """Make those of the run that `setting` describes, with the extra columns `extras`."""
        self._extras, self._room, self._at = extras, _ROOM, 0
        engines = [enum_code(OPS, "engine", "none" if t is None else t.engine) for t in setting.tiers]
        names = ("row", *_MEASURED, *_CODES)
        self._columns = {name: np.empty(_ROOM, np.int8 if name in _CODES else np.int64) for name in names}
        self._has = [np.empty(_ROOM + 7 >> 3, np.uint8) for _ in _MEASURED]
        self._shared = Structure(
            COUNTED,
            "OpsColumns",
            value=[address(self._columns[name]) for name in _MEASURED],
            has=[address(bits) for bits in self._has],
            **{name: self._columns[name] for name in ("row", *_CODES)},
            engine_of=np.array(engines, np.int8),
            is_simulated=np.array([t is not None and t.is_simulated for t in setting.tiers]),
            no_engine=enum_code(OPS, "engine", "none"),
        )

    def batch(self, batch: pa.RecordBatch, first_row: int, part: RunPart, asked: Any) -> pa.RecordBatch:
        """Return the trace's rows of `batch`, from `first_row` on, with what was measured; null where nothing was.

        `part` has those of them that were planned, alone; `asked` the bytes that each of these asked of its tier. What
        is returned holds until a row group more was written.
        """
        import pyarrow as pa

        count = batch.num_rows
        at = self._at if self._at + count <= self._room else 0
        # Bits begin at a whole byte.
        self._at = at + count + 7 & ~7
        call("ops_write", self._shared, at, count, first_row, part.rows, len(part), asked)
        columns: dict[str, Any] = dict(zip(batch.schema.names, batch.columns, strict=True))
        own = {name: column[at : at + count] for name, column in self._columns.items()}
        columns["row"] = pa.array(own["row"])
        for name, has, nulls in zip(_MEASURED, self._has, self._shared.nulls.tolist(), strict=True):
            buffers = [pa.py_buffer(has[at >> 3 :]), pa.py_buffer(own[name])]
            columns[name] = pa.Array.from_buffers(pa.int64(), count, buffers, nulls)
        columns |= {name: enum_array(OPS, name, own[name]) for name in _CODES}
        if RETRIES in self._extras:
            sent_again = np.zeros(count, np.int32)
            sent_again[part.rows["trace_row"] - first_row] = part.rows["retries"]
            columns[RETRIES] = pa.array(sent_again)
        names = (*OPS.names, *self._extras)
        return pa.RecordBatch.from_arrays([columns[n] for n in names], schema=arrow_schema(OPS, self._extras))


class TraceRows:
    """Reads on in a trace, in order."""

    def __init__(self, reader: Reader, columns: Sequence[str]) -> None:
        """Begin with the first row."""
        self.row = 0
        """The next one."""
        self._batches = iter(reader.batches(columns))
        self._rest: pa.RecordBatch | None = None

    def up_to(self, row: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows before `row`; `row` has come to the first of a batch when it is yielded, beyond it later."""
        while self.row < row:
            if self._rest is None or not self._rest.num_rows:
                self._rest = next(self._batches, None)
                if self._rest is None:
                    return
            batch = self._rest.slice(0, min(row - self.row, BATCH_ROWS))
            self._rest = self._rest.slice(batch.num_rows)
            yield batch
            self.row += batch.num_rows

    def close(self) -> None:
        """Read no more."""
        if hasattr(self._batches, "close"):
            self._batches.close()


class LeastLater:
    """The least request that may still follow in a trace: all before it are known as a whole."""

    def __init__(self, reader: Reader, rows: int) -> None:
        """Look through the first `rows` rows of the trace, or of what is repeated."""
        self._rows, self._step = 0, 0
        if isinstance(reader, Repeated):
            rows, self._rows, self._step, reader = reader.rows, reader.rows, reader.requests, reader.once
        starts, least, at = list[int](), list[int](), 0
        for batch in reader.batches(("request_id",)):
            ids = numbers(batch.column("request_id"))
            starts.append(at)
            least.append(int(ids.min(where=ids >= 0, initial=np.iinfo(np.int64).max)))
            at += batch.num_rows
            if at >= rows:
                break
        self._starts = np.array(starts, np.int64)
        # Of each batch and all that come after it; after the last, the next repeat's.
        self._least = np.minimum.accumulate(np.array(least[::-1], np.int64))[::-1]

    def after(self, row: int) -> int:
        """Return the least request of the rows from `row` on."""
        repeat = row // self._rows if self._rows else 0
        batch = int(np.searchsorted(self._starts, row - repeat * self._rows, side="right")) - 1
        least = int(self._least[batch])
        return (min(least, self._step) if self._rows else least) + repeat * self._step
