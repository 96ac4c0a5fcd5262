"""How long computing takes: the roofline by hand, and what gen does with it."""

from __future__ import annotations

import json

import msgspec
import pytest
from phrases import show_each, shows
from simulated import kvtrace

from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table
from kvtrace.core.units import NS_PER_S
from kvtrace.llm.catalogue import find_model, load_models
from kvtrace.llm.serving import GPUS, computing_times, step_ns


@pytest.fixture
def gen(tmp_path, monkeypatch, capsys):
    """Run gen with 4 users for 8 s; return what it prints and the metadata of its trace."""

    def make(*options: object):
        path = tmp_path / "t.parquet"
        defaults = {"--duration": "8s", "--preset": "lmcache-disk"}
        if "--request-rate" not in options:
            defaults["--users"] = "4"
        load = [
            text
            for name, value in defaults.items()
            if name not in options
            for text in (name, value)
        ]
        assert kvtrace(monkeypatch, "gen", *load, "-o", path, "--json", "--force", *options) == 0
        return json.loads(capsys.readouterr().out), open_table(path, TRACE).meta

    return make


def test_the_roofline_by_hand():
    # 2 x 8.03e9 FLOPs at 0.7 of 989e12 a second; 8.03e9 x 2 bytes, and the cache, at 0.7 of
    # 3.35e12 a second. Of each query and key 32 layers x 32 heads x 2 x (128 + 128) FLOPs.
    assert computing_times("h100", find_model("llama3.1-8b"), 1) == {
        "prefill_ns_per_token": 23_199, "decode_ns_per_token": 6_848_615, "decode_active_ns": 0,
        "prefill_attention": [{"pair_fs": 757_314, "window_tokens": 0, "is_aligned": False}],
        "decode_compute_ns": 23_199, "decode_bandwidth": 2_345_000_000_000, "step_tokens": 8192,
    }  # fmt: skip
    # Four ranks share both, and reach 0.58 of the FLOPs and 0.54 of the bandwidth; each reads its
    # own part of the cache at its own rate.
    assert computing_times("h100", find_model("llama3.1-8b"), 4) == {
        "prefill_ns_per_token": 7000, "decode_ns_per_token": 2_219_459, "decode_active_ns": 0,
        "prefill_attention": [{"pair_fs": 228_500, "window_tokens": 0, "is_aligned": False}],
        "decode_compute_ns": 7000, "decode_bandwidth": 1_809_000_000_000, "step_tokens": 8192,
    }  # fmt: skip
    # Of a mixture of experts those that a token uses are computed, and all are read by a large
    # batch, a byte each. Its latents are expanded to 128 heads of 192 and 128, of which a rank has
    # 16: 61 x 16 x 2 x 320 FLOPs.
    assert computing_times("h200", find_model("deepseek-v3"), 8) == {
        "prefill_ns_per_token": 17_987, "decode_ns_per_token": 34_947_917, "decode_active_ns": 1_927_084,
        "prefill_attention": [{"pair_fs": 1_214_592, "window_tokens": 0, "is_aligned": False}],
        "decode_compute_ns": 17_987, "decode_bandwidth": 2_400_000_000_000, "step_tokens": 8192,
    }  # fmt: skip
    assert not any(computing_times("instant", find_model("llama3.1-8b"), 1).values())


def test_a_step_by_hand():
    knobs = computing_times("h100", find_model("llama3.1-8b"), 1)
    # 8192 tokens of 131,072 bytes at 2.345e12 bytes a second are 457,885 ns.
    assert step_ns(knobs, 1, 8192 * 131_072) == 6_848_615 + 457_885
    assert step_ns(knobs, 32, 32 * 8192 * 131_072) == 6_848_615 + 14_652_340
    # Without contexts, 300 tokens a step take their FLOPs, longer than reading the weights.
    assert step_ns(knobs, 300, 0) == 300 * 23_199
    # Two requests read the experts of two tokens, a hundred all of them.
    knobs = computing_times("h200", find_model("deepseek-v3"), 8)
    assert (step_ns(knobs, 2, 0), step_ns(knobs, 100, 0)) == (2 * 1_927_084, 34_947_917)


@pytest.mark.parametrize("gpu", GPUS)
def test_every_model_computes_on_every_gpu(gpu):
    times = [computing_times(gpu, m, 8) for m in load_models().values()]
    assert all(t for of in times for name, t in of.items() if name != "decode_active_ns")
    assert GPUS[gpu].source


