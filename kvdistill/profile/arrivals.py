"""The arrival process of a stream in order of time: instants, bursts, gaps, the rate over time, and its phases."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvdistill.profile.profile import ArrivalProfile
from kvtrace.core.statistics import SLOTS, count, to_slots

BUCKETS = 240
"""Stretches of equal time that the rate is given for."""


class ArrivalCounter:
    """Counts instants, bursts and gaps of times that come in order, part by part."""

    def __init__(self) -> None:
        """Count from nothing."""
        self._bursts = np.zeros(SLOTS, dtype=np.int64)
        self._gaps = np.zeros(SLOTS, dtype=np.int64)
        self._instants = self._gap_count = self._burst = 0
        self._sum = self._squares = 0.0
        self._last: int | None = None

    def add(self, ts_ns: NDArray[np.int64]) -> None:
        """Count times that are not before any counted so far."""
        if not len(ts_ns):
            return
        begins = np.flatnonzero(np.diff(ts_ns, prepend=ts_ns[0] - 1))
        times, bursts = ts_ns[begins], np.diff(begins, append=len(ts_ns))
        if self._last == int(times[0]):
            bursts[0] += self._burst
        elif self._last is not None:
            self._close()
        gaps = np.diff(times) if self._last is None else np.diff(times, prepend=self._last)
        gaps = gaps[gaps > 0]
        self._gaps += count(gaps)
        self._gap_count += len(gaps)
        self._sum += float(gaps.sum())
        self._squares += float(np.square(gaps.astype(np.float64)).sum())
        self._bursts += count(bursts[:-1])
        self._instants += len(bursts) - 1
        self._last, self._burst = int(times[-1]), int(bursts[-1])

    def _close(self) -> None:
        self._bursts += count(np.array([self._burst]))
        self._instants += 1
        self._burst = 0

    def result(self, rates: list[dict[str, Any]], bucket_ns: int) -> ArrivalProfile | None:
        """Return what was counted, with `rates` (bucket, ops and bytes by direction); null if all is one instant.

        It ends the count.
        """
        if self._burst:
            self._close()
        if self._instants < 2:  # noqa: PLR2004 - one instant has no gaps
            return None
        lists = {name: _filled(rates, name) for name in ("read_ops", "write_ops", "read_bytes", "write_bytes")}
        mean = self._sum / self._gap_count
        variance = max(0.0, self._squares / self._gap_count - mean**2)
        ops = np.array(lists["read_ops"]) + np.array(lists["write_ops"])
        return ArrivalProfile(
            bucket_ns=bucket_ns,
            **lists,
            instants=self._instants,
            bursts=to_slots(self._bursts),
            gaps=to_slots(self._gaps),
            gap_mean_ns=mean,
            gap_cv=variance**0.5 / mean if mean else None,
            dispersion=float(ops.var() / ops.mean()) if len(ops) > 1 and ops.any() else None,
        )


def _filled(rates: list[dict[str, Any]], name: str) -> list[int]:
    """Return one column of `rates` with 0 for the buckets that have no row: nothing came in them."""
    values = [0] * (max(row["bucket"] for row in rates) + 1)
    for row in rates:
        values[row["bucket"]] = row[name]
    return values


MAX_PHASES = 8
MIN_SHARE = 0.04
"""The shortest phase, of the whole span: fio starts a phase some milliseconds late."""
_MIN_INSTANTS = 20
"""Arrivals that a phase needs on average: of fewer no rate is known."""
_PENALTY = 0.02
"""Share of the whole deviance that one more phase must explain: bursts are no phases."""


def cut(arrivals: ArrivalProfile) -> list[tuple[int, int]]:
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
