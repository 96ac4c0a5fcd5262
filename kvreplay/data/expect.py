"""Which version of an object each read must find, worked out from the trace before anything runs.

Nearly always the last write before it covers the whole read, and one number a row says it all. Rows that see
several writes, as layers written one by one into an object, get a short list of ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kvreplay.data.shaping import BLOCK_BYTES
from kvreplay.plan.plan import DELETE, READ, WRITE, Plan
from kvreplay.plan.residency import Residency

_NEVER = -(2**31)
"""No version: nothing was written there."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The versions that reads must find."""

    version: Any
    """int32 a planned row."""
    ranges: dict[int, list[tuple[int, int, int]]]
    """By planned row that sees several: (first block, block after the last, version)."""

    def versions(self, row: int, offset: int, blocks: int) -> tuple[Any, Any]:
        """Return int64 versions of `blocks` blocks from `offset` on, and bool: whether they were ever written."""
        import numpy as np

        found = self.ranges.get(row)
        if found is None:
            return np.full(blocks, self.version[row], np.int64), np.ones(blocks, bool)
        first = offset // BLOCK_BYTES
        result = np.full(blocks, _NEVER, np.int64)
        for start, end, version in found:
            result[max(0, start - first) : max(0, end - first)] = version
        return result, result != _NEVER


def expect(plan: Plan, residency: Residency, alignments: Sequence[int]) -> Expected:
    """Return what the reads of `plan` must find; `alignments`: each tier's padding, in bytes."""
    import numpy as np

    count = len(plan)
    align = np.array(alignments, dtype=np.int64)[plan.tier]
    start, end = plan.start(slice(None)), -(-(plan.offset + plan.length) // align) * align
    key = plan.tier.astype(np.int64) * (int(plan.object_id.max()) + 1) + plan.object_id
    order = np.argsort(key, kind="stable")
    op, key_, start_, end_ = plan.op[order], key[order], start[order], end[order]
    at = np.arange(count)
    is_new = np.append(True, (key_[1:] != key_[:-1]) | (op[:-1] == DELETE))
    life = np.maximum.accumulate(np.where(is_new, at, 0))
    wrote = np.maximum.accumulate(np.where(op == WRITE, at, -1))
    wrote = np.where(wrote >= life, wrote, -1)
    seen = np.maximum(wrote, 0)
    is_covered = (wrote < 0) | ((start_[seen] <= start_) & (end_[seen] >= end_))
    # What was populated has version 0, see populate_plan.
    found = np.where(wrote < 0, 0, plan.version[order][seen])
    version = np.zeros(count, np.int32)
    version[order] = found
    odd = np.unique(key_[(op == READ) & ~is_covered])
    ranges: dict[int, list[tuple[int, int, int]]] = {}
    for one in odd.tolist():
        rows = order[np.searchsorted(key_, one) : np.searchsorted(key_, one, side="right")]
        ranges |= _walk(plan, rows, start, end, _populated(residency, plan, int(rows[0])))
    return Expected(version, ranges)


def _populated(residency: Residency, plan: Plan, row: int) -> int:
    """Return the blocks that were written before the run for the object of `row`."""
    is_it = (residency.populate_object == plan.object_id[row]) & (residency.populate_tier == plan.tier[row])
    return -(-int(residency.populate_bytes[is_it].sum()) // BLOCK_BYTES)


def _walk(plan: Plan, rows: Any, start: Any, end: Any, populated: int) -> dict[int, list[tuple[int, int, int]]]:
    """Follow one object in one tier through its `rows`; return the ranges that its reads see."""
    import numpy as np

    blocks = np.full(max(populated, int(end[rows].max()) // BLOCK_BYTES), _NEVER, np.int64)
    blocks[:populated] = 0
    ranges = {}
    for row in rows.tolist():
        first, last = int(start[row]) // BLOCK_BYTES, int(end[row]) // BLOCK_BYTES
        if plan.op[row] == DELETE:
            blocks[:] = _NEVER
        elif plan.op[row] == WRITE:
            blocks[first:last] = plan.version[row]
        elif last > first:
            part = blocks[first:last]
            cuts = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), len(part)]
            ranges[row] = [(first + a, first + b, int(part[a])) for a, b in pairwise(cuts) if part[a] != _NEVER]
    return ranges
