"""Tables of the contract as zstd CSV, for people and tools without Parquet.

Line 1 is `# kvtrace` and the metadata as JSON, line 2 the header; the last line is `# end` and the final
metadata, which tells a whole file from a truncated one. Null is an empty field; a list is `[1 2 3]`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvtrace.core import metadata
from kvtrace.core.errors import TraceError
from kvtrace.core.metadata import Metadata
from kvtrace.core.parquet import RowCheck, held_columns, table_of
from kvtrace.core.schema import Table, arrow_schema
from kvtrace.core.units import INT64_MAX

if TYPE_CHECKING:
    import pyarrow as pa

HEAD = b"# kvtrace "
END = b"# end "
ZSTD_LEVEL = 3
BLOCK_BYTES = 8 << 20
MOST_LINE_BYTES = 64 << 20
MOST_EXPANSION = 1000
_FREE_BYTES = 64 << 20
# zstd unpacks a byte to 32 KiB at most: a step takes 64 MiB.
_UNPACK_BYTES = 2 << 10
_MOST_WINDOW = 128 << 20
_WRITE_ROWS = 1 << 17
# Python's int() takes more: other digits, underscores, any length.
_LIST = re.compile(r"\[(?:-?[0-9]{1,19}(?: -?[0-9]{1,19})*)?\]")
_PLACE = re.compile(r"(?:In CSV column #(\d+): |CSV parse error: )?Row #(\d+): ")


class CsvEncoder:
    """Writes rows as zstd CSV."""

    def __init__(self, path: Path, table: Table, extras: tuple[str, ...] = ()) -> None:
        """Open `path` for rows of `table` with the columns `extras`."""
        import zstandard

        self._table = table
        self._file = path.open("wb")
        self._stream = zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True).stream_writer(
            self._file, closefd=False
        )
        head = f'{{"table":"{table.name}","schema_version":{table.version(extras)}}}'
        self._stream.write(HEAD + head.encode() + b"\n" + ",".join([*table.names, *extras]).encode() + b"\n")

    def write(self, table: pa.Table) -> None:
        """Write the rows of `table`."""
        import polars as pl

        for start in range(0, table.num_rows, _WRITE_ROWS):
            part = table.slice(start, _WRITE_ROWS)
            text = io.BytesIO()
            # pyarrow's writer would put quotes around every text.
            pl.DataFrame(pl.from_arrow(_lists_as_text(part, self._table))).write_csv(text, include_header=False)
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


def _lists_as_text(rows: pa.Table, table: Table) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    for index, column in enumerate(table.columns):
        if column.type.startswith("list"):
            values = rows.column(index).combine_chunks()
            numbers = pa.ListArray.from_arrays(values.offsets, values.values.cast(pa.string()), mask=values.is_null())
            text = pc.binary_join_element_wise("[", pc.binary_join(numbers, " "), "]", "")
            rows = rows.set_column(index, column.name, text)
    return rows


class CsvReader:
    """Reads a table of the contract from zstd CSV."""

    def __init__(self, path: Path, table: Table | None) -> None:
        """Open `path` and check that it holds `table`; the metadata is read from its last line."""
        self.path = path
        blocks = _line_blocks(path)
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
        # The first line names only table and version; what else a Metadata needs comes with the end line.
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

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows in order, all columns or the named ones."""
        names = list(columns) if columns is not None else self._names
        check = RowCheck(self.table, self.meta, self.path)
        held = held_columns(self.table, self.extras, names)
        for block in _data_blocks(self.path):
            for batch in self._parse(block, check.row, held):
                yield check.take({name: self._array(batch.column(name), name, check.row) for name in held}, names)
        if check.row != self.meta.rows:
            raise TraceError(f"its end line says {self.meta.rows} rows, but it holds {check.row}", path=self.path)

    def _parse(self, block: bytes, row: int, names: list[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyarrow import csv

        types = {f.name: _text_type(f.type) for f in arrow_schema(self.table, self.extras)}
        try:
            yield from csv.read_csv(
                io.BytesIO(block),
                # Without threads an error names its row.
                read_options=csv.ReadOptions(column_names=self._names, use_threads=False),
                convert_options=csv.ConvertOptions(
                    column_types=types, include_columns=names, null_values=[""], strings_can_be_null=True
                ),
            ).to_batches()
        except pa.ArrowInvalid as error:
            raise csv_fault(error, self._names, self.path, row) from None

    def _array(self, array: Any, name: str, row: int) -> Any:
        import pyarrow as pa

        if self.table.column(name).type.startswith("list"):
            array = self._lists(array, name, row)
        elif pa.types.is_dictionary(array.type):
            array = pa.DictionaryArray.from_arrays(array.indices, array.dictionary)
        return array

    def _lists(self, array: Any, name: str, row: int) -> Any:
        import pyarrow as pa

        lists: list[list[int] | None] = []
        for index, text in enumerate(array.to_pylist()):
            numbers = None if text is None else _numbers(text)
            if numbers is None and text is not None:
                message = f"{text[:60]!r} is no list of whole numbers of 64 bits"
                raise TraceError(message, path=self.path, row=row + index, column=name)
            lists.append(numbers)
        return pa.array(lists, pa.list_(pa.int64()))


def _numbers(text: str) -> list[int] | None:
    """Return the numbers of `[1 2 3]`; None if `text` is no such list, or one of them does not fit 64 bits."""
    if _LIST.fullmatch(text) is None:
        return None
    numbers = [int(n) for n in text[1:-1].split()]
    return numbers if all(-INT64_MAX - 1 <= n <= INT64_MAX for n in numbers) else None


def _text_type(type_: pa.DataType) -> pa.DataType:
    """Return the type as which the text of a column of `type_` is parsed."""
    import pyarrow as pa

    if pa.types.is_dictionary(type_):
        return pa.dictionary(pa.int32(), pa.string())
    return pa.string() if pa.types.is_list(type_) else type_


def csv_fault(error: Exception, columns: Sequence[str], path: Path, row: int) -> TraceError:
    """Return what Arrow's CSV `error` says, placed: its rows count from 1 and from `row`, its columns from 0."""
    message = str(error)
    place = _PLACE.match(message)
    if place is None:
        return TraceError(f"in the rows from here on: {message}", path=path, row=row)
    column = columns[int(place[1])] if place[1] else None
    return TraceError(message[place.end() :], path=path, row=row + int(place[2]) - 1, column=column)


def _data_blocks(path: Path) -> Iterator[bytes]:
    """Yield the data rows of `path` in blocks of whole lines, without head, header and end line."""
    skip = 2
    for block in _line_blocks(path):
        start = 0
        while skip:
            start = block.index(b"\n", start) + 1
            skip -= 1
        if block.startswith(END, start):
            return
        end = block.find(b"\n" + END, start)
        if end >= 0:
            yield block[start : end + 1]
            return
        if start < len(block):
            yield block[start:]


def _line_blocks(path: Path) -> Iterator[bytes]:
    """Yield the decompressed text of `path` in blocks that end with a line (the last one may not)."""
    rest: list[bytes] = []
    for data in unpacked(path):
        cut = data.rfind(b"\n") + 1
        if cut:
            yield b"".join((*rest, data[:cut]))
            rest = []
        rest.append(data[cut:])
        if sum(map(len, rest)) > MOST_LINE_BYTES:
            raise TraceError(f"a line of more than {MOST_LINE_BYTES} bytes", path=path)
    if any(rest):
        yield b"".join(rest)


def unpacked(path: Path) -> Iterator[bytes]:
    """Yield what the zstd frames at `path` hold, some MiB at a time; the one way to unpack a whole file.

    Raises:
        TraceError: it is damaged or cut off, or unpacks to so much that it was made to fill a machine.

    """
    import zstandard

    frame, parts = None, []
    taken = done = given = 0
    with path.open("rb") as file:
        while data := file.read(_UNPACK_BYTES):
            taken += len(data)
            while data:
                frame = frame or zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW).decompressobj()
                try:
                    parts.append(frame.decompress(data))
                except zstandard.ZstdError as error:
                    raise TraceError(f"damaged zstd data: {error}", path=path) from None
                done += len(parts[-1])
                data, frame = (frame.unused_data, None) if frame.eof else (b"", frame)
            if done > _FREE_BYTES + taken * MOST_EXPANSION:
                raise TraceError(f"unpacks to more than {MOST_EXPANSION} times its size: no table does", path=path)
            if done - given >= BLOCK_BYTES:
                yield b"".join(parts)
                parts, given = [], done
    if any(parts):
        yield b"".join(parts)
    if frame is not None:
        raise TraceError("truncated: its zstd data has no end", path=path)
