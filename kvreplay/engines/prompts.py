"""The requests that an engine is to serve: a Mooncake trace, or the requests table of any other source."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec

from kvtrace.core.errors import TraceError
from kvtrace.core.files import decode_json
from kvtrace.core.schema import REQUESTS
from kvtrace.core.tables import SUFFIXES, open_table

MOONCAKE_BLOCK_TOKENS = 512
_MOST_TOKENS = 1 << 31


class _Line(msgspec.Struct):
    """A row of a Mooncake trace, so far as it is used."""

    input_length: Annotated[int, msgspec.Meta(ge=1, le=_MOST_TOKENS)]
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]]
    block_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] | None = None


class Prompts(msgspec.Struct, frozen=True):
    """Requests by their prompts."""

    rows: list[tuple[int, list[int]]]
    """Tokens, and the ids of the blocks that they are in."""
    block_tokens: int

    @property
    def tokens(self) -> int:
        """Of all of them."""
        return sum(tokens for tokens, _blocks in self.rows)


def read_prompts(path: Path, most: int) -> Prompts:
    """Return the first `most` requests at `path`.

    Raises:
        TraceError: it is neither, holds none, or does not say which prefixes prompts share.

    """
    if not path.is_file():
        raise TraceError("no such file; name a Mooncake trace (*.jsonl) or a requests table", path=path)
    found = _of_table(path, most) if path.name.endswith(tuple(SUFFIXES)) else _of_mooncake(path, most)
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
                raise TraceError("does not say which prefixes its prompts share (block_ids)", path=path, row=len(rows))
            _check(tokens, blocks, block_tokens, path, len(rows))
            rows.append((tokens, blocks))
            if len(rows) == most:
                return Prompts(rows, block_tokens)
    return Prompts(rows, block_tokens or MOONCAKE_BLOCK_TOKENS)


def _of_mooncake(path: Path, most: int) -> Prompts:
    rows, sizes = [], set()
    for number, line in enumerate(islice(_lines(path), most), 1):
        found = decode_json(line, _Line, path, row=number, misfit="no request of a Mooncake trace: {}")
        sizes.add(found.block_size or MOONCAKE_BLOCK_TOKENS)
        _check(found.input_length, found.hash_ids, max(sizes), path, number)
        rows.append((found.input_length, found.hash_ids))
    if len(sizes) > 1:
        raise TraceError(f"has blocks of {' and '.join(map(str, sorted(sizes)))} tokens; one size is needed", path=path)
    return Prompts(rows, sizes.pop() if sizes else MOONCAKE_BLOCK_TOKENS)


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from (line for line in file if line.strip())


def _check(tokens: int, blocks: list[int], block_tokens: int, path: Path, row: int) -> None:
    # A source may leave out the id of a last block that is not full.
    if not tokens // block_tokens <= len(blocks) <= -(-tokens // block_tokens):
        raise TraceError(
            f"{len(blocks)} blocks of {block_tokens} tokens do not fit {tokens} tokens", path=path, row=row
        )
