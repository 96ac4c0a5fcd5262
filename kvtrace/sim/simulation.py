"""Run a simulation in simulated time: requests in, trace rows out, counters at the end.

A preset, a model and a load are first laid out as a World, the state and tables with which the
compiled simulation starts.

Memory in bytes:

- Output: 0.03 a row, and 40 a request.
- A chunk that a later request may name: 8. While it is live in a tier that may delete it, 36 more,
  and 8 for each such tier (and 16 a tier if any policy is not LRU), with an eighth of that as room
  to grow. 8 more with a tier that stores offers whole (16 where storage takes time), and 16 more if
  requests wait for GPU memory. Tables grow by moving their pages (GrowableTables).
- A chunk in a fleet: 44 more for each node that has it, with what is said of tiers there, and 48 for
  the chunk itself, without that. It is 8 in all while only one node has it, in a tier that deletes
  nothing.
- An entry of a turn takes the full size as long as a later request may name it. So does any chunk
  with decode reads, and with the policies s3fifo and arc, for which every block of a file counts as
  one that may still be named.
- Each object ever offered or written to a tier with an admission filter, or with streams by other
  than phase: 8. With the policy sae, each object ever named: up to 32.
- Requests of a file: about 100 each, 4 a reference to a block, 12 a distinct block. With turns, 60
  more a request and 60 a wait.
"""

from __future__ import annotations

import ctypes
import mmap
import resource
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import ClassVar, Self
from weakref import WeakSet

import numpy as np
from msgspec import UNSET, UnsetType
from numpy.typing import NDArray

from kvtrace.core.arrays import Array, Columns
from kvtrace.core.errors import ConfigError
from kvtrace.core.memory import require_memory
from kvtrace.core.native.library import StructAt, defer_signals, function
from kvtrace.core.native.structs import Structure
from kvtrace.core.parameters import named
from kvtrace.core.simulation_stats import (
    DecodeStats,
    Goodput,
    LookupCounts,
    OfferStats,
    Percentiles,
    PrefillStats,
    SimulationStats,
    TierStats,
    TimeToFirstToken,
)
from kvtrace.core.statistics import QUANTILES, nearest_rank
from kvtrace.core.units import NS_PER_S, format_bytes
from kvtrace.llm.shape import (
    ModelShape,
    PieceKind,
    bytes_per_token_per_rank,
    layers_by_kind,
    pieces,
    stored_ranks,
)
from kvtrace.native import records
from kvtrace.native.records import World
from kvtrace.requests.requests import Requests, Waits
from kvtrace.requests.users import Library, Popularity, ServingMode, library_of, make_users
from kvtrace.sim import fleet
from kvtrace.sim.chains import Chains, chunk_chains, conversations
from kvtrace.sim.fleet import Incident, IncidentCounters, schedule_incidents, set_fleet, steps_of
from kvtrace.sim.policies import Policy, lease_addresses
from kvtrace.sim.presets.preset import Entry, LayerGroups, Match, Placement, Preset, Promotion
from kvtrace.sim.presets.tier import BYTES_PER_US, Admission, Recency, bytes_of, ns_of
from kvtrace.sim.service_level import ServiceLevel

FOREVER_NS = 2**62
# Initial capacity of the tables of slots, requests in flight, and objects of one request.
ROOM = 1024
_RELEASED = 1 << 16
"""Slots of GPU memory that requests released, of which a few thousand a request end at a time."""
_RESERVE_BYTES = 128 << 20
"""Memory that must be free for the arrays of one flush of rows."""
_UNCHECKED_BYTES = _RESERVE_BYTES // 8
"""Tables of all simulations together grow by so much without a look at what memory is free.

A look reads two dozen files, which takes as long as simulating thousands of objects.
"""


@dataclass(frozen=True, slots=True)
class Load:
    """The load: the requests of a file or a number of synthetic users, and for how long."""

    requests: Requests | None = None
    chains: Chains | None = None
    """The objects that `requests` name, or a sample of them, if computed already.

    None: computed from the blocks of `requests`.
    """
    sampled_share: float = 1.0
    """The share of all objects that `chains` has, if it is a sample."""
    users: int = 0
    seed: int = 0
    until_ns: int = FOREVER_NS
    max_requests: int = 2**62
    waits: Waits | None = None
    """Which requests of the file wait for others; None: all arrive at their times."""
    incidents: tuple[Incident, ...] = ()
    """Incidents of the nodes and of the tiers that they share."""

    def with_chains(self, preset: Preset) -> Load:
        """Return a copy with the chains of its requests, so that several simulations share them.

        It is unchanged if it has them already, or if its requests have no block ids.
        """
        requests, is_chunk = self.requests, preset.entry is Entry.CHUNK
        if self.chains is not None or requests is None or not requests.block_tokens or not is_chunk:
            return self
        chains = chunk_chains(requests, preset.chunk_tokens, with_partial=preset.partial_chunks)
        return replace(self, chains=chains)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a model's KV cache under a preset, all ranks together."""

    bytes_per_token: int
    """Without padding."""
    chunk_bytes: int
    """Size of a chunk: all its objects together, each padded."""
    pieces: Array
    """The pieces of a chunk, records.PIECE."""
    ranks: int
    """The number of ranks that store objects of their own."""
    sharers: int
    """The number of ranks that load each object: all of them for a latent that one rank stores."""
    layers: int
    """The number of layer groups, each of which is an object of its own."""
    groups: Array
    """The groups of layers that are slots of their own, records.GROUP; empty without such."""

    @property
    def parts(self) -> int:
        """The number of objects of one slot: one for each storing rank and each group of layers."""
        return self.ranks * self.layers

    @property
    def slots_per_chunk(self) -> int:
        """The number of slots of a chunk: one, or one for each group."""
        return max(1, len(self.groups))

    @property
    def slot_bytes(self) -> Array:
        """The bytes of each slot of a chunk, in all of its objects together."""
        return self.groups["bytes"] if len(self.groups) else np.array([self.chunk_bytes])

    def of(self, tokens: Array, chunk_tokens: int) -> tuple[Array, Array]:
        """Return the number of slots of items of `tokens` tokens, and the bytes of each slot.

        With `chunk_tokens` of 0, an item is one object (see Knobs).
        """
        if chunk_tokens:
            chunks = tokens // chunk_tokens
            return chunks * self.slots_per_chunk, np.tile(self.slot_bytes, int(chunks.sum()))
        return np.ones_like(tokens), tokens * self.bytes_per_token


