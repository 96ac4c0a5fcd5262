"""Faults in the middle of a run.

What was measured is kept, marked partial, and never taken for a whole run.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Any

import pytest
from conftest import run_cli, write_trace
from phrases import shows
from rings import PlainFiles
from waiting import rows_in, wait_for
from whole import read_table

from kvreplay.engine.native_engine import Engine, refusal
from kvreplay.experiments.trials import Trials
from kvreplay.plan.output_directory import check_output, make_directory
from kvreplay.plan.replay_config import Config
from kvreplay.result import run_tables as journals
from kvreplay.result.run_tables import Journal
from kvreplay.run.recover import recover
from kvreplay.run.replay import Replay, replay
from kvreplay.run.run_document import run_document
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.tier import StorageOptions, drive_by_id
from kvtrace.core.errors import ConfigError, DeviceError, TraceError
from kvtrace.core.files import write_json
from kvtrace.core.run.run_file import PARTIAL_OPS_FILE, PARTIAL_RUN_FILE, read_run
from kvtrace.core.schema import OPS
from kvtrace.core.tables import objects_path
from kvtrace.core.temporary import host_digest

if TYPE_CHECKING:
    from pathlib import Path

IO = 16384
ROWS = 30_000


def row(op: str, obj: int, length: int = IO, ts: int = 0, stage: int | None = None) -> Any:
    return (ts, op, 2, "load", obj, 0, length, None if stage is None else 1, stage, 0)


@pytest.fixture(params=["threads", "uring"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "uring" and (why := refusal()) is not None:
        pytest.skip(f"no io_uring: {why}")
    return str(request.param)


def start(
    tmp_path: Path, target: object, name: str = "run", *, has_keys: bool = True
) -> subprocess.Popen[str]:
    """Start a replay that writes an object every 10 ms for minutes."""
    trace = write_trace(
        tmp_path / "t.parquet", [row("write", i, ts=i * 10**7) for i in range(ROWS)]
    )
    if not has_keys:
        objects_path(trace).unlink()
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "kvreplay.cli",
            "run",
            str(trace),
            "--tier",
            f"nvme={target}",
            "--speed",
            "1",
            "--buffered",
            "-o",
            str(tmp_path / name),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_with_rows(tmp_path: Path, process: subprocess.Popen[str]) -> Path:
    """Kill `process` when its journal has at least a batch of rows; return the run's directory."""
    kept = tmp_path / "run" / PARTIAL_OPS_FILE
    wait_for(process, lambda: rows_in(kept), "the journal has no rows")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return tmp_path / "run"


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the drive `d` and the run on it that was killed, for tests to copy."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "d").mkdir()
    kill_with_rows(folder, start(folder, folder / "d"))
    return folder


@pytest.mark.full
@pytest.mark.first(folder=1)
@pytest.mark.parametrize("folder", ["trial-2", "trials/trial-2", "a/trial-2"])
def test_of_trials_the_one_that_was_cut_off_is_seen(
    tmp_path: Path, killed: Path, folder: str
) -> None:
    """As `--trials`, mlperf and compare leave them."""
    (tmp_path / "d").mkdir()
    series = tmp_path / "series"
    cut = shutil.copytree(killed / "run", series / folder)
    begun = json.loads((cut / PARTIAL_RUN_FILE).read_text())
    write_json(cut / PARTIAL_RUN_FILE, begun | {"argv": [*begun["argv"], "--trials", "3"]})
    whole = write_trace(tmp_path / "w.parquet", [row("write", 0)])
    run_cli(
        "kvreplay",
        "run",
        whole,
        "--tier",
        f"nvme={tmp_path / 'd'}",
        "--buffered",
        "-o",
        cut.with_name("trial-1"),
    )
    for command in ("report", "compare"):
        done = run_cli("kvdistill", command, series, cut.with_name("trial-1"), check=False)
        assert done.returncode == 3
        assert shows(done.stderr, f"{folder} … kvreplay recover {series}")
    said = run_cli("kvreplay", "recover", series).stderr
    rows = ROWS - (read_run(cut).summary.not_reached or 0)
    assert shows(said, f"trial 2 … 3 … {rows:,} … {ROWS:,} rows")
    assert run_cli("kvreplay", "recover", series, check=False).returncode == 2
    assert run_cli("kvdistill", "report", cut.parent).returncode == 0


