"""Read and write single files of the tables of the contract as streams: Parquet, or zstd CSV.

Both formats hold the same content, and a reader yields Arrow record batches of the exact schema
from either. Parquet is compressed by zstd, with dictionaries for closed sets and text, and deltas
for times and ids. CSV is for people, and for tools that cannot read Parquet. Its line 1 is
`# kvtrace` and the metadata as JSON, line 2 the header. Its last line is `# end` and the final
metadata: a file without it is truncated. Null is an empty field; a list is `[1 2 3]`.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from copy import copy
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import msgspec

from kvtrace.core import metadata, pa, pa_csv, pc, pl, pq, zstandard
from kvtrace.core.arrays import Array
from kvtrace.core.errors import ConfigError, TraceError
from kvtrace.core.files import aside
from kvtrace.core.metadata import Metadata
from kvtrace.core.schema import (
    MOST,
    OBJECTS,
    OPS,
    STUDY,
    TABLES,
    TRACE,
    Column,
    Table,
    arrow_schema,
    study_table,
)
from kvtrace.core.units import INT64_MAX

META_KEY = b"kvtrace"
_DIGEST_KEY = b"kvtrace.sha256"
"""The SHA-256 of the metadata's bytes; the rows are protected by checksums of their pages."""
# Level 1 halves the file against level 0 at a third of level 3's cost (measured, 8 columns, 1
# Mi-row groups).
ZSTD_LEVEL = 1
BATCH_ROWS = 1 << 14
# Measured on 50 M trace rows: pages of 20,000 rows, pyarrow's default, cost 15 % more time than
# pages as long as a row group. Dictionaries of numbers cost 25 % more time than plain numbers, and
# save nothing after zstd.
_PAGE_ROWS = 1 << 20
_PAGE_BYTES = 8 << 20
_WRITE_ROWS = 1 << 16
_ROW_GROUP_BYTES = 64 << 20
_DELTA_UNITS = ("ns", "id")
_COUNTING_COLUMNS = ("row", "whole_row")
"""Columns that count up in each table, so that deltas suit them as they suit times and ids."""
_UNSUMMED_COLUMNS = ("offset_bytes", "size_bytes")
"""Columns in bytes that are nowhere added up, so that their sum has no limit."""
MAX_ROWS_PER_BYTE = 1 << 16
"""A file with more rows for each of its bytes is damaged.

Even a page that repeats one value a million times in each column takes more room.
"""
MAX_GROUP_BYTES = 512 << 20
"""Largest uncompressed row group, much of which a reader may have to hold in memory.

Row groups that kvtrace writes have some 20 MiB.
"""
DENSE_SLACK = 1 << 24
"""How far the largest object number of a trace may exceed its number of rows.

Objects are numbered densely. Arrays by object number would take too much memory if a damaged file
could name any number.
"""


def max_object_number(path: Path, meta: Metadata) -> int:
    """Return the largest object number that the trace at `path` may have.

    Objects are numbered in the order in which requests name them. An object that no tier stored
    has a number but no row in the trace, so the number of rows does not bound the numbers. The
    objects table, if the trace has one, lists all objects.
    """
    object_count = 0
    if objects_path(path).is_file():
        with suppress(TraceError):
            object_count = open_file(objects_path(path), OBJECTS).meta.rows or 0
    return max((meta.rows or 0) + DENSE_SLACK, object_count - 1)


class ParquetEncoder:
    """Writes row groups to a Parquet file."""

    def __init__(self, path: Path, table: Table, extras: tuple[str, ...] = ()) -> None:
        """Open `path` for rows of `table` with the columns `extras`."""
        columns = [*table.columns, *(table.column(name) for name in extras)]
        encodings = {}
        for column in columns:
            if column.type.startswith("int"):
                has_deltas = column.unit in _DELTA_UNITS or column.name in _COUNTING_COLUMNS
                is_wide = column.type in ("int32", "int64")
                encodings[column.name] = (
                    "DELTA_BINARY_PACKED" if has_deltas and is_wide else "PLAIN"
                )
        self._writer = pq.ParquetWriter(
            path,
            arrow_schema(table, extras),
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            use_dictionary=[
                column.name
                for column in columns
                if column.name not in encodings and column.name != "key"
            ],
            column_encoding=encodings,
            write_statistics=[column.name for column in columns if column.unit in _DELTA_UNITS],
            data_page_size=_PAGE_BYTES,
            max_rows_per_page=_PAGE_ROWS,
            write_batch_size=_WRITE_ROWS,
            # A flipped bit must be an error, not another number.
            write_page_checksum=True,
        )

    def write(self, table: pa.Table) -> None:
        """Write `table` as one row group.

        Long lists of ids can make it larger than 64 MiB; then it is several groups of that size.
        """
        table_bytes = max(table.nbytes, _ROW_GROUP_BYTES)
        rows_per_group = table.num_rows * _ROW_GROUP_BYTES // table_bytes
        self._writer.write_table(table, row_group_size=max(1, rows_per_group))

    def finish(self, meta: Metadata) -> None:
        """Put `meta` into the footer."""
        encoded = metadata.encode(meta)
        self._writer.add_key_value_metadata({META_KEY: encoded, _DIGEST_KEY: _digest(encoded)})

    def close(self) -> None:
        """Write the footer and close the file."""
        self._writer.close()


