"""What a preset says: the tiers, what an entry is, where it is placed, promoted and evicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from kvtrace.core.config import load_toml, override, to_struct
from kvtrace.core.errors import ConfigError
from kvtrace.core.metadata import TierFacts
from kvtrace.core.units import parse_bytes, parse_duration_ns
from kvtrace.sim.policies.policies import Policy
from kvtrace.users.workload import Workload
from kvtrace.users.workload import check as check_workload

PRESETS = Path(__file__).with_name("presets")
MAX_TIERS = 8
# With these, what is computed from a preset still fits 64 bits.
MAX_CAPACITY_BYTES = 2**61
MAX_TOKENS = 2**31 - 1
BYTES_PER_US = 10**6
MAX_NS_PER_TOKEN = 10**9
MAX_TTL_NS = 2**61
GPU = "h100"
COMPUTING = ("prefill_ns_per_token", "decode_ns_per_token")
MAX_PAD_BYTES = 2**30
MAX_LATENCY_NS = 10**12


class Entry(StrEnum):
    """What one cached object holds."""

    CHUNK = "chunk"
    """A fixed number of tokens, named by its prefix and shared by every request with that prefix."""
    TURN = "turn"
    """All new tokens of one turn of one conversation; never shared."""


class Match(StrEnum):
    """Which cached objects of its context a request may use."""

    PREFIX = "prefix"
    """The leading run: the first miss ends it, and the rest is computed again."""
    ANY = "any"
    """Whatever survives; what is missing is ignored, without I/O."""


class Placement(StrEnum):
    """Where new objects go, and so what happens to those that make room."""

    WRITE_THROUGH = "write-through"
    """Into every tier at once; each tier deletes by itself."""
    WRITE_BACK = "write-back"
    """Into the fastest tier that takes it; what it displaces moves down unless the tier below has it already, and
    off the end. A KV object never changes once written, so write-on-evict is the same."""


class Promotion(StrEnum):
    """Whether a load copies an object to faster tiers."""

    NEVER = "never"
    """It is read in place."""
    ALWAYS = "always"
    """To every faster tier, where it stays until evicted."""
    SECOND_TOUCH = "second-touch"
    """As always, but every second load only."""
    TEMPORARY = "temporary"
    """To the fastest tier only: tiers between do not keep it."""


class TierSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tier of a preset; without a capacity it has no bound."""

    name: str
    capacity: str | int | None = None
    high_watermark: float = 1.0
    """How full it gets, as a share of its capacity, before it makes room."""
    low_watermark: float | None = None
    """How far it then goes down; by default only as far as it must."""
    max_object_fraction: float = 1.0
    """The largest object it takes, as a share of its capacity."""
    policy: Policy = Policy.LRU
    """Which object it gives up to make room."""
    ttl: str | None = None
    """With policy ttl: how long an object stays after it was written, such as `10m`."""
    read_bandwidth: str | int | None = None
    """Bytes a second, such as `7GB`; without it reads take no time."""
    write_bandwidth: str | int | None = None
    latency: str | None = None
    """Of one operation, such as `80us`; counted only beside a bandwidth."""
    concurrency: int = 0
    """Operations it serves at once, which bounds their rate by the latency; 0 is unbounded."""

    @property
    def capacity_bytes(self) -> int | None:
        """The capacity in bytes; null without a bound."""
        return _bytes(self.capacity)

    @property
    def rates_bytes_per_s(self) -> tuple[int, int]:
        """Read and write bytes a second; 0 where the model has none."""
        return _bytes(self.read_bandwidth) or 0, _bytes(self.write_bandwidth) or 0

    @property
    def ttl_ns(self) -> int:
        """How long an object stays, ns; 0 is for as long as there is room."""
        return parse_duration_ns(self.ttl) if self.ttl is not None else 0

    @property
    def latency_ns(self) -> int:
        """The latency of one operation, ns."""
        return parse_duration_ns(self.latency) if self.latency else 0


