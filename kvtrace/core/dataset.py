"""A trace as a dataset: a folder of Parquet files, each of which holds the rows of a span of time.

    fleet/part-00000.parquet    the first rows, in order of time
    fleet/part-00001.parquet    the rows after them, and so on
    fleet/objects.parquet       the objects table
    fleet/requests.parquet      the requests table, if there is one
    fleet/dataset.json          the manifest: metadata of the trace, and facts of each file

The manifest is written last, so a folder without one is not a whole trace. It holds the times of
each part, so that a query of a time reads only the parts that have it, and the SHA-256 of each
part's footer. The pages of a part are protected by checksums. Parts are opened when they are read:
to open a dataset takes the manifest and the sizes of its files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec

from kvtrace.core import metadata, pa, pa_fs, pc, pq
from kvtrace.core.errors import ConfigError, DeviceError, TraceError, first_line
from kvtrace.core.files import MANIFEST, decode_json, exchange_names, read_json, write_text
from kvtrace.core.metadata import Metadata
from kvtrace.core.parquet_tables import ParquetEncoder, ParquetReader
from kvtrace.core.remote import RemoteFolder, convert_s3_errors, remote_folder
from kvtrace.core.row_check import RowCheck
from kvtrace.core.schema import TRACE, Table
from kvtrace.core.simulation_stats import Count
from kvtrace.core.table_files import Writer, open_file, with_table
from kvtrace.core.table_names import SUFFIXES, names_dataset, objects_path, requests_path
from kvtrace.core.table_reader import CanSkipPart, Reader
from kvtrace.core.temporary import temporary_folder
from kvtrace.core.units import INT64_MAX

MANIFEST_VERSION = 1
PART_ROWS = 1 << 26
"""Rows of a part, the last one excepted: 256 row groups, some 120 MB of a trace of lmcache-disk.

A fleet's day of 10^10 rows then has 149 parts.
"""
_PARTS = "part-*.parquet"
_FOOTER_END_BYTES = 8
"""The length of a Parquet file's footer in four bytes, and the magic number, end the file."""


_Time = Annotated[int, msgspec.Meta(ge=-INT64_MAX, le=INT64_MAX)]


class DatasetFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file of a dataset, as the manifest describes it."""

    name: str
    rows: Count
    file_bytes: Count
    footer_sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of the end of the file: the footer, its length and the magic number."""
    min_ts_ns: _Time | None = None
    """Earliest time of a row; null without rows, and for a file that is no part."""
    max_ts_ns: _Time | None = None
    """Latest time of a row; null as `min_ts_ns` is."""

    def __post_init__(self) -> None:
        """Refuse a name that leads out of the folder; the error is a ValueError."""
        if self.name != Path(self.name).name or not self.name.isprintable():
            raise ValueError(f"{self.name[:80]!r} is not a name of a file in the folder")


