"""Partition a trace over ranks.

Operations that depend on each other stay on one rank; each part is a trace file.

Nodes and users are assigned to ranks round-robin, in the order in which they appear in the trace.
Objects are assigned by a hash of their ids. Background work on an object goes to the rank that
wrote it last. If several ranks use an object, each has its own copy, written before the run. A
delete of such an object is left out if its rank later reads a version that another rank wrote.
Partition notes count all of this. C assigns row by row (`native/partition.c`). `run/rank_targets.py`
gives each rank a folder or file of its own below the targets of `--tier`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec
import numpy as np

from kvreplay.plan.pacing import Repeated
from kvreplay.plan.replay_config import PartitionBy
from kvreplay.plan.row_ring import DELETE, REPLAY
from kvreplay.plan.trace_rows import WHOLE_ROW, trace_rows
from kvtrace.core import pa
from kvtrace.core.errors import ConfigError
from kvtrace.core.limit import Limit
from kvtrace.core.native.library import I1, I2, I4, I8, StructAt, function
from kvtrace.core.native.structs import Structure
from kvtrace.core.parameters import named
from kvtrace.core.run.run_file import PartitionNote
from kvtrace.core.schema import REQUESTS, TRACE, numbers
from kvtrace.core.tables import Reader, create, objects_path, open_table

_COLUMNS = (
    "ts_ns",
    "op",
    "tier",
    "object_id",
    "offset_bytes",
    "length_bytes",
    "request_id",
    "stage",
    "node",
)
_MAX_IDS = 1 << 31


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a trace that one rank replays."""

    path: Path
    note: PartitionNote
    planned: int
    """Rows of this rank on tiers that have a target."""
    warmup_rows: int | None
    """Number of its rows that belong to the warm-up, which is the whole trace's first rows.

    None if the warm-up is not given in rows.
    """
    is_whole: bool
    """Whether the ranks together replay the whole trace."""


@dataclass(frozen=True, slots=True)
class PartitionOptions:
    """Options of a partition."""

    by: PartitionBy | None
    ranks: int
    limit: Limit
    tiers: frozenset[int]
    """Indexes of the tiers with a target; their bytes count towards a limit of bytes."""
    requests: Path | None = None
    """Path of the requests table, which has the session (the user) of each request."""
    warmup_rows: int | None = None


def write_part(trace: Path, options: PartitionOptions, rank: int, path: Path) -> Part:
    """Write the part of `rank` to `path` as a trace of its own, with the objects table beside it.

    Each rank computes the whole partition by itself, and all come to the same one.

    ConfigError if the trace cannot be partitioned by that key. TraceError if it is damaged.
    """
    reader = open_table(trace, TRACE)
    key, because = _partition_key(reader, options.by)
    assignment = _Assignment(reader, key, options)
    masks = [np.zeros(0, bool)]
    planned = warmup_rows = 0
    for rows, ranks in assignment.batches():
        masks.append(ranks == rank)
        planned += int((masks[-1] & np.isin(rows["tier"], list(options.tiers))).sum())
        warmup_rows += int(masks[-1][: max(0, (options.warmup_rows or 0) - assignment.rows)].sum())
    mine = np.concatenate(masks)
    needless = _needless_deletes(reader, assignment.objects, mine)
    mine[needless] = False
    note = assignment.note(because, len(needless))
    _write(reader, path, mine, note, rank, assignment)
    # Objects keep their ids, so the whole objects table goes beside the part.
    whole_objects, part_objects = objects_path(trace), objects_path(path)
    part_objects.unlink(missing_ok=True)
    if whole_objects.is_file():
        try:
            os.link(whole_objects, part_objects)
        except OSError:
            shutil.copyfile(whole_objects, part_objects)
    part_warmup_rows = None if options.warmup_rows is None else warmup_rows
    return Part(path, note, planned, part_warmup_rows, not assignment.is_cut)


