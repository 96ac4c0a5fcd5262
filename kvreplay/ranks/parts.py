"""What each rank left of a run, and the sums over all ranks: times, figures, pace, checkpoints, requests.

Ranks leave files (`ranks.json`, `rank.json`, and a run each), so that the whole can be put together after a crash too.
Counts are added up; percentiles are taken over the operations of all ranks, from their ops.parquet. A checkpoint ends
when its last rank ends it, and its bytes are those of all ranks, as MLPerf Storage counts. A request that lies on one
rank comes from that rank's table; one that lies on several is put together from their operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import pyarrow.compute as pc

from kvreplay.config.config import Config, Criteria
from kvreplay.config.limits import Warmup, parse_warmup
from kvreplay.native.rows import OK, READ
from kvreplay.plan.loader import IS_BULK, IS_LOAD
from kvreplay.result.checkpoints import COLUMNS, TimesBeside, checkpoint, figures_of, spans_of
from kvreplay.result.counts import RequestTimes, Times
from kvtrace.core.files import read_json, write_json
from kvtrace.core.run.figures import Beside, Checkpoint, CheckpointFigures, Figures, Pace, RequestFigures
from kvtrace.core.run.run_file import OPS_FILE, SERVED_FILE, DealNote, RunFile
from kvtrace.core.schema import OPS, SERVED, Op, enum_code, numbers
from kvtrace.core.statistics import mean, total
from kvtrace.core.tables import open_table
from kvtrace.core.units import NS_PER_S

RANKS_FILE = "ranks.json"
"""In the folder of the whole, from before the start on."""
RANK_FILE = "rank.json"
"""In the folder of a rank, at its end."""


class Ordered(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks were asked to do: the content of ranks.json."""

    count: int
    hosts: list[str]
    """By rank."""
    library: str | None
    argv: list[str]
    config: Config
    trace: str
    """Its absolute path at rank 0."""
    output: str
    """As given to rank 0."""
    is_forced: bool = False
    deal: str | None = None
    """What the trace is partitioned by; null: as the trace suggests."""


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a rank at its end: the content of rank.json."""

    rank: int
    host: str
    cpus: int
    deal: DealNote | None = None
    is_whole: bool = True
    """Whether the ranks together were to replay the whole trace."""
    is_idle: bool = False
    """Its part is empty."""
    error: str | None = None
    """What went wrong after all had begun."""
    clock_offset_ns: int | None = None
    clock_error_ns: int | None = None
    clock_drift_ns: int | None = None
    start_ns: int | None = None
    """When all began, by rank 0's clock."""
    begun_late_ns: int | None = None
    stood_still_ns: int | None = None
    orphaned_ns: int | None = None
    """When, by rank 0's clock, its MPI process was gone; null if it was not."""


def read_ordered(folder: Path) -> Ordered:
    """Read ranks.json in `folder`; TraceError if it is missing or of another version."""
    return read_json(folder / RANKS_FILE, Ordered, misfit="not of this version of kvreplay: {}")


def find_report(folder: Path) -> RankReport | None:
    """Read the report of the rank in `folder`; null if it did not write one."""
    return read_json(folder / RANK_FILE, RankReport) if (folder / RANK_FILE).is_file() else None


def write_report(folder: Path, report: RankReport) -> None:
    """Write the report of a rank into its folder."""
    folder.mkdir(exist_ok=True)
    write_json(folder / RANK_FILE, report)


