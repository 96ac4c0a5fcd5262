"""A priced answer of `size`, against the answer without prices and a brute force."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import kvtrace as kt

MODEL = "tiny-1b"
OPTIONS = {"model": MODEL, "tiers": {"gpu": {"capacity": "4MiB"}}, "knobs": {"chunk_tokens": 16}}
TARGET = 0.35
PRICES = [(4.0, 0.1), (1.0, 1.0), (20.0, 0.35)]
"""Of a GiB of DRAM and of NVMe."""
LADDER = [0.0, *np.geomspace(1 / 200, 1.0, 24)]


def requests_of(seed, blocks=1):
    """Return prompts of popular prefixes, some of which come back late; `blocks` times as long."""
    rng = np.random.default_rng(seed)
    rows, first = [], 1000 * blocks
    for n in range(150):
        prefix = int(rng.zipf(1.3)) % 12
        shared, own = (int(size) * blocks for size in (rng.integers(1, 12), rng.integers(0, 6)))
        ids = [prefix * 20 * blocks + k for k in range(shared)] + [first + k for k in range(own)]
        first += own
        rows.append((n * 10**9, 16 * len(ids), 1, ids))
    names = ("arrival_ns", "input_tokens", "output_tokens", "block_ids")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    return kt.Requests.from_polars(pl.DataFrame(columns), block_tokens=16)


def price_of(capacities, dram_price, nvme_price):
    return (capacities["dram"] * dram_price + capacities["nvme"] * nvme_price) / 2**30


@pytest.mark.parametrize("prices", PRICES)
@pytest.mark.parametrize("preset", ["vllm-fs", "lmcache-disk"])
@pytest.mark.parametrize("seed", range(4))
def test_a_priced_answer_is_not_dearer_than_without_prices(seed, preset, prices):
    requests = requests_of(seed)
    plain = kt.size(requests, preset=preset, target_hit=TARGET, **OPTIONS)
    priced = kt.size(
        requests,
        preset=preset,
        target_hit=TARGET,
        prices=dict(zip(("dram", "nvme"), prices, strict=True)),
        **OPTIONS,
    )
    assert priced.chosen.hit_ratio >= TARGET
    assert priced.chosen.price == pytest.approx(price_of(priced.capacities, *prices))
    assert priced.chosen.price <= price_of(plain.capacities, *prices) * (1 + 1e-9)


@pytest.mark.parametrize(("preset", "seed", "target"), [
    ("vllm-fs", 4, 0.1), ("vllm-fs", 4, 0.5), ("vllm-fs", 7, 0.5), ("lmcache-disk", 6, 0.1),
])  # fmt: skip
def test_no_less_dram_reaches_the_target_with_ample_nvme(preset, seed, target):
    answer = kt.size(requests_of(seed), preset=preset, target_hit=target, **OPTIONS)
    stack = answer.stack.with_chains()
    ample_bytes = max(point.capacities["nvme"] for point in answer.sizing.points)
    for share in np.geomspace(1 / 40, 1 / 1.03, 30):
        dram = int(share * answer.capacities["dram"])
        for nvme in (ample_bytes // 16, ample_bytes // 4, ample_bytes, 2 * ample_bytes):
            # As an answer, it would have to hold with more DRAM, too.
            points = [stack.simulate({"dram": more * dram, "nvme": nvme}) for more in (1, 2, 4)]
            assert any(point.hit_ratio < target or point.stalled_requests for point in points)


def test_a_price_has_its_unit():
    prices = {"dram": 4.0, "nvme": 0.1}
    options = OPTIONS | {"preset": "lmcache-disk", "target_hit": TARGET, "prices": prices}
    unit = "at 4 per GiB of DRAM a node and 0.1 per GiB of NVMe a node, 2 nodes together"
    assert unit.replace(" a node", "").removesuffix(", 2 nodes together") in (
        kt.size(requests_of(1), **options).answer
    )
    options["knobs"] = OPTIONS["knobs"] | {"fleet.nodes": 2, "fleet.router": "prefix"}
    assert unit in kt.size(requests_of(1), **options).answer


@pytest.mark.parametrize("prices", PRICES)
@pytest.mark.parametrize("preset", ["vllm-fs", "lmcache-disk"])
def test_no_point_of_a_ladder_undercuts_a_priced_answer(preset, prices):
    requests = requests_of(1, blocks=4)
    dram_price, nvme_price = prices
    answer = kt.size(
        requests,
        preset=preset,
        target_hit=TARGET,
        prices={"dram": dram_price, "nvme": nvme_price},
        **OPTIONS,
    )
    stack, total_bytes = answer.stack.with_chains(), answer.ceiling.live_bytes
    budget = answer.chosen.price * 2**30 / 1.02
    for share in LADDER:
        dram = int(share * min(total_bytes, budget / dram_price))
        nvme = min(2 * total_bytes, int((budget - dram * dram_price) / nvme_price))
        point = stack.simulate({"dram": dram, "nvme": nvme})
        assert point.hit_ratio < TARGET or point.stalled_requests, point.capacities


def test_samples_choose_no_dram_that_lets_requests_stall():
    # vLLM's DRAM must hold all that a request loads from files. Samples do not count the requests
    # that stall, so that the search took 0 of DRAM for enough, and its answer was the grid's.
    requests = requests_of(1, blocks=40)
    answer = kt.size(
        requests,
        preset="vllm-fs",
        target_hit=TARGET,
        prices={"dram": 4.0, "nvme": 0.1},
        sample=0.2,
        **OPTIONS,
    )
    plain = kt.size(requests, preset="vllm-fs", target_hit=TARGET, sample=0.2, **OPTIONS)
    assert any(point.sampling_rate < 1 for point in answer.sizing.points)
    assert answer.chosen.stalled_requests == 0
    assert answer.chosen.price <= price_of(plain.capacities, 4.0, 0.1) * (1 + 1e-9)
    grid = [point.capacities for point in answer.sizing.points if point.sampling_rate < 1]
    assert answer.capacities not in grid
