"""Measuring a drive for its file, and what a run says beside one."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import run_cli, write_trace
from drive_files import write_drive
from phrases import Saying, shows

from kvreplay.plan.replay_config import Config
from kvreplay.plan.row_ring import OK, ROW
from kvreplay.result import verdict
from kvreplay.run import discover as cards
from kvreplay.run.replay import Interrupted, Replay
from kvreplay.tiers.modelled import DriveModel
from kvtrace.core.errors import DeviceError
from kvtrace.core.run.figures import LimitCause
from kvtrace.core.run.run_file import DeviceIo
from kvtrace.core.units import format_rate

MIB = 1 << 20


@pytest.fixture
def quick(monkeypatch):
    """Measure two sizes in a small file, in a second."""
    monkeypatch.setattr(cards, "ROOFLINE_NS", 10**9)
    monkeypatch.setattr(cards, "SIZES", (4096, MIB))
    monkeypatch.setattr(cards, "ROOFLINE_DEPTHS", (1, 8))
    monkeypatch.setattr(cards, "FILE_BYTES", 64 * MIB)


def moved(read, written):
    return DeviceIo(read_bytes=read, written_bytes=written, device_ns=0, busy_ns=0)


def measured(folder):
    folder.mkdir(exist_ok=True)
    return cards.measure_drive(Replay(Config(), Path(), folder, ["kvreplay", "scorecard"]), folder)


@pytest.mark.usefixtures("quick")
def test_all_cells_are_measured_in_a_file_that_is_then_removed(tmp_path):
    drive = measured(tmp_path / "d")
    assert [(c.io_bytes, c.depth, c.read_share) for c in drive.cells] == [
        (size, depth, share) for size in (4096, MIB) for depth in (1, 8) for share in (1, 0, 0.7)
    ]
    assert not list((tmp_path / "d").iterdir())
    known = [c for c in drive.cells if c.reason is None]
    assert known
    for cell in known:
        assert (cell.read is None, cell.write is None) == (
            cell.read_share == 0,
            cell.read_share == 1,
        )
        times = [t for t in (cell.read, cell.write) if t is not None]
        assert sum(t.count for t in times) == cell.operations
        # Little's law, of what was counted: what was in flight, over the mean time, is the rate.
        mean_ns = sum((t.mean_ns or 0) * t.count for t in times) / cell.operations
        assert cell.bytes_per_s == pytest.approx(cell.io_bytes * cell.in_flight / mean_ns * 1e9)
        assert 0 < cell.in_flight <= cell.depth
    assert cards.drive_table(drive).rows[0][0] == 4096


@pytest.mark.usefixtures("quick")
def test_a_cell_that_the_device_did_not_do_is_null_and_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(cards, "device_counters", lambda _target: moved(0, 0))
    drive = measured(tmp_path / "d")
    assert all(c.bytes_per_s is None and c.operations is None for c in drive.cells)
    assert all(shows(c.reason, "0 B") for c in drive.cells)
    assert drive.held_out is None


def test_a_cell_of_rows_is_counted_by_hand():
    rows = np.zeros(4, ROW)
    rows["outcome"], rows["op"] = OK, [0, 0, 0, 1]
    rows["submitted_ns"], rows["completed_ns"] = [1000, 1000, 2000, 3000], [2000, 3000, 4000, 6000]
    # 4 x 4096 bytes in 5,000 ns; 1,000 + 2,000 + 2,000 + 3,000 ns of service.
    before, after = moved(0, 0), moved(3 * 4096, 4096)
    cell = cards.cell_of(rows, 4096, 2, 0.7, before, after)
    assert (cell.operations, cell.bytes_per_s, cell.in_flight) == (4, 3_276_800_000, 8000 / 5000)
    assert (cell.read.count, cell.read.mean_ns, cell.read.max_ns, cell.read.p99_ns) == (
        3,
        5000 / 3,
        2000,
        None,
    )
    assert (cell.write.count, cell.write.max_ns) == (1, 3000)
    short = cards.cell_of(rows, 4096, 2, 0.7, before, moved(2 * 4096, 4096))
    assert (short.bytes_per_s, short.reason) == (
        None,
        Saying("8.19 kB … 12.3 kB"),
    )
    assert cards.cell_of(rows, 4096, 2, 0.7, None, None) == cell


def test_a_target_without_room_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(cards, "FILE_BYTES", 1 << 60)
    with pytest.raises(DeviceError, match="free"):
        measured(tmp_path / "d")
    assert not list((tmp_path / "d").iterdir())


@pytest.mark.usefixtures("quick")
def test_a_signal_ends_it_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(cards, "noted_signals", lambda: nullcontext(lambda: "SIGINT"))
    with pytest.raises(Interrupted, match="SIGINT"):
        measured(tmp_path / "d")
    assert not list((tmp_path / "d").iterdir())


def lines_of(run):
    return [
        note.removeprefix("drive.json: ")
        for note in run["notes"]
        if note.startswith("drive.json: ")
    ]


@pytest.mark.full
def test_a_run_says_in_five_lines_what_its_drive_should_do(tmp_path):
    drive = write_drive(tmp_path / "drive.json")
    rows = [
        (i, "write" if i < 64 else "read", 0, "load", i % 64, 0, MIB, None, None, 0)
        for i in range(256)
    ]
    trace = write_trace(tmp_path / "t.parquet", rows)
    (tmp_path / "d").mkdir()
    argv = (
        "kvreplay",
        "run",
        trace,
        "--tier",
        f"gpu={tmp_path / 'd'}",
        "--queue-depth",
        "4",
        "--force",
    )
    argv += ("--drive", tmp_path / "drive.json", "-o", tmp_path / "run", "--json")
    run = json.loads(run_cli(*argv).stdout)
    expected, observed, direct, queue, why = lines_of(run)
    summary = run["summary"]
    in_flight = summary["judgement"]["evidence"]["in_flight_mean"]
    at = DriveModel(drive.cells).at(MIB, max(1.0, in_flight), 0.75)[0] * min(1.0, in_flight)
    (rate,) = summary["judgement"]["tiers"]
    ratio = rate["reached_bytes_per_s"] / at
    assert expected.startswith("expected ")
    assert f"1.05 MB, {in_flight:.3g} in flight, 75.0 %" in expected
    assert f", {ratio:.2f} of it" in observed
    assert direct.startswith("O_DIRECT is ")
    assert shows(queue, f"full: {in_flight:.3g} … 4; I/Os")
    # The file is of another drive than this machine has.
    assert why.startswith(("why: another drive", "why: no O_DIRECT"))
    buffered = lines_of(json.loads(run_cli(*argv, "--buffered").stdout))
    assert shows(buffered[2], "O_DIRECT is NOT")
    assert shows(buffered[4], "why: O_DIRECT")
    assert "drive.json: why:" in run_cli("kvdistill", "report", tmp_path / "run").stdout
    memory = (
        "kvreplay",
        "run",
        trace,
        "--tier",
        "gpu=ram",
        "--drive",
        tmp_path / "drive.json",
        "--json",
    )
    (only,) = lines_of(json.loads(run_cli(*memory, "-o", tmp_path / "ram").stdout))
    assert shows(only, "nothing to compare: gpu")
    missing = run_cli(
        *argv[:-3], "-o", tmp_path / "no", "--drive", tmp_path / "no.json", check=False
    )
    assert (missing.returncode, "no.json:" in missing.stderr) != (0, False)


@pytest.mark.parametrize(
    ("ratio", "of_run", "why"),
    [
        (1.0, {}, "drive … limit"),
        (
            1.0,
            {"in_flight": 2.0},
            "queue … the trace",
        ),
        (0.5, {"is_direct": False}, "O_DIRECT"),
        (0.5, {"cause": "throttle"}, "control group … the trace"),
        (0.5, {"device": "sda"}, "another drive: nvme0n1"),
        (0.5, {"cause": "data generation"}, "data generation … the trace"),
        (0.5, {"layout": "hashed"}, "a new file"),
        (
            0.5,
            {"beneath": "md0 over nvme0n1"},
            "RAID: md0 over nvme0n1",
        ),
        (0.5, {"longest": 65536}, "I/Os … split"),
        (0.5, {"filesystem": "ext4"}, "ext4"),
        (0.5, {}, "drive itself"),
    ],
)
def test_why_a_run_differs_from_its_drive(tmp_path, monkeypatch, ratio, of_run, why):
    """Each reason by itself, of a run that moved 1 MiB at a time, 4 in flight, half reads."""
    found = {
        "in_flight": 4.0,
        "is_direct": True,
        "cause": None,
        "device": "nvme0n1",
        "layout": "extents of one file",
    }
    found |= {"beneath": "nvme0n1", "longest": 1 << 30, "filesystem": "xfs"} | of_run
    monkeypatch.setattr(verdict, "layers", lambda _target: found["beneath"])
    monkeypatch.setattr(verdict, "queue_number", lambda _target, _name: found["longest"] >> 10)
    drive = write_drive(tmp_path / "drive.json")
    expected, _ = DriveModel(drive.cells).at(MIB, found["in_flight"], 0.5)
    moved = [
        SimpleNamespace(tier="nvme", op=op, bytes=100 * MIB, operations=100)
        for op in ("read", "write")
    ]
    judgement = SimpleNamespace(
        tier="nvme",
        cause=None if found["cause"] is None else LimitCause(found["cause"]),
        reason="the trace",
        evidence=SimpleNamespace(in_flight_mean=found["in_flight"], queue_depth=4),
        tiers=[SimpleNamespace(tier="nvme", reached_bytes_per_s=ratio * expected)],
    )
    facts = {name: found[name] for name in ("is_direct", "layout", "filesystem", "device")}
    facts |= {"target": str(tmp_path), "device_model": "EXAMPLE"}
    run = SimpleNamespace(drives=lambda: [("nvme", facts)], engine=SimpleNamespace(io_bytes=MIB))
    lines = verdict.beside_drive(
        tmp_path / "drive.json", run, SimpleNamespace(judgement=judgement, figures=moved)
    )
    assert len(lines) == 5
    assert shows(lines[1], f"drive.json: … {format_rate(ratio * expected)}, {ratio:.2f}")
    assert shows(lines[4], f"drive.json: why: … {why}")
