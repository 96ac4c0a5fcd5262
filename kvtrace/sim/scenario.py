"""A `Scenario`: everything that one simulation needs, resolved and checked.

`build_scenario` is the one place where a preset, a model, a load and a fleet come together, for the
library and for every command. Steps depend on each other in this order: preset, model, computing
times of the GPU, duration, load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvtrace.core.errors import ConfigError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.parameters import named, suggest_keywords
from kvtrace.core.units import parse_duration_ns, positive
from kvtrace.llm import serving
from kvtrace.llm.catalogue import find_model, full_model_name, logged_model
from kvtrace.llm.gpu_memory import MOST_RANKS
from kvtrace.llm.shape import ModelShape
from kvtrace.requests.requests import Requests, Turns, choose
from kvtrace.requests.users import (
    LIVE_CONVERSATIONS,
    ArrivalProcess,
    Workload,
    make_open_loop,
    make_overlapping,
)
from kvtrace.sim.fleet import parse_all
from kvtrace.sim.presets.preset import Preset, full_preset_name, load_preset
from kvtrace.sim.service_level import ServiceLevel, parse_service_level
from kvtrace.sim.simulation import FOREVER_NS, Load, Simulation, has_times

MODEL: Final = "llama3.1-8b"
USERS: Final = 32
DURATION: Final = "60s"
"""Defaults of a preset that says nothing else."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A simulation before its start: tiers, model, load, and the configuration it came from."""

    preset: Preset
    model: ModelShape
    load: Load
    ranks: int
    """Tensor-parallel ranks."""
    notes: tuple[str, ...]
    """What was chosen for the user, and why."""
    config: JsonObject
    """The configuration, as the metadata of a trace carries it."""
    service_level: ServiceLevel | None = None
    """The limits of TTFT and TPOT of which goodput is counted; None to count none."""

    def simulation(self) -> Simulation:
        """Return the simulation before its start."""
        return Simulation(
            self.preset,
            self.model,
            self.load,
            ranks=self.ranks,
            service_level=self.service_level,
        )

    def planned_span_ns(self) -> int | None:
        """Return over how long requests arrive, as far as it is known before the simulation."""
        requests, duration_ns = self.load.requests, self.config["duration_ns"]
        is_limited = requests is not None and len(requests) == self.config["max_requests"]
        if requests is None or self.load.waits is not None:
            return None if duration_ns is None else int(duration_ns)
        if "file" in self.config["source"] or is_limited:
            return min(int(requests.arrival_ns[-1]), self.load.until_ns)
        return None if duration_ns is None else int(duration_ns)

    def span_ns(self, simulation: Simulation) -> int | None:
        """Return over how long requests arrived in `simulation`, which has run."""
        requests, limit = self.load.requests, self.config["max_requests"]
        if requests is None and simulation.world.total.requests == limit:
            return simulation.now_ns
        arrivals = simulation.arrivals()
        if requests is not None and arrivals is not None and len(arrivals[1]) == len(requests):
            return int(arrivals[1][-1])
        return self.planned_span_ns()


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Synthetic users that send requests at their own times, whether or not answers are ready."""

    arrivals: ArrivalProcess
    live_conversations: int = LIVE_CONVERSATIONS
    """Conversations from which each request is the next turn."""


# Long: each step needs the result of the one before it.
@suggest_keywords
def build_scenario(
    requests: Requests | None = None,
    *,
    preset: str,
    settings: Sequence[str] = (),
    model: str | None = None,
    kv_dtype: str | None = None,
    gpu: str | None = None,
    tensor_parallel: int | None = None,
    users: int | None = None,
    open_loop: OpenLoop | None = None,
    duration: str | None = None,
    max_requests: int | None = None,
    seed: int = 42,
    turns: Turns | None = None,
    events: Sequence[str] = (),
    slo: str | None = None,
    load_name: str = "the requests",
) -> Scenario:
    """Resolve the preset, the model and the load of a simulation.

    Without `requests` the users are synthetic: `users` of them in a closed loop, or those of
    `open_loop`. `settings` are KEY=VALUE knobs of the preset. `duration` ends the simulation; the
    default is the preset's, 60 s for synthetic users, or all `requests`. `tensor_parallel` of None is
    one GPU, or as many as hold the model's weights. `turns` says whether later
    turns of a session follow the simulated answer before them. `events` are incidents such as
    `300s:node-lost:7`. `slo` has limits of TTFT and TPOT, such as `ttft=2s,tpot=50ms`. `load_name` is what an error calls the requests or the open loop.

    Raises:
        ConfigError: for an unknown preset, model, GPU or knob, and for options that exclude each
            other.

    Examples:
        >>> import kvtrace as kt
        >>> scenario = kt.build_scenario(preset="lmcache-disk", users=4, model="tiny-1b")
        >>> scenario.config["users"], [tier.name for tier in scenario.preset.tiers]
        (4, ['gpu', 'cpu', 'nvme'])

    """
    service_level = None if slo is None else parse_service_level(slo)
    preset = full_preset_name(preset)
    plain = load_preset(preset, settings)
    logged = None if requests is None or model else logged_model(requests.origin)
    model_name = logged[0] if logged else full_model_name(model or plain.load.model or MODEL)
    shape = logged[1] if logged and not kv_dtype else find_model(model_name, kv_dtype)
    resolved, gpus = _resolve_preset(preset, settings, gpu, shape, tensor_parallel)
    is_synthetic = requests is None
    duration = duration or ((resolved.load.duration or DURATION) if is_synthetic else None)
    until_ns = positive("duration", parse_duration_ns)(duration) if duration else None
    waits = None
    if requests is not None:
        requests, waits = choose(requests, turns)
    _check_knobs_of_users(resolved.workload, load_name, requests, open_loop)
    if open_loop is not None:
        assert until_ns is not None, "synthetic users always have a duration"
        requests = make_open_loop(
            open_loop.arrivals,
            until_ns,
            shape.max_context_tokens,
            seed,
            live_conversations=open_loop.live_conversations,
            max_requests=max_requests,
            user_kind=resolved.workload.request_kind,
        )
    user_count = users or resolved.load.users or USERS
    if resolved.workload.overlap:
        if requests is not None:
            raise ConfigError(
                "workload.overlap needs synthetic users without a rate: leave out it, or FILE and"
                " rate"
            )
        assert until_ns is not None, "synthetic users always have a duration"
        requests = make_overlapping(
            user_count,
            until_ns,
            shape.max_context_tokens,
            seed,
            decode_ns_per_token=resolved.decode_ns_per_token,
            max_requests=max_requests,
            kind=resolved.workload.request_kind,
            mean_think_ns=resolved.workload.mean_think_ns,
        )
    load = Load(
        requests=requests,
        users=0 if requests is not None else user_count,
        seed=seed,
        until_ns=FOREVER_NS if until_ns is None else until_ns,
        max_requests=max_requests or FOREVER_NS,
        waits=waits,
        incidents=parse_all(events, until_ns),
    )
    config: JsonObject = {
        "preset": preset,
        "model": model_name,
        "kv_dtype": kv_dtype,
        "tensor_parallel": gpus.ranks,
        "seed": seed,
        "users": None if requests else user_count,
        "duration_ns": until_ns,
        "max_requests": max_requests,
        "source": requests.origin if requests else {"kind": "synthetic", "users": user_count},
        "serving": serving.describe(
            resolved.gpu, gpus.ranks, shape, resolved.computing, gpus.roofline
        ),
    }
    if waits is not None:
        config["turns"] = str(Turns.FOLLOW)
    if events:
        config["events"] = list(events)
    if service_level is not None:
        if not (has_times(resolved) or resolved.decode_ns_per_token):
            raise ConfigError(
                f"{named('slo', slo)}: nothing takes time with {named('gpu', resolved.gpu)}; give"
                f" {named('gpu', 'h100')}"
            )
        config["service_level"] = service_level.to_dict()
    return Scenario(resolved, shape, load, gpus.ranks, tuple(gpus.notes), config, service_level)


@dataclass(frozen=True, slots=True)
class _Gpus:
    """The GPUs of a node: tensor-parallel ranks, and the knobs of their computing."""

    ranks: int
    roofline: JsonObject
    notes: Sequence[str]


def _resolve_preset(
    preset: str,
    settings: Sequence[str],
    gpu: str | None,
    shape: ModelShape,
    tensor_parallel: int | None,
) -> tuple[Preset, _Gpus]:
    """Return the preset with the computing times of its GPUs, which are chosen if no number is given."""

    def resolve(ranks: int, notes: Sequence[str]) -> tuple[Preset, _Gpus]:
        roofline: JsonObject = {}

        def computing_times(gpu: str) -> JsonObject:
            roofline.update(serving.computing_times(gpu, shape, ranks))
            return roofline

        return load_preset(preset, settings, gpu, computing_times), _Gpus(ranks, roofline, notes)

    if tensor_parallel is not None:
        return resolve(tensor_parallel, ())
    # On one GPU the times of a large model may be beyond what a preset takes.
    most, _ = resolve(MOST_RANKS, ())
    return resolve(*most.choose_ranks(shape))


def _check_knobs_of_users(
    workload: Workload, load_name: str, requests: Requests | None, open_loop: OpenLoop | None
) -> None:
    """Refuse knobs of synthetic users where there are no such users."""
    if workload.user_kind is not None and requests is not None:
        raise ConfigError(
            f"workload.user_kind={workload.user_kind} needs synthetic users: leave it, or"
            f" {load_name}, out"
        )
    if workload.think_time is not None and (requests is not None or open_loop is not None):
        raise ConfigError(
            f"workload.think_time={workload.think_time} needs synthetic users that wait for answers:"
            f" leave it, or {load_name}, out"
        )


def settings_of(
    tiers: Mapping[str, Mapping[str, object]] | None, knobs: Mapping[str, object] | None
) -> list[str]:
    """Return knobs as KEY=VALUE settings: `{"cpu": {"capacity": "64GiB"}}` and `{"chunk_tokens": 64}`.

    A capacity of None is written `unlimited`.
    """
    settings = [
        f"tiers.{tier}.{knob}={_setting_value(value)}"
        for tier, values in (tiers or {}).items()
        for knob, value in values.items()
    ]
    return settings + [f"{knob}={_setting_value(value)}" for knob, value in (knobs or {}).items()]


def _setting_value(value: object) -> str:
    if value is None:
        return "unlimited"
    return str(value).lower() if isinstance(value, bool) else str(value)
