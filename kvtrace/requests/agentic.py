"""Agentic coding conversations (kv-cache-tester JSON): one file a conversation, with ids of 64-token blocks.

Each conversation has a clock and, mostly, ids of its own; sub-agents are conversations nested in it that share both.
"""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.files import read_json
from kvtrace.core.units import NS_PER_S
from kvtrace.requests.reading import prefix_chains, rechained_notes, unnamed_notes
from kvtrace.requests.requests import (
    MAX_BLOCK_ID,
    MAX_NS,
    BlockId,
    Count,
    Ints,
    Requests,
    Seconds,
    Start,
    column,
    dense,
    origin_of,
    runs_of,
    sha256_of,
)

LOCAL, GLOBAL = "local", "global"
SUBAGENT = "subagent"


class _Request(msgspec.Struct):
    t: Seconds
    type: str
    input: Count | None = msgspec.field(default=None, name="in")
    output: Count | None = msgspec.field(default=None, name="out")
    api_time: Seconds = 0.0
    hash_ids: list[BlockId] | None = None
    requests: list[_Request] | None = None


class _File(msgspec.Struct):
    block_size: int
    requests: list[_Request]
    hash_id_scope: str = LOCAL


class _Columns:
    """The requests of all files in reading order, each with its file, conversation and turn."""

    def __init__(self) -> None:
        self.times, self.inputs, self.outputs, self.sessions, self.turns, self.files = (array("q") for _ in range(6))
        self.took = array("q")
        self.offsets, self.ids = array("q", [0]), array("q")
        self.conversations = self.subagents = self.out_of_order = 0

    def enter(self, requests: list[_Request], file: int, path: Path, block_tokens: int, where: str = "") -> None:
        """Append `requests`, a conversation's, and after them those of its sub-agents."""
        session, turn, latest = self.conversations, 0, 0.0
        self.conversations += 1
        nested = []
        for number, request in enumerate(requests):
            place = f"{where}requests[{number}]"
            if request.type == SUBAGENT:
                nested.append((request.requests or [], f"{place}."))
                continue
            if request.input is None or request.output is None or request.hash_ids is None:
                raise TraceError("a request needs in, out and hash_ids", path=path, column=place)
            _check(len(request.hash_ids), request.input, block_tokens, path, place)
            self.out_of_order += request.t < latest
            latest = request.t
            values = (round(request.t * NS_PER_S), request.input, request.output, session, turn, file)
            columns = (self.times, self.inputs, self.outputs, self.sessions, self.turns, self.files)
            for values_so_far, value in zip(columns, values, strict=True):
                values_so_far.append(value)
            self.took.append(round(request.api_time * NS_PER_S))
            self.ids.extend(request.hash_ids)
            self.offsets.append(len(self.ids))
            turn += 1
        for inner, place in nested:
            self.subagents += 1
            self.enter(inner, file, path, block_tokens, place)


def is_own(start: Start) -> bool:
    """Return whether the file is a conversation: a JSON object with block_size and requests."""
    return start.text.startswith(b"{") and b'"block_size"' in start.text and b'"requests"' in start.text


def read(path: Path, rng: np.random.Generator, *, conversation_rate_per_s: float = 0.0) -> Requests:
    """Return the requests of the conversation file at `path`, or of all `*.json` in that directory, by name.

    The files do not say when conversations start: all at 0, or with a rate, one after the other as `rng` draws
    (Poisson). Ids of different files are kept apart unless a file says that its ids are global.

    Raises:
        TraceError: a file is not such an object, its ids do not fit its lengths, or block sizes differ.

    """
    if not 0 <= conversation_rate_per_s < math.inf:
        raise ConfigError(f"conversation rate(={conversation_rate_per_s}) must be >= 0 a second")
    paths = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not paths:
        raise TraceError("no *.json file there", path=path)
    columns, scopes, block_tokens = _Columns(), [], 0
    for number, one in enumerate(paths):
        file = _decode(one)
        if number and file.block_size != block_tokens:
            raise TraceError(f"blocks of {file.block_size} tokens, but {block_tokens} before", path=one)
        block_tokens = file.block_size
        scopes.append(file.hash_id_scope)
        columns.enter(file.requests, number, one, block_tokens)
    if not columns.times:
        raise TraceError("holds no request", path=path)
    starts = np.zeros(len(paths), dtype=np.int64)
    if conversation_rate_per_s:
        gaps = rng.exponential(NS_PER_S / conversation_rate_per_s, size=len(paths) - 1)
        starts[1:] = np.minimum(np.cumsum(np.rint(gaps)), MAX_NS).astype(np.int64)
    files, ends = column(columns.files), column(columns.offsets)
    ids, ambiguous = prefix_chains(_apart(column(columns.ids), np.repeat(files, np.diff(ends)), scopes), ends)
    times = column(columns.times) + starts[files]
    if times.max() > MAX_NS:
        raise ConfigError(f"conversation rate(={conversation_rate_per_s}) is too low: they outlast the clock")
    counts = {
        "conversations": len(paths),
        "subagents": columns.subagents,
        "rechained_ids": ambiguous,
        "out_of_order": columns.out_of_order,
        "unnamed_tokens": int(np.maximum(column(columns.inputs) - np.diff(ends) * block_tokens, 0).sum()),
    }
    facts = {"files": [p.name for p in paths], "block_references": len(ids)}
    facts |= {"conversation_rate_per_s": conversation_rate_per_s, **counts}
    origin = origin_of("agentic", path, sha256_of(*paths), len(times), block_tokens, **facts)
    return _ordered(columns, times, ids, block_tokens, origin, _notes(counts, conversation_rate_per_s, scopes))


