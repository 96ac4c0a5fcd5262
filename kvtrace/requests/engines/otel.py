"""OpenTelemetry spans of generative AI, as lines of OTLP JSON: when requests came and how long they were.

Collectors write such lines (the file exporter). Spans say no more of a prompt than its length, so nothing is reused but
within a conversation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kvtrace.core.errors import TraceError
from kvtrace.requests.engines.gather import Gathered
from kvtrace.requests.jsonlines import JsonLines
from kvtrace.requests.requests import MAX_TOKENS, Requests, Start

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


class _Line(msgspec.Struct, rename="camel"):
    resource_spans: list[_Resource] = []


def is_own(start: Start) -> bool:
    """Return whether the file is lines of OTLP spans."""
    return start.text.startswith(b"{") and b'"resourceSpans"' in start.line


def read(path: Path) -> Requests:
    """Return a request for each span of the file at `path` that says how many input tokens it had.

    Raises:
        TraceError: a line is not OTLP JSON, or a span's time or tokens are no count.

    """
    lines, found, others, cached = JsonLines(path, _Line), Gathered(), 0, 0
    for number, line in lines:
        for span in (s for r in line.resource_spans for scope in r.scope_spans for s in scope.spans):
            of = {OLD_NAMES.get(a.key, a.key): next(iter(a.value.values()), None) for a in span.attributes}
            if INPUT not in of:
                others += 1
                continue
            asked, answered = (_count(of.get(name), name, lines, number) for name in (INPUT, OUTPUT))
            cached += _count(of.get(CACHED), CACHED, lines, number)
            time_ns = _count(span.start_time_unix_nano, "startTimeUnixNano", lines, number, most=2**63 - 1)
            end_ns = _count(span.end_time_unix_nano, "endTimeUnixNano", lines, number, most=2**63 - 1)
            session = of.get(CONVERSATION)
            name = None if session is None else str(session)
            found.add(time_ns, asked, answered, session=name, answered_ns=end_ns)
    if not found:
        raise TraceError(f"none of its {others} spans has {INPUT}", path=path)
    notes = ["spans give lengths only: there are no block ids, and prompts share a prefix only within a conversation"]
    if others:
        notes.append(f"{others} spans without {INPUT} are left out")
    if cached:
        notes.append(f"the {cached} input tokens that spans say were read from a cache are not used")
    return found.requests("otel", path, lines.sha256, 0, notes, spans_left_out=others)


def _count(value: Any, name: str, lines: JsonLines[_Line], number: int, most: int = MAX_TOKENS) -> int:
    """Return `value`, which OTLP JSON writes as text or a number, as a count; a missing one is 0."""
    try:
        count = 0 if value is None else int(value)
    except (TypeError, ValueError):
        raise lines.fault(f"{value!r} is no count", number, name) from None
    if not 0 <= count <= most:
        raise lines.fault(f"{count} must be from 0 to {most}", number, name)
    return count
