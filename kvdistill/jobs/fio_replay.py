"""Write the fio jobs that run iologs, and the one that fills the target for all jobs. Pure functions to text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kvdistill.formats.iolog import ABSOLUTE, FIRST_US, RELATIVE, LogOptions, LogSummary
from kvdistill.jobs.buffers import buffer_lines, buffer_needs, huge_pages, run_line
from kvdistill.jobs.header import common_losses, header, log_bugs
from kvdistill.jobs.job import (
    MIB,
    PREFILL,
    FioMode,
    JobOptions,
    bugs_heading,
    data_lines,
    job_sections,
    needs,
    whole_mib,
)
from kvdistill.profile.profile import Profile
from kvtrace.core.units import format_bytes, format_count, format_duration

BUFFER_BYTES = 256 * MIB
DEFAULT_JOBS = 32
_MAX_DEPTH = 1024
_MS = 1_000_000
MOST_LATE = 0.01
"""Share of the span that submitting may make the last I/O late: what a check allows."""
_SUBMIT_US, _SUBMIT_US_PER_MIB = 8.0, 20.0
"""What fio takes to submit an I/O, and each MiB of it: the gaps in a closed loop's refill, with libaio."""


def replay_form(parts: Iterable[dict[str, Any]], options: LogOptions) -> LogOptions:
    """Return `options` with the number of jobs and the version of the log that come closest for the I/Os in `parts`.

    One asynchronous job with microseconds is closest as long as fio keeps up: each of its delays runs from the last
    I/O, so that whatever a burst takes to submit makes all that follows late. Beyond that, absolute milliseconds,
    which are caught up with, over many jobs. docs/fio-jobs.md has the measurements.
    """
    many = max(1, min(DEFAULT_JOBS, BUFFER_BYTES // options.max_io_bytes))
    version, jobs = options.version, options.jobs
    if version is None and jobs is None:
        version = RELATIVE if lateness(parts) <= MOST_LATE else ABSOLUTE
    version = version or (RELATIVE if jobs == 1 else ABSOLUTE)
    return replace(options, version=version, jobs=jobs or (1 if version == RELATIVE else many))


def lateness(parts: Iterable[dict[str, Any]]) -> float:
    """Return how much longer one job of relative times takes than asked, as a share; estimated by cost to submit."""
    late_us, last, span_us = 0.0, None, 0
    for part in parts:
        cost = _SUBMIT_US + part["length"] / MIB * _SUBMIT_US_PER_MIB
        us = part["us"] if last is None else np.concatenate([[last[0]], part["us"]])
        before = cost[:-1] if last is None else np.concatenate([[last[1]], cost[:-1]])
        late_us += float(np.maximum(before - np.diff(us), 0).sum())
        last = int(part["us"][-1]), float(cost[-1])
        span_us = last[0] - FIRST_US
    return late_us / span_us if span_us else 0.0


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
    largest, depth = log.largest_io_bytes, _depth(log)
    pages = huge_pages([(depth, largest)] if len(log.files) == 1 else [(1, largest)] * len(log.files))
    is_reserved = options.huge_pages >= pages
    run = [
        f"in this folder: fio {PREFILL} once, then {run_line(mode.job, largest, is_reserved=is_reserved)}",
        f"it takes {took}{_start_note(log)}",
    ]
    need = [
        *needs(options, space),
        f"{format_bytes(_memory_bytes(log))} of memory for buffers and logs",
        *buffer_needs(largest, pages, is_reserved=is_reserved),
    ]
    reads = f"{format_count(log.read_ios)} reads of {format_count(log.read_bytes)} bytes"
    writes = f"{format_count(log.write_ios)} writes of {format_count(log.write_bytes)} bytes"
    split = f"{format_count(log.split_ops)} operations longer than {format_bytes(log.max_io_bytes)} are split"
    losses = [
        *([f"{split}; their parts are issued at once"] if log.split_ops else []),
        *(["times are whole milliseconds"] if log.version == ABSOLUTE else []),
        *lost,
        *common_losses(profile),
    ]
    sections = [
        ("Run", run),
        ("Needs", need),
        ("It does", [f"{reads} and {writes}, as fio counts them", _jobs_note(log), *does]),
        ("Lost", losses),
        (bugs_heading(options.version), log_bugs(options.version, log)),
    ]
    engine = ["ioengine=psync"] if len(log.files) > 1 else ["ioengine=libaio", f"iodepth={depth}"]
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


def _depth(log: LogSummary) -> int:
    """Return the depth of a single job: room for what may be in flight, for the log's times decide what is."""
    return max(1, min(_MAX_DEPTH, BUFFER_BYTES // log.largest_io_bytes, max(32, log.max_burst_ios)))


def _start_note(log: LogSummary) -> str:
    if not log.start_ms:
        return ""
    wait = format_duration(log.start_ms * _MS)
    return f", of which {wait} before the first I/O, to read the logs: fio's mean rates count them"


def _jobs_note(log: LogSummary) -> str:
    if len(log.files) == 1:
        return "all from one log, asynchronously"
    return (
        f"lines are dealt to {len(log.files)} jobs in turn, each of which does one after the other: so many are in "
        "flight at most, and latencies are true"
    )


def _memory_bytes(log: LogSummary) -> int:
    depth = len(log.files) if len(log.files) > 1 else _depth(log)
    return depth * log.largest_io_bytes + 128 * (log.read_ios + log.write_ios)
