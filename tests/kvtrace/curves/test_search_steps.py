"""How few full simulations a search takes, and that its answer is nearly the least all the same."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import kvtrace as kt
from kvtrace.curves.points import Stack

OPTIONS = {
    "model": "tiny-1b",
    "tiers": {"gpu": {"capacity": "4MiB"}},
    "knobs": {"chunk_tokens": 16},
}
TARGET = 0.35
TOLERANCE = 1.02
"""Largest ratio of an answer to a capacity that misses the target."""


def requests_of(seed, blocks):
    """Return prompts of popular prefixes of up to 12 * `blocks` blocks, and blocks of their own."""
    rng = np.random.default_rng(seed)
    rows, first = [], 1000 * blocks
    for n in range(300):
        prefix = int(rng.zipf(1.2)) % 30
        shared, own = (int(size) * blocks for size in (rng.integers(1, 12), rng.integers(0, 6)))
        ids = [prefix * 20 * blocks + k for k in range(shared)] + [first + k for k in range(own)]
        first += own
        rows.append((n * 10**9, 16 * len(ids), 1, ids))
    names = ("arrival_ns", "input_tokens", "output_tokens", "block_ids")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    return kt.Requests.from_polars(pl.DataFrame(columns), block_tokens=16)


@pytest.fixture
def simulated(monkeypatch):
    """Return the list of the points that are simulated in full from now on."""
    points, simulate = [], Stack.simulate

    def noted(stack, capacities):
        points.append(simulate(stack, capacities))
        return points[-1]

    monkeypatch.setattr(Stack, "simulate", noted)
    return points


def is_met(point):
    return point.hit_ratio >= TARGET and not point.stalled_requests


@pytest.mark.parametrize("seed", range(2))
def test_what_misses_next_to_an_answer_is_simulated(seed, simulated):
    answer = kt.size(
        requests_of(seed, 40), preset="vllm-fs", target_hit=TARGET, sample=0.2, **OPTIONS
    )
    assert any(point.sampling_rate < 1 for point in answer.sizing.points)
    assert is_met(answer.chosen)
    dram, nvme = answer.capacities["dram"], answer.capacities["nvme"]
    beside = [point for point in simulated if point.capacities["dram"] == dram]
    smaller = [point for point in beside if point.capacities["nvme"] < nvme]
    # A robust answer may have more than it needs itself; its neighbours need that.
    if answer.sizing.fragile is None:
        assert not any(map(is_met, smaller))
        assert max(point.capacities["nvme"] for point in smaller) * TOLERANCE >= nvme


@pytest.mark.parametrize("seed", [1, 3])
def test_the_least_dram_without_stalls_takes_few_steps(seed, simulated):
    # Up to 14 capacities of DRAM were simulated to find where requests begin to stall.
    answer = kt.size(requests_of(seed, 4), preset="lmcache-disk", target_hit=TARGET, **OPTIONS)
    assert is_met(answer.chosen)
    assert answer.capacities["dram"] <= TOLERANCE * answer.ceiling.largest_load_bytes
    grid = {point.capacities["dram"] for point in answer.sizing.points}
    nvme = {point.capacities["nvme"] for point in answer.sizing.points if point.capacities["dram"]}
    steps = [
        point
        for point in simulated
        if point.capacities["dram"] not in grid and point.capacities["nvme"] in nvme
    ]
    assert len(steps) <= 8
