"""The commands `study` and `plan`: many configurations side by side, or those of a price list."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import kvtrace
from kvtrace.commands.options import AsJson, TargetHit, TargetTtft
from kvtrace.core.app import command_line, emit_json, log, option, progress
from kvtrace.core.document.page import check_drawing, write_drawing
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
        found = kvtrace.study(
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
        write_drawing(output / PAGE, found.document(file.name, is_page=True), command_line())
    answer(found.to_dict(), found.document, as_json=as_json)


# Long: its options, and its help.
def plan(
    context: typer.Context,
    file: Annotated[  # noqa: ARG001 - `_load_of` reads the arguments of gen as they are written
        Path | None, typer.Argument(help="A file of real requests; without it, synthetic users.")
    ] = None,
    *,
    target_hit: TargetHit = None,
    target_ttft: TargetTtft = None,
    prices: Path | None = option(
        "Price list: sizes, prices and speeds of media.  [default: examples of 2026]"
    ),
    output: Path = option(
        f"A folder for {TABLE}, and the state to resume from.", Path("plan"), "-o --output"
    ),
    workers: Workers = None,
    scheduler: Scheduler = None,
    as_json: AsJson = False,
    stack: gen_options.StoringArguments,
    fleet: gen_options.FleetArguments,  # noqa: ARG001 - `_load_of` reads it as it is written
    users: gen_options.UserArguments,  # noqa: ARG001
    run: gen_options.RunArguments,  # noqa: ARG001
    source: gen_options.SourceArguments,  # noqa: ARG001
    turns: gen_options.TurnsOption = None,  # noqa: ARG001
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
    with progress("simulating", 1.0) as tick:
        found = kvtrace.plan(
            _load_of(context, stack),
            target_hit=target_hit,
            target_ttft=target_ttft,
            prices=prices,
            output=output,
            workers=workers,
            scheduler=scheduler,
            tell=log,
            progress=tick,
        )
    for note in found.notes:
        log(f"note: {note}")
    answer(found.to_dict(), found.document, as_json=as_json)


_OWN = ("settings", "file")


def _load_of(context: typer.Context, stack: gen_options.StackArguments) -> dict[str, object]:
    """Return the arguments that were given and that `gen` takes, by their names there."""
    # No parser knows --quiet, which every command takes.
    argv = [argument for argument in sys.argv[2:] if argument != "--quiet"]
    given = context.command.make_parser(context).parse_args(argv)[0]
    gen_names = set(gen_options.gen_option_names())
    load: dict[str, object] = {"file": given["file"]} if given.get("file") else {}
    for parameter in context.command.params:
        name = parameter.opts[0].removeprefix("--")
        if parameter.name in given and parameter.name not in _OWN and name in gen_names:
            load[name] = given[parameter.name]
    for setting in stack.settings or ():
        key, _, value = setting.partition("=")
        load[key.strip()] = value
    return load
