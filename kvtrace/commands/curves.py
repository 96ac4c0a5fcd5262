"""The commands `sim`, `mrc`, `size` and `breakeven`: hits, capacities and bandwidths of a cache."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, TypedDict

import typer

import kvtrace
from kvtrace.commands.options import AsJson, DayProfile, RequestFile, TargetHit, TargetTtft
from kvtrace.core import units
from kvtrace.core.app import Plot, PlotPage, command_line, emit_json, log, option, progress
from kvtrace.core.document.drawing import check_drawing, write_drawing
from kvtrace.core.document.terminal import answer, show_tables
from kvtrace.core.errors import ConfigError
from kvtrace.studies import completion, gen_options
from kvtrace.studies.plan import example_prices

LRU, TTL = "lru", "ttl"
INSTANT = "instant"
"""The GPU whose computing takes no time."""


def sim(
    file: RequestFile,
    capacity_blocks: str = option(
        "Capacities in blocks, comma-separated; `unlimited` is allowed.", ...
    ),
    policy: str = option(
        "Eviction policies, comma-separated: lru, lfu, fifo, clock, s3fifo, sieve, arc, ttl, or"
        " optimal.",
        "lru",
    ),
    ttl: str | None = option("With --policy ttl: how long a block is kept, such as 10m."),
    full_blocks: bool = option(
        "Ignore partial last blocks of prompts, as gen and mrc do.", False, "--full-blocks"
    ),
    seed: gen_options.Seed = 42,
    as_json: AsJson = False,
    *,
    source: gen_options.SourceArguments,
) -> None:
    """Count the hits of one cache over a request trace, for each capacity, block by block in file
    order.

    A hit is a block of a request's leading run: in the cache, before the request's first miss.
    Every block id of the file counts, also that of a partial last block, which engines do not
    store (see --full-blocks).

    \b
    kvtrace sim conversation.jsonl --source mooncake --policy lru,s3fifo,arc --capacity-blocks 1000,50000,unlimited
    kvtrace sim conversation.jsonl --source mooncake --policy ttl --ttl 10m --capacity-blocks unlimited
    """
    requests = source.read(file, seed)
    capacities = [_capacity(text) for text in capacity_blocks.split(",")]
    names = _policies(policy)
    counts = [
        kvtrace.count_hits(
            requests,
            capacities,
            policy=name,
            ttl=ttl if name == TTL or TTL not in names else None,
            full_blocks=full_blocks,
        )
        for name in names
    ]
    counted = counts[0] if len(counts) == 1 else kvtrace.PolicyComparison(counts)
    if as_json:
        emit_json(counted.to_dict())
    else:
        show_tables(counted.document().chapters[0].tables)


def mrc(
    file: RequestFile,
    model: str = option(
        "The model whose KV cache is simulated.", "llama3.1-8b", autocompletion=completion.models
    ),
    kv_dtype: gen_options.KvDtype = None,
    chunk_tokens: int | None = option(
        "Tokens per object.  [default: the source's blocks]", min=1, max=2**31 - 1
    ),
    points: int = option("Capacities, log-spaced.", 20, min=2, max=10_000),
    policy: str = option(
        "Eviction policies, comma-separated: lru, lfu, fifo, clock, s3fifo, sieve, arc, or"
        " optimal.",
        "lru",
    ),
    sample: float | None = option(
        "Not lru: share of the objects to simulate; 1 is all, and exact.  [default: 1, or so many"
        " as make a million references]"
    ),
    plot_to: Plot = None,
    max_requests: gen_options.MaxRequests = None,
    seed: gen_options.Seed = 42,
    as_json: AsJson = False,
    *,
    source: gen_options.SourceArguments,
) -> None:
    """Print hits, and bytes read and written, against the capacity of a single tier.

    Only full blocks are objects, as in gen: a partial block at the end of a prompt is not stored.

    LRU is exact, in one pass. Another policy is simulated at each capacity, with samples of a large
    file, and each figure has its estimated error. The table also shows the upper bound of all
    policies: Belady's optimum, which knows all future requests. The capacity for a share of all
    possible hits is exact for LRU; for another policy it is the smallest simulated one that reaches
    the share, so less may suffice. Bytes passed on are the reads of the tier below, if it holds
    everything.

    \b
    kvtrace mrc conversation.jsonl --source mooncake --model llama3.1-8b
    kvtrace mrc conversation.jsonl --source mooncake --chunk-tokens 256 --plot mrc.svg
    kvtrace mrc conversation.jsonl --source mooncake --policy lru,s3fifo,arc --sample 0.1
    """
    if plot_to is not None:
        check_drawing(plot_to)
    requests = source.read(file, seed, max_requests)
    names = _policies(policy)
    curves = [
        kvtrace.capacity_curve(
            requests,
            policy=name,
            points=points,
            model=model,
            kv_dtype=kv_dtype,
            chunk_tokens=chunk_tokens,
            # LRU is exact, and beside other policies needs no sample.
            sample=sample if name != LRU or len(names) == 1 else None,
        )
        for name in names
    ]
    curve = curves[0] if len(curves) == 1 else kvtrace.PolicyComparison(curves)
    if plot_to is not None:
        name = f"Hits for {file.name}, {model}"
        write_drawing(plot_to, replace(curve.document(), name=name), command_line())
    answer(curve.to_dict(), curve.document, as_json=as_json)


def _policies(text: str) -> list[str]:
    """Return the policies of a comma-separated list, in which each may be once."""
    names = [name.strip().lower().replace("-", "") for name in text.split(",")]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise ConfigError(f"--policy {text}: {repeated} is there twice; name each policy once")
    return names


def _capacity(text: str) -> int | None:
    if text.strip() in ("unlimited", "inf"):
        return None
    try:
        blocks = int(text)
    except ValueError:
        raise ConfigError(
            f"--capacity-blocks: {text!r} is no whole number, nor `unlimited`"
        ) from None
    if not 0 < blocks < 2**62:
        raise ConfigError(f"--capacity-blocks: {blocks} must be > 0")
    return blocks


MAX_POINTS = 1000


# Long: two thirds are its options and its help.
def size(
    file: Annotated[
        Path | None, typer.Argument(help="A file of real requests; without it, synthetic users.")
    ] = None,
    target_hit: TargetHit = None,
    target_ttft: TargetTtft = None,
    dram: str | None = option(
        "DRAM capacities, comma-separated, such as 0,256GiB,1TiB.  [default: 2, by the load]"
    ),
    nvme: str | None = option(
        "NVMe capacities, such as 1TiB,unlimited.  [default: 10, by the load]"
    ),
    price: list[str] | None = option(
        "Find the cheapest: dram=4/GiB and nvme=0.1/GiB.", metavar="TIER=PRICE/UNIT"
    ),
    endurance: str | None = option("Endurance of the drive: 1DWPD,5y, or its TBW, such as 14PB."),
    sample: float | None = option(
        "Share of the objects in each of 4 samples; 1: all.  [default: as many as take seconds]"
    ),
    day_profile: DayProfile = None,
    page: PlotPage = None,
    as_json: AsJson = False,
    *,
    stack: gen_options.StackArguments,
    fleet: gen_options.FleetArguments,
    users: gen_options.UserArguments,
    run: gen_options.RunArguments,
    source: gen_options.SourceArguments,
    turns: gen_options.TurnsOption = None,
) -> None:
    """Find the cheapest DRAM and NVMe that reach a hit rate or a time to first token.

    Without prices, small ones.

    Without prices the answer has as little DRAM as will do with ample NVMe, and then as little
    NVMe. Each point is a simulation as of gen; where all would take long, it is estimated
    from samples of the objects, with its error, and the answer is simulated in full. FILE is served
    in order, and computing is not modelled, unless --gpu, --target-ttft or --slo is given. --slo is
    a target, too: 99 % of the requests must be within its limits (ttft=2s,tpot=50ms,share=95%).
    With --nodes, capacities are those of each node, or of a tier that the nodes share.

    \b
    kvtrace size conversation.jsonl --model llama3.1-70b --tp 4 --preset vllm-fs --target-hit 30%
    kvtrace size conversation.jsonl --preset lmcache-disk --target-hit 30% --price dram=4/GiB --price nvme=0.1/GiB
    kvtrace size conversation.jsonl --preset vllm-fs --target-hit 30% --dram 512GiB --nvme 1TiB,2TiB -o size.html
    kvtrace size --users 100 --preset lmcache-disk --target-ttft p99=2s --endurance 1DWPD,5y
    """
    texts = {"dram": dram, "nvme": nvme}
    capacities = {
        role: _parse_capacities(text, f"--{role}")
        for role, text in texts.items()
        if text is not None
    }
    byte_prices = _parse_prices(price or [])
    if page is not None:
        check_drawing(page)
    has_times = target_ttft is not None or run.slo is not None
    is_computing_ignored = file is not None and not has_times and stack.gpu is None
    fleet_stack = fleet.apply_to(stack)
    scenario = gen_options.prepare(
        file, fleet_stack, users, run, source, turns, gpu=INSTANT if is_computing_ignored else None
    )
    fleet.check(scenario.preset)
    with progress("simulating", 1.0) as tick:
        sizing = kvtrace.size_scenario(
            scenario,
            target_hit=target_hit,
            target_ttft=target_ttft,
            settings=fleet_stack.settings or (),
            capacities=capacities,
            byte_prices=byte_prices,
            endurance=endurance,
            sample=sample,
            day_profile=None if day_profile is None else str(day_profile),
            is_computing_ignored=is_computing_ignored,
            progress=tick,
        )
    for note in sizing.notes:
        log(f"note: {note}")
    document = sizing.document()
    if page is not None:
        name = f"Size for {file.name if file else 'synthetic users'}"
        drawing = sizing.page(example_prices()) if page.suffix == ".html" else document
        write_drawing(page, replace(drawing, name=name), command_line())
    answer(sizing.to_dict(), lambda: document, as_json=as_json)


def breakeven(
    file: Annotated[
        Path | None,
        typer.Argument(help="A file of real requests, whose prefixes are to be loaded."),
    ] = None,
    model: str = option(
        "The model whose KV cache is loaded; several, such as llama3.1-8b,llama3.1-70b, are"
        " compared.",
        "llama3.1-8b",
    ),
    gpu: str = option("The GPU that would compute it, or several, such as h100,a100.", "h100"),
    tensor_parallel: int | None = option(
        "Tensor-parallel ranks, each a GPU.  [default: 1, or as many GPUs as hold the weights]",
        None,
        "--tp",
        min=1,
    ),
    kv_dtype: gen_options.KvDtype = None,
    store: list[str] | None = option(
        "A store, such as qlc=3GB/s,100us, with its power, such as 20W, if it is known; or a drive"
        " file, such as sim:drive.json. Repeat it to compare several.  [default:"
        " nvme=7GB/s,100us and object=25GB/s,30ms]",
        metavar="NAME=BANDWIDTH,LATENCY",
    ),
    tokens: str | None = option(
        "Lengths of prefixes, such as 2048,8192.  [default: powers of two up to the context]"
    ),
    loads: int = option("Loads that share a store's bandwidth at a time.", 1, min=1),
    page: Plot = None,
    max_requests: gen_options.MaxRequests = None,
    seed: gen_options.Seed = 42,
    as_json: AsJson = False,
    *,
    source: gen_options.SourceArguments,
) -> None:
    """Say from which bandwidth on loading a cached prefix is faster than computing it again.

    The first line says for each store whether it pays, and from which length of prefixes on. With
    FILE the second table says how many loads of its requests would be slower than computing, and
    what an engine gains that computes those again.

    Compute times are modelled by the roofline of the GPU that gen uses; load times are latency and
    bandwidth.

    \b
    kvtrace breakeven --model llama3.1-70b --gpu h100 --tp 4 --store qlc=3GB/s,100us
    kvtrace breakeven --model llama3.1-8b --store nvme=7GB/s,100us --store s3=5GB/s,30ms --plot breakeven.html
    kvtrace breakeven conversation.jsonl --source mooncake --model llama3.1-70b --tp 4 --store qlc=3GB/s
    kvtrace breakeven --model llama3.1-8b,qwen3-32b --gpu a100,h100 --store sim:drive.json
    """
    if page is not None:
        check_drawing(page)
    requests = None if file is None else source.read(file, seed, max_requests)
    models, gpus = ([name.strip() for name in text.split(",")] for text in (model, gpu))
    engine: _Engine = {
        "tensor_parallel": tensor_parallel,
        "kv_dtype": kv_dtype,
        "stores": store or None,
        "prefix_tokens": None if tokens is None else _parse_lengths(tokens),
        "loads": loads,
    }
    result: kvtrace.BreakEven | kvtrace.EngineComparison
    if len(models) == len(gpus) == 1:
        result = kvtrace.break_even(requests, model=models[0], gpu=gpus[0], **engine)
    else:
        result = kvtrace.compare_engines(requests, models=models, gpus=gpus, **engine)
    if page is not None:
        name = f"Break-even bandwidth of {model} on {gpu}"
        write_drawing(page, replace(result.document(), name=name), command_line())
    answer(result.to_dict(), result.document, as_json=as_json)


class _Engine(TypedDict):
    """Arguments that `break_even` and `compare_engines` have in common."""

    tensor_parallel: int | None
    kv_dtype: str | None
    stores: list[str] | None
    prefix_tokens: list[int] | None
    loads: int


def _parse_lengths(text: str) -> list[int]:
    try:
        return [int(length) for length in text.split(",")]
    except ValueError:
        raise ConfigError(f"--tokens {text!r}: write whole numbers, such as 2048,8192") from None


def _parse_capacities(text: str, flag: str) -> list[int | None]:
    capacities: list[int | None] = []
    for item in text.split(","):
        size = item.strip()
        if size != "0" and size[-1:].isdigit():
            raise ConfigError(f"{flag} {size}: no unit; write {size}GiB, or unlimited")
        capacity = None if size in ("unlimited", "inf") else units.parse_bytes(item)
        if capacity not in capacities:
            capacities.append(capacity)
    if len(capacities) > MAX_POINTS:
        raise ConfigError(f"{flag}: {len(capacities)} capacities; at most {MAX_POINTS}")
    return capacities


def _parse_prices(texts: list[str]) -> dict[str, float] | None:
    """Return the price of a byte by role; None if no price is given."""
    prices: dict[str, float] = {}
    for text in texts:
        role, _equals, price = (field.strip() for field in text.partition("="))
        if role in prices:
            raise ConfigError(f"--price {text}: {role} has a price already; give one")
        prices[role] = units.price_of_byte(price, f"--price {text}", "dram=4/GiB or nvme=0.1/GiB")
    return prices or None
