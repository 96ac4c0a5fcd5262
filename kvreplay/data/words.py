"""Fresh data as compiled code makes it: each 8 bytes follow from seed, object, version and their place in the object.

No byte depends on another, so that a buffer can begin and end anywhere and be made by anyone in any order, and the
processor's vector units make several words at a time. A word is SplitMix64's mixing of a count, with two keys of the
object's version worked in: both differ for any two versions of any two objects, so that no 512 bytes occur twice.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvtrace.core.compiled import array_at, inner, njit

WORD_BYTES = 8
_STEP, _FIRST, _SECOND = (np.uint64(n) for n in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_HALF = np.uint64(32)
_MASK = 2**64 - 1

_words, _bytes = array_at(np.uint64), array_at(np.uint8)


@inner
def mixed(number: Any) -> Any:
    """Return a uint64 that looks random, another for each `number` (uint64)."""
    number = (number ^ (number >> np.uint64(30))) * _FIRST
    number = (number ^ (number >> np.uint64(27))) * _SECOND
    return number ^ (number >> np.uint64(31))


@inner
def _word(at: int, key: Any, other: Any) -> Any:
    """Return word `at` of a version of an object with these keys (uint64)."""
    count = key + np.uint64(at) * _STEP
    count = (count ^ (count >> np.uint64(30))) * _FIRST + other
    count = (count ^ (count >> np.uint64(27))) * _SECOND
    return count ^ (count >> np.uint64(31))


@inner
def _fill_bytes(to: int, start: int, end: int, key: Any, other: Any) -> None:
    target = _bytes(to)
    for at in range(start, end):
        word = _word(at // WORD_BYTES, key, other)
        target[at - start] = np.uint8(word >> np.uint64(at % WORD_BYTES * 8))


@inner
def fill_words(to: int, length: int, start: int, object_id: int, version: int, seed: int) -> None:
    """Put `length` bytes of a version of an object, from its byte `start` on, to the address `to`.

    `seed` is the address of the two numbers (uint64) of `Fresh`.
    """
    seeds = _words(seed)
    name = np.uint64(object_id) << _HALF | (np.uint64(version) & np.uint64(0xFFFFFFFF))
    key, other = mixed(name ^ seeds[0]), mixed(name ^ seeds[1])
    head = min(length, -start % WORD_BYTES)
    if (to + head) % WORD_BYTES:
        # What no I/O does: its buffers begin at pages.
        head = length
    _fill_bytes(to, start, start + head, key, other)
    target, first, count = _words(to + head), (start + head) // WORD_BYTES, (length - head) // WORD_BYTES
    for i in range(count):
        target[i] = _word(first + i, key, other)
    done = head + count * WORD_BYTES
    _fill_bytes(to + done, start + done, start + length, key, other)


@njit
def fill(to: int, length: int, start: int, object_id: int, version: int, seed: int) -> None:
    """Do what `fill_words` does, for Python."""
    fill_words(to, length, start, object_id, version, seed)


@dataclass(frozen=True, slots=True)
class Fresh:
    """Fills buffers with the data of a seed, one at a time; compiled code makes the same by `address`."""

    seeds: Any
    """uint64: two numbers."""

    @classmethod
    def of(cls, seed: int) -> Fresh:
        """Return the data of `seed`."""
        first = _mixed(seed + int(_STEP))
        return cls(np.array([first, _mixed(first + int(_STEP))], np.uint64))

    @property
    def address(self) -> int:
        """Where the two numbers lie."""
        return int(self.seeds.ctypes.data)

    def __call__(self, buffer: memoryview, object_id: int, version: int, offset: int) -> None:
        """Fill `buffer` with the bytes of (object_id, version) from `offset` on."""
        to = ctypes.addressof(ctypes.c_char.from_buffer(buffer)) if buffer else 0
        fill(to, len(buffer), offset, object_id, version, self.address)


def _mixed(number: int) -> int:
    number &= _MASK
    number = (number ^ number >> 30) * int(_FIRST) & _MASK
    number = (number ^ number >> 27) * int(_SECOND) & _MASK
    return number ^ number >> 31
