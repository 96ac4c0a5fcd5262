"""Which requests of a file wait for which others: the graph that a closed loop follows, whatever it came from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Waits:
    """Requests that come after others: the k-th wait is of request `row[k]` for `before[k]`, which has a lower number.

    A request with several waits comes when the last of them is over (a join), and not before its `not_before_ns`.
    One without any comes at its recorded time.
    """

    row: Ints
    before: Ints
    delay_ns: Ints
    """How long after the end of the answer to `before`, or after its start."""
    is_of_start: NDArray[np.bool_]
    """Whether the wait is for `before` to start, not for its answer to end."""
    not_before_ns: Ints
    """[requests]"""

    @classmethod
    def of(cls, requests: int, waits: Iterable[tuple[int, int, int, bool]], not_before_ns: Ints | None = None) -> Self:
        """Return the waits of so many `requests` from tuples of (row, before, delay_ns, is_of_start)."""
        table = np.array([tuple(map(int, wait)) for wait in waits], dtype=np.int64).reshape(-1, 4)
        least = np.zeros(requests, dtype=np.int64) if not_before_ns is None else not_before_ns
        return cls(table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(bool), least)

    def __len__(self) -> int:
        """Return how many waits there are."""
        return len(self.row)

    @property
    def followers(self) -> int:
        """How many requests wait for another."""
        return len(np.unique(self.row))

    def kept(self, rows: Ints, since_ns: int = 0) -> Self:
        """Return what is left with the requests `rows` alone, in that order, on a clock that starts at `since_ns`.

        A wait for a request that is not among them is dropped.
        """
        place = np.full(len(self.not_before_ns), -1, dtype=np.int64)
        place[rows] = np.arange(len(rows))
        least = np.maximum(0, self.not_before_ns[rows] - since_ns)
        which = np.flatnonzero((place[self.row] >= 0) & (place[self.before] >= 0))
        return self._chosen(which, place[self.row[which]], place[self.before[which]], least)

    def repeated(self, times: int, period_ns: int) -> Self:
        """Return the waits of the same requests so many `times` over, each time `period_ns` later."""
        count, which = len(self.not_before_ns), np.tile(np.arange(len(self)), times)
        shift = np.repeat(np.arange(times), len(self)) * count
        least = np.tile(self.not_before_ns, times) + np.repeat(np.arange(times), count) * period_ns
        return self._chosen(which, self.row[which] + shift, self.before[which] + shift, least)

    def scaled(self, factor: float) -> Self:
        """Return the waits with all times multiplied."""
        delays, least = (np.rint(times * factor).astype(np.int64) for times in (self.delay_ns, self.not_before_ns))
        return replace(self, delay_ns=delays, not_before_ns=least)

    def _chosen(self, which: Ints, row: Ints, before: Ints, least: Ints) -> Self:
        """Return the waits `which`, now between the requests `row` and `before`."""
        times = self.delay_ns[which], self.is_of_start[which]
        return replace(self, row=row, before=before, delay_ns=times[0], is_of_start=times[1], not_before_ns=least)
