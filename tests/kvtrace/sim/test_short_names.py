"""Names of engines, sizes and beginnings stand for presets and models."""

import pytest

from kvtrace.core.errors import ConfigError
from kvtrace.llm.catalogue import find_model, full_model_name, load_models
from kvtrace.sim.presets.preset import full_preset_name, load_preset, preset_names
from kvtrace.sim.scenario import build_scenario


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("lmcache", "lmcache-disk"),
        ("LMCache", "lmcache-disk"),
        ("vllm", "vllm-fs"),
        ("sglang", "sglang-hicache"),
        ("mooncake", "mooncake-store"),
        ("dynamo", "kvbm"),
        ("tensorrt-llm", "trtllm"),
        ("llm-d", "llm-d-fs"),
        ("mlperf", "mlperf"),  # a preset's own name, which also begins others
        ("lm", "lm"),  # begins several
        ("mine.toml", "mine.toml"),
    ],
)
def test_an_engine_or_a_beginning_stands_for_a_preset(name, preset):
    assert full_preset_name(name) == preset


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("70b", "llama3.1-70b"),
        ("8B", "llama3.1-8b"),
        ("mistral", "mistral-7b"),
        ("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-70B-Instruct"),
        ("qwen3", "qwen3"),  # begins several
        ("config.json", "config.json"),
    ],
)
def test_a_size_or_a_beginning_stands_for_a_model(name, model):
    assert full_model_name(name) == model


def test_every_full_name_stands_for_itself():
    assert {full_preset_name(name) for name in preset_names()} == set(preset_names())
    assert {full_model_name(name) for name in load_models()} == set(load_models())


def test_a_simulation_records_the_full_names():
    config = build_scenario(preset="lmcache", model="70b", users=2).config
    assert (config["preset"], config["model"]) == ("lmcache-disk", "llama3.1-70b")
    full = build_scenario(preset="lmcache-disk", model="llama3.1-70b", users=2).config
    assert config == full


def test_ambiguous_names_list_at_most_eight():
    with pytest.raises(ConfigError) as error:
        find_model("qwen")
    named = {model for model in load_models() if f"{model}," in str(error.value)}
    assert len(named) == 8
    assert all(model.startswith("qwen") for model in named)
    with pytest.raises(ConfigError) as error:
        load_preset("lm")
    assert {name for name in preset_names() if name in str(error.value)} == {
        name for name in preset_names() if name.startswith("lm")
    }
