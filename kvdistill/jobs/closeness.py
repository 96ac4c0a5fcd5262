"""How close the I/O that fio did is to the source's: figures of both, their distances, and targets.

I/O is a `Stream` in order of issue: what a source asks for, what fio's latency logs and written
iologs say, or what the device saw.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvdistill.formats.fio import logged_ios, logged_latencies
from kvdistill.jobs.fio_replay import FioIos, split, split_ios
from kvdistill.jobs.job import MIB, STAT_MAX_IO_BYTES, FioMode, FioResult, JobOptions
from kvdistill.jobs.mode_job import ModeJob
from kvdistill.profile.locality import BlockLocality, block_locality
from kvdistill.profile.profile import Pacing, Profile, SourceKind
from kvdistill.profile.sources import Distilled
from kvtrace.core import pq
from kvtrace.core.units import NS_PER_MS, NS_PER_S, NS_PER_US, US_PER_MS, format_duration

SIZE_TV_TARGET = 0.015
RATE_TARGET = 0.015
REPLAY_GAP_KS_TARGET, DRAWN_GAP_KS_TARGET = 0.03, 0.10
END_SLIP_TARGET = 0.01
DEPTH_TARGET, TRACE_DEPTH_TARGET = 0.10, 0.25
"""A trace has no depth of its own: what is compared is what one disk made of one replay of it."""
BUSY_DEPTH_TARGET = 0.20
"""Of the depth at issue and while the device is busy, which a slower or faster disk changes less
than the mean over all the time.
"""
HOT_TARGET = 0.02
MRC_TARGET = 0.02
"""Mean absolute error of the miss-ratio curve up to which it counts as equal."""
_NOT_KEEPING_UP_US = 100_000
"""Lateness of the median I/O beyond which the target is said not to keep up."""
_SIGMAS = 2
"""Standard deviations that what is drawn may be off by chance."""
_NEAREST_RANK_P99 = 100
_NO_TIME = "a closed loop waits for operations, which take no time on fio's null engine"
_NO_WAIT = (
    "no I/O of the job waits for another, as kvreplay's do; jobs made of kvreplay's run (kvdistill"
    " fio RUN) have the times at which it issued them"
)
_OF_BLOCKS = ("hot10_share", "reuse_p50_blocks")
ISSUE_DEPTH, BUSY_DEPTH = "in flight at issue", "in flight while busy"
SIZES, DEPTH, GAPS = "I/Os of other sizes", "I/Os in flight", "gaps between arrivals, KS"
_MOST_SIZES = 1024
"""Of more distinct sizes, those beyond add nothing to what chance is said to do.

A job has fewer, too.
"""


class Side(StrEnum):
    """Where I/O was observed."""

    DEVICE = "device"
    """Requests of the block layer, as `kvreplay probe` sees them."""
    ASKED = "asked"
    """What the source asks for of files."""
    FIO = "fio"
    """As fio logs it: what the block layer splits or merges is not seen."""


class StreamFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the closeness table.

    Distances are from the source and null for the source itself.
    """

    name: str
    side: Side
    """Where it was observed."""
    ios: int
    """At the device.

    In parts of the largest I/O that is asked for, where the block layer merged such parts.
    """
    read_share: float
    ios_per_s: float | None
    bytes_per_s: float | None
    requests: int | None = None
    """As the device got them, as is the next; null for what was not seen there."""
    largest_request_bytes: int | None = None
    size_tv: float | None = None
    """Total variation distance of the sizes, by direction."""
    gap_ks: float | None = None
    """Kolmogorov-Smirnov distance of the gaps between arrivals in µs, beyond what
    `gap_resolution_us` explains.

    Of a replayed trace, what is due at one time is one arrival, at the time of its first I/O; else
    each I/O is one. Null where most gaps are shorter than that resolution.
    """
    gap_resolution_us: int | None = None
    """How finely both sides' times were known for `gap_ks`.

    1 at the device, 1000 in fio's latency logs.
    """
    arrivals: int | None = None
    hot10_share: float | None = None
    """Share of accesses to the hottest 10 % of 128 KiB blocks."""
    reuse_p50_blocks: float | None = None
    """Median distinct 128 KiB blocks between two accesses to one."""
    mrc_error: float | None = None
    """Mean absolute difference of the miss ratios of LRU caches of 128 KiB blocks, of sizes evenly
    over a logarithmic scale to the first that holds all.
    """
    mean_depth: float | None = None
    in_flight_p99: int | None = None
    """In flight for all but 1 % of the time; null where the device was not looked at."""
    idle_share: float | None = None
    """Share of the time with nothing in flight; null likewise."""
    depth_at_issue: float | None = None
    """Mean requests in flight when one is issued, with that one; null likewise."""
    busy_depth: float | None = None
    """Mean requests in flight over the time with any; null likewise."""
    end_slip: float | None = None
    """How much later than asked the last arrival came, relative to the span."""
    late_p50_us: int | None = None
    """How late I/Os were issued, against the most punctual one.

    Null for jobs that draw at random.
    """
    late_p99_us: int | None = None
    has_same_ios: bool | None = None
    """Whether every I/O is the source's, in its order; null for jobs that draw at random."""


