"""The times at which operations may start, and repeats of a trace.

In a closed loop, an operation starts as soon as the queue depth and its dependencies allow. In an
open loop, it is due at its time in the trace. Due times are absolute, counted from the run's start,
so that one late operation delays no other.

`Repeated` plays a trace several times as one longer trace, for a run of a given duration. A repeat
uses the same objects, as fio's time_based does with its files: its reads find the objects, its
writes replace the versions of the repeat before, and deleted objects are absent until they are
written. If the trace reads an object before it writes it, the object's last delete is left out, so
that the next repeat finds it. Each repeat has request ids of its own, and its times continue those
of the repeat before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kvtrace.core import pa, pc
from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import MOST
from kvtrace.core.statistics import gap_ns
from kvtrace.core.tables import Reader

KEPT_PACE_FRACTION = 0.01
"""An open loop kept pace if at most this fraction of its operations was late."""


@dataclass(frozen=True, slots=True)
class Pacer:
    """The start times of operations; the run is an open loop if it has a speed."""

    speed: float | None = None
    """Factor by which the replay is faster than the trace; None in a closed loop."""

    @property
    def name(self) -> str:
        """The kind of loop."""
        return "closed" if self.speed is None else "open"

    def due_ns(self, ts_ns: np.ndarray) -> np.ndarray | None:
        """Return int64 nanoseconds from the run's start for each of `ts_ns`, rounded down.

        None in a closed loop.
        """
        if self.speed is None:
            return None
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # at very low speeds, times overflow that no run reaches
            return (
                ts_ns
                if self.speed == 1.0
                else np.minimum(np.floor_divide(ts_ns, self.speed), MOST).astype(np.int64)
            )


def choose(*, speed: float | None, as_fast_as_possible: bool) -> Pacer:
    """Return the pacer by the options: an open loop if a speed is given, else a closed loop."""
    if speed is None:
        return Pacer()
    if as_fast_as_possible:
        raise ConfigError("--speed and --as-fast-as-possible exclude each other; give one")
    if not 0 < speed < float("inf"):
        raise ConfigError(
            f"--speed {speed:g}: give a factor above 0; 2 replays twice as fast as the trace"
        )
    return Pacer(speed)


TOGETHER = 1 << 16
"""A trace with fewer rows is read once, and several of its repeats form one batch."""


class Repeated(Reader):
    """Reads the first rows of a trace several times, as one trace."""

    def __init__(
        self, reader: Reader, rows: int, repeats: int, last_deletes: np.ndarray | Sequence[int] = ()
    ) -> None:
        """Repeat the first `rows` rows of `reader` `repeats` times.

        `last_deletes` are the rows of the last deletes of objects that the next repeat reads. No
        repeat performs them.
        """
        self.path, self.table, self.extras, self.meta = (
            reader.path,
            reader.table,
            reader.extras,
            reader.meta,
        )
        self.rows, self.once = rows, reader
        """The number of rows that are repeated, and their reader."""
        self.left_out = np.zeros(rows, bool)
        """Whether each of the repeated rows is left out."""
        self.left_out[np.asarray(last_deletes, np.int64)] = True
        last_ns, span_ns, square_gaps, request = np.zeros(0, np.int64), 0, 0.0, -1
        for batch in _first(reader, ("ts_ns", "request_id"), rows):
            ts_ns = np.append(last_ns, batch.column("ts_ns"))
            gaps_ns = np.diff(ts_ns)
            last_ns, span_ns = ts_ns[-1:], span_ns + int(gaps_ns.sum())
            square_gaps += float(np.square(gaps_ns, dtype=float).sum())
            request = max(
                request, int(batch.column("request_id").fill_null(-1).to_numpy().max(initial=-1))
            )
        self.period_ns = int(last_ns.max(initial=0)) + max(1, gap_ns(square_gaps, span_ns))
        """Time from the start of one repeat to the start of the next.

        It is the last row's time plus a typical gap between rows.
        """
        self.requests = request + 1
        """Difference between the request ids of a repeat and those of the repeat before."""
        partition = (reader.meta.source or {}).get("part")
        if isinstance(partition, dict) and rows == reader.meta.rows:
            # Other ranks repeat the other parts of the trace, with the same period.
            self.period_ns = int(partition.get("period_ns", self.period_ns))
            self.requests = int(partition.get("requests", self.requests))
        self.repeats = max(1, min(repeats, MOST // self.period_ns))  # fewer if times would overflow

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all repeats, with continued times and request ids."""
        if self.rows > TOGETHER:
            for repeat in range(self.repeats):
                for batch in _first(self.once, columns, self.rows):
                    yield self._shifted(batch, np.full(batch.num_rows, repeat))
            return
        once = pa.Table.from_batches(list(_first(self.once, columns, self.rows)))
        repeats_per_batch = TOGETHER // self.rows
        for start in range(0, self.repeats, repeats_per_batch):
            repeats = np.arange(start, min(start + repeats_per_batch, self.repeats))
            table = once.take(np.tile(np.arange(self.rows), len(repeats))).combine_chunks()
            yield self._shifted(table.to_batches()[0], np.repeat(repeats, self.rows))

    def file_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of the file that `rows` are, the same ones in each repeat."""
        return np.asarray(self.once.file_rows(rows % self.rows))

    def _shifted(self, batch: pa.RecordBatch, repeat: np.ndarray) -> pa.RecordBatch:
        """Return `batch` with its times and request ids shifted to `repeat`, by row."""
        for name, step in (("ts_ns", self.period_ns), ("request_id", self.requests)):
            index = batch.schema.get_field_index(name)
            if index >= 0:
                field = batch.schema.field(index)
                shifted = pc.add(batch.column(index), pa.array(repeat * step, field.type))
                batch = batch.set_column(index, field, shifted)
        return batch


def _first(reader: Reader, columns: Sequence[str] | None, rows: int) -> Iterator[pa.RecordBatch]:
    for batch in reader.batches(columns):
        if batch.num_rows >= rows:
            yield batch.slice(0, rows)
            return
        rows -= batch.num_rows
        yield batch
