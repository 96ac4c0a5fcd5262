"""Arguments and options that several commands share, and sessions of several ranks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvreplay.plan.replay_config import PartitionBy
from kvtrace.core.app import option
from kvtrace.core.errors import ConfigError, KvError

if TYPE_CHECKING:
    from kvreplay.ranks.rank_session import Alongside, RankSession


TraceFile = Annotated[
    Path, typer.Argument(help="A trace of kvtrace: *.parquet, *.csv.zst, or a dataset's folder.")
]
RunAsJson = Annotated[
    bool, typer.Option("--json", help="Print the run's manifest and summary as JSON.")
]


def targets(options: list[str] | None) -> dict[str, str]:
    """Parse `--tier NAME=TARGET` options; return targets by tier name.

    ConfigError for another form.
    """
    by_tier: dict[str, str] = {}
    for text in options or []:
        name, equals, target = text.partition("=")
        if not (name and equals and target):
            raise ConfigError(
                f"--tier {text}: write it as NAME=TARGET, for example nvme=/mnt/scratch or cpu=ram"
            )
        if name in by_tier:
            raise ConfigError(
                f"--tier {text}: tier {name} has the target {by_tier[name]} already; name it once"
            )
        by_tier[name] = target
    return by_tier


@dataclass(frozen=True, slots=True)
class RanksArguments:
    """Options of a replay on several ranks."""

    is_mpi: bool = option(
        "Replay on all ranks that mpirun started, each its part of the trace in a folder rank-0000"
        " … of the targets; one result. In a target {rank} and {local} become the rank's number, of"
        " all and on its host. Needs the extra mpi.",
        False,
        "--mpi",
    )
    partition: PartitionBy | None = option(
        "With --mpi: how the trace is partitioned over ranks: by node, user (a session, where"
        " --requests tells, else a request) or object.  [default: the first of these that the trace"
        " has several of]"
    )
    rank_timeout: str = option(
        "With --mpi: end the run on all ranks if one has not answered for this long.", "30s"
    )


@contextmanager
def session(arguments: RanksArguments) -> Iterator[RankSession | None]:
    """Yield the session of rank 0, or None without --mpi.

    Every other rank carries out the orders of rank 0, then exits.

    ConfigError or ProbeUnavailable if there can be no ranks.
    """
    if not arguments.is_mpi:
        if arguments.partition is not None:
            raise ConfigError(
                f"--partition {arguments.partition} partitions a trace over ranks; add --mpi"
            )
        yield None
        return
    from kvreplay.ranks.helper import begin

    with closing(begin(arguments.rank_timeout)) as ranks:
        from kvreplay.ranks.rank_session import RankSession

        rank_session = RankSession(ranks, arguments.partition)
        if ranks.rank:
            rank_session.follow()
            raise typer.Exit
        with closing(rank_session):
            yield rank_session


@contextmanager
def alongside(*, is_mpi: bool, rank_timeout: str) -> Iterator[Alongside | None]:
    """Yield the synchronization of a command that every rank runs; null without --mpi."""
    if not is_mpi:
        yield None
        return
    from kvreplay.ranks.helper import begin

    with closing(begin(rank_timeout)) as ranks:
        from kvreplay.ranks.rank_session import Alongside

        try:
            yield Alongside(ranks)
        except KvError as error:
            ranks.stop(f"an error of rank {ranks.rank}: {error}")
            if ranks.rank:
                # Rank 0 reports the error.
                raise typer.Exit from None
            raise
