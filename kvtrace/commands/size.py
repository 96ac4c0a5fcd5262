"""How much DRAM and NVMe a load needs: the target as the command line says it, and the answer as JSON or tables."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.commands.options import AsJson, SourceArguments, UserArguments
from kvtrace.commands.scenario import RunArguments, StackArguments, TurnsOption, prepare
from kvtrace.commands.targets import (
    TargetHit,
    TargetTtft,
    check_page,
    parse_target,
    price_of_byte,
    write_page,
)
from kvtrace.core.app import emit_json, log, progress, takes_groups
from kvtrace.core.errors import ConfigError
from kvtrace.core.statistics import parse_endurance
from kvtrace.core.units import parse_bytes

if TYPE_CHECKING:
    from kvtrace.curves.size import Target

MAX_POINTS = 1000


# Long: two thirds are its options and its help.
@takes_groups
def size(
    file: Annotated[Path | None, typer.Argument(help="A file of real requests; without it, synthetic users.")] = None,
    target_hit: TargetHit = None,
    target_ttft: TargetTtft = None,
    dram: Annotated[
        str | None, typer.Option(help="DRAM capacities, with commas, such as 0,256GiB,1TiB.  [default: 2, by the load]")
    ] = None,
    nvme: Annotated[
        str | None, typer.Option(help="NVMe capacities, such as 1TiB,unlimited.  [default: 10, by the load]")
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="TIER=PRICE/UNIT", help="Look for the cheapest: dram=4/GiB and nvme=0.1/GiB."),
    ] = None,
    endurance: Annotated[
        str | None, typer.Option(help="What a drive may be written: 1DWPD,5y, or in all, such as 14PB.")
    ] = None,
    sample: Annotated[
        float | None,
        typer.Option(help="Share of the objects in each of 4 samples; 1: all.  [default: as many as take seconds]"),
    ] = None,
    page: Annotated[Path | None, typer.Option("--html", help="Also write a page with charts.")] = None,
    as_json: AsJson = False,
    *,
    stack: StackArguments,
    users: UserArguments,
    run: RunArguments,
    source: SourceArguments,
    turns: TurnsOption = None,
) -> None:
    """Find the smallest, or the cheapest, DRAM and NVMe that reach a hit ratio or a time to first token.

    Each point of a grid of capacities is a simulation as of gen; where all would take long, the grid is estimated from
    samples of the objects, with its error, and the answer is simulated in full. The requests of FILE are served in
    order and computing takes no time (gen --gpu instant), unless --gpu or --target-ttft is given.

    \b
    kvtrace size conversation.jsonl --model llama3.1-70b --tp 4 --preset vllm-fs --target-hit 30%
    kvtrace size conversation.jsonl --preset lmcache-disk --target-hit 30% --price dram=4/GiB --price nvme=0.1/GiB
    kvtrace size conversation.jsonl --preset vllm-fs --target-hit 30% --dram 512GiB --nvme 1TiB,2TiB --html size.html
    kvtrace size --users 100 --preset lmcache-disk --target-ttft p99=2s --endurance 1DWPD,5y
    """
    from kvtrace.commands.documents.sizes import document, first_line
    from kvtrace.core.document.terminal import show_documents
    from kvtrace.curves.points import Stack
    from kvtrace.curves.size import Question, answer

    if sample is not None and not 0 < sample <= 1:
        raise ConfigError(f"--sample {sample:g}: must be > 0, and at most 1, which is all")
    target, worn = parse_target(target_hit, target_ttft), parse_endurance(endurance)
    if target is None:
        raise ConfigError("say what is to be reached: --target-hit 80%, or --target-ttft p99=2s")
    said = {"dram": dram, "nvme": nvme}
    axes = {role: _capacities(text, f"--{role}") for role, text in said.items() if text is not None}
    if page is not None:
        check_page(page, "--html")
    is_ordered = file is not None and target.first_token is None
    scenario = prepare(file, stack, users, run, source, turns, gpu="instant" if is_ordered else None)
    scenario.refuse_fleet("kvtrace size")
    if file is not None and scenario.load.requests is not None:
        scenario.load.requests.check_shared()
    wanted = Stack(scenario.preset, scenario.model, scenario.load, scenario.ranks, scenario.span_ns, worn)
    question = Question(target, axes, _prices(price or [], list(wanted.roles)), sample)
    _check_times(target, wanted.preset)
    with progress("simulating", 1.0) as tick:
        found = answer(wanted, question, lambda done, of: tick(done / of))
    for note in scenario.load.requests.notes if scenario.load.requests else ():
        log(f"note: {note}")
    facts = {
        name: scenario.config[name] for name in ("preset", "model", "tensor_parallel", "seed", "source", "serving")
    }
    is_sampled = any(point.sampling_rate < 1 for point in found.points)
    basis = {
        "hits": "simulated",
        "points": "sampled" if is_sampled else "simulated",
        "first_token": None if found.ceiling.first_token is None else "modelled",
    }
    result: dict[str, Any] = {"answer": first_line(found, target), **facts, "basis": basis}
    result |= {"target": asdict(target), **asdict(found)}
    shown = document(found, wanted, facts, target)
    if page is not None:
        write_page(page, replace(shown, name=f"Size for {file.name if file else 'synthetic users'}"))
    if as_json:
        emit_json(result)
        return
    show_documents([shown])


def _check_times(target: Target, preset: Any) -> None:
    from kvtrace.sim.setup import has_times

    if target.first_token is not None and not has_times(preset):
        raise ConfigError(
            f"--target-ttft: nothing takes time with --gpu {preset.gpu}; give --gpu h100, or a tier a bandwidth with "
            "--set tiers.nvme.read_bandwidth=7GB"
        )


def _capacities(text: str, flag: str) -> list[int | None]:
    from kvtrace.sim.presets.tier import MAX_CAPACITY_BYTES

    found: list[int | None] = []
    for part in text.split(","):
        if (said := part.strip()) != "0" and said[-1:].isdigit():
            raise ConfigError(f"{flag} {said}: {said} what? {said}GiB, or unlimited")
        capacity = None if part.strip() in ("unlimited", "inf") else parse_bytes(part)
        if capacity is not None and capacity > MAX_CAPACITY_BYTES:
            raise ConfigError(f"{flag} {part.strip()}: at most {MAX_CAPACITY_BYTES} bytes, or unlimited")
        if capacity not in found:
            found.append(capacity)
    if len(found) > MAX_POINTS:
        raise ConfigError(f"{flag}: {len(found)} capacities; at most {MAX_POINTS}")
    return found


def _prices(texts: list[str], roles: list[str]) -> dict[str, float] | None:
    """Return the price of a byte by role; None if none is said."""
    found: dict[str, float] = {}
    for text in texts:
        role, equals, price = (part.strip() for part in text.partition("="))
        if role not in roles and equals:
            raise ConfigError(f"--price {text}: the preset has no tier {role}; say the price of {' and '.join(roles)}")
        found[role] = price_of_byte(price, f"--price {text}", "dram=4/GiB or nvme=0.1/GiB")
    if found and (missing := next((role for role in roles if role not in found), None)):
        raise ConfigError(f"--price: say that of {missing} too, such as --price {missing}=0.1/GiB")
    return found or None
