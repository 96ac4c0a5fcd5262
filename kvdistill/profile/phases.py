"""Cut a stream into phases where a test says so: a change of mix, or of an open loop's rate, beyond chance and noise.

A likelihood-ratio test with a penalty: noise is estimated from neighbouring buckets, so that what merely fluctuates
is one phase, and a change must be worth telling, not only certain.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_PHASES = 8
_MIN_SHARE = 0.04
"""The shortest phase, of the whole span: fio starts a phase some milliseconds late."""
_MIN_OPS = 20
"""Operations that a phase needs on average: of fewer no rate is known."""
_SHORT = 0.1
"""A stall of the device and what catches up after it are each shorter than this share of the span."""
_ALIKE = 0.1
_WORTH = 0.004
"""Nats an operation that one more phase must explain: a read share that changes by 0.09, a rate by a fifth."""


def cut(counts: NDArray[np.int64], *, has_rate: bool) -> list[tuple[int, int]]:
    """Return the first bucket of each phase and the first one after it, in order; phases cover all buckets.

    `counts` is (kinds of operations, buckets of equal time). Without a rate, a change of it is none: a closed loop is
    as fast as the device. That nothing comes at all is a change in any case.
    """
    n, total = counts.shape[1], int(counts.sum())
    shortest = max(1, round(n * _MIN_SHARE))
    most = max(1, min(MAX_PHASES, total // _MIN_OPS, n // shortest))
    cost = _costs(counts.astype(np.float64), shortest, has_rate=has_rate)
    best, came = [cost[0]], [np.zeros(n + 1, dtype=np.int64)]
    for _phase in range(1, most):
        through = best[-1][:, None] + cost
        came.append(through.argmin(axis=0))
        best.append(through.min(axis=0))
    # A cut has a place, and each phase a share for each kind.
    freedom = counts.shape[0] + 1
    penalty = max(freedom / 2 * float(np.log(max(total, 2))), _WORTH * total)
    phases = min(range(most), key=lambda k: float(best[k][n]) + k * penalty)
    cuts, end = [n], n
    for phase in range(phases, 0, -1):
        end = int(came[phase][end])
        cuts.append(end)
    return _joined(counts, list(pairwise([0, *sorted(cuts)])))


def _joined(counts: NDArray[np.int64], phases: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return `phases` without stalls: short ones that, with what catches up after them, keep their neighbour's rate."""
    n = counts.shape[1]
    for first in range(len(phases)):
        for last in range(len(phases) - 1, first, -1):
            begin, end = phases[first][0], phases[last][1]
            whole = counts[:, begin:end].sum(axis=1) / (end - begin)
            kept = [p for p in phases[first : last + 1] if p[1] - p[0] > _SHORT * n]
            alike = [counts[:, a:b].sum(axis=1) / (b - a) for a, b in kept]
            if kept and all(float(np.abs(rate - whole).sum()) <= _ALIKE * float(whole.sum()) for rate in alike):
                return _joined(counts, [*phases[:first], (begin, end), *phases[last + 1 :]])
    return phases


def _costs(counts: Any, shortest: int, *, has_rate: bool) -> Any:
    """Return minus the log-likelihood of each stretch from bucket i to before j, but for what no cut changes."""
    n = counts.shape[1]
    whole = counts.sum(axis=0)
    if has_rate:
        rate, noise = whole[None, :], _noise(whole)
    else:
        # Whether there is anything: half a bucket is as long as the loop's pauses may be.
        rate, noise = (whole > 0)[None, :] * whole.mean(), 1.0
    mixed = _mix_noise(counts)
    done = [np.concatenate([np.zeros((len(x), 1)), np.cumsum(x, axis=1)], axis=1) for x in (counts, rate)]
    cost = np.full((n + 1, n + 1), np.inf)
    for start in range(n):
        ends = np.arange(start + shortest, n + 1)
        if not len(ends):
            continue
        kinds, rates = (d[:, ends] - d[:, [start]] for d in done)
        of_mix = _deviance(kinds, np.maximum(kinds.sum(axis=0), 1e-300)) / mixed
        cost[start, ends] = of_mix + _deviance(rates, ends - start) / noise
    return cost


def _deviance(counts: Any, lengths: Any) -> Any:
    rate = counts / lengths
    return -np.where(counts > 0, counts * np.log(np.maximum(rate, 1e-300)), 0).sum(axis=0)


def _noise(counts: Any) -> float:
    """Return how much more neighbouring buckets differ than by chance; at least 1."""
    mean = counts.mean()
    if len(counts) < 3 or not mean:  # noqa: PLR2004 - two differences
        return 1.0
    return max(1.0, float(np.median(np.square(np.diff(counts)))) / (2 * mean * 0.455))


def _mix_noise(counts: Any) -> float:
    """Return the same for the shares of kinds, by the chi-square statistic of each pair of neighbours."""
    kinds, n = counts.shape
    if kinds == 1 or n < 3:  # noqa: PLR2004 - two differences
        return 1.0
    left, right = counts[:, :-1], counts[:, 1:]
    a, b = left.sum(axis=0), right.sum(axis=0)
    both = np.maximum(left + right, 1e-300)
    square = np.square(left * np.sqrt(b / np.maximum(a, 1)) - right * np.sqrt(a / np.maximum(b, 1))) / both
    known = (a > 0) & (b > 0)
    used = int((counts.sum(axis=1) > 0).sum())
    if not known.any() or used < 2:  # noqa: PLR2004 - one kind has no shares
        return 1.0
    return max(1.0, float(square.sum(axis=0)[known].mean()) / (used - 1))
