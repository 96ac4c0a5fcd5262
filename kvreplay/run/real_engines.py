"""The engines that can be driven.

Package, options, installation; and the requests that an engine is to serve.

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
    """One engine."""

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
    """The default pool in memory; None if it has none that is driven."""
    disk_bytes: int | None
    """The default bound on disk; None if it is not ours to set."""
    has_direct: bool
    is_straced: bool
    """Its files are written out of Python's sight."""
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
    """The user's options for an engine, and the first fields, which are the command's own.

    Null is its default.
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
        """Which engine."""
        return ENGINES[self.kind]

    @property
    def interpreter(self) -> Path:
        """The Python interpreter that has the engine's package."""
        return self.python or Path(sys.executable)


def check_interpreter(kind: EngineKind, python: Path) -> None:
    """Raise ConfigError, saying how to get it, unless the interpreter `python` can import the
    engine's package.
    """
    engine = ENGINES[kind]
    look = (
        "import importlib.util, json;"
        f" print(json.dumps(importlib.util.find_spec({engine.package!r}) is not None))"
    )
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter that the user named
            [str(python), "-c", look], capture_output=True, text=True, timeout=_LOOKS_S, check=False
        )
    except OSError as error:
        raise ConfigError(f"--python {python}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"--python {python}: did not answer within {_LOOKS_S} s") from None
    if done.returncode or not done.stdout.strip().startswith(("true", "false")):
        raise ConfigError(f"--python {python}: does not run as a Python interpreter")
    if not json.loads(done.stdout):
        raise ConfigError(
            f"{python} has no {engine.package}: {engine.install} in an environment of its own, and"
            " name its interpreter with --python"
        )


MOONCAKE_BLOCK_TOKENS = 512
_MOST_TOKENS = 1 << 31


class _Line(msgspec.Struct):
    """A row of a Mooncake trace, so far as it is used."""

    input_length: Annotated[int, msgspec.Meta(ge=1, le=_MOST_TOKENS)]
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]]
    block_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] | None = None


class Prompts(msgspec.Struct, frozen=True):
    """The prompts of the requests."""

    rows: list[tuple[int, list[int]]]
    """Tokens, and the ids of the blocks that they are in."""
    block_tokens: int

    @property
    def tokens(self) -> int:
        """Tokens of all requests."""
        return sum(tokens for tokens, _blocks in self.rows)


def read_prompts(path: Path, most: int) -> Prompts:
    """Return the first `most` requests at `path`.

    TraceError if it is neither, holds none, or does not say which prefixes prompts share.
    """
    need_file(path, "; name a Mooncake trace (*.jsonl) or a requests table")
    found = (
        _of_table(path, most) if path.name.endswith(tuple(SUFFIXES)) else _of_mooncake(path, most)
    )
    if not found.rows:
        raise TraceError("holds no request", path=path)
    return found


def _of_table(path: Path, most: int) -> Prompts:
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
            if len(rows) == most:
                return Prompts(rows, block_tokens)
    return Prompts(rows, block_tokens or MOONCAKE_BLOCK_TOKENS)


def _of_mooncake(path: Path, most: int) -> Prompts:
    rows, sizes = [], set()
    with path.open("rb") as file:
        for number, line in enumerate(islice((line for line in file if line.strip()), most), 1):
            found = decode_json(
                line, _Line, path, row=number, misfit="no request of a Mooncake trace: {}"
            )
            sizes.add(found.block_size or MOONCAKE_BLOCK_TOKENS)
            _check(found.input_length, found.hash_ids, max(sizes), path, number)
            rows.append((found.input_length, found.hash_ids))
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
