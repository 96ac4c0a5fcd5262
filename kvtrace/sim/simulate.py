"""Simulate a KV cache under a load and write the trace: `kvtrace.simulate`.

requests or synthetic users -> scenario -> simulation -> trace, objects and requests tables
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kvtrace.core.errors import ConfigError
from kvtrace.core.parameters import suggest_keywords
from kvtrace.core.tables import names_dataset, requests_path
from kvtrace.core.temporary import TemporaryFolder
from kvtrace.core.trace import Trace, open_trace
from kvtrace.core.units import parse_duration_ns, parse_rate_per_s
from kvtrace.requests.registry import read_requests
from kvtrace.requests.requests import Requests, Turns
from kvtrace.requests.users import ArrivalProcess, Process
from kvtrace.sim import output
from kvtrace.sim.baseline import baseline_beside
from kvtrace.sim.scenario import OpenLoop, Scenario, build_scenario, settings_of

Progress = Callable[[float], None]
"""Takes the simulated time reached so far, ns."""


@suggest_keywords
def simulate(
    requests: Requests | str | Path | None = None,
    *,
    preset: str | Path = "mlperf",
    model: str | Path | None = None,
    tiers: Mapping[str, Mapping[str, object]] | None = None,
    knobs: Mapping[str, object] | None = None,
    users: int | None = None,
    request_rate: str | float | None = None,
    arrivals: str = "poisson",
    burstiness: float | None = None,
    duration: str | None = None,
    max_requests: int | None = None,
    gpu: str | None = None,
    tensor_parallel: int | None = None,
    kv_dtype: str | None = None,
    nodes: int | None = None,
    router: str | None = None,
    events: Sequence[str] = (),
    turns: str | None = None,
    slo: str | None = None,
    seed: int = 42,
    path: str | Path | None = None,
    progress: Progress | None = None,
) -> Trace:
    """Simulate the KV cache of an inference engine and return the I/O as a `Trace`.

    The same arguments and seed give the same bytes on any machine. The simulation runs in simulated
    time: hours take seconds, and nothing is written but the trace.

    Args:
        requests: Real requests: what `read_requests` returned, or the path of a file that it
            reads. None simulates synthetic users.
        preset: The engine and its offload, a name of `presets()` or the path of a TOML file.
        model: A name of `models()`, a Hugging Face name, or the path of a `config.json`. Default:
            the preset's, or llama3.1-8b.
        tiers: Knobs of tiers by the tier's name, such as `{"cpu": {"capacity": "64GiB"}}`. Sizes
            are text with a unit, or a number of bytes; None is unlimited.
        knobs: Other knobs of the preset, such as `{"chunk_tokens": 64, "workload.think_time":
            "4s"}`.
        users: Synthetic users that wait for each answer (a closed loop). Default: the preset's, or
            32.
        request_rate: Synthetic users that send requests at this rate (an open loop), such as
            "20/s"; a number is per second.
        arrivals: With `request_rate`: "poisson", "gamma", "constant" or "diurnal".
        burstiness: With gamma arrivals: the intervals' coefficient of variation; 1 is Poisson.
        duration: When the simulation ends, such as "60s". Default: the preset's, 60s for
            synthetic users, else all requests.
        max_requests: The simulation ends after so many requests.
        gpu: The GPU that sets the modelled computing time, such as "h100"; "instant" takes no time.
        tensor_parallel: Tensor-parallel ranks. Default: 1, or as many GPUs as hold the model's
            weights.
        kv_dtype: Element type of the cache, such as "fp8". Default: the model's.
        nodes: Serving nodes, each with tiers of its own.
        router: How a node is chosen for each request, such as "prefix" or "round-robin".
        events: Incidents such as "300s:node-lost:7".
        turns: "follow": later turns of a session wait for the simulated answer before them.
            "as-recorded": they arrive at their recorded times.
        slo: Limits of TTFT and TPOT, such as "ttft=2s,tpot=50ms": `stats.goodput` counts the
            requests within them.
        seed: Seed of everything that is drawn.
        path: Where to write the trace: `*.parquet`, `*.csv.zst`, or the folder of a dataset, whose
            name has no dot. Default: a temporary file that
            lives as long as the returned object; see `Trace.save`.
        progress: Called with the simulated time, in ns, as the simulation goes on.

    Returns:
        The trace. Its `stats` are the counters of the simulation: hits by tier, bytes, time to
        first token. Its requests have TTFT and TPOT each, if anything takes time.

    Raises:
        ConfigError: for an unknown preset, model or knob, and for arguments that exclude each
            other.
        TraceError: for a damaged file of requests.
        OutOfMemory: if the simulation does not fit into memory.

    Examples:
        >>> import kvtrace as kt
        >>> trace = kt.simulate(
        ...     preset="lmcache-disk", users=4, duration="10s", model="tiny-1b", seed=1,
        ...     tiers={"gpu": {"capacity": "64MiB"}, "cpu": {"capacity": "128MiB"},
        ...            "nvme": {"capacity": "512MiB"}},
        ... )
        >>> print(*(tier.name for tier in trace.stats.tiers if tier.written_bytes))
        gpu cpu nvme

    """
    if users is not None and (requests is not None or request_rate is not None):
        open_loop_option = "requests" if requests is not None else "request_rate"
        raise ConfigError(f"users={users} is a closed loop: leave users or {open_loop_option} out")
    if requests is not None and request_rate is not None:
        raise ConfigError(f"request_rate={request_rate}: the requests have times; leave it out")
    if turns is not None and requests is None:
        raise ConfigError(f"turns={turns!r} needs requests with sessions")
    loaded = (
        read_requests(requests, max_requests=max_requests, seed=seed)
        if isinstance(requests, str | Path)
        else requests
    )
    open_loop = None
    if request_rate is not None:
        rate = parse_rate_per_s(str(request_rate))
        open_loop = OpenLoop(ArrivalProcess(rate, _process(arrivals), burstiness))
    fleet = {"fleet.nodes": nodes, "fleet.router": router}
    settings = settings_of(
        tiers, {**{k: v for k, v in fleet.items() if v is not None}, **(knobs or {})}
    )
    if duration is not None:
        parse_duration_ns(duration)
    scenario = build_scenario(
        loaded,
        preset=str(preset),
        settings=settings,
        model=None if model is None else str(model),
        kv_dtype=kv_dtype,
        gpu=gpu,
        tensor_parallel=tensor_parallel,
        users=users,
        open_loop=open_loop,
        duration=duration,
        max_requests=max_requests,
        seed=seed,
        turns=None if turns is None else _turns(turns),
        events=events,
        slo=slo,
    )
    arguments: dict[str, object] = {
        "preset": str(preset),
        "model": model,
        "settings": settings,
        "users": users,
        "request_rate": request_rate,
        "arrivals": arrivals if request_rate is not None else None,
        "burstiness": burstiness,
        "duration": duration,
        "max_requests": max_requests,
        "gpu": gpu,
        "tensor_parallel": scenario.ranks,
        "kv_dtype": kv_dtype,
        "events": list(events),
        "turns": turns,
        "slo": slo,
        "seed": seed,
    }
    if isinstance(requests, str | Path):
        arguments["requests"] = str(requests)
    argv = ["kvtrace.simulate", *(f"{name}={value}" for name, value in arguments.items() if value)]
    if path is not None:
        file = Path(path)
        return write_scenario(scenario, file, argv, requests_path(file), progress=progress)[0]
    folder = TemporaryFolder("kvtrace-")
    file = folder.path / "trace.parquet"
    write_scenario(scenario, file, argv, requests_path(file), progress=progress)
    return open_trace(file, folder)


def write_scenario(
    scenario: Scenario,
    path: Path,
    argv: list[str],
    requests_output: Path | None = None,
    *,
    progress: Progress | None = None,
) -> tuple[Trace, int]:
    """Run `scenario` into the trace at `path`, with its objects table beside it.

    The metadata name `argv` as the command. The requests table is written to `requests_output` if
    given; a dataset always gets it. No file appears under its final name before all are complete.

    Returns the trace and the time in ns over which requests arrive, to which figures a day and a
    month refer; until the last I/O if that is unknown.
    """
    load = scenario.load.with_chains(scenario.preset)
    if requests_output is None and names_dataset(path):
        requests_output = requests_path(path)
    with (
        baseline_beside(
            scenario.preset, scenario.model, load, scenario.ranks, scenario.service_level
        ) as baseline_stats,
        replace(scenario, load=load).simulation() as simulation,
    ):
        metadata = output.write(
            path,
            simulation,
            scenario,
            argv,
            requests_output,
            progress or (lambda _ns: None),
            baseline_stats,
        )
        load_ns = scenario.span_ns(simulation) or simulation.last_io_ns
    return Trace(path, metadata, folder=None), load_ns


def _process(name: str) -> Process:
    if name not in tuple(Process):
        raise ConfigError(f"arrivals={name!r}: use one of {', '.join(Process)}")
    return Process(name)


def _turns(name: str) -> Turns:
    if name not in tuple(Turns):
        raise ConfigError(f"turns={name!r}: use one of {', '.join(Turns)}")
    return Turns(name)
