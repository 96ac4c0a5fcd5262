"""Run the locked options of the MLPerf Storage KV-cache benchmark, and take the results of several
ranks together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvreplay.commands.options import RanksArguments, alongside, targets
from kvreplay.plan.replay_config import Config
from kvtrace.core.app import Force, command_line, emit_json, log, option, progress
from kvtrace.core.errors import ConfigError, KvError, TraceError
from kvtrace.core.run.run_file import RANK_FOLDER
from kvtrace.core.units import NS_PER_S, parse_bytes, parse_duration_ns

if TYPE_CHECKING:
    # Loaded by the command alone: --help needs none of it.
    from kvreplay.experiments.mlperf_result import MlperfResult
    from kvreplay.experiments.mlperf_rules import Attempt, LockedOption, Rule
    from kvreplay.ranks.rank_session import Alongside

_TICK_S = 0.2


@dataclass(frozen=True, slots=True)
class LockedArguments:
    """What the rules lock: with another value the benchmark runs, and its results are marked."""

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
    """How this client replays, which the rules leave open."""

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

    Makes the option's trace with its users, memory and seed, replays it in trials that the clock
    ends, and leaves mlperf.json, mlperf.csv and mlperf.xlsx with the benchmark's metric names, its
    criteria, the rules that were kept, and what a replay cannot claim. Results that break a rule
    say so wherever they stand.

    \b
    Example, option 1 as the rules have it, and what it would need:
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
    Example, what is wrong with a result tree of mlpstorage before it is submitted:
      kvreplay mlperf check results-dir
    """
    if names[0] in _OF_RESULTS:
        _OF_RESULTS[names[0]](
            [Path(name) for name in names[1:]], output, is_forced=force, as_json=as_json
        )
        return
    with alongside(is_mpi=client.is_mpi, rank_timeout=ranks.rank_timeout) as several:
        from kvreplay.plan.memory_check import check_memory

        check_memory()
        from kvreplay.experiments.mlperf_rules import (
            ALL,
            SHORT,
            plan_document,
            refuse_broken,
            resolve,
            rules_of,
        )
        from kvreplay.experiments.mlperf_submit import TRACE
        from kvreplay.plan.output_directory import check_output
        from kvreplay.run.replay import Replay
        from kvtrace.core.document.terminal import show_documents

        how, options = replace(how, tiers=targets(tier)), resolve(names)
        for name in names:
            if name in SHORT:
                log(f"{name} is {SHORT[name]} ({resolve([name])[0].said}); {ALL} names all options")
        folder, sharing = output, 1
        if several is not None and several.ranks.count > 1:
            from kvreplay.plan.tier_targets import STORAGE
            from kvreplay.ranks.rank_session import own_client

            tiers, folder, sharing = own_client(
                several, how.tiers, STORAGE, output, is_forced=force
            )
            how = replace(how, tiers=tiers)
            client = replace(client, rank=several.ranks.rank)
        attempts = [
            _attempt(option, how, folder, len(options), locked, client, sharing)
            for option in options
        ]
        planned = [(attempt, rules_of(attempt)) for attempt in attempts]
        if dry_run:
            if as_json:
                emit_json(
                    [
                        {"option": a.option.name, "space": a.space, "rules": rules}
                        for a, rules in planned
                    ]
                )
            else:
                show_documents([plan_document(attempt, rules) for attempt, rules in planned])
            return
        check_output(folder, is_forced=force)
        for attempt, rules in planned:
            Replay(attempt.config, folder / TRACE, folder, command_line()).check_targets()
            refuse_broken(rules, is_allowed=break_rules)
        _run(planned, folder, several, as_json=as_json)
        if folder != output and several is not None:
            from kvreplay.ranks.rank_session import bring_results

            if bring_results(several, how.tiers, output):
                folders = [output / RANK_FOLDER.format(rank) for rank in range(several.ranks.count)]
                _combine(folders, output, is_forced=True, as_json=as_json)


