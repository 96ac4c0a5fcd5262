"""One cache over a file of requests: its hits at given capacities (sim), and the curve over all of them (mrc)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvtrace.commands.options import AsJson, KvDtype, MaxRequests, RequestFile, Seed, SourceArguments, percent
from kvtrace.core.app import emit_json, takes_groups
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import format_bytes, format_count, parse_duration_ns

if TYPE_CHECKING:
    from kvtrace.core.document.document import Document
    from kvtrace.curves.mrc import HitCurve


@takes_groups
def sim(
    file: RequestFile,
    capacity_blocks: Annotated[str, typer.Option(help="Capacities in blocks, with commas; `unlimited` is one.")],
    policy: Annotated[
        str, typer.Option(help="Eviction policy: lru, lfu, fifo, clock, s3fifo, sieve, arc, ttl, or optimal.")
    ] = "lru",
    ttl: Annotated[str | None, typer.Option(help="With ttl: how long a block stays, such as 10m.")] = None,
    full_blocks: Annotated[
        bool, typer.Option("--full-blocks", help="Leave out the block that a prompt ends in, as gen and mrc do.")
    ] = False,
    seed: Seed = 42,
    as_json: AsJson = False,
    *,
    source: SourceArguments,
) -> None:
    """Count the hits of one cache over a request trace, for each capacity, block by block in file order.

    A hit is a block of a request's leading run: found in the cache before the request's first miss. Every block id
    of the file counts, also that of a partial last block, which engines do not store: see --full-blocks.

    \b
    kvtrace sim conversation.jsonl --source mooncake --policy lru --capacity-blocks 1000,50000,unlimited
    kvtrace sim conversation.jsonl --source mooncake --policy ttl --ttl 10m --capacity-blocks unlimited
    """
    capacities = [_capacity(text) for text in capacity_blocks.split(",")]
    chosen, ttl_ns = _policy(policy, ttl)
    requests = source.read(file, seed)
    if not requests.block_tokens:
        raise ConfigError(f"{file} has no block ids, and sim counts blocks: use gen")
    from kvtrace.curves.stack import OPTIMAL, policy_hits
    from kvtrace.sim.chains import block_chains, chunk_chains

    chains = chunk_chains(requests, requests.block_tokens) if full_blocks else block_chains(requests)
    hits = policy_hits(chains, capacities, chosen, arrival_ns=requests.arrival_ns, ttl_ns=ttl_ns)
    best = policy_hits(chains, capacities, OPTIMAL)
    references, points = len(chains.slots), list(zip(capacities, hits, best, strict=True))
    if as_json:
        results = [{"capacity_blocks": c, "hits": h, "optimal_hits": b} for c, h, b in points]
        counts = {"requests": len(requests), "references": references, "results": results}
        counts["full_blocks"] = full_blocks
        emit_json({"policy": policy, "ttl_ns": ttl_ns or None, **counts})
        return
    counted = "full blocks" if full_blocks else "partial last blocks included"
    title = f"{policy}: {format_count(references)} references of {format_count(len(requests))} requests, {counted}"
    _show_points(title, points, references)


def _show_points(title: str, points: list[tuple[int | None, int, int]], references: int) -> None:
    """Print hits and the optimum's at each capacity."""
    from kvtrace.core.document.document import Cell, ReportTable, Sheet, Unit, columns_of
    from kvtrace.core.document.terminal import show_tables

    columns = columns_of(
        "count: capacity_blocks = capacity in blocks, hits; share: hit_ratio = hit ratio, optimal_hit_ratio = optimal"
    )
    rows = []
    for capacity, *found in points:
        ratios = [n / references if references else None for n in found]
        rows.append([Cell("unlimited", Unit.TEXT) if capacity is None else capacity, found[0], *ratios])
    show_tables([ReportTable(title, Sheet.SUMMARY, columns, rows)])


