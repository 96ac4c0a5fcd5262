"""The same command on every rank, each with work of its own: only its replays begin and end together.

So the clients of an MLPerf submission run, which each have their own requests; their results are combined, not pooled.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvreplay.config.config import Config
from kvreplay.mpi.meeting import Meeting
from kvreplay.ranks.helper import Ranks
from kvreplay.run.run import FinishedRun, replay
from kvreplay.run.watch import Watching
from kvtrace.core.errors import KvError, RankLost

T = TypeVar("T")


class Alongside:
    """A command that every rank runs."""

    def __init__(self, ranks: Ranks) -> None:
        """Run it on `ranks`."""
        self.ranks = ranks
        with suppress(RankLost):
            ranks.exchange(b"")

    def together(self, do: Callable[[], T]) -> T:
        """Return what `do` returns, if it can be done on all ranks.

        Raises:
            KvError: it cannot, on this rank or on another.

        """
        meeting = Meeting(self.ranks)
        error: KvError | None = None
        found: list[T] = []
        try:
            found.append(do())
        except KvError as refused:
            error = refused
        meeting.ready(error)
        if error is not None:
            raise error
        return found[0]

    def told(self, value: Any) -> list[Any]:
        """Return what each rank says of itself; of one that is gone null."""
        told = self.ranks.exchange(msgspec.msgpack.encode(value))
        return [None if data is None else msgspec.msgpack.decode(data) for data in told]

    def replay(
        self,
        config: Config,
        trace: Path,
        output: Path,
        argv: list[str],
        *,
        is_forced: bool = False,
        show: Callable[[str, int], Any] | None = None,
        watching: Watching | None = None,
    ) -> FinishedRun:
        """Replay a trace of our own while the others replay theirs; parameters and errors as of `run.replay`."""
        meeting = Meeting(self.ranks)
        try:
            finished = replay(
                config, trace, output, argv, is_forced=is_forced, show=show, watching=watching, together=meeting
            )
        except KvError as error:
            meeting.leave(error)
            raise
        meeting.leave(None)
        if finished.run.status == "partial":
            # What goes on after it, such as another trial, must not go on elsewhere.
            self.ranks.stop(f"an error of rank {self.ranks.rank}: {finished.run.reason}")
        return finished
