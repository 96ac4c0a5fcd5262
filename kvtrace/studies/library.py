"""Studies and plans as Python functions: `kvtrace.study` and `kvtrace.plan`.

configurations -> simulations, stored in a folder -> findings -> `StudyAnswer`, `PlanAnswer`
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from kvtrace.core import pl
from kvtrace.core.app import QUIET
from kvtrace.core.document.document import Document
from kvtrace.core.errors import ConfigError, KvError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.parameters import named, suggest_keywords
from kvtrace.core.temporary import TemporaryFolder
from kvtrace.core.units import price_of_byte
from kvtrace.curves.break_even import mean_break_even
from kvtrace.curves.day_profile import DayProfile, read_day_profile
from kvtrace.curves.points import Simulated
from kvtrace.curves.size import Target, parse_target
from kvtrace.curves.size_page import break_even_chart
from kvtrace.llm.serving import GPU_MEMORY_SHARE, GPUS
from kvtrace.llm.shape import stored_ranks
from kvtrace.requests.registry import detect
from kvtrace.sim.baseline import ttft_without_offload
from kvtrace.sim.output import notes_of
from kvtrace.sim.presets.preset import Preset
from kvtrace.sim.scenario import Scenario
from kvtrace.sim.service_level import ServiceLevel, parse_service_level
from kvtrace.studies.document import (
    Candidate,
    Findings,
    collect_findings,
    document,
    first_line,
    front,
    measure_sensitivities,
)
from kvtrace.studies.fleet_search import FleetSearch
from kvtrace.studies.gen_options import (
    StackArguments,
    StoringArguments,
    gen_option_names,
    parse_gen,
    prepare_gen,
)
from kvtrace.studies.least_gpus import (
    DEGREES,
    MOST_NODES,
    WITH_CACHE,
    WITHOUT_OFFLOAD,
    GpuSearch,
    LeastGpus,
)
from kvtrace.studies.plan import (
    LIST,
    SOME,
    UNDISTURBED,
    Below,
    Plan,
    Prices,
    hits_back_ns,
    read_prices,
    stacks_of,
)
from kvtrace.studies.run import Failed, Result, rows_of, rows_table, write_rows
from kvtrace.studies.study import FILE, Configuration, Study, Value, argv_of, read_study
from kvtrace.studies.worker import simulate_all

TABLE: Final = "results.parquet"
"""The table of all configurations, in the folder of a study."""
ROUTERS: Final = ("round-robin", "prefix")
"""Routers that a plan tries unless one is named."""

Tell = Callable[[str], None]
"""Takes a note, as text of one line."""
Progress = Callable[[float], None]
"""Takes the share of the work that is done, 0 to 1."""


@dataclass(frozen=True, slots=True)
class StudyAnswer:
    """The simulated configurations of a study, and which is best."""

    findings: Findings
    """All configurations with their figures, the best and the cheapest."""
    output: Path
    """The folder with the table of results and the stored simulations."""
    _folder: TemporaryFolder | None = field(default=None, repr=False)

    @property
    def answer(self) -> str:
        """The answer in one sentence."""
        return first_line(self.findings)

    @property
    def best(self) -> Candidate:
        """The configuration with the highest hit rate, the cheapest if several have it."""
        return self.findings.best

    @property
    def cheapest(self) -> Candidate | None:
        """The cheapest configuration that reaches the target; None without one."""
        return self.findings.cheapest

    def to_polars(self) -> pl.DataFrame:
        """Return one row for each configuration: its knobs, figures, price, or its error.

        Columns are those of the table study in `schemas/README.md`.
        """
        return _rows_frame(self.findings)

    def to_dict(self) -> JsonObject:
        """Return everything as `kvtrace study --json` prints it."""
        return _findings_json(self.findings, self.output)

    def document(self, name: str = "", *, is_page: bool = False) -> Document:
        """Return the report; a page also has maps of two knobs, and every configuration."""
        return document(self.findings, name, is_page=is_page)

    def __repr__(self) -> str:
        return f"<StudyAnswer: {self.answer}>"

    def _repr_html_(self) -> str:
        """Return the answer for a notebook."""
        return f"<b>{html.escape(self.answer)}</b>{self.to_polars()._repr_html_()}"


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    """The fleets of a price list, and the cheapest that reaches the target."""

    findings: Findings
    """All simulated fleets with their figures and costs."""
    incidents: dict[str, tuple[Configuration, Simulated]]
    """The cheapest fleet simulated again with each incident, by the incident's name."""
    notes: list[str]
    """Assumptions about the requests, the model and the preset."""
    output: Path
    """The folder with the table of results and the stored simulations."""
    gpus: LeastGpus | None
    """The least GPUs that meet the service level; None unless it was to be found."""
    _plan: Plan = field(repr=False)
    _scenario: Scenario = field(repr=False)
    _folder: TemporaryFolder | None = field(default=None, repr=False)

    @property
    def answer(self) -> str:
        """The answer in one sentence."""
        line = self._plan.first_line(self.findings)
        return line if self.gpus is None else f"{self.gpus.describe()}; {line}"

    @property
    def cheapest(self) -> Candidate | None:
        """The cheapest fleet that reaches the target; None if none does.

        `cost` is in `currency` a month, `knobs` are the store, the router and the sizes.
        """
        return self.findings.cheapest

    @property
    def currency(self) -> str:
        """The currency of the price list."""
        return self._plan.prices.currency

    def to_polars(self) -> pl.DataFrame:
        """Return one row for each simulated fleet: its sizes, figures and cost a month (`price`)."""
        return _rows_frame(self.findings)

    def to_dict(self) -> JsonObject:
        """Return everything as `kvtrace plan --json` prints it."""
        chosen = self.findings.cheapest
        undisturbed = None
        if UNDISTURBED in self.incidents:
            undisturbed = self.incidents[UNDISTURBED][1].hit_steps
        return {
            "answer": self.answer,
            "basis": "simulated",
            "target": None if self.findings.target is None else self.findings.target.asked(),
            "currency": self.currency,
            "least_gpus": None if self.gpus is None else [asdict(c) for c in self.gpus.counts],
            "chosen": None if chosen is None else asdict(self._plan.fleet(chosen)),
            "stores": [asdict(option) for option in self._plan.store_options(self.findings)],
            "fleets": [asdict(self._plan.fleet(fleet)) for fleet in self.findings.candidates],
            "table": str(self.output / TABLE),
            "events": {
                event: {
                    "command": configuration.command,
                    "hits_back_ns": hits_back_ns(figures.hit_steps, undisturbed),
                    **asdict(figures),
                }
                for event, (configuration, figures) in self.incidents.items()
            },
        }

    def document(self) -> Document:
        """Return the report: the cheapest of each kind, incidents, and the commands of each."""
        document = self._plan.document(self.findings, self.incidents)
        if self.gpus is None:
            return document
        first, *others = document.chapters
        chapter = replace(first, tables=[self.gpus.table(), *first.tables])
        return replace(document, headline=self.answer, chapters=[chapter, *others])

    def page(self) -> Document:
        """Return the report as a page with sliders, a map of the fleets and the frontier."""
        scenario = self._scenario
        chart = break_even_chart(
            scenario.preset, scenario.model, scenario.ranks, str(scenario.config["model"])
        )
        return replace(
            self.document(),
            explorer=self._plan.explorer(self.findings),
            pictures=() if chart is None else (chart,),
        )

    def __repr__(self) -> str:
        return f"<PlanAnswer: {self.answer}>"

    def _repr_html_(self) -> str:
        """Return the answer for a notebook."""
        return f"<b>{html.escape(self.answer)}</b>{self.to_polars()._repr_html_()}"


