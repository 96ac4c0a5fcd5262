"""The window of a trace that is replayed, read twice.

The first pass follows the objects of each tier (`PlanSurvey`). A window reads objects that were
written before it, and these must be written first. Tiers must have space for all live objects. The
second pass lays rows into the ring from which the engine replays (`Loader`). The memory of both
passes grows only with the number of live objects. `RequestTable` is the table of requests that
`kvtrace gen --requests-out` writes beside a trace.
"""

from __future__ import annotations

import ctypes
import weakref
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
from msgspec import UNSET

from kvreplay.plan.pacing import Pacer, Repeated
from kvreplay.plan.row_ring import DELETE, READ, REPLAY, WINDOW_ROWS, WRITE, RowRing
from kvtrace.core import pa, pc
from kvtrace.core.app import log
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.limit import ALL, STEADIEST, STEADIEST_LENGTHENED, Limit, busiest_begin_ns
from kvtrace.core.metadata import Metadata
from kvtrace.core.native.library import I1, I8, StructAt, function
from kvtrace.core.native.structs import Structure, address
from kvtrace.core.schema import REQUESTS, TRACE, Op, Phase, enum_code, numbers
from kvtrace.core.tables import Reader, open_table
from kvtrace.core.units import NS_PER_S, format_duration, parse_duration_ns

T = TypeVar("T")
COLUMNS = (
    "ts_ns",
    "op",
    "tier",
    "phase",
    "object_id",
    "offset_bytes",
    "length_bytes",
    "request_id",
    "stage",
)
FEWEST_OPS, MOST_BYTES, MOST_LENGTHENED = 100, 32 << 30, 60
"""What bounds a lengthened window: it ends with this many reads and writes, of which a p99 has at
least one, or when it has moved this many bytes, or at this many times its given length.
"""
BATCH_ROWS = 1 << 14
"""Maximum number of rows of a reader's batch."""
MAX_WINDOW_ROWS = 2**31 - 2
"""Limit of the rows of a plan: versions are row numbers of 32 bits."""
MAX_OBJECT_ID = 2**31 - 2
_TYPES = {"op": "i1", "tier": "i1", "phase": "i1", "stage": "i4", "stream": "i2", "node": "i4"}
"""Types of a batch's columns, as in the trace contract; all others have 64 bits."""
_UNBOUND = np.iinfo(np.int64).max
_AHEAD = 2
"""Maximum number of items that are read before they are needed."""
_EARLIER, _LARGE_ID, _UNNAMED, _STAGE_FALLS = 1, 2, 3, 4


def among(*phases: Phase) -> np.ndarray:
    """Return a bool array over phase codes: whether each is one of `phases`."""
    return np.isin(np.arange(len(Phase)), [enum_code(TRACE, "phase", phase) for phase in phases])


IS_COPY, IS_BULK = among(Phase.PROMOTE, Phase.STORE, Phase.DEMOTE), among(Phase.SAVE, Phase.RESTORE)
"""Properties by phase code.

They tell whether a write copies data of another tier, and whether a row saves or restores a
checkpoint.
"""
IS_LOAD = among(Phase.LOAD, Phase.RETRIEVE)
"""Whether a read of each phase loads cached KV for its request."""
_EVICT = enum_code(TRACE, "phase", Phase.EVICT)
KIND, SPAN, RESIDENT = map(REPLAY.dtype, ("Kind", "Span", "Resident"))
"""Structs of plan.h; `end_bytes` of KIND is the end of the highest byte read or written."""
_OPS = len(Op)
_FIRST, _AGAIN, _GROWN = range(3)
_take = function("survey_take", int, StructAt, StructAt, int)
_begin_again = function("survey_begin_again", int, StructAt, bool)
_free = function("survey_free", int)
_return_freed = function("plan_return_freed_memory")
Shared = Mapping[int, tuple[np.ndarray, int]]
"""For each tier on several drives: the drive of each object id, and the number of drives."""
_new = function("plan_new", bool, bool, returns=int)
_populate = function("plan_populate", int, int, I1, I8, I8, I8)
_load = function("plan_load", int, StructAt, StructAt, StructAt, int, returns=int)
_held_bytes = function("plan_held_bytes", int, returns=int)
_forget = function("plan_forget", int, int)
_free_plan = function("plan_free", int)


