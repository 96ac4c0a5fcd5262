"""One preallocated file.

Where objects lie, what is written before it is read, and whose files are touched.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import random
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import write_trace
from followed import trace_residency
from phrases import pattern, shows
from whole import read_table

from kvreplay.engine.native_engine import refusal
from kvreplay.plan.replay_config import Config
from kvreplay.run.replay import FinishedRun, Replay, replay
from kvreplay.tiers import directio
from kvreplay.tiers.claims import Header, decode_header, encode_header, read_header
from kvreplay.tiers.extents import SPARE_SHARE, START_BYTES, ExtentTier, Space
from kvreplay.tiers.tier import Holding, StorageOptions
from kvtrace.core.errors import ConfigError, DeviceError
from kvtrace.core.schema import OPS

IO = 16384
BLOCK = 4096


def row(op: str, obj: int, length: int = BLOCK, *, offset: int = 0, ts: int = 0) -> Any:
    return (ts, op, 2, "load", obj, offset, length, None, None, 0)


@pytest.fixture(params=["threads", "uring"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param == "uring" and (why := refusal()) is not None:
        pytest.skip(f"no io_uring: {why}")
    return str(request.param)


def run(
    tmp_path: Path, rows: list[Any], target: Path, **options: Any
) -> tuple[FinishedRun, list[dict[str, Any]]]:
    trace = write_trace(tmp_path / "t.parquet", rows)
    config = Config(tiers={"nvme": str(target)}, io_bytes=IO, **options)
    outcome = replay(Replay(config, trace, tmp_path / "run", [], is_forced=True))
    return outcome, read_table(tmp_path / "run" / "ops.parquet", OPS).to_pylist()


def workload(count: int = 60) -> list[Any]:
    """Objects of one to ten I/Os, some read and rewritten, deleted eight later."""
    rng, rows = random.Random(7), []  # noqa: S311 - a test's choices
    for i in range(count):
        length = rng.choice([100, IO, IO + 1, 10 * IO])
        rows += [
            row("write", i, length),
            row("read", i, length),
            row("write", i, length // 2),
            row("read", i, length),
        ]
        rows += [row("delete", i - 8)] if i >= 8 else []
    return rows


def test_space_goes_to_the_lowest_extent_that_is_long_enough() -> None:
    space = Space(10 * BLOCK, BLOCK, BLOCK)
    found = [space.reserve(obj, length) for obj, length in ((0, 2 * BLOCK), (1, 1), (2, BLOCK + 1))]
    assert found == [space.start(obj) for obj in (0, 1, 2)] == [1 * BLOCK, 3 * BLOCK, 4 * BLOCK]
    assert space.release(0) == 0
    assert [space.reserve(3, 3 * BLOCK), space.reserve(4, BLOCK)] == [6 * BLOCK, BLOCK]
    assert space.highest_bytes == 9 * BLOCK
    assert [space.release(0), space.start(99)] == [-errno.ENOENT] * 2
    # Free are block 2 and block 9: two blocks in all, but not side by side.
    assert space.reserve(5, 2 * BLOCK) == -errno.ENOSPC
    assert shows(space.why_no_room(5), "4 objects … 28.7 kB … 41.0 kB")
    assert space.reserve(4, BLOCK) == BLOCK
    assert space.reserve(4, 2 * BLOCK) == -errno.EFBIG
    assert shows(space.why_no_room(4), "object 4")
    space.expect({5: BLOCK, 6: 2 * BLOCK})
    assert [space.reserve(6, 1), space.reserve(5, 1)] == [
        -errno.ENOSPC,
        2 * BLOCK,
    ], "room for all that it will be"


def test_more_objects_than_the_space_had_room_for() -> None:
    space = Space(5000 * BLOCK, BLOCK, BLOCK)
    for obj in range(4000):
        space.reserve(obj, BLOCK)
    for obj in range(0, 4000, 2):
        space.release(obj)
    for obj in range(4000, 6000):
        space.reserve(obj, BLOCK)
    assert sorted(space.start(o) for o in [*range(1, 4000, 2), *range(4000, 6000)]) == [
        BLOCK * (1 + i) for i in range(4000)
    ]


def test_objects_that_grow_are_known_beforehand() -> None:
    import numpy as np

    op = np.array([1, 1, 0, 1, 2, 1])
    ends = np.array([100, 9000, 9000, 50, 0, 20])
    found = trace_residency(np.zeros(6, np.int64), op, np.array([3, 3, 3, 4, 4, 4]), ends, [BLOCK])
    assert found.grown == [{3: 9000}]
    assert found.peak_bytes == [3 * BLOCK + BLOCK]
    assert found.drive_peak_bytes == [[4 * BLOCK]]


def test_an_object_takes_its_whole_length_from_its_first_write() -> None:
    import numpy as np

    # Object 0 has one block, is gone, comes back with one and grows to three; object 1 is read
    # before, then grows.
    op = np.array([1, 2, 1, 1, 2, 0, 1])
    obj = np.array([0, 0, 0, 0, 0, 1, 1])
    ends = np.array([1, 1, 1, 3, 3, 2, 4]) * BLOCK
    found = trace_residency(np.zeros(7, np.int64), op, obj, ends, [BLOCK])
    assert found.grown == [{0: 3 * BLOCK, 1: 4 * BLOCK}]
    assert found.populate_bytes.tolist() == [2 * BLOCK]
    # Really at most 2 + 3 blocks; where space is handed out once, 4 + 3.
    assert (found.peak_bytes, found.drive_peak_bytes) == ([5 * BLOCK], [[7 * BLOCK]])


def test_peaks_are_told_apart_by_drive() -> None:
    import numpy as np

    op, obj = np.array([1, 1, 2, 1]), np.array([0, 1, 0, 2])
    drive_of = np.array([0, 1, 1], np.uint8)
    found = trace_residency(
        np.zeros(4, np.int64), op, obj, np.full(4, BLOCK), [BLOCK], {0: (drive_of, 2)}
    )
    # Objects 1 and 2 lie on the second drive; 0 is gone before 2 comes.
    assert (found.peak_bytes, found.drive_peak_bytes) == ([2 * BLOCK], [[BLOCK, 2 * BLOCK]])


@pytest.mark.star
@pytest.mark.parametrize("depth", [8, 1])
@pytest.mark.parametrize("fsync", ["never", "close"])
def test_every_block_that_is_read_was_written_there(
    tmp_path: Path, engine: str, depth: int, fsync: str
) -> None:
    target = tmp_path / "space.dat"
    rows = [row("read", 0, 3 * IO), *workload()]
    outcome, ops = run(
        tmp_path,
        rows,
        target,
        engine=engine,
        queue_depth=depth,
        fsync=fsync,
        is_buffered=True,
        is_verified=True,
    )
    assert outcome.error is None
    assert {o["outcome"] for o in ops} == {"ok"}
    assert {o["engine"] for o in ops} == {engine}
    assert outcome.run.verification is not None
    assert (outcome.run.verification.corrupt_blocks, outcome.run.verification.unwritten_blocks) == (
        0,
        0,
    )
    assert outcome.run.verification.checked_blocks == sum(
        -(-r[6] // BLOCK) for r in rows if r[1] == "read"
    )
    assert not target.exists(), "our file goes at the end"
    said = "deletes on nvme"
    assert any(note.startswith(said) for note in outcome.run.notes)
    facts = outcome.run.tiers["nvme"]
    assert facts["written_first_bytes"] == facts["size_bytes"] - BLOCK - 3 * IO, (
        "but for what was populated"
    )
    assert facts["highest_bytes"] <= facts["size_bytes"]


def test_an_object_that_grows_keeps_its_place(tmp_path: Path, engine: str) -> None:
    rows = [
        row("write", 0, IO),
        row("write", 1, IO),
        row("write", 0, 3 * IO, offset=IO),
        row("read", 0, 4 * IO),
        row("read", 1, IO),
    ]
    outcome, ops = run(
        tmp_path, rows, tmp_path / "s.dat", engine=engine, is_buffered=True, is_verified=True
    )
    assert [o["outcome"] for o in ops] == ["ok"] * 5
    assert outcome.run.verification is not None
    assert (outcome.run.verification.checked_blocks, outcome.run.verification.corrupt_blocks) == (
        20,
        0,
    )


def test_the_device_reads_what_is_read(tmp_path: Path) -> None:
    """Unwritten extents are answered without the drive; ours are written."""
    rows = [row("write", i, 1 << 20) for i in range(8)] + [
        row("read", i, 1 << 20) for i in range(8)
    ]
    try:
        outcome, _ = run(tmp_path, rows, tmp_path / "s.dat")
    except DeviceError as error:
        pytest.skip(str(error))
    moved = outcome.run.device_io["nvme"]
    if moved.read_bytes is None:
        pytest.skip("the device beneath the temporary directory is not in /proc/diskstats")
    assert moved.read_bytes >= 8 << 20
    assert outcome.run.tiers["nvme"]["direct_io"]["is_confirmed"] is True


UNWRITTEN = 1 << 11
"""Of an extent, in linux/fiemap.h."""


def extents_of(path: Path) -> list[tuple[int, int, int]]:
    """Return (start, length, flags) of a file's extents.

    Skip where the filesystem does not tell.
    """
    header, extent, most = struct.Struct("=QQIIII"), struct.Struct("=QQQQQIIII"), 4096
    answer = bytearray(header.pack(0, 2**64 - 1, 1, 0, most, 0) + bytes(extent.size * most))
    with path.open("rb") as file:
        try:
            # FS_IOC_FIEMAP, after FIEMAP_FLAG_SYNC.
            fcntl.ioctl(file, 0xC020660B, answer)
        except OSError as error:
            pytest.skip(f"no map of extents: {error.strerror}")
    count = header.unpack_from(answer)[3]
    found = [extent.unpack_from(answer, header.size + at * extent.size) for at in range(count)]
    return [(start, length, flags) for start, _, length, _, _, flags, *_ in found]


def written_before(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return a list that takes (start, length) of what is laid out and populated, but not what the
    engine writes.
    """
    seen: list[tuple[int, int]] = []
    write = os.pwritev

    def noting(fd: int, buffers: list[Any], at: int) -> int:
        seen.append((at, len(buffers[0])))
        return write(fd, buffers, at)

    monkeypatch.setattr(os, "pwritev", noting)
    return seen