def load_study(study: str | Path | Mapping[str, object]) -> Study:
    """Return a study without simulating it: its configurations, and the knobs that differ.

    Args:
        study: As in `kvtrace.study`.

    Raises:
        ConfigError: for an unknown key, or a configuration that `kvtrace gen` would refuse.

    Examples:
        >>> import kvtrace as kt
        >>> study = kt.load_study(
        ...     {"base": {"preset": "lmcache-disk", "users": 4}, "grid": {"seed": [1, 2]}}
        ... )
        >>> study.axes
        {'seed': [1, 2]}
        >>> print(study.configurations[1].command)
        kvtrace gen --preset lmcache-disk --users 4 --seed 2

    """
    source = Path(study) if isinstance(study, str | Path) else study
    name = str(source) if isinstance(source, Path) else "study"
    loaded = read_study(
        source,
        frozenset(gen_option_names()),
        StackArguments().preset,
        lambda tier, text: price_of_byte(text, f"{name}: {tier}"),
    )
    for configuration in loaded.configurations:
        try:
            parse_gen(configuration.argv)
        except KvError as error:
            raise ConfigError(f"{name}: configuration {configuration.number}: {error}") from None
    return loaded


@suggest_keywords
def study(
    study: str | Path | Mapping[str, object],
    *,
    target_hit: float | str | None = None,
    target_ttft: str | None = None,
    output: str | Path | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    traces: bool = False,
    tell: Tell | None = None,
    progress: Progress | None = None,
) -> StudyAnswer:
    """Simulate many configurations, and return the best and the cheapest that reaches a target.

    Results are stored: the same study in the same folder resumes where it stopped, and a larger one
    simulates only new configurations.

    Args:
        study: The path of a TOML file, or a mapping with the same tables: `base` has the
            settings of all configurations, `grid` lists of values of which every combination is simulated,
            `configuration` a list of further settings, `price` prices by tier such as
            `{"nvme": "0.1/GiB"}`. A key is an option of `kvtrace gen` without its dashes, `file`,
            or a knob of the preset.
        target_hit: The share of lookups that must hit in any tier, such as 0.7 or "70%".
        target_ttft: A percentile of the modelled time to first token, such as "p99=2s".
        output: The folder for results. Default: a temporary folder that lives as long as the
            returned object.
        workers: Simulations at a time. Default: one for each core.
        scheduler: Simulate on the Dask cluster of this scheduler, such as "tcp://10.0.0.1:8786".
        traces: Also write the trace of each configuration, below `traces` of the output.
        tell: Takes notes as the study goes on.
        progress: Called with the share of the configurations that are done.

    Returns:
        The answer: `answer` is the sentence, `best` and `cheapest` are configurations,
        `to_polars` has one row for each.

    Raises:
        ConfigError: for an unknown key or value, or if no configuration has a result.
        ProbeUnavailable: for a `scheduler` without Dask.

    Examples:
        >>> import kvtrace as kt
        >>> base = {"preset": "lmcache-disk", "model": "tiny-1b", "users": 4, "duration": "10s"}
        >>> base |= {"tiers.gpu.capacity": "64MiB", "tiers.cpu.capacity": "64MiB"}
        >>> found = kt.study({"base": base, "grid": {"tiers.nvme.capacity": ["64MiB", "1GiB"]}})
        >>> found.best.knobs["tiers.nvme.capacity"]
        '1GiB'
        >>> len(found.to_polars())
        2

    """
    target = parse_target(None if target_hit is None else str(target_hit), target_ttft)
    with _notes_to(tell) as tell_note:
        checked = load_study(study)
        folder, path = _output_folder(output)
        count = len(checked.configurations)
        with _kept_results(path, count, tell_note) as results:
            simulate_all(
                checked.configurations,
                path,
                results,
                workers=workers,
                scheduler=scheduler,
                with_traces=traces,
                is_compared=True,
                tell=tell_note,
                progress=lambda: (progress or _ignore)(len(results) / count),
            )
    rows = rows_of(checked, results)
    findings = collect_findings(checked, rows, target)
    write_rows(path / TABLE, checked, rows, ["kvtrace", "study", str(checked.path)])
    if not findings.candidates:
        error = findings.failed[0].result if findings.failed else None
        reason = getattr(error, "error", "no request looks up anything")
        raise ConfigError(
            f"{checked.path}: no result from any of {len(rows)} configurations; the first: {reason}"
        )
    return StudyAnswer(findings, path, folder)