def _bytes(value: str | int | None) -> int | None:
    return parse_bytes(value) if isinstance(value, str) else value


class LoadDefaults(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a locked benchmark prescribes; `gen` uses it where the command line says nothing."""

    model: str | None = None
    users: int | None = None
    duration: str | None = None


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One caching stack's semantics, as a TOML file in `presets/` gives them."""

    description: str
    tiers: tuple[TierSetting, ...]
    entry: Entry
    chunk_tokens: int = 256
    match: Match
    placement: Placement
    promotion: Promotion
    exclusive: bool = False
    """What is promoted leaves the tier it was in. What another promotion of the same request demoted stays there."""
    demotion_keeps_age: bool = False
    """What is moved down to a tier of policy lru goes behind what was used there after it; else it counts as new."""
    merge_ranks: bool = False
    """All tensor-parallel ranks share one object, instead of one each."""
    layers_per_object: int = 0
    """Layers in one object; 0 is all of them."""
    pad_bytes: int = 1
    """Objects are rounded up to a multiple of this."""
    min_load_tokens: int = 0
    """Fewer cached tokens than this below the fastest tier are not loaded but computed again."""
    store_generated: bool = False
    """Chunks that generated tokens fill are stored too (synthetic users only: files name no such blocks)."""
    decode_read_tokens: int = 0
    """The turn's own entry is read once, and once more for each so many generated tokens; 0 is never."""
    decode_reads_at_once: bool = False
    """These reads follow each other as decoding starts, and the tokens come after them; not one as its tokens come."""
    prefill_only_from_tokens: int = 0
    """Prompts with at least so many new tokens do not decode here; 0 is none."""
    gpu: str = GPU
    """What computes, by its name in `model/serving.py`; `instant` takes no time."""
    prefill_ns_per_token: int = 0
    """Time to compute one prompt token that missed; by default what the model takes on the GPU."""
    decode_ns_per_token: int = 0
    """Time to generate one token; likewise."""
    load: LoadDefaults = LoadDefaults()
    workload: Workload = Workload()
    """What synthetic users share, and whether only prefill or only decode is here."""

    def tier_list(self) -> list[TierFacts]:
        """Return the tiers as the metadata holds them."""
        return [TierFacts(t.name, t.capacity_bytes) for t in self.tiers]


def preset_names() -> list[str]:
    """Return the names of the presets we ship."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def load_preset(
    name: str,
    settings: Sequence[str] = (),
    gpu: str | None = None,
    times: Callable[[str], dict[str, int]] = lambda _gpu: {},
) -> Preset:
    """Return the preset called `name`, or in the TOML file of that path, with `settings` (KEY=VALUE) applied.

    `gpu` replaces the preset's, and what it says of computing; `times` are then the knobs of computing for a GPU,
    which hold where neither the preset nor `settings` has them.
    """
    path = Path(name) if name.endswith(".toml") else PRESETS / f"{name}.toml"
    if not path.is_file():
        raise ConfigError(f"unknown preset {name!r}; known are {', '.join(preset_names())}, or a path to a .toml")
    tree = {"workload": {}, **load_toml(path)}
    if gpu is not None:
        tree = {key: value for key, value in tree.items() if key not in COMPUTING} | {"gpu": gpu}
    tree = override(tree, settings)
    if not all(name in tree for name in COMPUTING):
        tree = times(str(tree.get("gpu", GPU))) | tree
    preset = to_struct(tree, Preset, f"preset {name}")
    _check(preset, name)
    return preset


def _check(preset: Preset, name: str) -> None:
    def require(holds: bool, message: str) -> None:
        if not holds:
            raise ConfigError(f"preset {name}: {message}")

    names = [t.name for t in preset.tiers]
    require(1 <= len(names) <= MAX_TIERS, f"needs 1 to {MAX_TIERS} tiers, not {len(names)}")
    require(len(set(names)) == len(names), f"tier names must differ: {', '.join(names)}")
    for tier in preset.tiers:
        _check_tier(tier, require)
    require(
        1 <= preset.pad_bytes <= MAX_PAD_BYTES,
        f"pad_bytes(={preset.pad_bytes}) must be >= 1, and at most {MAX_PAD_BYTES}",
    )
    require(
        preset.entry is Entry.CHUNK or (preset.pad_bytes == 1 and not preset.layers_per_object),
        "pad_bytes and layers_per_object need entry=chunk",
    )
    require(
        preset.entry is Entry.TURN or preset.match is Match.PREFIX,
        "a chunk that is missed would never be stored again: entry=chunk needs match=prefix",
    )
    require(
        not (preset.exclusive and preset.placement is Placement.WRITE_THROUGH),
        "write-through puts an object into every tier, which is not exclusive: set placement=write-back",
    )
    require(
        0 < preset.chunk_tokens <= MAX_TOKENS,
        f"chunk_tokens(={preset.chunk_tokens}) must be > 0, and at most {MAX_TOKENS}",
    )
    for field, most in (
        ("layers_per_object", MAX_TOKENS),
        ("decode_read_tokens", MAX_TOKENS),
        ("prefill_only_from_tokens", MAX_TOKENS),
        ("min_load_tokens", MAX_TOKENS),
        ("prefill_ns_per_token", MAX_NS_PER_TOKEN),
        ("decode_ns_per_token", MAX_NS_PER_TOKEN),
    ):
        value = getattr(preset, field)
        require(0 <= value <= most, f"{field}(={value}) must be >= 0, and at most {most}")
    chunk_tokens = preset.chunk_tokens if preset.entry is Entry.CHUNK else 0
    check_workload(preset.workload, chunk_tokens, stores_generated=preset.store_generated, require=require)


def _check_tier(tier: TierSetting, require: Callable[[bool, str], None]) -> None:
    capacity, name = tier.capacity_bytes, f"tiers.{tier.name}"
    require(
        capacity is None or 0 <= capacity <= MAX_CAPACITY_BYTES,
        f"{name}.capacity(={capacity}) must be >= 0, and at most {MAX_CAPACITY_BYTES}",
    )
    for field in ("high_watermark", "max_object_fraction"):
        require(0 < getattr(tier, field) <= 1, f"{name}.{field}(={getattr(tier, field)}) must be in (0, 1]")
    low = tier.low_watermark
    require(
        low is None or 0 <= low <= tier.high_watermark,
        f"{name}.low_watermark(={low}) must be between 0 and its high_watermark(={tier.high_watermark})",
    )
    require(
        (tier.policy is Policy.TTL) == (tier.ttl is not None),
        f"{name}: policy=ttl and a ttl, such as 10m, need each other",
    )
    require(
        tier.ttl is None or 0 < tier.ttl_ns <= MAX_TTL_NS,
        f"{name}.ttl(={tier.ttl}) must be > 0, and at most {MAX_TTL_NS // 10**9} s",
    )
    rates = tier.rates_bytes_per_s
    require(
        all(rate == 0 or BYTES_PER_US <= rate <= MAX_CAPACITY_BYTES for rate in rates),
        f"{name}: a bandwidth must be at least 1MB, which is per second, and at most {MAX_CAPACITY_BYTES}",
    )
    for field, value, most in (
        ("concurrency", tier.concurrency, MAX_TOKENS),
        ("latency", tier.latency_ns, MAX_LATENCY_NS),
    ):
        unit = " ns" if field == "latency" else ""
        require(0 <= value <= most, f"{name}.{field}(={value}{unit}) must be >= 0, and at most {most}{unit}")
    require(
        any(rates) or not (tier.latency or tier.concurrency),
        f"{name}: latency and concurrency need a bandwidth beside them",
    )


def as_config(preset: Preset) -> dict[str, Any]:
    """Return `preset` as plain values, for the metadata."""
    tree: dict[str, Any] = msgspec.to_builtins(preset)
    return tree
