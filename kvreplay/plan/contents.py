"""Data for writes.

By default the data is incompressible, no 512-byte block occurs twice in a run, and the same seed
gives the same bytes.

dgen-py fills an arena by the run's seed. Each 512-byte sector written is a sector of the arena xor
a key of seed, object, version and offset (`native/data.c`), which costs one pass over the bytes.
With `--dedup-ratio`, blocks of 4 KiB repeat, out of a pool that the whole run shares. With
`--compress-ratio`, each sector has a random head and a tail of zeros, so that none is all zeros.
The compression by zstd is measured, not assumed.

With `--verify`, every 4 KiB block written is stamped with the run's tag, object, offset, version,
and a checksum of the whole block, and every block read is checked.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kvreplay.plan.row_ring import REPLAY
from kvreplay.plan.trace_rows import trace_row
from kvtrace.core import np, zstandard
from kvtrace.core.errors import ConfigError
from kvtrace.core.native.library import call
from kvtrace.core.run.run_file import BadBlock, BlockFault, DataNote, ShapeNote, Verification
from kvtrace.core.schema import OBJECTS
from kvtrace.core.tables import Reader, objects_path, open_table

Fill = Callable[[memoryview, int, int, int], None]
"""Puts data into a buffer: buffer, object id, version, offset."""

ARENA_BYTES = 1 << 20
"""The arena stays in a processor's caches.

Written data does not repeat with its period, because each sector has a key of its own.
"""
BLOCK_BYTES, SECTOR_BYTES = 4096, 512
MAX_DEDUP_RATIO, MAX_COMPRESS_RATIO = 1000.0, 20.0
ZSTD_LEVEL = 3
GENERATOR = (
    "dgen-py: an arena of 1 MiB by the seed, xor a key for each 512 bytes of seed, object, version"
    " and place"
)
_SAMPLE_BLOCKS, _SAMPLE_OBJECT = 64, -2
_MIN_HEAD_BYTES = 16
_MASK = 2**64 - 1


DataStruct = REPLAY.struct("Data")


def check_ratios(dedup_ratio: float, compress_ratio: float, *, is_verified: bool) -> None:
    """Raise ConfigError for ratios that cannot be generated."""
    if not 1 <= dedup_ratio <= MAX_DEDUP_RATIO:
        raise ConfigError(
            f"--dedup-ratio {dedup_ratio:g}: give 1 (no block twice) to {MAX_DEDUP_RATIO:g}"
        )
    if not 1 <= compress_ratio <= MAX_COMPRESS_RATIO:
        raise ConfigError(
            f"--compress-ratio {compress_ratio:g}: give 1 (incompressible) to"
            f" {MAX_COMPRESS_RATIO:g}"
        )
    if is_verified and dedup_ratio > 1:
        raise ConfigError(
            "--verify marks every block, so none occurs twice; leave --dedup-ratio or --verify out"
        )


def _arena(seed: int) -> Any:
    """Return ARENA_BYTES (uint8) of dgen-py's data."""
    # Before the first import: its pool of threads would take the cores that submit.
    os.environ["DGEN_THREADS"] = "1"
    import dgen_py

    arena = np.empty(ARENA_BYTES, np.uint8)
    written = dgen_py.Generator(size=ARENA_BYTES, seed=seed, max_threads=1).fill_chunk(
        arena.data.cast("B")
    )
    if written != ARENA_BYTES:
        raise RuntimeError(f"dgen-py filled {written} of {ARENA_BYTES} bytes")
    return arena


