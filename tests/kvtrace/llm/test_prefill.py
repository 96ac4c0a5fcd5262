"""How long prompts compute.

Never less than their FLOPs take at the data sheet's peak, counted here pair by pair.
"""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from phrases import shows
from simulated import kvtrace

from kvtrace.core.metadata import prefix_compute_ns
from kvtrace.llm import serving
from kvtrace.llm.catalogue import find_model, load_models
from kvtrace.llm.shape import Chunked, Full, Indexer, Latent, Recurrent, Sliding

LENGTHS = (1, 2, 100, 4097, 8192, 100_000, 1_000_000)
PEAKS = {
    "a100": 312e12,
    "h100": 989e12,
    "h200": 989e12,
    "b200": 2250e12,
    "l40s": 362e12,
    "mi300x": 1307e12,
}
"""Dense bf16 FLOPs a second, of the data sheets, once more."""


@cache
def pairs(tokens: int, window: int = 0, *, is_chunk: bool = False) -> int:
    """Return how many keys all queries of a prompt see together, query by query."""
    seen = np.arange(1, tokens + 1)
    if is_chunk:
        seen = np.arange(tokens) % window + 1
    elif window:
        seen = np.minimum(seen, window)
    return int(seen.sum())


def flops(model, tokens: int) -> float:
    """Return the FLOPs of a prompt on all ranks together, an indexer counted once.

    2 a multiplication and addition.
    """
    found = 2.0 * (model.active_parameters or model.parameters) * tokens
    picked = [g.top_tokens for g in model.groups if isinstance(g, Indexer)]
    for g in model.groups:
        if isinstance(g, Indexer):
            found += 2.0 * g.layers * g.query_heads * g.index_dim * pairs(tokens)
        elif isinstance(g, Latent) and picked:
            # As absorbed: a query of 512 + 64 for all heads' one key, whose first 512 are the
            # value.
            found += 2.0 * g.layers * g.query_heads * (512 + 64 + 512) * pairs(tokens, picked[0])
        elif isinstance(g, Latent):
            found += (
                2.0
                * g.layers
                * g.query_heads
                * (g.nope_dim + g.rope_dim + g.value_dim)
                * pairs(tokens)
            )
        elif not isinstance(g, Recurrent):
            each = 2.0 * g.layers * g.query_heads * (g.head_dim + (g.value_dim or g.head_dim))
            window = 0 if isinstance(g, Full) else g.window_tokens
            found += each * pairs(tokens, window, is_chunk=isinstance(g, Chunked))
    return found


def seconds(gpu: str, name: str, ranks: int, tokens: list[int]) -> list[float]:
    knobs = serving.computing_times(gpu, find_model(name), ranks)
    return [ns / 1e9 for ns in prefix_compute_ns(knobs, tokens).tolist()]


@pytest.mark.parametrize("gpu", serving.GPUS)
@pytest.mark.parametrize("ranks", [1, 4, 8, 32])
def test_no_prompt_is_faster_than_the_data_sheet(gpu, ranks):
    for name, model in load_models().items():
        for tokens, took_s in zip(LENGTHS, seconds(gpu, name, ranks, list(LENGTHS)), strict=True):
            least_s = flops(model, tokens) / (ranks * PEAKS[gpu])
            assert took_s >= least_s, (name, tokens)
            # Nor does it take much more than by the share that is assumed, where heads split over
            # the ranks.
            if ranks == 1:
                assert took_s == pytest.approx(least_s / 0.7, rel=0.01, abs=1e-7), (name, tokens)


def test_the_prompts_of_the_issue_take_what_their_flops_do():
    """100,000 tokens on H100s: they took 1.33, 1.87 and 3.25 s, for want of attention."""
    for name, ranks, least_s, share in (
        ("qwen3-30b-a3b", 1, 4.64, 0.70),
        ("deepseek-v3", 8, 4.09, 0.52),
        ("llama3.1-8b", 1, 4.27, 0.70),
    ):
        (took_s,) = seconds("h100", name, ranks, [100_000])
        assert least_s <= took_s == pytest.approx(least_s / share, rel=0.005), name


