"""Compare two drives, or two of anything that a tier can lie on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvreplay.commands.arguments import ReplayArguments
from kvreplay.commands.options import RunAsJson, TraceFile, command_line, targets
from kvreplay.commands.run import fail
from kvtrace.core.app import log, progress, takes_groups
from kvtrace.core.errors import ConfigError


@takes_groups
def compare(
    trace: TraceFile,
    tier: Annotated[
        list[str], typer.Option("--tier", "-t", metavar="NAME=TARGET", help="As for kvreplay run: side a. Repeatable.")
    ],
    against: Annotated[
        list[str],
        typer.Option(
            "--against",
            metavar="NAME=TARGET",
            help="Side b: another target for a tier; tiers that it does not name are as in --tier. Repeatable.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The directory of both sides.")] = Path("comparison"),
    *,
    how: ReplayArguments,
    trials: Annotated[int, typer.Option(help="Runs of each side.")] = 3,
    force: Annotated[
        bool, typer.Option("--force", help="Write into a directory that is not empty; replaces runs there.")
    ] = False,
    as_json: RunAsJson = False,
) -> None:
    """Replay a trace on two drives in turn, and say which is faster, by how much, and how sure that is.

    The sides alternate, so that a machine whose speed drifts favours neither. Each leaves trials below a and b of the
    output, and `kvdistill compare` sets them beside each other.

    \b
    Example:
      kvreplay compare conv.parquet --tier nvme=/mnt/old --against nvme=/mnt/new --limit 20GiB -o comparison
    """
    from kvreplay.config.limits import check_memory

    check_memory()
    from kvreplay.run.run import FinishedRun
    from kvreplay.run.trials import SIDES, run_pair
    from kvtrace.core.run.run_file import run_program

    first = targets(tier)
    second = first | targets(against)
    if first == second:
        raise ConfigError("--against: it names the targets of --tier; give another drive, such as nvme=/mnt/new")
    configs = (how.config(first, is_kept=False), how.config(second, is_kept=False))
    runs: list[tuple[FinishedRun, Path]] = []

    def done(run: Path, finished: FinishedRun) -> None:
        log(f"{run}: {finished.run.summary.verdict}")
        runs.append((finished, run))

    error = run_pair(configs, trace, output, command_line(), trials, is_forced=force, show=progress, done=done)
    for finished, directory in runs:
        fail(finished, directory)
    if error is not None:
        raise error
    sides = [str(output / side) for side in SIDES]
    run_program("kvdistill", ["compare", *sides, *(["--json"] if as_json else [])], is_shown=True)
