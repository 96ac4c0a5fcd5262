"""Recorded conversations: ShareGPT's, as text, and those of coding agents."""

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
from typing import cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvtrace.core.errors import ConfigError, ProbeUnavailable, TraceError, need_file
from kvtrace.core.files import decode_json, read_json
from kvtrace.core.parameters import named
from kvtrace.core.text import as_utf8
from kvtrace.core.units import NS_PER_S, format_duration
from kvtrace.requests.int_columns import Ints, column, offsets_of
from kvtrace.requests.json_lines import BlockId, Count, JsonLines, Seconds, wall_ns
from kvtrace.requests.notes import backwards_notes, counted
from kvtrace.requests.request_collector import RequestCollector
from kvtrace.requests.requests import MAX_NS, MAX_TOKENS, Requests, origin_of, without_blocks
from kvtrace.requests.source_files import files_of, sha256_of, source

ENCODING = "cl100k_base"
CHARACTERS_PER_TOKEN = 4
REQUEST_RATE_PER_S = 1.0
LIVE_CONVERSATIONS = 64
ASKING = ("human", "user")
ANSWERING = ("gpt", "assistant", "chatgpt", "bing", "bard")
CONTEXT = ("system", "tool", "function", "observation")


class Tokenizer(StrEnum):
    """The method to count tokens."""

    AUTO = "auto"
    TIKTOKEN = "tiktoken"
    CHARACTERS = "characters"


def encoder(tokenizer: str) -> tuple[Callable[[str], Sequence[object]], int, str]:
    """Return a function from text to units, the units of a token, and a description for notes.

    ConfigError for an unknown tokenizer; ProbeUnavailable if `tiktoken` was requested but is
    unavailable; `auto` falls back to characters.
    """
    if tokenizer not in tuple(Tokenizer):
        raise ConfigError(f"unknown tokenizer {tokenizer!r}; use {', '.join(Tokenizer)}")
    if tokenizer != Tokenizer.CHARACTERS:
        try:
            encoding = importlib.import_module("tiktoken").get_encoding(ENCODING)
        except (ImportError, OSError) as error:
            # OSError: tiktoken downloads its vocabulary once, which may fail.
            if tokenizer == Tokenizer.TIKTOKEN:
                raise ProbeUnavailable(
                    f"tiktoken is not available ({error}); pip install tiktoken, or"
                    f" {named('tokenizer')} characters"
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
    "empty_conversations": "conversations without a question and an answer were omitted",
    "unanswered": "last questions have no answer and were omitted",
    "unasked": "answers have no question before them: they count as history, not as requests",
    "unknown_speakers": "messages of unknown speakers were assumed to be questions",
}


@source(lambda start: start.text.startswith(b"[") and b'"conversations"' in start.text)
def sharegpt(
    path: Path,
    rng: np.random.Generator,
    *,
    request_rate_per_s: float = REQUEST_RATE_PER_S,
    live_conversations: int = LIVE_CONVERSATIONS,
    max_conversations: int | None = None,
    tokenizer: str = "auto",
) -> Requests:
    """Return the requests of the ShareGPT JSON array at `path`, one an answer, at random times.

    Arrivals are a Poisson process of `request_rate_per_s`. Each is the next turn of a random one of
    `live_conversations`; a finished conversation is replaced by the next of the file. TraceError if
    the file is not such an array, or no conversation has a question and an answer; ConfigError for
    an invalid rate or count.

    ShareGPT JSON, an array of conversations as text. It has no times and no token counts: both are
    generated, with a note.
    """
    if not 0 < request_rate_per_s < math.inf:
        raise ConfigError(f"request rate(={request_rate_per_s}) must be > 0 a second")
    if live_conversations < 1 or (max_conversations is not None and max_conversations < 1):
        raise ConfigError("conversations: at least 1")
    encode, per_token, tokenizer_name = encoder(tokenizer)
    oddities = Counter[str]()
    inputs, outputs, lengths = _read_turns(
        path, lambda text: -(-len(encode(text)) // per_token), max_conversations, oddities
    )
    if not inputs:
        raise TraceError("no conversation has a question and an answer", path=path)
    order, sessions, places = _interleave(column(lengths), live_conversations, rng)
    gaps = rng.exponential(NS_PER_S / request_rate_per_s, size=len(order))
    arrivals = np.cumsum(np.rint(gaps))
    if arrivals[-1] > MAX_NS:
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
        **{name: oddities[name] for name in _ODDITIES},
    }
    origin = origin_of("sharegpt", path, sha256_of(path), len(order), 0, **facts)
    tokens = column(inputs)[order], column(outputs)[order]
    times = (
        f"Poisson at {request_rate_per_s:g} a second over {live_conversations} conversations at a"
        " time"
    )
    notes = [
        f"the source has no times: they are sampled, {times}",
        f"the source has no token counts: they are {tokenizer_name}",
        "the source has no block ids: prompts share a prefix within their conversation only",
        *counted(*((oddities[name], note) for name, note in _ODDITIES.items())),
    ]
    return without_blocks(
        arrivals - arrivals[0], *tokens, origin, tuple(notes), session_id=sessions, turn=places
    )


