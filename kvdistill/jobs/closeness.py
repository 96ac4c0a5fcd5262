"""Compare fio's I/O with that of its source: figures of both, distances, and targets.

I/O is a `Stream` in order of issue, from a source's operations, fio's latency logs and iologs, or
the block requests of the device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvdistill.formats.fio_iolog import logged_ios
from kvdistill.formats.fio_logs import logged_latencies
from kvdistill.jobs.fio_replay import FioIos, split_ios
from kvdistill.jobs.issued_parts import longest_issued_bytes
from kvdistill.jobs.job import MIB, FioMode, FioResult, JobOptions
from kvdistill.jobs.mode_job import ModeJob
from kvdistill.jobs.reference import REPLAYED
from kvdistill.jobs.verdicts import (
    DEPTH,
    DEPTH_TARGET,
    EXACT,
    GAPS,
    Compared,
    Distributions,
    SamplingError,
    Side,
    StreamFigures,
    Verdict,
    explain_misses,
    judge,
    replayed_depth_target,
)
from kvdistill.profile.locality import BlockLocality, block_locality
from kvdistill.profile.profile import Pacing, Profile, SourceKind
from kvdistill.profile.sources import Distilled
from kvtrace.core import pl, pq
from kvtrace.core.run.run_file import OPS_FILE
from kvtrace.core.units import NS_PER_MS, NS_PER_S, NS_PER_US, US_PER_MS

_SIGMAS = 2
"""Number of standard deviations that sampling error may explain."""
_NEAREST_RANK_P99 = 100
_BLOCK_FIGURES = ("hot10_share", "reuse_p50_blocks")
_MOST_SIZES = 1024
"""Maximum number of distinct sizes in the sampling error; a job has fewer sizes, too."""


def sampling_error(source: Stream, draws: int, part_bytes: int) -> SamplingError:
    """Return the sampling error of `draws` operations from `source`, in parts of `part_bytes`.

    All parts of an operation are sampled together, so the number of parts overstates the sample.
    The contribution of an operation to the queue depth is taken as its bytes squared: its bytes
    are in flight for a time in proportion to their number.
    """
    draws, length = max(1, draws), source.length.astype(np.float64)
    full_parts, remainder = np.divmod(source.length, part_bytes)
    io_parts = full_parts + (remainder > 0)
    reads = io_parts * source.is_read

    def off(deviations: NDArray[np.float64], figure: NDArray[np.float64]) -> float:
        # The number of operations is random (Poisson), too.
        return float(_SIGMAS * (np.square(deviations).mean() / draws) ** 0.5 / figure.mean())

    size_tv_error = 0.0
    for direction in np.unique(source.is_read):
        in_direction = source.is_read == direction
        direction_parts = io_parts[in_direction]
        sizes, kind = np.unique(remainder[in_direction], return_inverse=True)
        last_part_counts, parts_brought = (
            np.bincount(kind),
            np.bincount(kind, weights=direction_parts),
        )
        # For each size of a last part: squared deviation of its count from its share, by operation.
        share = last_part_counts / direction_parts.sum()
        squares = (
            last_part_counts
            - 2 * share * parts_brought
            + share**2 * np.square(direction_parts).sum()
        )
        full_part_square = np.square(
            full_parts[in_direction]
            - full_parts[in_direction].sum() / direction_parts.sum() * direction_parts
        ).sum()
        squares = np.append(squares[sizes > 0][:_MOST_SIZES], full_part_square).clip(min=0) / len(
            direction_parts
        )
        spread = (
            _SIGMAS
            * np.sqrt(squares / (draws * in_direction.mean())).sum()
            / direction_parts.mean()
        )
        # The mean absolute deviation of a normal variable is sqrt(2 / pi) of its standard deviation.
        size_tv_error += float(
            direction_parts.sum() / io_parts.sum() * spread * (2 / np.pi) ** 0.5 / 2
        )
    return SamplingError(
        operations=draws,
        read_share=off(reads - reads.sum() / io_parts.sum() * io_parts, reads)
        if reads.any()
        else 0,
        ios_per_s=off(io_parts, io_parts),
        bytes_per_s=off(length, length),
        mean_depth=off(length**2, length**2),
        size_tv=size_tv_error,
        hot10_share=_SIGMAS / draws**0.5,
    )


def figures_of(
    name: str,
    stream: Stream,
    side: Side = Side.ASKED,
    profile: Profile | None = None,
    **overrides: object,
) -> StreamFigures:
    """Return the figures of `stream`, with the queue depth of its `profile` if that is measured.

    `overrides` replaces fields of the result.
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
        distributions=distributions_of(stream),
    )
    if profile is not None and (depth := profile.depth) is not None:
        idle = sum(level.share for level in depth.shares if level.in_flight == 0)
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
    return msgspec.structs.replace(figures, **overrides)


