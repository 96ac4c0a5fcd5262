"""OpenTelemetry spans of generative AI, as JSON: when requests came and how long they were.

`span_layouts.py` has the layouts. A span says no more of a prompt than its length, so prompts share a
prefix only within a conversation.

Libraries older than the conventions name things their own way: OpenLLMetry has the kind of a request
and of a span in `llm.request.type` and `traceloop.span.kind`, OpenInference has its kinds in
`openinference.span.kind` and tokens in `llm.token_count.*`.

One call may have several spans with token counts, and counts once: `nested_calls.py` says how. A
span that was exported twice counts once, too: as the last copy that has tokens.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

from kvtrace.core.errors import TraceError
from kvtrace.requests.json_lines import JsonLines
from kvtrace.requests.missing_parents import (
    counted_apart,
    link_servers,
    servers_without_parent,
)
from kvtrace.requests.nested_calls import (
    Span,
    SpanKey,
    SpanRole,
    answer_tokens,
    conversation_of,
    enclosing_calls,
    is_better_copy,
    is_of_embedding,
    open_circles,
)
from kvtrace.requests.notes import counted
from kvtrace.requests.request_collector import RequestCollector
from kvtrace.requests.requests import MAX_CLOCK_NS, MAX_TOKENS, Requests
from kvtrace.requests.source_files import source
from kvtrace.requests.span_layouts import ExportedSpan, SpanDocument, is_of_spans, spans_of

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
"""Names before version 1.27 of the conventions, which vLLM still writes, and OpenInference's; a
span that has several has the count of the current name, else of the first of these."""
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


@source(is_of_spans)
def otel(path: Path) -> Requests:
    """Read a request for each call of a model in the spans at `path`.

    Raises:
        TraceError: if the file is not of spans as JSON, a span's time or tokens are no count, or no span
            is a call.
    """
    documents = JsonLines(path, SpanDocument, may_be_indented=True)
    calls: dict[SpanKey, Span] = {}
    operations: dict[SpanKey, str] = {}
    kinds: dict[SpanKey, str] = {}
    repeated = 0
    for number, document in documents:
        for span in spans_of(document, documents, number):
            key: SpanKey = (span.trace_id, span.span_id) if span.span_id else len(calls)
            repeated += key in calls
            call, operation = _read_span(span, documents, number)
            if is_better_copy(call, calls.get(key)):
                calls[key], operations[key], kinds[key] = call, operation, span.kind
    in_circles = open_circles(calls)
    servers = servers_without_parent(calls, kinds)
    linked = link_servers(servers, calls, kinds)
    keys, counts = _calls_once(calls)
    apart = counted_apart(set(servers).difference(linked).intersection(keys), calls)
    requests = RequestCollector()
    for key in keys:
        call = calls[key]
        requests.add(
            call.start_ns,
            call.input_tokens or 0,
            answer_tokens(call, calls),
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
    notes += counted(
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
            len(linked),
            "spans of servers without their parent are taken as the call of a client in their trace",
        ),
        (
            apart,
            (
                "spans of servers without their parent, begun during another call of their trace,"
                " count by themselves: they may be that call again"
            ),
        ),
        (
            in_circles,
            "spans enclose each other, as in a damaged file: each is taken as one without a parent",
        ),
        (repeated, "spans occur more than once in the file, and count once"),
    )
    if cached_tokens := sum(calls[key].cached_tokens for key in keys):
        notes.append(
            f"the {cached_tokens} input tokens that spans say were read from a cache are not used"
        )
    left_out = sum(counts.values())
    return requests.build_requests(
        "otel", path, documents.sha256, 0, notes, spans_left_out=left_out
    )


def _calls_once(calls: dict[SpanKey, Span]) -> tuple[list[SpanKey], Counter[str]]:
    """Return the spans that count, and the number of other spans by reason."""
    keys, left_out = list[SpanKey](), Counter[str]()
    enclosing = enclosing_calls(calls)
    for key, call in calls.items():
        if call.input_tokens is None:
            left_out["without tokens"] += 1
        elif call.role is SpanRole.ROLL_UP:
            left_out["roll-ups"] += 1
        elif is_of_embedding(call, calls):
            left_out["embeddings"] += 1
        elif key in enclosing:
            left_out["enclosing"] += 1
        else:
            keys.append(key)
    return keys, left_out


def _read_span(
    span: ExportedSpan, documents: JsonLines[SpanDocument], number: int
) -> tuple[Span, str]:
    """Return the call of a span, and the operation that it names; empty if it names none."""
    attributes = dict(span.attributes)
    for other_name, name in OTHER_NAMES.items():
        if other_name in attributes and attributes.get(name) is None:
            attributes[name] = attributes[other_name]

    def count(name: str) -> int | None:
        return None if name not in attributes else _count(attributes[name], name, documents, number)

    # A call that failed before its prompt was counted has a prompt of 0 tokens.
    input_tokens = count(INPUT) or None
    is_call = input_tokens is not None
    start_ns = end_ns = 0
    if is_call:
        longest = MAX_CLOCK_NS
        start_ns = _count(span.start_ns, "startTimeUnixNano", documents, number, 1, longest)
        end_ns = _count(span.end_ns, "endTimeUnixNano", documents, number, maximum=longest)
    conversation = attributes.get(CONVERSATION)
    kinds = (str(attributes[name]).lower() for name in _KINDS_OF_SPANS if attributes.get(name))
    operation = next(kinds, "")
    role = _role(operation or span.name.split(" ", 1)[0])
    return Span(
        parent=(span.trace_id, span.parent_id) if span.parent_id else None,
        role=role,
        input_tokens=input_tokens,
        output_tokens=count(OUTPUT) if is_call else None,
        cached_tokens=(count(CACHED) or 0) if is_call else 0,
        start_ns=start_ns,
        end_ns=end_ns,
        conversation=None if conversation is None else str(conversation),
        is_named=bool(operation) or role is not SpanRole.CALL,
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
    documents: JsonLines[SpanDocument],
    number: int,
    minimum: int = 0,
    maximum: int = MAX_TOKENS,
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
