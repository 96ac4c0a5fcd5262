"""One simulation at given capacities of DRAM and NVMe: in full, or of samples of its objects.

And what it came to, as `size` and `study` compare it: hits, tokens saved, and what each tier must
do by the second of virtual time, and how that wears a drive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from kvtrace.core.errors import ConfigError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.simulation_stats import (
    IncidentStats,
    SimulationStats,
    TierStats,
    TimeToFirstToken,
)
from kvtrace.core.statistics import (
    DRAM,
    QUANTILES,
    SECONDS_PER_DAY,
    Endurance,
    is_memory,
    nearest_rank,
)
from kvtrace.core.units import NS_PER_S
from kvtrace.curves.stack import HASH_VALUES, T95, optimal_uses, sample_of
from kvtrace.llm.shape import ModelShape
from kvtrace.native.records import UNBOUNDED
from kvtrace.sim.chains import Chains, chunk_chains
from kvtrace.sim.policies import Policy
from kvtrace.sim.presets.preset import Entry, Preset
from kvtrace.sim.presets.tier import TierSetting
from kvtrace.sim.simulation import Flush, Load, Simulation, has_times, sizes_of, tier_limits

ROLES: Final = ("dram", "nvme")
"""The tiers whose capacity is asked for."""

Capacities = dict[str, int | None]
"""Bytes by role, None without a bound; a role that the preset has no tier for is absent."""


class Timed:
    """What has a hit ratio and modelled times to the first token: targets are of both."""

    __slots__ = ()
    hit_ratio: float | None
    first_token: TimeToFirstToken | None

    def first_token_ns(self, quantile: str) -> float | None:
        """Return a quantile, as the counters name it, of the modelled times.

        Null where it is not known.
        """
        return None if self.first_token is None else getattr(self.first_token.with_cache, quantile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Timed):
    """What a load came to, simulated or estimated."""

    requests: int
    lookups: int
    saved_tokens: int
    """Prompt tokens that need not be computed again."""
    input_tokens: int
    span_ns: int
    """Virtual time that rates refer to."""
    tiers: list[TierDemand]
    first_token: TimeToFirstToken | None
    """Modelled times, with and without the cache; null if nothing takes time."""
    stalled_requests: int | None
    """In which the engine waits for ever.

    What they load does not fit where it has to be at once; null of samples.
    """
    largest_load_bytes: int
    """The most that a request loads through such a tier.

    With as much of it none stalls. Of samples: the ceiling's.
    """
    optimal_hit_ratio: float | None = None
    """What no policy exceeds with as many bytes in all tiers (Belady).

    Null where it is not known, as of a fleet.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(Counted):
    """What the tiers do at given capacities."""

    capacities: Capacities
    sampling_rate: float
    """The share of the objects in each sample; 1: all were simulated, and nothing is estimated."""
    hit_ratio: float
    hit_ratio_error: float
    """How far it may be off, either way, estimated: 0 if all objects were simulated."""
    live_bytes: int | None
    """At the end, in that tier which holds most of those whose capacity is asked for.

    Null of samples.
    """
    price: float | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """The simulation of one sample of the objects."""

    stats: SimulationStats
    optimal_hits: int
    """Hits of the optimal policy (Belady) on the same sample."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A load and the stack that serves it, capacities left open."""

    preset: Preset
    model: ModelShape
    load: Load
    ranks: int
    span_ns: Callable[[Simulation], int | None]
    endurance: Endurance | None = None

    def with_chains(self) -> Stack:
        """Return the same with what its requests ask for worked out, once for all simulations, if
        they name objects.
        """
        requests = self.load.requests
        if requests is None or not requests.block_tokens or self.preset.entry is not Entry.CHUNK:
            return self
        chains = chunk_chains(
            requests, self.preset.chunk_tokens, with_partial=self.preset.partial_chunks
        )
        return replace(self, load=replace(self.load, chains=chains))

    @property
    def roles(self) -> dict[str, int]:
        """Which tier is the DRAM and which the NVMe whose capacity is asked for, as far as the
        preset has them.
        """
        return roles_of(self.preset)

    @property
    def labels(self) -> dict[str, str]:
        """The display name of each role's tier."""
        said, tiers = (
            {"dram": "DRAM", "nvme": "NVMe"},
            {role: self.preset.tiers[t] for role, t in self.roles.items()},
        )
        return {
            role: tier.name.upper() if is_store(tier) else said[role]
            for role, tier in tiers.items()
        }

    @property
    def chunk_bytes(self) -> int:
        """The bytes of a chunk, all ranks together."""
        return sizes_of(self.preset, self.model, self.ranks).chunk_bytes

    @property
    def can_sample(self) -> bool:
        """Whether samples of the objects stand for all.

        No time passes, and what is read of one is always all.

        Not of those of what waits to be stored: a queue and a bucket hold so many objects, however
        few are sampled.
        """
        preset = self.preset
        has_wholes = not (preset.decode_read_tokens or preset.partial_chunks)
        is_plain = has_wholes and not any(
            t.policy is Policy.TTL or t.store_queue for t in preset.tiers
        )
        is_ordered = (
            self.load.chains is not None and self.load.waits is None and not has_times(preset)
        )
        return is_ordered and is_plain and len(sizes_of(preset, self.model, self.ranks).pieces) == 1

    def at(self, capacities: Capacities, share: float = 1.0) -> Preset:
        """Return the preset with `capacities`, and of all its tiers a `share`."""
        tiers = list(self.preset.tiers)
        for role, capacity in capacities.items():
            tiers[self.roles[role]] = msgspec.structs.replace(
                tiers[self.roles[role]], capacity=capacity
            )
        if share < 1:
            tiers = [
                (
                    t
                    if t.capacity_bytes is None
                    else msgspec.structs.replace(t, capacity=round(t.capacity_bytes * share))
                )
                for t in tiers
            ]
        least = (
            max(1, round(self.preset.min_load_tokens * share)) if self.preset.min_load_tokens else 0
        )
        return msgspec.structs.replace(self.preset, tiers=tuple(tiers), min_load_tokens=least)

    def simulate(self, capacities: Capacities) -> Point:
        """Simulate all of the load."""
        with Simulation(self.at(capacities), self.model, self.load, ranks=self.ranks) as simulation:
            meter = Meter(simulation)
            simulation.run(meter)
            found = simulated(simulation, meter, self.span_ns(simulation), self.endurance)
        return Point(
            capacities=capacities,
            sampling_rate=1.0,
            hit_ratio=found.hit_ratio or 0.0,
            hit_ratio_error=0.0,
            live_bytes=max(found.live_bytes[t] for t in self.roles.values()),
            **{field.name: getattr(found, field.name) for field in fields(Counted)},
        )

    def sample(self, rate: float, seed: int) -> Chains:
        """Return the references to a share `rate` of the objects."""
        if self.load.chains is None:
            raise ValueError("there are no objects to choose from")
        return sample_of(self.load.chains, max(1, round(rate * HASH_VALUES)), seed)

    def simulate_sample(self, capacities: Capacities, sample: Chains, share: float) -> Sampled:
        """Simulate one sample, a `share` of the objects."""
        load = replace(self.load, chains=sample)
        preset = self.at(capacities, share)
        with Simulation(preset, self.model, load, ranks=self.ranks) as simulation:
            simulation.run(Meter(simulation))
            counters = simulation.stats()
        [optimal] = optimal_uses(sample, [self._room(preset)])
        return Sampled(counters, optimal.hits)

    def estimate(
        self,
        capacities: Capacities,
        found: Sequence[Sampled],
        share: float,
        full: Point,
        unlimited: Sequence[Sampled],
    ) -> Point:
        """Return what the samples `found` suggest.

        `full` is the simulation of all objects without a bound.

        Without a bound the samples are wrong by what is known exactly, and in nearly the same way
        with one: so that is taken off. The error is the larger of it and of the half-width of the
        95 % confidence interval of their mean.
        """
        of_all = _ratios(unlimited, full.lookups * share)
        off = float(of_all.mean()) - full.hit_ratio
        ratios = _ratios(found, full.lookups * share)
        ratio = float(np.clip(ratios.mean() - off, 0.0, full.hit_ratio))
        optimal = _ratios(found, full.lookups * share, is_optimal=True).mean() - off
        by_tier = zip(*(sample.stats.tiers for sample in found), strict=True)
        return replace(
            full,
            capacities=capacities,
            sampling_rate=share,
            hit_ratio=ratio,
            hit_ratio_error=max(abs(off), float(ratios.std(ddof=1) * T95 / np.sqrt(len(found)))),
            live_bytes=None,
            stalled_requests=None,
            optimal_hit_ratio=(
                float(np.clip(optimal, ratio, full.hit_ratio)) if self._is_in_order else None
            ),
            saved_tokens=round(ratio * full.lookups) * self.preset.chunk_tokens,
            tiers=[
                self._estimated(t, of, tier.capacity_bytes, share, full)
                for t, (of, tier) in enumerate(zip(by_tier, self.at(capacities).tiers, strict=True))
            ],
        )

    def _estimated(
        self,
        t: int,
        found: Sequence[TierStats],
        capacity_bytes: int | None,
        share: float,
        full: Point,
    ) -> TierDemand:
        """Return the demand on tier `t`; how its operations fall into seconds is not known."""
        counted = ("hits", "read_bytes", "written_bytes", "deleted_bytes", "populated_bytes")
        total = {
            name: round(sum(getattr(sample, name) for sample in found) / len(found) / share)
            for name in counted
        }
        stats = msgspec.structs.replace(found[0], hit_ratio=total["hits"] / full.lookups, **total)
        sizes, span_s = sizes_of(self.preset, self.model, self.ranks), full.span_ns / NS_PER_S
        each = sizes.chunk_bytes / sizes.parts
        amounts = [
            total[name] / unit for unit in (1, each) for name in ("read_bytes", "written_bytes")
        ]
        rates = Rates(
            *(SecondRate(amount / span_s, None) if span_s else None for amount in amounts)
        )
        return tier_demand(
            stats, capacity_bytes, rates, self.endurance, is_drive=t == drive_of(self.preset)
        )

    def optimum(self, capacities: Capacities) -> float | None:
        """Return the hit ratio that no policy exceeds with as many bytes in all tiers, each its own
        objects (Belady).

        Null where the requests name no objects, or are not all served in the order of the file.
        """
        chains = self.load.chains
        if chains is None or not len(chains.slots) or not self._is_in_order:
            return None
        [optimal] = optimal_uses(chains, [self._room(self.at(capacities))])
        return optimal.hits / len(chains.slots)

    @property
    def _is_in_order(self) -> bool:
        requests, load = self.load.requests, self.load
        return (
            requests is not None
            and load.waits is None
            and not self.preset.partial_chunks
            and len(requests.block_ids) > 0
            and len(requests) <= load.max_requests
            and int(requests.arrival_ns[-1]) < load.until_ns
        )

    def _room(self, preset: Preset) -> int | None:
        """Return how many objects all tiers of `preset` hold together; None without a bound."""
        limits, _ = tier_limits(preset)
        if UNBOUNDED in limits:
            return None
        # One that a tier takes may fill it past its limit.
        return sum(max(1, limit // self.chunk_bytes) for limit in limits if limit)


def roles_of(preset: Preset) -> dict[str, int]:
    """Return which tier is the DRAM and which the NVMe, as far as `preset` has them.

    The slowest drive, else store.
    """
    names = [tier.name.lower() for tier in preset.tiers]
    dram = next((t for t, name in enumerate(names) if name in DRAM), None)
    stored = [t for t, name in enumerate(names) if not is_memory(name)]
    nvme = next(reversed(stored), None) if (drive := drive_of(preset)) is None else drive
    roles = {role: t for role, t in zip(ROLES, (dram, nvme), strict=True) if t is not None}
    if not roles:
        raise ConfigError(
            f"the tiers {', '.join(names)}: none is DRAM ({', '.join(DRAM)}) nor storage"
        )
    return roles


def drive_of(preset: Preset) -> int | None:
    """Return the tier that wears.

    The slowest that is neither memory nor an object store; null if there is none.
    """
    drives = [t for t, of in enumerate(preset.tiers) if not is_memory(of.name) and not is_store(of)]
    return drives[-1] if drives else None


def is_store(tier: TierSetting) -> bool:
    """Return whether `tier` is an object store.

    It asks for money by the request, or is called s3.
    """
    return tier.has_price or tier.name.lower() == "s3"


def _ratios(
    found: Sequence[Sampled], wanted: float, *, is_optimal: bool = False
) -> NDArray[np.float64]:
    """Return the hit ratio that each sample suggests, which should have `wanted` references.

    If it has more or fewer, that is for a few much used objects, which nearly always hit: the
    difference is added to the hits (SHARDS-adj).
    """
    hits = [sample.optimal_hits if is_optimal else sample.stats.hits for sample in found]
    lookups = [sample.stats.lookups for sample in found]
    ratios: NDArray[np.float64] = (np.array(hits) + wanted - np.array(lookups)) / wanted
    return ratios


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated(Counted):
    """The figures of one simulation."""

    hit_ratio: float | None
    """Null without look-ups."""
    output_tokens: int
    live_bytes: list[int]
    """At the end, by tier."""
    load_ns: int
    """How long requests came for.

    A month's costs are of this, so that what falls behind is not the cheaper for it.
    """
    imbalance: float | None = None
    """Requests of the busiest node over their mean; null of one node."""
    duplicate_bytes: int | None = None
    """What nodes of a fleet hold at the end beside the first copy of each object.

    Null of one node.
    """
    drive_written_bytes: tuple[int, ...] = ()
    """To each drive that wears, node by node."""
    hits_back_ns: int | None = None
    """How long after the first event hits are as before; null without one, or if they never are."""
    notes: tuple[str, ...] = ()
    """What to know before these figures are believed."""

    @property
    def recomputed_tokens(self) -> int:
        """Prompt tokens that no tier had."""
        return self.input_tokens - self.saved_tokens


def simulated(
    simulation: Simulation,
    meter: Meter,
    asked_ns: int | None,
    endurance: Endurance | None,
    drive_bytes: int | None = None,
) -> Simulated:
    """Return what `simulation`, which is over, came to; requests arrived over `asked_ns`.

    The drive that wears is as large as its tier, unless `drive_bytes` are said.
    """
    preset, stats, span_ns = (
        simulation.preset,
        simulation.stats(),
        max(asked_ns or 0, simulation.last_io_ns),
    )
    drive = drive_of(preset)
    written: tuple[int, ...] = ()
    if drive is not None:
        places, is_one = simulation.places
        worn = places[is_one[:, drive], drive]
        # What lay there before the start is not of the load.
        written = tuple((worn["written_bytes"] - worn["populated_bytes"]).tolist())
    return Simulated(
        requests=stats.requests,
        lookups=stats.lookups,
        input_tokens=stats.input_tokens,
        output_tokens=stats.output_tokens,
        first_token=stats.first_token,
        hit_ratio=stats.hit_ratio,
        # What begins again may compute again what it had computed.
        saved_tokens=stats.input_tokens - simulation.world.total.missed_tokens,
        span_ns=span_ns,
        load_ns=asked_ns or span_ns,
        tiers=[
            tier_demand(
                *(of, tier.capacity_bytes, rates, endurance),
                is_drive=t == drive,
                drive_bytes=drive_bytes,
                instances=preset.fleet.instances(tier.scope),
            )
            for t, (of, tier, rates) in enumerate(
                zip(stats.tiers, preset.tiers, meter.rates(span_ns), strict=True)
            )
        ],
        live_bytes=[tier.live_bytes for tier in stats.tiers],
        stalled_requests=0 if stats.stalled_requests is UNSET else stats.stalled_requests,
        largest_load_bytes=simulation.world.total.largest_load,
        imbalance=None if stats.fleet is UNSET else stats.fleet.imbalance.requests,
        duplicate_bytes=None if stats.fleet is UNSET else stats.fleet.duplicate_bytes,
        drive_written_bytes=written,
        hits_back_ns=(
            stats.incidents.around[0].hits_back_ns
            if isinstance(stats.incidents, IncidentStats) and stats.incidents.around
            else None
        ),
    )


@dataclass(frozen=True, slots=True)
class SecondRate:
    """A rate: its mean over the whole load, and the p99 of its per-second values."""

    mean: float
    p99_second: float | None
    """Null where fewer than a hundred seconds, or samples of the objects, do not tell."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one tier; an operation is one object read or written. Null where no time passes."""

    read_bytes_per_s: SecondRate | None
    write_bytes_per_s: SecondRate | None
    reads_per_s: SecondRate | None
    writes_per_s: SecondRate | None


@dataclass(frozen=True, slots=True)
class TierDemand:
    """Demand on one tier over the whole load.

    Rates leave out what was populated before the start.
    """

    name: str
    capacity_bytes: int | None
    hits: int
    hit_ratio: float | None
    read_bytes: int
    written_bytes: int
    deleted_bytes: int
    populated_bytes: int
    rates: Rates
    drive_writes_per_day: float | None
    """What is written a day at this rate over the drive's size.

    Null if that is not known, or the tier is no drive.
    """
    life_years: float | None
    """At the endurance that was stated.

    Null without one, if nothing is written, or if the tier is no drive.
    """
    instances: int = 1
    """How many of it there are in a fleet.

    Figures are of all of them together, but for the capacity and the wear.
    """

    @property
    def total_bytes(self) -> int | None:
        """The capacity of all instances together; null without a bound."""
        return None if self.capacity_bytes is None else self.capacity_bytes * self.instances

    def figures(self) -> JsonObject:
        """Return the figures by their names in tables, rates by the mean and by the p99 of
        per-second values.
        """
        found = {name: getattr(self, name) for name in self.__slots__ if name != "rates"}
        for name in Rates.__slots__:
            rate: SecondRate | None = getattr(self.rates, name)
            found[name] = None if rate is None else rate.mean
            found[f"p99_second_{name}"] = None if rate is None else rate.p99_second
        return found


class Meter:
    """A sink of a simulation that has each tier's demand counted by the second, and keeps nothing
    else.
    """

    def __init__(self, simulation: Simulation, *, keeps_rows: bool = False) -> None:
        """Count what `simulation` makes.

        Rows are not made, unless they are kept, or incidents are told by them.
        """
        self._simulation, world = simulation, simulation.world
        simulation.count_seconds(64)
        world.knobs.is_counted_alone = not keeps_rows and not len(world.lookup_outcomes)

    def __call__(self, flush: Flush) -> None:
        """Give the memory of the rows back."""
        self._simulation.give_back(flush)

    def rates(self, span_ns: int) -> list[Rates]:
        """Return the rates of each tier over `span_ns`."""
        counts = self._simulation.world.by_second.reshape(
            -1, len(self._simulation.preset.tiers), 2, 2
        )
        seconds = max(
            int(np.flatnonzero(counts.any((1, 2, 3))).max(initial=-1)) + 1, -(-span_ns // NS_PER_S)
        )
        by_tier = np.zeros((*counts.shape[1:], seconds), np.int64)
        by_tier[..., : len(counts)] = counts[:seconds].transpose(1, 2, 3, 0)
        return [
            Rates(
                *(
                    _rate(by_tier[t, way, what], span_ns / NS_PER_S)
                    for what in (0, 1)
                    for way in (0, 1)
                )
            )
            for t in range(len(by_tier))
        ]


def _rate(by_second: Any, span_s: float) -> SecondRate | None:
    if not span_s:
        return None
    rank = nearest_rank(len(by_second), QUANTILES["p99"])
    return SecondRate(
        float(by_second.sum()) / span_s,
        None if rank is None else float(np.sort(by_second)[rank - 1]),
    )


def tier_demand(
    stats: TierStats,
    capacity_bytes: int | None,
    rates: Rates,
    endurance: Endurance | None,
    *,
    is_drive: bool,
    drive_bytes: int | None = None,
    instances: int = 1,
) -> TierDemand:
    """Return the demand on a tier with the counters `stats`, at `rates`.

    What is no drive does not wear.

    The drive is as large as the tier, unless its size is said; each instance of the tier has one.
    """
    worn_bytes, per_day = drive_bytes or capacity_bytes, None
    if is_drive and rates.write_bytes_per_s is not None:
        per_day = rates.write_bytes_per_s.mean * SECONDS_PER_DAY / instances
    return TierDemand(
        name=stats.name,
        hits=stats.hits,
        hit_ratio=stats.hit_ratio,
        read_bytes=stats.read_bytes,
        written_bytes=stats.written_bytes,
        deleted_bytes=stats.deleted_bytes,
        populated_bytes=stats.populated_bytes,
        capacity_bytes=capacity_bytes,
        rates=rates,
        drive_writes_per_day=per_day / worn_bytes if per_day is not None and worn_bytes else None,
        life_years=(
            None
            if per_day is None or endurance is None
            else endurance.life_years(worn_bytes, per_day)
        ),
        instances=instances,
    )
