"""Print reports and query results for people; the numbers are those of the JSON."""

from __future__ import annotations

import sys
import textwrap
from itertools import groupby
from typing import TYPE_CHECKING, Any

import typer

from kvtrace.core.app import emit_json, emit_table, log
from kvtrace.core.units import format_bytes, format_count, format_duration, format_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from kvdistill.library import NamedQuery
    from kvdistill.report import TraceReport
    from kvdistill.runreport import RunReport
    from kvdistill.subject import Subject

_LIBRARY_WIDTH = 110


def show_report(report: TraceReport | RunReport) -> None:
    """Print a report."""
    from kvdistill.report import TraceReport

    if isinstance(report, TraceReport):
        show_trace(report)
    else:
        show_run(report)


def show_trace(report: TraceReport) -> None:
    """Print the report of a trace."""
    span = report.span_ns
    _show_subject(report.subject, [["time span", format_duration(span)], ["requests", format_count(report.requests)]])
    emit_table(
        "Tiers", ["tier", "capacity", "peak live", "live at end", "hits", "hit ratio"],
        [
            [t["name"], format_bytes(t["capacity_bytes"]), format_bytes(t["peak_live_bytes"]),
             format_bytes(t["end_live_bytes"]), format_count(t["hits"]), _percent(t["hit_ratio"])]
            for t in report.tiers
        ],
    )  # fmt: skip
    emit_table(
        "Operations", ["tier", "op", "phase", "operations", "bytes", "objects"],
        [
            [o["tier"], o["op"], o["phase"], format_count(o["ops"]), format_bytes(o["bytes"]),
             format_count(o["objects"])]
            for o in report.operations
        ],
    )  # fmt: skip
    emit_table(
        "Sizes", ["tier", "op", "distinct", "min", "p50", "p99", "max", "mean", "most common"],
        [
            [s["tier"], s["op"], format_count(s["distinct"]),
             *(format_bytes(s[f"{name}_bytes"]) for name in ("min", "p50", "p99", "max", "mean")),
             ", ".join(f"{format_bytes(t['length_bytes'])} {_percent(t['share'])}" for t in s["top"][:3])]
            for s in report.sizes
        ],
    )  # fmt: skip
    for tier, rows in groupby(report.over_time, key=lambda row: row["tier"]):
        _show_over_time(tier, list(rows), report.bucket_ns)


def _show_over_time(tier: str, rows: list[dict[str, Any]], bucket_ns: int | None) -> None:
    if bucket_ns is None:
        typer.echo(f"Rate of {tier}: all rows share one instant, so no rate is known\n")
        return
    seconds = bucket_ns / 1e9
    emit_table(
        f"Rate of {tier}, in stretches of {format_duration(bucket_ns)}",
        ["from", "reads/s", "writes/s", "deletes/s", "read", "written"],
        [
            [format_duration(r["start_ns"]), *(f"{r[name] / seconds:.4g}" for name in ("reads", "writes", "deletes")),
             format_rate(r["read_bytes"] / seconds), format_rate(r["written_bytes"] / seconds)]
            for r in rows
        ],
    )  # fmt: skip


def show_run(report: RunReport) -> None:
    """Print the report of a run."""
    summary = (report.run or {}).get("summary")
    verdict = (summary if isinstance(summary, dict) else report.run or {}).get("verdict")
    _show_subject(report.subject, [["verdict of kvreplay", verdict]])
    emit_table(
        "Operations: completed ones count",
        ["tier", "op", "engine", "rows", "completed", "errors", "corrupt", "skipped", "bytes moved", "ops/s",
         "bandwidth"],
        [
            [f["tier"], f["op"], f["engine"], *(format_count(f[n]) for n in ("rows", "operations")),
             *(format_count(f[n]) for n in ("errors", "corrupt", "skipped")), format_bytes(f["bytes"]),
             None if f["operations_per_s"] is None else f"{f['operations_per_s']:.4g}",
             format_rate(f["bandwidth_bytes_per_s"])]
            for f in report.figures
        ],
    )  # fmt: skip
    for title, rows in (("Latency", report.latency), ("Lateness", report.lateness)):
        if rows:
            names = ("mean_ns", "p50_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "max_ns")
            emit_table(
                title, ["tier", "op", "count", "mean", "p50", "p95", "p99", "p99.9", "p99.99", "max"],
                [[r["tier"], r["op"], format_count(r["count"]), *(format_duration(r[n]) for n in names)] for r in rows],
            )  # fmt: skip


def _show_subject(subject: Subject, more: list[list[Any]]) -> None:
    emit_table(
        f"{subject.file}: {subject.table}{', simulated' if subject.is_simulated else ''}", ["", ""],
        [
            ["rows", format_count(subject.rows)], *more,
            ["written by", f"{subject.program} {subject.version}"], ["command", " ".join(subject.argv)],
            ["preset", subject.preset], ["seed", subject.seed], ["model", subject.model],
            ["source", (subject.source or {}).get("file")], ["configuration SHA-256", subject.config_sha256 or None],
        ],
    )  # fmt: skip
    for note in subject.notes:
        typer.echo(f"note: {note}")
    if subject.notes:
        typer.echo()


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share * 100:.1f} %"


def show_answer(batches: pa.RecordBatchReader, form: str, max_rows: int) -> None:
    """Print a query's result as `json`, `csv`, or a `table` of at most `max_rows` rows."""
    if form == "json":
        emit_json([row for batch in batches for row in batch.to_pylist()])
    elif form == "csv":
        _write_csv(batches)
    else:
        rows: list[dict[str, Any]] = []
        for batch in batches:
            rows += batch.to_pylist()
            if len(rows) > max_rows:
                break
        emit_table("", batches.schema.names, [list(row.values()) for row in rows[:max_rows]])
        if len(rows) > max_rows:
            log(f"only the first {max_rows} rows; --csv gives all")


def show_library(queries: Sequence[NamedQuery]) -> None:
    """Print what each query of the library answers, and which views it reads."""
    for query in queries:
        typer.echo(f"{query.name} ({', '.join(query.needs)})")
        typer.echo(textwrap.fill(query.answers, _LIBRARY_WIDTH, initial_indent="  ", subsequent_indent="  "))


def _write_csv(batches: pa.RecordBatchReader) -> None:
    import csv

    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(batches.schema.names)
    for batch in batches:
        out.writerows(zip(*(c.to_pylist() for c in batch.columns), strict=True))
