"""Distil a tier of a trace and write its fio jobs into a folder, whole or not at all, file by file."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvdistill import fio
from kvdistill.check import Closeness, check
from kvdistill.distill import distil
from kvdistill.iolog import LogSummary, write_iolog
from kvdistill.profile import Profile  # noqa: TC001 - msgspec reads the annotations
from kvtrace.core.app import log, progress
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.files import write_text

if TYPE_CHECKING:
    from kvdistill.check import CheckOptions
    from kvtrace.core.limit import Limit

CLOSENESS = "closeness.json"
_GRANULE_BYTES = 4096
_MAX_IO_BYTES = (1 << 32) - _GRANULE_BYTES


class Jobs(msgspec.Struct, frozen=True, kw_only=True):
    """What was written; `closeness` is null without `--check`."""

    files: list[str]
    replay_space_bytes: int
    stat_space_bytes: int
    log: LogSummary
    profile: Profile
    closeness: Closeness | None = None


def write_jobs(
    trace: Path, tier: str, outdir: Path, options: fio.JobOptions, max_io_bytes: int, limit: Limit,
    checks: CheckOptions | None,
) -> Jobs:  # fmt: skip
    """Write the jobs of `tier` of `trace` into `outdir`, and check them if `checks` says how.

    Raises:
        ConfigError, TraceError, DeviceError: as the parts say.
        ProbeUnavailable: a check is wanted, but there is no fio; the jobs are written all the same.

    """
    if not _GRANULE_BYTES <= max_io_bytes <= _MAX_IO_BYTES or max_io_bytes % _GRANULE_BYTES:
        raise ConfigError(f"--io-bytes {max_io_bytes}: it must be a multiple of 4096 below 4 GiB")
    if (outdir / options.target).is_dir():
        raise ConfigError(f"--target {options.target} is a folder; name a file or a block device")
    try:
        outdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeviceError(f"cannot make the folder {outdir}: {error.strerror}") from None
    with tempfile.TemporaryDirectory(prefix=".kvdistill-", dir=outdir) as scratch:
        with progress(f"distil {trace.name}"):
            distilled = distil(trace, tier, limit, Path(scratch))
        profile = distilled.profile
        with progress(f"write {fio.REPLAY_LOG}"):
            summary = write_iolog(outdir / fio.REPLAY_LOG, distilled.ios, options.target, max_io_bytes)
        write_text(outdir / fio.REPLAY_JOB, fio.replay_job(profile, summary, options))
        write_text(outdir / fio.STAT_JOB, fio.stat_job(profile, options))
        write_text(outdir / fio.PROFILE, to_json(profile))
        closeness = None
        if checks is not None:
            log("checking: running both jobs with fio")
            checks = replace(checks, max_io_bytes=max_io_bytes)
            closeness = check(trace, distilled, limit, outdir, checks)
            write_text(outdir / CLOSENESS, to_json(closeness))
    names = [fio.REPLAY_JOB, fio.REPLAY_LOG, fio.STAT_JOB, fio.PROFILE, *([CLOSENESS] if closeness else [])]
    return Jobs(
        files=names, replay_space_bytes=fio.replay_space_bytes(profile), stat_space_bytes=fio.stat_space_bytes(profile),
        log=summary, profile=profile, closeness=closeness,
    )  # fmt: skip


def to_json(value: msgspec.Struct) -> str:
    """Return `value` as indented JSON, the same on every run."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"
