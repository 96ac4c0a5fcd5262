"""Every request source by name.

Its options, whether it draws, and how its files are known and read.

A new source is one file here and one line in SOURCES. The file has two functions:

    read(path, [rng,] **options) -> Requests     the requests at `path`; `rng` only if the line says that it draws
    is_own(start: Start) -> bool                 whether a file that starts so is one of its files

A file that reads several formats has a function under `@source` for each, named after a colon:
"columns:bailian".

No source is imported before it is asked for, so that a command's help can name them all and stays
quick.
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

if TYPE_CHECKING:
    from kvtrace.requests.requests import Requests, Reshaping


@dataclass(frozen=True, slots=True)
class Source:
    """One format of request files."""

    name: str
    module: str = ""
    """Its module in this folder, and after a colon its SourceFormat there.

    Empty: a module called by its name.
    """
    files: str = ""
    """The pattern of the files that it reads together from a directory, or those of another glob.

    Empty if it reads single files only.
    """

    def load(self) -> Any:
        """Return what has its `read` and `is_own`: a module, or a SourceFormat of one."""
        module, _, reader = (self.module or self.name).partition(":")
        found = importlib.import_module(f"kvtrace.requests.{module}")
        return getattr(found, reader) if reader else found

    @property
    def options(self) -> tuple[str, ...]:
        """What its `read` takes beside the path.

        Options of the command line, there without `_per_s` and `_ns`.

        And `rng`, a random generator, if it draws what its files lack, such as times.
        """
        return tuple(inspect.signature(self.load().read).parameters)[1:]


SOURCES: Final[dict[str, Source]] = {
    source.name: source
    for source in (
        Source("mooncake"),
        Source("bailian", "columns:bailian"),
        Source("burstgpt", "columns:burstgpt", "*.csv"),
        Source("azure", "columns:azure"),
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
"""In the order of the help text, which is also the order in which they are asked whether a file is
theirs.
"""


_PACKED = {b"\x1f\x8b": "gunzip", ZSTD_MAGIC: "unzstd", b"BZh": "bunzip2", b"PK\x03\x04": "unzip"}
"""How compressed files begin, and what unpacks them."""


def refuse_packed(path: Path) -> None:
    """Raise TraceError of a compressed file, unless it is a table of ours.

    What others write is read as text.
    """
    if not path.is_file() or path.name.endswith(".csv.zst"):
        return
    with path.open("rb") as file:
        start = file.read(4)
    for magic, program in _PACKED.items():
        if start.startswith(magic):
            raise TraceError(f"compressed: unpack it first, {program} {path.name}", path=path)


def read(
    kind: str, path: Path, options: Mapping[str, Any], wanted: Reshaping, seed: int
) -> Requests:
    """Return the requests of `path`, a source of `kind`, reshaped as `wanted`.

    All that is drawn comes from `seed`.

    An option that is None was not given: the source has its own default. ConfigError if the kind is
    unknown, or does not take an option; TraceError if the file is not what it should be.
    """
    from kvtrace.requests.requests import reshape

    if kind not in SOURCES:
        raise ConfigError(f"unknown source {kind!r}; known are {', '.join(SOURCES)}")
    source, given = (
        SOURCES[kind],
        {name: value for name, value in options.items() if value is not None},
    )
    for name in given:
        if name not in source.options:
            takers = ", ".join(other.name for other in SOURCES.values() if name in other.options)
            flag = f"--{name.removesuffix('_per_s').removesuffix('_ns').replace('_', '-')}"
            raise ConfigError(f"{flag} works only with --source {takers}, not {kind}; leave it out")
    if given.get("block_tokens", 1) < 1:
        raise ConfigError(f"--block-tokens {given['block_tokens']}: must be > 0")
    refuse_packed(path)
    drawn = (np.random.default_rng(seed),) if "rng" in source.options else ()
    requests: Requests = source.load().read(path, *drawn, **given)
    return reshape(requests, wanted, np.random.default_rng([seed, 1]))


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
        max_requests: Read so many requests at most.
        time_scale: Multiplies arrival times; 0.5 is twice as fast.
        seed: Seed of what the file lacks and is drawn, such as arrival times of ShareGPT.
        options: Options of the source, such as `block_tokens=512`, `time_unit="s"` or
            `request_rate_per_s=2.0`, by the names of the parameters of the source's reader.

    Returns:
        The requests, in order of arrival, as columns; `to_polars` makes a frame of them.

    Raises:
        TraceError: if there is no such file, or it is damaged; with the row.
        ConfigError: if the format is unknown, or does not take an option.

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
    from kvtrace.requests.requests import Reshaping

    path = Path(path)
    reshaping = Reshaping(max_requests=max_requests, time_scale=time_scale)
    return read(source or detect(path), path, options, reshaping, seed)


def sources() -> list[str]:
    """Return the names of the formats of request files that `read_requests` reads.

    >>> import kvtrace as kt
    >>> "mooncake" in kt.sources()
    True
    """
    return list(SOURCES)


def detect(path: Path) -> str:
    """Return the name of the source that `path` is, from its name and its first bytes.

    TraceError if there is no such file; ConfigError if no source recognises it, or its directory
    holds the files of several.
    """
    if path.is_dir():
        firsts = [
            (s.name, min(path.glob(s.files), default=None)) for s in SOURCES.values() if s.files
        ]
        kinds = [kind for kind, first in firsts if first is not None and _of_file(first) == kind]
        found = kinds[0] if len(kinds) == 1 else None
    elif not path.exists() and any(c in path.name for c in "*?["):
        first = min(path.parent.glob(path.name), default=None)
        kind = None if first is None else _of_file(first)
        found = kind if kind is not None and SOURCES[kind].files else None
    else:
        found = _of_file(path)
    if found is None:
        raise ConfigError(
            f"the format of {path} is unknown: name it with --source, one of {', '.join(SOURCES)}"
        )
    return found


def _of_file(path: Path) -> str | None:
    need_file(path)
    refuse_packed(path)
    from kvtrace.requests.requests import start_of

    start = start_of(path)
    return next((source.name for source in SOURCES.values() if source.load().is_own(start)), None)