def _read_turns(
    path: Path, count: Callable[[str], int], limit: int | None, oddities: Counter[str]
) -> tuple[array[int], array[int], array[int]]:
    """Return the tokens of prompts and answers, one turn an answer, and the turns of conversations.

    A prompt carries all messages before it. `oddities` counts messages that make no turn, by the
    names in _ODDITIES. Conversations without turns are omitted.
    """
    need_file(path)
    if path.stat().st_size == 0:
        raise TraceError("empty", path=path)
    decoder = msgspec.json.Decoder(_Conversation)
    inputs, outputs, lengths = (array("q") for _ in range(3))
    with path.open("rb") as file:
        # A memory map keeps only the pages in use in memory.
        text: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if as_utf8(text[:4]) != text[:4]:
        text = as_utf8(text[:])
    conversations = decode_json(
        cast("bytes", text), list[msgspec.Raw], path, misfit="not a JSON array of conversations: {}"
    )
    for row, conversation in enumerate(conversations[:limit]):
        history_tokens, turns_before, has_question = 0, len(inputs), False
        for message in decode_json(conversation, decoder, path, row=row).conversations:
            tokens = count(message.value)
            if message.speaker not in ANSWERING:
                has_question = has_question or message.speaker not in CONTEXT
                oddities["unknown_speakers"] += message.speaker not in (*ASKING, *CONTEXT)
            elif has_question:
                inputs.append(history_tokens)
                outputs.append(tokens)
                has_question = False
            else:
                oddities["unasked"] += 1
            history_tokens += tokens
        oddities["unanswered"] += has_question
        if len(inputs) > turns_before:
            lengths.append(len(inputs) - turns_before)
        else:
            oddities["empty_conversations"] += 1
        if inputs and inputs[-1] > MAX_TOKENS:
            raise TraceError(f"a prompt of more than {MAX_TOKENS} tokens", path=path, row=row)
    return inputs, outputs, lengths


