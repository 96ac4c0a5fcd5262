"""What a statistical job has in flight beside its trace, on drives of several speeds.

Queues of a few lines each.
"""

from __future__ import annotations

import heapq
from collections import deque
from math import ceil

import polars as pl
import pytest
from conftest import run_cli
from kvdistill_rows import stat_job
from test_fio_jobs import options_of, sections

from kvdistill.jobs.job import FioVersion, JobOptions
from kvdistill.profile.sources import distil_source
from kvtrace.core.limit import Limit

MIB = 1 << 20
IN_FLIGHT = 256 << 20
"""Bytes, as in the jobs of a trace."""


def parts_of(length: int) -> list[int]:
    """Return the I/Os of an operation of `length` bytes: of 1 MiB, and the rest."""
    return [MIB] * (length // MIB) + [length % MIB] * bool(length % MIB)


def mean_length(of: dict[str, str]) -> float:
    """Return the mean length of the I/Os of a section, by its bs or bssplit."""
    if "bs" in of:
        return float(of["bs"])
    sizes = [tuple(map(int, entry.split("/"))) for entry in of["bssplit"].split(":")]
    return sum(size * percent for size, percent in sizes) / sum(percent for _, percent in sizes)


def in_trace(rows: pl.DataFrame, length: int, per_s: float) -> float:
    """Return the mean I/Os in flight of a trace's `rows` on a drive that does `per_s` bytes a
    second.

    A stage of a request starts when the one before it has completed; what has none, and is no
    request's, at its time.
    """
    begin_ns, end_ns = rows["ts_ns"].min(), rows["ts_ns"].max()
    queues: dict[object, deque[tuple[float, int]]] = {}
    for ts, request, stage, count in (
        rows.group_by("ts_ns", "request_id", "stage").len().sort("ts_ns", "stage").rows()
    ):
        queues.setdefault(ts if stage is None else (request,), deque()).append((ts / 1e9, count))
    free, area, events = 0.0, 0.0, [(queue[0][0], at) for at, queue in enumerate(queues.values())]
    waiting = list(queues.values())
    heapq.heapify(events)
    while events:
        now, at = heapq.heappop(events)
        for part in parts_of(length) * waiting[at].popleft()[1]:
            free = max(free, now) + part / per_s
            area += min(free - now, IN_FLIGHT // length * length / per_s)
        if waiting[at]:
            heapq.heappush(events, (max(free, waiting[at][0][0]), at))
    return area / (end_ns - begin_ns) * 1e9


def in_job(job: str, span_s: float, per_s: float) -> float:
    """Return the mean I/Os in flight of `job` on such a drive: fio's pauses, rates and depths."""
    free, area, events = 0.0, 0.0, []
    said = [options_of(job, name) for name in sections(job)[1:]]
    ends = [deque[float](maxlen=int(of["iodepth"])) for of in said]
    for at, of in enumerate(said):
        heapq.heappush(events, (ceil(int(of.get("startdelay", "0ms")[:-2]) / 100) / 10, at, 0, 0.0))
    begins = {at: begin for begin, at, *_ in events}
    while events:
        now, at, issued, paused = heapq.heappop(events)
        of, length = said[at], mean_length(said[at])
        free = max(free, now) + length / per_s
        area += free - now
        ends[at].append(free)
        issued += 1
        if issued == int(of["number_ios"]):
            continue
        if "thinktime" in of and issued % int(of["thinktime_blocks"]) == 0:
            paused = now + float(of["thinktime"][:-2]) / 1e6
        due = begins[at] + issued * length / float(of.get("rate", "inf"))
        depth = int(of["iodepth"])
        full = ends[at][0] if len(ends[at]) == depth else 0.0
        if "iodepth_low" in of and issued % depth == 0:
            full = ends[at][-1]
        heapq.heappush(events, (max(now, due, paused, full), at, issued, paused))
    return area / span_s


FULL = [
    pytest.param(preset, marks=pytest.mark.full)
    for preset in ("sglang-hicache", "vllm-disk", "kvbm")
]


@pytest.mark.full
@pytest.mark.parametrize("preset", ["trtllm", *FULL])
def test_a_drawn_job_keeps_the_depth_of_its_trace_on_any_drive(tmp_path, preset):
    trace, sizes = (
        tmp_path / "t.parquet",
        ["gpu=128MiB", "nvme=1GiB", *["cpu=128MiB"] * (preset != "vllm-disk")],
    )
    small = [
        part for size in sizes for part in ("--set", "tiers." + size.replace("=", ".capacity="))
    ]
    run_cli("kvtrace", "gen", "--preset", preset, "--model", "tiny-1b", "--users", "4", "--duration", "1min",
            *small, "-o", trace)  # fmt: skip
    rows = pl.read_parquet(trace).filter(pl.col("op").is_in(["read", "write"]))
    rows = rows.filter(pl.col("tier") == pl.col("tier").max())
    ts, (length,) = rows["ts_ns"].to_numpy() / 1e9, rows["length_bytes"].unique()
    profile = distil_source(trace, "nvme", Limit(), tmp_path).profile
    job, mean_per_s = (
        stat_job(profile, JobOptions(version=FioVersion(3, 33))),
        len(ts) * length / (ts[-1] - ts[0]),
    )
    for times in (4, 8, 16):
        expected = in_trace(rows, length, times * mean_per_s)
        assert in_job(job, ts[-1] - ts[0], times * mean_per_s) == pytest.approx(
            expected, rel=0.25
        ), times
