"""The structs of the engine's headers, and the ring of rows of a plan.

A row has an operation and its result. The ring contains only the rows that are in progress at once,
however long the trace is. `replay.h` explains each field.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from kvtrace.core.metrics import native as recorded
from kvtrace.core.native import library
from kvtrace.core.native.structs import header

_NATIVE = Path(__file__).parents[1] / "native"
_CORE = Path(library.__file__).parent
REPLAY, JOURNAL = (
    header(_CORE / "core.h", _CORE / "operation.h", _NATIVE / "replay.h", _NATIVE / name)
    for name in ("plan.h", "journal.h")
)
NONE, NOT_DONE = recorded.NONE, recorded.NOT_DONE
READ, WRITE, DELETE = recorded.READ, recorded.WRITE, recorded.DELETE
OK, ERROR, SHORT = recorded.OK, recorded.ERROR, recorded.SHORT
SKIPPED, CORRUPT = recorded.SKIPPED, recorded.CORRUPT
VERSION_BEFORE, VERSION_MIXED, VERSION_NEVER = 0, -2, -3
"""Special values of `version`.

They stand for data from before the run, for several versions, which are in a list, and for data
that was never written.
"""
ROW = REPLAY.dtype("Row")
MIN_ROWS, WINDOW_ROWS = 1 << 10, 1 << 16
"""Minimum and maximum number of rows in memory at once."""


class RowRing:
    """A ring of rows.

    The loader lays rows, the engine ends them, and the feed hands them on and frees their entries.
    """

    def __init__(self, total: int, window: int = WINDOW_ROWS) -> None:
        """Allocate a ring for a plan of `total` rows, of which `window` (a power of two) fit."""
        size = MIN_ROWS
        while size < min(total, window):
            size *= 2
        self.ring: np.ndarray = np.zeros(size, ROW)
        self.struct = REPLAY.struct("Rows")(self.ring.ctypes.data, size - 1, total, 0, 0, 0)

    @classmethod
    def of(cls, columns: Mapping[str, np.ndarray | int], *, is_open_loop: bool = False) -> RowRing:
        """Make a complete plan of rows from columns by name; missing columns are NONE, or 0.

        `trace_row` counts up unless it is given; `due_ns` is NONE in a closed loop.
        """
        total = np.size(columns["op"])
        row_ring = cls(total, max(total, MIN_ROWS))
        rows = row_ring.ring[:total]
        rows["trace_row"] = np.arange(total)
        for name in ("request", "stage", "stream", "due_ns"):
            rows[name] = NONE
        for name, values in columns.items():
            rows[name] = values
        if not is_open_loop:
            rows["due_ns"] = NONE
        begin(rows)
        row_ring.struct.laid = total
        return row_ring

    def __len__(self) -> int:
        return int(self.struct.total)

    @property
    def address(self) -> int:
        """The address of the struct Rows."""
        return ctypes.addressof(self.struct)

    def within(self, first: int, last: int) -> np.ndarray:
        """Return a view of the rows from `first` to before `last`, at most up to the ring's end."""
        mask = int(self.struct.mask)
        start = first & mask
        return self.ring[start : min(start + last - first, mask + 1)]

    @property
    def all(self) -> np.ndarray:
        """All rows of a plan that fits the ring."""
        return self.ring[: len(self)]


def begin(rows: np.ndarray) -> None:
    """Mark `rows` as not started."""
    rows["submitted_ns"] = rows["completed_ns"] = NOT_DONE
    rows["outcome"], rows["ready_ns"] = SKIPPED, 0
    rows["is_journaled"] = rows["is_ended"] = False
