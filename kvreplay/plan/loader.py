"""The second pass over a trace: its rows laid into the plan, ahead of the run or all at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from kvreplay.plan.ahead import ahead
from kvreplay.plan.chains import IS_BULK, IS_COPY, LINK, NO_CHAIN, OBJECT, Laying, lay
from kvreplay.plan.facts import Facts
from kvreplay.plan.held.column import column, let_go, table
from kvreplay.plan.held.numbering import Numbering
from kvreplay.plan.intake import Intake
from kvreplay.plan.pacing import Pacer
from kvreplay.plan.plan import ROW_COLUMNS, Plan
from kvtrace.core.compiled import compile_announced

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW_ROWS = 1 << 18
"""Rows in memory at once; a plan of no more is loaded whole before it runs."""
BATCH_ROWS = 1 << 16
"""A reader's batch has no more rows."""
MOST_ROWS = -NO_CHAIN - 2
"""Of a plan: rows are told by 32 bits."""


class Loader:
    """Lays the rows of a trace into a plan, in their order, by one thread at a time."""

    def __init__(
        self,
        batches: Callable[[], Iterator[pa.RecordBatch]],
        intake: Intake,
        facts: Facts,
        alignments: list[int],
        numbers: tuple[Numbering, Numbering],
        absent: Any,
        *,
        is_chained: bool,
    ) -> None:
        """Lay what `intake` takes of `batches`, but the `absent` of its rows; `numbers`: those of objects and requests.

        `is_chained` says whether a row waits for another one of its object.
        """
        self._batches, self._intake, self._numbers = batches, intake, numbers
        self.rows, self.is_sliding = facts.rows, facts.rows > WINDOW_ROWS
        self._reading: Generator[pa.RecordBatch] | None = None
        self._laying = laying = Laying(
            objects=table(max(1, numbers[0].count), OBJECT),
            requests=table(max(1, numbers[1].count), LINK),
            is_copy=IS_COPY,
            is_bulk=IS_BULK,
            absent=absent,
        )
        names = [*ROW_COLUMNS]
        names += ["stream"] * ("stream" in intake.names) + ["bulk"] * facts.is_bulk
        if self.is_sliding:
            names += ["stage_number", "object_number", "stage_ended", "object_ended"]
        for name in names:
            setattr(laying, name, column(facts.rows, Laying.fields[name].dtype))
        self.columns = [getattr(laying, name) for name in names]
        """All that slide together: item by item of a row."""
        self.plan = Plan(
            **{name: getattr(laying, name) for name in ROW_COLUMNS},
            alignments=np.array(alignments, np.int64),
            stream=laying.stream if "stream" in names else None,
            bulk=laying.bulk if facts.is_bulk else None,
            objects=facts.objects,
            is_chained=facts.is_staged or is_chained,
        )
        self._due_ns: Callable[[Any], Any] | None = None
        self._due: Any = None

    @property
    def laid(self) -> int:
        """How many rows the plan has by now."""
        return int(self._laying.state["laid"])

    @property
    def laying(self) -> Laying:
        """What compiled code sees of it."""
        return self._laying

    @property
    def is_whole(self) -> bool:
        """Whether all rows are laid."""
        return self.laid == self.rows

    def paced(self, pacer: Pacer) -> Any:
        """Return when each row is due (int64), as far as it is laid, and let those that follow be so; None if at once.

        Given once, before the run.
        """
        if pacer.speed is None:
            return None
        if pacer.speed == 1.0:
            return self.plan.ts_ns
        self._due_ns, self._due = pacer.due_ns, column(self.rows, np.int64)
        self.columns.append(self._due)
        self._pace(0)
        return self._due

    def _pace(self, first: int) -> None:
        if self._due_ns is not None:
            self._due[first : self.laid] = self._due_ns(self.plan.ts_ns[first : self.laid])

    def load(self, until: int | None = None, low: int = 0) -> None:
        """Lay rows until there are `until` (all, without), or some more; rows before `low` have ended."""
        until = self.rows if until is None else min(until, self.rows)
        if self.laid >= until:
            return
        if self._reading is None:
            self._reading = ahead(self._batches())
        self._laying.state["low"] = low
        with compile_announced():
            for batch in self._reading:
                first = self.laid
                self._lay(self._intake.take(batch))
                self._pace(first)
                if self.laid >= until:
                    break
        if self.is_whole:
            self.close()

    def _lay(self, rows: dict[str, Any]) -> None:
        columns, (objects, requests) = self._intake.rows_of, self._numbers
        columns.object_number = objects.of(rows["object_id"])
        columns.request_number = requests.of(rows["request_id"])
        lay(self._laying, columns, len(rows["row"]))

    def let_go(self) -> None:
        """Let the kernel have the memory of what is known of all objects and requests."""
        for of in (self._laying.objects, self._laying.requests):
            let_go(of)

    def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            with closing(self._reading):
                self._reading = None
