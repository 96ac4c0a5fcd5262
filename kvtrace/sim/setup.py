"""What a preset, a model and a load make: the arrays that the compiled simulation loop starts with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.sim import heap, records, world
from kvtrace.sim.chains import chunk_chains, conversations
from kvtrace.sim.preset import BYTES_PER_US, Entry, Match, Placement, Policy, Preset, Promotion
from kvtrace.users import synthetic
from kvtrace.users.workload import Library, Popularity, ServingMode

if TYPE_CHECKING:
    from kvtrace.model.shape import ModelShape
    from kvtrace.requests.requests import Requests
    from kvtrace.sim.simulation import Load

# Of slots, of actors for requests in flight, and of objects of one request, to start with.
ROOM = 1024
# Objects that a conversation may have, to start with.
WIDTH = 64


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a model's KV cache takes here, all ranks together."""

    bytes_per_token: int
    chunk_bytes: int
    """Of a chunk, all its objects together, each padded."""
    pieces: Any
    ranks: int
    layers: int
    """Groups of layers that are objects of their own."""

    def of(self, tokens: Any, chunk_tokens: int) -> tuple[Any, Any]:
        """Return of how many objects items of so many `tokens` consist, and the bytes of each; see Knobs."""
        if chunk_tokens:
            return tokens // chunk_tokens, np.full(len(tokens), self.chunk_bytes)
        return np.ones_like(tokens), tokens * self.bytes_per_token


def make(preset: Preset, model: ModelShape, load: Load, library: Library, sizes: Sizes, rows: int) -> world.World:
    """Return the state of a simulation before its start; `rows` is the size of the buffers."""
    requests, empty = load.requests, np.zeros(0, np.int64)
    knobs = _knobs(preset, model, load, library, sizes)
    count = load.users if requests is None else ROOM
    users, starts = synthetic.make_users(load.users if requests is None else 0, load.seed)
    tiers = make_tiers(preset)
    items, slots = _items(library, sizes, knobs, tiers)
    used = int(items[:, world.ITEM_OBJECTS].sum())
    actors = np.zeros((count, world.ACTOR_FIELDS), np.int64)
    actors[:, world.ENTRY] = actors[:, world.PROMPT] = records.NONE
    actors[:, world.CONTEXT] = np.arange(count)
    made = world.World(
        tiers=tiers,
        slots=slots,
        free=np.arange(len(slots) - 1, -1, -1),
        rows=records.new_rows(rows),
        knobs=knobs,
        pieces=sizes.pieces,
        control=_control(preset, sizes, tiers, slots[:used, records.SIZE], len(slots) - used),
        total=np.zeros(world.TOTALS, np.int64),
        users=users,
        actors=actors,
        idle=np.append(np.arange(count - 1, -1, -1), count),
        heap_ns=np.zeros(count + 1, np.int64),
        heap_actor=np.zeros(count + 1, np.int64),
        arrival_ns=empty if requests is None else requests.arrival_ns,
        input_tokens=empty if requests is None else requests.input_tokens,
        output_tokens=empty if requests is None else requests.output_tokens,
        **_prompts(requests, knobs),
        contexts=np.empty((count, WIDTH), np.int32),
        idle_contexts=np.append(np.arange(count - 1, -1, -1), count),
        items=items,
        documents=library.document_first,
        document_weight=library.document_weight,
        retrieved=np.zeros((count, preset.workload.rag_top_chunks if knobs.retrieve_ppm else 0), np.int64),
        made_size=np.empty(rows, np.int64),
        log=np.empty((rows if requests is None else 0, 8), np.int64),
        first_ns=np.empty((rows if has_times(preset) else 0, 2), np.int64),
        chain=np.empty(ROOM, np.int64),
        where=np.empty(ROOM, np.int64),
        wanted=np.empty((3, len(preset.tiers) + 1), np.int64),
    )
    # Populating starts with the first item that is no prompt: those are stored when first used.
    made.control[world.POPULATED] = library.prompts
    for user, start in enumerate(starts):
        if start < load.until_ns:
            heap.push(made, start, user)
    return made


def has_times(preset: Preset) -> bool:
    """Whether anything takes time before the first token."""
    return bool(preset.prefill_ns_per_token or any(any(t.rates_bytes_per_s) for t in preset.tiers))


def _knobs(preset: Preset, model: ModelShape, load: Load, library: Library, sizes: Sizes) -> world.Knobs:
    p, w, requests = preset, preset.workload, load.requests
    is_chunk = p.entry is Entry.CHUNK
    source = world.USERS
    if requests is not None:
        source = world.CHAINS if is_chunk and requests.block_tokens else world.CONVERSATIONS
    return world.Knobs(
        source=source,
        keeps_ghosts=int(any(tier.policy in (Policy.S3FIFO, Policy.ARC) for tier in p.tiers)),
        is_prefix=int(p.match is Match.PREFIX),
        is_write_back=int(p.placement is Placement.WRITE_BACK),
        promotion=list(Promotion).index(p.promotion),
        is_exclusive=int(p.exclusive),
        min_load_tokens=p.min_load_tokens,
        stores_generated=int(p.store_generated),
        chunk_tokens=p.chunk_tokens if is_chunk else 0,
        chunk_bytes=sizes.chunk_bytes,
        decode_read_tokens=p.decode_read_tokens,
        prefill_only_from_tokens=p.prefill_only_from_tokens,
        prefill_ns_per_token=p.prefill_ns_per_token,
        decode_ns_per_token=p.decode_ns_per_token,
        bytes_per_token=sizes.bytes_per_token,
        max_context_tokens=model.max_context_tokens,
        seed=load.seed,
        until_ns=load.until_ns,
        max_requests=load.max_requests,
        mode=list(ServingMode).index(w.mode),
        prompt_ppm=round(w.prompt_share * 1_000_000),
        prompts=library.prompts,
        retrieve_ppm=round(w.rag_share * 1_000_000),
        is_zipf_chunk=int(w.rag_chunk_popularity is Popularity.ZIPF),
        first_entry=library.first_entry,
        entries=w.decode_entries,
    )


