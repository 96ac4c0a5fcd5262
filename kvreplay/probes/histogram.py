"""Histograms of the probes: fine slots for percentiles, summed up into powers of two for display.

A slot is exact below 128 and at most 1/64 of its value wide above, so that its middle is within 0.8 %.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kvtrace.core.statistics import QUANTILES, nearest_rank

SUB_BITS = 6
SLOTS = (41 - SUB_BITS) << SUB_BITS
"""As in common.bpf.c: up to 2^40, what is above is in the last one."""


class Bucket(msgspec.Struct, frozen=True):
    """How many values lay from `from_` on and below `below`."""

    from_: int = msgspec.field(name="from")
    below: int = 0
    count: int = 0


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """How times are distributed, in nanoseconds; null where too few values tell."""

    count: int
    mean_ns: float | None
    """From their exact sum."""
    p50_ns: float | None
    p95_ns: float | None
    p99_ns: float | None
    p99_9_ns: float | None
    p99_99_ns: float | None
    longest_below_ns: int | None
    """The longest was shorter than this; null if there are none, or if the last slot was reached."""
    log2_ns: list[Bucket]
    fine_ns: list[Bucket]


def slot_bounds(slot: int) -> tuple[int, int]:
    """Return the first value of `slot`, and the first one beyond it."""
    if slot < 2 << SUB_BITS:
        return slot, slot + 1
    shift = (slot >> SUB_BITS) - 1
    return (slot - (shift << SUB_BITS)) << shift, (slot - (shift << SUB_BITS) + 1) << shift


def histogram(slots: Sequence[int], total_ns: int) -> Histogram:
    """Return the histogram of the counts in `slots`, whose values sum to `total_ns`.

    Percentiles are by nearest rank, as the middle of its slot; null with fewer than 1 / (1 - q) values.
    """
    fine = [Bucket(*slot_bounds(i), n) for i, n in enumerate(slots) if n]
    count = sum(b.count for b in fine)
    ranks = {
        f"{name}_ns": _at_rank(fine, rank) if (rank := nearest_rank(count, part)) else None
        for name, part in QUANTILES.items()
    }
    return Histogram(
        count=count,
        mean_ns=total_ns / count if count else None,
        longest_below_ns=fine[-1].below if fine and not slots[-1] else None,
        log2_ns=log2(fine),
        fine_ns=fine,
        **ranks,
    )


def _at_rank(fine: list[Bucket], rank: int) -> float:
    seen = 0
    for bucket in fine:
        seen += bucket.count
        if seen >= rank:
            return (bucket.from_ + bucket.below - 1) / 2
    raise ValueError(f"rank {rank} of {seen} values")


def log2(fine: Sequence[Bucket]) -> list[Bucket]:
    """Return `fine` slots summed into power-of-two buckets, empty ones in between included; [0, 1) is the first."""
    counts: dict[int, int] = {}
    for bucket in fine:
        power = bucket.from_.bit_length()
        counts[power] = counts.get(power, 0) + bucket.count
    if not counts:
        return []
    return [
        Bucket(1 << power - 1 if power else 0, 1 << power, counts.get(power, 0))
        for power in range(min(counts), max(counts) + 1)
    ]
