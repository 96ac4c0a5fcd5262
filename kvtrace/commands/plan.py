"""Which cache should my fleet have, and what does it cost a month? A study of all that a price list offers."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.commands.options import (
    AsJson,
    FleetArguments,
    RunArguments,
    SourceArguments,
    StackArguments,
    TargetHit,
    TargetTtft,
    TurnsOption,
    UserArguments,
    parse_target,
    price_of_byte,
)
from kvtrace.commands.scenario import prepare
from kvtrace.commands.study import TABLE, as_json_of, gen_options, noted_interrupt, simulate_all
from kvtrace.core.app import log, takes_groups
from kvtrace.core.errors import ConfigError
from kvtrace.requests.registry import detect

if TYPE_CHECKING:
    from kvtrace.curves.size import Target
    from kvtrace.study.document import Findings
    from kvtrace.study.plan import Offer, Plan
    from kvtrace.study.run import Result
    from kvtrace.study.study import Configuration

PRESET, ROUTERS = "lmcache-disk", ("round-robin", "prefix")
_OWN = {"preset", "router", "settings"}


# Long: its options, and its help.
@takes_groups
def plan(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="A file of real requests; without it, synthetic users.")] = None,
    *,
    target_hit: TargetHit = None,
    target_ttft: TargetTtft = None,
    prices: Annotated[
        Path | None, typer.Option(help="Sizes, prices and speeds of what can be bought.  [default: examples of 2026]")
    ] = None,
    output: Annotated[
        Path, typer.Option("-o", "--output", help=f"A folder for {TABLE}, and what is kept to go on with.")
    ] = Path("plan"),
    workers: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Simulations at a time.  [default: a core each]")
    ] = None,
    scheduler: Annotated[str | None, typer.Option(help="Simulate on the Dask cluster of this scheduler.")] = None,
    as_json: AsJson = False,
    stack: StackArguments,
    fleet: FleetArguments,
    users: UserArguments,
    run: RunArguments,
    source: SourceArguments,
    turns: TurnsOption = None,
) -> None:
    """Find the cache that reaches a target at the least cost a month: DRAM, drives or a shared store, and the router.

    Each fleet of the price list is a simulation as of gen, of lmcache-disk unless --preset says another stack, kept in
    the output folder: with other prices the same command simulates only what is new. Drives are written off, or worn
    out sooner; a bucket is paid by request and byte. The answer is simulated again with an engine that restarts, and
    with a node that is lost.

    \b
    kvtrace plan requests.jsonl --model llama3.1-70b --tp 4 --gpu h100 --nodes 8 --target-hit 60%
    kvtrace plan requests.jsonl --nodes 8 --target-ttft p99=2s --prices prices.toml
    kvtrace plan --users 200 --duration 10m --nodes 4 --target-hit 50% --router session
    """
    from kvtrace.core.document.terminal import answer
    from kvtrace.sim.presets.preset import load_preset
    from kvtrace.study import table
    from kvtrace.study.plan import LIST, OBJECT_PRESETS, Below, Plan, read_prices
    from kvtrace.study.run import Failed

    target = parse_target(target_hit, target_ttft)
    if target is None:
        raise ConfigError("say what the fleet is to reach, such as --target-hit 60% or --target-ttft p99=2s")
    listed = read_prices(prices or LIST)
    where = str(prices or LIST.name)
    of_byte = {
        text: price_of_byte(text, where) for text in {of.price for of in (listed.dram, *listed.media.values())} if text
    }
    name = stack.preset if "preset" in _given(context) else PRESET
    names = {Below.NVME: name, Below.FILE: name, Below.OBJECT: OBJECT_PRESETS.get(name)}
    presets = {store: (of, load_preset(of, ())) for store, of in names.items() if of}
    if file is not None and source.source is None:
        source = replace(source, source=detect(file))
        log(f"note: {file} is read as --source {source.source}")
    scenario = prepare(file, fleet.over(replace(stack, preset=name)), users, run, source, turns)
    if scenario.load.requests is not None:
        scenario.load.requests.check_shared()
    nodes = scenario.preset.fleet.nodes
    routers = [str(fleet.router)] if fleet.router else list(ROUTERS) if nodes > 1 else ["-"]
    wanted = Plan(file, _for_gen(context, stack, source), presets, nodes, routers, listed, of_byte)
    offers = wanted.offers()
    if not offers:
        raise ConfigError(
            f"{where}: nothing that {name} could use; list nvme or file, or object for {' or '.join(OBJECT_PRESETS)}"
        )
    with noted_interrupt(output, len(offers)) as results:
        simulate = partial(simulate_all, output=output, results=results, workers=workers, scheduler=scheduler)
        found = _found(wanted, offers, target, simulate, results)
        lost: dict[str, Any] = {}
        for event, one in (wanted.losses(found.cheapest) if found.cheapest else {}).items():
            simulate([one])
            if not isinstance(of := results[one.number], Failed):
                lost[event] = one, of
    table.write(output / TABLE, found.study, found.rows, ["kvtrace", "plan", *wanted.argv])
    for note in scenario.load.requests.notes if scenario.load.requests else ():
        log(f"note: {note}")
    said = as_json_of(found, output) | {"answer": wanted.first_line(found), "nodes": nodes, "currency": listed.currency}
    said["events"] = {event: {"command": one.command, **asdict(of)} for event, (one, of) in lost.items()}
    answer(said, lambda: wanted.document(found, lost), as_json=as_json)


def _found(
    wanted: Plan,
    offers: Sequence[Offer],
    target: Target,
    simulate: Callable[[Sequence[Configuration]], None],
    results: Mapping[int, Result],
) -> Findings:
    """Simulate what may be the cheapest of its kind, some at a time, and return what that comes to."""
    from kvtrace.study.document import findings
    from kvtrace.study.plan import kind_of, rivals_of, waves

    found = findings(wanted.study(offers), [], target)
    for wave in waves(offers):
        best = {kind: math.inf if of.cost is None else of.cost for kind, of in rivals_of(found).items()}
        left = [of for of in wave if of.owned < best.get(kind_of(of.configuration.knobs), math.inf)]
        simulate([of.configuration for of in left])
        rows = [wanted.row(of, results[of.configuration.number]) for of in left]
        found = findings(found.study, found.rows + rows, target)
    if not found.candidates:
        raise ConfigError("no request looks anything up: none could find what another has left")
    return found


def _given(context: typer.Context) -> dict[str, Any]:
    """Return the options and arguments that were given, as they were written."""
    found: dict[str, Any] = context.command.make_parser(context).parse_args(sys.argv[2:])[0]
    return found


def _for_gen(context: typer.Context, stack: StackArguments, source: SourceArguments) -> tuple[str, ...]:
    """Return what was given of the arguments of `gen`, but for the stack's name and the router."""
    known, given = set(gen_options()), {**_given(context)}
    if source.source is not None:
        given["source"] = source.source
    argv = [given["file"]] if given.get("file") else []
    for option in context.command.params:
        flag = option.opts[0]
        if option.name in given and option.name not in _OWN and flag.removeprefix("--") in known:
            argv += [flag] if getattr(option, "is_flag", False) else [flag, str(given[option.name])]
    return (*argv, *(part for of in stack.settings or () for part in ("--set", of)))
