"""The options of every command that reads requests from a file, in one place: what the file is, and its shape."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvtrace.core.app import log
from kvtrace.core.errors import ConfigError
from kvtrace.core.units import parse_duration_ns
from kvtrace.sources.registry import SOURCES, Options, detect, read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvtrace.sources import Requests


@dataclass(frozen=True, slots=True)
class SourceArguments:
    """What the user said of a source of requests; None where nothing was said."""

    source: str | None
    time_unit: str | None
    block_tokens: int | None
    request_rate: float | None
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
        from kvtrace.sources.shaping import CycleIds, OverLimit, Shape

        kind = self.source
        if kind is None:
            kind = detect(path)
            log(f"note: {path} is read as --source {kind}")
        options = Options(
            time_unit=self.time_unit, block_tokens=self.block_tokens, request_rate_per_s=self.request_rate,
            live_conversations=self.live_conversations, max_conversations=self.max_conversations,
            tokenizer=self.tokenizer, conversation_rate_per_s=self.conversation_rate,
        )  # fmt: skip
        wanted = Shape(
            max_input_tokens=self.max_input_tokens, over_limit=_member(OverLimit, self.over_limit, "--over-limit"),
            jitter_ns=parse_duration_ns(self.jitter), time_scale=self.time_scale, cycles=self.cycles,
            cycle_ids=_member(CycleIds, self.cycle_ids, "--cycle-ids"), max_requests=max_requests,
        )  # fmt: skip
        return read(kind, path, options, wanted, seed)


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
        float | None, typer.Option(help="sharegpt: requests a second, Poisson, as it has no times [1].")
    ] = None,
    live_conversations: Annotated[
        int | None, typer.Option(help="sharegpt: conversations that go on at a time [64].")
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
