"""A drive file as a model.

What it says between its cells, and replays in virtual time that give its cells back.
"""

from __future__ import annotations

import heapq
import json
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from conftest import Row, run_cli, trace_meta, write_trace
from drive_files import DEPTHS, SHARES, SIZES, cell, drive_of, usual_ns, write_drive
from rings import drive, engine_of, rows_of
from whole import read_table

from kvreplay.engine.native_engine import EngineName, choose
from kvreplay.plan.contents import DataSource
from kvreplay.tiers.modelled import (
    DriveModel,
    Service,
    SimulatedTier,
    held_out,
    prediction_ranges,
    simulated,
)
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.files import write_json
from kvtrace.core.run.drive_file import DriveFile
from kvtrace.core.schema import OPS

if TYPE_CHECKING:
    from pathlib import Path

READ, WRITE = 0, 1
CELLS = [cell(z, d, s) for z in SIZES for d in DEPTHS for s in SHARES]


def virtual(tier: Any, rows: Any, depth: int, io_bytes: int, **job: Any) -> Any:
    """Do `rows` on `tier` in virtual time."""
    engine = choose(EngineName.AUTO, [tier], depth, io_bytes)
    assert engine.name == "virtual"
    return drive(engine, rows, [tier], **job)


def test_between_cells_times_are_interpolated_on_logarithms() -> None:
    model = DriveModel(CELLS)
    for size, depth, share in ((1 << 20, 8, 1.0), (64 << 10, 1, 0.0), (4 << 10, 64, 0.7)):
        mean_ns = share * usual_ns(size, depth, share, 0) + (1 - share) * usual_ns(
            size, depth, share, 1
        )
        rate, _ = model.at(size, depth, share)
        assert rate == pytest.approx(size * depth / mean_ns * 1e9, rel=1e-3), (size, depth, share)
    # Powers of size and depth are straight there: at 16 KiB, and 24 in flight, they are what the
    # formula says.
    for size, depth in ((16 << 10, 8), (1 << 20, 24), (300_000, 3)):
        rate, _ = model.at(size, depth, 1.0)
        assert rate == pytest.approx(
            size * depth / usual_ns(size, depth, 1.0, 0) * 1e9, rel=0.02
        ), (size, depth)
    # Of 85 % reads, the middle of 70 % and all.
    low, high = (float(np.log(usual_ns(1 << 20, 8, s, 0))) for s in (0.7, 1.0))
    _, p99 = model.at(1 << 20, 8, 0.85)
    at = {s: model.at(1 << 20, 8, s)[1]["read"] for s in (0.7, 1.0)}
    assert np.log(p99["read"]) == pytest.approx((np.log(at[0.7]) + np.log(at[1.0])) / 2)
    assert low > high
    # Beyond the largest and the deepest the bandwidth stays.
    assert model.at(8 << 20, 64, 1.0)[0] == pytest.approx(model.at(1 << 20, 64, 1.0)[0], rel=1e-6)
    assert model.at(1 << 20, 500, 1.0)[0] == pytest.approx(model.at(1 << 20, 64, 1.0)[0], rel=1e-6)


@pytest.mark.parametrize("held", [1.0, 1.5])
@pytest.mark.parametrize(
    ("size", "depth", "share"), [(4 << 10, 1, 1.0), (1 << 20, 8, 0.0), (64 << 10, 64, 0.7)]
)
def test_a_closed_loop_gives_a_cell_back(size: int, depth: int, share: float, held: float) -> None:
    """Throughput and mean, also where submission holds the places of the queue for longer than the
    drive does.
    """
    cells = [cell(z, d, s, held=held) for z in SIZES for d in DEPTHS for s in SHARES]
    want = next(c for c in cells if (c.io_bytes, c.depth, c.read_share) == (size, depth, share))
    is_write = np.random.default_rng(1).random(30_000) >= share
    rows = rows_of(
        [{"op": int(w), "object_id": i, "length_bytes": size} for i, w in enumerate(is_write)]
    )
    driven = virtual(SimulatedTier("nvme", SERVICE, DriveModel(cells)), rows, depth, size)
    done = rows.all
    assert (driven.completed, driven.failure) == (30_000, None)
    assert 30_000 * size / driven.wall_ns * 1e9 == pytest.approx(want.bytes_per_s, rel=0.02)
    for op, times in enumerate((want.read, want.write)):
        took = (done["completed_ns"] - done["submitted_ns"])[done["op"] == op]
        if times is not None and times.p99_ns is not None:
            assert took.mean() == pytest.approx(times.mean_ns, rel=0.02)
            assert np.percentile(took, 50) == pytest.approx(times.p50_ns, rel=0.05)
            assert np.percentile(took, 99) == pytest.approx(times.p99_ns, rel=0.1)


