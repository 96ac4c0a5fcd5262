"""What every job file shares: its names and options, the comment at its head, the space it needs on the target.

The head says where the job comes from, how to run it, and what the format cannot express.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isnan, nan

import msgspec

from kvdistill.jobs.fio_program import FioVersion
from kvdistill.profile.profile import Profile, SourceKind
from kvtrace import __version__
from kvtrace.core.errors import ConfigError
from kvtrace.core.metadata import computing_notes, stream_notes
from kvtrace.core.units import NS_PER_S, format_bytes, format_count, format_duration

SCRATCH = "kvdistill.scratch"
PROFILE = "profile.json"
PREFILL = "prefill.fio"
"""The job that fills the target once, for all jobs of a folder."""


class FioMode(StrEnum):
    """The kind of a fio job: replayed, drawn at random, or drawn by reuse distance."""

    REPLAY = "replay"
    STAT = "stat"
    REUSE = "reuse"

    @property
    def job(self) -> str:
        """The job's file."""
        return f"{self}.fio"


MIB = 1 << 20
STAT_MAX_IO_BYTES = 512 * MIB
"""The statistical job draws longer operations as several: fio buffers depth times the longest in memory."""
_MAX_TARGET = 256


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options of fio jobs; null `version` is any fio."""

    target: str = SCRATCH
    version: FioVersion | None = None
    runtime_cap_ns: int = 300 * 10**9
    space_bytes: int | None = None
    """How much of the target the statistical job uses, where the source does not say where operations lie."""
    is_device: bool = False
    """Whether the target is a block device, which takes discards."""
    huge_pages: int = 0
    """How many huge pages are reserved and free where the jobs run."""

    def __post_init__(self) -> None:
        """Raise ConfigError for values that fio does not take."""
        if not self.target or len(self.target) > _MAX_TARGET or any(c.isspace() or c in "'\"#;" for c in self.target):
            raise ConfigError(
                f"--target {self.target}: fio's log takes names of at most {_MAX_TARGET} characters without spaces, "
                "quotes, # or ;"
            )

    @property
    def filename(self) -> str:
        """The target as fio's `filename=` wants it: a colon would part two names."""
        return self.target.replace(":", "\\:")


EXPECTED_WITHIN = 0.1
"""How far off a job may be expected to be from its source: of its rates and depth, or as a share."""


@dataclass(frozen=True, slots=True)
class IoLoad:
    """What a source does to its device, or a job is expected to do; nan where it cannot be told."""

    ios_per_s: float
    bytes_per_s: float
    read_share: float
    unlike_share: float
    """Share of I/Os of another size than the source's."""
    mean_depth: float
    idle_share: float
    """Share of the time with nothing in flight."""


class ExpectedFigure(msgspec.Struct, frozen=True):
    """A figure of a source, and what a job is expected to make of it; null where it cannot be told."""

    name: str
    is_share: bool
    """Whether `off` is a difference of shares; else it is relative to the source."""
    source: float | None
    job: float | None
    off: float | None

    @property
    def is_missed(self) -> bool:
        """Whether it is off by more than a tenth."""
        return abs(self.off or 0) > EXPECTED_WITHIN

    def __str__(self) -> str:
        """Return it in words; `off` must be known."""
        assert self.off is not None
        return f"{self.name} {100 * self.off:+.1f} {'points' if self.is_share else '%'}"


_EXPECTED = {
    "ios_per_s": "I/Os a second",
    "bytes_per_s": "bytes a second",
    "mean_depth": "I/Os in flight",
    "idle_share": "idle time",
    "read_share": "share of reads",
    "unlike_share": "I/Os of other sizes",
}


def expected_figures(source: IoLoad, job: IoLoad) -> list[ExpectedFigure]:
    """Return the figures of both, and how far the job is off."""
    found = []
    for name, said in _EXPECTED.items():
        of_source, of_job = getattr(source, name), getattr(job, name)
        is_share = name.endswith("_share")
        off = of_job - of_source if is_share else (of_job / of_source - 1 if of_source else nan)
        values = (None if isnan(value) else float(value) for value in (of_source, of_job, off))
        found.append(ExpectedFigure(said, is_share, *values))
    return found


