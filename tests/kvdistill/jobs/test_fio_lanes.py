"""Lanes by hand: which request runs in which job of fio, and how many I/Os are in flight there."""

from pathlib import Path

import msgspec
import numpy as np
import polars as pl
import pytest

from kvdistill.jobs.fio_lanes import MAX_LANES, plan_lanes, plan_sampled_lanes
from kvdistill.jobs.mode_job import mean_stage_ops
from kvdistill.profile.profile import IoStream, Loop, Pacing
from kvdistill.profile.streams import empty_direction

MS = 1_000_000
KIB = 1024
NO_REQUEST = -1


def write_ios(path: Path, rows: list[tuple[int, int, int, int]]) -> Path:
    """Write operations as (time in ms, request, stage, bytes), as sources.write_ios does."""
    schema = ["ts_ns", "request_id", "stage", "io_bytes"]
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    frame.with_columns(pl.col("ts_ns") * MS).write_parquet(path)
    return path


def lanes_of(tmp_path, rows, max_io_bytes=1024 * KIB):
    plan = plan_lanes("replay", write_ios(tmp_path / "ios.parquet", rows), max_io_bytes)
    assert plan is not None
    return plan


def test_stages_of_one_io_are_a_chain_of_one(tmp_path):
    plan = lanes_of(tmp_path, [(0, 7, stage, 4 * KIB) for stage in range(5)])
    (lane,) = plan.lanes
    assert lane.options == {"ioengine": "psync", "bs": 4 * KIB}
    assert (lane.file, lane.ios, list(plan.lane_of_operation)) == (
        "replay.lane1.iolog",
        5,
        [0, 0, 0, 0, 0],
    )


def test_a_lane_has_as_many_in_flight_as_a_stage(tmp_path):
    # Two stages of two operations, each in two parts of 1 MiB.
    rows = [(0, 1, stage, 2048 * KIB) for stage in (0, 0, 1, 1)]
    (lane,) = lanes_of(tmp_path, rows).lanes
    assert lane.options == {
        "ioengine": "libaio",
        "iodepth": 4,
        "iodepth_low": 1,
        "iodepth_batch_complete_min": 4,
        "bs": 1024 * KIB,
    }
    assert lane.ios == 8


def test_requests_that_overlap_are_in_different_lanes(tmp_path):
    # 1 and 2 begin together; 3 begins when both have long ended, and takes the first lane again.
    rows = [
        (0, 1, 0, KIB),
        (0, 2, 0, KIB),
        (0, 1, 1, KIB),
        (1, 2, 1, KIB),
        (900, 3, 0, KIB),
        (900, 3, 1, KIB),
    ]
    plan = lanes_of(tmp_path, rows)
    assert list(plan.lane_of_operation) == [0, 1, 0, 1, 0, 0]
    assert plan.waiting_requests == 0


def test_wide_and_narrow_requests_do_not_share_a_lane(tmp_path):
    rows = [(0, 1, 0, KIB), (0, 1, 1, KIB), *[(900, 2, stage, KIB) for stage in (0, 0, 1, 1)]]
    plan = lanes_of(tmp_path, rows)
    assert [lane.depth for lane in plan.lanes] == [1, 2]
    assert list(plan.lane_of_operation) == [0, 0, 1, 1, 1, 1]


def test_what_waits_for_nothing_has_a_lane_of_its_own(tmp_path):
    rows = [(0, 1, 0, KIB), (0, NO_REQUEST, -1, KIB), (0, 1, 1, KIB), (0, NO_REQUEST, -1, KIB)]
    plan = lanes_of(tmp_path, rows)
    assert list(plan.lane_of_operation) == [0, 1, 0, 1]
    chain, independent = plan.lanes
    assert (chain.is_chain, independent.is_chain) == (True, False)
    assert "iodepth_low" not in independent.options


def test_with_too_few_lanes_requests_wait_and_are_counted(tmp_path):
    count = MAX_LANES + 3
    rows = [(0, request, stage, KIB) for request in range(count) for stage in (0, 1)]
    plan = lanes_of(tmp_path, rows)
    assert (len(plan.lanes), plan.waiting_requests) == (MAX_LANES, 3)


@pytest.mark.parametrize("rows", [[(0, 1, 0, KIB), (0, 1, 0, KIB)], [(0, NO_REQUEST, -1, KIB)]])
def test_without_a_second_stage_there_are_no_lanes(tmp_path, rows):
    assert plan_lanes("replay", write_ios(tmp_path / "ios.parquet", rows), KIB) is None


def sampled(bursts):
    """Return operations of 1 MiB: bursts[i] of them at i seconds."""
    us = np.repeat(np.arange(len(bursts)) * 1_000_000 + 1, bursts)
    count = len(us)
    return {
        "us": us, "is_read": np.ones(count, dtype=bool),
        "offset": np.arange(count) << 20, "length": np.full(count, 1 << 20),
    }  # fmt: skip


def test_sampled_bursts_are_chains_of_stages():
    """Bursts of six in stages of two; each part of an operation counts in its stage."""
    plan = plan_sampled_lanes("reuse", sampled([6, 6, 6]), 2, 1 << 20)
    (lane,) = plan.lanes
    assert (lane.file, lane.depth, lane.is_chain, lane.ios) == ("reuse.lane1.iolog", 2, True, 18)
    assert plan.lane_of_operation.tolist() == [0] * 18
    assert plan_sampled_lanes("reuse", sampled([6, 6]), 2, 1 << 19).lanes[0].depth == 4
    # Without a second stage nothing waits.
    assert plan_sampled_lanes("reuse", sampled([6, 6, 6]), 6, 1 << 20) is None


def test_stages_of_streams_that_wait_give_the_width():
    def stream(ops, burst_ops, burst_depth):
        loop = Loop(Pacing.BURSTS, None, burst_ops=burst_ops, burst_depth=burst_depth)
        side = msgspec.structs.replace(empty_direction(), ops=ops)
        return IoStream(
            name="read", start_ns=0, span_ns=1, read=side, write=empty_direction(),
            loop=loop, places=None,
        )  # fmt: skip

    assert mean_stage_ops([stream(100, 40, 2), stream(300, 40, 6)]) == 5
    assert mean_stage_ops([stream(100, 40, 40)]) is None