def _partition_key(reader: Reader, requested: PartitionBy | None) -> tuple[PartitionBy, str]:
    """Return the key to partition by, and the reason for it.

    ConfigError if the trace does not have the requested key.
    """
    nodes, has_requests = set(), False
    names = ("node", "request_id") if "node" in reader.extras else ("request_id",)
    for batch in reader.batches(names):
        if "node" in names:
            nodes |= set(np.unique(batch.column("node").to_numpy()).tolist())
        has_requests = has_requests or batch.column("request_id").null_count < batch.num_rows
        if has_requests and (len(nodes) > 1 or "node" not in names):
            break
    if requested is None and len(nodes) > 1:
        return PartitionBy.NODE, "the trace has several nodes"
    if requested is None and has_requests:
        return PartitionBy.USER, "the trace has requests, and one node"
    if requested is None:
        return PartitionBy.OBJECT, "the trace has neither nodes nor requests"
    if requested is PartitionBy.NODE and len(nodes) <= 1:
        raise ConfigError(
            f"{named('partition', 'node')}: {reader.path} has one node; partition it by user or object"
        )
    if requested is PartitionBy.USER and not has_requests:
        raise ConfigError(
            f"{named('partition', 'user')}: {reader.path} has no requests; partition it by object"
        )
    return requested, "--partition"


def _sessions(path: Path | None) -> dict[int, int] | None:
    """Return the session of each request that has one, from the requests table.

    Each request without a session is a user of its own.
    """
    if path is None:
        return None
    session_by_request: dict[int, int] = {}
    for batch in open_table(path, REQUESTS).batches(("request_id", "session_id")):
        pairs = zip(
            batch.column("request_id").to_pylist(),
            batch.column("session_id").to_pylist(),
            strict=True,
        )
        session_by_request |= {
            request: session for request, session in pairs if session is not None
        }
    return session_by_request


