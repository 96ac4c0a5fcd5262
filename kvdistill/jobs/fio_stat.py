"""Write the statistical fio job of a `Profile`: a section a stream, each with what its model needs and no more."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import msgspec

from kvdistill.jobs.buffers import buffer_lines, buffer_needs, huge_pages, run_line
from kvdistill.jobs.fio_places import place_lines, sizes_line
from kvdistill.jobs.fio_rate import Rate, even_pace, pace
from kvdistill.jobs.header import common_losses, header, stat_bugs
from kvdistill.jobs.job import (
    MIB,
    PREFILL,
    STAT_MAX_IO_BYTES,
    FioMode,
    JobOptions,
    bugs_heading,
    data_lines,
    job_sections,
    longest,
    needs,
    stat_space_bytes,
)
from kvdistill.profile.distributions import cut_long, split_sizes
from kvdistill.profile.profile import IoStream, Law, Loop, Pacing, Profile
from kvtrace.core.units import NS_PER_S, format_bytes, format_count, format_duration, format_io_size

BUFFER_BYTES = 1024 * MIB
_MAX_DEPTH = 1024
_ALIGN = 4096
_NS_PER_MS = 1_000_000
_NS_PER_US = 1000
_MOSTLY = 0.99


@dataclass(frozen=True, slots=True)
class _Times:
    """When a stream runs in the job; null `runtime_ms` if it ends after as many operations as the source has."""

    start_ms: int
    runtime_ms: int | None


def stat_job(profile: Profile, options: JobOptions) -> str:
    """Return the job that draws reads and writes from the models of the profile's streams."""
    space, largest = stat_space_bytes(profile, options), min(longest(profile), STAT_MAX_IO_BYTES)
    runtime_ns = min(profile.span_ns, options.runtime_cap_ns)
    jobs: list[tuple[str, list[str]]] = []
    for stream in _streams(profile):
        jobs += _sections(stream, _times(stream, profile, runtime_ns), profile, space)
    jobs += _trim_jobs(profile, options, runtime_ns)
    pages = huge_pages((_depth(lines), largest) for _name, lines in jobs)
    is_reserved = options.huge_pages >= pages
    need = buffer_needs(largest, pages, is_reserved=is_reserved)
    command = run_line(FioMode.STAT.job, largest, is_reserved=is_reserved)
    text = header(
        "Statistical job: drawn at random from the simplest models that explain the source",
        profile,
        [
            (
                "Run",
                [
                    f"in this folder: fio {PREFILL} once, then {command}",
                    *_runtime_note(profile, runtime_ns),
                ],
            ),
            ("Needs", [*needs(options, space), *need]),
            ("Lost", _losses(profile, options)),
            (bugs_heading(options.version), stat_bugs(options.version)),
        ],
    )
    shared = [
        f"filename={options.filename}",
        f"size={space}",
        "# the prefill makes the file: to make it here would be part of the run",
        "allow_file_create=0",
        "direct=1",
        "ioengine=libaio",
        *buffer_lines(largest, is_reserved=is_reserved),
        *data_lines(profile),
    ]
    return text + job_sections([("global", shared), *jobs])


def _streams(profile: Profile) -> list[IoStream]:
    """Return the profile's streams with long operations cut; one a direction if no time is known."""
    streams = profile.streams or [
        IoStream(
            name=name,
            start_ns=0,
            span_ns=profile.span_ns,
            read=direction if name == "read" else msgspec.structs.replace(direction, ops=0, sizes=[]),
            write=direction if name == "write" else msgspec.structs.replace(direction, ops=0, sizes=[]),
            loop=Loop(pace=Pacing.POISSON, depth=None, think_ns=None, think_ops=None),
            places=None,
        )
        for name, direction in (("read", profile.read), ("write", profile.write))
        if direction.ops
    ]
    return [
        msgspec.structs.replace(s, read=cut_long(s.read, STAT_MAX_IO_BYTES), write=cut_long(s.write, STAT_MAX_IO_BYTES))
        for s in streams
    ]


