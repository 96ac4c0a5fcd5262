"""The files that each rank leaves of a run, and the figures of all ranks together.

Ranks leave files (`ranks.json`, `rank.json`, and a run each), so that the whole can be put together
after a crash too. One recorder takes the rows of every rank's ops.parquet in the order of the
common clock, so its counts, rates and percentiles are those of a run of one process. A checkpoint
ends when its last rank ends it, and its bytes are those of all ranks, as MLPerf Storage counts. The
time of a request is what its operations on all ranks cover together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.compute as pc

from kvreplay.plan.replay_config import Config, Criteria, PartitionBy
from kvreplay.plan.window import IS_LOAD
from kvreplay.result.checkpoints import figures_of, joined, spans_of, times_beside
from kvreplay.result.figures import added, least
from kvtrace.core.metrics.native import NONE, NOT_DONE, OPS_A_PLACE, READ
from kvtrace.core.metrics.ops_table import (
    NO_ENGINE,
    OpsFile,
    OpsRows,
    exact_limits,
    read_in_time,
    table_recorder,
)
from kvtrace.core.metrics.recorder import LATENESS, RESPONSE, OperationRecorder, TableTier
from kvtrace.core.metrics.recorder import OPS as OPS_NAMES
from kvtrace.core.metrics.requests import OpenRequests, RequestTimes
from kvtrace.core.metrics.warmup import parse_warmup
from kvtrace.core.run.figures import (
    Checkpoint,
    CheckpointFigures,
    Figures,
    Pace,
    RequestFigures,
)
from kvtrace.core.run.run_file import OPS_FILE, SERVED_FILE, PartitionNote, RunFile
from kvtrace.core.schema import OPS, SERVED, Op, numbers
from kvtrace.core.statistics import mean, total
from kvtrace.core.tables import open_table
from kvtrace.core.units import per_second

RANKS_FILE = "ranks.json"
"""In the folder of the whole, from before the start on."""
RANK_FILE = "rank.json"
"""In the folder of a rank, at its end."""


class Ordered(msgspec.Struct, frozen=True, kw_only=True):
    """The order to all ranks: the content of ranks.json."""

    count: int
    hosts: list[str]
    """Host names by rank."""
    library: str | None
    argv: list[str]
    config: Config
    trace: str
    """Its absolute path at rank 0."""
    output: str
    """As given to rank 0."""
    is_forced: bool = False
    partition: PartitionBy | None = None
    """The key that partitions the trace; null: chosen from the trace."""


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a rank at its end: the content of rank.json."""

    rank: int
    host: str
    cpus: int | None = None
    partition: PartitionNote | None = None
    is_whole: bool = True
    """Whether the ranks together were to replay the whole trace."""
    is_idle: bool = False
    """Its part is empty."""
    error: str | None = None
    """The error that occurred after all ranks had begun."""
    clock_offset_ns: int | None = None
    clock_error_ns: int | None = None
    clock_drift_ns: int | None = None
    start_ns: int | None = None
    """When all began, by rank 0's clock."""
    begun_late_ns: int | None = None
    stood_still_ns: int | None = None
    orphaned_ns: int | None = None
    """When, by rank 0's clock, its MPI process was gone; null if it was not."""


@dataclass(frozen=True, slots=True)
class PartRun:
    """The run of one rank, and its report."""

    rank: int
    host: str
    folder: Path
    run: RunFile | None
    """Null if it left none, or had nothing to replay."""
    report: RankReport
    """Empty if it did not come to its end."""
    has_ended: bool
    trouble: str | None = None
    """Why its files cannot be read."""
    late_ns: int = 0
    """How much later it began than the first rank."""

    @property
    def status(self) -> str:
        """As in its run.json; idle if its part was empty, lost if it left nothing or died."""
        if self.run is None:
            return "idle" if self.report.is_idle else "lost"
        # A recovered run is partial, too: a process that died did not report it.
        return self.run.status if self.has_ended else "lost"

    @property
    def reason(self) -> str | None:
        """Why it is not complete, as far as that is known."""
        return self.trouble or self.report.error or (None if self.run is None else self.run.reason)

    @property
    def figures(self) -> list[Figures]:
        """Those of its run."""
        return [] if self.run is None else self.run.summary.figures

    @property
    def bytes(self) -> int:
        """Bytes that it read and wrote, on tiers that move data."""
        return sum(f.bytes or 0 for f in self.figures if f.op != "delete" and not f.is_simulated)

    @property
    def operations(self) -> int:
        """Those that completed."""
        return 0 if self.run is None else self.run.summary.operations or 0

    @property
    def first_submission_ns(self) -> int | None:
        """After all began; null if it is not known."""
        batches = (
            []
            if self.run is None
            else open_table(self.folder / OPS_FILE, OPS).batches(("submitted_ns",))
        )
        firsts = (pc.min(batch.column("submitted_ns")).as_py() for batch in batches)
        # Rows far behind are submitted later.
        return next((first for first in firsts if first is not None), None)

    @property
    def ops(self) -> OpsFile:
        """Its operations, of which figures leave out the warm-up."""
        run = self.run
        return OpsFile(
            self.folder / OPS_FILE,
            None if run is None else parse_warmup(run.config.get("warmup")),
            self.late_ns,
            None if run is None else run.summary.wall_ns,
        )


