"""Distil a source, write the fio jobs that are wanted, file by file whole or not at all, and check them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from kvdistill.check.check import Closeness, check
from kvdistill.formats.iolog import LogSummary
from kvdistill.jobs import job as fio
from kvdistill.jobs.job import FioMode
from kvdistill.jobs.write import Wanted, write_job, write_prefill
from kvdistill.profile.profile import ArrivalProfile, Profile
from kvdistill.profile.sources import Distilled, distil_source
from kvtrace.core.app import log, progress
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.files import Limit, write_json
from kvtrace.core.units import format_bytes, format_count, format_duration

CLOSENESS = "closeness.json"
MAX_LINES = 1_000_000
"""I/Os of a replay that are written unless all are asked for: enough that chance moves no figure by a hundredth."""
_LINE_BYTES = 36
"""Of a line of a log, but for the target's name."""


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
        shown = _replayed(source, tier, distilled, Path(scratch), wanted) if FioMode.REPLAY in modes else distilled
        with progress("write the jobs"):
            written = {
                mode: write_job(mode, shown if mode is FioMode.REPLAY else distilled, outdir, wanted) for mode in modes
            }
            prefill = write_prefill(distilled, written, outdir, wanted)
        write_json(outdir / fio.PROFILE, distilled.profile)
        closeness = None
        if wanted.checks is not None:
            log(f"checking: running {', '.join(mode.job for mode in modes)} with fio")
            closeness = check(source, tier, distilled, outdir, modes, wanted)
            write_json(outdir / CLOSENESS, closeness)
            if any(closeness.issue_us):
                told = replace(wanted, logs=replace(wanted.logs, issue_us=closeness.issue_us))
                written[FioMode.REPLAY] = write_job(FioMode.REPLAY, shown, outdir, told)
    names = [name for job in (prefill, *written.values()) for name in job.files]
    return Jobs(
        files=[*names, fio.PROFILE, *([CLOSENESS] if closeness else [])],
        space_bytes={mode: job.space_bytes for mode, job in written.items()},
        logs={mode: job.log for mode, job in written.items() if job.log is not None},
        profile=distilled.profile,
        closeness=closeness,
    )


def _replayed(source: Path, tier: str | None, whole: Distilled, scratch: Path, wanted: Wanted) -> Distilled:
    """Return the part of `whole` that the replay's logs hold: all of it, unless that is long and not asked for."""
    profile = whole.profile
    lines = sum(
        size.ops * -(-size.io_bytes // wanted.logs.max_io_bytes)
        for direction in (profile.read, profile.write)
        for size in direction.sizes
    )
    size = format_bytes(lines * (len(wanted.options.target) + _LINE_BYTES))
    if lines <= MAX_LINES or wanted.is_whole or profile.arrivals is None or whole.ios is None:
        if lines > MAX_LINES:
            log(f"the replay's logs take about {size} for {format_count(lines)} I/Os")
        return whole
    begin_ns, span_ns = typical(profile.arrivals, profile.span_ns, MAX_LINES / lines)
    log(
        f"the whole replay's logs would take about {size} for {format_count(lines)} I/Os (--whole writes them): "
        f"replay.fio has the most typical {format_duration(span_ns)} of {format_duration(profile.span_ns)}"
    )
    part = scratch / "replayed"
    part.mkdir()
    window = replace(whole.limit, begin_ns=whole.limit.begin_ns + begin_ns).within(Limit(span_ns=span_ns))
    return distil_source(source, tier, window, part)


def typical(arrivals: ArrivalProfile, span_ns: int, share: float) -> tuple[int, int]:
    """Return the beginning and length in ns of the window of `share` of the time whose mix is most like the whole's."""
    counts = np.array([arrivals.read_ops, arrivals.write_ops], dtype=np.float64)
    buckets = counts.shape[1]
    length = max(1, round(buckets * share))
    done = np.concatenate([np.zeros((2, 1)), np.cumsum(counts, axis=1)], axis=1)
    found = (done[:, length:] - done[:, :-length]) / length
    unlike = np.abs(found - counts.mean(axis=1, keepdims=True)).sum(axis=0)
    begin = int(unlike.argmin()) * arrivals.bucket_ns
    return begin, min(length * arrivals.bucket_ns, span_ns - begin)
