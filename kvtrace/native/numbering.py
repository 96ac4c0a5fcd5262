"""Dense numbers for names of 64 bits, in order of first appearance."""

from __future__ import annotations

import weakref

import numpy as np
from numpy.typing import NDArray

from kvtrace.core.arrays import Array
from kvtrace.core.errors import ConfigError
from kvtrace.core.memory import require_memory
from kvtrace.core.native.library import I4, I8, StructAt, function
from kvtrace.core.native.structs import Structure
from kvtrace.core.parameters import named
from kvtrace.native.records import WORLD

MAX_OBJECTS = 2**31 - 1
_BATCH_NAMES = 1 << 18
_ENTRY_BYTES = 16
"""Memory of an entry of the table that numbers names, which doubles when two thirds are taken."""

_number = function("table_number_names", StructAt, I8, int, I4, returns=int)
_forget = function("table_free", StructAt)


def grown(array: Array, min_rows: int, fill: int) -> Array:
    """Return `array` with at least `min_rows` rows; new rows are filled with `fill`.

    An array that grows at least doubles.
    """
    if min_rows <= len(array):
        return array
    added_rows = max(min_rows - len(array), len(array))
    return np.concatenate([array, np.full((added_rows, *array.shape[1:]), fill, dtype=array.dtype)])


class Numbers:
    """Numbers int64 names densely from 0, in order of first appearance.

    It takes 4 bytes a name, and for each distinct name 24 to 48 more, and half as much again while
    the table grows.
    """

    def __init__(self, capacity: int) -> None:
        self.count = self._done = 0
        self.numbers = np.empty(capacity, dtype=np.int32)
        self._table = Structure(WORLD, "Table")
        self._fitting_size = 0
        """The largest size of the table, in entries, for which there was memory."""
        weakref.finalize(self, _forget, self._table)

    def add(self, names: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the numbers of the next `names`."""
        done = self._done
        for start in range(0, len(names), _BATCH_NAMES):
            batch = names[start : start + _BATCH_NAMES]
            self._require_memory(len(batch))
            self.count = int(_number(self._table, batch, len(batch), self.numbers[self._done :]))
            self._done += len(batch)
            if self.count > MAX_OBJECTS:
                raise ConfigError(f"more than {MAX_OBJECTS} objects, the maximum of a simulation")
        return self.numbers[done : self._done]

    def _require_memory(self, names: int) -> None:
        """Raise OutOfMemory unless the table fits that the next `names` may need."""
        larger_size = 2 * self._table.size
        if (self.count + names) * 3 < larger_size or larger_size <= self._fitting_size:
            return
        require_memory(
            larger_size * _ENTRY_BYTES,
            f"numbering more than {self.count:,} distinct blocks or chunks",
            f"simulate fewer requests ({named('max_requests')}), or larger chunks",
        )
        self._fitting_size = larger_size

    def of(self, names: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the numbers of `names`."""
        self.numbers, self._done = np.empty(len(names), dtype=np.int32), 0
        self.add(names)
        return self.numbers
