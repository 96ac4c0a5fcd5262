"""Distil a source and write the jobs of an object store into a folder, file by file whole or not at all."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from kvdistill.formats.oplog import OpLog, Style, can_log, write_oplogs
from kvdistill.jobs import sai3, warp
from kvdistill.profile.profile import Profile
from kvdistill.profile.sources import distil_source
from kvtrace.core.app import progress
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.files import Limit, write_json, write_text

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
