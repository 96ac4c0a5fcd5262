from __future__ import annotations

import itertools
import json

import pytest
from simulated import kvtrace
from whole import read_table

from kvtrace import __version__
from kvtrace.core.config import sha256
from kvtrace.core.schema import OBJECTS, REQUESTS, TRACE
from kvtrace.core.tables import objects_path, open_table

LINES = [
    {"timestamp": 0, "input_length": 1200, "output_length": 40, "hash_ids": [0, 1, 2]},
    {"timestamp": 10, "input_length": 700, "output_length": 0, "hash_ids": [0, 3]},
    {"timestamp": 10, "input_length": 0, "output_length": 3, "hash_ids": []},
    {"timestamp": 3000, "input_length": 1536, "output_length": 99, "hash_ids": [0, 1, 4]},
]


@pytest.fixture
def mooncake(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".csv.zst"])
def test_the_requests_of_a_file(tmp_path, monkeypatch, mooncake, suffix):
    path = tmp_path / f"r{suffix}"
    options = [
        "--source",
        "mooncake",
        mooncake,
        "--preset",
        "lmcache-disk",
        "-o",
        tmp_path / "t.parquet",
    ]
    assert kvtrace(monkeypatch, "gen", *options, "--requests-out", path) == 0
    table = read_table(path, REQUESTS)
    assert all(ns > 0 for ns in table["first_token_ns"].to_pylist())
    assert table.select(REQUESTS.names).to_pylist() == [
        {
            "arrival_ns": line["timestamp"] * 1_000_000, "request_id": n, "session_id": None, "turn": None,
            "input_tokens": line["input_length"], "output_tokens": line["output_length"],
            "block_ids": line["hash_ids"], "qos": None, "kind": "trace",
        }
        for n, line in enumerate(LINES)
    ]  # fmt: skip
    meta = open_table(path).meta
    assert meta.source["block_tokens"] == 512
    assert meta.stats["requests"] == meta.rows == 4


@pytest.mark.parametrize(
    ("option", "count"),
    [(["--limit", 2], 2), (["--duration", "3s"], 3), (["--duration", "10ms"], 1)],
)
def test_requests_that_were_not_let_in_are_not_listed(
    tmp_path, monkeypatch, mooncake, option, count
):
    path = tmp_path / "r.parquet"
    options = [
        "--source",
        "mooncake",
        mooncake,
        "-o",
        tmp_path / "t.parquet",
        "--requests-out",
        path,
    ]
    assert kvtrace(monkeypatch, "gen", *options, *option) == 0
    requests = read_table(path, REQUESTS)
    assert requests.num_rows == count == open_table(path).meta.stats["requests"]
    assert requests.column("block_ids").to_pylist() == [line["hash_ids"] for line in LINES[:count]]


def test_the_requests_of_users(tmp_path, monkeypatch):
    path, trace = tmp_path / "r.parquet", tmp_path / "t.parquet"
    options = ["--users", 20, "--duration", "60s", "-o", trace, "--requests-out", path]
    assert kvtrace(monkeypatch, "gen", *options) == 0
    rows = read_table(path, REQUESTS).to_pylist()
    assert len(rows) == open_table(trace).meta.stats["requests"] > 100
    assert [r["request_id"] for r in rows] == list(range(len(rows)))
    assert [r["arrival_ns"] for r in rows] == sorted(r["arrival_ns"] for r in rows)
    assert all(r["block_ids"] is None and r["qos"] for r in rows)
    assert {r["kind"] for r in rows} == {"chatbot", "coding", "document"}
    sessions: dict[int, list[dict]] = {}
    for row in rows:
        sessions.setdefault(row["session_id"], []).append(row)
    assert sorted(sessions) == list(range(len(sessions)))
    for turns in sessions.values():
        assert [t["turn"] for t in turns] == list(range(len(turns)))
        assert len({(t["qos"], t["kind"]) for t in turns}) == 1
        for before, after in itertools.pairwise(turns):
            # The history is part of the next prompt.
            assert after["input_tokens"] > before["input_tokens"] + before["output_tokens"]
    # A trace's requests are these, from their arrival on.
    arrivals = {r["request_id"]: r["arrival_ns"] for r in rows}
    for ts, request in zip(
        *(read_table(trace, TRACE).column(c).to_pylist() for c in ("ts_ns", "request_id")),
        strict=True,
    ):
        assert request is None or ts >= arrivals[request]


