"""What preallocated space holds before a replay.

Each object its own data, whatever the cuts between writes.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvreplay.run.precondition import Extents, _merged
from kvreplay.tiers.tier import Region

UNIT = 8
gaps_and_lengths = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), max_size=8)


def extents_of(parts: list[tuple[int, int]]) -> Extents:
    """Return objects 100, 101, ... of (gap before, length) units."""
    starts, ends, at = [], [], 0
    for gap, length in parts:
        starts.append((at + gap) * UNIT)
        at += gap + length
        ends.append(at * UNIT)
    found = [np.array(each, np.int64) for each in (starts, ends, range(100, 100 + len(parts)))]
    return Extents(*found)


@settings(max_examples=200, deadline=None)
@given(gaps_and_lengths, st.integers(0, 30), st.integers(1, 30))
def test_a_block_holds_of_each_object_what_lies_there(
    parts: list[tuple[int, int]], first: int, count: int
) -> None:
    extents, seen = extents_of(parts), {}

    class Data:
        def fill(self, block: memoryview, object_id: int, version: int, offset: int) -> None:
            assert version == 0
            seen.update({offset + i + starts[object_id]: object_id for i in range(len(block))})

        def unstamped(self, block: memoryview, filler: int, turn: int, place: int) -> None:
            assert (filler, turn) == (-1, 3)
            seen.update({place + i: -1 for i in range(len(block))})

    starts = dict(zip(extents.objects.tolist(), extents.starts.tolist(), strict=True))
    extents.fill(Data(), memoryview(bytearray(count * UNIT)), -1, 3, first * UNIT)
    expected: dict[int, int] = dict.fromkeys(range(first * UNIT, (first + count) * UNIT), -1)
    for start, end, object_id in zip(extents.starts, extents.ends, extents.objects, strict=True):
        expected |= {at: int(object_id) for at in range(int(start), int(end)) if at in expected}
    assert seen == expected


@settings(max_examples=200, deadline=None)
@given(gaps_and_lengths, st.integers(0, 30), st.integers(0, 30))
def test_objects_and_what_is_unwritten_are_written_once(
    parts: list[tuple[int, int]], start: int, length: int
) -> None:
    extents, wanted = extents_of(parts), set(range(start, start + length))
    for first, last in zip(extents.starts // UNIT, extents.ends // UNIT, strict=True):
        wanted |= set(range(int(first), int(last)))
    found: list[Any] = _merged(extents, Region(0, start * UNIT, length * UNIT))
    units = [at for first, size in found for at in range(first // UNIT, (first + size) // UNIT)]
    assert units == sorted(wanted)
    assert all(a + n < b for (a, n), (b, _) in pairwise(found)), "parts that adjoin are one"