def _digest(encoded: bytes) -> bytes:
    """Return the SHA-256 of encoded metadata in hexadecimal."""
    return hashlib.sha256(encoded).hexdigest().encode()


class Reader:
    """An open table file."""

    path: Path
    table: Table
    extras: tuple[str, ...]
    """The table's extra columns that the file has."""
    meta: Metadata

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, with all columns or those named `columns`.

        An extra column that the file lacks has its default.
        """
        yield from self._read_all(columns, self.read)

    def large_batches(
        self, columns: Sequence[str] | None = None, is_needless: IsNeedless | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows as `batches` does, in batches of up to a row group.

        Threads may unpack and check row groups ahead of the caller. On two processors this takes
        half the time of `batches`, and some 100 MB more memory. A dataset omits the parts that
        `is_needless` names.
        """
        yield from self._read_all(columns, partial(self.read_ahead, is_needless=is_needless))

    def _read_all(self, columns: Sequence[str] | None, read: _ReadRows) -> Iterator[pa.RecordBatch]:
        """Yield all rows, with the named columns or with all, as `read` yields them."""
        names = list(columns) if columns is not None else [*self.table.names, *self.extras]
        absent = {column.name for column in self.table.extras} - set(self.extras)
        stored_names = [name for name in names if name not in absent]
        if not stored_names:
            # One column must be read, for the number of rows.
            stored_names = self.table.names[:1]
        check = RowCheck(self.table, self.meta, self.path)
        yield from read(stored_names, names, check)
        if check.row != self.meta.rows:
            raise TraceError(
                f"its metadata says {self.meta.rows} rows, but it holds {check.row}", path=self.path
            )

    def file_rows(self, rows: Array) -> Array:
        """Return the row numbers in the file of `rows` of this reader; both count from 0."""
        return rows

    def read_all(self) -> pa.Table:
        """Return all rows at once; the table must fit into memory."""
        return pa.Table.from_batches(self.batches(), arrow_schema(self.table, self.extras))

    def read(
        self, stored_names: Sequence[str], names: Sequence[str], check: RowCheck
    ) -> Iterator[pa.RecordBatch]:
        """Yield the columns `names`, checked by `check`; the file contains `stored_names`."""
        raise NotImplementedError

    def read_ahead(
        self,
        stored_names: Sequence[str],
        names: Sequence[str],
        check: RowCheck,
        is_needless: IsNeedless | None = None,  # noqa: ARG002 - a file has no parts
    ) -> Iterator[pa.RecordBatch]:
        """Yield the same rows as `read`, in larger batches if the file has row groups."""
        return self.read(stored_names, names, check)


_ReadRows = Callable[[Sequence[str], Sequence[str], "RowCheck"], "Iterator[pa.RecordBatch]"]
"""`Reader.read` or `Reader.read_ahead`."""
IsNeedless = Callable[[int, int], bool]
"""Takes the number of rows of a part, and the time of its last row; true: the part can be omitted.

It is called before the part is read, when all batches of the parts in front of it were yielded.
"""


