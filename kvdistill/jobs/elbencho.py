"""Write configuration files for elbencho (`elbencho -c FILE PATH`) from a `Profile`. Pure functions to text.

elbencho reads and writes one file or device at random offsets: mix, sizes (with one distribution for both directions)
and byte rate fit; hot places, arrivals and deletes do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kvdistill.jobs.header import header
from kvdistill.jobs.store_mix import (
    Job,
    bursts_lost,
    depth,
    hot_lost,
    random_lost,
    runtime_ms,
    size_classes,
    total_variation,
)
from kvdistill.profile.zones import PERCENT, percentages
from kvtrace.core.units import NS_PER_S, format_bytes, format_count, format_rate

if TYPE_CHECKING:
    from kvdistill.jobs.store_mix import Depth
    from kvdistill.profile.profile import Direction, Profile, SizeCount

PREFILL, MIXED = "prefill.elbencho", "mixed.elbencho"
MAX_CLASSES = 64
MIB = 1 << 20
_MS_PER_S = 1000


def prefill_job(profile: Profile) -> str:
    """Return the configuration that writes the whole file, so that every read meets data."""
    text = header(
        "elbencho: fill the file before the mixed run", profile,
        [("Run", [f"elbencho -c {PREFILL} PATH   # a file or block device, which is overwritten"])],
    )  # fmt: skip
    return text + "\n".join(["write=1", "direct=1", "block=1M", f"size={_space_bytes(profile)}"]) + "\n"


def elbencho_job(profile: Profile, runtime_cap_ns: int) -> Job:
    """Return the mixed run of `profile`, for at most `runtime_cap_ns`."""
    both = _both(profile)
    classes = size_classes(both, MAX_CLASSES)
    read_percent = percentages([profile.read.ops, profile.write.ops])[0]
    threads = depth(profile)
    span_ms = runtime_ms(profile, runtime_cap_ns)
    lost = [
        *_sizes_lost(profile, classes), *_share_lost(profile, read_percent),
        hot_lost(profile, "hot places: every offset of the file is as likely as any other"),
        bursts_lost(profile, "bursts and Poisson arrivals: each thread is held to an even byte rate"),
        *([f"{format_count(profile.delete_ops)} deletes: there is no object to delete within a file"]
          if profile.delete_ops else []),
        *random_lost(profile),
    ]  # fmt: skip
    text = header(
        "elbencho: mixed random run of a KV-cache trace", profile,
        [
            ("Run", [
                f"elbencho -c {PREFILL} PATH && elbencho -c {MIXED} PATH   # the same PATH, which is overwritten",
                "several sizes (block=SIZE:WEIGHT,...) need an elbencho of 2026 or later",
            ]),
            ("Needs", [
                f"{format_bytes(_space_bytes(profile))} in PATH",
                f"{format_bytes(classes[-1].io_bytes)} of memory for each thread: its largest operation",
            ]),
            ("Lost", lost),
        ],
    )  # fmt: skip
    lines = [
        "write=1", "# percent of operations that read; the rest write", f"rwmixpct={read_percent}", "rand=1",
        "direct=1", f"size={_space_bytes(profile)}", "# sizes in bytes, by how often they occur",
        "block=" + (",".join(f"{s.io_bytes}:{s.ops}" for s in classes) if len(classes) > 1
                    else str(classes[0].io_bytes)),
        *_threads(threads), "# starts over until the time limit", "infloop=1", *_pace(profile, threads, span_ms),
    ]  # fmt: skip
    return Job(text + "\n".join(lines) + "\n", lost)


def _threads(threads: Depth) -> list[str]:
    if threads.count is None:
        return [f"# no threads: {threads.comment}; elbencho runs 1"]
    return [f"# {threads.comment}", f"threads={threads.count}"]


def _pace(profile: Profile, threads: Depth, span_ms: int | None) -> list[str]:
    if span_ms is None:
        return ["# no limits: all operations of the trace share one instant"]
    rate = (profile.read.io_bytes + profile.write.io_bytes) * NS_PER_S / profile.span_ns
    return [
        f"timelimit={max(1, round(span_ms / _MS_PER_S))}",
        f"# bytes a second of each thread, reads and writes together: {format_rate(rate)} in all",
        f"limitwrite={max(1, round(rate / (threads.count or 1)))}",
    ]


def _both(profile: Profile) -> list[SizeCount]:
    """Return the sizes of reads and writes together: elbencho draws both from one distribution."""
    counts: dict[int, SizeCount] = {}
    for size in (*profile.read.sizes, *profile.write.sizes):
        before = counts.get(size.io_bytes)
        counts[size.io_bytes] = msgspec.structs.replace(size, ops=size.ops + (before.ops if before else 0))
    return [counts[length] for length in sorted(counts)]


def _sizes_lost(profile: Profile, classes: list[SizeCount]) -> list[str]:
    def one(name: str, direction: Direction) -> list[str]:
        moved = total_variation(direction.sizes, classes) if direction.ops else 0
        return [f"sizes of {name}: total variation distance {moved:.3f} (of 1)"] if moved > 0.0005 else []  # noqa: PLR2004 - 0.001 in print

    return [*one("reads", profile.read), *one("writes", profile.write)]


def _share_lost(profile: Profile, read_percent: int) -> list[str]:
    exact = profile.read.ops * PERCENT / profile.ops
    if abs(exact - read_percent) < 0.005:  # noqa: PLR2004 - the same in print
        return []
    return [f"the share of reads: {read_percent} % where it is {exact:.2f} %"]


def _space_bytes(profile: Profile) -> int:
    return -(-profile.placed.span_bytes // MIB) * MIB