@suggest_keywords
def plan(
    load: Mapping[str, object],
    *,
    target_hit: float | str | None = None,
    target_ttft: str | None = None,
    slo: str | None = None,
    prices: str | Path | None = None,
    day_profile: str | Path | None = None,
    output: str | Path | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    tell: Tell | None = None,
    progress: Progress | None = None,
) -> PlanAnswer:
    """Find the cache that reaches a target at the least cost a month: DRAM, storage and router.

    Each fleet of the price list is a simulation, in the order of its cost to own, until none is
    left that could be cheaper. Drives are amortised, or their endurance is exhausted sooner; a
    bucket is paid by request and byte. The cheapest is simulated again with an engine that restarts, and with a node
    that is lost.

    Args:
        load: The requests and the fleet that serves them, by options of `kvtrace gen` without
            their dashes: `file` or `users`, `model`, `gpu`, `nodes`, `router`, and knobs of the
            preset. The preset is lmcache-disk unless `preset` names another.
        target_hit: The share of lookups that must hit in any tier, such as 0.7 or "70%".
        target_ttft: A percentile of the modelled time to first token, such as "p99=2s".
        slo: Limits of TTFT and TPOT that 99 % of the requests must keep, such as
            "ttft=2s,tpot=50ms"; "share=95%" in it sets another share. Unless `load` says the number
            of `nodes`, the least number of GPUs that meet it is searched first, for each
            tensor-parallel degree unless `load` has `tp`, and the plan is for that fleet.
        prices: A price list as TOML: sizes, prices and speeds of media. Default: examples of 2026.
        day_profile: The load over a day, for wear and costs a month, as in `size`.
        output: The folder for results. Default: a temporary folder that lives as long as the
            returned object.
        workers: Simulations at a time. Default: one for each core.
        scheduler: Simulate on the Dask cluster of this scheduler.
        tell: Takes notes as the plan goes on.
        progress: Called with the share of the fleets that are done; some need no simulation.

    Returns:
        The answer: `answer` is the sentence, `cheapest` the fleet, `to_polars` all fleets.

    Raises:
        ConfigError: without a target, for an unknown option, or if the price list has no medium
            for the preset.

    Examples:
        >>> import kvtrace as kt
        >>> load = {
        ...     "users": 4, "duration": "20s", "model": "tiny-1b", "tiers.gpu.capacity": "64MiB"
        ... }
        >>> found = kt.plan(load, target_hit=0.1)
        >>> found.cheapest.knobs["router"], found.currency
        ('-', 'USD')

    """
    options = dict(load) if slo is None else {**load, "slo": slo}
    level = None if options.get("slo") is None else parse_service_level(str(options["slo"]))
    target = parse_target(None if target_hit is None else str(target_hit), target_ttft, level)
    if target is None:
        raise ConfigError(
            f"give the fleet a target, such as {named('target_hit', '60%')},"
            f" {named('target_ttft', 'p99=2s')} or {named('slo', 'ttft=2s,tpot=50ms')}"
        )
    with _notes_to(tell) as tell_note:
        profile = None if day_profile is None else read_day_profile(day_profile)
        return _plan(
            target, options, prices, profile, output, workers, scheduler, tell_note, progress
        )


