"""What a preset says of one tier: how much it holds, what it takes and gives up, and how fast it is."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from kvtrace.core.units import parse_bytes, parse_duration_ns
from kvtrace.sim.fleet.setting import Scope
from kvtrace.sim.policies import Policy

# With these, what is computed from a preset still fits 64 bits.
MAX_CAPACITY_BYTES = 2**61
UNLIMITED = "unlimited"
MAX_TOKENS = 2**31 - 1
BYTES_PER_US = 10**6
MAX_TTL_NS = 2**61
MAX_LATENCY_NS = 10**12
MIN_POLL_NS = 10**6
MAX_COUNT = 1_000_000
MAX_WAITING = 10_000_000
LINK = "link"
"""The tier, after all others, that transfers between the nodes of a fleet are rows of."""
MAX_STREAMS = 2**15 - 1
IN_ORDER = (Policy.LRU, Policy.LFU, Policy.FIFO, Policy.TTL)
"""Policies that change nothing when asked what they would give up."""


class Admission(StrEnum):
    """Which of the objects that it is offered a tier takes."""

    ALWAYS = "always"
    """All."""
    NTH_OFFER = "nth-offer"
    """Those offered for the `admission_count`-th time, and from then on."""
    FREQUENCY = "frequency"
    """Those whose count, which each offer doubles from 1 and each `admission_decay` lowers by one, has come to
    `admission_count`."""
    TINYLFU = "tinylfu"
    """Those for which there is room, and those used or offered more often of late than the one that would make room."""


class Recency(StrEnum):
    """In which order the objects of a request count as used."""

    HEAD_FIRST = "head-first"
    """As they are looked up and stored: of one request, the first object is given up first."""
    TAIL_FIRST = "tail-first"
    """Each is less recent than those before it: of one request, the last object is given up first, for what it is good
    for needs all before it. As the request ends, they count as used once more. In tiers that evict by lru."""
    TAIL_FIRST_AT_END = "tail-first-at-end"
    """Likewise, but only as the request ends; until then as head-first."""


class Streams(StrEnum):
    """What tells the writes of a tier apart, so that a drive may keep those together that go together."""

    NONE = "none"
    """Nothing: writes have no stream."""
    USER_KIND = "user-kind"
    """The kind of user: chatbot, coding, document, trace."""
    QOS = "qos"
    """The service class."""
    SESSION = "session"
    """The conversation: its number, in turn."""
    PHASE = "phase"
    """Why it is written: computed, generated, promoted, demoted, there before."""
    AGE = "age"
    """How long ago the object was first written to any tier: under 1 s, 10 s, 1 min, 10 min, 1 h, or more."""
    OBJECT_KIND = "object-kind"
    """What is written: a chunk or turn, a system prompt, a document, a bucket."""


class TierSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tier of a preset; without a capacity it has no bound."""

    name: str
    capacity: str | int | None = None
    """Such as `2TiB`; without it, or if it is `unlimited`, the tier has no bound."""
    high_watermark: float = 1.0
    """How full it gets, as a share of its capacity, before it makes room."""
    low_watermark: float | None = None
    """How far it then goes down; by default only as far as it must."""
    max_object_fraction: float = 1.0
    """The largest object it takes, as a share of its capacity."""
    policy: Policy = Policy.LRU
    """Which object it gives up to make room."""
    admission: Admission = Admission.ALWAYS
    """Which of the objects that are stored, or that a faster tier gives up, it takes; what a promotion copies up it
    always takes."""
    admission_count: int = 2
    """With admission nth-offer or frequency: the count from which on it takes an object."""
    admission_decay: str | None = None
    """With admission frequency: how long a count takes to lose one, such as `10m`; without it counts stay."""
    admission_window: int = 10
    """With admission tinylfu: counts are halved each time that so many times the tier's bytes were used or offered."""
    store_queue: int = 0
    """Objects that may wait to be stored in it, as requests go on; what comes when there are as many is dropped, and
    counted. Only of the slowest tier; what the tier above gives up before its turn is lost. 0 stores at once."""
    heartbeat: str | None = None
    """What waits is stored each so long, such as `10s`; without it, one after the other as the tier's write bandwidth
    allows."""
    bucket_objects: int = 0
    """Objects written together, as one file, at a heartbeat; fewer wait. They are read by offset and deleted together:
    the policy chooses among buckets. 0 writes each by itself."""
    bucket_bytes: str | int = "256MiB"
    """Bytes of objects that a bucket holds at most."""
    bucket_key_bytes: int = 0
    """What stands before each object in a bucket."""
    bucket_meta_bytes: int = 0
    """Bytes, for each object, of a file that is written beside each bucket; 0 writes none."""
    bucket_gc: float | None = None
    """The policy chooses objects, which stay in their bucket, dead. A bucket of which a smaller share than this, by
    bytes, still lives is collected: what lives is read, the bucket deleted, and what was read written as a new one.
    Without it the policy chooses buckets, which go whole."""
    evict_every: str | None = None
    """It makes room only so often, such as `1s`, and only if it is then filled to its high watermark: by evict_share,
    or down to its low watermark. Between these times it fills up to its capacity, and then takes nothing more. With
    policy lru."""
    evict_share: float | None = None
    """With evict_every: what it gives up each time, as a share of the bytes it then holds, at least one object: at a
    high watermark of 0.8, a share of 0.2 leaves 0.64 of the capacity."""
    staging: bool = False
    """All that a request stores, and all that it reads from the tiers below, takes a buffer of this tier before any of
    it is in: room is made among what was there, and the request's own objects do not displace one another. What finds
    none is not stored, here or below, nor is the rest of its request; with evict_every, none of it is, and nothing is
    read from below without buffers for all of it. With placement write-through and policy lru."""
    loads_backwards: bool = False
    """What a request loads from here counts as used last object first, which leaves its first the most recent."""
    stores_backwards: bool = False
    """Likewise, of what it stores; needs staging."""
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
    put_price_per_1000: float = 0.0
    """What an object store asks for 1,000 writes, in any currency; deletes are free there. With a price `kvtrace gen`
    prints what a month costs."""
    get_price_per_1000: float = 0.0
    """Likewise, for 1,000 reads."""
    price_per_gb_month: float = 0.0
    """Likewise, for a GB (10^9 bytes) that lies there for a month."""
    scope: Scope = Scope.NODE
    """In a fleet: who shares it; none is shared by fewer than the tier above it."""
    streams: Streams = Streams.NONE
    """What tells its writes apart, for placement on the drive (FDP handles, write hints): the trace's column `stream`.
    By user-kind, qos and session, a write that serves no request goes with the one that wrote the object last."""
    stream_count: int = 8
    """Streams that the drive has; what has a higher number begins again at 0."""

    @property
    def capacity_bytes(self) -> int | None:
        """The capacity in bytes; null without a bound."""
        return None if self.capacity == UNLIMITED else bytes_of(self.capacity)

    @property
    def has_streams(self) -> bool:
        """Whether its writes are told apart."""
        return self.streams is not Streams.NONE

    @property
    def rates_bytes_per_s(self) -> tuple[int, int]:
        """Read and write bytes a second; 0 where the model has none."""
        return bytes_of(self.read_bandwidth) or 0, bytes_of(self.write_bandwidth) or 0

    @property
    def ttl_ns(self) -> int:
        """How long an object stays, ns; 0 is for as long as there is room."""
        return parse_duration_ns(self.ttl) if self.ttl is not None else 0

    @property
    def decay_ns(self) -> int:
        """How long a count takes to lose one, ns; 0 is for ever."""
        return parse_duration_ns(self.admission_decay) if self.admission_decay is not None else 0

    @property
    def heartbeat_ns(self) -> int:
        """How often what waits is stored, ns; 0 is whenever the tier is free."""
        return parse_duration_ns(self.heartbeat) if self.heartbeat is not None else 0

    @property
    def evict_every_ns(self) -> int:
        """How often it makes room, ns; 0 is whenever it must."""
        return parse_duration_ns(self.evict_every) if self.evict_every is not None else 0

    @property
    def has_price(self) -> bool:
        """Whether what it stores and is asked costs something."""
        return any(getattr(self, name) for name in PRICES)

    @property
    def latency_ns(self) -> int:
        """The latency of one operation, ns."""
        return parse_duration_ns(self.latency) if self.latency else 0


def bytes_of(value: str | int | None) -> int | None:
    """Return the bytes of a size as people write it; null for null."""
    return parse_bytes(value) if isinstance(value, str) else value


PRICES: Final = ("put_price_per_1000", "get_price_per_1000", "price_per_gb_month")
SWITCHED: Final[dict[str, tuple[str, ...]]] = {
    "store_queue": ("heartbeat",),
    "bucket_objects": ("bucket_bytes", "bucket_key_bytes", "bucket_meta_bytes"),
    "bucket_gc": (),
    "admission": ("admission_count", "admission_decay", "admission_window"),
    "streams": ("stream_count",),
    **dict.fromkeys(("request_reads", "request_writes", "recency", "whole_offers", "looks_past_miss", "scope"), ()),
    **dict.fromkeys(PRICES, ()),
}
"""Knobs that mean nothing while the one they belong to is at its default."""