def _decode(path: Path) -> _File:
    file = read_json(path, _File)
    if file.block_size <= 0:
        raise TraceError(f"{file.block_size} must be > 0 tokens", path=path, column="block_size")
    if file.hash_id_scope not in (LOCAL, GLOBAL):
        raise TraceError(f"{file.hash_id_scope!r} is not {LOCAL} or {GLOBAL}", path=path, column="hash_id_scope")
    return file


def _check(ids: int, tokens: int, block_tokens: int, path: Path, place: str) -> None:
    whole, partial = divmod(tokens, block_tokens)
    if ids not in (whole, whole + (partial > 0)):
        why = f"{ids} ids, but {tokens} input tokens in blocks of {block_tokens} make {whole} whole blocks"
        raise TraceError(why, path=path, column=f"{place}.hash_ids")


def _apart(ids: Ints, files: Ints, scopes: list[str]) -> Ints:
    """Return `ids` so that those of different files differ, unless both are of global scope."""
    spaces = np.array([0 if scope == GLOBAL else number + 1 for number, scope in enumerate(scopes)], dtype=np.int64)
    numbers, count = dense(ids)
    if count * (len(scopes) + 1) > MAX_BLOCK_ID:
        raise ConfigError(f"{count} block ids in {len(scopes)} files are more than a trace can number")
    return dense(spaces[files] * count + numbers)[0]


def _ordered(
    columns: _Columns, times: Ints, ids: Ints, block_tokens: int, origin: dict[str, object], notes: tuple[str, ...]
) -> Requests:
    """Return the requests in order of arrival; those of one moment by file, conversation and turn."""
    order = np.lexsort((column(columns.turns), column(columns.sessions), times))
    ends = column(columns.offsets)
    lengths = np.diff(ends)[order]
    offsets, ids = runs_of(ids, ends[:-1][order], lengths)
    ordered = times[order]
    tokens = column(columns.inputs)[order], column(columns.outputs)[order]
    place: dict[str, Any] = {
        "session_id": dense(column(columns.sessions)[order])[0],
        "turn": column(columns.turns)[order],
    }
    if any(columns.took):
        place["answered_ns"] = ordered - ordered[0] + column(columns.took)[order]
    return Requests(ordered - ordered[0], *tokens, offsets, ids, block_tokens, origin, notes, **place)


def _notes(counts: dict[str, int], rate_per_s: float, scopes: list[str]) -> tuple[str, ...]:
    drawn = f"they are drawn, Poisson at {rate_per_s:g} a second" if rate_per_s else "all start at 0"
    notes = [f"the source does not say when its {counts['conversations']} conversations start: {drawn}"]
    if LOCAL in scopes:
        notes.append("block ids are local to their file: nothing is shared between conversations")
    if counts["subagents"]:
        notes.append(
            f"{counts['subagents']} sub-agents are sessions of their own, on their conversation's clock and ids"
        )
    if counts["out_of_order"]:
        notes.append(f"times went backwards {counts['out_of_order']} times: the requests were sorted by arrival")
    return (*notes, *rechained_notes(counts["rechained_ids"]), *unnamed_notes(counts["unnamed_tokens"]))
