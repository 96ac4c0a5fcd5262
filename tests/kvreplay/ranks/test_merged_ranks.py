"""What run.json of several ranks says of requests, criteria and checkpoints.

Counted again in plain Python.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import run_cli, write_trace
from phrases import shows
from ranks import on_ranks
from run_files import distribution as distribution_of
from run_files import figures
from whole import read_table

from kvreplay.plan.replay_config import Config, PartitionBy
from kvreplay.ranks import merge
from kvreplay.ranks.merge import merge_ranks, merged_verdict
from kvreplay.run.replay import Replay
from kvtrace.core.metrics.distribution import distribution_of as distribution
from kvtrace.core.run.run_file import RanksNote, RunFile, read_run
from kvtrace.core.schema import OPS, SERVED

COUNT = 3
MS = 1_000_000


def replayed(tmp_path: Path, rows: list[Any], by: PartitionBy, **options: Any) -> RunFile:
    config = Config(tiers={"nvme": "ram"}, io_bytes=4096, **options)
    path = write_trace(tmp_path / "t.parquet", rows)
    on_ranks(COUNT, lambda s: s.replay(Replay(config, path, tmp_path / "run", ["kvreplay"])), by=by)
    return read_run(tmp_path / "run")


def ops_of(folder: Path, rank: int) -> list[dict[str, Any]]:
    return [
        o
        for o in read_table(folder / f"rank-{rank:04d}" / "ops.parquet", OPS).to_pylist()
        if o["engine"] != "none"
    ]


def every_op(folder: Path) -> list[dict[str, Any]]:
    return [op for rank in range(COUNT) for op in ops_of(folder, rank)]


def covered(spans: list[tuple[int, int]]) -> int:
    """Return how long at least one of the spans lasts, moment by moment of their edges."""
    edges = sorted({at for span in spans for at in span})
    return sum(
        high - low for low, high in pairwise(edges) if any(a <= low and high <= b for a, b in spans)
    )


def busy(ops: list[dict[str, Any]], start: str) -> dict[int, int]:
    spans = defaultdict(list)
    for op in ops:
        if op["request_id"] is not None:
            spans[op["request_id"]].append((op[start], op["completed_ns"]))
    return {request: covered(of) for request, of in spans.items()}


def requests_of_three_objects(count: int) -> list[Any]:
    rows = []
    for request in range(count):
        rows += [
            (request * MS // 4, "write", 2, "store", 3 * request + at, 0, 8192, request, 0, 0)
            for at in range(3)
        ]
        rows += [
            (request * MS // 4, "read", 2, "load", 3 * request + at, 0, 8192, request, 1, 0)
            for at in range(3)
        ]
    return rows


@pytest.mark.first(speed=1)
@pytest.mark.parametrize("by", [PartitionBy.USER, PartitionBy.OBJECT])
@pytest.mark.parametrize("speed", [None, 1.0])
def test_requests_that_several_ranks_served_are_pooled(tmp_path, by, speed):
    run = replayed(tmp_path, requests_of_three_objects(40), by, speed=speed)
    found, ops = run.requests, every_op(tmp_path / "run")
    assert found is not None
    assert found.requests == 40
    storage = busy(ops, "submitted_ns")
    assert found.storage == distribution(np.array(list(storage.values())))
    tables = [
        read_table(tmp_path / "run" / f"rank-{r:04d}" / "requests.parquet", SERVED)
        for r in range(COUNT)
    ]
    assert (sum(table.num_rows for table in tables) > 40) == (by is PartitionBy.OBJECT)
    if speed is None:
        assert found.response is None
    else:
        assert found.response == distribution(np.array(list(busy(ops, "scheduled_ns").values())))


@pytest.mark.full
def test_requests_that_the_warm_up_touches_are_left_out(tmp_path):
    run = replayed(
        tmp_path, requests_of_three_objects(20), PartitionBy.OBJECT, warmup="8rows", speed=1.0
    )
    # Rows 0 to 7 are of requests 0 and 1.
    assert run.requests is not None
    assert run.requests.requests == 18
    warmup = run.summary.warmup
    assert warmup is not None
    assert (warmup.asked, warmup.operations, warmup.first_measured_row) == ("8rows", 8, None)
    left = sorted(op["submitted_ns"] for op in every_op(tmp_path / "run") if op["request_id"] > 1)
    assert warmup.measured_from_ns is not None
    assert warmup.measured_from_ns <= left[0]
    assert run.mlperf is not None
    assert run.mlperf.throughput.tokens is None


def test_criteria_are_judged_by_what_is_pooled(tmp_path):
    drive = tmp_path / "drive"
    drive.mkdir()
    path = write_trace(tmp_path / "t.parquet", requests_of_three_objects(30))
    config = Config(tiers={"nvme": str(drive)}, io_bytes=4096)
    on_ranks(
        COUNT,
        lambda s: s.replay(Replay(config, path, tmp_path / "run", ["kvreplay"])),
        by=PartitionBy.USER,
    )
    run = read_run(tmp_path / "run")
    assert run.mlperf is not None
    by = {figures.op: figures for figures in run.summary.figures}
    judged = {criterion.name: criterion for criterion in run.mlperf.criteria}
    assert judged["storage_read_p95_ns"].measured == by["read"].latency.p95_ns
    assert judged["storage_write_p95_ns"].measured == by["write"].latency.p95_ns
    # Over no less than the longer of both took, and no more than both would one after the other.
    moved, spans = (
        sum(f.bytes or 0 for f in by.values()),
        [by[op].span_ns or 0 for op in ("read", "write")],
    )
    rate = judged["storage_bandwidth_bytes_per_s"].measured
    assert rate is not None
    assert max(spans) <= moved * 10**9 / rate * (1 + 1e-9) <= sum(spans)
    assert judged["cpu_p95_ns"].verdict == "not measured"
    assert isinstance(run.ranks, RanksNote)
    of_ranks = [read_run(at) for at in sorted((tmp_path / "run").glob("rank-*/"))]
    read = [
        f.bandwidth_bytes_per_s or 0
        for each in of_ranks
        for f in each.summary.figures
        if f.op == "read"
    ]
    assert (len(read), run.ranks.combined.read_bandwidth_bytes_per_s) == (
        COUNT,
        pytest.approx(sum(read)),
    )
    assert [latency.total for latency in run.mlperf.latencies] == [
        f.latency for f in run.summary.figures
    ]
    shown = run_cli("kvdistill", "report", tmp_path / "run").stdout
    assert "storage_read_p95_ns" in shown
    assert "storage time" in shown


def saves(request: int | None) -> list[Any]:
    """Two saves of six objects, and users beside them."""
    rows = []
    for save in range(2):
        of = None if request is None else request + save
        stage = None if request is None else 0
        rows += [
            (save * 20 * MS, "write", 2, "save", 100 + 6 * save + n, 0, 40960, of, stage, 0)
            for n in range(6)
        ]
        rows += [
            (save * 20 * MS + n * MS, "write", 2, "store", 20 * save + n, 0, 4096, None, None, 0)
            for n in range(20)
        ]
    return sorted(rows, key=lambda row: row[0])


@pytest.mark.first(request_id=1, speed=1)
@pytest.mark.parametrize("request_id", [None, 7])
@pytest.mark.parametrize("speed", [None, 1.0])
def test_a_checkpoint_ends_when_its_last_rank_has_written_it(tmp_path, speed, request_id):
    run = replayed(tmp_path, saves(request_id), PartitionBy.OBJECT, speed=speed)
    found, ops = run.checkpoints, every_op(tmp_path / "run")
    assert found is not None
    spans = []
    for save, each in enumerate(found.each):
        mine = [
            op for op in ops if op["phase"] == "save" and (op["object_id"] >= 106) == bool(save)
        ]
        start, end = min(op["submitted_ns"] for op in mine), max(op["completed_ns"] for op in mine)
        assert (each.kind, each.bytes, each.operations, each.unfinished) == (
            "save",
            6 * 40960,
            6,
            0,
        )
        assert (each.submitted_ns, each.completed_ns, each.duration_ns) == (start, end, end - start)
        assert each.stall_ns == end - (start if speed is None else mine[0]["scheduled_ns"])
        assert each.request_id == (None if request_id is None else request_id + save)
        spans.append((start, end))
    assert found.busy_ns == covered(spans)
    assert [(kind.kind, kind.count, kind.bytes) for kind in found.kinds] == [
        ("save", 2, 12 * 40960)
    ]
    others = [op for op in ops if op["phase"] == "store"]
    begun = "submitted_ns" if speed is None else "scheduled_ns"
    is_during = [any(op[begun] < b and op["completed_ns"] > a for a, b in spans) for op in others]
    times = np.array([op["completed_ns"] - op[begun] for op in others])
    (beside,) = found.beside
    assert beside.measure == ("latency" if speed is None else "response")
    assert beside.during == distribution(times[is_during])
    assert beside.without == distribution(times[~np.array(is_during)])


def test_a_growing_queue_does_not_raise_the_rate_of_ranks(tmp_path):
    # 1,000 operations due within 10 ms, of which one ends each millisecond: 1,000 a second, and
    # 8.19 MB. Less the 50 ms that the 50 quickest took, it would be 1,052.
    rows = [(i // 100 * MS, "write", 2, "store", i, 0, 8192, i, 0, 0) for i in range(1000)]
    config = Config(tiers={"nvme": "sim:bandwidth=8192000B"}, io_bytes=8192, speed=1.0)
    path = write_trace(tmp_path / "t.parquet", rows)
    on_ranks(1, lambda s: s.replay(Replay(config, path, tmp_path / "run", ["kvreplay"])))
    whole, own = (read_run(tmp_path / folder).summary for folder in ("run", "run/rank-0000"))
    for found in (whole, own):
        assert found.pace.delivered_per_s == pytest.approx(1000 / 0.999, rel=1e-6)
    assert shows(whole.verdict, "8.20 … 819 MB/s")


@pytest.mark.full
def test_a_rank_that_left_nothing_leaves_the_others_figures(tmp_path):
    replayed(tmp_path, saves(7) + requests_of_three_objects(0), PartitionBy.OBJECT)
    whole = read_run(tmp_path / "run")
    (tmp_path / "run" / "rank-0001" / "run.json").unlink()
    run = merge_ranks(tmp_path / "run")
    assert whole.checkpoints is not None
    assert run.checkpoints is not None
    assert 0 < run.checkpoints.each[0].bytes < whole.checkpoints.each[0].bytes
    assert run.status == "partial"


@pytest.mark.full
def test_repeats_of_all_ranks_stay_in_step(tmp_path):
    """The parts end at different times.

    Without the whole trace's period each would go on by its own.
    """
    rows = requests_of_three_objects(7)
    run = replayed(tmp_path, rows, PartitionBy.USER, speed=1.0, runtime="12ms")
    last = rows[-1][0]
    once = 42
    # All six rows of a request come together, a quarter of a millisecond after those of the one
    # before.
    period = last + MS // 4
    begun = {op["object_id"] // 3 * MS // 4 for op in every_op(tmp_path / "run")}
    assert begun == {row[0] for row in rows}
    repeats = defaultdict(set)
    for op in every_op(tmp_path / "run"):
        repeat, own = divmod(op["scheduled_ns"], period)
        assert own == op["object_id"] // 3 * MS // 4
        assert op["request_id"] == op["object_id"] // 3 + 7 * repeat
        repeats[repeat].add(op["object_id"])
    assert len(repeats) == 12 * MS // period + 1
    assert all(
        len(objects) == 21 for repeat, objects in repeats.items() if repeat < len(repeats) - 1
    )
    assert run.window.rows_once == once
    assert run.requests is not None
    assert run.requests.requests == len({op["request_id"] for op in every_op(tmp_path / "run")})


def test_more_ranks_than_processors_are_noted_if_apart() -> None:
    def crowded(lates_ns: list[int], cpus: int, of_host: int | None = None) -> list[str]:
        run = (
            None
            if of_host is None
            else SimpleNamespace(host={"cpus": of_host}, pacing=SimpleNamespace(loop="closed"))
        )
        told = [
            SimpleNamespace(is_idle=False, begun_late_ns=late, clock_error_ns=0, cpus=cpus)
            for late in lates_ns
        ]
        parts: list[Any] = [
            SimpleNamespace(report=one, run=run, host="a", first_submission_ns=None) for one in told
        ]
        return merge.crowded_hosts(parts)

    assert crowded([0, 40_000, 10_000], 2) == []
    assert crowded([0, 2_500_000], 2) == []
    (said,) = crowded([0, 2_500_000, 10_000], 2)
    assert shows(said, "3 ranks … 2 CPUs … a")
    assert shows(said, "2.50 ms apart")
    # Bound to a processor each, of four.
    assert crowded([0, 2_500_000, 10_000], 1, of_host=4) == []


def test_ranks_without_operations_say_so_not_zero_time() -> None:
    found = merged_verdict(
        [], [figures(operations=0, latency=distribution_of(None, 0))], None, {}, None, None, []
    )
    assert (found.cause, found.reason) == (None, "nothing completed")
    assert "takes time" not in found.sentence
