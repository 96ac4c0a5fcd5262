"""What a whole simulation came to, as `size` and `study` compare it with others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvtrace.core.statistics import Endurance
from kvtrace.curves.demand import Meter, TierDemand, tier_demand
from kvtrace.sim.presets.preset import Entry
from kvtrace.sim.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Simulated:
    """The figures of one simulation."""

    requests: int
    lookups: int
    hit_ratio: float | None
    """Null without look-ups."""
    saved_tokens: int
    """Prompt tokens that need not be computed again."""
    input_tokens: int
    output_tokens: int
    span_ns: int
    """Virtual time that rates refer to."""
    tiers: list[TierDemand]
    first_token: dict[str, Any] | None
    """Modelled times, with and without the cache; null if nothing takes time."""
    live_bytes: list[int]
    """At the end, by tier."""
    imbalance: float | None = None
    """Requests of the busiest node over their mean; null of one node."""
    duplicate_bytes: int | None = None
    """What nodes of a fleet hold at the end beside the first copy of each object; null of one node."""

    @property
    def recomputed_tokens(self) -> int:
        """Prompt tokens that no tier had."""
        return self.input_tokens - self.saved_tokens


@dataclass(frozen=True, slots=True)
class Worn:
    """Which tier wears, and how large it is if not as its tier."""

    tier: int | None
    """Null: none."""
    size_bytes: int | None = None
    endurance: Endurance | None = None


def simulated(simulation: Simulation, meter: Meter, span_ns: int | None, drive: Worn) -> Simulated:
    """Return what `simulation`, which is over, came to; requests arrived over `span_ns`."""
    preset, stats, span_ns = simulation.preset, simulation.stats(), meter.span_ns(span_ns)
    hits, lookups = sum(of["hits"] for of in stats["tiers"]), stats["lookups"]
    saved = sum(of["hit_bytes"] for of in stats["tiers"]) // simulation.bytes_per_token
    return Simulated(
        **{name: stats[name] for name in ("requests", "lookups", "input_tokens", "output_tokens", "first_token")},
        hit_ratio=hits / lookups if lookups else None,
        saved_tokens=hits * preset.chunk_tokens if preset.entry is Entry.CHUNK else saved,
        span_ns=span_ns,
        tiers=[
            tier_demand(
                *(of, tier.capacity_bytes, rates, drive.endurance),
                is_drive=t == drive.tier,
                drive_bytes=drive.size_bytes if t == drive.tier else None,
                instances=preset.fleet.instances(tier.scope),
            )
            for t, (of, tier, rates) in enumerate(zip(stats["tiers"], preset.tiers, meter.rates(span_ns), strict=True))
        ],
        live_bytes=[of["live_bytes"] for of in stats["tiers"]],
        imbalance=stats["fleet"]["imbalance"]["requests"] if "fleet" in stats else None,
        duplicate_bytes=stats["fleet"]["duplicate_bytes"] if "fleet" in stats else None,
    )
