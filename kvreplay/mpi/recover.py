"""`kvreplay recover` of a run with several ranks: recover those that were killed, and put all together."""

from __future__ import annotations

from pathlib import Path

from kvreplay.mpi.pooled.files import RANKS_FILE
from kvreplay.mpi.pooled.pool import pool, pooled_error
from kvreplay.run.run import FinishedRun
from kvtrace.core.errors import ConfigError
from kvtrace.core.run.run_file import RUN_FILE


def is_of_ranks(path: Path) -> bool:
    """Return whether `path` holds, or was to hold, the run of several ranks."""
    return (path / RANKS_FILE).is_file()


def recover(path: Path) -> FinishedRun:
    """Write the run of all ranks in `path` from what they left; ConfigError if it is there already."""
    if (path / RUN_FILE).is_file():
        raise ConfigError(f"{path}: the ranks were put together there; nothing to recover")
    run = pool(path)
    return FinishedRun(run, pooled_error(run, path))
