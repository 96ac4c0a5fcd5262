"""OpenTelemetry spans of generative AI, as OTLP JSON: when requests came and how long they were.

A collector's file exporter writes one document a line; Tempo and people write one indented
document, whose spans Tempo calls `batches`, or puts into `trace`. A span says no more of a prompt
than its length, so prompts share a prefix only within a conversation.

Libraries older than the conventions name things their own way: OpenLLMetry has the kind of a request
and of a span in `llm.request.type` and `traceloop.span.kind`, OpenInference has its kinds in
`openinference.span.kind` and tokens in `llm.token_count.*`.

One call may have several spans with token counts, and counts once: `nested_calls.py` says how. A
span that was exported twice counts once, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from kvtrace.core.errors import TraceError
from kvtrace.core.json_types import JsonObject
from kvtrace.requests import requests as reading
from kvtrace.requests.nested_calls import (
    Span,
    SpanKey,
    SpanRole,
    conversation_of,
    enclosing_calls,
    views_of_call,
)

INPUT: Final = "gen_ai.usage.input_tokens"
OUTPUT: Final = "gen_ai.usage.output_tokens"
CACHED: Final = "gen_ai.usage.cache_read.input_tokens"
CONVERSATION: Final = "gen_ai.conversation.id"
OPERATION: Final = "gen_ai.operation.name"
OTHER_NAMES: Final = {
    "gen_ai.usage.prompt_tokens": INPUT,
    "gen_ai.usage.completion_tokens": OUTPUT,
    "llm.token_count.prompt": INPUT,
    "llm.token_count.completion": OUTPUT,
    "llm.token_count.prompt_details.cache_read": CACHED,
}
"""Names before version 1.27 of the conventions, which vLLM still writes, and OpenInference's."""
_KINDS_OF_SPANS: Final = (
    OPERATION,
    "openinference.span.kind",
    "traceloop.span.kind",
    "llm.request.type",
)
"""Attributes that say what a span is; the first that is there counts."""
_WITHOUT_CACHE: Final = frozenset(
    ("embeddings", "embedding", "rerank", "reranker", "retrieval", "retriever")
)
"""Operations that keep no KV cache."""
_ROLL_UPS: Final = frozenset(
    (
        *("invoke_agent", "create_agent", "invoke_workflow", "execute_tool"),
        *("agent", "workflow", "tool", "task", "chain"),
    )
)
"""Operations whose token counts sum those of the calls below them."""
_CALLS: Final = frozenset(
    ("chat", "text_completion", "generate_content", "completion", "llm", "responses", "messages")
)
"""Operations that compute a prompt and an answer."""


class _Attribute(msgspec.Struct):
    key: str
    value: JsonObject = {}


class _Span(msgspec.Struct, rename="camel"):
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str | None = None
    name: str = ""
    kind: str | int = ""
    """A number, or a name such as SPAN_KIND_SERVER."""
    start_time_unix_nano: str | int = 0
    end_time_unix_nano: str | int = 0
    attributes: list[_Attribute] | None = None


class _Scope(msgspec.Struct):
    spans: list[_Span] = []


class _Resource(msgspec.Struct, rename="camel"):
    scope_spans: list[_Scope] = []
    instrumentation_library_spans: list[_Scope] = []
    """The name of `scope_spans` before version 0.16 of OTLP."""


class _Document(msgspec.Struct, rename="camel"):
    resource_spans: list[_Resource] = []
    batches: list[_Resource] = []
    """Tempo's name of `resource_spans`."""
    trace: _Document | None = None
    """The same in an answer of version 2 of Tempo's API."""


@reading.source(
    lambda start: start.has_json_with("resourceSpans") or start.has_json_with("batches")
)
def otel(path: Path) -> reading.Requests:
    """Read a request for each call of a model in the spans at `path`.

    Raises:
        TraceError: if the file is not OTLP JSON, a span's time or tokens are no count, or no span
            is a call.
    """
    documents = reading.JsonLines(path, _Document, may_be_indented=True)
    calls: dict[SpanKey, Span] = {}
    operations: dict[SpanKey, str] = {}
    kinds: dict[SpanKey, str] = {}
    repeated = 0
    for number, document in documents:
        for span in _spans(document):
            key: SpanKey = (span.trace_id, span.span_id) if span.span_id else len(calls)
            repeated += key in calls
            calls[key], operations[key] = _read_span(span, documents, number)
            kinds[key] = str(span.kind).removeprefix("SPAN_KIND_")
    guessed = _link_servers(calls, kinds)
    keys, counts = _calls_once(calls)
    requests = reading.Gathered()
    for key in keys:
        call = calls[key]
        answers = (view.output_tokens for view in views_of_call(call, calls))
        requests.add(
            call.start_ns,
            call.input_tokens or 0,
            next((tokens for tokens in answers if tokens is not None), 0),
            session=conversation_of(call, calls),
            answered_ns=call.end_ns,
        )
    if not requests:
        raise TraceError(f"none of its {len(calls)} spans has {INPUT} of a call", path=path)
    notes = [
        (
            "spans give lengths only: there are no block ids, and prompts share a prefix only within a"
            " conversation"
        )
    ]
    notes += reading.counted(
        (counts["without tokens"], f"spans without {INPUT} are left out"),
        (counts["enclosing"], "spans enclose the span of the same call at the server: left out"),
        (counts["roll-ups"], "spans of agents, workflows or tools sum other spans: left out"),
        (
            counts["embeddings"],
            "spans of embeddings and the like, which keep no KV cache, are left out",
        ),
        *(
            (count, f"spans of operation {name!r} are taken as calls of a model")
            for name, count in sorted(Counter(operations[key] for key in keys).items())
            if name and name not in _CALLS
        ),
        (
            guessed,
            "spans of servers without their parent are taken as the call of a client in their trace",
        ),
        (repeated, "spans occur more than once in the file, and count once"),
    )
    if cached_tokens := sum(calls[key].cached_tokens for key in keys):
        notes.append(
            f"the {cached_tokens} input tokens that spans say were read from a cache are not used"
        )
    left_out = sum(counts.values())
    return requests.requests("otel", path, documents.sha256, 0, notes, spans_left_out=left_out)


