"""A trace compiled to arrays before the run, so that submitting an operation only looks things up.

A planned row takes about 60 bytes, 80 in an open loop, and 95 for a moment while the trace is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvreplay.plan.barriers import ALONE, Barriers, dense
from kvreplay.plan.repeat import Repeated
from kvreplay.plan.residency import Residency, trace_residency
from kvreplay.plan.versions import versions
from kvtrace.core.compiled import compile_announced
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.limit import Limit
from kvtrace.core.schema import TRACE, Phase, enum_code
from kvtrace.core.tables import Reader

READ, WRITE, DELETE = 0, 1, 2
"""The codes of `op`, in the order of the contract's closed set."""
COLUMNS = ("ts_ns", "op", "tier", "phase", "object_id", "offset_bytes", "length_bytes", "request_id", "stage")
MAX_OBJECT_ID = 2**31 - 2
_ROWS_AT_FIRST = 1 << 20
"""Room that is made if a limit may end the trace at any row."""
_BULK_PHASES = [enum_code(TRACE, "phase", p) for p in (Phase.SAVE, Phase.RESTORE)]
_KEPT = {"op": "int8", "tier": "int8", "phase": "int8", "object_id": "int32", "stage": "int32", "stream": "int32"}
"""What is kept narrower than 64 bits while a trace is compiled; its values have been checked to fit."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows to replay, in trace order: those of the window whose tier has a target."""

    row: Any
    """int64: the trace row."""
    ts_ns: Any
    """int64: when it is due in trace time."""
    op: Any
    """int8: READ, WRITE or DELETE."""
    tier: Any
    """int8: index into the trace's tiers."""
    object_id: Any
    """int32."""
    offset: Any
    """int64: the first byte of the object that is touched."""
    length: Any
    """int64: bytes of the object."""
    version: Any
    """int32: which content a write gives the object: a new one, unless it copies from another replayed tier."""
    unmet: Any
    """uint8: how many barriers it waits for."""
    barriers: tuple[Barriers, ...]
    alignments: Any
    """int64 a tier: to what its offsets and ends are padded."""
    stream: Any = None
    """int32: the stream that a write belongs to, -1 for none; None where the trace places nothing."""
    bulk: Any = None
    """bool a row: whether it saves or restores a checkpoint, which has a depth of its own; None if no row does."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def nbytes(self) -> int:
        """The bytes that the arrays take."""
        names = ["row", "ts_ns", "op", "tier", "object_id", "offset", "length", "version", "unmet"]
        parts = [a for b in self.barriers for a in (b.group, b.members, b.starts, b.continues)]
        return sum(int(a.nbytes) for a in (*(getattr(self, name) for name in names), *parts))

    def start(self, rows: Any) -> Any:
        """Return int64 for each of `rows`: the first byte asked of the tier, aligned downwards."""
        align = self.alignments[self.tier[rows]]
        return self.offset[rows] // align * align


@dataclass(frozen=True, slots=True)
class TraceWindow:
    """The part of the trace that is replayed, and the space that it needs on the tiers."""

    plan: Plan
    residency: Residency
    rows: int
    """Rows of the trace's prefix that the limit admits."""
    is_whole: bool
    """Whether that prefix is the whole trace."""
    span_ns: int
    """From the trace's start to its last row in the window."""
    skipped_rows: dict[int, int]
    """By tier without a target: its rows in the window."""
    absent_deletes: int


