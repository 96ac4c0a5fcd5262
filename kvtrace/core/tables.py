"""Read and write the tables of the contract as streams: Parquet, or zstd CSV, chosen by suffix.

Both hold the same content, and a reader yields Arrow record batches of the exact schema, whatever
the file. Parquet is zstd, with dictionaries for closed sets and text, and deltas for times and ids.
CSV is for people and tools without it: line 1 is `# kvtrace` and the metadata as JSON, line 2 the
header; the last line is `# end` and the final metadata, which tells a whole file from a truncated
one. Null is an empty field; a list is `[1 2 3]`.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

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
_CHECK_KEY = b"kvtrace.sha256"
"""Of the metadata's bytes; those of the rows are in checksums of the pages."""
# Level 1 halves the file against level 0 at a third of level 3's cost (measured, 8 columns, 1
# Mi-row groups).
ZSTD_LEVEL = 1
BATCH_ROWS = 1 << 14
# Measured on 50 M trace rows: pages of pyarrow's 20,000 rows cost 15 % more time than pages as long
# as a row group, and dictionaries of numbers a quarter more than plain numbers, which zstd makes as
# small.
_PAGE_ROWS = 1 << 20
_PAGE_BYTES = 8 << 20
_WRITE_ROWS = 1 << 16
_DELTA_UNITS = ("ns", "id")
_RISING = ("row", "whole_row")
"""These columns too: in each table they count up."""
_PLACES = ("offset_bytes", "size_bytes")
MOST_ROWS_PER_BYTE = 1 << 16
"""A page of one value for a million rows, in each of a table's columns, takes more than that."""
MOST_GROUP_BYTES = 512 << 20
"""Of a row group, some of which a reader may have to unpack at once; ours have some 20 MiB."""
DENSE_SLACK = 1 << 24
"""A trace's objects are numbered densely, hardly more than it has rows.

More would take memory for damage's sake.
"""


def most_objects(path: Path, meta: Metadata) -> int:
    """Return the largest object number that the trace at `path` may have.

    Objects are numbered as requests name them, and one that no tier took has a number but no row.
    So the number of rows bounds them only where there is no objects table, which has them all.
    """
    listed = 0
    if objects_path(path).is_file():
        with suppress(TraceError):
            listed = open_table(objects_path(path), OBJECTS).meta.rows or 0
    return max((meta.rows or 0) + DENSE_SLACK, listed - 1)


