"""Simulate: requests of a file or of synthetic users over the tiers of a preset, into a trace."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.commands.options import AsJson, Seed, percent
from kvtrace.commands.source_options import OpenLoopArguments, SourceArguments, takes_source
from kvtrace.core.app import emit_json, emit_table, log, progress
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import format_bytes, format_count, format_duration, parse_duration_ns

if TYPE_CHECKING:
    from kvtrace.requests.requests import Requests
    from kvtrace.sim.simulation import Load


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
    kvtrace gen --set workload.prompt_share=0.2 --set workload.rag_share=0.1 -o shared.parquet
    """
    from kvtrace.core.statistics import endurance
    from kvtrace.model.shape import find_model
    from kvtrace.sim import output as traceout
    from kvtrace.sim.output import describer
    from kvtrace.sim.preset import load_preset

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
        from kvtrace.core.compiled import compile_announced

        with compile_announced():
            requests = open_loop.make(until_ns, shape.max_context_tokens, seed, max_requests)
    load = _load(requests, users, seed, until_ns, max_requests)
    from kvtrace.core.compiled import compile_announced
    from kvtrace.sim.simulation import FOREVER_NS, Simulation

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
    with compile_announced(), progress("simulating", span_ns) as tick:
        meta = traceout.write(output, simulation, describe, requests_out, tick)
    if requests is None and simulation.requests == max_requests:
        span_ns = simulation.now_ns
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
    from kvtrace.sim.simulation import FOREVER_NS, Load

    return Load(
        requests=requests, users=0 if requests is not None else users, seed=seed,
        until_ns=FOREVER_NS if until_ns is None else until_ns, max_requests=max_requests or FOREVER_NS,
    )  # fmt: skip


def _print_gen(summary: dict[str, Any]) -> None:
    stats = summary["stats"]
    typer.echo(
        f"{summary['file']}: {format_count(summary['rows'])} rows, preset {summary['preset']}, "
        f"model {summary['model']}, seed {summary['seed']}, {format_count(stats['requests'])} requests\n"
    )
    rows = [
        [
            tier["name"], percent(tier["hit_ratio"]), format_bytes(tier["read_bytes"]),
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
