"""A study's configurations whose loads are slower than computing are named, and never the best."""

from __future__ import annotations

import kvtrace as kt
from kvtrace.core.simulation_stats import PrefillStats
from kvtrace.sim.baseline import overload_note


def test_a_slow_drive_is_marked_and_is_not_the_best():
    base = {"preset": "sglang-hicache", "request-rate": "0.5/s", "duration": "120s", "seed": 3}
    base |= {"tiers.gpu.capacity": "4GiB", "tiers.cpu.capacity": "4GiB"}
    speeds = ["50MB", "20GB"]
    answer = kt.study({"base": base, "grid": {"tiers.nvme.read_bandwidth": speeds}})
    slow, fast = sorted(
        answer.findings.candidates,
        key=lambda one: speeds.index(one.knobs["tiers.nvme.read_bandwidth"]),
    )
    times = {}
    for candidate in (slow, fast):
        first_token = candidate.rows[0].figures.first_token
        knob = candidate.knobs["tiers.nvme.read_bandwidth"]
        trace = kt.simulate(
            preset="sglang-hicache", request_rate="0.5/s", duration="120s", seed=3,
            tiers={
                "gpu": {"capacity": "4GiB"},
                "cpu": {"capacity": "4GiB"},
                "nvme": {"read_bandwidth": knob},
            },
        )  # fmt: skip
        assert first_token == trace.stats.first_token
        times[knob] = first_token
    assert times["50MB"].with_cache.p50_ns > 1.05 * times["50MB"].without_offload.p50_ns
    assert not slow.is_working
    assert fast.is_working
    assert answer.best is fast
    [table, *_] = answer.document().chapters[0].tables
    names = [column.name for column in table.columns]
    marks = {row[names.index("works")] for row in table.rows}
    assert any("slower than computing" in str(mark) for mark in marks)


def test_a_closed_loop_that_waits_for_minutes_is_overloaded():
    assert overload_note(PrefillStats(requests=9, mean_wait_ns=3600 * 10**9)).startswith("GPU OVER")
    assert overload_note(PrefillStats(requests=9, mean_wait_ns=10**9)) is None
    assert overload_note(PrefillStats(requests=9, mean_wait_ns=None)) is None
