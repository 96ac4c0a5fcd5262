"""Simulate requests of a file or of synthetic users over the tiers of a preset, into a trace.

Show what was counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from kvtrace.commands import options as common
from kvtrace.commands.options import given
from kvtrace.core.app import command_line, log, option, progress
from kvtrace.core.document.terminal import answer
from kvtrace.core.errors import ConfigError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.units import (
    parse_duration_ns,
)
from kvtrace.llm.catalogue import find_model


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
    summary: JsonObject = {"file": str(output), "rows": meta.rows, "preset": meta.preset}
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
    from kvtrace.sim.documents import simulation_document
    from kvtrace.sim.simulate import write_scenario
    from kvtrace.trace.inventory import monthly_costs

    scenario = common.prepare(
        file, fleet.over(stack), users, run, source, turns, events=event or ()
    )
    fleet.check(scenario.preset)
    drive.check(scenario.preset)
    config = scenario.config
    with progress("simulating", scenario.planned_span_ns()) as tick:
        trace, span_ns = write_scenario(
            scenario, output, command_line(), requests_out, progress=tick
        )
    meta = trace.metadata
    for note in meta.notes:
        log(f"note: {note}")
    facts = {name: config[name] for name in ("preset", "model", "seed", "serving")}
    stats = trace.stats
    assert stats is not None  # a simulation has just written them
    summary = {"file": str(output), "rows": meta.rows, **facts, "stats": meta.stats}
    summary["endurance"] = drive.wear(scenario.preset, stats.tiers, span_ns)
    if costs := monthly_costs(output, scenario.preset.tiers, stats.tiers, span_ns):
        summary["costs"] = costs
    answer(summary, lambda: simulation_document(summary, stats), as_json=as_json)
    if not as_json and stats.unplaced_objects:
        log(
            f"note: {stats.unplaced_objects} objects were stored nowhere: too large for every tier, or no room in"
            " the staging tier"
        )


MODEL, DURATION = "llama3.1-8b", "1h"
