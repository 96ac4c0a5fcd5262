"""fio's job files as objects: a job consists of sections, a section of typed options.

`FioJob.text` is the only place that renders text. Code that evaluates a job, such as its expected
figures, reads the options and never the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

from kvdistill.profile.profile import Split

GLOBAL = "global"
"""The section with options that all others share."""


class FioOptions(TypedDict, total=False):
    """Options of the jobs, by fio's names, in the order in which they are written.

    A unit at the end of a name is moved to the value: `runtime_ms` is written `runtime=…ms`. An
    option of None is not written; its comments are, and give the reason.
    """

    filename: str
    size: int
    """Bytes, as are the offset and all block sizes."""
    offset: int
    rw: str
    rwmixread: int
    """Percent."""
    percentage_random: int
    norandommap: bool
    blockalign: int
    random_distribution: str | None
    bs: int | str
    """Bytes, or as fio writes a size: 1M."""
    bssplit: tuple[Split, ...]
    """For both directions together, or for reads and for writes."""
    bs_unaligned: bool
    direct: bool
    ioengine: str
    iodepth: int | None
    iodepth_low: int
    iodepth_batch_complete_min: int
    startdelay_ms: int
    time_based: bool
    runtime_ms: int
    rate: tuple[int, ...]
    """Bytes a second, of both directions together, or of reads and of writes."""
    rate_iops: tuple[int, ...] | None
    """I/Os a second, likewise."""
    rate_process: str
    thinktime_us: int | None
    thinktime_blocks: int
    thinktime_blocks_type: str
    number_ios: int
    io_size: int
    fdatasync: int
    """Writes between two flushes."""
    allow_file_create: bool
    create_on_open: bool
    randseed: int
    iomem: str
    iomem_align: str
    refill_buffers: bool
    buffer_compress_percentage: int | None
    dedupe_percentage: int
    end_fsync: bool
    group_reporting: bool
    read_iolog: str
    write_iolog: str
    write_lat_log: str
    log_offset: bool
    log_unix_epoch: bool
    log_entries: int


UNITS = ("ms", "us")
"""Units that end the name of an option here, and its value in a job."""


@dataclass(frozen=True, slots=True)
class FioSettings:
    """Options, and the comments that are written above some of them, by the option's name."""

    options: FioOptions
    comments: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __or__(self, other: FioSettings) -> FioSettings:
        """Return these settings followed by the `other` ones, which replace options of a name."""
        options: FioOptions = {**self.options, **other.options}
        return FioSettings(options, {**self.comments, **other.comments})


@dataclass(frozen=True, slots=True)
class FioSection:
    """One section of a job: its name, and its settings."""

    name: str
    settings: FioSettings

    @property
    def options(self) -> FioOptions:
        """The options of the section, without comments."""
        return self.settings.options

    @property
    def text(self) -> str:
        """The section as fio reads it."""
        lines = [f"[{self.name}]"]
        for name, value in self.options.items():
            lines += [f"# {comment}" for comment in self.settings.comments.get(name, ())]
            if value is not None:
                lines.append(_line(name, value))
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class FioJob:
    """A job file: the comment at its head, and its sections."""

    head: str
    """Whole lines, each of which begins with #."""
    sections: tuple[FioSection, ...]

    @property
    def text(self) -> str:
        """The job as fio reads it."""
        return self.head + "".join(f"\n{section.text}" for section in self.sections)

    @property
    def processes(self) -> list[FioSection]:
        """The sections that do I/O: all except [global]."""
        return [section for section in self.sections if section.name != GLOBAL]


def _line(name: str, value: object) -> str:
    """Return the line of one option."""
    option, _, unit = name.rpartition("_")
    if unit in UNITS:
        return f"{option}={value}{unit}"
    if isinstance(value, bool):
        return f"{name}={int(value)}"
    if isinstance(value, tuple):
        return f"{name}={','.join(str(entry) for entry in value)}"
    return f"{name}={value}"


LOG_ENTRIES = "log_entries"
"""The option for the initial capacity of a log, in entries."""
_LOG_ENTRIES_RANGE = (1024, 1 << 20)


def with_latency_logs(job: FioJob, entries: int | None = None) -> FioJob:
    """Return `job` with each section's latencies logged, by absolute time and with offsets.

    A log has the name of its section. A job that submits many I/Os before it reaps one loses lines
    of its log, unless the log has room for these `entries` from the start.
    """
    shared = FioSettings({"log_offset": True, "log_unix_epoch": True})
    if entries is not None:
        fewest, most_entries = _LOG_ENTRIES_RANGE
        shared |= FioSettings({"log_entries": min(max(entries, fewest), most_entries)})
    return _extended(job, shared, lambda name: FioSettings({"write_lat_log": name}))


def with_drawn_iologs(job: FioJob) -> FioJob:
    """Return `job` with each section's I/Os written to an iolog, named SECTION.drawn."""
    return _extended(
        job, FioSettings({}), lambda name: FioSettings({"write_iolog": f"{name}.drawn"})
    )


def _extended(
    job: FioJob, shared: FioSettings, settings_of_section: Callable[[str], FioSettings]
) -> FioJob:
    """Return `job` with `shared` settings in [global], and `settings_of_section` in the others."""
    sections = [
        replace(
            section,
            settings=section.settings
            | (shared if section.name == GLOBAL else settings_of_section(section.name)),
        )
        for section in job.sections
    ]
    return replace(job, sections=tuple(sections))


def on_null(job: FioJob) -> FioJob:
    """Return `job` for fio's null engine, which needs no file and does no I/O.

    It has one I/O in flight, which the null engine completes at once: I/Os that are not reaped at
    the end would be in no log.
    """
    return replace(job, sections=tuple(_on_null(section) for section in job.sections))


def _on_null(section: FioSection) -> FioSection:
    options = section.options.copy()
    options.pop("allow_file_create", None)
    options.pop("create_on_open", None)
    options.pop("iodepth_low", None)
    options.pop("iodepth_batch_complete_min", None)
    if "ioengine" in options:
        options["ioengine"] = "null"
    if options.get("iodepth") is not None:
        options["iodepth"] = 1
    return replace(section, settings=replace(section.settings, options=options))
