"""Whose each row of a dealt trace is, row by row, in compiled code: what goes to whom depends on what went before."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvreplay.plan.plan import DELETE, WRITE
from kvtrace.core.compiled import njit

OWN_SCHEMA = np.dtype([("first", np.int16), ("owner", np.int16), ("is_shared", np.int8)])
"""Of an object: the rank + 1 that touched it first, the one that wrote it last, whether several touch it."""


@njit
def assign(
    wanted: Any,
    op: Any,
    object_id: Any,
    request: Any,
    length: Any,
    count: int,
    own: Any,
    of_request: Any,
    counts: Any,
    ranks: Any,
) -> None:
    """Put into `ranks` the rank of each row, of `count`: `wanted`, the object's owner (-1), or by the object (-2).

    `own` and `of_request` (rank + 1; -1 if several) go on from batch to batch; `counts` adds up the rows, and their
    bytes, that touch an object which another rank touched first. `request` is -1 where a row waits for no other.
    """
    for row in range(len(wanted)):
        object_ = object_id[row]
        rank = wanted[row]
        if rank == -1 and own[object_].owner:
            rank = own[object_].owner - 1
        elif rank < 0:
            # Consecutive objects of one request would meet the same rank by their numbers alone.
            rank = (object_ * 0x9E3779B1 >> 16) % count
        ranks[row] = rank
        if own[object_].first == 0:
            own[object_].first = rank + 1
            own[object_].owner = rank + 1
        elif own[object_].first != rank + 1:
            own[object_].is_shared = 1
            counts[0] += 1
            counts[1] += 0 if op[row] == DELETE else length[row]
        if op[row] == WRITE:
            own[object_].owner = rank + 1
        asker = request[row]
        if asker >= 0:
            if of_request[asker] == 0:
                of_request[asker] = rank + 1
            elif of_request[asker] != rank + 1:
                of_request[asker] = -1


@njit
def find_needless(
    op: Any,
    tier: Any,
    object_id: Any,
    offset: Any,
    length: Any,
    ranks: Any,
    rank: int,
    first_row: int,
    tiers: int,
    place: Any,
    deleted: Any,
    written: Any,
    is_elsewhere: Any,
    found: Any,
) -> int:
    """Put into `found` the deletes of `rank` whose object it reads later although only others wrote it since.

    By object that several touch (`place`, -1 for others) and tier: the row that deleted it, how much of it `rank` wrote
    since, and whether another rank wrote it since. Returns how many were found.
    """
    count = 0
    for row in range(len(op)):
        at = place[object_id[row]]
        if at < 0:
            continue
        at = at * tiers + tier[row]
        end = offset[row] + length[row]
        if ranks[row] != rank:
            if op[row] == WRITE:
                is_elsewhere[at] = True
        elif op[row] == DELETE:
            deleted[at] = first_row + row
            written[at] = 0
            is_elsewhere[at] = False
        elif deleted[at] >= 0:
            if op[row] == WRITE:
                if offset[row] <= written[at]:
                    written[at] = max(written[at], end)
            elif is_elsewhere[at] and end > written[at]:
                found[count] = deleted[at]
                deleted[at] = -1
                count += 1
    return count
