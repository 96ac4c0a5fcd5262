"""`kvtrace merge`.

Every row of each trace is there once, in order of time, and nothing of two traces is the same.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from phrases import shows
from whole import read_table

from kvtrace import cli
from kvtrace.core import metadata, parquet_tables
from kvtrace.core.metadata import TierFacts
from kvtrace.core.schema import OBJECTS, REQUESTS, TRACE, arrow_schema
from kvtrace.core.tables import create, objects_path, open_table
from kvtrace.trace import merge as merging
from kvtrace.trace.merge import Input

TIERS = st.sampled_from(
    [("gpu", "cpu", "nvme"), ("cpu", "nvme"), ("nvme",), ("gpu", "nvme"), ("nvme", "s3")]
)
ROWS = st.lists(
    st.tuples(
        st.integers(0, 8),
        st.sampled_from(TRACE.column("op").values),
        st.integers(0, 9),
        st.sampled_from([None, 0, 1, 5]),
        st.integers(0, 3),
    ),
    max_size=30,
)


def write(path: Path, rows, tiers, *, nodes: bool = False, has_table: bool = True) -> None:
    meta = metadata.describe(
        TRACE, "kvtrace", ["kvtrace"], {}, tiers=[TierFacts(name, 1000) for name in tiers]
    )
    columns = defaultdict(list)
    for at, (ts, op, obj, request, node) in enumerate(sorted(rows, key=lambda row: row[0])):
        said = {
            "ts_ns": ts, "op": op, "tier": obj % len(tiers), "phase": "store", "object_id": obj, "offset_bytes": at,
            "length_bytes": 7, "request_id": request, "stage": None if request is None else 0, "rank": at % 3,
            "node": node,
        }  # fmt: skip
        for name, value in said.items():
            columns[name].append(value)
    extras = ("node",) if nodes else ()
    schema = arrow_schema(TRACE, extras)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(columns[f.name], f.type) for f in schema], schema=schema
    )
    with create(path, TRACE, meta, extras) as out:
        out.write(batch)
    objects = {"object_id": list(range(10)), "key": [f"k{i}" for i in range(10)], "kind": ["chunk"] * 10,
               "size_bytes": [7] * 10}  # fmt: skip
    if has_table:
        schema = arrow_schema(OBJECTS)
        with create(
            objects_path(path), OBJECTS, msgspec.structs.replace(meta, table="objects")
        ) as out:
            out.write(
                pa.RecordBatch.from_arrays(
                    [pa.array(objects[f.name], f.type) for f in schema], schema=schema
                )
            )


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(ROWS, TIERS, st.booleans(), st.integers(0, 5)), min_size=2, max_size=4),
    st.integers(1, 7),
)
def test_every_row_is_there_by_time_and_nothing_is_shared(tmp_path_factory, traces, batch_rows):
    folder = tmp_path_factory.mktemp("merge")
    inputs = []
    for at, (rows, tiers, nodes, shift) in enumerate(traces):
        write(folder / f"t{at}.parquet", rows, tiers, nodes=nodes)
        inputs.append(Input(f"t{at}", folder / f"t{at}.parquet", shift))
    with pytest.MonkeyPatch.context() as patch:
        # As if each trace were many batches long.
        patch.setattr(parquet_tables, "BATCH_ROWS", batch_rows)
        meta = merging.merge(inputs, folder / "m.parquet", ["kvtrace", "merge"])
    names = [tier.name for tier in meta.tiers]
    merged = [
        row for b in open_table(folder / "m.parquet", TRACE).batches() for row in b.to_pylist()
    ]
    assert [row["ts_ns"] for row in merged] == sorted(row["ts_ns"] for row in merged)
    objects = read_table(objects_path(folder / "m.parquet"), OBJECTS).to_pylist()
    keys = {row["object_id"]: row["key"] for row in objects}
    assert len(set(keys.values())) == 10 * len(traces)
    requests_of = defaultdict(set)
    total = 0
    for at, (_, tiers, _, shift) in enumerate(traces):
        own = [row for row in merged if keys[row["object_id"]].startswith(f"t{at}/")]
        source = [
            row for b in open_table(inputs[at].path, TRACE).batches() for row in b.to_pylist()
        ]
        assert len(own) == len(source)
        total += len(own)
        pairs = list(zip(own, source, strict=True))
        first = {
            row["request_id"] - was["request_id"]
            for row, was in pairs
            if was["request_id"] is not None
        }
        assert len(first) <= 1
        for row, was in pairs:
            assert keys[row["object_id"]] == f"t{at}/k{was['object_id']}"
            assert names[row["tier"]] == tiers[was["tier"]]
            assert row["ts_ns"] == was["ts_ns"] + shift
            assert (row["request_id"] is None) == (was["request_id"] is None)
            same = ("op", "phase", "offset_bytes", "length_bytes", "stage", "rank", "node")
            assert {n: row.get(n, 0) for n in same} == {n: was.get(n, 0) for n in same}
            if row["request_id"] is not None:
                requests_of[at].add(row["request_id"])
    assert total == len(merged)
    every = [request for found in requests_of.values() for request in found]
    assert len(every) == len(set(every))
    for tier in meta.tiers:
        assert tier.capacity_bytes == 1000 * sum(tier.name in tiers for _, tiers, _, _ in traces)


def run(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["kvtrace", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


def made(monkeypatch, tmp_path) -> tuple[str, str]:
    kv, save = str(tmp_path / "kv.parquet"), str(tmp_path / "save.parquet")
    requests = str(tmp_path / "kv-requests.parquet")
    assert (
        run(
            monkeypatch,
            "gen",
            "--users",
            "3",
            "--duration",
            "5s",
            "--requests-out",
            requests,
            "-o",
            kv,
        )
        == 0
    )
    few = [
        "--ranks",
        "2",
        "--every",
        "1s",
        "--duration",
        "4s",
        "--set",
        "parameters=1000",
        "-o",
        save,
    ]
    assert run(monkeypatch, "gen", "--preset", "checkpoint", *few) == 0
    return kv, save


def test_users_merged_with_a_checkpoint_are_a_valid_trace(monkeypatch, tmp_path, capsys):
    kv, save = made(monkeypatch, tmp_path)
    mixed, requests = str(tmp_path / "mixed.parquet"), str(tmp_path / "r.parquet")
    said = [
        "--shift",
        "save=500ms",
        "--requests",
        f"kv={tmp_path / 'kv-requests.parquet'}",
        "--requests-out",
        requests,
    ]
    assert run(monkeypatch, "merge", kv, save, "-o", mixed, *said) == 0
    assert shows(capsys.readouterr().out, "kv, save … gpu, cpu, nvme")
    assert run(monkeypatch, "validate", mixed) == 0
    trace, asked = open_table(mixed, TRACE), open_table(requests, REQUESTS)
    assert trace.meta.config_sha256 == asked.meta.config_sha256
    assert trace.meta.model == open_table(kv, TRACE).meta.model
    before = read_table(tmp_path / "kv-requests.parquet", REQUESTS)
    # A merged table has no times of a simulation.
    kept = [name for name in REQUESTS.names if name != "block_ids"]
    assert read_table(requests, REQUESTS).select(kept) == before.select(kept)
    rows = read_table(mixed, TRACE).to_pylist()
    saves = [row for row in rows if row["phase"] == "save"]
    assert min(row["ts_ns"] for row in saves) == 1_500_000_000
    assert {row["tier"] for row in saves} == {2}
    last = max(
        row["request_id"]
        for row in rows
        if row["phase"] not in ("save", "evict") and row["request_id"]
    )
    assert min(row["request_id"] for row in saves) > last


def test_what_each_node_of_a_fleet_has_stays_its_own(monkeypatch, tmp_path, capsys):
    kv, save = made(monkeypatch, tmp_path)
    fleet, mixed = str(tmp_path / "fleet.parquet"), str(tmp_path / "mixed.parquet")
    few = [
        "--users",
        "8",
        "--duration",
        "10s",
        "--model",
        "tiny-1b",
        "--preset",
        "lmcache-disk",
        "--nodes",
        "4",
    ]
    assert run(monkeypatch, "gen", *few, "--set", "tiers.cpu.capacity=32MiB", "-o", fleet) == 0
    assert run(monkeypatch, "merge", fleet, save, "-o", mixed) == 0
    found = {tier.name: tier for tier in open_table(mixed, TRACE).meta.tiers}
    assert (found["cpu"].capacity_bytes, found["cpu"].instance_nodes) == (32 * 2**20, 1)
    assert run(monkeypatch, "validate", mixed) == 0
    # One node's alone, beside that: it is the first node's.
    assert run(monkeypatch, "merge", fleet, kv, "-o", mixed, "--force") == 0
    assert run(monkeypatch, "validate", mixed) == 0
    shared = str(tmp_path / "shared.parquet")
    assert run(monkeypatch, "gen", *few, "--set", "tiers.nvme.scope=fleet", "-o", shared) == 0
    assert run(monkeypatch, "merge", fleet, shared, "-o", mixed, "--force") == 2
    assert shows(" ".join(capsys.readouterr().err.split()), "tier nvme … nodes")


def test_both_forms_of_a_table_merge_alike(monkeypatch, tmp_path, capsys):
    kv, save = made(monkeypatch, tmp_path)
    assert run(monkeypatch, "convert", kv, str(tmp_path / "csv" / "kv.csv.zst")) == 4
    (tmp_path / "csv").mkdir()
    assert run(monkeypatch, "convert", kv, str(tmp_path / "csv" / "kv.csv.zst")) == 0
    for name, path in (("a", kv), ("b", str(tmp_path / "csv" / "kv.csv.zst"))):
        assert run(monkeypatch, "merge", path, save, "-o", str(tmp_path / f"{name}.parquet")) == 0
    assert read_table(tmp_path / "a.parquet", TRACE) == read_table(tmp_path / "b.parquet", TRACE)
    capsys.readouterr()


def test_what_it_refuses(monkeypatch, tmp_path, capsys):
    kv, save = made(monkeypatch, tmp_path)
    out = str(tmp_path / "m.parquet")
    requests = str(tmp_path / "kv-requests.parquet")
    for arguments, message in (
        ([kv, "-o", out], "two traces"),
        ([kv, kv, "-o", out], "names"),
        ([kv, save, "-o", kv, "--force"], "input"),
        (
            [kv, save, "-o", out, "--shift", "saves=3s"],
            "NAME=30s … kv, save",
        ),
        ([kv, save, "-o", out, "--requests", f"kv={requests}"], "belong together"),
        (
            [kv, save, "-o", out, "--requests", f"save={requests}", "--requests-out", out],
            "simulation",
        ),
    ):
        assert run(monkeypatch, "merge", *arguments) == 2
        assert shows(capsys.readouterr().err, message)
    assert not Path(out).exists()
    write(tmp_path / "other.parquet", [], ("nvme", "cpu"), has_table=False)
    assert run(monkeypatch, "merge", kv, str(tmp_path / "other.parquet"), "-o", out) == 2
    assert "gpu, cpu, nvme; nvme, cpu" in capsys.readouterr().err
    write(tmp_path / "bare.parquet", [(1, "write", 3, None, 0)], ("nvme",), has_table=False)
    assert run(monkeypatch, "merge", kv, str(tmp_path / "bare.parquet"), "-o", out) == 0
    assert shows(open_table(out, TRACE).meta.notes, "no objects … bare")
    assert not objects_path(out).exists()