@dataclass(frozen=True, slots=True)
class RankedRun:
    """The operations and requests of all ranks, recorded in the order of their common clock."""

    recorder: OperationRecorder[TableTier]
    """Times count from when the first rank began."""
    requests: RequestFigures | None
    """Null if no rank kept its requests."""
    is_exact: bool
    """Whether percentiles are those of all values; if not, of histograms."""


def record_ranks(parts: Sequence[PartRun], tiers: Sequence[str], criteria: Criteria) -> RankedRun:
    """Record the operations that `parts` left, on the trace's `tiers`, and their requests.

    TraceError if what a rank left is damaged.
    """
    left = [part for part in parts if part.run is not None]
    is_open = any(part.run.pacing.loop == "open" for part in left if part.run is not None)
    counts = np.zeros(len(tiers) * OPS_A_PLACE, np.int64)
    for figures in (figures for part in left for figures in part.figures):
        kind = tiers.index(figures.tier) * OPS_A_PLACE + OPS_NAMES.index(figures.op)
        counts[kind] += figures.operations or 0
    known_tiers = [_tier_of(left, tier) for tier in tiers]
    recorder = table_recorder(known_tiers, counts, is_open_loop=is_open)
    requests = _RankRequests(left, recorder.moves, criteria, is_open_loop=is_open)
    for rows, file, least_later in read_in_time([p.ops for p in left], is_open_loop=is_open):
        planned = rows.where(rows.engine != NO_ENGINE)
        recorder.add(planned.rows, planned.is_counted, asked_bytes=planned.asked_bytes)
        requests.take(rows, planned, file, least_later)
    recorder.end()
    return RankedRun(
        recorder, requests.figures(), is_exact=bool((exact_limits(counts) == counts).all())
    )


def _tier_of(parts: Sequence[PartRun], tier: str) -> TableTier | None:
    """Return the figures of a tier over all ranks; null if none of them used it."""
    figures = [f for part in parts for f in part.figures if f.tier == tier]
    if not figures:
        return None
    engines = list(dict.fromkeys(f.engine for f in figures))
    return TableTier(
        tier,
        engines[0] if len(engines) == 1 else "several",
        is_simulated=figures[0].is_simulated,
        has_times=any(f.latency.count for f in figures),
    )


def merge_figures(
    parts: Sequence[PartRun], recorder: OperationRecorder[TableTier]
) -> list[Figures]:
    """Return the figures of each tier and kind of operation, over all ranks.

    The bytes that deletes freed are no rows of `ops`, nor those of a simulated tier: they are the
    ranks' own, added up.
    """
    own: dict[tuple[str, str], list[Figures]] = {}
    for figures in (figures for part in parts for figures in part.figures):
        own.setdefault((figures.tier, figures.op), []).append(figures)
    merged = []
    for figures in recorder.figures():
        sums = added(own.get((figures.tier, figures.op), []), "bytes")
        span_ns = figures.span_ns if figures.latency.count else None
        rate = None if figures.op == Op.DELETE else per_second(sums["bytes"] or 0, span_ns)
        merged.append(msgspec.structs.replace(figures, **sums, bandwidth_bytes_per_s=rate))
    return merged