class _Assignment:
    """The assignment of rows to ranks, in one pass over the rows that the limit admits."""

    def __init__(self, reader: Reader, key: PartitionBy, options: PartitionOptions) -> None:
        self._reader, self._key, self._options = reader, key, options
        self._sessions = _sessions(options.requests) if key is PartitionBy.USER else None
        self._rank_of: dict[tuple[int, int], int] = {}
        """Rank by partition key.

        The key of a node is (0, its number), of a session (1, its id), of any other user (0, its
        request's id).
        """
        self.objects = np.zeros(0, OWN)
        """Structs OWN by object id."""
        self._request_ranks = np.zeros(0, np.int16)
        """The rank + 1 of each request, by its id; -1 for a request on several ranks."""
        self.counts = np.zeros(2, np.int64)
        """Rows on objects that another rank touched first, and their bytes."""
        self.rows_by_rank = np.zeros(options.ranks, np.int64)
        self.bytes_by_rank = np.zeros(options.ranks, np.int64)
        self.rows, self.is_cut = 0, False
        self._limited_bytes = 0
        """Bytes read and written so far that count towards a limit of bytes."""

    def batches(self) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        """Yield the columns of a batch of rows, with -1 for null, and the rank of each (int16)."""
        for batch in self._reader.batches(_COLUMNS):
            rows = {name: numbers(batch.column(name)) for name in _COLUMNS}
            count = self._admitted(rows)
            if count < batch.num_rows:
                self.is_cut = True
                rows = {name: values[:count] for name, values in rows.items()}
            if count:
                yield rows, self._ranks(rows)
                self.rows += count
            if self.is_cut:
                return

    def _admitted(self, rows: dict[str, np.ndarray]) -> int:
        """Return how many of the batch's first rows the limit admits."""
        limit, count = self._options.limit, len(rows["ts_ns"])
        if limit.rows is not None:
            return min(count, limit.rows - self.rows)
        if limit.span_ns is not None:
            return int(np.searchsorted(rows["ts_ns"], limit.span_ns))
        if limit.moved_bytes is not None:
            is_transfer = np.isin(rows["tier"], list(self._options.tiers)) & (rows["op"] != DELETE)
            total = self._limited_bytes + np.cumsum(np.where(is_transfer, rows["length_bytes"], 0))
            self._limited_bytes = int(total[-1]) if count else self._limited_bytes
            return int(np.searchsorted(total, limit.moved_bytes, side="right"))
        return count

    def _ranks(self, rows: dict[str, np.ndarray]) -> np.ndarray:
        """Return the rank of each row (int16)."""
        objects, requests = rows["object_id"], rows["request_id"]
        # For each row: a rank, -1 for the rank that wrote the object last, -2 by the object's hash.
        if self._key is PartitionBy.NODE:
            assigned = self._assign_round_robin(rows["node"])
        elif self._key is PartitionBy.USER:
            assigned = np.where(requests < 0, -1, self._assign_round_robin(requests))
        else:
            assigned = np.full(len(objects), -2)
        self.objects = _grown(self.objects, int(objects.max()) + 1, "object_id")
        self._request_ranks = _grown(self._request_ranks, int(requests.max()) + 1, "request_id")
        stages = np.where(rows["stage"] < 0, -1, requests)
        assigned = assigned.astype(np.int16)
        ranks = np.empty(len(assigned), np.int16)
        _assign(
            _partition_rows({**rows, "request": stages}),
            assigned,
            self._options.ranks,
            self.objects,
            self._request_ranks,
            self.counts,
            ranks,
        )
        self.rows_by_rank += np.bincount(ranks, minlength=self._options.ranks)
        transfers = np.where(rows["op"] == DELETE, 0, rows["length_bytes"])
        rank_bytes = np.bincount(ranks, transfers, minlength=self._options.ranks)
        self.bytes_by_rank += rank_bytes.astype(np.int64)
        return ranks

    def _assign_round_robin(self, keys: np.ndarray) -> np.ndarray:
        """Return the rank of each of `keys`; new keys are assigned round-robin in their order."""
        unique_keys, firsts, inverse = np.unique(keys, return_index=True, return_inverse=True)
        ranks = np.zeros(len(unique_keys), np.int64)
        for index in np.argsort(firsts, kind="stable").tolist():
            key = int(unique_keys[index])
            if key >= 0:
                session = None if self._sessions is None else self._sessions.get(key)
                user = (0, key) if session is None else (1, session)
                next_rank = len(self._rank_of) % self._options.ranks
                ranks[index] = self._rank_of.setdefault(user, next_rank)
        return ranks[inverse]

    def note(self, because: str, needless: int) -> PartitionNote:
        """Return the facts of the partition; `needless` deletes of this rank were left out."""
        nodes = [
            sorted(node for (_, node), node_rank in self._rank_of.items() if node_rank == rank)
            for rank in range(self._options.ranks)
        ]
        return PartitionNote(
            by=self._key,
            because=because,
            distributed=(
                len(self._rank_of)
                if self._key is not PartitionBy.OBJECT
                else int((self.objects["first"] != 0).sum())
            ),
            rows=self.rows_by_rank.tolist(),
            bytes=self.bytes_by_rank.tolist(),
            nodes=nodes if self._key is PartitionBy.NODE else None,
            shared_objects=int((self.objects["is_shared"] != 0).sum()),
            shared_rows=int(self.counts[0]),
            shared_bytes=int(self.counts[1]),
            split_requests=int((self._request_ranks == -1).sum()),
            deletes_left_out=needless,
        )


def _grown(array: np.ndarray, length: int, column: str) -> np.ndarray:
    """Return `array` extended to at least `length`; untouched pages use no memory."""
    if length > _MAX_IDS:
        raise ConfigError(
            f"{column} {length - 1}: too large to partition; kvtrace numbers them from 0"
        )
    if length <= len(array):
        return array
    extended = np.zeros(max(length, 2 * len(array)), array.dtype)
    extended[: len(array)] = array
    return extended


