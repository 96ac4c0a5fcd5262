"""Figures against values worked by hand; what cannot be known is null."""

from __future__ import annotations

import numpy as np
import pytest

from kvreplay.engine.job import Record
from kvreplay.plan.pacing import ClosedLoop, OpenLoop, choose
from kvreplay.result.figures import distribution, figures, pace, percent
from kvreplay.tiers.ram import RamTier
from kvtrace.core.errors import ConfigError

MS = 1_000_000


def test_percentiles_are_nearest_rank_of_all_values() -> None:
    values = np.arange(1, 10_001)[::-1]
    d = distribution(values)
    assert (d.p50_ns, d.p95_ns, d.p99_ns, d.p99_9_ns, d.p99_99_ns) == (5000, 9500, 9900, 9990, 9999)
    assert (d.count, d.mean_ns, d.max_ns) == (10_000, 5000.5, 10_000)


@pytest.mark.parametrize(
    ("count", "known"),
    [(0, 0), (1, 0), (2, 1), (19, 1), (20, 2), (99, 2), (100, 3), (999, 3), (1000, 4), (9999, 4), (10_000, 5)],
)
def test_a_percentile_needs_enough_samples(count: int, known: int) -> None:
    d = distribution(np.arange(count))
    found = [d.p50_ns, d.p95_ns, d.p99_ns, d.p99_9_ns, d.p99_99_ns]
    assert [value is not None for value in found] == [True] * known + [False] * (5 - known)
    assert (d.max_ns is None) == (count == 0)


def planned(count: int) -> object:
    class Rows:
        op = np.array([0] * count, np.int8)
        tier = np.zeros(count, np.int8)
        length = np.full(count, 1000, np.int64)
        offset = start = np.zeros(count, np.int64)

    return Rows()


def test_bandwidth_and_depth_are_over_the_span_of_the_operations() -> None:
    # Three reads of 1000 bytes: 0-2 s, 1-3 s, 3-4 s; the fourth failed and counts for nothing but an error.
    second = 10**9
    submitted, completed = np.array([0, 1, 3, 2]) * second, np.array([2, 3, 4, -1]) * second
    record = Record(submitted, completed, np.array([0, 0, 0, 1], np.int8), None)
    (read,) = figures(planned(4), record, None, [RamTier("cpu", 4096)])  # type: ignore[arg-type]
    assert (read.operations, read.errors, read.planned, read.bytes) == (3, 1, 4, 3000)
    assert (read.span_ns, read.bandwidth_bytes_per_s, read.operations_per_s) == (4 * second, 750.0, 0.75)
    # The second begins before the first has ended, the third as the second ends.
    assert (read.in_flight_mean, read.in_flight_max) == (5 / 4, 2)
    assert (read.latency.mean_ns, read.latency.max_ns) == (5 / 3 * second, 2 * second)
    assert read.lateness is None


def test_lateness_is_judged_with_and_without_waits() -> None:
    due = np.array([0, 0, 10, 10]) * MS
    submitted = np.array([0, 5, 10, 13]) * MS
    # The second waited until 5 ms for an earlier operation; the last was late by itself; one was never sent.
    ready = np.array([0, 5, 0, 0]) * MS
    record = Record(np.append(submitted, -1), np.full(5, -1), np.zeros(5, np.int8), np.append(ready, 0))
    judged = pace(record, np.append(due, 0))
    assert judged is not None
    assert (judged.late_fraction, judged.late_by_itself_fraction, judged.kept_pace) == (0.5, 0.25, False)
    assert judged.lateness.max_ns == 5 * MS
    assert pace(record, None) is None


def test_deadlines_are_absolute() -> None:
    ts = np.array([0, 7, 1_000_000_000_000])
    assert OpenLoop(1.0).due_ns(ts).tolist() == ts.tolist()
    assert OpenLoop(2.0).due_ns(ts).tolist() == [0, 3, 500_000_000_000]
    assert OpenLoop(0.5).due_ns(ts).tolist() == [0, 14, 2_000_000_000_000]
    assert ClosedLoop().due_ns(ts) is None


def test_a_speed_means_an_open_loop() -> None:
    assert choose(speed=None, as_fast_as_possible=False).name == "closed"
    assert choose(speed=3.0, as_fast_as_possible=False).name == "open"
    for speed in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError):
            choose(speed=speed, as_fast_as_possible=False)


def test_a_share_never_rounds_to_none_or_all() -> None:
    shown = [percent(x) for x in (0, 0.0001, 0.003, 0.5, 0.9999, 1)]
    assert shown == ["0.0 %", "< 0.1 %", "0.3 %", "50.0 %", "> 99.9 %", "100.0 %"]
