"""Partition a trace over ranks.

Operations that depend on each other stay on one rank; each part is a trace file.

Nodes and users are assigned to ranks round-robin, in the order in which the trace shows them,
objects by a hash of their numbers. Background work on an object goes to the rank that wrote it
last. Where ranks touch the same object, each has its own copy, written before the run; a delete of
such an object is left out if its rank goes on to read what another wrote since. All that is
counted. The choice is made row by row in C (`native/partition.c`). `run/rank_targets.py` gives
each rank a folder or file of its own below what `--tier` names.
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
_MOST_IDS = 1 << 31


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a trace that one rank replays."""

    path: Path
    note: PartitionNote
    planned: int
    """Rows of this rank on tiers that have a target."""
    warmup_rows: int | None
    """Those of its rows that a warm-up of the whole trace's first rows leaves out.

    Null without one.
    """
    is_whole: bool
    """Whether the ranks together replay the whole trace."""


@dataclass(frozen=True, slots=True)
class PartitionOptions:
    """How a trace is to be partitioned."""

    by: PartitionBy | None
    ranks: int
    limit: Limit
    tiers: frozenset[int]
    """Indexes of the tiers with a target; their bytes count towards a limit of bytes."""
    requests: Path | None = None
    """Path of the requests table, which has the session (the user) of each request."""
    warmup_rows: int | None = None


def write_part(trace: Path, asked: PartitionOptions, rank: int, path: Path) -> Part:
    """Write the part of `rank` to `path` as a trace of its own, with the objects table beside it.

    All ranks come to the same parts, each by itself.

    ConfigError if the trace cannot be partitioned so. TraceError if it is damaged.
    """
    reader = open_table(trace, TRACE)
    by, because = _by(reader, asked.by)
    first = _Pass(reader, by, asked)
    parts = [np.zeros(0, bool)]
    planned = warmup_rows = 0
    for rows, ranks in first.batches():
        parts.append(ranks == rank)
        planned += int((parts[-1] & np.isin(rows["tier"], list(asked.tiers))).sum())
        warmup_rows += int(parts[-1][: max(0, (asked.warmup_rows or 0) - first.rows)].sum())
    mine = np.concatenate(parts)
    needless = _needless(reader, first.own, mine)
    mine[needless] = False
    note = first.note(because, len(needless))
    _write(reader, path, mine, note, rank, first)
    # Beside the part: objects keep their numbers.
    theirs, ours = objects_path(trace), objects_path(path)
    ours.unlink(missing_ok=True)
    if theirs.is_file():
        try:
            os.link(theirs, ours)
        except OSError:
            shutil.copyfile(theirs, ours)
    return Part(
        path, note, planned, None if asked.warmup_rows is None else warmup_rows, not first.is_cut
    )


def _by(reader: Reader, asked: PartitionBy | None) -> tuple[PartitionBy, str]:
    nodes, has_requests = set(), False
    names = ("node", "request_id") if "node" in reader.extras else ("request_id",)
    for batch in reader.batches(names):
        if "node" in names:
            nodes |= set(np.unique(batch.column("node").to_numpy()).tolist())
        has_requests = has_requests or batch.column("request_id").null_count < batch.num_rows
        if has_requests and (len(nodes) > 1 or "node" not in names):
            break
    if asked is None and len(nodes) > 1:
        return PartitionBy.NODE, "the trace has several nodes"
    if asked is None and has_requests:
        return PartitionBy.USER, "the trace has requests, and one node"
    if asked is None:
        return PartitionBy.OBJECT, "the trace has neither nodes nor requests"
    if asked is PartitionBy.NODE and len(nodes) <= 1:
        raise ConfigError(
            f"--partition node: {reader.path} has one node; partition it by user or object"
        )
    if asked is PartitionBy.USER and not has_requests:
        raise ConfigError(
            f"--partition user: {reader.path} has no requests; partition it by object"
        )
    return asked, "--partition"


