"""A stretch of a run: the rows of which results are made, while others are still to come."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

from kvreplay.engine.job import Record
from kvreplay.plan.plan import LAID_COLUMNS, ROW_COLUMNS, Plan


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

    def within(self, first: int, last: int) -> RunPart:
        """Return its rows from `first` up to `last`, counted in the part."""
        rows, plan, record = slice(first, last), self.plan, self.record
        found = {name: column[rows] for name in LAID_COLUMNS if (column := getattr(plan, name)) is not None}
        return RunPart(
            self.first + first,
            replace(plan, **found),
            Record(
                record.submitted_ns[rows],
                record.completed_ns[rows],
                record.outcome[rows],
                None if record.ready_ns is None else record.ready_ns[rows],
                {row - first: count for row, count in [*record.retries.items()] if first <= row < last},
            ),
            None if self.due_ns is None else self.due_ns[rows],
        )

    @classmethod
    def nothing(cls, plan: Plan) -> RunPart:
        """Return no row of `plan`."""
        none = {name: getattr(plan, name)[:0] for name in ROW_COLUMNS}
        return cls(0, replace(plan, **none, stream=None, bulk=None), Record.empty(0, is_open_loop=False), None)

    def kept(self) -> RunPart:
        """Return a copy of it that nobody changes."""
        return copy.deepcopy(self)
