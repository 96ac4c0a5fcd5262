"""The space of a file: room for many objects at once is what one after the other would get."""

from __future__ import annotations

import errno
import random

import numpy as np

from kvreplay.tiers.extents import Space

UNIT = 4096


def test_many_at_once_get_what_one_after_the_other_gets() -> None:
    rng = random.Random(2)  # noqa: S311 - a test's choices
    seen: set[int] = set()
    for _ in range(20):
        one, all_ = Space(200 * UNIT, UNIT, UNIT), Space(200 * UNIT, UNIT, UNIT)
        for _ in range(12):
            objects = [rng.randrange(60) for _ in range(rng.randrange(1, 20))]
            lengths = [rng.randrange(1, 12 * UNIT) for _ in objects]
            expected = [
                one.reserve(obj, length) for obj, length in zip(objects, lengths, strict=True)
            ]
            assert all_.reserve_all(np.array(objects), np.array(lengths)).tolist() == expected
            seen |= {-number for number in expected if number < 0}
            assert [all_.start(obj) for obj in range(60)] == [one.start(obj) for obj in range(60)]
            assert all_.highest_bytes == one.highest_bytes
            for obj in rng.sample(range(60), 15):
                there = one.start(obj) >= 0
                assert one.release(obj) == all_.release(obj) == (0 if there else -errno.ENOENT)
    assert seen == {errno.ENOSPC, errno.EFBIG}, "some found no room"


def test_room_for_many_objects_grows_both_tables() -> None:
    space = Space(1 << 40, UNIT, UNIT)
    objects = np.arange(5000) * 3
    begins = space.reserve_all(objects, np.full(5000, UNIT))
    assert begins.tolist() == [UNIT * (1 + i) for i in range(5000)]
    for obj in objects[::2].tolist():
        space.release(obj)
    again = space.reserve_all(objects[::2], np.full(2500, UNIT))
    assert sorted(again.tolist()) == begins[::2].tolist()


def test_the_lowest_hole_is_taken_and_neighbours_join() -> None:
    space = Space(1 << 62, UNIT, 0)
    assert [space.reserve(obj, n * UNIT) for obj, n in enumerate((1, 2, 3, 1))] == [
        n * UNIT for n in (0, 1, 3, 6)
    ]
    space.release(0)
    assert space.reserve(4, 2 * UNIT) == 7 * UNIT, "the hole of one unit is too small"
    space.release(2)
    space.release(1)
    assert space.reserve(5, 6 * UNIT) == 0, "three freed neighbours are one hole"
    assert space.highest_bytes == 9 * UNIT


class Model:
    """First fit, one byte map of units."""

    def __init__(self, units: int) -> None:
        self.free, self.at, self.highest = [False] + [True] * (units - 1), {}, 0

    def reserve(self, obj: int, length: int) -> int:
        units = -(-length // UNIT)
        if obj in self.at:
            start, had = self.at[obj]
            return start * UNIT if units <= had else -errno.EFBIG
        for start in range(len(self.free) - units + 1):
            if all(self.free[start : start + units]):
                self.free[start : start + units] = [False] * units
                self.at[obj], self.highest = (
                    (start, units),
                    max(self.highest, (start + units) * UNIT),
                )
                return start * UNIT
        return -errno.ENOSPC

    def release(self, obj: int) -> int:
        if obj not in self.at:
            return -errno.ENOENT
        start, units = self.at.pop(obj)
        self.free[start : start + units] = [True] * units
        return 0


def test_space_is_first_fit_however_it_is_scattered() -> None:
    rng = random.Random(3)  # noqa: S311 - a test's choices
    for units in (10, 100, 400):
        space, model = Space(units * UNIT, UNIT, UNIT), Model(units)
        for _ in range(3000):
            obj = rng.randrange(units)
            if rng.random() < 0.5:
                length = rng.randrange(1, 5 * UNIT)
                assert space.reserve(obj, length) == model.reserve(obj, length)
            else:
                assert space.release(obj) == model.release(obj)
            probe = rng.randrange(units)
            assert space.start(probe) == (
                model.at[probe][0] * UNIT if probe in model.at else -errno.ENOENT
            )
            assert space.highest_bytes == model.highest
