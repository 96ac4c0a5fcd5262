"""What each second of a run brought, by place and kind of operation."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvreplay.engine.job import NOT_DONE
from kvreplay.result.counted.count import ENDED, SECOND
from kvtrace.core.statistics import nearest_rank
from kvtrace.core.units import NS_PER_S

WAITING = 1 << 18
"""Service times that are looked at together: a second is over once so many have come and none was of it."""
_P99 = 9900
_RADIX = 1 << 16


class Seconds:
    """A SECOND record for each second and kind; all but the p99 are counted as rows come, in whatever order.

    A p99 is of the service times that came until its second was over; of rows that come later it knows nothing.
    """

    def __init__(self, kinds: int) -> None:
        """Count operations of so many kinds."""
        self._kinds = kinds
        self.records = np.zeros(0, SECOND)
        self.ended, self.fill = np.empty(WAITING, ENDED), np.zeros(1, np.int64)
        self._open: dict[int, list[Any]] = {}
        """By index: service times of seconds that are not over."""

    def make_room(self, last_ns: int) -> None:
        """Make room for times up to `last_ns`."""
        wanted = (last_ns // NS_PER_S + 1) * self._kinds
        if wanted > len(self.records):
            more = np.zeros(max(wanted, 2 * len(self.records)) - len(self.records), SECOND)
            more["p99_ns"] = NOT_DONE
            self.records = np.concatenate([self.records, more])

    def flush(self, *, is_last: bool = False) -> None:
        """Sort what waits into its seconds; note the p99 of those that are over, of all if it is the last."""
        ended = self.ended[: self.fill[0]]
        self.fill[0] = 0
        seen: set[int] = set()
        if len(ended):
            key = np.ascontiguousarray(ended["key"])
            first = int(key.min())
            # 16 bits are sorted in no time.
            small = (key - first).astype(np.uint16) if int(key.max()) - first < _RADIX else key
            order = np.argsort(small, kind="stable")
            found, starts = np.unique(key[order], return_index=True)
            seen = set(found.tolist())
            for at, latency in zip(found.tolist(), np.split(ended["latency_ns"][order], starts[1:]), strict=True):
                self._open.setdefault(at, []).append(latency.copy())
        for at in list(self._open):
            if is_last or at not in seen:
                self._close(at, np.concatenate(self._open.pop(at)))

    def _close(self, at: int, latency: Any) -> None:
        rank = nearest_rank(len(latency), _P99)
        if rank is not None and self.records["p99_ns"][at] == NOT_DONE:
            latency.partition(rank - 1)
            self.records["p99_ns"][at] = latency[rank - 1]

    def found(self) -> tuple[Any, Any, Any]:
        """Return the seconds that have anything, the kinds, and their records, in this order."""
        at = np.flatnonzero(self.records["operations"] + self.records["errors"])
        return at // self._kinds, at % self._kinds, self.records[at]
