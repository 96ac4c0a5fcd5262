"""What a serving benchmark measured at an engine's front, of whole requests; null is what it does not say."""

from __future__ import annotations

import msgspec


class ServingTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How a time is distributed, in nanoseconds."""

    count: int | None = None
    """Of how many; null where the benchmark does not say."""
    mean_ns: int | None = None
    p50_ns: int | None = None
    p90_ns: int | None = None
    p95_ns: int | None = None
    p99_ns: int | None = None
    p99_9_ns: int | None = None
    max_ns: int | None = None


class Serving(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one benchmark."""

    benchmark: str
    """What measured."""
    requests: int | None = None
    """Those answered."""
    failed_requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    requests_per_s: float | None = None
    input_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    first_token: ServingTimes | None = None
    """From sending a request to its first token."""
    inter_token: ServingTimes | None = None
    """Between two tokens of an answer."""
    output_token: ServingTimes | None = None
    """A token after the first, on average over its answer."""
    answer: ServingTimes | None = None
    """From sending a request to its last token."""
