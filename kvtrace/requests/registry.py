"""The registry of request sources: names, modules, options and file patterns.

A new source is one file here and one line in SOURCES. The file has two functions:

    read(path, [rng,] **options) -> Requests   the requests at `path`; with `rng` if it samples data
    is_own(start: Start) -> bool               whether the start of a file has this format

A file that reads several formats has a function under `@source` for each, named after a colon:
"columns:bailian".

A source is imported at its first use, so that the help of a command can list all of them quickly.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvtrace.core import np
from kvtrace.core.errors import ConfigError, TraceError, need_file
from kvtrace.core.files import ZSTD_MAGIC
from kvtrace.core.parameters import named, wrong_keyword

if TYPE_CHECKING:
    from kvtrace.requests.requests import Requests
    from kvtrace.requests.reshape import Reshaping


@dataclass(frozen=True, slots=True)
class Source:
    """One format of request files."""

    name: str
    module: str = ""
    """Module in this folder, and after a colon its SourceFormat; empty: the module of its name."""
    files: str = ""
    """Pattern of files that are read together from a directory or glob; empty: single files."""

    def load(self) -> Any:
        """Return the module or SourceFormat with its `read` and `is_own`."""
        module, _, reader = (self.module or self.name).partition(":")
        source_module = importlib.import_module(f"kvtrace.requests.{module}")
        return getattr(source_module, reader) if reader else source_module

    @property
    def options(self) -> tuple[str, ...]:
        """Parameters of its `read` after the path.

        They are options of the command line (there without `_per_s` and `_ns`), and `rng` if the
        source samples data that its files lack, such as times.
        """
        return tuple(inspect.signature(self.load().read).parameters)[1:]


SOURCES: Final[dict[str, Source]] = {
    source.name: source
    for source in (
        Source("mooncake"),
        Source("bailian", "columns:bailian"),
        Source("burstgpt", "columns:burstgpt", "*.csv"),
        Source("azure", "columns:azure"),
        Source("litellm", "litellm:litellm"),
        Source("langfuse", "langfuse:langfuse"),
        Source("sharegpt", "conversations:sharegpt"),
        Source("servegen", "columns:servegen", "chunk-*-trace.csv"),
        Source("agentic", "conversations:agentic", "*.json"),
        Source("agentx", "conversations:agentx"),
        Source("tracelab", "conversations:tracelab"),
        Source("agentic-mooncake", "mooncake:agentic_mooncake"),
        Source("dynamo", "dynamo:dynamo"),
        Source("lmcache-lookup", "lmcache_logs:lookup_log", "lookup_hashes_*.jsonl"),
        Source("lmcache-trace", "lmcache_logs:lmcache_trace"),
        Source("lmcache-chat", "lmcache_logs:chats", "*.openai_chat.jsonl"),
        Source("otel", "opentelemetry:otel"),
        Source("aiperf", "aiperf:aiperf"),
        Source("vllm-log", "server_logs:vllm_log"),
        Source("sglang-log", "server_logs:sglang_log"),
        Source("kv-events", "record"),
        Source("requests", "own_table"),
    )
}
"""All sources, in the order of the help text and of format detection."""


_PACKED = {b"\x1f\x8b": "gunzip", ZSTD_MAGIC: "unzstd", b"BZh": "bunzip2", b"PK\x03\x04": "unzip"}
"""Magic bytes of compressed files, and the programs that unpack them."""


def refuse_packed(path: Path) -> None:
    """Raise TraceError for a compressed file, unless it is a table of kvtrace."""
    if not path.is_file() or path.name.endswith(".csv.zst"):
        return
    with path.open("rb") as file:
        start = file.read(4)
    for magic, program in _PACKED.items():
        if start.startswith(magic):
            raise TraceError(f"compressed: unpack it first, {program} {path.name}", path=path)


def read(
    kind: str, path: Path, options: Mapping[str, object], reshaping: Reshaping, seed: int
) -> Requests:
    """Return the requests of `path`, a source of `kind`, transformed by `reshaping`.

    All random numbers come from `seed`. An option of None has the source's default. ConfigError if
    the kind is unknown, or lacks an option; TraceError if the file is invalid.
    """
    from kvtrace.requests.reshape import reshape

    if kind not in SOURCES:
        raise ConfigError(f"unknown source {kind!r}; known are {', '.join(SOURCES)}")
    source, given_options = (
        SOURCES[kind],
        {name: value for name, value in options.items() if value is not None},
    )
    for name in given_options:
        if name not in source.options:
            takers = ", ".join(
                source_.name for source_ in SOURCES.values() if name in source_.options
            )
            parameter = name.removesuffix("_per_s").removesuffix("_ns")
            raise ConfigError(
                f"{named(parameter)} works only with {named('source', takers)}, not {kind}; remove"
                " it"
            )
    block_tokens = given_options.get("block_tokens")
    if isinstance(block_tokens, int) and block_tokens < 1:
        raise ConfigError(f"{named('block_tokens', block_tokens)}: must be > 0")
    refuse_packed(path)
    generators = (np.random.default_rng(seed),) if "rng" in source.options else ()
    requests: Requests = source.load().read(path, *generators, **given_options)
    return reshape(requests, reshaping, np.random.default_rng([seed, 1]))


_ARGUMENTS: Final = ("path", "source", "max_requests", "time_scale", "seed")
"""The arguments of `read_requests` besides the options of the sources."""


def read_requests(
    path: str | Path,
    *,
    source: str | None = None,
    max_requests: int | None = None,
    time_scale: float = 1.0,
    seed: int = 42,
    **options: object,
) -> Requests:
    """Read a file of real requests, such as a trace of Mooncake or a log of vLLM.

    Args:
        path: The file; for some sources a directory or a glob.
        source: Its format, a name of `kvtrace.sources()`. Default: detected from the file.
        max_requests: Maximum number of requests.
        time_scale: Multiplies arrival times; 0.5 is twice as fast.
        seed: Seed of random data that the file lacks, such as arrival times of ShareGPT.
        options: Options of the source, such as `block_tokens=512`, `time_unit="s"` or
            `request_rate_per_s=2.0`, by the names of the parameters of the source's reader.

    Returns:
        The requests, in order of arrival, as columns; `to_polars` makes a frame of them.

    Raises:
        TraceError: if there is no such file, or it is damaged; with the row.
        ConfigError: if the format is unknown, or does not take an option.

    Examples:
        >>> import json, pathlib, tempfile
        >>> import kvtrace as kt
        >>> line = {"timestamp": 0, "input_length": 600, "output_length": 8, "hash_ids": [1, 2]}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "conversation.jsonl")
        ...     _ = file.write_text(json.dumps(line))
        ...     requests = kt.read_requests(file, source="mooncake")
        >>> len(requests), requests.to_polars()["input_tokens"].to_list()
        (1, [600])

    """
    from kvtrace.requests.reshape import Reshaping

    known = {name for source_ in SOURCES.values() for name in source_.options}
    if wrong := sorted(options.keys() - known):
        raise TypeError(wrong_keyword("read_requests", wrong[0], (*_ARGUMENTS, *sorted(known))))
    path = Path(path)
    reshaping = Reshaping(max_requests=max_requests, time_scale=time_scale)
    return read(source or detect(path), path, options, reshaping, seed)


def sources() -> list[str]:
    """Return the names of the formats of request files that `read_requests` reads.

    Examples:
        >>> import kvtrace as kt
        >>> "mooncake" in kt.sources()
        True
    """
    return list(SOURCES)


def detect(path: Path) -> str:
    """Return the source of `path`, detected from its name and first bytes.

    TraceError if there is no such file; ConfigError if no source recognises it, or a directory
    holds files of several sources.
    """
    if path.is_dir():
        firsts = [
            (source_.name, min(path.glob(source_.files), default=None))
            for source_ in SOURCES.values()
            if source_.files
        ]
        kinds = [
            kind for kind, first in firsts if first is not None and _detect_file(first) == kind
        ]
        detected = kinds[0] if len(kinds) == 1 else None
    elif not path.exists() and any(character in path.name for character in "*?["):
        first = min(path.parent.glob(path.name), default=None)
        kind = None if first is None else _detect_file(first)
        detected = kind if kind is not None and SOURCES[kind].files else None
    else:
        detected = _detect_file(path)
    if detected is None:
        raise ConfigError(
            f"the format of {path} is unknown: name it with {named('source')}, one of"
            f" {', '.join(SOURCES)}"
        )
    return detected


def _detect_file(path: Path) -> str | None:
    need_file(path)
    refuse_packed(path)
    from kvtrace.requests.source_files import start_of

    start = start_of(path)
    return next((source.name for source in SOURCES.values() if source.load().is_own(start)), None)
