"""What the block-layer probes of `kvreplay` found, and how it relates to a run's operations.

Where their time goes.

`probe.json` has the figures; `blocks.parquet`, if requests were kept, the map of the disk and the
parts of the latency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec.structs import asdict

from kvdistill.queries.database import Row, named, opened, query
from kvdistill.queries.recorded import viewed_times
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
from kvtrace.core.run.probe_file import LAYERS, Application, ProbeFile, find_probe, probe_answer
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
    """What the probes found; rows of tables, null where not measured."""

    kind = "probe"
    name: str
    filter: dict[str, object]
    """Whose requests, on which disks, how long."""
    duration_ns: int | None
    argv: list[str]
    version: str | None
    answer: str
    """What the device was asked for, in one line; empty where nothing was seen."""
    layers: list[Row]
    """Times by layer (application, q2d, requeued, d2c) and kind of operation."""
    latency_bins: list[Row]
    """The same in powers of two."""
    directions: list[Row]
    """What the block layer was asked for, and did, by direction."""
    sizes: list[Row]
    in_flight: list[Row]
    calls: list[Row]
    """What the application asked for, by system call."""
    bucket_ns: int | None
    zone_bytes: int | None
    heat: list[Row]
    """Requests by time and place on the disk; empty without their events."""

    def document(self) -> Document:
        """Return the document of a measurement of the probes alone."""
        wanted = {
            name: ", ".join(map(str, v)) if isinstance(v, list) else v
            for name, v in self.filter.items()
        }
        facts = {
            "duration": Cell(self.duration_ns, Unit.NS),
            "command": " ".join(self.argv) or None,
        }
        kept = {
            name: value
            for name, value in wanted.items()
            if name != "duration_ns" and value not in (None, "")
        }
        return Document(
            name=self.name,
            headline=self.answer or "no block request was completed",
            chapters=[
                Chapter(
                    "What was measured",
                    [
                        parameters(
                            "Whose requests",
                            Sheet.PARAMETERS,
                            facts | kept | {"kvreplay": self.version},
                        )
                    ],
                ),
                probe_chapter(self),
            ],
        )

    def compared(self) -> Iterator[tuple[Key, float | None]]:
        """Yield times by layer, and what was done to requests."""
        yield from of_rows([row | {"tier": f"layer {row['layer']}"} for row in self.layers], TIMES)
        counts = ("completed", "completed_bytes", "requeues", "splits", "errors")
        yield from of_rows([row | {"tier": "block requests"} for row in self.directions], counts)

    def settings(self) -> dict[str, object]:
        """Return whose requests were measured."""
        return {"version": self.version, **self.filter}


def probe_report(folder: Path, buckets: int) -> ProbeReport | None:
    """Return the report of probe.json in `folder`; null if there is none.

    TraceError if probe.json is damaged, or not of this version.
    """
    found = find_probe(folder)
    if found is None:
        return None
    directions = found.block.directions
    application = found.application or Application()
    times = [("application", kind, h) for kind, h in application.times.items()]
    times += [
        (layer, name, h)
        for layer in LAYERS
        for name, d in directions.items()
        if (h := getattr(d, layer))
    ]
    zone_bytes, bucket_ns, heat = _heat_cells(folder / BLOCKS_FILE, buckets)
    return ProbeReport(
        name=folder.resolve().name,
        filter=found.config,
        duration_ns=found.duration_ns,
        argv=found.argv,
        version=found.version,
        answer=probe_answer(found),
        layers=[
            {"layer": layer, "op": name, "count": h.count}
            | {time: getattr(h, time) for time in TIMES}
            for layer, name, h in times
            if h.count
        ],
        latency_bins=[
            {"layer": layer, "op": name, "low_ns": bucket.from_, "count": bucket.count}
            for layer, name, h in times
            for bucket in h.log2_ns
        ],
        directions=[
            {"op": name} | {c: getattr(d, c) for c in COUNTS.split()}
            for name, d in directions.items()
        ],
        sizes=[
            {"op": name, **asdict(size)} for name, d in directions.items() for size in d.block_sizes
        ],
        in_flight=[
            {"op": name, **asdict(deep)}
            for name, d in directions.items()
            for deep in d.in_flight_at_dispatch
        ],
        calls=[asdict(call) for call in application.calls],
        bucket_ns=bucket_ns,
        zone_bytes=zone_bytes,
        heat=heat,
    )


def _heat_cells(blocks: Path, buckets: int) -> tuple[int | None, int | None, list[Row]]:
    """Return the bytes and the ns that a cell of the heat map spans, and the cells."""
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
        stretches = {"first_ns": span["first_ns"], "bucket_ns": bucket_ns, "zone_bytes": zone_bytes}
        return zone_bytes, bucket_ns, query(db, "blocks_heat", **stretches)


_LAYER_NAMES = {
    "application": "calls of the application",
    "q2d": "queued in the kernel (Q2D)",
    "requeued": "from requeue to next issue (in Q2D)",
    "d2c": "in driver and device (D2C)",
}


# Long: a table each.
def probe_chapter(report: ProbeReport) -> Chapter:
    """Return the chapter of a run or of a measurement of its own."""
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
        "A request is what the block layer hands to a disk. Requeues: issues that a busy driver"
        " returned."
    )
    tables = [table_of("Block requests", Sheet.DEVICE, columns, report.directions, note)]
    columns = [
        ReportColumn("op"),
        ReportColumn("bios", "I/Os given", Unit.COUNT),
        ReportColumn("bios_merged", "I/Os merged", Unit.COUNT),
        ReportColumn("splits", unit=Unit.COUNT),
        ReportColumn("requests_merged", "requests merged", Unit.COUNT),
        ReportColumn("lost_events", "events lost", Unit.COUNT),
        ReportColumn("lost_requests", "requests lost", Unit.COUNT),
        ReportColumn("ends_not_seen", "ends not seen", Unit.COUNT),
    ]
    note = (
        "I/Os are what the filesystem or program gave. Splits: I/Os longer than the disk takes."
        " Lost: not followed to their end."
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
        ReportColumn("longest_below_ns", "longest below", Unit.NS),
    ]
    note = "Percentiles by nearest rank, within 0.8 %; - with too few."
    tables.append(table_of("Time in each layer", Sheet.DEVICE, columns, rows, note, keys=2))
    columns = [
        ReportColumn("op"),
        ReportColumn("low_ns", "from", Unit.NS),
        ReportColumn("count", unit=Unit.COUNT),
    ]
    note = "Each row holds the times from its first up to, but not including, twice that."
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
            [{"op": op, "low": low, "count": n} for (op, low), n in bins.items()], "low", "count"
        )
        chart = Chart("Sizes of block requests", ChartShape.BARS, Unit.IO_BYTES, Unit.COUNT, series)
        note = (
            "The chart adds sizes up from each power of two to the next; the table has each size"
            " exactly."
        )
        tables.append(histogram(chart.title, chart, columns, report.sizes, note))
    if report.in_flight:
        columns = [
            ReportColumn("op"),
            ReportColumn("in_flight", "in flight", Unit.COUNT),
            ReportColumn("count", "requests", Unit.COUNT),
        ]
        series = lines_by(report.in_flight, "in_flight", "count")
        chart = Chart("In flight at dispatch", ChartShape.LOLLIPOPS, Unit.COUNT, Unit.COUNT, series)
        note = "How many requests the disk had in flight when one was issued, itself included."
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
            "Without I/O: calls that queued none themselves; their data was in the page cache, or"
            " went there."
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
            f"Where {op}s go on {device}", ChartShape.GRID, Unit.NS, Unit.BYTES, [], *steps, end
        )
        tables.append(
            heat_table(f"Disk over time: {device} {op}", chart, op, rows, columns, "requests", span)
        )
    return Chapter("Block layer", tables)


class Layers(msgspec.Struct, frozen=True, kw_only=True):
    """A run's operations on storage, the calls and block requests beneath.

    Rows by direction, null where not measured.

    The whole measured part counts, its warm-up included, because the probes do not tell it apart.
    """

    findings: list[str]
    """In plain words: what the device moved, and which layer took the time."""
    moved: list[Row]
    """Bytes of objects, of calls and of the device.

    Amplification is device bytes / object bytes.
    """
    times: list[Row]
    """Times of operations, and by layer: object, application, q2d, requeued, d2c."""
    inside: list[Row]
    """Each operation's time cut in parts.

    Not submitted yet, though due; a request was at the device, only queued, or neither. No rows
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
        times_of = {row["op"]: row for row in viewed_times(db).summaries.get("object", [])}
        inside = [_latency_parts(db, row) for row in objects] if blocks.is_file() else []
    moved, shown = [], []
    for row in objects:
        op, operations, object_bytes = row["op"], row["operations"], row["object_bytes"]
        device = probe.block.directions.get(op)
        device_bytes, requests = (0, 0) if device is None else (device.issued_bytes, device.issued)
        calls = None if application is None else [c for c in application.calls if c.kind == op]
        moved.append(
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
        shown.append(
            {"op": op, "layer": layer, "count": operations}
            | {name: times_of.get(op, {}).get(name) for name in TIMES[:-1]}
        )
        beneath = {"application": None if application is None else application.times.get(op)}
        beneath |= {layer: getattr(device, layer, None) for layer in LAYERS}
        for layer, times in beneath.items():
            if times is not None and times.count:
                parts = {name: getattr(times, name) for name in TIMES[:-1]}
                shown.append({"op": op, "layer": layer, "count": times.count} | parts)
    said = findings(moved, inside, probe, find_run(run_directory))
    return Layers(findings=said, moved=moved, times=shown, inside=inside)


def _latency_parts(db: duckdb.DuckDBPyConnection, row: Row) -> dict[str, object]:
    """Return the parts of the mean latency of operations like `row`; they add up to it."""
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
"""Of the objects' bytes, from which on, and below which, the device moved all and none of them."""
DOMINATES = 0.5
_WHERE = {
    "waiting": "before submission (due, and waiting for its turn)",
    "at_device": "at the device (driver, drive)",
    "queued": "queued in the kernel (plug, scheduler)",
    "above": "above the block layer (filesystem, copies, the replay's own waits)",
}
_VERBS = {"read": "reads", "write": "writes"}
_FAULTS = {
    "errors": ("request", "failed at the device"),
    "requeues": ("requeue", "by a busy driver"),
    "splits": ("split", "of I/Os longer than the disk takes"),
    "lost_events": ("request", "missing from blocks.parquet, and so from the parts of the latency"),
    "ends_not_seen": (
        "completion",
        "not reported by the kernel, whose device time is in no figure",
    ),
}


def findings(
    moved: list[Row], inside: list[Row], probe: ProbeFile, run: RunFile | None
) -> list[str]:
    """Return one sentence a finding, of the rows of `Layers`, the probes' result and the run's own
    summary.
    """
    is_buffered = run is not None and bool(run.config.get("is_buffered"))
    said = [
        _touched(row, is_buffered=is_buffered) for row in moved if row["amplification"] is not None
    ]
    calls = (probe.application or Application()).calls
    known = [call for call in calls if call.kind == "read" and call.without_io is not None]
    total, without = (
        sum(call.count or 0 for call in known),
        sum(call.without_io or 0 for call in known),
    )
    if without:
        said.append(
            f"{without:,} of {total:,} read calls that wait for their data queued no I/O themselves"
        )
    said += [_dominant(row) for row in inside if row["latency_ns"]]
    directions = probe.block.directions.values()
    faults = {name: sum(getattr(counts, name) or 0 for counts in directions) for name in _FAULTS}
    return said + [
        f"{counted(count, _FAULTS[name][0])} {_FAULTS[name][1]}"
        for name, count in faults.items()
        if count
    ]


def _touched(row: Row, *, is_buffered: bool) -> str:
    name, ratio = _VERBS[row["op"]], row["amplification"]
    objects, device = format_bytes(row["object_bytes"]), format_bytes(row["device_bytes"])
    later = ", or written back later by the kernel's own threads, which the probes do not see"
    if ratio < NEARLY_NONE:
        reason = (
            "in the page cache" + later
            if row["op"] == "write"
            else "from the page cache or unwritten extents"
        )
        return (
            f"{name}: answered WITHOUT touching the device: {objects} of objects, {device} at the"
            f" device ({reason})"
        )
    if ratio < NEARLY_ALL:
        left = later if row["op"] == "write" and is_buffered else ""
        return (
            f"{name}: {1 - ratio:.1%} of the objects' bytes did not touch the device: {objects} of"
            f" objects, {device} at the device (page cache or unwritten extents{left})"
        )
    padding = row["io_bytes"] / row["object_bytes"]
    why = f"; padding to whole blocks alone is {padding:.3f}" if padding > 1 else ""
    return (
        f"{name}: the device moved {ratio:.3f} bytes for each byte of the objects ({device} for"
        f" {objects}){why}"
    )


def _dominant(row: Row) -> str:
    shares = {part: row[f"{part}_share"] for part in _WHERE}
    part = max(shares, key=lambda name: shares[name])
    parts = ", ".join(
        f"{shares[name]:.1%} {words}" for name, words in _WHERE.items() if shares[name]
    )
    judged = "dominates" if shares[part] > DOMINATES else "is the largest part, none dominates"
    deep = row["in_flight_mean"]
    crowd = (
        f"; {deep:.1f} operations were in flight, and requests of any of them count for each"
        if deep is not None and deep > 1.1  # noqa: PLR2004 - more than one at a time
        else ""
    )
    time = format_duration(row["latency_ns"])
    return (
        f"{_VERBS[row['op']]}: time {_WHERE[part]} {judged}: of {time} in the mean, {parts}{crowd}"
    )


_SHOWN_LAYERS = _LAYER_NAMES | {
    "object": "the operation, as the replay saw it",
    "object response": "the operation, from when it was due",
}
_PARTS = {part: words.partition(" (")[0] for part, words in _WHERE.items()}


def layer_chapter(found: Layers) -> Chapter:
    """Return the chapter that joins operations and what the probes saw beneath."""
    rows = [row | {"layer": _SHOWN_LAYERS[row["layer"]]} for row in found.times]
    columns = [
        ReportColumn("op"),
        ReportColumn("layer"),
        ReportColumn("count", unit=Unit.COUNT),
        *TIME_COLUMNS,
    ]
    note = (
        "An operation takes one call or more, a call one request or more: rows do not add up."
        " Warm-up included."
    )
    tables = [
        table_of(
            "Findings",
            Sheet.DEVICE,
            [
                ReportColumn("finding"),
            ],
            [{"finding": line} for line in found.findings],
        ),
        table_of("Operations and the layers beneath", Sheet.DEVICE, columns, rows, note, keys=2),
    ]
    if found.inside:
        columns = [
            ReportColumn("op"),
            ReportColumn("operations", unit=Unit.COUNT),
            ReportColumn("latency_ns", "mean time", Unit.NS),
        ]
        for part, heading in _PARTS.items():
            columns.append(ReportColumn(f"{part}_ns", heading, Unit.NS))
            columns.append(ReportColumn(f"{part}_share", "share", Unit.SHARE))
        columns.append(ReportColumn("in_flight_mean", "in flight", Unit.NUMBER))
        note = (
            "The mean time of an operation, cut by what the block layer held meanwhile: any request"
            " of its direction at the device; none there, but some queued; or none at all. In an"
            " open loop it begins when the operation was due, and what passed before its submission"
            " is a part of its own. Exact with one operation in flight; with more, requests of the"
            " others count, too. Warm-up included."
        )
        tables.insert(
            1, table_of("Parts of the latency", Sheet.DEVICE, columns, found.inside, note)
        )
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
        table_of("Read and write amplification", Sheet.DEVICE, columns, found.moved, note)
    )
    return Chapter("Where the time went", tables)
