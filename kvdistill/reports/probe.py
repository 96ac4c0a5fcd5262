"""The report of kvreplay's block-layer probes, and the breakdown of a run's latency by layer.

The figures are in `probe.json`. The heatmap of the disk and the breakdown need `blocks.parquet`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from kvdistill.queries.database import Row, named, opened, query
from kvdistill.queries.recorded import times_of_view
from kvdistill.reports.tables import (
    Key,
    Report,
    by,
    by_two,
    heat_table,
    histogram,
    lines_by,
    of_rows,
)
from kvtrace.core import duckdb
from kvtrace.core.document.document import (
    TIME_COLUMNS,
    Cell,
    Chapter,
    Chart,
    ChartShape,
    Document,
    ReportColumn,
    Sheet,
    Unit,
    parameters,
    table_of,
)
from kvtrace.core.run.probe_file import (
    LAYERS,
    Application,
    ProbeFile,
    find_probe,
    format_probe_answer,
)
from kvtrace.core.run.run_file import BLOCKS_FILE, OPS_FILE, RunFile, find_run
from kvtrace.core.units import counted, format_bytes, format_duration

TIMES = ("mean_ns", "p50_ns", "p95_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "longest_below_ns")
COUNTS = (
    "queued issued completed errors issued_bytes completed_bytes bios bios_merged splits"
    " requests_merged requeues lost_events lost_requests ends_not_seen"
)
ZONES = 40
_MIB = 1 << 20


class ProbeReport(Report, frozen=True, kw_only=True):
    """The figures of the probes as rows of tables; null where not measured."""

    kind = "probe"
    name: str
    filter: dict[str, object]
    """Processes and disks that were probed, and the duration."""
    duration_ns: int | None
    argv: list[str]
    version: str | None
    answer: str
    """The requests to the device in one line; empty without any."""
    layers: list[Row]
    """Times by layer (application, q2d, requeued, d2c) and kind of operation."""
    latency_bins: list[Row]
    """Histograms of these times in powers of two."""
    directions: list[Row]
    """Counters of the block layer by direction."""
    sizes: list[Row]
    in_flight: list[Row]
    calls: list[Row]
    """Counters of the application's I/O, by system call."""
    bucket_ns: int | None
    zone_bytes: int | None
    heat: list[Row]
    """Requests by time and offset on the disk; empty without their events."""

    def document(self) -> Document:
        """Return the document of a probe result without a run."""
        filters = {
            name: ", ".join(map(str, value)) if isinstance(value, list) else value
            for name, value in self.filter.items()
        }
        facts = {
            "duration": Cell(self.duration_ns, Unit.NS),
            "command": " ".join(self.argv) or None,
        }
        given_filters = {
            name: value
            for name, value in filters.items()
            if name != "duration_ns" and value not in (None, "")
        }
        return Document(
            name=self.name,
            headline=self.answer or "no block request was completed",
            chapters=[
                Chapter(
                    "Measurement",
                    [
                        parameters(
                            "Filter",
                            Sheet.PARAMETERS,
                            facts | given_filters | {"kvreplay": self.version},
                        )
                    ],
                ),
                probe_chapter(self),
            ],
        )

    def compared(self) -> Iterator[tuple[Key, float | None]]:
        """Yield times by layer, and counters of requests."""
        yield from of_rows([row | {"tier": f"layer {row['layer']}"} for row in self.layers], TIMES)
        counts = ("completed", "completed_bytes", "requeues", "splits", "errors")
        yield from of_rows([row | {"tier": "block requests"} for row in self.directions], counts)

    def settings(self) -> dict[str, object]:
        """Return the filter of the measurement."""
        return {"version": self.version, **self.filter}


