"""What serving engines log of their requests.

Dynamo, OpenTelemetry, LMCache's lookups, storage calls and chats.
"""

from __future__ import annotations

import ast
import hashlib
import math
import re
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from kvtrace.core.errors import TraceError, need_file
from kvtrace.core.files import decode_json, place_of
from kvtrace.core.units import NS_PER_MS, NS_PER_S, NS_PER_US
from kvtrace.requests import requests as reading
from kvtrace.requests.conversations import encoder

DYNAMO_SCHEMA = "dynamo.request.trace.v1"


class _Replay(msgspec.Struct):
    trace_block_size: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    input_length: reading.Count
    input_sequence_hashes: list[int]


class _Request(msgspec.Struct):
    request_received_ms: reading.Milliseconds
    total_time_ms: reading.Milliseconds | None = None
    output_tokens: reading.Count | None = None
    replay: _Replay | None = None


class _Agent(msgspec.Struct):
    session_id: str | None = None


class _DynamoLine(msgspec.Struct):
    event_type: str
    schema: str | None = None
    request: _Request | None = None
    agent_context: _Agent | None = None


@reading.source(
    lambda start: start.text.startswith(b"{") and f'"{DYNAMO_SCHEMA}"'.encode() in start.text
)
def dynamo(path: Path) -> reading.Requests:
    """Return the requests of the Dynamo trace at `path`, each a request_end.

    Arrivals are request_received_ms.

    TraceError if a line is not such an event, hashes do not fit a length, or block sizes differ.

    NVIDIA Dynamo's request trace (`dynamo.request.trace.v1`): an event a line, of which request_end
    is a request. Dynamo gives the hashes of whole prefixes where it traces for replay (`replay` in
    a request), and sessions of agents.
    """
    lines, found = reading.JsonLines(path, _DynamoLine, name_fields=True), reading.Gathered()
    others, unplaced, block_tokens = Counter[str](), 0, 0
    for number, line in lines:
        if line.event_type != "request_end" or line.request is None:
            others[line.event_type] += 1
            continue
        request, replay = line.request, line.request.replay
        if line.schema != DYNAMO_SCHEMA:
            raise lines.fault(f"{line.schema!r} is not {DYNAMO_SCHEMA}", number, "schema")
        if replay is None:
            unplaced += 1
            continue
        block_tokens = block_tokens or replay.trace_block_size
        if replay.trace_block_size != block_tokens:
            why = f"{replay.trace_block_size}, but blocks are of {block_tokens} tokens"
            raise lines.fault(why, number, "request.replay.trace_block_size")
        hashes, whole = len(replay.input_sequence_hashes), replay.input_length // block_tokens
        if hashes not in (whole, -(-replay.input_length // block_tokens)):
            why = (
                f"{hashes} hashes, but {replay.input_length} tokens in blocks of {block_tokens}"
                f" make {whole} whole ones"
            )
            raise lines.fault(why, number, "request.replay.input_sequence_hashes")
        session = line.agent_context.session_id if line.agent_context else None
        time_ns = round(request.request_received_ms * NS_PER_MS)
        answered_ns = time_ns + round((request.total_time_ms or 0) * NS_PER_MS)
        tokens = replay.input_length, request.output_tokens or 0
        found.add(time_ns, *tokens, replay.input_sequence_hashes, session, answered_ns)
    if not found and unplaced:
        why = (
            f"none of its {unplaced} requests says its prompt's blocks: Dynamo has to trace for"
            " replay"
        )
        raise TraceError(why, path=path)
    notes = reading.counted(
        (unplaced, "requests without `replay`, whose prompts are unknown, are left out")
    )
    if others:
        named = ", ".join(f"{count} {name}" for name, count in sorted(others.items()))
        notes.append(
            f"events that are not used: {named}; so no wait of an agent for its tools or sub-agents"
        )
    notes += reading.unused_notes(lines.fields, _DynamoLine)
    return found.requests(
        "dynamo", path, lines.sha256, block_tokens, notes, requests_left_out=unplaced
    )


INPUT, OUTPUT = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
OLD_NAMES = {"gen_ai.usage.prompt_tokens": INPUT, "gen_ai.usage.completion_tokens": OUTPUT}
"""As the conventions called them before version 1.27, and vLLM still does."""
CACHED, CONVERSATION = "gen_ai.usage.cache_read.input_tokens", "gen_ai.conversation.id"


class _Attribute(msgspec.Struct):
    key: str
    value: dict[str, Any] = {}


class _Span(msgspec.Struct, rename="camel"):
    start_time_unix_nano: str | int = 0
    end_time_unix_nano: str | int = 0
    attributes: list[_Attribute] = []


class _Scope(msgspec.Struct):
    spans: list[_Span] = []


class _Resource(msgspec.Struct, rename="camel"):
    scope_spans: list[_Scope] = []


class _OtelLine(msgspec.Struct, rename="camel"):
    resource_spans: list[_Resource] = []


@reading.source(lambda start: start.is_json_with("resourceSpans"))
def otel(path: Path) -> reading.Requests:
    """Return a request for each span of the file at `path` that says how many input tokens it had.

    TraceError if a line is not OTLP JSON, or a span's time or tokens are no count.

    OpenTelemetry spans of generative AI, as lines of OTLP JSON: when requests came and how long
    they were. Collectors write such lines (the file exporter). Spans say no more of a prompt than
    its length, so nothing is reused but within a conversation.
    """
    lines, found, others, cached = reading.JsonLines(path, _OtelLine), reading.Gathered(), 0, 0
    for number, line in lines:
        for span in (
            s for r in line.resource_spans for scope in r.scope_spans for s in scope.spans
        ):
            of = {
                OLD_NAMES.get(a.key, a.key): next(iter(a.value.values()), None)
                for a in span.attributes
            }
            if INPUT not in of:
                others += 1
                continue
            asked, answered = (
                _count(of.get(name), name, lines, number) for name in (INPUT, OUTPUT)
            )
            cached += _count(of.get(CACHED), CACHED, lines, number)
            time_ns = _count(
                span.start_time_unix_nano, "startTimeUnixNano", lines, number, 1, 2**63 - 1
            )
            end_ns = _count(
                span.end_time_unix_nano, "endTimeUnixNano", lines, number, most=2**63 - 1
            )
            session = of.get(CONVERSATION)
            name = None if session is None else str(session)
            found.add(time_ns, asked, answered, session=name, answered_ns=end_ns)
    if not found:
        raise TraceError(f"none of its {others} spans has {INPUT}", path=path)
    notes = [
        (
            "spans give lengths only: there are no block ids, and prompts share a prefix only within a"
            " conversation"
        )
    ]
    notes += reading.counted((others, f"spans without {INPUT} are left out"))
    if cached:
        notes.append(
            f"the {cached} input tokens that spans say were read from a cache are not used"
        )
    return found.requests("otel", path, lines.sha256, 0, notes, spans_left_out=others)


def _count(
    value: Any,
    name: str,
    lines: reading.JsonLines[Any],
    number: int,
    least: int = 0,
    most: int = reading.MAX_TOKENS,
) -> int:
    """Return `value`, which OTLP JSON writes as text or a number, as a count.

    A missing one is 0.
    """
    try:
        count = 0 if value is None else int(value)
    except (TypeError, ValueError):
        raise lines.fault(f"{value!r} is no count", number, name) from None
    if not least <= count <= most:
        raise lines.fault(f"{count} must be from {least} to {most}", number, name)
    return count


LOOKUP_FILES = "lookup_hashes_*.jsonl"

_Size = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class _Lookup(msgspec.Struct):
    timestamp: reading.Seconds
    chunk_size: _Size
    seq_len: reading.Count
    chunk_hashes: list[str]
    request_id: str = ""
    model_name: str = ""
    dtypes: list[str] = []
    shapes: list[list[_Size]] = []


@reading.source(lambda start: start.is_json_with("chunk_hashes", "seq_len"))
def lookup_log(path: Path) -> reading.Requests:
    """Return the requests of the log at `path`, or of all `lookup_hashes_*.jsonl` in that
    directory, by name.

    TraceError if a line is no such lookup, has more hashes than its prompt has full chunks, or is
    of another model or chunk size than those before it.

    LMCache's lookup log (`lookup_hashes_*.jsonl`): each prompt's chunk hashes, and the shape of
    their KV. LMCache's server writes it with `--lookup-hash-log-dir`: a line for each prompt that
    it looks up, with its full chunks.
    """
    paths = reading.files_of(path, LOOKUP_FILES)
    found, first, ids, repeated, unused = reading.Gathered(), None, set[str](), 0, set[str]()
    for one in paths:
        lines = reading.JsonLines(one, _Lookup, name_fields=True)
        for number, line in lines:
            first = first or line
            chunks, most = len(line.chunk_hashes), line.seq_len // line.chunk_size
            if chunks > most:
                why = (
                    f"{chunks} hashes, but {line.seq_len} tokens in chunks of {line.chunk_size}"
                    f" make {most} full ones"
                )
                raise lines.fault(why, number, "chunk_hashes")
            if len(set(line.chunk_hashes)) < chunks:
                raise lines.fault(
                    "a hash appears twice, but a hash names one whole prefix",
                    number,
                    "chunk_hashes",
                )
            for name in ("model_name", "chunk_size"):
                mine, of_first = getattr(line, name), getattr(first, name)
                if mine != of_first:
                    why = (
                        f"{mine!r} after {of_first!r}: one file may hold one model's requests;"
                        f" split it by {name}"
                    )
                    raise lines.fault(why, number, name)
            repeated += bool(line.request_id) and line.request_id in ids
            ids.add(line.request_id)
            found.add(round(line.timestamp * NS_PER_S), line.seq_len, 0, line.chunk_hashes)
        unused |= lines.fields
    if first is None:
        raise TraceError("holds no request", path=path)
    size_bytes = chunk_bytes(first.shapes, first.dtypes)
    model = model_of(first.model_name, size_bytes, first.chunk_size)
    notes = [
        "the log does not say how long answers are: output_tokens is 0, and nothing is decoded"
    ]
    notes += reading.counted(
        (repeated, "lookups are of a request that was looked up before: each is a request here")
    )
    notes += reading.unused_notes(unused, _Lookup)
    facts = {"files": [p.name for p in paths], "model": model, "repeated_lookups": repeated}
    return found.requests(
        "lmcache-lookup", path, reading.sha256_of(*paths), first.chunk_size, notes, **facts
    )


CHAT_FILES = "*.openai_chat.jsonl"


class _Chat(msgspec.Struct):
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    """In microseconds."""
    input: str
    output: str
    session_id: str | None = None


@reading.source(lambda start: start.is_json_with("timestamp", "input"))
def chats(path: Path, *, block_tokens: int = 16, tokenizer: str = "auto") -> reading.Requests:
    """Return the requests of the chats at `path`, or of all `*.openai_chat.jsonl` in that
    directory, by name.

    TraceError if a line is no such request; ConfigError if there is no such tokenizer.

    LMCache's traces of agents (`*.openai_chat.jsonl`): a request a line, its prompt and answer as
    text. They are in LMCache/lmcache-agent-trace on GitHub, one session a file, of which lines are
    not in the order of time.
    """
    paths = reading.files_of(path, CHAT_FILES)
    encode, per_token, words = encoder(tokenizer)
    found, each = reading.Gathered(), block_tokens * per_token
    for lines in (reading.JsonLines(one, _Chat) for one in paths):
        for number, line in lines:
            units, answer = encode(line.input), encode(line.output)
            inputs, outputs = (-(-len(text) // per_token) for text in (units, answer))
            if max(inputs, outputs) > reading.MAX_TOKENS:
                raise lines.fault(f"a text of more than {reading.MAX_TOKENS} tokens", number, None)
            found.add(
                line.timestamp * NS_PER_US, inputs, outputs, pieces(units, each), line.session_id
            )
    notes = [
        f"the source has no token counts: they are {words}",
        (
            f"the source has no block ids: {block_tokens} tokens of equal text behind equal text"
            " are one block"
        ),
    ]
    facts = {"files": [one.name for one in paths], "tokenizer": words}
    return found.requests(
        "lmcache-chat", path, reading.sha256_of(*paths), block_tokens, notes, **facts
    )


def pieces(units: Sequence[Any], each: int) -> Iterator[Sequence[Any]]:
    """Yield the whole pieces of `units` that have `each` of them.

    The names of blocks by what is in them.
    """
    return (units[at : at + each] for at in range(0, len(units) - each + 1, each))


_DAY_NS = 86_400 * NS_PER_S
_YEAR_NS = 365 * _DAY_NS
_QUOTED = r"""('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|None)"""
_IDS = r"_token_ids: (?:None|\[([0-9, ]*)\])"
_VLLM = re.compile(
    r"(\d\d-\d\d \d\d:\d\d:\d\d)[^]]*\] (?:Received request|Request|(Generated response)) (\S+?)"
    r"(?: \(streaming (?:complete|(delta))\))?(?: details)?: (.*)"
)
_VLLM_PROMPT = re.compile(rf"prompt: {_QUOTED}, (?:.*, )?prompt{_IDS}")
_VLLM_ANSWER = re.compile(rf"(?:output: {_QUOTED}, )?(?:output{_IDS}|finish_reason: )")


@reading.source(lambda start: b"Received request " in start.text and b"Params(" in start.text)
def vllm_log(path: Path, *, block_tokens: int = 16, tokenizer: str = "auto") -> reading.Requests:
    """Return the requests of the log at `path`, as `vllm serve --enable-log-requests` prints it.

    Prompts are in it with `VLLM_LOGGING_LEVEL=DEBUG`, or in releases of before; answers with
    `--enable-log-outputs`. TraceError if a line about a request is cut off or damaged, or no prompt
    is in the log; ConfigError if no such tokenizer.

    What vLLM prints of requests: their prompts by token ids or as text, and their answers. It names
    no sessions.
    """
    log, known, texts = _Log(path, object), dict[str, _Logged](), 0
    encode, per_token, words = encoder(tokenizer)

    def units_of(text: str, ids: str | None) -> tuple[Any, ...]:
        if ids is not None:
            return decode_json(f"[{ids}]".encode(), tuple[int, ...], path, row=number)
        units = encode(log.text(text, number) or "")
        return tuple(units[at : at + per_token] for at in range(0, len(units), per_token))

    for number, line in log:
        if (match := _VLLM.search(line)) is None or match[4]:
            continue
        when, answer, name, _, rest = match.groups()
        said = known.setdefault(name, _Logged(log.ns(when, number)))
        found = (_VLLM_ANSWER if answer else _VLLM_PROMPT).match(rest)
        if found is None and (answer or rest.startswith("prompt: ")):
            where = "output" if answer else "prompt"
            raise log.fault(f"its {where} is cut off, or the token ids of it", number, where)
        if answer and found is not None:
            said.answered_ns = log.ns(when, number)
            if found[2] is not None or said.output_tokens is None:
                said.output_tokens = len(units_of(found[1] or "None", found[2]))
        elif found is not None:
            said.units, texts = units_of(found[1], found[2]), texts + (found[2] is None)
            said.input_tokens = len(said.units)
    kept = [said for said in known.values() if said.units]
    if known and not kept:
        why = (
            "no prompt is in it: start vLLM with VLLM_LOGGING_LEVEL=DEBUG, beside"
            " --enable-log-requests"
        )
        raise TraceError(why, path=path)
    notes = [
        (
            "the log says neither year nor zone, and times of whole seconds; --max-log-len would have"
            " cut prompts"
        )
    ]
    notes += reading.counted(
        (texts, f"prompts are logged as text alone, whose tokens are {words}"),
        (len(known) - len(kept), "requests without their prompts are left out"),
        (
            sum(said.output_tokens is None for said in kept),
            "requests have no answer in the log: output_tokens is 0",
        ),
    )
    return log.requests("vllm-log", kept, block_tokens, notes)


_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?")
_NUMBER = re.compile(r"""['"](\w+)['"]: (-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)\b""")
_INPUT_IDS = re.compile(r"""\binput_ids(?:=|": )\[([0-9, ]*)\](?! \.\.\. )""")
_CONVERSATION = re.compile(rf"""conversation_id(?:=|": ){_QUOTED}""")
_LONGEST_S = 2.0**31


@reading.source(
    lambda start: b"Finish: obj=" in start.text or b'"event": "request.finished"' in start.text
)
def sglang_log(path: Path, *, block_tokens: int = 16) -> reading.Requests:
    """Return the requests of the log at `path`, as SGLang prints it with `--log-requests`, as text
    or as JSON.

    Each is a line that it finished, which says how long prompt and answer were, and when it came;
    with `--log-requests-level 3` also the token ids of the prompt. TraceError if such a line is cut
    off or damaged, or says neither when it came nor when it was written.

    What SGLang prints as requests finish: lengths and times; conversations where the client names
    them.
    """
    log, found, cached, cut = _Log(path, object), list[_Logged](), 0, 0
    for number, line in log:
        if "Finish: obj=" not in line and '"request.finished"' not in line:
            continue
        at = max(line.rfind("'meta_info': {"), line.rfind('"meta_info": {'))
        if at < 0 or not line.rstrip().endswith("}}"):
            raise log.fault("cut off within what it says of the request", number, "meta_info")
        meta = {"cached_tokens": 0.0} | {
            name: float(value) for name, value in _NUMBER.findall(line[at:])
        }
        for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
            if not 0 <= meta.get(name, -1) <= reading.MAX_TOKENS:
                raise log.fault(
                    f"{meta.get(name)} must be from 0 to {reading.MAX_TOKENS} tokens",
                    number,
                    f"meta_info.{name}",
                )
        tokens = int(meta["prompt_tokens"])
        given, named, when = (
            _INPUT_IDS.search(line, 0, at),
            _CONVERSATION.search(line, 0, at),
            _TIME.search(line),
        )
        units = (
            decode_json(f"[{given[1]}]".encode(), tuple[int, ...], path, row=number)
            if given
            else None
        )
        if units is not None and len(units) != tokens:
            raise log.fault(
                f"{len(units)} input_ids, but {tokens} prompt_tokens", number, "input_ids"
            )
        took_ns = round(min(max(0.0, meta.get("e2e_latency", 0.0)), _LONGEST_S) * NS_PER_S)
        if 0 < meta.get("request_received_ts", 0) < _LONGEST_S:
            asked_ns = round(meta["request_received_ts"] * NS_PER_S)
        elif when is None:
            raise log.fault(
                "neither request_received_ts nor the time of the line", number, "meta_info"
            )
        else:
            asked_ns = reading.wall_ns(when[0].replace(" ", "T"), log, number, "time") - took_ns
        cached, cut = (
            cached + int(meta["cached_tokens"]),
            cut + (units is None and "input_ids" in line[:at]),
        )
        session = log.text(named[1], number) if named else None
        found.append(
            _Logged(
                asked_ns, asked_ns + took_ns, units, tokens, int(meta["completion_tokens"]), session
            )
        )
    notes = reading.counted(
        (cut, "prompts are logged in part: their blocks are not known (--log-requests-level 3)")
    )
    if cached:
        notes.append(f"the {cached} prompt tokens that SGLang found in its own cache are not used")
    return log.requests("sglang-log", found, block_tokens, notes)


@dataclass(slots=True)
class _Logged:
    """What a server's log says of one request."""

    asked_ns: int
    answered_ns: int | None = None
    units: tuple[Any, ...] | None = None
    """Of the prompt, one a token: ids, or pieces of text; None if the log has neither."""
    input_tokens: int = 0
    output_tokens: int | None = None
    session: str | None = None


class _Log(reading.JsonLines[Any]):
    """The lines of a server's log, as text, and what they come to."""

    _is_leap, _last_ns = False, 0

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Yield each line and its number, from 1; what is no UTF-8 in it is replaced."""
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                self._digest.update(line)
                yield number, line.decode(errors="replace")

    def text(self, quoted: str, number: int) -> str | None:
        """Return the text, or None, that Python wrote as `quoted`."""
        try:
            found: str | None = ast.literal_eval(quoted)
        except (SyntaxError, ValueError):
            raise self.fault("no text as Python writes it", number, None) from None
        return found

    def ns(self, text: str, number: int) -> int:
        """Return the time of such as 12-31 23:59:59, without a year.

        They go on, with a 29 February if one is there.
        """
        self._is_leap |= text.startswith("02-29")
        at, new_year = (
            reading.wall_ns(f"2024-{day}", self, number, "time")
            for day in (text.replace(" ", "T"), "01-01")
        )
        in_year = at - new_year - _DAY_NS * (not self._is_leap and text >= "03")
        self._last_ns = (
            in_year + max(0, self._last_ns - in_year + _YEAR_NS // 2) // _YEAR_NS * _YEAR_NS
        )
        return self._last_ns

    def requests(
        self, kind: str, logged: list[_Logged], block_tokens: int, notes: list[str]
    ) -> reading.Requests:
        """Return the requests `logged`.

        With blocks by the token ids of prompts, if any has its own in the log.
        """
        block, found = (
            block_tokens if any(said.units is not None for said in logged) else 0,
            reading.Gathered(),
        )
        for said in logged:
            chain = pieces(said.units or (), block_tokens)
            found.add(
                said.asked_ns,
                said.input_tokens,
                said.output_tokens or 0,
                chain,
                said.session,
                said.answered_ns,
            )
        if block:
            shared = (
                f"the log has no block ids: {block} equal tokens behind equal tokens are one block"
            )
        elif any(said.session is not None for said in logged):
            shared = (
                "the log has no prompt's tokens: prompts share a prefix only within a conversation"
            )
        else:
            shared = (
                "the log has no prompt's tokens and no conversation: no request reuses another's"
                " cache"
            )
        return found.requests(kind, self.path, self.sha256, block, [shared, *notes])


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
    t_mono: reading.Seconds
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


@reading.source(lambda start: start.path.suffix == ".lct" and _MAGIC in start.text[:256])
def lmcache_trace(path: Path, *, block_tokens: int | None = None) -> reading.Requests:
    """Return a request for each prefetch of the trace at `path`.

    Its chunks are `block_tokens` long, 256 by default.

    The trace gives full chunks and neither the tokens after them nor answers. TraceError if the
    file is not such a trace, is cut off, or no shape in it has a dimension of `block_tokens`.

    LMCache's storage trace (`.lct`): the calls of its storage manager, of which each prefetch is a
    prompt looked up. The file is frames of a 4-byte big-endian length and so many bytes of
    MessagePack: a header, then a record a call.
    """
    chunk_tokens = block_tokens or CHUNK_TOKENS
    need_file(path)
    found, digest, first, unused = reading.Gathered(), hashlib.sha256(), None, 0
    for number, record in _records(path, digest):
        if not record.qualname.endswith(_PREFETCH):
            unused += 1
            continue
        try:
            spec = msgspec.convert(_bare(record.args).get("spec"), _Spec)
        except msgspec.ValidationError as error:
            message, place = place_of(error)
            raise TraceError(
                message, path=path, row=number, column=f"spec.{place}" if place else "spec"
            ) from None
        groups = [g for g in spec.key_groups if g.keys]
        if not groups:
            continue
        first = first or groups
        whole = next((g for g in groups if g.sliding_window_size == _WHOLE_PREFIX), groups[0])
        if whole.keys[0].model_name != first[0].keys[0].model_name:
            why = (
                f"{whole.keys[0].model_name!r} after {first[0].keys[0].model_name!r}: a trace of"
                " two models"
            )
            raise TraceError(why, path=path, row=number, column="model_name")
        chain = [key.chunk_hash for key in whole.keys]
        found.add(round(record.t_mono * NS_PER_S), len(chain) * chunk_tokens, 0, chain)
    if first is None:
        raise TraceError("holds no prefetch, and so no prompts", path=path)
    dimensions = {size for group in first for shape in group.layout_desc.shapes for size in shape}
    if chunk_tokens not in dimensions:
        why = (
            f"no tensor has a dimension of {chunk_tokens} tokens, only {sorted(dimensions)}: say"
            " --block-tokens"
        )
        raise TraceError(why, path=path)
    sizes = [
        chunk_bytes(g.layout_desc.shapes, g.layout_desc.dtypes)
        for g in first
        if g.keys[0].kv_rank == first[0].keys[0].kv_rank
    ]
    known = None if None in sizes else sum(size or 0 for size in sizes)
    notes = [
        (
            "the trace has full chunks only: prompts end with their last one, output_tokens is 0,"
            " and nothing is decoded"
        ),
        f"a chunk is taken as {chunk_tokens} tokens (--block-tokens)",
    ]
    model = model_of(first[0].keys[0].model_name, known, chunk_tokens)
    facts = {
        "model": model,
        "ranks": len({g.keys[0].kv_rank for g in first}),
        "records_not_used": unused,
    }
    return found.requests("lmcache-trace", path, digest.hexdigest(), chunk_tokens, notes, **facts)


def _bare(value: Any) -> Any:
    """Return `value` without the tags {"__t__".

    Type, "v": value} that LMCache wraps its own types in.
    """
    if isinstance(value, dict):
        if "__t__" in value:
            return _bare(value.get("v"))
        return {name: _bare(inner) for name, inner in value.items()}
    return [_bare(inner) for inner in value] if isinstance(value, list) else value


def _records(path: Path, digest: Any) -> Iterator[tuple[int, _Record]]:
    """Yield the records with their number, from 1, once the header is as it should be."""
    header, records = msgspec.msgpack.Decoder(_Header), msgspec.msgpack.Decoder(_Record)
    size = path.stat().st_size
    with path.open("rb") as file:
        number = at = 0
        while prefix := file.read(_LENGTH.size):
            length = _LENGTH.unpack(prefix)[0] if len(prefix) == _LENGTH.size else _MOST_BYTES + 1
            at += _LENGTH.size + length
            if length > _MOST_BYTES or at > size:
                raise TraceError(
                    "the file ends within this record, or is damaged", path=path, row=number
                )
            frame = file.read(length)
            digest.update(prefix)
            digest.update(frame)
            try:
                if number:
                    yield number, records.decode(frame)
                elif (head := header.decode(frame)) != _Header(_MAGIC, 1, "storage"):
                    what = (
                        f"magic {head.magic!r}, format {head.format_version}, level {head.level!r}"
                    )
                    raise TraceError(f"{what}, where we read LMCT, 1 and storage", path=path)
            except msgspec.ValidationError as error:
                message, place = place_of(error)
                raise TraceError(message, path=path, row=number, column=place) from None
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
                raise TraceError(f"not MessagePack: {error}", path=path, row=number) from None
            number += 1


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


def model_of(name: str, size_bytes: int | None, chunk_tokens: int) -> dict[str, Any]:
    """Return what the origin of a source says of the model.

    Its name, and the KV bytes that one rank stores of a token.

    The bytes are None where the log does not say them, or where they are no whole number.
    """
    whole = size_bytes is not None and size_bytes > 0 and size_bytes % chunk_tokens == 0
    return {
        "name": name,
        "kv_bytes_per_token_per_rank": size_bytes // chunk_tokens if whole and size_bytes else None,
    }
