"""Columns whose memory goes from the rows behind to those ahead."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from kvreplay.plan.held.column import column, hand_on

PAGE = mmap.PAGESIZE


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
@pytest.mark.parametrize("is_emptied", [False, True])
def test_memory_of_rows_behind_is_that_of_rows_ahead(dtype: type, is_emptied: bool) -> None:
    by, step, rows = 4 * PAGE, PAGE + 100, 20 * PAGE
    found = column(rows, dtype)
    expected = np.zeros(rows, dtype)
    given, laid, size = 0, 0, found.itemsize
    while laid + step <= rows:
        # As a slider does: what is laid stays short of the rows that memory is handed on to.
        found[laid : laid + step] = expected[laid : laid + step] = np.arange(laid, laid + step)
        laid += step
        until = laid - 100
        hand_on(found, given, until, by, is_emptied=is_emptied)
        first, last = (at * size // PAGE * PAGE // size for at in (given, until))
        if last > first and last + by <= rows:
            expected[first + by : last + by] = 0 if is_emptied else expected[first:last]
        expected[first:last] = 0
        given = until
        assert np.array_equal(found, expected)


def test_many_rows_take_the_memory_of_a_few() -> None:
    by, step, rows = 16 * PAGE, 4 * PAGE, 400 * PAGE
    found, faults = column(rows, np.int64), []
    for first in range(0, rows, step):
        before = _faults()
        found[first : first + step] = 1
        faults.append(_faults() - before)
        hand_on(found, first, first + step, by, is_emptied=False)
    # Pages of the first rows are new, of those after them none is.
    assert sum(faults[-80:-4]) < 76 * step * 8 // PAGE // 10


def _faults() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
