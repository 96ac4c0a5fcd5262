"""The requests table, as a source and as the output of `kvtrace import` (an exact round trip).

`account` computes the figures of a source: counts, span, reuse, gaps, oddities.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

import numpy as np

from kvtrace.core.errors import TraceError
from kvtrace.core.json_types import JsonObject
from kvtrace.core.metadata import describe
from kvtrace.core.schema import REQUESTS, RequestKind, enum_code, numbers
from kvtrace.core.tables import SUFFIXES, create, open_table
from kvtrace.core.units import counted, format_count, format_duration
from kvtrace.requests.block_ids import prefix_chains
from kvtrace.requests.int_columns import NONE, Ints, offsets_of
from kvtrace.requests.requests import Requests, batches, block_lists, check_columns, origin_of
from kvtrace.requests.source_files import Start, sha256_of

_TRACE_KIND = enum_code(REQUESTS, "kind", RequestKind.TRACE)


def is_own(start: Start) -> bool:
    """Return whether the file is a requests table, by its name."""
    return start.path.name.endswith(SUFFIXES)


def read(path: Path) -> Requests:
    """Return the requests of the requests table at `path`, Parquet or zstd CSV.

    TraceError if it holds another table, or invalid requests.
    """
    reader = open_table(path, REQUESTS)
    table, source = reader.read_all(), reader.meta.source or {}
    if not table.num_rows:
        raise TraceError("holds no request", path=path)
    block_tokens = source.get("block_tokens") or 0
    lengths, ids = block_lists(table.column("block_ids"), path, has_ids=bool(block_tokens))
    columns = {
        name: numbers(table.column(name).combine_chunks())
        for name in REQUESTS.names
        if name != "block_ids"
    }
    offsets = offsets_of(lengths)
    check_columns(columns, offsets, block_tokens, path)
    chains = prefix_chains(ids, offsets)
    facts = {"of": source} | ({"rechained_ids": chains.renamed} if chains.renamed else {})
    origin = origin_of("requests", path, sha256_of(path), table.num_rows, block_tokens, **facts)
    tokens, notes = (
        (columns["input_tokens"], columns["output_tokens"]),
        (*reader.meta.notes, *chains.notes()),
    )
    session_id, turn, qos = (
        None if (columns[name] == NONE).all() else columns[name]
        for name in ("session_id", "turn", "qos")
    )
    kind = None if (columns["kind"] == _TRACE_KIND).all() else columns["kind"]
    return Requests(
        columns["arrival_ns"],
        *tokens,
        offsets,
        chains.ids,
        block_tokens,
        origin,
        notes,
        session_id,
        turn,
        qos,
        kind,
    )


GAP_INTERVALS = 100
"""An interval of at least this many mean intervals is a gap."""
_ODDITY_NAMES = """
failures out_of_order wrong_totals unknown_columns orphans rechained_ids unnamed_tokens subagents empty_conversations
unanswered unasked unknown_speakers
"""
"""The fields of an origin that count oddities of the file."""


class TokenFigures(TypedDict):
    """Tokens of prompts, or of answers, over all requests."""

    sum: int
    mean: float
    p50: int
    p95: int
    max: int


class GapFigures(TypedDict):
    """Intervals between arrivals of at least GAP_INTERVALS mean intervals; null without any span."""

    count: int
    total_ns: int
    longest_ns: int | None
    """The longest interval, a gap or not."""
    longest_starts_ns: int | None


class RequestsAccount(TypedDict):
    """The figures of a requests table."""

    requests: int
    span_ns: int
    requests_per_s: float | None
    input_tokens: TokenFigures
    output_tokens: TokenFigures
    conversations: int | None
    block_tokens: int | None
    block_references: int | None
    distinct_blocks: int | None
    block_reuse: float | None
    gaps: GapFigures
    oddities: JsonObject
    """Counts of oddities, or lists of names, as the origin of the requests has them."""
    nulls: dict[str, int]
    """Rows without a value, by column."""


def account(requests: Requests) -> RequestsAccount:
    """Return the figures of `requests`: counts, span, tokens, reuse, gaps, oddities, nulls.

    `block_reuse` is the share of block references to a block that an earlier reference named; with
    prefix chains it equals the hit rate of an unlimited cache. It is null without block ids.
    """
    span_ns = int(requests.arrival_ns[-1] - requests.arrival_ns[0])
    count = len(requests)
    references = len(requests.block_ids)
    distinct = len(np.unique(requests.block_ids)) if requests.block_tokens else None
    sessions = requests.session_id
    gaps: GapFigures = {
        "count": 0,
        "total_ns": 0,
        "longest_ns": None,
        "longest_starts_ns": None,
    }
    if span_ns:
        intervals = np.diff(requests.arrival_ns)
        is_gap, longest = (
            intervals >= GAP_INTERVALS * (span_ns / len(intervals)),
            int(np.argmax(intervals)),
        )
        gaps = {
            "count": int(np.count_nonzero(is_gap)),
            "total_ns": int(intervals[is_gap].sum()),
            "longest_ns": int(intervals[longest]),
            "longest_starts_ns": int(requests.arrival_ns[longest]),
        }
    nulls = {
        name: count if values is None else int(np.count_nonzero(values == NONE))
        for name, values in (
            ("session_id", sessions),
            ("turn", requests.turn),
            ("qos", requests.qos),
        )
    }
    nulls["block_ids"] = 0 if requests.block_tokens else count
    return {
        "requests": count,
        "span_ns": span_ns,
        "requests_per_s": (count - 1) / (span_ns / 1e9) if span_ns else None,
        "input_tokens": _tokens(requests.input_tokens),
        "output_tokens": _tokens(requests.output_tokens),
        "conversations": (None if sessions is None else len(np.unique(sessions[sessions != NONE]))),
        "block_tokens": requests.block_tokens or None,
        "block_references": references if requests.block_tokens else None,
        "distinct_blocks": distinct,
        "block_reuse": 1 - distinct / references if distinct is not None and references else None,
        "gaps": gaps,
        "oddities": {
            name: requests.origin[name]
            for name in _ODDITY_NAMES.split()
            if requests.origin.get(name)
        },
        "nulls": {name: count for name, count in nulls.items() if count},
    }


def _tokens(values: Ints) -> TokenFigures:
    median, p95 = np.percentile(values, [50, 95], method="inverted_cdf").tolist()
    return {
        "sum": int(values.sum()),
        "mean": float(values.mean()),
        "p50": median,
        "p95": p95,
        "max": int(values.max()),
    }


def write(
    path: Path,
    requests: Requests,
    argv: list[str],
    seed: int,
    progress: Callable[[float], None] = lambda _rows: None,
) -> RequestsAccount:
    """Write `requests` to `path` and return their figures; `progress` receives the rows so far."""
    figures = account(requests)
    source, notes = requests.origin, list(requests.notes)
    config = {"source": source, "seed": seed}
    meta = describe(
        REQUESTS, "kvtrace", argv, config, seed=seed, source=source, notes=notes, stats=figures
    )
    with create(path, REQUESTS, meta) as out:
        for batch in batches(requests):
            out.write(batch)
            progress(out.rows)
    return figures


def lines(figures: RequestsAccount) -> list[tuple[str, str]]:
    """Return the figures as lines of (name, value) for people."""

    def tokens(token_figures: TokenFigures) -> str:
        return (
            f"mean {token_figures['mean']:,.1f}, p50 {token_figures['p50']:,}, p95 {token_figures['p95']:,}, max {token_figures['max']:,}, sum"
            f" {token_figures['sum']:,}"
        )

    rate, gaps, blocks = figures["requests_per_s"], figures["gaps"], "none"
    if figures["block_tokens"] is not None:
        reuse = "-" if figures["block_reuse"] is None else f"{100 * figures['block_reuse']:.2f} %"
        references, distinct = (
            format_count(figures["block_references"]),
            format_count(figures["distinct_blocks"]),
        )
        blocks = (
            f"{references} of {figures['block_tokens']} tokens, {distinct} distinct, reuse {reuse}"
        )
    rows = [
        ("requests", format_count(figures["requests"])),
        (
            "span",
            format_duration(figures["span_ns"])
            + ("" if rate is None else f", {rate:.3g} requests/s"),
        ),
        ("input tokens", tokens(figures["input_tokens"])),
        ("output tokens", tokens(figures["output_tokens"])),
        (
            "conversations",
            "none" if figures["conversations"] is None else format_count(figures["conversations"]),
        ),
        ("blocks", blocks),
        ("longest interval", format_duration(gaps["longest_ns"])),
        (
            f"gaps ({GAP_INTERVALS} mean intervals)",
            f"{gaps['count']}, {format_duration(gaps['total_ns'])} in total",
        ),
    ]
    rows += [
        (
            name.replace("_", " "),
            (", ".join(map(str, value)) if isinstance(value, list) else f"{value:,}"),
        )
        for name, value in figures["oddities"].items()
    ]
    if nulls := [f"{name} in {counted(count, 'row')}" for name, count in figures["nulls"].items()]:
        rows.append(("null", ", ".join(nulls)))
    return rows
