"""The report of a run as a document."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvdistill.report.jobs_document import closeness_chapter
from kvdistill.report.layers import layer_chapter
from kvdistill.report.probe_tables import probe_chapter
from kvdistill.report.request_tables import request_tables
from kvdistill.report.run import RunReport
from kvdistill.report.tables import (
    TIMES,
    distribution_tables,
    heat_tables,
    rate_tables,
    reuse_tables,
    size_tables,
    wear_table,
)
from kvdistill.report.trace_document import origin
from kvtrace.core.document.document import (
    Cell,
    Chapter,
    Document,
    Highlight,
    ReportColumn,
    ReportTable,
    Sheet,
    Unit,
    columns_of,
    parameters,
    table_of,
)
from kvtrace.core.run.run_file import RunFile
from kvtrace.core.units import format_count

_NO_SUMMARY = "run.json is missing: how the run was made, its device and its notes are unknown"
_TARGET = "name target engine is_direct filesystem device device_model device_firmware scheduler"


def run_document(report: RunReport) -> Document:
    """Return the document of `report`."""
    run = report.run
    verdict = "Run, without its summary" if run is None else run.summary.verdict
    if run is not None and run.status == "partial":
        verdict = f"PARTIAL: {verdict}"
    notes = [_NO_SUMMARY, *report.subject.notes] if run is None else _notes(run)
    wear_note = (
        "At this run's rate, which is not the service's unless it kept pace at speed 1. Padding counts; what the drive "
        "writes inside does not."
    )
    rates = rate_tables(report.over_time, report.bucket_ns, "Counted when operations complete.")
    maps = heat_tables(report.heat, report.bucket_ns)
    wear = wear_table(report.writes_per_day, wear_note)
    facts = parameters("Run", Sheet.PARAMETERS, _known(_facts(report)))
    chapters = [
        Chapter("Throughput", [_figures(report), *rates, *_throughput(run)]),
        Chapter("Latency", [*_latencies(report), *_of(report, "latency"), *_of(report, "response"), *maps]),
        Chapter("Lateness", [_times("Lateness", report.lateness), *_of(report, "lateness")]),
        *([] if report.layers is None else [layer_chapter(report.layers)]),
        *([] if report.probe is None else [probe_chapter(report.probe)]),
        Chapter("Requests, QoS and criteria", request_tables(run)),
        Chapter("Sizes", size_tables(report.sizes, report.size_bins)),
        Chapter("Reuse", reuse_tables(report.reuse)),
        Chapter("Tiers and endurance", [*_hits(run), _device(run), wear]),
        *([] if report.closeness is None else [closeness_chapter(report.closeness)]),
        Chapter("What was run, and on what", [*_targets(run), facts]),
    ]
    return Document(
        name=report.subject.file if run is None else run.trace.file,
        headline=verdict,
        notes=notes,
        warnings=_warnings(report),
        highlights=_highlights(report),
        chapters=chapters,
    )


def _warnings(report: RunReport) -> list[str]:
    run, failed = report.run, sum(row["errors"] or 0 for row in report.figures)
    found = []
    if run is not None and run.status == "partial":
        found.append(f"PARTIAL: {run.reason}")
    if run is not None and "FELL BEHIND" in run.summary.verdict:
        found.append("The replay fell behind the trace: its times are those of an overload")
    if failed:
        found.append(f"{failed:,} operations FAILED")
    if corrupt := sum(row["corrupt"] for row in report.figures):
        found.append(f"{corrupt:,} reads were CORRUPT")
    if not any(row["operations"] for row in report.figures):
        found.append("no operation completed")
    if all(row["engine"] in ("sim", "none") for row in report.figures) and report.figures:
        found.append("nothing moved: all tiers were simulated or skipped")
    return found


def _highlights(report: RunReport) -> list[Highlight]:
    """Return the figures of the slowest tier that moved bytes, which is the one under test."""
    moved = [row for row in report.figures if row["bandwidth_bytes_per_s"] is not None]
    if not moved:
        return []
    name = moved[-1]["tier"]
    found = [
        Highlight(
            f"{row['op']} bandwidth, {name}",
            row["bandwidth_bytes_per_s"],
            Unit.BYTES_PER_S,
            f"{format_count(row['operations'])} operations",
        )
        for row in moved
        if row["tier"] == name
    ]
    # An open loop is judged by the response time: what waited to be submitted waited.
    measure, times = ("response", report.response) if report.response else ("latency", report.latency)
    for row in times:
        if row["tier"] == name and row["op"] != "delete":
            quantile = next((q for q in ("p99_ns", "p95_ns", "p50_ns", "max_ns") if row[q] is not None), "max_ns")
            shown = quantile.removesuffix("_ns").replace("_", ".")
            found.append(
                Highlight(
                    f"{row['op']} {measure} {shown}, {name}", row[quantile], Unit.NS, f"of {format_count(row['count'])}"
                )
            )
    late = [row for row in report.lateness if row["tier"] == name]
    if late:
        found.append(Highlight(f"latest submission, {name}", max(row["max_ns"] for row in late), Unit.NS))
    return found


def _notes(run: RunFile) -> list[str]:
    return run.notes + [f"trace: {note}" for note in run.trace.metadata.notes if note not in run.notes]


def _facts(report: RunReport) -> dict[str, Any]:
    run = report.run
    if run is None:
        return origin(report.subject) | {"source": None}
    return origin(report.subject) | {
        "source": run.trace.file,
        "trace made by": " ".join(run.trace.metadata.argv) or None,
        "status": run.status,
        "started": run.started_utc,
        "wall time": Cell(run.summary.wall_ns, Unit.NS),
        "loop": run.pacing.loop,
        "speed": run.pacing.speed,
        "kept pace": None if run.summary.pace is None else run.summary.pace.kept_pace,
        "queue depth": Cell(run.engine.queue_depth, Unit.COUNT),
        "engine": run.engine.name,
        "largest I/O": Cell(run.engine.io_bytes, Unit.BYTES),
        "whole trace": run.window.is_whole_trace,
        "limit": run.window.limit,
        "warm-up": run.config.get("warmup"),
        "data": None if run.data is None else run.data.note,
        "processor": run.host.get("cpu_model"),
        "processors": Cell(run.host.get("cpus"), Unit.COUNT),
        "kernel": run.host.get("kernel"),
    }


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that are known; an imported run has few."""
    return {
        name: value for name, value in facts.items() if (value.value if isinstance(value, Cell) else value) is not None
    }


