"""Write the fio jobs that run iologs, of a trace or drawn by an LRU stack model, and the one that fills the target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isnan, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvdistill.formats.iolog import ABSOLUTE, FIRST_US, RELATIVE, LogOptions, LogSummary
from kvdistill.jobs.fio_program import (
    HANGS_IN_IO_URING,
    REAPS_WHILE_WAITING,
    FioVersion,
    buffer_lines,
    buffer_needs,
    huge_pages,
    run_line,
)
from kvdistill.jobs.job import (
    MIB,
    PREFILL,
    ExpectedFigure,
    FioMode,
    IoLoad,
    JobOptions,
    bugs_heading,
    common_losses,
    data_lines,
    expected_figures,
    header,
    job_sections,
    needs,
    source_load,
    whole_mib,
)
from kvdistill.profile.profile import DirectionProfile, Profile
from kvtrace.core.errors import ConfigError
from kvtrace.core.native.library import I8, function
from kvtrace.core.statistics import Slot, slot_of
from kvtrace.core.units import NS_PER_S, NS_PER_US, format_bytes, format_count, format_duration, format_io_size

_MS = 1_000_000
_WAITED_US, _MIN_WAITS, _USUAL = 300, 50, 90


def replay_form(options: LogOptions) -> LogOptions:
    """Return `options` with the number of jobs and the version of the log that come closest.

    One asynchronous job: many jobs wake each on its own, and as many as there are may be in flight. Absolute
    milliseconds, where what fio takes to issue an I/O is not known: relative microseconds are closer, but what issuing
    takes adds up, unless it is known (`LogOptions.issue_us`, which a check measures):
    docs/concepts/fio-jobs.md.
    """
    is_told = any(options.issue_us) and options.jobs in (None, 1)
    return replace(options, version=options.version or (RELATIVE if is_told else ABSOLUTE), jobs=options.jobs or 1)


def fitted_issue_us(
    asked_us: NDArray[np.int64], came_us: NDArray[np.int64], length: NDArray[np.int64]
) -> tuple[float, float] | None:
    """Return what fio took to issue an I/O and each MiB of it, from the times asked in a log of version 3 and seen.

    Only I/Os that were waited for show it: what was due at once came as soon as it could. Null with too few, or if it
    took no time.
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


def prefill_job(profile: Profile, modes: Sequence[FioMode], space: int, options: JobOptions) -> str:
    """Return the job that writes the whole target of `modes`, so that every read meets data on the device."""
    text = header(
        f"Fills the target of {', '.join(mode.job for mode in modes)}",
        profile,
        [("Run", [f"in this folder, once: fio {PREFILL}"]), ("Needs", needs(options, space))],
    )
    lines = [
        f"filename={options.filename}",
        "direct=1",
        "ioengine=libaio",
        "iodepth=4",
        "rw=write",
        "bs=1M",
        f"size={space}",
        "refill_buffers=1",
        *data_lines(profile),
        "end_fsync=1",
    ]
    return text + job_sections([("prefill", lines)])


def replay_job(profile: Profile, log: LogSummary, options: JobOptions) -> str:
    """Return the job that replays `log`, which holds every operation of the profile."""
    title = "Exact replay of a KV-cache workload: every read and write, at its time"
    space = profile.placed
    does = [
        (
            f"{format_count(space.prior_objects)} objects ({format_bytes(space.prior_bytes)}) are read before they are "
            "written; the prefill writes the whole target, so that every read meets data on the device"
        )
    ]
    lost = ["which request and stage an operation serves: all are issued by time, none waits for another to complete"]
    return _job(profile, log, options, FioMode.REPLAY, whole_mib(space.span_bytes), title, does, lost)


