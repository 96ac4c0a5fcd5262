"""OpenTelemetry spans of generative AI, as OTLP JSON: when requests came and how long they were.

A collector's file exporter writes one document a line; Tempo and people write one indented
document, which Tempo calls `batches`. A span says no more of a prompt than its length, so prompts
share a prefix only within a conversation.

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
OLD_NAMES: Final = {"gen_ai.usage.prompt_tokens": INPUT, "gen_ai.usage.completion_tokens": OUTPUT}
"""Names before version 1.27 of the conventions, which vLLM still writes."""
_EMBEDDINGS: Final = "embeddings"
_ROLL_UPS: Final = frozenset(
    ("invoke_agent", "create_agent", "invoke_workflow", "execute_tool", "agent", "workflow", "tool")
)
"""Operations whose token counts sum those of the calls below them."""


class _Attribute(msgspec.Struct):
    key: str
    value: JsonObject = {}


class _Span(msgspec.Struct, rename="camel"):
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str | None = None
    name: str = ""
    start_time_unix_nano: str | int = 0
    end_time_unix_nano: str | int = 0
    attributes: list[_Attribute] = []


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
    repeated = 0
    for number, document in documents:
        for span in _spans(document):
            key: SpanKey = (span.trace_id, span.span_id) if span.span_id else len(calls)
            repeated += key in calls
            calls[key] = _read_span(span, documents, number)
    counts = Counter[str]()
    requests = reading.Gathered()
    enclosing = enclosing_calls(calls)
    cached_tokens = 0
    for key, call in calls.items():
        if call.input_tokens is None:
            counts["without tokens"] += 1
        elif call.role is SpanRole.EMBEDDING:
            counts["embeddings"] += 1
        elif call.role is SpanRole.ROLL_UP:
            counts["roll-ups"] += 1
        elif key in enclosing:
            counts["enclosing"] += 1
        else:
            cached_tokens += call.cached_tokens
            requests.add(
                call.start_ns,
                call.input_tokens,
                next(
                    (
                        view.output_tokens
                        for view in views_of_call(call, calls)
                        if view.output_tokens is not None
                    ),
                    0,
                ),
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
        (counts["embeddings"], "spans of embeddings, which keep no KV cache, are left out"),
        (repeated, "spans occur more than once in the file, and count once"),
    )
    if cached_tokens:
        notes.append(
            f"the {cached_tokens} input tokens that spans say were read from a cache are not used"
        )
    left_out = sum(counts.values())
    return requests.requests("otel", path, documents.sha256, 0, notes, spans_left_out=left_out)


def _spans(document: _Document) -> Iterator[_Span]:
    for resource in (*document.resource_spans, *document.batches):
        for scope in (*resource.scope_spans, *resource.instrumentation_library_spans):
            yield from scope.spans


def _read_span(span: _Span, documents: reading.JsonLines[_Document], number: int) -> Span:
    """Return the call of a span."""
    attributes = {
        OLD_NAMES.get(attribute.key, attribute.key): next(iter(attribute.value.values()), None)
        for attribute in span.attributes
    }

    def count(name: str) -> int | None:
        return None if name not in attributes else _count(attributes[name], name, documents, number)

    input_tokens = count(INPUT)
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
    operation = str(attributes.get(OPERATION) or span.name.split(" ", 1)[0])
    role = SpanRole.EMBEDDING if operation == _EMBEDDINGS else SpanRole.CALL
    return Span(
        parent=(span.trace_id, span.parent_span_id) if span.parent_span_id else None,
        role=SpanRole.ROLL_UP if operation in _ROLL_UPS else role,
        input_tokens=input_tokens,
        output_tokens=count(OUTPUT) if is_call else None,
        cached_tokens=(count(CACHED) or 0) if is_call else 0,
        start_ns=start_ns,
        end_ns=end_ns,
        conversation=None if conversation is None else str(conversation),
    )


def _count(
    value: object,
    name: str,
    documents: reading.JsonLines[_Document],
    number: int,
    minimum: int = 0,
    maximum: int = reading.MAX_TOKENS,
) -> int:
    """Return `value`, which OTLP JSON writes as text or as a number; None is 0."""
    try:
        count = 0 if value is None else int(str(value))
    except ValueError:
        raise documents.fault(f"{value!r} is not a count", number, name) from None
    if not minimum <= count <= maximum:
        raise documents.fault(f"{count} must be from {minimum} to {maximum}", number, name)
    return count