SERVICE = Service(read_bytes_per_s=10**9, write_bytes_per_s=10**9, latency_ns=100, source="-")


def test_the_same_seed_gives_the_same_times() -> None:
    tier = SimulatedTier("nvme", SERVICE, DriveModel(CELLS))

    def ends(seed: int) -> list[int]:
        rows = rows_of(
            [{"op": i % 2, "object_id": i, "length_bytes": 300_000} for i in range(2000)]
        )
        virtual(tier, rows, 16, 1 << 16, data=DataSource(seed))
        found: list[int] = rows.all["completed_ns"].tolist()
        return found

    assert ends(1) == ends(1)
    assert ends(1) != ends(2)


def test_a_large_object_beside_a_small_one_slows_it_down() -> None:
    tier = SimulatedTier(
        "nvme",
        SERVICE,
        DriveModel([cell(z, d, s, spread=0.001) for z in SIZES for d in DEPTHS for s in SHARES]),
    )
    alone = rows_of([{"op": READ, "object_id": 0, "length_bytes": 4096}])
    virtual(tier, alone, 64, 1 << 20)
    assert alone.all["completed_ns"][0] == pytest.approx(usual_ns(4096, 1, 1.0, 0), rel=0.01)
    whole = rows_of([{"op": READ, "object_id": 0, "length_bytes": 8 << 20}])
    virtual(tier, whole, 8, 1 << 20)
    # Eight I/Os at once, the last of which finds seven in flight.
    assert whole.all["completed_ns"][0] == pytest.approx(usual_ns(1 << 20, 8, 1.0, 0), rel=0.01)
    beside = rows_of(
        [
            {"op": READ, "object_id": i, "length_bytes": (1 << 20) if i < 30 else 4096}
            for i in range(31)
        ]
    )
    virtual(tier, beside, 64, 1 << 20)
    took = beside.all["completed_ns"] - beside.all["submitted_ns"]
    assert took[30] > 20 * alone.all["completed_ns"][0]


def test_threads_take_the_times_of_the_model_for_real() -> None:
    """Where another tier is real, so is time."""
    tier = SimulatedTier(
        "nvme",
        SERVICE,
        DriveModel([cell(z, d, s, spread=0.1) for z in SIZES for d in DEPTHS for s in SHARES]),
    )
    rows = rows_of([{"op": READ, "object_id": i, "length_bytes": 1 << 20} for i in range(200)])
    started = time.monotonic()
    driven = drive(engine_of("threads", 8, 1 << 20), rows, [tier])
    took = rows.all["completed_ns"] - rows.all["submitted_ns"]
    assert driven.completed == 200
    # What a thread that came late found in flight, no test knows; all of it took as long as it
    # says.
    assert time.monotonic() - started >= rows.all["completed_ns"].max() / 1e9
    assert usual_ns(1 << 20, 1, 1.0, 0) * 0.6 <= took.mean() <= usual_ns(1 << 20, 8, 1.0, 0) * 1.1


def served(count: int, depth: int, occupied_ns: int, latency_ns: int) -> list[int]:
    """Return when operations of one first-come server end, `depth` of them in flight.

    Plain Python.
    """
    flying: list[int] = []
    busy = now = 0
    ends = []
    for _ in range(count):
        if len(flying) == depth:
            now = heapq.heappop(flying)
        busy = max(busy, now) + occupied_ns
        heapq.heappush(flying, busy + latency_ns)
        ends.append(busy + latency_ns)
    return ends


@pytest.mark.parametrize("depth", [1, 4, 32])
def test_a_service_in_virtual_time_is_exact(depth: int) -> None:
    tier = SimulatedTier(
        "gpu", Service(read_bytes_per_s=10**9, write_bytes_per_s=1, latency_ns=200_000, source="-")
    )
    rows = rows_of([{"op": READ, "object_id": i, "length_bytes": 50_000} for i in range(300)])
    driven = virtual(tier, rows, depth, 4096)
    assert rows.all["completed_ns"].tolist() == served(300, depth, 50_000, 200_000)
    assert driven.wall_ns == rows.all["completed_ns"].max()