class Verdict(msgspec.Struct, frozen=True):
    """One figure of a job against its target.

    Whether it passes is null where it was not measured, or where it tells nothing; `why` says why.
    """

    name: str
    target: str
    value: float | bool | None
    passes: bool | None
    why: str | None = None
    more: float | None = None
    """How many times as many operations would settle it.

    Null if it is settled, or more would not.
    """


@dataclass(frozen=True, slots=True)
class Chance:
    """How far figures of so many operations, drawn from the source's own, are off by chance.

    Two standard deviations.

    Shares of the source's figure, but for the last two: those are the distances themselves. All 0
    of an exact replay.
    """

    operations: int = 0
    read_share: float = 0
    ios_per_s: float = 0
    bytes_per_s: float = 0
    mean_depth: float = 0
    size_tv: float = 0
    hot10_share: float = 0


EXACT = Chance()


def chance_of(source: Stream, draws: int, part_bytes: int) -> Chance:
    """Return the chance error of `draws` operations from `source`, which come in parts of
    `part_bytes`.

    Parts come and go with their operation: a long one brings many, so that their number says
    little. What an operation adds to the depth is taken as the square of its bytes, which are in
    flight for as long as they take to move.
    """
    draws, length = max(1, draws), source.length.astype(np.float64)
    whole, rest = np.divmod(source.length, part_bytes)
    parts = whole + (rest > 0)
    reads = parts * source.is_read

    def off(deviations: NDArray[np.float64], figure: NDArray[np.float64]) -> float:
        # The number of operations is that of chance (Poisson), too.
        return float(_SIGMAS * (np.square(deviations).mean() / draws) ** 0.5 / figure.mean())

    unlike = 0.0
    for direction in np.unique(source.is_read):
        mine = source.is_read == direction
        all_ = parts[mine]
        sizes, kind = np.unique(rest[mine], return_inverse=True)
        ends, brought = np.bincount(kind), np.bincount(kind, weights=all_)
        # For each size of a last part, squares of how many of it an operation brings beyond its
        # share: 1 at most.
        share = ends / all_.sum()
        squares = ends - 2 * share * brought + share**2 * np.square(all_).sum()
        of_whole = np.square(whole[mine] - whole[mine].sum() / all_.sum() * all_).sum()
        squares = np.append(squares[sizes > 0][:_MOST_SIZES], of_whole).clip(min=0) / len(all_)
        spread = _SIGMAS * np.sqrt(squares / (draws * mine.mean())).sum() / all_.mean()
        # The mean of a deviation of chance is the square root of 2 / pi of its standard deviation.
        unlike += float(all_.sum() / parts.sum() * spread * (2 / np.pi) ** 0.5 / 2)
    return Chance(
        operations=draws,
        read_share=off(reads - reads.sum() / parts.sum() * parts, reads) if reads.any() else 0,
        ios_per_s=off(parts, parts),
        bytes_per_s=off(length, length),
        mean_depth=off(length**2, length**2),
        size_tv=unlike,
        hot10_share=_SIGMAS / draws**0.5,
    )


def figures_of(
    name: str,
    stream: Stream,
    side: Side = Side.ASKED,
    profile: Profile | None = None,
    **more: object,
) -> StreamFigures:
    """Return the figures of I/O as `side` saw it, with the concurrency of its `profile` if that is
    measured.

    `more` are fields of `StreamFigures`, in place of what `stream` and `profile` say.
    """
    seconds = stream.seconds
    blocks = stream.blocks
    figures = StreamFigures(
        name=name,
        side=side,
        ios=len(stream.us),
        read_share=float(stream.is_read.mean()),
        ios_per_s=len(stream.us) / seconds if seconds else None,
        bytes_per_s=float(stream.length.sum()) / seconds if seconds else None,
        arrivals=int(stream.arrival.max()) + 1 if len(stream.us) else 0,
        hot10_share=None if blocks is None else blocks.hot10_share,
        reuse_p50_blocks=None if blocks is None else blocks.reuse_p50_blocks,
    )
    if profile is not None and (depth := profile.depth) is not None:
        idle = sum(at.share for at in depth.shares if at.in_flight == 0)
        figures = msgspec.structs.replace(
            figures,
            mean_depth=depth.mean,
            in_flight_p99=depth.in_flight_for(0.99),
            idle_share=idle if depth.shares else None,
        )
        if profile.origin.kind in (SourceKind.BLOCKS, SourceKind.PROBE):
            sizes = [s.io_bytes for s in (*profile.read.sizes, *profile.write.sizes)]
            figures = msgspec.structs.replace(
                figures,
                side=Side.DEVICE,
                requests=profile.ops,
                largest_request_bytes=max(sizes, default=None),
            )
    return msgspec.structs.replace(figures, **more)


