"""What may be said of a difference between repeated measurements: one definition for every program."""

from __future__ import annotations

import warnings
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIDENCE = 0.95
FEWEST_TRIALS = 3
"""With fewer, an interval says little; with one there is none."""
DEFINITION = (
    "ratio: of the medians; its interval: 95 % confidence of the ratio of the trials' geometric means, by Welch's t "
    "over their logarithms; differs: the interval does not hold 1"
)
_EQUAL = 1e-9


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """How a figure compares with the same one of the first side; null where the trials do not tell."""

    value: float | None
    """The ratio of the medians."""
    low: float | None
    high: float | None
    differs: bool | None


UNKNOWN = Ratio(value=None, low=None, high=None, differs=None)


def ratio(first: Sequence[float | None], other: Sequence[float | None]) -> Ratio:
    """Return how the trials of `other` compare with those of `first`, whose nulls are trials that do not know."""
    a, b = ([value for value in values if value is not None] for values in (first, other))
    if not a or not b or len(a) < len(first) or len(b) < len(other) or not median(a):
        return UNKNOWN
    low, high = _interval(a, b)
    differs = None if low is None or high is None else not low <= 1 <= high
    return Ratio(value=median(b) / median(a), low=low, high=high, differs=differs)


def _interval(a: list[float], b: list[float]) -> tuple[float | None, float | None]:
    if min(len(a), len(b)) == 1 or min(*a, *b) <= 0:
        return None, None
    import numpy as np
    from scipy import stats

    logs_a, logs_b = np.log(a), np.log(b)
    if np.ptp(logs_a) < _EQUAL and np.ptp(logs_b) < _EQUAL:
        # Trials that agree to the last digit: there is nothing to be uncertain of, and no t.
        exact = float(np.exp(logs_b.mean() - logs_a.mean()))
        return exact, exact
    with warnings.catch_warnings():
        # One side may well agree to the last digit, which scipy suspects of lost precision.
        warnings.simplefilter("ignore", RuntimeWarning)
        found = stats.ttest_ind(logs_b, logs_a, equal_var=False).confidence_interval(CONFIDENCE)
    return float(np.exp(found.low)), float(np.exp(found.high))


def differing(sides: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the settings that are not the same on all `sides`, one value a side; nested names are joined by a dot."""
    flat = [_flat(side) for side in sides]
    names = dict.fromkeys(name for side in flat for name in side)
    values = {name: [side.get(name) for side in flat] for name in names}
    return {name: row for name, row in values.items() if any(value != row[0] for value in row)}


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix: tree}
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flat(value, f"{prefix}.{name}" if prefix else str(name))
    return flat
