"""The part of a trace that is replayed: read once to know what it needs, then again to replay it.

The first pass follows the objects of each tier: a replay of a window reads what was written before it, which must be
written first, and tiers must have space for all live objects. Neither pass keeps more than what the tiers hold.
`Asked` is the table of requests that `kvtrace gen --requests-out` writes beside a trace.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import UNSET

from kvreplay.native.rows import DELETE, READ, REPLAY, WRITE, RowRing
from kvreplay.plan.loader import MOST_ROWS, Batch, Intake, Loader, TraceSource
from kvtrace.core.app import log
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.limit import ALL, STEADIEST, Limit, busiest_begin_ns
from kvtrace.core.metadata import Metadata
from kvtrace.core.native.library import StructAt, function
from kvtrace.core.native.structs import address
from kvtrace.core.schema import REQUESTS, TRACE, Op, Table, enum_code
from kvtrace.core.tables import Reader, open_table
from kvtrace.core.units import format_duration, parse_duration_ns

if TYPE_CHECKING:
    import pyarrow as pa

_EVICT = enum_code(TRACE, "phase", "evict")
KIND, SPAN, HELD = map(REPLAY.dtype, ("Kind", "Span", "Held"))
"""Of plan.h; of KIND, the byte behind the last that is touched is `end_bytes`."""
_OPS = len(Op)
_FIRST, _AGAIN, _GROWN = range(3)
_take = function("survey_take", int, StructAt, StructAt, int)
_begin_again = function("survey_begin_again", int, StructAt, bool)
_free = function("survey_free", int)
_return_freed = function("return_freed")
Shared = Mapping[int, tuple[Any, int]]
"""By tier on several drives: which of them an object id lies on (ints), and how many there are."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Counts over the rows of a plan."""

    rows: int
    kinds: Any
    """KIND by tier and operation."""
    last_row: int
    """Of the trace; -1 if there is none, as the next."""
    last_ns: int
    placed: tuple[int, ...]
    """Tiers with writes that belong to a stream."""
    is_bulk: bool
    """Whether some rows save or restore checkpoints."""
    is_staged: bool
    """Whether a row must wait for another one because of their stages."""
    objects: int
    """One more than the highest object id."""


@dataclass(frozen=True, slots=True)
class Residency:
    """The liveness of objects through the replayed rows, a tier and an object at a time."""

    populate_tier: Any
    """int8 an object to write first: its tier."""
    populate_object: Any
    """int64 an object to write first."""
    populate_bytes: Any
    """int64: how long it must be."""
    absent_deletes: int
    """How many rows delete an object that is not in the tier."""
    lost_read: tuple[int, int, int] | None
    """Trace row, tier and object of the first read of bytes that nothing wrote since a delete; null if there is none"""
    peak_bytes: list[int]
    """The most live bytes of each tier, padded, the populated ones included."""
    drive_peak_bytes: list[list[int]]
    """For each drive of each tier, with every object as long as it will get: what must be free there."""
    grown: list[dict[int, int]]
    """By tier, for objects that are written on beyond their end: how long they get at most."""
    last_deletes: Any
    """int64: the last row of an object that must be written first, where that deletes it; in their order."""


