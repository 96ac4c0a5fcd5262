"""The engines that can be driven, their options, and the requests that they serve.

Requests come from a Mooncake trace, or from the requests table of any other source.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec

from kvtrace.core.app import option
from kvtrace.core.errors import ConfigError, TraceError, need_file
from kvtrace.core.files import decode_json
from kvtrace.core.parameters import named
from kvtrace.core.schema import REQUESTS
from kvtrace.core.tables import SUFFIXES, open_table
from kvtrace.core.units import parse_bytes

GIB = 1 << 30
_LOOKS_S = 120


class EngineKind(StrEnum):
    """The engines that `kvreplay engine` drives."""

    LMCACHE = "lmcache"
    SGLANG = "sglang"
    MOONCAKE = "mooncake"


@dataclass(frozen=True, slots=True)
class RealEngine:
    """An engine and the way to drive it."""

    title: str
    driver: str
    """A file of `drivers`."""
    package: str
    """The package that its interpreter must be able to import."""
    install: str
    chunk_tokens: int
    object_kind: str
    """The kind of its objects in the objects table."""
    cpu_bytes: int | None
    """Default size of the pool in memory; None if it has no pool here."""
    disk_bytes: int | None
    """Default limit of space on disk; None if the engine sets it itself."""
    has_direct: bool
    is_straced: bool
    """Whether native code writes its files, so that only strace sees the operations."""
    note: str
    """A note that a reader of its figures needs."""


ENGINES = {
    EngineKind.LMCACHE: RealEngine(
        title="LMCache",
        driver="lmcache_disk",
        package="lmcache",
        install="pip install lmcache==0.5.6",
        chunk_tokens=256,
        object_kind="chunk",
        cpu_bytes=8 * GIB,
        disk_bytes=64 * GIB,
        has_direct=True,
        is_straced=False,
        note=(
            "its whole engine with pool and local disk backend; random data stands in for copies"
            " from a GPU"
        ),
    ),
    EngineKind.SGLANG: RealEngine(
        title="SGLang",
        driver="sglang_files",
        package="sglang",
        install="pip install --no-deps sglang==0.5.23 numpy torch",
        chunk_tokens=64,
        object_kind="chunk",
        cpu_bytes=None,
        disk_bytes=64 * GIB,
        has_direct=False,
        is_straced=False,
        note=(
            "its HiCacheFile and evictor; no pool in host memory stands before the files, so every"
            " hit is read"
        ),
    ),
    EngineKind.MOONCAKE: RealEngine(
        title="Mooncake store",
        driver="mooncake_store",
        package="mooncake",
        install="pip install mooncake-transfer-engine-non-cuda==0.3.13 nvidia-cuda-runtime-cu12",
        chunk_tokens=64,
        object_kind="other",
        cpu_bytes=8 * GIB,
        disk_bytes=None,
        has_direct=False,
        is_straced=True,
        note=(
            "a master and one client over TCP; an object is a file: a bucket of many pages, or its"
            " .meta"
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """The user's options for an engine; the first three fields are set by the command.

    None stands for the engine's default.
    """

    kind: EngineKind = EngineKind.LMCACHE
    trace: Path = Path()
    directory: Path = Path()
    requests: int = option("Number of requests to serve, from the trace's start.", 20, min=1)
    cpu_bytes: int | None = option(
        "The engine's pool in memory, before its files; sglang has none here.  [default: 8GiB]",
        None,
        "--cpu",
        parse=parse_bytes,
    )
    disk_bytes: int | None = option(
        "Maximum space of its files; mooncake sets its own limit.  [default: 64GiB]",
        None,
        "--disk",
        parse=parse_bytes,
    )
    layers: int = option("Layers of the model; the defaults are Llama-3.1-8B's.", 32, min=1)
    kv_heads: int = option("KV heads of each layer.", 8, min=1)
    head_dim: int = option("Elements of a head, of two bytes each.", 128, min=1)
    is_direct: bool = option("O_DIRECT, where the engine has it (lmcache).", False, "--direct")
    python: Path | None = option(
        "Python interpreter with the engine's package; default: the one that runs kvreplay."
    )
    is_probed: bool = option(
        "Also probe the block requests beneath, as kvreplay run --probes does. Without --direct it"
        " counts those of all programs on the disk, for the kernel writes the page cache back.",
        False,
        "--probes",
    )
    is_kept: bool = option(
        "Keep the engine's files after the run; the next run removes them.", False, "--keep"
    )

    @property
    def engine(self) -> RealEngine:
        """The engine of this kind."""
        return ENGINES[self.kind]

    @property
    def interpreter(self) -> Path:
        """The Python interpreter that has the engine's package."""
        return self.python or Path(sys.executable)


