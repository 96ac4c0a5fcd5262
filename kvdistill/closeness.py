"""How close what fio did is to what the trace asks: one row of figures for each, null where not measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from kvdistill import reuse

if TYPE_CHECKING:
    from numpy.typing import NDArray

SIZE_TV_TARGET = 0.015
RATE_TARGET = 0.015
GAP_KS_TARGET = 0.03
END_SLIP_TARGET = 0.01
_KB = 1000
_MB = 1e6


@dataclass(frozen=True, slots=True)
class Stream:
    """I/Os in order of issue; `us` are issue times in microseconds, true to `resolution_us`."""

    us: NDArray[np.int64]
    is_read: NDArray[np.bool_]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    starts_op: NDArray[np.bool_]
    """True for the first part of an operation: gaps are between operations, not between their parts."""
    resolution_us: int = 1
    span_us: int | None = None
    """How long it went on, where that is known better than from its first and last I/O."""

    @property
    def seconds(self) -> float | None:
        """The span in seconds; null if it is 0."""
        span = self.span_us if self.span_us is not None else int(self.us[-1] - self.us[0]) if len(self.us) else 0
        return span / 1e6 if span else None

    def head(self, count: int) -> Stream:
        """Return the first `count` I/Os."""
        return Stream(
            self.us[:count], self.is_read[:count], self.offset[:count], self.length[:count],
            self.starts_op[:count], self.resolution_us,
        )  # fmt: skip


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the closeness table; distances are from the source and null for the source itself."""

    name: str
    ios: int
    read_share: float
    ios_per_s: float | None
    bytes_per_s: float | None
    size_tv: float | None = None
    """Total variation distance of the sizes, by direction."""
    size_emd_bytes: float | None = None
    """Earth mover's distance of the sizes, by direction."""
    gap_ks: float | None = None
    """Kolmogorov-Smirnov distance of the gaps between operations."""
    gap_resolution_us: int | None = None
    """How finely both sides' times were known for `gap_ks`."""
    hot10_share: float | None = None
    """Share of accesses to the hottest 10 % of 128 KiB blocks."""
    reuse_p50_blocks: float | None = None
    """Median distinct 128 KiB blocks between two accesses to one."""
    mean_depth: float | None = None
    end_slip: float | None = None
    """How much later than asked the last I/O was issued, relative to the span."""
    has_same_ios: bool | None = None
    """Whether every I/O is the source's, in its order; null for jobs that draw at random."""


class Verdict(msgspec.Struct, frozen=True):
    """A target, what was reached, and whether that passes; null if it was not measured."""

    name: str
    target: str
    value: float | bool | None
    passes: bool | None


def source_figures(name: str, stream: Stream, window: Stream | None = None) -> Figures:
    """Return the figures of the source; locality over `window`, a part as long as what it is compared with."""
    return _figures(name, stream, window if window is not None else stream)


def job_figures(name: str, stream: Stream, source: Stream, *, is_replay: bool, mean_depth: float | None) -> Figures:
    """Return the figures of what fio did and its distances from `source`."""
    figures = _figures(name, stream, stream)
    resolution_us = max(stream.resolution_us, source.resolution_us)
    same = _has_same_ios(stream, source) if is_replay else None
    return msgspec.structs.replace(
        figures, size_tv=size_tv(stream, source), size_emd_bytes=size_emd_bytes(stream, source),
        gap_ks=ks_distance(gaps_us(stream, resolution_us), gaps_us(source, resolution_us)) if source.seconds else None,
        gap_resolution_us=resolution_us, mean_depth=mean_depth, has_same_ios=same,
        end_slip=_end_slip(stream, source) if is_replay and same else None,
    )  # fmt: skip


