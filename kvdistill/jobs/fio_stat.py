"""Write the statistical fio job of a `Profile`.

A section a stream, each with the options its model needs.

Below the job, in this order: where a stream's operations go and of which sizes (`place_settings`,
`size_settings`), how fio keeps a rate (`poisson`), and which sizes to ask of fio's random map
(`sizes_to_ask_for`). That map lets no place come twice before all have come: an operation that
would run into a used place is cut short, the more often the fuller the map is. So the sizes that
such a source shows are not those that its program asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, exp, inf, isnan, nan, prod

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvdistill.jobs.fio_sections import FioJob, FioOptions, FioSection, FioSettings
from kvdistill.jobs.job import (
    BUFFER_BYTES,
    EXPECTED_WITHIN,
    MIB,
    MULTIPLIES_RATE_IOPS,
    STAT_MAX_IO_BYTES,
    ExpectedFigure,
    FioMode,
    IoLoad,
    JobOptions,
    common_losses,
    expected_figures,
    expected_said,
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
    cut_long,
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
"""The most in flight where the source's depth is measured."""
_ALIGN = 4096
_MOSTLY = 0.99
_WITHIN = "they come within a millisecond, and fio's times are whole ones"
_SHORT_MS = 2_000
"""A shorter stream ends with its operations.

Fio's processes begin some ms late, and by time lose those.
"""
_START_STEP_MS = 100
"""Between two looks of fio for sections to start.

Who asks for half of it less begins at the nearest.
"""
_LEAST_PAUSE, _MANY_BURSTS = 0.1, 20
"""Of the time from burst to burst.

From so many bursts on a job has its source's rate beside its pauses.
"""


@dataclass(frozen=True, slots=True)
class _Times:
    """When a stream runs in the job, and its share of the source's operations.

    `runtime_ms` is null of an instant: fio's times are whole milliseconds.
    """

    start_ms: int
    runtime_ms: int | None
    share: float = 1.0


# Long: the job is one text.
def stat_job(profile: Profile, options: JobOptions) -> FioJob:
    """Return the job that draws reads and writes from the models of the profile's streams."""
    space, largest = (
        stat_space_bytes(profile, options),
        min(profile.longest_bytes, STAT_MAX_IO_BYTES),
    )
    runtime_ns = min(profile.span_ns, options.runtime_cap_ns)
    sections: list[FioSection] = []
    for stream in _streams(profile):
        paced = _pace(stream, _times(stream, profile, runtime_ns), profile)
        settings = place_settings(stream, space) | size_settings(stream) | paced.settings
        if stream.write.ops and profile.flush_ops:
            # After so many writes, of whichever stream.
            writes_per_flush = max(1, round(profile.write.ops / profile.flush_ops))
            settings |= FioSettings({"fdatasync": writes_per_flush})
        sections += _numbered(stream.name, paced.section_count, settings)
    trims = _trim_sections(profile, options, runtime_ns)
    sections += trims
    depths = [section.options.get("iodepth") or 1 for section in sections]
    lasts = f"it ends after as many operations as the source has: {_WITHIN}"
    if profile.span_ns >= NS_PER_MS:
        whole = format_duration(profile.span_ns)
        of = (
            f" of the source's {whole}"
            if runtime_ns < profile.span_ns
            else ", as long as the source"
        )
        until_ns = min(
            options.runtime_cap_ns, profile.deletes_start_ns + (profile.deletes_span_ns or 0)
        )
        beyond = "; its trims go on beyond that" if trims and until_ns > runtime_ns else ""
        lasts = f"it runs {format_duration(runtime_ns)}{of}{beyond}"
    expected = f"it is {expected_said(expected_stat(profile, options))}"
    bugs = [
        (
            "'bs_unaligned may not work with raw io' can be ignored: every size here is a multiple of"
            " the sector"
        )
    ]
    starts = (
        f"fio starts sections every {_START_STEP_MS} ms: each begins at the step nearest to its"
        " time in the source; one that writes fills its buffers first (250 MB take 0.1 s, 0.8 s"
        " where free memory is fragmented)"
    )
    if any("startdelay_ms" in section.options for section in sections):
        bugs.append(starts)
    if options.version is None or options.version < MULTIPLIES_RATE_IOPS:
        what = "gets rate_iops with bssplit wrong unless rate_process=poisson: keep that line"
        bugs.insert(0, f"fio before {MULTIPLIES_RATE_IOPS} {what}")
    return fio_job(
        FioMode.STAT,
        profile,
        options,
        "Statistical job: drawn at random from the simplest models that explain the source",
        space,
        [(depth, largest) for depth in depths],
        run=[lasts, expected],
        lost=[*_losses(profile), *common_losses(profile, has_deletes=not trims)],
        bugs=bugs,
        shared=_shared_settings(space, options, sections),
        sections=sections,
    )


