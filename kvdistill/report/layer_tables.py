"""The tables of a run's layers, for every form of the report."""

from __future__ import annotations

from kvdistill.report.layers import Layers
from kvdistill.report.tables import OP
from kvtrace.core.document.document import Chapter, ReportColumn, ReportTable, Sheet, Unit, headed, select

_LAYERS = {
    "object": "the operation, as the replay saw it",
    "application": "each call (VFS)",
    "q2d": "each request in the kernel's queue (Q2D)",
    "d2c": "each request at the device (D2C)",
}
_PARTS = {"at_device": "at the device", "queued": "only queued", "above": "above the block layer"}
_TIMES = {
    "mean_ns": "mean",
    "p50_ns": "p50",
    "p95_ns": "p95",
    "p99_ns": "p99",
    "p99_9_ns": "p99.9",
    "p99_99_ns": "p99.99",
}


def layer_chapter(found: Layers) -> Chapter:
    """Return the chapter that joins operations and what the probes saw beneath."""
    return Chapter("Where the time went", [_said(found), *_inside(found), _times(found), _moved(found)])


def _said(found: Layers) -> ReportTable:
    return ReportTable(
        "Findings", Sheet.DEVICE, [ReportColumn("finding", "finding")], [[line] for line in found.findings]
    )


def _inside(found: Layers) -> list[ReportTable]:
    if not found.inside:
        return []
    columns = [
        OP,
        ReportColumn("operations", "operations", Unit.COUNT),
        ReportColumn("latency_ns", "mean latency", Unit.NS),
        *(
            column
            for part, heading in _PARTS.items()
            for column in (
                ReportColumn(f"{part}_ns", heading, Unit.NS),
                ReportColumn(f"{part}_share", "share", Unit.SHARE),
            )
        ),
        ReportColumn("in_flight_mean", "in flight", Unit.NUMBER),
    ]
    note = (
        "The mean latency of an operation, cut by what the block layer held meanwhile: any request of its direction at "
        "the device; none there, but some queued; or none at all. Exact with one operation in flight; with more, "
        "requests of the others count, too. Warm-up included."
    )
    return [ReportTable("Parts of the latency", Sheet.DEVICE, columns, select(found.inside, columns), (), note)]


def _times(found: Layers) -> ReportTable:
    columns = [
        OP,
        ReportColumn("layer", "layer"),
        ReportColumn("count", "count", Unit.COUNT),
        *(ReportColumn(name, heading, Unit.NS) for name, heading in _TIMES.items()),
    ]
    rows = [row | {"layer": _LAYERS[row["layer"]]} for row in found.times]
    note = "An operation takes one call or more, a call one request or more: rows do not add up. Warm-up included."
    return ReportTable(
        "Operations beside the layers in them", Sheet.DEVICE, columns, select(rows, columns), (), note, 2
    )


def _moved(found: Layers) -> ReportTable:
    columns = [
        OP,
        ReportColumn("operations", "operations", Unit.COUNT),
        *headed(
            Unit.BYTES,
            object_bytes="of objects",
            io_bytes="with padding",
            call_bytes="by calls",
            device_bytes="at the device",
        ),
        ReportColumn("amplification", "amplification", Unit.NUMBER),
        ReportColumn("requests", "requests", Unit.COUNT),
        ReportColumn("requests_per_operation", "requests each", Unit.NUMBER),
    ]
    note = "Amplification: bytes at the device for each byte of the objects, metadata and readahead included."
    return ReportTable("Read and write amplification", Sheet.DEVICE, columns, select(found.moved, columns), (), note)
