"""Presets: the tiers, the cached objects, and their placement, promotion and eviction.

The preset `checkpoint` is a training run that saves and restores checkpoints, with no KV cache.
`knobs_of` lists the knobs of a preset with their types, defaults and meanings, which it reads from
the structs of this module.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import EnumType, StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import UNSET

from kvtrace.core.config import (
    Bounds,
    bounds_of,
    check_bounds,
    load_toml,
    nearest,
    override,
    to_struct,
)
from kvtrace.core.errors import ConfigError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.metadata import TierFacts
from kvtrace.core.units import INT64_MAX, parse_duration_ns
from kvtrace.llm.gpu_memory import GpuMemory
from kvtrace.llm.serving import ATTENTION, BATCH, COMPUTING, GPUS, Attention
from kvtrace.llm.shape import ModelShape
from kvtrace.requests.users import LoadDefaults, ServingMode, Workload, complaints_of_workload
from kvtrace.sim.policies import Policy
from kvtrace.sim.presets.tier import (
    LINK,
    MAX_TOKENS,
    SWITCHED,
    Admission,
    Bandwidth,
    FleetSetting,
    Recency,
    Scope,
    TierSetting,
    Tokens,
    bytes_of,
    complaints_of_fleet,
    complaints_of_tier,
)

MAX_TIERS = 8
PRESETS, GPU = Path(__file__).parent, "h100"
_Ns = Annotated[int, Bounds(0, 10**9)]


class Entry(StrEnum):
    """The kind of a cached object."""

    CHUNK = "chunk"
    """A fixed number of tokens, named by its prefix and shared by every request with that prefix.
    """
    TURN = "turn"
    """All new tokens of one turn of one conversation; never shared."""


class Match(StrEnum):
    """Which cached objects of its context a request may use."""

    PREFIX = "prefix"
    """The leading run: the first miss ends it, and the rest is computed again."""
    PREFIX_BY_TIER = "prefix-by-tier"
    """Likewise, but each tier in turn, the fastest first, is asked for the run that goes on where
    the one before it had a miss: behind a gap in a faster tier objects are read from a slower one,
    though the faster may hold them.
    """
    ANY = "any"
    """Whatever survives; what is missing is ignored, without I/O."""


class Placement(StrEnum):
    """The tiers that new objects are written to, which decides where evicted objects go."""

    WRITE_THROUGH = "write-through"
    """Into every tier at once. Each tier deletes evicted objects."""
    WRITE_BACK = "write-back"
    """Into the fastest tier that admits it.

    Objects that it evicts move to the tier below, unless that tier has them. The last tier deletes.
    """


class Promotion(StrEnum):
    """The rule by which a load copies an object to faster tiers."""

    NEVER = "never"
    """The object is read in place."""
    ALWAYS = "always"
    """The object is copied to every faster tier, and stays there until evicted."""
    SECOND_TOUCH = "second-touch"
    """As always, but only every second load copies."""
    TEMPORARY = "temporary"
    """The object is copied to the fastest tier only, not to the tiers between."""


class LayerGroups(StrEnum):
    """The objects of a chunk of a model that has several kinds of layers.

    With more than one, a request reads and promotes only those that it needs: of layers with a
    window or a state, the last chunks of what it loads.
    """

    ONE = "one"
    """One object, which has all layers."""
    KIND = "kind"
    """One for each kind: layers that attend to all tokens, those of each window, and states."""
    EQUAL = "equal"
    """Groups of equally many layers of one kind, as many as the kind with the fewest has: vLLM's.

    As `kind` if layers of different kinds have different sizes.
    """


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One caching stack's semantics, as a TOML file in `presets/` gives them."""

    description: str
    tiers: tuple[TierSetting, ...]
    entry: Entry
    """What one cached object holds."""
    chunk_tokens: Annotated[int, Bounds(1, MAX_TOKENS)] = 256
    """Tokens of a chunk; with entry=turn it has no meaning."""
    match: Match
    """Which cached objects of its context a request may use."""
    placement: Placement
    """Where new objects go, and so what happens to those that make room."""
    promotion: Promotion
    """Whether a load copies an object to faster tiers."""
    recency: Recency = Recency.HEAD_FIRST
    """In which order the objects of a request count as used, which is the order in which they are
    evicted.
    """
    exclusive: bool = False
    """What is promoted leaves the tier it was in.

    What another promotion of the same request demoted stays there.
    """
    demotion_keeps_age: bool = False
    """What is moved down to a tier of policy lru goes behind what was used there after it.

    Else it counts as new.
    """
    merge_ranks: bool = False
    """All tensor-parallel ranks share one object, instead of one each."""
    each_rank_stores: bool = False
    """A latent (MLA), the same on all ranks, is stored by each, in place of by one for all."""
    layers_per_object: Tokens = 0
    """Layers in one object; 0 is all of them."""
    layer_groups: LayerGroups = LayerGroups.ONE
    """The objects of a chunk of a model that has several kinds of layers."""
    partial_chunks: bool = False
    """The chunk that a prompt's end does not fill is stored, too, an object of its tokens.

    Found by the same prompt again, of no use to one that goes on. Needs a file whose requests name
    their blocks, and layers of one kind.
    """
    pad_bytes: Annotated[int, Bounds(1, 2**30)] = 1
    """Objects are rounded up to a multiple of this."""
    min_load_tokens: Tokens = 0
    """Fewer cached tokens than this below the fastest tier are not loaded but computed again."""
    min_lookup_tokens: Tokens = 0
    """A prompt with fewer tokens in whole chunks is not looked up below the fastest tier.

    What that tier lacks of it is computed again, whatever the others hold (LMCache's
    kv_load_policy, which decides before it knows what is cached).
    """
    recompute_last: bool = False
    """The object with the last token of a prompt is computed even if it is cached, since that token
    gives the first one of the answer: at most all tokens but one are hits.
    """
    offer_tokens: Tokens = 0
    """Prompt tokens that one step of the engine computes.

    Their objects are stored as that is done, before the next step, in stages of their own; 0 is all
    as the prompt is computed. In vLLM's presets `step_tokens`, if set.
    """
    offers_hits: bool = False
    """What was found cached is stored again in the slower tiers that do not have it.

    Not only what was computed.
    """
    skip_held: bool = False
    """What is computed again though a tier holds it is not stored again where it is missing, and
    does not count as used. Needs a tier that stages.
    """
    store_generated: bool = False
    """Store the chunks that generated tokens fill, too, in all tiers as the request ends.

    In GPU memory they are in any case. This applies to synthetic users only: files do not name the
    blocks of generated tokens.
    """
    decode_read_tokens: Tokens = 0
    """The turn's own entry is read once, and once more for each so many generated tokens.

    0 is never.
    """
    decode_reads_at_once: bool = False
    """These reads follow each other as decoding starts, and the tokens come after them.

    Not one as its tokens come.
    """
    prefill_only_from_tokens: Tokens = 0
    """Prompts with at least so many new tokens do not decode here; 0 is none."""
    gpu: str = GPU
    """What computes, by its name in `model/serving.py`; `instant` takes no time."""
    prefill_ns_per_token: _Ns = 0
    """Time to compute one prompt token that missed.

    By default what the model takes on the GPU, to which the next adds attention. Where this is said
    alone, a token takes so long, wherever in the prompt it is.
    """
    prefill_attention: tuple[Attention, ...] = ()
    """What attention adds.

    For each span of keys `{pair_fs = 60000, window_tokens = 4096}`, femtoseconds for each query and
    each key that it attends to, and the most of these; without a window, all before it.
    """
    prefill_in_turn: bool = True
    """One prompt is computed at a time, first come, first served.

    Not all at once, each as if it were alone.
    """
    decode_ns_per_token: _Ns = 0
    """Time of a decode step, which makes a token for each request of the batch.

    With a GPU to read all weights once, and the next three add what the batch takes. Where this is
    said alone, a step takes so long, whatever the batch.
    """
    decode_active_ns: _Ns = 0
    """Of a mixture of experts.

    Time to read what one token uses; a small batch reads no more. 0 is all.
    """
    decode_compute_ns: _Ns = 0
    """Time to compute each request's token of a step.

    A large batch takes this, if it is longer than reading.
    """
    decode_bandwidth: Bandwidth | None = None
    """Bytes a second at which a rank reads the batch's KV cache in each step, such as `2.3TB`.

    Without it no time.
    """
    step_tokens: Tokens = 0
    """Tokens of a step that computes a prompt, one for each request that decodes included
    (max_num_batched_tokens; by default vLLM's for the GPU): answers wait for the step, which reads
    their caches. In a first tier `gpu` a request begins once it fits beside those that run, whose
    blocks stay. 0: prompts and answers do not slow each other down.
    """
    load: LoadDefaults = LoadDefaults()
    fleet: FleetSetting = FleetSetting()
    workload: Workload = Workload()
    """What synthetic users share, and whether only prefill or only decode is here."""

    @property
    def decode_bytes_per_s(self) -> int:
        """`decode_bandwidth` in bytes a second; 0 without."""
        return bytes_of(self.decode_bandwidth) or 0

    @property
    def has_prefill(self) -> bool:
        """Tell whether prompts take time to compute."""
        return bool(self.prefill_ns_per_token or self.prefill_attention)

    @property
    def is_batched(self) -> bool:
        """Tell whether the time of a decode step depends on its batch."""
        return bool(
            self.decode_active_ns
            or self.decode_compute_ns
            or self.decode_bytes_per_s
            or self.step_tokens
        )

    @property
    def computing(self) -> JsonObject:
        """The knobs of computing, as `llm/serving.py` takes them."""
        knobs = {name: getattr(self, name) for name in ("prefill_in_turn", *COMPUTING, *BATCH)}
        attention = msgspec.to_builtins(self.prefill_attention, builtin_types=())
        return knobs | {ATTENTION: list(attention), "decode_bandwidth": self.decode_bytes_per_s}

    @property
    def gpu_bytes(self) -> int | None:
        """The capacity of the first tier if it is GPU memory, which holds running requests' blocks.

        None if it is not GPU memory or has no bound.
        """
        return self.tiers[0].capacity_bytes if self._has_gpu_memory else None

    @property
    def _has_gpu_memory(self) -> bool:
        """Tell whether the first tier is GPU memory, in which requests run."""
        top = self.tiers[0]
        is_gpu = top.name == "gpu" and top.policy is Policy.LRU and top.scope is Scope.NODE
        return is_gpu and not top.takes_whole

    @property
    def holds_answers(self) -> bool:
        """Tell whether generated tokens take room in the first tier, which is GPU memory then."""
        is_decoding = self.workload.mode is ServingMode.BOTH
        has_room = self._has_gpu_memory and self.tiers[0].capacity_bytes != 0
        return self.entry is Entry.CHUNK and is_decoding and has_room

    def memory_notes(self, model: ModelShape, ranks: int) -> list[str]:
        """Return a note if the capacity of tier `gpu` does not fit the memory of `ranks` GPUs
        together with the weights of `model`.
        """
        memory = self._gpu_memory(model)
        return [] if memory is None or self.gpu_bytes is None else memory.notes(ranks)

    def choose_ranks(self, model: ModelShape) -> tuple[int, list[str]]:
        """Return the tensor-parallel ranks of a user who names none, and a note if they are not 1."""
        memory = self._gpu_memory(model)
        return (1, []) if memory is None else memory.choose_ranks()

    def _gpu_memory(self, model: ModelShape) -> GpuMemory | None:
        """Return the memory of the preset's GPUs; None if their computing is not modelled."""
        if self.gpu not in GPUS or not self.step_tokens or not model.parameters:
            return None
        return GpuMemory(self.gpu, model, self.gpu_bytes or 0, self.each_rank_stores)

    def tier_list(self) -> list[TierFacts]:
        """Return the tiers in the form of the metadata."""
        tiers = [
            TierFacts(
                t.name,
                t.capacity_bytes,
                self.fleet.instance_nodes(t.scope),
                UNSET if t.stored_share == 1 else t.stored_share,
            )
            for t in self.tiers
        ]
        return [*tiers, TierFacts(LINK)] if self.fleet.is_disaggregated else tiers


