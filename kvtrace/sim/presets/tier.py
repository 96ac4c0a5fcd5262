"""The knobs of one tier of a preset (capacity, admission, eviction, speed, prices) and of a fleet.

The functions at the end check that the knobs do not contradict each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Final

import msgspec

from kvtrace.core.config import Bounds
from kvtrace.core.json_types import JsonObject
from kvtrace.core.units import BYTES, parse_bytes, parse_duration_ns
from kvtrace.sim.policies import Policy
from kvtrace.sim.routers import Router


class Scope(StrEnum):
    """The nodes that share a tier."""

    NODE = "node"
    """Each node of a fleet has a tier of its own."""
    RACK = "rack"
    """The nodes of a rack (`fleet.rack_nodes`)."""
    FLEET = "fleet"
    """All nodes."""


LINK = "link"
"""The last tier of a fleet's trace: its rows are transfers between nodes."""
IN_ORDER = (Policy.LRU, Policy.LFU, Policy.FIFO, Policy.TTL)
"""Policies that can name their next victim without a change of state."""
UNLIMITED = "unlimited"


def bytes_of(value: str | int | None) -> int | None:
    """Return the bytes of a size such as `2TiB`; None for None."""
    return parse_bytes(value) if isinstance(value, str) else value


def ns_of(value: str | None) -> int:
    """Return the nanoseconds of a duration such as `10s`; 0 for None."""
    return 0 if value is None else parse_duration_ns(value)


# Within these bounds, all values computed from a preset fit 64 bits.
MAX_CAPACITY_BYTES = 2**61
MAX_TOKENS = 2**31 - 1
BYTES_PER_US = 10**6
MAX_TTL_NS = 2**61
_MAX_COUNT, _MAX_NODES = 1_000_000, 16_000
_UP_TO, _UP_TO_TTL = f"at most {MAX_CAPACITY_BYTES}", f"at most {MAX_TTL_NS // 10**9} s"

Tokens = Annotated[int, Bounds(0, MAX_TOKENS)]
Count = Annotated[int, Bounds(0, _MAX_COUNT)]
Positive = Annotated[int, Bounds(1, _MAX_COUNT)]
Waiting = Annotated[int, Bounds(0, 10_000_000)]
Price = Annotated[float, Bounds(0, _MAX_COUNT)]
Share = Annotated[float, Bounds(math.nextafter(0, 1), 1, "in (0, 1]")]
Nodes = Annotated[int, Bounds(1, _MAX_NODES)]
Weight = Annotated[float, Bounds(0, 1000.0)]
Capacity = Annotated[
    str | int,
    Bounds(
        0,
        MAX_CAPACITY_BYTES,
        f">= 0, and {_UP_TO}",
        lambda value: 0 if value == UNLIMITED else bytes_of(value),
    ),
]
BucketSize = Annotated[str | int, Bounds(1, MAX_CAPACITY_BYTES, f"> 0, and {_UP_TO}", bytes_of)]
Bandwidth = Annotated[
    str | int,
    Bounds(BYTES_PER_US, MAX_CAPACITY_BYTES, f"at least 1MB, which is per second, and {_UP_TO}",
           lambda value: bytes_of(value) or BYTES_PER_US),
]  # fmt: skip
"""Bytes a second; 0 turns the model of transfer times off."""
Duration = Annotated[str, Bounds(1, MAX_TTL_NS, f"> 0, and {_UP_TO_TTL}", parse_duration_ns)]
Interval = Annotated[
    str, Bounds(10**6, MAX_TTL_NS, f"at least 1ms, and {_UP_TO_TTL}", parse_duration_ns)
]
Latency = Annotated[str, Bounds(0, 10**12, "at most 1000s", parse_duration_ns)]


class Admission(StrEnum):
    """The rule by which a tier admits offered objects."""

    ALWAYS = "always"
    """All objects."""
    NTH_OFFER = "nth-offer"
    """Objects from their `admission_count`-th offer on."""
    FREQUENCY = "frequency"
    """Objects that have reached a count of `admission_count`.

    Each offer doubles the count from 1, and each `admission_decay` lowers it by one.
    """
    TINYLFU = "tinylfu"
    """Objects that fit without an eviction, and those used or offered more often of late than the
    object that would be evicted.
    """


