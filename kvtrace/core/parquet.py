"""Tables of the contract as Parquet: zstd, dictionary for closed sets and text, delta for times and ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtrace.core import metadata
from kvtrace.core.errors import TraceError
from kvtrace.core.metadata import Metadata
from kvtrace.core.schema import MOST, OPS, STUDY, TABLES, TRACE, Column, Table, arrow_schema, study_table

if TYPE_CHECKING:
    import pyarrow as pa

META_KEY = b"kvtrace"
_CHECK_KEY = b"kvtrace.sha256"
"""Of the metadata's bytes; those of the rows are in checksums of the pages."""
# Level 1 halves the file against level 0 at a third of level 3's cost (measured, 8 columns, 1 Mi-row groups).
ZSTD_LEVEL = 1
BATCH_ROWS = 1 << 14
# Measured on 50 M trace rows: pages of pyarrow's 20,000 rows cost 15 % more time than pages as long as a row group,
# and dictionaries of numbers a quarter more than plain numbers, which zstd makes as small.
_PAGE_ROWS = 1 << 20
_PAGE_BYTES = 8 << 20
_WRITE_ROWS = 1 << 16
_DELTA_UNITS = ("ns", "id")
_RISING = "row"
"""This column too: in each table it is counted up."""
_PLACES = ("offset_bytes", "size_bytes")
MOST_ROWS_PER_BYTE = 1 << 16
"""A page of one value for a million rows, in each of a table's columns, takes more than that."""
MOST_GROUP_BYTES = 512 << 20
"""Of a row group, some of which a reader may have to unpack at once; ours have some 20 MiB."""
DENSE_SLACK = 1 << 24
"""A trace's objects are numbered densely, hardly more than it has rows; more would take memory for damage's sake."""