@dataclass(frozen=True, slots=True)
class _Request:
    """What a plan is asked for, but for the load and the fleet."""

    preset: str
    presets: dict[Below, tuple[str, Preset]]
    router: object
    """The router of a fleet; None to try several."""
    is_searched: bool
    """Whether the number of nodes is searched, so that a router may be given without it."""
    prices: Prices
    byte_prices: Mapping[str, float]

    def resolve(self, options: Mapping[str, object]) -> tuple[Plan, Scenario]:
        """Return the plan of a load without its baseline, and the load as a scenario."""
        argv = _gen_arguments(options)
        is_fleet = "nodes" in options and options["nodes"] != 1
        named_router = self.router if is_fleet or not self.is_searched else None
        own_argv = ["--preset", self.preset]
        own_argv += [] if named_router is None else ["--router", str(named_router)]
        request = parse_gen((*argv, *own_argv))
        scenario = prepare_gen(request)
        nodes = scenario.preset.fleet.nodes
        routers = ["-"]
        if nodes > 1:
            routers = [str(self.router)] if self.router else list(ROUTERS)
        return Plan(
            request.file, argv, self.presets, nodes, routers, self.prices, self.byte_prices
        ), scenario


def _plan(
    target: Target,
    load: dict[str, object],
    price_list: str | Path | None,
    day_profile: DayProfile | None,
    output: str | Path | None,
    workers: int | None,
    scheduler: str | None,
    tell: Tell,
    progress: Progress | None,
) -> PlanAnswer:
    list_name, prices, byte_prices = _read_price_list(price_list)
    preset = str(load.pop("preset", None) or StoringArguments().preset)
    router = load.pop("router", None)
    presets = stacks_of(preset)
    if FILE in load and load.get("source") is None:
        load["source"] = detect(Path(str(load[FILE])))
        tell(f"note: {load[FILE]} is read as {named('source', load['source'])}")

    is_searched = target.service_level is not None and load.get("nodes") is None
    request = _Request(preset, presets, router, is_searched, prices, byte_prices)
    request_plan, scenario = request.resolve(load)
    if scenario.load.requests is not None:
        scenario.load.requests.check_shared()
    folder, path = _output_folder(output)
    gpus, chosen_notes = None, list(scenario.notes)
    if is_searched and target.service_level is not None and scenario.preset.fleet.nodes == 1:
        gpus = _search_least_gpus(
            request, load, scenario, target.service_level, path, workers, scheduler, tell
        )
        fleet = gpus.least(WITH_CACHE) or gpus.nearest(WITH_CACHE)
        load = fleet_load(load, scenario, fleet.tensor_parallel, fleet.nodes)
        request_plan, scenario = request.resolve(load)
        chosen_notes = []
    elif scenario.ranks > 1:
        # The commands of the fleets name the ranks, even if they were chosen.
        request_plan, scenario = request.resolve({**load, "tp": scenario.ranks})
    baseline = ttft_without_offload(scenario.preset, scenario.model, scenario.load, scenario.ranks)
    request_plan = replace(
        request_plan,
        without_offload=baseline,
        day_profile=day_profile,
        break_even_bytes_per_s=mean_break_even(
            scenario.model,
            scenario.preset.computing,
            scenario.ranks,
            scenario.load.requests,
        ),
    )
    offers = request_plan.offers()
    if all(offer.store is Below.NOTHING for offer in offers):
        raise ConfigError(
            f"{list_name}: no medium that {preset} can use; list nvme or file, or object for {SOME}"
        )
    with _kept_results(path, len(offers), tell) as results:
        simulate = partial(
            simulate_all,
            output=path,
            results=results,
            workers=workers,
            scheduler=scheduler,
            tell=tell,
            progress=lambda: (progress or _ignore)(min(1.0, len(results) / len(offers))),
        )
        # An answer must neither stall nor be slower than computing, unless every answer does or is.
        first, *looser = replace(target, without_offload=baseline, may_stall=False).relaxed()
        store = scenario.preset.tiers[-1]
        search = FleetSearch(request_plan, offers, store, simulate, results)
        findings = search.find_cheapest(first)
        for relaxed in looser:
            if findings.cheapest is None:
                findings = search.find_cheapest(relaxed)
        incidents = _simulate_incidents(request_plan, findings.cheapest, simulate, results, tell)
    write_rows(path / TABLE, findings.study, findings.rows, ["kvtrace", "plan", *request_plan.argv])
    notes = [*chosen_notes, *notes_of(scenario)]
    return PlanAnswer(findings, incidents, notes, path, gpus, request_plan, scenario, folder)


