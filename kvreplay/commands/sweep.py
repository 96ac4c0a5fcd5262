"""Replay a trace again and again, with more load each time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvreplay.commands.options import RanksArguments, session, targets
from kvreplay.plan.replay_config import Config
from kvtrace.core.app import Force, Plot, command_line, log, option, progress
from kvtrace.core.errors import ConfigError, ProbeUnavailable
from kvtrace.core.temporary import temporary_folder
from kvtrace.core.units import parse_duration_ns

if TYPE_CHECKING:
    # Loaded by the command alone: --help needs none of it.
    from kvtrace.core.run.sweep_file import Axis


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

    def axis(self, *, has_users: bool = False) -> tuple[Axis, list[float]]:
        """Return the axis of the sweep and its values.

        Users by default if the trace `has_users`.
        """
        from kvreplay.experiments.load_sweep import DEPTHS
        from kvtrace.core.run.sweep_file import Axis

        given = {
            Axis.QUEUE_DEPTH: self.queue_depths,
            Axis.SPEED: self.speeds,
            Axis.USERS: self.users,
        }
        said = {axis: text for axis, text in given.items() if text is not None}
        if len(said) > 1:
            raise ConfigError(
                f"{' and '.join(axis.option for axis in said)} exclude each other; give one"
            )
        usual = (Axis.USERS, "1") if has_users else (Axis.QUEUE_DEPTH, ",".join(map(str, DEPTHS)))
        axis, text = next(iter(said.items()), usual)
        try:
            values = [float(part) for part in text.split(",")]
        except ValueError:
            values = [math.nan]
        if not all(map(math.isfinite, values)):
            raise ConfigError(f"{axis.option} {text}: separate numbers by commas, such as 1,2,4,8")
        return axis, values


@contextmanager
def _trace(trace: Path | None, gen: str | None) -> Iterator[Path]:
    """Yield the trace to replay.

    `trace`, or a passing one that `kvtrace gen` makes with the options of `gen`.
    """
    if trace is not None:
        yield trace
        return
    from kvtrace.core.run.run_file import generate

    with temporary_folder("kvreplay-") as folder:
        made = folder / "trace.parquet"
        generate(gen or "", made)
        yield made


# Long: its options, and what --help says of them.
def sweep(
    trace: Annotated[
        Path | None, typer.Argument(help="A trace of kvtrace: *.parquet or *.csv.zst.")
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
    same: Annotated[
        Config, "io_bytes", "limit", "window", "warmup", "seed", "is_buffered", "engine"
    ],
    ranks: RanksArguments,
    force: Force = False,
    as_json: bool = option("Print the sweep as JSON.", False, "--json"),
) -> None:
    """Replay a trace at rising queue depths, speeds or users until it saturates; name the knee.

    It takes the 60 s from when the slowest --tier first evicts, if it does; --window all takes the
    whole trace.

    \b
    Example:
      kvreplay sweep --gen "--preset lmcache-disk --set workload.think_time=10s" --tier nvme=/mnt/scratch -o sweep
      kvreplay sweep conv.parquet --tier nvme=/mnt/scratch --limit 20GiB -o sweep
      kvreplay sweep conv.parquet --tier nvme=/mnt/scratch --speeds 1,2,4,8,16 -o sweep
      kvreplay sweep t.parquet --tier nvme=/mnt/scratch --users 32,64,128 --read-p99 50ms --plot knee.svg -o sweep
    """
    with session(ranks) as several:
        from kvreplay.plan.memory_check import check_memory

        check_memory()
        from kvreplay.experiments import load_sweep as sweeping
        from kvreplay.experiments.load_sweep import progress_of
        from kvreplay.run.replay import Replay, replay
        from kvtrace.core.document.chapters import sweep_document
        from kvtrace.core.document.page import check_drawing, write_drawing
        from kvtrace.core.document.terminal import answer
        from kvtrace.core.schema import TRACE
        from kvtrace.core.tables import open_table

        if (trace is None) == (gen is None):
            raise ConfigError(
                "name one TRACE, or give --gen the options of the `kvtrace gen` that makes it"
            )
        if plot_to is not None:
            check_drawing(plot_to)
        target_ns = None if load.read_p99 is None else parse_duration_ns(load.read_p99)
        config = replace(same, tiers=targets(tier), queue_depth=queue_depth).steady()
        # Before --gen makes a trace, which may take minutes.
        asked = Replay(config, trace or Path(), output, command_line(), force, progress)
        asked.check()
        with _trace(trace, gen) as source:
            axis, values = load.axis(
                has_users=gen is not None and sweeping.has_users(open_table(source, TRACE).meta)
            )
            found, error = sweeping.sweep(
                replace(asked, trace=source),
                axis,
                values,
                is_made=gen is not None,
                read_p99_target_ns=target_ns,
                done=lambda point: log(f"{point.run}: {progress_of(axis, point, target_ns)}"),
                replaying=replay if several is None else several.replay,
            )
        if plot_to is not None and found.points:
            shown = replace(sweep_document(found), name=f"Sweep of {source.name}")
            write_drawing(plot_to, shown, command_line())
            log(f"wrote {plot_to}")
        answer(found, lambda: sweep_document(found), as_json=as_json)
        if error is not None:
            raise error


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
    """Test a drive.

    The users of four caching stacks that it sustains, how fast it then is, and how well that
    repeats.

    First the drive itself is measured for a minute: sizes, depths and mixes, written to drive.json,
    by which --tier nvme=sim:drive.json predicts replays and kvreplay run --drive judges them.

    Each stack's trace of synthetic users is replayed at its own pace in its steady window, when its
    tiers are full and evict, at more and more users; the load that decides is run three times. With
    root and libbpf the block requests are measured, too. A stack takes about eight runs. SIZE is
    written before the first; the others reuse its files.

    \b
    Example:
      kvreplay scorecard /mnt/a -o card-a
      kvreplay scorecard /mnt/a --size 64GiB --window 30s --endurance 1DWPD,5y -o card-a
    """
    from kvreplay.experiments import scorecard as cards
    from kvreplay.plan.memory_check import check_memory
    from kvreplay.probes.libbpf import check_available
    from kvreplay.run.replay import Replay
    from kvtrace.core.document.terminal import answer
    from kvtrace.core.statistics import parse_endurance

    check_memory()
    is_probed, rated = True, parse_endurance(endurance)
    # Before the drive is measured, which takes a minute.
    parse_duration_ns(window)
    try:
        check_available()
    except ProbeUnavailable as why:
        log(f"note: block requests are not measured: {why}")
        is_probed = False
    config = Config(
        tiers={cards.TIER: str(target)},
        is_kept=True,
        is_taking_over=True,
        window=f"steady:{window}",
        is_probed=is_probed,
        is_histograms_only=is_probed,
    )
    asked = Replay(config, Path(), output, command_line(), force, progress)
    asked.check()
    with ExitStack() as stack:
        # All before the first run: a stack that gen refuses must not end what takes an hour.
        traces = {
            preset: stack.enter_context(_trace(None, cards.gen_options(preset, size)))
            for preset in presets.split(",")
        }
        card, drive, error = cards.run_scorecard(asked, target, traces, log, rated)
    if card is not None:
        answer(card, lambda: cards.card_document(card, drive), as_json=as_json)
    if error is not None:
        raise error
