"""The `kvreplay` command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvreplay.probes.command import probe
from kvtrace.core.app import emit_json, log, make_app, progress, run
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.units import parse_bytes, parse_duration_ns

if TYPE_CHECKING:
    from kvreplay.config.config import Config
    from kvreplay.run.run import Outcome

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
        help="Where a tier of the trace lies: an empty directory, one file (*.dat), a block device, several of these "
        "with commas between them, ram, gpu (or gpu:device=1,copy=device), sim (nothing moves; takes the time of the "
        "trace's service model, else of one that is named, or as sim:bandwidth=50GB,latency=10us says) or null (no "
        "time). Repeatable; "
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
        "Buffers take three times the queue depth, but at least 66, of it; those for writes 256 KiB or more each.")
    ] = "1MiB",
    engine: Annotated[str, typer.Option(
        help="auto, threads or uring (io_uring); auto takes uring for files where the kernel allows it.")] = "auto",
    limit: Annotated[str | None, typer.Option(
        help="Replay the trace's start only: 10000 rows, 30s of trace time, or 2GiB read and written.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the data; the trace's if not given.")] = None,
    buffered: Annotated[bool, typer.Option(
        "--buffered", help="Go through the page cache instead of O_DIRECT.")] = False,
    gds: Annotated[bool, typer.Option(
        "--gds", help="Move files' data straight to and from GPU 0 by cuFile (kvikio); the run says if it could not "
        "go direct.")] = False,
    fsync: Annotated[str, typer.Option(
        help="never, or close: fdatasync each written file, within its time.")] = "never",
    on_error: Annotated[str, typer.Option(help="stop, or continue, when an operation fails.")] = "stop",
    warmup: Annotated[str | None, typer.Option(
        help="Leave the run's start out of its figures: 30s of the run, or 1000 rows.")] = None,
    layout: Annotated[str, typer.Option(
        help="How object files are named: hashed (256 subdirectories), flat, vllm or lmcache.")] = "hashed",
    destroy_data: Annotated[bool, typer.Option(
        "--destroy-data", help="Allow a --tier to be a block device: all that is on it is lost.")] = False,
    discard: Annotated[bool, typer.Option(
        "--discard", help="Deletes discard (trim) on block devices; without it they only free the space.")] = False,
    precondition: Annotated[str | None, typer.Option(
        help="First write the drives full (a directory up to the trace's peak): twice, sequentially, then at "
        "random places; or steady, until random writes keep their bandwidth.")] = None,
    requests: Annotated[Path | None, typer.Option(
        help="The trace's requests table (kvtrace gen --requests-out): adds classes of service and, where the trace "
        "models computing, the time to the first token.")] = None,
    criteria: Annotated[Path | None, typer.Option(
        help="Thresholds of the health criteria, in a TOML file: storage_read_p95, storage_write_p95, cpu_p95, "
        "hit_rate, storage_bandwidth, and tables qos_interactive, qos_responsive, qos_batch of p95, p99, p99_9, "
        "p99_99. MLPerf's if not given.")] = None,
    verify: Annotated[bool, typer.Option(
        "--verify", help="Stamp each 4 KiB block written and check each one read; slows reads down.")] = False,
    dedup_ratio: Annotated[float, typer.Option(
        help="4 KiB blocks written for each distinct one; 1: no 512 bytes occur twice.")] = 1.0,
    compress_ratio: Annotated[float, typer.Option(
        help="By which zstd shrinks each 4 KiB block written; 1: not at all.")] = 1.0,
    probes: Annotated[bool, typer.Option(
        "--probes", help="Also probe our calls and the block requests beneath, as kvreplay probe does: probe.json and "
        "blocks.parquet in the run. Needs root and BCC; goes on without if they are missing.")] = False,
    histograms_only: Annotated[bool, typer.Option(
        "--histograms-only", help="With --probes: write no blocks.parquet, one row a request.")] = False,
    trials: Annotated[int | None, typer.Option(
        help="Run so many times, into trial-1 … below the output: median and spread of every figure.")] = None,
    keep: Annotated[bool, typer.Option(
        "--keep", help="Leave the object files; the next run removes them.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write the run into a non-empty directory.")] = False,
    as_json: Annotated[bool, typer.Option(
        "--json", help="Print the run's manifest and summary as JSON.")] = False,
) -> None:  # fmt: skip
    """Replay a trace on real tiers and write run.json and its tables.

    Writes carry data that neither deduplicates nor compresses; what the replayed part reads but never wrote
    is written first and not measured. Stages of a request, and operations on an object, keep their order.
    Only our own files in the target are removed, at the end and at the next start after a crash.

    \b
    Example, as fast as the drive allows:
      kvreplay run conv.parquet --tier nvme=/mnt/scratch --tier cpu=ram --queue-depth 16 -o run
    Example, the first minute at the trace's own times:
      kvreplay run conv.parquet --tier nvme=/mnt/scratch --speed 1 --limit 60s -o run
    """
    from kvreplay.config.config import Config
    from kvreplay.result.mlperf import read_criteria
    from kvreplay.run.document import show_run
    from kvreplay.run.run import replay

    config = Config(
        tiers=_targets(tier or []), speed=speed, is_as_fast_as_possible=as_fast_as_possible,
        queue_depth=queue_depth, io_bytes=parse_bytes(io_bytes), limit=limit, seed=seed, is_buffered=buffered,
        fsync=fsync, is_kept=keep, on_error=on_error, engine=engine, is_verified=verify, dedup_ratio=dedup_ratio,
        compress_ratio=compress_ratio, warmup=warmup, precondition=precondition,
        layout=layout, is_destroying=destroy_data, is_discarding=discard,
        criteria=read_criteria(criteria), requests=None if requests is None else str(requests),
        is_gds=gds,
        is_probed=probes, is_histograms_only=histograms_only,
    )  # fmt: skip
    argv = ["kvreplay", *sys.argv[1:]]
    if trials is not None:
        _run_trials(config, trace, output, argv, trials, is_forced=force, as_json=as_json)
        return
    outcome = replay(config, trace, output, argv, is_forced=force, show=progress)
    if as_json:
        emit_json(outcome.run)
    else:
        show_run(outcome)
        log(f"wrote {output}")
    if outcome.error is not None:
        raise outcome.error
    _fail_on_corruption(outcome, output)


def _fail_on_corruption(outcome: Outcome, output: Path) -> None:
    if outcome.verification is not None and outcome.verification.corrupt_blocks:
        raise DeviceError(f"{outcome.verification.corrupt_blocks:,} corrupt blocks were read; {output} lists them")


def _run_trials(
    config: Config, trace: Path, output: Path, argv: list[str], count: int, *, is_forced: bool, as_json: bool
) -> None:
    from kvreplay.run.document import show_trials
    from kvreplay.run.trials import run_trials

    def done(run: Path, outcome: Outcome) -> None:
        log(f"{run}: {outcome.summary.verdict}")
        outcomes.append((outcome, run))

    outcomes: list[tuple[Outcome, Path]] = []
    found, error = run_trials(config, trace, output, argv, count, is_forced=is_forced, show=progress, done=done)
    if as_json:
        emit_json(found)
    else:
        show_trials(found)
    if error is not None:
        raise error
    for outcome, directory in outcomes:
        _fail_on_corruption(outcome, directory)


@app.command("recover")
def recover_(
    run: Annotated[Path, typer.Argument(help="The directory of a run that was killed.")],
    trace: Annotated[Path | None, typer.Option(help="The trace it replayed, if that lies elsewhere now.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the run's manifest and summary as JSON.")] = False,
) -> None:
    """Make a run, marked partial, of what a killed one had measured.

    While a run goes on it notes every second or few what has ended; of a killed run the last may be missing.
    Files that it left on its target are removed by the next run there.

    \b
    Example:
      kvreplay recover run
    """
    from kvreplay.result.recover import recover
    from kvreplay.run.document import show_run

    outcome = recover(run, trace)
    if as_json:
        emit_json(outcome.run)
    else:
        show_run(outcome)
        log(f"wrote {run}: {outcome.error}")


@app.command("sweep")
def sweep_(
    trace: Annotated[Path, typer.Argument(help="A trace of kvtrace: *.parquet or *.csv.zst.")],
    tier: Annotated[list[str] | None, typer.Option(
        "--tier", "-t", metavar="NAME=TARGET", help="As for kvreplay run. Repeatable.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The runs' directory.")] = Path("sweep"),
    queue_depths: Annotated[str | None, typer.Option(
        help="Closed loop at these, rising. The default: 1,2,4,8,16,32,64,128.")] = None,
    speeds: Annotated[str | None, typer.Option(
        help="Open loop at these instead, rising, such as 1,2,4,8.")] = None,
    users: Annotated[str | None, typer.Option(
        help="Open loop with so many synthetic users instead, rising: the command that made the trace makes each of "
        "theirs.")] = None,
    read_p99: Annotated[str | None, typer.Option(
        help="With --speeds or --users: also end when the slowest tier's p99 read latency exceeds this, such as 50ms.")
    ] = None,
    plot_to: Annotated[Path | None, typer.Option("--plot", help="Draw it: *.svg, *.png or *.pdf.")] = None,
    queue_depth: Annotated[int, typer.Option(help="With --speeds or --users: at most this many in flight.")] = 128,
    io_bytes: Annotated[str, typer.Option(help="Longer objects are split into I/Os of this size.")] = "1MiB",
    limit: Annotated[str | None, typer.Option(help="Replay the trace's start only: rows, time or bytes.")] = None,
    warmup: Annotated[str | None, typer.Option(help="Leave each run's start out: 30s, or 1000 rows.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the data; the trace's if not given.")] = None,
    buffered: Annotated[bool, typer.Option(
        "--buffered", help="Go through the page cache instead of O_DIRECT.")] = False,
    engine: Annotated[str, typer.Option(help="auto, threads or uring.")] = "auto",
    force: Annotated[bool, typer.Option("--force", help="Write into a non-empty directory.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the sweep as JSON.")] = False,
) -> None:  # fmt: skip
    """Replay a trace at rising queue depths, speeds or users until it saturates; name the knee.

    \b
    Example:
      kvreplay sweep conv.parquet --tier nvme=/mnt/scratch --limit 20GiB -o sweep
      kvreplay sweep conv.parquet --tier nvme=/mnt/scratch --speeds 1,2,4,8,16 -o sweep
      kvreplay sweep t.parquet --tier nvme=/mnt/scratch --users 32,64,128 --read-p99 50ms --plot knee.svg -o sweep
    """
    from kvreplay.config.config import Config
    from kvreplay.run.present_machine import show_sweep
    from kvreplay.run.sweep import DEPTHS, Axis, plot, sweep
    from kvtrace.core.plots import check_plot

    given = {Axis.QUEUE_DEPTH: queue_depths, Axis.SPEED: speeds, Axis.USERS: users}
    said = {axis: text for axis, text in given.items() if text is not None}
    if len(said) > 1:
        raise ConfigError(f"{' and '.join(axis.option for axis in said)} exclude each other; give one")
    axis, text = next(iter(said.items()), (Axis.QUEUE_DEPTH, ",".join(map(str, DEPTHS))))
    chosen = _numbers(axis.option, text)
    if plot_to is not None:
        check_plot(plot_to)
    config = Config(
        tiers=_targets(tier or []), queue_depth=queue_depth, io_bytes=parse_bytes(io_bytes), limit=limit,
        warmup=warmup, seed=seed, is_buffered=buffered, engine=engine,
    )  # fmt: skip
    found, error = sweep(
        config, trace, output, ["kvreplay", *sys.argv[1:]], axis, chosen, is_forced=force, show=progress,
        read_p99_target_ns=None if read_p99 is None else parse_duration_ns(read_p99),
        done=lambda point: log(f"{axis} {point.value:g}: {point.verdict}"),
    )  # fmt: skip
    if plot_to is not None and found.points:
        plot(found, plot_to, f"{trace.name}, kvreplay sweep")
        log(f"wrote {plot_to}")
    if as_json:
        emit_json(found)
    else:
        show_sweep(found)
    if error is not None:
        raise error


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"{option} {text}: write numbers with commas, such as 1,2,4,8") from None


@app.command("discover")
def discover_(
    as_json: Annotated[bool, typer.Option("--json", help="Print what is found as JSON.")] = False,
) -> None:
    """Say what this machine has for a replay, what would spoil one, and settings to start from.

    \b
    Example:
      kvreplay discover
    """
    from kvreplay.run.discover import discover
    from kvreplay.run.present_machine import show_discovery

    found = discover()
    if as_json:
        emit_json(found)
    else:
        show_discovery(found)


@app.command("compare")
def compare_(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs or of trials; the first is the base.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Put runs side by side: ratios to the first, and whether their trials tell them apart.

    \b
    Example:
      kvreplay run t.parquet --tier nvme=/mnt/a --trials 3 -o a
      kvreplay run t.parquet --tier nvme=/mnt/b --trials 3 -o b
      kvreplay compare a b
    """
    from kvreplay.run.compare import compare
    from kvreplay.run.document import show_comparison

    found = compare(runs)
    if as_json:
        emit_json(found)
    else:
        show_comparison(found)


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


app.command("probe")(probe)


def main() -> None:
    """Run the command line."""
    run(app, "kvreplay")


if __name__ == "__main__":
    main()