def _losses(profile: Profile) -> list[str]:
    """Return what drawing from models loses of the source."""
    lost = [
        (
            "the order of operations, and reuse distances beyond the fitted distribution (--mode reuse"
            " has them)"
        )
    ]
    bursts = [s.loop.burst_ops is not None for s in profile.streams if s.loop.pace is Pacing.BURSTS]
    if any(bursts):
        lost.append("differences between bursts in size and gap: all bursts of a section are equal")
    if not all(bursts) and profile.arrivals is not None:
        lost.append(
            "bursts: arrivals are independent of each other (variance by mean of operations in the"
            f" source: {profile.arrivals.dispersion}; by chance it is 1)"
        )
    if profile.longest_bytes > STAT_MAX_IO_BYTES:
        lost.append(
            f"operations longer than {format_io_size(STAT_MAX_IO_BYTES)} are drawn as several I/Os,"
            " each independent"
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
    is_drawn = any(section.options.get("rate_process") == POISSON for section in sections)
    return settings | _SEEDED if is_drawn else settings


POISSON = "poisson"
"""fio's name of arrivals that are independent of each other."""


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
                "fio's usual seed draws a writing job's first 2,000 gaps 4 % too short; with this"
                " one gaps and sizes are within"
            ),
            (
                "1.5 standard deviations of their means, for 750 to 8,000 draws in each of two"
                " sections (seen with 3.33)"
            ),
        ]
    },
)


def _streams(profile: Profile) -> list[IoStream]:
    """Return the profile's streams with long operations cut.

    One a direction if no time is known.
    """
    directions = (("read", profile.read), ("write", profile.write))
    random_streams = [
        _random_stream(name, direction, 0, profile.span_ns)
        for name, direction in directions
        if direction.ops
    ]
    return [
        msgspec.structs.replace(
            s, read=cut_long(s.read, STAT_MAX_IO_BYTES), write=cut_long(s.write, STAT_MAX_IO_BYTES)
        )
        for s in profile.streams or random_streams
    ]


def _random_stream(
    name: str, direction: DirectionProfile, start_ns: int, span_ns: int, depth: int | None = None
) -> IoStream:
    """Return the stream called `name` of one direction whose arrivals are independent, at places
    that are not known.
    """
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


def _times(stream: IoStream, profile: Profile, runtime_ns: int) -> _Times:
    """Return when `stream` runs, shortened in proportion to `runtime_ns` for the whole."""
    if not runtime_ns:
        return _Times(0, None)
    share = runtime_ns / profile.span_ns
    begin, end = (
        round(moment_ns * share / NS_PER_MS)
        for moment_ns in (max(0, stream.start_ns), stream.start_ns + stream.span_ns)
    )
    if end <= begin:
        return _Times(begin, None, share)
    # A start that is the source's first milliseconds is its start.
    return _Times(0, end, share) if begin <= end // 100 else _Times(begin, end - begin, share)


@dataclass(frozen=True, slots=True)
class SectionPace:
    """When a stream's sections run and how fast."""

    section_count: int
    """Over how many equal sections the stream is split."""
    settings: FioSettings
    """Of each of them."""


def _pace(stream: IoStream, times: _Times, profile: Profile) -> SectionPace:
    """Return when the sections of `stream` run and how fast, with how many I/Os in flight."""
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
    # Without io_size fio 3.33 ends such a job where a run of sequential places reaches the region's
    # end.
    end = FioSettings({"number_ios": count, "io_size": count * largest})
    return SectionPace(rate.section_count, start | depth | rate.settings | end)


