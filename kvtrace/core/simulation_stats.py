"""The counters of a simulation, as the metadata of a trace carries them.

A simulation returns `SimulationStats`; `to_json` writes it into a trace's footer and
`from_json` reads it from there. Every quantity is in the unit that its name ends in. Counts without a unit are objects, requests or operations.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from kvtrace.core.json_types import JsonObject

MAX_COUNT = (1 << 62) - 1
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
"""A number that 64 bits have room for."""


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles of a time in ns, each one a time that occurred (nearest rank).

    A percentile is None where there are too few values: p99 needs at least 100.
    """

    p50_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    p99_9_ns: int | None
    p99_99_ns: int | None


def percentile_name(field: str) -> str:
    """Return the name that users know of a field of `Percentiles`: p99.9 of p99_9_ns."""
    return field.removesuffix("_ns").replace("_", ".")


class TimeToFirstToken(msgspec.Struct, frozen=True):
    """Modelled time from a request's arrival to its first token (TTFT)."""

    requests: int
    """Requests whose first token was generated."""
    with_cache: Percentiles
    """TTFT as simulated: waiting, loading of cached blocks and computing of the others."""
    without_offload: Percentiles | None = None
    """TTFT of the same requests, simulated with GPU memory as the only tier.

    None if that was not simulated.
    """
    requests_without_offload: int | None = None
    """Requests whose first token was generated in that simulation.

    Users that wait for answers send more requests if answers come sooner.
    """


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
    load: float | None = None
    """Time to compute all prompts over the time in which they arrived, on all nodes.

    Above 1, requests arrive faster than prompts are computed. None where requests wait for
    answers, or are not all computed, or computing takes no time.
    """
    needed_nodes: int | None = None
    """The least number of computing nodes whose `load` would be at most 1; None as `load`."""


class DecodeStats(msgspec.Struct, frozen=True):
    """Generation of tokens."""

    tokens: int
    """Tokens of the answers of requests that ended in the simulated time."""
    mean_ns_per_token: int | None
    """Mean time of their decode steps; None without such a step.

    Where the prefill is modelled it gives the first token, and each step one of the others.
    """
    generated_tokens: int | None = None
    """Tokens of all answers in the simulated time, those of unfinished requests included."""
    tokens_per_s: float | None = None
    """Output throughput: generated tokens over the time until the last event."""
    requests: int | None = None
    """Requests with a time per output token."""
    time_per_token: Percentiles | None = None
    """Time per output token (TPOT, mean inter-token latency), by request.

    The time from a request's first token to its last, over the decode steps between. None if
    decoding takes no time.
    """
    time_per_token_without_offload: Percentiles | None = None
    """The same with GPU memory as the only tier; None if that was not simulated."""


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """The requests whose TTFT and TPOT are within the limits of a service level."""

    ttft_limit_ns: int | None
    """None for no limit."""
    tpot_limit_ns: int | None
    requests: int
    """Requests within both limits."""
    share: float | None
    """Of all requests that arrived; None without any."""
    requests_per_s: float | None
    """Requests within the limits over the time until the last event."""
    share_without_offload: float | None = None
    """The share with GPU memory as the only tier; None if that was not simulated."""


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


class TierStats(msgspec.Struct, frozen=True, kw_only=True):
    """One tier, all of its instances together.

    Fields that are UNSET do not apply to the tier's configuration.
    """

    name: str
    hits: int
    hit_ratio: float | None
    """Hits in this tier over the lookups in all tiers; None without lookups."""
    hit_bytes: int
    """Of whole objects, also where the tier stores a share of their bytes."""
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


class FleetImbalance(msgspec.Struct, frozen=True):
    """The busiest node over the mean of the nodes that the router chooses from; 1 is even.

    None if the nodes did nothing of the kind.
    """

    requests: float | None
    computing_ns: float | None


class NodeCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of the nodes of a fleet: each list has one number a node."""

    requests: list[Count]
    input_tokens: list[Count] | UnsetType = UNSET
    computed_tokens: list[Count]
    """Prompt tokens that were computed because no tier had them."""
    computing_ns: list[Count]
    lookups: list[Count]
    local_hits: list[Count]
    """Hits in tiers of the node itself."""
    shared_hits: list[Count]
    """Hits in tiers that nodes share."""

    def __post_init__(self) -> None:
        """Refuse lists of different lengths."""
        _check_lengths(self)


class FleetStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of several nodes."""

    nodes: Annotated[int, msgspec.Meta(ge=1)]
    router: str
    local_hits: Count | UnsetType = UNSET
    shared_hits: Count | UnsetType = UNSET
    local_hit_ratio: float | None
    shared_hit_ratio: float | None
    hit_ratio: float | None
    computed_tokens: Count
    duplicate_bytes: Count
    """Copies at the end of objects that another node holds too."""
    link_bytes: Count | UnsetType = UNSET
    """Sent from prefill to decode nodes; UNSET unless they are separate."""
    imbalance: FleetImbalance
    by_node: NodeCounts


