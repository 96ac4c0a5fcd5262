"""Find the DRAM and NVMe that reach a target: `kvtrace.size`.

scenario + target + prices -> grid and search of capacities -> `SizeAnswer`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kvtrace.core import pl
from kvtrace.core.document.document import Document
from kvtrace.core.errors import ConfigError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.notebook import html_table
from kvtrace.core.parameters import entry, named, setting, suggest_keywords
from kvtrace.core.simulation_stats import TimeToFirstToken
from kvtrace.core.statistics import parse_endurance
from kvtrace.core.units import format_bytes, parse_bytes
from kvtrace.curves.day_profile import DayProfile, day_share, read_day_profile
from kvtrace.curves.documents import first_line, size_document
from kvtrace.curves.points import Point, Stack, drive_of, on_an_average_day
from kvtrace.curves.size import Question, Sizing, Target, parse_target, search_capacities
from kvtrace.curves.size_page import ExamplePrices, size_page
from kvtrace.llm.serving import INSTANT
from kvtrace.requests.registry import read_requests
from kvtrace.requests.requests import Requests
from kvtrace.sim.baseline import slower_note, ttft_without_offload, with_baseline
from kvtrace.sim.output import notes_of
from kvtrace.sim.presets.tier import MAX_CAPACITY_BYTES
from kvtrace.sim.scenario import Scenario, build_scenario, settings_of
from kvtrace.sim.service_level import ServiceLevel, parse_service_level
from kvtrace.sim.simulation import has_times

if TYPE_CHECKING:
    from collections.abc import Iterator

Progress = Callable[[float], None]
"""Takes the share of the work that is done, 0 to 1."""
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class SizeAnswer:
    """The capacities of DRAM and NVMe that reach a target.

    Capacities are in bytes by role, "dram" and "nvme"; None is unlimited.
    """

    target: Target
    """The hit rate and the time to first token that were asked for."""
    sizing: Sizing
    """All points that were simulated, the chosen one and the ceiling."""
    stack: Stack
    scenario: Scenario
    is_computing_ignored: bool
    """Requests were served in the order of the file, and computing took no time by default."""
    notes: list[str] = field(default_factory=list)
    """Assumptions about the requests, the model and the preset."""
    byte_prices: Mapping[str, float] | None = None
    """Prices of a byte of every instance of a tier, by role; None if none were given."""

    @property
    def answer(self) -> str:
        """The answer in one sentence."""
        line = first_line(self.sizing, self.target, self.stack, self.byte_prices)
        slower = None if self.chosen is None else slower_note(self.chosen.first_token)
        return f"{slower}; not recommended, but it reaches the target: {line}" if slower else line

    @property
    def is_reached(self) -> bool:
        """Tell whether any of the capacities reaches the target."""
        return self.sizing.chosen is not None

    @property
    def capacities(self) -> dict[str, int | None] | None:
        """The chosen capacities in bytes by role; None if none reaches the target."""
        return None if self.sizing.chosen is None else dict(self.sizing.chosen.capacities)

    @property
    def chosen(self) -> Point | None:
        """The figures at the chosen capacities: hit rate, time to first token, tiers, price."""
        return self.sizing.chosen

    @property
    def ceiling(self) -> Point:
        """The figures with unlimited DRAM and NVMe."""
        return self.sizing.ceiling

    def to_polars(self) -> pl.DataFrame:
        """Return one row for each pair of capacities that was simulated or estimated.

        Columns: a capacity in bytes for each role (null: unlimited), `hit_ratio`,
        `hit_ratio_error` (0 where all objects were simulated), `saved_tokens`, `price`.
        """
        return pl.DataFrame(
            [
                {f"{role}_bytes": capacity for role, capacity in point.capacities.items()}
                | {
                    "hit_ratio": point.hit_ratio,
                    "hit_ratio_error": point.hit_ratio_error,
                    "saved_tokens": point.saved_tokens,
                    "price": point.price,
                }
                for point in self.sizing.points
            ]
        )

    def to_dict(self) -> JsonObject:
        """Return everything as `kvtrace size --json` prints it."""
        config, points = self.scenario.config, self.sizing.points
        names = ("preset", "model", "tensor_parallel", "seed", "source", "serving")
        is_sampled = any(point.sampling_rate < 1 for point in points)
        basis = {
            "hits": "simulated",
            "points": "sampled" if is_sampled else "simulated",
            "first_token": None if self.ceiling.first_token is None else "modelled",
        }
        return {
            "answer": self.answer,
            **{name: config[name] for name in names},
            "basis": basis,
            "target": self.target.asked(),
            "day_share": day_share(self.stack.day_profile, self.ceiling.load_ns),
            **asdict(self.sizing),
        }

    def document(self) -> Document:
        """Return the answer as a document for a terminal or a page."""
        return size_document(
            self.sizing,
            self.stack,
            self.scenario.config,
            self.answer,
            is_ordered=self.is_computing_ignored,
        )

    def page(self, examples: ExamplePrices) -> Document:
        """Return the answer as a page with sliders, a map of the capacities and the frontier.

        `examples` are the prices at which the sliders begin if the answer has none.
        """
        return size_page(
            self.document(),
            self.sizing,
            self.target,
            self.stack,
            str(self.scenario.config["model"]),
            self.byte_prices,
            examples,
        )

    def __repr__(self) -> str:
        return f"<SizeAnswer: {self.answer}>"

    def _repr_html_(self) -> str:
        """Return the answer and the points for a notebook."""
        roles = list(self.ceiling.capacities)
        rows = [
            [
                *(_capacity_text(point.capacities[role]) for role in roles),
                f"{point.hit_ratio:.1%}",
            ]
            for point in self.sizing.points
        ]
        return f"<b>{self.answer}</b>{html_table([*roles, 'hit rate'], rows)}"


@suggest_keywords
def size(
    requests: Requests | str | Path | None = None,
    *,
    preset: str | Path = "mlperf",
    target_hit: float | str | None = None,
    target_ttft: str | None = None,
    prices: Mapping[str, float] | None = None,
    capacities: Mapping[str, Sequence[str | int | None]] | None = None,
    model: str | Path | None = None,
    tiers: Mapping[str, Mapping[str, object]] | None = None,
    knobs: Mapping[str, object] | None = None,
    users: int | None = None,
    duration: str | None = None,
    max_requests: int | None = None,
    gpu: str | None = None,
    tensor_parallel: int | None = None,
    kv_dtype: str | None = None,
    endurance: str | None = None,
    slo: str | None = None,
    sample: float | None = None,
    day_profile: str | Path | None = None,
    nodes: int | None = None,
    router: str | None = None,
    seed: int = 42,
    progress: Progress | None = None,
) -> SizeAnswer:
    """Find the cheapest DRAM and NVMe that reach a hit rate or a time to first token.

    Without prices the answer has as little DRAM as possible, and then as little NVMe. Requests of a
    file are served in its order and computing takes no time, unless `gpu` or `target_ttft` is
    given.

    Args:
        requests: As in `simulate`.
        preset: As in `simulate`.
        target_hit: The share of lookups that must hit in any tier, such as 0.7 or "70%".
        target_ttft: A percentile of the modelled time to first token, such as "p99=2s".
        prices: Prices of a GiB by role, such as `{"dram": 4.0, "nvme": 0.1}`.
        capacities: Capacities to choose from, by role, such as `{"dram": ["64GiB", "1TiB"]}`; a
            number is bytes, None unlimited. Default: chosen by the load, then searched.
        model: As in `simulate`.
        tiers: As in `simulate`. A tier with a given capacity is not searched.
        knobs: As in `simulate`.
        users: As in `simulate`.
        duration: As in `simulate`.
        max_requests: As in `simulate`.
        gpu: As in `simulate`.
        tensor_parallel: As in `simulate`.
        kv_dtype: As in `simulate`.
        endurance: Rated endurance of the drive, "1DWPD,5y" or its TBW, such as "14PB".
        slo: Limits of TTFT and TPOT that 99 % of the requests must keep, such as
            "ttft=2s,tpot=50ms"; "share=95%" in it sets another share.
        sample: Share of the objects in each of four samples; 1 simulates all. Default: as many as
            take seconds.
        day_profile: The load over a day, for drive writes, life and costs a month: a file of 24
            weights, one for each hour, of which the log is the busiest; or "log", the log's own
            hours once a day. Default: the log's rate around the clock.
        nodes: As in `simulate`. Capacities are those of each node, or of a tier that nodes share.
        router: As in `simulate`.
        seed: As in `simulate`.
        progress: Called with the share of the work that is done.

    Returns:
        The answer: `answer` is the sentence, `capacities` the bytes, `to_polars` all points.

    Raises:
        ConfigError: without a target, for unknown names, or if no request looks anything up.

    Examples:
        >>> import kvtrace as kt
        >>> found = kt.size(
        ...     users=4, duration="20s", model="tiny-1b", preset="lmcache-disk", target_hit=0.2,
        ...     tiers={"gpu": {"capacity": "64MiB"}},
        ... )
        >>> found.is_reached, sorted(found.capacities)
        (True, ['dram', 'nvme'])

    """
    level = None if slo is None else parse_service_level(slo)
    target = _target_of(target_hit, target_ttft, level)
    if isinstance(requests, str | Path):
        requests = read_requests(requests, max_requests=max_requests, seed=seed)
    is_computing_ignored = requests is not None and not target.has_times and gpu is None
    fleet = {"fleet.nodes": nodes, "fleet.router": router}
    given = {name: value for name, value in fleet.items() if value is not None}
    settings = settings_of(tiers, {**given, **(knobs or {})})
    scenario = build_scenario(
        requests,
        preset=str(preset),
        settings=settings,
        model=None if model is None else str(model),
        kv_dtype=kv_dtype,
        gpu=INSTANT if is_computing_ignored else gpu,
        tensor_parallel=tensor_parallel,
        users=users,
        duration=duration,
        max_requests=max_requests,
        seed=seed,
        slo=slo,
    )
    return size_scenario(
        scenario,
        target_hit=target_hit,
        target_ttft=target_ttft,
        settings=settings,
        capacities={
            role: [_parse_capacity(value) for value in values]
            for role, values in (capacities or {}).items()
        },
        byte_prices={role: price / _GIB for role, price in prices.items()} if prices else None,
        endurance=endurance,
        sample=sample,
        day_profile=day_profile,
        is_computing_ignored=is_computing_ignored,
        progress=progress,
    )


@suggest_keywords
def size_scenario(
    scenario: Scenario,
    *,
    target_hit: float | str | None = None,
    target_ttft: str | None = None,
    settings: Sequence[str] = (),
    capacities: Mapping[str, Sequence[int | None]] | None = None,
    byte_prices: Mapping[str, float] | None = None,
    endurance: str | None = None,
    sample: float | None = None,
    day_profile: str | Path | None = None,
    is_computing_ignored: bool = False,
    progress: Progress | None = None,
) -> SizeAnswer:
    """Find the capacities for a scenario; see `size`.

    Args:
        scenario: What `build_scenario` returned.
        target_hit: As in `size`.
        target_ttft: As in `size`.
        settings: The KEY=VALUE knobs of the scenario. A tier with a capacity there is not
            searched.
        capacities: Capacities in bytes by role; None is unlimited.
        byte_prices: The price of a byte by role.
        endurance: As in `size`.
        sample: As in `size`.
        day_profile: As in `size`.
        is_computing_ignored: Whether the scenario's requests are served in the order of the file,
            with computing that takes no time.
        progress: As in `size`.

    Raises:
        ConfigError: as `size`.

    Examples:
        >>> import kvtrace as kt
        >>> scenario = kt.build_scenario(
        ...     preset="lmcache-disk", users=4, duration="20s", model="tiny-1b",
        ...     settings=["tiers.gpu.capacity=64MiB"],
        ... )
        >>> kt.size_scenario(scenario, target_hit=0.2).is_reached
        True

    """
    target = _target_of(target_hit, target_ttft, scenario.service_level)
    drive_endurance = parse_endurance(endurance)
    if sample is not None and not 0 < sample <= 1:
        raise ConfigError(
            f"{named('sample', f'{sample:g}')}: must be > 0, and at most 1, which is all"
        )
    if scenario.load.requests is not None and "file" in scenario.config["source"]:
        scenario.load.requests.check_shared()
    stack = Stack(
        scenario.preset,
        scenario.model,
        scenario.load,
        scenario.ranks,
        scenario.span_ns,
        drive_endurance,
        scenario.service_level,
        None if day_profile is None else read_day_profile(day_profile),
    )
    if drive_endurance is not None and drive_of(scenario.preset) is None:
        names = ", ".join(tier.name for tier in scenario.preset.tiers)
        raise ConfigError(
            f"{named('endurance')}: none of the tiers {names} is a drive: memory and buckets do"
            " not wear"
        )
    if target.first_token is not None and not has_times(stack.preset):
        raise ConfigError(
            f"{named('target_ttft')}: nothing takes time with {named('gpu', stack.preset.gpu)};"
            f" give {named('gpu', 'h100')}, or a tier a bandwidth with"
            f" {setting('tiers.nvme.read_bandwidth=7GB')}"
        )
    known_prices = _check_prices(byte_prices, list(stack.roles))
    if known_prices is not None:
        # Each instance of a tier is bought.
        known_prices = {role: known_prices[role] * stack.instances[role] for role in known_prices}
    axes = dict(_settled_capacities(settings, stack))
    for role, sizes in (capacities or {}).items():
        axes[role] = [_checked_capacity(role, size_bytes) for size_bytes in sizes]
    tell = progress or (lambda _share: None)
    # An answer must neither stall nor be slower than computing, unless every answer does or is.
    baseline = None
    if has_times(stack.preset):
        baseline = ttft_without_offload(stack.preset, stack.model, stack.load, stack.ranks)
    paying_target = replace(target, without_offload=baseline, may_stall=False)
    sizing = search_capacities(
        stack,
        Question(paying_target, axes, known_prices, sample),
        lambda finished, started: tell(finished / started),
    )
    notes = notes_of(scenario)
    if byte_prices and sizing.chosen is not None and sizing.chosen.price is None:
        notes.append("the answer has no price: its unlimited tier has none")
    sizing = _map_points(_with_baseline(sizing, baseline), partial(_on_day, stack.day_profile))
    return SizeAnswer(target, sizing, stack, scenario, is_computing_ignored, notes, known_prices)


def _with_baseline(sizing: Sizing, baseline: TimeToFirstToken | None) -> Sizing:
    """Return `sizing` with the TTFT without offload, beside that of its answer and its ceiling."""

    def compared(point: Point) -> Point:
        return replace(point, first_token=with_baseline(point.first_token, baseline))

    chosen, rejected = (
        None if point is None else compared(point) for point in (sizing.chosen, sizing.rejected)
    )
    return replace(sizing, chosen=chosen, ceiling=compared(sizing.ceiling), rejected=rejected)


def _on_day(profile: DayProfile | None, point: Point) -> Point:
    """Return `point` with the wear of an average day."""
    share = day_share(profile, point.load_ns)
    return replace(point, tiers=[on_an_average_day(tier, share) for tier in point.tiers])


def _map_points(sizing: Sizing, change: Callable[[Point], Point]) -> Sizing:
    """Return `sizing` with each of its points changed."""
    chosen, rejected = (
        None if point is None else change(point) for point in (sizing.chosen, sizing.rejected)
    )
    return replace(
        sizing,
        chosen=chosen,
        rejected=rejected,
        ceiling=change(sizing.ceiling),
        points=[change(point) for point in sizing.points],
    )


def _settled_capacities(
    settings: Sequence[str], stack: Stack
) -> Iterator[tuple[str, list[int | None]]]:
    """Yield the capacities, by role, that `settings` give the tiers that are sized."""
    names = {setting.partition("=")[0].strip() for setting in settings}
    for role, position in stack.roles.items():
        tier = stack.preset.tiers[position]
        if f"tiers.{tier.name}.capacity" in names:
            yield role, [tier.capacity_bytes]


def _check_prices(
    prices: Mapping[str, float] | None, roles: Sequence[str]
) -> dict[str, float] | None:
    """Return the prices of a byte by role, checked: all roles or none have one."""
    if not prices:
        return None
    for role in prices:
        if role not in roles:
            raise ConfigError(
                f"{named('prices')}: takes prices of {' and '.join(roles)} only, not of {role}"
            )
    for role in roles:
        if role not in prices:
            raise ConfigError(
                f"{named('prices')}: add a price of {role}, such as"
                f" {entry('prices', role, '0.1/GiB')}"
            )
    return dict(prices)


def _target_of(
    target_hit: float | str | None, target_ttft: str | None, level: ServiceLevel | None
) -> Target:
    target = parse_target(None if target_hit is None else str(target_hit), target_ttft, level)
    if target is None:
        raise ConfigError(
            f"give a target: {named('target_hit', '80%')}, {named('target_ttft', 'p99=2s')}, or"
            f" {named('slo', 'ttft=2s,tpot=50ms')}"
        )
    return target


def _checked_capacity(role: str, capacity_bytes: int | None) -> int | None:
    if capacity_bytes is not None and capacity_bytes > MAX_CAPACITY_BYTES:
        raise ConfigError(
            f"{named(role, capacity_bytes)}: at most {MAX_CAPACITY_BYTES} bytes, or unlimited"
        )
    return capacity_bytes


def _parse_capacity(value: str | int | None) -> int | None:
    if value is None or value == "unlimited":
        return None
    return parse_bytes(value) if isinstance(value, str) else value


def _capacity_text(capacity_bytes: int | None) -> str:
    return "unlimited" if capacity_bytes is None else format_bytes(capacity_bytes)
