"""What the real Mooncake conversation trace must give, exactly."""

from __future__ import annotations

import json

import pytest
from conftest import TRACES, run_cli

from kvtrace.core.schema import TRACE
from kvtrace.core.traceio import open_table
from kvtrace.geometry import block_chains
from kvtrace.inventory import check, take
from kvtrace.sources import mooncake
from kvtrace.sweep import lru_hits

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
    assert lru_hits(chains, list(HITS)) == list(HITS.values())


def test_hits_by_capacity_as_a_command():
    capacities = ",".join("unlimited" if c is None else str(c) for c in HITS)
    options = ["--source", "mooncake", "--policy", "lru", "--capacity-blocks", capacities]
    found = json.loads(run_cli("kvtrace", "sim", CONVERSATION, *options, "--json").stdout)
    assert found["references"] == 288_500
    assert found["results"] == [{"capacity_blocks": c, "hits": h} for c, h in HITS.items()]
    table = run_cli("kvtrace", "sim", CONVERSATION, *options).stdout.splitlines()
    assert table[-2].split() == ["unlimited", "105,710", "36.6", "%"]


def test_a_trace_of_it_is_valid_has_deletes_and_stays_within_capacity(tmp_path):
    path = tmp_path / "conv.parquet"
    made = json.loads(
        run_cli(
            "kvtrace", "gen", CONVERSATION, "--source", "mooncake", "--preset", "lmcache-disk", "-o", path, "--json"
        ).stdout
    )
    assert made["stats"]["requests"] == 12_031
    # Full chunks only: 256 tokens of each prompt.
    chunks = sum(int(r) // 256 for r in mooncake.read(CONVERSATION).input_tokens)
    assert (
        made["stats"]["lookups"] == chunks == made["stats"]["misses"] + sum(t["hits"] for t in made["stats"]["tiers"])
    )
    ledger = check(open_table(path, TRACE), lambda _: None)
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