class TierWindow(msgspec.Struct, frozen=True, kw_only=True):
    """I/O of one tier in one window."""

    name: str
    reads: Count
    read_bytes: Count
    writes: Count
    written_bytes: Count
    lost_bytes: Count
    peak_read_bytes: Count
    """The most in a second."""
    peak_written_bytes: Count


class IncidentWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Lookups and I/O in one window before, during or after an incident."""

    window: str
    """`before`, `during` or `minute 1 after`."""
    from_ns: Count
    to_ns: Count
    lookups: Count | UnsetType = UNSET
    local_hits: Count | UnsetType = UNSET
    shared_hits: Count | UnsetType = UNSET
    computed_tokens: Count
    restarted: Count
    """Requests that restarted in this window."""
    local_hit_ratio: float | None
    shared_hit_ratio: float | None
    hit_ratio: float | None
    tiers: list[TierWindow]


class HitSteps(msgspec.Struct, frozen=True):
    """Lookups and hits in steps from the moment of an incident on."""

    step_ns: Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)]
    lookups: list[Count]
    hits: list[Count]

    def __post_init__(self) -> None:
        """Refuse lists of different lengths."""
        _check_lengths(self)

    def ratio(self, first: int, end: int) -> float | None:
        """Return the hit rate of the steps from `first` to before `end`; None without lookups."""
        lookups = sum(self.lookups[first:end])
        return sum(self.hits[first:end]) / lookups if lookups else None


class IncidentOutcome(msgspec.Struct, frozen=True):
    """One incident and the windows around it."""

    event: str
    """The incident as the user wrote it."""
    at_ns: Count
    over_ns: Count
    """When the incident ends; equal to `at_ns` if it takes no time."""
    is_reached: bool
    hits_back_ns: Count | None
    """From the end of the incident until the hit rate is that of before; None if never."""
    windows: list[IncidentWindow]
    steps: HitSteps | None = None
    """From `at_ns` on; None in traces of versions that did not count them."""


class RestartCounts(msgspec.Struct, frozen=True):
    """Lookups of requests that restarted after their node was lost."""

    requests: Count
    lookups: Count
    hits: Count
    of_lookups: Count
    """Lookups of all requests, restarted or not."""
    of_hits: Count


class LookupSeries(msgspec.Struct, frozen=True, kw_only=True):
    """Lookups over the whole time, one number a step."""

    lookups: list[Count]
    local_hits: list[Count]
    shared_hits: list[Count]
    computed_tokens: list[Count]
    restarted: list[Count] | UnsetType = UNSET


class TierSeries(msgspec.Struct, frozen=True, kw_only=True):
    """I/O of one tier over the whole time, one number a step."""

    name: str
    reads: list[Count] | UnsetType = UNSET
    read_bytes: list[Count]
    writes: list[Count] | UnsetType = UNSET
    written_bytes: list[Count]
    lost_bytes: list[Count] | UnsetType = UNSET


class IncidentStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters around the incidents that the user asked for."""

    around: list[IncidentOutcome]
    begun_again: RestartCounts | UnsetType | None = UNSET
    """UNSET in traces of versions that did not count restarts."""
    step_ns: Annotated[int, msgspec.Meta(ge=1, le=MAX_COUNT)]
    """Length of a step of the series."""
    end_ns: Count
    over_time: LookupSeries
    tiers: Annotated[list[TierSeries], msgspec.Meta(min_length=1)]
    """Fastest first."""

    def __post_init__(self) -> None:
        """Refuse series of different lengths."""
        _check_lengths(self.over_time, *self.tiers)


def _check_lengths(*records: msgspec.Struct) -> None:
    """Raise ValueError unless all lists in `records` have one length."""
    fields = [value for record in records for value in msgspec.structs.astuple(record)]
    if len({len(values) for values in fields if isinstance(values, list)}) > 1:
        raise ValueError("what was counted of nodes or over time has lists of several lengths")


class SimulationStats(msgspec.Struct, frozen=True, kw_only=True):
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
    offers: OfferStats | UnsetType = UNSET
    stalled_requests: int | UnsetType = UNSET
    """Requests that load more than a tier holds: a real engine would never finish them."""
    first_token: TimeToFirstToken | None
    """None if neither computing nor storage takes time in this simulation."""
    goodput: Goodput | UnsetType = UNSET
    """UNSET without a service level."""
    tiers: list[TierStats]
    """Fastest first."""
    fleet: FleetStats | UnsetType = UNSET
    """UNSET on a single node."""
    incidents: IncidentStats | UnsetType = UNSET
    """UNSET without any incident."""

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


def to_json(stats: SimulationStats) -> JsonObject:
    """Return `stats` as a trace's metadata holds them; fields that are UNSET are absent."""
    fields: JsonObject = msgspec.to_builtins(stats)
    return fields


def from_json(fields: JsonObject | None) -> SimulationStats | None:
    """Return the counters that a trace's metadata hold, or None if no simulation wrote them."""
    if fields is None or "lookups" not in fields:
        return None
    return msgspec.convert(fields, SimulationStats)
