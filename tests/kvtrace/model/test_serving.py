"""How long computing takes: the roofline by hand, and what gen does with it."""

from __future__ import annotations

import json

import msgspec
import pytest
from simulated import kvtrace

from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table
from kvtrace.model.catalogue import find_model, load_models
from kvtrace.model.serving import GPUS, computing_times


@pytest.fixture
def gen(tmp_path, monkeypatch, capsys):
    """Run gen with 4 users for 8 s; return what it prints and the metadata of its trace."""

    def make(*options: object):
        path = tmp_path / "t.parquet"
        load = ["--users", 4, "--duration", "8s", "--preset", "lmcache-disk"]
        assert kvtrace(monkeypatch, "gen", *load, "-o", path, "--json", *options) == 0
        return json.loads(capsys.readouterr().out), open_table(path, TRACE).meta

    return make


def test_the_roofline_by_hand():
    # 2 x 8.03e9 FLOPs at half of 989e12 a second; 8.03e9 x 2 bytes at 0.7 of 3.35e12 a second.
    times = {"prefill_ns_per_token": 32_478, "decode_ns_per_token": 6_848_615}
    assert computing_times("h100", find_model("llama3.1-8b"), 1) == times
    # Four ranks share both.
    assert computing_times("h100", find_model("llama3.1-8b"), 4) == {
        "prefill_ns_per_token": 8120, "decode_ns_per_token": 1_712_154,
    }  # fmt: skip
    # Of a mixture of experts those that a token uses are computed, and all are read, a byte each.
    assert computing_times("h200", find_model("deepseek-v3"), 8) == {
        "prefill_ns_per_token": 18_706, "decode_ns_per_token": 24_962_798,
    }  # fmt: skip
    assert not any(computing_times("instant", find_model("llama3.1-8b"), 1).values())


@pytest.mark.parametrize("gpu", GPUS)
def test_every_model_computes_on_every_gpu(gpu):
    assert all(t > 0 for m in load_models().values() for t in computing_times(gpu, m, 8).values())
    assert GPUS[gpu].source


def test_an_unknown_gpu_or_size_is_refused():
    model = find_model("llama3.1-8b")
    with pytest.raises(ConfigError, match="unknown GPU 'h900'; known are a100, h100"):
        computing_times("h900", model, 1)
    with pytest.raises(ConfigError, match=r"prefill_ns_per_token=.* or use --gpu instant"):
        computing_times("h100", msgspec.structs.replace(model, parameters=0), 1)


def test_engines_compute_by_default_and_users_wait_for_it(gen):
    found, meta = gen()
    assert found["serving"] == meta.config["serving"]
    assert (found["serving"]["gpu"], found["serving"]["prefill_ns_per_token"]) == ("h100", 32_478)
    assert meta.config["hierarchy"]["decode_ns_per_token"] == 6_848_615
    assert any("NVIDIA H100 SXM data sheet; roofline" in note for note in meta.notes)
    assert found["stats"]["first_token"] is not None
    instant, meta = gen("--gpu", "instant")
    assert any("computing takes no time" in note for note in meta.notes)
    assert instant["stats"]["requests"] > 2 * found["stats"]["requests"]
    faster, _ = gen("--gpu", "b200", "--tp", 8)
    assert found["stats"]["requests"] < faster["stats"]["requests"] < instant["stats"]["requests"]


def test_set_overrides_the_roofline(gen):
    found, meta = gen("--set", "decode_ns_per_token=5")
    assert found["serving"]["overridden"] == ["decode_ns_per_token"]
    assert meta.config["hierarchy"]["prefill_ns_per_token"] == 32_478
    assert meta.config["hierarchy"]["decode_ns_per_token"] == 5


def test_the_benchmark_keeps_its_own_times_unless_a_gpu_is_named(gen):
    assert gen("--preset", "mlperf")[0]["serving"]["decode_ns_per_token"] == 30_000_000
    assert gen("--preset", "mlperf", "--gpu", "h100")[0]["serving"]["decode_ns_per_token"] == 6_848_615


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