def _sessions(path: Path | None) -> dict[int, int] | None:
    """Return the session of each request, where the requests table says it.

    Those without are users of their own.
    """
    if path is None:
        return None
    found: dict[int, int] = {}
    for batch in open_table(path, REQUESTS).batches(("request_id", "session_id")):
        pairs = zip(
            batch.column("request_id").to_pylist(),
            batch.column("session_id").to_pylist(),
            strict=True,
        )
        found |= {request: session for request, session in pairs if session is not None}
    return found


class _Pass:
    """One pass over the rows that the limit admits: the rank of each."""

    def __init__(self, reader: Reader, by: PartitionBy, asked: PartitionOptions) -> None:
        self._reader, self._by, self._asked = reader, by, asked
        self._sessions = _sessions(asked.requests) if by is PartitionBy.USER else None
        self._rank_of: dict[tuple[int, int], int] = {}
        """Rank by partition key: a node, or whether a user is a session, and its number."""
        self.own = np.zeros(0, OWN)
        """Structs OWN by object id."""
        self._of_request = np.zeros(0, np.int16)
        """The rank + 1 of each request, by its id; -1 for several ranks."""
        self.counts = np.zeros(2, np.int64)
        """Rows on objects that another rank touched first, and their bytes."""
        self.rows_of, self.bytes_of = (
            np.zeros(asked.ranks, np.int64),
            np.zeros(asked.ranks, np.int64),
        )
        self.rows, self.is_cut = 0, False
        self._moved = 0

    def batches(self) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
        """Yield the columns of the rows, nulls as -1, and int16 the rank of each."""
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
        limit, count = self._asked.limit, len(rows["ts_ns"])
        if limit.rows is not None:
            return min(count, limit.rows - self.rows)
        if limit.span_ns is not None:
            return int(np.searchsorted(rows["ts_ns"], limit.span_ns))
        if limit.moved_bytes is not None:
            wanted = np.isin(rows["tier"], list(self._asked.tiers)) & (rows["op"] != DELETE)
            total = self._moved + np.cumsum(np.where(wanted, rows["length_bytes"], 0))
            self._moved = int(total[-1]) if count else self._moved
            return int(np.searchsorted(total, limit.moved_bytes, side="right"))
        return count

    def _ranks(self, rows: dict[str, np.ndarray]) -> np.ndarray:
        objects, requests = rows["object_id"], rows["request_id"]
        if self._by is PartitionBy.NODE:
            wanted = self._hands(rows["node"])
        elif self._by is PartitionBy.USER:
            wanted = np.where(requests < 0, -1, self._hands(requests))
        else:
            wanted = np.full(len(objects), -2)
        self.own = _grown(self.own, int(objects.max()) + 1, "object_id")
        self._of_request = _grown(self._of_request, int(requests.max()) + 1, "request_id")
        stages = np.where(rows["stage"] < 0, -1, requests)
        wanted = wanted.astype(np.int16)
        # Of each: a rank, the object's owner (-1), or by the object (-2).
        ranks = np.empty(len(wanted), np.int16)
        asked = _partition_rows({**rows, "request": stages})
        _assign(asked, wanted, self._asked.ranks, self.own, self._of_request, self.counts, ranks)
        self.rows_of += np.bincount(ranks, minlength=self._asked.ranks)
        moved = np.where(rows["op"] == DELETE, 0, rows["length_bytes"])
        self.bytes_of += np.bincount(ranks, moved, minlength=self._asked.ranks).astype(np.int64)
        return ranks

    def _hands(self, keys: np.ndarray) -> np.ndarray:
        """Return the rank of each of `keys`.

        Those not seen before are assigned to one rank after the other.
        """
        found, firsts, places = np.unique(keys, return_index=True, return_inverse=True)
        ranks = np.zeros(len(found), np.int64)
        for at in np.argsort(firsts, kind="stable").tolist():
            key = int(found[at])
            if key >= 0:
                session = None if self._sessions is None else self._sessions.get(key)
                user = (0, key) if session is None else (1, session)
                ranks[at] = self._rank_of.setdefault(user, len(self._rank_of) % self._asked.ranks)
        return ranks[places]

    def note(self, because: str, needless: int) -> PartitionNote:
        """Return the facts of the partition; `needless` deletes of this rank were left out."""
        of, ranks = self._rank_of, range(self._asked.ranks)
        nodes = [sorted(node for (_, node), to in of.items() if to == rank) for rank in ranks]
        return PartitionNote(
            by=self._by,
            because=because,
            distributed=(
                len(of)
                if self._by is not PartitionBy.OBJECT
                else int((self.own["first"] != 0).sum())
            ),
            rows=self.rows_of.tolist(),
            bytes=self.bytes_of.tolist(),
            nodes=nodes if self._by is PartitionBy.NODE else None,
            shared_objects=int((self.own["is_shared"] != 0).sum()),
            shared_rows=int(self.counts[0]),
            shared_bytes=int(self.counts[1]),
            split_requests=int((self._of_request == -1).sum()),
            deletes_left_out=needless,
        )


