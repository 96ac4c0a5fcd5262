"""The simulation that the options of a command ask for: preset, model and load, ready to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtrace.commands.options import RunArguments, SourceArguments, StackArguments, UserArguments, member
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import parse_duration_ns
from kvtrace.model.catalogue import find_model, logged_model

if TYPE_CHECKING:
    from kvtrace.model.shape import ModelShape
    from kvtrace.requests.requests import Requests
    from kvtrace.requests.users import Workload
    from kvtrace.sim.presets.preset import Preset
    from kvtrace.sim.simulation import Load, Simulation

MODEL, USERS, DURATION = "llama3.1-8b", 32, "60s"
"""Defaults where the preset has none."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A simulation that was asked for: of which tiers, model and load, on how many ranks."""

    preset: Preset
    model: ModelShape
    load: Load
    ranks: int
    config: dict[str, Any]
    """What was asked for, as a trace's metadata carries it."""

    def simulation(self) -> Simulation:
        """Return the simulation before its start."""
        from kvtrace.sim.simulation import Simulation

        return Simulation(self.preset, self.model, self.load, ranks=self.ranks)

    def refuse_fleet(self, command: str) -> None:
        """Raise ConfigError if there are several nodes: `command` looks at one."""
        if (nodes := self.preset.fleet.nodes) > 1:
            raise ConfigError(f"fleet.nodes={nodes}: {command} is of one node; kvtrace plan is of a fleet")

    def span_ns(self, simulation: Simulation) -> int | None:
        """Return over how long requests arrive, as far as it is known so far: to the last one, or to the end."""
        requests, most = self.load.requests, self.config["max_requests"]
        duration_ns: int | None = self.config["duration_ns"]
        if requests is None:
            return simulation.now_ns if simulation.requests == most else duration_ns
        if (arrivals := simulation.arrivals()) is not None:
            times = arrivals[1]
            return int(times[-1]) if len(times) == len(requests) else duration_ns
        if "file" in self.config["source"] or len(requests) == most:
            return min(int(requests.arrival_ns[-1]), simulation.load.until_ns)
        return duration_ns


# Long: one option after the other, in the order in which they depend on each other.
def prepare(
    file: Path | None,
    stack: StackArguments,
    users: UserArguments,
    run: RunArguments,
    source: SourceArguments,
    turns: str | None,
    gpu: str | None = None,
    read: Callable[[SourceArguments, Path, int, int | None], Requests] = SourceArguments.read,
    events: Sequence[str] = (),
) -> Scenario:
    """Return the simulation that was asked for.

    `gpu` is what computes if neither `stack` nor its settings say; `read` reads the file; `events` are
    as --event has them.
    """
    from kvtrace.model import serving
    from kvtrace.requests.shaping import Turns, choose
    from kvtrace.sim.fleet import parse_all
    from kvtrace.sim.presets.preset import load_preset
    from kvtrace.sim.simulation import FOREVER_NS, Load

    users.check(source, file)
    if turns is not None and file is None:
        raise ConfigError(f"--turns {turns} is for the sessions of a FILE to read; without one, users are synthetic")
    settings, ranks = stack.settings or (), run.tensor_parallel
    preset = load_preset(stack.preset, settings)
    asked = None if file is None else read(source, file, run.seed, run.max_requests)
    logged = None if asked is None or stack.model else logged_model(asked.origin)
    model = logged[0] if logged else stack.model or preset.load.model or MODEL
    shape = logged[1] if logged and not stack.kv_dtype else find_model(model, stack.kv_dtype)
    roofline: dict[str, Any] = {}

    def times(gpu: str) -> dict[str, Any]:
        roofline.update(serving.computing_times(gpu, shape, ranks))
        return roofline

    preset = load_preset(stack.preset, settings, stack.gpu or gpu, times)
    duration = run.duration or (None if file else preset.load.duration or DURATION)
    until_ns = parse_duration_ns(duration) if duration else None
    if until_ns == 0:
        raise ConfigError(f"--duration {duration}: must be > 0")
    waits = None
    if asked is not None:
        asked, waits = choose(asked, None if turns is None else member(Turns, turns, "--turns"))
    workload = preset.workload
    _check_users(workload, file, file or users.open_loop(source))
    requests = asked
    if file is None and until_ns is not None and users.open_loop(source):
        limits = (shape.max_context_tokens, run.seed, run.max_requests, workload.request_kind)
        requests = users.requests(source, until_ns, *limits)
    count = users.users or preset.load.users or USERS
    if workload.overlap:
        if requests is not None:
            raise ConfigError("workload.overlap is of synthetic users at their own pace: leave it, or FILE or the rate")
        requests = _overlapping(count, until_ns, shape.max_context_tokens, run, preset)
    load = Load(
        requests=requests,
        users=0 if requests is not None else count,
        seed=run.seed,
        until_ns=FOREVER_NS if until_ns is None else until_ns,
        max_requests=run.max_requests or FOREVER_NS,
        waits=waits,
        incidents=parse_all(events, until_ns),
    )
    config: dict[str, Any] = {
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
    if events:
        config["events"] = list(events)
    return Scenario(preset, shape, load, run.tensor_parallel, config)


def _check_users(workload: Workload, file: Path | None, without: Path | str | None) -> None:
    """Refuse knobs of synthetic users where there are none; `without` is what has users who wait for no answer."""
    if workload.user_kind is not None and file:
        raise ConfigError(f"workload.user_kind={workload.user_kind} is of synthetic users: leave it, or {file}, out")
    if workload.think_time is not None and without:
        raise ConfigError(
            f"workload.think_time={workload.think_time} is of synthetic users who wait for answers: leave it, or "
            f"{without}, out"
        )


def _overlapping(
    count: int, until_ns: int | None, max_context_tokens: int, run: RunArguments, preset: Preset
) -> Requests:
    if until_ns is None:
        raise ValueError("without a file there is a duration")
    from kvtrace.requests.users import make_overlapping

    return make_overlapping(
        *(count, until_ns, max_context_tokens, run.seed),
        decode_ns_per_token=preset.decode_ns_per_token,
        max_requests=run.max_requests,
        kind=preset.workload.request_kind,
        mean_think_ns=preset.workload.mean_think_ns,
    )