def ahead(items: Iterator[T]) -> Generator[T]:
    """Yield `items`, prefetched by a thread; their exceptions are raised here."""
    pool = ThreadPoolExecutor(1, "read-ahead")
    waiting = deque(pool.submit(next, items, None) for _ in range(_AHEAD))
    try:
        while (item := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, items, None))
            yield item
    finally:
        pool.shutdown(cancel_futures=True)


class Intake:
    """Selects the rows of a trace that are replayed, and counts them; each pass has one."""

    def __init__(
        self,
        padding: list[int],
        targets: Mapping[int, int],
        limit: Limit,
        left_out: np.ndarray | None = None,
        *,
        is_done: bool,
    ) -> None:
        """Take rows of the tiers in `targets`, except those that are `left_out`.

        `padding` is the alignment of each tier, in bytes. `left_out` has a bool for each row of a
        repeated trace. With `is_done` the trace records operations that were performed already, and
        all its rows are taken.
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
        """The number of rows of each tier without a target."""
        return {tier: int(rows) for tier, rows in enumerate(self._skipped) if rows}


class Batch:
    """A batch of rows for native code: NumPy arrays by column name, with -1 for null."""

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self.columns = columns
        self.struct = Structure(REPLAY, "Batch", **columns, rows=len(columns["op"]))

    @classmethod
    def of(
        cls,
        batch: pa.RecordBatch,
        names: tuple[str, ...],
        due_ns: Callable[[np.ndarray], np.ndarray | None] | None = None,
    ) -> Batch:
        """Return the columns `names` of an Arrow batch, and in an open loop the due times."""
        columns = {name: numbers(batch.column(name), _TYPES.get(name, "i8")) for name in names}
        due_times = None if due_ns is None else due_ns(columns["ts_ns"])
        return cls(columns if due_times is None else columns | {"due_ns": due_times})

    def check(self, intake: Intake, reader: Reader) -> None:
        """Raise TraceError if native code found a row of `reader` that cannot be replayed."""
        fault, index = intake.struct.fault, self.struct.at
        if not fault:
            return
        column = {_EARLIER: "ts_ns", _STAGE_FALLS: "stage"}.get(fault, "object_id")
        value, advice = self.columns[column][index], "run kvtrace validate on this trace"
        message = {
            _EARLIER: f"{value}: earlier than the row before it; {advice}",
            _LARGE_ID: f"{value}: an object id is at most {MAX_OBJECT_ID}",
            _UNNAMED: (f"object {value} is not in the objects table, whose keys select the drives"),
            _STAGE_FALLS: (
                f"{value}: request {self.columns['request_id'][index]} was in a later stage before;"
                f" {advice}"
            ),
        }
        row = int(reader.file_rows(np.array([intake.struct.rows]))[0])
        raise TraceError(message[fault], path=reader.path, row=row, column=column)


class TraceSource:
    """A trace, read by both passes; the batches of a short one are cached."""

    def __init__(
        self,
        reader: Reader,
        path: Path,
        alignments: Mapping[int, int],
        limit: Limit,
        *,
        is_done: bool,
    ) -> None:
        self.reader, self.path, self.limit, self._alignments, self._is_done = (
            reader,
            path,
            limit,
            alignments,
            is_done,
        )
        self.padding = [alignments.get(tier, 1) for tier in range(len(reader.meta.tiers))]
        self.names = (
            COLUMNS
            + ("stream",) * ("stream" in reader.extras)
            + ("node",) * (limit.node is not None)
        )
        self._cached: list[pa.RecordBatch] | None = None
        self._is_read = False

    def intake(self) -> Intake:
        """Return a new selection of rows, which begins at the first row."""
        left_out = self.reader.left_out if isinstance(self.reader, Repeated) else None
        return Intake(self.padding, self._alignments, self.limit, left_out, is_done=self._is_done)

    def for_each_batch(self, intake: Intake, take: Callable[[Batch], None]) -> None:
        """Pass the batches to `take` until the selection of `intake` is complete.

        TraceError for a row that cannot be replayed.
        """
        with closing(self.batches()) as batches:
            for batch in batches:
                rows = Batch.of(batch, self.names)
                take(rows)
                rows.check(intake, self.reader)
                if intake.struct.is_full:
                    return

    def batches(self) -> Generator[pa.RecordBatch]:
        """Yield the batches; those of a short trace are cached in the first pass."""
        if self._cached is not None:
            yield from self._cached
            return
        cached: list[pa.RecordBatch] = []
        rows = 0
        with closing(ahead(self.reader.batches(self.names))) as batches:
            try:
                for batch in batches:
                    rows += batch.num_rows
                    cached = [*cached, batch] if rows <= WINDOW_ROWS and not self._is_read else []
                    yield batch
            finally:
                self._cached = cached if rows <= WINDOW_ROWS and not self._is_read else None
                self._is_read = True


@dataclass(frozen=True, slots=True)
class Facts:
    """Counts over the rows of a plan."""

    rows: int
    kinds: np.ndarray
    """KIND by tier and operation."""
    last_row: int
    """Number in the trace of the last row; like `last_ns`, -1 if there is none."""
    last_ns: int
    placed: tuple[int, ...]
    """Tiers with writes that belong to a stream."""
    is_bulk: bool
    """Whether some rows save or restore checkpoints."""
    objects: int
    """One more than the highest object id."""


@dataclass(frozen=True, slots=True)
class Residency:
    """The liveness of objects through the replayed rows; objects of different tiers differ."""

    populate_tier: np.ndarray
    """Tiers of the objects that must be written before the run (int8)."""
    populate_object: np.ndarray
    """Ids of these objects (int64)."""
    populate_bytes: np.ndarray
    """Required lengths of these objects (int64)."""
    absent_deletes: int
    """Number of rows that delete an object that is not in the tier."""
    lost_read: tuple[int, int, int] | None
    """Row, tier and object of the first read of bytes that were deleted and not rewritten.

    None if there is none.
    """
    peak_bytes: list[int]
    """Maximum live bytes of each tier, padded, populated objects included."""
    drive_peak_bytes: list[list[int]]
    """Space that each drive of each tier needs: its peak with every object at its final length."""
    grown: list[dict[int, int]]
    """By tier: the final length of each object that later writes extend."""
    last_deletes: np.ndarray
    """Rows that delete a populated object without a later row on it (int64), in their order."""


class PlanSurvey:
    """The first pass: counts rows, and follows the objects of all tiers."""

    def __init__(self, tiers: int, shared: Shared) -> None:
        drives = [shared[tier][1] if tier in shared else 1 for tier in range(tiers)]
        self._starts = list(accumulate(drives, initial=tiers))
        self._tables = {
            tier: np.ascontiguousarray(drive_of, np.int16) for tier, (drive_of, _) in shared.items()
        }
        self._base, self._now, self._peak = np.zeros((3, self._starts[-1]), np.int64)
        self._kinds, self._placed = np.zeros((tiers, _OPS), KIND), np.zeros(tiers, bool)
        self._drive_tables = [
            np.array(self._starts[:-1], np.int64),
            np.array([len(self._tables.get(tier, ())) for tier in range(tiers)], np.int64),
            np.array([address(self._tables.get(tier)) for tier in range(tiers)], np.int64),
        ]
        arrays = (self._base, self._now, self._peak, *self._drive_tables, self._kinds, self._placed)
        self.struct = REPLAY.struct("Survey")(tiers, self._starts[-1], *map(address, arrays))
        self.struct.last_row = self.struct.last_ns = self.struct.lost_row = -1

    def take(self, batch: Batch, intake: Intake, survey_pass: int = _FIRST) -> None:
        """Take the next rows, in the pass `survey_pass`."""
        _take(ctypes.addressof(self.struct), intake.struct, batch.struct, survey_pass)

    def facts(self) -> Facts:
        """Return the counts of the survey."""
        struct = self.struct
        placed = tuple(np.flatnonzero(self._placed).tolist())
        return Facts(
            struct.planned,
            self._kinds,
            struct.last_row,
            struct.last_ns,
            placed,
            bool(struct.is_bulk),
            struct.objects,
        )

    def residency(self, source: TraceSource) -> Residency:
        """Return the residency of objects.

        Rows are read again from `source` if another pass is needed.
        """
        struct = self.struct
        lost = (
            None if struct.lost_row < 0 else (struct.lost_row, struct.lost_tier, struct.lost_object)
        )
        if struct.is_late:
            self._repeat_pass(source, _AGAIN)
        peaks = (self._base + self._peak)[: struct.tiers].tolist()
        if struct.has_grown:
            self._repeat_pass(source, _GROWN)
        drive_peaks = (self._base + self._peak).tolist()
        residents = self._residents()
        tier, object_id = residents["key"] >> 32, residents["key"] & 0xFFFFFFFF
        is_needed = residents["needed_bytes"] > 0
        grown: list[dict[int, int]] = [{} for _ in range(struct.tiers)]
        for index in np.flatnonzero(residents["longest_bytes"]).tolist():
            longest_bytes = int(residents["longest_bytes"][index])
            grown[int(tier[index])][int(object_id[index])] = longest_bytes
        return Residency(
            tier[is_needed].astype(np.int8),
            object_id[is_needed],
            residents["needed_bytes"][is_needed],
            struct.absent,
            lost,
            peaks,
            [drive_peaks[a:b] for a, b in pairwise(self._starts)],
            grown,
            np.sort(residents["last_row"][is_needed & (residents["is_gone"] > 0)]),
        )

    def _repeat_pass(self, source: TraceSource, which: int) -> None:
        intake = source.intake()
        _begin_again(ctypes.addressof(self.struct), intake.struct, which == _GROWN)
        source.for_each_batch(intake, lambda batch: self.take(batch, intake, which))

    def _residents(self) -> np.ndarray:
        """Return structs RESIDENT, by tier and object, of objects to populate or that grow."""
        if not self.struct.residents.used:
            return np.zeros(0, RESIDENT)
        items = ctypes.c_char * (self.struct.residents.used * RESIDENT.itemsize)
        every = np.frombuffer(items.from_address(self.struct.residents.item), RESIDENT)
        residents = every[
            (every["key"] >= 0) & ((every["needed_bytes"] > 0) | (every["longest_bytes"] > 0))
        ]
        return residents[np.argsort(residents["key"])]

    def close(self) -> None:
        """Free the memory."""
        _free(ctypes.addressof(self.struct))
        self.struct = REPLAY.struct("Survey")()


class ColdTraceError(ConfigError):
    """A trace that never fills its slowest tier has no steady window."""


class Later(Reader):
    """Reads the rows of a trace from a later time on, as a trace of its own that begins then.

    Objects that its rows read or delete before they write them existed at its begin, and are
    written before the run. Objects that its rows never use are not.
    """

    def __init__(
        self, reader: Reader, text: str, tiers: Collection[int], node: int | None = None
    ) -> None:
        """Find the window that `text` describes, by the rows of `node` on `tiers`.

        `text` is `from:300s+60s`, `busiest:60s`, or `steady:60s`, which begins when the slowest of
        the tiers first evicts. The window's length is `span_ns`.

        ConfigError if it is none of these, or the trace has no such window.
        """
        self.path, self.table, self.extras, self.meta = (
            reader.path,
            reader.table,
            reader.extras,
            reader.meta,
        )
        self._reader, self.text, self._node = reader, text, node
        self._first_row = 0
        """Number of rows of the trace before the part, once they have been read."""
        kind, _, times = text.partition(":")
        begin, _, duration = times.rpartition("+")
        if (
            kind not in ("from", "busiest", "steady")
            or not duration
            or bool(begin) != (kind == "from")
        ):
            raise ConfigError(
                f"--window {text}: write from:300s+60s, busiest:60s, steady:60s or all"
            )
        self.span_ns = parse_duration_ns(duration)
        if self.span_ns <= 0:
            raise ConfigError(f"--window {text}: it must last more than 0 s")
        if kind == "from":
            self.begin_ns = parse_duration_ns(begin)
        else:
            self.begin_ns = (
                self._busiest_ns(tiers) if kind == "busiest" else self._steady_ns(max(tiers), text)
            )

    def _busiest_ns(self, tiers: Collection[int]) -> int:
        def moves() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            for rows in self._rows("ts_ns", "op", "tier", "length_bytes"):
                moves = (rows["op"] != DELETE) & np.isin(rows["tier"], list(tiers))
                yield rows["ts_ns"], np.where(moves, rows["length_bytes"], 0)

        return busiest_begin_ns(moves(), self.span_ns)

    def _steady_ns(self, tier: int, text: str) -> int:
        begin_ns = None
        # The missing event, and the remedy, for the error message.
        event, remedy = "read or written on", "a longer trace, or a larger tier if it is empty"
        for rows in self._rows("ts_ns", "op", "tier", "phase"):
            is_on_tier, is_delete, ts_ns = rows["tier"] == tier, rows["op"] == DELETE, rows["ts_ns"]
            if begin_ns is None and is_on_tier.any():
                event = "evicted from"
                remedy = "a longer trace or a smaller tier, or --window busiest:60s"
            evicts = is_on_tier & is_delete & (rows["phase"] == _EVICT)
            if begin_ns is None and evicts.any():
                begin_ns = int(ts_ns[evicts.argmax()])
                event = "read or written after the first eviction from"
            if begin_ns is not None and (is_on_tier & ~is_delete & (ts_ns >= begin_ns)).any():
                return begin_ns
        where = "in this trace" if self._node is None else f"by node {self._node} of this trace"
        raise ColdTraceError(
            f"--window {text}: nothing is {event} {self.meta.tiers[tier].name} {where}, so that it"
            f" has no steady state; take {remedy}"
        )

    def lengthen(self, tier: int) -> None:
        """Lengthen the window, by whole seconds, until `tier` is read and written often enough.

        If it has too few reads or writes for that, the window ends behind the last of them. It ends
        at MOST_LENGTHENED times its length, at MOST_BYTES, or with the trace, at the latest.
        """
        given_ns, most_ns = self.span_ns, self.span_ns * MOST_LENGTHENED
        missing, moved_bytes, last_ns = {READ: FEWEST_OPS, WRITE: FEWEST_OPS}, 0, 0
        for rows in self._rows("ts_ns", "op", "tier", "length_bytes"):
            ts_ns, op = rows["ts_ns"] - self.begin_ns, rows["op"]
            is_moved = (rows["tier"] == tier) & (op != DELETE) & (ts_ns >= 0)
            moved = moved_bytes + np.cumsum(np.where(is_moved, rows["length_bytes"], 0))
            is_admitted = is_moved & (moved <= MOST_BYTES) & (ts_ns < most_ns)
            for kind in missing:
                wanted_ns = ts_ns[is_admitted & (op == kind)][: missing[kind]]
                missing[kind] -= len(wanted_ns)
                last_ns = max([last_ns, *wanted_ns[-1:].tolist()])
            moved_bytes = int(moved[-1]) if len(moved) else moved_bytes
            is_over = moved_bytes > MOST_BYTES or (len(ts_ns) > 0 and int(ts_ns[-1]) >= most_ns)
            if is_over or not any(missing.values()):
                break
        # The last row is due within the window, which ends before its end.
        seconds = last_ns // NS_PER_S + 1
        self.span_ns = min(max(given_ns, seconds * NS_PER_S), most_ns)
        if self.span_ns > given_ns:
            self.text = f"{self.text.partition(':')[0]}:{self.span_ns // NS_PER_S}s"

    def _rows(self, *columns: str) -> Iterator[dict[str, np.ndarray]]:
        names = columns if self._node is None else (*columns, "node")
        for batch in self._reader.batches(names):
            rows = Batch.of(batch, names).columns
            is_selected = slice(None) if self._node is None else rows["node"] == self._node
            yield {name: rows[name][is_selected] for name in columns}

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield its rows, their times counted from its begin."""
        names = None if columns is None else tuple(dict.fromkeys([*columns, "ts_ns"]))
        first_row = 0
        for batch in self._reader.batches(names):
            index = batch.schema.get_field_index("ts_ns")
            ts_ns = batch.column(index)
            earlier_rows = int(np.searchsorted(ts_ns.to_numpy(), self.begin_ns))
            if earlier_rows:
                first_row += earlier_rows
                self._first_row = max(self._first_row, first_row)
            shifted = batch.set_column(index, "ts_ns", pc.subtract(ts_ns, self.begin_ns))
            shifted = shifted.slice(earlier_rows)
            if shifted.num_rows:
                yield shifted if columns is None else shifted.select(list(columns))

    def file_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return the rows of the file that `rows` of the part are; it has been read up to there."""
        return np.asarray(self._reader.file_rows(rows + self._first_row))


def part_of(
    text: str | None, reader: Reader, tiers: Collection[int], node: int | None
) -> Later | None:
    """Return the later part of a trace that --window `text` selects, by the rows of `node`.

    None for the whole trace. STEADIEST and STEADIEST_LENGTHENED select the steady window if the
    trace has one, else the whole trace.

    ConfigError as in `Later`.
    """
    if text in (None, ALL):
        return None
    if text not in (STEADIEST, STEADIEST_LENGTHENED):
        return Later(reader, text, tiers, node)
    try:
        later = Later(reader, STEADIEST.partition(",")[0], tiers, node)
    except ColdTraceError as error:
        log(f"note: the whole trace is replayed, from empty tiers on ({error})")
        return None
    if text == STEADIEST_LENGTHENED:
        later.lengthen(max(tiers))
    return later


class Loader:
    """Lays the rows of a trace into a ring in order, as far as there is space.

    Only one thread at a time may use it.
    """

    def __init__(
        self,
        source: TraceSource,
        planned: int,
        populated: tuple[np.ndarray, np.ndarray, np.ndarray],
    ) -> None:
        """Lay the `planned` rows of `source`.

        `populated`: tier, object and bytes of the objects that exist before the run.
        """
        self._source, self._planned, self._populated = source, planned, populated
        self._reading: Generator[pa.RecordBatch] | None = None
        self._batch: Batch | None = None
        self._plan: int | None = None
        self._free: Callable[[], object] = lambda: None
        self.rows = RowRing(0)
        """The ring."""

    def begin(
        self,
        pacer: Pacer | None = None,
        *,
        is_ignoring_streams: bool = False,
        is_verified: bool = False,
        window: int = WINDOW_ROWS,
    ) -> RowRing:
        """Start or restart the second pass; return an empty ring of `window` rows.

        `pacer` gives the due times of rows; without it they are due at once. With `is_verified`,
        reads have the version that they must find; see `plan_spans` in plan.h.
        """
        self.close()
        self._due_ns = None if pacer is None else pacer.due_ns
        self._names = tuple(
            n for n in self._source.names if n != "stream" or not is_ignoring_streams
        )
        self._intake, is_later = self._source.intake(), self._source.limit.begin_ns > 0
        self._plan = _new(is_verified, is_later)
        self._free = weakref.finalize(self, _free_plan, self._plan)
        if is_verified or is_later:
            arrays = zip(self._populated, (np.int8, np.int64, np.int64), strict=True)
            populated = [np.ascontiguousarray(values, kind) for values, kind in arrays]
            _populate(self._plan, len(populated[0]), *populated, self._intake.padding)
        self.rows = RowRing(self._planned, window)
        return self.rows

    @property
    def laid(self) -> int:
        """The number of rows laid so far."""
        return int(self.rows.struct.laid)

    @property
    def is_whole(self) -> bool:
        """True if all rows are laid."""
        return self.laid == self._planned

    @property
    def plan_address(self) -> int:
        """The address of the C struct `Plan`, valid until `close` or the next `begin`."""
        if self._plan is None:
            raise ValueError("the second pass has not begun")
        return self._plan

    @property
    def held_bytes(self) -> int:
        """The memory of the ring of rows and of the state of live objects, in bytes."""
        return int(self.rows.ring.nbytes) + (
            0 if self._plan is None else int(_held_bytes(self._plan))
        )

    def load(self, until: int | None = None) -> int:
        """Lay rows until `until` rows of the plan are laid, or the ring is full.

        Without `until`, lay as many as the ring takes. Return the number of rows laid so far.

        TraceError if the trace has changed since the first pass.
        """
        plan, intake, rows = self.plan_address, self._intake, self.rows
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
            self._batch.check(intake, self._source.reader)
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
        return TraceError(
            "it has fewer rows to replay than in the first pass", path=self._source.path
        )

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.close()
        self._reading = self._batch = None

    def close(self) -> None:
        """Stop reading, and free the state of objects; laid rows stay valid."""
        self._stop_reading()
        self._free()
        self._plan = None


@dataclass(frozen=True, slots=True)
class TraceWindow:
    """The part of the trace that is replayed, and the space that it needs on the tiers."""

    residency: Residency
    facts: Facts
    rows: int
    """Rows of the trace's prefix that the limit admits."""
    is_whole: bool
    """Whether that prefix is the whole trace."""
    span_ns: int
    """Time from the trace's start to its last row in the window."""
    skipped_rows: dict[int, int]
    """Number of rows in the window on each tier without a target."""
    loader: Loader
    """The loader of the window's rows."""
    reader: Reader
    """Reader of the trace, or of the part of it that begins later."""
    begin_ns: int | None
    """Begin of that part; None for the trace's start."""
    part: str | None
    """That part, in the syntax of `--window`."""

    @property
    def planned_rows(self) -> int:
        """The number of rows that are replayed."""
        return self.facts.rows

    def log_part(self) -> None:
        """Log a description of a later part of a trace, and of reads or writes that it lacks."""
        if self.begin_ns is None:
            return
        reads, writes = self.facts.kinds["rows"].sum(axis=0)[[READ, WRITE]].tolist()
        read_bytes, written_bytes = self.facts.kinds["bytes"].sum(axis=0)[[READ, WRITE]].tolist()
        total_bytes = read_bytes + written_bytes
        share = f", {read_bytes / total_bytes:.1%} of bytes read" if total_bytes else ""
        description = (
            f"window {self.part}, from {format_duration(self.begin_ns)} on: {reads:,} reads and"
            f" {writes:,} writes{share}"
        )
        absent = " and no ".join(
            name for name, count in (("reads", reads), ("writes", writes)) if not count
        )
        if absent:
            description += f"; it has no {absent}: the run has no figures for them"
        log(description)


