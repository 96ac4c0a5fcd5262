"""Calls of a model in a trace of spans, of which each counts once.

One call may have several spans with token counts. The span of a client, or of a gateway, encloses
the span of the server that did the work: the innermost span is the request, and inherits what only
outer spans say. The span of an agent, a workflow or a tool sums the calls below it: it is no
request, and a call below a tool is a call of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

SpanKey = tuple[str, str] | int
"""Trace and span id; a span without an id has a number."""


class SpanRole(Enum):
    """How the token counts of a span are to be read."""

    CALL = auto()
    """A call of a model, if it has token counts."""
    ROLL_UP = auto()
    """The sum of other spans."""
    EMBEDDING = auto()
    """A call that keeps no KV cache."""
    OTHER = auto()
    """No call; it may enclose calls."""


@dataclass(slots=True)
class Span:
    """A span that says how many tokens a prompt had, or one that may enclose such spans."""

    parent: SpanKey | None
    """The span that encloses it."""
    role: SpanRole
    input_tokens: int | None
    """None: the span is no call of a model, or does not say."""
    output_tokens: int | None
    cached_tokens: int
    start_ns: int
    end_ns: int | None
    conversation: str | None
    row: int = 0
    is_named: bool = True
    """Whether it says what it is; else a span around it may."""


def is_better_copy(copy: Span, earlier: Span | None) -> bool:
    """Return whether a span replaces an earlier one of the same id, if there is one.

    A copy that was exported before the call ended has no tokens, and replaces none that has. Of two
    with tokens the later one is the correction.
    """
    return earlier is None or earlier.input_tokens is None or copy.input_tokens is not None


def open_circles(spans: Mapping[SpanKey, Span]) -> int:
    """Take their parents from spans that enclose each other, as in a damaged file; return their number.

    Which of them is the outer one is not known: each counts by itself.
    """
    opened = 0
    passed: set[SpanKey] = set()
    for first in spans:
        path: list[SpanKey] = []
        key: SpanKey | None = first
        while key is not None and key in spans and key not in passed:
            passed.add(key)
            path.append(key)
            key = spans[key].parent
        if key is not None and key in path:
            circle = path[path.index(key) :]
            opened += len(circle)
            for member in circle:
                spans[member].parent = None
    return opened


def ancestors(span: Span, spans: Mapping[SpanKey, Span]) -> Iterator[tuple[SpanKey, Span]]:
    """Yield the spans around `span`, innermost first; `open_circles` went before."""
    key = span.parent
    while key is not None and key in spans:
        yield key, spans[key]
        key = spans[key].parent


def enclosing_calls(spans: Mapping[SpanKey, Span]) -> set[SpanKey]:
    """Return the calls that enclose another call without an agent or a tool between them.

    Such a call is the same one, seen further from the model. A call that an agent's tool made while
    another one waited is a call of its own.
    """
    enclosing: set[SpanKey] = set()
    for span in spans.values():
        is_roll_up = span.role is SpanRole.ROLL_UP
        if span.input_tokens is None or is_roll_up or is_of_embedding(span, spans):
            continue
        for key, outer in ancestors(span, spans):
            if outer.role is SpanRole.ROLL_UP or key in enclosing:
                break
            if outer.input_tokens is not None:
                enclosing.add(key)
    return enclosing


def is_of_embedding(span: Span, spans: Mapping[SpanKey, Span]) -> bool:
    """Return whether a span is an embedding, or the same one seen closer to the model.

    Servers' spans often do not say what they computed; the client's does.
    """
    if span.is_named:
        return span.role is SpanRole.EMBEDDING
    for _key, outer in ancestors(span, spans):
        if outer.role in (SpanRole.EMBEDDING, SpanRole.ROLL_UP):
            return outer.role is SpanRole.EMBEDDING
        if outer.input_tokens is not None or (outer.is_named and outer.role is SpanRole.CALL):
            return False
    return False


def views_of_call(span: Span, spans: Mapping[SpanKey, Span]) -> Iterator[Span]:
    """Yield a call, and then the spans of the same call further from the model."""
    yield span
    for _key, outer in ancestors(span, spans):
        if outer.role is SpanRole.ROLL_UP:
            return
        if outer.input_tokens is not None:
            yield outer


def answer_tokens(span: Span, spans: Mapping[SpanKey, Span]) -> int:
    """Return the tokens of a call's answer: its own, or those of the nearest span of the same call.

    0 if none of them says.
    """
    answers = (view.output_tokens for view in views_of_call(span, spans))
    return next((tokens for tokens in answers if tokens is not None), 0)


def conversation_of(span: Span, spans: Mapping[SpanKey, Span]) -> str | None:
    """Return the conversation that a call, or the nearest span around it, names."""
    around = [span, *(outer for _key, outer in ancestors(span, spans))]
    return next((view.conversation for view in around if view.conversation is not None), None)
