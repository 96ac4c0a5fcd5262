"""The baseline of an offload: the same requests, simulated with GPU memory alone."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import polars as pl
import pytest

import kvtrace as kt
from kvtrace.core.errors import OutOfMemory
from kvtrace.core.overload import overload_note
from kvtrace.core.simulation_stats import Percentiles, PrefillStats, TimeToFirstToken
from kvtrace.sim.baseline import (
    LARGE_FLEET,
    SLOWER,
    slower_note,
    slower_percentile,
)
from kvtrace.sim.simulation import Simulation

BLOCK = 16
PREFILL_NS = 1_000_000
"""Time to compute a token, so that 160 tokens take 160 ms."""


def requests(count: int = 200, gap_ns: int = 200_000_000) -> kt.Requests:
    """Return `count` prompts of 10 blocks, of which each repeats the one five before it."""
    blocks = [[10 * (n % 5) + i for i in range(10)] for n in range(count)]
    return kt.Requests.from_polars(
        pl.DataFrame(
            {
                "arrival_ns": np.arange(count) * gap_ns,
                "input_tokens": [10 * BLOCK] * count,
                "output_tokens": [1] * count,
                "block_ids": blocks,
            }
        ),
        block_tokens=BLOCK,
    )


def simulate(read_bandwidth: str, **tiers: Any) -> kt.Trace:
    return kt.simulate(
        requests(),
        preset="vllm-fs",
        model="tiny-1b",
        tiers={
            # Not even two prompts fit in GPU memory, so none is there when it is repeated.
            "gpu": {"capacity": str(10 * 16 * 32768)},
            "cpu": {"capacity": "0"},
            "nvme": {"capacity": "1GiB", "read_bandwidth": read_bandwidth},
            **tiers,
        },
        knobs={"prefill_ns_per_token": PREFILL_NS, "decode_ns_per_token": 0},
    )


@pytest.mark.parametrize(("bandwidth", "is_slower"), [("10MB", True), ("10GB", False)])
def test_the_baseline_computes_every_prompt(bandwidth: str, is_slower: bool) -> None:
    """Without offload each prompt takes 160 ms, whatever the drive does."""
    trace = simulate(bandwidth)
    assert trace.stats is not None
    first_token = trace.stats.first_token
    assert first_token is not None
    assert first_token.without_offload is not None
    assert first_token.without_offload.p50_ns == 10 * BLOCK * PREFILL_NS
    assert first_token.without_offload.p99_ns == 10 * BLOCK * PREFILL_NS
    assert (first_token.with_cache.p50_ns > 10 * BLOCK * PREFILL_NS) == is_slower
    assert any(note.startswith(SLOWER) for note in trace.metadata.notes) == is_slower


def test_a_baseline_without_enough_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Simulation.run

    def run_short_of_memory(simulation: Simulation, *arguments: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise OutOfMemory("for the test")
        run(simulation, *arguments)

    monkeypatch.setattr(Simulation, "run", run_short_of_memory)
    stats = simulate("10GB").stats
    assert stats is not None
    assert stats.first_token is not None
    assert stats.first_token.without_offload is None
    assert stats.first_token.with_cache.p50_ns > 0


def test_the_baseline_is_a_simulation_without_other_tiers() -> None:
    alone = simulate("10MB", nvme={"capacity": "0"})
    assert alone.stats is not None
    assert alone.stats.first_token is not None
    with_drive = simulate("10MB").stats
    assert with_drive is not None
    assert with_drive.first_token is not None
    assert with_drive.first_token.without_offload == alone.stats.first_token.with_cache
    # There is nothing to compare where no tier but GPU memory holds anything.
    assert alone.stats.first_token.without_offload is None


def test_without_compute_times_there_is_no_baseline() -> None:
    trace = kt.simulate(
        preset="vllm-fs", users=2, duration="5s", model="tiny-1b", gpu="instant",
        tiers={"nvme": {"read_bandwidth": "1GB"}},
    )  # fmt: skip
    assert trace.stats is not None
    assert trace.stats.first_token is not None
    assert trace.stats.first_token.without_offload is None


@pytest.mark.parametrize(("gap_ms", "needed_nodes"), [(100, 2), (60, 3), (200, None)])
def test_a_load_that_the_gpu_cannot_compute_is_said(gap_ms: int, needed_nodes: int | None) -> None:
    """Each prompt takes 160 ms, and arrives `gap_ms` after the one before it."""
    count = 200
    trace = kt.simulate(
        requests(count, gap_ms * 1_000_000),
        preset="vllm-fs",
        model="tiny-1b",
        tiers={name: {"capacity": "0"} for name in ("gpu", "cpu", "nvme")},
        knobs={"prefill_ns_per_token": PREFILL_NS, "decode_ns_per_token": 0},
    )
    assert trace.stats is not None
    prefill = trace.stats.prefill
    assert prefill.load == pytest.approx(160 * count / (gap_ms * (count - 1)))
    note = overload_note(prefill)
    assert (note is None) == (needed_nodes is None)
    assert note is None or f"{needed_nodes} nodes" in note
    assert prefill.needed_nodes == (needed_nodes or 1)
    assert overload_note(PrefillStats(9, None)) is None


@pytest.mark.parametrize("preset", [preset.name for preset in kt.presets()])
def test_every_preset_has_a_baseline(preset: str) -> None:
    if preset == "checkpoint":
        pytest.skip("a training run has no requests")
    trace = kt.simulate(preset=preset, users=3, duration="10s", model="tiny-1b", gpu="h100")
    assert trace.stats is not None
    first_token = trace.stats.first_token
    assert first_token is not None
    has_others = any(
        tier.capacity_bytes != 0 for tier in trace.metadata.tiers if tier.name != "gpu"
    )
    assert (first_token.without_offload is not None) == has_others


@pytest.mark.parametrize(
    ("with_ns", "without_ns", "is_said"),
    [((200, 300), (100, 300), True), ((100, 400), (100, 300), True), ((104, 300), (100, 300), False),
     ((None, None), (100, 300), False)],
)  # fmt: skip
def test_a_longer_ttft_is_said_at_p50_and_p99(
    with_ns: tuple[int | None, int | None], without_ns: tuple[int, int], is_said: bool
) -> None:
    def percentiles(p50_ns: int | None, p99_ns: int | None) -> Percentiles:
        return Percentiles(p50_ns, None, p99_ns, None, None)

    times = percentiles(*with_ns), percentiles(*without_ns)
    assert (slower_note(TimeToFirstToken(9, *times, 9)) is not None) == is_said
    # Users that are answered sooner send more requests, which then wait for each other.
    assert slower_note(TimeToFirstToken(9, *times, 8)) is None


def test_fewer_requests_in_the_same_time_are_slower() -> None:
    """Users that wait for answers: 38 requests in place of 130, most of which have short TTFT."""
    trace = kt.simulate(
        preset="lmcache-disk",
        model="tiny-1b",
        users=8,
        duration="30s",
        seed=3,
        tiers={
            "gpu": {"capacity": "256MiB"},
            "cpu": {"capacity": "2GiB"},
            "nvme": {"capacity": "100GB", "read_bandwidth": "20MB", "write_bandwidth": "20MB"},
        },
    )
    assert trace.stats is not None
    first_token = trace.stats.first_token
    assert first_token is not None
    assert first_token.without_offload is not None
    assert first_token.with_cache.p50_ns < first_token.without_offload.p50_ns
    assert 2 * first_token.requests < first_token.requests_without_offload
    note = slower_note(first_token)
    assert note is not None
    assert f"{first_token.requests:,} requests" in note
    assert note in trace.metadata.notes


@pytest.mark.parametrize(
    ("requests", "slower"), [(100, None), (96, None), (94, "requests"), (40, "requests")]
)
def test_five_per_cent_fewer_requests_are_slower(requests: int, slower: str | None) -> None:
    times = Percentiles(p50_ns=100, p95_ns=None, p99_ns=None, p99_9_ns=None, p99_99_ns=None)
    assert slower_percentile(lambda name: getattr(times, name), requests, times, 100) == slower


@pytest.mark.parametrize(("nodes", "most_at_once"), [(2, 2), (LARGE_FLEET, 1)])
def test_a_large_fleet_is_simulated_after_its_baseline(
    monkeypatch: pytest.MonkeyPatch, nodes: int, most_at_once: int
) -> None:
    set_up, run, close = Simulation.__init__, Simulation.run, Simulation.close
    open_simulations = set[int]()
    counts: list[int] = []
    both_are_open = threading.Event()

    def note_open(simulation: Simulation, *arguments: Any, **options: Any) -> None:
        set_up(simulation, *arguments, **options)
        open_simulations.add(id(simulation))
        counts.append(len(open_simulations))
        if len(counts) == 2:
            both_are_open.set()

    def note_close(simulation: Simulation) -> None:
        open_simulations.discard(id(simulation))
        close(simulation)

    def run_beside_the_other(simulation: Simulation, *arguments: Any) -> None:
        assert most_at_once == 1 or both_are_open.wait(60)
        run(simulation, *arguments)

    monkeypatch.setattr(Simulation, "__init__", note_open)
    monkeypatch.setattr(Simulation, "close", note_close)
    monkeypatch.setattr(Simulation, "run", run_beside_the_other)
    trace = kt.simulate(
        preset="vllm-fs", users=40, duration="5s", model="tiny-1b", gpu="h100", nodes=nodes
    )
    assert max(counts) == most_at_once
    assert trace.stats is not None
    assert trace.stats.first_token is not None
    assert trace.stats.first_token.without_offload is not None