def device_figures(
    name: str,
    logged: StreamFigures | None,
    stream: Stream,
    profile: Profile,
    source: Stream,
    *,
    has_gaps: bool,
) -> StreamFigures:
    """Return the figures of what the device saw of a fio run, `stream` and its `profile`, against
    `source`.

    What only fio's own logs say comes from `logged`: lateness, and without `has_gaps`, where the
    device's requests do not tell the source's arrivals, the gaps.
    """
    more: dict[str, object] = {
        "size_tv": size_tv(stream, source),
        "mrc_error": mrc_error(stream, source),
    }
    if logged is not None:
        kept = (
            "has_same_ios",
            "end_slip",
            "late_p50_us",
            "late_p99_us",
            "gap_ks",
            "gap_resolution_us",
            "arrivals",
        )
        more |= {field: getattr(logged, field) for field in kept}
    if has_gaps:
        more |= {
            "gap_ks": _gap_ks(stream, source, 1),
            "gap_resolution_us": 1,
            "arrivals": len(stream.us),
        }
    return figures_of(name, stream, Side.DEVICE, profile, **more)


def job_figures(
    name: str, stream: Stream, source: Stream, *, is_replay: bool, mean_depth: float | None
) -> StreamFigures:
    """Return the figures of what fio did and its distances from `source`."""
    resolution_us = max(stream.resolution_us, source.resolution_us)
    known: dict[str, object] = {}
    if is_replay:
        # The same I/Os, whatever their order: several jobs overtake each other.
        both = [np.lexsort((s.length, s.is_read, s.offset)) for s in (stream, source)]
        known["has_same_ios"] = len(stream.us) == len(source.us) and all(
            np.array_equal(getattr(stream, name)[both[0]], getattr(source, name)[both[1]])
            for name in ("is_read", "offset", "length")
        )
    if known.get("has_same_ios"):
        # How late I/Os and the last arrival were.
        asked, came = source.arrivals_us, stream.arrivals_us
        span = int(asked[-1] - asked[0])
        late = stream.us - asked[stream.arrival]
        late -= late.min()
        known["end_slip"] = (int(came[-1] - came[0]) - span) / span if span else None
        known["late_p50_us"] = int(np.percentile(late, 50, method="inverted_cdf"))
        if len(late) >= _NEAREST_RANK_P99:
            known["late_p99_us"] = int(np.percentile(late, 99, method="inverted_cdf"))
    figures = figures_of(
        name,
        stream,
        Side.FIO,
        size_tv=size_tv(stream, source),
        mrc_error=mrc_error(stream, source),
        gap_ks=_gap_ks(stream, source, resolution_us),
        gap_resolution_us=resolution_us,
        mean_depth=mean_depth,
    )
    return msgspec.structs.replace(figures, **known)


