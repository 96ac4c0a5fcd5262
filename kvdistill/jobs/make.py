"""Distil a source, write the jobs that are wanted into a folder, file by file whole or not at all, and check them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from kvdistill.formats.iolog import LogSummary
from kvdistill.formats.oplog import OpLog, Style, write_oplogs
from kvdistill.formats.oplog_source import can_log
from kvdistill.jobs import job as fio
from kvdistill.jobs import sai3, warp
from kvdistill.jobs.check import Closeness, check
from kvdistill.jobs.job import FioMode
from kvdistill.jobs.write import Wanted, write_job
from kvdistill.profile.distil import Distilled
from kvdistill.profile.profile import Profile
from kvdistill.profile.sources import distil_source
from kvtrace.core.app import log, progress
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.files import write_json, write_text
from kvtrace.core.limit import Limit

CLOSENESS = "closeness.json"


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """Files of the fio jobs that were written; `closeness` is null without `--check`."""

    files: list[str]
    space_bytes: dict[str, int]
    """What each job needs on its target."""
    logs: dict[str, LogSummary]
    """Of the jobs that run iologs."""
    profile: Profile
    closeness: Closeness | None = None


def modes_of(distilled: Distilled, wanted: Sequence[FioMode]) -> list[FioMode]:
    """Return the jobs to write: those asked for, or those the source can tell.

    Raises:
        ConfigError: the source cannot tell one that is asked for.

    """
    if wanted:
        if FioMode.REPLAY in wanted and distilled.ios is None:
            raise ConfigError(
                f"--mode replay: {distilled.profile.origin.file} holds no single operations; take a trace, a run or "
                "block events"
            )
        return list(dict.fromkeys(wanted))
    known = [
        (FioMode.REPLAY, distilled.ios is not None),
        (FioMode.STAT, True),
        (FioMode.REUSE, _has_reuse(distilled.profile)),
    ]
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
        write_json(outdir / fio.PROFILE, distilled.profile)
        closeness = None
        if wanted.checks is not None:
            log(f"checking: running {', '.join(mode.job for mode in modes)} with fio")
            closeness = check(source, tier, limit, distilled, outdir, modes, wanted)
            write_json(outdir / CLOSENESS, closeness)
    names = [name for job in written.values() for name in job.files]
    return Jobs(
        files=[*names, fio.PROFILE, *([CLOSENESS] if closeness else [])],
        space_bytes={mode: job.space_bytes for mode, job in written.items()},
        logs={mode: job.log for mode, job in written.items() if job.log is not None},
        profile=distilled.profile,
        closeness=closeness,
    )


PROFILE = "profile.json"
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
    profile = _distil(source, tier, outdir, limit)
    job = warp.warp_job(profile, options)
    log, lost = None, job.lost
    if has_csv:
        endpoint = f"http://{options.host}"
        log, more = _log(source, profile, outdir, Style.WARP, endpoint=endpoint, hosts=1, limit=limit, argv=argv)
        lost = lost + more
    return _write(outdir, profile, {warp.JOB: job.text}, lost, log)


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
    profile = _distil(source, tier, outdir, limit)
    job = sai3.sai3_workload(profile, options)
    log, more = _log(source, profile, outdir, Style.SAI3, endpoint=options.target, hosts=hosts, limit=limit, argv=argv)
    return _write(outdir, profile, {sai3.WORKLOAD: job.text}, job.lost + more, log)


def _distil(source: Path, tier: str | None, outdir: Path, limit: Limit) -> Profile:
    try:
        outdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeviceError(f"cannot make the folder {outdir}: {error.strerror}") from None
    with tempfile.TemporaryDirectory(prefix=".kvdistill-", dir=outdir) as scratch, progress(f"distil {source.name}"):
        return distil_source(source, tier, limit, Path(scratch)).profile


def _log(
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


def _write(outdir: Path, profile: Profile, texts: dict[str, str], lost: list[str], log: OpLog | None) -> StoreJobs:
    for name, content in texts.items():
        write_text(outdir / name, content)
    write_json(outdir / PROFILE, profile)
    logs = [] if log is None else [*log.populate_files, *log.files]
    return StoreJobs(files=[*texts, *logs, PROFILE], lost=lost, log=log, profile=profile)
