"""The I/O that fio did, from its latency logs and the iologs it writes, as `Stream`s in order of issue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvdistill.formats.fio import logged_latencies
from kvdistill.formats.iolog import logged_ios
from kvdistill.profile.profile import Profile

_US_PER_MS = 1000
_NS_PER_US = 1000


@dataclass(frozen=True, slots=True)
class Stream:
    """I/Os in order of issue; `us` are issue times in microseconds, true to `resolution_us`."""

    us: NDArray[np.int64]
    is_read: NDArray[np.bool_]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    arrival: NDArray[np.int64]
    """Which arrival each I/O belongs to, from 0: gaps are between arrivals, each at its first I/O's time."""
    resolution_us: int = 1
    span_us: int | None = None
    """How long it went on, where that is known better than from its first and last I/O."""

    @property
    def seconds(self) -> float | None:
        """The span in seconds; null if it is 0."""
        span = self.span_us if self.span_us is not None else int(self.us[-1] - self.us[0]) if len(self.us) else 0
        return span / 1e6 if span else None

    @property
    def arrivals_us(self) -> NDArray[np.int64]:
        """When each arrival began, by its number."""
        first = np.full(int(self.arrival.max()) + 1 if len(self.arrival) else 0, np.iinfo(np.int64).max)
        np.minimum.at(first, self.arrival, self.us)
        return first


def asked_stream(parts: Iterable[dict[str, Any]], *, by_instant: bool) -> Stream:
    """Return the I/Os that fio is to issue, from the parts that `iolog.split_ios` yields.

    An arrival is what is due at one instant, or one operation.
    """
    listed = list(parts)
    whole = {name: np.concatenate([part[name] for part in listed]) for name in listed[0]}
    begins = np.diff(whole["us"], prepend=0) > 0 if by_instant else whole["part"] == 0
    return Stream(whole["us"], whole["is_read"], whole["offset"], whole["length"], np.cumsum(begins) - 1)


def profile_stream(profile: Profile) -> Stream:
    """Return I/Os of the profile's sizes, for a source that knows neither times nor places."""
    both = [(d, is_read) for d, is_read in ((profile.read, True), (profile.write, False)) if d.ops]
    length = np.concatenate(
        [np.repeat([s.io_bytes for s in d.sizes], [s.ops for s in d.sizes]) for d, _is_read in both]
    )
    is_read = np.concatenate([np.full(d.ops, is_read) for d, is_read in both])
    zero = np.zeros(len(length), dtype=np.int64)
    return Stream(zero, is_read, zero, length, zero, span_us=profile.span_ns // _NS_PER_US)


def replayed_stream(logs: Sequence[Path], source: Stream, *, is_submission: bool) -> Stream:
    """Return the I/Os of a replay of `source` from fio's latency logs, one a job, in order of issue.

    Submission logs have the time of issue in whole milliseconds; completion logs that of completion, and the
    latency in nanoseconds. Within a millisecond the order is the source's.
    """
    jobs = len(logs)
    us = np.full(len(source.us), -1, dtype=np.int64)
    for index, log in enumerate(logs):
        time_ms, latency_ns, direction, length, offset = logged_latencies(log)
        mine = slice(index, None, jobs)
        same = (direction == 0, source.is_read[mine]), (length, source.length[mine]), (offset, source.offset[mine])
        if not all(np.array_equal(a, b) for a, b in same):
            return _unlike(logs)
        us[mine] = time_ms * _US_PER_MS - (0 if is_submission else latency_ns // _NS_PER_US)
    order = np.argsort(us // _US_PER_MS, kind="stable")
    return Stream(
        us[order],
        source.is_read[order],
        source.offset[order],
        source.length[order],
        source.arrival[order],
        resolution_us=_US_PER_MS,
    )


def _unlike(logs: Sequence[Path]) -> Stream:
    """Return the I/Os in `logs` of a replay that differ from the source's."""
    columns = [np.concatenate(column) for column in zip(*(logged_latencies(log) for log in logs), strict=True)]
    order = np.argsort(columns[0], kind="stable")
    time_ms, _latency, direction, length, offset = (column[order] for column in columns)
    return Stream(time_ms * _US_PER_MS, direction == 0, offset, length, np.arange(len(order)), _US_PER_MS)


def drawn_stream(logs: Sequence[Path], span_us: int | None) -> Stream:
    """Return the I/Os of all jobs' written iologs, merged by time."""
    parts = [logged_ios(log) for log in logs]
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(whole["us"], kind="stable")
    us, is_read, offset, length = (whole[name][order] for name in ("us", "is_read", "offset", "length"))
    return Stream(us, is_read, offset, length, np.arange(len(order)), span_us=span_us)
