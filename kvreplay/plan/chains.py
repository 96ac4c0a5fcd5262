"""Rows laid into a plan: which must wait for which, and which version of its object a write brings; compiled.

A chain holds the rows of a request with their stages, or of an object. Each tells how far back the one before it
stands: positive if it follows that one's group, negative if it shares the group, 0 for the first of a chain, NO_CHAIN
for a row of none. Rows of a chain that may run together share a group; a group is opened when all of the one before it
have completed. What a row waits for is found when its turn comes, so that nothing is known of rows that are far ahead:
4 bytes a row.

A write brings a new version, unless it copies: a demotion, a promotion or a write-through moves what another tier
holds. If that tier is replayed and touched the object last, the write has the object's newest version; 0 is what was
there before the run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvreplay.plan.held.living import DELETE, READ, WRITE
from kvreplay.plan.intake import Columns
from kvtrace.core.compiled import inner, njit
from kvtrace.core.schema import TRACE, Phase, enum_code
from kvtrace.core.structures import Structure, record, table

NO_CHAIN = -(2**31)
LINK = np.dtype([("last", "i4"), ("label", "i4")])
"""A request: its last row and 1 (0: none yet), and that one's stage."""
OBJECT = np.dtype([("last", "i4"), ("newest", "i4"), ("tier", "i1"), ("op", "i1")], align=True)
"""An object: its last row and 1, its newest version, the tier that touched it last and 1, and its last operation."""
LAID = np.dtype([(name, "i8") for name in ("laid", "taken", "low", "left_out")])
"""Rows in the plan; rows that were looked at; the first that may still be under way; how many were left out."""


def among(*phases: Phase) -> Any:
    """Return bool a phase's code: whether it is one of `phases`."""
    return np.isin(np.arange(len(Phase)), [enum_code(TRACE, "phase", phase) for phase in phases])


IS_COPY, IS_BULK = among(Phase.PROMOTE, Phase.STORE, Phase.DEMOTE), among(Phase.SAVE, Phase.RESTORE)
"""By phase: whether a write of it copies what another tier holds; whether it saves or restores a checkpoint."""
IS_LOAD = among(Phase.LOAD, Phase.RETRIEVE)
"""The same: whether a read of it loads cached KV for its request."""


class Laying(Structure):
    """A plan's columns, as `Plan` names them, and what links its rows."""

    state = record(LAID)
    objects, requests = table(OBJECT), table(LINK)
    """By number."""
    is_copy, is_bulk = table("?"), table("?")
    """By phase."""
    absent = table("i4")
    """Which of the rows that are looked at are left out, rising."""
    row, ts_ns, op, tier = table("i8"), table("i8"), table("i1"), table("i1")
    object_id, offset, length, version = table("i4"), table("i8"), table("i8"), table("i4")
    stage_links, object_links = table("i4"), table("i4")
    stream, bulk = table("i4"), table("?")
    """Empty where no row has any."""
    stage_number, object_number = table("i4"), table("i4")
    """Of a plan that slides: the number of a row's request (-1: none) and object, else empty."""
    stage_ended, object_ended = table("i4"), table("i4")
    """Of a plan that slides: where the row before it had ended already, that and 1, negative if it shared its group."""


@inner
def _link(to: int, last: int, is_shared: bool, low: int) -> int:
    """Return the link of the row `to` to the `last` one (and 1) of its chain."""
    if last == 0 or last <= low:
        return 0
    return last - 1 - to if is_shared else to - (last - 1)


@inner
def _ended(last: int, is_shared: bool, low: int) -> int:
    """Return what says which row ended before, if the last one did."""
    if last == 0 or last > low:
        return 0
    return -last if is_shared else last


@inner
def _lay_links(laying: Laying, rows: Columns, i: int, to: int) -> None:
    """Link the row `to` with those before it, and give a write its version."""
    low, op, tier, stage = laying.state.low, rows.op[i], rows.tier[i], rows.stage[i]
    is_sliding, number = len(laying.stage_number) > 0, np.int64(rows.request_number[i])
    laying.stage_links[to] = NO_CHAIN
    if is_sliding:
        laying.stage_ended[to] = 0
    if stage < 0 or number < 0:
        number = np.int64(-1)
    else:
        request = laying.requests[number]
        is_shared = request.last != 0 and request.label == stage
        laying.stage_links[to] = _link(to, request.last, is_shared, low)
        if is_sliding:
            laying.stage_ended[to] = _ended(request.last, is_shared, low)
        request.last, request.label = to + 1, stage
    found = laying.objects[rows.object_number[i]]
    is_shared = found.last != 0 and op == READ and found.op == READ
    laying.object_links[to] = _link(to, found.last, is_shared, low)
    if is_sliding:
        laying.object_ended[to] = _ended(found.last, is_shared, low)
        laying.stage_number[to], laying.object_number[to] = number, rows.object_number[i]
    laying.version[to] = 0
    if op == WRITE:
        if not laying.is_copy[rows.phase[i]] or found.tier == 0 or found.tier == tier + 1:
            found.newest += 1
        laying.version[to] = found.newest
    found.last, found.op = to + 1, op
    if op != DELETE:
        found.tier = tier + 1


@njit
def lay(laying: Laying, rows: Columns, count: int) -> None:
    """Put the first `count` of `rows` behind those that the plan has."""
    state = laying.state
    for i in range(count):
        is_absent = state.left_out < len(laying.absent) and laying.absent[state.left_out] == state.taken
        state.taken += 1
        if is_absent:
            state.left_out += 1
            continue
        to = state.laid
        laying.row[to], laying.ts_ns[to] = rows.row[i], rows.ts_ns[i]
        laying.op[to], laying.tier[to], laying.object_id[to] = rows.op[i], rows.tier[i], rows.object_id[i]
        laying.offset[to], laying.length[to] = rows.offset_bytes[i], rows.length_bytes[i]
        _lay_links(laying, rows, i, to)
        if len(laying.stream):
            laying.stream[to] = rows.stream[i]
        if len(laying.bulk):
            laying.bulk[to] = laying.is_bulk[rows.phase[i]]
        state.laid = to + 1
