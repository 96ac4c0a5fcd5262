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
from kvdistill.jobs import fio_replay, sai3, warp
from kvdistill.jobs import job as fio
from kvdistill.jobs.fio_replay import draw
from kvdistill.jobs.fio_stat import expected_stat, stat_job
from kvdistill.jobs.job import PROFILE, ExpectedFigure, FioMode, JobOptions
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
    write_text(folder / fio.PREFILL, text)
    return WrittenJob([fio.PREFILL], space)


def write_job(mode: FioMode, distilled: Distilled, folder: Path, request: JobRequest) -> WrittenJob:
    """Write the job of one mode and what it needs into `folder`."""
    return _WRITERS[mode](distilled, folder, request)


def _write_stat(distilled: Distilled, folder: Path, request: JobRequest) -> WrittenJob:
    profile, job = distilled.profile, FioMode.STAT.job
    write_text(folder / job, stat_job(profile, request.options))
    expected = expected_stat(profile, request.options)
    return WrittenJob([job], fio.stat_space_bytes(profile, request.options), expected=expected)


def _write_replay(distilled: Distilled, folder: Path, request: JobRequest) -> WrittenJob:
    profile, ios = distilled.profile, distilled.ios
    if ios is None:
        raise ValueError("distilled(=figures alone) must hold operations to be replayed.")

    parts = partial(iolog.split_ios, ios, request.logs.max_io_bytes)
    text = partial(fio_replay.replay_job, profile, options=request.options)
    return _write_logs(FioMode.REPLAY, profile, folder, request, profile.placed.span_bytes, parts, text)


def _write_reuse(distilled: Distilled, folder: Path, request: JobRequest) -> WrittenJob:
    profile = distilled.profile
    drawn = draw(profile, min(profile.span_ns, request.options.runtime_cap_ns), request.seed)
    parts = partial(iolog.split, drawn.us, drawn.is_read, drawn.offset, drawn.length, request.logs.max_io_bytes)
    options, seed = request.options, request.seed
    text = partial(fio_replay.reuse_job, profile, span_bytes=drawn.span_bytes, seed=seed, options=options)
    return _write_logs(FioMode.REUSE, profile, folder, request, drawn.span_bytes, parts, text)


def _write_logs(
    mode: FioMode,
    profile: Profile,
    folder: Path,
    request: JobRequest,
    span_bytes: int,
    parts: Callable[[], Iterator[dict[str, Any]]],
    text: Callable[[LogSummary], str],
) -> WrittenJob:
    """Write iologs of `parts`, which use `span_bytes` of the target, and the job `text` that runs them."""
    options, space = request.options, fio.whole_mib(span_bytes)
    form = fio_replay.replay_form(request.logs)
    logs = iolog.write_iologs(folder, mode, parts, options.target, form)
    write_text(folder / mode.job, text(logs))
    expected = fio_replay.expected_replay(profile, logs, is_drawn=mode is FioMode.REUSE)
    return WrittenJob([mode.job, *logs.files], space, logs, parts, expected)


_WRITERS: Final[dict[FioMode, Callable[[Distilled, Path, JobRequest], WrittenJob]]] = {
    FioMode.REPLAY: _write_replay,
    FioMode.STAT: _write_stat,
    FioMode.REUSE: _write_reuse,
}


MAX_HOSTS = 1024


class StoreJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Files written for warp or sai3-bench; `lost` is what the format cannot express, `log` null without op logs."""

    files: list[str]
    lost: list[str]
    log: OpLog | None
    profile: Profile


def write_warp(
    source: Path,
    tier: str | None,
    outdir: Path,
    options: warp.WarpOptions,
    limit: Limit,
    *,
    has_csv: bool,
    argv: Sequence[str],
) -> StoreJobs:
    """Write warp's mixed benchmark, and its CSV if `has_csv`.

    Raises:
        ConfigError, TraceError, DeviceError: as the parts say.

    """
    profile = _distil_into(source, tier, outdir, limit)
    job = warp.warp_job(profile, options)
    log, lost = None, job.lost
    if has_csv:
        endpoint = f"http://{options.host}"
        log, more = _write_log(source, profile, outdir, Style.WARP, endpoint=endpoint, hosts=1, limit=limit, argv=argv)
        lost = lost + more
    return _write_store_files(outdir, profile, {warp.JOB: job.text}, lost, log)


def write_sai3(
    source: Path,
    tier: str | None,
    outdir: Path,
    options: sai3.Sai3Options,
    limit: Limit,
    *,
    hosts: int,
    argv: Sequence[str],
) -> StoreJobs:
    """Write sai3-bench's op logs for `hosts`, and its random workload.

    Raises:
        ConfigError, TraceError, DeviceError: as the parts say.

    """
    if not 1 <= hosts <= MAX_HOSTS:
        raise ConfigError(f"--hosts {hosts}: it must be 1 to {MAX_HOSTS}")
    profile = _distil_into(source, tier, outdir, limit)
    job = sai3.sai3_workload(profile, options)
    log, more = _write_log(
        source, profile, outdir, Style.SAI3, endpoint=options.target, hosts=hosts, limit=limit, argv=argv
    )
    return _write_store_files(outdir, profile, {sai3.WORKLOAD: job.text}, job.lost + more, log)


def make_folder(outdir: Path) -> None:
    """Make the folder `outdir` for jobs, unless it is there; DeviceError if that fails."""
    try:
        outdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeviceError(f"cannot make the folder {outdir}: {error.strerror}") from None


def _distil_into(source: Path, tier: str | None, outdir: Path, limit: Limit) -> Profile:
    make_folder(outdir)
    with tempfile.TemporaryDirectory(prefix=".kvdistill-", dir=outdir) as scratch, progress(f"distil {source.name}"):
        return distil_source(source, tier, limit, Path(scratch)).profile


def _write_log(
    source: Path,
    profile: Profile,
    outdir: Path,
    style: Style,
    *,
    endpoint: str,
    hosts: int,
    limit: Limit,
    argv: Sequence[str],
) -> tuple[OpLog | None, list[str]]:
    """Write op logs, or say why there are none."""
    if not can_log(source):
        return None, [f"single operations on objects: {source.name} holds none, so there is no op log"]
    with progress("write the op log"):
        log = write_oplogs(source, profile.tier, outdir, style, endpoint=endpoint, hosts=hosts, limit=limit, argv=argv)
    return log, []


def _write_store_files(
    outdir: Path, profile: Profile, texts: dict[str, str], lost: list[str], log: OpLog | None
) -> StoreJobs:
    for name, content in texts.items():
        write_text(outdir / name, content)
    write_json(outdir / PROFILE, profile)
    logs = [] if log is None else [*log.populate_files, *log.files]
    return StoreJobs(files=[*texts, *logs, PROFILE], lost=lost, log=log, profile=profile)