class PlanSurvey:
    """The first pass: counts rows, and follows the objects of all tiers."""

    def __init__(self, tiers: int, shared: Shared) -> None:
        drives = [shared[tier][1] if tier in shared else 1 for tier in range(tiers)]
        self._starts = list(accumulate(drives, initial=tiers))
        self._tables = {tier: np.ascontiguousarray(drive_of, np.int16) for tier, (drive_of, _) in shared.items()}
        self._base, self._now, self._most = np.zeros((3, self._starts[-1]), np.int64)
        self._kinds, self._placed = np.zeros((tiers, _OPS), KIND), np.zeros(tiers, bool)
        self._known = [
            np.array(self._starts[:-1], np.int64),
            np.array([len(self._tables.get(tier, ())) for tier in range(tiers)], np.int64),
            np.array([address(self._tables.get(tier)) for tier in range(tiers)], np.int64),
        ]
        arrays = (self._base, self._now, self._most, *self._known, self._kinds, self._placed)
        self.struct = REPLAY.struct("Survey")(tiers, self._starts[-1], *map(address, arrays))
        self.struct.last_row = self.struct.last_ns = self.struct.lost_row = -1

    def take(self, batch: Batch, intake: Intake, which: int = _FIRST) -> None:
        """Take the next rows, in the pass `which`."""
        _take(ctypes.addressof(self.struct), intake.struct, batch.struct, which)

    def facts(self) -> Facts:
        """Return what was counted."""
        of = self.struct
        placed = tuple(np.flatnonzero(self._placed).tolist())
        flags = bool(of.is_bulk), bool(of.is_staged)
        return Facts(of.planned, self._kinds, of.last_row, of.last_ns, placed, *flags, of.objects)

    def residency(self, source: TraceSource) -> Residency:
        """Return the residency of objects; rows are read again from `source` if another pass is needed."""
        of = self.struct
        lost = None if of.lost_row < 0 else (of.lost_row, of.lost_tier, of.lost_object)
        if of.is_late:
            self._again(source, _AGAIN)
        peaks = (self._base + self._most)[: of.tiers].tolist()
        if of.has_grown:
            self._again(source, _GROWN)
        drive_peaks = (self._base + self._most).tolist()
        found = self._found()
        tier, object_id, is_needed = found["key"] >> 32, found["key"] & 0xFFFFFFFF, found["needed_bytes"] > 0
        grown: list[dict[int, int]] = [{} for _ in range(of.tiers)]
        for at in np.flatnonzero(found["longest_bytes"]).tolist():
            grown[int(tier[at])][int(object_id[at])] = int(found["longest_bytes"][at])
        return Residency(
            tier[is_needed].astype(np.int8),
            object_id[is_needed],
            found["needed_bytes"][is_needed],
            of.absent,
            lost,
            peaks,
            [drive_peaks[a:b] for a, b in pairwise(self._starts)],
            grown,
            np.sort(found["last_row"][is_needed & (found["is_gone"] > 0)]),
        )

    def _again(self, source: TraceSource, which: int) -> None:
        intake = source.intake()
        _begin_again(ctypes.addressof(self.struct), intake.struct, which == _GROWN)
        source.each(intake, lambda batch: self.take(batch, intake, which))

    def _found(self) -> Any:
        """Return HELD, by tier and object, of objects that are needed first, or grow."""
        if not self.struct.held.used:
            return np.zeros(0, HELD)
        items = ctypes.c_char * (self.struct.held.used * HELD.itemsize)
        every = np.frombuffer(items.from_address(self.struct.held.item), HELD)
        found = every[(every["key"] >= 0) & ((every["needed_bytes"] > 0) | (every["longest_bytes"] > 0))]
        return found[np.argsort(found["key"])]

    def close(self) -> None:
        """Free the memory."""
        _free(ctypes.addressof(self.struct))
        self.struct = REPLAY.struct("Survey")()


class ColdTraceError(ConfigError):
    """A trace that never fills its slowest tier has no steady window."""


