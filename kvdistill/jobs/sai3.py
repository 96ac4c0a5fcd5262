"""Write a random workload for sai3-bench (`sai3-bench run --config FILE`) from a `Profile`. A pure function to text.

sai3-bench samples prepared objects at random and paces at a fixed rate with Poisson arrivals. Its sizes are one an
operation entry, so each size is an entry of its own with its weight; what replays exactly is the op log (oplog.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvdistill.jobs.job import header
from kvdistill.jobs.store_mix import (
    StoreJob,
    bursts_lost,
    classes_lost,
    depth,
    hot_lost,
    ops_per_s,
    random_lost,
    runtime_ms,
    size_classes,
)
from kvdistill.profile.distributions import percentages
from kvdistill.profile.profile import Profile, SizeCount
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import NS_PER_S, format_bytes, format_count

WORKLOAD = "workload.yaml"
MAX_CLASSES = 64
"""Sizes in each direction: each is an entry, and a folder of prepared objects."""
_MAX_WEIGHT = 2**32 - 1
_TARGET = re.compile(r"(s3|gs|gcs|az|file|direct)://[A-Za-z0-9._/:@-]+")


@dataclass(frozen=True, slots=True)
class Sai3Options:
    """Options of the workload; `target` ends in a slash."""

    target: str = "s3://kvdistill/"
    runtime_cap_ns: int = 300 * NS_PER_S

    def __post_init__(self) -> None:
        """Raise ConfigError unless the target is a base URI."""
        if not _TARGET.fullmatch(self.target) or not self.target.endswith("/"):
            raise ConfigError(
                f"--target {self.target}: write a base URI that ends in a slash, such as s3://bucket/ or direct:///mnt/x/"
            )


def sai3_workload(profile: Profile, options: Sai3Options) -> StoreJob:
    """Return sai3-bench's random workload for `profile`."""
    gets, puts = (size_classes(d.object_sizes, MAX_CLASSES) for d in (profile.read, profile.write))
    concurrency = depth(profile)
    rate = ops_per_s(profile.ops + profile.delete_ops, profile)
    span_ms = runtime_ms(profile, options.runtime_cap_ns)
    prepared = _prepared(profile, gets)
    lost = [
        *classes_lost("GETs", profile.read, gets),
        *classes_lost("PUTs", profile.write, puts),
        hot_lost(
            profile,
            "hot objects: each prepared object of a size is read as likely as any other, and none that it wrote itself",
        ),
        bursts_lost(profile, "bursts: arrivals are Poisson"),
        "object names: sai3-bench makes its own",
        *random_lost(profile),
    ]
    if profile.delete_ops:
        lost.append(
            f"what {format_count(profile.delete_ops)} deletes free: they sample prepared objects, not what was "
            "written, so the space in use grows by every PUT"
        )
    if rate is not None and round(rate) != rate:
        lost.append(f"the rate's fraction: {rate:.6g} operations a second, where whole ones are said")
    text = header(
        "sai3-bench: random workload of a KV-cache trace",
        profile,
        [
            (
                "Run",
                [
                    f"sai3-bench run --config {WORKLOAD} --dry-run   # checks this file",
                    f"sai3-bench run --config {WORKLOAD}",
                ],
            ),
            ("Needs", _needs(profile, gets, prepared)),
            ("Lost", lost),
        ],
    )
    lines = [f'target: "{options.target}"']
    lines += (
        ["# no duration: all operations of the trace share one instant"]
        if span_ms is None
        else [f'duration: "{span_ms}ms"']
    )
    lines += (
        [f"# no concurrency: {concurrency.comment}"]
        if concurrency.count is None
        else [f"# {concurrency.comment}", f"concurrency: {concurrency.count}"]
    )
    lines += (
        ["# no io_rate: all operations of the trace share one instant"]
        if rate is None
        else ["io_rate:", f"  iops: {max(1, round(rate))}", "  distribution: exponential"]
    )
    lines += [*_prepare(gets, prepared, profile, options), *_entries(gets, puts, profile)]
    return StoreJob(text + "\n".join(lines) + "\n", lost)


def _needs(profile: Profile, gets: Sequence[SizeCount], prepared: Sequence[int]) -> list[str]:
    if not gets:
        return []
    total = sum(s.io_bytes * n for s, n in zip(gets, prepared, strict=True))
    # With deletes it makes a pool of its own for them from every entry.
    twice = ", twice: sai3-bench prepares objects to delete apart from those to read" if profile.delete_ops else ""
    said = f"{format_count(sum(prepared))} prepared objects ({format_bytes(total)}){twice}"
    return [f"room for {said}; and for what it writes"]


def _prepared(profile: Profile, gets: Sequence[SizeCount]) -> list[int]:
    """Return how many objects of each size to prepare: about as many as lived at once, by how often they are read."""
    if not gets:
        return []
    mean = profile.read.object_bytes / profile.read.ops
    count = max(len(gets), round(profile.placed.peak_live_bytes / mean))
    return [max(1, n) for n in percentages([s.ops for s in gets], count)]


def _prepare(gets: Sequence[SizeCount], prepared: Sequence[int], profile: Profile, options: Sai3Options) -> list[str]:
    folders = [(f"get-{s.io_bytes}/", n, s.io_bytes) for s, n in zip(gets, prepared, strict=True)]
    if profile.delete_ops:
        # The size of what is deleted moves no bytes; the smallest there is keeps the preparation short.
        smallest = min(s.io_bytes for s in (*profile.read.object_sizes, *profile.write.object_sizes))
        folders.append(("delete/", profile.delete_ops, smallest))
    if not folders:
        return []
    lines = [
        "prepare:",
        "  # estimated: as many objects as lived at once at most, at the mean size of reads",
        "  ensure_objects:",
    ]
    for folder, count, size in folders:
        lines += [
            f'    - base_uri: "{options.target}{folder}"',
            f"      count: {count}",
            f"      min_size: {size}",
            f"      max_size: {size}",
            "      fill: random",
        ]
    return lines


def _entries(gets: Sequence[SizeCount], puts: Sequence[SizeCount], profile: Profile) -> list[str]:
    """Return one entry an operation and size, weighted by count; sai3-bench's weights are 32 bits in sum."""
    total = profile.ops + profile.delete_ops
    scale = max(1, -(-total // _MAX_WEIGHT))
    lines = ["workload:"]
    for size in gets:
        lines += ["  - op: get", f'    path: "get-{size.io_bytes}/prepared-*.dat"', _weight(size.ops, scale)]
    for size in puts:
        lines += [
            "  - op: put",
            f'    path: "put-{size.io_bytes}/"',
            f"    object_size: {size.io_bytes}",
            _weight(size.ops, scale),
        ]
    if profile.delete_ops:
        lines += ["  - op: delete", '    path: "delete/prepared-*.dat"', _weight(profile.delete_ops, scale)]
    return lines


def _weight(ops: int, scale: int) -> str:
    return f"    weight: {max(1, ops // scale)}"
