"""A simulation at given capacities of DRAM and NVMe: in full, or of samples of its objects.

The result, which `size` and `study` compare, holds hits, saved tokens, the demand on each tier by
second of simulated time, and the wear of drives.

Estimates from samples (miniature simulation: Waldspurger et al., USENIX ATC 2017):

    simulate all objects without a capacity limit, exactly
    for each sample of objects (by hash): simulate it with capacities scaled by the sampled share
    bias = hit rate of the samples without a limit - exact hit rate without a limit
    hit rate = mean of the samples - bias
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from kvtrace.core.errors import ConfigError
from kvtrace.core.simulation_stats import (
    DecodeStats,
    Goodput,
    HitSteps,
    IncidentStats,
    PrefillStats,
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
from kvtrace.curves.day_profile import DayProfile
from kvtrace.curves.stack import HASH_VALUES, T95, optimal_uses, sample_chains
from kvtrace.llm.shape import ModelShape
from kvtrace.native.records import UNBOUNDED
from kvtrace.sim.chains import Chains
from kvtrace.sim.policies import Policy
from kvtrace.sim.presets.preset import Preset
from kvtrace.sim.presets.tier import TierSetting
from kvtrace.sim.service_level import ServiceLevel
from kvtrace.sim.simulation import (
    Flush,
    Load,
    Simulation,
    full_bytes,
    has_times,
    sizes_of,
    stored_shares,
    tier_limits,
)

ROLES: Final = ("dram", "nvme")
"""The tiers with capacities to find."""

Capacities = dict[str, int | None]
"""Bytes by role; None is unlimited. A role without a tier in the preset is absent."""


class Timed:
    """A result with a hit rate and modelled TTFT, the figures of targets."""

    __slots__ = ()
    requests: int
    stalled_requests: int | None
    hit_ratio: float | None
    first_token: TimeToFirstToken | None

    @property
    def goodput_share(self) -> float | None:
        """The share of requests within the service level; null without one, or if unknown."""
        return None

    def first_token_ns(self, quantile: str) -> float | None:
        """Return a quantile of the modelled TTFT, by its name in the counters; null if unknown."""
        if self.first_token is None:
            return None
        time_ns: float | None = getattr(self.first_token.with_cache, quantile)
        return time_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted(Timed):
    """The figures of a load, simulated or estimated."""

    requests: int
    lookups: int
    saved_tokens: int
    """Prompt tokens that are loaded instead of recomputed."""
    input_tokens: int
    span_ns: int
    """Simulated time that rates a second refer to: until the last I/O."""
    load_ns: int
    """Time over which requests arrive.

    Figures a day, a month and of a drive's life refer to it, so that a stack that falls behind is
    neither cheaper nor wears less.
    """
    tiers: list[TierDemand]
    first_token: TimeToFirstToken | None
    """Modelled TTFT, with and without the cache; null if nothing takes time."""
    stalled_requests: int | None
    """Requests that never start: their loads exceed a tier that must hold them at once.

    Null for samples.
    """
    largest_load_bytes: int
    """Largest load of a request through such a tier: with this capacity, no request stalls.

    For samples, it is that of the ceiling.
    """
    optimal_hit_ratio: float | None = None
    """Upper bound of all policies with the same total capacity (Belady); null if unknown."""
    decode: DecodeStats | None = None
    """Output throughput and TPOT; null in results that an earlier version stored."""
    goodput: Goodput | None = None
    """Requests within the service level; null without one."""

    @property
    def goodput_share(self) -> float | None:
        """The share of requests within the service level; null without one, or without requests."""
        return None if self.goodput is None else self.goodput.share

    @property
    def time_per_token_p99_ns(self) -> float | None:
        """The p99 of modelled TPOT; null if decoding takes no time, or if unknown."""
        times = None if self.decode is None else self.decode.time_per_token
        return None if times is None else times.p99_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Point(Counted):
    """The figures of all tiers at given capacities."""

    capacities: Capacities
    sampling_rate: float
    """Share of the objects in each sample; 1 if all were simulated."""
    hit_ratio: float
    hit_ratio_error: float
    """Estimated error, either way; 0 if all objects were simulated."""
    live_bytes: int | None
    """Largest live bytes at the end, of the tiers with a role; null for samples."""
    price: float | None = None


@dataclass(frozen=True, slots=True)
class Sampled:
    """The simulation of one sample of the objects."""

    stats: SimulationStats
    optimal_hits: int
    """Hits of the optimal policy (Belady) on the same sample."""


@dataclass(frozen=True, slots=True)
class Stack:
    """A load and the tiers that serve it, without their capacities."""

    preset: Preset
    model: ModelShape
    load: Load
    ranks: int
    span_ns: Callable[[Simulation], int | None]
    endurance: Endurance | None = None
    service_level: ServiceLevel | None = None
    day_profile: DayProfile | None = None
    """The load over a day; None is that of the log around the clock."""

    def with_chains(self) -> Stack:
        """Return a copy whose load has its chains, computed once for all simulations."""
        return replace(self, load=self.load.with_chains(self.preset))

    @property
    def roles(self) -> dict[str, int]:
        """The tiers of the preset by role, as indices."""
        return roles_of(self.preset)

    @property
    def labels(self) -> dict[str, str]:
        """The display name of the tier of each role."""
        default_labels, tiers = (
            {"dram": "DRAM", "nvme": "NVMe"},
            {role: self.preset.tiers[index] for role, index in self.roles.items()},
        )
        places = {role: " a node" if count > 1 else "" for role, count in self.instances.items()}
        return {
            role: (tier.name.upper() if is_store(tier) else default_labels[role]) + places[role]
            for role, tier in tiers.items()
        }

    @property
    def instances(self) -> dict[str, int]:
        """The number of tiers of each role in the fleet, each with the capacity of its role."""
        fleet = self.preset.fleet
        return {
            role: fleet.instances(self.preset.tiers[index].scope)
            for role, index in self.roles.items()
        }

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a chunk, over all ranks."""
        return sizes_of(self.preset, self.model, self.ranks).chunk_bytes

    @property
    def largest_prompt_bytes(self) -> int:
        """Bytes of the objects of the largest prompt; of one object if prompts name none."""
        chains = self.load.chains
        objects = 1 if chains is None else int(np.diff(chains.offsets).max(initial=1))
        return objects * self.chunk_bytes

    @property
    def can_sample(self) -> bool:
        """Tell whether samples of the objects represent all objects.

        They do if nothing takes time, and an object is always read whole. They do not with a store
        queue, which holds a fixed number of objects, however few are sampled.
        """
        preset = self.preset
        has_wholes = not (preset.decode_read_tokens or preset.partial_chunks)
        is_plain = has_wholes and not any(
            tier.policy is Policy.TTL or tier.store_queue for tier in preset.tiers
        )
        is_ordered = (
            preset.fleet.nodes == 1
            and self.load.chains is not None
            and self.load.waits is None
            and not has_times(preset)
        )
        return is_ordered and is_plain and len(sizes_of(preset, self.model, self.ranks).pieces) == 1

    def at(self, capacities: Capacities, share: float = 1.0) -> Preset:
        """Return the preset with `capacities`, and all of its tiers scaled by `share`."""
        tiers = list(self.preset.tiers)
        for role, capacity in capacities.items():
            tiers[self.roles[role]] = msgspec.structs.replace(
                tiers[self.roles[role]], capacity=capacity
            )
        if share < 1:
            tiers = [
                (
                    tier
                    if tier.capacity_bytes is None
                    else msgspec.structs.replace(tier, capacity=round(tier.capacity_bytes * share))
                )
                for tier in tiers
            ]
        min_load_tokens = (
            max(1, round(self.preset.min_load_tokens * share)) if self.preset.min_load_tokens else 0
        )
        return msgspec.structs.replace(
            self.preset, tiers=tuple(tiers), min_load_tokens=min_load_tokens
        )

    def simulate(self, capacities: Capacities) -> Point:
        """Simulate the whole load."""
        with Simulation(
            self.at(capacities),
            self.model,
            self.load,
            ranks=self.ranks,
            service_level=self.service_level,
        ) as simulation:
            meter = Meter(simulation)
            simulation.run(meter)
            result = simulated(simulation, meter, self.span_ns(simulation), self.endurance)
        return Point(
            capacities=capacities,
            sampling_rate=1.0,
            hit_ratio=result.hit_ratio or 0.0,
            hit_ratio_error=0.0,
            live_bytes=max(result.live_bytes[index] for index in self.roles.values()),
            **{field.name: getattr(result, field.name) for field in fields(Counted)},
        )

    def sample(self, rate: float, seed: int) -> Chains:
        """Return the references to a share `rate` of the objects."""
        if self.load.chains is None:
            raise ValueError("there are no objects to choose from")
        return sample_chains(self.load.chains, max(1, round(rate * HASH_VALUES)), seed)

    def simulate_sample(self, capacities: Capacities, sample: Chains, share: float) -> Sampled:
        """Simulate one sample, a `share` of the objects."""
        load = replace(self.load, chains=sample, sampled_share=share)
        preset = self.at(capacities, share)
        with Simulation(preset, self.model, load, ranks=self.ranks) as simulation:
            simulation.run(Meter(simulation))
            counters = simulation.stats()
        [optimal] = optimal_uses(sample, [self._room(preset)])
        return Sampled(counters, optimal.hits)

    def estimate(
        self,
        capacities: Capacities,
        samples: Sequence[Sampled],
        share: float,
        full: Point,
        unlimited: Sequence[Sampled],
    ) -> Point:
        """Return the estimate from `samples` at `capacities`.

        `full` is the simulation of all objects without a capacity limit, `unlimited` those of the
        samples. Their difference is the bias of the samples, which is nearly the same with a limit,
        and is subtracted. The error is the larger of the bias and the half-width of the 95 %
        confidence interval of the mean.
        """
        unlimited_ratios = _ratios(unlimited, full.lookups * share)
        bias = float(unlimited_ratios.mean()) - full.hit_ratio
        ratios = _ratios(samples, full.lookups * share)
        ratio = float(np.clip(ratios.mean() - bias, 0.0, full.hit_ratio))
        optimal = _ratios(samples, full.lookups * share, is_optimal=True).mean() - bias
        samples_by_tier = zip(*(sampled.stats.tiers for sampled in samples), strict=True)
        return replace(
            full,
            capacities=capacities,
            sampling_rate=share,
            hit_ratio=ratio,
            hit_ratio_error=max(abs(bias), float(ratios.std(ddof=1) * T95 / np.sqrt(len(samples)))),
            live_bytes=None,
            stalled_requests=None,
            optimal_hit_ratio=(
                float(np.clip(optimal, ratio, full.hit_ratio)) if self._is_in_order else None
            ),
            saved_tokens=round(ratio * full.lookups) * self.preset.chunk_tokens,
            tiers=[
                self._estimated(index, tier_samples, tier.capacity_bytes, share, full)
                for index, (tier_samples, tier) in enumerate(
                    zip(samples_by_tier, self.at(capacities).tiers, strict=True)
                )
            ],
        )

    def _estimated(
        self,
        index: int,
        samples: Sequence[TierStats],
        capacity_bytes: int | None,
        share: float,
        full: Point,
    ) -> TierDemand:
        """Return the demand on the tier at `index`; samples give no rates by second."""
        counter_names = ("hits", "read_bytes", "written_bytes", "deleted_bytes", "populated_bytes")
        counters = {
            name: round(
                sum(getattr(sample_counters, name) for sample_counters in samples)
                / len(samples)
                / share
            )
            for name in counter_names
        }
        stats = msgspec.structs.replace(
            samples[0], hit_ratio=counters["hits"] / full.lookups, **counters
        )
        sizes, span_s = sizes_of(self.preset, self.model, self.ranks), full.span_ns / NS_PER_S
        share_stored = stored_shares(self.preset, sizes)[index]
        bytes_per_op = (
            sizes.chunk_bytes * float(share_stored) / (sizes.parts * sizes.slots_per_chunk)
        )
        amounts = [
            counters[name] / unit
            for unit in (1, bytes_per_op)
            for name in ("read_bytes", "written_bytes")
        ]
        rates = Rates(
            *(SecondRate(amount / span_s, None) if span_s else None for amount in amounts)
        )
        return tier_demand(
            stats, capacity_bytes, rates, self.endurance, is_drive=index == drive_of(self.preset)
        )

    def optimum(self, capacities: Capacities) -> float | None:
        """Return the upper bound of the hit rate with the same total capacity (Belady).

        Null if the requests have no block ids, or are not all served in the order of the file.
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
            and self.preset.fleet.nodes == 1
            and load.waits is None
            and not self.preset.partial_chunks
            and len(requests.block_ids) > 0
            and len(requests) <= load.max_requests
            and int(requests.arrival_ns[-1]) < load.until_ns
        )

    def _room(self, preset: Preset) -> int | None:
        """Return the number of objects that all tiers of `preset` hold; None if unlimited."""
        limits, _ = tier_limits(preset)
        if UNBOUNDED in limits:
            return None
        shares = stored_shares(preset, sizes_of(preset, self.model, self.ranks))
        # A tier with any capacity accepts one object, even beyond its limit.
        return sum(
            max(1, full_bytes(limit, share) // self.chunk_bytes)
            for limit, share in zip(limits, shares, strict=True)
            if limit
        )


def roles_of(preset: Preset) -> dict[str, int]:
    """Return the tiers of `preset` by role, as indices; the NVMe is the slowest drive, else store."""
    names = [tier.name.lower() for tier in preset.tiers]
    dram = next((index for index, name in enumerate(names) if name in DRAM), None)
    stored = [index for index, name in enumerate(names) if not is_memory(name)]
    nvme = next(reversed(stored), None) if (drive := drive_of(preset)) is None else drive
    roles = {
        role: index for role, index in zip(ROLES, (dram, nvme), strict=True) if index is not None
    }
    if not roles:
        raise ConfigError(
            f"the tiers {', '.join(names)}: none is DRAM ({', '.join(DRAM)}) nor storage"
        )
    return roles


def drive_of(preset: Preset) -> int | None:
    """Return the tier that wears: the slowest that is neither memory nor an object store.

    Null if there is none.
    """
    drives = [
        index
        for index, tier in enumerate(preset.tiers)
        if not is_memory(tier.name) and not is_store(tier)
    ]
    return drives[-1] if drives else None


def is_store(tier: TierSetting) -> bool:
    """Return whether `tier` is an object store: it has prices by request, or is called s3."""
    return tier.has_price or tier.name.lower() == "s3"


def _ratios(
    samples: Sequence[Sampled], expected_references: float, *, is_optimal: bool = False
) -> NDArray[np.float64]:
    """Return the hit rate of each sample; a sample of its share has `expected_references`.

    More or fewer references are due to a few hot objects, which nearly always hit, so the difference
    is added to the hits (SHARDS-adj).
    """
    hits = [sampled.optimal_hits if is_optimal else sampled.stats.hits for sampled in samples]
    lookups = [sampled.stats.lookups for sampled in samples]
    ratios: NDArray[np.float64] = (
        np.array(hits) + expected_references - np.array(lookups)
    ) / expected_references
    return ratios


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated(Counted):
    """The figures of one simulation."""

    hit_ratio: float | None
    """Null without lookups."""
    output_tokens: int
    live_bytes: list[int]
    """Live bytes at the end, by tier."""
    imbalance: float | None = None
    """Requests of the busiest node over the mean; null for one node."""
    duplicate_bytes: int | None = None
    """Bytes of further copies of objects on the nodes at the end; null for one node."""
    drive_written_bytes: tuple[int, ...] = ()
    """Bytes written to each drive that wears, node by node."""
    hit_steps: HitSteps | None = None
    """Hits in steps from the first event on; null without an event."""
    notes: tuple[str, ...] = ()
    """Caveats of these figures."""
    prefill: PrefillStats | None = None
    """The load of computing prompts; null in studies that an earlier version simulated."""

    @property
    def recomputed_tokens(self) -> int:
        """Prompt tokens that missed in all tiers."""
        return self.input_tokens - self.saved_tokens


def filled_bytes(figures: Simulated, index: int) -> int | None:
    """Return the most bytes that an instance of the drive at `index` held; None if it is unknown.

    It is known of a drive from which nothing was ever deleted: it held all that was written to it.
    """
    drive = figures.tiers[index]
    if drive.deleted_bytes or drive.populated_bytes:
        return None
    if len(figures.drive_written_bytes) != drive.instances:
        return None
    return max(figures.drive_written_bytes)


def with_drive_size(figures: Simulated, index: int, capacity_bytes: int) -> Simulated | None:
    """Return `figures` with another capacity of the drive at `index`, which never fills.

    Only the wear of the drive depends on its capacity then, and the upper bound of all policies,
    which is left out. None if the wear is not that of a drive of this capacity without an
    endurance.
    """
    drive = figures.tiers[index]
    rate = drive.rates.write_bytes_per_s
    if drive.capacity_bytes is None or drive.life_years is not None:
        return None
    writes_per_day = drive.drive_writes_per_day
    if rate is not None:
        bytes_per_day = rate.mean * (figures.span_ns / max(1, figures.load_ns)) * SECONDS_PER_DAY
        bytes_per_day /= drive.instances
        if writes_per_day != bytes_per_day / drive.capacity_bytes:
            return None
        writes_per_day = bytes_per_day / capacity_bytes
    resized = replace(drive, capacity_bytes=capacity_bytes, drive_writes_per_day=writes_per_day)
    tiers = [resized if tier is drive else tier for tier in figures.tiers]
    return replace(figures, tiers=tiers, optimal_hit_ratio=None)


def simulated(
    simulation: Simulation,
    meter: Meter,
    requested_ns: int | None,
    endurance: Endurance | None,
    drive_bytes: int | None = None,
) -> Simulated:
    """Return the figures of a finished `simulation`; requests arrived over `requested_ns`.

    The drive that wears has the capacity of its tier, unless `drive_bytes` is given.
    """
    preset, stats, span_ns = (
        simulation.preset,
        simulation.stats(),
        max(requested_ns or 0, simulation.last_io_ns),
    )
    load_ns = requested_ns or span_ns
    drive = drive_of(preset)
    written_bytes: tuple[int, ...] = ()
    if drive is not None:
        tiers_by_node, is_own = simulation.places
        drive_counters = tiers_by_node[is_own[:, drive], drive]
        # Data populated before the start is not written by the load.
        share = stored_shares(preset, simulation.sizes)[drive]
        loaded_bytes = drive_counters["written_bytes"] - drive_counters["populated_bytes"]
        written_bytes = tuple(int(count * share) for count in loaded_bytes.tolist())
    return Simulated(
        requests=stats.requests,
        lookups=stats.lookups,
        input_tokens=stats.input_tokens,
        output_tokens=stats.output_tokens,
        prefill=stats.prefill,
        first_token=stats.first_token,
        decode=stats.decode,
        goodput=None if stats.goodput is UNSET else stats.goodput,
        hit_ratio=stats.hit_ratio,
        # A restarted request may recompute tokens.
        saved_tokens=stats.input_tokens - simulation.world.total.missed_tokens,
        span_ns=span_ns,
        load_ns=load_ns,
        tiers=[
            tier_demand(
                *(counters, tier.capacity_bytes, rates, endurance),
                is_drive=index == drive,
                load_factor=span_ns / max(1, load_ns),
                drive_bytes=drive_bytes,
                instances=preset.fleet.instances(tier.scope),
            )
            for index, (counters, tier, rates) in enumerate(
                zip(stats.tiers, preset.tiers, meter.rates(span_ns), strict=True)
            )
        ],
        live_bytes=[counters.live_bytes for counters in stats.tiers],
        stalled_requests=0 if stats.stalled_requests is UNSET else stats.stalled_requests,
        largest_load_bytes=simulation.world.total.largest_load,
        imbalance=None if stats.fleet is UNSET else stats.fleet.imbalance.requests,
        duplicate_bytes=None if stats.fleet is UNSET else stats.fleet.duplicate_bytes,
        drive_written_bytes=written_bytes,
        hit_steps=(
            stats.incidents.around[0].steps
            if isinstance(stats.incidents, IncidentStats) and stats.incidents.around
            else None
        ),
    )


@dataclass(frozen=True, slots=True)
class SecondRate:
    """A rate: its mean over the whole load, and the p99 of its per-second values."""

    mean: float
    p99_second: float | None
    """Null for fewer than a hundred seconds, or samples of the objects."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of one tier; an operation is one object read or written. Null if no time passes."""

    read_bytes_per_s: SecondRate | None
    write_bytes_per_s: SecondRate | None
    reads_per_s: SecondRate | None
    writes_per_s: SecondRate | None


