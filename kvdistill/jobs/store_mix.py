"""What writers of random jobs share: operation mix, depth, sizes and run time, each with what it loses.

A writer gets these from a `Profile`; each comes with what it loses, so that a job's head can say so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvdistill.profile.distributions import mean_bytes, total_variation
from kvdistill.profile.profile import DirectionProfile, Profile, SizeCount
from kvtrace.core.units import NS_PER_MS, NS_PER_S, format_bytes, format_count

_WORTH_TELLING = 0.0005
"""Shares below this are 0.0 % in print."""


@dataclass(frozen=True, slots=True)
class StoreJob:
    """The text of one job, and what the format could not say of the profile."""

    text: str
    lost: list[str]


@dataclass(frozen=True, slots=True)
class StoreDepth:
    """Operations in flight; null if the profile does not say."""

    count: int | None
    comment: str


def depth(profile: Profile) -> StoreDepth:
    """Return the operations in flight: measured if they were timed, else a stage's, which bounds them."""
    if profile.mean_in_flight is not None:
        count = max(1, math.ceil(profile.mean_in_flight))
        return StoreDepth(count, f"measured: {profile.mean_in_flight:.3g} operations in flight, weighted by time")
    stages = profile.concurrency
    if stages is None:
        return StoreDepth(None, "the trace has no stages and no measured times")
    return StoreDepth(
        stages.max_stage_ops,
        f"the most operations of one stage (mean {stages.mean_stage_ops:.2f}): an upper bound, not a measured depth",
    )


def runtime_ms(profile: Profile, cap_ns: int) -> int | None:
    """Return how long a job runs, in ms: the profile's span up to `cap_ns`; null if it has none."""
    return max(1, min(profile.span_ns, cap_ns) // NS_PER_MS) if profile.span_ns else None


def ops_per_s(count: int, profile: Profile) -> float | None:
    """Return the rate of `count` operations, deletes included; null if all share one instant."""
    return count * NS_PER_S / profile.span_ns if profile.span_ns else None


def size_classes(sizes: Sequence[SizeCount], most: int) -> list[SizeCount]:
    """Return `sizes`, ascending, in at most `most` classes.

    If there are more, they are joined into runs of about as many operations, of their mean size: this keeps the bytes.
    """
    if len(sizes) <= most:
        return list(sizes)
    total, done = sum(s.ops for s in sizes), 0
    runs: dict[int, tuple[int, int]] = {}
    for size in sizes:
        # By its middle operation, so that a common size does not pull its neighbours in.
        run = min(most - 1, (2 * done + size.ops) * most // (2 * total))
        ops, moved = runs.get(run, (0, 0))
        runs[run] = (ops + size.ops, moved + size.ops * size.io_bytes)
        done += size.ops
    joined: dict[int, int] = {}
    for ops, moved in runs.values():
        mean = max(1, round(moved / ops))
        joined[mean] = joined.get(mean, 0) + ops
    return [SizeCount(size, ops) for size, ops in sorted(joined.items())]


def classes_lost(what: str, direction: DirectionProfile, classes: Sequence[SizeCount]) -> list[str]:
    """Return what `classes` lose of the sizes of `direction`, called `what`; nothing if they are the same."""
    if not direction.ops:
        return []
    sizes = direction.object_sizes
    moved = total_variation(sizes, classes)
    if moved < _WORTH_TELLING:
        return []
    exact = sum(s.io_bytes * s.ops for s in sizes) / direction.ops
    part = f"{moved:.1%} of {format_count(direction.ops)} get another (total variation distance {moved:.3f})"
    return [f"sizes of {what}: {part}; mean {format_bytes(mean_bytes(classes))} instead of {format_bytes(exact)}"]


def hot_lost(profile: Profile, text: str) -> str:
    """Return the loss `text` (no place is hot), with the share of the source's hottest blocks, if it is known."""
    if profile.locality is None:
        return text
    share = profile.locality.hot10_share
    return f"{text} (in the source, the hottest 10 % of 128 KiB blocks get {share:.1%} of operations)"


def bursts_lost(profile: Profile, text: str) -> str:
    """Return the loss `text` (arrivals are even or Poisson), with the source's dispersion, if it is known."""
    if profile.arrivals is None:
        return text
    return f"{text} (variance by mean of operations in the source: {profile.arrivals.dispersion}; by chance it is 1)"


def random_lost(profile: Profile) -> list[str]:
    """Return what every job of random operations loses."""
    order = "the order of operations: an object is not read again soon after it was used, as in the trace"
    if profile.locality is not None and profile.locality.reuse_p50_blocks is not None:
        order += (
            f" (there, half of what comes back does so within {profile.locality.reuse_p50_blocks:,.0f} other blocks)"
        )
    lost = ["which request and stage an operation serves: none waits for another", order]
    if profile.empty_ops:
        lost.append(f"{format_count(profile.empty_ops)} operations of no bytes are left out")
    data = profile.data
    if data is not None and (data.dedup_ratio, data.compress_ratio) != (1, 1):
        lost.append(
            f"what the data is like: the replay's deduplicated {data.dedup_ratio:g}:1 and compressed "
            f"{data.compress_ratio:g}:1; this job sets neither"
        )
    return lost