def _losses(profile: Profile, options: JobOptions) -> list[str]:
    lost = ["the order of operations, and how soon a place is used again beyond what its law says (--mode reuse)"]
    laws = {s.places.law for s in profile.streams if s.places is not None}
    if any(s.loop.pace is Pacing.BURSTS for s in profile.streams) and profile.arrivals is not None:
        lost.append(
            f"bursts: arrivals are independent of each other (variance by mean of operations in the source: "
            f"{profile.arrivals.dispersion}; by chance it is 1)"
        )
    if longest(profile) > STAT_MAX_IO_BYTES:
        lost.append(
            f"operations longer than {format_io_size(STAT_MAX_IO_BYTES)} are drawn as several, apart from each other"
        )
    if profile.space is None:
        lost.append("places: the source does not say where operations lie, so all places are equally likely")
    if Law.ZONES in laws:
        lost.append("which places within a zone are hot: no law fits, so zones of equal mass stand for it")
    return [*lost, *common_losses(profile, has_deletes=not options.is_device)]


def _times(stream: IoStream, profile: Profile, runtime_ns: int) -> _Times:
    """Return when `stream` runs, shortened in proportion to `runtime_ns` for the whole."""
    if not runtime_ns:
        return _Times(0, None)
    scale = runtime_ns / profile.span_ns / _NS_PER_MS
    begin = max(0, round(stream.start_ns * scale))
    end = max(begin + 1, round((stream.start_ns + stream.span_ns) * scale))
    # A start that is the source's first milliseconds is its start.
    return _Times(0, end) if begin <= end // 100 else _Times(begin, end - begin)


def _sections(stream: IoStream, times: _Times, profile: Profile, space: int) -> list[tuple[str, list[str]]]:
    lines = [*place_lines(stream, space), *sizes_line(stream)]
    if times.runtime_ms is None:
        lines += _depth_lines(stream, profile)
        lines += ["# no rate: all operations of the source share one instant", f"number_ios={stream.ops}"]
        return [(stream.name, lines)]
    lines += [f"startdelay={times.start_ms}ms"] * bool(times.start_ms)
    lines += ["time_based=1", f"runtime={times.runtime_ms}ms"]
    if stream.loop.pace is Pacing.CLOSED:
        lines += _depth_lines(stream, profile)
        if stream.loop.think_ns is not None:
            lines += [
                f"thinktime={stream.loop.think_ns // _NS_PER_US}us",
                f"thinktime_blocks={stream.loop.think_ops}",
            ]
        return [(stream.name, lines)]
    rate, comment, options = _rate(stream)
    lines += [*_depth_lines(stream, profile), *comment, *options]
    names = [stream.name] if rate.jobs == 1 else [f"{stream.name}-{i}" for i in range(1, rate.jobs + 1)]
    return [(job, lines) for job in names]


def _rate(stream: IoStream) -> tuple[Rate, list[str], list[str]]:
    """Return the rate of an open loop, a comment where it is not the source's, and the options."""
    seconds = stream.span_ns / NS_PER_S
    if stream.read.ops and stream.write.ops:
        rates = [pace(d.ops / seconds, d.io_bytes / seconds) for d in (stream.read, stream.write)]
        if all(rate.jobs == 1 and rate.is_poisson for rate in rates):
            said = [rate.options[0].partition("=")[2] for rate in rates]
            return rates[0], [], [f"rate_iops={','.join(said)}", "rate_process=poisson"]
        said = [str(round(d.io_bytes / seconds)) for d in (stream.read, stream.write)]
        return Rate(1, (), 0, is_poisson=False), [], [f"rate={','.join(said)}"]
    direction = stream.read if stream.read.ops else stream.write
    ops_per_s, bytes_per_s = direction.ops / seconds, direction.io_bytes / seconds
    if stream.loop.pace is Pacing.EVEN:
        # As the job has them: I/Os that now and then arrive in parts are of one size there.
        sizes = [size for size, _ in split_sizes(direction).entries]
        ops_per_s = bytes_per_s / sizes[0] if len(sizes) == 1 else ops_per_s
        rate = even_pace(ops_per_s, bytes_per_s, has_one_size=len(sizes) == 1)
        return rate, [], list(rate.options)
    rate = pace(ops_per_s, bytes_per_s)
    comment = []
    if not rate.is_poisson:
        comment = ["# evenly by bytes, since Poisson rates are whole operations a second"]
    elif abs(rate.per_s * rate.jobs / ops_per_s - 1) > 0.002 or rate.jobs > 1:  # noqa: PLR2004 - worth telling
        comment = [f"# {ops_per_s:.5g} I/Os a second in the source, {rate.per_s:.5g} here"]
    return rate, comment, list(rate.options)


