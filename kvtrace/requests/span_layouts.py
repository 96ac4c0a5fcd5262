"""Layouts in which spans are exported as JSON: OTLP, Tempo's API, Jaeger, and the console exporter.

A collector's file exporter writes one OTLP document a line. Tempo writes one document, whose spans it
calls `batches`, or puts into `trace`. Jaeger's page and API have traces in `data`, with times in us.
The console exporter of OpenTelemetry's SDKs for Python writes one indented span after the other, with
times as ISO text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from kvtrace.core.json_types import JsonObject
from kvtrace.core.units import NS_PER_US
from kvtrace.requests.json_lines import JsonLines, wall_ns
from kvtrace.requests.source_files import Start


@dataclass(frozen=True, slots=True)
class ExportedSpan:
    """A span as it was exported."""

    trace_id: str
    span_id: str
    """Empty if the span has none."""
    parent_id: str | None
    name: str
    kind: str
    """SERVER, CLIENT or the like, or its number; empty if unknown."""
    start_ns: str | int
    """As written: a number, or text of one."""
    end_ns: str | int
    attributes: JsonObject


class _Attribute(msgspec.Struct):
    key: str
    value: JsonObject = {}


class _OtlpSpan(msgspec.Struct, rename="camel"):
    trace_id: str = ""
    span_id: str = ""
    parent_span_id: str | None = None
    name: str = ""
    kind: str | int = ""
    start_time_unix_nano: str | int = 0
    end_time_unix_nano: str | int = 0
    attributes: list[_Attribute] | None = None


class _Scope(msgspec.Struct):
    spans: list[_OtlpSpan] = []


class _Resource(msgspec.Struct, rename="camel"):
    scope_spans: list[_Scope] = []
    instrumentation_library_spans: list[_Scope] = []
    """The name of `scope_spans` before version 0.16 of OTLP."""


class _Tag(msgspec.Struct):
    key: str
    value: object = None


class _Reference(msgspec.Struct, rename={"kind": "refType", "span_id": "spanID"}):
    kind: str = ""
    span_id: str = ""


class _JaegerSpan(
    msgspec.Struct,
    rename={
        "trace_id": "traceID",
        "span_id": "spanID",
        "name": "operationName",
        "start": "startTime",
    },
):
    trace_id: str = ""
    span_id: str = ""
    parent_id: str | None = msgspec.field(default=None, name="parentSpanID")
    name: str = ""
    start: int = 0
    """us since 1970."""
    duration: int = 0
    """us."""
    references: list[_Reference] = []
    tags: list[_Tag] = []


class _JaegerTrace(msgspec.Struct):
    spans: list[_JaegerSpan] = []


class _Context(msgspec.Struct):
    trace_id: str = ""
    span_id: str = ""


class SpanDocument(msgspec.Struct):
    """A document of any of the layouts."""

    resource_spans: list[_Resource] = msgspec.field(default_factory=list, name="resourceSpans")
    batches: list[_Resource] = []
    """Tempo's name of `resource_spans`."""
    trace: SpanDocument | None = None
    """The same in an answer of version 2 of Tempo's API."""
    data: list[_JaegerTrace] = []
    """Jaeger's traces."""
    context: _Context | None = None
    """Of a span that the console exporter wrote, and so are the fields below."""
    parent_id: str | None = None
    name: str = ""
    kind: str = ""
    start_time: str = ""
    end_time: str = ""
    attributes: JsonObject | None = None


def is_of_spans(start: Start) -> bool:
    """Return whether the start of a file is one of the layouts."""
    layouts = (
        ("resourceSpans",),
        ("batches",),
        ("data", "traceID", "operationName"),
        ("context", "trace_id", "parent_id"),
    )
    return any(start.has_json_with(*names) for names in layouts)


def spans_of(
    document: SpanDocument, documents: JsonLines[SpanDocument], number: int
) -> Iterator[ExportedSpan]:
    """Yield the spans of document `number`; TraceError for a time that is none."""
    if document.trace is not None:
        yield from spans_of(document.trace, documents, number)
    for resource in (*document.resource_spans, *document.batches):
        for scope in (*resource.scope_spans, *resource.instrumentation_library_spans):
            yield from map(_of_otlp, scope.spans)
    for trace in document.data:
        yield from map(_of_jaeger, trace.spans)
    if document.context is not None:
        yield ExportedSpan(
            document.context.trace_id,
            document.context.span_id,
            document.parent_id,
            document.name,
            document.kind.removeprefix("SpanKind."),
            wall_ns(document.start_time, documents, number, "start_time"),
            wall_ns(document.end_time, documents, number, "end_time"),
            document.attributes or {},
        )


def _of_otlp(span: _OtlpSpan) -> ExportedSpan:
    return ExportedSpan(
        span.trace_id,
        span.span_id,
        span.parent_span_id,
        span.name,
        str(span.kind).removeprefix("SPAN_KIND_"),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        {a.key: next(iter(a.value.values()), None) for a in span.attributes or ()},
    )


def _of_jaeger(span: _JaegerSpan) -> ExportedSpan:
    attributes: JsonObject = {tag.key: tag.value for tag in span.tags}
    parents = [reference.span_id for reference in span.references if reference.kind == "CHILD_OF"]
    return ExportedSpan(
        span.trace_id,
        span.span_id,
        parents[0] if parents else span.parent_id,
        span.name,
        str(attributes.get("span.kind", "")).upper(),
        span.start * NS_PER_US,
        (span.start + span.duration) * NS_PER_US,
        attributes,
    )
