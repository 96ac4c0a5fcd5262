"""The trace in batches, and the second pass over it: its rows laid into the ring that the engine replays from."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from kvreplay.native.rows import REPLAY, WINDOW_ROWS, RowRing
from kvreplay.plan.pacing import Pacer, Repeated
from kvtrace.core.errors import TraceError
from kvtrace.core.limit import Limit
from kvtrace.core.native.library import I1, I8, StructAt, function
from kvtrace.core.native.structs import Structure
from kvtrace.core.schema import TRACE, Phase, enum_code, numbers
from kvtrace.core.tables import Reader

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
COLUMNS = ("ts_ns", "op", "tier", "phase", "object_id", "offset_bytes", "length_bytes", "request_id", "stage")
BATCH_ROWS = 1 << 14
"""A reader's batch has no more rows."""
MOST_ROWS = 2**31 - 2
"""Of a plan: versions are rows, in 32 bits."""
MAX_OBJECT_ID = 2**31 - 2
_TYPES = {"op": "i1", "tier": "i1", "phase": "i1", "stage": "i4", "stream": "i2", "node": "i4"}
"""Of a batch's columns, as the contract has them; others have 64 bits."""
_UNBOUND = np.iinfo(np.int64).max
_AHEAD = 2
"""Items that are read before they are wanted, at most."""
_EARLIER, _LARGE_ID, _UNNAMED, _STAGE_FALLS = 1, 2, 3, 4


def among(*phases: Phase) -> Any:
    """Return a bool array over phase codes: whether each is one of `phases`."""
    return np.isin(np.arange(len(Phase)), [enum_code(TRACE, "phase", phase) for phase in phases])


IS_COPY, IS_BULK = among(Phase.PROMOTE, Phase.STORE, Phase.DEMOTE), among(Phase.SAVE, Phase.RESTORE)
"""By phase: whether a write of it copies what another tier holds; whether it saves or restores a checkpoint."""
IS_LOAD = among(Phase.LOAD, Phase.RETRIEVE)
"""By phase: whether a read of it loads cached KV for its request."""


_new = function("plan_new", bool, bool, returns=int)
_populate = function("plan_populate", int, int, I1, I8, I8, I8)
_load = function("plan_load", int, StructAt, StructAt, StructAt, int, returns=int)
_held_bytes = function("plan_held_bytes", int, returns=int)
_forget = function("plan_forget", int, int)
_free = function("plan_free", int)