def _depth(lines: list[str]) -> int:
    return next((int(line.partition("=")[2]) for line in lines if line.startswith("iodepth=")), 1)


def _depth_lines(stream: IoStream, profile: Profile) -> list[str]:
    largest = max(s.io_bytes for s in (*stream.read.sizes, *stream.write.sizes))
    room = max(1, min(_MAX_DEPTH, BUFFER_BYTES // largest))
    if stream.loop.depth is not None:
        return [f"iodepth={min(stream.loop.depth, room)}"]
    depth = profile.depth
    if depth is not None:
        most = depth.max
        done = 0.0
        for at in depth.shares:
            done += at.share
            if done >= _MOSTLY:
                most = at.in_flight
                break
        most = max(1, most, ceil(depth.mean))
        what = "99 % of the time" if depth.shares else "at every dispatch"
        return [
            f"# {most} or fewer were in flight {what}; {depth.mean:.3g} on average, weighted by time",
            f"iodepth={min(most, room)}",
        ]
    if profile.concurrency is None:
        return ["# no iodepth: the source has no stages and no measured times that could tell it; fio takes 1"]
    most = profile.concurrency.max_stage_ops * -(-longest(profile) // STAT_MAX_IO_BYTES)
    cut = f", cut to what fits {format_bytes(BUFFER_BYTES)} of buffers" if room < most else ""
    return [
        f"# an upper bound, not a measured depth: the most I/Os in one stage of a request, {most}{cut};",
        f"# the mean is {profile.concurrency.mean_stage_ops:.3g} operations",
        f"iodepth={min(most, room)}",
    ]


def _trim_jobs(profile: Profile, options: JobOptions, runtime_ns: int) -> list[tuple[str, list[str]]]:
    """Return the job that discards as much as the source deletes; none if the target is no block device."""
    if not options.is_device or not profile.delete_ops or not runtime_ns or not profile.delete_bytes:
        return []
    mean = max(1, round(profile.delete_bytes / profile.delete_ops / _ALIGN)) * _ALIGN
    seconds = profile.span_ns / NS_PER_S
    rate = pace(profile.delete_ops / seconds, profile.delete_bytes / seconds)
    return [
        (
            "trim",
            [
                f"# {format_count(profile.delete_ops)} deletes of {mean} bytes on average, at random places",
                "rw=randtrim",
                f"bs={mean}",
                "iodepth=1",
                "time_based=1",
                f"runtime={max(1, runtime_ns // _NS_PER_MS)}ms",
                *rate.options,
            ],
        )
    ]


def _runtime_note(profile: Profile, runtime_ns: int) -> list[str]:
    if not profile.span_ns:
        return ["it ends after as many operations as the source has: they share one instant, so no time is known"]
    if runtime_ns < profile.span_ns:
        return [f"it runs {format_duration(runtime_ns)} of the source's {format_duration(profile.span_ns)}"]
    return [f"it runs {format_duration(runtime_ns)}, as long as the source"]
