"""Run the locked options of the MLPerf Storage KV-cache benchmark, and take the results of several
ranks together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvreplay.commands.options import RanksArguments, alongside, targets
from kvreplay.plan.replay_config import Config
from kvtrace.core.app import Force, command_line, emit_json, log, option, progress
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.run.run_file import RANK_FOLDER

if TYPE_CHECKING:
    from kvreplay import MlperfRun

_STORAGE = "nvme"
"""The tier of the storage under test."""


@dataclass(frozen=True, slots=True)
class LockedArguments:
    """Options that the rules lock; with other values the benchmark runs and its results are marked."""

    runtime: str = option("Wall-clock time of each trial.", "300s", "--duration")
    trials: int = option("Trials of each option.", 3, min=1, max=100)
    seed: int = option("Base seed of the requests and the data; the rank is added.", 42, min=0)
    pause: str = option("Pause between two options.", "90s")
    capacity: str | None = option(
        "Capacity of the storage tier, such as 500GiB. The default is the benchmark's: 95 % of the"
        " free space."
    )


@dataclass(frozen=True, slots=True)
class ClientArguments:
    """Options of this client that the rules leave open."""

    rank: int = option(
        "Rank of this client if several run; each rank has its own requests.", 0, min=0
    )
    is_mpi: bool = option(
        "Run a client on each rank that mpirun started, in a folder rank-0000 … of the target;"
        " their trials begin together and their results are combined. Needs the extra mpi.",
        False,
        "--mpi",
    )
    queue_depth: int | None = option(
        "Maximum I/Os of 1 MiB in flight. The default: the option's number of users."
    )


# Long: its options, and what --help says of them.
def mlperf(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="OPTION...|combine RANK...|check TREE",
            help=(
                "v3-8b-stress (option 1; v3-8b is short for it), v3-8b-throughput (2), v3-70b (3),"
                " or v3 for all; or "
                "combine and the folders of ranks; or check and a result tree of mlpstorage."
            ),
            show_default=False,
        ),
    ],
    tier: list[str] | None = option(
        "The storage under test, as for kvreplay run.", None, "--tier -t", metavar="nvme=TARGET"
    ),
    output: Path = option(
        "Where results go, on another filesystem; a folder for each of several.",
        Path("mlperf"),
        "--output -o",
    ),
    *,
    locked: LockedArguments,
    client: ClientArguments,
    ranks: Annotated[RanksArguments, "rank_timeout"],
    how: Annotated[Config, "precondition", "is_destroying", "overwritten", "drive"],
    dry_run: bool = option(
        "Dry run: print the runs, space needed and the rules; write nothing.", False, "--dry-run"
    ),
    break_rules: bool = option(
        "Run although results lie on the filesystem under test, and mark them.",
        False,
        "--break-rules",
    ),
    force: Force = False,
    as_json: bool = option("Print the results as JSON.", False, "--json"),
) -> None:
    """Run a locked option of the MLPerf Storage KV-cache benchmark by its rules, combine ranks, or
    check a submission.

    Makes the option's trace with its users, memory and seed, replays it in trials of a fixed
    duration, and writes mlperf.json, mlperf.csv and mlperf.xlsx with the benchmark's metric names,
    its criteria, the rules that were kept, and claims that a replay does not support. Results that
    break a rule are marked.

    \b
    Example, option 1 by the rules, and a dry run:
      kvreplay mlperf v3-8b --tier nvme=/mnt/drive -o results
      kvreplay mlperf v3-8b --tier nvme=/mnt/drive -o results --dry-run
    Example, all three options, 90 s apart:
      kvreplay mlperf v3 --tier nvme=/mnt/drive -o results
    Example, two clients that start together, each on its host, and their sum:
      kvreplay mlperf v3-8b --tier nvme=/mnt/array/rank-0 --rank 0 -o rank-0
      kvreplay mlperf v3-8b --tier nvme=/mnt/array/rank-1 --rank 1 -o rank-1
      kvreplay mlperf combine rank-0 rank-1 -o together
    Example, the same by MPI, on four hosts:
      mpirun -n 4 --host a,b,c,d kvreplay mlperf v3-8b --mpi --tier nvme=/mnt/array -o together
    Example, the faults of a result tree of mlpstorage before it is submitted:
      kvreplay mlperf check results-dir
    """
    import kvreplay

    if names[0] == "check":
        _check(names[1:], as_json=as_json)
        return
    if names[0] == "combine":
        combined = kvreplay.combine_mlperf(names[1:], output, overwrite=force, argv=command_line())
        _show(combined, is_one=len(combined.results) == 1, as_json=as_json)
        return
    with alongside(is_mpi=client.is_mpi, rank_timeout=ranks.rank_timeout) as several:
        from kvreplay.run.replay import replay
        from kvreplay.run.watch import live
        from kvtrace.core.document.terminal import show_documents

        tiers, folder, clients, rank = targets(tier), output, 1, client.rank
        if several is not None and several.ranks.count > 1:
            from kvreplay.ranks.rank_session import own_client

            tiers, folder, clients = own_client(several, tiers, _STORAGE, output, is_forced=force)
            rank = several.ranks.rank
        plan = kvreplay.plan_mlperf(
            names,
            tiers=tiers,
            output=folder,
            duration=locked.runtime,
            trials=locked.trials,
            seed=locked.seed,
            pause=locked.pause,
            capacity=locked.capacity,
            rank=rank,
            clients=clients,
            queue_depth=client.queue_depth,
            replay_options=how,
            tell=log,
            argv=command_line(),
        )
        if dry_run:
            if as_json:
                emit_json(plan.to_dict())
            else:
                show_documents(plan.documents())
            return
        is_first = several is None or several.ranks.rank == 0
        run = kvreplay.run_mlperf(
            plan,
            break_rules=break_rules,
            overwrite=force,
            tell=log,
            argv=command_line(),
            show=progress if is_first else None,
            watching=live if is_first else None,
            replaying=replay if several is None else several.replay,
        )
        # With several ranks, only the combined results are shown.
        if several is None or several.ranks.count == 1:
            _show(run, is_one=len(plan.attempts) == 1, as_json=as_json)
        if run.error is not None:
            raise run.error
        if folder != output and several is not None:
            from kvreplay.ranks.rank_session import bring_results

            if bring_results(several, tiers, output):
                folders = [
                    output / RANK_FOLDER.format(number) for number in range(several.ranks.count)
                ]
                combined = kvreplay.combine_mlperf(
                    folders, output, overwrite=True, argv=command_line()
                )
                _show(combined, is_one=len(combined.results) == 1, as_json=as_json)


def _show(run: MlperfRun, *, is_one: bool, as_json: bool) -> None:
    """Print results: as JSON the one of a single option, else a list."""
    from kvtrace.core.document.terminal import show_documents

    if as_json:
        emit_json(run.results[0] if is_one else run.results)
    else:
        show_documents(run.documents())


def _check(trees: Sequence[str], *, as_json: bool) -> None:
    """Print the faults of a result tree; TraceError if it has any."""
    import kvreplay
    from kvtrace.core.document.terminal import answer

    if len(trees) != 1:
        raise ConfigError("check takes one folder, the --results-dir of mlpstorage")
    check = kvreplay.check_mlperf(trees[0], argv=command_line())
    answer(check.checked, check.document, as_json=as_json)
    if not check.is_valid:
        raise TraceError(check.answer, path=trees[0])
