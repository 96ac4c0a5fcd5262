"""The ranks of a run as tables: each of them, how they began, and MLPerf's rule beside what was pooled."""

from __future__ import annotations

from kvtrace.core.document.document import Cell, ReportTable, Sheet, Unit, parameters, table_of
from kvtrace.core.run.ranks import RanksNote

_RANKS = """
    text: rank, host, nodes, status
    count: cpus = CPUs, operations, errors
    bytes: bytes
    ns: wall_ns = time
    bytes_per_s: bandwidth_bytes_per_s = bandwidth
    ns: read_p99_ns = read p99, write_p99_ns = write p99, begun_late_ns = began late, clock_error_ns = clock error,
        stood_still_ns = stood still
"""


def ranks_tables(found: RanksNote) -> list[ReportTable]:
    """Return the tables of a run's ranks."""
    rows = [{name: getattr(rank, name) for name in rank.__struct_fields__} for rank in found.ranks]
    for row in rows:
        row["nodes"] = None if row["nodes"] is None else ", ".join(map(str, row["nodes"]))
        row["rank"] = f"{row['rank']}{_mark(found, row['rank'])}"
    begun, together = found.start, found.combined
    start = {
        "ranks": Cell(found.count, Unit.COUNT),
        "MPI library": found.library,
        "dealt by": None if found.deal is None else found.deal.by,
        "apart at the start": Cell(begun.skew_ns, Unit.NS),
        "first submissions apart": Cell(begun.first_submission_skew_ns, Unit.NS),
        "error of the common clock, at most": Cell(begun.clock_error_ns, Unit.NS),
        "percentiles of": "all operations" if found.is_exact else "histograms added up",
    }
    mlperf = {
        "read bandwidth, added up": Cell(together.read_bandwidth_bytes_per_s, Unit.BYTES_PER_S),
        "write bandwidth, added up": Cell(together.write_bandwidth_bytes_per_s, Unit.BYTES_PER_S),
        "read p95, the worst rank's": Cell(together.read_p95_ns, Unit.NS),
        "write p95, the worst rank's": Cell(together.write_p95_ns, Unit.NS),
    }
    columns = _RANKS if any(row["nodes"] for row in rows) else _RANKS.replace(" nodes,", "")
    return [
        table_of("Ranks", Sheet.PERFORMANCE, columns, rows),
        parameters("How the ranks began", Sheet.PERFORMANCE, start),
        parameters("By MLPerf's rule for several clients, not pooled", Sheet.PERFORMANCE, mlperf),
    ]


def _mark(found: RanksNote, rank: int) -> str:
    return " (last)" if found.straggler is not None and found.straggler.rank == rank else ""
