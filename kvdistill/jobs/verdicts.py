"""Judge the figures of a job against those of its source, and explain the misses.

A figure passes, misses its target, or is undetermined: not measured, or a miss that chance, the
disk or the two scratch files explain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from kvdistill.jobs.job import FioMode
from kvtrace.core.units import NS_PER_US, format_duration

SIZE_TV_TARGET = 0.015
RATE_TARGET = 0.015
REPLAY_GAP_KS_TARGET, DRAWN_GAP_KS_TARGET = 0.03, 0.10
END_SLIP_TARGET = 0.01
DEPTH_TARGET, TRACE_DEPTH_TARGET = 0.10, 0.25
"""An untimed trace has no queue depth: that of one replay on one disk is compared."""
BUSY_DEPTH_TARGET = 0.20
"""Target of the depth at issue and while the device is busy.

A slower or faster disk changes these less than the mean over the whole time.
"""
DRAWN_DEPTH_TARGET = 0.30
"""Target of all three depths of a statistical job of a trace, whose bursts are all equal."""
HOT_TARGET = 0.02
MRC_TARGET = 0.02
"""Mean absolute error of the miss-ratio curve up to which it counts as equal."""
_MAX_SPLIT_SHARE = 0.03
"""Maximum share of I/Os that the ends of a file's extents split.

More splits have another reason, such as buffers in small pages, and change the load.
"""
_TOO_LATE_US = 100_000
"""Median lateness beyond which the target counts as too slow."""
_LATE_ARRIVAL_GAPS = 2
"""A late arrival changes the gaps before and behind it."""
_ROUNDING = 1e-9
_NO_TIME = "operations take no time on fio's null engine, so a closed loop is not limited by them"
_NO_WAIT = (
    "fio issues operations without waiting for earlier ones of their request, unlike kvreplay; jobs"
    " from kvreplay's run (kvdistill fio RUN) use its actual issue times"
)
_TOO_SLOW = (
    "the target is slower than the source asks: kvreplay fell behind on it, too; check on a faster"
    " one, or a part that asks less"
)
_NO_REUSE = (
    "a statistical job does not keep reuse distances; reuse.fio does (kvdistill fio --mode reuse)"
)
ISSUE_DEPTH, BUSY_DEPTH = "queue depth at issue", "queue depth while busy"
SIZES, DEPTH, GAPS = "block-size mismatch", "queue depth", "gaps between arrivals, KS"
END = "end of the replay"
READS = "read share"
IO_RATE, BYTE_RATE, MISS_RATIOS = "I/Os a second", "bytes a second", "miss-ratio curve"


class Side(StrEnum):
    """The place of an observation of I/O."""

    DEVICE = "device"
    """Requests of the block layer, as `kvreplay probe` sees them."""
    ASKED = "asked"
    """Requested operations of the source, before the block layer."""
    FIO = "fio"
    """Operations in fio's logs, before splits and merges of the block layer."""


