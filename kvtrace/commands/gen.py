"""Simulate: requests of a file or of synthetic users over the tiers of a preset, into a trace."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.commands.options import (
    AsJson,
    KvDtype,
    MaxRequests,
    Seed,
    SourceArguments,
    TensorParallel,
    UserArguments,
    member,
)
from kvtrace.core.app import emit_json, log, progress, takes_groups
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import format_bytes, format_count, format_duration, parse_duration_ns

if TYPE_CHECKING:
    from kvtrace.core.document.document import Document
    from kvtrace.requests.requests import Requests
    from kvtrace.sim.simulation import Simulation

MODEL, USERS, DURATION = "llama3.1-8b", 32, "60s"
"""Defaults where the preset has none."""


FollowTurns = Annotated[
    str | None,
    typer.Option(
        help="Later turns of FILE's sessions follow, a pause after the simulated answer before them, or arrive "
        "as-recorded.  [default: as-recorded; follow where FILE has no times for them]"
    ),
]


@dataclass(frozen=True, slots=True)
class StackArguments:
    """The caching stack and the model that it serves."""

    model: Annotated[
        str | None, typer.Option(help="The model whose KV cache it is.  [default: the preset's, or llama3.1-8b]")
    ] = None
    kv_dtype: KvDtype = None
    preset: Annotated[str, typer.Option(help="The caching stack to imitate: a name, or a .toml file.")] = "mlperf"
    gpu: Annotated[
        str | None,
        typer.Option(
            help="What computes: a100, h100, h200, b200, l40s, mi300x, or instant for no time.  [default: the "
            "preset's: h100; instant for mlperf]"
        ),
    ] = None
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a knob of the preset.")
    ] = None


@dataclass(frozen=True, slots=True)
class RunArguments:
    """Where the simulation ends, its seed, and its ranks."""

    duration: Annotated[
        str | None, typer.Option(help="Virtual time to simulate.  [default: the preset's, 60s, or all of FILE]")
    ] = None
    max_requests: MaxRequests = None
    seed: Seed = 42
    tensor_parallel: TensorParallel = 1


@dataclass(frozen=True, slots=True)
class DriveArguments:
    """The drive that is worn: None for what was not given."""

    drive_size: Annotated[
        str | None, typer.Option(help="Also print drive writes per day for a drive of this size, such as 3.84TB.")
    ] = None
    drive_endurance: Annotated[
        str | None,
        typer.Option(help="Also print years of life of a drive that may be written so much, such as 7PB (its TBW)."),
    ] = None

    def read(self) -> tuple[int | None, int | None]:
        """Return the bytes that it holds, and those that it may be written."""
        from kvtrace.core.statistics import parse_drive

        return parse_drive("--drive-size", self.drive_size), parse_drive("--drive-endurance", self.drive_endurance)


@takes_groups
def gen(
    file: Annotated[Path | None, typer.Argument(help="A file of real requests; without it, synthetic users.")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The trace: *.parquet or *.csv.zst.")] = Path(
        "trace.parquet"
    ),
    *,
    stack: StackArguments,
    users: UserArguments,
    run: RunArguments,
    requests_out: Annotated[Path | None, typer.Option(help="Also write the requests table here.")] = None,
    drive: DriveArguments,
    as_json: AsJson = False,
    source: SourceArguments,
    turns: FollowTurns = None,
) -> None:
    """Simulate requests over the tiers of a preset and write the I/O as a trace, deletes included.

    \b
    kvtrace gen --users 32 --duration 60s --seed 42 -o t.parquet
    kvtrace gen --request-rate 20/s --arrivals gamma --burstiness 4 --duration 60s -o open.parquet
    kvtrace gen --source mooncake conversation.jsonl --preset lmcache-disk -o conv.parquet
    kvtrace gen sessions.jsonl --turns follow --preset lmcache-disk -o closed.parquet
    kvtrace gen --preset lmcache-disk --set tiers.nvme.capacity=500GiB -o small.parquet
    kvtrace gen --set workload.prompt_share=0.2 --set workload.rag_share=0.1 -o shared.parquet
    """
    from kvtrace.core.compiled import compile_announced
    from kvtrace.core.document.terminal import show_documents
    from kvtrace.core.statistics import endurance
    from kvtrace.sim import output as trace_output
    from kvtrace.sim.output import describer

    worn = drive.read()
    simulation, config = prepare(file, stack, users, run, source, turns)
    describe = describer(simulation, config, ["kvtrace", *sys.argv[1:]])
    with compile_announced(), progress("simulating", span_ns(simulation, config)) as tick:
        meta = trace_output.write(output, simulation, describe, requests_out, tick)
    for note in meta.notes:
        log(f"note: {note}")
    facts = {name: config[name] for name in ("preset", "model", "seed")}
    summary = {"file": str(output), "rows": meta.rows, **facts, "stats": meta.stats}
    summary["serving"] = config["serving"]
    summary["endurance"] = endurance(meta.stats or {}, span_ns(simulation, config), *worn)
    if as_json:
        emit_json(summary)
        return
    show_documents([_document(summary)])
    if unplaced := summary["stats"]["unplaced_objects"]:
        log(f"note: {unplaced} objects were too large for every tier and were not stored")


def span_ns(simulation: Simulation, config: dict[str, Any]) -> int | None:
    """Return over how long requests arrive, as far as it is known so far: to the last one, or to the end."""
    requests, most = simulation.load.requests, config["max_requests"]
    duration_ns: int | None = config["duration_ns"]
    if requests is None:
        return simulation.now_ns if simulation.requests == most else duration_ns
    if (arrivals := simulation.arrivals()) is not None:
        times = arrivals[1]
        return int(times[-1]) if len(times) == len(requests) else duration_ns
    if "file" in config["source"] or len(requests) == most:
        return min(int(requests.arrival_ns[-1]), simulation.load.until_ns)
    return duration_ns


# Long: each option is said once here, in the order in which one needs the other.
def prepare(
    file: Path | None,
    stack: StackArguments,
    users: UserArguments,
    run: RunArguments,
    source: SourceArguments,
    turns: str | None,
) -> tuple[Simulation, dict[str, Any]]:
    """Return the simulation that was asked for, and the configuration that its trace carries."""
    from kvtrace.model import serving
    from kvtrace.model.catalogue import find_model
    from kvtrace.model.logged import logged_model
    from kvtrace.requests.turns.follow import Turns, choose
    from kvtrace.sim.presets.preset import load_preset
    from kvtrace.sim.simulation import FOREVER_NS, Load, Simulation

    users.check(source, file)
    if turns is not None and file is None:
        raise ConfigError(f"--turns {turns} is of a FILE's sessions; synthetic users always wait for their answers")
    settings, ranks = stack.settings or (), run.tensor_parallel
    preset = load_preset(stack.preset, settings)
    asked = None if file is None else source.read(file, run.seed, run.max_requests)
    logged = None if asked is None or stack.model else logged_model(asked.origin)
    model = logged[0] if logged else stack.model or preset.load.model or MODEL
    shape = logged[1] if logged and not stack.kv_dtype else find_model(model, stack.kv_dtype)
    roofline: dict[str, int] = {}

    def times(gpu: str) -> dict[str, int]:
        roofline.update(serving.computing_times(gpu, shape, ranks))
        return roofline

    preset = load_preset(stack.preset, settings, stack.gpu, times)
    until_ns = _until_ns(run.duration or (None if file else preset.load.duration or DURATION))
    waits = None
    if asked is not None:
        asked, waits = choose(asked, None if turns is None else member(Turns, turns, "--turns"))
    requests = asked if file else _open_loop(users, run, source, until_ns, shape.max_context_tokens)
    count = users.users or preset.load.users or USERS
    if preset.workload.overlap:
        if requests is not None:
            raise ConfigError("workload.overlap is of synthetic users at their own pace: leave it, or FILE or the rate")
        requests = _overlapping(count, until_ns, shape.max_context_tokens, run, preset.decode_ns_per_token)
    load = Load(
        requests=requests,
        users=0 if requests is not None else count,
        seed=run.seed,
        until_ns=FOREVER_NS if until_ns is None else until_ns,
        max_requests=run.max_requests or FOREVER_NS,
        waits=waits,
    )
    config = {
        "preset": stack.preset,
        "model": model,
        "kv_dtype": stack.kv_dtype,
        "tensor_parallel": run.tensor_parallel,
        "seed": run.seed,
        "users": None if requests else count,
        "duration_ns": until_ns,
        "max_requests": run.max_requests,
        "source": requests.origin if requests else {"kind": "synthetic", "users": count},
        "serving": serving.describe(preset.gpu, ranks, shape, preset.computing, roofline),
    }
    if waits is not None:
        config["turns"] = str(Turns.FOLLOW)
    return Simulation(preset, shape, load, ranks=run.tensor_parallel), config


def _until_ns(duration: str | None) -> int | None:
    until_ns = parse_duration_ns(duration) if duration else None
    if until_ns == 0:
        raise ConfigError(f"--duration {duration}: must be > 0")
    return until_ns


def _open_loop(
    users: UserArguments, run: RunArguments, source: SourceArguments, until_ns: int | None, max_context_tokens: int
) -> Requests | None:
    """Return the requests of an open loop of synthetic users; None if they are in a closed loop, made as they go."""
    if until_ns is None or not users.open_loop(source):
        return None
    from kvtrace.core.compiled import compile_announced

    with compile_announced():
        return users.requests(source, until_ns, max_context_tokens, run.seed, run.max_requests)


def _overlapping(
    count: int, until_ns: int | None, max_context_tokens: int, run: RunArguments, decode_ns_per_token: int
) -> Requests:
    if until_ns is None:
        raise ValueError("without a file there is a duration")
    from kvtrace.core.compiled import compile_announced
    from kvtrace.users import overlapping

    with compile_announced():
        return overlapping.make(
            *(count, until_ns, max_context_tokens, run.seed),
            decode_ns_per_token=decode_ns_per_token,
            max_requests=run.max_requests,
        )


def _unstored(tiers: list[dict[str, Any]]) -> list[str]:
    """Return what waited to be stored and was not, a line for each tier with a queue."""
    return [
        f"{tier['name']}: {format_count(tier['lost_objects'])} objects ({format_bytes(tier['lost_bytes'])}) were gone "
        f"from the tier above before their turn to be stored, {format_count(tier['dropped_objects'])} "
        f"({format_bytes(tier['dropped_bytes'])}) came to a full queue and were dropped, "
        f"{format_count(tier['waiting_objects'])} still wait"
        for tier in tiers
        if "lost_objects" in tier
    ]


def _document(summary: dict[str, Any]) -> Document:
    """Return what the simulation counted as a document."""
    from kvtrace.core.document.document import Chapter, Document, Sheet, table_of
    from kvtrace.model.serving import in_words

    stats, first = summary["stats"], summary["stats"]["first_token"]
    spec = """
        text: name = tier
        share: hit_ratio = hits
        bytes: read_bytes = read, written_bytes = written, deleted_bytes = deleted, live_bytes = live at end
    """
    rows = stats["tiers"]
    if any("refused_bytes" in tier for tier in rows):
        spec += "bytes: refused_bytes = not admitted"
        rows = [{"refused_bytes": None} | tier for tier in rows]
    tables = [table_of("simulated", Sheet.SUMMARY, spec, rows)]
    if first is not None:
        rows = [first[kind] | {"kind": kind.replace("_", " ")} for kind in ("with_cache", "without_cache")]
        spec = "text: kind =; ns: p50_ns = p50, p95_ns = p95, p99_ns = p99, p99_9_ns = p99.9"
        tables.append(table_of("modelled time to first token", Sheet.SUMMARY, spec, rows))
    worn = [in_words(summary["serving"])]
    if mean_ns := stats["decode"]["mean_ns_per_token"]:
        tokens = format_count(stats["decode"]["tokens"])
        worn.append(f"computed: {tokens} tokens were generated, {format_duration(mean_ns)} each on average")
    if mean_ns := stats["prefill"]["mean_wait_ns"]:
        prefills = format_count(stats["prefill"]["requests"])
        worn[-1] += f"; {prefills} prompts waited {format_duration(mean_ns)} for others on average"
    for tier in summary["endurance"]:
        line = f"{tier['name']}: {format_bytes(tier['written_bytes_per_day'])} written a day"
        if tier["drive_writes_per_day"] is not None:
            line += f", {tier['drive_writes_per_day']:.3g} drive writes per day"
        if tier.get("years_of_life") is not None:
            line += f", {tier['years_of_life']:.3g} years of life"
        worn.append(line + " (this trace's rate, kept up)")
    worn += _unstored(stats["tiers"])
    headline = (
        f"{format_count(summary['rows'])} rows, preset {summary['preset']}, model {summary['model']}, "
        f"seed {summary['seed']}, {format_count(stats['requests'])} requests"
    )
    return Document(summary["file"], headline, [Chapter("", tables, worn)])
