"""Run the jobs briefly with fio on a scratch file, and compare the I/O that fio did with the source's."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from kvdistill.formats.iolog import split_ios
from kvdistill.jobs import fio_program
from kvdistill.jobs import job as fio
from kvdistill.jobs.closeness import StreamFigures, Verdict, job_figures, source_figures, verdicts
from kvdistill.jobs.job import FioMode
from kvdistill.jobs.streams import Stream, asked_stream, drawn_stream, profile_stream, replayed_stream
from kvdistill.jobs.write import CheckOptions, Wanted, WrittenJob, write_job
from kvdistill.profile.distil import Distilled
from kvdistill.profile.sources import distil_source
from kvtrace.core.errors import DeviceError, ProbeUnavailable
from kvtrace.core.files import read_json
from kvtrace.core.limit import Limit
from kvtrace.core.units import NS_PER_S, format_bytes, format_duration, format_rate

_SPARE_BYTES = 256 << 20
"""Free space that a check leaves alone."""
_SLOWEST_BYTES_PER_S = 20e6
"""A target slower than this is given up on: a check is meant to be brief."""
_NOT_KEEPING_UP_US = 100_000
"""Lateness of the median I/O beyond which the target is said not to keep up."""


class ClosenessPair(msgspec.Struct, frozen=True, kw_only=True):
    """One job beside the source over the same window."""

    job: str
    window: str
    source: StreamFigures
    fio: StreamFigures
    verdicts: list[Verdict]


class Closeness(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `--check`, the content of `closeness.json`."""

    fio_version: str
    comparisons: list[ClosenessPair]
    notes: list[str]


def find_closeness(path: Path) -> Closeness | None:
    """Return the content of the closeness.json at `path`, or null if there is no such file.

    Raises:
        TraceError: it is damaged, or of another version.

    """
    if not path.is_file():
        return None
    return read_json(path, Closeness, misfit="no closeness of this version: {}")


@dataclass(frozen=True, slots=True)
class _Run:
    """One job to run: the part of the source it is made of, and its folder."""

    mode: FioMode
    distilled: Distilled
    window: str
    place: Path
    wanted: Wanted


def check(
    source: Path,
    tier: str | None,
    limit: Limit,
    whole: Distilled,
    outdir: Path,
    modes: Sequence[FioMode],
    wanted: Wanted,
) -> Closeness:
    """Run the jobs of `modes` on a scratch file in `outdir`, cut to a brief part; return how close they come.

    They are of the source's first `seconds` or `max_bytes`; the statistical job is of all of `whole` if its file is
    small enough.

    Raises:
        ProbeUnavailable: there is no fio.
        DeviceError: too little space, or fio failed.

    """
    version, options = fio_program.installed(), wanted.checks or CheckOptions()
    if version is None:
        raise ProbeUnavailable(f"--check needs fio; {fio_program.HOW_TO_GET}. The job files are written.")
    cap = max(1, int(options.seconds * NS_PER_S))
    job_options = replace(wanted.options, target=fio.SCRATCH, version=version, runtime_cap_ns=cap, is_device=False)
    wanted = replace(wanted, options=job_options)
    part_limit = limit.within(Limit(span_ns=cap, moved_bytes=None if options.is_null else options.max_bytes))
    comparisons, notes = [], [_depth_note(whole)]
    if options.is_null:
        notes.append("fio's null engine took the I/O: times are fio's own, and a target only adds to them")
    with tempfile.TemporaryDirectory(prefix=".check-", dir=outdir) as folder:
        place = Path(folder)
        part = whole if whole.ios is None else distil_source(source, tier, part_limit, place)
        for mode in modes:
            is_whole = (
                part is whole
                or part.profile.ops == whole.profile.ops
                or (mode is FioMode.STAT and _is_brief(whole, wanted, options))
            )
            chosen = whole if is_whole else part
            window = "the whole window" if is_whole else f"the first {format_duration(chosen.profile.span_ns)}"
            run = _Run(mode, chosen, window, place, wanted)
            comparisons.append(_check_drawn(run) if mode is FioMode.STAT else _check_logs(run, notes))
    return Closeness(fio_version=str(version), comparisons=comparisons, notes=notes)


def _is_brief(whole: Distilled, wanted: Wanted, options: CheckOptions) -> bool:
    # A job without a rate moves all it has, and takes as long as that takes.
    return whole.profile.span_ns > 0 and fio.stat_space_bytes(whole.profile, wanted.options) <= options.max_bytes


def _depth_note(whole: Distilled) -> str:
    depth = whole.profile.depth
    if depth is None:
        return "the source's depth is not known: a trace has no measured times"
    return f"the source's depth is {depth.mean:.3g} over all of it, weighted by time"


def _write(run: _Run) -> WrittenJob:
    written = write_job(run.mode, run.distilled, run.place, run.wanted)
    if _is_null(run):
        return written
    free = shutil.disk_usage(run.place).free
    if free < written.space_bytes + _SPARE_BYTES:
        raise DeviceError(
            f"--check needs {format_bytes(written.space_bytes)} in {run.place.parent} and leaves "
            f"{format_bytes(_SPARE_BYTES)} alone, but {format_bytes(free)} are free; check less with --check-seconds "
            "or --check-bytes"
        )
    return written


