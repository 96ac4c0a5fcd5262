"""Common parts of all job files: options, the comment at the head, buffers, and running fio.

The head lists the source of the job, how to run it, and the features that the format cannot express.

Buffers: a device accepts a limited number of memory segments a request. A buffer of scattered 4 KiB
pages has 256 segments for 1 MiB, but a device may accept 254 (virtio) or 127 (NVMe): the block layer
then splits the I/O. A huge page is one segment. fio allocates huge pages with iomem=mmaphuge, which
fails if none are reserved; glibc uses them for any buffer if its tunable is set. Shorter I/Os arrive
whole in any case, but page by page they take longer to issue: a closed loop is slower, and its gaps
differ (docs/concepts/fio-jobs.md).
"""

from __future__ import annotations

import re
import shutil
import subprocess
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import isnan, nan
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvdistill.formats.formats import ABSOLUTE, RELATIVE
from kvdistill.jobs.fio_sections import GLOBAL, FioJob, FioOptions, FioSection, FioSettings
from kvdistill.profile.profile import Profile, SourceKind, cut_long
from kvtrace import __version__
from kvtrace.core.app import option
from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable
from kvtrace.core.json_types import JsonObject
from kvtrace.core.metadata import computing_notes, stream_notes
from kvtrace.core.parameters import named
from kvtrace.core.system_files import sys_text
from kvtrace.core.units import (
    NS_PER_S,
    counted,
    format_bytes,
    format_duration,
    format_io_size,
    parse_bytes,
    parse_duration_ns,
    positive,
)

SCRATCH = "kvdistill.scratch"
PROFILE = "profile.json"
PREFILL = "prefill.fio"
"""The job that fills the target once, for all jobs of a folder."""


class FioMode(StrEnum):
    """The kind of a fio job: replay, statistical, or sampled by reuse distance."""

    REPLAY = "replay"
    STAT = "stat"
    REUSE = "reuse"

    @property
    def job(self) -> str:
        """Name of the job's file."""
        return f"{self}.fio"


MIB = 1 << 20
STAT_MAX_IO_BYTES = 512 * MIB
"""The statistical job splits longer operations.

fio allocates buffers of queue depth times the longest operation.
"""
BUFFER_BYTES, MAX_DEPTH = 256 * MIB, 1024
_MAX_TARGET = 256
MAX_JOBS = 1024
GRANULE_BYTES = 4096
_MAX_IO_BYTES = (1 << 32) - GRANULE_BYTES
_MANY_PAGES = 1 << 30


class FioVersion(NamedTuple):
    """A version of fio; a build after a release counts as that release."""

    major: int
    minor: int

    def __str__(self) -> str:
        """Return the version as fio writes it."""
        return f"{self.major}.{self.minor}"


REAPS_WHILE_WAITING = FioVersion(3, 37)
"""The first fio whose libaio replay completes operations while it waits for the next one's time."""
MULTIPLIES_RATE_IOPS = FioVersion(3, 42)
"""The first fio whose linear rate_iops is right with bssplit."""
HANGS_IN_IO_URING = FioVersion(3, 41)
"""The first fio whose replay hangs with io_uring."""
READS_IOLOG_3 = FioVersion(3, 31)
"""The first fio that reads iologs with timestamps."""

HOW_TO_GET = (
    "install it (Debian, Ubuntu: apt-get install fio; Fedora: dnf install fio) or see"
    " https://fio.readthedocs.io"
)


