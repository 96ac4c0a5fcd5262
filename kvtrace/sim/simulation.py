"""Run a simulation in virtual time and stream what it does: requests in, trace rows out, counters at the end.

Its memory does not grow with the rows. A chunk that may still be asked for takes 8 bytes, and while it is live in a
tier that may delete it 40, and 8 a tier, more (24 a tier more if any policy is not LRU), with an eighth of that for
room to grow. In a fleet that is 60, and 8 a tier, for the chunk and for each node that has it; 8 in all again while
only one node has it, in a tier that deletes nothing. An entry of a turn takes all of that as long as it may be asked
for; so does any chunk with decode reads, and with the policies s3fifo and arc, with which every block of a file
counts as one that may still be asked for. Where a tier has an admission filter, each object ever named takes 8 bytes
a tier. Requests of a file take about 100 bytes a request, 4 a reference to a block, and 12 a distinct block; where
turns follow, 60 more a request and 60 a wait.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvtrace.core.errors import ConfigError
from kvtrace.core.native.library import StructAt, function, held_back
from kvtrace.core.statistics import QUANTILES, nearest_rank
from kvtrace.model.shape import ModelShape
from kvtrace.native import records
from kvtrace.native.records import EVENT, WAIT, World
from kvtrace.requests.users import library_of
from kvtrace.sim import fleet, setup
from kvtrace.sim.fleet import IncidentCounters
from kvtrace.sim.policies import Policy
from kvtrace.sim.presets.preset import Entry, Preset
from kvtrace.sim.presets.tier import Admission, TierSetting
from kvtrace.sim.setup import FOREVER_NS, Load

ROWS = 1 << 18
_CONTEXTS = 1 << 12
"""Moved at a time."""
_FEW = 1 << 18
"""Up to so many slots, tables double; from there on they grow by an eighth: their pages are moved, not copied."""
_simulate = function("simulate", StructAt)
_ASK = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_int64, ctypes.c_int64)
SPARE = 2
"""Buffers of so many rows that are kept to be used again."""


@dataclass(frozen=True, slots=True)
class Flush:
    """The output of the simulation since the last flush; the receiver may keep the arrays."""

    rows: dict[str, Any]
    """Trace rows, an array a column of world.h's RowColumns; request and stage NONE for background work."""
    object_bytes: Any
    """int64: sizes of the next objects, one rank's bytes each, `ranks` objects a slot."""
    is_other: Any
    """int8 beside `object_bytes`: 1 for buckets and the files beside them; None if none ever are."""
    log: Any
    """Requests of users, records.ASKED."""
    now_ns: int

    @property
    def capacity_rows(self) -> int:
        """The number of rows that the arrays' memory holds."""
        times = self.rows["ts_ns"]
        return len(times if times.base is None else times.base)


