"""The counters of a simulation, as the metadata of a trace carries them.

A trace's footer holds them as JSON; `SimulationStats` is that JSON with types. Every quantity is in
the unit that its name ends in. Counts without a unit are objects, requests or operations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

if TYPE_CHECKING:
    from kvtrace.core.metadata import Metadata


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of a time in ns, each one a time that occurred (nearest rank).

    A percentile is None where there are too few values: p99 needs at least 100.
    """

    p50_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    p99_9_ns: int | None
    p99_99_ns: int | None


class TimeToFirstToken(msgspec.Struct, frozen=True):
    """Modelled time from a request's arrival to its first token (TTFT)."""

    requests: int
    """Requests whose first token was generated."""
    with_cache: Percentiles
    """TTFT as simulated: waiting, loading of cached blocks and computing of the others."""
    without_cache: Percentiles
    """TTFT in the same queue if this request alone had found nothing in any tier."""


class LookupCounts(msgspec.Struct, frozen=True):
    """Lookups of one kind of shared object, which all lookups include."""

    lookups: int
    hits: int
    hit_ratio: float | None


class PrefillStats(msgspec.Struct, frozen=True):
    """Computing of prompts."""

    requests: int
    mean_wait_ns: int | None
    """Mean time that a prompt waited for the GPU; None if no prompt was computed."""


class DecodeStats(msgspec.Struct, frozen=True):
    """Generation of tokens."""

    tokens: int
    mean_ns_per_token: int | None
    """None if no token was generated."""


class OfferStats(msgspec.Struct, frozen=True):
    """Offers to a tier that takes all objects of an offer or none."""

    count: int
    refused: int
    refused_objects: int


class StreamStats(msgspec.Struct, frozen=True):
    """Writes to a tier that carry one placement stream (an FDP handle or a write hint)."""

    stream: int
    holds: str
    """What the stream's data have in common, such as a phase or a tenant."""
    writes: int
    written_bytes: int
    deleted_bytes: int | UnsetType = UNSET


class TierStats(msgspec.Struct, frozen=True):
    """One tier, all of its instances together.

    Fields that are UNSET do not apply to the tier's configuration.
    """

    name: str
    hits: int
    hit_ratio: float | None
    """Hits in this tier over the lookups in all tiers; None without lookups."""
    hit_bytes: int
    read_bytes: int
    written_bytes: int
    """All writes, those before the start (`populated_bytes`) included."""
    populated_bytes: int
    """Written before the first request: shared prompts, documents."""
    deleted_bytes: int
    live_bytes: int
    """Stored in the tier at the end."""
    refused_objects: int | UnsetType = UNSET
    refused_bytes: int | UnsetType = UNSET
    """Not admitted by the tier's admission filter."""
    file_lookups: int | UnsetType = UNSET
    """Lookups of files that a real engine performs; a trace has no rows of them."""
    dropped_objects: int | UnsetType = UNSET
    dropped_bytes: int | UnsetType = UNSET
    """Not stored because the store queue was full."""
    lost_objects: int | UnsetType = UNSET
    lost_bytes: int | UnsetType = UNSET
    """Evicted from the tier above before the store queue reached them."""
    waiting_objects: int | UnsetType = UNSET
    """In the store queue at the end."""
    collected_bytes: int | UnsetType = UNSET
    """Rewritten by the garbage collection of buckets."""
    scope: str | UnsetType = UNSET
    """What shares an instance of the tier: node, rack or fleet. UNSET on a single node."""
    instances: int | UnsetType = UNSET
    streams: list[StreamStats] | UnsetType = UNSET


class SimulationStats(msgspec.Struct, frozen=True):
    """The counters of one simulation."""

    requests: int
    input_tokens: int
    output_tokens: int
    lookups: int
    """Lookups of objects in the hierarchy: one per object of a prompt."""
    lookup_bytes: int
    misses: int
    prompts: LookupCounts | None
    """Lookups of shared system prompts; None if the workload has none."""
    documents: LookupCounts | None
    """Lookups of retrieved documents; None if the workload has none."""
    prefill: PrefillStats
    decode: DecodeStats
    decode_misses: int
    unplaced_objects: int
    """Objects that were stored nowhere: too large for every tier, or without room in staging."""
    first_token: TimeToFirstToken | None
    """None if neither computing nor storage takes time in this simulation."""
    tiers: list[TierStats]
    """Fastest first."""
    offers: OfferStats | UnsetType = UNSET
    stalled_requests: int | UnsetType = UNSET
    """Requests that load more than a tier holds: a real engine would never finish them."""
    fleet: dict[str, object] | UnsetType = UNSET
    """Counters of several nodes; UNSET on a single node."""
    incidents: dict[str, object] | UnsetType = UNSET
    """Counters around injected events; UNSET without any."""

    @property
    def hits(self) -> int:
        """Lookups that any tier answered."""
        return sum(tier.hits for tier in self.tiers)

    @property
    def hit_ratio(self) -> float | None:
        """Hits in any tier over lookups; None without lookups."""
        return self.hits / self.lookups if self.lookups else None

    def tier(self, name: str) -> TierStats:
        """Return the counters of the tier called `name`.

        Raises:
            KeyError: if no tier has that name.

        """
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise KeyError(f"no tier {name!r}; the tiers are {', '.join(t.name for t in self.tiers)}")


def simulation_stats(metadata: Metadata) -> SimulationStats | None:
    """Return the counters in `metadata`, or None if no simulation wrote it."""
    if metadata.stats is None or "lookups" not in metadata.stats:
        return None
    return msgspec.convert(metadata.stats, SimulationStats)
