"""Several rings: who has which drive, order across them, and how they end."""

from __future__ import annotations

import errno
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import write_trace
from phrases import shows
from rings import IO, drive, engine_of, needs_uring, rows_of, space_in
from whole import read_table

from kvreplay.engine import native_engine as engines
from kvreplay.engine import share as sharing
from kvreplay.engine.share import Share, check_submitters, share
from kvreplay.plan.replay_config import Config
from kvreplay.plan.row_ring import WRITE
from kvreplay.run.replay import FinishedRun, Replay, replay
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.tier import BY_ID, FileLayout, SeveralDrives, StorageOptions, drive_by_id
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.schema import OPS
from kvtrace.core.tables import objects_path

NVME = 2


def row(
    op: str,
    obj: int,
    length: int = IO,
    request: int | None = None,
    stage: int | None = None,
    ts: int = 0,
) -> Any:
    return (ts, op, NVME, "load", obj, 0, length, request, stage, 0)


def targets(tmp_path: Path, count: int, suffix: str = "") -> list[Path]:
    found = [tmp_path / f"drive{at}{suffix}" for at in range(count)]
    for path in found:
        if not suffix:
            path.mkdir(exist_ok=True)
    return found


def run(
    tmp_path: Path, rows: list[Any], drives: list[Path], name: str = "run", **options: Any
) -> FinishedRun:
    trace = write_trace(tmp_path / "t.parquet", rows)
    objects_path(trace).unlink()
    options |= {} if drives[0].suffix else {"layout": "flat"}
    config = Config(
        tiers={"nvme": ",".join(map(str, drives))},
        io_bytes=IO,
        is_buffered=True,
        engine="uring",
        **options,
    )
    return replay(Replay(config, trace, tmp_path / name, [], is_forced=True))


def ops(tmp_path: Path, name: str = "run") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_table(tmp_path / name / "ops.parquet", OPS).to_pylist()
    return found


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[list[Any]]:
    """Two tiers: one of three directories, and one of a directory."""
    made = [
        FileTier(f"d{at}", path, StorageOptions(is_buffered=True, layout=FileLayout.FLAT))
        for at, path in enumerate(targets(tmp_path, 4))
    ]
    for one in made:
        one.open(0)
    yield [None, SeveralDrives("nvme", made[:3], drive_by_id(100, 3), BY_ID), made[3]]
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("wanted", "by_ring"),
    [
        (2, [[0, 2], [1, 3]]),
        (3, [[0, 3], [1], [2]]),
        (4, [[0], [1], [2], [3]]),
        (6, [[0], [1], [2], [3], [0], [1]]),
    ],
)
def test_each_ring_has_its_drives_and_each_object_one_ring(
    tiers: list[Any], wanted: int, by_ring: list[list[int]]
) -> None:
    found = share(tiers, wanted)
    every = [*tiers[1].drives, tiers[2]]
    assert [list(of) for of in found.targets] == [[every[at].target for at in of] for of in by_ring]
    used = set()
    for tier, of in zip(tiers[1:], found.of_tiers[1:], strict=True):
        for each, first, count in zip(tier.drives, of.first, of.counts, strict=True):
            rings = {first + of.step * at for at in range(count)}
            assert all(each.target in found.targets[ring] for ring in rings)
            used |= rings
    assert used == set(range(wanted)), "no ring is idle"


