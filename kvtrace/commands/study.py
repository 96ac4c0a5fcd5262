"""Many configurations beside each other.

Those of a study (which is best, and what each knob does), or of a price list.

A plan is a study of all that a price list offers: which cache a fleet should have, and what it
costs a month.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.commands import options as common
from kvtrace.core.app import UsageError, command_line, command_of, emit_json, log, option, progress
from kvtrace.core.document.page import check_drawing, write_drawing
from kvtrace.core.document.terminal import answer
from kvtrace.core.errors import ConfigError, KvError, ProbeUnavailable
from kvtrace.core.json_types import JsonObject
from kvtrace.core.units import price_of_byte
from kvtrace.requests.registry import detect

if TYPE_CHECKING:
    from kvtrace.curves.points import Simulated
    from kvtrace.curves.size import Target
    from kvtrace.requests.requests import Requests
    from kvtrace.study.document import Findings
    from kvtrace.study.plan import Offer, Plan
    from kvtrace.study.run import Result, Task
    from kvtrace.study.study import Configuration


TABLE, PAGE, TRACES = "results.parquet", "study.html", "traces"
Workers = Annotated[
    int | None, typer.Option(min=1, max=4096, help="Simulations at a time.  [default: a core each]")
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        help="Simulate on the Dask cluster of this scheduler, such as tcp://10.0.0.1:8786."
    ),
]


# Long: two thirds are its options and its help.
def study(
    file: Annotated[
        Path, typer.Argument(metavar="STUDY.TOML", help="The study: what to simulate, as TOML.")
    ],
    output: Path = option(
        f"A folder for {TABLE}, {PAGE}, and the state to resume an interrupted study.",
        Path("study"),
        "-o --output",
    ),
    target_hit: common.TargetHit = None,
    target_ttft: common.TargetTtft = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    with_traces: bool = option(
        f"Also write each configuration's trace, below {TRACES}/.", False, "--with-traces"
    ),
    only_list: bool = option("Print the configurations without simulating them.", False, "--list"),
    as_json: common.AsJson = False,
) -> None:
    """Simulate many configurations, each once, and say which is best, which is cheap enough, and
    what each knob does.

    STUDY.TOML has options of gen and knobs: under [base] what all have, under [grid] lists of
    values (every combination is simulated), or one [[configuration]] after another; under [price]
    what tiers cost, such as nvme = "0.1/GiB". What is done is kept: the same command goes on where
    it stopped, and a larger study simulates only what is new.

    \b
    kvtrace study study.toml -o study/
    kvtrace study study.toml --list
    kvtrace study study.toml --target-hit 60% --workers 16
    kvtrace study study.toml --scheduler tcp://10.0.0.1:8786 --json
    """
    from kvtrace.curves.size import parse_target
    from kvtrace.study.document import collect_findings, document
    from kvtrace.study.run import rows_of, write_rows
    from kvtrace.study.study import read_study

    target = parse_target(target_hit, target_ttft)
    options = frozenset(gen_options())
    wanted = read_study(
        file,
        options,
        common.StackArguments().preset,
        lambda tier, text: price_of_byte(text, f"{file}: {tier}"),
    )
    for one in wanted.configurations:
        try:
            _asked(one.argv)
        except KvError as refused:
            raise ConfigError(f"{file}: configuration {one.number}: {refused}") from None
    if only_list:
        listed = [f"{one.number}: {one.named(list(wanted.axes))}" for one in wanted.configurations]
        if as_json:
            emit_json({"configurations": [one.knobs for one in wanted.configurations]})
        else:
            typer.echo("\n".join([f"{len(listed)} configurations", *listed]))
        return
    with noted_interrupt(output, len(wanted.configurations)) as results:
        simulate_all(
            wanted.configurations, output, results, workers, scheduler, with_traces=with_traces
        )
    rows = rows_of(wanted, results)
    found = collect_findings(wanted, rows, target)
    write_rows(output / TABLE, wanted, rows, ["kvtrace", "study", str(file)])
    if not found.candidates:
        error = found.failed[0].result if found.failed else None
        why = getattr(error, "error", "no request looks up anything")
        raise ConfigError(
            f"{file}: no result from any of {len(rows)} configurations; the first: {why}"
        )
    try:
        check_drawing(Path(PAGE), "the page")
    except ProbeUnavailable as error:
        log(f"note: no {PAGE}: {error}")
    else:
        write_drawing(output / PAGE, document(found, file.name, is_page=True), command_line())
    answer(as_json_of(found, output), lambda: document(found, "", is_page=False), as_json=as_json)


def gen_options() -> Iterator[str]:
    """Yield the options of a simulation, without their dashes."""
    for parameter in _command().params:
        if parameter.param_type_name == "option":
            yield from (name.removeprefix("--") for name in parameter.opts if name.startswith("--"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """One simulation, as its command line says it: what `gen` takes, but for its outputs."""

    file: Annotated[Path | None, typer.Argument()] = None
    stack: common.StackArguments
    fleet: common.FleetArguments
    users: common.UserArguments
    run: common.RunArguments
    drive: common.DriveArguments
    source: common.SourceArguments
    turns: common.TurnsOption = None
    event: common.EventOption = None


@cache
def _command() -> Any:
    return command_of(_Asked, "gen")


def _asked(argv: tuple[str, ...]) -> _Asked:
    """Return what `argv` asks for; ConfigError if `gen` would not take it."""
    try:
        # Not by calling the command, which would make a number of Ctrl-C.
        with _command().make_context("gen", list(argv)) as context:
            found: _Asked = _command().invoke(context)
    except UsageError as error:
        raise ConfigError(error.format_message()) from None
    return found


def simulate(task: Task) -> Simulated:
    """Simulate what `task` asks for, as `gen` does, and count."""
    from kvtrace.curves.points import Meter, Stack, simulated
    from kvtrace.sim import output as trace_output

    with chdir(task.folder):
        # Typer keeps the values of a command line in one place for all threads.
        with _PREPARING:
            asked = _asked(task.argv)
            scenario = common.prepare(
                asked.file, asked.fleet.over(asked.stack), asked.users, asked.run, asked.source, asked.turns,
                read=partial(_read, task.file_sha256), events=asked.event or (),
            )  # fmt: skip
            asked.fleet.check(scenario.preset)
            stack = Stack(
                scenario.preset, scenario.model, scenario.load, scenario.ranks, scenario.span_ns
            )
            bounds = stack.with_chains()
            simulation = replace(scenario, load=bounds.load).simulation()
        meter = Meter(simulation, keeps_rows=task.trace is not None)
        if task.trace is None:
            simulation.run(meter)
        else:
            trace_output.write(
                Path(task.trace), simulation, scenario.config, ["kvtrace", "gen", *task.argv]
            )
    found = simulated(
        simulation,
        meter,
        scenario.span_ns(simulation),
        asked.drive.endurance,
        asked.drive.drive_size,
    )
    has_bound = (
        scenario.preset.fleet.nodes == 1 and not asked.event
    )  # what begins again looks up again
    optimum = bounds.optimum({}) if has_bound else None
    notes = scenario.preset.memory_notes(scenario.model, scenario.ranks)
    return replace(found, optimal_hit_ratio=optimum, notes=tuple(notes))


_PREPARING = Lock()


@lru_cache(maxsize=2)
def _read(
    sha256: str | None,
    source: common.SourceArguments,
    path: Path,
    seed: int,
    max_requests: int | None,
) -> Requests:
    """Return the requests of a file with that hash, which one configuration after another asks for."""
    from kvtrace.study.study import files_sha256

    if sha256 != files_sha256(path):
        raise ConfigError(f"{path} has changed since the study started, or differs on this worker")
    return source.read(path, seed, max_requests)


def simulate_all(
    wanted: Sequence[Configuration],
    output: Path,
    results: dict[int, Result],
    workers: int | None,
    scheduler: str | None,
    *,
    with_traces: bool = False,
) -> None:
    """Fill `results`, by configuration.

    What was kept, then what is simulated now, as it is ready.
    """
    from kvtrace.study.run import Failed, Task, run_locally, run_on_dask
    from kvtrace.study.study import FILE, Results, files_sha256, key_of

    kept = Results(output)
    traces = output.absolute() / TRACES
    if with_traces:
        traces.mkdir(exist_ok=True)
    numbers: dict[str, list[int]] = {}
    tasks = []
    for one in wanted:
        key = key_of(one)
        trace = traces / f"{one.number}.parquet" if with_traces else None
        if (old := kept.load(key, trace)) is not None:
            results[one.number] = old
            continue
        numbers.setdefault(key, []).append(one.number)
        if len(numbers[key]) == 1 or trace is not None:
            file = one.knobs.get(FILE)
            sha256 = None if file is None else files_sha256(Path(str(file)))
            tasks.append(
                Task(key, one.argv, str(Path.cwd()), sha256, str(trace) if trace else None)
            )
    if done := sum(one.number in results for one in wanted):
        log(f"note: {done} of {len(wanted)} configurations were simulated before")
    if scheduler and workers:
        raise ConfigError(
            "--workers is for this machine, --scheduler has workers of its own; leave one of the"
            " two out"
        )
    count = workers or os.cpu_count() or 1
    made = (
        run_on_dask(tasks, simulate, scheduler)
        if scheduler
        else run_locally(tasks, simulate, count)
    )
    with progress("simulating", len(tasks)) as tick:
        for at, (task, found) in enumerate(made, 1):
            if not isinstance(found, Failed):
                kept.store(task.key, found, Path(task.trace) if task.trace else None)
            results.update(dict.fromkeys(numbers[task.key], found))
            tick(at)


@contextmanager
def noted_interrupt(output: Path, count: int) -> Iterator[dict[int, Result]]:
    """Yield where results go; say how many are kept if the block is interrupted."""
    results: dict[int, Result] = {}
    try:
        yield results
    except (KeyboardInterrupt, SystemExit):
        log(
            f"{len(results)} of {count} configurations are kept in {output}; the same command"
            " resumes with the others"
        )
        raise


def as_json_of(found: Findings, output: Path) -> JsonObject:
    """Return what was found, with a row for each configuration, as `--json` prints it."""
    from kvtrace.study.document import first_line, front, measure_sensitivities
    from kvtrace.study.run import Failed

    def candidate(of: Any) -> JsonObject | None:
        names = ("knobs", "hit_ratio", "first_token_p99_ns", "recomputed_tokens", "cost")
        return None if of is None else {name: getattr(of, name) for name in names}

    return {
        "answer": first_line(found),
        "basis": "simulated",
        "table": str(output / TABLE),
        "configurations": len(found.study.configurations),
        "failed": len(found.failed),
        "cost": "price" if found.study.has_prices else "capacity_bytes",
        "target": None if found.target is None else asdict(found.target),
        "best": candidate(found.best),
        "cheapest": candidate(found.cheapest),
        "not_exceeded": [candidate(of) for of in front(found.candidates, lambda of: of.hit_ratio)],
        "sensitivity": [
            asdict(of) | {"swing": of.swing}
            for of in measure_sensitivities(found.study, found.rows)
        ],
        "rows": [
            {"configuration": row.configuration.number, "knobs": row.configuration.knobs}
            | (
                {"error": row.result.error}
                if isinstance(row.result, Failed)
                else {"error": None, **asdict(row.result)}
            )
            | {"price": row.price}
            for row in found.rows
        ],
    }


ROUTERS = "round-robin", "prefix"
_OWN = {"preset", "router", "settings"}


# Long: its options, and its help.
def plan(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="A file of real requests; without it, synthetic users.")
    ] = None,
    *,
    target_hit: common.TargetHit = None,
    target_ttft: common.TargetTtft = None,
    prices: Path | None = option(
        "Price list: sizes, prices and speeds of media.  [default: examples of 2026]"
    ),
    output: Path = option(
        f"A folder for {TABLE}, and the state to resume from.", Path("plan"), "-o --output"
    ),
    workers: Workers = None,
    scheduler: Scheduler = None,
    as_json: common.AsJson = False,
    stack: common.StoringArguments,
    fleet: common.FleetArguments,
    users: common.UserArguments,
    run: common.RunArguments,
    source: common.SourceArguments,
    turns: common.TurnsOption = None,
) -> None:
    """Find the cache that reaches a target at the least cost a month.

    DRAM, drives or a shared store, and the router.

    Each fleet of the price list is a simulation as of gen, of lmcache-disk unless --preset says
    another stack, routed by round-robin and by prefix unless --router says how, kept in the output
    folder: with other prices only what is new is simulated. Drives are written off, or worn out
    sooner; a bucket is paid by request and byte. The answer is simulated again with an engine that
    restarts, and with a node that is lost.

    \b
    kvtrace plan requests.jsonl --model llama3.1-70b --tp 4 --gpu h100 --nodes 8 --target-hit 60%
    kvtrace plan requests.jsonl --nodes 8 --target-ttft p99=2s --prices prices.toml
    kvtrace plan --users 200 --duration 10m --nodes 4 --target-hit 50% --router session
    """
    from kvtrace.curves.size import parse_target
    from kvtrace.sim.output import notes_of
    from kvtrace.study.plan import LIST, SOME, Below, Plan, read_prices, stacks_of
    from kvtrace.study.run import Failed, write_rows

    target = parse_target(target_hit, target_ttft)
    if target is None:
        raise ConfigError(
            "give the fleet a target, such as --target-hit 60% or --target-ttft p99=2s"
        )
    listed = read_prices(prices or LIST)
    where = str(prices or LIST.name)
    of_byte = {
        text: price_of_byte(text, where)
        for text in {of.price for of in (listed.dram, *listed.media.values())}
        if text
    }
    presets = stacks_of(stack.preset)
    if file is not None and source.source is None:
        source = replace(source, source=detect(file))
        log(f"note: {file} is read as --source {source.source}")
    scenario = common.prepare(file, fleet.over(stack), users, run, source, turns)
    fleet.check(scenario.preset)
    if scenario.load.requests is not None:
        scenario.load.requests.check_shared()
    nodes = scenario.preset.fleet.nodes
    routers = [str(fleet.router)] if fleet.router else list(ROUTERS) if nodes > 1 else ["-"]
    wanted = Plan(file, _for_gen(context, stack, source), presets, nodes, routers, listed, of_byte)
    offers = wanted.offers()
    if all(of.store is Below.NOTHING for of in offers):
        raise ConfigError(
            f"{where}: no medium that {stack.preset} can use; list nvme or file, or object for"
            f" {SOME}"
        )
    with noted_interrupt(output, len(offers)) as results:
        simulate = partial(
            simulate_all, output=output, results=results, workers=workers, scheduler=scheduler
        )
        found = _found(wanted, offers, target, simulate, results)
        lost: JsonObject = {}
        for event, one in (wanted.losses(found.cheapest) if found.cheapest else {}).items():
            simulate([one])
            if isinstance(of := results[one.number], Failed):
                log(f"note: {event}: not simulated: {of.error}")
            else:
                lost[event] = one, of
    write_rows(output / TABLE, found.study, found.rows, ["kvtrace", "plan", *wanted.argv])
    for note in notes_of(scenario.preset, scenario.model, scenario.load.requests, scenario.ranks):
        log(f"note: {note}")
    said = as_json_of(found, output) | {
        "answer": wanted.first_line(found),
        "nodes": nodes,
        "currency": listed.currency,
    }
    said["events"] = {
        event: {"command": one.command, **asdict(of)} for event, (one, of) in lost.items()
    }
    answer(said, lambda: wanted.document(found, lost), as_json=as_json)


def _found(
    wanted: Plan,
    offers: Sequence[Offer],
    target: Target,
    simulate: Callable[[Sequence[Configuration]], None],
    results: Mapping[int, Result],
) -> Findings:
    """Simulate what may be the cheapest of its kind, some at a time, and return what that comes to."""
    from kvtrace.study.document import collect_findings
    from kvtrace.study.plan import WAVE, kind_of, rivals_of

    found = collect_findings(wanted.study(offers), [], target)
    for at in range(0, len(offers), WAVE):
        best = {
            kind: math.inf if of.cost is None else of.cost for kind, of in rivals_of(found).items()
        }
        left = [
            of
            for of in offers[at : at + WAVE]
            if of.ownership_cost < best.get(kind_of(of.configuration.knobs), math.inf)
        ]
        simulate([of.configuration for of in left])
        rows = [wanted.row(of, results[of.configuration.number]) for of in left]
        found = collect_findings(found.study, found.rows + rows, target)
    if not found.candidates:
        raise ConfigError("no request looks up anything: no prompt repeats what another has stored")
    return found


def _for_gen(
    context: typer.Context, stack: common.StackArguments, source: common.SourceArguments
) -> tuple[str, ...]:
    """Return what was given of the arguments of `gen`, but for the stack's name and the router."""
    said = [
        of for of in sys.argv[2:] if of != "--quiet"
    ]  # which every command takes, but no parser knows
    known, given = set(gen_options()), context.command.make_parser(context).parse_args(said)[0]
    if source.source is not None:
        given = given | {"source": source.source}
    argv = [given["file"]] if given.get("file") else []
    for one in context.command.params:
        flag = one.opts[0]
        if one.name in given and one.name not in _OWN and flag.removeprefix("--") in known:
            argv += [flag] if getattr(one, "is_flag", False) else [flag, str(given[one.name])]
    return (*argv, *(part for of in stack.settings or () for part in ("--set", of)))
