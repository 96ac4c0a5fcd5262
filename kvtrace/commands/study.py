"""The commands `study` and `plan`: simulate many configurations, or find the cheapest cache."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

import kvtrace
from kvtrace.commands.options import AsJson, DayProfile, TargetHit, TargetTtft
from kvtrace.core.app import command_line, emit_json, log, option, progress
from kvtrace.core.document.drawing import check_drawing, write_drawing
from kvtrace.core.document.terminal import answer
from kvtrace.core.errors import ProbeUnavailable
from kvtrace.studies import gen_options

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


# It is long because of its options and its help.
def study(
    file: Annotated[
        Path, typer.Argument(metavar="STUDY.TOML", help="The study: what to simulate, as TOML.")
    ],
    output: Path = option(
        f"A folder for {TABLE}, {PAGE}, and the state to resume an interrupted study.",
        Path("study"),
        "-o --output",
    ),
    target_hit: TargetHit = None,
    target_ttft: TargetTtft = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    with_traces: bool = option(
        f"Also write each configuration's trace, below {TRACES}/.", False, "--with-traces"
    ),
    only_list: bool = option("Print the configurations without simulating them.", False, "--list"),
    as_json: AsJson = False,
) -> None:
    """Simulate many configurations, and print the best, the cheapest that reaches a target, and the
    effect of each knob.

    STUDY.TOML has options of gen and knobs. [base] has those of all configurations, [grid] has
    lists of values (every combination is simulated); or list each [[configuration]]. [price] has
    the prices of tiers, such as nvme = "0.1/GiB". Results are stored in the output folder: the same
    command resumes an interrupted study, and a larger study simulates only new configurations.

    \b
    kvtrace study study.toml -o study/
    kvtrace study study.toml --list
    kvtrace study study.toml --target-hit 60% --workers 16
    kvtrace study study.toml --scheduler tcp://10.0.0.1:8786 --json
    """
    if only_list:
        loaded = kvtrace.load_study(file)
        if as_json:
            knobs = [configuration.knobs for configuration in loaded.configurations]
            emit_json({"configurations": knobs})
        else:
            typer.echo(f"{len(loaded.configurations)} configurations")
            for configuration in loaded.configurations:
                typer.echo(f"{configuration.number}: {configuration.named(list(loaded.axes))}")
        return
    with progress("simulating", 1.0) as tick:
        result = kvtrace.study(
            file,
            target_hit=target_hit,
            target_ttft=target_ttft,
            output=output,
            workers=workers,
            scheduler=scheduler,
            traces=with_traces,
            tell=log,
            progress=tick,
        )
    try:
        check_drawing(Path(PAGE), "the page")
    except ProbeUnavailable as error:
        log(f"note: no {PAGE}: {error}")
    else:
        write_drawing(output / PAGE, result.document(file.name, is_page=True), command_line())
    answer(result.to_dict(), result.document, as_json=as_json)


# It is long because of its options and its help.
def plan(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="A file of real requests; without it, synthetic users.")
    ] = None,
    *,
    target_hit: TargetHit = None,
    target_ttft: TargetTtft = None,
    prices: Path | None = option(
        "Price list: sizes, prices and speeds of media.  [default: examples of 2026]"
    ),
    day_profile: DayProfile = None,
    output: Path = option(
        f"A folder for {TABLE}, and the state to resume from; or a page (*.html) with sliders,"
        " beside such a folder of its name.",
        Path("plan"),
        "-o --output",
    ),
    workers: Workers = None,
    scheduler: Scheduler = None,
    as_json: AsJson = False,
    stack: gen_options.StoringArguments,
    fleet: gen_options.FleetArguments,  # noqa: ARG001 - `_load_of` reads it from the command line
    users: gen_options.UserArguments,  # noqa: ARG001
    run: gen_options.RunArguments,  # noqa: ARG001
    source: gen_options.SourceArguments,  # noqa: ARG001
    turns: gen_options.TurnsOption = None,  # noqa: ARG001
) -> None:
    """Find the cache that reaches a target at the lowest monthly cost.

    It chooses DRAM, drives or a shared store, and the router.

    Each fleet of the price list is simulated as by gen. The default preset is lmcache-disk. Without
    --router, round-robin and prefix are both simulated. Results are stored in the output folder:
    with other prices, only new configurations are simulated. A drive costs its price over its
    service life, which ends early if its endurance is used up; a bucket costs by request and byte.
    The answer is simulated again with an engine restart, and with the loss of a node.

    \b
    kvtrace plan requests.jsonl --model llama3.1-70b --tp 4 --gpu h100 --nodes 8 --target-hit 60%
    kvtrace plan requests.jsonl --nodes 8 --target-ttft p99=2s --prices prices.toml
    kvtrace plan --users 200 --duration 10m --nodes 4 --target-hit 50% --router session
    """
    page = output if output.suffix == ".html" else None
    if page is not None:
        check_drawing(page, "-o")
        output = page.with_suffix("")
    with progress("simulating", 1.0) as tick:
        result = kvtrace.plan(
            _load_of(context, stack),
            target_hit=target_hit,
            target_ttft=target_ttft,
            prices=prices,
            day_profile=None if day_profile is None else str(day_profile),
            output=output,
            workers=workers,
            scheduler=scheduler,
            tell=log,
            progress=tick,
        )
    for note in result.notes:
        log(f"note: {note}")
    if page is not None:
        name = f"Plan for {file.name if file else 'synthetic users'}"
        write_drawing(page, replace(result.page(), name=name), command_line())
    answer(result.to_dict(), result.document, as_json=as_json)


_READ_APART = ("settings", "file")
"""Parameters that `_load_of` does not copy under their own names."""


def _load_of(context: typer.Context, stack: gen_options.StackArguments) -> dict[str, object]:
    """Return the given arguments that `gen` also has, by their names in `gen`."""
    # Every command takes --quiet, but the parser of the command does not have it.
    argv = [argument for argument in sys.argv[2:] if argument != "--quiet"]
    arguments = context.command.make_parser(context).parse_args(argv)[0]
    gen_names = set(gen_options.gen_option_names())
    load: dict[str, object] = {"file": arguments["file"]} if arguments.get("file") else {}
    for parameter in context.command.params:
        name = parameter.opts[0].removeprefix("--")
        if parameter.name in arguments and parameter.name not in _READ_APART and name in gen_names:
            load[name] = arguments[parameter.name]
    for setting in stack.settings or ():
        key, _, value = setting.partition("=")
        load[key.strip()] = value
    return load