def test_attention_by_hand():
    def spans(name: str, ranks: int) -> dict[tuple[int, bool], int]:
        return serving.attention_flops(find_model(name), ranks)

    # Four of 40 heads on each of 16 ranks are 2.5, and so 3 on the fullest.
    assert spans("llama4-scout", 16) == {
        (0, False): 12 * 3 * 2 * 256, (8192, True): 36 * 3 * 2 * 256,
    }  # fmt: skip
    assert spans("gpt-oss-120b", 1) == {
        (0, False): 18 * 64 * 2 * 128,
        (128, False): 18 * 64 * 2 * 128,
    }
    assert spans("mimo-v2-flash", 1) == {
        (0, False): 9 * 64 * 2 * 320,
        (128, False): 39 * 64 * 2 * 320,
    }
    # 12 of 48 layers have attention; the recurrent ones have no pairs.
    assert spans("qwen3-next", 1) == {(0, False): 12 * 16 * 2 * 512}
    # An indexer of 64 heads of 128, whole on each rank, picks 2,048 latents.
    assert spans("deepseek-v3.2", 8) == {
        (2048, False): 61 * 16 * 2 * 1088,
        (0, False): 61 * 64 * 2 * 128,
    }
    assert spans("glm-5.2", 1) == {(2048, False): 78 * 64 * 2 * 1088, (0, False): 21 * 32 * 2 * 128}


@given(
    attention=st.lists(
        st.tuples(st.integers(0, 10**8), st.integers(0, 300), st.booleans()), max_size=3
    ),
    ns_per_token=st.integers(0, 10**6),
    ends=st.lists(st.integers(0, 1000), min_size=2, max_size=6),
)
def test_parts_of_a_prompt_add_up_to_the_count_pair_by_pair(attention, ns_per_token, ends):
    rows = [
        {"pair_fs": fs, "window_tokens": window, "is_aligned": chunk}
        for fs, window, chunk in attention
    ]
    knobs = {"prefill_ns_per_token": ns_per_token, "prefill_attention": rows}
    ends = sorted(ends)
    found = prefix_compute_ns(knobs, ends).tolist()
    for tokens, ns in zip(ends, found, strict=True):
        fs = sum(
            pair * pairs(tokens, window, is_chunk=chunk and window > 0)
            for pair, window, chunk in attention
        )
        assert ns == tokens * ns_per_token + fs // 10**6
    # More of a prompt never takes less, and what is loaded of it never more.
    assert all(earlier <= later for earlier, later in pairwise(found))
    assert sum(later - earlier for earlier, later in pairwise(found)) == found[-1] - found[0]


