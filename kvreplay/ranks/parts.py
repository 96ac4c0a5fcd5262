"""The files that each rank writes, and the figures of all ranks together.

Ranks write files (`ranks.json`, `rank.json`, and a run each), so that they can be merged after a
crash too. One recorder takes the rows of every rank's ops.parquet in the order of the common clock,
so its counts, rates and percentiles are those of a run of one process. A checkpoint ends when its
last rank ends it, and its bytes are those of all ranks, as MLPerf Storage counts. The storage time
of a request is the union of the times of its operations on all ranks.
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
from kvreplay.result.figures import min_known, sum_fields
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
"""File in the output folder, written before the start."""
RANK_FILE = "rank.json"
"""File in a rank's folder, written at its end."""


class Ordered(msgspec.Struct, frozen=True, kw_only=True):
    """The order to all ranks: the content of ranks.json."""

    count: int
    hosts: list[str]
    """Host names by rank."""
    library: str | None
    argv: list[str]
    config: Config
    trace: str
    """Absolute path of the trace at rank 0."""
    output: str
    """The output folder as given to rank 0."""
    is_forced: bool = False
    partition: PartitionBy | None = None
    """The key that partitions the trace; null if the trace itself decides."""


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a rank at its end: the content of rank.json."""

    rank: int
    host: str
    cpus: int | None = None
    partition: PartitionNote | None = None
    is_whole: bool = True
    """Whether the ranks together were to replay the whole trace."""
    is_idle: bool = False
    """Whether the rank has no rows to replay."""
    error: str | None = None
    """The error of this rank after all ranks had begun."""
    clock_offset_ns: int | None = None
    clock_error_ns: int | None = None
    clock_drift_ns: int | None = None
    start_ns: int | None = None
    """The common start, by rank 0's clock."""
    begun_late_ns: int | None = None
    stood_still_ns: int | None = None
    orphaned_ns: int | None = None
    """The end of its MPI process, by rank 0's clock; null if that lived on."""


@dataclass(frozen=True, slots=True)
class RankRun:
    """The run of one rank, and its report."""

    rank: int
    host: str
    folder: Path
    run: RunFile | None
    """None if the rank left no run, or had nothing to replay."""
    report: RankReport
    """Empty if the rank died."""
    has_ended: bool
    trouble: str | None = None
    """The error in reading its files, if there was one."""
    late_ns: int = 0
    """Time from the first rank's start to its own."""

    @property
    def status(self) -> str:
        """The status in its run.json; idle if it had no rows, lost if it left no run or died."""
        if self.run is None:
            return "idle" if self.report.is_idle else "lost"
        # The run recovered from a dead rank is partial, but the rank itself reported nothing.
        return self.run.status if self.has_ended else "lost"

    @property
    def reason(self) -> str | None:
        """The reason why it is not complete, as far as that is known."""
        return self.trouble or self.report.error or (None if self.run is None else self.run.reason)

    @property
    def figures(self) -> list[Figures]:
        """The figures of its run."""
        return [] if self.run is None else self.run.summary.figures

    @property
    def bytes(self) -> int:
        """Bytes that it read and wrote, on tiers that move data."""
        return sum(f.bytes or 0 for f in self.figures if f.op != "delete" and not f.is_simulated)

    @property
    def operations(self) -> int:
        """The number of completed operations."""
        return 0 if self.run is None else self.run.summary.operations or 0

    @property
    def first_submission_ns(self) -> int | None:
        """The first submission after the rank's start; None if it is unknown."""
        batches = (
            []
            if self.run is None
            else open_table(self.folder / OPS_FILE, OPS).batches(("submitted_ns",))
        )
        firsts = (pc.min(batch.column("submitted_ns")).as_py() for batch in batches)
        # A batch holds enough rows that rows of later batches are submitted later.
        return next((first for first in firsts if first is not None), None)

    @property
    def ops(self) -> OpsFile:
        """The table of its operations; figures leave out its warm-up."""
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
    """Times count from the first rank's start."""
    requests: RequestFigures | None
    """None if no rank recorded its requests."""
    is_exact: bool
    """Whether percentiles are exact; if not, they come from histograms."""


