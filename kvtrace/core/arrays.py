"""Arrays by address: one argument for compiled code that works on many.

To pass thirty arrays to compiled code takes longer than to submit an I/O; to look one up by its address, nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from numba.core import types

from kvtrace.core.compiled import allocating, intrinsic

if TYPE_CHECKING:
    from collections.abc import Sequence


def places_of(arrays: Sequence[Any]) -> Any:
    """Return int64, a row an array: address, length, items a row (1: a vector). The arrays must be kept by the caller.

    Raises:
        ValueError: an array is not contiguous.

    """
    for at, array in enumerate(arrays):
        if not array.flags.c_contiguous:
            raise ValueError(f"arrays[{at}] must be contiguous")
    rows = [(a.ctypes.data, len(a), a.shape[1] if a.ndim == 2 else 1) for a in arrays]  # noqa: PLR2004 - a matrix
    return np.array(rows, np.int64)


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:  # noqa: ARG001 - the form that numba asks for
    """Return an address as a pointer."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.voidptr(types.int64), code


@allocating
def int64s(places: Any, at: int) -> Any:
    """Return array `at` of `places`, a vector of int64."""
    return numba.carray(_pointer(places[at, 0]), places[at, 1], dtype=np.int64)


@allocating
def int32s(places: Any, at: int) -> Any:
    """Return array `at` of `places`, a vector of int32."""
    return numba.carray(_pointer(places[at, 0]), places[at, 1], dtype=np.int32)


@allocating
def uint32s(places: Any, at: int) -> Any:
    """Return array `at` of `places`, a vector of uint32."""
    return numba.carray(_pointer(places[at, 0]), places[at, 1], dtype=np.uint32)


@allocating
def int8s(places: Any, at: int) -> Any:
    """Return array `at` of `places`, a vector of int8."""
    return numba.carray(_pointer(places[at, 0]), places[at, 1], dtype=np.int8)


@allocating
def table(places: Any, at: int) -> Any:
    """Return array `at` of `places`, a matrix of int64."""
    return numba.carray(_pointer(places[at, 0]), (places[at, 1], places[at, 2]), dtype=np.int64)
