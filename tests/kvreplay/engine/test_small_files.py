"""Operations of one I/O on files of their own, which compiled code does alone: names, order, faults; or a skip."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rings import IO, SEED, content, needs_uring

from kvreplay.data.words import Fresh
from kvreplay.engine import choose
from kvreplay.engine.choose import UringEngine
from kvreplay.engine.job import ERROR, OK, SHORT, SKIPPED, Job, Record
from kvreplay.plan.plan import DELETE, READ, WRITE, Plan, build_plan
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.layout import FileLayout, name_template, path_function
from kvreplay.tiers.sharded import SeveralDirectories
from kvreplay.tiers.tier import Holding, StorageOptions

pytestmark = needs_uring
DEPTHS = pytest.mark.parametrize("depth", [1, 3, 32])


class Compiled(FileTier):
    """Files of which Python opens none."""

    def ring_path(self, object_id: int) -> bytes:
        raise AssertionError(f"Python named the file of object {object_id}")


def opened(
    directory: Path, layout: FileLayout = FileLayout.HASHED, fsync: str = "never", kind: type[FileTier] = Compiled
) -> FileTier:
    directory.mkdir()
    files = kind("nvme", directory, StorageOptions(is_direct=False, layout=layout, fsync=fsync))
    files.expect(Holding([0]))
    files.open(0)
    return files


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[FileTier]:
    """Files through the page cache, so that any filesystem will do."""
    files = opened(tmp_path / "drive")
    yield files
    files.close()


def plan_of(rows: list[tuple[int, int, int]]) -> Plan:
    """Return the plan of (op, object, length) rows on one tier, each a request of its own."""
    op, obj, length = np.array(rows, dtype=np.int64).T.copy()
    count = len(rows)
    none = np.full(count, -1, np.int64)
    names = ("ts_ns", "tier", "offset_bytes")
    return build_plan(
        {"row": np.arange(count), "op": op, "object_id": obj, "length_bytes": length}
        | {"request_id": none, "stage": none.copy()}
        | {name: np.zeros(count, np.int64) for name in names},
        [4096],
        Path("t"),
    )


def drive(tier: Any, rows: list[tuple[int, int, int]], depth: int, *, is_stopping: bool = False) -> tuple[Any, Record]:
    record = Record.empty(len(rows), is_open_loop=False)
    job = Job(plan_of(rows), None, [tier], record, Fresh.of(SEED), is_stopping)
    return UringEngine(depth, IO).drive(job, lambda: None, lambda _done: None), record


@pytest.mark.parametrize("layout", list(FileLayout))
def test_compiled_code_names_files_as_python_does(layout: FileLayout) -> None:
    text, digits = name_template(layout)
    path = path_function(layout, "")
    for number in (0, 1, 42, 255, 4096, 2**31 - 1):
        (hashed,) = (int(path_function(FileLayout.LMCACHE, "")(number).split("@")[3], 16),)
        name = bytearray(text)
        for at, shift, of_hash in digits:
            name[at] = ord(f"{((hashed if of_hash else number) >> shift) & 15:x}")
        assert "/" + name.decode() == path(number)


# vLLM's makes its directories as it writes, which no compiled code does.
@DEPTHS
@pytest.mark.parametrize("layout", [layout for layout in FileLayout if layout is not FileLayout.VLLM])
def test_files_lie_where_they_are_looked_for(tmp_path: Path, layout: FileLayout, depth: int) -> None:
    tiers = [opened(tmp_path / name, layout) for name in "ab"]
    objects = [*range(40), 999, 77_777]
    drive_of = np.array([(i // 3) % 2 for i in range(77_778)], np.uint8)
    both = SeveralDirectories("nvme", tiers, drive_of, "by hand")
    try:
        rows = [(WRITE, obj, 4096 + 4096 * (obj % 3)) for obj in objects] + [(READ, obj, 4096) for obj in objects]
        driven, record = drive(both, [*rows, (DELETE, 999, 4096)], depth)
        assert (driven.failure, set(record.outcome.tolist())) == (None, {OK})
        for obj in objects[:-2]:
            kept = tiers[drive_of[obj]].path(obj)
            assert Path(kept).read_bytes() == content(obj, 1, 4096 + 4096 * (obj % 3))
        assert Path(tiers[drive_of[77_777]].path(77_777)).stat().st_mode & 0o777 == 0o600
        left = [p for t in tiers for p in Path(t.path(0)).parents[0 if "/" not in layout else 1].rglob("*")]
        assert not any(str(p) == t.path(999) for p in left for t in tiers)
    finally:
        for files in tiers:
            files.close()


@DEPTHS
def test_in_any_mixture_order_is_kept_and_what_lies_there_is_what_was_written_last(tier: FileTier, depth: int) -> None:
    rng = random.Random(depth)  # noqa: S311 - a test's choices
    lengths: dict[int, int] = {}
    versions: dict[int, int] = {}
    rows = []
    for _ in range(600):
        obj = rng.randrange(30)
        op = rng.choice((READ, WRITE, DELETE)) if obj in lengths else WRITE
        # A whole I/O, less, and what is padded; always as long, for a shorter write leaves a file's end.
        length = lengths.setdefault(obj, rng.choice((4096, 5000, IO)))
        rows.append((op, obj, length))
        if op == DELETE:
            del lengths[obj]
        elif op == WRITE:
            versions[obj] = versions.get(obj, 0) + 1
    driven, record = drive(tier, rows, depth)
    assert (driven.failure, driven.completed, set(record.outcome.tolist())) == (None, len(rows), {OK})
    submitted, completed = record.submitted_ns.tolist(), record.completed_ns.tolist()
    last: dict[int, tuple[int, int]] = {}
    for at, (op, obj, _) in enumerate(rows):
        assert 0 <= submitted[at] <= completed[at] <= driven.wall_ns
        changed, used = last.get(obj, (0, 0))
        assert submitted[at] >= (changed if op == READ else used)
        ended = max(used, completed[at])
        last[obj] = (changed if op == READ else ended, ended)
    for obj in range(30):
        path = Path(tier.path(obj))
        assert path.exists() == (obj in lengths)
        if obj in lengths:
            assert path.read_bytes() == content(obj, versions[obj], -(-lengths[obj] // 4096) * 4096)


@DEPTHS
def test_each_fault_is_that_operations_alone_however_many(tier: FileTier, depth: int) -> None:
    Path(tier.path(1)).symlink_to("/dev/full")
    Path(tier.path(2)).mkdir()
    Path(tier.path(3)).symlink_to(tier.path(3))
    Path(tier.path(4)).write_bytes(b"short")
    faults = {
        (WRITE, 1): "No space left on device",
        (WRITE, 2): "Is a directory",
        (WRITE, 3): "Too many levels of symbolic links",
        (READ, 4): "only 5 of 8192 bytes came from offset 0",
        (READ, 5): "No such file or directory",
        (DELETE, 6): "No such file or directory",
    }
    # More of them than may be in flight: what a failed one held is given back.
    rows = [(op, obj, 8192) for op, obj in faults for _ in range(40)] + [(WRITE, 9, 8192), (READ, 9, 8192)]
    driven, record = drive(tier, rows, depth)
    assert driven.completed == len(rows)
    outcomes = [SHORT if obj == 4 else ERROR for _, obj in faults for _ in range(40)] + [OK, OK]
    assert record.outcome.tolist() == outcomes
    assert set(record.completed_ns[:-2].tolist()) == {-1}
    assert (record.submitted_ns >= 0).all()
    for (op, obj), text in faults.items():
        driven, _ = drive(tier, [(op, obj, 8192)], depth, is_stopping=True)
        assert driven.failure.message.endswith(f"object {obj}: {text}")


@DEPTHS
@pytest.mark.parametrize("length", [4096, 3 * IO])
def test_a_file_is_synchronized_before_it_is_closed_if_that_is_the_policy(
    tmp_path: Path, depth: int, length: int
) -> None:
    # What /dev/null takes cannot be synchronized, and that is the operation's failure.
    for fsync, outcome in (("never", OK), ("close", ERROR)):
        files = opened(tmp_path / fsync, fsync=fsync, kind=FileTier)
        try:
            Path(files.path(1)).symlink_to("/dev/null")
            driven, record = drive(files, [(WRITE, 0, length), (WRITE, 1, length), (READ, 0, length)], depth)
        finally:
            files.close()
        assert record.outcome.tolist() == [OK, outcome, OK]
        if outcome == ERROR:
            assert driven.failure.message == "write of object 1: Invalid argument"


def test_with_no_descriptor_left_the_open_fails(tier: FileTier) -> None:
    # With one I/O in flight files are opened by plain calls; places of a ring need no descriptor of the process.
    drive(tier, [(WRITE, 0, 4096)], 1)
    record = Record.empty(1, is_open_loop=False)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)

    def exhaust() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))

    try:
        driven = UringEngine(1, IO).drive(
            Job(plan_of([(READ, 0, 4096)]), None, [tier], record, Fresh.of(SEED)), exhaust, lambda _done: None
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert driven.failure.message == "read of object 0: Too many open files"


def test_what_was_not_submitted_when_a_fault_stopped_the_run_was_not_done(
    tier: FileTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A ring with room for fewer operations than may be in flight: the rest of them waits there.
    monkeypatch.setattr(choose, "MAX_ENTRIES", 16)
    for obj in range(64):
        Path(tier.path(obj)).write_bytes(bytes(5 if obj == 3 else 4096))
    # The kernel's own threads unlink, while the short read is back at once.
    rows = [(DELETE if obj < 3 else READ, obj, 4096) for obj in range(64)]
    driven, record = drive(tier, rows, 64, is_stopping=True)
    assert driven.failure.message == "read of object 3: only 5 of 4096 bytes came from offset 0"
    assert set(record.outcome[record.submitted_ns < 0].tolist()) <= {SKIPPED}


@DEPTHS
def test_an_interrupt_leaves_what_was_done(tier: FileTier, depth: int) -> None:
    asked = iter([None] * 3)
    rows = [(WRITE, obj, 4096) for obj in range(200_000)]
    record = Record.empty(len(rows), is_open_loop=False)
    job = Job(plan_of(rows), None, [tier], record, Fresh.of(SEED))
    driven = UringEngine(depth, IO).drive(job, lambda: next(asked, "SIGTERM"), lambda _done: None)
    assert driven.interrupted_by == "SIGTERM"
    assert driven.completed == (record.outcome == OK).sum() < len(rows)
    assert ((record.completed_ns >= 0) == (record.outcome == OK)).all()
    there = [obj for obj in range(driven.completed + 500) if os.path.exists(tier.path(obj))]  # noqa: PTH110 - many
    assert len(there) == driven.completed
