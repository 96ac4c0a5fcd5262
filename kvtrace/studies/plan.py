"""Plan the cache of a fleet: DRAM, and drives, a shared file store or a bucket, priced a month.

A plan is a study of every fleet that a price list offers. For each kind of store with each router,
the fleets are simulated in order of their cost to own. That ends when none is left that could be
cheaper than the best so far: a simulation can only add the cost of drive wear and of bucket
requests. Sizes between those of the list are not tried, because they cannot be bought.
`fleet_search.py` is the search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from kvtrace.core.config import as_setting, load_toml, to_struct
from kvtrace.core.document.document import (
    Chapter,
    Document,
    ReportColumn,
    ReportTable,
    Sheet,
    Unit,
    show,
    table_of,
)
from kvtrace.core.document.explorer import Choice, Explorer, Price
from kvtrace.core.errors import ConfigError
from kvtrace.core.overload import overload_note
from kvtrace.core.parameters import named, setting
from kvtrace.core.simulation_stats import HitSteps, TimeToFirstToken, percentile_name
from kvtrace.core.statistics import SECONDS_PER_DAY, is_memory, parse_endurance
from kvtrace.core.units import (
    BYTES_PER_GB,
    NS_PER_S,
    format_duration,
    parse_bytes,
    percent_beside,
    price_of_byte,
)
from kvtrace.curves.day_profile import DayProfile, day_share, extrapolation
from kvtrace.curves.points import Simulated, is_store, roles_of
from kvtrace.curves.size import Target
from kvtrace.curves.size_page import ExamplePrices, fixed_note
from kvtrace.sim.baseline import GPU, slower_note, with_baseline
from kvtrace.sim.fleet import BACK_WITHIN
from kvtrace.sim.presets.preset import Preset, full_preset_name, load_preset
from kvtrace.sim.presets.tier import MONTH_S, PRICES, TierSetting
from kvtrace.studies.document import UNKNOWN_TIME, Candidate, Findings, front, stalls_of
from kvtrace.studies.run import Failed, Result, StudyRow
from kvtrace.studies.study import FILE, Configuration, Study, Value

LIST: Final = Path(__file__).with_name("prices.toml")
OBJECT_PRESETS: Final = {"lmcache-disk": "lmcache-s3", "vllm-fs": "vllm-obj"}
"""Presets of a stack with a bucket, by the preset of the same stack with a drive."""
SOME: Final = " or ".join(OBJECT_PRESETS)
POINTS: Final = 0.02
"""Largest miss of the target hit rate at which a cheaper fleet is still shown."""
UNDISTURBED: Final = "nothing happens"
BACK_STEPS: Final = 6
"""Hits have recovered with a step whose hit rate, and that of so many steps, is as undisturbed."""
AWAY_S = 60
"""Time that an engine takes to restart."""
GONE_S = 600
"""Time until a lost node is replaced."""
STORE, ROUTER, DRAM, SIZE = KEYS = ("store", "router", "DRAM a node", "size")
PARTS: Final = ("DRAM", "storage")
"""Items of the cost of a fleet."""
WAVE: Final = 12
"""Fleets simulated at a time: fixed, so that the same ones are simulated on any number of cores."""
_MONTHS_A_YEAR = 12


class Below(StrEnum):
    """The kind of store below DRAM."""

    NVME = "a drive in each node"
    FILE = "a shared file store"
    OBJECT = "a bucket"
    NOTHING = "no storage"


class Medium(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kind of memory or storage in the price list."""

    source: str
    """Source of the prices and speeds, with its date."""
    sizes: list[str] = []
    price: str | None = None
    """Purchase price, such as 4/GiB."""
    endurance: str | None = None
    """Endurance, such as 1DWPD,5y; a drive worn out before it is amortised is bought again."""
    put_price_per_1000: float = 0.0
    get_price_per_1000: float = 0.0
    price_per_gb_month: float = 0.0
    read_bandwidth: str | None = None
    write_bandwidth: str | None = None
    latency: str | None = None


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The price list."""

    currency: str
    years: float
    """Years over which purchases are amortised."""
    dram: Medium
    nvme: Medium | None = None
    file: Medium | None = None
    object: Medium | None = None

    @property
    def media(self) -> dict[Below, Medium]:
        """Return the listed media below DRAM, and an empty medium for no storage."""
        nothing = Medium(source="")
        listed = {
            Below.NVME: self.nvme,
            Below.FILE: self.file,
            Below.OBJECT: self.object,
            Below.NOTHING: nothing,
        }
        return {store: medium for store, medium in listed.items() if medium is not None}


def read_prices(path: Path) -> Prices:
    """Return the price list at `path`.

    ConfigError names the file and the field that is invalid.
    """
    prices = to_struct(load_toml(path), Prices, str(path))
    if prices.years <= 0:
        raise ConfigError(f"{path}: years: must be > 0")
    purchases = {"dram": prices.dram, "nvme": prices.nvme, "file": prices.file}
    for name, medium in purchases.items():
        if medium is not None and not (medium.sizes and medium.price):
            raise ConfigError(
                f'{path}: {name}: say its sizes, such as ["960GB"], and its price, such as'
                ' "0.33/GB"'
            )
    return prices


def example_prices() -> ExamplePrices:
    """Return the prices of the price list that is shipped, by role, as `size` shows them."""
    prices = read_prices(LIST)
    texts = {"dram": prices.dram.price, "nvme": prices.nvme.price if prices.nvme else None}
    return ExamplePrices(
        by_role={
            role: price_of_byte(text, LIST.name) for role, text in texts.items() if text is not None
        },
        currency=prices.currency,
        note="Prices begin at examples of 2026; give your own with --price.",
    )


def stacks_of(name: str) -> dict[Below, tuple[str, Preset]]:
    """Return the preset `name` with each kind of store that it can have, and its name.

    ConfigError if it stores nothing below memory.
    """
    name = full_preset_name(name)
    preset = load_preset(name, ())
    if is_memory((last := preset.tiers[-1]).name):
        raise ConfigError(
            f"{named('preset', name)}: it stores nothing below {last.name}; take one that does:"
            f" {named('preset')} {SOME}"
        )
    stores = (Below.OBJECT,) if is_store(last) else (Below.NVME, Below.FILE)
    stacks = dict.fromkeys((*stores, Below.NOTHING), (name, preset))
    bucket_preset = OBJECT_PRESETS.get(name)
    if bucket_preset is not None:
        stacks[Below.OBJECT] = (bucket_preset, load_preset(bucket_preset, ()))
    return stacks


@dataclass(frozen=True, slots=True)
class Offer:
    """One fleet that can be bought."""

    configuration: Configuration
    store: Below
    dram_cost: float
    """Monthly cost of the DRAM of all nodes, amortised."""
    size_cost: float
    """Monthly cost of the storage of all nodes, amortised."""

    @property
    def ownership_cost(self) -> float:
        """Return the least that the fleet costs a month, before wear and bucket requests."""
        return self.dram_cost + self.size_cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """One simulated fleet: what is bought, what it costs and what it reaches."""

    nodes: int
    store: str
    """The kind of store below DRAM, such as "a drive in each node"."""
    router: str | None
    """Null for one node."""
    dram_bytes_per_node: int | None
    """Null if the stack has no DRAM tier."""
    storage_bytes: int | None
    """Bytes of a node's drive, or of the whole shared store; null for a bucket and for nothing."""
    hit_ratio: float
    first_token_p50_ns: float | None
    """Modelled TTFT; null if nothing takes time."""
    first_token_p99_ns: float | None
    time_per_token_p99_ns: float | None
    """Modelled TPOT; null if decoding takes no time."""
    output_tokens_per_s: float | None
    """Output throughput of all nodes together."""
    goodput_share: float | None
    """Share of the requests within the service level; null without one."""
    stalled_requests: int
    """Requests that never start."""
    median_drive_writes_per_day: float | None
    """Of the drives of all nodes, as the load's requests arrive; null without drives."""
    most_drive_writes_per_day: float | None
    life_years: float | None
    """Until the most written drive's endurance is exhausted; null without an endurance."""
    dram_cost_per_month: float
    storage_cost_per_month: float
    cost_per_month: float | None
    """In the currency of the price list, extrapolated from `load_ns`."""
    load_ns: int | None
    """Time over which the requests arrive."""
    day_share: float | None
    """Mean rate of a day over that of the load, by which costs and wear are extrapolated."""
    command: str
    """The command that simulates it."""


