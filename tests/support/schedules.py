"""The order of pieces, driven step by step: what a run leaves to compiled code, called from Python."""

from __future__ import annotations

import numpy as np

from kvreplay.engine import mailbox, order, ready, schedule
from kvreplay.engine.filling import fills
from kvreplay.engine.schedule import Fill, Submission
from kvreplay.engine.tables import ASKED, NONE
from kvtrace.core.compiled import holding

_take = holding(order.take.py_func)
_fill_due = holding(fills.fill_due.py_func)
_may_fill, _take_fill = holding(fills.may_fill.py_func), holding(fills.take_fill.py_func)
ask, take_made, fall_asleep = (holding(f.py_func) for f in (mailbox.ask, mailbox.take_made, mailbox.fall_asleep))
_filled, _is_starved = holding(fills.filled.py_func), holding(ready.is_starved.py_func)


class Schedule(schedule.Schedule):
    """The order in which the rows of a plan go, one question at a time."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self._asked = np.zeros(1, ASKED)
        self._asked_at = self.tables.at(self._asked)

    def take(self, now_ns: int) -> Submission | None:
        """Return a piece to submit now, if any: of a running operation first, else of the lowest row."""
        return self.taken() if _take(self._address, now_ns) else None

    def fill_due(self, now_ns: int) -> int | None:
        """Return when the next buffer may be filled; None if that depends on what is in flight."""
        due: int = _fill_due(self._address, now_ns)
        return None if due == NONE else due

    def take_fill(self, now_ns: int) -> Fill | None:
        """Return the next buffer to fill, if one is free for it."""
        if not _may_fill(self._address, now_ns):
            return None
        _take_fill(self._address, self._asked_at)
        return Fill._make(self._asked.item())

    def filled(self, fill: Fill) -> None:
        """Note that a buffer holds its data."""
        _filled(self._address, fill.slot)

    def is_starved(self, now_ns: int) -> bool:
        """Return whether a started or due write lacks data."""
        return bool(_is_starved(self._address, now_ns))
