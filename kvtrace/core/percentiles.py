"""One definition of a percentile for every program: nearest rank over all values, null where they are too few."""

from __future__ import annotations

from typing import Final

QUANTILES: Final = {"p50": 5000, "p95": 9500, "p99": 9900, "p99_9": 9990, "p99_99": 9999}
"""Percentiles in ten-thousandths: in floating point 1 / (1 - 0.9999) is not 10,000."""
_WHOLE = 10_000


def nearest_rank(count: int, part: int) -> int | None:
    """Return the rank, from 1, of the percentile `part` (ten-thousandths) of `count` values.

    Null with fewer than 1 / (1 - q) values, which cannot tell it.
    """
    return -(-count * part // _WHOLE) if count * (_WHOLE - part) >= _WHOLE else None
