"""The fio jobs of a source as one object: look at them, write them, check them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from kvdistill.formats.formats import RELATIVE
from kvdistill.jobs.check import CLOSENESS, Closeness, Tell, check, ignore
from kvdistill.jobs.fio_replay import (
    MAX_OPS,
    MAX_SAMPLED_IOS,
    LogSummary,
    sampled_span_ns,
)
from kvdistill.jobs.fio_sections import FioJob
from kvdistill.jobs.job import (
    PREFILL,
    PROFILE,
    ExpectedFigure,
    FioMode,
    JobOptions,
    expectation_text,
    make_folder,
)
from kvdistill.jobs.mode_job import ModeJob, make_job, make_prefill, supported_modes
from kvdistill.profile.notebook import html_table
from kvdistill.profile.profile import ArrivalProfile, Profile, cut_long
from kvdistill.profile.sources import Distilled, distil_source
from kvtrace.core.errors import ConfigError
from kvtrace.core.files import write_json, write_text
from kvtrace.core.limit import Limit
from kvtrace.core.parameters import named
from kvtrace.core.units import counted, format_bytes, format_duration

MAX_LINES = 1_000_000
"""Maximum I/Os of a replay, unless all are requested.

This is enough to keep the sampling error of figures below 1 %.
"""
_LINE_BYTES = 36
"""Bytes of a line of a log, without the target's name."""


class WrittenJobs(msgspec.Struct, frozen=True, kw_only=True):
    """The files of fio jobs, the space that they need, and their expected figures."""

    files: list[str]
    space_bytes: dict[str, int]
    """Space that each job needs on its target."""
    logs: dict[str, LogSummary]
    """Summaries of the iologs, by mode."""
    profile: Profile
    expected: dict[str, Sequence[ExpectedFigure]]
    """Expected figures of each job at the source's response times, with those of the source."""
    closeness: Closeness | None = None
    """Null unless the jobs were checked."""

    def __repr__(self) -> str:
        """Return the files in a line."""
        return f"WrittenJobs({', '.join(name for name in self.files if name.endswith('.fio'))})"

    def _repr_html_(self) -> str:
        """Return a table of the jobs, for notebooks."""
        rows = [
            [f"{mode}.fio", format_bytes(space), expectation_text(self.expected[mode])]
            for mode, space in self.space_bytes.items()
        ]
        return html_table(["job", "space needed", "expected"], rows)


@dataclass(frozen=True, slots=True, repr=False)
class FioJobs:
    """The fio jobs of a profile: an exact replay, a statistical and a sampled (reuse) job.

    Nothing is on disk until `write`; `texts` shows the jobs before.
    """

    distilled: Distilled
    """The profile of the jobs, with its operations."""
    options: JobOptions
    jobs: Mapping[FioMode, ModeJob]
    replayed: Distilled
    """The part of the source in the exact replay: all of it unless it is very long."""
    notes: Sequence[str] = ()
    """Notes for the user, one sentence each."""

    @property
    def profile(self) -> Profile:
        """The profile of the jobs."""
        return self.distilled.profile

    @property
    def texts(self) -> dict[str, str]:
        """The text of each job file, by its name, as `write` writes it.

        The iologs of replay.fio and reuse.fio are not included, because they are as long as the
        source.
        """
        return {PREFILL: self._prefill.text} | {
            mode.job: job.job.text for mode, job in self.jobs.items()
        }

    @property
    def _prefill(self) -> FioJob:
        """The job that fills the target once for all others."""
        return make_prefill(self.profile, self.jobs.values(), self.options)

    @property
    def expected(self) -> dict[str, Sequence[ExpectedFigure]]:
        """Expected figures of each job at the source's response times, by mode."""
        return {str(mode): job.expected for mode, job in self.jobs.items()}

    def write(self, folder: str | Path, closeness: Closeness | None = None) -> WrittenJobs:
        """Write the jobs, their iologs and profile.json to `folder`, which is made if missing.

        The `closeness` of a check is written as closeness.json.

        ConfigError if the target is a folder. DeviceError if the write fails.
        """
        folder = Path(folder)
        if (folder / self.options.target).is_dir():
            raise ConfigError(
                f"{named('target', self.options.target)} is a folder; name a file or a block device"
            )
        make_folder(folder)
        for job in self.jobs.values():
            job.write(folder)
        write_text(folder / PREFILL, self._prefill.text)
        write_json(folder / PROFILE, self.profile)
        if closeness is not None:
            write_json(folder / CLOSENESS, closeness)
        names = [name for job in self.jobs.values() for name in job.files]
        return WrittenJobs(
            files=[PREFILL, *names, PROFILE, *([CLOSENESS] if closeness else [])],
            space_bytes={mode: job.space_bytes for mode, job in self.jobs.items()},
            logs={mode: job.log for mode, job in self.jobs.items() if job.log is not None},
            profile=self.profile,
            expected={mode: job.expected for mode, job in self.jobs.items()},
            closeness=closeness,
        )

    def check(
        self, target: str | Path, tell: Tell = ignore, *, folder: str | Path | None = None
    ) -> Closeness:
        """Run the jobs briefly on the storage of `target` and return the closeness of their I/O.

        A file is not touched: a scratch file of its name, in a temporary folder next to it, is
        used. A block device is overwritten, if `options.is_destroying` allows that; the temporary
        files are then in `folder` (by default the system's). `options.check_ns` and `check_bytes`
        limit the part of the source. `tell` receives a line at the start of each step.

        ConfigError if the source's file is needed but unknown, or `target` is a folder.
        ProbeUnavailable without fio. DeviceError if a device must not be overwritten, the space is
        insufficient, or fio fails.
        """
        tell(f"checking: running {', '.join(mode.job for mode in self.jobs)} with fio")
        place = None if folder is None else Path(folder)
        return check(self.distilled, Path(target), list(self.jobs), self.options, tell, place)

    def timed(self, closeness: Closeness) -> FioJobs:
        """Return the jobs with the timing of the replay's log that a check found closest.

        That is a log of relative microseconds, less the time to issue an I/O, or the log as it is.
        """
        if closeness.issue_us is None or FioMode.REPLAY not in self.jobs:
            return self
        options = replace(self.options, log_version=RELATIVE, issue_us=closeness.issue_us)
        replay = make_job(FioMode.REPLAY, self.replayed, options)
        return replace(self, jobs={**self.jobs, FioMode.REPLAY: replay})

    def __repr__(self) -> str:
        """Return the names and the source of the jobs in one line."""
        names = ", ".join(mode.job for mode in self.jobs)
        return f"FioJobs({names} of {self.profile.tier} of {self.profile.origin.file})"

    def _repr_html_(self) -> str:
        """Return a table of the jobs, for notebooks."""
        rows = [
            [
                mode.job,
                format_bytes(job.space_bytes),
                str(job.depth),
                expectation_text(job.expected),
            ]
            for mode, job in self.jobs.items()
        ]
        return html_table(["job", "space needed", "max queue depth", "expected"], rows)


