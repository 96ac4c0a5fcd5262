"""A fault is one operation's alone; what ends a run ends it quickly, and leaves what was done."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path
from typing import Any

import pytest
from phrases import Saying, shows
from rings import (
    ENGINES,
    IO,
    PythonFiles,
    content,
    drive,
    engine_of,
    files_in,
    held,
    needs_uring,
    rows_of,
    space_in,
)

from kvreplay.plan.row_ring import DELETE, ERROR, OK, READ, SHORT, SKIPPED, WRITE
from kvtrace.core.errors import DeviceError

MIB = 1 << 20
DEPTHS = pytest.mark.parametrize("depth", [32, 3, 1])
EVERY = pytest.mark.parametrize("name", ENGINES)


def ops(op: int, *objects: int, length: int = 8192) -> list[dict[str, Any]]:
    return [{"op": op, "object_id": obj, "length_bytes": length} for obj in objects]


@pytest.mark.star
@EVERY
@DEPTHS
@pytest.mark.parametrize("length", [4096, 5 * IO])
def test_each_fault_is_that_operations_alone_however_many(
    tmp_path: Path, name: str, depth: int, length: int
) -> None:
    with files_in(tmp_path / "d") as tier:
        Path(tier.path(1)).symlink_to("/dev/full")
        Path(tier.path(2)).mkdir()
        Path(tier.path(3)).symlink_to(tier.path(3))
        Path(tier.path(4)).write_bytes(b"short")
        said = "short read: 5" if length == 4096 else "short read: "
        faults = {
            (WRITE, 1): "No space left on device",
            (WRITE, 2): "Is a directory",
            (WRITE, 3): "Too many levels of symbolic links",
            (READ, 4): said,
            (READ, 5): "No such file or directory",
            (DELETE, 6): "No such file or directory",
        }
        # More of them than may be in flight: what a failed one held is given back.
        stated = [row for op, obj in faults for row in ops(op, *[obj] * 40, length=length)]
        stated += ops(WRITE, 9, length=length) + ops(READ, 9, length=length)
        rows = rows_of(stated)
        driven = drive(engine_of(name, depth), rows, [tier], stops_on_error=False)
        assert driven.completed == len(stated)
        outcomes = [SHORT if obj == 4 else ERROR for _, obj in faults for _ in range(40)] + [OK, OK]
        assert rows.all["outcome"].tolist() == outcomes
        assert set(rows.all["completed_ns"][:-2].tolist()) == {-1}
        assert (rows.all["submitted_ns"] >= 0).all()
        assert Path(tier.path(9)).read_bytes() == content(9, len(stated) - 1, length)
        for (op, obj), text in faults.items():
            driven = drive(engine_of(name, depth), rows_of(ops(op, obj, length=length)), [tier])
            assert driven.failure is not None
            what = ("read", "write", "delete")[op]
            assert shows(driven.failure.message, f"{what} … object {obj}: … {text}")


@EVERY
@DEPTHS
def test_pieces_after_a_fault_in_a_long_operation_are_skipped(
    tmp_path: Path, name: str, depth: int
) -> None:
    # Of 40 pieces one is there: when all in flight have come short, many more are left than the
    # depth.
    stated = [
        *ops(WRITE, 0, length=IO),
        *ops(READ, 0, length=40 * IO),
        *ops(WRITE, 1, length=3 * IO),
    ]
    rows = rows_of(stated)
    with files_in(tmp_path / "d") as tier:
        driven = drive(engine_of(name, depth), rows, [tier], stops_on_error=False)
    assert rows.all["outcome"].tolist() == [OK, SHORT, OK]
    assert driven.completed == 3
    assert driven.failure is not None
    # Of several threads any that has a piece beyond the first may be the first to find that.
    pieces = range(1, 2 if depth == 1 or name != "threads" else 40)
    phrases = [f"read … object 0: … 0 … {IO} bytes … {piece * IO}" for piece in pieces]
    assert any(shows(driven.failure.message, phrase) for phrase in phrases)


@pytest.mark.star
@EVERY
@pytest.mark.parametrize("depth", [8, 1])
@pytest.mark.parametrize("length", [4096, 40 * IO])
def test_a_fault_of_an_extent_is_that_operations_alone(
    tmp_path: Path, name: str, depth: int, length: int
) -> None:
    """Object 2 lies nowhere, and object 3 beyond the end of what can be written."""
    stated = ops(WRITE, 0, length=length) + ops(READ, 2, length=length) + ops(DELETE, 2)
    stated += ops(WRITE, 4, length=length) + ops(READ, 0, 4, length=length)
    with space_in(tmp_path / "space", 8 * length) as tier:
        rows = rows_of(stated)
        driven = drive(engine_of(name, depth), rows, [tier], stops_on_error=False)
        assert driven.completed == len(stated)
        assert rows.all["outcome"].tolist() == [OK, ERROR, ERROR, OK, OK, OK]
        assert rows.all["completed_ns"][1:3].tolist() == [-1, -1]
        assert driven.failure is not None
        assert shows(driven.failure.message, "object 2")
        assert held(tier, 4, length) == content(4, 4, length)
        # The file ends in the middle of what is asked for.
        os.ftruncate(tier.native().drives[0].fd, tier.space.start(0) + length // 2)
        rows = rows_of(ops(READ, 0, length=length))
        assert drive(engine_of(name, depth), rows, [tier]).failure is not None
        assert rows.all["outcome"].tolist() == [SHORT]


@EVERY
def test_what_finds_no_room_fails_and_says_so(tmp_path: Path, name: str) -> None:
    stated = ops(WRITE, 0, 1, 2, 3, length=MIB) + ops(READ, 0, length=MIB)
    with space_in(tmp_path / "space", 2 * MIB) as tier:
        rows = rows_of(stated)
        driven = drive(engine_of(name, 4), rows, [tier], stops_on_error=False)
        assert rows.all["outcome"].tolist() == [OK, OK, ERROR, ERROR, OK]
        said = "2 objects … 2.10 MB … 3.67 MB"
        assert driven.failure is not None
        assert shows(driven.failure.message, f"write … object 2: … {said}")
        longer = rows_of(ops(WRITE, 0, length=MIB + 1))
        failure = drive(engine_of(name, 4), longer, [tier]).failure
        assert failure is not None
        assert shows(failure.message, "write … object 0: … extent")


@pytest.mark.star
@EVERY
@DEPTHS
@pytest.mark.parametrize("length", [4096, 3 * IO])
def test_a_file_is_synchronized_before_close_if_fsync_is_close(
    tmp_path: Path, name: str, depth: int, length: int
) -> None:
    # What /dev/null takes cannot be synchronized, and that is the operation's failure.
    for fsync, outcome in (("never", OK), ("close", ERROR)):
        with files_in(tmp_path / fsync, fsync=fsync) as tier:
            Path(tier.path(1)).symlink_to("/dev/null")
            rows = rows_of(ops(WRITE, 0, 1, length=length) + ops(READ, 0, length=length))
            driven = drive(engine_of(name, depth), rows, [tier], stops_on_error=False)
        assert rows.all["outcome"].tolist() == [OK, outcome, OK]
        if outcome == ERROR:
            assert driven.failure is not None
            assert shows(driven.failure.message, "write … object 1: … Invalid argument")


@EVERY
def test_with_no_descriptor_left_the_open_fails(tmp_path: Path, name: str) -> None:
    # With one I/O in flight files are opened by plain calls; places of a ring need no descriptor of
    # the process.
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def exhaust(_in_flight: Any) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))

    with files_in(tmp_path / "d") as tier:
        drive(engine_of(name, 1), rows_of(ops(WRITE, 0)), [tier])
        try:
            driven = drive(engine_of(name, 1), rows_of(ops(READ, 0)), [tier], watched=exhaust)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert driven.failure is not None
    assert shows(driven.failure.message, "read … object 0: … Too many")


@needs_uring
def test_a_ring_has_as_many_places_for_files_as_may_be_open(tmp_path: Path) -> None:
    # The default of most systems is 1,024, which is also the depth of an open loop.
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, limits[1]))
    try:
        with files_in(tmp_path / "d") as tier:
            assert (
                drive(engine_of("uring", 512, 4096), rows_of(ops(WRITE, 0)), [tier]).failure is None
            )
            with pytest.raises(DeviceError, match="ulimit -n"):
                drive(engine_of("uring", 513, 4096), rows_of(ops(READ, 0)), [tier])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@EVERY
@pytest.mark.parametrize("is_stopping", [True, False])
def test_a_fault_stops_the_run_unless_it_may_go_on(
    tmp_path: Path, name: str, *, is_stopping: bool
) -> None:
    stated = [
        {"op": WRITE, "object_id": obj, "length_bytes": 4096, "request": 1, "stage": obj}
        for obj in range(50)
    ]
    stated[20] |= {"op": READ, "object_id": 999}
    rows = rows_of(stated)
    with space_in(tmp_path / "space", MIB) as tier:
        driven = drive(engine_of(name, 4), rows, [tier], stops_on_error=is_stopping)
    assert driven.failure is not None
    assert (driven.failure.row, driven.failure.message) == (
        20,
        Saying("read … object 999"),
    )
    assert (
        rows.all["outcome"].tolist() == [OK] * 20 + [ERROR] + [SKIPPED if is_stopping else OK] * 29
    )
    assert driven.completed == (21 if is_stopping else 50)


@EVERY
def test_the_row_of_a_fault_is_that_of_the_trace(tmp_path: Path, name: str) -> None:
    rows = rows_of([{"op": READ, "object_id": 5, "length_bytes": 1, "trace_row": 10**10 + 7}])
    with space_in(tmp_path / "space", MIB) as tier:
        failure = drive(engine_of(name, 4), rows, [tier]).failure
    assert failure is not None
    assert failure.row == 10**10 + 7


@needs_uring
def test_operations_unsubmitted_at_a_fault_are_not_done(tmp_path: Path) -> None:
    with files_in(tmp_path / "d") as tier:
        for obj in range(64):
            Path(tier.path(obj)).write_bytes(bytes(5 if obj == 3 else 4096))
        # The kernel's own threads unlink, while the short read is back at once.
        rows = rows_of(
            [row for obj in range(64) for row in ops(DELETE if obj < 3 else READ, obj, length=4096)]
        )
        driven = drive(engine_of("uring", 64), rows, [tier])
    assert driven.failure is not None
    assert shows(driven.failure.message, "read … object 3: … 5 … 4096 bytes … offset 0")
    assert set(rows.all["outcome"][rows.all["submitted_ns"] < 0].tolist()) <= {SKIPPED}


@pytest.mark.star
@EVERY
@pytest.mark.parametrize("depth", [32, 1])
@pytest.mark.parametrize("length", [4096, 3 * IO])
def test_an_interrupt_leaves_what_was_done(
    tmp_path: Path, name: str, depth: int, length: int
) -> None:
    asked = iter([None] * 3)
    rows = rows_of([row for obj in range(50_000) for row in ops(WRITE, obj, length=length)])
    with files_in(tmp_path / "d") as tier:
        driven = drive(
            engine_of(name, depth), rows, [tier], interrupted=lambda: next(asked, "SIGTERM")
        )
        assert driven.interrupted_by == "SIGTERM"
        done = rows.all["outcome"] == OK
        assert 0 < driven.completed == done.sum() < len(rows)
        assert ((rows.all["completed_ns"] >= 0) == done).all()
        scratch = Path(tier.path(0)).parents[1]
        there = {p.name for p in scratch.rglob("*.kv")}
        whole = {Path(tier.path(int(obj))).name for obj in rows.all["object_id"][done]}
        assert whole <= there
        # What was begun but not done is no more than was in flight.
        assert len(there - whole) <= depth


@EVERY
@pytest.mark.parametrize("rings", [1, 2])
def test_an_interrupt_ends_a_run_that_waits_for_its_times(
    tmp_path: Path, name: str, rings: int
) -> None:
    # A read a millisecond, for a minute.
    stated = [{"op": WRITE, "object_id": 0, "length_bytes": 4096, "due_ns": 0}]
    stated += [
        {"op": READ, "object_id": 0, "length_bytes": 4096, "due_ns": at * 10**6}
        for at in range(1, 60_000)
    ]
    rows = rows_of(stated, is_open_loop=True)
    first = rows.within(0, 1)["outcome"]

    def interrupted() -> str | None:
        # Not by the clock: on a busy machine nothing may have been done by then.
        return "SIGINT" if first[0] == OK else None

    with space_in(tmp_path / "space", MIB) as tier:
        driven = drive(engine_of(name, 1, rings=rings), rows, [tier], interrupted=interrupted)
    assert driven.interrupted_by == "SIGINT"
    assert 0 < driven.completed < len(rows)
    assert (rows.all["outcome"] == OK).sum() == driven.completed


class Broken(PythonFiles):
    def begin(self, _op: int, object_id: int) -> int:
        if object_id == 30:
            raise ZeroDivisionError
        return object_id


@EVERY
def test_a_fault_of_ours_ends_the_run_with_itself(name: str) -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        drive(
            engine_of(name, 4),
            rows_of([row for obj in range(1, 50) for row in ops(WRITE, obj)]),
            [Broken()],
        )
    assert threading.active_count() == before, "no thread is left"


@EVERY
@pytest.mark.parametrize("at", [0, 2])
def test_a_thread_that_cannot_start_ends_the_run(
    name: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if len(started) == at:
            raise RuntimeError("can't start new thread")
        started.append(self.name)
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    before = threading.active_count()
    with pytest.raises(
        DeviceError,
        match=r"start \d+ threads.*queue_depth",
    ):
        drive(engine_of(name, 4), rows_of(ops(WRITE, 1)), [PythonFiles()])
    assert threading.active_count() == before


@EVERY
def test_a_client_that_raises_nonsense_fails_one_operation(name: str) -> None:
    class Odd(PythonFiles):
        def write(self, handle: int, offset: int, data: memoryview) -> None:
            if handle == 2:
                raise OSError("what a client says, without a number")
            super().write(handle, offset, data)

    rows = rows_of(ops(WRITE, 1, 2, 3))
    driven = drive(engine_of(name, 2), rows, [Odd()], stops_on_error=False)
    assert rows.all["outcome"].tolist() == [OK, ERROR, OK]
    assert driven.failure is not None
    assert shows(driven.failure.message, "write … object 2: … what a client says")
