"""TTFT and TPOT of single requests, output throughput and goodput, against arithmetic by hand."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest
from simulated import ONE_BYTE, preset_of, requests_of, simulate

import kvtrace as kt
from kvtrace.core.errors import ConfigError
from kvtrace.sim.service_level import ServiceLevel, parse_service_level
from kvtrace.sim.simulation import Load, Simulation

GPU = {
    "prefill_ns_per_token": 25,
    "decode_ns_per_token": 100,
    "decode_compute_ns": 60,
    "prefill_in_turn": True,
}


def test_times_of_requests_are_those_of_hand_arithmetic():
    # The first is computed until 100 and decodes alone, 100 ns a step. The second, computed until
    # 300, joins then: a step of both takes their computing, 120 ns. The first has done two steps by
    # 300, and ends with the third at 420; the second has done one then, and ends at 520. The third
    # has an answer of one token, which the prefill gives.
    requests = requests_of([(0, 4, 4, [1]), (200, 4, 3, [2]), (1000, 4, 1, [3])])
    simulation, *_ = simulate(preset_of(None, **GPU), Load(requests=requests))
    ttft_ns, tpot_ns = simulation.request_times()
    assert ttft_ns.tolist() == [100, 100, 100]
    assert tpot_ns.tolist() == [round((420 - 100) / 3), (520 - 300) // 2, -1]
    decode = simulation.stats().decode
    assert (decode.tokens, decode.generated_tokens, decode.requests) == (8, 8, 2)
    assert decode.time_per_token.p50_ns == round(320 / 3)
    assert decode.tokens_per_s == pytest.approx(8 / (1100 / 1e9))


def test_what_runs_at_the_end_has_generated_what_fits_in():
    # At 500 ns the first has its first token since 100, and has done four steps of 100 ns.
    requests = requests_of([(0, 4, 11, [1]), (500, 4, 3, [2])])
    load = Load(requests=requests, until_ns=501)
    simulation, *_ = simulate(preset_of(None, **GPU), load)
    decode = simulation.stats().decode
    assert (decode.tokens, decode.generated_tokens) == (0, 1 + 4)
    ttft_ns, tpot_ns = simulation.request_times()
    assert ttft_ns.tolist() == [100, 100]
    # Steps of 100 ns alone, of 120 ns together with the second's two.
    assert tpot_ns.tolist() == [(10 * 100 + 2 * 20) // 10, 120]


def test_goodput_counts_requests_within_both_limits():
    requests = requests_of([(0, 4, 4, [1]), (0, 400, 3, [2]), (20_000, 4, 1, [3])])
    preset = preset_of(None, **GPU)
    for level, good in (
        (ServiceLevel(ttft_ns=100), 2),
        (ServiceLevel(ttft_ns=99), 0),
        (ServiceLevel(tpot_ns=100), 3),
        (ServiceLevel(ttft_ns=100, tpot_ns=99), 1),
        (ServiceLevel(ttft_ns=10**9, tpot_ns=10**9), 3),
    ):
        with Simulation(
            preset, ONE_BYTE, Load(requests=requests), service_level=level
        ) as simulation:
            simulation.run(lambda _flush: None)
            stats = simulation.stats()
            end_ns = simulation.now_ns
        goodput = stats.goodput
        assert (goodput.requests, goodput.share) == (good, good / 3)
        assert goodput.requests_per_s == pytest.approx(good / (end_ns / 1e9))


def test_a_request_without_a_first_token_is_not_within_a_level():
    level = ServiceLevel(tpot_ns=50)
    goodput = level.goodput(np.array([-1, 10, 10]), np.array([-1, -1, 51]), 10**9)
    assert (goodput.requests, goodput.share, goodput.requests_per_s) == (1, 1 / 3, 1.0)
    nothing = level.goodput(np.array([], np.int64), np.array([], np.int64), 0)
    assert (nothing.share, nothing.requests_per_s) == (None, None)


@pytest.mark.parametrize("source", ["users", "rate", "cut"])
def test_the_requests_table_gives_the_summarys_figures(source):
    options = {
        "users": {"users": 12, "duration": "30s"},
        "rate": {"request_rate": 2, "duration": "40s"},
        "cut": {"users": 5, "max_requests": 30, "duration": "1h"},
    }[source]
    trace = kt.simulate(
        preset="lmcache-disk", gpu="h100", seed=3, slo="ttft=600ms,tpot=30ms", **options
    )
    table = trace.requests().collect()
    stats = trace.stats
    assert len(table) == stats.first_token.requests
    ttft_ns = sorted(table["first_token_ns"].drop_nulls().to_list())
    tpot_ns = sorted(table["time_per_token_ns"].drop_nulls().to_list())
    assert stats.first_token.with_cache.p50_ns == ttft_ns[math.ceil(len(ttft_ns) / 2) - 1]
    assert stats.decode.time_per_token.p50_ns == tpot_ns[math.ceil(len(tpot_ns) / 2) - 1]
    assert stats.decode.requests == len(tpot_ns)
    good = table.filter(
        (pl.col("first_token_ns") <= 600_000_000)
        & (pl.col("time_per_token_ns").fill_null(0) <= 30_000_000)
    )
    assert stats.goodput.requests == len(good)
    assert stats.goodput.share == len(good) / len(table)
    # Without NVMe and DRAM nothing is computed faster.
    assert stats.goodput.share_without_offload <= 1


def test_a_decode_step_is_no_faster_than_the_data_sheet():
    trace = kt.simulate(preset="lmcache-disk", gpu="h100", users=1, duration="60s")
    slowest = trace.requests().collect()["time_per_token_ns"].min()
    assert slowest >= 8.03e9 * 2 / 3.35e12 * 1e9


def test_nothing_that_takes_time_gives_no_times():
    trace = kt.simulate(preset="lmcache-disk", gpu="instant", users=2, duration="10s")
    assert "first_token_ns" not in trace.requests().collect().columns
    assert trace.stats.decode.time_per_token is None
    with pytest.raises(ConfigError, match="nothing takes time"):
        kt.simulate(preset="lmcache-disk", gpu="instant", users=2, duration="10s", slo="ttft=1s")


def test_a_service_level_is_read():
    assert parse_service_level("ttft=2s,tpot=50ms") == ServiceLevel(2 * 10**9, 50 * 10**6)
    assert parse_service_level(" tpot = 1ms , share = 95% ") == ServiceLevel(
        None, 10**6, share=0.95
    )


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=0s", "ttft=1s,ttft=2s", "itl=3ms", "share=90%", "ttft=1s,share=0"]
)
def test_a_wrong_service_level_is_refused(text):
    with pytest.raises(ConfigError):
        parse_service_level(text)
