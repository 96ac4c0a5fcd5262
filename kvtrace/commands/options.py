"""What several commands share: arguments, groups of options, and percentages.

A group is a dataclass whose fields are options; a command under `takes_groups` takes it as one argument.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kvtrace.core.app import log
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import parse_duration_ns, parse_rate_per_s
from kvtrace.requests.registry import SOURCES, SourceOptions, detect, read

if TYPE_CHECKING:
    from kvtrace.core.schema import RequestKind
    from kvtrace.requests.requests import Requests

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Same seed and options, same bytes.")]
TraceFile = Annotated[Path, typer.Argument(metavar="FILE", help="A trace: *.parquet or *.csv.zst.")]
RequestFile = Annotated[Path, typer.Argument(help="A file of real requests.")]
MaxRequests = Annotated[int | None, typer.Option(min=1, max=10**12, help="Stop after so many requests.")]
KvDtype = Annotated[str | None, typer.Option(help="Element type of the cache, such as fp8.")]
TensorParallel = Annotated[int, typer.Option("--tp", min=1, max=1024, help="Tensor-parallel ranks.")]

_SHARE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(%?)\s*")

E = TypeVar("E", bound=StrEnum)


def percent(ratio: float | None) -> str | None:
    """Return `ratio` as per cent, None if it is unknown."""
    return None if ratio is None else f"{100 * ratio:.1f} %"


def parse_share(text: str, flag: str) -> float:
    """Return the share that `text` says, 80% or 0.8, of any size; ConfigError, naming `flag`, if it says none."""
    match = _SHARE.fullmatch(text)
    if match is None:
        raise ConfigError(f"{flag} {text}: write a share such as 80% or 0.8")
    return float(match[1]) / (100 if match[2] else 1)


def member(kind: type[E], text: str, flag: str) -> E:
    """Return the member of `kind` called `text`; ConfigError, naming `flag`, if there is none."""
    if text not in tuple(kind):
        raise ConfigError(f"{flag} {text}: use {' or '.join(kind)}")
    return kind(text)


def flag_of(field: str) -> str:
    """Return the flag of an option that takes its name from a field."""
    return f"--{field.replace('_', '-')}"


@dataclass(frozen=True, slots=True)
class SourceArguments:
    """What FILE is, and how to transform its requests; None for an option that was not given."""

    source: Annotated[
        str | None, typer.Option(help=f"What FILE is: {', '.join(SOURCES)}; without it, what it looks like.")
    ] = None
    time_unit: Annotated[str | None, typer.Option(help="mooncake: unit of its timestamps, ms or s [ms].")] = None
    block_tokens: Annotated[
        int | None, typer.Option(help="mooncake, bailian: tokens a block of its ids [512, 16].")
    ] = None
    request_rate: Annotated[
        str | None,
        typer.Option(
            help="How often requests arrive, such as 20/s; sharegpt (it has no times) [1/s], or gen without FILE."
        ),
    ] = None
    live_conversations: Annotated[
        int | None, typer.Option(help="With --request-rate: conversations that go on at a time [64].")
    ] = None
    max_conversations: Annotated[int | None, typer.Option(help="sharegpt: read so many conversations.")] = None
    tokenizer: Annotated[
        str | None, typer.Option(help="sharegpt: auto, tiktoken, or characters (a quarter of them) [auto].")
    ] = None
    conversation_rate: Annotated[
        float | None, typer.Option(help="agentic: conversations that start a second, Poisson; 0: all at once [0].")
    ] = None
    time_scale: Annotated[float, typer.Option(help="Multiply times; 0.5 is twice as fast.")] = 1.0
    cycles: Annotated[int, typer.Option(help="Repeat the requests so often, one after the other.")] = 1
    cycle_ids: Annotated[str, typer.Option(help="Later cycles ask for the same blocks, or for distinct ones.")] = (
        "distinct"
    )
    scale: Annotated[
        int, typer.Option(help="So many copies of the requests over each other, with blocks and sessions of their own.")
    ] = 1
    scale_common: Annotated[
        str,
        typer.Option(help="But the most used prefixes are the same in all: this share of references, such as 20%."),
    ] = "0"
    scale_shift: Annotated[
        str | None, typer.Option(help="Each copy begins later, at a time drawn evenly up to this.  [default: 1m]")
    ] = None
    jitter: Annotated[str, typer.Option(help="Spread times over ticks so long, as 3s for Mooncake.")] = "0"
    max_input_tokens: Annotated[int | None, typer.Option(help="Limit prompts to so many tokens.")] = None
    over_limit: Annotated[str, typer.Option(help="Drop prompts over the limit, or clip them.")] = "drop"

    def read(self, path: Path, seed: int, max_requests: int | None = None) -> Requests:
        """Return the requests of `path`, at most `max_requests`; all that is drawn comes from `seed`."""
        from kvtrace.requests.shaping import SCALE_SHIFT_NS, CycleIds, OverLimit, Reshaping

        kind = self.source
        if kind is None:
            kind = detect(path)
            log(f"note: {path} is read as --source {kind}")
        wanted = Reshaping(
            max_input_tokens=self.max_input_tokens,
            over_limit=member(OverLimit, self.over_limit, "--over-limit"),
            jitter_ns=parse_duration_ns(self.jitter),
            time_scale=self.time_scale,
            cycles=self.cycles,
            cycle_ids=member(CycleIds, self.cycle_ids, "--cycle-ids"),
            max_requests=max_requests,
            scale=self.scale,
            scale_common=parse_share(self.scale_common, "--scale-common"),
            scale_shift_ns=SCALE_SHIFT_NS if self.scale_shift is None else parse_duration_ns(self.scale_shift),
        )
        options = SourceOptions(
            time_unit=self.time_unit,
            block_tokens=self.block_tokens,
            request_rate_per_s=None if self.request_rate is None else parse_rate_per_s(self.request_rate),
            live_conversations=self.live_conversations,
            max_conversations=self.max_conversations,
            tokenizer=self.tokenizer,
            conversation_rate_per_s=self.conversation_rate,
        )
        return read(kind, path, options, wanted, seed)

    def refuse_options_of_files(self) -> None:
        """Raise ConfigError if an option was given that applies to a FILE only."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in ("request_rate", "live_conversations") and value != field.default:
                raise ConfigError(
                    f"{flag_of(field.name)} {value} needs a FILE to read; without one, users are synthetic"
                )