def sizes_of(preset: Preset, model: ModelShape, ranks: int) -> Sizes:
    """Return the sizes of the objects that `preset` stores of `model` on `ranks` tensor-parallel ranks."""
    stored = ranks if preset.each_rank_stores else stored_ranks(model, ranks)
    layers = -(-model.layers // preset.layers_per_object) if preset.layers_per_object else 1
    kinds, tokens = list(PieceKind), preset.chunk_tokens
    rows = [
        (
            copies * p.size_bytes(tokens),
            kinds.index(p.kind),
            p.window_tokens or 0,
            p.bytes_per_token,
            p.state_bytes,
        )
        for p in pieces(model, ranks)
        for copies in [ranks if preset.each_rank_stores else p.copies]
    ]
    table = np.array(rows, records.PIECE)
    if layers > 1 and len(table) > 1:
        raise ConfigError(
            "layers_per_object needs a model whose layers are all alike: this one has several kinds"
        )
    if preset.partial_chunks and [piece.kind for piece in pieces(model, ranks)] != [
        PieceKind.GROWING
    ]:
        raise ConfigError(
            "partial_chunks needs a model all of whose layers grow with the prompt: this one has"
            " others"
        )
    objects = 1 if preset.merge_ranks else stored
    slot_objects, pad = objects * layers, preset.pad_bytes
    groups = _groups_of(preset, model, table, slot_objects * pad)
    chunk_bytes = int(table["bytes"].sum())
    if len(groups):
        chunk_bytes = int(groups["bytes"].sum())
    chunk_bytes = -(-chunk_bytes // (slot_objects * pad)) * pad * slot_objects
    return Sizes(
        bytes_per_token_per_rank(model, ranks) * stored,
        chunk_bytes,
        table,
        objects,
        ranks // stored,
        layers,
        groups,
    )


def _groups_of(preset: Preset, model: ModelShape, table: Array, unit_bytes: int) -> Array:
    """Return the groups of layers that are objects of their own, records.GROUP; empty if none are.

    `table` has the pieces of a chunk, records.PIECE. Bytes are multiples of `unit_bytes`.
    """
    kinds = list(PieceKind)
    has_groups = preset.layer_groups is not LayerGroups.ONE and preset.entry is Entry.CHUNK
    if not has_groups or len(table) == 1 or preset.match is Match.ANY:
        return np.zeros(0, records.GROUP)
    counts, is_equal = [1] * len(table), False
    layers = layers_by_kind(model)
    if preset.layer_groups is LayerGroups.EQUAL and len(layers) == len(table):
        layer_bytes = {
            int(row["bytes"]) / count for row, count in zip(table, layers, strict=True) if count
        }
        is_equal = len(layer_bytes) == 1 and kinds.index(PieceKind.STATE) not in table["kind"]
    rows = []
    if is_equal:
        # As vLLM's v1/core/kv_cache_planning.py: groups have as many layers as the smallest kind.
        per_group = max(layers) if max(layers) < 1.5 * min(layers) else min(layers)
        counts = [-(-count // per_group) for count in layers]
        group_bytes = int(table["bytes"][0]) // layers[0] * per_group
        rows = [group_bytes] * len(table)
    else:
        rows = [int(row["bytes"]) for row in table]
    return np.array(
        [
            (-(-size // unit_bytes) * unit_bytes, row["kind"], row["window"])
            for row, size, count in zip(table, rows, counts, strict=True)
            for _ in range(count)
        ],
        records.GROUP,
    )


def make_world(
    preset: Preset, model: ModelShape, load: Load, library: Library, sizes: Sizes, rows: int
) -> World:
    """Return the state of a simulation before its start; `rows` is the size of the buffers."""
    requests = load.requests
    count = load.users if requests is None else ROOM
    rows = max(rows, sizes.ranks * sizes.sharers)
    attention = [(a.pair_fs, a.window_tokens, a.is_aligned) for a in preset.prefill_attention]
    tables = {
        "pieces": sizes.pieces,
        "groups": sizes.groups,
        "group_runs": np.zeros(len(sizes.groups), np.int64),
        "attention": np.array(attention, records.ATTENTION),
    }
    world = World(actors=np.zeros(count, records.ACTOR), **tables)
    _set_knobs(world.knobs, preset, model, load, library, sizes)
    _set_tiers(world, preset, sizes)
    _set_items(world, preset, library, sizes)
    set_fleet(world, preset.fleet, [tier.scope for tier in preset.tiers], rows)
    _set_requests(world, load)
    if load.waits is not None:
        world.knobs.follows = True
        world.control.coming = _follow(world.following, load.waits, world.arrival_ns)
    world.actors["decode_entry"] = world.actors["prompt_item"] = records.NONE
    world.actors["context"] = np.arange(count)
    world.idle, world.control.idle = np.arange(count - 1, -1, -1), count
    world.heap = np.zeros(count + 1, records.EVENT)
    workload = preset.workload
    world.users, starts = make_users(
        load.users if requests is None else 0,
        load.seed,
        kind=workload.request_kind,
        mean_think_ns=workload.mean_think_ns,
    )
    # Each user has its own time of first request. A sorted array is a valid heap.
    order = np.argsort(starts, kind="stable")
    order = order[starts[order] < load.until_ns]
    world.heap["when"][: len(order)], world.heap["actor"][: len(order)] = starts[order], order
    world.control.heap_size = len(order)
    world.retrieved = np.zeros(count * world.knobs.top_chunks, np.int64)
    make_rows(world.rows, rows)
    world.made_size = np.empty(rows, np.int64)
    world.made_kind = np.zeros(rows if world.knobs.bucketed_tiers else 0, np.int8)
    world.row_offsets = np.zeros(rows if world.knobs.bucketed_tiers else 0, np.int64)
    world.log = np.empty(rows if requests is None else 0, records.LOGGED_REQUEST)
    times = rows if has_times(preset) or preset.decode_ns_per_token else 0
    world.first_tokens = np.empty(times, records.FIRST_TOKEN)
    world.ended_requests = np.empty(times, records.ENDED_REQUEST)
    room = max(ROOM, *(2 * tier.bucket_objects for tier in preset.tiers))
    world.chain = np.empty(room, np.int64)
    world.hit_level, world.chain_mark = np.empty(room, np.int8), np.empty(room, np.int8)
    # Populating starts behind the system prompts, which are stored at their first use.
    world.control.populated = library.prompts
    steps = steps_of(load.incidents, preset.fleet, preset.tiers)
    schedule_incidents(world, load.incidents, steps, rows)
    _link_slots(world)
    return world


def has_times(preset: Preset) -> bool:
    """Tell whether prefill or storage takes any time before the first token."""
    return preset.has_prefill or any(any(t.rates_bytes_per_s) for t in preset.tiers)


def _set_knobs(
    knobs: Structure, p: Preset, model: ModelShape, load: Load, library: Library, sizes: Sizes
) -> None:
    w, requests, is_chunk = p.workload, load.requests, p.entry is Entry.CHUNK
    knobs.source = records.USERS
    if requests is not None:
        knobs.source = (
            records.CHAINS if is_chunk and requests.block_tokens else records.CONVERSATIONS
        )
    knobs.keeps_ghosts = any(tier.policy.keeps_ghosts for tier in p.tiers)
    knobs.endless_tiers = sum(
        1 << t
        for t, tier in enumerate(p.tiers)
        if tier.capacity_bytes is None and tier.policy is not Policy.TTL
    )
    knobs.whole_tier = next((t for t, tier in enumerate(p.tiers) if tier.whole_offers), 0)
    knobs.filtered_tiers = sum(
        1 << t for t, tier in enumerate(p.tiers) if tier.admission is not Admission.ALWAYS
    )
    knobs.queued_tiers = sum(1 << t for t, tier in enumerate(p.tiers) if tier.store_queue)
    knobs.bucketed_tiers = sum(1 << t for t, tier in enumerate(p.tiers) if tier.bucket_objects)
    # A packed slot has no room for a size of its own (entries of a turn, partial chunks, groups of
    # unlike sizes), and none for references from decoding, ghosts and store queues.
    has_sizes = p.partial_chunks or len(set(sizes.slot_bytes.tolist())) > 1
    knobs.is_packed = is_chunk and not (
        p.decode_read_tokens or knobs.keeps_ghosts or knobs.queued_tiers or has_sizes
    )
    knobs.ranks, knobs.layers = sizes.ranks, sizes.layers
    knobs.is_prefix, knobs.is_by_tier = p.match is not Match.ANY, p.match is Match.PREFIX_BY_TIER
    knobs.recomputes_last = p.recompute_last
    knobs.staging = next((1 + t for t, tier in enumerate(p.tiers) if tier.staging), 0)
    knobs.skips_held = p.skip_held
    knobs.has_timed_work = any(
        t.policy is Policy.TTL or t.evict_every or t.store_queue or t.lease for t in p.tiers
    )
    knobs.loads_backwards = any(tier.loads_backwards or tier.loads_twice for tier in p.tiers)
    knobs.is_write_back = p.placement is Placement.WRITE_BACK
    knobs.promotion = list(Promotion).index(p.promotion)
    knobs.is_exclusive, knobs.keeps_age = p.exclusive, p.demotion_keeps_age
    knobs.uses_backwards = any(
        (tier.recency or p.recency) is not Recency.HEAD_FIRST for tier in p.tiers
    )
    knobs.min_load_tokens, knobs.min_lookup_tokens = p.min_load_tokens, p.min_lookup_tokens
    knobs.offer_tokens, knobs.offers_hits = p.offer_tokens, p.offers_hits
    knobs.looks_past_miss = any(tier.looks_past_miss for tier in p.tiers)
    knobs.stores_generated, knobs.holds_answers = p.store_generated, p.holds_answers
    knobs.answer_ppm = round(load.sampled_share * 1_000_000)
    knobs.chunk_tokens = p.chunk_tokens if is_chunk else 0
    knobs.chunk_objects, knobs.chunk_bytes = sizes.slots_per_chunk, int(sizes.slot_bytes[0])
    knobs.partial_unit = sizes.parts * p.pad_bytes if p.partial_chunks else 0
    knobs.decode_read_tokens, knobs.reads_at_once = p.decode_read_tokens, p.decode_reads_at_once
    knobs.prefill_only_from_tokens = p.prefill_only_from_tokens
    knobs.prefill_ns_per_token, knobs.decode_ns_per_token = (
        p.prefill_ns_per_token,
        p.decode_ns_per_token,
    )
    knobs.prefill_in_turn, knobs.is_batched = p.prefill_in_turn, p.is_batched
    knobs.prefill_gives_token = p.has_prefill and w.mode is not ServingMode.DECODE_ONLY
    knobs.step_tokens = p.step_tokens * (p.prefill_in_turn and p.has_prefill)
    knobs.is_bounded = bool(p.gpu_bytes and knobs.step_tokens)
    knobs.decode_active_ns, knobs.decode_compute_ns = p.decode_active_ns, p.decode_compute_ns
    knobs.decode_bytes_per_us = p.decode_bytes_per_s // BYTES_PER_US
    knobs.bytes_per_token = sizes.bytes_per_token
    knobs.max_context_tokens = model.max_context_tokens
    knobs.seed, knobs.until_ns, knobs.max_requests = load.seed, load.until_ns, load.max_requests
    knobs.mode = list(ServingMode).index(w.mode)
    knobs.prompt_ppm = round(w.prompt_share * 1_000_000)
    knobs.prompts = library.prompts
    knobs.retrieve_ppm = round(w.rag_share * 1_000_000)
    knobs.top_chunks = w.rag_top_chunks if knobs.retrieve_ppm else 0
    knobs.is_zipf_chunk = w.rag_chunk_popularity is Popularity.ZIPF
    knobs.first_entry, knobs.entries = library.first_entry, w.decode_entries


_AS_NAMED = (
    *(
        "bucket_objects",
        "bucket_key_bytes",
        "bucket_meta_bytes",
        "admission_count",
        "concurrency",
        "looks_past_miss",
        "pins_queued",
    ),
    *(
        "request_reads",
        "request_writes",
        "loads_backwards",
        "stores_backwards",
        "loads_whole",
        "fits_at_once",
    ),
)


_OF_STORED_BYTES = (
    *("limit_bytes", "low_bytes", "largest_object_bytes", "trigger_bytes", "full_bytes"),
    "admission_window_bytes",
)
"""Fields of a tier that bound stored bytes, and that the simulation compares with whole objects."""


def _set_tiers(world: World, preset: Preset, sizes: Sizes) -> None:
    world.tiers, world.lists = new_tiers(*tier_limits(preset))
    shares = stored_shares(preset, sizes)
    limits = np.array([tier.store_queue for tier in preset.tiers], np.int64)
    world.tiers["queue_limit"], world.tiers["queue_first"] = limits, np.cumsum(limits) - limits
    queues = preset.fleet.instances(preset.tiers[-1].scope)
    world.store_queues = np.empty(int(limits.sum()) * queues, records.QUEUED_STORE)
    for record, tier, share in zip(world.tiers, preset.tiers, shares, strict=True):
        for name in _AS_NAMED:
            record[name] = getattr(tier, name)
        record["stored_part_bytes"], record["full_part_bytes"] = share.as_integer_ratio()
        record["heartbeat_ns"], record["bucket_bytes"] = (
            ns_of(tier.heartbeat),
            bytes_of(tier.bucket_bytes),
        )
        record["collect_share"], record["admission"] = (
            tier.bucket_gc or 0,
            list(Admission).index(tier.admission),
        )
        record["admission_decay_ns"] = ns_of(tier.admission_decay)
        record["admission_window_bytes"] = min(
            records.UNBOUNDED, tier.admission_window * int(record["limit_bytes"])
        )
        record["ttl_ns"], record["latency_ns"] = ns_of(tier.ttl), ns_of(tier.latency)
        record["lease_ns"], record["full_bytes"] = ns_of(tier.lease), tier.capacity_bytes or 0
        record["bytes_per_s"] = tier.rates_bytes_per_s
        record["takes_whole_offers"], record["readers"] = (
            tier.takes_whole,
            sizes.sharers if tier.each_rank_reads else 1,
        )
        record["recency"] = list(Recency).index(tier.recency or preset.recency)
        record["loads_twice"] = tier.loads_twice and tier.policy is Policy.LFU
        if tier.low_watermark is not None and tier.capacity_bytes is not None:
            record["low_bytes"] = int(tier.capacity_bytes * tier.low_watermark)
        if tier.evict_every and tier.capacity_bytes is not None:
            record["trigger_bytes"] = int(tier.capacity_bytes * tier.high_watermark)
            record["low_bytes"] = min(record["low_bytes"], record["trigger_bytes"])
            record["evict_every_ns"], record["evict_ppm"] = (
                ns_of(tier.evict_every),
                round(1_000_000 * (tier.evict_share or 0)),
            )
        if tier.staging:
            world.knobs.loads_at_once = tier.loads_at_once
            world.knobs.loads_limit_bytes = int(
                (tier.capacity_bytes or 0) * (tier.loads_share or 0)
            )
        if share != 1:
            for name in _OF_STORED_BYTES:
                record[name] = full_bytes(int(record[name]), share)
            record["bytes_per_s"] = [full_bytes(int(rate), share) for rate in record["bytes_per_s"]]


def set_policies(world: World, policies: Sequence[Policy]) -> None:
    """Point the tiers to the C functions of their policies, and copy them to every node and rack."""
    for record, policy in zip(world.tiers, policies, strict=True):
        addresses = lease_addresses() if record["lease_ns"] else policy.addresses()
        for name, address in addresses.items():
            record[name] = address
    places, count = world.fleet, world.fleet.count
    if count > 1:
        racks = -(-count // places.rack_nodes)
        places.tiers = np.tile(world.tiers, count + racks)
        # Each place has a queue of its own.
        last = places.tiers[len(world.tiers) - 1 :: len(world.tiers)]
        last["queue_first"] = (
            np.concatenate([np.arange(count), np.arange(racks)]) * last["queue_limit"]
        )
        places.lists = np.tile(world.lists, count + racks)


def _set_items(world: World, preset: Preset, library: Library, sizes: Sizes) -> None:
    """Create the items of the library, their slots, which are never freed, and ROOM free slots."""
    objects, item_object_bytes = sizes.of(library.tokens, world.knobs.chunk_tokens)
    items = np.zeros(len(library.tokens), records.ITEM)
    items["tokens"], items["objects"], items["first_slot"] = (
        library.tokens,
        objects,
        np.cumsum(objects) - objects,
    )
    object_bytes = item_object_bytes
    used = len(object_bytes)
    world.items, world.slots = (
        items,
        new_slots(np.concatenate([object_bytes, np.zeros(ROOM, np.int64)])),
    )
    world.slots["held_by"][:used] = 1
    has_policies = any(tier.policy is not Policy.LRU or tier.lease for tier in preset.tiers)
    _, world.notes = new_links(used + ROOM, len(world.tiers), has_policies=has_policies)
    gpu = world.tiers[0]
    # Other policies do not spare what running requests use, and what is unlimited evicts nothing.
    has_idle_list = world.knobs.is_bounded and not (
        preset.tiers[0].policy is not Policy.LRU or gpu["lease_ns"] or world.knobs.endless_tiers & 1
    )
    idle_room = used + ROOM if has_idle_list else 0
    world.idle_links = np.full(idle_room, records.NOT_IDLE, records.LINK)
    world.released = np.empty(_RELEASED if has_idle_list else 0, records.GPU_HOLD)
    world.ages = np.zeros(used + ROOM if preset.demotion_keeps_age else 0, np.int64)
    whole_room = used + ROOM if any(tier.whole_offers for tier in preset.tiers) else 0
    is_timed = any(any(tier.rates_bytes_per_s) for tier in preset.tiers)
    world.pins = np.zeros(whole_room, records.PIN)
    world.pinned_until_ns = np.zeros(whole_room if is_timed else 0, np.int64)
    world.slot_pools = np.zeros(2, records.SLOT_POOL)
    world.slot_pools[0] = (0, used, used + ROOM)
    world.gpu_uses = np.zeros(used + ROOM if world.knobs.is_bounded else 0, records.GPU_USE)
    world.pending_release = np.empty(used + ROOM, np.int32)
    world.members = np.empty(used + ROOM if world.knobs.bucketed_tiers else 0, records.MEMBER)
    world.documents, world.document_weight = library.document_first, library.document_weight
    world.control.next_object = used


def _link_slots(world: World) -> None:
    """Create the links of the slots, in the tiers that evict or may lose what they hold."""
    is_linked = (world.knobs.endless_tiers >> np.arange(len(world.tiers)) & 1) == 0
    world.tiers["link"][is_linked] = np.arange(is_linked.sum())
    world.knobs.linked_tiers = is_linked.sum()
    world.links, _ = new_links(len(world.slots), world.knobs.linked_tiers, has_policies=False)


def _set_requests(world: World, load: Load) -> None:
    """Set up the prompts of the requests: as conversations, or as chains of named objects."""
    requests = load.requests
    if requests is None:
        world.contexts = np.zeros(load.users, records.CONTEXT)
        return
    world.arrival_ns, world.input_tokens = requests.arrival_ns, requests.input_tokens
    world.output_tokens = requests.output_tokens
    if world.knobs.source == records.CHAINS:
        is_partial = world.knobs.partial_unit > 0
        chains = load.chains or chunk_chains(
            requests, world.knobs.chunk_tokens, with_partial=is_partial
        )
        world.offsets, world.chains = chains.offsets, chains.slots
        world.object_uses = chains.uses.copy()
        if (count := world.knobs.chunk_objects) > 1:
            world.offsets = chains.offsets * count
            groups = np.arange(count, dtype=chains.slots.dtype)
            world.chains = (chains.slots[:, None] * count + groups).reshape(-1)
            world.object_uses = np.repeat(chains.uses, count)
        if world.fleet.count > 1:
            world.conversation = conversations(requests)[0]
        world.contexts = np.zeros(1, records.CONTEXT)
        return
    world.conversation, count = conversations(requests)
    world.conversations = np.zeros(count, records.CONVERSATION)
    world.contexts = np.zeros(count, records.CONTEXT)
    world.conversations["remaining"] = np.bincount(world.conversation, minlength=count)


def _follow(following: Structure, waits: Waits, arrival_ns: Array) -> int:
    """Set up the requests that wait for others, as `waits` says.

    Returns the number of requests that wait for none. They arrive at their `arrival_ns`, in order.
    """
    count, order = len(arrival_ns), np.argsort(waits.before, kind="stable")
    ends = np.cumsum(np.bincount(waits.before, minlength=count))
    following.first = np.concatenate([np.zeros(1, np.int64), ends])
    following.followers = np.zeros(len(waits), records.FOLLOWER)
    for name, values in (
        ("request", waits.row),
        ("delay_ns", waits.delay_ns),
        ("is_of_start", waits.is_of_start),
    ):
        following.followers[name] = values[order]
    following.predecessors = np.zeros(count, records.PREDECESSORS)
    following.coming, following.came = (
        np.zeros(count, records.EVENT),
        np.zeros(count, records.EVENT),
    )
    following.predecessors["left"] = np.bincount(waits.row, minlength=count)
    following.predecessors["ready_ns"] = waits.not_before_ns
    firsts = np.flatnonzero(following.predecessors["left"] == 0)
    # A sorted array is a valid heap.
    following.coming["when"][: len(firsts)], following.coming["actor"][: len(firsts)] = (
        arrival_ns[firsts],
        firsts,
    )
    return len(firsts)


def stored_shares(preset: Preset, sizes: Sizes) -> list[Fraction]:
    """Return the share of an object's bytes that each tier stores, exact for the objects of a chunk.

    ConfigError if a tier's share of one of them is not a whole number of bytes, where objects have
    several sizes; of objects of one size it is rounded down.
    """
    parts = sorted({int(size) // sizes.parts for size in sizes.slot_bytes.tolist()})
    shares: list[Fraction] = []
    for tier in preset.tiers:
        share = Fraction(str(tier.stored_share))
        if len(parts) == 1:
            share = Fraction(max(1, int(parts[0] * share)), parts[0])
        elif odd := next((part for part in parts if (part * share).denominator > 1), None):
            raise ConfigError(
                f"tiers.{tier.name}.stored_share={tier.stored_share}: of an object of {odd} bytes"
                " that is no whole number of bytes; set another share"
            )
        shares.append(share)
    return shares


def full_bytes(stored_bytes: int, share: Fraction) -> int:
    """Return how many bytes of whole objects fit into `stored_bytes`, of which each takes a share."""
    if stored_bytes == records.UNBOUNDED:
        return stored_bytes
    return min(records.UNBOUNDED, stored_bytes * share.denominator // share.numerator)


def tier_limits(preset: Preset) -> tuple[list[int], list[int]]:
    """Return the maximum fill of each tier and the largest object that it admits, in bytes."""
    limits, largest = [], []
    for tier in preset.tiers:
        capacity = tier.capacity_bytes
        high = 1.0 if tier.evict_every else tier.high_watermark
        limits.append(records.UNBOUNDED if capacity is None else int(capacity * high))
        largest.append(
            records.UNBOUNDED if capacity is None else int(capacity * tier.max_object_fraction)
        )
    return limits, largest


def check_memory(more_bytes: int) -> None:
    """Raise OutOfMemory unless the simulation can have `more_bytes` of memory."""
    used = format_bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)
    require_memory(
        more_bytes,
        "the simulation",
        f"use fewer users or nodes, a shorter {named('duration')} or larger chunks",
        f"in addition to the {used} that it uses",
    )


def make_rows(columns: Structure, rows: int) -> None:
    """Allocate empty columns of `rows` rows."""
    for name, dtype in columns.tables.items():
        setattr(columns, name, np.empty(rows, dtype))


class GrowableTables:
    """The memory of tables that grow.

    Growing remaps their pages: copying gigabytes would take longer than filling them.
    """

    _all: ClassVar[WeakSet[GrowableTables]] = WeakSet()
    """Those of all simulations in this process, which may run in several threads."""
    _lock: ClassVar[threading.Lock] = threading.Lock()
    """Guards `_all` and `_unchecked_bytes`, and `unfilled_bytes` of all of them."""
    _unchecked_bytes: ClassVar[int] = 0
    """By how much all of them have grown since free memory was looked at."""

    def __init__(self) -> None:
        self._memory: dict[str, mmap.mmap] = {}
        self.unfilled_bytes: dict[tuple[str, int], int] = {}
        """Bytes of the last extension of each table, which the kernel grants when they are filled.

        By the name of the table and the number of the pool that it was extended for.
        """
        with GrowableTables._lock:
            GrowableTables._all.add(self)

    def _check_extension(self, name: str, pool: int, added_bytes: int) -> None:
        """Raise OutOfMemory unless `name` may grow, and all other tables fill what they have."""
        with GrowableTables._lock:
            self.unfilled_bytes[name, pool] = added_bytes
            GrowableTables._unchecked_bytes += added_bytes
            if GrowableTables._unchecked_bytes < _UNCHECKED_BYTES:
                return
            GrowableTables._unchecked_bytes = 0
            unfilled_bytes = sum(sum(each.unfilled_bytes.values()) for each in GrowableTables._all)
        check_memory(_RESERVE_BYTES + unfilled_bytes)

    def extend(self, owner: Structure, name: str, added: int, pool: int = 0) -> Array:
        """Extend the table `name` of `owner` by `added` zeroed entries, for `pool`; return those."""
        table = getattr(owner, name)
        count, dtype = len(table), table.dtype
        size_bytes = (count + added) * dtype.itemsize
        memory = self._memory.get(name)
        self._check_extension(name, pool, added * dtype.itemsize)
        try:
            if memory is not None:
                try:
                    # The mapping cannot be resized while an array views it.
                    del table
                    setattr(owner, name, np.empty(0, dtype))
                    memory.resize(size_bytes)
                except BufferError:
                    # Another thread, or an object not yet collected, has a view. It keeps the old
                    # mapping, and the table moves to a new one.
                    table, memory = np.frombuffer(memory, dtype), None
            if memory is None:
                memory = self._memory[name] = mmap.mmap(
                    -1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
                )
                with suppress(OSError):  # The kernel may lack huge pages.
                    memory.madvise(mmap.MADV_HUGEPAGE)
                np.frombuffer(memory, dtype)[:count] = table
        except OSError as error:
            raise MemoryError(str(error)) from None
        setattr(owner, name, np.frombuffer(memory, dtype))
        return getattr(owner, name)[count:]


def new_tiers(limits: Sequence[int], largest: Sequence[int]) -> tuple[Array, Array]:
    """Return empty tiers and their lists, with capacities `limits` and maximum object sizes `largest`.

    Sizes are in bytes. The tiers evict by LRU and serve in no time.
    """
    tiers, lists = (
        np.zeros(len(limits), records.TIER),
        np.zeros(len(limits) * records.LISTS, records.RECENCY_LIST),
    )
    tiers["limit_bytes"], tiers["low_bytes"] = limits, limits
    tiers["largest_object_bytes"] = largest
    tiers["hand_slot"] = tiers["goal_bytes"] = records.NONE
    lists["head"] = lists["tail"] = records.NONE
    return tiers, lists


def new_slots(sizes: Array) -> Array:
    """Return a slot for each object of `sizes` bytes, live in no tier and without references."""
    slots = np.zeros(len(sizes), records.SLOT)
    slots["object"], slots["size"], slots["home"] = np.arange(len(sizes)), sizes, records.NONE
    return slots


def new_links(slots: int, tiers: int, *, has_policies: bool) -> tuple[Array, Array]:
    """Return the links of `slots` slots in `tiers` tiers, and their notes if any tier's policy is
    not LRU.
    """
    notes = np.zeros(slots * tiers if has_policies else 0, records.NOTE)
    notes["list"] = records.NONE
    return np.full(slots * tiers, records.NONE, records.LINK), notes


ROWS = 1 << 18
_FEW = 1 << 18
"""Up to this number of slots, tables double; larger ones grow by an eighth.
"""
_simulate, _finish = (
    function("simulation_run", StructAt, returns=int),
    function("simulation_finish", StructAt, int, returns=int),
)
_ASK = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_int64, ctypes.c_int64)
SPARE = 2
"""The number of row buffers that are kept for reuse."""


@dataclass(frozen=True, slots=True)
class Flush:
    """The output of the simulation since the last flush; the receiver may keep the arrays."""

    rows: Columns
    """Trace rows, an array a column of world.h's RowColumns.

    Request and stage NONE for background work.
    """
    object_bytes: Array
    """int64: sizes of the next objects, one rank's bytes each, `ranks` objects a slot."""
    is_other: Array | None
    """int8 for each of `object_bytes`: 1 for buckets and their metadata files, else 0.

    None if no tier has buckets.
    """
    log: Array
    """Requests of users, records.LOGGED_REQUEST."""
    now_ns: int

    @property
    def capacity_rows(self) -> int:
        """The number of rows that the arrays' memory holds."""
        times = self.rows["ts_ns"]
        return len(times if times.base is None else times.base)


class Simulation:
    """One cache hierarchy under one load.

    `run` streams trace rows to a sink; `stats` returns the counters afterwards. The tables of a
    simulation can take gigabytes: use it as a context manager, or call `close`, to free them as
    soon as the counters have been read.
    """

    def __init__(
        self,
        preset: Preset,
        model: ModelShape,
        load: Load,
        *,
        ranks: int = 1,
        rows: int = ROWS,
        service_level: ServiceLevel | None = None,
    ) -> None:
        """Set up empty tiers; `ranks` is the tensor-parallel degree, `rows` the buffer size.

        The counters have the goodput under `service_level`, if that is given.
        """
        self.preset, self.model, self.load = preset, model, load
        self._service_level = service_level
        if load.requests is not None and preset.workload.shares:
            raise ConfigError(
                "workload.prompt_share, workload.rag_share and workload.mode=decode-only are for"
                f" synthetic users: leave them out, or FILE and {named('request_rate')}"
            )
        self._first_tokens: list[Array] = []
        self._ended_requests: list[Array] = []
        self._tables = GrowableTables()
        self._spare: deque[Columns] = deque()
        self.sizes = sizes_of(preset, model, ranks)
        self.library = library_of(
            preset.workload,
            load.users,
            model.layers,
            self.sizes.bytes_per_token,
            is_turn=preset.entry is Entry.TURN,
            seed=load.seed,
        )
        if preset.partial_chunks and (load.requests is None or not load.requests.block_tokens):
            raise ConfigError(
                "partial_chunks needs a file whose requests name the blocks of their prompts"
            )
        self.world = make_world(preset, model, load, self.library, self.sizes, rows)
        self._incident_counters = IncidentCounters(
            load.incidents, preset.fleet, [tier.name for tier in preset.tiers]
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the tables. Counters, times and arrivals cannot be read afterwards."""
        self._spare.clear()
        self._first_tokens.clear()
        self._ended_requests.clear()
        for attribute in ("world", "places", "_tables", "_fleet_stats"):
            self.__dict__.pop(attribute, None)

    @property
    def last_io_ns(self) -> int:
        """The simulated time of the last row, ns; 0 before the first one."""
        return self.world.total.last_io_ns

    @property
    def now_ns(self) -> int:
        """The simulated time, ns; after the end, that of the last event."""
        return self.world.control.now

    def arrivals(self) -> tuple[Array, Array] | None:
        """Return the rows of the file's requests in order of arrival, and their times of arrival, ns.

        None if all requests arrive at the times of the file.
        """
        if self.load.waits is None:
            return None
        came = self.world.following.came[: self.world.control.arrived]
        return came["actor"], came["when"]

    def library_object_bytes(self) -> list[tuple[str, Array]]:
        """Return the first objects: those of system prompts, documents and entries.

        Each item is a kind and the int64 sizes of its objects, bytes.
        """
        knobs, kinds = self.world.knobs, []
        for kind, first, end in self.library.kinds(self.preset.entry.value):
            _objects, object_bytes = self.sizes.of(
                self.library.tokens[first:end], knobs.chunk_tokens
            )
            kinds.append((kind, object_bytes))
        return kinds

    def run(
        self, sink: Callable[[Flush], None], progress: Callable[[float], None] = lambda _ns: None
    ) -> None:
        """Simulate to the end, once.

        `sink` receives the rows, flush by flush, and `progress` the simulated time, ns.
        """
        set_policies(self.world, [tier.policy for tier in self.preset.tiers])
        failed: list[BaseException] = []

        def flush(_need: int) -> None:
            sink(self._flush())
            progress(float(self.now_ns))
            check_memory(_RESERVE_BYTES)

        handlers: dict[int, Callable[[int], object]] = {
            records.FLUSH: flush,
            records.MORE_SLOTS: partial(self._grow_slots, 0),
            records.MORE_COPIES: partial(self._grow_slots, 1),
            records.MORE_ACTORS: self._grow_actors,
            records.LONGER_CHAIN: self._grow_chain,
            records.MORE_SECONDS: self.count_seconds,
        }

        def answer(request: int, need: int) -> bool:
            try:
                handlers[request](need)
            except BaseException as error:  # noqa: BLE001 - raised again after the C code has returned
                failed.append(error)
            return not (failed or signals)

        ask = _ASK(answer)
        # Not ctypes.cast(ask): its result refers to itself, and with that the callback and this
        # simulation would live until the cyclic collector runs.
        self.world.ask = ctypes.c_void_p.from_buffer(ask).value
        with defer_signals() as signals:
            is_ended = _simulate(self.world) and answer(records.FLUSH, 0)
            # The counters are read here. Prompts that still wait get their first tokens after it,
            # without effect on the counters. Counting takes memory, of which there may be none left.
            if not failed:
                self.places, self._fleet_stats = (
                    fleet.all_tiers(self.world),
                    fleet.fleet_stats(self.preset.fleet, self.world),
                )
            handlers[records.FLUSH] = lambda _need: self._flush()
            is_ended = _finish(self.world, is_ended)
        if failed or not (is_ended or signals):
            raise failed[0] if failed else MemoryError

    def _flush(self) -> Flush:
        world, control = self.world, self.world.control
        made_objects, logged = control.made, control.logged
        rows = 0 if world.knobs.is_counted_alone else control.rows
        capacity = len(world.rows.ts_ns)
        if rows < capacity // 2:
            columns = {name: column[:rows].copy() for name, column in world.rows.arrays.items()}
        else:
            columns = {name: column[:rows] for name, column in world.rows.arrays.items()}
            if self._spare:
                for name, column in self._spare.popleft().items():
                    setattr(world.rows, name, column)
            else:
                make_rows(world.rows, capacity)
        objects_per_slot = self.sizes.parts
        sizes = np.repeat(world.made_size[:made_objects] // objects_per_slot, objects_per_slot)
        is_other = (
            np.repeat(world.made_kind[:made_objects], objects_per_slot)
            if world.knobs.bucketed_tiers
            else None
        )
        if world.knobs.bucketed_tiers:
            columns["offset_bytes"] = world.row_offsets[:rows]
            world.row_offsets = np.zeros(capacity, np.int64)
            world.made_kind = np.zeros(len(world.made_size), np.int8)
        if world.fleet.count > 1:
            columns["node"] = world.fleet.row_nodes[:rows]
            world.fleet.row_nodes = np.empty(capacity, np.int32)
        flush = Flush(columns, sizes, is_other, world.log[:logged].copy(), self.now_ns)
        if len(world.first_tokens):
            self._first_tokens.append(world.first_tokens[: control.answered].copy())
            self._ended_requests.append(world.ended_requests[: control.ended].copy())
        if len(world.lookup_outcomes):
            self._incident_counters.count_flush(columns, world.lookup_outcomes[: control.lookups])
        control.set(**dict.fromkeys(("made", "logged", "answered", "ended", "rows", "lookups"), 0))
        return flush

    def give_back(self, flush: Flush) -> None:
        """Reuse the arrays of `flush` for later rows.

        New arrays would cost a page fault for each 4 KiB.
        """
        if flush.capacity_rows == len(self.world.rows.ts_ns) and len(self._spare) < SPARE:
            columns: Columns = {}
            for name in self.world.rows.arrays:
                buffer = flush.rows[name].base
                if buffer is None:
                    return
                columns[name] = buffer
            self._spare.append(columns)

    def omit_rows(self) -> None:
        """Count only: generate no rows, unless incidents are counted by them."""
        self.world.knobs.is_counted_alone = not len(self.world.lookup_outcomes)

    def count_seconds(self, seconds: int) -> None:
        """Extend the counters of tier reads and writes by second to at least `seconds` seconds.

        The first call starts the counting.
        """
        counts, of_second = self.world.by_second, 4 * len(self.world.tiers)
        added = max(of_second * seconds, 2 * len(counts)) - len(counts)
        self.world.by_second = np.concatenate([counts, np.zeros(added, np.int64)])

    def _grow_slots(self, pool: int, need: int) -> None:
        """Double the slots if there are few, else add an eighth, or `need` if that is more.

        The new slots are those of the `pool` whose last range is used up. Nothing is written to
        most tables, so that a page of slots of one pool takes no memory in a table of the other.
        """
        world = self.world
        old, tiers = len(world.slots), len(world.tiers)
        added = max(min(old, _FEW), old // 8, need)
        extend = partial(self._tables.extend, pool=pool)
        for name in ("slots", "pending_release"):
            extend(world, name, added)
        for name in ("members", "ages", "pins", "pinned_until_ns", "idle_links", "gpu_uses"):
            if len(getattr(world, name)):
                extend(world, name, added)
        if len(world.links):
            extend(world, "links", added * world.knobs.linked_tiers)
        if len(world.notes):
            extend(world, "notes", added * tiers)["list"] = records.NONE
        if world.fleet.place_tiers:
            extend(world.fleet, "copies", added)
            extend(world.fleet, "copy_links", added)
        pools = world.slot_pools
        pools["unused"][pool], pools["unused_end"][pool] = old, old + added

    def _grow_actors(self, _need: int) -> None:
        """Double the number of requests that may be in flight; the new actors are idle."""
        world = self.world
        old = len(world.actors)
        idle = np.zeros(2 * old, np.int64)
        idle[:old] = np.arange(2 * old - 1, old - 1, -1)
        world.idle, world.control.idle = idle, old
        world.actors = np.concatenate([world.actors, np.zeros(old, records.ACTOR)])
        world.heap = np.concatenate([world.heap, np.zeros(old, records.EVENT)])
        world.retrieved = np.zeros(2 * len(world.retrieved), np.int64)

    def _grow_chain(self, need: int) -> None:
        self.world.chain = np.empty(2 * need, np.int64)
        self.world.hit_level = np.empty(2 * need, np.int8)
        self.world.chain_mark = np.empty(2 * need, np.int8)

    def stats(self) -> SimulationStats:
        """Return the counters of the simulation, once `run` has ended."""
        preset, total = self.preset, self.world.total
        tiers = [self._tier_stats(t) for t in range(len(preset.tiers))]
        offers: OfferStats | UnsetType = UNSET
        if any(tier.takes_whole for tier in preset.tiers):
            offers = OfferStats(
                count=total.offers,
                refused=total.refused_offers,
                refused_objects=total.refused_objects,
            )
        stalled = total.stalled if any(tier.loads_whole for tier in preset.tiers) else UNSET
        is_endless = self.load.until_ns == FOREVER_NS
        return SimulationStats(
            requests=total.requests,
            input_tokens=total.input_tokens,
            output_tokens=total.output_tokens,
            lookups=total.lookups,
            lookup_bytes=total.lookup_bytes,
            misses=total.lookups - sum(tier.hits for tier in tiers),
            prompts=(
                _lookup_counts(total.prompt_lookups, total.prompt_hits)
                if preset.workload.prompt_share
                else None
            ),
            documents=(
                _lookup_counts(total.document_lookups, total.document_hits)
                if preset.workload.rag_share
                else None
            ),
            prefill=self._prefill_stats(),
            decode=self._decode_stats(),
            decode_misses=total.decode_misses,
            unplaced_objects=total.unplaced,
            offers=offers,
            stalled_requests=stalled,
            first_token=self._time_to_first_token() if has_times(preset) else None,
            goodput=self._goodput(),
            tiers=tiers,
            fleet=self._fleet_stats,
            incidents=self._incident_counters.stats(
                self.now_ns if is_endless else self.load.until_ns
            ),
        )

    def _prefill_stats(self) -> PrefillStats:
        total, requests, setting = self.world.total, self.load.requests, self.preset.fleet
        load = needed_nodes = None
        if requests is not None and len(requests) and self._computes_all_prompts(requests):
            computing_ns = int(self.world.fleet.nodes["computing_ns"].sum())
            if span_ns := int(requests.arrival_ns[-1]):
                load = computing_ns / span_ns / (setting.prefill_nodes or setting.nodes)
                needed_nodes = -(-computing_ns // span_ns)
        return PrefillStats(
            requests=total.prefills,
            mean_wait_ns=_mean_ns(total.waiting_ns, total.prefills),
            load=load,
            needed_nodes=needed_nodes,
        )

    def _computes_all_prompts(self, requests: Requests) -> bool:
        """Return whether all prompts arrive at times of their own, and are computed in turn."""
        is_in_turn = self.preset.has_prefill and self.preset.prefill_in_turn
        is_cut = self.load.until_ns != FOREVER_NS or len(requests) > self.load.max_requests
        return is_in_turn and self.load.waits is None and not is_cut

    def _time_to_first_token(self) -> TimeToFirstToken:
        times_ns = np.concatenate(self._first_tokens)["ttft_ns"]
        return TimeToFirstToken(requests=len(times_ns), with_cache=_percentiles(times_ns))

    @property
    def has_request_times(self) -> bool:
        """Tell whether anything takes time, so that `request_times` knows any."""
        return len(self.world.first_tokens) > 0

    def request_times(self) -> tuple[Array, Array]:
        """Return TTFT and TPOT of each request that arrived, ns; NONE where a request has none.

        They are in order of arrival, which is that of the requests' numbers. An answer of one token
        has no TPOT.
        """
        control = self.world.control
        count = max(control.arrived, control.next_request)
        ttft_ns = np.full(count, records.NONE, np.int64)
        tpot_ns = ttft_ns.copy()
        if self._first_tokens:
            first_tokens = np.concatenate(self._first_tokens)
            ttft_ns[first_tokens["request"]] = first_tokens["ttft_ns"]
            ended = np.concatenate(self._ended_requests)
            ended = ended[ended["steps"] > 0]
            # Rounded to the nearest.
            tpot_ns[ended["request"]] = (2 * ended["answer_ns"] + ended["steps"]) // (
                2 * ended["steps"]
            )
        return ttft_ns, tpot_ns

    def _decode_stats(self) -> DecodeStats:
        total = self.world.total
        times_ns = np.zeros(0, np.int64)
        if self.preset.decode_ns_per_token and self._ended_requests:
            times_ns = self.request_times()[1]
            times_ns = times_ns[times_ns != records.NONE]
        generated = total.generated_tokens
        return DecodeStats(
            tokens=total.decoded_tokens,
            mean_ns_per_token=_mean_ns(total.decoding_ns, total.decode_steps),
            generated_tokens=generated,
            tokens_per_s=generated * NS_PER_S / self.now_ns if self.now_ns else None,
            requests=len(times_ns),
            time_per_token=_percentiles(times_ns) if len(times_ns) else None,
        )

    def _goodput(self) -> Goodput | UnsetType:
        if self._service_level is None:
            return UNSET
        return self._service_level.goodput(*self.request_times(), self.now_ns)

    def _tier_stats(self, t: int) -> TierStats:
        """Return the counters of tier `t`, all of its instances together."""
        tier, fleet_setting = self.preset.tiers[t], self.preset.fleet
        lookups = self.world.total.lookups
        tiers, exists = self.places
        instances = tiers[exists[:, t], t]

        share = stored_shares(self.preset, self.sizes)[t]

        def total(name: str) -> int:
            count = int(instances[name].sum())
            # What was hit counts as it is in memory, as what was looked up does.
            return int(count * share) if name.endswith("_bytes") and name != "hit_bytes" else count

        def total_if(applies: bool, name: str) -> int | UnsetType:
            return total(name) if applies else UNSET

        is_filtered = tier.admission is not Admission.ALWAYS or bool(tier.lease)
        has_queue = bool(tier.store_queue)
        is_alone = fleet_setting.nodes == 1
        return TierStats(
            name=tier.name,
            hits=total("hits"),
            hit_ratio=total("hits") / lookups if lookups else None,
            hit_bytes=total("hit_bytes"),
            read_bytes=total("read_bytes"),
            written_bytes=total("written_bytes"),
            populated_bytes=total("populated_bytes"),
            deleted_bytes=total("deleted_bytes"),
            live_bytes=total("live_bytes"),
            refused_objects=total_if(is_filtered, "refused_objects"),
            refused_bytes=total_if(is_filtered, "refused_bytes"),
            file_lookups=total_if(bool(tier.looks_past_miss), "file_lookups"),
            dropped_objects=total_if(has_queue, "dropped_objects"),
            dropped_bytes=total_if(has_queue, "dropped_bytes"),
            lost_objects=total_if(has_queue, "lost_objects"),
            lost_bytes=total_if(has_queue, "lost_bytes"),
            waiting_objects=total_if(has_queue, "waiting_objects"),
            collected_bytes=total_if(tier.bucket_gc is not None, "collected_bytes"),
            scope=UNSET if is_alone else str(tier.scope),
            instances=UNSET if is_alone else fleet_setting.instances(tier.scope),
        )


def _percentiles(times_ns: NDArray[np.int64]) -> Percentiles:
    ordered = np.sort(times_ns)
    ranks = {name: nearest_rank(len(ordered), share) for name, share in QUANTILES.items()}
    return Percentiles(
        **{f"{name}_ns": int(ordered[rank - 1]) if rank else None for name, rank in ranks.items()}
    )


def _lookup_counts(lookups: int, hits: int) -> LookupCounts:
    return LookupCounts(lookups, hits, hits / lookups if lookups else None)


def _mean_ns(total_ns: int, count: int) -> int | None:
    return round(total_ns / count) if count else None
