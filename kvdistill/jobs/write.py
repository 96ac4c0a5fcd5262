"""Distil a source and write its fio jobs into a folder, whole or not at all, file by file."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvdistill.formats import iolog
from kvdistill.formats.iolog import LogSummary
from kvdistill.jobs import fio_replay
from kvdistill.jobs import job as fio
from kvdistill.jobs.check import CheckOptions, Closeness, check
from kvdistill.jobs.fio_stat import stat_job
from kvdistill.jobs.job import JobOptions, Mode
from kvdistill.profile.profile import Profile
from kvdistill.profile.sources import distil_source
from kvtrace.core.app import log, progress
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.files import write_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvdistill.formats.iolog import LogOptions
    from kvdistill.profile.distil import Distilled
    from kvtrace.core.limit import Limit

CLOSENESS = "closeness.json"


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """What was written; `closeness` is null without `--check`."""

    files: list[str]
    space_bytes: dict[str, int]
    """What each job needs on its target."""
    logs: dict[str, LogSummary]
    """Of the jobs that run iologs."""
    profile: Profile
    closeness: Closeness | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which jobs, and how."""

    modes: Sequence[Mode]
    options: JobOptions
    logs: LogOptions
    seed: int = 42
    """For what is drawn."""
    checks: CheckOptions | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """One job's files in their folder."""

    files: list[str]
    space_bytes: int
    log: LogSummary | None = None
    parts: Callable[[], Iterator[dict[str, Any]]] | None = None
    """What the logs hold, as `iolog.split_ios` yields it."""


def modes_of(distilled: Distilled, wanted: Sequence[Mode]) -> list[Mode]:
    """Return the jobs to write: those asked for, or those the source can tell.

    Raises:
        ConfigError: the source cannot tell one that is asked for.

    """
    if wanted:
        if Mode.REPLAY in wanted and distilled.ios is None:
            raise ConfigError(
                f"--mode replay: {distilled.profile.origin.file} holds no single operations; take a trace, a run or "
                "block events"
            )
        return list(dict.fromkeys(wanted))
    known = [(Mode.REPLAY, distilled.ios is not None), (Mode.STAT, True), (Mode.REUSE, _has_reuse(distilled.profile))]
    return [mode for mode, is_known in known if is_known]


def _has_reuse(profile: Profile) -> bool:
    return profile.locality is not None and profile.arrivals is not None


def write_jobs(source: Path, tier: str | None, outdir: Path, limit: Limit, wanted: Wanted) -> Jobs:
    """Write the jobs of `source` into `outdir`, and check them if that is wanted.

    Raises:
        ConfigError, TraceError, DeviceError: as the parts say.
        ProbeUnavailable: a check is wanted, but there is no fio; the jobs are written all the same.

    """
    target = outdir / wanted.options.target
    if target.is_dir():
        raise ConfigError(f"--target {wanted.options.target} is a folder; name a file or a block device")
    try:
        outdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeviceError(f"cannot make the folder {outdir}: {error.strerror}") from None
    wanted = replace(wanted, options=replace(wanted.options, is_device=target.is_block_device()))
    with tempfile.TemporaryDirectory(prefix=".kvdistill-", dir=outdir) as scratch:
        with progress(f"distil {source.name}"):
            distilled = distil_source(source, tier, limit, Path(scratch))
        modes = modes_of(distilled, wanted.modes)
        with progress("write the jobs"):
            written = {mode: write_job(mode, distilled, outdir, wanted) for mode in modes}
        write_text(outdir / fio.PROFILE, to_json(distilled.profile))
        closeness = None
        if wanted.checks is not None:
            log(f"checking: running {', '.join(mode.job for mode in modes)} with fio")
            closeness = check(source, tier, limit, distilled, outdir, modes, wanted)
            write_text(outdir / CLOSENESS, to_json(closeness))
    names = [name for job in written.values() for name in job.files]
    return Jobs(
        files=[*names, fio.PROFILE, *([CLOSENESS] if closeness else [])],
        space_bytes={mode: job.space_bytes for mode, job in written.items()},
        logs={mode: job.log for mode, job in written.items() if job.log is not None},
        profile=distilled.profile, closeness=closeness,
    )  # fmt: skip


def write_job(mode: Mode, distilled: Distilled, folder: Path, wanted: Wanted) -> Written:
    """Write the job of one mode and what it needs into `folder`."""
    profile, options = distilled.profile, wanted.options
    if mode is Mode.STAT:
        write_text(folder / mode.job, stat_job(profile, options))
        return Written([mode.job], fio.stat_space_bytes(profile, options))
    jobs = fio_replay.default_jobs(wanted.logs)
    if mode is Mode.REPLAY:
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
    return Written([mode.prefill, mode.job, *logs.files], space, logs, parts)


def to_json(value: msgspec.Struct) -> str:
    """Return `value` as indented JSON, the same on every run."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
