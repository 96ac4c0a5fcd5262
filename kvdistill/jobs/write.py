"""Write the files of one fio job: a pure function of what was distilled and of the options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kvdistill.formats import iolog
from kvdistill.formats.iolog import LogOptions, LogSummary
from kvdistill.jobs import fio_replay
from kvdistill.jobs import job as fio
from kvdistill.jobs.fio_stat import stat_job
from kvdistill.jobs.job import FioMode, JobOptions
from kvdistill.profile.distil import Distilled
from kvtrace.core.errors import ConfigError
from kvtrace.core.files import write_text


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How much a check runs."""

    seconds: float = 10.0
    max_bytes: int = 4 << 30
    """The most bytes that a check's part of the source moves, and its scratch file takes."""
    is_null: bool = False
    """Whether fio's null engine takes the I/O: what is late then is fio's, not a target's."""

    def __post_init__(self) -> None:
        """Refuse what runs nothing."""
        if self.seconds <= 0:
            raise ConfigError(f"--check-seconds {self.seconds}: it must be more than 0")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which jobs, and how."""

    modes: Sequence[FioMode]
    options: JobOptions
    logs: LogOptions
    seed: int = 42
    """For what is drawn."""
    checks: CheckOptions | None = None


@dataclass(frozen=True, slots=True)
class WrittenJob:
    """One job's files in their folder."""

    files: list[str]
    space_bytes: int
    log: LogSummary | None = None
    parts: Callable[[], Iterator[dict[str, Any]]] | None = None
    """What the logs hold, as `iolog.split_ios` yields it."""


def write_job(mode: FioMode, distilled: Distilled, folder: Path, wanted: Wanted) -> WrittenJob:
    """Write the job of one mode and what it needs into `folder`."""
    profile, options = distilled.profile, wanted.options
    if mode is FioMode.STAT:
        write_text(folder / mode.job, stat_job(profile, options))
        return WrittenJob([mode.job], fio.stat_space_bytes(profile, options))
    jobs = fio_replay.default_jobs(wanted.logs)
    if mode is FioMode.REPLAY:
        ios = distilled.ios
        assert ios is not None

        def parts() -> Iterator[dict[str, Any]]:
            return iolog.split_ios(ios, wanted.logs.max_io_bytes)

        logs = iolog.write_iologs(folder, mode, parts, options.target, jobs, wanted.logs)
        space = fio.whole_mib(profile.placed.span_bytes)
        text = fio_replay.replay_job(profile, logs, options)
    else:
        from kvdistill.jobs.reuse_model import draw

        drawn = draw(profile, min(profile.span_ns, options.runtime_cap_ns), wanted.seed)

        def parts() -> Iterator[dict[str, Any]]:
            return iolog.split(drawn.us, drawn.is_read, drawn.offset, drawn.length, wanted.logs.max_io_bytes)

        logs = iolog.write_iologs(folder, mode, parts, options.target, jobs, wanted.logs)
        space = fio.whole_mib(drawn.span_bytes)
        text = fio_replay.reuse_job(profile, logs, drawn.span_bytes, wanted.seed, options)
    write_text(folder / mode.prefill, fio_replay.prefill_job(profile, mode, space, options))
    write_text(folder / mode.job, text)
    return WrittenJob([mode.prefill, mode.job, *logs.files], space, logs, parts)


def to_json(value: msgspec.Struct) -> str:
    """Return `value` as indented JSON, the same on every run."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
