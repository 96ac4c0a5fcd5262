"""Tables of a run that several programs show: its checkpoints, and its ranks."""

from __future__ import annotations

from typing import Final

import msgspec

from kvtrace.core.document.document import (
    Cell,
    ReportColumn,
    ReportTable,
    Sheet,
    Unit,
    parameters,
    table_of,
)
from kvtrace.core.run.figures import Beside, CheckpointFigures
from kvtrace.core.run.run_file import RanksNote
from kvtrace.core.units import format_count, format_duration, format_rate

_MAX_CHECKPOINTS_SHOWN = 100
"""Checkpoints that are listed one by one."""


def checkpoint_sentence(checkpoints: CheckpointFigures) -> str:
    """Return the main result of a run's checkpoints in one sentence.

    It says how they slowed other operations, or, without other operations, how long they took.
    """
    comparisons = []
    for beside in checkpoints.beside:
        comparison = beside.compared()
        if comparison is not None:
            comparisons.append((beside, comparison))
    if not comparisons:
        return _checkpoint_durations(checkpoints)

    def weight(candidate: tuple[Beside, tuple[str, int, int]]) -> tuple[int, bool, int]:
        # A higher percentile is preferred; then reads, for which users wait; then the slowest tier.
        beside, (percentile, during_ns, _) = candidate
        return ("p50", "p95", "p99").index(percentile), beside.op == "read", during_ns

    beside, (percentile, during_ns, without_ns) = max(comparisons, key=weight)
    ratio = f": {during_ns / without_ns:.3g} times as long" if without_ns else ""
    counts = (
        f"{format_count(beside.during.count)} and {format_count(beside.without.count)} operations"
    )
    return (
        f"during checkpoints {percentile} {beside.measure} of {beside.tier} {beside.op}s was"
        f" {format_duration(during_ns)}, otherwise {format_duration(without_ns)}{ratio} ({counts})"
    )


def _checkpoint_durations(checkpoints: CheckpointFigures) -> str:
    """Return the number, mean time and bandwidth of saves and of restores."""
    clauses = []
    for kind in checkpoints.kinds:
        if not kind.count:
            continue
        is_plural = kind.count > 1
        subject = f"{format_count(kind.count)} {kind.kind}{'s' if is_plural else ''}"
        duration = format_duration(kind.duration.mean_ns)
        if is_plural:
            duration += " each on average"
        clauses.append(f"{subject} in {duration}, at {format_rate(kind.bandwidth_bytes_per_s)}")
    return "; ".join(clauses) or "no checkpoint was saved or restored whole"


def checkpoint_tables(checkpoints: CheckpointFigures) -> list[ReportTable]:
    """Return the tables of other operations beside checkpoints, of both kinds, and of each one."""
    tables = []
    if checkpoints.beside:
        tables.append(_other_operations_table(checkpoints))
    tables.append(_checkpoint_kinds_table(checkpoints))
    tables.append(_single_checkpoints_table(checkpoints))
    return tables


def _other_operations_table(checkpoints: CheckpointFigures) -> ReportTable:
    """Return the times of other operations during checkpoints and without them."""
    columns = [ReportColumn("tier"), ReportColumn("op"), ReportColumn("measure")]
    for period in ("during", "without"):
        columns.append(ReportColumn(f"{period}_count", f"operations {period}", Unit.COUNT))
        columns += [
            ReportColumn(f"{period}_{figure}_ns", f"{figure} {period}", Unit.NS)
            for figure in ("p50", "p95", "p99", "max")
        ]
    rows = []
    for beside in checkpoints.beside:
        row = msgspec.structs.asdict(beside)
        for period in ("during", "without"):
            distribution = msgspec.structs.asdict(getattr(beside, period))
            row |= {f"{period}_{field}": value for field, value in distribution.items()}
        rows.append(row)
    note = f"During: {checkpoints.definitions['during']}."
    return table_of("Others beside checkpoints", Sheet.PERFORMANCE, columns, rows, note, keys=2)


def _checkpoint_kinds_table(checkpoints: CheckpointFigures) -> ReportTable:
    """Return a row for all saves, and one for all restores."""
    columns = [
        ReportColumn("kind"),
        ReportColumn("count", "completed", Unit.COUNT),
        ReportColumn("unfinished", unit=Unit.COUNT),
        ReportColumn("bytes", unit=Unit.BYTES),
        ReportColumn("bandwidth_bytes_per_s", "throughput", Unit.BYTES_PER_S),
        ReportColumn("mean_ns", "mean time", Unit.NS),
        ReportColumn("p50_ns", "p50", Unit.NS),
        ReportColumn("max_ns", "max", Unit.NS),
        ReportColumn("stall_ns", "stall in all", Unit.NS),
    ]
    rows = [
        msgspec.structs.asdict(kind) | msgspec.structs.asdict(kind.duration)
        for kind in checkpoints.kinds
    ]
    note = f"Stall: {checkpoints.definitions['stall_ns']}."
    if checkpoints.stall_share is not None:
        note += f" All stalls: {100 * checkpoints.stall_share:.3g} % of the run's time."
    return table_of("Saves and restores", Sheet.PERFORMANCE, columns, rows, note)


