"""DuckDB with bounded memory, and the named queries in `kvdistill/queries/sql`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtrace.core.errors import OutOfMemory

if TYPE_CHECKING:
    # Heavy.
    import duckdb
    import pyarrow as pa


MEMORY_LIMIT = "1GB"
THREADS = 2
PERCENTILE = """
CREATE MACRO percentile(x, q) AS CASE WHEN count(x) * (1 - q) >= 1 THEN quantile_disc(x, q) END
"""
"""An aggregate for every query: nearest rank, null with fewer than 1 / (1 - q) values, as everywhere (statistics.py);
`q` is a literal such as 0.99, which DuckDB keeps exact."""


@contextmanager
def connect(scratch: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection whose memory is bounded and which spills into `scratch`, or a folder of its own."""
    import duckdb

    with tempfile.TemporaryDirectory(prefix="kvdistill-", dir=scratch) as folder:
        connection = duckdb.connect(":memory:")
        try:
            connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'")
            connection.execute(f"SET temp_directory = {literal(Path(folder) / 'spill')}")
            connection.execute(f"SET threads = {THREADS}")
            connection.execute("SET enable_progress_bar = false")
            connection.execute(PERCENTILE)
            yield connection
        except duckdb.OutOfMemoryException as error:
            raise out_of_memory(error) from None
        finally:
            connection.close()


def out_of_memory(error: duckdb.Error) -> OutOfMemory:
    """Return what to say of a query that needs more than MEMORY_LIMIT and cannot spill."""
    first = str(error).strip().split("\n")[0]
    return OutOfMemory(f"a query needs more than {MEMORY_LIMIT} of memory, and cannot do with less: {first}")


def literal(value: object) -> str:
    """Return `value` as an SQL string."""
    return "'" + str(value).replace("'", "''") + "'"


def query(connection: duckdb.DuckDBPyConnection, name: str, **values: object) -> list[dict[str, Any]]:
    """Return the rows of the named query in `kvdistill/queries/sql`, with `$name` parameters from `values`."""
    rows: list[dict[str, Any]] = query_table(connection, name, **values).to_pylist()
    return rows


def query_table(connection: duckdb.DuckDBPyConnection, name: str, **values: object) -> pa.Table:
    """Return the result of the named query as an Arrow table."""
    return connection.sql(named(name), params=values or None).to_arrow_table()


def named(name: str) -> str:
    """Return the text of the named query."""
    return resources.files("kvdistill.queries").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
