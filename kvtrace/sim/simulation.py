"""Run a simulation in virtual time and stream what it does: requests in, trace rows out, counters at the end.

Its memory does not grow with the rows. A chunk that may still be asked for takes 8 bytes, and while it is live in a
tier that may delete it 40, and 8 a tier, more (24 a tier more if any policy is not LRU), with at most half as much
again for room to grow. An entry of a turn takes all of that as long as it may be asked for; so does any chunk with
decode reads, and with the policies s3fifo and arc, with which every block of a file counts as one that may still be
asked for. Where a tier has an admission filter, each object ever named takes 8 bytes a tier. Requests of a file take
about 100 bytes a request, 4 a reference to a block, and 12 a distinct block; where turns follow, 60 more a request and
60 a wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kvtrace.core.errors import ConfigError
from kvtrace.model.shape import ModelShape
from kvtrace.sim import counters, empty, loop, records, setup
from kvtrace.sim.events import EVENT, WAIT
from kvtrace.sim.fleet import start
from kvtrace.sim.fleet.around import Around
from kvtrace.sim.presets.preset import Entry, Preset
from kvtrace.sim.setup import FOREVER_NS, Load
from kvtrace.users.workload import library_of

__all__ = ["FOREVER_NS", "Flush", "Load", "Simulation", "Sink"]

ROWS = 1 << 18
_CONTEXTS = 1 << 12
"""Moved at a time."""
SPARE = 2
"""Buffers of so many rows that are kept to be used again."""


@dataclass(frozen=True, slots=True)
class Flush:
    """What the simulation made since the last flush; the arrays are the taker's to keep."""

    rows: dict[str, Any]
    """Trace rows, an array a column of records.RowColumns; request and stage NONE for background work."""
    object_bytes: Any
    """int64: sizes of the next objects, one rank's bytes each, `ranks` objects a slot."""
    is_other: Any
    """int8 beside `object_bytes`: 1 for buckets and the files beside them; None if none ever are."""
    log: Any
    """Requests of users, events.ASKED."""
    now_ns: int

    @property
    def room(self) -> int:
        """How many rows the memory of the arrays has room for."""
        times = self.rows["ts_ns"]
        return len(times if times.base is None else times.base)


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
        self._first_tokens: list[Any] = []
        self._rooms = empty.Rooms()
        self._spare: deque[dict[str, Any]] = deque()
        self._sizes = setup.sizes_of(preset, model, ranks)
        self.library = library_of(
            preset.workload,
            load.users,
            model.layers,
            self.bytes_per_token,
            is_turn=preset.entry is Entry.TURN,
            seed=load.seed,
        )
        self.world = setup.make(preset, model, load, self.library, self._sizes, rows)
        self._around = Around(load.incidents, preset.fleet, [tier.name for tier in preset.tiers])

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
        return int(self.world.control["now"])

    def arrivals(self) -> tuple[Any, Any] | None:
        """Return which requests of the file arrived, in order, and when, ns; None if all arrive at their times."""
        if self.load.waits is None:
            return None
        came = self.world.following.came[: self.world.control["arrived"]]
        return came["actor"], came["when"]

    @property
    def requests(self) -> int:
        """How many requests were looked up so far."""
        return int(self.world.total["requests"])

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
        setup.set_policies(self.world, [tier.policy for tier in self.preset.tiers])
        for code in self._codes():
            if code in (records.DONE, records.ROWS_FULL):
                sink(self._flush())
                progress(float(self.now_ns))

    def _codes(self) -> Iterator[int]:
        make_room = {
            records.SLOTS_FULL: self._grow_slots,
            records.ACTORS_FULL: self._grow_actors,
            records.CONTEXTS_FULL: self._grow_contexts,
            records.CHAIN_FULL: self._grow_chain,
            records.FREQUENCIES_FULL: self._grow_frequencies,
        }
        while True:
            code = loop.run(self.world)
            yield code
            if code == records.DONE:
                return
            if code in make_room:
                make_room[code]()

    def _flush(self) -> Flush:
        now, control = self.world, self.world.control
        made, logged, rows = (int(control[name]) for name in ("made", "logged", "rows"))
        # Larger buffers, if one request needs more than they hold.
        need, room = int(control["need"]), len(now.rows.ts_ns)
        if rows < room // 2 and room >= need:
            columns = {name: column[:rows].copy() for name, column in now.rows.arrays.items()}
        else:
            columns = {name: column[:rows] for name, column in now.rows.arrays.items()}
            if room >= need and self._spare:
                now.rows.use(self._spare.popleft())
            else:
                now.rows.room_for(room if room >= need else need + need // 4)
        sizes = np.repeat(now.made_size[:made] // self.parts, self.parts)
        is_other = np.repeat(now.made_kind[:made], self.parts) if now.knobs.bucketed else None
        if len(now.made_size) < need:
            now.made_size = np.empty(need + need // 4, np.int64)
        if now.knobs.bucketed:
            columns["offset_bytes"] = now.row_offsets[:rows]
            now.row_offsets = np.zeros(len(now.rows.ts_ns), np.int64)
            now.made_kind = np.zeros(len(now.made_size), np.int8)
        if now.fleet.count > 1:
            columns["node"] = now.fleet.row_nodes[:rows]
            now.fleet.row_nodes = np.empty(len(now.rows.ts_ns), np.int32)
        flush = Flush(columns, sizes, is_other, now.log[:logged].copy(), self.now_ns)
        if self.has_times:
            self._first_tokens.append(now.first_token[: control["answered"]].copy())
        if len(now.found):
            self._around.see(columns, now.found[: control["found"]])
        for name in ("made", "logged", "answered", "rows", "found"):
            control[name] = 0
        return flush

    def give_back(self, flush: Flush) -> None:
        """Take the arrays of `flush` to write later rows into: new ones cost a page fault for each 4 KiB."""
        if flush.room == len(self.world.rows.ts_ns) and len(self._spare) < SPARE:
            self._spare.append({name: flush.rows[name].base for name in self.world.rows.arrays})

    def _grow_slots(self) -> None:
        """Add half as many slots, or as many as are needed; the new ones are free."""
        now, control = self.world, self.world.control
        old, count, tiers = len(now.slots), int(control["free"]), len(now.tiers)
        more = max(old // 2, int(control["need"]))
        self._rooms.extend(now, "free", more)
        now.free[count : count + more] = np.arange(old + more - 1, old - 1, -1)
        control["free"] = count + more
        for name in ("slots", "loose"):
            self._rooms.extend(now, name, more)
        for name in ("members", "ages", "pins"):
            if len(getattr(now, name)):
                self._rooms.extend(now, name, more)
        empty.unlink(self._rooms.extend(now, "links", more * tiers))
        if len(now.notes):
            empty.unnote(self._rooms.extend(now, "notes", more * tiers))
        if now.fleet.scoped:
            start.forget_copies(self._rooms.extend(now.fleet, "copies", more))
            start.grow_places(now)

    def _grow_actors(self) -> None:
        """Double the requests that may be in flight; the new ones are idle."""
        now = self.world
        old = len(now.actors)
        idle = np.zeros(2 * old, np.int64)
        idle[:old] = np.arange(2 * old - 1, old - 1, -1)
        now.idle, now.control["idle"] = idle, old
        now.actors = np.concatenate([now.actors, np.zeros(old, records.ACTOR)])
        now.heap = np.concatenate([now.heap, np.zeros(old, EVENT)])
        now.decoding = np.concatenate([now.decoding, np.zeros(old, WAIT)])
        now.retrieved = np.zeros(2 * len(now.retrieved), np.int64)

    def _grow_contexts(self) -> None:
        """Make room for longer conversations, or for more; only what is used is copied, so the rest takes no memory."""
        now, need = self.world, int(self.world.control["need"])
        width = now.knobs.context_width
        before = now.contexts.reshape(-1, width)
        old = rows = len(before)
        if need:
            now.knobs.context_width = max(need, 2 * width)
        else:
            rows = 2 * old
            now.idle_contexts = np.concatenate([np.arange(rows - 1, old - 1, -1), np.zeros(old, np.int64)])
            now.control["idle_contexts"] = old
        contexts = empty.new_contexts(rows * now.knobs.context_width).reshape(rows, -1)
        used = now.conversations if len(now.conversations) else now.actors
        used = used[["context", "length"]][used["length"] > 0]
        for first in range(0, len(used), _CONTEXTS):
            part = used[first : first + _CONTEXTS]
            of, place = np.repeat(part["context"], part["length"]), _places(part["length"])
            entries = contexts[of, place] = before[of, place]
            is_slot = entries >= 0
            now.slots["home"][entries[is_slot]] = (of * now.knobs.context_width + place)[is_slot]
        now.contexts = contexts.reshape(-1)

    def _grow_chain(self) -> None:
        """Make room for a longer prompt."""
        more = 2 * int(self.world.control["need"])
        self.world.chain, self.world.where = np.empty(more, np.int64), np.empty(more, np.int8)

    def _grow_frequencies(self) -> None:
        """Make room for half as many objects more, or as many as are needed."""
        now = self.world
        room = max(int(now.control["need"]), len(now.frequencies) * 3 // 2)
        if len(now.fleet.counted):
            start.grow_counts(now, room)
            return
        frequencies = np.zeros(room, records.SEEN)
        frequencies[: len(now.frequencies)] = now.frequencies
        now.frequencies = frequencies

    def stats(self) -> dict[str, Any]:
        """Return the counters of the simulation, as the metadata carries them."""
        none = np.zeros(0, records.FIRST_TOKEN)
        return counters.stats(
            self.preset, self.world, np.concatenate([*self._first_tokens, none]) if self.has_times else None
        ) | self._around.stats(self.now_ns if self.load.until_ns == FOREVER_NS else self.load.until_ns)


def _places(lengths: Any) -> Any:
    """Return 0, 1, … up to each of `lengths`, one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