def test_a_killed_run_is_none_until_it_is_recovered_as_partial(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    process = start(tmp_path, tmp_path / "d")
    output = tmp_path / "run"
    wait_for(process, (output / PARTIAL_RUN_FILE).is_file, "the journal does not begin")
    with pytest.raises(DeviceError, match="still going"):
        recover(output)
    kill_with_rows(tmp_path, process)
    assert not (output / "run.json").exists()
    with pytest.raises(TraceError, match="kvreplay recover"):
        read_run(output)
    again = run_cli(
        "kvreplay",
        "run",
        tmp_path / "t.parquet",
        "--tier",
        f"nvme={tmp_path / 'd'}",
        "-o",
        output,
        check=False,
    )
    assert (again.returncode, f"kvreplay recover {output}" in again.stderr) == (4, True)
    other = write_trace(tmp_path / "other.parquet", [row("write", 0)])
    with pytest.raises(TraceError, match="trace"):
        recover(output, other)
    # The same head, another content.
    begun = (output / PARTIAL_RUN_FILE).read_text()
    digest = json.loads(begun)["trace"]["sha256"]
    (output / PARTIAL_RUN_FILE).write_text(begun.replace(digest, "0" * 64))
    with pytest.raises(TraceError, match=f"SHA-256 0{{64}}, not {digest}"):
        recover(output)
    (output / PARTIAL_RUN_FILE).write_text(begun)
    moved = (tmp_path / "t.parquet").rename(tmp_path / "moved.parquet")
    with pytest.raises(TraceError, match="trace"):
        recover(output)
    done = run_cli("kvreplay", "recover", output, "--trace", moved)
    assert done.stdout.startswith("PARTIAL: ")
    manifest = json.loads((output / "run.json").read_text())
    assert (manifest["status"], manifest["reason"][:6]) == ("partial", "killed")
    assert "running" not in manifest
    ops = read_table(output / "ops.parquet", OPS)
    ok = [o for o in ops.to_pylist() if o["outcome"] == "ok"]
    assert len(ok) == manifest["summary"]["operations"] > 0
    # An object every 10 ms, in order; what was in flight at the last note is missing.
    assert ok[-1]["row"] + 1 - len(ok) < 8
    assert all(
        o["completed_ns"] >= o["submitted_ns"] >= o["scheduled_ns"] == o["row"] * 10**7 for o in ok
    )
    assert manifest["summary"]["not_reached"] == ROWS - len(ok)
    assert manifest["summary"]["wall_ns"] == max(o["completed_ns"] for o in ok)
    assert manifest["summary"]["generation"] is None, "what it cost is not known"
    assert sorted(p.name for p in output.iterdir()) == [
        "ops.parquet",
        "requests.parquet",
        "run.json",
        "series.parquet",
    ]
    with pytest.raises(ConfigError, match="recover"):
        recover(output)


@pytest.mark.full
def test_a_killed_run_on_several_drives_recovers_by_its_rule(
    tmp_path: Path,
) -> None:
    drives = [tmp_path / "a", tmp_path / "b"]
    for drive in drives:
        drive.mkdir()
    process = start(tmp_path, f"{drives[0]},{drives[1]}", has_keys=False)
    output = kill_with_rows(tmp_path, process)
    keys = objects_path(
        write_trace(tmp_path / "t.parquet", [row("write", i, ts=i * 10**7) for i in range(ROWS)])
    )
    with pytest.raises(ConfigError, match="on which drive"):
        recover(output)
    keys.unlink()
    found = recover(output).summary
    ops = [o for o in read_table(output / "ops.parquet", OPS).to_pylist() if o["outcome"] == "ok"]
    drive_of = drive_by_id(ROWS, 2)
    by_id = Counter(f"nvme:{drives[drive_of[o['object_id']]]}" for o in ops)
    assert {f.tier: f.operations for f in found.drives} == by_id


def test_a_journal_that_cannot_be_written_stops_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_self: Journal) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(journals, "_PERIOD_S", 0.01)
    monkeypatch.setattr(Journal, "keep", full)
    trace = write_trace(tmp_path / "t.parquet", [row("write", i, ts=i * 10**8) for i in range(3)])
    (tmp_path / "d").mkdir()
    config = Config(tiers={"nvme": str(tmp_path / "d")}, is_buffered=True, speed=1.0)
    outcome = replay(Replay(config, trace, tmp_path / "run", []))
    assert outcome.error is None
    unsafe = "recovered"
    assert shows(outcome.run.notes, f"{unsafe}: {tmp_path / 'run'}: … No space")


def test_a_signal_ends_the_run_with_what_it_has(tmp_path: Path) -> None:
    target = tmp_path / "space.dat"
    process = start(tmp_path, target)
    wait_for(process, (tmp_path / "run" / PARTIAL_RUN_FILE).is_file, "the run does not begin")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate()
    assert (process.returncode, out.startswith("PARTIAL: ")) == (130, True), err
    assert shows(err, "interrupted … SIGTERM")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "partial"
    assert not target.exists()
    assert not (tmp_path / "run" / PARTIAL_RUN_FILE).exists()


