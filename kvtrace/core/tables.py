"""Read and write the tables of the contract: as a file, or a trace as a dataset of several files.

`table_files.py` opens and writes single files of either format, `dataset.py` datasets.
"""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path

from kvtrace.core.dataset import DatasetReader, create_dataset, is_dataset, staged, staged_path
from kvtrace.core.files import MANIFEST
from kvtrace.core.metadata import Metadata
from kvtrace.core.page_checksums import verify_pages
from kvtrace.core.parquet_tables import ParquetReader
from kvtrace.core.remote import given_path, local_path
from kvtrace.core.schema import TRACE, Table
from kvtrace.core.table_files import ROW_GROUP_ROWS, Writer, create_file, open_file
from kvtrace.core.table_names import SUFFIXES, names_dataset, objects_path, requests_path
from kvtrace.core.table_reader import Reader

__all__ = [
    "ROW_GROUP_ROWS",
    "SUFFIXES",
    "DatasetReader",
    "Reader",
    "Writer",
    "create",
    "given_path",
    "is_dataset",
    "names_dataset",
    "objects_path",
    "open_checked",
    "open_table",
    "open_verified",
    "requests_path",
    "staged",
    "staged_path",
    "trace_sha256",
]


def create(
    path: Path | str, table: Table, meta: Metadata, extras: tuple[str, ...] = ()
) -> AbstractContextManager[Writer]:
    """Yield a `Writer` of `table` for `path`.

    The file appears there only if the block ends without an error. `extras` are the names of those
    extra columns that the file gets, in the table's order. A trace for a folder that `staged` made
    is written as a dataset.
    """
    path = Path(path)
    if table is TRACE and path.is_dir() and names_dataset(path):
        return create_dataset(path, meta, extras)
    return create_file(path, table, meta, extras)


def open_table(path: Path | str, table: Table | None = None) -> Reader:
    """Return a reader of the file or dataset at `path`, which must hold `table` if one is named.

    `path` may be a URL of S3; the reader has the local path.

    TraceError if it is missing or damaged, holds another table, or has an unknown schema version.
    """
    path = local_path(path)
    return DatasetReader(path, table) if path.is_dir() else open_file(path, table)


def trace_sha256(trace: Path) -> str:
    """Return the SHA-256 of the trace file; of a dataset, that of its manifest."""
    with (trace / MANIFEST if trace.is_dir() else trace).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_verified(path: Path | str, table: Table | None = None) -> Reader:
    """Return a reader of the file at `path` after a check that its bytes are what was written.

    Callers use it before another library, such as DuckDB, reads the file without our checks. The
    checksums of all pages are verified, which takes a tenth of the time of a query. The rows are
    checked only if kvtrace did not write the file, or a page has no checksum; `kvtrace validate`
    checks them always. TraceError as in `open_table`, for damaged pages, or for a row that a reader
    refuses.
    """
    reader = open_table(path, table)
    if isinstance(reader, ParquetReader) and verify_pages(reader.path) and reader.has_digest:
        return reader
    return open_checked(reader.path, table)


def open_checked(path: Path | str, table: Table | None = None) -> Reader:
    """Return a reader of the file at `path` after a check of all its rows.

    TraceError as in `open_table`, or for a row that a reader refuses.
    """
    reader = open_table(path, table)
    status = reader.path.stat()
    _check_rows(
        reader.path,
        reader.table,
        status.st_mtime_ns,
        status.st_size,
        status.st_dev,
        status.st_ino,
    )
    return reader


@lru_cache
def _check_rows(path: Path, table: Table, *_status: int) -> None:
    """Read all rows of the file at `path`; a file with an equal `_status` is not read again."""
    for _batch in open_table(path, table).large_batches():
        pass
