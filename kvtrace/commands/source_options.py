"""The options of every command that takes requests, in one place: what a file is and its shape, or their arrival."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, fields
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.core.app import log
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import parse_duration_ns, parse_rate_per_s
from kvtrace.requests.registry import SOURCES, Options, detect, read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvtrace.requests.requests import Requests


@dataclass(frozen=True, slots=True)
class SourceArguments:
    """What the user said of a source of requests; None where nothing was said."""

    source: str | None
    time_unit: str | None
    block_tokens: int | None
    request_rate: str | None
    live_conversations: int | None
    max_conversations: int | None
    tokenizer: str | None
    conversation_rate: float | None
    time_scale: float
    cycles: int
    cycle_ids: str
    jitter: str
    max_input_tokens: int | None
    over_limit: str

    def read(self, path: Path, seed: int, max_requests: int | None = None) -> Requests:
        """Return the requests of `path`, at most `max_requests`; all that is drawn comes from `seed`."""
        from kvtrace.requests.shaping import CycleIds, OverLimit, Shape

        kind = self.source
        if kind is None:
            kind = detect(path)
            log(f"note: {path} is read as --source {kind}")
        wanted = Shape(
            max_input_tokens=self.max_input_tokens, over_limit=_member(OverLimit, self.over_limit, "--over-limit"),
            jitter_ns=parse_duration_ns(self.jitter), time_scale=self.time_scale, cycles=self.cycles,
            cycle_ids=_member(CycleIds, self.cycle_ids, "--cycle-ids"), max_requests=max_requests,
        )  # fmt: skip
        return read(kind, path, self._of_source(), wanted, seed)

    def _of_source(self) -> Options:
        rate = None if self.request_rate is None else parse_rate_per_s(self.request_rate)
        return Options(
            time_unit=self.time_unit, block_tokens=self.block_tokens, request_rate_per_s=rate,
            live_conversations=self.live_conversations, max_conversations=self.max_conversations,
            tokenizer=self.tokenizer, conversation_rate_per_s=self.conversation_rate,
        )  # fmt: skip

    def need_none_of_a_file(self) -> None:
        """Raise ConfigError if something was said that only a FILE could have use for."""
        plain = {p.name: p.default for p in inspect.signature(_options).parameters.values()}
        for name, default in plain.items():
            if name not in ("request_rate", "live_conversations") and getattr(self, name) != default:
                flag = f"--{name.replace('_', '-')}"
                raise ConfigError(
                    f"{flag} {getattr(self, name)} needs a FILE to read; without one, users are synthetic"
                )


@dataclass(frozen=True, slots=True)
class OpenLoopArguments:
    """What the user said of synthetic requests that arrive at their times; None where nothing was said."""

    request_rate: str | None
    live_conversations: int | None
    arrivals: str | None
    burstiness: float | None
    day: str | None
    amplitude: float | None

    def said(self) -> str | None:
        """Return the first option that was said, as the user writes it; None if none was."""
        for field in fields(self):
            if getattr(self, field.name) is not None:
                return f"--{field.name.replace('_', '-')} {getattr(self, field.name)}"
        return None

    def make(self, until_ns: int, max_context_tokens: int, seed: int, max_requests: int | None) -> Requests:
        """Return the requests that arrive before `until_ns`; all that is drawn comes from `seed`."""
        from kvtrace.users import openloop
        from kvtrace.users.arrivals import Arrivals, Process

        if self.request_rate is None:
            raise ConfigError(f"{self.said()} is of an open loop: give its --request-rate, such as 20/s")
        process = _member(Process, self.arrivals or Process.POISSON, "--arrivals")
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
        arrivals = Arrivals(parse_rate_per_s(self.request_rate), process, self.burstiness, **curve)
        live = {} if self.live_conversations is None else {"live_conversations": self.live_conversations}
        return openloop.make(arrivals, until_ns, max_context_tokens, seed, max_requests=max_requests, **live)


def _member(kind: Any, text: str, flag: str) -> Any:
    if text not in tuple(kind):
        raise ConfigError(f"{flag} {text}: use {' or '.join(kind)}")
    return kind(text)


def _options(
    source: Annotated[
        str | None, typer.Option(help=f"What FILE is: {', '.join(SOURCES)}; without it, what it looks like.")
    ] = None,
    time_unit: Annotated[str | None, typer.Option(help="mooncake: unit of its timestamps, ms or s [ms].")] = None,
    block_tokens: Annotated[
        int | None, typer.Option(help="mooncake, bailian: tokens a block of its ids [512, 16].")
    ] = None,
    request_rate: Annotated[
        str | None,
        typer.Option(
            help="How often requests arrive, such as 20/s; sharegpt (it has no times) [1/s], or gen without FILE."
        ),
    ] = None,
    live_conversations: Annotated[
        int | None, typer.Option(help="With --request-rate: conversations that go on at a time [64].")
    ] = None,
    max_conversations: Annotated[int | None, typer.Option(help="sharegpt: read so many conversations.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="sharegpt: auto, tiktoken, or characters (a quarter of them) [auto].")
    ] = None,
    conversation_rate: Annotated[
        float | None, typer.Option(help="agentic: conversations that start a second, Poisson; 0: all at once [0].")
    ] = None,
    time_scale: Annotated[float, typer.Option(help="Multiply times; 0.5 is twice as fast.")] = 1.0,
    cycles: Annotated[int, typer.Option(help="Repeat the requests so often, one after the other.")] = 1,
    cycle_ids: Annotated[
        str, typer.Option(help="Later cycles ask for the same blocks, or for distinct ones.")
    ] = "distinct",
    jitter: Annotated[str, typer.Option(help="Spread times over ticks so long, as 3s for Mooncake.")] = "0",
    max_input_tokens: Annotated[int | None, typer.Option(help="Limit prompts to so many tokens.")] = None,
    over_limit: Annotated[str, typer.Option(help="Drop prompts over the limit, or clip them.")] = "drop",
) -> None:
    """Hold the options; `takes_source` gives them to commands."""


def takes_source(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` the options of sources; it gets them as one `SourceArguments`, its argument `source`."""
    own = inspect.signature(command, eval_str=True).parameters
    theirs = inspect.signature(_options, eval_str=True).parameters

    @wraps(command)
    def run(**values: Any) -> None:
        said = {name: values.pop(name) for name in theirs}
        command(**values, source=SourceArguments(**said))

    merged: list[inspect.Parameter] = []
    for name, parameter in own.items():
        merged.extend(theirs.values() if name == "source" else [parameter])
    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in merged]
    run.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in keyword_only}
    return run