@takes_groups
def mrc(
    file: RequestFile,
    model: Annotated[str, typer.Option(help="The model whose KV cache it is.")] = "llama3.1-8b",
    kv_dtype: KvDtype = None,
    chunk_tokens: Annotated[
        int | None, typer.Option(min=1, max=2**31 - 1, help="Tokens an object.  [default: the source's blocks]")
    ] = None,
    points: Annotated[int, typer.Option(min=2, max=10_000, help="Capacities, log-spaced.")] = 20,
    policy: Annotated[
        str, typer.Option(help="Eviction policy: lru, lfu, fifo, clock, s3fifo, sieve, arc, or optimal.")
    ] = "lru",
    sample: Annotated[
        float | None,
        typer.Option(
            help="Not lru: share of the objects to simulate; 1 is all, and exact.  [default: 1, or so many as make a "
            "million references]"
        ),
    ] = None,
    plot_to: Annotated[Path | None, typer.Option("--plot", help="Draw it: *.svg, *.png or *.pdf.")] = None,
    max_requests: MaxRequests = None,
    seed: Seed = 42,
    as_json: AsJson = False,
    *,
    source: SourceArguments,
) -> None:
    """How much DRAM and NVMe do I need? Hits, and bytes read and written, against capacity, of one tier alone.

    Only full blocks are objects, as in gen: the partial one that a prompt ends in is not stored.

    LRU is exact, in one pass; another policy is simulated at each capacity, with samples of a large file, and the
    estimated error beside each figure. Beside it stands what no policy can exceed at that capacity: Belady's optimum,
    which knows all that will be asked for. What is passed on is what the tier below reads, if it holds everything.

    \b
    kvtrace mrc conversation.jsonl --source mooncake --model llama3.1-8b
    kvtrace mrc conversation.jsonl --source mooncake --chunk-tokens 256 --plot mrc.svg
    kvtrace mrc conversation.jsonl --source mooncake --policy s3fifo --sample 0.1
    """
    from kvtrace.core.document.page import check_plot
    from kvtrace.core.document.terminal import answer
    from kvtrace.curves import mrc as curves
    from kvtrace.model.catalogue import find_model

    shape, chosen = find_model(model, kv_dtype), _named(policy)
    if plot_to is not None:
        check_plot(plot_to)
    requests = source.read(file, seed, max_requests)
    found = curves.sweep(requests, shape, chunk_tokens, points, chosen, sample)
    if plot_to is not None:
        curves.plot(found, plot_to, f"{policy} over {file.name}, {model}, {found.object_tokens} tokens an object")
    whole = {"model": model, "source": requests.origin, **asdict(found)}
    answer(whole, lambda: _document(found, policy), as_json=as_json)


def _document(found: HitCurve, policy: str) -> Document:
    """Return the curve as a document: a row a capacity, with bars for the hits, and how much is enough."""
    from kvtrace.core.document.document import Cell, Chapter, Document, ReportTable, Sheet, Unit, columns_of

    is_exact = found.sampling_rate == 1
    sampled = "" if is_exact else f", estimated from samples of {percent(found.sampling_rate)} of the objects"
    title = (
        f"{policy}: {format_count(found.references)} references of {format_count(found.requests)} requests, "
        f"objects of {found.object_tokens} tokens, {format_bytes(found.object_bytes)}, full ones only{sampled}"
    )
    columns = columns_of("""
        bytes: capacity_bytes = capacity
        count: capacity_objects = objects, hits
        share: hit_ratio = hit ratio, optimal_hit_ratio = optimal
        bytes: read_bytes = read, passed_bytes = passed on, written_bytes = written
    """)
    rows = [[getattr(point, column.name) for column in columns] for point in found.points]
    if not is_exact:
        for row, point in zip(rows, found.points, strict=True):
            row[3] = Cell(f"{percent(point.hit_ratio)} ± {100 * point.hit_ratio_error:.1f}", Unit.TEXT)
    enough = [
        f"{100 * e['share_of_hits']:.0f} % of all possible hits: "
        + ("more than all objects" if e["capacity_bytes"] is None else format_bytes(e["capacity_bytes"]))
        for e in found.enough
    ]
    table = ReportTable(title, Sheet.SUMMARY, columns, rows, bars="hits")
    return Document("", "", [Chapter("", [table], enough)])


def _named(policy: str) -> str:
    from kvtrace.curves.stack import OPTIMAL
    from kvtrace.sim.policies import Policy

    known = [*Policy, OPTIMAL]
    if policy not in known:
        raise ConfigError(f"unknown policy {policy!r}; known are {', '.join(known)}")
    return policy


def _policy(name: str, ttl: str | None) -> tuple[str, int]:
    from kvtrace.sim.policies import Policy
    from kvtrace.sim.presets.tier import MAX_TTL_NS

    policy = _named(name)
    if (policy == Policy.TTL) != (ttl is not None):
        raise ConfigError("--policy ttl and --ttl, such as 10m, need each other")
    ttl_ns = parse_duration_ns(ttl) if ttl is not None else 0
    if ttl is not None and not 0 < ttl_ns <= MAX_TTL_NS:
        raise ConfigError(f"--ttl {ttl}: must be > 0, and at most {MAX_TTL_NS // 10**9} s")
    return policy, ttl_ns


def _capacity(text: str) -> int | None:
    if text.strip() in ("unlimited", "inf"):
        return None
    try:
        blocks = int(text)
    except ValueError:
        raise ConfigError(f"--capacity-blocks: {text!r} is no whole number, nor `unlimited`") from None
    if not 0 < blocks < 2**62:
        raise ConfigError(f"--capacity-blocks: {blocks} must be > 0")
    return blocks