Sink = Callable[[Flush], None]
"""Takes the output of a simulation, flush by flush; the simulation goes on when it returns."""


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
        self._tables = setup.GrowableTables()
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
        self._incidents_seen = IncidentCounters(load.incidents, preset.fleet, [tier.name for tier in preset.tiers])

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
        failed: list[BaseException] = []

        def flush(_need: int) -> None:
            sink(self._flush())
            progress(float(self.now_ns))

        asked: dict[int, Callable[[int], None]] = {
            records.FLUSH: flush,
            records.MORE_SLOTS: self._grow_slots,
            records.MORE_ACTORS: self._grow_actors,
            records.MORE_CONTEXTS: self._grow_contexts,
            records.WIDER_CONTEXTS: self._widen_contexts,
            records.LONGER_CHAIN: self._grow_chain,
            records.MORE_COUNTS: self._grow_counts,
            records.MORE_PLACES: lambda _need: fleet.grow_places(self.world),
        }

        def answer(what: int, need: int) -> bool:
            try:
                asked[what](need)
            except BaseException as error:  # noqa: BLE001 - C ends first: what was raised goes on behind it
                failed.append(error)
            return not (failed or signals)

        ask = _ASK(answer)
        self.world.ask = ctypes.cast(ask, ctypes.c_void_p).value
        with held_back() as signals:
            _simulate(self.world)
        if failed:
            raise failed[0]
        flush(0)

    def _flush(self) -> Flush:
        now, control = self.world, self.world.control
        made, logged, rows = (int(control[name]) for name in ("made", "logged", "rows"))
        capacity = len(now.rows.ts_ns)
        if rows < capacity // 2:
            columns = {name: column[:rows].copy() for name, column in now.rows.arrays.items()}
        else:
            columns = {name: column[:rows] for name, column in now.rows.arrays.items()}
            if self._spare:
                for name, column in self._spare.popleft().items():
                    setattr(now.rows, name, column)
            else:
                setup.make_rows(now.rows, capacity)
        sizes = np.repeat(now.made_size[:made] // self.parts, self.parts)
        is_other = np.repeat(now.made_kind[:made], self.parts) if now.knobs.bucketed else None
        if now.knobs.bucketed:
            columns["offset_bytes"] = now.row_offsets[:rows]
            now.row_offsets = np.zeros(capacity, np.int64)
            now.made_kind = np.zeros(len(now.made_size), np.int8)
        if now.fleet.count > 1:
            columns["node"] = now.fleet.row_nodes[:rows]
            now.fleet.row_nodes = np.empty(capacity, np.int32)
        flush = Flush(columns, sizes, is_other, now.log[:logged].copy(), self.now_ns)
        if self.has_times:
            self._first_tokens.append(now.first_token[: control["answered"]].copy())
        if len(now.found):
            self._incidents_seen.see(columns, now.found[: control["found"]])
        for name in ("made", "logged", "answered", "rows", "found"):
            control[name] = 0
        return flush

    def give_back(self, flush: Flush) -> None:
        """Take the arrays of `flush` to write later rows into: new ones cost a page fault for each 4 KiB."""
        if flush.capacity_rows == len(self.world.rows.ts_ns) and len(self._spare) < SPARE:
            self._spare.append({name: flush.rows[name].base for name in self.world.rows.arrays})

    def _grow_slots(self, need: int) -> None:
        """Double a few slots, or add an eighth of many, or as many as are needed; the new ones are free."""
        now, control = self.world, self.world.control
        old, count, tiers = len(now.slots), int(control["free"]), len(now.tiers)
        more = max(min(old, _FEW), old // 8, need)
        self._tables.extend(now, "free", more)
        now.free[count : count + more] = np.arange(old + more - 1, old - 1, -1)
        control["free"] = count + more
        for name in ("slots", "loose"):
            self._tables.extend(now, name, more)
        for name in ("members", "ages", "pins"):
            if len(getattr(now, name)):
                self._tables.extend(now, name, more)
        setup.unlink(self._tables.extend(now, "links", more * tiers))
        if len(now.notes):
            setup.unnote(self._tables.extend(now, "notes", more * tiers))
        if now.fleet.scoped:
            fleet.forget_copies(self._tables.extend(now.fleet, "copies", more))

    def _grow_actors(self, _need: int) -> None:
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

    def _grow_contexts(self, _need: int) -> None:
        """Make room for twice as many conversations."""
        now = self.world
        old = len(now.contexts) // now.knobs.context_width
        now.idle_contexts = np.concatenate([np.arange(2 * old - 1, old - 1, -1), np.zeros(old, np.int64)])
        now.control["idle_contexts"] = old
        self._move_contexts(2 * old, now.knobs.context_width)

    def _widen_contexts(self, need: int) -> None:
        """Make room for longer conversations."""
        width = self.world.knobs.context_width
        self._move_contexts(len(self.world.contexts) // width, max(need, 2 * width))

    def _move_contexts(self, rows: int, width: int) -> None:
        """Lay contexts out anew; only what is used is copied, so the rest takes no memory."""
        now = self.world
        before = now.contexts.reshape(-1, now.knobs.context_width)
        now.knobs.context_width = width
        contexts = setup.new_contexts(rows * width).reshape(rows, width)
        used = now.conversations if len(now.conversations) else now.actors
        used = used[["context", "length"]][used["length"] > 0]
        for first in range(0, len(used), _CONTEXTS):
            part = used[first : first + _CONTEXTS]
            of, place = np.repeat(part["context"], part["length"]), _places(part["length"])
            entries = contexts[of, place] = before[of, place]
            is_slot = entries >= 0
            now.slots["home"][entries[is_slot]] = (of * width + place)[is_slot]
        now.contexts = contexts.reshape(-1)

    def _grow_chain(self, need: int) -> None:
        """Make room for a longer prompt."""
        self.world.chain, self.world.where = np.empty(2 * need, np.int64), np.empty(2 * need, np.int8)

    def _grow_counts(self, need: int) -> None:
        """Make room to count half as many objects more, or as many as are needed."""
        now = self.world
        count = max(need, len(now.frequencies) * 3 // 2)
        if len(now.fleet.counted):
            fleet.grow_counts(now, count)
            return
        frequencies = np.zeros(count, records.SEEN)
        frequencies[: len(now.frequencies)] = now.frequencies
        now.frequencies = frequencies

    def stats(self) -> dict[str, Any]:
        """Return the counters of the simulation, as the metadata carries them."""
        none = np.zeros(0, records.FIRST_TOKEN)
        return stats(
            self.preset, self.world, np.concatenate([*self._first_tokens, none]) if self.has_times else None
        ) | self._incidents_seen.stats(self.now_ns if self.load.until_ns == FOREVER_NS else self.load.until_ns)


def _places(lengths: Any) -> Any:
    """Return 0, 1, … up to each of `lengths`, one after the other."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)


def stats(preset: Preset, world: World, first_tokens: Any) -> dict[str, Any]:
    """Return the counters; `first_tokens`, records.FIRST_TOKEN, are times to the first token, or None."""
    total, tiers, first_token = world.total, fleet.summed(world), None
    if first_tokens is not None:
        with_cache, without_cache = (quantiles_ns(first_tokens[f"{kind}_cache_ns"]) for kind in ("with", "without"))
        first_token = {"requests": len(first_tokens), "with_cache": with_cache, "without_cache": without_cache}
    lookups, decoded, prefills = (int(total[name]) for name in ("lookups", "decoded_tokens", "prefills"))
    counted = ("hit_bytes", "read_bytes", "written_bytes", "populated_bytes", "deleted_bytes")
    per_tier = [
        {"name": tier.name, "hits": int(of["hits"]), "hit_ratio": _ratio(of["hits"], lookups)}
        | {name: int(of[name]) for name in counted}
        | {"live_bytes": int(of["used"])}
        | (
            {}
            if tier.admission is Admission.ALWAYS
            else {"refused_objects": int(of["refused"]), "refused_bytes": int(of["refused_bytes"])}
        )
        | ({"file_lookups": int(of["looked_up"])} if tier.looks_past_miss else {})
        | _waited(tier, of)
        | ({} if tier.bucket_gc is None else {"collected_bytes": int(of["collected_bytes"])})
        | fleet.share(preset.fleet, tier.scope)
        for tier, of in zip(preset.tiers, tiers, strict=True)
    ]
    return {
        **{name: int(total[name]) for name in ("requests", "input_tokens", "output_tokens", "lookups", "lookup_bytes")},
        "misses": lookups - int(tiers["hits"].sum()),
        "prompts": _shared(total, preset.workload.prompt_share, "prompt"),
        "documents": _shared(total, preset.workload.rag_share, "document"),
        "prefill": {
            "requests": prefills,
            "mean_wait_ns": round(int(total["waiting_ns"]) / prefills) if prefills else None,
        },
        "decode": {
            "tokens": decoded,
            "mean_ns_per_token": round(int(total["decoding_ns"]) / decoded) if decoded else None,
        },
        "decode_misses": int(total["decode_misses"]),
        "unplaced_objects": int(total["unplaced"]),
        **_offers(preset, total),
        **({"stalled_requests": int(total["stalled"])} if any(tier.loads_whole for tier in preset.tiers) else {}),
        "first_token": first_token,
        "tiers": per_tier,
        **fleet.stats(preset.fleet, world),
    }


def _waited(tier: TierSetting, of: Any) -> dict[str, int]:
    """Return what was offered to the tier's queue and not stored; nothing if it has none."""
    if not tier.store_queue:
        return {}
    names = ("dropped", "dropped_bytes", "lost", "lost_bytes")
    dropped, dropped_bytes, lost, lost_bytes = (int(of[name]) for name in names)
    return {
        "dropped_objects": dropped,
        "dropped_bytes": dropped_bytes,
        "lost_objects": lost,
        "lost_bytes": lost_bytes,
        "waiting_objects": int(of["waiting"]),
    }


def _ratio(part: int, whole: int) -> float | None:
    return int(part) / int(whole) if whole else None


def _shared(total: Any, share: float, kind: str) -> dict[str, Any] | None:
    """Return the look-ups of shared objects, which all look-ups include; null if the workload has none."""
    if not share:
        return None
    lookups, hits = int(total[f"{kind}_lookups"]), int(total[f"{kind}_hits"])
    return {"lookups": lookups, "hits": hits, "hit_ratio": _ratio(hits, lookups)}


def _offers(preset: Preset, total: Any) -> dict[str, Any]:
    """Return how often a tier that takes all or nothing was offered something, and refused it; nothing without one."""
    if not any(tier.whole_offers and tier.policy is Policy.LRU for tier in preset.tiers):
        return {}
    names = {"count": "offers", "refused": "refused_offers", "refused_objects": "refused_objects"}
    return {"offers": {name: int(total[column]) for name, column in names.items()}}


def quantiles_ns(times: Any) -> dict[str, int | None]:
    """Return the quantiles of all `times`, ns, each a time that occurred; null where there are too few for it."""
    ordered = np.sort(times)
    return {
        f"{name}_ns": int(ordered[rank - 1]) if (rank := nearest_rank(len(ordered), part)) else None
        for name, part in QUANTILES.items()
    }
