"""LMCache's storage trace (`.lct`): the calls of its storage manager, of which each prefetch is a prompt looked up.

The file is frames of a 4-byte big-endian length and so many bytes of MessagePack: a header, then a record a call.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.files import place_of
from kvtrace.core.units import NS_PER_S
from kvtrace.requests.engines.gather import Gathered
from kvtrace.requests.engines.geometry import chunk_bytes, model_of
from kvtrace.requests.requests import Requests, Seconds, Start, need_file

CHUNK_TOKENS = 256
"""LMCache's default."""
_LENGTH = struct.Struct(">I")
_MAGIC: Final = b"LMCT"
_MOST_BYTES = 1 << 28
_PREFETCH = ".submit_prefetch_task"
_WHOLE_PREFIX = -1
"""The sliding window of layers that need every chunk."""


class _Header(msgspec.Struct, tag="header"):
    magic: bytes
    format_version: int
    level: str


class _Key(msgspec.Struct):
    chunk_hash: bytes
    model_name: str
    kv_rank: int


class _Record(msgspec.Struct, tag="record"):
    t_mono: Seconds
    qualname: str
    args: dict[str, Any]


class _Layout(msgspec.Struct):
    shapes: list[list[int]]
    dtypes: list[str]


class _Group(msgspec.Struct):
    """The chunks of one kind of layers on one rank, in order."""

    keys: list[_Key]
    layout_desc: _Layout
    sliding_window_size: int = _WHOLE_PREFIX


class _Spec(msgspec.Struct):
    key_groups: list[_Group]


def is_own(start: Start) -> bool:
    """Return whether the file is such a trace: its first frame is a header with LMCache's magic."""
    return start.path.suffix == ".lct" and _MAGIC in start.text[:256]


def read(path: Path, *, block_tokens: int | None = None) -> Requests:
    """Return a request for each prefetch of the trace at `path`; its chunks are `block_tokens` long, 256 by default.

    The trace gives full chunks and neither the tokens after them nor answers.

    Raises:
        TraceError: the file is not such a trace, is cut off, or no shape in it has a dimension of `block_tokens`.

    """
    if block_tokens is not None and block_tokens <= 0:
        raise ConfigError(f"block tokens(={block_tokens}) must be > 0")
    chunk_tokens = block_tokens or CHUNK_TOKENS
    need_file(path)
    found, digest, first, unused = Gathered(), hashlib.sha256(), None, 0
    for number, record in _records(path, digest):
        if not record.qualname.endswith(_PREFETCH):
            unused += 1
            continue
        spec = _spec(record.args, path, number)
        groups = [g for g in spec.key_groups if g.keys]
        if not groups:
            continue
        first = first or groups
        whole = next((g for g in groups if g.sliding_window_size == _WHOLE_PREFIX), groups[0])
        if whole.keys[0].model_name != first[0].keys[0].model_name:
            why = f"{whole.keys[0].model_name!r} after {first[0].keys[0].model_name!r}: a trace of two models"
            raise TraceError(why, path=path, row=number, column="model_name")
        chain = [key.chunk_hash for key in whole.keys]
        found.add(round(record.t_mono * NS_PER_S), len(chain) * chunk_tokens, 0, chain)
    if first is None:
        raise TraceError("holds no prefetch, and so no prompts", path=path)
    dimensions = {size for group in first for shape in group.layout_desc.shapes for size in shape}
    if chunk_tokens not in dimensions:
        why = f"no tensor has a dimension of {chunk_tokens} tokens, only {sorted(dimensions)}: say --block-tokens"
        raise TraceError(why, path=path)
    sizes = [chunk_bytes(g.layout_desc.shapes, g.layout_desc.dtypes) for g in first if _is_of_first_rank(g, first)]
    known = None if None in sizes else sum(size or 0 for size in sizes)
    notes = [
        "the trace has full chunks only: prompts end with their last one, output_tokens is 0, and nothing is decoded",
        f"a chunk is taken as {chunk_tokens} tokens (--block-tokens)",
    ]
    model = model_of(first[0].keys[0].model_name, known, chunk_tokens)
    facts = {"model": model, "ranks": len({g.keys[0].kv_rank for g in first}), "records_not_used": unused}
    return found.requests("lmcache-trace", path, digest.hexdigest(), chunk_tokens, notes, **facts)


def _is_of_first_rank(group: _Group, groups: list[_Group]) -> bool:
    return group.keys[0].kv_rank == groups[0].keys[0].kv_rank


def _spec(args: dict[str, Any], path: Path, number: int) -> _Spec:
    try:
        return msgspec.convert(_bare(args).get("spec"), _Spec)
    except msgspec.ValidationError as error:
        message, place = place_of(error)
        raise TraceError(message, path=path, row=number, column=f"spec.{place}" if place else "spec") from None


def _bare(value: Any) -> Any:
    """Return `value` without the tags {"__t__": type, "v": value} that LMCache wraps its own types in."""
    if isinstance(value, dict):
        if "__t__" in value:
            return _bare(value.get("v"))
        return {name: _bare(inner) for name, inner in value.items()}
    return [_bare(inner) for inner in value] if isinstance(value, list) else value


def _records(path: Path, digest: Any) -> Iterator[tuple[int, _Record]]:
    """Yield the records with their number, from 1, once the header is as it should be."""
    header, records = msgspec.msgpack.Decoder(_Header), msgspec.msgpack.Decoder(_Record)
    for number, frame in enumerate(_frames(path, digest)):
        try:
            if number:
                yield number, records.decode(frame)
                continue
            head = header.decode(frame)
        except msgspec.ValidationError as error:
            message, place = place_of(error)
            raise TraceError(message, path=path, row=number, column=place) from None
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise TraceError(f"not MessagePack: {error}", path=path, row=number) from None
        if head.magic != _MAGIC or head.format_version != 1 or head.level != "storage":
            what = f"magic {head.magic!r}, format {head.format_version}, level {head.level!r}"
            raise TraceError(f"{what}, where we read LMCT, 1 and storage", path=path)


def _frames(path: Path, digest: Any) -> Iterator[bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        number = at = 0
        while prefix := file.read(_LENGTH.size):
            length = _LENGTH.unpack(prefix)[0] if len(prefix) == _LENGTH.size else _MOST_BYTES + 1
            at += _LENGTH.size + length
            if length > _MOST_BYTES or at > size:
                raise TraceError("the file ends within this record, or is damaged", path=path, row=number)
            frame = file.read(length)
            digest.update(prefix)
            digest.update(frame)
            yield frame
            number += 1