def fleet_load(
    load: Mapping[str, object], scenario: Scenario, degree: int, nodes: int
) -> dict[str, object]:
    """Return `load` on `nodes` nodes of `degree` GPUs each.

    A GPU tier without a capacity of its own gets the memory that vLLM gives its cache by default:
    90 % of that of the GPUs, less the weights. With a given degree it stays as the preset has it.
    """
    fleet = dict(load) | ({"nodes": nodes} if nodes > 1 else {})
    if load.get("tp") is not None:
        return fleet
    fleet["tp"] = degree
    key = "tiers.gpu.capacity"
    cache_bytes = _gpu_cache_bytes(scenario, degree)
    if key not in fleet and cache_bytes is not None and scenario.preset.gpu_bytes:
        # Whole MiB, as a capacity is written.
        fleet[key] = f"{cache_bytes >> 20}MiB"
    return fleet


def _gpu_cache_bytes(scenario: Scenario, degree: int) -> int | None:
    """Return the memory for the cache on `degree` GPUs: all ranks, or one if each has a copy of it.

    None if the GPU is unknown.
    """
    accelerator = GPUS.get(scenario.preset.gpu)
    if accelerator is None:
        return None
    model = scenario.model
    weights = round(model.parameters * model.weight_bytes)
    room = round(GPU_MEMORY_SHARE * degree * accelerator.memory_bytes) - weights
    return room // (
        1 if scenario.preset.each_rank_stores else degree // stored_ranks(model, degree)
    )


