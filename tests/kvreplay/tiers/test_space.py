"""The space of a file: room for many objects at once is what one after the other would get."""

from __future__ import annotations

import random

import numpy as np

from kvreplay.tiers.space import Space

UNIT = 4096


def test_many_at_once_get_what_one_after_the_other_gets() -> None:
    rng = random.Random(2)  # noqa: S311 - a test's choices
    for _ in range(20):
        one, all_ = Space(200 * UNIT, UNIT, UNIT), Space(200 * UNIT, UNIT, UNIT)
        for _ in range(12):
            objects = [rng.randrange(60) for _ in range(rng.randrange(1, 20))]
            lengths = [rng.randrange(1, 12 * UNIT) for _ in objects]
            expected, failed = [], []
            for i, (obj, length) in enumerate(zip(objects, lengths, strict=True)):
                try:
                    one.reserve(obj, length)
                    expected.append(one.start(obj))
                except OSError as error:
                    expected.append(-1)
                    failed.append((i, str(error)))
            begins, found = all_.reserve_all(np.array(objects), np.array(lengths))
            assert begins.tolist() == expected
            assert [(i, str(error)) for i, error in found] == failed
            assert all_.starts(60).tolist() == one.starts(60).tolist()
            assert all_.highest_bytes == one.highest_bytes
            for obj in rng.sample(range(60), 15):
                if one.starts(60)[obj] >= 0:
                    assert all_.extent(obj) == one.extent(obj)
                    one.release(obj)
                    all_.release(obj)
    assert failed, "some found no room"


def test_room_for_many_at_once_grows_the_table_of_objects_and_of_free_extents() -> None:
    space = Space(1 << 40, UNIT, UNIT)
    objects = np.arange(5000) * 3
    begins, failed = space.reserve_all(objects, np.full(5000, UNIT))
    assert not failed
    assert begins.tolist() == [UNIT * (1 + i) for i in range(5000)]
    for obj in objects[::2].tolist():
        space.release(obj)
    again, _ = space.reserve_all(objects[::2], np.full(2500, UNIT))
    assert sorted(again.tolist()) == begins[::2].tolist()
