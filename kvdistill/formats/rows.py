"""From the operations of a log to our tables: objects numbered by first appearance, a trace, and ops if it was timed.

A format fills the table `input`; what follows is the same for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvdistill.formats.formats import Rows
from kvdistill.formats.text import one
from kvdistill.queries.database import named
from kvtrace.core.errors import TraceError
from kvtrace.core.run.run_file import OPS_FILE
from kvtrace.core.schema import OBJECTS, OPS, TRACE, Table, arrow_schema, enum_array, enum_code

if TYPE_CHECKING:
    import duckdb

TRACE_FILE, OBJECTS_FILE = "trace.parquet", "trace.objects.parquet"
READ, WRITE, DELETE = (enum_code(TRACE, "op", op) for op in ("read", "write", "delete"))
OK, ERROR = (enum_code(OPS, "outcome", value) for value in ("ok", "error"))
ENGINE = "other"
INPUT = (
    "CREATE TABLE input (file INTEGER, line BIGINT, op TINYINT, name VARCHAR, offset_bytes BIGINT, "
    "length_bytes BIGINT, start_ns BIGINT, end_ns BIGINT, outcome TINYINT, io_bytes BIGINT)"
)
"""One row an operation: codes of `op` and `outcome`; `end_ns` and `io_bytes` null where the log has none."""
_CODES = {
    "phase": enum_code(TRACE, "phase", "other"),
    "kind": enum_code(OBJECTS, "kind", "other"),
    "engine": enum_code(OPS, "engine", ENGINE),
}
_BATCH_ROWS = 1 << 17


def finish(db: duckdb.DuckDBPyConnection, files: Sequence[Path], *, is_measured: bool) -> tuple[list[Rows], int]:
    """Return the tables made of `input`, and its first start in Unix ns, which is their time 0.

    Names that our tables cannot hold (with white space) get `%20` and the like instead.

    Raises:
        TraceError: no row is left.

    """
    count, first_ns = one(db, "SELECT count(*), min(start_ns) FROM input")
    if not count:
        raise TraceError("holds no operation that our tables can hold", path=files[0])
    db.execute(f"UPDATE input SET start_ns = start_ns - {first_ns}, end_ns = end_ns - {first_ns}")
    for name in ("import_objects", "import_ordered"):
        db.execute(named(name))
    rows = [
        Rows(OBJECTS_FILE, OBJECTS, lambda: _batches(db, "SELECT * FROM objects ORDER BY object_id", OBJECTS)),
        Rows(TRACE_FILE, TRACE, lambda: _batches(db, "SELECT * FROM ordered ORDER BY row", TRACE)),
    ]
    if is_measured:
        rows.append(Rows(OPS_FILE, OPS, lambda: _batches(db, "SELECT * FROM ordered ORDER BY row", OPS)))
    return rows, int(first_ns)


def _batches(db: duckdb.DuckDBPyConnection, query: str, table: Table) -> Iterator[Any]:
    import pyarrow as pa

    schema = arrow_schema(table)
    for batch in db.sql(query).to_arrow_reader(_BATCH_ROWS):
        columns = [_column(batch, table, name, schema.field(name).type) for name in table.names]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: Any, table: Table, name: str, type_: Any) -> Any:
    """Return a column; one that the log lacks is null, or the enum value that stands for none."""
    import pyarrow as pa

    if table.column(name).type == "enum":
        if name in _CODES:
            return enum_array(table, name, np.full(batch.num_rows, _CODES[name], dtype=np.int8))
        return enum_array(table, name, batch.column(name).to_numpy())
    if name in ("tier", "rank"):
        return pa.array(np.zeros(batch.num_rows, dtype=np.int64)).cast(type_)
    if name not in batch.schema.names:
        return pa.nulls(batch.num_rows, type_)
    return batch.column(name).cast(type_)
