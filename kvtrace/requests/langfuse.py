"""Langfuse's exports of observations, as JSON, JSON lines or CSV, and its traces as JSON.

The export of its pages names fields as `startTime`, the export to blob storage as `start_time`:
https://langfuse.com/docs/api-and-data-platform/features/blob-storage-export-fields

An observation of type GENERATION is a call of a model. One that encloses another is the same call,
seen further from the model (`nested_calls.py`); agents, chains and tools sum the calls below them;
embeddings keep no KV cache. An observation that was exported twice counts once: as the last copy
that has tokens.

`usageDetails` divides tokens into kinds that exclude each other, such as `input` and
`input_cached_tokens`. As in Langfuse's own sums, all kinds with `input` in their name are of the
prompt, and all with `output` of the answer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from kvtrace.core.errors import TraceError
from kvtrace.requests.exported_rows import ExportedRows, models_note
from kvtrace.requests.json_lines import Count
from kvtrace.requests.nested_calls import (
    Span,
    SpanKey,
    SpanRole,
    answer_tokens,
    conversation_of,
    enclosing_calls,
    is_better_copy,
    open_circles,
)
from kvtrace.requests.notes import counted
from kvtrace.requests.request_collector import RequestCollector
from kvtrace.requests.requests import MAX_TOKENS, Requests, with_history_note
from kvtrace.requests.source_files import source

_ROLES: Final = {
    "GENERATION": SpanRole.CALL,
    "EMBEDDING": SpanRole.EMBEDDING,
    "SPAN": SpanRole.OTHER,
    "EVENT": SpanRole.OTHER,
}
"""All other types (AGENT, CHAIN, TOOL, ...) sum the calls below them."""
_UNITS_OF_TOKENS: Final = (None, "", "TOKENS")
_SUMS: Final = ("input", "output", "total")

_Usage = dict[str, float | str | None]


class _Row(msgspec.Struct, rename="camel"):
    """An observation by the names of the page's export; fields in snake case follow."""

    id: str | None = None
    type: str | None = None
    trace_id: str | None = None
    parent_observation_id: str | None = None
    session_id: str | None = None
    start_time: str | None = None
    end_time: str | None = None
    usage_details: _Usage | None = None
    usage: _Usage | None = None
    """The sums of older answers of the API, with costs and their unit."""
    input_usage: Count | None = None
    output_usage: Count | None = None
    prompt_tokens: Count | None = None
    """The name of `input_usage` in releases before 3."""
    completion_tokens: Count | None = None
    unit: str | None = None
    model: str | None = None
    provided_model_name: str | None = None
    data: list[_Row] | None = None
    observations: list[_Row] | None = None
    """The rows of a trace that was downloaded as a whole."""
    snake_trace_id: str | None = msgspec.field(default=None, name="trace_id")
    snake_parent_id: str | None = msgspec.field(default=None, name="parent_observation_id")
    snake_session_id: str | None = msgspec.field(default=None, name="session_id")
    snake_start_time: str | None = msgspec.field(default=None, name="start_time")
    snake_end_time: str | None = msgspec.field(default=None, name="end_time")
    snake_usage_details: _Usage | None = msgspec.field(default=None, name="usage_details")
    snake_model_name: str | None = msgspec.field(default=None, name="provided_model_name")

    @property
    def trace(self) -> str:
        """The identifier of its trace; empty if it has none."""
        return self.trace_id or self.snake_trace_id or ""

    @property
    def parent(self) -> str | None:
        """The observation that encloses it."""
        return self.parent_observation_id or self.snake_parent_id

    @property
    def start(self) -> str | None:
        """When it began, in UTC."""
        return self.start_time or self.snake_start_time

    @property
    def end(self) -> str | None:
        """When it ended, in UTC."""
        return self.end_time or self.snake_end_time

    @property
    def tokens_by_kind(self) -> _Usage:
        """Tokens by kind, or their sums; empty if neither is given as an object."""
        details = self.usage_details or self.snake_usage_details
        return details or {name: (self.usage or {}).get(name) for name in _SUMS if self.usage}

    @property
    def unit_of_usage(self) -> object:
        """The unit of sums; None if it is not said."""
        return self.unit or (self.usage or {}).get("unit")

    @property
    def model_name(self) -> str:
        """The model's name; empty if it has none."""
        return self.provided_model_name or self.snake_model_name or self.model or ""


