"""The io_uring engine: its ring, what it falls back to and says, faults, and content. Skips where there is none."""

from __future__ import annotations

import errno
import mmap
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import write_trace
from rings import IO, SEED, content, needs_uring

from kvreplay.config.config import Config
from kvreplay.data.words import Fresh
from kvreplay.engine import choose, ring
from kvreplay.engine.choose import EngineName, UringEngine, check_name
from kvreplay.engine.job import ERROR, OK, SHORT, Job, Record
from kvreplay.engine.workers import Workers
from kvreplay.plan.plan import DELETE, READ, WRITE, Plan, build_plan
from kvreplay.run.run import replay
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.modelled import SimulatedTier
from kvreplay.tiers.ram import RamTier
from kvreplay.tiers.tier import Holding, RingTier, StorageOptions
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.schema import OPS
from kvtrace.core.tables import read_table


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[FileTier]:
    """Files below a scratch directory, through the page cache, so that any filesystem will do."""
    (tmp_path / "drive").mkdir()
    files = FileTier("nvme", tmp_path / "drive", StorageOptions(is_direct=False))
    files.open(0)
    yield files
    files.close()


def plan_of(rows: list[tuple[int, int, int, int]], tmp_path: Path) -> Plan:
    """Return the plan of (op, object, offset, length) rows on one tier, in which nothing else orders them."""
    op, obj, offset, length = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    count = len(rows)
    none = np.full(count, -1, np.int64)
    return build_plan(
        {
            "row": np.arange(count),
            "ts_ns": np.zeros(count, np.int64),
            "op": op,
            "tier": np.zeros(count, np.int64),
            "object_id": obj,
            "offset_bytes": offset,
            "length_bytes": length,
            "request_id": none,
            "stage": none,
        },
        [4096],
        tmp_path / "t.parquet",
    )


def drive(engine: UringEngine, tier: Any, plan: Plan, **job: Any) -> tuple[Any, Record]:
    record = Record.empty(len(plan), is_open_loop=False)
    driven = engine.drive(Job(plan, None, [tier], record, Fresh.of(SEED), **job), lambda: None, lambda _done: None)
    return driven, record


