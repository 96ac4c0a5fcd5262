"""Placed operations: objects in one address space by first fit, and the Parquet file of operations in order of time.

Placing takes two passes over a trace. The first learns how long each object gets and which are read before they are
written (those exist from the start); the second allocates each object's extent and frees it, row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kvdistill.profile.arrivals import ArrivalCounter
from kvdistill.profile.profile import AddressSpace
from kvdistill.queries.window import DELETE
from kvtrace.core.errors import TraceError
from kvtrace.core.native.library import I1, I8, function
from kvtrace.core.schema import MOST

ROW_GROUP_ROWS = 1 << 17


class IoWriter:
    """Writes placed operations, and counts their arrivals as they pass.

    Columns: ts_ns, op (code), address and io_bytes (whole sectors; 0 for a delete), length_bytes, request_id and
    stage (-1 for null), completed_ns (null if not timed), process (-1 if it is not known).
    """

    def __init__(self, path: Path) -> None:
        """Write to `path`."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path, self.rows, self.moving_rows = path, 0, 0
        self.arrivals = ArrivalCounter()
        self._schema = pa.schema(
            [
                ("ts_ns", pa.int64()),
                ("op", pa.int8()),
                ("address", pa.int64()),
                ("io_bytes", pa.int64()),
                ("length_bytes", pa.int64()),
                ("request_id", pa.int64()),
                ("stage", pa.int32()),
                ("completed_ns", pa.int64()),
                ("process", pa.int64()),
            ]
        )
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd", compression_level=1)

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, *_error: object) -> None:
        """End the file."""
        self._writer.close()

    def write(self, part: dict[str, Any]) -> None:
        """Append operations, which must not be earlier than those before; columns that are left out are null."""
        import pyarrow as pa

        rows = len(part["op"])
        moving = (part["io_bytes"] > 0) & (part["op"] != DELETE)
        self.rows += rows
        self.moving_rows += int(moving.sum())
        self.arrivals.add(part["ts_ns"][moving])
        columns = {
            # A time that is not known comes as NaN.
            field.name: pa.array(part[field.name], field.type, from_pandas=True)
            if field.name in part
            else _absent(field, rows)
            for field in self._schema
        }
        self._writer.write_table(pa.table(columns, schema=self._schema), row_group_size=ROW_GROUP_ROWS)


def _absent(field: Any, rows: int) -> Any:
    import pyarrow as pa

    return pa.nulls(rows, field.type) if field.name == "completed_ns" else np.full(rows, -1)


GRANULE_BYTES = 4096
"""Objects begin at multiples of this and are as long: a page, and the largest common sector."""

_SPACE_BYTES = 1 << 62
_TOTALS = np.dtype([(name, I8) for name in ("live_bytes", "peak_bytes", "span_bytes", "stray_deletes")])
_ROWS = {"op": I1, "object_id": I8, "offset_bytes": I8, "length_bytes": I8}
_space_open = function("space_open", int, int, int, returns=int)
_space_close = function("space_close", int)
_survey = function("placement_survey", int, *_ROWS.values(), I8, I1, I8, returns=int)
_place_prior = function("placement_prior", int, int, I8, I8, I8, _TOTALS, returns=bool)
_place = function("placement_rows", int, int, *_ROWS.values(), I8, int, I8, _TOTALS, I8, I8, returns=bool)


@dataclass(frozen=True, slots=True)
class Objects:
    """Facts of a tier's objects after the first pass, by object id."""

    reserved_bytes: NDArray[np.int64]
    """Longest extent ever touched, in whole granules; 0 if never read or written."""
    prior: NDArray[np.int64]
    """Objects read before they are written, in order of their first read."""
    deletes: int


@dataclass(frozen=True, slots=True)
class ObjectPlacement:
    """The address space after the last operation."""

    space: AddressSpace
    stray_deletes: int
    """Deletes of objects that were not there: nothing to free."""


def survey(rows: Callable[[], Iterator[dict[str, Any]]]) -> Objects:
    """Return the facts of the objects in `rows`."""
    ends = np.zeros(1 << 16, dtype=np.int64)
    known = np.zeros(1 << 16, dtype=np.int8)
    prior: list[NDArray[np.int64]] = []
    deletes = 0
    for part in rows():
        objects, ops = part["object_id"], part["op"]
        columns, found = _row_columns(part), np.empty(len(objects), dtype=np.int64)
        if objects.max() >= len(ends):
            size = max(int(objects.max()) + 1, 2 * len(ends))
            ends, known = _grown(ends, size), _grown(known, size)
        count = _survey(len(objects), *columns, ends, known, found)
        prior.append(found[:count].copy())
        deletes += int((ops == DELETE).sum())
    reserved = -(-ends // GRANULE_BYTES) * GRANULE_BYTES
    _require_fits(reserved.sum(dtype=np.float64) <= MOST)
    return Objects(reserved, np.concatenate(prior) if prior else np.empty(0, np.int64), deletes)


def _require_fits(fits: bool) -> None:
    if not fits:
        raise TraceError("the objects are longer together than can be reckoned with", column="offset_bytes")


def _row_columns(part: dict[str, Any]) -> list[Any]:
    return [np.ascontiguousarray(part[name], dtype) for name, dtype in _ROWS.items()]


def _grown(array: Any, size: int) -> Any:
    grown = np.zeros(size, dtype=array.dtype)
    grown[: len(array)] = array
    return grown


def place(
    rows: Callable[[], Iterator[dict[str, Any]]], objects: Objects, sink: Callable[[dict[str, Any]], None]
) -> ObjectPlacement:
    """Place `rows` and hand each batch, with what was placed, to `sink`.

    `sink` gets the rows' arrays plus `address` (bytes; -1 for deletes) and `io_bytes` (the length widened to
    whole sectors; 0 for deletes).

    Raises:
        TraceError: no free extent is large enough for an object.

    """
    reserved, totals = objects.reserved_bytes, np.zeros(1, _TOTALS)
    base = np.full(len(reserved), -1, dtype=np.int64)
    space = _space_open(_SPACE_BYTES, GRANULE_BYTES, 0)
    try:
        _require_fits(_place_prior(space, len(objects.prior), objects.prior, reserved, base, totals))
        prior_bytes = int(totals["live_bytes"][0])
        for part in rows():
            count = len(part["op"])
            address, io_bytes = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
            of = (reserved, len(reserved), base, totals)
            _require_fits(_place(space, count, *_row_columns(part), *of, address, io_bytes))
            sink(part | {"address": address, "io_bytes": io_bytes})
    finally:
        _space_close(space)
    live_bytes, peak_bytes, span_bytes, stray_deletes = totals[0].tolist()
    found = AddressSpace(
        span_bytes=span_bytes,
        peak_live_bytes=peak_bytes,
        prior_objects=len(objects.prior),
        prior_bytes=prior_bytes,
        end_live_bytes=live_bytes,
    )
    return ObjectPlacement(found, stray_deletes)