def preset_names() -> list[str]:
    """Return the names of the shipped presets."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


_USUAL_PRESETS = {
    "dynamo": "kvbm",
    "lmcache": "lmcache-disk",
    "mooncake": "mooncake-store",
    "sglang": "sglang-hicache",
    "tensorrt-llm": "trtllm",
    "vllm": "vllm-fs",
}
"""The preset that the name of an engine stands for: what its users mean by offload to storage."""


def full_preset_name(name: str) -> str:
    """Return the preset that `name` stands for.

    It is a preset, an engine, or the beginning of one preset's name. Other names are returned as
    they are, such as that of a .toml file.

    >>> full_preset_name("lmcache"), full_preset_name("llm-d"), full_preset_name("mine.toml")
    ('lmcache-disk', 'llm-d-fs', 'mine.toml')
    """
    names = preset_names()
    if name in names or not name:
        return name
    if usual := _USUAL_PRESETS.get(name.lower()):
        return usual
    beginning = [candidate for candidate in names if candidate.startswith(name.lower())]
    return beginning[0] if len(beginning) == 1 else name


def load_preset(
    name: str,
    settings: Sequence[str] = (),
    gpu: str | None = None,
    times: Callable[[str], JsonObject] = lambda _gpu: {},
) -> Preset:
    """Return the preset called `name`, or of the TOML file at that path, with `settings` applied.

    `settings` are KEY=VALUE. `gpu` replaces the preset's GPU and its knobs of computing. `times`
    returns the modelled knobs of computing of a GPU, the defaults of those that neither the preset
    nor `settings` gives.
    """
    name = full_preset_name(name)
    path = Path(name) if name.endswith(".toml") else PRESETS / f"{name}.toml"
    if name == TRAINING:
        raise ConfigError(
            f"preset {name} models training checkpoints, not a KV cache: only kvtrace gen takes it"
        )
    if not path.is_file() and not name.endswith(".toml"):
        hint = nearest(name, preset_names()) or f"; use {', '.join(preset_names())}"
        raise ConfigError(f"unknown preset {name!r}{hint}, or a .toml file")
    tree = {"workload": {}, "load": {}, "fleet": {}, **_read(path)}
    tree.pop("basis", None)
    if gpu is not None:
        tree = {
            key: value for key, value in tree.items() if key not in (*COMPUTING, ATTENTION, *BATCH)
        } | {"gpu": gpu}
    tree = override(tree, settings)
    if isinstance(tree.get("gpu"), str):
        # Data sheets write H100: the same GPU, and so the same configuration.
        tree["gpu"] = tree["gpu"].lower()
    if not all(name in tree for name in COMPUTING):
        modelled = times(str(tree.get("gpu", GPU)))
        implied = (ATTENTION,) * (COMPUTING[0] in tree) + BATCH * (COMPUTING[1] in tree)
        tree = {name: value for name, value in modelled.items() if name not in implied} | tree
    preset = to_struct(tree, Preset, f"preset {name}")
    check(preset, name)
    is_ours = path.parent == PRESETS and not any(
        setting.startswith("offer_tokens") for setting in settings
    )
    if is_ours and preset.offer_tokens and preset.step_tokens:
        return msgspec.structs.replace(
            preset, offer_tokens=preset.step_tokens
        )  # an offer is what a step computed
    return preset


def _read(path: Path) -> JsonObject:
    """Return the tree of the TOML file at `path`, merged over that of its `base`, a shipped preset.

    Tiers of the same name are merged; new tiers come after those of the base.
    """
    own_tree = load_toml(path)
    base, listed = own_tree.pop("base", None), own_tree.get("tiers", [])
    if base is None:
        return own_tree
    if base not in preset_names() or not (
        isinstance(listed, list) and all(isinstance(tier, dict) for tier in listed)
    ):
        raise ConfigError(
            f"{path}: base: name one of {', '.join(preset_names())}, and give tiers as [[tiers]]"
        )
    base_tree = _read(PRESETS / f"{base}.toml")
    tiers: dict[str, JsonObject] = {}
    for tier in (*base_tree["tiers"], *listed):
        tiers[str(tier.get("name"))] = tiers.get(str(tier.get("name")), {}) | tier
    return base_tree | own_tree | {"tiers": list(tiers.values())}


def check(preset: Preset, name: str) -> None:
    """Raise ConfigError if a knob of the preset called `name` is out of bounds, or if knobs
    contradict each other.
    """
    check_bounds(preset, f"preset {name}")
    for complaint in _complaints(preset):
        raise ConfigError(f"preset {name}: {complaint}")


def _complaints(preset: Preset) -> Iterator[str]:
    """Yield the contradictions between the knobs of `preset`, its tiers, fleet and workload."""
    names = [t.name for t in preset.tiers]
    if not 1 <= len(names) <= MAX_TIERS:
        yield f"needs 1 to {MAX_TIERS} tiers, not {len(names)}"
    if len(set(names)) < len(names):
        yield f"tier names must differ: {', '.join(names)}"
    for tier in preset.tiers:
        yield from complaints_of_tier(tier)
    if preset.entry is Entry.TURN and (
        preset.pad_bytes > 1 or preset.layers_per_object or preset.partial_chunks
    ):
        yield "pad_bytes, layers_per_object and partial_chunks need entry=chunk"
    if preset.layer_groups is not LayerGroups.ONE and (
        preset.layers_per_object or any(t.staging for t in preset.tiers)
    ):
        yield "layer_groups excludes a tier with staging, and layers_per_object"
    if any(t.lease for t in preset.tiers) and preset.placement is not Placement.WRITE_THROUGH:
        yield "lease needs placement=write-through"
    if preset.partial_chunks and preset.min_load_tokens:
        yield "partial_chunks excludes min_load_tokens, which counts full chunks"
    if preset.entry is Entry.CHUNK and preset.match is Match.ANY:
        yield "a chunk that is missed would never be stored again: entry=chunk needs match=prefix"
    if preset.exclusive and preset.placement is Placement.WRITE_THROUGH:
        yield (
            "write-through puts an object into every tier, which is not exclusive: set"
            " placement=write-back"
        )
    yield from _complaints_of_whole_chunks(preset)
    yield from _complaints_of_offers(preset)
    yield from _complaints_of_queue(preset)
    yield from _complaints_of_staging(preset)
    yield from complaints_of_fleet(preset.fleet, preset.tiers)
    chunk_tokens = preset.chunk_tokens if preset.entry is Entry.CHUNK else 0
    yield from complaints_of_workload(
        preset.workload, chunk_tokens, stores_generated=preset.store_generated
    )


def _complaints_of_whole_chunks(preset: Preset) -> Iterator[str]:
    is_chunk = preset.entry is Entry.CHUNK
    is_share = any(tier.stored_share < 1 for tier in preset.tiers)
    if is_share and (not is_chunk or preset.partial_chunks):
        yield "stored_share needs entry=chunk, and chunks that are all whole (partial_chunks=false)"
    if preset.holds_answers and preset.tiers[0].stored_share < 1:
        yield "tiers.gpu.stored_share=1 is needed: what runs is whole in GPU memory"
    if preset.min_lookup_tokens and not is_chunk:
        yield "min_lookup_tokens counts whole chunks: it needs entry=chunk"


def _complaints_of_queue(preset: Preset) -> Iterator[str]:
    last, is_queued = preset.tiers[-1], any(tier.store_queue for tier in preset.tiers)
    if is_queued and (preset.placement is Placement.WRITE_BACK or len(preset.tiers) == 1):
        yield "store_queue needs placement=write-through and a tier above, from which it is stored"
    if any(tier.store_queue for tier in preset.tiers[:-1]):
        yield f"store_queue is only for the slowest tier, here {last.name}"
    if last.bucket_objects and (last.recency or preset.recency) is not Recency.HEAD_FIRST:
        yield "bucket_objects needs recency=head-first: a bucket has no head"
    if is_queued and any(tier.whole_offers for tier in preset.tiers):
        yield "whole_offers and store_queue exclude each other: leave one of them out"
    knob = f"tiers.{last.name}.request_writes"
    if is_queued and last.request_writes:
        yield f"{knob} is for a request's own writes: with store_queue, which has none, set it to 0"
    if last.bucket_objects and last.evict_every:
        reason = "evict_every evicts objects, and bucket_objects buckets"
        yield f"tiers.{last.name}: {reason}; leave one of the two out"


def _complaints_of_staging(preset: Preset) -> Iterator[str]:
    staging = [t for t in preset.tiers if t.staging]
    if any(t.loads_at_once or t.loads_share for t in staging) and not preset.prefill_in_turn:
        yield "loads_at_once and loads_share need prefill_in_turn=true: requests wait in its queue"
    if len(staging) > 1:
        yield f"one tier can stage, not {len(staging)}"
    if preset.skip_held and not staging:
        yield "skip_held needs a tier with staging=true"
    for tier in preset.tiers:
        name = f"tiers.{tier.name}"
        is_as_used = (tier.recency or preset.recency) in (
            Recency.HEAD_FIRST,
            Recency.TAIL_FIRST_AT_END,
        )
        for needed, is_so, fields in (
            (
                "placement=write-through",
                preset.placement is Placement.WRITE_THROUGH,
                ("staging", "evict_every"),
            ),
            ("entry=chunk", preset.entry is Entry.CHUNK, ("staging",)),
            (
                "recency=head-first or tail-first-at-end",
                is_as_used,
                ("loads_backwards", "stores_backwards"),
            ),
        ):
            yield from (
                f"{name}.{f} needs {needed}" for f in fields if getattr(tier, f) and not is_so
            )
        if tier.staging and (tier.admission is not Admission.ALWAYS or tier.store_queue):
            yield f"{name}.staging takes all at once: it excludes admission and store_queue there"
        if tier.evict_every and any(t.ttl is not None for t in preset.tiers):
            yield f"{name}.evict_every excludes policy=ttl"


def _complaints_of_offers(preset: Preset) -> Iterator[str]:
    is_through = preset.placement is Placement.WRITE_THROUGH
    staging, whole_offer_tiers = (
        any(t.staging for t in preset.tiers),
        [t for t in preset.tiers if t.whole_offers],
    )
    if preset.entry is not Entry.CHUNK and (preset.offer_tokens or preset.offers_hits):
        yield "offer_tokens and offers_hits need entry=chunk: a turn is stored whole"
    if preset.recompute_last and (preset.entry is not Entry.CHUNK or preset.match is Match.ANY):
        yield "recompute_last needs entry=chunk and a match of prefixes"
    if preset.offers_hits and not is_through:
        yield "offers_hits needs placement=write-through: written back, an object is in one tier"
    if preset.offers_hits and staging:
        yield "offers_hits excludes a tier with staging"
    if len(whole_offer_tiers) > 1:
        yield f"one tier can take whole offers, not {len(whole_offer_tiers)}"
    for tier in whole_offer_tiers:
        knob = f"tiers.{tier.name}.whole_offers"
        if not is_through:
            yield f"{knob} needs placement=write-through"
        if staging or tier.evict_every:
            yield f"{knob} excludes staging and evict_every here"
        if tier.admission is not Admission.ALWAYS:
            yield f"{knob} needs admission=always here"


_OMITTED_IF_OFF = (
    *("each_rank_stores", "offer_tokens", "offers_hits", "partial_chunks", "layer_groups"),
    "min_lookup_tokens",
    ATTENTION,
)


def as_config(preset: Preset) -> JsonObject:
    """Return `preset` as plain values, for the metadata.

    Knobs of features that are switched off are left out.
    """
    tree: JsonObject = msgspec.to_builtins(preset)
    if preset.fleet.nodes == 1:
        del tree["fleet"]
    for knob in _OMITTED_IF_OFF:
        if not tree[knob] or tree[knob] == LayerGroups.ONE:
            del tree[knob]
    for knob in ("user_kind", "think_time"):
        if tree["workload"][knob] is None:
            del tree["workload"][knob]
    off = msgspec.to_builtins(TierSetting(""))
    for tier in tree["tiers"]:
        for switch, knobs in SWITCHED.items():
            if tier[switch] == off[switch]:
                for knob in (switch, *knobs):
                    del tier[knob]
    return tree


_HIDDEN = {"description", "name"}


TRAINING = "checkpoint"
"""The preset of a training run. It has no file: its knobs are the fields of `Training`."""
DESCRIPTION = "a training run that saves checkpoints, and restores them after failures: no KV cache"
MOST_EVENTS = 1_000_000
_MOST_BYTES = 1024.0
"""Maximum bytes of a parameter."""
_Ranks = Annotated[int, Bounds(1, 32_767)]
_Duration = Annotated[str, Bounds(1, INT64_MAX, "> 0", parse_duration_ns)]


class WrittenBy(StrEnum):
    """The ranks that write a checkpoint."""

    SHARDED = "sharded"
    """Each rank writes an equal part, as fully sharded training does (ZeRO 3, FSDP)."""
    RANK0 = "rank0"
    """Rank 0 writes all, and reads all back for the others."""


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The properties of a training run that decide its checkpoint I/O."""

    ranks: _Ranks = 8
    """Processes of the training, one a GPU."""
    every: _Duration = "10min"
    """Training time from one save, or from a restart, to the next save."""
    mtbf: _Duration | None = None
    """Mean time between failures, of an exponential distribution; none: nothing fails."""
    restart: _Duration = "5min"
    """From a failure to the restore: the job is scheduled and started again."""
    keep: Annotated[int, Bounds(0, MOST_EVENTS)] = 2
    """Checkpoints kept; the oldest is deleted when a newer one is whole. 0: all."""
    placement: WrittenBy = WrittenBy.SHARDED
    """Who writes and reads."""
    weight_bytes: Annotated[
        float, Bounds(math.nextafter(0, 1), _MOST_BYTES, f"> 0, and at most {_MOST_BYTES}")
    ] = 2.0
    """Bytes a parameter of the weights: 2 in bf16."""
    optimizer_bytes: Annotated[float, Bounds(0, _MOST_BYTES)] = 12.0
    """Bytes a parameter of the optimizer's state.

    Adam's two moments and the weights once more, in fp32; 0: none.
    """
    parameters: Annotated[int, Bounds(0, 10**14)] = 0
    """Parameters of the model; 0: as its card says."""
    ranks_per_node: _Ranks = 8
    """Ranks of one host, for the trace's column `node`."""
    tier: str = "nvme"
    """The name of the tier that checkpoints lie on."""

    @property
    def every_ns(self) -> int:
        """The training time between saves, ns."""
        return parse_duration_ns(self.every)


