"""The files by which the run of several ranks is put together, also after they died: what each says of itself."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kvreplay.config.config import Config
from kvtrace.core.files import read_json, write_json
from kvtrace.core.run.run_file import DealNote

RANKS_FILE = "ranks.json"
"""In the folder of the whole, from before the start on."""
RANK_FILE = "rank.json"
"""In the folder of a rank, at its end."""


class Ordered(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks were asked to do: the content of ranks.json."""

    count: int
    hosts: list[str]
    """By rank."""
    library: str | None
    argv: list[str]
    config: Config
    trace: str
    """Its absolute path at rank 0."""
    output: str
    """As rank 0 was told it."""
    is_forced: bool = False
    deal: str | None = None
    """What the trace is dealt by; null: as the trace suggests."""


class RankReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank says of itself when it is done: the content of rank.json."""

    rank: int
    host: str
    cpus: int
    deal: DealNote | None = None
    is_whole: bool = True
    """Whether the ranks together were to replay the whole trace."""
    is_idle: bool = False
    """It was dealt nothing."""
    error: str | None = None
    """What went wrong after all had begun."""
    clock_offset_ns: int | None = None
    clock_error_ns: int | None = None
    clock_drift_ns: int | None = None
    start_ns: int | None = None
    """When all began, by rank 0's clock."""
    begun_late_ns: int | None = None
    stood_still_ns: int | None = None
    orphaned_ns: int | None = None
    """When, by rank 0's clock, its MPI process was gone; null if it was not."""


def read_ordered(folder: Path) -> Ordered:
    """Return what the ranks in `folder` were asked; TraceError if that is not known."""
    return read_json(folder / RANKS_FILE, Ordered, misfit="not of this version of kvreplay: {}")


def find_told(folder: Path) -> RankReport | None:
    """Return what the rank in `folder` said of itself at its end; null if it did not come to that."""
    return read_json(folder / RANK_FILE, RankReport) if (folder / RANK_FILE).is_file() else None


def write_told(folder: Path, told: RankReport) -> None:
    """Write what a rank says of itself into its folder."""
    folder.mkdir(exist_ok=True)
    write_json(folder / RANK_FILE, told)