def merge_pace(runs: Sequence[RunFile], recorder: OperationRecorder[TableTier]) -> Pace | None:
    """Return whether all ranks kept pace; null in a closed loop."""
    known = [
        (pace, run.summary.operations or 0)
        for run in runs
        if (pace := run.summary.pace) is not None
    ]
    if not known:
        return None
    sent = [(pace, pace.lateness.count) for pace, _ in known]
    delivery = recorder.delivery(range(len(recorder.kinds)))
    late = max(
        (pace for pace, _ in known), key=lambda pace: (not pace.kept_pace, pace.end_late_ns or 0)
    )
    names = {name for pace, _ in known for name in pace.causes}
    # Shares of response times: those of a rank count by its part of them all.
    weights = [
        (pace, (pace.response.mean_ns or 0) * pace.response.count if pace.response else 0)
        for pace, _ in known
    ]
    return Pace(
        kept_pace=all(pace.kept_pace for pace, _ in known),
        late_fraction=weighted([(pace.late_fraction, count) for pace, count in sent]) or 0,
        late_by_itself_fraction=weighted(
            [(pace.late_by_itself_fraction, count) for pace, count in sent]
        )
        or 0,
        lateness=recorder.distribution(LATENESS),
        response=recorder.distribution(RESPONSE),
        offered_per_s=delivery.offered_per_s,
        delivered_per_s=delivery.delivered_per_s,
        end_late_ns=late.end_late_ns,
        cause=late.cause,
        causes={
            name: weighted([(pace.causes.get(name, 0), w) for pace, w in weights]) or 0
            for name in sorted(names)
        },
        held_share=mean([pace.held_share for pace, _ in known]),
        on_time_fraction=weighted([(pace.on_time_fraction, count) for pace, count in known]),
        unhindered_share=weighted([(pace.unhindered_share, weight) for pace, weight in weights]),
    )


def weighted(each: Sequence[tuple[float | None, float]]) -> float | None:
    """Return the mean of values by their weights; null if one that has any is not known."""
    whole = sum(weight for _, weight in each)
    found = total([None if value is None else value * weight for value, weight in each if weight])
    return None if found is None else found / whole


def merge_checkpoints(
    parts: Sequence[PartRun], ranked: RankedRun, tiers: Sequence[str], wall_ns: int | None
) -> CheckpointFigures | None:
    """Return the checkpoints of all ranks.

    None if no rank saved or restored one. `tiers` are the trace's names.
    """
    each: dict[tuple[object, ...], list[Checkpoint]] = {}
    known = [(part, part.run) for part in parts if part.run is not None]
    for part, run in known:
        for found in [] if run.checkpoints is None else run.checkpoints.each:
            # Without a request, rows of one moment are one.
            of = (found.request_id,) if found.request_id is not None else ("at", found.ts_ns)
            times = {
                name: getattr(found, name)
                for name in ("scheduled_ns", "submitted_ns", "completed_ns")
            }
            late = {name: None if at is None else at + part.late_ns for name, at in times.items()}
            each.setdefault((found.kind, *of), []).append(msgspec.structs.replace(found, **late))
    if not each:
        return None
    whole = [joined(of) for of in each.values()]
    whole.sort(key=lambda c: (least([c.scheduled_ns, c.submitted_ns]) or 0, c.ts_ns or 0))
    spans = spans_of(whole, max(part.late_ns + (run.summary.wall_ns or 0) for part, run in known))
    timed = {figures.tier for part, _ in known for figures in part.figures if figures.latency.count}
    names = [tier if tier in timed else None for tier in tiers]
    limit = ranked.recorder.total("good") if ranked.is_exact else 0
    files, is_open = [part.ops for part, _ in known], ranked.recorder.is_open_loop
    beside = times_beside(files, spans, names, limit, is_open=is_open)
    return figures_of(whole, spans, wall_ns, beside)