def test_an_unknown_gpu_or_size_is_refused():
    model = find_model("llama3.1-8b")
    with pytest.raises(ConfigError, match=r"GPU 'h900'.*a100, h100"):
        computing_times("h900", model, 1)
    with pytest.raises(ConfigError, match=r"prefill_ns_per_token.*gpu="):
        computing_times("h100", msgspec.structs.replace(model, parameters=0), 1)


def test_engines_compute_by_default_and_users_wait_for_it(gen):
    found, meta = gen()
    assert found["serving"] == meta.config["serving"]
    assert (found["serving"]["gpu"], found["serving"]["prefill_ns_per_token"]) == ("h100", 23_199)
    assert meta.config["hierarchy"]["decode_ns_per_token"] == 6_848_615
    assert any("NVIDIA H100 SXM" in note for note in meta.notes)
    assert found["stats"]["first_token"] is not None
    instant, meta = gen("--gpu", "instant")
    assert any("not modelled" in note for note in meta.notes)
    assert instant["stats"]["requests"] > 2 * found["stats"]["requests"]
    faster, _ = gen("--gpu", "b200", "--tp", 8)
    assert found["stats"]["requests"] < faster["stats"]["requests"] < instant["stats"]["requests"]


@pytest.mark.parametrize("gpu", ["h100", "instant"])
def test_a_gpu_in_capitals_is_the_same_configuration(gen, gpu):
    (_, small), (_, large) = gen("--gpu", gpu), gen("--gpu", gpu.capitalize())
    assert (large.config, large.config_sha256, large.notes) == (
        small.config,
        small.config_sha256,
        small.notes,
    )


@pytest.mark.parametrize(("options", "tokens"), [
    ([], 8192), (["--gpu", "l40s"], 2048), (["--gpu", "b200"], 16384), (["--gpu", "instant"], 8192),
    (["--set", "step_tokens=512"], 512), (["--gpu", "l40s", "--set", "offer_tokens=4096"], 4096),
])  # fmt: skip
def test_vllm_offers_what_a_step_computed(gen, options, tokens):
    assert (
        gen("--preset", "vllm-offload-cpu", *options)[1].config["hierarchy"]["offer_tokens"]
        == tokens
    )


# 8.03e9 parameters of 2 bytes and 48 GiB, in the 48 GiB of an L40S; 671e9 of one byte and 48 GiB of
# the same latents on each of eight H100 of 80 GiB: 1,083 GB in 687.
@pytest.mark.parametrize(("options", "said"), [
    ([], None),
    (["--gpu", "l40s"], "16.1 GB … 51.5 GB … 51.5 GB … 1 x l40s … --tp 2"),
    # 141 GB and 51.5 GB are more than 172 GB of two, less than 344 GB of four.
    (["--model", "llama3.1-70b", "--tp", 1], "141 GB … 51.5 GB … 85.9 GB … --tp 4"),
    (["--model", "llama3.1-70b", "--tp", 4], None),
    (["--gpu", "l40s", "--tp", 2], None),
    (["--gpu", "l40s", "--set", "tiers.gpu.capacity=32GiB"], None),
    (["--model", "deepseek-v3", "--tp", 8], "671 GB … 51.5 GB … 8 … 687 GB … --tp 32"),
    (["--model", "deepseek-v3", "--tp", 32], None),
    (["--set", "tiers.gpu.capacity=0"], "tiers.gpu.capacity=0: GPU"),
    (["--set", "tiers.gpu.capacity=0", "--set", "step_tokens=0"], None),
    (["--set", "tiers.gpu.capacity=0", "--gpu", "instant"], None),
])  # fmt: skip
def test_a_gpu_whose_memory_cannot_be_so_is_noted(gen, options, said):
    notes = [note for note in gen(*options)[1].notes if note.startswith("tiers.gpu.capacity")]
    assert notes == [] if said is None else show_each(notes, [said])


def test_set_overrides_the_roofline(gen):
    found, meta = gen("--set", "decode_ns_per_token=5")
    assert found["serving"]["overridden"] == ["decode_ns_per_token"]
    assert found["serving"]["decode_steps"] is None
    assert any("step 5 ns" in note for note in meta.notes)
    assert meta.config["hierarchy"]["prefill_ns_per_token"] == 23_199
    assert meta.config["hierarchy"]["decode_ns_per_token"] == 5