def probe_report(folder: Path, buckets: int) -> ProbeReport | None:
    """Return the report of probe.json in `folder`; null if there is none.

    TraceError if probe.json is damaged, or not of this version.
    """
    probe = find_probe(folder)
    if probe is None:
        return None
    directions = probe.block.directions
    application = probe.application or Application()
    times = [("application", kind, histogram_) for kind, histogram_ in application.times.items()]
    times += [
        (layer, name, histogram_)
        for layer in LAYERS
        for name, figures in directions.items()
        if (histogram_ := getattr(figures, layer))
    ]
    zone_bytes, bucket_ns, heat = _heat_cells(folder / BLOCKS_FILE, buckets)
    return ProbeReport(
        name=folder.resolve().name,
        filter=probe.config,
        duration_ns=probe.duration_ns,
        argv=probe.argv,
        version=probe.version,
        answer=format_probe_answer(probe),
        layers=[
            {"layer": layer, "op": name, "count": histogram_.count}
            | {time: getattr(histogram_, time) for time in TIMES}
            for layer, name, histogram_ in times
            if histogram_.count
        ],
        latency_bins=[
            {"layer": layer, "op": name, "low_ns": bucket.from_, "count": bucket.count}
            for layer, name, histogram_ in times
            for bucket in histogram_.log2_ns
        ],
        directions=[
            {"op": name} | {counter: getattr(figures, counter) for counter in COUNTS.split()}
            for name, figures in directions.items()
        ],
        sizes=[
            {"op": name, **asdict(size)}
            for name, figures in directions.items()
            for size in figures.block_sizes
        ],
        in_flight=[
            {"op": name, **asdict(depth)}
            for name, figures in directions.items()
            for depth in figures.in_flight_at_dispatch
        ],
        calls=[asdict(call) for call in application.calls],
        bucket_ns=bucket_ns,
        zone_bytes=zone_bytes,
        heat=heat,
    )