@dataclass(frozen=True, slots=True)
class PartRun:
    """The run of one rank, and its report."""

    rank: int
    host: str
    folder: Path
    run: RunFile | None
    """Null if it left none, or had nothing to replay."""
    report: RankReport | None
    """Null if it did not come to its end."""
    trouble: str | None = None
    """Why what it left cannot be read."""

    @property
    def status(self) -> str:
        """As in its run.json; idle if its part was empty, lost if it left nothing or died."""
        if self.run is None:
            return "idle" if self.report is not None and self.report.is_idle else "lost"
        # A recovered run is partial, too; who died did not say so.
        return self.run.status if self.report is not None else "lost"

    @property
    def warmup(self) -> Warmup | None:
        """What its figures leave out."""
        return None if self.run is None else parse_warmup(self.run.config.get("warmup"))

    @property
    def timed(self) -> set[tuple[str, str]]:
        """Tiers and kinds of operations that have times: measured ones, or a model's."""
        figures = [] if self.run is None else self.run.summary.figures
        return {(f.tier, f.op) for f in figures if f.latency.count}

    @property
    def bytes(self) -> int:
        """What it read and wrote, on tiers where bytes move."""
        figures = [] if self.run is None else self.run.summary.figures
        return sum(f.bytes or 0 for f in figures if f.op != "delete" and not f.is_simulated)

    @property
    def operations(self) -> int:
        """Those that completed."""
        return 0 if self.run is None else self.run.summary.operations or 0

    @property
    def first_submission_ns(self) -> int | None:
        """After all began; null if it is not known."""
        ops = self.folder / OPS_FILE
        if self.run is None or not ops.is_file():
            return None
        for batch in open_table(ops, OPS).batches(("submitted_ns",)):
            found = pc.min(batch.column("submitted_ns")).as_py()
            if found is not None:
                # Rows far behind are submitted later.
                return int(found)
        return None


_COLUMNS = ("row", "op", "tier", "scheduled_ns", "submitted_ns", "completed_ns", "bytes", "outcome")
_MIB = 1 << 20
EXACT_OPERATIONS = 10_000_000
"""Up to so many are kept one by one; 32 bytes each."""
NAMES = tuple(op.value for op in Op)


@dataclass(slots=True)
class MergedTimes:
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
    """Operations of all ranks, by tier and kind; ("", "") are all."""

    is_exact: bool
    by: dict[tuple[str, str], MergedTimes] = field(default_factory=dict)

    def of(self, tier: str, op: str) -> MergedTimes:
        """Return the times of one kind."""
        if (tier, op) not in self.by:
            self.by[tier, op] = MergedTimes.empty(is_exact=self.is_exact)
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
    """Return the offset of a rank's start from that of the first rank; ns."""
    starts = [p.report.start_ns for p in parts if p.report is not None and p.report.start_ns is not None]
    own = None if part.report is None else part.report.start_ns
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
    into: MergedTimes, rows: dict[str, Any], here: Any, late_ns: int, *, is_open: bool, is_timed: bool, is_kept: bool
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


def merged_figures(parts: Sequence[PartRun], found: RankOperations) -> list[Figures]:
    """Return the figures of each tier and kind of operation, in the order of the ranks' own."""
    of: dict[tuple[str, str], list[Figures]] = {}
    for part in parts:
        for figures in [] if part.run is None else part.run.summary.figures:
            of.setdefault((figures.tier, figures.op), []).append(figures)
    tiers = list(dict.fromkeys([tier for tier, _ in of]))
    ops = ["read", "write", "delete"]
    keys = sorted(of, key=lambda key: (tiers.index(key[0]), ops.index(key[1])))
    return [_merged(of[key], found.of(*key)) for key in keys]


def _merged(each: Sequence[Figures], times: MergedTimes) -> Figures:
    first = each[0]
    span = None if times.first_ns is None or times.last_ns is None else times.last_ns - times.first_ns
    moved, operations = total([f.bytes for f in each]), sum(f.operations or 0 for f in each)
    is_rated = bool(span) and any(f.operations_per_s is not None for f in each)
    per_mib = times.per_mib.distribution()
    return Figures(
        tier=first.tier,
        op=first.op,
        engine=first.engine if len({f.engine for f in each}) == 1 else "several",
        is_simulated=first.is_simulated,
        planned=total([f.planned for f in each]),
        operations=operations,
        errors=total([f.errors for f in each]),
        corrupt=sum(f.corrupt for f in each),
        bytes=moved,
        io_bytes=total([f.io_bytes for f in each]),
        span_ns=span,
        bandwidth_bytes_per_s=(moved or 0) * NS_PER_S / span if is_rated and span and first.op != "delete" else None,
        operations_per_s=operations * NS_PER_S / span if is_rated and span else None,
        in_flight_mean=times.service_ns / span if is_rated and span else None,
        in_flight_max=_most_at_once(times) if is_rated else None,
        latency=times.latency.distribution(),
        response=None if first.response is None else times.response.distribution(),
        latency_per_mib=per_mib,
        lateness=None if first.lateness is None else times.lateness.distribution(),
    )


