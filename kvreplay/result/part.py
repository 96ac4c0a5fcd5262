"""A stretch of a run: the rows of which results are made, while others are still to come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from kvreplay.native.rows import ROW


@dataclass(frozen=True, slots=True)
class RunPart:
    """Consecutive planned rows that have ended, or never will, with what was measured of them.

    They may lie in a ring that is used again: whoever takes a part copies what it keeps.
    """

    first: int
    """How many planned rows there are before it."""
    rows: Any
    """ROW, one after the other; `trace_row` counts from the start of the trace."""
    is_open_loop: bool

    def __len__(self) -> int:
        return len(self.rows)

    def within(self, first: int, last: int) -> Self:
        """Return its rows from `first` up to `last`, counted in the part."""
        return type(self)(self.first + first, self.rows[first:last], self.is_open_loop)

    def kept(self) -> Self:
        """Return a copy of it that nobody changes."""
        return type(self)(self.first, self.rows.copy(), self.is_open_loop)

    @classmethod
    def nothing(cls) -> Self:
        """Return no row."""
        return cls(0, np.zeros(0, ROW), is_open_loop=False)
