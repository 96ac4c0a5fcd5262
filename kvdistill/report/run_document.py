"""The report of a run as a document."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from kvdistill.report.jobs_document import closeness_chapter
from kvdistill.report.layers import layer_chapter
from kvdistill.report.probe_tables import probe_chapter
from kvdistill.report.request_tables import request_tables
from kvdistill.report.run import RunReport
from kvdistill.report.subject import hit_ratio
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
from kvtrace.core.document.chapters import checkpoint_chapter, checkpoint_sentence, ranks_tables
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
from kvtrace.core.run.figures import Serving
from kvtrace.core.run.run_file import RanksNote, RunFile
from kvtrace.core.units import format_count, format_duration

_MAIN, _MOST = 4, 6
"""Chapters, of those that every run has, that stand open; and the figures before them."""
_IN_FLIGHT = "An operation's bytes are spread over the time in which it was in flight; it counts when it completes."
_WEAR = (
    "At this run's rate, which is not the service's unless it kept pace at speed 1. Padding counts; what the drive "
    "writes inside does not."
)
_NO_SUMMARY = "run.json is missing: how the run was made, its device and its notes are unknown"
_TARGET = "name target engine is_direct filesystem device device_model device_firmware scheduler"


def run_document(report: RunReport) -> Document:
    """Return the document of `report`: what was found, on what, six figures, what to doubt; details last and folded."""
    run = report.run
    verdict = "Run, without its summary" if run is None else run.summary.verdict
    saved = None if run is None else run.checkpoints
    if saved is not None:
        verdict = f"{checkpoint_sentence(saved)}; {verdict}"
    if run is not None and run.status == "partial":
        verdict = f"PARTIAL: {verdict}"
    notes = [_NO_SUMMARY, *report.subject.notes] if run is None else _notes(run)
    is_open = bool(report.response)
    maps = heat_tables(report.heat, report.bucket_ns, "Response time" if is_open else "Latency")
    is_main = [not table.title.endswith("delete") for table in maps]
    rates = rate_tables(report.over_time, report.bucket_ns, _IN_FLIGHT)
    latency, response = _of(report, "latency"), _of(report, "response")
    times = [*_latencies(report), *(response if is_open else latency)]
    waits = [_times("Lateness", report.lateness), *_of(report, "lateness")] if report.lateness else []
    ranks = None if run is None or not isinstance(run.ranks, RanksNote) else run.ranks
    chapters = [
        *([] if ranks is None else [Chapter("Ranks", ranks_tables(ranks))]),
        *([] if saved is None else [checkpoint_chapter(saved)]),
        Chapter("Tiers", [_figures(report), *_hits(run), *rates]),
        Chapter("Latency", [*times, *(table for table, is_in in zip(maps, is_main, strict=True) if is_in)]),
        Chapter("Requests, QoS and criteria", [*request_tables(run), *_throughput(run)]),
        Chapter("Wear", [wear_table(report.writes_per_day, _WEAR), _device(run)]),
        *([] if report.layers is None else [layer_chapter(report.layers)]),
        *([] if report.closeness is None else [closeness_chapter(report.closeness)]),
        *([] if report.probe is None else [replace(probe_chapter(report.probe), is_folded=True)]),
        Chapter("Service time and lateness" if is_open else "Lateness", [*(latency if is_open else []), *waits]),
        Chapter("Deletes over time", [table for table, is_in in zip(maps, is_main, strict=True) if not is_in]),
        Chapter("Sizes", size_tables(report.sizes, report.size_bins)),
        Chapter("Reuse", reuse_tables(report.reuse)),
        Chapter(
            "What was run, and on what", [*_targets(run), parameters("Run", Sheet.PARAMETERS, _known(_facts(report)))]
        ),
    ]
    more = sum(extra is not None for extra in (ranks, saved, report.layers, report.closeness))
    main = {chapter.title for chapter in chapters[: _MAIN + more]}
    return Document(
        name=report.subject.file if run is None else run.trace.file,
        headline=verdict,
        subject=_subject(run),
        notes=notes,
        warnings=_warnings(report),
        highlights=_highlights(report),
        chapters=[replace(chapter, is_folded=chapter.title not in main) for chapter in chapters],
    )


def _subject(run: RunFile | None) -> list[str]:
    """Return a line for each drive that the run was on, and one for what was replayed."""
    if run is None:
        return []
    lines = []
    for name, facts in run.drives():
        where = [facts.get("target") or facts.get("engine"), facts.get("filesystem"), facts.get("device")]
        where += [facts.get("device_model"), facts.get("device_firmware"), facts.get("engine")]
        told = ", ".join(str(part) for part in dict.fromkeys(where) if part)
        lines.append(f"{name}: {told}{' (simulated)' if facts.get('is_simulated') else ''}")
    loop = {"open": "open loop, operations due at the trace's times", "closed": "closed loop, as fast as it goes"}
    at = f" at speed {run.pacing.speed:g}" if run.pacing.loop == "open" and run.pacing.speed else ""
    paced = loop.get(run.pacing.loop or "", "")
    made = [run.trace.file, f"{paced}{at}", format_duration(run.summary.wall_ns) if run.summary.wall_ns else ""]
    return [*lines, ", ".join(part for part in made if part)]


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
    is_served = run is not None and isinstance(run.serving, Serving)
    if not any(row["operations"] for row in report.figures) and not is_served:
        found.append("no operation completed")
    if all(row["engine"] in ("sim", "none") for row in report.figures) and report.figures:
        found.append("nothing moved: all tiers were simulated or skipped")
    return found


def _highlights(report: RunReport) -> list[Highlight]:
    """Return the figures that matter of the slowest tier that moved bytes, which is the one under test."""
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
    found += [
        _tail(f"{row['op']} {measure}", f", {name}", row, "")
        for row in times
        if row["tier"] == name and row["op"] != "delete"
    ]
    requests = None if report.run is None else report.run.requests
    if requests is not None and requests.first_token is not None and requests.first_token.count:
        found.append(
            _tail("time to first token", "", msgspec.structs.asdict(requests.first_token), "requests, modelled")
        )
    share = None if report.run is None else hit_ratio(report.run.trace.metadata)
    if share is not None:
        found.append(Highlight("hit ratio, all tiers", share, Unit.SHARE, "of the trace's lookups, simulated"))
    for row in report.writes_per_day:
        if row["tier"] == name and row["years_of_life"] is not None:
            found.append(Highlight(f"drive life, {name}", row["years_of_life"], Unit.YEARS, "at this rate, see Wear"))
    late = [row for row in report.lateness if row["tier"] == name]
    if late:
        found.append(Highlight(f"latest submission, {name}", max(row["max_ns"] for row in late), Unit.NS))
    return found[:_MOST]


def _tail(what: str, where: str, row: dict[str, Any], of: str) -> Highlight:
    """Return the highest of the percentiles to p99 that there are enough for."""
    name = next((q for q in ("p99_ns", "p95_ns", "p50_ns", "max_ns") if row[q] is not None), "max_ns")
    shown = name.removesuffix("_ns")
    return Highlight(f"{what} {shown}{where}", row[name], Unit.NS, f"of {format_count(row['count'])} {of}".strip())


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
        "largest I/O": Cell(run.engine.io_bytes, Unit.IO_BYTES),
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
    total = hit_ratio(metadata)
    if total is not None:
        hits = sum(row["hits"] or 0 for row in rows)
        rows.append({"name": "in total", "capacity_bytes": None, "hits": hits, "hit_ratio": total})
    spec = "text: name = tier; bytes: capacity_bytes = capacity; count: hits; share: hit_ratio = hit ratio"
    note = "Shares of all lookups, of the simulation that made the whole trace, not of this run."
    return [table_of("Hits by tier", Sheet.SUMMARY, spec, rows, note)]


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