class ParquetReader(Reader):
    """Reads a table of the contract from Parquet."""

    def __init__(self, path: Path, table: Table | None) -> None:
        """Open `path`, check that it holds `table`, and read its metadata."""
        self.path = path
        try:
            # Only one page of each column is in memory. Buffering ahead would take 40 MB and save
            # no time.
            self._file = self._open()
        except MemoryError:
            # pyarrow's MemoryError is an ArrowException too.
            raise
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise TraceError(
                f"not a readable Parquet file: {first_line(error)}", path=path
            ) from None
        pairs = self._file.metadata.metadata or {}
        if META_KEY not in pairs:
            raise TraceError(
                "a Parquet file that kvtrace did not write: it has no kvtrace metadata", path=path
            )
        # Tables of earlier versions have no digest.
        digest = pairs.get(_DIGEST_KEY)
        if digest and digest != _digest(pairs[META_KEY]):
            raise TraceError("damaged: its metadata is not what was written", path=path)
        self.meta = metadata.decode(pairs[META_KEY], path)
        self.table = table_of(self.meta, table, path)
        file_columns = set(self._file.schema_arrow.names)
        self.extras = tuple(
            column.name for column in self.table.extras if column.name in file_columns
        )
        self._check_columns()
        self._check_footer()

    def _open(self, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
        """Open the file, whose `footer` need not be read if it is given."""
        return pq.ParquetFile(
            self.path, metadata=footer, page_checksum_verification=True, pre_buffer=False
        )

    def _file_bytes(self) -> int:
        """Return the size of the file."""
        return self.path.stat().st_size

    def _check_footer(self) -> None:
        """Raise TraceError if the numbers of rows and bytes in the footer contradict each other."""
        footer, size = self._file.metadata, self._file_bytes()
        if self.meta.rows != footer.num_rows:
            raise TraceError(
                f"its metadata says {self.meta.rows} rows, but it holds {footer.num_rows}",
                path=self.path,
            )
        groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
        if footer.num_rows != sum(group.num_rows for group in groups):
            raise TraceError(
                f"its footer says {footer.num_rows} rows, but its row groups hold others",
                path=self.path,
            )
        if footer.num_rows > size * MAX_ROWS_PER_BYTE:
            raise TraceError(
                f"its footer says {footer.num_rows} rows, which {size} bytes cannot hold",
                path=self.path,
            )
        # Whole groups are checked, not columns: Arrow ends the process when it reads a column's
        # metadata with damaged statistics.
        if any(not 0 <= group.total_byte_size <= MAX_GROUP_BYTES for group in groups):
            message = (
                f"a row group unpacks to more than {MAX_GROUP_BYTES} bytes; write smaller ones"
            )
            raise TraceError(message, path=self.path)

    def _check_columns(self) -> None:
        """Raise TraceError if a column of the table is missing, or has another type."""
        file_schema = self._file.schema_arrow
        for field in arrow_schema(self.table, self.extras):
            column = self.table.column(field.name)
            index = file_schema.get_field_index(column.name)
            if index < 0:
                raise TraceError("this column is missing", path=self.path, column=column.name)
            file_type = file_schema.field(index).type
            is_right_type = file_type == field.type
            if column.type == "enum":
                is_right_type = pa.types.is_dictionary(file_type)
            if not is_right_type:
                raise TraceError(
                    f"its type is {file_type}, not {field.type}",
                    path=self.path,
                    column=column.name,
                )

    @property
    def has_digest(self) -> bool:
        """Whether the footer has a digest of the metadata, as every file that kvtrace writes has."""
        return _DIGEST_KEY in (self._file.metadata.metadata or {})

    def read(
        self,
        stored_names: Sequence[str],
        names: Sequence[str],
        check: RowCheck,
        first_group: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows from the row group `first_group` on."""
        batches = self._file.iter_batches(
            batch_size=BATCH_ROWS,
            columns=stored_names,
            row_groups=range(first_group, self._file.num_row_groups),
            use_threads=False,
        )
        try:
            for batch in batches:
                columns = {name: batch.column(name) for name in stored_names}
                yield check.check_batch(columns, names)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            message = f"damaged after this row: {first_line(error)}"
            raise TraceError(message, path=self.path, row=check.row) from None

    def read_ahead(
        self,
        stored_names: Sequence[str],
        names: Sequence[str],
        check: RowCheck,
        is_needless: IsNeedless | None = None,  # noqa: ARG002 - a file has no parts
    ) -> Iterator[pa.RecordBatch]:
        """Yield a batch a row group; threads unpack and check the next groups meanwhile."""
        footer = self._file.metadata
        groups = [footer.row_group(index) for index in range(footer.num_row_groups)]
        # Groups of another writer may be so large that several do not fit into memory.
        if len(groups) <= 1 or any(group.total_byte_size > _ROW_GROUP_BYTES for group in groups):
            yield from self.read(stored_names, names, check)
            return
        with closing(
            self.read_groups(range(len(groups)), stored_names, names, check)
        ) as unpacked_groups:
            for index in range(len(groups)):
                try:
                    batches, group_check = next(unpacked_groups)
                except (TraceError, pa.ArrowInvalid, OSError):
                    # Small batches find the first row that is wrong.
                    yield from self.read(stored_names, names, check, index)
                    return
                check.advance(group_check)
                yield from batches

    @property
    def row_groups(self) -> int:
        """The number of row groups."""
        return int(self._file.num_row_groups)

    def read_groups(
        self,
        indexes: Sequence[int],
        stored_names: Sequence[str],
        names: Sequence[str],
        check: RowCheck,
    ) -> Generator[tuple[list[pa.RecordBatch], RowCheck]]:
        """Yield the rows of each row group of `indexes`, and the check that they passed.

        Threads unpack and check the next groups meanwhile.
        """
        footer = self._file.metadata
        sizes = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
        first_rows = list(accumulate(sizes, initial=0))

        def unpack(index: int) -> tuple[list[pa.RecordBatch], RowCheck]:
            # Each task opens the file, because threads cannot share a reader. They share the footer.
            rows = self._open(footer).read_row_group(
                index, columns=list(stored_names), use_threads=False
            )
            group_check = check.start_at(first_rows[index])
            batches = [
                group_check.check_batch({name: batch.column(name) for name in stored_names}, names)
                for batch in rows.to_batches()
            ]
            return batches, group_check

        tasks = deque(indexes)
        workers = min(len(os.sched_getaffinity(0)), _MAX_READ_THREADS)
        with ThreadPoolExecutor(workers, thread_name_prefix="read") as pool:
            pending: deque[Future[tuple[list[pa.RecordBatch], RowCheck]]] = deque()
            try:
                for _ in indexes:
                    while tasks and len(pending) <= workers:
                        pending.append(pool.submit(unpack, tasks.popleft()))
                    yield pending.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)


_MAX_READ_THREADS = 4
"""Threads that unpack row groups. Each has a row group in memory, of some 20 MB."""


class RowCheck:
    """Checks the rows of one table as they are read, from Parquet or CSV.

    It checks types, nulls, closed sets, ranges and text. Readers yield only rows that passed, so
    that the code that works with rows need not check them again.
    """

    def __init__(self, table: Table, meta: Metadata, path: Path) -> None:
        """Check rows of `table` as `meta` describes it; errors name `path`."""
        self.row = 0
        self._table, self._meta, self._path = table, meta, path
        self._max_object_number = max_object_number(path, meta) if table is TRACE else 0
        self.totals: dict[str, float] = {}
        """The sum of the values so far, by name of each column in bytes."""

    def start_at(self, row: int) -> RowCheck:
        """Return a check of the rows of the same file from the row `row` on."""
        check = copy(self)
        check.row, check.totals = row, {}
        return check

    def start_file(self, path: Path) -> RowCheck:
        """Return a check of the rows of `path`, the next of several files that hold the table."""
        check = self.start_at(0)
        check._path = path  # noqa: SLF001 - of this class
        return check

    def advance(self, check: RowCheck) -> None:
        """Count the rows of `check`, which started where this one stands.

        TraceError if a column in bytes then adds up to more than 4 EiB.
        """
        self._add_totals(check)
        self.row = check.row

    def omit(self, rows: int) -> None:
        """Count `rows` rows that are not read."""
        self.row += rows

    def advance_file(self, check: RowCheck) -> None:
        """Count the rows of `check`, which has checked a file, as `advance` does."""
        self._add_totals(check)
        self.row += check.row

    def _add_totals(self, check: RowCheck) -> None:
        for name, total in check.totals.items():
            self._add_total(self._table.column(name), total)

    def check_batch(self, columns: Mapping[str, Any], names: Sequence[str]) -> pa.RecordBatch:
        """Return the next rows with the columns `names` in the exact types of the table.

        `columns` are arrays by column name. A name that is not among them is an extra column, which
        gets its default. TraceError for a null, value or text that its column may not hold.
        """
        arrays = {
            name: self._checked_array(array, self._table.column(name))
            for name, array in columns.items()
        }
        extra_names = tuple(column.name for column in self._table.extras)
        table_schema = arrow_schema(self._table, extra_names)
        schema = pa.schema([table_schema.field(name) for name in names])
        rows = len(next(iter(arrays.values())))
        for field in schema:
            if field.name not in arrays:
                default = pa.scalar(self._table.column(field.name).default, field.type)
                arrays[field.name] = pa.repeat(default, rows)
        batch = pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=schema)
        self.row += batch.num_rows
        return batch

    def _checked_array(self, array: pa.Array, column: Column) -> pa.Array:
        """Return the values of `column` in its exact type; TraceError for one it may not hold."""
        if array.null_count and not column.nullable:
            index = _first_true(array.is_null())
            raise self._error_at(index, column, "empty, but this column must have a value")
        if column.type.startswith("int"):
            self._check_range(array, column)
            return array
        if column.type == "float64":
            if not pc.all(pc.is_finite(array)).as_py() and array.null_count < len(array):
                index = pc.index(pc.is_finite(array), pa.scalar(value=False)).as_py()
                raise self._error_at(index, column, f"{array[index]} is no number")
            return array
        is_coded = column.type == "enum" and pa.types.is_dictionary(array.type)
        if is_coded and _has_exact_codes(array, column):
            return pa.DictionaryArray.from_arrays(
                array.indices.cast(pa.int8()), array.dictionary, safe=False
            )
        try:
            # Arrow does not check the text of a file. This call finds bytes that are not UTF-8.
            array.validate(full=True)
        except pa.ArrowException as error:
            message = f"damaged from here on: {first_line(error)}"
            raise self._error_at(0, column, message) from None
        return self._encode_values(array, column) if column.type == "enum" else array

    def _check_range(self, array: pa.Array, column: Column) -> None:
        """Raise TraceError if a whole number is out of range, or the sum of bytes is too large."""
        smallest, largest = pc.min_max(array).as_py().values()
        if smallest is None:
            return
        minimum, maximum, problem = column.least, column.most, "out of range"
        if self._table in (TRACE, OPS) and column.name == "tier":
            tier_names = [tier.name for tier in self._meta.tiers]
            maximum = len(tier_names) - 1
            problem = f"no tier: the metadata names {', '.join(tier_names) or 'none'}"
        elif self._table is TRACE and column.name == "object_id":
            maximum = self._max_object_number
            problem = f"not a dense number from 0, in a file of {self._meta.rows or 0} rows"
        is_too_small = minimum is not None and smallest < minimum
        if is_too_small or largest > maximum:
            is_wrong = pc.greater(array, maximum)
            allowed = f"at most {maximum}"
            if minimum is not None:
                is_wrong = pc.or_(pc.less(array, minimum), is_wrong)
                allowed = f"from {minimum} to {maximum}"
            index = _first_true(is_wrong)
            raise self._error_at(index, column, f"{array[index]} is {problem} ({allowed})")
        if column.unit == "bytes" and column.name not in _UNSUMMED_COLUMNS:
            if largest * len(array) > MOST:
                # The sum might not fit 64 bits: each row of a batch may have a PiB.
                array = array.cast("float64", safe=False)
            self._add_total(column, pc.sum(array).as_py())

    def _add_total(self, column: Column, total: float) -> None:
        """Add `total` to the sum of `column`; TraceError if that is more than 4 EiB."""
        self.totals[column.name] = self.totals.get(column.name, 0) + total
        if self.totals[column.name] > MOST:
            raise self._error_at(0, column, "all up to these rows add up to over 4 EiB")

    def _encode_values(self, array: pa.Array, column: Column) -> pa.Array:
        """Return texts as codes of the column's closed set; TraceError for a text not in it."""
        values = pa.array(column.values, pa.string())
        if not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        codes = pc.index_in(array.dictionary, values)
        indices = codes.take(array.indices).cast(pa.int8())
        if indices.null_count > array.null_count:
            index = _first_true(pc.and_(indices.is_null(), array.is_valid()))
            message = (
                f"unknown value {array[index].as_py()!r};"
                f" it must be one of {', '.join(column.values)}"
            )
            raise self._error_at(index, column, message)
        if indices.null_count and not column.nullable:
            raise self._error_at(0, column, "empty, but this column must have a value")
        return pa.DictionaryArray.from_arrays(indices, values)

    def _error_at(self, index: int, column: Column, message: str) -> TraceError:
        """Return the error of one cell; `index` is its row within the batch."""
        return TraceError(message, path=self._path, row=self.row + index, column=column.name)


def _has_exact_codes(array: pa.Array, column: Column) -> bool:
    """Return whether the codes of `array` are the column's own, as in files that kvtrace wrote."""
    if not array.dictionary.equals(pa.array(column.values, pa.string())):
        return False
    smallest, largest = pc.min_max(array.indices).as_py().values()
    return smallest is None or (smallest >= 0 and largest < len(column.values))


def _first_true(mask: pa.Array) -> int:
    """Return the index of the first true value."""
    return int(pc.index(mask, pa.scalar(value=True)).as_py())


def table_of(meta: Metadata, expected: Table | None, path: Path) -> Table:
    """Return the table that `meta` describes.

    TraceError if kvtrace has no such table, or if it is not the `expected` one.
    """
    tables = TABLES | {STUDY.name: STUDY}
    if meta.table not in tables or (expected is not None and meta.table != expected.name):
        names = expected.name if expected is not None else ", ".join(tables)
        raise TraceError(f"holds the table {meta.table!r}, where {names!r} is wanted", path=path)
    if meta.table == STUDY.name:
        return study_table(metadata.study_names(meta, path))
    return tables[meta.table]


def first_line(error: Exception) -> str:
    """Return the first line of the text of `error`."""
    return str(error).strip().split("\n")[0]


HEAD = b"# kvtrace "
END = b"# end "
CSV_ZSTD_LEVEL = 3
BLOCK_BYTES = 8 << 20
MAX_LINE_BYTES = 64 << 20
MAX_EXPANSION = 1000
"""Largest ratio of decompressed to compressed bytes; a larger one was made to fill a machine."""
_ALWAYS_ALLOWED_BYTES = 64 << 20
"""Decompressed bytes up to which the ratio is not checked."""
# zstd expands a byte to 32 KiB at most, so that one read takes up to 64 MiB of memory.
_COMPRESSED_READ_BYTES = 2 << 10
_MAX_WINDOW_BYTES = 128 << 20
_CSV_ROWS = 1 << 17
# Python's int() accepts more: other digits, underscores, any length.
_LIST = re.compile(r"\[(?:-?[0-9]{1,19}(?: -?[0-9]{1,19})*)?\]")
_ERROR_PLACE = re.compile(r"(?:In CSV column #(\d+): |CSV parse error: )?Row #(\d+): ")


class CsvEncoder:
    """Writes rows as zstd CSV."""

    def __init__(self, path: Path, table: Table, extras: tuple[str, ...] = ()) -> None:
        """Open `path` for rows of `table` with the columns `extras`."""
        self._table = table
        self._file = path.open("wb")
        self._stream = zstandard.ZstdCompressor(
            level=CSV_ZSTD_LEVEL, write_checksum=True
        ).stream_writer(self._file, closefd=False)
        head = f'{{"table":"{table.name}","schema_version":{table.version(extras)}}}'
        header = ",".join([*table.names, *extras])
        self._stream.write(HEAD + f"{head}\n{header}\n".encode())

    def write(self, table: pa.Table) -> None:
        """Write the rows of `table`."""
        for start in range(0, table.num_rows, _CSV_ROWS):
            rows = table.slice(start, _CSV_ROWS)
            for index, column in enumerate(self._table.columns):
                if column.type.startswith("list"):
                    cells = _list_cells(rows.column(index).combine_chunks())
                    rows = rows.set_column(index, column.name, cells)
            text = io.BytesIO()
            # polars, because pyarrow's writer would put quotes around every text.
            pl.DataFrame(pl.from_arrow(rows)).write_csv(text, include_header=False)
            self._stream.write(text.getbuffer())

    def finish(self, meta: Metadata) -> None:
        """Write the line that ends a whole file."""
        self._stream.write(END + metadata.encode(meta) + b"\n")

    def close(self) -> None:
        """End the zstd frame and close the file."""
        try:
            self._stream.close()  # type: ignore[no-untyped-call]
        finally:
            self._file.close()


def _list_cells(lists: pa.ListArray) -> pa.Array:
    """Return each list of numbers as the text `[1 2 3]`; null stays null."""
    items = lists.values.cast(pa.string())
    texts = pa.ListArray.from_arrays(lists.offsets, items, mask=lists.is_null())
    return pc.binary_join_element_wise("[", pc.binary_join(texts, " "), "]", "")


class CsvReader(Reader):
    """Reads a table of the contract from zstd CSV."""

    def __init__(self, path: Path, table: Table | None) -> None:
        """Open `path` and check that it holds `table`; the metadata is read from its last line."""
        self.path = path
        blocks = line_blocks(decompress(path), path)
        block = next(blocks, b"")
        if not block:
            raise TraceError("truncated or empty: no line of it can be read", path=path)
        first_line, header = [*block.split(b"\n", 2), b""][:2]
        if not first_line.startswith(HEAD):
            raise TraceError(
                "not a kvtrace CSV: its first line is no '# kvtrace' line "
                "(an MLPerf trace? `kvtrace convert` reads that)",
                path=path,
            )
        # The first line has only the table and its version; the end line has all metadata. Fields
        # that a Metadata must have are empty until then.
        head = b'{"program":"","argv":[],' + first_line.removeprefix(HEAD).lstrip()[1:]
        self.meta = metadata.decode(head, path)
        self.table = table_of(self.meta, table, path)
        header_names = header.decode(errors="replace").split(",")
        self.extras = tuple(
            column.name for column in self.table.extras if column.name in header_names
        )
        self._names = [*self.table.names, *self.extras]
        if header_names != self._names:
            raise TraceError(f"the header must read {','.join(self.table.names)}", path=path, row=2)
        # Decompress the whole file for its last block.
        for last_block in blocks:
            block = last_block
        start = block.rfind(b"\n" + END) + 1
        if not block[start:].startswith(END) or not block.endswith(b"\n"):
            raise TraceError("truncated: its '# end' line is missing", path=self.path)
        self.meta = metadata.decode(block[start:].removeprefix(END), self.path)

    def read(
        self, stored_names: Sequence[str], names: Sequence[str], check: RowCheck
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows block by block."""
        schema = arrow_schema(self.table, self.extras)
        types = {name: _csv_type(schema.field(name).type) for name in stored_names}
        for block in _data_blocks(self.path):
            rows = read_csv(io.BytesIO(block), self._names, types, self.path, check.row)
            for batch in rows.to_batches():
                columns = {
                    name: self._to_table_type(batch.column(name), name, check.row)
                    for name in stored_names
                }
                yield check.check_batch(columns, names)

    def _to_table_type(self, array: pa.Array, name: str, first_row: int) -> pa.Array:
        """Return the column `name` as Arrow read it, with texts of lists turned into lists."""
        if not self.table.column(name).type.startswith("list"):
            if pa.types.is_dictionary(array.type):
                return pa.DictionaryArray.from_arrays(array.indices, array.dictionary)
            return array
        lists: list[list[int] | None] = []
        for index, text in enumerate(array.to_pylist()):
            numbers = None if text is None else _parse_list(text)
            if numbers is None and text is not None:
                message = f"{text[:60]!r} is not a list of whole numbers of 64 bits"
                raise TraceError(message, path=self.path, row=first_row + index, column=name)
            lists.append(numbers)
        return pa.array(lists, pa.list_(pa.int64()))


def _parse_list(text: str) -> list[int] | None:
    """Return the numbers of `[1 2 3]`.

    None if `text` is not such a list, or if a number does not fit 64 bits.
    """
    if _LIST.fullmatch(text) is None:
        return None
    numbers = [int(digits) for digits in text[1:-1].split()]
    fits = all(-INT64_MAX - 1 <= number <= INT64_MAX for number in numbers)
    return numbers if fits else None


def _csv_type(type_: pa.DataType) -> pa.DataType:
    """Return the type as which Arrow reads CSV cells of a column of `type_`."""
    if pa.types.is_dictionary(type_):
        return pa.dictionary(pa.int32(), pa.string())
    return pa.string() if pa.types.is_list(type_) else type_


def read_csv(
    source: Any,
    names: Sequence[str],
    types: Mapping[str, Any],
    path: Path,
    row: int,
    has_nulls: bool = True,
    **read_options: Any,
) -> pa.Table:
    """Return rows of a CSV that has no header.

    `names` are the names of its columns. `types` has the columns to return, and their types. An
    empty cell is null if `has_nulls`, else an empty text. `read_options` are further options of
    Arrow's ReadOptions. A cell that does not have its type is a TraceError; it names `path`, the
    column, and the row, where the first row of `source` has the number `row`.
    """
    try:
        return pa_csv.read_csv(
            source,
            # With threads an error would not name its row.
            read_options=pa_csv.ReadOptions(
                column_names=list(names), use_threads=False, **read_options
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=[""] if has_nulls else [],
                strings_can_be_null=has_nulls,
            ),
        )
    except pa.ArrowInvalid as error:
        first_sentence = str(error).split(". ", maxsplit=1)[0]
        message = first_sentence.split("\n", maxsplit=1)[0]
    if message == "Empty CSV file":
        return pa.schema(types).empty_table()
    place = _ERROR_PLACE.match(message)
    if place is None:
        raise TraceError(f"in the rows from here on: {message}", path=path, row=row)
    # Arrow counts columns from 0 and rows from 1.
    column = names[int(place[1])] if place[1] else None
    raise TraceError(message[place.end() :], path=path, row=row + int(place[2]) - 1, column=column)


def _data_blocks(path: Path) -> Iterator[bytes]:
    """Yield the data rows of `path` in blocks of whole lines, without head, header and end line."""
    for index, block in enumerate(line_blocks(decompress(path), path)):
        lines = block
        if index == 0:
            lines = block.split(b"\n", 2)[2]
        # The newline in front finds an end line that is the first of its block, too.
        rows, end_line, _ = (b"\n" + lines).partition(b"\n" + END)
        rows = rows.removeprefix(b"\n")
        if rows:
            yield rows
        if end_line:
            return


def line_blocks(chunks: Iterable[bytes], path: Path) -> Iterator[bytes]:
    """Yield the text of `path` in blocks of whole lines; `chunks` are the text in any pieces.

    The last block may end without a newline. TraceError for a line of more than MAX_LINE_BYTES.
    """
    unfinished_line = b""
    for chunk in chunks:
        lines, newline, unfinished_line = (unfinished_line + chunk).rpartition(b"\n")
        if newline:
            yield lines + newline
        if len(unfinished_line) > MAX_LINE_BYTES:
            raise TraceError(f"a line of more than {MAX_LINE_BYTES} bytes", path=path)
    if unfinished_line:
        yield unfinished_line


def decompress(path: Path) -> Iterator[bytes]:
    """Yield the decompressed content of the zstd frames at `path`, some MiB at a time.

    Every reader of a whole file decompresses it here. TraceError if the file is damaged or
    truncated, or if it expands so much that it was made to fill a machine.
    """
    frame, chunks = None, []
    compressed_bytes = decompressed_bytes = yielded_bytes = 0
    with path.open("rb") as file:
        while data := file.read(_COMPRESSED_READ_BYTES):
            compressed_bytes += len(data)
            while data:
                if frame is None:
                    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES)
                    frame = decompressor.decompressobj()
                try:
                    chunk = frame.decompress(data)
                except zstandard.ZstdError as error:
                    raise TraceError(f"damaged zstd data: {error}", path=path) from None
                chunks.append(chunk)
                decompressed_bytes += len(chunk)
                data = b""
                if frame.eof:
                    # The next frame begins within the same data.
                    data, frame = frame.unused_data, None
            if decompressed_bytes > _ALWAYS_ALLOWED_BYTES + compressed_bytes * MAX_EXPANSION:
                raise TraceError(
                    f"unpacks to more than {MAX_EXPANSION} times its size: no table does",
                    path=path,
                )
            if decompressed_bytes - yielded_bytes >= BLOCK_BYTES:
                yield b"".join(chunks)
                chunks, yielded_bytes = [], decompressed_bytes
    if any(chunks):
        yield b"".join(chunks)
    if frame is not None:
        raise TraceError("truncated: its zstd data has no end", path=path)


SUFFIXES = (".parquet", ".csv.zst")
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
        self.meta = msgspec.structs.replace(
            meta, table=table.name, schema_version=table.version(extras)
        )
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


def is_folder(trace: Path) -> bool:
    """Return whether `trace` is a dataset, that is a folder, or a new name without a dot."""
    return not trace.name.endswith(SUFFIXES) and ("." not in trace.name or trace.is_dir())


def objects_path(trace: Path | str) -> Path:
    """Return the path of the objects table of `trace`.

    `t.parquet` has `t.objects.parquet`; the dataset `t` has `t/objects.parquet`.
    """
    return _path_beside(Path(trace), "objects")


def requests_path(trace: Path | str) -> Path:
    """Return the path of the requests table of `trace`.

    `t.parquet` has `t.requests.parquet`; the dataset `t` has `t/requests.parquet`.
    """
    return _path_beside(Path(trace), "requests")


def _path_beside(trace: Path, name: str) -> Path:
    """Return the path of the table `name` of `trace`."""
    if is_folder(trace):
        return trace / f"{name}.parquet"
    suffix = format_suffix(trace)
    return trace.with_name(f"{trace.name.removesuffix(suffix)}.{name}{suffix}")


def format_suffix(path: Path) -> str:
    """Return the suffix of a table file; ConfigError if `path` has none of them."""
    for suffix in SUFFIXES:
        if path.name.endswith(suffix) and path.name != suffix:
            return suffix
    advice = "name it"
    if path.exists():
        advice = "kvtrace gen FILE --source FORMAT reads requests; a trace is named"
    raise ConfigError(f"{path}: unknown file type; {advice} *{' or *'.join(SUFFIXES)}")