def ahead(items: Iterator[T]) -> Generator[T]:
    """Yield `items`, prefetched by a thread; their exceptions are raised here."""
    ready: Queue[tuple[T | None, BaseException | None]] = Queue(_AHEAD)
    is_left = threading.Event()

    def read() -> None:
        try:
            for item in items:
                ready.put((item, None))
                if is_left.is_set():
                    return
            ready.put((None, None))
        except BaseException as error:  # noqa: BLE001 - raised again by the reader
            ready.put((None, error))

    thread = threading.Thread(target=read, name="read-ahead", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is None:
                return
            yield item
    finally:
        is_left.set()
        while thread.is_alive():
            # It may wait for room.
            while not ready.empty():
                ready.get()
            thread.join(0.01)


class Intake:
    """Selects the rows of a trace that are replayed, and counts them; each pass has one."""

    def __init__(
        self, padding: list[int], targets: Mapping[int, int], limit: Limit, left_out: Any = None, *, is_done: bool
    ) -> None:
        """Take rows of the tiers in `targets`, but those `left_out` (bool a row of what is repeated).

        `padding` is by tier, in bytes. In a trace of what was done already (`is_done`), nothing is left out.
        """
        self.padding = np.array(padding, np.int64)
        self._skipped = np.zeros(len(padding), np.int64)
        self.struct = Structure(
            REPLAY,
            "Intake",
            most_rows=_UNBOUND if limit.rows is None else limit.rows,
            most_ns=_UNBOUND if limit.span_ns is None else limit.span_ns,
            most_bytes=_UNBOUND if limit.moved_bytes is None else limit.moved_bytes,
            node=-1 if limit.node is None else limit.node,
            copies=sum(1 << phase for phase in np.flatnonzero(IS_COPY).tolist()),
            bulk=sum(1 << phase for phase in np.flatnonzero(IS_BULK).tolist()),
            has_target=np.array([tier in targets for tier in range(len(padding))], bool),
            padding_bytes=self.padding,
            skipped=self._skipped,
            left_out=0 if left_out is None else left_out,
            repeated_rows=0 if left_out is None else len(left_out),
            is_later=limit.begin_ns > 0,
            is_done=is_done,
        )

    @property
    def skipped(self) -> dict[int, int]:
        """Rows of each tier without a target."""
        return {tier: int(rows) for tier, rows in enumerate(self._skipped) if rows}


class Batch:
    """Some rows as NumPy arrays by the contract's names, nulls as -1, which native code takes one after the other."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns
        self.struct = Structure(REPLAY, "Batch", **columns, rows=len(columns["op"]))

    @classmethod
    def of(cls, batch: pa.RecordBatch, names: tuple[str, ...], due_ns: Callable[[Any], Any] | None = None) -> Batch:
        """Return the columns `names` of an Arrow batch, and when its rows are due, in an open loop."""
        columns = {name: numbers(batch.column(name), _TYPES.get(name, "i8")) for name in names}
        due = None if due_ns is None else due_ns(columns["ts_ns"])
        return cls(columns if due is None else columns | {"due_ns": due})

    def check(self, intake: Intake, path: Path) -> None:
        """Raise TraceError if native code found a row that cannot be replayed."""
        fault, at = intake.struct.fault, self.struct.at
        if not fault:
            return
        column = {_EARLIER: "ts_ns", _STAGE_FALLS: "stage"}.get(fault, "object_id")
        value, again = self.columns[column][at], "run kvtrace validate on this trace"
        message = {
            _EARLIER: f"{value}: earlier than the row before it; {again}",
            _LARGE_ID: f"{value}: an object id is at most {MAX_OBJECT_ID}",
            _UNNAMED: f"object {value} is not in the objects table, whose keys say on which drive it lies",
            _STAGE_FALLS: f"{value}: request {self.columns['request_id'][at]} was in a later stage before; {again}",
        }
        raise TraceError(message[fault], path=path, row=int(intake.struct.rows), column=column)


class TraceSource:
    """A trace, read by both passes; the batches of a short one are cached."""

    def __init__(
        self, reader: Reader, path: Path, alignments: Mapping[int, int], limit: Limit, *, is_done: bool
    ) -> None:
        self.reader, self.path, self.limit, self._alignments, self._is_done = reader, path, limit, alignments, is_done
        self.padding = [alignments.get(tier, 1) for tier in range(len(reader.meta.tiers))]
        self.names = COLUMNS + ("stream",) * ("stream" in reader.extras) + ("node",) * (limit.node is not None)
        self._kept: list[pa.RecordBatch] | None = None
        self._is_read = False

    def intake(self) -> Intake:
        """Return a new selection of rows, at the first."""
        left_out = self.reader.left_out if isinstance(self.reader, Repeated) else None
        return Intake(self.padding, self._alignments, self.limit, left_out, is_done=self._is_done)

    def each(self, intake: Intake, take: Callable[[Batch], None]) -> None:
        """Pass the batches to `take`, with the rows that `intake` selects, until the selection is complete.

        Raises:
            TraceError: a row that cannot be replayed.

        """
        with closing(self.batches()) as batches:
            for batch in batches:
                rows = Batch.of(batch, self.names)
                take(rows)
                rows.check(intake, self.path)
                if intake.struct.is_full:
                    return

    def batches(self) -> Generator[pa.RecordBatch]:
        """Yield the batches; those left out in the first pass are not read again."""
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[pa.RecordBatch] = []
        rows = 0
        with closing(ahead(self.reader.batches(self.names))) as batches:
            try:
                for batch in batches:
                    rows += batch.num_rows
                    kept = [*kept, batch] if rows <= WINDOW_ROWS and not self._is_read else []
                    yield batch
            finally:
                self._kept = kept if rows <= WINDOW_ROWS and not self._is_read else None
                self._is_read = True


class Loader:
    """Lays the rows of a trace into a ring, in order, as far as there is space: one thread at a time."""

    def __init__(self, source: TraceSource, planned: int, populated: tuple[Any, Any, Any]) -> None:
        """Lay the `planned` rows of `source`; `populated`: tier, object and bytes of what lies there before the run."""
        self._source, self._planned, self._populated = source, planned, populated
        self._reading: Generator[pa.RecordBatch] | None = None
        self._batch: Batch | None = None
        self._plan: int | None = None
        self._free: Callable[[], Any] = lambda: None
        self._rows = RowRing(0)

    def begin(
        self,
        pacer: Pacer | None = None,
        *,
        is_ignoring_streams: bool = False,
        is_verified: bool = False,
        window: int = WINDOW_ROWS,
    ) -> RowRing:
        """Start or restart the second pass; return an empty ring of `window` rows.

        Rows are due as `pacer` says (None: at once). If it `is_verified`, reads have the version that they must find,
        see `plan_spans` in plan.h.
        """
        self.close()
        self._due_ns = None if pacer is None else pacer.due_ns
        self._names = tuple(n for n in self._source.names if n != "stream" or not is_ignoring_streams)
        self._intake, is_later = self._source.intake(), self._source.limit.begin_ns > 0
        self._plan = _new(is_verified, is_later)
        self._free = weakref.finalize(self, _free, self._plan)
        if is_verified or is_later:
            arrays = zip(self._populated, (np.int8, np.int64, np.int64), strict=True)
            parts = [np.ascontiguousarray(values, kind) for values, kind in arrays]
            _populate(self._plan, len(parts[0]), *parts, self._intake.padding)
        self._rows = RowRing(self._planned, window)
        return self._rows

    @property
    def rows(self) -> RowRing:
        """The ring; an empty one before `begin`."""
        return self._rows

    @property
    def laid(self) -> int:
        """The number of rows laid so far."""
        return int(self._rows.struct.laid)

    @property
    def is_whole(self) -> bool:
        """Whether all rows are laid."""
        return self.laid == self._planned

    @property
    def plan_address(self) -> int:
        """Where native code finds the `Plan`, until `close` or the next `begin`."""
        if self._plan is None:
            raise ValueError("the second pass has not begun")
        return self._plan

    @property
    def held_bytes(self) -> int:
        """Bytes of memory for the ring of rows, and for the live objects."""
        return int(self._rows.ring.nbytes) + (0 if self._plan is None else int(_held_bytes(self._plan)))

    def load(self, until: int | None = None) -> int:
        """Lay rows until `until` of the plan are (all, without), or the ring is full; return how many are laid.

        Raises:
            TraceError: the trace is not what it was in the first pass.

        """
        plan, intake, rows = self.plan_address, self._intake, self._rows
        until = self._planned if until is None else min(until, self._planned)
        while self.laid < until and self.laid - rows.struct.given <= rows.struct.mask:
            if self._batch is None or self._batch.struct.at == self._batch.struct.rows:
                if self._reading is None:
                    self._reading = self._source.batches()
                batch = next(self._reading, None)
                if batch is None:
                    raise self._changed()
                self._batch = Batch.of(batch, self._names, self._due_ns)
            _load(plan, intake.struct, self._batch.struct, rows, until)
            self._batch.check(intake, self._source.path)
            if intake.struct.is_full:
                raise self._changed()
        if self.is_whole:
            self._stop_reading()
        return self.laid

    def forget(self, below: int) -> None:
        """Release the rows before `below`."""
        if self._plan is not None:
            _forget(self._plan, below)

    def _changed(self) -> TraceError:
        return TraceError("it has fewer rows to replay than when it was read first", path=self._source.path)

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.close()
        self._reading = self._batch = None

    def close(self) -> None:
        """Stop reading, and free what is known of objects; rows that were laid stay."""
        self._stop_reading()
        self._free()
        self._plan = None
