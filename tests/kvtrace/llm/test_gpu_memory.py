"""The number of GPUs of a user who names none: as many as hold the weights and the cache."""

import json

import pytest
from programs import run_cli

import kvtrace as kt
from kvtrace.llm.catalogue import find_model, load_models
from kvtrace.llm.gpu_memory import GpuMemory

GIB = 1 << 30
USERS = ("--users", 2, "--duration", "5s", "--preset", "lmcache-disk")


def ranks_of(**given):
    given = {"preset": "lmcache-disk", "model": "llama3.1-70b", "users": 2} | given
    scenario = kt.build_scenario(**given)
    assert scenario.config["tensor_parallel"] == scenario.ranks
    assert scenario.config["serving"]["tensor_parallel"] == scenario.ranks
    return scenario.ranks, len(scenario.notes)


# 70.6e9 parameters of 2 bytes are 141 GB; an H100 has 80 GiB, or 85.9 GB. With 48 GiB of cache they
# need 193 GB: more than two have. With 16 GiB they need 158 GB.
@pytest.mark.parametrize(("given", "expected"), [
    ({}, (4, 1)),
    ({"settings": ["tiers.gpu.capacity=16GiB"]}, (2, 1)),
    # One prompt of 131,072 tokens takes 42.9 GB: 184 GB, and vLLM uses 90 % of each GPU.
    ({"settings": ["tiers.gpu.capacity=0"]}, (4, 1)),
    # No number of GPUs up to 32 has 10 TiB: the weights count alone.
    ({"settings": ["tiers.gpu.capacity=10TiB"]}, (2, 1)),
    ({"gpu": "h200"}, (1, 0)),
    ({"gpu": "instant"}, (1, 0)),
    ({"tensor_parallel": 1}, (1, 0)),
    ({"tensor_parallel": 8}, (8, 0)),
    ({"model": "llama3.1-8b"}, (1, 0)),
    # A step of 811 GB takes over a second on one L40S, more than a preset takes; 20 of 48 GiB hold
    # weights and cache.
    ({"model": "llama3.1-405b", "gpu": "l40s"}, (32, 1)),
    ({"preset": "mlperf"}, (1, 0)),
    # Latents are whole on each rank: 671 GB and 16 times 51.5 GB exceed 16 GPUs, as do 32 not.
    ({"model": "deepseek-v3"}, (32, 1)),
])  # fmt: skip
def test_the_ranks_of_a_user_who_names_none(given, expected):
    assert ranks_of(**given) == expected


@pytest.mark.parametrize("model", load_models())
def test_only_weights_beyond_one_gpu_get_more(model):
    shape = find_model(model)
    ranks, notes = GpuMemory("h100", shape, 8 * GIB).choose_ranks()
    weights = shape.parameters * shape.weight_bytes
    assert (ranks == 1) == (weights <= 80 * GIB) == (not notes)
    assert ranks == 1 or weights <= ranks * 80 * GIB


def test_named_and_chosen_ranks_give_one_trace(tmp_path):
    rows = {}
    for name, options in {"chosen": (), "named": ("--tp", 4)}.items():
        trace = tmp_path / f"{name}.parquet"
        run_cli("kvtrace", "gen", "--model", "70b", *USERS, *options, "-o", trace)
        rows[name] = kt.read_trace(trace)
    assert rows["chosen"].to_arrow().equals(rows["named"].to_arrow())
    configs = [rows[name].metadata.config for name in rows]
    assert configs[0] == configs[1]
    assert rows["chosen"].metadata.model["ranks"] == 4


@pytest.mark.parametrize("command", [
    ("gen", "-o", "t.parquet"), ("size", "--target-hit", "0.1%"),
])  # fmt: skip
def test_commands_note_the_ranks_that_they_chose(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run_cli("kvtrace", *command, "--model", "70b", *USERS)
    assert result.stderr.count("--tp 4") == 1


def test_a_break_even_is_of_gpus_that_hold_the_model():
    answer = json.loads(run_cli("kvtrace", "breakeven", "--model", "70b", "--json").stdout)
    assert answer["tensor_parallel"] == 4
    assert kt.break_even(model="70b", tensor_parallel=1).tensor_parallel == 1


def test_a_study_notes_where_the_number_of_gpus_differs(tmp_path):
    file = tmp_path / "study.toml"
    file.write_text("""
[base]
users = 2
duration = "5s"
preset = "lmcache-disk"
model = "llama3.1-70b"

[grid]
tiers.gpu.capacity = ["16GiB", "48GiB"]
""")
    shown = run_cli("kvtrace", "study", file, "-o", tmp_path / "study").stdout
    assert shown.count("--tp 2 is chosen") == shown.count("--tp 4 is chosen") == 1