def _search_least_gpus(
    request: _Request,
    load: Mapping[str, object],
    scenario: Scenario,
    level: ServiceLevel,
    path: Path,
    workers: int | None,
    scheduler: str | None,
    tell: Tell,
) -> LeastGpus:
    """Return the least GPUs that meet `level`, for each tensor-parallel degree that can be used."""
    degrees = [scenario.ranks]
    if load.get("tp") is None:
        fitting = [
            degree
            for degree in DEGREES
            if (room := _gpu_cache_bytes(scenario, degree)) is not None and room > 1 << 30
        ]
        degrees = fitting or degrees

    def fleets(cache: str, degree: int, nodes: int) -> list[Configuration]:
        fleet_plan, _ = request.resolve(fleet_load(load, scenario, degree, nodes))
        return fleet_plan.largest_caches(is_without=cache == WITHOUT_OFFLOAD)

    def simulate(configurations: Sequence[Configuration]) -> dict[int, Result]:
        results: dict[int, Result] = {}
        simulate_all(
            configurations,
            path,
            results,
            workers=workers,
            scheduler=scheduler,
            tell=_ignore,
            progress=lambda: None,
        )
        for configuration in configurations:
            if isinstance(result := results[configuration.number], Failed):
                tell(f"note: {configuration.command}: {result.error}")
        return results

    requests = scenario.load.requests
    most_nodes = MOST_NODES if requests is None else min(MOST_NODES, len(requests))
    return GpuSearch(fleets, simulate, level.share, most_nodes).run(degrees)


def _read_price_list(price_list: str | Path | None) -> tuple[str, Prices, dict[str, float]]:
    """Return the name of the price list, its prices, and those of a byte by their text."""
    prices = read_prices(LIST if price_list is None else Path(price_list))
    list_name = LIST.name if price_list is None else str(price_list)
    texts = {medium.price for medium in (prices.dram, *prices.media.values())}
    return list_name, prices, {text: price_of_byte(text, list_name) for text in texts if text}


