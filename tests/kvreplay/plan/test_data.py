"""The data of writes.

Exactly as defined, however it is cut; no 512 bytes twice in a run; incompressible.
"""

from __future__ import annotations

import math
import random
import zlib
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from kvreplay.plan.contents import ARENA_BYTES, SECTOR_BYTES, DataSource

MASK = 2**64 - 1
STEP = 0x9E3779B97F4A7C15
SECTORS = ARENA_BYTES // SECTOR_BYTES
PROMISED_SECTORS = 10**8
"""That many blocks of 512 bytes are distinct: 51 GB."""
SOURCES: dict[int, DataSource] = {}


def source(seed: int) -> DataSource:
    if seed not in SOURCES:
        SOURCES[seed] = DataSource(seed)
    return SOURCES[seed]


def content(
    seed: int, obj: int, version: int, length: int, offset: int = 0, skew: int = 0
) -> bytes:
    """Return what is made, in a buffer that begins `skew` bytes after a multiple of 8."""
    memory = np.zeros(length // 8 + 4, np.uint64).view(np.uint8)
    source(seed).fill(memory.data[skew : skew + length], obj, version, offset)
    assert not memory[:skew].any()
    assert not memory[skew + length :].any()
    return memory[skew : skew + length].tobytes()


def mixed(number: Any) -> Any:
    """Return SplitMix64's output of a number, or of an array of them."""
    if isinstance(number, int):
        number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & MASK
        number = (number ^ number >> 27) * 0x94D049BB133111EB & MASK
        return number ^ number >> 31
    number = (number ^ number >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ number >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return number ^ number >> np.uint64(31)


def name_of(seed: int, obj: int, version: int) -> int:
    return int(mixed(seed & MASK ^ mixed((obj * STEP + version) & MASK)))


def defined(seed: int, obj: int, version: int, length: int, offset: int = 0) -> bytes:
    """Return the bytes by their definition.

    Sectors of the arena, xor words that count up from a key.
    """
    arena = source(seed)._arena.tobytes()
    name, found = name_of(seed, obj, version), bytearray()
    for sector in range(offset // 512, -(-(offset + length) // 512)):
        turn = (sector // SECTORS + 1) * SECTORS
        at = ((mixed((name ^ turn) & MASK) >> 20) + sector) % SECTORS * 512
        key = mixed((name + sector * STEP) & MASK)
        words = b"".join(((key + i * STEP) & MASK).to_bytes(8, "little") for i in range(64))
        found += bytes(a ^ b for a, b in zip(arena[at : at + 512], words, strict=True))
    return bytes(found[offset % 512 : offset % 512 + length])


def test_it_is_as_defined_from_any_byte_to_any_byte() -> None:
    rng = random.Random(5)  # noqa: S311 - a test's choices
    seeds = [0, 42, 2**63 + 5]
    for _ in range(200):
        seed, obj, version = (
            rng.choice(seeds),
            rng.randrange(-3, 2**31 - 1),
            rng.randrange(-2, 2**31),
        )
        offset, length = rng.choice((0, 4096, 1, 2**40 + 5, 4099, 511)), rng.randrange(1500)
        args = (seed, obj, version, length, offset)
        assert content(*args, skew=rng.randrange(8)) == defined(*args), args


def test_it_is_the_same_however_it_is_cut() -> None:
    whole, rng = content(1, 7, 2, 300_000), random.Random(6)  # noqa: S311 - a test's choices
    cuts = sorted({0, 300_000, *(rng.randrange(300_000) for _ in range(20))})
    assert b"".join(content(1, 7, 2, b - a, a) for a, b in pairwise(cuts)) == whole


def test_the_same_seed_makes_the_same_bytes_and_another_others() -> None:
    parts = {key: content(*key, 1 << 16) for key in ((7, 3, 1), (8, 3, 1), (7, 4, 1), (7, 3, 2))}
    for (seed, obj, version), part in parts.items():
        again = bytearray(1 << 16)
        DataSource(seed).fill(memoryview(again), obj, version, 0)
        assert bytes(again) == part
    sectors = [part[i : i + 512] for part in parts.values() for i in range(0, len(part), 512)]
    assert len(set(sectors)) == len(sectors)
    assert (source(7)._arena != source(8)._arena).mean() > 0.9, "the arena is the seed's, too"


@pytest.mark.full
def test_no_512_bytes_occur_twice_among_two_million() -> None:
    """1 GB of neighbouring objects, versions and offsets, by a hash of 64 bits of each 512 bytes."""
    weights = np.random.default_rng(9).integers(0, 2**64, 64, np.uint64) | np.uint64(1)
    part, hashes = np.empty(1 << 20, np.uint8), []
    for obj in (*range(100), *range(10**6, 10**6 + 60), 2**31 - 1):
        for version in (0, 1, 2, obj + 3, 2**31 - 1, 2**20) if obj % 50 else range(7):
            source(42).fill(part.data, obj, version, (obj % 3) << 20)
            hashes.append(
                (part.view(np.uint64).reshape(-1, 64) * weights).sum(axis=1, dtype=np.uint64)
            )
    found = np.concatenate(hashes)
    assert len(found) >= 1_900_000
    assert len(np.unique(found)) == len(found)


@pytest.mark.full
def test_the_keys_of_the_promised_number_of_blocks_do_not_meet() -> None:
    """Two sectors are equal only if their keys are and they have the same place of the arena.

    Keys are 64 bits.
    """
    assert PROMISED_SECTORS**2 / 2 / 2**64 < 3e-4, (
        "by chance, before the arena's place must agree, too"
    )
    assert PROMISED_SECTORS**2 / 2 / 2**64 / SECTORS < 2e-7
    # Within an object and version they are a permutation's; over many they are those of different
    # numbers.
    names = np.array(
        [name_of(1, obj, version) for obj in range(100) for version in range(100)], np.uint64
    )
    assert len(np.unique(names)) == len(names)
    keys = mixed(names[:, None] + np.arange(200, dtype=np.uint64) * np.uint64(STEP))
    assert len(np.unique(keys)) == keys.size == 2 * 10**6
    # The same key in two words of a sector would need a step that is none.
    assert math.gcd(STEP, 2**64) == 1


def test_no_two_objects_and_versions_have_the_same_name() -> None:
    """It is of object * STEP + version.

    Multiples of STEP by less than 2**31 lie farther apart than versions do.
    """
    nearest, (p, q) = 2**64, ((0, 1), (1, 0))
    numerator, denominator = STEP, 2**64
    while denominator and p[1] < 2**31:
        whole = numerator // denominator
        p, q = (p[1], whole * p[1] + p[0]), (q[1], whole * q[1] + q[0])
        numerator, denominator = denominator, numerator - whole * denominator
        # q[1] is the denominator of a convergent: no smaller one comes nearer.
        if 0 < q[1] < 2**31:
            far = q[1] * STEP % 2**64
            nearest = min(nearest, far, 2**64 - far)
    assert nearest >= 2**31


@pytest.mark.parametrize("length", [512, 4096, 1 << 20])
def test_it_does_not_compress(length: int) -> None:
    for obj in range(10):
        made = content(3, obj, 1, length)
        assert len(zlib.compress(made, 9)) >= length
        assert len(zstandard.ZstdCompressor(level=9).compress(made)) >= length
        for codec in ("lz4_raw", "lz4"):
            assert len(pa.compress(made, codec=codec, asbytes=True)) >= length


def test_nor_does_what_is_longer_than_the_arena() -> None:
    made = content(3, 1, 1, 4 * ARENA_BYTES)
    how = zstandard.ZstdCompressionParameters.from_level(9, enable_ldm=True, window_log=24)
    assert len(zstandard.ZstdCompressor(compression_params=how).compress(made)) >= len(made)
    assert len(pa.compress(made, codec="lz4", asbytes=True)) >= len(made)


def test_differing_bytes_of_two_versions_do_not_compress() -> None:
    # Arrays that reduce by similarity would find a base under a change.
    names = ((4, 1, 0), (4, 2, 0), (5, 1, 0), (4, 1, 512))
    parts = [np.frombuffer(content(3, obj, v, 1 << 16, at), np.uint64) for obj, v, at in names]
    for i, one in enumerate(parts):
        for other in parts[:i]:
            for difference in (one ^ other, one - other):
                assert len(zlib.compress(difference.tobytes(), 9)) >= difference.nbytes


def test_differing_bytes_of_one_arena_place_do_not_compress() -> None:
    one, other = (
        np.frombuffer(content(3, 4, 1, 1 << 16, at), np.uint64) for at in (0, ARENA_BYTES)
    )
    assert len(zlib.compress((one ^ other).tobytes(), 9)) >= 1 << 16


def test_every_bit_is_set_half_of_the_time() -> None:
    words = np.frombuffer(content(9, 1, 1, 1 << 20), np.uint64)
    share = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert np.abs(share - 0.5).max() < 0.01
