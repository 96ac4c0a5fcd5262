"""Whose each row of a dealt trace is, row by row, in native code: what goes to whom depends on what went before."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from kvtrace.core.native.library import library

OWN = np.dtype([("first", np.int16), ("owner", np.int16), ("is_shared", np.int8)], align=True)
"""Of an object: the rank + 1 that touched it first, the one that wrote it last, whether several touch it."""
SHARED = np.dtype([("deleted_row", np.int64), ("written_bytes", np.int64), ("is_elsewhere", np.int64)])
"""Of an object that several ranks touch, in a tier: for one of them, the row that deleted it (-1: none), how much it
wrote since from the start on, and whether another one wrote it since."""
_COLUMNS = ("op", "tier", "object_id", "offset_bytes", "length_bytes", "request")


class DealtStruct(ctypes.Structure):
    """`Dealt` of deal.c."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        ("first_row", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in _COLUMNS),
    )


@cache
def _native() -> ctypes.CDLL:
    found, at, number = library(), ctypes.c_void_p, ctypes.c_int64
    found.deal_assign.argtypes, found.deal_assign.restype = [at, at, number, at, at, at, at], None
    found.deal_find_needless.argtypes = [at, at, ctypes.c_int16, number, at, at, at]
    found.deal_find_needless.restype = number
    return found


def _dealt(rows: Mapping[str, Any], first_row: int = 0) -> Any:
    places = {name: rows[name].ctypes.data for name in _COLUMNS if name in rows}
    return ctypes.byref(DealtStruct(rows=len(rows["op"]), first_row=first_row, **places))


def assign(
    rows: Mapping[str, Any], wanted: Any, request: Any, count: int, own: Any, of_request: Any, counts: Any
) -> Any:
    """Return int16 the rank of each row, of `count`: `wanted` (int16), the object's owner (-1), or by the object (-2).

    `own` (OWN an object) and `of_request` (int16 a request: rank + 1; -1 if several) go on from batch to batch;
    `counts` adds up the rows, and their bytes, that touch an object which another rank touched first. `request` (int64)
    is -1 where a row waits for no other.
    """
    ranks = np.empty(len(wanted), np.int16)
    arrays = (array.ctypes.data for array in (own, of_request, counts, ranks))
    _native().deal_assign(_dealt({**rows, "request": request}), wanted.ctypes.data, count, *arrays)
    return ranks


def find_needless(
    rows: Mapping[str, Any], ranks: Any, rank: int, first_row: int, tiers: int, place: Any, shared: Any
) -> list[int]:
    """Return the deletes of `rank` whose object it reads later although only others wrote it since.

    `place` (int32 an object) tells where it stands among those that several touch, or -1; `shared` (SHARED, by such an
    object and tier) goes on from batch to batch.
    """
    found = np.empty(len(ranks), np.int64)
    arrays = (array.ctypes.data for array in (place, shared, found))
    count = _native().deal_find_needless(_dealt(rows, first_row), ranks.ctypes.data, rank, tiers, *arrays)
    return [int(row) for row in found[:count]]
