"""Streams of writes on their way down.

The hints that files have, and what a device's requests name.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import trace_batch, trace_meta, write_trace
from phrases import show_each, shows
from whole import read_table

from kvreplay.engine.native_engine import refusal
from kvreplay.plan.replay_config import Config
from kvreplay.plan.target_safety import SCRATCH
from kvreplay.run.replay import FinishedRun, Replay, replay
from kvreplay.tiers import directio
from kvreplay.tiers.claims import MARKER
from kvtrace.core.schema import OPS, TRACE, arrow_schema
from kvtrace.core.tables import create

IO = 16384
NVME = 2
F_GET_RW_HINT = 1035


def row(op: str, obj: int, length: int = IO, *, tier: int = NVME) -> Any:
    return (0, op, tier, "load", obj, 0, length, None, None, 0)


def placed(path: Path, rows: Sequence[Any], streams: Sequence[int | None]) -> Path:
    """Write a trace whose writes have `streams`."""
    write_trace(path, list(rows))
    batch = trace_batch(list(rows))
    arrays = [*batch.columns, pa.array(streams, pa.int16())]
    with create(path, TRACE, trace_meta(), ("stream",)) as out:
        out.write(pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(TRACE, ("stream",))))
    return path


def run(tmp_path: Path, trace: Path, target: object, **options: Any) -> FinishedRun:
    config = Config(**({"tiers": {"nvme": str(target)}, "io_bytes": IO} | options))
    return replay(Replay(config, trace, tmp_path / "run", [], is_forced=True))


def hint_of(fd: int) -> str | None:
    """Return the write lifetime hint that the inode of `fd` has."""
    (hint,) = struct.unpack("=Q", fcntl.fcntl(fd, F_GET_RW_HINT, bytes(8)))
    return directio.LIFETIMES[hint - 2] if hint >= 2 else None


def hinted(drive: Path) -> list[str | None]:
    """Return the hints of the files that a run left, in order of their names."""
    found = []
    for path in sorted(p for p in (drive / SCRATCH).rglob("*") if p.is_file() and p.name != MARKER):
        fd = os.open(path, os.O_RDONLY)
        try:
            found.append(hint_of(fd))
        finally:
            os.close(fd)
    return found


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    """An empty directory on a filesystem that keeps hints."""
    directory = tmp_path / "drive"
    directory.mkdir()
    if (why := directio.why_no_hint(str(directory))) is not None:
        pytest.skip(f"the temporary directory's filesystem takes no hints: {why}")
    return directory


# Object 3 is read before it is written, so that it is populated first; object 2 changes its stream;
# 5 belongs to none.
ROWS = [
    *(row("write", n) for n in (0, 1, 2)),
    row("read", 3),
    row("write", 3),
    row("write", 4, 5 * IO),
    row("write", 5),
    row("write", 2),
    row("read", 2),
    row("delete", 0),
]
STREAMS = [0, 1, 2, None, 3, 4, None, 1, None, None]
EXPECTED = ["medium", "medium", "extreme", "short", None]
"""Of objects 1 to 5."""


@pytest.mark.star
@pytest.mark.parametrize("depth", [8, 1])
@pytest.mark.parametrize("layout", ["flat", "vllm"])
@pytest.mark.parametrize("engine", ["auto", "threads"])
def test_each_file_has_the_lifetime_that_stands_for_its_stream(
    tmp_path, drive, depth, layout, engine
):
    trace = placed(tmp_path / "t.parquet", ROWS, STREAMS)
    how = {
        "layout": layout,
        "queue_depth": depth,
        "engine": engine,
        "is_kept": True,
        "is_buffered": True,
    }
    finished = run(tmp_path, trace, drive, **how)
    assert finished.error is None
    facts = finished.run.tiers["nvme"]["streams"]
    assert (facts["applied"], facts["streams"], facts["why_not"]) == ("F_SET_RW_HINT", 4, None)
    assert [note for note in finished.run.notes if "by F_SET_RW_HINT" in note]
    found = hinted(drive)
    # vLLM's names are hashes of the objects'.
    assert (sorted(found, key=str) if layout == "vllm" else found) == (
        sorted(EXPECTED, key=str) if layout == "vllm" else EXPECTED
    )


def test_streams_may_be_left_out(tmp_path, drive):
    trace = placed(tmp_path / "t.parquet", ROWS, STREAMS)
    finished = run(
        tmp_path,
        trace,
        drive,
        is_ignoring_streams=True,
        is_kept=True,
        is_buffered=True,
        layout="flat",
    )
    assert finished.error is None
    assert "streams" not in finished.run.tiers["nvme"]
    assert hinted(drive) == [None] * 5


def test_drives_that_share_a_tier_are_all_told(tmp_path, drive):
    trace = placed(tmp_path / "t.parquet", ROWS, STREAMS)
    both = [drive / name for name in ("a", "b")]
    for directory in both:
        directory.mkdir()
    how = {
        "tiers": {"nvme": ",".join(map(str, both))},
        "is_kept": True,
        "is_buffered": True,
        "layout": "flat",
    }
    assert run(tmp_path, trace, None, **how).error is None
    assert sorted((hint for directory in both for hint in hinted(directory)), key=str) == sorted(
        EXPECTED, key=str
    )


def test_a_filesystem_without_hints_is_named(tmp_path, drive, monkeypatch):
    monkeypatch.setattr(directio, "_SHORT", 99)  # a lifetime that no kernel knows
    finished = run(tmp_path, placed(tmp_path / "t.parquet", ROWS, STREAMS), drive, is_buffered=True)
    assert finished.error is None
    said = [note for note in finished.run.notes if "NOT passed on" in note]
    phrase = f"{drive} (tier nvme): … NOT … F_SET_RW_HINT: Invalid argument"
    assert show_each(said, [phrase])


def test_targets_that_take_no_stream_are_named(tmp_path):
    rows = [row("write", 0), row("write", 1, tier=1)]
    trace = placed(tmp_path / "t.parquet", rows, [0, 1])
    how = {"tiers": {"nvme": str(tmp_path / "one.dat"), "cpu": "ram"}, "is_buffered": True}
    notes = run(tmp_path, trace, None, **how).run.notes
    assert any("share one file" in note for note in notes)
    assert shows(notes, "tier cpu: … NOT … the target")


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Path]:
    """A loop device: it offers no write streams."""
    backing = tmp_path / "backing"
    backing.write_bytes(bytes(1 << 24))
    try:
        made = subprocess.run(
            ["losetup", "--find", "--show", backing], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("losetup is not installed")
    if made.returncode:
        pytest.skip(f"no loop device: {made.stderr.strip()}")
    device = Path(made.stdout.strip())
    yield device
    subprocess.run(["losetup", "--detach", device], check=False)


def has_write_streams(device: Path) -> bool:
    return (Path("/sys/block") / device.name / "queue" / "max_write_streams").exists()


@pytest.mark.root
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "write streams"),
        ({"engine": "threads"}, "--engine threads"),
        ({"is_buffered": True}, "buffered"),
    ],
)
def test_a_device_without_write_streams_is_named(tmp_path, loop, options, why):
    trace = placed(tmp_path / "t.parquet", ROWS, STREAMS)
    finished = run(tmp_path, trace, loop, is_destroying=True, **options)
    assert finished.error is None
    assert any("NOT passed on: " in note and why in note for note in finished.run.notes)


@pytest.mark.root
@pytest.mark.parametrize("is_verified", [False, True], ids=["compiled", "Python"])
@pytest.mark.parametrize("length", [IO, 5 * IO])
def test_requests_of_writes_name_their_stream(tmp_path, loop, monkeypatch, is_verified, length):
    """A device with streams is not at hand: one without refuses just those writes that name one."""
    if (why := refusal()) is not None:
        pytest.skip(f"no io_uring: {why}")
    if not has_write_streams(loop):
        pytest.skip("the kernel has no write streams; 6.16 has")
    monkeypatch.setattr(directio, "device_streams", lambda _device: 3)
    rows = [row("write", n, length) for n in range(6)] + [row("read", 5, length)]
    trace = placed(tmp_path / "t.parquet", rows, [0, None, 1, 2, 7, None, None])
    finished = run(
        tmp_path, trace, loop, is_destroying=True, is_verified=is_verified, on_error="continue"
    )
    assert shows(finished.run.tiers["nvme"]["streams"]["numbers"], "1 + n modulo 3")
    outcomes = read_table(tmp_path / "run" / "ops.parquet", OPS)["outcome"].to_pylist()
    assert outcomes == ["error", "ok", "error", "error", "error", "ok", "ok"]
    assert "Invalid argument" in str(finished.error)
