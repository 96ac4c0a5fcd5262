"""Which cache a fleet should have.

DRAM, and drives in its nodes, a shared file store or a bucket, priced a month.

A plan is a study of all that a price list offers. Of each kind of store with each router the
cheapest to own is simulated first, until nothing is left that could be cheaper than its best: what
the wear of drives and the requests of a bucket cost is known when it is simulated. Sizes between
those of the list are not looked for: nobody sells them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from kvtrace.core.config import load_toml, to_struct
from kvtrace.core.document.document import (
    Chapter,
    Document,
    ReportTable,
    Sheet,
    Unit,
    show,
    table_of,
)
from kvtrace.core.errors import ConfigError
from kvtrace.core.statistics import SECONDS_PER_DAY, is_memory, parse_endurance
from kvtrace.core.units import NS_PER_S, format_duration, parse_bytes
from kvtrace.curves.points import Simulated, is_store, roles_of
from kvtrace.sim.presets.preset import Preset, load_preset
from kvtrace.sim.presets.tier import MONTH_S, PRICES, TierSetting
from kvtrace.study.document import UNKNOWN_TIME, Candidate, Findings, front, stalls_of
from kvtrace.study.run import Failed, Result, StudyRow
from kvtrace.study.study import FILE, Configuration, Study, Value

LIST: Final = Path(__file__).with_name("prices.toml")
OBJECT_PRESETS: Final = {"lmcache-disk": "lmcache-s3", "vllm-fs": "vllm-obj"}
"""Of a stack with a drive, the same with a bucket."""
SOME: Final = " or ".join(OBJECT_PRESETS)
POINTS: Final = 0.02
"""Of the hit ratio: what misses the target by no more is shown where it is cheaper."""
AWAY_S, GONE_S = 60, 600
"""How long an engine takes to restart, and a lost node to be replaced."""
STORE, ROUTER, DRAM, SIZE = KEYS = ("store", "router", "DRAM a node", "size")
PARTS: Final = ("DRAM", "storage")
"""Of what a fleet costs."""
WAVE: Final = 12
"""Simulated at a time: always as many, so that they are the same however many cores there are."""
_MONTHS_A_YEAR = 12


class Below(StrEnum):
    """What is below DRAM."""

    NVME = "a drive in each node"
    FILE = "a shared file store"
    OBJECT = "a bucket"
    NOTHING = "no storage"


class Medium(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One kind of memory or storage in the price list."""

    source: str
    """Where its prices and speeds are from, and of when."""
    sizes: list[str] = []
    price: str | None = None
    """Of what is bought, such as 4/GiB."""
    endurance: str | None = None
    """Such as 1DWPD,5y: a drive that is worn out before it is written off is bought again."""
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
    """Over which what is bought is written off."""
    dram: Medium
    nvme: Medium | None = None
    file: Medium | None = None
    object: Medium | None = None

    @property
    def media(self) -> dict[Below, Medium]:
        """What is listed below DRAM, and nothing at all, which costs nothing."""
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

    ConfigError, naming it and the field, if it is not what it should be.
    """
    found = to_struct(load_toml(path), Prices, str(path))
    if found.years <= 0:
        raise ConfigError(f"{path}: years: must be > 0")
    bought = {"dram": found.dram, "nvme": found.nvme, "file": found.file}
    for name, medium in bought.items():
        if medium is not None and not (medium.sizes and medium.price):
            raise ConfigError(
                f'{path}: {name}: say its sizes, such as ["960GB"], and its price, such as'
                ' "0.33/GB"'
            )
    return found


def stacks_of(name: str) -> dict[Below, tuple[str, Preset]]:
    """Return the stack `name` with each store that it can have.

    ConfigError if it stores nothing below memory.
    """
    preset = load_preset(name, ())
    if is_memory((last := preset.tiers[-1]).name):
        raise ConfigError(
            f"--preset {name}: it stores nothing below {last.name}; take one that does: --preset"
            f" {SOME}"
        )
    own = (Below.OBJECT,) if is_store(last) else (Below.NVME, Below.FILE)
    bucket = OBJECT_PRESETS.get(name)
    more = {} if bucket is None else {Below.OBJECT: (bucket, load_preset(bucket, ()))}
    return dict.fromkeys((*own, Below.NOTHING), (name, preset)) | more


@dataclass(frozen=True, slots=True)
class Offer:
    """One fleet that can be bought."""

    configuration: Configuration
    store: Below
    dram_cost: float
    """A month, of all nodes, written off; so is `size_cost`."""
    size_cost: float

    @property
    def owned(self) -> float:
        """What it costs a month at least."""
        return self.dram_cost + self.size_cost


@dataclass(frozen=True, slots=True)
class Plan:
    """What is planned: a load, as arguments of `gen`, on a fleet, and what can be bought for it."""

    file: Path | None
    argv: tuple[str, ...]
    """Of `gen`, without preset, router and capacities."""
    presets: dict[Below, tuple[str, Preset]]
    """The stack with each store that it can have, and its name."""
    nodes: int
    routers: Sequence[str]
    prices: Prices
    byte_prices: Mapping[str, float]
    """Of a byte, as the price list writes prices."""

    def offers(self) -> list[Offer]:
        """Return all that can be bought, the cheapest to own first.

        ConfigError if a --set says otherwise of it.
        """
        found = [
            self._offer(store, medium, router, dram, size)
            for store, medium in self.prices.media.items() if store in self.presets
            for router in self.routers
            for dram in (self.prices.dram.sizes if "dram" in roles_of(self.presets[store][1]) else ["-"])
            for size in (["-"] if store in (Below.OBJECT, Below.NOTHING) else medium.sizes)
        ]  # fmt: skip
        found.sort(key=lambda of: (of.owned, of.configuration.argv))
        own = {
            part.partition("=")[0]
            for of in found
            for part in of.configuration.argv[len(self.argv) :]
        }
        for said in self.argv:
            if "=" in said and said.partition("=")[0].strip() in {"fleet.router", *own}:
                raise ConfigError(
                    f"--set {said}: a plan sets that itself; use --router, or --prices for media"
                )
        return [
            replace(of, configuration=replace(of.configuration, number=n))
            for n, of in enumerate(found)
        ]

    def _offer(self, store: Below, medium: Medium, router: str, dram: str, size: str) -> Offer:
        name, preset = self.presets[store]
        tiers, stored, is_bought = preset.tiers, preset.tiers[-1].name, size != "-"
        settings = {
            f"{tiers[at].name}.capacity": dram
            for role, at in roles_of(preset).items()
            if role == "dram"
        }
        if is_bought:
            settings[f"{stored}.capacity"] = size
        else:
            settings |= {f"{of.name}.capacity": "0" for of in tiers if not is_memory(of.name)}
        if store is Below.OBJECT:
            del settings[f"{stored}.capacity"]
            settings |= {f"{stored}.{price}": repr(getattr(medium, price)) for price in PRICES}
        if self.nodes > 1 and store is not Below.NOTHING:
            settings[f"{stored}.scope"] = "node" if store is Below.NVME else "fleet"
        speeds = {
            speed: getattr(medium, speed)
            for speed in ("read_bandwidth", "write_bandwidth", "latency")
        }
        settings |= {f"{stored}.{speed}": of for speed, of in speeds.items() if of is not None}
        argv = (*self.argv, "--preset", name, *(("--router", router) if self.nodes > 1 else ()))
        argv += tuple(
            part for key, of in settings.items() for part in ("--set", f"tiers.{key}={of}")
        )
        shown: dict[str, Value] = dict(zip(KEYS, (str(store), router, dram, size), strict=True))
        dram_cost = self._month(self.prices.dram, dram) * self.nodes
        size_cost = self._month(medium, size) * (self.nodes if store is Below.NVME else 1)
        return Offer(self._configured(argv, shown | {"preset": name}), store, dram_cost, size_cost)

    def _configured(self, argv: tuple[str, ...], knobs: dict[str, Value]) -> Configuration:
        files: dict[str, Value] = {} if self.file is None else {FILE: str(self.file)}
        if "--model" in argv:
            files["model"] = argv[argv.index("--model") + 1]
        return Configuration(0, knobs | files, argv)

    def _month(self, medium: Medium, size: str) -> float:
        """Return what such a size costs a month, written off; nothing of what is not bought."""
        if medium.price is None or size == "-":
            return 0.0
        return (
            self.byte_prices[medium.price]
            * parse_bytes(size)
            / (_MONTHS_A_YEAR * self.prices.years)
        )

    def row(self, offer: Offer, found: Result) -> StudyRow:
        """Return `offer` with what it costs a month at the load's rate, kept up."""
        if isinstance(found, Failed):
            raise ConfigError(f"{offer.configuration.command}: {found.error}")
        medium, storage = self.prices.media[offer.store], offer.size_cost
        if offer.store is Below.OBJECT:
            rates, stored = found.tiers[-1].rates, found.live_bytes[-1]
            faster = found.span_ns / max(1, found.load_ns)
            requests = [
                0.0 if rate is None else rate.mean * faster
                for rate in (rates.reads_per_s, rates.writes_per_s)
            ]
            priced = TierSetting("", **{price: getattr(medium, price) for price in PRICES})
            cost = priced.monthly_cost(requests[0], requests[1], MONTH_S, stored)
            storage = cost["requests_cost_per_month"] + cost["storage_cost_per_month"]
        elif lives := [life for _, life in self._wear(offer.configuration, found)]:
            # A drive that is worn out before it is written off is bought again.
            storage *= sum(
                max(1.0, self.prices.years / life) if life else 1.0 for life in lives
            ) / len(lives)
        return StudyRow(
            offer.configuration, found, offer.dram_cost + storage, (offer.dram_cost, storage)
        )

    def _wear(
        self, configuration: Configuration, found: Simulated
    ) -> list[tuple[float, float | None]]:
        """Return how often a day each drive is written at the load's rate, and how many years that
        lasts.

        The most written comes last; nothing where no drive is. Without an endurance, or a write, no
        years are known.
        """
        medium, size = (
            self.prices.media[Below(str(configuration.knobs[STORE]))],
            str(configuration.knobs[SIZE]),
        )
        if size == "-":
            return []
        size_bytes, endurance = parse_bytes(size), parse_endurance(medium.endurance)
        a_day = [
            written * NS_PER_S * SECONDS_PER_DAY / max(1, found.load_ns)
            for written in found.drive_written_bytes
        ]
        return [
            (of / size_bytes, None if endurance is None else endurance.life_years(size_bytes, of))
            for of in sorted(a_day)
        ]

    def study(self, offers: Sequence[Offer]) -> Study:
        """Return `offers` as a study."""
        unit = f"{self.prices.currency} a month"
        return Study(Path("plan"), [of.configuration for of in offers], {}, unit)

    def losses(self, best: Candidate) -> dict[str, Configuration]:
        """Return what may happen in the middle of the load, each as a simulation of `best`."""
        (row,) = best.rows
        load_s = row.figures.load_ns // NS_PER_S if row.figures else 0
        at_s = load_s // 2
        events = {"an engine restarts": [f"{at_s}s:engine-restart:0:{AWAY_S}s"]}
        if self.nodes > 1:
            # It is replaced after the end of a short load, and no simulation takes an event after
            # its end.
            back = [f"{at_s + GONE_S}s:node-joined:0"] if at_s + GONE_S < load_s else []
            events["a node is lost"] = [f"{at_s}s:node-lost:0", *back]
        found = {}
        for number, (name, each) in enumerate(events.items(), 1):
            argv = (*row.configuration.argv, *(part for of in each for part in ("--event", of)))
            found[name] = replace(self._configured(argv, row.configuration.knobs), number=-number)
        return found

    def document(
        self, found: Findings, lost: Mapping[str, tuple[Configuration, Simulated]]
    ) -> Document:
        """Return what was found, and what `losses` cost, by name."""
        best = found.cheapest
        if best is None:
            return Document(
                "",
                self.first_line(found),
                [Chapter("", [self._table("the nearest", [found.nearest or found.best])])],
            )
        (row,) = best.rows
        same = {key: best.knobs[key] for key in (STORE, DRAM, SIZE)}.items()
        routed = [of for of in found.candidates if of is not best and same <= of.knobs.items()]
        rivals = list(rivals_of(found).values())
        listed = {
            "the cheapest of each store with each router": rivals,
            "the same with another router": routed,
        }
        if (
            found.target is not None
            and found.target.hit_ratio is not None
            and best.cost is not None
        ):
            almost = replace(found.target, hit_ratio=found.target.hit_ratio - POINTS)
            cheaper = [of for of in found.candidates if of.cost is not None and of.cost < best.cost]
            nearly = [of for of in front(cheaper, lambda of: of.hit_ratio) if almost.is_met(of)]
            listed["cheaper, and within 2 points of the target"] = nearly
        tables = [self._table(title, of) for title, of in listed.items() if of]
        if lost and (usual := row.figures) is not None:
            spec = """
                text: name = in the middle of the load
                count: requests, more_tokens = more prompt tokens computed
                ns: p99 = first token p99, hits_back_ns = hits as before after
            """
            title = f"an engine is away for {AWAY_S} s, and its memory is then empty"
            if self.nodes > 1:
                is_back = any(":node-joined:" in one.command for one, _ in lost.values())
                until = (
                    f"comes back empty after {GONE_S} s"
                    if is_back
                    else "is not back before the load ends"
                )
                title += f"; a lost node {until}"
            rows = [
                {
                    "name": name, "requests": of.requests, "hits_back_ns": of.hits_back_ns,
                    # Users who wait ask less meanwhile: what fewer requests computed tells nothing.
                    "more_tokens": of.recomputed_tokens - usual.recomputed_tokens
                    if of is not usual and of.requests == usual.requests else None,
                    "p99": of.first_token_ns("p99_ns"),
                }
                for name, (_, of) in {"nothing happens": (None, usual), **lost}.items()
            ]  # fmt: skip
            tables.append(table_of(title, Sheet.SUMMARY, spec, rows))
        shown = {
            of.number: of.rows[0].configuration
            for candidates in listed.values()
            for of in candidates
        }
        commands = [
            f"{', '.join(str(one.knobs[key]) for key in KEYS)}: {one.command}"
            for one in shown.values()
        ]
        commands += [f"{name}: {one.command}" for name, (one, _) in lost.items()]
        chapters = [
            Chapter("", tables, self._notes(found, row)),
            Chapter("Commands that simulate each", [], commands),
        ]
        return Document("", self.first_line(found), chapters)

    def first_line(self, found: Findings) -> str:
        """Return the answer in one sentence."""
        best, target = found.cheapest, found.target
        wanted = (
            ""
            if target is None
            else f"{'target ' * (target.hit_ratio is not None)}{target.describe()}"
        )
        if best is None:
            answer = (
                f"nothing in the price list reaches the {wanted}"
                if found.nearest
                else f"{wanted}: {UNKNOWN_TIME}"
            )
            return f"{answer}: the nearest is {self._said(found, found.nearest or found.best)}"
        return f"{self._said(found, best)} (target {wanted.removeprefix('target ')})"

    def _said(self, found: Findings, of: Candidate) -> str:
        store, size = (
            Below(str(of.knobs[STORE])),
            "" if of.knobs[SIZE] == "-" else f" of {of.knobs[SIZE]}",
        )
        nodes = f"{self.nodes} nodes, router {of.knobs[ROUTER]}" if self.nodes > 1 else "1 node"
        dram = "" if of.knobs[DRAM] == "-" else f"{of.knobs[DRAM]} of DRAM a node and "
        quantile, _ = (found.target and found.target.first_token) or ("p99_ns", 0)
        time_ns, name = of.first_token_ns(quantile), quantile.removesuffix("_ns").replace("_", ".")
        times = "" if time_ns is None else f", {name} {format_duration(time_ns)} to the first token"
        times += stalls_of(of)
        return (
            f"{nodes}: {dram}{store}{size}, {show(of.cost, Unit.NUMBER)} "
            f"{found.study.cost_name}: {100 * of.hit_ratio:.1f} % of look-ups hit{times}"
        )

    def _table(self, title: str, listed: Sequence[Candidate]) -> ReportTable:
        spec = f"""
            text: store, router, dram = {DRAM}, size
            share: hit_ratio = hits; ns: p50 = first token p50, p99
            number: middle = drive writes a day: median, most; years: life = first worn out after
            number: {", ".join(PARTS)}, cost = {self.prices.currency} a month
        """
        figures = []
        for of in listed:
            (row,) = of.rows
            wear = [] if row.figures is None else self._wear(row.configuration, row.figures)
            figures.append({
                "store": of.knobs[STORE], "router": of.knobs[ROUTER], "dram": of.knobs[DRAM], "size": of.knobs[SIZE],
                "hit_ratio": of.hit_ratio, "p50": row.first_token_ns("p50_ns"), "p99": row.first_token_ns("p99_ns"),
                "middle": wear[(len(wear) - 1) // 2][0] if wear else None,
                "most": wear[-1][0] if wear else None, "life": wear[-1][1] if wear else None,
                **dict(zip(PARTS, row.parts, strict=True)), "cost": of.cost,
            })  # fmt: skip
        return table_of(title, Sheet.SUMMARY, spec, figures)

    def _notes(self, found: Findings, row: StudyRow) -> list[str]:
        of = row.figures
        done, listed = len(found.rows), len(found.study.configurations)
        rest = (
            "; the others cost more to own than the cheapest of their kind" if done < listed else ""
        )
        lines = [f"{done} of {listed} fleets of the price list are simulated{rest}"]
        most: dict[tuple[Value, ...], float] = {}
        for each in found.candidates:
            most[kind_of(each.knobs)] = max(most.get(kind_of(each.knobs), 0.0), each.hit_ratio)
        lines += [
            f"{', router '.join(map(str, kind))}: none reaches the target; at most {100 * hits:.1f} % of look-ups hit"
            for kind, hits in most.items() if kind not in rivals_of(found)
        ]  # fmt: skip
        if of is not None and of.first_token is not None:
            p50, p99 = (
                format_duration(of.first_token["without_cache"][name])
                for name in ("p50_ns", "p99_ns")
            )
            lines.append(
                f"times to the first token are modelled; without any hit p50 {p50}, p99 {p99}"
            )
        years = f"written off over {self.prices.years:g} years, or sooner if the load wears it out"
        kept = "a bucket is counted by what FILE leaves in it"
        lines.append(
            f"costs and wear at the load's rate, kept up: what is bought is {years}; {kept}"
        )
        media = {"DRAM": self.prices.dram} | {
            str(store): medium for store, medium in self.prices.media.items()
        }
        return lines + [
            f"prices of {name}: {medium.source}" for name, medium in media.items() if medium.source
        ]


def kind_of(knobs: Mapping[str, Value]) -> tuple[Value, ...]:
    """Return the store and the router."""
    return knobs[STORE], knobs[ROUTER]


def rivals_of(found: Findings) -> dict[tuple[Value, ...], Candidate]:
    """Return the cheapest that reaches the target of each store with each router, the cheapest
    first.
    """
    kinds: dict[tuple[Value, ...], Candidate] = {}
    # Those that meet the target come first, the cheapest before the others.
    for of in found.candidates:
        if found.target is not None and found.target.is_met(of):
            kinds.setdefault(kind_of(of.knobs), of)
    return kinds