class Distributions(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and gaps by the share of I/Os, for a picture of both sides."""

    shares: list[float]
    io_bytes: list[int]
    """The size that so large a share of the I/Os does not exceed."""
    gap_ns: list[int]
    """Likewise the gap between two arrivals; empty if there are no two."""


class StreamFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the closeness table.

    Distances are from the source and null for the source itself.
    """

    name: str
    side: Side
    """Place of the observation."""
    ios: int
    """Number of I/Os; at the device, of requests as the block layer issued them."""
    read_share: float
    ios_per_s: float | None
    bytes_per_s: float | None
    requests: int | None = None
    """Number of device requests; null if not observed at the device, as is the next field."""
    largest_request_bytes: int | None = None
    size_tv: float | None = None
    """Total variation distance of the sizes, by direction."""
    gap_ks: float | None = None
    """Kolmogorov-Smirnov distance of the gaps between arrivals, within `gap_resolution_us`.

    In a replayed trace, all I/Os due at one time are one arrival, at the time of the first; else
    each I/O is one. Null if most gaps are shorter than the resolution.
    """
    gap_resolution_us: int | None = None
    """Resolution of both sides' times for `gap_ks`: 1 at the device, 1000 in fio's logs."""
    arrivals: int | None = None
    hot10_share: float | None = None
    """Share of accesses to the hottest 10 % of 128 KiB blocks."""
    reuse_p50_blocks: float | None = None
    """Median reuse distance in distinct 128 KiB blocks."""
    mrc_error: float | None = None
    """Mean absolute difference of the miss-ratio curves (LRU, 128 KiB blocks, log scale of sizes)."""
    mean_depth: float | None = None
    in_flight_p99: int | None = None
    """99th percentile of the queue depth over time; null if not observed at the device."""
    idle_share: float | None = None
    """Share of the time with nothing in flight; null if not observed at the device."""
    depth_at_issue: float | None = None
    """Mean requests in flight at an issue, including itself; null likewise."""
    busy_depth: float | None = None
    """Mean requests in flight over the time with any; null likewise."""
    end_slip: float | None = None
    """Delay of the last arrival, relative to the span."""
    late_p50_us: int | None = None
    """Lateness of I/Os against the most punctual one; null for sampled jobs."""
    late_p99_us: int | None = None
    has_same_ios: bool | None = None
    """Whether the I/Os are exactly those of the source; null for sampled jobs."""
    distributions: Distributions | None = None
    """Null in files of earlier versions, and without I/Os."""


class Verdict(msgspec.Struct, frozen=True):
    """One figure of a job against its target.

    `passes` is null if the figure was not measured or is undetermined; `reason` explains it.
    """

    name: str
    target: str
    value: float | bool | None
    passes: bool | None
    reason: str | None = None
    operations_factor: float | None = None
    """Multiple of the operations that would determine the verdict; null if that is no remedy."""


@dataclass(frozen=True, slots=True)
class SamplingError:
    """Sampling errors (two standard deviations) of figures of `operations` random operations.

    They are relative to the source's figure; the last two are absolute. All are 0 for an exact
    replay.
    """

    operations: int = 0
    read_share: float = 0
    ios_per_s: float = 0
    bytes_per_s: float = 0
    mean_depth: float = 0
    size_tv: float = 0
    hot10_share: float = 0


EXACT = SamplingError()


def replayed_depth_target(name: str, *, is_replay: bool) -> float:
    """Return the target of the depth `name` of a job of a trace, against a replay by kvreplay."""
    if not is_replay:
        return DRAWN_DEPTH_TARGET
    return TRACE_DEPTH_TARGET if name == DEPTH else BUSY_DEPTH_TARGET


def _one_sided(source_share: float, job_share: float) -> Verdict | None:
    """Return the verdict on the read share where neither side mixes reads and writes, else null.

    The shares are equal then, which is no evidence for either kind of operation.
    """
    if source_share != job_share or 0 < source_share < 1:
        return None
    missing = "written" if source_share else "read"
    return Verdict(READS, "within 1.5 %", None, None, f"nothing is {missing}")


def judge(
    figures: StreamFigures,
    source: StreamFigures,
    chance: SamplingError = EXACT,
    depth_target: float = DEPTH_TARGET,
    *,
    has_lanes: bool = False,
) -> list[Verdict]:
    """Return the verdict for each target.

    A miss is undetermined if the sampling error (`chance`) explains it, or, for figures of time, if
    half of the I/Os were late. In lanes, I/Os wait for earlier ones, as those of the source do, so
    they are late by the device's response time: only their rates are targets, not gaps and end.
    """
    is_replay = chance == EXACT
    read_share, rate, bytes_per_s, depth = (
        relative(getattr(figures, field), getattr(source, field))
        for field in ("read_share", "ios_per_s", "bytes_per_s", "mean_depth")
    )
    hot_difference = None
    if figures.hot10_share is not None and source.hot10_share is not None:
        hot_difference = figures.hot10_share - source.hot10_share
    gaps = [max(1, (side.arrivals or 0) - 1) for side in (figures, source)]
    # A replay may be late at one arrival, which changes the gaps on both sides of it; a sample may
    # be off by the 5 % quantile of the Kolmogorov-Smirnov test.
    gap_chance = (
        (_LATE_ARRIVAL_GAPS + _ROUNDING) / gaps[1]
        if is_replay
        else 1.36 * (1 / gaps[0] + 1 / gaps[1]) ** 0.5
    )
    gap = REPLAY_GAP_KS_TARGET if is_replay else DRAWN_GAP_KS_TARGET
    too_few = (
        f"{source.arrivals:,} arrivals are too few"
        if is_replay
        else f"{chance.operations:,} operations are too few"
    )
    late_us = 0 if has_lanes else figures.late_p50_us or 0
    slow_note = (
        f"half of the I/Os were over {format_duration(late_us * NS_PER_US)} late: the target is"
        " too slow"
    )
    late_note = slow_note if late_us > _TOO_LATE_US else ""

    def judged(
        name: str,
        target: str,
        value: float | None,
        bound: float,
        by_chance: float,
        late_reason: str = "",
    ) -> Verdict:
        if value is None or abs(value) <= bound:
            return Verdict(name, target, value, None if value is None else True)
        reason = late_reason or (too_few if abs(value) <= by_chance else None)
        # Sampling error falls with the square root of the sample; one arrival falls in proportion.
        repetitions = (
            (by_chance / bound) ** (1 if is_replay else 2) if reason and not late_reason else None
        )
        return Verdict(name, target, value, None if reason else False, reason, repetitions)

    rows = [
        _one_sided(source.read_share, figures.read_share)
        or judged(READS, "within 1.5 %", read_share, RATE_TARGET, chance.read_share),
        judged(IO_RATE, "within 1.5 %", rate, RATE_TARGET, chance.ios_per_s, late_note),
        judged(
            BYTE_RATE,
            "within 1.5 %",
            bytes_per_s,
            RATE_TARGET,
            chance.bytes_per_s,
            late_note,
        ),
        judged(SIZES, "<= 1.5 %", figures.size_tv, SIZE_TV_TARGET, chance.size_tv),
        *(
            []
            if has_lanes
            else [judged(GAPS, f"<= {gap}", figures.gap_ks, gap, gap_chance, late_note)]
        ),
        judged(
            DEPTH,
            f"within {100 * depth_target:.0f} %",
            depth,
            depth_target,
            chance.mean_depth,
            late_note,
        ),
        judged(
            "I/O share of hottest 10 %",
            f"+- {HOT_TARGET}",
            hot_difference,
            HOT_TARGET,
            chance.hot10_share,
        ),
        # The sampling error of a hit rate is at most half of that.
        judged(
            MISS_RATIOS,
            f"<= {MRC_TARGET}",
            figures.mrc_error,
            MRC_TARGET,
            chance.hot10_share / 2,
        ),
    ]
    for name, field in ((ISSUE_DEPTH, "depth_at_issue"), (BUSY_DEPTH, "busy_depth")):
        busy_target = replayed_depth_target(name, is_replay=is_replay)
        value = relative(getattr(figures, field), getattr(source, field))
        if value is not None:
            target_text = f"within {100 * busy_target:.0f} %"
            rows.append(judged(name, target_text, value, busy_target, chance.mean_depth, late_note))
    if is_replay:
        if not has_lanes:
            rows.append(judged(END, "<= 1 %", figures.end_slip, END_SLIP_TARGET, 0, late_note))
        rows.append(Verdict("same I/Os", "yes", figures.has_same_ios, figures.has_same_ios))
    if figures.side is not Side.DEVICE:
        # Requests at the device may differ from those that fio issues.
        rows.append(
            Verdict("seen at the device", "yes", False, None, "only fio's logs were compared")
        )
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The two sides of a comparison, for `explain_misses`."""

    mode: FioMode
    figures: StreamFigures
    source: StreamFigures
    issued: int
    """I/Os that both sides issued, before splits at the device."""
    is_replayed: bool
    """Whether the source is a replay by kvreplay, at the device."""
    has_lanes: bool
    has_null_engine: bool
    """Whether fio's null engine ran the job, for which I/Os take no time."""
    is_target_too_slow: bool
    """Whether kvreplay fell behind the same part on the same target."""
    has_closed_loop: bool
    replayed_gap_ks: float | None
    """KS distance of the gaps that kvreplay kept in its replay; null if unknown."""


def explain_misses(verdicts: Sequence[Verdict], compared: Compared) -> list[Verdict]:
    """Return `verdicts` with a reason for each miss that has a known one.

    A miss that the reason does not blame on the job is undetermined.
    """
    explained = []
    for verdict in verdicts:
        if verdict.passes is not False:
            explained.append(verdict)
        elif compared.is_target_too_slow and _follows_from_lateness(verdict):
            explained.append(msgspec.structs.replace(verdict, passes=None, reason=_TOO_SLOW))
        else:
            explained.append(_explained(verdict, compared))
    return explained


def _follows_from_lateness(verdict: Verdict) -> bool:
    """Return whether a miss can come from I/Os that are late.

    They have a lower rate, and reach the target at other times and in another order.
    """
    if verdict.name in (IO_RATE, BYTE_RATE):
        return (verdict.value or 0) < 0
    return verdict.name in (GAPS, END, MISS_RATIOS)


def _explained(verdict: Verdict, compared: Compared) -> Verdict:
    """Return the missed `verdict` with its reason, if that is known."""
    mode, figures, source = compared.mode, compared.figures, compared.source
    if compared.has_null_engine and mode is FioMode.STAT and compared.has_closed_loop:
        # A closed loop is as fast as its operations.
        return msgspec.structs.replace(verdict, passes=None, reason=_NO_TIME)
    if verdict.name == MISS_RATIOS and mode is FioMode.STAT:
        return msgspec.structs.replace(verdict, reason=_NO_REUSE)
    if compared.is_replayed and verdict.name in (READS, IO_RATE, SIZES) and figures.has_same_ios:
        return _without_extent_splits(verdict, compared)
    is_deeper = (figures.mean_depth or 0) > (source.mean_depth or 0)
    has_no_waits = compared.is_replayed and mode is not FioMode.STAT and not compared.has_lanes
    if verdict.name == DEPTH and has_no_waits and is_deeper:
        return msgspec.structs.replace(verdict, reason=_NO_WAIT)
    if verdict.name == GAPS and compared.replayed_gap_ks is not None:
        return _without_long_bursts(verdict, compared.replayed_gap_ks, source.arrivals or 0)
    return verdict


def _without_long_bursts(verdict: Verdict, replayed_gap_ks: float, arrivals: int) -> Verdict:
    """Return the missed gaps judged against those that kvreplay kept in its own replay.

    A burst that lasts beyond the next arrival delays it, whichever program issues it.
    """
    # As in `judge`, one more arrival may be late.
    allowed = replayed_gap_ks + (_LATE_ARRIVAL_GAPS + _ROUNDING) / max(1, arrivals - 1)
    if not replayed_gap_ks or (verdict.value or 0) > allowed:
        return verdict
    reason = (
        f"kvreplay's own replay is off by {replayed_gap_ks:.2g}: bursts last beyond the next"
        " arrival on this device"
    )
    return msgspec.structs.replace(verdict, passes=None, reason=reason)


def _without_extent_splits(verdict: Verdict, compared: Compared) -> Verdict:
    """Return the missed `verdict` judged without splits at the extents of the two scratch files.

    Both sides issued the same I/Os, to files of their own. A filesystem splits an I/O that crosses
    the end of an extent, and the extents of the two files differ. So the rate of the I/Os that were
    issued is judged, and a difference in sizes that these splits explain is no miss. The read shares
    of the I/Os that were issued are equal, because the I/Os are.
    """
    issued, sides = compared.issued, (compared.figures, compared.source)
    splits = [0 if side.requests is None else side.requests - issued for side in sides]
    if min(splits) < 0 or not 0 < max(splits) <= _MAX_SPLIT_SHARE * issued:
        return verdict
    reason = f"{max(splits):,} of {issued:,} I/Os were split at the ends of file extents"
    if verdict.name == READS:
        return msgspec.structs.replace(verdict, value=0.0, passes=True, reason=reason)
    if verdict.name == SIZES:
        # Each split replaces one request by two of other sizes.
        is_explained = (verdict.value or 0) <= SIZE_TV_TARGET + 2 * sum(splits) / issued
        return (
            msgspec.structs.replace(verdict, passes=None, reason=reason)
            if is_explained
            else verdict
        )
    rates = (
        None if side.ios_per_s is None else side.ios_per_s * issued / (issued + split)
        for side, split in zip(sides, splits, strict=True)
    )
    rate = relative(*rates)
    if rate is None or abs(rate) > RATE_TARGET:
        return verdict
    return msgspec.structs.replace(verdict, value=rate, passes=True, reason=reason)


def relative(value: float | None, source: float | None) -> float | None:
    """Return the relative difference of `value` from `source`; null if it is unknown or infinite."""
    if value is None or source is None or (source == 0 and value != 0):
        return None
    return value / source - 1 if source else 0.0
