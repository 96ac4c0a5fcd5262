"""Simulate: requests of a file or of synthetic users over the tiers of a preset, into a trace."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from kvtrace.commands.checkpoint import CheckpointArguments, gen_checkpoints, refuse_requests
from kvtrace.commands.options import AsJson, SourceArguments, UserArguments
from kvtrace.commands.scenario import (
    DriveArguments,
    EventOption,
    FleetArguments,
    RunArguments,
    StackArguments,
    TurnsOption,
    prepare,
)
from kvtrace.core.app import emit_json, log, progress, takes_groups
from kvtrace.core.errors import ConfigError
from kvtrace.sim.presets.training import PRESET as CHECKPOINT


# Long: its options, and an example of each kind.
@takes_groups
def gen(
    file: Annotated[Path | None, typer.Argument(help="A file of real requests; without it, synthetic users.")] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The trace: *.parquet or *.csv.zst.")] = Path(
        "trace.parquet"
    ),
    *,
    stack: StackArguments,
    fleet: FleetArguments,
    event: EventOption = None,
    users: UserArguments,
    run: RunArguments,
    requests_out: Annotated[Path | None, typer.Option(help="Also write the requests table here.")] = None,
    drive: DriveArguments,
    as_json: AsJson = False,
    source: SourceArguments,
    turns: TurnsOption = None,
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
    if stack.preset == CHECKPOINT:
        refuse_requests(file, requests_out, turns)
        if event:
            raise ConfigError(f"--event {event[0]}: of the nodes of a KV cache; preset {CHECKPOINT} has none")
        gen_checkpoints(output, stack, run, training, (users, source, drive, fleet), as_json=as_json)
        return
    training.refuse(stack.preset)
    from kvtrace.commands.documents.generated import generated
    from kvtrace.core.document.terminal import show_documents
    from kvtrace.sim import output as trace_output
    from kvtrace.trace.inventory import monthly_costs

    worn = drive.read()
    scenario = prepare(file, fleet.over(stack), users, run, source, turns, events=event or ())
    fleet.check(scenario.preset)
    simulation, config = scenario.simulation(), scenario.config
    describe = trace_output.describer(simulation, config, ["kvtrace", *sys.argv[1:]])
    with progress("simulating", scenario.span_ns(simulation)) as tick:
        meta = trace_output.write(output, simulation, describe, requests_out, tick)
    for note in meta.notes:
        log(f"note: {note}")
    facts = {name: config[name] for name in ("preset", "model", "seed", "serving")}
    summary = {"file": str(output), "rows": meta.rows, **facts, "stats": meta.stats}
    summary["endurance"] = worn.wear(
        meta.stats or {}, scenario.span_ns(simulation), scenario.preset.tiers[-1].capacity_bytes
    )
    if costs := monthly_costs(output, scenario.preset.tiers, meta.stats or {}, scenario.span_ns(simulation)):
        summary["costs"] = costs
    if as_json:
        emit_json(summary)
        return
    show_documents([generated(summary)])
    if unplaced := summary["stats"]["unplaced_objects"]:
        log(f"note: {unplaced} objects were stored nowhere: too large for every tier, or no room in the staging tier")
