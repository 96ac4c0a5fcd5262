"""The part of a trace that is replayed: read once to know what it needs, then again to replay it.

The first pass keeps what the tiers hold at once, the second a window of rows: neither grows with the trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvreplay.plan.ahead import ahead
from kvreplay.plan.copies import joined
from kvreplay.plan.facts import Counter, Facts
from kvreplay.plan.held.freed import return_freed
from kvreplay.plan.held.numbering import Numbering
from kvreplay.plan.intake import Intake
from kvreplay.plan.loader import MOST_ROWS, WINDOW_ROWS, Loader
from kvreplay.plan.pacing import Pacer
from kvreplay.plan.plan import Plan
from kvreplay.plan.repeat import Repeated
from kvreplay.plan.residency import Follower, Residency
from kvtrace.core.compiled import compile_announced
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.limit import Limit
from kvtrace.core.tables import Reader

if TYPE_CHECKING:
    import pyarrow as pa


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
    loader: Loader | None = None
    """Lays the plan's rows; None if they are all there, as in a record of what was done."""
    facts: Facts | None = None

    @property
    def held_bytes(self) -> int:
        """The memory that rows of the plan take at once, at most."""
        rows = max(1, len(self.plan))
        return self.plan.nbytes * min(rows, WINDOW_ROWS if self.loader is not None else rows) // rows

    def paced(self, pacer: Pacer) -> Any:
        """Return when rows are due (int64, as far as they are laid); None if at once."""
        return pacer.due_ns(self.plan.ts_ns) if self.loader is None else self.loader.paced(pacer)

    def laid_by(self) -> Loader:
        """Return what lays the rows of the plan."""
        if self.loader is None:
            raise ValueError("rows that were recorded are all there")
        return self.loader

    def counted(self) -> Facts:
        """Return what is known of all rows."""
        if self.facts is None:
            raise ValueError("rows that were recorded are not counted")
        return self.facts


class _Passes:
    """What the two passes over a trace read alike."""

    def __init__(self, reader: Reader, path: Path, alignments: Mapping[int, int], limit: Limit) -> None:
        self.reader, self.path, self._alignments, self.limit = reader, path, alignments, limit
        self.padding = [alignments.get(i, 1) for i in range(len(reader.meta.tiers))]
        self.repeats = reader.repeats if isinstance(reader, Repeated) else 1
        once = reader.rows if isinstance(reader, Repeated) else reader.meta.rows or 0
        self.most_rows = once * self.repeats if limit.rows is None else min(once * self.repeats, limit.rows)
        self._kept: list[pa.RecordBatch] | None = [] if self.most_rows <= WINDOW_ROWS else None
        """The batches of a short trace."""

    def intake(self) -> Intake:
        """Return what picks the rows out, from the first on."""
        left_out = self.reader.left_out if isinstance(self.reader, Repeated) else None
        return Intake(self.reader, self.path, self._alignments, self.limit, left_out)

    def rows(self, intake: Intake) -> Iterator[dict[str, Any]]:
        """Yield the rows that `intake` picks, of the whole trace."""
        with closing(ahead(self.reader.batches(intake.names))) as batches:
            for batch in batches:
                if self._kept is not None:
                    self._kept.append(batch)
                yield intake.take(batch)
                if intake.is_full:
                    return

    def again(self) -> Iterator[dict[str, Any]]:
        """Yield them once more."""
        intake = self.intake()
        for batch in self.batches(intake):
            yield intake.take(batch)
            if intake.is_full:
                return

    def forget(self) -> None:
        """Keep nothing of a trace that is laid whole."""
        self._kept = []

    def batches(self, intake: Intake) -> Iterator[pa.RecordBatch]:
        """Yield the batches of the trace once more."""
        return iter(self._kept) if self._kept is not None else self.reader.batches(intake.names)


# Long: the steps of both passes in their order.
def compile_window(
    reader: Reader,
    path: Path,
    alignments: dict[int, int],
    limit: Limit,
    shared: Mapping[int, tuple[Any, int]] | None = None,
) -> TraceWindow:
    """Compile the prefix of the trace that `limit` admits, for tiers with `alignments` (padding, bytes).

    `shared` says, by tier on several drives, which of them an object id lies on and how many there are. A short plan
    is whole, of a longer one no row is laid yet.

    Raises:
        TraceError: a row that cannot be replayed, by number and column.
        ConfigError: there are more rows than a plan may have.

    """
    import pyarrow as pa

    return_freed()
    passes = _Passes(reader, path, alignments, limit)
    intake, most_rows = passes.intake(), passes.most_rows
    objects, requests = Numbering(most_rows), Numbering(most_rows)
    follower = Follower(most_rows, passes.padding, shared or {}, objects)
    counter = Counter(path, len(passes.padding), most_rows, requests, has_streams="stream" in intake.names)
    with compile_announced():
        for rows in passes.rows(intake):
            _check_named(rows, shared or {}, path)
            absent = follower.take(rows)
            counter.take(intake.rows_of, len(absent), absent)
        residency = follower.result(passes.again)
        # What Arrow keeps of batches for others to come is as much as a window of rows.
        pa.default_memory_pool().release_unused()
    facts = counter.result()
    if residency.lost_read is not None:
        _refuse_lost(passes, residency.lost_read, intake.rows)
    if facts.rows > MOST_ROWS:
        raise ConfigError(f"{path}: {facts.rows:,} rows to replay, of {MOST_ROWS:,} at most; replay less with --limit")
    picked = passes.intake()
    loader = Loader(
        lambda: passes.batches(picked),
        picked,
        facts,
        passes.padding,
        (objects, requests),
        residency.absent_deletes,
        is_chained=residency.is_chained,
    )
    if not loader.is_sliding:
        loader.load()
        passes.forget()
    return TraceWindow(
        loader.plan,
        residency,
        intake.rows,
        not intake.is_full,
        intake.last_ns,
        intake.skipped,
        len(residency.absent_deletes),
        loader,
        facts,
    )


def _refuse_lost(passes: _Passes, lost: int, window_rows: int) -> None:
    """Raise TraceError for the row that is the one numbered `lost` of those looked at, of so many of the trace."""
    for rows in passes.again():
        if lost < len(rows["row"]):
            index, reader = int(rows["tier"][lost]), passes.reader
            why = "run kvtrace validate on this trace"
            if passes.limit.node is not None:
                why = "another node wrote it again, which --node leaves out; kvreplay run --mpi --deal node goes on"
            elif several := joined(reader, [index], window_rows).get(index):
                why = (
                    f"{reader.meta.tiers[index].name} is each node's own, and one place cannot stand for those of "
                    f"{several}: give each node a rank, mpirun -n {several} kvreplay run --mpi --deal node"
                )
            raise TraceError(
                f"reads object {rows['object_id'][lost]} after it was deleted from its tier, bytes that nothing wrote "
                f"since; {why}",
                path=passes.path,
                row=int(rows["row"][lost]),
            )
        lost -= len(rows["row"])


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