@given(
    st.integers(0, 10**7),
    st.integers(1, 10**7),
    st.integers(0, 2**24),
    st.booleans(),
    st.integers(0, 10**9),
)
def test_long_prompts_do_not_overflow(loaded, tokens, window, is_aligned, pair_fs):
    knobs = {
        "prefill_ns_per_token": 10**6,
        "prefill_attention": [
            {"pair_fs": pair_fs, "window_tokens": window, "is_aligned": is_aligned}
        ],
    }

    def until(end: int) -> int:
        whole, rest = (end // window, end % window) if is_aligned and window else (0, end)
        first = min(rest, window) if window and not is_aligned else rest
        seen = (
            whole * window * (window + 1) // 2 + first * (first + 1) // 2 + (rest - first) * window
        )
        return end * 10**6 + seen * pair_fs // 10**6

    first, end = prefix_compute_ns(knobs, [loaded, loaded + tokens]).tolist()
    assert (first, end) == (until(loaded), until(loaded + tokens))


def test_what_no_clock_holds_is_the_largest_time():
    knobs = {
        "prefill_ns_per_token": 10**9,
        "prefill_attention": [{"pair_fs": 10**12, "window_tokens": 0, "is_aligned": 0}],
    }
    assert prefix_compute_ns(knobs, [2**31]).tolist() == [2**62]


def test_behind_more_loaded_tokens_a_prompt_takes_longer():
    """Not in chunked layers: a query that begins a chunk attends to itself alone."""
    for name, model in load_models().items():
        knobs = serving.computing_times("h100", model, 1)
        loaded = np.array([0, 1, 127, 1024, 5000, 40_000, 500_000])
        took = prefix_compute_ns(knobs, loaded + 1000) - prefix_compute_ns(knobs, loaded)
        if not any(isinstance(g, Chunked) for g in model.groups):
            assert all(np.diff(took) >= -1), name  # each is rounded down
        assert all(
            np.diff(prefix_compute_ns(knobs, [9999]) - prefix_compute_ns(knobs, loaded[:5])) <= 0
        ), name


@pytest.fixture
def gen(tmp_path, monkeypatch, capsys):
    """Run gen of a file of one request of 8,000 tokens.

    Return its serving model, its line, and its first token.
    """
    path = tmp_path / "one.jsonl"
    path.write_text(
        json.dumps(
            {"timestamp": 0, "input_length": 8000, "output_length": 1, "hash_ids": [*range(16)]}
        )
    )

    def make(*options: object):
        argv = ["gen", path, "--source", "mooncake", "--preset", "lmcache-disk", "--seed", 1]
        argv += ["-o", tmp_path / "t.parquet", "--json", "--force", *options]
        assert kvtrace(monkeypatch, *argv) == 0
        found = json.loads(capsys.readouterr().out)
        return (
            found["serving"],
            serving.serving_text(found["serving"]),
            found["stats"]["first_token"],
        )

    return make


def test_a_prompt_takes_in_a_simulation_what_the_model_says(gen):
    said, line, first = gen()
    # 8,000 x 23,199 ns, and 8,000 x 8,001 / 2 pairs of 757,314 fs; stored after each 512 tokens
    # or at once.
    for options in ([], ["--set", "offer_tokens=512"]):
        assert gen(*options)[2]["requests"] == 1
    assert said["prefills"][0] == {
        "tokens": 8192,
        "ns": 8192 * 23_199 + 8192 * 8193 // 2 * 757_314 // 10**6,
    }
    assert shows(line, "38,021 tokens/s … 8,192 tokens, 16,376 … 100,000")
    assert first is not None


def test_who_says_how_long_a_token_takes_says_it_of_all(gen):
    said, line, _ = gen("--set", "prefill_ns_per_token=50000")
    assert (said["overridden"], "prefill_attention" in said) == (["prefill_ns_per_token"], False)
    assert "20,000 tokens/s" in line
    said, line, _ = gen("--set", "prefill_attention=[]")
    assert said["overridden"] == ["prefill_attention"]
    assert "43,105 tokens/s" in line
    said, line, _ = gen("--set", "prefill_attention=[{pair_fs=1000000, window_tokens=1024}]")
    assert said["prefills"][1]["ns"] == 100_000 * 23_199 + 1024 * 1025 // 2 + 98_976 * 1024


def test_query_heads_that_are_not_known_are_said_to_be(gen, tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 4096, "head_dim": 128, "intermediate_size": 14336,
        "max_position_embeddings": 131072, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "vocab_size": 128256, "torch_dtype": "bfloat16",
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    assert "not counted" not in gen("--model", path)[1]
    model = find_model(str(path))
    unknown = msgspec.structs.replace(
        model, groups=(msgspec.structs.replace(model.groups[0], query_heads=None),)
    )
    knobs = serving.computing_times("h100", unknown, 1)
    assert knobs["prefill_attention"] == []
    described = serving.describe(
        "h100", 1, unknown, {"prefill_in_turn": True, "step_tokens": 0, **knobs}, knobs
    )
    assert "attention" in serving.serving_text(described)


def test_every_model_that_we_ship_knows_its_query_heads():
    attended = [g for m in load_models().values() for g in m.groups if not isinstance(g, Recurrent)]
    assert all(g.query_heads for g in attended)
    # Grouped queries share keys evenly.
    assert all(
        g.query_heads % g.kv_heads == 0 for g in attended if isinstance(g, Full | Sliding | Chunked)
    )
