"""What compiled code does alone, extents of one file, and beside tiers that need Python; io_uring or a skip."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rings import IO, SEED, content, needs_uring, parted
from schedules import Schedule, ask, fall_asleep, take_made

from kvreplay.data.words import Fresh
from kvreplay.engine import mailbox
from kvreplay.engine.choose import UringEngine
from kvreplay.engine.job import ERROR, OK, Job, Record
from kvreplay.engine.mailbox import Mail
from kvreplay.engine.tables import ASKED
from kvreplay.engine.workers import Workers
from kvreplay.plan.plan import DELETE, READ, WRITE, Plan, build_plan
from kvreplay.tiers.extents import ExtentTier
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.modelled import SimulatedTier
from kvreplay.tiers.ram import RamTier
from kvreplay.tiers.tier import NOWHERE, Holding, StorageOptions, place

SPACE_BYTES = 64 << 20


@pytest.fixture
def space(tmp_path: Path) -> Iterator[ExtentTier]:
    """Extents of a file, through the page cache, so that any filesystem will do."""
    tier = ExtentTier("space", tmp_path / "space", StorageOptions(is_direct=False))
    tier.expect(Holding([SPACE_BYTES]))
    tier.open(SPACE_BYTES)
    tier.engine = "uring"
    yield tier
    tier.close()


def plan_of(rows: list[tuple[int, ...]], ts: list[int] | None = None) -> Plan:
    """Return the plan of (tier, op, object, length, request, stage) rows; -1 is null."""
    tier, op, obj, length, request, stage = np.array(rows, dtype=np.int64).T.copy()
    count = len(rows)
    return build_plan(
        {
            "row": np.arange(count),
            "ts_ns": np.array(ts or [0] * count, np.int64),
            "op": op,
            "tier": tier,
            "object_id": obj,
            "offset_bytes": np.zeros(count, np.int64),
            "length_bytes": length,
            "request_id": request,
            "stage": stage,
        },
        [4096] * 4,
        Path("t"),
    )


def drive(
    plan: Plan,
    tiers: list[Any],
    depth: int,
    due: Any = None,
    fill: Any = None,
    io_bytes: int = IO,
    rings: int = 1,
    **job: Any,
) -> tuple[Any, Record]:
    record = Record.empty(len(plan), is_open_loop=due is not None)
    engine = UringEngine(depth, io_bytes, shared=parted(rings))
    made = Job(plan, due, tiers, record, fill or Fresh.of(SEED), **job)
    driven = engine.drive(made, lambda: None, lambda _done: None)
    return driven, record


def held(tier: ExtentTier, obj: int, length: int) -> bytes:
    fd, start = tier.ring_extent(obj)
    return os.pread(fd, length, start)


@needs_uring
@pytest.mark.parametrize(("depth", "rings"), [(1, 1), (3, 1), (32, 1), (1, 2), (32, 3)])
@pytest.mark.parametrize(("is_open", "bulk_depth"), [(False, None), (True, None), (False, 2), (True, 2)])
def test_in_any_mixture_order_is_kept_and_what_lies_there_is_what_was_written_last(
    space: ExtentTier, tmp_path: Path, depth: int, rings: int, is_open: bool, bulk_depth: int | None
) -> None:
    (tmp_path / "d").mkdir()
    files = FileTier("files", tmp_path / "d", StorageOptions(is_direct=False))
    files.open(0)
    memory = RamTier("cpu", IO)
    memory.open(0)
    tiers = [space, files, memory, SimulatedTier("null")]
    rng = random.Random(depth)  # noqa: S311 - a test's choices
    lengths: dict[int, int] = {}
    versions: dict[int, int] = {}
    rows: list[tuple[int, ...]] = []
    for request in range(120):
        for stage in range(3):
            tier = rng.choice((0, 0, 0, 1, 2, 3))
            # Objects of their own for each tier, some of them written again, or deleted.
            obj = 4 * rng.randrange(20) + tier
            op = rng.choice((READ, WRITE, WRITE, DELETE)) if obj in lengths else WRITE
            length = lengths.setdefault(obj, rng.choice((4096, 4096, 20_000, 3 * IO, 40 * IO)))
            rows.append((tier, op, obj, length, request, stage))
            if op == DELETE:
                del lengths[obj]
            if op == WRITE:
                versions[obj] = versions.get(obj, 0) + 1
    ts = sorted(rng.randrange(20_000_000) for _ in rows)
    plan = plan_of(rows, ts)
    plan = replace(plan, bulk=(plan.length > IO * (bulk_depth or 100)).astype(np.uint8))
    try:
        driven, record = drive(plan, tiers, depth, plan.ts_ns if is_open else None, rings=rings, bulk_depth=bulk_depth)
    finally:
        files.close()
        memory.close()
    assert driven.failure is None
    assert driven.completed == len(rows)
    assert set(record.outcome.tolist()) == {OK}
    submitted, completed = record.submitted_ns.tolist(), record.completed_ns.tolist()
    if is_open:
        assert (record.submitted_ns >= plan.ts_ns).all()
    for j, (_, op_j, obj_j, _, request_j, stage_j) in enumerate(rows):
        assert 0 <= submitted[j] <= completed[j] <= driven.wall_ns
        for i, (_, op_i, obj_i, _, request_i, stage_i) in enumerate(rows[:j]):
            conflict = obj_i == obj_j and not (op_i == op_j == READ)
            if conflict or (request_i == request_j and stage_i < stage_j):
                assert completed[i] <= submitted[j]
    kept = {obj: length for obj, length in lengths.items() if obj % 4 == 0}
    assert len(kept) > 3
    for obj, length in kept.items():
        assert held(space, obj, length) == content(obj, versions[obj], length)


@needs_uring
@pytest.mark.parametrize("depth", [1, 8])
@pytest.mark.parametrize("io_bytes", [4096, 64 << 10, 192 << 10, 256 << 10, 1 << 20])
@pytest.mark.parametrize("fill", [Fresh.of(SEED), Fresh.of(SEED).__call__], ids=["compiled", "one at a time"])
def test_the_same_data_is_written_whoever_makes_it_and_however_it_is_cut(
    space: ExtentTier, depth: int, io_bytes: int, fill: Any
) -> None:
    lengths = [4096, 64 << 10, 100 << 10, 200 << 10, 256 << 10, 300 << 10, 2500 << 10] * 3
    rows = [(0, WRITE, obj, length, -1, -1) for obj, length in enumerate(lengths)]
    rows += [(0, WRITE, 2, lengths[2], -1, -1)]
    driven, record = drive(plan_of(rows), [space], depth, fill=fill, io_bytes=io_bytes)
    assert record.outcome.tolist() == [OK] * len(rows)
    assert driven.generation_ns + driven.submitting_generation_ns > 0
    for obj, length in enumerate(lengths):
        written = -(-length // 4096) * 4096
        assert held(space, obj, written) == content(obj, 2 if obj == 2 else 1, written)


@needs_uring
def test_short_data_is_made_by_who_submits_and_room_for_it_many_at_a_time(
    space: ExtentTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    reserve_all = space.ring_reserve

    def reserve(objects: Any, ends: Any) -> Any:
        asked.append(len(objects))
        return reserve_all(objects, ends)

    def refuse(*_: Any) -> None:
        raise AssertionError("a thread was asked for data")

    monkeypatch.setattr(space, "ring_reserve", reserve)
    monkeypatch.setattr(space, "reserve", refuse)
    monkeypatch.setattr(Workers, "_make", refuse)
    rows = [(0, WRITE, obj, 4096, -1, -1) for obj in range(1000)]
    driven, record = drive(plan_of(rows), [space], 8, io_bytes=64 << 10)
    assert set(record.outcome.tolist()) == {OK}
    assert sum(asked) == len(rows)
    assert len(asked) < len(rows) / 8
    assert driven.submitting_reserve_ns > 0
    assert driven.submitting_generation_ns > 0
    assert driven.generation_ns == driven.reserve_ns == 0


@needs_uring
@pytest.mark.parametrize("length", [4096, 40 * IO])
@pytest.mark.parametrize(("depth", "rings"), [(1, 1), (8, 1), (8, 2)])
@pytest.mark.parametrize("fill", [Fresh.of(SEED), Fresh.of(SEED).__call__], ids=["here", "by threads"])
def test_a_fault_is_that_operations_alone(space: ExtentTier, length: int, depth: int, rings: int, fill: Any) -> None:
    # Object 1 lies where nothing can be written, object 2 nowhere, and object 3 finds no room.
    full = os.open("/dev/full", os.O_RDWR)
    broken: Any = space
    reserve, extent, reserve_all = space.reserve, space.ring_extent, space.ring_reserve

    def refuse(object_id: int, end: int) -> None:
        if object_id == 3:
            raise OSError("none left")
        reserve(object_id, end)

    def refuse_one(objects: Any, ends: Any) -> tuple[Any, list[tuple[int, OSError]]]:
        places, failed = reserve_all(objects, ends)
        places[objects == 1] = place(full, 0)
        places[objects == 3] = NOWHERE
        return places, failed + [(i, OSError("none left")) for i, obj in enumerate(objects.tolist()) if obj == 3]

    broken.reserve, broken.ring_reserve = refuse, refuse_one
    broken.ring_extent = lambda obj: (full, 0) if obj == 1 else extent(obj)
    rows = [(0, WRITE, obj, length, -1, -1) for obj in (0, 1, 3, 4)] + [(0, READ, 2, length, -1, -1)]
    rows += [(0, READ, obj, length, -1, -1) for obj in (0, 4)]
    try:
        driven, record = drive(plan_of(rows), [space], depth, fill=fill, rings=rings, stops_on_error=False)
    finally:
        os.close(full)
    assert driven.completed == len(rows)
    assert record.outcome.tolist() == [OK, ERROR, ERROR, OK, ERROR, OK, OK]
    assert record.completed_ns[record.outcome == ERROR].tolist() == [-1] * 3
    assert held(space, 4, length) == content(4, 1, length)


@needs_uring
@pytest.mark.parametrize("rings", [1, 2])
def test_a_failure_stops_the_run_and_says_what(space: ExtentTier, rings: int) -> None:
    rows = [(0, READ, 9, 4096, -1, -1)] + [(0, WRITE, obj, 4096, 1, obj) for obj in range(50)]
    driven, record = drive(plan_of(rows), [space], 4, rings=rings)
    assert driven.failure.message == "read of object 9: object 9 is not there"
    assert record.outcome.tolist().count(OK) < 50


@needs_uring
@pytest.mark.parametrize("rings", [1, 2])
def test_an_interrupt_ends_a_run_that_compiled_code_alone_does(space: ExtentTier, rings: int) -> None:
    # A read a millisecond, for ten seconds.
    plan = plan_of([(0, WRITE, 0, 4096, -1, -1)] + [(0, READ, 0, 4096, -1, -1)] * 9999, list(range(0, 10**10, 10**6)))
    record = Record.empty(len(plan), is_open_loop=True)
    job, asked = Job(plan, plan.ts_ns, [space], record, Fresh.of(SEED)), iter([None, None])
    engine = UringEngine(1, IO, shared=parted(rings))
    driven = engine.drive(job, lambda: next(asked, "SIGINT"), lambda _done: None)
    assert driven.interrupted_by == "SIGINT"
    assert 0 < driven.completed < len(plan)
    assert (record.outcome == OK).sum() == driven.completed


def test_the_mailbox_hands_over_each_buffer_once_and_trouble_before_data() -> None:
    schedule = Schedule(
        plan_of([(0, WRITE, i, 4096, -1, -1) for i in range(6)]), None, [True], [4096], depth=2, ahead=2, io_bytes=IO
    )
    mail = Mail(schedule)
    try:
        answer = np.zeros(4, ASKED)
        assert mail.take_asked(answer) == []
        ask(mail.address, 0, True)
        # Six buffers, one of which is kept for a write that has started.
        fills = mail.take_asked(answer) + mail.take_asked(answer)
        assert [fill.row for fill in fills] == [0, 1, 2, 3, 4]
        assert len({fill.slot for fill in fills}) == 5
        mail.post("trouble with row 1")
        mail.give_made(np.array([fill.slot for fill in fills[:2]]))
        assert not take_made(mail.address)
        assert list(mail.answers()) == ["trouble with row 1"]
        assert schedule.take(0) is None
        assert take_made(mail.address)
        assert [submission.flight.row for _ in range(2) if (submission := schedule.take(0))] == [0, 1]
    finally:
        mail.close()


def test_whoever_sleeps_is_woken_once() -> None:
    schedule = Schedule(plan_of([(0, WRITE, 0, 4096, -1, -1)]), None, [True], [4096], depth=1, ahead=1, io_bytes=IO)
    mail = Mail(schedule)
    try:
        # Asleep with a full queue: data does not wake it, mail does.
        assert fall_asleep(mail.address, mailbox.FULL)
        mail.give_made(np.zeros(0, np.int64))
        with pytest.raises(BlockingIOError):
            os.eventfd_read(mail.fd)
        mail.post(1)
        mail.post(2)
        assert os.eventfd_read(mail.fd) == 1
        # With mail there it does not fall asleep.
        assert not fall_asleep(mail.address, mailbox.FULL)
        assert list(mail.answers()) == [1, 2]
        assert fall_asleep(mail.address, mailbox.HUNGRY)
        mail.give_made(np.zeros(0, np.int64))
        assert os.eventfd_read(mail.fd) == 1
        # A maker that goes to sleep is woken by what is asked for next.
        assert mailbox.may_sleep(mail.address)
        ask(mail.address, 0, True)
        mail.sleep_until_asked()
    finally:
        mail.close()


def test_a_place_is_a_descriptor_and_an_offset() -> None:
    assert place(7, 5 << 40) == 7 << 48 | 5 << 40
    assert place(7, np.array([4096])).tolist() == [7 << 48 | 4096]