def test_virtual_time_waits_for_no_due_time() -> None:
    tier = SimulatedTier(
        "gpu", Service(read_bytes_per_s=10**9, write_bytes_per_s=1, latency_ns=0, source="-")
    )
    hour = 3600 * 10**9
    rows = rows_of(
        [{"op": READ, "object_id": i, "length_bytes": 1000, "due_ns": i * hour} for i in range(50)],
        is_open_loop=True,
    )
    started = time.monotonic()
    driven = virtual(tier, rows, 4, 4096)
    assert time.monotonic() - started < 60, "50 hours are waited for"
    assert rows.all["submitted_ns"].tolist() == [i * hour for i in range(50)]
    assert rows.all["completed_ns"].tolist() == [i * hour + 1000 for i in range(50)]
    assert driven.wall_ns == 49 * hour + 1000


def test_virtual_time_ends_after_104_days_and_says_so() -> None:
    tier = SimulatedTier(
        "gpu", Service(read_bytes_per_s=10**9, write_bytes_per_s=1, latency_ns=0, source="-")
    )
    day = 86_400 * 10**9
    at_days = [0, 100, 120]
    stated = [
        {"op": READ, "object_id": i, "length_bytes": 1000, "due_ns": at * day}
        for i, at in enumerate(at_days)
    ]
    for runtime_ns, why in (
        (None, "simulated time"),
        (500 * day, "simulated time"),
        (101 * day, "--dur"),
    ):
        rows = rows_of(stated, is_open_loop=True)
        driven = virtual(tier, rows, 4, 4096, runtime_ns=runtime_ns)
        assert driven.completed == 2
        assert driven.interrupted_by is not None
        assert why in driven.interrupted_by
    # 3,000 years of a write, and then a read.
    both = [{"op": op, "object_id": op, "length_bytes": 10**11 * op + 1000} for op in (WRITE, READ)]
    rows = rows_of(both)
    virtual(tier, rows, 4, 4096)
    assert rows.all["completed_ns"].tolist() == [1 << 60, 1000]


def test_tiers_have_models_of_their_own_however_many_there_are() -> None:
    tiers = [
        SimulatedTier(
            "t", Service(read_bytes_per_s=10**9, write_bytes_per_s=1, latency_ns=0, source="-")
        )
    ] * 127
    rows = rows_of(
        [{"op": READ, "tier": i, "object_id": i, "length_bytes": 1000} for i in range(127)]
    )
    drive(choose(EngineName.AUTO, tiers, 127, 4096), rows, tiers)
    assert set(rows.all["completed_ns"].tolist()) == {1000}


def test_held_out_cells_are_predicted_by_the_others() -> None:
    """Cells on straight lines of logarithms are found again.

    Of one that lies off it, it is known by how much.
    """
    straight = [cell(z, d, s, spread=0.1) for z in SIZES for d in DEPTHS for s in SHARES]
    found = held_out(straight)
    assert found is not None
    assert found.cells == 9
    assert found.bandwidth_greatest < 0.02
    # In the middle of all axes: 1 + 1 + 1 is every third of none, so a cell beside it.
    at = next(
        i
        for i, c in enumerate(straight)
        if (c.io_bytes, c.depth, c.read_share) == (64 << 10, 1, 0.0)
    )
    twice = cell(64 << 10, 1, 0.0, 0.1, lambda *of: 2 * usual_ns(*of))
    found = held_out([*straight[:at], twice, *straight[at + 1 :]])
    assert found is not None
    assert found.bandwidth_greatest == pytest.approx(1.0, abs=0.05)
    assert found.p99_greatest == pytest.approx(0.5, abs=0.05)
    assert found.bandwidth_median < 0.02
    assert held_out(straight[:1]) is None


def test_a_file_that_is_none_is_refused_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "drive.json"
    whole = json.loads(json.dumps(json.loads((write_drive(path), path.read_text())[1])))
    assert DriveFile.read(path).cells == CELLS
    for change, message in (
        ({"speed": 1}, "`speed`"),
        ({"device": "nvme1n1"}, "damaged"),
        ({"cells": whole["cells"][:1]}, "damaged"),
    ):
        path.write_text(json.dumps(whole | change))
        with pytest.raises(TraceError, match=message):
            DriveFile.read(path)
    whole["cells"][0]["read"] = {"count": 1, "colour": "red"}
    path.write_text(json.dumps(whole))
    with pytest.raises(TraceError, match=r"colour|missing"):
        DriveFile.read(path)
    write_json(path, drive_of([c for c in CELLS if c.read_share == 1]))
    with pytest.raises(TraceError, match="writes"):
        DriveFile.read(path)
    with pytest.raises(ConfigError, match="option 'x'"):
        simulated("nvme", {"x": "1"}, trace_meta(), "--tier")


