"""Hits against capacity: the one-pass curve against a simulation at each capacity, and by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from conftest import TRACES, run_cli
from evictions import OF_OBJECTS, policy_hits
from hypothesis import given, settings
from hypothesis import strategies as st
from phrases import shows
from simulated import kvtrace

from kvtrace.curves.stack import OPTIMAL, Uses, estimate, lru_curve, policy_uses
from kvtrace.requests import mooncake
from kvtrace.sim.chains import Chains, block_chains
from kvtrace.sim.policies import Policy


def chains_of(requests: list[list[int]]) -> Chains:
    chain = np.array([i for r in requests for i in r], dtype=np.int32)
    _distinct, dense = np.unique(chain, return_inverse=True)
    count = len(_distinct)
    offsets = np.concatenate([[0], np.cumsum([len(r) for r in requests])]).astype(np.int64)
    return Chains(offsets, dense.astype(np.int32), np.ones(count, np.int64))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True), min_size=1, max_size=30
    )
)
def test_the_curve_equals_a_simulation_at_every_capacity(requests):
    chains = chains_of(requests)
    curve = lru_curve(chains)
    capacities = list(range(1, len(chains.tokens) + 1))
    assert curve.hits[0] == 0
    assert [int(curve.hits[c]) for c in capacities] == policy_hits(
        chains, capacities, "lru", sizes=np.ones(len(chains.tokens), np.int64)
    )


def test_hits_and_inserts_by_hand():
    # Distances: a, b new; then b 1, a 2, and c new, a 2.
    curve = lru_curve(chains_of([[0, 1], [1, 0], [2, 0]]))
    # With one object: b hits, a does not. With two: b and a hit; the last request starts with a
    # miss.
    assert curve.hits.tolist() == [0, 1, 2, 2]
    assert curve.inserts.tolist() == [6, 5, 3, 3]


def test_the_command_on_a_small_file(tmp_path):
    lines = [
        {"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": ids}
        for ids in ([0, 1], [0, 2], [0, 1])
    ]
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plot = tmp_path / "mrc.svg"
    done = run_cli(
        "kvtrace",
        "mrc",
        path,
        "--source",
        "mooncake",
        "--model",
        "tiny-1b",
        "--points",
        3,
        "--json",
        "--plot",
        plot,
    )
    found = json.loads(done.stdout)
    size = 512 * 24_576
    assert (found["references"], found["object_bytes"]) == (6, size)
    # One object: none. Two: 0 of the second and of the third, where 2 has displaced 1. Three: 1 as
    # well.
    assert [p["hits"] for p in found["points"]] == [0, 2, 3]
    assert found["points"][-1]["written_bytes"] == 3 * size
    assert found["points"][0]["passed_bytes"] == 3 * size
    all_hits = {"share_of_hits": 1.0, "capacity_objects": 3, "capacity_bytes": 3 * size}
    assert found["enough"][-1] == all_hits | {"is_at_most": False}
    assert plot.read_text().lstrip().startswith("<?xml")


def test_what_nothing_hits_has_no_shares_of_hits(tmp_path):
    lines = [
        {"timestamp": n, "input_length": 1024, "output_length": 1, "hash_ids": [2 * n, 2 * n + 1]}
        for n in (0, 1)
    ]
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for policy in ("lru", "arc"):
        said = run_cli(
            "kvtrace", "mrc", path, "--source", "mooncake", "--model", "tiny-1b", "--policy", policy
        ).stdout
        assert "no hits" in said
        assert "possible hits" not in said


def test_a_partial_last_block_is_no_object(tmp_path, monkeypatch, capsys):
    # The second prompt ends within block 1, which gen would not store and the third cannot find.
    lines = [
        {"timestamp": 0, "input_length": tokens, "output_length": 1, "hash_ids": ids}
        for tokens, ids in ((1024, [0, 1]), (1000, [0, 2]), (1000, [0, 2]))
    ]
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = command(monkeypatch, capsys, "mrc", path, "--points", 9)
    assert (
        found["references"],
        found["points"][-1]["capacity_objects"],
        found["points"][-1]["hits"],
    ) == (4, 2, 2)
    for full, references, hits in (([], 6, 3), (["--full-blocks"], 4, 2)):
        counted = command(monkeypatch, capsys, "sim", path, "--capacity-blocks", "unlimited", *full)
        assert (counted["references"], counted["results"][0]["hits"]) == (references, hits)
        assert counted["full_blocks"] == bool(full)
    made = command(monkeypatch, capsys, "gen", path, "--preset", "lmcache-disk", "--set", "chunk_tokens=512",
                   "-o", tmp_path / "t.parquet")  # fmt: skip
    assert made["stats"]["lookups"] == found["references"]


@pytest.mark.traces
def test_how_much_the_conversation_trace_needs(monkeypatch, capsys):
    path = TRACES / "mooncake_conversation.jsonl"
    most = command(monkeypatch, capsys, "mrc", path)["points"][-1]
    counted = set()
    for text in path.read_text().splitlines():
        row = json.loads(text)
        counted.update(row["hash_ids"][: row["input_length"] // 512])
    assert most["capacity_objects"] == len(counted)


def test_as_many_requests_as_are_asked_for(tmp_path):
    path = tmp_path / "r.jsonl"
    lines = [
        {"timestamp": n, "input_length": 1024, "output_length": 1, "hash_ids": [n, n + 1]}
        for n in range(9)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = run_cli("kvtrace", "mrc", path, "--source", "mooncake", "--limit", "4", "--json")
    assert (json.loads(done.stdout)["requests"], json.loads(done.stdout)["references"]) == (4, 8)


def test_a_source_without_blocks_needs_a_chunk_size(tmp_path):
    path = tmp_path / "s.json"
    turns = [{"from": "human", "value": "a question"}, {"from": "gpt", "value": "an answer"}]
    path.write_text(json.dumps([{"id": "one", "conversations": turns * 2}]))
    done = run_cli("kvtrace", "mrc", path, "--source", "sharegpt", check=False)
    assert done.returncode == 2
    assert "--chunk-tokens" in done.stderr


REQUESTS = [[0, 1, 2], [0, 3], [4, 5], [0, 1], [7], [0, 1, 6], [4, 5], [0, 3]]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.integers(0, 9), min_size=1, max_size=8, unique=True), min_size=1, max_size=30
    ),
    st.integers(1, 10),
)
def test_lru_by_the_references_themselves_is_lru_by_a_list(requests, capacity):
    live, hits, inserts = [], 0, 0
    for request in requests:
        is_leading = True
        for key in request:
            if key in live:
                live.remove(key)
                hits += is_leading
            else:
                is_leading = False
                inserts += 1
                live = live[-(capacity - 1) :] if capacity > 1 else []
            live.append(key)
    assert policy_uses(chains_of(requests), [capacity], Policy.LRU) == [Uses(hits, inserts)]


@pytest.fixture
def small(tmp_path):
    """REQUESTS as a Mooncake file."""
    path = tmp_path / "c.jsonl"
    lines = [
        {"timestamp": 0, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
        for ids in REQUESTS
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def command(monkeypatch, capsys, *arguments):
    assert kvtrace(monkeypatch, *arguments, "--source", "mooncake", "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_what_is_enough_is_exact_for_lru_and_at_most_for_others(small, monkeypatch, capsys):
    for policy, is_at_most in (("lru", False), ("s3fifo", True)):
        found = command(monkeypatch, capsys, "mrc", small, "--policy", policy, "--points", 3)
        assert {of["is_at_most"] for of in found["enough"]} == {is_at_most}
        assert kvtrace(monkeypatch, "mrc", small, "--policy", policy, "--points", 3) == 0
        said = [line for line in capsys.readouterr().out.splitlines() if "possible hits" in line]
        assert len(said) == len(found["enough"])
        assert all(
            (": at most " in line and "these capacities" in line) == is_at_most for line in said
        )


@pytest.mark.parametrize("policy", [p for p in OF_OBJECTS if p is not Policy.TTL])
def test_all_objects_are_what_sim_counts(small, monkeypatch, capsys, policy):
    sample = [] if policy is Policy.LRU else ["--sample", 1]
    found = command(monkeypatch, capsys, "mrc", small, "--policy", policy, "--points", 30, *sample)
    assert (found["policy"], found["sampling_rate"], found["references"]) == (policy, 1.0, 17)
    capacities = ",".join(str(p["capacity_objects"]) for p in found["points"])
    assert capacities == "1,2,3,4,5,6,7,8"
    counted = command(
        monkeypatch, capsys, "sim", small, "--policy", policy, "--capacity-blocks", capacities
    )
    assert [p["hits"] for p in found["points"]] == [r["hits"] for r in counted["results"]]
    assert {p["hit_ratio_error"] for p in found["points"]} == {0.0}
    # With room for all, each is written once, and each of the 9 references that remain is a hit.
    assert (found["points"][-1]["hits"], found["points"][-1]["written_bytes"]) == (
        9,
        8 * found["object_bytes"],
    )


def test_written_by_hand(small, monkeypatch, capsys):
    found = command(monkeypatch, capsys, "mrc", small, "--policy", "fifo", "--points", 30)
    size = found["object_bytes"]
    # Room for 3: 0 1 2 | 0 hits, 3 for 0 | 4 for 1, 5 for 2 | 0 for 3, 1 for 4 | 7 for 5 | 0 hits,
    # 1 hits, 6 for 0 | 4 for 1, 5 for 7 | 0 for 6, 3 for 4.
    assert found["points"][2] == {
        "capacity_objects": 3, "capacity_bytes": 3 * size, "hits": 3, "hit_ratio": 3 / 17, "hit_ratio_error": 0.0,
        "optimal_hit_ratio": 7 / 17,
        "read_bytes": 3 * size, "passed_bytes": 6 * size, "written_bytes": 14 * size, "written_bytes_error": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "mru"], "policy 'mru'"),
        (
            ["--policy", "ttl"],
            "--policy ttl:",
        ),
        (["--policy", "arc", "--sample", "0"], "--sample 0: … 0 … 1"),
        (["--policy", "arc", "--sample", "1.5"], "--sample 1.5: … 0 … 1"),
        (["--sample", "0.5"], "--sample 0.5: lru"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(small, monkeypatch, capsys, options, message):
    assert kvtrace(monkeypatch, "mrc", small, "--source", "mooncake", *options) == 2
    assert shows(capsys.readouterr().err, message)


@pytest.mark.first(policy=2)
@pytest.mark.traces
@pytest.mark.parametrize(
    "policy", [OPTIMAL, *(p for p in OF_OBJECTS if p not in (Policy.TTL, Policy.LRU))]
)
def test_samples_of_the_conversation_trace_are_in_their_bounds(policy):
    chains = block_chains(mooncake.read(TRACES / "mooncake_conversation.jsonl"))
    capacities = [300, 3_000, 10_000, 30_000, 100_000]
    lru = lru_curve(chains)
    for rate, most in ((0.1, 0.03), (0.3, 0.01)):
        found = estimate(chains, capacities, policy, lru, rate=rate)
        for guess, uses in zip(found, policy_uses(chains, capacities, policy), strict=True):
            assert abs(guess.hits - uses.hits) <= guess.hits_error < most * lru.references
            assert abs(guess.inserts - uses.inserts) <= guess.inserts_error < most * lru.references
            assert guess.sampled_references < 5 * rate * lru.references


@pytest.mark.traces
def test_the_ground_truth_in_one_pass():
    curve = lru_curve(block_chains(mooncake.read(TRACES / "mooncake_conversation.jsonl")))
    capacities = [1000, 5000, 10000, 20000, 30000, 50000, 100000, len(curve.hits) - 1]
    hits = [12831, 31840, 60921, 82939, 93967, 102290, 104924, 105710]
    assert [int(curve.hits[c]) for c in capacities] == hits
