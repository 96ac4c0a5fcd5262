"""Hits against capacity.

Of one cache (sim: at given capacities, mrc: at all), and which ones a load needs (size).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.commands import options as common
from kvtrace.core import np, units
from kvtrace.core.app import Plot, command_line, emit_json, log, option, progress
from kvtrace.core.document import document as doc
from kvtrace.core.document.page import check_drawing, write_drawing
from kvtrace.core.document.terminal import answer, show_tables
from kvtrace.core.errors import ConfigError
from kvtrace.core.metadata import STALLS
from kvtrace.core.statistics import parse_endurance
from kvtrace.model.catalogue import find_model
from kvtrace.model.serving import INSTANT, in_words

if TYPE_CHECKING:
    from kvtrace.curves.mrc import CurvePoint, HitCurve
    from kvtrace.curves.points import Point, Stack
    from kvtrace.curves.size import Sizing, Target


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
    from kvtrace.curves.stack import optimal_uses, policy_uses
    from kvtrace.sim.chains import block_chains, chunk_chains
    from kvtrace.sim.policies import Policy
    from kvtrace.sim.presets.tier import MAX_TTL_NS

    capacities, chosen = [_capacity(text) for text in capacity_blocks.split(",")], _named(policy)
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
    spec = (
        "count: capacity_blocks = capacity in blocks, hits; share: hit_ratio = hit ratio,"
        " optimal_hit_ratio = optimal"
    )
    rows = [
        [_bounded(c), h, *(n / references if references else None for n in (h, b))]
        for c, h, b in points
    ]
    show_tables([doc.table_of(title, doc.Sheet.SUMMARY, spec, rows)])


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

    shape, chosen = find_model(model, kv_dtype), _named(policy)
    if plot_to is not None:
        check_drawing(plot_to)
    requests = source.read(file, seed, max_requests)
    found = curves.sweep(requests, shape, chunk_tokens, points, chosen, sample)
    shown = _document(found, policy)
    if plot_to is not None:
        write_drawing(
            plot_to, replace(shown, name=f"Hits for {file.name}, {model}"), command_line()
        )
    answer(
        {"model": model, "source": requests.origin, **asdict(found)}, lambda: shown, as_json=as_json
    )


def _document(found: HitCurve, policy: str) -> doc.Document:
    """Return the curve as a document.

    A row a capacity, with bars for the hits, and how much is enough.
    """
    is_exact = found.sampling_rate == 1
    sampled = (
        ""
        if is_exact
        else f", estimated from samples of {units.percent(found.sampling_rate)} of the objects"
    )
    title = (
        f"{policy}: {units.counted(found.references, 'reference')} of"
        f" {units.counted(found.requests, 'request')}, objects of {found.object_tokens} tokens,"
        f" {units.format_bytes(found.object_bytes)}, full ones only{sampled}"
    )
    spec = """
        bytes: capacity_bytes = capacity
        count: capacity_objects = objects, hits
        share: hit_ratio = hit ratio, optimal_hit_ratio = optimal
        bytes: read_bytes = read, passed_bytes = passed on, written_bytes = written
    """
    rows = [
        asdict(point) | {"hit_ratio": _hit_ratio(point, found.sampling_rate)}
        for point in found.points
    ]
    enough = []
    for e in found.enough:
        some = (
            "more than all objects"
            if e["capacity_bytes"] is None
            else units.format_bytes(e["capacity_bytes"])
        )
        if e["is_at_most"] and e["capacity_bytes"] is not None:
            some = f"at most {some}, the least of these capacities that reaches it"
        enough.append(f"{100 * e['share_of_hits']:.0f} % of all possible hits: {some}")
    if not any(point.hits or point.passed_bytes for point in found.points):
        enough = ["no hits at any capacity: no request reuses what another has stored"]
    table = doc.table_of(
        title, doc.Sheet.SUMMARY, spec, rows, charts=tuple(_curves(found)), bars="hits"
    )
    return doc.Document("", "", [doc.Chapter("", [table], enough)])


def _curves(found: HitCurve) -> list[doc.Chart]:
    """Return hits, and bytes, against capacity; no line of what is not known at each."""
    charts = []
    for title, unit, lines in (
        (
            "references that hit",
            doc.Unit.SHARE,
            {found.policy: "hit_ratio", "optimal (Belady)": "optimal_hit_ratio"},
        ),
        (
            "bytes",
            doc.Unit.BYTES,
            {"read": "read_bytes", "passed on": "passed_bytes", "written": "written_bytes"},
        ),
    ):
        known = {
            label: [getattr(point, name) for point in found.points] for label, name in lines.items()
        }
        at = [float(point.capacity_bytes) for point in found.points]
        series = [
            doc.Series(label, at, values) for label, values in known.items() if None not in values
        ]
        what = (
            f"{title} against capacity".capitalize(),
            doc.ChartShape.CURVE,
            doc.Unit.BYTES,
            unit,
            series,
        )
        charts.append(doc.Chart(*what, x_title="capacity", y_title=title))
    return charts


def _hit_ratio(point: CurvePoint | Point, sampling_rate: float) -> Any:
    """Return the hit ratio, with its error where it is an estimate."""
    if sampling_rate == 1:
        return point.hit_ratio
    return doc.Cell(
        f"{units.percent(point.hit_ratio)} ± {100 * point.hit_ratio_error:.1f}", doc.Unit.TEXT
    )


def _named(policy: str) -> str:
    from kvtrace.curves.stack import OPTIMAL
    from kvtrace.sim.policies import Policy

    known = [*(of for of in Policy if of is not Policy.SAE), OPTIMAL]  # that one goes by requests
    if policy not in known:
        raise ConfigError(f"unknown policy {policy!r}; known are {', '.join(known)}")
    return policy


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
    from kvtrace.curves.points import Stack
    from kvtrace.curves.size import Question
    from kvtrace.curves.size import answer as size_of
    from kvtrace.sim.output import notes_of
    from kvtrace.sim.simulation import has_times

    if sample is not None and not 0 < sample <= 1:
        raise ConfigError(f"--sample {sample:g}: must be > 0, and at most 1, which is all")
    target, worn = common.parse_target(target_hit, target_ttft), parse_endurance(endurance)
    if target is None:
        raise ConfigError("give a target: --target-hit 80%, or --target-ttft p99=2s")
    said = {"dram": dram, "nvme": nvme}
    axes = {
        role: _parse_capacities(text, f"--{role}")
        for role, text in said.items()
        if text is not None
    }
    if page is not None:
        check_drawing(page)
    is_ordered = file is not None and target.first_token is None and stack.gpu is None
    scenario = common.prepare(
        file, stack, users, run, source, turns, gpu=INSTANT if is_ordered else None
    )
    if (nodes := scenario.preset.fleet.nodes) > 1:
        raise ConfigError(
            f"fleet.nodes={nodes}: kvtrace size takes one node; for a fleet use kvtrace plan"
        )
    if file is not None and scenario.load.requests is not None:
        scenario.load.requests.check_shared()
    wanted = Stack(
        scenario.preset, scenario.model, scenario.load, scenario.ranks, scenario.span_ns, worn
    )
    common.DriveArguments(endurance=worn).check(scenario.preset)
    axes = _settled(stack.settings or [], wanted) | axes
    question = Question(target, axes, _prices(price or [], list(wanted.roles)), sample)
    if target.first_token is not None and not has_times(wanted.preset):
        raise ConfigError(
            f"--target-ttft: nothing takes time with --gpu {wanted.preset.gpu}; give --gpu h100, or"
            " a tier a bandwidth with --set tiers.nvme.read_bandwidth=7GB"
        )
    with progress("simulating", 1.0) as tick:
        found = size_of(wanted, question, lambda done, of: tick(done / of))
    for note in notes_of(scenario.preset, scenario.model, scenario.load.requests, scenario.ranks):
        log(f"note: {note}")
    if question.price and found.chosen is not None and found.chosen.price is None:
        log("note: the answer has no price: its unlimited tier has none")
    facts = {
        of: scenario.config[of]
        for of in ("preset", "model", "tensor_parallel", "seed", "source", "serving")
    }
    basis = {
        "hits": "simulated",
        "points": (
            "sampled" if any(point.sampling_rate < 1 for point in found.points) else "simulated"
        ),
        "first_token": None if found.ceiling.first_token is None else "modelled",
    }
    result: dict[str, Any] = {"answer": first_line(found, target, wanted), **facts, "basis": basis}
    result |= {"target": asdict(target), **asdict(found)}
    shown = document(found, wanted, facts, target, is_ordered=is_ordered)
    if page is not None:
        write_drawing(
            page,
            replace(shown, name=f"Size for {file.name if file else 'synthetic users'}"),
            command_line(),
        )
    answer(result, lambda: shown, as_json=as_json)


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


def _settled(settings: list[str], stack: Stack) -> dict[str, list[int | None]]:
    """Return the capacities that `settings` give the tiers that are sized, by role.

    They are not searched.
    """
    named = {said.partition("=")[0].strip() for said in settings}
    tiers = {role: stack.preset.tiers[t] for role, t in stack.roles.items()}
    return {
        role: [of.capacity_bytes]
        for role, of in tiers.items()
        if f"tiers.{of.name}.capacity" in named
    }


def _prices(texts: list[str], roles: list[str]) -> dict[str, float] | None:
    """Return the price of a byte by role; None if none is said."""
    found: dict[str, float] = {}
    for text in texts:
        role, equals, price = (part.strip() for part in text.partition("="))
        if role not in roles and equals:
            raise ConfigError(
                f"--price {text}: takes prices of {' and '.join(roles)} only, not of {role}"
            )
        if role in found:
            raise ConfigError(f"--price {text}: {role} has a price already; give one")
        found[role] = common.price_of_byte(price, f"--price {text}", "dram=4/GiB or nvme=0.1/GiB")
    if found and (missing := next((role for role in roles if role not in found), None)):
        raise ConfigError(f"--price: add a price of {missing}, such as --price {missing}=0.1/GiB")
    return found or None


_FEWEST_TICKS = 10


def first_line(found: Sizing, target: Target, stack: Stack) -> str:
    """Return the answer in one sentence."""
    best = found.chosen
    if best is not None:
        line = _name_capacities(best, found.labels)
        for t, tier in enumerate(best.tiers):
            # Other tiers of the preset make hits, too.
            if t not in stack.roles.values() and tier.hits:
                share = units.percent(tier.hit_ratio or 0.0)
                line += (
                    f", beside {_name_capacity(tier.capacity_bytes, tier.name.upper())} ({share} of"
                    " look-ups)"
                )
        line += f": {_reached(best, target)}"
        line += "" if best.price is None else f"; price {doc.show(best.price, doc.Unit.NUMBER)}"
        if not (stalled := best.stalled_requests):
            return line
        least = found.ceiling.largest_load_bytes
        unit: int = 10 ** max(
            0, len(str(least)) - 3
        )  # of the digits that are shown: rounded down it would stall
        largest = units.format_bytes(-(-least // unit) * unit)
        tiers = {found.labels[role]: stack.preset.tiers[t] for role, t in stack.roles.items()}
        enough = "".join(
            f", none with {largest} of {label}" for label, tier in tiers.items() if tier.loads_whole
        )
        return f"{STALLS} in {stalled:,} of {best.requests:,} requests{enough}; {line}"
    unlimited = f"unlimited {' and '.join(found.labels[role] for role in found.ceiling.capacities)}"
    if not target.is_met(found.ceiling):
        if target.hit_ratio is not None and found.ceiling.hit_ratio < target.hit_ratio:
            unreachable = f"{100 * target.hit_ratio:g} % is unreachable; the ceiling is"
            return f"{unreachable} {_reached(found.ceiling, target)}, with {unlimited}"
        return f"the target is unreachable: {_reached(found.ceiling, target)}, with {unlimited}"
    most = max(found.points, key=lambda point: point.hit_ratio)
    return (
        f"none of these capacities is enough: {_reached(most, target)} with"
        f" {_name_capacities(most, found.labels)}; {unlimited} would be:"
        f" {_reached(found.ceiling, target)}"
    )


def _reached(point: Point, target: Target) -> str:
    spread = f" ± {100 * point.hit_ratio_error:.1f}" if point.sampling_rate < 1 else ""
    said = f"{100 * point.hit_ratio:.1f}{spread} % of look-ups hit"
    if target.hit_ratio is not None:
        said += f" (target {100 * target.hit_ratio:g} %)"
    if target.first_token is not None:
        quantile, limit_ns = target.first_token
        time = point.first_token_ns(quantile)
        name = quantile.removesuffix("_ns").replace("_", ".")
        known = "unknown, too few requests" if time is None else units.format_duration(time)
        said += (
            f", modelled {name} time to first token {known} (target"
            f" {units.format_duration(limit_ns)})"
        )
    return said


def _name_capacities(point: Point, labels: Mapping[str, str]) -> str:
    return " and ".join(_name_capacity(of, labels[role]) for role, of in point.capacities.items())


def _name_capacity(of: int | None, label: str) -> str:
    if not of:
        return f"{'unlimited' if of is None else 'no'} {label}"
    return f"{units.format_bytes(of)} of {label}"


def document(
    found: Sizing, stack: Stack, facts: dict[str, Any], target: Target, *, is_ordered: bool
) -> doc.Document:
    """Return the answer as a document; `facts` say of which preset, model and load.

    A load that `is_ordered` took no time to compute, though nobody said so.
    """
    from kvtrace.commands.gen import first_token_table
    from kvtrace.sim.simulation import has_times

    shown = found.chosen or found.ceiling
    tables = _tier_tables(shown)
    if shown.first_token is not None:
        tables.append(first_token_table(shown.first_token))
    lines = [
        (
            "all ranks together, means over the whole load; "
            "p99 of per-second rate: what 1 % of all seconds of virtual time exceed"
        )
    ]
    if any(tier.drive_writes_per_day is not None for tier in shown.tiers):
        lines.append("drive writes a day and life: if this load's rate is kept up")
    lines += _costs(shown, stack)
    if (tick_s := _tick_s(stack)) is not None:
        lines.append(
            f"requests arrive on ticks about {tick_s} s apart: --jitter {tick_s}s spreads them, "
            "and lowers the p99 of per-second rates"
        )
    chapters = [
        doc.Chapter(
            f"What each tier must do with {_name_capacities(shown, found.labels)}", tables, lines
        ),
        doc.Chapter("Capacities", [_grid(found, stack)], _notes_of_grid(found, stack)),
    ]
    span, lookups = units.format_duration(shown.span_ns), units.format_count(shown.lookups)
    bounded = " and ".join(found.labels[role] for role in found.ceiling.capacities)
    computing = in_words(facts["serving"])
    if (
        stack.load.requests is not None
        and facts["serving"]["gpu"] == INSTANT
        and not has_times(stack.preset)
    ):
        order = "requests are served in the order of arrival; --gpu h100 models it"
        computing = f"GPU compute time is not modelled: {order}"
    notes = [
        (
            f"{facts['preset']}, {facts['model']}, {lookups} look-ups of objects over {span} of"
            " virtual time, simulated"
        ),
        (
            f"ceiling with unlimited {bounded}: {units.percent(found.ceiling.hit_ratio)} of"
            " look-ups hit"
        ),
        computing,
    ]
    if found.chosen is not None:
        if (best := found.chosen.optimal_hit_ratio) is not None:
            notes.append(
                f"upper bound (Belady): no policy with as many bytes exceeds {units.percent(best)}"
            )
        sizes = {
            stack.preset.tiers[stack.roles[role]].name: of
            for role, of in found.chosen.capacities.items()
        }
        settings = [f"--gpu {INSTANT}"] * is_ordered
        settings += [
            f"--set tiers.{name}.capacity={'unlimited' if of is None else of}"
            for name, of in sizes.items()
        ]
        notes.append(
            "its trace: kvtrace gen with the same"
            f" options{' and ' * bool(settings)}{' '.join(settings)}"
        )
    highlights = [
        doc.Highlight(found.labels[role], of, doc.Unit.BYTES, "unlimited" if of is None else "")
        for role, of in shown.capacities.items()
    ]
    highlights += [
        doc.Highlight("hit ratio", shown.hit_ratio, doc.Unit.SHARE, "of look-ups, in any tier"),
        doc.Highlight(
            "ceiling", found.ceiling.hit_ratio, doc.Unit.SHARE, "with unlimited capacity"
        ),
        doc.Highlight(
            "prompt tokens saved",
            shown.saved_tokens,
            doc.Unit.COUNT,
            f"of {units.format_count(shown.input_tokens)}",
        ),
    ]
    return doc.Document("", first_line(found, target, stack), chapters, notes, highlights)


def _tier_tables(point: Point) -> list[doc.ReportTable]:
    p99 = "= p99 of per-second rate"
    bandwidth = f"""
        text: name = tier
        bytes: capacity_bytes = capacity
        share: hit_ratio = hits
        bytes_per_s: read_bytes_per_s = read, p99_second_read_bytes_per_s {p99}, write_bytes_per_s = written,
            p99_second_write_bytes_per_s {p99}
        bytes: read_bytes = read in all, written_bytes = written in all
    """
    operations = f"""
        text: name = tier
        per_s: reads_per_s = reads/s, p99_second_reads_per_s {p99}, writes_per_s = writes/s,
            p99_second_writes_per_s {p99}
        number: drive_writes_per_day = drive writes a day; years: life_years = life
    """
    rows = [
        tier.figures() | {"capacity_bytes": _bounded(tier.capacity_bytes)} for tier in point.tiers
    ]
    return [
        doc.table_of("bandwidth", doc.Sheet.PERFORMANCE, bandwidth, rows),
        doc.table_of(
            "operations, an object each, and wear", doc.Sheet.PERFORMANCE, operations, rows
        ),
    ]


def _bounded(of: int | None) -> Any:
    return doc.Cell("unlimited", doc.Unit.TEXT) if of is None else of


def _grid(found: Sizing, stack: Stack) -> doc.ReportTable:
    """Return a row a point.

    The one that was chosen, simulated in full, in the place of its estimate.
    """
    from kvtrace.curves.points import drive_of

    roles, has_price = (
        list(found.ceiling.capacities),
        any(point.price is not None for point in found.points),
    )
    drive = drive_of(stack.preset)
    has_optimum = any(point.optimal_hit_ratio is not None for point in found.points)
    spec = [
        "bytes: " + ", ".join(f"{role}_bytes = {found.labels[role]}" for role in roles),
        "share: hit_ratio = hits",
    ]
    spec += ["share: optimal_hit_ratio = optimal"] if has_optimum else []
    spec += ["count: saved_tokens = tokens saved"]
    for role in roles:
        spec.append(
            f"bytes_per_s: {role}_read = {found.labels[role]} read, {role}_written = written"
        )
    spec += ["number: drive_writes_per_day = writes a day"] if drive is not None else []
    spec += ["number: price"] if has_price else []
    rows = []
    for estimated in found.points:
        is_chosen = found.chosen is not None and estimated.capacities == found.chosen.capacities
        point = found.chosen if is_chosen and found.chosen is not None else estimated
        row = asdict(point) | {"hit_ratio": _hit_ratio(point, point.sampling_rate)}
        for role, capacity in point.capacities.items():
            does = point.tiers[stack.roles[role]].figures()
            row[f"{role}_bytes"] = _bounded(capacity)
            row |= {
                f"{role}_read": does["read_bytes_per_s"],
                f"{role}_written": does["write_bytes_per_s"],
            }
        if drive is not None:
            row["drive_writes_per_day"] = point.tiers[drive].drive_writes_per_day
        rows.append(row)
    table = doc.table_of(
        "", doc.Sheet.SUMMARY, "\n".join(spec), rows, charts=_charts(found), keys=len(roles)
    )
    return replace(table, is_answer=True)


def _charts(found: Sizing) -> tuple[doc.Chart, ...]:
    """Return hits against the capacity that has most points, a line for each of the other's."""
    *others, along = found.ceiling.capacities
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in found.points:
        x = point.capacities[along]
        if x:
            label = " and ".join(
                _name_capacity(point.capacities[role], found.labels[role]) for role in others
            )
            lines.setdefault(label or "hits", []).append((float(x), point.hit_ratio))
    series = [
        doc.Series(label, [x for x, _ in sorted(at)], [y for _, y in sorted(at)])
        for label, at in lines.items()
    ]
    if not series:
        return ()
    title, named = f"Hits against {found.labels[along]}", f"{found.labels[along]} capacity"
    what = doc.ChartShape.CURVE, doc.Unit.BYTES, doc.Unit.SHARE
    return (doc.Chart(title, *what, series, x_title=named, y_title="look-ups that hit"),)


