"""Write the statistical fio job of a `Profile`: one section a stream.

Below the job follow the settings of offsets and sizes (`place_settings`, `size_settings`), of rates
(`poisson`), and the sizes to request from fio's random map (`compensated_weights`). That map repeats
no offset before all were used: an operation that would run into a used offset is cut short, more
often the fuller the map is. So the sizes of such a source are not those that its program requested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, exp, inf, isnan, nan, prod
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvdistill.jobs.fio_sections import FioJob, FioOptions, FioSection, FioSettings
from kvdistill.jobs.issued_parts import as_issued, longest_issued_bytes
from kvdistill.jobs.job import (
    BUFFER_BYTES,
    EXPECTED_WITHIN,
    MIB,
    MULTIPLIES_RATE_IOPS,
    ExpectedFigure,
    FioMode,
    IoLoad,
    JobOptions,
    common_losses,
    expectation_text,
    expected_figures,
    fio_job,
    most_in_flight,
    source_load,
    stat_space_bytes,
)
from kvdistill.profile.profile import (
    PERCENT,
    DirectionProfile,
    IoStream,
    Law,
    Loop,
    Pacing,
    Places,
    Profile,
    SizeCount,
    Split,
    percentages,
    split_sizes,
    total_variation,
)
from kvdistill.profile.streams import FAST, empty_direction
from kvtrace.core.units import (
    NS_PER_MS,
    NS_PER_S,
    NS_PER_US,
    US_PER_MS,
    counted,
    format_bytes,
    format_duration,
    format_io_size,
)

_MEASURED_BYTES = 1024 * MIB
"""Buffer size for operations in flight if the source's queue depth is measured."""
_ALIGN = 4096
_MOSTLY = 0.99
_WITHIN = "they arrive within a millisecond, and fio's times are whole milliseconds"
_SHORT_MS = 2_000
"""A shorter stream ends by its number of operations.

fio's processes start some ms late, and would lose the operations of that time.
"""
_START_STEP_MS = 100
"""fio starts sections at multiples of this.

A start delay that is half of it shorter starts at the nearest multiple.
"""
_LEAST_PAUSE, _MANY_BURSTS = 0.1, 20
"""Smallest pause, as a share of the time from burst to burst.

From `_MANY_BURSTS` on, a job has the source's rate in addition to its pauses.
"""


@dataclass(frozen=True, slots=True)
class _SectionTimes:
    """Start and run time of a stream in the job, and its share of the source's operations.

    `runtime_ms` is null for an instant: fio's times are whole milliseconds.
    """

    start_ms: int
    runtime_ms: int | None
    share: float = 1.0


# Long, because it describes a whole job.
def stat_job(profile: Profile, options: JobOptions) -> FioJob:
    """Return the job that samples reads and writes from the models of the profile's streams."""
    source = profile
    profile = as_issued(source, options)
    space = stat_space_bytes(source, options)
    runtime_ns = min(profile.span_ns, options.runtime_cap_ns)
    sections: list[FioSection] = []
    for stream in _streams(profile):
        paced = _pace(stream, _section_times(stream, profile, runtime_ns), profile)
        settings = place_settings(stream, space) | size_settings(stream) | paced.settings
        if stream.write.ops and profile.flush_ops:
            # A flush follows this many writes, of any stream.
            writes_per_flush = max(1, round(profile.write.ops / profile.flush_ops))
            settings |= FioSettings({"fdatasync": writes_per_flush})
        sections += _numbered(stream.name, paced.section_count, settings)
    trims = _trim_sections(profile, options, runtime_ns)
    sections += trims
    depths = [section.options.get("iodepth") or 1 for section in sections]
    length_line = f"it ends after the source's number of operations: {_WITHIN}"
    if profile.span_ns >= NS_PER_MS:
        source_span = format_duration(profile.span_ns)
        length_text = (
            f" of the source's {source_span}"
            if runtime_ns < profile.span_ns
            else ", as long as the source"
        )
        trims_end_ns = min(
            options.runtime_cap_ns, profile.deletes_start_ns + (profile.deletes_span_ns or 0)
        )
        trims_text = "; its trims go on beyond that" if trims and trims_end_ns > runtime_ns else ""
        length_line = f"it runs {format_duration(runtime_ns)}{length_text}{trims_text}"
    expectation = f"it is {expectation_text(expected_stat(source, options))}"
    bugs = [
        (
            "'bs_unaligned may not work with raw io' can be ignored: every size here is a multiple of"
            " the sector"
        )
    ]
    start_note = (
        f"fio starts sections every {_START_STEP_MS} ms: each begins at the step nearest to its"
        " time in the source; one that writes fills its buffers first (250 MB take 0.1 s, 0.8 s"
        " where free memory is fragmented)"
    )
    if any("startdelay_ms" in section.options for section in sections):
        bugs.append(start_note)
    if _is_drawn(sections) and (options.version is None or options.version < MULTIPLIES_RATE_IOPS):
        problem = "gets rate_iops with bssplit wrong unless rate_process=poisson: keep that line"
        bugs.insert(0, f"fio before {MULTIPLIES_RATE_IOPS} {problem}")
    return fio_job(
        FioMode.STAT,
        source,
        options,
        "Statistical job: sampled from models fitted to the source",
        space,
        [(depth, profile.longest_bytes) for depth in depths],
        run=[length_line, expectation],
        lost=[*_losses(source, options), *common_losses(source, has_deletes=not trims)],
        bugs=bugs,
        shared=_shared_settings(space, options, sections),
        sections=sections,
    )


