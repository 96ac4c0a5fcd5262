"""study.toml.

Which configurations it makes, in which order, and what is said of a mistake in it.
"""

from __future__ import annotations

import pytest
from phrases import shows
from study_workers import BEGIN, study_file

from kvtrace.core.errors import ConfigError
from kvtrace.core.units import price_of_byte
from kvtrace.sim.presets.preset import load_preset
from kvtrace.studies.gen_options import gen_option_names
from kvtrace.studies.study import read_study


def read(folder, text):
    path = study_file(folder, text)
    return read_study(
        path,
        frozenset(gen_option_names()),
        "mlperf",
        lambda tier, of: price_of_byte(of, f"{path}: {tier}"),
    )


def test_the_last_axis_varies_fastest(tmp_path):
    found = read(tmp_path, BEGIN + '[grid]\nseed = [1, 2]\ntiers.nvme.capacity = ["1GiB", "2GiB"]')
    assert [(one.knobs["seed"], one.knobs["tiers.nvme.capacity"]) for one in found.configurations] == [
        (1, "1GiB"), (1, "2GiB"), (2, "1GiB"), (2, "2GiB"),
    ]  # fmt: skip
    assert found.axes == {"seed": [1, 2], "tiers.nvme.capacity": ["1GiB", "2GiB"]}
    assert (
        found.configurations[1].command
        == "kvtrace gen --preset lmcache-disk --model tiny-1b --users 2 --duration 3s --seed 1"
        " --set tiers.gpu.capacity=64MiB --set tiers.cpu.capacity=64MiB --set"
        " tiers.nvme.capacity=2GiB"
    )


def test_a_list_is_each_with_the_whole_grid(tmp_path):
    text = """
        [[configuration]]
        preset = "mlperf"
        [[configuration]]
        preset = "lmcache-disk"
        chunk_tokens = 128
        [grid]
        users = [1, 2]
    """
    found = [one.knobs for one in read(tmp_path, text).configurations]
    assert found == [
        {"preset": "mlperf", "users": 1},
        {"preset": "mlperf", "users": 2},
        {"preset": "lmcache-disk", "chunk_tokens": 128, "users": 1},
        {"preset": "lmcache-disk", "chunk_tokens": 128, "users": 2},
    ]


def test_options_and_knobs_are_told_apart(tmp_path):
    text = """
        [base]
        file = "r.jsonl"
        limit = 7
        kv_dtype = "fp8"
        tiers.nvme.ttl = "1m"
        merge_ranks = true
        preset = "lmcache-disk"
    """
    (one,) = read(tmp_path, text).configurations
    assert one.argv == (
        *("r.jsonl", "--limit", "7", "--kv-dtype", "fp8", "--preset", "lmcache-disk"),
        *("--set", "tiers.nvme.ttl=1m", "--set", "merge_ranks=true"),
    )


def test_prices_are_of_a_byte(tmp_path):
    assert read(tmp_path, BEGIN + '[price]\nnvme = "3/GiB"\ncpu = "2/kB"').price == {
        "nvme": 3 / 2**30,
        "cpu": 0.002,
    }


REFUSED = {
    "no toml": ("[base", "not valid TOML"),
    "part": ("[bases]\nusers = 2", "base"),
    "knob": (BEGIN + "[grid]\nchunk_token = [1]",
             "grid: chunk_token … lmcache-disk … chunk_tokens"),
    "option": (BEGIN + "[grid]\nuser = [1]", "grid: user … lmcache-disk"),
    "tier": (BEGIN + 'tiers.nvm.capacity = "1GiB"', "base: tiers.nvm.capacity"),
    "output": (BEGIN + 'output = "t.parquet"', "base: output"),
    "one value": (BEGIN + "[grid]\nseed = 1", "grid: seed: … [1]"),
    "no value": (BEGIN + "[grid]\nseed = []", "grid: seed:"),
    "a list in base": ("[base]\nusers = [1, 2]", "base: users … [grid]"),
    "lists of lists": ("[grid]\nusers = [[1, 2]]", "grid: users: [1, 2]"),
    "twice": ("[[configuration]]\nusers = 2\n[grid]\nusers = [1]", "configuration 1: users"),
    "infinite": ("[base]\ntime-scale = inf", "base: time-scale: inf"),
    "too large": (f"[base]\nusers = {'1' * 400}", f"base: users: {'1' * 400}"),
    "too many": (f"[grid]\nseed = {list(range(400))}\nusers = {list(range(1, 400))}", "159,600 configurations"),
    "price": (BEGIN + '[price]\nnvme = "1"', "nvme: … 4/GiB … 0.1/GiB"),
    "tier of a price": (BEGIN + '[price]\nnmve = "1/GiB"', "price: nmve"),
    "preset": ('[base]\npreset = "lmcache-disc"\nchunk_tokens = 3', "lmcache-disk"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_a_mistake_is_said_with_file_and_key(tmp_path, what):
    text, said = REFUSED[what]
    with pytest.raises(ConfigError) as error:
        read(tmp_path, text)
    assert shows(str(error.value), said)
    assert str(tmp_path / "study.toml") in str(error.value)


def test_a_tier_without_a_bound_is_a_value_too():
    tier = load_preset(
        "lmcache-disk", ["tiers.nvme.capacity=1GiB", "tiers.nvme.capacity=unlimited"]
    ).tiers[-1]
    assert tier.capacity_bytes is None