def test_auto_takes_one_ring_a_drive_while_processors_last(
    tiers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # All four lie on one device.
    assert share(tiers, None).rings == 1
    monkeypatch.setattr(Path, "exists", lambda _path: True)
    monkeypatch.setattr(sharing, "device_number", lambda target: target.name)
    for processors, rings in ((1, 1), (2, 1), (3, 2), (5, 4), (64, 4)):
        monkeypatch.setattr(
            sharing.os, "sched_getaffinity", lambda _pid, n=processors: set(range(n))
        )
        assert share(tiers, None).rings == rings
    monkeypatch.setattr(sharing, "device_number", lambda target: target.name == "drive1")
    # Of two devices, drives of one share a ring.
    assert [len(of) for of in share(tiers, None).targets] == [3, 1]
    assert share([None], None) == Share(
        "auto: 0 drives, and 63 processors besides that of the scheduling thread"
    )
    assert shows(share([None], 2).refused, "no tier")
    assert share(tiers, 1).rings == 1


def test_what_is_no_number_of_submitters_is_refused() -> None:
    assert [check_submitters(text) for text in ("1", "64", "auto")] == [1, 64, None]
    for text in ("0", "65", "two", "-1", "1.5", ""):
        with pytest.raises(ConfigError, match=f"submitters={text}:"):
            check_submitters(text)


ROWS = [
    *[
        r
        for i in range(60)
        for r in (row("write", i, (1 + i % 5) * IO), row("read", i, (1 + i % 5) * IO))
    ],
    *[row("delete", i) for i in range(0, 60, 4)],
    *[row("write", i, 3 * IO) for i in range(0, 60, 8)],
    *[row("read", i, 3 * IO) for i in range(0, 60, 8)],
]


@pytest.mark.star
@needs_uring
@pytest.mark.parametrize("suffix", ["", ".dat"])
@pytest.mark.parametrize("is_verified", [True, False])
def test_the_same_comes_of_a_run_however_many_submit(
    tmp_path: Path, suffix: str, *, is_verified: bool
) -> None:
    drives, results = targets(tmp_path, 3, suffix), []
    for submitters in (1, 2, 3, 5):
        found = run(tmp_path, ROWS, drives, submitters=str(submitters), is_verified=is_verified)
        assert found.error is None
        assert found.run.verification is None or found.run.verification.corrupt_blocks == 0
        assert found.run.verification is None or found.run.verification.checked_blocks > 0
        results.append([(o["row"], o["op"], o["object_id"], o["outcome"]) for o in ops(tmp_path)])
        engine = found.run.engine
        assert engine.submitters
        assert [note.is_own_thread for note in engine.submitters] == [submitters > 1] * submitters
        assert engine.submitters_because == f"--submitters {submitters}"
        assert all(note.cpu in os.sched_getaffinity(0) for note in engine.submitters)
        named = {target for note in engine.submitters for target in note.targets or ()}
        assert named == (set() if submitters == 1 else set(map(str, drives)))
        assert not [note for note in found.run.notes if "submitters" in note]
    assert all(of == results[0] for of in results)
    assert {outcome for of in results for *_, outcome in of} == {"ok"}


@needs_uring
@pytest.mark.parametrize("suffix", ["", ".dat"])
def test_a_chain_crosses_drives_only_after_its_predecessor(tmp_path: Path, suffix: str) -> None:
    drive_of = drive_by_id(40, 2).tolist()
    # Each request writes on one drive, reads that, writes on the other, and comes back, object by
    # object.
    on = [[obj for obj in range(40) if drive_of[obj] == drive] for drive in (0, 1)]
    rows = []
    for request in range(20):
        a, b = on[0][request], on[1][request]
        for stage, (op, obj) in enumerate(
            [("write", a), ("write", b), ("read", a), ("read", b), ("write", a)]
        ):
            rows.append(row(op, obj, 2 * IO, request, stage))
    found = run(tmp_path, rows, targets(tmp_path, 2, suffix), submitters="2", queue_depth=16)
    assert found.error is None
    done: dict[int, int] = {}
    for op in ops(tmp_path):
        assert op["submitted_ns"] >= done.get(op["request_id"], 0)
        done[op["request_id"]] = op["completed_ns"]
    assert len(done) == 20


@needs_uring
def test_its_time_ends_all_rings(tmp_path: Path) -> None:
    found = run(tmp_path, ROWS[:120], targets(tmp_path, 2, ".dat"), submitters="2", runtime="200ms")
    assert found.error is None
    assert (found.summary.operations or 0) > 0
    assert not [t for t in threading.enumerate() if t.name.startswith("kvreplay-")]


@needs_uring
def test_a_drive_that_fails_ends_the_run_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drives, full = targets(tmp_path, 2, ".dat"), os.open("/dev/full", os.O_RDWR)
    native = ExtentTier.native

    def on_full(tier: ExtentTier) -> Any:
        found = native(tier)
        if tier.target == str(drives[1]):
            found.drives[0].fd = full
        return found

    monkeypatch.setattr(ExtentTier, "native", on_full)
    drive_of = drive_by_id(200, 2).tolist()
    good = [obj for obj in range(200) if drive_of[obj] == 0]
    objects = [*good[:5], drive_of.index(1), *good[5:]]
    rows = [row("write", obj, IO, 1, stage) for stage, obj in enumerate(objects)]
    try:
        found = run(tmp_path, rows, drives, submitters="2")
    finally:
        os.close(full)
    assert found.run.status == "partial"
    assert found.run.reason is not None
    assert "No space left on device" in found.run.reason
    outcomes = [o["outcome"] for o in ops(tmp_path)]
    assert outcomes == ["ok"] * 5 + ["error"] + ["skipped"] * (len(objects) - 6)


@needs_uring
@pytest.mark.alone
def test_who_waits_for_a_deadline_sleeps(tmp_path: Path) -> None:
    drives = targets(tmp_path, 2, ".dat")
    rows = [row("write", i % 8, IO, ts=i * 100_000_000) for i in range(16)]
    run(tmp_path, rows[:2], drives, submitters="2", speed=1.0)
    before = resource.getrusage(resource.RUSAGE_SELF)
    found = run(tmp_path, rows, drives, submitters="2", speed=1.0)
    after = resource.getrusage(resource.RUSAGE_SELF)
    wall_ns = found.summary.wall_ns
    assert wall_ns is not None
    assert wall_ns > 15 * 100_000_000
    # One thread that spins would use all of it; set-up and the result's tables are in this.
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < wall_ns / 1e9


@needs_uring
def test_a_threaded_run_notes_that_rings_were_not_used(tmp_path: Path) -> None:
    run(tmp_path, ROWS[:20], targets(tmp_path, 1))
    tiers = {"nvme": str(tmp_path / "drive0")}
    config = Config(tiers=tiers, io_bytes=IO, is_buffered=True, engine="threads", submitters="2")
    threads = replay(Replay(config, tmp_path / "t.parquet", tmp_path / "threads", []))
    assert shows(threads.run.notes, "--submitters 2 … io_uring")


@needs_uring
@pytest.mark.parametrize("rings", [1, 2])
def test_what_ends_a_rings_thread_ends_the_run_with_its_reason(
    tmp_path: Path, rings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def __getattr__(self, name: str) -> Any:
            return (lambda *_: errno.ENOMEM) if name == "ring_run" else getattr(real, name)

    real = engines.library()
    monkeypatch.setattr(engines, "library", Failing)
    before = threading.active_count()
    with (
        space_in(tmp_path / "space", 1 << 20) as tier,
        pytest.raises(DeviceError, match="io_uring: Cannot alloc"),
    ):
        drive(
            engine_of("uring", 4, rings=rings),
            rows_of([{"op": WRITE, "object_id": 1, "length_bytes": 1}]),
            [tier],
        )
    assert threading.active_count() == before


class LateStart:
    """A start that is agreed on a quarter of a second late."""

    def agree(self, soonest_ns: int) -> int:
        self.before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        time.sleep(0.25)
        self.after = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
        return soonest_ns

    def begun(self) -> None:
        pass


def test_threads_sleep_until_the_job_starts(tmp_path: Path) -> None:
    start = LateStart()
    with space_in(tmp_path / "space", 64 * IO) as tier:
        rows = rows_of([{"op": WRITE, "object_id": obj, "length_bytes": IO} for obj in range(64)])
        driven = drive(engine_of("threads", 64), rows, [tier], start=start)
    assert (driven.failure, driven.completed) == (None, 64)
    # Looking at the clock each 50 µs, they woke some 100,000 times.
    assert start.after - start.before < 2000
