"""The report of a run as a document."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvdistill.report.jobs_document import closeness_chapter
from kvdistill.report.layer_tables import layer_chapter
from kvdistill.report.probe_tables import probe_chapter
from kvdistill.report.request_tables import request_tables
from kvdistill.report.tables import (
    OP,
    TIER,
    at,
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
    headed,
    parameters,
    select,
)
from kvtrace.core.units import format_count

if TYPE_CHECKING:
    from kvdistill.report.run import RunReport

_NS = ("mean", "p50", "p95", "p99", "p99_9", "p99_99", "max")
_NO_SUMMARY = "run.json is missing: how the run was made, its device and its notes are unknown"
_TARGET = (
    "name",
    "target",
    "engine",
    "is_direct",
    "filesystem",
    "device",
    "device_model",
    "device_firmware",
    "scheduler",
)


def run_document(report: RunReport) -> Document:
    """Return the document of `report`."""
    run = report.run or {}
    verdict = str(at(run, "summary", "verdict") or "Run, without its summary")
    notes = _notes(run) if report.run is not None else [_NO_SUMMARY, *report.subject.notes]
    wear_note = (
        "At this run's rate, which is not the service's unless it kept pace at speed 1. Padding counts; what the drive "
        "writes inside does not."
    )
    chapters = [
        Chapter(
            "Throughput",
            [
                _figures(report),
                *rate_tables(report.over_time, report.bucket_ns, "Counted when operations complete."),
                *_throughput(run),
            ],
        ),
        Chapter(
            "Latency",
            [
                _times("Latency", report.latency),
                *_of(report, "latency"),
                *heat_tables(report.heat, report.bucket_ns),
            ],
        ),
        Chapter("Lateness", [_times("Lateness", report.lateness), *_of(report, "lateness")]),
        *([] if report.layers is None else [layer_chapter(report.layers)]),
        *([] if report.probe is None else [probe_chapter(report.probe)]),
        Chapter("Requests, QoS and criteria", request_tables(run)),
        Chapter("Sizes", size_tables(report.sizes, report.size_bins)),
        Chapter("Reuse", reuse_tables(report.reuse)),
        Chapter("Tiers and endurance", [*_hits(run), _device(run), wear_table(report.writes_per_day, wear_note)]),
        *([] if report.closeness is None else [closeness_chapter(report.closeness)]),
        Chapter(
            "What was run, and on what",
            [
                *_targets(run),
                parameters("Run", Sheet.PARAMETERS, _known(_facts(report, run))),
            ],
        ),
    ]
    return Document(
        name=at(run, "trace", "file") or report.subject.file,
        headline=verdict,
        notes=notes,
        warnings=_warnings(report),
        highlights=_highlights(report),
        chapters=chapters,
    )


def _warnings(report: RunReport) -> list[str]:
    run, failed = report.run or {}, sum(row["errors"] or 0 for row in report.figures)
    found = []
    if run.get("status") == "partial":
        found.append(f"PARTIAL: {run.get('reason')}")
    if str(at(run, "summary", "verdict") or "").startswith("FELL BEHIND"):
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
    for row in report.latency:
        if row["tier"] == name and row["op"] != "delete":
            quantile = next((q for q in ("p99_ns", "p95_ns", "p50_ns", "max_ns") if row[q] is not None), "max_ns")
            shown = quantile.removesuffix("_ns").replace("_", ".")
            found.append(
                Highlight(
                    f"{row['op']} latency {shown}, {name}", row[quantile], Unit.NS, f"of {format_count(row['count'])}"
                )
            )
    late = [row for row in report.lateness if row["tier"] == name]
    if late:
        found.append(Highlight(f"latest submission, {name}", max(row["max_ns"] for row in late), Unit.NS))
    return found


def _notes(run: dict[str, Any]) -> list[str]:
    notes = [str(note) for note in run.get("notes") or []]
    return notes + [f"trace: {note}" for note in at(run, "trace", "metadata", "notes") or [] if str(note) not in notes]


def _facts(report: RunReport, run: dict[str, Any]) -> dict[str, Any]:
    facts = origin(report.subject) | {"source": at(run, "trace", "file")}
    if report.run is None:
        return facts
    return facts | {
        "trace made by": " ".join(at(run, "trace", "metadata", "argv") or []) or None,
        "status": run.get("status"),
        "started": run.get("started_utc"),
        "wall time": Cell(at(run, "summary", "wall_ns"), Unit.NS),
        "loop": at(run, "pacing", "loop"),
        "speed": at(run, "pacing", "speed"),
        "kept pace": at(run, "summary", "pace", "kept_pace"),
        "queue depth": Cell(at(run, "engine", "queue_depth"), Unit.COUNT),
        "engine": at(run, "engine", "name"),
        "largest I/O": Cell(at(run, "engine", "io_bytes"), Unit.BYTES),
        "whole trace": at(run, "window", "is_whole_trace"),
        "limit": at(run, "window", "limit"),
        "warm-up": at(run, "config", "warmup"),
        "data": at(run, "data", "note"),
        "processor": at(run, "host", "cpu_model"),
        "processors": Cell(at(run, "host", "cpus"), Unit.COUNT),
        "kernel": at(run, "host", "kernel"),
    }


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    """Return those facts that the run says; an imported one says few."""
    return {
        name: value for name, value in facts.items() if (value.value if isinstance(value, Cell) else value) is not None
    }


def _targets(run: dict[str, Any]) -> list[ReportTable]:
    tiers = run.get("tiers")
    if not isinstance(tiers, dict) or not tiers:
        return []
    columns = [ReportColumn(name, name.removeprefix("is_").replace("_", " ")) for name in _TARGET]
    drives = [(name, facts | drive) for name, facts in tiers.items() for drive in facts.get("drives") or [{}]]
    rows = [[{"name": name, **facts}.get(c.name) for c in columns] for name, facts in drives]
    return [ReportTable("On what it ran", Sheet.PARAMETERS, columns, rows)]


def _hits(run: dict[str, Any]) -> list[ReportTable]:
    tiers = at(run, "trace", "metadata", "stats", "tiers")
    if not tiers:
        return []
    capacity = {t["name"]: t.get("capacity_bytes") for t in at(run, "trace", "metadata", "tiers") or []}
    columns = [
        ReportColumn("name", "tier"),
        ReportColumn("capacity_bytes", "capacity", Unit.BYTES),
        ReportColumn("hits", "hits", Unit.COUNT),
        ReportColumn("hit_ratio", "hit ratio", Unit.SHARE),
    ]
    rows = [[t.get("name"), capacity.get(t.get("name")), t.get("hits"), t.get("hit_ratio")] for t in tiers]
    note = "Of the simulation that made the whole trace, not of this run."
    return [ReportTable("Tiers of the trace", Sheet.SUMMARY, columns, rows, (), note)]


def _figures(report: RunReport) -> ReportTable:
    columns = [
        TIER,
        OP,
        ReportColumn("engine", "engine"),
        *(
            ReportColumn(n, h, Unit.COUNT)
            for n, h in (
                ("rows", "rows"),
                ("operations", "completed"),
                ("errors", "errors"),
                ("corrupt", "corrupt"),
                ("skipped", "skipped"),
            )
        ),
        *headed(Unit.BYTES, bytes="bytes", io_bytes="with padding"),
        ReportColumn("span_ns", "in", Unit.NS),
        ReportColumn("operations_per_s", "ops/s", Unit.PER_S),
        ReportColumn("bandwidth_bytes_per_s", "bandwidth", Unit.BYTES_PER_S),
    ]
    note = "Rates: completed operations over the time from their first submission to their last completion."
    return ReportTable("Operations", Sheet.PERFORMANCE, columns, select(report.figures, columns), (), note, 2)


def _times(title: str, rows: list[dict[str, Any]]) -> ReportTable:
    columns = [
        TIER,
        OP,
        ReportColumn("count", "operations", Unit.COUNT),
        *(ReportColumn(f"{name}_ns", name.replace("_", "."), Unit.NS) for name in _NS),
    ]
    note = {
        "Latency": "From submission to completion, of all completed operations pooled.",
        "Lateness": "From when operations were due to their submission; a closed loop has none.",
    }[title]
    return ReportTable(title, Sheet.PERFORMANCE, columns, select(rows, columns), (), note, 2)


def _of(report: RunReport, measure: str) -> list[ReportTable]:
    return distribution_tables([row for row in report.distributions if row["measure"] == measure])


def _throughput(run: dict[str, Any]) -> list[ReportTable]:
    found = at(run, "mlperf", "throughput")
    if not found:
        return []
    rates = ("storage_throughput_tokens_per_s", "wall_clock_throughput_tokens_per_s")
    facts = {
        "tokens": Cell(found.get("tokens"), Unit.COUNT),
        "storage_io_ns": Cell(found.get("storage_io_ns"), Unit.NS),
    }
    facts |= {name: Cell(found.get(name), Unit.PER_S) for name in rates}
    table = parameters("Throughput by MLPerf's names", Sheet.PERFORMANCE, facts)
    note = found.get("reason") or (
        "Tokens that the trace's requests generated, over the latencies of all operations on storage added up, and "
        "over the wall time of the replay, in which no token is generated."
    )
    return [replace(table, note=note)]


def _device(run: dict[str, Any]) -> ReportTable:
    columns = [TIER, *headed(Unit.BYTES, read_bytes="read", written_bytes="written")]
    rows = [
        [name, moved.get("read_bytes"), moved.get("written_bytes")]
        for name, moved in (run.get("device_io") or {}).items()
    ]
    note = "What the device beneath did meanwhile, for all programs."
    return ReportTable("Device", Sheet.DEVICE, columns, rows, (), note)
