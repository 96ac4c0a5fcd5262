"""Tables as zstd CSV, for people, and for tools that cannot read Parquet.

Line 1 is `# kvtrace` and the metadata as JSON, line 2 the header. The last line is `# end` and the
final metadata: a file without it is truncated. Null is an empty field; a list is `[1 2 3]`.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvtrace.core import metadata, pa, pa_csv, pc, pl, zstandard
from kvtrace.core.errors import TraceError
from kvtrace.core.metadata import Metadata
from kvtrace.core.row_check import RowCheck
from kvtrace.core.schema import Table, arrow_schema
from kvtrace.core.table_reader import Reader, table_of
from kvtrace.core.units import INT64_MAX

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

    def open_beside(self, path: Path, table: Table) -> Reader:
        """Return a reader of `table` at `path`, a table of the same trace."""
        return CsvReader(path, table)

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