def verdicts(
    figures: StreamFigures,
    source: StreamFigures,
    chance: Chance = EXACT,
    depth_target: float = DEPTH_TARGET,
    *,
    has_lanes: bool = False,
) -> list[Verdict]:
    """Return each defined target against the measured value.

    A miss that `chance` explains neither passes nor fails; nor does one in time where half of the
    I/Os were late. In lanes I/Os wait for those before them, as the source's do, so that they are
    late by what the device takes: their gaps and their end are no target, only their rates.
    """
    is_replay = chance == EXACT
    reads, rate, moved, depth = (
        _relative(getattr(figures, field), getattr(source, field))
        for field in ("read_share", "ios_per_s", "bytes_per_s", "mean_depth")
    )
    hot = None
    if figures.hot10_share is not None and source.hot10_share is not None:
        hot = figures.hot10_share - source.hot10_share
    gaps = [max(1, (side.arrivals or 0) - 1) for side in (figures, source)]
    # Of a replay, one gap; of drawn ones, what the test of Kolmogorov and Smirnov leaves to chance
    # once in twenty.
    gap_chance = (1 + 1e-9) / gaps[1] if is_replay else 1.36 * (1 / gaps[0] + 1 / gaps[1]) ** 0.5
    gap = REPLAY_GAP_KS_TARGET if is_replay else DRAWN_GAP_KS_TARGET
    few = (
        f"{source.arrivals:,} arrivals are too few"
        if is_replay
        else f"{chance.operations:,} operations are too few"
    )
    late_us = 0 if has_lanes else figures.late_p50_us or 0
    said = (
        f"half of the I/Os were over {format_duration(late_us * NS_PER_US)} late: the target does"
        " not keep up"
    )
    late = said if late_us > _NOT_KEEPING_UP_US else ""

    def judged(
        name: str, target: str, value: float | None, bound: float, by_chance: float, late: str = ""
    ) -> Verdict:
        if value is None or abs(value) <= bound:
            return Verdict(name, target, value, None if value is None else True)
        why = late or (few if abs(value) <= by_chance else None)
        # Chance falls with the square root of how much is drawn; a replay's gap is one of so many.
        more = (by_chance / bound) ** (1 if is_replay else 2) if why and not late else None
        return Verdict(name, target, value, None if why else False, why, more)

    rows = [
        judged("share of reads", "within 1.5 %", reads, RATE_TARGET, chance.read_share),
        judged("I/Os a second", "within 1.5 %", rate, RATE_TARGET, chance.ios_per_s, late),
        judged("bytes a second", "within 1.5 %", moved, RATE_TARGET, chance.bytes_per_s, late),
        judged(SIZES, "<= 1.5 %", figures.size_tv, SIZE_TV_TARGET, chance.size_tv),
        *([] if has_lanes else [judged(GAPS, f"<= {gap}", figures.gap_ks, gap, gap_chance, late)]),
        judged(
            DEPTH,
            f"within {100 * depth_target:.0f} %",
            depth,
            depth_target,
            chance.mean_depth,
            late,
        ),
        judged(
            "I/O share of hottest 10 %", f"+- {HOT_TARGET}", hot, HOT_TARGET, chance.hot10_share
        ),
        # A ratio of hits is off by half as much by chance, at most.
        judged(
            "miss-ratio curve",
            f"<= {MRC_TARGET}",
            figures.mrc_error,
            MRC_TARGET,
            chance.hot10_share / 2,
        ),
    ]
    if is_replay:
        busy = f"within {100 * BUSY_DEPTH_TARGET:.0f} %"
        for name, field in ((ISSUE_DEPTH, "depth_at_issue"), (BUSY_DEPTH, "busy_depth")):
            value = _relative(getattr(figures, field), getattr(source, field))
            if value is not None:
                rows.append(judged(name, busy, value, BUSY_DEPTH_TARGET, 0, late))
        if not has_lanes:
            rows.append(
                judged("end of the replay", "<= 1 %", figures.end_slip, END_SLIP_TARGET, 0, late)
            )
        rows.append(Verdict("same I/Os", "yes", figures.has_same_ios, figures.has_same_ios))
    if figures.side is not Side.DEVICE:
        # What fio asks for is not what arrives.
        rows.append(Verdict("seen at the device", "yes", False, None, "only fio's side was seen"))
    return rows


def mrc_error(stream: Stream, source: Stream) -> float | None:
    """Return the mean absolute difference of both miss-ratio curves, as `StreamFigures` has it.

    Null without I/O.

    To the size that holds all blocks of both: from there on each curve stays as it is.
    """
    mine, theirs = stream.blocks, source.blocks
    if mine is None or theirs is None:
        return None
    most = max(len(mine.hit_ratios), len(theirs.hit_ratios))
    a, b = (
        np.pad(side.hit_ratios, (0, most - len(side.hit_ratios)), "edge") for side in (mine, theirs)
    )
    return float(np.abs(a - b).mean())


def _relative(value: float | None, source: float | None) -> float | None:
    if value is None or source is None or (source == 0 and value != 0):
        return None
    return value / source - 1 if source else 0.0


def gaps_us(stream: Stream) -> NDArray[np.int64]:
    """Return the gaps between arrivals in µs, in order of time."""
    return np.diff(np.sort(stream.arrivals_us)).astype(np.int64)


def _depth_when_busy(distilled: Distilled) -> tuple[float | None, float | None]:
    """Return the mean requests in flight at issue, and while the device is busy.

    A request counts itself. Null where none was timed.
    """
    assert distilled.ios is not None
    table = pq.read_table(distilled.ios, columns=["ts_ns", "completed_ns", "io_bytes"]).drop_null()
    begun, done, length = (column.to_numpy() for column in table.columns)
    begun, done = np.sort(begun[length > 0]), np.sort(done[length > 0])
    if not len(begun):
        return None, None
    # What was issued so far, without what had completed by then.
    at_issue = np.arange(1, len(begun) + 1) - np.searchsorted(done, begun, "right")
    total_ns = float(done.sum() - begun.sum())
    # The device is idle between the last completion of all so far and the next issue.
    idle_ns = float(np.maximum(begun[1:] - done[:-1], 0)[at_issue[1:] <= 1].sum())
    busy_ns = float(done[-1] - begun[0]) - idle_ns
    return float(at_issue.mean()), total_ns / busy_ns if busy_ns > 0 else None