@dataclass(frozen=True, slots=True)
class TierDemand:
    """Demand on one tier over the whole load.

    Rates exclude data populated before the start.
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
    """DWPD at this rate; null if the drive's size is unknown, or the tier is no drive."""
    life_years: float | None
    """Drive life at the given endurance.

    Null without one, without writes, or if the tier is no drive.
    """
    instances: int = 1
    """Number of instances in a fleet; figures are totals, except capacity and wear."""

    @property
    def total_bytes(self) -> int | None:
        """Capacity of all instances together; null if unlimited."""
        return None if self.capacity_bytes is None else self.capacity_bytes * self.instances

    def figures(self) -> dict[str, str | float | None]:
        """Return the figures by their names in tables: rates as mean and peak (p99 second)."""
        figures_by_name: dict[str, str | float | None] = {
            name: getattr(self, name) for name in self.__slots__ if name != "rates"
        }
        for name in Rates.__slots__:
            rate: SecondRate | None = getattr(self.rates, name)
            figures_by_name[name] = None if rate is None else rate.mean
            figures_by_name[f"p99_second_{name}"] = None if rate is None else rate.p99_second
        return figures_by_name


class Meter:
    """A sink of a simulation that counts the demand on each tier by second, and keeps no rows."""

    def __init__(self, simulation: Simulation, *, keeps_rows: bool = False) -> None:
        """Count the demand of `simulation`.

        Rows are not generated, unless they are kept or needed for incidents.
        """
        self._simulation = simulation
        simulation.count_seconds(64)
        if not keeps_rows:
            simulation.omit_rows()

    def __call__(self, flush: Flush) -> None:
        """Return the memory of the rows to the simulation."""
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
                    _rate(by_tier[index, is_write, is_count], span_ns / NS_PER_S)
                    for is_count in (0, 1)
                    for is_write in (0, 1)
                )
            )
            for index in range(len(by_tier))
        ]


