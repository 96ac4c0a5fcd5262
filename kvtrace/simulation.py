"""Run a simulation in virtual time and stream what it does: requests in, trace rows out, counters at the end."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kvtrace import kernel, state
from kvtrace.core.errors import ConfigError
from kvtrace.core.percentiles import QUANTILES, nearest_rank
from kvtrace.geometry import Chains, chunk_chains, turn_chains
from kvtrace.hierarchy import BYTES_PER_US, Entry, Match, Placement, Policy, Preset, Promotion
from kvtrace.models import ModelShape, Piece, PieceKind, bytes_per_token_per_rank, pieces, stored_ranks
from kvtrace.sources import synthetic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvtrace.sources import Requests

ROWS = 1 << 19
# Buffers in turn: one being filled, one being written, one waiting.
RING = 3
FOREVER_NS = 2**62


@dataclass(frozen=True, slots=True)
class Load:
    """Who asks: the requests of a file, or so many synthetic users; and for how long."""

    requests: Requests | None = None
    users: int = 0
    seed: int = 0
    until_ns: int = FOREVER_NS
    max_requests: int = 2**62


@dataclass(frozen=True, slots=True)
class Flush:
    """What the simulation made since the last flush; the arrays are only valid while it is being taken."""

    rows: Any
    """int64[state.ROW_FIELDS, n]: trace rows, request and stage NONE for background work."""
    object_bytes: Any
    """int64: sizes of the next objects, one rank's bytes each, `ranks` objects a slot."""
    log: Any
    """int64[n, 8]: requests of users, columns as in the requests table."""
    now_ns: int


class Sink(Protocol):
    """Takes what a simulation makes."""

    def __call__(self, flush: Flush) -> None:
        """Take it, in order, perhaps in another thread."""