def compile_window(
    reader: Reader,
    path: Path,
    alignments: Mapping[int, int],
    limit: Limit,
    shared: Shared | None = None,
    *,
    is_done: bool = False,
) -> TraceWindow:
    """Read the trace once, and return the window that `limit` admits, with the space it needs.

    `alignments` has the padding of each tier with a target, in bytes. If the limit names a part of
    the trace, the window is a prefix of that part. With `is_done` the trace records operations that
    were performed already, and no row is left out or refused.

    TraceError for a row that cannot be replayed, by number and column. ConfigError if there are
    more rows than a plan may have.
    """
    _return_freed()
    later = part_of(limit.window, reader, alignments, limit.node)
    is_part = later is not None or limit.begin_ns > 0
    limit = replace(limit, window=None if later is None else later.text)
    if later is not None:
        reader, limit = (
            later,
            replace(limit, begin_ns=later.begin_ns).within(Limit(span_ns=later.span_ns)),
        )
    source = TraceSource(reader, path, alignments, limit, is_done=is_done)
    survey, intake = PlanSurvey(len(source.padding), shared or {}), source.intake()
    try:
        source.for_each_batch(intake, lambda batch: survey.take(batch, intake))
        residency, facts = survey.residency(source), survey.facts()
    finally:
        survey.close()
    # Arrow would otherwise keep as much memory for later batches as a window of rows needs.
    pa.default_memory_pool().release_unused()
    selection = intake.struct
    if residency.lost_read is not None and not is_done:
        raise _lost(source, residency.lost_read, selection.rows)
    if facts.rows > MAX_WINDOW_ROWS:
        raise ConfigError(
            f"{path}: {facts.rows:,} rows to replay, of {MAX_WINDOW_ROWS:,} at most; replay less with"
            " --limit"
        )
    populated = residency.populate_tier, residency.populate_object, residency.populate_bytes
    loader = Loader(source, facts.rows, populated)
    is_whole = not (selection.is_full or limit.begin_ns)
    counted = selection.rows, is_whole, selection.last_ns, intake.skipped
    return TraceWindow(
        residency,
        facts,
        *counted,
        loader,
        reader,
        limit.begin_ns if is_part else None,
        limit.window,
    )


