"""Planted corruption.

Each kind is found, named and located, wherever it lies; what is whole is found whole.
"""

from __future__ import annotations

import json
import os
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import run_cli, write_trace
from phrases import shows
from rings import (
    ENGINES,
    SEED,
    PlainFiles,
    drive,
    engine_of,
    files_in,
    memory_of,
    rows_of,
    space_in,
)
from whole import read_table

from kvreplay.plan.contents import DataSource, check_ratios
from kvreplay.plan.replay_config import Config
from kvreplay.plan.row_ring import CORRUPT, OK, READ, WRITE
from kvreplay.run.replay import Replay, replay
from kvreplay.tiers import make_tiers as tiers
from kvreplay.tiers.tier import StorageOptions
from kvtrace.core.errors import ConfigError
from kvtrace.core.schema import OPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvreplay.engine.job import Driven
    from kvreplay.run.replay import FinishedRun
    from kvtrace.core.run.run_file import Verification

NVME = 2
BLOCK, LENGTH = 4096, 40_960
BLOCKS = LENGTH // BLOCK


def row(
    op: str, obj: int, length: int = LENGTH, *, ts: int = 0, offset: int = 0, tier: int = NVME
) -> Any:
    return (ts, op, tier, "load", obj, offset, length, None, None, 0)


class Place:
    """A tier whose bytes a test can change between a write and a read."""

    def __init__(self, kind: str, tmp_path: Path, stack: ExitStack) -> None:
        self.kind = kind
        self.tier: Any = stack.enter_context(
            files_in(tmp_path / "d") if kind == "files"
            else files_in(tmp_path / "d", PlainFiles) if kind == "python"
            else space_in(tmp_path / "space", 1 << 20) if kind == "extents"
            else memory_of(1 << 20, is_verified=True)
        )  # fmt: skip

    def read(self, obj: int) -> bytearray:
        if self.kind in ("files", "python"):
            return bytearray(Path(self.tier.path(obj)).read_bytes())
        if self.kind == "extents":
            return bytearray(
                os.pread(self.tier.native().drives[0].fd, LENGTH, self.tier.space.start(obj))
            )
        start = self.tier._space.start(obj)
        return bytearray(self.tier._memory[start : start + LENGTH])

    def write(self, obj: int, data: bytes | bytearray) -> None:
        if self.kind in ("files", "python"):
            Path(self.tier.path(obj)).write_bytes(data)
        elif self.kind == "extents":
            os.pwrite(self.tier.native().drives[0].fd, data, self.tier.space.start(obj))
        else:
            start = self.tier._space.start(obj)
            self.tier._memory[start : start + LENGTH] = np.frombuffer(data, np.uint8)


def flip(at: Place) -> None:
    data = at.read(0)
    data[5 * BLOCK + 777] ^= 1
    at.write(0, data)


def tear(at: Place) -> None:
    data, other = at.read(0), at.read(1)
    data[512:BLOCK] = other[512:BLOCK]
    at.write(0, data)


def swap(at: Place) -> None:
    one, two = at.read(0), at.read(1)
    at.write(0, two)
    at.write(1, one)


def shift(at: Place) -> None:
    data = at.read(0)
    at.write(0, data[BLOCK:] + data[:BLOCK])


def zero(at: Place) -> None:
    at.write(0, bytes(LENGTH))


def lose(at: Place) -> None:
    """Bring back what the first write had brought from its fourth block on."""
    old = bytearray(LENGTH)
    STAMPED.fill(memoryview(old), 0, 1, 0)
    at.write(0, at.read(0)[: 3 * BLOCK] + old[3 * BLOCK :])


STAMPED = DataSource(SEED, is_stamped=True)
STATED = [{"op": WRITE, "object_id": obj, "length_bytes": LENGTH} for obj in (0, 0, 1)]
READS = [
    {"op": READ, "object_id": obj, "length_bytes": LENGTH, "version": 2 + obj} for obj in (0, 1)
]


def checked(
    engine: Any, at: Place, reads: list[dict[str, Any]] | None = None
) -> tuple[Driven, Any, Verification]:
    stated = reads or READS
    rows = rows_of(stated)
    rows.all["version"] = [each["version"] for each in stated]
    driven = drive(engine, rows, [at.tier], data=STAMPED, is_verified=True, stops_on_error=False)
    assert driven.verification is not None
    return driven, rows.all, driven.verification


