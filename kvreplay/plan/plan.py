"""A trace compiled to arrays before the run, so that submitting an operation only looks things up.

A planned row takes about 60 bytes, 80 in an open loop, and 95 for a moment while the trace is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvreplay.plan.ahead import ahead
from kvreplay.plan.chains import ALONE, chain, dense, first_fall
from kvreplay.plan.copies import joined
from kvreplay.plan.intake import Intake, keep
from kvreplay.plan.repeat import Repeated
from kvreplay.plan.residency import Residency, trace_residency
from kvreplay.plan.versions import among, versions
from kvtrace.core.compiled import compile_announced
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.limit import Limit
from kvtrace.core.schema import Phase
from kvtrace.core.tables import Reader

READ, WRITE, DELETE = 0, 1, 2
"""The codes of `op`, in the order of the contract's closed set."""
_ROWS_AT_FIRST = 1 << 20
"""Room that is made if a limit may end the trace at any row."""
ROW_COLUMNS = (
    "row", "ts_ns", "op", "tier", "object_id", "offset", "length", "version", "stage_links", "object_links",
)  # fmt: skip
"""What a plan holds of each row."""
_IS_BULK = among(Phase.SAVE, Phase.RESTORE)
_LABELS = np.array([0, ALONE, ALONE], np.int8)
"""Of an object's rows, by operation."""


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
    stage_links: Any
    """int32: where the row before it in its request's chain of stages stands, as `chains` says."""
    object_links: Any
    """int32: the same in its object's, whatever the tiers: reads may run together, any other pair keeps its order."""
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
        return sum(int(getattr(self, name).nbytes) for name in ROW_COLUMNS)

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
    taken = Intake(reader, path, alignments, limit, rows_at_first)
    with compile_announced(), closing(ahead(reader.batches(taken.names))) as batches:
        for batch in batches:
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
        index = int(rows["tier"][residency.lost_read])
        why = "run kvtrace validate on this trace"
        if several := joined(reader, [index], taken.rows).get(index):
            why = (
                f"{reader.meta.tiers[index].name} is each node's own, and one place cannot stand for those of "
                f"{several}: give each node a rank, mpirun -n {several} kvreplay run --mpi --deal node"
            )
        raise TraceError(
            f"reads object {rows['object_id'][residency.lost_read]} after it was deleted from its tier, bytes that "
            f"nothing wrote since; {why}",
            path=path,
            row=at,
        )
    absent = int(residency.absent_delete.sum())
    if absent:
        rows = keep(rows, ~residency.absent_delete)
    plan = build_plan(rows, padding, path)
    return TraceWindow(plan, residency, taken.rows, not taken.is_full, taken.last_ns, taken.skipped, absent)


def _check_named(rows: dict[str, Any], shared: Mapping[int, tuple[Any, int]], path: Path) -> None:
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


def build_plan(rows: dict[str, Any], alignments: list[int], path: Path) -> Plan:
    """Return the plan of `rows` (numpy columns, nulls as -1), with what each must wait for.

    `version` among them is taken as it is; without `phase`, no write is a copy.
    """
    op, object_id = rows["op"].astype(np.int8, copy=False), rows["object_id"].astype(np.int32, copy=False)
    tier, stage, request = rows["tier"].astype(np.int8, copy=False), rows.pop("stage"), rows.pop("request_id")
    with compile_announced():
        requests = dense(np.where(stage < 0, -1, request))
        stages = chain(requests.numbers, stage, count=requests.count)
        _check_stages(stages, stage, request, rows["row"], path)
        del stage, request, requests
        objects = dense(object_id)
        hazards = chain(objects.numbers, _LABELS[op], count=objects.count)
        version = rows["version"] if "version" in rows else versions(op, tier, objects, rows.get("phase"))
    bulk = _IS_BULK[rows.pop("phase", np.zeros(0, np.int8))]
    return Plan(
        row=rows["row"],
        ts_ns=rows["ts_ns"],
        op=op,
        tier=tier,
        object_id=object_id,
        offset=rows["offset_bytes"],
        length=rows["length_bytes"],
        version=version.astype(np.int32, copy=False),
        stage_links=stages,
        object_links=hazards,
        alignments=np.array(alignments, np.int64),
        stream=rows.get("stream"),
        bulk=bulk if bulk.any() else None,
    )


def _check_stages(links: Any, stage: Any, request: Any, row: Any, path: Path) -> None:
    at = first_fall(links, stage)
    if at is not None:
        raise TraceError(
            f"{stage[at]}: request {request[at]} was in a later stage before; run kvtrace validate on this trace",
            path=path,
            row=int(row[at]),
            column="stage",
        )


def populate_plan(residency: Residency, alignments: dict[int, int], path: Path, wanted: Any = slice(None)) -> Plan:
    """Return a plan that writes what the replayed window reads but never wrote, or those `wanted` (bool) of it.

    Its version is 0 in every tier, which only a copy of it has in the window.
    """
    objects = residency.populate_object[wanted]
    count = len(objects)
    zeros, none = np.zeros(count, np.int64), np.full(count, -1, np.int64)
    tier = residency.populate_tier[wanted].astype(np.int64)
    rows = {
        "row": np.arange(count, dtype=np.int64),
        "ts_ns": zeros,
        "op": np.full(count, WRITE, np.int64),
        "tier": tier,
        "object_id": objects,
        "offset_bytes": zeros,
        "length_bytes": residency.populate_bytes[wanted],
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
