"""The engines that can be driven: which package each is of, what its options mean, and how to get it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from kvtrace.core.errors import ConfigError

GIB = 1 << 30
_LOOKS_S = 120


class EngineKind(StrEnum):
    """What `kvreplay engine` drives."""

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
    """What its interpreter must be able to import."""
    install: str
    chunk_tokens: int
    object_kind: str
    """Of the table objects."""
    cpu_bytes: int | None
    """The default pool in memory; None if it has none that is driven."""
    disk_bytes: int | None
    """The default bound on disk; None if it is not ours to set."""
    has_direct: bool
    is_straced: bool
    """Its files are written out of Python's sight."""
    note: str
    """What a reader of its figures must know."""


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
        note="its whole engine with pool and local disk backend; a GPU's copies are stood in for by random data",
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
        note="its HiCacheFile and evictor; no pool in host memory stands before the files, so every hit is read",
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
        note="a master and one client over TCP; an object is a file: a bucket of many pages, or its .meta",
    ),
}


def check_interpreter(kind: EngineKind, python: Path) -> None:
    """Raise ConfigError, saying how to get it, unless the interpreter `python` can import the engine's package."""
    engine = ENGINES[kind]
    look = f"import importlib.util, json; print(json.dumps(importlib.util.find_spec({engine.package!r}) is not None))"
    try:
        done = subprocess.run(  # noqa: S603 - the interpreter that the user named
            [str(python), "-c", look], capture_output=True, text=True, timeout=_LOOKS_S, check=False
        )
    except OSError as error:
        raise ConfigError(f"--python {python}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"--python {python}: did not answer within {_LOOKS_S} s") from None
    if done.returncode or not done.stdout.strip().startswith(("true", "false")):
        raise ConfigError(f"--python {python}: is no Python interpreter that runs")
    if not json.loads(done.stdout):
        raise ConfigError(
            f"{python} has no {engine.package}: {engine.install} in an environment of its own, and name its "
            "interpreter with --python"
        )