def _most_at_once(times: MergedTimes) -> int | None:
    """Return how many operations overlapped at most; null where only histograms are kept."""
    if not times.edges:
        return None
    submitted = np.sort(np.concatenate([s for s, _ in times.edges]))
    ended = np.searchsorted(np.sort(np.concatenate([c for _, c in times.edges])), submitted, side="right")
    return int((np.arange(1, len(submitted) + 1) - ended).max())


def merged_pace(runs: Sequence[RunFile], found: RankOperations) -> Pace | None:
    """Return whether all ranks kept pace; null in a closed loop."""
    paces = [(run.summary.pace, run.summary.operations or 0) for run in runs]
    known = [(pace, count) for pace, count in paces if pace is not None]
    if not known:
        return None
    operations = sum(count for _, count in known) or 1
    late = max((pace for pace, _ in known), key=lambda pace: (not pace.kept_pace, pace.end_late_ns or 0))
    names = {name for pace, _ in known for name in pace.causes}
    # Shares of response times: those of a rank count by its part of them all.
    weights = [(pace, (pace.response.mean_ns or 0) * pace.response.count if pace.response else 0) for pace, _ in known]
    whole = sum(weight for _, weight in weights) or 1
    every = found.of("", "")
    return Pace(
        kept_pace=all(pace.kept_pace for pace, _ in known),
        late_fraction=sum(pace.late_fraction * count for pace, count in known) / operations,
        late_by_itself_fraction=sum(pace.late_by_itself_fraction * count for pace, count in known) / operations,
        lateness=every.lateness.distribution(),
        response=every.response.distribution(),
        offered_per_s=total([pace.offered_per_s for pace, _ in known]),
        delivered_per_s=total([pace.delivered_per_s for pace, _ in known]),
        end_late_ns=late.end_late_ns,
        cause=late.cause,
        causes={name: sum(pace.causes.get(name, 0) * w for pace, w in weights) / whole for name in sorted(names)},
        held_share=mean([pace.held_share for pace, _ in known]),
        on_time_fraction=_weighted([(pace.on_time_fraction, count) for pace, count in known]),
        unhindered_share=_weighted([(pace.unhindered_share, weight) for pace, weight in weights]),
    )


def _weighted(each: Sequence[tuple[float | None, float]]) -> float | None:
    """Return the mean of values by their weights; null if one is not known."""
    known = [(value, weight) for value, weight in each if value is not None]
    whole = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / whole if len(known) == len(each) and whole else None


def merged_checkpoints(
    parts: Sequence[PartRun], tiers: Sequence[str], wall_ns: int | None, *, is_exact: bool
) -> CheckpointFigures | None:
    """Return the checkpoints of all ranks; None if no rank saved or restored one. `tiers` are the trace's names."""
    each: dict[tuple[Any, ...], list[Checkpoint]] = {}
    last = 0
    for part in parts:
        late_ns, run = late_of(part, parts), part.run
        last = max(last, late_ns + (0 if run is None else run.summary.wall_ns or 0))
        for found in [] if run is None or run.checkpoints is None else run.checkpoints.each:
            # Without a request, rows of one moment are one.
            of = (found.request_id,) if found.request_id is not None else ("at", found.ts_ns)
            times = {name: getattr(found, name) for name in ("scheduled_ns", "submitted_ns", "completed_ns")}
            each.setdefault((found.kind, *of), []).append(
                msgspec.structs.replace(found, **{n: None if at is None else at + late_ns for n, at in times.items()})
            )
    if not each:
        return None
    whole = [_together(found) for found in each.values()]
    whole.sort(key=lambda c: (_least([c.scheduled_ns, c.submitted_ns]) or 0, c.ts_ns or 0))
    spans = spans_of(whole, last)
    return figures_of(whole, spans, wall_ns, _times_during_checkpoints(parts, tiers, spans, is_exact=is_exact))


