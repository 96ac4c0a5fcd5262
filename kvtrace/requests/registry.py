"""Every request source by name: its options, whether it draws, and how its files are known and read.

A new source is one file here and one line in SOURCES. The file has two functions:

    read(path, [rng,] **options) -> Requests     the requests at `path`; `rng` only if the line says that it draws
    is_own(start: Start) -> bool                 whether a file that starts so is one of its files

A file that reads several formats has a `SourceFormat` of the two for each, named after a colon: "columns:azure".

No source is imported before it is asked for, so that a command's help can name them all and stays quick.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvtrace.core.errors import ConfigError, need_file

if TYPE_CHECKING:
    from kvtrace.requests.requests import Requests
    from kvtrace.requests.shaping import Reshaping


@dataclass(frozen=True, slots=True)
class Source:
    """One format of request files."""

    name: str
    options: tuple[str, ...] = ()
    """Those that its `read` takes; each is an option of the command line, without `_per_s` and `_ns`."""
    is_drawn: bool = False
    """Whether it draws what its files lack, such as times: `read` then takes a random generator."""
    files: str = ""
    """The pattern of the files that it reads together from a directory; empty if it reads single files only."""
    has_globs: bool = False
    """Whether it also reads together the files that a glob matches."""
    module: str = ""
    """Its module in this folder, and after a colon its SourceFormat there; empty: a module called by its name."""

    def load(self) -> Any:
        """Return what has its `read` and `is_own`: a module, or a SourceFormat of one."""
        module, _, reader = (self.module or self.name).partition(":")
        found = importlib.import_module(f"kvtrace.requests.{module}")
        return getattr(found, reader) if reader else found


_AGENTIC = ("conversation_rate_per_s", "idle_cap_ns", "start_ratio")
SOURCES: Final[dict[str, Source]] = {
    source.name: source
    for source in (
        Source("mooncake", ("time_unit", "block_tokens")),
        Source("bailian", ("block_tokens",), module="columns:bailian"),
        Source("burstgpt", files="*.csv", has_globs=True, module="columns:burstgpt"),
        Source("azure", module="columns:azure"),
        Source(
            *("sharegpt", ("request_rate_per_s", "live_conversations", "max_conversations", "tokenizer"), True),
            module="conversations:sharegpt",
        ),
        Source(
            *("servegen", ("window_ns", "request_rate_per_s"), True),
            files="chunk-*-trace.csv",
            module="columns:servegen",
        ),
        Source("agentic", _AGENTIC, True, files="*.json", module="conversations:agentic"),
        Source("agentx", _AGENTIC, True, module="conversations:agentx"),
        Source("tracelab", ("block_tokens",), module="conversations:tracelab"),
        Source("agentic-mooncake", module="mooncake:agentic_mooncake"),
        Source("dynamo", module="engine_logs:dynamo"),
        Source("lmcache-lookup", files="lookup_hashes_*.jsonl", module="engine_logs:lookup_log"),
        Source("lmcache-trace", ("block_tokens",), module="engine_logs:lmcache_trace"),
        Source("lmcache-chat", ("block_tokens", "tokenizer"), files="*.openai_chat.jsonl", module="engine_logs:chats"),
        Source("otel", module="engine_logs:otel"),
        Source("vllm-log", ("block_tokens", "tokenizer"), module="engine_logs:vllm_log"),
        Source("sglang-log", ("block_tokens",), module="engine_logs:sglang_log"),
        Source("kv-events", module="record"),
        Source("requests", module="own_table"),
    )
}
"""In the order of the help text, which is also the order in which they are asked whether a file is theirs."""


def read(kind: str, path: Path, options: Mapping[str, Any], wanted: Reshaping, seed: int) -> Requests:
    """Return the requests of `path`, a source of `kind`, reshaped as `wanted`; all that is drawn comes from `seed`.

    An option that is None was not given: the source has its own default. ConfigError if the kind is
    unknown, or does not take an option; TraceError if the file is not what it should be.
    """
    import numpy as np

    from kvtrace.requests.shaping import reshape

    if kind not in SOURCES:
        raise ConfigError(f"unknown source {kind!r}; known are {', '.join(SOURCES)}")
    source, given = SOURCES[kind], {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name not in source.options:
            takers = ", ".join(other.name for other in SOURCES.values() if name in other.options)
            flag = f"--{name.removesuffix('_per_s').removesuffix('_ns').replace('_', '-')}"
            raise ConfigError(f"{flag} is for --source {takers}; {kind} has no use for it")
    if given.get("block_tokens", 1) < 1:
        raise ConfigError(f"--block-tokens {given['block_tokens']}: must be > 0")
    drawn = (np.random.default_rng(seed),) if source.is_drawn else ()
    requests: Requests = source.load().read(path, *drawn, **given)
    return reshape(requests, wanted, np.random.default_rng([seed, 1]))


def detect(path: Path) -> str:
    """Return the name of the source that `path` is, from its name and its first bytes.

    TraceError if there is no such file; ConfigError if no source recognises it, or its directory holds the files of
    several.
    """
    if path.is_dir():
        found = _of_directory(path)
    elif not path.exists() and any(c in path.name for c in "*?["):
        first = min(path.parent.glob(path.name), default=None)
        kind = None if first is None else _of_file(first)
        found = kind if kind is not None and SOURCES[kind].has_globs else None
    else:
        found = _of_file(path)
    if found is None:
        raise ConfigError(f"cannot tell what {path} is: say so with --source, one of {', '.join(SOURCES)}")
    return found


def _of_directory(path: Path) -> str | None:
    """Return the source of the directory at `path`; None if it holds files of none, or of several."""
    firsts = {s.name: first for s in SOURCES.values() if s.files and (first := min(path.glob(s.files), default=None))}
    kinds = [kind for kind, first in firsts.items() if _of_file(first) == kind]
    return kinds[0] if len(kinds) == 1 else None


def _of_file(path: Path) -> str | None:
    need_file(path)
    from kvtrace.requests.requests import start_of

    start = start_of(path)
    return next((source.name for source in SOURCES.values() if source.load().is_own(start)), None)