def _costs(point: Point, stack: Stack) -> list[str]:
    from kvtrace.sim.presets.tier import MONTH_S
    from kvtrace.trace.inventory import cost_line

    lines = []
    for tier, done in zip(stack.preset.tiers, point.tiers, strict=True):
        reads, writes = done.rates.reads_per_s, done.rates.writes_per_s
        if tier.has_price and reads is not None and writes is not None:
            stored_bytes = done.written_bytes - done.deleted_bytes
            cost = tier.monthly_cost(reads.mean, writes.mean, MONTH_S, stored_bytes)
            lines.append(
                cost_line(cost, "", "at the preset's prices and this load's rate, kept up")
            )
    return lines


def _tick_s(stack: Stack) -> int | None:
    """Return how far apart the seconds are in which requests arrive, if many do in each of few."""
    requests = stack.load.requests
    if requests is None or len(requests) == 0:
        return None
    seconds = np.unique(requests.arrival_ns // units.NS_PER_S)
    if len(seconds) < _FEWEST_TICKS or len(requests) < 2 * len(seconds):
        return None
    apart = int(np.median(np.diff(seconds)))
    return apart if apart > 1 else None


def _notes_of_grid(found: Sizing, stack: Stack) -> list[str]:
    lines = []
    if (rate := min(point.sampling_rate for point in found.points)) < 1:
        lines.append(
            f"with ±: estimated from 4 samples of {units.percent(rate)} of the objects, 95 %"
            " confidence; the others, what was chosen and the ceiling are simulated in full"
        )
    if any(point.optimal_hit_ratio is not None for point in found.points):
        lines.append(
            "optimal: what no policy exceeds with as many bytes in all tiers together (Belady)"
        )
    for role, t in stack.roles.items():
        tier = stack.preset.tiers[t]
        if tier.capacity_bytes is None and role == "nvme":
            lines.append(
                f"the preset's {tier.name} never evicts; with a capacity it evicts by"
                f" {tier.policy}, for which this stack needs an evictor beside it"
            )
    lines.append("other capacities: --dram and --nvme")
    return lines