def _heat_cells(blocks: Path, buckets: int) -> tuple[int | None, int | None, list[Row]]:
    """Return the height in bytes and width in ns of heatmap cells, and the cells."""
    if not blocks.is_file():
        return None, None, []
    with opened([blocks]) as db:
        span = query(db, "blocks_span")[0]
        if not span["requests"] or span["last_ns"] <= span["first_ns"]:
            return None, None, []
        bucket_ns = (span["last_ns"] - span["first_ns"]) // buckets + 1
        zone_bytes = (
            -(-(span["high_bytes"] - span["low_bytes"] + 1) // ZONES // _MIB) * _MIB or _MIB
        )
        windows = {"first_ns": span["first_ns"], "bucket_ns": bucket_ns, "zone_bytes": zone_bytes}
        return zone_bytes, bucket_ns, query(db, "blocks_heat", **windows)


_LAYER_NAMES = {
    "application": "calls of the application",
    "q2d": "queued in the kernel (Q2D)",
    "requeued": "from requeue to next issue (in Q2D)",
    "d2c": "in driver and device (D2C)",
}


# Long, because it lists all tables.
def probe_chapter(report: ProbeReport) -> Chapter:
    """Return the block-layer chapter of a run, or of a probe result without one."""
    columns = [
        ReportColumn("op"),
        ReportColumn("issued", unit=Unit.COUNT),
        ReportColumn("completed", unit=Unit.COUNT),
        ReportColumn("errors", unit=Unit.COUNT),
        ReportColumn("issued_bytes", "bytes issued", Unit.BYTES),
        ReportColumn("completed_bytes", "bytes completed", Unit.BYTES),
        ReportColumn("requeues", unit=Unit.COUNT),
    ]
    note = (
        "A request is the block layer's unit of I/O to a disk. Requeues: issues that a busy driver"
        " returned."
    )
    tables = [table_of("Block requests", Sheet.DEVICE, columns, report.directions, note)]
    columns = [
        ReportColumn("op"),
        ReportColumn("bios", unit=Unit.COUNT),
        ReportColumn("bios_merged", "bios merged", Unit.COUNT),
        ReportColumn("splits", unit=Unit.COUNT),
        ReportColumn("requests_merged", "requests merged", Unit.COUNT),
        ReportColumn("lost_events", "events lost", Unit.COUNT),
        ReportColumn("lost_requests", "requests lost", Unit.COUNT),
        ReportColumn("ends_not_seen", "ends not seen", Unit.COUNT),
    ]
    note = (
        "Bios are the I/Os of filesystem or program. Splits: bios longer than the disk's limit. Lost:"
        " not followed to completion."
    )
    tables.append(
        table_of("Merges, splits and losses", Sheet.DEVICE, columns, report.directions, note)
    )
    rows = [dict(row, layer=_LAYER_NAMES[row["layer"]]) for row in report.layers]
    columns = [
        ReportColumn("layer"),
        ReportColumn("op"),
        ReportColumn("count", unit=Unit.COUNT),
        *TIME_COLUMNS,
        ReportColumn("longest_below_ns", "max below", Unit.NS),
    ]
    note = "Percentiles by nearest rank, within 0.8 %; - if too few requests."
    tables.append(table_of("Time in each layer", Sheet.DEVICE, columns, rows, note, keys=2))
    columns = [
        ReportColumn("op"),
        ReportColumn("low_ns", "from", Unit.NS),
        ReportColumn("count", unit=Unit.COUNT),
    ]
    note = "Each row counts times from its value up to, but not including, twice that."
    for layer, rows in by([row for row in report.latency_bins if row["count"]], "layer"):
        title = (
            f"Time {_LAYER_NAMES[layer]}"
            if layer != "application"
            else f"Time of {_LAYER_NAMES[layer]}"
        )
        chart = Chart(
            title, ChartShape.BARS, Unit.NS, Unit.COUNT, lines_by(rows, "low_ns", "count")
        )
        tables.append(histogram(title, chart, columns, rows, note))
    if report.sizes:
        columns = [
            ReportColumn("op"),
            ReportColumn("bytes", "size", Unit.IO_BYTES),
            ReportColumn("count", "requests", Unit.COUNT),
        ]
        bins = Counter[tuple[str, int]]()
        for row in report.sizes:
            bins[row["op"], 1 << max(row["bytes"].bit_length() - 1, 0)] += row["count"]
        series = lines_by(
            [{"op": op, "low": low, "count": count} for (op, low), count in bins.items()],
            "low",
            "count",
        )
        chart = Chart("Sizes of block requests", ChartShape.BARS, Unit.IO_BYTES, Unit.COUNT, series)
        note = "The chart groups sizes by powers of two; the table lists each size."
        tables.append(histogram(chart.title, chart, columns, report.sizes, note))
    if report.in_flight:
        columns = [
            ReportColumn("op"),
            ReportColumn("in_flight", "in flight", Unit.COUNT),
            ReportColumn("count", "requests", Unit.COUNT),
        ]
        series = lines_by(report.in_flight, "in_flight", "count")
        chart = Chart("In flight at dispatch", ChartShape.LOLLIPOPS, Unit.COUNT, Unit.COUNT, series)
        note = "Requests in flight on the disk when a request was issued, including itself."
        tables.append(histogram(chart.title, chart, columns, report.in_flight, note))
    if report.calls:
        columns = [
            ReportColumn("kind"),
            ReportColumn("call"),
            ReportColumn("count", "calls", Unit.COUNT),
            ReportColumn("errors", unit=Unit.COUNT),
            ReportColumn("bytes", unit=Unit.BYTES),
            ReportColumn("direct", "O_DIRECT", Unit.COUNT),
            ReportColumn("without_io", "without I/O", Unit.COUNT),
            ReportColumn("without_io_bytes", "bytes without I/O", Unit.BYTES),
        ]
        note = (
            "Without I/O: calls that queued no I/O themselves, because the page cache served them."
        )
        tables.append(table_of("System calls", Sheet.DEVICE, columns, report.calls, note, keys=2))
    columns = [
        ReportColumn("start_ns", "from", Unit.NS),
        ReportColumn("low_bytes", "disk from", Unit.BYTES),
        ReportColumn("requests", unit=Unit.COUNT),
        ReportColumn("bytes", unit=Unit.BYTES),
    ]
    end = float(max((row["start_ns"] for row in report.heat), default=0) + (report.bucket_ns or 0))
    span = f"{format_duration(report.bucket_ns)} and {format_bytes(report.zone_bytes)} of the disk"
    steps = (float(report.bucket_ns or 0), float(report.zone_bytes or 0))
    for (device, op), rows in by_two(report.heat, "device", "op"):
        chart = Chart(
            f"Offsets of {op}s on {device}", ChartShape.GRID, Unit.NS, Unit.BYTES, [], *steps, end
        )
        tables.append(
            heat_table(f"Disk over time: {device} {op}", chart, op, rows, columns, "requests", span)
        )
    return Chapter("Block layer", tables)


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """A run's operations on storage, with the system calls and block requests beneath them.

    Rows are by direction, null where not measured. The warm-up is included, because the probes do
    not distinguish it.
    """

    findings: list[str]
    """Sentences: bytes at the device, and the layer with the largest share of the latency."""
    moved: list[Row]
    """Bytes of objects, of calls and of the device; amplification is device / object bytes."""
    times: list[Row]
    """Times of operations, and by layer: object, application, q2d, requeued, d2c."""
    inside: list[Row]
    """Breakdown of the mean latency, by the state of requests of the same direction.

    Waiting for submission; a request at the device; only queued requests; no request. Empty
    without blocks.parquet.
    """


def layers(run_directory: Path) -> Layers | None:
    """Return the layers of the run in `run_directory`; null unless it was probed.

    TraceError if probe.json is damaged, or not of this version.
    """
    probe, ops = find_probe(run_directory), run_directory / OPS_FILE
    if probe is None or not ops.is_file():
        return None
    blocks, application = run_directory / BLOCKS_FILE, probe.application
    files = [ops, blocks] if blocks.is_file() else [ops]
    with opened(files) as db:
        objects = query(db, "run_layers_objects")
        db.execute(f"CREATE VIEW times AS {named('run_layers_times')}")
        times_of = {row["op"]: row for row in times_of_view(db).summaries.get("object", [])}
        inside = [_latency_parts(db, row) for row in objects] if blocks.is_file() else []
    byte_rows, time_rows = [], []
    for row in objects:
        op, operations, object_bytes = row["op"], row["operations"], row["object_bytes"]
        device = probe.block.directions.get(op)
        device_bytes, requests = (0, 0) if device is None else (device.issued_bytes, device.issued)
        calls = (
            None if application is None else [call for call in application.calls if call.kind == op]
        )
        byte_rows.append(
            {
                "op": op,
                "operations": operations,
                "object_bytes": object_bytes,
                "io_bytes": row["io_bytes"],
                "call_bytes": None if calls is None else sum(call.bytes or 0 for call in calls),
                "device_bytes": device_bytes,
                "amplification": (
                    None
                    if device_bytes is None or not object_bytes
                    else device_bytes / object_bytes
                ),
                "requests": requests,
                "requests_per_operation": None if requests is None else requests / operations,
            }
        )
        layer = "object response" if row["is_response"] else "object"
        time_rows.append(
            {"op": op, "layer": layer, "count": operations}
            | {name: times_of.get(op, {}).get(name) for name in TIMES[:-1]}
        )
        layer_times = {"application": None if application is None else application.times.get(op)}
        layer_times |= {layer: getattr(device, layer, None) for layer in LAYERS}
        for layer, times in layer_times.items():
            if times is not None and times.count:
                row_of_times = {name: getattr(times, name) for name in TIMES[:-1]}
                time_rows.append({"op": op, "layer": layer, "count": times.count} | row_of_times)
    sentences = findings(byte_rows, inside, probe, find_run(run_directory))
    return Layers(findings=sentences, moved=byte_rows, times=time_rows, inside=inside)


def _latency_parts(db: duckdb.DuckDBPyConnection, row: Row) -> dict[str, object]:
    """Return the parts of the mean latency of the operations of `row`; they add up to it."""
    op, operations = row["op"], row["operations"]
    at_device_ns, in_kernel_ns = (
        query(db, "run_layers_within", op=op, is_queued=is_queued)[0]["within_ns"]
        for is_queued in (False, True)
    )
    queued_ns = in_kernel_ns - at_device_ns
    waiting_ns = row["waiting_ns"]
    above_ns = row["latency_ns"] - waiting_ns - at_device_ns - queued_ns
    parts = {
        "waiting": waiting_ns,
        "at_device": at_device_ns,
        "queued": queued_ns,
        "above": above_ns,
    }
    span_ns = row["last_ns"] - row["first_ns"]
    return {
        "op": op,
        "operations": operations,
        "latency_ns": row["latency_ns"] / operations,
        "in_flight_mean": (row["latency_ns"] - waiting_ns) / span_ns if span_ns else None,
        **{f"{name}_ns": ns / operations for name, ns in parts.items()},
        **{
            f"{name}_share": ns / row["latency_ns"] if row["latency_ns"] else None
            for name, ns in parts.items()
        },
    }


NEARLY_ALL, NEARLY_NONE = 0.98, 0.001
"""Shares of the objects' bytes above and below which the device transferred all and none."""
DOMINATES = 0.5
_WHERE = {
    "waiting": "before submission (due, but not submitted)",
    "at_device": "at the device (driver, drive)",
    "queued": "queued in the kernel (plug, scheduler)",
    "above": "above the block layer (filesystem, copies, the replay's own waits)",
}
_VERBS = {"read": "reads", "write": "writes"}
_FAULTS = {
    "errors": ("request", "failed at the device"),
    "requeues": ("requeue", "by a busy driver"),
    "splits": ("split", "of I/Os longer than the disk's limit"),
    "lost_events": ("request", "missing from blocks.parquet and from the latency breakdown"),
    "ends_not_seen": (
        "completion",
        "not reported by the kernel and left out of device times",
    ),
}


def findings(
    byte_rows: list[Row], latency_parts: list[Row], probe: ProbeFile, run: RunFile | None
) -> list[str]:
    """Return the findings, one sentence each."""
    is_buffered = run is not None and bool(run.config.get("is_buffered"))
    sentences = [
        _amplification_finding(row, is_buffered=is_buffered)
        for row in byte_rows
        if row["amplification"] is not None
    ]
    calls = (probe.application or Application()).calls
    read_calls = [call for call in calls if call.kind == "read" and call.without_io is not None]
    total, calls_without_io = (
        sum(call.count or 0 for call in read_calls),
        sum(call.without_io or 0 for call in read_calls),
    )
    if calls_without_io:
        sentences.append(
            f"{calls_without_io:,} of {total:,} blocking read calls queued no I/O themselves"
        )
    sentences += [_latency_finding(row) for row in latency_parts if row["latency_ns"]]
    directions = probe.block.directions.values()
    faults = {name: sum(getattr(counts, name) or 0 for counts in directions) for name in _FAULTS}
    return sentences + [
        f"{counted(count, _FAULTS[name][0])} {_FAULTS[name][1]}"
        for name, count in faults.items()
        if count
    ]


def _amplification_finding(row: Row, *, is_buffered: bool) -> str:
    name, ratio = _VERBS[row["op"]], row["amplification"]
    objects, device = format_bytes(row["object_bytes"]), format_bytes(row["device_bytes"])
    write_back_note = (
        ", or written back later by the kernel's own threads, which the probes do not see"
    )
    if ratio < NEARLY_NONE:
        reason = (
            "in the page cache" + write_back_note
            if row["op"] == "write"
            else "from the page cache or unwritten extents"
        )
        return (
            f"{name}: served WITHOUT touching the device: {objects} of objects, {device} at the"
            f" device ({reason})"
        )
    if ratio < NEARLY_ALL:
        write_back = write_back_note if row["op"] == "write" and is_buffered else ""
        return (
            f"{name}: {1 - ratio:.1%} of the objects' bytes did not touch the device: {objects} of"
            f" objects, {device} at the device (page cache or unwritten extents{write_back})"
        )
    padding = row["io_bytes"] / row["object_bytes"]
    padding_text = f"; padding to whole blocks alone is {padding:.3f}" if padding > 1 else ""
    return (
        f"{name}: the device transferred {ratio:.3f} bytes for each byte of the objects ({device}"
        f" for {objects}){padding_text}"
    )


def _latency_finding(row: Row) -> str:
    shares = {largest: row[f"{largest}_share"] for largest in _WHERE}
    largest = max(shares, key=lambda name: shares[name])
    shares_text = ", ".join(
        f"{shares[name]:.1%} {words}" for name, words in _WHERE.items() if shares[name]
    )
    verdict = (
        "dominates" if shares[largest] > DOMINATES else "is the largest part, but none dominates"
    )
    in_flight = row["in_flight_mean"]
    in_flight_text = (
        f"; {in_flight:.1f} operations were in flight, and each one's parts count requests of all"
        if in_flight is not None and in_flight > 1.1  # noqa: PLR2004 - more than one at a time
        else ""
    )
    time = format_duration(row["latency_ns"])
    return f"{_VERBS[row['op']]}: time {_WHERE[largest]} {verdict}: of {time} mean latency, {shares_text}{in_flight_text}"


_SHOWN_LAYERS = _LAYER_NAMES | {
    "object": "the operation, as the replay saw it",
    "object response": "the operation, from its due time",
}
_PARTS = {part: words.partition(" (")[0] for part, words in _WHERE.items()}


def layer_chapter(layers_: Layers) -> Chapter:
    """Return the chapter of operations and the layers beneath them."""
    rows = [row | {"layer": _SHOWN_LAYERS[row["layer"]]} for row in layers_.times]
    columns = [
        ReportColumn("op"),
        ReportColumn("layer"),
        ReportColumn("count", unit=Unit.COUNT),
        *TIME_COLUMNS,
    ]
    note = (
        "An operation takes one or more calls, a call one or more requests, so rows do not add up."
        " Warm-up included."
    )
    tables = [
        table_of(
            "Findings",
            Sheet.DEVICE,
            [
                ReportColumn("finding"),
            ],
            [{"finding": line} for line in layers_.findings],
        ),
        table_of("Operations and the layers beneath", Sheet.DEVICE, columns, rows, note, keys=2),
    ]
    if layers_.inside:
        columns = [
            ReportColumn("op"),
            ReportColumn("operations", unit=Unit.COUNT),
            ReportColumn("latency_ns", "mean time", Unit.NS),
        ]
        for name, heading in _PARTS.items():
            columns.append(ReportColumn(f"{name}_ns", heading, Unit.NS))
            columns.append(ReportColumn(f"{name}_share", "share", Unit.SHARE))
        columns.append(ReportColumn("in_flight_mean", "in flight", Unit.NUMBER))
        note = (
            "The mean time of an operation, cut by what the block layer held meanwhile: any request"
            " of its direction at the device; none there, but some queued; or none at all. In an"
            " open loop it begins when the operation was due, and what passed before its submission"
            " is a part of its own. Exact with one operation in flight; with more, requests of the"
            " others count, too. Warm-up included."
        )
        tables.insert(1, table_of("Latency breakdown", Sheet.DEVICE, columns, layers_.inside, note))
    columns = [
        ReportColumn("op"),
        ReportColumn("operations", unit=Unit.COUNT),
        ReportColumn("object_bytes", "of objects", Unit.BYTES),
        ReportColumn("io_bytes", "with padding", Unit.BYTES),
        ReportColumn("call_bytes", "by calls", Unit.BYTES),
        ReportColumn("device_bytes", "at the device", Unit.BYTES),
        ReportColumn("amplification", unit=Unit.NUMBER),
        ReportColumn("requests", unit=Unit.COUNT),
        ReportColumn("requests_per_operation", "requests each", Unit.NUMBER),
    ]
    note = (
        "Amplification: bytes at the device for each byte of the objects, metadata and readahead"
        " included."
    )
    tables.append(
        table_of("Read and write amplification", Sheet.DEVICE, columns, layers_.moved, note)
    )
    return Chapter("Where the time went", tables)
