"""Write jobs into a folder, each file whole or not at all: fio jobs by mode, and those of object stores."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from kvdistill.formats.oplog import OpLog, Style, can_log, write_oplogs
from kvdistill.jobs import fio_replay
from kvdistill.jobs.fio_replay import LogSummary, draw, split, split_ios, write_iologs
from kvdistill.jobs.fio_stat import expected_stat, stat_job
from kvdistill.jobs.job import (
    PREFILL,
    PROFILE,
    ExpectedFigure,
    FioMode,
    JobOptions,
    expected_said,
    prefill_job,
    stat_space_bytes,
    whole_mib,
)
from kvdistill.jobs.store_jobs import StoreJob, StoreMix
from kvdistill.profile.profile import ArrivalProfile, Profile
from kvdistill.profile.sources import Distilled, distil_source
from kvtrace.core.app import log, progress
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.files import write_json, write_text
from kvtrace.core.limit import Limit
from kvtrace.core.units import format_bytes, format_count, format_duration

MAX_LINES = 1_000_000
"""I/Os of a replay that are written unless all are asked for: enough that chance moves no figure by a hundredth."""
_LINE_BYTES = 36
"""Of a line of a log, but for the target's name."""


@dataclass(frozen=True, slots=True)
class WrittenJob:
    """One job's files in their folder."""

    files: list[str]
    space_bytes: int
    log: LogSummary | None = None
    parts: Callable[[], Iterator[dict[str, Any]]] | None = None
    """What the logs hold, as `split_ios` yields it."""
    expected: Sequence[ExpectedFigure] = ()


def modes_of(distilled: Distilled, modes: Sequence[FioMode] | None) -> list[FioMode]:
    """Return the jobs to write: those asked for, or those that the source supports.

    Raises:
        ConfigError: the source does not support one that is asked for.

    """
    if modes:
        if FioMode.REPLAY in modes and distilled.ios is None:
            raise ConfigError(
                f"--mode replay: {distilled.profile.origin.file} holds no single operations; take a trace, a run or "
                "block events"
            )
        return list(dict.fromkeys(modes))
    known = [
        (FioMode.REPLAY, distilled.ios is not None),
        (FioMode.STAT, True),
        (FioMode.REUSE, distilled.profile.locality is not None and distilled.profile.arrivals is not None),
    ]
    return [mode for mode, is_known in known if is_known]