_NAMES = ("id", "type")
_CAMEL = (*_NAMES, "traceId", "startTime", "parentObservationId")
_SNAKE = (*_NAMES, "trace_id", "start_time", "parent_observation_id")


class _Facts(NamedTuple):
    """What one observation says beside its span."""

    model: str
    has_session: bool
    has_wrong_total: bool
    is_in_other_units: bool
    """It counts characters, images or the like."""


@dataclass(slots=True)
class _Observations:
    """The observations of an export by trace and id, and facts of each."""

    spans: dict[SpanKey, Span] = field(default_factory=dict)
    facts: dict[SpanKey, _Facts] = field(default_factory=dict)
    repeated: int = 0

    def add(self, row: _Row, rows: ExportedRows[_Row], number: int) -> None:
        """Enter the observation of row `number`; TraceError if it is none."""
        required = {"id": row.id, "type": row.type, "startTime": row.start}
        if missing := [name for name, value in required.items() if not value]:
            raise rows.fault(f"missing required field `{missing[0]}`", number, None)
        key: SpanKey = (row.trace, row.id or "")
        self.repeated += key in self.spans
        role = _ROLES.get((row.type or "").upper(), SpanRole.ROLL_UP)
        tokens = _tokens(row, rows, number)
        is_in_other_units = row.unit_of_usage not in _UNITS_OF_TOKENS
        has_tokens = role is not SpanRole.OTHER and not is_in_other_units
        sum_of_tokens = (tokens.prompt or 0) + (tokens.answer or 0)
        session = row.session_id or row.snake_session_id
        span = Span(
            parent=None if row.parent is None else (row.trace, row.parent),
            role=role,
            input_tokens=(tokens.prompt or None) if has_tokens else None,
            output_tokens=tokens.answer,
            cached_tokens=tokens.cached,
            start_ns=rows.time_ns(row.start or "", number, "startTime"),
            end_ns=None if not row.end else rows.time_ns(row.end, number, "endTime"),
            conversation=session or row.trace or None,
            row=number,
        )
        if is_better_copy(span, self.spans.get(key)):
            self.spans[key] = span
            self.facts[key] = _Facts(
                model=row.model_name,
                has_session=bool(session),
                has_wrong_total=bool(tokens.total) and tokens.total != sum_of_tokens,
                is_in_other_units=is_in_other_units,
            )

    def counts(self) -> tuple[list[SpanKey], Counter[str]]:
        """Return the generations that count, and the number of other observations by reason."""
        generations, left_out = list[SpanKey](), Counter[str]()
        enclosing = enclosing_calls(self.spans)
        for key, span in self.spans.items():
            if span.role is not SpanRole.CALL:
                left_out[span.role.name] += 1
            elif self.facts[key].is_in_other_units:
                left_out["in other units"] += 1
            elif span.input_tokens is None:
                left_out["without tokens"] += 1
            elif key in enclosing:
                left_out["enclosing"] += 1
            else:
                generations.append(key)
        return generations, left_out