def _simulate_incidents(
    plan: Plan,
    cheapest: Candidate | None,
    simulate: Callable[[Sequence[Configuration]], None],
    results: Mapping[int, Result],
    tell: Tell,
) -> dict[str, tuple[Configuration, Simulated]]:
    """Simulate `cheapest` with each incident; return them by the incident's name."""
    incidents: dict[str, tuple[Configuration, Simulated]] = {}
    losses = plan.losses(cheapest) if cheapest else {}
    simulate(list(losses.values()))
    for event, configuration in losses.items():
        if isinstance(result := results[configuration.number], Failed):
            tell(f"note: {event}: not simulated: {result.error}")
        else:
            incidents[event] = configuration, result
    return incidents


def _gen_arguments(load: Mapping[str, object]) -> tuple[str, ...]:
    """Return `load` as arguments of `gen`, options in the order of its help."""
    order = {name: position for position, name in enumerate(gen_option_names())}
    values = {key: _setting(key, value) for key, value in load.items() if value is not None}
    ordered = dict(
        sorted(values.items(), key=lambda item: order.get(item[0].replace("_", "-"), len(order)))
    )
    return argv_of(ordered, frozenset(order))


def _setting(key: str, value: object) -> Value:
    if isinstance(value, str | int | float):
        return value
    if isinstance(value, Path):
        return str(value)
    raise ConfigError(f"{key}: {value!r} is neither text, a number, nor true or false")


def _output_folder(output: str | Path | None) -> tuple[TemporaryFolder | None, Path]:
    """Return the folder for results, and the object that deletes it if it is temporary."""
    if output is not None:
        return None, Path(output)
    folder = TemporaryFolder("kvtrace-")
    return folder, folder.path


@contextmanager
def _notes_to(tell: Tell | None) -> Iterator[Tell]:
    """Yield a function that takes notes; without `tell` the library prints none."""
    quiet = QUIET.set(QUIET.get() or tell is None)
    try:
        yield tell or _ignore
    finally:
        QUIET.reset(quiet)


def _ignore(_value: object) -> None:
    pass


@contextmanager
def _kept_results(output: Path, count: int, tell: Tell) -> Iterator[dict[int, Result]]:
    """Yield where results go; an interrupt tells how many are stored."""
    results: dict[int, Result] = {}
    try:
        yield results
    except (KeyboardInterrupt, SystemExit):
        tell(
            f"{len(results)} of {count} configurations are kept in {output}; the same command"
            " resumes with the others"
        )
        raise


def _rows_frame(findings: Findings) -> pl.DataFrame:
    frame = pl.from_arrow(rows_table(findings.study, findings.rows)[1])
    assert isinstance(frame, pl.DataFrame)  # a record batch, not one array
    return frame


def _findings_json(findings: Findings, output: Path) -> JsonObject:
    """Return the findings with a row for each configuration, as `--json` prints them."""

    def candidate_json(candidate: Candidate | None) -> JsonObject | None:
        names = ("knobs", "hit_ratio", "first_token_p99_ns", "recomputed_tokens", "cost")
        return None if candidate is None else {name: getattr(candidate, name) for name in names}

    pareto = front(findings.candidates, lambda candidate: candidate.hit_ratio)
    return {
        "answer": first_line(findings),
        "basis": "simulated",
        "table": str(output / TABLE),
        "configurations": len(findings.study.configurations),
        "failed": len(findings.failed),
        "cost": "price" if findings.study.has_prices else "capacity_bytes",
        "target": None if findings.target is None else findings.target.asked(),
        "best": candidate_json(findings.best),
        "cheapest": candidate_json(findings.cheapest),
        "not_exceeded": [candidate_json(candidate) for candidate in pareto],
        "sensitivity": [
            asdict(sensitivity) | {"swing": sensitivity.swing}
            for sensitivity in measure_sensitivities(findings.study, findings.rows)
        ],
        "rows": [
            {"configuration": row.configuration.number, "knobs": row.configuration.knobs}
            | (
                {"error": row.result.error}
                if isinstance(row.result, Failed)
                else {"error": None, **asdict(row.result)}
            )
            | {"price": row.price}
            for row in findings.rows
        ],
    }
