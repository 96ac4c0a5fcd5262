"""What each rank left of a run, and the sums over all ranks.

Times, figures, pace, checkpoints, requests.

Ranks leave files (`ranks.json`, `rank.json`, and a run each), so that the whole can be put together
after a crash too. Counts are added up; percentiles are taken over the operations of all ranks,
which `RankOperations` has as one SQL table of their ops.parquet. A checkpoint ends when its last
rank ends it, and its bytes are those of all ranks, as MLPerf Storage counts. The time of a request
is what its operations on all ranks cover together.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.compute as pc

from kvreplay.config.config import Config, Criteria, PartitionBy
from kvreplay.config.limits import Warmup, parse_warmup
from kvreplay.native.rows import NOT_DONE
from kvreplay.plan.pacing import gap_ns
from kvreplay.result.checkpoints import MeasuredOps, figures_of, joined, spans_of, times_beside
from kvreplay.result.counts import LATENESS, RESPONSE, RequestTimes, Times
from kvreplay.result.figures import added, least, rated
from kvtrace.core import duckdb
from kvtrace.core.errors import TraceError
from kvtrace.core.run.figures import (
    Checkpoint,
    CheckpointFigures,
    Distribution,
    Figures,
    Pace,
    RequestFigures,
)
from kvtrace.core.run.run_file import OPS_FILE, SERVED_FILE, PartitionNote, RunFile
from kvtrace.core.schema import OPS, Op, Qos
from kvtrace.core.statistics import mean, total
from kvtrace.core.tables import open_table
from kvtrace.core.units import per_second

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
    partition: PartitionBy | None = None
    """What the trace is partitioned by; null: as the trace suggests."""


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
    """Why what it left cannot be read."""
    late_ns: int = 0
    """How much later it began than the first rank."""

    @property
    def status(self) -> str:
        """As in its run.json; idle if its part was empty, lost if it left nothing or died."""
        if self.run is None:
            return "idle" if self.report.is_idle else "lost"
        # A recovered run is partial, too; who died did not say so.
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
        """What it read and wrote, on tiers where bytes move."""
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
    def measured(self) -> MeasuredOps:
        """Its operations, of which figures leave out the warm-up."""
        warmup = None if self.run is None else parse_warmup(self.run.config.get("warmup"))
        return MeasuredOps(self.folder / OPS_FILE, warmup, self.late_ns)


MEMORY_LIMIT = "1GB"
"""Of a query; what needs more is put aside on disk."""
EXACT_OPERATIONS = 10_000_000
"""Up to so many are kept one by one; 32 bytes each."""
_BATCH_ROWS = 1 << 17
_TIMES = ("latency", "latency_per_mib", "response", "lateness")
_OPS = """
    CREATE VIEW ops AS
    SELECT rank, tier, op, phase, request_id, engine, bytes,
        scheduled_ns + late_ns AS due_ns,
        submitted_ns + late_ns AS submitted_ns,
        completed_ns + late_ns AS completed_ns,
        outcome = 'ok' AND completed_ns IS NOT NULL AS is_done,
        submitted_ns IS NOT NULL OR scheduled_ns <= wall_ns AS is_due,
        coalesce(row >= warmup_rows, coalesce(scheduled_ns, submitted_ns) >= warmup_ns, true) AS is_measured,
        submitted_ns - scheduled_ns AS lateness,
        CASE WHEN is_done THEN files.completed_ns - files.submitted_ns END AS latency,
        CASE WHEN is_done THEN files.completed_ns - scheduled_ns END AS response,
        trunc(latency * (1048576::DOUBLE / nullif(bytes, 0)))::BIGINT AS latency_per_mib
    FROM files JOIN ranks ON filename = ops_file
"""
_SCHEDULE = """
    SELECT min(due_ns), max(due_ns) - min(due_ns), coalesce(sum(ns * ns), 0) FROM
    (SELECT due_ns, (due_ns - lag(due_ns) OVER (ORDER BY due_ns))::DOUBLE AS ns FROM ops WHERE is_measured AND is_due)