def _items(library: Library, sizes: Sizes, knobs: world.Knobs, tiers: Any) -> tuple[Any, Any]:
    """Return the library's items, and slots: theirs first, which are held for ever, and as many free ones as usual."""
    objects, each = sizes.of(library.tokens, knobs.chunk_tokens)
    items = np.zeros((len(library.tokens), world.ITEM_FIELDS), np.int64)
    items[:, world.ITEM_TOKENS], items[:, world.ITEM_OBJECTS] = library.tokens, objects
    items[:, world.ITEM_FIRST] = np.cumsum(objects) - objects
    of_items = np.repeat(each, objects)
    slots = records.new_slots(np.concatenate([of_items, np.zeros(ROOM, np.int64)]), tiers)
    slots[: len(of_items), records.HELD] = 1
    return items, slots


def _control(preset: Preset, sizes: Sizes, tiers: Any, object_bytes: Any, free: int) -> Any:
    control = np.zeros(world.CONTROLS, np.int64)
    control[world.PENDING] = records.NONE
    control[world.NEXT_OBJECT] = len(object_bytes)
    control[world.MIN_SIZE] = object_bytes.min(initial=2**62)
    control[world.MAX_SIZE] = object_bytes.max(initial=0)
    if preset.entry is Entry.CHUNK:
        control[world.MIN_SIZE] = control[world.MAX_SIZE] = sizes.chunk_bytes
    control[records.RANKS], control[records.LAYERS] = sizes.ranks, sizes.layers
    control[records.EXPIRES] = any(tier.policy is Policy.TTL for tier in preset.tiers)
    for t, tier in enumerate(preset.tiers):
        if tiers[t, records.LIMIT] == records.UNBOUNDED and tier.policy is not Policy.TTL:
            control[records.ENDLESS] |= 1 << t
    control[records.FREE_COUNT] = free
    return control


def _prompts(requests: Requests | None, knobs: world.Knobs) -> dict[str, Any]:
    """Return what the prompts of `requests` consist of: conversations, or chains of objects that they name."""
    empty = np.zeros(0, np.int64)
    found = {
        "conversation": empty, "conversations": np.zeros((0, world.CONVERSATION_FIELDS), np.int64), "offsets": empty,
        "chains": np.zeros(0, np.int32), "object_slot": np.zeros(0, np.int32), "object_uses": np.zeros(0, np.int32),
    }  # fmt: skip
    if requests is None:
        return found
    if knobs.source == world.CHAINS:
        chains = chunk_chains(requests, knobs.chunk_tokens)
        uses = np.zeros(len(chains.tokens), np.int32)
        np.add.at(uses, chains.slots, 1)
        slot = np.full(len(uses), records.NONE, np.int32)
        return found | {"offsets": chains.offsets, "chains": chains.slots, "object_slot": slot, "object_uses": uses}
    row, count = conversations(requests)
    table = np.zeros((count, world.CONVERSATION_FIELDS), np.int64)
    table[:, world.C_CONTEXT] = records.NONE
    table[:, world.C_REMAINING] = np.bincount(row, minlength=count)
    return found | {"conversation": row, "conversations": table}


def make_tiers(preset: Preset) -> Any:
    """Return the preset's tiers, empty."""
    policies = [list(Policy).index(tier.policy) for tier in preset.tiers]
    tiers = records.new_tiers(*tier_limits(preset), policies)
    for t, tier in enumerate(preset.tiers):
        tiers[t, records.TTL_NS] = tier.ttl_ns
        if tier.low_watermark is not None and tier.capacity_bytes is not None:
            tiers[t, records.LOW] = int(tier.capacity_bytes * tier.low_watermark)
        rates = [rate // BYTES_PER_US for rate in tier.rates_bytes_per_s]
        tiers[t, records.READ_RATE], tiers[t, records.WRITE_RATE] = rates
        tiers[t, records.LATENCY_NS], tiers[t, records.CONCURRENCY] = tier.latency_ns, tier.concurrency
    return tiers


def tier_limits(preset: Preset) -> tuple[list[int], list[int]]:
    """Return, for each tier, the bytes it fills to and the largest object it takes."""
    limits, largest = [], []
    for tier in preset.tiers:
        capacity = tier.capacity_bytes
        limits.append(records.UNBOUNDED if capacity is None else int(capacity * tier.high_watermark))
        largest.append(records.UNBOUNDED if capacity is None else int(capacity * tier.max_object_fraction))
    return limits, largest
