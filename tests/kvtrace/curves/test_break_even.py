"""`kvtrace breakeven`: the bandwidth at which loading a prefix is as fast as computing it.

Figures are worked by hand from the data sheet of the GPU and the shape of the model.
"""

from __future__ import annotations

import json
import math
from typing import Any

import polars as pl
import pytest
from conftest import run_cli

import kvtrace as kt
from kvtrace.core.errors import ConfigError

FLOPS_PER_S = 989e12 * 0.7
"""The share of the peak that one H100 reaches."""
PARAMETERS = 8_030_261_248
QUERY_HEADS, HEAD_DIM, LAYERS, KV_HEADS = 32, 128, 32, 8
KV_BYTES = 2 * KV_HEADS * HEAD_DIM * LAYERS * 2
"""Bytes a token in bf16: 131,072."""


def computed_s(tokens: int) -> float:
    """Return the time to compute a prompt of llama3.1-8b, s: linear layers, and attention."""
    pairs = tokens * (tokens + 1) / 2
    attention = 2 * LAYERS * QUERY_HEADS * 2 * HEAD_DIM * pairs
    return (2 * PARAMETERS * tokens + attention) / FLOPS_PER_S


def loaded_s(tokens: int, bytes_per_s: float, latency_s: float = 0.0) -> float:
    return latency_s + tokens * KV_BYTES / bytes_per_s


@pytest.mark.parametrize("tokens", [1024, 8192, 100_000])
def test_break_even_is_bytes_over_compute_time(tokens: int) -> None:
    (point,) = kt.break_even(prefix_tokens=[tokens], stores=["3GB/s"]).points
    assert point.kv_bytes == tokens * KV_BYTES
    assert point.compute_ns == pytest.approx(computed_s(tokens) * 1e9, rel=2e-3)
    expected = tokens * KV_BYTES / computed_s(tokens)
    assert point.break_even_bytes_per_s == pytest.approx(expected, rel=2e-3)
    assert point.load_ns["3GB/s"] == pytest.approx(loaded_s(tokens, 3e9) * 1e9)


@pytest.mark.parametrize(
    ("arguments", "tokens", "expected_gb_per_s"),
    [
        ({}, 8192, 5.0),
        ({}, 100_000, 2.1),
        ({"model": "llama3.1-70b", "tensor_parallel": 4}, 8192, 4.9),
    ],
)
def test_known_engines_need_known_bandwidths(
    arguments: dict[str, Any], tokens: int, expected_gb_per_s: float
) -> None:
    (point,) = kt.break_even(prefix_tokens=[tokens], **arguments).points
    assert round(point.break_even_bytes_per_s / 1e9, 1) == expected_gb_per_s


@pytest.mark.parametrize(("rate", "latency_s"), [(3e9, 1e-4), (2e9, 0.03), (3.4e9, 0.0)])
def test_a_store_pays_from_the_shortest_prefix_that_is_faster(
    rate: float, latency_s: float
) -> None:
    store = f"s={rate / 1e9:g}GB/s,{latency_s * 1e6:g}us"
    (verdict,) = kt.break_even(stores=[store]).verdicts
    # Every length is tried here, in whole thousandths of what the model gives.
    shortest = next(
        tokens
        for tokens in range(16, 131_073)
        if loaded_s(tokens, rate, latency_s) < computed_s(tokens)
    )
    assert verdict.pays_from_tokens == pytest.approx(shortest, rel=0.02)


def test_a_store_pays_always_or_never() -> None:
    fast, slow = kt.break_even(stores=["fast=20GB/s", "slow=100MB/s,1ms"]).verdicts
    assert fast.pays_from_tokens == 16
    assert slow.pays_from_tokens is None


def test_loads_at_a_time_share_the_bandwidth() -> None:
    alone = kt.break_even(stores=["s=8GB/s"]).points[0]
    shared = kt.break_even(stores=["s=8GB/s"], loads=4).points[0]
    assert shared.load_ns["s"] == pytest.approx(4 * alone.load_ns["s"])
    assert shared.break_even_bytes_per_s == pytest.approx(4 * alone.break_even_bytes_per_s)


def test_the_prefixes_of_a_log_are_loaded_or_computed() -> None:
    """The second prompt repeats 2 blocks, the third all of the first, the fourth nothing."""
    block_tokens = 512
    frame = pl.DataFrame(
        {
            "arrival_ns": [0, 1, 2, 3],
            "input_tokens": [2048, 1536, 2048, 512],
            "output_tokens": [1, 1, 1, 1],
            "block_ids": [[0, 1, 2, 3], [0, 1, 9], [0, 1, 2, 3], [7]],
        }
    )
    requests = kt.Requests.from_polars(frame, block_tokens=block_tokens)
    # The last token of a prompt that is all cached is computed again.
    lengths = [2 * block_tokens, 4 * block_tokens - 1]
    result = kt.break_even(requests, stores=["slow=1GB/s", "late=100GB/s,40ms"])
    computed = [computed_s(tokens) for tokens in lengths]
    for loads, rate, latency_s in zip(result.replayed, [1e9, 100e9], [0.0, 0.04], strict=True):
        loaded = [loaded_s(tokens, rate, latency_s) for tokens in lengths]
        slower = sum(load > compute for load, compute in zip(loaded, computed, strict=True))
        assert (loads.loads, loads.slower_loads) == (2, slower)
        assert loads.compute_ns == pytest.approx(sum(computed) * 1e9, rel=2e-3)
        assert loads.load_ns == pytest.approx(sum(loaded) * 1e9, rel=1e-6)
        best = sum(map(min, loaded, computed))
        assert loads.best_ns == pytest.approx(best * 1e9, rel=2e-3)
    # The late store is slower than computing for the shorter prefix alone.
    assert [loads.slower_loads for loads in result.replayed] == [2, 1]


