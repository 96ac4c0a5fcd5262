"""ShareGPT JSON: real conversations as text. It has no times and no token counts: both are made here, and noted."""

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
from kvtrace.core.files import decode_json
from kvtrace.core.units import NS_PER_S
from kvtrace.requests.requests import (
    MAX_NS,
    MAX_TOKENS,
    Ints,
    Requests,
    Start,
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


def is_own(start: Start) -> bool:
    """Return whether the file is a ShareGPT array: a JSON array of conversations."""
    return start.text.startswith(b"[") and b'"conversations"' in start.text


def read(
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
    notes = _notes(origin)
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


def _notes(origin: dict[str, Any]) -> tuple[str, ...]:
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