@pytest.mark.star
@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("kind", ["files", "extents", "memory", "python"])
@pytest.mark.parametrize("depth", [8, 1])
@pytest.mark.parametrize(
    ("sabotage", "by_fault", "first"),
    [
        (flip, {"damaged": 1}, (5 * BLOCK, None)),
        (tear, {"damaged": 1}, (0, None)),
        (swap, {"misplaced": 20}, (0, {"object_id": 1, "offset_bytes": 0, "version": 3})),
        (shift, {"misplaced": 10}, (0, {"object_id": 0, "offset_bytes": BLOCK, "version": 2})),
        (zero, {"foreign": 10}, (0, None)),
        (
            lose,
            {"stale": 7},
            (3 * BLOCK, {"object_id": 0, "offset_bytes": 3 * BLOCK, "version": 1}),
        ),
    ],
)
def test_planted_corruption_is_counted_and_located(
    tmp_path: Path,
    name: str,
    kind: str,
    depth: int,
    sabotage: Any,
    by_fault: dict[str, int],
    first: tuple[int, Any],
) -> None:
    with ExitStack() as stack:
        at = Place(kind, tmp_path, stack)
        engine = engine_of(name, depth)
        assert drive(engine, rows_of(STATED), [at.tier], data=STAMPED).failure is None
        driven, rows, whole = checked(engine, at)
        assert (whole.checked_blocks, whole.corrupt_blocks, whole.unwritten_blocks) == (
            2 * BLOCKS,
            0,
            0,
        )
        assert (driven.failure, rows["outcome"].tolist()) == (None, [OK, OK])
        sabotage(at)
        driven, rows, found = checked(engine, at)
        assert (found.checked_blocks, found.by_fault) == (2 * BLOCKS, by_fault)
        assert found.corrupt_blocks == len(found.located) == sum(by_fault.values())
        bad = min(found.located, key=lambda b: (b.object_id, b.offset_bytes))
        assert (bad.offset_bytes, bad.found) == first
        assert (bad.row, bad.tier, bad.object_id, bad.expected_version) == (0, at.tier.name, 0, 2)
        assert bad.file == (at.tier.path(0) if kind in ("files", "python") else None)
        assert rows["outcome"].tolist() == [CORRUPT, CORRUPT if sabotage is swap else OK]
        assert driven.completed == 2
        assert driven.failure is not None
        assert driven.failure.is_corrupt


@pytest.mark.parametrize("name", ENGINES)
def test_blocks_of_another_run_are_foreign(tmp_path: Path, name: str) -> None:
    with files_in(tmp_path / "d") as files:
        drive(engine_of(name, 4), rows_of(STATED), [files], data=DataSource(SEED, is_stamped=True))
        at = Place.__new__(Place)
        at.kind, at.tier = "files", files
        _, _, found = checked(engine_of(name, 4), at)
    assert found.by_fault == {"foreign": 20}
    assert found.located[0].found is None


@pytest.mark.parametrize("name", ENGINES)
def test_a_corrupt_block_stops_no_run(tmp_path: Path, name: str) -> None:
    with ExitStack() as stack:
        at = Place("extents", tmp_path, stack)
        drive(engine_of(name, 4), rows_of(STATED), [at.tier], data=STAMPED)
        zero(at)
        rows = rows_of(READS)
        rows.all["version"] = 2, 3
        driven = drive(
            engine_of(name, 1), rows, [at.tier], data=STAMPED, is_verified=True, stops_on_error=True
        )
    assert rows.all["outcome"].tolist() == [CORRUPT, OK]
    assert driven.failure is not None
    assert shows(driven.failure.message, "foreign block: … tier space, object 0, offset 0")
    assert shows(driven.failure.message, "9 more blocks")


def test_a_stamp_says_what_a_block_is() -> None:
    made = bytearray(3 * BLOCK)
    STAMPED.fill(memoryview(made), 3, 7, 12_288)
    words = np.frombuffer(made, np.uint64).reshape(3, -1)
    assert words[:, 0].tolist() == [STAMPED.struct.tag] * 3
    assert words[:, 1].tolist() == [3] * 3
    assert words[:, 2].tolist() == [12_288, 16_384, 20_480]
    assert words[:, 3].tolist() == [7] * 3
    plain = bytearray(3 * BLOCK)
    STAMPED.unstamped(memoryview(plain), 3, 7, 12_288)
    assert [
        made[at + 40 : at + BLOCK] == plain[at + 40 : at + BLOCK]
        for at in range(0, 3 * BLOCK, BLOCK)
    ] == [True] * 3
    assert DataSource(SEED, is_stamped=True).struct.tag != STAMPED.struct.tag


