"""Tables of the contract as Parquet: zstd, dictionary for closed sets and text, delta for times and ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtrace.core import metadata
from kvtrace.core.errors import TraceError
from kvtrace.core.metadata import Metadata
from kvtrace.core.schema import TABLES, Table, arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa

META_KEY = b"kvtrace"
# Level 1 halves the file against level 0 at a third of level 3's cost (measured, 8 columns, 1 Mi-row groups).
ZSTD_LEVEL = 1
BATCH_ROWS = 1 << 17
# Measured on 50 M trace rows: pages of pyarrow's 20,000 rows cost 15 % more time than pages as long as a row group,
# and dictionaries of numbers a quarter more than plain numbers, which zstd makes as small.
_PAGE_ROWS = 1 << 20
_PAGE_BYTES = 8 << 20
_WRITE_ROWS = 1 << 16
_DELTA_UNITS = ("ns", "id")


class ParquetEncoder:
    """Writes row groups to a Parquet file."""

    def __init__(self, path: Path, table: Table) -> None:
        """Open `path` for rows of `table`."""
        import pyarrow.parquet as pq

        numbers = {
            c.name: "DELTA_BINARY_PACKED" if c.unit in _DELTA_UNITS and c.type in ("int32", "int64") else "PLAIN"
            for c in table.columns
            if c.type.startswith("int")
        }
        self._writer = pq.ParquetWriter(
            path,
            arrow_schema(table),
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            use_dictionary=[c.name for c in table.columns if c.name not in numbers and c.name != "key"],
            column_encoding=numbers,
            write_statistics=[c.name for c in table.columns if c.unit in _DELTA_UNITS],
            data_page_size=_PAGE_BYTES,
            max_rows_per_page=_PAGE_ROWS,
            write_batch_size=_WRITE_ROWS,
        )

    def write(self, table: pa.Table) -> None:
        """Write `table` as one row group."""
        self._writer.write_table(table, row_group_size=table.num_rows or None)

    def finish(self, meta: Metadata) -> None:
        """Put `meta` into the footer."""
        self._writer.add_key_value_metadata({META_KEY: metadata.encode(meta)})

    def close(self) -> None:
        """Write the footer and close the file."""
        self._writer.close()


class ParquetReader:
    """Reads a table of the contract from Parquet."""

    def __init__(self, path: Path, table: Table | None) -> None:
        """Open `path`, check that it holds `table`, and read its metadata."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = path
        try:
            self._file = pq.ParquetFile(path)
        except MemoryError:
            # pyarrow's is one of its own errors too.
            raise
        except (pa.ArrowException, OSError) as error:
            raise TraceError(f"not a readable Parquet file: {_first_line(error)}", path=path) from None
        pairs = self._file.metadata.metadata or {}
        if META_KEY not in pairs:
            raise TraceError("a Parquet file, but none of ours: it has no kvtrace metadata", path=path)
        self.meta = metadata.decode(pairs[META_KEY], path)
        self.table = table_of(self.meta, table, path)
        self._check_columns()
        if self.meta.rows != self._file.metadata.num_rows:
            raise TraceError(
                f"its metadata says {self.meta.rows} rows, but it holds {self._file.metadata.num_rows}",
                path=path,
            )

    def _check_columns(self) -> None:
        import pyarrow as pa

        found = self._file.schema_arrow
        for column, field in zip(self.table.columns, arrow_schema(self.table), strict=True):
            index = found.get_field_index(column.name)
            if index < 0:
                raise TraceError("this column is missing", path=self.path, column=column.name)
            type_ = found.field(index).type
            same = pa.types.is_dictionary(type_) if column.type == "enum" else type_ == field.type
            if not same:
                raise TraceError(f"its type is {type_}, not {field.type}", path=self.path, column=column.name)

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, all columns or the named ones."""
        import pyarrow as pa

        names = list(columns) if columns is not None else self.table.names
        schema = pa.schema([arrow_schema(self.table).field(name) for name in names])
        row = 0
        try:
            for batch in self._file.iter_batches(batch_size=BATCH_ROWS, columns=names, use_threads=False):
                arrays = [conform(batch.column(n), self.table, n, self.path, row) for n in names]
                yield pa.RecordBatch.from_arrays(arrays, schema=schema)
                row += batch.num_rows
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            raise TraceError(f"damaged after this row: {_first_line(error)}", path=self.path, row=row) from None


def conform(array: Any, table: Table, name: str, path: Path, row: int) -> Any:
    """Return `array` with the exact type of column `name`; TraceError for a null or value it may not hold."""
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table.column(name)
    if array.null_count and not column.nullable:
        at = row + pc.index(array.is_null(), pa.scalar(value=True)).as_py()
        raise TraceError("empty, but this column must have a value", path=path, row=at, column=name)
    if column.type != "enum":
        return array
    values = pa.array(column.values, pa.string())
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    codes = pc.index_in(array.dictionary, values)
    indices = codes.take(array.indices).cast(pa.int8())
    if indices.null_count > array.null_count:
        unknown = pc.and_(indices.is_null(), array.is_valid())
        at = pc.index(unknown, pa.scalar(value=True)).as_py()
        raise TraceError(
            f"unknown value {array[at].as_py()!r}; it must be one of {', '.join(column.values)}",
            path=path,
            row=row + at,
            column=name,
        )
    return pa.DictionaryArray.from_arrays(indices, values)


def table_of(meta: Metadata, wanted: Table | None, path: Path) -> Table:
    """Return the table that `meta` describes; TraceError if it is none of ours, or not the `wanted` one."""
    if meta.table not in TABLES or (wanted is not None and meta.table != wanted.name):
        names = wanted.name if wanted is not None else ", ".join(TABLES)
        raise TraceError(f"holds the table {meta.table!r}, where {names!r} is wanted", path=path)
    return TABLES[meta.table]


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
