"""Exact distributions of sizes made readable: percentiles, the most common sizes, and powers of two."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from kvtrace.core.statistics import nearest_rank

TOP_SIZES = 5
_SIZE_QUANTILES = {"p50_bytes": 5000, "p99_bytes": 9900}


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Summarise exact distributions: the most common sizes, and percentiles where there are enough operations.

    `rows` have tier, op, length_bytes (ascending within these) and ops.
    """
    result = []
    for (tier, op), group in groupby(rows, key=lambda row: (row["tier"], row["op"])):
        sizes = [(row["length_bytes"], row["ops"]) for row in group]
        total = sum(ops for _size, ops in sizes)
        top = sorted(sizes, key=lambda pair: (-pair[1], pair[0]))[:TOP_SIZES]
        result.append(
            {"tier": tier, "op": op, "ops": total, "distinct": len(sizes), "min_bytes": sizes[0][0]}
            | {name: _percentile(sizes, total, part) for name, part in _SIZE_QUANTILES.items()}
            | {
                "max_bytes": sizes[-1][0],
                "mean_bytes": sum(size * ops for size, ops in sizes) / total,
                "top": [{"length_bytes": size, "ops": ops, "share": ops / total} for size, ops in top],
            }
        )
    return result


def bins(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return operations and bytes by tier, op and power of two: `low_bytes` <= length < 2 * `low_bytes`; 0 for none."""
    found: dict[tuple[str, str, int], list[int]] = {}
    for row in rows:
        size, ops = row["length_bytes"], row["ops"]
        count = found.setdefault((row["tier"], row["op"], 1 << (size.bit_length() - 1) if size else 0), [0, 0])
        count[0] += ops
        count[1] += ops * size
    return [
        {"tier": tier, "op": op, "low_bytes": low, "ops": ops, "bytes": total}
        for (tier, op, low), (ops, total) in found.items()
    ]


def _percentile(sizes: list[tuple[int, int]], total: int, part: int) -> int | None:
    """Return the nearest-rank percentile (`part` in ten-thousandths) of ascending (size, count) pairs, or null."""
    rank, done = nearest_rank(total, part), 0
    if rank is None:
        return None
    for size, count in sizes:
        done += count
        if done >= rank:
            return size
    raise AssertionError
