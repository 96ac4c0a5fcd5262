"""The column `row` of a run's operations, errors and notes: always the row of the whole trace."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import write_trace
from ranks import on_ranks
from rings import PlainFiles
from waiting import rows_in, wait_for
from whole import read_table

from kvdistill.queries.database import opened
from kvreplay.plan.replay_config import Config, PartitionBy
from kvreplay.plan.row_ring import READ
from kvreplay.plan.window import compile_window
from kvreplay.result.run_tables import PARTIAL_OPS_FILE
from kvreplay.run.recover import recover
from kvreplay.run.replay import Replay, replay
from kvreplay.tiers.tier import StorageOptions
from kvtrace.core.errors import TraceError
from kvtrace.core.limit import Limit
from kvtrace.core.run.run_file import read_run
from kvtrace.core.schema import OPS, TRACE, arrow_schema
from kvtrace.core.tables import create, open_table

NVME, MS = 2, 1_000_000
SHARED = ("op", "object_id")
"""Columns that an operation has of its row; requests of a repeat are requests of its own."""


def make_trace(folder: Path, count: int = 300) -> Path:
    """Write a trace whose rows all differ: a write, a read or a delete each millisecond."""
    rows = [
        (
            row * MS,
            ("write", "read", "delete")[row % 3],
            NVME,
            ("store", "load", "evict")[row % 3],
            row // 3,
            0,
            4096 * (1 + row % 2),
            row // 6,
            row % 6,
            0,
        )
        for row in range(count)
    ]
    return write_trace(folder / "t.parquet", rows)


def run_config(**options: Any) -> Config:
    return Config(tiers={"nvme": "ram"}, io_bytes=4096, **options)


def check_join(trace: Path, ops: list[dict[str, Any]], rows: list[int]) -> None:
    """Check that `ops` name these `rows` of the trace, and agree with them."""
    traced = read_table(trace, TRACE).to_pylist()
    assert [op["row"] for op in ops] == rows
    for op in ops:
        assert [op[name] for name in SHARED] == [traced[op["row"]][name] for name in SHARED]


def read_ops(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_table(folder / "ops.parquet", OPS).to_pylist()
    return rows


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({}, range(300)),
        ({"limit": "50"}, range(50)),
        ({"limit": "70ms"}, range(70)),
        ({"window": "from:100ms+50ms"}, range(100, 150)),
        ({"window": "from:100ms+50ms", "speed": 10.0}, range(100, 150)),
        ({"window": "from:100ms+50ms", "limit": "20"}, range(100, 120)),
        ({"window": "from:100ms+50ms", "warmup": "10rows"}, range(100, 150)),
    ],
)
def test_operations_join_with_the_trace(tmp_path, options, rows):
    trace = make_trace(tmp_path)
    done = replay(Replay(run_config(**options), trace, tmp_path / "run", []))
    assert done.error is None
    check_join(trace, read_ops(tmp_path / "run"), list(rows))
    if "warmup" in options:
        warmup = done.summary.warmup
        assert warmup is not None
        assert (warmup.operations, warmup.first_measured_row) == (10, 110)
        with opened([tmp_path / "run"]) as db:
            measured = db.sql('SELECT "row" FROM measured ORDER BY 1').fetchall()
        assert [row for (row,) in measured] == list(range(110, 150))


def test_repeats_name_the_same_rows_again(tmp_path):
    trace = make_trace(tmp_path)
    config = run_config(window="from:90ms+30ms", speed=1.0, runtime="300ms", warmup="40rows")
    done = replay(Replay(config, trace, tmp_path / "run", []))
    assert done.error is None
    ops = read_ops(tmp_path / "run")
    assert len(ops) > 60
    check_join(trace, ops, [90 + row % 30 for row in range(len(ops))])
    warmup = done.summary.warmup
    assert warmup is not None
    done_before = sum(op["outcome"] == "ok" for op in ops[:40])
    assert (warmup.operations, warmup.first_measured_row) == (done_before, 100)
    with opened([tmp_path / "run"]) as db:
        (count,) = db.sql("SELECT count(*) FROM measured").fetchall()[0]
    assert count == len(ops) - 40


def test_a_recovered_window_joins_with_the_trace(tmp_path):
    trace = make_trace(tmp_path, 30_000)
    command = [sys.executable, "-m", "kvreplay.cli", "run", str(trace), "--tier", "nvme=ram"]
    command += ["--window", "from:10s+10s", "--speed", "1", "-o", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "run" / PARTIAL_OPS_FILE
    wait_for(process, lambda: rows_in(journal), "the journal has no rows")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert recover(tmp_path / "run").run.status == "partial"
    ops = read_ops(tmp_path / "run")
    assert sum(op["outcome"] == "ok" for op in ops) > 0
    check_join(trace, ops, list(range(10_000, 10_000 + len(ops))))


def give_nodes(trace: Path) -> Path:
    """Return a copy of `trace` whose rows are of two nodes, 18 rows of each in turn."""
    rows = read_table(trace, TRACE)
    node = pa.array([row // 18 % 2 for row in range(len(rows))], pa.int32())
    path = trace.with_name("nodes.parquet")
    with create(path, TRACE, open_table(trace, TRACE).meta, ("node",)) as out:
        for batch in rows.append_column("node", node).to_batches():
            out.write(batch.cast(arrow_schema(TRACE, ("node",))))
    return path


@pytest.mark.parametrize("by", PartitionBy)
def test_operations_of_ranks_join_with_the_whole_trace(tmp_path, by):
    trace = make_trace(tmp_path)
    if by is PartitionBy.NODE:
        trace = give_nodes(trace)
    done = on_ranks(
        2,
        lambda session: session.replay(
            Replay(run_config(limit="290", warmup="20rows"), trace, tmp_path / "run", ["kvreplay"])
        ),
        by=by,
    )
    assert done.error is None
    whole: list[int] = []
    for rank in range(2):
        ops = read_ops(tmp_path / "run" / f"rank-{rank:04}")
        check_join(trace, ops, [op["row"] for op in ops])
        assert [op["row"] for op in ops] == sorted({op["row"] for op in ops})
        whole += [op["row"] for op in ops]
        warmup = read_run(tmp_path / "run" / f"rank-{rank:04}").summary.warmup
        assert warmup is not None
        assert warmup.first_measured_row == min(row for row in whole[-len(ops) :] if row >= 20)
    assert sorted(whole) == list(range(290))


class Sabotaged(PlainFiles):
    """Files of which one is changed before its object is read."""

    def __init__(self, directory: Path, target: int, change: Callable[[Path], object]) -> None:
        super().__init__("nvme", directory, StorageOptions(is_buffered=True))
        self._target, self._change = target, change

    def begin(self, op: int, object_id: int) -> int:
        if op == READ and object_id == self._target:
            self._change(Path(self.path(object_id)))
        return super().begin(op, object_id)


@pytest.mark.parametrize(
    "change", [Path.unlink, lambda path: path.write_bytes(bytes(path.stat().st_size))]
)
def test_a_failed_read_of_a_window_names_its_trace_row(tmp_path, change):
    (tmp_path / "d").mkdir()
    tier = Sabotaged(tmp_path / "d", 37, change)
    config = Config(
        tiers={"nvme": str(tmp_path / "d")},
        window="from:99ms+50ms",
        is_verified=True,
        on_error="continue",
        queue_depth=1,
        engine="threads",
    )
    trace = make_trace(tmp_path)
    request = Replay(config, trace, tmp_path / "run", [])
    done = replay(request, tiers=[None, None, tier])
    # Object 37 is written in row 111 and read in row 112.
    assert "row 112: " in str(done.error)
    (failed,) = [op for op in read_ops(tmp_path / "run") if op["outcome"] != "ok"]
    assert failed["row"] == 112
    verification = done.run.verification
    assert verification is not None
    assert {bad.row for bad in verification.located} <= {112}


def test_a_damaged_row_of_a_window_is_named_by_its_number(tmp_path):
    rows = [tuple(row.values()) for row in read_table(make_trace(tmp_path), TRACE).to_pylist()]
    rows[121] = (rows[110][0], *rows[121][1:])
    reader = open_table(write_trace(tmp_path / "bad.parquet", rows), TRACE)
    with pytest.raises(TraceError) as error:
        compile_window(reader, reader.path, {NVME: 1}, Limit(window="from:99ms+50ms"))
    assert error.value.row == 121
