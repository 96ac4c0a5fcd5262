"""What every job file shares.

Its names and options, the comment at its head, what it needs, and fio itself.

The head says where the job comes from, how to run it, and what the format cannot express.

Buffers: a device takes a limited number of memory segments a request. Of a buffer in 4 KiB pages
that lie anywhere, 1 MiB is 256 segments, but a device may take 254 (virtio) or 127 (NVMe): the
block layer then splits the I/O. A huge page is one segment. fio asks the kernel for them with
iomem=mmaphuge, which fails where none are reserved; glibc does for any buffer, where its tunable
says so. Shorter I/Os arrive whole in any case, but take longer to issue page by page: a closed loop
is slower, and its gaps are others (docs/concepts/fio-jobs.md).
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
from typing import Any, NamedTuple

import msgspec

from kvdistill.formats.formats import ABSOLUTE, RELATIVE
from kvdistill.jobs.fio_sections import GLOBAL, FioJob, FioOptions, FioSection, FioSettings
from kvdistill.profile.profile import Profile, SourceKind, cut_long
from kvtrace import __version__
from kvtrace.core.app import option
from kvtrace.core.errors import ConfigError, DeviceError, ProbeUnavailable
from kvtrace.core.files import sys_text
from kvtrace.core.metadata import computing_notes, stream_notes
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
"""The statistical job draws longer operations as several.

Fio buffers depth times the longest in memory.
"""
BUFFER_BYTES, MAX_DEPTH = 256 * MIB, 1024
_MAX_TARGET = 256
MAX_JOBS = 1024
GRANULE_BYTES = 4096
_MAX_IO_BYTES = (1 << 32) - GRANULE_BYTES
_MANY_PAGES = 1 << 30


class FioVersion(NamedTuple):
    """A version of fio; builds past a release count as that release."""

    major: int
    minor: int

    def __str__(self) -> str:
        """Return it as fio writes it."""
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
    """Return how many I/Os of up to `io_bytes` a job may have in flight.

    Fio allocates `of_bytes` for all that may be.

    The default is that of jobs of a trace, exact and statistical alike, so that one can be held
    against the other.
    """
    return max(1, min(MAX_DEPTH, of_bytes // max(1, io_bytes)))


def parse_version(text: str) -> FioVersion:
    """Return the version in `text`, such as `3.33` or `fio-3.42-12-gabcdef`."""
    match = re.fullmatch(r"(?:fio-)?([0-9]+)\.([0-9]+)(?:[.-].*)?", text.strip())
    if match is None:
        raise ConfigError(f"--fio-version {text}: write it as 3.33")
    version = FioVersion(int(match[1]), int(match[2]))
    if version < READS_IOLOG_3:
        raise ConfigError(
            f"fio {version} cannot replay a log with times; version {READS_IOLOG_3} or later can"
        )
    return version


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What a user may ask of fio jobs: each option once, with its name, type, default and meaning.

    A command takes it as a group of options; the last fields are of the machine, and of a check.
    """

    modes: list[FioMode] | None = option(
        "replay, stat or reuse; may be given again [default: all that the source supports].",
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
        " asynchronous job [default: 1].",
        min=1,
    )
    log_version: int | None = option(
        "2: absolute times, whole ms; 3: microseconds, but lateness only grows [default: the"
        " closest]."
    )
    is_whole: bool = option(
        "Write the logs of the whole replay, however long they are.", False, "--whole"
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
        parse=positive("--max-duration", parse_duration_ns),
    )
    seed: int = option("Seed of the random draws of reuse.", 42, min=0)
    space_bytes: int | None = option(
        "Space of the target that stat uses, if the source does not say (10GiB).",
        None,
        "--space",
        parse=positive("--space", parse_bytes),
    )
    has_check: bool = option(
        "Run the jobs briefly and compare them with the source.", False, "--check"
    )
    check_ns: int = option(
        "How much of the source each checked job runs.  [default: 10s]",
        10 * NS_PER_S,
        "--check-duration",
        parse=positive("--check-duration", parse_duration_ns),
    )
    check_bytes: int = option(
        "Most bytes that --check replays, and largest scratch file.  [default: 4GiB]",
        4 << 30,
        parse=positive("--check-bytes", parse_bytes),
    )
    has_null_check: bool = option(
        "Check with fio's null engine: fio's own times, without a target.", False, "--check-null"
    )
    is_strict: bool = option(
        "Write nothing if a job is expected to be over 10 % off its source.", False, "--strict"
    )
    is_device: bool = False
    """Whether the target is a block device, which takes discards."""
    huge_pages: int = 0
    """How many huge pages are reserved and free where the jobs run."""
    issue_us: tuple[float, float] = (0.0, 0.0)
    """What fio takes to issue an I/O, and each MiB of it.

    Delays of a log of version 3, which add to it, are so much shorter.
    """

    def __post_init__(self) -> None:
        """Raise ConfigError for values that fio does not take."""
        if (
            not self.target
            or len(self.target) > _MAX_TARGET
            or any(c.isspace() or c in "'\"#;" for c in self.target)
        ):
            raise ConfigError(
                f"--target {self.target}: fio's log takes names of at most {_MAX_TARGET} characters"
                " without spaces, quotes, # or ;"
            )
        if not GRANULE_BYTES <= self.io_bytes <= _MAX_IO_BYTES or self.io_bytes % GRANULE_BYTES:
            raise ConfigError(
                f"--io-bytes {self.io_bytes}: it must be a multiple of 4096 below 4 GiB"
            )
        if self.jobs is not None and not 1 <= self.jobs <= MAX_JOBS:
            raise ConfigError(f"--jobs {self.jobs}: it must be 1 to {MAX_JOBS}")
        if self.log_version not in (None, ABSOLUTE, RELATIVE):
            raise ConfigError(
                f"--log-version {self.log_version}: it must be {ABSOLUTE} or {RELATIVE}"
            )

    def on_this_machine(self) -> JobOptions:
        """Return them with fio's version and the huge pages of this machine where the user did not
        say.
        """
        pages = (
            free_huge_pages() if self.has_huge_pages is None else _MANY_PAGES * self.has_huge_pages
        )
        return replace(self, version=self.version or installed(), huge_pages=pages)

    @property
    def filename(self) -> str:
        """The target as fio's `filename=` wants it: a colon would part two names."""
        return self.target.replace(":", "\\:")