class Recency(StrEnum):
    """The order in which the objects of a request count as used."""

    HEAD_FIRST = "head-first"
    """In order of lookup and storing: the first object of a request is evicted first."""
    TAIL_FIRST = "tail-first"
    """Each object of a request is less recent than those before it, in tiers of policy lru.

    The last object is evicted first, because it is of use only with all objects before it. When the
    request ends, its objects count as used once more.
    """
    TAIL_FIRST_AT_END = "tail-first-at-end"
    """As tail-first, but only from the end of the request on; until then as head-first."""
    AT_END = "at-end"
    """As tail-first-at-end, but loads before the end of the request do not count as use.

    A request may evict objects that it has just loaded.
    """


class Streams(StrEnum):
    """The criterion that sorts the writes of a tier into streams, which a drive stores apart."""

    NONE = "none"
    """Writes have no stream."""
    USER_KIND = "user-kind"
    """The kind of user: chatbot, coding, document, trace."""
    QOS = "qos"
    """The service class."""
    SESSION = "session"
    """The conversation, numbered in order of appearance."""
    PHASE = "phase"
    """The reason for the write: computed, generated, promoted, demoted, there before."""
    AGE = "age"
    """The time since the object was first written to any tier.

    Under 1 s, 10 s, 1 min, 10 min, 1 h, or more.
    """
    OBJECT_KIND = "object-kind"
    """The kind of object: a chunk or turn, a system prompt, a document, a bucket."""


MONTH_S: Final = 365 * 86400 // 12


class TierSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The knobs of one tier of a preset."""

    name: str
    capacity: Capacity | None = None
    """Its capacity, such as `2TiB`; without it, or if it is `unlimited`, the tier has no bound."""
    stored_share: Share = 1.0
    """Share of an object's bytes that it takes here, where it is stored compressed or quantised.

    0.5 is fp8 of bf16. Bytes read and written here are of this share, and the capacity is of them.
    Packing and unpacking take no time.
    """
    high_watermark: Share = 1.0
    """Fill level, as a share of its capacity, at which it begins to evict."""
    low_watermark: float | None = None
    """Fill level down to which it then evicts; by default only as far as it must."""
    max_object_fraction: Share = 1.0
    """Largest object that it takes, as a share of its capacity."""
    policy: Policy = Policy.LRU
    """Eviction policy: which object it evicts to make room."""
    admission: Admission = Admission.ALWAYS
    """Which of the objects that are stored, or that a faster tier evicts, it takes.

    What a promotion copies up it always takes.
    """
    admission_count: Positive = 2
    """With admission nth-offer or frequency: the count from which on it takes an object."""
    admission_decay: Duration | None = None
    """With admission frequency.

    How long a count takes to lose one, such as `10m`; without it counts stay.
    """
    admission_window: Positive = 10
    """With admission tinylfu.

    Counts are halved each time that so many times the tier's bytes were used or offered.
    """
    store_queue: Waiting = 0
    """Objects that may wait to be stored in it, as requests go on.

    What comes when there are as many is dropped, and counted. Only of the slowest tier; what the
    tier above evicts before its turn is lost. 0 stores at once.
    """
    heartbeat: Duration | None = None
    """Interval at which what waits is stored, such as `10s`.

    Without it, one after the other as the tier's write bandwidth allows.
    """
    pins_queued: bool = False
    """What waits in the store queue is not evicted from the tier above until a heartbeat takes it.

    What fills no bucket then is let go: it counts toward the next bucket and is not in it.
    """
    lease: Duration | None = None
    """For how long an object that was looked up or read is not evicted, such as `10s`.

    Objects are evicted in the order in which their leases end. A tier that finds none to evict fills
    up to its capacity; what it has no room for then waits, and is stored once it has.
    """
    bucket_objects: Waiting = 0
    """Objects written together, as one file, at a heartbeat.

    Fewer wait. They are read by offset and deleted together: the policy chooses among buckets. 0
    writes each by itself.
    """
    bucket_bytes: BucketSize = "256MiB"
    """Bytes of objects that a bucket holds at most."""
    bucket_key_bytes: Count = 0
    """What stands before each object in a bucket."""
    bucket_meta_bytes: Count = 0
    """Bytes, for each object, of a file that is written beside each bucket; 0 writes none."""
    bucket_gc: float | None = None
    """The policy chooses objects, which stay in their bucket, dead.

    A bucket of which a smaller share than this, by bytes, still lives is collected: what lives is
    read, the bucket deleted, and what was read written as a new one. Without it the policy chooses
    buckets, which go whole.
    """
    evict_every: Interval | None = None
    """It evicts only at this interval, such as `1s`, and only if it is then filled to its high
    watermark: by evict_share, or down to its low watermark. Between these times it fills up to its
    capacity, and then takes nothing more. With policy lru or fifo.
    """
    evict_share: Share | None = None
    """With evict_every.

    What it evicts each time, as a share of the bytes it then holds, at least one object: at a high
    watermark of 0.8, a share of 0.2 leaves 0.64 of the capacity.
    """
    fits_at_once: bool = False
    """With evict_every.

    Between these times it makes just enough room for what finds it full, in place of taking nothing
    more.
    """
    staging: bool = False
    """All that a request stores, and all that it reads from the tiers below, takes a buffer of this
    tier before any of it is in: room is made among what was there, and the request's own objects do
    not displace one another. What finds none is not stored, here or below, nor is the rest of its
    request; with evict_every, none of it is, and nothing is read from below without buffers for all
    of it. With placement write-through and policy lru, lfu or fifo.
    """
    loads_at_once: Count = 0
    """Requests that may load from the tiers below at once, which takes buffers here.

    The next one waits, and all behind it. With staging. It matters where a tier below has a
    bandwidth; 0 is any number.
    """
    loads_share: Share | None = None
    """Share of its capacity that these buffers may take before no other request begins to load.

    Nor does one whose whole prompt, but for what the fastest tier has, finds no room here. One
    loads in any case. With staging and a capacity.
    """
    loads_backwards: bool = False
    """What a request loads from here counts as used last object first, which leaves its first the
    most recent.
    """
    loads_twice: bool = False
    """With policy lfu, what a request loads from here counts as used twice.

    Last object first, and then first object first.
    """
    stores_backwards: bool = False
    """What a request stores here counts as used last object first; needs staging and policy lru."""
    is_required: bool = False
    """The engine does not run without it: what is stored in the tiers below, and read from there,
    passes through it. `size` gives it room for the largest prompt.
    """
    loads_whole: bool = False
    """All that a request loads from here and the tiers below has to be here at once.

    It is brought up before any of it is used, so that room is made among the request's own objects,
    too, which then come from below as well (not with staging). The engine stalls in a request that
    loads more than fits: the simulation goes on, and counts these.
    """
    ttl: Duration | None = None
    """With policy ttl: how long an object stays after it was written, such as `10m`."""
    read_bandwidth: Bandwidth | None = None
    """Bytes a second, such as `7GB`; without it reads take no time."""
    write_bandwidth: Bandwidth | None = None
    """Likewise, of writes."""
    latency: Latency | None = None
    """Latency of one operation, such as `80us`; counted only with a bandwidth."""
    concurrency: Tokens = 0
    """Operations it serves at once, which bounds their rate by the latency; 0 is unbounded."""
    request_reads: Tokens = 0
    """Reads of one request that it serves at once, each so many a stage of their own.

    0 is all, 1 one after another.
    """
    request_writes: Tokens = 0
    """Likewise, of writes."""
    recency: Recency | None = None
    """In which order the objects of a request count as used here; by default as the preset says."""
    whole_offers: bool = False
    """What is offered together (offer_tokens) finds room all together, or nothing of it is stored,
    here or below. What is in flight makes no room: the offer before it, and what is still being
    read or written. It is offered again with the next objects, and as the request ends. With
    placement write-through and policy lru or sae; with another policy, room is made object by
    object.
    """
    looks_past_miss: bool = False
    """Each object of a prompt that no faster tier has is looked up here, not only up to the first
    miss.
    """
    each_rank_reads: bool = False
    """A latent (MLA), which one rank writes for all, is read here by each, in place of once for
    all.
    """
    in_one_file: bool = False
    """The engine keeps all objects in one file or device, not each in its own.

    A note says how to replay them so.
    """
    put_price_per_1000: Price = 0.0
    """What an object store asks for 1,000 writes.

    Deletes are free there. With a price `kvtrace gen` prints what a month costs.
    """
    get_price_per_1000: Price = 0.0
    """Likewise, for 1,000 reads."""
    price_per_gb_month: Price = 0.0
    """Likewise, for a GB (10^9 bytes) that lies there for a month."""
    price_currency: str = "USD"
    """The currency of these prices."""
    scope: Scope = Scope.NODE
    """In a fleet: who shares it; none is shared by fewer than the tier above it."""
    streams: Streams = Streams.NONE
    """What tells its writes apart, for placement on the drive (FDP handles, write hints).

    The trace's column `stream`. By user-kind, qos and session, a write that serves no request goes
    with the one that wrote the object last.
    """
    stream_count: Annotated[int, Bounds(1, 2**15 - 1)] = 8
    """Streams that the drive has; what has a higher number begins again at 0."""

    @property
    def capacity_bytes(self) -> int | None:
        """The capacity in bytes; None without a bound."""
        return None if self.capacity == UNLIMITED else bytes_of(self.capacity)

    @property
    def takes_whole(self) -> bool:
        """Tell whether the tier stores an offer of several objects completely or not at all."""
        return self.whole_offers and self.policy in (Policy.LRU, Policy.SAE)

    @property
    def rates_bytes_per_s(self) -> tuple[int, int]:
        """Read and write bytes a second; 0 without a model of transfer times."""
        return bytes_of(self.read_bandwidth) or 0, bytes_of(self.write_bandwidth) or 0

    @property
    def has_price(self) -> bool:
        """Tell whether storage or requests have a price."""
        return any(getattr(self, name) for name in PRICES)

    def monthly_cost(
        self, reads: float, writes: float, times_a_month: float, stored_bytes: int
    ) -> JsonObject:
        """Return the monthly cost of `reads` and `writes`, made `times_a_month` times, and of
        `stored_bytes` stored all month.
        """
        requests = reads * self.get_price_per_1000 + writes * self.put_price_per_1000
        return {
            "name": self.name,
            "currency": self.price_currency,
            "puts_per_month": round(writes * times_a_month),
            "gets_per_month": round(reads * times_a_month),
            "requests_cost_per_month": requests / 1000 * times_a_month,
            "stored_bytes": stored_bytes,
            "storage_cost_per_month": stored_bytes / BYTES["gb"] * self.price_per_gb_month,
        }


class FleetSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Nodes that serve side by side; with one node, nothing else here has a meaning."""

    nodes: Nodes = 1
    """How many nodes there are; each has its own GPU, and its own of each tier of scope `node`."""
    router: Router = Router.ROUND_ROBIN
    """Which node serves a request."""
    rack_nodes: Nodes = 8
    """How many nodes, in order, make a rack and share each tier of scope `rack`."""
    prefill_nodes: Annotated[int, Bounds(0, _MAX_NODES)] = 0
    """How many nodes, the first ones, only compute prompts.

    The others only generate, each request on the one with the fewest. What that lacks of the prompt
    goes there over a tier `link`, and into its fastest tier. 0: all do both.
    """
    link_bandwidth: Bandwidth | None = None
    """With prefill_nodes.

    Bytes a second that a node sends, such as `50GB`; without it that takes no time.
    """
    prefill_weight: Weight = 1.0
    """With router prefix.

    Weight of a token to compute, against one of a prompt that is being served (Dynamo's
    prefill_load_scale).
    """
    prefix_weight: Weight = 2.0
    """With router prefix-score.

    Weight of the share of the prompt that a node has (llm-d's prefix-cache-scorer).
    """
    load_weight: Weight = 1.0
    """With router prefix-score: weight of the load (llm-d's load-aware-scorer)."""
    load_threshold: Positive = 128
    """With router prefix-score.

    Number of waiting requests from which on the load counts as full.
    """

    def instances(self, scope: Scope) -> int:
        """Return the number of instances of a tier of `scope`."""
        return {
            Scope.NODE: self.nodes,
            Scope.RACK: -(-self.nodes // self.rack_nodes),
            Scope.FLEET: 1,
        }[scope]

    @property
    def is_disaggregated(self) -> bool:
        """Tell whether some nodes compute prompts and others generate."""
        return 0 < self.prefill_nodes < self.nodes

    def instance_nodes(self, scope: Scope) -> int | msgspec.UnsetType:
        """Return the number of consecutive nodes that share a tier of `scope`.

        UNSET if all nodes share it, and for a single node.
        """
        if self.nodes == 1 or scope is Scope.FLEET:
            return msgspec.UNSET
        return 1 if scope is Scope.NODE else self.rack_nodes


PRICES: Final = ("put_price_per_1000", "get_price_per_1000", "price_per_gb_month")
SWITCHED: Final[dict[str, tuple[str, ...]]] = {
    "store_queue": ("heartbeat",),
    "bucket_objects": ("bucket_bytes", "bucket_key_bytes", "bucket_meta_bytes"),
    "bucket_gc": (),
    "admission": ("admission_count", "admission_decay", "admission_window"),
    "streams": ("stream_count",),
    **dict.fromkeys(
        (
            "request_reads",
            "request_writes",
            "recency",
            "whole_offers",
            "looks_past_miss",
            "scope",
            "is_required",
        ),
        (),
    ),
    **dict.fromkeys(
        (
            "each_rank_reads",
            "pins_queued",
            "lease",
            "stored_share",
            "loads_at_once",
            "loads_share",
            *PRICES,
            "price_currency",
        ),
        (),
    ),
}
"""Knobs that have no effect while the knob they depend on, the key, is at its default."""


def complaints_of_tier(tier: TierSetting) -> Iterator[str]:
    """Yield the contradictions between the knobs of `tier`."""
    name, low = f"tiers.{tier.name}", tier.low_watermark
    if low is not None and not 0 <= low <= tier.high_watermark:
        yield (
            f"{name}.low_watermark(={low}) must be between 0 and its"
            f" high_watermark(={tier.high_watermark})"
        )
    if (tier.policy is Policy.TTL) != (tier.ttl is not None):
        yield f"{name}: policy=ttl needs a ttl, such as 10m, and a ttl needs policy=ttl"
    if tier.policy is Policy.SAE and not tier.whole_offers:
        yield (
            f"{name}: policy=sae needs whole_offers=true: it judges an offer of several objects as one"
        )
    if tier.admission is Admission.TINYLFU and tier.policy not in IN_ORDER:
        yield f"{name}: admission=tinylfu needs policy={', '.join(IN_ORDER[:-1])} or {IN_ORDER[-1]}"
    yield from _complaints_of_times(tier, name)
    yield from _complaints_of_waiting(tier, name)
    yield from _complaints_of_lease(tier, name)
    if tier.stored_share < 1 and tier.bucket_objects:
        yield f"{name}: stored_share excludes bucket_objects: a bucket has keys beside its objects"
    if not any(tier.rates_bytes_per_s) and (tier.latency or tier.concurrency):
        yield f"{name}: latency and concurrency need read_bandwidth or write_bandwidth"
    for field, *more_policies in (
        ("evict_every", Policy.FIFO),
        ("stores_backwards",),
        ("staging", Policy.LFU, Policy.FIFO),
    ):
        if getattr(tier, field) and tier.policy not in (policies := (Policy.LRU, *more_policies)):
            yield f"{name}: {field} needs policy={' or '.join(policies)}, not {tier.policy}"
    yield from _complaints_of_staging(tier, name)


def _complaints_of_staging(tier: TierSetting, name: str) -> Iterator[str]:
    """Yield the contradictions between the knobs of a tier of buffers."""
    if tier.staging and tier.admission is not Admission.ALWAYS:
        yield (
            f"{name}: staging needs admission=always: what comes to the tiers below goes through it"
        )
    for field in ("loads_at_once", "loads_share", "stores_backwards"):
        if getattr(tier, field) and not tier.staging:
            yield f"{name}: {field} needs staging=true"
    if tier.loads_share and tier.capacity_bytes is None:
        yield f"{name}: loads_share needs a capacity"


def _complaints_of_times(tier: TierSetting, name: str) -> Iterator[str]:
    """Yield the contradictions between the knobs of evict_every."""
    for field in ("evict_share", "fits_at_once"):
        if getattr(tier, field) and not tier.evict_every:
            yield f"{name}: {field} needs evict_every, such as 1s"
    if tier.fits_at_once and tier.staging:
        yield f"{name}: fits_at_once excludes staging: a buffer is taken or not"


def _complaints_of_lease(tier: TierSetting, name: str) -> Iterator[str]:
    """Yield the contradictions between a read lease and other knobs."""
    is_plain = tier.policy is Policy.LRU and tier.admission is Admission.ALWAYS
    others = tier.evict_every or tier.staging or tier.whole_offers or tier.store_queue
    if tier.lease and (tier.capacity is None or not is_plain or others):
        yield (
            f"{name}: lease needs a capacity, policy=lru and admission=always, and excludes"
            " evict_every, staging, whole_offers and store_queue"
        )
    if tier.pins_queued and not tier.bucket_objects:
        yield f"{name}: pins_queued needs bucket_objects"


def _complaints_of_waiting(tier: TierSetting, name: str) -> Iterator[str]:
    objects, share, policy = tier.bucket_objects, tier.bucket_gc, tier.policy
    if tier.heartbeat is not None and not tier.store_queue:
        yield f"{name}: heartbeat needs a store_queue"
    if objects and tier.heartbeat is None:
        yield f"{name}: bucket_objects needs store_queue and heartbeat"
    if objects > tier.store_queue:
        yield (
            f"{name}.bucket_objects(={objects}) never come together in a store_queue of"
            f" {tier.store_queue}"
        )
    if share is not None and not (objects and 0 < share < 1):
        yield f"{name}.bucket_gc(={share}) must be > 0 and < 1, and needs bucket_objects"
    if share is not None and policy not in (
        Policy.LRU,
        Policy.LFU,
        Policy.FIFO,
        Policy.CLOCK,
        Policy.SIEVE,
    ):
        yield f"{name}: bucket_gc needs policy lru, lfu, fifo, clock or sieve, not {policy}"
    if objects and tier.streams in (Streams.USER_KIND, Streams.QOS, Streams.SESSION):
        may = "streams may be phase, age or object-kind there"
        yield f"{name}.streams={tier.streams}: a bucket holds objects of many requests; {may}"
    if objects and tier.admission is Admission.TINYLFU:
        reason = "admission=tinylfu compares objects, and bucket_objects evicts buckets"
        yield f"{name}: {reason}; leave one of the two out"


def complaints_of_fleet(fleet: FleetSetting, tiers: Sequence[TierSetting]) -> Iterator[str]:
    """Yield the contradictions between the knobs of `fleet` and `tiers`, if there are several nodes."""
    if fleet.nodes == 1:
        return
    if fleet.prefill_nodes >= fleet.nodes:
        knobs = f"fleet.prefill_nodes(={fleet.prefill_nodes}) of fleet.nodes(={fleet.nodes})"
        yield f"{knobs}: at least one must generate"
    if fleet.prefill_nodes and any(tier.name == LINK for tier in tiers):
        yield f"no tier may be called {LINK}"
    order = list(Scope)
    for above, tier in pairwise(tiers):
        if order.index(tier.scope) < order.index(above.scope):
            yield (
                f"tiers.{tier.name}.scope(={tier.scope}): tier {above.name} above it is shared by"
                f" more (scope={above.scope}); order tiers from those of a node to those of the"
                " fleet"
            )
        if tier.bucket_objects and tier.scope is not above.scope:
            yield (
                f"tiers.{tier.name}.bucket_objects: a bucket is written from one memory, so tier"
                f" {above.name} (scope={above.scope}) must be shared as it is (scope={tier.scope}):"
                f" set tiers.{above.name}.scope, or bucket_objects=0"
            )
