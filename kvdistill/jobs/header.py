"""The comment at the head of every job file: provenance, how to run it, what the format cannot express."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from kvdistill.formats.iolog import ABSOLUTE, LogSummary
from kvdistill.jobs.fio_program import HANGS_IN_IO_URING, MULTIPLIES_RATE_IOPS, REAPS_WHILE_WAITING, FioVersion
from kvdistill.profile.profile import Profile, SourceKind
from kvtrace import __version__
from kvtrace.core.metadata import computing_notes, stream_notes
from kvtrace.core.units import format_bytes, format_count, format_duration

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
    """Return what no fio job can express; deletes only if `has_deletes`, since a device takes discards for them."""
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


def log_bugs(version: FioVersion | None, log: LogSummary) -> list[str]:
    """Return the bugs of fio `version` (any, if null) that change the results of replaying `log`."""
    is_one, is_absolute = len(log.files) == 1, log.version == ABSOLUTE
    is_old, is_new = version is None or version < REAPS_WHILE_WAITING, version is None or version >= REAPS_WHILE_WAITING
    lines = []
    if is_absolute:
        lines.append(
            "a wait of a version 2 log lasts until so many milliseconds after fio's start, whatever its manual says "
            "(so in the code of all versions; run with 3.33 and 3.39): lateness is caught up with, but the replay must "
            "not follow another job in one run of fio"
        )
    else:
        lines.append("each delay of a version 3 log runs from the last issue, with no catching up: lateness only grows")
        if is_new:
            lines.append(f"fio from {REAPS_WHILE_WAITING} on waits by spinning: each job takes a processor of its own")
    if is_one and (is_absolute or is_old):
        which = "fio" if is_absolute else f"fio before {REAPS_WHILE_WAITING}"
        lines += [
            (
                f"{which} does not reap completions while it waits for the next time: its completion latency and "
                "depth are false here (operations are issued on time all the same); --jobs 32 has them right"
            ),
            (
                f"{which} leaves the last operations, up to iodepth, out of its byte counts and latencies; total_ios "
                "is right"
            ),
        ]
    lines += [
        "read_iolog_chunked loses lines of a log that is read slowly, and thread=1 crashes fio 3.33: keep them out",
    ]
    if version is None or version >= HANGS_IN_IO_URING:
        lines.append(f"with io_uring, replay hangs from fio {HANGS_IN_IO_URING} on")
    return lines


def stat_bugs(version: FioVersion | None) -> list[str]:
    """Return the bugs of fio `version` (any, if null) that change the results of a statistical job."""
    lines = []
    if version is None or version < MULTIPLIES_RATE_IOPS:
        lines.append(
            f"fio before {MULTIPLIES_RATE_IOPS} gets rate_iops with bssplit wrong unless rate_process=poisson: keep "
            "that line"
        )
    lines.append("'bs_unaligned may not work with raw io' can be ignored: every size here is whole sectors")
    return lines
