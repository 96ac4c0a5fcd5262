"""`kvtrace plan` puts DRAM, drives and an object store side by side, and says if the last is enough.

Held against the fleets of the same plan, `kvtrace gen`, and arithmetic over the log of requests.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
from conftest import run_cli

from kvtrace.curves.break_even import mean_break_even
from kvtrace.llm.catalogue import find_model
from kvtrace.llm.serving import computing_times

PRICES = """
currency = "EUR"
years = 4
[dram]
sizes = ["128MiB", "256MiB"]
price = "4000/GiB"
source = "made up"
[nvme]
sizes = ["64MiB", "4GiB"]
price = "100/GiB"
read_bandwidth = "{drive_rate}"
write_bandwidth = "1GB"
source = "made up"
[object]
price_per_gb_month = 0.5
put_price_per_1000 = 0.00001
get_price_per_1000 = 0.000001
read_bandwidth = "{rate}"
latency = "{latency}"
source = "made up"
"""
KINDS = {"NVMe": "a drive in each node", "object store": "a bucket", "DRAM alone": "no storage"}
BLOCK_TOKENS = 512
TINY_KV_BYTES = 24_576
"""Bytes a token of tiny-1b, as the MLPerf benchmark counts them."""


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a file of ten prompts of eight blocks, each asked six times, four seconds apart."""
    path = tmp_path_factory.mktemp("stores") / "r.jsonl"
    lines = [
        {
            "timestamp": 4000 * number,
            "input_length": BLOCK_TOKENS * 8,
            "output_length": 4,
            "hash_ids": [100 * (number % 10) + block for block in range(8)],
        }
        for number in range(60)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def plan(
    path: Any,
    folder: Any,
    *options: object,
    rate: str = "5GB",
    latency: str = "30ms",
    drive_rate: str = "2GB",
) -> Any:
    prices = folder / "prices.toml"
    prices.write_text(PRICES.format(rate=rate, latency=latency, drive_rate=drive_rate))
    argv = ("--model", "tiny-1b", "--source", "mooncake", "--gpu", "a100", "--prices", prices)
    argv += ("--set", "tiers.gpu.capacity=64MiB", "--json")
    argv += () if "-o" in options else ("-o", folder / "out")
    return json.loads(run_cli("kvtrace", "plan", path, *argv, *options).stdout)


def test_each_store_has_its_cheapest_fleet_that_is_enough(prompts, tmp_path):
    found = plan(prompts, tmp_path, "--target-hit", "70%")
    stores = {option["store"]: option for option in found["stores"]}
    assert set(stores) == set(KINDS)
    for name, kind in KINDS.items():
        fleets = [fleet for fleet in found["fleets"] if fleet["store"] == kind]
        enough = [
            fleet["cost_per_month"]
            for fleet in fleets
            if fleet["hit_ratio"] >= 0.7 and not fleet["stalled_requests"]
        ]
        assert stores[name]["is_enough"] == bool(enough)
        if enough:
            assert stores[name]["fleet"]["cost_per_month"] == min(enough)
    # The figures of each are those of gen.
    for option in stores.values():
        fleet = option["fleet"]
        argv = (*shlex.split(fleet["command"]), "-o", tmp_path / "t.parquet", "--force", "--json")
        stats = json.loads(run_cli(*argv).stdout)["stats"]
        times = stats["first_token"]["with_cache"]
        assert fleet["first_token_p50_ns"] == times["p50_ns"]
        assert fleet["first_token_p99_ns"] == times["p99_ns"]
    assert stores["object store"]["read_bytes_per_s"] == 5e9
    assert stores["DRAM alone"]["read_bytes_per_s"] is None
    assert "object store is enough" in found["answer"]


def test_the_answer_comes_before_what_an_overloaded_gpu_does(prompts, tmp_path):
    found = plan(prompts, tmp_path, "--target-hit", "70%", "--set", "prefill_ns_per_token=10000000")
    fleet, verdict, warning = (
        found["answer"].index(words) for words in ("1 node", "object store is", "GPU OVERLOADED")
    )
    assert fleet == 0 < verdict < warning


def test_an_object_store_that_answers_late_is_not_enough(prompts, tmp_path):
    """The same target as with a fast one, which no size changes: its first byte comes too late."""
    target = ("--target-hit", "70%", "--target-ttft", "p50=80ms")
    fast = plan(prompts, tmp_path, *target, latency="1ms")
    late = plan(prompts, tmp_path, *target, latency="500ms")
    assert "object store is enough" in fast["answer"]
    assert "object store is not enough" in late["answer"]
    verdicts = [
        next(option["is_enough"] for option in found["stores"] if option["store"] == "object store")
        for found in (fast, late)
    ]
    assert verdicts == [True, False]


def test_the_verdict_says_that_an_object_store_is_slower(prompts, tmp_path):
    """It reaches the hit rate, but each load takes longer than computing the prompt."""
    options = ("--target-hit", "70%")
    found = plan(prompts, tmp_path, *options, latency="500ms", drive_rate="50GB")
    (option,) = (option for option in found["stores"] if option["store"] == "object store")
    assert option["fleet"]["hit_ratio"] > 0.7
    assert not option["is_enough"]
    assert "OFFLOAD IS SLOWER" in found["answer"].partition("not enough")[2]


@pytest.mark.parametrize(
    "target", [("--target-ttft", "p50=80ms"), ("--slo", "ttft=80ms,share=60%")]
)
def test_sliders_offer_only_fleets_within_fixed_limits(prompts, tmp_path, target):
    page = tmp_path / "answer.html"
    plan(prompts, tmp_path, *target, "--nodes", 1, "-o", page, latency="500ms")
    (text,) = re.findall(r'id="choices">(.*?)</script>', page.read_text(), re.DOTALL)
    choices = json.loads(text)["choices"]
    working, others = (
        [choice["first_token_p50_ns"] for choice in choices if choice["is_working"] == is_working]
        for is_working in (True, False)
    )
    assert max(working) <= 80e6 < max(others)


def test_break_even_is_all_reused_bytes_over_their_compute_time(prompts, tmp_path):
    (rate,) = {
        option["break_even_bytes_per_s"]
        for option in plan(prompts, tmp_path, "--target-hit", "70%")["stores"]
    }
    # 50 prompts come again as a whole, all but their last token: 12 layers of 8 heads of 128.
    tokens = 8 * BLOCK_TOKENS - 1
    flops = 2 * 1e9 * tokens + 4 * 12 * 8 * 128 * tokens * (tokens + 1) / 2
    assert rate == pytest.approx(tokens * TINY_KV_BYTES / (flops / (312e12 * 0.7)), rel=1e-3)


def test_without_a_log_break_even_is_that_of_8192_tokens():
    model = find_model("llama3.1-8b")
    knobs = computing_times("h100", model, 1)
    tokens = 8192
    flops = 2 * 8.03e9 * tokens + 4 * 32 * 32 * 128 * tokens * (tokens + 1) / 2
    expected = tokens * 131_072 / (flops / (989e12 * 0.7))
    assert mean_break_even(model, knobs, 1, None) == pytest.approx(expected, rel=1e-3)
    instant = computing_times("instant", model, 1) | {"prefill_attention": []}
    assert mean_break_even(model, instant, 1, None) is None
