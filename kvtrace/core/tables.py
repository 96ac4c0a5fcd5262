"""Read and write the tables of the contract as streams: Parquet, or zstd CSV, chosen by suffix.

Both hold the same content. A reader yields Arrow record batches of the exact schema, whatever the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from kvtrace.core import csv, parquet
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.files import aside
from kvtrace.core.metadata import Metadata
from kvtrace.core.schema import Table

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".parquet", ".csv.zst")
ROW_GROUP_ROWS = 1 << 18


Encoder = parquet.ParquetEncoder | csv.CsvEncoder
"""What a file format writes: whole row groups, then the metadata."""


class Writer:
    """A table being written; rows are gathered into row groups of one size, so bytes never depend on batches."""

    def __init__(
        self, table: Table, meta: Metadata, encoder: Encoder, extras: tuple[str, ...] = (), group_rows: int = 0
    ) -> None:
        """Write rows of `table` with the columns `extras` through `encoder`, and `meta` at the end."""
        self.table, self.meta, self.rows = table, msgspec.structs.replace(meta, schema_version=table.version(extras)), 0
        self._extras, self._group_rows = extras, group_rows or ROW_GROUP_ROWS
        self._encoder, self._pending, self._pending_rows, self._is_whole = encoder, [], 0, False

    _pending: list[pa.RecordBatch]

    @property
    def encoded_rows(self) -> int:
        """How many of the rows are encoded: their memory is needed no more."""
        return self.rows - self._pending_rows

    def write(self, batch: pa.RecordBatch) -> None:
        """Append `batch`, which must have exactly the table's schema, and the extra columns at its end."""
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self.rows += batch.num_rows
        if self._pending_rows >= self._group_rows:
            self._flush(whole=False)

    def update(self, **fields: Any) -> None:
        """Replace fields of the metadata, such as `stats`, before the file ends."""
        self.meta = msgspec.structs.replace(self.meta, **fields)

    def _flush(self, *, whole: bool) -> None:
        import pyarrow as pa

        from kvtrace.core.schema import arrow_schema

        rows = pa.Table.from_batches(self._pending, arrow_schema(self.table, self._extras))
        start = 0
        while rows.num_rows - start >= self._group_rows or (whole and start < rows.num_rows):
            self._encoder.write(rows.slice(start, self._group_rows))
            start += self._group_rows
        rest = rows.slice(start)
        self._pending, self._pending_rows = rest.to_batches(), rest.num_rows

    def finish(self) -> None:
        """Write what is pending and the metadata with the row count; once is enough.

        Who writes several files calls it on all of them first, so that no disk fills up after one has its name.
        """
        if self._is_whole:
            return
        self._flush(whole=True)
        self.update(rows=self.rows)
        self._encoder.finish(self.meta)
        self._encoder.close()
        self._is_whole = True


@contextmanager
def create(
    path: Path | str, table: Table, meta: Metadata, extras: tuple[str, ...] = (), group_rows: int = 0
) -> Iterator[Writer]:
    """Yield a `Writer` of `table` for `path`; the file appears there only if the block ends without an error.

    The file has those columns of the table's `extras` that are named here, in the table's order, in row groups of
    `group_rows` if that is given: a row group lies in memory until it is encoded.
    """
    path = Path(path)
    format_ = _format(path)
    with aside(path) as temporary:
        encoder: Encoder = (
            parquet.ParquetEncoder(temporary, table, extras)
            if format_ == ".parquet"
            else csv.CsvEncoder(temporary, table, extras)
        )
        try:
            writer = Writer(table, meta, encoder, extras, group_rows)
            yield writer
            writer.finish()
        finally:
            encoder.close()


class Reader(Protocol):
    """An open table file."""

    path: Path
    table: Table
    extras: tuple[str, ...]
    """The table's extra columns that the file has."""
    meta: Metadata

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, all columns or the named ones; extra ones that the file lacks have their default."""


def open_table(path: Path | str, table: Table | None = None) -> Reader:
    """Return a reader of the file at `path`, which must hold `table` if one is named.

    Raises:
        TraceError: the file is missing, damaged, of another table, or of a schema version we do not know.

    """
    path = Path(path)
    if not path.is_file():
        raise TraceError("not a regular file" if path.exists() else "no such file", path=path)
    format_ = _format(path)
    reader: Reader = parquet.ParquetReader(path, table) if format_ == ".parquet" else csv.CsvReader(path, table)
    return reader


def checked(path: Path | str, table: Table | None = None) -> Reader:
    """Return a reader of the file at `path`, all of whose rows have been looked at.

    For those who give the file itself to another program, such as DuckDB, which would take whatever stands in it.

    Raises:
        TraceError: as `open_table`, or a row that a reader refuses.

    """
    reader = open_table(path, table)
    state = reader.path.stat()
    _check_rows(reader.path, reader.table, state.st_mtime_ns, state.st_size, state.st_dev, state.st_ino)
    return reader


@lru_cache
def _check_rows(path: Path, table: Table, *_state: int) -> None:
    """Read all of the file at `path`; once for each state of it."""
    for _batch in open_table(path, table).batches():
        pass


def read_table(path: Path | str, table: Table) -> pa.Table:
    """Return the whole table at `path`; for tables known to be small."""
    import pyarrow as pa

    from kvtrace.core.schema import arrow_schema

    reader = open_table(path, table)
    return pa.Table.from_batches(reader.batches(), arrow_schema(reader.table, reader.extras))


def objects_path(trace: Path | str) -> Path:
    """Return where the objects table of `trace` lies: `t.parquet` has `t.objects.parquet`."""
    trace = Path(trace)
    suffix = _format(trace)
    return trace.with_name(trace.name.removesuffix(suffix) + ".objects" + suffix)


def _format(path: Path) -> str:
    for suffix in SUFFIXES:
        if path.name.endswith(suffix) and path.name != suffix:
            return suffix
    what = "kvtrace gen FILE --source FORMAT reads requests; a trace is named" if path.exists() else "name it"
    raise ConfigError(f"{path}: unknown file type; {what} *{' or *'.join(SUFFIXES)}")
