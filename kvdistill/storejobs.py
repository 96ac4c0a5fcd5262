"""Distil a tier of a trace and write its jobs for warp, sai3-bench, elbencho or Vdbench into a folder."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kvdistill import elbencho, sai3, vdbench, warp
from kvdistill.distill import distil
from kvdistill.oplog import OpLog, Style, write_oplogs
from kvdistill.profile import Profile  # noqa: TC001 - msgspec reads the annotations
from kvtrace.core.app import progress
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.files import write_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvtrace.core.limit import Limit

PROFILE = "profile.json"
MAX_HOSTS = 1024


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What was written; `lost` is what the format cannot say, `log` the op logs, null if none were asked for."""

    files: list[str]
    lost: list[str]
    log: OpLog | None
    profile: Profile


def write_warp(
    trace: Path, tier: str, outdir: Path, options: warp.WarpOptions, limit: Limit, *, has_csv: bool, argv: Sequence[str]
) -> Written:
    """Write warp's mixed benchmark, and its CSV if `has_csv`.

    Raises:
        ConfigError, TraceError, DeviceError: as the parts say.

    """
    profile = _distil(trace, tier, outdir, limit)
    job = warp.warp_job(profile, options)
    log = None
    if has_csv:
        endpoint = f"http://{options.host}"
        with progress("write the CSV"):
            log = write_oplogs(trace, tier, outdir, Style.WARP, endpoint=endpoint, hosts=1, limit=limit, argv=argv)
    return _write(outdir, profile, {warp.JOB: job.text}, job.lost, log)


def write_sai3(
    trace: Path, tier: str, outdir: Path, options: sai3.Sai3Options, limit: Limit, *, hosts: int, argv: Sequence[str]
) -> Written:
    """Write sai3-bench's op logs for `hosts`, and its random workload.

    Raises:
        ConfigError, TraceError, DeviceError: as the parts say.

    """
    if not 1 <= hosts <= MAX_HOSTS:
        raise ConfigError(f"--hosts {hosts}: it must be 1 to {MAX_HOSTS}")
    profile = _distil(trace, tier, outdir, limit)
    job = sai3.sai3_workload(profile, options)
    with progress("write the op log"):
        log = write_oplogs(
            trace, tier, outdir, Style.SAI3, endpoint=options.target, hosts=hosts, limit=limit, argv=argv
        )
    return _write(outdir, profile, {sai3.WORKLOAD: job.text}, job.lost, log)


def write_elbencho(trace: Path, tier: str, outdir: Path, runtime_cap_ns: int, limit: Limit) -> Written:
    """Write elbencho's configurations: one that fills the file, and the mixed run.

    Raises:
        ConfigError, TraceError, DeviceError: as the parts say.

    """
    profile = _distil(trace, tier, outdir, limit)
    job = elbencho.elbencho_job(profile, runtime_cap_ns)
    texts = {elbencho.PREFILL: elbencho.prefill_job(profile), elbencho.MIXED: job.text}
    return _write(outdir, profile, texts, job.lost, None)


def write_vdbench(trace: Path, tier: str, outdir: Path, target: str, runtime_cap_ns: int, limit: Limit) -> Written:
    """Write Vdbench's parameter file.

    Raises:
        ConfigError, TraceError, DeviceError: as the parts say.

    """
    profile = _distil(trace, tier, outdir, limit)
    job = vdbench.vdbench_job(profile, target, runtime_cap_ns)
    return _write(outdir, profile, {vdbench.JOB: job.text}, job.lost, None)


def _distil(trace: Path, tier: str, outdir: Path, limit: Limit) -> Profile:
    try:
        outdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeviceError(f"cannot make the folder {outdir}: {error.strerror}") from None
    with tempfile.TemporaryDirectory(prefix=".kvdistill-", dir=outdir) as scratch, progress(f"distil {trace.name}"):
        return distil(trace, tier, limit, Path(scratch)).profile


def _write(outdir: Path, profile: Profile, texts: dict[str, str], lost: list[str], log: OpLog | None) -> Written:
    text = msgspec.json.format(msgspec.json.encode(profile), indent=2).decode() + "\n"
    for name, content in {**texts, PROFILE: text}.items():
        write_text(outdir / name, content)
    logs = [] if log is None else [*log.populate_files, *log.files]
    return Written(files=[*texts, *logs, PROFILE], lost=lost, log=log, profile=profile)
