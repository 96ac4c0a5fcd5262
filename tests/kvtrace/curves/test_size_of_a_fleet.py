"""`kvtrace size --nodes`: capacities of each node, held against `kvtrace gen` at every capacity."""

from __future__ import annotations

import json
import re
import shlex
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import run_cli

NODES = 3
DRAM, NVME = ("128MiB", "512MiB"), ("256MiB", "1GiB", "4GiB")
PRICES = {"dram": 4.0, "nvme": 0.5}
"""Of a GiB."""
TARGET = 0.6


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a file of 240 requests of 40 prompts, some of which come far more often."""
    path, rng = tmp_path_factory.mktemp("fleet") / "r.jsonl", np.random.default_rng(3)
    lines = []
    for number in range(240):
        prompt = min(39, int(rng.exponential(12)))
        lines.append(
            {
                "timestamp": 1000 * number,
                "input_length": 2048,
                "output_length": 2,
                "hash_ids": [100 * prompt + block for block in range(4)],
            }
        )
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


STACK = ("--model", "tiny-1b", "--source", "mooncake", "--preset", "lmcache-disk")
STACK += ("--set", "tiers.gpu.capacity=0", "--nodes", str(NODES), "--router", "round-robin")


def size(log: Path, *options: str) -> Any:
    found = run_cli("kvtrace", "size", log, *STACK, "--target-hit", str(TARGET), "--json", *options)
    return json.loads(found.stdout)


def gen(log: Path, folder: Path, dram: str, nvme: str, *options: str) -> Any:
    sizes = ("--set", f"tiers.cpu.capacity={dram}", "--set", f"tiers.nvme.capacity={nvme}")
    argv = ("kvtrace", "gen", log, *STACK, "--gpu", "instant", *sizes, *options)
    done = run_cli(*argv, "-o", folder / "t.parquet", "--force", "--json")
    return json.loads(done.stdout)["stats"]


@pytest.mark.parametrize("scope", ["node", "fleet"])
def test_the_answer_is_the_cheapest_that_gen_reaches(log, tmp_path, scope):
    """A drive that the nodes share is bought once, others for each node."""
    more = ("--set", f"tiers.nvme.scope={scope}")
    prices = (f"--price=dram={PRICES['dram']}/GiB", f"--price=nvme={PRICES['nvme']}/GiB")
    found = size(log, "--dram", ",".join(DRAM), "--nvme", ",".join(NVME), *prices, *more)
    drives = NODES if scope == "node" else 1
    costs = {}
    for dram, nvme in product(DRAM, NVME):
        stats = gen(log, tmp_path, dram, nvme, *more)
        if stats["fleet"]["hit_ratio"] >= TARGET and not stats.get("stalled_requests"):
            costs[dram, nvme] = NODES * gib(dram) * PRICES["dram"]
            costs[dram, nvme] += drives * gib(nvme) * PRICES["nvme"]
    assert costs
    chosen = found["chosen"]
    assert chosen["price"] == pytest.approx(min(costs.values()))
    assert len(set(costs.values())) < len(DRAM) * len(NVME)


def gib(size: str) -> float:
    (number, unit) = re.fullmatch(r"(\d+)(MiB|GiB)", size).groups()
    return int(number) / (1024 if unit == "MiB" else 1)


def test_a_searched_answer_reproduces_and_less_misses(log, tmp_path):
    found = size(log)
    chosen = found["chosen"]
    (line,) = re.findall(r"--gpu instant (--set .*)", run_notes(log))
    done = run_cli(
        *("kvtrace", "gen", log, *STACK, "--gpu", "instant", *shlex.split(line)),
        *("-o", tmp_path / "t.parquet", "--force", "--json"),
    )
    stats = json.loads(done.stdout)["stats"]
    assert stats["fleet"]["hit_ratio"] == pytest.approx(chosen["hit_ratio"])
    assert chosen["hit_ratio"] >= TARGET
    dram, nvme = (chosen["capacities"][role] for role in ("dram", "nvme"))
    assert nvme > 0
    less = gen(log, tmp_path, f"{dram}B", f"{int(nvme * 0.97)}B")
    assert less["fleet"]["hit_ratio"] < TARGET


def run_notes(log: Path) -> str:
    return run_cli("kvtrace", "size", log, *STACK, "--target-hit", str(TARGET)).stdout


def test_the_answer_says_that_capacities_are_of_a_node(log):
    assert "a node" in run_notes(log).splitlines()[0]


def test_wear_is_that_of_one_drive(log):
    found = size(log, "--dram", "512MiB", "--nvme", "4GiB", "--endurance", "1DWPD,5y")
    (drive,) = (tier for tier in found["chosen"]["tiers"] if tier["name"] == "nvme")
    assert drive["instances"] == NODES
    days = found["chosen"]["load_ns"] / 86_400e9
    each = drive["written_bytes"] / NODES / drive["capacity_bytes"] / days
    assert drive["drive_writes_per_day"] == pytest.approx(each)
