"""The options of `gen` as typed groups, and the scenario that they describe together.

A group is a dataclass with a field for each option; a command takes it as one argument. A study
writes its configurations in these options, so they are part of the library. `prepare` turns them
into a `Scenario`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import Field, dataclass, fields, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Protocol, TypeVar

import typer
from msgspec import UNSET

from kvtrace.core.app import Command, UsageError, command_of, log, option
from kvtrace.core.config import check_units
from kvtrace.core.errors import ConfigError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.parameters import named
from kvtrace.core.simulation_stats import TierStats
from kvtrace.core.statistics import (
    SECONDS_PER_DAY,
    Endurance,
    is_memory,
    parse_endurance,
)
from kvtrace.core.units import (
    NS_PER_S,
    parse_bytes,
    parse_duration_ns,
    parse_rate_per_s,
    parse_share,
    positive,
)
from kvtrace.requests.registry import SOURCES, detect, read
from kvtrace.sim.routers import Router
from kvtrace.studies import completion

if TYPE_CHECKING:
    from kvtrace.requests.requests import Requests
    from kvtrace.sim.presets.preset import Preset
    from kvtrace.sim.scenario import OpenLoop, Scenario


Seed = Annotated[
    int, typer.Option(min=0, max=2**63 - 1, help="Random seed; same seed and options, same bytes.")
]
MaxRequests = Annotated[
    int | None, typer.Option("--limit", min=1, max=10**12, help="Stop after this many requests.")
]
KvDtype = Annotated[str | None, typer.Option(help="Element type of the cache, such as fp8.")]

E = TypeVar("E", bound=StrEnum)


def member(kind: type[E], text: str, parameter: str) -> E:
    """Return the member of `kind` called `text`; ConfigError, naming `parameter`, if there is none."""
    if text not in tuple(kind):
        raise ConfigError(f"{named(parameter, text)}: use {' or '.join(kind)}")
    return kind(text)


class OptionGroup(Protocol):
    """A group of options: a dataclass with a field for each option."""

    __dataclass_fields__: ClassVar[dict[str, Field[object]]]


def given_options(group: OptionGroup, *excluded: str) -> JsonObject:
    """Return the options of `group` that are not at their defaults, by name, without `excluded`."""
    values = (
        (field, getattr(group, field.name)) for field in fields(group) if field.name not in excluded
    )
    return {field.name: value for field, value in values if value != field.default}


@dataclass(frozen=True, slots=True)
class SourceArguments:
    """The format of FILE and the changes to its requests; None for an option not given."""

    source: str | None = option(
        f"Format of FILE: {', '.join(SOURCES)}; without it, it is detected."
    )
    time_unit: str | None = option("mooncake: unit of its timestamps, ms or s [ms].")
    block_tokens: int | None = option(
        "Block tokens: mooncake, tracelab [512], lmcache-trace [256], bailian, lmcache-chat,"
        " vllm-log, sglang-log [16]."
    )
    request_rate: str | None = option(
        "How often requests arrive, such as 20/s; sharegpt (it has no times) [1/s], servegen [its"
        " own], or gen without FILE."
    )
    live_conversations: int | None = option("With --request-rate: concurrent conversations [64].")
    max_conversations: int | None = option("sharegpt: number of conversations to read.")
    tokenizer: str | None = option(
        "sharegpt, lmcache-chat, vllm-log: auto, tiktoken, or characters (a quarter of them)"
        " [auto]."
    )
    conversation_rate: float | None = option(
        "agentic: conversations that start a second, Poisson; 0: all at once [0]."
    )
    idle_cap: str | None = option("agentic: longest idle time of a conversation [agentx: 10s].")
    start_ratio: str | None = option(
        "agentic: conversations begin at a moment drawn from these shares of them [agentx: 0-1]."
    )
    time_window: str | None = option(
        "servegen: window of its days as START+LENGTH, such as 20h+10min [0s+10min]."
    )
    time_scale: float = option("Multiply arrival times; 0.5 is twice as fast.", 1.0)
    cycles: int = option("How many times the requests are repeated, one after the other.", 1)
    cycle_ids: str = option(
        "Later cycles ask for the same blocks, or for distinct ones.", "distinct"
    )
    scale: int = option(
        "Number of superposed copies of the requests, each with blocks and sessions of its own.", 1
    )
    scale_common: str = option(
        "Share of block references, such as 20%, that all copies share: the most used prefixes.",
        "0",
    )
    scale_shift: str | None = option(
        "Shift each copy by a time drawn evenly up to this.  [default: 1m]"
    )
    jitter: str = option("Jitter arrivals by up to this duration, such as 3s for Mooncake.", "0")
    max_input_tokens: int | None = option("Limit prompts to this many tokens.")
    over_limit: str = option("Drop prompts over the limit, or clip them.", "drop")

    def read(self, path: Path, seed: int, max_requests: int | None = None) -> Requests:
        """Return the requests of `path`, at most `max_requests`; `seed` seeds all random draws."""
        from kvtrace.requests.reshape import SCALE_SHIFT_NS, CycleIds, OverLimit, Reshaping

        kind = self.source
        if kind is None:
            kind = detect(path)
            log(f"note: {path} is read as --source {kind}")
        reshaping = Reshaping(
            max_input_tokens=self.max_input_tokens,
            over_limit=member(OverLimit, self.over_limit, "over_limit"),
            jitter_ns=parse_duration_ns(self.jitter),
            time_scale=self.time_scale,
            cycles=self.cycles,
            cycle_ids=member(CycleIds, self.cycle_ids, "cycle_ids"),
            max_requests=max_requests,
            scale=self.scale,
            scale_common=parse_share(self.scale_common, "scale_common"),
            scale_shift_ns=(
                SCALE_SHIFT_NS if self.scale_shift is None else parse_duration_ns(self.scale_shift)
            ),
        )
        rate = None if self.request_rate is None else parse_rate_per_s(self.request_rate)
        options: JsonObject = {
            "request_rate_per_s": rate,
            "conversation_rate_per_s": self.conversation_rate,
        }
        options["idle_cap_ns"] = None if self.idle_cap is None else parse_duration_ns(self.idle_cap)
        if self.start_ratio is not None:
            low, _, high = self.start_ratio.partition("-")
            options["start_ratio"] = tuple(
                parse_share(share, "start_ratio") for share in (low, high or low)
            )
        if self.time_window is not None:
            start, _, length = self.time_window.rpartition("+")
            options["time_window_ns"] = parse_duration_ns(start or "0s"), parse_duration_ns(length)
            if not options["time_window_ns"][1]:
                raise ConfigError(
                    f"{named('time_window', self.time_window)}: write for example 20h+10min"
                )
        unchanged_options = (
            "time_unit",
            "block_tokens",
            "live_conversations",
            "max_conversations",
            "tokenizer",
        )
        options |= {name: getattr(self, name) for name in unchanged_options}
        return read(kind, path, options, reshaping, seed)


_OPEN_LOOP = ("request_rate", "live_conversations")
"""The options of a FILE that an open loop of synthetic users takes, too."""


@dataclass(frozen=True, slots=True)
class UserArguments:
    """The number of synthetic users, or with --request-rate the arrivals of their requests.

    None for an option not given.
    """

    users: int | None = option(
        "Synthetic users, of three kinds.  [default: the preset's, or 32]", min=1, max=10**7
    )
    arrivals: str | None = option(
        "With --request-rate: poisson, gamma, constant, diurnal.  [default: poisson]"
    )
    burstiness: float | None = option(
        "gamma: coefficient of variation of the intervals; 1 is Poisson, more is burstier."
    )
    day: str | None = option("diurnal: length of a day.  [default: 24h]")
    amplitude: float | None = option(
        "diurnal: swing of the rate, 0 to 1 of its mean.  [default: 0.5]"
    )

    def check(self, source: SourceArguments, file: Path | None) -> None:
        """Raise ConfigError if options of users, of an open loop and `file` exclude each other."""
        if file is not None and self.users is not None:
            raise ConfigError(
                f"{named('users', self.users)}: requests come from {file}; leave one of the two out"
            )
        for name, value in given_options(source, *_OPEN_LOOP).items() if file is None else ():
            raise ConfigError(
                f"{named(name, value)} needs a FILE to read; without one, users are synthetic"
            )
        if self.users is not None and (open_loop_option := self.open_loop(source)):
            raise ConfigError(
                f"{named('users', self.users)} is a closed loop, {open_loop_option} an open one; leave one of"
                " them out"
            )
        for name, value in given_options(self, "users").items() if file is not None else ():
            reason = f"only for synthetic users in an open loop, not {file}; leave one of them out"
            raise ConfigError(f"{named(name, value)}: {reason}")

    def open_loop(self, source: SourceArguments) -> str | None:
        """Return the first given option of an open loop, as the user writes it; None without one."""
        options = {
            name: value for name, value in given_options(source).items() if name in _OPEN_LOOP
        } | given_options(self, "users")
        return next((f"{named(name, value)}" for name, value in options.items()), None)

    def parse_open_loop(self, source: SourceArguments) -> OpenLoop:
        """Return the open loop that the options describe.

        Raises:
            ConfigError: if there is no rate, or an option belongs to another arrival process.

        """
        from kvtrace.requests.users import LIVE_CONVERSATIONS, ArrivalProcess, Process
        from kvtrace.sim.scenario import OpenLoop

        if source.request_rate is None:
            raise ConfigError(
                f"{self.open_loop(source)} needs an open loop: give its {named('request_rate')},"
                " such as 20/s"
            )
        process = member(Process, self.arrivals or Process.POISSON, "arrivals")
        curve = given_options(self, "users", "arrivals")
        for name, value in curve.items():
            if process is not Process.DIURNAL and name != "burstiness":
                raise ConfigError(
                    f"{named(name, value)} needs {named('arrivals', 'diurnal')}, not {process}"
                )
        if "day" in curve:
            curve["day_ns"] = parse_duration_ns(curve.pop("day"))
        arrivals = ArrivalProcess(parse_rate_per_s(source.request_rate), process, **curve)
        live = source.live_conversations
        return OpenLoop(arrivals, LIVE_CONVERSATIONS if live is None else live)


USED_BY_ALL = {"model", "preset", "settings", "duration", "seed"}
"""Options of the groups below that a preset without a KV cache uses, too."""

TurnsOption = Annotated[
    str | None,
    typer.Option(
        "--turns",
        help=(
            "Later turns of FILE's sessions follow, a pause after the simulated answer before them,"
            " or arrive as-recorded.  [default: as-recorded; follow where FILE has no times for"
            " them]"
        ),
    ),
]


@dataclass(frozen=True, slots=True)
class StackArguments:
    """The caching stack and the model that it serves."""

    model: str | None = option(
        "The model whose KV cache is simulated.  [default: the preset's, or llama3.1-8b]",
        autocompletion=completion.models,
    )
    kv_dtype: KvDtype = None
    preset: str = option(
        "The caching stack to imitate: a name, or a .toml file.",
        "mlperf",
        autocompletion=completion.presets,
    )
    gpu: str | None = option(
        "GPU: a100, h100, h200, b200, l40s, mi300x, or instant, which takes no time.  [default: the"
        " preset's: h100; instant for mlperf]",
        autocompletion=completion.gpus,
    )
    settings: list[str] | None = option(
        "Change a knob of the preset.", None, "--set", metavar="KEY=VALUE", parse=check_units
    )


@dataclass(frozen=True, slots=True)
class StoringArguments(StackArguments):
    """The caching stack and the model, with a default preset that stores below memory."""

    preset: str = option(
        "The caching stack to imitate: a name, or a .toml file.",
        "lmcache-disk",
        autocompletion=completion.presets,
    )


@dataclass(frozen=True, slots=True)
class RunArguments:
    """The end of the simulation, its seed, and its ranks."""

    duration: str | None = option(
        "Simulated time.  [default: the preset's, 60s, 1h of checkpoints, or all of FILE]"
    )
    max_requests: MaxRequests = None
    seed: Seed = 42
    tensor_parallel: int | None = option(
        "Tensor-parallel ranks.  [default: 1, or as many GPUs as hold the weights]",
        None,
        "--tp",
        min=1,
        max=1024,
    )
    slo: str | None = option(
        "Limits of TTFT and TPOT, such as ttft=2s,tpot=50ms, of which goodput is counted."
    )


@dataclass(frozen=True, slots=True)
class FleetArguments:
    """The serving nodes of a fleet; None for an option not given."""

    nodes: int | None = option(
        "Serving nodes, each with tiers of its own.  [default: the preset's, or 1]", min=1
    )
    router: str | None = option(
        f"Which node serves a request: {', '.join(Router)}.  [default: the preset's, or"
        " round-robin]",
        autocompletion=completion.routers,
    )
    rack_nodes: int | None = option(
        "Nodes that share each tier of scope=rack.  [default: the preset's, or 8]", min=1
    )

    prefill_nodes: int | None = option(
        "Number of nodes that only compute prompts, and send their KV cache to the others over a"
        " link.",
        min=1,
    )

    def check(self, preset: Preset) -> None:
        """Raise ConfigError if an option needs several nodes, but `preset` has one by default."""
        for name, value in (
            given_options(self, "nodes").items() if preset.fleet.nodes == 1 != self.nodes else ()
        ):
            raise ConfigError(
                f"{named(name, value)} needs several nodes: add {named('nodes')}, such as"
                f" {named('nodes', '8')}"
            )

    def apply_to(self, stack: StackArguments) -> StackArguments:
        """Return `stack` with these options as settings, before its own settings."""
        if self.router is not None:
            member(Router, self.router, "router")
        settings = [f"fleet.{name}={value}" for name, value in given_options(self).items()]
        return replace(stack, settings=[*settings, *(stack.settings or ())])


EventOption = Annotated[
    list[str] | None,
    typer.Option(
        "--event",
        metavar="TIME:EVENT",
        help=(
            "Inject an event: node-lost:N or node-joined:N, rack-lost:R or rack-joined:R, "
            "engine-restart:N:DURATION, drive-replaced:N[:TIER], store-unreachable:DURATION, "
            "rolling-restart:DURATION[:NODES], or nothing, which only counts hits from then on; such"
            " as 300s:node-lost:7. May be repeated."
        ),
    ),
]


@dataclass(frozen=True, slots=True)
class DriveArguments:
    """The size and endurance of the drive; None for an option not given."""

    drive_size: int | None = option(
        "Also print drive writes per day for a drive of this size, such as 3.84TB.",
        parse=positive("drive_size", parse_bytes),
    )
    endurance: Endurance | None = option(
        "Also print how many years a drive of this rated endurance lasts: 1DWPD,5y, or its TBW,"
        " such as 14PB.",
        parse=parse_endurance,
    )

    def check(self, preset: Preset) -> None:
        """Raise ConfigError if options of a drive are given, but `preset` has no drive."""
        from kvtrace.curves.points import drive_of

        for name in given_options(self) if drive_of(preset) is None else ():
            tiers = ", ".join(tier.name for tier in preset.tiers)
            raise ConfigError(
                f"{named(name)}: none of the tiers {tiers} is a drive: memory and buckets do not"
                " wear"
            )

    def wear(self, preset: Preset, tiers: Sequence[TierStats], span_ns: int) -> list[JsonObject]:
        """Return the bytes written a day to each tier below memory, and the wear of the drive.

        The drive is the slowest of these tiers. Of a tier with several instances, such as one for
        each node, the figures are means. Bytes written before the start do not count. A drive with
        a rated endurance but no given size is as large as the tier. The list is empty for a trace
        without a span.
        """
        from kvtrace.curves.points import drive_of

        wear_by_tier, drive, rated = [], drive_of(preset), self.endurance
        for t, (tier, stats) in enumerate(zip(preset.tiers, tiers, strict=True)):
            if not span_ns or is_memory(tier.name) or tier.capacity_bytes == 0:
                continue
            instances = 1 if stats.instances is UNSET else stats.instances
            written = stats.written_bytes - stats.populated_bytes
            per_day = written * SECONDS_PER_DAY * NS_PER_S // span_ns // instances
            size_bytes = (
                (self.drive_size or (tier.capacity_bytes if rated else None))
                if t == drive
                else None
            )
            wear = {"name": tier.name, "written_bytes_per_day": per_day}
            wear["drive_writes_per_day"] = per_day / size_bytes if size_bytes else None
            wear |= {"instances": instances} if instances > 1 else {}
            wear |= (
                {"years_of_life": rated.life_years(size_bytes, per_day)}
                if rated and t == drive
                else {}
            )
            wear_by_tier.append(wear)
        return wear_by_tier


@dataclass(frozen=True, slots=True, kw_only=True)
class GenArguments:
    """The arguments of one `gen`, without its outputs."""

    file: Annotated[Path | None, typer.Argument()] = None
    stack: StackArguments
    fleet: FleetArguments
    users: UserArguments
    run: RunArguments
    drive: DriveArguments
    source: SourceArguments
    turns: TurnsOption = None
    event: EventOption = None


@cache
def _gen_command() -> Command:
    command: Command = command_of(GenArguments, "gen")
    return command


def parse_gen(argv: Sequence[str]) -> GenArguments:
    """Return the arguments of a `gen` with the command line `argv`.

    Raises:
        ConfigError: if `gen` would refuse it.

    """
    try:
        # Calling the command would turn Ctrl-C into an exit code, so it is invoked by its context.
        with _gen_command().make_context("gen", list(argv)) as context:
            arguments: GenArguments = _gen_command().invoke(context)
    except UsageError as error:
        raise ConfigError(error.format_message()) from None
    return arguments


@cache
def gen_option_names() -> tuple[str, ...]:
    """Return the options of a simulation without their dashes, in the order of `gen --help`."""
    return tuple(
        name.removeprefix("--")
        for parameter in _gen_command().params
        if parameter.param_type_name == "option"
        for name in parameter.opts
        if name.startswith("--")
    )


# It is long because each group of options becomes arguments of the library.
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
    """Return the scenario that the options of a command describe.

    `gpu` is the GPU if neither `stack` nor its settings name one. `read` reads the file. `events`
    are as --event has them.
    """
    from kvtrace.requests.requests import Turns
    from kvtrace.sim.presets.preset import load_preset
    from kvtrace.sim.scenario import build_scenario

    users.check(source, file)
    if turns is not None and file is None:
        raise ConfigError(
            f"{named('turns', turns)} is for the sessions of a FILE to read; without one, users are"
            " synthetic"
        )
    load_preset(stack.preset, stack.settings or ())  # Its errors come before those of the file.
    requests = None if file is None else read(source, file, run.seed, run.max_requests)
    has_open_loop = file is None and users.open_loop(source) is not None
    return build_scenario(
        requests,
        preset=stack.preset,
        settings=stack.settings or (),
        model=stack.model,
        kv_dtype=stack.kv_dtype,
        gpu=stack.gpu or gpu,
        tensor_parallel=run.tensor_parallel,
        users=users.users,
        open_loop=users.parse_open_loop(source) if has_open_loop else None,
        duration=run.duration,
        max_requests=run.max_requests,
        seed=run.seed,
        turns=None if turns is None else member(Turns, turns, "turns"),
        events=events,
        slo=run.slo,
        load_name=str(file or users.open_loop(source)),
    )


def prepare_gen(
    arguments: GenArguments,
    read: Callable[[SourceArguments, Path, int, int | None], Requests] = SourceArguments.read,
) -> Scenario:
    """Return the scenario of the `arguments` of a `gen`; `read` reads the file."""
    scenario = prepare(
        arguments.file,
        arguments.fleet.apply_to(arguments.stack),
        arguments.users,
        arguments.run,
        arguments.source,
        arguments.turns,
        read=read,
        events=arguments.event or (),
    )
    arguments.fleet.check(scenario.preset)
    return scenario