class ParquetEncoder:
    """Writes row groups to a Parquet file."""

    def __init__(self, path: Path, table: Table, extras: tuple[str, ...] = ()) -> None:
        """Open `path` for rows of `table` with the columns `extras`."""
        columns = [*table.columns, *(table.column(name) for name in extras)]
        numbers = {
            c.name: (
                "DELTA_BINARY_PACKED"
                if (c.unit in _DELTA_UNITS or c.name in _RISING) and c.type in ("int32", "int64")
                else "PLAIN"
            )
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
        """Write `table` as one row group, or in some of 64 MiB where long lists of ids make it
        larger.
        """
        self._writer.write_table(
            table, row_group_size=max(1, (table.num_rows << 26) // max(table.nbytes, 1 << 26))
        )

    def finish(self, meta: Metadata) -> None:
        """Put `meta` into the footer."""
        said = metadata.encode(meta)
        self._writer.add_key_value_metadata(
            {META_KEY: said, _CHECK_KEY: hashlib.sha256(said).hexdigest().encode()}
        )

    def close(self) -> None:
        """Write the footer and close the file."""
        self._writer.close()


class Reader:
    """An open table file."""

    path: Path
    table: Table
    extras: tuple[str, ...]
    """The table's extra columns that the file has."""
    meta: Metadata

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, all columns or the named ones.

        Extra ones that the file lacks have their default.
        """
        names = list(columns) if columns is not None else [*self.table.names, *self.extras]
        absent = {column.name for column in self.table.extras} - set(self.extras)
        # At least one, for its rows.
        held = [name for name in names if name not in absent] or self.table.names[:1]
        check = RowCheck(self.table, self.meta, self.path)
        yield from self._read(held, names, check)
        if check.row != self.meta.rows:
            raise TraceError(
                f"its metadata says {self.meta.rows} rows, but it holds {check.row}", path=self.path
            )

    def file_rows(self, rows: Array) -> Array:
        """Return the rows of the file that `rows` of this reader are, all counted from 0."""
        return rows

    def whole(self) -> pa.Table:
        """Return all rows at once; of tables that fit into memory."""
        return pa.Table.from_batches(self.batches(), arrow_schema(self.table, self.extras))

    def _read(
        self, held: Sequence[str], names: Sequence[str], check: RowCheck
    ) -> Iterator[pa.RecordBatch]:
        """Yield what `check` makes of the columns `held`, which the file has.

        The columns `names`.
        """
        raise NotImplementedError


class ParquetReader(Reader):
    """Reads a table of the contract from Parquet."""

    def __init__(self, path: Path, table: Table | None) -> None:
        """Open `path`, check that it holds `table`, and read its metadata."""
        self.path = path
        try:
            # Without buffering ahead, which takes 40 MB and no less time, a page of each column is
            # in memory.
            self._file = pq.ParquetFile(path, page_checksum_verification=True, pre_buffer=False)
        except MemoryError:
            # pyarrow's is one of its own errors too.
            raise
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise TraceError(
                f"not a readable Parquet file: {_first_line(error)}", path=path
            ) from None
        pairs = self._file.metadata.metadata or {}
        if META_KEY not in pairs:
            raise TraceError(
                "a Parquet file that kvtrace did not write: it has no kvtrace metadata", path=path
            )
        # Tables of before have none.
        if pairs.get(_CHECK_KEY, b"") not in (
            b"",
            hashlib.sha256(pairs[META_KEY]).hexdigest().encode(),
        ):
            raise TraceError("damaged: its metadata is not what was written", path=path)
        self.meta = metadata.decode(pairs[META_KEY], path)
        self.table = table_of(self.meta, table, path)
        found = set(self._file.schema_arrow.names)
        self.extras = tuple(c.name for c in self.table.extras if c.name in found)
        self._check_columns()
        footer, size = self._file.metadata, self.path.stat().st_size
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
        if footer.num_rows > size * MOST_ROWS_PER_BYTE:
            raise TraceError(
                f"its footer says {footer.num_rows} rows, which {size} bytes cannot hold",
                path=self.path,
            )
        # Of columns by themselves, Arrow ends the process where their statistics are damaged.
        if any(not 0 <= group.total_byte_size <= MOST_GROUP_BYTES for group in groups):
            message = (
                f"a row group unpacks to more than {MOST_GROUP_BYTES} bytes; write smaller ones"
            )
            raise TraceError(message, path=self.path)

    def _check_columns(self) -> None:
        found = self._file.schema_arrow
        for field in arrow_schema(self.table, self.extras):
            column = self.table.column(field.name)
            index = found.get_field_index(column.name)
            if index < 0:
                raise TraceError("this column is missing", path=self.path, column=column.name)
            type_ = found.field(index).type
            if not (
                pa.types.is_dictionary(type_) if column.type == "enum" else type_ == field.type
            ):
                raise TraceError(
                    f"its type is {type_}, not {field.type}", path=self.path, column=column.name
                )

    def _read(
        self, held: Sequence[str], names: Sequence[str], check: RowCheck
    ) -> Iterator[pa.RecordBatch]:
        found = self._file.iter_batches(batch_size=BATCH_ROWS, columns=held, use_threads=False)
        try:
            for batch in found:
                yield check.take({name: batch.column(name) for name in held}, names)
        except MemoryError:
            raise
        except (pa.ArrowException, OSError) as error:
            message = f"damaged after this row: {_first_line(error)}"
            raise TraceError(message, path=self.path, row=check.row) from None


class RowCheck:
    """Checks the rows of one table as they are read, whatever the file.

    Types, nulls, closed sets, ranges, text.

    No reader hands on a row that did not pass, so what works with rows need not look again.
    """

    def __init__(self, table: Table, meta: Metadata, path: Path) -> None:
        """Check rows of `table` as `meta` describes it; errors name `path`."""
        self.row = 0
        self._table, self._meta, self._path = table, meta, path
        self._most_objects = most_objects(path, meta) if table is TRACE else 0
        self._totals: dict[str, float] = {}
        """Of each column of bytes, so far."""

    def take(self, columns: Mapping[str, Any], names: Sequence[str]) -> pa.RecordBatch:
        """Return the next rows, arrays by column name, as the columns `names` with the exact types
        of the table.

        A name that is not among the columns is that of an extra one, which gets its default.
        TraceError for a null, value or text that its column may not hold.
        """
        arrays = {
            name: self._column(array, self._table.column(name)) for name, array in columns.items()
        }
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

    def _column(self, array: pa.Array, column: Column) -> pa.Array:
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
        if (
            column.type == "enum"
            and pa.types.is_dictionary(array.type)
            and self._is_coded(array, column)
        ):
            return pa.DictionaryArray.from_arrays(
                array.indices.cast(pa.int8()), array.dictionary, safe=False
            )
        try:
            # Arrow takes text as it stands in the file; whether it is UTF-8 is only looked at here.
            array.validate(full=True)
        except pa.ArrowException as error:
            raise self._fault(f"damaged from here on: {_first_line(error)}", 0, column) from None
        return self._codes(array, column) if column.type == "enum" else array

    def _check_range(self, array: pa.Array, column: Column) -> None:
        low, high = pc.min_max(array).as_py().values()
        if low is None:
            return
        least, most, allowed = column.least, column.most, "out of range"
        if self._table in (TRACE, OPS) and column.name == "tier":
            names = [tier.name for tier in self._meta.tiers]
            most, allowed = (
                len(names) - 1,
                f"no tier: the metadata names {', '.join(names) or 'none'}",
            )
        elif self._table is TRACE and column.name == "object_id":
            most = self._most_objects
            allowed = f"not a dense number from 0, in a file of {self._meta.rows or 0} rows"
        if (least is not None and low < least) or high > most:
            wrong = (
                pc.greater(array, most)
                if least is None
                else pc.or_(pc.less(array, least), pc.greater(array, most))
            )
            at = pc.index(wrong, pa.scalar(value=True)).as_py()
            where = f"at most {most}" if least is None else f"from {least} to {most}"
            raise self._fault(f"{array[at]} is {allowed} ({where})", at, column)
        if column.unit == "bytes" and column.name not in _PLACES:
            # A PiB for each row of a batch does not fit 64 bits.
            total = pc.sum(
                array if high * len(array) <= MOST else array.cast("float64", safe=False)
            ).as_py()
            self._totals[column.name] = self._totals.get(column.name, 0) + total
            if self._totals[column.name] > MOST:
                raise self._fault("all up to these rows add up to over 4 EiB", 0, column)

    def _is_coded(self, array: pa.Array, column: Column) -> bool:
        """Return whether the codes of `array` are those of the column's closed set already, as in
        files of ours.
        """
        if not array.dictionary.equals(pa.array(column.values, pa.string())):
            return False
        low, high = pc.min_max(array.indices).as_py().values()
        return low is None or (low >= 0 and high < len(column.values))

    def _codes(self, array: pa.Array, column: Column) -> pa.Array:
        values = pa.array(column.values, pa.string())
        if not pa.types.is_dictionary(array.type):
            array = array.dictionary_encode()
        codes = pc.index_in(array.dictionary, values)
        indices = codes.take(array.indices).cast(pa.int8())
        if indices.null_count > array.null_count:
            unknown = pc.and_(indices.is_null(), array.is_valid())
            at = pc.index(unknown, pa.scalar(value=True)).as_py()
            message = (
                f"unknown value {array[at].as_py()!r}; it must be one of {', '.join(column.values)}"
            )
            raise self._fault(message, at, column)
        if indices.null_count and not column.nullable:
            raise self._fault("empty, but this column must have a value", 0, column)
        return pa.DictionaryArray.from_arrays(indices, values)

    def _fault(self, message: str, at: int, column: Column) -> TraceError:
        return TraceError(message, path=self._path, row=self.row + at, column=column.name)


def table_of(meta: Metadata, wanted: Table | None, path: Path) -> Table:
    """Return the table that `meta` describes.

    TraceError if it is none of ours, or not the `wanted` one.
    """
    known = TABLES | {STUDY.name: STUDY}
    if meta.table not in known or (wanted is not None and meta.table != wanted.name):
        names = wanted.name if wanted is not None else ", ".join(known)
        raise TraceError(f"holds the table {meta.table!r}, where {names!r} is wanted", path=path)
    return (
        study_table(metadata.study_names(meta, path))
        if meta.table == STUDY.name
        else known[meta.table]
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


HEAD = b"# kvtrace "
END = b"# end "
CSV_ZSTD_LEVEL = 3
BLOCK_BYTES = 8 << 20
MOST_LINE_BYTES = 64 << 20
MOST_EXPANSION = 1000
_FREE_BYTES = 64 << 20
# zstd unpacks a byte to 32 KiB at most: a step takes 64 MiB.
_UNPACK_BYTES = 2 << 10
_MOST_WINDOW = 128 << 20
_CSV_ROWS = 1 << 17
# Python's int() takes more: other digits, underscores, any length.
_LIST = re.compile(r"\[(?:-?[0-9]{1,19}(?: -?[0-9]{1,19})*)?\]")
_PLACE = re.compile(r"(?:In CSV column #(\d+): |CSV parse error: )?Row #(\d+): ")


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
        self._stream.write(
            HEAD + head.encode() + b"\n" + ",".join([*table.names, *extras]).encode() + b"\n"
        )

    def write(self, table: pa.Table) -> None:
        """Write the rows of `table`."""
        for start in range(0, table.num_rows, _CSV_ROWS):
            part, text = table.slice(start, _CSV_ROWS), io.BytesIO()
            for index, column in enumerate(self._table.columns):
                if column.type.startswith("list"):
                    lists = part.column(index).combine_chunks()
                    items = lists.values.cast(pa.string())
                    items = pa.ListArray.from_arrays(lists.offsets, items, mask=lists.is_null())
                    cells = pc.binary_join_element_wise("[", pc.binary_join(items, " "), "]", "")
                    part = part.set_column(index, column.name, cells)
            # pyarrow's writer would put quotes around every text.
            pl.DataFrame(pl.from_arrow(part)).write_csv(text, include_header=False)
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


class CsvReader(Reader):
    """Reads a table of the contract from zstd CSV."""

    def __init__(self, path: Path, table: Table | None) -> None:
        """Open `path` and check that it holds `table`; the metadata is read from its last line."""
        self.path = path
        blocks = line_blocks(unpacked(path), path)
        block = next(blocks, b"")
        first, header = [*block.split(b"\n", 2), b"", b""][:2]
        if not block:
            raise TraceError("truncated or empty: no line of it can be read", path=path)
        if not first.startswith(HEAD):
            raise TraceError(
                "not a kvtrace CSV: its first line is no '# kvtrace' line "
                "(an MLPerf trace? `kvtrace convert` reads that)",
                path=path,
            )
        # The first line names only table and version; what else a Metadata needs comes with the end
        # line.
        head = b'{"program":"","argv":[],' + first.removeprefix(HEAD).lstrip()[1:]
        self.meta = metadata.decode(head, path)
        self.table = table_of(self.meta, table, path)
        named = header.decode(errors="replace").split(",")
        self.extras = tuple(c.name for c in self.table.extras if c.name in named)
        self._names = [*self.table.names, *self.extras]
        if named != self._names:
            raise TraceError(f"the header must read {','.join(self.table.names)}", path=path, row=2)
        for following in blocks:
            block = following
        start = block.rfind(b"\n" + END) + 1
        if not block[start:].startswith(END) or not block.endswith(b"\n"):
            raise TraceError("truncated: its '# end' line is missing", path=self.path)
        self.meta = metadata.decode(block[start:].removeprefix(END), self.path)

    def _read(
        self, held: Sequence[str], names: Sequence[str], check: RowCheck
    ) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self.table, self.extras)
        types = {name: _text_type(schema.field(name).type) for name in held}
        for block in _data_blocks(self.path):
            for batch in read_csv(
                io.BytesIO(block), self._names, types, self.path, check.row
            ).to_batches():
                yield check.take(
                    {name: self._array(batch.column(name), name, check.row) for name in held}, names
                )

    def _array(self, array: pa.Array, name: str, row: int) -> pa.Array:
        if not self.table.column(name).type.startswith("list"):
            is_set = pa.types.is_dictionary(array.type)
            return (
                pa.DictionaryArray.from_arrays(array.indices, array.dictionary) if is_set else array
            )
        lists: list[list[int] | None] = []
        for index, text in enumerate(array.to_pylist()):
            numbers = None if text is None else _numbers(text)
            if numbers is None and text is not None:
                message = f"{text[:60]!r} is not a list of whole numbers of 64 bits"
                raise TraceError(message, path=self.path, row=row + index, column=name)
            lists.append(numbers)
        return pa.array(lists, pa.list_(pa.int64()))


def _numbers(text: str) -> list[int] | None:
    """Return the numbers of `[1 2 3]`.

    None if `text` is no such list, or one of them does not fit 64 bits.
    """
    if _LIST.fullmatch(text) is None:
        return None
    numbers = [int(n) for n in text[1:-1].split()]
    return numbers if all(-INT64_MAX - 1 <= n <= INT64_MAX for n in numbers) else None


def _text_type(type_: pa.DataType) -> pa.DataType:
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
    **how: Any,
) -> pa.Table:
    """Return those of the columns `names` of CSV rows without a header that have `types`.

    With `has_nulls` "" is null.

    `how` are more of Arrow's ReadOptions. TraceError, placed in `path`, where a cell is not of its
    type: Arrow counts rows from 1, which is `row` there, and columns from 0.
    """
    try:
        return pa_csv.read_csv(
            source,
            # Without threads an error names its row.
            read_options=pa_csv.ReadOptions(column_names=list(names), use_threads=False, **how),
            convert_options=pa_csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=[""] * has_nulls,
                strings_can_be_null=has_nulls,
            ),
        )
    except pa.ArrowInvalid as error:
        # Its first sentence says it.
        message = str(error).split(". ", maxsplit=1)[0].split("\n", maxsplit=1)[0]
    if message == "Empty CSV file":
        return pa.schema(types).empty_table()
    place = _PLACE.match(message)
    if place is None:
        raise TraceError(f"in the rows from here on: {message}", path=path, row=row)
    column = names[int(place[1])] if place[1] else None
    raise TraceError(message[place.end() :], path=path, row=row + int(place[2]) - 1, column=column)


def _data_blocks(path: Path) -> Iterator[bytes]:
    """Yield the data rows of `path` in blocks of whole lines, without head, header and end line."""
    for at, block in enumerate(line_blocks(unpacked(path), path)):
        rows, end, _ = (b"\n" + (block if at else block.split(b"\n", 2)[2])).partition(b"\n" + END)
        if len(rows) > 1:
            yield rows[1:]
        if end:
            return


def line_blocks(text: Iterable[bytes], path: Path) -> Iterator[bytes]:
    """Yield the `text` of `path`, which comes in pieces, in blocks that end with a line (the last
    one may not).
    """
    rest = b""
    for data in text:
        lines, newline, rest = (rest + data).rpartition(b"\n")
        if newline:
            yield lines + newline
        if len(rest) > MOST_LINE_BYTES:
            raise TraceError(f"a line of more than {MOST_LINE_BYTES} bytes", path=path)
    if rest:
        yield rest


def unpacked(path: Path) -> Iterator[bytes]:
    """Yield what the zstd frames at `path` hold, some MiB at a time.

    The one way to unpack a whole file.

    TraceError if it is damaged or cut off, or unpacks to so much that it was made to fill a
    machine.
    """
    frame, parts = None, []
    taken = done = given = 0
    with path.open("rb") as file:
        while data := file.read(_UNPACK_BYTES):
            taken += len(data)
            while data:
                frame = (
                    frame
                    or zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW).decompressobj()
                )
                try:
                    parts.append(frame.decompress(data))
                except zstandard.ZstdError as error:
                    raise TraceError(f"damaged zstd data: {error}", path=path) from None
                done += len(parts[-1])
                data, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
            if done > _FREE_BYTES + taken * MOST_EXPANSION:
                raise TraceError(
                    f"unpacks to more than {MOST_EXPANSION} times its size: no table does",
                    path=path,
                )
            if done - given >= BLOCK_BYTES:
                yield b"".join(parts)
                parts, given = [], done
    if any(parts):
        yield b"".join(parts)
    if frame is not None:
        raise TraceError("truncated: its zstd data has no end", path=path)


SUFFIXES = (".parquet", ".csv.zst")
ROW_GROUP_ROWS = (
    1 << 18
)  # in memory until they are encoded; the footer of each group, 11 KB, until the end

Encoder = ParquetEncoder | CsvEncoder
"""What a file format writes: whole row groups, then the metadata."""


class Writer:
    """A table being written.

    Rows are gathered into row groups of one size, so bytes never depend on batches.
    """

    def __init__(
        self, table: Table, meta: Metadata, encoder: Encoder, extras: tuple[str, ...] = ()
    ) -> None:
        """Write rows of `table` with the columns `extras` through `encoder`, and `meta`, as of it,
        at the end.
        """
        self.table, self.rows = table, 0
        self.meta = msgspec.structs.replace(
            meta, table=table.name, schema_version=table.version(extras)
        )
        self._encoder, self._extras, self._is_whole = encoder, extras, False
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0

    @property
    def encoded_rows(self) -> int:
        """How many of the rows are encoded: their memory is needed no more."""
        return self.rows - self._pending_rows

    def write(self, batch: pa.RecordBatch) -> None:
        """Append `batch`, which must have exactly the table's schema, and the extra columns at its
        end.
        """
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self.rows += batch.num_rows
        if self._pending_rows >= ROW_GROUP_ROWS:
            self._flush(whole=False)

    def update(self, **fields: Any) -> None:
        """Replace fields of the metadata, such as `stats`, before the file ends."""
        self.meta = msgspec.structs.replace(self.meta, **fields)

    def _flush(self, *, whole: bool) -> None:
        rows = pa.Table.from_batches(self._pending, arrow_schema(self.table, self._extras))
        end = rows.num_rows if whole else rows.num_rows // ROW_GROUP_ROWS * ROW_GROUP_ROWS
        for start in range(0, end, ROW_GROUP_ROWS):
            self._encoder.write(rows.slice(start, ROW_GROUP_ROWS))
        rest = rows.slice(end)
        self._pending, self._pending_rows = rest.to_batches(), rest.num_rows

    def finish(self) -> None:
        """Write what is pending and the metadata with the row count; once is enough.

        Who writes several files calls it on all of them first, so that no disk fills up after one
        has its name.
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
    path: Path | str, table: Table, meta: Metadata, extras: tuple[str, ...] = ()
) -> Iterator[Writer]:
    """Yield a `Writer` of `table` for `path`.

    The file appears there only if the block ends without an error.

    The file has those columns of the table's `extras` that are named here, in the table's order.
    """
    path = Path(path)
    kind = ParquetEncoder if _format(path) == ".parquet" else CsvEncoder
    with aside(path) as temporary:
        encoder: Encoder = kind(temporary, table, extras)
        try:
            writer = Writer(table, meta, encoder, extras)
            yield writer
            writer.finish()
        finally:
            encoder.close()


def open_table(path: Path | str, table: Table | None = None) -> Reader:
    """Return a reader of the file at `path`, which must hold `table` if one is named.

    TraceError if the file is missing, damaged, of another table, or of a schema version we do not
    know.
    """
    path = Path(path)
    if not path.is_file():
        raise TraceError("not a regular file" if path.exists() else "no such file", path=path)
    return (ParquetReader if _format(path) == ".parquet" else CsvReader)(path, table)


def checked(path: Path | str, table: Table | None = None) -> Reader:
    """Return a reader of the file at `path`, all of whose rows have been looked at.

    For those who give the file itself to another program, such as DuckDB, which would take whatever
    stands in it. TraceError as of `open_table`, or for a row that a reader refuses.
    """
    reader = open_table(path, table)
    state = reader.path.stat()
    _check_rows(
        reader.path, reader.table, state.st_mtime_ns, state.st_size, state.st_dev, state.st_ino
    )
    return reader


@lru_cache
def _check_rows(path: Path, table: Table, *_state: int) -> None:
    """Read all of the file at `path`; once for each state of it."""
    for _batch in open_table(path, table).batches():
        pass


def objects_path(trace: Path | str) -> Path:
    """Return where the objects table of `trace` lies: `t.parquet` has `t.objects.parquet`."""
    trace = Path(trace)
    suffix = _format(trace)
    return trace.with_name(trace.name.removesuffix(suffix) + ".objects" + suffix)


def requests_path(trace: Path | str) -> Path:
    """Return where the requests table of `trace` lies: `t.parquet` has `t.requests.parquet`."""
    trace = Path(trace)
    suffix = _format(trace)
    return trace.with_name(trace.name.removesuffix(suffix) + ".requests" + suffix)


def _format(path: Path) -> str:
    for suffix in SUFFIXES:
        if path.name.endswith(suffix) and path.name != suffix:
            return suffix
    what = (
        "kvtrace gen FILE --source FORMAT reads requests; a trace is named"
        if path.exists()
        else "name it"
    )
    raise ConfigError(f"{path}: unknown file type; {what} *{' or *'.join(SUFFIXES)}")
