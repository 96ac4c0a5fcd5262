"""A fleet's trace replayed: whole on one host, and a rank a node."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import run_cli, trace_batch, trace_meta, write_trace
from phrases import shows
from ranks import on_ranks

from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import Replay, replay
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.metadata import TierFacts
from kvtrace.core.run.run_file import RanksNote, read_run
from kvtrace.core.schema import OPS, TRACE, arrow_schema
from kvtrace.core.tables import create, open_table

NODES, LENGTH = 4, 8192
SHARED = [
    TierFacts("gpu", 1 << 30),
    TierFacts("cpu", 1 << 30, instance_nodes=1),
    TierFacts("nvme", 1 << 30),
]
OWN = [*SHARED[:2], TierFacts("nvme", 1 << 30, instance_nodes=1)]


def fleet(path: Path, rows: list[tuple[int, str, int, int]], tiers: list[TierFacts]) -> Path:
    """Write (node, op, tier, object) as the trace of a fleet, a request a row."""
    whole = [
        (at * 1000, op, tier, "load" if op == "read" else "store", obj, 0, LENGTH, at, 0, 0)
        for at, (_, op, tier, obj) in enumerate(rows)
    ]
    with create(path, TRACE, trace_meta(tiers=tiers), ("node",)) as out:
        arrays = [*trace_batch(whole).columns, pa.array([row[0] for row in rows], pa.int32())]
        out.write(pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(TRACE, ("node",))))
    return path


def on_shared_store() -> list[tuple[int, str, int, int]]:
    """Each node stores five objects in what all share, and reads those of the node before."""
    rows = [(node, "write", 2, 5 * node + at) for at in range(5) for node in range(NODES)]
    return rows + [
        (node, "read", 2, (5 * (node - 1) + at) % 20) for at in range(5) for node in range(NODES)
    ]


def ops_of(folder: Path) -> list[dict[str, Any]]:
    reader = open_table(folder / "ops.parquet", OPS)
    return [
        row for batch in reader.batches((*OPS.names, *reader.extras)) for row in batch.to_pylist()
    ]


def test_a_shared_store_is_replayed_whole_on_one_host(tmp_path):
    path = fleet(tmp_path / "t.parquet", on_shared_store(), SHARED)
    run = replay(Replay(Config(tiers={"nvme": "ram"}), path, tmp_path / "run", ["kvreplay"])).run
    assert run.status == "complete"
    assert run.populated is not None
    assert run.populated.objects == 0
    ops = ops_of(tmp_path / "run")
    assert [op["node"] for op in ops] == [row[0] for row in on_shared_store()]
    assert {op["outcome"] for op in ops} == {"ok"}
    assert not any("separate on each node" in note for note in run.notes)


@pytest.mark.full
def test_a_rank_a_node_names_its_node_and_the_store_serves_all(tmp_path):
    path = fleet(tmp_path / "t.parquet", on_shared_store(), SHARED)
    on_ranks(
        NODES,
        lambda s: s.replay(
            Replay(Config(tiers={"nvme": "ram"}), path, tmp_path / "run", ["kvreplay"])
        ),
    )
    run = read_run(tmp_path / "run")
    assert isinstance(run.ranks, RanksNote)
    assert run.ranks.partition is not None
    assert (run.ranks.partition.by, run.ranks.partition.nodes) == ("node", [[0], [1], [2], [3]])
    assert [rank.nodes for rank in run.ranks.ranks] == [[0], [1], [2], [3]]
    for rank in range(NODES):
        assert {op["node"] for op in ops_of(tmp_path / "run" / f"rank-{rank:04d}")} == {rank}
    assert [(f.op, f.operations, f.bytes) for f in run.summary.figures] == [
        ("read", 20, 20 * LENGTH), ("write", 20, 20 * LENGTH),
    ]  # fmt: skip
    # What another node stored is written before the run on the rank that reads it, and said.
    assert run.ranks.partition.shared_objects == 20
    assert run.populated is not None
    assert run.populated.objects == 20
    shown = run_cli("kvdistill", "report", tmp_path / "run").stdout
    assert re.search(r"\nrank +host +nodes +status", shown)


@pytest.mark.full
def test_two_ranks_share_four_nodes(tmp_path):
    path = fleet(tmp_path / "t.parquet", on_shared_store(), SHARED)
    on_ranks(
        2,
        lambda s: s.replay(
            Replay(Config(tiers={"nvme": "ram"}), path, tmp_path / "run", ["kvreplay"])
        ),
    )
    run = read_run(tmp_path / "run")
    assert isinstance(run.ranks, RanksNote)
    assert [rank.nodes for rank in run.ranks.ranks] == [[0, 2], [1, 3]]


def test_drives_that_nodes_have_apart_are_not_one_drive(tmp_path):
    """Both nodes have a copy of object 7.

    The first deletes its own, and the other goes on to read.
    """
    rows = [(0, "write", 2, 7), (1, "write", 2, 7), (0, "delete", 2, 7), (1, "read", 2, 7)]
    path = fleet(tmp_path / "t.parquet", rows, OWN)
    config = Config(tiers={"nvme": "ram"})
    with pytest.raises(
        TraceError,
        match=r"nvme.*mpirun -n 2 kvreplay run --mpi --partition node",
    ):
        replay(Replay(config, path, tmp_path / "run", ["kvreplay"]))
    on_ranks(2, lambda s: s.replay(Replay(config, path, tmp_path / "run", ["kvreplay"])))
    run = read_run(tmp_path / "run")
    assert run.status == "complete"
    assert run.summary.operations == 4
    assert not any("separate on each node" in note for note in run.notes)
    path = fleet(tmp_path / "u.parquet", rows[:2], OWN)
    run = replay(Replay(config, path, tmp_path / "run2", ["kvreplay"])).run
    assert any(shows(n, "tier nvme … here 2 nodes") for n in run.notes)


@pytest.mark.full
def test_ranks_of_several_nodes_name_how_many_keep_copies_apart(tmp_path):
    path = fleet(tmp_path / "t.parquet", [(node, "write", 2, node) for node in range(NODES)], OWN)
    on_ranks(
        2,
        lambda s: s.replay(
            Replay(Config(tiers={"nvme": "ram"}), path, tmp_path / "run", ["kvreplay"])
        ),
    )
    (note,) = [note for note in read_run(tmp_path / "run").notes if "separate on each node" in note]
    assert "here 2 nodes" in note
    assert shows(note, "mpirun -n 4 … --mpi --partition node")
    rows = [
        (node, op, 2, 0)
        for node, op in ((0, "write"), (1, "write"), (2, "write"), (0, "delete"), (2, "read"))
    ]
    path = fleet(tmp_path / "u.parquet", rows, OWN)
    with pytest.raises(TraceError, match="mpirun -n 3 kvreplay run --mpi"):
        on_ranks(
            2,
            lambda s: s.replay(
                Replay(Config(tiers={"nvme": "ram"}), path, tmp_path / "no", ["kvreplay"])
            ),
        )


def test_one_nodes_rows_are_replayed_alone_at_their_own_times(tmp_path):
    rows = on_shared_store()
    path = fleet(tmp_path / "t.parquet", rows, SHARED)
    config = Config(tiers={"nvme": "ram"}, node=2, speed=1.0)
    found = replay(Replay(config, path, tmp_path / "run", ["kvreplay"])).run
    # Rows that were left out are there, as those of tiers without a target are.
    ops = [op for op in ops_of(tmp_path / "run") if op["outcome"] != "skipped"]
    own = [at for at, row in enumerate(rows) if row[0] == 2]
    assert [op["row"] for op in ops] == own
    assert [op["scheduled_ns"] for op in ops] == [at * 1000 for at in own]
    assert {op["node"] for op in ops} == {2}
    # What the node before stored lies there.
    assert found.populated.objects == 5
    assert (found.window.node, found.window.planned_rows, found.window.is_whole_trace) == (
        2,
        10,
        False,
    )
    assert (found.summary.operations, found.summary.not_reached, found.requests.requests) == (
        10,
        0,
        10,
    )


def test_nodes_that_each_have_their_own_go_apart_by_node(tmp_path):
    # Both hold object 0; the first one's delete ends nothing of the other's.
    rows = [(0, "write", 2, 0), (1, "write", 2, 0), (0, "delete", 2, 0), (1, "read", 2, 0)]
    path = fleet(tmp_path / "t.parquet", rows, OWN)
    for node in (0, 1):
        config = Config(tiers={"nvme": "ram"}, node=node)
        found = replay(Replay(config, path, tmp_path / f"run{node}", ["kvreplay"])).run
        assert (found.status, found.summary.operations) == ("complete", 2)
        assert not any("separate on each node" in note for note in found.notes)
    shown = run_cli(
        "kvreplay", "run", path, "--tier", "nvme=ram", "--node", "1", "-o", tmp_path / "shown"
    ).stdout
    assert shows(shown, "node 1 … 2 rows")


def test_bounds_and_repeats_are_of_the_nodes_rows(tmp_path):
    path = fleet(tmp_path / "t.parquet", on_shared_store(), SHARED)
    config = Config(tiers={"nvme": "ram"}, node=1, limit=f"{3 * LENGTH}B")
    assert replay(Replay(config, path, tmp_path / "some", ["kvreplay"])).run.summary.operations == 3
    config = Config(tiers={"nvme": "sim:bandwidth=1MB"}, node=1, runtime="200ms")
    found = replay(Replay(config, path, tmp_path / "again", ["kvreplay"])).run
    assert found.window.rows_once == 40
    ops = ops_of(tmp_path / "again")
    assert {op["node"] for op in ops if op["outcome"] == "ok"} == {1}
    # Of ten rows of its own, not of the forty of all nodes.
    assert found.summary.trace_times == sum(op["outcome"] == "ok" for op in ops) / 10
    assert "node 1" in found.summary.verdict
    assert found.window.repeats > 1


def test_the_window_of_a_node_is_chosen_by_its_own_rows(tmp_path):
    # Node 0 is busy from 1 to 40 µs, node 1 thereafter.
    rows = [
        (1, "write", 2, 0),
        *((0, "write", 2, at) for at in range(1, 40)),
        *((1, "write", 2, 0) for _ in range(6)),
    ]
    path = fleet(tmp_path / "t.parquet", rows, SHARED)
    how = ("--tier", "nvme=ram", "--node", "1", "--window", "busiest:10us")
    shown = run_cli("kvreplay", "run", path, *how, "-o", tmp_path / "run").stdout
    assert shows(shown, "node 1 … busiest:10us: … 6 rows")


def test_a_node_that_is_not_there_is_refused(tmp_path):
    path = fleet(tmp_path / "t.parquet", on_shared_store(), SHARED)
    with pytest.raises(ConfigError, match=r"node=4.*3"):
        replay(Replay(Config(tiers={"nvme": "ram"}, node=4), path, tmp_path / "run", ["kvreplay"]))
    alone = write_trace(tmp_path / "a.parquet", [(0, "write", 2, "store", 0, 0, LENGTH, 0, 0, 0)])
    with pytest.raises(ConfigError, match="no nodes"):
        replay(Replay(Config(tiers={"nvme": "ram"}, node=0), alone, tmp_path / "run", ["kvreplay"]))
    with pytest.raises(ConfigError, match="partition=node"):
        on_ranks(
            2,
            lambda s: s.replay(
                Replay(Config(tiers={"nvme": "ram"}, node=1), path, tmp_path / "run", ["kvreplay"])
            ),
        )
    # What it reads another node wrote again, after it had deleted it.
    rows = [(0, "write", 2, 0), (0, "delete", 2, 0), (1, "write", 2, 0), (0, "read", 2, 0)]
    path = fleet(tmp_path / "b.parquet", rows, SHARED)
    with pytest.raises(TraceError, match="--node"):
        replay(Replay(Config(tiers={"nvme": "ram"}, node=0), path, tmp_path / "run", ["kvreplay"]))


@pytest.mark.parametrize("target", ["drive", "space.dat"])
def test_what_was_lost_with_a_node_is_deleted_in_a_replay(tmp_path, target):
    (tmp_path / "drive").mkdir()
    capacities = [
        f"--set=tiers.{tier}"
        for tier in ("gpu.capacity=0", "cpu.capacity=16MiB", "nvme.capacity=64MiB")
    ]
    fleet_of = [
        "--nodes",
        "2",
        "--users",
        "6",
        "--duration",
        "20s",
        "--model",
        "tiny-1b",
        "--preset",
        "lmcache-disk",
    ]
    events = ["--event", "10s:node-lost:1", "--event", "15s:node-joined:1", "--seed", "3"]
    path = tmp_path / "t.parquet"
    run_cli("kvtrace", "gen", *fleet_of, *events, *capacities, "-o", path)
    config = Config(
        tiers={"nvme": str(tmp_path / target)}, is_buffered=True, node=1, is_verified=True
    )
    found = replay(Replay(config, path, tmp_path / "run", ["kvreplay"])).run
    lost = [op for op in ops_of(tmp_path / "run") if op["phase"] == "lose" and op["tier"] == 2]
    assert lost
    assert {(op["op"], op["node"], op["outcome"]) for op in lost} == {("delete", 1, "ok")}
    deletes = [f.operations for f in found.summary.figures if f.op == "delete"]
    assert deletes[0] >= len(lost)
    assert (found.status, found.verification.corrupt_blocks) == ("complete", 0)