def most_in_flight(io_bytes: int, of_bytes: int = BUFFER_BYTES) -> int:
    """Return the maximum queue depth of a job with I/Os of up to `io_bytes`.

    fio allocates `of_bytes` of buffers for all I/Os in flight. Exact and statistical jobs of a trace
    share the default, so that they can be compared.
    """
    return max(1, min(MAX_DEPTH, of_bytes // max(1, io_bytes)))


def parse_version(text: str) -> FioVersion:
    """Return the version in `text`, such as `3.33` or `fio-3.42-12-gabcdef`."""
    match = re.fullmatch(r"(?:fio-)?([0-9]+)\.([0-9]+)(?:[.-].*)?", text.strip())
    if match is None:
        raise ConfigError(f"{named('fio_version', text)}: write it as 3.33")
    version = FioVersion(int(match[1]), int(match[2]))
    if version < READS_IOLOG_3:
        raise ConfigError(
            f"fio {version} cannot replay a log with times; version {READS_IOLOG_3} or later can"
        )
    return version


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of fio jobs, with name, type, default and meaning.

    A command takes them as a group of options. The last fields describe the machine, and a check.
    """

    modes: list[FioMode] | None = option(
        "replay, stat or reuse; repeatable [default: all that the source supports].",
        None,
        "--mode",
    )
    target: str = option("File or block device that the jobs overwrite.", SCRATCH)
    version: FioVersion | None = option(
        "Fio version to write for [default: the installed one].",
        None,
        "--fio-version",
        parse=parse_version,
    )
    io_bytes: int = option(
        "Largest I/O of replay and reuse; longer operations are split.  [default: 1MiB]",
        1 << 20,
        parse=parse_bytes,
    )
    jobs: int | None = option(
        "Partition replay and reuse over this many jobs of one I/O in flight each; 1 is one"
        " asynchronous job.  [default: of replay, lanes of requests if these have stages; else 1]",
        min=1,
    )
    log_version: int | None = option(
        "2: absolute times in ms; 3: microseconds, but lateness accumulates [default: the closest]."
    )
    is_whole: bool = option(
        "Write the logs of the whole replay, even if they are very long.", False, "--whole"
    )
    has_huge_pages: bool | None = option(
        "Huge pages are reserved (vm.nr_hugepages) where the jobs run [default: as on this"
        " machine].",
        None,
        "--huge-pages/--no-huge-pages",
        show_default=False,
    )
    runtime_cap_ns: int = option(
        "Longest run time of stat and reuse.  [default: 300s]",
        300 * NS_PER_S,
        "--max-duration",
        parse=positive("max_duration", parse_duration_ns),
    )
    seed: int = option("Random seed of reuse.", 42, min=0)
    space_bytes: int | None = option(
        "Space of the target for stat, if the source has no offsets (10GiB).",
        None,
        "--space",
        parse=positive("space", parse_bytes),
    )
    has_check: bool = option(
        "Run the jobs briefly and compare them with the source.", False, "--check"
    )
    check_ns: int = option(
        "Duration of the source that each checked job runs.  [default: 10s]",
        10 * NS_PER_S,
        "--check-duration",
        parse=positive("check_duration", parse_duration_ns),
    )
    check_bytes: int = option(
        "Maximum bytes that --check replays, and maximum scratch file.  [default: 4GiB]",
        4 << 30,
        parse=positive("check_bytes", parse_bytes),
    )
    is_destroying: bool = option(
        "Allow --check on a --target that is a block device: all data on it is lost.",
        False,
        "--destroy-data",
    )
    overwritten: str | None = option(
        "With --destroy-data: signatures of the device to overwrite, by the names in its refusal:"
        " ext4, or LVM2_member,dos.",
        None,
        "--overwrite-signature",
    )
    has_null_check: bool = option(
        "Check with fio's null engine: timing of fio itself, without a target.",
        False,
        "--check-null",
    )
    is_strict: bool = option(
        "Write nothing if a job is expected to differ from its source by over 10 %.",
        False,
        "--strict",
    )
    is_device: bool = False
    """Whether the target is a block device, which supports discards."""
    huge_pages: int = 0
    """Number of free huge pages where the jobs run."""
    issue_us: tuple[float, float] = (0.0, 0.0)
    """Time of fio to issue an I/O, and each MiB of it, in µs.

    Delays in a log of version 3 are shortened by it.
    """

    def __post_init__(self) -> None:
        """Raise ConfigError for values that fio does not accept."""
        if (
            not self.target
            or len(self.target) > _MAX_TARGET
            or any(character.isspace() or character in "'\"#;" for character in self.target)
        ):
            raise ConfigError(
                f"{named('target', self.target)}: fio's log allows names of at most {_MAX_TARGET}"
                " characters without spaces, quotes, # or ;"
            )
        if not GRANULE_BYTES <= self.io_bytes <= _MAX_IO_BYTES or self.io_bytes % GRANULE_BYTES:
            raise ConfigError(
                f"{named('io_bytes', self.io_bytes)}: it must be a multiple of 4096 below 4 GiB"
            )
        if self.jobs is not None and not 1 <= self.jobs <= MAX_JOBS:
            raise ConfigError(f"{named('jobs', self.jobs)}: it must be 1 to {MAX_JOBS}")
        if self.log_version not in (None, ABSOLUTE, RELATIVE):
            raise ConfigError(
                f"{named('log_version', self.log_version)}: it must be {ABSOLUTE} or {RELATIVE}"
            )

    def on_this_machine(self) -> JobOptions:
        """Fill in fio's version and the huge pages of this machine, unless the user set them."""
        pages = (
            free_huge_pages() if self.has_huge_pages is None else _MANY_PAGES * self.has_huge_pages
        )
        return replace(self, version=self.version or installed_version(), huge_pages=pages)

    @property
    def filename(self) -> str:
        """The target for fio's `filename=`, in which a colon separates names."""
        return self.target.replace(":", "\\:")


EXPECTED_WITHIN = 0.1
"""Maximum expected difference of a job from its source, relative or in shares."""


@dataclass(frozen=True, slots=True)
class IoLoad:
    """The load of a source, or the expected load of a job; nan if unknown."""

    ios_per_s: float
    bytes_per_s: float
    read_share: float
    mismatch_share: float
    """Share of I/Os with a block size that differs from the source's."""
    mean_depth: float
    idle_share: float
    """Share of the time with nothing in flight."""


class ExpectedFigure(msgspec.Struct, frozen=True):
    """A figure of a source, and the expected figure of a job; null if unknown."""

    name: str
    is_share: bool
    """Whether `off` is a difference of shares, and not relative to the source."""
    source: float | None
    job: float | None
    off: float | None

    @property
    def is_missed(self) -> bool:
        """True if the job is off by more than a tenth."""
        return abs(self.off or 0) > EXPECTED_WITHIN

    def __str__(self) -> str:
        """Return name and difference; `off` must not be null."""
        assert self.off is not None
        return f"{self.name} {100 * self.off:+.1f} {'points' if self.is_share else '%'}"


_EXPECTED = {
    "ios_per_s": "I/Os a second",
    "bytes_per_s": "bytes a second",
    "mean_depth": "queue depth",
    "idle_share": "idle time",
    "read_share": "read share",
    "mismatch_share": "block-size mismatch",
}


def expected_figures(source: IoLoad, job: IoLoad) -> list[ExpectedFigure]:
    """Return the figures of both, and the difference of the job."""
    figures = []
    for name, label in _EXPECTED.items():
        source_value, job_value = getattr(source, name), getattr(job, name)
        if name == "read_share" and source_value == job_value and source_value in (0, 1):
            # Neither side mixes reads and writes: their equality is no evidence.
            continue
        is_share = name.endswith("_share")
        off = (
            job_value - source_value
            if is_share
            else (job_value / source_value - 1 if source_value else nan)
        )
        values = (
            None if isnan(value) else float(value) for value in (source_value, job_value, off)
        )
        figures.append(ExpectedFigure(label, is_share, *values))
    return figures


def expectation_text(figures: Sequence[ExpectedFigure]) -> str:
    """Return the predicted differences of a job in one sentence."""
    misses = [str(figure) for figure in figures if figure.is_missed]
    matches = [figure.name for figure in figures if figure.off is not None and not figure.is_missed]
    unknown = [figure.name for figure in figures if figure.off is None]
    sentences = []
    if misses:
        sentences.append(f"predicted to MISS the source in {', '.join(misses)}")
    if matches:
        percent = f"{100 * EXPECTED_WITHIN:.0f} %"
        sentences.append(f"predicted within {percent} of the source: {', '.join(matches)}")
    if unknown:
        sentences.append(
            f"not predicted, measure with --check: {', '.join(unknown)} (can be off by over 25 %)"
        )
    return "; ".join(sentences) or (
        "not predicted, because the source has no times; measure with --check"
    )


def source_load(profile: Profile, max_io_bytes: int) -> IoLoad:
    """Return the load of the profile, with operations longer than `max_io_bytes` split.

    Rates are nan without times.
    """
    sides = [cut_long(side, max_io_bytes) for side in (profile.read, profile.write)]
    ios, seconds = sum(side.ops for side in sides), profile.span_ns / NS_PER_S or nan
    depth, idle = profile.depth, profile.idle
    return IoLoad(
        ios / seconds,
        sum(side.io_bytes for side in sides) / seconds,
        sides[0].ops / ios,
        0.0,
        # The response time of a part of a split operation is unknown.
        nan if depth is None or ios > profile.ops else depth.mean,
        nan if idle is None else idle.total_ns / NS_PER_S / seconds,
    )


def whole_mib(count: int) -> int:
    """Return `count` bytes, rounded up to whole MiB."""
    return -(-count // MIB) * MIB


def stat_space_bytes(profile: Profile, options: JobOptions) -> int:
    """Return the space that the statistical job needs.

    Operations at the end of the address space exceed it by their length.

    ConfigError if neither the profile nor the user gives the space.
    """
    if profile.space is not None:
        return whole_mib(profile.space.span_bytes + min(profile.longest_bytes, STAT_MAX_IO_BYTES))
    if options.space_bytes is None:
        raise ConfigError(
            f"{profile.origin.file} has no offsets; give the space to use with {named('space')},"
            " such as 10GiB"
        )
    return whole_mib(options.space_bytes)


def needs(options: JobOptions, space: int) -> list[str]:
    """Return the lines on the target in the head of a job."""
    return [
        f"{format_bytes(space)} ({space} bytes) on {options.target}, whose content is overwritten",
        "a filesystem or device that supports O_DIRECT in 512-byte sectors",
    ]


def data_settings(profile: Profile) -> FioSettings:
    """Return settings for the compress and dedup ratios of the profile."""
    if profile.data is None:
        reason = "compressibility of the data is unknown: random data is incompressible"
        return FioSettings(
            {"buffer_compress_percentage": None}, {"buffer_compress_percentage": [reason]}
        )
    options: FioOptions = {}
    if percent := _saved_percent(profile.data.compress_ratio):
        options["buffer_compress_percentage"] = percent
    if percent := _saved_percent(profile.data.dedup_ratio):
        options["dedupe_percentage"] = percent
    return FioSettings(options)


def _saved_percent(ratio: float) -> int:
    """Return the percentage of the data that a compress or dedup `ratio` saves."""
    return round(100 * (1 - 1 / ratio))


_WIDTH = 108
_WHAT = {
    SourceKind.TRACE: "trace",
    SourceKind.OPS: "run",
    SourceKind.BLOCKS: "run",
    SourceKind.PROBE: "measurement",
}


def header(title: str, profile: Profile, sections: Iterable[tuple[str, Iterable[str]]]) -> str:
    """Return the head: title, provenance, and each (heading, lines) of `sections` with lines."""
    blocks = [("From", _provenance(profile)), *sections]
    lines = [f"# {title}"]
    for heading, items in blocks:
        present_items = list(items)
        if present_items:
            lines.append("#")
            lines.append(f"# {heading}:")
        for item in present_items:
            lines += textwrap.wrap(
                item,
                _WIDTH,
                initial_indent="#   ",
                subsequent_indent="#     ",
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(lines) + "\n"


NO_SETTINGS = FioSettings({})
SAFE_BYTES = 256 << 10
"""I/Os up to this size fit the segment limit of all current devices."""
PAGE_BYTES = 4096
HUGE_BYTES = 2 << 20
TUNABLE = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
"""The environment variable that makes glibc 2.35 and later use transparent huge pages."""


# Long, because of the parts of a job.
def fio_job(
    mode: FioMode,
    profile: Profile,
    options: JobOptions,
    title: str,
    space: int,
    buffers: Sequence[tuple[int, int]],
    *,
    run: Iterable[str],
    memory: Iterable[str] = (),
    description: Iterable[str] = (),
    lost: Iterable[str],
    bugs: Iterable[str],
    shared: FioSettings,
    late_settings: FioSettings = NO_SETTINGS,
    sections: Iterable[FioSection],
) -> FioJob:
    """Return the job of `mode`: its head, its global settings, and its `sections`.

    Global settings are `shared`, then those of memory, then `late_settings`. `buffers` are the
    queue depth and largest I/O of each section. The module explains huge pages.
    """
    largest = max(size for _, size in buffers)
    command, align = f"fio {mode.job}", NO_SETTINGS
    memory = list(memory)
    if largest > PAGE_BYTES:
        pages = sum(-(-(depth * size + PAGE_BYTES) // HUGE_BYTES) for depth, size in buffers)
        reserved = f"{pages} huge pages reserved (sysctl vm.nr_hugepages={pages})"
        tunable = (
            f"the variable {'='.join(TUNABLE)} (glibc 2.35; transparent huge pages not 'never')"
        )
        effect = "I/Os take longer to issue"
        if largest > SAFE_BYTES:
            effect = f"I/Os over {format_io_size(SAFE_BYTES)} may be split by the block layer"
        if options.huge_pages >= pages:
            align = FioSettings({"iomem": "mmaphuge"})
            requirement = f"{reserved}; or {tunable} and iomem_align=2m in place of iomem=mmaphuge"
        else:
            command = f"{'='.join(TUNABLE)} {command}"
            align = FioSettings({"iomem_align": "2m"})
            requirement = f"{tunable}; or {reserved} and iomem=mmaphuge in place of iomem_align=2m"
        memory.append(f"{requirement}: without huge pages, {effect}")
    version = options.version
    head = [
        ("Run", [f"in this folder: fio {PREFILL} once, then {command}", *run]),
        ("Needs", [*needs(options, space), *memory]),
        ("What it does", description),
        ("Not reproduced", lost),
        (
            (
                f"Known issues of fio {version}"
                if version
                else "Known issues of fio (written for any version)"
            ),
            bugs,
        ),
    ]
    shared = shared | align | late_settings | data_settings(profile)
    return FioJob(header(title, profile, head), (FioSection(GLOBAL, shared), *sections))


def _provenance(profile: Profile) -> list[str]:
    origin, has_objects = profile.origin, profile.origin.kind in (SourceKind.TRACE, SourceKind.OPS)
    preset = f"preset {origin.preset}" if origin.preset else "no preset"
    seed = "no seed" if origin.seed is None else f"seed {origin.seed}"
    model = f", model {origin.model}" if origin.model else ""
    lines = [
        (
            f"kvdistill {__version__}, {'tier' if has_objects else 'disk'} {profile.tier} of"
            f" {origin.file}"
        ),
        f"written by {origin.program} {origin.version}, {preset}, {seed}{model}",
        f"configuration SHA-256 {origin.config_sha256 or 'unknown'}",
    ]
    if origin.is_simulated:
        lines.append("the trace is simulated: its times are not measured")
    if origin.limit:
        lines.append(f"window of the tier: {origin.limit}")
    deletes_text = (
        f" (over {format_duration(profile.whole_ns)} with deletes)"
        if profile.deletes_beyond_ns
        else ""
    )
    lines.append(
        f"{counted(profile.read.ops, 'read')} of {format_bytes(profile.read.object_bytes)},"
        f" {counted(profile.write.ops, 'write')} of {format_bytes(profile.write.object_bytes)},"
        f" {counted(profile.delete_ops, 'delete')}{deletes_text}, over {format_duration(profile.span_ns)}"
        f" from {format_duration(profile.start_ns)} into the {_WHAT[origin.kind]}"
    )
    if profile.space is not None:
        lines.append(
            f"address space {format_bytes(profile.space.span_bytes)} for at most "
            f"{format_bytes(profile.space.peak_reserved_bytes)} reserved at once"
            f"{' (first fit, 4 KiB aligned)' if has_objects else ''}"
        )
    return [
        *lines,
        *(computing_notes(origin.notes) if origin.kind is SourceKind.TRACE else origin.notes),
    ]


def prefill_job(
    profile: Profile, modes: Sequence[FioMode], space: int, options: JobOptions
) -> FioJob:
    """Return the job that writes the whole target, so that every read finds data on the device."""
    title = f"Fills the target of {', '.join(mode.job for mode in modes)}"
    head = [("Run", [f"in this folder, once: fio {PREFILL}"]), ("Needs", needs(options, space))]
    writes = FioSettings(
        {
            "filename": options.filename,
            "direct": True,
            "ioengine": "libaio",
            "iodepth": 4,
            "rw": "write",
            "bs": "1M",
            "size": space,
            "refill_buffers": True,
        }
    )
    settings = writes | data_settings(profile) | FioSettings({"end_fsync": True})
    return FioJob(header(title, profile, head), (FioSection("prefill", settings),))


def common_losses(profile: Profile, *, has_deletes: bool = True) -> list[str]:
    """Return the features that no fio job can express.

    Deletes are among them if `has_deletes`; on a device, discards replace them.
    """
    padding = (
        profile.read.io_bytes
        + profile.write.io_bytes
        - profile.read.object_bytes
        - profile.write.object_bytes
    )
    lines = []
    if padding:
        lines.append(
            f"padding to whole pages of 4 KiB adds {padding:,} bytes ({format_bytes(padding)})"
        )
    if (count := profile.delete_ops) and has_deletes:
        lines.append(
            f"{counted(count, 'delete')} {'is' if count == 1 else 'are'} not issued: deletes only"
            " free space for later writes (fio's log has none)"
        )
    if stream_notes(profile.origin.notes, profile.tier):
        lines.append(
            "the stream of each write (kvreplay sets it): fio's write_hint applies to a whole file, and"
            " Linux rejects it with direct=1 (EINVAL, 6.18); fdp=1 with fdp_pli needs"
            " ioengine=io_uring_cmd on an NVMe character device, from fio 3.34 on"
        )
    if profile.empty_ops:
        lines.append(f"omitted: {counted(profile.empty_ops, 'operation')} of zero bytes")
    if profile.stray_delete_ops:
        lines.append(f"{counted(profile.stray_delete_ops, 'delete')} of objects that did not exist")
    return lines


FioResult = JsonObject
"""fio's JSON output; its fields depend on fio's version and the job."""


def fio_program() -> str:
    """Return the path of fio; ProbeUnavailable if there is none."""
    if (program := shutil.which("fio")) is None:
        raise ProbeUnavailable(f"fio is not installed; {HOW_TO_GET}")
    return program


def installed_version() -> FioVersion | None:
    """Return the version of the fio on the path; null if there is none."""
    if (program := shutil.which("fio")) is None:
        return None
    finished = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)  # noqa: S603 - found on the path
    return parse_version(finished.stdout)


def knows_option(name: str) -> bool:
    """Return whether the fio on the path has the option called `name`."""
    if (program := shutil.which("fio")) is None:
        return False
    finished = subprocess.run(  # noqa: S603 - found on the path
        [program, f"--cmdhelp={name}"], capture_output=True, text=True, check=False
    )
    return finished.returncode == 0 and f"{name}:" in finished.stdout


def run_fio(
    job: Path,
    timeout_s: float,
    *,
    program: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> FioResult:
    """Run fio, or `program`, on `job` in its folder and return its JSON.

    ProbeUnavailable if there is no fio. DeviceError if fio failed, or did not end within
    `timeout_s`.
    """
    try:
        finished = subprocess.run(  # noqa: S603 - found on the path
            [program or fio_program(), "--output-format=json", job.name],
            cwd=job.parent,
            env=None if environment is None else dict(environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        raise DeviceError(
            f"fio did not end {job.name} within {timeout_s:.0f} s; the target is too slow: check"
            f" less with {named('check_duration')} or {named('check_bytes')}"
        ) from None
    # fio writes warnings before the JSON, to the same stream.
    start = re.search(r"^\{", finished.stdout, re.MULTILINE)
    try:
        result: FioResult = msgspec.json.decode(finished.stdout[start.start() :]) if start else {}
    except msgspec.DecodeError:
        result = {}
    errors = [job["error"] for job in result.get("jobs", []) if job.get("error")]
    if finished.returncode or errors or not result:
        messages = [
            line
            for line in (finished.stderr + finished.stdout).splitlines()
            if line.startswith("fio:")
        ]
        raise DeviceError(
            f"fio could not run {job.name}: {messages[-1] if messages else f'exit code {finished.returncode}'}"
        )
    return result


def free_huge_pages() -> int:
    """Return the number of free huge pages of 2 MiB on this machine."""
    meminfo = sys_text(Path("/proc/meminfo")) or ""
    match = re.search(
        rf"\nHugePages_Free: +(\d+)\n(?:.*\n)*Hugepagesize: +{HUGE_BYTES >> 10} kB\b", meminfo
    )
    return int(match[1]) if match else 0


def make_folder(outdir: Path) -> None:
    """Create the folder `outdir` if it is missing; DeviceError if that fails."""
    try:
        outdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeviceError(f"cannot create the folder {outdir}: {error.strerror}") from None