def record_ranks(
    rank_runs: Sequence[RankRun], tiers: Sequence[str], criteria: Criteria
) -> RankedRun:
    """Record the operations of all ranks, on the trace's `tiers`, and their requests.

    TraceError if a rank's table is damaged.
    """
    present = [rank_run for rank_run in rank_runs if rank_run.run is not None]
    is_open = any(
        rank_run.run.pacing.loop == "open" for rank_run in present if rank_run.run is not None
    )
    counts = np.zeros(len(tiers) * OPS_A_PLACE, np.int64)
    for figures in (figures for rank_run in present for figures in rank_run.figures):
        kind = tiers.index(figures.tier) * OPS_A_PLACE + OPS_NAMES.index(figures.op)
        counts[kind] += figures.operations or 0
    known_tiers = [_tier_of(present, tier) for tier in tiers]
    recorder = table_recorder(known_tiers, counts, is_open_loop=is_open)
    requests = _RankRequests(present, recorder.moves, criteria, is_open_loop=is_open)
    tables = [rank_run.ops for rank_run in present]
    for rows, ranks, min_later_request in read_in_time(tables, is_open_loop=is_open):
        planned = rows.where(rows.engine != NO_ENGINE)
        recorder.add(planned.rows, planned.is_counted, asked_bytes=planned.asked_bytes)
        requests.take(rows, planned, ranks, min_later_request)
    recorder.end()
    return RankedRun(
        recorder, requests.figures(), is_exact=bool((exact_limits(counts) == counts).all())
    )


def _tier_of(rank_runs: Sequence[RankRun], tier: str) -> TableTier | None:
    """Return the recorder's description of a tier over all ranks; None if none of them used it."""
    figures = [f for rank_run in rank_runs for f in rank_run.figures if f.tier == tier]
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
    rank_runs: Sequence[RankRun], recorder: OperationRecorder[TableTier]
) -> list[Figures]:
    """Return the figures of each tier and kind of operation, over all ranks.

    Rows of `ops` do not have the bytes that deletes freed, nor those of a simulated tier. So bytes
    are the sum over the ranks' own figures.
    """
    by_kind: dict[tuple[str, str], list[Figures]] = {}
    for figures in (figures for rank_run in rank_runs for figures in rank_run.figures):
        by_kind.setdefault((figures.tier, figures.op), []).append(figures)
    merged = []
    for figures in recorder.figures():
        sums = sum_fields(by_kind.get((figures.tier, figures.op), []), "bytes")
        span_ns = figures.span_ns if figures.latency.count else None
        rate = None if figures.op == Op.DELETE else per_second(sums["bytes"] or 0, span_ns)
        merged.append(msgspec.structs.replace(figures, **sums, bandwidth_bytes_per_s=rate))
    return merged


def merge_pace(runs: Sequence[RunFile], recorder: OperationRecorder[TableTier]) -> Pace | None:
    """Return the merged pace of all ranks; None in a closed loop."""
    paces = [
        (pace, run.summary.operations or 0)
        for run in runs
        if (pace := run.summary.pace) is not None
    ]
    if not paces:
        return None
    sent = [(pace, pace.lateness.count) for pace, _ in paces]
    delivery = recorder.delivery(range(len(recorder.kinds)))
    slowest = max(
        (pace for pace, _ in paces), key=lambda pace: (not pace.kept_pace, pace.end_late_ns or 0)
    )
    names = {name for pace, _ in paces for name in pace.causes}
    # A rank's shares of response times are weighted by the sum of its response times.
    weights = [
        (pace, (pace.response.mean_ns or 0) * pace.response.count if pace.response else 0)
        for pace, _ in paces
    ]
    return Pace(
        kept_pace=all(pace.kept_pace for pace, _ in paces),
        late_fraction=weighted([(pace.late_fraction, count) for pace, count in sent]) or 0,
        late_by_itself_fraction=weighted(
            [(pace.late_by_itself_fraction, count) for pace, count in sent]
        )
        or 0,
        lateness=recorder.distribution(LATENESS),
        response=recorder.distribution(RESPONSE),
        offered_per_s=delivery.offered_per_s,
        delivered_per_s=delivery.delivered_per_s,
        end_late_ns=slowest.end_late_ns,
        cause=slowest.cause,
        causes={
            name: weighted([(pace.causes.get(name, 0), w) for pace, w in weights]) or 0
            for name in sorted(names)
        },
        held_share=mean([pace.held_share for pace, _ in paces]),
        on_time_fraction=weighted([(pace.on_time_fraction, count) for pace, count in paces]),
        unhindered_share=weighted([(pace.unhindered_share, weight) for pace, weight in weights]),
    )