@pytest.mark.parametrize("name", ENGINES)
def test_any_changed_bit_is_found(tmp_path: Path, name: str) -> None:
    """One bit of each of many words of a block, its stamp's and checksum's, too.

    And equal changes of two words.
    """
    changes = [[(word, bit)] for word in (*range(8), 100, 255, 511) for bit in (0, 31, 32, 63)]
    changes += [[(7, 63), (8, 63)], [(7, 0), (9, 0)], [(100, 32), (101, 32)]]
    with files_in(tmp_path / "d") as files:
        at = Place.__new__(Place)
        at.kind, at.tier = "files", files
        stated = [
            {"op": WRITE, "object_id": obj, "length_bytes": BLOCK} for obj in range(len(changes))
        ]
        drive(engine_of(name, 8), rows_of(stated), [files], data=STAMPED)
        for obj, change in enumerate(changes):
            words = np.frombuffer(at.read(obj), np.uint64).copy()
            for word, bit in change:
                words[word] ^= np.uint64(1 << bit)
            at.write(obj, words.tobytes())
        reads = [
            {"op": READ, "object_id": o, "length_bytes": BLOCK, "version": o + 1}
            for o in range(len(changes))
        ]
        _, rows, found = checked(engine_of(name, 8), at, reads)
    assert set(rows["outcome"].tolist()) == {CORRUPT}
    assert found.by_fault == {"damaged": len(changes)}


# --- whole runs
# ------------------------------------------------------------------------------------------------------


class Sabotaged(PlainFiles):
    """Files on which `sabotage` acts once, before the first read."""

    def __init__(self, directory: Path, sabotage: Callable[[Sabotaged], None]) -> None:
        super().__init__("nvme", directory, StorageOptions(is_buffered=True))
        self._sabotage, self._is_done = sabotage, False

    def begin(self, op: int, object_id: int) -> int:
        if op == READ and not self._is_done:
            self._is_done = True
            self._sabotage(self)
        return super().begin(op, object_id)


def run(
    tmp_path: Path, rows: list[Any], tier: Any = None, **options: Any
) -> tuple[FinishedRun, list[dict[str, Any]]]:
    trace = write_trace(tmp_path / "t.parquet", rows)
    config = Config(
        tiers={"nvme": str(tmp_path)}, is_verified=True, **({"on_error": "continue"} | options)
    )
    outcome = replay(
        Replay(config, trace, tmp_path / "run", ["kvreplay"], is_forced=True),
        tiers=[None, None, tier],
    )
    return outcome, read_table(tmp_path / "run" / "ops.parquet", OPS).to_pylist()


@pytest.mark.parametrize("engine", ["threads", "auto"])
def test_a_run_says_which_blocks_and_reads_are_corrupt(tmp_path: Path, engine: str) -> None:
    def turn(tier: Sabotaged) -> None:
        data = Path(tier.path(0)).read_bytes()
        Path(tier.path(0)).write_bytes(data[BLOCK:] + data[:BLOCK])

    # Stages, because a read may otherwise overtake the write of another object.
    rows = [
        (ts, op, NVME, "load", obj, 0, LENGTH, 0, stage, 0)
        for ts, (op, obj, stage) in enumerate(
            [("write", 0, 0), ("write", 1, 0), ("read", 0, 1), ("read", 1, 1)]
        )
    ]
    (tmp_path / "d").mkdir()
    outcome, ops = run(
        tmp_path, rows, Sabotaged(tmp_path / "d", turn), queue_depth=1, engine=engine
    )
    found = outcome.run.verification
    assert found is not None
    assert (found.checked_blocks, found.by_fault) == (20, {"misplaced": 10})
    bad = min(found.located, key=lambda b: (b.object_id, b.offset_bytes))
    assert (bad.row, bad.tier, bad.key, bad.expected_version) == (2, "nvme", f"chunk/{0:012x}", 1)
    assert bad.file is not None
    assert bad.file.endswith(f"{0:016x}.kv")
    assert [(op["outcome"], op["bytes"]) for op in ops[2:]] == [("corrupt", None), ("ok", LENGTH)]
    read = next(f for f in outcome.summary.figures if f.op == "read")
    assert (read.corrupt, read.errors) == (1, 1)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["verification"]["by_fault"] == {
        "misplaced": 10
    }


