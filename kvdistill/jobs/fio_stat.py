"""Write the statistical fio job of a `Profile`: sizes, rates, hot places and phases, drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from kvdistill.jobs.header import common_losses, header, stat_bugs
from kvdistill.jobs.job import (
    MIB,
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
from kvdistill.profile.profile import ArrivalPhase, DirectionProfile, Profile
from kvtrace.core.units import NS_PER_S, format_bytes, format_count, format_duration

BUFFER_BYTES = 1024 * MIB
_MAX_DEPTH = 1024
_ALIGN = 4096
_NS_PER_MS = 1_000_000
_MOSTLY = 0.99


@dataclass(frozen=True, slots=True)
class _Stretch:
    """A phase as the job runs it."""

    name: str
    phase: ArrivalPhase
    start_ms: int
    runtime_ms: int | None
    """Null if it ends after as many operations as the source has."""


def stat_job(profile: Profile, options: JobOptions) -> str:
    """Return the job that draws reads and writes from the profile's distributions, phase by phase."""
    space = stat_space_bytes(profile, options)
    runtime_ns = min(profile.span_ns, options.runtime_cap_ns)
    stretches = _stretches(profile, runtime_ns)
    jobs: list[tuple[str, list[str]]] = []
    for stretch in stretches:
        for name, direction in (("read", stretch.phase.read), ("write", stretch.phase.write)):
            jobs += _direction_jobs(name, cut_long(direction, STAT_MAX_IO_BYTES), profile, stretch, space)
    jobs += _trim_jobs(profile, options, runtime_ns)
    text = header(
        "Statistical job of a KV-cache workload: its sizes, rates and hot places, drawn at random",
        profile,
        [
            ("Run", [f"in this folder: fio {FioMode.STAT.job}", *_runtime_note(profile, runtime_ns, len(stretches))]),
            ("Needs", needs(options, space)),
            ("Lost", _losses(profile, options)),
            (bugs_heading(options.version), stat_bugs(options.version)),
        ],
    )
    shared = [
        f"filename={options.filename}",
        f"size={space}",
        "direct=1",
        "ioengine=libaio",
        "refill_buffers=1",
        *data_lines(profile),
        "# written in full before the run: a file's unwritten parts would not reach the device",
        "overwrite=1",
        "# without the map, hot places are hit again",
        "norandommap=1",
        "bs_unaligned=1",
        "blockalign=4k",
    ]
    return text + job_sections([("global", shared), *jobs])


def _losses(profile: Profile, options: JobOptions) -> list[str]:
    lost = [
        (
            "temporal reuse: a place is as hot as in the source, but not read again soon after it was used "
            "(--mode reuse keeps that)"
        ),
        "bursts and the order of operations: arrivals are independent of each other",
    ]
    if longest(profile) > STAT_MAX_IO_BYTES:
        lost.append(
            f"operations longer than {format_bytes(STAT_MAX_IO_BYTES)} are drawn as several, apart from each other"
        )
    if profile.locality is None:
        lost.append("places: the source does not say where operations lie, so all places are equally likely")
    return [*lost, *common_losses(profile, has_deletes=not options.is_device)]


