"""LMCache's logs: prompts it looked up, its storage calls, and its traces of agents' chats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec

from kvtrace.core.errors import TraceError
from kvtrace.core.files import place_of
from kvtrace.core.json_types import JsonObject
from kvtrace.core.lmcache_frames import MAGIC, LmcacheTrace, untagged
from kvtrace.core.parameters import named
from kvtrace.core.units import NS_PER_S, NS_PER_US
from kvtrace.requests.block_ids import full_blocks
from kvtrace.requests.conversations import encoder
from kvtrace.requests.json_lines import Count, JsonLines, Seconds
from kvtrace.requests.notes import counted, unused_notes
from kvtrace.requests.request_collector import RequestCollector
from kvtrace.requests.requests import MAX_TOKENS, Requests
from kvtrace.requests.source_files import files_of, sha256_of, source

LOOKUP_FILES = "lookup_hashes_*.jsonl"

_Size = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class _Lookup(msgspec.Struct):
    timestamp: Seconds
    chunk_size: _Size
    seq_len: Count
    chunk_hashes: list[str]
    request_id: str = ""
    model_name: str = ""
    dtypes: list[str] = []
    shapes: list[list[_Size]] = []


@source(lambda start: start.is_json_with("chunk_hashes", "seq_len"))
def lookup_log(path: Path) -> Requests:
    """Return the requests of the log at `path`, or of all `lookup_hashes_*.jsonl` in that
    directory, by name.

    TraceError if a line is no such lookup, has more hashes than its prompt has full chunks, or is
    of another model or chunk size than those before it.

    LMCache's lookup log (`lookup_hashes_*.jsonl`): each prompt's chunk hashes, and the shape of
    their KV. LMCache's server writes it with `--lookup-hash-log-dir`: a line for each prompt that
    it looks up, with its full chunks.
    """
    paths = files_of(path, LOOKUP_FILES)
    gathered, first, ids, repeated, unused = RequestCollector(), None, set[str](), 0, set[str]()
    for file_path in paths:
        lines = JsonLines(file_path, _Lookup, name_fields=True)
        for number, line in lines:
            first = first or line
            chunks, full_chunks = len(line.chunk_hashes), line.seq_len // line.chunk_size
            if chunks > full_chunks:
                problem = (
                    f"{chunks} hashes, but {line.seq_len} tokens in chunks of {line.chunk_size}"
                    f" make {full_chunks} full ones"
                )
                raise lines.fault(problem, number, "chunk_hashes")
            if len(set(line.chunk_hashes)) < chunks:
                raise lines.fault(
                    "a hash appears twice, but a hash names one whole prefix",
                    number,
                    "chunk_hashes",
                )
            for name in ("model_name", "chunk_size"):
                value, first_value = getattr(line, name), getattr(first, name)
                if value != first_value:
                    problem = (
                        f"{value!r} after {first_value!r}: one file may hold one model's requests;"
                        f" split it by {name}"
                    )
                    raise lines.fault(problem, number, name)
            repeated += bool(line.request_id) and line.request_id in ids
            ids.add(line.request_id)
            time_ns = round(line.timestamp * NS_PER_S)
            gathered.add(time_ns, line.seq_len, 0, line.chunk_hashes, row=number)
        unused |= lines.fields
    if first is None:
        raise TraceError("holds no request", path=path)
    size_bytes = chunk_bytes(first.shapes, first.dtypes)
    model = model_of(first.model_name, size_bytes, first.chunk_size)
    notes = [
        "the log does not say how long answers are: output_tokens is 0, and nothing is decoded"
    ]
    notes += counted(
        (repeated, "lookups are of a request that was looked up before: each is a request here")
    )
    notes += unused_notes(unused, _Lookup)
    facts = {"files": [p.name for p in paths], "model": model, "repeated_lookups": repeated}
    return gathered.build_requests(
        "lmcache-lookup", path, sha256_of(*paths), first.chunk_size, notes, **facts
    )


CHAT_FILES = "*.openai_chat.jsonl"


class _Chat(msgspec.Struct):
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    """In microseconds."""
    input: str
    output: str
    session_id: str | None = None


@source(lambda start: start.is_json_with("timestamp", "input"))
def chats(path: Path, *, block_tokens: int = 16, tokenizer: str = "auto") -> Requests:
    """Return the requests of the chats at `path`, or of all `*.openai_chat.jsonl` in that
    directory, by name.

    TraceError if a line is no such request; ConfigError if there is no such tokenizer.

    LMCache's traces of agents (`*.openai_chat.jsonl`): a request a line, its prompt and answer as
    text. They are in LMCache/lmcache-agent-trace on GitHub, one session a file, of which lines are
    not in the order of time.
    """
    paths = files_of(path, CHAT_FILES)
    encode, per_token, words = encoder(tokenizer)
    gathered = RequestCollector(has_contents=True)
    for lines in (JsonLines(file_path, _Chat) for file_path in paths):
        for number, line in lines:
            units, answer = encode(line.input), encode(line.output)
            inputs, outputs = (-(-len(text) // per_token) for text in (units, answer))
            if max(inputs, outputs) > MAX_TOKENS:
                raise lines.fault(f"a text of more than {MAX_TOKENS} tokens", number, None)
            gathered.add(
                line.timestamp * NS_PER_US,
                inputs,
                outputs,
                full_blocks(units, block_tokens, per_token),
                line.session_id,
            )
    notes = [
        f"the source has no token counts: they are {words}",
        (
            f"the source has no block ids: {block_tokens} tokens of equal text behind equal text"
            " are one block"
        ),
    ]
    facts = {"files": [file_path.name for file_path in paths], "tokenizer": words}
    return gathered.build_requests(
        "lmcache-chat", path, sha256_of(*paths), block_tokens, notes, **facts
    )


CHUNK_TOKENS = 256
"""LMCache's default."""
_PREFETCH = ".submit_prefetch_task"
_WHOLE_PREFIX = -1
"""The sliding window of layers that need every chunk."""