NAMES: Final = {
    Below.NOTHING: "DRAM alone",
    Below.NVME: "NVMe",
    Below.FILE: "shared file store",
    Below.OBJECT: "object store",
}
"""Names of the kinds of store, as they stand side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOption:
    """The best fleet with one kind of store below DRAM."""

    store: str
    """A name of NAMES."""
    fleet: Fleet
    is_enough: bool
    """Whether the fleet reaches the target; no fleet with this store does if it does not."""
    read_bytes_per_s: float | None
    """Read bandwidth of the store by the price list; null if it has none."""
    break_even_bytes_per_s: float | None
    """Bandwidth from which on loading the load's prefixes is faster than computing them."""


def _store_label(knobs: Mapping[str, Value]) -> str:
    """Return the store and its size, such as "NVMe 3.84TB"."""
    name = NAMES[Below(str(knobs[STORE]))]
    return name if knobs[SIZE] == "-" else f"{name} {knobs[SIZE]}"


def _fleet_label(knobs: Mapping[str, Value]) -> str:
    """Return what a fleet has, such as "64GiB of DRAM a node, NVMe 3.84TB, router prefix"."""
    parts = [_store_label(knobs)]
    if knobs[DRAM] != "-":
        parts.insert(0, f"{knobs[DRAM]} of DRAM a node")
    if knobs[ROUTER] != "-":
        parts.append(f"router {knobs[ROUTER]}")
    return ", ".join(parts)


def bucket_verdict(
    options: Sequence[StoreOption],
    currency: str,
    target: Target | None,
    warnings: Sequence[str] = (),
) -> str | None:
    """Return whether an object store is enough for `target`, in a clause.

    `warnings` say why a fleet that reaches the target does not work. None if no object store can be
    bought.
    """
    bucket = next((option for option in options if option.store == NAMES[Below.OBJECT]), None)
    if bucket is None:
        return None
    fleet = bucket.fleet
    quantile, time_ns = "p99", fleet.first_token_p99_ns
    if target is not None and target.first_token is not None and target.first_token[0] == "p50_ns":
        quantile, time_ns = "p50", fleet.first_token_p50_ns
    ttft = "" if time_ns is None else f", TTFT {quantile} {format_duration(round(time_ns))}"
    cost = f"{show(fleet.cost_per_month, Unit.NUMBER)} {currency} a month"
    if not bucket.is_enough:
        hits = percent_beside(fleet.hit_ratio, None if target is None else target.hit_ratio)
        goodput = ""
        if (
            target is not None
            and target.service_level is not None
            and fleet.goodput_share is not None
        ):
            share = percent_beside(fleet.goodput_share, target.service_level.share)
            goodput = f", {share} of requests within the service level"
        figures = f"hit rate {hits}{ttft}{goodput}"
        reason = "".join(f", {warning}" for warning in warnings)
        return f"an object store is not enough: at best {figures}{reason}"
    others = [option for option in options if option.is_enough and option is not bucket]
    cheapest = min(others, key=lambda option: option.fleet.cost_per_month or 0.0, default=None)
    compared = ""
    if cheapest is not None:
        other_cost = show(cheapest.fleet.cost_per_month, Unit.NUMBER)
        compared = f" ({other_cost} with {cheapest.store})"
    return f"an object store is enough: {cost}{compared}{ttft}"