def _check_logs(run: _Run, notes: list[str]) -> ClosenessPair:
    """Run the job of iologs in `run`."""
    written, is_replay = _write(run), run.mode is FioMode.REPLAY
    log, ios = written.log, run.distilled.ios
    assert log is not None
    assert written.parts is not None
    # The null engine submits nothing.
    kind = "slat" if len(log.files) == 1 and not _is_null(run) else "clat"
    job = run.place / run.mode.job
    kept = _with_options(job.read_text(), "write_lat_log", ["log_offset=1", "log_unix_epoch=1"])
    job.write_text(_on_null(kept) if _is_null(run) else kept)
    moved_bytes = log.read_bytes + log.write_bytes
    if not _is_null(run):
        fio_program.run_fio(run.place / run.mode.prefill, 30 + written.space_bytes / _SLOWEST_BYTES_PER_S)
    result = fio_program.run_fio(job, 30 + log.last_us / 1e6 + log.start_ms / 1e3 + moved_bytes / _SLOWEST_BYTES_PER_S)
    logs = [_the_log(run.place, f"{file.removesuffix('.iolog')}_{kind}.*.log") for file in log.files]
    asked = asked_stream(written.parts(), by_instant=True)
    source = asked if ios is None or is_replay else asked_stream(split_ios(ios, log.max_io_bytes), by_instant=True)
    stream = replayed_stream(logs, asked, is_submission=kind == "slat")
    for path in (*logs, run.place / fio.SCRATCH):
        path.unlink(missing_ok=True)
    depth = _mean_depth(result["jobs"], stream) if kind == "clat" else None
    figures = job_figures(run.mode, stream, source, is_replay=is_replay, mean_depth=depth)
    if figures.late_p50_us is not None and figures.late_p50_us > _NOT_KEEPING_UP_US:
        rate = moved_bytes * NS_PER_S / run.distilled.profile.span_ns if run.distilled.profile.span_ns else None
        notes.append(
            f"half of the replay's I/Os were over {format_duration(figures.late_p50_us * 1000)} late: the target here "
            f"does not keep up with {format_rate(rate)} in these bursts; each of --jobs has one I/O in flight"
        )
    return _compare(run, source_figures("source", source), figures)


def _the_log(place: Path, pattern: str) -> Path:
    (path,) = place.glob(pattern)
    return path


def _check_drawn(run: _Run) -> ClosenessPair:
    """Run the statistical job in `run`."""
    written = _write(run)
    profile = run.distilled.profile
    job = run.place / run.mode.job
    kept = _with_options(job.read_text(), "write_iolog", [])
    job.write_text(_on_null(kept) if _is_null(run) else kept)
    options = run.wanted.checks or CheckOptions()
    timeout_s = 60 + options.seconds + (written.space_bytes + profile.read.io_bytes) / _SLOWEST_BYTES_PER_S
    result = fio_program.run_fio(job, timeout_s)
    (run.place / fio.SCRATCH).unlink(missing_ok=True)
    span_us = round(min(profile.span_ns, options.seconds * NS_PER_S) / 1000) or max(
        int(job["job_runtime"]) * 1000 for job in result["jobs"]
    )
    names = [job["jobname"] for job in result["jobs"]]
    stream = drawn_stream([run.place / f"{name}.drawn" for name in names], span_us)
    depth = _mean_depth(result["jobs"], stream)
    if run.distilled.ios is None:
        # A profile alone knows sizes and rates, but no order.
        source = profile_stream(profile)
        shown = msgspec.structs.replace(source_figures("source", source), hot10_share=None, reuse_p50_blocks=None)
    else:
        source = asked_stream(split_ios(run.distilled.ios, fio.STAT_MAX_IO_BYTES), by_instant=False)
        shown = source_figures("source", source, source.head(len(stream.us)))
    figures = job_figures(run.mode, stream, source, is_replay=False, mean_depth=depth)
    return _compare(run, shown, figures)


def _is_null(run: _Run) -> bool:
    return run.wanted.checks is not None and run.wanted.checks.is_null


def _on_null(job: str) -> str:
    """Return `job` for fio's null engine, which needs no file and does no I/O."""
    lines = [line for line in job.splitlines() if line != "overwrite=1"]
    return "\n".join("ioengine=null" if line.startswith("ioengine=") else line for line in lines) + "\n"


def _with_options(job: str, per_job: str, shared: list[str]) -> str:
    """Return `job` with `per_job` set in each section to a name of its own, and `shared` in the first."""
    lines = []
    for line in job.splitlines():
        lines.append(line)
        if line == "[global]":
            lines += shared
        elif line.startswith("["):
            lines.append(f"{per_job}={line[1:-1]}" + (".drawn" if per_job == "write_iolog" else ""))
    return "\n".join(lines) + "\n"


def _compare(run: _Run, source: StreamFigures, figures: StreamFigures) -> ClosenessPair:
    depth = run.distilled.profile.depth
    shown = msgspec.structs.replace(source, mean_depth=None if depth is None else depth.mean)
    return ClosenessPair(
        job=run.mode.job,
        window=run.window,
        source=shown,
        fio=figures,
        verdicts=verdicts(figures, source, is_replay=run.mode is FioMode.REPLAY),
    )


def _mean_depth(jobs: list[dict[str, Any]], stream: Stream) -> float | None:
    """Return the mean operations in flight, by Little's law: the sum of latencies over the span."""
    seconds = stream.seconds
    if seconds is None:
        return None
    busy_ns = sum(
        job[direction]["lat_ns"]["mean"] * job[direction]["lat_ns"].get("N", job[direction]["total_ios"])
        for job in jobs
        for direction in ("read", "write")
    )
    return float(busy_ns) / NS_PER_S / seconds
