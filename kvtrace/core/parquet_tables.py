"""Tables as Parquet, which is compressed by zstd.

Closed sets and text have dictionaries; times and ids are stored as deltas.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import accumulate
from pathlib import Path

from kvtrace.core import metadata, pa, pq
from kvtrace.core.errors import TraceError, first_line
from kvtrace.core.metadata import Metadata
from kvtrace.core.row_check import RowCheck
from kvtrace.core.schema import Table, arrow_schema
from kvtrace.core.table_reader import CanSkipPart, Reader, table_of

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
MAX_ROWS_PER_BYTE = 1 << 16
"""A file with more rows for each of its bytes is damaged.

Even a page that repeats one value a million times in each column takes more room.
"""
MAX_GROUP_BYTES = 512 << 20
"""Largest uncompressed row group, much of which a reader may have to hold in memory.

Row groups that kvtrace writes have some 20 MiB.
"""
_MAX_READ_THREADS = 4
"""Threads that unpack row groups. Each has a row group in memory, of some 20 MB."""


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

    def open_beside(self, path: Path, table: Table) -> Reader:
        """Return a reader of `table` at `path`, a table of the same trace."""
        return ParquetReader(path, table)

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
        can_skip: CanSkipPart | None = None,  # noqa: ARG002 - a file has no parts
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