def _grown(array: np.ndarray, length: int, column: str) -> np.ndarray:
    """Return `array` with room for `length`; pages that are not touched take no memory."""
    if length > _MOST_IDS:
        raise ConfigError(
            f"{column} {length - 1}: too large to partition; kvtrace numbers them from 0"
        )
    if length <= len(array):
        return array
    more = np.zeros(max(length, 2 * len(array)), array.dtype)
    more[: len(array)] = array
    return more


def _needless(reader: Reader, own: np.ndarray, mine: np.ndarray) -> Sequence[int]:
    """Return which of the rows `mine` would delete what its rank reads later, because another rank
    wrote it since.
    """
    shared = np.flatnonzero(own["is_shared"])
    if not len(shared):
        return []
    tiers = len(reader.meta.tiers)
    # Of each object: its place among those that several ranks touch, or -1.
    place = np.full(len(own), -1, np.int32)
    place[shared] = np.arange(len(shared))
    known = np.zeros(len(shared) * tiers, SHARED)
    known["deleted_row"] = -1
    at, found = 0, list[int]()
    for batch in reader.batches(_COLUMNS):
        ours = mine[at : at + batch.num_rows].view(np.int8)
        rows = _partition_rows(
            {name: numbers(batch.column(name))[: len(ours)] for name in _COLUMNS}, at
        )
        new = np.empty(len(ours), np.int64)
        found += new[: _find_needless(rows, ours, tiers, place, known, new)].tolist()
        at += len(ours)
        if at >= len(mine):
            break
    return found


def _write(
    reader: Reader, path: Path, mine: np.ndarray, note: PartitionNote, rank: int, whole: _Pass
) -> None:
    meta, once = reader.meta, Repeated(reader, whole.rows, 1)
    share = {
        "file": reader.path.name,
        "rank": rank,
        "ranks": len(note.rows),
        "partitioned_by": note.by,
        "nodes": None if note.nodes is None else sorted(chain.from_iterable(note.nodes)),
        "rows": whole.rows,
        # Repeats of all parts begin together, and their requests are the same ones on all.
        "period_ns": once.period_ns,
        "requests": once.requests,
    }
    meta = msgspec.structs.replace(
        meta,
        source=(meta.source or {}) | {"part": share},
        # They count the whole trace.
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
            own_rows = np.flatnonzero(mine[first_row : first_row + batch.num_rows])
            if len(own_rows):
                own = batch.take(own_rows)
                index = own.schema.get_field_index(WHOLE_ROW)
                whole_rows = pa.array(trace_rows(reader, batch, first_row)[own_rows])
                out.write(own.set_column(index, own.schema.field(index), whole_rows))
            first_row += batch.num_rows
            if first_row >= len(mine):
                break


OWN, SHARED = map(REPLAY.dtype, ("Own", "Shared"))
"""Structs of an object, and of an object of a tier that several ranks touch."""
_ASSIGNED_COLUMNS = ("op", "tier", "object_id", "offset_bytes", "length_bytes", "request")
_assign = function("partition_assign", StructAt, I2, int, OWN, I2, I8, I2)
_find_needless = function("partition_find_needless", StructAt, I1, int, I4, SHARED, I8, returns=int)


def _partition_rows(rows: Mapping[str, np.ndarray], first_row: int = 0) -> Structure:
    columns = {name: rows[name] for name in _ASSIGNED_COLUMNS if name in rows}
    return Structure(REPLAY, "PartitionRows", rows=len(rows["op"]), first_row=first_row, **columns)
