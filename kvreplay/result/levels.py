"""How a tier's service times depend on how much is in flight: the same drive under less load, from one run.

Twice as much in flight that moves twice as much tells of a drive that could take more; that moves the same, of one that
is at its limit. Both are Little's law (in flight = rate x service time) at two levels of what is in flight.
"""

from __future__ import annotations

from typing import Any

import numpy as np

LEAST = 8
"""Operations of one kind and length at a level, for a median."""
LEAST_LOW = 4
"""The same at the lowest: few are served before a queue has filled, and what is asked of their ratio is large."""
MOST_KINDS = 16
LEAST_LEVEL = 4
"""In flight at least, to halve."""
FULL, HALF, LOW = 0.8, (0.35, 0.6), 0.125
"""Levels, as parts of the greatest that is usual."""
_USUAL_PERCENT = 95
DISAGREE = 0.4
"""Gains further apart tell nothing."""


def levels_of(submitted: Any, completed: Any, kind: Any) -> tuple[float | None, float | None]:
    """Return what doubling gained and the slowdown under load, as in `Evidence`, of operations of one I/O each.

    They are in the order of their submission; `kind` (int64) tells apart what cannot be compared: operations and
    lengths.
    """
    service = completed - submitted
    if not len(service) or (service <= 0).any():
        return None, None
    ends = np.sort(completed)
    at_start = np.arange(1, len(service) + 1) - np.searchsorted(ends, submitted, side="right")
    meanwhile = _mean_level(submitted, ends, completed) / service
    usual = float(np.percentile(at_start, _USUAL_PERCENT))
    if usual < LEAST_LEVEL:
        return None, None
    gains = [_gain(level, usual, service, kind) for level in (at_start, meanwhile)]
    slowdown = _ratio(service, kind, at_start >= FULL * usual, at_start <= max(1.0, LOW * usual), LEAST_LOW)
    known = [gain for gain in gains if gain is not None]
    is_agreed = len(known) == len(gains) and abs(known[0] - known[1]) <= DISAGREE
    return (sum(known) / len(known) if is_agreed else None), slowdown


def _mean_level(submitted: Any, ends: Any, completed: Any) -> Any:
    """Return for each operation what was in flight while it was, added up over its time."""
    times = np.concatenate([submitted, ends])
    order = np.argsort(times, kind="stable")
    times = times[order]
    level = np.cumsum(np.where(order < len(submitted), 1, -1))
    passed = np.concatenate([[0], np.cumsum(level[:-1] * np.diff(times))]).astype(np.float64)
    return np.interp(completed, times, passed) - np.interp(submitted, times, passed)


def _gain(level: Any, usual: float, service: Any, kind: Any) -> float | None:
    full, half = level >= FULL * usual, (level >= HALF[0] * usual) & (level <= HALF[1] * usual)
    slower = _ratio(service, kind, full, half)
    if slower is None:
        return None
    more = float(np.mean(level[full]) / np.mean(level[half]))
    # The gain of so much more in flight, as that of twice as much.
    return float((more / slower) ** (1 / np.log2(more)) - 1)


def _ratio(service: Any, kind: Any, upper: Any, lower: Any, least: int = LEAST) -> float | None:
    """Return the median service time at the upper level over that at the lower, over kinds that both have enough of."""
    found, weights = [], []
    kinds, counts = np.unique(kind[lower], return_counts=True)
    for each in kinds[np.argsort(-counts, kind="stable")[:MOST_KINDS]]:
        above, below = service[upper & (kind == each)], service[lower & (kind == each)]
        if len(above) >= LEAST and len(below) >= least:
            found.append(float(np.median(above) / np.median(below)))
            weights.append(min(len(above), len(below)))
    return float(np.average(found, weights=weights)) if found else None
