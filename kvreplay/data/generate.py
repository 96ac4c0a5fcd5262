"""Data for writes: incompressible, no 512-byte block twice in a run, and the same bytes for the same seed.

Compiled code makes it (`words`), or dgen-py where that is asked for. dgen-py seeds the blocks of an object with seed +
MiB index, so near seeds repeat each other's data. Each piece of an object therefore has a generator of its own there,
seeded with a hash of what it stands for.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b

from kvreplay.data.shaping import BLOCK_BYTES, Fill, Shaper
from kvreplay.data.verify import Stamper, new_tag
from kvreplay.data.words import Fresh
from kvtrace.core.run.run_file import DataNote

PIECE_BYTES = 256 << 10
"""What one seed of dgen-py stands for: for less, starting it costs more than it makes; 1 MiB is the most it may be."""


class Maker(StrEnum):
    """What `--data` takes: what makes the data of writes."""

    COMPILED = "compiled"
    DGEN = "dgen-py"


_GENERATORS = {
    Maker.COMPILED: "compiled: SplitMix64 in counter mode, keyed by seed, object and version",
    Maker.DGEN: "dgen-py",
}
"""In run.json."""


@dataclass(frozen=True, slots=True)
class DataSource:
    """The data of a run: the function that fills buffers, and its dedup and compress ratios and stamps, if any."""

    seed: int
    maker: Maker
    fill: Fill
    unstamped: Fill
    """The same without the marks of `--verify`, for what belongs to no object."""
    shaper: Shaper | None
    stamper: Stamper | None

    @classmethod
    def of(
        cls,
        seed: int,
        dedup_ratio: float = 1.0,
        compress_ratio: float = 1.0,
        *,
        is_stamped: bool = False,
        maker: Maker = Maker.COMPILED,
    ) -> DataSource:
        """Return the data of `seed` by `maker`, of the ratios asked for, each block stamped if `is_stamped`."""
        fill: Fill = Fresh.of(seed) if maker is Maker.COMPILED else dgen_filler(seed)
        shaper = stamper = None
        if dedup_ratio > 1 or compress_ratio > 1:
            shaper = Shaper.build(dedup_ratio, compress_ratio, fill)
            fill = _shaped(seed, fill, shaper)
        unstamped = fill
        if is_stamped:
            stamper = Stamper(new_tag())
            fill = _stamped(fill, stamper)
        return cls(seed, maker, fill, unstamped, shaper, stamper)

    def facts(self) -> DataNote:
        """Return what run.json says of the data."""
        shape = None if self.shaper is None else self.shaper.facts()
        packing = "compressible" if shape is not None and shape.compress_ratio > 1 else "incompressible"
        repeats = shape is not None and shape.dedup_ratio > 1
        repeating = "blocks repeat" if repeats else "no 512-byte block twice, but in copies between tiers"
        return DataNote(
            generator=_GENERATORS[self.maker],
            seed=self.seed,
            piece_bytes=PIECE_BYTES if self.maker is Maker.DGEN else None,
            note=f"{packing}; {repeating}",
            shape=shape,
            stamped_block_bytes=BLOCK_BYTES if self.stamper else None,
        )


def piece_seed(seed: int, object_id: int, version: int, offset: int) -> int:
    """Return the 64-bit generator seed of the piece at `offset` of version `version` of an object."""
    text = struct.pack("<Qqqq", seed, object_id, version, offset)
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def pieces(buffer: memoryview, offset: int) -> Iterable[tuple[memoryview, int]]:
    """Return the pieces of `buffer`, which holds an object's bytes from `offset` on, and where each begins."""
    if offset % PIECE_BYTES + len(buffer) <= PIECE_BYTES:
        return ((buffer, offset),)
    return _cut(buffer, offset)


def _cut(buffer: memoryview, offset: int) -> Iterator[tuple[memoryview, int]]:
    at = 0
    while at < len(buffer):
        end = at + PIECE_BYTES - (offset + at) % PIECE_BYTES
        yield buffer[at:end], offset + at
        at = end


def dgen_filler(seed: int) -> Fill:
    """Return a function that, by dgen-py, fills a buffer with the bytes of (object_id, version) from `offset` on.

    A piece begins at each multiple of its size, and where the buffer does.
    """
    # Before the first import: its pool of threads would take the cores that submit.
    os.environ["DGEN_THREADS"] = "1"
    import dgen_py

    generator = dgen_py.Generator

    def fill(buffer: memoryview, object_id: int, version: int, offset: int) -> None:
        for part, start in pieces(buffer, offset):
            piece = piece_seed(seed, object_id, version, start)
            written = generator(size=len(part), seed=piece, max_threads=1).fill_chunk(part)
            if written != len(part):
                raise RuntimeError(f"dgen-py filled {written} of {len(part)} bytes")

    return fill


def _shaped(seed: int, fill: Fill, shaper: Shaper) -> Fill:
    def shaped(buffer: memoryview, object_id: int, version: int, offset: int) -> None:
        fill(buffer, object_id, version, offset)
        for part, start in pieces(buffer, offset):
            shaper.shape(part, piece_seed(~seed & (2**64 - 1), object_id, version, start))

    return shaped


def _stamped(fill: Fill, stamper: Stamper) -> Fill:
    def stamped(buffer: memoryview, object_id: int, version: int, offset: int) -> None:
        fill(buffer, object_id, version, offset)
        stamper.stamp(buffer, object_id, version, offset)

    return stamped
