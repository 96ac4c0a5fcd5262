"""Run the jobs briefly with fio on a scratch file, and compare what fio did with what the trace asks."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvdistill import fio, fioprogram
from kvdistill.closeness import Figures, Verdict, job_figures, source_figures, verdicts
from kvdistill.distill import distil
from kvdistill.fiologs import drawn_stream, replayed_stream, source_stream
from kvdistill.iolog import write_iolog
from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable
from kvtrace.core.limit import Limit
from kvtrace.core.units import NS_PER_S, format_bytes, format_duration, format_rate

if TYPE_CHECKING:
    from kvdistill.closeness import Stream
    from kvdistill.distill import Distilled

_TRUE_TIME = 100
"""fio's time scale, in percent, at which a log runs at its own times."""
_MOST_CORRECTED = 120
"""Beyond this, lateness is the target's, which no time scale mends."""
_SPARE_BYTES = 256 << 20
"""Free space that a check leaves alone."""
_SLOWEST_BYTES_PER_S = 20e6
"""A target slower than this is given up on: a check is meant to be brief."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """How much a check runs."""

    seconds: float = 10.0
    max_bytes: int = 4 << 30
    """The most bytes that a check's part of the trace moves, and its scratch file takes."""
    max_io_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        """Refuse what runs nothing."""
        if self.seconds <= 0:
            raise ConfigError(f"--check-seconds {self.seconds}: it must be more than 0")


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One job beside the source over the same window."""

    job: str
    window: str
    source: Figures
    fio: Figures
    verdicts: list[Verdict]


class Closeness(msgspec.Struct, frozen=True, kw_only=True):
    """What `--check` found; `closeness.json` holds it."""

    fio_version: str
    comparisons: list[Comparison]
    notes: list[str]


def check(trace: Path, whole: Distilled, limit: Limit, outdir: Path, options: CheckOptions) -> Closeness:
    """Run both jobs of `whole`, as far as they are brief, on a scratch file in `outdir`; return how close they come.

    The replay is of the trace's first `seconds` or `max_bytes`; the statistical job is of all of `whole` if its
    file is small enough, else of the same part.

    Raises:
        ProbeUnavailable: there is no fio.
        DeviceError: too little space, or fio failed.

    """
    version = fioprogram.installed()
    if version is None:
        raise ProbeUnavailable(f"--check needs fio; {fioprogram.HOW_TO_GET}. The job files are written.")
    part_limit = limit.within(Limit(span_ns=max(1, int(options.seconds * NS_PER_S)), moved_bytes=options.max_bytes))
    with tempfile.TemporaryDirectory(prefix=".check-", dir=outdir) as folder:
        place = Path(folder)
        part = distil(trace, whole.profile.tier, part_limit, place)
        if part.profile.ops == whole.profile.ops:
            part = whole
        # A job without a rate moves all it has, and takes as long as that takes.
        is_brief = whole.profile.span_ns > 0 and fio.stat_space_bytes(whole.profile) <= options.max_bytes
        stat = whole if is_brief else part
        need = max(fio.replay_space_bytes(part.profile), fio.stat_space_bytes(stat.profile))
        _require_space(outdir, need)
        notes = [_depth_note(version)]
        comparisons = _check_replay(part, place, version, options, notes)
        comparisons.append(_check_stat(stat, place, version, options, is_part=stat is not whole))
    return Closeness(fio_version=str(version), comparisons=comparisons, notes=notes)


def _require_space(folder: Path, need: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < need + _SPARE_BYTES:
        raise DeviceError(
            f"--check needs {format_bytes(need)} in {folder} and leaves {format_bytes(_SPARE_BYTES)} alone, but "
            f"{format_bytes(free)} are free; check less with --check-seconds or --check-bytes"
        )


def _depth_note(version: fioprogram.FioVersion) -> str:
    note = "the source's depth is not known: a trace has no measured times"
    if version < fioprogram.REAPS_WHILE_WAITING:
        note += f"; the replay's is not either: fio {version} does not reap completions while it waits"
    return note


def _check_replay(
    part: Distilled, place: Path, version: fioprogram.FioVersion, options: CheckOptions, notes: list[str]
) -> list[Comparison]:
    log = write_iolog(place / fio.REPLAY_LOG, part.ios, fio.SCRATCH, options.max_io_bytes)
    source = source_stream(part.ios, options.max_io_bytes)
    window = f"the first {format_duration(part.profile.span_ns)}"
    moved_bytes = log.read_bytes + log.write_bytes
    comparisons, scale = [], _TRUE_TIME
    for attempt in range(2):
        job = fio.replay_job(part.profile, log, fio.JobOptions(version=version, time_scale_percent=scale))
        (place / fio.REPLAY_JOB).write_text(job + "write_lat_log=replay\nlog_offset=1\n")
        space = fio.replay_space_bytes(part.profile)
        timeout_s = 30 + log.last_us / 1e6 + (space + moved_bytes) / _SLOWEST_BYTES_PER_S
        result = fioprogram.run_fio(place / fio.REPLAY_JOB, timeout_s)
        (slat,) = place.glob("replay_slat.*.log")
        stream = replayed_stream(slat, source)
        slat.unlink()
        depth = _mean_depth(result["jobs"][-1:], stream) if version >= fioprogram.REAPS_WHILE_WAITING else None
        name = "replay" if scale == _TRUE_TIME else f"replay, time scale {scale} %"
        figures = job_figures(name, stream, source, is_replay=True, mean_depth=depth)
        comparisons.append(_compare(fio.REPLAY_JOB, window, source_figures("source", source), figures, is_replay=True))
        if not part.profile.span_ns:
            notes.append("the part that was replayed is one instant: no rate or slip is known; try --check-bytes")
        elif figures.end_slip is not None and figures.end_slip > _MOST_CORRECTED / 100 - 1:
            notes.append(
                f"fio took {1 + figures.end_slip:.2f} times as long as the log: the target here does not keep up with "
                f"{format_rate(moved_bytes * NS_PER_S / part.profile.span_ns)}"
            )
        wanted = _TRUE_TIME if figures.end_slip is None else round(100 * (1 + figures.end_slip))
        if attempt or not _TRUE_TIME < wanted <= _MOST_CORRECTED or not _is_late_by_waiting(result, log.last_us):
            break
        scale = wanted
    if scale != _TRUE_TIME:
        notes.append(f"the lateness of fio's replay is corrected by `--time-scale {scale}` on this machine")
    return comparisons


def _is_late_by_waiting(result: dict[str, Any], last_us: int) -> bool:
    """Return whether the replay ended close enough to its time that the target can keep up."""
    return float(result["jobs"][-1]["job_runtime"]) * 1000 < last_us * _MOST_CORRECTED / 100


def _check_stat(
    stat: Distilled, place: Path, version: fioprogram.FioVersion, options: CheckOptions, *, is_part: bool
) -> Comparison:
    cap = max(1, int(options.seconds * NS_PER_S))
    job = fio.stat_job(stat.profile, fio.JobOptions(version=version, runtime_cap_ns=cap))
    (place / fio.STAT_JOB).write_text(_with_written_iologs(job))
    space = fio.stat_space_bytes(stat.profile)
    timeout_s = 60 + options.seconds + (space + stat.profile.read.io_bytes) / _SLOWEST_BYTES_PER_S
    result = fioprogram.run_fio(place / fio.STAT_JOB, timeout_s)
    span_us = max(int(job["job_runtime"]) for job in result["jobs"]) * 1000
    stream = drawn_stream(sorted(place.glob("drawn-*.iolog")), span_us)
    source = source_stream(stat.ios, fio.STAT_MAX_IO_BYTES)
    figures = job_figures(
        "statistical", stream, source, is_replay=False, mean_depth=_mean_depth(result["jobs"], stream)
    )
    what = "the whole window" if not is_part else f"the first {format_duration(stat.profile.span_ns)}"
    shown = source_figures("source", source, source.head(len(stream.us)))
    return _compare(fio.STAT_JOB, what, shown, figures, is_replay=False)


def _with_written_iologs(job: str) -> str:
    lines = []
    for line in job.splitlines():
        lines.append(line)
        if line.startswith("[") and line != "[global]":
            lines.append(f"write_iolog=drawn-{line[1:-1]}.iolog")
    return "\n".join(lines) + "\n"


def _compare(job: str, window: str, source: Figures, figures: Figures, *, is_replay: bool) -> Comparison:
    return Comparison(
        job=job, window=window, source=source, fio=figures,
        verdicts=verdicts(figures, source, is_replay=is_replay),
    )  # fmt: skip


def _mean_depth(jobs: list[dict[str, Any]], stream: Stream) -> float | None:
    """Return the mean operations in flight, by Little's law: the sum of latencies over the span."""
    seconds = stream.seconds
    if seconds is None:
        return None
    busy_ns = sum(
        job[direction]["lat_ns"]["mean"] * job[direction]["lat_ns"].get("N", job[direction]["total_ios"])
        for job in jobs for direction in ("read", "write")
    )  # fmt: skip
    return float(busy_ns) / NS_PER_S / seconds