class Later:
    """Reads the rows of a trace from a later time on, as a trace of its own that begins then.

    What its rows read or delete before they write it lay there when it began: it is written before the run. An object
    that they never touch is not.
    """

    def __init__(self, reader: Reader, text: str, tiers: Collection[int]) -> None:
        """Read from the begin of the part that `text` names, of the rows on `tiers`; its length is `span_ns`.

        It is `from:300s+60s`, `busiest:60s` or `steady:60s`: from when the slowest of the tiers evicts on.

        Raises:
            ConfigError: it is none of these, or there is no such part in the trace.

        """
        self.path: Path = reader.path
        self.text = text
        self.table: Table = reader.table
        self.extras = reader.extras
        self.meta: Metadata = reader.meta
        self._reader = reader
        kind, _, rest = text.partition(":")
        begin, _, lasts = rest.rpartition("+")
        if kind not in ("from", "busiest", "steady") or not lasts or bool(begin) != (kind == "from"):
            raise ConfigError(f"--window {text}: write from:300s+60s, busiest:60s, steady:60s or all")
        self.span_ns = parse_duration_ns(lasts)
        if self.span_ns <= 0:
            raise ConfigError(f"--window {text}: it must last more than 0 s")
        if kind == "from":
            self.begin_ns = parse_duration_ns(begin)
        else:
            self.begin_ns = self._busiest_ns(tiers) if kind == "busiest" else self._steady_ns(max(tiers), text)

    def _busiest_ns(self, tiers: Collection[int]) -> int:
        def moves() -> Iterator[tuple[Any, Any]]:
            for rows in self._rows("ts_ns", "op", "tier", "length_bytes"):
                moves = (rows["op"] != DELETE) & np.isin(rows["tier"], list(tiers))
                yield rows["ts_ns"], np.where(moves, rows["length_bytes"], 0)

        return busiest_begin_ns(moves(), self.span_ns)

    def _steady_ns(self, tier: int, text: str) -> int:
        for rows in self._rows("ts_ns", "op", "tier", "phase"):
            evicts = (rows["op"] == DELETE) & (rows["phase"] == _EVICT) & (rows["tier"] == tier)
            if evicts.any():
                return int(rows["ts_ns"][evicts.argmax()])
        raise ColdTraceError(
            f"--window {text}: nothing is evicted from {self.meta.tiers[tier].name} in this trace, so that it has no "
            "steady state; take a longer trace or a smaller tier, or --window busiest:60s"
        )

    def _rows(self, *columns: str) -> Iterator[dict[str, Any]]:
        return (Batch.of(batch, columns).columns for batch in self._reader.batches(columns))

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield its rows, their times counted from its begin."""
        import pyarrow.compute as pc

        names = None if columns is None else tuple(dict.fromkeys([*columns, "ts_ns"]))
        for batch in self._reader.batches(names):
            at = batch.schema.get_field_index("ts_ns")
            ts_ns = batch.column(at)
            part = batch.set_column(at, "ts_ns", pc.subtract(ts_ns, self.begin_ns))
            part = part.slice(int(np.searchsorted(ts_ns.to_numpy(), self.begin_ns)))
            if part.num_rows:
                yield part if columns is None else part.select(list(columns))


def part_of(text: str | None, reader: Reader, tiers: Collection[int]) -> Later | None:
    """Return the part of a trace that `text`, of --window, asks for; None for all of it.

    STEADIEST asks for the steady window of a trace that has one. ConfigError as of `Later`.
    """
    if text in (None, ALL):
        return None
    if text != STEADIEST:
        return Later(reader, text, tiers)
    try:
        return Later(reader, STEADIEST.partition(",")[0], tiers)
    except ColdTraceError as why:
        log(f"note: the whole trace is replayed, from empty tiers on ({why})")
        return None


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
    """From the trace's start to its last row in the window."""
    skipped_rows: dict[int, int]
    """By tier without a target: its rows in the window."""
    loader: Loader
    """Lays the rows for the engine."""
    reader: Reader
    """Of the trace, or of the part of it that begins later."""
    begin_ns: int | None
    """When that part begins; null for the trace's start."""
    part: str | None
    """That part, as `--window` names it."""

    @property
    def planned_rows(self) -> int:
        """How many rows are replayed."""
        return self.facts.rows

    @property
    def absent_deletes(self) -> int:
        """How many rows are left out because they delete what is not in the tier."""
        return self.residency.absent_deletes

    def say(self) -> None:
        """Log what a later part of a trace holds: without reads, or writes, a run tells nothing of them."""
        if self.begin_ns is None:
            return
        reads, writes = self.facts.kinds["rows"].sum(axis=0)[[READ, WRITE]].tolist()
        read_bytes, written_bytes = self.facts.kinds["bytes"].sum(axis=0)[[READ, WRITE]].tolist()
        share = read_bytes / max(1, read_bytes + written_bytes)
        ops = f"{reads:,} reads and {writes:,} writes, {share:.1%} of bytes read"
        found = f"window from {format_duration(self.begin_ns)} on: {ops}"
        absent = [name for name, count in (("reads", reads), ("writes", writes)) if not count]
        log(f"{found}; it holds no {absent[0]}: the run says nothing of them" if len(absent) == 1 else found)


def compile_window(
    reader: Reader,
    path: Path,
    alignments: Mapping[int, int],
    limit: Limit,
    shared: Shared | None = None,
    *,
    is_done: bool = False,
) -> TraceWindow:
    """Return what the prefix of the trace that `limit` admits needs, for tiers with `alignments` (padding, bytes).

    If the limit names a part of the trace, it is a prefix of that.
    If the trace tells what was done already (`is_done`), it need not make sense: no row of it is left out or refused.

    Raises:
        TraceError: a row that cannot be replayed, by number and column.
        ConfigError: there are more rows than a plan may have.

    """
    import pyarrow as pa

    _return_freed()
    part = part_of(limit.part, reader, alignments)
    is_part = part is not None or limit.begin_ns > 0
    limit = replace(limit, part=None if part is None else part.text)
    if part is not None:
        reader, limit = part, replace(limit, begin_ns=part.begin_ns).within(Limit(span_ns=part.span_ns))
    source = TraceSource(reader, path, alignments, limit, is_done=is_done)
    survey, intake = PlanSurvey(len(source.padding), shared or {}), source.intake()
    try:
        source.each(intake, lambda batch: survey.take(batch, intake))
        residency, facts = survey.residency(source), survey.facts()
    finally:
        survey.close()
    # What Arrow keeps of batches for others to come is as much as a window of rows.
    pa.default_memory_pool().release_unused()
    taken = intake.struct
    if residency.lost_read is not None and not is_done:
        raise _lost(source, residency.lost_read, taken.rows)
    if facts.rows > MOST_ROWS:
        raise ConfigError(f"{path}: {facts.rows:,} rows to replay, of {MOST_ROWS:,} at most; replay less with --limit")
    populated = residency.populate_tier, residency.populate_object, residency.populate_bytes
    loader = Loader(source, facts.rows, populated)
    is_whole = not (taken.is_full or limit.begin_ns)
    counted = taken.rows, is_whole, taken.last_ns, intake.skipped
    return TraceWindow(residency, facts, *counted, loader, reader, limit.begin_ns if is_part else None, limit.part)