def rows_on_nvme(count: int) -> list[Any]:
    return [
        (i * 1000, ("write", "read")[i % 2], 0, "load", i // 2, 0, 300_000, None, None, 0)
        for i in range(count)
    ]


def test_a_replay_on_a_drive_file_ends_in_virtual_time(tmp_path: Path) -> None:
    write_drive(tmp_path / "drive.json")
    trace = write_trace(tmp_path / "t.parquet", rows_on_nvme(400))
    argv = (
        "kvreplay",
        "run",
        trace,
        "--tier",
        f"gpu=sim:{tmp_path / 'drive.json'}",
        "--duration",
        "1min",
    )
    started = time.monotonic()
    done = run_cli(*argv, "--queue-depth", "1", "--json", "-o", tmp_path / "run")
    assert time.monotonic() - started < 120
    run = json.loads(done.stdout)
    assert run["engine"]["name"] == "virtual"
    assert run["summary"]["wall_ns"] == pytest.approx(60e9, rel=1e-3)
    assert run["summary"]["wall_ns"] >= 60e9
    (note,) = [note for note in run["notes"] if "SIMULATED" in note]
    assert "EXAMPLE, measured 2026-11-25" in note
    again = run_cli(*argv, "--queue-depth", "1", "-o", tmp_path / "again")
    assert "gpu (SIMULATED)" in again.stdout
    names = ["submitted_ns", "completed_ns"]
    first, second = (
        read_table(tmp_path / name / "ops.parquet", OPS).select(names) for name in ("run", "again")
    )
    assert first.equals(second)
    drive, none = f"drive={tmp_path / 'drive.json'}", tmp_path / "none"
    for both in (f"gpu=sim:{drive},latency=10us", f"gpu=sim:latency=10us,{drive}"):
        refused = run_cli("kvreplay", "run", trace, "--tier", both, "-o", none, check=False)
        assert (refused.returncode, f"--tier {both}:" in refused.stderr) == (
            2,
            True,
        )
    missing = run_cli(
        "kvreplay", "run", trace, "--tier", "gpu=sim:no.json", "-o", tmp_path / "none", check=False
    )
    assert "no.json:" in missing.stderr


def test_a_prediction_is_a_range_of_held_out_cells(tmp_path: Path) -> None:
    """One cell of three is twice as fast as its neighbours say: the range reaches beyond 1."""
    even = prediction_ranges(CELLS)
    assert even is not None
    assert 0.9 < even.bandwidth[0] <= even.bandwidth[1] < 1.1
    uneven = [
        msgspec.structs.replace(c, bytes_per_s=2 * c.bytes_per_s) if i % 3 == 0 else c
        for i, c in enumerate(CELLS)
    ]
    ranges = prediction_ranges(uneven)
    assert ranges is not None
    low, high = ranges.bandwidth
    assert low < 1.1
    assert high > 1.5

    drive_path = tmp_path / "drive.json"
    write_json(drive_path, drive_of(uneven))
    rows: list[Row] = [
        (i, ("write", "read")[i % 2], 2, "load", i // 2, 0, 1 << 20, i, 0, 0) for i in range(200)
    ]
    trace = write_trace(tmp_path / "t.parquet", rows)
    done = run_cli(
        "kvreplay", "run", trace, "--tier", f"nvme=sim:{drive_path}", "-o", tmp_path / "run"
    )
    judgement = json.loads((tmp_path / "run/run.json").read_text())["summary"]["judgement"]
    (rate,) = judgement["tiers"]
    assert rate["measured_over_predicted"] == pytest.approx([low, high])
    assert ranges.p99 is not None
    assert rate["p99_measured_over_predicted"] == pytest.approx(list(ranges.p99))
    assert f"{ranges.p99[0]:.2g} to {ranges.p99[1]:.2g} times" in done.stdout
    assert f"{rate['reached_bytes_per_s'] * high / 1e9:.2f} GB/s" in judgement["sentence"]
