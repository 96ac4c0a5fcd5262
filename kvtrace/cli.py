"""The command line of kvtrace: make traces, and say what they hold."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.core.app import emit_json, emit_table, log, make_app, progress, run
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import format_bytes, format_count, format_duration, parse_duration_ns
from kvtrace.sourceoptions import OpenLoopArguments, SourceArguments, takes_source

if TYPE_CHECKING:
    from kvtrace.hierarchy import Policy
    from kvtrace.simulation import Load
    from kvtrace.sources import Requests

app = make_app(
    "kvtrace",
    "Simulate an LLM's KV-cache over GPU, CPU and storage tiers, and write the I/O as a trace.",
    "\b\nFirst steps:\n  kvtrace gen --users 32 --duration 60s --seed 42 -o t.parquet\n  kvtrace info t.parquet",
)

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Same seed and options, same bytes.")]
TraceFile = Annotated[Path, typer.Argument(metavar="FILE", help="A trace: *.parquet or *.csv.zst.")]


@app.command()
@takes_source
def gen(
    file: Annotated[Path | None, typer.Argument(help="A file of real requests; without it, synthetic users.")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The trace: *.parquet or *.csv.zst.")] = Path(
        "trace.parquet"
    ),
    model: Annotated[
        str | None, typer.Option(help="The model whose KV cache it is.  [default: the preset's, or llama3.1-8b]")
    ] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="Element type of the cache, such as fp8.")] = None,
    preset: Annotated[str, typer.Option(help="The caching stack to imitate: a name, or a .toml file.")] = "mlperf",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a knob of the preset.")
    ] = None,
    users: Annotated[
        int | None,
        typer.Option(min=1, max=10**7, help="Synthetic users, of three kinds.  [default: the preset's, or 32]"),
    ] = None,
    arrivals: Annotated[
        str | None, typer.Option(help="With --request-rate: poisson, gamma, constant, diurnal.  [default: poisson]")
    ] = None,
    burstiness: Annotated[
        float | None,
        typer.Option(help="gamma: coefficient of variation of the intervals; 1 is Poisson, more is burstier."),
    ] = None,
    day: Annotated[str | None, typer.Option(help="diurnal: length of a day.  [default: 24h]")] = None,
    amplitude: Annotated[
        float | None, typer.Option(help="diurnal: swing of the rate, 0 to 1 of its mean.  [default: 0.5]")
    ] = None,
    duration: Annotated[
        str | None, typer.Option(help="Virtual time to simulate.  [default: the preset's, 60s, or all of FILE]")
    ] = None,
    max_requests: Annotated[int | None, typer.Option(min=1, max=10**12, help="Stop after so many requests.")] = None,
    seed: Seed = 42,
    tensor_parallel: Annotated[int, typer.Option("--tp", min=1, max=1024, help="Tensor-parallel ranks.")] = 1,
    requests_out: Annotated[Path | None, typer.Option(help="Also write the requests table here.")] = None,
    drive_size: Annotated[
        str | None, typer.Option(help="Also print drive writes per day for a drive of this size, such as 3.84TB.")
    ] = None,
    as_json: AsJson = False,
    *,
    source: SourceArguments,
) -> None:
    """Simulate requests over the tiers of a preset and write the I/O as a trace, deletes included.

    \b
    kvtrace gen --users 32 --duration 60s --seed 42 -o t.parquet
    kvtrace gen --request-rate 20/s --arrivals gamma --burstiness 4 --duration 60s -o open.parquet
    kvtrace gen --source mooncake conversation.jsonl --preset lmcache-disk -o conv.parquet
    kvtrace gen --preset lmcache-disk --set tiers.nvme.capacity=500GiB -o small.parquet
    """
    from kvtrace import traceout
    from kvtrace.endurance import endurance
    from kvtrace.hierarchy import load_preset
    from kvtrace.models import find_model
    from kvtrace.provenance import describer

    if file is not None and users is not None:
        raise ConfigError(f"--users {users}: requests come from {file}; leave one of the two out")
    said = (source.request_rate, source.live_conversations, arrivals, burstiness, day, amplitude)
    open_loop = OpenLoopArguments(*said)
    _check_open_loop(open_loop, source, file, users)
    chosen = load_preset(preset, settings or ())
    model = model or chosen.load.model or "llama3.1-8b"
    users = users or chosen.load.users or 32
    shape = find_model(model, kv_dtype)
    if file is None:
        duration = duration or chosen.load.duration or "60s"
    until_ns = parse_duration_ns(duration) if duration else None
    if until_ns == 0:
        raise ConfigError(f"--duration {duration}: must be > 0")
    requests = source.read(file, seed, max_requests) if file is not None else None
    if until_ns is not None and file is None and open_loop.said():
        _announce_compile()
        requests = open_loop.make(until_ns, shape.max_context_tokens, seed, max_requests)
    load = _load(requests, users, seed, until_ns, max_requests)
    _announce_compile()
    from kvtrace.simulation import FOREVER_NS, Simulation

    simulation = Simulation(chosen, shape, load, ranks=tensor_parallel)
    config = {
        "preset": preset, "model": model, "kv_dtype": kv_dtype, "tensor_parallel": tensor_parallel, "seed": seed,
        "users": None if requests else users, "duration_ns": until_ns, "max_requests": max_requests,
        "source": requests.origin if requests else {"kind": "synthetic", "users": users},
    }  # fmt: skip
    describe = describer(simulation, config, ["kvtrace", *sys.argv[1:]])
    span_ns = until_ns
    if requests is not None and (file is not None or len(requests) == max_requests):
        span_ns = min(int(requests.arrival_ns[-1]), until_ns or FOREVER_NS)
    with progress("simulating", span_ns) as tick:
        meta = traceout.write(output, simulation, describe, requests_out, tick)
    for note in meta.notes:
        log(f"note: {note}")
    summary = {
        "file": str(output), "rows": meta.rows, "preset": preset, "model": model, "seed": seed, "stats": meta.stats,
        "endurance": endurance(meta.stats or {}, span_ns, drive_size),
    }  # fmt: skip
    if as_json:
        emit_json(summary)
    else:
        _print_gen(summary)


def _check_open_loop(wanted: OpenLoopArguments, source: SourceArguments, file: Path | None, users: int | None) -> None:
    """Refuse arrivals for those who come at times of their own, and the options of files without one."""
    if file is None:
        source.need_none_of_a_file()
    if users is not None and wanted.said():
        raise ConfigError(f"--users {users}: they ask in a closed loop; leave them or {wanted.said()} out")
    own = replace(wanted, request_rate=None, live_conversations=None).said()
    if file is not None and own:
        raise ConfigError(f"{own}: {file} is no open loop of synthetic users; leave one of the two out")


def _load(requests: Requests | None, users: int, seed: int, until_ns: int | None, max_requests: int | None) -> Load:
    from kvtrace.simulation import FOREVER_NS, Load

    return Load(
        requests=requests, users=0 if requests is not None else users, seed=seed,
        until_ns=FOREVER_NS if until_ns is None else until_ns, max_requests=max_requests or FOREVER_NS,
    )  # fmt: skip


def _announce_compile() -> None:
    """Say that the first run compiles, if no run before has."""
    from kvtrace.compiled import is_cached

    if not is_cached():
        log("compiling the simulation; this happens once and takes about half a minute")


def _print_gen(summary: dict[str, Any]) -> None:
    stats = summary["stats"]
    typer.echo(
        f"{summary['file']}: {format_count(summary['rows'])} rows, preset {summary['preset']}, "
        f"model {summary['model']}, seed {summary['seed']}, {format_count(stats['requests'])} requests\n"
    )
    rows = [
        [
            tier["name"], _percent(tier["hit_ratio"]), format_bytes(tier["read_bytes"]),
            format_bytes(tier["written_bytes"]), format_bytes(tier["deleted_bytes"]), format_bytes(tier["live_bytes"]),
        ]
        for tier in stats["tiers"]
    ]  # fmt: skip
    emit_table("simulated", ["tier", "hits", "read", "written", "deleted", "live at end"], rows)
    for tier in summary["endurance"]:
        line = f"{tier['name']}: {format_bytes(tier['written_bytes_per_day'])} written a day"
        if tier["drive_writes_per_day"] is not None:
            line += f", {tier['drive_writes_per_day']:.3g} drive writes per day"
        typer.echo(line + " (this trace's rate, kept up)")
    first = stats["first_token"]
    if first is not None:
        names = ["p50_ns", "p95_ns", "p99_ns", "p99_9_ns"]
        emit_table(
            "\nmodelled time to first token", ["", *(n.removesuffix("_ns").replace("_", ".") for n in names)],
            [[kind.replace("_", " "), *(format_duration(first[kind][n]) for n in names)]
             for kind in ("with_cache", "without_cache")],
        )  # fmt: skip
    if stats["unplaced_objects"]:
        log(f"note: {stats['unplaced_objects']} objects were too large for every tier and were not stored")


def _percent(ratio: float | None) -> str | None:
    return None if ratio is None else f"{100 * ratio:.1f} %"


@app.command()
def info(file: TraceFile, as_json: AsJson = False) -> None:
    """Print what a trace holds: rows, span, operations and bytes by tier, op and phase, live bytes, hit ratios.

    \b
    kvtrace info t.parquet
    kvtrace info t.parquet --json | jq .tiers
    """
    from kvtrace.core.schema import TRACE
    from kvtrace.core.traceio import open_table
    from kvtrace.inventory import take

    reader = open_table(file, TRACE)
    with progress("reading", reader.meta.rows) as tick:
        found = take(reader, tick)
    if as_json:
        emit_json({"file": str(file), "metadata": reader.meta, **found})
        return
    meta = reader.meta
    model = (meta.model or {}).get("name")
    typer.echo(
        f"{file}: {format_count(found['rows'])} rows over {format_duration(found['span_ns'])}, "
        f"{format_count(found['objects'])} objects, {format_count(found['requests'])} requests\n"
        f"made by {meta.program} {meta.version}, preset {meta.preset or '-'}, model {model or '-'}, "
        f"seed {'-' if meta.seed is None else meta.seed}, source {(meta.source or {}).get('kind', '-')}\n"
        f"{'simulated in virtual time' if meta.is_simulated else 'not simulated by kvtrace'}"
        f"; configuration {meta.config_sha256[:12]}\n"
    )
    for note in meta.notes:
        typer.echo(f"note: {note}")
    cells = [
        [f"{c['tier']} {c['op']} {c['phase']}", format_count(c["operations"]), format_bytes(c["bytes"])]
        for c in found["operations"]
    ]
    emit_table("\noperations", ["tier, op, phase", "operations", "bytes"], cells)
    emit_table(
        "tiers (hit ratio: counted by the simulation)",
        ["tier", "capacity", "peak live", "live at end", "hit ratio"],
        [
            [
                t["name"], "unbounded" if t["capacity_bytes"] is None else format_bytes(t["capacity_bytes"]),
                ("≤ " if t["is_upper_bound"] else "") + format_bytes(t["peak_live_bytes"]),
                format_bytes(t["live_bytes_at_end"]), _percent(t["hit_ratio"]),
            ]
            for t in found["tiers"]
        ],
    )  # fmt: skip
    if any(t["is_upper_bound"] and t["peak_live_bytes"] for t in found["tiers"]):
        typer.echo("≤: nothing is deleted from this tier in the trace, so its live bytes only grow")


@app.command()
def validate(file: TraceFile, as_json: AsJson = False) -> None:
    """Re-simulate the rows: reads find live objects, capacities hold, time and stages go forward.

    Leaves with 0, or with 3 and the first row that cannot be.

    \b
    kvtrace validate t.parquet
    """
    from kvtrace.core.schema import TRACE
    from kvtrace.core.traceio import open_table
    from kvtrace.inventory import check

    reader = open_table(file, TRACE)
    with progress("validating", reader.meta.rows) as tick:
        ledger = check(reader, tick)
    if as_json:
        emit_json({"file": str(file), "is_valid": True, "rows": ledger.rows, "objects": ledger.objects})
    else:
        typer.echo(f"{file}: valid, {format_count(ledger.rows)} rows, {format_count(ledger.objects)} objects")


@app.command()
@takes_source
def sim(
    file: Annotated[Path, typer.Argument(help="A file of real requests.")],
    capacity_blocks: Annotated[str, typer.Option(help="Capacities in blocks, with commas; `unlimited` is one.")],
    policy: Annotated[
        str, typer.Option(help="Eviction policy: lru, lfu, fifo, clock, s3fifo, sieve, arc, or ttl.")
    ] = "lru",
    ttl: Annotated[str | None, typer.Option(help="With ttl: how long a block stays, such as 10m.")] = None,
    seed: Seed = 42,
    as_json: AsJson = False,
    *,
    source: SourceArguments,
) -> None:
    """Count the hits of one cache over a request trace, for each capacity, block by block in file order.

    A hit is a block of a request's leading run: found in the cache before the request's first miss.

    \b
    kvtrace sim conversation.jsonl --source mooncake --policy lru --capacity-blocks 1000,50000,unlimited
    kvtrace sim conversation.jsonl --source mooncake --policy ttl --ttl 10m --capacity-blocks unlimited
    """
    capacities = [_capacity(text) for text in capacity_blocks.split(",")]
    chosen, ttl_ns = _policy(policy, ttl)
    requests = source.read(file, seed)
    if not requests.block_tokens:
        raise ConfigError(f"{file} has no block ids, and sim counts blocks: use gen")
    from kvtrace.geometry import block_chains
    from kvtrace.sweep import policy_hits

    chains = block_chains(requests)
    references = len(chains.slots)
    hits = policy_hits(chains, capacities, chosen, arrival_ns=requests.arrival_ns, ttl_ns=ttl_ns)
    results = [{"capacity_blocks": c, "hits": h} for c, h in zip(capacities, hits, strict=True)]
    if as_json:
        emit_json({
            "policy": policy, "ttl_ns": ttl_ns or None, "requests": len(requests), "references": references,
            "results": results,
        })  # fmt: skip
        return
    emit_table(
        f"{policy}: {format_count(references)} references of {format_count(len(requests))} requests",
        ["capacity, blocks", "hits", "hit ratio"],
        [
            [
                "unlimited" if c is None else format_count(c),
                format_count(h), _percent(h / references if references else None),
            ]
            for c, h in zip(capacities, hits, strict=True)
        ],
    )  # fmt: skip


@app.command()
@takes_source
def mrc(
    file: Annotated[Path, typer.Argument(help="A file of real requests.")],
    model: Annotated[str, typer.Option(help="The model whose KV cache it is.")] = "llama3.1-8b",
    kv_dtype: Annotated[str | None, typer.Option(help="Element type of the cache, such as fp8.")] = None,
    chunk_tokens: Annotated[
        int | None, typer.Option(min=1, max=2**31 - 1, help="Tokens an object.  [default: the source's blocks]")
    ] = None,
    points: Annotated[int, typer.Option(min=2, max=10_000, help="Capacities, log-spaced.")] = 20,
    plot_to: Annotated[Path | None, typer.Option("--plot", help="Draw it: *.svg, *.png or *.pdf.")] = None,
    seed: Seed = 42,
    as_json: AsJson = False,
    *,
    source: SourceArguments,
) -> None:
    """How much DRAM and NVMe do I need? Hits, and bytes read and written, against capacity, in one pass.

    For one LRU tier alone, exactly. What is passed on is what the tier below reads, if it holds everything.

    \b
    kvtrace mrc conversation.jsonl --source mooncake --model llama3.1-8b
    kvtrace mrc conversation.jsonl --source mooncake --chunk-tokens 256 --plot mrc.svg
    """
    from kvtrace import mrc as curves
    from kvtrace.models import find_model

    shape = find_model(model, kv_dtype)
    requests = source.read(file, seed)
    found = curves.sweep(requests, shape, chunk_tokens, points)
    if plot_to is not None:
        curves.plot(found, plot_to, f"LRU over {file.name}, {model}, {found.object_tokens} tokens an object")
    if as_json:
        emit_json({"policy": "lru", "model": model, "source": requests.origin, **curves.as_json(found)})
        return
    emit_table(
        f"lru: {format_count(found.references)} references of {format_count(found.requests)} requests, "
        f"objects of {found.object_tokens} tokens, {format_bytes(found.object_bytes)}",
        ["capacity", "objects", "hits", "read", "passed on", "written", ""],
        curves.rows(found),
    )
    for enough in found.enough:
        typer.echo(
            f"{100 * enough['share_of_hits']:.0f} % of all possible hits: {format_bytes(enough['capacity_bytes'])}"
        )


def _policy(name: str, ttl: str | None) -> tuple[Policy, int]:
    from kvtrace.hierarchy import MAX_TTL_NS, Policy

    if name not in list(Policy):
        raise ConfigError(f"unknown policy {name!r}; known are {', '.join(Policy)}")
    if (name == Policy.TTL) != (ttl is not None):
        raise ConfigError("--policy ttl and --ttl, such as 10m, need each other")
    ttl_ns = parse_duration_ns(ttl) if ttl is not None else 0
    if ttl is not None and not 0 < ttl_ns <= MAX_TTL_NS:
        raise ConfigError(f"--ttl {ttl}: must be > 0, and at most {MAX_TTL_NS // 10**9} s")
    return Policy(name), ttl_ns


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


@app.command()
def models(
    model: Annotated[str | None, typer.Argument(help="A model, or a path to a config.json; without it, all.")] = None,
    tensor_parallel: Annotated[int, typer.Option("--tp", min=1, max=1024, help="Tensor-parallel ranks.")] = 1,
    kv_dtype: Annotated[
        str | None, typer.Option(help="Dtype of the cache: fp32, fp16, bf16, fp8, int8, fp8_ds_mla.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of the prefix to store and read.")] = 8192,
    chunk: Annotated[int, typer.Option(help="Tokens a chunk.")] = 256,
    page: Annotated[str, typer.Option(help="Pad each object to pages of this size, such as 4KiB.")] = "1",
    as_json: AsJson = False,
) -> None:
    """List the models, or print how many bytes one of them stores and reads, line by line.

    \b
    kvtrace models
    kvtrace models llama3.1-70b-instruct --tp 8
    kvtrace models gpt-oss-120b --tokens 100000 --chunk 16 --page 4KiB
    kvtrace models ./config.json --kv-dtype fp8
    """
    from kvtrace import modelview
    from kvtrace.core.units import parse_bytes

    if model is None:
        listing = modelview.listing()
        if as_json:
            emit_json({"models": listing})
        else:
            emit_table("models, before any tensor-parallel split", modelview.COLUMNS, modelview.listing_rows(listing))
        return
    found = modelview.describe_model(model, kv_dtype, tensor_parallel, tokens, chunk, parse_bytes(page))
    if as_json:
        emit_json(found)
    else:
        typer.echo("\n".join(modelview.arithmetic(found)))


@app.command("import")
@takes_source
def import_(
    file: Annotated[Path, typer.Argument(help="A file of real requests; for some sources a directory or a glob.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="The requests table: *.parquet or *.csv.zst.")],
    max_requests: Annotated[int | None, typer.Option(min=1, max=10**12, help="Stop after so many requests.")] = None,
    seed: Seed = 42,
    as_json: AsJson = False,
    *,
    source: SourceArguments,
) -> None:
    """Write a file of real requests as a requests table, and say what it holds: figures, gaps, oddities, nulls.

    `kvtrace gen requests.parquet` then makes the same trace as from the file itself.

    \b
    kvtrace import azure_2023_code.csv -o azure.parquet
    kvtrace import BurstGPT_1.csv --source burstgpt --time-scale 0.1 -o burst.csv.zst --json
    """
    from kvtrace import importing

    requests = source.read(file, seed, max_requests)
    with progress("writing", len(requests)) as tick:
        figures = importing.write(output, requests, ["kvtrace", *sys.argv[1:]], seed, tick)
    if as_json:
        emit_json({"file": str(output), "source": requests.origin, "notes": requests.notes, **figures})
        return
    for note in requests.notes:
        log(f"note: {note}")
    typer.echo(f"{output}: requests of {file}\n")
    for what, how_much in importing.lines(figures):
        typer.echo(f"{what:<25}  {how_much}")


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(metavar="IN", help="*.parquet, *.csv.zst, or an MLPerf trace CSV.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="*.parquet or *.csv.zst; with --to mlperf also *.csv.")],
    to: Annotated[str, typer.Option(help="Format of OUT: native, or mlperf.")] = "native",
) -> None:
    """Convert a table between Parquet and zstd CSV, or a trace from or to the MLPerf trace CSV.

    The objects table beside a trace goes along.

    \b
    kvtrace convert t.parquet t.csv.zst
    kvtrace convert mlperf_trace.csv t.parquet
    kvtrace convert t.parquet mlperf_trace.csv.zst --to mlperf
    """
    from kvtrace import mlperf_csv

    if to not in ("native", "mlperf"):
        raise ConfigError(f"--to {to}: unknown format; use native or mlperf")
    if source.exists() and target.exists() and source.samefile(target):
        raise ConfigError(f"{target} is the input; name another output")
    with progress("converting") as tick:
        if to == "mlperf":
            if not target.name.endswith((".csv", ".csv.zst")):
                raise ConfigError(f"{target}: name an MLPerf trace *.csv or *.csv.zst")
            log(mlperf_csv.describe_losses(mlperf_csv.write_from(source, target, tick)))
        elif mlperf_csv.is_mlperf(source):
            found = mlperf_csv.read_into(source, target, ["kvtrace", *sys.argv[1:]], tick)
            for note in found.notes():
                log(f"note: {note}")
        else:
            _convert_native(source, target, tick)


def _convert_native(source: Path, target: Path, tick: Any) -> None:
    from contextlib import ExitStack

    from kvtrace.core.schema import OBJECTS, TRACE
    from kvtrace.core.traceio import create, objects_path, open_table

    reader = open_table(source)
    with ExitStack() as stack:
        if reader.table == TRACE and objects_path(source).exists():
            side = open_table(objects_path(source), OBJECTS)
            out = stack.enter_context(create(objects_path(target), OBJECTS, side.meta))
            for batch in side.batches():
                out.write(batch)
        out = stack.enter_context(create(target, reader.table, reader.meta))
        for batch in reader.batches():
            out.write(batch)
            tick(float(out.rows))


def main() -> None:
    """Run kvtrace."""
    run(app, "kvtrace")


if __name__ == "__main__":
    main()
