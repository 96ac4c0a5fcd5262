"""The commands `run`, `compare`, `recover` and `engine`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvreplay.commands.options import RanksArguments, RunAsJson, TraceFile, session, targets
from kvreplay.plan.replay_config import Config
from kvreplay.run.real_engines import EngineKind, EngineOptions
from kvtrace.core.app import Force, command_line, log, option, progress
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import counted

if TYPE_CHECKING:
    from kvreplay.run.replay import FinishedRun
    from kvreplay.run.watch import Watch, Watching


# Long: its options and an example of each kind.
def run(
    trace: TraceFile,
    tier: list[str] | None = option(
        "Target of a tier: an empty directory, one file (*.dat), a block device, several of these"
        " separated by commas (each object is placed on one, by its key, or by its id if the trace"
        " has no objects table), s3://BUCKET/PREFIX (by --s3-client; az:// and gs:// by s3dlio,"
        " untested), ram, gpu (or gpu:device=1,copy=device), sim (no data moves; times by"
        " the trace's service model, by sim:bandwidth=50GB,latency=10us, or by a drive that"
        " kvreplay scorecard measured: sim:drive.json; in simulated time if all tiers are sim) or"
        " null (no time). Repeatable; rows of tiers not named are skipped.",
        None,
        "--tier -t",
        metavar="NAME=TARGET",
    ),
    output: Path = option("The run's directory.", Path("run"), "--output -o"),
    *,
    how: Config,
    ranks: RanksArguments,
    metrics: str | None = option(
        "Serve counters during the run as OpenMetrics at :9464 (on loopback) or 0.0.0.0:9464;"
        " docs/grafana.json is a dashboard of them."
    ),
    trials: int | None = option(
        "Number of trials, in trial-1 … below the output; reports the median and spread of every"
        " figure."
    ),
    keep: bool = option(
        "Keep the object files after the run; the next run removes them.", False, "--keep"
    ),
    force: Force = False,
    as_json: RunAsJson = False,
) -> None:
    """Replay a trace on real tiers and write run.json and its tables.

    Written data neither deduplicates nor compresses. Objects that the replayed part reads but never
    wrote are written first and not measured. Stages of a request, and operations on an object, keep
    their order. Only our own files in the target are removed, at the end and at the next start
    after a crash.

    \b
    Example, as fast as the drive allows:
      kvreplay run conv.parquet --tier nvme=/mnt/scratch --tier cpu=ram --queue-depth 16 -o run
    Example, the first minute at the trace's own times:
      kvreplay run conv.parquet --tier nvme=/mnt/scratch --speed 1 --limit 60s -o run
    Example, on four hosts that start together, each its part:
      mpirun -n 4 --host a,b,c,d kvreplay run conv.parquet --mpi --tier nvme=/mnt/scratch -o run
    """
    with session(ranks) as several:
        from kvreplay.plan.memory_check import check_memory

        check_memory()
        from kvreplay.run.replay import Replay, replay

        config = replace(how, tiers=targets(tier), is_kept=keep)
        replaying = replay if several is None else several.replay
        with _watching(metrics) as watching:
            request = Replay(config, trace, output, command_line(), force, progress, watching)
            if trials is None:
                finished = replaying(request)
            else:
                from kvreplay.experiments.trials import Trials, trials_document
                from kvtrace.core.document.terminal import answer

                trial_runs = Trials(request, trials, replaying=replaying)
                with _collecting_errors() as on_trial:
                    trial_set, error = trial_runs.perform(on_trial)
                    answer(trial_set, lambda: trials_document(trial_set), as_json=as_json)
                if error is not None:
                    raise error
                return
    show_run(finished, f"wrote {output}", as_json=as_json)
    fail(finished, output)


@contextmanager
def _watching(metrics: str | None) -> Iterator[Watching]:
    """Yield the display of a run in progress: on stderr, and at the address `metrics` if given."""
    from kvreplay.run.watch import live, serving

    if metrics is None:
        yield live
        return
    with serving(metrics) as exporter:

        @contextmanager
        def both(watch: Watch) -> Iterator[None]:
            exporter.watch = watch
            with live(watch):
                yield

        yield both


def show_run(finished: FinishedRun, message: str, *, as_json: bool) -> None:
    """Print the figures of a run, or its run.json, and log `message`."""
    from kvreplay.run.run_document import run_document
    from kvtrace.core.document.terminal import answer

    answer(finished.run, lambda: run_document(finished), as_json=as_json)
    if not as_json:
        log(message)


def fail(finished: FinishedRun, output: Path) -> None:
    """Raise the error of a run that was cut short, read corrupt blocks, or had failed operations."""
    from kvreplay.run.library import error_of

    if (error := error_of(finished, output)) is not None:
        raise error


@contextmanager
def _collecting_errors() -> Iterator[Callable[[Path, FinishedRun], None]]:
    """Yield a function to call with each finished run.

    At the end, raise the error of the first run that failed.
    """

    def on_trial(run: Path, finished: FinishedRun) -> None:
        log(f"{run}: {finished.run.summary.verdict}")
        runs.append((finished, run))

    runs: list[tuple[FinishedRun, Path]] = []
    yield on_trial
    for finished, run in runs:
        fail(finished, run)


def compare(
    trace: TraceFile,
    tier: list[str] = option(
        "As for kvreplay run: side a. Repeatable.", ..., "--tier -t", metavar="NAME=TARGET"
    ),
    against: list[str] | None = option(
        "Side b: another target for a tier; tiers that it does not name are as in --tier."
        " Repeatable.",
        metavar="NAME=TARGET",
    ),
    against_s3_client: str | None = option(
        "Side b: another client library for s3:// targets, of one bucket or of two; else that of"
        " --s3-client."
    ),
    output: Path = option(
        "Output directory for the runs of both sides.", Path("comparison"), "--output -o"
    ),
    *,
    how: Config,
    trials: int = option("Runs of each side.", 5),
    force: Force = False,
    as_json: RunAsJson = False,
) -> None:
    """Replay a trace on two drives, or by two clients, in turn; report which is faster, by how much, and how surely.

    The sides alternate, so that a drift of the machine's speed favours neither. The trials are
    below a and b of the output, and `kvdistill compare` compares them. They replay the 60 s from
    the first eviction of the slowest --tier, if it evicts, or longer, until they have 100 reads and
    100 writes; --window all takes the whole trace.

    \b
    Example:
      kvreplay compare conv.parquet --tier nvme=/mnt/old --against nvme=/mnt/new -o comparison
    Example, two client libraries on one bucket:
      kvreplay compare conv.parquet --tier s3=s3://kv/runs --against-s3-client minio -o comparison
    """
    from kvreplay.plan.memory_check import check_memory

    check_memory()
    from kvreplay.experiments.trials import SIDES, run_pair
    from kvreplay.run.library import compare as compare_runs
    from kvreplay.run.replay import Replay
    from kvtrace.core.document.terminal import answer

    first = replace(how.steady(is_lengthened=True), tiers=targets(tier))
    second = replace(
        first,
        tiers=first.tiers | targets(against),
        s3_client=against_s3_client or first.s3_client,
    )
    if first == second:
        raise ConfigError(
            "--against names the same target as --tier, and --against-s3-client no other library;"
            " give another drive, such as --against nvme=/mnt/new"
        )
    request = Replay(first, trace, output, command_line(), force, progress)
    with _collecting_errors() as on_trial:
        error = run_pair(request, second, trials, on_trial=on_trial)
    if error is not None:
        raise error
    compared = compare_runs(*(output / side for side in SIDES))
    # The first line is the answer.
    answer(compared.comparison, lambda: replace(compared.document(), name=""), as_json=as_json)


def recover(
    run: Annotated[
        Path, typer.Argument(help="Directory of a run that was killed, or of trials or a sweep.")
    ],
    trace: Path | None = option("The trace that it replayed, if the file has moved since."),
    as_json: RunAsJson = False,
) -> None:
    """Make a partial run from the measurements of a killed one; of a killed probe, its requests.

    A run writes the operations that ended to its journal every few seconds, so a killed run may
    lack the last ones. Files that it left on its target are removed by the next run there. With
    --mpi, the killed ranks are recovered, and all ranks are merged. Of trials and a sweep, the run
    that was cut off is recovered.

    \b
    Example:
      kvreplay recover run
    """
    from kvreplay.probes.probe_session import recover_blocks
    from kvreplay.ranks.rank_session import is_of_ranks, recover_ranks
    from kvreplay.run.recover import recover as recover_one
    from kvreplay.run.recover import recovered
    from kvtrace.core.run.run_file import BLOCKS_FILE, BLOCKS_JOURNAL, find_unfinished_runs

    if (run / BLOCKS_JOURNAL).exists():
        rows = recover_blocks(run)
        log(f"wrote {run / BLOCKS_FILE}: {counted(rows, 'request')} of a probe that was killed")
        return
    for path in find_unfinished_runs(run) or [run]:
        finished = recover_ranks(path) if is_of_ranks(path) else recover_one(path, trace)
        message = f"wrote {path}: {finished.error or 'all ranks together'}"
        if path != run:
            message = recovered(path, finished.run)
        show_run(finished, message, as_json=as_json)


# Long: one parameter for each option.
def engine(
    name: Annotated[
        EngineKind, typer.Argument(metavar="ENGINE", help="lmcache, sglang or mooncake.")
    ],
    trace: Annotated[
        Path,
        typer.Argument(
            help="A Mooncake trace (*.jsonl), or a requests table of kvtrace import (*.parquet)."
        ),
    ],
    tier: str = option(
        "An empty directory on the storage under test.", ..., "--tier -t", metavar="nvme=DIRECTORY"
    ),
    output: Path = option("The run's directory.", Path("run"), "--output -o"),
    *,
    engine_options: EngineOptions,
    force: Force = False,
    as_json: RunAsJson = False,
) -> None:
    """Let a real engine's storage path serve a trace's requests, and record its file operations as
    a run.

    The engine's own code runs in an interpreter that has it; nothing is computed and no GPU is
    needed. Requests are served one at a time. The run is as kvreplay run's: kvdistill reports it,
    distils jobs from it, and compares it with the trace that kvtrace simulates of the same
    requests, and with a replay of that.

    \b
    Example, LMCache in an environment of its own:
      kvreplay engine lmcache conversation.jsonl --tier nvme=/mnt/nvme --python lmc/bin/python -o real
    Example, beside a replay of what kvtrace simulates (the same sizes; no GPU tier):
      kvtrace gen conversation.jsonl --source mooncake --limit 20 --preset lmcache-disk \\
        --model llama3.1-8b --set tiers.gpu.capacity=0 --set tiers.cpu.capacity=8GiB \\
        --set tiers.nvme.capacity=64GiB -o sim.parquet
      kvreplay run sim.parquet --tier nvme=/mnt/nvme --buffered -o replayed
      kvdistill compare real replayed
    """
    from kvreplay.plan.memory_check import check_memory

    check_memory()
    from kvreplay.run.engine_run import run_engine

    tier_name, _, directory = tier.partition("=")
    if tier_name != "nvme" or not directory:
        raise ConfigError(
            f"--tier {tier}: write the directory for the engine's files as nvme=DIRECTORY"
        )
    engine_options = replace(engine_options, kind=name, trace=trace, directory=Path(directory))
    finished = run_engine(
        engine_options, output, command_line(), is_forced=force, show=progress, announce=log
    )
    show_run(finished, f"wrote {output}", as_json=as_json)
    fail(finished, output)
