"""Whole runs: order, content, populate, deletes, faults and interruption, as a user meets them."""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from conftest import run_cli, write_trace
from phrases import Saying, shows
from waiting import wait_for
from whole import read_table

from kvreplay.engine.native_engine import refusal
from kvreplay.plan.contents import DataSource
from kvreplay.plan.replay_config import Config
from kvreplay.plan.target_safety import SCRATCH
from kvreplay.run.replay import FinishedRun, Interrupted, Replay, quiet_interpreter, replay
from kvreplay.run.run_document import run_document
from kvreplay.tiers.claims import MARKER
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.host import is_on_drive
from kvreplay.tiers.ram import RamTier
from kvreplay.tiers.tier import StorageOptions, Tier
from kvtrace.core.errors import ConfigError, DeviceError, FailedOperations
from kvtrace.core.parameters import named_as_options
from kvtrace.core.run.run_file import DeviceIo
from kvtrace.core.schema import OPS
from kvtrace.core.tables import open_table

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

IO = 16384


def has_direct_io(directory: Path) -> bool:
    path = directory / "direct"
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_DIRECT))
    except OSError:
        return False
    finally:
        path.unlink(missing_ok=True)
    return True


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    """An empty directory on a filesystem that takes O_DIRECT."""
    directory = tmp_path / "drive"
    directory.mkdir()
    if not has_direct_io(directory):
        pytest.skip(
            "the temporary directory's filesystem has no O_DIRECT (use --basetemp on a disk)"
        )
    return directory


class FakeTier(Tier):
    """A tier of Python's in memory that notes what it is asked, takes a moment, and fails on
    request.
    """

    engine, target = "memory", "fake"

    def __init__(self, name: str, *, fails_on: int | None = None, seed: int = 0) -> None:
        self.name, self.calls, self.held = name, list[tuple[str, int]](), dict[int, bytearray]()
        self._fails_on, self._rng = fails_on, random.Random(seed)  # noqa: S311 - a test's choices

    def reserve(self, object_id: int, end: int) -> None:
        held = self.held.setdefault(object_id, bytearray())
        held.extend(bytes(max(0, end - len(held))))

    def begin(self, op: int, object_id: int) -> Any:
        self.calls.append(("write" if op else "read", object_id))
        if object_id == self._fails_on:
            raise OSError(28, "No space left on device")
        return self.held[object_id]

    def write(self, handle: Any, offset: int, data: memoryview) -> None:
        time.sleep(self._rng.random() / 2000)
        handle[offset : offset + len(data)] = data

    def read(self, handle: Any, offset: int, into: memoryview) -> int:
        found = handle[offset : offset + len(into)]
        into[: len(found)] = found
        return len(found)

    def delete(self, object_id: int) -> None:
        self.calls.append(("delete", object_id))
        del self.held[object_id]


def row(
    op: str,
    tier: int,
    obj: int,
    length: int = 4096,
    *,
    request: int | None = None,
    stage: int | None = None,
    ts: int = 0,
    offset: int = 0,
) -> Any:
    return (ts, op, tier, "load", obj, offset, length, request, stage, 0)


def run(
    tmp_path: Path,
    rows: list[Any],
    tiers: list[Any] | None = None,
    targets: dict[str, str] | None = None,
    *,
    is_forced: bool = True,
    **options: Any,
) -> tuple[FinishedRun, list[dict[str, Any]]]:
    trace = write_trace(tmp_path / "t.parquet", rows)
    config = Config(tiers=targets or {"fake": "fake"}, io_bytes=IO, **options)
    outcome = replay(
        Replay(config, trace, tmp_path / "run", ["kvreplay"], is_forced=is_forced), tiers=tiers
    )
    return outcome, read_table(tmp_path / "run" / "ops.parquet", OPS).to_pylist()


def workload(count: int = 120) -> list[Any]:
    """Requests of three stages with shared objects, and demotions and evictions between them."""
    rng, rows = random.Random(5), []  # noqa: S311 - a test's choices
    for made in range(count):
        request, ts = made, made * 100_000
        recent = list(range(max(0, made - 6), made))
        rows += [
            row("read", 2, o, 40_000, request=request, stage=0, ts=ts)
            for o in rng.sample(recent, min(2, len(recent)))
        ]
        rows += [row("write", 1, made, 40_000, request=request, stage=1, ts=ts)]
        rows += [row("write", 2, made, 40_000, request=request, stage=2, ts=ts)]
        rows += [row("delete", 1, made, 40_000, ts=ts)]
        if made >= 8:
            rows += [row("delete", 2, made - 8, 40_000, ts=ts)]
    return rows


