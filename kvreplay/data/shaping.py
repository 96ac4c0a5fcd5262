"""Data that deduplicates and compresses by a stated ratio, block of 4 KiB by block, as arrays look at it.

Repeated blocks come from a pool that the whole run shares, so that copies lie in different objects and not
only side by side. A compressible block has random heads and zero tails in each of its 512-byte parts, so that
no part is all zeros and, unless asked, no part occurs twice. How far zstd gets is measured, not assumed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvtrace.core.errors import ConfigError
from kvtrace.core.run.run_file import ShapeNote

Fill = Callable[[memoryview, int, int, int], None]
"""Puts data into a buffer: buffer, object id, version, offset."""

BLOCK_BYTES = 4096
SECTOR_BYTES = 512
POOL_BLOCKS = 256
MAX_DEDUP_RATIO, MAX_COMPRESS_RATIO = 1000.0, 20.0
ZSTD_LEVEL = 3
_SAMPLE_BLOCKS = 64
_MIN_HEAD_BYTES = 16
_POOL_OBJECT, _SAMPLE_OBJECT = -1, -2
"""Ids that no trace has, whose data is taken for the pool and for measuring."""


def check_ratios(dedup_ratio: float, compress_ratio: float, *, is_verified: bool) -> None:
    """Raise ConfigError for ratios that cannot be had."""
    if not 1 <= dedup_ratio <= MAX_DEDUP_RATIO:
        raise ConfigError(f"--dedup-ratio {dedup_ratio:g}: give 1 (no block twice) to {MAX_DEDUP_RATIO:g}")
    if not 1 <= compress_ratio <= MAX_COMPRESS_RATIO:
        raise ConfigError(f"--compress-ratio {compress_ratio:g}: give 1 (incompressible) to {MAX_COMPRESS_RATIO:g}")
    if is_verified and dedup_ratio > 1:
        raise ConfigError("--verify marks every block, so none occurs twice; leave --dedup-ratio or --verify out")


@dataclass(slots=True)
class Shaper:
    """Turns unique random data into data of the asked ratios; counts what it makes."""

    dedup_ratio: float
    compress_ratio: float
    head_bytes: int
    measured_compress_ratio: float
    pool: Any
    """uint8, POOL_BLOCKS blocks; shaped already."""
    _lock: threading.Lock
    _used: Any
    _made: int = 0
    _single: int = 0

    @classmethod
    def build(
        cls, dedup_ratio: float, compress_ratio: float, fill: Callable[[memoryview, int, int, int], None]
    ) -> Shaper:
        """Return the shaper for the ratios; `fill` makes unique random data."""
        import numpy as np

        sample = np.empty((_SAMPLE_BLOCKS, BLOCK_BYTES), np.uint8)
        fill(sample.data.cast("B"), _SAMPLE_OBJECT, 0, 0)
        head = _head_bytes(sample, compress_ratio)
        pool = np.empty((POOL_BLOCKS, BLOCK_BYTES), np.uint8)
        fill(pool.data.cast("B"), _POOL_OBJECT, 0, 0)
        for blocks in (sample, pool):
            _thin(blocks, head)
        return cls(
            dedup_ratio, compress_ratio, head, zstd_ratio(sample), pool, threading.Lock(), np.zeros(POOL_BLOCKS, bool)
        )

    def shape(self, buffer: memoryview, piece_seed: int) -> None:
        """Shape the whole blocks of `buffer`, which holds unique data; `piece_seed` chooses which repeat."""
        import numpy as np

        count = len(buffer) // BLOCK_BYTES
        blocks = np.frombuffer(buffer, np.uint8, count * BLOCK_BYTES).reshape(-1, BLOCK_BYTES)
        if self.head_bytes < SECTOR_BYTES:
            _thin(blocks, self.head_bytes)
        copies, source = 0, None
        if self.dedup_ratio > 1 and count:
            rng = np.random.Generator(np.random.SFC64(piece_seed))
            # The fraction that a piece cannot show is left to chance, so that the sum comes out.
            copies = count - min(count, int(count / self.dedup_ratio + rng.random()))
            source = rng.integers(0, POOL_BLOCKS, copies)
            blocks[rng.permutation(count)[:copies]] = self.pool[source]
        with self._lock:
            self._made += count
            self._single += count - copies
            if copies:
                self._used[source] = True

    def facts(self) -> ShapeNote:
        """Return the ratios asked for, and the blocks made so far."""
        with self._lock:
            distinct = self._single + int(self._used.sum())
            return ShapeNote(
                dedup_ratio=self.dedup_ratio,
                compress_ratio=self.compress_ratio,
                block_bytes=BLOCK_BYTES,
                made_blocks=self._made,
                distinct_blocks=distinct,
                measured_dedup_ratio=self._made / distinct if distinct else None,
                random_bytes_per_512=self.head_bytes,
                measured_compress_ratio=self.measured_compress_ratio,
            )


def _thin(blocks: Any, head_bytes: int) -> None:
    blocks.reshape(-1, SECTOR_BYTES)[:, head_bytes:] = 0


def zstd_ratio(blocks: Any) -> float:
    """Return bytes of `blocks` / their size after zstd, each by itself."""
    import zstandard

    compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    after = sum(len(compressor.compress(block.tobytes())) for block in blocks)
    return float(blocks.size / after)


def _head_bytes(sample: Any, ratio: float) -> int:
    """Return the random bytes of each 512 that bring zstd nearest to `ratio` on `sample`."""
    if ratio == 1:
        return SECTOR_BYTES

    def found(head: int) -> float:
        thinned = sample.copy()
        _thin(thinned, head)
        return zstd_ratio(thinned)

    low, high = _MIN_HEAD_BYTES, SECTOR_BYTES
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if found(middle) >= ratio else (low, middle)
    return min((low, high), key=lambda head: abs(found(head) - ratio))
