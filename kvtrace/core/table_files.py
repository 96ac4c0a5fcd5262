"""Read and write single files of the tables of the contract as streams: Parquet, or zstd CSV.

Both formats hold the same content, and a reader yields Arrow record batches of the exact schema
from either. `parquet_tables.py` and `csv_tables.py` have the formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kvtrace.core import pa
from kvtrace.core.csv_tables import CsvEncoder, CsvReader
from kvtrace.core.errors import TraceError
from kvtrace.core.files import aside
from kvtrace.core.metadata import Metadata
from kvtrace.core.parquet_tables import ParquetEncoder, ParquetReader
from kvtrace.core.schema import Table, arrow_schema
from kvtrace.core.table_names import format_suffix
from kvtrace.core.table_reader import Reader

ROW_GROUP_ROWS = 1 << 18
"""Rows that stay in memory until they are encoded.

The footer of each row group (11 KB) stays until the file is finished.
"""


class Encoder(Protocol):
    """The writer of one format: it gets whole row groups, then the metadata."""

    def write(self, table: pa.Table) -> None:
        """Write the rows of `table`."""

    def finish(self, meta: Metadata) -> None:
        """Write the final metadata."""

    def close(self) -> None:
        """Close all files."""


class Writer:
    """A table being written.

    Rows are gathered into row groups of one size, so that the bytes of the file do not depend on
    the sizes of the batches.
    """

    def __init__(
        self, table: Table, meta: Metadata, encoder: Encoder, extras: tuple[str, ...] = ()
    ) -> None:
        """Write rows of `table` with the columns `extras` through `encoder`, and `meta` at the end.

        Table and schema version in `meta` are replaced by those of `table`.
        """
        self.table, self.rows = table, 0
        self.meta = with_table(meta, table, extras)
        self._encoder, self._extras, self._is_finished = encoder, extras, False
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0

    @property
    def encoded_rows(self) -> int:
        """The number of rows that are encoded and no longer in memory."""
        return self.rows - self._pending_rows

    def write(self, batch: pa.RecordBatch) -> None:
        """Append `batch`, which has exactly the table's columns, then the extra columns."""
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self.rows += batch.num_rows
        if self._pending_rows >= ROW_GROUP_ROWS:
            self._flush(is_end=False)

    def update(self, **fields: Any) -> None:
        """Replace fields of the metadata, such as `stats`, before the file ends."""
        self.meta = msgspec.structs.replace(self.meta, **fields)

    def _flush(self, *, is_end: bool) -> None:
        """Encode the pending rows in whole row groups; at the end, all of them."""
        rows = pa.Table.from_batches(self._pending, arrow_schema(self.table, self._extras))
        end = rows.num_rows
        if not is_end:
            end = rows.num_rows // ROW_GROUP_ROWS * ROW_GROUP_ROWS
        for start in range(0, end, ROW_GROUP_ROWS):
            self._encoder.write(rows.slice(start, ROW_GROUP_ROWS))
        remainder = rows.slice(end)
        self._pending, self._pending_rows = remainder.to_batches(), remainder.num_rows

    def finish(self) -> None:
        """Write the pending rows, and the metadata with the number of rows.

        A further call does nothing. A caller that writes several files finishes all of them before
        any is renamed, so that a full disk leaves none of them under its final name.
        """
        if self._is_finished:
            return
        self._flush(is_end=True)
        self.update(rows=self.rows)
        self._encoder.finish(self.meta)
        self._encoder.close()
        self._is_finished = True


def with_table(meta: Metadata, table: Table, extras: tuple[str, ...]) -> Metadata:
    """Return `meta` with the name of `table`, and its schema version with the columns `extras`."""
    return msgspec.structs.replace(meta, table=table.name, schema_version=table.version(extras))


@contextmanager
def create_file(
    path: Path, table: Table, meta: Metadata, extras: tuple[str, ...] = ()
) -> Iterator[Writer]:
    """Yield a `Writer` of `table` for the file `path`, which appears only if the block succeeds."""
    encoder_class = ParquetEncoder if format_suffix(path) == ".parquet" else CsvEncoder
    with aside(path) as temporary:
        encoder: Encoder = encoder_class(temporary, table, extras)
        try:
            writer = Writer(table, meta, encoder, extras)
            yield writer
            writer.finish()
        finally:
            encoder.close()


def open_file(path: Path, table: Table | None = None) -> Reader:
    """Return a reader of the file at `path`, which must hold `table` if one is named.

    TraceError if the file is missing or damaged, holds another table, or has an unknown schema
    version.
    """
    if not path.is_file():
        raise TraceError("not a regular file" if path.exists() else "no such file", path=path)
    if format_suffix(path) == ".parquet":
        return ParquetReader(path, table)
    return CsvReader(path, table)
