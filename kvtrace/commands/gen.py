"""Simulate: requests of a file or of synthetic users over the tiers of a preset, into a trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.commands.options import AsJson, SourceArguments, UserArguments
from kvtrace.commands.scenario import DriveArguments, RunArguments, StackArguments, TurnsOption, prepare
from kvtrace.core.app import emit_json, log, progress, takes_groups
from kvtrace.core.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from kvtrace.core.document.document import Document, ReportTable

_STREAMS_SHOWN = 8


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
    turns: TurnsOption = None,
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
    from kvtrace.sim import output as trace_output
    from kvtrace.sim.output import describer

    worn = drive.read()
    scenario = prepare(file, stack, users, run, source, turns)
    simulation, config = scenario.simulation(), scenario.config
    describe = describer(simulation, config, ["kvtrace", *sys.argv[1:]])
    with compile_announced(), progress("simulating", scenario.span_ns(simulation)) as tick:
        meta = trace_output.write(output, simulation, describe, requests_out, tick)
    for note in meta.notes:
        log(f"note: {note}")
    facts = {name: config[name] for name in ("preset", "model", "seed")}
    summary = {"file": str(output), "rows": meta.rows, **facts, "stats": meta.stats}
    summary["serving"] = config["serving"]
    summary["endurance"] = worn.wear(
        meta.stats or {}, scenario.span_ns(simulation), scenario.preset.tiers[-1].capacity_bytes
    )
    if as_json:
        emit_json(summary)
        return
    show_documents([_document(summary)])
    if unplaced := summary["stats"]["unplaced_objects"]:
        log(f"note: {unplaced} objects were stored nowhere: too large for every tier, or no room in the staging tier")


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


def _in_streams(tier: dict[str, Any]) -> str:
    """Return what was written to each stream of a tier, those with the most bytes first."""
    most = sorted(tier["streams"], key=lambda stream: -stream["written_bytes"])
    parts = [f"{of['stream']} ({of['holds']}) {format_bytes(of['written_bytes'])}" for of in most[:_STREAMS_SHOWN]]
    rest = f" and {len(most) - _STREAMS_SHOWN} more" if len(most) > _STREAMS_SHOWN else ""
    return f"{tier['name']}: written by stream: {', '.join(parts) or 'nothing'}{rest}"


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
        tables.append(first_token_table(first))
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
    worn += _of_offers(stats)
    worn += _unstored(stats["tiers"])
    worn += [_in_streams(tier) for tier in stats["tiers"] if "streams" in tier]
    headline = (
        f"{format_count(summary['rows'])} rows, preset {summary['preset']}, model {summary['model']}, "
        f"seed {summary['seed']}, {format_count(stats['requests'])} requests"
    )
    return Document(summary["file"], headline, [Chapter("", tables, worn)])


def _of_offers(stats: dict[str, Any]) -> list[str]:
    """Return what an engine does beside reading and writing, where its preset says so: look-ups, and refusals."""
    said = [
        f"{tier['name']}: {format_count(tier['file_lookups'])} look-ups of files (simulated; no rows of the trace)"
        for tier in stats["tiers"]
        if "file_lookups" in tier
    ]
    if (offers := stats.get("offers")) is not None and offers["refused"]:
        said.append(
            f"{format_count(offers['refused'])} of {format_count(offers['count'])} offers were refused for want of "
            f"room, {format_count(offers['refused_objects'])} objects in all; each is offered again"
        )
    return said


def first_token_table(first: dict[str, Any]) -> ReportTable:
    """Return the modelled times to the first token of a simulation's `stats`."""
    from kvtrace.core.document.document import Sheet, table_of

    rows = [first[kind] | {"kind": kind.replace("_", " ")} for kind in ("with_cache", "without_cache")]
    spec = "text: kind =; ns: p50_ns = p50, p95_ns = p95, p99_ns = p99, p99_9_ns = p99.9"
    return table_of("modelled time to first token", Sheet.SUMMARY, spec, rows)