def _favourite(findings: Findings) -> Candidate:
    """Return the cheapest fleet that reaches the target, or else the nearest to it."""
    return findings.cheapest or findings.nearest or findings.best


def stores_table(options: Sequence[StoreOption], currency: str) -> ReportTable:
    """Return DRAM, drives and object store side by side."""
    columns = [
        ReportColumn("store"),
        ReportColumn("answer", "target"),
        ReportColumn("hit_ratio", "hits", Unit.SHARE),
        ReportColumn("first_token_p50_ns", "TTFT p50", Unit.NS),
        ReportColumn("first_token_p99_ns", "p99", Unit.NS),
        ReportColumn("cost_per_month", f"{currency} a month", Unit.NUMBER),
        ReportColumn("read_bytes_per_s", "reads at", Unit.BYTES_PER_S),
        ReportColumn("break_even_bytes_per_s", "break-even", Unit.BYTES_PER_S),
    ]
    rows: list[dict[str, object]] = [
        {
            "store": option.store,
            "answer": "reached" if option.is_enough else "missed",
            "hit_ratio": option.fleet.hit_ratio,
            "first_token_p50_ns": option.fleet.first_token_p50_ns,
            "first_token_p99_ns": option.fleet.first_token_p99_ns,
            "cost_per_month": option.fleet.cost_per_month,
            "read_bytes_per_s": option.read_bytes_per_s,
            "break_even_bytes_per_s": option.break_even_bytes_per_s,
        }
        for option in options
    ]
    title = "each store: the cheapest fleet that reaches the target, or else the nearest to it"
    return table_of(title, Sheet.SUMMARY, columns, rows)


