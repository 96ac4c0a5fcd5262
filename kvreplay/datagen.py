"""Data for writes: incompressible, no 512-byte block twice in a run, the same again for the same seed.

dgen-py seeds the blocks of an object with seed + MiB index, so near seeds repeat each other's data. Each
piece of up to 1 MiB therefore has a generator of its own, seeded with a hash of what it stands for.
"""

from __future__ import annotations

import os
import struct
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

PIECE_BYTES = 1 << 20
"""dgen-py's own block: the most that one seed may stand for."""


def piece_seed(seed: int, object_id: int, version: int, offset: int) -> int:
    """Return the 64-bit generator seed of the piece at `offset` of version `version` of an object."""
    text = struct.pack("<Qqqq", seed, object_id, version, offset)
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


def filler(seed: int) -> Callable[[memoryview, int, int, int], None]:
    """Return a function that fills a buffer with the bytes of (object_id, version) from `offset` on.

    The content depends on where buffers start, so on the run's I/O size too, which run.json records.
    """
    # Before the first import: its pool of threads would take the cores that submit.
    os.environ["DGEN_THREADS"] = "1"
    import dgen_py

    generator = dgen_py.Generator

    def fill(buffer: memoryview, object_id: int, version: int, offset: int) -> None:
        for start in range(0, len(buffer), PIECE_BYTES):
            part = buffer[start : start + PIECE_BYTES]
            piece = piece_seed(seed, object_id, version, offset + start)
            written = generator(size=len(part), seed=piece, max_threads=1).fill_chunk(part)
            if written != len(part):
                raise RuntimeError(f"dgen-py filled {written} of {len(part)} bytes")

    return fill
