"""What a preset says: the tiers, what an entry is, where it is placed, promoted and evicted."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kvtrace.core.config import load_toml, override, to_struct
from kvtrace.core.errors import ConfigError
from kvtrace.core.metadata import Tier
from kvtrace.core.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

PRESETS = Path(__file__).with_name("presets")
MAX_TIERS = 8
# With these, what is computed from a preset still fits 64 bits.
MAX_CAPACITY_BYTES = 2**61
MAX_TOKENS = 2**31 - 1
MAX_NS_PER_TOKEN = 10**9


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
    """Where new objects go."""

    WRITE_THROUGH = "write-through"
    """Into every tier at once; each tier deletes by itself."""
    WATERFALL = "waterfall"
    """Into the fastest tier that can make room; what it displaces moves down, and falls off the end."""


class Promotion(StrEnum):
    """Whether a load copies an object to faster tiers."""

    ALWAYS = "always"
    NEVER = "never"


class TierSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tier of a preset; without a capacity it has no bound."""

    name: str
    capacity: str | int | None = None

    @property
    def capacity_bytes(self) -> int | None:
        """The capacity in bytes; null without a bound."""
        return parse_bytes(self.capacity) if isinstance(self.capacity, str) else self.capacity


class Preset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One caching stack's semantics, as a TOML file in `presets/` gives them."""

    description: str
    tiers: tuple[TierSetting, ...]
    entry: Entry
    chunk_tokens: int = 256
    match: Match
    placement: Placement
    promotion: Promotion
    fill_fraction: float = 1.0
    """How full a tier above the last may get."""
    max_object_fraction: float = 1.0
    """The largest object a tier above the last takes, as a share of its capacity."""
    decode_read_tokens: int = 0
    """The turn's own entry is read once, and once more for each so many generated tokens; 0 is never."""
    prefill_only_from_tokens: int = 0
    """Prompts with at least so many new tokens do not decode here; 0 is none."""
    prefill_ns_per_token: int = 0
    """Time to compute one prompt token that missed; 0 takes no time."""
    decode_ns_per_token: int = 0
    """Time to generate one token; 0 takes no time."""

    def tier_list(self) -> list[Tier]:
        """Return the tiers as the metadata holds them."""
        return [Tier(t.name, t.capacity_bytes) for t in self.tiers]


def preset_names() -> list[str]:
    """Return the names of the presets we ship."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def load_preset(name: str, settings: Sequence[str] = ()) -> Preset:
    """Return the preset called `name`, or in the TOML file of that path, with `settings` (KEY=VALUE) applied."""
    path = Path(name) if name.endswith(".toml") else PRESETS / f"{name}.toml"
    if not path.is_file():
        raise ConfigError(f"unknown preset {name!r}; known are {', '.join(preset_names())}, or a path to a .toml")
    tree = override(load_toml(path), settings)
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
        capacity = tier.capacity_bytes
        require(
            capacity is None or 0 <= capacity <= MAX_CAPACITY_BYTES,
            f"tiers.{tier.name}.capacity(={capacity}) must be >= 0, and at most {MAX_CAPACITY_BYTES}",
        )
    for field in ("fill_fraction", "max_object_fraction"):
        require(0 < getattr(preset, field) <= 1, f"{field}(={getattr(preset, field)}) must be in (0, 1]")
    require(
        preset.placement is not Placement.WATERFALL or preset.promotion is Promotion.NEVER,
        "a waterfall keeps one copy of an object, which nothing promotes: set promotion=never",
    )
    require(
        0 < preset.chunk_tokens <= MAX_TOKENS,
        f"chunk_tokens(={preset.chunk_tokens}) must be > 0, and at most {MAX_TOKENS}",
    )
    for field, most in (
        ("decode_read_tokens", MAX_TOKENS),
        ("prefill_only_from_tokens", MAX_TOKENS),
        ("prefill_ns_per_token", MAX_NS_PER_TOKEN),
        ("decode_ns_per_token", MAX_NS_PER_TOKEN),
    ):
        value = getattr(preset, field)
        require(0 <= value <= most, f"{field}(={value}) must be >= 0, and at most {most}")


def as_config(preset: Preset) -> dict[str, Any]:
    """Return `preset` as plain values, for the metadata."""
    tree: dict[str, Any] = msgspec.to_builtins(preset)
    return tree
