"""The tables of a run's layers, for every form of the report."""

from __future__ import annotations

from kvdistill.report.layers import Layers
from kvdistill.report.tables import TIMES
from kvtrace.core.document.document import Chapter, ReportTable, Sheet, table_of

_LAYERS = {
    "object": "the operation, as the replay saw it",
    "application": "each call (VFS)",
    "q2d": "each request in the kernel's queue (Q2D)",
    "requeued": "of it, from each requeue to the next issue",
    "d2c": "each request at the device (D2C)",
}
_PARTS = {"at_device": "at the device", "queued": "only queued", "above": "above the block layer"}


def layer_chapter(found: Layers) -> Chapter:
    """Return the chapter that joins operations and what the probes saw beneath."""
    return Chapter("Where the time went", [_said(found), *_inside(found), _times(found), _moved(found)])


def _said(found: Layers) -> ReportTable:
    return table_of("Findings", Sheet.DEVICE, "text: finding", [{"finding": line} for line in found.findings])


def _inside(found: Layers) -> list[ReportTable]:
    if not found.inside:
        return []
    parts = "; ".join(f"ns: {part}_ns = {heading}; share: {part}_share = share" for part, heading in _PARTS.items())
    spec = f"text: op; count: operations; ns: latency_ns = mean latency; {parts}; number: in_flight_mean = in flight"
    note = (
        "The mean latency of an operation, cut by what the block layer held meanwhile: any request of its direction at "
        "the device; none there, but some queued; or none at all. Exact with one operation in flight; with more, "
        "requests of the others count, too. Warm-up included."
    )
    return [table_of("Parts of the latency", Sheet.DEVICE, spec, found.inside, note)]


def _times(found: Layers) -> ReportTable:
    rows = [row | {"layer": _LAYERS[row["layer"]]} for row in found.times]
    spec = f"text: op, layer; count: count; ns: {TIMES}"
    note = "An operation takes one call or more, a call one request or more: rows do not add up. Warm-up included."
    return table_of("Operations beside the layers in them", Sheet.DEVICE, spec, rows, note, keys=2)


def _moved(found: Layers) -> ReportTable:
    spec = """
        text: op
        count: operations
        bytes: object_bytes = of objects, io_bytes = with padding, call_bytes = by calls, device_bytes = at the device
        number: amplification
        count: requests
        number: requests_per_operation = requests each
    """
    note = "Amplification: bytes at the device for each byte of the objects, metadata and readahead included."
    return table_of("Read and write amplification", Sheet.DEVICE, spec, found.moved, note)
