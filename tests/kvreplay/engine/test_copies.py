"""Memory beside drives: threads of their own copy, and take no place of the drives' queue."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rings import (
    ENGINES,
    IO,
    PythonFiles,
    content,
    drive,
    engine_of,
    files_in,
    held,
    memory_of,
    needs_uring,
    rows_of,
    space_in,
)

from kvreplay.engine import native_engine as engines
from kvreplay.engine.job import Driven
from kvreplay.plan.row_ring import OK, READ, WRITE
from kvreplay.tiers.ram import copy_threads

MIB = 1 << 20
MEMORY, DRIVE = 0, 1


def row(tier: int, op: int, obj: int, length: int, offset: int = 0) -> dict[str, Any]:
    return {
        "tier": tier,
        "op": op,
        "object_id": obj,
        "offset_bytes": offset,
        "length_bytes": length,
    }


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("depth", [1, 16])
def test_what_is_copied_is_what_was_written(tmp_path: Path, name: str, depth: int) -> None:
    # Many copies, odd ends, and more objects than the depth; the drive's between them.
    lengths = {0: 131 * IO + 77, 1: 1, 2: 5 * IO, 3: IO + 1, **dict.fromkeys(range(4, 40), 4096)}
    stated = [row(MEMORY, WRITE, obj, length) for obj, length in lengths.items()]
    stated += [row(MEMORY, WRITE, 2, IO, IO + 5)]
    stated += [row(MEMORY, READ, obj, length) for obj, length in lengths.items()]
    for at in range(0, 2 * len(stated), 5):
        stated.insert(at, row(DRIVE, WRITE, 1000 + at, 3 * IO))
    rows = rows_of(stated)
    with memory_of(4 * MIB) as memory, space_in(tmp_path / "space", 8 * MIB) as space:
        driven = drive(engine_of(name, depth), rows, [memory, space])
        assert (driven.failure, driven.completed) == (None, len(stated))
        assert set(rows.all["outcome"].tolist()) == {OK}
        writes = [(i, r) for i, r in enumerate(stated) if r["op"] == WRITE]
        versions = {(r["tier"], r["object_id"], r["offset_bytes"]): i + 1 for i, r in writes}
        for obj, length in lengths.items():
            found, expected = (
                held(memory, obj, length),
                content(obj, versions[MEMORY, obj, 0], length),
            )
            if obj == 2:
                part = content(2, versions[MEMORY, 2, IO + 5], IO, IO + 5)
                expected = expected[: IO + 5] + part + expected[2 * IO + 5 :]
            assert found == expected
        # What was read is copied out, wherever its turn was.
        assert content(39, versions[MEMORY, 39, 0], 4096) in memory._sink.tobytes()
    assert (rows.all["submitted_ns"] <= rows.all["completed_ns"]).all()
    assert sum(use.copying_ns for use in driven.of("copier")) > 0


class Gated(PythonFiles):
    """A tier of which nothing moves before both copies have."""

    def __init__(self, rows: Any) -> None:
        super().__init__()
        self._rows, self.saw = rows, 0

    def read(self, handle: int, offset: int, into: memoryview) -> int:
        for _ in range(30_000):
            if (self._rows.all["outcome"][-2:] == OK).all():
                self.saw += 1
                break
            self._moved("read", handle, offset, 0)
        return len(into)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("depth", [1, 4])
def test_copies_begin_and_end_while_the_queue_is_full(name: str, depth: int) -> None:
    stated = [row(DRIVE, READ, obj + 1, IO) for obj in range(depth)] + [
        row(MEMORY, WRITE, obj, 3 * IO) for obj in (8, 9)
    ]
    rows = rows_of(stated)
    gated = Gated(rows)
    with memory_of(MIB) as memory:
        driven = drive(engine_of(name, depth), rows, [memory, gated])
    assert (driven.failure, driven.completed) == (None, len(stated))
    assert gated.saw == depth


@needs_uring
def test_files_have_places_however_many_copies_are_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "copy_threads", lambda: 4)
    stated = [
        row(tier, WRITE, i, 64 * IO if tier == MEMORY else 4096)
        for i in range(200)
        for tier in (MEMORY, DRIVE)
    ]
    rows = rows_of(stated)
    with memory_of(200 * 64 * IO) as memory, files_in(tmp_path / "d") as files:
        driven = drive(engine_of("uring", 2, 64 * IO), rows, [memory, files], stops_on_error=False)
    assert (driven.failure, driven.completed) == (None, len(stated))


def test_what_copies_is_counted_by_itself() -> None:
    seen: list[int] = []

    def watched(in_flight: Any) -> None:
        seen.append(in_flight())

    stated = [row(MEMORY, op, obj, IO) for op in (WRITE, READ) for obj in range(200)]
    with memory_of(8 * MIB) as memory:
        driven: Driven = drive(engine_of("threads", 2), rows_of(stated), [memory], watched=watched)
    assert seen == [0]
    assert driven.in_use_ns == 0, "of the queue's places"
    assert len(driven.of("copier")) == copy_threads()
    assert all(use.enter_ns == use.making_ns == 0 for use in driven.of("worker"))


def test_processors_that_we_may_not_use_get_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    for processors, threads in ((1, 1), (2, 1), (8, 4), (64, 8)):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _pid, n=processors: set(range(n)))
        assert copy_threads() == threads