def expected_replay(profile: Profile, log: LogSummary, *, is_drawn: bool) -> list[ExpectedFigure]:
    """Return what the job of `log` is expected to do beside its source; nothing if the source has no times."""
    source = source_load(profile, log.max_io_bytes)
    if not profile.span_ns or log.last_us <= FIRST_US:
        return []
    reads, moved = log.read_ios, log.read_bytes + log.write_bytes
    ios, seconds = reads + log.write_ios, (log.last_us - FIRST_US) * NS_PER_US / NS_PER_S
    took_s, jobs = source.mean_depth / source.ios_per_s, len(log.files)
    # Without response times nobody knows whether one I/O at a time of each job is enough.
    rate = nan if isnan(took_s) and jobs > 1 else ios / seconds
    idle = nan if isnan(took_s) else source.idle_share
    if rate * took_s > (most := log.depth if jobs == 1 else jobs):
        rate, idle = most / took_s, 0.0
    # Drawn apart, operations wait for each other otherwise than in the source.
    told = (nan, nan, nan) if is_drawn else (0.0, rate * took_s, idle)
    return expected_figures(source, IoLoad(rate, rate * moved / ios, reads / ios, *told))


def reuse_job(profile: Profile, log: LogSummary, span_bytes: int, seed: int, options: JobOptions) -> str:
    """Return the job that runs `log`, which was drawn from the profile with `seed`."""
    title = "Drawn job of a KV-cache workload: its sizes, mix, bursts, gaps and how soon places are used again"
    does = [
        (
            f"operations are drawn, with seed {seed}, from the profile's distributions; places from an LRU stack, at "
            "the profile's reuse distances"
        ),
    ]
    lost = [
        "which operation follows which: each is drawn apart from the others",
        "phases: the rate is the same all along",
    ]
    return _job(profile, log, options, FioMode.REUSE, whole_mib(span_bytes), title, does, lost)


def _job(
    profile: Profile,
    log: LogSummary,
    options: JobOptions,
    mode: FioMode,
    space: int,
    title: str,
    does: list[str],
    lost: list[str],
) -> str:
    took = format_duration(log.last_us * 1000 + log.start_ms * _MS)
    started = format_duration(log.start_ms * _MS)
    started = f", of which {started} before the first I/O, to read the logs: fio's mean rates count them"
    started = started if log.start_ms else ""
    largest = log.largest_io_bytes
    buffers = largest * (log.depth if len(log.files) == 1 else len(log.files))
    pages = huge_pages([(log.depth, largest)] if len(log.files) == 1 else [(1, largest)] * len(log.files))
    is_reserved = options.huge_pages >= pages
    run = [
        f"in this folder: fio {PREFILL} once, then {run_line(mode.job, largest, is_reserved=is_reserved)}",
        f"it takes {took}{started}",
    ]
    need = [
        *needs(options, space),
        f"{format_bytes(buffers + 128 * (log.read_ios + log.write_ios))} of memory for buffers and logs",
        *buffer_needs(largest, pages, is_reserved=is_reserved),
    ]
    split = f"{format_count(log.split_ops)} operations longer than {format_io_size(log.max_io_bytes)} are split"
    losses = [
        *([f"{split}; their parts are issued at once"] if log.split_ops else []),
        *(["times are whole milliseconds; kvreplay keeps microseconds"] if log.version == ABSOLUTE else []),
        *lost,
        *([f"{format_count(n)} flushes are not issued (stat.fio has them)"] if (n := profile.flush_ops) else []),
        *common_losses(profile),
    ]
    sections = [
        ("Run", run),
        ("Needs", need),
        ("It does", [*_what_it_does(log), *does]),
        ("Lost", losses),
        (bugs_heading(options.version), _bugs(options.version, log)),
    ]
    engine = ["ioengine=psync"] if len(log.files) > 1 else ["ioengine=libaio", f"iodepth={log.depth}"]
    shared = [
        "direct=1",
        *engine,
        f"bs={largest}",
        *buffer_lines(largest, is_reserved=is_reserved),
        "group_reporting=1",
        *data_lines(profile),
    ]
    jobs = [(file.removesuffix(".iolog"), [f"read_iolog={file}"]) for file in log.files]
    return header(title, profile, sections) + job_sections([("global", shared), *jobs])