def expected_said(figures: Sequence[ExpectedFigure]) -> str:
    """Return in a sentence how close a job is expected to come, at the source's own response times."""
    missed = [str(figure) for figure in figures if figure.is_missed]
    known = [figure.name for figure in figures if figure.off is not None and not figure.is_missed]
    unknown = [figure.name for figure in figures if figure.off is None]
    parts = [f"expected OFF its source in {', '.join(missed)}"] if missed else []
    parts += [f"{'' if missed else 'expected '}within 10 % of its source in {', '.join(known)}"] if known else []
    parts += [f"unknown: {', '.join(unknown)}"] if unknown else []
    return "; ".join(parts) or "not known before it runs: the source has no times"


def source_load(profile: Profile, max_io_bytes: int) -> IoLoad:
    """Return the load of the profile, operations longer than `max_io_bytes` as several; nan without times."""
    from kvdistill.profile.distributions import cut_long

    sides = [cut_long(side, max_io_bytes) for side in (profile.read, profile.write)]
    ios, seconds = sum(side.ops for side in sides), profile.span_ns / NS_PER_S or nan
    depth, idle = profile.depth, profile.idle
    return IoLoad(
        ios / seconds,
        sum(side.io_bytes for side in sides) / seconds,
        sides[0].ops / ios,
        0.0,
        # How long a part of a split operation takes is not known.
        nan if depth is None or ios > profile.ops else depth.mean,
        nan if idle is None else idle.total_ns / NS_PER_S / seconds,
    )