"""
"""The first due time, from there to the last, and the gaps between, squared and added up."""
_PACED = """
    WITH due AS (SELECT * FROM ops WHERE is_measured AND is_due AND {kind}),
    last AS (SELECT * FROM due WHERE is_done ORDER BY completed_ns DESC LIMIT 1),
    quick AS (SELECT min(latency) AS ns, min(latency_per_mib) AS per_mib
        FROM ops SEMI JOIN last USING (tier, op) WHERE is_measured)
    SELECT (SELECT count(*) FROM due), completed_ns,
        least(latency, greatest(ns, per_mib::HUGEINT * bytes // 1048576))::BIGINT FROM quick LEFT JOIN last ON true
"""
_MOST_AT_ONCE = """
    WITH kind AS (SELECT * FROM ops WHERE is_measured AND is_done AND {kind}),
    step AS (SELECT submitted_ns AS at_ns, 1 AS more FROM kind UNION ALL SELECT completed_ns, -1 FROM kind)
    SELECT max(level) FROM (SELECT sum(more) OVER (ORDER BY at_ns, more ROWS UNBOUNDED PRECEDING) AS level FROM step)
"""
"""One that ends as another begins does not overlap it."""


class RankOperations:
    """The operations of all ranks as one table; times count from when the first rank began."""

    def __init__(
        self, db: duckdb.DuckDBPyConnection, parts: Sequence[PartRun], *, is_exact: bool
    ) -> None:
        """Look at those that `parts` left.

        Percentiles are those of all values if `is_exact`, else of a histogram.
        """
        self.is_exact, self._db = is_exact, db
        db.execute(
            "CREATE TABLE ranks (rank BIGINT, ops_file TEXT, served_file TEXT, late_ns BIGINT,"
            " warmup_rows BIGINT, warmup_ns BIGINT, wall_ns BIGINT)"
        )
        left = [part for part in parts if part.run is not None]
        self.is_open_loop = any(
            part.run.pacing.loop == "open" for part in left if part.run is not None
        )
        for part in left:
            files = [str(part.folder / file) for file in (OPS_FILE, SERVED_FILE)]
            warmup = part.measured.warmup or Warmup()
            known = (
                part.rank,
                *files,
                part.late_ns,
                warmup.rows,
                warmup.time_ns,
                part.run and part.run.summary.wall_ns,
            )
            db.execute("INSERT INTO ranks VALUES (?, ?, ?, ?, ?, ?, ?)", known)
        for view, file in (("files", OPS_FILE), ("served", SERVED_FILE)):
            paths = [str(part.folder / file) for part in left]
            db.read_parquet(paths, union_by_name=True, filename=True).create_view(view)
        db.execute(_OPS)
        self.first_due_ns, span_ns, square_gaps = db.sql(_SCHEDULE).fetchall()[0]
        self.schedule_ns = None if span_ns is None else span_ns + gap_ns(square_gaps, span_ns)

    def columns(self, query: str) -> Iterator[list[Any]]:
        """Yield the columns of a query's result, batch by batch, as NumPy arrays of int64, nulls as
        -1.
        """
        for batch in self._db.sql(query).to_arrow_reader(_BATCH_ROWS):
            yield [
                column.fill_null(NOT_DONE).to_numpy().astype(np.int64) for column in batch.columns
            ]

    def distribution(self, what: int, kind: str = "true") -> Distribution:
        """Return that of a time of the operations of a `kind` which the warm-up leaves in."""
        found, time = Times(limit=EXACT_OPERATIONS if self.is_exact else 0), _TIMES[what]
        query = f"SELECT {time} FROM ops WHERE is_measured AND {kind} AND {time} IS NOT NULL"  # noqa: S608 - our words
        for (values,) in self.columns(query):
            found.add(values)
        return found.distribution()

    def took(self, kind: str) -> tuple[int | None, int]:
        """Return how long the operations of a `kind` took together, and the sum of their service
        times.
        """
        times = "max(completed_ns) - min(submitted_ns), coalesce(sum(latency), 0)"
        query = f"SELECT {times} FROM ops WHERE is_measured AND is_done AND {kind}"  # noqa: S608 - our words
        span, service = self._db.sql(query).fetchall()[0]
        return span, int(service)

    def paced(self, kind: str) -> tuple[int, float | None]:
        """Return how many of a `kind` an open loop asked for by the runs' ends, and how long it
        took for them.

        That is the schedule; where they end after it, to the last completion, less what that one
        takes unhindered: as the quickest of its tier and kind. Of a load that was due at once, what
        the last took is most of the time.
        """
        due, ended_ns, usual_ns = self._db.sql(_PACED.format(kind=kind)).fetchall()[0]
        if ended_ns is None:
            return due, None
        return due, max(
            self.schedule_ns, ended_ns - (usual_ns if self.schedule_ns else 0) - self.first_due_ns
        )

    def most_at_once(self, kind: str) -> int | None:
        """Return how many of a `kind` were in flight at once.

        Null where only histograms are kept.
        """
        return (
            int(self._db.sql(_MOST_AT_ONCE.format(kind=kind)).fetchall()[0][0])
            if self.is_exact
            else None
        )


@contextmanager
def operations_of(parts: Sequence[PartRun], output: Path) -> Iterator[RankOperations]:
    """Yield the operations of all ranks.

    What does not fit in memory goes below `output` meanwhile.
    """
    is_exact = sum(f.operations or 0 for part in parts for f in part.figures) <= EXACT_OPERATIONS
    with tempfile.TemporaryDirectory(prefix=".merge-", dir=output) as spill:
        db = duckdb.connect(config={"memory_limit": MEMORY_LIMIT, "temp_directory": spill})
        try:
            yield RankOperations(db, parts, is_exact=is_exact)
        except duckdb.Error as error:
            raise TraceError(
                f"the ranks' operations cannot be read: {error}", path=output
            ) from None
        finally:
            db.close()


def merged_figures(
    parts: Sequence[PartRun], found: RankOperations, tiers: Sequence[str]
) -> list[Figures]:
    """Return the figures of each tier and kind of operation, in the ranks' own order.

    `tiers` are the trace's.
    """
    of: dict[str, dict[str, list[Figures]]] = {}
    for figures in (each for part in parts for each in part.figures):
        of.setdefault(figures.tier, {}).setdefault(figures.op, []).append(figures)
    return [
        rated(
            found,
            f"tier = {tiers.index(tier)} AND op = '{op}'",
            tier,
            op,
            is_timed=any(f.latency.count for f in each),
            engine=each[0].engine if len({f.engine for f in each}) == 1 else "several",
            is_simulated=each[0].is_simulated,
            **added(each, "planned", "operations", "errors", "corrupt", "bytes", "io_bytes"),
        )
        for tier, by_op in of.items()
        for op in Op
        if (each := by_op.get(op))
    ]


def merged_pace(runs: Sequence[RunFile], found: RankOperations) -> Pace | None:
    """Return whether all ranks kept pace; null in a closed loop."""
    known = [
        (pace, run.summary.operations or 0)
        for run in runs
        if (pace := run.summary.pace) is not None
    ]
    if not known:
        return None
    operations = sum(count for _, count in known)
    sent = [(pace, pace.lateness.count) for pace, _ in known]
    due, took_ns = found.paced("true")
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
        lateness=found.distribution(LATENESS),
        response=found.distribution(RESPONSE),
        offered_per_s=per_second(due, found.schedule_ns),
        delivered_per_s=per_second(operations, took_ns),
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


def merged_checkpoints(
    parts: Sequence[PartRun], operations: RankOperations, tiers: Sequence[str], wall_ns: int | None
) -> CheckpointFigures | None:
    """Return the checkpoints of all ranks.

    None if no rank saved or restored one. `tiers` are the trace's names.
    """
    each: dict[tuple[Any, ...], list[Checkpoint]] = {}
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
    limit = EXACT_OPERATIONS if operations.is_exact else 0
    measured = [part.measured for part, _ in known]
    beside = times_beside(measured, spans, names, limit, is_open=operations.is_open_loop)
    return figures_of(whole, spans, wall_ns, beside)


_BEFORE = "ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING"
_REQUESTS = f"""
    WITH moved AS (
        SELECT request_id, submitted_ns, due_ns, completed_ns,
            max(completed_ns) OVER (PARTITION BY request_id ORDER BY submitted_ns {_BEFORE}) AS served_until_ns,
            max(completed_ns) OVER (PARTITION BY request_id ORDER BY due_ns {_BEFORE}) AS answered_until_ns
        FROM ops WHERE engine NOT IN ('none', 'sim') AND is_done
    ),
    covered AS (
        SELECT request_id, sum(greatest(0, completed_ns - greatest(submitted_ns, served_until_ns))) AS storage_ns,
            sum(greatest(0, completed_ns - greatest(due_ns, answered_until_ns))) AS response_ns
        FROM moved GROUP BY request_id
    ),
    touched AS (
        SELECT request_id, min(rank) FILTER (is_load) AS first_loader, max(rank) FILTER (is_load) AS last_loader,
            bool_or(engine <> 'none' AND (NOT is_measured OR phase IN ('save', 'restore'))) AS is_left_out
        FROM (SELECT *, op = 'read' AND phase IN ('load', 'retrieve') AS is_load FROM ops) GROUP BY request_id
    )
    SELECT CASE WHEN sum(unfinished) = 0 THEN any_value(covered.storage_ns) END::BIGINT,
        coalesce(any_value(response_ns), 0)::BIGINT,
        max(first_token_ns) FILTER (first_loader IS NULL OR (first_loader = rank AND last_loader = rank)),
        max(list_position({[str(qos) for qos in Qos]}, qos::VARCHAR)) - 1
    FROM served JOIN ranks ON filename = served_file LEFT JOIN covered USING (request_id)
        LEFT JOIN touched USING (request_id)
    GROUP BY request_id HAVING NOT coalesce(any_value(is_left_out), false)
"""  # noqa: S608 - our words
"""Of each request that figures count.

Storage, response and first-token time, and class. Who loads nothing of a request takes what others
load of it for computed, so that only the rank that loads alone knows the time to the first token.
"""


def merged_requests(
    parts: Sequence[PartRun], found: RankOperations, criteria: Criteria
) -> RequestFigures | None:
    """Return the figures of the requests of all ranks, judged by `criteria`.

    None if no rank kept them.
    """
    counted = [
        part.run.requests
        for part in parts
        if part.run is not None and part.run.requests is not None
    ]
    if not counted:
        return None
    times = RequestTimes(criteria.targets, limit=sum(of.requests for of in counted))
    for storage, response, first_token, qos in found.columns(_REQUESTS):
        times.add(storage, response if found.is_open_loop else None, first_token, qos)
    return times.figures(counted[0].first_token_reason, is_open_loop=found.is_open_loop)
