"""Simulate requests of a file or of synthetic users over the tiers of a preset, into a trace.

Show what was counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import typer

from kvtrace.commands import options as common
from kvtrace.commands.options import given
from kvtrace.core.app import command_line, log, option, progress
from kvtrace.core.document.chapters import event_lines, event_tables, fleet_headline, fleet_tables
from kvtrace.core.document.document import Chapter, Document, ReportTable, Sheet, table_of
from kvtrace.core.document.terminal import answer
from kvtrace.core.errors import ConfigError
from kvtrace.core.metadata import STALLS
from kvtrace.core.units import (
    counted,
    format_bytes,
    format_count,
    format_duration,
    format_years,
    parse_duration_ns,
)
from kvtrace.model.catalogue import find_model
from kvtrace.model.serving import in_words


@dataclass(frozen=True, slots=True)
class CheckpointArguments:
    """A training run that is checkpointed; None for what was not given."""

    ranks: int | None = option(
        "--preset checkpoint: processes of the training, one a GPU.  [default: 8]"
    )
    every: str | None = option(
        "--preset checkpoint: training time from save to save.  [default: 10min]"
    )
    mtbf: str | None = option(
        "--preset checkpoint: mean time between failures, after each of which the newest checkpoint"
        " is restored.  [default: nothing fails]"
    )


def gen_checkpoints(
    output: Path,
    stack: common.StackArguments,
    run: common.RunArguments,
    training: CheckpointArguments,
    others: tuple[object, ...],
    *,
    as_json: bool,
) -> None:
    """Write the trace of a training run's checkpoints.

    `others` are groups of options of which it has no use.
    """
    from kvtrace.sim.presets.preset import load_training
    from kvtrace.trace.checkpoint import Saving, document, notes, run_course, shard_bytes, write

    for name, value in chain.from_iterable(
        given(group, *common.USED_BY_ALL).items() for group in (stack, run, *others)
    ):
        raise ConfigError(
            f"{common.flag_of(name)} {value} needs a KV cache; --preset checkpoint has none"
        )
    asked, name = load_training(stack.settings or (), given(training)), stack.model or MODEL
    shape = find_model(name)
    parameters = asked.parameters or shape.parameters
    if not parameters:
        raise ConfigError(
            f"the number of parameters of {name} is not known: give it with --set"
            " parameters=8030000000"
        )
    until_ns = parse_duration_ns(run.duration or DURATION)
    course = run_course(asked, until_ns, run.seed)
    if not course.events:
        raise ConfigError(
            f"--duration {run.duration or DURATION} ends before the first save, {asked.every} after"
            " the start, or failures come before it; make it longer, or --every shorter"
        )
    model = {"name": name, "source": shape.source, "parameters": parameters}
    job = Saving(asked, course, shard_bytes(asked, parameters), model, until_ns, run.seed)
    with progress("writing", job.until_ns) as tick:
        meta = write(output, job, command_line(), tick)
    for note in notes(job):
        log(f"note: {note}")
    summary: dict[str, Any] = {"file": str(output), "rows": meta.rows, "preset": meta.preset}
    summary |= {name: meta.config[name] for name in ("model", "seed", "training")} | {
        "stats": meta.stats
    }
    summary["parts"] = {
        part: {"objects": len(sizes), "bytes": sum(sizes), "largest_bytes": max(sizes)}
        for part, sizes in job.shards.items()
    }
    answer(summary, lambda: document(summary), as_json=as_json)


# Long: its options, and an example of each kind.
def gen(
    file: Annotated[
        Path | None, typer.Argument(help="A file of real requests; without it, synthetic users.")
    ] = None,
    output: Path = option(
        "The trace: *.parquet or *.csv.zst.", Path("trace.parquet"), "-o --output", writable=True
    ),
    *,
    stack: common.StackArguments,
    fleet: common.FleetArguments,
    event: common.EventOption = None,
    users: common.UserArguments,
    run: common.RunArguments,
    requests_out: Path | None = option("Also write the requests table here.", writable=True),
    drive: common.DriveArguments,
    as_json: common.AsJson = False,
    source: common.SourceArguments,
    turns: common.TurnsOption = None,
    training: CheckpointArguments,
) -> None:
    """Simulate requests over the tiers of a preset and write the I/O as a trace, deletes included.

    \b
    kvtrace gen --users 32 --duration 60s --seed 42 -o t.parquet
    kvtrace gen --request-rate 20/s --arrivals gamma --burstiness 4 --duration 60s -o open.parquet
    kvtrace gen --source mooncake conversation.jsonl --preset lmcache-disk -o conv.parquet
    kvtrace gen sessions.jsonl --turns follow --preset lmcache-disk -o closed.parquet
    kvtrace gen --preset lmcache-disk --set tiers.nvme.capacity=500GiB -o small.parquet
    kvtrace gen --set workload.prompt_share=0.2 --set workload.rag_share=0.1 -o shared.parquet
    kvtrace gen --preset checkpoint --model llama3.1-70b --ranks 64 --every 10min --duration 1h -o save.parquet
    kvtrace gen --nodes 8 --router prefix --preset vllm-fs --set tiers.nvme.scope=fleet -o fleet.parquet
    kvtrace gen --nodes 8 --duration 20min --event 300s:node-lost:7 --event 400s:node-joined:7 -o lost.parquet
    kvtrace gen --nodes 8 --duration 20min --event 300s:rolling-restart:30s -o restart.parquet
    """
    from kvtrace.sim.presets.preset import TRAINING

    if stack.preset == TRAINING:
        if any(given is not None for given in (file, requests_out, turns)):
            raise ConfigError(
                "--preset checkpoint has no requests: leave FILE, --requests-out and --turns out"
            )
        if event:
            raise ConfigError(
                f"--event {event[0]}: events are of nodes with a KV cache; preset {TRAINING} has"
                " none"
            )
        gen_checkpoints(
            output, stack, run, training, (users, source, drive, fleet), as_json=as_json
        )
        return
    for name, value in given(training).items():
        raise ConfigError(
            f"{common.flag_of(name)} {value} needs --preset checkpoint; {stack.preset} has no"
            " training"
        )
    from kvtrace.sim import output as trace_output
    from kvtrace.trace.inventory import monthly_costs

    scenario = common.prepare(
        file, fleet.over(stack), users, run, source, turns, events=event or ()
    )
    fleet.check(scenario.preset)
    drive.check(scenario.preset)
    simulation, config = scenario.simulation(), scenario.config
    with progress("simulating", scenario.span_ns(simulation)) as tick:
        meta = trace_output.write(output, simulation, config, command_line(), requests_out, tick)
    for note in meta.notes:
        log(f"note: {note}")
    # Rates are over all I/O, which goes on for longer than requests arrive if they come faster than
    # they are served.
    span_ns = max(scenario.span_ns(simulation) or 0, simulation.last_io_ns)
    facts = {name: config[name] for name in ("preset", "model", "seed", "serving")}
    stats: dict[str, Any] = meta.stats or {}
    summary = {"file": str(output), "rows": meta.rows, **facts, "stats": stats}
    summary["endurance"] = drive.wear(scenario.preset, stats, span_ns)
    if costs := monthly_costs(output, scenario.preset.tiers, stats, span_ns):
        summary["costs"] = costs
    answer(summary, lambda: generated(summary), as_json=as_json)
    if not as_json and (unplaced := summary["stats"]["unplaced_objects"]):
        log(
            f"note: {unplaced} objects were stored nowhere: too large for every tier, or no room in"
            " the staging tier"
        )


_STREAMS_SHOWN = 8


def _computed(summary: dict[str, Any]) -> list[str]:
    """Return what computes, how long tokens took on average, and how long prompts waited."""
    stats, said = summary["stats"], [in_words(summary["serving"])]
    if mean_ns := stats["decode"]["mean_ns_per_token"]:
        tokens = format_count(stats["decode"]["tokens"])
        said.append(
            f"computed: {tokens} tokens were generated, {format_duration(mean_ns)} each on average"
        )
    if mean_ns := stats["prefill"]["mean_wait_ns"]:
        prefills = format_count(stats["prefill"]["requests"])
        said[-1] += f"; {prefills} prompts waited {format_duration(mean_ns)} for others on average"
    return said


def generated(summary: dict[str, Any]) -> Document:
    """Return what the simulation counted as a document."""
    from kvtrace.trace.inventory import cost_line

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
    if "fleet" in stats:
        spec = spec.replace("text: name = tier", "text: name = tier, scope")
    tables = [table_of("simulated", Sheet.SUMMARY, spec, rows)]
    tables += [] if first is None else [first_token_table(first)]
    worn = _computed(summary)
    for tier in summary["endurance"]:
        line = f"{tier['name']}: {format_bytes(tier['written_bytes_per_day'])} written a day"
        line += f" to each of {tier['instances']} on average" if "instances" in tier else ""
        if tier["drive_writes_per_day"] is not None:
            line += f", {tier['drive_writes_per_day']:.3g} drive writes per day"
        if tier.get("years_of_life") is not None:
            line += f", {format_years(tier['years_of_life'])} of life"
        elif "years_of_life" in tier and tier["written_bytes_per_day"]:
            line += ", life unknown without --drive-size"
        worn.append(line + " (this trace's rate, kept up)")
    basis = "simulated; at the preset's prices and this trace's rate, kept up"
    worn += [
        cost_line(cost, " at the trace's end", basis) for cost in summary.get("costs", [])
    ] + _beside(stats)
    headline = (
        f"{counted(summary['rows'], 'row')}, preset {summary['preset']}, model {summary['model']}, "
        f"seed {summary['seed']}, {counted(stats['requests'], 'request')}"
    )
    if stalled := stats.get("stalled_requests"):
        headline = f"{STALLS} in {stalled:,} of {stats['requests']:,} requests; {headline}"
    if of_fleet := stats.get("fleet"):
        headline = f"{fleet_headline(of_fleet)}; {headline}"
        tables = [*fleet_tables(of_fleet), *tables]
    if events := stats.get("incidents"):
        tables += event_tables(events)
        worn = [*event_lines(events), *worn]
    return Document(summary["file"], headline, [Chapter("", tables, worn)])


def _beside(stats: dict[str, Any]) -> list[str]:
    """Return what tiers do beside reads and writes.

    Look-ups, refusals, what was not stored, collecting, streams.
    """
    tiers = stats["tiers"]
    said = [
        f"{tier['name']}: {counted(tier['file_lookups'], 'look-up')} of files (simulated; no rows"
        " of the trace)"
        for tier in tiers
        if "file_lookups" in tier
    ]
    if (offers := stats.get("offers")) is not None and offers["refused"]:
        said.append(
            f"{format_count(offers['refused'])} of {format_count(offers['count'])} offers were"
            f" refused for lack of space, {counted(offers['refused_objects'], 'object')} in all;"
            " each is offered again"
        )
    said += [
        f"{tier['name']}: {counted(tier['lost_objects'], 'object')}"
        f" ({format_bytes(tier['lost_bytes'])}) had left the tier above before they were stored,"
        f" {format_count(tier['dropped_objects'])} ({format_bytes(tier['dropped_bytes'])}) found"
        f" the queue full and were dropped, {format_count(tier['waiting_objects'])} still wait"
        for tier in tiers
        if "lost_objects" in tier
    ]
    said += [
        f"{tier['name']}: {format_bytes(tier['collected_bytes'])} were rewritten by bucket garbage"
        " collection: written"
        f" {tier['written_bytes'] / (tier['written_bytes'] - tier['collected_bytes']):.3g} times"
        " what was stored"
        for tier in tiers
        if tier.get("collected_bytes")
    ]
    for tier in tiers:
        most = sorted(tier.get("streams", []), key=lambda stream: -stream["written_bytes"])
        parts = [
            f"{of['stream']} ({of['holds']}) {format_bytes(of['written_bytes'])}"
            for of in most[:_STREAMS_SHOWN]
        ]
        rest = f" and {len(most) - _STREAMS_SHOWN} more" if len(most) > _STREAMS_SHOWN else ""
        if "streams" in tier:
            said.append(f"{tier['name']}: written by stream: {', '.join(parts) or 'nothing'}{rest}")
    return said


def first_token_table(first: dict[str, Any]) -> ReportTable:
    """Return the modelled times to the first token of `stats`, and in the same queue had each alone
    found nothing.
    """
    rows = [
        first["with_cache"] | {"kind": "with cache"},
        first["without_cache"] | {"kind": "without any hit"},
    ]
    spec = "text: kind =; ns: p50_ns = p50, p95_ns = p95, p99_ns = p99, p99_9_ns = p99.9"
    return table_of("modelled time to first token", Sheet.SUMMARY, spec, rows)


MODEL, DURATION = "llama3.1-8b", "1h"
