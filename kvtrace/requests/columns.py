"""What every source's columns have in common: their limits, how they grow, and how files become digests."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import numpy as np

from kvtrace.core.errors import TraceError

if TYPE_CHECKING:
    from array import array
    from pathlib import Path

    from kvtrace.requests.requests import Ints

MAX_TOKENS: Final = 2**31 - 1
# About 73 years: what is computed from times still fits 64 bits.
MAX_NS: Final = 2**61
# Chunks smaller than a block are numbered within it, and that product must fit 64 bits.
MAX_BLOCK_ID: Final = 2**52
_DIGEST_BYTES = 1 << 20

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
BlockId = Annotated[int, msgspec.Meta(ge=0, le=MAX_BLOCK_ID)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=2**31)]


def column(values: array[int]) -> Ints:
    """Return the array.array("q") `values` as int64, without a copy."""
    return np.frombuffer(values, dtype=np.int64) if values else np.zeros(0, dtype=np.int64)


def dense(values: Ints) -> tuple[Ints, int]:
    """Return `values` renumbered from 0 by first appearance, and how many are distinct."""
    distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    number = np.empty(len(distinct), dtype=np.int64)
    number[np.argsort(first, kind="stable")] = np.arange(len(distinct))
    return number[inverse], len(distinct)


def sha256_of(*paths: Path) -> str:
    """Return the SHA-256 of the bytes of `paths`, one after the other, in hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while data := file.read(_DIGEST_BYTES):
                digest.update(data)
    return digest.hexdigest()


def need_file(path: Path) -> None:
    """Raise TraceError unless `path` is a regular file."""
    if not path.is_file():
        raise TraceError("no such file", path=path)


def place_of(error: msgspec.ValidationError) -> tuple[str, str | None]:
    """Return what `error` says and the field it says it of: "... - at `$.hash_ids[0]`" is of hash_ids."""
    message, _, place = str(error).partition(" - at `$")
    names = [name for name in place.rstrip("`").replace("[", ".[").split(".") if name and not name.startswith("[")]
    return message, ".".join(names) or None
