"""Write a parameter file for Vdbench (`vdbench -f FILE`) from a `Profile`. A pure function to text.

Raw I/O on one file or device, in workloads of their own for each stretch of it: sizes by direction, mix, rate, Poisson
arrivals and hot places fit; reuse, order and deletes do not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvdistill.jobs.header import header
from kvdistill.jobs.store_mix import Job, bursts_lost, depth, hot_lost, ops_per_s, random_lost, runtime_ms
from kvdistill.profile.distributions import split_sizes
from kvdistill.profile.zones import PERCENT
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import NS_PER_S, format_bytes, format_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvdistill.profile.profile import Direction, Profile, Zone

JOB = "job.vdbench"
MAX_BANDS = 16
"""Stretches of the device in each direction: each is a workload of its own."""
MIB = 1 << 20
_MIN_ELAPSED_S = 2
_NAME = re.compile(r"[^\s,()*=#'\"]+")


@dataclass(frozen=True, slots=True)
class Band:
    """A stretch of the device, and the percent of a direction's bytes that start in it."""

    start_bytes: int
    end_bytes: int
    percent: int


def vdbench_job(profile: Profile, target: str, runtime_cap_ns: int) -> Job:
    """Return the parameters that run `profile` on `target` for at most `runtime_cap_ns`; ConfigError for a bad name."""
    if not _NAME.fullmatch(target):
        raise ConfigError(
            f"--target {target}: Vdbench takes no spaces, quotes, commas, parentheses, =, * or # in a name"
        )
    directions = [(n, d) for n, d in (("read", profile.read), ("write", profile.write)) if d.ops]
    lost = [
        *_sizes_lost(directions),
        hot_lost(profile, f"hot places within the {MAX_BANDS} stretches of each direction: uniform within each"),
        bursts_lost(profile, "bursts: arrivals are Poisson"),
        *([f"{format_count(profile.delete_ops)} deletes: there is no object to delete within a file"]
          if profile.delete_ops else []),
        *random_lost(profile),
    ]  # fmt: skip
    space = _space_bytes(profile)
    text = header(
        "Vdbench: random I/O of a KV-cache trace", profile,
        [
            ("Run", [
                f"vdbench -f {JOB}",
                f"it overwrites {target}: Vdbench fills a file that is missing or too short, but no device",
            ]),
            ("Needs", [f"{format_bytes(space)} in {target}"]),
            ("Lost", lost),
        ],
    )  # fmt: skip
    threads = depth(profile)
    lines = [
        *([f"# no threads: {threads.comment}; Vdbench runs 8"] if threads.count is None else [f"# {threads.comment}"]),
        f"sd=sd1,lun={target},size={space},openflags=o_direct"
        + ("" if threads.count is None else f",threads={threads.count}"),
        "# skew: percent of operations; range: bytes",
        *(line for name, direction in directions for line in _workloads(name, direction, profile)),
        *_run(profile, runtime_ms(profile, runtime_cap_ns)),
    ]
    return Job(text + "\n".join(lines) + "\n", lost)


def _workloads(name: str, direction: Direction, profile: Profile) -> list[str]:
    split = split_sizes(direction)
    sizes = (
        str(split.entries[0][0]) if len(split.entries) == 1
        else "(" + ",".join(f"{size},{percent}" for size, percent in split.entries) + ")"
    )  # fmt: skip
    longest = max(size for size, _ in split.entries)
    share = direction.ops / profile.ops
    lines = []
    for i, band in enumerate(bands(direction.zones, MAX_BANDS)):
        # A stretch must hold its longest operation.
        end = max(band.end_bytes, band.start_bytes + longest)
        lines.append(
            f"wd={name}{i + 1},sd=sd1,rdpct={PERCENT if name == 'read' else 0},seekpct=100,xfersize={sizes},"
            f"range=({band.start_bytes + _FIRST},{end + _FIRST}),skew={band.percent * share:.4g}"
        )
    return lines


_FIRST = 4096
"""Ranges start here: Vdbench takes numbers up to 200 for percentages, and keeps off the first block."""


def _run(profile: Profile, span_ms: int | None) -> list[str]:
    rate = ops_per_s(profile.ops, profile)
    if rate is None or span_ms is None:
        moved = profile.read.io_bytes + profile.write.io_bytes
        return [
            "# no iorate: all operations of the trace share one instant",
            f"rd=run,wd=*,iorate=max,maxdata={moved},interval=1",
        ]
    elapsed = max(_MIN_ELAPSED_S, round(span_ms * 1_000_000 / NS_PER_S))
    return [f"rd=run,wd=*,iorate={rate:.6g},distribution=exponential,elapsed={elapsed},interval=1"]


def bands(zones: Sequence[Zone], most: int) -> list[Band]:
    """Join `zones` into at most `most` stretches of about equal percent, in order of address; none are empty."""
    made: list[Band] = []
    start = end = percent = done = 0
    for zone in zones:
        end, percent = end + zone.span_bytes, percent + zone.percent
        if percent and (done + percent) * most >= (len(made) + 1) * PERCENT:
            made.append(Band(start, end, percent))
            start, done, percent = end, done + percent, 0
    if percent:
        made.append(Band(start, end, percent))
    return made


def _sizes_lost(directions: Sequence[tuple[str, Direction]]) -> list[str]:
    lost = []
    for name, direction in directions:
        split = split_sizes(direction)
        if split.moved_share > 0.0005:  # noqa: PLR2004 - 0.001 in print
            kept = f"whole percent of {len(split.entries)} sizes for {format_count(split.distinct_sizes)}"
            lost.append(f"sizes of {name}s: {kept}, total variation distance {split.moved_share:.3f}")
    return lost


def _space_bytes(profile: Profile) -> int:
    longest = max(s.io_bytes for s in (*profile.read.sizes, *profile.write.sizes))
    return -(-(profile.placed.span_bytes + longest + _FIRST) // MIB) * MIB
