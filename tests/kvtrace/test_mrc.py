"""Hits against capacity: the one-pass curve against a simulation at each capacity, and by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import TRACES, run_cli
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.geometry import Chains
from kvtrace.sweep import lru_curve, lru_hits


def chains_of(requests: list[list[int]]) -> Chains:
    chain = np.array([i for r in requests for i in r], dtype=np.int32)
    _distinct, dense = np.unique(chain, return_inverse=True)
    count = len(_distinct)
    offsets = np.concatenate([[0], np.cumsum([len(r) for r in requests])]).astype(np.int64)
    return Chains(offsets, dense.astype(np.int32), np.ones(count, np.int64), np.zeros(len(requests), np.int64))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True), min_size=1, max_size=30))
def test_the_curve_equals_a_simulation_at_every_capacity(requests):
    chains = chains_of(requests)
    curve = lru_curve(chains)
    capacities = list(range(1, len(chains.tokens) + 1))
    assert curve.hits[0] == 0
    assert [int(curve.hits[c]) for c in capacities] == lru_hits(chains, capacities)


def test_hits_and_inserts_by_hand():
    # Distances: a, b new; then b 1, a 2, and c new, a 2.
    curve = lru_curve(chains_of([[0, 1], [1, 0], [2, 0]]))
    # With one object: b hits, a does not. With two: b and a hit; the last request starts with a miss.
    assert curve.hits.tolist() == [0, 1, 2, 2]
    assert curve.inserts.tolist() == [6, 5, 3, 3]


def test_the_command_on_a_small_file(tmp_path):
    lines = [
        {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": ids} for ids in ([0, 1], [0, 2], [0, 1])
    ]
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plot = tmp_path / "mrc.svg"
    done = run_cli(
        "kvtrace", "mrc", path, "--source", "mooncake", "--model", "tiny-1b", "--points", 3, "--json", "--plot", plot
    )
    found = json.loads(done.stdout)
    size = 512 * 24_576
    assert (found["references"], found["object_bytes"]) == (6, size)
    # One object: none. Two: 0 of the second and of the third, where 2 has displaced 1. Three: 1 as well.
    assert [p["hits"] for p in found["points"]] == [0, 2, 3]
    assert found["points"][-1]["written_bytes"] == 3 * size
    assert found["points"][0]["passed_bytes"] == 3 * size
    assert found["enough"][-1] == {"share_of_hits": 1.0, "capacity_objects": 3, "capacity_bytes": 3 * size}
    assert plot.read_text().lstrip().startswith("<?xml")


def test_a_source_without_blocks_needs_a_chunk_size(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n")
    done = run_cli("kvtrace", "mrc", path, "--source", "azure", check=False)
    assert done.returncode == 2
    assert "--chunk-tokens" in done.stderr


@pytest.mark.traces
def test_the_ground_truth_in_one_pass():
    from kvtrace.geometry import block_chains
    from kvtrace.sources import mooncake

    curve = lru_curve(block_chains(mooncake.read(TRACES / "mooncake_conversation.jsonl")))
    capacities = [1000, 5000, 10000, 20000, 30000, 50000, 100000, len(curve.hits) - 1]
    hits = [12831, 31840, 60921, 82939, 93967, 102290, 104924, 105710]
    assert [int(curve.hits[c]) for c in capacities] == hits