def compile_window(
    reader: Reader,
    path: Path,
    alignments: dict[int, int],
    limit: Limit,
    shared: Mapping[int, tuple[Any, int]] | None = None,
    check_rows: Callable[[int], None] | None = None,
) -> TraceWindow:
    """Compile the prefix of the trace that `limit` admits, for tiers with `alignments` (padding, bytes).

    `shared` says, by tier on several drives, which of them an object id lies on and how many there are; `check_rows`
    takes how many rows were taken so far, and raises if there are too many.

    Raises:
        TraceError: a row that cannot be replayed, by number and column.

    """
    rows_at_first = reader.meta.rows or 0
    if limit != Limit():
        rows_at_first = min(rows_at_first, _ROWS_AT_FIRST if limit.rows is None else limit.rows)
    taken = _Intake(reader, path, alignments, limit, rows_at_first)
    for batch in reader.batches(taken.names):
        taken.take(batch)
        if check_rows is not None:
            check_rows(taken.taken)
        if taken.is_full:
            break
    rows = taken.columns()
    _check_named(rows, shared or {}, path)
    padding = [alignments.get(i, 1) for i in range(len(reader.meta.tiers))]
    if isinstance(reader, Repeated):
        rows = reader.lasting(rows, padding)
    offset, end = rows["offset_bytes"], rows["offset_bytes"] + rows["length_bytes"]
    residency = trace_residency(rows["tier"], rows["op"], rows["object_id"], end, padding, shared, offset)
    del offset, end
    if residency.lost_read is not None:
        at = int(rows["row"][residency.lost_read])
        raise TraceError(
            f"reads object {rows['object_id'][residency.lost_read]} after it was deleted from its tier, bytes that "
            "nothing wrote since; run kvtrace validate on this trace",
            path=path,
            row=at,
        )
    absent = int(residency.absent_delete.sum())
    if absent:
        kept = ~residency.absent_delete
        rows = {name: rows.pop(name)[kept] for name in list(rows)}
    plan = build_plan(rows, padding, path)
    return TraceWindow(plan, residency, taken.rows, not taken.is_full, taken.last_ns, taken.skipped, absent)


def _check_named(rows: dict[str, Any], shared: Mapping[int, tuple[Any, int]], path: Path) -> None:
    import numpy as np

    for tier, (drive_of, _) in shared.items():
        unnamed = (rows["tier"] == tier) & (rows["object_id"] >= len(drive_of))
        if unnamed.any():
            at = int(np.argmax(unnamed))
            raise TraceError(
                f"object {rows['object_id'][at]} is not in the objects table, whose keys say on which drive it lies",
                path=path,
                row=int(rows["row"][at]),
                column="object_id",
            )


class _Intake:
    """Takes batches of a trace, checks them, and keeps the rows that are to be replayed."""

    def __init__(self, reader: Reader, path: Path, alignments: dict[int, int], limit: Limit, rows: int) -> None:
        import numpy as np

        tiers, self.names = len(reader.meta.tiers), COLUMNS + ("stream",) * ("stream" in reader.extras)
        # As long as they are thought to get: memory that is not touched is not taken.
        self._columns = {name: np.empty(rows, _KEPT.get(name, np.int64)) for name in ("row", *self.names)}
        self.taken = 0
        self.rows, self.last_ns, self.moved_bytes, self.is_full = 0, 0, 0, False
        self.skipped: dict[int, int] = {}
        self._path, self._tiers, self._limit = path, tiers, limit
        self._has_target = np.array([i in alignments for i in range(tiers)], dtype=bool)

    def columns(self) -> dict[str, Any]:
        """Return the rows that were taken, as numpy columns with nulls as -1; once."""
        return {name: self._columns.pop(name)[: self.taken] for name in list(self._columns)}

    def take(self, batch: Any) -> None:
        """Take the rows of `batch` that are to be replayed."""
        import numpy as np

        values = {name: _numbers(batch.column(name)) for name in self.names}
        self._check(values)
        wanted = self._has_target[values["tier"]]
        count = self._admitted(values, wanted)
        values["row"] = np.arange(self.rows, self.rows + len(wanted), dtype=np.int64)
        if count:
            self.last_ns = int(values["ts_ns"][count - 1])
        for tier, rows in enumerate(np.bincount(values["tier"][:count][~wanted[:count]], minlength=self._tiers)):
            if rows:
                self.skipped[tier] = self.skipped.get(tier, 0) + int(rows)
        self.rows += count
        self.is_full = self.is_full or count < len(wanted)
        kept = np.flatnonzero(wanted[:count])
        start, self.taken = self.taken, self.taken + len(kept)
        for name, values_ in values.items():
            if self.taken > len(self._columns[name]):
                more = np.empty(max(len(kept), len(self._columns[name])), self._columns[name].dtype)
                self._columns[name] = np.concatenate([self._columns[name], more])
            self._columns[name][start : self.taken] = values_[kept]

    def _admitted(self, values: dict[str, Any], wanted: Any) -> int:
        import numpy as np

        count, limit = len(wanted), self._limit
        if limit.rows is not None:
            count = min(count, limit.rows - self.rows)
        elif limit.span_ns is not None:
            count = int(np.searchsorted(values["ts_ns"], limit.span_ns))
        elif limit.moved_bytes is not None:
            moved = np.where(wanted & (values["op"] != DELETE), values["length_bytes"], 0)
            total = self.moved_bytes + np.cumsum(moved)
            count = int(np.searchsorted(total, limit.moved_bytes, side="right"))
            self.moved_bytes = int(total[-1]) if len(total) else self.moved_bytes
        return count

    def _check(self, values: dict[str, Any]) -> None:
        import numpy as np

        def fault(bad: Any, column: str, message: str) -> None:
            if bad.any():
                at = int(np.argmax(bad))
                raise TraceError(f"{values[column][at]}: {message}", path=self._path, row=self.rows + at, column=column)

        fault(values["object_id"] > MAX_OBJECT_ID, "object_id", f"an object id is at most {MAX_OBJECT_ID}")
        late = np.append(self.last_ns, values["ts_ns"][:-1]) > values["ts_ns"]
        fault(late, "ts_ns", "earlier than the row before it; run kvtrace validate on this trace")


