"""Operations that an open loop with --duration never reaches: counted, without a row each."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import run_cli, write_trace
from whole import read_table

from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import Replay, replay
from kvtrace.core.schema import OPS, SERVED

ROWS = 2000


@pytest.fixture
def done(tmp_path):
    """Replay a trace of 1 s, 5000 times as quick, on a model of a slow drive."""
    rows = [
        (i * 500_000, "write" if i < 1000 else "read", 2, "load", i % 1000, 0, 65_536, i, 0, 0)
        for i in range(ROWS)
    ]
    trace = write_trace(tmp_path / "t.parquet", rows)
    target = "sim:bandwidth=1GB,latency=100us"
    config = Config(tiers={"nvme": target}, speed=1000.0, runtime="1s", engine="threads")
    return replay(Replay(config, trace, tmp_path / "run", []))


def test_rows_never_reached_are_counted_and_not_written(tmp_path, done):
    assert done.error is None
    ops = read_table(tmp_path / "run" / "ops.parquet", OPS).to_pydict()
    reached = [row for row, at in enumerate(ops["submitted_ns"]) if at is not None]
    assert 0 < len(ops["row"]) < 100_000
    assert reached[-1] == len(ops["row"]) - 1
    assert ops["row"] == [row % ROWS for row in range(len(ops["row"]))]
    summary, planned = done.summary, done.run.window.planned_rows
    assert planned is not None
    assert planned > 1_000_000
    assert summary.operations == sum(outcome == "ok" for outcome in ops["outcome"])
    assert summary.not_reached == planned - len(reached)
    # All that was due by the end was a part of the load.
    assert summary.pace is not None
    assert summary.pace.offered_per_s == pytest.approx(ROWS * 1000, rel=0.02)
    assert any("no rows in ops.parquet" in note for note in done.run.notes)
    served = read_table(tmp_path / "run" / "requests.parquet", SERVED).to_pydict()
    assert len(served["request_id"]) == len(ops["row"])


def test_reports_and_comparisons_count_what_was_not_reached(tmp_path, done):
    omitted = next(note for note in done.run.notes if "no rows in ops.parquet" in note)
    report = run_cli("kvdistill", "report", tmp_path / "run").stdout
    assert omitted.split()[0] in report
    run_cli("kvdistill", "compare", tmp_path / "run", tmp_path / "run")


def test_an_open_loop_that_keeps_pace_has_all_its_rows(tmp_path):
    rows = [(i * 10**6, "write", 2, "store", i, 0, 4096, i, 0, 0) for i in range(50)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    config = Config(tiers={"nvme": "null"}, speed=1.0, runtime="120ms")
    done = replay(Replay(config, trace, tmp_path / "run", []))
    ops = read_table(tmp_path / "run" / "ops.parquet", OPS)
    assert len(ops) == done.run.window.rows
    assert not done.summary.not_reached
    assert np.all(np.diff(ops.column("scheduled_ns").to_numpy()) >= 0)
