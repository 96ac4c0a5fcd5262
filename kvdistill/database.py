"""DuckDB with bounded memory, and views of our files by the names of the contract's tables."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtrace.core import parquetio, traceio
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.schema import OBJECTS, TABLES, TRACE, arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import duckdb
    import pyarrow as pa

    from kvtrace.core.schema import Table

MEMORY_LIMIT = "1GB"
THREADS = 2


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
            yield connection
        finally:
            connection.close()


def literal(value: object) -> str:
    """Return `value` as an SQL string."""
    return "'" + str(value).replace("'", "''") + "'"


def query(connection: duckdb.DuckDBPyConnection, name: str, **values: object) -> list[dict[str, Any]]:
    """Return the rows of the named query in `kvdistill/sql`, with `$name` parameters from `values`."""
    rows: list[dict[str, Any]] = query_table(connection, name, **values).to_pylist()
    return rows


def query_table(connection: duckdb.DuckDBPyConnection, name: str, **values: object) -> pa.Table:
    """Return the result of the named query as an Arrow table."""
    text = resources.files("kvdistill").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")
    return connection.sql(text, params=values or None).to_arrow_table()


def register(connection: duckdb.DuckDBPyConnection, paths: Sequence[Path], scratch: Path) -> dict[str, list[Path]]:
    """Make views of the tables in `paths` (files, or folders of them); return the files behind each.

    Several files of one table are one view, in the order given. A trace brings its objects table with it.
    CSV is first written to Parquet in `scratch`.

    Raises:
        TraceError: a file is missing, damaged or none of ours.
        ConfigError: a folder holds no table.

    """
    found: dict[str, list[Path]] = {}
    for path in (file for given in paths for file in _tables_in(given)):
        reader = _open_any(path)
        _add(found, reader.table, path, scratch)
        if reader.table is TRACE:
            objects = traceio.objects_path(path)
            if objects.is_file() and objects not in paths:
                traceio.open_table(objects, OBJECTS)
                _add(found, OBJECTS, objects, scratch)
    views = {name: list(dict.fromkeys(files)) for name, files in sorted(found.items())}
    for name, files in views.items():
        listed = ", ".join(literal(file) for file in files)
        connection.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet([{listed}])")  # noqa: S608 - quoted
    return views


def _add(found: dict[str, list[Path]], table: Table, path: Path, scratch: Path) -> None:
    files = found.setdefault(table.name, [])
    is_parquet = path.name.endswith(".parquet")
    files.append(_unpatterned(path, scratch) if is_parquet else _as_parquet(path, table, scratch))


def _unpatterned(path: Path, scratch: Path) -> Path:
    """Return a name of the file at `path` that DuckDB does not read as a pattern."""
    if not set("*?[") & set(str(path)):
        return path
    link = scratch / f"link.{len(list(scratch.iterdir()))}.parquet"
    link.symlink_to(path.resolve())
    return link


def _tables_in(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(f for f in path.iterdir() if f.name.endswith(traceio.SUFFIXES) and not f.name.startswith("."))
    if not files:
        raise ConfigError(f"{path}: no table of ours in this folder (*{' or *'.join(traceio.SUFFIXES)})")
    return files


def _open_any(path: Path) -> traceio.Reader:
    """Open `path` as whichever table of the contract it holds."""
    for table in TABLES.values():
        try:
            return traceio.open_table(path, table)
        except TraceError as error:
            if "holds the table" not in str(error):
                raise
    raise TraceError("holds no table of ours", path=path)


def _as_parquet(path: Path, table: Table, scratch: Path) -> Path:
    import pyarrow.parquet as pq

    target = scratch / f"{path.name}.{len(list(scratch.iterdir()))}.parquet"
    with pq.ParquetWriter(target, arrow_schema(table), compression="zstd") as out:
        for batch in traceio.open_table(path, table).batches():
            out.write_batch(batch, row_group_size=parquetio.BATCH_ROWS)
    return target
