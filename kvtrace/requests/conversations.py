"""Conversations as they were recorded: ShareGPT's, as text, and those of coding agents."""

from __future__ import annotations

import importlib
import math
import mmap
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from kvtrace.core.errors import ConfigError, ProbeUnavailable, TraceError, need_file
from kvtrace.core.files import decode_json, read_json
from kvtrace.core.text import as_utf8
from kvtrace.core.units import NS_PER_S, format_duration
from kvtrace.requests import requests as reading

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
    """Return a function that makes units of a text, how many of them are a token, and a description
    for the notes.

    ConfigError if there is no such tokenizer; ProbeUnavailable if `tiktoken` was asked for and
    cannot be had; `auto` falls back to characters.
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
                    f"tiktoken is not available ({error}); pip install tiktoken, or --tokenizer"
                    " characters"
                ) from None
        else:
            return (
                lambda text: tuple(encoding.encode(text, disallowed_special=())),
                1,
                f"tiktoken's {ENCODING}",
            )
    return (
        str,
        CHARACTERS_PER_TOKEN,
        f"estimated as characters / {CHARACTERS_PER_TOKEN}, rounded up",
    )


class _Message(msgspec.Struct):
    speaker: str = msgspec.field(name="from")
    value: str


class _Conversation(msgspec.Struct):
    conversations: list[_Message]
    id: str | int | None = None


_ODDITIES = {
    "empty_conversations": "conversations without a question and an answer were left out",
    "unanswered": "last questions have no answer and were left out",
    "unasked": "answers have no question before them: they are history, not requests",
    "unknown_speakers": "messages of unknown speakers were taken for questions",
}


@reading.source(lambda start: start.text.startswith(b"[") and b'"conversations"' in start.text)
def sharegpt(
    path: Path,
    rng: np.random.Generator,
    *,
    request_rate_per_s: float = REQUEST_RATE_PER_S,
    live_conversations: int = LIVE_CONVERSATIONS,
    max_conversations: int | None = None,
    tokenizer: str = "auto",
) -> reading.Requests:
    """Return the requests of the ShareGPT JSON array at `path`, one an answer, arriving as `rng`
    draws.

    Arrivals are a Poisson process of `request_rate_per_s`. Each is the next turn of one of the
    `live_conversations` going on, any with the same chance; one that ends makes way for the next of
    the file. TraceError if the file is no such array, or no conversation has a question and an
    answer; ConfigError if a rate or count cannot be.

    ShareGPT JSON, an array of conversations as text. It has no times and no token counts: both are
    made, and noted.
    """
    if not 0 < request_rate_per_s < math.inf:
        raise ConfigError(f"request rate(={request_rate_per_s}) must be > 0 a second")
    if live_conversations < 1 or (max_conversations is not None and max_conversations < 1):
        raise ConfigError("conversations: at least 1")
    encode, per_token, tokenizer_name = encoder(tokenizer)
    odd = Counter[str]()
    inputs, outputs, lengths = _read_turns(
        path, lambda text: -(-len(encode(text)) // per_token), max_conversations, odd
    )
    if not inputs:
        raise TraceError("no conversation has a question and an answer", path=path)
    order, sessions, places = _interleave(reading.column(lengths), live_conversations, rng)
    gaps = rng.exponential(NS_PER_S / request_rate_per_s, size=len(order))
    arrivals = np.cumsum(np.rint(gaps))
    if arrivals[-1] > reading.MAX_NS:
        raise ConfigError(
            f"request rate(={request_rate_per_s}) is too low: {len(order)} requests outlast the"
            " clock"
        )
    arrivals = arrivals.astype(np.int64)
    facts = {
        "tokenizer": tokenizer_name,
        "request_rate_per_s": request_rate_per_s,
        "live_conversations": live_conversations,
        "max_conversations": max_conversations,
        "conversations": len(lengths),
        **{name: odd[name] for name in _ODDITIES},
    }
    origin = reading.origin_of("sharegpt", path, reading.sha256_of(path), len(order), 0, **facts)
    tokens = reading.column(inputs)[order], reading.column(outputs)[order]
    times = (
        f"Poisson at {request_rate_per_s:g} a second over {live_conversations} conversations at a"
        " time"
    )
    notes = [
        f"the source has no times: they are drawn, {times}",
        f"the source has no token counts: they are {tokenizer_name}",
        "the source has no block ids: prompts share a prefix within their conversation only",
        *reading.counted(*((odd[name], what) for name, what in _ODDITIES.items())),
    ]
    return reading.without_blocks(
        arrivals - arrivals[0], *tokens, origin, tuple(notes), session_id=sessions, turn=places
    )


def _read_turns(
    path: Path, count: Callable[[str], int], limit: int | None, odd: Counter[str]
) -> tuple[array[int], array[int], array[int]]:
    """Return the tokens of prompts and answers, a turn an answer, and how many turns conversations
    have that have any.

    A prompt carries all that came before it. `odd` takes how often there was what made no turn, as
    in _ODDITIES.
    """
    need_file(path)
    if path.stat().st_size == 0:
        raise TraceError("empty", path=path)
    decoder = msgspec.json.Decoder(_Conversation)
    inputs, outputs, lengths = (array("q") for _ in range(3))
    with path.open("rb") as file:
        # Only the pages in use are in memory. The map ends with the last look into it, not before.
        text: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if as_utf8(text[:4]) != text[:4]:
        text = as_utf8(text[:])
    parts = decode_json(
        text, list[msgspec.Raw], path, misfit="not a JSON array of conversations: {}"
    )
    for row, part in enumerate(parts[:limit]):
        before, made, is_asked = 0, len(inputs), False
        for message in decode_json(part, decoder, path, row=row).conversations:
            tokens = count(message.value)
            if message.speaker not in ANSWERING:
                is_asked = is_asked or message.speaker not in CONTEXT
                odd["unknown_speakers"] += message.speaker not in (*ASKING, *CONTEXT)
            elif is_asked:
                inputs.append(before)
                outputs.append(tokens)
                is_asked = False
            else:
                odd["unasked"] += 1
            before += tokens
        odd["unanswered"] += is_asked
        if len(inputs) > made:
            lengths.append(len(inputs) - made)
        else:
            odd["empty_conversations"] += 1
        if inputs and inputs[-1] > reading.MAX_TOKENS:
            raise TraceError(
                f"a prompt of more than {reading.MAX_TOKENS} tokens", path=path, row=row
            )
    return inputs, outputs, lengths


def _interleave(
    lengths: reading.Ints, live: int, rng: np.random.Generator
) -> tuple[reading.Ints, reading.Ints, reading.Ints]:
    """Return, in order of arrival, each request's turn (numbered through the file), conversation,
    and place in that.
    """
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


_Fault = Callable[..., TraceError]
LOCAL, GLOBAL = "local", "global"
SUBAGENT = "subagent"


class _Request(msgspec.Struct):
    t: reading.Seconds
    type: str
    input: reading.Count | None = msgspec.field(default=None, name="in")
    output: reading.Count | None = msgspec.field(default=None, name="out")
    api_time: reading.Seconds | None = None
    hash_ids: list[reading.BlockId] | None = None
    requests: list[_Request] | None = None


class _File(msgspec.Struct):
    block_size: int
    requests: list[_Request]
    hash_id_scope: str = LOCAL


@dataclass(slots=True)
class _Conversations:
    """The conversations of all files, as they are read."""

    idle_cap_ns: int | None
    start_ratio: tuple[float, float] | None
    found: reading.Gathered = field(default_factory=reading.Gathered)
    block_tokens: int = 0
    count: int = 0
    """Of conversations and sub-agents."""
    subagents: int = 0
    out_of_order: int = 0
    warmups: int = 0
    left_out: int = 0

    def enter(
        self, file: _File, scope: int | None, start_ns: int, draw: float, fault: _Fault
    ) -> None:
        """Append a conversation that starts then, its sub-agents after it.

        With `scope` None its ids are of all files.

        Of one with a start ratio, `draw` says which moment of it is the start.
        """
        if file.block_size <= 0:
            raise fault(f"{file.block_size} must be > 0 tokens", column="block_size")
        if file.hash_id_scope not in (LOCAL, GLOBAL):
            raise fault(
                f"{file.hash_id_scope!r} is not {LOCAL} or {GLOBAL}", column="hash_id_scope"
            )
        self.block_tokens = self.block_tokens or file.block_size
        if file.block_size != self.block_tokens:
            raise fault(f"blocks of {file.block_size} tokens, but {self.block_tokens} before")
        calls = list(self._calls(file.requests, fault))
        if not calls:
            return
        began = np.array(
            [min(round(t * NS_PER_S), reading.MAX_NS) for _, t, _, _ in calls], dtype=np.int64
        )
        ended: reading.Ints = began + np.array(
            [round((one.api_time or 0) * NS_PER_S) for one, *_ in calls], dtype=np.int64
        )
        if self.idle_cap_ns is not None:
            order = np.argsort(began, kind="stable")
            idle = began[order][1:] - np.maximum.accumulate(ended[order])[:-1]
            shift = np.cumsum(np.maximum(0, idle - self.idle_cap_ns), dtype=np.int64)
            shift = np.concatenate([np.zeros(1, dtype=np.int64), shift])
            began[order], ended[order] = began[order] - shift, ended[order] - shift
        is_kept = np.ones(len(calls), dtype=bool)
        if self.start_ratio is not None:
            began, ended, is_kept = self._from_the_middle(
                began, ended, np.array([call[2] for call in calls]), draw
            )
        for (request, _, session, turn), at_ns, end_ns, kept in zip(
            calls, began.tolist(), ended.tolist(), is_kept, strict=True
        ):
            if kept:
                chain = ((scope, block) for block in request.hash_ids or ())
                tokens = request.input or 0, request.output or 0
                self.found.add(start_ns + at_ns, *tokens, chain, session, start_ns + end_ns, turn)

    def _calls(
        self, requests: list[_Request], fault: _Fault
    ) -> Iterator[tuple[_Request, float, int, int]]:
        """Yield a conversation's requests with their times, session and turn, then its sub-agents'."""
        # A sub-agent's times are from its own start, unless all are past where its conversation
        # starts it.
        agents = [request for request in requests if request.type == SUBAGENT]
        is_own_clock = any(inner.t < agent.t for agent in agents for inner in agent.requests or ())
        left = [(requests, 0.0, "")]
        while left:
            asked, start, where = left.pop(0)
            session, turn, latest, nested = self.count, 0, 0.0, []
            self.count += 1
            for number, request in enumerate(asked):
                place = f"{where}requests[{number}]"
                if request.type == SUBAGENT:
                    nested.append(
                        (request.requests or [], start + request.t * is_own_clock, f"{place}.")
                    )
                    continue
                if request.input is None or request.output is None or request.hash_ids is None:
                    raise fault("a request needs in, out and hash_ids", column=place)
                ids, (whole, partial) = (
                    len(request.hash_ids),
                    divmod(request.input, self.block_tokens),
                )
                if ids not in (whole, whole + (partial > 0)):
                    why = (
                        f"{ids} ids, but {request.input} input tokens in blocks of"
                        f" {self.block_tokens}"
                    )
                    raise fault(f"{why} make {whole} whole blocks", column=f"{place}.hash_ids")
                self.out_of_order += request.t < latest
                latest = request.t
                yield request, start + request.t, session, turn
                turn += 1
            self.subagents += len(nested)
            left[:0] = nested

    def _from_the_middle(
        self, began: reading.Ints, ended: reading.Ints, sessions: reading.Ints, draw: float
    ) -> tuple[reading.Ints, reading.Ints, Any]:
        """Return times from a moment of the conversation on, and which requests are left.

        Those from then on are, and of each session that has any the last one before, which warms
        the caches up.
        """
        least, most = self.start_ratio or (0.0, 0.0)
        first, last = int(began.min()), int(began.max())
        moment = first + round((least + draw * (most - least)) * (last - first))
        is_after = began >= moment
        is_kept, lead = is_after.copy(), moment - began
        for session in np.unique(sessions[is_after]):
            before = np.flatnonzero((sessions == session) & ~is_after)
            if len(before):
                is_kept[before[np.argmax(began[before])]] = True
        cap = reading.MAX_NS if self.idle_cap_ns is None else self.idle_cap_ns
        # Before it a warm-up is no earlier than the cap, and what comes first after it no later.
        shift = (
            np.where(
                is_after, np.maximum(0, -lead[is_after].max() - cap), np.minimum(0, cap - lead)
            )
            + moment
        )
        self.warmups += int((is_kept & ~is_after).sum())
        self.left_out += int((~is_kept).sum())
        return began - shift, ended - shift, is_kept

    def notes(self, rate_per_s: float, scopes: Counter[str]) -> list[str]:
        """Return what is to be said of them.

        How many have ids of which scope, and how they were placed in time.
        """
        drawn = (
            f"they are drawn, Poisson at {rate_per_s:g} a second"
            if rate_per_s
            else "all start at 0"
        )
        notes = [f"the source does not say when its {scopes.total()} conversations start: {drawn}"]
        if LOCAL in scopes:
            notes.append(
                "block ids are local to their file: nothing is shared between conversations"
            )
        apart = "are sessions of their own, from where they start, with shared ids"
        notes += reading.counted((self.subagents, f"sub-agents {apart}"))
        if self.idle_cap_ns is not None:
            notes.append(
                "idle time of conversations (no request in progress) is cut to"
                f" {format_duration(self.idle_cap_ns)}"
            )
        if self.start_ratio is not None:
            least, most = self.start_ratio
            notes.append(
                f"conversations begin at a moment drawn from {least:g} to {most:g} of their span:"
                f" {self.left_out} requests before it are left out, {self.warmups} warm the"
                " caches up"
            )
        return [*notes, *reading.backwards_notes(self.out_of_order)]


# Long: its options, and what each is said to do.
@reading.source(
    lambda start: (
        start.text.startswith(b"{")
        and b'"block_size"' in start.text
        and b'"requests"' in start.text
    )
)
def agentic(
    path: Path,
    rng: np.random.Generator,
    *,
    conversation_rate_per_s: float = 0.0,
    idle_cap_ns: int | None = None,
    start_ratio: tuple[float, float] | None = None,
    kind: str = "agentic",
) -> reading.Requests:
    """Return the requests of the conversations at `path`.

    A JSON file, all `*.json` of a directory, or JSON lines.

    The files do not say when conversations start: all at 0, or with a rate, one after the other as
    `rng` draws (Poisson). Ids of different files are kept apart unless a file says that its ids are
    global. With `idle_cap_ns` no conversation is idle for longer; with `start_ratio` each begins at
    a moment drawn between these shares of its span. TraceError if a file is not such an object, its
    ids do not fit its lengths, or block sizes differ.

    Agentic coding conversations (kv-cache-tester, the editions cc-traces-weka): one a file, or a
    line, ids of 64 tokens. Each conversation has a clock and, mostly, ids of its own; sub-agents,
    nested in it, share its ids.
    """
    if not 0 <= conversation_rate_per_s < math.inf:
        raise ConfigError(f"conversation rate(={conversation_rate_per_s}) must be >= 0 a second")
    if start_ratio is not None and not 0 <= start_ratio[0] <= start_ratio[1] <= 1:
        raise ConfigError(
            f"start ratio(={start_ratio[0]:g}-{start_ratio[1]:g}) must be from 0 to 1, such as"
            " 0.25-0.75"
        )
    paths = reading.files_of(path, "*.json")
    conversations, scopes, start = _Conversations(idle_cap_ns, start_ratio), Counter[str](), 0.0
    is_lines = ".jsonl" in path.suffixes
    files = (
        reading.JsonLines(path, _File)
        if is_lines
        else ((None, read_json(one, _File)) for one in paths)
    )
    for number, (row, file) in enumerate(files):
        if number and conversation_rate_per_s:
            start += float(np.rint(rng.exponential(NS_PER_S / conversation_rate_per_s)))
        if start > reading.MAX_NS:
            raise ConfigError(
                f"conversation rate(={conversation_rate_per_s}) is too low: they outlast the clock"
            )
        scopes[file.hash_id_scope] += 1
        draw = float(rng.random()) if start_ratio else 0.0
        place = None if file.hash_id_scope == GLOBAL else number
        fault = partial(TraceError, path=path if is_lines else paths[number], row=row)
        conversations.enter(file, place, int(start), draw, fault)
    notes = conversations.notes(conversation_rate_per_s, scopes)
    facts = {
        "files": [p.name for p in paths],
        "conversation_rate_per_s": conversation_rate_per_s,
        "conversations": scopes.total(),
        "subagents": conversations.subagents,
        "out_of_order": conversations.out_of_order,
        "idle_cap_ns": idle_cap_ns,
        "start_ratio": start_ratio,
    }
    return conversations.found.requests(
        kind, path, reading.sha256_of(*paths), conversations.block_tokens, notes, **facts
    )


agentx = reading.source(lambda _: False)(
    partial(agentic.read, idle_cap_ns=10 * NS_PER_S, start_ratio=(0.0, 1.0), kind="agentx")
)
"""The same by the rules of SemiAnalysis' AgentX (AIPerf's inferencex-agentx-mvp).

