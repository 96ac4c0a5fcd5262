"""Agentic coding conversations (kv-cache-tester JSON): one file a conversation, with ids of 64-token blocks.

Each conversation has a clock and, mostly, ids of its own; sub-agents, nested in it, share its ids, and have clocks too.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import numpy as np

from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.files import read_json
from kvtrace.core.units import NS_PER_S
from kvtrace.requests.reading import Gathered, backwards_notes
from kvtrace.requests.requests import MAX_NS, BlockId, Count, Requests, Seconds, Start, sha256_of

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


class _Conversations:
    """The conversations of all files, as they are read."""

    def __init__(self) -> None:
        self.found = Gathered()
        self.count = self.subagents = self.out_of_order = 0

    def enter(
        self, requests: list[_Request], file: int | None, path: Path, block_tokens: int, start_ns: int, where: str = ""
    ) -> None:
        """Append `requests`, a conversation's that starts then, and after them those of its sub-agents.

        Its blocks are those of other conversations of the same `file`, or with None of all.
        """
        session, turn, latest = self.count, 0, 0.0
        self.count += 1
        nested = []
        for number, request in enumerate(requests):
            place = f"{where}requests[{number}]"
            if request.type == SUBAGENT:
                nested.append((request.requests or [], start_ns + round(request.t * NS_PER_S), f"{place}."))
                continue
            if request.input is None or request.output is None or request.hash_ids is None:
                raise TraceError("a request needs in, out and hash_ids", path=path, column=place)
            _check(len(request.hash_ids), request.input, block_tokens, path, place)
            self.out_of_order += request.t < latest
            latest, time_ns = request.t, start_ns + round(request.t * NS_PER_S)
            chain = ((file, block) for block in request.hash_ids)
            answered_ns = time_ns + round(request.api_time * NS_PER_S)
            self.found.add(time_ns, request.input, request.output, chain, session, answered_ns, turn)
            turn += 1
        for inner, began_ns, place in nested:
            self.subagents += 1
            self.enter(inner, file, path, block_tokens, min(began_ns, MAX_NS), place)


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
    starts = np.zeros(len(paths))
    if conversation_rate_per_s:
        starts[1:] = np.cumsum(np.rint(rng.exponential(NS_PER_S / conversation_rate_per_s, size=len(paths) - 1)))
    if starts[-1] > MAX_NS:
        raise ConfigError(f"conversation rate(={conversation_rate_per_s}) is too low: they outlast the clock")
    conversations, scopes, block_tokens = _Conversations(), [], 0
    for number, (one, start) in enumerate(zip(paths, starts, strict=True)):
        file = _decode(one)
        if number and file.block_size != block_tokens:
            raise TraceError(f"blocks of {file.block_size} tokens, but {block_tokens} before", path=one)
        block_tokens = file.block_size
        scopes.append(file.hash_id_scope)
        place = None if file.hash_id_scope == GLOBAL else number
        conversations.enter(file.requests, place, one, block_tokens, int(start))
    facts = {
        "files": [p.name for p in paths],
        "conversation_rate_per_s": conversation_rate_per_s,
        "conversations": len(paths),
        "subagents": conversations.subagents,
        "out_of_order": conversations.out_of_order,
    }
    notes = _notes(conversations, conversation_rate_per_s, scopes)
    return conversations.found.requests("agentic", path, sha256_of(*paths), block_tokens, notes, **facts)


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


def _notes(found: _Conversations, rate_per_s: float, scopes: list[str]) -> list[str]:
    drawn = f"they are drawn, Poisson at {rate_per_s:g} a second" if rate_per_s else "all start at 0"
    notes = [f"the source does not say when its {len(scopes)} conversations start: {drawn}"]
    if LOCAL in scopes:
        notes.append("block ids are local to their file: nothing is shared between conversations")
    if found.subagents:
        notes.append(f"{found.subagents} sub-agents are sessions of their own, from where they start, with shared ids")
    return [*notes, *backwards_notes(found.out_of_order)]