@dataclass(frozen=True, slots=True)
class Plan:
    """A load, as arguments of `gen`, on a fleet, and the price list of what can be bought for it."""

    file: Path | None
    argv: tuple[str, ...]
    """Arguments of `gen` without preset, router and capacities."""
    presets: dict[Below, tuple[str, Preset]]
    """Name and preset of the stack, by the kind of store."""
    nodes: int
    routers: Sequence[str]
    prices: Prices
    byte_prices: Mapping[str, float]
    """Price of a byte, by the text of the price in the list."""
    without_offload: TimeToFirstToken | None = None
    """TTFT of the same fleet with GPU memory alone; None if nothing takes time."""
    break_even_bytes_per_s: float | None = None
    """Bandwidth at which loading the load's prefixes is as fast as computing them; None if
    computing takes no time.
    """
    day_profile: DayProfile | None = None
    """The load over a day; None is that of the log around the clock."""

    def offers(self) -> list[Offer]:
        """Return every fleet that can be bought, the cheapest to own first.

        ConfigError if a --set contradicts a setting of the plan.
        """
        offers = [
            self._offer(store, medium, router, dram, size)
            for store, medium in self.prices.media.items() if store in self.presets
            for router in self.routers
            for dram in (self.prices.dram.sizes if "dram" in roles_of(self.presets[store][1]) else ["-"])
            for size in (["-"] if store in (Below.OBJECT, Below.NOTHING) else medium.sizes)
        ]  # fmt: skip
        offers.sort(key=lambda offer: (offer.ownership_cost, offer.configuration.argv))
        planned_knobs = {"fleet.router"}
        for offer in offers:
            added_arguments = offer.configuration.argv[len(self.argv) :]
            planned_knobs.update(argument.partition("=")[0] for argument in added_arguments)
        for argument in self.argv:
            if "=" in argument and argument.partition("=")[0].strip() in planned_knobs:
                raise ConfigError(
                    f"{setting(argument)}: a plan sets that itself; use {named('router')}, or"
                    f" {named('prices')} for media"
                )
        return [
            replace(offer, configuration=replace(offer.configuration, number=number))
            for number, offer in enumerate(offers)
        ]

    def largest_caches(self, *, is_without: bool) -> list[Configuration]:
        """Return the fleets with the largest DRAM, and the largest drive or no storage at all.

        One for each router. If `is_without`, GPU memory is the only tier that holds anything.
        """
        name, preset = self.presets[Below.NOTHING]
        dram = self.prices.dram.sizes[-1:] if "dram" in roles_of(preset) else ["-"]
        fleets = []
        for router in self.routers:
            if is_without:
                argv = (*self.argv, "--preset", name)
                argv += ("--router", router) if self.nodes > 1 else ()
                for tier in preset.tiers:
                    if tier.name != GPU:
                        argv += ("--set", f"tiers.{tier.name}.capacity=0")
                fleets.append(self._build_configuration(argv, {ROUTER: router, "preset": name}))
                continue
            for store in (Below.NVME, Below.OBJECT, Below.NOTHING):
                medium = self.prices.media.get(store)
                if store not in self.presets or medium is None:
                    continue
                size = medium.sizes[-1] if medium.sizes else "-"
                offer = self._offer(store, medium, router, dram[-1], size)
                fleets.append(offer.configuration)
        return [replace(fleet, number=number) for number, fleet in enumerate(fleets)]

    def _offer(self, store: Below, medium: Medium, router: str, dram: str, size: str) -> Offer:
        """Return the offer of one combination; `dram` and `size` are "-" if nothing is bought."""
        name, preset = self.presets[store]
        tiers, stored, is_bought = preset.tiers, preset.tiers[-1].name, size != "-"
        settings = {
            f"{tiers[tier_index].name}.capacity": dram
            for role, tier_index in roles_of(preset).items()
            if role == "dram"
        }
        if is_bought:
            settings[f"{stored}.capacity"] = size
        else:
            settings |= {f"{tier.name}.capacity": "0" for tier in tiers if not is_memory(tier.name)}
        if store is Below.OBJECT:
            del settings[f"{stored}.capacity"]
            settings |= {f"{stored}.{price}": repr(getattr(medium, price)) for price in PRICES}
            if self.prices.currency != TierSetting("").price_currency:
                settings[f"{stored}.price_currency"] = self.prices.currency
        if self.nodes > 1 and store is not Below.NOTHING:
            settings[f"{stored}.scope"] = "node" if store is Below.NVME else "fleet"
        speeds = {
            speed: getattr(medium, speed)
            for speed in ("read_bandwidth", "write_bandwidth", "latency")
        }
        settings |= {
            f"{stored}.{speed}": value for speed, value in speeds.items() if value is not None
        }
        argv = (*self.argv, "--preset", name, *(("--router", router) if self.nodes > 1 else ()))
        argv += tuple(
            argument
            for key, value in settings.items()
            for argument in ("--set", as_setting(f"tiers.{key}", value))
        )
        knobs: dict[str, Value] = dict(zip(KEYS, (str(store), router, dram, size), strict=True))
        dram_cost = self._monthly_cost(self.prices.dram, dram) * self.nodes
        size_cost = self._monthly_cost(medium, size) * (self.nodes if store is Below.NVME else 1)
        return Offer(
            self._build_configuration(argv, knobs | {"preset": name}), store, dram_cost, size_cost
        )

    def _build_configuration(self, argv: tuple[str, ...], knobs: dict[str, Value]) -> Configuration:
        """Return the simulation of `argv`, with its file and model among the knobs."""
        files: dict[str, Value] = {} if self.file is None else {FILE: str(self.file)}
        if "--model" in argv:
            files["model"] = argv[argv.index("--model") + 1]
        return Configuration(0, knobs | files, argv)

    def _monthly_cost(self, medium: Medium, size: str) -> float:
        """Return the written-off cost a month of `size`; 0 if nothing is bought."""
        if medium.price is None or size == "-":
            return 0.0
        return (
            self.byte_prices[medium.price]
            * parse_bytes(size)
            / (_MONTHS_A_YEAR * self.prices.years)
        )

    def row(self, offer: Offer, result: Result) -> StudyRow:
        """Return `offer` with its cost a month at the sustained rate of the load.

        ConfigError if the simulation failed.
        """
        if isinstance(result, Failed):
            raise ConfigError(f"{offer.configuration.command}: {result.error}")
        medium, storage_cost = self.prices.media[offer.store], offer.size_cost
        if offer.store is Below.OBJECT:
            rates, stored = result.tiers[-1].rates, result.live_bytes[-1]
            rate_factor = self._day_share(result) * result.span_ns / max(1, result.load_ns)
            reads_per_s, writes_per_s = [
                0.0 if rate is None else rate.mean * rate_factor
                for rate in (rates.reads_per_s, rates.writes_per_s)
            ]
            priced = TierSetting("", **{price: getattr(medium, price) for price in PRICES})
            cost = priced.monthly_cost(reads_per_s, writes_per_s, MONTH_S, stored)
            storage_cost = cost["requests_cost_per_month"] + cost["storage_cost_per_month"]
        elif lives := [life_years for _, life_years in self._wear(offer.configuration, result)]:
            # A drive that is worn out before it is amortised is bought again.
            storage_cost *= sum(
                max(1.0, self.prices.years / life_years) if life_years else 1.0
                for life_years in lives
            ) / len(lives)
        return StudyRow(
            offer.configuration,
            result,
            offer.dram_cost + storage_cost,
            (offer.dram_cost, storage_cost),
        )

    def _wear(
        self, configuration: Configuration, figures: Simulated
    ) -> list[tuple[float, float | None]]:
        """Return DWPD and the life in years of each drive, at the load's rate.

        The most written drive comes last; the list is empty without drives. The life is None
        without an endurance or without writes.
        """
        medium, size = (
            self.prices.media[Below(str(configuration.knobs[STORE]))],
            str(configuration.knobs[SIZE]),
        )
        if size == "-":
            return []
        size_bytes, endurance = parse_bytes(size), parse_endurance(medium.endurance)
        day_s = SECONDS_PER_DAY * self._day_share(figures)
        daily_bytes = [
            written * NS_PER_S * day_s / max(1, figures.load_ns)
            for written in figures.drive_written_bytes
        ]
        return [
            (
                written / size_bytes,
                None if endurance is None else endurance.life_years(size_bytes, written),
            )
            for written in sorted(daily_bytes)
        ]

    def _day_share(self, figures: Simulated) -> float:
        """Return the mean rate of a day over that of the load."""
        return day_share(self.day_profile, figures.load_ns)

    def study(self, offers: Sequence[Offer]) -> Study:
        """Return `offers` as a study."""
        unit = f"{self.prices.currency} a month"
        return Study(Path("plan"), [offer.configuration for offer in offers], {}, unit)

    def losses(self, best: Candidate) -> dict[str, Configuration]:
        """Return a simulation of `best` for each incident mid-trace, by its name.

        The first is undisturbed: its hits are those that others are compared with.
        """
        (row,) = best.rows
        load_s = row.figures.load_ns // NS_PER_S if row.figures else 0
        at_s = load_s // 2
        events = {
            UNDISTURBED: [f"{at_s}s:nothing"],
            "an engine restarts": [f"{at_s}s:engine-restart:0:{AWAY_S}s"],
        }
        if self.nodes > 1:
            # A short load ends before the node is replaced, and a simulation accepts no event
            # after its end.
            replacement = [f"{at_s + GONE_S}s:node-joined:0"] if at_s + GONE_S < load_s else []
            events["a node is lost"] = [f"{at_s}s:node-lost:0", *replacement]
        incidents = {}
        for number, (name, incident_events) in enumerate(events.items(), 1):
            argv = list(row.configuration.argv)
            for event in incident_events:
                argv += ["--event", event]
            configuration = self._build_configuration(tuple(argv), row.configuration.knobs)
            incidents[name] = replace(configuration, number=-number)
        return incidents

    def document(
        self, findings: Findings, lost: Mapping[str, tuple[Configuration, Simulated]]
    ) -> Document:
        """Return the report of the plan; `lost` are the simulated incidents of `losses`, by name."""
        best = findings.cheapest
        if best is None:
            tables = [
                self._table("the nearest", [findings.nearest or findings.best]),
                stores_table(self.store_options(findings), self.prices.currency),
            ]
            return Document("", self.first_line(findings), [Chapter("", tables)])
        (row,) = best.rows
        store_and_sizes = {key: best.knobs[key] for key in (STORE, DRAM, SIZE)}.items()
        rerouted = [
            candidate
            for candidate in findings.candidates
            if candidate is not best and store_and_sizes <= candidate.knobs.items()
        ]
        rivals = list(rivals_of(findings).values())
        listed = {
            "the cheapest of each store with each router": rivals if self.nodes > 1 else [],
            "the same with another router": rerouted,
        }
        if (
            findings.target is not None
            and findings.target.hit_ratio is not None
            and best.cost is not None
        ):
            relaxed_target = replace(findings.target, hit_ratio=findings.target.hit_ratio - POINTS)
            cheaper = [
                candidate
                for candidate in findings.candidates
                if candidate.cost is not None and candidate.cost < best.cost
            ]
            listed["cheaper, and within 2 points of the target"] = [
                candidate
                for candidate in front(cheaper, lambda candidate: candidate.hit_ratio)
                if relaxed_target.is_met(candidate)
            ]
        tables = [stores_table(self.store_options(findings), self.prices.currency)]
        tables += [
            self._table(title, candidates) for title, candidates in listed.items() if candidates
        ]
        if lost and (usual := row.figures) is not None:
            columns = [
                ReportColumn("name", "mid-trace"),
                ReportColumn("requests", unit=Unit.COUNT),
                ReportColumn("more_tokens", "more prompt tokens computed", Unit.COUNT),
                ReportColumn("p99", "first token p99", Unit.NS),
                *(
                    ReportColumn(name, f"hit rate in {label}", Unit.SHARE)
                    for name, label, _ in SPANS
                ),
                ReportColumn("hits_back_ns", "hit rate recovers in", Unit.NS),
            ]
            title = (
                f"an engine restart takes {AWAY_S} s and empties its memory; times count from"
                " the moment it goes"
            )
            if self.nodes > 1:
                is_replaced = any(
                    ":node-joined:" in configuration.command for configuration, _ in lost.values()
                )
                fate = (
                    f"comes back empty after {GONE_S} s"
                    if is_replaced
                    else "is not back before the load ends"
                )
                title += f"; a lost node {fate}"
            undisturbed = lost[UNDISTURBED][1].hit_steps if UNDISTURBED in lost else None
            rows = [
                {
                    "name": name, "requests": figures.requests,
                    **hits_from(figures.hit_steps),
                    "hits_back_ns": hits_back_ns(figures.hit_steps, undisturbed)
                    if name != UNDISTURBED else None,
                    # Waiting users send fewer requests, so the computed tokens differ.
                    "more_tokens": figures.recomputed_tokens - usual.recomputed_tokens
                    if name != UNDISTURBED and figures.requests == usual.requests else None,
                    "p99": figures.first_token_ns("p99_ns"),
                }
                for name, (_, figures) in lost.items()
            ]  # fmt: skip
            tables.append(table_of(title, Sheet.SUMMARY, columns, rows))
        configurations = {
            candidate.number: candidate.rows[0].configuration
            for candidates in listed.values()
            for candidate in candidates
        }
        commands = [
            f"{', '.join(str(configuration.knobs[key]) for key in KEYS)}: {configuration.command}"
            for configuration in configurations.values()
        ]
        commands += [
            f"{name}: {configuration.command}" for name, (configuration, _) in lost.items()
        ]
        chapters = [
            Chapter("", tables, self._notes(findings, row)),
            Chapter("Commands that simulate each", [], commands),
        ]
        return Document("", self.first_line(findings), chapters)

    def explorer(self, findings: Findings) -> Explorer:
        """Return the simulated fleets as options: DRAM by store and size, and prices of both."""
        candidates = [candidate for candidate in findings.candidates if candidate.cost is not None]
        best, target = findings.cheapest, findings.target
        quantile, limit_ns = (target and target.first_token) or ("", None)
        fixed = Target() if target is None else target.fixed()
        fleets = [self.fleet(candidate) for candidate in candidates]
        rows = {str(candidate.knobs[DRAM]) for candidate in candidates}
        used = {_store_label(candidate.knobs) for candidate in candidates}
        columns = [
            _store_label({STORE: str(store), SIZE: size})
            for store, medium in self.prices.media.items()
            for size in (*medium.sizes, "-")
        ]
        currency = self.prices.currency
        dram_price = self.byte_prices[str(self.prices.dram.price)] * BYTES_PER_GB
        prices = [Price("DRAM", dram_price, f"{currency}/GB"), Price("storage", 1.0, "x")]
        return Explorer(
            rows="DRAM a node",
            columns="store",
            row_labels=[size for size in ("-", *self.prices.dram.sizes) if size in rows],
            column_labels=[label for label in columns if label in used],
            choices=[
                Choice(
                    row=str(candidate.knobs[DRAM]),
                    column=_store_label(candidate.knobs),
                    name=_fleet_label(candidate.knobs),
                    hit_ratio=fleet.hit_ratio,
                    first_token_p50_ns=fleet.first_token_p50_ns,
                    first_token_p99_ns=fleet.first_token_p99_ns,
                    costs=(fleet.dram_cost_per_month, fleet.storage_cost_per_month),
                    is_working=not fleet.stalled_requests and fixed.is_met(candidate),
                )
                for candidate, fleet in zip(candidates, fleets, strict=True)
            ],
            prices=prices,
            cost=f"{currency} a month",
            answer=None if best is None else candidates.index(best),
            target_hit=None if target is None else target.hit_ratio,
            target_first_token_p99_ns=limit_ns if quantile == "p99_ns" else None,
            note=(
                "Sliders choose among the fleets that were simulated: others cost more than the"
                " cheapest of their kind at the prices of the list. The price of storage is a"
                " multiple of the list's."
                f"{fixed_note(fixed)}"
            ),
        )

    def first_line(self, findings: Findings) -> str:
        """Return the answer in one sentence."""
        best, target = findings.cheapest, findings.target
        target_text = ""
        if target is not None:
            prefix = "" if target.hit_ratio is None else "target "
            target_text = f"{prefix}{target.describe()}"
        if best is None:
            answer = (
                f"nothing in the price list reaches the {target_text}"
                if findings.nearest
                else f"{target_text}: {UNKNOWN_TIME}"
            )
            nearest = findings.nearest or findings.best
            return f"{answer}: the nearest is {self._describe(findings, nearest)}"
        line = f"{self._describe(findings, best)} (target {target_text.removeprefix('target ')})"
        verdict = bucket_verdict(
            self.store_options(findings),
            self.prices.currency,
            target,
            self._bucket_warnings(findings),
        )
        return "; ".join([line, *([verdict] if verdict else []), *self._warnings(best)])

    def _bucket_warnings(self, findings: Findings) -> list[str]:
        """Return what is wrong with the object store's fleet that `store_options` chooses."""
        of_store = self._of_store(findings, Below.OBJECT)
        if of_store is None:
            return []
        bucket = _favourite(of_store)
        stalls = stalls_of(bucket).removeprefix(", ")
        return [warning for warning in (stalls, *self._warnings(bucket)) if warning]

    @staticmethod
    def _of_store(findings: Findings, store: Below) -> Findings | None:
        """Return the findings on the fleets with `store`; None if there are none."""
        candidates = [
            candidate for candidate in findings.candidates if candidate.knobs[STORE] == str(store)
        ]
        return replace(findings, candidates=candidates) if candidates else None

    def store_options(self, findings: Findings) -> list[StoreOption]:
        """Return the best simulated fleet with each kind of store, and with none.

        It is the cheapest that reaches the target, or the nearest to it if none does.
        """
        options = []
        for store, medium in self.prices.media.items():
            of_store = self._of_store(findings, store)
            if of_store is None:
                continue
            candidate = _favourite(of_store)
            rate = None if medium.read_bandwidth is None else parse_bytes(medium.read_bandwidth)
            options.append(
                StoreOption(
                    store=NAMES[store],
                    fleet=self.fleet(candidate),
                    is_enough=of_store.cheapest is not None,
                    read_bytes_per_s=rate,
                    break_even_bytes_per_s=self.break_even_bytes_per_s,
                )
            )
        return options

    def _failures(self, findings: Findings) -> list[str]:
        """Return, for each kind of store with a router, why none of its fleets is an answer."""
        if findings.target is None:
            return []
        asked, rivals = findings.target.relaxed()[-1], rivals_of(findings)
        by_kind: dict[tuple[Value, ...], list[Candidate]] = {}
        for candidate in findings.candidates:
            by_kind.setdefault(kind_of(candidate.knobs), []).append(candidate)
        lines = []
        for (store, router), candidates in by_kind.items():
            if (store, router) in rivals:
                continue
            name = f"{store}, router {router}" if self.nodes > 1 else str(store)
            if any(asked.is_met(candidate) for candidate in candidates):
                reason = (
                    "those that reach the target stall the engine, or are slower than computing"
                )
            else:
                reason = f"none reaches the target; {_nearest_figures(asked, candidates)}"
            lines.append(f"{name}: {reason}")
        return lines

    def _rejected(self, findings: Findings) -> Candidate | None:
        """Return the cheapest fleet that costs less than the answer, but does not work.

        It reaches the target, but requests would never start, or computing is faster.
        """
        best, target = findings.cheapest, findings.target
        if best is None or best.cost is None or target is None:
            return None
        asked = target.relaxed()[-1]
        rejected = [
            candidate
            for candidate in findings.candidates
            if candidate.cost is not None
            and candidate.cost < best.cost
            and asked.is_met(candidate)
            and not target.is_met(candidate)
        ]
        return min(rejected, key=lambda candidate: candidate.cost or 0.0, default=None)

    def _warnings(self, candidate: Candidate) -> list[str]:
        """Return what a reader must know of the time of `candidate`."""
        figures = candidate.rows[0].figures
        if figures is None or figures.first_token is None:
            return []
        first_token = with_baseline(figures.first_token, self.without_offload)
        overload = None if figures.prefill is None else overload_note(figures.prefill, first_token)
        return [warning for warning in (overload, slower_note(first_token)) if warning]

    def _describe(self, findings: Findings, candidate: Candidate) -> str:
        """Return the hardware, cost, hit rate and TTFT of `candidate` as one line."""
        store = Below(str(candidate.knobs[STORE]))
        size = "" if candidate.knobs[SIZE] == "-" else f" of {candidate.knobs[SIZE]}"
        nodes = (
            f"{self.nodes} nodes, router {candidate.knobs[ROUTER]}" if self.nodes > 1 else "1 node"
        )
        dram = (
            "" if candidate.knobs[DRAM] == "-" else f"{candidate.knobs[DRAM]} of DRAM a node and "
        )
        (row,) = candidate.rows
        basis = None
        if row.figures is not None:
            basis = extrapolation(row.figures.load_ns, self.day_profile)
        extrapolated = "" if basis is None else f" ({basis})"
        quantile, _ = (findings.target and findings.target.first_token) or ("p99_ns", 0)
        time_ns, name = candidate.first_token_ns(quantile), percentile_name(quantile)
        times = "" if time_ns is None else f", TTFT {name} {format_duration(time_ns)}"
        target = findings.target
        if candidate.goodput_share is not None:
            level = None if target is None else target.service_level
            share = percent_beside(candidate.goodput_share, level.share if level else None)
            times += f", {share} of requests within the service level"
        hits = percent_beside(candidate.hit_ratio, target.hit_ratio if target else None)
        times += stalls_of(candidate)
        return (
            f"{nodes}: {dram}{store}{size}, {show(candidate.cost, Unit.NUMBER)} "
            f"{findings.study.cost_name}{extrapolated}: hit rate {hits}{times}"
        )

    def _table(self, title: str, listed: Sequence[Candidate]) -> ReportTable:
        """Return a table with a row for each candidate of `listed`."""
        goodput = ReportColumn("goodput", "within the SLO", Unit.SHARE)
        columns = [
            ReportColumn("store"),
            ReportColumn("router"),
            ReportColumn("dram", DRAM),
            ReportColumn("size"),
            ReportColumn("hit_ratio", "hits", Unit.SHARE),
            ReportColumn("p50", "TTFT p50", Unit.NS),
            ReportColumn("p99", unit=Unit.NS),
            ReportColumn("tpot", "TPOT p99", Unit.NS),
            *([] if all(c.goodput_share is None for c in listed) else [goodput]),
            ReportColumn("middle", "DWPD: median", Unit.NUMBER),
            ReportColumn("most", unit=Unit.NUMBER),
            ReportColumn("life", "endurance first exhausted in", Unit.YEARS),
            *(ReportColumn(cost_part, unit=Unit.NUMBER) for cost_part in PARTS),
            ReportColumn("cost", f"{self.prices.currency} a month", Unit.NUMBER),
        ]
        return table_of(title, Sheet.SUMMARY, columns, [self._cells(fleet) for fleet in listed])

    def _cells(self, candidate: Candidate) -> dict[str, object]:
        """Return `candidate` as a row of a table."""
        fleet = self.fleet(candidate)
        knobs = {"store": STORE, "router": ROUTER, "dram": DRAM, "size": SIZE}
        figures: dict[str, object] = {
            "hit_ratio": fleet.hit_ratio,
            "p50": fleet.first_token_p50_ns,
            "p99": fleet.first_token_p99_ns,
            "tpot": fleet.time_per_token_p99_ns,
            "goodput": fleet.goodput_share,
            "middle": fleet.median_drive_writes_per_day,
            "most": fleet.most_drive_writes_per_day,
            "life": fleet.life_years,
            "cost": fleet.cost_per_month,
        }
        costs = (fleet.dram_cost_per_month, fleet.storage_cost_per_month)
        return (
            {name: candidate.knobs[key] for name, key in knobs.items()}
            | figures
            | dict(zip(PARTS, costs, strict=True))
        )

    def fleet(self, candidate: Candidate) -> Fleet:
        """Return what `candidate` buys, and its figures."""
        (row,) = candidate.rows
        knobs = candidate.knobs
        sizes = {
            key: None if knobs[key] == "-" else parse_bytes(str(knobs[key])) for key in (DRAM, SIZE)
        }
        wear = [] if row.figures is None else self._wear(row.configuration, row.figures)
        dram_cost, storage_cost = row.parts
        decode = None if row.figures is None else row.figures.decode
        return Fleet(
            nodes=self.nodes,
            store=str(knobs[STORE]),
            router=None if knobs[ROUTER] == "-" else str(knobs[ROUTER]),
            dram_bytes_per_node=sizes[DRAM],
            storage_bytes=sizes[SIZE],
            hit_ratio=candidate.hit_ratio,
            first_token_p50_ns=row.first_token_ns("p50_ns"),
            first_token_p99_ns=row.first_token_ns("p99_ns"),
            time_per_token_p99_ns=(
                None if row.figures is None else row.figures.time_per_token_p99_ns
            ),
            output_tokens_per_s=None if decode is None else decode.tokens_per_s,
            goodput_share=candidate.goodput_share,
            stalled_requests=candidate.stalled_requests,
            median_drive_writes_per_day=wear[(len(wear) - 1) // 2][0] if wear else None,
            most_drive_writes_per_day=wear[-1][0] if wear else None,
            life_years=wear[-1][1] if wear else None,
            dram_cost_per_month=dram_cost,
            storage_cost_per_month=storage_cost,
            cost_per_month=candidate.cost,
            load_ns=None if row.figures is None else row.figures.load_ns,
            day_share=None if row.figures is None else self._day_share(row.figures),
            command=row.configuration.command,
        )

    def _notes(self, findings: Findings, row: StudyRow) -> list[str]:
        """Return the notes below the tables: coverage, modelled times, costs and sources."""
        figures = row.figures
        simulated_count, offer_count = len(findings.rows), len(findings.study.configurations)
        remainder = (
            "; the others cost more than the cheapest of their kind"
            if simulated_count < offer_count
            else ""
        )
        lines = [
            f"{simulated_count} of {offer_count} configurations of the price list are simulated{remainder}"
        ]
        lines += self._failures(findings)
        rejected = self._rejected(findings)
        if rejected is not None:
            # The description names requests that never start.
            reasons = [] if rejected.stalled_requests else self._warnings(rejected)
            lines.append("; ".join([f"not {self._describe(findings, rejected)}", *reasons]))
        if figures is not None and figures.first_token is not None:
            line = "TTFT is modelled"
            if self.without_offload is not None:
                p50 = show(self.without_offload.with_cache.p50_ns, Unit.NS)
                p99 = show(self.without_offload.with_cache.p99_ns, Unit.NS)
                line += f"; without offload p50 {p50}, p99 {p99}"
            lines.append(line)
        years = f"amortised over {self.prices.years:g} years, or earlier if the load exhausts its endurance"
        bucket_note = "a bucket is charged for the bytes that FILE leaves in it"
        lines.append(
            f"costs and wear are extrapolated from the load's rate: hardware is {years}; {bucket_note}"
        )
        media = {"DRAM": self.prices.dram} | {
            str(store): medium for store, medium in self.prices.media.items()
        }
        return lines + [
            f"prices of {name}: {medium.source}" for name, medium in media.items() if medium.source
        ]


SPANS: Final = (("hits_10s", "10 s", 1), ("hits_1min", "1 min", 6), ("hits_5min", "5 min", 30))
"""Columns of hit rates from an incident on: name, label and steps of 10 s."""


def hits_from(steps: HitSteps | None) -> dict[str, float | None]:
    """Return the hit rate of each of SPANS; null where the load ends sooner or looks up nothing."""
    return {
        name: None if steps is None or len(steps.hits) < count else steps.ratio(0, count)
        for name, _, count in SPANS
    }


def hits_back_ns(steps: HitSteps | None, undisturbed: HitSteps | None) -> int | None:
    """Return the time from an incident until hits are those of the undisturbed run.

    They are from the first step on whose hit rate is within BACK_WITHIN of that of the undisturbed
    run in the same seconds, or above it, and so is that of the minute that it begins. Null if that
    never is, or either run is unknown.
    """
    if steps is None or undisturbed is None:
        return None
    count = min(len(steps.hits), len(undisturbed.hits))
    for first in range(count):
        ends = (first + 1, min(first + BACK_STEPS, count))
        pairs = [(steps.ratio(first, end), undisturbed.ratio(first, end)) for end in ends]
        if all(
            ratio is not None and usual is not None and ratio >= usual - BACK_WITHIN
            for ratio, usual in pairs
        ):
            return first * steps.step_ns
    return None


def kind_of(knobs: Mapping[str, Value]) -> tuple[Value, ...]:
    """Return the store and the router."""
    return knobs[STORE], knobs[ROUTER]


def rivals_of(findings: Findings) -> dict[tuple[Value, ...], Candidate]:
    """Return the cheapest candidate that reaches the target, for each store with each router.

    The cheapest of all comes first.
    """
    rivals: dict[tuple[Value, ...], Candidate] = {}
    # Candidates that meet the target come first, sorted by cost.
    for candidate in findings.candidates:
        if findings.target is not None and findings.target.is_met(candidate):
            rivals.setdefault(kind_of(candidate.knobs), candidate)
    return rivals


def _nearest_figures(target: Target, candidates: Sequence[Candidate]) -> str:
    """Return the best figure that any candidate reaches of each kind that `target` asks for."""
    clauses = []
    if target.hit_ratio is not None:
        highest = max(candidate.hit_ratio for candidate in candidates)
        clauses.append(f"the highest hit rate is {percent_beside(highest, target.hit_ratio)}")
    if target.first_token is not None:
        quantile, _limit_ns = target.first_token
        times = [candidate.first_token_ns(quantile) for candidate in candidates]
        shortest = min((time_ns for time_ns in times if time_ns is not None), default=None)
        name = percentile_name(quantile)
        clauses.append(
            f"too few requests for a TTFT {name}"
            if shortest is None
            else f"the shortest TTFT {name} is {format_duration(shortest)}"
        )
    if (level := target.service_level) is not None:
        shares = [candidate.goodput_share for candidate in candidates]
        highest_share = max((share for share in shares if share is not None), default=None)
        clauses.append(
            f"how many requests are within {level.describe()} is unknown"
            if highest_share is None
            else f"at most {percent_beside(highest_share, level.share)} of requests are within"
            f" {level.describe()}"
        )
    return ", ".join(clauses)
