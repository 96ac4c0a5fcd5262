"""The arrival process of a stream in order of time: instants, bursts, gaps, the rate over time, how bursty it is."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvdistill.profile.profile import ArrivalProfile, Dispersion
from kvtrace.core.statistics import SLOTS, count, to_slots

BUCKETS = 240
"""Stretches of equal time that the rate is given for."""
_WINDOWS_NS = {"in_1ms": 10**6, "in_100ms": 10**8, "in_10s": 10**10}
_LEAST_WINDOWS = 5


class _Windows:
    """Counts times by windows of one length from the first time on, part by part."""

    def __init__(self, length_ns: int) -> None:
        self._length_ns = length_ns
        self._first_ns: int | None = None
        self._at = self._open = self._sum = self._squares = 0

    def add(self, ts_ns: NDArray[np.int64]) -> None:
        """Count times that are not before any counted so far."""
        if self._first_ns is None:
            self._first_ns = int(ts_ns[0])
        index, counts = np.unique((ts_ns - self._first_ns) // self._length_ns, return_counts=True)
        if index[0] == self._at:
            counts[0] += self._open
        else:
            self._close(self._open)
        self._close(counts[:-1])
        self._at, self._open = int(index[-1]), int(counts[-1])

    def _close(self, counts: Any) -> None:
        self._sum += int(np.sum(counts))
        self._squares += int(np.square(counts).sum())

    @property
    def dispersion(self) -> float | None:
        """Variance by mean of the whole windows; the last is not whole."""
        if self._at < _LEAST_WINDOWS or not self._sum:
            return None
        mean = self._sum / self._at
        return (self._squares / self._at - mean**2) / mean


class ArrivalCounter:
    """Counts instants, bursts and gaps of times that come in order, part by part."""

    def __init__(self) -> None:
        """Count from nothing."""
        self._bursts = np.zeros(SLOTS, dtype=np.int64)
        self._gaps = np.zeros(SLOTS, dtype=np.int64)
        self._instants = self._gap_count = self._burst = 0
        self._sum = 0
        self._windows = {name: _Windows(length) for name, length in _WINDOWS_NS.items()}
        self._last: int | None = None

    def add(self, ts_ns: NDArray[np.int64]) -> None:
        """Count times that are not before any counted so far."""
        if not len(ts_ns):
            return
        for windows in self._windows.values():
            windows.add(ts_ns)
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
        self._sum += int(gaps.sum())
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
        # A bucket without a row is one in which nothing came.
        held = {row["bucket"]: row for row in rates}
        whole = [held.get(bucket, {}) for bucket in range(max(held) + 1)]
        names = ("read_ops", "write_ops", "read_bytes", "write_bytes")
        lists = {name: [row.get(name, 0) for row in whole] for name in names}
        return ArrivalProfile(
            bucket_ns=bucket_ns,
            **lists,
            instants=self._instants,
            bursts=to_slots(self._bursts),
            gaps=to_slots(self._gaps),
            gap_mean_ns=self._sum / self._gap_count,
            dispersion=Dispersion(**{name: windows.dispersion for name, windows in self._windows.items()}),
        )
