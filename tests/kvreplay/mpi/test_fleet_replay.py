"""A fleet's trace replayed: whole on one host, and a rank a node."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import run_cli, trace_batch, trace_meta
from ranks import on_ranks

from kvreplay.config.config import Config
from kvreplay.run.run import replay
from kvtrace.core.errors import TraceError
from kvtrace.core.metadata import TierFacts
from kvtrace.core.run.ranks import RanksNote
from kvtrace.core.run.run_file import read_run
from kvtrace.core.schema import OPS, TRACE, arrow_schema
from kvtrace.core.tables import create, open_table

NODES, LENGTH = 4, 8192
SHARED = [TierFacts("gpu", 1 << 30), TierFacts("cpu", 1 << 30, instance_nodes=1), TierFacts("nvme", 1 << 30)]
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
    return rows + [(node, "read", 2, (5 * (node - 1) + at) % 20) for at in range(5) for node in range(NODES)]


def ops_of(folder: Path) -> list[dict[str, Any]]:
    reader = open_table(folder / "ops.parquet", OPS)
    return [row for batch in reader.batches((*OPS.names, *reader.extras)) for row in batch.to_pylist()]


def test_a_shared_store_is_replayed_whole_on_one_host(tmp_path):
    path = fleet(tmp_path / "t.parquet", on_shared_store(), SHARED)
    run = replay(Config(tiers={"nvme": "ram"}), path, tmp_path / "run", ["kvreplay"]).run
    assert run.status == "complete"
    assert run.populated is not None
    assert run.populated.objects == 0
    ops = ops_of(tmp_path / "run")
    assert [op["node"] for op in ops] == [row[0] for row in on_shared_store()]
    assert {op["outcome"] for op in ops} == {"ok"}
    assert not any("each node's own" in note for note in run.notes)


def test_a_rank_a_node_says_which_and_the_store_bears_the_load_of_all(tmp_path):
    path = fleet(tmp_path / "t.parquet", on_shared_store(), SHARED)
    on_ranks(NODES, lambda s: s.replay(Config(tiers={"nvme": "ram"}), path, tmp_path / "run", ["kvreplay"]))
    run = read_run(tmp_path / "run")
    assert isinstance(run.ranks, RanksNote)
    assert run.ranks.deal is not None
    assert (run.ranks.deal.by, run.ranks.deal.nodes) == ("node", [[0], [1], [2], [3]])
    assert [rank.nodes for rank in run.ranks.ranks] == [[0], [1], [2], [3]]
    for rank in range(NODES):
        assert {op["node"] for op in ops_of(tmp_path / "run" / f"rank-{rank:04d}")} == {rank}
    assert [(f.op, f.operations, f.bytes) for f in run.summary.figures] == [
        ("read", 20, 20 * LENGTH), ("write", 20, 20 * LENGTH),
    ]  # fmt: skip
    # What another node stored is written before the run on the rank that reads it, and said.
    assert run.ranks.deal.shared_objects == 20
    assert run.populated is not None
    assert run.populated.objects == 20
    shown = run_cli("kvdistill", "report", tmp_path / "run").stdout
    assert re.search(r"\nrank +host +nodes +status", shown)


def test_two_ranks_share_four_nodes(tmp_path):
    path = fleet(tmp_path / "t.parquet", on_shared_store(), SHARED)
    on_ranks(2, lambda s: s.replay(Config(tiers={"nvme": "ram"}), path, tmp_path / "run", ["kvreplay"]))
    run = read_run(tmp_path / "run")
    assert isinstance(run.ranks, RanksNote)
    assert [rank.nodes for rank in run.ranks.ranks] == [[0, 2], [1, 3]]


def test_drives_that_nodes_have_apart_are_not_one_drive(tmp_path):
    """Both nodes have a copy of object 7; the first deletes its own, and the other goes on to read."""
    rows = [(0, "write", 2, 7), (1, "write", 2, 7), (0, "delete", 2, 7), (1, "read", 2, 7)]
    path = fleet(tmp_path / "t.parquet", rows, OWN)
    config = Config(tiers={"nvme": "ram"})
    with pytest.raises(TraceError, match=r"nvme is each node's own, .* mpirun -n 2 kvreplay run --mpi --deal node"):
        replay(config, path, tmp_path / "run", ["kvreplay"])
    on_ranks(2, lambda s: s.replay(config, path, tmp_path / "run", ["kvreplay"]))
    run = read_run(tmp_path / "run")
    assert run.status == "complete"
    assert run.summary.operations == 4
    assert not any("each node's own" in note for note in run.notes)
    path = fleet(tmp_path / "u.parquet", rows[:2], OWN)
    run = replay(config, path, tmp_path / "run2", ["kvreplay"]).run
    assert any("tier nvme is each node's own: the 2 nodes' copies of an object are one here" in n for n in run.notes)
