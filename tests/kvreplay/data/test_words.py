"""The data that compiled code makes: exactly as defined, whatever is made at a time, and like nothing else in a run."""

from __future__ import annotations

import random
import zlib
from itertools import pairwise

import numpy as np
import pytest

from kvreplay.data.words import Fresh

_MASK = 2**64 - 1


def mixed(number: int) -> int:
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    number = (number ^ number >> 27) * 0x94D049BB133111EB & _MASK
    return number ^ number >> 31


def defined(seed: int, object_id: int, version: int, start: int, length: int) -> bytes:
    """Return the bytes by their definition: SplitMix64 of a count, with two keys of the object's version."""
    step = 0x9E3779B97F4A7C15
    first = mixed(seed + step & _MASK)
    name = (object_id << 32 | version & 0xFFFFFFFF) & _MASK
    key, other = mixed(name ^ first), mixed(name ^ mixed(first + step & _MASK))
    words = bytearray()
    for at in range(start // 8, -(-(start + length) // 8)):
        count = key + at * step & _MASK
        count = (count ^ count >> 30) * 0xBF58476D1CE4E5B9 + other & _MASK
        count = (count ^ count >> 27) * 0x94D049BB133111EB & _MASK
        words += (count ^ count >> 31).to_bytes(8, "little")
    return bytes(words[start % 8 : start % 8 + length])


def content(seed: int, object_id: int, version: int, start: int, length: int, skew: int = 0) -> bytes:
    """Return what is made, in a buffer that begins `skew` bytes after a multiple of 8."""
    memory = np.zeros(length // 8 + 4, np.uint64).view(np.uint8)
    Fresh.of(seed)(memory.data[skew : skew + length], object_id, version, start)
    assert not memory[:skew].any()
    assert not memory[skew + length :].any()
    return memory[skew : skew + length].tobytes()


def test_it_is_as_defined_from_any_byte_to_any_byte() -> None:
    rng = random.Random(5)  # noqa: S311 - a test's choices
    for _ in range(200):
        seed, object_id, version = rng.randrange(2**64), rng.randrange(-3, 2**31 - 1), rng.randrange(-2, 2**31)
        start, length = rng.choice((0, 4096, 1, 2**40 + 5, 4099)), rng.randrange(600)
        args = (seed, object_id, version, start, length)
        assert content(*args, skew=rng.randrange(8)) == defined(*args), args


def test_it_is_the_same_however_it_is_cut() -> None:
    whole, rng = content(1, 7, 2, 0, 300_000), random.Random(6)  # noqa: S311 - a test's choices
    cuts = sorted({0, 300_000, *(rng.randrange(300_000) for _ in range(20))})
    assert b"".join(content(1, 7, 2, a, b - a) for a, b in pairwise(cuts)) == whole


def test_no_512_bytes_occur_twice_in_neighbours_of_all_kinds() -> None:
    # Objects, versions and seeds that differ in one bit, low or high, and offsets far and near.
    names = [(7, obj, version) for obj in (0, 1, 2, 3, 2**30, 2**31 - 2, -1) for version in (0, 1, 2, 2**30)]
    names += [(seed, 0, 1) for seed in (0, 6, 8, 2**63, 2**64 - 1)]
    blocks = set()
    for name in names:
        for start in (0, 1 << 20, 1 << 41):
            made = content(*name, start, 1 << 16)
            blocks |= {made[i : i + 512] for i in range(0, len(made), 512)}
    assert len(blocks) == len(names) * 3 * 128


@pytest.mark.parametrize("length", [512, 4096, 1 << 20])
def test_it_does_not_compress(length: int) -> None:
    for object_id in range(20):
        made = content(3, object_id, 1, 0, length)
        assert len(zlib.compress(made, 9)) >= length


def test_what_two_versions_or_objects_differ_in_does_not_compress_either() -> None:
    # Arrays that reduce by similarity would find a base under a change.
    parts = [
        np.frombuffer(content(3, *name, 1 << 16), np.uint64) for name in ((4, 1, 0), (4, 2, 0), (5, 1, 0), (4, 1, 512))
    ]
    for i, one in enumerate(parts):
        for other in parts[:i]:
            for difference in (one ^ other, one - other):
                assert len(zlib.compress(difference.tobytes(), 9)) >= difference.nbytes


def test_every_bit_is_set_half_of_the_time() -> None:
    words = np.frombuffer(content(9, 1, 1, 0, 1 << 20), np.uint64)
    share = np.unpackbits(words.view(np.uint8)).reshape(-1, 64).mean(axis=0)
    assert np.abs(share - 0.5).max() < 0.01