READ_FIRST = [
    # Read whole, then written on; read in part; an empty part of it is written only; read whole.
    *(
        row("read", 0, 5 * IO + 100),
        row("write", 0, IO, offset=7 * IO),
        row("read", 1, IO, offset=2 * IO),
    ),
    *(row("write", 2, 3 * IO), row("read", 3, 4096), row("read", 2, 3 * IO)),
]


def test_all_space_is_written_once_before_the_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, seen = tmp_path / "s.dat", written_before(monkeypatch)
    options: dict[str, Any] = {
        "engine": "threads",
        "is_buffered": True,
        "is_kept": True,
        "is_verified": True,
    }
    outcome, _ = run(tmp_path, READ_FIRST, target, **options)
    assert outcome.error is None
    before, reached = sorted(seen), BLOCK
    for start, length in before:
        assert start == reached, "nothing is left out, nothing written twice"
        reached += length
    size = outcome.run.tiers["nvme"]["size_bytes"]
    assert reached == size
    populated = sum(-(-length // BLOCK) * BLOCK for length in (5 * IO + 100, 3 * IO, 4096))
    assert outcome.run.tiers["nvme"]["written_first_bytes"] == size - BLOCK - populated
    assert read_header(target) == Header(filled_bytes=size)
    prepared, first = outcome.run.prepared, outcome.run.populated
    assert prepared is not None
    assert first is not None
    assert first.objects == 3
    assert first.wall_ns == 0
    assert 0 < prepared.lay_out_ns < prepared.total_ns
    # What a second run finds written it does not lay out, but its objects it writes.
    seen.clear()
    again, _ = run(tmp_path, READ_FIRST, target, **options)
    assert again.run.tiers["nvme"]["written_first_bytes"] == 0
    assert sum(length for _, length in seen) == populated


def test_no_extent_is_unwritten_when_the_replay_begins(tmp_path: Path, engine: str) -> None:
    target = tmp_path / "s.dat"
    try:
        outcome, _ = run(
            tmp_path, [*READ_FIRST, row("write", 9, 64 * IO)], target, engine=engine, is_kept=True
        )
    except DeviceError as error:
        pytest.skip(str(error))
    found = extents_of(target)
    assert sum(length for _, length, _ in found) >= outcome.run.tiers["nvme"]["size_bytes"]
    assert not [part for part in found if part[2] & UNWRITTEN]


def test_a_target_whose_populating_failed_is_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, write = tmp_path / "s.dat", os.pwritev

    def failing(*_: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwritev", failing)
    options: dict[str, Any] = {"engine": "threads", "is_buffered": True, "is_kept": True}
    with pytest.raises(DeviceError, match=r"s\.dat.*Input/output"):
        run(tmp_path, READ_FIRST, target, **options)
    assert read_header(target) == Header(filled_bytes=0)
    monkeypatch.setattr(os, "pwritev", write)
    outcome, _ = run(tmp_path, READ_FIRST, target, **options)
    assert outcome.error is None
    facts = outcome.run.tiers["nvme"]
    assert facts["written_first_bytes"] > 0
    assert read_header(target) == Header(filled_bytes=facts["size_bytes"])


def test_a_file_is_only_extended_where_nothing_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [errno.EOPNOTSUPP, errno.ENOSPC]

    def refuse(*_: Any) -> int:
        ctypes.set_errno(answers.pop(0))
        return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(fallocate=refuse))
    with (tmp_path / "f").open("wb") as file:
        directio.allocate(file.fileno(), 1 << 20)
        assert (os.fstat(file.fileno()).st_size, os.fstat(file.fileno()).st_blocks) == (1 << 20, 0)
        with pytest.raises(OSError, match="No space left on device"):
            directio.allocate(file.fileno(), 2 << 20)


def test_a_file_without_deletes_is_as_long_as_its_objects(tmp_path: Path) -> None:
    """However much may be in flight.

    Room for writes that are ahead of deletes is for deletes that there are.
    """
    sizes = []
    for rows in (
        [row("write", i, IO) for i in range(4)],
        [*(row("write", i, IO) for i in range(4)), row("delete", 3, IO)],
    ):
        outcome, _ = run(tmp_path, rows, tmp_path / "s.dat", is_buffered=True, queue_depth=1024)
        sizes.append(outcome.run.tiers["nvme"]["size_bytes"])
    assert sizes[0] <= START_BYTES + 4 * IO * (1 + SPARE_SHARE)
    assert sizes[1] == sizes[0] + IO


def test_a_kept_file_is_known_again_and_not_written_twice(tmp_path: Path) -> None:
    target = tmp_path / "s.dat"
    rows = [row("write", i, IO) for i in range(4)]
    outcome, _ = run(tmp_path, rows, target, is_kept=True, is_buffered=True)
    size = outcome.run.tiers["nvme"]["size_bytes"]
    assert target.stat().st_size == size
    assert read_header(target) == Header(filled_bytes=size)
    again, _ = run(tmp_path, rows, target, is_buffered=True)
    assert again.run.tiers["nvme"]["written_first_bytes"] == 0
    assert not target.exists()


def test_a_header_that_was_changed_is_none_of_ours() -> None:
    block = encode_header(Header(filled_bytes=123), BLOCK)
    assert len(block) == BLOCK
    assert decode_header(block) == Header(filled_bytes=123)
    assert decode_header(bytes(BLOCK)) is None
    assert decode_header(block[:1080] + b"\x53\xef" + block[1082:]) is None, (
        "a filesystem was made there"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: p.write_text("thesis"), "kvreplay's"),
        (lambda p: p.symlink_to("/etc/hostname"), r"s.dat"),
        (os.mkfifo, r"s.dat"),
    ],
)
def test_what_is_not_our_file_is_refused_and_stays(tmp_path: Path, make: Any, message: str) -> None:
    target = tmp_path / "s.dat"
    make(target)
    with pytest.raises(DeviceError, match=pattern(message)):
        run(tmp_path, [row("write", 0)], target)
    assert os.path.lexists(target)


