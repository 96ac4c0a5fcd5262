"""The recording of a live run: parts of its ring of rows, rows of its table `ops`, and a trace read
forward beside them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from kvreplay.engine.setting import Setting
from kvreplay.plan.pacing import Repeated
from kvreplay.plan.row_ring import DELETE, NONE, OK, ROW, SKIPPED, WINDOW_ROWS
from kvreplay.plan.trace_rows import trace_rows
from kvreplay.tiers.tier import SeveralDrives, Tier
from kvtrace.core import pa
from kvtrace.core.metrics.native import RECORDER
from kvtrace.core.metrics.recorder import OperationRecorder
from kvtrace.core.schema import OPS, batch_of, enum_code, numbers
from kvtrace.core.tables import Reader
from kvtrace.core.units import NS_PER_S

SECONDS_TOGETHER = 256
"""Minimum number of finished seconds that are returned at once."""


@dataclass(frozen=True, slots=True)
class RunPart:
    """Consecutive planned rows that have ended, or never will, with their measurements.

    They may lie in a ring that is reused, so a caller copies the rows that it keeps.
    """

    first: int
    """Number of planned rows before this part."""
    rows: np.ndarray
    """Consecutive structs ROW; `trace_row` counts from the first row that the reader yields."""

    def __len__(self) -> int:
        return len(self.rows)

    def within(self, first: int, last: int) -> Self:
        """Return the rows from `first` to before `last` of the part."""
        return type(self)(self.first + first, self.rows[first:last])

    def copy(self) -> Self:
        """Return a copy that the ring cannot overwrite."""
        return type(self)(self.first, self.rows.copy())

    @classmethod
    def nothing(cls) -> Self:
        """Return an empty part."""
        return cls(0, np.zeros(0, ROW))


class RunRecorder(OperationRecorder[Tier]):
    """The recorder of a live run, with its rows in a ring that is reused."""

    def __init__(self, tiers: Sequence[Tier | None], *, is_open_loop: bool, io_bytes: int) -> None:
        """Record operations on `tiers` with I/Os of up to `io_bytes`."""
        super().__init__(
            tiers,
            is_open_loop=is_open_loop,
            io_bytes=io_bytes,
            drives=[t.drives if isinstance(t, SeveralDrives) else () for t in tiers],
            row_bytes=ROW.itemsize,
            has_seconds=True,
        )
        self._sharded = [
            (i, tier) for i, tier in enumerate(tiers) if isinstance(tier, SeveralDrives)
        ]
        self._reached, self._until = deque[tuple[int, int]](), 0
        """Pairs of a planned row and the second reached at it; and the second before which all have
        ended.
        """

    def take(self, run_part: RunPart, is_counted: np.ndarray) -> np.ndarray:
        """Add the rows of `run_part`; figures count those where `is_counted`.

        Return the bytes of each row, as its tier pads them.
        """
        asked_bytes = self.add(run_part.rows, is_counted, place=self._places_of(run_part.rows))
        assert asked_bytes is not None, "rows of a run ask for bytes"
        end_row = run_part.first + len(run_part)
        self._reached.append((end_row, int(self.run["last_ns"][0]) // NS_PER_S))
        # A row is laid, and so submitted, when the earlier row in its entry of the ring has ended.
        while self._reached[0][0] <= end_row - WINDOW_ROWS:
            self._until = self._reached.popleft()[1]
        assert self.seconds is not None, "a live run has seconds"
        self.seconds.sort(self.ended, self._until)
        return asked_bytes

    def _places_of(self, rows: np.ndarray) -> np.ndarray | None:
        """Return the index of each row's drive over all tiers (int64).

        None if each tier is on one drive.
        """
        if not self._sharded:
            return None
        place: np.ndarray = self.first_place[rows["tier"]]
        for index, tier in self._sharded:
            is_here = rows["tier"] == index
            place[is_here] += tier.drive_of[rows["object_id"][is_here]]
        return place

    def over(self, *, is_last: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return what `Seconds.take_before` gives for seconds to which no later row can belong.

        With `is_last`, these are all seconds. None if there are few.
        """
        assert self.seconds is not None, "a live run has seconds"
        if is_last:
            self._until = int(self.run["last_ns"][0]) // NS_PER_S + 1
            self.seconds.sort(np.zeros(0, RECORDER.dtype("EndedInSecond")), self._until)
        elif self._until < self.seconds.first + SECONDS_TOGETHER:
            return None
        return self.seconds.take_before(self._until)