def _interleave(lengths: Ints, live: int, rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Return each request's turn (numbered over the file), conversation, and turn within that.

    They are in order of arrival.
    """
    total = int(lengths.sum())
    firsts = offsets_of(lengths)[:-1]
    draws = rng.random(total)
    live_conversations = list(range(min(live, len(lengths))))
    next_conversation = len(live_conversations)
    turns_taken = [0] * len(lengths)
    sessions, places = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    for i in range(total):
        slot = int(draws[i] * len(live_conversations))
        session = live_conversations[slot]
        sessions[i], places[i] = session, turns_taken[session]
        turns_taken[session] += 1
        if turns_taken[session] == lengths[session]:
            if next_conversation < len(lengths):
                live_conversations[slot] = next_conversation
                next_conversation += 1
            else:
                live_conversations[slot] = live_conversations[-1]
                live_conversations.pop()
    return firsts[sessions] + places, sessions, places


_Fault = Callable[..., TraceError]
LOCAL, GLOBAL = "local", "global"
SUBAGENT = "subagent"


class _Request(msgspec.Struct):
    t: Seconds
    type: str
    input: Count | None = msgspec.field(default=None, name="in")
    output: Count | None = msgspec.field(default=None, name="out")
    api_time: Seconds | None = None
    hash_ids: list[BlockId] | None = None
    requests: list[_Request] | None = None


class _File(msgspec.Struct):
    block_size: int
    requests: list[_Request]
    hash_id_scope: str = LOCAL


@dataclass(slots=True)
class _Conversations:
    """Collects the conversations of all files."""

    idle_cap_ns: int | None
    start_ratio: tuple[float, float] | None
    gathered: RequestCollector = field(default_factory=RequestCollector)
    block_tokens: int = 0
    count: int = 0
    """Number of conversations and sub-agents."""
    subagents: int = 0
    out_of_order: int = 0
    warmups: int = 0
    left_out: int = 0

    def enter(
        self, file: _File, scope: int | None, start_ns: int, start_draw: float, fault: _Fault
    ) -> None:
        """Append a conversation that starts at `start_ns`, followed by its sub-agents.

        With `scope` None, its ids are shared by all files. `start_draw` (0 to 1) chooses the start
        within the start ratio.
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
        began_ns = np.array(
            [min(round(t * NS_PER_S), MAX_NS) for _, t, _, _ in calls], dtype=np.int64
        )
        ended_ns: Ints = began_ns + np.array(
            [round((call.api_time or 0) * NS_PER_S) for call, *_ in calls], dtype=np.int64
        )
        if self.idle_cap_ns is not None:
            order = np.argsort(began_ns, kind="stable")
            idle = began_ns[order][1:] - np.maximum.accumulate(ended_ns[order])[:-1]
            shift = np.cumsum(np.maximum(0, idle - self.idle_cap_ns), dtype=np.int64)
            shift = np.concatenate([np.zeros(1, dtype=np.int64), shift])
            began_ns[order], ended_ns[order] = began_ns[order] - shift, ended_ns[order] - shift
        is_kept: NDArray[np.bool_] = np.ones(len(calls), dtype=bool)
        if self.start_ratio is not None:
            began_ns, ended_ns, is_kept = self._from_the_middle(
                began_ns, ended_ns, np.array([call[2] for call in calls]), start_draw
            )
        for (request, _, session, turn), at_ns, end_ns, keeps_request in zip(
            calls, began_ns.tolist(), ended_ns.tolist(), is_kept, strict=True
        ):
            if keeps_request:
                chain = ((scope, block) for block in request.hash_ids or ())
                tokens = request.input or 0, request.output or 0
                self.gathered.add(
                    start_ns + at_ns, *tokens, chain, session, start_ns + end_ns, turn
                )

    def _calls(
        self, requests: list[_Request], fault: _Fault
    ) -> Iterator[tuple[_Request, float, int, int]]:
        """Yield the requests of a conversation, then of its sub-agents, with time, session and turn."""
        # A sub-agent's times count from its own start, unless all are after its start in the
        # conversation.
        agents = [request for request in requests if request.type == SUBAGENT]
        is_own_clock = any(inner.t < agent.t for agent in agents for inner in agent.requests or ())
        pending = [(requests, 0.0, "")]
        while pending:
            request_list, start, prefix = pending.pop(0)
            session, turn, latest, nested = self.count, 0, 0.0, []
            self.count += 1
            for number, request in enumerate(request_list):
                path_text = f"{prefix}requests[{number}]"
                if request.type == SUBAGENT:
                    nested.append(
                        (request.requests or [], start + request.t * is_own_clock, f"{path_text}.")
                    )
                    continue
                if request.input is None or request.output is None or request.hash_ids is None:
                    raise fault("a request needs in, out and hash_ids", column=path_text)
                ids, (full_blocks, partial) = (
                    len(request.hash_ids),
                    divmod(request.input, self.block_tokens),
                )
                if ids not in (full_blocks, full_blocks + (partial > 0)):
                    problem = (
                        f"{ids} ids, but {request.input} input tokens in blocks of"
                        f" {self.block_tokens}"
                    )
                    raise fault(
                        f"{problem} make {full_blocks} whole blocks", column=f"{path_text}.hash_ids"
                    )
                self.out_of_order += request.t < latest
                latest = request.t
                yield request, start + request.t, session, turn
                turn += 1
            self.subagents += len(nested)
            pending[:0] = nested

    def _from_the_middle(
        self,
        began_ns: Ints,
        ended_ns: Ints,
        sessions: Ints,
        start_draw: float,
    ) -> tuple[Ints, Ints, NDArray[np.bool_]]:
        """Return times from a moment within the conversation, and a mask of the remaining requests.

        They are the requests from that moment on, and the last one before it in each of their
        sessions, which warms up the caches.
        """
        low, high = self.start_ratio or (0.0, 0.0)
        first, last = int(began_ns.min()), int(began_ns.max())
        moment = first + round((low + start_draw * (high - low)) * (last - first))
        is_after = began_ns >= moment
        is_kept, lead_ns = is_after.copy(), moment - began_ns
        for session in np.unique(sessions[is_after]):
            before = np.flatnonzero((sessions == session) & ~is_after)
            if len(before):
                is_kept[before[np.argmax(began_ns[before])]] = True
        cap = MAX_NS if self.idle_cap_ns is None else self.idle_cap_ns
        # A warm-up is at most the idle cap before the moment, the next request at most after it.
        shift = (
            np.where(
                is_after,
                np.maximum(0, -lead_ns[is_after].max() - cap),
                np.minimum(0, cap - lead_ns),
            )
            + moment
        )
        self.warmups += int((is_kept & ~is_after).sum())
        self.left_out += int((~is_kept).sum())
        return began_ns - shift, ended_ns - shift, is_kept

    def notes(self, rate_per_s: float, scopes: Counter[str]) -> list[str]:
        """Return notes on the scope of ids, and on times."""
        start_text = (
            f"starts are sampled, Poisson at {rate_per_s:g} a second"
            if rate_per_s
            else "all start at 0"
        )
        notes = [
            f"the source has no start times of its {scopes.total()} conversations: {start_text}"
        ]
        if LOCAL in scopes:
            notes.append(
                "block ids are local to their file: nothing is shared between conversations"
            )
        description = "are separate sessions with shared ids"
        notes += counted((self.subagents, f"sub-agents {description}"))
        if self.idle_cap_ns is not None:
            notes.append(
                "idle time of conversations (no request in progress) is cut to"
                f" {format_duration(self.idle_cap_ns)}"
            )
        if self.start_ratio is not None:
            low, high = self.start_ratio
            notes.append(
                f"conversations begin at a random moment within {low:g} to {high:g} of their span:"
                f" {self.left_out} requests before it are omitted, {self.warmups} warm up the"
                " caches"
            )
        return [*notes, *backwards_notes(self.out_of_order)]


# Long, because of its options and their description.
@source(
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
) -> Requests:
    """Return the requests of the conversations at `path`.

    A JSON file, all `*.json` of a directory, or JSON lines.

    The files have no start times of conversations: all start at 0, or with a rate as a Poisson
    process. Ids of different files are distinct unless a file declares them global. `idle_cap_ns`
    limits idle times; with `start_ratio`, each conversation begins at a random moment between these
    shares of its span. TraceError if a file is not such an object, its ids do not fit its lengths,
    or block sizes differ.

    Agentic coding conversations (kv-cache-tester, the editions cc-traces-weka): one a file, or a
    line, ids of 64 tokens. Each conversation has its own clock and, mostly, its own ids; nested
    sub-agents share them.
    """
    if not 0 <= conversation_rate_per_s < math.inf:
        raise ConfigError(f"conversation rate(={conversation_rate_per_s}) must be >= 0 a second")
    if start_ratio is not None and not 0 <= start_ratio[0] <= start_ratio[1] <= 1:
        raise ConfigError(
            f"start ratio(={start_ratio[0]:g}-{start_ratio[1]:g}) must be from 0 to 1, such as"
            " 0.25-0.75"
        )
    paths = files_of(path, "*.json")
    conversations, scopes, start = _Conversations(idle_cap_ns, start_ratio), Counter[str](), 0.0
    is_lines = ".jsonl" in path.suffixes
    files = (
        JsonLines(path, _File)
        if is_lines
        else ((None, read_json(file_path, _File)) for file_path in paths)
    )
    for number, (row, file) in enumerate(files):
        if number and conversation_rate_per_s:
            start += float(np.rint(rng.exponential(NS_PER_S / conversation_rate_per_s)))
        if start > MAX_NS:
            raise ConfigError(
                f"conversation rate(={conversation_rate_per_s}) is too low: they outlast the clock"
            )
        scopes[file.hash_id_scope] += 1
        start_draw = float(rng.random()) if start_ratio else 0.0
        scope = None if file.hash_id_scope == GLOBAL else number
        fault = partial(TraceError, path=path if is_lines else paths[number], row=row)
        conversations.enter(file, scope, int(start), start_draw, fault)
    notes = conversations.notes(conversation_rate_per_s, scopes)
    facts = {
        "files": [file_path.name for file_path in paths],
        "conversation_rate_per_s": conversation_rate_per_s,
        "conversations": scopes.total(),
        "subagents": conversations.subagents,
        "out_of_order": conversations.out_of_order,
        "idle_cap_ns": idle_cap_ns,
        "start_ratio": start_ratio,
    }
    return conversations.gathered.build_requests(
        kind, path, sha256_of(*paths), conversations.block_tokens, notes, **facts
    )


agentx = source(lambda _: False)(
    partial(agentic.read, idle_cap_ns=10 * NS_PER_S, start_ratio=(0.0, 1.0), kind="agentx")
)
"""The format `agentic` with the rules of SemiAnalysis' AgentX (AIPerf's inferencex-agentx-mvp).

Idle cap 10 s, start ratio 0 to 1.
"""


class _Event(msgspec.Struct):
    event_type: str
    timestamp: str | None = None


class _Round(msgspec.Struct):
    session_id: str
    provider: str = "unknown"
    prefix_tokens: Count | None = None
    newly_append_tokens: Count | None = None
    output_tokens: Count | None = None
    timing_events: list[_Event] = []


ASKING_EVENTS = ("user_message", "tool_result")


@source(lambda start: start.is_json_with("session_id", "round_index", "newly_append_tokens"))
def tracelab(path: Path, *, block_tokens: int = 512) -> Requests:
    """Return the rounds of the file at `path` as requests.

    A round arrives with the last event that triggered it.

    A prompt is assumed to begin with the whole previous prompt of its session; a shorter prompt
    begins with the tokens cached by the provider (`prefix_tokens`). So a miss of the provider's
    cache is no miss here. TraceError if a line is not a round, or has an invalid time.

    TraceLab's rounds of coding agents (University of Washington), one a line: sessions, lengths, and
    times of questions and answers; no text, and no hashes.
    """
    lines = JsonLines(path, _Round)
    rounds: list[tuple[int, int, str, int, int, int]] = []
    newest: dict[str, tuple[int, int]] = {}
    appended, fresh, omitted = Counter[str](), Counter[str](), Counter[str]()
    for number, line in lines:
        prefix, added, output = (
            line.prefix_tokens or 0,
            line.newly_append_tokens or 0,
            line.output_tokens or 0,
        )
        if prefix + added > MAX_TOKENS:
            raise lines.fault(
                f"{prefix} and {added} tokens are more than {MAX_TOKENS}",
                number,
                "newly_append_tokens",
            )
        # TraceLab's own figure: tokens that a round adds to the context, less the previous answer.
        trigger = line.timing_events[0].event_type if line.timing_events else ""
        if line.session_id in newest and trigger in ASKING_EVENTS:
            previous_tokens, answered = newest[line.session_id]
            appended[line.provider] += added
            fresh[line.provider] += max(0, prefix + added - previous_tokens) - answered
        newest[line.session_id] = prefix + added, output
        times = [
            (
                wall_ns(event.timestamp, lines, number, f"timing_events[{index}].timestamp"),
                event.event_type,
            )
            for index, event in enumerate(line.timing_events)
            if event.timestamp
        ]
        if not times or not prefix + added:
            omitted["without times" if not times else "without input tokens"] += 1
            continue
        asked_ns = max((ns for ns, kind in times if kind in ASKING_EVENTS), default=min(times)[0])
        rounds.append(
            (
                asked_ns,
                max(max(times)[0], asked_ns),
                line.session_id,
                prefix,
                prefix + added,
                output,
            )
        )
    gathered, history, shorter_prompts, cached_first, next_id = (
        RequestCollector(has_numbers=True),
        dict[str, tuple[int, list[int]]](),
        0,
        0,
        0,
    )
    for asked_ns, answered, session, prefix, prompt, output in sorted(rounds, key=itemgetter(0)):
        previous_tokens, chain = history.get(session, (0, []))
        cached_first += 0 if session in history else prefix
        shorter_prompts += prompt < previous_tokens
        kept_blocks = (
            min(
                previous_tokens if prompt >= previous_tokens else min(prefix, prompt),
                previous_tokens,
            )
            // block_tokens
        )
        next_id, first_new_id = next_id + prompt // block_tokens - kept_blocks, next_id
        history[session] = prompt, [*chain[:kept_blocks], *range(first_new_id, next_id)]
        gathered.add(asked_ns, prompt, output, history[session][1], session, answered)
    assumption = (
        "a prompt is assumed to begin with the previous prompt of its session, in blocks of"
        f" {block_tokens} tokens"
    )
    notes = [f"the source has no block ids: {assumption}"]
    notes += counted(
        (
            shorter_prompts,
            "prompts are shorter than that, and begin with the tokens cached by the provider",
        )
    )
    notes.append(
        f"the provider had {cached_first} tokens of first prompts cached, from unknown sessions, so"
        " nothing is shared between sessions here; sub-agents are sessions, too"
    )
    notes += counted(
        *((count, f"rounds {reason} are omitted") for reason, count in sorted(omitted.items()))
    )
    facts = {
        "appended_tokens": dict(appended),
        "fresh_tokens": dict(fresh),
        "rounds_left_out": omitted.total(),
    }
    return gathered.build_requests("tracelab", path, lines.sha256, block_tokens, notes, **facts)