def verdicts(figures: Figures, source: Figures, *, is_replay: bool) -> list[Verdict]:
    """Return each defined target against what was reached."""
    rows = [
        _within("read share", "within 1.5 %", _relative(figures.read_share, source.read_share), RATE_TARGET),
        _within("I/Os a second", "within 1.5 %", _relative(figures.ios_per_s, source.ios_per_s), RATE_TARGET),
        _within("bytes a second", "within 1.5 %", _relative(figures.bytes_per_s, source.bytes_per_s), RATE_TARGET),
        _within("size TV", f"<= {SIZE_TV_TARGET}", figures.size_tv, SIZE_TV_TARGET),
    ]
    if is_replay:
        rows += [
            _within("gap KS", f"<= {GAP_KS_TARGET}", figures.gap_ks, GAP_KS_TARGET),
            _within("end slip", "<= 1 %", figures.end_slip, END_SLIP_TARGET),
            Verdict("same I/Os in order", "yes", figures.has_same_ios, figures.has_same_ios),
        ]
    return rows


def _within(name: str, target: str, value: float | None, bound: float) -> Verdict:
    return Verdict(name, target, value, None if value is None else abs(value) <= bound)


def _relative(value: float | None, source: float | None) -> float | None:
    if value is None or source is None:
        return None
    if source == 0:
        return 0.0 if value == 0 else None
    return value / source - 1


def _figures(name: str, stream: Stream, locality: Stream) -> Figures:
    seconds = stream.seconds
    blocks = reuse.block_accesses(locality.offset, locality.length)
    return Figures(
        name=name, ios=len(stream.us), read_share=float(stream.is_read.mean()),
        ios_per_s=len(stream.us) / seconds if seconds else None,
        bytes_per_s=float(stream.length.sum()) / seconds if seconds else None,
        hot10_share=reuse.hot_share(blocks), reuse_p50_blocks=reuse.median_reuse(blocks),
    )  # fmt: skip


def gaps_us(stream: Stream, resolution_us: int) -> NDArray[np.int64]:
    """Return the gaps between operations, with times first cut down to `resolution_us`."""
    us: NDArray[np.int64] = np.diff(stream.us[stream.starts_op] // resolution_us) * resolution_us
    return us


def ks_distance(a: NDArray[Any], b: NDArray[Any]) -> float | None:
    """Return the Kolmogorov-Smirnov distance of two samples; null if one is empty."""
    if not len(a) or not len(b):
        return None
    a, b = np.sort(a), np.sort(b)
    points = np.unique(np.concatenate([a, b]))
    below_a = np.searchsorted(a, points, "right") / len(a)
    below_b = np.searchsorted(b, points, "right") / len(b)
    return float(np.abs(below_a - below_b).max())


def size_tv(stream: Stream, source: Stream) -> float:
    """Return the total variation distance of exact sizes, by direction, weighted as the source's directions."""
    return _by_direction(stream, source, lambda a, b, _values: float(np.abs(a - b).sum() / 2), missing=1.0)


def size_emd_bytes(stream: Stream, source: Stream) -> float | None:
    """Return the earth mover's distance of sizes in bytes, weighted likewise; null if a direction is missing."""
    value = _by_direction(
        stream, source,
        lambda a, b, values: float((np.abs(np.cumsum(a - b))[:-1] * np.diff(values)).sum()), missing=float("nan"),
    )  # fmt: skip
    return None if np.isnan(value) else value


def _by_direction(stream: Stream, source: Stream, distance: Any, missing: float) -> float:
    total = 0.0
    for direction in (True, False):
        mine, theirs = stream.length[stream.is_read == direction], source.length[source.is_read == direction]
        if not len(theirs):
            continue
        weight = len(theirs) / len(source.length)
        if not len(mine):
            total += weight * missing
            continue
        values = np.unique(np.concatenate([mine, theirs]))
        shares = [np.bincount(np.searchsorted(values, x), minlength=len(values)) / len(x) for x in (mine, theirs)]
        total += weight * distance(*shares, values)
    return total


def _has_same_ios(stream: Stream, source: Stream) -> bool:
    return all(np.array_equal(getattr(stream, name), getattr(source, name)) for name in ("is_read", "offset", "length"))


def _end_slip(stream: Stream, source: Stream) -> float | None:
    span = int(source.us[-1] - source.us[0])
    return (int(stream.us[-1] - stream.us[0]) - span) / span if span else None
