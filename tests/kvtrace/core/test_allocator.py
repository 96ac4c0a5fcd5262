from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace.core.allocator import GRANULE_BYTES as G
from kvtrace.core.allocator import SPACE_BYTES, allocate, new_space, release


def test_first_fit_takes_the_lowest_hole_and_joins_neighbours():
    space = new_space(8)
    assert [allocate(space, n * G) for n in (1, 2, 3, 1)] == [0, G, 3 * G, 6 * G]
    release(space, 0, G)
    assert allocate(space, 2 * G) == 7 * G, "the hole of one granule is too small"
    release(space, 3 * G, 3 * G)
    release(space, G, 2 * G)
    assert allocate(space, 6 * G) == 0, "three freed neighbours are one hole"
    assert space.span_bytes == 9 * G


class Naive:
    """First fit by a sorted list."""

    def __init__(self):
        self.free = [[0, SPACE_BYTES]]

    def allocate(self, length):
        hole = next(h for h in self.free if h[1] >= length)
        start = hole[0]
        hole[0], hole[1] = start + length, hole[1] - length
        self.free = [h for h in self.free if h[1]]
        return start

    def release(self, start, length):
        joined = []
        for hole in sorted([*self.free, [start, length]]):
            if joined and sum(joined[-1]) == hole[0]:
                joined[-1][1] += hole[1]
            else:
                joined.append(hole)
        self.free = joined


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60), st.floats(0.3, 0.6))
def test_it_is_first_fit_for_any_order(seed, most_live, release_share):
    source = random.Random(seed)  # noqa: S311 - a test's order
    space = new_space(most_live + 1)
    naive, live = Naive(), []
    for _ in range(300):
        if live and (len(live) == most_live or source.random() < release_share):
            start, length = live.pop(source.randrange(len(live)))
            release(space, start, length)
            naive.release(start, length)
        else:
            length = source.choice([1, 2, 3, 7, 50]) * G
            start = allocate(space, length)
            assert start == naive.allocate(length)
            live.append((start, length))
