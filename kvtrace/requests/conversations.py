"""Conversations as they were recorded: ShareGPT's, as text, and those of coding agents."""

from __future__ import annotations

import importlib
import math
import mmap
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvtrace.core.errors import ConfigError, ProbeUnavailable, TraceError, need_file
from kvtrace.core.files import decode_json, read_json
from kvtrace.core.units import NS_PER_S
from kvtrace.requests.requests import (
    MAX_NS,
    MAX_TOKENS,
    BlockId,
    Count,
    Gathered,
    Ints,
    Requests,
    Seconds,
    SourceFormat,
    Start,
    backwards_notes,
    column,
    origin_of,
    sha256_of,
    without_blocks,
)

ENCODING = "cl100k_base"
CHARACTERS_PER_TOKEN = 4
REQUEST_RATE_PER_S = 1.0
LIVE_CONVERSATIONS = 64
ASKING = ("human", "user")
ANSWERING = ("gpt", "assistant", "chatgpt", "bing", "bard")
CONTEXT = ("system", "tool", "function", "observation")


class Tokenizer(StrEnum):
    """How tokens are counted."""

    AUTO = "auto"
    TIKTOKEN = "tiktoken"
    CHARACTERS = "characters"


def encoder(tokenizer: str) -> tuple[Callable[[str], Sequence[Any]], int, str]:
    """Return a function that makes units of a text, how many of them are a token, and a description for the notes.

    Raises:
        ConfigError: no such tokenizer.
        ProbeUnavailable: `tiktoken` was asked for and cannot be had; `auto` falls back to characters.

    """
    if tokenizer not in tuple(Tokenizer):
        raise ConfigError(f"unknown tokenizer {tokenizer!r}; use {', '.join(Tokenizer)}")
    if tokenizer != Tokenizer.CHARACTERS:
        try:
            encoding = importlib.import_module("tiktoken").get_encoding(ENCODING)
        except (ImportError, OSError) as error:
            # OSError: it fetches its vocabulary once, and there may be no network.
            if tokenizer == Tokenizer.TIKTOKEN:
                raise ProbeUnavailable(
                    f"tiktoken is not to be had ({error}); pip install tiktoken, or --tokenizer characters"
                ) from None
        else:
            return lambda text: tuple(encoding.encode(text, disallowed_special=())), 1, f"tiktoken's {ENCODING}"
    return str, CHARACTERS_PER_TOKEN, f"estimated as characters / {CHARACTERS_PER_TOKEN}, rounded up"


class _Message(msgspec.Struct):
    speaker: str = msgspec.field(name="from")
    value: str


class _Conversation(msgspec.Struct):
    conversations: list[_Message]
    id: str | int | None = None


@dataclass(slots=True)
class _Turns:
    """The turns of all conversations in file order, and counts of what made no turn."""

    inputs: array[int] = field(default_factory=lambda: array("q"))
    outputs: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    """How many turns each conversation has; those with none are left out."""
    empty: int = 0
    unanswered: int = 0
    unasked: int = 0
    unknown_speakers: int = 0

    def enter(self, conversation: _Conversation, count: Callable[[str], int]) -> None:
        """Append a turn for each answer of `conversation`; its prompt carries all that came before."""
        before, turns, is_asked = 0, 0, False
        for message in conversation.conversations:
            tokens = count(message.value)
            if message.speaker in ANSWERING:
                if is_asked:
                    self.inputs.append(before)
                    self.outputs.append(tokens)
                    turns += 1
                else:
                    self.unasked += 1
                is_asked = False
            else:
                is_asked = is_asked or message.speaker not in CONTEXT
                self.unknown_speakers += message.speaker not in (*ASKING, *CONTEXT)
            before += tokens
        self.unanswered += is_asked
        if turns:
            self.lengths.append(turns)
        else:
            self.empty += 1


