"""The comment that every file for fio starts with: where it came from, how to run it, what it lost."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from kvdistill.fioprogram import MULTIPLIES_RATE_IOPS, REAPS_WHILE_WAITING
from kvtrace import __version__
from kvtrace.core.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvdistill.fioprogram import FioVersion
    from kvdistill.profile import Profile

_WIDTH = 108


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
                item, _WIDTH, initial_indent="#   ", subsequent_indent="#     ",
                break_long_words=False, break_on_hyphens=False,
            )  # fmt: skip
    return "\n".join(lines) + "\n"


def _provenance(profile: Profile) -> list[str]:
    origin = profile.origin
    preset = f"preset {origin.preset}" if origin.preset else "no preset"
    seed = "no seed" if origin.seed is None else f"seed {origin.seed}"
    model = f", model {origin.model}" if origin.model else ""
    lines = [
        f"kvdistill {__version__}, tier {profile.tier} of {origin.file}",
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
        f"{format_duration(profile.start_ns)} into the trace"
    )
    lines.append(
        f"address space {format_bytes(profile.space.span_bytes)} for at most "
        f"{format_bytes(profile.space.peak_live_bytes)} live at once (first fit, 4 KiB aligned)"
    )
    return lines


def common_losses(profile: Profile) -> list[str]:
    """Return what neither job can carry."""
    padding = profile.read.io_bytes + profile.write.io_bytes - profile.read.object_bytes - profile.write.object_bytes
    lines = []
    if padding:
        lines.append(f"widening to whole 512-byte sectors adds {format_count(padding)} bytes ({format_bytes(padding)})")
    if profile.delete_ops:
        lines.append(
            f"{format_count(profile.delete_ops)} deletes are not issued: they only free space for later writes "
            "(fio's log has no delete)"
        )
    if profile.empty_ops:
        lines.append(f"{format_count(profile.empty_ops)} operations of no bytes are left out")
    if profile.stray_delete_ops:
        lines.append(f"{format_count(profile.stray_delete_ops)} deletes are of objects that were not there")
    return lines


def version_bugs(version: FioVersion | None, *, is_replay: bool) -> list[str]:
    """Return the known faults of fio `version` (of all, if null) that a reader of its results meets."""
    lines = []
    if is_replay and (version is None or version < REAPS_WHILE_WAITING):
        lines += [
            (
                f"fio before {REAPS_WHILE_WAITING} does not reap completions while it waits for the next timestamp: "
                "its completion latency and depth are false here (operations are issued on time all the same)"
            ),
            (
                f"fio before {REAPS_WHILE_WAITING} leaves the last operations, up to iodepth, out of its byte counts "
                "and latencies; total_ios is right"
            ),
            "with ioengine=psync instead, latency and counts are right, but operations run one after another",
        ]
    if is_replay:
        lines += [
            (
                "each delay runs from the last issue, with no catching up: lateness only grows "
                "(a few percent; replay_time_scale corrects it)"
            ),
            "with io_uring, replay hangs from fio 3.41 on",
        ]
    elif version is None or version < MULTIPLIES_RATE_IOPS:
        lines.append(
            f"fio before {MULTIPLIES_RATE_IOPS} gets rate_iops with bssplit wrong unless rate_process=poisson: keep "
            "that line"
        )
    if not is_replay:
        lines.append("'bs_unaligned may not work with raw io' can be ignored: every size here is whole sectors")
    return lines