@needs_uring
def test_a_ring_moves_bytes_and_says_what_failed(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abcdefgh")
    with mmap.mmap(-1, mmap.PAGESIZE) as page, ring.Ring(8, files=1) as one:
        address = ring.address(page)
        one.put_path(ring.OPENAT, ring.LINK, bytes(path), 0, os.O_RDONLY, 1, file=1)
        one.put(ring.READ, ring.FIXED_FILE | ring.LINK, 0, 2, address, 4, 0, 2)
        one.put(ring.CLOSE, 0, 0, 0, 0, 0, 0, 3, file=1)
        one.put_path(ring.OPENAT, 0, bytes(tmp_path / "absent"), 0, os.O_RDONLY, 4, file=1)
        assert (one.queued, one.room) == (4, 4)
        one.enter(4)
        assert dict(one.reap()) == {1: 0, 2: 4, 3: 0, 4: -errno.ENOENT}
        assert page[:4] == b"cdef"
        one.enter(1, 1_000_000)
        assert one.reap() == [], "a wait ends at its time"


@needs_uring
@pytest.mark.parametrize("depth", [1, 3, 32])
@pytest.mark.parametrize("is_registered", [True, False])
def test_what_lies_in_files_is_what_was_generated(
    tier: FileTier, tmp_path: Path, depth: int, is_registered: bool
) -> None:
    engine = UringEngine(depth, IO)
    engine.unregistered = engine.unregistered if is_registered else "for the test"
    lengths = [4096, IO, IO + 1, 5 * IO, 40 * IO]
    rows = [(WRITE, i, 0, n) for i, n in enumerate(lengths)]
    rows += [(WRITE, 1, 0, IO), (WRITE, 5, 0, 4096), (DELETE, 5, 0, 4096), (READ, 4, IO - 1, 3 * IO)]
    driven, record = drive(engine, tier, plan_of(rows, tmp_path))
    assert driven.failure is None
    assert driven.completed == len(rows)
    assert record.outcome.tolist() == [OK] * len(rows)
    assert (record.submitted_ns <= record.completed_ns).all()
    versions = {1: 2}
    for obj, length in enumerate(lengths):
        assert Path(tier.path(obj)).read_bytes() == content(obj, versions.get(obj, 1), -(-length // 4096) * 4096)
    assert not Path(tier.path(5)).exists()


@needs_uring
def test_reads_bring_what_lies_there_to_the_check(tier: FileTier, tmp_path: Path) -> None:
    seen: dict[int, bytearray] = {6: bytearray(5 * IO), 7: bytearray(IO)}

    def check(buffer: memoryview, row: int, offset: int) -> str | None:
        seen[6 + row][offset : offset + len(buffer)] = buffer
        return "planted" if row == 1 else None

    engine = UringEngine(4, IO)
    drive(engine, tier, plan_of([(WRITE, 6, 0, 5 * IO), (WRITE, 7, 0, IO)], tmp_path))
    reads = plan_of([(READ, 6, 0, 5 * IO), (READ, 7, 0, IO)], tmp_path)
    driven, record = drive(engine, tier, reads, check=check, stops_on_error=False)
    assert bytes(seen[6]) == content(6, 1, 5 * IO)
    assert bytes(seen[7]) == content(7, 1, IO)
    assert record.outcome.tolist() == [OK, 4]
    assert driven.failure.message == "read of object 7: planted"


@needs_uring
@pytest.mark.parametrize("length", [4096, 5 * IO])
def test_a_fault_is_that_operations_alone(tier: FileTier, tmp_path: Path, length: int) -> None:
    rows = [(WRITE, i, 0, length) for i in range(8)]
    # The third one's file ends half way: its first pieces come.
    rows += [(READ, 99, 0, length), (DELETE, 98, 0, length), (READ, 3, 0, 2 * length)]
    rows += [(READ, i, 0, length) for i in range(8)]
    engine = UringEngine(3, IO)
    driven, record = drive(engine, tier, plan_of(rows, tmp_path), stops_on_error=False)
    assert driven.completed == len(rows)
    assert record.outcome.tolist() == [OK] * 8 + [ERROR, ERROR, SHORT] + [OK] * 8
    assert (record.completed_ns[8:11] == -1).all()
    driven, record = drive(engine, tier, plan_of([(READ, 99, 0, length)] * 5, tmp_path))
    assert driven.failure.message == "read of object 99: No such file or directory"
    assert record.outcome.tolist().count(OK) == 0


@needs_uring
@pytest.mark.parametrize("depth", [1, 3, 8])
def test_what_follows_a_fault_in_a_long_operation_is_passed_over(tier: FileTier, tmp_path: Path, depth: int) -> None:
    # Of 40 pieces one is there: when all in flight have come short, many more are left than the depth.
    rows = [(WRITE, 0, 0, IO), (READ, 0, 0, 40 * IO), (WRITE, 1, 0, 3 * IO)]
    driven, record = drive(UringEngine(depth, IO), tier, plan_of(rows, tmp_path), stops_on_error=False)
    assert record.outcome.tolist() == [OK, SHORT, OK]
    assert driven.completed == 3


@needs_uring
@pytest.mark.parametrize("depth", [1, 2])
def test_a_full_device_is_an_error(tier: FileTier, tmp_path: Path, depth: int) -> None:
    Path(tier.path(1)).symlink_to("/dev/full")
    for length in (4096, 5 * IO, 40 * IO):
        rows = [(WRITE, 0, 0, length), (WRITE, 1, 0, length)]
        driven, record = drive(UringEngine(depth, IO), tier, plan_of(rows, tmp_path), stops_on_error=False)
        assert record.outcome.tolist() == [OK, ERROR]
        assert "No space left on device" in driven.failure.message


@needs_uring
def test_files_memory_and_nothing_in_one_run_keep_their_order(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    rng = random.Random(1)  # noqa: S311 - a test's choices
    tiers: list[Any] = [
        SimulatedTier("gpu"),
        RamTier("cpu", IO),
        FileTier("nvme", tmp_path / "d", StorageOptions(is_direct=False)),
    ]
    rows: list[Any] = []
    for made in range(150):
        for stage, tier in enumerate((1, 2, 0)):
            length = rng.choice((4096, 40_000, 3 * IO))
            rows.append((made * 1000, "write", tier, "load", made, 0, length, made, stage, 0))
            if stage == 1 and made > 9:
                rows.append((made * 1000, "read", 2, "load", made - 9, 0, 4096, made, stage, 0))
    trace = write_trace(tmp_path / "t.parquet", rows)
    for speed in (None, 10.0):
        config = Config(tiers={"nvme": "d"}, io_bytes=IO, engine="uring", speed=speed)
        outcome = replay(config, trace, tmp_path / "run", [], is_forced=True, tiers=tiers)
        assert outcome.error is None
        assert outcome.summary.operations == len(rows)
        assert outcome.run.engine.name == outcome.run.tiers["nvme"]["engine"] == "uring"
        ended: dict[int, tuple[int, int]] = {}
        for op, row in zip(read_table(tmp_path / "run" / "ops.parquet", OPS).to_pylist(), rows, strict=True):
            # Within a request, a later stage begins when the earlier one has completed.
            stage, last = ended.get(row[7], (-1, 0))
            assert op["submitted_ns"] >= last or row[8] == stage
            ended[row[7]] = (row[8], max(last, op["completed_ns"]))
        assert Counter(f.tier for f in outcome.summary.figures) == {"gpu": 1, "cpu": 1, "nvme": 2}


@needs_uring
def test_a_fault_of_ours_ends_the_run(tier: FileTier, tmp_path: Path) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    plan = plan_of([(WRITE, i, 0, IO) for i in range(50)], tmp_path)
    record = Record.empty(50, is_open_loop=False)
    with pytest.raises(ZeroDivisionError):
        UringEngine(4, IO).drive(Job(plan, None, [tier], record, broken), lambda: None, lambda _done: None)


@needs_uring
def test_stopping_waits_for_what_is_in_flight(tier: FileTier, tmp_path: Path) -> None:
    asked = iter([None] * 20)
    plan = plan_of([(WRITE, i, 0, 3 * IO) for i in range(500)], tmp_path)
    record = Record.empty(500, is_open_loop=False)
    job = Job(plan, None, [tier], record, Fresh.of(SEED))
    driven = UringEngine(4, IO).drive(job, lambda: next(asked, "SIGINT"), lambda _done: None)
    assert driven.interrupted_by == "SIGINT"
    assert driven.completed == (record.outcome == OK).sum() < 500
    assert ((record.completed_ns >= 0) == (record.outcome == OK)).all()


@needs_uring
def test_without_locked_memory_it_says_so_and_works(
    tier: FileTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: Any) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(ring.Ring, "register_buffers", refusing)
    engine = UringEngine(8, 1 << 20)
    facts = engine.facts()
    assert facts["has_registered_buffers"] is False
    # 8 and 2 * 32 + 2 buffers of 1 MiB.
    assert facts["unregistered_because"] == "the locked-memory limit is below 74 MiB (ulimit -l)"
    _, record = drive(engine, tier, plan_of([(WRITE, 0, 0, 3 << 20), (READ, 0, 0, 3 << 20)], tmp_path))
    assert record.outcome.tolist() == [OK, OK]


def test_a_refusal_names_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes

    def refusing(*_: Any) -> int:
        ctypes.set_errno(errno.EPERM)
        return -1

    monkeypatch.setattr(ring, "_syscall", refusing)
    monkeypatch.setattr(ring, "_DISABLED", tmp_path / "sysctl")
    assert ring.refusal() == "io_uring is not permitted here (a seccomp filter, as containers have)"
    (tmp_path / "sysctl").write_text("2\n")
    assert ring.refusal() == "sysctl kernel.io_uring_disabled=2 forbids io_uring"


def test_auto_takes_what_there_is_and_says_why(tier: FileTier, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(tier, RingTier)
    ram = RamTier("cpu", IO)
    assert not isinstance(ram, RingTier)
    checked = RamTier("cpu", IO, is_verified=True)
    chosen = choose.choose(EngineName.AUTO, [None, checked], 2, IO)
    said = "no tier has files, or memory without --verify, which io_uring's loop is for"
    assert (chosen.engine.name, chosen.because) == ("threads", said)
    # Its loop feeds the threads that copy.
    assert choose.choose(EngineName.AUTO, [None, ram], 2, IO).engine.name == "uring"
    # What nothing is done on needs no threads.
    assert choose.choose(EngineName.AUTO, [SimulatedTier("null"), None], 4, IO).engine.name == "uring"
    monkeypatch.setattr(ring, "refusal", lambda: "sysctl says no")
    chosen = choose.choose(EngineName.AUTO, [tier], 2, IO)
    assert (chosen.engine.name, chosen.because, tier.engine) == ("threads", "no io_uring: sysctl says no", "threads")
    with pytest.raises(DeviceError, match="--engine uring: sysctl says no; say --engine threads"):
        choose.choose(EngineName.URING, [tier], 2, IO)
    with pytest.raises(ConfigError, match="--engine aio: choose auto, threads, uring"):
        check_name("aio")


@needs_uring
def test_python_makes_room_only_for_objects_that_lie_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Giving room takes more processor time than a write of 4 KiB.
    calls: list[int] = []
    make = Workers.make_room_here
    monkeypatch.setattr(Workers, "make_room_here", lambda self: (calls.append(1), make(self))[1])
    count, length = 300, 4096
    tier = ExtentTier("nvme", tmp_path / "space", StorageOptions(is_direct=False))
    tier.expect(Holding([count * length]))
    tier.open(count * length)
    engine = UringEngine(8, length)
    written: list[tuple[int, int, int, int]] = [(WRITE, obj, 0, length) for obj in range(count)]
    half = count // 2
    deleted: list[tuple[int, int, int, int]] = [(DELETE, obj, 0, 0) for obj in range(half)]
    try:
        for rows, asks in (
            (written, True),
            (written, False),
            (deleted, False),
            (written[half:], False),
            (written, True),
        ):
            calls.clear()
            driven, _ = drive(engine, tier, plan_of(rows, tmp_path))
            assert (driven.failure, driven.completed) == (None, len(rows))
            assert bool(calls) == asks
        data = (tmp_path / "space").read_bytes()
        starts = [tier.ring_extent(obj)[1] for obj in range(count)]
    finally:
        tier.close()
    assert len(set(starts)) == count
    assert all(data[at : at + length] == content(obj, 1, length) for obj, at in enumerate(starts))