def _lost(source: TraceSource, lost: tuple[int, int, int], rows: int) -> TraceError:
    """Return that a row (trace row, tier, object) reads what was deleted, in a window of so many rows of the trace."""
    row, index, object_id = lost
    why = "run kvtrace validate on this trace"
    if source.limit.node is not None:
        why = "another node wrote it again, which --node leaves out; kvreplay run --mpi --deal node goes on"
    elif several := joined(source.reader, [index], rows).get(index):
        why = (
            f"{source.reader.meta.tiers[index].name} is each node's own, and one place cannot stand for those of "
            f"{several}: give each node a rank, mpirun -n {several} kvreplay run --mpi --deal node"
        )
    message = f"reads object {object_id} after it was deleted from its tier, bytes that nothing wrote since; {why}"
    return TraceError(message, path=source.path, row=row)


def joined(reader: Reader, tiers: Collection[int], rows: int) -> dict[int, int]:
    """Return, of `tiers` that nodes have apart, on how many instances the first `rows` rows lie, where several do.

    One replay stands for several nodes there: their copies of an object are one.
    """
    each = {t: reader.meta.tiers[t].instance_nodes for t in tiers}
    apart = {t: nodes for t, nodes in each.items() if nodes is not UNSET}
    if not apart or "node" not in reader.extras:
        return {}
    found: dict[int, set[int]] = {t: set() for t in apart}
    for batch in reader.batches(("tier", "node")):
        tier, node = (batch.column(name).to_numpy()[:rows] for name in ("tier", "node"))
        for t, nodes in apart.items():
            found[t] |= set((np.unique(node[tier == t]) // nodes).tolist())
        rows -= len(tier)
        if rows <= 0:
            break
    return {t: len(instances) for t, instances in found.items() if len(instances) > 1}


def populated_rows(residency: Residency, wanted: Any = slice(None)) -> RowRing:
    """Return rows that write what the window reads but never wrote, or those `wanted` (bool) of it, as version 0."""
    objects = residency.populate_object[wanted]
    return RowRing.of(
        {
            "op": np.full(len(objects), WRITE, np.int8),
            "tier": residency.populate_tier[wanted],
            "object_id": objects,
            "length_bytes": residency.populate_bytes[wanted],
        }
    )


_COLUMNS = ("request_id", "arrival_ns", "input_tokens", "qos")
NO_QOS = -1


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests in order of request_id, numpy columns of one length."""

    request_id: Any
    arrival_ns: Any
    """From the start of the trace."""
    input_tokens: Any
    qos: Any
    """int8: codes of the service class; -1 if unknown."""

    def places(self, request_id: Any) -> Any:
        """Return the index of each of `request_id` (sorted); -1 if absent."""
        if not len(self.request_id):
            return np.full(len(request_id), -1)
        at = np.minimum(np.searchsorted(self.request_id, request_id), len(self.request_id) - 1)
        return np.where(self.request_id[at] == request_id, at, -1)


def read_asked(path: Path, trace: Metadata) -> Asked:
    """Return the requests at `path`; ConfigError unless they are those of the trace with the metadata `trace`."""
    reader = open_table(path, REQUESTS)
    if reader.meta.config_sha256 != trace.config_sha256:
        raise ConfigError(
            f"--requests {path}: of another simulation than the trace; make both in one kvtrace gen --requests-out"
        )
    parts: list[list[Any]] = [[np.zeros(0, np.int64)] for _ in _COLUMNS]
    for batch in reader.batches(_COLUMNS):
        for part, name in zip(parts, _COLUMNS, strict=True):
            values = batch.column(name)
            part.append((values.indices.fill_null(NO_QOS) if name == "qos" else values).to_numpy(zero_copy_only=False))
    request_id, arrival_ns, input_tokens, qos = (np.concatenate(part) for part in parts)
    order = np.argsort(request_id, kind="stable")
    return Asked(request_id[order], arrival_ns[order], input_tokens[order], qos[order].astype(np.int8))