def _numbers(array: Any) -> Any:
    import numpy as np
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        array = array.indices
    return array.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64, copy=False)


def build_plan(rows: dict[str, Any], alignments: list[int], path: Path) -> Plan:
    """Return the plan of `rows` (numpy columns, nulls as -1), with what each must wait for.

    `version` among them is taken as it is; without `phase`, no write is a copy.
    """
    import numpy as np

    op, object_id = rows["op"].astype(np.int8), rows["object_id"]
    tier, stage, request = rows["tier"].astype(np.int8), rows.pop("stage"), rows.pop("request_id")
    with compile_announced():
        stages = Barriers.build(np.where(stage < 0, -1, request), stage)
        _check_stages(stages, stage, request, rows["row"], path)
        del stage, request
        # Reads of an object may run together; any other pair on it keeps its order, in whatever tiers they are.
        objects = dense(object_id)
        hazards = Barriers.build(objects.numbers, np.where(op == READ, np.int32(0), np.int32(ALONE)))
        version = rows["version"] if "version" in rows else versions(op, tier, objects, rows.get("phase"))
    bulk = np.isin(rows.pop("phase", np.zeros(0)), _BULK_PHASES)
    return Plan(
        row=rows["row"],
        ts_ns=rows["ts_ns"],
        op=op,
        tier=tier,
        object_id=object_id.astype(np.int32),
        offset=rows["offset_bytes"],
        length=rows["length_bytes"],
        version=version.astype(np.int32),
        unmet=stages.waits() + hazards.waits(),
        barriers=(stages, hazards),
        alignments=np.array(alignments, np.int64),
        stream=rows.get("stream"),
        bulk=bulk if bulk.any() else None,
    )


def _check_stages(stages: Barriers, stage: Any, request: Any, row: Any, path: Path) -> None:
    import numpy as np

    first = stages.members[stages.starts[:-1]]
    falls = np.append((stage[first[:-1]] > stage[first[1:]]) & (stages.continues[:-1] == 1), False)
    if falls.any():
        at = int(first[int(np.argmax(falls)) + 1])
        raise TraceError(
            f"{stage[at]}: request {request[at]} was in a later stage before; run kvtrace validate on this trace",
            path=path,
            row=int(row[at]),
            column="stage",
        )


def populate_plan(residency: Residency, alignments: dict[int, int], path: Path) -> Plan:
    """Return a plan that writes what the replayed window reads but never wrote.

    Its version is 0 in every tier, which only a copy of it has in the window.
    """
    import numpy as np

    count = len(residency.populate_object)
    zeros, none = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    tier = residency.populate_tier.astype(np.int64)
    rows = {
        "row": np.arange(count, dtype=np.int64),
        "ts_ns": zeros,
        "op": np.full(count, WRITE, np.int64),
        "tier": tier,
        "object_id": residency.populate_object,
        "offset_bytes": zeros,
        "length_bytes": residency.populate_bytes,
        "request_id": none,
        "stage": none,
        "version": zeros,
    }
    return build_plan(rows, [alignments.get(i, 1) for i in range(max(alignments) + 1)], path)


def tier_indices(names: list[str], targets: dict[str, str], path: Path) -> Iterator[tuple[int, str]]:
    """Yield (tier index, target) for each of `targets`; ConfigError for a name that the trace lacks."""
    if not targets:
        raise ConfigError(
            f"no --tier given; name a target for one of {', '.join(names)}, such as --tier {names[-1]}=DIR"
        )
    for name, target in targets.items():
        if name not in names:
            raise ConfigError(f"--tier {name}={target}: {path} has no tier {name!r}; it has {', '.join(names)}")
        yield names.index(name), target
