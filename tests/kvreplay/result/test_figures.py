"""Figures against values worked by hand; what cannot be known is null."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from phrases import Saying, shows
from taken import counted, rows_of

from kvreplay.engine.job import Driven, ThreadUse
from kvreplay.plan.pacing import Pacer, choose
from kvreplay.plan.row_ring import NOT_DONE
from kvreplay.result.cause import is_late, pace, percent
from kvreplay.result.verdict import verdict
from kvreplay.tiers.ram import RamTier
from kvtrace.core.errors import ConfigError
from kvtrace.core.metrics import recorder
from kvtrace.core.metrics.distribution import EXACT_VALUES
from kvtrace.core.metrics.distribution import distribution_of as distribution
from kvtrace.core.schema import MOST

MS = 1_000_000
TIERS = [RamTier("cpu", 4096)]


class Uncopied(RamTier):
    """A tier whose operations are submitted."""

    is_copied = False


def test_percentiles_are_nearest_rank_of_all_values() -> None:
    values = np.arange(1, 10_001)[::-1]
    d = distribution(values)
    assert (d.p50_ns, d.p95_ns, d.p99_ns, d.p99_9_ns, d.p99_99_ns) == (5000, 9500, 9900, 9990, 9999)
    assert (d.count, d.mean_ns, d.max_ns) == (10_000, 5000.5, 10_000)


@pytest.mark.parametrize(
    ("count", "known"),
    [
        (0, 0),
        (1, 0),
        (2, 1),
        (19, 1),
        (20, 2),
        (99, 2),
        (100, 3),
        (999, 3),
        (1000, 4),
        (9999, 4),
        (10_000, 5),
    ],
)
def test_a_percentile_needs_enough_samples(count: int, known: int) -> None:
    d = distribution(np.arange(count))
    found = [d.p50_ns, d.p95_ns, d.p99_ns, d.p99_9_ns, d.p99_99_ns]
    assert [value is not None for value in found] == [True] * known + [False] * (5 - known)
    assert (d.max_ns is None) == (count == 0)


def test_bandwidth_and_depth_are_over_the_operations_span() -> None:
    # Three reads of 1000 bytes: 0-2 s, 1-3 s, 3-4 s; the fourth failed and counts for nothing but
    # an error.
    second = 10**9
    submitted, completed = np.array([0, 1, 3, 2]) * second, np.array([2, 3, 4, 0]) * second
    completed[3] = NOT_DONE
    rows = rows_of(4, submitted_ns=submitted, completed_ns=completed, outcome=[0, 0, 0, 1])
    (read,) = counted(rows, TIERS).figures()
    assert (read.operations, read.errors, read.planned, read.bytes) == (3, 1, 4, 3000)
    assert (read.span_ns, read.bandwidth_bytes_per_s, read.operations_per_s) == (
        4 * second,
        750.0,
        0.75,
    )
    # The second begins before the first has ended, the third as the second ends.
    assert (read.in_flight_mean, read.in_flight_max) == (5 / 4, 2)
    assert (read.latency.mean_ns, read.latency.max_ns) == (5 / 3 * second, 2 * second)
    assert read.lateness is None


def test_lateness_is_judged_with_and_without_waits() -> None:
    due = np.array([0, 0, 10, 10]) * MS
    submitted = np.array([0, 5, 10, 13]) * MS
    # The second waited until 5 ms for an earlier operation; the last was late by itself; one was
    # never sent.
    ready = np.array([0, 5, 0, 0]) * MS
    known = {
        "submitted_ns": np.append(submitted, -1),
        "outcome": 1,
        "ready_ns": np.append(ready, 0),
    }
    judged = pace(counted(rows_of(5, due_ns=np.append(due, 0), **known), TIERS))
    assert judged is not None
    assert (judged.late_fraction, judged.late_by_itself_fraction, judged.kept_pace) == (
        0.5,
        0.25,
        False,
    )
    assert judged.lateness.max_ns == 5 * MS
    assert pace(counted(rows_of(5, **known), TIERS)) is None


def used(kind: str = "ring", **known: int) -> ThreadUse:
    """Return what a thread did that had nothing to do but what is known."""
    use = ThreadUse(**known)
    use.kind = kind
    return use


def driven(
    wall_ns: int, *, depth_limited_ns: int = 0, kind: str = "copier", **known: int
) -> Driven:
    """Return how a job went of one thread, of which something is known.

    The rest of the time it ran in user mode.
    """
    known = {"user_ns": wall_ns} | known
    return Driven(
        wall_ns, 0, None, None, 0, [used(kind, **known)], depth_limited_ns=depth_limited_ns
    )


def loop_of(submitted: list[int], completed: list[int], ready: list[int]) -> dict[str, Any]:
    times = [np.array(ms, np.int64) * MS for ms in (submitted, completed, ready)]
    return {"submitted_ns": times[0], "completed_ns": times[1], "ready_ns": times[2], "outcome": 0}


DUE = np.arange(5) * 10 * MS
"""100 operations a second."""
BEHIND: dict[str, tuple[dict[str, Any], Driven]] = {
    # The first takes 5 ms, the others queue up in the drive.
    "drive": (loop_of([0, 10, 20, 30, 40], [5, 100, 200, 300, 400], [0] * 5), driven(400 * MS, kind="ring")),
    # Each takes 5 ms and waits for the one before, which a stage of 100 ms separates from it.
    "dependencies": (loop_of([0, 100, 200, 300, 400], [5, 105, 205, 305, 405], [0, 100, 200, 300, 400]),
                     driven(405 * MS)),
    # The same, nothing to wait for but the queue, the data or us.
    **{
        cause: (loop_of([0, 100, 200, 300, 400], [5, 105, 205, 305, 405], [0] * 5), driven(405 * MS, **did))
        for cause, did in {
            "queue": {"kind": "ring", "depth_limited_ns": 380 * MS},
            "block queue": {"kind": "ring", "blocked_ns": 380 * MS, "enter_ns": 390 * MS, "user_ns": 15 * MS},
            "data": {"kind": "ring", "making_ns": 380 * MS},
            # Of a thread that was ready to run for most of the time, the clock said that it made
            # data.
            "processor": {"kind": "ring", "making_ns": 380 * MS, "user_ns": 20 * MS, "waited_ns": 385 * MS},
            "submission": {"kind": "ring"},
            "memory": {"kind": "copier", "touching_ns": 380 * MS, "system_ns": 380 * MS, "user_ns": 25 * MS},
            "copying": {"kind": "copier", "copying_ns": 380 * MS},
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("cause", BEHIND)
def test_a_run_whose_end_slips_fell_behind_whatever_the_cause(cause: str) -> None:
    record, how = BEHIND[cause]
    tiers = TIERS if how.of("copier") else [Uncopied("nvme", 4096)]
    found = pace(counted(rows_of(5, due_ns=DUE, **record), tiers), how)
    assert found is not None
    assert (found.kept_pace, found.cause) == (False, cause)
    # One operation each 10 ms was asked for; the last is late by more than 300 ms.
    assert found.offered_per_s == 100
    assert found.delivered_per_s is not None
    assert found.delivered_per_s < 16.1
    assert found.response is not None
    assert found.response.max_ns == int((record["completed_ns"] - DUE).max())
    assert sum(found.causes.values()) == pytest.approx(1)


def test_an_end_that_takes_its_usual_time_has_not_slipped() -> None:
    # Each takes 100 ms, the last as well: 100 op/s were asked for and delivered.
    record = loop_of([0, 10, 20, 30, 40], [100, 110, 120, 130, 140], [0] * 5)
    found = pace(counted(rows_of(5, due_ns=DUE, **record), TIERS), driven(140 * MS))
    assert found is not None
    assert (found.kept_pace, found.cause, found.end_late_ns, found.delivered_per_s) == (
        True,
        None,
        0,
        100,
    )


@pytest.mark.parametrize("limit", [EXACT_VALUES, 100])
def test_a_growing_queue_does_not_raise_the_rate(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    # 1,000 operations due within 10 ms, of which one ends each millisecond: 1,000 a second. The 50
    # quickest took up to 50 ms: less that, it would be 1,052.
    monkeypatch.setattr(recorder, "EXACT_VALUES", limit)
    due_ms = np.arange(1000) // 100
    record = loop_of(due_ms, np.arange(1, 1001), [0] * 1000)
    found = pace(counted(rows_of(1000, due_ns=due_ms * MS, **record), TIERS))
    assert found is not None
    assert found.delivered_per_s == pytest.approx(1000 / 0.999, rel=0.0001)


@pytest.mark.parametrize(("took_ms", "has_lost"), [(100, False), (900, False), (1250, True)])
def test_bursts_done_before_the_next_met_their_schedules_rate(
    took_ms: int, *, has_lost: bool
) -> None:
    # Five bursts of four a second apart, each due within 0.3 ms, one operation after the other: 4
    # op/s.
    burst, at = np.divmod(np.arange(20), 4)
    due = burst * 1000 * MS + at * MS // 10
    begin = burst * max(1000, took_ms) + at * took_ms // 4 + 1
    record = loop_of(begin, begin + took_ms // 4, [0] * 20)
    found = pace(counted(rows_of(20, due_ns=due, **record), TIERS))
    assert found is not None
    assert found.offered_per_s == pytest.approx(4, rel=0.001)
    # Less what the last operation takes.
    assert found.delivered_per_s == pytest.approx(20 / max(5, begin[-1] / 1000), rel=0.001)
    assert found.end_late_ns == begin[-1] * MS - due[-1]
    # The last is late, and yet no burst was there when the next came.
    assert is_late(found.end_late_ns, found.offered_per_s, found.delivered_per_s) is has_lost


def test_what_was_due_at_once_is_delivered_in_all_of_its_time() -> None:
    record = loop_of([0, 0, 0, 0, 0], [96, 97, 98, 99, 100], [0] * 5)
    found = pace(
        counted(rows_of(5, due_ns=np.zeros(5, np.int64), **record), TIERS), driven(100 * MS)
    )
    assert found is not None
    assert (found.offered_per_s, found.delivered_per_s) == (None, 50)


def test_a_load_that_was_reached_is_held_back_by_nothing() -> None:
    record = loop_of([0, 10, 20, 30, 40], [5, 15, 25, 35, 45], [0] * 5)
    how: dict[str, Any] = {"queue_depth": 8, "because": "--queue-depth", "device_io": {}}
    kept = counted(rows_of(5, due_ns=DUE, **record), TIERS)
    found = verdict(kept, driven(45 * MS), pace(kept, driven(45 * MS)), **how)
    assert shows(found.sentence, "cpu … 100 kB/s … 100.0 %")
    assert (found.has_reached, found.cause, found.reason, found.tier) == (True, None, None, "cpu")
    # The same asked twice as fast.
    behind = counted(rows_of(5, due_ns=DUE // 2, **record), TIERS)
    found = verdict(
        behind, driven(45 * MS), pace(behind, driven(45 * MS, depth_limited_ns=20 * MS)), **how
    )
    assert shows(
        found.sentence, "FELL BEHIND: cpu … 125 … 200 kB/s … 62.5 % … 20.0 ms … 60.0 % … 1 ms"
    )
    found = verdict(counted(rows_of(1, due_ns=DUE[:1]), TIERS), None, None, **how)
    assert (found.sentence, found.cause, found.tier) == (Saying("nothing completed"), None, None)


def test_an_operation_is_late_by_its_response_time() -> None:
    # 400 reads, of which the quickest take 1 ms: on time is up to 1 ms more than twice that.
    due = np.arange(400) * 10 * MS
    response = np.full(400, 1 * MS)
    response[40:80] = 3 * MS - 50_000
    response[80:90] = 3 * MS + 50_000
    known: dict[str, Any] = {"due_ns": due, "submitted_ns": due, "ready_ns": 0, "outcome": 0}
    for later_ns, late in ((0, 0.025), (10**9, 1.0)):
        # Submitted when due, or all of them a second later: what waits before submission is as
        # late.
        how = known | {"submitted_ns": due + later_ns, "completed_ns": due + later_ns + response}
        found = pace(counted(rows_of(400, **how), TIERS))
        assert found is not None
        assert found.on_time_fraction == pytest.approx(1 - late, abs=1e-9)
        assert not found.kept_pace
        assert found.unhindered_share == pytest.approx(
            400 * MS / (response + later_ns).sum(), rel=0.01
        )
    how = known | {"completed_ns": due + np.minimum(response, 3 * MS - 50_000)}
    found = pace(counted(rows_of(400, **how), TIERS))
    assert found is not None
    assert (found.kept_pace, found.on_time_fraction, found.cause) == (True, 1, None)


def test_long_operations_have_longer_to_be_on_time() -> None:
    # Of 64 KiB in 0.1 ms, and of 64 MiB in 50 ms: neither is late.
    lengths = np.where(np.arange(200) % 2, 64 << 20, 64 << 10)
    due = np.arange(200) * 100 * MS
    service = np.where(lengths > MS, 50 * MS, MS // 10)
    known: dict[str, Any] = {
        "due_ns": due,
        "submitted_ns": due,
        "ready_ns": 0,
        "outcome": 0,
        "length_bytes": lengths,
    }
    found = pace(counted(rows_of(200, completed_ns=due + service, **known), TIERS))
    assert found is not None
    assert (found.kept_pace, found.on_time_fraction) == (True, 1)
    late = np.where(np.arange(200) == 6, 2 * MS, 0)
    found = pace(counted(rows_of(200, completed_ns=due + service + late, **known), TIERS))
    assert found is not None
    assert found.on_time_fraction == pytest.approx(0.995)


def test_response_times_count_from_when_operations_were_due() -> None:
    record = loop_of([5, 20], [9, 40], [0, 0])
    (read,) = counted(rows_of(2, due_ns=np.array([0, 10]) * MS, **record), TIERS).figures()
    assert read.response is not None
    assert (read.latency.max_ns, read.response.max_ns, read.judged) == (
        20 * MS,
        30 * MS,
        read.response,
    )
    (closed,) = counted(rows_of(2, **record), TIERS).figures()
    assert (closed.response, closed.judged) == (None, closed.latency)


def test_deadlines_are_absolute() -> None:
    ts = np.array([0, 7, 1_000_000_000_000])
    assert Pacer(1.0).due_ns(ts).tolist() == ts.tolist()
    assert Pacer(2.0).due_ns(ts).tolist() == [0, 3, 500_000_000_000]
    assert Pacer(0.5).due_ns(ts).tolist() == [0, 14, 2_000_000_000_000]
    assert Pacer().due_ns(ts) is None
    # What no run comes to is due as late as can be, not at once.
    assert Pacer(2.0**-30).due_ns(ts).tolist() == [0, 7 << 30, MOST]


def test_a_speed_means_an_open_loop() -> None:
    assert choose(speed=None, as_fast_as_possible=False).name == "closed"
    assert choose(speed=3.0, as_fast_as_possible=False).name == "open"
    for speed in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError):
            choose(speed=speed, as_fast_as_possible=False)


def test_a_share_never_rounds_to_none_or_all() -> None:
    shown = [percent(x) for x in (0, 0.0001, 0.003, 0.5, 0.9999, 1)]
    assert shown == ["0.0 %", "< 0.1 %", "0.3 %", "50.0 %", "> 99.9 %", "100.0 %"]
