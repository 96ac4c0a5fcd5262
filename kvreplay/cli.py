"""The `kvreplay` command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtrace.core.app import emit_json, emit_table, log, make_app, progress, run
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import format_bytes, format_count, format_duration, format_rate, parse_bytes

if TYPE_CHECKING:
    from kvreplay.runner import Outcome
    from kvreplay.summary import Distribution, Figures

app = make_app(
    "kvreplay",
    "Replay a trace on real tiers (O_DIRECT files, host memory) and record every operation.",
    "Example: kvreplay run conv.parquet --tier nvme=/mnt/scratch --tier cpu=ram -o run",
)


@app.command("run")
def run_(
    trace: Annotated[Path, typer.Argument(help="A trace of kvtrace: *.parquet or *.csv.zst.")],
    tier: Annotated[list[str] | None, typer.Option(
        "--tier", "-t", metavar="NAME=TARGET",
        help="Where a tier of the trace lies: an empty directory, ram, or null (nothing moves). Repeatable; "
        "rows of tiers not named are skipped.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The run's directory.")] = Path("run"),
    as_fast_as_possible: Annotated[bool, typer.Option(
        "--as-fast-as-possible", help="Closed loop: trace times are ignored. The default without --speed.")
    ] = False,
    speed: Annotated[float | None, typer.Option(
        help="Open loop: submit at trace times divided by this factor; 1 is the trace's own speed.")] = None,
    queue_depth: Annotated[int, typer.Option(help="At most this many I/Os, and operations, in flight.")] = 8,
    io_bytes: Annotated[str, typer.Option(
        help="Longer objects are split into I/Os of this size. "
        "Buffers take three times the queue depth, but at least 66, of it.")
    ] = "1MiB",
    limit: Annotated[str | None, typer.Option(
        help="Replay the trace's start only: 10000 rows, 30s of trace time, or 2GiB read and written.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the data; the trace's if not given.")] = None,
    buffered: Annotated[bool, typer.Option(
        "--buffered", help="Go through the page cache instead of O_DIRECT.")] = False,
    fsync: Annotated[str, typer.Option(
        help="never, or close: fdatasync each written file, within its time.")] = "never",
    on_error: Annotated[str, typer.Option(help="stop, or continue, when an operation fails.")] = "stop",
    keep: Annotated[bool, typer.Option(
        "--keep", help="Leave the object files; the next run removes them.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write the run into a non-empty directory.")] = False,
    as_json: Annotated[bool, typer.Option(
        "--json", help="Print the run's manifest and summary as JSON.")] = False,
) -> None:  # fmt: skip
    """Replay a trace on real tiers and write ops.parquet and run.json.

    Writes carry data that neither deduplicates nor compresses; what the replayed part reads but never wrote
    is written first and not measured. Stages of a request, and operations on an object, keep their order.
    Only our own files in the target are removed, at the end and at the next start after a crash.

    \b
    Example, as fast as the drive allows:
      kvreplay run conv.parquet --tier nvme=/mnt/scratch --tier cpu=ram --queue-depth 16 -o run
    Example, the first minute at the trace's own times:
      kvreplay run conv.parquet --tier nvme=/mnt/scratch --speed 1 --limit 60s -o run
    """
    from kvreplay.options import Config
    from kvreplay.runner import replay

    config = Config(
        tiers=_targets(tier or []), speed=speed, is_as_fast_as_possible=as_fast_as_possible,
        queue_depth=queue_depth, io_bytes=parse_bytes(io_bytes), limit=limit, seed=seed, is_buffered=buffered,
        fsync=fsync, is_kept=keep, on_error=on_error,
    )  # fmt: skip
    outcome = replay(config, trace, output, ["kvreplay", *sys.argv[1:]], is_forced=force, show=progress)
    if as_json:
        emit_json(outcome.manifest)
    else:
        _show(outcome, output)
    if outcome.error is not None:
        raise outcome.error


def _targets(options: list[str]) -> dict[str, str]:
    targets: dict[str, str] = {}
    for option in options:
        name, equals, target = option.partition("=")
        if not (name and equals and target):
            raise ConfigError(f"--tier {option}: write it as NAME=TARGET, for example nvme=/mnt/scratch or cpu=ram")
        if name in targets:
            raise ConfigError(f"--tier {option}: tier {name} has the target {targets[name]} already; name it once")
        targets[name] = target
    return targets


def _show(outcome: Outcome, output: Path) -> None:
    from kvreplay.summary import percent

    summary, manifest = outcome.summary, outcome.manifest
    partial = "" if outcome.error is None else "PARTIAL: "
    typer.echo(f"{partial}{summary.verdict}; {_totals(outcome)}")
    window, populated, generation = manifest["window"], manifest["populated"], summary.generation
    part = "the whole trace" if window["is_whole_trace"] else f"the trace's start, --limit {window['limit']}"
    typer.echo(f"replayed {part}: {window['rows']:,} rows, {format_duration(window['span_ns'])} of trace time")
    if populated["objects"]:
        typer.echo(
            f"populated first, not measured: {populated['objects']:,} objects, {format_bytes(populated['bytes'])}"
        )
    for note in manifest["notes"]:
        typer.echo(note)
    for name, moved in manifest["device_io"].items():
        if moved["read_bytes"] is not None:
            typer.echo(
                f"device beneath {name} ({manifest['tiers'][name]['device']}): "
                f"{format_bytes(moved['read_bytes'])} read, "
                f"{format_bytes(moved['written_bytes'])} written meanwhile, by all programs"
            )
    typer.echo("")
    emit_table("Operations", _OPERATIONS, [_operations(f) for f in summary.figures])
    emit_table("Latency", ("tier op", *_TIMES), [(_name(f), *_times(f.latency)) for f in summary.figures])
    if summary.pace is not None:
        rows = [(_name(f), *_times(f.lateness)) for f in summary.figures if f.lateness is not None]
        emit_table("Lateness", ("tier op", *_TIMES), [*rows, ("all", *_times(summary.pace.lateness))])
    if generation is not None:
        typer.echo(
            f"making data took {percent(generation.share_of_threads)} of its threads' time and making room "
            f"{percent(generation.reserve_share)}; submitting threads waited for it "
            f"{percent(generation.starved_share)} of theirs"
        )
    log(f"wrote {output}")


def _totals(outcome: Outcome) -> str:
    summary = outcome.summary
    failed = f", {summary.errors:,} FAILED" if summary.errors else ""
    missed = f", {summary.not_reached:,} not reached" if summary.not_reached else ""
    return f"{summary.operations:,} operations in {format_duration(summary.wall_ns)}{failed}{missed}"


_OPERATIONS = ("tier op", "engine", "operations", "errors", "bytes", "bandwidth", "op/s", "in flight")
_TIMES = ("mean", "p50", "p95", "p99", "p99.9", "p99.99", "max")


def _name(figures: Figures) -> str:
    return f"{figures.tier} {figures.op}{' (simulated)' if figures.is_simulated else ''}"


def _operations(figures: Figures) -> tuple[object, ...]:
    rate, depth = figures.operations_per_s, figures.in_flight_mean
    return (
        _name(figures), figures.engine, format_count(figures.operations), format_count(figures.errors),
        format_bytes(figures.bytes), format_rate(figures.bandwidth_bytes_per_s),
        None if rate is None else f"{rate:,.0f}", None if depth is None else f"{depth:.2f}",
    )  # fmt: skip


def _times(d: Distribution) -> tuple[str, ...]:
    times = (d.mean_ns, d.p50_ns, d.p95_ns, d.p99_ns, d.p99_9_ns, d.p99_99_ns, d.max_ns)
    return tuple(format_duration(t) for t in times)


def main() -> None:
    """Run the command line."""
    run(app, "kvreplay")


if __name__ == "__main__":
    main()