_SHARES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999)


def distributions_of(stream: Stream) -> Distributions | None:
    """Return the sizes and gaps of a stream by share, by nearest rank; null without I/Os."""
    if not len(stream.us):
        return None
    # An arrival is at the time of its first I/O.
    _arrivals, first = np.unique(stream.arrival, return_index=True)
    gap_us = np.diff(stream.us[first])

    def ranked(values: NDArray[np.int64], factor: int = 1) -> list[int]:
        if not len(values):
            return []
        quantiles = np.quantile(values, _SHARES, method="inverted_cdf")
        return [int(value) * factor for value in quantiles]

    return Distributions(
        shares=list(_SHARES),
        io_bytes=ranked(stream.length),
        gap_ns=ranked(gap_us, NS_PER_US),
    )


def device_figures(
    name: str,
    logged: StreamFigures | None,
    stream: Stream,
    profile: Profile,
    source: Stream,
    *,
    has_gaps: bool,
) -> StreamFigures:
    """Return the figures of a fio run at the device, and their distances from `source`.

    Lateness comes from fio's logs (`logged`), and so do gaps unless `has_gaps`: device requests may
    not show the arrivals of the source.
    """
    overrides: dict[str, object] = {
        "size_tv": size_tv(stream, source),
        "mrc_error": mrc_error(stream, source),
    }
    if logged is not None:
        logged_fields = (
            "has_same_ios",
            "end_slip",
            "late_p50_us",
            "late_p99_us",
            "gap_ks",
            "gap_resolution_us",
            "arrivals",
        )
        overrides |= {field: getattr(logged, field) for field in logged_fields}
    if has_gaps:
        overrides |= {
            "gap_ks": _gap_ks(stream, source, 1),
            "gap_resolution_us": 1,
            "arrivals": len(stream.us),
        }
    return figures_of(name, stream, Side.DEVICE, profile, **overrides)


def job_figures(
    name: str, stream: Stream, source: Stream, *, is_replay: bool, mean_depth: float | None
) -> StreamFigures:
    """Return the figures of fio's I/O by its logs, and their distances from `source`."""
    resolution_us = max(stream.resolution_us, source.resolution_us)
    replay_figures: dict[str, object] = {}
    if is_replay:
        # Sorted, because several jobs overtake each other.
        orders = [np.lexsort((side.length, side.is_read, side.offset)) for side in (stream, source)]
        replay_figures["has_same_ios"] = len(stream.us) == len(source.us) and all(
            np.array_equal(getattr(stream, name)[orders[0]], getattr(source, name)[orders[1]])
            for name in ("is_read", "offset", "length")
        )
    if replay_figures.get("has_same_ios"):
        # Lateness of I/Os, and of the last arrival.
        due_us, issued_us = source.arrivals_us, stream.arrivals_us
        span = int(due_us[-1] - due_us[0])
        lateness_us = stream.us - due_us[stream.arrival]
        lateness_us -= lateness_us.min()
        replay_figures["end_slip"] = (
            (int(issued_us[-1] - issued_us[0]) - span) / span if span else None
        )
        replay_figures["late_p50_us"] = int(np.percentile(lateness_us, 50, method="inverted_cdf"))
        if len(lateness_us) >= _NEAREST_RANK_P99:
            replay_figures["late_p99_us"] = int(
                np.percentile(lateness_us, 99, method="inverted_cdf")
            )
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
    return msgspec.structs.replace(figures, **replay_figures)


