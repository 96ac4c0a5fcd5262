"""The fio job of one mode: its sections, its logs, and its expected figures.

Everything is computed before anything is written, so that a user can inspect a job first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kvdistill.jobs.fio_lanes import LanePlan, plan_lanes, plan_sampled_lanes
from kvdistill.jobs.fio_replay import (
    IoSource,
    LogSummary,
    expected_replay,
    log_job,
    plan_iologs,
    sample_operations,
    sampled_span_ns,
    split,
    split_ios,
    write_iologs,
)
from kvdistill.jobs.fio_sections import FioJob
from kvdistill.jobs.fio_stat import expected_stat, stat_job
from kvdistill.jobs.job import (
    ExpectedFigure,
    FioMode,
    JobOptions,
    most_in_flight,
    prefill_job,
    stat_space_bytes,
    whole_mib,
)
from kvdistill.profile.profile import IoStream, Profile
from kvdistill.profile.sources import Distilled
from kvtrace.core.errors import ConfigError
from kvtrace.core.files import write_text
from kvtrace.core.parameters import named


@dataclass(frozen=True, slots=True)
class ModeJob:
    """The job of one mode, before it is written."""

    mode: FioMode
    job: FioJob
    space_bytes: int
    """Space that the job needs on its target."""
    depth: int
    """Maximum queue depth, with I/Os of up to --io-bytes."""
    expected: Sequence[ExpectedFigure]
    """Expected figures at the source's response times, with those of the source."""
    log: LogSummary | None = None
    """Summary of the iologs; null for the statistical job."""
    ios: IoSource | None = None
    """I/Os of the iologs; null for the statistical job."""
    lanes: LanePlan | None = None
    """The iolog of each operation, if the stages of requests wait for each other."""

    @property
    def files(self) -> list[str]:
        """The names of its files: the job, and its iologs."""
        return [self.mode.job, *([] if self.log is None else self.log.files)]

    def write(self, folder: Path) -> None:
        """Write the job and its iologs to `folder`; DeviceError if the write fails."""
        if self.log is not None and self.ios is not None:
            write_iologs(folder, self.mode, self.log, self.ios, self.lanes)
        write_text(folder / self.mode.job, self.job.text)


def make_job(mode: FioMode, distilled: Distilled, options: JobOptions) -> ModeJob:
    """Return the job of `mode` for the I/O of `distilled`.

    ConfigError if its profile lacks what the mode needs.
    """
    make = _stat_mode_job if mode is FioMode.STAT else _log_mode_job
    return make(mode, distilled, options)


def _stat_mode_job(mode: FioMode, distilled: Distilled, options: JobOptions) -> ModeJob:
    profile = distilled.profile
    return ModeJob(
        mode,
        stat_job(profile, options),
        stat_space_bytes(profile, options),
        most_in_flight(min(profile.longest_bytes, options.io_bytes)),
        expected_stat(profile, options),
    )


def _log_mode_job(mode: FioMode, distilled: Distilled, options: JobOptions) -> ModeJob:
    """Return the job that runs iologs of the source's operations, or of sampled ones."""
    profile = distilled.profile
    ios: IoSource
    lanes = None
    has_lanes = options.jobs is None and options.log_version is None
    if mode is FioMode.REPLAY:
        if distilled.ios is None:
            raise ValueError("distilled(=figures alone) must hold operations to be replayed.")
        span_bytes = profile.placed.span_bytes
        ios = partial(split_ios, distilled.ios, options.io_bytes)
        if has_lanes:
            lanes = plan_lanes(mode, distilled.ios, options.io_bytes)
    else:
        runtime_ns = sampled_span_ns(profile, options)
        sampled, span_bytes = sample_operations(profile, runtime_ns, options.seed)
        ios = partial(split, sampled, options.io_bytes)
        stage_ops = mean_stage_ops(profile.streams)
        if has_lanes and stage_ops is not None:
            lanes = plan_sampled_lanes(mode, sampled, stage_ops, options.io_bytes)
    log = plan_iologs(mode, ios, options, lanes)
    return ModeJob(
        mode,
        log_job(
            profile,
            log,
            mode,
            span_bytes,
            options,
            waiting_requests=0 if lanes is None else lanes.waiting_requests,
        ),
        whole_mib(span_bytes),
        log.depth,
        expected_replay(profile, log, is_drawn=mode is FioMode.REUSE),
        log,
        ios,
        lanes,
    )


def mean_stage_ops(streams: Sequence[IoStream]) -> int | None:
    """Return the mean operations that wait together for the stage before them.

    Null if the stages of a request never wait for each other. Only streams whose stages do count.
    """
    widths = [
        (stream.loop.burst_depth, stream.ops)
        for stream in streams
        if stream.loop.burst_depth is not None
        and stream.loop.burst_depth < (stream.loop.burst_ops or 0)
    ]
    total_ops = sum(ops for _width, ops in widths)
    if not total_ops:
        return None
    return max(1, round(sum(width * ops for width, ops in widths) / total_ops))


def make_prefill(profile: Profile, jobs: Iterable[ModeJob], options: JobOptions) -> FioJob:
    """Return the job that fills the target of all `jobs` once."""
    job_list = list(jobs)
    space_bytes = max(job.space_bytes for job in job_list)
    return prefill_job(profile, [job.mode for job in job_list], space_bytes, options)


def supported_modes(distilled: Distilled, modes: Sequence[FioMode] | None) -> list[FioMode]:
    """Return the requested modes, or all that the source supports.

    ConfigError if the source does not support a requested one.
    """
    profile, has_ios = distilled.profile, distilled.ios is not None
    if modes and FioMode.REPLAY in modes and not has_ios:
        raise ConfigError(
            f"{named('mode', 'replay')}: {profile.origin.file} holds statistics only, and no"
            " operations; use a trace or a run"
        )
    has_reuse = profile.locality is not None and profile.arrivals is not None
    available = [FioMode.REPLAY] * has_ios + [FioMode.STAT] + [FioMode.REUSE] * has_reuse
    return list(dict.fromkeys(modes or available))
