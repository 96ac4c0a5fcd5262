"""Write jobs into a folder, each file whole or not at all: fio jobs by mode, and those of object stores."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from kvdistill.formats import iolog
from kvdistill.formats.iolog import LogOptions, LogSummary
from kvdistill.formats.oplog import OpLog, Style, can_log, write_oplogs
from kvdistill.jobs import fio_replay
from kvdistill.jobs.fio_replay import draw
from kvdistill.jobs.fio_stat import expected_stat, stat_job
from kvdistill.jobs.job import PREFILL, PROFILE, ExpectedFigure, FioMode, JobOptions, stat_space_bytes, whole_mib
from kvdistill.jobs.store_mix import StoreJob
from kvdistill.profile.profile import Profile
from kvdistill.profile.sources import Distilled, distil_source
from kvtrace.core.app import progress
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.files import write_json, write_text
from kvtrace.core.limit import Limit


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Limits of a check."""

    seconds: float = 10.0
    max_bytes: int = 4 << 30
    """The most bytes that a check's part of the source moves, and its scratch file takes."""
    is_null: bool = False
    """Whether fio's null engine takes the I/O: what is late then is fio's, not a target's."""


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Which fio jobs to write, and how."""

    modes: Sequence[FioMode]
    options: JobOptions
    logs: LogOptions
    seed: int = 42
    """Of the random draws."""
    checks: CheckOptions | None = None
    is_strict: bool = False
    """Whether a job that is expected not to be as its source is refused."""
    is_whole: bool = False
    """Whether the replay is written whole, however long its logs are."""


@dataclass(frozen=True, slots=True)
class WrittenJob:
    """One job's files in their folder."""

    files: list[str]
    space_bytes: int
    log: LogSummary | None = None
    parts: Callable[[], Iterator[dict[str, Any]]] | None = None
    """What the logs hold, as `iolog.split_ios` yields it."""
    expected: Sequence[ExpectedFigure] = ()


def write_prefill(
    distilled: Distilled, written: Mapping[FioMode, WrittenJob], folder: Path, request: JobRequest
) -> WrittenJob:
    """Write the job that fills the target once for all that are `written`."""
    space = max(job.space_bytes for job in written.values())
    text = fio_replay.prefill_job(distilled.profile, list(written), space, request.options)
    write_text(folder / PREFILL, text)
    return WrittenJob([PREFILL], space)


def write_job(mode: FioMode, distilled: Distilled, folder: Path, request: JobRequest) -> WrittenJob:
    """Write the job of one mode and what it needs into `folder`."""
    return _WRITERS[mode](mode, distilled, folder, request)


def _write_stat(mode: FioMode, distilled: Distilled, folder: Path, request: JobRequest) -> WrittenJob:
    profile, options = distilled.profile, request.options
    write_text(folder / mode.job, stat_job(profile, options))
    return WrittenJob([mode.job], stat_space_bytes(profile, options), expected=expected_stat(profile, options))


def _write_logs(mode: FioMode, distilled: Distilled, folder: Path, request: JobRequest) -> WrittenJob:
    """Write iologs, of the source's operations or of drawn ones, and the job that runs them."""
    profile, options, most = distilled.profile, request.options, request.logs.max_io_bytes
    text: Callable[[LogSummary], str]
    if mode is FioMode.REPLAY:
        if distilled.ios is None:
            raise ValueError("distilled(=figures alone) must hold operations to be replayed.")
        span_bytes, parts = profile.placed.span_bytes, partial(iolog.split_ios, distilled.ios, most)
        text = partial(fio_replay.replay_job, profile, options=options)
    else:
        drawn = draw(profile, min(profile.span_ns, options.runtime_cap_ns), request.seed)
        span_bytes = drawn.span_bytes
        parts = partial(iolog.split, drawn.us, drawn.is_read, drawn.offset, drawn.length, most)
        text = partial(fio_replay.reuse_job, profile, span_bytes=span_bytes, seed=request.seed, options=options)
    form = fio_replay.replay_form(request.logs)
    logs = iolog.write_iologs(folder, mode, parts, options.target, form)
    write_text(folder / mode.job, text(logs))
    expected = fio_replay.expected_replay(profile, logs, is_drawn=mode is FioMode.REUSE)
    return WrittenJob([mode.job, *logs.files], whole_mib(span_bytes), logs, parts, expected)


_WRITERS: Final = {FioMode.REPLAY: _write_logs, FioMode.STAT: _write_stat, FioMode.REUSE: _write_logs}


MAX_HOSTS = 1024


class StoreJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Files written for warp or sai3-bench; `lost` is what the format cannot express, `log` null without op logs."""

    files: list[str]
    lost: list[str]
    log: OpLog | None
    profile: Profile


# Long: its parameters.
def write_store_jobs(
    source: Path,
    tier: str | None,
    outdir: Path,
    limit: Limit,
    name: str,
    job_of: Callable[[Profile], StoreJob],
    *,
    style: Style | None,
    endpoint: str,
    hosts: int = 1,
    argv: Sequence[str],
) -> StoreJobs:
    """Write the job `name` of an object store, which `job_of` makes, and op logs of a `style`, one for each of `hosts`.

    Without a style there are no logs.

    Raises:
        ConfigError, TraceError, DeviceError: as the parts say.

    """
    if not 1 <= hosts <= MAX_HOSTS:
        raise ConfigError(f"--hosts {hosts}: it must be 1 to {MAX_HOSTS}")
    make_folder(outdir)
    with tempfile.TemporaryDirectory(prefix=".kvdistill-", dir=outdir) as scratch, progress(f"distil {source.name}"):
        profile = distil_source(source, tier, limit, Path(scratch)).profile
    job, log = job_of(profile), None
    lost = job.lost
    if style is not None and can_log(source):
        with progress("write the op log"):
            log = write_oplogs(
                source, profile.tier, outdir, style, endpoint=endpoint, hosts=hosts, limit=limit, argv=argv
            )
    elif style is not None:
        lost = [*lost, f"single operations on objects: {source.name} holds none, so there is no op log"]
    write_text(outdir / name, job.text)
    write_json(outdir / PROFILE, profile)
    logs = [] if log is None else [*log.populate_files, *log.files]
    return StoreJobs(files=[name, *logs, PROFILE], lost=lost, log=log, profile=profile)


def make_folder(outdir: Path) -> None:
    """Make the folder `outdir` for jobs, unless it is there; DeviceError if that fails."""
    try:
        outdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeviceError(f"cannot make the folder {outdir}: {error.strerror}") from None