def _what_it_does(log: LogSummary) -> list[str]:
    """Return the lines of a head on the I/Os of `log`, its jobs, and the delays that issuing shortens."""
    reads = f"{format_count(log.read_ios)} reads of {format_count(log.read_bytes)} bytes"
    writes = f"{format_count(log.write_ios)} writes of {format_count(log.write_bytes)} bytes"
    lines = [f"{reads} and {writes}, as fio counts them", "all from one log, asynchronously"]
    if len(log.files) > 1:
        lines[1] = (
            f"lines are partitioned round-robin over {len(log.files)} jobs with one I/O in flight each: no more are in "
            "flight, and latencies are true"
        )
    if any(log.issue_us):
        base, per_mib = log.issue_us
        each = f" and {per_mib:.0f} µs a MiB" if per_mib else ""
        lines.append(
            f"each delay in the log is {base:.0f} µs{each} shorter than the source's: what this fio took to issue an "
            "I/O when --check measured it here, which would add up"
        )
    return lines


def _bugs(version: FioVersion | None, log: LogSummary) -> list[str]:
    """Return the bugs of fio `version` (any, if null) that change the results of replaying `log`."""
    is_one, is_absolute = len(log.files) == 1, log.version == ABSOLUTE
    is_old, is_new = version is None or version < REAPS_WHILE_WAITING, version is None or version >= REAPS_WHILE_WAITING
    lines = []
    if is_absolute:
        lines.append(
            "a wait of a version 2 log lasts until so many milliseconds after fio's start, whatever its manual says "
            "(so in the code of all versions; run with 3.33 and 3.39): lateness is caught up with, but the replay must "
            "not follow another job in one run of fio"
        )
    else:
        lines.append("each delay of a version 3 log runs from the last issue, with no catching up: lateness only grows")
        if is_new:
            lines.append(f"fio from {REAPS_WHILE_WAITING} on waits by spinning: each job takes a processor of its own")
    if is_one and (is_absolute or is_old):
        which = "fio" if is_absolute else f"fio before {REAPS_WHILE_WAITING}"
        lines += [
            (
                f"{which} does not reap completions while it waits for the next time: its completion latency and "
                "depth are false here (operations are issued on time all the same); --jobs 32 has them right"
            ),
            (
                f"{which} leaves the last operations, up to iodepth, out of its byte counts and latencies; total_ios "
                "is right"
            ),
        ]
    lines += [
        "read_iolog_chunked loses lines of a log that is read slowly, and thread=1 crashes fio 3.33: keep them out",
    ]
    if version is None or version >= HANGS_IN_IO_URING:
        lines.append(f"with io_uring, replay hangs from fio {HANGS_IN_IO_URING} on")
    return lines


