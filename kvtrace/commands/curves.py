"""Hits against capacity.

Of one cache (sim: at given capacities, mrc: at all), and which ones a load needs (size).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtrace.commands import options as common
from kvtrace.core import units
from kvtrace.core.app import Plot, command_line, emit_json, log, option, progress
from kvtrace.core.document import document as doc
from kvtrace.core.document.page import check_drawing, write_drawing
from kvtrace.core.document.terminal import answer, show_tables
from kvtrace.core.errors import ConfigError
from kvtrace.core.statistics import parse_endurance
from kvtrace.llm.catalogue import find_model
from kvtrace.llm.serving import INSTANT

if TYPE_CHECKING:
    pass


def sim(
    file: common.RequestFile,
    capacity_blocks: str = option(
        "Capacities in blocks, comma-separated; `unlimited` is allowed.", ...
    ),
    policy: str = option(
        "Eviction policy: lru, lfu, fifo, clock, s3fifo, sieve, arc, ttl, or optimal.", "lru"
    ),
    ttl: str | None = option("With --policy ttl: how long a block is kept, such as 10m."),
    full_blocks: bool = option(
        "Ignore partial last blocks of prompts, as gen and mrc do.", False, "--full-blocks"
    ),
    seed: common.Seed = 42,
    as_json: common.AsJson = False,
    *,
    source: common.SourceArguments,
) -> None:
    """Count the hits of one cache over a request trace, for each capacity, block by block in file
    order.

    A hit is a block of a request's leading run: found in the cache before the request's first miss.
    Every block id of the file counts, also that of a partial last block, which engines do not
    store: see --full-blocks.

    \b
    kvtrace sim conversation.jsonl --source mooncake --policy lru --capacity-blocks 1000,50000,unlimited
    kvtrace sim conversation.jsonl --source mooncake --policy ttl --ttl 10m --capacity-blocks unlimited
    """
    from kvtrace.curves.documents import bounded_capacity
    from kvtrace.curves.mrc import check_policy
    from kvtrace.curves.stack import optimal_uses, policy_uses
    from kvtrace.sim.chains import block_chains, chunk_chains
    from kvtrace.sim.policies import Policy
    from kvtrace.sim.presets.tier import MAX_TTL_NS

    capacities, chosen = (
        [_capacity(text) for text in capacity_blocks.split(",")],
        check_policy(policy),
    )
    if (chosen == Policy.TTL) != (ttl is not None):
        raise ConfigError("--policy ttl needs --ttl, such as 10m, and --ttl needs --policy ttl")
    ttl_ns = units.parse_duration_ns(ttl) if ttl is not None else 0
    if ttl is not None and not 0 < ttl_ns <= MAX_TTL_NS:
        raise ConfigError(f"--ttl {ttl}: must be > 0, and at most {MAX_TTL_NS // 10**9} s")
    requests = source.read(file, seed)
    if not requests.block_tokens:
        raise ConfigError(f"{file} has no block ids, which kvtrace sim counts: use kvtrace gen")
    chains = (
        chunk_chains(requests, requests.block_tokens) if full_blocks else block_chains(requests)
    )
    found = policy_uses(chains, capacities, chosen, arrival_ns=requests.arrival_ns, ttl_ns=ttl_ns)
    hits, best = (
        [uses.hits for uses in each] for each in (found, optimal_uses(chains, capacities))
    )
    references, points = len(chains.slots), list(zip(capacities, hits, best, strict=True))
    if as_json:
        results = [{"capacity_blocks": c, "hits": h, "optimal_hits": b} for c, h, b in points]
        counts = {"requests": len(requests), "references": references, "results": results}
        emit_json(
            {"policy": policy, "ttl_ns": ttl_ns or None, **counts, "full_blocks": full_blocks}
        )
        return
    blocks = "full blocks" if full_blocks else "partial last blocks included"
    title = (
        f"{policy}: {units.counted(references, 'reference')} of"
        f" {units.counted(len(requests), 'request')}, {blocks}"
    )
    columns = [
        doc.ReportColumn("capacity_blocks", "capacity in blocks", doc.Unit.COUNT),
        doc.ReportColumn("hits", unit=doc.Unit.COUNT),
        doc.ReportColumn("hit_ratio", "hit ratio", doc.Unit.SHARE),
        doc.ReportColumn("optimal_hit_ratio", "optimal", doc.Unit.SHARE),
    ]
    rows = [
        [bounded_capacity(c), h, *(n / references if references else None for n in (h, b))]
        for c, h, b in points
    ]
    show_tables([doc.table_of(title, doc.Sheet.SUMMARY, columns, rows)])


def mrc(
    file: common.RequestFile,
    model: str = option("The model whose KV cache is simulated.", "llama3.1-8b"),
    kv_dtype: common.KvDtype = None,
    chunk_tokens: int | None = option(
        "Tokens per object.  [default: the source's blocks]", min=1, max=2**31 - 1
    ),
    points: int = option("Capacities, log-spaced.", 20, min=2, max=10_000),
    policy: str = option(
        "Eviction policy: lru, lfu, fifo, clock, s3fifo, sieve, arc, or optimal.", "lru"
    ),
    sample: float | None = option(
        "Not lru: share of the objects to simulate; 1 is all, and exact.  [default: 1, or so many"
        " as make a million references]"
    ),
    plot_to: Plot = None,
    max_requests: common.MaxRequests = None,
    seed: common.Seed = 42,
    as_json: common.AsJson = False,
    *,
    source: common.SourceArguments,
) -> None:
    """Print hits, and bytes read and written, against the capacity of one tier alone.

    Only full blocks are objects, as in gen: the partial one that a prompt ends in is not stored.

    LRU is exact, in one pass; another policy is simulated at each capacity, with samples of a large
    file, and the estimated error beside each figure. Beside it stands what no policy can exceed at
    that capacity: Belady's optimum, which knows all that will be asked for. The capacity for a
    share of all possible hits is exact for LRU; for another policy it is the least of those tried
    that reaches it: less may do. What is passed on is what the tier below reads, if it holds
    everything.

    \b
    kvtrace mrc conversation.jsonl --source mooncake --model llama3.1-8b
    kvtrace mrc conversation.jsonl --source mooncake --chunk-tokens 256 --plot mrc.svg
    kvtrace mrc conversation.jsonl --source mooncake --policy s3fifo --sample 0.1
    """
    from kvtrace.curves import mrc as curves
    from kvtrace.curves.documents import curve_document
    from kvtrace.curves.mrc import check_policy

    shape, chosen = find_model(model, kv_dtype), check_policy(policy)
    if plot_to is not None:
        check_drawing(plot_to)
    requests = source.read(file, seed, max_requests)
    found = curves.sweep(requests, shape, chunk_tokens, points, chosen, sample)
    shown = curve_document(found, policy)
    if plot_to is not None:
        write_drawing(
            plot_to, replace(shown, name=f"Hits for {file.name}, {model}"), command_line()
        )
    answer(
        {"model": model, "source": requests.origin, **asdict(found)}, lambda: shown, as_json=as_json
    )


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
    target_hit: common.TargetHit = None,
    target_ttft: common.TargetTtft = None,
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
    page: Plot = None,
    as_json: common.AsJson = False,
    *,
    stack: common.StackArguments,
    users: common.UserArguments,
    run: common.RunArguments,
    source: common.SourceArguments,
    turns: common.TurnsOption = None,
) -> None:
    """Find the cheapest DRAM and NVMe that reach a hit ratio or a time to first token.

    Without prices, small ones.

    Without prices the answer has as little DRAM as will do beside the grid's NVMe, and then as
    little NVMe. Each point is a simulation as of gen; where all would take long, it is estimated
    from samples of the objects, with its error, and the answer is simulated in full. FILE is served
    in order, and computing is not modelled, unless --gpu or --target-ttft is given.

    \b
    kvtrace size conversation.jsonl --model llama3.1-70b --tp 4 --preset vllm-fs --target-hit 30%
    kvtrace size conversation.jsonl --preset lmcache-disk --target-hit 30% --price dram=4/GiB --price nvme=0.1/GiB
    kvtrace size conversation.jsonl --preset vllm-fs --target-hit 30% --dram 512GiB --nvme 1TiB,2TiB --plot size.html
    kvtrace size --users 100 --preset lmcache-disk --target-ttft p99=2s --endurance 1DWPD,5y
    """
    from kvtrace.curves.size import parse_target
    from kvtrace.curves.sizing import size_scenario

    target, worn = parse_target(target_hit, target_ttft), parse_endurance(endurance)
    if target is None:
        raise ConfigError("give a target: --target-hit 80%, or --target-ttft p99=2s")
    texts = {"dram": dram, "nvme": nvme}
    capacities = {
        role: _parse_capacities(text, f"--{role}")
        for role, text in texts.items()
        if text is not None
    }
    prices = _parse_prices(price or [])
    if page is not None:
        check_drawing(page)
    is_computing_ignored = file is not None and target.first_token is None and stack.gpu is None
    scenario = common.prepare(
        file, stack, users, run, source, turns, gpu=INSTANT if is_computing_ignored else None
    )
    with progress("simulating", 1.0) as tick:
        sizing = size_scenario(
            scenario,
            target,
            settings=stack.settings or (),
            capacities=capacities,
            prices=prices,
            endurance=worn,
            sample=sample,
            is_computing_ignored=is_computing_ignored,
            progress=tick,
        )
    for note in sizing.notes:
        log(f"note: {note}")
    document = sizing.document()
    if page is not None:
        name = f"Size for {file.name if file else 'synthetic users'}"
        write_drawing(page, replace(document, name=name), command_line())
    answer(sizing.to_dict(), lambda: document, as_json=as_json)


def _parse_capacities(text: str, flag: str) -> list[int | None]:
    from kvtrace.sim.presets.tier import MAX_CAPACITY_BYTES

    found: list[int | None] = []
    for part in text.split(","):
        if (said := part.strip()) != "0" and said[-1:].isdigit():
            raise ConfigError(f"{flag} {said}: no unit; write {said}GiB, or unlimited")
        capacity = None if part.strip() in ("unlimited", "inf") else units.parse_bytes(part)
        if capacity is not None and capacity > MAX_CAPACITY_BYTES:
            raise ConfigError(
                f"{flag} {part.strip()}: at most {MAX_CAPACITY_BYTES} bytes, or unlimited"
            )
        if capacity not in found:
            found.append(capacity)
    if len(found) > MAX_POINTS:
        raise ConfigError(f"{flag}: {len(found)} capacities; at most {MAX_POINTS}")
    return found


def _parse_prices(texts: list[str]) -> dict[str, float] | None:
    """Return the price of a byte by role; None if no price is given."""
    prices: dict[str, float] = {}
    for text in texts:
        role, _equals, price = (part.strip() for part in text.partition("="))
        if role in prices:
            raise ConfigError(f"--price {text}: {role} has a price already; give one")
        prices[role] = units.price_of_byte(price, f"--price {text}", "dram=4/GiB or nvme=0.1/GiB")
    return prices or None