class ParquetEncoder:
    """Writes row groups to a Parquet file."""

    def __init__(self, path: Path, table: Table, extras: tuple[str, ...] = ()) -> None:
        """Open `path` for rows of `table` with the columns `extras`."""
        import pyarrow.parquet as pq

        columns = [*table.columns, *(table.column(name) for name in extras)]
        numbers = {
            c.name: "DELTA_BINARY_PACKED"
            if (c.unit in _DELTA_UNITS or c.name == _RISING) and c.type in ("int32", "int64")
            else "PLAIN"
            for c in columns
            if c.type.startswith("int")
        }
        self._writer = pq.ParquetWriter(
            path,
            arrow_schema(table, extras),
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            use_dictionary=[c.name for c in columns if c.name not in numbers and c.name != "key"],
            column_encoding=numbers,
            write_statistics=[c.name for c in columns if c.unit in _DELTA_UNITS],
            data_page_size=_PAGE_BYTES,
            max_rows_per_page=_PAGE_ROWS,
            write_batch_size=_WRITE_ROWS,
            # A flipped bit is an error, not another number.
            write_page_checksum=True,
        )

    def write(self, table: pa.Table) -> None:
        """Write `table` as one row group, or in some of 64 MiB where long lists of ids make it larger."""
        self._writer.write_table(table, row_group_size=max(1, (table.num_rows << 26) // max(table.nbytes, 1 << 26)))

    def finish(self, meta: Metadata) -> None:
        """Put `meta` into the footer."""
        said = metadata.encode(meta)
        self._writer.add_key_value_metadata({META_KEY: said, _CHECK_KEY: hashlib.sha256(said).hexdigest().encode()})

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
            # Without buffering ahead, which takes 40 MB and no less time, a page of each column is in memory.
            self._file = pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False)
        except MemoryError:
            # pyarrow's is one of its own errors too.
            raise
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise TraceError(f"not a readable Parquet file: {_first_line(error)}", path=path) from None
        pairs = self._file.metadata.metadata or {}
        if META_KEY not in pairs:
            raise TraceError("a Parquet file, but none of ours: it has no kvtrace metadata", path=path)
        # Tables of before have none.
        if pairs.get(_CHECK_KEY, b"") not in (b"", hashlib.sha256(pairs[META_KEY]).hexdigest().encode()):
            raise TraceError("damaged: its metadata is not what was written", path=path)
        self.meta = metadata.decode(pairs[META_KEY], path)
        self.table = table_of(self.meta, table, path)
        found = set(self._file.schema_arrow.names)
        self.extras = tuple(c.name for c in self.table.extras if c.name in found)
        self._check_columns()
        self._check_sizes()

    def _check_sizes(self) -> None:
        """Refuse a footer that does not fit the file, before anything is made as large as it says."""
        footer, size = self._file.metadata, self.path.stat().st_size
        if self.meta.rows != footer.num_rows:
            raise TraceError(f"its metadata says {self.meta.rows} rows, but it holds {footer.num_rows}", path=self.path)
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        if footer.num_rows != sum(group.num_rows for group in groups):
            raise TraceError(f"its footer says {footer.num_rows} rows, but its row groups hold others", path=self.path)
        if footer.num_rows > size * MOST_ROWS_PER_BYTE:
            raise TraceError(f"its footer says {footer.num_rows} rows, which {size} bytes cannot hold", path=self.path)
        # Of columns by themselves, Arrow ends the process where their statistics are damaged.
        if any(not 0 <= group.total_byte_size <= MOST_GROUP_BYTES for group in groups):
            message = f"a row group unpacks to more than {MOST_GROUP_BYTES} bytes; write smaller ones"
            raise TraceError(message, path=self.path)

    def _check_columns(self) -> None:
        import pyarrow as pa

        found = self._file.schema_arrow
        for field in arrow_schema(self.table, self.extras):
            column = self.table.column(field.name)
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

        names = list(columns) if columns is not None else [*self.table.names, *self.extras]
        check = RowCheck(self.table, self.meta, self.path)
        held = held_columns(self.table, self.extras, names)
        found = self._file.iter_batches(batch_size=BATCH_ROWS, columns=held, use_threads=False)
        try:
            for batch in found:
                yield check.take({name: batch.column(name) for name in held}, names)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            message = f"damaged after this row: {_first_line(error)}"
            raise TraceError(message, path=self.path, row=check.row) from None
        if check.row != self.meta.rows:
            raise TraceError(f"its metadata says {self.meta.rows} rows, but it holds {check.row}", path=self.path)


class RowCheck:
    """Checks the rows of one table as they are read, whatever the file: types, nulls, closed sets, ranges, text.

    No reader hands on a row that did not pass, so what works with rows need not look again.
    """

    def __init__(self, table: Table, meta: Metadata, path: Path) -> None:
        """Check rows of `table` as `meta` describes it; errors name `path`."""
        self.row = 0
        self._table, self._meta, self._path = table, meta, path
        self._totals: dict[str, float] = {}
        """Of each column of bytes, so far."""

    def take(self, columns: Mapping[str, Any], names: Sequence[str]) -> pa.RecordBatch:
        """Return the next rows, arrays by column name, as the columns `names` with the exact types of the table.

        A name that is not among the columns is that of an extra one, which gets its default.

        Raises:
            TraceError: a null, value or text that its column may not hold.

        """
        import pyarrow as pa

        arrays = {name: self._column(array, self._table.column(name)) for name, array in columns.items()}
        known = arrow_schema(self._table, tuple(c.name for c in self._table.extras))
        schema = pa.schema([known.field(name) for name in names])
        rows = len(next(iter(arrays.values())))
        for field in schema:
            if field.name not in arrays:
                default = pa.scalar(self._table.column(field.name).default, field.type)
                arrays[field.name] = pa.repeat(default, rows)
        batch = pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=schema)
        self.row += batch.num_rows
        return batch

    def _column(self, array: Any, column: Column) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        if array.null_count and not column.nullable:
            at = pc.index(array.is_null(), pa.scalar(value=True)).as_py()
            raise self._fault("empty, but this column must have a value", at, column)
        if column.type.startswith("int"):
            self._check_range(array, column)
            return array
        if column.type == "float64":
            if not pc.all(pc.is_finite(array)).as_py() and array.null_count < len(array):
                at = pc.index(pc.is_finite(array), pa.scalar(value=False)).as_py()
                raise self._fault(f"{array[at]} is no number", at, column)
            return array
        if column.type == "enum" and pa.types.is_dictionary(array.type) and self._is_coded(array, column):
            return pa.DictionaryArray.from_arrays(array.indices.cast(pa.int8()), array.dictionary, safe=False)
        try:
            # Arrow takes text as it stands in the file; whether it is UTF-8 is only looked at here.
            array.validate(full=True)
        except pa.ArrowException as error:
            raise self._fault(f"damaged from here on: {_first_line(error)}", 0, column) from None
        return self._codes(array, column) if column.type == "enum" else array

    def _check_range(self, array: Any, column: Column) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        found = pc.min_max(array)
        low, high = found["min"].as_py(), found["max"].as_py()
        if low is None:
            return
        least, most, allowed = column.least, column.most, "out of range"
        if self._table in (TRACE, OPS) and column.name == "tier":
            names = [tier.name for tier in self._meta.tiers]
            most, allowed = len(names) - 1, f"no tier: the metadata names {', '.join(names) or 'none'}"
        elif self._table is TRACE and column.name == "object_id":
            rows = self._meta.rows or 0
            most, allowed = rows + DENSE_SLACK, f"no dense number from 0, in a file of {rows} rows"
        if (least is not None and low < least) or high > most:
            wrong = pc.greater(array, most) if least is None else pc.or_(pc.less(array, least), pc.greater(array, most))
            at = pc.index(wrong, pa.scalar(value=True)).as_py()
            where = f"at most {most}" if least is None else f"from {least} to {most}"
            raise self._fault(f"{array[at]} is {allowed} ({where})", at, column)
        if column.unit == "bytes" and column.name not in _PLACES:
            # A PiB for each row of a batch does not fit 64 bits.
            total = pc.sum(array if high * len(array) <= MOST else array.cast("float64")).as_py()
            self._totals[column.name] = self._totals.get(column.name, 0) + total
            if self._totals[column.name] > MOST:
                raise self._fault("all up to these rows add up to over 4 EiB", 0, column)

    def _is_coded(self, array: Any, column: Column) -> bool:
        """Return whether the codes of `array` are those of the column's closed set already, as in files of ours."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not array.dictionary.equals(pa.array(column.values, pa.string())):
            return False
        found = pc.min_max(array.indices)
        low, high = found["min"].as_py(), found["max"].as_py()
        return low is None or (low >= 0 and high < len(column.values))

    def _codes(self, array: Any, column: Column) -> Any:
        """Return `array` as codes in the order of the column's closed set."""
        import pyarrow as pa
        import pyarrow.compute as pc

        values = pa.array(column.values, pa.string())
        if not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        codes = pc.index_in(array.dictionary, values)
        indices = codes.take(array.indices).cast(pa.int8())
        if indices.null_count > array.null_count:
            unknown = pc.and_(indices.is_null(), array.is_valid())
            at = pc.index(unknown, pa.scalar(value=True)).as_py()
            message = f"unknown value {array[at].as_py()!r}; it must be one of {', '.join(column.values)}"
            raise self._fault(message, at, column)
        if indices.null_count and not column.nullable:
            raise self._fault("empty, but this column must have a value", 0, column)
        return pa.DictionaryArray.from_arrays(indices, values)

    def _fault(self, message: str, at: int, column: Column) -> TraceError:
        return TraceError(message, path=self._path, row=self.row + at, column=column.name)


def held_columns(table: Table, extras: tuple[str, ...], names: Sequence[str]) -> list[str]:
    """Return those of the columns `names` that a file of `table` with `extras` has; at least one, for its rows."""
    absent = {column.name for column in table.extras} - set(extras)
    return [name for name in names if name not in absent] or table.names[:1]


def table_of(meta: Metadata, wanted: Table | None, path: Path) -> Table:
    """Return the table that `meta` describes; TraceError if it is none of ours, or not the `wanted` one."""
    known = TABLES | {STUDY.name: STUDY}
    if meta.table not in known or (wanted is not None and meta.table != wanted.name):
        names = wanted.name if wanted is not None else ", ".join(known)
        raise TraceError(f"holds the table {meta.table!r}, where {names!r} is wanted", path=path)
    return study_table(metadata.study_names(meta, path)) if meta.table == STUDY.name else known[meta.table]


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
