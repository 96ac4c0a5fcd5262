"""The commands `sweep` and `scorecard`: replays at rising load, of a trace or on a drive."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from kvreplay.commands.options import RanksArguments, session, targets
from kvreplay.plan.replay_config import Config
from kvtrace.core.app import Force, Plot, command_line, log, option, progress
from kvtrace.core.errors import ConfigError, ProbeUnavailable


@dataclass(frozen=True, slots=True)
class LoadArguments:
    """The load that rises from run to run, and when to stop; the first three exclude each other."""

    queue_depths: str | None = option(
        "Closed loop at these depths, ascending. The default: 1,2,4,8,16,32,64,128."
    )
    speeds: str | None = option("Open loop at these speeds instead, ascending, such as 1,2,4,8.")
    users: str | None = option(
        "Open loop with these numbers of synthetic users, ascending, or a search from one number"
        " on: the command that made the trace makes the trace of each. With --gen the default:"
        " from 1."
    )
    read_p99: str | None = option(
        "With --speeds or --users: the p99 read response time (from when a read was due) of the"
        " slowest tier must not exceed this, such as 50ms."
    )


def _numbers(text: str | None, flag: str) -> list[float] | None:
    """Return the numbers of an option, separated by commas; None if it is not given."""
    if text is None:
        return None
    try:
        numbers = [float(number) for number in text.split(",")]
    except ValueError:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise ConfigError(f"{flag} {text}: separate numbers by commas, such as 1,2,4,8")
    return numbers


# Long: its options, and what --help says of them.
def sweep(
    trace: Annotated[
        Path | None,
        typer.Argument(help="A trace of kvtrace: *.parquet, *.csv.zst, or a dataset's folder."),
    ] = None,
    tier: list[str] | None = option(
        "As for kvreplay run. Repeatable.", None, "--tier -t", metavar="NAME=TARGET"
    ),
    output: Path = option("Output directory of the runs.", Path("sweep"), "--output -o"),
    *,
    gen: str | None = option(
        "Instead of a trace: options of a `kvtrace gen` that makes it; it is kept beside the runs."
    ),
    load: LoadArguments,
    plot_to: Plot = None,
    queue_depth: int | None = option(
        "With --speeds or --users: maximum in flight, as for kvreplay run."
    ),
    config: Annotated[
        Config, "io_bytes", "limit", "window", "warmup", "seed", "is_buffered", "engine"
    ],
    ranks: RanksArguments,
    force: Force = False,
    as_json: bool = option("Print the sweep as JSON.", False, "--json"),
) -> None:
    """Replay a trace at rising queue depths, speeds or users until it saturates; report the knee.

    It replays the 60 s from the first eviction of the slowest --tier, if it evicts; --window all
    takes the whole trace.

    \b
    Example:
      kvreplay sweep --gen "--preset lmcache-disk --set workload.think_time=10s" --tier nvme=/mnt/scratch -o sweep
      kvreplay sweep conv.parquet --tier nvme=/mnt/scratch --limit 20GiB -o sweep
      kvreplay sweep conv.parquet --tier nvme=/mnt/scratch --speeds 1,2,4,8,16 -o sweep
      kvreplay sweep t.parquet --tier nvme=/mnt/scratch --users 32,64,128 --read-p99 50ms --plot knee.svg -o sweep
    """
    with session(ranks) as several:
        import kvreplay
        from kvreplay.run.replay import replay
        from kvtrace.core.document.drawing import check_drawing, write_drawing
        from kvtrace.core.document.terminal import answer

        if plot_to is not None:
            check_drawing(plot_to)
        swept = kvreplay.sweep(
            trace,
            tiers=targets(tier),
            queue_depths=_numbers(load.queue_depths, "--queue-depths"),
            speeds=_numbers(load.speeds, "--speeds"),
            users=_numbers(load.users, "--users"),
            gen=gen,
            read_p99=load.read_p99,
            queue_depth=queue_depth,
            options=config,
            output=output,
            overwrite=force,
            tell=log,
            argv=command_line(),
            show=progress,
            replaying=replay if several is None else several.replay,
        )
        if plot_to is not None and swept.file.points:
            name = f"Sweep of {'trace.parquet' if trace is None else trace.name}"
            write_drawing(plot_to, replace(swept.document(), name=name), command_line())
            log(f"wrote {plot_to}")
        answer(swept.file, swept.document, as_json=as_json)
        if swept.error is not None:
            raise swept.error


# Long: its options, and its help.
def scorecard(
    target: Annotated[Path, typer.Argument(help="A folder on the drive to test.")],
    output: Path = option(
        "Output folder of the scorecard and its runs.", Path("scorecard"), "--output -o"
    ),
    *,
    size: str = option("Capacity that each stack uses on the drive.", "16GiB", metavar="SIZE"),
    window: str = option("How long each run measures.", "20s", metavar="DURATION"),
    presets: str = option(
        "Caching stacks, separated by commas.", "lmcache-disk,vllm-fs,sglang-hicache,mooncake-store"
    ),
    endurance: str | None = option(
        "The drive's rated endurance, such as 1DWPD,5y: also say how long it lasts."
    ),
    force: Force = False,
    as_json: bool = option("Print scorecard.json.", False, "--json"),
) -> None:
    """Test a drive: the users of four caching stacks that it sustains, with latencies and spread.

    First the drive itself is measured for a minute at several I/O sizes, queue depths and read
    shares. The result, drive.json, lets --tier nvme=sim:drive.json predict replays and kvreplay run
    --drive judge them.

    Each stack's trace of synthetic users is replayed at its own pace in its steady window, when its
    tiers are full and evict, with more and more users; the deciding load is run three times. With
    root and libbpf the block requests are measured, too. A stack takes about eight runs. SIZE is
    written before the first; the others reuse its files.

    \b
    Example:
      kvreplay scorecard /mnt/a -o card-a
      kvreplay scorecard /mnt/a --size 64GiB --window 30s --endurance 1DWPD,5y -o card-a
    """
    import kvreplay
    from kvreplay.probes.libbpf import check_available
    from kvtrace.core.document.terminal import answer

    has_probes = True
    try:
        check_available()
    except ProbeUnavailable as error:
        log(f"note: block requests are not measured: {error}")
        has_probes = False
    card = kvreplay.scorecard(
        target,
        size=size,
        window=window,
        presets=presets.split(","),
        endurance=endurance,
        probes=has_probes,
        output=output,
        overwrite=force,
        tell=log,
        argv=command_line(),
        show=progress,
    )
    if card.card is not None:
        answer(card.card, card.document, as_json=as_json)
    if card.error is not None:
        raise card.error