def assert_order_kept(ops: list[dict[str, Any]], rows: list[Any]) -> None:
    for j, later in enumerate(ops):
        for i, earlier in enumerate(ops[:j]):
            conflict = earlier["object_id"] == later["object_id"] and {
                earlier["op"],
                later["op"],
            } != {"read"}
            staged = rows[i][7] is not None and rows[i][7] == rows[j][7] and rows[i][8] < rows[j][8]
            if conflict or staged:
                assert earlier["completed_ns"] <= later["submitted_ns"], (i, j)


@pytest.mark.parametrize("speed", [None, 2.0])
def test_stages_and_conflicts_keep_their_order(tmp_path: Path, speed: float | None) -> None:
    rows = workload()
    fakes = [FakeTier("cpu"), FakeTier("nvme", seed=1)]
    outcome, ops = run(tmp_path, rows, [None, *fakes], speed=speed)
    assert outcome.error is None
    assert Counter(o["outcome"] for o in ops) == {"ok": len(rows)}
    assert_order_kept(ops, rows)
    by_object = [call for call in fakes[1].calls if call[1] == 20]
    assert by_object == [(r[1], 20) for r in rows if r[2] == 2 and r[4] == 20]
    if speed:
        assert [o["scheduled_ns"] for o in ops] == [r[0] // 2 for r in rows]
        assert all(o["submitted_ns"] >= o["scheduled_ns"] for o in ops)
    else:
        assert {o["scheduled_ns"] for o in ops} == {None}


@pytest.fixture(params=["threads", "uring"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn; io_uring only where the kernel gives it."""
    if request.param == "uring" and (why := refusal()) is not None:
        pytest.skip(f"no io_uring: {why}")
    return str(request.param)


def test_a_run_on_files_and_memory_reports_and_leaves_nothing(
    tmp_path: Path, drive: Path, engine: str
) -> None:
    rows = [row("read", 0, 0), *workload(30)]
    outcome, ops = run(tmp_path, rows, targets={"nvme": str(drive), "cpu": "ram"}, engine=engine)
    assert outcome.error is None
    assert ops[0] | {"row": 0} == {
        "row": 0,
        "op": "read",
        "tier": 0,
        "phase": "load",
        "object_id": 0,
        "request_id": None,
        "scheduled_ns": None,
        "submitted_ns": None,
        "completed_ns": None,
        "bytes": None,
        "io_bytes": None,
        "outcome": "skipped",
        "engine": "none",
    }
    assert [o["row"] for o in ops] == list(range(len(rows)))
    by = {(o["tier"], o["op"]): (o["bytes"], o["io_bytes"], o["engine"]) for o in ops[1:]}
    # 40,000 bytes are padded to ten blocks of 4096 on files, and to nothing more in memory.
    assert by == {
        (1, "write"): (40_000, 40_000, "memory"),
        (1, "delete"): (0, None, "memory"),
        (2, "read"): (40_000, 40_960, engine),
        (2, "write"): (40_000, 40_960, engine),
        (2, "delete"): (0, None, engine),
    }
    assert list(drive.iterdir()) == []
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert manifest["status"] == "complete"
    assert manifest["tiers"]["nvme"]["direct_io"]["is_confirmed"] is is_on_drive(drive)
    assert manifest["summary"]["skipped_rows"] == {"gpu": 1}
    assert "gpu (1 row)" in manifest["notes"][0]
    assert manifest["trace"]["metadata"]["seed"] == manifest["data"]["seed"] == 42
    assert open_table(tmp_path / "run" / "ops.parquet", OPS).meta.rows == len(rows)


def test_the_device_did_the_work(tmp_path: Path, drive: Path) -> None:
    rows = [row("write", 2, i, 1 << 20) for i in range(8)] + [
        row("read", 2, i, 1 << 20) for i in range(8)
    ]
    outcome, _ = run(tmp_path, rows, targets={"nvme": str(drive)})
    moved = outcome.run.device_io["nvme"]
    if moved.read_bytes is None:
        pytest.skip("the device beneath the temporary directory is not in /proc/diskstats")
    assert moved.read_bytes >= 8 << 20
    assert moved.written_bytes >= 8 << 20
    found = outcome.run.metrology
    assert found.bytes_off == {
        "read": moved.read_bytes / (8 << 20) - 1,
        "write": moved.written_bytes / (8 << 20) - 1,
    }
    assert 0 < found.clock_step_ns < 100_000
    assert (found.late_p50_ns, found.late_p99_ns) == (
        None,
        None,
    ), "a closed loop has no times to be late for"
    (said,) = (note for note in run_document(outcome).notes if note.startswith("measurement: "))
    assert shows(said, f"read {found.bytes_off['read']:+.1%}")
    (tmp_path / "few").mkdir()
    few, _ = run(
        tmp_path / "few", [*rows[:8], row("read", 2, 0, 4096)], targets={"nvme": str(drive)}
    )
    # Beside 4 KiB asked all that others read meanwhile would be the error.
    assert (few.run.metrology.bytes_off["read"], few.run.metrology.bytes_off["write"] is None) == (
        None,
        False,
    )


def test_how_late_a_replay_is_against_the_traces_own_times(tmp_path: Path) -> None:
    rows = [row("write", 1, i, 4096, ts=i * 1_000_000) for i in range(200)]
    outcome, ops = run(tmp_path, rows, targets={"cpu": "ram"}, speed=1.0)
    late = sorted(o["submitted_ns"] - o["scheduled_ns"] for o in ops)
    found = outcome.run.metrology
    # By nearest rank; nothing of a tier in memory is seen at a device.
    assert (found.late_p50_ns, found.late_p99_ns, found.bytes_off) == (
        late[99],
        late[197],
        {"read": None, "write": None},
    )
    (said,) = (note for note in run_document(outcome).notes if note.startswith("measurement: "))
    assert shows(said, "measurement: submission")
    assert shows(said, "repeatability (--trials)")


def test_what_is_kept_is_what_was_generated_and_deletes_deleted(
    tmp_path: Path, drive: Path
) -> None:
    rows = [
        row("write", 2, 7, 40_000),
        row("write", 2, 7, 40_000),
        row("write", 2, 8),
        row("delete", 2, 8),
    ]
    run(tmp_path, rows, targets={"nvme": str(drive)}, is_kept=True, seed=3)
    files = list((drive / SCRATCH).rglob("*.kv"))
    assert [(p.name, p.stat().st_size) for p in files] == [(f"{7:016x}.kv", 40_960)]
    expected = bytearray(40_960)
    DataSource(3).fill(memoryview(expected), 7, 2, 0)
    assert files[0].read_bytes() == expected
    # The next run knows them as ours and clears them away.
    outcome, _ = run(tmp_path, rows[:1], targets={"nvme": str(drive)})
    assert outcome.run.tiers["nvme"]["removed_leftover_files"] == 1
    assert list(drive.iterdir()) == []


def test_what_is_populated_takes_over_files_that_are_as_long(tmp_path: Path, drive: Path) -> None:
    """Left.

    1, 2, 3 of 40,960 bytes, 4 of 8,192. Read: 3, 8 and 9 of 40,960, 4 of 16,384: two renamed, one
    written.
    """
    how: Any = {"targets": {"nvme": str(drive)}, "is_kept": True, "is_taking_over": True}
    left = [row("write", 2, i, 40_000) for i in (1, 2, 3)] + [row("write", 2, 4, 8_192)]
    assert run(tmp_path, left, **how)[0].run.tiers["nvme"]["taken_over_files"] == 0
    files = {path.name: path.stat().st_ino for path in (drive / SCRATCH).rglob("*.kv")}
    reads = [row("read", 2, i, 40_000) for i in (3, 8, 9)] + [row("read", 2, 4, 16_384)]
    outcome, ops = run(tmp_path, reads, **how)
    assert [o["outcome"] for o in ops] == ["ok"] * 4
    assert (outcome.run.populated.objects, outcome.run.tiers["nvme"]["taken_over_files"]) == (1, 3)
    found = {
        path.name: (path.stat().st_ino, path.stat().st_size)
        for path in (drive / SCRATCH).rglob("*.kv")
    }
    assert sorted(found) == [f"{i:016x}.kv" for i in (3, 4, 8, 9)]
    assert found[f"{3:016x}.kv"] == (files[f"{3:016x}.kv"], 40_960)
    renamed = {found[f"{i:016x}.kv"][0] for i in (8, 9)}
    assert renamed == {files[f"{i:016x}.kv"] for i in (1, 2)}
    assert found[f"{4:016x}.kv"][1] == 16_384
    assert shows(run_document(outcome).notes, "3 files … reused")


def test_a_python_tier_holds_writes_whole_and_in_part(tmp_path: Path) -> None:
    tier = FakeTier("cpu")
    rows = [
        row("write", 1, 1, 40_000),
        row("write", 1, 1, 20_000, offset=30_000),
        row("read", 1, 1, 50_000),
    ]
    outcome, _ = run(tmp_path, rows, [None, tier, None], seed=3)
    assert outcome.error is None
    expected = bytearray(50_000)
    DataSource(3).fill(memoryview(expected)[:40_000], 1, 1, 0)
    DataSource(3).fill(memoryview(expected)[30_000:], 1, 2, 30_000)
    assert tier.held[1] == expected


def test_memory_is_given_back(tmp_path: Path) -> None:
    tier = RamTier("cpu", IO)
    assert run(tmp_path, [row("write", 1, 1, 40_000)], [None, tier, None])[0].error is None
    assert tier._memory is None, "closing frees"
    most = gc.get_threshold()[0]
    with quiet_interpreter():
        for _ in range(4 * most):
            dropped: list[Any] = []
            dropped.append(dropped)
        kept = sum(
            len(each) == 1 and each[0] is each
            for each in gc.get_objects()
            if isinstance(each, list)
        )
        assert kept < 2 * most


def test_reads_without_a_write_in_the_window_are_populated(tmp_path: Path, drive: Path) -> None:
    rows = [row("read", 2, i % 3, 50_000) for i in range(9)]
    outcome, ops = run(tmp_path, rows, targets={"nvme": str(drive)})
    assert outcome.error is None
    assert outcome.run.populated.objects == 3
    assert outcome.run.populated.bytes == 150_000
    assert [o["outcome"] for o in ops] == ["ok"] * 9
    assert [f.op for f in outcome.summary.figures] == ["read"]


def test_a_null_tier_moves_nothing_and_says_so(tmp_path: Path) -> None:
    rows = [
        row("write", 1, 0, request=1, stage=0),
        row("read", 0, 5, request=1, stage=1),
        row("delete", 0, 5),
    ]
    outcome, ops = run(tmp_path, rows, targets={"cpu": "ram", "gpu": "null"})
    assert [(o["outcome"], o["engine"], o["bytes"]) for o in ops] == [
        ("ok", "memory", 4096),
        ("ok", "sim", None),
        ("ok", "sim", None),
    ]
    assert ops[0]["completed_ns"] <= ops[1]["submitted_ns"]
    simulated = {
        f.tier: (f.is_simulated, f.bandwidth_bytes_per_s is None, f.latency.count)
        for f in outcome.summary.figures
    }
    assert simulated == {"cpu": (False, False, 1), "gpu": (True, True, 0)}
    assert any(shows(n, "tier gpu … SIMULATED") for n in outcome.run.notes)


def test_a_failed_operation_stops_the_run_and_keeps_the_rest(tmp_path: Path) -> None:
    rows = [row("write", 1, i, ts=i) for i in range(50)]
    outcome, ops = run(tmp_path, rows, [None, FakeTier("cpu", fails_on=20), None], queue_depth=1)
    assert isinstance(outcome.error, DeviceError)
    assert shows(str(outcome.error), "row 20: write … object 20: … No space")
    found = [o["outcome"] for o in ops]
    assert found == ["ok"] * 20 + ["error"] + ["skipped"] * 29
    assert ops[20]["completed_ns"] is None
    assert ops[20]["submitted_ns"] is not None
    assert outcome.run.status == "partial"
    assert outcome.run.summary.not_reached == 29


def test_on_error_continue_counts_and_goes_on(tmp_path: Path) -> None:
    rows = [row("write", 1, i, 40_000, ts=i) for i in range(50)]
    outcome, ops = run(
        tmp_path, rows, [None, FakeTier("cpu", fails_on=20), None], on_error="continue"
    )
    assert isinstance(outcome.error, FailedOperations)
    assert outcome.run.status == "failed operations"
    assert Counter(o["outcome"] for o in ops) == {"ok": 49, "error": 1}
    assert outcome.summary.errors == outcome.summary.figures[0].errors == 1


class Beside(FakeTier):
    """Does something to its neighbour as object 99 is written, between the stages before and after."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__("cpu")
        self._act = act

    def begin(self, op: int, object_id: int) -> Any:
        if object_id == 99:
            self._act()
        return super().begin(op, object_id)


def staged(rows: list[Any]) -> list[Any]:
    """Return `rows` as stages of one request, one after the other."""
    return [(*r[:7], 0, stage, 0) for stage, r in enumerate(rows)]


def test_a_file_that_came_up_short_is_short(tmp_path: Path, drive: Path, engine: str) -> None:
    files = FileTier("nvme", drive, StorageOptions(is_buffered=True))
    beside = Beside(lambda: os.truncate(files.path(0), 4096))
    rows = staged([row("write", 2, 0, 10_000), row("write", 1, 99), row("read", 2, 0, 10_000)])
    outcome, ops = run(tmp_path, rows, [None, beside, files], engine=engine)
    assert [o["outcome"] for o in ops] == ["ok", "ok", "short"]
    assert shows(str(outcome.error), "4096 … 12288 bytes")


def test_a_directory_that_vanishes_costs_no_measurement(
    tmp_path: Path, drive: Path, engine: str
) -> None:
    tier = FileTier("nvme", drive, StorageOptions())
    beside = Beside(lambda: shutil.rmtree(drive, ignore_errors=True))
    rows = [
        row("write", 1, 99) if i == 5 else row("write", 2, i, 2 * IO if i == 6 else 4096)
        for i in range(10)
    ]
    outcome, ops = run(tmp_path, staged(rows), [None, beside, tier], queue_depth=1, engine=engine)
    assert isinstance(outcome.error, DeviceError)
    assert shows(str(outcome.error), "row 6: write … object 6: … No such")
    assert [o["outcome"] for o in ops] == ["ok"] * 6 + ["error"] + ["skipped"] * 3
    assert outcome.run.device_io == {"nvme": DeviceIo(read_bytes=None, written_bytes=None)}


@pytest.mark.parametrize("started", [0, 1])
def test_a_run_that_gets_no_threads_ends_instead_of_hanging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, started: int
) -> None:
    start, left = threading.Thread.start, started

    def limited(thread: threading.Thread) -> None:
        nonlocal left
        if thread.name.startswith("kvreplay"):
            left -= 1
            if left < 0:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(DeviceError, match=r"cannot start \d+ threads .*queue_depth"):
        run(
            tmp_path,
            [row("write", 1, i, ts=i) for i in range(9)],
            targets={"cpu": "ram"},
            engine=engine,
        )


def test_writes_longer_than_one_io_are_named(tmp_path: Path) -> None:
    rows = [row("write", 1, 0, IO), row("write", 1, 1, 40 * IO)]
    outcome, _ = run(tmp_path, rows, targets={"cpu": "ram"})
    assert outcome.error is None
    assert shows(outcome.run.notes[0], "1 writes … data generation")


def test_a_fault_of_ours_ends_the_run_instead_of_hanging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    tier = FakeTier("cpu")
    monkeypatch.setattr(tier, "write", broken)
    with pytest.raises(ZeroDivisionError):
        run(tmp_path, [row("write", 1, i) for i in range(20)], [None, tier, None])


def test_an_interruption_keeps_what_was_measured(tmp_path: Path) -> None:
    class Signalling(FakeTier):
        def begin(self, op: int, object_id: int) -> Any:
            if object_id == 10:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.3)
            return super().begin(op, object_id)

    before = signal.getsignal(signal.SIGTERM)
    rows = [row("write", 1, i, ts=i * 10**6) for i in range(5000)]
    outcome, ops = run(tmp_path, rows, [None, Signalling("cpu"), None], queue_depth=1, speed=1.0)
    assert isinstance(outcome.error, Interrupted)
    assert outcome.error.exit_code == 130
    assert signal.getsignal(signal.SIGTERM) == before
    done = Counter(o["outcome"] for o in ops)
    assert done["ok"] >= 11
    assert done["skipped"] == 5000 - done["ok"]
    manifest = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (manifest["status"], "SIGTERM" in manifest["reason"]) == ("partial", True)


def test_a_signal_while_a_run_closes_is_not_lost(tmp_path: Path) -> None:
    """Closing takes long where a large file goes: no run of a sweep may follow."""

    class Closing(FakeTier):
        def close(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)

    outcome, ops = run(
        tmp_path, [row("write", 1, i) for i in range(20)], [None, Closing("cpu"), None]
    )
    assert isinstance(outcome.error, Interrupted)
    assert "by SIGTERM" in str(outcome.error)
    assert Counter(o["outcome"] for o in ops) == {"ok": 20}
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "complete"


def started(trace: Path, drive: Path, output: Path) -> subprocess.Popen[str]:
    """Return a replay under way, a write a second."""
    command = [
        "kvreplay.cli",
        "run",
        str(trace),
        "--tier",
        f"nvme={drive}",
        "--speed",
        "1",
        "-o",
        str(output),
    ]
    return subprocess.Popen(
        [sys.executable, "-m", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.full
def test_control_c_leaves_a_partial_run_and_a_clean_target(tmp_path: Path, drive: Path) -> None:
    trace = write_trace(
        tmp_path / "t.parquet", [row("write", 2, i, ts=i * 10**9) for i in range(100)]
    )
    process = started(trace, drive, tmp_path / "run")
    wait_for(process, lambda: list(drive.glob(f"{SCRATCH}/*/*.kv")), "no object is written")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert out.startswith("PARTIAL: ")
    errors = [line for line in err.splitlines() if "error" in line]
    assert errors == [(Saying(f"by SIGINT … {tmp_path / 'run'} … (partial)"))]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "partial"
    assert "ok" in read_table(tmp_path / "run" / "ops.parquet", OPS).column("outcome").to_pylist()
    assert list(drive.iterdir()) == []


@pytest.mark.full
def test_a_killed_run_is_cleared_away_by_the_next(tmp_path: Path, drive: Path) -> None:
    trace = write_trace(
        tmp_path / "t.parquet", [row("write", 2, i, ts=i * 10**9) for i in range(100)]
    )
    process = started(trace, drive, tmp_path / "killed")
    wait_for(process, lambda: list(drive.glob(f"{SCRATCH}/*/*.kv")), "no object is written")
    busy = run_cli(
        "kvreplay", "run", trace, "--tier", f"nvme={drive}", "-o", tmp_path / "second", check=False
    )
    assert busy.returncode == 4
    assert "another kvreplay" in busy.stderr
    process.kill()
    process.communicate()
    assert (drive / SCRATCH / MARKER).is_file()
    done = run_cli(
        "kvreplay",
        "run",
        trace,
        "--tier",
        f"nvme={drive}",
        "--limit",
        "2",
        "-o",
        tmp_path / "third",
    )
    assert "; 2 operations in " in done.stdout.splitlines()[0]
    assert list(drive.iterdir()) == []
    assert not (tmp_path / "killed" / "run.json").exists(), "it is no run until it is recovered"


def test_the_same_seed_asks_the_same_of_the_tier(tmp_path: Path) -> None:
    asked = []
    for _ in range(2):
        _, ops = run(tmp_path, workload(20), [None, FakeTier("cpu"), FakeTier("nvme")])
        asked.append([{k: v for k, v in o.items() if not k.endswith("_ns")} for o in ops])
    assert asked[0] == asked[1]


def test_the_table_and_the_json_say_the_same(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row("write", 1, i) for i in range(25)])
    arguments = ["run", trace, "--tier", "cpu=ram", "-o", tmp_path / "run"]
    table = run_cli("kvreplay", *arguments)
    assert table.stdout.startswith("cpu reached ")
    assert shows(first := table.stdout.splitlines()[0], "queue depth 8")
    assert "; 25 operations in " in first
    # 25 operations are enough for p95 (20), too few for p99 (100).
    latency = next(
        line
        for line in table.stdout.split("Service time")[1].splitlines()
        if line.split()[:2] == ["cpu", "write"]
    )
    assert latency.split()[-5:-2] == ["-", "-", "-"]
    shown = json.loads(run_cli("kvreplay", *arguments, "--force", "--json").stdout)
    figures = shown["summary"]["figures"][0]
    assert (figures["operations"], figures["bytes"]) == (25, 25 * 4096)
    assert figures["latency"]["p95_ns"] is not None
    assert figures["latency"]["p99_ns"] is None


def test_an_existing_directory_that_is_no_run_needs_force(tmp_path: Path) -> None:
    rows = [row("write", 1, 0)]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    with pytest.raises(DeviceError, match=r"no kvreplay run.*--force"):
        run(tmp_path, rows, targets={"cpu": "ram"}, is_forced=False)
    trace = tmp_path / "t.parquet"
    replay(Replay(Config(tiers={"cpu": "ram"}), trace, tmp_path / "run", [], is_forced=True))
    assert (tmp_path / "run" / "thesis.txt").read_text() == "mine"
    with pytest.raises(
        DeviceError,
        match=r"finished run.*--force",
    ):
        run(tmp_path, rows, targets={"cpu": "ram"}, is_forced=False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": {"disk": "ram"}}, "tier 'disk' … gpu, cpu, nvme"),
        ({"targets": {"cpu": "ram"}, "speed": 0.0}, "--speed 0: … 0"),
        (
            {"targets": {"cpu": "ram"}, "speed": 1.0, "is_as_fast_as_possible": True},
            "exclude",
        ),
        ({"targets": {"cpu": "ram"}, "queue_depth": 0}, "--queue-depth 0: give 1 … 1024"),
        (
            {"targets": {"cpu": "ram"}, "engine": "aio"},
            "--engine aio: … auto … threads … uring",
        ),
        ({"targets": {"cpu": "ram"}, "fsync": "always"}, "--fsync always: … never … close"),
        (
            {"targets": {"cpu": "ram"}, "on_error": "panic"},
            "--on-error panic: … stop … continue",
        ),
        ({"targets": {"cpu": "ram"}, "seed": -1}, "--seed -1: give 0 to"),
        (
            {"targets": {"cpu": "ram"}, "limit": "1B"},
            "--limit 1B",
        ),
    ],
)
def test_options_that_mean_nothing_are_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    # As the command names them.
    with named_as_options(), pytest.raises(ConfigError) as caught:
        run(tmp_path, [row("write", 1, 0)], **options)
    assert shows(str(caught.value), message)
    assert not (tmp_path / "run").exists()


def test_the_command_line_names_what_is_missing(tmp_path: Path) -> None:
    trace = write_trace(tmp_path / "t.parquet", [row("write", 1, 0)])
    for arguments, message in (
        ([], "--tier … gpu, cpu, nvme"),
        (["--tier", "cpu"], "--tier cpu: … NAME=TARGET"),
        (["--tier", "cpu=ram", "--tier", "cpu=null"], "tier cpu"),
        (["--tier", "cpu=ram", "--io-bytes", "1000B"], "--io-bytes 1000: … 4096"),
        (
            ["--tier", "cpu=ram", "--partition", "host"],
            "'host' … 'node', 'user', 'object'",
        ),
        (["--tier", "cpu=ram", "--deal", "node"], "--deal … --partition"),
        (
            ["--tier", "cpu=ram", "--io-bytes", "2GiB"],
            "--io-bytes 2147483648: … 4096, 1073741824",
        ),
    ):
        done = run_cli("kvreplay", "run", trace, *arguments, "-o", tmp_path / "run", check=False)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
        assert shows(done.stderr, message)


def test_buffered_is_said_and_fsync_is_recorded(tmp_path: Path, drive: Path) -> None:
    outcome, _ = run(
        tmp_path,
        [row("write", 2, 0)],
        targets={"nvme": str(drive)},
        is_buffered=True,
        fsync="close",
    )
    facts = outcome.run.tiers["nvme"]
    assert (facts["is_direct"], facts["direct_io"], facts["fsync"]) == (False, None, "close")
    assert any(shows(note, "page cache") for note in outcome.run.notes)
    assert outcome.run.metrology.bytes_off == {"read": None, "write": None}