def _read_sharegpt(
    path: Path,
    rng: np.random.Generator,
    *,
    request_rate_per_s: float = REQUEST_RATE_PER_S,
    live_conversations: int = LIVE_CONVERSATIONS,
    max_conversations: int | None = None,
    tokenizer: str = "auto",
) -> Requests:
    """Return the requests of the ShareGPT JSON array at `path`, one an answer, arriving as `rng` draws.

    Arrivals are a Poisson process of `request_rate_per_s`. Each is the next turn of one of the
    `live_conversations` going on, any with the same chance; one that ends makes way for the next of the file.

    Raises:
        TraceError: the file is no such array, or no conversation has a question and an answer.
        ConfigError: a rate or count cannot be.

    """
    if not 0 < request_rate_per_s < math.inf:
        raise ConfigError(f"request rate(={request_rate_per_s}) must be > 0 a second")
    if live_conversations < 1 or (max_conversations is not None and max_conversations < 1):
        raise ConfigError("conversations: at least 1")
    encode, per_token, tokenizer_name = encoder(tokenizer)
    turns = _read_turns(path, lambda text: -(-len(encode(text)) // per_token), max_conversations)
    if not turns.inputs:
        raise TraceError("no conversation has a question and an answer", path=path)
    order, sessions, places = _interleave(column(turns.lengths), live_conversations, rng)
    gaps = rng.exponential(NS_PER_S / request_rate_per_s, size=len(order))
    times = np.cumsum(np.rint(gaps))
    if times[-1] > MAX_NS:
        raise ConfigError(f"request rate(={request_rate_per_s}) is too low: {len(order)} requests outlast the clock")
    arrivals = times.astype(np.int64)
    facts = {
        "tokenizer": tokenizer_name,
        "request_rate_per_s": request_rate_per_s,
        "live_conversations": live_conversations,
        "max_conversations": max_conversations,
        "conversations": len(turns.lengths),
        "empty_conversations": turns.empty,
        "unanswered": turns.unanswered,
        "unasked": turns.unasked,
        "unknown_speakers": turns.unknown_speakers,
    }
    origin = origin_of("sharegpt", path, sha256_of(path), len(order), 0, **facts)
    tokens = column(turns.inputs)[order], column(turns.outputs)[order]
    notes = _sharegpt_notes(origin)
    return without_blocks(arrivals - arrivals[0], *tokens, origin, notes, session_id=sessions, turn=places)


def _read_turns(path: Path, count: Callable[[str], int], limit: int | None) -> _Turns:
    need_file(path)
    if path.stat().st_size == 0:
        raise TraceError("empty", path=path)
    decoder, turns = msgspec.json.Decoder(_Conversation), _Turns()
    with path.open("rb") as file:
        # Only the pages in use are in memory. The map ends with the last look into it, not before.
        text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    parts = decode_json(text, list[msgspec.Raw], path, misfit="not a JSON array of conversations: {}")
    for row, part in enumerate(parts[:limit]):
        turns.enter(decode_json(part, decoder, path, row=row), count)
        if turns.inputs and turns.inputs[-1] > MAX_TOKENS:
            raise TraceError(f"a prompt of more than {MAX_TOKENS} tokens", path=path, row=row)
    return turns


def _interleave(lengths: Ints, live: int, rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Return, in order of arrival, each request's turn (numbered through the file), conversation, and place in that."""
    total = int(lengths.sum())
    firsts = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)[:-1]])
    draws = rng.random(total)
    going = list(range(min(live, len(lengths))))
    waiting = len(going)
    done = [0] * len(lengths)
    sessions, places = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    for i in range(total):
        slot = int(draws[i] * len(going))
        session = going[slot]
        sessions[i], places[i] = session, done[session]
        done[session] += 1
        if done[session] == lengths[session]:
            if waiting < len(lengths):
                going[slot] = waiting
                waiting += 1
            else:
                going[slot] = going[-1]
                going.pop()
    return firsts[sessions] + places, sessions, places


def _sharegpt_notes(origin: dict[str, Any]) -> tuple[str, ...]:
    rate, live = origin["request_rate_per_s"], origin["live_conversations"]
    notes = [
        f"the source has no times: they are drawn, Poisson at {rate:g} a second over {live} conversations at a time",
        f"the source has no token counts: they are {origin['tokenizer']}",
        "the source has no block ids: prompts share a prefix within their conversation only",
    ]
    noted = {
        "empty_conversations": "conversations without a question and an answer were left out",
        "unanswered": "last questions have no answer and were left out",
        "unasked": "answers have no question before them: they are history, not requests",
        "unknown_speakers": "messages of unknown speakers were taken for questions",
    }
    return (*notes, *(f"{origin[name]} {what}" for name, what in noted.items() if origin[name]))


sharegpt = SourceFormat(_read_sharegpt, lambda start: start.text.startswith(b"[") and b'"conversations"' in start.text)
"""ShareGPT JSON, an array of conversations as text. It has no times and no token counts: both are made, and noted."""


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


def _read_agentic(path: Path, rng: np.random.Generator, *, conversation_rate_per_s: float = 0.0) -> Requests:
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
    notes = _agentic_notes(conversations, conversation_rate_per_s, scopes)
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


def _agentic_notes(found: _Conversations, rate_per_s: float, scopes: list[str]) -> list[str]:
    drawn = f"they are drawn, Poisson at {rate_per_s:g} a second" if rate_per_s else "all start at 0"
    notes = [f"the source does not say when its {len(scopes)} conversations start: {drawn}"]
    if LOCAL in scopes:
        notes.append("block ids are local to their file: nothing is shared between conversations")
    if found.subagents:
        notes.append(f"{found.subagents} sub-agents are sessions of their own, from where they start, with shared ids")
    return [*notes, *backwards_notes(found.out_of_order)]


def _is_agentic(start: Start) -> bool:
    return start.text.startswith(b"{") and b'"block_size"' in start.text and b'"requests"' in start.text


agentic = SourceFormat(_read_agentic, _is_agentic)
"""Agentic coding conversations (kv-cache-tester JSON): one file a conversation, with ids of 64-token blocks.

Each conversation has a clock and, mostly, ids of its own; sub-agents, nested in it, share its ids, and have clocks too.
"""
