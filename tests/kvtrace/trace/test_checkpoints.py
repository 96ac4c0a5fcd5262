"""`kvtrace gen --preset checkpoint`.

Sizes, who writes what, when it saves and restores, and what it refuses.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whole import read_table

from kvtrace import cli
from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import OBJECTS, TRACE
from kvtrace.core.tables import objects_path, open_table
from kvtrace.llm.catalogue import find_model
from kvtrace.sim.presets.preset import Training, WrittenBy, load_training
from kvtrace.trace.checkpoint import run_course, shard_bytes

MINUTE_NS = 60 * 10**9
GIB, TIB = 2**30, 2**40


def gen(monkeypatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["kvtrace", "gen", "--preset", "checkpoint", *arguments])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0)


@pytest.mark.parametrize(
    ("model", "published", "within"),
    # MLPerf Storage, Rules.md, table 2 of its checkpointing workloads; its GB and TB are binary.
    [
        ("llama3.1-8b", 105 * GIB, 0.005),
        ("llama3.1-70b", 912 * GIB, 0.01),
        ("llama3.1-405b", 5.29 * TIB, 0.03),
    ],
)
def test_sizes_are_those_of_mlperf_storage(model, published, within):
    shards = shard_bytes(Training(), find_model(model).parameters)
    assert sum(map(sum, shards.values())) == pytest.approx(published, rel=within)


@pytest.mark.parametrize("placement", WrittenBy)
def test_parts_add_up_and_differ_by_a_byte(placement):
    shards = shard_bytes(Training(ranks=7, placement=placement), 1_000_003)
    assert {part: sum(sizes) for part, sizes in shards.items()} == {
        "weights": 2_000_006,
        "optimizer": 12_000_036,
    }
    assert {len(sizes) for sizes in shards.values()} == {7 if placement is WrittenBy.SHARDED else 1}
    assert all(max(sizes) - min(sizes) <= 1 for sizes in shards.values())


def test_without_failures_it_saves_at_each_interval():
    course = run_course(Training(), 60 * MINUTE_NS, 1)
    assert [(e.is_save, e.at_ns // MINUTE_NS, e.checkpoint) for e in course.events] == [
        (True, 10 * (n + 1), n) for n in range(6)
    ]
    assert (course.failures, course.lost_ns) == (0, 0)


@settings(deadline=None)
@given(
    st.integers(0, 2**32),
    st.integers(1, 40),
    st.integers(1, 60),
    st.integers(1, 30),
    st.integers(1, 600),
)
def test_failures_lose_unsaved_work_and_restore_the_newest_save(
    seed, every, mtbf, restart, minutes
):
    training = Training(every=f"{every}min", mtbf=f"{mtbf}min", restart=f"{restart}min")
    course = run_course(training, minutes * MINUTE_NS, seed)
    assert course == run_course(training, minutes * MINUTE_NS, seed)
    newest, lost, failed = -1, 0, 0
    for event in course.events:
        if event.is_save:
            assert event.checkpoint == newest + 1
            newest += 1
        else:
            assert event.checkpoint == newest
            failed += 1
    assert failed <= course.failures
    assert all(0 <= event.at_ns <= minutes * MINUTE_NS for event in course.events)
    for before, after in pairwise(course.events):
        gap = after.at_ns - before.at_ns
        if not after.is_save:
            # It went on for less than the interval, failed, and was started again; or failed again
            # before its restore.
            assert gap > restart * MINUTE_NS
        else:
            # After a save or a restore: the interval, unless it fell before the first save of all.
            assert gap == every * MINUTE_NS or (gap > (every + restart) * MINUTE_NS and not failed)
    lost = course.lost_ns
    assert lost <= course.failures * every * MINUTE_NS
    assert (lost > 0) == (course.failures > 0)


def test_the_rows_are_a_request_a_checkpoint_stage_by_stage(monkeypatch, tmp_path, capsys):
    path = tmp_path / "c.parquet"
    wanted = [
        "--ranks",
        "3",
        "--every",
        "10min",
        "--duration",
        "40min",
        "--set",
        "parameters=1000",
        "--set",
        "keep=2",
    ]
    assert gen(monkeypatch, *wanted, "--json", "-o", str(path)) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["stats"]["checkpoint"]["checkpoint_bytes"] == 14_000
    rows = read_table(path, TRACE).to_pylist()
    columns = ("stage", "op", "phase", "object_id", "length_bytes", "rank")
    first = [tuple(row[name] for name in columns) for row in rows if row["request_id"] == 0]
    assert first == [
        *((0, "write", "save", 1 + rank, (667, 667, 666)[rank], rank) for rank in range(3)),
        *((0, "write", "save", 4 + rank, 4000, rank) for rank in range(3)),
        (1, "write", "save", 0, 4096, 0),
    ]
    last = [row for row in rows if row["request_id"] == 3]
    assert [row["op"] for row in last] == ["read", *["write"] * 6, "write", *["delete"] * 6]
    assert [row["stage"] for row in last] == [0, *[1] * 6, 2, *[3] * 6]
    # The checkpoint before the two that are kept and the new one.
    assert [row["object_id"] for row in last if row["op"] == "delete"] == list(range(7, 13))
    assert {row["ts_ns"] // MINUTE_NS for row in last} == {40}
    objects = read_table(objects_path(path), OBJECTS).to_pylist()
    assert len(objects) == 1 + 4 * 6
    assert objects[8] | {"kind": None} == {
        "object_id": 8, "key": "checkpoint/000001/weights-00001-of-00003", "kind": None, "size_bytes": 667,
    }  # fmt: skip
    assert {row["kind"] for row in objects} == {"checkpoint"}
    assert len({row["key"] for row in objects}) == len(objects)


def test_checkpoints_are_valid_repeatable_and_as_many_as_kept(monkeypatch, tmp_path, capsys):
    wanted = [
        "--ranks",
        "16",
        "--every",
        "1min",
        "--duration",
        "2h",
        "--mtbf",
        "7min",
        "--set",
        "parameters=10_000",
    ]
    for name in ("a", "b"):
        assert (
            gen(monkeypatch, *wanted, "--set", "keep=3", "-o", str(tmp_path / f"{name}.parquet"))
            == 0
        )
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    capsys.readouterr()
    for command in ("validate", "info"):
        monkeypatch.setattr(
            sys, "argv", ["kvtrace", command, str(tmp_path / "a.parquet"), "--json"]
        )
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert not left.value.code
        found = json.loads(capsys.readouterr().out)
    # While a fourth is written, three are kept; the marker lies beside them.
    assert found["tiers"][0]["peak_live_bytes"] == 4 * 140_000 + 4096
    phases = Counter(cell["phase"] for cell in found["operations"])
    assert set(phases) == {"save", "restore", "evict"}
    reader = open_table(tmp_path / "a.parquet", TRACE)
    assert reader.extras == ("node",)
    rows = [row for batch in reader.batches() for row in batch.to_pylist()]
    # What gen says is written and read is what is, the marker included.
    moved = Counter()
    for row in rows:
        moved[row["op"]] += row["length_bytes"]
    counted = reader.meta.stats["checkpoint"]
    assert (counted["written_bytes"], counted["read_bytes"]) == (moved["write"], moved["read"])
    assert {(row["rank"] // 8, row["node"]) for row in rows} == {(0, 0), (1, 1)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--users", "3"], "--users 3 needs a KV cache"),
        (["--tp", "2"], "--tp 2 needs a KV cache"),
        (["--request-rate", "3/s"], "--request-rate 3/s needs a KV cache"),
        (["requests.jsonl"], "requests"),
        (["--set", "keeps=3"], "keep"),
        (["--ranks", "0"], r"ranks\(=0\) must be >= 1"),
        (["--every", "2h"], "first save"),
        (["--every", "1ns"], "1,000,000 saves"),
        (["--set", "parameters=1"], "8 ranks"),
        (["--set", "placement=all"], "'all'"),
    ],
)
def test_what_it_refuses(monkeypatch, tmp_path, capsys, arguments, message):
    assert gen(monkeypatch, *arguments, "-o", str(tmp_path / "c.parquet")) == 2
    assert not list(tmp_path.iterdir())
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(capsys.readouterr().err)


def test_training_options_and_its_preset_belong_together(monkeypatch, tmp_path, capsys):
    for command in (
        ["gen", "--ranks", "3", "-o", str(tmp_path / "t.parquet")],
        ["size", "--preset", "checkpoint", "--target-hit", "80%"],
    ):
        monkeypatch.setattr(sys, "argv", ["kvtrace", *command])
        with pytest.raises(SystemExit) as left:
            cli.main()
        assert left.value.code == 2
    said = capsys.readouterr().err
    assert "--ranks 3 needs --preset checkpoint" in said
    assert "kvtrace gen" in said
    with pytest.raises(ConfigError, match="weight_bytes"):
        load_training(["weight_bytes=0"], {})