class _Contents(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the manifest says of the trace."""

    metadata: msgspec.Raw
    extras: list[str]
    """The extra columns that all parts have."""
    parts: list[DatasetFile]
    """In order of their rows."""
    tables: list[DatasetFile]
    """The objects and requests tables, if there are any."""


class _Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `dataset.json`."""

    kvtrace_dataset: int
    """Version of the layout."""
    sha256: str
    """SHA-256 of the bytes of `contents`."""
    contents: msgspec.Raw


def is_dataset(path: Path) -> bool:
    """Return whether `path` is a dataset, or a part of one: parts without a manifest."""
    return (path / MANIFEST).is_file() or (path.is_dir() and any(path.glob(_PARTS)))


class DatasetReader(Reader):
    """Reads the rows of a dataset, one part after another.

    A row of a part that is refused is named by its part and its number there.
    """

    def __init__(self, path: Path, table: Table | None) -> None:
        """Read the manifest of the folder `path`, and compare the sizes of its files."""
        self.path, self.table = path, TRACE
        if table not in (None, TRACE):
            raise TraceError(
                f"a trace dataset, where the table {table.name!r} is wanted", path=path
            )
        contents = _read_contents(path)
        self.meta = metadata.decode(bytes(contents.metadata), path / MANIFEST)
        self.extras = tuple(contents.extras)
        self.parts, self.tables = contents.parts, contents.tables
        self._check_manifest()
        self._remote = remote_folder(path)
        """Where the parts are, unless they are in the folder."""
        # Each size in S3 would be a request: the part is compared when it is opened.
        for file in self.tables if self._remote else (*self.parts, *self.tables):
            _check_local_size(path / file.name, file)

    def open_beside(self, path: Path, table: Table) -> Reader:
        """Return a reader of `table` at `path`, a table of the same trace."""
        return ParquetReader(path, table)

    def _check_manifest(self) -> None:
        """Raise TraceError if the manifest contradicts itself."""
        manifest, rows = self.path / MANIFEST, sum(part.rows for part in self.parts)
        if self.meta.table != TRACE.name or self.meta.rows != rows or not self.parts:
            message = (
                f"its metadata says {self.meta.rows} rows of the table {self.meta.table!r}, but its"
                f" {len(self.parts)} parts hold {rows} rows of a trace"
            )
            raise TraceError(message, path=manifest)
        if unknown := set(self.extras) - {column.name for column in TRACE.extras}:
            raise TraceError(f"a trace has no column {min(unknown)!r}", path=manifest)
        end_ns = None
        for part in self.parts:
            begin_ns = part.min_ts_ns
            if part.rows and (begin_ns is None or part.max_ts_ns is None):
                raise TraceError(f"{part.name} has rows, but no times", path=manifest)
            if begin_ns is not None and end_ns is not None and begin_ns < end_ns:
                raise TraceError(
                    f"{part.name} begins at {begin_ns} ns, before the part in front of it ends"
                    f" ({end_ns} ns): write the parts in order of time",
                    path=manifest,
                )
            end_ns = end_ns if part.max_ts_ns is None else part.max_ts_ns

    def check_files(self) -> None:
        """Raise TraceError for the first file whose footer is not the one that was written."""
        for index in range(len(self.parts)):
            self.open_part(index)
        for file in self.tables:
            _check_local_footer(self.path / file.name, file)

    def part_path(self, index: int) -> Path:
        """Return the path of a part, which may be in S3."""
        name = self.parts[index].name
        return self._remote.path(name) if self._remote else self.path / name

    def part_source(self, index: int) -> tuple[pa_fs.FileSystem, str]:
        """Return the file system of a part for Arrow, and its path there."""
        name = self.parts[index].name
        if self._remote:
            return self._remote.file_system, f"{self._remote.bucket_path}/{name}"
        return pa_fs.LocalFileSystem(), str(self.path / name)

    def open_part(self, index: int) -> ParquetReader:
        """Return a reader of a part; TraceError if it is not the file that was written."""
        part, path = self.parts[index], self.part_path(index)
        if self._remote:
            with convert_s3_errors(path), self._remote.open(part.name) as file:
                _check_size(path, part, file.size())
                _check_footer(path, part, file)
            reader: ParquetReader = RemoteParquetReader(self._remote, part)
        else:
            _check_local_size(path, part)
            _check_local_footer(path, part)
            reader = ParquetReader(path, TRACE)
        if (reader.meta.rows, reader.extras) != (part.rows, self.extras):
            message = f"has other rows or columns than {MANIFEST} says; restore the part"
            raise TraceError(message, path=path)
        return reader

    def read(
        self, stored_names: Sequence[str], names: Sequence[str], check: RowCheck
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of all parts in order."""
        for index in range(len(self.parts)):
            reader, part_check = self.open_part(index), check.start_file(self.part_path(index))
            batches = reader.read(stored_names, names, part_check)
            yield from self._checked_batches(index, batches)
            check.advance_file(part_check)

    def read_ahead(
        self,
        stored_names: Sequence[str],
        names: Sequence[str],
        check: RowCheck,
        can_skip: CanSkipPart | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the parts in order, in batches of up to a row group."""
        for index, part in enumerate(self.parts):
            last_ns = part.max_ts_ns
            if can_skip and last_ns is not None and can_skip(part.rows, last_ns):
                check.omit(part.rows)
                continue
            reader, part_check = self.open_part(index), check.start_file(self.part_path(index))
            batches = reader.read_ahead(stored_names, names, part_check)
            yield from self._checked_batches(index, batches)
            check.advance_file(part_check)

    def _checked_batches(
        self, index: int, batches: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Yield `batches` of a part, whose times are checked if they are among the columns."""
        row = 0
        for batch in batches:
            if "ts_ns" in batch.schema.names:
                self.check_times(index, batch.column("ts_ns"), row)
            row += batch.num_rows
            yield batch

    def check_times(self, index: int, times: pa.Array, first_row: int) -> None:
        """Raise TraceError if one of `times`, of rows of a part from `first_row` on, is not within
        the times that the manifest has of the part.

        A query of a time would have missed such a row.
        """
        if not len(times):
            return
        begin_ns, end_ns = self.parts[index].min_ts_ns, self.parts[index].max_ts_ns
        earliest, latest = pc.min_max(times).as_py().values()
        if begin_ns is None or end_ns is None or earliest < begin_ns or latest > end_ns:
            raise TraceError(
                f"a time of these rows is not within {begin_ns} to {end_ns} ns, as {MANIFEST} says",
                path=self.part_path(index),
                row=first_row,
                column="ts_ns",
            )


class RemoteParquetReader(ParquetReader):
    """Reads a part of a dataset in S3, by row groups."""

    def __init__(self, folder: RemoteFolder, part: DatasetFile) -> None:
        """Open `part` in `folder`, and read its footer."""
        self._folder, self._part = folder, part
        super().__init__(folder.path(part.name), TRACE)

    def _open(self, footer: pq.FileMetaData | None = None) -> pq.ParquetFile:
        # The columns of a row group are fetched together: each request takes some 10 ms.
        return pq.ParquetFile(
            self._folder.open(self._part.name),
            metadata=footer,
            page_checksum_verification=True,
            pre_buffer=True,
        )

    def _file_bytes(self) -> int:
        return self._part.file_bytes

    def read(
        self,
        stored_names: Sequence[str],
        names: Sequence[str],
        check: RowCheck,
        first_group: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows from the row group `first_group` on, in batches of up to a row group."""
        groups = range(first_group, self.row_groups)
        try:
            with closing(self.read_groups(groups, stored_names, names, check)) as unpacked_groups:
                for batches, group_check in unpacked_groups:
                    check.advance(group_check)
                    yield from batches
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, MemoryError):
                raise
            message = f"damaged after this row, or not readable: {first_line(error)}"
            raise TraceError(message, path=self.path, row=check.row) from None


def _read_contents(folder: Path) -> _Contents:
    """Return the contents of the manifest of `folder`; TraceError if they are not what was written."""
    path = folder / MANIFEST
    if not path.is_file():
        if is_dataset(folder):
            message = f"an incomplete trace dataset: {MANIFEST} is missing; copy or write it again"
            raise TraceError(message, path=folder)
        raise TraceError(f"a folder without {MANIFEST}: no trace dataset", path=folder)
    misfit = "its manifest is damaged: {}"
    manifest = read_json(path, _Manifest, misfit=misfit)
    if manifest.kvtrace_dataset != MANIFEST_VERSION:
        raise TraceError(
            f"a dataset of version {manifest.kvtrace_dataset}, but this program reads version"
            f" {MANIFEST_VERSION}; use the kvtrace that wrote it",
            path=path,
        )
    data = bytes(manifest.contents)
    if manifest.sha256 != hashlib.sha256(data).hexdigest():
        raise TraceError("its manifest is damaged: it is not what was written", path=path)
    return decode_json(data, _Contents, path, misfit=misfit)


def _check_local_size(path: Path, file: DatasetFile) -> None:
    """Raise TraceError if the file at `path` is missing, or has another size than was written."""
    if not path.is_file():
        raise TraceError(f"missing, though {MANIFEST} lists it; restore the file", path=path)
    _check_size(path, file, path.stat().st_size)


def _check_size(path: Path, file: DatasetFile, size: int) -> None:
    if size != file.file_bytes:
        raise TraceError(
            f"has {size} bytes, but {file.file_bytes} were written: truncated, or another file;"
            " restore it",
            path=path,
        )


def _check_local_footer(path: Path, file: DatasetFile) -> None:
    """Raise TraceError if the footer of the file at `path` is not the one that was written."""
    with path.open("rb") as data:
        _check_footer(path, file, data)


def _check_footer(path: Path, file: DatasetFile, data: BinaryIO) -> None:
    if footer_sha256(data) != file.footer_sha256:
        message = f"not the file that {MANIFEST} lists: swapped or damaged; restore it"
        raise TraceError(message, path=path)


def footer_sha256(file: BinaryIO) -> str:
    """Return the SHA-256 of the end of a Parquet file: the footer, its length, the magic number."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _FOOTER_END_BYTES))
    footer_bytes = int.from_bytes(file.read(4), "little")
    file.seek(max(0, size - _FOOTER_END_BYTES - footer_bytes))
    return hashlib.sha256(file.read()).hexdigest()


class DatasetEncoder:
    """Writes row groups to the parts of a dataset, and its manifest."""

    def __init__(self, folder: Path, extras: tuple[str, ...], meta: Metadata) -> None:
        """Write parts into `folder`, with `meta` but for the rows and the counters of the trace."""
        self._folder, self._extras = folder, extras
        self._part_meta, self._meta = meta, meta  # `finish` replaces that of the manifest.
        self._parts: list[DatasetFile] = []
        self._encoder: ParquetEncoder | None = None
        self._part_rows = self._first_row = 0
        self._times_ns: list[int] = []

    def write(self, table: pa.Table) -> None:
        """Write `table` as a row group, or as several where a part ends within it."""
        start = 0
        while start < table.num_rows:
            rows = table.slice(start, PART_ROWS - self._part_rows)
            encoder = self._encoder = self._encoder or self._start_part()
            encoder.write(rows)
            self._times_ns += pc.min_max(rows.column("ts_ns")).as_py().values()
            self._part_rows += rows.num_rows
            start += rows.num_rows
            if self._part_rows == PART_ROWS:
                self._end_part(encoder)

    def _start_part(self) -> ParquetEncoder:
        return ParquetEncoder(self._part_path, TRACE, self._extras)

    @property
    def _part_path(self) -> Path:
        return self._folder / f"part-{len(self._parts):05}.parquet"

    def _end_part(self, encoder: ParquetEncoder) -> None:
        note = f"a part of a trace dataset, from its row {self._first_row} on: not a whole trace"
        encoder.finish(
            msgspec.structs.replace(
                self._part_meta,
                rows=self._part_rows,
                stats=None,
                notes=[note, *self._part_meta.notes],
            )
        )
        encoder.close()
        times_ns = (min(self._times_ns), max(self._times_ns)) if self._times_ns else (None, None)
        self._check_part_order(times_ns[0])
        self._parts.append(_file_facts(self._part_path, self._part_rows, *times_ns))
        self._first_row += self._part_rows
        self._encoder, self._part_rows, self._times_ns = None, 0, []

    def _check_part_order(self, begin_ns: int | None) -> None:
        """Raise TraceError if a part begins at `begin_ns`, before the part in front of it ends."""
        end_ns = self._parts[-1].max_ts_ns if self._parts else None
        if begin_ns is not None and end_ns is not None and begin_ns < end_ns:
            raise TraceError(
                f"time goes back from {end_ns} to {begin_ns} ns near row {self._first_row}: sort the"
                " trace by ts_ns, or write one file",
                path=self._folder.name,
            )

    def finish(self, meta: Metadata) -> None:
        """End the last part; the manifest gets `meta`."""
        if self._encoder is not None or not self._parts:
            self._end_part(self._encoder or self._start_part())
        self._meta = meta

    def close(self) -> None:
        """Close the part that is being written."""
        if self._encoder is not None:
            self._encoder.close()

    def write_manifest(self) -> None:
        """Write the manifest; the other tables of the trace must be complete."""
        tables = [
            _file_facts(path, open_file(path).meta.rows or 0)
            for path in (objects_path(self._folder), requests_path(self._folder))
            if path.is_file()
        ]
        contents = _Contents(
            msgspec.Raw(metadata.encode(self._meta)), list(self._extras), self._parts, tables
        )
        text = msgspec.json.format(msgspec.json.encode(contents), indent=1)
        manifest = _Manifest(MANIFEST_VERSION, hashlib.sha256(text).hexdigest(), msgspec.Raw(text))
        write_text(self._folder / MANIFEST, msgspec.json.encode(manifest).decode() + "\n")


def _file_facts(
    path: Path, rows: int, min_ts_ns: int | None = None, max_ts_ns: int | None = None
) -> DatasetFile:
    with path.open("rb") as data:
        digest = footer_sha256(data)
    return DatasetFile(path.name, rows, path.stat().st_size, digest, min_ts_ns, max_ts_ns)


@contextmanager
def create_dataset(folder: Path, meta: Metadata, extras: tuple[str, ...] = ()) -> Iterator[Writer]:
    """Yield a writer of the parts of the dataset in `folder`, a folder that `staged` made.

    Its manifest is written at the end, when the other tables of the trace must be in the folder.
    """
    encoder = DatasetEncoder(folder, extras, with_table(meta, TRACE, extras))
    with closing(encoder):
        writer = Writer(TRACE, meta, encoder, extras)
        yield writer
        writer.finish()
    encoder.write_manifest()


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """Yield the path under which to write the trace for `path` and its other tables.

    A file is written aside by `create`, so that path is `path` itself. For a dataset it is a new
    folder, which gets its name `path` once the block has succeeded. A dataset of that name is
    replaced then.

    ConfigError if `path` is named neither as a table file nor as a folder. DeviceError if there is
    another file or folder of that name, or the disk reports an error.
    """
    if not names_dataset(path):
        if not path.name.endswith(SUFFIXES):
            raise ConfigError(
                f"{path}: unknown file type; name it *{' or *'.join(SUFFIXES)}, or a dataset's"
                " folder by a name without a dot"
            )
        yield path
        return
    if not path.parent.is_dir():
        raise DeviceError(f"{path.parent}: no such directory; create it first")
    target = path.parent.resolve() / path.name
    if Path.cwd().is_relative_to(target):
        message = "holds the working directory; name another folder, or go elsewhere first"
        raise DeviceError(f"{path}: {message}")
    _refuse_foreign_files(path)
    try:
        with temporary_folder(".kvtrace-", target.parent) as scratch:
            folder = scratch / path.name
            folder.mkdir()
            yield folder
            _rename(folder, target)
    except OSError as error:
        if error.errno is None:
            raise  # Arrow's, such as that zstd lacks memory
        raise DeviceError(f"cannot write {path}: {error.strerror or error}") from error


def staged_path(file: Path, trace: Path, place: Path) -> Path:
    """Return the path under which to write `file`, which may be in the folder of `trace`.

    `place` is what `staged` yielded for `trace`.
    """
    return place / file.name if place != trace and file.parent == trace else file


def _rename(folder: Path, path: Path) -> None:
    """Give `folder` the name `path`; a dataset that has that name is removed then.

    Whenever a signal or a loss of power comes, one of the two has the name, or, on a filesystem that
    cannot exchange names, the old one has the name `.NAME.replaced` beside it.
    """
    if not path.exists() or not is_dataset(path):
        folder.replace(path)
    elif exchange_names(folder, path):
        shutil.rmtree(folder)
    else:
        replaced = path.with_name(f".{path.name}.replaced")
        path.rename(replaced)
        try:
            folder.rename(path)
        except BaseException:
            replaced.rename(path)
            raise
        shutil.rmtree(replaced)


def _refuse_foreign_files(path: Path) -> None:
    """Raise DeviceError if at `path` is anything but an empty folder or a dataset."""
    if not path.exists():
        return
    if not path.is_dir():
        raise DeviceError(f"{path} is not a folder; name a new one, or a file *.parquet")
    files = {entry.name for entry in path.iterdir()}
    if files and is_dataset(path):
        try:
            contents = _read_contents(path)
        except TraceError as error:
            raise DeviceError(f"{error}; or remove the folder, or name another one") from None
        files -= {MANIFEST, *(file.name for file in (*contents.parts, *contents.tables))}
    if files:
        raise DeviceError(
            f"{path} holds other files than a trace dataset, such as {min(files)}; name a new or"
            " empty folder"
        )
