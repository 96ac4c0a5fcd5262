"""What a preset says of one tier: how much it holds, what it takes and gives up, and how fast it is."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

from kvtrace.core.units import parse_bytes, parse_duration_ns
from kvtrace.sim.policies.policies import Policy

# With these, what is computed from a preset still fits 64 bits.
MAX_CAPACITY_BYTES = 2**61
MAX_TOKENS = 2**31 - 1
BYTES_PER_US = 10**6
MAX_TTL_NS = 2**61
MAX_LATENCY_NS = 10**12


class Recency(StrEnum):
    """In which order the objects of a request count as used."""

    HEAD_FIRST = "head-first"
    """As they are looked up and stored: of one request, the first object is given up first."""
    TAIL_FIRST = "tail-first"
    """Each is less recent than those before it: of one request, the last object is given up first, for what it is good
    for needs all before it. As the request ends, they count as used once more. In tiers that evict by lru."""
    TAIL_FIRST_AT_END = "tail-first-at-end"
    """Likewise, but only as the request ends; until then as head-first."""


class TierSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tier of a preset; without a capacity it has no bound."""

    name: str
    capacity: str | int | None = None
    """Such as `2TiB`; without it the tier has no bound."""
    high_watermark: float = 1.0
    """How full it gets, as a share of its capacity, before it makes room."""
    low_watermark: float | None = None
    """How far it then goes down; by default only as far as it must."""
    max_object_fraction: float = 1.0
    """The largest object it takes, as a share of its capacity."""
    policy: Policy = Policy.LRU
    """Which object it gives up to make room."""
    ttl: str | None = None
    """With policy ttl: how long an object stays after it was written, such as `10m`."""
    read_bandwidth: str | int | None = None
    """Bytes a second, such as `7GB`; without it reads take no time."""
    write_bandwidth: str | int | None = None
    """Likewise, of writes."""
    latency: str | None = None
    """Of one operation, such as `80us`; counted only beside a bandwidth."""
    concurrency: int = 0
    """Operations it serves at once, which bounds their rate by the latency; 0 is unbounded."""
    request_reads: int = 0
    """Reads of one request that it serves at once, each so many a stage of their own; 0 is all, 1 one after another."""
    request_writes: int = 0
    """Likewise, of writes."""
    recency: Recency | None = None
    """In which order the objects of a request count as used here; by default as the preset says."""
    whole_offers: bool = False
    """What is offered together (offer_tokens) finds room all together, or nothing of it is stored, here or below. What
    is in flight makes no room: the offer before it, and what is still being read or written. It is offered again with
    the next objects, and as the request ends. With placement write-through and policy lru; with another policy, room
    is made object by object."""
    looks_past_miss: bool = False
    """Each object of a prompt that no faster tier has is looked up here, not only up to the first miss."""

    @property
    def capacity_bytes(self) -> int | None:
        """The capacity in bytes; null without a bound."""
        return bytes_of(self.capacity)

    @property
    def rates_bytes_per_s(self) -> tuple[int, int]:
        """Read and write bytes a second; 0 where the model has none."""
        return bytes_of(self.read_bandwidth) or 0, bytes_of(self.write_bandwidth) or 0

    @property
    def ttl_ns(self) -> int:
        """How long an object stays, ns; 0 is for as long as there is room."""
        return parse_duration_ns(self.ttl) if self.ttl is not None else 0

    @property
    def latency_ns(self) -> int:
        """The latency of one operation, ns."""
        return parse_duration_ns(self.latency) if self.latency else 0


def bytes_of(value: str | int | None) -> int | None:
    """Return the bytes of a size as people write it; null for null."""
    return parse_bytes(value) if isinstance(value, str) else value


TIER_RANGES: Final[dict[str, tuple[int, int]]] = {
    f"TierSetting.{name}": (0, MAX_TOKENS) for name in ("concurrency", "request_reads", "request_writes")
}
"""The smallest and largest value of each field that has one, by class and name."""


def check_ranges(
    holder: msgspec.Struct, prefix: str, ranges: dict[str, tuple[int, int]], require: Callable[[bool, str], None]
) -> None:
    """Call `require` with each field of `holder` that `ranges` bounds."""
    for field in holder.__struct_fields__:
        if (bounds := ranges.get(f"{type(holder).__name__}.{field}")) is not None:
            (least, most), value = bounds, getattr(holder, field)
            require(least <= value <= most, f"{prefix}{field}(={value}) must be >= {least}, and at most {most}")


def check_tier(tier: TierSetting, require: Callable[[bool, str], None]) -> None:
    """Call `require` with what must hold of each knob of `tier`."""
    capacity, name = tier.capacity_bytes, f"tiers.{tier.name}"
    require(
        capacity is None or 0 <= capacity <= MAX_CAPACITY_BYTES,
        f"{name}.capacity(={capacity}) must be >= 0, and at most {MAX_CAPACITY_BYTES}",
    )
    for field in ("high_watermark", "max_object_fraction"):
        require(0 < getattr(tier, field) <= 1, f"{name}.{field}(={getattr(tier, field)}) must be in (0, 1]")
    low = tier.low_watermark
    require(
        low is None or 0 <= low <= tier.high_watermark,
        f"{name}.low_watermark(={low}) must be between 0 and its high_watermark(={tier.high_watermark})",
    )
    require(
        (tier.policy is Policy.TTL) == (tier.ttl is not None),
        f"{name}: policy=ttl and a ttl, such as 10m, need each other",
    )
    require(
        tier.ttl is None or 0 < tier.ttl_ns <= MAX_TTL_NS,
        f"{name}.ttl(={tier.ttl}) must be > 0, and at most {MAX_TTL_NS // 10**9} s",
    )
    rates = tier.rates_bytes_per_s
    require(
        all(rate == 0 or BYTES_PER_US <= rate <= MAX_CAPACITY_BYTES for rate in rates),
        f"{name}: a bandwidth must be at least 1MB, which is per second, and at most {MAX_CAPACITY_BYTES}",
    )
    check_ranges(tier, f"{name}.", TIER_RANGES, require)
    require(
        0 <= tier.latency_ns <= MAX_LATENCY_NS,
        f"{name}.latency(={tier.latency_ns} ns) must be >= 0, and at most {MAX_LATENCY_NS} ns",
    )
    require(
        any(rates) or not (tier.latency or tier.concurrency),
        f"{name}: latency and concurrency need a bandwidth beside them",
    )
