"""What lies in files, extents and memory is what was generated, by any engine, depth and length."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from phrases import shows
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
from kvreplay.plan.row_ring import DELETE, OK, READ, WRITE
from kvreplay.tiers.extents import START_BYTES
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.tier import FileLayout, SeveralDrives, path_function

MIB = 1 << 20
DEPTHS = pytest.mark.parametrize("depth", [32, 3, 1])
LENGTHS = [1, 4096, 5000, IO - 1, IO, IO + 1, 5 * IO, 40 * IO]


def whole(length: int, unit: int = 4096) -> int:
    return -(-length // unit) * unit


@pytest.mark.star
@DEPTHS
@pytest.mark.parametrize(("name", "is_registered"), [("threads", False), *(
    pytest.param("uring", registered, marks=needs_uring) for registered in (True, False)
)])  # fmt: skip
@pytest.mark.parametrize("kind", ["files", "extents"])
def test_what_lies_there_is_what_was_generated(
    tmp_path: Path, kind: str, name: str, depth: int, *, is_registered: bool
) -> None:
    engine = engine_of(name, depth)
    if not is_registered:
        engine.unregistered = "for the test"
    stated: list[dict[str, Any]] = [
        {"op": WRITE, "object_id": i, "length_bytes": n} for i, n in enumerate(LENGTHS)
    ]
    stated += [
        {"op": WRITE, "object_id": 1, "length_bytes": 4096},
        {"op": WRITE, "object_id": 99, "length_bytes": 4096},
    ]
    stated += [
        {"op": DELETE, "object_id": 99},
        {"op": READ, "object_id": 7, "offset_bytes": IO - 1, "length_bytes": 3 * IO},
    ]
    rows = rows_of(stated)
    opened = files_in(tmp_path / "d") if kind == "files" else space_in(tmp_path / "space", 4 * MIB)
    with opened as tier:
        driven = drive(engine, rows, [tier])
        assert (driven.failure, driven.completed) == (None, len(stated))
        assert set(rows.all["outcome"].tolist()) == {OK}
        assert (rows.all["submitted_ns"] >= 0).all()
        assert (rows.all["submitted_ns"] <= rows.all["completed_ns"]).all()
        assert rows.all["completed_ns"].max() <= driven.wall_ns
        versions = {1: len(LENGTHS) + 1}
        for obj, length in enumerate(LENGTHS):
            expected = content(obj, versions.get(obj, obj + 1), whole(length))
            assert (
                Path(tier.path(obj)).read_bytes()
                if kind == "files"
                else held(tier, obj, whole(length))
            ) == expected
        assert (
            not Path(tier.path(99)).exists()
            if kind == "files"
            else tier.space.start(99) == -errno.ENOENT
        )


@pytest.mark.star
@pytest.mark.parametrize("depth", [8, 1])
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("io_bytes", [192 << 10, 4096, 1 << 20])
def test_the_same_data_is_written_however_it_is_cut(
    tmp_path: Path, name: str, io_bytes: int, depth: int
) -> None:
    lengths = [4096, 64 << 10, 100 << 10, 256 << 10, 300 << 10, 2500 << 10]
    stated = [
        {"op": WRITE, "object_id": obj, "length_bytes": length}
        for obj, length in enumerate(lengths)
    ]
    with space_in(tmp_path / "space", 8 * MIB) as tier, memory_of(8 * MIB, io_bytes) as memory:
        driven = drive(engine_of(name, depth, io_bytes), rows_of(stated), [tier])
        assert driven.failure is None
        assert driven.making_ns > 0
        assert driven.writes_generated_in_flight == sum(length > io_bytes for length in lengths)
        drive(engine_of(name, depth, io_bytes), rows_of(stated), [memory])
        for obj, length in enumerate(lengths):
            expected = content(obj, obj + 1, whole(length))
            assert held(tier, obj, whole(length)) == expected
            assert held(memory, obj, length) == expected[:length]


@needs_uring
@pytest.mark.parametrize("kind", ["files", "extents"])
@pytest.mark.parametrize("depth", [4, 64])
def test_data_of_a_burst_is_generated_before_it_is_due(
    tmp_path: Path, kind: str, depth: int
) -> None:
    # Sixty writes of three I/Os each are due at 0.2 s. At depth 4, pairs of reads before them take
    # slots that hold data already, which is generated again when due.
    ms = 1_000_000
    stated = [{"op": WRITE, "object_id": 0, "length_bytes": IO, "due_ns": 0}]
    stated += [
        {"op": READ, "object_id": 0, "length_bytes": IO, "due_ns": (20 + 10 * i) * ms}
        for i in range(5)
        for _ in range(2)
    ]
    burst = range(1, 61)
    stated += [
        {"op": WRITE, "object_id": i, "length_bytes": 3 * IO - 5, "due_ns": 200 * ms} for i in burst
    ]
    place = tmp_path / "tier"
    with files_in(place) if kind == "files" else space_in(place, 40 * MIB) as tier:
        rows = rows_of(stated, is_open_loop=True)
        driven = drive(engine_of("uring", depth), rows, [tier])
        assert driven.failure is None
        assert sum(thread.preparing_ns for thread in driven.threads) > 0
        for obj in burst:
            length = 3 * IO - 5
            written = (
                Path(tier.path(obj)).read_bytes()
                if isinstance(tier, FileTier)
                else held(tier, obj, whole(length))
            )
            assert written[:length] == content(obj, 11 + obj, length)


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("depth", [1, 8])
def test_a_part_of_an_object_is_written_where_it_belongs(
    tmp_path: Path, name: str, depth: int
) -> None:
    stated = [{"op": WRITE, "object_id": 0, "length_bytes": 5 * IO}]
    stated += [{"op": WRITE, "object_id": 0, "offset_bytes": IO + 4096, "length_bytes": 2 * IO}]
    stated += [{"op": WRITE, "object_id": 0, "offset_bytes": 5 * IO, "length_bytes": 3 * IO}]
    first, second, third = (
        content(0, 1, 5 * IO),
        content(0, 2, 2 * IO, IO + 4096),
        content(0, 3, 3 * IO, 5 * IO),
    )
    expected = first[: IO + 4096] + second + first[3 * IO + 4096 :] + third
    with files_in(tmp_path / "d") as files:
        assert drive(engine_of(name, depth), rows_of(stated), [files]).failure is None
        assert Path(files.path(0)).read_bytes() == expected


# vLLM's makes its directories as it writes, which no native code does.
@pytest.mark.star
@pytest.mark.parametrize("depth", [8, 1])
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    "layout", [layout for layout in FileLayout if layout is not FileLayout.VLLM]
)
def test_files_lie_where_python_looks_for_them(
    tmp_path: Path, layout: FileLayout, name: str, depth: int
) -> None:
    objects = [*range(40), 999, 77_777]
    drive_of = np.array([(i // 3) % 2 for i in range(77_778)], np.uint8)
    stated = [
        {"op": WRITE, "object_id": obj, "length_bytes": 4096 + 4096 * (obj % 3)} for obj in objects
    ]
    stated += [{"op": READ, "object_id": obj, "length_bytes": 4096} for obj in objects]
    stated += [{"op": DELETE, "object_id": 999}]
    with files_in(tmp_path / "a", layout=layout) as a, files_in(tmp_path / "b", layout=layout) as b:
        both, of_drive = SeveralDrives("nvme", [a, b], drive_of, "by hand"), (a, b)
        rows = rows_of(stated)
        driven = drive(engine_of(name, depth), rows, [both])
        assert (driven.failure, set(rows.all["outcome"].tolist())) == (None, {OK})
        for at, obj in enumerate(objects):
            kept = Path(of_drive[drive_of[obj]].path(obj))
            assert not Path(of_drive[1 - drive_of[obj]].path(obj)).exists()
            if obj == 999:
                assert not kept.exists()
            else:
                assert kept.read_bytes() == content(obj, at + 1, 4096 + 4096 * (obj % 3))
                assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "layout", [layout for layout in FileLayout if layout is not FileLayout.VLLM]
)
def test_native_code_names_files_of_any_object_as_python_does(
    tmp_path: Path, layout: FileLayout
) -> None:
    objects = [0, 1, 42, 255, 256, 4096, 10**6 + 7, 2**31 - 1]
    with files_in(tmp_path / "d", layout=layout) as files:
        drive(
            engine_of("threads", 2),
            rows_of([{"op": WRITE, "object_id": o, "length_bytes": 1} for o in objects]),
            [files],
        )
        scratch = Path(files._claim.scratch)
        found = {
            "/" + str(path.relative_to(scratch)) for path in scratch.rglob("*") if path.is_file()
        } - {"/KVREPLAY"}
    name = path_function(layout, "")
    assert found == {name(obj) for obj in objects}


def test_pieces_have_the_io_size_from_the_operations_start() -> None:
    tier = PythonFiles()
    drive(
        engine_of("threads", 1, 8192),
        rows_of([{"op": READ, "object_id": 1, "offset_bytes": 5000, "length_bytes": 20_000}]),
        [tier],
    )
    # 5000 .. 25000 padded to 4096 .. 28672: three, though four of the object's multiples of 8192
    # are touched.
    assert [(at, at + length) for _, _, at, length in tier.of("read")] == [
        (4096, 12288), (12288, 20480), (20480, 28672)
    ]  # fmt: skip


@needs_uring
def test_without_locked_memory_it_says_so_and_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return (
                (lambda *_: errno.ENOMEM) if name == "ring_probe_pinning" else getattr(real, name)
            )

    real = engines.library()
    monkeypatch.setattr(engines, "library", Refusing)
    engine = engine_of("uring", 8, MIB)
    facts = engine.facts()
    assert facts["has_registered_buffers"] is False
    assert shows(facts["unregistered_because"], "8 MiB … ulimit -l")
    with files_in(tmp_path / "d") as files:
        rows = rows_of(
            [{"op": op, "object_id": 0, "length_bytes": 3 * MIB} for op in (WRITE, READ)]
        )
        drive(engine, rows, [files])
        assert rows.all["outcome"].tolist() == [OK, OK]
        assert Path(files.path(0)).read_bytes() == content(0, 1, 3 * MIB)


@needs_uring
def test_room_is_given_back_and_taken_again(tmp_path: Path) -> None:
    count, length = 300, 4096
    written = [{"op": WRITE, "object_id": obj, "length_bytes": length} for obj in range(count)]
    gone = [{"op": DELETE, "object_id": obj} for obj in range(count // 2)]
    with space_in(tmp_path / "space", count * length) as tier:
        for stated in (written, written, gone, written[count // 2 :], written):
            rows = rows_of(stated)
            driven = drive(engine_of("uring", 8, length), rows, [tier])
            assert (driven.failure, driven.completed) == (None, len(stated))
        starts = [tier.space.start(obj) for obj in range(count)]
        assert len(set(starts)) == count
        assert all(held(tier, obj, length) == content(obj, obj + 1, length) for obj in range(count))
        assert tier.space.highest_bytes == START_BYTES + count * length, "no more than all together"


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("depth", [1, 8])
def test_who_finds_no_room_waits_for_the_deletes_before_it(
    tmp_path: Path, name: str, depth: int
) -> None:
    # Room for five; each object goes before the next but four is written, though nothing else
    # orders them.
    stated: list[dict[str, Any]] = []
    for obj in range(200):
        stated.append({"op": WRITE, "object_id": obj, "length_bytes": 2 * IO})
        if obj >= 3:
            stated.append({"op": DELETE, "object_id": obj - 3})
    with space_in(tmp_path / "space", 4 * 2 * IO) as tier:
        rows = rows_of(stated)
        driven = drive(engine_of(name, depth), rows, [tier])
        assert (driven.failure, driven.completed) == (None, len(stated))
        for obj in range(197, 200):
            version = next(i for i, row in enumerate(stated) if row["object_id"] == obj) + 1
            assert held(tier, obj, 2 * IO) == content(obj, version, 2 * IO)


def test_data_is_not_written_past_what_was_asked_for(tmp_path: Path) -> None:
    with space_in(tmp_path / "space", MIB) as tier:
        fd = tier.native().drives[0].fd
        os.pwrite(fd, b"\xee" * 64 * 4096, START_BYTES)
        drive(
            engine_of("threads", 2),
            rows_of([{"op": WRITE, "object_id": 1, "length_bytes": 5000}]),
            [tier],
        )
        assert os.pread(fd, 3 * 4096, START_BYTES) == content(1, 1, 8192) + b"\xee" * 4096