def make_jobs(distilled: Distilled, options: JobOptions) -> FioJobs:
    """Return the fio jobs of `distilled`: the modes in `options`, or all that it supports.

    ConfigError if the source does not support a requested mode, or if `options` are strict and an
    expected figure misses its target.
    """
    modes = supported_modes(distilled, options.modes)
    replayed, notes = distilled, list[str]()
    if FioMode.REPLAY in modes:
        replayed, notes = _select_replayed_part(distilled, options)
    if FioMode.REUSE in modes:
        notes += _notes_on_sampling(distilled.profile, options)
    jobs = {
        mode: make_job(mode, replayed if mode is FioMode.REPLAY else distilled, options)
        for mode in modes
    }
    for job in jobs.values() if options.is_strict else ():
        if any(figure.is_missed for figure in job.expected):
            raise ConfigError(
                f"{named('strict')}: {job.mode.job} is {expectation_text(job.expected)}; nothing"
                f" was written; choose other jobs with {named('mode')}, or remove {named('strict')}"
            )
    return FioJobs(distilled, options, jobs, replayed, notes)


def _notes_on_sampling(profile: Profile, options: JobOptions) -> list[str]:
    """Return a note if the reuse job is shorter than the source because it has too many operations."""
    wanted_ns = min(profile.span_ns, options.runtime_cap_ns)
    sampled_ns = sampled_span_ns(profile, options)
    if sampled_ns >= wanted_ns:
        return []
    return [
        (
            f"reuse.fio runs {format_duration(sampled_ns)} of {format_duration(wanted_ns)}: it samples at"
            f" most {MAX_OPS:,} operations and {MAX_SAMPLED_IOS:,} I/Os"
        )
    ]


def _select_replayed_part(distilled: Distilled, options: JobOptions) -> tuple[Distilled, list[str]]:
    """Return the part of `distilled` to replay, and notes on it.

    It is a typical window if there are over MAX_LINES I/Os and `options` do not request all.
    """
    profile = distilled.profile
    lines = sum(
        cut_long(direction, options.io_bytes).ops for direction in (profile.read, profile.write)
    )
    if lines <= MAX_LINES:
        return distilled, []
    size = format_bytes(lines * (len(options.target) + _LINE_BYTES))
    if (
        options.is_whole
        or profile.arrivals is None
        or distilled.ios is None
        or distilled.source is None
    ):
        return distilled, [f"the replay's logs take about {size} for {counted(lines, 'I/O')}"]
    begin_ns, span_ns = typical_window(profile.arrivals, profile.span_ns, MAX_LINES / lines)
    note = (
        f"the whole replay's logs would take about {size} for {lines:,} I/Os (--whole writes them):"
        f" replay.fio has the most typical {format_duration(span_ns)} of"
        f" {format_duration(profile.span_ns)}"
    )
    folder = Path(tempfile.mkdtemp(prefix="replayed-", dir=distilled.ios.parent))
    window = replace(distilled.limit, begin_ns=distilled.limit.begin_ns + begin_ns).within(
        Limit(span_ns=span_ns)
    )
    return distil_source(distilled.source, distilled.tier, window, folder), [note]


def typical_window(arrivals: ArrivalProfile, span_ns: int, share: float) -> tuple[int, int]:
    """Return begin and length in ns of the most typical window of `share` of the time.

    Its rates of reads and writes are closest to the mean rates.
    """
    counts = np.array([arrivals.read_ops, arrivals.write_ops], dtype=np.float64)
    buckets = counts.shape[1]
    length = max(1, round(buckets * share))
    cumulative = np.concatenate([np.zeros((2, 1)), np.cumsum(counts, axis=1)], axis=1)
    window_rates = (cumulative[:, length:] - cumulative[:, :-length]) / length
    mix_distances = np.abs(window_rates - counts.mean(axis=1, keepdims=True)).sum(axis=0)
    begin = int(mix_distances.argmin()) * arrivals.bucket_ns
    return begin, min(length * arrivals.bucket_ns, span_ns - begin)