def _closed_settings(stream: IoStream, depth: FioSettings) -> FioSettings:
    """Return how long a closed loop of this `depth` thinks, and the source's mean rate where it
    would go much faster.
    """
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
            "the source's mean rate: without it the loop would be"
            f" {free_ios_per_s / source_ios_per_s:.3g} times as fast as the source"
        )
        settings |= FioSettings({"rate": _byte_rate(stream)}, {"rate": [reason]})
    return settings


def _byte_rate(stream: IoStream) -> tuple[int, ...]:
    """Return an even rate: the source's bytes a second, by direction."""
    return tuple(
        max(1, round(side.io_bytes * NS_PER_S / stream.span_ns)) for side in _sides(stream)
    )


def _sides(stream: IoStream) -> list[DirectionProfile]:
    """Return the directions that `stream` has operations of, reads first."""
    return [side for side in (stream.read, stream.write) if side.ops]


def expected_stat(profile: Profile, options: JobOptions) -> list[ExpectedFigure]:
    """Return what the statistical job is expected to do beside its source.

    Nothing if the source has no times.
    """
    runtime_ns = min(profile.span_ns, options.runtime_cap_ns)
    if not runtime_ns or not profile.streams:
        return []
    # When each section begins and ends, and what it does meanwhile.
    sections: list[tuple[int, int, IoLoad]] = []
    for stream in _streams(profile):
        times = _times(stream, profile, runtime_ns)
        paced = _pace(stream, times, profile)
        load = expected_load(stream, paced.settings.options)
        end_ms = times.start_ms + (times.runtime_ms or 1)
        sections += [(times.start_ms, end_ms, load)] * paced.section_count
    edges = sorted({moment for begin, end, _load in sections for moment in (begin, end)})
    idle_ms = sum(
        (end - begin) * prod(load.idle_share for a, b, load in sections if a <= begin and end <= b)
        for begin, end in pairwise(edges)
    )
    span_ms = edges[-1] - edges[0]
    loads = np.array(
        [
            (
                load.ios_per_s,
                load.bytes_per_s,
                load.ios_per_s * load.read_share,
                load.ios_per_s * load.unlike_share,
                load.mean_depth,
            )
            for _begin, _end, load in sections
        ]
    )
    ios_per_s, bytes_per_s, reads_per_s, unlike_per_s, depth = (
        np.array([end - begin for begin, end, _ in sections]) @ loads / span_ms
    )
    job = IoLoad(
        ios_per_s,
        bytes_per_s,
        reads_per_s / ios_per_s,
        unlike_per_s / ios_per_s,
        depth,
        idle_ms / span_ms,
    )
    return expected_figures(source_load(profile, STAT_MAX_IO_BYTES), job)


def expected_load(stream: IoStream, options: FioOptions) -> IoLoad:
    """Return what fio makes of `stream` with the `options` of its pace, at the stream's own
    response times.
    """
    splits = [split_sizes(side) for side in _sides(stream)]
    reads = percentages([stream.read.ops, stream.write.ops])[0] / PERCENT
    # I/Os a second, for both directions together or for each.
    rates = _requested_ios_per_s(stream, options, splits)
    if len(rates) == len(splits) > 1:
        reads = rates[0] / sum(rates)
    shares = [reads, 1 - reads] if len(splits) > 1 else [1.0]
    mean, unlike = (
        sum(share * getattr(split, name) for share, split in zip(shares, splits, strict=True))
        for name in ("mean_bytes", "mismatch_share")
    )
    # The first I/O is issued at once, however slow the rate is.
    rate = max(sum(rates), NS_PER_S / NS_PER_MS / options.get("runtime_ms", inf))
    took_s = (stream.loop.response_ns or nan) / NS_PER_S
    thinks_s = (options.get("thinktime_us") or 0) / _US_PER_S
    # As many in flight as may be; before it pauses, fio waits for the last of them.
    depth, ops = options.get("iodepth") or 1, options.get("thinktime_blocks", 1)
    cycle_s = max(ops, depth if thinks_s else 0) / depth * took_s + thinks_s
    if isnan(took_s) or stream.loop.pace is Pacing.BURSTS:
        # Without the source's bursts, operations wait less for each other.
        rate = rate if rate < inf else nan
        return IoLoad(rate, rate * mean, reads, unlike, nan, nan)
    idle = thinks_s / cycle_s
    if rate < ops / cycle_s:
        is_drawn = "rate_process" in options
        idle = exp(-rate * took_s) if is_drawn else max(idle, 1 - rate * took_s)
    rate = min(rate, ops / cycle_s)
    return IoLoad(rate, rate * mean, reads, unlike, rate * took_s, idle)