def _losses(profile: Profile, options: JobOptions) -> list[str]:
    """Return the features of the source that sampling from models loses."""
    lost = [
        (
            "the order of operations, and reuse distances beyond the fitted distribution (--mode reuse"
            " keeps them)"
        )
    ]
    bursts = [s.loop.burst_ops is not None for s in profile.streams if s.loop.pace is Pacing.BURSTS]
    if any(bursts):
        lost.append("differences between bursts in size and gap: all bursts of a section are equal")
    if not all(bursts) and profile.arrivals is not None:
        lost.append(
            "bursts: arrivals are Poisson (burstiness, variance/mean, of the source:"
            f" {profile.arrivals.dispersion}; Poisson is 1)"
        )
    longest_bytes = longest_issued_bytes(profile, options)
    if profile.longest_bytes > longest_bytes:
        lost.append(
            f"the bounds of operations longer than {format_io_size(longest_bytes)}: these are"
            " sampled as several I/Os"
        )
    if profile.space is None:
        lost.append("offsets: the source has none, so all offsets are equally likely")
    if any(s.places is not None and s.places.law is Law.ZONES for s in profile.streams):
        lost.append(
            "hot offsets within a zone: no distribution fits, so zones of equal access share are"
            " used"
        )
    return lost


def _shared_settings(
    space: int, options: JobOptions, sections: Sequence[FioSection]
) -> FioSettings:
    """Return the settings that all `sections` share, on a target of `space` bytes."""
    settings = FioSettings(
        {
            "filename": options.filename,
            "size": space,
            "allow_file_create": False,
            "create_on_open": True,
            "direct": True,
            "ioengine": "libaio",
        },
        {
            "allow_file_create": [
                "the prefill creates the file: creating it here would count as part of the run;",
                "without create_on_open fio would delete a file that is too short (seen with 3.33)",
            ]
        },
    )
    return settings | _SEEDED if _is_drawn(sections) else settings


def _is_drawn(sections: Iterable[FioSection]) -> bool:
    """Return whether arrivals of some section are Poisson."""
    return any(section.options.get("rate_process") == POISSON for section in sections)


POISSON = "poisson"
"""fio's name of Poisson arrivals."""


def _numbered(name: str, count: int, settings: FioSettings) -> list[FioSection]:
    """Return `count` sections of the same settings, numbered if there are several."""
    if count == 1:
        return [FioSection(name, settings)]
    return [FioSection(f"{name}-{number}", settings) for number in range(1, count + 1)]


_SEEDED = FioSettings(
    {"randseed": 102980217},
    {
        "randseed": [
            (
                "with fio's default seed, the first 2,000 gaps of a writing job are 4 % too short;"
                " with this one, gaps and sizes are within"
            ),
            (
                "1.5 standard deviations of their means, for 750 to 8,000 draws in each of two"
                " sections (seen with 3.33)"
            ),
        ]
    },
)


def _streams(profile: Profile) -> list[IoStream]:
    """Return the streams of a profile as issued; one a direction if it has no times."""
    directions = (("read", profile.read), ("write", profile.write))
    random_streams = [
        _random_stream(name, direction, 0, profile.span_ns)
        for name, direction in directions
        if direction.ops
    ]
    return list(profile.streams) or random_streams


def _random_stream(
    name: str, direction: DirectionProfile, start_ns: int, span_ns: int, depth: int | None = None
) -> IoStream:
    """Return a stream of one direction with Poisson arrivals and unknown addresses."""
    read, write = (
        (direction, empty_direction()) if name == "read" else (empty_direction(), direction)
    )
    return IoStream(
        name=name,
        start_ns=start_ns,
        span_ns=span_ns,
        read=read,
        write=write,
        loop=Loop(Pacing.POISSON, depth),
        places=None,
    )