def mrc_error(stream: Stream, source: Stream) -> float | None:
    """Return the mean absolute difference of the miss-ratio curves; null without I/O.

    The curves extend to the size that holds all blocks of both.
    """
    own, source_blocks = stream.blocks, source.blocks
    if own is None or source_blocks is None:
        return None
    length = max(len(own.hit_ratios), len(source_blocks.hit_ratios))
    own_curve, source_curve = (
        np.pad(side.hit_ratios, (0, length - len(side.hit_ratios)), "edge")
        for side in (own, source_blocks)
    )
    return float(np.abs(own_curve - source_curve).mean())


def gaps_us(stream: Stream) -> NDArray[np.int64]:
    """Return the gaps between arrivals in µs, in order of time."""
    return np.diff(np.sort(stream.arrivals_us)).astype(np.int64)


def _depth_at_issue(distilled: Distilled) -> float | None:
    """Return the mean requests in flight when one is issued, with that one; null without times."""
    assert distilled.ios is not None
    table = pq.read_table(distilled.ios, columns=["ts_ns", "completed_ns", "io_bytes"]).drop_null()
    submitted_ns, completed_ns, length = (column.to_numpy() for column in table.columns)
    submitted_ns = np.sort(submitted_ns[length > 0])
    completed_ns = np.sort(completed_ns[length > 0])
    if not len(submitted_ns):
        return None
    issued = np.arange(1, len(submitted_ns) + 1)
    return float((issued - np.searchsorted(completed_ns, submitted_ns, "right")).mean())


def _with_busy_depth(figures: StreamFigures, distilled: Distilled) -> StreamFigures:
    """Return `figures` with the queue depths at issue and while busy of `distilled`."""
    depth, busy_depth = distilled.profile.depth, None
    if depth is not None and figures.idle_share is not None and figures.idle_share < 1:
        busy_depth = depth.mean / (1 - figures.idle_share)
    return msgspec.structs.replace(
        figures, depth_at_issue=_depth_at_issue(distilled), busy_depth=busy_depth
    )


def replay_figures(replayed: Distilled) -> StreamFigures:
    """Return the figures of a replay by kvreplay from its requests at the device."""
    assert replayed.ios is not None
    figures = figures_of("source", _at_device(replayed.ios), profile=replayed.profile)
    return _with_busy_depth(figures, replayed)


