"""What the real Mooncake conversation trace must give, exactly."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import TRACES, run_cli
from evictions import policy_hits

from kvtrace.core.schema import TRACE
from kvtrace.core.tables import open_table
from kvtrace.requests import mooncake
from kvtrace.sim.chains import Chains, block_chains
from kvtrace.sim.policies import Policy
from kvtrace.trace.inventory import check, take

pytestmark = pytest.mark.traces

CONVERSATION = TRACES / "mooncake_conversation.jsonl"
HITS = {
    1000: 12831, 5000: 31840, 10000: 60921, 20000: 82939, 30000: 93967, 50000: 102290, 100000: 104924, None: 105710,
}  # fmt: skip


def test_hits_by_capacity():
    requests = mooncake.read(CONVERSATION)
    chains = block_chains(requests)
    assert (len(requests), len(chains.slots)) == (12_031, 288_500)
    assert requests.origin["block_references"] == 288_500
    assert policy_hits(chains, list(HITS), "lru") == list(HITS.values())


# Each reference a request of its own: as libcachesim 0.3.5 counts them, at 1,000, 10,000 and 50,000
# blocks.
OTHERS = {
    "lfu": [13871, 38013, 99189], "fifo": [12559, 53812, 98096], "clock": [12884, 61830, 102190],
    "s3fifo": [15676, 55525, 82850], "sieve": [13871, 38013, 99189], "arc": [15275, 64205, 99056],
}  # fmt: skip


@pytest.mark.parametrize(("policy", "hits"), OTHERS.items())
def test_hits_of_other_policies(policy, hits):
    blocks = block_chains(mooncake.read(CONVERSATION)).slots
    count = len(blocks)
    chains = Chains(np.arange(count + 1), blocks, np.ones(blocks.max() + 1, np.int64))
    assert policy_hits(chains, [1000, 10_000, 50_000], Policy(policy)) == hits


def test_hits_until_they_expire_as_a_command():
    options = [
        "--source",
        "mooncake",
        "--policy",
        "ttl",
        "--capacity-blocks",
        "unlimited",
        "--json",
    ]
    found = [
        json.loads(run_cli("kvtrace", "sim", CONVERSATION, *options, "--ttl", ttl).stdout)
        for ttl in ("5m", "2h")
    ]
    # The trace is an hour long, and so two hours are for ever.
    assert [f["results"][0]["hits"] for f in found] == [71_654, HITS[None]]
    assert found[0]["ttl_ns"] == 300 * 10**9


def test_hits_by_capacity_as_a_command():
    capacities = ",".join("unlimited" if c is None else str(c) for c in HITS)
    options = ["--source", "mooncake", "--policy", "lru", "--capacity-blocks", capacities]
    found = json.loads(run_cli("kvtrace", "sim", CONVERSATION, *options, "--json").stdout)
    assert found["references"] == 288_500
    assert [(r["capacity_blocks"], r["hits"]) for r in found["results"]] == list(HITS.items())
    assert all(r["hits"] <= r["optimal_hits"] <= HITS[None] for r in found["results"])
    table = run_cli("kvtrace", "sim", CONVERSATION, *options).stdout.splitlines()
    assert table[-1].split() == ["unlimited", "105,710", "36.64", "%", "36.64", "%"]


@pytest.mark.full
def test_a_ground_truth_trace_is_valid_and_within_capacity(tmp_path):
    path = tmp_path / "conv.parquet"
    made = json.loads(
        run_cli(
            "kvtrace",
            "gen",
            CONVERSATION,
            "--source",
            "mooncake",
            "--preset",
            "lmcache-disk",
            "-o",
            path,
            "--json",
        ).stdout
    )
    assert made["stats"]["requests"] == 12_031
    # Full chunks only: 256 tokens of each prompt.
    chunks = sum(int(r) // 256 for r in mooncake.read(CONVERSATION).input_tokens)
    assert (
        made["stats"]["lookups"]
        == chunks
        == made["stats"]["misses"] + sum(t["hits"] for t in made["stats"]["tiers"])
    )
    ledger, has_table = check(open_table(path, TRACE), lambda _: None)
    assert has_table
    assert ledger.rows == made["rows"]
    found = take(open_table(path, TRACE), lambda _: None)
    operations = {(c["tier"], c["op"]): c for c in found["operations"]}
    deleted = 0
    for tier, counted in zip(found["tiers"], made["stats"]["tiers"], strict=True):
        assert 0 < tier["peak_live_bytes"] <= tier["capacity_bytes"]
        assert tier["live_bytes_at_end"] == counted["live_bytes"]
        cells = [c for c in found["operations"] if c["tier"] == tier["name"]]
        for op in ("read", "write", "delete"):
            key = {"read": "read_bytes", "write": "written_bytes", "delete": "deleted_bytes"}[op]
            assert sum(c["bytes"] for c in cells if c["op"] == op) == counted[key]
        deleted += sum(c["operations"] for c in cells if c["op"] == "delete")
    assert deleted > 1000
    assert ("nvme", "delete") in operations
