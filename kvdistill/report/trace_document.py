"""The report of a trace as a document."""

from __future__ import annotations

from typing import Any

from kvdistill.report.report import TraceReport
from kvdistill.report.subject import Subject
from kvdistill.report.tables import rate_tables, reuse_tables, size_tables, wear_table
from kvtrace.core.document.chapters import event_course, event_lines, event_tables, fleet_headline, fleet_tables
from kvtrace.core.document.document import (
    Cell,
    Chapter,
    Document,
    Highlight,
    ReportTable,
    Sheet,
    Unit,
    parameters,
    table_of,
)
from kvtrace.core.units import format_count

_NOT_MEASURED = "not measured: a trace says what is to be done, and holds no times of a device"


def trace_document(report: TraceReport) -> Document:
    """Return the document of `report`."""
    subject = report.subject
    facts = origin(subject) | {
        "time span": Cell(report.span_ns, Unit.NS),
        "requests": Cell(report.requests, Unit.COUNT),
    }
    is_instant = report.span_ns == 0
    notes = [*subject.notes, *(["all rows share one instant, so no rate is known"] if is_instant else [])]
    return Document(
        name=subject.file,
        headline=_headline(report),
        notes=notes,
        highlights=_highlights(report),
        chapters=[
            *([Chapter("Fleet", fleet_tables(report.fleet))] if report.fleet else []),
            *([_events(report.events)] if report.events else []),
            Chapter("Tiers and operations", [_tiers(report), _operations(report)]),
            Chapter("Over time", rate_tables(report.over_time, report.bucket_ns, "By the trace's own clock.")),
            Chapter("Wear", [wear_table(report.writes_per_day, "Writes to flash inside the drive are more.")]),
            Chapter("Sizes", size_tables(report.sizes, report.size_bins)),
            Chapter("Reuse", reuse_tables(report.reuse)),
            Chapter("What this is", [parameters("Origin", Sheet.PARAMETERS, facts)], is_folded=True),
            Chapter(
                "Not in a trace",
                [
                    parameters("QoS", Sheet.QOS, {"latency": _NOT_MEASURED}),
                    parameters("Device", Sheet.DEVICE, {"block layer": _NOT_MEASURED}),
                ],
                is_folded=True,
            ),
        ],
    )


def _events(events: dict[str, Any]) -> Chapter:
    course, *others = event_course(events)
    return Chapter("Events", [course, *event_tables(events), *others], event_lines(events))


def _headline(report: TraceReport) -> str:
    made = "simulated" if report.subject.is_simulated else "of real I/O"
    rows = format_count(report.subject.rows)
    headline = f"Trace, {made}: {rows} operations for {format_count(report.requests)} requests"
    return f"{headline}; {fleet_headline(report.fleet)}" if report.fleet else headline


def _highlights(report: TraceReport) -> list[Highlight]:
    found = [Highlight("time span", report.span_ns, Unit.NS, "of the trace's clock")]
    if report.hit_ratio is not None:
        found.append(Highlight("hit ratio, all tiers", report.hit_ratio, Unit.SHARE, "of all lookups, simulated"))
    last = report.tiers[-1]["hit_ratio"] if report.tiers else None
    if last is not None:
        name = report.tiers[-1]["name"]
        found.append(Highlight(f"hit ratio of {name}", last, Unit.SHARE, "of all lookups, simulated"))
    for row in report.writes_per_day[-1:]:
        name = row["tier"]
        read = sum(o["bytes"] for o in report.operations if (o["tier"], o["op"]) == (name, "read"))
        found += [
            Highlight(f"read from {name}", read, Unit.BYTES),
            Highlight(f"written to {name}", row["written_bytes"], Unit.BYTES),
        ]
        if row["years_of_life"] is not None:
            found.append(Highlight(f"drive life, {name}", row["years_of_life"], Unit.YEARS, "at this rate, see Wear"))
    return found


def origin(subject: Subject) -> dict[str, Any]:
    """Return where a table came from, as names and values."""
    return {
        "file": subject.file,
        "table": subject.table,
        "rows": Cell(subject.rows, Unit.COUNT),
        "written by": f"{subject.program} {subject.version}",
        "command": " ".join(subject.argv),
        "preset": subject.preset,
        "model": subject.model,
        "seed": subject.seed,
        "source": (subject.source or {}).get("file") or (subject.source or {}).get("kind"),
        "simulated": subject.is_simulated,
        "configuration SHA-256": subject.config_sha256 or None,
    }


def _tiers(report: TraceReport) -> ReportTable:
    spec = """
        text: name = tier
        bytes: capacity_bytes = capacity, peak_live_bytes = peak live, end_live_bytes = live at end
        count: hits
        share: hit_ratio = hit ratio
    """
    note = "Hits are those of the simulation that made the trace, over all its lookups."
    if report.fleet:
        note += " Of a tier that nodes have apart, capacity is that of one, and what is live is not told here."
    total = {"name": "in total", **dict.fromkeys(("capacity_bytes", "peak_live_bytes", "end_live_bytes"))}
    total |= {"hits": sum(tier["hits"] or 0 for tier in report.tiers), "hit_ratio": report.hit_ratio}
    rows = [*report.tiers, *([total] if report.hit_ratio is not None else [])]
    return table_of("Tiers", Sheet.SUMMARY, spec, rows, note)


def _operations(report: TraceReport) -> ReportTable:
    spec = "text: tier, op, phase; count: ops = operations; bytes: bytes; count: objects"
    return table_of("Operations", Sheet.PERFORMANCE, spec, report.operations, keys=3)
