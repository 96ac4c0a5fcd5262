"""What is known of a plan's rows altogether before any of them is replayed, and whether they can be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvreplay.plan.chains import IS_BULK
from kvreplay.plan.held.column import column
from kvreplay.plan.held.numbering import Numbering
from kvreplay.plan.intake import Columns
from kvtrace.core.compiled import njit
from kvtrace.core.errors import TraceError
from kvtrace.core.schema import Op
from kvtrace.core.structures import Structure, number, record, table

KIND = np.dtype([("rows", "i8"), ("bytes", "i8"), ("end", "i8")])
"""Rows of one tier and operation: how many, the bytes that they touch, and the last byte's place and 1, at most."""
_STATE = np.dtype([(name, "i8") for name in ("planned", "last_row", "last_ns", "is_bulk", "is_staged")])
_OPS = len(Op)


@dataclass(frozen=True, slots=True)
class Facts:
    """The rows of a plan, counted."""

    rows: int
    kinds: Any
    """KIND by tier and operation."""
    last_row: int
    """Of the trace; -1 if there is none, as the next."""
    last_ns: int
    placed: tuple[int, ...]
    """Tiers with writes that belong to a stream."""
    is_bulk: bool
    """Whether some rows save or restore checkpoints."""
    is_staged: bool
    """Whether a row must wait for another one because of their stages."""
    objects: int
    """One more than the highest object id."""


class _Counts(Structure):
    state = record(_STATE)
    kinds = table(KIND)
    placed, is_bulk = table("?"), table("?")
    """By tier; by phase."""
    stages = table("i4")
    """By request: the stage of its last row and 1, or 0."""
    has_streams = number()


class Counter:
    """Counts rows batch by batch, and checks that stages do not fall."""

    def __init__(self, path: Path, tiers: int, rows: int, requests: Numbering, *, has_streams: bool) -> None:
        """Count at most `rows` rows of the trace at `path`."""
        self._path, self._requests, self._most = path, requests, -1
        self._counts = _Counts(
            kinds=np.zeros(tiers * _OPS, KIND),
            placed=np.zeros(tiers, bool),
            is_bulk=IS_BULK,
            stages=column(3 * rows + (1 << 20), np.int32),
            has_streams=has_streams,
        )
        self._counts.state["last_row"] = self._counts.state["last_ns"] = -1

    @property
    def planned(self) -> int:
        """How many rows were counted."""
        return int(self._counts.state["planned"])

    def take(self, rows: Columns, count: int, absent: Any) -> None:
        """Count the first `count` of `rows` but those that are `absent`.

        Raises:
            TraceError: a row is of an earlier stage than its request was in.

        """
        rows.request_number = self._requests.of(rows.request_id[:count])
        self._most = max(self._most, int(rows.object_id[:count].max(initial=-1)))
        at = int(_count(self._counts, rows, count, absent))
        if at >= 0:
            raise TraceError(
                f"{rows.stage[at]}: request {rows.request_id[at]} was in a later stage before; run kvtrace validate on "
                "this trace",
                path=self._path,
                row=int(rows.row[at]),
                column="stage",
            )

    def result(self) -> Facts:
        """Return what was counted."""
        state = self._counts.state
        return Facts(
            self.planned,
            self._counts.kinds.reshape(-1, _OPS),
            int(state["last_row"]),
            int(state["last_ns"]),
            tuple(np.flatnonzero(self._counts.placed).tolist()),
            bool(state["is_bulk"]),
            bool(state["is_staged"]),
            self._most + 1,
        )


@njit
def _count(counts: _Counts, rows: Columns, count: int, absent: Any) -> int:
    """Count rows; return the first whose stage is less than that of its request's row before, or -1."""
    state = counts.state
    for i in range(count):
        if absent[i]:
            continue
        stage, request, tier = rows.stage[i], rows.request_number[i], rows.tier[i]
        if stage >= 0 and request >= 0:
            before = counts.stages[request]
            if before > stage + 1:
                return i
            if before != 0 and before != stage + 1:
                state.is_staged = 1
            counts.stages[request] = stage + 1
        kind = counts.kinds[tier * _OPS + rows.op[i]]
        kind.rows += 1
        kind.bytes += rows.length_bytes[i]
        kind.end = max(kind.end, rows.offset_bytes[i] + rows.length_bytes[i])
        if counts.has_streams and rows.stream[i] >= 0:
            counts.placed[tier] = True
        if counts.is_bulk[rows.phase[i]]:
            state.is_bulk = 1
        state.planned += 1
        state.last_row, state.last_ns = rows.row[i], rows.ts_ns[i]
    return -1