def whole_mib(count: int) -> int:
    """Return `count` bytes, rounded up to whole MiB."""
    return -(-count // MIB) * MIB


def stat_space_bytes(profile: Profile, options: JobOptions) -> int:
    """Return the space that the statistical job needs: operations near the end run over it by their length.

    Raises:
        ConfigError: neither the profile nor the user says.

    """
    if profile.space is not None:
        return whole_mib(profile.space.span_bytes + min(longest(profile), STAT_MAX_IO_BYTES))
    if options.space_bytes is None:
        raise ConfigError(f"{profile.origin.file} does not say where operations lie; say with --space how much to use")
    return whole_mib(options.space_bytes)


def longest(profile: Profile) -> int:
    """Return the longest operation."""
    return max(s.io_bytes for s in (*profile.read.sizes, *profile.write.sizes))


def needs(options: JobOptions, space: int) -> list[str]:
    """Return the lines of a job's head on its target."""
    return [
        f"{format_bytes(space)} ({space} bytes) on {options.target}, whose former content is overwritten",
        "a filesystem or device that takes O_DIRECT in 512-byte sectors",
    ]


def bugs_heading(version: FioVersion | None) -> str:
    """Return the heading of the known bugs of fio `version`; null is any."""
    return f"Known of fio {version}" if version else "Known of fio (written for any version)"


def job_sections(sections: list[tuple[str, list[str]]]) -> str:
    """Return the text of the sections (name, lines) of a job."""
    return "".join(f"\n[{name}]\n" + "\n".join(lines) + "\n" for name, lines in sections)


def data_lines(profile: Profile) -> list[str]:
    """Return the options that make data as compressible and repetitive as the profile says."""
    if profile.data is None:
        return ["# how far the data compresses is not known: random data does not"]
    data = profile.data
    lines = []
    for name, ratio in (("buffer_compress_percentage", data.compress_ratio), ("dedupe_percentage", data.dedup_ratio)):
        percent = round(100 * (1 - 1 / ratio))
        if percent:
            lines.append(f"{name}={percent}")
    return lines


_WIDTH = 108
_BY_FIRST_FIT = " (first fit, 4 KiB aligned)"
_WHOSE = {SourceKind.TRACE: "tier", SourceKind.OPS: "tier", SourceKind.BLOCKS: "disk", SourceKind.PROBE: "disk"}
_WHAT = {SourceKind.TRACE: "trace", SourceKind.OPS: "run", SourceKind.BLOCKS: "run", SourceKind.PROBE: "measurement"}
_PLACED = {SourceKind.TRACE: _BY_FIRST_FIT, SourceKind.OPS: _BY_FIRST_FIT, SourceKind.BLOCKS: "", SourceKind.PROBE: ""}


def header(title: str, profile: Profile, sections: Iterable[tuple[str, Iterable[str]]]) -> str:
    """Return the comment: `title`, provenance, then each (heading, lines) of `sections` that has lines."""
    blocks = [("From", _provenance(profile)), *sections]
    lines = [f"# {title}"]
    for heading, items in blocks:
        kept = list(items)
        if kept:
            lines.append("#")
            lines.append(f"# {heading}:")
        for item in kept:
            lines += textwrap.wrap(
                item,
                _WIDTH,
                initial_indent="#   ",
                subsequent_indent="#     ",
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(lines) + "\n"


def _provenance(profile: Profile) -> list[str]:
    origin = profile.origin
    preset = f"preset {origin.preset}" if origin.preset else "no preset"
    seed = "no seed" if origin.seed is None else f"seed {origin.seed}"
    model = f", model {origin.model}" if origin.model else ""
    lines = [
        f"kvdistill {__version__}, {_WHOSE[origin.kind]} {profile.tier} of {origin.file}",
        f"written by {origin.program} {origin.version}, {preset}, {seed}{model}",
        f"configuration SHA-256 {origin.config_sha256 or 'unknown'}",
    ]
    if origin.is_simulated:
        lines.append("the trace is simulated: its times are the simulator's, not a device's")
    if origin.limit:
        lines.append(f"only part of the tier: the first {origin.limit}")
    lines.append(
        f"{format_count(profile.read.ops)} reads of {format_bytes(profile.read.object_bytes)}, "
        f"{format_count(profile.write.ops)} writes of {format_bytes(profile.write.object_bytes)}, "
        f"{format_count(profile.delete_ops)} deletes, over {format_duration(profile.span_ns)} from "
        f"{format_duration(profile.start_ns)} into the {_WHAT[origin.kind]}"
    )
    if profile.space is not None:
        lines.append(
            f"address space {format_bytes(profile.space.span_bytes)} for at most "
            f"{format_bytes(profile.space.peak_live_bytes)} live at once{_PLACED[origin.kind]}"
        )
    return [*lines, *(computing_notes(origin.notes) if origin.kind is SourceKind.TRACE else origin.notes)]


def common_losses(profile: Profile, *, has_deletes: bool = True) -> list[str]:
    """Return what no fio job can express; deletes only if `has_deletes`: on a device discards stand for them."""
    padding = profile.read.io_bytes + profile.write.io_bytes - profile.read.object_bytes - profile.write.object_bytes
    lines = []
    if padding:
        lines.append(f"widening to whole 512-byte sectors adds {format_count(padding)} bytes ({format_bytes(padding)})")
    if profile.delete_ops and has_deletes:
        lines.append(
            f"{format_count(profile.delete_ops)} deletes are not issued: they only free space for later writes "
            "(fio's log has no delete)"
        )
    if stream_notes(profile.origin.notes, profile.tier):
        lines.append(
            "the stream of each write (kvreplay passes it on): fio's write_hint is one for a whole file, and with "
            "direct=1 Linux refuses it (EINVAL, 6.18); its fdp=1 with fdp_pli is for ioengine=io_uring_cmd on an NVMe "
            "character device, from fio 3.34 on"
        )
    if profile.empty_ops:
        lines.append(f"{format_count(profile.empty_ops)} operations of no bytes are left out")
    if profile.stray_delete_ops:
        lines.append(f"{format_count(profile.stray_delete_ops)} deletes are of objects that were not there")
    return lines
