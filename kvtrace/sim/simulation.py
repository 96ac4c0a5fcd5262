"""Run a simulation in virtual time and stream what it does: requests in, trace rows out, counters at the end.

Its memory does not grow with the rows. It is 8 bytes each of 6 + 2 * tiers fields (96 bytes with three tiers) for an
object that may still be asked for or is live in a tier that may delete it, at most half as much again for room to
grow, and with requests of a file about 100 bytes a request, 4 a reference to a block, and 8 a distinct block. With
the policies s3fifo and arc every block of a file counts as one that may still be asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kvtrace.core.errors import ConfigError
from kvtrace.model.shape import ModelShape, Piece, PieceKind, bytes_per_token_per_rank, pieces, stored_ranks
from kvtrace.sim import counters, loop, records, setup, world
from kvtrace.sim.preset import Entry, Preset
from kvtrace.users.workload import library_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvtrace.requests.requests import Requests

ROWS = 1 << 18
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
        """Take it, in order; the simulation goes on when this returns."""


class Simulation:
    """One hierarchy, one load: `run` streams its rows to a sink; `stats` are the counters afterwards."""

    def __init__(self, preset: Preset, model: ModelShape, load: Load, *, ranks: int = 1, rows: int = ROWS) -> None:
        """Set up empty tiers; `ranks` is the tensor-parallel degree, `rows` the buffer size."""
        self.preset, self.model, self.load = preset, model, load
        if load.requests is not None and preset.workload.shares:
            raise ConfigError(
                "workload.prompt_share, workload.rag_share and workload.mode=decode-only are for synthetic users: "
                "leave them, or FILE and --request-rate, out"
            )
        self._first_ns: list[Any] = []
        self._sizes = _sizes(preset, model, ranks)
        self.library = library_of(
            preset.workload, load.users, model.layers, self.bytes_per_token,
            is_turn=preset.entry is Entry.TURN, seed=load.seed,
        )  # fmt: skip
        self.world = setup.make(preset, model, load, self.library, self._sizes, rows)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token, all ranks together, without padding."""
        return self._sizes.bytes_per_token

    @property
    def ranks(self) -> int:
        """Objects of one slot and group of layers."""
        return self._sizes.ranks

    @property
    def layers(self) -> int:
        """Groups of layers that are objects of their own."""
        return self._sizes.layers

    @property
    def parts(self) -> int:
        """Objects of one slot: one for each rank that stores, and each group of layers."""
        return self.ranks * self.layers

    @property
    def now_ns(self) -> int:
        """The virtual time: of the last event, once all is over."""
        return int(self.world.control[world.NOW])

    @property
    def requests(self) -> int:
        """How many requests were looked up so far."""
        return int(self.world.total[world.REQUESTS])

    @property
    def has_times(self) -> bool:
        """Whether anything takes time before the first token."""
        return setup.has_times(self.preset)

    def library_object_bytes(self) -> list[tuple[str, Any]]:
        """Return the first objects, those of system prompts, documents and entries: kind, and int64 sizes."""
        knobs, found = self.world.knobs, []
        for kind, first, end in self.library.kinds(self.preset.entry.value):
            objects, each = self._sizes.of(self.library.tokens[first:end], knobs.chunk_tokens)
            found.append((kind, np.repeat(each, objects)))
        return found

    def run(self, sink: Sink, progress: Callable[[float], None] = lambda _ns: None) -> None:
        """Simulate to the end; `sink` takes the rows, `progress` the virtual time, ns."""
        for code in self._codes():
            if code in (world.DONE, world.ROWS_FULL):
                sink(self._flush())
                progress(float(self.world.control[world.NOW]))
                self._grow_rows()

    def _codes(self) -> Iterator[int]:
        make_room = {
            world.SLOTS_FULL: self._grow_slots, world.ACTORS_FULL: self._grow_actors,
            world.CONTEXTS_FULL: self._grow_contexts, world.CHAIN_FULL: self._grow_chain,
        }  # fmt: skip
        while True:
            code = loop.run(self.world)
            yield code
            if code == world.DONE:
                return
            if code in make_room:
                make_room[code]()

    def _flush(self) -> Flush:
        control, now = self.world.control, self.world
        made, logged, rows = (int(control[f]) for f in (world.MADE, world.LOGGED, records.ROW_COUNT))
        flush = Flush(
            now.rows[:, :rows], np.repeat(now.made_size[:made] // self.parts, self.parts), now.log[:logged].copy(),
            int(control[world.NOW]),
        )  # fmt: skip
        if self.has_times:
            self._first_ns.append(now.first_ns[: control[world.ANSWERED]].copy())
        control[[world.MADE, world.LOGGED, world.ANSWERED, records.ROW_COUNT]] = 0
        return flush

    def _grow_rows(self) -> None:
        """Enlarge the empty buffers if one request needs more than they hold."""
        rows, made_size, need = self.world.rows, self.world.made_size, int(self.world.control[world.NEED])
        if rows.shape[1] < need:
            rows = records.new_rows(2 * need)
        if len(made_size) < need:
            made_size = np.empty(2 * need, np.int64)
        self.world = self.world._replace(rows=rows, made_size=made_size)

    def _grow_slots(self) -> None:
        """Add half as many slots, or as many as are needed; the new ones are free."""
        now, control = self.world, self.world.control
        old, count = len(now.slots), int(control[records.FREE_COUNT])
        more = max(old // 2, int(control[world.NEED]))
        free = np.empty(old + more, np.int64)
        free[:count] = now.free[:count]
        free[count : count + more] = np.arange(old + more - 1, old - 1, -1)
        control[records.FREE_COUNT] = count + more
        slots = np.empty((old + more, now.slots.shape[1]), np.int64)
        slots[:old] = now.slots
        slots[old:] = records.new_slots(np.zeros(1, np.int64), now.tiers)
        self.world = now._replace(slots=slots, free=free)

    def _grow_actors(self) -> None:
        """Double the requests that may be in flight; the new ones are idle."""
        now = self.world
        old = len(now.actors)
        idle = np.zeros(2 * old + 1, np.int64)
        idle[:old] = np.arange(2 * old - 1, old - 1, -1)
        idle[-1] = old
        self.world = now._replace(
            actors=np.pad(now.actors, ((0, old), (0, 0))), retrieved=np.pad(now.retrieved, ((0, old), (0, 0))),
            idle=idle, heap_ns=np.pad(now.heap_ns, (0, old)), heap_actor=np.pad(now.heap_actor, (0, old)),
        )  # fmt: skip

    def _grow_contexts(self) -> None:
        """Make room for longer conversations, or for more; only what is used is copied, so the rest takes no memory."""
        now, need = self.world, int(self.world.control[world.NEED])
        old, width = now.contexts.shape
        rows, idle = old, now.idle_contexts
        if need:
            width = max(need, 2 * width)
        else:
            rows = 2 * old
            idle = np.concatenate([np.arange(rows - 1, old - 1, -1), np.zeros(old, np.int64), np.array([old])])
        contexts = np.empty((rows, width), np.int32)
        used = now.actors[:, [world.CONTEXT, world.LENGTH]]
        if len(now.conversations):
            used = now.conversations[:, [world.C_CONTEXT, world.C_LENGTH]]
        for context, length in used[used[:, 1] > 0].tolist():
            contexts[context, :length] = now.contexts[context, :length]
        self.world = now._replace(contexts=contexts, idle_contexts=idle)

    def _grow_chain(self) -> None:
        """Make room for a longer prompt."""
        more = 2 * int(self.world.control[world.NEED])
        self.world = self.world._replace(chain=np.empty(more, np.int64), where=np.empty(more, np.int64))

    def stats(self) -> dict[str, Any]:
        """Return the counters of the simulation, as the metadata carries them."""
        first_ns = np.concatenate([*self._first_ns, np.zeros((0, 2), np.int64)]) if self.has_times else None
        return counters.stats(self.preset, self.world, first_ns)


def _sizes(preset: Preset, model: ModelShape, ranks: int) -> setup.Sizes:
    stored = stored_ranks(model, ranks)
    layers = -(-model.layers // preset.layers_per_object) if preset.layers_per_object else 1
    table = _piece_table(pieces(model, ranks), preset.chunk_tokens)
    if layers > 1 and len(table) > 1:
        raise ConfigError("layers_per_object needs a model whose layers are all alike: this one has several kinds")
    objects = 1 if preset.merge_ranks else stored
    parts, pad = objects * layers, preset.pad_bytes
    chunk_bytes = -(-int(table[:, world.PIECE_BYTES].sum()) // (parts * pad)) * pad * parts
    return setup.Sizes(bytes_per_token_per_rank(model, ranks) * stored, chunk_bytes, table, objects, layers)


def _piece_table(found: tuple[Piece, ...], chunk_tokens: int) -> Any:
    """Return what a chunk consists of, int64[pieces, 3]: bytes of all ranks, which kind, and its window in tokens."""
    kinds = list(PieceKind)
    rows = [(p.copies * p.size_bytes(chunk_tokens), kinds.index(p.kind), p.window_tokens or 0) for p in found]
    return np.array(rows, dtype=np.int64)