def test_each_knob_of_a_batch_can_be_said(gen):
    found, _ = gen("--set", "decode_bandwidth=1TB", "--set", "prefill_in_turn=false")
    serving = found["serving"]
    assert serving["overridden"] == ["decode_bandwidth"]
    assert (serving["decode_bandwidth"], serving["decode_ns_per_token"]) == (10**12, 6_848_615)
    assert serving["decode_steps"][0]["step_ns"] == 6_848_615 + 1_073_741
    assert found["stats"]["prefill"] == {
        "requests": 0,
        "mean_wait_ns": None,
        "load": None,
        "needed_nodes": None,
    }


@pytest.mark.parametrize(
    "load", [["--users", 2], ["--request-rate", "1/s"]], ids=["closed loop", "open loop"]
)
def test_more_requests_at_a_time_take_longer(gen, load):
    def means(*options):
        stats = gen(*options, "--duration", "20s")[0]["stats"]
        return stats["decode"]["mean_ns_per_token"], stats["prefill"]["mean_wait_ns"]

    more = [value * 8 if isinstance(value, int) else value.replace("1/s", "8/s") for value in load]
    few, many = means(*load), means(*more)
    assert 6_848_615 < few[0] < many[0]
    assert few[1] < many[1]


def test_the_summary_says_what_is_assumed_and_what_came_of_it(tmp_path, monkeypatch, capsys):
    options = [
        "--preset",
        "lmcache-disk",
        "--users",
        8,
        "--duration",
        "20s",
        "-o",
        tmp_path / "t.parquet",
    ]
    assert kvtrace(monkeypatch, "gen", *options) == 0
    said = " ".join(capsys.readouterr().out.split())
    for part in (
        "roofline … 70% … 70%",
        # 8,192 x 23,199 ns + 8,192 x 8,193 / 2 pairs x .757314 ns = .2155 s, and 2.32 + 3.79 s.
        "38,021 tokens/s … 8,192 tokens, 16,376 … 100,000",
        "step 7.31 ms … 21.5 ms … batch … 32 … 8,192 tokens",
        "prompts waited",
    ):
        assert shows(said, part)


def test_the_benchmark_keeps_its_times_unless_a_gpu_is_named(gen):
    assert gen("--preset", "mlperf")[0]["serving"]["decode_ns_per_token"] == 30_000_000
    assert (
        gen("--preset", "mlperf", "--gpu", "h100")[0]["serving"]["decode_ns_per_token"] == 6_848_615
    )


def test_a_config_says_how_many_parameters_there_are(tmp_path):
    path = tmp_path / "config.json"
    llama = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 131072,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "torch_dtype": "bfloat16",
    }  # fmt: skip
    path.write_text(json.dumps(llama))
    assert find_model(str(path)).parameters == pytest.approx(8.03e9, rel=0.01)
    mixtral = llama | {
        "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
    }  # fmt: skip
    path.write_text(json.dumps(mixtral))
    found = find_model(str(path))
    assert (found.parameters, found.active_parameters) == (
        pytest.approx(46.7e9, rel=0.01), pytest.approx(12.9e9, rel=0.01),
    )  # fmt: skip


# Prompts come faster than they are computed; or than they are loaded, by a faster GPU from a slow
# drive.
BEHIND = [
    ("--gpu", "l40s"),
    ("--gpu", "b200", "--set", "tiers.gpu.capacity=0", "--set", "tiers.cpu.capacity=20GB", "--set",
     "tiers.nvme.read_bandwidth=200MB"),
]  # fmt: skip


@pytest.mark.parametrize("options", BEHIND)
def test_a_wait_at_the_end_counts_with_its_time_so_far(tmp_path, monkeypatch, capsys, options):
    def first_token(*load: object):
        made = (
            "--preset",
            "lmcache-disk",
            *options,
            "-o",
            tmp_path / "t.parquet",
            "--force",
            "--json",
        )
        assert kvtrace(monkeypatch, "gen", *load, *made) == 0
        return json.loads(capsys.readouterr().out)["stats"]["first_token"]

    cut = first_token(
        "--request-rate", "4/s", "--duration", "40s", "--requests-out", tmp_path / "r.parquet"
    )
    assert cut["with_cache"]["p95_ns"] > 40 * NS_PER_S
    # The same requests, all of which are served to the end.
    assert cut == first_token(tmp_path / "r.parquet")