def test_windows_bound_what_is_loaded() -> None:
    """gpt-oss-20b reads 128 tokens of its windowed layers, whatever the length of the prefix."""
    points = kt.break_even(model="gpt-oss-20b", prefix_tokens=[8192, 16384]).points
    layers, window = 12, 128
    token_bytes = layers * 2 * 8 * 64 * 2
    assert [point.kv_bytes for point in points] == [
        (tokens + window) * token_bytes for tokens in (8192, 16384)
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        {"gpu": "instant"},
        {"gpu": "abacus"},
        {"stores": []},
        {"stores": ["x"]},
        {"stores": ["=3GB/s"]},
        {"stores": ["a=3GB/s,soon"]},
        {"stores": ["a=3GB/s", "a=4GB/s"]},
        {"stores": ["a=0GB/s"]},
        {"prefix_tokens": [0]},
        {"prefix_tokens": [131_073]},
        {"prefix_tokens": []},
        {"loads": 0},
        {"tensor_parallel": 0},
    ],
)
def test_what_has_no_break_even_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        kt.break_even(**arguments)


def test_the_command_prints_and_draws_the_answer(tmp_path: Any) -> None:
    page = tmp_path / "breakeven.html"
    options = ("--model", "llama3.1-70b", "--tp", 4, "--store", "qlc=3GB/s,100us")
    done = run_cli("kvtrace", "breakeven", *options, "--plot", page)
    result = json.loads(run_cli("kvtrace", "breakeven", *options, "--json").stdout)
    assert done.stdout.splitlines()[0] == result["answer"]
    (verdict,) = result["verdicts"]
    assert f"{verdict['pays_from_tokens']:,} tokens" in result["answer"]
    lengths = [point["tokens"] for point in result["points"]]
    assert lengths == [2**n for n in range(10, 18)]
    assert all(math.isfinite(point["load_ns"]["qlc"]) for point in result["points"])
    assert "break-even bandwidth" in page.read_text()


@pytest.mark.parametrize(
    "store",
    [
        "s=6GB/s,100us",
        *(pytest.param(s, marks=pytest.mark.full) for s in ("s=4GB/s,30ms", "s=12GB/s,100us")),
    ],
)
def test_chunked_layers_pay_where_no_longer_prefix_is_slower(store: str) -> None:
    """What Llama 4 reads falls at each multiple of 8,192 tokens, and rises again after it."""
    lengths = list(range(64, 262_145, 64)) + list(range(8191, 262_145, 8192))
    result = kt.break_even(
        model="llama4-scout", tensor_parallel=8, stores=[store], prefix_tokens=lengths
    )
    slower = [point.tokens for point in result.points if point.load_ns["s"] >= point.compute_ns]
    pays_from = result.verdicts[0].pays_from_tokens
    assert pays_from is not None
    assert max(slower) < pays_from <= max(slower) + 64


@pytest.mark.parametrize("name", ["compute", "kv_bytes", "break_even_bytes_per_s", "tokens"])
def test_a_store_may_have_the_name_of_a_column(name: str) -> None:
    def cells(store: str) -> list[list[str]]:
        document = kt.break_even(stores=[f"{store}=7GB/s,1us,20W"]).document()
        return [list(row) for row in document.chapters[0].tables[0].rows]

    assert cells(name) == cells("plain")


@pytest.mark.parametrize(
    ("store", "is_valid"),
    [
        ("s=25Gb/s,30ms", False),
        ("s=25Gbps,30ms", False),
        ("s=25Gbit/s,30ms", False),
        ("s=25gb/s,30ms", True),
        ("s=25GB/s,100", False),
        ("s=25GB/s,0", True),
    ],
)
def test_bits_and_latencies_without_a_unit_are_refused(store: str, is_valid: bool) -> None:
    """25 Gb/s are 3.1 GB/s, and a latency of 100 is hardly in seconds."""
    if is_valid:
        assert kt.break_even(stores=[store]).verdicts[0].store.bandwidth_bytes_per_s == 25e9
        return
    with pytest.raises(ConfigError):
        kt.break_even(stores=[store])


@pytest.mark.parametrize(("ranks", "fits"), [(1, False), (2, True)])
def test_a_note_says_that_the_weights_do_not_fit(ranks: int, fits: bool) -> None:
    """141 GB of weights, on GPUs of 80 GiB."""
    notes = kt.break_even(model="llama3.1-70b", tensor_parallel=ranks).notes
    assert any(note.startswith("llama3.1-70b: weights of 141 GB") for note in notes) != fits


def test_assumed_stores_say_their_figures_first():
    assumed = kt.break_even(model="8b", gpu="h100")
    assert assumed.model == "llama3.1-8b"
    for figures in ("assumed 7.00 GB/s, 100 µs", "assumed 25.0 GB/s, 30.0 ms"):
        assert figures in assumed.answer
    assert [verdict.store.is_assumed for verdict in assumed.verdicts] == [True, True]
    given = kt.break_even(model="8b", gpu="h100", stores=["s3=5GB/s,30ms"])
    assert "s3 (5.00 GB/s, 30.0 ms)" in given.answer