def _single_checkpoints_table(checkpoints: CheckpointFigures) -> ReportTable:
    """Return a row for each of the first saves and restores."""
    columns = [
        ReportColumn("kind"),
        ReportColumn("request_id", "request", Unit.COUNT),
        ReportColumn("scheduled_ns", "due", Unit.NS),
        ReportColumn("submitted_ns", "began", Unit.NS),
        ReportColumn("duration_ns", "took", Unit.NS),
        ReportColumn("stall_ns", "stall", Unit.NS),
        ReportColumn("bytes", unit=Unit.BYTES),
        ReportColumn("bandwidth_bytes_per_s", "throughput", Unit.BYTES_PER_S),
        ReportColumn("unfinished", unit=Unit.COUNT),
    ]
    rows = checkpoints.each[:_MAX_CHECKPOINTS_SHOWN]
    omitted = len(checkpoints.each) - len(rows)
    note = ""
    if omitted > 0:
        note = f"The first {_MAX_CHECKPOINTS_SHOWN}; {format_count(omitted)} more are in run.json."
    return table_of("Each save and restore", Sheet.PERFORMANCE, columns, rows, note)


_RANK_COLUMNS: Final = [
    ReportColumn("rank"),
    ReportColumn("host"),
    ReportColumn("nodes"),
    ReportColumn("status"),
    ReportColumn("cpus", "CPUs", Unit.COUNT),
    ReportColumn("operations", unit=Unit.COUNT),
    ReportColumn("errors", unit=Unit.COUNT),
    ReportColumn("bytes", unit=Unit.BYTES),
    ReportColumn("wall_ns", "time", Unit.NS),
    ReportColumn("bandwidth_bytes_per_s", "bandwidth", Unit.BYTES_PER_S),
    ReportColumn("read_p99_ns", "read p99", Unit.NS),
    ReportColumn("write_p99_ns", "write p99", Unit.NS),
    ReportColumn("begun_late_ns", "began late", Unit.NS),
    ReportColumn("clock_error_ns", "clock error", Unit.NS),
    ReportColumn("stood_still_ns", "stood still", Unit.NS),
]


def ranks_tables(ranks: RanksNote) -> list[ReportTable]:
    """Return the tables of a run's ranks: a row a rank, their start, and MLPerf's figures."""
    rows = [{name: getattr(rank, name) for name in rank.__struct_fields__} for rank in ranks.ranks]
    for row in rows:
        if row["nodes"] is not None:
            row["nodes"] = ", ".join(map(str, row["nodes"]))
        if ranks.straggler is not None and ranks.straggler.rank == row["rank"]:
            row["rank"] = f"{row['rank']} (last)"
    columns = _RANK_COLUMNS
    if not any(row["nodes"] for row in rows):
        columns = [column for column in columns if column.name != "nodes"]
    start, combined = ranks.start, ranks.combined
    start_facts = {
        "ranks": Cell(ranks.count, Unit.COUNT),
        "MPI library": ranks.library,
        "partitioned by": None if ranks.partition is None else ranks.partition.by,
        "apart at the start": Cell(start.skew_ns, Unit.NS),
        "first submissions apart": Cell(start.first_submission_skew_ns, Unit.NS),
        "error of the common clock, at most": Cell(start.clock_error_ns, Unit.NS),
        "percentiles of": "all operations" if ranks.is_exact else "histograms added up",
    }
    mlperf_figures = {
        "read bandwidth, added up": Cell(combined.read_bandwidth_bytes_per_s, Unit.BYTES_PER_S),
        "write bandwidth, added up": Cell(combined.write_bandwidth_bytes_per_s, Unit.BYTES_PER_S),
        "read p95, the worst rank's": Cell(combined.read_p95_ns, Unit.NS),
        "write p95, the worst rank's": Cell(combined.write_p95_ns, Unit.NS),
    }
    return [
        table_of("Ranks", Sheet.PERFORMANCE, columns, rows),
        parameters("How the ranks began", Sheet.PERFORMANCE, start_facts),
        parameters(
            "By MLPerf's rule for several clients, not merged", Sheet.PERFORMANCE, mlperf_figures
        ),
    ]
