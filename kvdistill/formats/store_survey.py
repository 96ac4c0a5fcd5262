"""What a pass over a tier's rows learns of its objects: which existed before, how far they reach, what was gone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvtrace.core.errors import TraceError
from kvtrace.core.schema import TRACE, enum_code

if TYPE_CHECKING:
    from collections.abc import Iterable

READ, WRITE, DELETE = (enum_code(TRACE, "op", op) for op in ("read", "write", "delete"))
COLUMNS = ("object_id", "offset_bytes", "request_id", "rank")
"""Columns that `survey` needs beside those that every window of a trace has."""
_NEVER = -1


@dataclass(slots=True)
class Survey:
    """What one pass over a tier's rows learns of its objects; arrays are by object id."""

    last_op: Any
    """The code of the last operation seen; -1 if there was none."""
    extent: Any
    """The furthest byte that was read or written."""
    is_prior: Any
    """Read before it was written: it existed from the start."""
    rows: dict[int, int] = field(default_factory=lambda: dict.fromkeys((READ, WRITE, DELETE), 0))
    gone_reads: int = 0
    gone_deletes: int = 0
    partial_writes: int = 0
    requests: int = 0
    ranks: int = 0


def survey(parts: Iterable[dict[str, Any]]) -> Survey:
    """Return what `parts`, rows of a trace as `tier_rows` yields them with `COLUMNS`, say of their objects."""
    found = Survey(np.empty(0, np.int8), np.empty(0, np.int64), np.empty(0, bool))
    for part in parts:
        objects, ops = part["object_id"], part["op"]
        for name in ("object_id", "offset_bytes", "length_bytes"):
            if part[name].min() < 0:
                raise TraceError("a negative number", column=name)
        _grow(found, int(objects.max()) + 1)
        moves = ops != DELETE
        np.maximum.at(found.extent, objects[moves], (part["offset_bytes"] + part["length_bytes"])[moves])
        before = _previous(found, objects, ops)
        # What failed in a run may have failed because nothing was there.
        was_there = (ops == READ) & (part["error"] == "") if "error" in part else ops == READ
        found.is_prior[objects[(before == _NEVER) & was_there]] = True
        found.gone_reads += int(((before == DELETE) & (ops == READ)).sum())
        found.gone_deletes += int((((before == DELETE) | (before == _NEVER)) & (ops == DELETE)).sum())
        found.partial_writes += int(((ops == WRITE) & (part["offset_bytes"] > 0)).sum())
        found.requests += int((part["request_id"] >= 0).sum())
        found.ranks += int((part["rank"] > 0).sum())
        for code in found.rows:
            found.rows[code] += int((ops == code).sum())
    return found


def _grow(found: Survey, count: int) -> None:
    if count > len(found.last_op):
        more = max(count, 2 * len(found.last_op)) - len(found.last_op)
        found.last_op = np.concatenate([found.last_op, np.full(more, _NEVER, np.int8)])
        found.extent = np.concatenate([found.extent, np.zeros(more, np.int64)])
        found.is_prior = np.concatenate([found.is_prior, np.zeros(more, bool)])


def _previous(found: Survey, objects: Any, ops: Any) -> Any:
    """Return the operation before each row on the same object, -1 if it is the first; note the last ones."""
    order = np.argsort(objects, kind="stable")
    of, did = objects[order], ops[order]
    is_first = np.ones(len(of), dtype=bool)
    is_first[1:] = of[1:] != of[:-1]
    before = np.empty(len(of), dtype=np.int8)
    before[1:] = did[:-1]
    before[is_first] = found.last_op[of[is_first]]
    is_last = np.append(is_first[1:], True)
    found.last_op[of[is_last]] = did[is_last]
    result = np.empty(len(of), dtype=np.int8)
    result[order] = before
    return result
