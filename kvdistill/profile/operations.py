"""Placed operations as a Parquet file in order of time, from any source."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np

from kvdistill.profile.arrivals import ArrivalCounter
from kvtrace.core.schema import TRACE, enum_code

ROW_GROUP_ROWS = 1 << 17
READ, WRITE, DELETE = (enum_code(TRACE, "op", op) for op in ("read", "write", "delete"))


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
