"""Planted corruption: each kind is found, named and located; what is whole is found whole."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import run_cli, write_trace

from kvreplay.config.config import Config
from kvreplay.data.expect import expect
from kvreplay.data.shaping import check_ratios
from kvreplay.data.verify import Stamper, checksums
from kvreplay.plan.window import compile_window
from kvreplay.run.finished import FinishedRun
from kvreplay.run.run import replay
from kvreplay.tiers.files import FileTier
from kvreplay.tiers.tier import StorageOptions
from kvtrace.core.errors import ConfigError
from kvtrace.core.limit import Limit
from kvtrace.core.schema import OPS, TRACE
from kvtrace.core.tables import open_table, read_table

if TYPE_CHECKING:
    from collections.abc import Callable

NVME = 2


def row(op: str, obj: int, length: int = 40_960, *, ts: int = 0, offset: int = 0, tier: int = NVME) -> Any:
    return (ts, op, tier, "load", obj, offset, length, None, None, 0)


class Sabotaged(FileTier):
    """Files on which `sabotage` acts once, before the first read."""

    def __init__(self, directory: Path, sabotage: Callable[[Sabotaged], None]) -> None:
        super().__init__("nvme", directory, StorageOptions(is_direct=False))
        self._sabotage, self._is_done = sabotage, False

    def begin(self, op: int, object_id: int) -> int:
        self._act(op)
        return super().begin(op, object_id)

    def ring_flags(self, op: int) -> int:
        self._act(op)
        return super().ring_flags(op)

    def _act(self, op: int) -> None:
        if op == 0 and not self._is_done:
            self._is_done = True
            self._sabotage(self)


def run(tmp_path: Path, rows: list[Any], tier: Any = None, **options: Any) -> tuple[FinishedRun, list[dict[str, Any]]]:
    trace = write_trace(tmp_path / "t.parquet", rows)
    config = Config(
        tiers={"nvme": str(tmp_path)}, is_verified=True, **({"on_error": "continue", "engine": "threads"} | options)
    )
    outcome = replay(config, trace, tmp_path / "run", ["kvreplay"], tiers=[None, None, tier], is_forced=True)
    return outcome, read_table(tmp_path / "run" / "ops.parquet", OPS).to_pylist()


def flip(tier: Sabotaged) -> None:
    with Path(tier.path(0)).open("r+b") as file:
        file.seek(5 * 4096 + 777)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def swap(tier: Sabotaged) -> None:
    one, two = Path(tier.path(0)), Path(tier.path(1))
    held = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(held)


def shift(tier: Sabotaged) -> None:
    data = Path(tier.path(0)).read_bytes()
    Path(tier.path(0)).write_bytes(data[4096:] + data[:4096])


def zero(tier: Sabotaged) -> None:
    Path(tier.path(0)).write_bytes(bytes(40_960))


def tear(tier: Sabotaged) -> None:
    data = bytearray(Path(tier.path(0)).read_bytes())
    data[512:4096] = Path(tier.path(1)).read_bytes()[512:4096]
    Path(tier.path(0)).write_bytes(data)


@pytest.mark.parametrize(
    ("sabotage", "by_fault", "first"),
    [
        (flip, {"damaged": 1}, (0, 5 * 4096, None)),
        (tear, {"damaged": 1}, (0, 0, None)),
        (swap, {"misplaced": 20}, (0, 0, {"object_id": 1, "offset_bytes": 0, "version": 1})),
        (shift, {"misplaced": 10}, (0, 0, {"object_id": 0, "offset_bytes": 4096, "version": 1})),
        (zero, {"foreign": 10}, (0, 0, None)),
    ],
)
def test_planted_corruption_is_counted_and_located(
    tmp_path: Path, sabotage: Any, by_fault: dict[str, int], first: tuple[int, int, Any]
) -> None:
    # Stages, because a read may otherwise overtake the write of another object.
    rows = [
        (ts, op, NVME, "load", obj, 0, 40_960, 0, stage, 0)
        for ts, (op, obj, stage) in enumerate([("write", 0, 0), ("write", 1, 0), ("read", 0, 1), ("read", 1, 1)])
    ]
    (tmp_path / "d").mkdir()
    tier = Sabotaged(tmp_path / "d", sabotage)
    outcome, ops = run(tmp_path, rows, tier, queue_depth=1)
    found = outcome.verification
    assert found is not None
    assert (found.checked_blocks, found.by_fault) == (20, by_fault)
    assert found.corrupt_blocks == sum(by_fault.values())
    bad = min(found.located, key=lambda b: (b.object_id, b.offset_bytes))
    assert (bad.object_id, bad.offset_bytes, bad.found) == first
    assert (bad.row, bad.tier, bad.key, bad.expected_version) == (2, "nvme", f"chunk/{0:012x}", 1)
    assert bad.file is not None
    assert bad.file.endswith(f"{0:016x}.kv")
    assert ops[2]["outcome"] == "corrupt"
    assert ops[2]["bytes"] is None
    assert ops[3]["outcome"] == ("corrupt" if sabotage is swap else "ok")
    read = next(f for f in outcome.summary.figures if f.op == "read")
    assert (read.corrupt, read.errors) == ((2, 2) if sabotage is swap else (1, 1))
    assert json.loads((tmp_path / "run" / "run.json").read_text())["verification"]["by_fault"] == by_fault


@pytest.mark.parametrize("engine", ["threads", "auto"])
@pytest.mark.parametrize("tier", ["nvme", "cpu"])
def test_every_engine_and_memory_find_what_was_written_wrongly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, tier: str
) -> None:
    stamp = Stamper.stamp

    def wrong(self: Stamper, buffer: memoryview, object_id: int, version: int, offset: int) -> None:
        # Object 1 gets object 3's blocks, object 2 a bit too many, object 4 an old version.
        stamp(self, buffer, {1: 3}.get(object_id, object_id), {4: 0}.get(object_id, version), offset)
        if object_id == 2 and offset == 0:
            buffer[6000] ^= 4

    monkeypatch.setattr(Stamper, "stamp", wrong)
    (tmp_path / "d").mkdir()
    index = {"nvme": 2, "cpu": 1}[tier]
    rows = [row("write", i, tier=index) for i in range(5)]
    rows += [row("read", i, ts=1, tier=index) for i in range(5)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    config = Config(
        tiers={tier: str(tmp_path / "d") if tier == "nvme" else "ram"},
        is_verified=True,
        engine=engine,
        is_buffered=True,
        io_bytes=65_536,
        on_error="continue",
    )
    found = replay(config, trace, tmp_path / "run", []).verification
    assert found is not None
    assert (found.checked_blocks, found.by_fault) == (50, {"damaged": 1, "misplaced": 10, "stale": 10})
    assert {(b.object_id, b.fault) for b in found.located} == {(1, "misplaced"), (2, "damaged"), (4, "stale")}
    assert [b.offset_bytes for b in found.located if b.object_id == 2] == [4096]


def test_a_version_kept_from_before_is_stale(tmp_path: Path) -> None:
    class Lazy(FileTier):
        """Loses the second write of object 0 from its fourth block on."""

        writes = 0

        def write(self, handle: int, offset: int, data: memoryview) -> None:
            self.writes += 1
            super().write(handle, offset, data if self.writes == 1 else data[: 3 * 4096])

    (tmp_path / "d").mkdir()
    rows = [row("write", 0), row("write", 0, ts=1), row("read", 0, ts=2)]
    outcome, _ = run(tmp_path, rows, Lazy("nvme", tmp_path / "d", StorageOptions(is_direct=False)), engine="threads")
    found = outcome.verification
    assert found is not None
    assert found.by_fault == {"stale": 7}
    assert [b.offset_bytes for b in found.located] == [i * 4096 for i in range(3, 10)]
    assert (found.located[0].expected_version, found.located[0].found) == (
        2,
        {"object_id": 0, "offset_bytes": 3 * 4096, "version": 1},
    )


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
    assert outcome.verification is not None
    assert outcome.verification.by_fault == {"foreign": 10}


def test_what_is_whole_is_found_whole_on_files_and_in_memory(tmp_path: Path) -> None:
    """Populated objects, overwrites, parts written one by one, unaligned ends, demotions, deletes and new lives."""
    rows = [
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
    (tmp_path / "d").mkdir()
    trace = write_trace(tmp_path / "t.parquet", [(i, *r[1:]) for i, r in enumerate(rows)])
    config = Config(
        tiers={"nvme": str(tmp_path / "d"), "cpu": "ram"}, is_verified=True, is_buffered=True, io_bytes=8192
    )
    outcome = replay(config, trace, tmp_path / "run", [])
    found = outcome.verification
    assert outcome.error is None
    assert found is not None
    # Object 1 is read over 6 blocks, of which the trace never wrote the second: it was populated.
    assert (found.corrupt_blocks, found.unwritten_blocks) == (0, 0)
    assert found.checked_blocks == 3 + 3 + 3 + 6 + 15 + 3 + 2 + 1


def test_only_reads_that_see_several_writes_get_ranges(tmp_path: Path) -> None:
    rows = [
        row("write", 0, 8192),
        row("read", 0, 8192),
        row("write", 0, 4096, offset=4096),
        row("read", 0, 8192),
        row("read", 0, 4096, offset=4096),
        row("write", 1),
        row("read", 1),
        row("read", 2, 4096),
    ]
    trace = write_trace(tmp_path / "t.parquet", rows)
    window = compile_window(open_table(trace, TRACE), trace, {NVME: 4096}, Limit())
    found = expect(window.plan, window.residency, [1, 1, 4096])
    assert {r: v for r, v in found.ranges.items() if len(v) > 1} == {3: [(0, 1, 1), (1, 2, 2)]}
    assert found.versions(4, 4096, 1)[0].tolist() == [2]
    assert found.versions(3, 0, 2)[0].tolist() == [1, 2]
    assert (found.version[6], found.version[7]) == (1, 0)


def test_any_changed_bit_changes_the_checksum() -> None:
    data = bytearray(np.random.Generator(np.random.SFC64(1)).bytes(4096))
    Stamper(99).stamp(memoryview(data), 3, -2, 12_288)
    words = np.frombuffer(data, np.uint64).reshape(1, -1).copy()
    assert words[0, [0, 1, 2]].tolist() == [99, 3, 12_288]
    before = checksums(words)[0]
    for at in (0, 100, 511):
        for bit in (0, 31, 32, 63):
            words[0, at] ^= np.uint64(1 << bit)
            assert checksums(words)[0] != before
            words[0, at] ^= np.uint64(1 << bit)
    # Equal changes in two words do not cancel.
    words[0, 7] ^= np.uint64(1 << 63)
    words[0, 8] ^= np.uint64(1 << 63)
    assert checksums(words)[0] != before


def test_the_command_says_what_is_corrupt_and_fails(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    trace = write_trace(tmp_path / "t.parquet", [row("write", 0), row("read", 0, ts=1)])
    done = run_cli(
        "kvreplay", "run", trace, "--tier", f"nvme={tmp_path / 'd'}", "--buffered", "--verify", "-o", tmp_path / "run"
    )
    assert "verified 10 blocks of 4 KiB: none corrupt" in done.stdout
    with pytest.raises(ConfigError, match="--verify marks every block"):
        check_ratios(2, 1, is_verified=True)


@pytest.mark.parametrize("engine", ["threads", "auto"])
def test_every_mismatch_of_a_run_is_listed_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    stamp = Stamper.stamp

    def wrong(self: Stamper, buffer: memoryview, object_id: int, version: int, offset: int) -> None:
        stamp(self, buffer, object_id + 100, version, offset)

    monkeypatch.setattr(Stamper, "stamp", wrong)
    (tmp_path / "d").mkdir()
    # Objects of ten blocks in I/Os of two: what follows a bad I/O is read and checked as well.
    rows = [row(op, i, ts=ts) for ts, op in enumerate(("write", "read")) for i in range(5)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    how = ["--tier", f"nvme={tmp_path / 'd'}", "--buffered", "--verify", "--io-bytes", "8KiB", "--engine", engine]
    done = run_cli("kvreplay", "run", trace, *how, "-o", tmp_path / "run", check=False)
    assert done.returncode == 4
    assert "; CORRUPT: 50 of 50 blocks" in done.stdout.splitlines()[0]
    assert done.stdout.count("misplaced block: tier nvme") == 50
    kept = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (kept["status"], len(kept["verification"]["located"])) == ("failed operations", 50)
    assert kept["verification"]["checked_blocks"] == 50
    ops = read_table(tmp_path / "run" / "ops.parquet", OPS).to_pylist()
    assert [o["outcome"] for o in ops] == ["ok"] * 5 + ["corrupt"] * 5