RETRIES = "retries"
BATCH_ROWS = 1 << 14
"""Maximum number of rows of the trace in a batch."""


def ops_batch(
    setting: Setting,
    extras: tuple[str, ...],
    batch: pa.RecordBatch,
    first_row: int,
    planned: RunPart,
    padded_bytes: np.ndarray,
) -> pa.RecordBatch:
    """Return rows of `ops`: the trace's rows of `batch`, with their measurements.

    The batch begins at row `first_row` of the setting's reader. `planned` has only the planned rows,
    and `padded_bytes` their bytes, padded. Rows that were not planned have nulls. The table has the
    extra columns `extras`.
    """
    count, rows, index = batch.num_rows, planned.rows, planned.rows["trace_row"] - first_row

    def spread(
        values: np.ndarray, none: int, kind: type[np.signedinteger] = np.int64
    ) -> np.ndarray:
        if len(rows) == count:
            return values.astype(kind)
        column = np.full(count, none, kind)
        column[index] = values
        return column

    engines = [enum_code(OPS, "engine", "none" if t is None else t.engine) for t in setting.tiers]
    moves = np.array([t is not None and not t.is_simulated for t in setting.tiers])
    has_bytes = (rows["outcome"] == OK) & moves[rows["tier"]]
    # A delete transfers no bytes, so its measured value is 0.
    nbytes = np.where(has_bytes, np.where(rows["op"] == DELETE, 0, rows["length_bytes"]), NONE)
    columns = {
        **dict(zip(batch.schema.names, batch.columns, strict=True)),
        "row": trace_rows(setting.reader, batch, first_row),
        "scheduled_ns": spread(rows["due_ns"], NONE),
        "submitted_ns": spread(rows["submitted_ns"], NONE),
        "completed_ns": spread(rows["completed_ns"], NONE),
        "bytes": spread(nbytes, NONE),
        "io_bytes": spread(np.where(has_bytes, padded_bytes, NONE), NONE),
        "outcome": spread(rows["outcome"], SKIPPED, np.int8),
        "engine": spread(
            np.array(engines)[rows["tier"]], enum_code(OPS, "engine", "none"), np.int8
        ),
        RETRIES: spread(rows["retries"], 0, np.int32),
    }
    return batch_of(OPS, columns, extras)


class TraceRows:
    """Reads a trace forward."""

    def __init__(self, reader: Reader, columns: Sequence[str]) -> None:
        """Begin with the first row of `reader`."""
        self.row = 0
        """Number of the next row."""
        self._batches = iter(reader.batches(columns))
        self._remaining: pa.RecordBatch | None = None

    def up_to(self, row: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows before `row`.

        While a batch is being processed, `self.row` is its first row.
        """
        while self.row < row:
            if self._remaining is None or not self._remaining.num_rows:
                self._remaining = next(self._batches, None)
                if self._remaining is None:
                    return
            batch = self._remaining.slice(0, min(row - self.row, BATCH_ROWS))
            self._remaining = self._remaining.slice(batch.num_rows)
            yield batch
            self.row += batch.num_rows

    def close(self) -> None:
        """Stop reading."""
        if hasattr(self._batches, "close"):
            self._batches.close()


class LeastLater:
    """The minimum request id that may still follow in a trace: all lower ones are complete."""

    def __init__(self, reader: Reader, rows: int) -> None:
        """Read the first `rows` rows of the trace, or the rows that are repeated."""
        self._rows, self._step = 0, 0
        if isinstance(reader, Repeated):
            rows, self._rows, self._step, reader = (
                reader.rows,
                reader.rows,
                reader.requests,
                reader.once,
            )
        starts, batch_min_ids, row = list[int](), list[int](), 0
        for batch in reader.batches(("request_id",)):
            ids = numbers(batch.column("request_id"))
            starts.append(row)
            batch_min_ids.append(int(ids.min(where=ids >= 0, initial=np.iinfo(np.int64).max)))
            row += batch.num_rows
            if row >= rows:
                break
        self._starts = np.array(starts, np.int64)
        # The minimum over each batch and all later ones of the same repeat.
        self._min_ids = np.minimum.accumulate(np.array(batch_min_ids[::-1], np.int64))[::-1]

    def after(self, row: int) -> int:
        """Return the minimum request id of the rows from `row` on."""
        repeat = row // self._rows if self._rows else 0
        batch = int(np.searchsorted(self._starts, row - repeat * self._rows, side="right")) - 1
        min_id = int(self._min_ids[batch])
        return (min(min_id, self._step) if self._rows else min_id) + repeat * self._step