def _lost(source: TraceSource, lost: tuple[int, int, int], rows: int) -> TraceError:
    """Return the error that a row reads deleted bytes.

    `lost` has the trace row, the tier and the object; `rows` is the number of the trace's rows in
    the window.
    """
    row, index, object_id = lost
    advice = "run kvtrace validate on this trace"
    if source.limit.node is not None:
        advice = (
            "another node rewrote it, which --node leaves out; replay all nodes: kvreplay run --mpi"
            " --partition node"
        )
    elif instances := shared_instances(source.reader, [index], rows).get(index):
        advice = (
            f"{source.reader.meta.tiers[index].name} is separate on each node, and one target"
            f" cannot replace those of {instances}: give each node a rank, mpirun -n"
            f" {ranks_needed(source.reader.meta, index, instances)} kvreplay run --mpi --partition node"
        )
    message = (
        f"reads object {object_id} after it was deleted from its tier and not written again;"
        f" {advice}"
    )
    file_row = int(source.reader.file_rows(np.array([row]))[0])
    return TraceError(message, path=source.path, row=file_row)


def shared_instances(reader: Reader, tiers: Collection[int], rows: int) -> dict[int, int]:
    """Return, by tier, the number of instances of it that the first `rows` rows use, if several.

    Only those of `tiers` are considered that are separate on each node. One replay on one target
    stands for all instances, and so treats the nodes' copies of an object as one.
    """
    by_tier = {tier: reader.meta.tiers[tier].instance_nodes for tier in tiers}
    separate = {tier: nodes for tier, nodes in by_tier.items() if nodes is not UNSET}
    if not separate or "node" not in reader.extras:
        return {}
    instances: dict[int, set[int]] = {tier: set() for tier in separate}
    for batch in reader.batches(("tier", "node")):
        tier_of, node_of = (batch.column(name).to_numpy()[:rows] for name in ("tier", "node"))
        for tier, nodes in separate.items():
            instances[tier] |= set((np.unique(node_of[tier_of == tier]) // nodes).tolist())
        rows -= len(tier_of)
        if rows <= 0:
            break
    return {tier: len(numbers_) for tier, numbers_ in instances.items() if len(numbers_) > 1}


def ranks_needed(meta: Metadata, tier: int, instances: int) -> int:
    """Return the number of ranks that would give each instance of a tier its own target.

    `instances` is the number of instances that the trace, or a rank's part of it, uses.
    """
    partition = (meta.source or {}).get("part")
    nodes = partition.get("nodes") if isinstance(partition, dict) else None
    instance_nodes = meta.tiers[tier].instance_nodes
    if nodes is None or instance_nodes is UNSET:
        return instances
    return len({node // instance_nodes for node in nodes})


def populated_rows(residency: Residency, is_selected: np.ndarray | slice = slice(None)) -> RowRing:
    """Return rows that write the objects to populate, or those `is_selected`, as version 0."""
    objects = residency.populate_object[is_selected]
    return RowRing.of(
        {
            "op": np.full(len(objects), WRITE, np.int8),
            "tier": residency.populate_tier[is_selected],
            "object_id": objects,
            "length_bytes": residency.populate_bytes[is_selected],
        }
    )


_COLUMNS = ("request_id", "arrival_ns", "input_tokens", "qos")
NO_QOS = -1


@dataclass(frozen=True, slots=True)
class RequestTable:
    """Requests in order of request_id, as numpy columns of one length."""

    request_id: np.ndarray
    arrival_ns: np.ndarray
    """Time from the start of the trace."""
    input_tokens: np.ndarray
    qos: np.ndarray
    """Codes of the class of service (int8); -1 if unknown."""

    def indices_of(self, request_id: np.ndarray) -> np.ndarray:
        """Return the index of each of `request_id` (sorted); -1 if absent."""
        if not len(self.request_id):
            return np.full(len(request_id), -1)
        index = np.minimum(np.searchsorted(self.request_id, request_id), len(self.request_id) - 1)
        return np.where(self.request_id[index] == request_id, index, -1)


def read_request_table(path: Path, trace: Metadata) -> RequestTable:
    """Return the requests at `path`.

    ConfigError unless they are those of the trace with the metadata `trace`.
    """
    reader = open_table(path, REQUESTS)
    if reader.meta.config_sha256 != trace.config_sha256:
        raise ConfigError(
            f"--requests {path}: from another simulation than the trace; make both with one kvtrace"
            " gen --requests-out"
        )
    chunks: list[list[np.ndarray]] = [[np.zeros(0, np.int64)] for _ in _COLUMNS]
    for batch in reader.batches(_COLUMNS):
        for column_chunks, name in zip(chunks, _COLUMNS, strict=True):
            values = batch.column(name)
            column_chunks.append(
                (values.indices.fill_null(NO_QOS) if name == "qos" else values).to_numpy(
                    zero_copy_only=False
                )
            )
    request_id, arrival_ns, input_tokens, qos = (
        np.concatenate(column_chunks) for column_chunks in chunks
    )
    order = np.argsort(request_id, kind="stable")
    return RequestTable(
        request_id[order], arrival_ns[order], input_tokens[order], qos[order].astype(np.int8)
    )