class Simulation:
    """One hierarchy, one load: `run` streams its rows to a sink; `stats` are the counters afterwards."""

    def __init__(self, preset: Preset, model: ModelShape, load: Load, *, ranks: int = 1, rows: int = ROWS) -> None:
        """Set up empty tiers; `ranks` is the tensor-parallel degree, `rows` the buffer size."""
        self.preset, self.model, self.load = preset, model, load
        self._first_ns: list[Any] = []
        stored = stored_ranks(model, ranks)
        self.bytes_per_token = bytes_per_token_per_rank(model, ranks) * stored
        self.ranks = 1 if preset.merge_ranks else stored
        self.layers = -(-model.layers // preset.layers_per_object) if preset.layers_per_object else 1
        self.pieces = _piece_table(pieces(model, ranks), preset.chunk_tokens)
        if self.layers > 1 and len(self.pieces) > 1:
            raise ConfigError("layers_per_object needs a model whose layers are all alike: this one has several kinds")
        chains = self._chains()
        sizes = chains.tokens * self.bytes_per_token
        if preset.entry is Entry.CHUNK:
            sizes[:] = self.chunk_bytes
        self._file_sizes = sizes
        if load.requests is None:
            sizes = np.zeros(1024, dtype=np.int64)
        slots = state.new_slots(sizes, self._tiers(), are_held=load.requests is not None)
        self.world = self._world(slots, rows, chains, model)

    @property
    def parts(self) -> int:
        """Objects of one slot: one for each rank that stores, and each group of layers."""
        return self.ranks * self.layers

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk, all its objects together, each padded."""
        pad = self.preset.pad_bytes
        return -(-int(self.pieces[:, kernel.PIECE_BYTES].sum()) // (self.parts * pad)) * pad * self.parts

    def _chains(self) -> Chains:
        requests = self.load.requests
        if requests is None:
            empty = np.zeros(0, np.int64)
            return Chains(np.zeros(1, np.int64), np.zeros(0, np.int32), empty, empty)
        if self.preset.entry is Entry.TURN:
            return turn_chains(requests)
        return chunk_chains(requests, self.preset.chunk_tokens)

    def _world(self, slots: Any, rows: int, chains: Chains, model: ModelShape) -> kernel.World:
        load, requests, empty = self.load, self.load.requests, np.zeros(0, np.int64)
        is_file = requests is not None
        count = 1024 if is_file else load.users
        users, starts = synthetic.make_users(0 if is_file else load.users, load.seed)
        control = np.zeros(kernel.CONTROLS, np.int64)
        control[kernel.PENDING] = state.NONE
        control[kernel.MIN_SIZE] = self._file_sizes.min(initial=2**62)
        control[kernel.MAX_SIZE] = self._file_sizes.max(initial=0)
        control[state.RANKS], control[state.LAYERS] = self.ranks, self.layers
        control[state.EXPIRES] = any(tier.policy is Policy.TTL for tier in self.preset.tiers)
        control[state.FREE_COUNT] = 0 if is_file else len(slots)
        actors = np.zeros((count, kernel.ACTOR_FIELDS), np.int64)
        longest = int(np.diff(chains.offsets).max(initial=0)) if is_file else len(slots)
        world = kernel.World(
            tiers=self._tiers(),
            slots=slots,
            free=np.arange(len(slots) - 1, -1, -1),
            rows=state.new_rows(rows),
            knobs=self._knobs(model),
            pieces=self.pieces,
            control=control,
            total=np.zeros(kernel.TOTALS, np.int64),
            users=users,
            contexts=np.empty((len(users), 64), np.int32),
            actors=actors,
            idle=np.append(np.arange(count - 1, -1, -1), count),
            heap_ns=np.zeros(count + 1, np.int64),
            heap_actor=np.zeros(count + 1, np.int64),
            arrival_ns=empty if requests is None else requests.arrival_ns,
            input_tokens=empty if requests is None else requests.input_tokens,
            output_tokens=empty if requests is None else requests.output_tokens,
            offsets=chains.offsets,
            file_chain=chains.slots,
            file_new=chains.new,
            made_size=np.empty(0 if is_file else rows, np.int64),
            log=np.empty((0 if is_file else rows, 8), np.int64),
            first_ns=np.empty((rows if self.has_times else 0, 2), np.int64),
            chain=np.empty(longest, np.int64),
            where=np.empty(longest, np.int64),
            wanted=np.empty((3, len(self.preset.tiers) + 1), np.int64),
        )
        for user, start in enumerate(starts):
            if start < load.until_ns:
                kernel.push(world, start, user)
        return world

    def _knobs(self, model: ModelShape) -> kernel.Knobs:
        p = self.preset
        return kernel.Knobs(
            is_prefix=int(p.match is Match.PREFIX),
            is_write_back=int(p.placement is Placement.WRITE_BACK),
            promotion=list(Promotion).index(p.promotion),
            is_exclusive=int(p.exclusive),
            min_load_tokens=p.min_load_tokens,
            stores_generated=int(p.store_generated),
            chunk_tokens=p.chunk_tokens if p.entry is Entry.CHUNK else 0,
            chunk_bytes=self.chunk_bytes,
            decode_read_tokens=p.decode_read_tokens,
            prefill_only_from_tokens=p.prefill_only_from_tokens,
            prefill_ns_per_token=p.prefill_ns_per_token,
            decode_ns_per_token=p.decode_ns_per_token,
            bytes_per_token=self.bytes_per_token,
            max_context_tokens=model.max_context_tokens,
            seed=self.load.seed,
            until_ns=self.load.until_ns,
            max_requests=self.load.max_requests,
        )

    def _tiers(self) -> Any:
        policies = [list(Policy).index(tier.policy) for tier in self.preset.tiers]
        tiers = state.new_tiers(*tier_limits(self.preset), policies)
        for t, tier in enumerate(self.preset.tiers):
            tiers[t, state.TTL_NS] = tier.ttl_ns
            if tier.low_watermark is not None and tier.capacity_bytes is not None:
                tiers[t, state.LOW] = int(tier.capacity_bytes * tier.low_watermark)
            rates = [rate // BYTES_PER_US for rate in tier.rates_bytes_per_s]
            tiers[t, state.READ_RATE], tiers[t, state.WRITE_RATE] = rates
            tiers[t, state.LATENCY_NS], tiers[t, state.CONCURRENCY] = tier.latency_ns, tier.concurrency
        return tiers

    @property
    def has_times(self) -> bool:
        """Whether anything takes time before the first token."""
        return bool(self.preset.prefill_ns_per_token or any(any(t.rates_bytes_per_s) for t in self.preset.tiers))

    @property
    def file_object_bytes(self) -> Any:
        """int64: sizes of the objects of a file's requests, all ranks together; empty with users."""
        return self._file_sizes

    def run(self, sink: Sink, progress: Callable[[float], None] = lambda _ns: None) -> None:
        """Simulate to the end; `sink` takes the rows in a thread of its own, `progress` the virtual time, ns."""
        ring = [self.world.rows, *(state.new_rows(self.world.rows.shape[1]) for _ in range(RING - 1))]
        waiting: list[Future[None]] = []
        with ThreadPoolExecutor(1, thread_name_prefix="trace-writer") as writer:
            for code in self._codes():
                if code in (kernel.DONE, kernel.ROWS_FULL):
                    waiting.append(writer.submit(sink, self._flush()))
                    progress(float(self.world.control[kernel.NOW]))
                    if len(waiting) == RING:
                        waiting.pop(0).result()
                    ring = self._turn(ring)
            for future in waiting:
                future.result()

    def _codes(self) -> Iterator[int]:
        while True:
            code = kernel.run(self.world)
            yield code
            if code == kernel.DONE:
                return
            if code == kernel.SLOTS_FULL:
                self._grow_slots()
            elif code == kernel.ACTORS_FULL:
                self._grow_actors()
            elif code == kernel.CONTEXT_FULL:
                self._grow_contexts()

    def _flush(self) -> Flush:
        control, world = self.world.control, self.world
        made, logged, rows = (int(control[f]) for f in (kernel.MADE, kernel.LOGGED, state.ROW_COUNT))
        flush = Flush(
            world.rows[:, :rows], np.repeat(world.made_size[:made] // self.parts, self.parts),
            world.log[:logged].copy(), int(control[kernel.NOW]),
        )  # fmt: skip
        if self.has_times:
            self._first_ns.append(world.first_ns[: control[kernel.ANSWERED]].copy())
        control[[kernel.MADE, kernel.LOGGED, kernel.ANSWERED, state.ROW_COUNT]] = 0
        return flush

    def _turn(self, ring: list[Any]) -> list[Any]:
        """Make the ring's next buffer the current one, larger if one request needs more than a whole buffer."""
        ring = [*ring[1:], ring[0]]
        need = int(self.world.control[kernel.NEED])
        if ring[0].shape[1] < need:
            ring[0] = state.new_rows(2 * need)
        made_size = self.world.made_size
        if self.load.requests is None and len(made_size) < need:
            made_size = np.empty(2 * need, np.int64)
        self.world = self.world._replace(rows=ring[0], made_size=made_size)
        return ring

    def _grow_slots(self) -> None:
        """Double the slots; the new ones are free."""
        world, control = self.world, self.world.control
        old, count = len(world.slots), int(control[state.FREE_COUNT])
        more = max(old, int(control[kernel.NEED]))
        free = np.empty(old + more, np.int64)
        free[:count] = world.free[:count]
        free[count : count + more] = np.arange(old + more - 1, old - 1, -1)
        control[state.FREE_COUNT] = count + more
        slots = np.concatenate([world.slots, state.new_slots(np.zeros(more), world.tiers, are_held=False)])
        self.world = world._replace(
            slots=slots, free=free, chain=np.empty(old + more, np.int64), where=np.empty(old + more, np.int64)
        )

    def _grow_contexts(self) -> None:
        """Double the chunks a conversation may have; only what is used is copied, so the rest takes no memory."""
        world = self.world
        users, room = world.contexts.shape
        contexts = np.empty((users, max(2 * room, int(world.control[kernel.NEED]))), np.int32)
        for user, length in enumerate(world.actors[:, kernel.LENGTH].tolist()):
            contexts[user, :length] = world.contexts[user, :length]
        self.world = world._replace(contexts=contexts)

    def _grow_actors(self) -> None:
        """Double the requests that may be in flight; the new ones are idle."""
        world = self.world
        old = len(world.actors)
        idle = np.zeros(2 * old + 1, np.int64)
        idle[:old] = np.arange(2 * old - 1, old - 1, -1)
        idle[-1] = old
        self.world = world._replace(
            actors=np.pad(world.actors, ((0, old), (0, 0))), idle=idle,
            heap_ns=np.pad(world.heap_ns, (0, old)), heap_actor=np.pad(world.heap_actor, (0, old)),
        )  # fmt: skip

    def _first_token(self) -> dict[str, Any] | None:
        """Modelled times to the first token, with and without the cache; null if nothing takes time."""
        if not self.has_times:
            return None
        times = np.concatenate([*self._first_ns, np.zeros((0, 2), np.int64)])
        return {
            "requests": len(times),
            "with_cache": quantiles_ns(times[:, 0]),
            "without_cache": quantiles_ns(times[:, 1]),
        }

    def stats(self) -> dict[str, Any]:
        """Return the counters of the simulation, as the metadata carries them."""
        total, tiers = self.world.total, self.world.tiers
        lookups = int(total[kernel.LOOKUPS])
        per_tier = [
            {
                "name": tier.name,
                "hits": int(tiers[t, state.HITS]),
                "hit_ratio": int(tiers[t, state.HITS]) / lookups if lookups else None,
                "hit_bytes": int(tiers[t, state.HIT_BYTES]),
                "read_bytes": int(tiers[t, state.READ_BYTES]),
                "written_bytes": int(tiers[t, state.WRITTEN_BYTES]),
                "deleted_bytes": int(tiers[t, state.DELETED_BYTES]),
                "live_bytes": int(tiers[t, state.USED]),
            }
            for t, tier in enumerate(self.preset.tiers)
        ]
        return {
            "requests": int(total[kernel.REQUESTS]),
            "input_tokens": int(total[kernel.INPUT_TOKENS]),
            "output_tokens": int(total[kernel.OUTPUT_TOKENS]),
            "lookups": lookups,
            "lookup_bytes": int(total[kernel.LOOKUP_BYTES]),
            "misses": lookups - int(tiers[:, state.HITS].sum()),
            "decode_misses": int(total[kernel.DECODE_MISSES]),
            "unplaced_objects": int(total[kernel.UNPLACED]),
            "first_token": self._first_token(),
            "tiers": per_tier,
        }


def tier_limits(preset: Preset) -> tuple[list[int], list[int]]:
    """Return, for each tier, the bytes it fills to and the largest object it takes."""
    limits, largest = [], []
    for tier in preset.tiers:
        capacity = tier.capacity_bytes
        limits.append(state.UNBOUNDED if capacity is None else int(capacity * tier.high_watermark))
        largest.append(state.UNBOUNDED if capacity is None else int(capacity * tier.max_object_fraction))
    return limits, largest


def _piece_table(found: tuple[Piece, ...], chunk_tokens: int) -> Any:
    """Return what a chunk consists of, int64[pieces, 3]: bytes of all ranks, which kind, and its window in tokens."""
    kinds = list(PieceKind)
    rows = [(p.copies * p.size_bytes(chunk_tokens), kinds.index(p.kind), p.window_tokens or 0) for p in found]
    return np.array(rows, dtype=np.int64)


def quantiles_ns(times: Any) -> dict[str, int | None]:
    """Return the quantiles of all `times`, ns, each a time that occurred; null where there are too few for it."""
    ordered = np.sort(times)
    return {
        f"{name}_ns": int(ordered[rank - 1]) if (rank := nearest_rank(len(ordered), part)) else None
        for name, part in QUANTILES.items()
    }