def load_training(settings: Iterable[str], options: JsonObject) -> Training:
    """Return the training run of the `--set` settings and the given `options` (None: not given).

    Raises ConfigError for an unknown knob or an invalid value.
    """
    tree = override({}, settings) | {
        name: value for name, value in options.items() if value is not None
    }
    training = to_struct(tree, Training, f"preset {TRAINING}")
    check_bounds(training, f"preset {TRAINING}")
    if not training.tier or not training.tier.isprintable():
        raise ConfigError(f"preset {TRAINING}: tier={training.tier!r} is no name")
    return training


class Basis(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The evidence that a preset is based on. It is shown to users, and is not part of a trace."""

    engine: str
    version: str
    read: str
    """The source files of the engine that were read."""
    executed: str = "nothing: read only"
    """The comparisons with the running engine: what was run, when, and which results differ."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A parameter of a preset that `--set` can change."""

    name: str
    """As in `--set name=value`."""
    value: object
    """Its value in the preset."""
    default: object
    """Its value if the preset does not set it; null if it must be set, or is off by default."""
    type: str
    """Its values if they are a closed set, else int, float, bool, text, size or list."""
    least: float | None
    most: float | None
    """The bounds of its value; null if it has none, or another knob bounds it."""
    meaning: str


_TRAINING = Basis(
    engine="mixed-precision training",
    version="Adam",
    read=(
        "MLPerf Storage's checkpointing rules (Rules.md, table 2); sizes are held against it in"
        " docs/validation.md"
    ),
    executed="nothing: a trainer's files differ in number and name, not in their bytes",
)


def load_basis(name: str) -> Basis | None:
    """Return the evidence for the shipped preset called `name`; None if it has none."""
    if name == TRAINING:
        return _TRAINING
    tree = _read(PRESETS / f"{name}.toml").get("basis")
    return None if tree is None else to_struct(tree, Basis, f"preset {name}: basis")


def knobs_of(name: str) -> list[Knob]:
    """Return the knobs of the preset called `name`: its own, then those of its tiers.

    Raises ConfigError if there is no such preset.
    """
    if name == TRAINING:
        return list(_knobs("", Training(), Training))
    preset = load_preset(name)
    knobs = list(_knobs("", preset, Preset))
    for tier in preset.tiers:
        knobs += _knobs(f"tiers.{tier.name}.", tier, TierSetting)
    for field in ("workload", "load", "fleet"):
        inner = getattr(preset, field)
        knobs += _knobs(f"{field}.", inner, type(inner))
    return knobs


def _knobs(prefix: str, holder: msgspec.Struct, kind: type[msgspec.Struct]) -> Iterator[Knob]:
    source = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    [body] = (node.body for node in source.body if isinstance(node, ast.ClassDef))
    # The text behind a field is the meaning of the knob.
    meanings = {
        ast.unparse(declaration.target): " ".join(ast.literal_eval(text.value).split())
        for declaration, text in pairwise(body)
        if isinstance(declaration, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    for field in msgspec.structs.fields(kind):
        value = getattr(holder, field.name)
        if field.name in _HIDDEN or isinstance(value, msgspec.Struct) or field.name == "tiers":
            continue
        default = None if field.default is msgspec.NODEFAULT else field.default
        bounds = bounds_of(kind).get(field.name)
        minimum, maximum = (
            (bounds.minimum, bounds.maximum) if bounds and not bounds.words else (None, None)
        )
        yield Knob(
            prefix + field.name,
            value,
            default,
            _type(field.type),
            minimum,
            maximum,
            meanings.get(field.name, ""),
        )


def _type(kind: object) -> str:
    """Return the name of a type for users.

    For a closed set it lists the values.
    """
    if isinstance(kind, EnumType):
        return " | ".join(kind)
    alternatives = [
        alternative
        for alternative in getattr(kind, "__args__", (kind,))
        if alternative is not type(None)
    ]
    if getattr(kind, "__origin__", None) is tuple:
        return "list"
    if set(alternatives) == {str, int}:
        return "size"
    names = {str: "text", int: "int", float: "float", bool: "bool"}
    return " | ".join(
        names[alternative] if alternative in names else _type(alternative)
        for alternative in alternatives
    )


def description_of(name: str) -> str:
    """Return the description of the preset called `name`; ConfigError if there is none."""
    return DESCRIPTION if name == TRAINING else load_preset(name).description


def listing() -> list[JsonObject]:
    """Return the name, description and evidence of every shipped preset; that of training is last."""
    return [
        {"name": name, "description": description_of(name), **msgspec.to_builtins(load_basis(name))}
        for name in (*preset_names(), TRAINING)
    ]


class PresetInfo(msgspec.Struct, frozen=True):
    """The engine that a preset imitates, and the version that it was read from."""

    name: str
    description: str
    engine: str | None = None
    version: str | None = None
    """The version of the engine whose code was read."""


def presets() -> list[PresetInfo]:
    """Return the presets that kvtrace ships, by name; that of training checkpoints is the last.

    Examples:
        >>> import kvtrace as kt
        >>> next(preset.name for preset in kt.presets() if preset.engine == "LMCache")
        'lmcache-disk'
    """
    names = (*preset_names(), TRAINING)
    bases = {name: load_basis(name) for name in names}
    return [
        PresetInfo(
            name,
            description_of(name),
            None if (basis := bases[name]) is None else basis.engine,
            None if basis is None else basis.version,
        )
        for name in names
    ]