def _replayed_gap_ks(run: CheckedRun, figures: StreamFigures) -> float | None:
    """Return the KS distance of the gaps that kvreplay kept in its own replay; null if unknown."""
    path = run.place / REPLAYED / OPS_FILE
    if figures.gap_resolution_us is None or not path.is_file():
        return None
    columns = ["scheduled_ns", "submitted_ns", "io_bytes"]
    rows = pl.read_parquet(path, columns=columns).filter(
        pl.col("submitted_ns").is_not_null(), pl.col("io_bytes") > 0
    )
    arrivals = rows.group_by("scheduled_ns").agg(pl.col("submitted_ns").min()).sort("scheduled_ns")
    due_us, submitted_us = (arrivals[name].to_numpy() // NS_PER_US for name in columns[:2])
    tolerance = figures.gap_resolution_us if figures.gap_resolution_us > 1 else 0
    return ks_distance(
        np.diff(np.sort(submitted_us)).astype(np.int64), np.diff(due_us).astype(np.int64), tolerance
    )


def _gap_ks(stream: Stream, source: Stream, resolution_us: int) -> float | None:
    gaps = gaps_us(source)
    if not source.seconds or not len(gaps) or float(np.median(gaps)) < resolution_us:
        # Most operations share an instant, and fio issues them one after another.
        return None
    return ks_distance(gaps_us(stream), gaps, resolution_us if resolution_us > 1 else 0)


def ks_distance(a: NDArray[np.int64], b: NDArray[np.int64], tolerance: float = 0) -> float | None:
    """Return the Kolmogorov-Smirnov distance of two samples; null if one is empty.

    Differences of values up to `tolerance` do not count.
    """
    if not len(a) or not len(b):
        return None
    a, b = np.sort(a), np.sort(b)
    distances = []
    for low, high in ((a, b), (b, a)):
        # Largest excess of one distribution, shifted up by the tolerance, over the other.
        points = np.unique(np.concatenate([low + tolerance, high]))
        below_low = np.searchsorted(low, points - tolerance, "right") / len(low)
        below_high = np.searchsorted(high, points, "right") / len(high)
        distances.append(float((below_low - below_high).max()))
    return max(distances)


def size_tv(stream: Stream, source: Stream) -> float:
    """Return the total variation distance of sizes, by direction, weighted by the source's mix."""
    total = 0.0
    for direction in (True, False):
        own, source_lengths = (side.length[side.is_read == direction] for side in (stream, source))
        if not len(source_lengths):
            continue
        values = np.unique(np.concatenate([own, source_lengths]))
        counts = [
            np.bincount(np.searchsorted(values, lengths), minlength=len(values))
            for lengths in (own, source_lengths)
        ]
        distance = (
            np.abs(counts[0] / len(own) - counts[1] / len(source_lengths)).sum() / 2
            if len(own)
            else 1.0
        )
        total += float(distance) * len(source_lengths) / len(source.length)
    return total


@dataclass(frozen=True)
class Stream:
    """I/Os in order of issue; `us` are issue times in microseconds, true to `resolution_us`."""

    us: NDArray[np.int64]
    is_read: NDArray[np.bool_]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    arrival: NDArray[np.int64]
    """Number of the arrival of each I/O, from 0; an arrival is at the time of its first I/O."""
    resolution_us: int = 1
    span_us: int | None = None
    """Duration, if it is known more exactly than from the first and last I/O."""

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
        """The block locality; null without I/O."""
        return block_locality(self.offset, self.length)

    @property
    def arrivals_us(self) -> NDArray[np.int64]:
        """Time of each arrival, by its number."""
        first = np.full(
            int(self.arrival.max()) + 1 if len(self.arrival) else 0, np.iinfo(np.int64).max
        )
        np.minimum.at(first, self.arrival, self.us)
        return first


def requested_stream(batches: Iterable[FioIos], *, by_instant: bool) -> Stream:
    """Return the I/Os that fio shall issue, from batches of `split_ios`.

    An arrival is all I/Os of one instant if `by_instant`, else one operation.
    """
    listed_batches = list(batches)
    us = np.concatenate([batch["us"] for batch in listed_batches])
    part_index = np.concatenate([batch["part"] for batch in listed_batches])
    begins = np.diff(us, prepend=0) > 0 if by_instant else part_index == 0
    return Stream(
        us,
        np.concatenate([batch["is_read"] for batch in listed_batches]),
        np.concatenate([batch["offset"] for batch in listed_batches]),
        np.concatenate([batch["length"] for batch in listed_batches]),
        np.cumsum(begins) - 1,
    )


@dataclass(frozen=True, slots=True)
class LatencyLog:
    """A latency log of one of fio's jobs."""

    path: Path
    is_submission: bool
    """Whether it holds submission times in ms, and not completion times with the latency in ns."""
    members: NDArray[np.int64]
    """Numbers of the source's I/Os in this job, in order."""


def replayed_stream(logs: Sequence[LatencyLog], source: Stream) -> Stream:
    """Return the I/Os of a replay of `source` from fio's latency logs (one a job), by issue time.

    The order within a millisecond is that of the source.
    """
    logged = [logged_latencies(log.path) for log in logs]
    us = np.full(len(source.us), -1, dtype=np.int64)
    for log, (time_ms, latency_ns, direction, length, offset) in zip(logs, logged, strict=True):
        lines_of_log = log.members
        columns_compared = (
            (direction == 0, source.is_read[lines_of_log]),
            (length, source.length[lines_of_log]),
            (offset, source.offset[lines_of_log]),
        )
        if not all(np.array_equal(a, b) for a, b in columns_compared):
            # The I/Os differ from the source's, so they are returned as logged.
            order = np.argsort(np.concatenate([columns[0] for columns in logged]), kind="stable")
            ms, _, op, sizes, places = (
                np.concatenate(column_of_logs)[order]
                for column_of_logs in zip(*logged, strict=True)
            )
            return Stream(ms * US_PER_MS, op == 0, places, sizes, np.arange(len(order)), US_PER_MS)
        latency_us = 0 if log.is_submission else latency_ns // NS_PER_US
        us[lines_of_log] = time_ms * US_PER_MS - latency_us
    order = np.argsort(us // US_PER_MS, kind="stable")
    source_columns = {
        name: getattr(source, name)[order] for name in ("is_read", "offset", "length", "arrival")
    }
    return Stream(us[order], **source_columns, resolution_us=US_PER_MS)


def logged_stream(logs: Sequence[Path], span_us: int) -> Stream:
    """Return the I/Os in the iologs of several jobs, by time; they lasted `span_us`."""
    logged = [logged_ios(log) for log in logs]
    us = np.concatenate([operations["us"] for operations in logged])
    order = np.argsort(us, kind="stable")
    return Stream(
        us[order],
        np.concatenate([operations["is_read"] for operations in logged])[order],
        np.concatenate([operations["offset"] for operations in logged])[order],
        np.concatenate([operations["length"] for operations in logged])[order],
        np.arange(len(order)),
        span_us=span_us,
    )


def stream_from_sizes(profile: Profile) -> Stream:
    """Return I/Os with the sizes of a profile without times, offsets and order."""
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
"""Larger than any request."""


IssueTimes = tuple[float, float]
"""Time to issue an I/O, and each MiB of it, in microseconds."""


@dataclass(frozen=True, slots=True)
class ObservedRun:
    """A fio run: its JSON, and its device requests.

    `device` is null, with a `reason`, if the device could not be observed.
    """

    result: FioResult
    device: Distilled | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """A job to run: the part of the source, and the folder."""

    mode: FioMode
    distilled: Distilled
    window: str
    whole_ns: int
    """Span of the whole source; the window may be shorter."""
    place: Path
    options: JobOptions
    job: ModeJob
    reference: Distilled | None
    """Device requests of the source, or of a replay of it; null: fio's logs are compared."""
    disk: Path | None = None
    """The disk beneath the job's target; null without one."""
    is_target_too_slow: bool = False
    """Whether kvreplay did not keep up with the part on this target either."""

    @property
    def is_replay(self) -> bool:
        """Whether the job replays the source's own I/O."""
        return self.mode is FioMode.REPLAY


class ClosenessPair(msgspec.Struct, frozen=True, kw_only=True):
    """One job compared with the source over the same window."""

    job: str
    window: str
    span_ns: int = 0
    """Span of the window; 0 in files of earlier versions."""
    whole_ns: int = 0
    """Span of the whole source."""
    source: StreamFigures
    fio: StreamFigures
    verdicts: list[Verdict]


def compare_logged(
    run: CheckedRun, observed: ObservedRun, logs: Sequence[LatencyLog]
) -> tuple[ClosenessPair, IssueTimes | None]:
    """Return the closeness of a job of iologs by fio's latency `logs`, and the issue times if known."""
    log, ios, batches_of_job = run.job.log, run.distilled.ios, run.job.ios
    assert log is not None
    assert batches_of_job is not None
    requested = requested_stream(batches_of_job(), by_instant=True)
    source = requested
    if ios is not None and not run.is_replay:
        source = requested_stream(split_ios(ios, log.max_io_bytes), by_instant=True)
    stream = replayed_stream(logs, requested)
    # Where fio does not reap completions while it waits, its latencies are wrong.
    has_latencies = not any(log.is_submission for log in logs)
    depth = _mean_depth(observed.result["jobs"], stream) if has_latencies else None
    figures = job_figures(run.mode, stream, source, is_replay=run.is_replay, mean_depth=depth)
    chance = EXACT
    if not run.is_replay:
        operations = (
            source
            if ios is None
            else requested_stream(split_ios(ios, WHOLE_BYTES), by_instant=False)
        )
        chance = sampling_error(
            operations,
            sum(int((batch["part"] == 0).sum()) for batch in batches_of_job()),
            log.max_io_bytes,
        )
    issue_us = None
    if observed.device is not None and observed.device.ios is not None:
        device_stream = requested_stream(
            split_ios(observed.device.ios, WHOLE_BYTES), by_instant=False
        )
        issue_us = fitted_issue_us(requested.us, device_stream.us, requested.length)
    return compare(run, observed, source, figures, chance, stream), issue_us


def fitted_issue_us(
    asked_us: NDArray[np.int64], came_us: NDArray[np.int64], length: NDArray[np.int64]
) -> IssueTimes | None:
    """Fit fio's time to issue an I/O, and each MiB, from requested and observed times (version 3).

    Only I/Os after a wait show it, because others are issued as soon as possible. Null with too few
    of them, or if issuing took no time.
    """
    if len(asked_us) != len(came_us):
        return None
    requested_gaps, device_gaps = np.diff(asked_us), np.diff(came_us)
    is_waited = requested_gaps > _WAITED_US
    delays = (device_gaps - requested_gaps)[is_waited]
    if len(delays) < _MIN_WAITS:
        return None
    # Outliers are stalls of the machine.
    is_usual = np.abs(delays - np.median(delays)) <= np.percentile(
        np.abs(delays - np.median(delays)), _USUAL
    )
    mib = (length[:-1][is_waited] / MIB)[is_usual]
    mean = float(delays[is_usual].mean())
    if mean <= 0:
        return None
    if np.ptp(mib) * 2 <= mib.max():
        return mean, 0.0
    slope, base = (float(x) for x in np.polyfit(mib, delays[is_usual], 1))
    return (base, slope) if base > 0 and slope > 0 else (mean, 0.0)


def compare_drawn(run: CheckedRun, observed: ObservedRun) -> ClosenessPair:
    """Return the closeness of the statistical job, at the device or by its written iologs."""
    profile, ios, jobs = run.distilled.profile, run.distilled.ios, observed.result["jobs"]
    issued_bytes = longest_issued_bytes(profile, run.options)
    if ios is None:
        source = stream_from_sizes(profile)
    else:
        source = requested_stream(split_ios(ios, issued_bytes), by_instant=False)
    issued = sum(int(job[side]["total_ios"]) for job in jobs for side in ("read", "write"))
    operations = source
    if ios is not None:
        operations = requested_stream(split_ios(ios, WHOLE_BYTES), by_instant=False)
    # The I/Os of one operation are drawn together.
    draws = round(issued * len(operations.us) / max(1, len(source.us)))
    figures, chance = None, sampling_error(operations, draws, issued_bytes)
    if observed.device is None:
        span_us = round(min(profile.span_ns, run.options.check_ns) / NS_PER_US)
        span_us = span_us or max(int(job["job_runtime"]) * US_PER_MS for job in jobs)
        stream = logged_stream([run.place / f"{job['jobname']}.drawn" for job in jobs], span_us)
        figures = job_figures(
            run.mode, stream, source, is_replay=False, mean_depth=_mean_depth(jobs, stream)
        )
    return compare(run, observed, source, figures, chance)


def _at_device(ios: Path) -> Stream:
    """Return the requests in `ios` as the block layer issued them, with offsets from the lowest.

    A file starts anywhere on its device, so only differences of offsets can be compared.
    """
    requests = requested_stream(split_ios(ios, WHOLE_BYTES), by_instant=False)
    if not len(requests.offset):
        return requests
    return replace(requests, offset=requests.offset - requests.offset.min())


def compare(
    run: CheckedRun,
    observed: ObservedRun,
    source: Stream,
    logged: StreamFigures | None,
    chance: SamplingError,
    logged_ios: Stream | None = None,
) -> ClosenessPair:
    """Compare fio's figures with those of the source, at the device if it was observed.

    Requests are compared as the block layer issued them, with its merges and splits: a job that
    makes it merge or split differently is a different load for the device.
    """
    profile, ios, figures, requested = run.distilled.profile, run.distilled.ios, logged, source
    # The reference of a trace is a replay; a source that a device observed is its own reference.
    is_replayed = (
        run.reference is not None
        and run.reference is not run.distilled
        and observed.device is not None
    )
    if (
        run.reference is not None
        and observed.device is not None
        and observed.device.ios is not None
    ):
        profile, ios = run.reference.profile, run.reference.ios
        if ios is not None:
            source = _at_device(ios)
        stream = _at_device(observed.device.ios)
        # An operation of a trace becomes several requests: only fio's log shows which ones.
        has_gaps = ios is not None and not is_replayed
        figures = device_figures(
            run.mode, logged, stream, observed.device.profile, source, has_gaps=has_gaps
        )
    assert figures is not None
    source_figures = figures_of("source", source, profile=profile)
    if is_replayed:
        assert run.reference is not None
        assert observed.device is not None
        # Arrivals and offsets come from the trace and from fio's log, not the device: kvreplay
        # allocates space at the completion of deletes and writes, and a file is scattered on disk.
        requested_blocks, fio_blocks = (
            {name: getattr(stream_of_side.blocks, name, None) for name in _BLOCK_FIGURES}
            for stream_of_side in (requested, logged_ios or stream)
        )
        if run.distilled.profile.span_ns < NS_PER_MS:  # an instant has no rate
            requested_blocks |= {"ios_per_s": None, "bytes_per_s": None}
        source_figures = msgspec.structs.replace(
            source_figures, arrivals=len(requested.arrivals_us), **requested_blocks
        )
        fio_blocks["mrc_error"] = mrc_error(logged_ios or stream, requested)
        figures = msgspec.structs.replace(figures, **fio_blocks)
        source_figures = _with_busy_depth(source_figures, run.reference)
        figures = _with_busy_depth(figures, observed.device)
    elif ios is None:
        source_figures = msgspec.structs.replace(source_figures, **dict.fromkeys(_BLOCK_FIGURES))
        figures = msgspec.structs.replace(figures, mrc_error=None)
    depth_target = DEPTH_TARGET
    if is_replayed:
        depth_target = replayed_depth_target(DEPTH, is_replay=run.is_replay)
    has_lanes = run.mode is FioMode.REPLAY and run.job.lanes is not None
    verdict_list = judge(figures, source_figures, chance, depth_target, has_lanes=has_lanes)
    misses_gaps = any(each.name == GAPS and each.passes is False for each in verdict_list)
    verdict_list = explain_misses(
        verdict_list,
        Compared(
            mode=run.mode,
            figures=figures,
            source=source_figures,
            issued=len(requested.us),
            is_replayed=is_replayed,
            has_lanes=has_lanes,
            has_null_engine=run.options.has_null_check,
            is_target_too_slow=run.is_target_too_slow,
            has_closed_loop=any(each.loop.pace is Pacing.CLOSED for each in profile.streams),
            replayed_gap_ks=(
                _replayed_gap_ks(run, figures) if is_replayed and misses_gaps else None
            ),
        ),
    )
    spans = {"span_ns": run.distilled.profile.span_ns, "whole_ns": run.whole_ns}
    return ClosenessPair(
        job=run.mode.job,
        window=run.window,
        **spans,
        source=source_figures,
        fio=figures,
        verdicts=verdict_list,
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
