"""What the readers of all formats have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from kvtrace.core import metadata, pa
from kvtrace.core.arrays import Array
from kvtrace.core.errors import TraceError
from kvtrace.core.metadata import Metadata
from kvtrace.core.row_check import RowCheck
from kvtrace.core.schema import OBJECTS, STUDY, TABLES, TRACE, Table, arrow_schema, study_table
from kvtrace.core.table_names import objects_path


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
        self, columns: Sequence[str] | None = None, can_skip: CanSkipPart | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows as `batches` does, in batches of up to a row group.

        Threads may unpack and check row groups ahead of the caller. On two processors this takes
        half the time of `batches`, and some 100 MB more memory. A dataset omits the parts for which
        `can_skip` is true.
        """
        yield from self._read_all(columns, partial(self.read_ahead, can_skip=can_skip))

    def _read_all(self, columns: Sequence[str] | None, read: _ReadRows) -> Iterator[pa.RecordBatch]:
        """Yield all rows, with the named columns or with all, as `read` yields them."""
        names = list(columns) if columns is not None else [*self.table.names, *self.extras]
        absent = {column.name for column in self.table.extras} - set(self.extras)
        stored_names = [name for name in names if name not in absent]
        if not stored_names:
            # One column must be read, for the number of rows.
            stored_names = self.table.names[:1]
        check = self.row_check()
        yield from read(stored_names, names, check)
        if check.row != self.meta.rows:
            raise TraceError(
                f"its metadata says {self.meta.rows} rows, but it holds {check.row}", path=self.path
            )

    def row_check(self) -> RowCheck:
        """Return a check of all rows."""
        object_count, objects = 0, objects_path(self.path) if self.table is TRACE else None
        if objects is not None and objects.is_file():
            with suppress(TraceError):
                object_count = self.open_beside(objects, OBJECTS).meta.rows or 0
        return RowCheck(self.table, self.meta, self.path, object_count)

    def open_beside(self, path: Path, table: Table) -> Reader:
        """Return a reader of `table` at `path`, a table of the same trace."""
        raise NotImplementedError

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
        can_skip: CanSkipPart | None = None,  # noqa: ARG002 - a file has no parts
    ) -> Iterator[pa.RecordBatch]:
        """Yield the same rows as `read`, in larger batches if the file has row groups."""
        return self.read(stored_names, names, check)


_ReadRows = Callable[[Sequence[str], Sequence[str], "RowCheck"], "Iterator[pa.RecordBatch]"]
"""`Reader.read` or `Reader.read_ahead`."""


CanSkipPart = Callable[[int, int], bool]
"""Takes the number of rows of a part and its latest time; returns whether it can be omitted.

It is called before the part is read, when all batches of the parts in front of it were yielded.
"""


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
