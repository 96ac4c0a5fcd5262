"""A trace dataset as DuckDB reads it: only the parts and row groups that a condition can match.

DuckDB hands the columns and the condition of a query to `scanner` of an Arrow dataset. Parts are
omitted by their times in the manifest, and are not opened; row groups are omitted by the statistics
in the footer of their part. Whatever is read passes the checks of a `Reader`, so that nothing need
be verified beforehand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from kvtrace.core import np, pa, pa_dataset, pc
from kvtrace.core.errors import KvError, TraceError, first_line
from kvtrace.core.row_check import RowCheck
from kvtrace.core.schema import TRACE, arrow_schema
from kvtrace.core.tables import DatasetReader

ROW = "row"
"""The column of row numbers, which count through all parts from 0."""


@dataclass(frozen=True, slots=True)
class _Scan:
    """What DuckDB uses of an Arrow scanner, without the batches that it reads ahead."""

    projected_schema: pa.Schema
    batches: Iterator[pa.RecordBatch]

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the rows as a stream."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.batches)


class DatasetView(pa_dataset.Dataset):  # type: ignore[misc]
    """The rows of a trace dataset with their numbers, as an Arrow dataset."""

    def __init__(self, reader: DatasetReader) -> None:
        """Read the dataset of `reader`."""
        self._reader = reader
        self._schema = arrow_schema(TRACE, reader.extras).append(pa.field(ROW, pa.int64()))
        self.error: KvError | None = None
        """The error that ended a scan; DuckDB converts it to one of its own."""
        self._parts = [self._as_dataset(index) for index in range(len(reader.parts))]
        """Each part as a dataset of its own, which knows its times without opening the file."""

    def _as_dataset(self, index: int) -> pa_dataset.FileSystemDataset:
        files, path = self._reader.part_source(index)
        part, time = self._reader.parts[index], pc.field("ts_ns")
        parquet = pa_dataset.ParquetFileFormat()
        times = (time >= part.min_ts_ns) & (time <= part.max_ts_ns)
        fragment = parquet.make_fragment(path, filesystem=files, partition_expression=times)
        return pa_dataset.FileSystemDataset([fragment], self._schema, parquet, files)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the trace, and the row number."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - of Arrow's interface
    ) -> _Scan:
        """Return a scan of `columns` (default: all) of the rows that fulfil `filter`, in order."""
        names = self._schema.names if columns is None else list(columns)
        schema = pa.schema([self._schema.field(name) for name in names])
        return _Scan(schema, self._batches(names, filter))

    def _batches(
        self, names: Sequence[str], condition: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        # An expression does not tell its columns, but its text has their names. A name in a text
        # constant adds a column that is not needed.
        needed = {*names, *re.findall(r"\w+", str(condition))}
        stored_names = [name for name in self._schema.names if name in needed - {ROW}]
        try:
            for first_row, batch in self._rows(stored_names or ["ts_ns"], condition):
                if ROW in needed:
                    batch = _with_row_numbers(batch, first_row)  # noqa: PLW2901
                rows = batch if condition is None else batch.filter(condition)
                if rows.num_rows:
                    yield rows.select(list(names))
        except KvError as error:
            self.error = error
            raise

    def _rows(
        self, stored_names: Sequence[str], condition: pc.Expression | None
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the batches of the row groups that may fulfil `condition`, each with the number of
        its first row.
        """
        reader = self._reader
        check, first_row = reader.row_check(), 0
        for index, part in enumerate(reader.parts):
            fragments = list(self._parts[index].get_fragments(condition)) if part.rows else []
            for fragment in fragments:
                path = reader.part_path(index)
                # The footer is verified before Arrow reads its statistics.
                file, part_check = reader.open_part(index), check.start_file(path)
                groups = [group.id for group in self._groups(fragment, condition)]
                with closing(
                    file.read_groups(groups, stored_names, stored_names, part_check)
                ) as unpacked_groups:
                    for row, batch in _numbered(path, unpacked_groups):
                        if "ts_ns" in stored_names:
                            reader.check_times(index, batch.column("ts_ns"), row)
                        yield first_row + row, batch
            first_row += part.rows

    def _groups(
        self, fragment: pa_dataset.ParquetFileFragment, condition: pc.Expression | None
    ) -> list[pa_dataset.RowGroupInfo]:
        """Return the row groups of a part that may fulfil `condition`."""
        if condition is None:
            return list(fragment.row_groups)
        return list(fragment.subset(condition, schema=self._schema).row_groups)


def _with_row_numbers(batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
    """Return `batch` with the column `row`, which counts from `first_row`."""
    numbers = pa.array(np.arange(first_row, first_row + batch.num_rows, dtype=np.int64))
    return pa.RecordBatch.from_arrays(
        [*batch.columns, numbers], schema=batch.schema.append(pa.field(ROW, pa.int64()))
    )


def _numbered(
    path: Path, unpacked_groups: Iterator[tuple[list[pa.RecordBatch], RowCheck]]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the batches of row groups, each with the number of its first row in the file `path`."""
    try:
        for batches, check in unpacked_groups:
            row = check.row - sum(batch.num_rows for batch in batches)
            for batch in batches:
                yield row, batch
                row += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, MemoryError):
            raise
        raise TraceError(f"damaged, or not readable: {first_line(error)}", path=path) from None