def _section_times(stream: IoStream, profile: Profile, runtime_ns: int) -> _SectionTimes:
    """Return start and run time of `stream` in a job of `runtime_ns`, scaled in proportion."""
    if not runtime_ns:
        return _SectionTimes(0, None)
    share = runtime_ns / profile.span_ns
    begin, end = (
        round(moment_ns * share / NS_PER_MS)
        for moment_ns in (max(0, stream.start_ns), stream.start_ns + stream.span_ns)
    )
    if end <= begin:
        return _SectionTimes(begin, None, share)
    # A stream that starts within the first 1 % starts with the job.
    return (
        _SectionTimes(0, end, share)
        if begin <= end // 100
        else _SectionTimes(begin, end - begin, share)
    )


@dataclass(frozen=True, slots=True)
class SectionPace:
    """Number and pace of a stream's sections."""

    section_count: int
    """Number of equal sections of the stream."""
    settings: FioSettings
    """Settings of each section."""


def _pace(stream: IoStream, times: _SectionTimes, profile: Profile) -> SectionPace:
    """Return times, rate and queue depth of the sections of `stream`."""
    depth = _depth_settings(stream, profile)
    start = FioSettings({})
    if times.start_ms >= _START_STEP_MS:
        start = FioSettings({"startdelay_ms": times.start_ms - _START_STEP_MS // 2})
    timed = start
    if times.runtime_ms is not None:
        timed |= FioSettings({"time_based": True, "runtime_ms": times.runtime_ms})
    if stream.loop.pace is Pacing.CLOSED and times.runtime_ms is not None:
        return SectionPace(1, timed | depth | _closed_settings(stream, depth))
    rate = _open_pace(stream, times, profile)
    if (
        (times.runtime_ms or 0) >= _SHORT_MS
        and stream.loop.think_ops is None
        and stream.loop.burst_ops is None
    ):
        return SectionPace(rate.section_count, timed | depth | rate.settings)
    count = max(1, round(stream.ops * times.share / rate.section_count))
    largest = max(size.io_bytes for side in _sides(stream) for size in side.sizes)
    # Without io_size, fio 3.33 ends such a job when sequential I/O reaches the end of the region.
    end = FioSettings({"number_ios": count, "io_size": count * largest})
    return SectionPace(rate.section_count, start | depth | rate.settings | end)


def _closed_settings(stream: IoStream, depth: FioSettings) -> FioSettings:
    """Return think time of a closed loop, and a rate limit if it would exceed the source's rate."""
    settings = FioSettings({})
    if stream.loop.think_ns is not None and stream.loop.think_ops is not None:
        settings = FioSettings(
            {
                "thinktime_us": stream.loop.think_ns // NS_PER_US,
                "thinktime_blocks": stream.loop.think_ops,
            }
        )
    free_ios_per_s = expected_load(stream, (depth | settings).options).ios_per_s
    source_ios_per_s = stream.ops * NS_PER_S / stream.span_ns
    if free_ios_per_s > (1 + EXPECTED_WITHIN) * source_ios_per_s:
        reason = (
            "rate limit: without it the closed loop would reach"
            f" {free_ios_per_s / source_ios_per_s:.3g} times the source's mean rate"
        )
        settings |= FioSettings({"rate": _byte_rate(stream)}, {"rate": [reason]})
    return settings


def _byte_rate(stream: IoStream) -> tuple[int, ...]:
    """Return the source's bytes a second by direction, as an even rate."""
    return tuple(
        max(1, round(side.io_bytes * NS_PER_S / stream.span_ns)) for side in _sides(stream)
    )


def _sides(stream: IoStream) -> list[DirectionProfile]:
    """Return the directions with operations of `stream`, reads first."""
    return [side for side in (stream.read, stream.write) if side.ops]


def expected_stat(profile: Profile, options: JobOptions) -> list[ExpectedFigure]:
    """Return the expected figures of the statistical job; empty if the source has no times."""
    profile = as_issued(profile, options)
    runtime_ns = min(profile.span_ns, options.runtime_cap_ns)
    if not runtime_ns or not profile.streams:
        return []
    # Begin, end and load of each section.
    sections: list[tuple[int, int, IoLoad]] = []
    for stream in _streams(profile):
        times = _section_times(stream, profile, runtime_ns)
        paced = _pace(stream, times, profile)
        load = expected_load(stream, paced.settings.options)
        end_ms = times.start_ms + (times.runtime_ms or 1)
        sections += [(times.start_ms, end_ms, load)] * paced.section_count
    edges = sorted({moment for begin, end, _load in sections for moment in (begin, end)})
    idle_ms = sum(
        (end - begin)
        * prod(
            load.idle_share
            for section_begin, section_end, load in sections
            if section_begin <= begin and end <= section_end
        )
        for begin, end in pairwise(edges)
    )
    span_ms = edges[-1] - edges[0]
    loads = np.array(
        [
            (
                load.ios_per_s,
                load.bytes_per_s,
                load.ios_per_s * load.read_share,
                load.ios_per_s * load.mismatch_share,
                load.mean_depth,
            )
            for _begin, _end, load in sections
        ]
    )
    ios_per_s, bytes_per_s, reads_per_s, mismatch_per_s, depth = (
        np.array([end - begin for begin, end, _ in sections]) @ loads / span_ms
    )
    job = IoLoad(
        ios_per_s,
        bytes_per_s,
        reads_per_s / ios_per_s,
        mismatch_per_s / ios_per_s,
        depth,
        idle_ms / span_ms,
    )
    return expected_figures(source_load(profile, profile.longest_bytes), job)


def expected_load(stream: IoStream, options: FioOptions) -> IoLoad:
    """Return the expected load of a section with `options`, at the stream's response times."""
    splits = [split_sizes(side) for side in _sides(stream)]
    read_share = percentages([stream.read.ops, stream.write.ops])[0] / PERCENT
    # I/Os a second, for both directions together or for each of them.
    rates = _requested_ios_per_s(stream, options, splits)
    if len(rates) == len(splits) > 1:
        read_share = rates[0] / sum(rates)
    shares = [read_share, 1 - read_share] if len(splits) > 1 else [1.0]
    mean, mismatch = (
        sum(share * getattr(split, name) for share, split in zip(shares, splits, strict=True))
        for name in ("mean_bytes", "mismatch_share")
    )
    # The first I/O is issued at once, even at a very low rate.
    rate = max(sum(rates), NS_PER_S / NS_PER_MS / options.get("runtime_ms", inf))
    response_s = (stream.loop.response_ns or nan) / NS_PER_S
    think_s = (options.get("thinktime_us") or 0) / _US_PER_S
    # The loop keeps its full depth; before a pause, fio waits for the last operation.
    depth, ops = options.get("iodepth") or 1, options.get("thinktime_blocks", 1)
    cycle_s = max(ops, depth if think_s else 0) / depth * response_s + think_s
    if isnan(response_s) or stream.loop.pace is Pacing.BURSTS:
        # Without the source's bursts, operations queue less, so depth and idle time are unknown.
        rate = rate if rate < inf else nan
        return IoLoad(rate, rate * mean, read_share, mismatch, nan, nan)
    idle = think_s / cycle_s
    if rate < ops / cycle_s:
        is_drawn = "rate_process" in options
        idle = exp(-rate * response_s) if is_drawn else max(idle, 1 - rate * response_s)
    rate = min(rate, ops / cycle_s)
    return IoLoad(rate, rate * mean, read_share, mismatch, rate * response_s, idle)


def _requested_ios_per_s(
    stream: IoStream, options: FioOptions, splits: Sequence[Split]
) -> list[float]:
    """Return the rate in I/Os a second that `options` set: one figure, or one a direction.

    `splits` are the sizes of each direction. The rate is infinite without a limit.
    """
    byte_rates, io_rates = options.get("rate"), options.get("rate_iops")
    if byte_rates is not None:
        return [rate / split.mean_bytes for rate, split in zip(byte_rates, splits, strict=False)]
    if io_rates is not None:
        return [float(rate) for rate in io_rates]
    if "number_ios" in options:
        # Bursts, or all operations at once, which takes a millisecond.
        return [stream.ops * NS_PER_S / max(stream.span_ns, NS_PER_MS)]
    return [inf]


def _burst_settings(
    stream: IoStream, times: _SectionTimes, burst: int, profile: Profile
) -> FioSettings:
    """Return the settings of equal bursts of `burst` operations.

    A job that pauses falls behind its rate, and then issues everything due at once: a burst. The
    first burst has no pause before it, so a few bursts are timed by pauses only.
    """
    comments = [
        (
            f"bursts of {burst} I/Os: the source's peak queued I/Os on a drive {FAST}x faster than its"
            " mean rate"
        )
    ]
    gaps = -(-round(stream.ops * times.share) // burst) - 1
    if gaps < 1:
        return FioSettings({"thinktime_us": None}, {"thinktime_us": comments})
    # The stream's span includes one mean gap after its last operation.
    gap_us = (times.runtime_ms or 0) * US_PER_MS * (1 - 1 / stream.ops) / gaps
    rate = FioSettings({})
    if gaps >= _MANY_BURSTS:
        rate = FioSettings({"rate": _byte_rate(stream)}, {"rate": comments})
        comments = []
        gap_us = stream.span_ns * burst / stream.ops / NS_PER_US
    drain_us = burst / (FAST * profile.ops / profile.span_ns) / NS_PER_US
    pause_us = max(_LEAST_PAUSE * gap_us, gap_us - drain_us)
    if gaps < _MANY_BURSTS:
        comments.append(
            f"fio pauses after a burst: if the burst takes over {gap_us - pause_us:.0f} us, the"
            " rate is lower"
        )
    pauses = FioSettings(
        {
            "thinktime_us": round(pause_us),
            "thinktime_blocks": burst,
            "thinktime_blocks_type": "issue",
        },
        {"thinktime_us": comments},
    )
    return rate | pauses


def _open_pace(stream: IoStream, times: _SectionTimes, profile: Profile) -> SectionPace:
    """Return the number of equal sections of an open loop, and the rate of each."""
    if times.runtime_ms is None:
        return SectionPace(
            1, FioSettings({"rate_iops": None}, {"rate_iops": [f"no rate: {_WITHIN}"]})
        )
    if stream.loop.pace is Pacing.BURSTS and stream.loop.burst_ops is not None:
        return SectionPace(1, _burst_settings(stream, times, stream.loop.burst_ops, profile))
    sides, rates = _sides(stream), [side.ops * NS_PER_S / stream.span_ns for side in _sides(stream)]
    if stream.loop.pace is Pacing.EVEN and len(sides) == 1:
        # Sizes as in the job: rare partial I/Os are rounded away there.
        sizes = [size for size, _ in split_sizes(sides[0]).entries]
        ios_per_s = sides[0].io_bytes * NS_PER_S / stream.span_ns / sizes[0]
        # Before fio 3.42, rate_iops with bssplit is wrong: gaps follow the size of the previous I/O.
        is_whole = (
            len(sizes) == 1
            and round(ios_per_s)
            and abs(round(ios_per_s) / ios_per_s - 1) <= _EVEN_TOLERANCE
        )
        if is_whole:
            return SectionPace(1, FioSettings({"rate_iops": (round(ios_per_s),)}))
        return SectionPace(1, FioSettings({"rate": _byte_rate(stream)}))
    # All others are Poisson: also bursts of unknown size, and streams of both directions. A job with
    # both directions cannot be split into several sections.
    poisson_rates = [poisson(rate) for rate in rates]
    usable_rates = [
        rate
        for rate in poisson_rates
        if rate is not None and (len(sides) == 1 or rate.sections == 1)
    ]
    if len(usable_rates) < len(sides):
        reason = "an even byte rate: Poisson rates are whole operations a second"
        comments = {"rate": [reason]} if len(sides) == 1 else {}
        return SectionPace(1, FioSettings({"rate": _byte_rate(stream)}, comments))
    first = usable_rates[0]
    comments = {}
    is_off = abs(first.made_per_s / rates[0] - 1) > _WORTH_A_COMMENT
    if len(sides) == 1 and (is_off or first.sections > 1):
        comments = {
            "rate_iops": [
                f"{rates[0]:.5g} I/Os a second in the source, {first.made_per_s:.5g} here"
            ]
        }
    requested_rates = tuple(rate.rate_iops for rate in usable_rates)
    return SectionPace(
        first.sections,
        FioSettings({"rate_iops": requested_rates, "rate_process": POISSON}, comments),
    )


def _depth_settings(stream: IoStream, profile: Profile) -> FioSettings:
    """Return the queue depth of `stream`, with a comment on its origin."""
    largest = max(s.io_bytes for s in (*stream.read.sizes, *stream.write.sizes))
    measured = most_in_flight(largest, _MEASURED_BYTES)
    if stream.loop.depth is not None:
        return FioSettings({"iodepth": min(stream.loop.depth, measured)})
    depth = profile.depth
    if depth is not None:
        in_flight = depth.in_flight_for(_MOSTLY)
        in_flight = max(1, depth.max if in_flight is None else in_flight, ceil(depth.mean))
        period = "99 % of the time" if depth.shares else "at every dispatch"
        reason = f"queue depth of the source: {in_flight} or less {period}, mean {depth.mean:.3g}"
        return FioSettings({"iodepth": min(in_flight, measured)}, {"iodepth": [reason]})
    most_depth, burst, low_settings = (
        most_in_flight(largest),
        stream.loop.burst_depth,
        FioSettings({}),
    )
    if burst is None and profile.concurrency is None and stream.span_ns <= 1:
        burst = stream.ops  # all operations share one instant and belong to no request
    if burst is not None and burst < (stream.loop.burst_ops or 0):
        in_flight = burst
        reason = (
            "the I/Os of one stage of a request, {}{}: the next stage waits for their completion"
        )
        if burst > 1:
            # Refill when all I/Os of the stage have completed, as the next stage does.
            low_settings = FioSettings(
                {"iodepth_low": 1, "iodepth_batch_complete_min": min(burst, most_depth)}
            )
    elif burst is not None:
        in_flight, reason = burst, "all I/Os of a burst: {}{}"
    elif profile.concurrency is not None:
        in_flight = profile.concurrency.max_stage_ops
        reason = "an upper bound, not a measured depth: the largest stage of a request, {}{}"
    else:
        reason = "no iodepth: the source has neither stages nor measured times; fio's default is 1"
        return FioSettings({"iodepth": None}, {"iodepth": [reason]})
    cut_note = (
        f", limited to {format_bytes(BUFFER_BYTES)} of buffers" if most_depth < in_flight else ""
    )
    comments = {"iodepth": [reason.format(in_flight, cut_note)]}
    return FioSettings({"iodepth": min(in_flight, most_depth)}, comments) | low_settings


def _trim_sections(profile: Profile, options: JobOptions, runtime_ns: int) -> list[FioSection]:
    """Return sections that discard the bytes of the source's deletes, at their times.

    Empty unless the target is a block device. Deletes may begin or continue after the last read or
    write; the sections end with the maximum duration.
    """
    count = profile.delete_ops
    if not options.is_device or not count or not runtime_ns or not profile.delete_bytes:
        return []
    mean, span_ns = (
        max(1, round(profile.delete_bytes / count / _ALIGN)) * _ALIGN,
        profile.deletes_span_ns,
    )
    # n deletes have n gaps, as in streams.
    span_ns = profile.span_ns if span_ns is None else round(span_ns * count / max(1, count - 1))
    trims = msgspec.structs.replace(
        empty_direction(), ops=count, io_bytes=count * mean, sizes=[SizeCount(mean, count)]
    )
    stream = _random_stream("trim", trims, profile.deletes_start_ns, span_ns, depth=1)
    times = _section_times(stream, profile, runtime_ns)
    remaining_ms, trims_ms = (
        options.runtime_cap_ns // NS_PER_MS - times.start_ms,
        times.runtime_ms or 0,
    )
    if remaining_ms <= 0:
        return []
    if remaining_ms < trims_ms:
        times = replace(times, runtime_ms=remaining_ms, share=times.share * remaining_ms / trims_ms)
    paced = _pace(stream, times, profile)
    comment = f"{counted(count, 'delete')} of {mean} bytes on average, at random offsets"
    places = FioSettings({"rw": "randtrim", "bs": mean}, {"rw": [comment]})
    return _numbered("trim", paced.section_count, places | paced.settings)


_ALL_OF_SPACE = 0.9
"""A region of at least this share of the space counts as all of it."""
_SAME_SIZES_TV = 0.01
_LEAST_BS = 512


def place_settings(stream: IoStream, space: int) -> FioSettings:
    """Return directions and offsets of `stream`, on a target of `space` bytes."""
    places = stream.places
    is_mixed = bool(stream.read.ops and stream.write.ops)
    directions = "rw" if is_mixed else "read" if stream.read.ops else "write"
    run_text = f":{places.run_ops}" if places is not None and places.run_ops else ""
    is_sequential = places is not None and places.sequential_share == 1
    options: FioOptions = {"rw": directions if is_sequential else f"rand{directions}{run_text}"}
    if is_mixed:
        options["rwmixread"] = percentages([stream.read.ops, stream.write.ops])[0]
    if places is None:
        reason = "no random_distribution: the source has no offsets"
        options["random_distribution"] = None
        options["norandommap"] = True
        return FioSettings(options, {"random_distribution": [reason]})
    if 0 < places.sequential_share < 1 and places.run_ops is None:
        options["percentage_random"] = round(100 * (1 - places.sequential_share))
    options.update(_region(places, stream, space))
    if is_sequential:
        return FioSettings(options)
    if not has_map(stream):
        # fio's random map would not repeat an offset before all were used.
        options["norandommap"] = True
    if places.align_bytes != _least_size(stream):
        options["blockalign"] = places.align_bytes
    if places.law in (Law.ZIPF, Law.PARETO):
        options["random_distribution"] = f"{places.law}:{places.theta:g}"
    elif places.law is Law.ZONES:
        return FioSettings(options) | _zone_settings(stream, space)
    return FioSettings(options)


def _zone_settings(stream: IoStream, space: int) -> FioSettings:
    """Return the access zones of `stream`, on a target of `space` bytes.

    fio 3.33 cannot parse different zones for reads and writes (its issue 1923).
    """
    sides = [(name, d) for name, d in (("reads", stream.read), ("writes", stream.write)) if d.ops]
    name, busiest = max(sides, key=lambda side: side[1].ops)
    comments = {}
    if any(side.zones != busiest.zones for _, side in sides):
        reason = f"zones of the {name} only: fio takes one random_distribution per job"
        comments = {"random_distribution": [reason]}
    zones = [f"{zone.percent}/{zone.span_bytes}" for zone in busiest.zones]
    unused_bytes = space - sum(zone.span_bytes for zone in busiest.zones)
    if unused_bytes:
        zones.append(f"0/{unused_bytes}")
    return FioSettings({"random_distribution": f"zoned_abs:{':'.join(zones)}"}, comments)


def size_settings(stream: IoStream) -> FioSettings:
    """Return the block sizes, with a comment if whole percents change some."""
    sides = [_compensated_direction(d, stream) for d in (stream.read, stream.write) if d.ops]
    if (
        all(len(side.sizes) == 1 for side in sides)
        and len({side.sizes[0].io_bytes for side in sides}) == 1
    ):
        return FioSettings({"bs": sides[0].sizes[0].io_bytes})
    if len(sides) == 2 and total_variation(sides[0].sizes, sides[1].sizes) <= _SAME_SIZES_TV:  # noqa: PLR2004 - directions
        a, b = sides
        counts = sum(
            (Counter({size.io_bytes: size.ops for size in side.sizes}) for side in sides),
            Counter[int](),
        )
        sizes = [SizeCount(size, ops) for size, ops in sorted(counts.items())]
        sides = [
            msgspec.structs.replace(
                a, sizes=sizes, ops=a.ops + b.ops, io_bytes=a.io_bytes + b.io_bytes
            )
        ]
    splits = tuple(split_sizes(side) for side in sides)
    options: FioOptions = {"bssplit": splits}
    name = "bssplit"
    if len(splits) == 1 and len(splits[0].entries) == 1:
        options, name = {"bs": splits[0].entries[0][0]}, "bs"
    comments = {}
    mismatch_share = max(split.mismatch_share for split in splits)
    if mismatch_share > _SAME_SIZES_TV:
        reason = (
            f"bssplit takes whole percents: block-size mismatch of {mismatch_share:.1%} of I/Os"
        )
        comments = {name: [reason]}
    smallest = min(size for split in splits for size, _percent in split.entries)
    if any(size % smallest for split in splits for size, _percent in split.entries):
        options["bs_unaligned"] = True
    return FioSettings(options, comments)


def has_map(stream: IoStream) -> bool:
    """Return whether fio's random map chooses the offsets of `stream`.

    The unit of the map is the smallest size.
    """
    places = stream.places
    if places is None or places.law is not Law.ONCE or _least_size(stream) != places.align_bytes:
        return False
    return all(
        s.io_bytes % places.align_bytes == 0 for s in (*stream.read.sizes, *stream.write.sizes)
    )


def _region(places: Places, stream: IoStream, space: int) -> FioOptions:
    """Return offset and size of the stream's region; empty if it is the whole target."""
    is_hashed = places.law in (Law.ZIPF, Law.PARETO)
    is_all = (
        places.span_bytes >= _ALL_OF_SPACE * space and places.sequential_share < 1 and not is_hashed
    )
    if places.law is Law.ZONES or is_all:
        return {}
    begin, size = places.begin_bytes, -(-places.span_bytes // places.align_bytes)
    size *= places.align_bytes
    if is_hashed:
        # fio's hash depends on the number of addresses, so it must be that of the fitted law.
        size = min(size, space)
        begin = min(begin, space - size) // places.align_bytes * places.align_bytes
    else:
        if not has_map(stream) and places.sequential_share < 1:
            # A long operation may begin at the last address.
            size += max(s.io_bytes for s in (*stream.read.sizes, *stream.write.sizes))
        size = min(size, space - begin)
    return {"offset": begin, "size": size} if begin else {"size": size}


def _least_size(stream: IoStream) -> int:
    """Return the smallest size with at least one whole percent of the operations."""
    sizes = [
        size
        for d in (stream.read, stream.write)
        if d.ops
        for size, percent in split_sizes(d).entries
        if percent
    ]
    return max(_LEAST_BS, min(sizes))


def _compensated_direction(direction: DirectionProfile, stream: IoStream) -> DirectionProfile:
    """Return `direction` with sizes that compensate for cuts by fio's random map."""
    places = stream.places
    if len(direction.sizes) == 1 or places is None or not has_map(stream):
        return direction
    blocks = np.array([s.io_bytes // places.align_bytes for s in direction.sizes])
    weights = np.array([s.ops for s in direction.sizes], dtype=np.float64)
    requested_shares = compensated_weights(
        blocks, weights, max(1, places.span_bytes // places.align_bytes), stream.ops
    )
    ops = np.round(requested_shares * direction.ops).astype(int)
    sizes = [
        SizeCount(s.io_bytes, int(count))
        for s, count in zip(direction.sizes, ops, strict=True)
        if count
    ]
    return msgspec.structs.replace(direction, sizes=sizes, ops=sum(s.ops for s in sizes))


_MOST_JOBS = 16
"""Maximum number of jobs over which a high rate is split."""
_TOLERANCE = 0.005
"""Relative error of a rate that is accepted without splitting it further."""
_EVEN_TOLERANCE, _WORTH_A_COMMENT = 0.001, 0.002
_US_PER_S = 1_000_000
_HIGH_PER_S = 10_000
"""Operations per second whose Poisson gaps fio rounds by more than 1 %, however they are split."""


class PoissonRate(NamedTuple):
    """A Poisson rate as fio can make it."""

    sections: int
    """Equal sections that share the rate."""
    rate_iops: int
    """The option of each section."""
    made_per_s: float
    """Operations per second that result, in all sections."""


def poisson(ops_per_s: float) -> PoissonRate | None:
    """Return how fio makes `ops_per_s` Poisson operations per second.

    fio rounds Poisson gaps to whole microseconds, so a high rate is closer if split. Null if no
    split is within the tolerance, unless the rate is so high that even the nearest has to do.
    """
    candidates = []
    for jobs in range(1, _MOST_JOBS + 1):
        rate_iops = round(ops_per_s / jobs)
        if 1 <= rate_iops <= _US_PER_S:
            # rate_process=poisson uses whole microseconds.
            made_per_s = jobs * (_US_PER_S / (_US_PER_S // rate_iops))
            rate = PoissonRate(jobs, rate_iops, made_per_s)
            candidates.append((abs(made_per_s / ops_per_s - 1), rate))
    accepted = next((rate for error, rate in candidates if error <= _TOLERANCE), None)
    return accepted or (min(candidates)[1] if candidates and ops_per_s > _HIGH_PER_S else None)


_MAP_OPS = 100_000
_MAP_ROUNDS = 8
_MAP_SEED = 42


def compensated_weights(
    blocks: NDArray[np.int64], weights: NDArray[np.float64], places: int, ops: int
) -> NDArray[np.float64]:
    """Return weights to request, so that fio's random map yields sizes with `weights`.

    `blocks` are the sizes in units of the map, which has `places`; `ops` operations are issued.

        requested = weights
        repeat 8 times:
            resulting = simulate the map with requested
            requested += weights - resulting; normalise
        return the best requested weights

    Source: own reasoning, fixed-point iteration.
    """
    weights = weights / weights.sum()
    requested, best_request, best_distance = weights.copy(), weights, np.inf
    for _ in range(_MAP_ROUNDS):
        resulting = sizes_from_map(blocks, requested, places, min(ops, _MAP_OPS))
        distance = float(np.abs(resulting - weights).sum() / 2)
        if distance < best_distance:
            best_request, best_distance = requested, distance
        # A size that results too often, because longer ones are cut to it, is requested less.
        requested = np.maximum(requested + (weights - resulting), 0)
        requested /= requested.sum()
    return best_request


def sizes_from_map(
    blocks: NDArray[np.int64], weights: NDArray[np.float64], places: int, ops: int
) -> NDArray[np.float64]:
    """Simulate fio's random map, and return the shares of the resulting sizes.

    An operation at a used place moves to the next free one, and ends before the next used one. A
    full map starts again.
    """
    rng = np.random.default_rng(_MAP_SEED)
    requested_blocks = rng.choice(blocks, ops, p=weights)
    starts = rng.integers(0, places, ops)
    used_places, free_places = bytearray(places), places
    counts = dict.fromkeys(blocks.tolist(), 0)
    operations = 0
    for start, length in zip(starts.tolist(), requested_blocks.tolist(), strict=True):
        if not free_places:
            used_places, free_places = bytearray(places), places
        begin = used_places.find(0, start)
        if begin < 0:
            begin = used_places.find(0)
        end = used_places.find(1, begin, begin + length)
        end = min(begin + length, places) if end < 0 else end
        used_places[begin:end] = b"\1" * (end - begin)
        free_places -= end - begin
        operations += 1
        if end - begin in counts:
            counts[end - begin] += 1
    return np.array([counts[b] for b in blocks.tolist()], dtype=np.float64) / operations