def _stretches(profile: Profile, runtime_ns: int) -> list[_Stretch]:
    """Return the phases, shortened in proportion to `runtime_ns` in all."""
    phases = profile.phases or [
        ArrivalPhase(start_ns=0, span_ns=profile.span_ns, read=profile.read, write=profile.write)
    ]
    if not runtime_ns:
        return [_Stretch("", phases[0], 0, None)]
    edges = [phase.start_ns * runtime_ns // profile.span_ns // _NS_PER_MS for phase in phases]
    edges.append(max(1, runtime_ns // _NS_PER_MS))
    return [
        _Stretch("" if len(phases) == 1 else f"phase{i + 1}-", phase, edges[i], max(1, edges[i + 1] - edges[i]))
        for i, phase in enumerate(phases)
    ]


def _direction_jobs(
    name: str, direction: DirectionProfile, profile: Profile, stretch: _Stretch, space: int
) -> list[tuple[str, list[str]]]:
    if not direction.ops:
        return []
    split = split_sizes(direction)
    lines = [
        f"rw=rand{name}",
        f"# {split.distinct_sizes} distinct sizes; {split.moved_share:.2%} of I/Os get another size than theirs,",
        f"# mean {split.mean_bytes:.0f} bytes for {split.exact_mean_bytes:.0f}",
        f"bssplit={split}",
        *_place_lines(direction, space),
        *_depth_lines(direction, profile),
    ]
    if stretch.runtime_ms is None:
        lines += ["# no rate: all operations of the source share one instant", f"number_ios={direction.ops}"]
        return [(name, lines)]
    lines += _time_lines(stretch)
    seconds = stretch.phase.span_ns / NS_PER_S
    rate = pace(direction.ops / seconds, split.mean_bytes * direction.ops / seconds)
    how = "Poisson" if rate.is_poisson else "evenly by bytes, since Poisson rates are whole operations a second"
    lines += [f"# {direction.ops / seconds:.4g} I/Os a second in the source, {rate.per_s:.4g} here; {how}"]
    lines += rate.options
    whole = stretch.name + name
    names = [whole] if rate.jobs == 1 else [f"{whole}{i}" for i in range(1, rate.jobs + 1)]
    return [(job, lines) for job in names]


def _time_lines(stretch: _Stretch) -> list[str]:
    start = [f"startdelay={stretch.start_ms}ms"] if stretch.start_ms else []
    return [*start, "time_based=1", f"runtime={stretch.runtime_ms}ms"]


def _place_lines(direction: DirectionProfile, space: int) -> list[str]:
    if not direction.zones:
        return ["# no random_distribution: the source does not say where operations lie"]
    zones = [f"{zone.percent}/{zone.span_bytes}" for zone in direction.zones]
    rest = space - sum(zone.span_bytes for zone in direction.zones)
    if rest:
        zones.append(f"0/{rest}")
    return [f"random_distribution=zoned_abs:{':'.join(zones)}"]


def _depth_lines(direction: DirectionProfile, profile: Profile) -> list[str]:
    room = max(1, min(_MAX_DEPTH, BUFFER_BYTES // direction.sizes[-1].io_bytes))
    depth = profile.depth
    if depth is not None:
        most = depth.max
        if depth.shares:
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


def _runtime_note(profile: Profile, runtime_ns: int, phases: int) -> list[str]:
    if not profile.span_ns:
        return ["it ends after as many operations as the source has: they share one instant, so no time is known"]
    parts = f", in {phases} phases" if phases > 1 else ""
    if runtime_ns < profile.span_ns:
        how = " (shortened in proportion)" if phases > 1 else ""
        return [f"it runs {format_duration(runtime_ns)} of the source's {format_duration(profile.span_ns)}{parts}{how}"]
    return [f"it runs {format_duration(runtime_ns)}, as long as the source{parts}"]


MAX_JOBS = 16
"""Jobs that a fast rate may be split over."""
TOLERANCE = 0.005
"""Relative error of the rate that we accept before looking for another form."""
_US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """How one direction is paced: the same `options` in each of `jobs` equal jobs."""

    jobs: int
    options: tuple[str, ...]
    per_s: float
    """Operations a second that fio will aim at, over all jobs."""
    is_poisson: bool


def poisson_per_s(rate_iops: int) -> float:
    """Return the operations a second that fio makes of `rate_iops` with `rate_process=poisson`."""
    return _US_PER_S / (_US_PER_S // rate_iops)


def pace(ops_per_s: float, bytes_per_s: float) -> Rate:
    """Return how to keep `ops_per_s`, which carry `bytes_per_s`; both must be positive."""
    best: Rate | None = None
    for jobs in range(1, MAX_JOBS + 1):
        rate_iops = round(ops_per_s / jobs)
        if not 1 <= rate_iops <= _US_PER_S:
            continue
        made = jobs * poisson_per_s(rate_iops)
        rate = Rate(jobs, (f"rate_iops={rate_iops}", "rate_process=poisson"), made, is_poisson=True)
        if _error(made, ops_per_s) <= TOLERANCE:
            return rate
        if best is None or _error(made, ops_per_s) < _error(best.per_s, ops_per_s):
            best = rate
    even = max(1, round(bytes_per_s))
    linear = Rate(1, (f"rate={even}",), ops_per_s * even / bytes_per_s, is_poisson=False)
    fast = best is not None and ops_per_s > _US_PER_S / 100
    return best if best is not None and fast else linear


def _error(made: float, wanted: float) -> float:
    return abs(made / wanted - 1)