def _rate(by_second: NDArray[np.int64], span_s: float) -> SecondRate | None:
    if not span_s:
        return None
    rank = nearest_rank(len(by_second), QUANTILES["p99"])
    return SecondRate(
        float(by_second.sum()) / span_s,
        None if rank is None else float(np.sort(by_second)[rank - 1]),
    )


def on_an_average_day(tier: TierDemand, share: float) -> TierDemand:
    """Return `tier` with the wear of a day that has `share` of the simulated rate on average."""
    writes, life_years = tier.drive_writes_per_day, tier.life_years
    return replace(
        tier,
        drive_writes_per_day=None if writes is None else writes * share,
        life_years=None if life_years is None else life_years / share,
    )


def tier_demand(
    stats: TierStats,
    capacity_bytes: int | None,
    rates: Rates,
    endurance: Endurance | None,
    *,
    is_drive: bool,
    load_factor: float = 1.0,
    drive_bytes: int | None = None,
    instances: int = 1,
) -> TierDemand:
    """Return the demand on a tier with the counters `stats`, at `rates`.

    `load_factor` is the time of the rates over that in which requests arrive, to which wear refers.
    Only a drive wears. It has the capacity of the tier, unless `drive_bytes` is given; each instance
    of the tier has one drive.
    """
    drive_size, bytes_per_day = drive_bytes or capacity_bytes, None
    if is_drive and rates.write_bytes_per_s is not None:
        bytes_per_s = rates.write_bytes_per_s.mean * load_factor
        bytes_per_day = bytes_per_s * SECONDS_PER_DAY / instances
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
        drive_writes_per_day=bytes_per_day / drive_size
        if bytes_per_day is not None and drive_size
        else None,
        life_years=(
            None
            if bytes_per_day is None or endurance is None
            else endurance.life_years(drive_size, bytes_per_day)
        ),
        instances=instances,
    )
