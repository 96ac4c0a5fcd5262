"""Write a mixed benchmark for MinIO's warp (`warp run FILE`) from a `Profile`. A pure function to text.

warp draws objects at random and has no arrival process, so the job keeps mix, sizes, rate and number of objects. Its
sizes are uniform between a bucket's bound and the one before: a bound without weight just below each gives exact ones.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kvdistill.jobs.job import header
from kvdistill.jobs.store_mix import (
    StoreDepth,
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
from kvdistill.profile.distributions import mean_bytes, percentages
from kvdistill.profile.profile import Profile, SizeCount
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import NS_PER_S, format_bytes, format_count, format_duration

JOB = "mixed.yml"
MIX_STEPS = 1000
"""warp draws operations from a deck of this many."""
MAX_CLASSES = 256
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_HOST = re.compile(r"[A-Za-z0-9.\[\]:{}_-]+")


@dataclass(frozen=True, slots=True)
class WarpOptions:
    """Options of the job."""

    host: str = "127.0.0.1:9000"
    bucket: str = "kvdistill"
    runtime_cap_ns: int = 300 * NS_PER_S

    def __post_init__(self) -> None:
        """Raise ConfigError for names that S3 or YAML do not take."""
        if not _BUCKET.fullmatch(self.bucket):
            raise ConfigError(f"--bucket {self.bucket}: 3 to 63 of a-z, 0-9, dots and hyphens")
        if not _HOST.fullmatch(self.host):
            raise ConfigError(f"--host {self.host}: write it as HOST:PORT")


@dataclass(frozen=True, slots=True)
class _Mix:
    """Operations of each kind in a deck of `MIX_STEPS`, and what that lost."""

    get: int
    put: int
    delete: int
    lost: list[str]


def warp_job(profile: Profile, options: WarpOptions) -> StoreJob:
    """Return warp's mixed benchmark for `profile`."""
    # The sizes of the more frequent direction: warp has one distribution for what it writes and reads.
    more = profile.read if profile.read.ops > profile.write.ops else profile.write
    classes = size_classes(more.object_sizes, MAX_CLASSES)
    mix = _mix(profile)
    concurrent = depth(profile)
    sizes = [*profile.read.object_sizes, *profile.write.object_sizes]
    # Without a number of its own, warp runs 20 at once.
    objects = max(round(profile.placed.peak_live_bytes / mean_bytes(sizes)), (concurrent.count or 20) + 1)
    rate = ops_per_s(profile.ops + profile.delete_ops, profile)
    span_ms = runtime_ms(profile, options.runtime_cap_ns)
    lost = [
        *mix.lost,
        *classes_lost("PUTs", profile.write, classes),
        *classes_lost("GETs, which read whole objects at random", profile.read, classes),
        hot_lost(profile, "hot objects: warp reads and deletes each object as likely as any other"),
        bursts_lost(profile, "bursts: requests are spaced evenly up to the rate limit"),
        "object names: warp makes its own",
        *random_lost(profile),
    ]
    size = mean_bytes(classes)
    objects_said = (
        f"{format_count(objects)} objects of {format_bytes(size)} on average ({format_bytes(objects * size)})"
    )
    upload = []
    if rate is not None:
        took = format_duration(objects / rate * NS_PER_S)
        what = f"the upload of the {format_count(objects)} objects before"
        upload.append(f"the rate limit also holds for {what}: that takes {took}")
    text = header(
        "warp: mixed benchmark of a KV-cache trace, objects drawn at random",
        profile,
        [
            (
                "Run",
                [
                    f"export WARP_ACCESS_KEY=... WARP_SECRET_KEY=...; warp run {JOB}",
                    f"WARNING: warp deletes everything in the bucket {options.bucket}, before and after",
                    *upload,
                ],
            ),
            ("Needs", [f"room for {objects_said}, and for what it writes beyond that"]),
            ("Lost", lost),
        ],
    )
    return StoreJob(text + _yaml(options, mix, classes, concurrent, objects, rate, span_ms), lost)


def _yaml(
    options: WarpOptions,
    mix: _Mix,
    classes: Sequence[SizeCount],
    concurrent: StoreDepth,
    objects: int,
    rate: float | None,
    span_ms: int | None,
) -> str:
    lines = [
        "warp:",
        "  api: v1",
        "  benchmark: mixed",
        "  remote:",
        f'    host: ["{options.host}"]',
        f'    bucket: "{options.bucket}"',
        "  params:",
        "    # no duration: all operations of the trace share one instant"
        if span_ms is None
        else f'    duration: "{span_ms}ms"',
        *(
            [f"    # no concurrent: {concurrent.comment}"]
            if concurrent.count is None
            else [f"    # {concurrent.comment}", f"    concurrent: {concurrent.count}"]
        ),
        "    # estimated: the most bytes that lived at once, over the mean size; warp needs more than concurrent",
        f"    objects: {objects}",
        "    # one record a request, which kvdistill import warp reads",
        "    full: true",
        "    # per mille of requests",
        f"    distribution: {{get: {mix.get}, stat: 0, put: {mix.put}, delete: {mix.delete}}}",
        f"    # {format_count(len(classes))} sizes, in bytes, by how often they occur; those of weight 0 only bound",
        "    obj:",
        f'      size: "{size_histogram(classes)}"',
    ]
    if rate is not None:
        lines += ["  advanced:", "    # requests a second, of each warp client", f"    rps-limit: {_number(rate)}"]
    else:
        lines += ["  # no rps-limit: all operations of the trace share one instant"]
    return "\n".join(lines) + "\n"


def size_histogram(classes: Sequence[SizeCount]) -> str:
    """Return `classes`, ascending, as warp's `obj.size`: `bound:weight`, exact by bounds without weight."""
    bars: list[str] = []
    last = 0
    for size in classes:
        # A bucket draws from the bound before up to below its own; two equal bounds would end warp.
        if size.io_bytes != last:
            bars.append(f"{size.io_bytes}:0")
        bars.append(f"{size.io_bytes + 1}:{size.ops}")
        last = size.io_bytes + 1
    return ",".join(bars)


def _mix(profile: Profile) -> _Mix:
    deletes = min(profile.delete_ops, profile.write.ops)
    counts = (profile.read.ops, profile.write.ops, deletes)
    get, put, delete = percentages(counts, MIX_STEPS)
    if delete > put:
        # Equal counts, of which the delete was rounded up: warp refuses to delete more than it writes.
        put, delete = delete, put
    lost = []
    if deletes < profile.delete_ops:
        lost.append(
            f"{format_count(profile.delete_ops - deletes)} of {format_count(profile.delete_ops)} deletes: warp "
            "refuses to delete more than it writes"
        )
    for name, count, share in zip(("GET", "PUT", "DELETE"), counts, (get, put, delete), strict=True):
        if count and not share:
            lost.append(f"all {format_count(count)} {name}s: they are below warp's resolution of 0.1 % of requests")
    return _Mix(get, put, delete, lost)


def _number(value: float) -> str:
    """Return `value` to six digits, never in scientific notation, which YAML readers differ on."""
    digits = max(0, 5 - math.floor(math.log10(value)))
    return f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"