def _needless_deletes(reader: Reader, objects: np.ndarray, mine: np.ndarray) -> Sequence[int]:
    """Return the numbers of this rank's deletes after which it reads the object without a write.

    In the whole trace, another rank writes the object in between. `objects` are structs OWN,
    `mine` is true for this rank's rows.
    """
    shared = np.flatnonzero(objects["is_shared"])
    if not len(shared):
        return []
    tiers = len(reader.meta.tiers)
    # The index of each object among those that several ranks use, or -1.
    shared_index = np.full(len(objects), -1, np.int32)
    shared_index[shared] = np.arange(len(shared))
    states = np.zeros(len(shared) * tiers, SHARED)
    states["deleted_row"] = -1
    first_row, needless = 0, list[int]()
    for batch in reader.batches(_COLUMNS):
        is_mine = mine[first_row : first_row + batch.num_rows].view(np.int8)
        rows = _partition_rows(
            {name: numbers(batch.column(name))[: len(is_mine)] for name in _COLUMNS}, first_row
        )
        row_numbers = np.empty(len(is_mine), np.int64)
        count = _find_needless(rows, is_mine, tiers, shared_index, states, row_numbers)
        needless += row_numbers[:count].tolist()
        first_row += len(is_mine)
        if first_row >= len(mine):
            break
    return needless


def _write(
    reader: Reader,
    path: Path,
    mine: np.ndarray,
    note: PartitionNote,
    rank: int,
    assignment: _Assignment,
) -> None:
    """Write the rows of `rank`, those where `mine` is true, as a trace."""
    meta, once = reader.meta, Repeated(reader, assignment.rows, 1)
    share = {
        "file": reader.path.name,
        "rank": rank,
        "ranks": len(note.rows),
        "partitioned_by": note.by,
        "nodes": None if note.nodes is None else sorted(chain.from_iterable(note.nodes)),
        "rows": assignment.rows,
        # The repeats of all parts begin together and have the same request ids.
        "period_ns": once.period_ns,
        "requests": once.requests,
    }
    meta = msgspec.structs.replace(
        meta,
        source=(meta.source or {}) | {"part": share},
        # The statistics are of the whole trace.
        stats=None,
        notes=[
            *meta.notes,
            f"part {rank} of {len(note.rows)} of {reader.path.name}, partitioned by {note.by}",
        ],
        rows=None,
    )
    first_row = 0
    path.unlink(missing_ok=True)
    extras = tuple(dict.fromkeys([*reader.extras, WHOLE_ROW]))
    with create(path, TRACE, meta, extras) as out:
        for batch in reader.batches([*TRACE.names, *extras]):
            indices = np.flatnonzero(mine[first_row : first_row + batch.num_rows])
            if len(indices):
                rank_rows = batch.take(indices)
                column = rank_rows.schema.get_field_index(WHOLE_ROW)
                field = rank_rows.schema.field(column)
                whole_rows = pa.array(trace_rows(reader, batch, first_row)[indices])
                out.write(rank_rows.set_column(column, field, whole_rows))
            first_row += batch.num_rows
            if first_row >= len(mine):
                break


OWN, SHARED = map(REPLAY.dtype, ("Own", "Shared"))
"""Structs of an object, and of an object on a tier that several ranks use."""
_ASSIGNED_COLUMNS = ("op", "tier", "object_id", "offset_bytes", "length_bytes", "request")
_assign = function("partition_assign", StructAt, I2, int, OWN, I2, I8, I2)
_find_needless = function("partition_find_needless", StructAt, I1, int, I4, SHARED, I8, returns=int)


def _partition_rows(rows: Mapping[str, np.ndarray], first_row: int = 0) -> Structure:
    columns = {name: rows[name] for name in _ASSIGNED_COLUMNS if name in rows}
    return Structure(REPLAY, "PartitionRows", rows=len(rows["op"]), first_row=first_row, **columns)