def _targets(run: RunFile | None) -> list[ReportTable]:
    if run is None or not run.tiers:
        return []
    columns = [ReportColumn(name, name.removeprefix("is_").replace("_", " ")) for name in _TARGET.split()]
    rows = [[{"name": name, **facts}.get(column.name) for column in columns] for name, facts in run.drives()]
    return [ReportTable("On what it ran", Sheet.PARAMETERS, columns, rows)]


def _hits(run: RunFile | None) -> list[ReportTable]:
    metadata = None if run is None else run.trace.metadata
    tiers = ((metadata.stats or {}) if metadata else {}).get("tiers")
    if metadata is None or not tiers:
        return []
    capacity = {tier.name: tier.capacity_bytes for tier in metadata.tiers}
    rows = [{"hits": None, "hit_ratio": None, **t, "capacity_bytes": capacity.get(t.get("name"))} for t in tiers]
    spec = "text: name = tier; bytes: capacity_bytes = capacity; count: hits; share: hit_ratio = hit ratio"
    note = "Of the simulation that made the whole trace, not of this run."
    return [table_of("Tiers of the trace", Sheet.SUMMARY, spec, rows, note)]


def _figures(report: RunReport) -> ReportTable:
    spec = """
        text: tier, op, engine
        count: rows, operations = completed, errors, corrupt, skipped
        bytes: bytes, io_bytes = with padding
        ns: span_ns = in
        per_s: operations_per_s = ops/s
        bytes_per_s: bandwidth_bytes_per_s = bandwidth
    """
    note = "Rates: completed operations over the time from their first submission to their last completion."
    return table_of("Operations", Sheet.PERFORMANCE, spec, report.figures, note, keys=2)


def _times(title: str, rows: list[dict[str, Any]]) -> ReportTable:
    spec = f"text: tier, op; count: count = operations; ns: {TIMES}, max_ns = max"
    note = {
        "Latency": "Service time: from submission to completion, of all completed operations pooled.",
        "Response time": "From when operations were due to their completion: what waited to be submitted waited.",
        "Lateness": "From when operations were due to their submission; a closed loop has none.",
    }[title]
    return table_of(title, Sheet.PERFORMANCE, spec, rows, note, keys=2)


def _latencies(report: RunReport) -> list[ReportTable]:
    return [
        _times("Latency", report.latency),
        *([_times("Response time", report.response)] if report.response else []),
    ]


def _of(report: RunReport, measure: str) -> list[ReportTable]:
    return distribution_tables([row for row in report.distributions if row["measure"] == measure])


def _throughput(run: RunFile | None) -> list[ReportTable]:
    if run is None or run.mlperf is None:
        return []
    found = run.mlperf.throughput
    facts = {
        "tokens": Cell(found.tokens, Unit.COUNT),
        "storage_io_ns": Cell(found.storage_io_ns, Unit.NS),
        "storage_throughput_tokens_per_s": Cell(found.storage_throughput_tokens_per_s, Unit.PER_S),
        "wall_clock_throughput_tokens_per_s": Cell(found.wall_clock_throughput_tokens_per_s, Unit.PER_S),
    }
    table = parameters("Throughput by MLPerf's names", Sheet.PERFORMANCE, facts)
    note = found.reason or (
        "Tokens that the trace's requests generated, over the latencies of all operations on storage added up, and "
        "over the wall time of the replay, in which no token is generated."
    )
    return [replace(table, note=note)]


def _device(run: RunFile | None) -> ReportTable:
    columns = columns_of("text: tier; bytes: read_bytes = read, written_bytes = written")
    moved = {} if run is None else run.device_io
    rows = [[name, bytes_.read_bytes, bytes_.written_bytes] for name, bytes_ in moved.items()]
    note = "What the device beneath did meanwhile, for all programs."
    return ReportTable("Device", Sheet.DEVICE, columns, rows, (), note)