EXPECTED_WITHIN = 0.1
"""How far off a job may be expected to be from its source.

Of its rates and depth, or as a share.
"""


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
    """A figure of a source, and what a job is expected to make of it.

    Null where it cannot be told.
    """

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
    parts += (
        [f"{'' if missed else 'expected '}within 10 % of its source in {', '.join(known)}"]
        if known
        else []
    )
    parts += [f"unknown: {', '.join(unknown)}"] if unknown else []
    return "; ".join(parts) or "not known before it runs: the source has no times"


def source_load(profile: Profile, max_io_bytes: int) -> IoLoad:
    """Return the load of the profile, operations longer than `max_io_bytes` as several.

    Nan without times.
    """
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
    """Return the space that the statistical job needs.

    Operations near the end run over it by their length.

    ConfigError if neither the profile nor the user says.
    """
    if profile.space is not None:
        return whole_mib(profile.space.span_bytes + min(profile.longest_bytes, STAT_MAX_IO_BYTES))
    if options.space_bytes is None:
        raise ConfigError(
            f"{profile.origin.file} has no offsets; give the space to use with --space, such as"
            " 10GiB"
        )
    return whole_mib(options.space_bytes)


def needs(options: JobOptions, space: int) -> list[str]:
    """Return the lines of a job's head on its target."""
    return [
        f"{format_bytes(space)} ({space} bytes) on {options.target}, whose content is overwritten",
        "a filesystem or device that takes O_DIRECT in 512-byte sectors",
    ]


def data_settings(profile: Profile) -> FioSettings:
    """Return the settings that make data as compressible and repetitive as the profile says."""
    if profile.data is None:
        reason = "compressibility of the data is not known: random data is incompressible"
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
    """Return how many percent of the data a compression or dedup `ratio` saves."""
    return round(100 * (1 - 1 / ratio))


_WIDTH = 108
_WHAT = {
    SourceKind.TRACE: "trace",
    SourceKind.OPS: "run",
    SourceKind.BLOCKS: "run",
    SourceKind.PROBE: "measurement",
}


def header(title: str, profile: Profile, sections: Iterable[tuple[str, Iterable[str]]]) -> str:
    """Return the comment.

    `title`, provenance, then each (heading, lines) of `sections` that has lines.
    """
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


NO_SETTINGS = FioSettings({})
SAFE_BYTES = 256 << 10
"""I/Os up to this have no more pages than any device of our time takes pieces."""
PAGE_BYTES = 4096
HUGE_BYTES = 2 << 20
TUNABLE = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
"""The variable of the environment by which glibc 2.35 and later asks for transparent huge pages."""