def _together(parts: Sequence[Checkpoint]) -> Checkpoint:
    """Return one checkpoint of its parts on several ranks."""
    ended = [part.completed_ns for part in parts]
    return checkpoint(
        parts[0].kind,
        parts[0].request_id,
        _least([part.ts_ns for part in parts]),
        _least([part.scheduled_ns for part in parts]),
        _least([part.submitted_ns for part in parts]),
        None if None in ended else max(at for at in ended if at is not None),
        sum(part.bytes for part in parts),
        sum(part.operations for part in parts),
        sum(part.unfinished for part in parts),
    )


def _least(values: Sequence[int | None]) -> int | None:
    return min((value for value in values if value is not None), default=None)


def most(values: Sequence[Any]) -> Any:
    """Return the greatest of `values` that is known; null if none is."""
    return max((value for value in values if value is not None), default=None)


def _times_during_checkpoints(
    parts: Sequence[PartRun], tiers: Sequence[str], spans: Any, *, is_exact: bool
) -> list[Beside]:
    """Return how long others' operations took while a checkpoint of any rank was under way, and otherwise."""
    found, is_open = TimesBeside(spans, tiers, EXACT_OPERATIONS if is_exact else 0), False
    for part in parts:
        late_ns = late_of(part, parts)
        is_timed = np.array([[(tier, op) in part.timed for op in NAMES] for tier in tiers])
        for rows in rows_of(part, COLUMNS):
            is_open |= bool((rows["scheduled_ns"] >= 0).any())
            counts = is_timed[rows["tier"], rows["op"]] & is_measured(part, rows)
            found.add(rows, counts & (rows["completed_ns"] >= 0), is_open=is_open, late_ns=late_ns)
    return found.found(is_open=is_open)


NONE = -1
_TABLE = ("request_id", "storage_ns", "first_token_ns", "qos", "unfinished")
_REQUEST_COLUMNS = (
    "row",
    "op",
    "phase",
    "request_id",
    "scheduled_ns",
    "submitted_ns",
    "completed_ns",
    "outcome",
    "engine",
)
_NOT_PLANNED, _SIMULATED = (enum_code(OPS, "engine", name) for name in ("none", "sim"))


def merged_requests(parts: Sequence[PartRun], criteria: Criteria) -> RequestFigures | None:
    """Return the figures of the requests of all ranks, judged by `criteria`; None if no rank kept them."""
    kept = [part for part in parts if part.run is not None and (part.folder / SERVED_FILE).is_file()]
    counted = [part.run.requests for part in kept if part.run is not None and part.run.requests is not None]
    if not counted:
        return None
    found = _Requests([_table(part) for part in kept])
    is_open = False
    for number, part in enumerate(kept):
        late_ns = late_of(part, parts)
        for every in rows_of(part, _REQUEST_COLUMNS):
            rows = {name: values[every["request_id"] >= 0] for name, values in every.items()}
            is_open |= bool((rows["scheduled_ns"] != NONE).any())
            found.add(number, rows, is_measured(part, rows), late_ns)
    found.put_together()
    counts = ~found.is_left_out
    times = RequestTimes(criteria.targets, limit=len(counts))
    response = found.response.ns[counts] if is_open else None
    times.add(found.storage_ns[counts], response, found.first_token_ns[counts], found.qos[counts])
    return times.figures(counted[0].first_token_reason, is_open_loop=is_open)


def _table(part: PartRun) -> dict[str, Any]:
    batches = [
        {name: numbers(batch.column(name)) for name in _TABLE}
        for batch in open_table(part.folder / SERVED_FILE, SERVED).batches(_TABLE)
    ]
    return {name: np.concatenate([np.zeros(0, np.int64), *(batch[name] for batch in batches)]) for name in _TABLE}


