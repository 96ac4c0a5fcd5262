"""The tables and charts of what the block-layer probes found."""

from __future__ import annotations

from itertools import groupby

from kvdistill.report.probe import ProbeReport
from kvdistill.report.tables import OP, by, shaded
from kvtrace.core.document.document import (
    Cell,
    Chapter,
    Chart,
    ChartShape,
    Document,
    ReportColumn,
    ReportTable,
    Series,
    Sheet,
    Unit,
    headed,
    parameters,
    select,
)
from kvtrace.core.units import format_bytes, format_duration

_LAYERS = {
    "application": "calls of the application",
    "q2d": "queued in the kernel (Q2D)",
    "d2c": "in driver and device (D2C)",
}
_NAMES = {
    "mean_ns": "mean",
    "p50_ns": "p50",
    "p95_ns": "p95",
    "p99_ns": "p99",
    "p99_9_ns": "p99.9",
    "p99_99_ns": "p99.99",
    "longest_below_ns": "longest below",
}


def probe_document(report: ProbeReport) -> Document:
    """Return the document of a measurement of the probes alone."""
    return Document(
        name=report.name,
        headline="Block requests as the kernel saw them",
        notes=[],
        chapters=[Chapter("What was measured", [_facts(report)]), probe_chapter(report)],
    )


def probe_chapter(report: ProbeReport) -> Chapter:
    """Return the chapter of a run or of a measurement of its own."""
    return Chapter(
        "Block layer",
        [
            *_counts(report),
            _times(report),
            *_distributions(report),
            *_sizes(report),
            *_in_flight(report),
            *_calls(report),
            *_heat(report),
        ],
    )


def _facts(report: ProbeReport) -> ReportTable:
    wanted = {name: ", ".join(map(str, v)) if isinstance(v, list) else v for name, v in report.filter.items()}
    facts = {"duration": Cell(report.duration_ns, Unit.NS), "command": " ".join(report.argv) or None}
    kept = {name: value for name, value in wanted.items() if name != "duration_ns" and value not in (None, "")}
    return parameters("Whose requests", Sheet.PARAMETERS, facts | kept | {"kvreplay": report.version})


def _counts(report: ProbeReport) -> list[ReportTable]:
    def table(title: str, names: dict[str, str], note: str) -> ReportTable:
        columns = [
            OP,
            *(
                ReportColumn(name, heading, Unit.BYTES if name.endswith("_bytes") else Unit.COUNT)
                for name, heading in names.items()
            ),
        ]
        return ReportTable(title, Sheet.DEVICE, columns, select(report.directions, columns), (), note)

    done = {
        "issued": "issued",
        "completed": "completed",
        "errors": "errors",
        "issued_bytes": "bytes issued",
        "completed_bytes": "bytes completed",
        "requeues": "requeues",
    }
    given = {
        "bios": "I/Os given",
        "bios_merged": "I/Os merged",
        "splits": "splits",
        "requests_merged": "requests merged",
        "lost_events": "events lost",
        "lost_requests": "requests lost",
        "ends_not_seen": "ends not seen",
    }
    return [
        table(
            "Block requests",
            done,
            "A request is what the block layer hands to a disk. Requeues: issues that a busy driver gave back.",
        ),
        table(
            "Merges, splits and losses",
            given,
            "I/Os are what the filesystem or program gave. Splits: I/Os longer "
            "than the disk takes. Lost: not followed to their end.",
        ),
    ]


def _times(report: ProbeReport) -> ReportTable:
    columns = [
        ReportColumn("layer", "layer"),
        OP,
        ReportColumn("count", "count", Unit.COUNT),
        *(ReportColumn(name, heading, Unit.NS) for name, heading in _NAMES.items()),
    ]
    rows = [dict(row, layer=_LAYERS[row["layer"]]) for row in report.layers]
    note = "Percentiles by nearest rank, within 0.8 %; - with too few."
    return ReportTable("Time in each layer", Sheet.DEVICE, columns, select(rows, columns), (), note, 2)


def _distributions(report: ProbeReport) -> list[ReportTable]:
    tables = []
    columns = [OP, ReportColumn("low_ns", "from", Unit.NS), ReportColumn("count", "count", Unit.COUNT)]
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
        tables.append(ReportTable(title, Sheet.HISTOGRAMS, columns, select(rows, columns), (chart,), note, 2))
    return tables


def _sizes(report: ProbeReport) -> list[ReportTable]:
    columns = [OP, ReportColumn("bytes", "size", Unit.BYTES), ReportColumn("count", "requests", Unit.COUNT)]
    series = [_powers_of_two(op, [(r["bytes"], r["count"]) for r in part]) for op, part in by(report.sizes, "op")]
    chart = Chart("Sizes of block requests", ChartShape.BARS, Unit.BYTES, Unit.COUNT, series)
    note = "The chart adds sizes up from each power of two to the next; the table has each size exactly."
    rows = select(report.sizes, columns)
    return [ReportTable("Sizes of block requests", Sheet.HISTOGRAMS, columns, rows, (chart,), note, 2)] if rows else []


def _powers_of_two(label: str, counted: list[tuple[int, int]]) -> Series:
    bins: dict[int, int] = {}
    for value, count in counted:
        low = 1 << max(value.bit_length() - 1, 0)
        bins[low] = bins.get(low, 0) + count
    return Series(label, [float(low) for low in bins], [float(n) for n in bins.values()])


def _in_flight(report: ProbeReport) -> list[ReportTable]:
    if not report.in_flight:
        return []
    columns = [OP, *headed(Unit.COUNT, in_flight="in flight", count="requests")]
    series = [
        Series(op, [float(r["in_flight"]) for r in part], [float(r["count"]) for r in part])
        for op, part in by(report.in_flight, "op")
    ]
    chart = Chart("In flight at dispatch", ChartShape.LOLLIPOPS, Unit.COUNT, Unit.COUNT, series)
    note = "How many requests the disk had in flight when one was issued, itself included."
    return [
        ReportTable(
            "In flight at dispatch", Sheet.HISTOGRAMS, columns, select(report.in_flight, columns), (chart,), note, 2
        )
    ]


def _calls(report: ProbeReport) -> list[ReportTable]:
    if not report.calls:
        return []
    columns = [
        *headed(kind="kind", call="call"),
        *headed(Unit.COUNT, count="calls", errors="errors"),
        ReportColumn("bytes", "bytes", Unit.BYTES),
        ReportColumn("without_io", "without I/O", Unit.COUNT),
        ReportColumn("without_io_bytes", "bytes without I/O", Unit.BYTES),
    ]
    note = "Without I/O: calls that queued none themselves; their data was in the page cache, or went there."
    rows = [[row.get(column.name) for column in columns] for row in report.calls]
    return [ReportTable("System calls", Sheet.DEVICE, columns, rows, (), note, 2)]


def _heat(report: ProbeReport) -> list[ReportTable]:
    tables = []
    columns = [
        ReportColumn("start_ns", "from", Unit.NS),
        ReportColumn("low_bytes", "disk from", Unit.BYTES),
        ReportColumn("requests", "requests", Unit.COUNT),
        ReportColumn("bytes", "bytes", Unit.BYTES),
    ]
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
        tables.append(ReportTable(title, Sheet.HISTOGRAMS, columns, select(rows, columns), (chart,), note, 2))
    return tables
