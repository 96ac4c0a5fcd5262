"""Cut a run into phases: stretches in which reads and writes keep about one rate.

The cuts are those of the greatest likelihood if arrivals were Poisson within a phase, by dynamic programming over
the buckets of the rate; a further phase must explain clearly more than chance does.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from kvdistill.profile.profile import Arrivals

MAX_PHASES = 8
MIN_SHARE = 0.04
"""The shortest phase, of the whole span: fio starts a phase some milliseconds late."""
_MIN_INSTANTS = 20
"""Arrivals that a phase needs on average: of fewer no rate is known."""
_PENALTY = 0.02
"""Share of the whole deviance that one more phase must explain: bursts are no phases."""


def cut(arrivals: Arrivals) -> list[tuple[int, int]]:
    """Return the first bucket of each phase and the first one after it, in order; phases cover all buckets."""
    counts = np.array([arrivals.read_ops, arrivals.write_ops], dtype=np.float64)
    n = counts.shape[1]
    shortest = max(1, round(n * MIN_SHARE))
    done = np.concatenate([np.zeros((2, 1)), np.cumsum(counts, axis=1)], axis=1)
    cost = np.full((n + 1, n + 1), np.inf)
    for start in range(n):
        ends = np.arange(start + shortest, n + 1)
        cost[start, ends] = _deviance(done[:, ends] - done[:, [start]], ends - start)
    best, came = [cost[0]], [np.zeros(n + 1, dtype=np.int64)]
    most = max(1, min(MAX_PHASES, arrivals.instants // _MIN_INSTANTS))
    for _phase in range(1, most):
        through = best[-1][:, None] + cost
        came.append(through.argmin(axis=0))
        best.append(through.min(axis=0))
    floor = min(float(b[n]) for b in best)
    penalty = max(_PENALTY * (float(best[0][n]) - floor), 3 * float(np.log(n)) if n > 1 else 0.0)
    phases = min(range(most), key=lambda k: float(best[k][n]) + k * penalty)
    cuts, end = [n], n
    for phase in range(phases, 0, -1):
        end = int(came[phase][end])
        cuts.append(end)
    edges = [0, *sorted(cuts)]
    return list(pairwise(edges))


def _deviance(counts: Any, lengths: Any) -> Any:
    """Return minus the log-likelihood of Poisson counts over `lengths` buckets, but for what no cut changes."""
    rate = counts / lengths
    return -np.where(counts > 0, counts * np.log(np.maximum(rate, 1e-300)), 0).sum(axis=0)
