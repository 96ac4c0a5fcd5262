"""The report of a trace as a document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvdistill.document import Column, Document, Quantity, Sheet, Table, Unit, select
from kvdistill.figures import OP, TIER, parameters, rate_tables, size_tables, wear_table

if TYPE_CHECKING:
    from kvdistill.report import TraceReport
    from kvdistill.subject import Subject

_NOT_MEASURED = "not measured: a trace says what is to be done, and holds no times of a device"


def trace_document(report: TraceReport) -> Document:
    """Return the document of `report`."""
    subject = report.subject
    kind = "Trace, simulated" if subject.is_simulated else "Trace"
    facts = origin(subject) | {
        "time span": Quantity(report.span_ns, Unit.NS), "requests": Quantity(report.requests, Unit.COUNT),
    }  # fmt: skip
    return Document(
        name=subject.file, headline=kind, notes=subject.notes,
        tables=[
            parameters("What this is", Sheet.PARAMETERS, facts), _tiers(report), _operations(report),
            *rate_tables(report.over_time, report.bucket_ns, "By the trace's own clock."),
            *size_tables(report.sizes, report.size_bins),
            wear_table(report.writes_per_day, "Writes to flash inside the drive are more."),
            parameters("QoS", Sheet.QOS, {"latency": _NOT_MEASURED}),
            parameters("Device", Sheet.DEVICE, {"block layer": _NOT_MEASURED}),
        ],
    )  # fmt: skip


def origin(subject: Subject) -> dict[str, Any]:
    """Return where a table came from, as names and values."""
    return {
        "file": subject.file, "table": subject.table, "rows": Quantity(subject.rows, Unit.COUNT),
        "written by": f"{subject.program} {subject.version}", "command": " ".join(subject.argv),
        "preset": subject.preset, "model": subject.model, "seed": subject.seed,
        "source": (subject.source or {}).get("file") or (subject.source or {}).get("kind"),
        "simulated": subject.is_simulated,
        "configuration SHA-256": subject.config_sha256 or None,
    }  # fmt: skip


def _tiers(report: TraceReport) -> Table:
    columns = [
        Column("name", "tier"), Column("capacity_bytes", "capacity", Unit.BYTES),
        Column("peak_live_bytes", "peak live", Unit.BYTES), Column("end_live_bytes", "live at end", Unit.BYTES),
        Column("hits", "hits", Unit.COUNT), Column("hit_ratio", "hit ratio", Unit.SHARE),
    ]  # fmt: skip
    note = "Hits are those of the simulation that made the trace, over all its lookups."
    return Table("Tiers", Sheet.SUMMARY, columns, select(report.tiers, columns), (), note)


def _operations(report: TraceReport) -> Table:
    columns = [
        TIER, OP, Column("phase", "phase"), Column("ops", "operations", Unit.COUNT),
        Column("bytes", "bytes", Unit.BYTES), Column("objects", "objects", Unit.COUNT),
    ]  # fmt: skip
    return Table("Operations", Sheet.PERFORMANCE, columns, select(report.operations, columns), keys=3)
