"""From the lines of a log to our tables: load text into DuckDB, leave out what does not fit, write what is left.

A format fills the table `input`, one row an operation. `finish` makes the tables: objects numbered by first
appearance, a trace, and ops if the operations were timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvdistill.formats.formats import Account, Rows
from kvdistill.queries.database import BATCH_ROWS, literal, named
from kvtrace.core.errors import TraceError, need_file
from kvtrace.core.files import ZSTD_MAGIC
from kvtrace.core.run.run_file import OPS_FILE
from kvtrace.core.schema import OBJECTS, OPS, TRACE, Table, arrow_schema, enum_array, enum_code
from kvtrace.core.tables import unpacked

if TYPE_CHECKING:
    import duckdb


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


_HEAD_BYTES = 1 << 16


def one(db: duckdb.DuckDBPyConnection, query: str) -> tuple[Any, ...]:
    """Return the one row that `query` gives."""
    (row,) = db.execute(query).fetchall()
    return tuple(row)


def first_line(path: Path) -> str:
    """Return the first line of `path`, plain or zstd, without its end; TraceError if there is none."""
    return first_lines(path)[0]


def first_lines(path: Path) -> list[str]:
    """Return the lines in the first 64 KiB of `path`, plain or zstd; the last may be cut. TraceError if it is empty."""
    need_file(path)
    if is_zstd(path):
        head = next(unpacked(path), b"")[:_HEAD_BYTES]
    else:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    text = head.decode(errors="replace")
    if not text.strip():
        raise TraceError("empty: there is nothing to import", path=path)
    return text.splitlines()


def is_zstd(path: Path) -> bool:
    """Return whether `path` is compressed, whatever its name."""
    with path.open("rb") as file:
        return file.read(len(ZSTD_MAGIC)) == ZSTD_MAGIC


def load(
    db: duckdb.DuckDBPyConnection,
    path: Path,
    columns: Sequence[str],
    account: Account,
    *,
    delimiter: str,
    skip: int = 0,
    quote: str = "",
    comment: str = "",
) -> None:
    """Make the table `raw` of the lines of `path` after `skip`: `line` (from 0) and `columns`, as text.

    Missing columns at the end of a line are null; lines with too many, or that are no text, are left out and counted.

    Raises:
        TraceError: the file cannot be read to its end.

    """
    if is_zstd(path):
        # DuckDB would unpack without end what was made to fill a machine.
        for _part in unpacked(path):
            pass
    types = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in columns)
    options = {
        "delim": delimiter,
        "quote": quote,
        "escape": quote,
        "comment": comment,
        "columns": f"{{{types}}}",
        "skip": skip,
        "compression": "zstd" if is_zstd(path) else "none",
    }
    shown = ", ".join(
        f"{name}={value if name in ('columns', 'skip') else literal(value)}" for name, value in options.items()
    )
    for table in ("raw", "reject_errors", "reject_scans"):
        db.execute(f"DROP TABLE IF EXISTS {table}")
    settings = f"header=false, auto_detect=false, all_varchar=true, null_padding=true, store_rejects=true, {shown}"
    query = f"SELECT row_number() OVER () - 1 AS line, * FROM read_csv({_unpatterned(path)}, {settings})"
    import duckdb

    try:
        db.execute(f"CREATE TABLE raw AS {query}")
    except duckdb.OutOfMemoryException:
        # `connect` says it.
        raise
    except duckdb.Error as error:
        raise TraceError(f"cannot be read to its end: {str(error).splitlines()[0]}", path=path) from None
    (rows,) = one(db, "SELECT count(*) FROM raw")
    count, line, why = one(db, "SELECT count(DISTINCT line), min(line), min_by(error_type, line) FROM reject_errors")
    account.rows += rows + count
    account.leave_out(
        "not of the format's columns", count, f"{path.name}, line {line}: {str(why).replace('_', ' ').lower()}"
    )


def leave_out(db: duckdb.DuckDBPyConnection, path: Path, account: Account, reason: str, condition: str) -> None:
    """Delete the rows of `raw` where `condition` holds, and count them in `account` under `reason`."""
    count, line = one(db, f"SELECT count(*), min(line) FROM raw WHERE {condition}")
    account.leave_out(reason, count, f"{path.name}, row {line}")
    if count:
        db.execute(f"DELETE FROM raw WHERE {condition}")


def _unpatterned(path: Path) -> str:
    """Return `path` as an SQL string that DuckDB does not take for a pattern."""
    return literal("".join(f"[{c}]" if c in "*?[" else c for c in str(path)))


TRACE_FILE, OBJECTS_FILE = "trace.parquet", "trace.objects.parquet"


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
        Rows(OBJECTS_FILE, OBJECTS, lambda: batches(db, "SELECT * FROM objects ORDER BY object_id", OBJECTS)),
        Rows(TRACE_FILE, TRACE, lambda: batches(db, "SELECT * FROM ordered ORDER BY row", TRACE)),
    ]
    if is_measured:
        rows.append(Rows(OPS_FILE, OPS, lambda: batches(db, "SELECT * FROM ordered ORDER BY row", OPS)))
    return rows, int(first_ns)


def batches(db: duckdb.DuckDBPyConnection, query: str, table: Table) -> Iterator[Any]:
    """Yield the result of `query` as Arrow record batches of the schema of `table`; a column that it lacks is null."""
    import pyarrow as pa

    schema = arrow_schema(table)
    for batch in db.sql(query).to_arrow_reader(BATCH_ROWS):
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
