"""A stretch of a run: the rows of which results are made, while others are still to come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvreplay.engine.job import Record
from kvreplay.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class RunPart:
    """Consecutive planned rows that have ended, or never will, with what was measured of them.

    The arrays may be slices of longer ones that are used again: whoever takes a part copies what it keeps.
    """

    first: int
    """Of its rows: how many planned rows there are before it."""
    plan: Plan
    """Its rows alone, `row` counted from the start of the trace."""
    record: Record
    """Its rows alone; `retries` by their place in the part."""
    due_ns: Any
    """int64 a row, from the run's start; None in a closed loop."""

    def __len__(self) -> int:
        return len(self.plan.row)