def test_a_truncated_file_is_short(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    tier = Sabotaged(tmp_path / "d", lambda t: os.truncate(t.path(0), 8192))
    outcome, ops = run(tmp_path, [row("write", 0), row("read", 0, ts=1)], tier)
    assert ops[1]["outcome"] == "short"
    assert outcome.summary.errors == 1


def test_a_block_of_an_earlier_run_is_foreign(tmp_path: Path) -> None:
    rows = [row("write", 0), row("read", 0, ts=1)]
    (tmp_path / "d").mkdir()
    kept = tmp_path / "kept"
    run(tmp_path, rows, Sabotaged(tmp_path / "d", lambda t: shutil.copy(t.path(0), kept)))
    tier = Sabotaged(tmp_path / "d", lambda t: shutil.copy(kept, t.path(0)))
    outcome, _ = run(tmp_path, rows, tier)
    assert outcome.run.verification is not None
    assert outcome.run.verification.by_fault == {"foreign": 10}


WHOLE = [
    row("read", 5, 10_000),
    row("write", 0, 10_000),
    row("read", 0, 10_000),
    row("write", 0, 100),
    row("read", 0, 10_000),
    row("write", 1, 4096),
    row("write", 1, 4096, offset=8192),
    row("write", 1, 5000, offset=16_000),
    row("read", 1, 21_000),
    row("delete", 0),
    row("write", 0, 60_000),
    row("read", 0, 60_000),
    row("write", 0, 9000, tier=1),
    row("read", 0, 9000, tier=1),
    row("read", 5, 4000, offset=5000),
    row("read", 7, 3, tier=1),
]


@pytest.mark.star
@pytest.mark.parametrize("engine", ["threads", "auto"])
@pytest.mark.parametrize("target", ["d", "s.dat"])
def test_what_is_whole_is_found_whole_on_storage_and_in_memory(
    tmp_path: Path, engine: str, target: str
) -> None:
    """Populated objects, overwrites, parts written one by one, unaligned ends, deletes and new
    lives.
    """
    if target == "d":
        (tmp_path / target).mkdir()
    trace = write_trace(tmp_path / "t.parquet", [(i, *r[1:]) for i, r in enumerate(WHOLE)])
    tiers = {"nvme": str(tmp_path / target), "cpu": "ram"}
    outcome = replay(
        Replay(
            Config(tiers=tiers, is_verified=True, is_buffered=True, io_bytes=8192, engine=engine),
            trace,
            tmp_path / "run",
            [],
        )
    )
    found = outcome.run.verification
    assert outcome.error is None
    assert found is not None
    # Object 1 is read over 6 blocks, of which the trace never wrote the second: it was populated.
    assert (found.corrupt_blocks, found.unwritten_blocks) == (0, 0)
    assert found.checked_blocks == 3 + 3 + 3 + 6 + 15 + 3 + 2 + 1


@pytest.mark.parametrize("appends", [100, 256, 1500])
def test_every_block_of_a_read_is_checked_over_many_writes(tmp_path: Path, appends: int) -> None:
    rows = [row("write", 0, BLOCK, offset=at * BLOCK, ts=at) for at in range(appends)]
    trace = write_trace(
        tmp_path / "t.parquet", [*rows, row("read", 0, appends * BLOCK, ts=appends)]
    )
    (tmp_path / "d").mkdir()
    config = Config(tiers={"nvme": str(tmp_path / "d")}, is_verified=True, is_buffered=True)
    found = replay(Replay(config, trace, tmp_path / "run", [])).run.verification
    assert found is not None
    assert (found.checked_blocks, found.corrupt_blocks, found.unwritten_blocks) == (appends, 0, 0)


def test_the_command_says_that_nothing_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    trace = write_trace(tmp_path / "t.parquet", [row("write", 0), row("read", 0, ts=1)])
    done = run_cli(
        "kvreplay",
        "run",
        trace,
        "--tier",
        f"nvme={tmp_path / 'd'}",
        "--buffered",
        "--verify",
        "-o",
        tmp_path / "run",
    )
    assert shows(done.stdout, "10 blocks … 4 KiB")
    with pytest.raises(ConfigError, match="--verify"):
        check_ratios(2, 1, is_verified=True)


@pytest.mark.parametrize("engine", ["threads", "auto"])
def test_every_mismatch_of_a_run_is_listed_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    class Turned(PlainFiles):
        def write(self, handle: int, offset: int, data: memoryview) -> None:
            super().write(handle, offset, memoryview(bytes(data[BLOCK:]) + bytes(data[:BLOCK])))

    monkeypatch.setattr(tiers, "FileTier", Turned)
    (tmp_path / "d").mkdir()
    # Objects of ten blocks in I/Os of two: what follows a bad I/O is read and checked as well.
    rows = [row(op, i, ts=ts) for ts, op in enumerate(("write", "read")) for i in range(5)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    how = [
        "--tier",
        f"nvme={tmp_path / 'd'}",
        "--buffered",
        "--verify",
        "--io-bytes",
        "8KiB",
        "--engine",
        engine,
    ]
    done = run_cli("kvreplay", "run", trace, *how, "-o", tmp_path / "run", check=False)
    assert done.returncode == 6
    assert shows(done.stdout.splitlines()[0], "; CORRUPT: 50 … 50 blocks")
    assert done.stdout.count("misplaced block: tier nvme") == 50
    kept = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (kept["status"], len(kept["verification"]["located"])) == ("failed operations", 50)
    assert kept["verification"]["checked_blocks"] == 50
    ops = read_table(tmp_path / "run" / "ops.parquet", OPS).to_pylist()
    assert [o["outcome"] for o in ops] == ["ok"] * 5 + ["corrupt"] * 5