_CLIENTS: Final = ("CLIENT", "3")
_SERVERS: Final = ("SERVER", "2")


def _link_servers(calls: dict[SpanKey, Span], kinds: dict[SpanKey, str]) -> int:
    """Enter the client's span as the parent of each server's span whose own parent is missing.

    Spans between them, such as those of HTTP, are often not exported. A client's span of the same
    trace, with as many tokens, that was under way when the server's began, is the same call; it
    serves once. Returns the number of such servers.
    """
    has_child = {call.parent for call in calls.values()}
    clients: dict[tuple[object, int | None], list[SpanKey]] = {}
    for key, call in calls.items():
        if kinds[key] in _CLIENTS and key not in has_child and isinstance(key, tuple):
            clients.setdefault((key[0], call.input_tokens), []).append(key)
    linked = 0
    for key, call in calls.items():
        is_orphan = call.parent is not None and call.parent not in calls
        if kinds[key] not in _SERVERS or not is_orphan or not isinstance(key, tuple):
            continue
        candidates = clients.get((key[0], call.input_tokens), [])
        for client in candidates:
            span = calls[client]
            if call.input_tokens and span.start_ns <= call.start_ns <= (span.end_ns or 0):
                call.parent = client
                candidates.remove(client)
                linked += 1
                break
    return linked


def _calls_once(calls: dict[SpanKey, Span]) -> tuple[list[SpanKey], Counter[str]]:
    """Return the spans that count, and the number of other spans by reason."""
    keys, left_out = list[SpanKey](), Counter[str]()
    enclosing = enclosing_calls(calls)
    for key, call in calls.items():
        if call.input_tokens is None:
            left_out["without tokens"] += 1
        elif call.role is SpanRole.EMBEDDING:
            left_out["embeddings"] += 1
        elif call.role is SpanRole.ROLL_UP:
            left_out["roll-ups"] += 1
        elif key in enclosing:
            left_out["enclosing"] += 1
        else:
            keys.append(key)
    return keys, left_out


def _spans(document: _Document) -> Iterator[_Span]:
    if document.trace is not None:
        yield from _spans(document.trace)
    for resource in (*document.resource_spans, *document.batches):
        for scope in (*resource.scope_spans, *resource.instrumentation_library_spans):
            yield from scope.spans


def _read_span(
    span: _Span, documents: reading.JsonLines[_Document], number: int
) -> tuple[Span, str]:
    """Return the call of a span, and the operation that it names; empty if it names none."""
    attributes = {
        OTHER_NAMES.get(attribute.key, attribute.key): next(iter(attribute.value.values()), None)
        for attribute in span.attributes or ()
    }

    def count(name: str) -> int | None:
        return None if name not in attributes else _count(attributes[name], name, documents, number)

    # A call that failed before its prompt was counted has a prompt of 0 tokens.
    input_tokens = count(INPUT) or None
    is_call = input_tokens is not None
    start_ns = end_ns = 0
    if is_call:
        longest = reading.MAX_CLOCK_NS
        start_ns = _count(
            span.start_time_unix_nano, "startTimeUnixNano", documents, number, 1, longest
        )
        end_ns = _count(
            span.end_time_unix_nano, "endTimeUnixNano", documents, number, maximum=longest
        )
    conversation = attributes.get(CONVERSATION)
    kinds = (str(attributes[name]).lower() for name in _KINDS_OF_SPANS if attributes.get(name))
    operation = next(kinds, "")
    return Span(
        parent=(span.trace_id, span.parent_span_id) if span.parent_span_id else None,
        role=_role(operation or span.name.split(" ", 1)[0]),
        input_tokens=input_tokens,
        output_tokens=count(OUTPUT) if is_call else None,
        cached_tokens=(count(CACHED) or 0) if is_call else 0,
        start_ns=start_ns,
        end_ns=end_ns,
        conversation=None if conversation is None else str(conversation),
    ), operation


def _role(operation: str) -> SpanRole:
    """Return how the token counts of a span are to be read, by its operation or its name."""
    if operation in _ROLL_UPS:
        return SpanRole.ROLL_UP
    # OpenLLMetry's spans are named "openai.embeddings".
    if operation.rsplit(".", 1)[-1] in _WITHOUT_CACHE:
        return SpanRole.EMBEDDING
    return SpanRole.CALL


def _count(
    value: object,
    name: str,
    documents: reading.JsonLines[_Document],
    number: int,
    minimum: int = 0,
    maximum: int = reading.MAX_TOKENS,
) -> int:
    """Return `value`, which OTLP JSON writes as text or as a number; None is 0.

    A whole number may be written as a float: 17.0.
    """
    try:
        is_float = isinstance(value, float) and value.is_integer()
        count = 0 if value is None else int(value if is_float else str(value))  # type: ignore[call-overload]
    except ValueError:
        raise documents.fault(f"{value!r} is not a count", number, name) from None
    if not minimum <= count <= maximum:
        raise documents.fault(f"{count} must be from {minimum} to {maximum}", number, name)
    return count
