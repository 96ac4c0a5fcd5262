"""`kvtrace gen --preset checkpoint`: a training run's checkpoints in the place of a KV cache's users."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.commands.options import USED_BY_ALL, RunArguments, StackArguments, flag_of
from kvtrace.core.app import emit_json, log, progress
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import parse_duration_ns

if TYPE_CHECKING:
    from kvtrace.trace.checkpoint import Saving

MODEL, DURATION = "llama3.1-8b", "1h"


@dataclass(frozen=True, slots=True)
class CheckpointArguments:
    """A training run that is checkpointed; None for what was not given."""

    ranks: Annotated[
        int | None, typer.Option(help="--preset checkpoint: processes of the training, one a GPU.  [default: 8]")
    ] = None
    every: Annotated[
        str | None, typer.Option(help="--preset checkpoint: training time from save to save.  [default: 10min]")
    ] = None
    mtbf: Annotated[
        str | None,
        typer.Option(
            help="--preset checkpoint: mean time between failures, after each of which the newest checkpoint is "
            "restored.  [default: nothing fails]"
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """Return what was given, by name."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in named.items() if value is not None}

    def refuse(self, preset: str) -> None:
        """Raise ConfigError for an option that was given although `preset` has no training."""
        for name, value in self.given().items():
            raise ConfigError(f"{flag_of(name)} {value} is of --preset checkpoint; {preset} has no training")


def refuse_requests(*given: object) -> None:
    """Raise ConfigError if anything is `given` that has to do with requests: training has none."""
    if any(value is not None for value in given):
        raise ConfigError("--preset checkpoint has no requests: leave FILE, --requests-out and --turns out")


def gen_checkpoints(
    output: Path,
    stack: StackArguments,
    run: RunArguments,
    training: CheckpointArguments,
    others: tuple[object, ...],
    *,
    as_json: bool,
) -> None:
    """Write the trace of a training run's checkpoints; `others` are groups of options of which it has no use."""
    from kvtrace.core.document.terminal import show_documents
    from kvtrace.trace.checkpoint import document, notes, write

    for group in (stack, run, *others):
        for field in fields(group):  # type: ignore[arg-type]
            value = getattr(group, field.name)
            if field.name not in USED_BY_ALL and value != field.default:
                flag = flag_of(field.name)
                raise ConfigError(f"{flag} {value} is of a KV cache; --preset checkpoint has none")
    job = _job(stack, run, training)
    with progress("writing", job.until_ns) as tick:
        meta = write(output, job, ["kvtrace", *sys.argv[1:]], tick)
    for note in notes(job):
        log(f"note: {note}")
    summary: dict[str, Any] = {"file": str(output), "rows": meta.rows, "preset": meta.preset}
    summary |= {name: meta.config[name] for name in ("model", "seed", "training")} | {"stats": meta.stats}
    summary["parts"] = {
        part: {"objects": len(sizes), "bytes": sum(sizes), "largest_bytes": max(sizes)}
        for part, sizes in job.shards.items()
    }
    if as_json:
        emit_json(summary)
    else:
        show_documents([document(summary)])


def _job(stack: StackArguments, run: RunArguments, given: CheckpointArguments) -> Saving:
    from kvtrace.model.catalogue import find_model
    from kvtrace.sim.presets.training import load_training
    from kvtrace.trace.checkpoint import Saving, run_course, shard_bytes

    training = load_training(stack.settings or (), given.given())
    name = stack.model or MODEL
    shape = find_model(name)
    parameters = training.parameters or shape.parameters
    if not parameters:
        raise ConfigError(f"how many parameters {name} has is not known: say it with --set parameters=8030000000")
    until_ns = parse_duration_ns(run.duration or DURATION)
    course = run_course(training, until_ns, run.seed)
    if not course.events:
        raise ConfigError(
            f"--duration {run.duration or DURATION} ends before the first save, {training.every} after "
            "the start, or nothing survives so long; make it longer, or --every shorter"
        )
    model = {"name": name, "source": shape.source, "parameters": parameters}
    return Saving(training, course, shard_bytes(training, parameters), model, until_ns, run.seed)