def weighted(pairs: Sequence[tuple[float | None, float]]) -> float | None:
    """Return the weighted mean of pairs of a value and a weight.

    None if a value with a weight is unknown.
    """
    total_weight = sum(weight for _, weight in pairs)
    weighted_sum = total(
        [None if value is None else value * weight for value, weight in pairs if weight]
    )
    return None if weighted_sum is None else weighted_sum / total_weight


def merge_checkpoints(
    rank_runs: Sequence[RankRun], ranked: RankedRun, tiers: Sequence[str], wall_ns: int | None
) -> CheckpointFigures | None:
    """Return the checkpoints of all ranks.

    None if no rank saved or restored one. `tiers` are the trace's names.
    """
    # The ranks' shares of each checkpoint, by its kind and its request or trace time.
    shares: dict[tuple[object, ...], list[Checkpoint]] = {}
    present = [(rank_run, rank_run.run) for rank_run in rank_runs if rank_run.run is not None]
    for rank_run, run in present:
        for share in [] if run.checkpoints is None else run.checkpoints.each:
            # Without a request, rows of one trace time are one checkpoint.
            key = (share.request_id,) if share.request_id is not None else ("at", share.ts_ns)
            times = {
                name: getattr(share, name)
                for name in ("scheduled_ns", "submitted_ns", "completed_ns")
            }
            common_times = {
                name: None if time_ns is None else time_ns + rank_run.late_ns
                for name, time_ns in times.items()
            }
            shares.setdefault((share.kind, *key), []).append(
                msgspec.structs.replace(share, **common_times)
            )
    if not shares:
        return None
    merged = [joined(of_ranks) for of_ranks in shares.values()]
    merged.sort(key=lambda c: (min_known([c.scheduled_ns, c.submitted_ns]) or 0, c.ts_ns or 0))
    end_ns = max(rank_run.late_ns + (run.summary.wall_ns or 0) for rank_run, run in present)
    spans = spans_of(merged, end_ns)
    timed = {
        figures.tier
        for rank_run, _ in present
        for figures in rank_run.figures
        if figures.latency.count
    }
    names = [tier if tier in timed else None for tier in tiers]
    limit = ranked.recorder.total("good") if ranked.is_exact else 0
    files, is_open = [rank_run.ops for rank_run, _ in present], ranked.recorder.is_open_loop
    beside = times_beside(files, spans, names, limit, is_open=is_open)
    return figures_of(merged, spans, wall_ns, beside)