class _RankRequests:
    """The requests of all ranks, each as one: its operations may lie on several of them.

    A request's time to the first token is valid only if one rank performs all its loads: a rank
    without loads takes those tokens for computed.
    """

    def __init__(
        self, parts: Sequence[PartRun], moves: np.ndarray, criteria: Criteria, *, is_open_loop: bool
    ) -> None:
        """Know the requests that `parts` served; `moves` says by tier whether data moves there."""
        kept = [run.requests for part in parts if (run := part.run) is not None]
        known = [figures for figures in kept if figures is not None]
        self._reason = known[0].first_token_reason if known else None
        self._is_open_loop, self._has_requests = is_open_loop, bool(known)
        limit = sum(figures.requests for figures in known)
        self._times = RequestTimes(criteria.targets_ns, limit=limit)
        self._open = OpenRequests(moves, IS_LOAD, is_open_loop=is_open_loop)
        self._served = [_Served(part.folder / SERVED_FILE) for part in parts]
        self._loaders = _Loaders()

    def take(self, rows: OpsRows, planned: OpsRows, file: Any, least_later: int) -> None:
        """Take rows in the order of time, of which `planned` are those that were replayed.

        `file` is the rank of each; requests below `least_later` are over then.
        """
        columns = {
            "request_id": np.ascontiguousarray(rows.rows["request"]),
            "length_bytes": np.ascontiguousarray(rows.rows["length_bytes"]),
            "phase": np.ascontiguousarray(rows.rows["phase"]),
            "op": np.ascontiguousarray(rows.rows["op"]),
        }
        is_load = (columns["op"] == READ) & IS_LOAD[columns["phase"]]
        self._loaders.add(columns["request_id"][is_load], file[is_load])
        self._open.begin()
        taken, first_row = 0, int(rows.rows["trace_row"][0]) if len(file) else 0
        while taken < len(file):
            taken = self._open.take(taken, first_row, columns, planned.rows, planned.is_counted)
            if taken < len(file):
                self._open.make_room()
        self._end_requests(least_later)

    def _end_requests(self, below: int) -> None:
        over = self._open.pop(below)
        if not len(over):
            return
        qos, first_token = np.full(len(over), -1, np.int8), np.full(len(over), NOT_DONE)
        first_loader, last_loader = self._loaders.pop(over["id"])
        for rank, served in enumerate(self._served):
            rows = served.up_to(below)
            at = np.searchsorted(over["id"], rows["request_id"])
            is_here = (at < len(over)) & (
                over["id"][np.minimum(at, len(over) - 1)] == rows["request_id"]
            )
            at, rows = at[is_here], {name: column[is_here] for name, column in rows.items()}
            qos[at] = np.maximum(qos[at], rows["qos"])
            is_valid = (first_loader[at] == NONE) | (
                (first_loader[at] == rank) & (last_loader[at] == rank)
            )
            times = np.where(is_valid, rows["first_token_ns"], NOT_DONE)
            first_token[at] = np.maximum(first_token[at], times)
        is_whole = (over["planned"] == over["operations"]) & (over["operations"] > 0)
        storage = np.where(is_whole, over["storage_ns"], NOT_DONE)
        counts = over["is_left_out"] == 0
        response = over["response_ns"][counts] if self._is_open_loop else None
        self._times.add(storage[counts], response, first_token[counts], qos[counts])

    def figures(self) -> RequestFigures | None:
        """Return the figures of all requests; None if no rank kept them."""
        if not self._has_requests:
            return None
        return self._times.figures(self._reason, is_open_loop=self._is_open_loop)


class _Served:
    """The requests that one rank served, read forward: they are in the order of their ids."""

    COLUMNS = ("request_id", "first_token_ns", "qos")

    def __init__(self, path: Path) -> None:
        """Read the table `served` at `path`."""
        self._batches = open_table(path, SERVED).batches(self.COLUMNS)
        self._rows = {name: np.zeros(0, np.int64) for name in self.COLUMNS}

    def up_to(self, below: int) -> dict[str, np.ndarray]:
        """Return the columns of the requests with an id below `below`, and forget them."""
        parts = [self._rows]
        while not len(parts[-1]["request_id"]) or parts[-1]["request_id"][-1] < below:
            batch = next(self._batches, None)
            if batch is None:
                break
            parts.append({name: numbers(batch.column(name)) for name in self.COLUMNS})
        rows = {name: np.concatenate([part[name] for part in parts]) for name in self.COLUMNS}
        count = int(np.searchsorted(rows["request_id"], below))
        self._rows = {name: column[count:] for name, column in rows.items()}
        return {name: column[:count] for name, column in rows.items()}


class _Loaders:
    """The first and the last rank that loads anything of a request, for requests under way."""

    def __init__(self) -> None:
        self._ids = np.zeros(0, np.int64)
        self._first = np.zeros(0, np.int64)
        self._last = np.zeros(0, np.int64)

    def add(self, ids: np.ndarray, ranks: np.ndarray) -> None:
        """Note that `ranks` load something of the requests `ids`, one a row."""
        ids, first, last = (
            np.concatenate(pair)
            for pair in ((self._ids, ids), (self._first, ranks), (self._last, ranks))
        )
        self._ids, index = np.unique(ids, return_inverse=True)
        self._first = np.full(len(self._ids), np.iinfo(np.int64).max)
        self._last = np.full(len(self._ids), NONE, np.int64)
        np.minimum.at(self._first, index, first)
        np.maximum.at(self._last, index, last)

    def pop(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the first and the last rank for each of `ids`, rising; -1 for none.

        They are forgotten.
        """
        first, last = np.full(len(ids), NONE), np.full(len(ids), NONE)
        is_over = np.isin(self._ids, ids)
        at = np.searchsorted(ids, self._ids[is_over])
        first[at], last[at] = self._first[is_over], self._last[is_over]
        self._ids, self._first, self._last = (
            column[~is_over] for column in (self._ids, self._first, self._last)
        )
        return first, last