@dataclass(slots=True)
class Covered:
    """Time that the intervals of each request cover; intervals come in order of their starts."""

    ns: Any
    reached: Any

    @classmethod
    def of(cls, count: int) -> Covered:
        """Return the cover of `count` requests without intervals."""
        return cls(np.zeros(count, np.int64), np.full(count, NONE))

    def add(self, at: Any, start: Any, end: Any) -> None:
        """Add intervals of the requests `at`, each no earlier than the last of its request."""
        if not len(at):
            return
        order = np.lexsort((start, at))
        at, start, end = at[order], start[order], np.maximum(end[order], self.reached[at[order]])
        is_first = np.append(True, at[1:] != at[:-1])
        segment = np.cumsum(is_first)
        # Ranks instead of times, so that adding the segment cannot overflow.
        ladder, rank = np.unique(end, return_inverse=True)
        reached = ladder[np.maximum.accumulate(rank + segment * len(ladder)) - segment * len(ladder)]
        before = np.where(is_first, self.reached[at], np.append(NONE, reached[:-1]))
        np.add.at(self.ns, at, np.maximum(0, reached - np.maximum(start, before)))
        np.maximum.at(self.reached, at, reached)


class _Requests:
    """The requests of all ranks, in order of their numbers."""

    def __init__(self, tables: Sequence[dict[str, Any]]) -> None:
        """Take what each rank's table says."""
        self._ids, counts = np.unique(np.concatenate([table["request_id"] for table in tables]), return_counts=True)
        count = len(self._ids)
        self._is_split = counts > 1
        """Whether several ranks have operations of it."""
        self.storage_ns, self.first_token_ns, self.qos = (np.full(count, NONE) for _ in range(3))
        self.response = Covered.of(count)
        """Time in which at least one of its operations was due and not completed."""
        self.is_left_out = np.zeros(count, bool)
        """It is no user's, or the warm-up touches it."""
        unfinished = np.zeros(count, np.int64)
        self._loads_on = np.full(count, NONE)
        """The only part that loads for it; NONE: none does; -2: several do."""
        self._tables, self._split = tables, list[tuple[Any, Any, Any, Any]]()
        for table in tables:
            at = np.searchsorted(self._ids, table["request_id"])
            self.qos[at] = np.maximum(self.qos[at], table["qos"])
            unfinished[at] += table["unfinished"]
            self.storage_ns[at] = table["storage_ns"]
        self.storage_ns[unfinished > 0] = NONE
        self._is_unfinished = unfinished > 0

    def add(self, number: int, rows: dict[str, Any], is_measured: Any, late_ns: int) -> None:
        """Take operations of the part with this number, in the trace's order; its times count from so much later."""
        at = np.searchsorted(self._ids, rows["request_id"])
        is_planned = rows["engine"] != _NOT_PLANNED
        self.is_left_out[at[is_planned & (~is_measured | IS_BULK[rows["phase"]])]] = True
        loading = np.unique(at[IS_LOAD[rows["phase"]] & (rows["op"] == READ)])
        had = self._loads_on[loading]
        self._loads_on[loading] = np.where((had == NONE) | (had == number), number, -2)
        done = is_planned & (rows["engine"] != _SIMULATED) & (rows["outcome"] == OK)
        due, submitted, completed = rows["scheduled_ns"], rows["submitted_ns"], rows["completed_ns"]
        alone = done & ~self._is_split[at] & (due != NONE)
        self.response.add(at[alone], due[alone], completed[alone])
        split = done & self._is_split[at]
        if split.any():
            known = np.where(due[split] == NONE, NONE, due[split] + late_ns)
            self._split.append((at[split], known, submitted[split] + late_ns, completed[split] + late_ns))

    def put_together(self) -> None:
        """Complete requests that lie on several ranks, from the operations of all."""
        for number, table in enumerate(self._tables):
            at = np.searchsorted(self._ids, table["request_id"])
            # Another rank took what it did not load itself for computed.
            knows = (self._loads_on[at] == NONE) | (self._loads_on[at] == number)
            self.first_token_ns[at[knows]] = table["first_token_ns"][knows]
        if not self._split:
            return
        at, due, submitted, completed = (np.concatenate(columns) for columns in zip(*self._split, strict=True))
        storage = Covered.of(len(self._ids))
        storage.add(at, submitted, completed)
        touched = np.unique(at)
        self.storage_ns[touched] = np.where(self._is_unfinished[touched], NONE, storage.ns[touched])
        is_due = due != NONE
        self.response.add(at[is_due], due[is_due], completed[is_due])
