"""Several policies in one call of `mrc` and `sim` give what each gives alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import run_cli

from kvtrace.curves.mrc import check_policy

EXAMPLE = Path(__file__).parents[3] / "examples/conversation.jsonl"
SOURCE = (EXAMPLE, "--source", "mooncake")
MRC = ("mrc", *SOURCE, "--points", "5")
SIM = ("sim", *SOURCE, "--capacity-blocks", "100,1000,unlimited")


@pytest.mark.parametrize("command", [MRC, SIM])
def test_each_policy_is_counted_as_alone(command: tuple[object, ...]) -> None:
    policies = ("lru", "s3fifo", "arc")
    alone = [
        json.loads(run_cli("kvtrace", *command, "--policy", policy, "--json").stdout)
        for policy in policies
    ]
    together = run_cli("kvtrace", *command, "--policy", ",".join(policies), "--json").stdout
    assert json.loads(together) == {"policies": alone}


def test_the_table_has_a_column_for_each_policy() -> None:
    shown = run_cli("kvtrace", *SIM, "--policy", "lru,optimal").stdout.splitlines()
    header = next(line for line in shown if line.startswith("capacity in blocks"))
    assert header.split()[-2:] == ["lru", "optimal"]
    # LRU keeps all blocks of an unlimited cache, so both have the most hits there.
    assert "1 by lru, 3 by optimal, of 3" in "\n".join(shown)
    row = next(line for line in shown if "unlimited" in line).split()
    assert row[1] == row[3]


def test_a_lifetime_is_that_of_ttl_alone() -> None:
    together = run_cli("kvtrace", *SIM, "--policy", "lru,ttl", "--ttl", "10m", "--json").stdout
    first, second = json.loads(together)["policies"]
    assert (first["ttl_ns"], second["ttl_ns"]) == (None, 600 * 10**9)


def test_a_policy_that_is_named_twice_is_refused() -> None:
    for names in ("lru,lru", "lru,LRU"):
        assert run_cli("kvtrace", *SIM, "--policy", names, check=False).returncode == 2


@pytest.mark.parametrize(
    ("name", "policy"),
    [("LRU", "lru"), ("S3-FIFO", "s3fifo"), ("Belady", "optimal"), ("optimal", "optimal")],
)
def test_a_policy_has_the_names_of_its_paper(name, policy):
    assert check_policy(name) == policy
