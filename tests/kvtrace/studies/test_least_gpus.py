"""`kvtrace plan --slo`: the least GPUs, against a simulation of every smaller fleet."""

from __future__ import annotations

import json
import shlex

import numpy as np
import pytest
from conftest import run_cli


@pytest.fixture(scope="module")
def requests(tmp_path_factory):
    """Return a file of long prompts, more than one GPU computes."""
    path, rng = tmp_path_factory.mktemp("gpus") / "r.jsonl", np.random.default_rng(7)
    times = np.sort(rng.integers(0, 60_000, 900))
    with path.open("w") as out:
        for at in times:
            first = int(rng.integers(0, 100)) * 100
            row = {"timestamp": int(at), "input_length": 8192, "output_length": 20}
            out.write(json.dumps(row | {"hash_ids": list(range(first, first + 16))}) + "\n")
    return path


def share_of(command, folder):
    """Return the share of requests within the service level, of a `kvtrace gen`."""
    words = [*shlex.split(command), "-o", folder / "t.parquet", "--force", "--json"]
    goodput = json.loads(run_cli(*words).stdout)["stats"]["goodput"]
    return goodput["share"]


def test_one_node_less_misses_the_service_level(requests, tmp_path):
    found = json.loads(
        run_cli(
            "kvtrace", "plan", requests, "--source", "mooncake", "--gpu", "h100", "--tp", "1",
            "--slo", "ttft=1s,tpot=60ms,share=95%", "-o", tmp_path / "out", "--json",
            "--set", "tiers.gpu.capacity=4GiB",
        ).stdout
    )  # fmt: skip
    with_cache, without = found["least_gpus"]
    assert (with_cache["cache"], without["cache"]) == ("with the largest cache", "without offload")
    assert all(count["is_met"] for count in (with_cache, without))
    # Three of four prompts come again, later than GPU memory holds them: hits save GPUs.
    assert 1 < with_cache["gpus"] < without["gpus"]
    for count in (with_cache, without):
        assert share_of(count["command"], tmp_path) == count["goodput_share"] >= 0.95
        fewer = count["nodes"] - 1
        assert fewer > 1
        command = count["command"].replace(f"--nodes {count['nodes']}", f"--nodes {fewer}")
        routed = [
            command.replace(f"--router {old}", f"--router {new}")
            for old in ("prefix", "round-robin")
            for new in ("prefix", "round-robin")
        ]
        for line in set(routed):
            assert share_of(line, tmp_path) < 0.95
    assert found["chosen"]["nodes"] == with_cache["nodes"]
    assert found["chosen"]["goodput_share"] >= 0.95
    assert found["answer"].startswith(f"{with_cache['gpus']} GPUs")
    assert found["target"]["service_level"] == {
        "ttft_ns": 10**9, "tpot_ns": 60 * 10**6, "share": 0.95,
    }  # fmt: skip


def test_a_level_that_no_fleet_meets_is_said(requests, tmp_path):
    done = run_cli(
        "kvtrace", "plan", requests, "--source", "mooncake", "--gpu", "h100", "--limit", "20",
        "--slo", "tpot=1ns", "-o", tmp_path / "out", "--json",
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert not any(count["is_met"] for count in found["least_gpus"])
    assert found["chosen"] is None
    assert "no number of GPUs" in found["answer"]


def test_given_nodes_are_not_searched(requests, tmp_path):
    done = run_cli(
        "kvtrace", "plan", requests, "--source", "mooncake", "--gpu", "h100", "--nodes", "4",
        "--slo", "ttft=5s", "-o", tmp_path / "out", "--json",
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["least_gpus"] is None
    assert found["chosen"]["nodes"] == 4


def test_size_takes_a_service_level(requests):
    options = ["--source", "mooncake", "--preset", "lmcache-disk", "--gpu", "h100", "--json"]
    found = json.loads(
        run_cli("kvtrace", "size", requests, *options, "--slo", "ttft=20s,share=50%").stdout
    )
    chosen = found["chosen"]
    assert chosen["goodput"]["share"] >= 0.5
    unmet = json.loads(run_cli("kvtrace", "size", requests, *options, "--slo", "ttft=1ns").stdout)
    assert unmet["chosen"] is None