def _gap_ks(stream: Stream, source: Stream, resolution_us: int) -> float | None:
    gaps = gaps_us(source)
    if not source.seconds or not len(gaps) or float(np.median(gaps)) < resolution_us:
        # Most come at one time, which fio issues one after another.
        return None
    return ks_distance(gaps_us(stream), gaps, resolution_us if resolution_us > 1 else 0)


def ks_distance(a: NDArray[np.int64], b: NDArray[np.int64], tolerance: float = 0) -> float | None:
    """Return the Kolmogorov-Smirnov distance of two samples; null if one is empty.

    With a `tolerance`, values of one sample may be moved by that much towards the other's before
    they count.
    """
    if not len(a) or not len(b):
        return None
    a, b = np.sort(a), np.sort(b)
    found = []
    for low, high in ((a, b), (b, a)):
        # How far the distribution of the one, moved up by the tolerance, is above that of the
        # other, at most.
        points = np.unique(np.concatenate([low + tolerance, high]))
        below_low = np.searchsorted(low, points - tolerance, "right") / len(low)
        below_high = np.searchsorted(high, points, "right") / len(high)
        found.append(float((below_low - below_high).max()))
    return max(found)


def size_tv(stream: Stream, source: Stream) -> float:
    """Return the total variation distance of exact sizes, by direction, weighted as the source's
    directions.
    """
    total = 0.0
    for direction in (True, False):
        mine, theirs = (side.length[side.is_read == direction] for side in (stream, source))
        if not len(theirs):
            continue
        values = np.unique(np.concatenate([mine, theirs]))
        counts = [
            np.bincount(np.searchsorted(values, x), minlength=len(values)) for x in (mine, theirs)
        ]
        unlike = (
            np.abs(counts[0] / len(mine) - counts[1] / len(theirs)).sum() / 2 if len(mine) else 1.0
        )
        total += float(unlike) * len(theirs) / len(source.length)
    return total


@dataclass(frozen=True)
class Stream:
    """I/Os in order of issue; `us` are issue times in microseconds, true to `resolution_us`."""

    us: NDArray[np.int64]
    is_read: NDArray[np.bool_]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    arrival: NDArray[np.int64]
    """Which arrival each I/O belongs to, from 0.

    Gaps are between arrivals, each at its first I/O's time.
    """
    resolution_us: int = 1
    span_us: int | None = None
    """How long it went on, where that is known better than from its first and last I/O."""

    @property
    def seconds(self) -> float | None:
        """The span in seconds; null if it is 0."""
        span = (
            self.span_us
            if self.span_us is not None
            else int(self.us[-1] - self.us[0])
            if len(self.us)
            else 0
        )
        return span / 1e6 if span else None

    @cached_property
    def blocks(self) -> BlockLocality | None:
        """How its blocks come back; null without any."""
        return block_locality(self.offset, self.length)

    @property
    def arrivals_us(self) -> NDArray[np.int64]:
        """When each arrival began, by its number."""
        first = np.full(
            int(self.arrival.max()) + 1 if len(self.arrival) else 0, np.iinfo(np.int64).max
        )
        np.minimum.at(first, self.arrival, self.us)
        return first


def asked_stream(batches: Iterable[FioIos], *, by_instant: bool) -> Stream:
    """Return the I/Os that fio is to issue, from the batches that `split_ios` yields.

    An arrival is what is due at one instant, or one operation.
    """
    listed = list(batches)
    us = np.concatenate([batch["us"] for batch in listed])
    part = np.concatenate([batch["part"] for batch in listed])
    begins = np.diff(us, prepend=0) > 0 if by_instant else part == 0
    return Stream(
        us,
        np.concatenate([batch["is_read"] for batch in listed]),
        np.concatenate([batch["offset"] for batch in listed]),
        np.concatenate([batch["length"] for batch in listed]),
        np.cumsum(begins) - 1,
    )


@dataclass(frozen=True, slots=True)
class LatencyLog:
    """A latency log of one of fio's jobs."""

    path: Path
    is_submission: bool
    """Whether its times are those of submission, in whole ms; else of completion, with the latency
    in ns.
    """
    members: NDArray[np.int64]
    """Which I/Os of the source the job does, by their numbers, in order."""


