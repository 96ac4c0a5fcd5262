"""Figures of several sides, one line each, with ratios to the first side."""

from __future__ import annotations

from typing import Any

import msgspec

from kvtrace.core.statistics import DEFINITION, Ratio

Key = tuple[str, str, str]
"""Tier or layer, operation, figure."""


class ComparedSide(msgspec.Struct, frozen=True, kw_only=True):
    """One figure on one side; null where not all of its trials know it."""

    median: float | None
    low: float | None
    high: float | None
    ratio: Ratio
    """To the first side."""
    trials: list[float | None] = []
    """One value a trial."""


class ComparedLine(msgspec.Struct, frozen=True, kw_only=True):
    """One figure on all sides."""

    tier: str
    op: str
    name: str
    sides: list[ComparedSide]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Traces, runs or probes beside each other."""

    verdict: str
    """One sentence a side: how it does beside the first, and how sure that is."""
    names: list[str]
    kind: str
    """What all sides are: trace, run or probe; `run and trace` where runs stand beside what was simulated."""
    trials: list[int]
    settings: dict[str, list[Any]]
    """Those that differ, one value a side, what changes a run most first; null where a side does not have it."""
    warnings: list[str]
    lines: list[ComparedLine]
    definition: str = DEFINITION