@dataclass(frozen=True, slots=True)
class UserArguments:
    """The number of synthetic users, or with --request-rate their arrivals; None for an option that was not given."""

    users: Annotated[
        int | None,
        typer.Option(min=1, max=10**7, help="Synthetic users, of three kinds.  [default: the preset's, or 32]"),
    ] = None
    arrivals: Annotated[
        str | None, typer.Option(help="With --request-rate: poisson, gamma, constant, diurnal.  [default: poisson]")
    ] = None
    burstiness: Annotated[
        float | None,
        typer.Option(help="gamma: coefficient of variation of the intervals; 1 is Poisson, more is burstier."),
    ] = None
    day: Annotated[str | None, typer.Option(help="diurnal: length of a day.  [default: 24h]")] = None
    amplitude: Annotated[
        float | None, typer.Option(help="diurnal: swing of the rate, 0 to 1 of its mean.  [default: 0.5]")
    ] = None

    def check(self, source: SourceArguments, file: Path | None) -> None:
        """Raise ConfigError for options that exclude each other: of users, of an open loop, and of `file`."""
        if file is not None and self.users is not None:
            raise ConfigError(f"--users {self.users}: requests come from {file}; leave one of the two out")
        if file is None:
            source.refuse_options_of_files()
        if self.users is not None and (said := self.open_loop(source)):
            raise ConfigError(f"--users {self.users}: they ask in a closed loop; leave them or {said} out")
        if file is not None and (said := self._arrivals()):
            raise ConfigError(f"{said}: {file} is no open loop of synthetic users; leave one of the two out")

    def open_loop(self, source: SourceArguments) -> str | None:
        """Return the first option of an open loop that was given, as the user writes it; None if none was."""
        return _given(source, "request_rate", "live_conversations") or self._arrivals()

    def _arrivals(self) -> str | None:
        return _given(self, "arrivals", "burstiness", "day", "amplitude")

    def requests(
        self,
        source: SourceArguments,
        until_ns: int,
        max_context_tokens: int,
        seed: int,
        max_requests: int | None,
        kind: RequestKind | None = None,
    ) -> Requests:
        """Return the requests of an open loop that arrive before `until_ns`; all that is drawn comes from `seed`."""
        from kvtrace.users import openloop
        from kvtrace.users.arrivals import ArrivalProcess, Process

        if source.request_rate is None:
            raise ConfigError(f"{self.open_loop(source)} is of an open loop: give its --request-rate, such as 20/s")
        process = member(Process, self.arrivals or Process.POISSON, "--arrivals")
        for name in ("day", "amplitude"):
            if process is not Process.DIURNAL and getattr(self, name) is not None:
                raise ConfigError(
                    f"--{name} {getattr(self, name)} is of --arrivals diurnal; {process} has no use for it"
                )
        curve: dict[str, Any] = {}
        if self.day is not None:
            curve["day_ns"] = parse_duration_ns(self.day)
        if self.amplitude is not None:
            curve["amplitude"] = self.amplitude
        arrivals = ArrivalProcess(parse_rate_per_s(source.request_rate), process, self.burstiness, **curve)
        live = {} if source.live_conversations is None else {"live_conversations": source.live_conversations}
        return openloop.make(
            arrivals, until_ns, max_context_tokens, seed, max_requests=max_requests, user_kind=kind, **live
        )


def _given(group: object, *names: str) -> str | None:
    given = ((name, getattr(group, name)) for name in names)
    return next((f"{flag_of(name)} {value}" for name, value in given if value is not None), None)
