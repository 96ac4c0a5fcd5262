"""Simulate the configurations of a study, or load their results if they are stored."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import chdir
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Final

from kvtrace.core.errors import ConfigError
from kvtrace.core.parameters import named
from kvtrace.core.simulation_stats import TimeToFirstToken
from kvtrace.curves.points import Meter, Simulated, Stack, simulated
from kvtrace.requests.requests import Requests
from kvtrace.sim import output as trace_output
from kvtrace.sim.baseline import (
    baseline_beside,
    preset_without_offload,
    ttft_without_offload,
    with_baseline,
)
from kvtrace.sim.presets.preset import Entry, Preset
from kvtrace.sim.scenario import Scenario
from kvtrace.sim.simulation import Load
from kvtrace.studies.gen_options import SourceArguments, parse_gen, prepare_gen
from kvtrace.studies.run import Failed, Result, Task, run_locally, run_on_dask
from kvtrace.studies.study import FILE, Configuration, Results, files_sha256, key_of

TRACES: Final = "traces"
"""Folder of the traces, below the folder of the study."""


def simulate(task: Task) -> Simulated:
    """Simulate the configuration of `task`, as `gen` does, and count."""
    with chdir(task.folder):
        # Typer keeps the values of a command line in one place for all threads.
        with _PREPARING:
            request = parse_gen(task.argv)
            scenario = prepare_gen(request, partial(_read, task.file_sha256))
            stack = Stack(
                scenario.preset, scenario.model, scenario.load, scenario.ranks, scenario.span_ns
            )
            bounds = _LAST_CHAINS.add_to(stack)
            simulation = replace(scenario, load=bounds.load).simulation()
        meter = Meter(simulation, keeps_rows=task.trace is not None)
        if task.trace is None:
            simulation.run(meter)
        else:
            argv = ["kvtrace", "gen", *task.argv]
            with baseline_beside(
                scenario.preset,
                scenario.model,
                bounds.load,
                scenario.ranks,
                scenario.service_level,
            ) as baseline_stats:
                trace_output.write(
                    Path(task.trace),
                    simulation,
                    scenario,
                    argv,
                    baseline_stats=baseline_stats,
                )
    figures = simulated(
        simulation,
        meter,
        scenario.span_ns(simulation),
        request.drive.endurance,
        request.drive.drive_size,
    )
    notes = trace_output.memory_notes(scenario)
    baseline = optimum = None
    if task.is_compared:
        # After an incident requests look up again, so the optimum of the references is no bound.
        has_bound = scenario.preset.fleet.nodes == 1 and not request.event
        optimum = bounds.optimum({}) if has_bound else None
        baseline = _BASELINES.ttft(replace(scenario, load=bounds.load))
    return replace(
        figures,
        first_token=with_baseline(figures.first_token, baseline),
        optimal_hit_ratio=optimum,
        notes=tuple(notes),
    )


class _Baselines:
    """TTFT without offload of the last scenarios.

    Configurations that differ in the tiers below GPU memory alone have one baseline.
    """

    _LIMIT = 8

    def __init__(self) -> None:
        self._known: deque[tuple[Scenario, Preset, TimeToFirstToken | None]] = deque(
            maxlen=self._LIMIT
        )

    def ttft(self, scenario: Scenario) -> TimeToFirstToken | None:
        """Return TTFT of `scenario` without offload; None if there is nothing to compare."""
        plain = preset_without_offload(scenario.preset)
        if plain is None:
            return None
        load = scenario.load
        for other, preset, ttft in list(self._known):
            is_same_load = load.requests is other.load.requests and (
                replace(load, requests=None, chains=None, waits=None)
                == replace(other.load, requests=None, chains=None, waits=None)
            )
            is_same = (plain, scenario.model, scenario.ranks) == (preset, other.model, other.ranks)
            # Waits are arrays of the requests, which follow from them and from the options.
            if is_same and is_same_load and (load.waits is None) == (other.load.waits is None):
                return ttft
        ttft = ttft_without_offload(scenario.preset, scenario.model, load, scenario.ranks)
        self._known.append((scenario, plain, ttft))
        return ttft


_BASELINES: Final = _Baselines()


_PREPARING = Lock()


class _LastChains:
    """The chains of the last requests, which most configurations of a study share.

    Its caller holds `_PREPARING`.
    """

    def __init__(self) -> None:
        self._load: Load | None = None
        self._rule: tuple[int, bool] | None = None

    def add_to(self, stack: Stack) -> Stack:
        """Return `stack` with the chains of its load, which are computed if they are others."""
        rule = (stack.preset.chunk_tokens, stack.preset.partial_chunks)
        last = self._load
        is_same = last is not None and last.requests is stack.load.requests and self._rule == rule
        if last is not None and is_same and stack.preset.entry is Entry.CHUNK:
            return replace(stack, load=replace(stack.load, chains=last.chains))
        stack = stack.with_chains()
        if stack.load.chains is not None:
            self._load, self._rule = stack.load, rule
        return stack


_LAST_CHAINS = _LastChains()


@lru_cache(maxsize=2)
def _read(
    sha256: str | None,
    source: SourceArguments,
    path: Path,
    seed: int,
    max_requests: int | None,
) -> Requests:
    """Return the requests of a file with that hash; one configuration after another needs them."""
    if sha256 != files_sha256(path):
        raise ConfigError(f"{path} has changed since the study started, or differs on this worker")
    return source.read(path, seed, max_requests)


def simulate_all(
    configurations: Sequence[Configuration],
    output: Path,
    results: dict[int, Result],
    *,
    workers: int | None,
    scheduler: str | None,
    with_traces: bool = False,
    is_compared: bool = False,
    tell: Callable[[str], None],
    progress: Callable[[], None],
) -> None:
    """Fill `results` by the number of the configuration: stored results first, then new ones.

    If `is_compared`, each has the TTFT without offload of a second simulation, and the optimum of
    all policies. `progress` is called after each simulation.
    """
    stored_results = Results(output)
    traces = output.absolute() / TRACES
    if with_traces:
        traces.mkdir(exist_ok=True)
    numbers: dict[str, list[int]] = {}
    tasks = []
    for configuration in configurations:
        key = key_of(configuration)
        trace = traces / f"{configuration.number}.parquet" if with_traces else None
        if (stored := stored_results.load(key, trace)) is not None:
            results[configuration.number] = stored
            continue
        numbers.setdefault(key, []).append(configuration.number)
        if len(numbers[key]) == 1 or trace is not None:
            file = configuration.knobs.get(FILE)
            sha256 = None if file is None else files_sha256(Path(str(file)))
            trace_path = None if trace is None else str(trace)
            tasks.append(
                Task(key, configuration.argv, str(Path.cwd()), sha256, trace_path, is_compared)
            )
    loaded = sum(configuration.number in results for configuration in configurations)
    if loaded:
        tell(f"note: {loaded} of {len(configurations)} configurations were simulated before")
    if scheduler and workers:
        raise ConfigError(
            f"{named('workers')} is for this machine, {named('scheduler')} has workers of its own;"
            " leave one of the two out"
        )
    completed = (
        run_on_dask(tasks, simulate, scheduler)
        if scheduler
        else run_locally(tasks, simulate, workers or os.cpu_count() or 1)
    )
    for task, result in completed:
        if not isinstance(result, Failed):
            stored_results.store(task.key, result, Path(task.trace) if task.trace else None)
        results.update(dict.fromkeys(numbers[task.key], result))
        progress()