# Long: a job's parts.
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
    does: Iterable[str] = (),
    lost: Iterable[str],
    bugs: Iterable[str],
    shared: FioSettings,
    more: FioSettings = NO_SETTINGS,
    sections: Iterable[FioSection],
) -> FioJob:
    """Return the job of `mode`: its head, the settings that its `sections` share, and these.

    Of the settings that they share, `shared` are written before those of memory, and `more` after
    them.

    `buffers` are the depth and the largest I/O of each. A huge page is one segment of a request,
    see the module.
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
        why = "I/Os take longer to issue"
        if largest > SAFE_BYTES:
            why = f"I/Os over {format_io_size(SAFE_BYTES)} may be split above the device"
        if options.huge_pages >= pages:
            align = FioSettings({"iomem": "mmaphuge"})
            need = f"{reserved}; or {tunable} and iomem_align=2m in place of iomem=mmaphuge"
        else:
            command = f"{'='.join(TUNABLE)} {command}"
            align = FioSettings({"iomem_align": "2m"})
            need = f"{tunable}; or {reserved} and iomem=mmaphuge in place of iomem_align=2m"
        memory.append(f"{need}: without huge pages, {why}")
    version = options.version
    head = [
        ("Run", [f"in this folder: fio {PREFILL} once, then {command}", *run]),
        ("Needs", [*needs(options, space), *memory]),
        ("What it does", does),
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
    shared = shared | align | more | data_settings(profile)
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
        lines.append("the trace is simulated: its times are the simulator's, not a device's")
    if origin.limit:
        lines.append(f"only part of the tier: the first {origin.limit}")
    later = (
        f" ({format_duration(profile.whole_ns)} with these)" if profile.deletes_beyond_ns else ""
    )
    lines.append(
        f"{counted(profile.read.ops, 'read')} of {format_bytes(profile.read.object_bytes)},"
        f" {counted(profile.write.ops, 'write')} of {format_bytes(profile.write.object_bytes)},"
        f" {counted(profile.delete_ops, 'delete')}{later}, over {format_duration(profile.span_ns)}"
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
    """Return the job that writes the whole target of `modes`, so that every read meets data on the
    device.
    """
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
    """Return what no fio job can express.

    Deletes only if `has_deletes`: on a device discards stand for them.
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
            "the stream of each write (kvreplay passes it on): fio's write_hint is one for a whole"
            " file, and with direct=1 Linux refuses it (EINVAL, 6.18); its fdp=1 with fdp_pli is"
            " for ioengine=io_uring_cmd on an NVMe character device, from fio 3.34 on"
        )
    if profile.empty_ops:
        lines.append(f"left out: {counted(profile.empty_ops, 'operation')} of zero bytes")
    if profile.stray_delete_ops:
        lines.append(f"{counted(profile.stray_delete_ops, 'delete')} of objects that did not exist")
    return lines


FioResult = dict[str, Any]
"""What fio prints as JSON; which fields it has depends on fio's version and the job."""


def fio_program() -> str:
    """Return the path of fio; ProbeUnavailable if there is none."""
    if (program := shutil.which("fio")) is None:
        raise ProbeUnavailable(f"fio is not installed; {HOW_TO_GET}")
    return program


def installed() -> FioVersion | None:
    """Return the version of the fio on the path; null if there is none."""
    if (program := shutil.which("fio")) is None:
        return None
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)  # noqa: S603 - found on the path
    return parse_version(done.stdout)


def knows_option(name: str) -> bool:
    """Return whether the fio on the path has the option called `name`."""
    if (program := shutil.which("fio")) is None:
        return False
    done = subprocess.run(  # noqa: S603 - found on the path
        [program, f"--cmdhelp={name}"], capture_output=True, text=True, check=False
    )
    return done.returncode == 0 and f"{name}:" in done.stdout


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
        done = subprocess.run(  # noqa: S603 - found on the path
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
            " less with --check-duration or --check-bytes"
        ) from None
    # fio writes warnings before the JSON, to the same stream.
    start = re.search(r"^\{", done.stdout, re.MULTILINE)
    try:
        result: FioResult = msgspec.json.decode(done.stdout[start.start() :]) if start else {}
    except msgspec.DecodeError:
        result = {}
    failed = [job["error"] for job in result.get("jobs", []) if job.get("error")]
    if done.returncode or failed or not result:
        said = [
            line for line in (done.stderr + done.stdout).splitlines() if line.startswith("fio:")
        ]
        raise DeviceError(
            f"fio could not run {job.name}: {said[-1] if said else f'exit code {done.returncode}'}"
        )
    return result


def free_huge_pages() -> int:
    """Return how many huge pages of 2 MiB are reserved and free on this machine."""
    said = sys_text(Path("/proc/meminfo")) or ""
    found = re.search(
        rf"\nHugePages_Free: +(\d+)\n(?:.*\n)*Hugepagesize: +{HUGE_BYTES >> 10} kB\b", said
    )
    return int(found[1]) if found else 0


def make_folder(outdir: Path) -> None:
    """Make the folder `outdir` for jobs, unless it is there; DeviceError if that fails."""
    try:
        outdir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeviceError(f"cannot make the folder {outdir}: {error.strerror}") from None