def check_interpreter(kind: EngineKind, python: Path) -> None:
    """Raise ConfigError, with the command to install it, unless the interpreter `python` can import
    the engine's package.
    """
    engine = ENGINES[kind]
    program = (
        "import importlib.util, json;"
        f" print(json.dumps(importlib.util.find_spec({engine.package!r}) is not None))"
    )
    try:
        process = subprocess.run(  # noqa: S603 - the interpreter that the user named
            [str(python), "-c", program],
            capture_output=True,
            text=True,
            timeout=_LOOKS_S,
            check=False,
        )
    except OSError as error:
        raise ConfigError(f"{named('python', python)}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(
            f"{named('python', python)}: did not answer within {_LOOKS_S} s"
        ) from None
    if process.returncode or not process.stdout.strip().startswith(("true", "false")):
        raise ConfigError(f"{named('python', python)}: does not run as a Python interpreter")
    if not json.loads(process.stdout):
        raise ConfigError(
            f"{python} has no {engine.package}: {engine.install} in an environment of its own, and"
            f" name its interpreter with {named('python')}"
        )


MOONCAKE_BLOCK_TOKENS = 512
_MAX_TOKENS = 1 << 31


class _Line(msgspec.Struct):
    """The fields of a row of a Mooncake trace that are used here."""

    input_length: Annotated[int, msgspec.Meta(ge=1, le=_MAX_TOKENS)]
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]]
    block_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] | None = None


class Prompts(msgspec.Struct, frozen=True):
    """The prompts of the requests."""

    rows: list[tuple[int, list[int]]]
    """For each request, its number of tokens, and the ids of its blocks."""
    block_tokens: int

    @property
    def tokens(self) -> int:
        """The number of tokens of all requests."""
        return sum(tokens for tokens, _blocks in self.rows)


def read_prompts(path: Path, max_requests: int) -> Prompts:
    """Return the first `most` requests at `path`, a Mooncake trace or a requests table.

    TraceError if it is neither, is empty, or lacks the block ids by which prompts share prefixes.
    """
    need_file(path, "; name a Mooncake trace (*.jsonl) or a requests table")
    prompts = (
        _prompts_from_table(path, max_requests)
        if path.name.endswith(tuple(SUFFIXES))
        else _prompts_from_mooncake(path, max_requests)
    )
    if not prompts.rows:
        raise TraceError("has no requests", path=path)
    return prompts


def _prompts_from_table(path: Path, max_requests: int) -> Prompts:
    reader = open_table(path, REQUESTS)
    block_tokens = (reader.meta.source or {}).get("block_tokens")
    rows: list[tuple[int, list[int]]] = []
    for batch in reader.batches(["input_tokens", "block_ids"]):
        for tokens, blocks in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            if blocks is None or block_tokens is None:
                raise TraceError(
                    "does not say which prefixes its prompts share (block_ids)",
                    path=path,
                    row=len(rows),
                )
            _check(tokens, blocks, block_tokens, path, len(rows))
            rows.append((tokens, blocks))
            if len(rows) == max_requests:
                return Prompts(rows, block_tokens)
    return Prompts(rows, block_tokens or MOONCAKE_BLOCK_TOKENS)


def _prompts_from_mooncake(path: Path, max_requests: int) -> Prompts:
    rows, sizes = [], set()
    with path.open("rb") as file:
        for number, line in enumerate(
            islice((line for line in file if line.strip()), max_requests), 1
        ):
            request = decode_json(
                line, _Line, path, row=number, misfit="no request of a Mooncake trace: {}"
            )
            sizes.add(request.block_size or MOONCAKE_BLOCK_TOKENS)
            _check(request.input_length, request.hash_ids, max(sizes), path, number)
            rows.append((request.input_length, request.hash_ids))
    if len(sizes) > 1:
        raise TraceError(
            f"has blocks of {' and '.join(map(str, sorted(sizes)))} tokens; one size is needed",
            path=path,
        )
    return Prompts(rows, sizes.pop() if sizes else MOONCAKE_BLOCK_TOKENS)


def _check(tokens: int, blocks: list[int], block_tokens: int, path: Path, row: int) -> None:
    # A source may leave out the id of a last block that is not full.
    if not tokens // block_tokens <= len(blocks) <= -(-tokens // block_tokens):
        raise TraceError(
            f"{len(blocks)} blocks of {block_tokens} tokens do not fit {tokens} tokens",
            path=path,
            row=row,
        )
