"""The times of all ranks' operations, from their ops.parquet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from kvreplay.mpi.pooled.part import PartRun
from kvreplay.native.rows import OK
from kvreplay.result.counts import Times
from kvtrace.core.run.run_file import OPS_FILE, RunFile
from kvtrace.core.schema import OPS, Op, numbers
from kvtrace.core.tables import open_table

_COLUMNS = ("row", "op", "tier", "scheduled_ns", "submitted_ns", "completed_ns", "bytes", "outcome")
_MIB = 1 << 20
EXACT_OPERATIONS = 10_000_000
"""Up to so many are pooled one by one; 32 bytes each."""
NAMES = tuple(op.value for op in Op)


@dataclass(slots=True)
class Pooled:
    """The times of one kind of operation on one tier, or of all."""

    latency: Times
    response: Times
    lateness: Times
    per_mib: Times
    first_ns: int | None = None
    """Since all began: its first submission, of those that completed."""
    last_ns: int | None = None
    sent: int = 0
    service_ns: int = 0
    edges: list[tuple[Any, Any]] = field(default_factory=list)
    """Submissions and completions, if all are kept."""

    @classmethod
    def empty(cls, *, is_exact: bool) -> Self:
        """Return none."""
        latency, response, lateness, per_mib = (Times(limit=EXACT_OPERATIONS if is_exact else 0) for _ in range(4))
        return cls(latency, response, lateness, per_mib)


@dataclass(slots=True)
class RankOperations:
    """Those of all ranks, by tier and kind; ("", "") are all."""

    is_exact: bool
    by: dict[tuple[str, str], Pooled] = field(default_factory=dict)

    def of(self, tier: str, op: str) -> Pooled:
        """Return the times of one kind."""
        if (tier, op) not in self.by:
            self.by[tier, op] = Pooled.empty(is_exact=self.is_exact)
        return self.by[tier, op]


def read_operations(parts: Sequence[PartRun], first: RunFile, *, is_exact: bool) -> RankOperations:
    """Return the times of the operations that the ranks' warm-ups leave in; tiers as in the run `first`.

    Their times count from when all began, so that they can be laid side by side.
    """
    names = [tier.name for tier in first.trace.metadata.tiers]
    found = RankOperations(is_exact)
    for part in parts:
        for rows in rows_of(part, _COLUMNS):
            _take(found, rows, part, names, late_of(part, parts))
    return found


def rows_of(part: PartRun, columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the columns of a rank's operations as int64, in the trace's order; none if it left none."""
    if part.run is None or not (part.folder / OPS_FILE).is_file():
        return
    for batch in open_table(part.folder / OPS_FILE, OPS).batches(columns):
        yield {name: numbers(batch.column(name)) for name in columns}


def late_of(part: PartRun, parts: Sequence[PartRun]) -> int:
    """Return by how much the times of a rank, which count from its start, are to be moved to count from the first."""
    starts = [p.told.start_ns for p in parts if p.told is not None and p.told.start_ns is not None]
    own = None if part.told is None else part.told.start_ns
    return 0 if own is None else own - min(starts)


def _take(
    found: RankOperations,
    rows: dict[str, Any],
    part: PartRun,
    names: Sequence[str],
    late_ns: int,
) -> None:
    is_open = bool((rows["scheduled_ns"] >= 0).any())
    sent = (rows["submitted_ns"] >= 0) & is_measured(part, rows)
    _add(found.of("", ""), rows, np.flatnonzero(sent), late_ns, is_open=is_open, is_timed=True, is_kept=False)
    for code in np.unique(rows["tier"] * len(NAMES) + rows["op"]).tolist():
        tier, op = names[code // len(NAMES)], NAMES[code % len(NAMES)]
        here = np.flatnonzero(sent & (rows["tier"] * len(NAMES) + rows["op"] == code))
        if len(here):
            is_timed = (tier, op) in part.timed
            _add(found.of(tier, op), rows, here, late_ns, is_open=is_open, is_timed=is_timed, is_kept=found.is_exact)


def is_measured(part: PartRun, rows: dict[str, Any]) -> Any:
    """Return bool a row: whether the warm-up of its rank leaves it in."""
    warmup, due_ns = part.warmup, rows["scheduled_ns"]
    if warmup is None:
        return np.ones(len(due_ns), bool)
    return warmup.counts(rows["row"], due_ns if (due_ns >= 0).any() else rows["submitted_ns"])


def _add(
    into: Pooled, rows: dict[str, Any], here: Any, late_ns: int, *, is_open: bool, is_timed: bool, is_kept: bool
) -> None:
    good = here[(rows["outcome"][here] == OK) & (rows["completed_ns"][here] >= 0)]
    submitted, completed = rows["submitted_ns"][good], rows["completed_ns"][good]
    into.sent += len(here)
    if is_open:
        into.lateness.add(rows["submitted_ns"][here] - rows["scheduled_ns"][here])
    if not len(good):
        return
    low, high = int(submitted.min()) + late_ns, int(completed.max()) + late_ns
    into.first_ns = low if into.first_ns is None else min(into.first_ns, low)
    into.last_ns = high if into.last_ns is None else max(into.last_ns, high)
    if not is_timed:
        return
    latency = completed - submitted
    into.service_ns += int(latency.sum())
    into.latency.add(latency)
    if is_open:
        into.response.add(completed - rows["scheduled_ns"][good])
    moved = rows["bytes"][good]
    has_bytes = moved > 0
    into.per_mib.add((latency[has_bytes] * (_MIB / moved[has_bytes])).astype(np.int64))
    if is_kept:
        into.edges.append((submitted + late_ns, completed + late_ns))
