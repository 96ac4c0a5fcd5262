"""How the probes' figures are shown on a terminal: counts, times, and histograms in powers of two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from kvtrace.core.app import emit_table
from kvtrace.core.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvreplay.probes.application import Calls
    from kvreplay.probes.histogram import Bucket, Histogram
    from kvreplay.probes.result import BlockFigures, Direction
    from kvreplay.probes.session import Found

BAR_WIDTH = 40
MOST_SIZES = 12
"""Block sizes shown; probe.json has all."""
MOST_ZONES = 8
_CALLED = ("kind", "call", "count", "bytes", "errors", "queued no I/O")
_COUNTED = ("direction", "requests", "completed", "bytes", "bios", "splits", "merges", "requeues", "errors")
_TIMES = ("time", "count", "mean", "p50", "p95", "p99", "p99.9", "p99.99", "below")


def show_found(found: Found) -> None:
    """Print what a measurement found: the application's calls, then the block requests beneath."""
    calls, block = found.application, found.block
    if calls is None:
        typer.echo("this kernel has no tracepoints of system calls (CONFIG_FTRACE_SYSCALLS): the application is unseen")
    else:
        if calls.calls:
            emit_table("Application calls", _CALLED, [_called(c) for c in calls.calls])
        if calls.unseen:
            typer.echo(f"NOT SEEN: calls by {' and '.join(calls.unseen)}; this kernel has no tracepoints for them\n")
        if calls.not_followed:
            typer.echo(f"NOT FOLLOWED: {calls.not_followed:,} asynchronous I/Os beyond 128 of one io_submit")
    if not block.directions:
        typer.echo("no block request was seen; is the filter right, or was all served from the page cache?\n")
    else:
        emit_table("Block requests", _COUNTED, [_counted(n, d) for n, d in block.directions.items()])
    timed = [] if calls is None else [(name.replace("_", " "), times) for name, times in calls.times.items()]
    timed = [(f"application {name}", times) for name, times in timed] + [
        (f"{name} {what}", times)
        for name, d in block.directions.items()
        for what, times in (("Q2D", d.q2d), ("D2C", d.d2c))
        if times.count
    ]
    if timed:
        emit_table("Times", _TIMES, [(name, *_times(times)) for name, times in timed])
    for name, times in timed:
        typer.echo(f"{name}\n" + "\n".join(bars(times.log2_ns)) + "\n")
    for name, d in block.directions.items():
        if d.block_sizes:
            _show_exact(name, d)
            _show_where_and_when(name, d, block.zone_bytes)
    _show_lost(block)


def _called(c: Calls) -> tuple[str | None, ...]:
    unseen = None if c.without_io is None else format_count(c.without_io)
    moved = None if c.bytes is None else format_bytes(c.bytes)
    return (c.kind, c.call, format_count(c.count), moved, format_count(c.errors), unseen)


def _show_where_and_when(name: str, d: Direction, zone_bytes: int) -> None:
    if d.per_second:
        fastest = max(d.per_second, key=lambda s: s.bytes)
        typer.echo(
            f"{name} per second: most {format_bytes(fastest.bytes)} and {fastest.requests:,} requests, in the one from "
            f"{format_duration(fastest.from_ns)}; {len(d.per_second)} seconds had any\n"
        )
    hottest = sorted(d.heat, key=lambda z: -z.bytes)[:MOST_ZONES]
    rows = [
        (z.device, format_bytes(z.from_bytes), format_count(z.requests), format_bytes(z.bytes))
        for z in sorted(hottest, key=lambda z: (z.device, z.from_bytes))
    ]
    others = len(d.heat) - len(hottest)
    more = f" (the hottest; {others} more in probe.json)" if others else ""
    emit_table(f"{name} by place, in stretches of {format_bytes(zone_bytes)}{more}",
               ("disk", "from", "requests", "bytes"), rows)  # fmt: skip


def _counted(name: str, d: Direction) -> tuple[str, ...]:
    merges = d.bios_merged + d.requests_merged
    return (
        name, format_count(d.issued), format_count(d.completed), format_bytes(d.completed_bytes),
        *(format_count(n) for n in (d.bios, d.splits, merges, d.requeues, d.errors)),
    )  # fmt: skip


def _times(times: Histogram) -> tuple[str, ...]:
    shown = (times.mean_ns, times.p50_ns, times.p95_ns, times.p99_ns, times.p99_9_ns, times.p99_99_ns)
    return (format_count(times.count), *(format_duration(t) for t in (*shown, times.longest_below_ns)))


def bars(buckets: Sequence[Bucket]) -> list[str]:
    """Return one line a bucket with a bar, the longest of them full."""
    most = max(b.count for b in buckets)
    return [
        f"{f'[{format_duration(b.from_)}, {format_duration(b.below)})':>22}  {b.count:>12,}  "
        f"|{('*' * -(-b.count * BAR_WIDTH // most)).ljust(BAR_WIDTH)}|"
        for b in buckets
    ]


def _show_exact(name: str, d: Direction) -> None:
    common = sorted(d.block_sizes, key=lambda s: -s.count)[:MOST_SIZES]
    rows = [(format_bytes(s.bytes), format_count(s.count)) for s in sorted(common, key=lambda s: s.bytes)]
    others = len(d.block_sizes) - len(common)
    emit_table(f"{name} block size{f' (the most frequent; {others} more in probe.json)' if others else ''}",
               ("bytes", "requests"), rows)  # fmt: skip
    depths = d.in_flight_at_dispatch
    if depths:
        mean = sum(x.in_flight * x.count for x in depths) / sum(x.count for x in depths)
        typer.echo(f"{name} in flight at dispatch: mean {mean:.2f}, most {depths[-1].in_flight}\n")


def _show_lost(figures: BlockFigures) -> None:
    events = sum(d.lost_events for d in figures.directions.values())
    requests = sum(d.lost_requests for d in figures.directions.values())
    unseen = sum(d.ends_not_seen for d in figures.directions.values())
    if unseen:
        typer.echo(f"NOT SEEN: the completions of {unseen:,} requests; they are not in D2C")
    if events:
        typer.echo(f"LOST: {events:,} requests are not in blocks.parquet, but in all figures; try --histograms-only")
    if zones := sum(d.lost_zones for d in figures.directions.values()):
        typer.echo(f"LOST: {zones:,} requests are not in the map of places")
    if requests:
        typer.echo(f"LOST: {requests:,} requests are in no figure; narrow the filter")
    if figures.in_flight_at_end:
        typer.echo(f"{figures.in_flight_at_end:,} requests had no completion seen by the end and are not in D2C")
