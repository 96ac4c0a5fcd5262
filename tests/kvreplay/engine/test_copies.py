"""Memory beside drives: threads of compiled code copy, and take no place of the drives' queue."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rings import IO, SEED, content, needs_uring
from schedules import Schedule

from kvreplay.data.copies import RING, Copiers, copy_threads
from kvreplay.data.words import Fresh
from kvreplay.engine import turn
from kvreplay.engine.choose import ThreadEngine, UringEngine
from kvreplay.engine.job import OK, Job, Record
from kvreplay.engine.pump import Pump
from kvreplay.engine.rings.rings import Rings
from kvreplay.engine.workers import Mail
from kvreplay.plan.plan import READ, WRITE, Plan, build_plan
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.ram import RamTier
from kvreplay.tiers.tier import Holding, StorageOptions

MIB = 1 << 20
MEMORY, DRIVE = 0, 1
PATIENCE_S = 30


def plan_of(rows: list[tuple[int, int, int, int, int]]) -> Plan:
    """Return the plan of (tier, op, object, offset, length) rows, each a request of its own."""
    tier, op, obj, offset, length = np.array(rows, dtype=np.int64).T.copy()
    nothing = np.full(len(rows), -1)
    return build_plan(
        {
            "row": np.arange(len(rows)),
            "ts_ns": np.zeros(len(rows), np.int64),
            "op": op,
            "tier": tier,
            "object_id": obj,
            "offset_bytes": offset,
            "length_bytes": length,
            "request_id": nothing,
            "stage": nothing,
        },
        [1, 4096],
        Path("t"),
    )


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Memory whose operations Python must not touch."""

    def refuse(*_: Any) -> None:
        raise AssertionError("an operation came to Python")

    tier = RamTier("cpu", IO)
    tier.expect(Holding([4 * MIB]))
    tier.open(4 * MIB)
    for name in ("begin", "read", "write"):
        monkeypatch.setattr(tier, name, refuse)
    yield tier
    tier.close()


@pytest.mark.parametrize("make", [ThreadEngine, pytest.param(UringEngine, marks=needs_uring)])
@pytest.mark.parametrize("depth", [1, 2, 16])
def test_what_is_copied_is_what_was_written_and_needs_no_python(
    memory: RamTier, tmp_path: Path, make: Any, depth: int
) -> None:
    drive = ExtentTier("nvme", tmp_path / "space", StorageOptions(is_direct=False))
    drive.expect(Holding([8 * MIB]))
    drive.open(8 * MIB)
    # Longer than the ring, odd ends, and more objects than the depth; the drive's between them.
    lengths = {0: (2 * RING + 3) * IO + 77, 1: 1, 2: 5 * IO, 3: IO + 1, **dict.fromkeys(range(4, 40), 4096)}
    rows = [(MEMORY, WRITE, obj, 0, length) for obj, length in lengths.items()]
    rows += [(MEMORY, WRITE, 2, IO + 5, IO)]
    rows += [(MEMORY, READ, obj, 0, length) for obj, length in lengths.items()]
    for at in range(0, 2 * len(rows), 5):
        rows.insert(at, (DRIVE, WRITE, 1000 + at, 0, 3 * IO))
    plan = plan_of(rows)
    record = Record.empty(len(plan), is_open_loop=False)
    engine = make(depth, IO)
    job = Job(plan, None, [memory, drive], record, Fresh.of(SEED))
    try:
        driven = engine.drive(job, lambda: None, lambda _done: None)
        assert (driven.failure, driven.completed) == (None, len(rows))
        assert set(record.outcome.tolist()) == {OK}
        for obj, length in lengths.items():
            start, _ = memory._space.extent(obj)  # type: ignore[union-attr]
            found = memory._memory[start : start + length].tobytes()
            if obj == 2:
                assert found[: IO + 5] == content(2, 1, 5 * IO)[: IO + 5]
                assert found[2 * IO + 5 :] == content(2, 1, 5 * IO)[2 * IO + 5 :]
                assert found[IO + 5 : 2 * IO + 5] != content(2, 1, 5 * IO)[IO + 5 : 2 * IO + 5]
            else:
                assert found == content(obj, 1, length)
    finally:
        drive.close()
    # The object that was read last but with 4 KiB lies in the sink, wherever its turn was.
    at = memory._sink.tobytes().find(content(39, 1, 4096)[:64])
    assert at >= 0
    assert (record.submitted_ns <= record.completed_ns).all()


def test_copies_begin_and_end_while_the_queue_is_full(memory: RamTier) -> None:
    rows = [(MEMORY, READ, obj, 0, 3 * IO) for obj in range(2)]
    plan = plan_of(rows)
    record = Record.empty(len(plan), is_open_loop=False)
    for obj in range(2):
        memory.reserve(obj, 3 * IO)
    job = Job(plan, None, [memory, None], record, Fresh.of(SEED))
    schedule = Schedule.of(job, 4, IO)
    mail = Mail(schedule)
    buffers = [0] * (4 + schedule.slots)
    ways = [turn.BY_COPY, turn.BY_NOBODY]
    pump = Pump(
        Rings(), schedule, job, ways, mail, buffers, extents=[None, None], copied=[memory, None], registered=(0, 0)
    )
    copiers = Copiers(memory.copy_sink())
    pump.share_copies(copiers)
    pump.start_clock(time.monotonic_ns())
    copiers.start(mail.asleep_at, mail.fd)
    try:
        until = time.monotonic() + PATIENCE_S
        # Four I/Os of others are in flight, of four.
        while schedule.completed < len(rows) and time.monotonic() < until:
            assert pump.next_piece(4) is None
        assert set(record.outcome.tolist()) == {OK}
        assert pump.copying == 0
    finally:
        copiers.close()
        mail.close()


@pytest.mark.parametrize("is_open", [True, False])
def test_in_an_open_loop_what_waits_for_memory_has_come(memory: RamTier, is_open: bool) -> None:
    plan = plan_of([(MEMORY, READ, obj, 0, RING * IO) for obj in range(3)])
    record = Record.empty(len(plan), is_open_loop=is_open)
    for obj in range(3):
        memory.reserve(obj, RING * IO)
    job = Job(plan, plan.ts_ns if is_open else None, [memory, None], record, Fresh.of(SEED))
    schedule = Schedule.of(job, 4, IO)
    mail = Mail(schedule)
    buffers, ways = [0] * (4 + schedule.slots), [turn.BY_COPY, turn.BY_NOBODY]
    pump = Pump(
        Rings(), schedule, job, ways, mail, buffers, extents=[None, None], copied=[memory, None], registered=(0, 0)
    )
    # Their threads are not started: nothing is copied.
    copiers = Copiers(memory.copy_sink())
    pump.share_copies(copiers)
    pump.start_clock(time.monotonic_ns())
    try:
        assert pump.next_piece(0) is None
        assert pump.copying == 3
        assert (record.submitted_ns >= 0).tolist() == [is_open] * 3
    finally:
        copiers.close()
        mail.close()


def test_processors_that_we_may_not_use_get_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for processors, threads in ((1, 1), (2, 1), (8, 4), (64, 8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid, n=processors: set(range(n)))
        assert copy_threads() == threads