class _RankRequests:
    """The requests of all ranks; the operations of a request may lie on several ranks.

    A request's TTFT is valid only if one rank performs all its loads. A rank that performs none of
    them models TTFT as if these tokens had been computed.
    """

    def __init__(
        self,
        rank_runs: Sequence[RankRun],
        moves: np.ndarray,
        criteria: Criteria,
        *,
        is_open_loop: bool,
    ) -> None:
        """Merge the requests of all ranks.

        `moves` is true for each tier on which data moves.
        """
        recorded = [
            run.requests
            for rank_run in rank_runs
            if (run := rank_run.run) is not None and run.requests is not None
        ]
        self._reason = recorded[0].first_token_reason if recorded else None
        self._is_open_loop, self._has_requests = is_open_loop, bool(recorded)
        limit = sum(figures.requests for figures in recorded)
        self._times = RequestTimes(criteria.targets_ns, limit=limit)
        self._open = OpenRequests(moves, IS_LOAD, is_open_loop=is_open_loop)
        self._served = [_Served(rank_run.folder / SERVED_FILE) for rank_run in rank_runs]
        self._loaders = _Loaders()

    def take(self, rows: OpsRows, planned: OpsRows, ranks: Any, min_later_request: int) -> None:
        """Record rows in the order of time; `planned` are those that were replayed.

        `ranks` is the rank of each row. No later row belongs to a request with an id below
        `min_later_request`.
        """
        columns = {
            "request_id": np.ascontiguousarray(rows.rows["request"]),
            "length_bytes": np.ascontiguousarray(rows.rows["length_bytes"]),
            "phase": np.ascontiguousarray(rows.rows["phase"]),
            "op": np.ascontiguousarray(rows.rows["op"]),
        }
        is_load = (columns["op"] == READ) & IS_LOAD[columns["phase"]]
        self._loaders.add(columns["request_id"][is_load], ranks[is_load])
        self._open.begin()
        position, first_row = 0, int(rows.rows["trace_row"][0]) if len(ranks) else 0
        while position < len(ranks):
            position = self._open.take(
                position, first_row, columns, planned.rows, planned.is_counted
            )
            if position < len(ranks):
                self._open.make_room()
        self._end_requests(min_later_request)

    def _end_requests(self, below: int) -> None:
        """Record the times of the requests with ids below `below`, which have ended."""
        finished = self._open.pop(below)
        if not len(finished):
            return
        qos, first_token = np.full(len(finished), -1, np.int8), np.full(len(finished), NOT_DONE)
        first_loader, last_loader = self._loaders.pop(finished["id"])
        for rank, served in enumerate(self._served):
            rows = served.up_to(below)
            index = np.searchsorted(finished["id"], rows["request_id"])
            is_here = (index < len(finished)) & (
                finished["id"][np.minimum(index, len(finished) - 1)] == rows["request_id"]
            )
            index, rows = index[is_here], {name: column[is_here] for name, column in rows.items()}
            qos[index] = np.maximum(qos[index], rows["qos"])
            is_valid = (first_loader[index] == NONE) | (
                (first_loader[index] == rank) & (last_loader[index] == rank)
            )
            times = np.where(is_valid, rows["first_token_ns"], NOT_DONE)
            first_token[index] = np.maximum(first_token[index], times)
        is_whole = (finished["planned"] == finished["operations"]) & (finished["operations"] > 0)
        storage = np.where(is_whole, finished["storage_ns"], NOT_DONE)
        counts = finished["is_left_out"] == 0
        response = finished["response_ns"][counts] if self._is_open_loop else None
        self._times.add(storage[counts], response, first_token[counts], qos[counts])

    def figures(self) -> RequestFigures | None:
        """Return the figures of all requests; None if no rank recorded them."""
        if not self._has_requests:
            return None
        return self._times.figures(self._reason, is_open_loop=self._is_open_loop)


class _Served:
    """The requests that one rank served, read forward in the order of their ids."""

    COLUMNS = ("request_id", "first_token_ns", "qos")

    def __init__(self, path: Path) -> None:
        """Read the table `served` at `path`."""
        self._batches = open_table(path, SERVED).batches(self.COLUMNS)
        self._rows = {name: np.zeros(0, np.int64) for name in self.COLUMNS}

    def up_to(self, below: int) -> dict[str, np.ndarray]:
        """Return the columns of the requests with an id below `below`, and drop them here."""
        batches = [self._rows]
        while not len(batches[-1]["request_id"]) or batches[-1]["request_id"][-1] < below:
            batch = next(self._batches, None)
            if batch is None:
                break
            batches.append({name: numbers(batch.column(name)) for name in self.COLUMNS})
        rows = {
            name: np.concatenate([columns[name] for columns in batches]) for name in self.COLUMNS
        }
        count = int(np.searchsorted(rows["request_id"], below))
        self._rows = {name: column[count:] for name, column in rows.items()}
        return {name: column[:count] for name, column in rows.items()}


class _Loaders:
    """The lowest and the highest rank with loads of a request, for requests in progress."""

    def __init__(self) -> None:
        self._ids = np.zeros(0, np.int64)
        self._first = np.zeros(0, np.int64)
        self._last = np.zeros(0, np.int64)

    def add(self, ids: np.ndarray, ranks: np.ndarray) -> None:
        """Note loads: for each row, the request and the rank that performs it."""
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
        """Return the lowest and the highest rank for each of `ids`, and drop them here.

        `ids` ascend. The ranks are -1 for a request without loads.
        """
        first, last = np.full(len(ids), NONE), np.full(len(ids), NONE)
        is_over = np.isin(self._ids, ids)
        index = np.searchsorted(ids, self._ids[is_over])
        first[index], last[index] = self._first[is_over], self._last[is_over]
        self._ids, self._first, self._last = (
            column[~is_over] for column in (self._ids, self._first, self._last)
        )
        return first, last
