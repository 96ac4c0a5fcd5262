"""A study's configurations whose loads are slower than computing are named, and never the best."""

from __future__ import annotations

from types import SimpleNamespace

from phrases import shows

import kvtrace as kt
from kvtrace.core.overload import overload_note
from kvtrace.core.simulation_stats import Percentiles, PrefillStats, TimeToFirstToken
from kvtrace.curves.size import Target
from kvtrace.sim.service_level import parse_service_level
from kvtrace.studies.plan import _nearest_figures


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


def test_users_who_wait_for_a_place_are_an_overload():
    def waits(with_s: float, without_s: float, for_gpu_s: float = 29) -> bool:
        times = [
            dict.fromkeys(Percentiles.__struct_fields__, s * 10**9) for s in (with_s, without_s)
        ]
        first = TimeToFirstToken(3132, Percentiles(**times[0]), Percentiles(**times[1]), 3132)
        return overload_note(PrefillStats(161, int(for_gpu_s * 10**9)), first) is not None

    assert waits(693, 694)
    assert not waits(20, 694)  # the offload makes them wait less
    assert not waits(693, 20)  # it makes them wait more, which is another warning
    assert not waits(90, 90, for_gpu_s=2)  # one long prompt at a time
    # A log whose requests find no GPU memory, though computing takes an eighth of the time.
    assert overload_note(PrefillStats(9, 103 * 10**9, load=0.127, needed_nodes=1)) is not None
    assert overload_note(PrefillStats(9, 2 * 10**9, load=0.9, needed_nodes=1)) is None


def test_what_misses_is_named_in_the_terms_of_the_target():
    def fleet(hits: float, p99_s: float, goodput: float) -> SimpleNamespace:
        return SimpleNamespace(
            hit_ratio=hits, first_token_ns=lambda _: p99_s * 10**9, goodput_share=goodput
        )

    fleets = [fleet(0.5, 3, 0.7), fleet(0.4, 2.5, 0.8)]
    level = parse_service_level("ttft=2s")
    assert _nearest_figures(Target(hit_ratio=0.6), fleets) == "the highest hit rate is 50.0 %"
    assert shows(
        _nearest_figures(Target(first_token=("p99_ns", 2 * 10**9)), fleets), "p99 … 2.50 s"
    )
    assert shows(_nearest_figures(Target(service_level=level), fleets), "80.0 %")