@pytest.mark.parametrize("preset", ["mlperf", "lmcache-disk"])
@pytest.mark.parametrize("source", ["users", "mooncake"])
def test_every_object_is_listed_with_its_size(tmp_path, monkeypatch, mooncake, preset, source):
    load = (
        ["--users", 5, "--duration", "30s"]
        if source == "users"
        else ["--source", "mooncake", mooncake]
    )
    path = tmp_path / "t.parquet"
    knobs = ["--set", "tiers.gpu.capacity=1GiB", "--set", "tiers.nvme.capacity=2GiB"]
    assert (
        kvtrace(monkeypatch, "gen", *load, "--preset", preset, "--tp", 2, *knobs, "-o", path) == 0
    )
    objects = read_table(objects_path(path), OBJECTS).to_pydict()
    trace = read_table(path, TRACE).to_pydict()
    assert objects["object_id"] == list(range(len(objects["key"])))
    assert len(set(objects["key"])) == len(objects["key"])
    assert not any(" " in key for key in objects["key"])
    assert set(objects["kind"]) == {"turn" if preset == "mlperf" else "chunk"}
    assert set(trace["object_id"]) <= set(objects["object_id"])
    assert all(
        objects["size_bytes"][o] == n
        for o, n in zip(trace["object_id"], trace["length_bytes"], strict=True)
    )
    # Two ranks, an object each.
    assert {(o % 2, r) for o, r in zip(trace["object_id"], trace["rank"], strict=True)} == {
        (0, 0),
        (1, 1),
    }
    if preset == "lmcache-disk":
        # In GPU memory the end of an answer takes no whole chunk.
        below_gpu = zip(trace["tier"], trace["length_bytes"], strict=True)
        assert {length for tier, length in below_gpu if tier > 0} == {256 * 65_536}
        assert max(objects["size_bytes"]) == 256 * 65_536
    elif source == "mooncake":
        assert objects["size_bytes"] == [n * 65_536 for n in (1200, 1200, 700, 700, 1536, 1536)]


def test_the_metadata_says_where_it_came_from(tmp_path, monkeypatch, mooncake):
    path = tmp_path / "t.parquet"
    argv = [
        "gen",
        "--source",
        "mooncake",
        str(mooncake),
        "--preset",
        "lmcache-disk",
        "--seed",
        "7",
        "--tp",
        "2",
    ]
    argv += ["--set", "tiers.nvme.capacity=500GiB"]
    outputs = ["-o", str(path), f"--requests-out={tmp_path / 'r.parquet'}"]
    assert kvtrace(monkeypatch, *argv, *outputs) == 0
    for name, table in (
        ("t.parquet", TRACE),
        ("t.objects.parquet", OBJECTS),
        ("r.parquet", REQUESTS),
    ):
        reader = open_table(tmp_path / name, table)
        meta = reader.meta
        assert (meta.table, meta.program, meta.version) == (table.name, "kvtrace", __version__)
        # The columns of times of requests came with version 2.
        assert meta.schema_version == 1 + (table is REQUESTS)
        assert meta.argv == ["kvtrace", *argv]
        assert (meta.seed, meta.preset, meta.clock_unit, meta.is_simulated) == (
            7,
            "lmcache-disk",
            "ns",
            True,
        )
        assert meta.config_sha256 == sha256(meta.config)
        assert meta.config["hierarchy"]["tiers"][2]["capacity"] == "500GiB"
        assert meta.config["tensor_parallel"] == 2
        assert [(t.name, t.capacity_bytes) for t in meta.tiers] == [
            ("gpu", 48 << 30), ("cpu", 128 << 30), ("nvme", 500 << 30),
        ]  # fmt: skip
        assert meta.model["name"] == "llama3.1-8b"
        assert meta.model["ranks"] == 2
        assert meta.source["file"] == "m.jsonl"
        assert meta.source["requests"] == 4
        assert meta.rows == sum(batch.num_rows for batch in reader.batches()) > 0
        assert meta.stats["requests"] == 4
        assert any("infinitely fast" in note for note in meta.notes)


def test_users_are_named_as_the_source(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    assert kvtrace(monkeypatch, "gen", "--users", 3, "--duration", "5s", "-o", path) == 0
    meta = open_table(path).meta
    assert meta.source == {"kind": "synthetic", "users": 3}
    assert (meta.seed, meta.preset, meta.config["duration_ns"]) == (42, "mlperf", 5 * 10**9)
