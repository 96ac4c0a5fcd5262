"""What a source holds, in figures: what `kvtrace import` reports, and what a reader checks first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.requests.requests import NONE

if TYPE_CHECKING:
    from kvtrace.requests.requests import Ints, Requests

GAP_INTERVALS = 100
"""An interval without arrivals is a gap from this many mean intervals on."""
COUNTED = (
    "failures", "out_of_order", "wrong_totals", "unknown_columns", "orphans", "rechained_ids", "unnamed_tokens",
    "subagents", "empty_conversations", "unanswered", "unasked", "unknown_speakers",
)  # fmt: skip
"""Oddities that sources count in their origin."""


def account(requests: Requests) -> dict[str, Any]:
    """Return the figures of `requests`: counts, span, tokens, conversations, block reuse, gaps, oddities, nulls.

    `block_reuse` is the share of block references to a block that an earlier reference named; with prefix chains
    it equals the hit ratio of an unlimited cache. It is null without block ids.
    """
    span_ns = int(requests.arrival_ns[-1] - requests.arrival_ns[0])
    n = len(requests)
    references = len(requests.block_ids)
    distinct = len(np.unique(requests.block_ids)) if requests.block_tokens else None
    sessions = requests.session_id
    return {
        "requests": n,
        "span_ns": span_ns,
        "requests_per_s": (n - 1) / (span_ns / 1e9) if span_ns else None,
        "input_tokens": _tokens(requests.input_tokens),
        "output_tokens": _tokens(requests.output_tokens),
        "conversations": None if sessions is None else len(np.unique(sessions[sessions != NONE])),
        "block_tokens": requests.block_tokens or None,
        "block_references": references if requests.block_tokens else None,
        "distinct_blocks": distinct,
        "block_reuse": 1 - distinct / references if distinct is not None and references else None,
        "gaps": _gaps(requests.arrival_ns),
        "oddities": {name: requests.origin[name] for name in COUNTED if requests.origin.get(name)},
        "nulls": _nulls(requests),
    }


def _tokens(values: Ints) -> dict[str, Any]:
    median, p95 = np.percentile(values, [50, 95], method="inverted_cdf").tolist()
    return {"sum": int(values.sum()), "mean": float(values.mean()), "p50": median, "p95": p95, "max": int(values.max())}


def _gaps(times: Ints) -> dict[str, Any]:
    """Return how many intervals are gaps, how long they are together, and the longest with its start."""
    if len(times) == 1 or times[-1] == times[0]:
        return {"count": 0, "total_ns": 0, "longest_ns": None, "longest_starts_ns": None}
    intervals = np.diff(times)
    is_gap = intervals >= GAP_INTERVALS * (int(times[-1] - times[0]) / len(intervals))
    longest = int(np.argmax(intervals))
    return {
        "count": int(np.count_nonzero(is_gap)), "total_ns": int(intervals[is_gap].sum()),
        "longest_ns": int(intervals[longest]), "longest_starts_ns": int(times[longest]),
    }  # fmt: skip


def _nulls(requests: Requests) -> dict[str, int]:
    """Return how many requests have null in each column that may be."""
    n = len(requests)
    counts = {
        name: n if values is None else int(np.count_nonzero(values == NONE))
        for name, values in (("session_id", requests.session_id), ("turn", requests.turn), ("qos", requests.qos))
    }
    counts["block_ids"] = 0 if requests.block_tokens else n
    return {name: count for name, count in counts.items() if count}