class DataSource:
    """The data of a run."""

    def __init__(
        self,
        seed: int,
        dedup_ratio: float = 1.0,
        compress_ratio: float = 1.0,
        *,
        is_stamped: bool = False,
    ) -> None:
        """Make data by `seed` with the given ratios; each block is stamped if `is_stamped`."""
        self.seed, self._dedup_ratio, self._compress_ratio = seed, dedup_ratio, compress_ratio
        self._arena, self._measured_ratio = _arena(seed), 1.0
        self.struct = DataStruct(
            arena=self._arena.ctypes.data,
            arena_sectors=ARENA_BYTES // SECTOR_BYTES,
            seed=seed & _MASK,
            head_bytes=SECTOR_BYTES,
        )
        """The struct from which C generates data, with its counters."""
        if dedup_ratio > 1 or compress_ratio > 1:
            self.struct.head_bytes, self._measured_ratio = self._head(compress_ratio)
            self.struct.copies_below = min(_MASK, int((1 - 1 / dedup_ratio) * 2.0**64))
        if is_stamped:
            # A random tag for each run: an equal block of an earlier run cannot hide a lost write.
            self.struct.tag, self.struct.is_stamped = int.from_bytes(os.urandom(8), "little"), 1

    def fill(self, buffer: memoryview, object_id: int, version: int, offset: int) -> None:
        """Fill `buffer` with the bytes of (object_id, version) from `offset` on."""
        _make(self.struct, buffer, object_id, version, offset)

    def unstamped(self, buffer: memoryview, object_id: int, version: int, offset: int) -> None:
        """Fill without the stamps of `--verify`, for blocks that belong to no object."""
        plain = DataStruct.from_buffer_copy(self.struct)
        plain.is_stamped = 0
        _make(plain, buffer, object_id, version, offset)

    def _head(self, ratio: float) -> tuple[int, float]:
        """Return the random bytes of each sector for which zstd on a sample comes closest to
        `ratio`, and the ratio on that sample.
        """
        compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        sample = np.empty((_SAMPLE_BLOCKS, BLOCK_BYTES), np.uint8)
        self.fill(sample.data.cast("B"), _SAMPLE_OBJECT, 0, 0)

        def measured_ratio(head: int) -> float:
            thinned = sample.copy()
            thinned.reshape(-1, SECTOR_BYTES)[:, head:] = 0
            after = sum(len(compressor.compress(block.tobytes())) for block in thinned)
            return float(thinned.size / after)

        if ratio == 1:
            return SECTOR_BYTES, measured_ratio(SECTOR_BYTES)
        low, high = _MIN_HEAD_BYTES, SECTOR_BYTES
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if measured_ratio(middle) >= ratio else (low, middle)
        head = min((low, high), key=lambda bound: abs(measured_ratio(bound) - ratio))
        return head, measured_ratio(head)

    def facts(self) -> DataNote:
        """Return the note on the data for run.json."""
        packing = "compressible" if self._compress_ratio > 1 else "incompressible"
        repeats = self._dedup_ratio > 1
        repeating = (
            "blocks repeat"
            if repeats
            else "no 512-byte block occurs twice, except in copies between tiers"
        )
        return DataNote(
            generator=GENERATOR,
            seed=self.seed,
            piece_bytes=None,
            note=f"{packing}; {repeating}",
            shape=self._shape(),
            stamped_block_bytes=BLOCK_BYTES if self.struct.is_stamped else None,
        )

    def _shape(self) -> ShapeNote | None:
        """Return the given ratios, and the blocks made so far; None if no ratio was given."""
        if max(self._dedup_ratio, self._compress_ratio) <= 1:
            return None
        # Blocks are counted only if some repeat.
        total, single = int(self.struct.made_blocks), int(self.struct.single_blocks)
        distinct = single + sum(int(word).bit_count() for word in self.struct.pool_used)
        return ShapeNote(
            dedup_ratio=self._dedup_ratio,
            compress_ratio=self._compress_ratio,
            block_bytes=BLOCK_BYTES,
            made_blocks=total,
            distinct_blocks=distinct,
            measured_dedup_ratio=total / distinct if distinct else None,
            random_bytes_per_512=int(self.struct.head_bytes),
            measured_compress_ratio=self._measured_ratio,
        )


def _make(data: Any, buffer: memoryview, object_id: int, version: int, offset: int) -> None:
    if len(buffer):
        target = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        struct = ctypes.addressof(data)
        call("data_generate", struct, target, len(buffer), offset, object_id, version)


def name_bad_blocks(
    verification: Verification | None, reader: Reader, trace: Path
) -> Verification | None:
    """Return `verification` with the trace's rows and the objects' keys.

    C counted the rows of `reader`, which yields those that were replayed. Keys are those of the
    objects table beside `trace`.
    """
    if verification is None or not verification.located:
        return verification
    keys: dict[int, str] = {}
    table = objects_path(trace)
    if table.is_file():
        object_ids = np.unique([block.object_id for block in verification.located])
        for batch in open_table(table, OBJECTS).batches(["object_id", "key"]):
            is_named = np.isin(batch.column("object_id").to_numpy(), object_ids)
            rows = batch.take(np.flatnonzero(is_named))
            ids, names = rows.column("object_id").to_pylist(), rows.column("key").to_pylist()
            keys |= dict(zip(ids, names, strict=True))
    located = [
        msgspec.structs.replace(
            block, row=trace_row(reader, block.row), key=keys.get(block.object_id)
        )
        for block in verification.located
    ]
    return msgspec.structs.replace(verification, located=located)


def describe(bad: BadBlock) -> str:
    """Return one line on a bad block: its fault, its place, and the block found there instead."""
    name = f"object {bad.object_id}" + (f" ({bad.key})" if bad.key else "")
    place = f"tier {bad.tier}, {name}, offset {bad.offset_bytes}" + (
        f", file {bad.file}" if bad.file else ""
    )
    if bad.found is None:
        reason = {
            BlockFault.DAMAGED: "checksum mismatch: torn or changed",
            BlockFault.FOREIGN: "not written by this run",
        }[bad.fault]
        return f"{bad.fault} block: {place}: {reason}"
    found_block = bad.found
    return (
        f"{bad.fault} block: {place}: version {bad.expected_version} expected, found object"
        f" {found_block['object_id']}, offset {found_block['offset_bytes']}, version {found_block['version']}"
    )
