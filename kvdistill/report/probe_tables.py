"""The tables and charts of what the block-layer probes found."""

from __future__ import annotations

from itertools import groupby

from kvdistill.report.probe import ProbeReport
from kvdistill.report.tables import TIMES, by, shaded
from kvtrace.core.document.document import (
    Cell,
    Chapter,
    Chart,
    ChartShape,
    Document,
    ReportTable,
    Series,
    Sheet,
    Unit,
    columns_of,
    parameters,
    table_of,
)
from kvtrace.core.units import format_bytes, format_duration

_LAYERS = {
    "application": "calls of the application",
    "q2d": "queued in the kernel (Q2D)",
    "requeued": "from requeue to next issue (in Q2D)",
    "d2c": "in driver and device (D2C)",
}


def probe_document(report: ProbeReport) -> Document:
    """Return the document of a measurement of the probes alone."""
    return Document(
        name=report.name,
        headline=report.answer or "no block request was completed",
        chapters=[Chapter("What was measured", [_facts(report)]), probe_chapter(report)],
    )


def probe_chapter(report: ProbeReport) -> Chapter:
    """Return the chapter of a run or of a measurement of its own."""
    told = [*_sizes(report), *_in_flight(report), *_calls(report), *_heat(report)]
    return Chapter("Block layer", [*_counts(report), _times(report), *_distributions(report), *told])


def _facts(report: ProbeReport) -> ReportTable:
    wanted = {name: ", ".join(map(str, v)) if isinstance(v, list) else v for name, v in report.filter.items()}
    facts = {"duration": Cell(report.duration_ns, Unit.NS), "command": " ".join(report.argv) or None}
    kept = {name: value for name, value in wanted.items() if name != "duration_ns" and value not in (None, "")}
    return parameters("Whose requests", Sheet.PARAMETERS, facts | kept | {"kvreplay": report.version})


def _counts(report: ProbeReport) -> list[ReportTable]:
    done = """
        text: op
        count: issued, completed, errors
        bytes: issued_bytes = bytes issued, completed_bytes = bytes completed
        count: requeues
    """
    given = """
        text: op
        count: bios = I/Os given, bios_merged = I/Os merged, splits, requests_merged = requests merged,
            lost_events = events lost, lost_requests = requests lost, ends_not_seen = ends not seen
    """
    done_note = "A request is what the block layer hands to a disk. Requeues: issues that a busy driver gave back."
    given_note = (
        "I/Os are what the filesystem or program gave. Splits: I/Os longer than the disk takes. Lost: not followed to "
        "their end."
    )
    return [
        table_of("Block requests", Sheet.DEVICE, done, report.directions, done_note),
        table_of("Merges, splits and losses", Sheet.DEVICE, given, report.directions, given_note),
    ]


def _times(report: ProbeReport) -> ReportTable:
    rows = [dict(row, layer=_LAYERS[row["layer"]]) for row in report.layers]
    spec = f"text: layer, op; count: count; ns: {TIMES}, longest_below_ns = longest below"
    note = "Percentiles by nearest rank, within 0.8 %; - with too few."
    return table_of("Time in each layer", Sheet.DEVICE, spec, rows, note, keys=2)


def _distributions(report: ProbeReport) -> list[ReportTable]:
    tables = []
    spec = "text: op; ns: low_ns = from; count: count"
    for layer, group in groupby(report.latency_bins, key=lambda row: row["layer"]):
        rows = [row for row in group if row["count"]]
        if not rows:
            continue
        series = [
            Series(op, [float(max(r["low_ns"], 1)) for r in part], [float(r["count"]) for r in part])
            for op, part in by(rows, "op")
        ]
        title = f"Time {_LAYERS[layer]}" if layer != "application" else f"Time of {_LAYERS[layer]}"
        chart = Chart(title, ChartShape.BARS, Unit.NS, Unit.COUNT, series)
        note = "Each row holds the times from its first up to, but not including, twice that."
        tables.append(table_of(title, Sheet.HISTOGRAMS, spec, rows, note, keys=2, charts=(chart,)))
    return tables


def _sizes(report: ProbeReport) -> list[ReportTable]:
    if not report.sizes:
        return []
    spec = "text: op; io_bytes: bytes = size; count: count = requests"
    series = [_powers_of_two(op, [(r["bytes"], r["count"]) for r in part]) for op, part in by(report.sizes, "op")]
    chart = Chart("Sizes of block requests", ChartShape.BARS, Unit.IO_BYTES, Unit.COUNT, series)
    note = "The chart adds sizes up from each power of two to the next; the table has each size exactly."
    return [table_of(chart.title, Sheet.HISTOGRAMS, spec, report.sizes, note, keys=2, charts=(chart,))]


def _powers_of_two(label: str, counted: list[tuple[int, int]]) -> Series:
    bins: dict[int, int] = {}
    for value, count in counted:
        low = 1 << max(value.bit_length() - 1, 0)
        bins[low] = bins.get(low, 0) + count
    return Series(label, [float(low) for low in bins], [float(n) for n in bins.values()])


def _in_flight(report: ProbeReport) -> list[ReportTable]:
    if not report.in_flight:
        return []
    spec = "text: op; count: in_flight = in flight, count = requests"
    series = [
        Series(op, [float(r["in_flight"]) for r in part], [float(r["count"]) for r in part])
        for op, part in by(report.in_flight, "op")
    ]
    chart = Chart("In flight at dispatch", ChartShape.LOLLIPOPS, Unit.COUNT, Unit.COUNT, series)
    note = "How many requests the disk had in flight when one was issued, itself included."
    return [table_of(chart.title, Sheet.HISTOGRAMS, spec, report.in_flight, note, keys=2, charts=(chart,))]


def _calls(report: ProbeReport) -> list[ReportTable]:
    if not report.calls:
        return []
    spec = """
        text: kind, call
        count: count = calls, errors
        bytes: bytes
        count: direct = O_DIRECT, without_io = without I/O
        bytes: without_io_bytes = bytes without I/O
    """
    note = "Without I/O: calls that queued none themselves; their data was in the page cache, or went there."
    names = [column.name for column in columns_of(spec)]
    rows = [dict.fromkeys(names) | row for row in report.calls]
    return [table_of("System calls", Sheet.DEVICE, spec, rows, note, keys=2)]


def _heat(report: ProbeReport) -> list[ReportTable]:
    tables = []
    spec = "ns: start_ns = from; bytes: low_bytes = disk from; count: requests; bytes: bytes"
    end = float(max((row["start_ns"] for row in report.heat), default=0) + (report.bucket_ns or 0))
    for (device, op), group in groupby(report.heat, key=lambda row: (row["device"], row["op"])):
        rows = list(group)
        chart = Chart(
            f"Where {op}s go on {device}",
            ChartShape.GRID,
            Unit.NS,
            Unit.BYTES,
            [shaded(op, rows, "start_ns", "low_bytes", "requests")],
            float(report.bucket_ns or 0),
            float(report.zone_bytes or 0),
            end,
        )
        most = max(row["requests"] for row in rows)
        note = (
            f"The strongest colour is {most:,} requests in a cell, which spans {format_duration(report.bucket_ns)} "
            f"and {format_bytes(report.zone_bytes)} of the disk."
        )
        title = f"Disk over time: {device} {op}"
        tables.append(table_of(title, Sheet.HISTOGRAMS, spec, rows, note, keys=2, charts=(chart,)))
    return tables