def _requested_ios_per_s(
    stream: IoStream, options: FioOptions, splits: Sequence[Split]
) -> list[float]:
    """Return the I/Os a second that `options` ask for: one figure, or one a direction.

    `splits` are the sizes of each direction. A rate without a limit is infinite.
    """
    byte_rates, io_rates = options.get("rate"), options.get("rate_iops")
    if byte_rates is not None:
        return [rate / split.mean_bytes for rate, split in zip(byte_rates, splits, strict=False)]
    if io_rates is not None:
        return [float(rate) for rate in io_rates]
    if "number_ios" in options:
        # In bursts, or all of them at once, which takes a millisecond.
        return [stream.ops * NS_PER_S / max(stream.span_ns, NS_PER_MS)]
    return [inf]


def _burst_settings(stream: IoStream, times: _Times, burst: int, profile: Profile) -> FioSettings:
    """Return the settings of equal bursts, of as many operations as wait together in the source on
    average.

    A job that pauses falls behind its rate, and issues at once what is due: most of a burst. The
    first has no pause before it, so that few bursts are timed by their pauses alone.
    """
    comments = [
        (
            f"bursts of {burst} I/Os: as many as wait together in the source on a drive of {FAST}"
            " times its rate"
        )
    ]
    gaps = -(-round(stream.ops * times.share) // burst) - 1
    if gaps < 1:
        return FioSettings({"thinktime_us": None}, {"thinktime_us": comments})
    # The stream's time is one gap of its operations longer than from its first to its last.
    gap_us = (times.runtime_ms or 0) * US_PER_MS * (1 - 1 / stream.ops) / gaps
    rate = FioSettings({})
    if gaps >= _MANY_BURSTS:
        rate = FioSettings({"rate": _byte_rate(stream)}, {"rate": comments})
        comments = []
        gap_us = stream.span_ns * burst / stream.ops / NS_PER_US
    drained_us = burst / (FAST * profile.ops / profile.span_ns) / NS_PER_US
    pause_us = max(_LEAST_PAUSE * gap_us, gap_us - drained_us)
    if gaps < _MANY_BURSTS:
        comments.append(
            f"fio pauses after a burst: if that takes over {gap_us - pause_us:.0f} us, the rate"
            " is lower"
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


def _open_pace(stream: IoStream, times: _Times, profile: Profile) -> SectionPace:
    """Return over how many equal sections an open loop is split, and each one's rate."""
    if times.runtime_ms is None:
        return SectionPace(
            1, FioSettings({"rate_iops": None}, {"rate_iops": [f"no rate: {_WITHIN}"]})
        )
    if stream.loop.pace is Pacing.BURSTS and stream.loop.burst_ops is not None:
        return SectionPace(1, _burst_settings(stream, times, stream.loop.burst_ops, profile))
    sides, rates = _sides(stream), [side.ops * NS_PER_S / stream.span_ns for side in _sides(stream)]
    if stream.loop.pace is Pacing.EVEN and len(sides) == 1:
        # As the job has them: I/Os that now and then arrive in parts are of one size there.
        sizes = [size for size, _ in split_sizes(sides[0]).entries]
        per_s = sides[0].io_bytes * NS_PER_S / stream.span_ns / sizes[0]
        # rate_iops with bssplit is wrong before fio 3.42; with several sizes, gaps follow the size
        # before.
        is_whole = (
            len(sizes) == 1 and round(per_s) and abs(round(per_s) / per_s - 1) <= _EVEN_TOLERANCE
        )
        if is_whole:
            return SectionPace(1, FioSettings({"rate_iops": (round(per_s),)}))
        return SectionPace(1, FioSettings({"rate": _byte_rate(stream)}))
    # Both directions in one job cannot be split over several.
    poisson_rates = [poisson(rate) for rate in rates]
    drawn = [
        rate for rate in poisson_rates if rate is not None and (len(sides) == 1 or rate[0] == 1)
    ]
    if len(drawn) < len(sides):
        reason = "evenly by bytes, since Poisson rates are whole operations a second"
        comments = {"rate": [reason]} if len(sides) == 1 else {}
        return SectionPace(1, FioSettings({"rate": _byte_rate(stream)}, comments))
    count, _asked, made = drawn[0]
    comments = {}
    if len(sides) == 1 and (abs(made / rates[0] - 1) > _TOLD or count > 1):
        comments = {"rate_iops": [f"{rates[0]:.5g} I/Os a second in the source, {made:.5g} here"]}
    asked = tuple(asked for _sections, asked, _made in drawn)
    return SectionPace(count, FioSettings({"rate_iops": asked, "rate_process": POISSON}, comments))


def _depth_settings(stream: IoStream, profile: Profile) -> FioSettings:
    """Return how many I/Os of `stream` may be in flight, and why."""
    largest = max(s.io_bytes for s in (*stream.read.sizes, *stream.write.sizes))
    measured = most_in_flight(largest, _MEASURED_BYTES)
    if stream.loop.depth is not None:
        return FioSettings({"iodepth": min(stream.loop.depth, measured)})
    depth = profile.depth
    if depth is not None:
        most = depth.in_flight_for(_MOSTLY)
        most = max(1, depth.max if most is None else most, ceil(depth.mean))
        what = "99 % of the time" if depth.shares else "at every dispatch"
        reason = (
            f"{most} or fewer were in flight {what}; {depth.mean:.3g} on average, weighted by time"
        )
        return FioSettings({"iodepth": min(most, measured)}, {"iodepth": [reason]})
    most_depth, burst, low = most_in_flight(largest), stream.loop.burst_depth, FioSettings({})
    if burst is None and profile.concurrency is None and stream.span_ns <= 1:
        burst = stream.ops  # at one instant, and of no request
    if burst is not None and burst < (stream.loop.burst_ops or 0):
        most = burst
        reason = (
            "the I/Os of one stage of a request, {}{}: the next stage starts when they complete"
        )
        if burst > 1:
            low = FioSettings({"iodepth_low": 1})
    elif burst is not None:
        most, reason = burst, "all of a burst at once: {}{}"
    elif profile.concurrency is not None:
        most = profile.concurrency.max_stage_ops * -(-profile.longest_bytes // STAT_MAX_IO_BYTES)
        reason = (
            "an upper bound, not a measured depth: the most I/Os in one stage of a request, {}{}"
        )
    else:
        reason = (
            "no iodepth: the source has no stages and no measured times to derive it from; fio's"
            " is 1"
        )
        return FioSettings({"iodepth": None}, {"iodepth": [reason]})
    cut = f", cut to what fits {format_bytes(BUFFER_BYTES)} of buffers" if most_depth < most else ""
    comments = {"iodepth": [reason.format(most, cut)]}
    return FioSettings({"iodepth": min(most, most_depth)}, comments) | low


def _trim_sections(profile: Profile, options: JobOptions, runtime_ns: int) -> list[FioSection]:
    """Return the sections that discard as much as the source deletes, when it does.

    None if the target is no block device.

    Deletes may go on when reads and writes are over, or begin then; the sections end with the
    longest run that is allowed.
    """
    count = profile.delete_ops
    if not options.is_device or not count or not runtime_ns or not profile.delete_bytes:
        return []
    mean, span_ns = (
        max(1, round(profile.delete_bytes / count / _ALIGN)) * _ALIGN,
        profile.deletes_span_ns,
    )
    # So many gaps as deletes, as for the streams.
    span_ns = profile.span_ns if span_ns is None else round(span_ns * count / max(1, count - 1))
    trims = msgspec.structs.replace(
        empty_direction(), ops=count, io_bytes=count * mean, sizes=[SizeCount(mean, count)]
    )
    stream = _random_stream("trim", trims, profile.deletes_start_ns, span_ns, depth=1)
    times = _times(stream, profile, runtime_ns)
    left_ms, lasts_ms = options.runtime_cap_ns // NS_PER_MS - times.start_ms, times.runtime_ms or 0
    if left_ms <= 0:
        return []
    if left_ms < lasts_ms:
        times = replace(times, runtime_ms=left_ms, share=times.share * left_ms / lasts_ms)
    paced = _pace(stream, times, profile)
    comment = f"{counted(count, 'delete')} of {mean} bytes on average, at random places"
    places = FioSettings({"rw": "randtrim", "bs": mean}, {"rw": [comment]})
    return _numbered("trim", paced.section_count, places | paced.settings)


_ALL_OF_SPACE = 0.9
"""A stretch of this share of the space is all of it."""
_SAME_SIZES_TV = 0.01
_LEAST_BS = 512


def place_settings(stream: IoStream, space: int) -> FioSettings:
    """Return the settings for what `stream` does and where, on a target of `space` bytes."""
    places = stream.places
    is_mixed = bool(stream.read.ops and stream.write.ops)
    what = "rw" if is_mixed else "read" if stream.read.ops else "write"
    run = f":{places.run_ops}" if places is not None and places.run_ops else ""
    is_sequential = places is not None and places.sequential_share == 1
    options: FioOptions = {"rw": what if is_sequential else f"rand{what}{run}"}
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
        # With the map, no place comes again before all have come.
        options["norandommap"] = True
    if places.align_bytes != _least_size(stream):
        options["blockalign"] = places.align_bytes
    if places.law in (Law.ZIPF, Law.PARETO):
        options["random_distribution"] = f"{places.law}:{places.theta:g}"
    elif places.law is Law.ZONES:
        return FioSettings(options) | _zone_settings(stream, space)
    return FioSettings(options)


def _zone_settings(stream: IoStream, space: int) -> FioSettings:
    """Return the zones of `stream` that are accessed in equal shares, on a target of `space` bytes.

    fio 3.33 fails to parse zones of reads and others of writes (its issue 1923).
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
    """Return the setting of the sizes, with a comment where whole percents lose some."""
    sides = [_direction_to_ask(d, stream) for d in (stream.read, stream.write) if d.ops]
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
    lost = max(split.mismatch_share for split in splits)
    if lost > _SAME_SIZES_TV:
        reason = (
            f"bssplit takes whole percents: {lost:.1%} of I/Os get another size than in the source"
        )
        comments = {name: [reason]}
    least = min(size for split in splits for size, _percent in split.entries)
    if any(size % least for split in splits for size, _percent in split.entries):
        options["bs_unaligned"] = True
    return FioSettings(options, comments)


def has_map(stream: IoStream) -> bool:
    """Return whether fio's random map draws the places of `stream`.

    Its unit is the smallest size.
    """
    places = stream.places
    if places is None or places.law is not Law.ONCE or _least_size(stream) != places.align_bytes:
        return False
    return all(
        s.io_bytes % places.align_bytes == 0 for s in (*stream.read.sizes, *stream.write.sizes)
    )


def _region(places: Places, stream: IoStream, space: int) -> FioOptions:
    """Return where the stream's stretch of the target begins and how long it is, unless it is all
    of it.
    """
    is_hashed = places.law in (Law.ZIPF, Law.PARETO)
    is_all = (
        places.span_bytes >= _ALL_OF_SPACE * space and places.sequential_share < 1 and not is_hashed
    )
    if places.law is Law.ZONES or is_all:
        return {}
    begin, size = places.begin_bytes, -(-places.span_bytes // places.align_bytes)
    size *= places.align_bytes
    if is_hashed:
        # As many places as the law is over, which its hash depends on.
        size = min(size, space)
        begin = min(begin, space - size) // places.align_bytes * places.align_bytes
    else:
        if not has_map(stream) and places.sequential_share < 1:
            # A long operation may begin in the last place.
            size += max(s.io_bytes for s in (*stream.read.sizes, *stream.write.sizes))
        size = min(size, space - begin)
    return {"offset": begin, "size": size} if begin else {"size": size}


def _least_size(stream: IoStream) -> int:
    """Return the smallest size that has a whole percent of the operations."""
    sizes = [
        size
        for d in (stream.read, stream.write)
        if d.ops
        for size, percent in split_sizes(d).entries
        if percent
    ]
    return max(_LEAST_BS, min(sizes))


def _direction_to_ask(direction: DirectionProfile, stream: IoStream) -> DirectionProfile:
    """Return `direction` with the sizes to ask for.

    Where the random map cuts some, not those that come out.
    """
    places = stream.places
    if len(direction.sizes) == 1 or places is None or not has_map(stream):
        return direction
    blocks = np.array([s.io_bytes // places.align_bytes for s in direction.sizes])
    weights = np.array([s.ops for s in direction.sizes], dtype=np.float64)
    asked = sizes_to_ask_for(
        blocks, weights, max(1, places.span_bytes // places.align_bytes), stream.ops
    )
    ops = np.round(asked * direction.ops).astype(int)
    sizes = [SizeCount(s.io_bytes, int(n)) for s, n in zip(direction.sizes, ops, strict=True) if n]
    return msgspec.structs.replace(direction, sizes=sizes, ops=sum(s.ops for s in sizes))


_MOST_JOBS = 16
"""Jobs that a fast rate may be split over."""
_TOLERANCE = 0.005
"""Relative error of the rate that we accept before looking for another form."""
_EVEN_TOLERANCE, _TOLD = 0.001, 0.002
_US_PER_S = 1_000_000


def poisson(ops_per_s: float) -> tuple[int, int, float] | None:
    """Return over how many equal jobs fio keeps a Poisson rate, each one's I/Os a second, and what
    all then make.

    Null if a slow rate is closer to an even one of bytes.
    """
    found = []
    for jobs in range(1, _MOST_JOBS + 1):
        rate_iops = round(ops_per_s / jobs)
        if 1 <= rate_iops <= _US_PER_S:
            # rate_process=poisson draws whole microseconds.
            made = jobs * (_US_PER_S / (_US_PER_S // rate_iops))
            found.append((abs(made / ops_per_s - 1), (jobs, rate_iops, made)))
    close = next((rate for error, rate in found if error <= _TOLERANCE), None)
    return close or (min(found)[1] if found and ops_per_s > _US_PER_S / 100 else None)


_MAP_OPS = 100_000
_MAP_ROUNDS = 8
_MAP_SEED = 42


def sizes_to_ask_for(
    blocks: NDArray[np.int64], weights: NDArray[np.float64], places: int, ops: int
) -> NDArray[np.float64]:
    """Return the weights to ask for, so that sizes of `blocks` places come out as `weights` over
    `ops` operations.

    The map has `places`; the same weights come back if none are closer.
    """
    weights = weights / weights.sum()
    asked, best, least = weights.copy(), weights, np.inf
    for _ in range(_MAP_ROUNDS):
        made = cut_sizes(blocks, asked, places, min(ops, _MAP_OPS))
        distance = float(np.abs(made - weights).sum() / 2)
        if distance < least:
            best, least = asked, distance
        # A size that comes out too often, since longer ones are cut to it, is asked for less.
        asked = np.maximum(asked + (weights - made), 0)
        asked /= asked.sum()
    return best


def cut_sizes(
    blocks: NDArray[np.int64], weights: NDArray[np.float64], places: int, ops: int
) -> NDArray[np.float64]:
    """Return the shares in which sizes come out of a map of `places` if they are asked for in
    shares `weights`.
    """
    rng = np.random.default_rng(_MAP_SEED)
    asked = rng.choice(blocks, ops, p=weights)
    starts = rng.integers(0, places, ops)
    used, left = bytearray(places), places
    counts = dict.fromkeys(blocks.tolist(), 0)
    done = 0
    for start, length in zip(starts.tolist(), asked.tolist(), strict=True):
        if not left:
            used, left = bytearray(places), places
        begin = used.find(0, start)
        if begin < 0:
            begin = used.find(0)
        end = used.find(1, begin, begin + length)
        end = min(begin + length, places) if end < 0 else end
        used[begin:end] = b"\1" * (end - begin)
        left -= end - begin
        done += 1
        if end - begin in counts:
            counts[end - begin] += 1
    return np.array([counts[b] for b in blocks.tolist()], dtype=np.float64) / done