MAX_OPS = 2_000_000
"""The most operations that are drawn, which bounds memory and the logs."""
_GRANULE_BYTES = 4096
_EXACT_SIZES = 256
_FIRST_US = 1
_model = function("reuse_model_place", int, I8, I8, int, I8, I8, I8, returns=int)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Operations in order of time; `us` from 1."""

    us: NDArray[np.int64]
    is_read: NDArray[np.bool_]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    span_bytes: int
    """Where the highest of them ends."""


def draw(profile: Profile, runtime_ns: int, seed: int) -> Drawn:
    """Draw `runtime_ns` of operations; the same seed draws the same.

    Raises:
        ConfigError: the profile does not know arrivals or reuse, or these are too many operations.

    """
    if profile.locality is None or profile.arrivals is None:
        raise ConfigError(
            f"{profile.origin.file} does not say when operations came and how soon places were used again, which the "
            "reuse job draws from; take a trace, a run or block events that last longer than an instant"
        )
    share = runtime_ns / profile.span_ns
    ops = {True: max(0, round(profile.read.ops * share)), False: max(0, round(profile.write.ops * share))}
    count = max(1, sum(ops.values()))
    if count > MAX_OPS:
        raise ConfigError(
            f"{format_count(count)} operations are more than the reuse job draws ({format_count(MAX_OPS)}); take less "
            "with --max-duration"
        )
    rng = np.random.default_rng(seed)
    is_read = np.zeros(count, dtype=np.bool_)
    is_read[: ops[True]] = True
    rng.shuffle(is_read)
    length, distance = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for direction, reuse, which in (
        (profile.read, profile.locality.read, is_read),
        (profile.write, profile.locality.write, ~is_read),
    ):
        n = int(which.sum())
        if n:
            length[which] = _sizes(direction, n, rng)
            # `count` reuse distances in bytes; -1 for a first use.
            known = sum(slot.count for slot in reuse.distances)
            result = np.full(n, -1, dtype=np.int64)
            again = round(n * known / (known + reuse.first_ops))
            result[:again] = _from_slots(reuse.distances, again, rng)
            rng.shuffle(result)
            distance[which] = result
    # Which operations may share places: those of one size, or of about one if there are very many sizes.
    sizes, index = np.unique(length, return_inverse=True)
    classes = index if len(sizes) <= _EXACT_SIZES else np.unique(slot_of(length), return_inverse=True)[1]
    reserved = np.zeros(int(classes.max()) + 1, dtype=np.int64)
    np.maximum.at(reserved, classes, -(-length // _GRANULE_BYTES) * _GRANULE_BYTES)
    uses, offset = np.bincount(classes), np.empty(count, dtype=np.int64)
    span_bytes = int(_model(count, classes.astype(I8), distance, len(uses), reserved, uses, offset))
    return Drawn(_times(profile, count, runtime_ns, rng), is_read, offset, length, span_bytes)


def _sizes(direction: DirectionProfile, count: int, rng: np.random.Generator) -> Any:
    """Return `count` sizes in the exact shares of `direction`, by largest remainder, in random order."""
    weights = np.array([size.ops for size in direction.sizes], dtype=np.float64) * count / direction.ops
    shares = np.floor(weights).astype(np.int64)
    rest = np.argsort(-(weights - shares), kind="stable")[: count - int(shares.sum())]
    shares[rest] += 1
    sizes = np.repeat(np.array([size.io_bytes for size in direction.sizes]), shares)
    rng.shuffle(sizes)
    return sizes


def _from_slots(slots: Sequence[Slot], count: int, rng: np.random.Generator) -> Any:
    """Return `count` values with the distribution of `slots`, even within each, stratified."""
    if not count:
        return np.empty(0, dtype=np.int64)
    done = np.cumsum([slot.count for slot in slots])
    at = (np.arange(count) + rng.random(count)) / count * done[-1]
    index = np.minimum(np.searchsorted(done, at, "right"), len(slots) - 1)
    low, below = (np.array([getattr(slot, name) for slot in slots]) for name in ("low", "below"))
    values = low[index] + np.floor(rng.random(count) * (below - low)[index]).astype(np.int64)
    rng.shuffle(values)
    return values


def _times(profile: Profile, count: int, runtime_ns: int, rng: np.random.Generator) -> Any:
    """Return when each of `count` operations is due, in microseconds: bursts of the profile's sizes, at its gaps."""
    arrivals = profile.arrivals
    assert arrivals is not None
    mean = count / max(1, round(count * arrivals.instants / profile.ops))
    bursts = _from_slots(arrivals.bursts, 2 * int(count / mean) + 8, rng)
    bursts = bursts[: int(np.searchsorted(np.cumsum(bursts), count)) + 1]
    gaps = _from_slots(arrivals.gaps, len(bursts) - 1, rng).astype(np.float64)
    starts = np.concatenate([[0.0], np.cumsum(gaps)])
    if starts[-1] > 0:
        starts *= runtime_ns / starts[-1]
    return (_FIRST_US + np.repeat(starts, bursts)[:count] * (1_000_000 / NS_PER_S)).astype(np.int64)
