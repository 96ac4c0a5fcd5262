"""When an operation may start.

At once (closed loop), or at its time in the trace (open loop); and repeats of a trace.

Deadlines are absolute, counted from the run's start, so that one late operation delays no other.

`Repeated` plays a trace again and again as one longer trace, for a run whose length is set by the
clock. A repeat works on the same objects, as fio's time_based does on its files: what it reads lies
there, what it writes replaces what the repeat before left, what it deletes is gone until a write
brings it back. Only the last delete of an object that the trace reads before it writes it is left
out, so that the next repeat finds it. Requests of a repeat are requests of its own, and its times
go on from the repeat before.
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
"""An open loop kept pace if no more than this part of its operations was late."""


@dataclass(frozen=True, slots=True)
class Pacer:
    """When operations start, of a run that is an open loop if it has a speed."""

    speed: float | None = None
    """How much faster than the trace.

    Null in a closed loop: as soon as queue and dependencies let them.
    """

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
        ):  # at the least speeds: what no run comes to
            return (
                ts_ns
                if self.speed == 1.0
                else np.minimum(np.floor_divide(ts_ns, self.speed), MOST).astype(np.int64)
            )


def choose(*, speed: float | None, as_fast_as_possible: bool) -> Pacer:
    """Return the pacer that the options ask for: open loop if a speed is given, else closed."""
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
"""Rows: a shorter trace is read once, and several of its repeats are one batch."""


class Repeated(Reader):
    """Reads the first rows of a trace several times, as one trace."""

    def __init__(
        self, reader: Reader, rows: int, repeats: int, last_deletes: np.ndarray | Sequence[int] = ()
    ) -> None:
        """Repeat the first `rows` rows of `reader` `repeats` times.

        `last_deletes` are the rows of the last deletes of objects that the next repeat reads: no
        repeat has them.
        """
        self.path, self.table, self.extras, self.meta = (
            reader.path,
            reader.table,
            reader.extras,
            reader.meta,
        )
        self.rows, self.once = rows, reader
        """How many rows are repeated, and the reader of them."""
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
        """From the start of one repeat to that of the next.

        The last row's time, and a gap such as those before it.
        """
        self.requests = request + 1
        """The request ids of each repeat are this much higher than those of the repeat before."""
        part = (reader.meta.source or {}).get("part")
        if isinstance(part, dict) and rows == reader.meta.rows:
            # Other ranks repeat the other parts, in step.
            self.period_ns = int(part.get("period_ns", self.period_ns))
            self.requests = int(part.get("requests", self.requests))
        self.repeats = max(
            1, min(repeats, MOST // self.period_ns)
        )  # fewer where times would not fit

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all repeats, times and requests counted on."""
        if self.rows > TOGETHER:
            for repeat in range(self.repeats):
                for batch in _first(self.once, columns, self.rows):
                    yield self._moved(batch, np.full(batch.num_rows, repeat))
            return
        once = pa.Table.from_batches(list(_first(self.once, columns, self.rows)))
        most = TOGETHER // self.rows
        for start in range(0, self.repeats, most):
            repeats = np.arange(start, min(start + most, self.repeats))
            some = once.take(np.tile(np.arange(self.rows), len(repeats))).combine_chunks()
            yield self._moved(some.to_batches()[0], np.repeat(repeats, self.rows))

    def file_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of the file that `rows` are, the same ones in each repeat."""
        return np.asarray(self.once.file_rows(rows % self.rows))

    def _moved(self, batch: pa.RecordBatch, repeat: np.ndarray) -> pa.RecordBatch:
        """Return a batch with the rows of these repeats."""
        for name, by in (("ts_ns", self.period_ns), ("request_id", self.requests)):
            at = batch.schema.get_field_index(name)
            if at >= 0:
                field = batch.schema.field(at)
                moved = pc.add(batch.column(at), pa.array(repeat * by, field.type))
                batch = batch.set_column(at, field, moved)
        return batch


def _first(reader: Reader, columns: Sequence[str] | None, rows: int) -> Iterator[pa.RecordBatch]:
    for batch in reader.batches(columns):
        if batch.num_rows >= rows:
            yield batch.slice(0, rows)
            return
        rows -= batch.num_rows
        yield batch
