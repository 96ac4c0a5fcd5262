"""Compare the objects table of a trace with its rows: every object is listed, with its size and a fitting kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import numpy as np

from kvtrace.core.errors import TraceError
from kvtrace.core.schema import OBJECTS, TRACE, Phase, enum_code

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from kvtrace.core.tables import Reader

_RETRIEVE, _DOCUMENT = enum_code(TRACE, "phase", Phase.RETRIEVE), enum_code(OBJECTS, "kind", "document")


def retrieved(batch: pa.RecordBatch) -> set[int]:
    """Return the objects that rows of `batch` retrieve."""
    is_retrieved = batch.column("phase").indices.to_numpy() == _RETRIEVE
    return set(batch.column("object_id").to_numpy()[is_retrieved].tolist())


def check_objects(reader: Reader, extents: NDArray[np.int64], documents: set[int]) -> None:
    """Raise TraceError at the first row of the table that the trace contradicts.

    `extents[o]` are the bytes that object o has in the trace, 0 if it is never written; `documents` are retrieved.
    What the trace never wrote may be listed all the same: no tier took it.
    """
    wanted = np.array(sorted(documents), dtype=np.int64)
    row, before, is_listed = 0, -1, np.zeros(len(extents), dtype=bool)
    for batch in reader.batches():
        ids = batch.column("object_id").to_numpy()
        steps = np.diff(ids, prepend=before)
        if (steps <= 0).any():
            at = int(np.argmax(steps <= 0))
            _refuse(reader, row + at, "object_id", f"object {ids[at]} is out of order, or twice in the table")
        is_known = ids < len(extents)
        is_listed[ids[is_known]] = True
        written = np.zeros(len(ids), dtype=np.int64)
        written[is_known] = extents[ids[is_known]]
        _check_sizes(reader, row, batch, written)
        _check_kinds(reader, row, batch, np.isin(ids, wanted))
        row, before = row + len(ids), int(ids[-1]) if len(ids) else before
    missing = np.flatnonzero((extents > 0) & ~is_listed)
    if len(missing):
        raise TraceError(f"object {missing[0]} of the trace is not in this table", path=reader.path)


def _check_sizes(reader: Reader, row: int, batch: pa.RecordBatch, written: NDArray[np.int64]) -> None:
    sizes = batch.column("size_bytes")
    is_wrong = sizes.is_valid().to_numpy(zero_copy_only=False) & (written > 0)
    is_wrong &= sizes.fill_null(0).to_numpy() != written
    if is_wrong.any():
        at = int(np.argmax(is_wrong))
        object_id = batch.column("object_id")[at]
        _refuse(
            reader, row + at, "size_bytes",
            f"object {object_id} is {sizes[at]} bytes here, but {written[at]} in the trace",
        )  # fmt: skip


def _check_kinds(reader: Reader, row: int, batch: pa.RecordBatch, is_document: NDArray[np.bool_]) -> None:
    kinds = batch.column("kind").indices.to_numpy()
    is_wrong = is_document & (kinds != _DOCUMENT)
    if is_wrong.any():
        at = int(np.argmax(is_wrong))
        kind = OBJECTS.column("kind").values[kinds[at]]
        object_id = batch.column("object_id")[at]
        _refuse(
            reader, row + at, "kind", f"object {object_id} is a {kind} here, but the trace retrieves it as a document"
        )


def _refuse(reader: Reader, row: int, column: str, message: str) -> NoReturn:
    raise TraceError(message, path=reader.path, row=row, column=column)
