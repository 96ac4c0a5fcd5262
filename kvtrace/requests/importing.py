"""Write a source of requests as our own requests table, and say what it held and what it did not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvtrace.core.metadata import describe
from kvtrace.core.schema import REQUESTS
from kvtrace.core.tables import create
from kvtrace.requests.account import GAP_INTERVALS, account
from kvtrace.requests.own_table import batches

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvtrace.requests.requests import Requests


def write(
    path: Path, requests: Requests, argv: list[str], seed: int, progress: Callable[[float], None] = lambda _rows: None
) -> dict[str, Any]:
    """Write `requests` to `path` and return the account of them; `progress` takes the rows so far."""
    figures = account(requests)
    config = {"source": requests.origin, "seed": seed}
    meta = describe(
        REQUESTS, "kvtrace", argv, config, seed=seed, source=requests.origin, notes=list(requests.notes),
        stats=figures,
    )  # fmt: skip
    with create(path, REQUESTS, meta) as out:
        for batch in batches(requests):
            out.write(batch)
            progress(out.rows)
    return figures


def lines(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the account as (what, how much), for people."""
    from kvtrace.core.units import format_count, format_duration

    def tokens(name: str) -> str:
        of = figures[name]
        return f"mean {of['mean']:,.1f}, p50 {of['p50']:,}, p95 {of['p95']:,}, max {of['max']:,}, sum {of['sum']:,}"

    rate, gaps = figures["requests_per_s"], figures["gaps"]
    found = [
        ("requests", format_count(figures["requests"])),
        ("span", format_duration(figures["span_ns"]) + ("" if rate is None else f", {rate:.3g} requests/s")),
        ("input tokens", tokens("input_tokens")),
        ("output tokens", tokens("output_tokens")),
        ("conversations", "none" if figures["conversations"] is None else format_count(figures["conversations"])),
        ("blocks", _blocks(figures)),
        ("longest interval", format_duration(gaps["longest_ns"])),
        (f"gaps ({GAP_INTERVALS} mean intervals)", f"{gaps['count']}, {format_duration(gaps['total_ns'])} in all"),
    ]
    found += [(name.replace("_", " "), _text(value)) for name, value in figures["oddities"].items()]
    if figures["nulls"]:
        found.append(("null", ", ".join(f"{name} in {count:,} rows" for name, count in figures["nulls"].items())))
    return found


def _blocks(figures: dict[str, Any]) -> str:
    from kvtrace.core.units import format_count

    if figures["block_tokens"] is None:
        return "none"
    reuse = "-" if figures["block_reuse"] is None else f"{100 * figures['block_reuse']:.2f} %"
    references, distinct = format_count(figures["block_references"]), format_count(figures["distinct_blocks"])
    return f"{references} of {figures['block_tokens']} tokens, {distinct} distinct, reuse {reuse}"


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else f"{value:,}"