def _attempt(
    option: LockedOption,
    replay: Config,
    output: Path,
    options: int,
    locked: LockedArguments,
    client: ClientArguments,
    sharing: int = 1,
) -> Attempt:
    """Return `option` as the arguments ask for it, with the room of one of `sharing` clients of a
    filesystem.

    ConfigError if it cannot be.
    """
    from kvreplay.experiments.mlperf_rules import Attempt, place_of, targets_of
    from kvreplay.experiments.mlperf_submit import TRACE
    from kvreplay.plan.tier_targets import STORAGE
    from kvreplay.run.replay import Replay

    config = replace(
        replay,
        tiers=targets_of(replay.tiers, option),
        queue_depth=client.queue_depth or option.users,
        runtime=locked.runtime,
        fsync="close",
    )
    Replay(config, output / TRACE, output, command_line()).check_options()
    place = place_of(replay.tiers[STORAGE], output)
    place = replace(place, free_bytes=place.free_bytes // sharing)
    capacity = None if locked.capacity is None else parse_bytes(locked.capacity)
    attempt = Attempt(
        option=option,
        config=config,
        place=place,
        trials=locked.trials,
        runtime_ns=config.runtime_ns or 0,
        pause_ns=parse_duration_ns(locked.pause),
        seed_base=locked.seed,
        rank=client.rank,
        options=options,
        asked_bytes=capacity,
    )
    if not 0 < attempt.capacity_bytes <= place.room_bytes:
        raise ConfigError(f"{attempt.space}: name a larger target, or a smaller --capacity")
    return attempt


def _run(
    planned: Sequence[tuple[Attempt, list[Rule]]],
    output: Path,
    ranks: Alongside | None,
    *,
    as_json: bool,
) -> None:
    from kvreplay.experiments.mlperf_submit import TRACE, submit
    from kvreplay.plan.output_directory import make_directory
    from kvreplay.run.replay import Replay, replay
    from kvreplay.run.watch import live

    results: list[MlperfResult] = []
    error: KvError | None = None
    if len(planned) > 1:
        make_directory(output, "mlperf.json")
    for attempt, rules in planned:
        if results:
            _rest(attempt.pause_ns / NS_PER_S)
        option = attempt.option
        log(f"{option.name}: {option.said}; space: {attempt.space}")
        for rule in rules:
            log(f"{rule.rule} ({rule.reference}): {rule.kept}: {rule.detail}")
        folder = output / option.name if len(planned) > 1 else output
        is_first = ranks is None or ranks.ranks.rank == 0
        asked = Replay(attempt.config, folder / TRACE, folder, command_line())
        asked = replace(asked, show=progress, watching=live) if is_first else asked
        found, error = submit(
            attempt, rules, asked, replaying=replay if ranks is None else ranks.replay
        )
        results.append(found)
        if error is not None:
            break
    # Of several ranks what is combined is shown.
    if ranks is None or ranks.ranks.count == 1:
        _show(results, is_one=len(planned) == 1, as_json=as_json)
    if error is not None:
        raise error


def _show(results: list[MlperfResult], *, is_one: bool, as_json: bool) -> None:
    """Print results: as JSON the one of a single option, else a list."""
    from kvreplay.experiments.mlperf_result import result_document
    from kvtrace.core.document.terminal import show_documents

    if as_json:
        emit_json(results[0] if is_one else results)
    else:
        show_documents([result_document(found) for found in results])


def _rest(seconds: float) -> None:
    """Wait so long between two options, with progress."""
    log(f"pausing {seconds:g} s before the next option")
    end = time.monotonic() + seconds
    with progress("resting", seconds) as note:
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(_TICK_S, left))
            note(seconds - left)


def _check(trees: Sequence[Path], _output: Path, *, is_forced: bool, as_json: bool) -> None:  # noqa: ARG001 - as _combine
    """Print the faults of a result tree; TraceError if it has any."""
    from kvreplay.experiments.mlperf_check import check_document, check_tree
    from kvtrace.core.document.terminal import answer

    if len(trees) != 1:
        raise ConfigError("check takes one folder, the --results-dir of mlpstorage")
    found = check_tree(trees[0], command_line())
    answer(found, lambda: check_document(found), as_json=as_json)
    if found.findings:
        raise TraceError(found.answer, path=trees[0])


def _combine(folders: Sequence[Path], output: Path, *, is_forced: bool, as_json: bool) -> None:
    from kvreplay.experiments.mlperf_submit import combine, write_result
    from kvreplay.plan.output_directory import check_output, make_directory

    found = combine(folders, command_line())
    check_output(output, is_forced=is_forced)
    make_directory(output, "mlperf.json")
    for result in found:
        folder = output / result.option if len(found) > 1 else output
        make_directory(folder, "mlperf.json")
        write_result(result, [], folder)
    _show(found, is_one=len(found) == 1, as_json=as_json)


_OF_RESULTS = {"combine": _combine, "check": _check}
"""What is done with results that are there, instead of a run."""
