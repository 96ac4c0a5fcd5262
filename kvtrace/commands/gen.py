"""The command `gen`: simulate requests of a file or of synthetic users, and write the trace.

It prints the counters of the simulation.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

import kvtrace
from kvtrace.commands.options import AsJson
from kvtrace.core.app import command_line, log, option, progress
from kvtrace.core.document.terminal import answer
from kvtrace.core.errors import ConfigError
from kvtrace.core.parameters import named
from kvtrace.core.units import parse_duration_ns
from kvtrace.studies import gen_options

TRAINING = "checkpoint"
"""The preset of a training run, which has no KV cache."""


@dataclass(frozen=True, slots=True)
class CheckpointArguments:
    """The options of a training run that saves checkpoints; None for an option not given."""

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
    stack: gen_options.StackArguments,
    run: gen_options.RunArguments,
    training: CheckpointArguments,
    unused_groups: tuple[gen_options.OptionGroup, ...],
    *,
    as_json: bool,
) -> None:
    """Write the trace of a training run's checkpoints.

    `unused_groups` are groups of options that need a KV cache, which is an error here.
    """
    groups: tuple[gen_options.OptionGroup, ...] = (stack, run, *unused_groups)
    for name, value in chain.from_iterable(
        gen_options.given_options(group, *gen_options.USED_BY_ALL).items() for group in groups
    ):
        raise ConfigError(f"{named(name, value)} needs a KV cache; --preset {TRAINING} has none")
    with progress("writing", parse_duration_ns(run.duration or "1h")) as tick:
        written = kvtrace.simulate_training(
            output,
            model=stack.model,
            ranks=training.ranks,
            every=training.every,
            mtbf=training.mtbf,
            settings=stack.settings or (),
            duration=run.duration,
            seed=run.seed,
            argv=command_line(),
            progress=tick,
        )
    for note in written.notes:
        log(f"note: {note}")
    answer(written.to_dict(), written.document, as_json=as_json)


# It is long because of its options, and an example of each kind.
def gen(
    file: Annotated[
        Path | None, typer.Argument(help="A file of real requests; without it, synthetic users.")
    ] = None,
    output: Path = option(
        "The trace: *.parquet, *.csv.zst, or DIR/ for a dataset of many files.",
        Path("trace.parquet"),
        "-o --output",
        writable=True,
    ),
    *,
    stack: gen_options.StackArguments,
    fleet: gen_options.FleetArguments,
    event: gen_options.EventOption = None,
    users: gen_options.UserArguments,
    run: gen_options.RunArguments,
    requests_out: Path | None = option("Also write the requests table here.", writable=True),
    drive: gen_options.DriveArguments,
    as_json: AsJson = False,
    source: gen_options.SourceArguments,
    turns: gen_options.TurnsOption = None,
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
    kvtrace gen --nodes 64 --duration 24h -o day/
    """
    if stack.preset == TRAINING:
        if any(argument is not None for argument in (file, requests_out, turns)):
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
    for name, value in gen_options.given_options(training).items():
        raise ConfigError(
            f"{named(name, value)} needs --preset {TRAINING}; {stack.preset} has no training"
        )
    scenario = gen_options.prepare(
        file, fleet.apply_to(stack), users, run, source, turns, events=event or ()
    )
    fleet.check(scenario.preset)
    with progress("simulating", scenario.planned_span_ns()) as tick:
        written = kvtrace.simulate_scenario(
            scenario,
            output,
            argv=command_line(),
            requests_output=requests_out,
            drive_bytes=drive.drive_size,
            endurance=drive.endurance,
            progress=tick,
        )
    for note in written.trace.metadata.notes:
        log(f"note: {note}")
    answer(written.to_dict(), written.document, as_json=as_json)
    unplaced = written.stats.unplaced_objects
    if not as_json and unplaced:
        log(
            f"note: {unplaced} objects were stored nowhere: too large for every tier, or no room in"
            " the staging tier"
        )
