"""Write simulated traces, with the drive wear and costs they imply, and traces of training runs.

scenario -> trace, objects and requests tables -> `ScenarioTrace`
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvtrace.core.document.document import Document
from kvtrace.core.errors import ConfigError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.parameters import named, setting, suggest_keywords
from kvtrace.core.simulation_stats import SimulationStats
from kvtrace.core.statistics import Endurance, parse_endurance
from kvtrace.core.trace import Trace
from kvtrace.core.units import parse_duration_ns
from kvtrace.llm.catalogue import find_model, full_model_name
from kvtrace.sim.documents import simulation_document
from kvtrace.sim.presets.preset import load_training
from kvtrace.sim.scenario import MODEL, Scenario
from kvtrace.sim.simulate import write_scenario
from kvtrace.studies.gen_options import DriveArguments
from kvtrace.trace.checkpoint import Saving, document, run_course, shard_bytes, write
from kvtrace.trace.inventory import monthly_costs

Progress = Callable[[float], None]
"""Takes the simulated time reached so far, ns."""
TRAINING_DURATION = "1h"


@dataclass(frozen=True, slots=True)
class ScenarioTrace:
    """The trace of a scenario, with the wear of drives and the monthly costs at its rate."""

    trace: Trace
    load_ns: int
    """The time over which requests arrive; figures a day and a month refer to it."""
    wear: list[JsonObject]
    """For each tier below memory: bytes written a day, DWPD, years of life."""
    costs: list[JsonObject]
    """For each tier with a price: what it costs a month."""

    @property
    def stats(self) -> SimulationStats:
        """The counters of the simulation."""
        stats = self.trace.stats
        assert stats is not None  # write_scenario has stored the statistics
        return stats

    def to_dict(self) -> JsonObject:
        """Return everything as `kvtrace gen --json` prints it."""
        metadata = self.trace.metadata
        facts = {name: metadata.config[name] for name in ("preset", "model", "seed", "serving")}
        summary = {"file": str(self.trace.path), "rows": metadata.rows, **facts}
        summary |= {"stats": metadata.stats, "endurance": self.wear}
        return summary | ({"costs": self.costs} if self.costs else {})

    def document(self) -> Document:
        """Return the counters as a document for a terminal."""
        return simulation_document(self.to_dict(), self.stats)


@suggest_keywords
def simulate_scenario(
    scenario: Scenario,
    path: str | Path,
    *,
    argv: Sequence[str] = ("kvtrace.simulate_scenario",),
    requests_output: Path | None = None,
    drive_bytes: int | None = None,
    endurance: str | Endurance | None = None,
    progress: Progress | None = None,
) -> ScenarioTrace:
    """Run `scenario` into the trace at `path`, with its objects table beside it.

    `simulate` builds the scenario and does the same.

    Args:
        scenario: What `build_scenario` returned.
        path: Where to write the trace: `*.parquet`, `*.csv.zst`, or the folder of a dataset, whose
            name has no dot. No file appears under its final
            name before all of them are complete.
        argv: The command that the metadata of the trace name.
        requests_output: Where to write the table of requests; None for nowhere.
        drive_bytes: Size of the drive that wears. Default: the capacity of its tier.
        endurance: Rated endurance of the drive, "1DWPD,5y" or its TBW, such as "14PB".
        progress: As in `simulate`.

    Raises:
        ConfigError: for a drive or an endurance without a tier that is a drive.
        OutOfMemory: if the simulation does not fit into memory.

    Examples:
        >>> import pathlib, tempfile
        >>> import kvtrace as kt
        >>> scenario = kt.build_scenario(
        ...     preset="lmcache-disk", users=2, duration="5s", model="tiny-1b"
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = kt.simulate_scenario(scenario, pathlib.Path(folder, "trace.parquet"))
        >>> written.stats.requests > 0, written.load_ns
        (True, 5000000000)

    """
    rating = parse_endurance(endurance) if isinstance(endurance, str) else endurance
    drive = DriveArguments(drive_bytes, rating)
    drive.check(scenario.preset)
    trace, load_ns = write_scenario(
        scenario, Path(path), list(argv), requests_output, progress=progress
    )
    stats = trace.stats
    assert stats is not None  # write_scenario has stored the statistics
    wear = drive.wear(scenario.preset, stats.tiers, load_ns)
    costs = monthly_costs(trace.path, scenario.preset.tiers, stats.tiers, load_ns)
    return ScenarioTrace(trace, load_ns, wear, costs)


@dataclass(frozen=True, slots=True)
class TrainingTrace:
    """The trace of a training run's checkpoints."""

    trace: Trace
    parts: dict[str, JsonObject]
    """Objects, bytes and the largest object of a checkpoint, by part: weights and optimizer."""

    @property
    def notes(self) -> list[str]:
        """The assumptions of the trace."""
        return self.trace.metadata.notes

    def to_dict(self) -> JsonObject:
        """Return everything as `kvtrace gen --preset checkpoint --json` prints it."""
        metadata = self.trace.metadata
        summary = {
            "file": str(self.trace.path),
            "rows": metadata.rows,
            "preset": metadata.preset,
            **{name: metadata.config[name] for name in ("model", "seed", "training")},
            "stats": metadata.stats,
        }
        return summary | {"parts": self.parts}

    def document(self) -> Document:
        """Return the counters as a document for a terminal."""
        return document(self.to_dict())


@suggest_keywords
def simulate_training(
    path: str | Path,
    *,
    model: str | None = None,
    ranks: int | None = None,
    every: str | None = None,
    mtbf: str | None = None,
    settings: Sequence[str] = (),
    duration: str | None = None,
    seed: int = 42,
    argv: Sequence[str] = ("kvtrace.simulate_training",),
    progress: Progress | None = None,
) -> TrainingTrace:
    """Write the trace of a training run that saves checkpoints, and restores them after failures.

    Args:
        path: Where to write the trace: `*.parquet`, `*.csv.zst`, or the folder of a dataset.
        model: The model that is trained; its parameters give the bytes. Default: llama3.1-8b.
        ranks: Processes of the training, one a GPU. Default: 8.
        every: Training time from save to save. Default: "10min".
        mtbf: Mean time between failures. Default: nothing fails.
        settings: KEY=VALUE knobs of the preset checkpoint.
        duration: The length of the trace. Default: "1h".
        seed: Seed of the failures.
        argv: The command that the metadata of the trace name.
        progress: Called with the simulated time, in ns, as the trace is written.

    Raises:
        ConfigError: for an unknown model or knob, or a run that ends before its first save.

    Examples:
        >>> import pathlib, tempfile
        >>> import kvtrace as kt
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = kt.simulate_training(
        ...         pathlib.Path(folder, "save.parquet"), ranks=2, every="10min", duration="30min"
        ...     )
        >>> written.to_dict()["stats"]["checkpoint"]["saves"]
        3

    """
    options = {"ranks": ranks, "every": every, "mtbf": mtbf}
    training = load_training(settings, options)
    name = full_model_name(model or MODEL)
    shape = find_model(name)
    parameters = training.parameters or shape.parameters
    if not parameters:
        raise ConfigError(
            f"the number of parameters of {name} is unknown: give it with"
            f" {setting('parameters=8030000000')}"
        )
    until_ns = parse_duration_ns(duration or TRAINING_DURATION)
    course = run_course(training, until_ns, seed)
    if not course.events:
        raise ConfigError(
            f"{named('duration', duration or TRAINING_DURATION)} ends before the first save,"
            f" {training.every} after the start, or failures come before it; make it longer, or"
            f" {named('every')} shorter"
        )
    facts = {"name": name, "source": shape.source, "parameters": parameters}
    job = Saving(training, course, shard_bytes(training, parameters), facts, until_ns, seed)
    metadata = write(Path(path), job, list(argv), progress or (lambda _ns: None))
    components: dict[str, JsonObject] = {
        component: {"objects": len(sizes), "bytes": sum(sizes), "largest_bytes": max(sizes)}
        for component, sizes in job.shards.items()
    }
    return TrainingTrace(Trace(Path(path), metadata, folder=None), components)
