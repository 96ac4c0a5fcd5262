"""What must hold of the knobs of tiers, each by itself and among nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from kvtrace.core.config import check_ranges
from kvtrace.sim.fleet.setting import FLEET_RANGES, FleetSetting, Scope
from kvtrace.sim.policies import Policy
from kvtrace.sim.presets.tier import (
    BYTES_PER_US,
    IN_ORDER,
    LINK,
    MAX_CAPACITY_BYTES,
    MAX_COUNT,
    MAX_LATENCY_NS,
    MAX_STREAMS,
    MAX_TOKENS,
    MAX_TTL_NS,
    MAX_WAITING,
    MIN_POLL_NS,
    PRICES,
    Admission,
    Streams,
    TierSetting,
    bytes_of,
)

TIER_RANGES: Final[dict[str, tuple[float, float]]] = {
    "TierSetting.concurrency": (0, MAX_TOKENS),
    "TierSetting.request_reads": (0, MAX_TOKENS),
    "TierSetting.request_writes": (0, MAX_TOKENS),
    "TierSetting.store_queue": (0, MAX_WAITING),
    "TierSetting.bucket_objects": (0, MAX_WAITING),
    "TierSetting.bucket_key_bytes": (0, MAX_COUNT),
    "TierSetting.bucket_meta_bytes": (0, MAX_COUNT),
    "TierSetting.admission_count": (1, MAX_COUNT),
    "TierSetting.admission_window": (1, MAX_COUNT),
    **{f"TierSetting.{name}": (0, MAX_COUNT) for name in PRICES},
    "TierSetting.stream_count": (1, MAX_STREAMS),
}
"""The smallest and largest value of each field that has one, by class and name."""


def _check_waiting(tier: TierSetting, name: str, require: Callable[[bool, str], None]) -> None:
    """Call `require` with what must hold of the knobs of what waits to be stored, and of buckets."""
    require(tier.heartbeat is None or tier.store_queue > 0, f"{name}: heartbeat needs a store_queue")
    require(
        tier.heartbeat is None or 0 < tier.heartbeat_ns <= MAX_TTL_NS,
        f"{name}.heartbeat(={tier.heartbeat}) must be > 0, and at most {MAX_TTL_NS // 10**9} s",
    )
    require(
        not tier.bucket_objects or tier.heartbeat is not None,
        f"{name}: bucket_objects needs store_queue and heartbeat",
    )
    require(
        tier.bucket_objects <= tier.store_queue,
        f"{name}.bucket_objects(={tier.bucket_objects}) never come together in a store_queue of {tier.store_queue}",
    )
    require(
        0 < (bytes_of(tier.bucket_bytes) or 0) <= MAX_CAPACITY_BYTES,
        f"{name}.bucket_bytes(={tier.bucket_bytes}) must be > 0, and at most {MAX_CAPACITY_BYTES}",
    )
    require(
        tier.bucket_gc is None or (tier.bucket_objects > 0 and 0 < tier.bucket_gc < 1),
        f"{name}.bucket_gc(={tier.bucket_gc}) must be > 0 and < 1, and needs bucket_objects",
    )
    require(
        tier.bucket_gc is None or tier.policy in (Policy.LRU, Policy.LFU, Policy.FIFO, Policy.CLOCK, Policy.SIEVE),
        f"{name}: bucket_gc goes with policy lru, lfu, fifo, clock or sieve, not {tier.policy}",
    )
    require(
        not tier.bucket_objects or tier.streams not in (Streams.USER_KIND, Streams.QOS, Streams.SESSION),
        f"{name}.streams={tier.streams}: a bucket holds objects of many requests; streams may be phase, age or "
        "object-kind there",
    )
    require(
        not (tier.bucket_objects and tier.admission is Admission.TINYLFU),
        f"{name}: admission=tinylfu compares objects, and bucket_objects gives up buckets; leave one of the two out",
    )


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
    require(
        tier.admission_decay is None or 0 < tier.decay_ns <= MAX_TTL_NS,
        f"{name}.admission_decay(={tier.admission_decay}) must be > 0, and at most {MAX_TTL_NS // 10**9} s",
    )
    require(
        tier.admission is not Admission.TINYLFU or tier.policy in IN_ORDER,
        f"{name}: admission=tinylfu needs policy={', '.join(IN_ORDER[:-1])} or {IN_ORDER[-1]}",
    )
    check_ranges(tier, f"{name}.", TIER_RANGES, require)
    _check_waiting(tier, name, require)
    rates = tier.rates_bytes_per_s
    require(
        all(rate == 0 or BYTES_PER_US <= rate <= MAX_CAPACITY_BYTES for rate in rates),
        f"{name}: a bandwidth must be at least 1MB, which is per second, and at most {MAX_CAPACITY_BYTES}",
    )
    require(
        0 <= tier.latency_ns <= MAX_LATENCY_NS,
        f"{name}.latency(={tier.latency_ns} ns) must be >= 0, and at most {MAX_LATENCY_NS} ns",
    )
    require(
        any(rates) or not (tier.latency or tier.concurrency),
        f"{name}: latency and concurrency need a bandwidth beside them",
    )
    _check_room(tier, name, require)


def _check_room(tier: TierSetting, name: str, require: Callable[[bool, str], None]) -> None:
    """Call `require` with what must hold of the knobs that say when room is made, and for what."""
    every, share = tier.evict_every_ns, tier.evict_share
    require(
        tier.evict_every is None or MIN_POLL_NS <= every <= MAX_TTL_NS,
        f"{name}.evict_every(={tier.evict_every}) must be at least 1ms, and at most {MAX_TTL_NS // 10**9} s",
    )
    require(share is None or 0 < share <= 1, f"{name}.evict_share(={share}) must be in (0, 1]")
    require(share is None or every > 0, f"{name}: evict_share needs evict_every, such as 1s")
    for field in ("evict_every", "staging"):
        require(
            not getattr(tier, field) or tier.policy is Policy.LRU,
            f"{name}: {field} needs policy=lru, not {tier.policy}",
        )
    require(
        not tier.staging or tier.admission is Admission.ALWAYS,
        f"{name}: staging needs admission=always: what comes to the tiers below goes through it",
    )
    require(tier.staging or not tier.stores_backwards, f"{name}: stores_backwards needs staging=true")


def check_fleet(fleet: FleetSetting, tiers: Sequence[TierSetting], require: Callable[[bool, str], None]) -> None:
    """Call `require` with what must hold of `fleet`, and of `tiers` where there are several nodes."""
    check_ranges(fleet, "fleet.", FLEET_RANGES, require)
    if fleet.nodes == 1:
        return
    require(
        fleet.prefill_nodes < fleet.nodes,
        f"fleet.prefill_nodes(={fleet.prefill_nodes}) of fleet.nodes(={fleet.nodes}): at least one must generate",
    )
    require(
        fleet.link_bytes_per_s == 0 or BYTES_PER_US <= fleet.link_bytes_per_s <= MAX_CAPACITY_BYTES,
        f"fleet.link_bandwidth must be at least 1MB, which is per second, and at most {MAX_CAPACITY_BYTES}",
    )
    require(not fleet.prefill_nodes or all(t.name != LINK for t in tiers), f"no tier may be called {LINK}")
    order = list(Scope)
    for above, tier in pairwise(tiers):
        require(
            order.index(tier.scope) >= order.index(above.scope),
            f"tiers.{tier.name}.scope(={tier.scope}): tier {above.name} above it is shared by more (scope="
            f"{above.scope}); order tiers from those of a node to those of the fleet",
        )
        require(
            not tier.bucket_objects or tier.scope is above.scope,
            f"tiers.{tier.name}.bucket_objects: a bucket is written from one memory, so tier {above.name} "
            f"(scope={above.scope}) must be shared as it is (scope={tier.scope}): set tiers.{above.name}.scope, or "
            "bucket_objects=0",
        )
