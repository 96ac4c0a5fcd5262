"""The data of writes: unique in every 512 bytes, incompressible, the same again for the same seed."""

from __future__ import annotations

from itertools import pairwise

import zstandard

from kvreplay.data.generate import PIECE_BYTES, piece_seed
from kvreplay.data.words import Fresh


def content(seed: int, object_id: int, version: int, length: int, offset: int = 0) -> bytes:
    buffer = bytearray(length)
    Fresh.of(seed)(memoryview(buffer), object_id, version, offset)
    return bytes(buffer)


def test_no_512_byte_block_repeats_over_objects_versions_tiers_and_offsets() -> None:
    # Neighbouring ids and versions are where dgen-py repeats itself; -2 is a populated object's version.
    parts = [content(42, obj, version, 4 << 20) for obj in (0, 1, 2) for version in (-2, 0, 1, 2)]
    blocks = [part[i : i + 512] for part in parts for i in range(0, len(part), 512)]
    assert len(blocks) == 12 * 8192
    assert len(set(blocks)) == len(blocks)


def test_it_does_not_compress() -> None:
    data = content(1, 5, 1, 1 << 20)
    assert len(zstandard.ZstdCompressor().compress(data)) >= len(data)


def test_it_is_a_function_of_seed_object_version_and_offset() -> None:
    whole = content(7, 3, 1, 3 * PIECE_BYTES + 4096)
    assert content(7, 3, 1, 3 * PIECE_BYTES + 4096) == whole
    assert content(7, 3, 1, PIECE_BYTES, PIECE_BYTES) == whole[PIECE_BYTES : 2 * PIECE_BYTES]
    assert len({content(*key, 4096) for key in ((7, 3, 1), (8, 3, 1), (7, 4, 1), (7, 3, 2))}) == 4


def test_seeds_of_neighbours_lie_far_apart() -> None:
    seeds = sorted(
        piece_seed(0, obj, version, at << 20) for obj in range(20) for version in range(5) for at in range(5)
    )
    assert min(b - a for a, b in pairwise(seeds)) > 1 << 20
