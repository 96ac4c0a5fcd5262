"""Deduplication and compression.

As asked, counted over a whole run's bytes and measured with zstd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from conftest import write_trace
from phrases import shows

from kvreplay.plan.contents import DataSource, check_ratios
from kvreplay.plan.replay_config import Config
from kvreplay.plan.target_safety import SCRATCH
from kvreplay.run.replay import Replay, replay
from kvtrace.core.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20


def made(objects: int, length: int = MIB, **asked: Any) -> list[bytes]:
    data = DataSource(3, **asked)
    result = []
    for obj in range(objects):
        buffer = bytearray(length)
        data.fill(memoryview(buffer), obj, 1, 0)
        result.append(bytes(buffer))
    return result


def blocks(parts: list[bytes], size: int) -> list[bytes]:
    return [part[at : at + size] for part in parts for at in range(0, len(part), size)]


@pytest.mark.parametrize("ratio", [1.25, 2.0, 4.0])
def test_blocks_repeat_as_often_as_asked_and_over_objects(ratio: float) -> None:
    parts = made(24, dedup_ratio=ratio)
    found = blocks(parts, 4096)
    # The pool's 256 blocks come on top of those that occur once, each of which is drawn by itself.
    singles, deviation = len(found) / ratio, (len(found) / ratio * (1 - 1 / ratio)) ** 0.5
    assert abs(len(set(found)) - 256 - singles) < 3 * deviation
    assert set(blocks(parts[:1], 4096)) & set(blocks(parts[1:], 4096))


def test_the_counts_are_those_of_the_bytes() -> None:
    data = DataSource(3, dedup_ratio=3.0)
    parts = []
    for obj in range(8):
        buffer = bytearray(MIB + 100)
        data.fill(memoryview(buffer), obj, 1, 0)
        parts.append(bytes(buffer[:MIB]))
    facts = data.facts().shape
    assert facts is not None
    assert facts.made_blocks == 8 * 256, "whole blocks"
    assert facts.distinct_blocks == len(set(blocks(parts, 4096)))


@pytest.mark.parametrize("ratio", [1.5, 2.0, 4.0, 10.0])
def test_zstd_shrinks_each_block_as_asked_and_no_sector_repeats(ratio: float) -> None:
    parts = made(4, compress_ratio=ratio)
    compressor = zstandard.ZstdCompressor(level=3)
    after = sum(len(compressor.compress(block)) for block in blocks(parts, 4096))
    assert 4 * MIB / after == pytest.approx(ratio, rel=0.05)
    sectors = blocks(parts, 512)
    assert len(set(sectors)) == len(sectors)
    assert bytes(512) not in sectors


def test_without_ratios_the_bytes_are_the_generators() -> None:
    assert DataSource(3).facts().shape is None
    assert made(1, dedup_ratio=1.0, compress_ratio=1.0) == made(1)
    thinned, plain = made(1, compress_ratio=2.0)[0], made(1)[0]
    head = len(thinned[:512].rstrip(b"\0"))
    assert 16 <= head < 512
    assert thinned == b"".join(
        plain[at : at + head] + bytes(512 - head) for at in range(0, MIB, 512)
    )
    both = {"dedup_ratio": 2.0, "compress_ratio": 2.0}
    assert made(2, **both) == made(2, **both)


@pytest.mark.parametrize(
    "asked",
    [{"dedup_ratio": 3.0}, {"compress_ratio": 2.5}, {"dedup_ratio": 2, "compress_ratio": 3}],
)
def test_it_is_the_same_however_it_is_cut(asked: dict[str, Any]) -> None:
    data, whole = DataSource(3, **asked), made(6, 40_000, **asked)[5]
    for at, length in ((0, 1), (511, 3), (4000, 200), (4096, 4096), (5000, 30_000), (39_999, 1)):
        part = bytearray(length)
        data.fill(memoryview(part), 5, 1, at)
        assert bytes(part) == whole[at : at + length]


@pytest.mark.parametrize("level", [1, 3, 9])
def test_repeated_blocks_are_no_shorter_by_themselves(level: int) -> None:
    compressor = zstandard.ZstdCompressor(level=level)
    assert all(
        len(compressor.compress(block)) >= 4096 for block in blocks(made(2, dedup_ratio=4.0), 4096)
    )


def test_a_run_records_and_writes_what_was_asked(tmp_path: Path) -> None:
    rows = [(0, "write", 2, "store", i, 0, MIB, None, None, 0) for i in range(16)]
    trace = write_trace(tmp_path / "t.parquet", rows)
    (tmp_path / "d").mkdir()
    config = Config(
        tiers={"nvme": str(tmp_path / "d")},
        dedup_ratio=2.0,
        compress_ratio=3.0,
        is_buffered=True,
        is_kept=True,
    )
    outcome = replay(Replay(config, trace, tmp_path / "run", []))
    shape = outcome.run.data.shape
    found = blocks([p.read_bytes() for p in (tmp_path / "d" / SCRATCH).rglob("*.kv")], 4096)
    assert (shape.made_blocks, shape.distinct_blocks) == (len(found), len(set(found)))
    assert shape.measured_compress_ratio == pytest.approx(3.0, rel=0.05)
    assert shows(outcome.run.data.note, "compressible")


@pytest.mark.parametrize(
    ("dedup", "compress"), [(0.5, 1), (2000, 1), (1, 0), (1, 50), (float("nan"), 1)]
)
def test_ratios_that_cannot_be_are_refused(dedup: float, compress: float) -> None:
    with pytest.raises(ConfigError, match="ratio"):
        check_ratios(dedup, compress, is_verified=False)