@source(
    lambda start: any(
        start.has_json_with(*names) or start.columns.issuperset(names) for names in (_CAMEL, _SNAKE)
    )
)
def langfuse(path: Path) -> Requests:
    """Read the generations of the Langfuse export at `path`: JSON, JSON lines, or CSV.

    A session is the observation's `sessionId`, or where the export has none, its trace.

    Raises:
        TraceError: if a row is not an observation, or none is a generation with tokens.
    """
    rows = ExportedRows(path, _Row)
    observations, requests = _Observations(), RequestCollector()
    for number, row in rows:
        observations.add(row, rows, number)
    spans = observations.spans
    in_circles = open_circles(spans)
    generations, left_out = observations.counts()
    if not generations:
        problem = (
            f"none of its {len(spans)} observations is a generation with the tokens of a prompt"
        )
        raise TraceError(problem, path=path)
    for key in generations:
        span = spans[key]
        requests.add(
            span.start_ns,
            span.input_tokens or 0,
            answer_tokens(span, spans),
            session=conversation_of(span, spans),
            answered_ns=span.end_ns,
            row=span.row,
        )
    facts_of_each = [observations.facts[key] for key in generations]
    wrong_totals = sum(facts.has_wrong_total for facts in facts_of_each)
    without_session = sum(not facts.has_session for facts in facts_of_each)
    notes = [
        (
            "observations give lengths only: there are no block ids, and prompts share a prefix only"
            " within a session, whose prompts are assumed to carry its history"
        )
    ]
    if rows.is_page:
        notes.append("the file is one page of an API's answer: other pages, if any, are missing")
    notes += counted(
        (without_session, "generations have no session: those of one trace are taken as a session"),
        (
            left_out["without tokens"],
            "generations without the tokens of their prompt, such as failed ones, are left out",
        ),
        (
            left_out["in other units"],
            "generations are counted in another unit than tokens, and left out",
        ),
        (left_out["enclosing"], "generations enclose another, which is the same call: left out"),
        (left_out["EMBEDDING"], "embeddings, which keep no KV cache, are left out"),
        (left_out["ROLL_UP"], "observations of agents, chains, tools and the like are left out"),
        (left_out["OTHER"], "spans and events are left out"),
        (
            in_circles,
            (
                "observations enclose each other, as in a damaged file: each is taken as one without"
                " a parent"
            ),
        ),
        (observations.repeated, "observations occur again in the file, and count once"),
        (wrong_totals, "generations have a total that is not input plus output tokens"),
    )
    if cached_tokens := sum(spans[key].cached_tokens for key in generations):
        notes.append(
            f"the {cached_tokens} input tokens that the export says were read from a cache count"
            " as tokens of the prompt"
        )
    notes += models_note(Counter(facts.model for facts in facts_of_each))
    left_out_counts = {"observations_left_out": left_out.total(), "wrong_totals": wrong_totals}
    return with_history_note(
        requests.build_requests("langfuse", path, rows.sha256, 0, notes, **left_out_counts)
    )


class _Tokens(NamedTuple):
    """The tokens of one observation; None if the export does not say."""

    prompt: int | None
    answer: int | None
    total: int
    """0 if the export does not say."""
    cached: int
    """Tokens of the prompt that the provider read from its cache."""


def _tokens(row: _Row, rows: ExportedRows[_Row], number: int) -> _Tokens:
    """Return the tokens of the observation of row `number`."""
    counts: dict[str, int] = {}
    for kind, value in row.tokens_by_kind.items():
        try:
            counts[kind] = round(float(value or 0))
        except (ValueError, OverflowError):
            raise rows.fault(f"{kind} is {value!r}, not a count", number, "usageDetails") from None
        if not 0 <= counts[kind] <= MAX_TOKENS:
            raise rows.fault(f"{kind} is {value!r}, not a count", number, "usageDetails")
    prompts = [count for kind, count in counts.items() if "input" in kind]
    answers = [count for kind, count in counts.items() if "output" in kind]
    prompt = sum(prompts) if prompts else _first(row.input_usage, row.prompt_tokens)
    answer = sum(answers) if answers else _first(row.output_usage, row.completion_tokens)
    cached = sum(
        count
        for kind, count in counts.items()
        if "input" in kind and "cache" in kind and "creation" not in kind and "write" not in kind
    )
    if max(prompt or 0, answer or 0) > MAX_TOKENS:
        raise rows.fault(f"more than {MAX_TOKENS} tokens", number, "usageDetails")
    return _Tokens(prompt, answer, counts.get("total", 0), cached)


def _first(*values: int | None) -> int | None:
    """Return the first value that is not None."""
    return next((value for value in values if value is not None), None)