@pytest.mark.star
@pytest.mark.parametrize("speed", [None, 1.0])
def test_a_signal_before_the_first_operation_is_a_run_of_0_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, speed: float | None
) -> None:
    monkeypatch.setattr("kvreplay.run.replay.noted_signals", lambda: nullcontext(lambda: "SIGTERM"))
    trace = write_trace(tmp_path / "t.parquet", [row("write", i, ts=i * 10**7) for i in range(3)])
    (tmp_path / "d").mkdir()
    config = Config(
        tiers={"nvme": str(tmp_path / "d")}, is_buffered=True, speed=speed, engine=engine
    )
    # As where the signal comes before the clock has moved on.
    drive = Engine.drive

    def at_once(*args: Any) -> Any:
        return dataclasses.replace(drive(*args), wall_ns=0)

    monkeypatch.setattr(Engine, "drive", at_once)
    finished = replay(Replay(config, trace, tmp_path / "run", []))
    assert shows(str(finished.error), "interrupted … SIGTERM")
    summary = finished.summary
    assert (summary.operations, summary.not_reached, summary.wall_ns, summary.generation) == (
        0,
        3,
        0,
        None,
    )
    assert shows(run_document(finished).headline, "0 operations … 0 s, 3 not")


def mounted(tmp_path: Path, size: int) -> Path:
    """Return a new, empty filesystem of `size` bytes; the test's end unmounts it."""
    point = tmp_path / "mounted"
    point.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", point],
        check=False,
        capture_output=True,
    )
    if done.returncode:
        pytest.skip("mounting is not permitted here")
    return point


def fill(path: Path) -> None:
    """Take all the space that is left."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.mark.root
def test_a_full_drive_keeps_what_was_measured(tmp_path: Path, engine: str) -> None:
    """Another program takes the space while the run goes on."""
    point = mounted(tmp_path, 16 << 20)
    try:
        (point / "d").mkdir()

        class Filling(PlainFiles):
            """Files beside; to write one fills the filesystem of the others."""

            def begin(self, op: int, object_id: int) -> int:
                fill(point / "other")
                return super().begin(op, object_id)

        rows = [
            row("write", 0, stage=0),
            row("write", 1, 2 * IO, stage=1),
            row("delete", 0, stage=2),
            (0, "write", 1, "load", 9, 0, IO, 1, 3, 0),
            row("write", 2, 20 * IO, stage=4),
            row("write", 3, stage=5),
        ]
        trace = write_trace(tmp_path / "t.parquet", rows)
        (tmp_path / "beside").mkdir()
        tier = FileTier("nvme", point / "d", StorageOptions(is_buffered=True))
        beside = Filling("cpu", tmp_path / "beside", StorageOptions(is_buffered=True))
        targets = {"nvme": str(point / "d"), "cpu": str(tmp_path / "beside")}
        config = Config(tiers=targets, io_bytes=IO, engine=engine, is_buffered=True)
        outcome = replay(Replay(config, trace, tmp_path / "run", []), tiers=[None, beside, tier])
        assert isinstance(outcome.error, DeviceError)
        assert shows(str(outcome.error), "row 4: write … object 2: … No space")
        found = [
            o["outcome"] for o in read_table(tmp_path / "run" / "ops.parquet", OPS).to_pylist()
        ]
        assert found == ["ok", "ok", "ok", "ok", "error", "skipped"]
        assert outcome.run.status == "partial"
        assert list((point / "d").iterdir()) == [], "our files went"
        assert (point / "other").stat().st_size > 0, "the other program's did not"
    finally:
        subprocess.run(["umount", point], check=True)


def test_trials_of_an_earlier_series_leave_the_new_series(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row("write", 0)])
    config = Config(tiers={"nvme": "null"})
    output = tmp_path / "trials"
    Trials(Replay(config, trace, output, []), 3).perform()
    (output / "trial-3" / "notes.txt").write_text("mine")
    Trials(Replay(config, trace, output, [], is_forced=True), 1).perform()
    assert sorted(p.name for p in output.iterdir()) == ["trial-1", "trial-3", "trials.json"]
    assert [p.name for p in (output / "trial-3").iterdir()] == ["notes.txt"]


def test_a_series_that_was_cut_off_is_ours_and_says_what_to_do(tmp_path: Path) -> None:
    output = tmp_path / "trials"
    trial = output / "trial-1"
    trial.mkdir(parents=True)
    (trial / PARTIAL_RUN_FILE).write_text("{}")
    with pytest.raises(DeviceError, match=f"kvreplay recover {trial}"):
        check_output(output, is_forced=False)
    (trial / PARTIAL_RUN_FILE).unlink()
    (trial / "run.json").write_text('{"program": "kvreplay"}')
    with pytest.raises(DeviceError, match="finished run"):
        check_output(output, is_forced=False)
    check_output(output, is_forced=True)


def test_what_a_killed_experiment_left_in_its_runs_goes(tmp_path: Path) -> None:
    # A process of this number has been started at another time, so the owner has ended.
    left = tmp_path / "card" / "stack" / "users-16" / f".ops.parquet.{host_digest()}-1-1.tmp"
    left.parent.mkdir(parents=True)
    left.touch()
    kept = left.with_name("ops.parquet")
    kept.touch()
    make_directory(tmp_path / "card", "scorecard.json")
    assert (left.exists(), kept.exists()) == (False, True)