def replayed_stream(logs: Sequence[LatencyLog], source: Stream) -> Stream:
    """Return the I/Os of a replay of `source` from fio's latency logs, one a job, in order of
    issue; within a millisecond the order is the source's.
    """
    found = [logged_latencies(log.path) for log in logs]
    us = np.full(len(source.us), -1, dtype=np.int64)
    for log, (time_ms, latency_ns, direction, length, offset) in zip(logs, found, strict=True):
        mine = log.members
        same = (
            (direction == 0, source.is_read[mine]),
            (length, source.length[mine]),
            (offset, source.offset[mine]),
        )
        if not all(np.array_equal(a, b) for a, b in same):
            # Other I/Os than the source's stand by themselves.
            order = np.argsort(np.concatenate([columns[0] for columns in found]), kind="stable")
            ms, _, op, sizes, places = (
                np.concatenate(of)[order] for of in zip(*found, strict=True)
            )
            return Stream(ms * US_PER_MS, op == 0, places, sizes, np.arange(len(order)), US_PER_MS)
        us[mine] = time_ms * US_PER_MS - (0 if log.is_submission else latency_ns // NS_PER_US)
    order = np.argsort(us // US_PER_MS, kind="stable")
    others = {
        name: getattr(source, name)[order] for name in ("is_read", "offset", "length", "arrival")
    }
    return Stream(us[order], **others, resolution_us=US_PER_MS)


def logged_stream(logs: Sequence[Path], span_us: int) -> Stream:
    """Return the I/Os in the iologs that several jobs wrote, by time, which went on for `span_us`."""
    parts = [logged_ios(log) for log in logs]
    us = np.concatenate([part["us"] for part in parts])
    order = np.argsort(us, kind="stable")
    return Stream(
        us[order],
        np.concatenate([part["is_read"] for part in parts])[order],
        np.concatenate([part["offset"] for part in parts])[order],
        np.concatenate([part["length"] for part in parts])[order],
        np.arange(len(order)),
        span_us=span_us,
    )


def figures_alone(profile: Profile) -> Stream:
    """Return the I/Os of a source that knows sizes and rates alone, but neither times, places nor
    an order.
    """
    sizes = [
        (size, is_read)
        for d, is_read in ((profile.read, True), (profile.write, False))
        for size in d.sizes
    ]
    counts = [size.ops for size, _ in sizes]
    length = np.repeat([size.io_bytes for size, _ in sizes], counts)
    zero = np.zeros(len(length), dtype=np.int64)
    is_read = np.repeat([is_read for _, is_read in sizes], counts)
    return Stream(zero, is_read, zero, length, zero, span_us=profile.span_ns // NS_PER_US)


_WAITED_US, _MIN_WAITS, _USUAL = 300, 50, 90
WHOLE_BYTES = 1 << 31
"""No request is longer."""


IssueTimes = tuple[float, float]
"""What issuing an I/O takes, and each MiB of it, in microseconds."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A fio run.

    Its JSON, and what the device saw; null with the reason in `why` if it could not be observed.
    """

    result: FioResult
    device: Distilled | None
    why: str | None


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """One job that is run: the part of the source it is made of, and its folder."""

    mode: FioMode
    distilled: Distilled
    window: str
    whole_ns: int
    """All of the source, which has more than the window."""
    place: Path
    options: JobOptions
    job: ModeJob
    reference: Distilled | None
    """What the device saw of the source, or of a replay of it.

    Null if that is not known: fio's side is compared.
    """

    @property
    def is_replay(self) -> bool:
        """Whether it is the source's own I/O."""
        return self.mode is FioMode.REPLAY


class ClosenessPair(msgspec.Struct, frozen=True, kw_only=True):
    """One job compared with the source over the same window."""

    job: str
    window: str
    span_ns: int = 0
    """How long that is; 0 in files of earlier versions."""
    whole_ns: int = 0
    """All of the source."""
    source: StreamFigures
    fio: StreamFigures
    verdicts: list[Verdict]


def compare_logged(
    run: CheckedRun, seen: Seen, logs: Sequence[LatencyLog]
) -> tuple[ClosenessPair, IssueTimes | None]:
    """Return how close a job of iologs came, by fio's latency `logs`, and what issuing took if that
    can be determined.
    """
    log, ios, parts = run.job.log, run.distilled.ios, run.job.ios
    assert log is not None
    assert parts is not None
    asked = asked_stream(parts(), by_instant=True)
    source = asked
    if ios is not None and not run.is_replay:
        source = asked_stream(split_ios(ios, log.max_io_bytes), by_instant=True)
    stream = replayed_stream(logs, asked)
    # Where fio does not reap completions while it waits, its latencies are wrong.
    has_latencies = not any(log.is_submission for log in logs)
    depth = _mean_depth(seen.result["jobs"], stream) if has_latencies else None
    figures = job_figures(run.mode, stream, source, is_replay=run.is_replay, mean_depth=depth)
    chance = EXACT
    if not run.is_replay:
        operations = (
            source if ios is None else asked_stream(split_ios(ios, WHOLE_BYTES), by_instant=False)
        )
        chance = chance_of(
            operations, sum(int((part["part"] == 0).sum()) for part in parts()), log.max_io_bytes
        )
    issue_us = None
    if seen.device is not None and seen.device.ios is not None:
        came = asked_stream(split_ios(seen.device.ios, WHOLE_BYTES), by_instant=False)
        issue_us = fitted_issue_us(asked.us, came.us, asked.length)
    return compare(run, seen, source, figures, chance, stream), issue_us


def fitted_issue_us(
    asked_us: NDArray[np.int64], came_us: NDArray[np.int64], length: NDArray[np.int64]
) -> IssueTimes | None:
    """Return what fio took to issue an I/O and each MiB of it, from the times asked in a log of
    version 3 and seen.

    Only I/Os that were waited for show it: what was due at once came as soon as it could. Null with
    too few, or if it took no time.
    """
    if len(asked_us) != len(came_us):
        return None
    asked, came = np.diff(asked_us), np.diff(came_us)
    waited = asked > _WAITED_US
    late = (came - asked)[waited]
    if len(late) < _MIN_WAITS:
        return None
    # A stall of the machine is no cost of an I/O.
    usual = np.abs(late - np.median(late)) <= np.percentile(np.abs(late - np.median(late)), _USUAL)
    mib = (length[:-1][waited] / MIB)[usual]
    mean = float(late[usual].mean())
    if mean <= 0:
        return None
    if np.ptp(mib) * 2 <= mib.max():
        return mean, 0.0
    slope, base = (float(x) for x in np.polyfit(mib, late[usual], 1))
    return (base, slope) if base > 0 and slope > 0 else (mean, 0.0)


def compare_drawn(run: CheckedRun, seen: Seen) -> ClosenessPair:
    """Return how close the statistical job came.

    At the device, or by the iologs that its jobs wrote.
    """
    profile, ios, jobs = run.distilled.profile, run.distilled.ios, seen.result["jobs"]
    if ios is None:
        source = figures_alone(profile)
    else:
        source = asked_stream(split_ios(ios, STAT_MAX_IO_BYTES), by_instant=False)
    draws = sum(int(job[direction]["total_ios"]) for job in jobs for direction in ("read", "write"))
    figures, chance = None, chance_of(source, draws, _lengths(run, seen)[1])
    if seen.device is None:
        span_us = round(min(profile.span_ns, run.options.check_ns) / NS_PER_US)
        span_us = span_us or max(int(job["job_runtime"]) * US_PER_MS for job in jobs)
        stream = logged_stream([run.place / f"{job['jobname']}.drawn" for job in jobs], span_us)
        figures = job_figures(
            run.mode, stream, source, is_replay=False, mean_depth=_mean_depth(jobs, stream)
        )
    return compare(run, seen, source, figures, chance)


def _lengths(run: CheckedRun, seen: Seen) -> tuple[int, int]:
    """Return how long an operation is at most, and a part of it that is issued.

    Requests are counted in such parts.

    Beside a replay of a trace both sides issue the trace's operations, in parts of the largest that
    is allowed, of which the block layer merges now these and now those; requests of a source that a
    device saw are its own.
    """
    if run.reference is None or run.reference is run.distilled or seen.device is None:
        return WHOLE_BYTES, WHOLE_BYTES
    return run.distilled.profile.longest_bytes, run.options.io_bytes


def _at_device(ios: Path, longest_bytes: int, most_bytes: int) -> Stream:
    """Return the requests in `ios` in parts.

    Merged ones as operations of `longest_bytes`, each in its own parts.
    """
    parts = (part for whole in split_ios(ios, longest_bytes) for part in split(whole, most_bytes))
    found = asked_stream(parts, by_instant=False)
    # Places count from the first: a file begins anywhere in a block of its device.
    return replace(found, offset=found.offset - found.offset.min()) if len(found.offset) else found


def _in_parts(
    figures: StreamFigures,
    distilled: Distilled,
    longest_bytes: int,
    most_bytes: int,
    **others: object,
) -> StreamFigures:
    """Return `figures` of `distilled` with its depth in parts, as `_at_device`, and `others` in
    place of its own.
    """
    assert distilled.ios is not None
    table = pq.read_table(distilled.ios, columns=["ts_ns", "completed_ns", "io_bytes"]).drop_null()
    begun, done, length = (column.to_numpy() for column in table.columns)
    in_flight_ns, (whole, rest) = (done - begun) * (length > 0), np.divmod(length, longest_bytes)
    count = whole * -(-longest_bytes // most_bytes) - (-rest // most_bytes)
    parts = float((in_flight_ns * count).sum() / max(1, in_flight_ns.sum()))
    depth = None if figures.mean_depth is None else figures.mean_depth * parts
    return msgspec.structs.replace(figures, mean_depth=depth, **others)


def compare(
    run: CheckedRun,
    seen: Seen,
    source: Stream,
    logged: StreamFigures | None,
    chance: Chance,
    own: Stream | None = None,
) -> ClosenessPair:
    """Return fio's figures with those of the source.

    The `logged` ones, or those of the device where it was `seen`.
    """
    profile, ios, figures, asked = run.distilled.profile, run.distilled.ios, logged, source
    longest_bytes, most_bytes = _lengths(run, seen)
    is_replayed = (longest_bytes, most_bytes) != (WHOLE_BYTES, WHOLE_BYTES)
    if run.reference is not None and seen.device is not None and seen.device.ios is not None:
        profile, ios = run.reference.profile, run.reference.ios
        if ios is not None:
            source = _at_device(ios, longest_bytes, most_bytes)
        stream = _at_device(seen.device.ios, longest_bytes, most_bytes)
        # An operation of a trace comes in several requests: only fio's own log says which belong
        # together.
        has_gaps = ios is not None and not is_replayed
        figures = device_figures(
            run.mode, logged, stream, seen.device.profile, source, has_gaps=has_gaps
        )
    assert figures is not None
    shown = figures_of("source", source, profile=profile)
    if is_replayed:
        assert run.reference is not None
        assert seen.device is not None
        # Arrivals and places are the trace's own: kvreplay frees and takes space by when its
        # deletes and writes end. So are fio's those in its file, by its `own` log if that has them:
        # the device has parts of it anywhere.
        kept, fios = (
            {name: getattr(of.blocks, name, None) for name in _OF_BLOCKS}
            for of in (asked, own or stream)
        )
        if run.distilled.profile.span_ns < NS_PER_MS:  # no time in which they come, and so no rate
            kept |= {"ios_per_s": None, "bytes_per_s": None}
        shown = _in_parts(
            shown, run.reference, longest_bytes, most_bytes, arrivals=len(asked.arrivals_us), **kept
        )
        fios["mrc_error"] = mrc_error(own or stream, asked)
        figures = _in_parts(figures, seen.device, longest_bytes, most_bytes, **fios)
        shown, figures = (
            msgspec.structs.replace(of, depth_at_issue=at_issue, busy_depth=busy)
            for of, side in ((shown, run.reference), (figures, seen.device))
            for at_issue, busy in [_depth_when_busy(side)]
        )
    elif ios is None:
        shown = msgspec.structs.replace(shown, **dict.fromkeys(_OF_BLOCKS))
        figures = msgspec.structs.replace(figures, mrc_error=None)
    depth_target = TRACE_DEPTH_TARGET if is_replayed else DEPTH_TARGET
    has_lanes = run.mode is FioMode.REPLAY and run.job.lanes is not None
    found = verdicts(figures, shown, chance, depth_target, has_lanes=has_lanes)
    if (
        is_replayed
        and run.mode is not FioMode.STAT
        and not has_lanes
        and (figures.mean_depth or 0) > (shown.mean_depth or 0)
    ):
        missed = (DEPTH, False)
        found = [
            msgspec.structs.replace(v, why=_NO_WAIT) if (v.name, v.passes) == missed else v
            for v in found
        ]
    is_closed = any(of.loop.pace is Pacing.CLOSED for of in profile.streams)
    if run.options.has_null_check and run.mode is FioMode.STAT and is_closed:
        # It goes as fast as its operations.
        found = [
            msgspec.structs.replace(v, passes=None, why=_NO_TIME) if v.passes is False else v
            for v in found
        ]
    spans = {"span_ns": run.distilled.profile.span_ns, "whole_ns": run.whole_ns}
    return ClosenessPair(
        job=run.mode.job, window=run.window, **spans, source=shown, fio=figures, verdicts=found
    )


def _mean_depth(jobs: Sequence[FioResult], stream: Stream) -> float | None:
    """Return the mean operations in flight, by Little's law: the sum of latencies over the span."""
    if (seconds := stream.seconds) is None:
        return None
    busy_ns = sum(
        job[direction]["lat_ns"]["mean"]
        * job[direction]["lat_ns"].get("N", job[direction]["total_ios"])
        for job in jobs
        for direction in ("read", "write")
    )
    return float(busy_ns) / NS_PER_S / seconds
