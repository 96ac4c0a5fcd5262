"""What the probes found, as a document: counts, times, and histograms in powers of two."""

from __future__ import annotations

from collections.abc import Iterator

from kvtrace.core.document.document import Chapter, Document, ReportTable, Sheet, columns_of
from kvtrace.core.run.probe_file import (
    Application,
    BlockFigures,
    DirectionFigures,
    Histogram,
    ProbeFile,
    probe_answer,
)
from kvtrace.core.statistics import total
from kvtrace.core.units import format_bytes, format_duration, format_io_size

MOST_SIZES = 12
"""Block sizes shown; probe.json has all."""
MOST_ZONES = 8
_UNSEEN = "this kernel has no tracepoints of system calls (CONFIG_FTRACE_SYSCALLS): the application is unseen"
_NO_REQUEST = "no block request was seen; is the filter right, or was all served from the page cache?"
_TIMES = columns_of("""
    ns: mean_ns = mean, p50_ns = p50, p95_ns = p95, p99_ns = p99, p99_9_ns = p99.9, p99_99_ns = p99.99,
        longest_below_ns = below
""")


def probe_document(found: ProbeFile) -> Document:
    """Make the document of a measurement: its answer, the application's calls, then the block requests beneath."""
    calls, directions = found.application, found.block.directions
    timed = [] if calls is None else [(f"application {n.replace('_', ' ')}", t) for n, t in calls.times.items()]
    for name, d in directions.items():
        layers = (("Q2D", d.q2d), ("of it requeued", d.requeued), ("D2C", d.d2c))
        timed += [(f"{name} {what}", times) for what, times in layers if times and times.count]
    tables = [
        *([_calls(calls)] if calls is not None and calls.calls else []),
        *([_requests(directions)] if directions else []),
        *([_times(timed)] if timed else []),
        *(_histogram(name, times) for name, times in timed),
    ]
    chapters = [Chapter("", tables)]
    for name, d in directions.items():
        if d.block_sizes:
            where = _places(name, d, found.block.zone_bytes)
            chapters.append(Chapter("", [_sizes(name, d), where], list(_in_flight_and_rates(name, d))))
    chapters.append(Chapter("", [], list(_lost(found.block))))
    return Document(
        name="",
        headline=probe_answer(found) if directions else _NO_REQUEST,
        chapters=chapters,
        notes=list(_unseen(calls)),
    )


def _unseen(calls: Application | None) -> Iterator[str]:
    if calls is None:
        yield _UNSEEN
        return
    if calls.unseen:
        yield f"NOT SEEN: calls by {' and '.join(calls.unseen)}; this kernel has no tracepoints for them"
    if calls.not_followed:
        yield f"NOT FOLLOWED: {calls.not_followed:,} asynchronous I/Os beyond 128 of one io_submit"


def _calls(found: Application) -> ReportTable:
    columns = columns_of("""
        text: kind, call
        count: count
        bytes: bytes
        count: errors, direct = O_DIRECT, without_io = queued no I/O
    """)
    rows = [[getattr(call, column.name) for column in columns] for call in found.calls]
    return ReportTable("Application calls", Sheet.DEVICE, columns, rows, keys=2)


def _requests(directions: dict[str, DirectionFigures]) -> ReportTable:
    columns = columns_of("""
        text: direction
        count: issued = requests, completed
        bytes: completed_bytes = bytes
        count: bios, splits, merges, requeues, errors
    """)
    rows = []
    for name, d in directions.items():
        merges = total([d.bios_merged, d.requests_merged])
        rows.append([name, d.issued, d.completed, d.completed_bytes, d.bios, d.splits, merges, d.requeues, d.errors])
    return ReportTable("Block requests", Sheet.DEVICE, columns, rows)


def _times(timed: list[tuple[str, Histogram]]) -> ReportTable:
    columns = [*columns_of("text: time; count: count"), *_TIMES]
    rows = [[name, times.count, *(getattr(times, column.name) for column in _TIMES)] for name, times in timed]
    return ReportTable("Times", Sheet.DEVICE, columns, rows)


def _histogram(name: str, times: Histogram) -> ReportTable:
    columns = columns_of("ns: from_ns = from, below_ns = below; count: count")
    rows = [[bucket.from_, bucket.below, bucket.count] for bucket in times.log2_ns]
    return ReportTable(name, Sheet.HISTOGRAMS, columns, rows, bars="count")


def _sizes(name: str, d: DirectionFigures) -> ReportTable:
    common = sorted(d.block_sizes, key=lambda s: -s.count)[:MOST_SIZES]
    others = len(d.block_sizes) - len(common)
    more = f" (the most frequent; {others} more in probe.json)" if others else ""
    columns = columns_of("text: size; count: count = requests")
    rows = [[format_io_size(size.bytes), size.count] for size in sorted(common, key=lambda s: s.bytes)]
    return ReportTable(f"{name} block size{more}", Sheet.HISTOGRAMS, columns, rows)


def _places(name: str, d: DirectionFigures, zone_bytes: int | None) -> ReportTable:
    hottest = sorted(d.heat, key=lambda z: -(z.bytes or 0))[:MOST_ZONES]
    others = len(d.heat) - len(hottest)
    more = f" (the hottest; {others} more in probe.json)" if others else ""
    columns = columns_of("""
        text: device = disk
        bytes: from_bytes = from
        count: requests
        bytes: bytes
    """)
    places = sorted(hottest, key=lambda z: (z.device, z.from_bytes))
    rows = [[getattr(place, column.name) for column in columns] for place in places]
    title = f"{name} by place, in stretches of {format_bytes(zone_bytes)}{more}"
    return ReportTable(title, Sheet.HISTOGRAMS, columns, rows, keys=2)


def _in_flight_and_rates(name: str, d: DirectionFigures) -> Iterator[str]:
    depths = d.in_flight_at_dispatch
    if depths:
        mean = sum(x.in_flight * x.count for x in depths) / sum(x.count for x in depths)
        yield f"{name} in flight at dispatch: mean {mean:.2f}, most {depths[-1].in_flight}"
    if d.per_second:
        fastest = max(d.per_second, key=lambda s: s.bytes)
        yield (
            f"{name} per second: most {format_bytes(fastest.bytes)} and {fastest.requests:,} requests, in the one from "
            f"{format_duration(fastest.from_ns)}; {len(d.per_second)} seconds had any"
        )


def _lost(figures: BlockFigures) -> Iterator[str]:
    """Yield which requests are missing in which figures."""
    events, requests, unseen, zones = (
        sum(getattr(d, name) for d in figures.directions.values())
        for name in ("lost_events", "lost_requests", "ends_not_seen", "lost_zones")
    )
    if unseen:
        yield f"NOT SEEN: the completions of {unseen:,} requests; they are not in D2C"
    if events:
        yield f"LOST: {events:,} requests are not in blocks.parquet, but in all figures; try --histograms-only"
    if zones:
        yield f"LOST: {zones:,} requests are not in the map of places"
    if requests:
        yield f"LOST: {requests:,} requests are in no figure; narrow the filter"
    if figures.in_flight_at_end:
        yield f"{figures.in_flight_at_end:,} requests had no completion seen by the end and are not in D2C"