def test_a_file_in_a_system_path_or_nowhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="system path"):
        run(tmp_path, [row("write", 0)], Path("/etc/s.dat"))
    with pytest.raises(DeviceError, match="directory"):
        run(tmp_path, [row("write", 0)], tmp_path / "absent" / "s.dat")
    assert not Path("/etc/s.dat").exists()


@pytest.mark.parametrize(
    ("code", "message"),
    [(errno.EINVAL, "O_DIRECT … Invalid argument"), (errno.EACCES, "Permission denied")],
)
def test_a_file_that_cannot_be_opened_so_is_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, message: str
) -> None:
    real = os.open

    def refusing(path: Any, flags: int, *rest: Any) -> int:
        if flags & os.O_DIRECT:
            os.close(real(path, flags & ~os.O_DIRECT, *rest))
            raise OSError(code, os.strerror(code))
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(DeviceError, match=pattern(message)):
        run(tmp_path, [row("write", 0)], tmp_path / "s.dat")
    assert not (tmp_path / "s.dat").exists()


def test_a_second_run_on_the_same_file_is_locked_out(tmp_path: Path) -> None:
    target = tmp_path / "s.dat"
    first = ExtentTier("nvme", target, StorageOptions(is_buffered=True))
    first.expect(Holding([BLOCK]))
    first.open(BLOCK)
    with pytest.raises(DeviceError, match="another kvreplay"):
        run(tmp_path, [row("write", 0)], target, is_buffered=True)
    first.close()
    assert not target.exists()
    run(tmp_path, [row("write", 0)], target, is_buffered=True)


def test_more_than_the_disk_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"1\.13 PB"):
        run(tmp_path, [row("write", 0, 1 << 50)], tmp_path / "s.dat", is_buffered=True)


def test_scattered_space_stops_the_run_with_its_figures(
    tmp_path: Path, engine: str, monkeypatch: Any
) -> None:
    # Somebody else has all but one block of it.
    monkeypatch.setattr(
        Space, "expect", lambda self, _grown: self.reserve(10**6, self._size_bytes - START_BYTES)
    )
    outcome, ops = run(
        tmp_path, [row("write", 0)], tmp_path / "s.dat", engine=engine, is_buffered=True
    )
    assert isinstance(outcome.error, DeviceError)
    assert shows(str(outcome.error), "row 0: write … object 0: no space")
    assert "1 objects" in str(outcome.error)
    assert ops[0]["outcome"] == "error"
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "partial"


def test_options_of_devices_need_devices(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is_discarding"):
        run(tmp_path, [row("write", 0)], tmp_path / "s.dat", is_discarding=True)
    with pytest.raises(ConfigError, match=r"layout=vllm.*tiers"):
        run(tmp_path, [row("write", 0)], tmp_path / "s.dat", layout="vllm")