Idle cap 10 s, start ratio 0 to 1.
"""


class _Event(msgspec.Struct):
    event_type: str
    timestamp: str | None = None


class _Round(msgspec.Struct):
    session_id: str
    provider: str = "unknown"
    prefix_tokens: reading.Count | None = None
    newly_append_tokens: reading.Count | None = None
    output_tokens: reading.Count | None = None
    timing_events: list[_Event] = []


ASKING_EVENTS = ("user_message", "tool_result")


@reading.source(
    lambda start: start.is_json_with("session_id", "round_index", "newly_append_tokens")
)
def tracelab(path: Path, *, block_tokens: int = 512) -> reading.Requests:
    """Return the rounds of the file at `path` as requests.

    Each comes with the last thing that it was asked.

    A prompt begins with the whole prompt before it in its session; where it is shorter than that,
    only with what the provider found in its cache (`prefix_tokens`). So a miss of the provider's is
    none here. TraceError if a line is no such round, or a time of it is none.

    TraceLab's rounds of coding agents (University of Washington), a round a line: sessions,
    lengths, and the times of what a round was asked and answered; no text, and no hashes.
    """
    lines = reading.JsonLines(path, _Round)
    rounds: list[tuple[int, int, str, int, int, int]] = []
    newest: dict[str, tuple[int, int]] = {}
    appended, fresh, left = Counter[str](), Counter[str](), Counter[str]()
    for number, line in lines:
        prefix, added, output = (
            line.prefix_tokens or 0,
            line.newly_append_tokens or 0,
            line.output_tokens or 0,
        )
        # TraceLab's own figure: what a round adds to the context, less the answer before it.
        trigger = line.timing_events[0].event_type if line.timing_events else ""
        if line.session_id in newest and trigger in ASKING_EVENTS:
            before, answered = newest[line.session_id]
            appended[line.provider] += added
            fresh[line.provider] += max(0, prefix + added - before) - answered
        newest[line.session_id] = prefix + added, output
        times = [
            (
                reading.wall_ns(event.timestamp, lines, number, f"timing_events[{at}].timestamp"),
                event.event_type,
            )
            for at, event in enumerate(line.timing_events)
            if event.timestamp
        ]
        if not times or not prefix + added:
            left["without times" if not times else "without input tokens"] += 1
            continue
        asked = max((ns for ns, kind in times if kind in ASKING_EVENTS), default=min(times)[0])
        rounds.append(
            (asked, max(max(times)[0], asked), line.session_id, prefix, prefix + added, output)
        )
    found, known, shorter, first, free = (
        reading.Gathered(has_numbers=True),
        dict[str, tuple[int, list[int]]](),
        0,
        0,
        0,
    )
    for asked, answered, session, prefix, prompt, output in sorted(rounds, key=itemgetter(0)):
        before, chain = known.get(session, (0, []))
        first += 0 if session in known else prefix
        shorter += prompt < before
        kept = min(before if prompt >= before else min(prefix, prompt), before) // block_tokens
        free, fresh_id = free + prompt // block_tokens - kept, free
        known[session] = prompt, [*chain[:kept], *range(fresh_id, free)]
        found.add(asked, prompt, output, known[session][1], session, answered)
    same = (
        "a prompt begins with the whole prompt before it of its session, in blocks of"
        f" {block_tokens} tokens"
    )
    notes = [f"the source has no block ids: {same}"]
    notes += reading.counted(
        (shorter, "prompts are shorter than that: they begin with what the provider had cached")
    )
    notes.append(
        f"of first prompts the provider had {first} tokens cached, by other sessions: which is not"
        " said, so nothing is shared between sessions; sub-agents are sessions too"
    )
    notes += reading.counted(
        *((count, f"rounds {what} are left out") for what, count in sorted(left.items()))
    )
    facts = {
        "appended_tokens": dict(appended),
        "fresh_tokens": dict(fresh),
        "rounds_left_out": left.total(),
    }
    return found.requests("tracelab", path, lines.sha256, block_tokens, notes, **facts)
