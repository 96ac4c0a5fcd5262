"""Who sets the pace of a stream: its own completions (a closed loop) or a clock (an open one), and how.

A closed loop keeps so many in flight: each completion lets one more in. An open loop issues at its times, whatever
is still in flight. The first needs a depth and no rate, the second a rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvdistill.profile.profile import Loop, Pacing

_MOST = 99.0
"""Percentile of what arrivals find in flight that counts as the most: a request that is split is two for a moment,
which on a fast device some arrivals in a thousand find."""
_FULL = 0.9
_FULL_PEAKS = 0.5
"""Share of the times at which arrivals pause that find a closed loop full."""
_TIMED = 0.99
_MIN_OPS = 20
"""Fewer tell nothing of a distribution."""
_EVEN_WITHIN = 0.1
_EVEN_SHARE = 0.7
"""Gaps are even if this share of them is within a tenth of the median."""
_STRETCH_GAPS, _EVEN_DISPERSION = 10, 0.3
"""Variance by mean of arrivals in stretches of so many mean gaps; chance has 1. By deciles, which no stall changes."""
_DECILES_APART = 2.563
"""Standard deviations between the first and the last decile of a normal distribution."""
_POISSON_KS = 0.1
_LEAST_PAUSE_NS = 100_000
_ALIKE_WITHIN, _ALIKE_SHARE, _REGULAR_CV = 0.3, 0.5, 0.5
"""Pauses are a setting of the program if they are this much alike and share of the idle time, and come regularly."""


@dataclass(frozen=True, slots=True)
class _Events:
    """Arrivals and completions of one stream, each in order, in ns."""

    came: NDArray[np.int64]
    done: NDArray[np.int64]

    @property
    def in_flight(self) -> NDArray[np.int64]:
        """With each arrival, itself included."""
        return np.arange(1, len(self.came) + 1) - np.searchsorted(self.done, self.came, "right")


def fit_loop(came: NDArray[np.int64], done: NDArray[np.float64] | None) -> Loop:
    """Return the simplest loop that explains arrivals at `came`, ascending; `done` may be null or hold NaN."""
    events = _events(came, done)
    if events is None:
        return Loop(pace=_open_pace(np.diff(came)), depth=None, think_ns=None, think_ops=None)
    depth = max(1, int(np.percentile(events.in_flight, _MOST, method="inverted_cdf")))
    if _is_closed(events, depth):
        think_ns, think_ops = _thinks(events)
        return Loop(pace=Pacing.CLOSED, depth=depth, think_ns=think_ns, think_ops=think_ops)
    return Loop(pace=_open_pace(np.diff(events.came)), depth=depth, think_ns=None, think_ops=None)


def _events(came: NDArray[np.int64], done: NDArray[np.float64] | None) -> _Events | None:
    if done is None or len(came) < _MIN_OPS:
        return None
    timed = ~np.isnan(done)
    if timed.mean() < _TIMED:
        return None
    return _Events(came[timed], np.sort(done[timed].astype(np.int64)))


def _is_closed(events: _Events, depth: int) -> bool:
    if depth == 1:
        # Both are even then: the one whose waits are told more closely is the clock.
        gaps, waits = np.diff(events.came), np.maximum(events.came[1:] - events.done[:-1], 0)
        return entropy(waits) < entropy(gaps)
    in_flight = events.in_flight
    # An arrival is a peak if something completes before the next one.
    completed = np.searchsorted(events.done, events.came, "right")
    peaks = in_flight[np.append(np.diff(completed) > 0, [True])]
    return float((peaks >= _FULL * depth).mean()) > _FULL_PEAKS


def entropy(values_ns: NDArray[np.int64]) -> float:
    """Return the differential entropy of `values_ns` (Vasicek, of spacings): the less, the closer they are told."""
    x = np.sort(values_ns).astype(np.float64)
    m = max(1, round(len(x) ** 0.5 / 2))
    # What is closer than a microsecond is the same.
    spaces = np.maximum(x[m:] - x[:-m], 1000.0)
    return float(np.log(spaces * len(x) / m).mean())


def _thinks(events: _Events) -> tuple[int | None, int | None]:
    """Return how long a closed loop pauses with nothing in flight, and after how many operations; null if never."""
    came, in_flight = events.came, events.in_flight
    begins = np.flatnonzero(in_flight[1:] == 1) + 1
    idle = came[begins] - events.done[begins - 1]
    if len(idle) < _MIN_OPS:
        return None, None
    # The pause is the stretch of like idle times that most of the idle time is spent in.
    order = np.argsort(idle, kind="stable")
    ordered = idle[order].astype(np.float64)
    done = np.concatenate([[0.0], np.cumsum(ordered)])
    ends = np.searchsorted(ordered, ordered * (1 + _ALIKE_WITHIN), "right")
    spent = done[ends] - done[:-1]
    at = int(spent.argmax())
    pauses = order[at : ends[at]]
    typical = float(np.median(idle[pauses]))
    # A program pauses after as many operations each time; a machine that stalls does not.
    apart = np.diff(np.sort(begins[pauses]))
    is_regular = len(apart) >= _MIN_OPS and apart.std() <= _REGULAR_CV * apart.mean()
    if typical < _LEAST_PAUSE_NS or spent[at] < _ALIKE_SHARE * done[-1] or not is_regular:
        return None, None
    return round(typical), max(1, round(float(np.median(apart))))


def _open_pace(gaps_ns: NDArray[np.int64]) -> Pacing:
    """Return how gaps between arrivals are distributed: all about the same, or as by chance, or else."""
    if len(gaps_ns) < _MIN_OPS:
        return Pacing.POISSON
    middle = float(np.median(gaps_ns))
    if middle and float((np.abs(gaps_ns - middle) <= _EVEN_WITHIN * middle).mean()) >= _EVEN_SHARE:
        return Pacing.EVEN
    # A clock whose ticks come late, but which catches up: as many in each stretch.
    done = np.cumsum(gaps_ns)
    counts = np.bincount((done // max(1, _STRETCH_GAPS * done[-1] // len(done))).astype(np.int64))[:-1]
    low, high = np.percentile(counts, (10, 90)) if len(counts) >= _MIN_OPS else (0, _STRETCH_GAPS)
    if ((high - low) / _DECILES_APART) ** 2 <= _EVEN_DISPERSION * _STRETCH_GAPS:
        return Pacing.EVEN
    return Pacing.POISSON if exponential_ks(gaps_ns) <= _POISSON_KS else Pacing.BURSTS


def exponential_ks(gaps_ns: Any) -> float:
    """Return the Kolmogorov-Smirnov distance of `gaps_ns` from an exponential distribution of their mean."""
    x = np.sort(gaps_ns).astype(np.float64)
    if not x[-1]:
        return 1.0
    told = 1 - np.exp(-x / x.mean())
    steps = np.arange(len(x) + 1) / len(x)
    return float(max(np.abs(told - steps[1:]).max(), np.abs(told - steps[:-1]).max()))
