"""The requests of all ranks as one run's: from the ranks' tables, each request once.

A rank's own table tells all of a request that lies on it alone. One of which several ranks have operations is put
together from these operations, by the common clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvreplay.config.config import Criteria
from kvreplay.mpi.pooled.operations import is_measured, late_of, rows_of
from kvreplay.mpi.pooled.part import PartRun
from kvreplay.native.rows import OK, READ
from kvreplay.plan.loader import IS_BULK, IS_LOAD
from kvreplay.result.counts import RequestTimes
from kvtrace.core.run.figures import RequestFigures
from kvtrace.core.run.run_file import SERVED_FILE
from kvtrace.core.schema import OPS, SERVED, enum_code, numbers
from kvtrace.core.tables import open_table

NONE = -1
_TABLE = ("request_id", "storage_ns", "first_token_ns", "qos", "unfinished")
_COLUMNS = ("row", "op", "phase", "request_id", "scheduled_ns", "submitted_ns", "completed_ns", "outcome", "engine")
_NOT_PLANNED, _SIMULATED = (enum_code(OPS, "engine", name) for name in ("none", "sim"))


def pooled_requests(parts: Sequence[PartRun], criteria: Criteria) -> RequestFigures | None:
    """Return the figures of the requests of all ranks, judged by `criteria`; None if no rank kept them."""
    kept = [part for part in parts if part.run is not None and (part.folder / SERVED_FILE).is_file()]
    told = [part.run.requests for part in kept if part.run is not None and part.run.requests is not None]
    if not told:
        return None
    found = _Requests([_table(part) for part in kept])
    is_open = False
    for number, part in enumerate(kept):
        late_ns = late_of(part, parts)
        for every in rows_of(part, _COLUMNS):
            rows = {name: values[every["request_id"] >= 0] for name, values in every.items()}
            is_open |= bool((rows["scheduled_ns"] != NONE).any())
            found.add(number, rows, is_measured(part, rows), late_ns)
    found.put_together()
    counts = ~found.is_left_out
    times = RequestTimes(criteria.targets, limit=len(counts))
    response = found.response.ns[counts] if is_open else None
    times.add(found.storage_ns[counts], response, found.first_token_ns[counts], found.qos[counts])
    return times.figures(told[0].first_token_reason, is_open_loop=is_open)


def _table(part: PartRun) -> dict[str, Any]:
    batches = [
        {name: numbers(batch.column(name)) for name in _TABLE}
        for batch in open_table(part.folder / SERVED_FILE, SERVED).batches(_TABLE)
    ]
    return {name: np.concatenate([np.zeros(0, np.int64), *(batch[name] for batch in batches)]) for name in _TABLE}


@dataclass(slots=True)
class Covered:
    """For each request: time in which at least one of its intervals lies; intervals come by their starts."""

    ns: Any
    reached: Any

    @classmethod
    def of(cls, count: int) -> Covered:
        """Return that of `count` requests without intervals."""
        return cls(np.zeros(count, np.int64), np.full(count, NONE))

    def add(self, at: Any, start: Any, end: Any) -> None:
        """Take more intervals: of the requests `at`, none of which starts before one that it has had."""
        if not len(at):
            return
        order = np.lexsort((start, at))
        at, start, end = at[order], start[order], np.maximum(end[order], self.reached[at[order]])
        is_first = np.append(True, at[1:] != at[:-1])
        segment = np.cumsum(is_first)
        # Ranks instead of times, so that adding the segment cannot overflow.
        ladder, rank = np.unique(end, return_inverse=True)
        reached = ladder[np.maximum.accumulate(rank + segment * len(ladder)) - segment * len(ladder)]
        before = np.where(is_first, self.reached[at], np.append(NONE, reached[:-1]))
        np.add.at(self.ns, at, np.maximum(0, reached - np.maximum(start, before)))
        np.maximum.at(self.reached, at, reached)


class _Requests:
    """The requests of all ranks, in order of their numbers."""

    def __init__(self, tables: Sequence[dict[str, Any]]) -> None:
        """Take what each rank's table says."""
        self._ids, counts = np.unique(np.concatenate([table["request_id"] for table in tables]), return_counts=True)
        count = len(self._ids)
        self._is_split = counts > 1
        """Whether several ranks have operations of it."""
        self.storage_ns, self.first_token_ns, self.qos = (np.full(count, NONE) for _ in range(3))
        self.response = Covered.of(count)
        """Time in which at least one of its operations was due and not completed."""
        self.is_left_out = np.zeros(count, bool)
        """It is no user's, or the warm-up touches it."""
        unfinished = np.zeros(count, np.int64)
        self._loads_on = np.full(count, NONE)
        """The only part that loads for it; NONE: none does; -2: several do."""
        self._tables, self._split = tables, list[tuple[Any, Any, Any, Any]]()
        for table in tables:
            at = np.searchsorted(self._ids, table["request_id"])
            self.qos[at] = np.maximum(self.qos[at], table["qos"])
            unfinished[at] += table["unfinished"]
            self.storage_ns[at] = table["storage_ns"]
        self.storage_ns[unfinished > 0] = NONE
        self._is_unfinished = unfinished > 0

    def add(self, number: int, rows: dict[str, Any], is_measured: Any, late_ns: int) -> None:
        """Take operations of the part with this number, in the trace's order; its times count from so much later."""
        at = np.searchsorted(self._ids, rows["request_id"])
        is_planned = rows["engine"] != _NOT_PLANNED
        self.is_left_out[at[is_planned & (~is_measured | IS_BULK[rows["phase"]])]] = True
        loading = np.unique(at[IS_LOAD[rows["phase"]] & (rows["op"] == READ)])
        had = self._loads_on[loading]
        self._loads_on[loading] = np.where((had == NONE) | (had == number), number, -2)
        done = is_planned & (rows["engine"] != _SIMULATED) & (rows["outcome"] == OK)
        due, submitted, completed = rows["scheduled_ns"], rows["submitted_ns"], rows["completed_ns"]
        alone = done & ~self._is_split[at] & (due != NONE)
        self.response.add(at[alone], due[alone], completed[alone])
        split = done & self._is_split[at]
        if split.any():
            known = np.where(due[split] == NONE, NONE, due[split] + late_ns)
            self._split.append((at[split], known, submitted[split] + late_ns, completed[split] + late_ns))

    def put_together(self) -> None:
        """Find what only the operations of all ranks together tell."""
        for number, table in enumerate(self._tables):
            at = np.searchsorted(self._ids, table["request_id"])
            # Another rank took what it did not load itself for computed.
            knows = (self._loads_on[at] == NONE) | (self._loads_on[at] == number)
            self.first_token_ns[at[knows]] = table["first_token_ns"][knows]
        if not self._split:
            return
        at, due, submitted, completed = (np.concatenate(columns) for columns in zip(*self._split, strict=True))
        storage = Covered.of(len(self._ids))
        storage.add(at, submitted, completed)
        touched = np.unique(at)
        self.storage_ns[touched] = np.where(self._is_unfinished[touched], NONE, storage.ns[touched])
        is_due = due != NONE
        self.response.add(at[is_due], due[is_due], completed[is_due])