class _Key(msgspec.Struct):
    chunk_hash: bytes
    model_name: str
    kv_rank: int


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


@source(lambda start: start.path.suffix == ".lct" and MAGIC in start.text[:256])
def lmcache_trace(path: Path, *, block_tokens: int | None = None) -> Requests:
    """Return a request for each prefetch of the trace at `path`.

    Its chunks are `block_tokens` long, 256 by default.

    The trace gives full chunks and neither the tokens after them nor answers. TraceError if the
    file is not such a trace, is cut off, or no shape in it has a dimension of `block_tokens`.

    LMCache's storage trace (`.lct`): the calls of its storage manager, of which each prefetch is a
    prompt looked up (`kvtrace/core/lmcache_frames.py`).
    """
    chunk_tokens = block_tokens or CHUNK_TOKENS
    trace = LmcacheTrace(path, "storage")
    gathered, first, unused = RequestCollector(), None, 0
    for number, record in trace:
        if not record.qualname.endswith(_PREFETCH):
            unused += 1
            continue
        try:
            spec = msgspec.convert(untagged(record.args).get("spec"), _Spec)
        except msgspec.ValidationError as error:
            message, place = place_of(error)
            raise TraceError(
                message, path=path, row=number, column=f"spec.{place}" if place else "spec"
            ) from None
        groups = [group for group in spec.key_groups if group.keys]
        if not groups:
            continue
        first = first or groups
        full_group = next(
            (group for group in groups if group.sliding_window_size == _WHOLE_PREFIX), groups[0]
        )
        if full_group.keys[0].model_name != first[0].keys[0].model_name:
            problem = (
                f"{full_group.keys[0].model_name!r} after {first[0].keys[0].model_name!r}: a trace of"
                " two models"
            )
            raise TraceError(problem, path=path, row=number, column="model_name")
        chain = [key.chunk_hash for key in full_group.keys]
        time_ns = round(record.t_mono * NS_PER_S)
        gathered.add(time_ns, len(chain) * chunk_tokens, 0, chain, row=number)
    if first is None:
        raise TraceError("holds no prefetch, and so no prompts", path=path)
    dimensions = {size for group in first for shape in group.layout_desc.shapes for size in shape}
    if chunk_tokens not in dimensions:
        problem = (
            f"no tensor has a dimension of {chunk_tokens} tokens, only {sorted(dimensions)}: set"
            f" {named('block_tokens')}"
        )
        raise TraceError(problem, path=path)
    sizes = [
        chunk_bytes(group.layout_desc.shapes, group.layout_desc.dtypes)
        for group in first
        if group.keys[0].kv_rank == first[0].keys[0].kv_rank
    ]
    rank_bytes = None if None in sizes else sum(size or 0 for size in sizes)
    notes = [
        (
            "the trace has full chunks only: prompts end with their last one, output_tokens is 0,"
            " and nothing is decoded"
        ),
        f"a chunk is taken as {chunk_tokens} tokens (--block-tokens)",
    ]
    model = model_of(first[0].keys[0].model_name, rank_bytes, chunk_tokens)
    facts = {
        "model": model,
        "ranks": len({group.keys[0].kv_rank for group in first}),
        "records_not_used": unused,
    }
    return gathered.build_requests(
        "lmcache-trace", path, trace.sha256, chunk_tokens, notes, **facts
    )


ITEM_BYTES: Final = {
    **dict.fromkeys(
        ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "uint8", "int8"), 1
    ),
    **dict.fromkeys(("bfloat16", "float16", "half", "int16", "uint16"), 2),
    **dict.fromkeys(("float32", "float", "int32"), 4),
    **dict.fromkeys(("float64", "int64"), 8),
}
"""The bytes of an element, by the names that PyTorch gives its dtypes."""


def chunk_bytes(shapes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> int | None:
    """Return the bytes of tensors of these `shapes` and `dtypes`.

    None if a dtype is unknown or nothing is given.
    """
    sizes = [ITEM_BYTES.get(name.removeprefix("torch.")) for name in dtypes]
    if not shapes or len(shapes) != len(sizes) or any(size is None for size in sizes):
        return None
    return sum(math.prod(shape) * (size or 0) for shape, size in zip(shapes, sizes, strict=True))


def model_of(name: str, size_bytes: int | None, chunk_tokens: int) -> JsonObject:
    """Return the model in the origin of a source: its name, and KV bytes a token on one rank.

    The bytes are None if the log does not give them, or they are not a whole number.
    """
    is_whole = size_bytes is not None and size_bytes > 0 and size_bytes % chunk_tokens == 0
    return {
        "name": name,
        "kv_bytes_per_token_per_rank": size_bytes // chunk_tokens
        if is_whole and size_bytes
        else None,
    }