def part_to_replay(source: Path, tier: str | None, whole: Distilled, scratch: Path, options: JobOptions) -> Distilled:
    """Return the part of `whole` to replay: all of it, unless it has over MAX_LINES I/Os and --whole is not given."""
    profile = whole.profile
    lines = sum(
        size.ops * -(-size.io_bytes // options.io_bytes)
        for direction in (profile.read, profile.write)
        for size in direction.sizes
    )
    size = format_bytes(lines * (len(options.target) + _LINE_BYTES))
    if lines <= MAX_LINES or options.is_whole or profile.arrivals is None or whole.ios is None:
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
    """Return begin and length in ns of the most typical window: `share` of the time, its mix most like the whole's."""
    counts = np.array([arrivals.read_ops, arrivals.write_ops], dtype=np.float64)
    buckets = counts.shape[1]
    length = max(1, round(buckets * share))
    done = np.concatenate([np.zeros((2, 1)), np.cumsum(counts, axis=1)], axis=1)
    found = (done[:, length:] - done[:, :-length]) / length
    unlike = np.abs(found - counts.mean(axis=1, keepdims=True)).sum(axis=0)
    begin = int(unlike.argmin()) * arrivals.bucket_ns
    return begin, min(length * arrivals.bucket_ns, span_ns - begin)


def write_fio(
    profile: Profile, parts: Mapping[FioMode, Distilled], outdir: Path, scratch: Path, options: JobOptions
) -> dict[FioMode, WrittenJob]:
    """Write the job of each mode, made of its part of the source, into `outdir`, and the one that fills their target.

    Raises:
        ConfigError: `options` are strict, and one of them is expected not to be as its source.

    """
    for mode, part in parts.items() if options.is_strict else ():
        expected = write_job(mode, part, scratch, options).expected
        if any(figure.is_missed for figure in expected):
            raise ConfigError(
                f"--strict: {mode.job} is {expected_said(expected)}; nothing was written; choose others with "
                "--mode, or leave --strict out"
            )
    written = {mode: write_job(mode, part, outdir, options) for mode, part in parts.items()}
    write_prefill(profile, written, outdir, options)
    return written


def write_prefill(profile: Profile, written: Mapping[FioMode, WrittenJob], folder: Path, options: JobOptions) -> int:
    """Write the job that fills the target once for all that are `written`; return how much that is."""
    space = max(job.space_bytes for job in written.values())
    write_text(folder / PREFILL, prefill_job(profile, list(written), space, options))
    return space


def write_job(mode: FioMode, distilled: Distilled, folder: Path, options: JobOptions) -> WrittenJob:
    """Write the job of one mode and what it needs into `folder`."""
    return _WRITERS[mode](mode, distilled, folder, options)


def _write_stat(mode: FioMode, distilled: Distilled, folder: Path, options: JobOptions) -> WrittenJob:
    profile = distilled.profile
    write_text(folder / mode.job, stat_job(profile, options))
    return WrittenJob([mode.job], stat_space_bytes(profile, options), expected=expected_stat(profile, options))


def _write_logs(mode: FioMode, distilled: Distilled, folder: Path, options: JobOptions) -> WrittenJob:
    """Write iologs, of the source's operations or of drawn ones, and the job that runs them."""
    profile, most = distilled.profile, options.io_bytes
    text: Callable[[LogSummary], str]
    if mode is FioMode.REPLAY:
        if distilled.ios is None:
            raise ValueError("distilled(=figures alone) must hold operations to be replayed.")
        span_bytes, parts = profile.placed.span_bytes, partial(split_ios, distilled.ios, most)
        text = partial(fio_replay.replay_job, profile, options=options)
    else:
        drawn = draw(profile, min(profile.span_ns, options.runtime_cap_ns), options.seed)
        span_bytes = drawn.span_bytes
        parts = partial(split, drawn.us, drawn.is_read, drawn.offset, drawn.length, most)
        text = partial(fio_replay.reuse_job, profile, span_bytes=span_bytes, options=options)
    logs = write_iologs(folder, mode, parts, options)
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
) -> tuple[StoreJobs, StoreMix]:
    """Write the job `name` of an object store, which `job_of` makes, and op logs of a `style`, one for each of `hosts`.

    Without a style there are no logs. Returns what was written, and what the job asks for.

    Raises:
        ConfigError, TraceError, DeviceError: as the parts say.

    """
    if not 1 <= hosts <= MAX_HOSTS:
        raise ConfigError(f"--hosts {hosts}: it must be 1 to {MAX_HOSTS}")
    make_folder(outdir)
    with tempfile.TemporaryDirectory(prefix=".kvdistill-", dir=outdir) as scratch, progress(f"distil {source.name}"):
        profile = distil_source(source, tier, limit, Path(scratch)).profile
    job, oplog = job_of(profile), None
    lost = job.lost
    if style is not None and can_log(source):
        with progress("write the op log"):
            oplog = write_oplogs(
                source, profile.tier, outdir, style, endpoint=endpoint, hosts=hosts, limit=limit, argv=argv
            )
    elif style is not None:
        lost = [*lost, f"single operations on objects: {source.name} holds none, so there is no op log"]
    write_text(outdir / name, job.text)
    write_json(outdir / PROFILE, profile)
    logs = [] if oplog is None else [*oplog.populate_files, *oplog.files]
    return StoreJobs(files=[name, *logs, PROFILE], lost=lost, log=oplog, profile=profile), job.asks


def make_folder(outdir: Path) -> None:
    """Make the folder `outdir` for jobs, unless it is there; DeviceError if that fails."""
    try:
        outdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeviceError(f"cannot make the folder {outdir}: {error.strerror}") from None
